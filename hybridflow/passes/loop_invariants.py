"""Move computations out of loops when every step would repeat them."""

from __future__ import annotations

from typing import Any, cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, clone_node, input_node
from hybridflow.ir.invariants import hoist
from hybridflow.nested.loops import WHILE
from hybridflow.nested.scans import SCAN
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, changed, rewrite


@graph_pass()
def loop_invariants(graph: Graph, context: PassContext) -> Graph:
    """Move nodes out of loop bodies and conditions if they depend only on values from outside the loop.

    A node that only repeats elements, such as a broadcast, stays: outside the loop it would take memory.

    Before:
        graph f(%x: f32[], %w: f32[], %xs: f32[4]) -> (f32[]) {
          %0 = scan(%x, %xs, %w) {
            body=graph step(%c: f32[], %t: f32[], %w: f32[]) -> (f32[]) {
              %0 = exp(%w) : f32[]
              %1 = multiply(%c, %0) : f32[]
              %2 = add(%1, %t) : f32[]
              return %2
            },
            carry=1,
            sequences=1,
            length=4,
            reverse=False,
            residuals=False
          } : f32[]
          return %0
        }

    After:
        graph f(%x: f32[], %w: f32[], %xs: f32[4]) -> (f32[]) {
          %0 = exp(%w) : f32[]
          %1 = scan(%x, %xs, %w, %0) {
            body=graph step(%c: f32[], %t: f32[], %w: f32[], %invariant_0: f32[]) -> (f32[]) {
              %0 = multiply(%c, %invariant_0) : f32[]
              %1 = add(%0, %t) : f32[]
              return %1
            },
            carry=1,
            sequences=1,
            length=4,
            reverse=False,
            residuals=False
          } : f32[]
          return %1
        }
    """

    def visit(node: Node) -> Replacement | None:
        if node.op not in (SCAN, WHILE) or node.op.hidden_outputs(node.attrs):
            return None
        inputs = list(cast("tuple[Edge, ...]", node.inputs))
        moved: list[Node] = []
        graphs = {name: value for name, value in node.attrs.items() if isinstance(value, Graph)}
        before = int(bool(node.attrs.get("counted")))
        first = node.attrs["carry"] + node.attrs.get("sequences", 0)
        for name, one in graphs.items():
            one = _with_inputs(one, inputs[before:])
            hoisted = hoist(one, first)
            graphs[name] = one
            if hoisted is None:
                continue
            graphs[name] = hoisted.graph
            edges = {(outer, 0): edge for outer, edge in zip(one.inputs[first:], inputs[before + first :], strict=True)}
            inputs += [_outside(hoisted.nodes, edges, moved, node.scope)[edge] for edge in hoisted.values]
        if not moved:
            return None
        context.notes[node.op.name] += 1
        attrs: dict[str, Any] = {name: _with_inputs(one, inputs[before:]) for name, one in graphs.items()}
        new = changed(node, tuple(inputs), attrs={**node.attrs, **attrs})
        return Replacement(tuple([(new, index) for index in range(len(new.outputs))]), (*moved, new))

    return rewrite(graph, visit)


def _outside(nodes: tuple[Node, ...], edges: dict[Edge, Edge], moved: list[Node], scope: Any) -> dict[Edge, Edge]:
    """Copy nodes to the graph around the loop, unless that was done already; return their edges there."""
    for node in nodes:
        if (node, 0) in edges:
            continue
        copy = clone_node(node, tuple([edges[edge] for edge in cast("tuple[Edge, ...]", node.inputs)]))
        copy.scope = scope
        moved.append(copy)
        edges.update({(node, index): (copy, index) for index in range(len(node.outputs))})
    return edges


def _with_inputs(graph: Graph, edges: list[Edge]) -> Graph:
    """Return the graph with an input for every input of the loop; it does not read the added ones."""
    missing = edges[len(graph.inputs) :]
    if not missing:
        return graph
    more = [input_node(node.spec(index), f"unread_{number}") for number, (node, index) in enumerate(missing)]
    return Graph(graph.name, (*graph.inputs, *more), graph.nodes, graph.outputs, graph.dims)

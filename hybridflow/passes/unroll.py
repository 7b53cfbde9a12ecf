"""Unroll loops of a few steps into straight code."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.node import Edge, Node
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import trace_body
from hybridflow.ir.effects import has_effects
from hybridflow.ir.graph import Graph, clone_node, nested_graphs
from hybridflow.nested.scans import SCAN
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, placed, rewrite


class Limits(NamedTuple):
    """The limits of what is unrolled.

    Attributes:
        steps: the most steps of a loop.
        nodes: the most nodes of all its steps together.
    """

    steps: int = 4
    nodes: int = 32


LIMITS = Limits()



@graph_pass(final=True)
def unroll(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Unroll scans of up to 4 steps whose steps have up to 32 nodes together, and no loops, branches or effects.

    So few steps run faster unrolled. More steps would take much longer to compile, and may even run slower.

    Before:
        graph f(%x: f32[], %xs: f32[2]) -> (f32[], f32[2]) {
          %0, %1 = scan(%x, %xs) {
            body=graph step(%c: f32[], %t: f32[]) -> (f32[], f32[]) {
              %0 = add(%c, %t) : f32[]
              return %0, %c
            },
            carry=1,
            sequences=1,
            length=2,
            reverse=False,
            residuals=False
          } : f32[], f32[2]
          return %0, %1
        }

    After:
        graph f(%x: f32[], %xs: f32[2]) -> (f32[], f32[2]) {
          %0 = getitem(%xs) {index=(0,)} : f32[]
          %1 = add(%x, %0) : f32[]
          %2 = getitem(%xs) {index=(1,)} : f32[]
          %3 = add(%1, %2) : f32[]
          %4 = stack(%x, %1) {axis=0} : f32[2]
          return %3, %4
        }
    """

    def visit(node: Node) -> Replacement | None:
        if node.op is not SCAN or not _is_small(node, limits):
            return None
        context.notes["scan"] += 1
        inputs = cast("tuple[Edge, ...]", node.inputs)
        straight = trace_body(
            lambda *xs: _steps(node, list(xs)), [edge[0].spec(edge[1]) for edge in inputs], graph.name
        ).graph
        moved: dict[Edge, Edge] = {(one, 0): edge for one, edge in zip(straight.inputs, inputs, strict=True)}
        nodes: list[Node] = []
        for one in straight.nodes:
            copy = placed(clone_node(one, tuple([moved[e] for e in cast("tuple[Edge, ...]", one.inputs)])), node)
            copy.scope = node.scope
            nodes.append(copy)
            moved.update({(one, index): (copy, index) for index in range(len(one.outputs))})
        return Replacement(tuple([moved[edge] for edge in straight.outputs]), tuple(nodes))

    return rewrite(graph, visit)


def _is_small(node: Node, limits: Limits) -> bool:
    body, length = node.attrs["body"], node.attrs["length"]
    if type(length) is not int or node.attrs.get("counted") or node.op.hidden_outputs(node.attrs):
        return False
    if not 0 < length <= limits.steps or len(body.nodes) * length > limits.nodes or body.dims.hints:
        return False
    return not has_effects(body) and not any(map(nested_graphs, body.nodes))


def _steps(node: Node, xs: list[Tensor]) -> list[Tensor]:
    """Add all steps of the loop to the current trace."""
    attrs: dict[str, Any] = node.attrs
    body, carry, end = attrs["body"], attrs["carry"], attrs["carry"] + attrs["sequences"]
    state, sequences, constants = xs[:carry], cast("list[Any]", xs[carry:end]), xs[end:]
    length = attrs["length"]
    rows: list[list[Tensor]] = [[] for _ in body.outputs[carry:]]
    for step in range(length):
        index = length - 1 - step if attrs["reverse"] else step
        outputs = inline(body, [*state, *[one[index] for one in sequences], *constants])
        state = outputs[:carry]
        for row, y in zip(rows, outputs[carry:], strict=True):
            row.append(y)
    return [*state, *[PUBLIC.stack(row[::-1] if attrs["reverse"] else row) for row in rows]]

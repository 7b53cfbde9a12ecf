"""Inline checkpoints, and delay their second runs until the gradients that need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from hybridflow.core.node import Edge, Node, make_node
from hybridflow.ir.fusion import TIED
from hybridflow.ir.graph import Graph, clone_node
from hybridflow.nested.checkpoint_graphs import CHECKPOINT, kept_by
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, rewrite
from hybridflow.passes.lib.ties import Ties


@graph_pass(final=True)
def inline_checkpoints(graph: Graph, context: PassContext) -> Graph:
    """Replace a checkpoint by its operations; those of a second run wait for the gradients that need them.

    XLA would merge the second run with the first one, and keep the first one's results. So an input of each operation
    that begins the second run is tied to a gradient; `Ties` chooses which. To XLA they are other values than in the
    first run, and they do not exist before the gradient. XLA:CPU has no better way: it ignores barriers, and it fuses
    and vectorizes a function less well if it must not inline it.

    Before:
        graph f(%x: f32[2], %g: f32[2]) -> (f32[2]) {
          %0 = checkpoint(%x, %g) {
            graph=graph layer_gradient(%a: f32[2], %d: f32[2]) -> (f32[2]) {
              %0 = multiply(%a, %a) : f32[2]
              %1 = multiply(%0, %d) : f32[2]
              return %1
            },
            policy="nothing",
            after=1
          } : f32[2]
          return %0
        }

    After:
        graph f(%x: f32[2], %g: f32[2]) -> (f32[2]) {
          %0 = tied(%x, %g) : f32[2]
          %1 = multiply(%0, %x) : f32[2]
          %2 = multiply(%1, %g) : f32[2]
          return %2
        }
    """

    def visit(node: Node) -> Replacement | None:
        if node.op is not CHECKPOINT:
            return None
        context.notes["checkpoint"] += 1
        return _inlined(node, ties)

    ties = Ties(graph.dims.hints)
    return rewrite(graph, visit)


def _inlined(node: Node, ties: Ties) -> Replacement:
    attrs: dict[str, Any] = node.attrs
    body = kept_by(attrs["graph"], attrs["policy"]).forward if attrs.get("residuals") else attrs["graph"]
    inputs = cast("tuple[Edge, ...]", node.inputs)
    moved: dict[Edge, Edge] = {(one, 0): edge for one, edge in zip(body.inputs, inputs, strict=True)}
    count = len(inputs) - attrs["after"]
    early = set(body.inputs[:count]) | {one for one in body.nodes if not one.inputs}
    then = _latest(inputs[count:])
    nodes: list[Node] = []
    for one in body.nodes:
        own = cast("tuple[Edge, ...]", one.inputs)
        edges = [moved[edge] for edge in own]
        if then is not None and own and all(edge[0] in early for edge in own):
            position = ties.position(one, own)
            if position is not None:
                tied = make_node(TIED, (edges[position], then), {}, (own[position][0].spec(own[position][1]),),
                                 where=one.where, scope=node.scope)
                nodes.append(tied)
                edges[position] = (tied, 0)
        copy = clone_node(one, tuple(edges))
        copy.scope = node.scope
        nodes.append(copy)
        moved.update({(one, index): (copy, index) for index in range(len(one.outputs))})
    return Replacement(tuple([moved[edge] for edge in body.outputs]), tuple(nodes))


def _latest(gradients: Sequence[Edge]) -> Edge | None:
    """Return the gradient that was computed last, among those that have elements."""
    candidates = [edge for edge in gradients if edge[0].spec(edge[1]).shape.count(0) == 0]
    return max(candidates, key=lambda edge: edge[0].sequence, default=None)

"""Turn the hidden residuals of loops and branches into ordinary outputs."""

from __future__ import annotations

from typing import cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, rewrite


@graph_pass(final=True)
def expose_residuals(graph: Graph, context: PassContext) -> Graph:
    """Replace a loop or branch with hidden outputs by one whose graphs return them, so that other passes can change it.

    Before:
        graph f(%x: f32[], %xs: f32[4]) -> (f32[], f32[4]) {
          %0, %1 = scan(%x, %xs) {
            body=graph step(%c: f32[], %t: f32[]) -> (f32[]) {
              %0 = multiply(%c, %t) : f32[]
              return %0
            },
            carry=1,
            sequences=1,
            length=4,
            reverse=False,
            residuals=True
          } : f32[], f32[4]
          return %0, %1
        }

    After:
        graph f(%x: f32[], %xs: f32[4]) -> (f32[], f32[4]) {
          %0, %1 = scan(%x, %xs) {
            body=graph step(%c: f32[], %t: f32[]) -> (f32[], f32[]) {
              %0 = multiply(%c, %t) : f32[]
              return %0, %c
            },
            carry=1,
            sequences=1,
            length=4,
            reverse=False,
            residuals=False
          } : f32[], f32[4]
          return %0, %1
        }
    """

    def visit(node: Node) -> Node | None:
        expose = node.op.saves.expose
        if expose is None or not node.op.hidden_outputs(node.attrs):
            return None
        context.notes[node.op.name] += 1
        attrs = {name: value for name, value in node.attrs.items() if name != "residuals"}
        inputs = cast("tuple[Edge, ...]", node.inputs)
        return changed(node, inputs, attrs={**expose(attrs), "residuals": False})

    return rewrite(graph, visit)

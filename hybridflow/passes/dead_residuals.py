"""Drop hidden outputs that only a gradient would have read."""

from __future__ import annotations

from hybridflow.core.node import Node, Position
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, reads_of, rewrite


@graph_pass(final=True)
def dead_residuals(graph: Graph, context: PassContext) -> Graph:
    """Let an op compute its visible outputs only, if nothing reads the hidden ones, which its gradient rule uses.

    Before:
        graph f(%x: f32[2,3]) -> (f32[2,3]) {
          %0, %1 = rms_norm(%x) {axis=(1,), epsilon=1e-06, residuals=True} : f32[2,3], f32[2,1]
          return %0
        }

    After:
        graph f(%x: f32[2,3]) -> (f32[2,3]) {
          %0 = rms_norm(%x) {axis=(1,), epsilon=1e-06, residuals=False} : f32[2,3]
          return %0
        }
    """
    candidates = [node for node in graph.nodes if node.op.saves.hidden and node.attrs.get("residuals")]
    if not candidates:
        return graph
    read = reads_of(graph)
    visible: dict[Position, int] = {}
    for node in candidates:
        first = len(node.outputs) - node.op.hidden_outputs(node.attrs)
        if not any((node, index) in read for index in range(first, len(node.outputs))):
            visible[node.sequence] = first

    def visit(node: Node) -> Node | None:
        count = visible.get(node.sequence)
        if count is None or not node.op.saves.hidden:
            return None
        context.notes[node.op.name] += 1
        attrs = {**node.attrs, "residuals": False}
        return changed(node, edges_of(node), attrs=attrs, outputs=node.outputs[:count])

    return rewrite(graph, visit)

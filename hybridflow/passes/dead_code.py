"""Remove nodes that nothing reads."""

from __future__ import annotations

from hybridflow.core.node import Node
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import rebuilt


@graph_pass(cleanup=True)
def dead_code(graph: Graph, context: PassContext) -> Graph:
    """Remove nodes that no output depends on; those with an effect stay, and so do inputs.

    Before:
        graph f(%x: f32[2], %w: f32[2]) -> (f32[2]) {
          %0 = tanh(%x) : f32[2]
          %1 = multiply(%0, %w) : f32[2]
          %2 = add(%0, %0) : f32[2]
          return %2
        }

    After:
        graph f(%x: f32[2], %w: f32[2]) -> (f32[2]) {
          %0 = tanh(%x) : f32[2]
          %1 = add(%0, %0) : f32[2]
          return %1
        }
    """
    del context
    live: set[Node] = {node for node, _ in graph.outputs}
    kept: list[Node] = []
    for node in reversed(graph.nodes):
        if node in live or has_effect(node):
            kept.append(node)
            for edge in node.inputs:
                if edge is not None:
                    live.add(edge[0])
    if len(kept) == len(graph.nodes):
        return graph
    return rebuilt(graph, kept[::-1], graph.outputs)

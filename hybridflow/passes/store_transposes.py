"""Transposed operands of matrix products that are stored before they are multiplied."""

from __future__ import annotations

from hybridflow.core.node import Edge, Node, make_node
from hybridflow.ir.fusion import STORED
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.products import transposed_product
from hybridflow.passes.lib.rewrite import changed, followed, placed, rebuilt


@graph_pass(final=True)
def store_transposes(graph: Graph, context: PassContext) -> Graph:
    """Store the transposed first operand of a product of two matrices, as in the gradient of a layer's weight.

    By itself XLA makes the transpose a part of the product. On CPUs, the product then reads its first operand along
    columns, again for each block of its result. One copy along rows takes less time, and memory for the copy.

    Before:
        graph f(%g: f32[4, 3], %x: f32[4, 2]) -> (f32[3, 2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[3, 4]
          %1 = matmul(%0, %x) : f32[3, 2]
          return %1
        }

    After:
        graph f(%g: f32[4, 3], %x: f32[4, 2]) -> (f32[3, 2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[3, 4]
          %1 = stored(%0) : f32[3, 4]
          %2 = matmul(%1, %x) : f32[3, 2]
          return %2
        }
    """
    stored: dict[Edge, Edge] = {}
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        current = followed(node, moved) if moved else node
        product = transposed_product(current)
        if product is not None:
            first, second = product.transposed, product.b
            if first not in stored:
                made = make_node(STORED, (first,), {}, (first[0].spec(),), where=node.where, scope=node.scope)
                nodes.append(placed(made, node))
                stored[first] = (made, 0)
                context.notes["a transpose is stored"] += 1
            current = changed(current, (stored[first], second))
            moved[node, 0] = (current, 0)
        nodes.append(current)
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs]) if stored else graph

"""Products of a transposed matrix, for which XLA on CPUs has a faster way."""

from __future__ import annotations

from hybridflow.core.dtypes import float32, float64
from hybridflow.core.node import Node
from hybridflow.ir.graph import Graph
from hybridflow.ops.matmul import transposed_matmul
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.products import transposed_product
from hybridflow.passes.lib.rewrite import Added, Replacement, rewrite


@graph_pass(final=True)
def turn_products(graph: Graph, context: PassContext) -> Graph:
    """Let a product of a transposed matrix be one operation, which chooses its way when its sizes are known.

    This is the gradient of the weight of a layer. Only XLA:CPU has a choice, and only for products with more rows than
    columns.

    Before:
        graph f(%g: f32[3,8], %x: f32[3,2]) -> (f32[8,2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[8,3]
          %1 = matmul(%0, %x) : f32[8,2]
          return %1
        }

    After:
        graph f(%g: f32[3,8], %x: f32[3,2]) -> (f32[8,2]) {
          %0 = transposed_matmul(%g, %x) : f32[8,2]
          return %0
        }
    """

    def visit(node: Node) -> Replacement | None:
        product = transposed_product(node)
        if product is None or node.spec().dtype not in (float32, float64):
            return None
        rows, columns = node.spec().shape
        if type(rows) is type(columns) is int and rows <= columns:
            return None
        context.notes["a product"] += 1
        added = Added(node)
        return Replacement((added.put(transposed_matmul.op, product.a, product.b),), tuple(added.nodes))

    after = rewrite(graph, visit)
    return graph if after is graph else dead_code.function(after, context)  # transposes that nothing else reads

"""Products that XLA on CPUs computes faster as the transpose of another product."""

from __future__ import annotations

from typing import NamedTuple

from hybridflow.core.dtypes import float32, float64
from hybridflow.core.node import Node
from hybridflow.ir.fusion import STORED
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ops.matmul import matmul
from hybridflow.ops.shape import permute_dims
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.products import transposed_product
from hybridflow.passes.lib.rewrite import Added, Replacement, rebuilt, rewrite


class Limits(NamedTuple):
    """The limits of what is turned.

    Attributes:
        ratio: the least ratio of a product's rows to its columns.
        length: the least number of terms of an element; for fewer, the additional transposition costs too much.
    """

    ratio: int = 2
    length: int = 256


LIMITS = Limits()


@graph_pass(final=True)
def turn_products(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Compute ``transpose(a) @ b`` as ``transpose(transpose(b) @ a)`` if it has more rows than columns.

    This is the gradient of the weight of a layer with more outputs than inputs. XLA:CPU repacks the first operand
    column by column, which is slow for long rows, and slowest if their length is a power of two. The second operand is
    repacked along its rows.

    Before (with a length of 3 or more):
        graph f(%g: f32[3,8], %x: f32[3,2]) -> (f32[8,2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[8,3]
          %1 = matmul(%0, %x) : f32[8,2]
          return %1
        }

    After:
        graph f(%g: f32[3,8], %x: f32[3,2]) -> (f32[8,2]) {
          %0 = permute_dims(%x) {axes=(1, 0)} : f32[2,3]
          %1 = matmul(%0, %g) : f32[2,8]
          %2 = stored(%1) : f32[2,8]
          %3 = permute_dims(%2) {axes=(1, 0)} : f32[8,2]
          return %3
        }
    """
    turned: set[Node] = set()

    def visit(node: Node) -> Replacement | None:
        product = transposed_product(node)
        if product is None or node.spec().dtype not in (float32, float64):
            return None
        rows, columns = node.spec().shape
        length = product.b[0].spec(product.b[1]).shape[0]
        if not all([type(size) is int for size in (rows, columns, length)]):
            return None
        if rows < limits.ratio * columns or length < limits.length or not columns:
            return None
        context.notes["a product is turned"] += 1
        turned.add(product.transposed[0])
        added = Added(node)
        other = added.put(matmul.op, added.put(permute_dims.op, product.b, axes=(1, 0)), product.a, **node.attrs)
        result = added.put(permute_dims.op, added.put(STORED, other), axes=(1, 0))
        return Replacement((result,), tuple(added.nodes))

    after = rewrite(graph, visit)
    unread = turned - {edge[0] for edges in (after.outputs, *map(edges_of, after.nodes)) for edge in edges}
    return rebuilt(after, [node for node in after.nodes if node not in unread], after.outputs) if unread else after

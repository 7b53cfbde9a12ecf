"""Sums over the steps of a loop, computed after the loop at once."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from hybridflow.core.dtypes import float32, float64
from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.scans import SCAN
from hybridflow.ops.arithmetic import add
from hybridflow.ops.matmul import matmul
from hybridflow.ops.shape import permute_dims, reshape
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.products import transposed_product
from hybridflow.passes.lib.rewrite import Added, Replacement, reads_of, rewrite


@graph_pass(final=True, reorders=True)
def loop_sums(graph: Graph, context: PassContext) -> Graph:
    """Replace a carried sum, of products or of sums over axes, by one product or sum of all steps after the loop.

    The gradient of a weight that all steps share is such a sum. In the loop, each step would read and write the whole
    sum, for a product with few terms. A sum stays where it is if the loop does not return the values of each step that
    it needs, since they would take memory.

    Before:
        graph f(%w: f32[2,3], %y: f32[3], %a: f32[4,5,2], %b: f32[4,5,3]) -> (f32[2,3], f32[3]) {
          %0, %1 = scan(%w, %y, %a, %b) {
            body=graph step(%w: f32[2,3], %y: f32[3], %a: f32[5,2], %b: f32[5,3]) -> (f32[2,3], f32[3]) {
              %0 = permute_dims(%a) {axes=(1, 0)} : f32[2,5]
              %1 = matmul(%0, %b) : f32[2,3]
              %2 = add(%w, %1) : f32[2,3]
              %3 = sum(%b) {axis=(0,), keepdims=False} : f32[3]
              %4 = add(%y, %3) : f32[3]
              return %2, %4
            },
            carry=2,
            sequences=2,
            length=4,
            reverse=False,
            residuals=False
          } : f32[2,3], f32[3]
          return %0, %1
        }

    After:
        graph f(%w: f32[2,3], %y: f32[3], %a: f32[4,5,2], %b: f32[4,5,3]) -> (f32[2,3], f32[3]) {
          %0, %1 = scan(%w, %y, %a, %b) {
            body=graph step(%w: f32[2,3], %y: f32[3], %a: f32[5,2], %b: f32[5,3]) -> (f32[2,3], f32[3]) {
              %0 = permute_dims(%a) {axes=(1, 0)} : f32[2,5]
              %1 = matmul(%0, %b) : f32[2,3]
              %2 = add(%w, %1) : f32[2,3]
              %3 = sum(%b) {axis=(0,), keepdims=False} : f32[3]
              %4 = add(%y, %3) : f32[3]
              return %2, %4
            },
            carry=2,
            sequences=2,
            length=4,
            reverse=False,
            residuals=False
          } : f32[2,3], f32[3]
          %2 = reshape(%a) {shape=(20, 2)} : f32[20,2]
          %3 = permute_dims(%2) {axes=(1, 0)} : f32[2,20]
          %4 = reshape(%b) {shape=(20, 3)} : f32[20,3]
          %5 = matmul(%3, %4) : f32[2,3]
          %6 = add(%w, %5) : f32[2,3]
          %7 = sum(%b) {axis=(0, 1), keepdims=False} : f32[3]
          %8 = add(%y, %7) : f32[3]
          return %6, %8
        }
    """
    read = reads_of(graph)
    sums = {node.sequence: found for node in graph.nodes if node.op is SCAN and (found := _sums(node, read))}
    if not sums:
        return graph

    def visit(node: Node) -> Replacement | None:
        found = sums.get(node.sequence)
        if found is None or node.op is not SCAN:
            return None
        results = [(node, index) for index in range(len(node.outputs))]
        added = _AfterLoop(node)
        for index, terms in found.items():
            context.notes["a sum after the loop"] += 1
            total = edges_of(node)[index]
            for term in terms:
                total = added.put(add.op, total, added.total(term))
            results[index] = total
        return Replacement(tuple(results), (node, *added.nodes))

    return rewrite(graph, visit)


def _sums(node: Node, read: Container[Edge]) -> dict[int, list[Edge]]:
    """Return the carried sums of a loop that something reads, each with what a step adds to it."""
    attrs = node.attrs
    if attrs.get("counted") or node.op.hidden_outputs(attrs):
        return {}
    body: Graph = attrs["body"]
    reads = reads_of(body)
    rows = _rows(node, read)
    found: dict[int, list[Edge]] = {}
    for index in range(attrs["carry"]):
        carried, terms = (body.inputs[index], 0), _terms(body.outputs[index], reads)
        if (node, index) in read and terms.count(carried) == 1 == reads[carried] and len(terms) > 1:
            terms.remove(carried)
            if all([_is_sum(term, rows) for term in terms]):
                found[index] = terms
    return found


def _rows(node: Node, read: Container[Edge]) -> dict[Edge, Edge]:
    """Map values of a step to what holds those of all steps: the loop's sequences, and rows that something reads."""
    body, carry, sequences = node.attrs["body"], node.attrs["carry"], node.attrs["sequences"]
    given = {(body.inputs[index], 0): edges_of(node)[index] for index in range(carry, carry + sequences)}
    made = {body.outputs[index]: (node, index) for index in range(carry, len(node.outputs)) if (node, index) in read}
    return given | made


def _terms(edge: Edge, reads: Mapping[Edge, int]) -> list[Edge]:
    """Return what is added up to a value that nothing else reads."""
    op = edge[0].op
    adds = op.has("shift") and op.has("commutative")
    if not adds or reads[edge] > 1 or edge[0].spec().dtype not in (float32, float64):
        return [edge]
    return [term for one in edges_of(edge[0]) for term in _terms(one, reads)]


def _is_sum(edge: Edge, rows: Mapping[Edge, Edge]) -> bool:
    """Whether a value is a sum over at least one axis, of values that exist for all steps."""
    node = edge[0]
    if node.op.has("sum"):
        return bool(node.attrs["axis"]) and not node.attrs["keepdims"] and _is_row(edges_of(node)[0], rows)
    if node.op.has("permute"):
        return _is_sum(edges_of(node)[0], rows)
    product = transposed_product(node)
    return product is not None and _is_row(product.a, rows) and _is_row(product.b, rows)


def _is_row(edge: Edge, rows: Mapping[Edge, Edge]) -> bool:
    node = edge[0]
    return edge in rows or (node.op.has("reshape") and _is_row(edges_of(node)[0], rows))


class _AfterLoop(Added):
    """The nodes after a loop that compute sums over its steps."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.rows = _rows(node, {(node, index) for index in range(len(node.outputs))})
        self.length: Any = node.attrs["length"]

    def total(self, term: Edge) -> Edge:
        """Return the sum of a value over all steps."""
        node = term[0]
        if node.op.has("permute"):
            return self.put(node.op, self.total(edges_of(node)[0]), **node.attrs)
        product = transposed_product(node)
        if product is None:
            axes = (0, *[axis + 1 for axis in node.attrs["axis"]])
            return self.put(node.op, self._all(edges_of(node)[0]), **{**node.attrs, "axis": axes})
        a = self.put(permute_dims.op, self._joined(product.a), axes=(1, 0))
        return self.put(matmul.op, a, self._joined(product.b), **node.attrs)

    def _joined(self, matrix: Edge) -> Edge:
        """Return the matrices of all steps below each other."""
        rows, columns = matrix[0].spec(matrix[1]).shape
        return self._reshaped(self._all(matrix), (self.length * rows, columns))

    def _all(self, edge: Edge) -> Edge:
        """Return the values of all steps, with an additional first axis."""
        if edge in self.rows:
            return self.rows[edge]
        source = self._all(edges_of(edge[0])[0])
        return self._reshaped(source, (self.length, *edge[0].spec(edge[1]).shape))

    def _reshaped(self, edge: Edge, shape: tuple[Any, ...]) -> Edge:
        return edge if edge[0].spec(edge[1]).shape == shape else self.put(reshape.op, edge, shape=shape)

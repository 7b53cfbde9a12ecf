"""Optimizers' steps that wait for the products that still read the old parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hybridflow.core.node import Edge, Node
from hybridflow.ir.fusion import SELECTED, TIED
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Added, changed, followed, readers_of, rebuilt
from hybridflow.passes.lib.stored import is_large, is_stored


@graph_pass(final=True)
def updates_last(graph: Graph, context: PassContext) -> Graph:
    """Let an optimizer's step wait for the products that read its parameter, as gradients of layers' inputs do.

    A new parameter takes the memory of the old one. If nothing says that a product comes first, XLA copies the old
    parameter for it. But while a step waits, memory holds what the parameter's gradient is computed from. So it only
    waits for products whose results have no more elements than the parameter.

    Before:
        graph f(%g: f32[2,3], %x: f32[2,2], %w: f32[3,2], %n: i32[], %r: f32[]) -> (f32[3,2], f32[2,2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[3,2]
          %1 = matmul(%0, %x) : f32[3,2]
          %2 = matmul(%g, %w) : f32[2,2]
          %3 = sgd(%w, %1, %n, %r) {decay=0.0} : f32[3,2]
          return %3, %2
        }

    After:
        graph f(%g: f32[2,3], %x: f32[2,2], %w: f32[3,2], %n: i32[], %r: f32[]) -> (f32[3,2], f32[2,2]) {
          %0 = permute_dims(%g) {axes=(1, 0)} : f32[3,2]
          %1 = matmul(%0, %x) : f32[3,2]
          %2 = matmul(%g, %w) : f32[2,2]
          %3 = tied(%1, %2) : f32[3,2]
          %4 = sgd(%w, %3, %n, %r) {decay=0.0} : f32[3,2]
          return %4, %2
        }
    """
    updates = [node for node in graph.nodes if node.op is SELECTED or node.op.has("updates")]
    if not updates:
        return graph
    readers = readers_of(graph)
    products = {node: _small_products(graph, node, readers) for node in updates}
    bits = {one: 1 << number for number, one in enumerate({one for found in products.values() for one in found})}
    before = _before(graph, bits)
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    done: set[Node] = set()
    for node in graph.nodes:
        current = followed(node, moved)
        if node in products:
            slope = edges_of(node)[_first(node) + 1][0]
            waits = [(one, 0) for one in products[node] if one in done and not before[slope] & bits[one]]
            if waits:
                nodes += _waiting(current, [moved.get(edge, edge) for edge in waits])
                current = nodes.pop()
                moved.update({(node, index): (current, index) for index in range(len(node.outputs))})
                context.notes["a step waits for products"] += 1
        nodes.append(current)
        done.add(node)
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs]) if moved else graph


def _waiting(update: Node, products: Sequence[Edge]) -> list[Node]:
    """Return the nodes of a step that waits for products; the step itself is the last one."""
    added, slope = Added(update), _first(update) + 1
    inputs = [*edges_of(update)]
    for product in products:
        inputs[slope] = added.put(TIED, inputs[slope], product)
    return [*added.nodes, changed(update, tuple(inputs))]


def _first(update: Node) -> int:
    """Return which input of a step is the parameter; the next one is the gradient."""
    return 1 if update.op is SELECTED else 0


def _small_products(graph: Graph, update: Node, readers: Mapping[Node, Sequence[Node]]) -> list[Node]:
    """Return the products that read a step's old parameter, and whose results are not larger."""
    parameter, at = edges_of(update)[_first(update)]
    size = parameter.spec(at).size
    return [one for one in _products(parameter, readers) if not is_large(graph, one, size + 1)]


def _products(value: Node, readers: Mapping[Node, Sequence[Node]]) -> Iterator[Node]:
    """Yield the products, or the like, that read a value or what only moves its elements: they have a first element."""
    for reader in readers.get(value, ()):
        if reader.op.has("layout"):
            yield from _products(reader, readers)
        elif is_stored(reader) and reader.outputs and 0 not in reader.spec(0).shape:
            yield reader


def _before(graph: Graph, bits: Mapping[Node, int]) -> dict[Node, int]:
    """Return, for each node, the bits of the products that it is computed from, or that it is."""
    found: dict[Node, int] = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        found[node] = bits.get(node, 0)
        for source, _ in edges_of(node):
            found[node] |= found[source]
    return found

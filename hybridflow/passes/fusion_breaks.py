"""Insert breaks where XLA would recompute long chains again and again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from hybridflow.core.node import Edge, Node, make_node, short_where
from hybridflow.ir.fusion import BREAK, ROW_MAJOR_BREAK
from hybridflow.ir.graph import Graph, edges_of, nested_graphs
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import followed, placed, readers_of, rebuilt
from hybridflow.passes.lib.stored import is_kept, is_large, is_stored


class Limits(NamedTuple):
    """The limits of where breaks are inserted.

    Attributes:
        chain: a chain of this many cheap operations is broken before XLA recomputes it in each reader.
        fewest: graphs that would get fewer breaks get none, unless they have a long chain.
        long: a chain of more operations between two stored values is a long chain.
        large: results with at least this many elements always get a break if they are costly to compute or read again.
    """

    chain: int = 6
    fewest: int = 10
    long: int = 18
    large: int = 1 << 16


LIMITS = Limits()
_DEAR = frozenset({"random", "convolution", "windowed"})
"""Traits of operations whose results are costly to compute again, or to read again."""


@graph_pass(final=True)
def fusion_breaks(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Compute a value once if several nodes read it and it ends a chain of 6 or more cheap operations.

    XLA:CPU recomputes cheap operations in every reader, together with their own cheap inputs, back to the next value
    that is not cheap: a product, a convolution, an input. Residuals, gates and states lengthen this chain in every
    layer. Then a layer's values are computed again in all later layers, and both compile time and step time grow with
    the square of the depth. A break ends the chain.

    A break is inserted only where the chain goes on in a reader. If only products and reductions read a value, it is
    computed at most twice, and gets no break. The layers of a plain network need none.

    Breaks cost compile time. So a graph that would get fewer than 10 breaks gets none, unless it has a chain of more
    than 18 operations between two stored values. Chains that grow with every layer are that long.

    A value that `max`, `sort` and their like read besides others always gets a break: whoever compares it with its
    maximum must see the same bits, and computing it again in another fusion may round differently.

    XLA:CPU reads the gradient of a convolution's result in one order for the kernel's gradient, and in another for the
    input's. It would compute the gradient in both. So a large one gets a break before the kernel's gradient reads it.

    Large random draws, and values computed from large convolutions and poolings, get a break at the first value with
    several readers, however short the chain is. What a pooling reads is stored in row-major order there.

    Before (where 1 is enough):
        graph f(%x: f32[2], %w: f32[2]) -> (f32[2], f32[2]) {
          %0 = multiply(%x, %w) : f32[2]
          %1 = add(%0, %x) : f32[2]
          %2 = multiply(%1, %w) : f32[2]
          %3 = add(%2, %1) : f32[2]
          %4 = multiply(%3, %w) : f32[2]
          %5 = add(%4, %3) : f32[2]
          %6 = tanh(%5) : f32[2]
          %7 = add(%6, %5) : f32[2]
          return %6, %7
        }

    After:
        graph f(%x: f32[2], %w: f32[2]) -> (f32[2], f32[2]) {
          %0 = multiply(%x, %w) : f32[2]
          %1 = add(%0, %x) : f32[2]
          %2 = multiply(%1, %w) : f32[2]
          %3 = add(%2, %1) : f32[2]
          %4 = multiply(%3, %w) : f32[2]
          %5 = add(%4, %3) : f32[2]
          %6 = fusion_break(%5) : f32[2]
          %7 = tanh(%6) : f32[2]
          %8 = add(%7, %6) : f32[2]
          return %7, %8
        }
    """
    readers = readers_of(graph)
    kept = {node for node in graph.nodes if is_kept(node, graph, len(readers.get(node, ())))}
    dear = _dear(graph, readers, kept, limits)
    long = _ends_of_chains(graph, readers, kept, dear, limits)
    if len(long) < limits.fewest and _longest(graph, readers, kept) <= limits.long:
        long = set()
    ends = dear | long | _compared(graph, readers) | _of_kernels(graph, limits)
    return _broken(graph, ends, ends & _pooled(graph, readers), context)


def _broken(graph: Graph, ends: Set[Node], pooled: Set[Node], context: PassContext) -> Graph:
    """Put a break after each output of the nodes `ends`."""
    if not ends:
        return graph
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        current = followed(node, moved) if moved else node
        nodes.append(current)
        for index, spec in enumerate(current.outputs if node in ends else ()):
            op = ROW_MAJOR_BREAK if node in pooled else BREAK
            made = make_node(op, ((current, index),), {}, (spec,), where=node.where, scope=node.scope)
            nodes.append(placed(made, node))
            moved[node, index] = (made, 0)
    context.notes.update([_place(node) for node in graph.nodes if node in ends])
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs])


def _ends_of_chains(
    graph: Graph, readers: Mapping[Node, Sequence[Node]], kept: Set[Node], dear: Set[Node], limits: Limits
) -> set[Node]:
    """Return the nodes that end a long chain of cheap operations and that several nodes read."""
    chains: dict[Node, int] = {}
    ends: set[Node] = set()
    for node in graph.nodes:
        if node in kept or node in dear:
            continue
        length = max([chains.get(edge[0], 0) for edge in edges_of(node)], default=0) + _adds(node)
        if length >= limits.chain and _goes_on(node, readers, kept):
            ends.add(node)
        else:
            chains[node] = length
    return ends


def _goes_on(node: Node, readers: Mapping[Node, Sequence[Node]], kept: Set[Node]) -> bool:
    """Whether several operations read a node, and XLA recomputes at least one of these in its own readers."""
    reading = readers.get(node, ())
    breakable = len(node.outputs) == 1 or node.op.has("windowed")  # a pooling and its positions
    return breakable and len(reading) > 1 and any(one not in kept for one in reading)


def _dear(graph: Graph, readers: Mapping[Node, Sequence[Node]], kept: Set[Node], limits: Limits) -> set[Node]:
    """Return the nodes that get a break because their large results are costly to compute or read again.

    Random bits take many operations each. A convolution's result is stored with the channels last, so readers with
    another order skip from line to line in memory. A pooling reads all elements of its windows.
    """
    costly: set[Node] = set()
    ends: set[Node] = set()
    for node in graph.nodes:
        if not _is_dear(node) and (node in kept or not any(edge[0] in costly for edge in edges_of(node))):
            continue
        if _goes_on(node, readers, kept) and is_large(graph, node, limits.large):
            ends.add(node)
        else:
            costly.add(node)
    return ends


def _of_kernels(graph: Graph, limits: Limits) -> set[Node]:
    """Return the nodes that compute large gradients of convolutions' results, from which kernels' gradients follow."""
    slopes = {edges_of(node)[1][0] for node in graph.nodes if node.op.has("kernel_gradient")}
    computed = {node for node in slopes if node.inputs and "layout" not in node.op.traits and not is_stored(node)}
    return {node for node in computed if is_large(graph, node, limits.large)}


def _pooled(graph: Graph, readers: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """Return the nodes on the way from a convolution to a pooling.

    A pooling's windows lie in row-major order, so what it and its gradient read is stored in that order.
    """
    pooled: set[Node] = set()
    for node in reversed(graph.nodes):
        reading = readers.get(node, ())
        if any(one.op.has("windowed") or (one in pooled and not one.op.has("convolution")) for one in reading):
            pooled.add(node)
    return pooled


def _compared(graph: Graph, readers: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """Return the nodes whose results elements are picked from, and that others read too.

    Stored values need no break, nor do values that only move elements of stored ones: these have the same bits each
    time they are computed.
    """
    picking = _picking(graph, readers)
    returned = {edge[0] for edge in graph.outputs}
    rounded: set[Node] = set()
    ends: set[Node] = set()
    for node in graph.nodes:
        if is_stored(node) or not node.inputs:
            continue
        if "layout" in node.op.traits and not any(edge[0] in rounded for edge in edges_of(node)):
            continue
        reading = readers.get(node, ())
        if len(reading) + (node in returned) > 1 and not picking.isdisjoint(reading):
            ends.add(node)
        else:
            rounded.add(node)
    return ends


def _picking(graph: Graph, readers: Mapping[Node, Sequence[Node]]) -> set[Node]:
    """Return the nodes that pick elements of their inputs, or move or select those that another node picks from."""
    picking: set[Node] = set()
    for node in reversed(graph.nodes):
        inner = [one for graph in nested_graphs(node) for one in graph.walk()]
        passes_on = node.op.has("select") or node.op.has("layout")
        if any(one.op.has("picks") for one in (node, *inner)) or (
            passes_on and not picking.isdisjoint(readers.get(node, ()))
        ):
            picking.add(node)
    return picking


def _is_dear(node: Node) -> bool:
    """Whether a node's result is costly to compute again, or to read again."""
    traits = node.op.traits
    return not _DEAR.isdisjoint(traits)


def _longest(graph: Graph, readers: Mapping[Node, Sequence[Node]], kept: Set[Node]) -> int:
    """Return the length of the longest chain of cheap operations between stored values.

    A value that a product or the like reads is stored, so its other readers start a new chain.
    """
    lengths: dict[Node, int] = {}
    longest = 0
    for node in graph.nodes:
        if node not in kept:
            length = max([lengths.get(edge[0], 0) for edge in edges_of(node)], default=0) + _adds(node)
            longest = max(longest, length)
            lengths[node] = 0 if not kept.isdisjoint(readers.get(node, ())) else length
    return longest


def _adds(node: Node) -> int:
    """Return how much a node adds to a chain's length; nodes that only move elements add nothing."""
    return 0 if "layout" in node.op.traits or not node.inputs else 1


def _place(node: Node) -> str:
    place = short_where(node.where)
    return f"break at {place}" if place else "break"

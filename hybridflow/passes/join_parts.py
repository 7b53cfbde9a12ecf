"""Turn sums of arrays that are zero except for one part each into a concatenation of the parts."""

from __future__ import annotations

from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from hybridflow.core.dims import same_size
from hybridflow.core.dtypes import kind_of
from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ops.arithmetic import plus_zero
from hybridflow.ops.indexing import slice_scatter
from hybridflow.ops.joining import concat, stack
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Added, followed, reads_of, rebuilt
from hybridflow.passes.lib.stored import is_large
from hybridflow.passes.lib.windows import span_of


class Limits(NamedTuple):
    """The limits of what is joined.

    Attributes:
        parts: the fewest parts.
        few: the fewest parts of a large array.
        large: an array of at least this many elements is large.
    """

    parts: int = 8
    few: int = 3
    large: int = 1 << 13


LIMITS = Limits()


class _Part(NamedTuple):
    """Values put among zeros: their start and size along the axis; the size is 0 if they lack the axis."""

    start: int
    size: int
    values: Edge


class _Sum(NamedTuple):
    """A sum of such parts.

    Attributes:
        axis: the axis along which they are parts.
        parts: the parts.
        inner: the nodes of the sum except the last one.
    """

    axis: int
    parts: list[_Part]
    inner: list[Node]

    def is_gapless(self, fewest: int) -> bool:
        """Whether the parts can be joined; this sorts them.

        There must be enough of them, without gaps or overlaps. Either all have the axis, or none has it.
        """
        self.parts.sort(key=itemgetter(0))
        return len(self.parts) >= fewest and all(
            one.start + (one.size or 1) == other.start and bool(one.size) == bool(other.size)
            for one, other in pairwise(self.parts)
        )


@graph_pass(final=True)
def join_parts(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Join the parts of an array that are each put among zeros and added up, as in the gradients of ``x[t]`` or splits.

    The parts must lie next to each other without overlaps, and nothing else may read an intermediate result. A sum
    would pass over the whole array once for each part, and it would make every step of a loop different. Fewer than 8
    parts stay a sum, or fewer than 3 of a large array: joining them would take longer to compile.

    Before (with a limit of 2 parts):
        graph f(%x: f32[3], %y: f32[3]) -> (f32[2,3]) {
          %0 = slice_scatter(%x) {shape=(2, 3), index=(0, (0, 3, 1))} : f32[2,3]
          %1 = slice_scatter(%y) {shape=(2, 3), index=(1, (0, 3, 1))} : f32[2,3]
          %2 = add(%1, %0) : f32[2,3]
          return %2
        }

    After:
        graph f(%x: f32[3], %y: f32[3]) -> (f32[2,3]) {
          %0 = stack(%x, %y) {axis=0} : f32[2,3]
          %1 = plus_zero(%0) : f32[2,3]
          return %1
        }
    """
    sums = _sums(graph, limits)
    if not sums:
        return graph
    gone = {node for one in sums.values() for node in one.inner}
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node in gone:
            continue
        if node in sums:
            context.notes[f"{len(sums[node].parts)} parts"] += 1
            nodes += _joined(node, sums[node], moved)
            moved[node, 0] = (nodes[-1], 0)
            continue
        nodes.append(followed(node, moved))
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs])


def _sums(graph: Graph, limits: Limits) -> dict[Node, _Sum]:
    """Return the sums of parts that can be joined, by their last node."""
    reads = reads_of(graph)
    sums: dict[Node, _Sum] = {}
    for node in graph.nodes:
        if node.op.has("placement"):
            part = _part(node)
            if part is not None and kind_of(node.spec().dtype) != "complex":
                sums[node] = _Sum(part[0], [part[1]], [])
        elif node.op.has("shift") and node.op.has("commutative"):  # a sum
            one, other = [edge[0] for edge in edges_of(node)]
            a, b = sums.get(one), sums.get(other)
            if a is None or b is None or a.axis != b.axis or one is other or not _alike(one, other):
                continue
            if reads[one, 0] == 1 == reads[other, 0]:
                a, b = (a, b) if len(a.parts) >= len(b.parts) else (b, a)
                a.parts.extend(b.parts)
                a.inner.extend([*b.inner, one, other])
                del sums[one], sums[other]
                sums[node] = a
    return {node: one for node, one in sums.items() if one.is_gapless(_fewest(graph, node, limits))}


def _fewest(graph: Graph, node: Node, limits: Limits) -> int:
    return min(limits.parts, limits.few) if is_large(graph, node, limits.large) else limits.parts


def _part(node: Node) -> tuple[int, _Part] | None:
    """Return the one axis that a node fills only in part, and the part it fills."""
    index, shape = node.attrs["index"], node.attrs["shape"]
    if None in index:
        return None
    partial = [axis for axis, entry in enumerate(index) if not _fills(entry, shape[axis])]
    span = span_of(index[partial[0]], shape[partial[0]]) if len(partial) == 1 else None
    return None if span is None else (partial[0], _Part(*span, edges_of(node)[0]))


def _fills(entry: Any, size: Any) -> bool:
    if type(entry) is not tuple:
        return False
    start, taken, step = entry
    return type(start) is int and start == 0 and step == 1 and same_size(taken, size)


def _alike(one: Node, other: Node) -> bool:
    return all(same_size(a, b) for a, b in zip(one.spec().shape, other.spec().shape, strict=True))


def _joined(node: Node, one: _Sum, moved: dict[Edge, Edge]) -> list[Node]:
    """Return the nodes that replace a sum; the last one computes its value."""
    added = Added(node)
    first, last = one.parts[0], one.parts[-1]
    values = tuple([moved.get(part.values, part.values) for part in one.parts])
    value = added.put(concat.op if first.size else stack.op, *values, axis=one.axis)
    if kind_of(node.spec().dtype) == "float":
        value = added.put(plus_zero.op, value)  # adding zeros makes 0.0 of -0.0
    shape = node.spec().shape
    size = last.start + (last.size or 1) - first.start
    if first.start or not same_size(size, shape[one.axis]):
        index = [(0, whole, 1) for whole in shape]
        index[one.axis] = (first.start, size, 1)
        added.put(slice_scatter.op, value, shape=shape, index=tuple(index))
    return added.nodes

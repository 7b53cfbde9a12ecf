"""Merge a slice of a slice into one slice."""

from __future__ import annotations

from typing import Any

from hybridflow.core.node import Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ops.index_keys import StaticIndex
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, rewrite


@graph_pass()
def compose_index(graph: Graph, context: PassContext) -> Graph:
    """Take a slice of a slice from the array itself.

    Before:
        graph f(%x: f32[4,6]) -> (f32[2]) {
          %0 = getitem(%x) {index=(1, (0, 6, 1))} : f32[6]
          %1 = getitem(%0) {index=((4, 2, -2),)} : f32[2]
          return %1
        }

    After:
        graph f(%x: f32[4,6]) -> (f32[2]) {
          %0 = getitem(%x) {index=(1, (0, 6, 1))} : f32[6]
          %1 = getitem(%x) {index=(1, (4, 2, -2))} : f32[2]
          return %1
        }
    """

    def visit(node: Node) -> Node | None:
        if not node.op.has("slice"):
            return None
        ((inner, _),) = edges_of(node)
        index = _composed(inner.attrs["index"], node.attrs["index"]) if inner.op.has("slice") else None
        if index is None:
            return None
        context.notes[node.op.name] += 1
        return changed(node, edges_of(inner), attrs={"index": index})

    return rewrite(graph, visit)


def _composed(inner: StaticIndex, outer: StaticIndex) -> StaticIndex | None:
    """Return one index equal to two in a row; None if one adds axes or has entries that are not integers."""
    if None in inner or None in outer:
        return None
    entries = iter(outer)
    index: list[Any] = []
    for entry in inner:
        if type(entry) is not tuple:
            index.append(entry)
            continue
        start, _, step = entry
        then = next(entries)
        first, size, by = then if type(then) is tuple else (then, 1, 1)
        if any(type(number) is not int for number in (start, step, first, by)):
            return None
        position = start + first * step
        index.append((position, size, step * by) if type(then) is tuple else position)
    return tuple(index)

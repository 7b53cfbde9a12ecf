"""Slices of arrays that the steps of a loop read one after the other."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from hybridflow.core.attrs import attr_key
from hybridflow.core.dims import same_size
from hybridflow.core.node import Edge, Node
from hybridflow.core.sources import INPUT
from hybridflow.ir.graph import Graph, edges_of


class Window(NamedTuple):
    """A slice of an array along one axis.

    Attributes:
        array: the array.
        axis: the axis.
        size: the number of elements along it; 0 for a single element whose axis is dropped.
        others: a key of the index along the other axes.
        start: the first element along the axis.
    """

    array: Edge
    axis: int
    size: int
    others: Any
    start: int


def windows_of(node: Node) -> list[Window]:
    """Return one window for each axis of which the node takes only a part."""
    if not node.op.has("slice") or None in node.attrs["index"]:
        return []
    ((array, output),) = edges_of(node)
    index = node.attrs["index"]
    key = attr_key(index)
    windows: list[Window] = []
    for axis, (entry, size) in enumerate(zip(index, array.spec(output).shape, strict=True)):
        span = span_of(entry, size)
        if span is not None:
            windows.append(Window((array, output), axis, span[1], (*key[:axis], *key[axis + 1 :]), span[0]))
    return windows


def span_of(entry: Any, size: Any) -> tuple[int, int] | None:
    """Return the start and size of an index entry; the size is 0 for a single element.

    Returns None if the entry takes all elements or none, or if it leaves gaps.
    """
    if type(entry) is int:
        return entry, 0
    if type(entry) is not tuple:
        return None
    start, taken, step = entry
    if type(start) is not int or type(taken) is not int or not taken or step != 1:
        return None
    return None if start == 0 and same_size(taken, size) else (start, taken)


def windows_first(graph: Graph, often: int) -> list[Node]:
    """Return a graph's nodes with slices moved right after their arrays, so that steps that read one each look alike.

    Args:
        graph: the graph.
        often: slices are moved if an array has at least this many alike.
    """
    alike: defaultdict[Any, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        for window in windows_of(node):
            alike[window[:4]].append(node)
    moved = {node for nodes in alike.values() if len(nodes) >= often for node in nodes}
    if not moved:
        return list(graph.nodes)
    behind: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node in moved:
            behind[edges_of(node)[0][0]].append(node)
    ordered: list[Node] = []
    for node in (*graph.inputs, *graph.nodes):
        stack = [] if node in moved else [node]
        while stack:
            ordered.append(stack.pop())
            stack += reversed(behind[ordered[-1]])
    return [node for node in ordered if node.op is not INPUT]

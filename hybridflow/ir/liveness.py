"""Liveness: which values of a graph are alive at each node, and how many bytes they take, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hybridflow.core.dims import Dim
from hybridflow.core.node import Edge, Node
from hybridflow.ir.costs import Sizes, bodies, concrete, moves_nothing
from hybridflow.ir.graph import Graph

Keeps = Callable[[Edge], bool]
"""A function that says whether a value is stored; other values are computed again wherever they are read."""


@dataclass(frozen=True)
class Live:
    """The bytes of computed values that are alive while each node of a graph runs.

    Inputs and constants do not count, since they exist before and after. Outputs count from their computation to the
    end. A view has no bytes of its own, but keeps the value that it views alive.

    Attributes:
        nodes: the graph's nodes, in order.
        bytes: the bytes alive while each node runs, including its inputs, its outputs and the graphs inside it.
        peak: the largest of `bytes`; 0 if there are no nodes.
        at: the node at the peak, None if there are no nodes.
        alive: the values alive at the peak, with their bytes; largest first.
        outputs: the bytes of the outputs that the graph computes.
        temporaries: the peak of the bytes without outputs, which have their own memory.
    """

    nodes: tuple[Node, ...]
    bytes: tuple[int, ...]
    peak: int
    at: Node | None
    alive: tuple[tuple[Edge, int], ...]
    outputs: int
    temporaries: int


def roots(graph: Graph) -> dict[Edge, Edge]:
    """Return, for every view in a graph, the value whose memory it uses."""
    roots: dict[Edge, Edge] = {}
    for node in graph.nodes:
        edge = node.inputs[0] if node.inputs and moves_nothing(node) else None
        if edge is not None:
            roots[node, 0] = roots.get(edge, edge)
    return roots


def liveness(graph: Graph, sizes: Sizes | None = None, keeps: Keeps | None = None) -> Live:
    """Return the values alive while each node of a graph runs.

    Args:
        graph: the graph.
        sizes: the size of each symbol; by default, the sizes at which it was traced.
        keeps: whether a value is stored; by default, all are.
    """
    if sizes is None:
        sizes = graph.dims.hints
    owner = roots(graph)
    free = {node for node in graph.nodes if not node.inputs and node.op.has("source")} | {*graph.inputs}
    last: dict[Edge, int] = {}
    for position, node in enumerate(graph.nodes):
        for edge in node.inputs:
            if edge is not None:
                last[owner.get(edge, edge)] = position
    results = {owner.get(edge, edge) for edge in graph.outputs}
    last.update(dict.fromkeys(results, len(graph.nodes)))
    made: dict[Edge, tuple[int, int]] = {}
    dying: dict[int, int] = {}
    now, outputs, temporaries, trace = 0, 0, 0, list[int]()
    for position, node in enumerate(graph.nodes):
        for index in range(len(node.outputs)):
            edge = (node, index)
            if edge in owner or node in free or (keeps is not None and edge not in results and not keeps(edge)):
                continue
            size = bytes_of(edge, sizes)
            made[edge] = position, size
            now += size
            outputs += size if edge in results else 0
            end = last.get(edge, position)
            dying[end] = dying.get(end, 0) + size
        trace.append(now + _inside(node, sizes))
        temporaries = max(temporaries, trace[-1] - outputs)
        now -= dying.get(position, 0)
    peak = max(trace, default=0)
    at = trace.index(peak) if trace else -1
    alive = [(edge, size) for edge, (start, size) in made.items() if start <= at <= last.get(edge, start)]
    alive.sort(key=lambda one: -one[1])
    where = graph.nodes[at] if trace else None
    return Live(graph.nodes, tuple(trace), peak, where, tuple(alive), outputs, temporaries)


def bytes_of(edge: Edge, sizes: Sizes | None) -> int:
    """Return the size of a value in bytes."""
    size: Any = concrete(edge[0].spec(edge[1]), sizes).nbytes
    assert not isinstance(size, Dim)
    return size


def _inside(node: Node, sizes: Sizes) -> int:
    """Return the largest peak of the graphs that a node runs; they run one after the other."""
    return max((liveness(body.graph, sizes).peak for body in bodies(node, sizes) or ()), default=0)

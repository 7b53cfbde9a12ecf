"""Cutting a large graph at the calls of its repeated parts, so that each distinct part is a program of its own."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.costs import graph_cost
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph, clone_node, input_node
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint

CALLS = 96
"""A graph that calls repeated parts less often stays one program."""
FLOPS = 20_000_000
"""So many floating-point operations a call has on average, or running programs one by one costs too much."""
_ALIKE = 4
"""So often each program runs on average."""

Sizes = Mapping[str, int]


class Piece(NamedTuple):
    """A part of a graph.

    Attributes:
        graph: computes it; pieces that are alike have one and the same.
        reads: the edges of the whole graph that are its inputs.
        makes: those that are its outputs.
    """

    graph: Graph
    reads: tuple[Edge, ...]
    makes: tuple[Edge, ...]


def cut(graph: Graph, sizes: Sizes) -> list[Piece] | None:
    """Return a large graph as the pieces that compute it in order, None if one program is better.

    Each call of a repeated part is a piece, and so is what lies between two of them. The graph is large if it has 96
    calls, each of 20 million floating-point operations on average. Measured with jaxlib 0.10.2 on a CPU, SGD steps, in
    pieces as a part of one program, first call and step, seconds of the processor: a pre-norm transformer of 48 / 96
    layers 0.69 / 0.51 and 0.91 / 1.01; steps of dense layers with residuals of 48 layers, 33 million operations a
    call, 0.97. With 8 million a call a step took 1.2 times as long, with 6 million 1.4 times.

    Args:
        graph: the graph, after its passes, without calls of Python functions.
        sizes: the size of each symbol.
    """
    calls = [node for node in graph.nodes if node.op is OUTLINED]
    if len(calls) < CALLS or _flops(calls, sizes) < FLOPS * len(calls):
        return None
    given = {edge[0] for node in calls for edge in _inputs(node)}
    anew = {node for node in graph.nodes if "source" in node.op.traits} - given
    if any(node in anew or node in graph.inputs for node, _ in graph.outputs):
        return None
    parts = _parts(graph, anew)
    read_by = _readers(graph, parts)
    alike: dict[bytes, Graph] = {}
    found: list[Piece] = []
    for number, part in enumerate(parts):
        if part[0].op is OUTLINED:
            found.append(Piece(_called(part[0]), _inputs(part[0]), _results(part[0])))
            continue
        makes = [edge for node in part for edge in _results(node) if read_by[edge] - {number}]
        piece = _piece(graph, part, makes, anew)
        try:
            key = fingerprint(piece.graph, sizes)
        except NotPlain:
            return None
        found.append(piece._replace(graph=alike.setdefault(key, piece.graph)))
    return found if len({piece.graph for piece in found}) * _ALIKE <= len(found) else None


def _flops(calls: Sequence[Node], sizes: Sizes) -> int:
    """Return the floating-point operations of calls."""
    times = Counter(_called(node) for node in calls)
    return sum(int(graph_cost(called, sizes).flops) * count for called, count in times.items())


def _called(node: Node) -> Graph:
    return cast(Graph, node.attrs["graph"])


def _inputs(node: Node) -> tuple[Edge, ...]:
    return cast("tuple[Edge, ...]", node.inputs)


def _results(node: Node) -> tuple[Edge, ...]:
    return tuple([(node, index) for index in range(len(node.outputs))])


def _parts(graph: Graph, anew: set[Node]) -> list[list[Node]]:
    """Return the calls and what lies between them, without the nodes that each part makes anew."""
    found: list[list[Node]] = [[]]
    for node in graph.nodes:
        if node.op is OUTLINED:
            found += [[node], []]
        elif node not in anew:
            found[-1].append(node)
    return [part for part in found if part]


def _readers(graph: Graph, parts: Sequence[Sequence[Node]]) -> defaultdict[Edge, set[int]]:
    """Return which parts read each value; what comes behind the last reads the graph's outputs."""
    found: defaultdict[Edge, set[int]] = defaultdict(set)
    for edge in graph.outputs:
        found[edge].add(len(parts))
    for number, part in enumerate(parts):
        for node in part:
            for edge in _inputs(node):
                found[edge].add(number)
    return found


def _piece(whole: Graph, part: Sequence[Node], makes: Sequence[Edge], anew: set[Node]) -> Piece:
    """Return nodes as a graph of their own."""
    reads: dict[Edge, Node] = {}
    inside: dict[Edge, Edge] = {}
    nodes: list[Node] = []

    def add(node: Node) -> None:
        copy = clone_node(node, tuple([value(edge) for edge in _inputs(node)]))
        nodes.append(copy)
        inside.update(zip(_results(node), _results(copy), strict=True))

    def value(edge: Edge) -> Edge:
        node, index = edge
        if edge not in inside and node in anew:
            add(node)
        if edge not in inside:
            reads[edge] = input_node(node.spec(index), f"x{len(reads)}", node.scope, node.where)
            inside[edge] = (reads[edge], 0)
        return inside[edge]

    for node in part:
        add(node)
    outputs = tuple([inside[edge] for edge in makes])
    graph = Graph(whole.name, tuple(reads.values()), tuple(nodes), outputs, whole.dims)
    return Piece(graph, tuple(reads), tuple(makes))

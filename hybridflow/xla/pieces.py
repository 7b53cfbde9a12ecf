"""Cutting a large graph at the calls of its repeated parts, so that XLA compiles each distinct part once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from math import ceil
from typing import NamedTuple, cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.costs import Sizes, graph_cost, seconds_on_cpu
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph, clone_node, edges_of, input_node
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint

SECONDS = 4e-3
"""About how many seconds the calls in one piece take together; much shorter pieces do not pay for their overhead."""
GAIN = 4
"""A graph is cut if this divides the number of nodes that XLA compiles by this factor or more."""
LONGEST = 10_000
"""The most nodes of one program: XLA's recursion ends the process at some length of a chain."""
LENGTH = 1_000
"""The nodes of each piece of a graph that is longer; the time to compile a program grows faster than its length."""


class Piece(NamedTuple):
    """A part of a graph.

    Attributes:
        graph: computes the piece; equal pieces share one graph object.
        reads: the edges of the whole graph that are its inputs.
        makes: the edges of the whole graph that are its outputs.
    """

    graph: Graph
    reads: tuple[Edge, ...]
    makes: tuple[Edge, ...]


def cut(graph: Graph, sizes: Sizes) -> list[Piece] | None:
    """Return a large graph as the pieces that compute it in order, None if one program is better.

    Consecutive calls of one repeated part are grouped into pieces of about `SECONDS`; a call that takes as long is a
    piece alone. The nodes between such rows of calls are a piece, too. The graph is cut if its distinct pieces have
    few of its nodes (see `GAIN`), counting a called graph once per call. XLA compiles, and later processes load, less.
    Pieces of one short call each would make the step slower than one program.

    A graph that `is_too_long` is cut in any case, into pieces of `LENGTH` nodes.

    Args:
        graph: the graph, after its passes, without calls of Python functions.
        sizes: the size of each symbol.
    """
    calls = [node for node in graph.nodes if node.op is OUTLINED]
    too_long = is_too_long(graph)
    if not calls and not too_long:
        return None
    read_by_calls = {edge[0] for node in calls for edge in edges_of(node)}
    recomputed = {node for node in graph.nodes if "source" in node.op.traits} - read_by_calls
    if any(node in recomputed or node in graph.inputs for node, _ in graph.outputs):
        return None
    if too_long:
        nodes = [node for node in graph.nodes if node not in recomputed]
        parts = [nodes[start : start + LENGTH] for start in range(0, len(nodes), LENGTH)]
        return _pieces(graph, parts, recomputed, sizes)
    parts = _parts(graph, recomputed, {called: _calls_per_piece(called, sizes) for called in set(map(_called, calls))})
    pieces = _pieces(graph, parts, recomputed, sizes)
    compiled = sum([_nodes(piece) for piece in {piece.graph for piece in pieces}])
    return pieces if compiled * GAIN <= _nodes(graph) else None


def is_too_long(graph: Graph) -> bool:
    """Whether XLA may not survive a graph as one program."""
    return len(graph.nodes) > LONGEST


def _nodes(graph: Graph) -> int:
    """Return the number of nodes of a graph, counting a called graph once per call."""
    return sum([1 for _ in graph.walk()])


def _calls_per_piece(called: Graph, sizes: Sizes) -> int:
    """Return the number of calls that make up a piece."""
    return max(1, round(SECONDS / max(seconds_on_cpu(graph_cost(called, sizes)), 1e-9)))


def _called(node: Node) -> Graph:
    return cast(Graph, node.attrs["graph"])


def _results(node: Node) -> tuple[Edge, ...]:
    return tuple([(node, index) for index in range(len(node.outputs))])


def _parts(graph: Graph, recomputed: set[Node], calls_per_piece: Mapping[Graph, int]) -> list[list[Node]]:
    """Return the groups of calls and the groups of nodes between them, without the nodes that each part recomputes."""
    parts: list[list[Node]] = []
    nodes = [node for node in graph.nodes if node not in recomputed]
    for called, neighbours in groupby(nodes, lambda node: _called(node) if node.op is OUTLINED else None):
        row = list(neighbours)
        most = len(row) if called is None else calls_per_piece[called]
        step = ceil(len(row) / ceil(len(row) / most))  # equal pieces as far as possible, for few distinct programs
        parts += [row[start : start + step] for start in range(0, len(row), step)]
    return parts


def _pieces(graph: Graph, parts: Sequence[Sequence[Node]], recomputed: set[Node], sizes: Sizes) -> list[Piece]:
    """Return parts as pieces; equal parts share one graph."""
    read_by = _readers(graph, parts)
    shared: dict[bytes, Graph] = {}
    pieces: list[Piece] = []
    for number, part in enumerate(parts):
        first = part[0]
        if first.op is OUTLINED and len(part) == 1:
            pieces.append(Piece(_called(first), edges_of(first), _results(first)))
            continue
        makes = [edge for node in part for edge in _results(node) if read_by[edge] - {number}]
        piece = _piece(graph, part, makes, recomputed)
        with suppress(NotPlain):  # such a piece has no fingerprint: it shares its graph with no other
            piece = piece._replace(graph=shared.setdefault(fingerprint(piece.graph, sizes), piece.graph))
        pieces.append(piece)
    return pieces


def _readers(graph: Graph, parts: Sequence[Sequence[Node]]) -> defaultdict[Edge, set[int]]:
    """Return the numbers of the parts that read each value; reading a graph's output counts as one more part."""
    readers: defaultdict[Edge, set[int]] = defaultdict(set)
    for edge in graph.outputs:
        readers[edge].add(len(parts))
    for number, part in enumerate(parts):
        for node in part:
            for edge in edges_of(node):
                readers[edge].add(number)
    return readers


def _piece(whole: Graph, part: Sequence[Node], makes: Sequence[Edge], recomputed: set[Node]) -> Piece:
    """Return nodes as a graph of their own."""
    reads: dict[Edge, Node] = {}
    copies: dict[Edge, Edge] = {}
    nodes: list[Node] = []

    def add(node: Node) -> None:
        copy = clone_node(node, tuple([value(edge) for edge in edges_of(node)]))
        nodes.append(copy)
        copies.update(zip(_results(node), _results(copy), strict=True))

    def value(edge: Edge) -> Edge:
        node, index = edge
        if edge not in copies and node in recomputed:
            add(node)
        if edge not in copies:
            reads[edge] = input_node(node.spec(index), f"x{len(reads)}", node.scope, node.where)
            copies[edge] = (reads[edge], 0)
        return copies[edge]

    for node in part:
        add(node)
    outputs = tuple([copies[edge] for edge in makes])
    graph = Graph(whole.name, tuple(reads.values()), tuple(nodes), outputs, whole.dims)
    return Piece(graph, tuple(reads), tuple(makes))

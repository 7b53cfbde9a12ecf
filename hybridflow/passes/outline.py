"""Turn the repeated parts of large graphs into one graph that is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.attrs import attrs_key
from hybridflow.core.node import Edge, Node, make_node, short_where
from hybridflow.core.sources import INPUT
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph, clone_node, edges_of, input_node
from hybridflow.passes.lib.call_borders import read_again
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, followed, placed, rebuilt
from hybridflow.passes.lib.stored import is_kept
from hybridflow.passes.lib.windows import windows_first

_CANDIDATES = 4
"""The most distances between similar nodes to try, for each of the two lengths of rows."""
_UNLIKE = frozenset({"effect", "nested", "foreign", "tensor_rule", "convolution"})
"""Traits of nodes that equal no other node, so that no repeat has them. Convolutions run slower in a call on a CPU."""


class Limits(NamedTuple):
    """The limits of what is outlined.

    Attributes:
        nodes: graphs with fewer nodes count as small.
        period: the fewest nodes of a repeat.
        heavy_period: the fewest nodes of a repeat if one of them is a separate kernel of XLA anyway, such as a matrix
            product.
        repeats: the fewest repeats.
        often: the fewest repeats in a small graph.
    """

    nodes: int = 400
    period: int = 12
    heavy_period: int = 4
    repeats: int = 4
    often: int = 16


LIMITS = Limits()


class Place(NamedTuple):
    """The position of a repeat: the nodes from ``start`` to ``start + period``, not counting sources."""

    start: int
    period: int


@graph_pass(final=True)
def outline(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Turn the repeated parts of a graph into one graph that is called, so that XLA compiles it once.

    Two parts are alike if their nodes have the same operations, attributes, shapes and wiring. Values that a part reads
    from outside become arguments of its call; so do constants that differ between the parts. A value that is cheaply
    computed from a stored one does not cross the call: its reader computes it again (`call_borders.read_again`).

    There must be at least 4 repeats, and 16 in graphs of fewer than 400 nodes. A repeat has at least 12 nodes, or 4
    nodes with a matrix product or the like among them. None has a convolution.

    XLA:CPU compares every two kernels of a function to order them, both when it compiles and when it loads. It fuses
    nothing across a call. So outlining makes the first calls of deep networks faster and seldom slows down their steps,
    while small graphs have little to gain. A loop over stacked weights instead of calls would slow down the steps.

    Before (with the limits at 0 nodes, 2 nodes and 2 repeats):
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2]) {
          %0 = constant() {value=f32[] 0.5} : f32[]
          %1 = add(%x, %y) : f32[2]
          %2 = multiply(%1, %0) : f32[2]
          %3 = add(%2, %x) : f32[2]
          %4 = multiply(%3, %0) : f32[2]
          %5 = tanh(%4) : f32[2]
          return %5
        }

    After:
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2]) {
          %0 = outlined(%x, %y) {
            graph=graph repeat(%x0: f32[2], %x1: f32[2]) -> (f32[2]) {
              %0 = add(%x0, %x1) : f32[2]
              %1 = constant() {value=f32[] 0.5} : f32[]
              %2 = multiply(%0, %1) : f32[2]
              return %2
            }
          } : f32[2]
          %1 = outlined(%0, %x) {
            graph=graph repeat(%x0: f32[2], %x1: f32[2]) -> (f32[2]) {
              %0 = add(%x0, %x1) : f32[2]
              %1 = constant() {value=f32[] 0.5} : f32[]
              %2 = multiply(%0, %1) : f32[2]
              return %2
            }
          } : f32[2]
          %2 = tanh(%1) : f32[2]
          return %2
        }
    """
    if len(graph.nodes) < min(limits.nodes, limits.often * limits.heavy_period):
        return graph
    sources = [node for node in graph.nodes if _is_source(node)]
    nodes = [node for node in windows_first(graph, limits.repeats) if not _is_source(node)]
    groups = list(_Search(graph, nodes, limits).groups())
    if not groups:
        return graph
    calls: dict[int, _Repeats] = {}
    home = {node: run.start for group in groups for run in group for node in _part(nodes, run)}
    again = read_again(graph, home)
    for group in groups:
        repeats = _Repeats(graph, nodes, group, again)
        calls.update({run.start: repeats for run in group})
        context.notes[f"{len(group)} repeats of {group[0].period} nodes{_where(nodes[group[0].start])}, outlined"] += 1
    return _with_calls(graph, sources, nodes, calls, again)


def _part(nodes: Sequence[Node], run: Place) -> Sequence[Node]:
    return nodes[run.start : run.start + run.period]


def _is_source(node: Node) -> bool:
    """Whether a node computes its value from attributes alone, so that its position does not matter."""
    return not node.inputs and node.op is not INPUT and _UNLIKE.isdisjoint(node.op.traits)


def _where(node: Node) -> str:
    place = short_where(node.where)
    return f" from {place}" if place else ""


# -- finding repeats ----------------------------------------------------------------------------------------------


def _tokens(nodes: Sequence[Node]) -> np.ndarray[Any, Any]:
    """Return one number per node; it is equal for nodes with equal operation, attributes and input and output specs."""
    numbers: dict[Any, int] = {}
    tokens: list[int] = []
    for position, node in enumerate(nodes):
        key: Any = _key(node) if _UNLIKE.isdisjoint(node.op.traits) else position
        tokens.append(numbers.setdefault(key, len(numbers)))
    return np.asarray(tokens)


def _key(node: Node) -> Any:
    inputs = tuple([_spec_key(edge) for edge in edges_of(node)])
    outputs = tuple([_spec_key((node, index)) for index in range(len(node.outputs))])
    return node.op, attrs_key(node.attrs), inputs, outputs


def _spec_key(edge: Edge) -> Any:
    spec = edge[0].spec(edge[1])
    return spec.dtype.num, tuple([size if type(size) is int else str(size) for size in spec.shape])


def _distances(tokens: np.ndarray[Any, Any], limits: Limits) -> list[int]:
    """Return the distances at which nodes most often look alike; distances with many repeats in a row come first."""
    short, long = sorted((limits.heavy_period, limits.period))
    common = [distance for length in (short, long) for distance in _common(tokens, length)]
    likely = dict.fromkeys([distance for distance in common if distance >= short])

    def is_rare(distance: int) -> bool:
        return all(end - start < (limits.often - 1) * distance for start, end in _rows(tokens, distance))

    return sorted(likely, key=is_rare)


def _common(tokens: np.ndarray[Any, Any], length: int) -> list[int]:
    """Return the most common distances between equal runs of `length` nodes."""
    last: dict[bytes, int] = {}
    distances: Counter[int] = Counter()
    for position in range(len(tokens) - length + 1):
        key = tokens[position : position + length].tobytes()
        before = last.get(key)
        if before is not None:
            distances[position - before] += 1
        last[key] = position
    return [distance for distance, _ in distances.most_common(_CANDIDATES)]


def _rows(
    tokens: np.ndarray[Any, Any], distance: int, taken: np.ndarray[Any, Any] | None = None
) -> list[tuple[int, int]]:
    """Return the spans of nodes that equal those `distance` further on, where neither is taken."""
    same = np.zeros(len(tokens) + 1, bool)
    same[: len(tokens) - distance] = tokens[distance:] == tokens[:-distance]
    if taken is not None:
        same[: len(tokens) - distance] &= ~taken[distance:] & ~taken[:-distance]
    edges = np.flatnonzero(np.diff(same.astype(np.int8), prepend=0))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


class _Search:
    """A search for repeats that are alike, including their wiring; no two overlap.

    Attributes:
        graph: the graph.
        nodes: its nodes, except sources such as inputs and constants.
        limits: the limits of what counts as a repeat.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], limits: Limits) -> None:
        self.graph, self.nodes, self.limits = graph, nodes, limits
        self._position = {node: index for index, node in enumerate(nodes)}
        self._least = limits.repeats if len(graph.nodes) >= limits.nodes else limits.often

    def groups(self) -> Iterator[list[Place]]:
        """Yield repeats; those of a group are alike."""
        tokens = _tokens(self.nodes)
        taken = np.zeros(len(tokens), bool)
        for period in _distances(tokens, self.limits):
            for start, end in _rows(tokens, period, taken):
                run = slice(start, end + period)
                for group in self._alike(run, self._periods(tokens[run], period)):
                    for one in group:
                        taken[one.start : one.start + one.period] = True
                    yield group

    def _periods(self, run: np.ndarray[Any, Any], period: int) -> Iterator[int]:
        """Yield the periods of a run, the smallest first; `period` is one of them, and the others divide it."""
        for part in range(self.limits.heavy_period, period // 2 + 1):
            if period % part == 0 and np.array_equal(run[part:], run[:-part]):
                yield part
        yield period

    def _alike(self, run: slice, periods: Iterator[int]) -> list[list[Place]]:
        """Return a run's repeats of the first period that has any, grouped by their wiring.

        Short periods are best: a call holds all of its outputs until the last one is computed.
        """
        for period in periods:
            alike: dict[Any, list[Place]] = {}
            for start in range(run.start, run.stop - period + 1, period):
                alike.setdefault(_wiring(self.nodes, self._position, start, period), []).append(Place(start, period))
            groups = [group for group in alike.values() if len(group) >= self._least]
            groups = [group for group in groups if period >= self.limits.period or self._is_heavy(group[0])]
            if groups:
                return groups
        return []

    def _is_heavy(self, run: Place) -> bool:
        """Whether XLA makes one of the nodes a separate kernel, so that a call prevents little fusion."""
        return any(is_kept(node, self.graph, 1) for node in _part(self.nodes, run))


def _wiring(nodes: Sequence[Node], position: dict[Node, int], start: int, period: int) -> Any:
    """Return for each input of a place's nodes the node of the place that makes it, or None if it is from outside."""
    return tuple(
        [
            tuple([_inner(edge, position, start) for edge in edges_of(node)])
            for node in nodes[start : start + period]
        ]
    )


def _inner(edge: Edge, position: dict[Node, int], start: int) -> tuple[int, int] | None:
    at = position.get(edge[0], -1)
    return (at - start, edge[1]) if at >= start else None


# -- one graph for all repeats ------------------------------------------------------------------------------------


class _Repeats:
    """Places that are alike, their common graph, and the arguments of each call.

    Attributes:
        graph: the common graph.
        outputs: the results that are its outputs, each as the node's position in the place and the output's number.
        arguments: the arguments of each call, by the start of its place.
    """

    def __init__(self, graph: Graph, nodes: Sequence[Node], group: Sequence[Place], again: Mapping[Edge, Edge]) -> None:
        self.nodes = nodes
        self.group = group
        self.again = again
        self.period = group[0].period
        self.arguments: dict[int, list[Edge]] = {run.start: [] for run in group}
        self._inputs: list[Node] = []
        self._made: list[Node] = []
        self._slots: dict[tuple[Edge, ...], Edge] = {}
        parts = [_part(nodes, run) for run in group]
        self.outputs = _read_outside(graph, parts, again)
        inside: dict[Edge, Edge] = {}
        for index, node in enumerate(parts[0]):
            edges: list[Edge] = []
            for number, edge in enumerate(edges_of(node)):
                own = inside.get(edge)
                edges.append(own or self._slot(tuple([edges_of(part[index])[number] for part in parts]), node))
            copy = placed(clone_node(node, tuple(edges)), node)
            self._made.append(copy)
            inside.update({(node, output): (copy, output) for output in range(len(node.outputs))})
        results = tuple([inside[parts[0][index], output] for index, output in self.outputs])
        self.graph = Graph("repeat", tuple(self._inputs), tuple(self._made), results, graph.dims)

    def _slot(self, read: tuple[Edge, ...], reader: Node) -> Edge:
        """Return the common graph's node or input for a value that the repeats read from outside."""
        slot = self._slots.get(read)
        if slot is not None:
            return slot
        edge = read[0]
        if _is_source(edge[0]) and len(set(read)) == 1:
            slot = self._copy(edge, ())
        elif all(one in self.again for one in read) and len({_key(one[0]) for one in read}) == 1:
            inputs = zip(*[edges_of(one[0]) for one in read], strict=True)
            slot = self._copy(edge, tuple([self._slot(one, reader) for one in inputs]))
        else:
            self._inputs.append(
                input_node(edge[0].spec(edge[1]), f"x{len(self._inputs)}", reader.scope, reader.where)
            )
            slot = (self._inputs[-1], 0)
            for run, one in zip(self.group, read, strict=True):
                self.arguments[run.start].append(one)
        self._slots[read] = slot
        return slot

    def _copy(self, edge: Edge, inputs: tuple[Edge, ...]) -> Edge:
        self._made.append(placed(clone_node(edge[0], inputs), edge[0]))
        return self._made[-1], edge[1]

    def call(self, start: int, moved: dict[Edge, Edge]) -> Node:
        """Return the call that replaces the nodes of a place, and add its results to `moved`."""
        last = self.nodes[start + self.period - 1]
        arguments = tuple([moved.get(edge, edge) for edge in self.arguments[start]])
        specs = self.graph.output_specs
        made = make_node(OUTLINED, arguments, {"graph": self.graph}, specs, where=last.where, scope=last.scope)
        for number, (index, output) in enumerate(self.outputs):
            moved[self.nodes[start + index], output] = (made, number)
        return placed(made, last)


def _read_outside(
    graph: Graph, parts: Sequence[Sequence[Node]], again: Mapping[Edge, Edge]
) -> list[tuple[int, int]]:
    """Return the results of any part that are read outside it, each as the node's position in the part and output."""
    home = {node: (number, index) for number, part in enumerate(parts) for index, node in enumerate(part)}
    results: set[tuple[int, int]] = {(home[edge[0]][1], edge[1]) for edge in graph.outputs if edge[0] in home}
    for node in graph.nodes:
        own = home.get(node, (-1, 0))[0]
        for edge in edges_of(node):
            made = home.get(edge[0])
            if made is not None and made[0] != own:
                crossing = again.get(edge, edge)
                results.add((home[crossing[0]][1], crossing[1]))
    return sorted(results)


def _with_calls(
    graph: Graph, sources: list[Node], nodes: list[Node], calls: dict[int, _Repeats], again: Mapping[Edge, Edge]
) -> Graph:
    moved: dict[Edge, Edge] = {}
    made: list[Node] = []
    position = 0
    while position < len(nodes):
        repeats = calls.get(position)
        read = edges_of(nodes[position]) if repeats is None else repeats.arguments[position]
        for edge in read:
            if edge in again and edge not in moved:
                made.append(changed(edge[0], tuple([moved.get(one, one) for one in edges_of(edge[0])])))
                moved[edge] = (made[-1], 0)
        if repeats is not None:
            made.append(repeats.call(position, moved))
            position += repeats.period
            continue
        node = nodes[position]
        made.append(followed(node, moved))
        position += 1
    outputs = [moved.get(edge, edge) for edge in graph.outputs]
    read = {edge[0] for node in made for edge in edges_of(node)} | {edge[0] for edge in outputs}
    return rebuilt(graph, [*[node for node in sources if node in read], *made], outputs)

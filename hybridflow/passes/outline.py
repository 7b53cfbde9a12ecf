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
"""How many distances between similar positions are tried at most."""
_UNLIKE = frozenset({"effect", "nested", "foreign", "tensor_rule", "convolution"})
"""Nodes of these kinds are like no other. XLA:CPU runs convolutions much slower in a call."""


class Limits(NamedTuple):
    """What is outlined.

    Attributes:
        nodes: in graphs with fewer nodes, only parts with `often` repeats are outlined.
        period: the fewest nodes of a repeat.
        heavy_period: the fewest if XLA makes one of them a separate kernel anyway, such as a matrix product.
        repeats: the fewest repeats.
        often: the fewest repeats in a graph of few nodes.
    """

    nodes: int = 400
    period: int = 12
    heavy_period: int = 4
    repeats: int = 4
    often: int = 16


LIMITS = Limits()


class Place(NamedTuple):
    """The position of a repeat: nodes ``start`` to ``start + period`` of those that have inputs."""

    start: int
    period: int


@graph_pass(final=True)
def outline(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Turn the repeated parts of a graph into one graph that is called, so that XLA compiles it once.

    Parts are alike if their nodes have the same operations, attributes, shapes and wiring; what they read from
    outside, constants that differ among it, are arguments; what is cheaply computed of a stored value is computed again
    by the reader (`call_borders.read_again`). That is found from the graph alone. Repeats are 4 at least
    and have 12 nodes, or 4 nodes of which one is a product of matrices or the like. None has a convolution. Graphs of
    fewer than 400 nodes must have 16 repeats.

    XLA:CPU orders the kernels of one function by comparing each with each, when it compiles and when it loads, and
    fuses nothing across a call. Measured with jaxlib 0.10.2 on a CPU, SGD steps, outlined as a part of left alone:
    first call, step, temporaries. A pre-norm transformer of 24 / 48 layers: 1.03 / 0.77, 0.98 / 0.96, 0.75 / 0.75;
    dense layers with a residual, then normalised, 48 / 96 layers: 0.92 / 0.88, 0.84 / 0.94, 0.73 / 0.72; of
    12 / 24 layers: 0.72 / 0.68, 0.93 / 0.90, 0.73 / 0.72; gated residuals of 12 / 24 / 48 / 96 layers: 0.62 / 0.59 /
    0.80 / 0.78, 1.02 / 0.95 / 1.00 / 0.95, 1.22 / 1.27 / 1.29 / 1.31; an LSTM of 100 / 200 steps: 0.94 / 0.90, 0.85 /
    0.61, 1.00 / 1.00; dense layers, 24 of them and 343 nodes: 1.11, 0.93, 0.57. Smaller graphs have less to gain: a
    step of 12 dense layers would take 0.97 for a first call of 1.09, and one of Adam with 6 of them 1.3 times the
    temporaries. To roll the repeats into a loop over stacked weights is never chosen: a step of 24 layers took 1.7
    times as long.

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
    """Whether a node makes its value from attributes alone, so that it may stand anywhere."""
    return not node.inputs and node.op is not INPUT and _UNLIKE.isdisjoint(node.op.traits)


def _where(node: Node) -> str:
    place = short_where(node.where)
    return f" from {place}" if place else ""


# -- finding repeats ----------------------------------------------------------------------------------------------


def _tokens(nodes: Sequence[Node]) -> np.ndarray[Any, Any]:
    """Return one number per node; two are equal where operation, attributes, and shapes of results and inputs are."""
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
    """Return the distances at which nodes most often look alike; those with long rows of them come first."""
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
        nodes: its nodes that have inputs, or an effect.
        limits: what counts as a repeat.
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
        """Yield after how many tokens a run repeats itself, the smallest number first; one of them is given."""
        for part in range(self.limits.heavy_period, period // 2 + 1):
            if period % part == 0 and np.array_equal(run[part:], run[:-part]):
                yield part
        yield period

    def _alike(self, run: slice, periods: Iterator[int]) -> list[list[Place]]:
        """Return a run's repeats of the first period that has any; those that are wired alike are together.

        Short ones are best: all that a call makes is there until its last result is.
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
        """Whether XLA makes a node a separate kernel, so that a call prevents little fusion."""
        return any(is_kept(node, self.graph, 1) for node in _part(self.nodes, run))


def _wiring(nodes: Sequence[Node], position: dict[Node, int], start: int, period: int) -> Any:
    """Return which inputs of a place's nodes are made in it, and by which of its nodes."""
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
        outputs: which of its nodes' results are its outputs: position in the place and output.
        arguments: per start of a place, what the call reads.
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
        """Return the call that stands for a place; its results take the places of the nodes'."""
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
    """Return which results any of the places makes for others: position in the place and output, in order."""
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

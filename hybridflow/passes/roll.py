"""Turn a row of calls of a repeated part into a loop."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.node import Edge, Node, Position, make_node, short_where
from hybridflow.core.sources import CONSTANT
from hybridflow.core.spec import make_spec
from hybridflow.ir.costs import graph_cost, seconds_on_cpu
from hybridflow.ir.effects import has_effect
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph, constant_node, edges_of
from hybridflow.ir.printer import print_graph
from hybridflow.ir.rolled import ROLLED, Take, carried
from hybridflow.ops.indexing import getitem
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import followed, placed, rebuilt
from hybridflow.passes.lib.windows import Window, windows_of

_LARGEST_CONSTANT = 4096
"""The most bytes of a constant that may differ from call to call; larger ones are taken for weights of layers."""
_STRIDES = 4
"""The most loops whose calls may alternate."""
_CONSTANTS = "constants"


class Limits(NamedTuple):
    """The limits of what becomes a loop.

    Attributes:
        steps: the fewest calls that become a loop; fewer run faster one by one.
        seconds: the longest time that a step may take.
        apart: the most bytes that may be read from the loop's results piece by piece, as a fraction of the bytes that
            all steps move.
    """

    steps: int = 16
    seconds: float = 1e-3
    apart: float = 0.05


LIMITS = Limits()


class _Moving(NamedTuple):
    """A part of an array that moves along one axis from call to call.

    Attributes:
        window: the part as a `Window` without its start.
        axis: the axis.
        step: the number of elements by which it moves per call.
    """

    window: Any
    axis: int
    step: int


_Link = int | _Moving | str | None
"""How an argument changes from call to call.

None: it is the same. A number: it is this output of the call before. A `_Moving`: it is a part of an array that moves
along. `_CONSTANTS`: each call has a constant of its own.
"""


@graph_pass(final=True)
def roll(graph: Graph, context: PassContext, limits: Limits = LIMITS) -> Graph:
    """Turn 16 or more calls of a repeated part in a row into a loop, if they share their inputs.

    An argument may be the same in every call, an output of the call before, a part of an array that moves on from
    call to call, or a constant. So the steps of a recurrent network, which share their weights, become a loop, and
    those of its gradient another. Layers with weights of their own stay calls, since a loop would have to stack the
    weights.

    XLA's compile time does not grow with the number of a loop's steps. Each output of the steps is stacked in one
    array. Steps of more than 1 ms stay calls. So do steps whose stacked results would mostly be read one by one, since
    that moves them twice.

    Before (with a limit of 2 calls, and none on what is taken apart):
        graph f(%x: f32[2], %xs: f32[2,2]) -> (f32[2], f32[2]) {
          %0 = getitem(%xs) {index=(0, (0, 2, 1))} : f32[2]
          %1 = getitem(%xs) {index=(1, (0, 2, 1))} : f32[2]
          %2 = outlined(%x, %0) {
            graph=graph repeat(%x0: f32[2], %x1: f32[2]) -> (f32[2]) {
              %0 = add(%x0, %x1) : f32[2]
              return %0
            }
          } : f32[2]
          %3 = outlined(%2, %1) {
            graph=graph repeat(%x0: f32[2], %x1: f32[2]) -> (f32[2]) {
              %0 = add(%x0, %x1) : f32[2]
              return %0
            }
          } : f32[2]
          return %2, %3
        }

    After:
        graph f(%x: f32[2], %xs: f32[2,2]) -> (f32[2], f32[2]) {
          %0, %1 = rolled(%x, %xs) {
            graph=graph repeat(%x0: f32[2], %x1: f32[2]) -> (f32[2]) {
              %0 = add(%x0, %x1) : f32[2]
              return %0
            },
            count=2,
            takes=(0, (0, 0, 1, 0)),
            gives=(0,)
          } : f32[2], f32[2,2]
          %2 = getitem(%1) {index=(0, (0, 2, 1))} : f32[2]
          return %2, %0
        }
    """
    left: set[Position] = set()
    while True:
        rolled, loops = _rolled(graph, left, limits)
        apart = {run.calls[0].sequence for loop, run in loops.items() if _is_read_apart(rolled, loop, limits.apart)}
        if not apart:
            break
        left |= apart
    for run in loops.values():
        place = short_where(run.calls[0].where)
        context.notes[f"{len(run.calls)} calls{place and f' from {place}'}, rolled"] += 1
    return rolled


def _rolled(graph: Graph, left: set[Position], limits: Limits) -> tuple[Graph, dict[Node, _Run]]:
    """Return the graph with loops, and the run that each loop replaces.

    Runs stay calls if `left` has the sequence number of their first call.
    """
    loops: dict[Node, _Run] = {}
    while True:
        run = next((run for run in _runs(graph, limits) if run.calls[0].sequence not in left), None)
        if run is None:
            return graph, loops
        graph, loop, moved = _with_loop(graph, run)
        loops = {moved.get((one, 0), (one, 0))[0]: before for one, before in loops.items()} | {loop: run}


def _is_read_apart(graph: Graph, loop: Node, allowed: float) -> bool:
    """Whether much of a loop's stacked results is read piece by piece, so that it is moved twice."""
    hints, states = graph.dims.hints, len(carried(loop.attrs["takes"]))
    rows = {(loop, index) for index in range(states, len(loop.outputs))}
    read = [node.spec() for node in graph.nodes if node.op.has("slice") and edges_of(node)[0] in rows]
    moved = loop.attrs["count"] * graph_cost(loop.attrs["graph"], hints).moved
    return sum([spec.dtype.itemsize * evaluate_size(spec.size, hints) for spec in read]) > allowed * moved


class _Run(NamedTuple):
    """Calls whose arguments change in the same way from each call to the next.

    Attributes:
        calls: the calls in order.
        links: how each argument changes from call to call.
    """

    calls: Sequence[Node]
    links: tuple[_Link, ...]


def _runs(graph: Graph, limits: Limits) -> Iterator[_Run]:
    """Yield the runs that could become loops: first those of consecutive calls, then those of every second call, ...

    Nodes between the calls may read results of earlier calls, but no later call reads theirs: an argument of a run is
    one of four kinds (see `_Link`). So these nodes can move behind the loop. Nodes with an effect must not move, so no
    run extends across one.
    """
    calls: defaultdict[tuple[int, str], list[Node]] = defaultdict(list)
    text = cache(partial(print_graph, elide=None, lines=False))
    effects = 0
    for node in graph.nodes:
        if node.op is OUTLINED:
            calls[effects, text(node.attrs["graph"])].append(node)
        elif has_effect(node):
            effects += 1
    hints = graph.dims.hints
    windows: dict[Node, list[Window]] = {}
    for several in calls.values():
        cost = graph_cost(several[0].attrs["graph"], hints)
        if len(several) < limits.steps or seconds_on_cpu(cost) > limits.seconds:
            continue
        for stride in range(1, _STRIDES + 1):
            for first in range(stride):
                yield from _in_a_row(several[first::stride], windows, limits.steps)


def _in_a_row(calls: Sequence[Node], windows: dict[Node, list[Window]], fewest: int) -> Iterator[_Run]:
    start, before = 0, None
    for position, (one, other) in enumerate(pairwise(calls)):
        links = _links(one, other, windows)
        if links is None or links != before:
            if before is not None and position + 1 - start >= fewest:
                yield _Run(calls[start : position + 1], before)
            start, before = position, links
    if before is not None and len(calls) - start >= fewest:
        yield _Run(calls[start:], before)


def _links(one: Node, other: Node, windows: dict[Node, list[Window]]) -> tuple[_Link, ...] | None:
    """Return how each argument changes from one call to the next; None if one changes in no known way."""
    links: list[_Link] = []
    for a, b in zip(edges_of(one), edges_of(other), strict=True):
        if all(edge[0].op is CONSTANT and edge[0].attrs["value"].array.nbytes <= _LARGEST_CONSTANT for edge in (a, b)):
            links.append(_CONSTANTS)  # also if they are equal: other calls of the run may have other constants
        elif a == b:
            links.append(None)
        elif b[0] is one:
            links.append(b[1])
        else:
            moving = _moving(a[0], b[0], windows)
            if moving is None:
                return None
            links.append(moving)
    return tuple(links)


def _moving(one: Node, other: Node, windows: dict[Node, list[Window]]) -> _Moving | None:
    """Return how one part of an array moves along an axis to become another; None if it does not."""
    for node in (one, other):
        if node not in windows:
            windows[node] = windows_of(node)
    for a in windows[one]:
        for b in windows[other]:
            if a[:-1] == b[:-1]:
                return _Moving(a[:-1], a.axis, b.start - a.start)
    return None


# -- the loop -----------------------------------------------------------------------------------------------------


def _with_loop(graph: Graph, run: _Run) -> tuple[Graph, Node, dict[Edge, Edge]]:
    """Return the graph with a loop in place of the last call, the loop, and a map from replaced edges to new ones."""
    number = {node: position for position, node in enumerate(run.calls)}
    read = [edge for node in graph.nodes if node not in number for edge in edges_of(node)]
    wanted = dict.fromkeys([edge for edge in (*read, *graph.outputs) if edge[0] in number])
    states = [link for link in run.links if type(link) is int]
    final = {edge: states.index(edge[1]) for edge in wanted if edge[0] is run.calls[-1] and edge[1] in states}
    gives = tuple(sorted({edge[1] for edge in wanted if edge not in final}))
    made, loop = _loop(run, gives)
    moved: dict[Edge, Edge] = {}
    rows: list[Node] = []
    for edge in wanted:
        if edge in final:
            moved[edge] = (loop, final[edge])
        else:
            rows.append(_row((loop, len(states) + gives.index(edge[1])), number[edge[0]], edge[0]))
            moved[edge] = (rows[-1], 0)
    nodes: list[Node] = []
    behind: list[Node] = []
    for node in graph.nodes:
        if node in number:
            if node is run.calls[-1]:
                nodes += [*made, loop, *rows, *behind]
                behind = nodes
            continue
        current = followed(node, moved)
        (nodes if current is node else behind).append(current)
    outputs = [moved.get(edge, edge) for edge in graph.outputs]
    kept = {edge[0] for node in nodes for edge in edges_of(node)} | {edge[0] for edge in outputs}
    taken = {edge[0] for node in run.calls for edge in edges_of(node)} - kept
    return rebuilt(graph, [node for node in nodes if node not in taken], outputs), loop, moved


def _loop(run: _Run, gives: tuple[int, ...]) -> tuple[list[Node], Node]:
    """Return the new nodes that the loop reads, and the loop."""
    first = run.calls[0]
    made: list[Node] = []
    inputs: list[Edge] = []
    takes: list[Take] = []
    for position, (edge, link) in enumerate(zip(edges_of(first), run.links, strict=True)):
        if isinstance(link, _Moving):
            array, take = _moved_on(edge[0], link, made)
            inputs.append(array)
            takes.append(take)
        elif link == _CONSTANTS:
            values = [edges_of(node)[position][0].attrs["value"].array for node in run.calls]
            made.append(constant_node(np.stack(values), first.scope, first.where))
            inputs.append((made[-1], 0))
            takes.append((0, 0, 1, 0))
        else:
            inputs.append(edge)
            takes.append(cast("int | None", link))
    attrs = {"graph": first.attrs["graph"], "count": len(run.calls), "takes": tuple(takes), "gives": gives}
    specs = [edge[0].spec(edge[1]) for edge in inputs]
    outputs = ROLLED.infer(*specs, **attrs)
    outputs = outputs if type(outputs) is tuple else (outputs,)
    loop = make_node(ROLLED, tuple(inputs), attrs, outputs, where=first.where, scope=first.scope)
    return made, placed(loop, run.calls[-1])


def _moved_on(first: Node, link: _Moving, made: list[Node]) -> tuple[Edge, Take]:
    """Return the array along which a part moves, and how the loop takes the part from it.

    If the parts are also slices along other axes, a new node takes these slices before the loop.
    """
    (window,) = [one for one in windows_of(first) if one.axis == link.axis]
    index, (array, output) = first.attrs["index"], window.array
    take = (sum([type(entry) is tuple for entry in index[: link.axis]]), window.start, link.step, window.size)
    if len(windows_of(first)) == 1:
        return window.array, take
    shape = array.spec(output).shape
    index = (*index[: link.axis], (0, shape[link.axis], 1), *index[link.axis + 1 :])
    spec = getitem.op.infer(array.spec(output), index=index)
    made.append(make_node(getitem.op, (window.array,), {"index": index}, (spec,), where=first.where, scope=first.scope))
    return (made[-1], 0), take


def _row(rows: Edge, number: int, call: Node) -> Node:
    """Return the node that takes one call's result from the stacked results."""
    shape = rows[0].spec(rows[1]).shape[1:]
    index = (number, *[(0, size, 1) for size in shape])
    spec = make_spec(shape, rows[0].spec(rows[1]).dtype)
    return placed(make_node(getitem.op, (rows,), {"index": index}, (spec,), where=call.where, scope=call.scope), call)

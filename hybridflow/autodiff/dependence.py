"""Find the inputs that a gradient of an output reaches, in a graph or an operation that carries graphs."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Flat, Reach, Stops
from hybridflow.ir.graph import Graph

_NOTHING: Reach = (0, 0)


def dependence(
    inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Edge], start: Sequence[Reach] | None = None
) -> list[Reach]:
    """Return, for each output, the inputs that its gradient reaches and those that only get zeros.

    Args:
        inputs: the graph's inputs; bit ``i`` stands for the ``i``-th.
        nodes: its nodes, in order.
        outputs: its outputs.
        start: the dependences of the inputs themselves, if the bits stand for other values.
    """
    first = [(1 << number, 0) for number in range(len(inputs))] if start is None else start
    reach_of: dict[Node | Edge, Reach] = dict(zip(inputs, first, strict=True))

    def of(edge: Edge) -> Reach:
        node, index = edge
        if not is_differentiable(node.spec(index).dtype):
            return _NOTHING
        return reach_of.get(node) or reach_of.get(edge, _NOTHING)

    for node in nodes:
        kind = type(node.op.vjp)
        if node in reach_of or kind is Stops:
            continue
        each = [_NOTHING if edge is None else of(edge) for edge in node.inputs]
        own = of_node(node)
        if own is not None:
            reach_of |= {(node, index): through(one, each) for index, one in enumerate(own)}
            continue
        reach, behind = joined(each)
        if reach or behind:
            reach_of[node] = (0, reach | behind) if kind is Flat else (reach, behind)
    return [of(edge) for edge in outputs]


def of_node(node: Node) -> list[Reach] | None:
    """Return the dependences of each output of an operation that carries graphs; None for every other operation.

    A hidden output, which only the gradient rule reads, counts as depending on every input.
    """
    depends = node.op.saves.depends
    if depends is None:
        return None
    of_outputs = depends(**node.attrs)
    return [*of_outputs, *[((1 << len(node.inputs)) - 1, 0)] * (len(node.outputs) - len(of_outputs))]


def joined(some: Sequence[Reach]) -> Reach:
    """Return the union of several dependences."""
    reach, behind = 0, 0
    for one in some:
        reach |= one[0]
        behind |= one[1]
    return reach, behind


def through(one: Reach, inputs: Sequence[Reach]) -> Reach:
    """Compose dependences: `one` refers to `inputs` by bit, and each of these has its own dependence."""
    reach, behind = 0, 0
    for number, (far, flat) in enumerate(inputs):
        if one[0] >> number & 1:
            reach |= far
            behind |= flat
        elif one[1] >> number & 1:
            behind |= far | flat
    return reach, behind


def of_graph(graph: Graph) -> list[Reach]:
    """Return the dependence of each output of a graph."""
    of_outputs = _OF_GRAPHS.get(graph)
    if of_outputs is None:
        of_outputs = _OF_GRAPHS[graph] = dependence(graph.inputs, graph.nodes, graph.outputs)
    return of_outputs


_OF_GRAPHS: WeakKeyDictionary[Graph, list[Reach]] = WeakKeyDictionary()


def of_loop(body: Graph, carry: int) -> list[Reach]:
    """Return the dependences of the outputs of a loop that runs a graph repeatedly.

    The first `carry` inputs are carried from step to step. Bits stand for the graph's inputs. The outputs are the
    carried values after any number of steps, then the outputs of each step.
    """
    known = _OF_LOOPS.setdefault(body, {})
    if carry not in known:
        known[carry] = _steps(body, carry)
    return known[carry]


_OF_LOOPS: WeakKeyDictionary[Graph, dict[int, list[Reach]]] = WeakKeyDictionary()


def _steps(body: Graph, carry: int) -> list[Reach]:
    state = [(1 << number, 0) for number in range(len(body.inputs))]
    while True:
        after = dependence(body.inputs, body.nodes, body.outputs, state)
        grown = [joined(pair) for pair in zip(state, after[:carry])]  # noqa: B905 (the constants stay)
        if grown == state[:carry]:
            return [*grown, *after[carry:]]
        state[:carry] = grown

"""Which inputs of a graph, or of an operation that carries graphs, an output depends on, as far as gradients go."""

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
    """Return for each output which inputs its gradient, or zeros in place of one, would come to.

    Args:
        inputs: the graph's inputs; bit ``i`` stands for the ``i``-th.
        nodes: its nodes, in order.
        outputs: its outputs.
        start: what the inputs depend on themselves, if bits stand for something else.
    """
    first = [(1 << number, 0) for number in range(len(inputs))] if start is None else start
    found: dict[Node | Edge, Reach] = dict(zip(inputs, first, strict=True))

    def of(edge: Edge) -> Reach:
        node, index = edge
        if not is_differentiable(node.spec(index).dtype):
            return _NOTHING
        return found.get(node) or found.get(edge, _NOTHING)

    for node in nodes:
        kind = type(node.op.vjp)
        if node in found or kind is Stops:
            continue
        each = [_NOTHING if edge is None else of(edge) for edge in node.inputs]
        own = of_node(node)
        if own is not None:
            found |= {(node, index): through(one, each) for index, one in enumerate(own)}
            continue
        reach, behind = joined(each)
        if reach or behind:
            found[node] = (0, reach | behind) if kind is Flat else (reach, behind)
    return [of(edge) for edge in outputs]


def of_node(node: Node) -> list[Reach] | None:
    """Return what each output of an operation that carries graphs depends on; None for every other operation.

    An output that only the gradient rule reads may depend on everything.
    """
    depends = node.op.saves.depends
    if depends is None:
        return None
    found = depends(**node.attrs)
    return [*found, *[((1 << len(node.inputs)) - 1, 0)] * (len(node.outputs) - len(found))]


def joined(some: Sequence[Reach]) -> Reach:
    """Return what depends on all that some values depend on."""
    reach, behind = 0, 0
    for one in some:
        reach |= one[0]
        behind |= one[1]
    return reach, behind


def through(one: Reach, inputs: Sequence[Reach]) -> Reach:
    """Return what a value reaches if the bits of its own reach stand for things that reach further themselves."""
    reach, behind = 0, 0
    for number, (far, flat) in enumerate(inputs):
        if one[0] >> number & 1:
            reach |= far
            behind |= flat
        elif one[1] >> number & 1:
            behind |= far | flat
    return reach, behind


def of_graph(graph: Graph) -> list[Reach]:
    """Return what each output of a graph depends on."""
    found = _OF_GRAPHS.get(graph)
    if found is None:
        found = _OF_GRAPHS[graph] = dependence(graph.inputs, graph.nodes, graph.outputs)
    return found


_OF_GRAPHS: WeakKeyDictionary[Graph, list[Reach]] = WeakKeyDictionary()


def of_loop(body: Graph, carry: int) -> list[Reach]:
    """Return what the outputs of a loop depend on that runs a graph again and again, whose first inputs are carried.

    Bits stand for the graph's inputs. The outputs are what is carried, after any number of steps, and what each step
    gives.
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

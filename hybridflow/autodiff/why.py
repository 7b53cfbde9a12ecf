"""Find where a path from a source to a target ends, for `GradientTape.why_none`."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any, NamedTuple

from hybridflow.autodiff.dependence import of_node
from hybridflow.autodiff.transform import differentiate
from hybridflow.autodiff.walk import EVER, Engine, Wanted, connected, reachable
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node, Where, format_where, next_sequence
from hybridflow.core.op import Stops
from hybridflow.core.variable import VARIABLE, Variable
from hybridflow.ir.graph import Graph

_REMEMBERED = 100
"""The number of exits that a tape remembers, with the nodes that they depend on."""


class _Exit(NamedTuple):
    """An event where a value left the recording: to NumPy, into a Variable, or inside a compiled call.

    Attributes:
        variable: the Variable, if the value was assigned to one, else None.
        node: the node that computed the value, or the compiled call.
        where: the user's line.
        sequence: the time of the event, as a sequence number of nodes.
        inside: whether the path was cut inside a compiled call.
    """

    variable: Variable | None
    node: Node
    where: Where | None
    sequence: int
    inside: bool = False


class Exits:
    """The events where values left the recording."""

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: deque[_Exit] = deque(maxlen=_REMEMBERED)

    def left(self, node: Node, where: Where | None) -> None:
        """Remember that a value became NumPy or a Python number."""
        self._found.append(_Exit(None, node, where, next_sequence()))

    def cut(self, node: Node) -> None:
        """Remember a compiled call that has an output without a gradient."""
        self._found.append(_Exit(None, node, node.where, next_sequence(), inside=True))

    def assigned(self, variable: Variable, node: Node, where: Where | None) -> None:
        """Remember that a value was assigned to a Variable."""
        self._found.append(_Exit(variable, node, where, next_sequence()))

    def clear(self) -> None:
        """Forget everything."""
        self._found.clear()

    def why(
        self, target: Edge | None, nodes: Sequence[Node], sources: set[Edge], intervals: Sequence[tuple[int, int]]
    ) -> str | None:
        """Say which exit ends the path from sources to a target; None if none does.

        Args:
            target: the target's edge, None if it was not recorded.
            nodes: the nodes that the target depends on.
            sources: the sources' edges.
            intervals: the intervals in which the tape recorded.
        """
        reason = self._assignment(target, nodes, sources, intervals, set())
        if reason is not None and reason.variable is not None:
            return (
                f"The path was cut where a value was assigned to Variable {reason.variable.name!r} at "
                f"{format_where(reason.where)}: no gradient flows through an assignment."
            )
        for one in self._found:
            if one.variable is not None or not _may_come_back(target, nodes, sources, one):
                continue
            before = connected(reachable([(one.node, 0)], intervals), sources)
            if one.inside and one.node in before:
                texts = [cut_inside(one.node, index) for index, wanted in enumerate(before[one.node]) if wanted]
                return next(filter(None, texts), None)
            if one.node in before:
                place = format_where(one.where)
                return f"The path left through NumPy at {place}: only hybridflow operations are recorded."
        return None

    def _assignment(
        self, target: Edge | None, nodes: Sequence[Node], sources: set[Edge], intervals: Sequence[tuple[int, int]],
        seen: set[int],
    ) -> _Exit | None:
        """Return the assignment of a value that depends on sources to a Variable that the target uses."""
        for one in self._found:
            if one.variable is None or one.sequence in seen or not _uses(target, nodes, one.variable, one.sequence):
                continue
            seen.add(one.sequence)
            before = reachable([(one.node, 0)], intervals)
            if one.node in connected(before, sources):
                return one
            earlier = self._assignment((one.node, 0), before, sources, intervals, seen)
            if earlier is not None:
                return earlier
        return None


def _uses(target: Edge | None, nodes: Sequence[Node], variable: Variable, since: int) -> bool:
    """Whether a target is a Variable's value, or used one after `since`."""
    if target is not None and _is_of(target[0], variable):
        return True
    edges = [edge for node in nodes if node.sequence > since for edge in node.inputs]
    return any(edge is not None and _is_of(edge[0], variable) for edge in edges)


def _is_of(node: Node, variable: Variable) -> bool:
    return node.op is VARIABLE and node.attrs["variable"]() is variable


def _may_come_back(target: Edge | None, nodes: Sequence[Node], sources: set[Edge], left: _Exit) -> bool:
    """Whether a value that left for NumPy may be part of a target: through an unrecorded value or a Variable."""
    known = {node for node, _ in sources}
    edges = [target, *[edge for node in nodes if node.sequence > left.sequence for edge in node.inputs]]
    return any(edge is None or (edge[0].op is VARIABLE and edge[0] not in known) for edge in edges)


def cut_inside(node: Node, index: int) -> str | None:
    """Say where the path from an input is cut inside the graph of a node.

    Args:
        node: the node; its attribute ``graph``, if it has one, has the same inputs.
        index: the input.

    Returns:
        A sentence, or None if the node has no such graph or the cut is not found.
    """
    graph = node.attrs.get("graph")
    if not isinstance(graph, Graph) or index >= len(graph.inputs):
        return None
    source = (graph.inputs[index], 0)
    nodes = reachable(graph.outputs, [EVER])
    if source[0] not in nodes:
        return f"Nothing that {node.op.name} at {node.location} returns depends on it."
    given = tuple([is_differentiable(spec.dtype) for spec in graph.output_specs])
    wanted = tuple([position == index for position in range(len(graph.inputs))])
    if differentiate(graph, given, wanted).present[index]:
        return None
    path = {source[0]}
    reason: str | None = None
    for one in nodes:
        for position, edge in enumerate(one.inputs):
            if edge is None or edge[0] not in path or not is_differentiable(edge[0].spec(edge[1]).dtype):
                continue
            text = _cut(one, position)
            if text is None:
                path.add(one)
                break
            reason = text
    return reason


def _cut(node: Node, index: int) -> str | None:
    """Say why a node of a graph passes nothing back to an input; None if it does."""
    rule = node.op.vjp
    if isinstance(rule, Stops):
        return f"The path goes through {node.op.name} at {node.location}: {rule.why}."
    if not any(is_differentiable(spec.dtype) for spec in node.specs):
        return (
            f"The path goes through {node.op.name} at {node.location}, whose result is {node.spec().dtype}: "
            "integers and bools have no gradient."
        )
    return cut_inside(node, index)


def independent(target: Edge, path: Mapping[Node, Wanted]) -> str | None:
    """Say which operation that carries graphs ends a path, because its used results do not depend on the source.

    Args:
        target: the target's edge.
        path: the nodes between the source and the target, if every output depended on every input.
    """
    used = [edge for node, wanted in path.items() for edge, want in zip(node.inputs, wanted, strict=False) if want]
    for edge in (target, *used):
        node, index = edge or target
        depends = of_node(node)
        if depends is None or node not in path:
            continue
        reach = depends[index][0] | depends[index][1]
        if not any(want and reach >> number & 1 for number, want in enumerate(path[node])):
            return f"Result {index} of {node.op.name} at {node.location} does not depend on it."
    return None


class Noting:
    """An engine that remembers the first node whose rule passes nothing back."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._found: tuple[Node, int] | None = None
        self.add = engine.add
        self.walk = engine.walk

    def run(self, node: Node, g: Any, wanted: Wanted) -> Sequence[Any]:
        """Return the rule's gradients."""
        gradients = [one() if isinstance(one, FunctionType) else one for one in self._engine.run(node, g, wanted)]
        for index, want in enumerate(wanted):
            if want and gradients[index] is None and self._found is None:
                self._found = node, index
        return gradients

    def why(self) -> str | None:
        """Say which operation cut the path."""
        if self._found is None:
            return None
        node, index = self._found
        edge = node.inputs[index]
        if edge is not None and not is_differentiable(edge[0].spec(edge[1]).dtype):
            made, dtype = edge[0], edge[0].spec(edge[1]).dtype
            return (
                f"The path goes through {made.op.name} at {made.location}, whose result is {dtype}: "
                "integers and bools have no gradient."
            )
        return (
            cut_inside(node, index)
            or f"The path goes through {node.op.name} at {node.location}: its gradient rule passes nothing back."
        )

"""Find the number of steps of a loop during tracing, if an integer counts up or down to a constant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Op
from hybridflow.core.sources import CONSTANT
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import GraphBuilder, Traced
from hybridflow.ir.effects import has_effects
from hybridflow.ir.graph import Graph

_COMPARISONS: dict[tuple[bool, ...], tuple[int, bool]] = {
    (True, False, False): (1, False), (True, True, False): (1, True),
    (False, False, True): (-1, False), (False, True, True): (-1, True),
}
"""The comparisons with a counter, by their results for 0 and 1, 1 and 1, 1 and 0.

Each has the direction in which the counter must count, and whether the limit is included.
"""
_LARGEST = 1 << 62
"""The largest step: adding and subtracting it are exact in int64."""


class _Counter(NamedTuple):
    """A counter's position among the loop variables, its limit, and how it is compared."""

    position: int
    limit: int
    direction: int
    inclusive: bool


def known_trips(test: Traced, body: Traced, state: Sequence[Tensor], tracer: GraphBuilder) -> int | None:
    """Return the number of steps of a loop, or None if it depends on values.

    It is known if the condition only compares an integer loop variable with a constant, the variable starts at a
    constant, the body adds a constant to it, and it stays within its dtype's range.
    """
    outside = [_constant(tracer.edge_of(tensor)) for tensor in test.captures]
    counter = _counter(test.graph, len(state), outside)
    if counter is None or test.variables or has_effects(test.graph):
        return None
    start = _constant(tracer.edge_of(state[counter.position]))
    step = _step(body.graph, counter.position)
    if start is None or not step or (step > 0) != (counter.direction > 0):
        return None
    distance = (counter.limit - start) * counter.direction + counter.inclusive
    trips = max(0, -(-distance // abs(step)))
    info = np.iinfo(state[counter.position].dtype)
    return trips if info.min <= start + trips * step <= info.max else None


def _constant(edge: Edge | None) -> int | None:
    """Return the value of an edge if it is an integer constant of shape (), else None."""
    if edge is None or edge[0].op is not CONSTANT:
        return None
    array = edge[0].attrs["value"].array
    return int(array) if array.shape == () and array.dtype.kind in "iu" else None


def _counter(graph: Graph, carried: int, outside: Sequence[int | None]) -> _Counter | None:
    node = graph.outputs[0][0]
    comparison = _COMPARISONS.get(_answers(node.op)) if node.op.has("order") else None
    if comparison is None:
        return None
    values = {one: value for one, value in zip(graph.inputs[carried:], outside, strict=False)}
    positions = {one: index for index, one in enumerate(graph.inputs[:carried])}

    def number(edge: Edge | None) -> int | None:
        return None if edge is None else values.get(edge[0], _constant(edge))

    a, b = cast("tuple[Edge, ...]", node.inputs)
    direction, inclusive = comparison
    if a[0] not in positions:
        a, b, direction = b, a, -direction
    limit = number(b)
    if a[0] not in positions or limit is None:
        return None
    return _Counter(positions[a[0]], limit, direction, inclusive)


def _step(graph: Graph, position: int) -> int | None:
    """Return the constant that a body adds to a loop variable, or None."""
    node: Node = graph.outputs[position][0]
    if not node.op.has("shift"):
        return None
    a, b = node.inputs
    counter = (graph.inputs[position], 0)
    if a != counter and node.op.has("commutative"):
        a, b = b, a
    amount = _constant(b) if a == counter else None
    return None if amount is None or abs(amount) > _LARGEST else int(_of(node.op, 0, amount))


def _answers(op: Op) -> tuple[bool, ...]:
    return tuple([bool(_of(op, a, b)) for a, b in ((0, 1), (1, 1), (1, 0))])


def _of(op: Op, a: int, b: int) -> Any:
    """Return an operation's result for two integers."""
    return cast("Callable[..., Any]", op.kernel)(np.asarray(a, np.int64), np.asarray(b, np.int64))

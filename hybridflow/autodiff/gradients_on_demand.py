"""Second-order gradients on demand: a tape's gradients that `.backward()` may, but rarely does, go through.

A gradient that a tape computes from values that require a gradient requires one itself. Hardly any program uses that,
so the tape walks over bare arrays, and each gradient gets a single node. When someone needs what such a node stands
for, the walk is made again with recording, and its operations take the place in the recording where they would have
been: gradients do not depend on when something is recorded.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

from hybridflow.autodiff.walk import reachable
from hybridflow.core.context import context_of, current
from hybridflow.core.node import FOREVER, Edge, Node, make_node, next_sequence, user_place
from hybridflow.core.notes import requires
from hybridflow.core.op import No, Op, register
from hybridflow.core.tensor import Tensor, make_tensor, no_value

Walk = Callable[[], list[Tensor | None]]
"""A function that computes gradients with recorded operations."""
_YOUNGEST = 1 << 62


class _Deferred:
    """A backward walk that is recorded when one of its gradients is needed.

    Attributes:
        walk: the function that runs it; None once it is recorded.
        edges: per gradient, its edge once it is recorded; None if there is none.
    """

    def __init__(self, walk: Walk) -> None:
        self.walk: Walk | None = walk
        self.edges: list[Edge | None] = []
        self._place = next_sequence()

    def record(self) -> None:
        """Record the walk, if it is not yet, in the place where it was first made."""
        if self.walk is None:
            return
        start = next_sequence()
        with context_of(None, (), current().device):
            edges = [None if tensor is None else tensor._edge for tensor in self.walk()]
        nodes = reachable([edge for edge in edges if edge is not None], [(start, _YOUNGEST)])
        for number, node in enumerate(nodes, 1):
            _read_recorded(node)
            node.sequence = self._place + Fraction(number, len(nodes) + 1)
        self.walk, self.edges = None, edges


_DEFERRED: weakref.WeakSet[Node] = weakref.WeakSet()
"""The nodes of all gradients that were not recorded when they were computed."""


def differentiable_on_demand(
    gradients: Sequence[Tensor | None], nodes: Iterable[Node], around: Iterable[Edge], walk: Walk
) -> list[Tensor | None]:
    """Return gradients that were computed without recording as tensors that `.backward()` can start from.

    Args:
        gradients: the gradients.
        nodes: the nodes that were walked.
        around: the edges that the walk started from.
        walk: the function that makes the walk again.
    """
    edges: dict[Edge, None] = {edge: None for edge in around if requires(edge)}
    for node in nodes:
        if node.stamp is FOREVER:
            for index in range(len(node.outputs)):
                edges[node, index] = None
        for edge in node.inputs:
            if edge is not None and edge[0].stamp is FOREVER:
                edges[edge] = None
    if not edges:
        return list(gradients)
    deferred, inputs, where = _Deferred(walk), tuple(edges), user_place(4)

    def made(index: int, value: Any) -> Tensor:
        node = make_node(_GRADIENT, inputs, {"deferred": deferred, "index": index}, ((value.shape, value.dtype),),
                         where=where, backend="host")
        node.stamp = FOREVER
        _DEFERRED.add(node)
        return make_tensor(value, (node, 0))

    return [None if tensor is None else made(index, tensor._value) for index, tensor in enumerate(gradients)]


def recorded_edge(edge: Edge | None) -> Edge | None:
    """Return the edge of a value as it is once everything before it is recorded.

    Afterwards the nodes before it require a gradient only if they depend on a leaf that does.
    """
    if not _DEFERRED or not requires(edge):
        return edge
    nodes: dict[Node, None] = {}
    stack = [edge[0]]  # pyright: ignore[reportOptionalSubscript]
    while stack:
        node = stack.pop()
        if node not in nodes and node.stamp == FOREVER:
            nodes[node] = None
            stack.extend(one[0] for one in node.inputs if one is not None)
    for node in sorted(nodes, key=lambda one: one.sequence):
        if node.op is _GRADIENT:
            node.attrs["deferred"].record()
            lasting = _replaced((node, 0)) != (node, 0)
        else:
            _read_recorded(node)
            lasting = not node.inputs or any(map(requires, node.inputs)) or getattr(node, "notes", None)
        if not lasting:
            node.stamp = node.sequence
    return _replaced(edge)


def _replaced(edge: Edge | None) -> Edge | None:
    """Return the recorded edge of a gradient that requires a gradient; return any other edge as it is."""
    if edge is not None and edge[0].op is _GRADIENT:
        deferred, index = edge[0].attrs["deferred"], edge[0].attrs["index"]
        if deferred.walk is None and requires(deferred.edges[index]):
            return deferred.edges[index]
    return edge


def _read_recorded(node: Node) -> None:
    """Let a node read recorded gradients in place of the nodes that stood for them."""
    if any([edge is not None and edge[0].op is _GRADIENT for edge in node.inputs]):
        node.inputs = tuple(map(_replaced, node.inputs))


_GRADIENT = register(
    Op(
        "gradient",
        No("it was computed by a tape"),
        no_value,
        no_value,
        No("it is recorded first"),
        samples=No("made by tapes; tested in tests/test_backward.py"),
        onnx=No("it is on no graph"),
    )
)

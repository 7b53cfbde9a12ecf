"""Second-order gradients on demand: a tape's gradients that `.backward()` may, but rarely does, go through.

A gradient that a tape computes from values that require a gradient requires one itself. Hardly any program uses that,
so the tape walks over bare arrays, and a single node takes the place of everything the walk would have recorded. A
backward walk through that node makes the first walk again, this time with recording.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from hybridflow.autodiff.backprop import BOUND, backprop
from hybridflow.autodiff.walk import reachable
from hybridflow.core.context import context_of, current
from hybridflow.core.node import FOREVER, Edge, Node, make_node, next_sequence, user_place
from hybridflow.core.notes import requires
from hybridflow.core.op import REGISTRY, Joint, No, Op, Saves, register
from hybridflow.core.tensor import Tensor, make_tensor, no_value

Walk = Callable[[], list[Tensor | None]]
"""A function that computes gradients with recorded operations."""
_YOUNGEST = 1 << 62


class Again:
    """A backward walk that can be repeated.

    Attributes:
        walk: the function that runs it.
        edges: the edges that require a gradient and that the walk may depend on.
    """

    def __init__(self, walk: Walk, edges: tuple[Edge, ...]) -> None:
        self.walk = walk
        self.edges = edges
        self._lasting: tuple[bool, ...] | None = None

    def lasting(self) -> tuple[bool, ...]:
        """Return which of its gradients require a gradient themselves."""
        if self._lasting is None:
            self._lasting = tuple([requires(tensor._edge) for tensor in self.recorded()])
        return self._lasting

    def recorded(self) -> list[Tensor]:
        """Compute the gradients with recording."""
        with context_of(None, current().tapes, current().device):
            return [tensor for tensor in self.walk() if tensor is not None]


_UNSETTLED: weakref.WeakSet[Node] = weakref.WeakSet()
"""The nodes of gradients that are not (yet) known to require a gradient."""


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
    tensors = [tensor for tensor in gradients if tensor is not None]
    if not edges or not tensors:
        return list(gradients)
    again, where = Again(walk, tuple(edges)), user_place(4)
    outputs = tuple([(tensor._value.shape, tensor._value.dtype) for tensor in tensors])
    whole = make_node(_GRADIENTS, again.edges, {"again": again}, outputs, where=where, backend="host")
    whole.stamp = FOREVER
    numbers = iter(range(len(tensors)))
    return [None if tensor is None else _one_of(whole, next(numbers), tensor) for tensor in gradients]


def _one_of(whole: Node, index: int, tensor: Tensor) -> Tensor:
    """Return a gradient with its own node, since some gradients may require a gradient and others not."""
    outputs = (whole.outputs[index],)
    node = make_node(REGISTRY["identity"], ((whole, index),), {}, outputs, where=whole.where, backend="host")
    node.stamp = FOREVER
    node.saved = (None, None)
    _UNSETTLED.add(node)
    return make_tensor(tensor._value, (node, 0))


def settle(edge: Edge | None) -> None:
    """Decide whether a value computed from such gradients really requires a gradient, and mark it accordingly."""
    if not _UNSETTLED or not requires(edge):
        return
    nodes: dict[Node, None] = {}
    stack = [edge[0]]  # pyright: ignore[reportOptionalSubscript]
    while stack:
        node = stack.pop()
        if node not in nodes and node.stamp == FOREVER:
            nodes[node] = None
            stack.extend(one[0] for one in node.inputs if one is not None)
    for node in sorted(nodes, key=lambda one: one.sequence):
        if node in _UNSETTLED:
            whole, index = node.inputs[0]  # pyright: ignore[reportGeneralTypeIssues]
            lasting = whole.attrs["again"].lasting()[index]
            if lasting:
                _UNSETTLED.discard(node)
        else:
            lasting = not node.inputs or any(map(requires, node.inputs)) or getattr(node, "notes", None)
        if not lasting:
            node.stamp = node.sequence


def _rule(F: Any, g: Any, y: Any, *xs: Any, wanted: tuple[bool, ...], again: Again) -> list[Any]:
    del F, y, xs
    start = next_sequence()
    node = again.recorded()
    starts = [
        (tensor._edge, one)
        for tensor, one in zip(node, g if isinstance(g, tuple) else (g,), strict=True)
        if one is not None and tensor._edge is not None
    ]
    sources = {edge for edge, want in zip(again.edges, wanted, strict=True) if want}
    nodes = reachable([edge for edge, _ in starts], [(start, _YOUNGEST)])
    with context_of(None, current().tapes, current().device):
        result = backprop(starts, sources, nodes, BOUND)
    return [result.get(edge) for edge in again.edges]


_GRADIENTS = register(
    Op(
        "gradients",
        No("it was computed by a tape"),
        no_value,
        no_value,
        Joint(_rule),
        saves=Saves(),
        samples=No("made by tapes; tested in tests/test_backward.py"),
        traits=frozenset({"tensor_rule"}),
        onnx=No("it is on no graph"),
    )
)

"""Fast path of `tape.gradient` for the usual training step: one target and watched sources, all on the host.

Other cases (traces, other tapes, output gradients, nestings, several intervals) take the general path through the
tape's methods, which gives the same gradients.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from hybridflow.autodiff.backprop import RAW, backprop
from hybridflow.autodiff.walk import reachable
from hybridflow.core.context import context_now
from hybridflow.core.dispatch import as_arrays
from hybridflow.core.node import FOREVER, Edge, Node
from hybridflow.core.tensor import Tensor, make_tensor
from hybridflow.core.variable import Variable

_ndarray = np.ndarray


class Recorded(Protocol):
    """The part of a tape that is used here."""

    _watched: dict[Edge, int]
    _variables: dict[Node, tuple[Variable, dict[Edge, None]]]
    _intervals: list[tuple[int, int]]


def quick_gradients(tape: Recorded, target: Any, sources: Iterable[Any]) -> list[Tensor | None] | None:
    """Return the gradients of a target with respect to sources, or None if the fast path does not apply.

    Args:
        tape: a tape that recorded in eager code, once, and is not recording now.
        target: the value to differentiate.
        sources: tensors and Variables.
    """
    if type(target) is not Tensor or context_now() is not None:
        return None
    edge, value = target._edge, target._value
    if edge is None or type(value) is not _ndarray or value.dtype.kind != "f" or edge[0].stamp == FOREVER:
        return None
    wanted = _edges(tape, sources)
    if wanted is None:
        return None
    nodes = reachable((edge,), tape._intervals)
    if tape._watched and _watched_late(tape._watched, nodes):
        return None
    seed = np.empty(value.shape, value.dtype)
    seed.fill(1)
    by_edge = backprop(((edge, seed),), set(wanted), nodes, RAW)
    gradients: list[Tensor | None] = []
    for one in wanted:
        gradient = by_edge.get(one)
        if gradient is not None:
            gradient = gradient if type(gradient) is _ndarray else as_arrays(gradient)
            if gradient.dtype.kind == "c":
                return None  # the general path conjugates it
            gradient = make_tensor(gradient)
        gradients.append(gradient)
    return gradients


def _edges(tape: Recorded, sources: Iterable[Any]) -> list[Edge] | None:
    """Return the edge of every source, or None if one is not a tensor, was not watched or has several edges."""
    edges: list[Edge] = []
    for source in sources:
        if type(source) is Tensor:
            edge = source._edge
            if edge is None or edge not in tape._watched:
                return None
        elif type(source) is Variable:
            entry = tape._variables.get(source._leaf)
            if entry is None or len(entry[1]) != 1:
                return None
            (edge,) = entry[1]
        else:
            return None
        edges.append(edge)
    return edges


def _watched_late(watched: dict[Edge, int], nodes: Sequence[Node]) -> bool:
    """Whether anything was watched after the first operation."""
    last = max(watched.values())
    for node in nodes:
        if node.inputs:
            return last > node.sequence
    return False

"""`Notes`: how `.backward()` handles the gradient of one value, and that gradient itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow.core.node import FOREVER, Edge, Node


class Notes:
    """Information about one value for `.backward()`.

    Attributes:
        leaf: whether the value is a leaf, where gradients accumulate.
        retains: whether the gradient is kept although the value is not a leaf.
        grad: the gradient, if there is one; a Variable's is in `cell`.
        hooks: functions of the gradient, in the order of registration.
        cell: the `GradientCell` of a Variable, None for tensors.
    """

    __slots__ = ("cell", "grad", "hooks", "leaf", "retains")

    def __init__(self, *, leaf: bool = False, cell: Any = None) -> None:
        self.leaf = leaf
        self.retains = False
        self.grad: Any = None
        self.hooks: dict[int, Callable[[Any], Any]] = {} if cell is None else cell.hooks
        self.cell: Any = cell


def notes_at(edge: Edge | None) -> Notes | None:
    """Return the notes of a value, if it has any."""
    if edge is None:
        return None
    by_output: dict[int, Notes] | None = getattr(edge[0], "notes", None)
    return None if by_output is None else by_output.get(edge[1])


def take_notes(edge: Edge) -> Notes:
    """Return the notes of a value, creating them if it has none."""
    notes = notes_at(edge)
    if notes is None:
        notes = Notes()
        attach_notes(edge, notes)
    return notes


def attach_notes(edge: Edge, notes: Notes) -> None:
    """Set the notes of a value."""
    node, index = edge
    node.notes = {**getattr(node, "notes", {}), index: notes}


def make_leaf(node: Node, notes: Notes) -> Node:
    """Make a node with one output a leaf that requires a gradient."""
    attach_notes((node, 0), notes)
    node.stamp = FOREVER
    return node


def requires(edge: Edge | None) -> bool:
    """Whether the value on an edge requires a gradient."""
    return edge is not None and edge[0].stamp == FOREVER

"""Values that the steps of a loop over a tensor's rows append to lists: tensors are stacked, numbers stay numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from hybridflow.convert.staged import staged
from hybridflow.convert.values import Value, holds_traced, standing_for
from hybridflow.core.staged_number import StagedNumber
from hybridflow.guards.order import in_order_of

_CONSTANT = frozenset({bool, int, float, complex, str, bytes})
"""Types of appended values that are the same in every step, since the step is traced once."""


class Appended:
    """A value that every step appends.

    Attributes:
        tensors: its leaves that depend on the step.
    """

    def __init__(self, value: Any) -> None:
        self.value = Value.of(value, holds_traced(value))
        leaves = [leaf for leaf in self.value.leaves if type(leaf) not in _CONSTANT]
        self.tensors = [leaf.raw if type(leaf) is StagedNumber else leaf for leaf in leaves]
        self.rows: Sequence[Any] = ()

    def row(self, index: int) -> Any:
        """Return the value that the step `index` appended."""
        rows = iter(self.rows)
        leaves = [leaf if type(leaf) in _CONSTANT else _like(leaf, next(rows)[index]) for leaf in self.value.leaves]
        made = jax.tree_util.tree_unflatten(self.value.tree, leaves)
        return made if self.value.order is None else in_order_of(self.value.order, made)


def _like(leaf: Any, row: Any) -> Any:
    return staged(leaf.kinds, row, leaf.limit, leaf.origin) if type(leaf) is StagedNumber else standing_for(leaf, row)

"""Frozen dataclasses among the arguments.

A frozen dataclass that holds tensors or numbers is a structure of its attributes, as a list is of its items: a number
of it can be an input of the trace. Others are compared by all that they hold: not only the fields that ``==`` compares,
but also what `functools.cached_property` or ``object.__setattr__`` left in them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import jax
import numpy as np

from hybridflow.core.functions import is_whole
from hybridflow.core.held import Opened, attributes_of, is_by_fields, made_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.guards.order import has_order, in_order_of

_NUMBERS = frozenset({float, int, TracedNumber})


def _is_opened(value: Any) -> bool:
    return type(value) is Opened


def closed(structure: Any) -> Any:
    """Return a structure with its opened dataclasses turned back into objects."""

    def close(leaf: Any) -> Any:
        return made_of(leaf.kind, leaf.names, map(closed, leaf.values)) if _is_opened(leaf) else leaf

    return jax.tree_util.tree_map(close, structure, is_leaf=lambda one: _is_opened(one) or is_whole(one))


def _leaves_of(value: Any, around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield what is in a frozen dataclass and in those inside it; for one that contains itself, itself once more."""
    around = (*around, value)
    for leaf in jax.tree_util.tree_leaves([*attributes_of(value).values()], is_whole):
        if is_by_fields(leaf) and not any([leaf is one for one in around]):
            yield from _leaves_of(leaf, around)
        else:
            yield leaf


def _has_structure(value: Any) -> bool:
    """Whether a frozen dataclass holds tensors or Variables, or numbers and no arrays, and does not contain itself.

    Arrays in one without tensors stay NumPy's own, and are compared by value.
    """
    leaves = [*_leaves_of(value)]
    if any(map(is_by_fields, leaves)):
        return False
    if any([isinstance(leaf, Tensor | Variable) for leaf in leaves]):
        return True
    has_arrays = any([isinstance(leaf, np.ndarray | np.generic | jax.Array) for leaf in leaves])
    return not has_arrays and any([type(leaf) in _NUMBERS for leaf in leaves])


def opened(leaf: Any) -> Any:
    """Return a leaf as an `Opened` if it is a frozen dataclass that holds tensors, Variables or numbers."""
    if not is_by_fields(leaf) or not _has_structure(leaf):
        return leaf
    held = attributes_of(leaf)
    values: list[Any] = []
    for one in held.values():
        value = jax.tree_util.tree_map(opened, one, is_leaf=is_whole)
        values.append(in_order_of(one, value) if has_order(one) else value)
    return Opened(type(leaf), tuple(held), tuple(values), leaf)


def _flatten(value: Opened) -> tuple[list[tuple[Any, Any]], Any]:
    keys = map(jax.tree_util.GetAttrKey, value.names)
    return list(zip(keys, value.values, strict=True)), (value.kind, value.names)


def _unflatten(kind: Any, values: Any) -> Opened:
    return Opened(*cast("tuple[type, tuple[str, ...]]", kind), tuple(values))


jax.tree_util.register_pytree_with_keys(Opened, _flatten, _unflatten)

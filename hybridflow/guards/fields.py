"""Frozen dataclasses among the arguments: those that hold tensors are structures of their fields, as lists are."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import jax

from hybridflow.core.functions import is_whole
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable


def is_by_fields(value: Any) -> bool:
    """Whether a value is known by its fields: a frozen dataclass that compares by its fields."""
    parameters = getattr(type(value), "__dataclass_params__", None)
    return parameters is not None and parameters.frozen and parameters.eq


class Opened:
    """A frozen dataclass as a structure.

    Attributes:
        kind: its class.
        names: the names of its fields.
        values: the values of its fields, opened too.
        given: the original object, if it was an argument.
    """

    __slots__ = ("given", "kind", "names", "values")

    def __init__(self, kind: type, names: tuple[str, ...], values: tuple[Any, ...], given: Any = None) -> None:
        self.kind = kind
        self.names = names
        self.values = values
        self.given = given

    def closed(self) -> Any:
        """Return an object of the class with these fields; no code of the class runs."""
        obj = object.__new__(self.kind)
        for name, value in zip(self.names, self.values, strict=True):
            object.__setattr__(obj, name, closed(value))
        return obj


def _is_opened(value: Any) -> bool:
    return type(value) is Opened


def closed(structure: Any) -> Any:
    """Return a structure with its opened dataclasses turned back into objects."""

    def close(leaf: Any) -> Any:
        return leaf.closed() if _is_opened(leaf) else leaf

    return jax.tree_util.tree_map(close, structure, is_leaf=lambda one: _is_opened(one) or is_whole(one))


def _holds_tensors(value: Any) -> bool:
    values = [getattr(value, one.name, None) for one in dataclasses.fields(value)]
    leaves = jax.tree_util.tree_leaves(values, is_whole)
    return any(isinstance(leaf, Tensor | Variable) or (is_by_fields(leaf) and _holds_tensors(leaf)) for leaf in leaves)


def opened(leaf: Any) -> Any:
    """Return a leaf as an `Opened` if it is a frozen dataclass that holds tensors or Variables; else unchanged."""
    if not is_by_fields(leaf) or not _holds_tensors(leaf):
        return leaf
    names = tuple([one.name for one in dataclasses.fields(leaf)])
    values = tuple([jax.tree_util.tree_map(opened, getattr(leaf, name), is_leaf=is_whole) for name in names])
    return Opened(type(leaf), names, values, leaf)


def _flatten(value: Opened) -> tuple[list[tuple[Any, Any]], Any]:
    keys = map(jax.tree_util.GetAttrKey, value.names)
    return list(zip(keys, value.values, strict=True)), (value.kind, value.names)


def _unflatten(kind: Any, values: Any) -> Opened:
    return Opened(*cast("tuple[type, tuple[str, ...]]", kind), tuple(values))


jax.tree_util.register_pytree_with_keys(Opened, _flatten, _unflatten)

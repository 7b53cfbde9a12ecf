"""Treat objects of users' classes that jax does not know as structures of their attributes.

To jax, an unregistered dataclass or a plain object is a leaf. If a branch or loop on tensors recreates such an object,
or the function returns it, the tensors in it must be found, and a new object must be built with other tensors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax

from hybridflow.core.held import attributes_of, defines, made_of
from hybridflow.core.structures import parts_of
from hybridflow.guards import observe
from hybridflow.guards.order import flattened, has_order, in_order_of, skeleton

_PYTHON_CLASS = 1 << 9
"""The flag of classes that a ``class`` statement created (Py_TPFLAGS_HEAPTYPE)."""


class _Kind(NamedTuple):
    """The form of an object: objects of equal form can exchange their attributes."""

    cls: type
    names: tuple[str, ...]
    order: _Order


class _Order:
    """The order of the dicts in an object's attributes; to Python, dicts in another order are equal."""

    def __init__(self, values: list[Any]) -> None:
        self.skeleton = skeleton(values) if has_order(values) else None
        self.text = str(self.skeleton)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Order) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


class _Attributes:
    """Stands for an object in a structure."""

    __slots__ = ("kind", "values")

    def __init__(self, kind: _Kind, values: list[Any]) -> None:
        self.kind = kind
        self.values = values


def _flatten(node: _Attributes) -> tuple[list[tuple[Any, Any]], _Kind]:
    return list(zip(map(jax.tree_util.GetAttrKey, node.kind.names), node.values, strict=True)), node.kind


def _unflatten(kind: _Kind, values: Any) -> Any:
    held = list(values)
    if kind.order.skeleton is not None:
        held = in_order_of(kind.order.skeleton, held)
    return made_of(kind.cls, kind.names, held)


jax.tree_util.register_pytree_with_keys(_Attributes, _flatten, _unflatten)


def is_object(value: Any) -> bool:
    """Whether a value is an object that consists only of its attributes, as far as can be seen."""
    cls = type(value)
    if not cls.__flags__ & _PYTHON_CLASS or cls.__new__ is not object.__new__ or isinstance(value, type):
        return False
    if any(one.__module__.partition(".")[0] == "hybridflow" for one in cls.__mro__):
        return False
    if not hasattr(value, "__dict__") and not any("__slots__" in vars(one) for one in cls.__mro__):
        return False  # its state is in C
    alike = cls.__reduce_ex__ is object.__reduce_ex__ and cls.__reduce__ is object.__reduce__
    return alike and not any(defines(cls, name) for name in ("__copy__", "__deepcopy__", "__del__"))


def is_record(value: Any) -> bool:
    """Whether a value is a dataclass instance that consists only of its attributes."""
    return is_object(value) and dataclasses.is_dataclass(type(value))


def opened(value: Any, which: Callable[[Any], bool] = is_object) -> Any:
    """Return a structure with its objects replaced by nodes that jax can flatten, and unflatten to such objects."""
    return _opened(value, which, ())


def open_records(value: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Return a structure with its dataclasses replaced by such nodes; what `is_leaf` says is a leaf stays as it is."""
    return _opened(value, lambda leaf: is_record(leaf) and not (is_leaf is not None and is_leaf(leaf)), (), is_leaf)


def _opened(
    value: Any, which: Callable[[Any], bool], around: tuple[Any, ...], is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    leaves, tree = flattened("compile", value, is_leaf)
    if not any(map(which, leaves)):
        return value
    opened = [
        _attributes(leaf, which, (*around, leaf), is_leaf) if _is_new(leaf, which, around) else leaf for leaf in leaves
    ]
    whole = jax.tree_util.tree_unflatten(tree, opened)
    return in_order_of(skeleton(value), whole) if has_order(value) else whole


def _is_new(leaf: Any, which: Callable[[Any], bool], around: tuple[Any, ...]) -> bool:
    """Whether a leaf is an object that does not contain itself: none of the objects around it is the same one."""
    return which(leaf) and not any(leaf is one for one in around)


def _attributes(
    value: Any, which: Callable[[Any], bool], around: tuple[Any, ...], is_leaf: Callable[[Any], bool] | None
) -> _Attributes:
    names = [*attributes_of(value)]
    held = [observe.read_attr(value, name) for name in names]
    kind = _Kind(type(value), tuple(names), _Order(held))
    return _Attributes(kind, [_opened(one, which, around, is_leaf) for one in held])


def objects_in(value: Any) -> Iterator[Any]:
    """Yield the objects in a structure, including those in their attributes."""
    pending, seen = [value], set[int]()
    while pending:
        for leaf in parts_of(pending.pop()):
            if is_object(leaf) and id(leaf) not in seen:
                seen.add(id(leaf))
                yield leaf
                pending += attributes_of(leaf).values()


def vars_of(value: Any) -> list[Any]:
    """Return the values of an object's attributes."""
    return [*attributes_of(value).values()]


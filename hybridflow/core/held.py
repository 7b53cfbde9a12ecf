"""What an object holds: all of its attributes, and a frozen dataclass as a structure of them."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from types import MemberDescriptorType
from typing import Any


def found_in_class(kind: type, name: str, default: Any = None) -> Any:
    """Return what a class or its bases define under a name: no descriptor is called, and no hook of a metaclass."""
    for one in kind.__mro__:
        if name in one.__dict__:
            return one.__dict__[name]
    return default


def defines(kind: type, name: str) -> bool:
    """Whether a class or one of its bases defines a name; None takes an inherited one back."""
    return found_in_class(kind, name) is not None


def is_by_fields(value: Any) -> bool:
    """Whether a value is known by its fields: a frozen dataclass that compares by its fields."""
    parameters = found_in_class(type(value), "__dataclass_params__")
    return parameters is not None and parameters.frozen and parameters.eq


def shows_fields(value: Any) -> bool:
    """Whether the text of a value is the one that `dataclasses` wrote for its class, of the values of its fields."""
    kind = type(value)
    method = found_in_class(kind, "__repr__") if defines(kind, "__dataclass_fields__") else None
    return getattr(method, "__wrapped__", None) is not None and kind.__str__ is object.__str__


def has_no_namespace_yet(value: Any) -> bool:
    """Whether an object is a partial without ``__dict__``; reading it makes one, and CPython then joins it no more."""
    return issubclass(type(value), partial) and partial.__reduce__(value)[2][3] is None


def attributes_of(value: Any, *, in_c: bool = False) -> dict[str, Any]:
    """Return all that an object holds by name: in its slots and its ``__dict__`` and, if asked, in classes in C."""
    held: dict[str, Any] = {}
    for cls in type(value).__mro__:
        for name, slot in vars(cls).items() if in_c or "__slots__" in vars(cls) else ():
            if type(slot) is MemberDescriptorType:
                with suppress(AttributeError):  # it may be empty
                    held[name] = slot.__get__(value)
    if type(value).__dictoffset__ and not has_no_namespace_yet(value):
        with suppress(AttributeError):  # a class in C may keep it to itself, as TypeVar does
            held.update(object.__getattribute__(value, "__dict__"))
    return held


def held_errors(error: BaseException) -> list[BaseException]:
    """Return an exception with those that it comes from and, of groups, the exceptions in them."""
    held: list[BaseException] = []
    pending: list[BaseException | None] = [error]
    while pending:
        one = pending.pop()
        if one is not None and not any([one is other for other in held]):
            held.append(one)
            pending += [one.__cause__, one.__context__]
            pending += one.exceptions if isinstance(one, BaseExceptionGroup) else ()
    return held


def made_of(kind: type, names: Iterable[str], values: Iterable[Any]) -> Any:
    """Return an object of a class with these attributes; no code of the class runs."""
    made: Any = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        slot = found_in_class(kind, name)
        if type(slot) is MemberDescriptorType:
            slot.__set__(made, value)
        else:
            made.__dict__[name] = value
    return made


class Opened:
    """A frozen dataclass as a structure.

    Attributes:
        kind: its class.
        names: the names of its attributes.
        values: the values of its attributes, opened too.
        given: the original object, if it was an argument.
    """

    __slots__ = ("given", "kind", "names", "values")

    def __init__(self, kind: type, names: tuple[str, ...], values: tuple[Any, ...], given: Any = None) -> None:
        self.kind = kind
        self.names = names
        self.values = values
        self.given = given

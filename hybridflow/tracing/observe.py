"""What converted code tells about itself: every read from, write to and call of what is not its own.

Converted functions call these in place of Python's own operations, while they are traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any


def enter(function: Callable[..., Any]) -> None:
    """Take note that a user's function is about to run converted: its closure cells may be read."""


def read_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global (or builtin) name that was read.

    Args:
        namespace: the globals of the function that reads it.
        name: the name.
        value: what Python found.
    """
    return value


def read_attr(obj: Any, name: str) -> Any:
    """Return ``obj.name``."""
    return getattr(obj, name)


def read_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]``."""
    return obj[key]


def augmented_attr(obj: Any, name: str) -> Any:
    """Return ``obj.name`` for a statement such as ``obj.name += 1``; `write_attr` with `augmented` follows."""
    return getattr(obj, name)


def augmented_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]`` for a statement such as ``obj[key] += 1``; `write_item` with `augmented` follows."""
    return obj[key]


def write_attr(obj: Any, name: str, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj.name = value``."""
    setattr(obj, name, value)


def write_item(obj: Any, key: Any, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj[key] = value``."""
    obj[key] = value


def delete_attr(obj: Any, name: str) -> None:
    """Do ``del obj.name``."""
    delattr(obj, name)


def delete_item(obj: Any, key: Any) -> None:
    """Do ``del obj[key]``."""
    del obj[key]


def write_global(namespace: dict[str, Any], name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a global name; Python stores it after the call."""
    return value


def delete_global(namespace: dict[str, Any], name: str) -> None:
    """Take note that a global name is about to be deleted."""


def write_free(name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a ``nonlocal`` name of a function outside the trace; Python stores it then."""
    return value


def delete_free(name: str) -> None:
    """Take note that a ``nonlocal`` name of a function outside the trace is about to be deleted."""


def before_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take note that something that is not converted is about to be called: a builtin, a library's function.

    Bound methods of lists, dicts and sets come here too, also those that ``+=`` on one stands for.
    """


def iterate(obj: Iterable[Any]) -> Any:
    """Return what a ``for`` loop or a comprehension runs over."""
    return obj

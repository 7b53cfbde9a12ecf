"""What converted code tells about itself: every read from, write to and call of what is not its own.

Converted functions call these in place of Python's own operations, while they are traced. What they read from outside
becomes guards (`hybridflow.tracing.guards`); a write that a later call would miss raises at its line.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from types import BuiltinMethodType, CellType, MethodType
from typing import Any, cast

import numpy as np

from hybridflow.core.context import CONTEXT
from hybridflow.ir.builder import GraphBuilder
from hybridflow.tracing.guards import ATTRIBUTE, CELL, CONTAINERS, GLOBAL, METHOD, MISSING
from hybridflow.tracing.observations import Observations
from hybridflow.tracing.scan import scan


def _observations() -> tuple[Observations | None, bool]:
    """Return what is known of the trace being made, and whether a branch or loop body of it is traced."""
    context = CONTEXT.get()
    tracer = None if context is None else context.tracer
    if tracer is None:
        return None, False
    builder = cast(GraphBuilder, tracer)
    return cast("Observations | None", builder.observations), builder.outer is not None


_BUILTINS = (*CONTAINERS, set, bytearray, np.ndarray)
"""Types whose attributes are what their contents make them; the contents are observed."""

# -- reads --------------------------------------------------------------------------------------------------------


def read_free(cell: CellType, name: str, value: Any) -> Any:
    """Return the value of a name that was read from a function around the converted one.

    Args:
        cell: where that function keeps it.
        name: the name.
        value: what Python found.
    """
    found, _ = _observations()
    return value if found is None else found.read(found.root(cell, name), CELL, name, value)


def read_global(namespace: dict[str, Any], name: str, value: Any) -> Any:
    """Return the value of a global (or builtin) name that was read.

    Args:
        namespace: the globals of the function that reads it.
        name: the name.
        value: what Python found.
    """
    found, _ = _observations()
    if found is not None and name in namespace:
        return found.read(found.root(namespace, "globals"), GLOBAL, name, value)
    return value


def read_attr(obj: Any, name: str) -> Any:
    """Return ``obj.name``."""
    value = getattr(obj, name)
    found, _ = _observations()
    if found is not None:
        place = None if isinstance(obj, _BUILTINS) else found.place_of(obj)
        if place is not None:
            if type(value) is MethodType and value.__self__ is obj:
                found.read(place, METHOD, name, value.__func__)
            elif type(value) is not BuiltinMethodType:
                return found.read(place, ATTRIBUTE, name, value)
    return value


def read_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]``."""
    found, _ = _observations()
    if found is not None:
        found.use(obj)
    return obj[key]


def augmented_attr(obj: Any, name: str) -> Any:
    """Return ``obj.name`` for a statement such as ``obj.name += 1``; `write_attr` with `augmented` follows."""
    return getattr(obj, name)


def augmented_item(obj: Any, key: Any) -> Any:
    """Return ``obj[key]`` for a statement such as ``obj[key] += 1``; `write_item` with `augmented` follows."""
    return obj[key]


def iterate(obj: Iterable[Any]) -> Any:
    """Return what a ``for`` loop or a comprehension runs over."""
    found, _ = _observations()
    if found is not None:
        found.use(obj)
    return obj


def unconverted(function: Any, instance: Any = None) -> None:
    """Take note that a user's function is about to run as it is: what its code names counts as read."""
    found, _ = _observations()
    if found is not None:
        scan(found, function, instance)


# -- writes -------------------------------------------------------------------------------------------------------


def _writes_attr(obj: Any, name: Any, value: Any) -> None:
    """Take note that an attribute is about to be stored or deleted, and of how to take that back."""
    found, nested = _observations()
    place = None if found is None else found.place_of(obj)
    if found is None or place is None or type(name) is not str:
        return
    before = getattr(obj, name, MISSING)
    found.write(place, ATTRIBUTE, name, before, value, nested=nested)
    found.journal.attribute(obj, name)


def write_attr(obj: Any, name: str, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj.name = value``."""
    _writes_attr(obj, name, value)
    setattr(obj, name, value)


def write_item(obj: Any, key: Any, value: Any, *, augmented: bool = False) -> None:
    """Do ``obj[key] = value``."""
    found, nested = _observations()
    if found is not None:
        found.change(obj, f"[{key!r}]", (value,), nested=nested)
    obj[key] = value


def delete_attr(obj: Any, name: str) -> None:
    """Do ``del obj.name``."""
    _writes_attr(obj, name, None)
    delattr(obj, name)


def delete_item(obj: Any, key: Any) -> None:
    """Do ``del obj[key]``."""
    found, nested = _observations()
    if found is not None:
        found.change(obj, f"[{key!r}]", (), nested=nested)
    del obj[key]


def write_global(namespace: dict[str, Any], name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a global name; Python stores it after the call."""
    found, nested = _observations()
    if found is not None:
        before = namespace.get(name, MISSING)
        found.write(found.root(namespace, "globals"), GLOBAL, name, before, value, nested=nested)
        found.journal.item_of(namespace, name)
    return value


def delete_global(namespace: dict[str, Any], name: str) -> None:
    """Take note that a global name is about to be deleted."""
    write_global(namespace, name, None)


def write_free(cell: CellType, name: str, value: Any, *, augmented: bool = False) -> Any:
    """Return the value to store to a ``nonlocal`` name of a function outside the trace; Python stores it then."""
    found, nested = _observations()
    if found is not None:
        before = CELL.get(cell, name)
        found.write(found.root(cell, name), CELL, name, before, value, nested=nested)
        found.journal.cell(cell)
    return value


def delete_free(cell: CellType, name: str) -> None:
    """Take note that a ``nonlocal`` name of a function outside the trace is about to be deleted."""
    write_free(cell, name, None)


# -- calls --------------------------------------------------------------------------------------------------------

_CHANGES = frozenset({
    "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update", "setdefault", "popitem",
    "add", "discard", "difference_update", "intersection_update", "symmetric_difference_update", "appendleft",
    "extendleft", "popleft", "rotate", "fill", "resize", "put", "itemset", "__iadd__", "__ior__", "__iand__",
    "__isub__", "__ixor__", "__imul__", "__setitem__", "__delitem__",
})  # fmt: skip
"""Methods of Python's and NumPy's containers that change them."""
_BY_PROTOCOL = frozenset({"builtins", "operator", "_operator", "functools", "_functools", "itertools"})
"""Modules whose functions see values through Python's own protocols, which what stands for a number follows."""
_GIVES = frozenset({"pop", "popitem", "popleft", "setdefault"})
"""Those of them that also say what was inside."""


def _hand_out(found: Observations, function: Any, arguments: Iterable[Any]) -> None:
    """Take note of containers that a function gets which is not converted: it may change them, or look at types."""
    module = getattr(function, "__module__", None) or "builtins"
    by_protocol = module in _BY_PROTOCOL or module.startswith("hybridflow.")
    for argument in arguments:
        if isinstance(argument, list | tuple | dict | set | deque):
            if found.is_outside(argument):
                found.journal.content(argument)
            if not by_protocol:
                found.floats.require_plain(argument)


def before_call(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Take note that something that is not converted is about to be called: a builtin, a library's function.

    Bound methods of lists, dicts and sets come here too, also those that ``+=`` on one stands for.
    """
    found, nested = _observations()
    if found is None:
        return
    owner = getattr(function, "__self__", None)
    if owner is not None and found.is_outside(owner):
        name = getattr(function, "__name__", "")
        if name in _CHANGES:
            if name in _GIVES:
                found.use(owner)
            found.change(owner, f".{name}(...)", (*args, *kwargs.values()), nested=nested)
        else:
            found.use(owner)
    for argument in args:
        found.use(argument)
    if (function is getattr or function is hasattr) and len(args) >= 2:
        place = found.place_of(args[0])
        if place is not None and type(args[1]) is str:
            found.look(place, ATTRIBUTE, args[1], getattr(args[0], args[1], MISSING))
    elif function is setattr and len(args) == 3:
        _writes_attr(*args)
    elif function is delattr and len(args) == 2:
        _writes_attr(*args, None)
    else:
        found.warn_of_baked(function, args)
        _hand_out(found, function, (*args, *kwargs.values()))


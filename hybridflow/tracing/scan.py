"""What a function that is not converted may read from outside, as far as its bytecode tells.

Its source cannot be found, or it is to be left alone. All that its code names is taken as read: globals, closure
cells, and attributes of those and of the instance it is a method of. The user's functions among them are looked at too.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, cast

from hybridflow.tracing.guards import ATTRIBUTE, CELL, CONTAINERS, GLOBAL, METHOD, MISSING, Place
from hybridflow.tracing.observations import Observations

_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


def scan(found: Observations, function: Any, instance: Any = None) -> None:
    """Guard what the code of a function, and of the user's functions that it names, reads.

    Args:
        found: what is known of the trace.
        function: the function, method, partial or callable object.
        instance: what it is a method of, if it is one.
    """
    waiting = list(_functions(function)) if instance is None else [(function, instance)]
    seen: set[tuple[CodeType, int]] = set()
    while waiting:
        one, first = waiting.pop()
        if (one.__code__, id(first)) not in seen:
            seen.add((one.__code__, id(first)))
            for value in _reads(found, one, first):
                waiting.extend(_functions(value))


def _functions(value: Any) -> Iterator[tuple[FunctionType, Any]]:
    """Yield the user's functions that a value stands for, and the instances they are methods of."""
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, CONTAINERS):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _functions(item)
    elif type(value) is MethodType:
        if type(value.__func__) is FunctionType and _is_users(value.__func__):
            yield value.__func__, value.__self__
    elif type(value) is FunctionType:
        if _is_users(value):
            yield value, None
    else:
        call = getattr(type(value), "__call__", None)  # noqa: B004 (the method itself is wanted)
        if type(call) is FunctionType and _is_users(call):
            yield call, value


def _reads(found: Observations, function: FunctionType, instance: Any) -> Iterator[Any]:
    """Guard what one function reads; yield the values."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in _with_inner(function.__code__):
        own = code.co_varnames[0] if code is function.__code__ and instance is not None and code.co_argcount else None
        value: Any = MISSING
        for step in dis.get_instructions(code):
            name: Any = step.argval
            if "LOAD_FAST" in step.opname and isinstance(name, tuple):
                name = cast("tuple[str, ...]", name)[-1]  # newer Pythons load two in one step
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                value = _global(found, function.__globals__, name)
            elif step.opname in _FREE and name in cells:
                value = _cell(found, cells[name], name)
            elif "LOAD_FAST" in step.opname and name == own:
                value = instance
            elif step.opname in _ATTRIBUTE and value is not MISSING:
                value = _attribute(found, value, name)
            elif step.opname not in ("PUSH_NULL", "CACHE", "NOP", "EXTENDED_ARG"):
                value = MISSING
            if value is not MISSING:
                yield value


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _global(found: Observations, namespace: dict[str, Any], name: str) -> Any:
    value = namespace.get(name, MISSING)
    if value is not MISSING:
        found.look(found.root(namespace, "globals"), GLOBAL, name, value)
    return value


def _cell(found: Observations, cell: CellType, name: str) -> Any:
    value = CELL.get(cell, name)
    if value is not MISSING:
        found.look(found.root(cell, name), CELL, name, value)
    return value


def _attribute(found: Observations, value: Any, name: str) -> Any:
    place: Place | None = found.place_of(value)
    getter = getattr(type(value), name, None)
    if isinstance(getter, property):
        return MethodType(getter.fget, value) if type(getter.fget) is FunctionType else MISSING
    result = getattr(value, name, MISSING)
    if place is not None and result is not MISSING:
        if type(result) is MethodType and result.__self__ is value:
            found.read(place, METHOD, name, result.__func__)
        else:
            found.look(place, ATTRIBUTE, name, result)
    return result


def _is_users(function: FunctionType) -> bool:
    from hybridflow.tracing.convert.callee import is_users

    return is_users(function.__code__)

"""Find in a function's bytecode what it may read from outside.

This is for functions whose source cannot be found, or that must not be converted. Everything that the code names counts
as read: globals, closure cells, and attributes of these and of the method's instance. If such a value is stored in a
variable or passed to a call, everything inside it counts as read.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, cast

from hybridflow.guards.access import CELL, GLOBAL, MISSING
from hybridflow.guards.observations import Observations
from hybridflow.guards.reading import attribute, builtin, class_attribute

_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_NO_ARGUMENTS: Mapping[str, Any] = {}
_NOTHING = frozenset({"PUSH_NULL", "CACHE", "NOP", "EXTENDED_ARG", "PRECALL", "RESUME"})


def named_by(
    observations: Observations, function: FunctionType, given: Mapping[str, Any] = _NO_ARGUMENTS
) -> Iterator[Any]:
    """Guard everything that a function's code names; yield the values that it uses beyond reading attributes.

    Args:
        observations: the observations of the trace.
        function: the function.
        given: its arguments by name, as far as they are known.
    """
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for code in _with_inner(function.__code__):
        value: Any = MISSING
        for step in dis.get_instructions(code):
            if step.opname in _NOTHING:
                continue
            if step.opname in _ATTRIBUTE and value is not MISSING:
                value = _attribute(observations, value, step.argval)
                continue
            if value is not MISSING:
                yield value
            value = MISSING
            names = cast("tuple[str, ...]", step.argval if isinstance(step.argval, tuple) else (step.argval,))
            for name in names:  # newer Pythons load two variables in one step
                if value is not MISSING:
                    yield value
                value = _loaded(observations, function, step.opname, name, cells, given)


def _loaded(
    observations: Observations, function: FunctionType, step: str, name: Any, cells: dict[str, CellType],
    given: Mapping[str, Any],
) -> Any:
    """Return the value that an instruction loads if it comes from outside; else `MISSING`."""
    if step in ("LOAD_GLOBAL", "LOAD_NAME"):
        return _global(observations, function.__globals__, name)
    if step in _FREE and name in cells:
        value = CELL.get(cells[name], name)
        if value is not MISSING:
            observations.look(observations.root(cells[name], name), CELL, name, value)
        return value
    return given.get(name, MISSING) if "LOAD_FAST" in step or step in _FREE else MISSING


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)


def _global(observations: Observations, namespace: dict[str, Any], name: str) -> Any:
    value = namespace.get(name, MISSING)
    if value is not MISSING:
        observations.look(observations.root(namespace, "globals"), GLOBAL, name, value)
    else:
        value = getattr(builtins, name, MISSING)
        builtin(observations, namespace, name, value)
    return value


def _attribute(observations: Observations, value: Any, name: str) -> Any:
    getter = getattr(type(value), name, None)
    if isinstance(getter, property):
        class_attribute(observations, value, name)
        return MethodType(getter.fget, value) if isinstance(getter.fget, FunctionType) else getter
    result = getattr(value, name, MISSING)
    if result is not MISSING:
        attribute(observations, value, name, result, seen=False)
    return result

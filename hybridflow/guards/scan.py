"""Find in a function's bytecode what it may read from outside.

This is for functions whose source cannot be found, or that must not be converted. Everything that the code names counts
as read: globals, closure cells, and attributes of these and of the method's instance. If such a value is stored in a
variable or passed to a call, everything inside it counts as read.
"""

from __future__ import annotations

import builtins
import dis
import weakref
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from hybridflow.core.attached import attached
from hybridflow.guards.access import CELL, GLOBAL, IN_CLASS, MISSING, Access
from hybridflow.guards.observations import Observations
from hybridflow.guards.reading import attribute, builtin, class_attribute, module_of, named
from hybridflow.guards.users import is_users_class, is_users_module

_FREE = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
_NAMES = frozenset({"LOAD_GLOBAL", "LOAD_NAME"})
_ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORED = {"STORE_GLOBAL": GLOBAL, "DELETE_GLOBAL": GLOBAL, "STORE_DEREF": CELL, "DELETE_DEREF": CELL}
"""What a write changes: the value before it is guarded, so that a trace that changes it serves only its own call."""
_NO_ARGUMENTS: Mapping[str, Any] = {}
_NOTHING = frozenset({"PUSH_NULL", "CACHE", "NOP", "EXTENDED_ARG", "PRECALL", "RESUME"})
_steps: weakref.WeakKeyDictionary[CodeType, list[tuple[str, tuple[Any, ...]]]] = weakref.WeakKeyDictionary()


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
    value: Any = MISSING
    module: Any = MISSING
    for step, names in _steps_of(function.__code__):
        if step == "IMPORT_FROM":
            value = MISSING if module is MISSING else _attribute(observations, module, names[0])
            continue
        if step in _ATTRIBUTE and value is not MISSING:
            value = _attribute(observations, value, names[0])
            continue
        if value is not MISSING:
            yield value
        value = MISSING
        if step == "IMPORT_NAME":
            value = module = _imported(observations, names[0])
            continue
        if step in _STORED:
            _changed(observations, function, _STORED[step], names[0], cells)
            continue
        for name in names:  # newer Pythons load two variables in one step
            if value is not MISSING:
                yield value
            value = _loaded(observations, function, step, name, cells, given)
            named(observations, value)


def _steps_of(code: CodeType) -> list[tuple[str, tuple[Any, ...]]]:
    """Return the instructions of a function's code, and of the functions inside of it, with the names they use."""
    steps = _steps.get(code)
    if steps is None:
        steps = _steps[code] = []
        for one in _with_inner(code):
            for step in dis.get_instructions(one):
                if step.opname not in _NOTHING:
                    steps.append((step.opname, step.argval if isinstance(step.argval, tuple) else (step.argval,)))
            steps.append(("end", ()))
    return steps


def _changed(
    observations: Observations, function: FunctionType, access: Access, name: str, cells: dict[str, CellType]
) -> None:
    """Guard the value of a name that the code is about to change; a trace that restarts puts it back."""
    holder: Any = function.__globals__ if access is GLOBAL else cells.get(name)
    if holder is not None and (access is GLOBAL or not attached("is_own_variable")(function, name)):
        for journal in (observations.before, observations.stored_unseen):
            if access is GLOBAL:
                journal.item_of(holder, name)
            else:
                journal.cell(holder)
        label = "globals" if access is GLOBAL else name
        observations.look(observations.root(holder, label), access, name, access.get(holder, name))


def _imported(observations: Observations, name: str) -> Any:
    """Return the user's module that an import statement finds; else `MISSING`."""
    module = module_of(observations, name)
    return MISSING if module is None or module is MISSING or not is_users_module(module) else module


def _loaded(
    observations: Observations, function: FunctionType, step: str, name: Any, cells: dict[str, CellType],
    given: Mapping[str, Any],
) -> Any:
    """Return the value that an instruction loads if it comes from outside; else `MISSING`."""
    if step in _NAMES:
        value = _global(observations, function.__globals__, name)
        if value is globals or value is vars:
            observations.before.content(function.__globals__)
        return value
    if step in _FREE and name in cells:
        value = CELL.get(cells[name], name)
        if value is not MISSING and not attached("is_own_variable")(function, name):
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
    """Return an attribute that the code reads; the object itself if only the user's own code could tell what it is."""
    kind = type(value)
    getter = IN_CLASS.get(kind, name)
    is_object = not issubclass(kind, type | ModuleType)
    if is_object and (kind.__getattribute__ is not object.__getattribute__ or is_users_class(type(getter))):
        return value
    if isinstance(getter, property):
        class_attribute(observations, value, name)
        return MethodType(getter.fget, value) if isinstance(getter.fget, FunctionType) else getter
    result = getattr(value, name, MISSING)
    if result is not MISSING:
        attribute(observations, value, name, result, seen=False)
    return result

"""Notice the user's code that runs unconverted while a function is traced, and record all that it may read.

Converted code reports its own reads. Other code of the user's runs when Python or a library calls it: a callback, a
special method, a finalizer. An event tells when such a frame starts; before it runs, its arguments and all that its
code names count as read. What cannot be recorded makes the trace serve only its own call.

Python's monitoring gives the events for as long as a trace runs, and costs nothing after the first call of a library's
function. Python 3.11 has none: there the profiling hook gives them while a library's function runs (`guards.calls`),
as it would slow tracing down by half if it were always set.
"""

from __future__ import annotations

import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Generator
from contextlib import contextmanager
from types import BuiltinFunctionType, CellType, CodeType, FrameType, FunctionType
from typing import Any

from hybridflow.core.attached import attached
from hybridflow.core.functions import is_layers
from hybridflow.guards import observe, reading
from hybridflow.guards.access import IN_CLASS
from hybridflow.guards.observations import Observations
from hybridflow.guards.observe import current_observations
from hybridflow.guards.users import is_users, is_users_module_name

MONITORING: Any = getattr(sys, "monitoring", None)
"""Python's events of running code, from 3.12 on."""
_lock = threading.Lock()
_running = 0
_tool: int | None = None
_heard: dict[int, CodeType] = {}
"""The unconverted code whose calls give events too, until no trace runs, by id: code that reads alike is equal."""

_OF_NEW_CLASS = ("__init_subclass__", "__init__")
"""The hooks whose first argument is a class that Python is making; `__init__` if it is a metaclass's."""


@contextmanager
def noticing() -> Generator[None]:
    """Notice the user's unconverted code in a ``with`` block, in which a function is traced."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(change: int) -> None:
    """Count the traces that all threads are running; there are events while there is any."""
    global _running, _tool
    if MONITORING is None:
        return
    with _lock:
        _running += change
        if _running != max(change, 0):
            return
        if _tool is None:
            _tool = next(one for one in (4, 3, *range(6)) if MONITORING.get_tool(one) is None)
            MONITORING.use_tool_id(_tool, "hybridflow")
            MONITORING.register_callback(_tool, MONITORING.events.PY_START, _started)
            MONITORING.register_callback(_tool, MONITORING.events.CALL, _calls)
        MONITORING.set_events(_tool, MONITORING.events.PY_START if _running else 0)
        while _heard and not _running:
            MONITORING.set_local_events(_tool, _heard.popitem()[1], 0)


def _started(code: CodeType, offset: int) -> Any:
    """Receive the event that a code object starts to run."""
    frame = sys._getframe(1)
    if not is_unconverted(frame):
        return MONITORING.DISABLE
    notice(frame)
    if id(code) not in _heard:
        _heard[id(code)] = code
        MONITORING.set_local_events(_tool, code, MONITORING.events.CALL)
    return None


def _calls(code: CodeType, offset: int, function: Any, first: Any) -> None:
    """Receive the event that unconverted code calls a function. A method comes unbound, before its object."""
    if first is MONITORING.MISSING:
        calls(function, ())
    elif hasattr(function, "__get__") and IN_CLASS.get(type(first), getattr(function, "__name__", "")) is function:
        calls(function.__get__(first), ())
    else:
        calls(function, (first,))


def is_unconverted(frame: FrameType) -> bool:
    """Whether a frame runs code of the user's that is not converted."""
    code = frame.f_code
    if not is_users(code) or attached("is_converted")(code):
        return False
    module = str(frame.f_globals.get("__name__"))
    if is_layers(module):
        return False
    generated = code.co_filename.startswith("<")  # also by a library: the methods of named tuples and dataclasses
    return not generated or (is_users_module_name(module) and not module.startswith("namedtuple_"))


def notice(frame: FrameType) -> None:
    """Record all that the user's code in a frame that starts may read, if the frame is part of a trace."""
    observations, _ = current_observations()
    code = frame.f_code
    if observations is None or code.co_name == "<module>":  # an import runs once, in eager code too
        return
    given = frame.f_locals
    extra = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + extra]
    arguments = {name: given[name] for name in names if name in given}
    made = next(iter(arguments.values()), None)
    if code.co_name in _OF_NEW_CLASS and isinstance(made, type):
        observations.made_here(made)
    cells = [given[name] for name in code.co_freevars if name in given]
    if observations.is_new_frame(code, frame.f_globals, (*arguments.values(), *cells)):
        for function in _functions_of(observations, frame, given):
            reading.runs_with(observations, function, arguments)
            named = () if MONITORING is not None else attached("named_by")(observations, function, arguments)
            for value in named:  # the profiling hook tells only of calls of functions written in C
                if type(value) is not BuiltinFunctionType and callable(value):
                    calls(value, ())


def calls(function: Any, args: tuple[Any, ...]) -> None:
    """Record a call that unconverted code makes, if its result may be another one next time."""
    observations, nested = current_observations()
    if observations is not None:
        observations.calls_unseen(function, args, nested=nested)


def _functions_of(observations: Observations, frame: FrameType, given: Any) -> list[FunctionType]:
    """Return the function that a frame runs; those that it may be, if the closures of several hold the same.

    The defaults of all functions of its code are recorded when the first frame runs. To find the functions takes as
    long as the process has objects, so those that were found are looked through first.
    """
    code = frame.f_code
    free = [name for name in code.co_freevars if name != "__class__"]
    first = observations.runs_first(code)
    if first and (free or code.co_argcount or code.co_kwonlyargcount):
        for one in _found(observations, code):
            observe.called(one)
    if free:
        known = [one for one in (found() for found in observations.functions.get(id(code), ())) if one is not None]
        held = [one for one in known if all(_holds(one, name, given) for name in free)]
        if held or first:
            return held
        return [one for one in _found(observations, code) if all(_holds(one, name, given) for name in free)]
    return [FunctionType(code, frame.f_globals, code.co_name, None, tuple([CellType() for _ in code.co_freevars]))]


def _found(observations: Observations, code: CodeType) -> list[FunctionType]:
    """Return all functions of a code object, and remember them without keeping them alive."""
    functions = [one for one in gc.get_referrers(code) if type(one) is FunctionType and one.__code__ is code]
    observations.functions[id(code)] = [weakref.ref(one) for one in functions]
    return functions


def _holds(function: FunctionType, name: str, given: Any) -> bool:
    cell = (function.__closure__ or ())[function.__code__.co_freevars.index(name)]
    try:
        return cell.cell_contents is given[name]
    except (ValueError, KeyError):
        return name not in given

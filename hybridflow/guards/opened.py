"""Notice through Python's profiling hook when a library asks the system or calls the user's code."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType, FunctionType, MethodType
from typing import Any

from hybridflow.guards import noticed
from hybridflow.guards.moving import calls_the_system
from hybridflow.guards.users import OWN_LIBRARIES

_KEPT = frozenset({"putenv", "unsetenv"})
"""The functions by which a library changes what Python holds too."""
_DATABASES = ("_sqlite3",)
"""Modules written in C whose functions open files themselves."""
_FOR_ITSELF = ("importlib", "linecache", "logging", "warnings", "traceback", "inspect", "zipimport")
"""Modules that read files for their own purposes (source lines, imports, logs), not to give values to the caller."""


def is_watched(function: Any) -> bool:
    """Whether a function is one of a library's, written in Python, which may open files unseen."""
    called = function.__func__ if type(function) is MethodType else function
    called = getattr(called, "__init__", None) if isinstance(called, type) else called
    if type(called) is not FunctionType and not hasattr(called, "__wrapped__"):
        return False
    module = str(getattr(called, "__module__", None))
    return module.partition(".")[0] not in (*OWN_LIBRARIES, *_FOR_ITSELF)


@contextmanager
def opened(asks: Callable[[str], None]) -> Generator[None]:
    """Tell of functions that ask the system in a ``with`` block; before Python 3.12, notice the user's code.

    Args:
        asks: is called with the name of each such function before that runs.

    A user's profiler goes on, unless it is written in C: then nothing is collected.
    """
    before: Any = sys.getprofile()

    def heard(frame: FrameType, event: str, called: Any) -> None:
        if before is not None:
            before(frame, event, called)
        if event == "c_call":
            if _asks(called) and not _is_for_itself(frame):
                asks(called.__name__)
            if noticed.MONITORING is None and noticed.is_unconverted(frame):
                noticed.calls(called, ())
        elif event == "call" and noticed.MONITORING is None and noticed.is_unconverted(frame):
            noticed.notice(frame)

    if before is not None and not callable(before):
        yield
        return
    sys.setprofile(heard)
    try:
        yield
    finally:
        sys.setprofile(before)


def _asks(function: Any) -> bool:
    """Whether a function written in C goes to the system."""
    if function is builtins.open or (function.__module__ in _DATABASES and function.__name__ == "connect"):
        return True
    return calls_the_system(function) and function.__name__ not in _KEPT


def _is_for_itself(frame: FrameType | None) -> bool:
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] in (*_FOR_ITSELF, "hybridflow"):
            return not module.startswith("hybridflow.")
        frame = frame.f_back
    return False

"""Tracebacks with the user's files and lines only, without those of hybridflow and jax."""

from __future__ import annotations

import os
import sys
from types import TracebackType

import jax

from hybridflow.core.errors import HybridflowError
from hybridflow.core.out_of_memory import explained, ran_out
from hybridflow.core.settings import SETTINGS

_HIDDEN = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep
    for file in (os.path.dirname(os.path.abspath(__file__)), jax.__file__)
)


def trimmed(error: Exception) -> Exception:
    """Return an error with only the user's lines in its traceback and in those of its causes.

    Errors that are no causes, and were handled without a line of the user's, are left out. jax's and NumPy's errors
    for memory that ran out become an `OutOfMemoryError`.
    """
    if ran_out(error) and type(error).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy"):
        error = explained("a compiled call", error).with_traceback(error.__traceback__)
    if not SETTINGS.full_tracebacks:
        seen: set[int] = set()
        one: BaseException | None = error
        while one is not None and id(one) not in seen:
            seen.add(id(one))
            _trim(one)
            one = one.__cause__ or one.__context__
    return error


def trim_what_nobody_catches() -> None:
    """Show errors of hybridflow that end a program with the user's lines only, as notebooks show them."""
    shown = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        if isinstance(error, HybridflowError):
            traceback = trimmed(error).__traceback__
        shown(kind, error, traceback)

    sys.excepthook = show


def trim_on_the_way(error: BaseException | None) -> None:
    """Leave the user's lines only in the traceback of an error that the user's code is about to see, unless it is long.

    In a recursion each level may look at it. What makes a trace start again is no `Exception`, and keeps its frames.
    """
    if SETTINGS.full_tracebacks or not isinstance(error, Exception):
        return
    if not (_is_long(error) or _is_long(error.__context__)):
        _trim(error)


def _trim(error: BaseException) -> None:
    error.__traceback__ = _users(error.__traceback__)
    handled = error.__context__
    if handled is not None and is_hidden(handled):
        error.__suppress_context__ = True


def _is_long(error: BaseException | None) -> bool:
    traceback = None if error is None else error.__traceback__
    for _ in range(_LONG):
        if traceback is None:
            return False
        traceback = traceback.tb_next
    return True


_LONG = 200
"""The number of frames of a traceback that is long."""


def is_hidden(handled: BaseException) -> bool:
    """Whether an exception was raised and handled without a line of the user's."""
    return handled.__traceback__ is not None and _users(handled.__traceback__) is None


def _users(traceback: TracebackType | None) -> TracebackType | None:
    kept: list[TracebackType] = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_HIDDEN):
            kept.append(traceback)
        traceback = traceback.tb_next
    chain: TracebackType | None = None
    for one in reversed(kept):
        chain = TracebackType(chain, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return chain

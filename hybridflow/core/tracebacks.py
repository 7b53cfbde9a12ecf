"""Tracebacks with the user's files and lines only, without those of hybridflow and jax."""

from __future__ import annotations

import os
from types import TracebackType

import jax

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
            one.__traceback__ = _users(one.__traceback__)
            handled = one.__context__
            if handled is not None and is_hidden(handled):
                one.__suppress_context__ = True
            one = one.__cause__ or handled
    return error


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

"""NumPy on the host: kernels run without warnings and without touching the user's error state."""

from __future__ import annotations

import contextvars
import ctypes
import platform
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


def quiet_runner() -> Callable[..., Any]:
    """Return a function ``run(kernel, *args)`` in which NumPy ignores floating-point errors.

    Entering a copied context whose error state was set once costs 0.01 us; `numpy.errstate` costs 0.5 us.
    A context cannot be entered twice, so a runner belongs to one thread and kernels never call back into users' code.
    """
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    return context.run


def keep_freed_memory() -> None:
    """Let the C library keep what arrays free for the next ones, where it would return it to the system every time.

    glibc returns freed memory above a threshold, and what takes its place is mapped page by page again: an eager LSTM
    step of 30 MB spent a third of its time on that. The threshold adapts to the largest block that was freed, so one
    block near the limit (32 MB), which is never touched, does what a program's first large array would.
    """
    np.empty((32 << 20) - (64 << 10), np.uint8)


keep_freed_memory()


class _Local(threading.local):
    """One quiet runner per thread."""

    run: Callable[..., Any]

    def __init__(self) -> None:
        super().__init__()
        self.run = quiet_runner()


LOCAL = _Local()
"""`LOCAL.run(kernel, *args)` runs a NumPy kernel quietly in this thread."""

RUNNER: contextvars.ContextVar[Callable[..., Any] | None] = contextvars.ContextVar("hybridflow runner", default=None)
"""The thread's runner again, where it is found three times as fast: ``(runner_now() or runner())(kernel, *args)``.

A context that another thread copied names that thread's runner. If both run a kernel at the same moment, one of them
gets a RuntimeError, and takes the way through `run_quietly`.
"""

runner_now = RUNNER.get  # bound once, as `context_now`


def runner() -> Callable[..., Any]:
    """Return this thread's runner, which its context names from now on."""
    RUNNER.set(LOCAL.run)
    return LOCAL.run


def run_quietly(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a kernel quietly even where this thread's runner is already entered: inside a gradient's walk."""
    try:
        return LOCAL.run(kernel, *args, **kwargs)
    except RuntimeError as error:
        if "cannot enter context" not in str(error):
            raise
    return quiet_runner()(kernel, *args, **kwargs)


_FLUSHES = 0x8040
"""Two bits of the control word of x86-64's vector unit: subnormal results become 0, subnormal operands count as 0."""


class _FloatingPoint(ctypes.Structure):
    """The C library's `fenv_t` on x86-64: seven words of the old unit, and the control word of the vector unit."""

    _fields_ = (("old_unit", ctypes.c_uint32 * 7), ("control", ctypes.c_uint32))


@cache
def _environment_functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the C library's functions to get and set a thread's floating-point environment, where they are known."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return None
    library = ctypes.CDLL("libm.so.6")
    return library.fegetenv, library.fesetenv


def can_flush_subnormals() -> bool:
    """Whether `subnormals_flushed` works on this machine."""
    return _environment_functions() is not None


@contextmanager
def subnormals_flushed() -> Generator[None, None, None]:
    """Compute with subnormal numbers as zero in this thread, as XLA's threads do, inside a ``with`` block."""
    functions = _environment_functions()
    assert functions is not None, "ask can_flush_subnormals first"
    get, put = functions
    before, inside = _FloatingPoint(), _FloatingPoint()
    get(ctypes.byref(before))
    get(ctypes.byref(inside))
    inside.control |= _FLUSHES
    put(ctypes.byref(inside))
    try:
        yield
    finally:
        put(ctypes.byref(before))

"""NumPy on the host: run kernels without warnings and without changing the user's error state."""

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

ALIGNED = 64
"""The alignment of an array, in bytes, that XLA uses without a copy."""


def quiet_runner() -> Callable[..., Any]:
    """Return a function ``run(kernel, *args)`` in which NumPy ignores floating-point errors.

    It enters a copied context whose error state was set once, which is much cheaper than `numpy.errstate`.
    A context cannot be entered twice, so a runner belongs to one thread and kernels never call back into users' code.
    """
    context = contextvars.copy_context()
    context.run(np.seterr, all="ignore")
    return context.run


def keep_freed_memory() -> None:
    """Make the C library keep freed memory for the next arrays, instead of returning it to the system.

    glibc returns freed blocks above a threshold, and new arrays are then mapped page by page again, which takes a
    large part of the time of an eager training step. The threshold adapts to the largest freed block, so allocating
    and freeing one block near its limit (32 MB) raises it. The block's memory is never touched.
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
"""The thread's runner, in a context variable, which is faster to read: ``(runner_now() or runner())(kernel, *args)``.

A context copied from another thread holds that thread's runner. If both threads run a kernel at the same moment, one
of them gets a RuntimeError, and falls back to `run_quietly`.
"""

runner_now = RUNNER.get  # bound once, like `context_now`


def runner() -> Callable[..., Any]:
    """Return this thread's runner, and store it in the context."""
    RUNNER.set(LOCAL.run)
    return LOCAL.run


def run_quietly(kernel: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run a kernel quietly, even if this thread's runner is already entered, as inside a gradient's walk."""
    try:
        return LOCAL.run(kernel, *args, **kwargs)
    except RuntimeError as error:
        if "cannot enter context" not in str(error):
            raise
    return quiet_runner()(kernel, *args, **kwargs)


_FLUSHES = 0x8040
"""Two bits of x86-64's vector control word (MXCSR): subnormal results become 0, subnormal operands count as 0."""


class _FloatingPoint(ctypes.Structure):
    """The C library's `fenv_t` on x86-64: seven words of the x87 unit, then the vector unit's control word."""

    _fields_ = (("old_unit", ctypes.c_uint32 * 7), ("control", ctypes.c_uint32))


@cache
def _environment_functions() -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Return the C library's functions that get and set a thread's floating-point environment, or None."""
    if sys.platform != "linux" or platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return None
    library = ctypes.CDLL("libm.so.6")
    return library.fegetenv, library.fesetenv


def can_flush_subnormals() -> bool:
    """Whether `subnormals_flushed` works on this machine."""
    return _environment_functions() is not None


@contextmanager
def subnormals_flushed() -> Generator[None, None, None]:
    """Treat subnormal numbers as zero in this thread inside a ``with`` block, as XLA's threads do."""
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

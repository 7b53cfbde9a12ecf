"""When memory is given back: by Python's garbage collector, and by the C library."""

from __future__ import annotations

import ctypes
import gc
import mmap
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import numpy as np


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause Python's garbage collector inside a ``with`` block, while a graph is built or changed.

    On a large graph it would take most of the time, walking over the heap again and again, and find no garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_MANY = 1_000_000
"""More allocations than an import makes; they are not garbage, so the collector need not look at them."""
_BY_PYTHON = 1_000
"""More objects than Python 3.12 freezes when it starts, and fewer than any program has when it freezes them itself."""


def rare_collections() -> Callable[[], None]:
    """Make collections rare, and return the function that undoes this.

    ``import jax`` makes so many objects that a large part of its time would go into collections. If the import fails,
    the collector still works.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY, *before[1:])
    during = gc.get_threshold()

    def back() -> None:
        if gc.get_freeze_count() < _BY_PYTHON:  # keep objects frozen that others froze
            gc.freeze()
            gc.unfreeze()  # make the import's objects old, so that the next collection does not visit them
        if gc.get_threshold() == during:
            gc.set_threshold(*before)

    return back


def return_free_memory() -> None:
    """Give back to the system the memory that the C library keeps after it was freed.

    Compiling a model, and moving its weights from the host to XLA, leave as much as the weights and moments take
    together, in gaps that nothing larger fits into. Where the library is not glibc, nothing happens.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def return_file(array: np.ndarray[Any, Any]) -> None:
    """Give back the memory of a file that is mapped into memory, if an array is a view of it.

    What is used again is read again. Where the system cannot do that, nothing happens.
    """
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    if isinstance(base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        base.madvise(mmap.MADV_DONTNEED)

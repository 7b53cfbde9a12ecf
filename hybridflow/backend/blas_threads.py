"""Control of OpenBLAS's number of threads; NumPy's and SciPy's wheels each contain their own OpenBLAS.

The caller of a product waits for all of its threads. On a busy machine, other programs may hold their cores for
milliseconds, for a product of tens of microseconds. The number of threads also changes the rounding of some products.
So the code that computes products sets the number itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from _thread import allocate_lock
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

_SYMBOLS = ("scipy_openblas_{}_num_threads64_", "scipy_openblas_{}_num_threads", "openblas_{}_num_threads64_",
            "openblas_{}_num_threads")
_FOLDERS = ("{}.libs", "{}/.dylibs")
"""The folders where a wheel keeps its libraries: beside the package, or inside it."""


class OneThread:
    """A ``with`` block in which one library computes products only in the calling thread.

    Blocks of several threads may overlap; the end of the last one restores the number of threads.

    Args:
        get, put: the library's functions that return and change its number of threads, for the whole process.
    """

    __slots__ = ("_before", "_get", "_inside", "_lock", "_put")

    def __init__(self, get: Callable[[], int], put: Callable[[int], object]) -> None:
        self._get, self._put = get, put
        self._lock = allocate_lock()
        self._inside, self._before = 0, 1

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._before = self._get()
                if self._before != 1:
                    self._put(1)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._before != 1:
                self._put(self._before)

    def threads(self) -> int:
        """Return the number of threads that products use outside such blocks."""
        with self._lock:
            return self._before if self._inside else self._get()

    def forget(self) -> None:
        """Leave all blocks in a forked process, where the threads inside them do not exist."""
        self._lock = allocate_lock()
        if self._inside and self._before != 1:
            self._put(self._before)
        self._inside = 0


@cache
def one_thread(package: str) -> OneThread | None:
    """Return the block for the OpenBLAS in a package's wheel, or None if it has another library or none.

    Args:
        package: ``"numpy"`` or ``"scipy"``.

    Example:
        >>> import numpy as np
        >>> from contextlib import nullcontext
        >>> with one_thread("numpy") or nullcontext():
        ...     float(np.matmul(np.ones((2, 300)), np.ones((300, 2)))[0, 0])
        300.0
    """
    for library in map(str, libraries(package)):
        # `PyDLL` keeps the interpreter's lock: releasing it would take longer than the calls.
        loaded = ctypes.PyDLL(library)
        for symbol in _SYMBOLS:
            get: Any = getattr(loaded, symbol.format("get"), None)
            put: Any = getattr(loaded, symbol.format("set"), None)
            if get is not None and put is not None:
                get.argtypes, get.restype = (), ctypes.c_int
                put.argtypes, put.restype = (ctypes.c_int,), None
                block = OneThread(get, put)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=block.forget)
                return block
    return None


def libraries(package: str) -> list[Path]:
    """Return the files of the OpenBLAS in a package's wheel."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    around = Path(spec.origin).parent.parent
    return sorted(path for folder in _FOLDERS for path in (around / folder.format(package)).glob("*openblas*"))

"""OpenBLAS's number of threads: NumPy's wheels bring an OpenBLAS of their own, and SciPy's another one.

Its threads wait for work in a loop, and whoever gave them work waits for all of them: on a busy machine that is as long
as the system gives their core to other programs, milliseconds for a product of tens of microseconds. And how many
there are changes the bits of some products. So what computes with them says how many it wants.
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
            "openblas_{}_num_threads")  # fmt: skip
_FOLDERS = ("{}.libs", "{}/.dylibs")
"""Where a wheel keeps the libraries it brings: beside the package, or inside."""


class OneThread:
    """While a ``with`` block runs, products of one library take the thread that asks for them, and no other.

    Blocks of several threads may overlap; the number that was there before the first comes back after the last.

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
        """Return how many threads products take outside of such blocks."""
        with self._lock:
            return self._before if self._inside else self._get()

    def forget(self) -> None:
        """Leave all blocks in a forked process, in which the threads that are inside do not go on."""
        self._lock = allocate_lock()
        if self._inside and self._before != 1:
            self._put(self._before)
        self._inside = 0


@cache
def one_thread(package: str) -> OneThread | None:
    """Return the block for the OpenBLAS that a package's wheel brings; None if it brings another library, or none.

    Args:
        package: ``"numpy"`` or ``"scipy"``.

    Example:
        >>> import numpy as np
        >>> from contextlib import nullcontext
        >>> with one_thread("numpy") or nullcontext():
        ...     float(np.matmul(np.ones((2, 300)), np.ones((300, 2)))[0, 0])
        300.0
    """
    for library in map(str, _libraries(package)):
        # `PyDLL` keeps the interpreter's lock: the calls take less time than it takes to let it go.
        loaded = ctypes.PyDLL(library)
        for symbol in _SYMBOLS:
            get: Any = getattr(loaded, symbol.format("get"), None)
            put: Any = getattr(loaded, symbol.format("set"), None)
            if get is not None and put is not None:
                get.argtypes, get.restype = (), ctypes.c_int
                put.argtypes, put.restype = (ctypes.c_int,), None
                found = OneThread(get, put)
                if hasattr(os, "register_at_fork"):
                    os.register_at_fork(after_in_child=found.forget)
                return found
    return None


def _libraries(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return []
    around = Path(spec.origin).parent.parent
    return sorted(path for folder in _FOLDERS for path in (around / folder.format(package)).glob("*openblas*"))

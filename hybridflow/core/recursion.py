"""Python's limit of recursion while functions are traced."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

_USUAL_STACK = 8 << 20
_CALLS_PER_CALL = 8
"""The most calls of Python that a call of the user's takes while it is traced; 6 were seen (`for`, `map`, `sorted`)."""
_BYTES_PER_CALL = 1 << 10
"""The bytes of the stack that a call of Python takes at most, in C; less than 256 were seen, without a branch."""


class _Recursion:
    """Raises Python's limit of recursion while functions are traced: a call of the user's then takes several.

    The limit is one for all threads. So the last trace to end puts it back.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces = 0
        self._before = 0
        self._raised = 0

    @property
    def limit(self) -> int:
        """The limit as the user's code knows it."""
        limit = sys.getrecursionlimit()
        return self._before if self._traces and limit == self._raised else limit

    @contextmanager
    def deeper(self) -> Generator[None]:
        """Trace a function with a limit at which calls inside each other are as many as in eager mode, or more."""
        with self._lock:
            if self._traces == 0:
                self._before = self._raised = sys.getrecursionlimit()
            self._traces += 1
            wanted = max(self._before, min(self._before * _CALLS_PER_CALL, _stack_bytes() // _BYTES_PER_CALL))
            wanted = wanted if self._traces == 1 else min(wanted, self._raised)
            self._set(wanted)
        try:
            yield
        finally:
            with self._lock:
                self._traces -= 1
                if self._traces == 0:
                    self._set(self._before)

    def _set(self, limit: int) -> None:
        """Set the limit, unless the user's code has set another one meanwhile."""
        if sys.getrecursionlimit() == self._raised:
            sys.setrecursionlimit(limit)
            self._raised = limit


def _stack_bytes() -> int:
    """Return the size of the current thread's stack, which C code uses."""
    chosen = threading.stack_size()
    if chosen and threading.current_thread() is not threading.main_thread():
        return chosen
    try:
        resource = importlib.import_module("resource")
    except ImportError:  # not on Windows, where stacks are small
        return 0
    size = resource.getrlimit(resource.RLIMIT_STACK)[0]
    return _USUAL_STACK if size == resource.RLIM_INFINITY else size


RECURSION = _Recursion()

"""The process-wide switches behind `hf.config`."""

from __future__ import annotations

import os
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from hybridflow.core.errors import ArgumentError, ArgumentTypeError

LOADED = time.time()
"""The time when this process loaded the package, in seconds since the epoch."""


class Observer(Protocol):
    """An object that is told of every call of a module while it is in `Settings.observers`."""

    name: str
    """What it is, for the reasons of traces."""

    def around(self, module: Any) -> AbstractContextManager[Any]:
        """Return the context in which a module is called."""
        ...

    def result(self, path: str, module: Any, value: Any) -> None:
        """Look at what a module, or a function in one, returned."""
        ...

    def asked(self, tape: Any) -> list[Any]:
        """Return the tensors whose gradients it wants when a tape is asked for gradients of a value."""
        ...

    def answered(self, gradients: list[Any]) -> None:
        """Take the gradients that it asked for last; None for those that no path reaches."""
        ...


class Settings:
    """The settings of `hf.config`.

    Attributes:
        eager: whether compiled functions run op by op.
        checks: whether compiled functions check values at run time, such as indices.
        full_tracebacks: whether tracebacks show hybridflow's own lines too.
        cache_dir: the folder of the store of executables; True takes the environment's, False turns the store off.
        cache_bytes: the size limit of the store; None takes the environment's.
        matmul_precision: what XLA may round the factors of float32 products to: ``highest``, ``high`` or ``default``.
        observers: what is told of every call of a module: see `Observer`. Compiled functions have traces of their own
            for each set of observers.
        verify: every how many calls a compiled call is verified; None for never.
        diverts: whether compiled calls may have to run as Python, in this or another thread, or to be verified.
        plain: whether a call on the fast path needs no special treatment.
    """

    __slots__ = (
        "_can_run", "_reruns", "cache_bytes", "cache_dir", "checks", "diverts", "eager", "full_tracebacks",
        "matmul_precision", "observers", "plain", "verify",
    )

    def __init__(self) -> None:
        self.eager = False
        self.checks = True
        self.full_tracebacks = False
        self.matmul_precision = "highest"
        self.observers: tuple[Observer, ...] = ()
        self._can_run = True
        self._reruns = 0
        self.cache_dir: Path | bool = True
        self.cache_bytes: int | None = None
        self.verify = _verify_of(os.environ.get("HYBRIDFLOW_VERIFY", ""))
        self._decide()

    def set(self, name: str, flag: Any) -> None:
        """Change a switch."""
        setattr(self, name, flag)
        self._decide()

    def forbid_runs(self) -> None:
        """Turn the fast path of calls off, since executables cannot run in this process."""
        self._can_run = False
        self._decide()

    def rerun(self, count: int) -> None:
        """Note that one more verified call is run as Python (1), or one less (-1)."""
        with _RERUNS:
            self._reruns += count
            self._decide()

    def _decide(self) -> None:
        self.diverts = self.eager or self.verify is not None or self._reruns > 0
        usual = self.checks and self.matmul_precision == "highest" and not self.observers
        self.plain = usual and not self.diverts and self._can_run  # the only setting that the fast path reads


def check_every(name: str, every: Any) -> int:
    """Return every how many calls something happens.

    Raises:
        ArgumentTypeError: it is no integer.
        ArgumentError: it is below 1.
    """
    if type(every) is not int:
        raise ArgumentTypeError(f"{name}: every how many calls is an integer", got=repr(every), hint="Pass 1 or more.")
    if every < 1:
        raise ArgumentError(f"{name}: every {every} calls, which is less than 1",
                            hint="Pass 1 or more, or None for never.")
    return every


def _verify_of(text: str) -> int | None:
    """Return what ``HYBRIDFLOW_VERIFY`` says.

    Raises:
        ArgumentError: it is no number, or it is below 1.
    """
    if text in ("", "off"):
        return None
    if not text.isdecimal() or not int(text):
        raise ArgumentError(f"HYBRIDFLOW_VERIFY={text!r} does not say every how many calls are verified",
                            hint="Set it to a number from 1 on, such as 100, or to 'off'.")
    return int(text)


_RERUNS = threading.Lock()
SETTINGS = Settings()

"""The process-wide switches behind `hf.config`."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

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
        full_tracebacks: whether errors of compiled calls show hybridflow's own lines too.
        cache_dir: the folder of the store of executables; True takes the environment's, False turns the store off.
        cache_bytes: the size limit of the store; None takes the environment's.
        matmul_precision: what XLA may round the factors of float32 products to: ``highest``, ``high`` or ``default``.
        observers: what is told of every call of a module: see `Observer`. Compiled functions have traces of their own
            for each set of observers.
        plain: whether a call on the fast path needs no special treatment.
    """

    __slots__ = (
        "_can_run", "cache_bytes", "cache_dir", "checks", "eager", "full_tracebacks", "matmul_precision", "observers",
        "plain",
    )  # fmt: skip

    def __init__(self) -> None:
        self.eager = False
        self.checks = True
        self.full_tracebacks = False
        self.matmul_precision = "highest"
        self.observers: tuple[Observer, ...] = ()
        self.plain = True
        self._can_run = True
        self.cache_dir: Path | bool = True
        self.cache_bytes: int | None = None

    def set(self, name: str, flag: Any) -> None:
        """Change a switch."""
        setattr(self, name, flag)
        self._decide()

    def forbid_runs(self) -> None:
        """Turn the fast path of calls off, since executables cannot run in this process."""
        self._can_run = False
        self._decide()

    def _decide(self) -> None:
        usual = self.checks and self.matmul_precision == "highest" and not self.observers
        self.plain = usual and not self.eager and self._can_run  # the only setting that the fast path reads


SETTINGS = Settings()

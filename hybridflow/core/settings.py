"""The process-wide switches behind `hf.config`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

LOADED = time.time()
"""The time when this process loaded the package, in seconds since the epoch."""


class Settings:
    """The settings of `hf.config`.

    Attributes:
        eager: whether compiled functions run op by op.
        checks: whether compiled functions check values at run time, such as indices.
        full_tracebacks: whether errors of compiled calls show hybridflow's own lines too.
        cache_dir: the folder of the store of executables; True takes the environment's, False turns the store off.
        cache_bytes: the size limit of the store; None takes the environment's.
        matmul_precision: what XLA may round the factors of float32 products to: ``highest``, ``high`` or ``default``.
        plain: whether a call on the fast path needs no special treatment.
    """

    __slots__ = (
        "_can_run", "cache_bytes", "cache_dir", "checks", "eager", "full_tracebacks", "matmul_precision", "plain",
    )  # fmt: skip

    def __init__(self) -> None:
        self.eager = False
        self.checks = True
        self.full_tracebacks = False
        self.matmul_precision = "highest"
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
        usual = self.checks and self.matmul_precision == "highest"
        self.plain = usual and not self.eager and self._can_run  # the only setting that the fast path reads


SETTINGS = Settings()

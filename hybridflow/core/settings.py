"""The process-wide switches behind `hf.config`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

LOADED = time.time()
"""When this process loaded the package, in seconds since the epoch."""


class Settings:
    """What `hf.config` has set.

    Attributes:
        eager: compiled functions run op by op.
        checks: compiled functions check what only values can tell, such as indices.
        full_tracebacks: errors of compiled calls show hybridflow's own lines too.
        cache_dir: where the store of executables is; True: where the environment says; False: nowhere.
        cache_bytes: how large that may become; None: as the environment says.
        plain: a call on the fast path may run as it is.
    """

    __slots__ = ("_can_run", "cache_bytes", "cache_dir", "checks", "eager", "full_tracebacks", "plain")

    def __init__(self) -> None:
        self.eager = False
        self.checks = True
        self.full_tracebacks = False
        self.plain = True
        self._can_run = True
        self.cache_dir: Path | bool = True
        self.cache_bytes: int | None = None

    def set(self, name: str, flag: Any) -> None:
        """Change a switch."""
        setattr(self, name, flag)
        self._decide()

    def forbid_runs(self) -> None:
        """Have no call on the fast path run any more: what is compiled cannot run in this process."""
        self._can_run = False
        self._decide()

    def _decide(self) -> None:
        self.plain = self.checks and not self.eager and self._can_run  # the one thing that the fast path asks


SETTINGS = Settings()

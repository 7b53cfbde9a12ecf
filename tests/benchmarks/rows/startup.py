"""Importing, in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

from ..registry import Case, row


def importing(module: str) -> Callable[[], float]:
    """Return a function that imports a module in a new process and returns the seconds it took there."""
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"

    def call() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        return float(done.stdout)

    return call


@row("import", aims={"jax": 1.15})
def import_time(case: Case) -> None:
    case.ours(importing("hybridflow"), self_timed=True)
    case.peer("jax", importing("jax"), self_timed=True)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        del put
        return importing(torch.__name__), {"self_timed": True}

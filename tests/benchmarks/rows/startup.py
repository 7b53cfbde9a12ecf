"""Imports and first calls, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from ..registry import Case, row


def importing(module: str, bytecode: str) -> Callable[[], float]:
    """Return a function that imports a module in a new process and returns the seconds it took there.

    Args:
        module: the module.
        bytecode: a directory for compiled modules. As usual, every import but the first finds them there.
    """
    code = f"import time; start = time.perf_counter(); import {module}; print(time.perf_counter() - start)"
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}

    def call() -> float:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        return float(done.stdout)

    call()
    return call


@row("import", aims={"jax": 1.15})
def import_time(case: Case) -> None:
    bytecode = case.enter(tempfile.TemporaryDirectory())
    case.ours(importing("hybridflow", bytecode), self_timed=True)
    case.peer("jax", importing("jax", bytecode), self_timed=True)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        del put
        return importing(torch.__name__, bytecode), {"self_timed": True}


FIRST_CALL = """
import sys, time
from tests.benchmarks.registry import Case
from tests.benchmarks.rows.transformer import Data, Ours
import hybridflow as hf
hf.config.cache(sys.argv[1])
model = Ours(Data(Case(sys.argv[2] == "True", {}), int(sys.argv[3])))
hf.compile(lambda x: x + 1)(1.0)
start = time.perf_counter()
model.step().item()
print(time.perf_counter() - start)
"""
"""A program that times the first call of a transformer's step, without the imports and the start of XLA."""


def first_call(case: Case, directory: str, layers: int) -> float:
    """Return the seconds that the first call takes in a new process, with a directory as the store of executables."""
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, directory, str(case.smoke), str(layers)],
        capture_output=True, text=True, check=True,
    )
    return float(done.stdout)


@row("24-layer transformer, Python loop, SGD step: first call, second process", aims={"first process": 0.25})
def warm_start(case: Case) -> None:
    layers = case.size(24, 1)
    kept = case.enter(tempfile.TemporaryDirectory())
    first_call(case, kept, layers)
    case.ours(lambda: first_call(case, kept, layers), self_timed=True)

    def cold() -> float:
        with tempfile.TemporaryDirectory() as directory:
            return first_call(case, directory, layers)

    case.peer("first process", cold, self_timed=True)

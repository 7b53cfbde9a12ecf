"""Eager steps while other programs spin on all cores, where waiting for another thread takes long."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

from ..registry import Case, row
from .lstm import lstm_eager
from .mlp import mlp_eager
from .transformer import block_eager

_SPIN = "import os, time\nparent = os.getppid()\nwhile os.getppid() == parent:\n    end = time.time() + 1\n" \
    "    while time.time() < end: pass"
"""A program that spins until its parent is gone, so that it ends even if the parent is killed."""


@contextmanager
def spinning() -> Generator[None]:
    """Return a context in which one program spins per core that this process may use."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    programs = [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            program.wait()


@row("MLP step, eager, all cores busy with other programs", aims={"torch": 1.2})
def mlp_busy(case: Case) -> None:
    mlp_eager(case)
    case.enter(spinning())


@row("transformer block, eager, all cores busy with other programs", aims={"torch": 1.2})
def block_busy(case: Case) -> None:
    block_eager(case)
    case.enter(spinning())


@row("LSTM, eager, all cores busy with other programs", aims={"torch.nn.LSTMCell": 1.2})
def lstm_busy(case: Case) -> None:
    lstm_eager(case)
    case.enter(spinning())

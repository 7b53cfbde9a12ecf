"""Training steps on eight CPU devices, beside jax.jit with the same layouts, in a process of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from ..registry import Case, row


@contextmanager
def timed(network: str, way: str, width: int) -> Generator[Callable[[str], float]]:
    """Return a context manager of a function that makes a step of a side in the other process and returns its time."""
    command = [sys.executable, "-m", "tests.benchmarks.mesh_steps", network, way, str(width)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked, answers = process.stdin, process.stdout
        assert answers.readline() == "ready\n"

        def call(side: str) -> float:
            asked.write(f"{side}\n")
            asked.flush()
            return float(answers.readline())

        try:
            yield call
        finally:
            asked.close()


def steps(case: Case, network: str, way: str, width: int) -> None:
    """Fill in the sides of a row."""
    call = case.enter(timed(network, way, width))
    case.ours(lambda: call("hybridflow"), self_timed=True)
    case.peer("jax.jit", lambda: call("jax.jit"), self_timed=True)


@row("MLP on 8 CPU devices, data parallel: a step", aims={"jax.jit": 1.1})
def mesh_data(case: Case) -> None:
    steps(case, "mlp", "data", case.size(256, 16))


@row("MLP on 8 CPU devices, fully sharded: a step", aims={"jax.jit": 1.1})
def mesh_fsdp(case: Case) -> None:
    steps(case, "mlp", "fsdp", case.size(256, 16))


@row("MLP on 8 CPU devices, tensor parallel: a step", aims={"jax.jit": 1.1})
def mesh_tensor(case: Case) -> None:
    steps(case, "mlp", "tensor", case.size(256, 16))


@row("transformer on 8 CPU devices, data parallel: a step", aims={"jax.jit": 1.1})
def mesh_gpt_data(case: Case) -> None:
    steps(case, "gpt", "data", case.size(128, 16))


@row("transformer on 8 CPU devices, fully sharded: a step", aims={"jax.jit": 1.1})
def mesh_gpt_fsdp(case: Case) -> None:
    steps(case, "gpt", "fsdp", case.size(128, 16))


@row("transformer on 8 CPU devices, tensor parallel: a step", aims={"jax.jit": 1.1})
def mesh_gpt_tensor(case: Case) -> None:
    steps(case, "gpt", "tensor", case.size(128, 16))

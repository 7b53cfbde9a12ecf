"""What a call costs when two processes run it together, each of them after a comparison of programs and values."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..registry import Case, row

PROGRAM = Path(__file__).parent.parent.parent / "launched" / "calls.py"


@row("sum of 256 floats on the devices of two processes, with all checks", aims={"jax.jit, without checks": 3.0})
def call_of_two(case: Case) -> None:
    calls = case.size(500, 5)

    def seconds(side: str) -> float:
        command = [sys.executable, "-m", "hybridflow", "launch", "-n", "2", str(PROGRAM), side, str(calls)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
        return next(float(line.split()[2]) for line in done.stdout.splitlines() if "seconds" in line)

    case.ours(lambda: seconds("hybridflow"), self_timed=True, calls=1)
    case.peer("jax.jit, without checks", lambda: seconds("jax"), self_timed=True, calls=1)

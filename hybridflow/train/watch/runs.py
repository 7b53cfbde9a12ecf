"""What the page shows of runs, read from their lines of JSON as they grow, and of the machine."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from hybridflow.backend.process_memory import process_memory
from hybridflow.train import activity, records

POINTS = 400
"""The most points of a curve that are sent."""
_ABOUT = ("step", "epoch", "seconds")
_BUSY = ("running", "tracing", "compiling")


class _Lines:
    """The complete lines of a growing file, read once each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0

    def new(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the new lines, and whether the file was rewritten, so that these are all its lines."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._inode or status.st_size < self._offset
                if anew:
                    self._offset, self._inode = 0, status.st_ino
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return [], False
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        return list(_objects(complete)), anew


def _objects(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a line that was cut off when its process was killed
        if isinstance(record, dict):
            yield record


class Run:
    """One run's directory.

    Args:
        path: the directory.
        name: the name it is shown by.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._log = _Lines(path / records.FILE)
        self._activity = _Lines(path / activity.FILE)
        self._curves: dict[str, list[tuple[float, float | None]]] = {}
        self._last: dict[str, Any] = {}
        self._state: dict[str, Any] = {}

    def read(self) -> None:
        """Read what was written since the last time."""
        lines, anew = self._log.new()
        if anew:
            self._curves.clear()
        for line in lines:
            step = line.get("step")
            if not isinstance(step, int | float):
                continue
            self._last = {name: line.get(name) for name in _ABOUT}
            for name, value in line.items():
                if name not in _ABOUT and isinstance(value, int | float):
                    self._curves.setdefault(name, []).append((step, value if math.isfinite(value) else None))
        lines, _ = self._activity.new()
        if lines:
            self._state = lines[-1]

    def shown(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        state = self._state
        pid = state.get("pid")
        name = str(state.get("state", "unknown"))
        process = _process(pid) if isinstance(pid, int) and name in _BUSY else None
        if name in _BUSY and process is None:
            name = "gone"
        steps = [one for one in (state.get("step"), self._last.get("step")) if isinstance(one, int | float)]
        return {
            "name": self.name, "state": name, "function": state.get("function"), "since": state.get("time"),
            "pid": pid, "step": max(steps, default=0), "steps": state.get("steps"), "epoch": self._last.get("epoch"),
            "seconds": self._last.get("seconds"), "process": process,
            "curves": {name: _thinned(points) for name, points in self._curves.items()},
        }


def _thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return at most `POINTS` points: of more, the mean of every stretch, and the last one as it is."""
    if len(points) <= POINTS:
        return list(points)
    width = math.ceil((len(points) - 1) / (POINTS - 1))
    thinned: list[tuple[float, float | None]] = []
    for start in range(0, len(points) - 1, width):
        stretch = points[start : min(start + width, len(points) - 1)]
        values = [value for _, value in stretch if value is not None]
        mean = sum(values) / len(values) if len(values) == len(stretch) else None
        thinned.append((stretch[len(stretch) // 2][0], mean))
    return [*thinned, points[-1]]


class Runs:
    """The runs in directories, also those that begin later.

    Args:
        directories: directories that are runs, or have runs in them at any depth.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._runs: dict[Path, Run] = {}
        self._load = Load()

    def shown(self) -> dict[str, Any]:
        """Return what the page shows now."""
        for top in self._directories:
            for file in (records.FILE, activity.FILE):
                for found in top.rglob(file):
                    path = found.parent
                    if path not in self._runs:
                        name = top.name if path == top else str(path.relative_to(top))
                        self._runs[path] = Run(path, name or str(path))
        for run in self._runs.values():
            run.read()
        runs = [run.shown() for _, run in sorted(self._runs.items())]
        return {"time": time.time(), "load": self._load.now(), "runs": runs}


class Load:
    """The load of the machine, as Linux tells it; elsewhere what Python knows."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = self._ticks()

    def now(self) -> dict[str, Any]:
        """Return the share of the cores that is busy since the last time, their number, and memory in bytes."""
        ticks, before = self._ticks(), self._before
        busy = None
        if ticks is not None and before is not None and ticks[1] > before[1]:
            busy = (ticks[0] - before[0]) / (ticks[1] - before[1])
            self._before = ticks
        memory = self._memory()
        return {
            "cores": os.cpu_count(), "busy": busy, "memory": memory.get("MemTotal"),
            "used": memory["MemTotal"] - memory["MemAvailable"] if "MemAvailable" in memory else None,
        }

    def _ticks(self) -> tuple[int, int] | None:
        """Return the ticks of all cores: those with work, and all."""
        try:
            words = (self._proc / "stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        numbers = [int(word) for word in words]
        return sum(numbers) - sum(numbers[3:5]), sum(numbers)

    def _memory(self) -> dict[str, int]:
        try:
            lines = (self._proc / "meminfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        pairs = [line.split()[:2] for line in lines]
        return {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes in pairs}


def _process(pid: int) -> dict[str, Any] | None:
    """Return the bytes of memory that a process takes, where the system tells; None if there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it is another user's
    memory = process_memory(pid)
    if memory is None:
        return {"memory": None}
    return {"memory": memory.resident} if memory.resident else None

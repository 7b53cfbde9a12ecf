"""Counters and histograms of a server, summed over its workers, in the text format of Prometheus."""

from __future__ import annotations

import json
import os
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from hybridflow.backend.process_memory import process_memory

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)
ROWS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
HELP = {
    "hybridflow_requests_total": ("counter", "Requests for predictions, by model, version and status."),
    "hybridflow_refused_total": ("counter", "Other requests that were refused, by status."),
    "hybridflow_request_seconds": ("histogram", "Seconds from a request's last byte to its response."),
    "hybridflow_batch_rows": ("histogram", "Rows computed together, without padding."),
    "hybridflow_queue": ("gauge", "Requests that wait or are computed."),
    "hybridflow_memory_bytes": ("gauge", "Resident memory of the workers."),
}
STATUSES = ("200", "400", "413", "500", "503", "504")
"""The statuses of predictions that are counted from the start."""
REFUSALS = ("400", "401", "403", "404", "405", "413")
"""The same of other requests."""
BUCKETS = {"hybridflow_request_seconds": SECONDS, "hybridflow_batch_rows": ROWS}


Labels = tuple[tuple[str, str], ...]
Series = tuple[str, Labels]


class _Histogram:
    """The number of values up to each of some bounds, and the sum of all values."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds, self._counts, self._sum = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def series(self, name: str, labels: Labels) -> dict[str, float]:
        """Return the numbers as Prometheus names them: each bucket counts those below it, too."""
        totals = [*accumulate(self._counts)]
        series = {_labelled(f"{name}_sum", labels): self._sum, _labelled(f"{name}_count", labels): float(totals[-1])}
        for bound, total in zip((*self._bounds, "+Inf"), totals, strict=True):
            series[_labelled(f"{name}_bucket", (*labels, ("le", str(bound))))] = float(total)
        return series


class Metrics:
    """The numbers of one worker.

    Args:
        folder: where the workers of a server write theirs for each other; None for a single process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._counts: dict[Series, float] = {}
        self._histograms: dict[Series, _Histogram] = {}
        self.gauges: dict[str, float] = {"hybridflow_queue": 0.0}
        self._histogram("hybridflow_batch_rows", ())
        self._counts |= {("hybridflow_refused_total", (("status", one),)): 0 for one in REFUSALS}

    def begin(self, model: str, version: str) -> None:
        """Show a model's numbers from the start, as zeros."""
        of = (("model", model), ("version", version))
        with self._lock:
            self._histogram("hybridflow_request_seconds", of)
            for status in STATUSES:
                self._counts.setdefault(("hybridflow_requests_total", (*of, ("status", status))), 0)

    def count(self, name: str, **labels: str) -> None:
        """Add one to a counter."""
        series = name, tuple(labels.items())
        with self._lock:
            self._counts[series] = self._counts.get(series, 0) + 1

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add a value to a histogram."""
        with self._lock:
            self._histogram(name, tuple(labels.items())).add(value)

    def _histogram(self, name: str, labels: Labels) -> _Histogram:
        return self._histograms.setdefault((name, labels), _Histogram(BUCKETS[name]))

    def snapshot(self) -> dict[str, Any]:
        """Return this worker's numbers."""
        memory = process_memory()
        self.gauges["hybridflow_memory_bytes"] = 0.0 if memory is None else float(memory.resident)
        values: dict[str, dict[str, float]] = {}
        with self._lock:
            for (name, labels), count in self._counts.items():
                values.setdefault(name, {})[_labelled(name, labels)] = count
            for (name, labels), histogram in self._histograms.items():
                values.setdefault(name, {}).update(histogram.series(name, labels))
            return {"values": values, "gauges": dict(self.gauges)}

    def write(self) -> None:
        """Write the numbers for the other workers to read."""
        if self._folder is not None:
            path = self._folder / f"{os.getpid()}.json"
            fresh = path.with_suffix(".new")
            fresh.write_text(json.dumps(self.snapshot()), encoding="utf-8")
            fresh.replace(path)

    def total(self) -> dict[str, dict[str, float]]:
        """Return the numbers summed over the workers; gauges only of those that run."""
        summed: dict[str, dict[str, float]] = {}
        for snapshot, alive in self._snapshots():
            parts = dict(snapshot["values"])
            parts |= {name: {name: value} for name, value in snapshot["gauges"].items()} if alive else {}
            for name, series in parts.items():
                into = summed.setdefault(name, {})
                for key, value in series.items():
                    into[key] = into.get(key, 0) + value
        return summed

    def _snapshots(self) -> Iterator[tuple[Mapping[str, Any], bool]]:
        yield self.snapshot(), True
        for path in sorted(self._folder.glob("*.json")) if self._folder is not None else ():
            if (pid := int(path.stem)) != os.getpid():
                yield json.loads(path.read_text(encoding="utf-8")), Path(f"/proc/{pid}").exists()

    def text(self) -> str:
        """Return the numbers in the text format of Prometheus."""
        total = self.total()
        lines: list[str] = []
        for name, (kind, what) in HELP.items():
            if name in total:
                lines += [f"# HELP {name} {what}", f"# TYPE {name} {kind}"]
                lines += [f"{series} {value:.15g}" for series, value in total[name].items()]
        return "\n".join([*lines, ""])


def _labelled(name: str, labels: Labels) -> str:
    escaped = [(k, v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")) for k, v in labels]
    pairs = ",".join([f'{key}="{value}"' for key, value in escaped])
    return f"{name}{{{pairs}}}" if labels else name

"""Format the results as a table and as JSON."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from typing import Any

import jax
import numpy as np
from rich.table import Table

from hybridflow.analysis.timing import Timing, format_seconds

from .measure import PeerResult, RowResult


def environment() -> dict[str, Any]:
    """Return the facts that the figures depend on: versions, machine, load, threads."""
    versions = {}
    for package in ("hybridflow", "numpy", "jax", "jaxlib", "torch"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return {
        "python": platform.python_version(),
        "versions": versions,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "device": jax.devices()[0].device_kind,
        "threads": _threads(),
    }


def _threads() -> dict[str, int | str]:
    """Return the number of cores this process may use, and the thread limits of its libraries."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    found: dict[str, int | str] = {"cores": cores, "OpenBLAS": os.environ.get("OPENBLAS_NUM_THREADS", cores)}
    if importlib.util.find_spec("torch") is not None:
        import torch

        found["torch"] = torch.get_num_threads()
    return found


def heading(facts: dict[str, Any]) -> str:
    """Format the environment as one line."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items() if version)
    load = "" if facts["load"] is None else f", load {facts['load']:.1f}"
    threads = ", ".join(f"{name} {count}" for name, count in facts["threads"].items())
    where = f"{facts['cpus']} x {facts['machine']}{load}; {facts['device']}"
    return f"Python {facts['python']}, {versions}; {where}; all sides on the same cores, threads: {threads}"


def table(results: list[RowResult], *, smoke: bool = False) -> Table:
    """Return the table of ratios; below 1, hybridflow is faster."""
    title = "hybridflow / peer (ratio of medians; below 1 hybridflow is faster)"
    made = Table(title="smoke run: small sizes, the figures say nothing" if smoke else title, title_justify="left")
    for name in ("work", "hybridflow", "peer", "peer's time"):
        made.add_column(name)
    for name in ("ratio", "quartiles", "aim"):
        made.add_column(name, justify="right")
    group = None
    for result in results:
        if group not in (None, result.row.group):
            made.add_section()
        group = result.row.group
        for line in _lines(result):
            made.add_row(*line)
    return made


def _lines(result: RowResult) -> list[tuple[str, ...]]:
    work, blank = result.row.work, ("",) * 4
    if result.error is not None:
        return [(work, "[bold red]FAILED[/]", *blank, "")]
    if result.ours is None:
        return [(work, "skipped", *blank, "")]
    ours = _cell(result, result.ours)
    if not result.peers:
        return [(work, ours, *blank, "")]
    return [
        (work if first else "", ours if first else "", *_peer(result, peer))
        for first, peer in zip([True, *[False] * len(result.peers)], result.peers, strict=False)
    ]


def _cell(result: RowResult, timing: Timing) -> str:
    if result.row.unit == "MB":
        return f"{timing.median:.0f} MB"
    return format_seconds(timing.median) + ("" if result.row.per == 1 else f" per {result.row.unit}")


def _peer(result: RowResult, peer: PeerResult) -> tuple[str, ...]:
    style = "" if peer.aim is None else "[green]" if peer.ratio <= peer.aim else "[yellow]"
    return (
        peer.name,
        _cell(result, peer.timing),
        f"{style}{peer.ratio:.2f}",
        f"{peer.low:.2f} to {peer.high:.2f}",
        "" if peer.aim is None else f"{peer.aim:.2f}",
    )


def remarks(results: list[RowResult]) -> list[str]:
    """Return lines on what the table leaves out: failures, skipped rows and missing peers."""
    lines = [f"FAILED {result.row.name}: {result.error}" for result in results if result.error is not None]
    lines += [f"skipped {result.row.name}: {result.skipped}" for result in results if result.skipped is not None]
    for note in dict.fromkeys(note for result in results for note in result.notes):
        rows = [result.row.name for result in results if note in result.notes]
        lines.append(f"{note}: {', '.join(rows)}")
    return lines


def as_dict(results: list[RowResult], facts: dict[str, Any]) -> dict[str, Any]:
    """Return all results as a dict for JSON."""
    return {"environment": facts, "rows": [_row_dict(result) for result in results]}


def _row_dict(result: RowResult) -> dict[str, Any]:
    row = result.row
    return {
        "name": row.name,
        "group": row.group,
        "work": row.work,
        "unit": row.unit,
        "error": result.error,
        "skipped": result.skipped,
        "notes": result.notes,
        "hybridflow": _timing_dict(result.ours),
        "peers": [
            {
                "name": peer.name,
                "seconds": _timing_dict(peer.timing),
                "ratio": peer.ratio,
                "low": peer.low,
                "high": peer.high,
                "aim": peer.aim,
            }
            for peer in result.peers
        ],
    }


def _timing_dict(timing: Timing | None) -> dict[str, float] | None:
    if timing is None:
        return None
    return {"median": timing.median, "low": timing.low, "high": timing.high, "calls": timing.calls}


def all_finite(result: RowResult) -> bool:
    """Return whether every figure of a row is finite."""
    numbers = [number for peer in result.peers for number in (peer.ratio, peer.low, peer.high)]
    return result.ours is not None and bool(np.all(np.isfinite([result.ours.median, *numbers])))

"""One run on a GPU: sanity, then rows in the order of their worth, until the time is up.

Command line: ``python -m tests.benchmarks.gpu --minutes 8 [ROW ...] [--out FILE] [--small]``. The sides of a row are
compared, then timed in turns on one device; every figure is printed as it comes, and written to the file as a line of
JSON. A row that fails is reported and the next one goes on. No row begins that cannot end in time; a thread ends the
process if one takes much longer than expected. The facts about programs, which need no clock, say why a row is behind.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax
import numpy as np

import hybridflow as hf
from hybridflow.analysis.timing import format_seconds

from . import report
from .__main__ import chosen
from .gpu_rows import ROWS, GpuCase, GpuRow, end_of
from .measure import SMOKE, Disagreement, Effort, RowResult, check_agreement, finish, time_sides
from .programs import facts
from .registry import Side, SkippedRow

EFFORT = Effort(rounds=11, block_s=0.02, row_s=3.0)
TESTS_S = 60.0
"""The most seconds that the tests take."""
GRACE_S = 20.0
"""So long after the deadline a row that still runs is ended, with the process."""
HOST_CALLS, HOST_S = 30, 0.5
"""How often a call's own time on the host is measured at most, and in about how many seconds."""


class Out:
    """Where figures go: lines of text, and lines of JSON in a file."""

    def __init__(self, path: Path | None) -> None:
        self.start = time.perf_counter()
        self._file = None if path is None else path.open("a", encoding="utf-8")

    @property
    def seconds(self) -> float:
        """The seconds since the start."""
        return time.perf_counter() - self.start

    def say(self, text: str) -> None:
        """Print a line."""
        print(f"[{self.seconds:6.1f} s] {text}", flush=True)

    def write(self, kind: str, **figures: Any) -> None:
        """Write a line of JSON."""
        if self._file is not None:
            self._file.write(json.dumps({"kind": kind, "at": round(self.seconds, 2), **figures}) + "\n")
            self._file.flush()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


class Watch:
    """Ends the process some time after the deadline, whatever it is busy with."""

    def __init__(self, out: Out, seconds: float) -> None:
        self.out = out
        self.row = ""
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        self.out.say(f"the time is up within {self.row}: ended")
        self.out.write("ended", row=self.row)
        os._exit(3)

    def stop(self) -> None:
        """Call it off."""
        self._timer.cancel()


# -- sanity -----------------------------------------------------------------------------------------------------------


def sanity(out: Out, *, tests: bool, seconds: float) -> None:
    """Say whether a compiled step on the device agrees with the eager one, and run a part of the tests."""
    x, w = hf.asarray(np.ones((2, 4), np.float32)), hf.Variable(np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3))

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.tanh(x @ w))
        w.assign_sub(tape.gradient(loss, w) * 0.1)
        return loss

    try:
        hf.testing.assert_same(step, x)
        found = f"a compiled step is the eager one, on {x.device}"
    except Exception as error:
        found = f"FAILED: a compiled step: {end_of(error)}"
    out.say(found)
    out.write("sanity", what="compiled step", found=found)
    if not tests:
        return
    if not all(importlib.util.find_spec(name) for name in ("pytest", "hypothesis")):
        out.say("tests/test_gpu.py: pytest or hypothesis is not installed")
        return
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--every", "12", "tests/test_gpu.py"]
    try:
        made = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        lines = made.stdout.splitlines()[-30 if made.returncode else -1 :] + made.stderr.splitlines()[-5:]
    except subprocess.TimeoutExpired as late:
        text = late.stdout or b""
        lines = [f"not done after {seconds:.0f} s", *(text.decode() if isinstance(text, bytes) else text).splitlines()]
    out.say("tests/test_gpu.py, every 12th case: " + "\n".join(lines))
    out.write("sanity", what="tests", found=lines)


# -- a row ------------------------------------------------------------------------------------------------------------


def run(one: GpuRow, effort: Effort, precision: str, out: Out) -> RowResult:
    """Build, compare and time a row, and look at its programs."""
    row = one.row
    case = GpuCase(
        smoke=effort.smoke, precision=precision, say=lambda text: out.say(f"  {text}"), without=one.without
    )
    result = RowResult(row, notes=case.notes)
    with case.stack:
        try:
            row.build(case)
            _first(case, out)
            try:
                check_agreement(case.sides, row.tolerance)
            except Disagreement as error:
                result.error = f"the sides disagree: {error}"
                out.say(f"  {result.error}")
            time_sides(result, case.sides, effort)
        except SkippedRow as why:
            result.skipped = str(why)
        except Exception as error:
            result.error = end_of(error)
        _report(one, case, result, out)
        if result.ours is not None:
            for side in case.sides:
                _look(row.name, side, out, smoke=effort.smoke)
    return result


def _first(case: GpuCase, out: Out) -> None:
    """Call every side once, and leave out peers that fail."""
    for side in list(case.sides):
        if side.self_timed:
            continue
        start = time.perf_counter()
        try:
            finish(side.run())
        except Exception as error:
            if side is case.sides[0]:
                raise
            case.sides.remove(side)
            case.notes.append(f"{side.name} failed: {end_of(error)}")
            out.say(f"  {case.notes[-1]}")
            continue
        case.first.setdefault(side.name, time.perf_counter() - start)


def _report(one: GpuRow, case: GpuCase, result: RowResult, out: Out) -> None:
    if result.skipped is not None:
        out.say(f"  skipped: {result.skipped}")
    if result.error is not None:
        out.say(f"  FAILED: {result.error}")
    sides: list[dict[str, Any]] = []
    timed = [] if result.ours is None else [(case.sides[0].name, result.ours, None)]
    timed += [(peer.name, peer.timing, peer) for peer in result.peers]
    for name, timing, peer in timed:
        median, low, high = map(format_seconds, (timing.median, timing.low, timing.high))
        text = f"  {name}: {median} ({low} to {high})"
        if one.items:
            text += f", {one.items / timing.median:,.0f} {one.unit}s/s"
        if peer is not None:
            text += f"; hybridflow takes {peer.ratio:.3f} of it ({peer.low:.3f} to {peer.high:.3f})"
        out.say(text)
        sides.append({
            "name": name, "seconds": timing.median, "low": timing.low, "high": timing.high, "calls": timing.calls,
            "ratio": peer and peer.ratio, "ratio_low": peer and peer.low, "ratio_high": peer and peer.high,
            "rate": one.items / timing.median if one.items else None, "first_call": case.first.get(name),
        })
    out.write(
        "row", name=result.row.name, work=result.row.work, unit=result.row.unit, per=result.row.per, sides=sides,
        tolerance=result.row.tolerance, notes=result.notes, error=result.error, skipped=result.skipped,
    )
    for note in result.notes:
        if " failed: " not in note:  # those are printed already
            out.say(f"  {note}")


def _look(name: str, side: Side, out: Out, *, smoke: bool) -> None:
    """Report what a side's program consists of, and what its calls take on the host."""
    found: dict[str, Any] = {}
    try:
        if not side.self_timed and side.prepare is None:
            found["host"] = host_figures(side, smoke=smoke)
        if side.lowered is not None:
            found |= facts(side.lowered())
    except Exception as error:
        found["error"] = end_of(error)
    if not found:
        return
    out.write("facts", row=name, side=side.name, **found)
    parts = [f"{key} {value:.0f} µs" for key, value in found.get("host", {}).items()]
    if "hlo" in found:
        hlo, memory = found["hlo"], found["memory"]
        parts += [f"{hlo['kernels']} kernels", f"{hlo['donated']} donated", f"peak {memory['peak'] / 1e6:.4g} MB"]
        parts += [f"{count} {kind}" for kind, count in hlo["launched"].items()]
    out.say(f"  {side.name}: {', '.join(parts)}" + (f"; {found['error']}" if "error" in found else ""))


def host_figures(side: Side, *, smoke: bool) -> dict[str, float]:
    """Return the microseconds that calls take on the host until they return, without waiting for their results.

    ``alone`` is a call on an idle device; ``in a row`` is one of many, which may wait where too many are under way.
    """
    start = time.perf_counter()
    finish(side.call())
    seconds = time.perf_counter() - start
    calls = 2 if smoke else int(min(max(HOST_S / max(seconds, 1e-6), 3), HOST_CALLS))
    alone: list[float] = []
    for _ in range(calls):
        start = time.perf_counter()
        result = side.call()
        alone.append(time.perf_counter() - start)
        finish(result)
    result = None
    start = time.perf_counter()
    for _ in range(calls):
        result = side.call()
    row = (time.perf_counter() - start) / calls
    finish(result)
    return {"alone": float(np.median(alone)) * 1e6, "in a row": row * 1e6}


# -- the command ------------------------------------------------------------------------------------------------------


def _clean() -> None:
    """Give memory back, so that the sides of the next row have it."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def run_rows(rows: list[GpuRow], options: argparse.Namespace, out: Out, watch: Watch) -> list[RowResult]:
    """Run the rows that can end in time."""
    deadline = options.minutes * 60
    results: list[RowResult] = []
    spent = expected = 1.0
    for one in rows:
        pace = 0.0 if options.small else min(max(spent / expected, 0.3), 3.0)
        if out.seconds + one.seconds * pace > deadline:
            out.say(f"{one.row.name}: left out, it may take {one.seconds * pace:.0f} s")
            out.write("left out", row=one.row.name)
            continue
        watch.row = one.row.name
        out.say(f"{one.row.name}: {one.row.work}")
        start = out.seconds
        results.append(run(one, SMOKE if options.small else EFFORT, options.precision, out))
        _clean()
        spent, expected = spent + out.seconds - start, expected + one.seconds
    return results


def main(arguments: list[str] | None = None) -> int:
    """Run everything; the exit status is 1 if a row failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.gpu", description=__doc__)
    parser.add_argument("rows", nargs="*", metavar="ROW", help="rows to run (patterns with *); all if none")
    parser.add_argument("--minutes", type=float, default=8.0, help="when no more rows begin")
    parser.add_argument("--out", type=Path, metavar="FILE", help="append the figures there, as lines of JSON")
    parser.add_argument("--small", action="store_true", help="tiny sizes and few calls, to show that all rows run")
    parser.add_argument("--no-tests", action="store_true", help="leave out the part of tests/test_gpu.py")
    parser.add_argument("--list", action="store_true", help="list the rows and stop")
    parser.add_argument(
        "--precision", choices=("highest", "default"), default="highest",
        help="of float32 products, in all libraries: whole, or rounded as TF32 does",
    )
    options = parser.parse_args(arguments)
    picked = chosen([one.row for one in ROWS], options.rows)
    rows = [one for one in ROWS if one.row in picked]
    if options.list:
        for one in rows:
            print(f"{one.row.name:28} {one.seconds:4.0f} s  {one.row.work}")
        return 0
    if not rows:
        parser.error(f"no row matches {' '.join(options.rows)}; --list shows them")
    # jax would take three quarters of the memory at once and leave too little for torch.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.8")
    out = Out(options.out)
    watch = Watch(out, options.minutes * 60 + GRACE_S)
    with ExitStack() as stack:
        stack.callback(out.close)
        stack.callback(watch.stop)
        stack.enter_context(hf.config.cache(False))  # so that every first call compiles
        stack.enter_context(hf.config.matmul_precision(options.precision))
        stack.enter_context(jax.default_matmul_precision(options.precision))
        known = report.environment()
        out.say(report.heading(known))
        out.say(f"the precision of all sides' float32 products: {options.precision}")
        out.write("environment", **known, precision=options.precision, small=options.small)
        watch.row = "sanity"
        sanity(out, tests=not options.no_tests, seconds=min(TESTS_S, options.minutes * 20))
        results = run_rows(rows, options, out, watch)
        for result in results:
            ratios = ", ".join(f"{peer.ratio:.3f} of {peer.name}" for peer in result.peers)
            out.say(f"{result.row.name}: {ratios or 'no ratio'}{' FAILED' if result.error is not None else ''}")
        out.say(f"done: {len(results)} of {len(rows)} rows")
        out.write("end", rows=len(results))
    return int(any(result.error is not None for result in results))


if __name__ == "__main__":
    sys.exit(main())

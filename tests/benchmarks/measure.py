"""Time the sides of a row. They are checked to agree, warmed up, and timed in interleaved blocks of finished calls."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

import hybridflow as hf
from hybridflow.analysis.timing import Timing, wait_for

from .registry import OURS, Case, Row, Side, SkippedRow


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    Attributes:
        smoke: whether to use small sizes and few calls.
        rounds: how many times the sides take turns.
        block_s: the length of one turn of one side in seconds; a turn has at least one call.
        row_s: about how long a row may take, in seconds. Rows of slow calls get fewer rounds, but at least three.
        clock: the function that returns the time.
    """

    smoke: bool = False
    rounds: int = 25
    block_s: float = 0.01
    row_s: float = 8.0
    clock: Callable[[], float] = time.perf_counter


SMOKE = Effort(smoke=True, rounds=1, block_s=0.0, row_s=0.0)
FEWEST_ROUNDS = 3


@dataclass(frozen=True)
class PeerResult:
    """The measurements of one peer.

    Attributes:
        name: the peer.
        timing: the peer's time for one unit of work.
        ratio: hybridflow's median over the peer's; below 1, hybridflow is faster.
        low, high: the quartiles of the ratio over the rounds.
        aim: the ratio to reach.
    """

    name: str
    timing: Timing
    ratio: float
    low: float
    high: float
    aim: float | None


@dataclass
class RowResult:
    """The result of a row. `error` is set if it failed or its sides disagree, `skipped` if it could not run here."""

    row: Row
    ours: Timing | None = None
    peers: list[PeerResult] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: str | None = None
    error: str | None = None


def run_row(row: Row, effort: Effort) -> RowResult:
    """Build, check and time a row. Errors become part of the result, so that the other rows still run."""
    case = Case(effort.smoke, row.aims)
    result = RowResult(row, notes=case.notes)
    with case.stack:
        try:
            row.build(case)
            check_agreement(case.sides, row.tolerance)
            time_sides(result, case.sides, effort)
            if case.flops is not None and result.ours is not None and not effort.smoke:
                case.notes.append(_share(case.flops / result.ours.median))
        except SkippedRow as why:
            result.skipped = str(why)
        except Exception as error:
            result.error = f"{type(error).__name__}: {error}"
    return result


def _share(speed: float) -> str:
    """Return what a speed is beside that of a matrix product, which is measured now.

    Args:
        speed: floating-point operations per second.
    """
    size = 1024
    matrix = hf.random.uniform((size, size))
    product = hf.compile(hf.matmul)

    def seconds() -> float:
        start = time.perf_counter()
        product(matrix, matrix).numpy()
        return time.perf_counter() - start

    fastest = 2 * size**3 / min(seconds() for _ in range(10))
    return f"{speed / 1e9:.0f} GFLOP/s, {speed / fastest:.0%} of a product's of {size} x {size}"


# -- agreement ----------------------------------------------------------------------------------------------------


class Disagreement(AssertionError):
    """The error of a row whose sides do not do the same work."""


def check_agreement(sides: list[Side], tolerance: float) -> None:
    """Do the work once per side, and compare its results and changes of parameters with hybridflow's.

    Raises:
        Disagreement: something differs; the text names the side, the result and the difference.
    """
    if sides[0].self_timed:
        return
    found = [_observe(side) for side in sides]
    for side, observed in zip(sides[1:], found[1:], strict=True):
        for what, ours, theirs in zip(("result", "change of parameter"), found[0], observed, strict=True):
            if len(ours) != len(theirs):
                raise Disagreement(f"{side.name}: {len(theirs)} arrays as {what}, {OURS} has {len(ours)}")
            for index, ((a, slack), (b, _)) in enumerate(zip(ours, theirs, strict=True)):
                _compare(f"{side.name}, {what} {index}", a, b, tolerance, slack)


Observed = list[tuple[np.ndarray[Any, Any], float]]
"""Arrays, each with a bound on its rounding error."""


def _observe(side: Side) -> tuple[Observed, Observed]:
    def state() -> list[np.ndarray[Any, Any]]:
        return [] if side.state is None else _arrays(side.comparable_state(side.state()))

    before = state()
    result = [(x, 0.0) for x in _arrays(side.comparable(side.run()))]
    eps = float(np.finfo(np.float32).eps)
    changes = [(b - a, 4 * eps * float(np.abs(b).max(initial=0))) for a, b in zip(before, state(), strict=True)]
    return result, changes


def _compare(what: str, ours: Any, theirs: Any, tolerance: float, slack: float) -> None:
    if ours.shape != theirs.shape:
        raise Disagreement(f"{what}: shape {theirs.shape}, {OURS} has {ours.shape}")
    scale = float(np.abs(ours).max(initial=0))
    gap = float(np.abs(ours - theirs).max(initial=0))
    if not gap <= tolerance * scale + slack + 1e-7:
        raise Disagreement(f"{what}: differs by {gap:.3g}, where the largest value is {scale:.3g}")


def _arrays(result: Any) -> list[np.ndarray[Any, Any]]:
    return [_array(leaf) for leaf in jax.tree_util.tree_leaves(result)]


def _array(leaf: Any) -> np.ndarray[Any, Any]:
    if hasattr(leaf, "cpu"):
        leaf = leaf.detach().cpu().numpy()
    return np.array(leaf, dtype=np.float64)


# -- timing -------------------------------------------------------------------------------------------------------


def finish(result: Any) -> None:
    """Wait until everything in a result has been computed."""
    wait_for(result)
    for leaf in jax.tree_util.tree_leaves(result):
        if isinstance(leaf, jax.Array):
            leaf.block_until_ready()
        elif isinstance(leaf, hf.Variable):
            wait_for(leaf.read())
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def block(side: Side, calls: int, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds per call of a block of calls; wait for their results once, at the end of the block."""
    call, prepare = side.call, side.prepare
    if side.self_timed:
        return float(np.median([call() for _ in range(calls)]))
    result: Any = None
    if prepare is None:
        start = clock()
        for _ in range(calls):
            result = call()
    else:
        items = [prepare() for _ in range(calls)]
        start = clock()
        for item in items:
            result = call(item)
    finish(result)
    if side.state is not None:
        finish(side.state())
    return (clock() - start) / calls


def time_sides(result: RowResult, sides: list[Side], effort: Effort) -> None:
    """Time the sides in turns and fill in a row's result."""
    gc.collect()
    counts = [_calls(side, effort) for side in sides]
    once = sum(seconds * calls for calls, seconds in counts)
    rounds = effort.rounds
    if not effort.smoke:
        rounds = int(min(rounds, max(effort.row_s / once, FEWEST_ROUNDS)))
    measured: list[list[float]] = [[] for _ in sides]
    turns = [(side, calls, times) for side, (calls, _), times in zip(sides, counts, measured, strict=True)]
    end = time.perf_counter() + 2 * effort.row_s
    warm = not effort.smoke and _spins()
    for number in range(rounds):
        if number >= FEWEST_ROUNDS and time.perf_counter() > end:
            break  # the calls take longer than expected
        for side, calls, times in turns if number % 2 else reversed(turns):
            if warm:
                block(side, calls)
            times.append(block(side, calls, effort.clock) / result.row.per)
    ours = np.asarray(measured[0])
    result.ours = _timing(ours, counts[0][0])
    for side, calls, times in turns[1:]:
        ratios = ours / np.asarray(times)
        low, high = np.percentile(ratios, [25, 75])
        timing = _timing(np.asarray(times), calls)
        ratio = result.ours.median / timing.median
        result.peers.append(PeerResult(side.name, timing, ratio, float(low), float(high), side.aim))


def _spins() -> bool:
    """Whether threads may take a core from the next side: PyTorch's look for more work for some milliseconds."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.get_num_threads() > 1


def _calls(side: Side, effort: Effort) -> tuple[int, float]:
    """Return the number of calls in one turn of a side, and the seconds of one call."""
    if effort.smoke:
        return 1, 0.0
    seconds = block(side, 1, effort.clock)
    if seconds < effort.block_s:  # measure again: the first call was cold
        seconds = block(side, min(20, side.calls), effort.clock)
    return int(min(max(effort.block_s / seconds, 1), side.calls)), seconds


def _timing(times: np.ndarray[Any, Any], calls: int) -> Timing:
    low, median, high = np.percentile(times, [25, 50, 75])
    return Timing(float(median), float(low), float(high), calls * len(times))


def run_rows(rows: list[Row], effort: Effort, done: Callable[[RowResult], None]) -> list[RowResult]:
    """Run rows one after another, and pass each result to `done`."""
    results: list[RowResult] = []
    for row in rows:
        results.append(run_row(row, effort))
        done(results[-1])
    return results

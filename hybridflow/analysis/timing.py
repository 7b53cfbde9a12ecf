"""Timing calls fairly: warm, interleaved, with the results computed before the clock stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable

BUDGET_S = 1.0
"""About how long each mode is timed if the number of repeats is left open."""
BLOCKS = 5
"""How many times the modes take turns, so that a slow spell of the machine meets both."""


@dataclass(frozen=True)
class Timing:
    """What one call takes, in seconds.

    Attributes:
        median: the middle of the measured calls.
        low: a quarter of the calls took less.
        high: a quarter took more.
        calls: how many were measured.
    """

    median: float
    low: float
    high: float
    calls: int

    def __str__(self) -> str:
        return f"{format_seconds(self.median)} ({format_seconds(self.low)} to {format_seconds(self.high)})"


def format_seconds(seconds: float) -> str:
    """Format a duration with the unit that fits, such as ``3.20 ms``."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"


def wait_for(result: Any, variables: Sequence[Variable] = ()) -> None:
    """Return when every array of a result, and the value of every Variable, has been computed."""
    leaves: list[Any] = [result] if isinstance(result, Tensor) else jax.tree_util.tree_leaves(result)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _wait(leaf._value)
    for variable in variables:
        _wait(variable.current())


def _wait(value: Any) -> None:
    if type(value) is not np.ndarray and value is not None:
        value.block_until_ready()


def seconds_of(call: Callable[[], Any], variables: Sequence[Variable] = ()) -> float:
    """Return how long one call takes until its results are there."""
    start = time.perf_counter()
    wait_for(call(), variables)
    return time.perf_counter() - start


def interleave(
    calls: Sequence[Callable[[], Any]],
    variables: Sequence[Variable] = (),
    *,
    repeats: int | None = None,
    before_block: Callable[[], None] = lambda: None,
) -> list[Timing]:
    """Time calls in turn, in blocks, each block after an untimed call that warms it up.

    Args:
        calls: what to time; all have run before.
        variables: Variables the calls assign.
        repeats: how many times to time each call; about a second each if None.
        before_block: called before each block, to start it from the same state.

    Returns:
        One timing per call.
    """
    counts = [repeats or _count(seconds_of(call, variables)) for call in calls]
    measured: list[list[float]] = [[] for _ in calls]
    blocks = min(BLOCKS, *counts)
    for block in range(blocks):
        for call, count, times in zip(calls, counts, measured, strict=True):
            before_block()
            wait_for(call(), variables)
            share = count * (block + 1) // blocks - count * block // blocks
            times.extend([seconds_of(call, variables) for _ in range(share)])
    return [_timing(times) for times in measured]


def _count(seconds: float) -> int:
    return int(min(max(BUDGET_S / max(seconds, 1e-7), 5), 2000))


def _timing(times: list[float]) -> Timing:
    low, median, high = np.percentile(times, [25, 50, 75])
    return Timing(float(median), float(low), float(high), len(times))

"""Timing calls fairly: warm, interleaved, with the results computed before the clock stops."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any, NamedTuple

import jax
import numpy as np

from hybridflow.analysis.machine import own_cores, usage
from hybridflow.analysis.statistics import Ratio, median_interval, ratio_of
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable

BUDGET_S = 1.0
"""About how long each call is timed if the number of repeats is left open."""
TURNS = 20
"""Calls take this many turns, so that a slow moment of the machine affects all of them."""
LEAST, MOST = 6, 10_000
"""A call is timed at least and at most this often; fewer than 6 turns give no interval."""
WARM_S = 0.02
"""Calls shorter than this are warmed up at the beginning of each turn; in others that is lost in the noise."""
CROWDED = 0.25
"""If other programs use this fraction of the cores or more, wall-clock times do not tell which is faster."""


@dataclass(frozen=True)
class Timing:
    """The time of one call, in seconds.

    Attributes:
        median: the middle of the turns' medians (of all measured calls, if there are no turns).
        low: a quarter of the calls took less.
        high: a quarter took more.
        calls: the number of measured calls.
        turns: the median of each turn; calls of one turn follow each other and are not independent, turns nearly are.
        processor: what a call of each turn takes of the processor, all threads of this process together.
        others: the number of cores that other programs used meanwhile; None if the system does not say.
        planned: the number of turns that were to be made; there are fewer if the time was over before.
    """

    median: float
    low: float
    high: float
    calls: int
    turns: tuple[float, ...] = ()
    processor: tuple[float, ...] = ()
    others: float | None = None
    planned: int = 0

    @property
    def interval(self) -> tuple[float, float]:
        """The interval that holds the true median in 95 of 100 measurements; 0 and infinity if there are too few turns.

        It is that of the order statistics of the turns: see `hybridflow.analysis.statistics`.
        """
        return median_interval(self.turns)

    def over(self, other: Timing) -> Ratio:
        """Return how many times longer this takes than another of the same run."""
        if not self.turns or len(self.turns) != len(other.turns):
            return Ratio(self.median / other.median, 0.0, inf, told=False)
        by_clock = ratio_of(self.turns, other.turns)
        others = max(self.others or 0.0, other.others or 0.0)
        if others < CROWDED * len(own_cores()) or 0.0 in (*self.processor, *other.processor):
            return by_clock
        return by_clock.on_busy_machine(others, ratio_of(self.processor, other.processor))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values, None for the ends of an interval that is not known."""
        low, high = self.interval
        return {
            "median": self.median, "low": self.low, "high": self.high, "calls": self.calls,
            "interval": None if high == inf else [low, high], "turns": list(self.turns),
            "processor": list(self.processor), "others": self.others,
        }

    def __str__(self) -> str:
        low, high = self.interval
        if high == inf:
            return f"{format_seconds(self.median)} (of {self.calls} call{'' if self.calls == 1 else 's'})"
        return f"{format_seconds(self.median)} ({format_seconds(low)} to {format_seconds(high)})"


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


class Timed(NamedTuple):
    """Something to time.

    Attributes:
        call: makes one call.
        variables: the Variables that it assigns.
    """

    call: Callable[[], Any]
    variables: Sequence[Variable] = ()


def interleave(
    calls: Sequence[Timed],
    *,
    repeats: int | None = None,
    budget: float = inf,
    before_turn: Callable[[], None] = lambda: None,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Timing]:
    """Time calls in turns; short calls are warmed up by an untimed one.

    Every other round has the reverse order, so that no call always follows the same one.

    Args:
        calls: the calls to time; all have run before.
        repeats: how many times to time each call; about a second each if None.
        budget: no turn begins after so many seconds, but each call has one.
        before_turn: called before each turn, to start it from the same state.
        progress: a function that is called with the fraction done, from 0 to 1.

    Returns:
        One timing per call.
    """
    once = [seconds_of(*one) for one in calls]
    counts = [repeats or int(min(max(BUDGET_S / max(seconds, 1e-7), LEAST), MOST)) for seconds in once]
    measured: list[list[_Turn]] = [[] for _ in calls]
    rounds = min(TURNS, *counts)
    in_turn = list(zip(calls, once, counts, measured, strict=True))
    begun, end = usage(), time.perf_counter() + budget
    for number in range(rounds):
        if number and time.perf_counter() > end:
            break
        for one, seconds, count, turns in in_turn if number % 2 == 0 else reversed(in_turn):
            before_turn()
            if seconds < WARM_S:
                wait_for(one.call(), one.variables)
            share = count * (number + 1) // rounds - count * number // rounds
            processor = time.process_time()
            times = [seconds_of(*one) for _ in range(share)]
            turns.append(_Turn(times, (time.process_time() - processor) / max(share, 1)))
        progress((number + 1) / rounds)
    others = usage().others_since(begun)
    return [_timing(turns, others, rounds) for turns in measured]


class _Turn(NamedTuple):
    """The calls of one turn: what each took, and what one took of the processor."""

    times: list[float]
    processor: float


def _timing(turns: Sequence[_Turn], others: float | None, planned: int) -> Timing:
    times = [seconds for turn in turns for seconds in turn.times]
    low, high = np.percentile(times, [25, 75])
    medians = tuple([median(turn.times) for turn in turns])
    processor = tuple([turn.processor for turn in turns])
    return Timing(median(medians), float(low), float(high), len(times), medians, processor, others, planned)

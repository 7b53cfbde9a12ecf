"""Intervals of medians hold what they say, and no difference is told where there is none."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hybridflow.analysis.compare.comparison import faster_text
from hybridflow.analysis.statistics import (
    Ratio,
    format_ratio,
    median_interval,
    rank_of_interval,
    ratio_of,
)
from hybridflow.analysis.timing import Timing

TIMES = st.lists(st.floats(1e-9, 1e3), min_size=1, max_size=40)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_ranks_are_the_binomials(confidence: float):
    for count in range(1, 150):
        rank = rank_of_interval(count, confidence)
        misses = 2 * scipy.stats.binom.cdf(np.arange(count // 2 + 1) - 1, count, 0.5)
        assert misses[rank] <= 1 - confidence + 1e-12
        if rank < count // 2:
            assert misses[rank + 1] > 1 - confidence


DRAWS = {
    "normal": (lambda rng, size: 10 + rng.standard_normal(size), 10.0),
    "long tail": (lambda rng, size: rng.lognormal(0.0, 1.5, size), 1.0),
    "exponential": (lambda rng, size: rng.exponential(1.0, size), float(np.log(2))),
    "two modes": (lambda rng, size: np.where(rng.random(size) < 0.6, 0.0, 5.0) + rng.random(size), 5 / 6),
    "a clock of few ticks": (lambda rng, size: rng.integers(1, 4, size), 2.0),
}


@pytest.mark.parametrize("count", [6, 9, 20])
@pytest.mark.parametrize("kind", DRAWS)
def test_intervals_hold_the_true_median_as_often_as_they_say(kind: str, count: int):
    draw, true = DRAWS[kind]
    samples = draw(np.random.default_rng(count), (3000, count)).astype(float)
    ends = np.array([median_interval(list(sample)) for sample in samples])
    share = np.mean((ends[:, 0] <= true) & (true <= ends[:, 1]))
    assert share >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 3000)


@settings(max_examples=100, deadline=None)
@given(TIMES, st.floats(1e-3, 1e3))
def test_intervals_scale_and_hold_the_sample_median(times: list[float], factor: float):
    low, high = median_interval(times)
    assert low <= np.median(times) <= high
    assert (high == inf) == (len(times) < 6)
    assert median_interval(times[::-1]) == (low, high)
    assert median_interval([factor * one for one in times]) == pytest.approx((factor * low, factor * high))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)), min_size=6, max_size=30))
def test_the_ratio_the_other_way_round_is_the_inverse(turns: list[tuple[float, float]]):
    a, b = [list(side) for side in zip(*turns, strict=True)]
    there, back = ratio_of(a, b), ratio_of(b, a)
    assert (there.low, there.high) == pytest.approx((1 / back.high, 1 / back.low))
    assert there.told == back.told


def measured(rng: np.random.Generator, seconds: float, spells: np.ndarray) -> list[float]:
    """Times of turns on a machine that is slow in spells, for everyone, and never fast."""
    return list(seconds * spells * (1 + 0.05 * rng.exponential(1.0, spells.shape)))


def spells_of(rng: np.random.Generator) -> np.ndarray:
    return 1 + 1.5 * (rng.random(20) < 0.25) + np.linspace(0, rng.random(), 20)


def test_no_difference_is_told_where_there_is_none():
    told = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        spells = spells_of(rng)
        told += ratio_of(measured(rng, 1.0, spells), measured(rng, 1.0, spells)).told
    assert told <= 0.05 * 1000


def test_a_difference_is_told_where_the_machine_is_steady():
    held = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        found = ratio_of(measured(rng, 1.3, np.ones(20)), measured(rng, 1.0, np.ones(20)))
        assert found.told
        held += found.low <= 1.3 <= found.high
    assert held >= 0.9 * 300


def test_spells_that_hit_both_leave_the_ratio():
    rng = np.random.default_rng(0)
    spells = np.repeat([1.0, 8.0], 10)
    found = ratio_of(measured(rng, 3.0, spells), measured(rng, 1.0, spells))
    assert found.low > 2.7
    assert found.high < 3.3


def test_a_verdict_needs_both_kinds_of_interval():
    slow, fast = [1.0] * 10 + [9.0] * 10, [0.9] * 10 + [8.1] * 10
    found = ratio_of(slow, fast)  # every turn says 1.11x, but the medians may be anything from 0.9 to 9
    assert found.low > 1
    assert not found.told


def test_a_verdict_needs_the_turns_to_agree():
    a, b = [0.1] * 5 + [2.0] * 15, [1.0] * 15 + [5.0] * 5
    assert median_interval(a)[0] > median_interval(b)[1]
    found = ratio_of(a, b)  # the medians are apart, but half of the turns say the opposite
    assert found.low < 1 < found.high
    assert not found.told


def test_few_turns_tell_nothing():
    assert not ratio_of([10.0] * 5, [1.0] * 5).told
    assert str(ratio_of([10.0] * 5, [1.0] * 5)) == "10.0x (too few turns for an interval)"
    assert Timing(1.0, 1.0, 1.0, 3).over(Timing(0.5, 0.5, 0.5, 4)) == Ratio(2.0, 0.0, inf, told=False)


def test_words():
    assert faster_text("compiled", "eager", Ratio(3.1, 2.9, 3.3, told=True)) == (
        "compiled is 3.10x faster than eager (2.90 to 3.30)."
    )
    assert faster_text("compiled", "eager", Ratio(0.5, 0.4, 0.8, told=True)) == (
        "compiled is 2.00x slower than eager (1.25 to 2.50)."
    )
    assert faster_text("compiled", "eager", Ratio(1.02, 0.97, 1.08, told=False)) == (
        "compiled against eager: no difference can be told: 1.02x (0.97 to 1.08)."
    )
    assert faster_text("compiled", "eager", Ratio(1.5, 1.2, 1.8, told=False)).endswith(
        "1.50x (1.20 to 1.80) turn by turn, but from turn to turn the times vary more than that."
    )
    assert [format_ratio(value) for value in (0.00123, 2.5, 25.04, 2500)] == ["0.0012x", "2.50x", "25.0x", "2,500x"]

"""How sure a median is, without assuming how measurements are distributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, inf
from statistics import median

CONFIDENCE = 0.95


def rank_of_interval(count: int, confidence: float = CONFIDENCE) -> int:
    """Return the ``k`` for which the k-th smallest to the k-th largest of `count` values hold the median.

    Whatever their distribution, the number of independent values below its median is binomial with p = 1/2, so the
    interval misses the median with a probability of ``2 P(B < k)``; `k` is the largest that keeps it within
    ``1 - confidence``.

    Args:
        count: the number of values.
        confidence: the least probability of holding the median.

    Returns:
        k, from 1; 0 if even all the values together are not sure enough: there are fewer than 6, for 95 %.

    Example:
        >>> rank_of_interval(20), rank_of_interval(6), rank_of_interval(5)
        (6, 1, 0)

    Reference:
        W. J. Conover, "Practical Nonparametric Statistics", 3rd ed., Wiley, 1999, section 3.2.
    """
    rank, below = 0, 0
    while rank < count // 2:
        below += comb(count, rank)
        if 2 * below > (1 - confidence) * 2**count:
            break
        rank += 1
    return rank


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return a confidence interval of the median of the distribution of the values; see `rank_of_interval`.

    Args:
        values: independent measurements, none below 0.
        confidence: the least probability of holding the median.

    Returns:
        Its ends; 0 and infinity if there are too few values to say.

    Example:
        >>> median_interval([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
        (1.0, 6.0)
    """
    rank = rank_of_interval(len(values), confidence)
    if rank == 0:
        return 0.0, inf
    ordered = sorted(values)
    return ordered[rank - 1], ordered[-rank]


@dataclass(frozen=True)
class Ratio:
    """The ratio of two times.

    Attributes:
        value: the median of the ratios of turns.
        low, high: the interval that holds the true median in 95 of 100 measurements; 0 and infinity if not known.
        told: whether the difference is significant: the two intervals do not overlap, and that of the ratio excludes 1.
        others: the number of cores that other programs used meanwhile, if so many that clock times mean little.
        by_processor: in that case, the ratio of the processor times; else None.
    """

    value: float
    low: float
    high: float
    told: bool
    others: float = 0.0
    by_processor: Ratio | None = None

    def on_busy_machine(self, others: float, by_processor: Ratio) -> Ratio:
        """Return a ratio of clock times as far as it can be trusted while other programs used cores.

        Work in several threads waits for the thread that gets no core, so the ratio can be any number. It is
        significant only if the processor times say the same.

        Args:
            others: the number of cores that they used.
            by_processor: the ratio of the processor's times.
        """
        told = self.told and by_processor.told and (self.value > 1) == (by_processor.value > 1)
        return replace(self, told=told, others=others, by_processor=by_processor)

    def __str__(self) -> str:
        return f"{format_ratio(self.value)} ({format_range(self.low, self.high)})"


def ratio_of(longer: Sequence[float], shorter: Sequence[float]) -> Ratio:
    """Return the ratio of two things that were measured in turns.

    If the machine is slow for a while, both turns of a pair are slow, and their ratio stays the same. `told` needs both
    conditions, since the interval of the ratio alone would be wrong about equal things in 1 of 20 measurements.

    Args:
        longer, shorter: the measurements of each turn, in the same order.

    Reference:
        A. Georges, D. Buytaert, L. Eeckhout, "Statistically rigorous Java performance evaluation", OOPSLA 2007;
        T. Hoefler, R. Belli, "Scientific benchmarking of parallel computing systems", SC 2015.
    """
    ratios = [a / b for a, b in zip(longer, shorter, strict=True)]
    low, high = median_interval(ratios)
    (a_low, a_high), (b_low, b_high) = median_interval(longer), median_interval(shorter)
    apart = a_low > b_high or b_low > a_high
    return Ratio(median(ratios), low, high, apart and not low <= 1 <= high)


def format_ratio(value: float) -> str:
    """Format a ratio such as ``3.14x``."""
    if value < 0.1:
        return f"{value:.2g}x"
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x" if value < 100 else f"{value:,.0f}x"


def format_range(low: float, high: float) -> str:
    """Format the interval of a ratio, such as ``2.90 to 3.30``."""
    if high == inf:
        return "too few turns for an interval"
    return f"{format_ratio(low)[:-1]} to {format_ratio(high)[:-1]}"

"""Plots of comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any, NamedTuple

import numpy as np

from hybridflow.analysis.report import COMPILED, EAGER, empty_figure, new_figure
from hybridflow.analysis.timing import Timing, format_seconds

OTHERS = ("#2f7d4f", "#8a4fa8", "#9a7b1f", "#4f6d7a", "#b0367c", "#6b6b6b")
"""Colours of peers and of further functions."""
MARK = "#555"
WIDE = 30
"""From how many times the shortest time on a plot of times has a logarithmic scale."""


def calls_figure(name: str, lines: Mapping[str, tuple[float, float]], even: int | None) -> Any:
    """Return a plot of total time against the number of calls.

    Args:
        name: the name of the function.
        lines: per label, what the first call and every other one take, in seconds; the first is eager.
        even: the number of calls after which the second one has paid off; None if it never does.
    """
    figure, axes = new_figure(f"{name}: total time", "calls", "seconds in total")
    last = max(10, 3 * even if even is not None else 0)
    calls = np.linspace(1, last, 200)
    for (label, (first, each)), color in zip(lines.items(), colors(len(lines)), strict=True):
        axes.plot(calls, first + (calls - 1) * each, color=color, label=label)
    axes.set_ylim(bottom=0)
    if even is not None:
        axes.axvline(even, color=MARK, linestyle="--", linewidth=1)
        axes.annotate(f" break-even: {even:,} calls", (even, axes.get_ylim()[1] * 0.93), color=MARK)
    else:
        axes.set_title("no break-even: the compiled call is not faster", loc="right", fontsize="small", color=MARK)
    axes.legend(loc="best")
    return figure


def bars_figure(title: str, timings: Mapping[str, Timing]) -> Any:
    """Plot the time of one call of each, with confidence intervals of the medians.

    Args:
        title: the plot's title.
        timings: the timings by label, alternately eager and compiled.
    """
    figure, axes = new_figure(title, "one call, median and its 95 % interval", "", height=1.4 + 0.42 * len(timings))
    medians = [timing.median for timing in timings.values()]
    wide = max(medians) > WIDE * min(medians)
    for row, (label, timing) in enumerate(timings.items()):
        low, high = timing.interval
        color = EAGER if label.endswith("eager") else COMPILED if label.endswith("compiled") else OTHERS[0]
        if wide:  # the length of a bar says nothing on such a scale
            axes.plot(timing.median, row, "o", color=color, markersize=8)
        else:
            axes.barh(row, timing.median, color=color, alpha=0.75, height=0.62)
        if high != inf:
            axes.plot([low, high], [row, row], color="#111", linewidth=1.5, marker="|", markersize=8)
        end = timing.median if high == inf else max(timing.median, high)
        axes.annotate(format_seconds(timing.median), (end, row), (10, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(timings)), list(timings))
    axes.invert_yaxis()
    axes.margins(x=0.18)
    if wide:
        axes.set_xscale("log")
    else:
        axes.set_xlim(left=0)
    axes.xaxis.set_major_formatter(lambda value, _: format_seconds(value) if value > 0 else "0")
    return figure


class Curve(NamedTuple):
    """A line of a plot over sizes.

    Attributes:
        label: its name.
        timings: per size, what one call takes.
        color: its colour.
        dashed: whether it belongs to another package.
    """

    label: str
    timings: Sequence[Timing]
    color: str
    dashed: bool = False


def sizes_figure(
    title: str,
    sizes: Sequence[int],
    curves: Sequence[Curve],
    crossings: Mapping[str, float | None],
    evens: Mapping[str, Sequence[int | None]],
) -> Any:
    """Return the plots of one call's time and of the calls until break-even, both over the size.

    Args:
        title: of the plot.
        sizes: the sizes.
        curves: the times.
        crossings: for each function, the size from which the compiled call is faster, if known.
        evens: per function, the break-even at each size, None where compiling never pays.
    """
    figure = empty_figure(10, 4.4)
    calls, even = figure.subplots(1, 2)
    for one, name in ((calls, "one call"), (even, "calls until compiling has paid off")):
        one.set_title(name, loc="left", fontsize="medium")
        one.set_xscale("log")
        one.set_xlabel("size")
        one.set_xticks(list(sizes), [f"{size:,}" for size in sizes], rotation=45 if len(sizes) > 6 else 0)
        one.minorticks_off()
        one.grid(visible=True, alpha=0.3)
    figure.suptitle(title, x=0.01, ha="left")
    for curve in curves:
        style = "--" if curve.dashed else "-"
        calls.plot(sizes, [t.median for t in curve.timings], style, color=curve.color, marker="o", markersize=4,
                   label=curve.label)
        ends = [timing.interval for timing in curve.timings]
        if all(high != inf for _, high in ends):
            calls.fill_between(sizes, [low for low, _ in ends], [high for _, high in ends], color=curve.color,
                               alpha=0.2, linewidth=0)
    calls.set_yscale("log")
    _label(calls, format_seconds)
    for name, crossing in crossings.items():
        if crossing is not None:
            calls.axvline(crossing, color=MARK, linestyle=":", linewidth=1)
            several = f"{name}: " if len(crossings) > 1 else ""
            calls.annotate(f" {several}pays from {crossing:,.0f}", (crossing, 0.03),
                           xycoords=("data", "axes fraction"), color=MARK, fontsize="small")
    calls.legend(loc="best", fontsize="small")
    _draw_evens(even, sizes, evens)
    return figure


def _label(axes: Any, text: Callable[[float], str]) -> None:
    """Label a logarithmic axis of y; between the powers of ten too, where there are few of them."""
    low, high = axes.get_ylim()
    axes.yaxis.set_major_formatter(lambda value, _: text(value))
    axes.yaxis.set_minor_formatter(lambda value, _: text(value) if high < 30 * low else "")


def _draw_evens(axes: Any, sizes: Sequence[int], evens: Mapping[str, Sequence[int | None]]) -> None:
    for (name, counts), color in zip(evens.items(), (COMPILED, *OTHERS), strict=False):
        known = [(size, count) for size, count in zip(sizes, counts, strict=True) if count is not None]
        never = [size for size, count in zip(sizes, counts, strict=True) if count is None]
        if known:
            axes.plot([size for size, _ in known], [count for _, count in known], color=color, marker="o",
                      markersize=4, label=name)
        for size in never:
            axes.axvspan(size / 1.12, size * 1.12, color="#ddd", alpha=0.6, linewidth=0)
            axes.annotate("never", (size, 0.5), xycoords=("data", "axes fraction"), rotation=90, ha="center",
                          va="center", color=MARK, fontsize="small")
    if any(count is not None for counts in evens.values() for count in counts):
        axes.set_yscale("log")
        _label(axes, lambda value: f"{value:,.0f}")
        if len(evens) > 1:
            axes.legend(fontsize="small")
    else:
        axes.set_yticks([])


def colors(count: int) -> list[str]:
    """Return colours for eager, compiled and others."""
    return [(EAGER, COMPILED, *OTHERS)[number % (2 + len(OTHERS))] for number in range(count)]

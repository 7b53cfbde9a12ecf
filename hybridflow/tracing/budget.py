"""Compile within a memory budget: find the least recomputation whose temporaries fit, by XLA's own figure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, MemoryBudgetError
from hybridflow.core.node import format_where
from hybridflow.core.units import BYTE_UNITS, parse_bytes
from hybridflow.ir.graph import Graph
from hybridflow.passes import PIPELINE, run_passes
from hybridflow.passes.lib.recompute import Plan, Recomputed, plans
from hybridflow.xla.executable import Executable, compile_graph

_NEAR = 3
"""If the last plan does not fit, at most this many plans before it are tried."""
_MOST_LINES = 12
"""The largest number of lines of the user's code that a printed record shows."""

WITHIN_BUDGET = PIPELINE.without("outline").with_limits("fusion_breaks", large=sys.maxsize)
"""Passes that work against a budget are left out: recomputation is chosen for single operations, not outlined parts."""
_BREAKS = WITHIN_BUDGET.only("fusion_breaks")


def budget_bytes(budget: Any) -> int | None:
    """Return a memory budget in bytes; None for none.

    Raises:
        ArgumentTypeError: the budget is neither an integer nor a string.
        ArgumentError: it is a string that is no size, or less than one byte.
    """
    return None if budget is None else size_in_bytes("compile: memory_budget", budget)


def size_in_bytes(what: str, budget: Any) -> int:
    """Return a size in bytes, given as a number or as text; `what` is what it is of, for messages.

    Raises:
        ArgumentTypeError: the budget is neither an integer nor a string.
        ArgumentError: it is a string that is no size, or less than one byte.
    """
    size: int | None = None
    if isinstance(budget, str):
        size = parse_bytes(budget)
    elif isinstance(budget, int) and not isinstance(budget, bool):
        size = budget
    else:
        raise ArgumentTypeError(f"{what} is a {type(budget).__name__}",
                                hint="Give bytes, or a string such as '256MiB'.")
    if size is None or size < 1:
        raise ArgumentError(f"{what}={budget!r} is no size", hint=f"Give a number and a unit: {BYTE_UNITS}.")
    return size


def bytes_text(count: int) -> str:
    """Format a number of bytes."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} B"


@dataclass(frozen=True)
class MemoryRecord:
    """The effect of a budget on one executable.

    Attributes:
        budget: the budget in bytes.
        temporaries: the size of the temporaries in bytes, by XLA's figure.
        without: the same without any recomputation.
        recomputed: the operations that are recomputed, for each line of the user's code.
        flops: the floating-point operations per call that this costs.
        attempts: the number of executables that were compiled to find this one.
    """

    budget: int
    temporaries: int
    without: int
    recomputed: tuple[Recomputed, ...]
    flops: int
    attempts: int

    def lines(self) -> list[str]:
        """Return the lines of the printed record."""
        fits = f"  memory budget {bytes_text(self.budget)}: temporaries {bytes_text(self.temporaries)}"
        if not self.recomputed:
            return [f"{fits}, nothing is computed again"]
        head = f"{fits} instead of {bytes_text(self.without)}, for {self.flops / 1e6:,.1f} MFLOP more per call"
        lines = [f"{head}; found in {self.attempts} compile(s)"]
        for one in self.recomputed[:_MOST_LINES]:
            names = ", ".join([name if times == 1 else f"{name} x{times}" for name, times in one.operations.items()])
            lines.append(f"    again: {names} at {format_where(one.where)}, {one.flops / 1e6:,.1f} MFLOP")
        if len(self.recomputed) > _MOST_LINES:
            lines.append(f"    again: {len(self.recomputed) - _MOST_LINES} more lines, in .memory.recomputed")
        return lines


@dataclass(frozen=True)
class _Attempt:
    plan: Plan
    graph: Graph
    executable: Executable
    temporaries: int


def compile_within(
    graph: Graph, budget: int, *, donate: Sequence[int] = (), sizes: dict[str, int], device: Any = None
) -> tuple[Executable, Graph, MemoryRecord]:
    """Compile a graph so that its temporaries fit a budget.

    Args:
        graph: the graph, after its passes.
        budget: bytes.
        donate, sizes, device: as `compile_graph` takes them.

    Returns:
        The executable, the graph that it runs, and the record.

    Raises:
        MemoryBudgetError: no plan fits; the text names the smallest budget that does.
    """
    tried: dict[int, _Attempt] = {}
    levels: list[Plan] = []

    def attempt(level: int) -> _Attempt:
        if level not in tried:
            plan = levels[level]
            arranged, _ = run_passes(plan.graph(graph), differentiable=False, pipeline=_BREAKS)
            executable = compile_graph(arranged, donate=donate, sizes=sizes, device=device)
            tried[level] = _Attempt(plan, arranged, executable, _temporaries(executable))
        return tried[level]

    levels.append(Plan.of(graph))
    if attempt(0).temporaries > budget:
        levels[:] = plans(graph, sizes)
    outcome = _search(budget, [plan.peak for plan in levels], attempt)
    if outcome is None:
        least = min(one.temporaries for one in tried.values())
        raise MemoryBudgetError(
            f"compile: {graph.name} does not fit a memory budget of {bytes_text(budget)}: with all recomputation "
            f"that saves anything its temporaries take {bytes_text(least)} ({least} bytes)",
            got=f"{bytes_text(tried[0].temporaries)} without",
            hint=f"The smallest budget that can be kept is {least}; smaller batches, or "
                 "hf.accumulate_gradients, need less."
        )
    plan = outcome.plan
    record = MemoryRecord(
        budget, outcome.temporaries, tried[0].temporaries, plan.recomputed, plan.flops, len(tried)
    )
    return outcome.executable, outcome.graph, record


def _search(budget: int, peaks: Sequence[int], attempt: Callable[[int], _Attempt]) -> _Attempt | None:
    """Return the first attempt that fits, of a sequence in which each takes less memory; None if none fits.

    Args:
        budget: bytes.
        peaks: estimates of their memory from the graph, which guide the search.
        attempt: makes an attempt.
    """
    low, high = 0, len(peaks) - 1
    if attempt(low).temporaries <= budget:
        return attempt(low)
    if attempt(high).temporaries > budget:
        # XLA makes choices of its own, so the last plan may take a little more memory than one before it.
        near = [attempt(level) for level in range(max(1, high - _NEAR), high)]
        return next((one for one in near if one.temporaries <= budget), None)
    halve = False
    while high - low > 1:
        middle = (low + high) // 2 if halve else _between(low, high, budget, peaks, attempt)
        if attempt(middle).temporaries <= budget:
            high = middle
        else:
            low = middle
        halve = not halve
    return attempt(high)


def _between(low: int, high: int, budget: int, peaks: Sequence[int], attempt: Callable[[int], _Attempt]) -> int:
    """Return the plan, between two others, that would just fit if memory were linear in the graph's estimate."""
    over, under = attempt(low).temporaries, attempt(high).temporaries
    share = (over - budget) / max(1, over - under)
    target = peaks[low] - share * (peaks[low] - peaks[high])
    fitting = next((level for level in range(low + 1, high) if peaks[level] <= target), high - 1)
    return min(max(fitting, low + 1), high - 1)


def _temporaries(made: Executable) -> int:
    analysis = made.compiled.memory_analysis()
    if analysis is None:
        raise MemoryBudgetError("compile: memory_budget needs XLA's figures, and this backend gives none",
                                hint="Leave memory_budget out, and use hf.checkpoint.")
    return int(analysis.temp_size_in_bytes)

"""Judgements of functions that are compiled for bounds: one program for all sizes up to one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hybridflow.analysis.compare.several import Comparisons
from hybridflow.analysis.parity import Call, Parity, check_parity, fresh_copy
from hybridflow.tracing.function import CompiledFunction


def judge_within_bounds(
    functions: Sequence[Callable[..., Any]],
    calls: Sequence[Call],
    measured: Sequence[Comparisons],
    tolerance: tuple[float, float] | None,
) -> tuple[Comparisons, ...]:
    """Add, for each size that a program for a bound serves, a judgement of what it gives.

    The largest size comes first: with it the function is traced, and the next one opens the sizes.

    Args:
        functions: the functions.
        calls: the arguments at each size, ascending.
        measured: what was found with programs for exact sizes, at each size.
        tolerance: as in `check_parity`.
    """
    found = [*measured]
    for number, function in enumerate(functions):
        compiled = fresh_copy(function, bounded=True)
        for at in reversed(range(len(calls))):
            parity = check_parity(compiled, [calls[at]], "results of padded inputs", tolerance)
            if _bounds(compiled):
                found[at] = _with_parity(found[at], number, parity)
    return tuple(found)


def _bounds(compiled: CompiledFunction[Any, Any]) -> bool:
    """Whether the last call ran a program for a bound."""
    return any([one.bounded for one in compiled.explain()[-1].executables])


def _with_parity(found: Comparisons, number: int, parity: Parity) -> Comparisons:
    comparisons = [*found]
    comparisons[number] = comparisons[number].with_parity(parity)
    return replace(found, comparisons=tuple(comparisons))

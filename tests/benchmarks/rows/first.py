"""The first eager call of every op on a new shape, against a fixed number of milliseconds."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import hybridflow as hf
from hybridflow.core.op import REGISTRY, No, Op, Sample

from ..registry import Case, row


def first_sample(op: Op) -> Sample | None:
    """Return the first good sample of an op, or None."""
    if isinstance(op.samples, No) or op.public is None:
        return None
    for sample in op.samples(np.random.default_rng(0)):
        if isinstance(sample, Sample):
            return sample
    return None


def seconds_of(op: Op, sample: Sample, times: int) -> tuple[float, float]:
    """Return the seconds of a call with nothing compiled for its shapes, and of the op's first call in the process.

    The first call also pays one-time costs: programs for blocks of any array (`hybridflow.ops.blocks`) and the import
    of SciPy.
    """
    given = [hf.asarray(one) if isinstance(one, np.ndarray) else one for one in sample.args]
    call: Callable[[], Any] = lambda: op.public(*given, **sample.kwargs)  # noqa: E731  # pyright: ignore
    begin = time.perf_counter()
    jax.block_until_ready([leaf.numpy() for leaf in jax.tree.leaves(call()) if isinstance(leaf, hf.Tensor)])
    once, best = time.perf_counter() - begin, float("inf")
    for _ in range(times):  # keep the minimum, which other load on the machine affects least
        op.jitted.clear()
        start = time.perf_counter()
        jax.block_until_ready([leaf.numpy() for leaf in jax.tree.leaves(call()) if isinstance(leaf, hf.Tensor)])
        best = min(best, time.perf_counter() - start)
    return best, once


def slowest(case: Case, lowered: bool, bar: float) -> None:
    """Fill in a row with the slowest first call of the ops without, or with, a NumPy kernel."""
    found: list[tuple[float, str]] = []
    starts: list[tuple[float, str]] = []
    records = [op for op in REGISTRY.values() if isinstance(op.kernel, No) == lowered and not op.has("nested")]
    samples = [(op, sample) for op in records if (sample := first_sample(op)) is not None]
    for op, sample in samples[: case.size(len(samples), 3)]:
        if not inspect.isgeneratorfunction(op.public):
            seconds, once = seconds_of(op, sample, 1 if lowered else 5)
            found.append((seconds, op.name))
            starts.append((once, op.name))
    if not found:
        case.skip("on this machine every operation has a kernel")
    found.sort(reverse=True)
    above = [f"{name} {seconds * 1e3:.3g} ms" for seconds, name in found if seconds > bar]
    case.notes.append(f"{len(found)} operations, {len(above)} above the bar{': ' if above else ''}{', '.join(above)}")
    longest = [f"{name} {seconds * 1e3:.3g} ms" for seconds, name in sorted(starts, reverse=True)[:5]]
    case.notes.append(f"the longest first calls of the process: {', '.join(longest)}")
    case.ours(lambda: found[0][0], self_timed=True)
    case.peer(f"{bar * 1e3:.0f} ms", lambda: bar, self_timed=True)


@row("slowest first call on a shape, ops with a NumPy kernel", aims={"1 ms": 1.0})
def first_kernel(case: Case) -> None:
    slowest(case, False, 1e-3)


@row("slowest first call on a shape, ops without one", aims={"30 ms": 1.0})
def first_lowered(case: Case) -> None:
    slowest(case, True, 30e-3)

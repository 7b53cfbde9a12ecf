"""Schedules: learning rates as functions of the number of updates so far. One trace serves a whole training run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ops.choice import clip, minimum, where
from hybridflow.ops.common import cast_to
from hybridflow.ops.elementwise import floor
from hybridflow.ops.transcendental import exp
from hybridflow.ops.trigonometric import cos

Schedule = Callable[[Any], Tensor]
"""A learning rate: a function of the number of updates so far."""


@with_foreign_keywords
def constant(value: float) -> Schedule:
    """Return a schedule with a constant rate."""
    _finite("constant", value)
    return lambda step: as_tensor(step) * 0.0 + value


@with_foreign_keywords
def linear(start: float, end: float, steps: int) -> Schedule:
    """Return a schedule that goes linearly from one rate to another, and stays there.

    Example:
        >>> import hybridflow as hf
        >>> rate = hf.optim.linear(1.0, 0.0, 4)
        >>> [rate(step).item() for step in (0, 1, 4, 9)]
        [1.0, 0.75, 0.0, 0.0]
    """
    _finite("linear", start, end)
    _positive("linear", "steps", steps)
    return lambda step: start + (end - start) * _part(step, steps)


@with_foreign_keywords
def cosine(start: float, steps: int, final: float = 0.0) -> Schedule:
    """Return a schedule that falls from one rate to another along half a cosine wave, and stays there.

    Reference:
        I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017.
    """
    _finite("cosine", start, final)
    _positive("cosine", "steps", steps)
    return lambda step: final + (start - final) * (0.5 + 0.5 * cos(math.pi * _part(step, steps)))


@with_foreign_keywords
def warmup_cosine(peak: float, warmup: int, steps: int, final: float = 0.0) -> Schedule:
    """Return a schedule: a linear rise from 0 in `warmup` steps, then half a cosine wave down to `final` at `steps`."""
    _positive("warmup_cosine", "warmup", warmup)
    _positive("warmup_cosine", "steps after the warmup", steps - warmup)
    up, down = linear(0.0, peak, warmup), cosine(peak, steps - warmup, final)
    return lambda step: where(as_tensor(step) < warmup, up(step), down(as_tensor(step) - warmup))


@with_foreign_keywords
def exponential(start: float, factor: float) -> Schedule:
    """Return a schedule whose rate is multiplied by a positive factor at every step."""
    _finite("exponential", start, factor)
    _positive("exponential", "factor", factor)
    return lambda step: start * exp(_number(step) * math.log(factor))


@with_foreign_keywords
def step(start: float, factor: float, every: int) -> Schedule:
    """Return a schedule whose rate is multiplied by a positive factor every `every` steps."""
    _finite("step", start, factor)
    _positive("step", "factor", factor)
    _positive("step", "every", every)
    return lambda step: start * exp(floor((_number(step) + 0.5) / every) * math.log(factor))


@with_foreign_keywords
def piecewise(values: Sequence[float], boundaries: Sequence[int]) -> Schedule:
    """Return a schedule whose rate is constant between boundaries.

    Example:
        >>> import hybridflow as hf
        >>> rate = hf.optim.piecewise([1.0, 0.5, 0.25], [2, 5])
        >>> [rate(step).item() for step in (0, 1, 2, 5)]
        [1.0, 1.0, 0.5, 0.25]
    """
    _finite("piecewise", *values)
    if len(values) != len(boundaries) + 1 or sorted(boundaries) != list(boundaries):
        raise ArgumentError("piecewise: there must be one value more than boundaries, and these in order",
                            got=f"{len(values)} values, boundaries={list(boundaries)}")

    def rate(step: Any) -> Tensor:
        step = as_tensor(step)
        rate = constant(values[0])(step)
        for value, boundary in zip(values[1:], boundaries, strict=True):
            rate = where(step >= boundary, value, rate)
        return rate

    return rate


@with_foreign_keywords
def one_cycle(peak: float, steps: int, *, warmup: float = 0.3, start: float = 25.0, final: float = 1e4) -> Schedule:
    """Return a schedule of two half cosines: up from ``peak / start``, then down to ``peak / start / final``.

    Args:
        peak: the largest rate.
        steps: the number of steps of both parts together.
        warmup: the fraction of the steps that the rise takes.
        start: `peak` divided by the first rate.
        final: the first rate divided by the last one.

    Raises:
        ArgumentError: there are too few steps, or `warmup` is not between 0 and 1.

    Reference:
        L. Smith, N. Topin, "Super-convergence", 2018.
    """
    _finite("one_cycle", peak, start, final)
    if not 0 < warmup < 1:
        raise ArgumentError(f"one_cycle: warmup={warmup!r} is not between 0 and 1",
                            hint="It is the part of the steps that the rate rises in.")
    top = warmup * steps - 1
    if not top > 0:
        least = math.floor(1 / warmup) + 1
        raise ArgumentError(f"one_cycle: steps={steps!r}, and it takes {least} at least to rise and fall "
                            f"with warmup={warmup!r}", hint=f"Pass {least} steps or more, or a larger warmup.")

    def wave(a: float, b: float, part: Any) -> Tensor:
        return b + (a - b) * (0.5 + 0.5 * cos(math.pi * clip(part, 0.0, 1.0)))

    def rate(step: Any) -> Tensor:
        now = _number(step)
        up = wave(peak / start, peak, now / top)
        down = wave(peak, peak / start / final, (now - top) / (steps - 1 - top))
        return where(now <= top, up, down)

    return rate


def _number(step: Any) -> Tensor:
    return cast_to(as_tensor(step), float32)


def _part(step: Any, steps: int) -> Tensor:
    return minimum(_number(step) / steps, 1.0)


def _finite(name: str, *values: float) -> None:
    for value in values:
        if not math.isfinite(value):
            raise ArgumentError(f"{name}: every number must be finite", got=repr(value))


def _positive(name: str, what: str, value: float) -> None:
    if not value > 0:
        raise ArgumentError(f"{name}: {what} must be positive", got=repr(value))

"""Helpers of lowerings that keep XLA's algebraic simplifier away from floats.

It simplifies as if floats were real numbers, and loses NaN, infinities and signs of zeros. It would also sum in one
long run, which loses precision; `float_sum` sums in several.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from jax import lax

_LINEAR: ContextVar[bool] = ContextVar("hybridflow linear lowerings", default=False)


@contextmanager
def linear_lowerings() -> Generator[None]:
    """Turn hiding off in a block, so that JAX can transpose the lowerings of linear operations."""
    token = _LINEAR.set(True)
    try:
        yield
    finally:
        _LINEAR.reset(token)


def hidden(x: Any, beside: Any) -> Any:
    """Return a float operand of a lowering in a form that XLA does not simplify.

    Where `beside`, the other operand, is NaN, the result is `beside` instead of `x`. So the operation's result must be
    NaN there anyway. XLA fuses the one comparison and the one select with the operation.
    """
    return x if _LINEAR.get() else lax.select(lax.ne(beside, beside), beside, x)


def hidden_result(y: Any) -> Any:
    """Return a float result in a form that hides its origin from XLA's simplifier.

    XLA would turn ``log(a ** b)`` into ``b * log(a)``, which is NaN for ``a < 0``, and ``a / b / c`` into
    ``a / (b * c)``. Clamping to infinite limits leaves every value unchanged, also NaN. Complex numbers have no such
    limits and stay as they are.
    """
    if _LINEAR.get() or y.dtype.kind == "c":
        return y
    infinity = np.asarray(np.inf, y.dtype)
    return lax.clamp(-infinity, y, infinity)


def positive_zero(y: Any) -> Any:
    """Return a sum with 0.0 in place of -0.0, which XLA gives for one element or when it moves a negation out."""
    return y if _LINEAR.get() else lax.select(y == 0, lax.full_like(y, 0), y)


_WINDOW = 32
"""The most elements of an axis that XLA sums in one run."""
_RUN = 1024
"""The most floats that `float_sum` sums in one run."""


def float_sum(x: Any, axis: tuple[int, ...]) -> Any:
    """Sum floats over axes without long runs of additions.

    XLA sums in runs over up to 32 elements of each axis, so a run over four axes has up to a million elements.
    Therefore few axes are summed at once, and `hidden_result` keeps XLA from joining the sums.
    """
    axes = sorted([i % x.ndim for i in axis], reverse=True)
    runs = [min(size, _WINDOW) if isinstance(size, int) else _WINDOW for size in x.shape]  # other sizes are symbolic
    while True:
        run, now = 1, []
        while axes and (not now or run * runs[axes[0]] <= _RUN):
            run *= runs[axes[0]]
            now.append(axes.pop(0))
        x = lax.reduce_sum(x, tuple(now))
        if not axes:
            return x
        x = hidden_result(x)

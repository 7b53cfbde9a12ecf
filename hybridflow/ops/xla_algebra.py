"""Keeping XLA's algebra off floats: it simplifies as if these were numbers, and NaN, infinities and zeros get lost.

And what it would sum in one run, in which too much is rounded off, in several.
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
    """Hide nothing in a block: there, lowerings of what is linear must be functions that JAX can transpose."""
    token = _LINEAR.set(True)
    try:
        yield
    finally:
        _LINEAR.reset(token)


def hidden(x: Any, beside: Any) -> Any:
    """Return a float operand of a lowering in a form that XLA's algebra does not know, and so leaves alone.

    The result of the operation must be NaN where `beside`, its other operand, is NaN: there it is put in the place of
    `x`, in one comparison and one choice that are fused with the operation.
    """
    return x if _LINEAR.get() else lax.select(lax.ne(beside, beside), beside, x)


def hidden_result(y: Any) -> Any:
    """Return a float result in a form of which XLA's algebra does not know where it comes from.

    It would make ``log(a ** b)`` ``b * log(a)``, which is NaN for ``a < 0``, and ``a / b / c`` ``a / (b * c)``. Limits
    that nothing exceeds leave each value as it is, NaN too. Complex numbers have none.
    """
    if _LINEAR.get() or y.dtype.kind == "c":
        return y
    infinity = np.asarray(np.inf, y.dtype)
    return lax.clamp(-infinity, y, infinity)


def positive_zero(y: Any) -> Any:
    """Return a sum with 0.0 in place of -0.0, which XLA leaves where there is one element, or takes a negation out."""
    return y if _LINEAR.get() else lax.select(y == 0, lax.full_like(y, 0), y)


_WINDOW = 32
"""XLA sums at most this many elements of each axis in one run."""
_RUN = 1024
"""The most floats that are summed in one run."""


def float_sum(x: Any, axis: tuple[int, ...]) -> Any:
    """Sum floats over axes with no run of additions that is long.

    XLA sums in runs over up to 32 elements of each axis, so a run over four axes has up to a million. Therefore few
    axes are summed at once; between such sums stands what XLA does not take out to join them.
    """
    axes = sorted([i % x.ndim for i in axis], reverse=True)
    runs = [min(size, _WINDOW) if isinstance(size, int) else _WINDOW for size in x.shape]  # others are jax's open sizes
    while True:
        run, now = 1, []
        while axes and (not now or run * runs[axes[0]] <= _RUN):
            run *= runs[axes[0]]
            now.append(axes.pop(0))
        x = lax.reduce_sum(x, tuple(now))
        if not axes:
            return x
        x = hidden_result(x)

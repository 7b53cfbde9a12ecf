"""Helpers of lowerings that keep XLA's algebraic simplifier away from floats, and old versions of it from integers.

It simplifies as if floats were real numbers, and loses NaN, infinities and signs of zeros. It would also sum in one
long run, which loses precision; `float_sum` sums in several. Old versions forget that integers wrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from jax import lax

from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.backend.jax_shim import SOUND_INTEGERS
from hybridflow.backend.options import is_on_cpus

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


def of_bits(lowering: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return a lowering of the same bits for both kinds of integers, for versions of XLA that fail on signed ones.

    It computes on the unsigned ones there, which takes no more time.
    """

    def lower(a: Any, b: Any) -> Any:
        if SOUND_INTEGERS or a.dtype.kind != "i":
            return lowering(a, b)
        unsigned = np.dtype(f"u{a.dtype.name}")
        bits = [lax.bitcast_convert_type(one, unsigned) for one in (a, b)]
        return lax.bitcast_convert_type(lowering(*bits), a.dtype)

    return lower


product = of_bits(lax.mul)
"""The lowering of a product."""


def wrapping_power(x: Any, exponent: int) -> Any:
    """Raise to a power that is a Python int, as `lax.integer_pow` does."""
    if SOUND_INTEGERS or x.dtype.kind != "i" or exponent < 2:
        return lax.integer_pow(x, exponent)
    half = wrapping_power(x, exponent // 2)
    return product(product(half, half), x) if exponent % 2 else product(half, half)


def absolute(x: Any) -> Any:
    """Return absolute values; that of the smallest integer wraps, also where XLA would take it as positive."""
    if SOUND_INTEGERS or x.dtype.kind != "i":
        return lax.abs(x)
    sign = lax.shift_right_arithmetic(x, lax.full_like(x, 8 * x.dtype.itemsize - 1))
    return lax.sub(lax.bitwise_xor(x, sign), sign)


_WINDOW = 32
"""The most elements of an axis that XLA sums in one run."""
_RUN = 1024
"""The most floats that `float_sum` sums in one run."""


def float_sum(x: Any, axis: tuple[int, ...]) -> Any:
    """Sum floats over axes without long runs of additions.

    XLA sums in runs over up to 32 elements of each axis, so a run over four axes has up to a million elements.
    Therefore few axes are summed at once, and `hidden_result` keeps XLA from joining the sums. On CPUs, a product with
    ones is faster where it applies.
    """
    axes = sorted([i % x.ndim for i in axis], reverse=True)
    if _is_summed_by_products(x.shape, x.dtype):
        x, axes = _sum_by_products(x, axes)
    runs = [min(size, _WINDOW) if isinstance(size, int) else _WINDOW for size in x.shape]  # other sizes are symbolic
    while axes:
        run, now = 1, []
        while axes and (not now or run * runs[axes[0]] <= _RUN):
            run *= runs[axes[0]]
            now.append(axes.pop(0))
        x = lax.reduce_sum(x, tuple(now))
        if axes:
            x = hidden_result(x)
    return x


_LEAST, _MOST = 1 << 15, 1 << 22
"""The fewest and the most elements that are summed by products: fewer take no less time, and more take much memory."""
_SHORTEST, _ROW, _COLUMN = 16, 512, 128
"""The fewest terms of an element of such a product, and the most if they lie in one row or in different rows: more
would lose precision, since a product adds few of them at a time."""


def _is_summed_by_products(shape: tuple[Any, ...], dtype: Any) -> bool:
    """Whether sums of such floats are lowered as products with ones.

    XLA:CPU computes each element of a sum by itself, without vector instructions, and along columns if the first axes
    are summed. Products are computed by fast kernels. But they read stored elements, so these take memory.
    """
    if not is_on_cpus() or LOWERED_FOR.get() is not None or dtype.type not in (np.float32, np.float64):
        return False
    return all([type(size) is int for size in shape]) and _LEAST <= math.prod(shape) <= _MOST


def _sum_by_products(x: Any, axes: list[int]) -> tuple[Any, list[int]]:
    """Sum over the last and the first axes by products; return the result and the axes that are left, in falling order.

    Args:
        x: the floats.
        axes: the axes to sum over, in falling order.
    """
    last = len([i for number, i in enumerate(axes) if i == x.ndim - 1 - number])
    kept, length = x.shape[: x.ndim - last], math.prod(x.shape[x.ndim - last :])
    parts = _parts(length, _ROW) if kept and last else 0
    if parts:
        rows = lax.reshape(x, (math.prod(kept) * parts, length // parts))
        sums = _product(rows, lax.full((length // parts,), 1, x.dtype), (1, 0))
        x, axes = lax.reduce_sum(lax.reshape(sums, (*kept, parts)), (len(kept),)), axes[last:]
    if x.size < _LEAST or not axes or axes != [*range(len(axes))][::-1] or len(axes) == x.ndim:
        return x, axes
    kept, length = x.shape[len(axes) :], math.prod(x.shape[: len(axes)])
    parts = _parts(length, _COLUMN)
    if not parts:
        return x, axes
    columns = lax.reshape(x, (parts, length // parts, math.prod(kept)))
    sums = _product(lax.full((parts, length // parts), 1, x.dtype), columns, (1, 1), batch=(0,))
    return lax.reduce_sum(lax.reshape(sums, (parts, *kept)), (0,)), []


def _parts(length: int, most: int) -> int:
    """Return the fewest equal parts of at most so many terms, or 0 if these would have too few terms."""
    fewest = -(-length // most)
    return next((parts for parts in range(fewest, length // _SHORTEST + 1) if length % parts == 0), 0)


def _product(a: Any, b: Any, contracted: tuple[int, int], batch: tuple[int, ...] = ()) -> Any:
    dimensions = (((contracted[0],), (contracted[1],)), (batch, batch))
    return lax.dot_general(a, b, dimensions, precision=lax.Precision.HIGHEST)

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
"""The most floats that are summed in one run where XLA adds them in several threads' registers."""
_SHORT = 64
"""The most neighbours that are summed at once on CPUs along an axis that is not the last one: beyond a window's length
XLA takes another way, which is up to thirty times as fast there. Along rows it is slower."""


def float_sum(x: Any, axis: tuple[int, ...]) -> Any:
    """Sum floats, or complex numbers, over axes without long runs of additions.

    XLA sums in runs over up to 32 elements of each axis, so a run over four axes has up to a million elements; and if
    an axis was made of several by a reshape, XLA sums over these. Therefore few terms are summed at once, and
    `hidden_result` keeps XLA from joining the sums. On CPUs, a product with ones is faster where it applies.
    """
    if x.dtype.kind == "c":
        return lax.complex(float_sum(lax.real(x), axis), float_sum(lax.imag(x), axis))
    axes = sorted([i % x.ndim for i in axis], reverse=True)
    if not is_on_cpus() or LOWERED_FOR.get() is not None or not all([type(size) is int for size in x.shape]):
        return _sum_over_whole_axes(x, axes)
    if x.dtype.type in (np.float32, np.float64) and _LEAST <= math.prod(x.shape) <= _MOST:
        x, axes = _sum_by_products(x, axes)
    while axes and math.prod([x.shape[i] for i in axes]) > _WINDOW:
        x, axes = _sum_some_terms(x, axes)
    return lax.reduce_sum(x, tuple(axes))


def _sum_over_whole_axes(x: Any, axes: list[int]) -> Any:
    """Sum over a few axes at once, since a reshape would move the parts of sharded axes, and open sizes allow none."""
    most = _SHORT if is_on_cpus() else _RUN
    runs = [min(size, _WINDOW) if isinstance(size, int) else _WINDOW for size in x.shape]  # other sizes are symbolic
    while axes:
        run, now = 1, []
        while axes and (not now or run * runs[axes[0]] <= most):
            run *= runs[axes[0]]
            now.append(axes.pop(0))
        x = lax.reduce_sum(x, tuple(now))
        if axes:
            x = hidden_result(x)
    return x


def _sum_some_terms(x: Any, axes: list[int]) -> tuple[Any, list[int]]:
    """Sum a few neighbours along the last axes; return the sums and the axes that are left, in falling order."""
    joined = _adjacent(axes)
    first, end = axes[joined - 1], axes[0] + 1
    length = math.prod(x.shape[first:end])
    most = _WINDOW if end == x.ndim else _SHORT
    if length <= most:
        return hidden_result(lax.reduce_sum(x, tuple(axes[:joined]))), axes[joined:]
    terms = _divisor(length, most, most // 2 + 1) or most
    whole = length - length % terms
    rest = None
    if whole < length:
        x = lax.reshape(x, (*x.shape[:first], length, *x.shape[end:]))
        rest = hidden_result(lax.reduce_sum(lax.slice_in_dim(x, whole, length, axis=first), (first,)))
        x, end = lax.slice_in_dim(x, 0, whole, axis=first), first + 1
    x = lax.reshape(x, (*x.shape[:first], whole // terms, terms, *x.shape[end:]))
    sums = hidden_result(lax.reduce_sum(x, (first + 1,)))
    if rest is not None:
        sums = lax.concatenate([sums, lax.expand_dims(rest, (first,))], first)
    return sums, [first, *axes[joined:]]


def _adjacent(axes: list[int]) -> int:
    """Return how many axes, from the last on, lie next to one another."""
    return next((n for n in range(1, len(axes)) if axes[n] != axes[0] - n), len(axes))


_LEAST, _MOST = 1 << 15, 1 << 22
"""The fewest and the most elements that are summed by products: fewer take no less time, and more take much memory."""
_SHORTEST, _ROW, _COLUMN = 16, 512, 128
"""The fewest terms of an element of such a product, and the most if they lie in one row or in different rows: more
would lose precision, since a product adds few of them at a time."""


def _sum_by_products(x: Any, axes: list[int]) -> tuple[Any, list[int]]:
    """Sum blocks of terms along the last and the first axes; return the sums and the axes left, in falling order.

    XLA:CPU computes each element of a sum by itself, without vector instructions, and along columns if the first axes
    are summed. Products are computed by fast kernels. But they read stored elements, so these take memory.

    Args:
        x: the floats.
        axes: the axes to sum over, in falling order.
    """
    last = _adjacent(axes) if axes and axes[0] == x.ndim - 1 else 0
    kept, length = x.shape[: x.ndim - last], math.prod(x.shape[x.ndim - last :])
    if last and length >= _SHORTEST:
        sums = _sum_rows(lax.reshape(x, (math.prod(kept), length)))
        parts = sums.shape[1:] if sums.shape[1] > 1 else ()
        x, axes = lax.reshape(sums, (*kept, *parts)), [len(kept)] * len(parts) + axes[last:]
    if x.size < _LEAST or axes != [*range(len(axes))][::-1] or not 0 < len(axes) < x.ndim:
        return x, axes
    kept, length = x.shape[len(axes) :], math.prod(x.shape[: len(axes)])
    terms = _divisor(length, _COLUMN, _SHORTEST)
    if not terms:
        return x, axes
    parts = length // terms
    columns = lax.reshape(x, (parts, terms, math.prod(kept)))
    sums = _product(lax.full((parts, terms), 1, x.dtype), columns, (1, 1), batch=(0,))
    return lax.reshape(sums, (parts, *kept)), [0]


def _sum_rows(x: Any) -> Any:
    """Sum parts of the rows of a matrix; return a matrix of the sums."""
    rows, length = x.shape
    terms = _divisor(length, _ROW, _SHORTEST)
    if not terms:
        whole = length - length % _ROW
        rest = float_sum(lax.slice_in_dim(x, whole, length, axis=1), (1,))
        return lax.concatenate([_sum_rows(lax.slice_in_dim(x, 0, whole, axis=1)), lax.expand_dims(rest, (1,))], 1)
    sums = _product(lax.reshape(x, (x.size // terms, terms)), lax.full((terms,), 1, x.dtype), (1, 0))
    return lax.reshape(sums, (rows, length // terms))


def _divisor(length: int, most: int, fewest: int) -> int:
    """Return the largest divisor of a length in a range, or 0."""
    return next((terms for terms in range(min(most, length), fewest - 1, -1) if length % terms == 0), 0)


def _product(a: Any, b: Any, contracted: tuple[int, int], batch: tuple[int, ...] = ()) -> Any:
    dimensions = (((contracted[0],), (contracted[1],)), (batch, batch))
    return lax.dot_general(a, b, dimensions, precision=lax.Precision.HIGHEST)

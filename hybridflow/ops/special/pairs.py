"""Logarithms times a factor, and what is made of them, in `hf.special`: relative entropies."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Sample, Saves
from hybridflow.ops.common import Tensor, TensorLike, positives, promote_float
from hybridflow.ops.kinds import Kind
from hybridflow.ops.special.common import NO_OPERATOR, by_scipy, log1p_less, row_samples, rule, widened

special_pair = Kind(("float",), operands=2)
"""Functions of two real floats."""
_BOTH = Saves(x=(0, 1))
_ENDS = [[a, b] for a in (0.0, 1.0, -1.0, np.inf, np.nan) for b in (0.0, 2.0, -0.5, np.inf, np.nan)]
_AT_ENDS = [Sample(tuple(np.array(_ENDS, dtype).T), gradient=False) for dtype in (np.float32, np.float64)]
_PAIRS = row_samples(positives, positives, more=_AT_ENDS)


def _times(log: Any) -> Any:
    """Return the lowering of x times a function of y, which is 0 where x is 0, unless y is NaN."""

    def lower(x: Any, y: Any) -> Any:
        zero = (x == 0) & (y == y)
        return jnp.where(zero, 0, x * log(jnp.where(zero, 1, y)))

    return lower


def _divided(F: Any, x: Any, y: Any) -> Any:
    """Return ``x / y``, and 0 where both are 0."""
    both = (x == 0) & (y == 0)
    return x / F.where(both, 1, y)


@special_pair(
    lambda x, y: by_scipy("xlogy", x, y), widened(_times(lax.log)),
    vjp=rule(_BOTH, lambda F, v, x, y: F.log(y), lambda F, v, x, y: _divided(F, x, y)),
    saves=_BOTH, samples=_PAIRS, traits=("full_precision",), onnx=NO_OPERATOR,
)
def xlogy(x: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute ``x * log(y)`` elementwise, and 0 where `x` is 0 and `y` is not NaN.

    Args:
        x, y: floating-point, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 4 units in the last place.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.xlogy([0.0, 2.0], [0.0, 1.0])
        Tensor([0., 0.], dtype=float32)
    """
    return bind(xlogy.op, promote_float(x, y))


@special_pair(
    lambda x, y: by_scipy("xlog1py", x, y), widened(_times(lax.log1p)),
    vjp=rule(_BOTH, lambda F, v, x, y: F.log1p(y), lambda F, v, x, y: _divided(F, x, y + 1)),
    saves=_BOTH, samples=_PAIRS, traits=("full_precision",), onnx=NO_OPERATOR,
)
def xlog1py(x: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute ``x * log(1 + y)`` elementwise, and 0 where `x` is 0 and `y` is not NaN.

    Args:
        x, y: floating-point, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 4 units in the last place.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.xlog1py([0.0, 2.0], [-1.0, 0.0])
        Tensor([0., 0.], dtype=float32)
    """
    return bind(xlog1py.op, promote_float(x, y))


def _rel_entr(xp: Any, x: Any, y: Any) -> Any:
    inside = (x > 0) & (y > 0)
    one, two = xp.where(inside, x, 1), xp.where(inside, y, 1)
    near = abs(one - two) < 0.5 * two
    ratio = one / two
    normal = (ratio > 1e-30) & (ratio < 1e30)
    far = xp.where(normal, xp.log(xp.where(normal, ratio, 1)), xp.log(one) - xp.log(two))
    logs = xp.where(near, xp.log1p(xp.where(near, (one - two) / two, 0)), far)
    either = (x != x) | (y != y)
    nan_or = xp.where(either, np.nan, np.inf)
    return xp.where(inside, one * logs, xp.where((x == 0) & (y >= 0), 0, nan_or)).astype(x.dtype)


@special_pair(
    lambda x, y: _rel_entr(np, x, y), widened(lambda x, y: _rel_entr(jnp, x, y)),
    vjp=rule(_BOTH, lambda F, v, x, y: F.log(x) - F.log(y) + 1, lambda F, v, x, y: -_divided(F, x, y)),
    saves=_BOTH, samples=_PAIRS, traits=("full_precision",), ulp=4, onnx=NO_OPERATOR,
)
def rel_entr(x: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute ``x * log(x / y)`` elementwise; its sum over two distributions is their relative entropy.

    It is 0 where `x` is 0 and `y` is not negative, and infinite where either is negative, or `y` alone is 0.

    Args:
        x, y: floating-point, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 4 units in the last place.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.rel_entr([0.5, 0.0], [0.25, 1.0])
        Tensor([0.3465736, 0.       ], dtype=float32)

    Reference:
        T. M. Cover and J. A. Thomas, Elements of Information Theory, 2006, section 2.3.
    """
    return bind(rel_entr.op, promote_float(x, y))


def _kl_div(xp: Any, x: Any, y: Any) -> Any:
    inside = (x > 0) & (y > 0)
    one, two = xp.where(inside, x, 1), xp.where(inside, y, 1)
    near = abs(two - one) < 0.5 * one
    close = abs(one * log1p_less(xp, (two - one) / one))  # not the product with -1, which may be -0.0
    outside = xp.where((x != x) | (y != y), np.nan, xp.where((x == 0) & (y >= 0), y, np.inf))
    return xp.where(inside, xp.where(near, close, _rel_entr(xp, one, two) - one + two), outside).astype(x.dtype)


@special_pair(
    lambda x, y: _kl_div(np, x, y), widened(lambda x, y: _kl_div(jnp, x, y)),
    vjp=rule(_BOTH, lambda F, v, x, y: F.log(x) - F.log(y), lambda F, v, x, y: 1 - _divided(F, x, y)),
    saves=_BOTH, samples=_PAIRS, traits=("full_precision",), ulp=32, onnx=NO_OPERATOR,
)
def kl_div(x: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute ``x * log(x / y) - x + y`` elementwise, which is convex and at least 0.

    It is `y` where `x` is 0 and `y` is not negative, and infinite where either is negative, or `y` alone is 0.

    Args:
        x, y: floating-point, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 32 units in the last place.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.kl_div([0.5, 0.0], [0.5, 1.0])
        Tensor([0., 1.], dtype=float32)

    Reference:
        S. Boyd and L. Vandenberghe, Convex Optimization, 2004, section 3.1.5.
    """
    return bind(kl_div.op, promote_float(x, y))


__all__ = ["kl_div", "rel_entr", "xlog1py", "xlogy"]

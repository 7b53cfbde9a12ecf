"""Elementwise activation functions, each with a rule of its own."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Saves, on_host, op, public_names
from hybridflow.ops.blocks import by_xla
from hybridflow.ops.common import (
    REAL,
    Tensor,
    TensorLike,
    elements,
    normals,
    one_of,
    pointwise,
    promote,
    promote_float,
    truth,
    unary_samples,
)
from hybridflow.ops.host_rows import in_blocks
from hybridflow.ops.nn.common import REAL_FLOAT, lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.onnx import exactly, exp_m1
from hybridflow.ops.xla_algebra import hidden_result


def _away_from_zero(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers of both signs that are not near a kink at 0."""
    values = np.asarray(rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape))
    return np.asarray(values.astype(normals(rng, dtype=dtype).dtype))


# -- relu and its kin ---------------------------------------------------------------------------------------------


@op(
    kernel=lambda x: np.maximum(x, x.dtype.type(0)),
    lower=lambda x: lax.max(x, lax.full_like(x, 0)),
    infer=pointwise("relu", REAL),
    vjp=lambda F, g, y, x: (F.keep_where(g, y > 0),),
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(_away_from_zero),
    traits=("pointwise", "idempotent"),
    ulp=0,
    onnx="Relu",
)
def relu(x: TensorLike, /) -> Tensor:
    """Compute the larger of the element and 0.

    Args:
        x: real.

    Returns:
        The same shape and dtype; NaN stays NaN.

    Kink:
        The slope at 0 is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.relu([-1.0, 2.0])
        Tensor([0., 2.], dtype=float32)
    """
    return bind(relu.op, promote(x))


# Where both sides of a kink are computed and added, one of them is exactly 0: much faster than np.where.


def _leaky_kernel(x: Any, *, slope: float) -> Any:
    zero = x.dtype.type(0)
    return np.maximum(x, zero) + np.minimum(x, zero) * x.dtype.type(slope)


def _leaky_lower(x: Any, *, slope: float) -> Any:
    zero = lax.full_like(x, 0)
    return lax.add(lax.max(x, zero), lax.mul(lax.min(x, zero), lax.full_like(x, slope)))


def _leaky_vjp(F: Any, g: Any, y: Any, x: Any, *, slope: float) -> Any:
    del y
    positive = x > 0
    return (F.keep_where(g, positive) + F.keep_where(g * slope, F.logical_not(positive)),)


@op(
    kernel=_leaky_kernel,
    lower=_leaky_lower,
    infer=pointwise("leaky_relu", REAL_FLOAT),
    vjp=_leaky_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(_away_from_zero),
    traits=("pointwise",),
    ulp=1,
    onnx=exactly("LeakyRelu", lambda o, x, *, slope: o.Where(o.Less(x, 0), x * slope, x), alpha="slope"),
)
def leaky_relu(x: TensorLike, /, slope: float = 0.01) -> Tensor:
    """Compute ``x`` where it is positive and ``slope * x`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        slope: the factor of what is not positive.

    Returns:
        The same shape and dtype.

    Kink:
        The slope at 0 is that from the left.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.leaky_relu([-1.0, 2.0], slope=0.5)
        Tensor([-0.5,  2. ], dtype=float32)
    """
    return bind(leaky_relu.op, promote_float(x), {"slope": float(slope)})


def _elu_kernel(x: Any, *, alpha: float) -> Any:
    zero = x.dtype.type(0)
    return np.maximum(x, zero) + np.expm1(np.minimum(x, zero)) * x.dtype.type(alpha)


def _elu_lower(x: Any, *, alpha: float) -> Any:
    zero = lax.full_like(x, 0)
    return lax.add(lax.max(x, zero), lax.mul(lax.expm1(lax.min(x, zero)), lax.full_like(x, alpha)))


def _elu_vjp(F: Any, g: Any, y: Any, x: Any, *, alpha: float) -> Any:
    # Written with x, so that the second order does not pass through y.
    del y
    positive = x > 0
    left = g * (F.exp(-F.relu(-x)) * alpha)
    return (F.keep_where(g, positive) + F.keep_where(left, F.logical_not(positive)),)


@op(
    kernel=_elu_kernel,
    lower=_elu_lower,
    infer=pointwise("elu", REAL_FLOAT),
    vjp=_elu_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(_away_from_zero),
    traits=("pointwise",),
    onnx=lambda o, x, *, alpha: o.Where(o.Less(x, 0), exp_m1(o, x) * alpha, x),
)
def elu(x: TensorLike, /, alpha: float = 1.0) -> Tensor:
    """Compute ``x`` where it is positive and ``alpha * (exp(x) - 1)`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        alpha: minus the limit far below zero.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.elu([0.0, 2.0])
        Tensor([0., 2.], dtype=float32)

    Reference:
        Clevert, Unterthiner and Hochreiter, "Fast and accurate deep network learning by exponential linear units",
        2015.
    """
    return bind(elu.op, promote_float(x), {"alpha": float(alpha)})


def _hard_swish_kernel(x: Any) -> Any:
    kind = x.dtype.type
    return x * (np.clip(x + kind(3), kind(0), kind(6)) * kind(1 / 6))


def _hard_swish_lower(x: Any) -> Any:
    wide_x = lower_wide(x)
    full = lax.full_like
    gate = lax.max(lax.min(lax.add(wide_x, full(wide_x, 3)), full(wide_x, 6)), full(wide_x, 0))
    return lower_narrow(lax.mul(wide_x, lax.mul(gate, full(wide_x, 1 / 6))), x.dtype)


def _hard_swish_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    middle = g * (x * (1 / 3) + 0.5)
    return (F.where(x > -3, F.where(x < 3, middle, g), F.keep_where(middle, x != x)),)


@op(
    kernel=_hard_swish_kernel,
    lower=_hard_swish_lower,
    infer=pointwise("hard_swish", REAL_FLOAT),
    vjp=_hard_swish_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    onnx=lambda o, x: x * o.Clip(x * (1 / 6) + 0.5, 0, 1),
)
def hard_swish(x: TensorLike, /) -> Tensor:
    """Compute ``x * clip(x + 3, 0, 6) / 6``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        The slope at -3 is 0, at 3 it is 1.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hard_swish([-4.0, 0.0, 4.0])
        Tensor([-0.,  0.,  4.], dtype=float32)

    Reference:
        Howard et al., "Searching for MobileNetV3", 2019.
    """
    return bind(hard_swish.op, promote_float(x))


# -- smooth ones --------------------------------------------------------------------------------------------------


def _sigmoid_kernel(x: Any) -> Any:
    one = x.dtype.type(1)
    if not x.ndim:
        return one / (one + np.exp(-x))
    y = np.negative(x)
    np.exp(y, out=y)
    y += one
    return np.reciprocal(y, out=y)


def _sigmoid_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del x
    dtype, g, y = y.dtype, wide(F, g), wide(F, y)
    return (narrow(F, g * (y * (1 - y)), dtype),)


@op(
    kernel=_sigmoid_kernel,
    lower=lambda x: lower_narrow(lax.logistic(lower_wide(x)), x.dtype),
    infer=pointwise("sigmoid", REAL_FLOAT),
    vjp=_sigmoid_vjp,
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    onnx="Sigmoid",
)
def sigmoid(x: TensorLike, /) -> Tensor:
    """Compute ``1 / (1 + exp(-x))``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.sigmoid([0.0])
        Tensor([0.5], dtype=float32)
    """
    return bind(sigmoid.op, promote_float(x))


def _silu_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    dtype, g, x = x.dtype, wide(F, g), wide(F, x)
    s = F.sigmoid(x)
    return (narrow(F, g * (s * (x * (1 - s) + 1)), dtype),)


def _silu_lower(x: Any) -> Any:
    full = lower_wide(x)
    return lower_narrow(lax.mul(full, lax.logistic(full)), x.dtype)


@op(
    kernel=lambda x: x / (x.dtype.type(1) + np.exp(-x)),
    lower=_silu_lower,
    infer=pointwise("silu", REAL_FLOAT),
    vjp=_silu_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    onnx=lambda o, x: x * o.Sigmoid(x),
)
def silu(x: TensorLike, /) -> Tensor:
    """Compute ``x * sigmoid(x)``, also known as swish.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.silu([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(silu.op, promote_float(x))


def _softsign_lower(x: Any) -> Any:
    full = lower_wide(x)
    return lower_narrow(hidden_result(lax.div(full, lax.add(lax.abs(full), lax.full_like(full, 1)))), x.dtype)


@op(
    kernel=lambda x: x / (np.abs(x) + x.dtype.type(1)),
    lower=_softsign_lower,
    infer=pointwise("softsign", REAL_FLOAT),
    vjp=lambda F, g, y, x: (g * F.square(1 - F.abs(y)),),
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    onnx="Softsign",
)
def softsign(x: TensorLike, /) -> Tensor:
    """Compute ``x / (1 + |x|)``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype, between -1 and 1.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.softsign([-1.0, 3.0])
        Tensor([-0.5 ,  0.75], dtype=float32)
    """
    return bind(softsign.op, promote_float(x))


def _softplus_lower(x: Any) -> Any:
    full = lower_wide(x)
    tail = lax.log1p(lax.exp(lax.neg(lax.abs(full))))
    return lower_narrow(lax.add(lax.max(full, lax.full_like(full, 0)), tail), x.dtype)


@op(
    kernel=lambda x: np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x))),
    lower=_softplus_lower,
    infer=pointwise("softplus", REAL_FLOAT),
    vjp=lambda F, g, y, x: (g * F.sigmoid(x),),
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise", "full_precision"),
    onnx="Softplus",
)
def softplus(x: TensorLike, /) -> Tensor:
    """Compute ``log(1 + exp(x))`` without overflow.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.softplus([100.0])
        Tensor([100.], dtype=float32)
    """
    return bind(softplus.op, promote_float(x))


# -- gelu ---------------------------------------------------------------------------------------------------------

_SQRT_HALF = math.sqrt(0.5)
_DENSITY = 1 / math.sqrt(2 * math.pi)
_TANH_SCALE = 2 * math.sqrt(2 / math.pi)
_TANH_CUBIC = 0.044715


def _gelu_lower(x: Any) -> Any:
    full = lower_wide(x)
    # erfc keeps the left tail accurate, where 1 + erf would cancel.
    twice = lax.erfc(lax.mul(full, lax.full_like(full, -_SQRT_HALF)))
    return lower_narrow(lax.mul(lax.mul(full, lax.full_like(full, 0.5)), twice), x.dtype)


def _gelu_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    dtype, g, x = x.dtype, wide(F, g), wide(F, x)
    cumulative = (F.erf(x * _SQRT_HALF) + 1) * 0.5
    return (narrow(F, g * (cumulative + x * (F.exp(x * x * -0.5) * _DENSITY)), dtype),)


@op(
    kernel=by_xla(_gelu_lower),
    lower=_gelu_lower,
    infer=pointwise("gelu", REAL_FLOAT),
    vjp=_gelu_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    ulp=8,
    onnx=exactly("Gelu", lambda o, x: x * 0.5 * (1 + o.Erf(x * _SQRT_HALF))),
)
def gelu(x: TensorLike, /, approximate: bool | Literal["none", "tanh"] = False) -> Tensor:
    """Compute ``x * P(X <= x)`` for a standard normal X.

    Args:
        x: floating-point; integers become float32.
        approximate: whether to use the usual tanh approximation, which differs by up to 5e-4; torch's words for False
            and True, ``"none"`` and ``"tanh"``, do too.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.gelu([0.0, 100.0])
        Tensor([  0., 100.], dtype=float32)

    Reference:
        Hendrycks and Gimpel, "Gaussian error linear units (GELUs)", 2016.
    """
    if isinstance(approximate, str):
        approximate = one_of("gelu", "approximate", approximate, ("none", "tanh")) == "tanh"
    if truth("gelu", "approximate", approximate):
        return _gelu_tanh(x)
    return bind(gelu.op, promote_float(x))


# (1 + tanh(u)) / 2 is sigmoid(2 * u), which does not cancel on the left.


def _exp_of_minus_doubled(x: Any, square: Any, out: Any) -> None:
    kind = x.dtype.type
    np.multiply(square, kind(-_TANH_CUBIC * _TANH_SCALE), out=out)
    out -= kind(_TANH_SCALE)
    out *= x
    np.exp(out, out=out)


def _gelu_tanh_steps(y: Any, x: Any) -> None:
    np.multiply(x, x, out=y)
    _exp_of_minus_doubled(x, y, y)
    y += x.dtype.type(1)
    np.divide(x, y, out=y)


def _gelu_tanh_kernel(x: Any) -> Any:
    return in_blocks(_gelu_tanh_steps, 0, x)


def _gelu_tanh_lower(x: Any) -> Any:
    full = lower_wide(x)
    square = lax.mul(lax.mul(full, full), lax.full_like(full, _TANH_CUBIC * _TANH_SCALE))
    doubled = lax.mul(full, lax.add(square, lax.full_like(square, _TANH_SCALE)))
    return lower_narrow(lax.mul(full, lax.logistic(doubled)), x.dtype)


def _gelu_tanh_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    dtype, g, x = x.dtype, wide(F, g), wide(F, x)
    square = x * x
    gate = F.sigmoid(x * (square * (_TANH_CUBIC * _TANH_SCALE) + _TANH_SCALE))
    slope = square * (3 * _TANH_CUBIC * _TANH_SCALE) + _TANH_SCALE
    return (narrow(F, g * (gate * (x * (1 - gate) * slope + 1)), dtype),)


def _gelu_tanh_slopes(y: Any, g: Any, x: Any, square: Any, gate: Any) -> None:
    kind = x.dtype.type
    np.multiply(x, x, out=square)
    _exp_of_minus_doubled(x, square, gate)
    gate += kind(1)
    np.reciprocal(gate, out=gate)
    np.subtract(kind(1), gate, out=y)
    y *= x
    square *= kind(3 * _TANH_CUBIC * _TANH_SCALE)
    square += kind(_TANH_SCALE)
    y *= square
    y += kind(1)
    y *= gate
    y *= g


def _gelu_tanh_host(g: Any, y: Any, x: Any) -> Any:
    del y
    return (in_blocks(_gelu_tanh_slopes, 2, g, x),)


@op(
    name="gelu_tanh",
    kernel=_gelu_tanh_kernel,
    lower=_gelu_tanh_lower,
    infer=pointwise("gelu_tanh", REAL_FLOAT),
    vjp=on_host(_gelu_tanh_vjp, _gelu_tanh_host),
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    ulp=8,
    onnx=lambda o, x: x * o.Sigmoid(x * (x * x * (_TANH_CUBIC * _TANH_SCALE) + _TANH_SCALE)),
)
def _gelu_tanh(x: TensorLike, /) -> Tensor:
    """Compute the tanh approximation of gelu."""
    return bind(_gelu_tanh.op, promote_float(x))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

"""Rectifiers and other piecewise-defined elementwise activation functions."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.keywords import respelled
from hybridflow.core.op import Saves, op
from hybridflow.ops.choice import clip
from hybridflow.ops.common import (
    REAL,
    Tensor,
    TensorLike,
    elements,
    normals,
    pointwise,
    promote,
    promote_float,
    unary_samples,
)
from hybridflow.ops.kinds import real_function
from hybridflow.ops.nn.common import lower_narrow, lower_wide
from hybridflow.ops.onnx import exactly, exp_m1


def _away_from_zero(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers of both signs that are not near a kink at 0."""
    values = np.asarray(rng.uniform(0.2, 2.0, shape) * rng.choice([-1.0, 1.0], shape))
    return np.asarray(values.astype(normals(rng, dtype=dtype).dtype))


# -- relu and its relatives -------------------------------------------------------------------------------------------


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
def relu(x: TensorLike, /, **other: Any) -> Tensor:
    """Compute the larger of the element and 0.

    Args:
        x: real.
        other: keywords of other packages, such as ``inplace``, which is refused.

    Returns:
        The same shape and dtype; NaN stays NaN.

    Kink:
        There is no derivative at 0; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.relu([-1.0, 2.0])
        Tensor([0., 2.], dtype=float32)
    """
    if other:
        return respelled(relu, locals())
    return bind(relu.op, promote(x))


# These kernels compute both sides of a kink and add them. One side is exactly 0, and adding is faster than np.where.


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


@real_function(
    _leaky_kernel, _leaky_lower,
    vjp=_leaky_vjp, saves=Saves(x=(0,)), samples=unary_samples(_away_from_zero), ulp=1,
    onnx=exactly("LeakyRelu", lambda o, x, *, slope: o.Where(o.Less(x, 0), x * slope, x), alpha="slope"),
)
def leaky_relu(x: TensorLike, /, slope: float = 0.01, **other: Any) -> Tensor:
    """Compute ``x`` where it is positive and ``slope * x`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        slope: the factor of elements that are not positive.
        other: names that other packages use for these arguments, such as ``negative_slope``.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at 0; the gradient there is the one from the left.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.leaky_relu([-1.0, 2.0], slope=0.5)
        Tensor([-0.5,  2. ], dtype=float32)
    """
    if other:
        return respelled(leaky_relu, locals())
    return bind(leaky_relu.op, promote_float(x), {"slope": float(slope)})


def _elu_kernel(x: Any, *, alpha: float) -> Any:
    zero = x.dtype.type(0)
    return np.maximum(x, zero) + np.expm1(np.minimum(x, zero)) * x.dtype.type(alpha)


def _elu_lower(x: Any, *, alpha: float) -> Any:
    zero = lax.full_like(x, 0)
    return lax.add(lax.max(x, zero), lax.mul(lax.expm1(lax.min(x, zero)), lax.full_like(x, alpha)))


def _elu_vjp(F: Any, g: Any, y: Any, x: Any, *, alpha: float) -> Any:
    # Written in terms of x, so that the second-order gradient does not pass through y.
    del y
    positive = x > 0
    left = g * (F.exp(-F.relu(-x)) * alpha)
    return (F.keep_where(g, positive) + F.keep_where(left, F.logical_not(positive)),)


@real_function(
    _elu_kernel, _elu_lower,
    vjp=_elu_vjp, saves=Saves(x=(0,)), samples=unary_samples(_away_from_zero),
    onnx=lambda o, x, *, alpha: o.Where(o.Less(x, 0), exp_m1(o, x) * alpha, x),
)
def elu(x: TensorLike, /, alpha: float = 1.0, **other: Any) -> Tensor:
    """Compute ``x`` where it is positive and ``alpha * (exp(x) - 1)`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        alpha: minus the limit towards minus infinity.
        other: keywords of other packages, such as ``inplace``, which is refused.

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
    if other:
        return respelled(elu, locals())
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


@real_function(
    _hard_swish_kernel, _hard_swish_lower,
    vjp=_hard_swish_vjp, saves=Saves(x=(0,)), onnx=lambda o, x: x * o.Clip(x * (1 / 6) + 0.5, 0, 1),
)
def hard_swish(x: TensorLike, /) -> Tensor:
    """Compute ``x * clip(x + 3, 0, 6) / 6``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at -3 and 3; the gradient is 0 at -3 and 1 at 3.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hard_swish([-4.0, 0.0, 4.0])
        Tensor([-0.,  0.,  4.], dtype=float32)

    Reference:
        Howard et al., "Searching for MobileNetV3", 2019.
    """
    return bind(hard_swish.op, promote_float(x))


def _off_kinks(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers between and beyond the kinks at -3, 0, 3 and 6, not near any of them."""
    values = rng.choice(np.asarray([-5.0, -1.5, 1.5, 4.5, 8.0]), shape) + rng.uniform(-0.5, 0.5, shape)
    return np.asarray(values).astype(normals(rng, dtype=dtype).dtype)


def _relu6_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del x
    return (F.keep_where(g, F.logical_and(y > 0, y < 6)),)


@real_function(
    lambda x: np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6)),
    lambda x: lax.min(lax.max(x, lax.full_like(x, 0)), lax.full_like(x, 6)),
    vjp=_relu6_vjp, saves=Saves(y=True), samples=unary_samples(_off_kinks), traits=("idempotent",), ulp=0,
    onnx=lambda o, x: o.Clip(x, 0, 6),
)
def relu6(x: TensorLike, /) -> Tensor:
    """Compute ``clip(x, 0, 6)``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at 0 and 6; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.relu6([-1.0, 2.0, 8.0])
        Tensor([0., 2., 6.], dtype=float32)

    Reference:
        Krizhevsky, "Convolutional deep belief networks on CIFAR-10", 2010.
    """
    return bind(relu6.op, promote_float(x))


def _hard_sigmoid_kernel(x: Any) -> Any:
    kind = x.dtype.type
    return np.clip(x + kind(3), kind(0), kind(6)) * kind(1 / 6)


def _hard_sigmoid_lower(x: Any) -> Any:
    wide = lower_wide(x)
    gate = lax.max(lax.min(lax.add(wide, lax.full_like(wide, 3)), lax.full_like(wide, 6)), lax.full_like(wide, 0))
    return lower_narrow(lax.mul(gate, lax.full_like(wide, 1 / 6)), x.dtype)


def _hard_sigmoid_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    return (F.keep_where(g * (1 / 6), F.logical_and(x > -3, x < 3)),)


@real_function(
    _hard_sigmoid_kernel, _hard_sigmoid_lower,
    vjp=_hard_sigmoid_vjp, saves=Saves(x=(0,)), samples=unary_samples(_off_kinks),
    onnx=lambda o, x: o.Clip(x + 3, 0, 6) * (1 / 6),
)
def hard_sigmoid(x: TensorLike, /) -> Tensor:
    """Compute ``clip(x + 3, 0, 6) / 6``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at -3 and 3; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hard_sigmoid([-4.0, 0.0, 4.0])
        Tensor([0. , 0.5, 1. ], dtype=float32)

    Reference:
        Courbariaux, Bengio and David, "BinaryConnect", 2015.
    """
    return bind(hard_sigmoid.op, promote_float(x))


def hard_tanh(x: TensorLike, /, low: float = -1.0, high: float = 1.0) -> Tensor:
    """Compute ``clip(x, low, high)``.

    Args:
        x: floating-point; integers become float32.
        low: the smallest value of the result.
        high: the largest value of the result.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at both ends; the gradient there is 1, as with `hf.clip`.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hard_tanh([-4.0, 0.5, 4.0])
        Tensor([-1. ,  0.5,  1. ], dtype=float32)
    """
    return clip(promote_float(x)[0], low, high)


def _celu_kernel(x: Any, *, alpha: float) -> Any:
    zero, a = x.dtype.type(0), x.dtype.type(alpha)
    return np.maximum(x, zero) + np.expm1(np.minimum(x, zero) / a) * a


def _celu_lower(x: Any, *, alpha: float) -> Any:
    zero, a = lax.full_like(x, 0), lax.full_like(x, alpha)
    return lax.add(lax.max(x, zero), lax.mul(lax.expm1(lax.div(lax.min(x, zero), a)), a))


def _celu_vjp(F: Any, g: Any, y: Any, x: Any, *, alpha: float) -> Any:
    del y
    positive = x > 0
    left = g * F.exp(-F.relu(-x) * (1 / alpha))
    return (F.keep_where(g, positive) + F.keep_where(left, F.logical_not(positive)),)


@real_function(
    _celu_kernel, _celu_lower,
    vjp=_celu_vjp, saves=Saves(x=(0,)), samples=unary_samples(_off_kinks),
    onnx=lambda o, x, *, alpha: o.Where(o.Less(x, 0), exp_m1(o, x / alpha) * alpha, x),
)
def celu(x: TensorLike, /, alpha: float = 1.0) -> Tensor:
    """Compute ``x`` where it is positive and ``alpha * (exp(x / alpha) - 1)`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        alpha: minus the limit towards minus infinity.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.celu([0.0, 2.0])
        Tensor([0., 2.], dtype=float32)

    Reference:
        Barron, "Continuously differentiable exponential linear units", 2017.
    """
    return bind(celu.op, promote_float(x), {"alpha": float(alpha)})


_SELU_ALPHA = 1.6732632423543772
_SELU_SCALE = 1.0507009873554805


def _selu_kernel(x: Any) -> Any:
    kind = x.dtype.type
    zero = kind(0)
    left = np.expm1(np.minimum(x, zero)) * kind(_SELU_ALPHA * _SELU_SCALE)
    return np.maximum(x, zero) * kind(_SELU_SCALE) + left


def _selu_lower(x: Any) -> Any:
    zero = lax.full_like(x, 0)
    left = lax.mul(lax.expm1(lax.min(x, zero)), lax.full_like(x, _SELU_ALPHA * _SELU_SCALE))
    return lax.add(lax.mul(lax.max(x, zero), lax.full_like(x, _SELU_SCALE)), left)


def _selu_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    positive = x > 0
    left = g * (F.exp(-F.relu(-x)) * (_SELU_ALPHA * _SELU_SCALE))
    return (F.keep_where(g * _SELU_SCALE, positive) + F.keep_where(left, F.logical_not(positive)),)


@real_function(
    _selu_kernel, _selu_lower,
    vjp=_selu_vjp, saves=Saves(x=(0,)), samples=unary_samples(_off_kinks),
    onnx=lambda o, x: o.Where(o.Less(x, 0), exp_m1(o, x) * (_SELU_ALPHA * _SELU_SCALE), x * _SELU_SCALE),
)
def selu(x: TensorLike, /) -> Tensor:
    """Compute a multiple of `elu` that keeps mean 0 and variance 1 from layer to layer.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        There is no derivative at 0; the gradient there is the one from the left.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.selu([0.0, 2.0])
        Tensor([0.      , 2.101402], dtype=float32)

    Reference:
        Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017.
    """
    return bind(selu.op, promote_float(x))


__all__ = ["celu", "elu", "hard_sigmoid", "hard_swish", "hard_tanh", "leaky_relu", "relu", "relu6", "selu"]

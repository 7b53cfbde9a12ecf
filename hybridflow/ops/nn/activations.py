"""Smooth elementwise activation functions."""

from __future__ import annotations

import math
from typing import Any, Literal, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Saves, on_host
from hybridflow.ops.blocks import by_xla
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    is_number,
    normalize_axis,
    one_of,
    promote_float,
    truth,
)
from hybridflow.ops.host_rows import in_blocks
from hybridflow.ops.kinds import real_function
from hybridflow.ops.nn.common import lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.onnx import exactly
from hybridflow.ops.xla_algebra import hidden_result

# -- sigmoid and its relatives
# --------------------------------------------------------------------------------------------------


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


@real_function(
    _sigmoid_kernel, lambda x: lower_narrow(lax.logistic(lower_wide(x)), x.dtype),
    vjp=_sigmoid_vjp, saves=Saves(y=True), onnx="Sigmoid",
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


@real_function(
    lambda x: x / (x.dtype.type(1) + np.exp(-x)), _silu_lower,
    vjp=_silu_vjp, saves=Saves(x=(0,)), onnx=lambda o, x: x * o.Sigmoid(x),
)
def silu(x: TensorLike, /, **other: Any) -> Tensor:
    """Compute ``x * sigmoid(x)``, also known as swish.

    Args:
        x: floating-point; integers become float32.
        other: keywords of other packages, such as ``inplace``, which is refused.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.silu([0.0])
        Tensor([0.], dtype=float32)
    """
    if other:
        return respelled(silu, locals())
    return bind(silu.op, promote_float(x))


def _softsign_lower(x: Any) -> Any:
    full = lower_wide(x)
    return lower_narrow(hidden_result(lax.div(full, lax.add(lax.abs(full), lax.full_like(full, 1)))), x.dtype)


@real_function(
    lambda x: x / (np.abs(x) + x.dtype.type(1)), _softsign_lower,
    vjp=lambda F, g, y, x: (g * F.square(1 - F.abs(y)),), saves=Saves(y=True), onnx="Softsign",
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


@real_function(
    lambda x: np.maximum(x, x.dtype.type(0)) + np.log1p(np.exp(-np.abs(x))), _softplus_lower,
    vjp=lambda F, g, y, x: (g * F.sigmoid(x),), saves=Saves(x=(0,)), traits=("full_precision",), onnx="Softplus",
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


@real_function(
    by_xla(_gelu_lower), _gelu_lower,
    vjp=_gelu_vjp, saves=Saves(x=(0,)), ulp=8, onnx=exactly("Gelu", lambda o, x: x * 0.5 * (1 + o.Erf(x * _SQRT_HALF))),
)
def gelu(x: TensorLike, /, approximate: bool | Literal["none", "tanh"] = False) -> Tensor:
    """Compute ``x * P(X <= x)`` for a standard normal X.

    Args:
        x: floating-point; integers become float32.
        approximate: whether to use the usual tanh approximation, which differs by up to 5e-4. ``"none"`` and
            ``"tanh"``, torch's words for False and True, work too.

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


@real_function(
    _gelu_tanh_kernel, _gelu_tanh_lower,
    vjp=on_host(_gelu_tanh_vjp, _gelu_tanh_host), saves=Saves(x=(0,)), ulp=8, name="gelu_tanh",
    onnx=lambda o, x: x * o.Sigmoid(x * (x * x * (_TANH_CUBIC * _TANH_SCALE) + _TANH_SCALE)),
)
def _gelu_tanh(x: TensorLike, /) -> Tensor:
    """Compute the tanh approximation of gelu."""
    return bind(_gelu_tanh.op, promote_float(x))


def _mish_kernel(x: Any) -> Any:
    zero = x.dtype.type(0)
    return x * np.tanh(np.maximum(x, zero) + np.log1p(np.exp(-np.abs(x))))


def _mish_lower(x: Any) -> Any:
    wide = lower_wide(x)
    soft = lax.add(lax.max(wide, lax.full_like(wide, 0)), lax.log1p(lax.exp(lax.neg(lax.abs(wide)))))
    return lower_narrow(lax.mul(wide, lax.tanh(soft)), x.dtype)


def _mish_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    t = F.tanh(F.softplus(x))
    return (g * (t + x * (F.sigmoid(x) * (1 - t * t))),)


@real_function(
    _mish_kernel, _mish_lower,
    vjp=_mish_vjp, saves=Saves(x=(0,)), flops=lambda y, x: 5 * x.size, ulp=8,
    onnx=lambda o, x: x * o.Tanh(o.Softplus(x)),
)
def mish(x: TensorLike, /) -> Tensor:
    """Compute ``x * tanh(softplus(x))``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.mish([0.0, 20.0])
        Tensor([ 0., 20.], dtype=float32)

    Reference:
        Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """
    return bind(mish.op, promote_float(x))


# -- made of other operations -------------------------------------------------------------------------------------


def log_sigmoid(x: TensorLike, /) -> Tensor:
    """Compute ``log(sigmoid(x))`` without underflow.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.log_sigmoid([-200.0, 0.0])
        Tensor([-200.       ,   -0.6931472], dtype=float32)
    """
    return -softplus(-promote_float(x)[0])


def swish(x: TensorLike, /, beta: TensorLike = 1.0) -> Tensor:
    """Compute ``x * sigmoid(beta * x)``; with ``beta=1`` it is `silu`.

    Args:
        x: floating-point; integers become float32.
        beta: a number, or a tensor of a shape that broadcasts; gradients flow to a tensor.

    Returns:
        The broadcast shape, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.swish([0.0, 2.0], beta=100.0)
        Tensor([0., 2.], dtype=float32)

    Reference:
        Ramachandran, Zoph and Le, "Searching for activation functions", 2017.
    """
    tensor = promote_float(x)[0]
    if is_number(beta) and beta == 1:
        return silu(tensor)
    return tensor * sigmoid(tensor * (beta if is_number(beta) else as_tensor(beta)))


def glu(x: TensorLike, /, axis: int = -1, **other: Unpack[Other]) -> Tensor:
    """Multiply the first half of an axis by the sigmoid of the second half.

    Args:
        x: floating-point; integers become float32.
        axis: the axis to halve.

    Returns:
        The shape of `x` with half the size on the axis.

    Raises:
        ShapeError: an axis that is out of range or has odd size.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.glu([1.0, 2.0, 0.0, 100.0])
        Tensor([0.5, 2. ], dtype=float32)

    Reference:
        Dauphin, Fan, Auli and Grangier, "Language modeling with gated convolutional networks", 2017.
    """
    if other:
        return respelled(glu, locals())
    tensor = promote_float(x)[0]
    axis = normalize_axis("glu", axis, tensor.ndim)
    size = tensor.shape[axis]
    if size % 2 != 0:
        raise ShapeError(f"glu: axis {axis} of size {size} has no two halves", got=f"glu({tensor.spec})")
    before = (slice(None),) * axis
    half = size // 2
    value, gate = tensor[(*before, slice(None, half))], tensor[(*before, slice(half, None))]
    return value * sigmoid(gate)


__all__ = ["gelu", "glu", "log_sigmoid", "mish", "sigmoid", "silu", "softplus", "softsign", "swish"]

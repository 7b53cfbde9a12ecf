"""Further activation functions: piecewise linear ones, and smooth ones."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError, message
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Saves, op, public_names
from hybridflow.ops.choice import clip
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    elements,
    is_number,
    normalize_axis,
    normals,
    pointwise,
    promote_float,
    unary_samples,
)
from hybridflow.ops.nn.activations import sigmoid, silu, softplus
from hybridflow.ops.nn.common import REAL_FLOAT, lower_narrow, lower_wide
from hybridflow.ops.onnx import exp_m1

# -- piecewise linear ---------------------------------------------------------------------------------------------


def _off_kinks(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers between and beyond the kinks at -3, 0, 3 and 6, not near any of them."""
    values = rng.choice(np.asarray([-5.0, -1.5, 1.5, 4.5, 8.0]), shape) + rng.uniform(-0.5, 0.5, shape)
    return np.asarray(values).astype(normals(rng, dtype=dtype).dtype)


def _relu6_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del x
    return (F.keep_where(g, F.logical_and(y > 0, y < 6)),)


@op(
    kernel=lambda x: np.minimum(np.maximum(x, x.dtype.type(0)), x.dtype.type(6)),
    lower=lambda x: lax.min(lax.max(x, lax.full_like(x, 0)), lax.full_like(x, 6)),
    infer=pointwise("relu6", REAL_FLOAT),
    vjp=_relu6_vjp,
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(_off_kinks),
    traits=("pointwise", "idempotent"),
    ulp=0,
    onnx=lambda o, x: o.Clip(x, 0, 6),
)
def relu6(x: TensorLike, /) -> Tensor:
    """Compute ``clip(x, 0, 6)``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        The slope at 0 and 6 is 0.

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


@op(
    kernel=_hard_sigmoid_kernel,
    lower=_hard_sigmoid_lower,
    infer=pointwise("hard_sigmoid", REAL_FLOAT),
    vjp=_hard_sigmoid_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(_off_kinks),
    traits=("pointwise",),
    onnx=lambda o, x: o.Clip(x + 3, 0, 6) * (1 / 6),
)
def hard_sigmoid(x: TensorLike, /) -> Tensor:
    """Compute ``clip(x + 3, 0, 6) / 6``.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        The slope at -3 and 3 is 0.

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
        low: the least value.
        high: the largest value.

    Returns:
        The same shape and dtype.

    Kink:
        As with `hf.clip`, the slope at both ends is 1.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.hard_tanh([-4.0, 0.5, 4.0])
        Tensor([-1. ,  0.5,  1. ], dtype=float32)
    """
    return clip(promote_float(x)[0], low, high)


# -- smooth -------------------------------------------------------------------------------------------------------


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


@op(
    kernel=_celu_kernel,
    lower=_celu_lower,
    infer=pointwise("celu", REAL_FLOAT),
    vjp=_celu_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(_off_kinks),
    traits=("pointwise",),
    onnx=lambda o, x, *, alpha: o.Where(o.Less(x, 0), exp_m1(o, x / alpha) * alpha, x),
)
def celu(x: TensorLike, /, alpha: float = 1.0) -> Tensor:
    """Compute ``x`` where it is positive and ``alpha * (exp(x / alpha) - 1)`` elsewhere.

    Args:
        x: floating-point; integers become float32.
        alpha: minus the limit to the left.

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


@op(
    kernel=_selu_kernel,
    lower=_selu_lower,
    infer=pointwise("selu", REAL_FLOAT),
    vjp=_selu_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(_off_kinks),
    traits=("pointwise",),
    onnx=lambda o, x: o.Where(o.Less(x, 0), exp_m1(o, x) * (_SELU_ALPHA * _SELU_SCALE), x * _SELU_SCALE),
)
def selu(x: TensorLike, /) -> Tensor:
    """Compute a multiple of `elu` that keeps mean 0 and variance 1 from layer to layer.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Kink:
        The slope at 0 is that from the left.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.selu([0.0, 2.0])
        Tensor([0.      , 2.101402], dtype=float32)

    Reference:
        Klambauer, Unterthiner, Mayr and Hochreiter, "Self-normalizing neural networks", 2017.
    """
    return bind(selu.op, promote_float(x))


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


@op(
    kernel=_mish_kernel,
    lower=_mish_lower,
    infer=pointwise("mish", REAL_FLOAT),
    vjp=_mish_vjp,
    saves=Saves(x=(0,)),
    flops=lambda y, x: 5 * x.size,
    samples=unary_samples(),
    traits=("pointwise",),
    ulp=8,
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
    """Compute ``x * sigmoid(beta * x)``; `silu` is the one of ``beta=1``.

    Args:
        x: floating-point; integers become float32.
        beta: a number, or a tensor of a shape that broadcasts; a tensor's gradient flows.

    Returns:
        The shape in which both broadcast, in the promoted dtype.

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
        ShapeError: an axis out of range, or of odd size.

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
        raise ShapeError(message(f"glu: axis {axis} of size {size} has no two halves", got=f"glu({tensor.spec})"))
    before = (slice(None),) * axis
    half = size // 2
    value, gate = tensor[(*before, slice(None, half))], tensor[(*before, slice(half, None))]
    return value * sigmoid(gate)


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

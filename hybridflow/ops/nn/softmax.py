"""Softmax and its logarithm."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    make_spec,
    normalize_axes,
    normals,
    promote_float,
    require_kind,
)
from hybridflow.ops.host_rows import extremum, row_sums
from hybridflow.ops.nn.common import (
    REAL_FLOAT,
    lower_narrow,
    lower_wide,
    narrow,
    wide,
)
from hybridflow.ops.padding import along, lowest
from hybridflow.ops.summation import LONG_ROW, add_up
from hybridflow.ops.xla_algebra import float_sum


def lower_spread(value: Any, shape: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    """Broadcast the result of a reduction over axes back to the shape that was reduced."""
    kept = tuple([index for index in range(len(shape)) if index not in axis])
    return lax.broadcast_in_dim(value, shape, kept)


def lower_shifted(x: Any, axis: tuple[int, ...]) -> Any:
    """Subtract the maximum over axes, in the compute dtype."""
    full = lower_wide(x)
    return lax.sub(full, lower_spread(lax.reduce_max(full, axes=axis), full.shape, axis))


def kernel_shifted(x: Any, axis: tuple[int, ...]) -> Any:
    """Subtract the maximum over axes; the result is a new array."""
    return np.subtract(x, extremum(np.maximum, x, axis, True))


def _infer(name: str) -> Any:
    def infer(x: TensorSpec, *, axis: tuple[int, ...]) -> TensorSpec:
        del axis
        require_kind(name, REAL_FLOAT, x)
        return make_spec(x.shape, x.dtype)

    return infer


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 3, 4),), {"axis": 0})
    yield Sample((normals(rng, 2, 3, 4),), {"axis": (0, -1)})
    yield Sample((normals(rng, 3, 4) * 50,))
    yield Sample((normals(rng, 0, 3),))
    yield Sample((normals(rng, 5, dtype=np.float64),))
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 3, 4),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range")


# -- softmax ------------------------------------------------------------------------------------------------------


_TAME = {4: 60.0, 8: 600.0}
"""By a dtype's size in bytes: exponentials of numbers up to this magnitude neither overflow nor underflow."""


def _softmax_rows(x: Any) -> Any:
    """Return the softmax of many short rows, or None if they must be shifted first to avoid overflow."""
    limit = _TAME.get(x.dtype.itemsize, 0.0)
    if not (np.maximum.reduce(x, axis=None) <= limit and np.minimum.reduce(x, axis=None) >= -limit):
        return None
    y = np.exp(x)
    y *= np.reciprocal(row_sums(y))
    return y


def _softmax_kernel(x: Any, *, axis: tuple[int, ...]) -> Any:
    if not x.size:
        return x.copy()
    if axis == (x.ndim - 1,) and x.ndim > 1 and x.shape[-1] <= LONG_ROW:
        y = _softmax_rows(x)
        if y is not None:
            return y
    y = kernel_shifted(x, axis)
    y = np.exp(y, out=y) if y.ndim else np.exp(y)
    total = add_up(y, axis, True)
    return np.divide(y, total, out=y) if y.ndim else y / total


def _softmax_lower(x: Any, *, axis: tuple[int, ...]) -> Any:
    if not x.size:
        return x
    y = lax.exp(lower_shifted(x, axis))
    inverse = 1 / float_sum(y, axis)  # safe, as the sum is at least 1; a product is faster
    return lower_narrow(lax.mul(y, lower_spread(inverse, y.shape, axis)), x.dtype)


def _softmax_gradient(F: Any, g: Any, y: Any, axis: tuple[int, ...]) -> Any:
    """Return the gradient of the logits, given the probabilities `y` and their cotangent."""
    product = g * y
    return product - y * F.sum(product, axis=axis, keepdims=True)


def _softmax_host(g: Any, y: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    del x
    product = g * y
    if not product.ndim:
        return (np.zeros_like(product),)
    short = axis == (y.ndim - 1,)
    total = row_sums(product) if short else add_up(product, axis, True)
    return (np.subtract(product, y * total, out=product),)


def _softmax_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    return (narrow(F, _softmax_gradient(F, wide(F, g), wide(F, y), axis), x.dtype),)


def _softmax_onnx(o: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    if len(axis) == 1:
        return o.Softmax(x, axis=axis[0])
    if not axis:
        return o.Exp(x - x)
    y = o.Exp(x - o.ReduceMax(x, o.ints(axis), keepdims=1))
    return y / o.ReduceSum(y, o.ints(axis), keepdims=1)


@op(
    kernel=_softmax_kernel,
    lower=_softmax_lower,
    infer=_infer("softmax"),
    vjp=on_host(_softmax_vjp, _softmax_host),
    saves=Saves(y=True),
    flops=lambda y, x, *, axis: 5 * x.size,
    samples=_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=_softmax_onnx,
    padded=along(lowest, result=0),
)
def softmax(x: TensorLike, /, axis: Any = -1, **other: Unpack[Other]) -> Tensor:
    """Divide the exponentials along an axis by their sum.

    Args:
        x: floating-point; integers become float32.
        axis: the axis, or several, along which the result sums to 1.

    Returns:
        The same shape and dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.softmax([0.0, 0.0])
        Tensor([0.5, 0.5], dtype=float32)
    """
    if other:
        return respelled(softmax, locals())
    tensors = promote_float(x)
    return bind(softmax.op, tensors, {"axis": normalize_axes("softmax", axis, tensors[0].ndim)})


# -- log_softmax --------------------------------------------------------------------------------------------------


def _log_softmax_kernel(x: Any, *, axis: tuple[int, ...]) -> Any:
    if not x.size:
        return x.copy()
    y = kernel_shifted(x, axis)
    return y - np.log(add_up(np.exp(y), axis, True))


def _log_softmax_lower(x: Any, *, axis: tuple[int, ...]) -> Any:
    if not x.size:
        return x
    y = lower_shifted(x, axis)
    total = lax.log(float_sum(lax.exp(y), axis))
    return lower_narrow(lax.sub(y, lower_spread(total, y.shape, axis)), x.dtype)


def _log_softmax_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    g, y = wide(F, g), wide(F, y)
    return (narrow(F, g - F.exp(y) * F.sum(g, axis=axis, keepdims=True), x.dtype),)


def _log_softmax_onnx(o: Any, x: Any, *, axis: tuple[int, ...]) -> Any:
    if len(axis) == 1:
        return o.LogSoftmax(x, axis=axis[0])
    return x - o.ReduceLogSumExp(x, o.ints(axis), keepdims=1) if axis else x - x


@op(
    kernel=_log_softmax_kernel,
    lower=_log_softmax_lower,
    infer=_infer("log_softmax"),
    vjp=_log_softmax_vjp,
    saves=Saves(y=True),
    flops=lambda y, x, *, axis: 5 * x.size,
    samples=_samples,
    traits=("log_sum", "full_precision"),
    ulp=64,
    onnx=_log_softmax_onnx,
    padded=along(lowest),
)
def log_softmax(x: TensorLike, /, axis: Any = -1, **other: Unpack[Other]) -> Tensor:
    """Compute the logarithm of `softmax` without overflow or loss of small probabilities.

    Args:
        x: floating-point; integers become float32.
        axis: the axis, or several, along which the exponentials of the result sum to 1.

    Returns:
        The same shape and dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.log_softmax([0.0, 0.0])
        Tensor([-0.6931472, -0.6931472], dtype=float32)
    """
    if other:
        return respelled(log_softmax, locals())
    tensors = promote_float(x)
    return bind(log_softmax.op, tensors, {"axis": normalize_axes("log_softmax", axis, tensors[0].ndim)})


__all__ = ["log_softmax", "softmax"]

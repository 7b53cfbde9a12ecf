"""Normalisation over axes: layer_norm, rms_norm, l2_normalize."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    call_text,
    fixed_number,
    make_spec,
    normalize_axes,
    normals,
    promote_float,
    require_kind,
)
from hybridflow.ops.host_rows import row_products, row_sums
from hybridflow.ops.nn.common import (
    REAL_FLOAT,
    compute_dtype,
    lower_narrow,
    lower_wide,
    narrow,
    wide,
)
from hybridflow.ops.onnx import mean_over
from hybridflow.ops.padding import along, constant
from hybridflow.ops.padding_nn import normalized_axes
from hybridflow.ops.sizes import count_along, lowered_count, reduced_shape
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum


def _infer(
    name: str,
    statistics: int,
    x: TensorSpec,
    parameters: tuple[TensorSpec, ...],
    axis: tuple[int, ...],
    residuals: bool,
) -> Any:
    """Return the specs of a normalisation: that of the result and, with `residuals`, those of its statistics."""
    require_kind(name, REAL_FLOAT, x)
    expected = tuple([x.shape[index] for index in axis])
    for parameter in parameters:
        if parameter.shape != expected:
            raise ShapeError(f"{name}: scale and shift must have the sizes of the normalised axes, {expected}, not "
                             f"{parameter.shape}", got=f"{call_text(name, x, *parameters)} with axis={axis}",
                             hint="Reshape the parameter, or change axis.")
    y = make_spec(x.shape, x.dtype)
    statistic = make_spec(reduced_shape(x.shape, axis, True), compute_dtype(x.dtype))
    return (y, *[statistic] * statistics) if residuals else y


def _aligned(shape: tuple[Any, ...], axis: tuple[int, ...]) -> tuple[Any, ...]:
    """Return a parameter's shape with size 1 off `axis`, so that it broadcasts against the input."""
    return tuple([size if index in axis else 1 for index, size in enumerate(shape)])


def _others(ndim: int, axis: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([index for index in range(ndim) if index not in axis])


def _lower_parameter(value: Any, shape: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(lower_wide(value), shape, axis)


def _lower_mean(x: Any, axis: tuple[int, ...]) -> Any:
    """Average over axes, kept with size 1."""
    total = float_sum(x, axis)
    count = lowered_count(max(count_along(x.shape, axis), 1), total.dtype)
    return lax.expand_dims(lax.div(total, lax.broadcast(count, total.shape)), axis)


def _spread(value: Any, shape: tuple[int, ...]) -> Any:
    return lax.broadcast_in_dim(value, shape, tuple(range(len(shape))))


def _kernel_parameter(value: Any, shape: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    if value.shape != tuple([shape[index] for index in axis]):
        raise ValueError("a parameter of another shape")  # `bind` then runs the shape rule, which says more
    return value.reshape(_aligned(shape, axis))


def _kernel_mean(x: Any, axis: tuple[int, ...]) -> Any:
    return add_up(x, axis, True) / x.dtype.type(max(count_along(x.shape, axis), 1))


def _parameter_samples(rng: np.random.Generator, name: str, count: int) -> Any:
    def parameters(*shape: int, dtype: Any = np.float32) -> Any:
        return tuple([normals(rng, *shape, dtype=dtype) for _ in range(count)])

    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 3, 4), *parameters(4)))
    yield Sample((normals(rng, 2, 3, 4), *parameters(3, 4)), {"axis": (-1, 1)})
    yield Sample((normals(rng, 2, 3, 4), *parameters(3)), {"axis": 1})
    yield Sample((normals(rng, 3, 4), normals(rng, 4)))
    yield Sample((normals(rng, 5, dtype=np.float64), *parameters(5, dtype=np.float64)), {"epsilon": 1e-3})
    yield Sample((normals(rng, 0, 3), *parameters(3)))
    yield Sample((normals(rng, 2, 4, dtype="bfloat16"), *parameters(4, dtype="bfloat16")), gradient=False)
    yield Bad((normals(rng, 3, 4), normals(rng, 3)), error=ShapeError, text=f"{name}: scale and shift must have")
    yield Bad((normals(rng, 3, 4),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range")


# -- layer_norm ---------------------------------------------------------------------------------------------------


def _layer_norm_kernel(
    x: Any, *parameters: Any, axis: tuple[int, ...], epsilon: float, has_scale: bool, has_shift: bool, residuals: bool
) -> Any:
    if axis == (x.ndim - 1,) and x.shape[-1]:
        count = x.dtype.type(x.shape[-1])
        mean = row_sums(x) / count
        y = x - mean
        variance = row_products(y, y) / count
    else:
        mean = _kernel_mean(x, axis)
        y = x - mean
        variance = _kernel_mean(y * y, axis)
    rstd = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(epsilon))
    y *= rstd
    if has_scale:
        y *= _kernel_parameter(parameters[0], x.shape, axis)
    if has_shift:
        y += _kernel_parameter(parameters[-1], x.shape, axis)
    return (y, mean, rstd) if residuals else y


def _layer_norm_lower(
    x: Any, *parameters: Any, axis: tuple[int, ...], epsilon: float, has_scale: bool, has_shift: bool, residuals: bool
) -> Any:
    full, shape = lower_wide(x), x.shape
    mean = _lower_mean(full, axis)
    y = lax.sub(full, _spread(mean, shape))
    variance = _lower_mean(lax.mul(y, y), axis)
    rstd = lax.rsqrt(lax.add(variance, lax.full_like(variance, epsilon)))
    y = lax.mul(y, _spread(rstd, shape))
    if has_scale:
        y = lax.mul(y, _lower_parameter(parameters[0], shape, axis))
    if has_shift:
        y = lax.add(y, _lower_parameter(parameters[-1], shape, axis))
    y = lower_narrow(y, x.dtype)
    return (y, mean, rstd) if residuals else y


def _layer_norm_infer(
    x: TensorSpec,
    *parameters: TensorSpec,
    axis: tuple[int, ...],
    epsilon: float,
    has_scale: bool,
    has_shift: bool,
    residuals: bool,
) -> Any:
    del epsilon, has_scale, has_shift
    return _infer("layer_norm", 2, x, parameters, axis, residuals)


def _layer_norm_vjp(
    F: Any,
    g: Any,
    y: Any,
    x: Any,
    *parameters: Any,
    axis: tuple[int, ...],
    epsilon: float,
    has_scale: bool,
    has_shift: bool,
) -> Any:
    del epsilon
    dtype, g = x.dtype, wide(F, g)
    _, mean, rstd = y
    normed = (wide(F, x) - mean) * rstd
    others = _others(len(x.shape), axis)

    def of_x() -> Any:
        scale = F.reshape(wide(F, parameters[0]), shape=_aligned(x.shape, axis)) if has_scale else None
        inner = g if scale is None else g * scale
        # Sum all contributions here: the caller then adds only one value to the gradient of a skip connection.
        along = normed * F.mean(inner * normed, axis=axis, keepdims=True)
        return narrow(F, (inner - F.mean(inner, axis=axis, keepdims=True) - along) * rstd, dtype)

    gradients = [of_x]
    if has_scale:
        gradients.append(lambda: narrow(F, F.sum(g * normed, axis=others, keepdims=False), dtype))
    if has_shift:
        gradients.append(lambda: narrow(F, F.sum(g, axis=others, keepdims=False), dtype))
    return gradients


def _layer_norm_host(
    g: Any, y: Any, x: Any, *parameters: Any, axis: tuple[int, ...], epsilon: float, has_scale: bool, has_shift: bool
) -> Any:
    del epsilon
    if axis != (x.ndim - 1,) or not x.size:
        return None
    _, mean, rstd = y
    normed = x - mean
    normed *= rstd
    others = tuple(range(x.ndim - 1))

    def of_x() -> Any:
        inner = g * parameters[0] if has_scale else g
        count = x.dtype.type(x.shape[-1])
        along = normed * (row_products(inner, normed) / count)
        result = np.subtract(inner, row_sums(inner) / count, out=inner if has_scale else None)
        result -= along
        result *= rstd
        return result

    gradients = [of_x]
    if has_scale:
        gradients.append(lambda: add_up(g * normed, others, False))
    if has_shift:
        gradients.append(lambda: add_up(g, others, False))
    return gradients


def _layer_norm_samples(rng: np.random.Generator) -> Any:
    yield from _parameter_samples(rng, "layer_norm", 2)
    yield Sample((normals(rng, 3, 4), None, normals(rng, 4)))


def _layer_norm_onnx(
    o: Any,
    x: Any,
    *parameters: Any,
    axis: tuple[int, ...],
    epsilon: float,
    has_scale: bool,
    has_shift: bool,
    residuals: bool = False,
) -> Any:
    last = axis == tuple(range(x.ndim - len(axis), x.ndim))
    if x.dtype == float32 and last and axis and has_scale and not residuals:
        return o.LayerNormalization(x, *parameters, axis=axis[0], epsilon=epsilon)
    mean = mean_over(o, x, axis)
    deviation = x - mean
    rstd = 1 / o.Sqrt(mean_over(o, deviation * deviation, axis) + epsilon)
    y = deviation * rstd
    y = y * o.reshape(parameters[0], _aligned(x.shape, axis)) if has_scale else y
    y = y + o.reshape(parameters[-1], _aligned(x.shape, axis)) if has_shift else y
    return (y, mean, rstd) if residuals else y


@op(
    kernel=_layer_norm_kernel,
    lower=_layer_norm_lower,
    infer=_layer_norm_infer,
    vjp=on_host(_layer_norm_vjp, _layer_norm_host),
    saves=Saves(x="all", hidden=2),
    flops=lambda y, x, *parameters, **attrs: 8 * x.size,
    samples=_layer_norm_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=_layer_norm_onnx,
    padded=normalized_axes(centred=True),
)
def layer_norm(
    x: TensorLike,
    scale: TensorLike | None = None,
    shift: TensorLike | None = None,
    *,
    axis: Any = -1,
    epsilon: float = 1e-5,
    **other: Unpack[Other],
) -> Tensor:
    """Subtract the mean over axes and divide by the standard deviation, then scale and shift.

    Args:
        x: floating-point; integers become float32.
        scale: a factor per element of the normalised axes; its shape is their sizes in order. None if not given.
        shift: a summand of the same shape; none if not given.
        axis: the axis, or several, to normalise over.
        epsilon: added to the (biased) variance.

    Returns:
        The shape of `x`, in the promoted dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: an axis is out of range, or parameters do not have the sizes of the axes.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.layer_norm([1.0, 3.0], epsilon=0.0)
        Tensor([-1.,  1.], dtype=float32)

    Reference:
        Ba, Kiros and Hinton, "Layer normalization", 2016.
    """
    if other:
        return respelled(layer_norm, locals())
    tensors = promote_float(*[value for value in (x, scale, shift) if value is not None])
    return bind(
        layer_norm.op,
        tensors,
        {
            "axis": normalize_axes("layer_norm", axis, tensors[0].ndim),
            "epsilon": fixed_number("layer_norm", "epsilon", epsilon),
            "has_scale": scale is not None,
            "has_shift": shift is not None,
        },
    )


# -- rms_norm -----------------------------------------------------------------------------------------------------


def _rms_norm_kernel(x: Any, *scale: Any, axis: tuple[int, ...], epsilon: float, residuals: bool) -> Any:
    rstd = x.dtype.type(1) / np.sqrt(_kernel_mean(x * x, axis) + x.dtype.type(epsilon))
    y = x * rstd
    if scale:
        y *= _kernel_parameter(scale[0], x.shape, axis)
    return (y, rstd) if residuals else y


def _rms_norm_lower(x: Any, *scale: Any, axis: tuple[int, ...], epsilon: float, residuals: bool) -> Any:
    full = lower_wide(x)
    power = _lower_mean(lax.mul(full, full), axis)
    rstd = lax.rsqrt(lax.add(power, lax.full_like(power, epsilon)))
    y = lax.mul(full, _spread(rstd, x.shape))
    if scale:
        y = lax.mul(y, _lower_parameter(scale[0], x.shape, axis))
    y = lower_narrow(y, x.dtype)
    return (y, rstd) if residuals else y


def _rms_norm_infer(
    x: TensorSpec, *scale: TensorSpec, axis: tuple[int, ...], epsilon: float, residuals: bool
) -> Any:
    del epsilon
    return _infer("rms_norm", 1, x, scale, axis, residuals)


def _rms_norm_vjp(F: Any, g: Any, y: Any, x: Any, *scale: Any, axis: tuple[int, ...], epsilon: float) -> Any:
    del epsilon
    dtype, g, rstd = x.dtype, wide(F, g), y[1]
    normed = wide(F, x) * rstd

    def of_x() -> Any:
        inner = g * F.reshape(wide(F, scale[0]), shape=_aligned(x.shape, axis)) if scale else g
        return narrow(F, (inner - normed * F.mean(inner * normed, axis=axis, keepdims=True)) * rstd, dtype)

    if not scale:
        return (of_x,)
    others = _others(len(x.shape), axis)
    return of_x, lambda: narrow(F, F.sum(g * normed, axis=others, keepdims=False), dtype)


def _rms_norm_onnx(
    o: Any, x: Any, *scale: Any, axis: tuple[int, ...], epsilon: float, residuals: bool = False
) -> Any:
    rstd = 1 / o.Sqrt(mean_over(o, x * x, axis) + epsilon)
    y = x * rstd
    y = y * o.reshape(scale[0], _aligned(x.shape, axis)) if scale else y
    return (y, rstd) if residuals else y


@op(
    kernel=_rms_norm_kernel,
    lower=_rms_norm_lower,
    infer=_rms_norm_infer,
    vjp=_rms_norm_vjp,
    saves=Saves(x="all", hidden=1),
    flops=lambda y, x, *scale, **attrs: 5 * x.size,
    samples=lambda rng: _parameter_samples(rng, "rms_norm", 1),
    traits=("full_precision",),
    ulp=64,
    onnx=_rms_norm_onnx,
    padded=normalized_axes(centred=False),
)
def rms_norm(
    x: TensorLike, scale: TensorLike | None = None, *, axis: Any = -1, epsilon: float = 1e-6, **other: Unpack[Other]
) -> Tensor:
    """Divide by the root of the mean square over axes, then scale.

    Args:
        x: floating-point; integers become float32.
        scale: a factor per element of the normalised axes; its shape is their sizes in order. None if not given.
        axis: the axis, or several, to normalise over.
        epsilon: added to the mean square.

    Returns:
        The shape of `x`, in the promoted dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: an axis is out of range, or the scale does not have the sizes of the axes.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.rms_norm([2.0, 2.0], epsilon=0.0)
        Tensor([1., 1.], dtype=float32)

    Reference:
        Zhang and Sennrich, "Root mean square layer normalization", 2019.
    """
    if other:
        return respelled(rms_norm, locals())
    tensors = promote_float(*[value for value in (x, scale) if value is not None])
    axes = normalize_axes("rms_norm", axis, tensors[0].ndim)
    return bind(rms_norm.op, tensors, {"axis": axes, "epsilon": fixed_number("rms_norm", "epsilon", epsilon)})


# -- l2_normalize -------------------------------------------------------------------------------------------------


def _l2_kernel(x: Any, *, axis: tuple[int, ...], epsilon: float, residuals: bool) -> Any:
    norm = np.maximum(np.sqrt(add_up(x * x, axis, True)), x.dtype.type(epsilon))
    return (x / norm, norm) if residuals else x / norm


def _l2_lower(x: Any, *, axis: tuple[int, ...], epsilon: float, residuals: bool) -> Any:
    full = lower_wide(x)
    square = float_sum(lax.mul(full, full), axis)
    # Second-order gradients differentiate this. The root has no slope at 0, but the factor of that slope is 0.
    zero = lax.eq(square, lax.full_like(square, 0))
    root = lax.select(zero, lax.full_like(square, 0), lax.sqrt(lax.select(zero, lax.full_like(square, 1), square)))
    norm = lax.expand_dims(root, axis)
    norm = lax.max(norm, lax.full_like(norm, epsilon))
    y = lower_narrow(lax.div(full, _spread(norm, x.shape)), x.dtype)
    return (y, norm) if residuals else y


def _l2_infer(x: TensorSpec, *, axis: tuple[int, ...], epsilon: float, residuals: bool) -> Any:
    del epsilon
    return _infer("l2_normalize", 1, x, (), axis, residuals)


def _l2_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: tuple[int, ...], epsilon: float) -> Any:
    dtype, g, norm = x.dtype, wide(F, g), y[1]
    unit = wide(F, x) / norm
    along = F.sum(g * unit, axis=axis, keepdims=True)
    # A norm below epsilon was replaced by a constant, so no gradient flows through it.
    return (narrow(F, (g - unit * F.keep_where(along, norm > epsilon)) / norm, dtype),)


def _l2_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 2, 3, 4),), {"axis": (0, -1)})
    yield Sample((normals(rng, 3, 4) * 0.1,), {"epsilon": 5.0})
    yield Sample((normals(rng, 0, 3),))
    yield Sample((normals(rng, 5, dtype=np.float64),))
    yield Sample((normals(rng, 2, 4, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 3, 4),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range")


def _l2_onnx(o: Any, x: Any, *, axis: tuple[int, ...], epsilon: float, residuals: bool = False) -> Any:
    norm = o.Max(o.ReduceL2(x, o.ints(axis), keepdims=1) if axis else o.Abs(x), epsilon)
    return (x / norm, norm) if residuals else x / norm


@op(
    kernel=_l2_kernel,
    lower=_l2_lower,
    infer=_l2_infer,
    vjp=_l2_vjp,
    saves=Saves(x="all", hidden=1),
    flops=lambda y, x, **attrs: 3 * x.size,
    samples=_l2_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=_l2_onnx,
    padded=along(constant(0)),
)
def l2_normalize(x: TensorLike, axis: Any = -1, *, epsilon: float = 1e-12, **other: Unpack[Other]) -> Tensor:
    """Divide by the Euclidean norm over axes.

    Args:
        x: floating-point; integers become float32.
        axis: the axis, or several, over which the result has norm 1.
        epsilon: the smallest divisor, so that zeros stay zeros.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.l2_normalize([3.0, 4.0])
        Tensor([0.6, 0.8], dtype=float32)
    """
    if other:
        return respelled(l2_normalize, locals())
    tensors = promote_float(x)
    axes = normalize_axes("l2_normalize", axis, tensors[0].ndim)
    return bind(l2_normalize.op, tensors, {"axis": axes, "epsilon": fixed_number("l2_normalize", "epsilon", epsilon)})


__all__ = ["l2_normalize", "layer_norm", "rms_norm"]

"""Normalisation per channel: batch_norm, group_norm, instance_norm, and the moments they need."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    call_text,
    fixed_number,
    make_spec,
    normals,
    positives,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.nn.common import REAL_FLOAT, compute_dtype, lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.onnx import mean_over
from hybridflow.ops.padding_nn import normalized_groups, with_parameters
from hybridflow.ops.reductions import mean as mean_of
from hybridflow.ops.statistics import var
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

# -- batch_norm ---------------------------------------------------------------------------------------------------


def _channel(ndim: int, channels_last: bool) -> int:
    return ndim - 1 if channels_last or ndim < 2 else 1


def _aligned(shape: tuple[Any, ...], channel: int) -> tuple[Any, ...]:
    return tuple([size if axis == channel else 1 for axis, size in enumerate(shape)])


def _kernel(
    x: Any,
    mean: Any,
    variance: Any,
    *parameters: Any,
    epsilon: float,
    channels_last: bool,
    has_scale: bool,
    has_shift: bool,
) -> Any:
    if not x.ndim or any(value.shape != (x.shape[_channel(x.ndim, channels_last)],) for value in (mean, variance)):
        raise ValueError("statistics of another shape")  # `bind` then runs the shape rule, which says more
    shape = _aligned(x.shape, _channel(x.ndim, channels_last))
    factor = x.dtype.type(1) / np.sqrt(variance + x.dtype.type(epsilon))
    if has_scale:
        factor = factor * parameters[0]
    y = (x - mean.reshape(shape)) * factor.reshape(shape)
    return y + parameters[-1].reshape(shape) if has_shift else y


def _lower(
    x: Any,
    mean: Any,
    variance: Any,
    *parameters: Any,
    epsilon: float,
    channels_last: bool,
    has_scale: bool,
    has_shift: bool,
) -> Any:
    def spread(value: Any) -> Any:
        return lax.broadcast_in_dim(value, x.shape, (_channel(x.ndim, channels_last),))

    variance = lower_wide(variance)
    factor = lax.rsqrt(lax.add(variance, lax.full_like(variance, epsilon)))
    if has_scale:
        factor = lax.mul(factor, lower_wide(parameters[0]))
    y = lax.mul(lax.sub(lower_wide(x), spread(lower_wide(mean))), spread(factor))
    return lower_narrow(lax.add(y, spread(lower_wide(parameters[-1]))) if has_shift else y, x.dtype)


def _infer(x: TensorSpec, *parameters: TensorSpec, channels_last: bool, **attrs: Any) -> TensorSpec:
    del attrs
    require_kind("batch_norm", REAL_FLOAT, x)
    expected = (x.shape[_channel(x.ndim, channels_last)],) if x.shape else ()
    for parameter in parameters:
        if not x.shape or parameter.shape != expected:
            raise ShapeError(f"batch_norm: statistics and parameters must have shape {expected}, not {parameter.shape}",
                             got=call_text("batch_norm", x, *parameters), hint="They have one element per channel.")
    return make_spec(x.shape, x.dtype)


def _vjp(
    F: Any,
    g: Any,
    y: Any,
    x: Any,
    mean: Any,
    variance: Any,
    *parameters: Any,
    epsilon: float,
    channels_last: bool,
    has_scale: bool,
    has_shift: bool,
) -> Any:
    del y
    dtype, ndim = x.dtype, len(x.shape)
    channel = _channel(ndim, channels_last)
    others, shape = tuple([axis for axis in range(ndim) if axis != channel]), _aligned(x.shape, channel)
    g = wide(F, g)
    rstd = 1 / F.sqrt(wide(F, variance) + epsilon)
    factor = rstd * wide(F, parameters[0]) if has_scale else rstd

    def total(value: Any) -> Any:
        return F.sum(value, axis=others, keepdims=False)

    def with_normed() -> Any:
        return total(g * (wide(F, x) - F.reshape(wide(F, mean), shape=shape))) * rstd

    gradients: list[Any] = [
        lambda: narrow(F, g * F.reshape(factor, shape=shape), dtype),
        lambda: narrow(F, -(total(g) * factor), dtype),
        lambda: narrow(F, with_normed() * (factor * rstd * -0.5), dtype),
    ]
    if has_scale:
        gradients.append(lambda: narrow(F, with_normed(), dtype))
    if has_shift:
        gradients.append(lambda: narrow(F, total(g), dtype))
    return gradients


def _samples(rng: np.random.Generator) -> Any:
    def statistics(channels: int, dtype: Any = np.float32) -> Any:
        return normals(rng, channels, dtype=dtype), positives(rng, channels, dtype=dtype)

    scale, shift = normals(rng, 3), normals(rng, 3)
    yield Sample((normals(rng, 2, 3, 4, 5), *statistics(3)))
    yield Sample((normals(rng, 2, 3, 4), *statistics(3), scale, shift))
    yield Sample((normals(rng, 4, 3), *statistics(3), scale))
    yield Sample((normals(rng, 2, 4, 3), *statistics(3), None, shift), {"channels_last": True, "epsilon": 0.1})
    yield Sample((normals(rng, 2, 3, dtype=np.float64), *statistics(3, np.float64)))
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"), *statistics(3, "bfloat16")), gradient=False)
    yield Bad((normals(rng, 2, 4), *statistics(3)), error=ShapeError, text="must have shape (4,), not (3,)")
    yield Bad((normals(rng), *statistics(1)), error=ShapeError, text="must have shape (), not (1,)")


def _batch_norm_onnx(
    o: Any, x: Any, center: Any, variance: Any, *parameters: Any, epsilon: float, channels_last: bool,
    has_scale: bool, has_shift: bool,
) -> Any:
    channels = x.shape[_channel(x.ndim, channels_last)]
    if x.dtype == float32 and not channels_last and type(channels) is not Dim:
        scale = parameters[0] if has_scale else o.value(np.ones(channels, x.dtype))
        shift = parameters[-1] if has_shift else o.value(np.zeros(channels, x.dtype))
        return o.BatchNormalization(x, scale, shift, center, variance, epsilon=epsilon)
    shape = _aligned(x.shape, _channel(x.ndim, channels_last))
    factor = o.Reciprocal(o.Sqrt(variance + epsilon))
    factor = factor * parameters[0] if has_scale else factor
    y = (x - o.reshape(center, shape)) * o.reshape(factor, shape)
    return y + o.reshape(parameters[-1], shape) if has_shift else y


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=_vjp,
    saves=Saves(x=(0, 1, 2, 3)),
    flops=lambda y, x, *parameters, **attrs: 4 * x.size,
    samples=_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=_batch_norm_onnx,
    padded=with_parameters,
)
def batch_norm(
    x: TensorLike,
    mean: TensorLike,
    variance: TensorLike,
    scale: TensorLike | None = None,
    shift: TensorLike | None = None,
    *,
    epsilon: float = 1e-5,
    channels_last: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Normalise every channel with given statistics, then scale and shift.

    In training, the statistics are the `hf.nn.moments` of the batch over all axes except the channels, and the gradient
    flows through them. In inference, they are averages kept from training.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        mean: ``(c,)``.
        variance: ``(c,)``.
        scale: ``(c,)``, a factor per channel; none if not given.
        shift: ``(c,)``, a summand per channel; none if not given.
        epsilon: added to the variance.
        channels_last: whether to take ``(n, *spatial, c)`` instead.

    Returns:
        The shape of `x`, in the promoted dtype. float16 and bfloat16 are computed in float32 and rounded once.

    Raises:
        ShapeError: the statistics or parameters do not have one element per channel.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.asarray([[1.0, 10.0], [3.0, 30.0]])
        >>> hf.nn.batch_norm(x, *hf.nn.moments(x, 0), epsilon=0.0)
        Tensor([[-1., -1.],
                [ 1.,  1.]], dtype=float32)

    Reference:
        Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate
        shift", 2015.
    """
    if other:
        return respelled(batch_norm, locals())
    channels_last = truth("batch_norm", "channels_last", channels_last)
    tensors = promote_float(*[value for value in (x, mean, variance, scale, shift) if value is not None])
    attrs = {
        "epsilon": fixed_number("batch_norm", "epsilon", epsilon),
        "channels_last": channels_last,
        "has_scale": scale is not None,
        "has_shift": shift is not None,
    }
    return bind(batch_norm.op, tensors, attrs)


# -- made of other operations -------------------------------------------------------------------------------------


def moments(
    x: TensorLike, axis: Any = None, *, keepdims: bool = False, **other: Unpack[Other]
) -> tuple[Tensor, Tensor]:
    """Return the mean and the (biased) variance over axes.

    Args:
        x: floating-point; integers become float32.
        axis: the axes to average over; all of them if None.
        keepdims: whether the averaged axes stay, with size 1.

    Returns:
        The mean and the variance.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> mean, variance = hf.nn.moments([1.0, 3.0])
        >>> mean.item(), variance.item()
        (2.0, 1.0)
    """
    if other:
        return respelled(moments, locals())
    keepdims = truth("moments", "keepdims", keepdims)
    (tensor,) = promote_float(x)
    return mean_of(tensor, axis=axis, keepdims=keepdims), var(tensor, axis=axis, keepdims=keepdims)


def instance_norm(
    x: TensorLike,
    scale: TensorLike | None = None,
    shift: TensorLike | None = None,
    *,
    epsilon: float = 1e-5,
    **other: Unpack[Other],
) -> Tensor:
    """Normalise every channel of every example, then scale and shift each channel.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        scale: ``(c,)``, a factor per channel; none if not given.
        shift: ``(c,)``, a summand per channel; none if not given.
        epsilon: added to the (biased) variance.

    Returns:
        The shape of `x`, in the promoted dtype.

    Raises:
        ShapeError: the input has no spatial axes, or parameters do not have one element per channel.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.instance_norm([[[1.0, 3.0], [10.0, 30.0]]], epsilon=0.0).tolist()
        [[[-1.0, 1.0], [-1.0, 1.0]]]

    Reference:
        Ulyanov, Vedaldi and Lempitsky, "Instance normalization: the missing ingredient for fast stylization", 2016.
    """
    if other:
        return respelled(instance_norm, locals())
    (tensor,) = promote_float(x)
    if tensor.ndim < 3:
        raise ShapeError("instance_norm: the input needs axes of batch, channels and space", got=str(tensor.spec))
    return group_norm(tensor, tensor.shape[1], scale, shift, epsilon=epsilon)


# -- group_norm ---------------------------------------------------------------------------------------------------


def _in_groups(shape: tuple[Any, ...], groups: int) -> tuple[Any, ...]:
    """Return the shape ``(n, groups, rest)``, in which each group of channels of an example is one row."""
    rest: Any = shape[1] // groups
    for size in shape[2:]:
        rest = rest * size
    return shape[0], groups, rest


def _group_kernel(
    x: Any, *parameters: Any, groups: int, epsilon: float, has_scale: bool, has_shift: bool, residuals: bool
) -> Any:
    if x.ndim < 2 or any(one.shape != x.shape[1:2] for one in parameters):
        raise ValueError("parameters of another shape")  # `bind` then runs the shape rule, which says more
    rows, shape = x.reshape(_in_groups(x.shape, groups)), _aligned(x.shape, 1)
    mean = _mean_of_rows(rows)
    y = rows - mean
    rstd = x.dtype.type(1) / np.sqrt(_mean_of_rows(y * y) + x.dtype.type(epsilon))
    y *= rstd
    y = y.reshape(x.shape)
    if has_scale:
        y *= parameters[0].reshape(shape)
    if has_shift:
        y += parameters[-1].reshape(shape)
    return (y, mean, rstd) if residuals else y


def _group_lower(
    x: Any, *parameters: Any, groups: int, epsilon: float, has_scale: bool, has_shift: bool, residuals: bool
) -> Any:
    rows = lax.reshape(lower_wide(x), _in_groups(x.shape, groups))
    mean = _lower_mean_of_rows(rows)
    y = lax.sub(rows, lax.broadcast_in_dim(mean, rows.shape, (0, 1, 2)))
    variance = _lower_mean_of_rows(lax.mul(y, y))
    rstd = lax.rsqrt(lax.add(variance, lax.full_like(variance, epsilon)))
    y = lax.reshape(lax.mul(y, lax.broadcast_in_dim(rstd, rows.shape, (0, 1, 2))), x.shape)
    if has_scale:
        y = lax.mul(y, lax.broadcast_in_dim(lower_wide(parameters[0]), x.shape, (1,)))
    if has_shift:
        y = lax.add(y, lax.broadcast_in_dim(lower_wide(parameters[-1]), x.shape, (1,)))
    y = lower_narrow(y, x.dtype)
    return (y, mean, rstd) if residuals else y


def _mean_of_rows(x: Any) -> Any:
    """Average NumPy rows; the axis stays, with size 1."""
    return add_up(x, (2,), True) / x.dtype.type(max(x.shape[2], 1))


def _lower_mean_of_rows(x: Any) -> Any:
    total = float_sum(x, (2,))
    return lax.expand_dims(lax.div(total, lax.full_like(total, max(x.shape[2], 1))), (2,))


def _group_infer(x: TensorSpec, *parameters: TensorSpec, groups: int, residuals: bool, **attrs: Any) -> Any:
    del attrs
    require_kind("group_norm", REAL_FLOAT, x, *parameters)
    if x.ndim < 2:
        raise ShapeError("group_norm: the input needs axes of batch and channels", got=str(x))
    channels = x.shape[1]
    if groups < 1 or channels % groups != 0:
        raise ArgumentError(f"group_norm: {channels} channels do not divide into {groups} groups",
                            got=call_text("group_norm", x), hint="Choose a divisor of the channels.")
    for parameter in parameters:
        if parameter.shape != (channels,):
            raise ShapeError(f"group_norm: scale and shift must have shape {(channels,)}, not {parameter.shape}",
                             got=call_text("group_norm", x, *parameters), hint="They have one element per channel.")
    y = make_spec(x.shape, x.dtype)
    statistic = make_spec((x.shape[0], groups, 1), compute_dtype(x.dtype))
    return (y, statistic, statistic) if residuals else y


def _group_vjp(
    F: Any, g: Any, y: Any, x: Any, *parameters: Any, groups: int, epsilon: float, has_scale: bool, has_shift: bool
) -> Any:
    del epsilon
    dtype, g = x.dtype, wide(F, g)
    _, mean, rstd = y
    rows = _in_groups(x.shape, groups)
    normed = (F.reshape(wide(F, x), shape=rows) - mean) * rstd
    others = (0, *range(2, len(x.shape)))

    def of_x() -> Any:
        inner = g * F.reshape(wide(F, parameters[0]), shape=_aligned(x.shape, 1)) if has_scale else g
        inner = F.reshape(inner, shape=rows)
        along = normed * F.mean(inner * normed, axis=(2,), keepdims=True)
        gradient = (inner - F.mean(inner, axis=(2,), keepdims=True) - along) * rstd
        return narrow(F, F.reshape(gradient, shape=x.shape), dtype)

    def of_scale() -> Any:
        return narrow(F, F.sum(g * F.reshape(normed, shape=x.shape), axis=others, keepdims=False), dtype)

    gradients: list[Any] = [of_x]
    if has_scale:
        gradients.append(of_scale)
    if has_shift:
        gradients.append(lambda: narrow(F, F.sum(g, axis=others, keepdims=False), dtype))
    return gradients


def _group_samples(rng: np.random.Generator) -> Any:
    scale, shift = normals(rng, 4), normals(rng, 4)
    yield Sample((normals(rng, 2, 4, 3, 5), 2))
    yield Sample((normals(rng, 2, 4, 3), 2, scale, shift))
    yield Sample((normals(rng, 3, 4), 1, scale))
    yield Sample((normals(rng, 2, 4, 3), 4, None, shift), {"epsilon": 0.1})
    yield Sample((normals(rng, 0, 4, 2), 2, scale))
    yield Sample((normals(rng, 2, 4, 3, dtype=np.float64), 2))
    yield Sample((normals(rng, 2, 4, dtype="bfloat16"), 2), gradient=False)
    yield Bad((normals(rng, 2, 4, 3), 3), error=ArgumentError, text="4 channels do not divide into 3 groups")
    yield Bad((normals(rng, 2, 4, 3), 2, normals(rng, 3)), error=ShapeError, text="must have shape (4,), not (3,)")
    yield Bad((normals(rng, 4), 2), error=ShapeError, text="needs axes of batch and channels")


def _group_norm_onnx(
    o: Any,
    x: Any,
    *parameters: Any,
    groups: int,
    epsilon: float,
    has_scale: bool,
    has_shift: bool,
    residuals: bool = False,
) -> Any:
    shape = _aligned(x.shape, 1)
    rows = o.reshape(x, _in_groups(x.shape, groups))
    mean = mean_over(o, rows, (2,))
    away = rows - mean
    rstd = 1 / o.Sqrt(mean_over(o, away * away, (2,)) + epsilon)
    y = o.reshape(away * rstd, x.shape)
    y = y * o.reshape(parameters[0], shape) if has_scale else y
    y = y + o.reshape(parameters[-1], shape) if has_shift else y
    return (y, mean, rstd) if residuals else y


@op(
    kernel=_group_kernel,
    lower=_group_lower,
    infer=_group_infer,
    vjp=_group_vjp,
    saves=Saves(x="all", hidden=2),
    flops=lambda y, x, *parameters, **attrs: 8 * x.size,
    samples=_group_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=_group_norm_onnx,
    padded=normalized_groups,
)
def group_norm(
    x: TensorLike,
    groups: int,
    scale: TensorLike | None = None,
    shift: TensorLike | None = None,
    *,
    epsilon: float = 1e-5,
    **other: Unpack[Other],
) -> Tensor:
    """Normalise groups of channels of every example, then scale and shift each channel.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        groups: the number of groups into which the channels are divided.
        scale: ``(c,)``, a factor per channel; none if not given.
        shift: ``(c,)``, a summand per channel; none if not given.
        epsilon: added to the (biased) variance.

    Returns:
        The shape of `x`, in the promoted dtype.

    Raises:
        ShapeError: the input has no channels, or parameters do not have one element per channel.
        ArgumentError: the number of channels is not divisible by the number of groups.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.group_norm([[1.0, 3.0, 10.0, 30.0]], 2, epsilon=0.0)
        Tensor([[-1.,  1., -1.,  1.]], dtype=float32)

    Reference:
        Wu and He, "Group normalization", 2018.
    """
    if other:
        return respelled(group_norm, locals())
    tensors = promote_float(*[value for value in (x, scale, shift) if value is not None])
    attrs = {
        "groups": int(groups), "epsilon": fixed_number("group_norm", "epsilon", epsilon),
        "has_scale": scale is not None, "has_shift": shift is not None,
    }
    return bind(group_norm.op, tensors, attrs)

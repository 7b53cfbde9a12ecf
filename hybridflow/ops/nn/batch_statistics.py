"""Batch normalisation in training: one operation computes the batch's statistics and the normalised batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    call_text,
    fixed_number,
    make_spec,
    normals,
    promote_float,
    require_kind,
)
from hybridflow.ops.nn.common import REAL_FLOAT, compute_dtype, lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.onnx import mean_over
from hybridflow.ops.padding_nn import normalized_batch
from hybridflow.ops.sizes import count_along, lowered_count, size_value
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

_NAME = "normalize_batch"
_ROW = 64
"""The smallest number of elements per channel for which calling NumPy once per example pays."""


def _others(ndim: int) -> tuple[int, ...]:
    """Return the axes that the statistics reduce: all but the channels."""
    return (0, *range(2, ndim))


def _aligned(value: Any, ndim: int) -> Any:
    return value.reshape((-1, *[1] * (ndim - 2)))


# -- on the host --------------------------------------------------------------------------------------------------


def _by_example(x: Any) -> bool:
    """Return whether to process one example after another, so that each stays in the cache."""
    return bool(x.size) and x.flags.c_contiguous and x.size >= _ROW * x.shape[0] * x.shape[1]


def _kernel(x: Any, *parameters: Any, epsilon: float, has_scale: bool, has_shift: bool, residuals: bool) -> Any:
    if x.ndim < 2 or any(one.shape != x.shape[1:2] for one in parameters):
        raise ValueError("parameters of another shape")  # `bind` then runs the shape rule, which says more
    axes, number = _others(x.ndim), x.dtype.type
    count = number(count_along(x.shape, axes))
    mean = add_up(x, axes, False) / count
    variance = _squares(x, mean) / count
    rstd = number(1) / np.sqrt(variance + number(epsilon))
    factor = rstd * parameters[0] if has_scale else rstd
    y = _scaled(x, mean, factor, parameters[-1] if has_shift else None)
    return (y, mean, variance, mean, rstd) if residuals else (y, mean, variance)


def _squares(x: Any, mean: Any) -> Any:
    """Sum, per channel, the squared distances from the channel's mean."""
    if not _by_example(x):
        away = x - _aligned(mean, x.ndim)
        return add_up(np.square(away), _others(x.ndim), False)
    rows, center = x.reshape(*x.shape[:2], -1), mean[:, None]
    squares: Any = np.empty(x.shape[:2], x.dtype)
    away = np.empty(rows.shape[1:], x.dtype)
    for one, total in zip(rows, squares, strict=True):
        np.subtract(one, center, away)
        np.vecdot(away, away, out=total)
    return add_up(squares, (0,), False)


def _scaled(x: Any, mean: Any, factor: Any, shift: Any) -> Any:
    y: Any = np.empty(x.shape, x.dtype)
    whole = not _by_example(x)
    parts = [(x, y)] if whole else zip(x, y, strict=True)
    center, factor = _aligned(mean, x.ndim), _aligned(factor, x.ndim)
    shift = None if shift is None else _aligned(shift, x.ndim)
    for one, out in parts:
        np.subtract(one, center, out)
        np.multiply(out, factor, out)
        if shift is not None:
            np.add(out, shift, out)
    return y


def _host_rule(
    g: Any, y: Any, x: Any, *parameters: Any, epsilon: float, has_scale: bool, has_shift: bool
) -> Any:
    del epsilon
    if g[1] is not None or g[2] is not None or g[0] is None or not _by_example(x):
        return None
    g, mean, rstd = g[0], y[3], y[4]
    g = g if g.flags.c_contiguous else np.ascontiguousarray(g)
    axes, number = _others(x.ndim), x.dtype.type
    count = number(count_along(x.shape, axes))
    shift = add_up(g, axes, False)
    scale = _products(g, x, mean) * rstd
    factor = rstd * parameters[0] if has_scale else rstd

    def of_x() -> Any:
        gradient: Any = np.empty(x.shape, x.dtype)
        away = np.empty(x.shape[1:], x.dtype)
        center, by, along, level = [
            _aligned(one, x.ndim) for one in (mean, factor, factor * rstd * scale / count, factor * shift / count)
        ]
        for one, slope, out in zip(x, g, gradient, strict=True):
            np.subtract(one, center, away)
            np.multiply(away, along, away)
            np.add(away, level, away)
            np.multiply(slope, by, out)
            np.subtract(out, away, out)
        return gradient

    return [of_x, *[scale] * has_scale, *[shift] * has_shift]


def _products(g: Any, x: Any, mean: Any) -> Any:
    """Sum, per channel, the products of gradients and distances from the channel's mean."""
    rows, slopes, center = x.reshape(*x.shape[:2], -1), g.reshape(*x.shape[:2], -1), mean[:, None]
    products: Any = np.empty(x.shape[:2], x.dtype)
    away = np.empty(rows.shape[1:], x.dtype)
    for one, slope, total in zip(rows, slopes, products, strict=True):
        np.subtract(one, center, away)
        np.vecdot(slope, away, out=total)
    return add_up(products, (0,), False)


# -- elsewhere ----------------------------------------------------------------------------------------------------


def _lower(x: Any, *parameters: Any, epsilon: float, has_scale: bool, has_shift: bool, residuals: bool) -> Any:
    axes = _others(x.ndim)

    def spread(value: Any) -> Any:
        return lax.broadcast_in_dim(value, x.shape, (1,))

    full = lower_wide(x)
    count = lowered_count(count_along(x.shape, axes), full.dtype)
    mean = float_sum(full, axes) / count
    away = lax.sub(full, spread(mean))
    variance = float_sum(lax.square(away), axes) / count
    rstd = lax.rsqrt(lax.add(variance, lax.full_like(variance, epsilon)))
    factor = lax.mul(rstd, lower_wide(parameters[0])) if has_scale else rstd
    y = lax.mul(away, spread(factor))
    y = lower_narrow(lax.add(y, spread(lower_wide(parameters[-1]))) if has_shift else y, x.dtype)
    visible = y, lower_narrow(mean, x.dtype), lower_narrow(variance, x.dtype)
    return (*visible, mean, rstd) if residuals else visible


def _infer(x: TensorSpec, *parameters: TensorSpec, residuals: bool, **attrs: Any) -> Any:
    del attrs
    require_kind(_NAME, REAL_FLOAT, x, *parameters)
    if x.ndim < 2:
        raise ShapeError(f"{_NAME}: the input needs axes of batch and channels", got=str(x))
    for parameter in parameters:
        if parameter.shape != x.shape[1:2]:
            raise ShapeError(f"{_NAME}: scale and shift must have shape {x.shape[1:2]}, not {parameter.shape}",
                             got=call_text(_NAME, x, *parameters), hint="They have one element per channel.")
    statistic = make_spec(x.shape[1:2], x.dtype)
    kept = make_spec(x.shape[1:2], compute_dtype(x.dtype))
    visible = make_spec(x.shape, x.dtype), statistic, statistic
    return (*visible, kept, kept) if residuals else visible


def _vjp(F: Any, g: Any, y: Any, x: Any, *parameters: Any, epsilon: float, has_scale: bool, has_shift: bool) -> Any:
    del epsilon
    of_y, of_mean, of_variance = g
    mean, rstd = y[3], y[4]
    dtype, axes = x.dtype, _others(len(x.shape))
    aligned = (x.shape[1], *[1] * (len(x.shape) - 2))
    count = size_value(F, count_along(x.shape, axes), mean.dtype)
    away = wide(F, x) - F.reshape(mean, shape=aligned)
    parts: list[Any] = []
    gradients: list[Any] = [lambda: narrow(F, _sum_of(parts), dtype)]
    if of_y is not None:
        slope = wide(F, of_y)
        shift = F.sum(slope, axis=axes, keepdims=False)
        scale = F.sum(slope * away, axis=axes, keepdims=False) * rstd
        factor = rstd * wide(F, parameters[0]) if has_scale else rstd
        along, level = F.reshape(factor * rstd * scale / count, shape=aligned), factor * shift / count
        parts.append(slope * F.reshape(factor, shape=aligned) - (away * along + F.reshape(level, shape=aligned)))
        gradients += [lambda: narrow(F, scale, dtype)] * has_scale + [lambda: narrow(F, shift, dtype)] * has_shift
    else:
        gradients += [None] * (has_scale + has_shift)
    if of_variance is not None:
        parts.append(away * F.reshape(wide(F, of_variance) * 2 / count, shape=aligned))
    if of_mean is not None:
        level = F.reshape(wide(F, of_mean) / count, shape=aligned)
        parts.append(F.broadcast_to(level, shape=x.shape) if not parts else level)
    return gradients


def _sum_of(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def _samples(rng: np.random.Generator) -> Any:
    scale, shift = normals(rng, 3), normals(rng, 3)
    yield Sample((normals(rng, 2, 3, 4, 5),))
    yield Sample((normals(rng, 2, 3, 8, 9), scale, shift))
    yield Sample((normals(rng, 3, 3, 80), scale))
    yield Sample((normals(rng, 4, 3), scale, shift))
    yield Sample((normals(rng, 2, 3, 64), None, shift), {"epsilon": 0.1})
    yield Sample((normals(rng, 2, 3, 8, 8, dtype=np.float64),))
    yield Sample((10 + normals(rng, 2, 2, 100),))
    yield Sample((normals(rng, 2, 3, 4, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 2, 4, 3), normals(rng, 3)), error=ShapeError, text="must have shape (4,), not (3,)")
    yield Bad((normals(rng, 4),), error=ShapeError, text="needs axes of batch and channels")


def _onnx(
    o: Any, x: Any, *parameters: Any, epsilon: float, has_scale: bool, has_shift: bool, residuals: bool = False
) -> Any:
    axes, channels = _others(x.ndim), x.shape[1:2]
    aligned = (*channels, *[1] * (x.ndim - 2))
    center = mean_over(o, x, axes)
    away = x - center
    spread = mean_over(o, away * away, axes)
    rstd = 1 / o.Sqrt(spread + epsilon)
    y = away * rstd
    y = y * o.reshape(parameters[0], aligned) if has_scale else y
    y = y + o.reshape(parameters[-1], aligned) if has_shift else y
    mean, variance = o.reshape(center, channels), o.reshape(spread, channels)
    if not residuals:
        return y, mean, variance
    return y, mean, variance, o.reshape(center, channels), o.reshape(rstd, channels)


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=on_host(_vjp, _host_rule),
    saves=Saves(x="all", hidden=2),
    flops=lambda outputs, x, *parameters, **attrs: 8 * x.size,
    samples=_samples,
    traits=("full_precision", "inner"),
    ulp=64,
    onnx=_onnx,
    padded=normalized_batch,
)
def normalize_batch(
    x: TensorLike, scale: TensorLike | None = None, shift: TensorLike | None = None, *, epsilon: float = 1e-5
) -> tuple[Tensor, Tensor, Tensor]:
    """Normalise every channel with the batch's own statistics, then scale and shift.

    The result is ``batch_norm(x, *moments(x, axes))`` for all axes except the channels, in fewer passes over the batch.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        scale: ``(c,)``; none if not given.
        shift: ``(c,)``; none if not given.
        epsilon: added to the variance.

    Returns:
        The result of `batch_norm`, the means, and the (biased) variances.
    """
    tensors = promote_float(*[value for value in (x, scale, shift) if value is not None])
    attrs = {
        "epsilon": fixed_number("batch_norm", "epsilon", epsilon), "has_scale": scale is not None,
        "has_shift": shift is not None,
    }
    return bind(normalize_batch.op, tensors, attrs)


__all__: list[str] = []

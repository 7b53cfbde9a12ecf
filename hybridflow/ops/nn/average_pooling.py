"""Average pooling over one to three spatial axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_differentiable
from hybridflow.core.op import Sample, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    cast_to,
    make_spec,
    normals,
    require_kind,
    truth,
)
from hybridflow.ops.nn.common import REAL_FLOAT, lower_narrow, lower_wide
from hybridflow.ops.nn.pooling import (
    PAIR,
    TILES,
    fixed_sizes,
    inside_padding,
    is_tiled,
    pool_onnx,
    pool_samples,
    pooled_shape,
    pooling_attrs,
    sizes_with_padding,
    stretched,
    tile_shapes,
    window_counts,
)
from hybridflow.ops.nn.windows import (
    Sizes,
    kernel_padded,
    lower_padded,
    lower_slice,
    lower_spread_out,
    replace,
    spatial_axes,
    window_slice,
)
from hybridflow.ops.onnx import channels_to
from hybridflow.ops.padding_windows import averaged_windows, spread_windows

# -- avg_pool -----------------------------------------------------------------------------------------------------


def _weights(shape: Sizes, window: Sizes, stride: Sizes, padding: Any, axes: Sizes, dtype: Any) -> Any:
    """Return the reciprocal of every window's number of elements, padding not counted."""
    result = np.ones((1,) * len(shape), dtype)
    for axis, size, step, (low, high) in zip(axes, window, stride, padding, strict=True):
        length = shape[axis]
        starts = np.arange((length + low + high - size) // step + 1) * step - low
        count = np.minimum(starts + size, length) - np.maximum(starts, 0)
        result = result / np.maximum(count, 1).astype(dtype).reshape(replace((1,) * len(shape), (axis,), (-1,)))
    return result


def _avg_kernel(x: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> Any:
    axes = spatial_axes("avg_pool", x.ndim, channels_last)
    total = kernel_padded(x, axes, padding, 0)
    counts = window_counts(total, window, stride, axes)
    if min(counts) < 1:
        raise ValueError("a window larger than its input")  # `bind` then runs the shape rule, which says more
    for axis, size, step, count in reversed(list(zip(axes, window, stride, counts, strict=True))):
        full = total
        total = full[window_slice(x.ndim, (axis,), (0,), (count,), (step,))].copy()
        for start in range(1, size):
            total += full[window_slice(x.ndim, (axis,), (start,), (count,), (step,))]
    return total * _weights(x.shape, window, stride, padding, axes, x.dtype)


def _avg_lower(x: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> Any:
    axes = spatial_axes("avg_pool", x.ndim, channels_last)
    total = lower_padded(lower_wide(x), axes, padding, 0)
    counts = window_counts(total, window, stride, axes)
    for axis, size, step, count in reversed(list(zip(axes, window, stride, counts, strict=True))):
        full = total
        total = lower_slice(full, (axis,), (0,), (count,), (step,))
        for start in range(1, size):
            total = lax.add(total, lower_slice(full, (axis,), (start,), (count,), (step,)))
    weights = _weights(x.shape, window, stride, padding, axes, total.dtype)
    return lower_narrow(lax.mul(total, stretched(weights, total.shape)), x.dtype)


def _avg_infer(x: TensorSpec, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> TensorSpec:
    require_kind("avg_pool", REAL_FLOAT, x)
    return make_spec(pooled_shape("avg_pool", x, window, stride, padding, channels_last), x.dtype)


@op(
    kernel=_avg_kernel,
    lower=_avg_lower,
    infer=_avg_infer,
    vjp=lambda F, g, y, x, **attrs: (F.avg_pool_gradient(g, shape=x.shape, **attrs),),
    flops=lambda y, x, *, window, **attrs: y.size * int(np.prod(window)),
    samples=pool_samples,
    traits=("windowed",),
    ulp=16,
    onnx=lambda o, x, **attrs: pool_onnx(o, "AveragePool", x, **attrs),
    padded=averaged_windows,
)
def avg_pool(
    x: TensorLike,
    window: Any,
    stride: Any = None,
    *,
    padding: Any = "valid",
    channels_last: bool = False,
) -> Tensor:
    """Average every window of the spatial axes.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        window: the size of the window, one number or one per spatial axis.
        stride: the step between windows, one number or one per spatial axis; the window's size if not given.
        padding: positions around the input that do not count: ``"valid"`` (none), ``"same"`` (``ceil(size / stride)``
            outputs), a number for all sides, or per spatial axis a number or a pair.
        channels_last: whether to take ``(n, *spatial, c)`` instead.

    Returns:
        The shape of `x` with fewer positions, in its dtype. float16 and bfloat16 are summed in float32.

    Raises:
        ShapeError: a window is larger than the padded input, or the input has no spatial axes.
        ArgumentError: an invalid window, stride or padding.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.avg_pool([[[1.0, 2.0, 4.0, 3.0]]], 2).tolist()
        [[[1.5, 3.5]]]
    """
    channels_last = truth("avg_pool", "channels_last", channels_last)
    tensor = as_tensor(x)
    tensor = cast_to(tensor, as_differentiable(tensor.dtype))
    return bind(avg_pool.op, (tensor,), pooling_attrs("avg_pool", tensor, window, stride, padding, channels_last))


def _avg_gradient_kernel(
    g: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    axes = spatial_axes("avg_pool", g.ndim, channels_last)
    part = g * _weights(shape, window, stride, padding, axes, g.dtype)
    if is_tiled(shape, window, stride, padding, axes):
        tiled, narrow, _ = tile_shapes(g.shape, window, axes)
        return np.broadcast_to(part.reshape(narrow), tiled).reshape(shape)
    padded_shape = sizes_with_padding(shape, axes, padding)
    for axis, size, step in zip(axes, window, stride, strict=True):
        count = part.shape[axis]
        full = np.zeros(replace(part.shape, (axis,), (padded_shape[axis],)), g.dtype)
        for start in range(size):
            full[window_slice(g.ndim, (axis,), (start,), (count,), (step,))] += part
        part = full
    return part[inside_padding(shape, axes, padding)]


def _avg_gradient_lower(
    g: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    axes = spatial_axes("avg_pool", g.ndim, channels_last)
    part = lower_wide(g)
    part = lax.mul(part, stretched(_weights(shape, window, stride, padding, axes, part.dtype), part.shape))
    if is_tiled(shape, window, stride, padding, axes):
        tiled, narrow, _ = tile_shapes(g.shape, window, axes)
        return lower_narrow(lax.reshape(stretched(lax.reshape(part, narrow), tiled), shape), g.dtype)
    padded_shape = sizes_with_padding(shape, axes, padding)
    for axis, size, step in zip(axes, window, stride, strict=True):
        total: Any = None
        for start in range(size):
            spread = lower_spread_out(part, (axis,), (start,), (step,), (padded_shape[axis],))
            total = spread if total is None else lax.add(total, spread)
        part = total
    starts = [low for low, _ in padding]
    inside = lower_slice(part, axes, starts, [shape[axis] for axis in axes], [1] * len(axes))
    return lower_narrow(inside, g.dtype)


def _avg_gradient_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3, 3, 5),), {"shape": (2, 3, 6, 5), **PAIR})
    yield Sample((normals(rng, 2, 3, 2, 3),), {"shape": (2, 3, 4, 6), **TILES})


def _avg_gradient_onnx(
    o: Any, g: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    """Write the gradient as a transposed convolution of each channel with ones."""
    ndim = g.ndim
    axes = spatial_axes("avg_pool", ndim, channels_last)
    inner = fixed_sizes(o, [*[shape[axis] for axis in axes], *[g.shape[axis] for axis in axes]])
    sizes, counts = inner[: len(axes)], inner[len(axes) :]
    part = g * o.value(_weights(shape, window, stride, padding, axes, g.dtype))
    if channels_last:
        part = channels_to(o, part, 1, ndim)
    outside = [shape[0], shape[-1 if channels_last else 1]]
    rows = o.Reshape(part, o.ints([-1, 1, *counts]))
    lows, highs = [low for low, _ in padding], [high for _, high in padding]
    more = [
        size + low + high - ((count - 1) * step + wide)
        for size, low, high, count, step, wide in zip(sizes, lows, highs, counts, stride, window, strict=True)
    ]
    ones = o.value(np.ones((1, 1, *window), g.dtype))
    sums = o.ConvTranspose(rows, ones, strides=stride, pads=[*lows, *highs], output_padding=more)
    sums = o.Reshape(sums, o.ints([*outside, *sizes]))
    return channels_to(o, sums, -1, ndim) if channels_last else sums


@op(
    kernel=_avg_gradient_kernel,
    lower=_avg_gradient_lower,
    infer=lambda g, *, shape, **attrs: make_spec(tuple(shape), g.dtype),
    vjp=lambda F, h, y, g, *, shape, **attrs: (F.avg_pool(h, **attrs),),
    flops=lambda y, g, *, window, **attrs: g.size * int(np.prod(window)),
    samples=_avg_gradient_samples,
    traits=("windowed",),
    ulp=16,
    onnx=_avg_gradient_onnx,
    padded=spread_windows,
)
def avg_pool_gradient(g: TensorLike, *, shape: Sizes, **attrs: Any) -> Tensor:
    """Spread every window's gradient evenly over its elements."""
    return bind(avg_pool_gradient.op, (as_tensor(g),), {"shape": shape, **attrs})

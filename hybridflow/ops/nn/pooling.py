"""Maximum pooling over one to three spatial axes, and helpers for all pooling."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int32, kind_of
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    REAL,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    integers,
    make_spec,
    normals,
    require_kind,
    truth,
)
from hybridflow.ops.nn.common import kept
from hybridflow.ops.nn.windows import (
    Sizes,
    kernel_padded,
    lower_padded,
    lower_slice,
    lower_spread_out,
    output_sizes,
    paddings,
    per_axis,
    replace,
    spatial_axes,
    window_slice,
)
from hybridflow.ops.onnx import channels_to
from hybridflow.ops.padding import constant, lowest
from hybridflow.ops.padding_windows import windowed

# A window's elements are numbered row by row. Windows are reduced one axis after the other, last axis first. The
# number of steps is then the sum of the window's sizes, not the product, and the first maximum is still found.


def pooling_attrs(name: str, x: Tensor, window: Any, stride: Any, padding: Any, channels_last: bool) -> dict[str, Any]:
    """Return the canonical attributes of a pooling."""
    axes = spatial_axes(name, x.ndim, channels_last)
    sizes = per_axis(name, "window", window, len(axes))
    steps = sizes if stride is None else per_axis(name, "stride", stride, len(axes))
    pads = paddings(name, padding, tuple([x.shape[axis] for axis in axes]), sizes, steps)
    return {"window": sizes, "stride": steps, "padding": pads, "channels_last": bool(channels_last)}


def pooled_shape(name: str, x: TensorSpec, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> Sizes:
    """Return the shape of the result."""
    axes = spatial_axes(name, x.ndim, channels_last)
    sizes = output_sizes(name, tuple([x.shape[axis] for axis in axes]), window, stride, padding, x)
    return replace(x.shape, axes, sizes)


def window_counts(padded: Any, window: Sizes, stride: Sizes, axes: Sizes) -> list[int]:
    """Return the number of windows of a padded array along each axis."""
    return [(padded.shape[axis] - size) // step + 1 for axis, size, step in zip(axes, window, stride, strict=True)]


def _offsets(window: Sizes) -> Iterator[tuple[int, ...]]:
    return product(*[range(size) for size in window])


def is_tiled(shape: Sizes, window: Sizes, stride: Sizes, padding: Any, axes: Sizes) -> bool:
    """Return whether the windows cover the input without overlap, gap or padding."""
    return window == stride and all(
        pair == (0, 0) and shape[axis] % size == 0 for pair, axis, size in zip(padding, axes, window, strict=True)
    )


def tile_shapes(g_shape: Sizes, window: Sizes, axes: Sizes) -> tuple[Sizes, Sizes, Sizes]:
    """Return the shapes that split each axis into windows and elements: of the input, the output and one window."""
    tiled: list[int] = []
    narrow: list[int] = []
    window_tile: list[int] = []
    for axis, size in enumerate(g_shape):
        inner = window[axes.index(axis)] if axis in axes else None
        tiled += [size] if inner is None else [size, inner]
        narrow += [size] if inner is None else [size, 1]
        window_tile += [1] if inner is None else [1, inner]
    return tuple(tiled), tuple(narrow), tuple(window_tile)


# -- max_pool -----------------------------------------------------------------------------------------------------


def _position_dtype(window: Sizes) -> Any:
    """Return the dtype that holds an element's number in its window."""
    return np.dtype(np.uint8) if int(np.prod(window)) <= 256 else int32


def _lowest(dtype: Any) -> Any:
    return -np.inf if kind_of(dtype) == "float" else np.iinfo(dtype).min


def _max_kernel(x: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool, residuals: bool) -> Any:
    axes = spatial_axes("max_pool", x.ndim, channels_last)
    best = kernel_padded(x, axes, padding, _lowest(x.dtype))
    counts = window_counts(best, window, stride, axes)
    if min(counts) < 1:
        raise ValueError("a window larger than its input")  # `bind` then runs the shape rule, which says more
    argmax: Any = None
    weight = 1
    for axis, size, step, count in reversed(list(zip(axes, window, stride, counts, strict=True))):
        values = [best[window_slice(best.ndim, (axis,), (start,), (count,), (step,))] for start in range(size)]
        if residuals:
            best, argmax = _first_maximum(values, argmax, axis, step, count, weight, _position_dtype(window))
            weight *= size
            continue
        best = np.maximum(values[0], values[1]) if size > 1 else values[0].copy()
        for value in values[2:]:
            np.maximum(best, value, out=best)
    best = _with_positive_zeros(best, x, window=window, stride=stride, padding=padding, channels_last=channels_last)
    return (best, argmax) if residuals else best


def _with_positive_zeros(y: Any, x: Any, **attrs: Any) -> Any:
    """Return maxima in which 0.0 is larger than -0.0, as in XLA; NumPy takes either."""
    if y.dtype.kind != "f" or np.count_nonzero(y) == y.size:
        return y
    doubtful = (y == 0) & np.signbit(y)
    if not doubtful.any():
        return y
    positive = ((x == 0) & ~np.signbit(x)).view(np.int8)
    maxima = _max_kernel(positive, **attrs, residuals=False)
    return np.where(doubtful & (maxima == 1), y.dtype.type(0), y)


def _first_maximum(
    values: list[Any], argmax: Any, axis: int, step: int, count: int, weight: int, dtype: Any
) -> tuple[Any, Any]:
    """Reduce one axis of windows: return the maximum and the number of its first element in the window."""
    best = values[0].copy()
    earlier = [
        None if argmax is None else argmax[window_slice(best.ndim, (axis,), (start,), (count,), (step,))]
        for start in range(len(values))
    ]
    number = np.zeros(best.shape, dtype) if earlier[0] is None else earlier[0].copy()
    for index, value in enumerate(values[1:], 1):
        better = value > best
        np.maximum(best, value, out=best)
        # Wrapping arithmetic selects faster than a masked copy.
        here = dtype.type(index * weight)
        candidate = here if earlier[index] is None else earlier[index] + here
        number += np.multiply(candidate - number, better)
    return best, number


def _max_lower(x: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool, residuals: bool) -> Any:
    axes = spatial_axes("max_pool", x.ndim, channels_last)
    best = lower_padded(x, axes, padding, _lowest(x.dtype))
    counts = window_counts(best, window, stride, axes)
    dtype = _position_dtype(window)
    argmax: Any = None
    weight = 1
    for axis, size, step, count in reversed(list(zip(axes, window, stride, counts, strict=True))):

        def part(value: Any, start: int, axis: int = axis, step: int = step, count: int = count) -> Any:
            return lower_slice(value, (axis,), (start,), (count,), (step,))

        full, best = best, part(best, 0)
        earlier, argmax = argmax, lax.full(best.shape, 0, dtype) if argmax is None else part(argmax, 0)
        for start in range(1, size):
            value = part(full, start)
            number = lax.full(best.shape, start * weight, dtype)
            if earlier is not None:
                number = lax.add(number, part(earlier, start))
            argmax = lax.select(lax.gt(value, best), number, argmax)
            best = lax.max(best, value)
        weight *= size
    return (best, argmax) if residuals else best


def _max_infer(
    x: TensorSpec, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool, residuals: bool
) -> Any:
    require_kind("max_pool", REAL, x)
    shape = pooled_shape("max_pool", x, window, stride, padding, channels_last)
    y = make_spec(shape, x.dtype)
    return (y, make_spec(shape, _position_dtype(window))) if residuals else y


def _max_vjp(F: Any, g: Any, y: Any, x: Any, **attrs: Any) -> Any:
    return (F.max_pool_gradient(g, y[1], shape=x.shape, **attrs),)


def pool_samples(rng: np.random.Generator) -> Any:
    """Yield calls of a pooling."""
    yield Sample((normals(rng, 2, 3, 4, 6), 2))
    yield Sample((normals(rng, 2, 3, 7, 6), (3, 2)), {"stride": (2, 1), "padding": "same"})
    yield Sample((normals(rng, 1, 2, 5, 5), 3), {"stride": 1, "padding": 1})
    yield Sample((normals(rng, 2, 3, 8), 3), {"stride": 2})
    yield Sample((normals(rng, 1, 2, 4, 4, 4), 2))
    yield Sample((normals(rng, 2, 6, 4, 3), 2), {"channels_last": True})
    yield Sample((normals(rng, 1, 1, 4, 4, dtype=np.float64), 2))
    yield Sample((normals(rng, 1, 2, 4, 4, dtype="bfloat16"), 2), gradient=False)
    zeros = rng.choice(np.array([0.0, -0.0, -1.0], np.float32), (1, 2, 6, 6))
    yield Sample((zeros, 2), gradient=False)
    yield Bad((normals(rng, 1, 2, 4, 4), 5), error=ShapeError, text="a window spans 5 positions")
    yield Bad((normals(rng, 1, 2, 4, 4), (2, 2, 2)), error=ArgumentError, text="is not an integer from 1 on, or 2")
    yield Bad((normals(rng, 4, 4), 2), error=ShapeError, text="the input has 2 dimensions")


def pool_onnx(
    o: Any, name: str, x: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    """Write a pooling; ONNX's operator wants channels first."""
    pads = [*[low for low, _ in padding], *[high for _, high in padding]]
    first = channels_to(o, x, 1, x.ndim) if channels_last else x
    y = o.emit(name, first, kernel_shape=window, strides=stride, pads=pads)
    return channels_to(o, y, -1, x.ndim) if channels_last else y


def _max_onnx(o: Any, x: Any, *, residuals: bool = False, **attrs: Any) -> Any:
    """Write it as MaxPool; positions are searched from the window's end, so the first maximum comes last and stays."""
    y = pool_onnx(o, "MaxPool", x, **attrs)
    if not residuals:
        return y
    argmax: Any = None
    parts = [*_window_parts(o, x, _lowest(x.dtype), **attrs)]
    for number, part in reversed([*enumerate(parts)]):
        here = o.value(np.int32(number))
        argmax = o.Where(o.Equal(part, y), here, o.value(np.int32(0)) if argmax is None else argmax)
    return y, argmax


def _window_parts(
    o: Any, x: Any, fill: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Iterator[Any]:
    """Yield, for each position in a window, the elements of all windows at that position."""
    axes = spatial_axes("max_pool", x.ndim, channels_last)
    sizes = [x.shape[axis] + low + high for axis, (low, high) in zip(axes, padding, strict=True)]
    counts = [(size - wide) // step + 1 for size, wide, step in zip(sizes, window, stride, strict=True)]
    pads = [*[low for low, _ in padding], *[high for _, high in padding]]
    padded = o.Pad(x, o.ints(pads), o.value(fill, x.dtype), o.ints(axes)) if any(pads) else x
    for offset in _offsets(window):
        ends = [
            start + (count - 1) * step + 1 for start, count, step in zip(offset, counts, stride, strict=True)
        ]
        yield o.Slice(padded, o.ints(offset), o.ints(ends), o.ints(axes), o.ints(stride))


@op(
    kernel=_max_kernel,
    lower=_max_lower,
    infer=_max_infer,
    vjp=_max_vjp,
    saves=Saves(hidden=1),
    flops=lambda y, x, *, window, **attrs: (y[0] if isinstance(y, tuple) else y).size * int(np.prod(window)),
    samples=pool_samples,
    traits=("windowed",),
    ulp=0,
    onnx=_max_onnx,
    padded=windowed(lowest),
)
def max_pool(
    x: TensorLike, window: Any, stride: Any = None, *, padding: Any = "valid", channels_last: bool = False
) -> Tensor:
    """Take the maximum of every window of the spatial axes.

    The gradient goes to the first of equal maxima, row by row.

    Args:
        x: ``(n, c, *spatial)``, real.
        window: the size of the window, one number or one per spatial axis.
        stride: the step between windows, one number or one per spatial axis; the window's size if not given.
        padding: positions around the input that are never the maximum: ``"valid"`` (none), ``"same"``
            (``ceil(size / stride)`` outputs), a number for all sides, or per spatial axis a number or a pair.
        channels_last: whether to take ``(n, *spatial, c)`` instead.

    Returns:
        The shape of `x` with fewer positions, in its dtype; NaN in a window gives NaN.

    Raises:
        ShapeError: a window is larger than the padded input, or the input has no spatial axes.
        ArgumentError: an invalid window, stride or padding.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.max_pool([[[1.0, 2.0, 4.0, 3.0]]], 2).tolist()
        [[[2.0, 4.0]]]
    """
    channels_last = truth("max_pool", "channels_last", channels_last)
    tensor = as_tensor(x)
    return bind(max_pool.op, (tensor,), pooling_attrs("max_pool", tensor, window, stride, padding, channels_last))


def _max_gradient_kernel(
    g: Any, argmax: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    axes = spatial_axes("max_pool", g.ndim, channels_last)
    padded = np.zeros(sizes_with_padding(shape, axes, padding), g.dtype)
    counts = [g.shape[axis] for axis in axes]
    apart = all(step >= size for size, step in zip(window, stride, strict=True))
    for number, offset in enumerate(_offsets(window)):
        index = window_slice(g.ndim, axes, offset, counts, stride)
        part = kept(g, argmax == number)
        if apart:
            padded[index] = part
        else:
            padded[index] += part
    return padded[inside_padding(shape, axes, padding)]


def sizes_with_padding(shape: Sizes, axes: Sizes, padding: Any) -> Sizes:
    """Return the shape of an array with its padding."""
    return replace(shape, axes, [shape[axis] + low + high for axis, (low, high) in zip(axes, padding, strict=True)])


def inside_padding(shape: Sizes, axes: Sizes, padding: Any) -> Any:
    """Return the index of the part that is not padding."""
    return window_slice(len(shape), axes, [low for low, _ in padding], [shape[axis] for axis in axes])


def _max_gradient_lower(
    g: Any, argmax: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    axes = spatial_axes("max_pool", g.ndim, channels_last)
    zero = np.zeros((), g.dtype)
    if is_tiled(shape, window, stride, padding, axes):
        tiled, output_tiles, window_tile = tile_shapes(g.shape, window, axes)
        every = tuple(range(len(tiled)))
        numbers = lax.reshape(lax.iota(argmax.dtype, int(np.prod(window))), window_tile)
        hit = lax.eq(stretched(lax.reshape(argmax, output_tiles), tiled), lax.broadcast_in_dim(numbers, tiled, every))
        spread = stretched(lax.reshape(g, output_tiles), tiled)
        return lax.reshape(lax.select(hit, spread, lax.full_like(spread, 0)), shape)
    padded = sizes_with_padding(shape, axes, padding)
    total: Any = None
    for number, offset in enumerate(_offsets(window)):
        part = lax.select(lax.eq(argmax, lax.full_like(argmax, number)), g, lax.broadcast(zero, g.shape))
        part = lower_spread_out(part, axes, offset, stride, [padded[axis] for axis in axes])
        total = part if total is None else lax.add(total, part)
    starts = [low for low, _ in padding]
    return lower_slice(total, axes, starts, [shape[axis] for axis in axes], [1] * len(axes))


def stretched(x: Any, shape: Sizes) -> Any:
    """Broadcast the axes of size 1 of an array to a shape."""
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape))))


def _max_gradient_vjp(F: Any, h: Any, y: Any, g: Any, argmax: Any, *, shape: Sizes, **attrs: Any) -> Any:
    del y, g, shape
    return lambda: F.max_pool_pick(h, argmax, **attrs), None


PAIR = {"window": (3, 2), "stride": (2, 1), "padding": ((1, 0), (0, 1)), "channels_last": False}
TILES = {"window": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0)), "channels_last": False}


def _max_gradient_samples(rng: np.random.Generator) -> Any:
    argmax = integers(rng, 2, 6, 2, 3, 3, 5, dtype="uint8")
    yield Sample((normals(rng, 2, 3, 3, 5), argmax), {"shape": (2, 3, 6, 5), **PAIR})
    tiles = integers(rng, 0, 4, 2, 3, 2, 3, dtype="uint8")
    yield Sample((normals(rng, 2, 3, 2, 3), tiles), {"shape": (2, 3, 4, 6), **TILES})


def _max_gradient_onnx(
    o: Any, g: Any, argmax: Any, *, shape: Sizes, window: Sizes, stride: Sizes, padding: Any, channels_last: bool
) -> Any:
    """Add up the gradients at the positions of their maxima in the padded input."""
    ndim = g.ndim
    axes = spatial_axes("max_pool", ndim, channels_last)
    sizes = fixed_sizes(o, [*[shape[axis] for axis in axes], *[g.shape[axis] for axis in axes]])[: len(axes)]
    padded = [size + low + high for size, (low, high) in zip(sizes, padding, strict=True)]
    steps, weights = np.ones(len(axes), np.int64), np.ones(len(axes), np.int64)
    for axis in reversed(range(len(axes) - 1)):
        steps[axis], weights[axis] = steps[axis + 1] * padded[axis + 1], weights[axis + 1] * window[axis + 1]
    outside = [shape[0], shape[-1 if channels_last else 1]]
    flat_index = o.cast(argmax, np.int64)
    if channels_last:
        g, flat_index = channels_to(o, g, 1, ndim), channels_to(o, flat_index, 1, ndim)
    starts = np.zeros((), np.int64)
    counts = [(size - wide) // step + 1 for size, wide, step in zip(padded, window, stride, strict=True)]
    index: Any = None
    for axis, (count, wide) in enumerate(zip(counts, window, strict=True)):
        along = np.arange(count, dtype=np.int64) * stride[axis] * steps[axis]
        starts = starts + along.reshape([-1 if other == axis else 1 for other in range(len(axes))])
        part = o.Mod(o.Div(flat_index, o.value(weights[axis])), o.value(np.int64(wide))) * o.value(steps[axis])
        index = part if index is None else index + part
    flat = [*outside, -1]
    index = o.Reshape(index + o.value(starts), o.ints(flat))
    zeros_of = o.Expand(o.value(np.zeros((), g.dtype)), o.ints([*outside, math.prod(padded)]))
    sums = o.ScatterElements(zeros_of, index, o.Reshape(g, o.ints(flat)), axis=2, reduction="add")
    sums = o.Reshape(sums, o.ints([*outside, *padded]))
    lows = [low for low, _ in padding]
    ends = [low + size for low, size in zip(lows, sizes, strict=True)]
    sums = o.Slice(sums, o.ints(lows), o.ints(ends), o.ints(range(2, ndim)))
    return channels_to(o, sums, -1, ndim) if channels_last else sums


def fixed_sizes(o: Any, sizes: Sequence[Any]) -> list[int]:
    """Return sizes for ONNX, none of which may be symbolic."""
    if any(type(size) is Dim for size in sizes):
        o.no("the gradient of a pooling of open spatial size has none")
    return [*sizes]


@op(
    kernel=_max_gradient_kernel,
    lower=_max_gradient_lower,
    infer=lambda g, argmax, *, shape, **attrs: make_spec(tuple(shape), g.dtype),
    vjp=_max_gradient_vjp,
    saves=Saves(x=(1,)),
    flops=lambda y, g, argmax, **attrs: y.size,
    samples=_max_gradient_samples,
    traits=("windowed",),
    onnx=_max_gradient_onnx,
    padded=windowed(constant(0), inputs=2),
)
def max_pool_gradient(g: TensorLike, argmax: TensorLike, *, shape: Sizes, **attrs: Any) -> Tensor:
    """Add every window's gradient at the position of its maximum."""
    return bind(max_pool_gradient.op, (as_tensor(g), as_tensor(argmax)), {"shape": shape, **attrs})


def _pick_kernel(x: Any, argmax: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> Any:
    axes = spatial_axes("max_pool", x.ndim, channels_last)
    padded = kernel_padded(x, axes, padding, 0)
    counts = [argmax.shape[axis] for axis in axes]
    result = np.zeros(argmax.shape, x.dtype)
    for number, offset in enumerate(_offsets(window)):
        index = window_slice(x.ndim, axes, offset, counts, stride)
        np.copyto(result, padded[index], where=argmax == number)
    return result


def _pick_lower(x: Any, argmax: Any, *, window: Sizes, stride: Sizes, padding: Any, channels_last: bool) -> Any:
    axes = spatial_axes("max_pool", x.ndim, channels_last)
    padded = lower_padded(x, axes, padding, 0)
    counts = [argmax.shape[axis] for axis in axes]
    result = lax.full(argmax.shape, 0, x.dtype)
    for number, offset in enumerate(_offsets(window)):
        part = lower_slice(padded, axes, offset, counts, stride)
        result = lax.select(lax.eq(argmax, lax.full_like(argmax, number)), part, result)
    return result


def _pick_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3, 6, 5), integers(rng, 2, 6, 2, 3, 3, 5, dtype="uint8")), PAIR)
    yield Sample((normals(rng, 2, 3, 4, 6), integers(rng, 0, 4, 2, 3, 2, 3, dtype="uint8")), TILES)


def _pick_vjp(F: Any, g: Any, y: Any, x: Any, argmax: Any, **attrs: Any) -> Any:
    del y
    return lambda: F.max_pool_gradient(g, argmax, shape=x.shape, **attrs), None


def _pick_onnx(o: Any, x: Any, argmax: Any, **attrs: Any) -> Any:
    number, picked = o.cast(argmax, int32), o.value(np.zeros((), x.dtype))
    for index, part in enumerate(_window_parts(o, x, 0, **attrs)):
        picked = o.Where(o.Equal(number, o.value(np.int32(index))), part, picked)
    return picked


@op(
    kernel=_pick_kernel,
    lower=_pick_lower,
    infer=lambda x, argmax, **attrs: make_spec(argmax.shape, x.dtype),
    vjp=_pick_vjp,
    saves=Saves(x=(1,)),
    flops=lambda y, x, argmax, **attrs: y.size,
    samples=_pick_samples,
    traits=("windowed",),
    ulp=0,
    onnx=_pick_onnx,
    padded=windowed(constant(0), inputs=2),
)
def max_pool_pick(x: TensorLike, argmax: TensorLike, **attrs: Any) -> Tensor:
    """Take from every window the element with a given number."""
    return bind(max_pool_pick.op, (as_tensor(x), as_tensor(argmax)), attrs)



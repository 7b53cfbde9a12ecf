"""Helpers that convolution and pooling share: windows, strides and padding over the spatial axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.ops.common import TensorSpec, call_text, require_no_truth

Sizes = tuple[Any, ...]
Pairs = tuple[tuple[Any, Any], ...]


def per_axis(name: str, what: str, value: Any, count: int, least: int = 1) -> tuple[int, ...]:
    """Return one integer per spatial axis.

    Raises:
        ArgumentError: the number of integers is wrong, or one is below `least`.
        ArgumentTypeError: True or False.
    """
    items = tuple(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else (value,) * count
    for item in items:
        require_no_truth(name, what, item)
    numbers = tuple([int(item.__index__()) for item in items])
    if len(numbers) != count or any(number < least for number in numbers):
        raise ArgumentError(f"{name}: {what}={value!r} is not an integer from {least} on, or {count} of them",
                            hint=f"The input has {count} spatial axes.")
    return numbers


def spatial_axes(name: str, ndim: int, channels_last: bool) -> tuple[int, ...]:
    """Return the spatial axes of an input ``(n, c, *spatial)`` or ``(n, *spatial, c)``.

    Raises:
        ShapeError: the input does not have one to three spatial axes.
    """
    if not 3 <= ndim <= 5:
        raise ShapeError(
            f"{name}: the input has {ndim} dimensions, 3 to 5 are needed: batch, channels, and 1 to 3 spatial",
            hint="Add a batch axis with hf.expand_dims if there is none."
        )
    first = 1 if channels_last else 2
    return tuple(range(first, first + ndim - 2))


def reach(window: Sizes, dilation: Sizes) -> Sizes:
    """Return the number of positions that a dilated window spans, per axis."""
    return tuple([(size - 1) * step + 1 for size, step in zip(window, dilation, strict=True)])


def paddings(name: str, padding: Any, sizes: Sizes, spans: Sizes, stride: Sizes) -> Pairs:
    """Return the padding before and after each spatial axis.

    Args:
        name: the operation, for messages.
        padding: ``"valid"``, ``"same"`` (as many outputs as ``ceil(size / stride)``), an integer, or per axis an
            integer or a pair of them.
        sizes: the sizes of the spatial axes.
        spans: the number of positions that a window spans, per axis.
        stride: the strides.

    Raises:
        ArgumentError: an invalid padding.
        ArgumentTypeError: True or False.
    """
    count = len(sizes)
    for one in padding if isinstance(padding, list | tuple) else (padding,):
        require_no_truth(name, "padding", one)
    if isinstance(padding, str):
        if padding.lower() == "valid":
            return ((0, 0),) * count
        if padding.lower() == "same":
            return tuple([_same(*item) for item in zip(sizes, spans, stride, strict=True)])
    elif isinstance(padding, int):
        return ((padding, padding),) * count
    elif isinstance(padding, list | tuple):
        items = tuple(cast("Sequence[Any]", padding))
        pairs = tuple([(item, item) if isinstance(item, int) else tuple(item) for item in items])
        if len(pairs) == count and all(len(pair) == 2 for pair in pairs):
            return cast(Pairs, pairs)
    raise ArgumentError(f"{name}: padding={padding!r} is not 'valid', 'same', an integer, or {count} integers or pairs",
                        hint='Pass padding="same", or ((top, bottom), (left, right)).')


def _same(size: Any, span: Any, step: int) -> tuple[Any, Any]:
    """Return the padding that makes ``ceil(size / step)`` outputs; if it is odd, the extra position is at the end."""
    total = span - 1 if step == 1 else ((size + step - 1) // step - 1) * step + span - size
    if total < 0:
        total = 0
    return total // 2, total - total // 2


def output_sizes(name: str, sizes: Sizes, spans: Sizes, stride: Sizes, padding: Pairs, *specs: TensorSpec) -> Sizes:
    """Return the number of windows that fit along each spatial axis.

    Raises:
        ShapeError: a window is larger than the padded input.
    """
    result: list[Any] = []
    for size, span, step, (low, high) in zip(sizes, spans, stride, padding, strict=True):
        room = size + low + high
        if room < span:
            raise ShapeError(f"{name}: a window spans {span} positions, but the padded input has {room}",
                             got=call_text(name, *specs), hint="Use a smaller window or more padding.")
        result.append((room - span) // step + 1)
    return tuple(result)


def replace(shape: Sequence[Any], axes: Sequence[int], sizes: Sequence[Any]) -> tuple[Any, ...]:
    """Return a shape with the sizes of some axes replaced."""
    result = list(shape)
    for axis, size in zip(axes, sizes, strict=True):
        result[axis] = size
    return tuple(result)


# -- on arrays ----------------------------------------------------------------------------------------------------


def kernel_padded(x: Any, axes: Sequence[int], padding: Pairs, fill: Any) -> Any:
    """Pad a NumPy array along some axes."""
    if not any(low or high for low, high in padding):
        return x
    shape = replace(x.shape, axes, [x.shape[axis] + sum(pair) for axis, pair in zip(axes, padding, strict=True)])
    result = np.full(shape, fill, x.dtype)
    result[window_slice(x.ndim, axes, [low for low, _ in padding], [x.shape[axis] for axis in axes])] = x
    return result


def window_slice(
    ndim: int, axes: Sequence[int], starts: Sequence[int], counts: Sequence[int], steps: Sequence[int] | None = None
) -> Any:
    """Return the index that takes `counts` elements from `starts` on along some axes."""
    index: list[slice] = [slice(None)] * ndim
    for i, (axis, start, count) in enumerate(zip(axes, starts, counts, strict=True)):
        step = 1 if steps is None else steps[i]
        index[axis] = slice(start, start + (count - 1) * step + 1, step)
    return tuple(index)


def lower_padded(x: Any, axes: Sequence[int], padding: Pairs, fill: Any) -> Any:
    """Pad a JAX value along some axes."""
    if not any(low or high for low, high in padding):
        return x
    config = [(0, 0, 0)] * x.ndim
    for axis, (low, high) in zip(axes, padding, strict=True):
        config[axis] = (low, high, 0)
    return lax.pad(x, np.asarray(fill, x.dtype), config)


def lower_slice(x: Any, axes: Sequence[int], starts: Sequence[int], counts: Sequence[int], steps: Sequence[int]) -> Any:
    """Take every `steps`-th element along some axes of a JAX value."""
    for axis, start, count, step in zip(axes, starts, counts, steps, strict=True):
        x = lax.slice_in_dim(x, start, start + (count - 1) * step + 1, step, axis)
    return x


def lower_spread_out(
    x: Any, axes: Sequence[int], starts: Sequence[int], steps: Sequence[int], sizes: Sequence[int]
) -> Any:
    """Put elements at every `steps`-th position of a larger array of zeros: the transpose of `lower_slice`."""
    config = [(0, 0, 0)] * x.ndim
    for axis, start, step, size in zip(axes, starts, steps, sizes, strict=True):
        config[axis] = (start, size - start - ((x.shape[axis] - 1) * step + 1), step - 1)
    return lax.pad(x, np.zeros((), x.dtype), config)

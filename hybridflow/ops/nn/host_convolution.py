"""Convolution on the host: windows as columns, and matrix products.

A batch is taken in parts whose columns stay in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend import products
from hybridflow.ops.nn.windows import Sizes, kernel_padded, window_slice

COLUMNS = 1 << 18
"""About how many elements of columns are made at a time."""


class _Shape(NamedTuple):
    """What a convolution of arrays with channels first is made of.

    Attributes:
        batch, groups, into, out: how many images, groups, and input and output channels of each group.
        space, window, places: the sizes of the input, the kernel and the output.
    """

    batch: int
    groups: int
    into: int
    out: int
    space: Sizes
    window: Sizes
    places: Sizes
    stride: Sizes
    padding: Any
    dilation: Sizes

    @property
    def axes(self) -> tuple[int, ...]:
        return tuple(range(2, 2 + len(self.space)))

    @property
    def rows(self) -> int:
        """How many elements of the input one element of the output reads."""
        return self.into * int(np.prod(self.window))

    @property
    def columns(self) -> int:
        return int(np.prod(self.places))

    def parts(self) -> Iterator[slice]:
        """Cut the batch into parts."""
        step = max(1, COLUMNS // max(1, self.groups * self.rows * self.columns))
        for start in range(0, self.batch, step):
            yield slice(start, min(start + step, self.batch))


def _shape_of(x: Sizes, kernel: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int) -> _Shape:
    space, window = x[2:], kernel[2:]
    if len(x) != len(kernel) or x[1] != kernel[1] * groups or kernel[0] % groups:
        raise ValueError("channels that do not match")  # the shape rule then words the error
    places = tuple([
        (size + low + high - (wide - 1) * apart - 1) // step + 1
        for size, (low, high), wide, apart, step in zip(space, padding, window, dilation, stride, strict=True)
    ])  # fmt: skip
    if min(places) < 1:
        raise ValueError("a window larger than its input")
    return _Shape(x[0], groups, kernel[1], kernel[0] // groups, space, window, places, stride, padding, dilation)


def _first(x: Any) -> Any:
    """Move the channels of an image first."""
    return np.moveaxis(x, -1, 1)


def _last(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def _kernel_first(kernel: Any) -> Any:
    """Move the output and input channels of a kernel first."""
    return np.moveaxis(kernel, (-1, -2), (0, 1))


def _kernel_last(kernel: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(kernel, (0, 1), (-1, -2)))


def _windows(x: Any, shape: _Shape) -> Any:
    """Return a view ``(n, c, *window, *places)`` of the padded input."""
    padded = kernel_padded(x, shape.axes, shape.padding, 0)
    batch, channel, *steps = padded.strides
    inner = [step * apart for step, apart in zip(steps, shape.dilation, strict=True)]
    outer = [step * far for step, far in zip(steps, shape.stride, strict=True)]
    return np.lib.stride_tricks.as_strided(
        padded,
        (*padded.shape[:2], *shape.window, *shape.places),
        (batch, channel, *inner, *outer),
        writeable=False,
    )


def convolve(x: Any, kernel: Any, *, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv` of float32 or float64 arrays."""
    if channels_last:
        return _last(convolve(_first(x), _kernel_first(kernel), channels_last=False, **attrs))
    shape = _shape_of(x.shape, kernel.shape, **attrs)
    view = _windows(x, shape)
    weights = kernel.reshape(shape.groups, shape.out, shape.rows)
    y = np.empty((shape.batch, shape.groups, shape.out, shape.columns), x.dtype)
    for part in shape.parts():
        products.matmul(weights, view[part].reshape(-1, shape.groups, shape.rows, shape.columns), out=y[part])
    return y.reshape(shape.batch, kernel.shape[0], *shape.places)


def kernel_gradient(x: Any, g: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_kernel_gradient`."""
    if channels_last:
        first = (shape[-1], shape[-2], *shape[:-2])
        return _kernel_last(kernel_gradient(_first(x), _first(g), shape=first, channels_last=False, **attrs))
    form = _shape_of(x.shape, shape, **attrs)
    view = _windows(x, form)
    found = g.reshape(form.batch, form.groups, form.out, form.columns)
    total = np.zeros((form.groups, form.out, form.rows), g.dtype)
    for part in form.parts():
        columns = view[part].reshape(-1, form.groups, form.rows, form.columns)
        total += np.add.reduce(products.matmul(found[part], columns.swapaxes(-1, -2)), axis=0)
    return total.reshape(shape)


def input_gradient(g: Any, kernel: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_input_gradient`."""
    if channels_last:
        first = (shape[0], shape[-1], *shape[1:-1])
        return _last(input_gradient(_first(g), _kernel_first(kernel), shape=first, channels_last=False, **attrs))
    form = _shape_of(shape, kernel.shape, **attrs)
    weights = kernel.reshape(form.groups, form.out, form.rows).swapaxes(-1, -2)
    found = g.reshape(form.batch, form.groups, form.out, form.columns)
    sizes = [size + low + high for size, (low, high) in zip(form.space, form.padding, strict=True)]
    padded = np.zeros((form.batch, shape[1], *sizes), g.dtype)
    offsets = list(product(*[range(size) for size in form.window]))
    for part in form.parts():
        columns = products.matmul(weights, found[part])
        columns = columns.reshape(-1, shape[1], *form.window, *form.places)
        target = padded[part]
        for offset in offsets:
            starts = [at * apart for at, apart in zip(offset, form.dilation, strict=True)]
            target[window_slice(padded.ndim, form.axes, starts, form.places, form.stride)] += columns[
                (slice(None), slice(None), *offset)
            ]
    inside = [low for low, _ in form.padding]
    cut = padded[window_slice(padded.ndim, form.axes, inside, form.space)]
    return np.ascontiguousarray(cut)

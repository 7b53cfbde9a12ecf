"""Convolution on the host: windows become columns of a matrix, which is multiplied by the kernel.

A batch is cut into parts whose columns stay in the cache. Images with few output positions share one product, so that
the kernel is read once for all of them. Where windows move by one, the elements of a column lie one after another in
the input, except at the ends of rows. Such a column is copied in one piece, ends of rows included, and the surplus
elements are dropped from the result. See `_Lines`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend import products
from hybridflow.ops.nn.windows import Sizes, kernel_padded, window_slice

COLUMNS = 1 << 18
"""The approximate number of elements of the columns that one part of a batch makes."""
_WASTE = 1.25
"""A column is copied in one piece if the ends of rows make it at most this many times longer."""


_ROWS = 2
"""Columns are copied in one piece only if there are at least this many of them per output channel."""
_FEW = 128
"""The largest number of output positions for which the images of a part share one product."""
_SHARED = 256
"""The approximate smallest number of output positions of a product that images share."""


class _Shape(NamedTuple):
    """The sizes of a convolution of arrays with channels first.

    Attributes:
        batch, groups, into, out: the numbers of images, of groups, and of input and output channels per group.
        space, window, places: the spatial sizes of the input, the kernel and the output.
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
        """The number of input elements that one output element reads."""
        return self.into * prod(self.window)

    @property
    def columns(self) -> int:
        return prod(self.places)

    @property
    def joins(self) -> bool:
        """Whether the images of a part share one product."""
        return self.batch > 1 and 0 < self.columns <= _FEW

    def parts(self) -> Iterator[slice]:
        """Cut the batch into parts."""
        step = max(1, COLUMNS // max(1, self.groups * self.rows * self.columns))
        if self.joins:
            step = max(step, -(-_SHARED // self.columns))
        for start in range(0, self.batch, step):
            yield slice(start, min(start + step, self.batch))


class _Lines(NamedTuple):
    """The layout of output positions in an input with flattened spatial axes, for windows that move by one.

    Attributes:
        sizes: the sizes of the padded input's spatial axes.
        grid: the sizes of the output, with each row extended to the length of the input's row.
        steps: the distance between neighbours along each spatial axis.
        length: the number of elements from the first output position to the last one, both included.
    """

    sizes: Sizes
    grid: Sizes
    steps: Sizes
    length: int

    def windows(self, padded: Any, shape: _Shape) -> Any:
        """Return a view ``(n, c, *window, length)`` of a padded input."""
        batch, channel = padded.strides[:2]
        item = padded.itemsize
        inner = [step * apart * item for step, apart in zip(self.steps, shape.dilation, strict=True)]
        return np.lib.stride_tricks.as_strided(
            padded, (*padded.shape[:2], *shape.window, self.length), (batch, channel, *inner, item), writeable=False
        )

    def starts(self, shape: _Shape) -> list[int]:
        """Return the offset of each element of the window from its output position."""
        offsets = product(*[range(size) for size in shape.window])
        return [
            sum([at * apart * step for at, apart, step in zip(offset, shape.dilation, self.steps, strict=True)])
            for offset in offsets
        ]

    def cut(self, shape: _Shape) -> tuple[slice, ...]:
        """Return the key that selects the output positions in the grid."""
        return tuple([slice(size) for size in shape.places])

    def spread(self, g: Any, shape: _Shape) -> Iterator[tuple[slice, Any]]:
        """Yield the parts of a batch, each with its values ``(n, c, *places)`` as lines with zeros between rows."""
        wide: Any = None
        for part in shape.parts():
            count = part.stop - part.start
            if wide is None:
                wide = np.zeros((count, *g.shape[1:2], *self.grid), g.dtype)  # only positions are written again
            made = wide[:count]
            made[(slice(None), slice(None), *self.cut(shape))] = g[part]
            yield part, made.reshape(count, shape.groups, shape.out, -1)[..., : self.length]


def _lines_of(shape: _Shape) -> _Lines | None:
    """Return the layout for columns copied in one piece, or None if it is slower."""
    if shape.joins or any(step != 1 for step in shape.stride) or shape.rows < _ROWS * shape.out:
        return None
    sizes = tuple([size + low + high for size, (low, high) in zip(shape.space, shape.padding, strict=True)])
    grid = (shape.places[0], *sizes[1:])
    if prod(grid) > _WASTE * shape.columns:
        return None
    steps = tuple([prod(sizes[axis + 1 :]) for axis in range(len(sizes))])
    length = sum([(size - 1) * step for size, step in zip(shape.places, steps, strict=True)]) + 1
    return _Lines(sizes, grid, steps, length)


def _shape_of(x: Sizes, kernel: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int) -> _Shape:
    space, window = x[2:], kernel[2:]
    if len(x) != len(kernel) or x[1] != kernel[1] * groups or kernel[0] % groups:
        raise ValueError("channels that do not match")  # `bind` then runs the shape rule, which says more
    sizes = tuple([
        (size + low + high - (wide - 1) * apart - 1) // step + 1
        for size, (low, high), wide, apart, step in zip(space, padding, window, dilation, stride, strict=True)
    ])  # fmt: skip
    if min(sizes) < 1:
        raise ValueError("a window larger than its input")
    return _Shape(x[0], groups, kernel[1], kernel[0] // groups, space, window, sizes, stride, padding, dilation)


def _first(x: Any) -> Any:
    """Move the channels of images to the front, after the batch axis."""
    return np.moveaxis(x, -1, 1)


def _last(x: Any) -> Any:
    return np.ascontiguousarray(np.moveaxis(x, 1, -1))


def _kernel_first(kernel: Any) -> Any:
    """Move the output and input channels of a kernel to the front."""
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


class _Buffer:
    """Memory for the arrays of one part after another: fresh memory would be slower, because the system clears it."""

    def __init__(self, dtype: Any) -> None:
        self._dtype, self._memory = dtype, np.empty(0, dtype)

    def array(self, *sizes: int) -> Any:
        """Return an array of given sizes without values; the first part is the largest."""
        if self._memory.size < prod(sizes):
            self._memory = np.empty(prod(sizes), self._dtype)
        return self._memory[: prod(sizes)].reshape(sizes)


def _columns(view: Any, shape: _Shape) -> Iterator[tuple[slice, Any]]:
    """Yield slices of a batch, each with its columns, which the next slice overwrites.

    The columns have the axes (products, groups, rows, positions). There is a product for each image, or one for all.
    """
    buffer = _Buffer(view.dtype)
    first_place = 2 + len(shape.window)
    length = prod(view.shape[first_place:])
    for part in shape.parts():
        images = view[part]
        count, positions = (1, len(images) * length) if shape.joins else (len(images), length)
        if shape.joins:
            images = np.moveaxis(images, 0, first_place - 1)
        columns = buffer.array(*images.shape)
        np.copyto(columns, images)
        yield part, columns.reshape(count, shape.groups, shape.rows, positions)


def _joined(images: Any, shape: _Shape, buffer: _Buffer) -> Any:
    """Bring values ``(n, groups, out, positions)`` of images to the form of the columns of their products."""
    if not shape.joins:
        return images
    images = np.moveaxis(images, 0, 2)
    joined = buffer.array(*images.shape)
    np.copyto(joined, images)
    return joined.reshape(1, *images.shape[:2], -1)


def _apart(made: Any, shape: _Shape, count: int, *inner: int) -> Any:
    """Return results of products as a view ``(count, channels, *inner, *places)``."""
    if not shape.joins:
        return made.reshape(count, -1, *inner, *shape.places)
    return np.moveaxis(made.reshape(-1, *inner, count, *shape.places), 1 + len(inner), 0)


def _multiply(weights: Any, columns: Any, out: Any) -> None:
    """Multiply weights ``(groups, ...)`` by columns ``(products, groups, ...)`` into a third array."""
    _multiply_each(np.broadcast_to(weights, (len(columns), *weights.shape)), columns, out)


def _multiply_each(a: Any, b: Any, out: Any) -> None:
    """Multiply arrays ``(products, groups, ...)`` into a third one; a single product can be cut in its rows."""
    if a.shape[1] == 1:
        a, b, out = a[:, 0], b[:, 0], out[:, 0]
        if len(a) == 1:
            a, b, out = a[0], b[0], out[0]
    products.matmul(a, b, out=out)


def convolve(x: Any, kernel: Any, *, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv` of float32 or float64 arrays."""
    if channels_last:
        return _last(convolve(_first(x), _kernel_first(kernel), channels_last=False, **attrs))
    shape = _shape_of(x.shape, kernel.shape, **attrs)
    weights = kernel.reshape(shape.groups, shape.out, shape.rows)
    lines = _lines_of(shape)
    if lines is not None:
        return _convolve_lines(x, weights, shape, lines)
    y = np.empty((shape.batch, kernel.shape[0], *shape.places), x.dtype)
    buffer = _Buffer(x.dtype)
    for part, columns in _columns(_windows(x, shape), shape):
        made = buffer.array(len(columns), shape.groups, shape.out, columns.shape[-1]) if shape.joins else y[part]
        _multiply(weights, columns, made.reshape(len(columns), shape.groups, shape.out, columns.shape[-1]))
        if shape.joins:
            y[part] = _apart(made, shape, part.stop - part.start)
    return y


def _padded(x: Any, shape: _Shape) -> Any:
    return np.ascontiguousarray(kernel_padded(x, shape.axes, shape.padding, 0))


def _convolve_lines(x: Any, weights: Any, shape: _Shape, lines: _Lines) -> Any:
    view = lines.windows(_padded(x, shape), shape)
    y = np.empty((shape.batch, shape.groups * shape.out, *shape.places), x.dtype)
    cut, buffer = lines.cut(shape), _Buffer(x.dtype)
    for part, columns in _columns(view, shape):
        made = buffer.array(len(columns), shape.groups, shape.out, prod(lines.grid))
        _multiply(weights, columns, made[..., : lines.length])
        y[part] = made.reshape(len(columns), y.shape[1], *lines.grid)[(slice(None), slice(None), *cut)]
    return y


def kernel_gradient(x: Any, g: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_kernel_gradient`."""
    if channels_last:
        first = (shape[-1], shape[-2], *shape[:-2])
        return _kernel_last(kernel_gradient(_first(x), _first(g), shape=first, channels_last=False, **attrs))
    form = _shape_of(x.shape, shape, **attrs)
    lines = _lines_of(form)
    if lines is not None:
        gradient = _kernel_sums(lines.windows(_padded(x, form), form), lines.spread(g, form), form)
        if np.isfinite(gradient).all():  # else a zero between the rows may have been multiplied by inf or NaN
            return gradient.reshape(shape)
    slopes = g.reshape(form.batch, form.groups, form.out, form.columns)
    parts = ((part, slopes[part]) for part in form.parts())
    return _kernel_sums(_windows(x, form), parts, form).reshape(shape)


def _kernel_sums(view: Any, slopes: Iterable[tuple[slice, Any]], form: _Shape) -> Any:
    """Return the kernel's gradient ``(groups, out, rows)``.

    Products of few positions are as fast in this order; others are faster transposed, and then worth the copy.
    """
    total = np.zeros((form.groups, *((form.out, form.rows) if form.joins else (form.rows, form.out))), view.dtype)
    made, joined = _Buffer(view.dtype), _Buffer(view.dtype)
    for (_, columns), (_, slope) in zip(_columns(view, form), slopes, strict=True):
        one = made.array(len(columns), *total.shape)
        if form.joins:
            _multiply_each(_joined(slope, form, joined), columns.swapaxes(-1, -2), one)
        else:
            products.matmul(columns, slope.swapaxes(-1, -2), out=one)
        total += one[0] if len(one) == 1 else np.add.reduce(one, axis=0)
    return total if form.joins else np.ascontiguousarray(total.swapaxes(-1, -2))


def input_gradient(g: Any, kernel: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_input_gradient`."""
    if channels_last:
        first = (shape[0], shape[-1], *shape[1:-1])
        return _last(input_gradient(_first(g), _kernel_first(kernel), shape=first, channels_last=False, **attrs))
    form = _shape_of(shape, kernel.shape, **attrs)
    weights = kernel.reshape(form.groups, form.out, form.rows).swapaxes(-1, -2)
    lines = _lines_of(form)
    if lines is not None and np.isfinite(kernel).all():  # then the zeros between the rows stay zeros
        return _input_gradient_lines(g, weights, form, lines)
    gradient = g.reshape(form.batch, form.groups, form.out, form.columns)
    sizes = [size + low + high for size, (low, high) in zip(form.space, form.padding, strict=True)]
    padded = np.zeros((form.batch, shape[1], *sizes), g.dtype)
    offsets = list(product(*[range(size) for size in form.window]))
    made, joined = _Buffer(g.dtype), _Buffer(g.dtype)
    for part in form.parts():
        slopes = _joined(gradient[part], form, joined)
        columns = made.array(len(slopes), form.groups, form.rows, slopes.shape[-1])
        _multiply(weights, slopes, columns)
        columns = _apart(columns, form, part.stop - part.start, *form.window)
        target = padded[part]
        for offset in offsets:
            starts = [at * apart for at, apart in zip(offset, form.dilation, strict=True)]
            target[window_slice(padded.ndim, form.axes, starts, form.places, form.stride)] += columns[
                (slice(None), slice(None), *offset)
            ]
    inside = [low for low, _ in form.padding]
    cut = padded[window_slice(padded.ndim, form.axes, inside, form.space)]
    return np.ascontiguousarray(cut)


def _input_gradient_lines(g: Any, weights: Any, form: _Shape, lines: _Lines) -> Any:
    channels = form.groups * form.into
    gradient = np.empty((form.batch, channels, *form.space), g.dtype)
    inside = tuple([slice(low, low + size) for (low, _), size in zip(form.padding, form.space, strict=True)])
    starts = lines.starts(form)
    slopes, padded = _Buffer(g.dtype), _Buffer(g.dtype)
    for part, wide in lines.spread(g, form):
        columns = slopes.array(*wide.shape[:2], form.rows, lines.length)
        target = padded.array(len(wide), channels, prod(lines.sizes))
        _multiply(weights, wide, columns)
        columns = columns.reshape(len(wide), channels, len(starts), lines.length)
        target.fill(0)
        for number, start in enumerate(starts):
            line = target[..., start : start + lines.length]
            np.add(line, columns[:, :, number], line)
        gradient[part] = target.reshape(len(wide), channels, *lines.sizes)[(slice(None), slice(None), *inside)]
    return gradient

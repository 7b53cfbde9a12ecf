"""Convolution on the host: windows become columns of a matrix, which is multiplied by the kernel.

A batch is cut into parts whose columns stay in the cache; threads take part after part. Images with few output
positions share one product, so that the kernel is read once for all of them. Where windows move by one, the elements
of a column lie one after another in the input, except at the ends of rows. Such a column is copied in one piece, ends
of rows included, and the surplus elements are dropped from the result. See `Lines`. Large products of such
convolutions need no columns: see `convolve_shifted`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend import products
from hybridflow.backend.blas import AddProduct, adding_product
from hybridflow.backend.blas_threads import one_thread
from hybridflow.ops.nn.convolution_shapes import Lines, Memory, Shape, for_parts, lines_of, shape_of, slices
from hybridflow.ops.nn.windows import Sizes, kernel_padded, window_slice

_ROWS = 2
"""Columns are copied in one piece only if there are at least this many of them per output channel."""
_TURNED = 512
"""The fewest positions in a batch for which the gradient of the inputs is computed as a convolution: its kernel is
turned round before."""
_SUMS = 8
"""The largest number of sums over parts of the batch that threads compute for a kernel's gradient."""
_SUMMED = 512
"""The fewest positions in such a sum: adding up the sums then takes little of the time."""


def _lines_of(shape: Shape) -> Lines | None:
    """Return the layout for columns copied in one piece, or None if it is slower."""
    return None if shape.rows < _ROWS * shape.out else lines_of(shape)


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


def _windows(x: Any, shape: Shape) -> Any:
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


def _columns(view: Any, part: slice, shape: Shape, memory: Memory) -> Any:
    """Return the columns of a part of the batch, with the axes (products, groups, rows, positions).

    There is a product for each image, or one for all.
    """
    first_place = 2 + len(shape.window)
    length = prod(view.shape[first_place:])
    images = view[part]
    count, positions = (1, len(images) * length) if shape.joins else (len(images), length)
    if shape.joins:
        images = np.moveaxis(images, 0, first_place - 1)
    columns = memory.array("columns", *images.shape)
    np.copyto(columns, images)
    return columns.reshape(count, shape.groups, shape.rows, positions)


def _joined(images: Any, shape: Shape, memory: Memory) -> Any:
    """Bring values ``(n, groups, out, positions)`` of images to the form of the columns of their products."""
    if not shape.joins:
        return images
    images = np.moveaxis(images, 0, 2)
    joined = memory.array("joined", *images.shape)
    np.copyto(joined, images)
    return joined.reshape(1, *images.shape[:2], -1)


def _apart(made: Any, shape: Shape, count: int, *inner: int) -> Any:
    """Return results of products as a view ``(count, channels, *inner, *places)``."""
    if not shape.joins:
        return made.reshape(count, -1, *inner, *shape.places)
    return np.moveaxis(made.reshape(-1, *inner, count, *shape.places), 1 + len(inner), 0)


def _spread(slopes: Any, shape: Shape, lines: Lines, memory: Memory) -> Any:
    """Return values ``(n, c, *places)`` as lines ``(n, groups, out, length)`` with zeros between rows."""
    wide = memory.zeros("wide", *slopes.shape[:2], *lines.grid)
    wide[lines.cut(shape)] = slopes
    return wide.reshape(len(wide), shape.groups, shape.out, -1)[..., : lines.length]


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
    shape = shape_of(x.shape, kernel.shape, **attrs)
    plan = plan_of(shape, x, kernel)
    if plan is not None:
        return convolve_shifted(x, kernel, shape, plan)
    weights = kernel.reshape(shape.groups, shape.out, shape.rows)
    lines = _lines_of(shape)
    if lines is not None:
        return _convolve_lines(x, weights, shape, lines)
    y = np.empty((shape.batch, kernel.shape[0], *shape.places), x.dtype)
    view = _windows(x, shape)

    def task(part: slice, memory: Memory) -> None:
        columns = _columns(view, part, shape, memory)
        sizes = len(columns), shape.groups, shape.out, columns.shape[-1]
        made = memory.array("made", *sizes) if shape.joins else y[part]
        _multiply(weights, columns, made.reshape(sizes))
        if shape.joins:
            y[part] = _apart(made, shape, part.stop - part.start)

    for_parts(shape, shape.parts(), x.dtype, task)
    return y


def _padded(x: Any, shape: Shape) -> Any:
    return np.ascontiguousarray(kernel_padded(x, shape.axes, shape.padding, 0))


def _convolve_lines(x: Any, weights: Any, shape: Shape, lines: Lines) -> Any:
    view = lines.windows(_padded(x, shape), shape)
    y = np.empty((shape.batch, shape.groups * shape.out, *shape.places), x.dtype)

    def task(part: slice, memory: Memory) -> None:
        columns = _columns(view, part, shape, memory)
        made = memory.array("made", len(columns), shape.groups, shape.out, prod(lines.grid))
        _multiply(weights, columns, made[..., : lines.length])
        y[part] = made.reshape(len(columns), y.shape[1], *lines.grid)[lines.cut(shape)]

    for_parts(shape, shape.parts(), x.dtype, task)
    return y


def kernel_gradient(x: Any, g: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_kernel_gradient`."""
    if channels_last:
        first = (shape[-1], shape[-2], *shape[:-2])
        return _kernel_last(kernel_gradient(_first(x), _first(g), shape=first, channels_last=False, **attrs))
    form = shape_of(x.shape, shape, **attrs)
    lines = _lines_of(form)
    if lines is not None:
        view = lines.windows(_padded(x, form), form)
        gradient = _kernel_sums(view, lambda part, memory: _spread(g[part], form, lines, memory), form)
        if np.isfinite(gradient).all():  # else a zero between the rows may have been multiplied by inf or NaN
            return gradient.reshape(shape)
    slopes = g.reshape(form.batch, form.groups, form.out, form.columns)
    return _kernel_sums(_windows(x, form), lambda part, memory: slopes[part], form).reshape(shape)


def _kernel_sums(view: Any, slopes: Callable[[slice, Memory], Any], form: Shape) -> Any:
    """Return the kernel's gradient ``(groups, out, rows)``.

    Products of few positions are as fast in this order; others are faster transposed, and then worth the copy.
    """
    sizes = (form.groups, *((form.out, form.rows) if form.joins else (form.rows, form.out)))
    parts = form.parts()
    # The sizes alone decide how many sums there are: another order of additions has other bits.
    sums = max(1, min(_SUMS, form.batch * form.columns // _SUMMED, len(parts)))
    totals = np.zeros((sums, *sizes), view.dtype)

    def task(number: int, memory: Memory) -> None:
        for part in parts[number::sums]:
            columns, slope = _columns(view, part, form, memory), slopes(part, memory)
            one = memory.array("one", len(columns), *sizes)
            if form.joins:
                _multiply_each(_joined(slope, form, memory), columns.swapaxes(-1, -2), one)
            else:
                products.matmul(columns, slope.swapaxes(-1, -2), out=one)
            totals[number] += one[0] if len(one) == 1 else np.add.reduce(one, axis=0)

    for_parts(form, range(sums), view.dtype, task)
    total = totals[0] if sums == 1 else np.add.reduce(totals, axis=0)
    return total if form.joins else np.ascontiguousarray(total.swapaxes(-1, -2))


def input_gradient(g: Any, kernel: Any, *, shape: Sizes, channels_last: bool, **attrs: Any) -> Any:
    """Compute `conv_input_gradient`."""
    if channels_last:
        first = (shape[0], shape[-1], *shape[1:-1])
        return _last(input_gradient(_first(g), _kernel_first(kernel), shape=first, channels_last=False, **attrs))
    form = shape_of(shape, kernel.shape, **attrs)
    weights = kernel.reshape(form.groups, form.out, form.rows).swapaxes(-1, -2)
    if all(step == 1 for step in form.stride) and np.isfinite(kernel).all():  # zeros between the rows stay zeros
        plan = plan_of(form, g, kernel)
        if plan is not None:
            return input_gradient_shifted(g, kernel, form, plan)
        padding = _padding_of_slopes(form)
        many = form.batch * form.columns >= _TURNED and form.out <= form.into
        if many and min(low for pair in padding for low in pair) >= 0:
            return convolve(g, _turned(kernel, form), channels_last=False, **{**attrs, "padding": padding})
        lines = _lines_of(form)
        if lines is not None:
            return _input_gradient_lines(g, weights, form, lines)
    gradient = g.reshape(form.batch, form.groups, form.out, form.columns)
    sizes = [size + low + high for size, (low, high) in zip(form.space, form.padding, strict=True)]
    padded = np.zeros((form.batch, shape[1], *sizes), g.dtype)
    offsets = list(product(*[range(size) for size in form.window]))

    def task(part: slice, memory: Memory) -> None:
        slopes = _joined(gradient[part], form, memory)
        columns = memory.array("columns", len(slopes), form.groups, form.rows, slopes.shape[-1])
        _multiply(weights, slopes, columns)
        columns = _apart(columns, form, part.stop - part.start, *form.window)
        target = padded[part]
        for offset in offsets:
            starts = [at * apart for at, apart in zip(offset, form.dilation, strict=True)]
            target[window_slice(padded.ndim, form.axes, starts, form.places, form.stride)] += columns[
                (slice(None), slice(None), *offset)
            ]

    for_parts(form, form.parts(), g.dtype, task)
    inside = [low for low, _ in form.padding]
    cut = padded[window_slice(padded.ndim, form.axes, inside, form.space)]
    return np.ascontiguousarray(cut)


def _padding_of_slopes(form: Shape) -> tuple[tuple[int, int], ...]:
    """Return the padding with which the gradient of the inputs is a convolution of the results' gradient."""
    reaches = [(size - 1) * apart for size, apart in zip(form.window, form.dilation, strict=True)]
    return tuple([(reach - low, reach - high) for reach, (low, high) in zip(reaches, form.padding, strict=True)])


def _turned(kernel: Any, form: Shape) -> Any:
    """Return the kernel of that convolution: windows point the other way, and channels change places."""
    apart = kernel.reshape(form.groups, form.out, form.into, *form.window).swapaxes(1, 2)
    turned = np.flip(apart, tuple(range(3, apart.ndim)))
    return np.ascontiguousarray(turned).reshape(form.groups * form.into, form.out, *form.window)


def _input_gradient_lines(g: Any, weights: Any, form: Shape, lines: Lines) -> Any:
    channels = form.groups * form.into
    gradient = np.empty((form.batch, channels, *form.space), g.dtype)
    starts = lines.starts(form)

    def task(part: slice, memory: Memory) -> None:
        wide = _spread(g[part], form, lines, memory)
        columns = memory.array("columns", *wide.shape[:2], form.rows, lines.length)
        target = memory.array("target", len(wide), channels, prod(lines.sizes))
        _multiply(weights, wide, columns)
        columns = columns.reshape(len(wide), channels, len(starts), lines.length)
        target.fill(0)
        for number, start in enumerate(starts):
            line = target[..., start : start + lines.length]
            np.add(line, columns[:, :, number], line)
        gradient[part] = target.reshape(len(wide), channels, *lines.sizes)[lines.inside(form)]

    for_parts(form, form.parts(), g.dtype, task)
    return gradient


# -- convolution on the host without columns: one product for each element of the window ------------------------------
# Where windows move by one, the inputs that one element of the window meets lie one after another, except at the ends
# of rows (see `Lines`). So a convolution is a sum of products of the kernel's elements, matrices of channels, and
# shifted views of the input. BLAS adds each product to the result. A few images are computed at a time, and stay in
# the cache.

_CHANNELS = 16
"""The fewest input and output channels: products of fewer are slow."""
_LARGE = 1 << 18
"""The fewest multiplications of a product: smaller ones take less time than their calls."""
_TOGETHER = 1 << 17
"""The approximate number of elements of a block's inputs or results."""


class Plan(NamedTuple):
    """What the computation needs: the layout of positions, and BLAS's function."""

    lines: Lines
    add: AddProduct


def plan_of(shape: Shape, *arrays: Any) -> Plan | None:
    """Return the plan for a convolution of arrays, or for the gradient of its input; None if another way is faster."""
    if min(shape.into, shape.out) < _CHANNELS or shape.batch * shape.columns * shape.into * shape.out < _LARGE:
        return None
    lines, add = lines_of(shape), adding_product(arrays[0].dtype)
    if lines is None or add is None or len({one.dtype for one in arrays}) > 1:
        return None
    return Plan(lines, add)


def _matrices(kernel: Any, shape: Shape, first: str) -> Any:
    """Return a kernel as matrices ``(window, groups, out, into)``, or ``(window, groups, into, out)``."""
    apart = kernel.reshape(shape.groups, shape.out, shape.into, prod(shape.window))
    return np.ascontiguousarray(apart.transpose((3, 0, 1, 2) if first == "out" else (3, 0, 2, 1)))


def convolve_shifted(x: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
    """Return the convolution of inputs ``(n, c, *spatial)``."""
    y = np.empty((shape.batch, shape.groups * shape.out, *shape.places), x.dtype)
    _run(x, _matrices(kernel, shape, "out"), y, shape, plan, back=False)
    return y


def input_gradient_shifted(g: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
    """Return the gradient of the inputs for the gradient ``(n, out, *places)`` of the results."""
    gradient = np.empty((shape.batch, shape.groups * shape.into, *shape.space), g.dtype)
    _run(g, _matrices(kernel, shape, "into"), gradient, shape, plan, back=True)
    return gradient


def _run(x: Any, matrices: Any, y: Any, shape: Shape, plan: Plan, *, back: bool) -> None:
    """Compute all products, of a few images side by side at a time: long products keep several threads at work.

    Args:
        x: the arrays of channels to multiply.
        matrices: the kernel as `_matrices` returns it.
        y: where the results go.
        shape, plan: the convolution.
        back: whether the results are shifted instead of what is multiplied.
    """
    lines, add = plan
    rows, length = matrices.shape[2:]
    plane, item = prod(lines.sizes), x.itemsize  # the positions of an image with its padding
    images = max(1, min(_TOGETHER // (plane * shape.groups * max(rows, length)), shape.batch))
    row = images * plane
    inside, cut = lines.inside(shape), lines.cut(shape)
    read_at, kept_at = (cut, inside) if back else (inside, cut)
    shifts = [(0, start) if back else (start, 0) for start in lines.starts(shape)]

    def task(part: slice, memory: Memory) -> None:
        count = part.stop - part.start
        source = memory.zeros("source", x.shape[1], images, *lines.sizes)
        source[:, :count][read_at] = x[part].swapaxes(0, 1)
        made = memory.array("made", y.shape[1], images, *lines.sizes)
        if back:  # a shifted result leaves positions that no product writes
            made.fill(0)
        positions = (count - 1) * plane + lines.length  # surplus ones between the images included
        for group in range(shape.groups):
            read = source.ctypes.data + group * length * row * item
            out = made.ctypes.data + group * rows * row * item
            for number, (of_read, of_out) in enumerate(shifts):
                add(rows, positions, length, 1.0, matrices[number, group].ctypes.data, length,
                    read + of_read * item, row, float(back or number > 0), out + of_out * item, row)
        y[part] = made[:, :count][kept_at].swapaxes(0, 1)

    with one_thread("numpy") or nullcontext():
        for_parts(shape, slices(shape.batch, images), x.dtype, task)

"""Convolution on the host without columns: one product for each element of the window.

Where windows move by one, the inputs that one element of the window meets lie one after another, except at the ends of
rows (see `Lines`). So a convolution is a sum of products of the kernel's elements, matrices of channels, and shifted
views of the input. BLAS adds each product to the result. A few images are computed at a time, and stay in the cache.
"""

from __future__ import annotations

from contextlib import nullcontext
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hybridflow.backend.blas_calls import AddProduct, adding_product
from hybridflow.backend.blas_threads import one_thread
from hybridflow.ops.nn.convolution_shapes import Lines, Memory, Shape, for_parts, lines_of

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


class _Block(NamedTuple):
    """A few images side by side, whose products are computed together: longer ones keep several threads at work.

    Attributes:
        images: the most images of a block.
        plane: the number of positions of an image with its padding, from one image to the next.
        last: the number of positions of the last image.
    """

    images: int
    plane: int
    last: int

    def length(self, images: int) -> int:
        """Return the number of positions of some images, the surplus ones between them included."""
        return (images - 1) * self.plane + self.last

    def parts(self, batch: int) -> list[slice]:
        """Cut a batch into blocks."""
        return [slice(start, min(start + self.images, batch)) for start in range(0, batch, self.images)]


def _block_of(shape: Shape, lines: Lines) -> _Block:
    plane = prod(lines.sizes)
    together = _TOGETHER // (plane * shape.groups * max(shape.into, shape.out))
    return _Block(max(1, min(together, shape.batch)), plane, lines.length)


def convolve(x: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
    """Return the convolution of inputs ``(n, c, *spatial)``."""
    lines, add = plan
    matrices, starts, block = _matrices(kernel, shape, "out"), lines.starts(shape), _block_of(shape, lines)
    y = np.empty((shape.batch, shape.groups * shape.out, *shape.places), x.dtype)
    row, item = block.images * block.plane, x.itemsize
    inside, cut = lines.inside(shape), (slice(None), slice(None), *lines.cut(shape))

    def task(part: slice, memory: Memory) -> None:
        source = memory.zeros("source", x.shape[1], block.images, *lines.sizes)
        made = memory.array("made", y.shape[1], block.images, *lines.sizes)
        count = part.stop - part.start
        source[:, :count][inside] = x[part].swapaxes(0, 1)
        sizes = shape.out, block.length(count), shape.into
        for group in range(shape.groups):
            read = source.ctypes.data + group * shape.into * row * item
            out = made.ctypes.data + group * shape.out * row * item
            for number, start in enumerate(starts):
                matrix = matrices[number, group].ctypes.data
                add(*sizes, 1.0, matrix, shape.into, read + start * item, row, float(number > 0), out, row)
        y[part] = made[:, :count][cut].swapaxes(0, 1)

    with one_thread("numpy") or nullcontext():
        for_parts(shape, block.parts(shape.batch), x.dtype, task)
    return y


def input_gradient(g: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
    """Return the gradient of the inputs for the gradient ``(n, out, *places)`` of the results."""
    lines, add = plan
    matrices, starts, block = _matrices(kernel, shape, "into"), lines.starts(shape), _block_of(shape, lines)
    channels = shape.groups * shape.into
    gradient = np.empty((shape.batch, channels, *shape.space), g.dtype)
    row, item = block.images * block.plane, g.itemsize
    inside, cut = lines.inside(shape), (slice(None), slice(None), *lines.cut(shape))

    def task(part: slice, memory: Memory) -> None:
        wide = memory.zeros("wide", g.shape[1], block.images, *lines.sizes)
        made = memory.array("made", channels, block.images, *lines.sizes)
        count = part.stop - part.start
        wide[:, :count][cut] = g[part].swapaxes(0, 1)
        made.fill(0)
        sizes = shape.into, block.length(count), shape.out
        for group in range(shape.groups):
            read = wide.ctypes.data + group * shape.out * row * item
            out = made.ctypes.data + group * shape.into * row * item
            for number, start in enumerate(starts):
                matrix = matrices[number, group].ctypes.data
                add(*sizes, 1.0, matrix, shape.out, read, row, 1.0, out + start * item, row)
        gradient[part] = made[:, :count][inside].swapaxes(0, 1)

    with one_thread("numpy") or nullcontext():
        for_parts(shape, block.parts(shape.batch), g.dtype, task)
    return gradient

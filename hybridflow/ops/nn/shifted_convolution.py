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
from hybridflow.ops.nn.convolution_shapes import Lines, Memory, Shape, for_parts, lines_of, slices

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


def convolve(x: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
    """Return the convolution of inputs ``(n, c, *spatial)``."""
    y = np.empty((shape.batch, shape.groups * shape.out, *shape.places), x.dtype)
    _run(x, _matrices(kernel, shape, "out"), y, shape, plan, back=False)
    return y


def input_gradient(g: Any, kernel: Any, shape: Shape, plan: Plan) -> Any:
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

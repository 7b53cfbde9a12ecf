"""Helpers for the NumPy kernels of composite operations: work in blocks that fit the cache, sums and maxima of rows.

Only this module decides which sizes are large.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.backend.parallel import POOL, QUICK_PART
from hybridflow.ops.summation import LONG_ROW, add_short_rows, add_up

BLOCK = 16384
"""The number of elements that a pointwise kernel of several steps takes at a time, so that they stay in the cache."""
FILLED = 1 << 16
"""Up to this many elements, a broadcast gradient is copied: that is faster than reading it through a view."""
MANY = 1 << 13
"""Up to this many elements, NumPy's own maximum of rows is as fast as the ways below."""
_LONG = 1 << 12  # NumPy's maximum is also as fast for rows of at least this length
_PIECE = 1 << 16  # a single row is searched in parts of this many elements


def in_blocks(compute: Callable[..., None], buffers: int, *arrays: Any) -> Any:
    """Compute a pointwise function of arrays of one shape and dtype in several in-place steps.

    Args:
        compute: ``(y, *arrays, *buffers)`` writes `y`; all are flat and of one size.
        buffers: the number of temporary arrays it needs.
        arrays: the arrays that it reads.

    Returns:
        A new array of the shape and dtype of the first one.
    """
    first = arrays[0]
    y = np.empty(first.shape, first.dtype)
    flat = y.reshape(-1)
    sources = [array.reshape(-1) for array in arrays]
    size = flat.size
    scratch = [np.empty(min(size, BLOCK), first.dtype) for _ in range(buffers)]
    if size <= BLOCK:
        compute(flat, *sources, *scratch)
        return y
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        buffer = scratch if stop - start == BLOCK else [one[: stop - start] for one in scratch]
        compute(flat[start:stop], *[source[start:stop] for source in sources], *buffer)
    return y


def row_sums(x: Any) -> Any:
    """Sum the last axis, kept with size 1."""
    length = x.shape[-1]
    if not 0 < length <= LONG_ROW or x.dtype.kind != "f" or x.ndim < 2:
        return add_up(x, (x.ndim - 1,), True)
    return add_short_rows(x.reshape(-1, length)).reshape(*x.shape[:-1], 1)


def extremum(ufunc: np.ufunc, x: Any, axis: tuple[int, ...], keepdims: bool, initial: Any = None) -> Any:
    """Find the largest, or smallest, elements along axes: ``ufunc.reduce``, faster where rows are many.

    Args:
        ufunc: `numpy.maximum` or `numpy.minimum`.
        x: any array.
        axis: axes counted from the front, sorted.
        keepdims: whether they stay, with size 1.
        initial: what an empty axis gives; it is an error if None.
    """
    first = x.ndim - len(axis)
    length = math.prod(x.shape[first:])
    shared = x.size >= 2 * QUICK_PART
    quick = x.size <= MANY or (length >= _LONG and not shared)
    if quick or not axis or axis[0] != first or not x.flags.c_contiguous:
        return ufunc.reduce(x, axis=axis, keepdims=keepdims, initial=initial)
    shape = x.shape[:first] + (1,) * (len(axis) if keepdims else 0)
    flat = x.reshape(-1)
    if shared:
        return np.asarray(_shared_extremum(ufunc, flat, length)).reshape(shape)
    return ufunc.reduceat(flat, np.arange(0, flat.size, length)).reshape(shape)


def _shared_extremum(ufunc: np.ufunc, flat: Any, length: int) -> Any:
    """Find the largest or smallest element of each row in several threads.

    For a vector, `reduceat` holds the interpreter's lock, so no other thread starts; for a matrix it does not.
    """
    alone = length == flat.size
    if alone:
        length = _PIECE
    count = flat.size // length
    rows = flat[: count * length].reshape(count, length)
    extrema = np.empty((count, 1), flat.dtype)

    def task(start: int, stop: int) -> None:
        ufunc.reduceat(rows[start:stop], (0,), axis=1, out=extrema[start:stop])

    POOL.run(task, count, flat.size, part=QUICK_PART)
    return ufunc(ufunc.reduce(extrema, axis=None), ufunc.reduce(flat[-length:])) if alone else extrema


def row_products(x: Any, y: Any) -> Any:
    """Sum ``x * y`` over the last axis, kept with size 1."""
    if x.shape[-1] > LONG_ROW:
        return add_up(x * y, (x.ndim - 1,), True)
    return np.vecdot(x, y)[..., None]


def spread(value: Any, shape: tuple[int, ...], size: int) -> Any:
    """Broadcast an array to a shape of `size` elements."""
    if size > FILLED:
        return np.broadcast_to(value, shape)
    y = np.empty(shape, value.dtype)
    y[...] = value
    return y

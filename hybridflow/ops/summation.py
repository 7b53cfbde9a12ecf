"""Sums on the host, as precise as pairwise summation along any axes, and faster for many elements.

`numpy.add` sums neighbours in eight partial sums, which it restarts every 128 elements, and sums other elements one
after another. Products with ones are faster. Rows are cut into pieces of up to 512 elements and other axes into blocks
of 64 to 127, and the sums of these are added up in the same way.

Equal arrays have equal sums, wherever they are in memory. The pieces follow from the shape alone, and the number of
threads changes no bit (`hybridflow.backend.blas`). There is one exception: if a program changes the number of
OpenBLAS's threads while it runs, to one that does not divide 48, last bits may differ, as in matrix products.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybridflow.backend.blas import SHARED, THREADS, run_products
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.ops.sizes import Axes, count_elements, reduced_shape

_SMALL = 4096
"""Up to this many elements, calls take more time than additions."""
_QUICK = 1 << 15
"""Up to this many elements, NumPy's own sum of neighbours is as fast as the calls that replace it."""
LONG_ROW = 512
"""The most neighbours that one product with ones sums; BLAS has few partial sums, on old processors four."""
_FEW_PIECES = 16
"""The most pieces of a row that are added one after another."""
_BLOCK = 64
"""The most rows that are summed at once, or the fewest if threads share the work: the order in which OpenBLAS adds up
to 48 rows depends on the length of a thread's part."""
_ROW_UNIT = 4 * THREADS  # OpenBLAS's kernels take four rows at a time
_COLUMN_UNIT = 16 * THREADS  # OpenBLAS's kernels take sixteen columns at a time, a vector register of float32
_FEW, _NARROW = 8, 32
"""The most elements of an axis that are added slice by slice, and the most neighbours of each."""
_BLAS = (np.dtype("float32"), np.dtype("float64"))


def add_up(x: Any, axis: Axes, keepdims: bool) -> Any:
    """Sum a NumPy array over axes in its own dtype; float16 and bfloat16 are accumulated and returned in float32.

    NumPy sums pairwise along an axis whose elements are neighbours in memory. Along other axes it adds one element
    after another, which loses precision, so blocks are summed first there.
    """
    dtype = x.dtype
    if dtype.num in LOW_PRECISION:
        dtype = float32
    plan = _plan(x.shape, axis, keepdims) if dtype.kind in "fc" else None
    if plan is None:
        return _add_neighbours(x, axis, keepdims, dtype)
    kept, length, others, shape = plan
    if len(kept) < x.ndim:
        if x.size > _QUICK and x.dtype is dtype and dtype in _BLAS and x.flags.c_contiguous:
            x = add_rows(x.reshape(-1, length))
        else:
            x = _add_neighbours(x, tuple(range(len(kept), x.ndim)), False, dtype)
    if others:
        x = x.reshape(kept)
        for i in reversed(others):
            x = np.add.reduce(_along(x, i, dtype), axis=i, dtype=dtype)
    return x.reshape(shape)


@lru_cache(1024)
def _plan(shape: Any, axis: Axes, keepdims: bool) -> tuple[Any, int, Axes, Any] | None:
    """Return the plan by which to sum an array, or None to leave it to NumPy.

    Returns:
        The shape without the trailing summed axes, the number of elements along these, the other summed axes, and the
        shape of the result.
    """
    first = len(shape)
    while first and first - 1 in axis:
        first -= 1
    others = tuple([i for i in axis if i < first])
    size, count = count_elements(shape), count_elements(tuple([shape[i] for i in axis]))
    few = 2 * _BLOCK if size <= _SMALL else _BLOCK
    if not axis or (count <= few if others else size <= _QUICK):
        return None
    return shape[:first], count_elements(shape[first:]), others, reduced_shape(shape, axis, keepdims)


def _add_neighbours(x: Any, axis: Axes, keepdims: bool, dtype: Any) -> Any:
    """Sum as `numpy.add.reduce` does, but for a short axis add whole slices, which takes less time."""
    if len(axis) != 1 or x.size <= _SMALL or x.dtype is not dtype or not _is_short(x.shape, axis[0]):
        return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    key: list[Any] = [slice(None)] * x.ndim

    def part(index: int) -> Any:
        key[axis[0]] = slice(index, index + 1) if keepdims else index
        return x[tuple(key)]

    total = np.add(part(0), part(1))
    for index in range(2, x.shape[axis[0]]):
        np.add(total, part(index), out=total)
    return np.add(total, dtype.type(0), out=total)  # no sum is -0.0


def _is_short(shape: Any, axis: int) -> bool:
    """Whether an axis has few elements with few neighbours each: NumPy would begin a loop for every few additions."""
    return 2 <= shape[axis] <= _FEW and count_elements(shape[axis + 1 :]) <= _NARROW


def add_rows(x: Any) -> Any:
    """Sum the rows of a C-contiguous matrix of float32 or float64."""
    rows, length = x.shape
    pieces, even = _pieces(length)
    if pieces == 1:
        return add_short_rows(x)
    if even:
        return add_rows(add_short_rows(x.reshape(rows * pieces, -1)).reshape(rows, pieces))
    rest = length % pieces
    cut = x[:, : length - rest].reshape(rows, pieces, -1)
    if pieces > _FEW_PIECES:
        sums = add_short_rows(cut)
        if rest:
            first = sums[:, :rest]
            np.add(first, x[:, length - rest :], out=first)
        return np.add.reduce(sums, axis=1)
    sums = add_short_rows(cut.transpose(1, 0, 2))  # one product per piece, since there may be many rows
    sums[:rest] += x[:, length - rest :].T
    return np.add.reduce(sums, axis=0)


@lru_cache(1024)
def _pieces(length: int) -> tuple[int, bool]:
    """Return the number of pieces of a row, and whether it divides the row, so that all rows' pieces are one matrix."""
    fewest = -(-length // LONG_ROW)
    if length >= SHARED:
        return -(-fewest // _ROW_UNIT) * _ROW_UNIT, False
    even = next((pieces for pieces in range(fewest, 2 * fewest) if length % pieces == 0), 0)
    return even or fewest, even > 0


@lru_cache
def _ones(dtype: Any) -> Any:
    ones = np.ones(LONG_ROW, dtype)
    ones.flags.writeable = False
    return ones


def add_short_rows(x: Any) -> Any:
    """Sum the rows of one or more matrices; a row has at most `LONG_ROW` elements."""
    rows, length = x.shape[-2:]
    ones = _ones(x.dtype)[:length]
    if rows * length < SHARED:
        return np.matmul(x, ones)
    sums = np.empty(x.shape[:-1], x.dtype)

    def product(start: int, stop: int) -> None:
        np.matmul(x[..., start:stop, :], ones, out=sums[..., start:stop])

    run_products(product, rows, length, _ROW_UNIT)
    return sums


def _along(x: Any, axis: int, dtype: Any) -> Any:
    """Sum blocks along one axis until few are left."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    by_blas = x.size > _SMALL and x.dtype is dtype and dtype in _BLAS and x.flags.c_contiguous
    x = x.reshape(count_elements(before), x.shape[axis], count_elements(after))
    while x.shape[1] > _BLOCK:
        batch, length, width = x.shape
        left = length // _BLOCK if x.size >= SHARED else -(-length // _BLOCK)
        whole = length - length % left
        blocks = x[:, :whole].reshape(batch, -1, left, width)
        sums = _column_products(blocks) if by_blas else np.add.reduce(blocks, axis=1, dtype=dtype)
        sums[:, : length - whole] += x[:, whole:]
        x = sums
    return x.reshape(*before, x.shape[1], *after)


def _column_products(x: Any) -> Any:
    """Sum a batch of arrays of three axes over the first of them."""
    batch, rows, *kept = x.shape
    x = x.reshape(batch, rows, -1)
    columns = x.shape[2]
    ones = _ones(x.dtype)[:rows]
    sums = np.empty((batch, columns), x.dtype)

    def product(start: int, stop: int) -> None:
        np.matmul(ones, x[:, :, start:stop], out=sums[:, start:stop])

    run_products(product, columns, rows, _COLUMN_UNIT)
    return sums.reshape(batch, *kept)

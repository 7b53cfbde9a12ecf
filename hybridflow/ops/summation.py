"""Sums on the host, as precise as pairwise summation whatever the axes are, and faster on many elements.

`numpy.add` sums neighbours in eight partial sums that it starts anew every 128 elements, and other elements one after
another. Products with ones are faster: rows are cut into pieces of up to 512 elements, other axes into 64 to 127, and
these sums are added up in the same way.

Equal arrays have equal sums, wherever they lie in memory. Which pieces there are follows from the shape alone, and how
many threads multiply changes no bit (`hybridflow.backend.blas`), unless a program changes the number of OpenBLAS's
threads while it runs, to one that does not divide 48: then last bits may differ, as those of products of matrices do.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybridflow.backend.blas import SHARED, THREADS, run_products
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.ops.sizes import Axes, count_elements, reduced_shape

_SMALL = 4096
"""Up to this many elements, the order of additions matters less than the calls it costs to change it."""
_QUICK = 1 << 15
"""Up to this many elements, NumPy's own sum of neighbours takes no longer than the calls that replace it."""
LONG_ROW = 512
"""Up to this many neighbours are summed by a product with ones: BLAS has few partial sums, on old processors four."""
_FEW_PIECES = 16
"""At most this many pieces of a row are added one after another."""
_BLOCK = 64
"""How many rows are summed at once. If threads share them, it is the fewest: the order in which OpenBLAS adds up to 48
depends on how long the part is that a thread gets."""
_ROW_UNIT = 4 * THREADS  # OpenBLAS's kernels take four rows at a time
_COLUMN_UNIT = 16 * THREADS  # and sixteen columns, a vector register of float32
_BLAS = (np.dtype("float32"), np.dtype("float64"))


def add_up(x: Any, axis: Axes, keepdims: bool) -> Any:
    """Sum a NumPy array over axes in its own dtype; float16 and bfloat16 are accumulated, and returned, in float32.

    NumPy sums pairwise along an axis whose elements are neighbours in memory, and one after another along the
    others, where a million float32 additions lose a thousand ulp. There, blocks are summed first.
    """
    dtype = x.dtype
    if dtype.num in LOW_PRECISION:
        dtype = float32
    plan = _plan(x.shape, axis, keepdims) if dtype.kind in "fc" else None
    if plan is None:
        return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    kept, length, others, shape = plan
    if len(kept) < x.ndim:
        if x.size > _QUICK and x.dtype is dtype and dtype in _BLAS and x.flags.c_contiguous:
            x = add_rows(x.reshape(-1, length))
        else:
            x = np.add.reduce(x, axis=tuple(range(len(kept), x.ndim)), dtype=dtype)
    if others:
        x = x.reshape(kept)
        for i in others:
            x = _along(x, i, dtype)
        x = np.add.reduce(x, axis=others, dtype=dtype)
    return x.reshape(shape)


@lru_cache(1024)
def _plan(shape: Any, axis: Axes, keepdims: bool) -> tuple[Any, int, Axes, Any] | None:
    """Return how an array is summed, None for as NumPy does it.

    Returns:
        The shape without the last axes, if they are summed; how many neighbours these are; the axes that are summed
        besides; the shape of the result.
    """
    first = len(shape)
    while first and first - 1 in axis:
        first -= 1
    others = tuple([i for i in axis if i < first])
    size, count = count_elements(shape), count_elements(tuple([shape[i] for i in axis]))
    if not axis or (size <= _SMALL or count <= _BLOCK if others else size <= _QUICK):
        return None
    return shape[:first], count_elements(shape[first:]), others, reduced_shape(shape, axis, keepdims)


def add_rows(x: Any) -> Any:
    """Sum the rows of a matrix of float32 or float64 that lies in memory row by row."""
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
    sums = add_short_rows(cut.transpose(1, 0, 2))  # a product for each piece, since rows may be many
    sums[:rest] += x[:, length - rest :].T
    return np.add.reduce(sums, axis=0)


@lru_cache(1024)
def _pieces(length: int) -> tuple[int, bool]:
    """Return into how many pieces a row is cut, and whether that leaves no rest and all rows' pieces are one matrix."""
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
    """Sum the rows of a matrix, or of each of several, of up to `LONG_ROW` elements each."""
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
    by_blas = x.dtype is dtype and dtype in _BLAS and x.flags.c_contiguous
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
    """Sum the first axis of each of several arrays of three."""
    batch, rows, *kept = x.shape
    x = x.reshape(batch, rows, -1)
    columns = x.shape[2]
    ones = _ones(x.dtype)[:rows]
    sums = np.empty((batch, columns), x.dtype)

    def product(start: int, stop: int) -> None:
        np.matmul(ones, x[:, :, start:stop], out=sums[:, start:stop])

    run_products(product, columns, rows, _COLUMN_UNIT)
    return sums.reshape(batch, *kept)

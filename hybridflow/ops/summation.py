"""Sums on the host, as precise as pairwise summation whatever the axes are, and faster on many elements.

`numpy.add` sums neighbours in eight partial sums that it starts anew every 128 elements. `numpy.einsum` has sixteen, in
vector registers, and takes a third of the time for a million; it is given rows of up to 1024. Rows are added to each
other by products with ones, 64 at a time, where BLAS adds four at once. Which blocks there are follows from the shape
alone, and BLAS gets less than it would use threads for: its own threads take half the time, but what a sum's last bits
are would depend on how many there are.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from hybridflow.backend.parallel import POOL, QUICK_PART
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.ops.sizes import Axes, count_elements, reduced_shape

_SMALL = 4096
"""Up to this many elements, the order of additions matters less than the calls it costs to change it."""
_QUICK = 1 << 15
"""Up to this many elements, NumPy's own sum of neighbours takes no longer than the calls that replace it."""
_BLOCK = 64
_WIDE = 4096
"""Of wider rows half as many are added at a time, and twice as wide ones by `numpy.add`: BLAS would share them."""
_ROW = 512
"""How many neighbours are added before their sum is added to others."""
_ONES = {np.dtype(name): np.ones(_BLOCK, name) for name in ("float32", "float64")}


def add_up(x: Any, axis: Axes, keepdims: bool) -> Any:
    """Sum a NumPy array over axes in its own dtype; float16 and bfloat16 are accumulated, and returned, in float32.

    NumPy sums pairwise along an axis whose elements are neighbours in memory, and one after another along the
    others, where a million float32 additions lose a thousand ulp. There, blocks are summed first.
    """
    dtype = x.dtype
    if dtype.num in LOW_PRECISION:
        dtype = float32
    last = axis == tuple(range(x.ndim - len(axis), x.ndim))
    count = count_elements(tuple([x.shape[i] for i in axis]))
    few = x.size <= _QUICK if last else x.size <= _SMALL or count <= _BLOCK
    if few or dtype.kind not in "fc" or not axis:
        return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    shape = reduced_shape(x.shape, axis, keepdims)
    neighbours = tuple([i for n, i in enumerate(reversed(axis)) if i == x.ndim - 1 - n])
    if neighbours:
        x = _neighbours(x, len(neighbours), dtype)
    for i in axis[: len(axis) - len(neighbours)]:
        x = _along(x, i, dtype)
    if len(axis) > len(neighbours):
        x = np.add.reduce(x, axis=axis[: len(axis) - len(neighbours)], keepdims=True, dtype=dtype)
    return x.reshape(shape)


def _neighbours(x: Any, count: int, dtype: Any) -> Any:
    """Sum the last axes, kept with size 1."""
    kept = x.shape[: x.ndim - count]
    if x.size <= _QUICK or x.dtype is not dtype or dtype.kind != "f" or not x.flags.c_contiguous:
        return np.add.reduce(x, axis=tuple(range(len(kept), x.ndim)), keepdims=True, dtype=dtype)
    return add_rows(x.reshape(-1, count_elements(x.shape[len(kept) :]))).reshape(kept + (1,) * count)


def add_rows(x: Any) -> Any:
    """Sum the rows of a matrix of float32 or float64 that lies in memory row by row."""
    rows, length = x.shape
    piece = _piece(length)
    if piece == length or (not piece and rows * _ROW > length and x.size >= 2 * QUICK_PART):
        sums = np.empty(rows, x.dtype)

        def some_rows(start: int, stop: int) -> None:
            if piece:
                np.einsum("ij->i", x[start:stop], out=sums[start:stop])
            else:  # of many rows the blocks would be read long before what is left of each
                np.add.reduce(x[start:stop], axis=1, out=sums[start:stop])

        POOL.run(some_rows, rows, x.size, part=QUICK_PART)
        return sums
    sums = add_rows(x.reshape(-1, piece)).reshape(rows, -1) if piece else _add_blocks(x)
    return add_rows(sums) if rows > sums.shape[1] else np.add.reduce(sums, axis=1)


@lru_cache(1024)
def _piece(length: int) -> int:
    """Return how long the pieces are into which a row is cut evenly, 0 if that cannot be."""
    if length <= 2 * _ROW:
        return length
    return next((piece for piece in range(2 * _ROW, _ROW // 2, -1) if length % piece == 0), 0)


def _add_blocks(x: Any) -> Any:
    """Sum blocks of the rows of a matrix, and what is left of each row."""
    rows, length = x.shape
    whole = length // _ROW
    sums = np.empty((rows, whole + 1), x.dtype)
    blocks = x[:, : whole * _ROW].reshape(rows, whole, _ROW)

    def some_blocks(start: int, stop: int) -> None:
        np.einsum("ijk->ij", blocks[:, start:stop], out=sums[:, start:stop])

    POOL.run(some_blocks, whole, x.size, part=QUICK_PART)
    np.einsum("ij->i", x[:, whole * _ROW :], out=sums[:, whole])
    return sums


def _along(x: Any, axis: int, dtype: Any) -> Any:
    """Sum blocks along one axis until few are left."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    ones = _ONES.get(dtype) if x.dtype is dtype and x.flags.c_contiguous else None
    x = x.reshape(count_elements(before), x.shape[axis], count_elements(after))
    block = _BLOCK if x.shape[2] <= _WIDE else _BLOCK // 2
    product = None if ones is None or x.shape[2] > 2 * _WIDE else ones[:block]
    while x.shape[1] > block:
        whole = x.shape[1] // block
        blocks = x[:, : whole * block].reshape(len(x), whole, block, x.shape[2])
        rest = x[:, whole * block :]
        sums = np.empty((len(x), whole + (rest.shape[1] > 0), x.shape[2]), dtype)
        if rest.shape[1]:
            np.add.reduce(rest, axis=1, dtype=dtype, out=sums[:, whole])

        def task(start: int, stop: int, blocks: Any = blocks, sums: Any = sums, ones: Any = product) -> None:
            part, out = blocks[:, start:stop], sums[:, start:stop]
            if ones is None:
                np.add.reduce(part, axis=2, dtype=out.dtype, out=out)
            else:
                np.matmul(ones, part, out=out)

        POOL.run(task, whole, x.size, part=QUICK_PART)
        x = sums
    return x.reshape(*before, x.shape[1], *after)

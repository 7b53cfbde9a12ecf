"""Matrix products on the host, with the same bits for any number of threads and any load of the machine.

NumPy passes products to OpenBLAS, which cuts large ones into as many parts as it has threads and then waits for all of
them. Here only the shapes decide how a product is cut, and OpenBLAS computes each piece in the calling thread. This
thread and those of `hybridflow.backend.parallel` take the pieces one by one, so a thread that gets no core delays
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.backend.blas_threads import one_thread
from hybridflow.backend.parallel import POOL

SMALL = 4096
"""The number of multiplications up to which OpenBLAS uses one thread anyway."""
_SMALL_REAL = 1 << 18
"""The same limit for real matrices."""
SHARED = 1 << 25
"""The number of multiplications from which products are cut; below it, waking a thread costs as much as it saves."""
_CUTS = ((1 << 29, 8), (1 << 27, 4), (SHARED, 2))
"""The number of pieces by the smallest number of multiplications; few pieces, since each reads one operand again."""
_STEP = 16
"""The number of rows or columns of a piece is a multiple of this, as in the library's kernels."""
_MANY_ROWS, _MORE_ROWS = 32, 48
"""The largest number of rows for which a product with a transposed matrix is computed as its transpose; the second
one applies if the rows are long."""
_TURNED = 1 << 19
"""The number of multiplications above which products are computed as their transpose; smaller ones gain nothing."""
_PIECE = SHARED // 2
"""The number of multiplications per thread."""


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply as `numpy.matmul` does.

    Args:
        a, b: arrays of at least one axis.
        out: the array to write the result to, or None.
    """
    work = a.size * b.shape[-1] if b.ndim > 1 else b.size if a.ndim == 1 else a.size
    if work <= SMALL or (work <= _SMALL_REAL and a.ndim + b.ndim > 2 and a.dtype.kind != "c"):
        return np.matmul(a, b, out=out)
    alone = one_thread("numpy")
    if alone is None:  # another library, which manages its own threads
        return np.matmul(a, b, out=out)
    with alone:
        if work >= SHARED:
            return _in_pieces(a, b, out, work)
        if work > _TURNED and out is None and _has_few_rows(a, b):
            return np.ascontiguousarray(np.matmul(b.T, a.T).T)
        return np.matmul(a, b, out=out)


def _has_few_rows(a: Any, b: Any) -> bool:
    """Whether the library computes the transposed product faster, which has many rows and few columns.

    This is so for gradients of a layer's inputs in small batches, most of all on processors with AVX-512.
    """
    if a.ndim != 2 or b.ndim != 2 or a.dtype.kind != "f" or a.shape[1] != b.shape[0]:
        return False
    if b.flags.c_contiguous or not b.flags.f_contiguous:
        return False
    rows, length = a.shape
    return 4 <= rows <= (_MORE_ROWS if length >= b.shape[1] else _MANY_ROWS)


def _in_pieces(a: Any, b: Any, out: Any, work: int) -> Any:
    """Multiply large operands piece by piece."""
    count = next(pieces for least, pieces in _CUTS if work >= least)
    if a.ndim < 2 or b.ndim < 2 or a.ndim != b.ndim or a.shape[:-2] != b.shape[:-2] or _is_square_of(a, b):
        return np.matmul(a, b, out=out)
    if out is None:
        if a.shape[-1] != b.shape[-2]:
            return np.matmul(a, b)  # it raises the error
        out = np.empty((*a.shape[:-1], b.shape[-1]), np.result_type(a, b))
    if a.ndim > 2:
        if not out.flags.c_contiguous:
            return np.matmul(a, b, out=out)
        a, b, flat = (one.reshape(-1, *one.shape[-2:]) for one in (a, b, out))
        _run(lambda start, stop: np.matmul(a[start:stop], b[start:stop], out=flat[start:stop]), len(a), 1, count, work)
    elif a.shape[0] >= b.shape[1]:
        _run(lambda start, stop: np.matmul(a[start:stop], b, out=out[start:stop]), len(a), _STEP, count, work)
    else:
        _run(lambda start, stop: np.matmul(a, b[:, start:stop], out=out[:, start:stop]), b.shape[1], _STEP, count, work)
    return out


def _is_square_of(a: Any, b: Any) -> bool:
    """Whether one operand is the other one's transpose: NumPy then computes half of the result, and mirrors it."""
    return a.ndim == 2 and a.shape == b.shape[::-1] and a.ctypes.data == b.ctypes.data and a.strides == b.strides[::-1]


def _run(product: Callable[[int, int], object], length: int, unit: int, count: int, work: int) -> None:
    """Run ``product(start, stop)`` so that the ranges make up ``range(length)``, in about `count` pieces."""
    step = -(-length // (count * unit)) * unit

    def piece(number: int) -> None:
        product(number * step, min((number + 1) * step, length))

    POOL.run_pieces(piece, -(-length // step), work // _PIECE)

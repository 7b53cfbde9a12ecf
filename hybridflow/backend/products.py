"""Matrix products on the host, whose bits depend neither on the number of threads nor on what else the machine does.

NumPy hands products to OpenBLAS, which cuts large ones into as many parts as it has threads and then waits for all of
them. Here the shapes alone say how a product is cut. OpenBLAS computes each piece in the thread that asks for it, and
the pieces are taken by this thread and by those of `hybridflow.backend.parallel`, whoever is free: a thread that gets
no core delays nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.backend.blas_threads import one_thread
from hybridflow.backend.parallel import POOL

SMALL = 4096
"""Up to this many multiplications, OpenBLAS uses one thread by itself."""
_SMALL_REAL = 1 << 18
"""The same of real matrices."""
SHARED = 1 << 25
"""Products of at least this many multiplications are cut; for smaller ones, waking a thread costs what it saves."""
_CUTS = ((1 << 29, 8), (1 << 27, 4), (SHARED, 2))
"""From how many multiplications on a product is cut into how many pieces: few, since each reads an operand anew."""
_STEP = 16
"""Pieces have a multiple of so many rows or columns, as the library's kernels do."""
_MANY_ROWS, _MORE_ROWS = 24, 32
"""Products of fewer rows with a transposed matrix are turned round, of a few more if their rows are long."""
_TURNED = 1 << 19
"""Products of at least this many multiplications are turned; smaller ones are as fast either way."""
_PIECE = SHARED // 2
"""How many multiplications are worth a thread."""


def matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply as `numpy.matmul` does.

    Args:
        a, b: arrays of at least one axis.
        out: where to write the result, if it is there already.
    """
    work = a.size * b.shape[-1] if b.ndim > 1 else b.size if a.ndim == 1 else a.size
    if work <= SMALL or (work <= _SMALL_REAL and a.ndim + b.ndim > 2 and a.dtype.kind != "c"):
        return np.matmul(a, b, out=out)
    alone = one_thread("numpy")
    if alone is None:  # another library, whose threads are its own
        return np.matmul(a, b, out=out)
    with alone:
        if work >= SHARED:
            return _in_pieces(a, b, out, work)
        if work > _TURNED and out is None and _has_few_rows(a, b):
            return np.ascontiguousarray(np.matmul(b.T, a.T).T)
        return np.matmul(a, b, out=out)


def _has_few_rows(a: Any, b: Any) -> bool:
    """Whether the library multiplies the other way round faster: transposed, with many rows and few columns.

    So it is with the gradients of what a layer reads in small batches: on processors with AVX-512 they then take 0.55
    to 0.95 of the time, on others 0.75 to 1.04.
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
            return np.matmul(a, b)  # which says what is wrong
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
    """Run ``product(start, stop)`` so that the ranges make up ``range(length)``, in about so many pieces."""
    step = -(-length // (count * unit)) * unit

    def piece(number: int) -> None:
        product(number * step, min((number + 1) * step, length))

    POOL.run_pieces(piece, -(-length // step), work // _PIECE)

"""The LAPACK routines that XLA calls on a CPU, called from NumPy.

Some results are decided by rounding: the vectors of repeated eigenvalues and singular values, the factors of matrices
of lower rank, whether a pivot is exactly zero, whether a matrix is positive definite. To get the same results in both
modes, this module calls SciPy's LAPACK, which jaxlib uses too; NumPy brings another one. Two more things must agree.
The workspaces must have the same size, because it decides how a routine cuts a matrix into blocks. And subnormal
numbers must count as zero, because the rest of a column that depends on others can be that small before it is scaled to
length 1.

`flushed` makes a whole kernel treat subnormal numbers as zero, where `can_flush_subnormals` says that the machine can.
Elsewhere, operations for which it matters run their lowering: see `or_lowering`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import numpy as np

from hybridflow.backend.host import can_flush_subnormals, subnormals_flushed
from hybridflow.core.dtypes import real_dtype
from hybridflow.core.op import No
from hybridflow.ops.linalg.common import nan_of

_Array = np.ndarray[Any, Any]
_LETTER = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
"""By dtype, the first letter of the names of LAPACK's routines."""


def flushed(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that treats subnormal numbers as zero, as XLA does, if the machine can."""
    return subnormals_flushed()(kernel) if can_flush_subnormals() else kernel


def or_lowering(kernel: Callable[..., Any]) -> Callable[..., Any] | No:
    """Return a `flushed` kernel if that gives the same bits as XLA, else `No`, so that the lowering runs."""
    if can_flush_subnormals():
        return flushed(kernel)
    return No("LAPACK flushes no subnormal numbers here, as it does for XLA")


@cache
def _routine(name: str, dtype: Any) -> Callable[..., Any]:
    """Return a routine for a dtype; for complex numbers ``he`` and ``un`` take the place of ``sy`` and ``or``."""
    from scipy.linalg import lapack  # slow to import, and most programs need none

    if dtype.kind == "c":
        name = name.replace("syevd", "heevd").replace("orgqr", "ungqr")
    return cast("Callable[..., Any]", getattr(lapack, _LETTER[dtype.name] + name))


@cache
def _best_size(name: str, dtype: Any, *sizes: int, **options: Any) -> int:
    """Return the size of the workspace that a routine asks for."""
    return int(_routine(f"{name}_lwork", dtype)(*sizes, **options)[0].real)


def _each(x: _Array, *shapes: tuple[tuple[int, ...], Any]) -> list[_Array]:
    """Return empty arrays for the results of a stack of matrices."""
    return [np.empty((*x.shape[:-2], *shape), dtype) for shape, dtype in shapes]


def _fill(info: int, results: list[_Array], index: Any, computed: tuple[_Array, ...]) -> None:
    """Store one matrix's results: NaN where the routine failed."""
    for result, one in zip(results, computed, strict=True):
        result[index] = one if info == 0 else nan_of(result.dtype)


def solve_triangular(a: _Array, b: _Array, *, lower: bool, transpose: bool, unit_diagonal: bool) -> _Array:
    """Return the solutions, ``(..., n, k)``, of systems with triangular matrices.

    LAPACK reads the rows of an array as columns, so it sees everything transposed. It therefore solves the transposed
    systems, with the matrix on the right, and nothing needs to be copied.
    """
    from scipy.linalg import blas  # slow to import, and most programs need none

    if not b.size:
        return np.empty_like(b, order="C")
    routine = cast("Callable[..., Any]", getattr(blas, _LETTER[a.dtype.name] + "trsm"))
    solve = partial(routine, 1, side=1, lower=lower, trans_a=not transpose, diag=unit_diagonal)
    if b.ndim == 2:
        return solve(a, b.T).T
    result = np.empty_like(b, order="C")
    for index in np.ndindex(b.shape[:-2]):
        result[index] = solve(a[index], b[index].T).T
    return result


def cholesky(x: _Array) -> _Array:
    """Return lower triangular factors of Hermitian matrices; NaN, in the lower triangle, where there is none.

    It uses as many threads as XLA. Their number changes the rounding, and so whether a nearly singular matrix counts as
    positive definite.

    Returns:
        ``(..., n, n)``, laid out by columns, as the routines for triangular systems take them.
    """
    factor = _routine("potrf", x.dtype)
    result = np.empty_like(x, order="C").swapaxes(-1, -2)
    for index in np.ndindex(x.shape[:-2]):
        triangle, info = factor(x[index], lower=True, clean=True)
        triangle = triangle if info == 0 else np.tril(np.full_like(triangle, nan_of(x.dtype)))
        if x.ndim == 2:
            return triangle
        result[index] = triangle
    return result


def lu(x: _Array) -> tuple[_Array, _Array, _Array]:
    """Factor matrices with pivoting of rows.

    Returns:
        Both factors in one matrix; per step, the row that was swapped; and the resulting order of the rows.
    """
    factor = _routine("getrf", x.dtype)
    rows, columns = x.shape[-2:]
    factors, swaps = _each(x, ((rows, columns), x.dtype), ((min(rows, columns),), np.int32))
    for index in np.ndindex(x.shape[:-2]):
        factors[index], swaps[index], _ = factor(x[index])
    order = np.broadcast_to(np.arange(rows), (*x.shape[:-2], rows)).copy()
    for one in range(swaps.shape[-1]):
        other = swaps[..., one, None]
        exchanged = np.take_along_axis(order, other, axis=-1)
        np.put_along_axis(order, other, order[..., one, None], axis=-1)
        order[..., one] = exchanged[..., 0]
    return factors, swaps, order


def schur(x: _Array) -> tuple[_Array, _Array]:
    """Return the triangular and the unitary factors of square matrices."""
    size = x.shape[-1]
    decompose = _routine("gees", x.dtype)
    results = _each(x, ((size, size), x.dtype), ((size, size), x.dtype))
    needed = int(decompose(_no_order, np.zeros((size, size), x.dtype), lwork=-1)[-2][0].real)
    for index in np.ndindex(x.shape[:-2]):
        triangle, *_, vectors, _, info = decompose(_no_order, x[index], lwork=needed)
        _fill(info, results, index, (triangle, vectors))
    return results[0], results[1]


def _no_order(*_: Any) -> None:
    """Choose no eigenvalues to come first."""


def eigh(x: _Array) -> tuple[_Array, _Array]:
    """Return eigenvalues and eigenvectors of Hermitian matrices."""
    size = x.shape[-1]
    decompose = _routine("syevd", x.dtype)
    results = _each(x, ((size,), real_dtype(x.dtype)), ((size, size), x.dtype))
    for index in np.ndindex(x.shape[:-2]):
        values, vectors, info = decompose(x[index], compute_v=True, lower=True)
        _fill(info, results, index, (values, vectors))
    return results[0], results[1]


def svd(x: _Array, *, full_matrices: bool) -> tuple[_Array, _Array, _Array]:
    """Return singular vectors and values: U, S and Vh."""
    rows, columns = x.shape[-2:]
    short = min(rows, columns)
    left, right = (rows, columns) if full_matrices else (short, short)
    decompose = _routine("gesdd", x.dtype)
    lwork = _best_size("gesdd", x.dtype, rows, columns, compute_uv=True, full_matrices=full_matrices)
    results = _each(x, ((rows, left), x.dtype), ((short,), real_dtype(x.dtype)), ((right, columns), x.dtype))
    for index in np.ndindex(x.shape[:-2]):
        u, s, vh, info = decompose(x[index], compute_uv=True, full_matrices=full_matrices, lwork=lwork)
        _fill(info, results, index, (u, s, vh))
    return results[0], results[1], results[2]


def svdvals(x: _Array) -> _Array:
    """Return singular values."""
    rows, columns = x.shape[-2:]
    decompose = _routine("gesdd", x.dtype)
    lwork = _best_size("gesdd", x.dtype, rows, columns, compute_uv=False, full_matrices=False)
    results = _each(x, ((min(rows, columns),), real_dtype(x.dtype)))
    for index in np.ndindex(x.shape[:-2]):
        _, s, _, info = decompose(x[index], compute_uv=False, full_matrices=False, lwork=lwork)
        _fill(info, results, index, (s,))
    return results[0]


def qr(x: _Array, *, complete: bool) -> tuple[_Array, _Array]:
    """Return factors of matrices with no more columns than rows."""
    rows, columns = x.shape[-2:]
    width = rows if complete else columns
    factor, product = _routine("geqrf", x.dtype), _routine("orgqr", x.dtype)
    lwork = _best_size("geqrf", x.dtype, rows, columns)
    q, r = _each(x, ((rows, width), x.dtype), ((width, columns), x.dtype))
    padded = np.zeros((rows, width), x.dtype, order="F")
    for index in np.ndindex(x.shape[:-2]):
        packed, tau, _, _ = factor(x[index], lwork=lwork)
        padded[:, :columns] = packed
        needed = int(product(padded, tau, lwork=-1)[1][0].real)
        q[index] = product(padded, tau, lwork=needed)[0]
        r[index] = np.triu(packed[:width])
    return q, r


def eig(x: _Array, *, vectors: bool) -> tuple[_Array, _Array]:
    """Return eigenvalues and, if they are wanted, eigenvectors, one per column."""
    size = x.shape[-1]
    dtype = np.result_type(x.dtype, np.complex64)
    decompose = _routine("geev", x.dtype)
    lwork = _best_size("geev", x.dtype, size, compute_vl=False, compute_vr=vectors)
    results = _each(x, ((size,), dtype), ((size, size) if vectors else (), dtype))
    for index in np.ndindex(x.shape[:-2]):
        *values, _, right, info = decompose(x[index], compute_vl=False, compute_vr=vectors, lwork=lwork)
        eigenvalues = _paired(values[0], values[1]) if len(values) == 2 else values[0]
        vectors_ = 0 if not vectors else right if len(values) == 1 else _unpacked(values[1], right)
        _fill(info, results, index, (eigenvalues, np.asarray(vectors_)))
    return results[0], results[1]


def _paired(real: _Array, imaginary: _Array) -> _Array:
    """Return complex numbers, given their real and imaginary parts."""
    pairs = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    pairs.real, pairs.imag = real, imaginary
    return pairs


def _unpacked(imaginary: _Array, packed: _Array) -> _Array:
    """Return complex eigenvectors; for a conjugate pair, LAPACK returns their real and imaginary parts."""
    result = _paired(packed, np.zeros_like(packed))
    first = np.flatnonzero(imaginary > 0)
    result.imag[:, first] = packed[:, first + 1]
    result[:, first + 1] = result[:, first].conj()
    return result

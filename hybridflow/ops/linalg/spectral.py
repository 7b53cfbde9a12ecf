"""Eigenvalues, singular values and QR factors.

Eigenvectors and singular vectors are determined up to a factor of absolute value 1 (a sign), and LAPACK, cuSOLVER
and their versions choose different ones. Here each vector ``v`` is turned so that its inner product with
``w = (cos 0, cos 1, cos 2, ...)`` is real and positive. Structured vectors do not come near the tie at 0, which
would make the choice depend on rounding: cosines of integers are linearly independent over the algebraic numbers
(Lindemann and Weierstrass), so that only a vector that has a transcendental component can be orthogonal to ``w``.
The vectors of repeated eigenvalues or singular values are not determined by that; both modes use one implementation.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dims import same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, DTypeError, GradientError, ShapeError, message
from hybridflow.core.op import Bad, Sample, Saves, op, public_names
from hybridflow.ops.common import (
    FLOATING,
    Tensor,
    TensorLike,
    TensorSpec,
    broadcast_shapes,
    make_spec,
    require_kind,
    truth,
    unbroadcast,
)
from hybridflow.ops.jax_rule import rule_from_lowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    adjoint,
    conjugated,
    cubes,
    factorable,
    gaussian,
    hermitian_part,
    is_square,
    nan_of,
    phases,
    real_dtype,
    relative_tolerance,
    require_matrix,
    require_square,
    row,
    transposed,
    turned,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION

# -- Hermitian eigenvalues ----------------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Eigenvalues and eigenvectors.

    Attributes:
        eigenvalues: ``(..., n)``, real and ascending.
        eigenvectors: ``(..., n, n)``, one per column, orthonormal.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


def _eigh_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros(x.shape[:-1], x.real.dtype), x
    finite = jnp.isfinite(x).all((-1, -2))
    vectors, values = lax.linalg.eigh(hermitian_part(x), symmetrize_input=False, sort_eigenvalues=True)
    return _where_finite(jnp, finite, values, turned(jnp, vectors))


def _eigh_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    if not x.size:
        return np.zeros(x.shape[:-1], x.real.dtype), x
    finite = np.isfinite(x).all((-1, -2))
    values, vectors = lapack.eigh(hermitian_part(np.where(finite[..., None, None], x, x.dtype.type(0))))
    return _where_finite(np, finite, values, turned(np, vectors))


def _where_finite(xp: Any, finite: Any, values: Any, vectors: Any) -> tuple[Any, Any]:
    values = xp.where(finite[..., None], values, nan_of(values.dtype))
    return values, xp.where(finite[..., None, None], vectors, nan_of(vectors.dtype))


def _eigh_infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    require_kind("eigh", FLOATING, x)
    require_square("eigh", x)
    return make_spec(x.shape[:-1], real_dtype(x.dtype)), make_spec(x.shape, x.dtype)


def _hermitian(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw Hermitian matrices with eigenvalues of alternating signs, 1 apart at least."""
    q, _ = np.linalg.qr(gaussian(rng, *shape, dtype=np.promote_types(dtype, np.float64)))
    values = np.arange(1, shape[-1] + 1) * (-1.0) ** np.arange(shape[-1])
    return np.asarray((q * values) @ np.conj(np.swapaxes(q, -1, -2)), dtype=dtype)


def _eigh_samples(rng: np.random.Generator) -> Any:
    yield Sample((_hermitian(rng, 3, 3),))
    yield Sample((_hermitian(rng, 2, 2, 2, dtype=np.complex128),))
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_eigh_kernel),
    lower=_eigh_lower,
    infer=_eigh_infer,
    vjp=rule_from_lowering("eigh"),
    saves=Saves(x="all"),
    flops=cubes(9),
    samples=_eigh_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
)
def eigh(x: TensorLike, /) -> EighResult:
    """Compute eigenvalues and eigenvectors of Hermitian matrices.

    The Hermitian part ``(x + x^H) / 2`` is what is decomposed, so the gradient is Hermitian. Each eigenvector is
    turned so that its inner product with ``(cos 0, cos 1, cos 2, ...)`` is real and positive. Those of a repeated
    eigenvalue are some orthonormal basis, and the gradient is NaN there; `eigvalsh` has one.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        An `EighResult`; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> values, vectors = hf.linalg.eigh([[2.0, 0.0], [0.0, 1.0]])
        >>> values
        Tensor([1., 2.], dtype=float32)
        >>> vectors
        Tensor([[0., 1.],
                [1., 0.]], dtype=float32)

    Reference:
        Gradient: M. B. Giles 2008, section 3.1. ``9 n**3`` FLOPs: G. H. Golub and C. F. Van Loan, Matrix
        Computations, section 8.3.
    """
    return EighResult(*bind(eigh.op, factorable("eigh", x)))


def _eigvalsh_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    finite = np.isfinite(x).all((-1, -2))
    if finite.all():
        return np.linalg.eigvalsh(hermitian_part(x))
    found = np.linalg.eigvalsh(hermitian_part(np.where(finite[..., None, None], x, x.dtype.type(0))))
    return np.where(finite[..., None], found, nan_of(found.dtype))


def _eigvalsh_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros(x.shape[:-1], x.real.dtype)
    found = lax.linalg.eigh(hermitian_part(x), symmetrize_input=False)[1]
    return jnp.where(jnp.isfinite(x).all((-1, -2))[..., None], found, nan_of(found.dtype))


def _eigvalsh_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    _, vectors = F.eigh(x)
    return (F.matmul(conjugated(F, vectors) * row(F, g), transposed(F, vectors)),)


@op(
    kernel=_eigvalsh_kernel,
    lower=_eigvalsh_lower,
    infer=lambda x: _eigh_infer(x)[0],
    vjp=_eigvalsh_vjp,
    saves=Saves(x=(0,)),
    flops=cubes(4 / 3),
    samples=_eigh_samples,
    traits=("full_precision",),
    ulp=32,
    onnx=DECOMPOSITION,
)
def eigvalsh(x: TensorLike, /) -> Tensor:
    """Compute the eigenvalues of Hermitian matrices.

    The Hermitian part ``(x + x^H) / 2`` is what is decomposed. The gradient of a repeated eigenvalue is that of one
    choice of eigenvectors; sums over it have the right one. Second order needs distinct eigenvalues.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        ``(..., n)``, real and ascending; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.eigvalsh([[2.0, 0.0], [0.0, 1.0]])
        Tensor([1., 2.], dtype=float32)

    Reference:
        Gradient: M. B. Giles 2008, section 3.1. ``4/3 n**3`` FLOPs: G. H. Golub and C. F. Van Loan, Matrix
        Computations, section 8.3.
    """
    return bind(eigvalsh.op, factorable("eigvalsh", x))


# -- singular values ----------------------------------------------------------------------------------------------


class SVDResult(NamedTuple):
    """Singular vectors and values: ``x = U S Vh``.

    Attributes:
        U: ``(..., m, k)``, orthonormal columns; ``(..., m, m)`` with full matrices.
        S: ``(..., k)``, real and descending.
        Vh: ``(..., k, n)``, orthonormal rows; ``(..., n, n)`` with full matrices.
    """

    U: Tensor
    S: Tensor
    Vh: Tensor


def _svd_lower(x: Any, *, full_matrices: bool) -> Any:
    if not x.size:
        return _svd_of_nothing(jnp, x, full_matrices)
    u, s, vh = lax.linalg.svd(x, full_matrices=full_matrices, compute_uv=True)
    return _svd_turned(jnp, u, s, vh)


def _svd_kernel(x: Any, *, full_matrices: bool) -> Any:
    if not x.size:
        return _svd_of_nothing(np, x, full_matrices)
    return _svd_turned(np, *lapack.svd(x, full_matrices=full_matrices))


def _svd_of_nothing(xp: Any, x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    rows, columns = x.shape[-2:]
    short, batch = min(rows, columns), x.shape[:-2]
    left, right = (rows, columns) if full_matrices else (short, short)
    u, vh = (xp.broadcast_to(xp.eye(*shape, dtype=x.dtype), (*batch, *shape))
             for shape in ((rows, left), (right, columns)))  # fmt: skip
    return u, xp.zeros((*batch, short), x.real.dtype), vh


def _svd_turned(xp: Any, u: Any, s: Any, vh: Any) -> tuple[Any, Any, Any]:
    """Turn left singular vectors as `turned` does, the right ones with them, and those without a partner alone."""
    short = s.shape[-1]
    turns = phases(xp, u)
    other = xp.conj(turns[..., :short, None]) * vh[..., :short, :]
    if vh.shape[-2] > short:
        extra = vh[..., short:, :]
        other = xp.concatenate([other, extra * phases(xp, extra.swapaxes(-1, -2))[..., None]], axis=-2)
    return u * turns[..., None, :], s, other


def _svd_infer(x: TensorSpec, *, full_matrices: bool) -> tuple[TensorSpec, ...]:
    require_kind("svd", FLOATING, x)
    require_matrix("svd", x)
    rows, columns = x.shape[-2:]
    short = _short(rows, columns)
    left, right = (rows, columns) if full_matrices else (short, short)
    batch = x.shape[:-2]
    return (
        make_spec((*batch, rows, left), x.dtype),
        make_spec((*batch, short), real_dtype(x.dtype)),
        make_spec((*batch, right, columns), x.dtype),
    )


def _short(rows: Any, columns: Any) -> Any:
    return rows if same_size(rows, columns) else min(rows, columns)


_svd_rule = rule_from_lowering("svd")


def _svd_vjp(F: Any, g: Any, y: Any, x: Any, *, full_matrices: bool) -> Any:
    if full_matrices and (g[0] is not None or g[2] is not None):
        raise GradientError(
            message("svd: the vectors of a full decomposition have no gradient: those added to a matrix that is not "
                    "square are not determined", hint="Pass full_matrices=False.")
        )  # fmt: skip
    if full_matrices:
        u, _, vh = F.svd(x, full_matrices=False)
        return (F.matmul(conjugated(F, u) * row(F, g[1]), conjugated(F, vh)),)
    return _svd_rule(F, g, y, x, full_matrices=full_matrices)


def _svd_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 2),), {"full_matrices": False})
    yield Sample((well_conditioned(rng, 2, 2, 3, dtype=np.complex128),), {"full_matrices": False}, gradient=False)
    yield Sample((well_conditioned(rng, 2, 3),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 3),), gradient=False)
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_svd_kernel),
    lower=_svd_lower,
    infer=_svd_infer,
    vjp=_svd_vjp,
    saves=Saves(x="all"),
    flops=cubes(21),
    samples=_svd_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
)
def svd(x: TensorLike, /, *, full_matrices: bool = True) -> SVDResult:
    """Compute singular value decompositions.

    Each left singular vector is turned so that its inner product with ``(cos 0, cos 1, cos 2, ...)`` is real and
    positive, and the right one with it. The vectors of repeated singular values are some orthonormal basis, and the
    gradient is NaN there, as it is for a singular value 0; `svdvals` has one. The vectors that `full_matrices` adds
    to a matrix that is not square have none.

    Args:
        x: ``(..., m, n)``, real or complex floats.
        full_matrices: whether to complete `U` and `Vh` to square matrices.

    Returns:
        An `SVDResult`; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: fewer than two dimensions.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.svd([[0.0, 2.0], [1.0, 0.0]]).S
        Tensor([2., 1.], dtype=float32)

    Reference:
        Gradient: S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions", 2018; of
        complex matrices: Z.-Q. Wan and S.-X. Zhang, "Automatic differentiation for complex valued SVD", 2019.
        ``21 n**3`` FLOPs of a square matrix: G. H. Golub and C. F. Van Loan, Matrix Computations, section 8.6.
    """
    full_matrices = truth("svd", "full_matrices", full_matrices)
    (tensor,) = factorable("svd", x)
    require_matrix("svd", tensor.spec)
    rows, columns = tensor.shape[-2:]
    full = full_matrices and not (same_size(rows, columns) or rows == columns)
    return SVDResult(*bind(svd.op, (tensor,), {"full_matrices": full}))


def _svdvals_infer(x: TensorSpec) -> TensorSpec:
    require_kind("svdvals", FLOATING, x)
    require_matrix("svdvals", x)
    return make_spec((*x.shape[:-2], _short(*x.shape[-2:])), real_dtype(x.dtype))


def _svdvals_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros((*x.shape[:-2], min(x.shape[-2:])), x.real.dtype)
    found = lax.linalg.svd(x, full_matrices=False, compute_uv=False)
    return jnp.where(jnp.isfinite(x).all((-1, -2))[..., None], found, nan_of(found.dtype))


def _svdvals_kernel(x: Any) -> Any:
    if not x.size:
        return np.zeros((*x.shape[:-2], min(x.shape[-2:])), x.real.dtype)
    found = lapack.svdvals(x)
    return np.where(np.isfinite(x).all((-1, -2))[..., None], found, nan_of(found.dtype))


def _svdvals_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    u, _, vh = F.svd(x, full_matrices=False)
    return (F.matmul(conjugated(F, u) * row(F, g), conjugated(F, vh)),)


def _svdvals_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 2),))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=np.complex128),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 3),), gradient=False)
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_svdvals_kernel),
    lower=_svdvals_lower,
    infer=_svdvals_infer,
    vjp=_svdvals_vjp,
    saves=Saves(x=(0,)),
    flops=cubes(8 / 3),
    samples=_svdvals_samples,
    traits=("full_precision",),
    ulp=32,
    onnx=DECOMPOSITION,
)
def svdvals(x: TensorLike, /) -> Tensor:
    """Compute singular values.

    The gradient of a repeated singular value is that of one choice of vectors; sums over it have the right one, and
    at 0 it is a subgradient. Second order needs distinct singular values that are not 0.

    Args:
        x: ``(..., m, n)``, real or complex floats.

    Returns:
        ``(..., min(m, n))``, real and descending; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: fewer than two dimensions.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.svdvals([[0.0, 2.0], [1.0, 0.0]])
        Tensor([2., 1.], dtype=float32)

    Reference:
        Gradient: M. B. Giles 2008, section 3.2. ``8/3 n**3`` FLOPs of a square matrix: G. H. Golub and C. F. Van
        Loan, Matrix Computations, section 8.6.
    """
    return bind(svdvals.op, factorable("svdvals", x))


# -- QR -----------------------------------------------------------------------------------------------------------


class QRResult(NamedTuple):
    """Factors: ``x = Q R``.

    Attributes:
        Q: ``(..., m, k)``, orthonormal columns; ``(..., m, m)`` in mode ``"complete"``.
        R: ``(..., k, n)``, upper triangular; ``(..., m, n)`` in mode ``"complete"``.
    """

    Q: Tensor
    R: Tensor


def _qr_lower(x: Any, *, complete: bool) -> Any:
    if not x.size:
        return _qr_of_nothing(jnp, x, complete)
    q, r = lax.linalg.qr(x[..., : min(x.shape[-2:])], full_matrices=complete)
    return _qr_turned(jnp, q, r, x, partial(jnp.matmul, precision="highest"))


def _qr_kernel(x: Any, *, complete: bool) -> Any:
    if not x.size:
        return _qr_of_nothing(np, x, complete)
    return _qr_turned(np, *lapack.qr(x[..., : min(x.shape[-2:])], complete=complete), x, np.matmul)


def _qr_of_nothing(xp: Any, x: Any, complete: bool) -> tuple[Any, Any]:
    rows, columns = x.shape[-2:]
    size = rows if complete else min(rows, columns)
    q = xp.broadcast_to(xp.eye(rows, size, dtype=x.dtype), (*x.shape[:-2], rows, size))
    return q, xp.zeros((*x.shape[:-2], size, columns), x.dtype)


def _qr_turned(xp: Any, q: Any, r: Any, x: Any, matmul: Any) -> tuple[Any, Any]:
    """Turn factors so that the diagonal of `R` is not negative, and extend `R` to all columns of `x`."""
    short, columns = min(x.shape[-2:]), x.shape[-1]
    diagonal = xp.diagonal(r, axis1=-2, axis2=-1)
    size = xp.abs(diagonal)
    zero = size == 0
    unit = xp.where(zero, np.ones((), x.dtype), diagonal / xp.where(zero, np.ones((), size.dtype), size))
    if q.shape[-1] > short:
        unit = xp.concatenate([unit, xp.conj(phases(xp, q[..., short:]))], axis=-1)
    q = q * unit[..., None, :]
    r = xp.triu(r * xp.conj(unit)[..., : r.shape[-2], None])
    if columns > short:
        r = xp.concatenate([r, matmul(xp.conj(q.swapaxes(-1, -2)), x[..., short:])], axis=-1)
    # The diagonal is real: what rounding leaves of an imaginary part would have a gradient.
    return q, (xp.where(np.eye(*r.shape[-2:], dtype=bool), r.real.astype(r.dtype), r) if x.dtype.kind == "c" else r)


def _qr_infer(x: TensorSpec, *, complete: bool) -> tuple[TensorSpec, TensorSpec]:
    require_kind("qr", FLOATING, x)
    require_matrix("qr", x)
    rows, columns = x.shape[-2:]
    size = rows if complete else _short(rows, columns)
    batch = x.shape[:-2]
    return make_spec((*batch, rows, size), x.dtype), make_spec((*batch, size, columns), x.dtype)


_qr_rule = rule_from_lowering("qr")


def _qr_vjp(F: Any, g: Any, y: Any, x: Any, *, complete: bool) -> Any:
    rows, columns = x.shape[-2:]
    if complete and rows > columns:
        raise GradientError(
            message(f"qr: the complete factors of {rows} by {columns} matrices have no gradient: the columns that are "
                    "added are not determined", hint='Use mode="reduced".')
        )  # fmt: skip
    return _qr_rule(F, g, y, x, complete=complete)


def _qr_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 2),))
    yield Sample((well_conditioned(rng, 2, 2, 3, dtype=np.complex128),), gradient=False)
    yield Sample((well_conditioned(rng, 3, 2),), {"mode": "complete"}, gradient=False)
    yield Sample((gaussian(rng, 2, 0, 3),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), {"mode": "r"}, error=ArgumentError, text="mode='r' is not one of")
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


_MODES = ("reduced", "complete")


@op(
    kernel=lapack.or_lowering(_qr_kernel),
    lower=_qr_lower,
    infer=_qr_infer,
    vjp=_qr_vjp,
    saves=Saves(x="all"),
    flops=cubes(8 / 3),
    samples=_qr_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
)
def qr(x: TensorLike, /, *, mode: str = "reduced") -> QRResult:
    """Factor matrices into one with orthonormal columns and an upper triangular one.

    The diagonal of `R` is real and not negative, which determines the factors of a matrix of full rank. Columns that
    mode ``"complete"`` adds to `Q` are turned as the vectors of `svd`. The gradient needs full rank.

    Args:
        x: ``(..., m, n)``, real or complex floats.
        mode: ``"reduced"``: `Q` has ``k = min(m, n)`` columns; ``"complete"``: `Q` is square.

    Returns:
        A `QRResult`.

    Raises:
        ShapeError: fewer than two dimensions.
        ArgumentError: another mode.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.qr([[-2.0, 1.0], [0.0, 3.0]]).R
        Tensor([[ 2., -1.],
                [ 0.,  3.]], dtype=float32)

    Reference:
        Gradient: S. F. Walter and L. Lehmann, "Algorithmic differentiation of linear algebra functions", 2018.
        ``8/3 n**3`` FLOPs of both factors of a square matrix: G. H. Golub and C. F. Van Loan, Matrix Computations,
        section 5.2.
    """
    if mode not in _MODES:
        raise ArgumentError(message(f"qr: mode={mode!r} is not one of {list(_MODES)}"))
    (tensor,) = factorable("qr", x)
    require_matrix("qr", tensor.spec)
    return QRResult(*bind(qr.op, (tensor,), {"complete": mode == "complete"}))


# -- pseudo-inverses ----------------------------------------------------------------------------------------------


def _pinv_with(xp: Any, x: Any, rtol: Any, svd: Any) -> Any:
    if not x.size:
        batch = np.broadcast_shapes(x.shape[:-2], rtol.shape)
        return xp.zeros((*batch, x.shape[-1], x.shape[-2]), x.dtype)
    u, s, vh = svd(x, full_matrices=False)
    large = (s > rtol[..., None] * s[..., :1]) | xp.isnan(s)
    one = np.ones((), s.dtype)
    inverse = xp.where(large, one / xp.where(large, s, one), np.zeros((), s.dtype))
    return xp.matmul(vh.conj().swapaxes(-1, -2) * inverse[..., None, :], u.conj().swapaxes(-1, -2))


def _pinv_kernel(x: Any, rtol: Any) -> Any:
    finite = np.isfinite(x).all((-1, -2))[..., None, None]
    found = _pinv_with(np, np.where(finite, x, x.dtype.type(0)), rtol, lapack.svd)
    return found if finite.all() else np.where(finite, found, x.dtype.type(np.nan))


def _pinv_lower(x: Any, rtol: Any) -> Any:
    finite = jnp.isfinite(x).all((-1, -2))[..., None, None]
    found = _pinv_with(jnp, x, rtol, jnp.linalg.svd)
    return jnp.where(finite, found, x.dtype.type(np.nan))


def _pinv_infer(x: TensorSpec, rtol: TensorSpec) -> TensorSpec:
    require_kind("pinv", FLOATING, x)
    require_matrix("pinv", x)
    batch = broadcast_shapes("pinv", x.shape[:-2], rtol.shape)
    return make_spec((*batch, x.shape[-1], x.shape[-2]), x.dtype)


def _pinv_vjp(F: Any, g: Any, y: Any, x: Any, rtol: Any) -> Any:
    del rtol
    other, bar, g_bar = transposed(F, y), conjugated(F, y), adjoint(F, g)
    plain = -F.matmul(other, F.matmul(g, other))
    left = F.matmul(g_bar, F.matmul(bar, other))
    left = left - F.matmul(conjugated(F, x), F.matmul(bar, left))
    right = F.matmul(F.matmul(other, bar), g_bar)
    right = right - F.matmul(F.matmul(right, bar), conjugated(F, x))
    return unbroadcast(F, plain + left + right, x), None


def _pinv_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 2),))
    yield Sample((well_conditioned(rng, 2, 2, 3, dtype=np.complex128),), gradient=False)
    rank_one = np.ones((2, 2), np.float32)
    yield Sample((rank_one,), {"rtol": np.array([0.1, 1.0], np.float32)}, gradient=False)
    yield Sample((gaussian(rng, 2, 0, 3),), gradient=False)
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")
    yield Bad((gaussian(rng, 3, 2, 2),), {"rtol": np.ones(2)}, error=ShapeError, text="do not broadcast")


@op(
    kernel=lapack.flushed(_pinv_kernel),
    lower=_pinv_lower,
    infer=_pinv_infer,
    vjp=_pinv_vjp,
    saves=Saves(x=(0,), y=True),
    flops=cubes(23),
    samples=_pinv_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
)
def pinv(x: TensorLike, /, *, rtol: TensorLike = None) -> Tensor:
    """Compute pseudo-inverses (Moore and Penrose).

    Args:
        x: ``(..., m, n)``, real or complex floats.
        rtol: singular values up to this part of the largest count as 0: a number, or one per matrix;
            ``max(m, n)`` times the dtype's spacing at 1 if not given. The gradient takes their number as given.

    Returns:
        ``(..., n, m)``; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: fewer than two dimensions.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.pinv([[2.0, 0.0], [0.0, 0.0]])
        Tensor([[0.5, 0. ],
                [0. , 0. ]], dtype=float32)

    Reference:
        Gradient: G. H. Golub and V. Pereyra, "The differentiation of pseudo-inverses and nonlinear least squares
        problems whose variables separate", SIAM Journal on Numerical Analysis 10(2), 1973.
    """
    (tensor,) = factorable("pinv", x)
    require_matrix("pinv", tensor.spec)
    return bind(pinv.op, (tensor, relative_tolerance(rtol, tensor)))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

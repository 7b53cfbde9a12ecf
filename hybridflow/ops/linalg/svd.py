"""The singular value decomposition, and the pseudo-inverse, which is computed from it."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dims import same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import real_dtype
from hybridflow.core.errors import DTypeError, GradientError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
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
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    adjoint,
    conjugated,
    cubes,
    factorable,
    finite_matrices,
    gaussian,
    nan_of,
    phases,
    relative_tolerance,
    require_matrix,
    row,
    shorter_side,
    transposed,
    well_conditioned,
    where_finite,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix

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


@jax.custom_jvp
def _thin(x: Any) -> Any:
    """Return the decomposition without the vectors that complete a side."""
    return tuple(lax.linalg.svd(x, full_matrices=False, compute_uv=True))


def _derivative(primals: Any, tangents: Any) -> Any:
    """Return the result and its derivative.

    The vectors of singular values that differ by no more than rounding do not turn together within the space that they
    span: there, any rotation of both sides are singular vectors too. How a side turns against the other is determined.
    """
    u, s, vh = _thin(*primals)
    v, change = jnp.conj(vh).mT, tangents[0]
    product = functools.partial(jnp.matmul, precision="highest")
    inner = product(product(jnp.conj(u).mT, change), v)
    both, against = inner + jnp.conj(inner).mT, inner - jnp.conj(inner).mT
    gap, total = s[..., None, :] - s[..., :, None], s[..., None, :] + s[..., :, None]
    rounding = max(primals[0].shape[-2:]) * np.finfo(s.dtype).eps * jnp.max(s, -1, initial=0)[..., None]
    together, apart = [
        part / jnp.where(small, 1, 2 * size) * ~small
        for part, size in ((both, gap), (against, total))
        for small in [jnp.abs(size) <= rounding[..., None]]
    ]
    kept = s > rounding
    inverse = kept / jnp.where(kept, s, 1)
    du, dv = product(u, together + apart), product(v, together - apart)
    if u.shape[-2] > s.shape[-1]:
        outside = product(change, v)
        du += (outside - product(u, product(jnp.conj(u).mT, outside))) * inverse[..., None, :]
    if v.shape[-2] > s.shape[-1]:
        outside = product(jnp.conj(change).mT, u)
        dv += (outside - product(v, product(vh, outside))) * inverse[..., None, :]
    return (u, s, vh), (du, jnp.diagonal(inner, axis1=-2, axis2=-1).real, jnp.conj(dv).mT)


_thin.defjvp(_derivative)


def _svd_lower(x: Any, *, full_matrices: bool) -> Any:
    if not x.size:
        return _svd_of_nothing(jnp, x, full_matrices)
    x, finite = finite_matrices(jnp, x)
    made = lax.linalg.svd(x, full_matrices=True, compute_uv=True) if full_matrices else _thin(x)
    return _svd_of_finite(jnp, finite, *made)


def _svd_kernel(x: Any, *, full_matrices: bool) -> Any:
    if not x.size:
        return _svd_of_nothing(np, x, full_matrices)
    x, finite = finite_matrices(np, x)
    return _svd_of_finite(np, finite, *lapack.svd(x, full_matrices=full_matrices))


def _svd_of_finite(xp: Any, finite: Any, u: Any, s: Any, vh: Any) -> tuple[Any, Any, Any]:
    u, s, vh = _svd_turned(xp, u, s, vh)
    s, u = where_finite(xp, finite, s, u)
    return u, s, xp.where(finite[..., None, None], vh, nan_of(vh.dtype))


def _svd_of_nothing(xp: Any, x: Any, full_matrices: bool) -> tuple[Any, Any, Any]:
    rows, columns = x.shape[-2:]
    short, batch = min(rows, columns), x.shape[:-2]
    left, right = (rows, columns) if full_matrices else (short, short)
    u, vh = (xp.broadcast_to(xp.eye(*shape, dtype=x.dtype), (*batch, *shape))
             for shape in ((rows, left), (right, columns)))
    return u, xp.zeros((*batch, short), x.real.dtype), vh


def _svd_turned(xp: Any, u: Any, s: Any, vh: Any) -> tuple[Any, Any, Any]:
    """Apply `turned` to left singular vectors together with their right partners; extra vectors are turned alone."""
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
    short = shorter_side(rows, columns)
    left, right = (rows, columns) if full_matrices else (short, short)
    batch = x.shape[:-2]
    return (
        make_spec((*batch, rows, left), x.dtype),
        make_spec((*batch, short), real_dtype(x.dtype)),
        make_spec((*batch, right, columns), x.dtype),
    )


_svd_rule = RuleFromLowering("svd")


def _svd_vjp(F: Any, g: Any, y: Any, x: Any, *, full_matrices: bool) -> Any:
    if full_matrices and (g[0] is not None or g[2] is not None):
        raise GradientError(
            "svd: the vectors of a full decomposition have no gradient: those added to a matrix that is not "
            "square are not determined", hint="Pass full_matrices=False."
        )
    if full_matrices:
        u, _, vh = F.svd(x, full_matrices=False)
        return (F.matmul(conjugated(F, u) * row(F, g[1]), conjugated(F, vh)),)
    (slope,) = _svd_rule(F, g, y, x, full_matrices=full_matrices)
    finite = F.all(F.isfinite(x), axis=(len(x.shape) - 2, len(x.shape) - 1), keepdims=True)
    return (F.where(finite, slope, nan_of(x.dtype)),)


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
    padded=each_matrix,
)
def svd(x: TensorLike, /, full_matrices: bool = True) -> SVDResult:
    """Compute singular value decompositions.

    Each left singular vector is turned so that its inner product with ``(cos 0, cos 1, cos 2, ...)`` is real and
    positive, and the right one with it. The vectors that `full_matrices` adds have no gradient.

    The vectors of repeated singular values are not unique. Their derivative is that of the spaces which they span:
    within them, where any rotation of both sides are singular vectors too, they do not turn together. So gradients are
    finite, and right for what depends on no such rotation to first order, such as the polar factor ``U Vh`` or a
    projection. The gradient of ``U f(S) Vh`` lacks ``f'`` between two vectors of one singular value. Values are
    equal here if they differ by no more than ``max(m, n)`` roundings of the largest. The vectors of those that are 0 do
    not turn against what no vector spans.

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
    return make_spec((*x.shape[:-2], shorter_side(*x.shape[-2:])), real_dtype(x.dtype))


def _svdvals_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros((*x.shape[:-2], min(x.shape[-2:])), x.real.dtype)
    values = lax.linalg.svd(x, full_matrices=False, compute_uv=False)
    return jnp.where(jnp.isfinite(x).all((-1, -2))[..., None], values, nan_of(values.dtype))


def _svdvals_kernel(x: Any) -> Any:
    if not x.size:
        return np.zeros((*x.shape[:-2], min(x.shape[-2:])), x.real.dtype)
    values = lapack.svdvals(x)
    return np.where(np.isfinite(x).all((-1, -2))[..., None], values, nan_of(values.dtype))


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
    padded=each_matrix,
)
def svdvals(x: TensorLike, /) -> Tensor:
    """Compute singular values.

    The gradients of repeated singular values depend on the choice of vectors; only their sum is unique. At 0 the
    gradient is a subgradient. Second-order gradients take repeated ones and 0 as `svd` does.

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


# -- pseudo-inverses ----------------------------------------------------------------------------------------------


def _pinv_with(xp: Any, x: Any, rtol: Any, svd: Any) -> Any:
    if not x.size:
        batch = xp.broadcast_shapes(x.shape[:-2], rtol.shape)
        return xp.zeros((*batch, x.shape[-1], x.shape[-2]), x.dtype)
    u, s, vh = svd(x, full_matrices=False)
    large = (s > rtol[..., None] * s[..., :1]) | xp.isnan(s)
    one = np.ones((), s.dtype)
    inverse = xp.where(large, one / xp.where(large, s, one), np.zeros((), s.dtype))
    return xp.matmul(vh.conj().swapaxes(-1, -2) * inverse[..., None, :], u.conj().swapaxes(-1, -2))


def _pinv_kernel(x: Any, rtol: Any) -> Any:
    x, finite = finite_matrices(np, x)
    inverse = _pinv_with(np, x, rtol, lapack.svd)
    return inverse if finite.all() else np.where(finite[..., None, None], inverse, x.dtype.type(np.nan))


def _pinv_lower(x: Any, rtol: Any) -> Any:
    x, finite = finite_matrices(jnp, x)
    inverse = _pinv_with(jnp, x, rtol, jnp.linalg.svd)
    return jnp.where(finite[..., None, None], inverse, x.dtype.type(np.nan))


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
    padded=each_matrix,
)
def pinv(x: TensorLike, /, *, rtol: TensorLike = None) -> Tensor:
    """Compute pseudo-inverses (Moore and Penrose).

    Args:
        x: ``(..., m, n)``, real or complex floats.
        rtol: singular values up to this fraction of the largest count as 0: a number, or one per matrix; if not given,
            ``max(m, n)`` times the dtype's machine epsilon. The gradient treats their number as constant.

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


__all__ = ["SVDResult", "pinv", "svd", "svdvals"]

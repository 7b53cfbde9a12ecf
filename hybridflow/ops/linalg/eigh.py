"""Eigenvalues of Hermitian matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import real_dtype
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    FLOATING,
    Tensor,
    TensorLike,
    TensorSpec,
    make_spec,
    require_kind,
)
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    conjugated,
    cubes,
    factorable,
    finite_matrices,
    gaussian,
    hermitian_part,
    is_square,
    nan_of,
    require_square,
    row,
    transposed,
    turned,
    where_finite,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix

# -- Hermitian eigenvalues ----------------------------------------------------------------------------------------


class EighResult(NamedTuple):
    """Eigenvalues and eigenvectors.

    Attributes:
        eigenvalues: ``(..., n)``, real and ascending.
        eigenvectors: ``(..., n, n)``, one per column, orthonormal.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


@jax.custom_jvp
def _decomposed(x: Any) -> Any:
    """Return the eigenvectors and eigenvalues of Hermitian matrices."""
    return tuple(lax.linalg.eigh(x, symmetrize_input=False, sort_eigenvalues=True))


def _derivative(primals: Any, tangents: Any) -> Any:
    """Return the result and its derivative.

    The vectors of eigenvalues that differ by no more than rounding turn out of the space that they span, but not within
    it: there, any rotation of them are eigenvectors too.
    """
    vectors, values = _decomposed(*primals)
    rows = jnp.matmul(jnp.conj(vectors).mT, tangents[0], precision="highest")
    change = jnp.matmul(rows, vectors, precision="highest")
    gap = values[..., None, :] - values[..., :, None]
    rounding = values.shape[-1] * np.finfo(values.dtype).eps * jnp.max(jnp.abs(values), -1)
    alike = jnp.abs(gap) <= rounding[..., None, None]
    turn = jnp.where(alike, 0, change / jnp.where(alike, 1, gap))
    moved = jnp.matmul(vectors, turn, precision="highest")
    return (vectors, values), (moved, jnp.diagonal(change, axis1=-2, axis2=-1).real)


_decomposed.defjvp(_derivative)


def _eigh_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros(x.shape[:-1], x.real.dtype), x
    finite = jnp.isfinite(x).all((-1, -2))
    vectors, values = _decomposed(hermitian_part(x))
    return where_finite(jnp, finite, values, turned(jnp, vectors))


def _eigh_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    if not x.size:
        return np.zeros(x.shape[:-1], x.real.dtype), x
    x, finite = finite_matrices(np, x)
    values, vectors = lapack.eigh(hermitian_part(x))
    return where_finite(np, finite, values, turned(np, vectors))


def _eigh_infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    require_kind("eigh", FLOATING, x)
    require_square("eigh", x)
    return make_spec(x.shape[:-1], real_dtype(x.dtype)), make_spec(x.shape, x.dtype)


def _hermitian(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw Hermitian matrices with eigenvalues of alternating signs that are at least 1 apart."""
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
    vjp=RuleFromLowering("eigh"),
    saves=Saves(x="all"),
    flops=cubes(9),
    samples=_eigh_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def eigh(x: TensorLike, /) -> EighResult:
    """Compute eigenvalues and eigenvectors of Hermitian matrices.

    It decomposes the Hermitian part ``(x + x^H) / 2``, so the gradient is Hermitian. Each eigenvector is
    turned so that its inner product with ``(cos 0, cos 1, cos 2, ...)`` is real and positive.

    The eigenvectors of a repeated eigenvalue are not unique. Their derivative is that of the space which they span:
    within it, where any rotation of them are eigenvectors too, they do not turn. So gradients are finite, and right for
    what depends on no such rotation to first order, such as a projection on several eigenvectors. The gradient of
    ``V f(w) V^H`` lacks ``f'`` between two vectors of one eigenvalue. Eigenvalues are equal here if they differ by no
    more than ``n`` roundings of the largest.

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
    values = np.linalg.eigvalsh(hermitian_part(np.where(finite[..., None, None], x, x.dtype.type(0))))
    return np.where(finite[..., None], values, nan_of(values.dtype))


def _eigvalsh_lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros(x.shape[:-1], x.real.dtype)
    values = lax.linalg.eigh(hermitian_part(x), symmetrize_input=False)[1]
    return jnp.where(jnp.isfinite(x).all((-1, -2))[..., None], values, nan_of(values.dtype))


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
    padded=each_matrix,
)
def eigvalsh(x: TensorLike, /) -> Tensor:
    """Compute the eigenvalues of Hermitian matrices.

    It decomposes the Hermitian part ``(x + x^H) / 2``. The gradients of repeated eigenvalues depend on the choice of
    eigenvectors; only their sum is unique. Second-order gradients take repeated ones as `eigh` does.

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


__all__ = ["EighResult", "eigh", "eigvalsh"]

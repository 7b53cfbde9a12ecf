"""Eigenvalues of matrices that need not be Hermitian."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import complex_dtype
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import FLOATING, Tensor, TensorLike, TensorSpec, make_spec, require_kind
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    cubes,
    factorable,
    finite_matrices,
    gaussian,
    is_square,
    nan_of,
    require_square,
    row,
    transposed,
    turned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix

_DIRECTION = np.array([np.cos(1), np.sin(1)])
"""Eigenvalues are ordered along this direction, in which different numbers with algebraic parts never tie."""


class EigResult(NamedTuple):
    """Eigenvalues and eigenvectors.

    Attributes:
        eigenvalues: ``(..., n)``, complex.
        eigenvectors: ``(..., n, n)``, complex, one per column, of length 1.
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


def _order(xp: Any, values: Any) -> Any:
    """Return the indices that sort eigenvalues by their projection on `_DIRECTION`.

    The products are made of magnitudes and get their signs afterwards. Otherwise XLA might fuse a product with the sum
    into one operation, which rounds differently and changes the order of eigenvalues that nearly tie.
    """
    along = _DIRECTION.astype(values.real.dtype)
    parts = [(xp.abs(part * factor), part < 0) for part, factor in zip((values.real, values.imag), along, strict=True)]
    first, second = (xp.where(negative, -size, size) for size, negative in parts)
    return xp.argsort(first + second, axis=-1, stable=True)


def _eig_with(xp: Any, x: Any, decompose: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
    dtype = complex_dtype(x.dtype)
    if not x.size:
        return xp.zeros(x.shape[:-1], dtype), xp.zeros(x.shape, dtype)
    x, finite = finite_matrices(xp, x)
    values, vectors = decompose(x)
    order = _order(xp, values)
    values = xp.take_along_axis(values, order, axis=-1)
    vectors = xp.take_along_axis(vectors, order[..., None, :], axis=-1)
    length = xp.sqrt(xp.sum(xp.square(vectors.real) + xp.square(vectors.imag), axis=-2, keepdims=True))
    nan = nan_of(dtype)
    vectors = turned(xp, vectors / length)
    return xp.where(finite[..., None], values, nan), xp.where(finite[..., None, None], vectors, nan)


def _eig_lower(x: Any) -> Any:
    options = {"compute_left_eigenvectors": False, "enable_eigvec_derivs": True}
    return _eig_with(jnp, x, partial(cast(Any, lax.linalg.eig), **options))


def _eig_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _eig_with(np, x, partial(lapack.eig, vectors=True))


def _eigvals_with(xp: Any, x: Any, decompose: Callable[[Any], Any]) -> Any:
    dtype = complex_dtype(x.dtype)
    if not x.size:
        return xp.zeros(x.shape[:-1], dtype)
    x, finite = finite_matrices(xp, x)
    values = decompose(x)[0]
    return xp.where(finite[..., None], xp.take_along_axis(values, _order(xp, values), axis=-1), nan_of(dtype))


def _eigvals_lower(x: Any) -> Any:
    options = {"compute_left_eigenvectors": False, "compute_right_eigenvectors": False, "enable_eigvec_derivs": True}
    return _eigvals_with(jnp, x, partial(cast(Any, lax.linalg.eig), **options))


def _eigvals_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _eigvals_with(np, x, partial(lapack.eig, vectors=False))


def _eig_infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    require_kind("eig", FLOATING, x)
    require_square("eig", x)
    dtype = complex_dtype(x.dtype)
    return make_spec(x.shape[:-1], dtype), make_spec(x.shape, dtype)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((np.array([[1.0, -2.0, 0.5], [1.5, 1.2, 0.0], [0.3, 0.2, -3.0]], np.float32),))
    yield Sample((np.diag([1.0, 3.0]) + 0.4 * gaussian(rng, 2, 2, 2, dtype=np.complex128),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.diag([1.0, 2.0]), np.full((2, 2), np.nan)]),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_eig_kernel),
    lower=_eig_lower,
    infer=_eig_infer,
    vjp=RuleFromLowering("eig"),
    saves=Saves(x="all"),
    flops=cubes(25),
    samples=_samples,
    traits=("full_precision",),
    ulp=128,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def eig(x: TensorLike, /) -> EigResult:
    """Compute eigenvalues and eigenvectors of square matrices.

    The eigenvalues are ordered by ``cos(1) Re + sin(1) Im``, which ties only for numbers with a transcendental part.
    Each eigenvector has length 1 and its phase is chosen as in `eigh`. The eigenvectors of a repeated eigenvalue are
    not unique (there may be fewer than its multiplicity), and the gradient is NaN there. Arrays on a GPU are moved to
    the host, because jax computes this on CPUs only.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        An `EigResult`, complex; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.eig([[0.0, -1.0], [1.0, 0.0]]).eigenvalues
        Tensor([0.-1.j, 0.+1.j], dtype=complex64)

    Reference:
        Gradient: M. B. Giles 2008, section 3.1, and C. Boeddeker et al., "On the computation of complex-valued
        gradients with application to statistically optimum beamforming", 2017. ``25 n**3`` FLOPs: G. H. Golub and
        C. F. Van Loan, Matrix Computations, section 7.5.
    """
    return EigResult(*bind(eig.op, factorable("eig", x)))


def _eigvals_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    _, vectors = F.eig(x)
    gradient = F.solve(transposed(F, vectors), transposed(F, vectors * row(F, g)))
    return (gradient if x.dtype.kind == "c" else F.astype(gradient, dtype=x.dtype),)


@op(
    kernel=lapack.or_lowering(_eigvals_kernel),
    lower=_eigvals_lower,
    infer=lambda x: _eig_infer(x)[0],
    vjp=_eigvals_vjp,
    saves=Saves(x=(0,)),
    flops=cubes(10),
    samples=_samples,
    traits=("full_precision",),
    ulp=128,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def eigvals(x: TensorLike, /) -> Tensor:
    """Compute eigenvalues of square matrices.

    They are ordered by ``cos(1) Re + sin(1) Im``. The gradient needs a matrix with as many eigenvectors as eigenvalues;
    second-order gradients need distinct eigenvalues. Arrays on a GPU are moved to the host, because jax computes this
    on CPUs only.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        ``(..., n)``, complex; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.eigvals([[0.0, -1.0], [1.0, 0.0]])
        Tensor([0.-1.j, 0.+1.j], dtype=complex64)

    Reference:
        Gradient: M. B. Giles 2008, section 3.1. ``10 n**3`` FLOPs: G. H. Golub and C. F. Van Loan, Matrix
        Computations, section 7.5.
    """
    return bind(eigvals.op, factorable("eigvals", x))


__all__ = ["EigResult", "eig", "eigvals"]

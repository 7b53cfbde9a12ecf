"""Systems of equations, inverses and determinants."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import real_dtype
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import FLOATING, Tensor, TensorLike, TensorSpec, make_spec, require_kind
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    conjugated,
    cubes,
    factorable,
    gaussian,
    is_square,
    lower_solve,
    require_square,
    solved,
    square_infer,
    system_gradients,
    system_infer,
    transposed,
    well_conditioned,
    with_axes,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix, systems

# -- solving ------------------------------------------------------------------------------------------------------


def _solve_kernel(a: Any, b: Any) -> Any:
    if not is_square(a):
        raise ValueError
    right = b[:, None] if b.ndim == 1 else b
    if right.shape[-2] != a.shape[-1]:
        raise ValueError
    solution = solved(np, a, right, lapack.lu, partial(lapack.solve_triangular, transpose=False))
    return solution[..., 0] if b.ndim == 1 else solution


def _solve_lower(a: Any, b: Any) -> Any:
    if b.ndim > 1:
        return lower_solve(a, b)
    solution = lower_solve(a, lax.expand_dims(b, (1,)))
    return lax.squeeze(solution, (solution.ndim - 1,))


def _solve_vjp(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    return system_gradients(F, g, y, a, b, lambda g: F.solve(transposed(F, a), g))


def _solve_samples(rng: np.random.Generator) -> Any:
    wide = np.complex128
    yield Sample((well_conditioned(rng, 3, 3), gaussian(rng, 3, 2)))
    yield Sample((well_conditioned(rng, 2, 1, 3, 3), gaussian(rng, 2, 3, 1)))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=wide), gaussian(rng, 2, dtype=wide)))
    yield Sample((gaussian(rng, 2, 0, 0), gaussian(rng, 0, 2)), gradient=False)
    yield Sample((np.stack([np.ones((2, 2)), np.eye(2)]).astype(np.complex64), gaussian(rng, 2)), gradient=False)
    yield Bad((gaussian(rng, 3, 2), gaussian(rng, 3)), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 3, 3), gaussian(rng, 2)), error=ShapeError, text="3 equations, but a right-hand side")
    half = gaussian(rng, 3, 3, dtype="float16")
    yield Bad((half, half), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.flushed(_solve_kernel),
    lower=_solve_lower,
    infer=lambda a, b: system_infer("solve", a, b),
    vjp=_solve_vjp,
    saves=Saves(x=(0,), y=True),
    flops=lambda y, a, b: 2 * a.size * a.shape[-1] // 3 + 2 * y.size * a.shape[-1],
    samples=_solve_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
    padded=systems,
)
def solve(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Solve systems of equations ``x1 x = x2``.

    A matrix that Gaussian elimination with pivoting finds exactly singular gives NaN, eagerly and compiled; the
    others of a stack are not affected.

    Args:
        x1: ``(..., n, n)``, real or complex floats.
        x2: ``(n,)``, one right-hand side, or ``(..., n, k)``, `k` of them.

    Returns:
        The solution, of the shape of `x2` with the leading axes broadcast.

    Raises:
        ShapeError: a matrix that is not square, or different numbers of rows.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.solve([[2.0, 0.0], [1.0, 4.0]], [2.0, 9.0])
        Tensor([1., 2.], dtype=float32)

    Reference:
        Gradient: M. B. Giles, "Collected matrix derivative results for forward and reverse mode algorithmic
        differentiation", 2008, section 2.3.1. ``2/3 n**3 + 2 n**2 k`` FLOPs: G. H. Golub and C. F. Van Loan,
        Matrix Computations, section 3.4.
    """
    return bind(solve.op, factorable("solve", x1, x2))


def _inv_kernel(x: Any) -> Any:
    return _solve_kernel(x, np.eye(x.shape[-1], dtype=x.dtype))


def _inv_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    other = transposed(F, y)
    return (-F.matmul(other, F.matmul(g, other)),)


def _inv_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 3),))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=np.complex128),))
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.zeros((2, 2)), np.eye(2)]).astype(np.float32),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.flushed(_inv_kernel),
    lower=lambda x: lower_solve(x, jnp.eye(x.shape[-1], dtype=x.dtype)),
    infer=square_infer("inv"),
    vjp=_inv_vjp,
    saves=Saves(y=True),
    flops=cubes(2),
    samples=_inv_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def inv(x: TensorLike, /) -> Tensor:
    """Invert matrices.

    A matrix that Gaussian elimination with pivoting finds exactly singular gives NaN, eagerly and compiled; the
    others of a stack are not affected. To solve a system, `solve` is faster and more accurate.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        The inverses.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
        Tensor([[0.5 , 0.  ],
                [0.  , 0.25]], dtype=float32)

    Reference:
        Gradient ``-y^T g y^T``: M. B. Giles 2008, section 2.2.3. ``2 n**3`` FLOPs: G. H. Golub and C. F. Van Loan,
        Matrix Computations, section 3.4.
    """
    return bind(inv.op, factorable("inv", x))


# -- determinants -------------------------------------------------------------------------------------------------


def _times_parity(xp: Any, x: Any, swaps: Any) -> Any:
    """Negate products of pivots where the number of row exchanges is odd; zeros stay positive."""
    count = xp.sum(swaps != np.arange(swaps.shape[-1], dtype=swaps.dtype), axis=-1, dtype=np.int32)
    return xp.where(x == 0, np.zeros((), x.dtype), x * (1 - 2 * (count % 2)).astype(x.dtype))


def _det_with(xp: Any, x: Any, lu: Any) -> Any:
    if not x.shape[-1]:
        return xp.ones(x.shape[:-2], x.dtype)  # the empty product; LAPACK prints a complaint
    factors, swaps, _ = lu(x)
    diagonal = xp.diagonal(factors, axis1=-2, axis2=-1)
    # If the product of the other pivots overflowed, a zero times infinity would give NaN.
    safe = xp.where(xp.any(diagonal == 0, axis=-1, keepdims=True), xp.sign(diagonal), diagonal)
    return _times_parity(xp, xp.prod(safe, axis=-1), swaps)


def _det_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _det_with(np, x, lapack.lu)


def _det_infer(x: TensorSpec) -> TensorSpec:
    require_kind("det", FLOATING, x)
    require_square("det", x)
    return make_spec(x.shape[:-2], x.dtype)


def _det_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 3),))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=np.complex128),))
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.ones((2, 2)), np.full((2, 2), np.nan)]).astype(np.float32),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.flushed(_det_kernel),
    lower=lambda x: _det_with(jnp, x, lax.linalg.lu),
    infer=_det_infer,
    vjp=lambda F, g, y, x: (with_axes(F, g, 2) * transposed(F, F.adjugate(x)),),
    saves=Saves(x=(0,)),
    flops=cubes(2 / 3),
    samples=_det_samples,
    traits=("full_precision",),
    ulp=64,
    onnx="Det",
    padded=each_matrix,
)
def det(x: TensorLike, /) -> Tensor:
    """Compute determinants.

    If they may overflow, use `slogdet`. The gradient is the transposed `adjugate`, which is also right at singular
    matrices, and so are derivatives of any order.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        ``(...)``, of the dtype of `x`.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.det([[2.0, 0.0], [1.0, 4.0]])
        Tensor(8., dtype=float32)

    Reference:
        Gradient: M. B. Giles 2008, section 2.2.4. ``2/3 n**3`` FLOPs: G. H. Golub and C. F. Van Loan, Matrix
        Computations, section 3.4.
    """
    return bind(det.op, factorable("det", x))


class SlogdetResult(NamedTuple):
    """The determinant as ``sign * exp(logabsdet)``.

    Attributes:
        sign: ``(...)``, of the matrix's dtype: of absolute value 1, or 0 for a singular matrix.
        logabsdet: ``(...)``, real: the logarithm of the determinant's absolute value, ``-inf`` for a singular matrix.
    """

    sign: Tensor
    logabsdet: Tensor


def _slogdet_with(xp: Any, x: Any, lu: Any) -> Any:
    if not x.shape[-1]:
        return xp.ones(x.shape[:-2], x.dtype), xp.zeros(x.shape[:-2], real_dtype(x.dtype))
    factors, swaps, _ = lu(x)
    diagonal = xp.diagonal(factors, axis1=-2, axis2=-1)
    size = xp.abs(diagonal)
    if x.dtype.kind == "c":
        zero = size == 0
        units = xp.where(zero, np.zeros((), x.dtype), diagonal / xp.where(zero, np.ones((), size.dtype), size))
    else:
        units = xp.sign(diagonal)
    return _times_parity(xp, xp.prod(units, axis=-1), swaps), xp.sum(xp.log(size), axis=-1)


def _slogdet_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _slogdet_with(np, x, lapack.lu)


def _slogdet_infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    require_kind("slogdet", FLOATING, x)
    require_square("slogdet", x)
    return make_spec(x.shape[:-2], x.dtype), make_spec(x.shape[:-2], real_dtype(x.dtype))


def _slogdet_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    of_sign, of_log = g
    factor = of_log
    if x.dtype.kind == "c" and of_sign is not None:
        turned = of_sign * y[0]
        turn = (turned - conjugated(F, turned)) * 0.5
        factor = turn if of_log is None else turn + of_log
    if factor is None:
        return (None,)
    return (lambda: F.astype(with_axes(F, factor, 2) * transposed(F, F.inv(x)), dtype=x.dtype),)


@op(
    kernel=lapack.flushed(_slogdet_kernel),
    lower=lambda x: _slogdet_with(jnp, x, lax.linalg.lu),
    infer=_slogdet_infer,
    vjp=_slogdet_vjp,
    saves=Saves(x=(0,), y=True),
    flops=cubes(2 / 3),
    samples=_det_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def slogdet(x: TensorLike, /) -> SlogdetResult:
    """Compute determinants as sign and logarithm, which neither overflow nor underflow.

    The gradient of the logarithm is the transposed inverse: NaN at a singular matrix.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        A `SlogdetResult`.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> sign, logabsdet = hf.linalg.slogdet([[0.0, 1.0], [1.0, 0.0]])
        >>> float(sign), abs(float(logabsdet))
        (-1.0, 0.0)

    Reference:
        Gradient: M. B. Giles 2008, section 2.2.4.
    """
    return SlogdetResult(*bind(slogdet.op, factorable("slogdet", x)))


__all__ = ["SlogdetResult", "det", "inv", "slogdet", "solve"]

"""Triangular systems and the Cholesky factorisation."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    truth,
)
from hybridflow.ops.complex_parts import conj
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    adjoint,
    conjugated,
    cubes,
    factorable,
    gaussian,
    hermitian_part,
    is_square,
    lower_batch,
    lower_triangular,
    nan_of,
    positive_definite,
    square_infer,
    system_gradients,
    system_infer,
    transposed,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix, systems


def _triangular_kernel(a: Any, b: Any, *, lower: bool, transpose: bool, unit_diagonal: bool) -> Any:
    vector = b.ndim == 1
    right = b[:, None] if vector else b
    if not is_square(a) or a.shape[-1] != right.shape[-2]:
        raise ValueError
    batch = np.broadcast_shapes(a.shape[:-2], right.shape[:-2])
    left, right = (np.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, right))
    solution = lapack.solve_triangular(left, right, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)
    return solution[..., 0] if vector else solution


def _triangular_lower(a: Any, b: Any, *, lower: bool, transpose: bool, unit_diagonal: bool) -> Any:
    vector = b.ndim == 1
    left, right = lower_batch(a, lax.expand_dims(b, (1,)) if vector else b)
    if not right.size:
        return jnp.zeros(right.shape[:-1] if vector else right.shape, b.dtype)
    x = lower_triangular(left, right, lower=lower, transpose=transpose, unit_diagonal=unit_diagonal)
    return lax.squeeze(x, (x.ndim - 1,)) if vector else x


def _triangular_vjp(
    F: Any, g: Any, y: Any, a: Any, b: Any, *, lower: bool, transpose: bool, unit_diagonal: bool
) -> Any:
    def back(g: Any) -> Any:
        return F.solve_triangular(a, g, lower=lower, transpose=not transpose, unit_diagonal=unit_diagonal)

    of_matrix, of_right = system_gradients(F, g, y, a, b, back, transpose=transpose)

    def of_triangle() -> Any:
        gradient = of_matrix()
        offset = 1 if unit_diagonal else 0
        return F.tril(gradient, k=-offset) if lower else F.triu(gradient, k=offset)

    return of_triangle, of_right


def _triangular_samples(rng: np.random.Generator) -> Any:
    wide = np.complex128
    yield Sample((well_conditioned(rng, 3, 3), gaussian(rng, 3, 2)), {"lower": True})
    yield Sample((well_conditioned(rng, 2, 3, 3), gaussian(rng, 3)), {"transpose": True})
    yield Sample((well_conditioned(rng, 3, 3, dtype=wide), gaussian(rng, 3, dtype=wide)), {"unit_diagonal": True})
    yield Sample((gaussian(rng, 2, 0, 0), gaussian(rng, 2, 0, 1)), gradient=False)
    yield Bad((gaussian(rng, 3, 2), gaussian(rng, 3)), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 3, 3), gaussian(rng, 2)), error=ShapeError, text="3 equations, but a right-hand side")
    yield Bad((gaussian(rng, 3, 3), gaussian(rng)), error=ShapeError, text="has 0 dimensions")


@op(
    kernel=_triangular_kernel,
    lower=_triangular_lower,
    infer=lambda a, b, *, lower, transpose, unit_diagonal: system_infer("solve_triangular", a, b),
    vjp=_triangular_vjp,
    saves=Saves(x=(0,), y=True),
    flops=lambda y, a, b, **attrs: y.size * a.shape[-1],
    samples=_triangular_samples,
    traits=("full_precision",),
    ulp=32,
    onnx=DECOMPOSITION,
    padded=systems,
)
def solve_triangular(
    x1: TensorLike,
    x2: TensorLike,
    /,
    *,
    lower: bool = False,
    transpose: bool = False,
    unit_diagonal: bool = False,
) -> Tensor:
    """Solve systems of equations with a triangular matrix.

    A zero on the diagonal gives infinities and NaN. ``n**2`` FLOPs per right-hand side.

    Args:
        x1: ``(..., n, n)``, real or complex floats; the other triangle is not read.
        x2: ``(n,)``, one right-hand side, or ``(..., n, k)``, `k` of them.
        lower: whether `x1` is lower triangular.
        transpose: whether to solve with the transposed matrix (not conjugated).
        unit_diagonal: whether to take the diagonal as ones without reading it.

    Returns:
        The solution, of the shape of `x2` with the leading axes broadcast.

    Raises:
        ShapeError: a matrix that is not square, or different numbers of rows.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.solve_triangular([[2.0, 0.0], [1.0, 4.0]], [2.0, 9.0], lower=True)
        Tensor([1., 2.], dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, section 3.1.
    """
    lower = truth("solve_triangular", "lower", lower)
    transpose = truth("solve_triangular", "transpose", transpose)
    unit_diagonal = truth("solve_triangular", "unit_diagonal", unit_diagonal)
    tensors = factorable("solve_triangular", x1, x2)
    return bind(
        solve_triangular.op, tensors,
        {"lower": lower, "transpose": transpose, "unit_diagonal": unit_diagonal},
    )


# -- Cholesky -----------------------------------------------------------------------------------------------------


def _cholesky_kernel(x: Any, *, upper: bool) -> Any:
    if not is_square(x):
        raise ValueError
    if not x.size:
        return x
    triangle = lapack.cholesky(hermitian_part(x))
    failed = np.isnan(np.diagonal(triangle, axis1=-2, axis2=-1)).any(-1)
    if failed.any():
        triangle[failed] = np.tril(np.full(x.shape[-2:], nan_of(x.dtype)))
    return conjugated(np, triangle.swapaxes(-1, -2)) if upper else triangle


def _cholesky_lower(x: Any, *, upper: bool) -> Any:
    if not x.size:
        return x
    factor = lax.linalg.cholesky(hermitian_part(x), symmetrize_input=False)
    failed = jnp.isnan(jnp.diagonal(factor, axis1=-2, axis2=-1)).any(-1)[..., None, None]
    factor = jnp.where(failed & jnp.tri(x.shape[-1], dtype=bool), nan_of(x.dtype), factor)
    return jnp.conj(factor.swapaxes(-1, -2)) if upper else factor


def _cholesky_vjp(F: Any, g: Any, y: Any, x: Any, *, upper: bool) -> Any:
    factor, g = (adjoint(F, y), adjoint(F, g)) if upper else (y, g)

    def solve(one: Any, b: Any) -> Any:
        return F.solve_triangular(one, b, lower=True, transpose=True, unit_diagonal=False)

    inner = F.matmul(transposed(F, factor), g)
    middle = (F.tril(inner, k=0) + adjoint(F, F.tril(inner, k=-1))) * 0.5
    if x.dtype.kind == "c":
        middle = (middle + adjoint(F, middle)) * 0.5
    left = solve(factor, middle)
    # The system's matrix is the transpose of a Hermitian matrix, and so its conjugate.
    return (conjugated(F, solve(conjugated(F, factor), transposed(F, left))),)


def _cholesky_samples(rng: np.random.Generator) -> Any:
    yield Sample((positive_definite(rng, 3, 3),))
    yield Sample((positive_definite(rng, 2, 2, 2, dtype=np.complex128),), {"upper": True})
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    negative = np.stack([-np.eye(2), np.eye(2), np.full((2, 2), np.nan)])
    yield Sample((negative.astype(np.float32),), gradient=False)
    yield Sample((negative.astype(np.complex64),), {"upper": True}, gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2).astype(np.float16),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.flushed(_cholesky_kernel),
    lower=_cholesky_lower,
    infer=square_infer("cholesky"),
    vjp=_cholesky_vjp,
    saves=Saves(y=True),
    flops=cubes(1 / 3),
    samples=_cholesky_samples,
    traits=("full_precision",),
    ulp=32,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def cholesky(x: TensorLike, /, *, upper: bool = False) -> Tensor:
    """Factor Hermitian positive definite matrices: ``x = L L^H``.

    It factors the Hermitian part ``(x + x^H) / 2``, so the gradient is Hermitian. A matrix that is not
    positive definite gives NaN in its triangle, eagerly and compiled; the others of a stack are not affected.

    Args:
        x: ``(..., n, n)``, real or complex floats.
        upper: whether to return ``U = L^H`` instead.

    Returns:
        The triangular factor; its diagonal is real and positive.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
        Tensor([[2., 0.],
                [1., 2.]], dtype=float32)

    Reference:
        I. Murray, "Differentiation of the Cholesky decomposition", 2016; ``n**3 / 3`` FLOPs: G. H. Golub and
        C. F. Van Loan, Matrix Computations, section 4.2.
    """
    upper = truth("cholesky", "upper", upper)
    return bind(cholesky.op, factorable("cholesky", x), {"upper": upper})


def cholesky_solve(factor: TensorLike, x2: TensorLike, /, *, upper: bool = False) -> Tensor:
    """Solve ``a x = b`` with the Cholesky factor of ``a``.

    Args:
        factor: ``(..., n, n)``, what `cholesky` returned.
        x2: ``(n,)`` or ``(..., n, k)``, the right-hand sides.
        upper: whether the factor is the upper one.

    Returns:
        The solution, of the shape of `x2` with the leading axes broadcast.

    Raises:
        ShapeError: a factor that is not square, or different numbers of rows.

    Example:
        >>> import hybridflow as hf
        >>> factor = hf.linalg.cholesky([[4.0, 2.0], [2.0, 5.0]])
        >>> hf.linalg.cholesky_solve(factor, [6.0, 7.0])
        Tensor([1., 1.], dtype=float32)
    """
    upper = truth("cholesky_solve", "upper", upper)
    triangle, right = factorable("cholesky_solve", factor, x2)
    vector = right.ndim == 1
    if vector:
        right = right[:, None]
    other = conj(triangle)
    first, second = (other, triangle) if upper else (triangle, other)
    half = solve_triangular(first, right, lower=not upper, transpose=upper)
    solution = solve_triangular(second, half, lower=not upper, transpose=not upper)
    return solution[..., 0] if vector else solution


__all__ = ["cholesky", "cholesky_solve", "solve_triangular"]

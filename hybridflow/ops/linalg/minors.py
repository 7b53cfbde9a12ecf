"""Derivatives of the determinant of any order, which are finite at singular matrices too, and the adjugate."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec
from hybridflow.ops.linalg.common import (
    cubes,
    factorable,
    finite_matrices,
    gaussian,
    is_square,
    nan_of,
    square_infer,
    transposed,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix


def _products_of_others(xp: Any, s: Any, count: int) -> Any:
    """Return, for `count` positions, the product of the elements of `s` at all others; 0 where a position is repeated.

    Args:
        xp: NumPy or jax.numpy.
        s: ``(..., n)``.
        count: how many positions.

    Returns:
        ``(..., n, n, ...)`` with an axis of size n for each position.
    """
    size = s.shape[-1]
    same = np.eye(size, dtype=bool)
    one = np.ones((), s.dtype)
    distinct = np.ones((), bool)
    for first in range(count - 1):
        s = xp.where(same, one, s[..., None, :])
        for second in range(first + 1, count):
            axes = [size if axis in (first, second) else 1 for axis in range(count)]
            distinct = distinct & ~same.reshape(axes)
    ones = xp.ones((*s.shape[:-1], 1), s.dtype)
    before = xp.concatenate([ones, xp.cumprod(s[..., :-1], -1)], -1)
    after = xp.concatenate([xp.cumprod(s[..., :0:-1], -1)[..., ::-1], ones], -1)
    return xp.where(distinct, before * after, np.zeros((), s.dtype))


def _parity(order: tuple[int, ...]) -> int:
    return (-1) ** sum(a > b for a, b in itertools.combinations(order, 2))


def _derivative_with(xp: Any, x: Any, *directions: Any) -> Any:
    """Return the gradient of the determinant's derivative along directions, with NumPy or jax.

    With ``x = u s vh``, the determinant of ``x + e`` is that of `s` plus ``u^H e vh^H``, up to the sign. Its terms of
    degree m are the principal minors of m rows of the latter, each times the product of the other elements of `s`.
    """
    if not x.size:
        return x
    u, s, vh = xp.linalg.svd(x, full_matrices=True)
    turned = [xp.matmul(xp.matmul(u.conj().swapaxes(-1, -2), e), vh.conj().swapaxes(-1, -2)) for e in directions]
    count = len(directions) + 1
    others = _products_of_others(xp, s, count).astype(x.dtype)
    rows = "abcdefgh"[:count]
    total = xp.zeros(x.shape, x.dtype)
    for order in itertools.permutations(range(count)):
        columns = [rows[place] for place in order]
        factors = [f"...{row}{column}" for row, column in zip(rows[:-1], columns[:-1], strict=True)]
        diagonal = columns[-1] == rows[-1]
        result = "..." + (rows[-1] if diagonal else rows[-1] + columns[-1])
        term = xp.einsum(",".join([f"...{rows}", *factors]) + "->" + result, others, *turned)
        if diagonal:
            term = term[..., None] * np.eye(x.shape[-1], dtype=x.dtype)
        total = total + _parity(order) * term
    sign = xp.linalg.det(xp.matmul(u, vh))[..., None, None]
    return (xp.matmul(xp.matmul(u.conj(), total), vh.conj()) * sign).astype(x.dtype)


def _derivative_kernel(x: Any, *directions: Any) -> Any:
    if not is_square(x) or any(e.shape != x.shape for e in directions):
        raise ValueError
    if np.isfinite(x).all():
        return _derivative_with(np, x, *directions)
    x, finite = finite_matrices(np, x)
    return np.where(finite[..., None, None], _derivative_with(np, x, *directions), nan_of(x.dtype))


def _derivative_lower(x: Any, *directions: Any) -> Any:
    x, finite = finite_matrices(jnp, x)
    return jnp.where(finite[..., None, None], _derivative_with(jnp, x, *directions), nan_of(x.dtype))


def _derivative_infer(x: TensorSpec, *directions: TensorSpec) -> TensorSpec:
    for e in directions:
        if e.shape != x.shape:
            raise ShapeError("det_derivative: a direction has another shape", got=f"{x} and {e}",
                             hint="Directions are matrices as x is.")
    return square_infer("det_derivative")(x)


def _derivative_vjp(F: Any, g: Any, y: Any, x: Any, *directions: Any) -> Any:
    """Derivatives along several directions do not hang on their order, so each gradient is such a derivative again."""
    del y
    without = [(*directions[:i], *directions[i + 1 :]) for i in range(len(directions))]
    return (
        lambda: F.det_derivative(x, *directions, g),
        *[lambda others=others: F.det_derivative(x, *others, g) for others in without],
    )


def _derivative_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 3), gaussian(rng, 3, 3)))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=np.complex128), gaussian(rng, 2, 2, 2, dtype=np.complex128)))
    yield Sample((np.ones((3, 3), np.float32), gaussian(rng, 3, 3), gaussian(rng, 3, 3)), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 0), gaussian(rng, 2, 0, 0)), gradient=False)
    yield Sample((np.full((2, 2), np.nan, np.float32), gaussian(rng, 2, 2)), gradient=False)
    yield Bad((gaussian(rng, 2, 2), gaussian(rng, 3, 3)), error=ShapeError, text="a direction has another shape")


@op(
    kernel=_derivative_kernel,
    lower=_derivative_lower,
    infer=_derivative_infer,
    vjp=_derivative_vjp,
    saves=Saves(x="all"),
    flops=cubes(34),
    samples=_derivative_samples,
    traits=("full_precision", "inner"),
    ulp=256,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def det_derivative(x: TensorLike, /, *directions: TensorLike) -> Tensor:
    """Compute the gradient of the derivative of `det` along directions: for two, that of its second derivative.

    The matrices may be singular. For m directions it takes ``n**(m + 1)`` elements of memory for each matrix.

    Args:
        x: ``(..., n, n)``, real or complex floats.
        directions: of the same shape and dtype.

    Returns:
        The same shape: the sum of its products with a further direction is the derivative along that one too.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> x, e = hf.zeros((2, 2)), hf.eye(2)
        >>> hf.round(hf.grad(lambda x: hf.sum(hf.grad(hf.linalg.det)(x) * e))(x))
        Tensor([[1., 0.],
                [0., 1.]], dtype=float32)
    """
    given = [factorable("det_derivative", one) for one in (x, *directions)]
    return bind(det_derivative.op, tuple([tensor for one in given for tensor in one]))


# -- the adjugate -------------------------------------------------------------------------------------------------


def _adjugate_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    del y
    return (F.det_derivative(x, transposed(F, g)),)


def _adjugate_samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 3),))
    yield Sample((well_conditioned(rng, 2, 2, 2, dtype=np.complex128),))
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.zeros((2, 2)), np.eye(2)]).astype(np.float32),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lambda x: _derivative_kernel(x).swapaxes(-1, -2),
    lower=lambda x: _derivative_lower(x).swapaxes(-1, -2),
    infer=square_infer("adjugate"),
    vjp=_adjugate_vjp,
    saves=Saves(x=(0,)),
    flops=cubes(26),
    samples=_adjugate_samples,
    traits=("full_precision",),
    ulp=256,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def adjugate(x: TensorLike, /) -> Tensor:
    """Compute the transposed matrix of cofactors. It equals ``det(x) inv(x)``, but also exists for singular matrices.

    Its transpose is the gradient of `det`. At singular matrices it is finite, and so are its derivatives. If an
    element is not finite, the result is NaN.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        The adjugates.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.round(hf.linalg.adjugate([[1.0, 2.0], [2.0, 4.0]]) * 10) / 10
        Tensor([[ 4., -2.],
                [-2.,  1.]], dtype=float32)

    Reference:
        G. W. Stewart, "On the adjugate matrix", Linear Algebra and its Applications 283, 1998.
    """
    return bind(adjugate.op, factorable("adjugate", x))


__all__ = ["adjugate"]

"""The factors of Gaussian elimination."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import FLOATING, Tensor, TensorLike, TensorSpec, make_spec, require_kind
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    cubes,
    factorable,
    gaussian,
    require_matrix,
    shorter_side,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix


class LUResult(NamedTuple):
    """Factors: ``x = P L U``.

    Attributes:
        P: ``(..., m, m)``, a permutation of the rows, in the dtype of `x`.
        L: ``(..., m, k)``, lower triangular, with ones on the diagonal; ``k = min(m, n)``.
        U: ``(..., k, n)``, upper triangular.
    """

    P: Tensor
    L: Tensor
    U: Tensor


def _lu_with(xp: Any, x: Any, factor: Any) -> tuple[Any, Any, Any]:
    rows, columns = x.shape[-2:]
    short = min(rows, columns)
    unit = np.eye(rows, short, dtype=x.dtype)
    if not x.size:
        whole = xp.broadcast_to(np.eye(rows, dtype=x.dtype), (*x.shape[:-2], rows, rows))
        return whole, whole[..., :short], xp.zeros((*x.shape[:-2], short, columns), x.dtype)
    both, _, order = factor(x)
    permuted = (np.arange(rows)[:, None] == order[..., None, :]).astype(x.dtype)
    return permuted, xp.tril(both[..., :short], k=-1) + unit, xp.triu(both[..., :short, :])


def _kernel(x: Any) -> Any:
    if x.ndim < 2:
        raise ValueError
    return _lu_with(np, x, lapack.lu)


def _infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec, TensorSpec]:
    require_kind("lu", FLOATING, x)
    require_matrix("lu", x)
    rows, columns = x.shape[-2:]
    short = shorter_side(rows, columns)
    shapes = (rows, rows), (rows, short), (short, columns)
    p, lower, upper = [make_spec((*x.shape[:-2], *shape), x.dtype) for shape in shapes]
    return p, lower, upper


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((well_conditioned(rng, 3, 3),))
    yield Sample((well_conditioned(rng, 2, 2, 3),))
    yield Sample((well_conditioned(rng, 3, 2, dtype=np.complex128),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 3),), gradient=False)
    yield Sample((np.zeros((2, 2), np.float32),), gradient=False)
    yield Bad((gaussian(rng, 3),), error=ShapeError, text="needs a matrix, the operand has 1 dimensions")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_kernel),
    lower=lambda x: _lu_with(jnp, x, lax.linalg.lu),
    infer=_infer,
    vjp=RuleFromLowering("lu"),
    saves=Saves(x="all"),
    flops=cubes(2 / 3),
    samples=_samples,
    traits=("full_precision",),
    ulp=64,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def lu(x: TensorLike, /) -> LUResult:
    """Factor matrices into a permutation, a lower and an upper triangular matrix, by Gaussian elimination.

    The row with the largest element leads each step. The gradient is that for this order of rows; it needs full rank.
    To solve a system, `solve` is shorter.

    Args:
        x: ``(..., m, n)``, real or complex floats.

    Returns:
        An `LUResult`.

    Raises:
        ShapeError: fewer than two dimensions.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.lu([[1.0, 2.0], [2.0, 8.0]]).U
        Tensor([[ 2.,  8.],
                [ 0., -2.]], dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, section 3.4.
    """
    return LUResult(*bind(lu.op, factorable("lu", x)))


__all__ = ["LUResult", "lu"]

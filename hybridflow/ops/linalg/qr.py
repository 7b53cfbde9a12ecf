"""QR decomposition of matrices."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, DTypeError, GradientError, ShapeError
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
    cubes,
    factorable,
    gaussian,
    phases,
    require_matrix,
    shorter_side,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix

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
    """Change signs so that the diagonal of `R` is not negative, and extend `R` to all columns of `x`."""
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
    # Make the diagonal exactly real: an imaginary part left by rounding would get a gradient.
    return q, (xp.where(np.eye(*r.shape[-2:], dtype=bool), r.real.astype(r.dtype), r) if x.dtype.kind == "c" else r)


def _qr_infer(x: TensorSpec, *, complete: bool) -> tuple[TensorSpec, TensorSpec]:
    require_kind("qr", FLOATING, x)
    require_matrix("qr", x)
    rows, columns = x.shape[-2:]
    size = rows if complete else shorter_side(rows, columns)
    batch = x.shape[:-2]
    return make_spec((*batch, rows, size), x.dtype), make_spec((*batch, size, columns), x.dtype)


_qr_rule = RuleFromLowering("qr")


def _qr_vjp(F: Any, g: Any, y: Any, x: Any, *, complete: bool) -> Any:
    rows, columns = x.shape[-2:]
    if complete and rows > columns:
        raise GradientError(
            f"qr: the complete factors of {rows} by {columns} matrices have no gradient: the columns that are "
            "added are not determined", hint='Use mode="reduced".'
        )
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
    padded=each_matrix,
)
def qr(x: TensorLike, /, mode: str = "reduced") -> QRResult:
    """Factor matrices into one with orthonormal columns and an upper triangular one.

    The diagonal of `R` is real and not negative, which determines the factors of a matrix of full rank. The phases of
    the columns that mode ``"complete"`` adds to `Q` are chosen as in `svd`. The gradient needs full rank.

    Args:
        x: ``(..., m, n)``, real or complex floats.
        mode: ``"reduced"``: `Q` has ``k = min(m, n)`` columns; ``"complete"``: `Q` is square.

    Returns:
        A `QRResult`.

    Raises:
        ShapeError: fewer than two dimensions.
        ArgumentError: an unknown mode.
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
        raise ArgumentError(f"qr: mode={mode!r} is not one of {list(_MODES)}")
    (tensor,) = factorable("qr", x)
    require_matrix("qr", tensor.spec)
    return QRResult(*bind(qr.op, (tensor,), {"complete": mode == "complete"}))


__all__ = ["QRResult", "qr"]

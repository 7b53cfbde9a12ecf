"""The matrix exponential."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import expm as jax_expm

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, No, Sample, Saves, op, public_names
from hybridflow.ops.common import Tensor, TensorLike
from hybridflow.ops.linalg.common import cubes, factorable, gaussian, square_infer, transposed


def _lower(x: Any) -> Any:
    return jax_expm(x) if x.size else jnp.zeros_like(x)


def _vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    """Read the derivative off the exponential of ``[[x^T, g], [0, x^T]]``."""
    del y
    size = x.shape[-1]
    batch = tuple([(0, one, 1) for one in x.shape[:-2]])
    shape = (*x.shape[:-2], 2 * size, 2 * size)
    first, second = (0, size, 1), (size, size, 1)

    def block(value: Any, rows: Any, columns: Any) -> Any:
        return F.slice_scatter(value, shape=shape, index=(*batch, rows, columns))

    other = transposed(F, x)
    whole = block(other, first, first) + block(other, second, second) + block(g, first, second)
    return (F.getitem(F.expm(whole), index=(*batch, first, second)),)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((gaussian(rng, 3, 3),))
    yield Sample((gaussian(rng, 2, 2, 2, dtype=np.complex128),))
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=No("NumPy has no matrix exponential"),
    lower=_lower,
    infer=square_infer("expm"),
    vjp=_vjp,
    saves=Saves(x=(0,)),
    flops=cubes(26),
    samples=_samples,
    ulp=128,
)
def expm(x: TensorLike, /) -> Tensor:
    """Compute exponentials of matrices, by scaling, a Padé approximation and squaring.

    Matrices of norm above about ``5 * 2**16`` give NaN.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        The exponentials.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.expm([[0.0, 1.0], [0.0, 0.0]])
        Tensor([[1., 1.],
                [0., 1.]], dtype=float32)

    Reference:
        N. J. Higham, "The scaling and squaring method for the matrix exponential revisited", SIAM Journal on Matrix
        Analysis 26(4), 2005; derivative: N. J. Higham, Functions of Matrices, 2008, section 3.2.
    """
    return bind(expm.op, factorable("expm", x))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

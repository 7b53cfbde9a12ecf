"""The matrix exponential."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import Tensor, TensorLike
from hybridflow.ops.linalg.common import (
    block_gradient,
    cubes,
    factorable,
    gaussian,
    is_square,
    lower_solve,
    nan_of,
    square_infer,
)
from hybridflow.ops.linalg.systems import solve
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix

_SQUARINGS = 16
_LARGEST = 5.371920351148152
"""The largest norm for which the Padé approximation of order 13 is exact to float64's precision."""
_COEFFICIENTS = np.array(
    [64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000, 10559470521600,
     670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1], np.float64
) / 64764752532480000
"""The numerator's coefficients, from power 0 on; the denominator's have alternating signs."""


def _exponents(xp: Any, x: Any) -> Any:
    """Return how often matrices must be halved to make their norm small; at most `_SQUARINGS`."""
    norm = xp.max(xp.sum(xp.abs(x), axis=-2), axis=-1)
    small = np.asarray(_LARGEST * 2.0 ** np.arange(_SQUARINGS), norm.dtype)
    return xp.sum(norm[..., None] > small, axis=-1, dtype=np.int32)


def _scaled(x: Any, exponent: Any) -> Any:
    scales = np.ldexp(np.ones((), x.real.dtype), -np.arange(_SQUARINGS + 1))
    return x * (jnp.asarray(scales) if isinstance(x, jax.Array) else scales)[exponent][..., None, None]


def _pade(x: Any, one: Any, product: Any) -> tuple[Any, Any]:
    """Return denominator and numerator of the Padé approximation of the exponentials of matrices of small norm."""
    c = _COEFFICIENTS.astype(x.real.dtype)
    two = product(x, x)
    four = product(two, two)
    six = product(four, two)
    high = product(six, c[13] * six + c[11] * four + c[9] * two)
    odd = product(x, high + c[7] * six + c[5] * four + c[3] * two + c[1] * one)
    high = product(six, c[12] * six + c[10] * four + c[8] * two)
    even = high + c[6] * six + c[4] * four + c[2] * two + c[0] * one
    return even - odd, even + odd


def _product(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def _lower(x: Any) -> Any:
    if not x.size:
        return jnp.zeros_like(x)
    exponent = _exponents(jnp, lax.stop_gradient(x))

    def square(step: Any, y: Any) -> Any:
        wanted = step < exponent
        squared = partial(jnp.where, wanted[..., None, None])
        return lax.cond(jnp.any(wanted), lambda y: squared(_product(y, y), y), lambda y: y, y)

    start = lower_solve(*_pade(_scaled(x, exponent), jnp.eye(x.shape[-1], dtype=x.dtype), _product))
    power = lax.fori_loop(0, _SQUARINGS, square, start)
    return jnp.where((exponent == _SQUARINGS)[..., None, None], nan_of(x.dtype), power)


def _kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    if not x.size:
        return np.zeros_like(x)
    exponent = _exponents(np, x)
    power = cast(Any, solve.op.kernel)(*_pade(_scaled(x, exponent), np.eye(x.shape[-1], dtype=x.dtype), np.matmul))
    for step in range(int(exponent.max())):
        power = np.where((step < exponent)[..., None, None], np.matmul(power, power), power)
    return np.where((exponent == _SQUARINGS)[..., None, None], nan_of(x.dtype), power)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((gaussian(rng, 2, 2),))
    yield Sample((gaussian(rng, 2, 2, 2, dtype=np.complex128),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=_kernel,
    lower=_lower,
    infer=square_infer("expm"),
    vjp=block_gradient("expm"),
    saves=Saves(x=(0,)),
    flops=cubes(26),
    samples=_samples,
    traits=("full_precision",),
    ulp=128,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def expm(x: TensorLike, /) -> Tensor:
    """Compute exponentials of matrices, by scaling, a Padé approximation and squaring.

    Matrices with a column whose absolute values sum to more than about ``5 * 2**15`` give NaN.

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


__all__ = ["expm"]

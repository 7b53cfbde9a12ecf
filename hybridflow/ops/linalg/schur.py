"""The decomposition of Schur, and the square roots of matrices that it gives."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import complex_dtype
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, No, Sample, Saves, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, cast_to
from hybridflow.ops.linalg import lapack
from hybridflow.ops.linalg.common import (
    block_gradient,
    cubes,
    factorable,
    finite_matrices,
    gaussian,
    is_square,
    lower_triangular,
    nan_of,
    phases,
    positive_definite,
    square_infer,
    well_conditioned,
)
from hybridflow.ops.onnx import DECOMPOSITION
from hybridflow.ops.padding_matrices import each_matrix


class SchurResult(NamedTuple):
    """Factors: ``x = Z T Z^H``.

    Attributes:
        T: ``(..., n, n)``, upper triangular; if it is real, with blocks of 2 by 2 for pairs of complex eigenvalues.
        Z: ``(..., n, n)``, unitary.
    """

    T: Tensor
    Z: Tensor


def _schur_with(xp: Any, x: Any, decompose: Any) -> tuple[Any, Any]:
    if not x.size:
        return xp.zeros_like(x), xp.zeros_like(x)
    x, finite = finite_matrices(xp, x)
    triangle, vectors = decompose(x)
    turn = phases(xp, vectors)
    triangle = xp.conj(turn)[..., :, None] * triangle * turn[..., None, :]
    found = triangle, vectors * turn[..., None, :]
    t, z = [xp.where(finite[..., None, None], one, nan_of(x.dtype)) for one in found]
    return t, z


def _schur_infer(x: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    spec = square_infer("schur")(x)
    return spec, spec


def _schur_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _schur_with(np, x, lapack.schur)


def _schur_samples(rng: np.random.Generator) -> Any:
    yield Sample((np.array([[1.0, -2.0, 0.5], [1.5, 1.2, 0.0], [0.3, 0.2, -3.0]], np.float32),), gradient=False)
    yield Sample((gaussian(rng, 2, 2, 2),), {"output": "complex"}, gradient=False)
    yield Sample((gaussian(rng, 3, 3, dtype=np.complex128),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.diag([1.0, 2.0]), np.full((2, 2), np.nan)]),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2),), {"output": "r"}, error=ArgumentError, text="output='r' is not one of")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


_OUTPUTS = ("real", "complex")


@op(
    kernel=lapack.or_lowering(_schur_kernel),
    lower=lambda x: _schur_with(jnp, x, lax.linalg.schur),
    infer=_schur_infer,
    vjp=No("the factors are not unique; functions of matrices, such as sqrtm and expm, have gradients"),
    flops=cubes(25),
    samples=_schur_samples,
    traits=("full_precision",),
    ulp=128,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def schur(x: TensorLike, /, *, output: str = "real") -> SchurResult:
    """Factor matrices into unitary and triangular ones.

    The eigenvalues come in LAPACK's order, and the phases of the columns of `Z` are chosen as in `eigh`. There is no
    gradient. jax computes it on CPUs only.

    Args:
        x: ``(..., n, n)``, real or complex floats.
        output: ``"real"``: the factors of real matrices are real, and `T` has a block of 2 by 2 for each pair of
            complex eigenvalues. ``"complex"``: they are complex, and `T` is triangular.

    Returns:
        A `SchurResult`; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: a matrix that is not square.
        ArgumentError: another output.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.schur([[2.0, 1.0], [0.0, 3.0]]).T
        Tensor([[2., 1.],
                [0., 3.]], dtype=float32)

    Reference:
        ``25 n**3`` FLOPs: G. H. Golub and C. F. Van Loan, Matrix Computations, section 7.5.
    """
    if output not in _OUTPUTS:
        raise ArgumentError(f"schur: output={output!r} is not one of {list(_OUTPUTS)}")
    (tensor,) = factorable("schur", x)
    given = cast_to(tensor, complex_dtype(tensor.dtype)) if output == "complex" else tensor
    return SchurResult(*bind(schur.op, (given,)))


# -- square roots -------------------------------------------------------------------------------------------------


def _root_with(xp: Any, x: Any, decompose: Any, root_of: Any, product: Any) -> Any:
    """Return roots by those of triangular factors; a matrix that has none, or no real one if it is real, gives NaN."""
    if not x.size:
        return xp.zeros_like(x)
    finite, is_finite = finite_matrices(xp, x)
    triangle, vectors = decompose(finite.astype(complex_dtype(x.dtype)))
    root = root_of(triangle)
    diagonal = xp.diagonal(root, axis1=-2, axis2=-1)
    # Where two eigenvalues are 0, nothing determines the element of the root, and it must be 0 by itself.
    free = xp.triu((diagonal[..., :, None] == 0) & (diagonal[..., None, :] == 0), k=1)
    exists = is_finite & ~xp.any(free & (root != 0), axis=(-2, -1))
    whole = product(product(vectors, root), xp.conj(vectors.swapaxes(-1, -2)))
    if x.dtype.kind != "c":
        # An eigenvalue that should be 0 is negative by rounding, of which the root is imaginary and small.
        least = 8 * np.sqrt(x.shape[-1] * np.finfo(x.dtype).eps)
        size = xp.max(xp.abs(whole), axis=(-2, -1))
        exists = exists & (xp.max(xp.abs(whole.imag), axis=(-2, -1)) <= least * size)
        whole = whole.real
    return xp.where(exists[..., None, None], whole, nan_of(x.dtype)).astype(x.dtype)


def _root_of_triangle(triangle: Any) -> Any:
    """Compute the root column by column: each is the solution of a system with the columns before it."""
    root = np.sqrt(triangle * np.eye(triangle.shape[-1], dtype=triangle.real.dtype))
    values = np.diagonal(root, axis1=-2, axis2=-1)
    for column in range(1, triangle.shape[-1]):
        system = _system(np, root[..., :column, :column], values[..., column, None])
        right = np.ascontiguousarray(triangle[..., :column, column, None])
        solution = lapack.solve_triangular(system, right, lower=False, transpose=False, unit_diagonal=False)
        root[..., :column, column] = solution[..., 0]
    return root


def _system(xp: Any, root: Any, value: Any) -> Any:
    """Return the system for a column, given its eigenvalue's root; zeros, which would divide, become ones."""
    sums = xp.diagonal(root, axis1=-2, axis2=-1) + value
    unit = np.eye(root.shape[-1], dtype=root.real.dtype)
    return root + (value + (sums == 0))[..., None] * unit


def _lowered_root(triangle: Any) -> Any:
    size = triangle.shape[-1]
    root = jnp.sqrt(triangle * np.eye(size, dtype=triangle.real.dtype))

    def fill(column: Any, root: Any) -> Any:
        value = lax.dynamic_index_in_dim(jnp.diagonal(root, axis1=-2, axis2=-1), column, -1)
        system = _system(jnp, root, value)
        right = lax.dynamic_index_in_dim(triangle, column, -1)
        above = (np.arange(size) < column)[:, None]
        solved = partial(lower_triangular, lower=False, unit_diagonal=False)
        solution = solved(system, jnp.where(above, right, 0))
        before = lax.dynamic_index_in_dim(root, column, -1)
        return lax.dynamic_update_index_in_dim(root, jnp.where(above, solution, before), column, -1)

    return lax.fori_loop(1, size, fill, root)


def _sqrtm_kernel(x: Any) -> Any:
    if not is_square(x):
        raise ValueError
    return _root_with(np, x, lapack.schur, _root_of_triangle, np.matmul)


@jax.custom_vjp
def _sqrtm_lower(x: Any) -> Any:
    return _root_with(jnp, x, lax.linalg.schur, _lowered_root, partial(jnp.matmul, precision="highest"))


def _sqrtm_back(x: Any, g: Any) -> tuple[Any]:
    """Compute what `block_gradient` does: jax has no derivative of Schur's factors."""
    other, size = x.swapaxes(-1, -2), x.shape[-1]
    rows = [jnp.concatenate([other, g], axis=-1), jnp.concatenate([jnp.zeros_like(x), other], axis=-1)]
    return (_sqrtm_lower(jnp.concatenate(rows, axis=-2))[..., :size, size:],)


_sqrtm_lower.defvjp(lambda x: (_sqrtm_lower(x), x), _sqrtm_back)


def _sqrtm_samples(rng: np.random.Generator) -> Any:
    yield Sample((positive_definite(rng, 3, 3),))
    yield Sample((np.eye(2) + 0.3 * gaussian(rng, 2, 2, 2),))
    yield Sample((well_conditioned(rng, 2, 2, dtype=np.complex128),))
    yield Sample((np.stack([np.diag([4.0, 0.0, 0.0]), np.diag([1.0, 1.0], 1), -np.eye(3)]),), gradient=False)
    yield Sample((gaussian(rng, 2, 0, 0),), gradient=False)
    yield Sample((np.stack([np.diag([1.0, 4.0]), np.full((2, 2), np.nan)]).astype(np.float32),), gradient=False)
    yield Bad((gaussian(rng, 3, 2),), error=ShapeError, text="not square: 3 rows, 2 columns")
    yield Bad((gaussian(rng, 2, 2, dtype="float16"),), error=DTypeError, text="does not take float16")


@op(
    kernel=lapack.or_lowering(_sqrtm_kernel),
    lower=_sqrtm_lower,
    infer=square_infer("sqrtm"),
    vjp=block_gradient("sqrtm"),
    saves=Saves(x=(0,)),
    flops=cubes(28),
    samples=_sqrtm_samples,
    traits=("full_precision",),
    ulp=128,
    onnx=DECOMPOSITION,
    padded=each_matrix,
)
def sqrtm(x: TensorLike, /) -> Tensor:
    """Compute the square roots of matrices whose eigenvalues have no negative real part: the principal ones.

    A real matrix with a negative eigenvalue has no real principal root, and gives NaN, as `sqrt` does; its complex one
    is that of ``x.astype(hf.complex64)``. Eigenvalues that are negative by rounding only count as 0. A matrix that has
    no root, such as ``[[0, 1], [0, 0]]``, gives NaN as well. The gradient is infinite or NaN for singular matrices.
    jax computes it on CPUs only.

    Args:
        x: ``(..., n, n)``, real or complex floats.

    Returns:
        The roots, in the dtype of `x`.

    Raises:
        ShapeError: a matrix that is not square.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.sqrtm([[4.0, 0.0], [0.0, 9.0]])
        Tensor([[2., 0.],
                [0., 3.]], dtype=float32)

    Reference:
        A. Bjorck and S. Hammarling, "A Schur method for the square root of a matrix", Linear Algebra and its
        Applications 52/53, 1983; derivative: N. J. Higham, Functions of Matrices, 2008, section 3.2. ``28 n**3``
        FLOPs: the same, section 6.2.
    """
    return bind(sqrtm.op, factorable("sqrtm", x))


__all__ = ["SchurResult", "schur", "sqrtm"]

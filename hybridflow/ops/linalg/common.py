"""Helpers that the linear algebra operations share: shape rules for matrices, transposes in gradient rules, samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dims import same_size
from hybridflow.core.dtypes import LOW_PRECISION, float32, kind_of, real_dtype
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.ops.common import (
    FLOATING,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    asarray,
    broadcast_lowered,
    broadcast_shapes,
    call_text,
    cast_to,
    make_spec,
    met_shape,
    promote,
    promote_float,
    require_kind,
    unbroadcast,
    widened,
)


def factorable(name: str, *values: TensorLike) -> tuple[Tensor, ...]:
    """Return operands promoted to one dtype, which must be one that LAPACK can factor.

    Raises:
        DTypeError: float16 or bfloat16.
    """
    tensors = tuple(map(widened, promote_float(*values)))
    for tensor in tensors:
        if tensor.dtype.num in LOW_PRECISION:
            raise DTypeError(f"{name}: does not take {tensor.dtype}",
                             got=call_text(name, *[one.spec for one in tensors]),
                             hint="Matrices are factored in float32 or wider; cast with .astype(hf.float32).")
    return tensors


def numeric(name: str, *values: TensorLike) -> tuple[Tensor, ...]:
    """Return operands promoted to one numeric dtype.

    Raises:
        DTypeError: bool operands.
    """
    tensors = promote(*values)
    if kind_of(tensors[0].dtype) == "bool":
        raise DTypeError(f"{name}: does not take bool", got=call_text(name, *[one.spec for one in tensors]),
                         hint="Cast it with .astype(...).")
    return tensors


def as_float(x: TensorLike) -> Tensor:
    """Return a tensor of floats or complex numbers; integers become float32."""
    tensor = as_tensor(x)
    return tensor if kind_of(tensor.dtype) in ("float", "complex") else cast_to(tensor, float32)


def require_matrix(name: str, x: TensorSpec, *specs: TensorSpec) -> None:
    """Raise unless a spec is a matrix or a stack of them.

    Raises:
        ShapeError: fewer than two dimensions.
    """
    if len(x.shape) < 2:
        raise ShapeError(f"{name}: needs a matrix, the operand has {len(x.shape)} dimensions",
                         got=call_text(name, x, *specs), hint="Pass (..., m, n).")


def require_square(name: str, x: TensorSpec, *specs: TensorSpec) -> None:
    """Raise unless a spec is a square matrix or a stack of them.

    Raises:
        ShapeError: fewer than two dimensions, or different last sizes.
    """
    require_matrix(name, x, *specs)
    rows, columns = x.shape[-2:]
    if not same_size(rows, columns) and rows != columns:
        raise ShapeError(f"{name}: the matrix is not square: {rows} rows, {columns} columns",
                         got=call_text(name, x, *specs), hint="Pass (..., n, n).")


def is_square(x: Any) -> bool:
    """Whether an array is a square matrix or a stack of them; kernels ask because NumPy's own errors are unclear."""
    return x.ndim >= 2 and x.shape[-1] == x.shape[-2]


def square_infer(name: str) -> Callable[..., TensorSpec]:
    """Return the shape rule of an operation that turns square matrices into matrices of the same shape."""

    def infer(x: TensorSpec, **attrs: Any) -> TensorSpec:
        del attrs
        require_kind(name, FLOATING, x)
        require_square(name, x)
        return make_spec(x.shape, x.dtype)

    return infer


def relative_tolerance(rtol: TensorLike, tensor: Tensor) -> Tensor:
    """Return the fraction of the largest singular value up to which singular values count as 0."""
    dtype = real_dtype(tensor.dtype)
    if rtol is not None:
        return cast_to(as_tensor(rtol), dtype)
    rows, columns = tensor.shape[-2:]
    return asarray(max(int(rows), int(columns)) * float(np.finfo(dtype).eps), dtype=dtype)


def shorter_side(rows: Any, columns: Any) -> Any:
    """Return the smaller size of a matrix; one of its sizes may be open."""
    return rows if same_size(rows, columns) else min(rows, columns)


def system_infer(name: str, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    """Return the spec of the solution of ``a x = b``; a 1-d `b` is one right-hand side."""
    require_kind(name, FLOATING, a, b)
    if a.dtype != b.dtype:
        raise DTypeError(f"{name}: dtypes differ: {a.dtype} and {b.dtype}", got=call_text(name, a, b))
    require_square(name, a, b)
    if not b.shape:
        raise ShapeError(f"{name}: the right-hand side has 0 dimensions, 1 at least is needed",
                         got=call_text(name, a, b), hint="Pass (n,) or (..., n, k).")
    vector = len(b.shape) == 1
    size, rows = a.shape[-1], b.shape[-1 if vector else -2]
    if size != rows:
        raise ShapeError(f"{name}: {size} equations, but a right-hand side with {rows}", got=call_text(name, a, b),
                         hint="The second to last size of the second operand must be the size of the matrix.")
    batch = broadcast_shapes(name, a.shape[:-2], () if vector else b.shape[:-2])
    return make_spec((*batch, *(b.shape if vector else b.shape[-2:])), a.dtype)


def system_gradients(F: Any, g: Any, y: Any, a: Any, b: Any, back: Any, *, transpose: bool = False) -> tuple[Any, Any]:
    """Return the gradients of the operands of a linear system, given ``back``, which solves the transposed systems.

    With ``x = a^-1 b`` they are ``gb = a^-T g`` and ``ga = -gb x^T`` (M. B. Giles 2008, section 2.3.1); the latter
    transposed if the system has the transposed matrix.
    """
    vector = len(b.shape) == 1
    gb = F.reshape(back(with_axes(F, g, 1)), shape=g.shape) if vector else back(g)

    def of_matrix() -> Any:
        left, right = (with_axes(F, gb, 1), with_axes(F, y, 1)) if vector else (gb, y)
        left, right = (right, left) if transpose else (left, right)
        width, other = left.shape[-1], transposed(F, right)
        one = isinstance(width, int) and width == 1  # then nothing is summed
        return unbroadcast(F, -left * other if one else F.matmul(-left, other), a)

    return of_matrix, unbroadcast(F, gb, b)


def lower_batch(a: Any, b: Any) -> tuple[Any, Any]:
    """Broadcast a matrix and a right-hand side ``(..., n, k)`` against each other."""
    batch = met_shape(a.shape[:-2], b.shape[:-2])
    return broadcast_lowered(a, (*batch, *a.shape[-2:])), broadcast_lowered(b, (*batch, *b.shape[-2:]))


# -- gradient rules -----------------------------------------------------------------------------------------------


def transposed(F: Any, x: Any) -> Any:
    """Swap the last two axes."""
    ndim = len(x.shape)
    return F.permute_dims(x, axes=(*range(ndim - 2), ndim - 1, ndim - 2))


def conjugated(F: Any, x: Any) -> Any:
    """Return the conjugate of complex numbers, real ones as they are."""
    return F.conj(x) if x.dtype.kind == "c" else x


def adjoint(F: Any, x: Any) -> Any:
    """Swap the last two axes and conjugate."""
    return conjugated(F, transposed(F, x))


def row(F: Any, x: Any) -> Any:
    """Return ``(..., n)`` as ``(..., 1, n)``."""
    return F.reshape(x, shape=(*x.shape[:-1], 1, x.shape[-1]))


def with_axes(F: Any, x: Any, count: int) -> Any:
    """Add axes of size 1 at the end."""
    return F.reshape(x, shape=(*x.shape, *[1] * count))


def block_gradient(name: str) -> Callable[..., Any]:
    """Return the rule of a function of matrices, an operation in the namespace, that saves its operand alone.

    The function of ``[[x^T, g], [0, x^T]]`` has the gradient as its upper right block (N. J. Higham, Functions of
    Matrices, 2008, section 3.2).
    """

    def rule(F: Any, g: Any, y: Any, x: Any) -> Any:
        del y
        size = x.shape[-1]
        batch = tuple([(0, one, 1) for one in x.shape[:-2]])
        shape = (*x.shape[:-2], 2 * size, 2 * size)
        first, second = (0, size, 1), (size, size, 1)

        def block(value: Any, rows: Any, columns: Any) -> Any:
            return F.slice_scatter(value, shape=shape, index=(*batch, rows, columns))

        other = transposed(F, x)
        whole = block(other, first, first) + block(other, second, second) + block(g, first, second)
        return (F.getitem(getattr(F, name)(whole), index=(*batch, first, second)),)

    return rule


# -- kernels and lowerings, in NumPy or jax.numpy -----------------------------------------------------------------


def phases(xp: Any, vectors: Any) -> Any:
    """Return the conjugate phase of each column's inner product with ``cos(0), cos(1), ...``; 1 if that is 0."""
    weights = np.cos(np.arange(vectors.shape[-2])).astype(vectors.real.dtype)
    product = xp.sum(vectors * weights[:, None], axis=-2)
    size = xp.abs(product)
    zero = size == 0
    one = np.ones((), product.dtype)
    unit = xp.where(zero, one, product / xp.where(zero, np.ones((), size.dtype), size))
    return xp.conj(unit) if vectors.dtype.kind == "c" else unit


def turned(xp: Any, vectors: Any) -> Any:
    """Turn the columns so that their inner products with ``cos(0), cos(1), ...`` are real and positive.

    Eigenvectors and singular vectors are determined only up to a factor of absolute value 1 (a sign), and versions of
    LAPACK and cuSOLVER choose different ones; this makes the choice unique. It would depend on rounding only if the
    inner product were 0, and for vectors with algebraic components it never is: cosines of integers are linearly
    independent over the algebraic numbers (Lindemann and Weierstrass). The vectors of repeated eigenvalues or singular
    values are still not unique, but both modes use one implementation.
    """
    return vectors * phases(xp, vectors)[..., None, :]


def solved(xp: Any, a: Any, b: Any, lu: Callable[..., Any], triangular: Callable[..., Any]) -> Any:
    """Solve systems for matrices ``(..., n, k)``; NaN where a pivot is exactly zero."""
    batch = xp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, *b.shape[-2:])
    if 0 in shape:
        return xp.zeros(shape, b.dtype)
    both, _, order = lu(a)
    singular = xp.any(xp.diagonal(both, axis1=-2, axis2=-1) == 0, axis=-1)[..., None, None]
    both = xp.broadcast_to(both, (*batch, *a.shape[-2:]))
    order = xp.broadcast_to(order, (*batch, a.shape[-1]))
    right = xp.take_along_axis(xp.broadcast_to(b, shape), order[..., None], axis=-2)
    half = triangular(both, right, lower=True, unit_diagonal=True)
    return xp.where(singular, nan_of(b.dtype), triangular(both, half, lower=False, unit_diagonal=False))


def hermitian_part(x: Any) -> Any:
    """Return ``(x + x^H) / 2`` of a NumPy or jax array."""
    other = x.swapaxes(-1, -2)
    return (x + (other.conj() if x.dtype.kind == "c" else other)) * np.asarray(0.5, x.dtype)


# -- lowerings ----------------------------------------------------------------------------------------------------


def lower_triangular(a: Any, b: Any, *, lower: bool, transpose: bool = False, unit_diagonal: bool) -> Any:
    """Solve triangular systems for matrices ``(..., n, k)``, transposed as `lapack.solve_triangular` does."""
    solution = lax.linalg.triangular_solve(
        a, b.swapaxes(-1, -2), left_side=False, lower=lower, transpose_a=not transpose, unit_diagonal=unit_diagonal
    )
    return solution.swapaxes(-1, -2)


def lower_solve(a: Any, b: Any) -> Any:
    """Solve for matrices ``(..., n, k)``; NaN for singular ones."""
    return solved(jnp, a, b, lax.linalg.lu, lower_triangular)


# -- kernels ------------------------------------------------------------------------------------------------------


def nan_of(dtype: Any) -> Any:
    """Return NaN in a dtype; for a complex dtype, both parts are NaN."""
    return dtype.type(complex(np.nan, np.nan)) if dtype.kind == "c" else dtype.type(np.nan)


def finite_matrices(xp: Any, x: Any) -> tuple[Any, Any]:
    """Replace matrices with NaN or inf, with which LAPACK may loop for ever; also return which matrices are finite."""
    finite = xp.isfinite(x).all((-1, -2))
    return xp.where(finite[..., None, None], x, np.zeros((), x.dtype)), finite


def where_finite(xp: Any, finite: Any, values: Any, vectors: Any) -> tuple[Any, Any]:
    """Return values ``(..., n)`` and vectors ``(..., m, n)`` of a decomposition, NaN where a matrix is not finite."""
    values = xp.where(finite[..., None], values, nan_of(values.dtype))
    return values, xp.where(finite[..., None, None], vectors, nan_of(vectors.dtype))


# -- samples ------------------------------------------------------------------------------------------------------


def gaussian(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw standard normal numbers, complex ones for a complex dtype."""
    x = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.standard_normal(shape)
    return np.asarray(x, dtype=dtype)


def well_conditioned(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw matrices with well separated singular values between 1 and 2."""
    rows, columns = shape[-2:]
    u, _, vh = np.linalg.svd(gaussian(rng, *shape, dtype=np.promote_types(dtype, np.float64)), full_matrices=False)
    values = np.linspace(2.0, 1.0, min(rows, columns))
    return np.asarray((u * values) @ vh, dtype=dtype)


def positive_definite(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw Hermitian matrices with eigenvalues from 1 to 3."""
    q, _ = np.linalg.qr(gaussian(rng, *shape, dtype=np.promote_types(dtype, np.float64)))
    values = np.linspace(1.0, 3.0, shape[-1])
    return np.asarray((q * values) @ np.conj(np.swapaxes(q, -1, -2)), dtype=dtype)


def cubes(factor: float) -> Callable[..., Any]:
    """Return a ``flops`` column that counts ``factor * n**3`` for every n-by-n matrix."""

    def flops(outputs: Any, x: TensorSpec, *rest: Any, **attrs: Any) -> Any:
        del outputs, rest, attrs
        return int(factor * 6) * x.size * x.shape[-1] // 6

    return flops

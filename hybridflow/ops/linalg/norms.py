"""Norms of vectors and matrices, and functions of singular values: rank, condition number, least squares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int32, real_dtype
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    FLOATING,
    Tensor,
    TensorLike,
    TensorSpec,
    is_number,
    make_spec,
    normalize_axes,
    normalize_axis,
    normals,
    require_kind,
    require_no_truth,
    truth,
)
from hybridflow.ops.comparison import greater, not_equal
from hybridflow.ops.elementwise import abs as absolute
from hybridflow.ops.elementwise import astype
from hybridflow.ops.linalg.common import (
    as_float,
    conjugated,
    factorable,
    gaussian,
    relative_tolerance,
    require_matrix,
)
from hybridflow.ops.linalg.svd import pinv, svdvals
from hybridflow.ops.matmul import matmul
from hybridflow.ops.padding_nn import normed
from hybridflow.ops.reductions import max as reduce_max
from hybridflow.ops.reductions import min as reduce_min
from hybridflow.ops.reductions import sum as reduce_sum
from hybridflow.ops.shape import permute_dims, reshape
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

Axes = tuple[int, ...]

# -- vectors ------------------------------------------------------------------------------------------------------


def _norm_with(xp: Any, x: Any, axis: Axes, keepdims: bool, order: float) -> Any:
    wide = x.astype(np.float32) if x.dtype.itemsize == 2 else x
    sizes = xp.abs(wide)
    if order == 2:
        norms = xp.sqrt(_sum(xp, sizes * sizes, axis, keepdims))
    else:
        total = _sum(xp, sizes ** np.asarray(order, sizes.dtype), axis, keepdims)
        norms = total ** np.asarray(1 / order, sizes.dtype)
    return norms if wide is x else norms.astype(x.dtype)


def _sum(xp: Any, x: Any, axis: Axes, keepdims: bool) -> Any:
    """Sum floats along axes, on the host or in a lowering."""
    if xp is np:
        return add_up(x, axis, keepdims)
    total = float_sum(x, axis)
    return lax.expand_dims(total, axis) if keepdims else total


def _norm_infer(x: TensorSpec, *, axis: Axes, keepdims: bool, order: float) -> TensorSpec:
    del order
    require_kind("vector_norm", FLOATING, x)
    shape = [1 if i in axis else size for i, size in enumerate(x.shape) if keepdims or i not in axis]
    return make_spec(tuple(shape), real_dtype(x.dtype))


def _norm_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool, order: float) -> Any:
    if not keepdims:
        shape = tuple([1 if i in axis else size for i, size in enumerate(x.shape)])
        g, y = F.reshape(g, shape=shape), F.reshape(y, shape=shape)
    zero = y == 0
    safe = F.where(zero, _like(F, y, 1), y)
    scale = F.where(zero, _like(F, y, 0), g / safe)
    if order == 2:
        return (F.astype(conjugated(F, x) * scale, dtype=x.dtype),)
    sizes = F.abs(x)
    none = sizes == 0
    part = F.where(none, _like(F, sizes, 1), sizes) / safe
    powers = F.where(none, _like(F, sizes, 0), part ** (order - 2))
    return (F.astype(conjugated(F, x) * (scale * powers), dtype=x.dtype),)


def _like(F: Any, x: Any, number: int) -> Any:
    """Return a number as a scalar of a value's dtype."""
    del F
    return np.asarray(number, x.dtype)


def _norm_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3),))
    yield Sample((gaussian(rng, 2, 3, dtype=np.complex128),), {"axis": -1, "ord": 3})
    yield Sample((normals(rng, 2, 2, 2, dtype="float64"),), {"axis": (0, 2), "keepdims": True})
    yield Sample((np.zeros((2, 2), np.float32),), {"axis": 0}, gradient=False)
    yield Sample((normals(rng, 3, dtype="bfloat16"),), gradient=False)
    yield Sample((normals(rng, 0, 2),), {"axis": 0}, gradient=False)
    yield Bad((normals(rng, 2),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")
    yield Bad((normals(rng, 2),), {"ord": "fro"}, error=ArgumentError, text="ord='fro' is not a number")


def _norm_onnx(o: Any, x: Any, *, axis: Axes, keepdims: bool, order: float) -> Any:
    if order == 2:
        return o.ReduceL2(x, o.ints(axis), keepdims=int(keepdims)) if axis else o.Abs(x)
    powers = o.Pow(o.Abs(x), order)
    return o.Pow(o.ReduceSum(powers, o.ints(axis), keepdims=int(keepdims)) if axis else powers, 1 / order)


@op(
    kernel=lambda x, axis, keepdims, order: _norm_with(np, x, axis, keepdims, order),
    lower=lambda x, axis, keepdims, order: _norm_with(jnp, x, axis, keepdims, order),
    infer=_norm_infer,
    vjp=_norm_vjp,
    saves=Saves(x=(0,), y=True),
    flops=lambda y, x, **attrs: 2 * x.size,
    samples=_norm_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=_norm_onnx,
    padded=normed,
)
def vector_norm(
    x: TensorLike,
    /,
    *,
    axis: int | tuple[int, ...] | None = None,
    keepdims: bool = False,
    ord: float = 2,
    **other: Unpack[Other],
) -> Tensor:
    """Compute norms of vectors: ``sum(abs(x) ** ord) ** (1 / ord)``.

    The gradient at 0 is 0. float16 and bfloat16 are summed in float32.

    Args:
        x: real or complex; integers become float32.
        axis: the axes whose elements make up a vector; all of them if None.
        keepdims: whether these axes stay, with size 1.
        ord: any number; ``inf`` is the largest and ``-inf`` the smallest absolute value; 0 counts the elements other
            than 0.

    Returns:
        The norms, real.

    Raises:
        ShapeError: an axis out of range, or named twice.
        ArgumentError: an order that is not a number.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.vector_norm([3.0, 4.0])
        Tensor(5., dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, section 2.2.
    """
    if other:
        return respelled(vector_norm, locals())
    keepdims = truth("vector_norm", "keepdims", keepdims)
    require_no_truth("vector_norm", "ord", ord)
    if not is_number(ord) and not isinstance(ord, np.number):
        raise ArgumentError(f"vector_norm: ord={ord!r} is not a number", hint="Use hf.linalg.matrix_norm.")
    tensor = as_float(x)
    axes = normalize_axes("vector_norm", axis, tensor.ndim)
    order = float(ord)
    if math.isinf(order):
        reduce = reduce_max if order > 0 else reduce_min
        return reduce(absolute(tensor), axis=axes, keepdims=keepdims)
    if order == 0:
        count = reduce_sum(not_equal(tensor, 0), axis=axes, keepdims=keepdims)
        return astype(count, real_dtype(tensor.dtype))
    if order == 1:
        return reduce_sum(absolute(tensor), axis=axes, keepdims=keepdims)
    return bind(vector_norm.op, (tensor,), {"axis": axes, "keepdims": keepdims, "order": order})


# -- matrices -----------------------------------------------------------------------------------------------------

_SUMS = {1: (-2, reduce_max), -1: (-2, reduce_min), math.inf: (-1, reduce_max), -math.inf: (-1, reduce_min)}
"""Orders that are the largest or smallest sum over columns (axis -2) or rows."""


def matrix_norm(
    x: TensorLike, /, *, keepdims: bool = False, ord: float | str | None = "fro", **other: Unpack[Other]
) -> Tensor:
    """Compute norms of matrices.

    Args:
        x: ``(..., m, n)``, real or complex; integers become float32.
        keepdims: whether the last two axes stay, with size 1.
        ord: ``"fro"`` the root of the sum of squares, ``"nuc"`` the sum of the singular values, 2 and -2 the largest
            and smallest singular value, 1 and -1 the largest and smallest sum of a column's absolute values, ``inf``
            and ``-inf`` of a row's.

    Returns:
        ``(...)``, real.

    Raises:
        ShapeError: fewer than two dimensions.
        ArgumentError: an unknown order.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]])
        Tensor(5., dtype=float32)
        >>> hf.linalg.matrix_norm([[3.0, 0.0], [0.0, 4.0]], ord="nuc")
        Tensor(7., dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, section 2.3.
    """
    if other:
        return respelled(matrix_norm, locals())
    keepdims = truth("matrix_norm", "keepdims", keepdims)
    require_no_truth("matrix_norm", "ord", ord)
    tensor = as_float(x)
    require_matrix("matrix_norm", tensor.spec)
    if ord in ("fro", None):
        return vector_norm(tensor, axis=(tensor.ndim - 2, tensor.ndim - 1), keepdims=keepdims)
    if ord in _SUMS:
        axis, reduce = _SUMS[ord]  # pyright: ignore[reportArgumentType]
        sums = reduce_sum(absolute(tensor), axis=axis, keepdims=True)
        norms = reduce(sums, axis=(-2, -1), keepdims=True)
    elif ord in ("nuc", 2, -2):
        values = svdvals(tensor)
        norms = (
            reduce_sum(values, axis=-1) if ord == "nuc" else (reduce_max if ord == 2 else reduce_min)(values, axis=-1)
        )
        norms = reshape(norms, (*tensor.shape[:-2], 1, 1))
    else:
        known = ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf]
        raise ArgumentError(f"matrix_norm: ord={ord!r} is not one of {known}")
    return norms if keepdims else reshape(norms, tensor.shape[:-2])


def norm(
    x: TensorLike,
    /,
    ord: float | str | None = None,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Compute norms as ``numpy.linalg.norm`` does.

    Args:
        x: real or complex; integers become float32.
        ord: the order; see `vector_norm` and `matrix_norm`. If None, the root of the sum of squares.
        axis: the axis of vectors or the two axes of matrices; if None, all elements are one vector, or with an
            order `x` is a vector or a matrix.
        keepdims: whether these axes stay, with size 1.

    Returns:
        The norms, real.

    Raises:
        ShapeError: an order without axes for more than two dimensions, three axes, or an axis out of range.
        ArgumentError: an unknown order.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.norm([[3.0, 4.0], [0.0, 1.0]], axis=1)
        Tensor([5., 1.], dtype=float32)
    """
    if other:
        return respelled(norm, locals())
    keepdims = truth("norm", "keepdims", keepdims)
    tensor = as_float(x)
    if axis is None and (ord is None or tensor.ndim == 1):
        return vector_norm(tensor, keepdims=keepdims, ord=2 if ord is None else ord)  # pyright: ignore[reportArgumentType]
    axes = tuple(range(tensor.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    if len(axes) == 1:
        return vector_norm(tensor, axis=axes, keepdims=keepdims, ord=2 if ord is None else ord)  # pyright: ignore[reportArgumentType]
    if len(axes) != 2:
        raise ShapeError(f"norm: {len(axes)} axes, 1 for vectors or 2 for matrices are needed", got=str(tensor.spec),
                         hint="Name them with axis=.")
    first, second = (normalize_axis("norm", one, tensor.ndim) for one in axes)
    order = (*[i for i in range(tensor.ndim) if i not in (first, second)], first, second)
    norms = matrix_norm(permute_dims(tensor, order), ord="fro" if ord is None else ord)
    if not keepdims:
        return norms
    return reshape(norms, tuple([1 if i in (first, second) else size for i, size in enumerate(tensor.shape)]))


def matrix_rank(x: TensorLike, /, *, rtol: TensorLike = None) -> Tensor:
    """Count the singular values that are not negligible.

    Args:
        x: ``(..., m, n)``, real or complex floats.
        rtol: singular values up to this fraction of the largest count as 0: a number, or one per matrix; if not given,
            ``max(m, n)`` times the dtype's machine epsilon.

    Returns:
        ``(...)``, int32.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.matrix_rank([[1.0, 2.0], [2.0, 4.0]])
        Tensor(1, dtype=int32)
    """
    (tensor,) = factorable("matrix_rank", x)
    require_matrix("matrix_rank", tensor.spec)
    values = svdvals(tensor)
    if 0 in tensor.shape[-2:]:
        return reduce_sum(astype(values, int32), axis=-1)
    tolerance = relative_tolerance(rtol, tensor)
    threshold = reduce_max(values, axis=-1, keepdims=True) * reshape(tolerance, (*tolerance.shape, 1))
    return reduce_sum(astype(greater(values, threshold), int32), axis=-1)


def cond(x: TensorLike, /) -> Tensor:
    """Compute condition numbers: the largest singular value over the smallest.

    Args:
        x: ``(..., m, n)``, real or complex floats, not empty.

    Returns:
        ``(...)``, real; infinite for a matrix with a singular value that is exactly 0.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.linalg.cond([[4.0, 0.0], [0.0, 2.0]])
        Tensor(2., dtype=float32)
    """
    values = svdvals(x)
    return reduce_max(values, axis=-1) / reduce_min(values, axis=-1)


def lstsq(x1: TensorLike, x2: TensorLike, /, *, rtol: TensorLike = None) -> Tensor:
    """Solve linear least-squares problems: find the shortest `x` that minimises the length of ``x1 x - x2``.

    Args:
        x1: ``(..., m, n)``, real or complex floats of any rank.
        x2: ``(m,)``, or ``(..., m, k)``, `k` right-hand sides.
        rtol: see `pinv`.

    Returns:
        ``(..., n)`` for a 1-d `x2`, or ``(..., n, k)``; NaN for a matrix with elements that are not finite.

    Raises:
        ShapeError: `x1` and `x2` have different numbers of rows.
        DTypeError: float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.round(hf.linalg.lstsq([[1.0, 0.0], [1.0, 1.0], [1.0, 2.0]], [1.0, 3.0, 5.0]))
        Tensor([1., 2.], dtype=float32)

    Reference:
        G. H. Golub and C. F. Van Loan, Matrix Computations, 4th edition, section 5.5.
    """
    matrix, right = factorable("lstsq", x1, x2)
    return matmul(pinv(matrix, rtol=rtol), right)


__all__ = ["cond", "lstsq", "matrix_norm", "matrix_rank", "norm", "vector_norm"]

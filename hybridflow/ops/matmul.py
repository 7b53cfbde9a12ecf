"""Matrix products."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.backend.options import is_on_cpus
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, on_host, op
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    broadcast_shapes,
    call_text,
    integers,
    make_spec,
    met_shape,
    normals,
    promote,
    require_kind,
    unbroadcast,
)
from hybridflow.ops.padding import product


def _kernel(a: Any, b: Any) -> Any:
    if b.ndim == 2 and a.ndim > 2:
        # Compute one large product instead of a small one per matrix of the batch.
        return products.matmul(a.reshape(-1, a.shape[-1]) if a.size else a, b).reshape(*a.shape[:-1], b.shape[-1])
    return products.matmul(a, b)


def accumulate_in(dtype: Any) -> Any:
    """Return the dtype in which products of `dtype` are accumulated, or None for `dtype` itself."""
    return np.dtype(np.float32) if dtype.num in LOW_PRECISION else None


def _lower(a: Any, b: Any) -> Any:
    result = _lower_dot(a, b)
    return result if result.dtype == a.dtype else lax.convert_element_type(result, a.dtype)


def _lower_dot(a: Any, b: Any) -> Any:
    def dot(left: Any, right: Any, contract: tuple[int, int], batch: int = 0) -> Any:
        shared = tuple(range(batch))
        return lax.dot_general(
            left,
            right,
            (((contract[0],), (contract[1],)), (shared, shared)),
            precision=SETTINGS.matmul_precision,
            preferred_element_type=accumulate_in(a.dtype),
        )

    if b.ndim <= 2:
        return dot(a, b, (a.ndim - 1, 0))
    if a.ndim == 1:
        return dot(b, a, (b.ndim - 2, 0))
    batch = met_shape(a.shape[:-2], b.shape[:-2])
    a, b = _lower_batch(a, batch), _lower_batch(b, batch)
    return dot(a, b, (a.ndim - 1, b.ndim - 2), len(batch))


def _lower_batch(x: Any, batch: tuple[int, ...]) -> Any:
    shape = (*batch, *x.shape[-2:])
    if tuple(x.shape) == shape:
        return x
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))


def _infer(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    require_kind("matmul", NUMERIC, a, b)
    if a.dtype != b.dtype:
        raise DTypeError(f"matmul: dtypes differ: {a.dtype} and {b.dtype}", got=call_text("matmul", a, b))
    if not a.shape or not b.shape:
        raise ShapeError("matmul: an operand has 0 dimensions, at least 1 is needed", got=call_text("matmul", a, b),
                         hint="Use * to scale.")
    inner_a, inner_b = a.shape[-1], b.shape[0 if b.ndim == 1 else -2]
    if inner_a != inner_b:
        raise ShapeError(
            f"matmul: inner sizes differ: {inner_a} and {inner_b}", got=call_text("matmul", a, b),
            hint="The last axis of the first operand must be the second to last of the second; transpose one."
        )
    batch = broadcast_shapes("matmul", a.shape[:-2], b.shape[:-2])
    rows = () if a.ndim == 1 else a.shape[-2:-1]
    columns = () if b.ndim == 1 else b.shape[-1:]
    return make_spec((*batch, *rows, *columns), a.dtype)


def swap(F: Any, x: Any) -> Any:
    """Transpose the last two axes."""
    ndim = len(x.shape)
    return F.permute_dims(x, axes=(*range(ndim - 2), ndim - 1, ndim - 2))


def rows(F: Any, x: Any) -> Any:
    """Fold all but the last axis into one."""
    count: Any = 1
    for size in x.shape[:-1]:
        count = count * size
    return F.reshape(x, shape=(count, x.shape[-1]))


def _column(F: Any, x: Any) -> Any:
    return F.reshape(x, shape=(*x.shape, 1))


def _vjp(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    del y
    ndim_a, ndim_b = len(a.shape), len(b.shape)
    if ndim_a == 1 and ndim_b == 1:
        return lambda: g * b, lambda: g * a
    if ndim_b == 1:
        return (
            lambda: _column(F, g) * b,
            lambda: F.reshape(F.matmul(swap(F, rows(F, a)), rows(F, _column(F, g))), shape=b.shape),
        )
    if ndim_a == 1:
        row = F.reshape(g, shape=(*g.shape[:-1], 1, g.shape[-1]))
        return (
            lambda: unbroadcast(F, F.reshape(F.matmul(row, swap(F, b)), shape=b.shape[:-1]), a),
            lambda: F.reshape(a, shape=(*a.shape, 1)) * row,
        )
    return lambda: unbroadcast(F, F.matmul(g, swap(F, b)), a), lambda: _right_gradient(F, g, a, b)


def _host(g: Any, y: Any, a: Any, b: Any) -> Any:
    del y
    if len(a.shape) != 2 or len(b.shape) != 2:
        return None
    return lambda: products.matmul(g, b.T), lambda: products.matmul(a.T, g)


def _right_gradient(F: Any, g: Any, a: Any, b: Any) -> Any:
    if len(b.shape) == 2 and len(a.shape) > 2:
        # Compute one product that also sums over the batch.
        return F.matmul(swap(F, rows(F, a)), rows(F, g))
    return unbroadcast(F, F.matmul(swap(F, a), g), b)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), normals(rng, 4, 2)))
    yield Sample((normals(rng, 4), normals(rng, 4)))
    yield Sample((normals(rng, 3, 4), normals(rng, 4)))
    yield Sample((normals(rng, 4), normals(rng, 4, 2)))
    yield Sample((normals(rng, 2, 3, 4), normals(rng, 4)))
    yield Sample((normals(rng, 4), normals(rng, 2, 4, 3)))
    yield Sample((normals(rng, 2, 3, 4), normals(rng, 4, 5)))
    yield Sample((normals(rng, 3, 4), normals(rng, 2, 4, 5)))
    yield Sample((normals(rng, 2, 1, 3, 4), normals(rng, 5, 4, 2)))
    yield Sample((normals(rng, 0, 3), normals(rng, 3, 2)))
    yield Sample((normals(rng, 2, 0), normals(rng, 0, 2)))
    yield Sample((normals(rng, 2, 3, dtype=np.float64), normals(rng, 3, 2)))
    yield Sample((integers(rng, -5, 5, 2, 3), integers(rng, -5, 5, 3, 2)))
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"), normals(rng, 3, 2, dtype="bfloat16")), gradient=False)
    yield Bad((normals(rng, 3, 4), normals(rng, 3, 4)), error=ShapeError, text="inner sizes differ: 4 and 3")
    yield Bad((normals(rng, 2, 3, 4), normals(rng, 5, 4, 2)), error=ShapeError, text="size 2 against 5")
    yield Bad((normals(rng), normals(rng, 3)), error=ShapeError, text="0 dimensions")
    yield Bad((normals(rng, 2, 2) > 0, normals(rng, 2, 2) > 0), error=DTypeError, text="does not take bool")


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=on_host(_vjp, _host),
    saves=Saves(x=(0, 1), each="others"),
    flops=MultiplyAdds(lambda y, a, b: y.size * a.shape[-1]),
    samples=_samples,
    traits=("matrix_product", "dot", "low_precision"),
    method="__matmul__ __rmatmul__ matmul",
    ulp=16,
    onnx=lambda o, a, b: o.MatMul(a, b),
    padded=product,
)
def matmul(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Multiply matrices.

    A 1-d first operand is a row and a 1-d second one a column; the result drops the added axis. float16 and bfloat16
    are accumulated in float32 and rounded once. The other dtypes are accumulated in their own precision, never in a
    lower one, on every device.

    Args:
        x1: numeric, ``(..., m, k)`` or ``(k,)``.
        x2: numeric, ``(..., k, n)`` or ``(k,)``.

    Returns:
        ``(..., m, n)`` in the promoted dtype; the leading axes broadcast.

    Raises:
        ShapeError: different inner sizes, leading axes that do not broadcast, or an operand of 0 dimensions.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.matmul([[1, 2], [3, 4]], [1, 1])
        Tensor([3, 7], dtype=int32)
    """
    return bind(matmul.op, promote(x1, x2))


# -- products of a transposed matrix ------------------------------------------------------------------------------

_TALL, _LONG = 2, 256
"""The least ratio of a product's rows to its columns, and the fewest terms of an element, for which it is faster as the
transpose of another product; for fewer terms the transposition costs too much."""


def _transposed_kernel(a: Any, b: Any) -> Any:
    if a.ndim != 2:
        raise ValueError("no matrix")  # `bind` then runs the shape rule, which says more
    return products.matmul(a.T, b)


def _transposed_lower(a: Any, b: Any) -> Any:
    (length, rows), columns = a.shape, b.shape[1]
    known = type(length) is type(rows) is type(columns) is int
    if not known or not is_on_cpus() or length < _LONG or rows < _TALL * columns:
        return _lower(lax.transpose(a, (1, 0)), b)
    # Without the barrier, XLA would make one product of it all again.
    return lax.transpose(lax.optimization_barrier(_lower(lax.transpose(b, (1, 0)), a)), (1, 0))


def _transposed_infer(a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if a.ndim != 2 or b.ndim != 2:
        got = call_text("transposed_matmul", a, b)
        raise ShapeError("transposed_matmul: an operand is no matrix", got=got)
    return _infer(_transpose_of(a), b)


def _transpose_of(a: TensorSpec) -> TensorSpec:
    return make_spec(a.shape[::-1], a.dtype)


def _transposed_macs(y: TensorSpec, a: TensorSpec, b: TensorSpec) -> Any:
    return cast(MultiplyAdds, matmul.op.flops).macs(y, _transpose_of(a), b)


def _transposed_vjp(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    del y
    return lambda: F.matmul(b, swap(F, g)), lambda: F.matmul(a, g)


def _transposed_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), normals(rng, 3, 2)))
    yield Sample((normals(rng, 0, 3), normals(rng, 0, 2)))
    yield Sample((normals(rng, 2, 3, dtype=np.float64), normals(rng, 2, 3, dtype=np.float64)))
    yield Sample((normals(rng, _LONG, 6), normals(rng, _LONG, 3)), gradient=False)
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"), normals(rng, 2, 3, dtype="bfloat16")), gradient=False)
    yield Bad((normals(rng, 3, 4), normals(rng, 2, 4)), error=ShapeError, text="inner sizes differ: 3 and 2")
    yield Bad((normals(rng, 3), normals(rng, 3, 4)), error=ShapeError, text="an operand is no matrix")


@op(
    kernel=_transposed_kernel,
    lower=_transposed_lower,
    infer=_transposed_infer,
    vjp=_transposed_vjp,
    saves=Saves(x=(0, 1), each="others"),
    flops=MultiplyAdds(_transposed_macs),
    samples=_transposed_samples,
    traits=("dot", "low_precision", "inner"),
    ulp=16,
    onnx=lambda o, a, b: o.MatMul(o.Transpose(a, perm=[1, 0]), b),
)
def transposed_matmul(a: TensorLike, b: TensorLike, /) -> Tensor:
    """Return ``transpose(a) @ b`` for matrices ``(k, m)`` and ``(k, n)``.

    XLA:CPU repacks the transposed operand of a product column by column, which is slow for long rows, and slowest if
    their length is a power of two. The other operand is repacked along its rows. So a product with more rows than
    columns is computed as ``transpose(transpose(b) @ a)``.
    """
    return bind(transposed_matmul.op, promote(a, b))


__all__ = ["accumulate_in", "matmul", "rows", "swap"]

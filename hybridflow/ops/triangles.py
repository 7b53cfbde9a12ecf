"""Lower and upper triangles of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    lower_offsets,
    make_spec,
    no_flops,
    normals,
)
from hybridflow.ops.padding import by_position


def _triangle_infer(name: str) -> Any:
    def infer(x: TensorSpec, *, k: int) -> TensorSpec:
        del k
        if len(x.shape) < 2:
            raise ShapeError(f"{name}: needs 2 dimensions at least, there are {len(x.shape)}", got=call_text(name, x),
                             hint="Pass a matrix or a stack of them.")
        return make_spec(x.shape, x.dtype)

    return infer


_MASKED = 1 << 18
"""The most elements of a matrix whose mask is cached."""


@lru_cache(16)
def _mask(upper: bool, rows: int, columns: int, k: int, width: int) -> Any:
    """Return a bit mask, in words of `width` bytes: all ones inside a triangle, zeros outside."""
    inside = ~np.tri(rows, columns, k - 1, dtype=bool) if upper else np.tri(rows, columns, k, dtype=bool)
    return np.where(inside, ~np.zeros((), f"u{width}"), np.zeros((), f"u{width}"))


def _triangle_kernel(name: str, *, upper: bool) -> Any:
    infer = _triangle_infer(name)

    def kernel(x: Any, *, k: int) -> Any:
        infer(x, k=k)
        rows, columns = x.shape[-2:]
        if x.itemsize > 8 or rows * columns > _MASKED:
            return np.triu(x, k) if upper else np.tril(x, k)
        mask = _mask(upper, rows, columns, k, x.itemsize)
        return np.bitwise_and(x.view(mask.dtype), mask).view(x.dtype)

    return kernel


def _triangle_lower(upper: bool) -> Any:
    def lowered(x: Any, *, k: int) -> Any:
        diagonal = lower_offsets(*x.shape[-2:])
        inside = diagonal >= k if upper else diagonal <= k
        inside = lax.broadcast_in_dim(inside, x.shape, (x.ndim - 2, x.ndim - 1))
        return lax.select(inside, x, lax.full_like(x, 0))

    return lowered


def _triangle_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 2, 3, 3),), {"k": -1})
    yield Sample((normals(rng, 3, 2, dtype="float64"),), {"k": 1})
    yield Sample((np.array([[np.nan, np.nan], [np.inf, -0.0]], np.float32),), gradient=False)
    yield Sample((normals(rng, 0, 2, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 3),), error=ShapeError, text="needs 2 dimensions at least, there are 1")


def _triangle_onnx(upper: int) -> Any:
    return lambda o, x, *, k: o.Trilu(x, o.value(np.int64(k)), upper=upper)


@op(
    kernel=_triangle_kernel("tril", upper=False),
    lower=_triangle_lower(False),
    infer=_triangle_infer("tril"),
    vjp=lambda F, g, y, x, *, k: (F.tril(g, k=k),),
    flops=no_flops,
    samples=_triangle_samples,
    traits=("layout",),
    method="tril",
    ulp=0,
    onnx=_triangle_onnx(0),
    padded=by_position,
)
def tril(x: TensorLike, /, k: int = 0, **other: Unpack[Other]) -> Tensor:
    """Keep the lower triangle of matrices and set the rest to zero.

    Args:
        x: ``(..., m, n)``, any dtype.
        k: the highest diagonal to keep: 0 is the main one, and positive numbers are above it.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.tril([[1, 2], [3, 4]])
        Tensor([[1, 0],
                [3, 4]], dtype=int32)
    """
    if other:
        return respelled(tril, locals())
    return bind(tril.op, (as_tensor(x),), {"k": int(k)})


@op(
    kernel=_triangle_kernel("triu", upper=True),
    lower=_triangle_lower(True),
    infer=_triangle_infer("triu"),
    vjp=lambda F, g, y, x, *, k: (F.triu(g, k=k),),
    flops=no_flops,
    samples=_triangle_samples,
    traits=("layout",),
    method="triu",
    ulp=0,
    onnx=_triangle_onnx(1),
    padded=by_position,
)
def triu(x: TensorLike, /, k: int = 0, **other: Unpack[Other]) -> Tensor:
    """Keep the upper triangle of matrices and set the rest to zero.

    Args:
        x: ``(..., m, n)``, any dtype.
        k: the lowest diagonal to keep: 0 is the main one, and positive numbers are above it.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.triu([[1, 2], [3, 4]])
        Tensor([[1, 2],
                [0, 4]], dtype=int32)
    """
    if other:
        return respelled(triu, locals())
    return bind(triu.op, (as_tensor(x),), {"k": int(k)})


__all__ = ["tril", "triu"]

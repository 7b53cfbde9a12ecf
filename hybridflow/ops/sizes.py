"""Helpers for integer or symbolic sizes and for reduced axes, shared by several families of operations."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import as_dtype, int32, kind_of, uint32
from hybridflow.core.errors import ArgumentTypeError, ShapeError
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_number import as_size
from hybridflow.ops.common import cast_to

Shape = tuple[Any, ...]
Axes = tuple[int, ...]
Axis = int | tuple[int, ...] | None


def normalize_shape(name: str, shape: Any, *, negative: bool = False) -> Shape:
    """Return a shape as a tuple of sizes.

    Args:
        name: the operation, for messages.
        shape: a size or a sequence of sizes; symbolic sizes stay symbolic.
        negative: whether the operation gives negative numbers a meaning.

    Raises:
        ArgumentTypeError: something that is not a size.
        ShapeError: a negative size; of a symbolic one, this is asked of each call.
    """
    items: Any = shape if isinstance(shape, list | tuple) else (shape,)
    result: list[Any] = []
    for size in map(as_size, items):
        if isinstance(size, Dim):
            result.append(size)
            continue
        try:
            result.append(size.__index__())
        except AttributeError:
            raise ArgumentTypeError(f"{name}: {size!r} is not a size", got=f"shape={shape!r}",
                                    hint="Use integers.") from None
    if not negative:
        for size in result:
            if size < 0:
                raise ShapeError(f"{name}: {size} is not a size", got=f"shape={shape!r}", hint="Use sizes from 0 on.")
    return tuple(result)


def count_elements(shape: Shape) -> Any:
    """Return the number of elements of a shape."""
    total: Any = 1
    for size in shape:
        total = total * size
    return total


def reduced_shape(shape: tuple[Any, ...], axis: Axes, keepdims: bool) -> tuple[Any, ...]:
    """Return the shape that a reduction leaves."""
    if keepdims:
        return tuple([1 if i in axis else size for i, size in enumerate(shape)])
    return tuple([size for i, size in enumerate(shape) if i not in axis])


def restore_axes(F: Any, reduced: Any, x: Any, axis: Axes) -> Any:
    """Put back, as axes of size 1, the axes of `x` that a reduction removed."""
    if len(reduced.shape) == len(x.shape):
        return reduced
    return F.reshape(reduced, shape=reduced_shape(x.shape, axis, True))


def size_value(F: Any, size: Any, dtype: Any) -> Any:
    """Return a size as an operand of arithmetic; a symbolic one becomes a scalar that each call fills in."""
    return size if type(size) is not Dim else F.full(shape=(), fill_value=size, dtype=dtype)


def count_along(shape: tuple[Any, ...], axis: Axes) -> Any:
    """Return the number of elements that a reduction over axes combines."""
    total: Any = 1
    for i in axis:
        total = total * shape[i]
    return total


def lowered_count(count: Any, dtype: Any) -> Any:
    """Return a number of elements in a dtype: a constant, or a JAX value if a size is symbolic."""
    return np.asarray(count, dtype) if isinstance(count, int | float) else jnp.asarray(count).astype(dtype)


def as_asked(result: Tensor, dtype: Any) -> Tensor:
    """Return a sum or product in the dtype that was asked for; `hf.autocast` may have formed it in another."""
    return result if dtype is None else cast_to(result, as_dtype(dtype))


def accumulator(tensor: Tensor, dtype: Any) -> Tensor:
    """Cast to the dtype in which a sum or product is formed; integers get at least 32 bits."""
    if dtype is not None:
        return cast_to(tensor, as_dtype(dtype))
    kind = kind_of(tensor.dtype)
    if kind == "bool" or (kind == "int" and tensor.dtype.itemsize < 4):
        return cast_to(tensor, int32)
    if kind == "uint" and tensor.dtype.itemsize < 4:
        return cast_to(tensor, uint32)
    return tensor

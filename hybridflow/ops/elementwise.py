"""Elementwise arithmetic, comparison, logic and casts."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, is_differentiable, kind_of
from hybridflow.core.op import Bad, No, Sample, Saves, Stops, op, public_names
from hybridflow.ops.common import (
    ANY,
    FLOATING,
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    binary_samples,
    broadcasting,
    elements,
    integers,
    make_spec,
    no_flops,
    normals,
    pointwise,
    positives,
    promote,
    promote_float,
    unary_samples,
    unbroadcast,
)

# -- casts --------------------------------------------------------------------------------------------------------


def _astype_kernel(x: Any, *, dtype: Any) -> Any:
    return x.astype(dtype)


def _astype_vjp(F: Any, g: Any, y: Any, x: Any, *, dtype: Any) -> Any:
    del y, dtype
    return (F.astype(g, dtype=x.dtype) if is_differentiable(x.dtype) else None,)


def _astype_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 2), "float64"))
    yield Sample((integers(rng, -5, 5, 4), "float32"))
    yield Sample((normals(rng, 3), "bfloat16"), gradient=False)
    yield Sample((normals(rng, 3), "int32"), gradient=False)
    yield Sample((integers(rng, 0, 2, 3), "bool"))
    yield Bad((normals(rng, 3), "float7"), error=TypeError, text="is not a hybridflow dtype")


@op(
    kernel=_astype_kernel,
    lower=lambda x, *, dtype: lax.convert_element_type(x, dtype),
    infer=lambda x, *, dtype: make_spec(x.shape, dtype),
    vjp=_astype_vjp,
    flops=no_flops,
    samples=_astype_samples,
    traits=("pointwise", "layout"),
    method="astype",
)
def astype(x: TensorLike, dtype: Any) -> Tensor:
    """Convert to another dtype; the gradient is converted back.

    Args:
        x: any shape and dtype.
        dtype: a dtype or its name.

    Returns:
        The tensor of the same shape in the dtype.

    Raises:
        DTypeError: hybridflow has no such dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.astype([1.5, 2.5], hf.int32)
        Tensor([1, 2], dtype=int32)
    """
    target = as_dtype(dtype)
    tensor = as_tensor(x)
    return tensor if tensor.dtype == target else bind(astype.op, (tensor,), {"dtype": target})


# -- arithmetic ---------------------------------------------------------------------------------------------------


@op(
    kernel=np.add,
    lower=broadcasting(lax.add),
    infer=pointwise("add", NUMERIC),
    vjp=lambda F, g, y, a, b: (unbroadcast(F, g, a), unbroadcast(F, g, b)),
    flops=elements,
    samples=binary_samples(),
    traits=("pointwise", "commutative"),
    method="__add__ __radd__",
    ulp=0.5,
)
def add(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Add elementwise.

    Args:
        x1, x2: numeric, of shapes that broadcast.

    Returns:
        The sum, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.add([1, 2], 3)
        Tensor([4, 5], dtype=int32)
    """
    return bind(add.op, promote(x1, x2))


@op(
    kernel=np.subtract,
    lower=broadcasting(lax.sub),
    infer=pointwise("subtract", NUMERIC),
    vjp=lambda F, g, y, a, b: (unbroadcast(F, g, a), lambda: unbroadcast(F, -g, b)),
    flops=elements,
    samples=binary_samples(),
    traits=("pointwise",),
    method="__sub__ __rsub__",
    ulp=0.5,
)
def subtract(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Subtract elementwise.

    Args:
        x1, x2: numeric, of shapes that broadcast.

    Returns:
        The difference, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.subtract([1, 2], 3)
        Tensor([-2, -1], dtype=int32)
    """
    return bind(subtract.op, promote(x1, x2))


@op(
    kernel=np.multiply,
    lower=broadcasting(lax.mul),
    infer=pointwise("multiply", NUMERIC),
    vjp=lambda F, g, y, a, b: (lambda: unbroadcast(F, g * b, a), lambda: unbroadcast(F, g * a, b)),
    saves=Saves(x=(0, 1)),
    flops=elements,
    samples=binary_samples(),
    traits=("pointwise", "commutative"),
    method="__mul__ __rmul__",
    ulp=0.5,
)
def multiply(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Multiply elementwise.

    Args:
        x1, x2: numeric, of shapes that broadcast.

    Returns:
        The product, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.multiply([1.0, 2.0], 3)
        Tensor([3., 6.], dtype=float32)
    """
    return bind(multiply.op, promote(x1, x2))


@op(
    kernel=np.tanh,
    lower=lax.tanh,
    infer=pointwise("tanh", FLOATING),
    vjp=lambda F, g, y, x: (g * (1 - y * y),),
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    method="tanh",
)
def tanh(x: TensorLike, /) -> Tensor:
    """Compute the hyperbolic tangent elementwise.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.tanh([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(tanh.op, promote_float(x))
__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

"""Sums, products and negation, elementwise."""

from __future__ import annotations

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Sample, Saves
from hybridflow.core.operators import add_method
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    as_tensor,
    of_operands,
    promote,
    require_kind,
    unary_samples,
)
from hybridflow.ops.kinds import numeric, real_function, sum_or_product
from hybridflow.ops.xla_algebra import product

# -- arithmetic ---------------------------------------------------------------------------------------------------


@sum_or_product(
    np.add, lax.add,
    vjp=of_operands(lambda F, g, y, a, b: g, lambda F, g, y, a, b: g),
    traits=("commutative", "unit_minus_zero", "shift"), method="__add__ __radd__", onnx="Add",
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


@real_function(
    lambda x: x + x.dtype.type(0), lambda x: lax.select(x == 0, lax.full_like(x, 0), x),
    vjp=lambda F, g, y, x: (g,),
    samples=lambda rng: [*unary_samples()(rng), Sample((np.array([0.0, -0.0, np.nan], np.float32),), gradient=False)],
    traits=("idempotent", "inner"), ulp=0, onnx=lambda o, x: o.Where(o.Equal(x, 0), 0, x),
)
def plus_zero(x: TensorLike, /) -> Tensor:
    """Add 0.0 to every element: -0.0 becomes 0.0, and the rest stays.

    XLA simplifies ``x + 0.0`` to `x`, so the passes use this op instead.

    Args:
        x: any shape; real.

    Returns:
        The same shape and dtype.

    Example:
        >>> from hybridflow.ops.arithmetic import plus_zero
        >>> plus_zero([-0.0, 1.0])
        Tensor([0., 1.], dtype=float32)
    """
    return bind(plus_zero.op, (as_tensor(x),))


@sum_or_product(
    np.subtract, lax.sub,
    vjp=of_operands(lambda F, g, y, a, b: g, lambda F, g, y, a, b: -g), traits=("unit_zero", "shift"),
    method="__sub__ __rsub__", onnx="Sub",
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


@sum_or_product(
    np.multiply, product,
    vjp=of_operands(lambda F, g, y, a, b: g * b, lambda F, g, y, a, b: g * a), saves=Saves(x=(0, 1), each="others"),
    traits=("commutative", "unit_one", "product"), method="__mul__ __rmul__", onnx="Mul",
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


@numeric(
    np.negative, lax.neg,
    vjp=lambda F, g, y, x: (-g,), traits=("involution",), method="__neg__", ulp=0,
    onnx=lambda o, x: o.Neg(x) if x.dtype.kind != "u" else 0 - x,
)
def negative(x: TensorLike, /) -> Tensor:
    """Change the sign of every element; unsigned and smallest integers wrap.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.negative([1, -2])
        Tensor([-1,  2], dtype=int32)
    """
    return bind(negative.op, (as_tensor(x),))


def positive(x: TensorLike, /) -> Tensor:
    """Return the tensor itself, as ``+x`` does.

    Args:
        x: any shape; numeric.

    Returns:
        The tensor.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.positive([1, -2])
        Tensor([ 1, -2], dtype=int32)
    """
    tensor = as_tensor(x)
    require_kind("positive", NUMERIC, tensor.spec)
    return tensor


add_method("__pos__", positive)


__all__ = ["add", "multiply", "negative", "positive", "subtract"]

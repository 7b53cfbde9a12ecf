"""Comparison and logic, elementwise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_, is_differentiable, is_floating
from hybridflow.core.errors import DTypeError
from hybridflow.core.op import Bad, Sample, Stops, op
from hybridflow.ops.common import (
    ANY,
    Tensor,
    TensorLike,
    as_tensor,
    binary_samples,
    cast_to,
    integers,
    no_flops,
    normals,
    pointwise,
    promote,
)
from hybridflow.ops.kinds import Kind
from hybridflow.ops.onnx import never
from hybridflow.ops.xla_algebra import hidden

_NOT_SMOOTH = Stops("a comparison is constant almost everywhere")
_ORDERED = ("bool", "int", "uint", "float")


# -- comparison ---------------------------------------------------------------------------------------------------


def _equality_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples()(rng)
    special = np.array([0.0, np.nan, np.inf, 1.0], np.float32)
    yield Sample((special, np.array([-0.0, np.nan, np.inf, 2.0], np.float32)), gradient=False)
    yield Sample((integers(rng, 0, 3, 5), integers(rng, 0, 3, 5)))
    yield Sample((integers(rng, 0, 2, 4, dtype="bool"), integers(rng, 0, 2, 4, dtype="bool")))


def _order_samples(rng: np.random.Generator) -> Any:
    yield from _equality_samples(rng)
    yield Bad((np.array([1j], np.complex64), 1.0), error=DTypeError, text="does not take complex64")


_equality = Kind(ANY, bool_, 2, vjp=_NOT_SMOOTH, flops=no_flops, ulp=0, samples=_equality_samples)
_order = replace(_equality, accepts=_ORDERED, samples=_order_samples)


@_equality(np.equal, lax.eq, traits=("commutative", "order"), method="__eq__", onnx="Equal")
def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise for equality; NaN equals nothing.

    Args:
        x1, x2: of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.equal([1, 2, 3], 2)
        Tensor([False,  True, False], dtype=bool)
    """
    return bind(equal.op, promote(x1, x2))


@_equality(
    np.not_equal, lax.ne,
    traits=("commutative", "order"), method="__ne__", onnx=lambda o, a, b: o.Not(o.Equal(a, b)),
)
def not_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise for difference; NaN differs from everything.

    Args:
        x1, x2: of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.not_equal([1, 2, 3], 2)
        Tensor([ True, False,  True], dtype=bool)
    """
    return bind(not_equal.op, promote(x1, x2))


@_order(np.less, lax.lt, traits=("order",), method="__lt__", onnx="Less")
def less(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise whether the first is smaller; NaN never is.

    Args:
        x1, x2: real or bool, of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.less([1, 2, 3], 2)
        Tensor([ True, False, False], dtype=bool)
    """
    return bind(less.op, promote(x1, x2))


@_order(
    np.less_equal, lambda a, b: lax.le(hidden(a, b) if is_floating(a.dtype) else a, b),
    traits=("order",), method="__le__", onnx="LessOrEqual",
)
def less_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise whether the first is smaller or equal; NaN never is.

    Args:
        x1, x2: real or bool, of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.less_equal([1, 2, 3], 2)
        Tensor([ True,  True, False], dtype=bool)
    """
    return bind(less_equal.op, promote(x1, x2))


@_order(np.greater, lax.gt, traits=("order",), method="__gt__", onnx="Greater")
def greater(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise whether the first is larger; NaN never is.

    Args:
        x1, x2: real or bool, of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.greater([1, 2, 3], 2)
        Tensor([False, False,  True], dtype=bool)
    """
    return bind(greater.op, promote(x1, x2))


@_order(
    np.greater_equal, lambda a, b: lax.ge(a, hidden(b, a) if is_floating(a.dtype) else b),
    traits=("order",), method="__ge__", onnx="GreaterOrEqual",
)
def greater_equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise whether the first is larger or equal; NaN never is.

    Args:
        x1, x2: real or bool, of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.greater_equal([1, 2, 3], 2)
        Tensor([False,  True,  True], dtype=bool)
    """
    return bind(greater_equal.op, promote(x1, x2))


# -- logic --------------------------------------------------------------------------------------------------------

_DISCRETE = Stops("a truth value has no gradient")


def _as_bools(*xs: TensorLike) -> tuple[Tensor, ...]:
    """Return operands as bools: everything but zero is true."""
    return tuple([cast_to(as_tensor(x), bool_) for x in xs])


def _logic_samples(rng: np.random.Generator) -> Any:
    flags = integers(rng, 0, 2, 3, 4, dtype="bool")
    yield Sample((flags, integers(rng, 0, 2, 4, dtype="bool")))
    yield Sample((flags[0, 0], True))
    yield Sample((flags[:0], flags[0]))
    yield Sample((integers(rng, 0, 2, 4), np.array([0.0, np.nan, -0.0, 2.0], np.float32)))
    yield Bad((flags, flags[:, :3]), error=ValueError, text="size 4 against 3")


_logic = Kind(("bool",), operands=2, vjp=_DISCRETE, flops=no_flops, ulp=0, samples=_logic_samples)


@_logic(np.logical_and, lax.bitwise_and, traits=("commutative",), onnx="And")
def logical_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Say elementwise whether both are true.

    Args:
        x1, x2: of shapes that broadcast; everything but zero is true.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.logical_and([True, False], True)
        Tensor([ True, False], dtype=bool)
    """
    return bind(logical_and.op, _as_bools(x1, x2))


@_logic(np.logical_or, lax.bitwise_or, traits=("commutative",), onnx="Or")
def logical_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Say elementwise whether at least one is true.

    Args:
        x1, x2: of shapes that broadcast; everything but zero is true.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.logical_or([True, False], True)
        Tensor([ True,  True], dtype=bool)
    """
    return bind(logical_or.op, _as_bools(x1, x2))


@_logic(np.logical_xor, lax.bitwise_xor, traits=("commutative",), onnx="Xor")
def logical_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Say elementwise whether exactly one is true.

    Args:
        x1, x2: of shapes that broadcast; everything but zero is true.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.logical_xor([True, False], True)
        Tensor([False,  True], dtype=bool)
    """
    return bind(logical_xor.op, _as_bools(x1, x2))


def _not_samples(rng: np.random.Generator) -> Any:
    yield Sample((integers(rng, 0, 2, 3, 4, dtype="bool"),))
    yield Sample((integers(rng, 0, 2, dtype="bool"),))
    yield Sample((integers(rng, 0, 2, 5),))


@op(
    kernel=np.logical_not,
    lower=lax.bitwise_not,
    infer=pointwise("logical_not", ("bool",)),
    vjp=_DISCRETE,
    flops=no_flops,
    samples=_not_samples,
    traits=("pointwise", "involution"),
    ulp=0,
    onnx="Not",
)
def logical_not(x: TensorLike, /) -> Tensor:
    """Say elementwise whether it is false.

    Args:
        x: any shape; everything but zero is true.

    Returns:
        Bools.

    Example:
        >>> import hybridflow as hf
        >>> hf.logical_not([True, False])
        Tensor([False,  True], dtype=bool)
    """
    return bind(logical_not.op, _as_bools(x))


# -- kinds of numbers ---------------------------------------------------------------------------------------------


def _kind_samples(rng: np.random.Generator) -> Any:
    yield Sample((np.array([[0.0, -0.0, 1.5], [np.nan, np.inf, -np.inf]], np.float32),), gradient=False)
    yield Sample((np.array([1e300, np.nan]),), gradient=False)
    yield Sample((np.array([1 + 1j, complex(np.nan, 0), complex(0, np.inf)], np.complex64),), gradient=False)
    yield Sample((normals(rng, 2, dtype="bfloat16"),), gradient=False)
    yield Sample((integers(rng, -9, 9, 4),))
    yield Sample((integers(rng, 0, 2, dtype="bool"),))


def _exact(of_floats: Any, otherwise: bool) -> Any:
    """Return a lowering that knows the answer for dtypes that hold neither NaN nor infinity."""
    return lambda x: of_floats(x) if is_differentiable(x.dtype) else lax.full_like(x, otherwise, bool)


def _parts(of_floats: Any, combine: Any) -> Any:
    """Return a lowering that asks both parts of a complex number."""

    def lowered(x: Any) -> Any:
        if np.issubdtype(x.dtype, np.complexfloating):
            return combine(of_floats(lax.real(x)), of_floats(lax.imag(x)))
        return of_floats(x)

    return lowered


_classification = Kind(ANY, bool_, vjp=_NOT_SMOOTH, ulp=0, samples=_kind_samples)


@_classification(
    np.isnan, _exact(lambda x: lax.ne(x, x), False),
    onnx=lambda o, x: o.IsNaN(x) if is_floating(x.dtype) else never(o, x),
)
def isnan(x: TensorLike, /) -> Tensor:
    """Say which elements are NaN.

    Args:
        x: any shape and dtype.

    Returns:
        Bools of the same shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.isnan([1.0, float("nan"), float("inf")])
        Tensor([False,  True, False], dtype=bool)
    """
    return bind(isnan.op, (as_tensor(x),))


@_classification(
    np.isfinite, _exact(_parts(lax.is_finite, lax.bitwise_and), True),
    onnx=lambda o, x: o.Not(o.Or(o.IsNaN(x), o.IsInf(x)) if is_floating(x.dtype) else never(o, x)),
)
def isfinite(x: TensorLike, /) -> Tensor:
    """Say which elements are neither NaN nor infinite.

    Args:
        x: any shape and dtype.

    Returns:
        Bools of the same shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.isfinite([1.0, float("nan"), float("inf")])
        Tensor([ True, False, False], dtype=bool)
    """
    return bind(isfinite.op, (as_tensor(x),))


@_classification(
    np.isinf, _exact(_parts(lambda x: lax.abs(x) == np.inf, lax.bitwise_or), False),
    onnx=lambda o, x: o.IsInf(x) if is_floating(x.dtype) else never(o, x),
)
def isinf(x: TensorLike, /) -> Tensor:
    """Say which elements are infinite.

    Args:
        x: any shape and dtype.

    Returns:
        Bools of the same shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.isinf([1.0, float("nan"), float("inf")])
        Tensor([False, False,  True], dtype=bool)
    """
    return bind(isinf.op, (as_tensor(x),))


__all__ = [
    "equal", "greater", "greater_equal", "isfinite", "isinf", "isnan", "less", "less_equal", "logical_and",
    "logical_not", "logical_or", "logical_xor", "not_equal",
]

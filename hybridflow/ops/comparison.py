"""Comparison and logic, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_, is_differentiable, is_floating
from hybridflow.core.errors import DTypeError
from hybridflow.core.op import Bad, Sample, Stops, op, public_names
from hybridflow.ops.common import (
    ANY,
    Tensor,
    TensorLike,
    as_tensor,
    binary_samples,
    broadcasting,
    cast_to,
    elements,
    integers,
    no_flops,
    normals,
    pointwise,
    promote,
)
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


@op(
    kernel=np.equal,
    lower=broadcasting(lax.eq),
    infer=pointwise("equal", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_equality_samples,
    traits=("pointwise", "commutative", "order"),
    method="__eq__",
    ulp=0,
    onnx="Equal",
)
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


@op(
    kernel=np.not_equal,
    lower=broadcasting(lax.ne),
    infer=pointwise("not_equal", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_equality_samples,
    traits=("pointwise", "commutative", "order"),
    method="__ne__",
    ulp=0,
    onnx=lambda o, a, b: o.Not(o.Equal(a, b)),
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


@op(
    kernel=np.less,
    lower=broadcasting(lax.lt),
    infer=pointwise("less", _ORDERED, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_order_samples,
    traits=("pointwise", "order"),
    method="__lt__",
    ulp=0,
    onnx="Less",
)
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


@op(
    kernel=np.less_equal,
    lower=broadcasting(lambda a, b: lax.le(hidden(a, b) if is_floating(a.dtype) else a, b)),
    infer=pointwise("less_equal", _ORDERED, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_order_samples,
    traits=("pointwise", "order"),
    method="__le__",
    ulp=0,
    onnx="LessOrEqual",
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


@op(
    kernel=np.greater,
    lower=broadcasting(lax.gt),
    infer=pointwise("greater", _ORDERED, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_order_samples,
    traits=("pointwise", "order"),
    method="__gt__",
    ulp=0,
    onnx="Greater",
)
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


@op(
    kernel=np.greater_equal,
    lower=broadcasting(lambda a, b: lax.ge(a, hidden(b, a) if is_floating(a.dtype) else b)),
    infer=pointwise("greater_equal", _ORDERED, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=_order_samples,
    traits=("pointwise", "order"),
    method="__ge__",
    ulp=0,
    onnx="GreaterOrEqual",
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


@op(
    kernel=np.logical_and,
    lower=broadcasting(lax.bitwise_and),
    infer=pointwise("logical_and", ("bool",)),
    vjp=_DISCRETE,
    flops=no_flops,
    samples=_logic_samples,
    traits=("pointwise", "commutative"),
    ulp=0,
    onnx="And",
)
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


@op(
    kernel=np.logical_or,
    lower=broadcasting(lax.bitwise_or),
    infer=pointwise("logical_or", ("bool",)),
    vjp=_DISCRETE,
    flops=no_flops,
    samples=_logic_samples,
    traits=("pointwise", "commutative"),
    ulp=0,
    onnx="Or",
)
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


@op(
    kernel=np.logical_xor,
    lower=broadcasting(lax.bitwise_xor),
    infer=pointwise("logical_xor", ("bool",)),
    vjp=_DISCRETE,
    flops=no_flops,
    samples=_logic_samples,
    traits=("pointwise", "commutative"),
    ulp=0,
    onnx="Xor",
)
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


@op(
    kernel=np.isnan,
    lower=_exact(lambda x: lax.ne(x, x), False),
    infer=pointwise("isnan", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=elements,
    samples=_kind_samples,
    traits=("pointwise",),
    ulp=0,
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


@op(
    kernel=np.isfinite,
    lower=_exact(_parts(lax.is_finite, lax.bitwise_and), True),
    infer=pointwise("isfinite", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=elements,
    samples=_kind_samples,
    traits=("pointwise",),
    ulp=0,
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


@op(
    kernel=np.isinf,
    lower=_exact(_parts(lambda x: lax.abs(x) == np.inf, lax.bitwise_or), False),
    infer=pointwise("isinf", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=elements,
    samples=_kind_samples,
    traits=("pointwise",),
    ulp=0,
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


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

"""Bitwise logic and shifts of integers and bools, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_
from hybridflow.core.errors import DTypeError
from hybridflow.core.op import Bad, Sample, Stops, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    broadcasting,
    integers,
    no_flops,
    normals,
    pointwise,
    promote,
)
from hybridflow.ops.kinds import Kind
from hybridflow.ops.xla_algebra import of_bits

_BITS = ("bool", "int", "uint")
_NO_BITS = Stops("integers and bools have no gradient")


def _bit_samples(rng: np.random.Generator) -> Any:
    yield Sample((integers(rng, -99, 99, 3, 4), integers(rng, -99, 99, 4)))
    yield Sample((integers(rng, 0, 99, 3, dtype="uint8"), 5))
    yield Sample((integers(rng, 0, 2, 4, dtype="bool"), integers(rng, 0, 2, 4, dtype="bool")))
    yield Bad((normals(rng, 3), normals(rng, 3)), error=DTypeError, text="does not take float32, only bool, int, uint")


def _bits_onnx(bits: str, bools: str) -> Any:
    return lambda o, *xs: o.emit(bools if xs[0].dtype == bool_ else bits, *xs)


_bitwise = Kind(_BITS, operands=2, vjp=_NO_BITS, flops=no_flops, ulp=0, samples=_bit_samples)


@_bitwise(
    np.bitwise_and, of_bits(lax.bitwise_and),
    traits=("commutative",), method="__and__ __rand__", onnx=_bits_onnx("BitwiseAnd", "And"),
)
def bitwise_and(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Combine bits elementwise: set where both are.

    Args:
        x1, x2: integers or bools, of shapes that broadcast.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: floating-point operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_and(6, 3)
        Tensor(2, dtype=int32)
    """
    return bind(bitwise_and.op, promote(x1, x2))


@_bitwise(
    np.bitwise_or, of_bits(lax.bitwise_or),
    traits=("commutative", "unit_zero"), method="__or__ __ror__", onnx=_bits_onnx("BitwiseOr", "Or"),
)
def bitwise_or(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Combine bits elementwise: set where at least one is.

    Args:
        x1, x2: integers or bools, of shapes that broadcast.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: floating-point operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_or(6, 3)
        Tensor(7, dtype=int32)
    """
    return bind(bitwise_or.op, promote(x1, x2))


@_bitwise(
    np.bitwise_xor, lax.bitwise_xor,
    traits=("commutative", "unit_zero"), method="__xor__ __rxor__", onnx=_bits_onnx("BitwiseXor", "Xor"),
)
def bitwise_xor(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Combine bits elementwise: set where exactly one is.

    Args:
        x1, x2: integers or bools, of shapes that broadcast.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: floating-point operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_xor(6, 3)
        Tensor(5, dtype=int32)
    """
    return bind(bitwise_xor.op, promote(x1, x2))


def _invert_samples(rng: np.random.Generator) -> Any:
    yield Sample((integers(rng, -99, 99, 3, 4),))
    yield Sample((integers(rng, 0, 2, 4, dtype="bool"),))
    yield Bad((normals(rng, 3),), error=DTypeError, text="does not take float32")


@op(
    kernel=np.invert,
    lower=lax.bitwise_not,
    infer=pointwise("bitwise_invert", _BITS),
    vjp=_NO_BITS,
    flops=no_flops,
    samples=_invert_samples,
    traits=("pointwise", "involution"),
    method="__invert__",
    ulp=0,
    onnx=_bits_onnx("BitwiseNot", "Not"),
)
def bitwise_invert(x: TensorLike, /) -> Tensor:
    """Invert every bit; of a bool, its truth.

    Args:
        x: any shape; integers or bools.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: floating-point elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_invert([0, 5])
        Tensor([-1, -6], dtype=int32)
    """
    return bind(bitwise_invert.op, (as_tensor(x),))


def _shift_samples(rng: np.random.Generator) -> Any:
    yield Sample((integers(rng, -99, 99, 3, 4), integers(rng, 0, 31, 4)))
    yield Sample((np.array([5, -5, 5, -5], np.int32), np.array([32, 40, -1, -1], np.int32)))
    yield Sample((np.array([200, 3], np.uint8), np.array([1, 9], np.uint8)))
    yield Bad((normals(rng, 3), 1), error=DTypeError, text="does not take float32, only int, uint")


def _bitwise_left_shift_kernel(a: Any, b: Any) -> Any:
    inside = (b >= 0) & (b < a.dtype.itemsize * 8)
    return np.where(inside, np.left_shift(a, np.where(inside, b, 0)), 0).astype(a.dtype)


def _bitwise_right_shift_kernel(a: Any, b: Any) -> Any:
    width = a.dtype.itemsize * 8
    inside = (b >= 0) & (b < width)
    shifted = np.right_shift(a, np.where(inside, b, 0))
    return np.where(inside, shifted, np.where(a < 0, -1, 0).astype(shifted.dtype)).astype(a.dtype)


_bitwise_left_shift_lower = broadcasting(lax.shift_left)


def _shift_right(a: Any, b: Any) -> Any:
    signed = np.issubdtype(a.dtype, np.signedinteger)
    return lax.shift_right_arithmetic(a, b) if signed else lax.shift_right_logical(a, b)


_bitwise_right_shift_lower = broadcasting(_shift_right)


def _shift_onnx(o: Any, a: Any, b: Any, direction: str) -> Any:
    """Write a shift; ONNX shifts unsigned integers only, so negative numbers are inverted before a right shift."""
    unsigned = np.dtype(f"u{a.dtype}" if a.dtype.kind == "i" else a.dtype)
    width = a.dtype.itemsize * 8
    inside = o.And(o.GreaterOrEqual(b, 0), o.Less(b, width)) if a.dtype.kind == "i" else o.Less(b, width)
    distance = o.cast(o.Where(inside, b, 0), unsigned)
    if direction == "LEFT" or a.dtype.kind == "u":
        shifted = o.BitShift(o.cast(a, unsigned), distance, direction=direction)
        return o.Where(inside, o.cast(shifted, a.dtype), 0)
    negative = o.Less(a, 0)
    bits = o.cast(o.Where(negative, o.BitwiseNot(a), a), unsigned)
    shifted = o.Where(inside, o.cast(o.BitShift(bits, distance, direction=direction), a.dtype), 0)
    return o.Where(negative, o.BitwiseNot(shifted), shifted)


@op(
    kernel=_bitwise_left_shift_kernel,
    lower=_bitwise_left_shift_lower,
    infer=pointwise("bitwise_left_shift", ("int", "uint")),
    vjp=_NO_BITS,
    flops=no_flops,
    samples=_shift_samples,
    traits=("pointwise", "unit_zero"),
    method="__lshift__ __rlshift__",
    ulp=0,
    onnx=lambda o, a, b: _shift_onnx(o, a, b, "LEFT"),
)
def bitwise_left_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Shift bits to the left elementwise, filling with zeros; a distance past the width gives 0.

    A distance below 0 counts as one past the width.

    Args:
        x1, x2: integers, of shapes that broadcast.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: operands that are no integers.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_left_shift(5, 1)
        Tensor(10, dtype=int32)
    """
    return bind(bitwise_left_shift.op, promote(x1, x2))


@op(
    kernel=_bitwise_right_shift_kernel,
    lower=_bitwise_right_shift_lower,
    infer=pointwise("bitwise_right_shift", ("int", "uint")),
    vjp=_NO_BITS,
    flops=no_flops,
    samples=_shift_samples,
    traits=("pointwise", "unit_zero"),
    method="__rshift__ __rrshift__",
    ulp=0,
    onnx=lambda o, a, b: _shift_onnx(o, a, b, "RIGHT"),
)
def bitwise_right_shift(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Shift bits to the right elementwise, keeping the sign; a distance past the width gives 0 or -1.

    A distance below 0 counts as one past the width.

    Args:
        x1, x2: integers, of shapes that broadcast.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: operands that are no integers.

    Example:
        >>> import hybridflow as hf
        >>> hf.bitwise_right_shift(5, 1)
        Tensor(2, dtype=int32)
    """
    return bind(bitwise_right_shift.op, promote(x1, x2))


__all__ = ["bitwise_and", "bitwise_invert", "bitwise_left_shift", "bitwise_or", "bitwise_right_shift", "bitwise_xor"]

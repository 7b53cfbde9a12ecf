"""Functions of the representation of floating-point numbers (signs, neighbours, whole parts), and `hypot`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, bool_, float32, is_floating, kind_of
from hybridflow.core.op import Bad, Each, Flat, Sample, Saves, Stops, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    binary_samples,
    no_flops,
    normals,
    pointwise,
    promote_float,
    unary_samples,
    unbroadcast,
)
from hybridflow.ops.kinds import real_pair, rounding
from hybridflow.ops.onnx import BITS

_SPECIAL = np.array([0.0, -0.0, 1.5, -1.5, np.inf, -np.inf, np.nan, 1e-30], np.float32)
_NO_COMPLEX = Bad((np.array([1j], np.complex64),), error=TypeError, text="does not take complex64")


def _bits(x: Any) -> Any:
    """Return the bits of floats as signed integers."""
    return lax.bitcast_convert_type(x, np.dtype(f"i{x.dtype.itemsize}"))


# -- whole parts --------------------------------------------------------------------------------------------------


def _trunc_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples()(rng)
    yield Sample((_SPECIAL,), gradient=False)
    yield Sample((np.array([0.5, -0.5, 2.7, -2.7, 1e20]),))
    yield Sample((np.array([-3, 4], np.int32),))
    yield _NO_COMPLEX


@rounding(
    lambda x: np.trunc(x) if kind_of(x.dtype) == "float" else x,
    lambda x: lax.select(x < 0, lax.ceil(x), lax.floor(x)) if kind_of(x.dtype) == "float" else x,
    vjp=Flat("rounding is constant almost everywhere"), samples=_trunc_samples, traits=("idempotent",),
    onnx=lambda o, x: o.Where(o.Less(x, 0), o.Ceil(x), o.Floor(x)) if is_floating(x.dtype) else x,
)
def trunc(x: TensorLike, /) -> Tensor:
    """Round every element towards zero.

    Args:
        x: any shape; real.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool or complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.trunc([-1.7, 1.7])
        Tensor([-1.,  1.], dtype=float32)
    """
    return bind(trunc.op, (as_tensor(x),))


# -- signs --------------------------------------------------------------------------------------------------------


def _signbit_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples()(rng)
    yield Sample((_SPECIAL,), gradient=False)
    yield _NO_COMPLEX


@op(
    kernel=np.signbit,
    lower=lambda x: _bits(x) < 0,
    infer=pointwise("signbit", ("float",), bool_),
    vjp=Stops("a truth value has no gradient"),
    flops=no_flops,
    samples=_signbit_samples,
    traits=("pointwise",),
    ulp=0,
    onnx=BITS,
)
def signbit(x: TensorLike, /) -> Tensor:
    """Return whether the sign bit of every element is set, which tells -0.0 from 0.0.

    Args:
        x: any shape; real, integers become float32.

    Returns:
        Bools.

    Raises:
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.signbit([-0.0, 0.0, -2.0])
        Tensor([ True, False,  True], dtype=bool)
    """
    return bind(signbit.op, promote_float(x))


def _copysign_lower(a: Any, b: Any) -> Any:
    return lax.select((_bits(a) < 0) == (_bits(b) < 0), a, -a)


def _sign_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples()(rng)
    yield Sample((_SPECIAL, _SPECIAL[::-1].copy()), gradient=False)
    yield Bad((normals(rng, 2), np.array([1j], np.complex64)), error=TypeError, text="does not take complex64")


@real_pair(
    np.copysign, _copysign_lower,
    vjp=Each(
        lambda F, g, y, a, b: unbroadcast(F, F.where(F.equal(F.signbit(a), F.signbit(b)), g, -g), a),
        lambda F, g, y, a, b: None,
    ),
    saves=Saves(x=(0, 1)), samples=_sign_samples, flops=no_flops, ulp=0, onnx=BITS,
)
def copysign(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Give every element the sign of another; no gradient passes to the second operand.

    Args:
        x1: the sizes; real, integers become float32.
        x2: the signs, of a shape that broadcasts.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.copysign([1.0, -2.0], -0.0)
        Tensor([-1., -2.], dtype=float32)
    """
    return bind(copysign.op, promote_float(x1, x2))


@real_pair(
    np.nextafter, lax.nextafter,
    vjp=Stops("it is a step from one floating-point number to the next, which no slope describes"),
    samples=lambda rng: [s if isinstance(s, Bad) else Sample(s.args, gradient=False) for s in _sign_samples(rng)],
    flops=no_flops, ulp=0, onnx=BITS,
)
def nextafter(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Return the floating-point number next to every element, in the direction of another; no gradient passes.

    Args:
        x1: where to start; real, integers become float32.
        x2: where to go, of a shape that broadcasts.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.nextafter(1.0, 2.0) - 1.0
        Tensor(1.1920929e-07, dtype=float32)
    """
    return bind(nextafter.op, promote_float(x1, x2))


# -- the length of a vector ---------------------------------------------------------------------------------------


def _hypot_lower(a: Any, b: Any) -> Any:
    dtype = a.dtype
    if dtype.num in LOW_PRECISION:
        a, b = a.astype(float32), b.astype(float32)
    a, b = lax.abs(a), lax.abs(b)
    large, small = lax.max(a, b), lax.min(a, b)
    infinite = (a == np.inf) | (b == np.inf)
    one = lax.full_like(a, 1)
    ratio = lax.select(infinite, one, small) / lax.select(infinite | (large == 0), one, large)
    length = large * lax.sqrt(one + ratio * ratio)
    return lax.select(infinite, lax.full_like(a, np.inf), length).astype(dtype)


def _hypot_share(F: Any, g: Any, y: Any, x: Any) -> Any:
    zero = y == 0
    return unbroadcast(F, F.where(zero, 0, g * (x / F.where(zero, 1, y))), x)


def _hypot_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples()(rng)
    large = np.array([3e30, 0.0, -0.0, np.inf, np.nan, np.inf, 1e-30], np.float32)
    yield Sample((large, np.array([4e30, 0.0, 0.0, np.nan, 1.0, -np.inf, 1e-30], np.float32)), gradient=False)
    yield Bad((normals(rng, 2), np.array([1j], np.complex64)), error=TypeError, text="does not take complex64")


def _hypot_onnx(o: Any, a: Any, b: Any) -> Any:
    a, b = o.Abs(a), o.Abs(b)
    large, small = o.Max(a, b), o.Min(a, b)
    ratio = small / o.Where(o.Equal(large, 0), 1, large)
    root = large * o.Sqrt(ratio * ratio + 1)
    return o.Where(o.Or(o.IsInf(a), o.IsInf(b)), np.inf, root)


@real_pair(
    np.hypot, _hypot_lower,
    vjp=Each(
        lambda F, g, y, a, b: _hypot_share(F, g, y, a),
        lambda F, g, y, a, b: _hypot_share(F, g, y, b),
    ),
    saves=Saves(x=(0, 1), y=True), samples=_hypot_samples, traits=("commutative", "full_precision"), onnx=_hypot_onnx,
)
def hypot(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compute ``sqrt(x1 ** 2 + x2 ** 2)`` elementwise without overflow; an infinity wins over NaN.

    The gradient where both are 0 is 0.

    Args:
        x1, x2: real, of shapes that broadcast; integers become float32.

    Returns:
        The promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.hypot(3.0, 4.0)
        Tensor(5., dtype=float32)
    """
    return bind(hypot.op, promote_float(x1, x2))


__all__ = ["copysign", "hypot", "nextafter", "signbit", "trunc"]

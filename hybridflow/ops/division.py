"""Division, remainders and powers, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, float32, is_integer
from hybridflow.core.errors import ArgumentError
from hybridflow.core.op import Bad, Each, Flat, Sample, Saves, op
from hybridflow.core.operators import add_method
from hybridflow.ops.common import (
    FLOATING,
    NUMERIC,
    Tensor,
    TensorLike,
    as_tensor,
    binary_samples,
    broadcast_lowered,
    broadcasting,
    call_text,
    elements,
    integers,
    met_shape,
    normals,
    of_operands,
    pointwise,
    positives,
    promote,
    promote_float,
    promote_full,
    unary_samples,
    unbroadcast,
)
from hybridflow.ops.kinds import floating, numeric, rounding
from hybridflow.ops.xla_algebra import hidden, hidden_result, product, wrapping_power

# -- division -----------------------------------------------------------------------------------------------------


def _divide_lower(a: Any, b: Any) -> Any:
    """Divide; XLA makes ``a / b / c`` ``a / (b * c)``, and ``a / 3e38`` 0."""
    return lax.div(a, b) if a.dtype.kind == "c" else hidden_result(lax.div(a, hidden(b, a)))


@op(
    kernel=np.divide,
    lower=broadcasting(_divide_lower),
    infer=pointwise("divide", FLOATING),
    vjp=of_operands(lambda F, g, y, a, b: g / b, lambda F, g, y, a, b: -g * (a / b) / b),
    saves=Saves(x=(0, 1), each=((1,), (0, 1))),
    flops=elements,
    samples=binary_samples(positives),
    traits=("pointwise", "unit_one"),
    method="__truediv__ __rtruediv__",
    ulp=1,
    onnx="Div",
)
def divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Divide elementwise.

    Division by zero gives an infinity or NaN, as IEEE 754 says.

    Args:
        x1, x2: of shapes that broadcast; integers become float32.

    Returns:
        The quotient, in the promoted floating-point dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.divide([1, 3], 2)
        Tensor([0.5, 1.5], dtype=float32)
    """
    return bind(divide.op, promote_float(x1, x2))


@floating(
    np.reciprocal, lambda x: hidden_result(lax.div(np.ones((), x.dtype) if x.ndim == 0 else lax.full_like(x, 1), x)),
    vjp=lambda F, g, y, x: (-g * (y * y),), saves=Saves(y=True), samples=unary_samples(positives),
    traits=("full_precision",), ulp=1, onnx="Reciprocal",
)
def reciprocal(x: TensorLike, /) -> Tensor:
    """Divide one by every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.reciprocal([2.0, 4.0])
        Tensor([0.5 , 0.25], dtype=float32)
    """
    return bind(reciprocal.op, promote_float(x))


def _divide_floats(a: Any, b: Any) -> tuple[Any, Any]:
    """Return quotient and remainder as Python's divmod does, in the steps in which NumPy computes them."""
    zero = lax.full_like(a, 0)
    rest = lax.rem(a, b)
    quotient = (a - rest) / b
    opposite = (rest != 0) & ((b < 0) != (rest < 0))
    quotient = lax.select(opposite, quotient - 1, quotient)
    rest = lax.select(opposite, rest + b, rest)
    rest = lax.select(rest == 0, _copy_sign(zero, b), rest)
    whole = lax.floor(quotient)
    whole = lax.select(quotient - whole > 0.5, whole + 1, whole)
    whole = lax.select(quotient == 0, _copy_sign(zero, a / b), whole)
    infinite, endless = lax.abs(a) == np.inf, lax.abs(b) == np.inf
    whole = lax.select(infinite != endless, a / b, whole)
    by_zero = b == 0
    return lax.select(by_zero, a / b, whole), lax.select(by_zero, lax.full_like(a, np.nan), rest)


def _copy_sign(zero: Any, sign: Any) -> Any:
    """Return a zero with the sign of another number."""
    negative = (sign < 0) | ((sign == 0) & (1 / sign < 0))
    return lax.select(negative, -zero, zero)


def _divide_integers(a: Any, b: Any) -> tuple[Any, Any]:
    """Return quotient and remainder rounded down; both are 0 where the divisor is."""
    by_zero = b == 0
    safe = lax.select(by_zero, lax.full_like(b, 1), b)
    quotient, rest = lax.div(a, safe), lax.rem(a, safe)
    if np.issubdtype(a.dtype, np.signedinteger):
        opposite = (rest != 0) & ((b < 0) != (rest < 0))
        quotient = lax.select(opposite, quotient - 1, quotient)
        rest = lax.select(opposite, rest + b, rest)
    zero = lax.full_like(a, 0)
    return lax.select(by_zero, zero, quotient), lax.select(by_zero, zero, rest)


def _divmod_lower(part: int) -> Any:
    def lowered(a: Any, b: Any) -> Any:
        shape = met_shape(a.shape, b.shape)
        a, b = broadcast_lowered(a, shape), broadcast_lowered(b, shape)
        if is_integer(a.dtype):
            return _divide_integers(a, b)[part]
        if a.dtype.num in LOW_PRECISION:
            return _divide_floats(a.astype(float32), b.astype(float32))[part].astype(a.dtype)
        return _divide_floats(a, b)[part]

    return lowered


def _divmod_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples(positives)(rng)
    a = np.array([7, -7, 7, -7, 5, 0, -128], np.int8)
    b = np.array([2, 2, -2, -2, 0, 0, -1], np.int8)
    yield Sample((a, b))
    yield Sample((np.array([7, 5], np.uint8), np.array([2, 0], np.uint8)))
    special = np.array([5.5, -5.5, 0.0, -0.0, 1.0, np.inf, 1.0, np.nan, -1.0], np.float32)
    divisor = np.array([-2.0, 2.0, 3.0, 3.0, 0.0, 2.0, np.inf, 1.0, np.inf], np.float32)
    yield Sample((special, divisor), gradient=False)
    yield Bad((np.array([True]), np.array([True])), error=TypeError, text="does not take bool")


def _floor_divide_kernel(a: Any, b: Any) -> Any:
    """Divide and round down; NumPy gives NaN for an infinite dividend, and -1 for a small one by an infinite divisor.

    The true quotient, infinite or a zero, is what the standard asks for.
    """
    y = np.floor_divide(a, b)
    if y.dtype.kind != "f" or (np.isfinite(y).all() and np.isfinite(b).all()):
        return y
    return np.where(np.isinf(a) != np.isinf(b), a / b, y)


def _divmod_onnx(part: int) -> Any:
    """Return the builder of quotient or remainder, in the steps of the lowering."""
    return lambda o, a, b: (_onnx_integers if is_integer(a.dtype) else _onnx_floats)(o, a, b)[part]


def _onnx_integers(o: Any, a: Any, b: Any) -> tuple[Any, Any]:
    by_zero = o.Equal(b, 0)
    if a.dtype.kind == "u":
        safe = o.Where(by_zero, 1, b)
        return o.Where(by_zero, 0, a / safe), o.Mod(a, safe)
    negates = o.Equal(b, -1)  # the smallest integer divided by -1 overflows, which may stop the process
    safe = o.Where(o.Or(by_zero, negates), 1, b)
    rest = o.Mod(a, safe)
    quotient = o.Where(by_zero, 0, o.Where(negates, 0 - a, (a - rest) / safe))
    return quotient, rest


def _onnx_floats(o: Any, a: Any, b: Any) -> tuple[Any, Any]:
    rest = o.Mod(a, b, fmod=1)
    quotient = (a - rest) / b
    opposite = o.And(o.Not(o.Equal(rest, 0)), o.Xor(o.Less(b, 0), o.Less(rest, 0)))
    quotient, rest = o.Where(opposite, quotient - 1, quotient), o.Where(opposite, rest + b, rest)
    whole = o.Floor(quotient)
    whole = o.Where(o.Greater(quotient - whole, 0.5), whole + 1, whole)
    whole = o.Where(o.Xor(o.IsInf(a), o.IsInf(b)), a / b, whole)
    by_zero = o.Equal(b, 0)
    return o.Where(by_zero, a / b, whole), o.Where(by_zero, np.nan, rest)


@rounding(
    _floor_divide_kernel, _divmod_lower(0),
    vjp=Flat("it is constant almost everywhere"), samples=_divmod_samples, method="__floordiv__ __rfloordiv__", ulp=1,
    onnx=_divmod_onnx(0),
)
def floor_divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Divide elementwise and round down.

    An integer divided by zero gives 0. The smallest integer divided by -1 gives itself. Floats follow IEEE 754; if just
    one of the two is infinite, the result is the quotient, an infinity or a zero.

    Args:
        x1, x2: real, of shapes that broadcast.

    Returns:
        The rounded quotient, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool or complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.floor_divide([7, -7, 1], [2, 2, 0])
        Tensor([ 3, -4,  0], dtype=int32)
    """
    return bind(floor_divide.op, promote(x1, x2))


@rounding(
    np.remainder, _divmod_lower(1),
    vjp=Each(
        lambda F, g, y, a, b: unbroadcast(F, g, a),
        lambda F, g, y, a, b: unbroadcast(F, -g * F.floor_divide(a, b), b),
    ),
    saves=Saves(x=(0, 1), each=((), (0, 1))), samples=_divmod_samples, method="__mod__ __rmod__", ulp=1,
    onnx=_divmod_onnx(1),
)
def remainder(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compute the remainder of `floor_divide`, which has the sign of the divisor.

    The remainder of an integer divided by zero is 0, that of a float NaN.

    Args:
        x1, x2: real, of shapes that broadcast.

    Returns:
        The remainder, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool or complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.remainder([7, -7, 1], [3, 3, 0])
        Tensor([1, 2, 0], dtype=int32)
    """
    return bind(remainder.op, promote(x1, x2))


# -- powers -------------------------------------------------------------------------------------------------------


@numeric(
    np.square, lambda x: product(x, x) if x.dtype.kind == "i" else lax.square(x),
    vjp=lambda F, g, y, x: (g * (2 * x),), saves=Saves(x=(0,)), traits=("full_precision",), method="square", ulp=0.5,
    onnx=lambda o, x: o.Mul(x, x),
)
def square(x: TensorLike, /) -> Tensor:
    """Multiply every element by itself.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.square([2, 3])
        Tensor([4, 9], dtype=int32)
    """
    (tensor,) = promote(x)
    return bind(square.op, (tensor,))


def _integer_power_kernel(x: Any, *, exponent: int) -> Any:
    result = None
    left = abs(exponent)
    while left:
        if left & 1:
            result = x if result is None else result * x
        left >>= 1
        if left:
            x = x * x
    if result is None:
        return np.ones_like(x)
    return np.reciprocal(result) if exponent < 0 else result


def _integer_power_vjp(F: Any, g: Any, y: Any, x: Any, *, exponent: int) -> Any:
    del y
    if exponent == 0:
        return (g * 0,)
    return (g * (exponent * F.integer_power(x, exponent=exponent - 1)),)


def _integer_power_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),), {"exponent": 3})
    yield Sample((positives(rng, 3),), {"exponent": -2})
    yield Sample((normals(rng),), {"exponent": 1})
    yield Sample((np.array([0.0, 2.0], np.float32),), {"exponent": 0})
    yield Sample((normals(rng, 0, 2, dtype="float64"),), {"exponent": 5})
    yield Sample((integers(rng, -5, 5, 4),), {"exponent": 5})
    yield Bad((integers(rng, 1, 5, 4),), {"exponent": -1}, error=ValueError, text="negative")


def _integer_power_infer(x: Any, *, exponent: int) -> Any:
    spec = pointwise("integer_power", NUMERIC)(x)
    if exponent < 0 and is_integer(x.dtype):
        raise ArgumentError(f"integer_power: integers have no power of the negative exponent {exponent}",
                            got=call_text("integer_power", x), hint="Cast to a float first, or use hf.power.")
    return spec


def _integer_power_onnx(o: Any, x: Any, *, exponent: int) -> Any:
    power = None
    left, square = abs(exponent), x
    while left:
        if left & 1:
            power = square if power is None else power * square
        left >>= 1
        square = square * square if left else square
    if power is None:
        return o.Expand(o.value(1, x.dtype), o.Shape(x))
    return o.Reciprocal(power) if exponent < 0 else power


@op(
    kernel=_integer_power_kernel,
    lower=lambda x, exponent: wrapping_power(x, exponent),
    infer=_integer_power_infer,
    vjp=_integer_power_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=_integer_power_samples,
    traits=("pointwise", "inner", "full_precision"),
    ulp=16,
    onnx=_integer_power_onnx,
)
def integer_power(x: TensorLike, /, *, exponent: int) -> Tensor:
    """Raise every element to a fixed integer power by repeated multiplication, as ``x ** 3`` does.

    Args:
        x: any shape; numeric.
        exponent: the power; not negative if `x` holds integers.

    Returns:
        The same shape and dtype.

    Raises:
        ArgumentError: a negative power of integers.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.division import integer_power
        >>> integer_power([2, 3], exponent=3)
        Tensor([ 8, 27], dtype=int32)
    """
    (tensor,) = promote(x)
    _integer_power_infer(tensor.spec, exponent=exponent)
    return bind(integer_power.op, (tensor,), {"exponent": int(exponent)})


def _power_kernel(a: Any, b: Any) -> Any:
    if a.dtype.kind not in "iu":
        return _float_power(a, b)
    negative = b < 0
    if not negative.any():
        return np.power(a, b)
    # 1/a rounded towards 0: only 1 and -1 have an inverse, and 0 is given none.
    inverse = np.where(a == 1, a, np.where(a == -1, 1 - 2 * (b & 1), 0)).astype(a.dtype)
    return np.where(negative, inverse, np.power(a, np.where(negative, 0, b)))


def _float_power(a: Any, b: Any) -> Any:
    """Raise to powers as IEEE 754 says; NumPy takes roots for ``a ** 0.5``: NaN for -inf and -0.0 for -0.0."""
    y = np.power(a, b)
    half = b == 0.5
    if a.dtype.kind == "c" or not half.any():
        return y
    return np.where(half & ((a == -np.inf) | (a == 0)), np.abs(a), y)


def _integer_power_lower(a: Any, b: Any) -> Any:
    signed = np.issubdtype(a.dtype, np.signedinteger)
    one, zero = lax.full_like(a, 1), lax.full_like(a, 0)
    negative = b < 0 if signed else lax.full_like(b, False, bool)
    bits = a.dtype.itemsize * 8 - int(signed)

    def step(_: Any, state: Any) -> Any:
        left, factor, result = state
        result = lax.select((left & 1) != 0, result * factor, result)
        return lax.shift_right_logical(left, one), factor * factor, result

    _, _, result = lax.fori_loop(0, bits, step, (lax.select(negative, zero, b), a, one))
    if not signed:
        return result
    parity = one - 2 * (b & 1)
    inverse = lax.select(a == 1, one, lax.select(a == -1, parity, zero))
    return lax.select(negative, inverse, result)


def _power_lower(a: Any, b: Any) -> Any:
    shape = met_shape(a.shape, b.shape)
    a, b = broadcast_lowered(a, shape), broadcast_lowered(b, shape)
    if is_integer(a.dtype):
        return _integer_power_lower(a, b)
    y = hidden_result(lax.pow(a, b))
    if not np.issubdtype(a.dtype, np.complexfloating):
        return y
    return lax.select((a == 0) & (lax.real(b) > 0), lax.full_like(y, 0), y)  # XLA takes the logarithm of 0: NaN


def _power_of_base(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    del y
    constant = F.logical_and(b == 0, F.logical_not(F.abs(a) > 0))  # 0 ** 0; elsewhere the slope depends on b
    slope = b * F.power(a, F.where(constant, 1, b - 1))
    return unbroadcast(F, g * F.where(constant, 0, slope), a)


def _power_of_exponent(F: Any, g: Any, y: Any, a: Any, b: Any) -> Any:
    at_zero = a == 0
    slope = y * F.log(F.where(at_zero, 1, a))
    return unbroadcast(F, g * F.where(at_zero, 0, slope), b)


def _power_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples(positives)(rng)
    yield Sample((normals(rng, 3), 2))
    yield Sample((positives(rng, 3), -1))
    yield Sample((2.0, normals(rng, 3)))
    yield Sample((integers(rng, -4, 5, 6), integers(rng, 0, 5, 6)))
    bases = np.array([2, 1, -1, -1, 0, 0, 3], np.int32)
    yield Sample((bases, np.array([-1, -3, -3, -2, -1, 0, 30], np.int32)))
    zeros = np.array([0.0, 0.0, 2.0, -2.0, np.inf, np.nan], np.float32)
    yield Sample((zeros, np.array([0.0, 2.0, 0.0, 3.0, -1.0, 0.0], np.float32)), gradient=False)
    origins = np.array([0, 0, 0, -0.0, 1], np.complex64)
    yield Sample((origins, np.array([2 + 3j, 1, 0, 0.5 - 2j, 2 + 3j], np.complex64)), gradient=False)
    yield Bad((np.array([True]), np.array([True])), error=TypeError, text="does not take bool")


def _power_onnx(o: Any, a: Any, b: Any) -> Any:
    if is_integer(a.dtype):
        o.no("ONNX leaves open what powers of integers are that are too large or negative")
    return o.Pow(a, b)


@numeric(
    _power_kernel, _power_lower,
    vjp=Each(_power_of_base, _power_of_exponent), saves=Saves(x=(0, 1), y=True, each=((0, 1), (0, -1))),
    samples=_power_samples, traits=("full_precision",), method="__pow__ __rpow__", ulp=16, onnx=_power_onnx,
)
def power(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Raise elementwise to a power.

    A small integer exponent given as a Python number multiplies repeatedly. An integer raised to a negative power
    is 1 or -1 if its base is, else 0. The gradient of ``0 ** y`` for `y`, and of ``x ** 0`` for `x`, is 0.

    Args:
        x1, x2: numeric, of shapes that broadcast.

    Returns:
        The power, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.power([1.0, 2.0], 3)
        Tensor([1., 8.], dtype=float32)
    """
    if type(x2) is int and -_REPEATED <= x2 <= _REPEATED:
        base = as_tensor(x1)
        if x2 == 2:
            return square(base)
        if x2 >= 0 or not is_integer(base.dtype):
            return integer_power(base, exponent=x2)
    return bind(power.op, promote_full(x1, x2))


_REPEATED = 16
"""The largest exponent that is multiplied out."""


pow = power
"""The name that the Array API standard gives to `power`."""


def _divmod(x: Tensor, other: Any, /) -> tuple[Tensor, Tensor]:
    """Divide elementwise: the quotients rounded down, and the remainders."""
    return x // other, x % other


def _reflected_divmod(x: Tensor, other: Any, /) -> tuple[Tensor, Tensor]:
    """Divide another value elementwise by this one: the quotients rounded down, and the remainders."""
    return other // x, other % x


add_method("__divmod__", _divmod)
add_method("__rdivmod__", _reflected_divmod)

__all__ = ["divide", "floor_divide", "pow", "power", "reciprocal", "remainder", "square"]

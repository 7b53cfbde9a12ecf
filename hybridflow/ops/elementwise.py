"""Casts, sums, products, signs and rounding, elementwise."""

from __future__ import annotations

import builtins
from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.core.convert import Wide
from hybridflow.core.device import DeviceLike
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import (
    as_dtype,
    float64,
    is_differentiable,
    is_floating,
    is_integer,
    kind_of,
    real_dtype,
)
from hybridflow.core.errors import ArgumentError, DTypeError
from hybridflow.core.op import REGISTRY, Bad, Flat, Sample, Saves, Stops, op
from hybridflow.core.operators import add_method
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    cast_to,
    elements,
    integers,
    make_spec,
    no_flops,
    normals,
    require_kind,
    truth,
    unary_samples,
)
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.kinds import numeric, rounding
from hybridflow.ops.onnx import on_floats
from hybridflow.ops.xla_algebra import absolute

# -- casts --------------------------------------------------------------------------------------------------------


def _drops_imaginary(x: Any, dtype: Any) -> bool:
    """Whether a cast drops imaginary parts; NumPy and jax warn about that unless it is explicit."""
    return x.dtype.kind == "c" and dtype.kind not in "cb"


def _astype_kernel(x: Any, *, dtype: Any) -> Any:
    x = x.real if _drops_imaginary(x, dtype) else x
    return _saturated(x, dtype) if dtype.kind in "iu" and is_floating(x.dtype) else x.astype(dtype)


def _saturated(x: Any, dtype: Any) -> Any:
    """Cast floats to integers as XLA does: round towards zero, saturate at the dtype's limits, turn NaN into 0.

    NumPy casts as C does, where the result for numbers outside the range depends on the machine.
    """
    wide = x if x.dtype.itemsize >= 4 else x.astype(np.float32)
    info = np.iinfo(dtype)
    low, high = wide.dtype.type(info.min - 1), wide.dtype.type(info.max + 1)
    result = wide.astype(dtype)
    inside = (wide > low) & (wide < high)
    if inside.all():
        return result
    outside = np.where(wide >= high, dtype.type(info.max), np.where(wide <= low, dtype.type(info.min), dtype.type(0)))
    return np.where(inside, result, outside)


def _astype_lower(x: Any, *, dtype: Any) -> Any:
    if x.dtype == bool and is_floating(dtype):
        # XLA turns a product with a converted bool into a select, in which NaN * 0 is 0; it leaves products of bits
        # alone.
        bits = np.dtype(f"int{8 * dtype.itemsize}")
        one = np.ones((), dtype).view(bits)
        return lax.bitcast_convert_type(lax.convert_element_type(x, bits) * one, dtype)
    if x.dtype == bool and dtype.kind == "c":
        part = np.empty((), dtype).real.dtype
        return lax.complex(_astype_lower(x, dtype=part), lax.full_like(x, 0, part))
    if x.dtype.kind == "c" and dtype.kind == "b":
        return lax.ne(x, lax.full_like(x, 0))  # XLA's own conversion looks at the real part only
    return lax.convert_element_type(lax.real(x) if _drops_imaginary(x, dtype) else x, dtype)


def _astype_vjp(F: Any, g: Any, y: Any, x: Any, *, dtype: Any) -> Any:
    del y, dtype
    return (F.astype(g, dtype=x.dtype) if is_differentiable(x.dtype) else None,)


def _astype_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 2), "float64"))
    yield Sample((integers(rng, -5, 5, 4), "float32"))
    yield Sample((normals(rng, 3), "bfloat16"), gradient=False)
    yield Sample((normals(rng, 3), "int32"), gradient=False)
    extreme = np.array([0.9, -0.9, -1.5, 127.5, 128.5, 255.5, 300.0, -1e5, 3e9, -3e9, 1e19, 2e19])
    extreme = np.append(extreme, [np.inf, -np.inf, np.nan])
    for target in ("int8", "uint8", "int32", "uint32", "int64", "uint64"):
        yield Sample((extreme.astype(np.float32), target), gradient=False)
        yield Sample((extreme, target), gradient=False)
    yield Sample((np.array([-0.5, -2.0, 300.0, np.inf, np.nan], np.float16), "uint8"), gradient=False)
    yield Sample((integers(rng, 0, 2, 3), "bool"))
    yield Sample((normals(rng, 3) + np.complex64(2j), "float64"), gradient=False)
    yield Sample((np.array([0, 2j, -1, np.nan, complex(0.0, np.inf)], np.complex64), "bool"), gradient=False)
    yield Bad((normals(rng, 3), "float7"), error=TypeError, text="is not a hybridflow dtype")


def _astype_onnx(o: Any, x: Any, *, dtype: Any) -> Any:
    """Write a cast that saturates: in ONNX, the result of a float outside the integers' range is undefined."""
    if dtype.kind not in "iu" or not is_floating(x.dtype):
        return o.cast(x, dtype)
    info = np.iinfo(dtype)
    low, high = x.dtype.type(info.min - 1), x.dtype.type(info.max + 1)
    below, above = o.LessOrEqual(x, low), o.GreaterOrEqual(x, high)
    cast = o.cast(o.Where(o.Or(o.Or(below, above), o.IsNaN(x)), 0, x), dtype)
    return o.Where(above, info.max, o.Where(below, info.min, cast))


@op(
    kernel=_astype_kernel,
    lower=_astype_lower,
    infer=lambda x, *, dtype: make_spec(x.shape, dtype),
    vjp=_astype_vjp,
    flops=no_flops,
    samples=_astype_samples,
    traits=("pointwise", "layout", "conversion"),
    method="astype",
    onnx=_astype_onnx,
)
def astype(x: TensorLike, /, dtype: Any, *, copy: bool = True, device: DeviceLike = None) -> Tensor:
    """Convert to another dtype; the gradient is converted back.

    Floats become integers towards zero; one outside the range becomes the nearest integer there is, and NaN becomes 0.
    An integer that does not fit wraps, a complex number loses its imaginary part, and what is not 0 becomes True.

    Args:
        x: any shape and dtype.
        dtype: a dtype or its name.
        copy: ignored; it is here because the Array API has it. Tensors are immutable, so a tensor that already has the
            dtype is returned itself.
        device: the device to put the result on; that of `x` if not given.

    Returns:
        The tensor of the same shape in the dtype.

    Raises:
        DTypeError: hybridflow has no such dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.astype([1.5, 2.5], hf.int32)
        Tensor([1, 2], dtype=int32)
    """
    copy = truth("astype", "copy", copy)
    del copy
    target = as_dtype(dtype)
    tensor = as_tensor(x)
    if target == float64 and tensor.dtype != target:
        Wide.came_in(1)
    converted = cast_to(tensor, target)
    return converted if device is None else converted.to(device)


# -- size and sign ------------------------------------------------------------------------------------------------


def _abs_infer(x: TensorSpec) -> TensorSpec:
    require_kind("abs", NUMERIC, x)
    return make_spec(x.shape, real_dtype(x.dtype))


_complex_abs_vjp = RuleFromLowering("abs")


def _abs_vjp(F: Any, g: Any, y: Any, x: Any) -> Any:
    if kind_of(x.dtype) == "complex":
        return _complex_abs_vjp(F, g, y, x)
    return (g * F.sign(x),)


def _away_from_zero(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    x = normals(rng, *shape, dtype=dtype)
    return np.asarray(x + np.where(x < 0, -0.5, 0.5), dtype=x.dtype)


def _abs_lower(x: Any) -> Any:
    if kind_of(x.dtype) == "uint":
        return x
    size = absolute(x)
    if kind_of(x.dtype) != "complex":
        return size
    infinite = (lax.abs(lax.real(x)) == np.inf) | (lax.abs(lax.imag(x)) == np.inf)
    return lax.select(infinite, lax.full_like(size, np.inf), size)


def _abs_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples(_away_from_zero)(rng)
    yield Sample((np.array([-128, 127, 0], np.int8),))
    yield Sample((np.array([0.0, -0.0, -np.inf, np.nan], np.float32),), gradient=False)
    yield Sample((np.array([3 + 4j, -1j], np.complex64),), gradient=False)
    yield Bad((np.array([True]),), error=DTypeError, text="abs: does not take bool")


@op(
    kernel=np.abs,
    lower=_abs_lower,
    infer=_abs_infer,
    vjp=_abs_vjp,
    saves=Saves(x=(0,)),
    flops=elements,
    samples=_abs_samples,
    traits=("pointwise", "idempotent"),
    method="__abs__ abs",
    ulp=1,
    onnx="Abs",
)
def abs(x: TensorLike, /) -> Tensor:
    """Compute the absolute value of every element.

    The smallest integer of a dtype, which has no counterpart, stays as it is. The gradient at 0 is 0.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape; complex elements give floats of their width.

    Raises:
        DTypeError: bool elements.

    Kink:
        There is no derivative at 0; the gradient there is 0.

    Example:
        >>> import hybridflow as hf
        >>> hf.abs([-1, 2])
        Tensor([1, 2], dtype=int32)
    """
    return bind(abs.op, (as_tensor(x),))


def _sign_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples(_away_from_zero)(rng)
    yield Sample((np.array([0.0, -0.0, np.inf, np.nan], np.float32),), gradient=False)
    yield Sample((np.array([-5, 0, 7], np.int32),))
    yield Sample((np.array([0, 7], np.uint8),))


@rounding(
    np.sign, lambda x: lax.select(x == 0, lax.full_like(x, 0), lax.sign(x)),
    vjp=Flat("the sign is constant almost everywhere"), samples=_sign_samples, traits=("idempotent",), onnx="Sign",
)
def sign(x: TensorLike, /) -> Tensor:
    """Return -1, 0 or 1 by the sign of every element; of -0.0 it is 0.0, and NaN stays NaN.

    Of a complex number the sign is ``x / abs(x)``, and of 0 it is 0; that, unlike the real sign, has a gradient.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.sign([-3.0, 0.0, 2.0])
        Tensor([-1.,  0.,  1.], dtype=float32)
    """
    tensor = as_tensor(x)
    return _complex_sign(tensor) if kind_of(tensor.dtype) == "complex" else bind(sign.op, (tensor,))


def _complex_sign(x: Tensor) -> Tensor:
    """Divide complex numbers by their absolute value; 0 gives 0."""
    divide, equal, where = (cast(Any, REGISTRY[name].public) for name in ("divide", "equal", "where"))
    size = abs(x)
    zero = equal(size, 0)
    return where(zero, 0, divide(x, where(zero, 1, size)))


# -- rounding -----------------------------------------------------------------------------------------------------

_FLAT = Flat("rounding is constant almost everywhere")


def _rounding_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples()(rng)
    yield Sample((np.array([0.5, 1.5, -0.5, -0.2, -2.5, np.inf, np.nan, 1e20], np.float32),), gradient=False)
    yield Sample((np.array([-3, 4], np.int32),))
    yield Bad((np.array([1j], np.complex64),), error=DTypeError, text="does not take complex64")


def _rounding(round_floats: Any) -> Any:
    """Return a rounding that leaves integers alone."""
    return lambda x: round_floats(x) if kind_of(x.dtype) == "float" else x


@rounding(
    _rounding(np.floor), _rounding(lax.floor),
    vjp=_FLAT, samples=_rounding_samples, traits=("idempotent",), onnx=on_floats("Floor"),
)
def floor(x: TensorLike, /) -> Tensor:
    """Round every element down.

    Args:
        x: any shape; real.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool or complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.floor([1.5, -1.5])
        Tensor([ 1., -2.], dtype=float32)
    """
    return bind(floor.op, (as_tensor(x),))


@rounding(
    _rounding(np.ceil), _rounding(lax.ceil),
    vjp=_FLAT, samples=_rounding_samples, traits=("idempotent",), onnx=on_floats("Ceil"),
)
def ceil(x: TensorLike, /) -> Tensor:
    """Round every element up.

    Args:
        x: any shape; real.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool or complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.ceil([1.5, -1.5])
        Tensor([ 2., -1.], dtype=float32)
    """
    return bind(ceil.op, (as_tensor(x),))


def _round_lower(x: Any) -> Any:
    if kind_of(x.dtype) == "complex":
        return lax.complex(_round_lower(lax.real(x)), _round_lower(lax.imag(x)))
    return lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN) if kind_of(x.dtype) == "float" else x


def _round_samples(rng: np.random.Generator) -> Any:
    yield from [sample for sample in _rounding_samples(rng) if isinstance(sample, Sample)]
    yield Sample((np.array([0.5 - 1.5j, -0.2 + 2.7j, complex(np.inf, np.nan)], np.complex64),), gradient=False)
    yield Bad((np.array([True]),), error=DTypeError, text="does not take bool")


@numeric(
    lambda x: x if kind_of(x.dtype) in ("int", "uint") else np.rint(x), _round_lower,
    vjp=_FLAT, samples=_round_samples, traits=("idempotent",), method="round", ulp=0, onnx=on_floats("Round"),
)
def round(x: TensorLike, /) -> Tensor:
    """Round every element to the nearest whole number, halves to the even one; of complex numbers each part.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.round([0.5, 1.5, 2.7])
        Tensor([0., 2., 3.], dtype=float32)
    """
    return bind(round.op, (as_tensor(x),))


def _to_digits(x: Tensor, digits: int | None = None) -> Tensor:
    """Round to decimal digits, as Python's `round` does; without one, to whole numbers of the same dtype.

    Raises:
        ArgumentError: digits before the point of integers.
    """
    tensor = as_tensor(x)
    if not digits or (is_integer(tensor.dtype) and digits > 0):
        return round(tensor)
    if is_integer(tensor.dtype):
        raise ArgumentError(f"round: {digits} digits of integers", got=str(tensor.spec),
                            hint="Use x // 10 * 10, or floats.")
    scale = 10.0 ** builtins.abs(digits)
    shifted = cast(Any, tensor)
    return round(shifted * scale) / scale if digits > 0 else round(shifted / scale) * scale


add_method("__round__", _to_digits)


# -- gradients ----------------------------------------------------------------------------------------------------


@op(
    kernel=lambda x: x,
    lower=lambda x: x,
    infer=lambda x: make_spec(x.shape, x.dtype),
    vjp=Stops("hf.stop_gradient was asked for"),
    flops=no_flops,
    samples=unary_samples(),
    traits=("pointwise", "layout", "identity"),
    ulp=0,
    onnx="Identity",
)
def stop_gradient(x: TensorLike, /) -> Tensor:
    """Return a tensor through which no gradient passes.

    Args:
        x: any shape and dtype.

    Returns:
        The same value.

    Example:
        >>> import hybridflow as hf
        >>> hf.stop_gradient([1.0, 2.0])
        Tensor([1., 2.], dtype=float32)
    """
    return bind(stop_gradient.op, (as_tensor(x),))


__all__ = ["abs", "astype", "ceil", "floor", "round", "sign", "stop_gradient"]

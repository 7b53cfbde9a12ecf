"""Numbers as small integers: `quantize_linear`, its inverse, their composition with a gradient, and packed int4.

A real number is ``(stored - zero_point) * scale``. Both modes and ONNX follow one rule: the quotient is rounded to the
nearest integer, halves to the even one, and what lies outside the format's range becomes its nearest end, infinities
too. NaN, which integers do not have, becomes the zero point; float8 keeps it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import DType, as_dtype, float32, float64, int8, uint8
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_shapes,
    call_text,
    cast_to,
    make_spec,
    normalize_axis,
    normals,
    one_of,
    promote_float,
    require_kind,
    unbroadcast,
)
from hybridflow.ops.nn.common import compute_dtype
from hybridflow.ops.shape import reshape
from hybridflow.ops.xla_algebra import hidden


class Format(NamedTuple):
    """A format of stored numbers.

    Attributes:
        low, high: the ends of its range.
        stored: the dtype of the array that holds them.
        float8: the dtype of jax whose bits are stored, for float8.
    """

    low: float
    high: float
    stored: DType
    float8: Any = None


def _float8(dtype: Any) -> Format:
    largest = float(ml_dtypes.finfo(dtype).max)
    return Format(-largest, largest, uint8, np.dtype(dtype))


FORMATS = {
    "int8": Format(-128, 127, int8), "uint8": Format(0, 255, uint8), "int4": Format(-8, 7, int8),
    "float8_e4m3fn": _float8(ml_dtypes.float8_e4m3fn), "float8_e5m2": _float8(ml_dtypes.float8_e5m2),
}
"""The formats by name. int4 is stored in int8, one number per byte, until `pack_int4`; float8 as its bits."""


def in_format(stored: Any, format: Format, beside: Any) -> Any:
    """Return stored numbers, NumPy's or jax's, in the dtype of `beside`."""
    if format.float8 is None:
        return stored.astype(beside.dtype)
    if isinstance(stored, np.ndarray | np.generic):
        return np.asarray(stored).view(format.float8).astype(beside.dtype)
    return lax.bitcast_convert_type(stored, format.float8).astype(beside.dtype)


def _require_stored(zero_point: Any, format: Format) -> None:
    """Raise unless a zero point has the dtype of stored numbers; the shape rule then raises the full message."""
    if zero_point is not None and (zero_point.dtype != format.stored or format.float8 is not None):
        raise ValueError("a zero point of another dtype")


# -- quantize -----------------------------------------------------------------------------------------------------


def quantize_on_host(x: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    """Compute `quantize_linear` of NumPy arrays."""
    format, wide = FORMATS[dtype], compute_dtype(x.dtype)
    _require_stored(zero_point, format)
    value = x.astype(wide, copy=False) / scale.astype(wide, copy=False)
    if format.float8 is not None:
        return np.clip(value, format.low, format.high).astype(np.float32).astype(format.float8).view(np.uint8)
    value = np.where(value == value, np.rint(value), wide.type(0))
    if zero_point is not None:
        value = value + zero_point.astype(wide)
    return np.clip(value, format.low, format.high).astype(format.stored)


def quantize_lowered(x: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    """Compute `quantize_linear` of jax's arrays."""
    format, wide = FORMATS[dtype], compute_dtype(np.dtype(x.dtype))
    x, scale = jnp.broadcast_arrays(x.astype(wide), scale.astype(wide))
    value = lax.div(x, hidden(scale, x))  # by a constant, XLA multiplies by its reciprocal, which rounds differently
    if format.float8 is not None:
        small = jnp.clip(value, format.low, format.high).astype(jnp.float32).astype(format.float8)
        return lax.bitcast_convert_type(small, jnp.uint8)
    value = jnp.where(value == value, lax.round(value, lax.RoundingMethod.TO_NEAREST_EVEN), 0)
    if zero_point is not None:
        value = value + zero_point.astype(wide)
    return jnp.clip(value, format.low, format.high).astype(format.stored)


def _require_scale(name: str, scale: TensorSpec, zero: tuple[TensorSpec, ...], stored: DType, text: str) -> None:
    require_kind(name, ("float",), scale)
    for one in zero:
        if one.dtype != stored:
            raise DTypeError(f"{name}: the zero point is {one.dtype}, the numbers are stored in {stored}", got=text,
                             hint=f"Cast it with .astype({str(stored)!r}).")


def _require_format(name: str, dtype: str, zero: tuple[Any, ...]) -> Format:
    format = FORMATS[one_of(name, "dtype", dtype, [*FORMATS])]
    if zero and format.float8 is not None:
        raise ArgumentError(f"{name}: {dtype} is symmetric, it takes no zero point", hint="Leave it out.")
    return format


def _infer_quantize(x: TensorSpec, scale: TensorSpec, *zero: TensorSpec, dtype: str) -> TensorSpec:
    text = call_text("quantize_linear", x, scale, *zero)
    require_kind("quantize_linear", ("float",), x)
    format = _require_format("quantize_linear", dtype, zero)
    _require_scale("quantize_linear", scale, zero, format.stored, text)
    shape = broadcast_shapes("quantize_linear", x.shape, scale.shape, *[one.shape for one in zero])
    return make_spec(shape, format.stored)


def _scales(rng: np.random.Generator, *shape: int) -> Any:
    return np.asarray(rng.uniform(0.02, 0.1, shape), np.float32)


def _quantize_samples(rng: np.random.Generator) -> Any:
    x, scale = normals(rng, 3, 4), _scales(rng)
    yield Sample((x, scale))
    yield Sample((x, scale, np.uint8(100)), {"dtype": "uint8"})
    yield Sample((x, _scales(rng, 4)), {"axis": 1, "dtype": "int4"})
    yield Sample((x * 9, _scales(rng, 3), np.asarray([3, -7, 0], np.int8)), {"axis": 0})
    yield Sample((np.asarray([-1.5, -0.5, 0.5, 1.5, 2.5, 126.5, 127.5, -128.5, 1e9], np.float32), np.float32(1)))
    yield Sample((normals(rng, 0, 4), scale))
    yield Sample((normals(rng, 3, dtype=np.float64), scale))
    yield Sample((normals(rng, 3, dtype="bfloat16"), scale))
    yield Sample((x * 100, scale), {"dtype": "float8_e4m3fn"})
    yield Sample((x * 1e5, scale), {"dtype": "float8_e5m2"})
    yield Bad((x, scale), {"dtype": "int3"}, error=ArgumentError, text="dtype='int3' is none of 'int8'")
    yield Bad((x, scale, np.uint8(1)), error=DTypeError, text="the zero point is uint8, the numbers are stored in int8")
    yield Bad((x, _scales(rng, 4), None), {"axis": 0}, error=ShapeError, text="a scale of size 4, axis 0 has size 3")
    yield Bad((x, _scales(rng, 4)), error=ShapeError, text="a scale of 1 axis needs axis=")
    bits = {"dtype": "float8_e5m2"}
    yield Bad((x, scale, np.uint8(1)), bits, error=ArgumentError, text="float8_e5m2 is symmetric, it takes no zero")


def onnx_scales(o: Any, x: Any, scale: Any, zero: Any, stored: Any) -> tuple[Any, Any, dict[str, int]] | None:
    """Return scale, zero point and ``axis=`` as ONNX's QuantizeLinear takes them: numbers, or vectors for an axis.

    The result is None if the scale varies along several axes, or the zero point otherwise than the scale.
    """
    axes = [axis for axis, size in enumerate(scale.shape, x.ndim - len(scale.shape)) if size != 1]
    if len(axes) > 1 or len(scale.shape) > x.ndim or (zero is not None and zero.shape != scale.shape):
        return None
    shape = (scale.shape[axes[0] - x.ndim],) if axes else ()
    zero = o.value(np.zeros(shape, stored)) if zero is None else o.reshape(zero, shape)
    return o.reshape(scale, shape), zero, {"axis": axes[0]} if axes else {}


def _quantize_onnx(o: Any, x: Any, scale: Any, zero: Any = None, *, dtype: str) -> Any:
    format = FORMATS[dtype]
    if format.float8 is not None:
        o.no("bytes with the bits of float8 have none")
    scales = onnx_scales(o, x, scale, zero, format.stored) if dtype != "int4" else None
    if scales is not None:
        return o.QuantizeLinear(x, scales[0], scales[1], **scales[2])
    value = o.Round(x / o.cast(scale, x.dtype))
    value = value if zero is None else value + o.cast(zero, x.dtype)
    return o.cast(o.Clip(value, format.low, format.high), format.stored)


def _by_axis(name: str, x: Tensor, value: Any, axis: int | None) -> Tensor:
    """Return a scale or zero point in a form that broadcasts against `x`, given the axis along which it varies."""
    tensor = as_tensor(value)
    if axis is None:
        if tensor.ndim == 1 and x.ndim > 1:
            raise ShapeError(f"{name}: a scale of 1 axis needs axis=, the axis of the input along which it varies",
                             got=call_text(name, x.spec, tensor.spec))
        return tensor
    axis = normalize_axis(name, axis, x.ndim)
    if tensor.ndim != 1 or tensor.shape[0] != x.shape[axis]:
        raise ShapeError(f"{name}: a scale of size {tensor.size}, axis {axis} has size {x.shape[axis]}",
                         got=call_text(name, x.spec, tensor.spec), hint="Give a number for each slice along the axis.")
    return reshape(tensor, tuple([-1 if i == axis else 1 for i in range(x.ndim)]))


def _operands(name: str, x: Tensor, scale: Any, zero: Any, axis: int | None) -> tuple[Tensor, ...]:
    factor = _by_axis(name, x, cast_to(as_tensor(scale), float32), axis)
    return (x, factor) if zero is None else (x, factor, _by_axis(name, x, zero, axis))


@op(
    kernel=quantize_on_host,
    lower=quantize_lowered,
    infer=_infer_quantize,
    vjp=Stops("a stored integer has no gradient; see fake_quantize"),
    flops=lambda y, *xs, **attrs: 2 * y.size,
    samples=_quantize_samples,
    traits=("pointwise",),
    onnx=_quantize_onnx,
)
def quantize_linear(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, axis: int | None = None,
    dtype: str = "int8",
) -> Tensor:
    """Store numbers as small integers: ``round(x / scale) + zero_point``, limited to the range of a format.

    Halves are rounded to the even integer. What is outside the range, infinities included, becomes its nearest end.
    NaN becomes the zero point; float8 keeps it.

    Args:
        x: floating-point.
        scale: the step between two stored integers, float32: a number; or one per slice along `axis`; or, without
            `axis`, any shape that broadcasts against `x`.
        zero_point: the integer that stands for 0, in the format's dtype and of the scale's shape; 0 if not given.
        axis: the axis of `x` along which scale and zero point vary.
        dtype: the format: ``"int8"``, ``"uint8"``, ``"int4"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.

    Returns:
        The shape of `x`: int8 or uint8; int4 in int8, float8 as its bits in uint8.

    Raises:
        ShapeError: a scale that does not fit.
        DTypeError: `x` is not floating-point, or the zero point has another dtype than the result.
        ArgumentError: an unknown format.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.quantize_linear([-1.0, 0.05, 0.15, 20.0], 0.1)
        Tensor([-10,   0,   2, 127], dtype=int8)

    Reference:
        ONNX, operator QuantizeLinear; Jacob et al., "Quantization and training of neural networks for efficient
        integer-arithmetic-only inference", 2018.
    """
    (value,) = promote_float(x)
    return bind(quantize_linear.op, _operands("quantize_linear", value, scale, zero_point, axis), {"dtype": dtype})


# -- dequantize ---------------------------------------------------------------------------------------------------


def dequantize(q: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    """Compute `dequantize_linear` of NumPy's or jax's arrays."""
    format = FORMATS[dtype]
    _require_stored(zero_point, format)
    if q.dtype != format.stored:
        raise ValueError("numbers stored in another dtype")
    if format.float8 is not None:
        return in_format(q, format, scale) * scale
    value = q.astype(np.int32)
    return (value if zero_point is None else value - zero_point.astype(np.int32)).astype(scale.dtype) * scale


def _infer_dequantize(q: TensorSpec, scale: TensorSpec, *zero: TensorSpec, dtype: str) -> TensorSpec:
    text = call_text("dequantize_linear", q, scale, *zero)
    format = _require_format("dequantize_linear", dtype, zero)
    if q.dtype != format.stored:
        raise DTypeError(f"dequantize_linear: {dtype} is stored in {format.stored}, not {q.dtype}", got=text,
                         hint="Give the dtype= with which the numbers were quantized.")
    _require_scale("dequantize_linear", scale, zero, format.stored, text)
    shape = broadcast_shapes("dequantize_linear", q.shape, scale.shape, *[one.shape for one in zero])
    return make_spec(shape, scale.dtype)


def _dequantize_samples(rng: np.random.Generator) -> Any:
    q, scale = rng.integers(-128, 128, (3, 4)).astype(np.int8), _scales(rng)
    yield Sample((q, scale))
    yield Sample((q.view(np.uint8), scale, np.uint8(100)))
    yield Sample((q, _scales(rng, 4)), {"axis": 1})
    yield Sample((q, _scales(rng, 3), np.asarray([3, -7, 0], np.int8)), {"axis": 0})
    yield Sample((q, _scales(rng, 3, 4)))
    yield Sample((q[:0], scale))
    yield Sample((np.arange(100, dtype=np.uint8), scale), {"dtype": "float8_e4m3fn"})
    yield Sample((np.arange(100, dtype=np.uint8), scale), {"dtype": "float8_e5m2"})
    yield Bad((q, scale, np.uint8(1)), error=DTypeError, text="the zero point is uint8, the numbers are stored in int8")
    yield Bad((q, scale), {"dtype": "uint8"}, error=DTypeError, text="uint8 is stored in uint8, not int8")
    yield Bad((normals(rng, 3), scale), error=DTypeError, text="does not take float32")


def _dequantize_vjp(F: Any, g: Any, y: Any, q: Any, scale: Any, *zero: Any, dtype: str) -> Any:
    del y
    ones = scale * 0 + 1
    of_scale = lambda: unbroadcast(F, g * F.dequantize_linear(q, ones, *zero, dtype=dtype), scale)  # noqa: E731
    return [None, of_scale, *[None for _ in zero]]


def _dequantize_onnx(o: Any, q: Any, scale: Any, zero: Any = None, *, dtype: str) -> Any:
    format = FORMATS[dtype]
    if format.float8 is not None:
        bits = np.arange(256, dtype=np.uint8)
        table = np.nan_to_num(bits.view(format.float8).astype(np.float32), nan=np.nan, posinf=np.inf, neginf=-np.inf)
        return o.Gather(o.value(table), o.cast(q, np.int32)) * scale
    scales = onnx_scales(o, q, scale, zero, format.stored)
    if scales is not None:
        return o.DequantizeLinear(q, scales[0], scales[1], dtypes=[float32], **scales[2])
    value = o.cast(q, np.float32)
    return (value if zero is None else value - o.cast(zero, np.float32)) * scale


@op(
    kernel=dequantize,
    lower=dequantize,
    infer=_infer_dequantize,
    vjp=_dequantize_vjp,
    saves=Saves(x="all"),
    flops=lambda y, *xs, **attrs: 2 * y.size,
    samples=_dequantize_samples,
    traits=("pointwise",),
    ulp=1,
    onnx=_dequantize_onnx,
)
def dequantize_linear(
    q: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, axis: int | None = None,
    dtype: str | None = None,
) -> Tensor:
    """Return the real numbers of stored ones: ``(q - zero_point) * scale``.

    Args:
        q: int8 or uint8.
        scale, zero_point, axis: as for `quantize_linear`.
        dtype: the format; that of the array's dtype if not given.

    Returns:
        float32, in the shape of `q`.

    Raises:
        ShapeError: a scale that does not fit.
        DTypeError: `q` is not stored as the format says.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.dequantize_linear(hf.asarray([-10, 2], dtype="int8"), 0.5)
        Tensor([-5.,  1.], dtype=float32)

    Reference:
        ONNX, operator DequantizeLinear.
    """
    value = as_tensor(q)
    require_kind("dequantize_linear", ("int", "uint"), value.spec)
    given = _operands("dequantize_linear", value, scale, zero_point, axis)
    return bind(dequantize_linear.op, given, {"dtype": str(value.dtype) if dtype is None else dtype})


# -- both, with a gradient ----------------------------------------------------------------------------------------


def _fake_on_host(x: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    stored = quantize_on_host(x, scale, zero_point, dtype=dtype)
    return dequantize(stored, scale.astype(compute_dtype(x.dtype)), zero_point, dtype=dtype).astype(x.dtype)


def _fake_lowered(x: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    stored = quantize_lowered(x, scale, zero_point, dtype=dtype)
    return dequantize(stored, scale.astype(compute_dtype(x.dtype)), zero_point, dtype=dtype).astype(x.dtype)


def _inside(x: Any, scale: Any, zero_point: Any = None, *, dtype: str) -> Any:
    """Return where a number is stored as such, and not as an end of the range."""
    format = FORMATS[dtype]
    value = x.astype(compute_dtype(x.dtype))
    if isinstance(x, np.ndarray | np.generic):
        value = value / scale.astype(value.dtype)
        value = value if format.float8 is not None else np.rint(value)
    else:
        value, factor = jnp.broadcast_arrays(value, scale.astype(value.dtype))
        value = lax.div(value, hidden(factor, value))
        value = value if format.float8 is not None else lax.round(value, lax.RoundingMethod.TO_NEAREST_EVEN)
    value = value if zero_point is None else value + zero_point.astype(value.dtype)
    return (value >= format.low) & (value <= format.high)


def _infer_inside(x: TensorSpec, scale: TensorSpec, *zero: TensorSpec, dtype: str) -> TensorSpec:
    return make_spec(_infer_quantize(x, scale, *zero, dtype=dtype).shape, as_dtype(bool))


def _inside_onnx(o: Any, x: Any, scale: Any, zero: Any = None, *, dtype: str) -> Any:
    format = FORMATS[dtype]
    value = x / o.cast(scale, x.dtype)
    value = value if format.float8 is not None else o.Round(value)
    value = value if zero is None else value + o.cast(zero, x.dtype)
    return o.And(o.GreaterOrEqual(value, format.low), o.LessOrEqual(value, format.high))


def _inside_samples(rng: np.random.Generator) -> Any:
    x, scale = normals(rng, 3, 4) * 9, _scales(rng)
    yield Sample((x, scale), {"dtype": "int8"})
    yield Sample((x, scale, np.uint8(100)), {"dtype": "uint8"})
    yield Sample((x, _scales(rng, 4)), {"dtype": "int4"})
    yield Sample((x * 1e3, scale), {"dtype": "float8_e4m3fn"})


@op(
    kernel=_inside,
    lower=_inside,
    infer=_infer_inside,
    vjp=Stops("the result is a condition"),
    samples=_inside_samples,
    traits=("pointwise", "inner"),
    onnx=_inside_onnx,
)
def within_format(x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, dtype: str) -> Tensor:
    """Whether `quantize_linear` stores a number as such, and not as an end of its range."""
    given = (x, scale) if zero_point is None else (x, scale, zero_point)
    return bind(within_format.op, tuple(map(as_tensor, given)), {"dtype": dtype})


def _fake_vjp(F: Any, g: Any, y: Any, x: Any, scale: Any, *zero: Any, dtype: str) -> Any:
    del y
    passed = lambda: unbroadcast(F, F.where(F.within_format(x, scale, *zero, dtype=dtype), g, 0), x)  # noqa: E731
    return [passed, None, *[None for _ in zero]]


def _fake_infer(x: TensorSpec, scale: TensorSpec, *zero: TensorSpec, dtype: str) -> TensorSpec:
    return make_spec(_infer_quantize(x, scale, *zero, dtype=dtype).shape, x.dtype)


def _fake_onnx(o: Any, x: Any, scale: Any, zero: Any = None, *, dtype: str) -> Any:
    scales = onnx_scales(o, x, scale, zero, FORMATS[dtype].stored)
    if scales is None or FORMATS[dtype].float8 is not None or dtype == "int4":
        return o.no("QuantizeLinear takes one axis of scales, in int8 or uint8")
    scale, zero, axis = scales
    stored = o.QuantizeLinear(x, scale, zero, **axis)
    return o.DequantizeLinear(stored, scale, zero, dtypes=[float32], **axis)


def _fake_samples(rng: np.random.Generator) -> Any:
    x, scale = normals(rng, 3, 4), _scales(rng)
    yield Sample((x, scale), gradient=False)
    yield Sample((x * 9, scale, np.uint8(100)), {"dtype": "uint8"}, gradient=False)
    yield Sample((x, _scales(rng, 4)), {"axis": 1, "dtype": "int4"}, gradient=False)
    yield Sample((x, _scales(rng, 3, 1)), gradient=False)
    yield Sample((normals(rng, 0, 4), scale), gradient=False)
    yield Sample((normals(rng, 3, dtype="bfloat16"), scale), gradient=False)
    yield Sample((x, scale), {"dtype": "float8_e4m3fn"}, gradient=False)
    yield Bad((x, _scales(rng, 4)), error=ShapeError, text="a scale of 1 axis needs axis=")


@op(
    kernel=_fake_on_host,
    lower=_fake_lowered,
    infer=_fake_infer,
    vjp=_fake_vjp,
    saves=Saves(x="all"),
    flops=lambda y, *xs, **attrs: 4 * y.size,
    samples=_fake_samples,
    traits=("pointwise", "own_rule"),
    ulp=2,
    onnx=_fake_onnx,
)
def fake_quantize(
    x: TensorLike, scale: TensorLike, zero_point: TensorLike | None = None, *, axis: int | None = None,
    dtype: str = "int8",
) -> Tensor:
    """Round numbers as `quantize_linear` and `dequantize_linear` do together, with a gradient for training.

    The gradient passes through the rounding unchanged, and is 0 where a number is outside the format's range. Scale and
    zero point get none.

    Args:
        x: floating-point.
        scale, zero_point, axis, dtype: as for `quantize_linear`.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ShapeError: a scale that does not fit.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantize.fake_quantize([0.26, 100.0], 0.1)
        Tensor([ 0.3, 12.7], dtype=float32)
        >>> hf.grad(lambda x: hf.sum(hf.quantize.fake_quantize(x, 0.1)))(hf.asarray([0.26, 100.0]))
        Tensor([1., 0.], dtype=float32)

    Reference:
        Bengio, Léonard and Courville, "Estimating or propagating gradients through stochastic neurons", 2013 (the
        straight-through estimator).
    """
    (value,) = promote_float(x)
    return bind(fake_quantize.op, _operands("fake_quantize", value, scale, zero_point, axis), {"dtype": dtype})


# -- scales from the input itself -----------------------------------------------------------------------------------


def _dynamic_on_host(x: Any) -> Any:
    finite = np.where(np.isfinite(x), x, x.dtype.type(0))
    low, high = np.min(finite, initial=0), np.max(finite, initial=0)
    scale = (high - low) / x.dtype.type(255)
    scale = np.asarray(scale if scale > 0 else 1, x.dtype)
    zero = np.clip(np.rint(-low / scale), 0, 255).astype(np.uint8)
    return quantize_on_host(x, scale, zero, dtype="uint8"), scale, np.asarray(zero)


def _dynamic_lowered(x: Any) -> Any:
    finite = jnp.where(jnp.isfinite(x), x, 0)
    low, high = jnp.min(finite, initial=0), jnp.max(finite, initial=0)
    width: Any = high - low
    scale = lax.div(width, hidden(jnp.full_like(width, 255), width))
    scale = jnp.where(scale > 0, scale, 1)
    rounded = lax.round(lax.div(-low, hidden(scale, low)), lax.RoundingMethod.TO_NEAREST_EVEN)
    zero = jnp.clip(rounded, 0, 255).astype(jnp.uint8)
    return quantize_lowered(x, scale, zero, dtype="uint8"), scale, zero


def _dynamic_infer(x: TensorSpec) -> tuple[TensorSpec, ...]:
    if x.dtype not in (float32, float64):
        raise DTypeError(f"quantize_dynamic: does not take {x.dtype}, only float32 and float64", got=str(x))
    return make_spec(x.shape, uint8), make_spec((), x.dtype), make_spec((), uint8)


def _dynamic_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),), gradient=False)
    yield Sample((np.abs(normals(rng, 5)),), gradient=False)
    yield Sample((-np.abs(normals(rng, 2, 2, 2)),), gradient=False)


@op(
    kernel=_dynamic_on_host,
    lower=_dynamic_lowered,
    infer=_dynamic_infer,
    vjp=Stops("a stored integer has no gradient, nor has its scale; see fake_quantize"),
    flops=lambda y, x: 4 * x.size,
    samples=_dynamic_samples,
    ulp=2,
    onnx=lambda o, x: o.DynamicQuantizeLinear(x, outputs=3),
)
def quantize_dynamic(x: TensorLike) -> tuple[Tensor, Tensor, Tensor]:
    """Store numbers in uint8, with the scale and zero point that their own range asks for.

    The range is that of all finite elements and 0, so that 0 is stored exactly. What is said of NaN and infinities at
    `quantize_linear` holds. If all elements are 0 the scale is 1.

    Args:
        x: floating-point.

    Returns:
        The stored numbers in the shape of `x`, the scale and the zero point of shape (): uint8, float32 (float64 for
        that), and uint8.

    Example:
        >>> import hybridflow as hf
        >>> q, scale, zero = hf.quantize.quantize_dynamic([-1.0, 0.0, 1.55])
        >>> q
        Tensor([  0, 100, 255], dtype=uint8)

    Reference:
        ONNX, operator DynamicQuantizeLinear.
    """
    (value,) = promote_float(x)
    return bind(quantize_dynamic.op, (value if value.dtype == float64 else cast_to(value, float32),))


__all__ = [
    "Format", "dequantize", "dequantize_linear", "fake_quantize", "in_format", "onnx_scales", "quantize_dynamic",
    "quantize_linear", "quantize_lowered", "quantize_on_host",
]

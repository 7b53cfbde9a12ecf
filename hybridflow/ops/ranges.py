"""Evenly spaced numbers: `arange` and `linspace`."""

from __future__ import annotations

import math
from typing import Any, cast

import jax
import numpy as np
from jax import lax

from hybridflow.core.device import DeviceLike
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import (
    as_dtype,
    check_fits,
    complex64,
    complex128,
    float32,
    float64,
    int32,
    int64,
    kind_of,
)
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, TracedValueError
from hybridflow.core.keywords import plain
from hybridflow.core.op import Bad, Sample, op
from hybridflow.core.tensor import TensorMethods, as_tensor
from hybridflow.core.traced_number import as_size
from hybridflow.ops.common import (
    Tensor,
    TensorSpec,
    cast_to,
    fixed_number,
    make_spec,
    no_flops,
    promote_float,
    truth,
)
from hybridflow.ops.creation import NO_INPUTS, bind_on
from hybridflow.ops.onnx import in_range
from hybridflow.ops.padding import counted_up, evenly_spaced


def _grid_infer(*, start: Any, step: Any, size: Any, dtype: Any) -> TensorSpec:
    del start, step
    return make_spec((size,), dtype)


def _arange_kernel(*, start: Any, step: Any, size: int, dtype: Any) -> Any:
    wide = float64 if kind_of(dtype) == "float" else int64
    return (np.arange(size, dtype=wide) * wide.type(step) + wide.type(start)).astype(dtype)


def _widest() -> Any:
    """Return the float dtype in which ranges are computed: float64 if jax has it enabled, as hybridflow always does."""
    return jax.dtypes.canonicalize_dtype(float64)


def _wrapped(number: int, dtype: Any) -> Any:
    """Return an integer modulo the range of a dtype."""
    bits = dtype.itemsize * 8
    return np.array(number % (1 << bits), f"u{dtype.itemsize}").view(dtype)


def _arange_lower(*, start: Any, step: Any, size: int, dtype: Any) -> Any:
    if kind_of(dtype) == "float":
        wide = _widest()
        points = lax.iota(wide, size) * wide.type(step) + wide.type(start)
        return lax.convert_element_type(points, dtype)
    return lax.iota(dtype, size) * _wrapped(step, dtype) + _wrapped(start, dtype)


def _arange_samples(rng: np.random.Generator) -> Any:
    del rng
    yield Sample((5,))
    yield Sample((2, 11, 3))
    yield Sample((5, 0, -2))
    yield Sample((0.5, 2.0, 0.25))
    yield Sample((3, 3))
    yield Sample((4,), {"dtype": "float64"})
    yield Sample((4,), {"dtype": "bfloat16"})
    yield Bad((0, 5, 0), error=ArgumentError, text="the step is 0")
    yield Bad((300,), {"dtype": "uint8"}, error=OverflowError, text="299 does not fit uint8")
    yield Bad((2,), {"dtype": "bool"}, error=DTypeError, text="arange: does not give bool")


def _arange_onnx(o: Any, *, start: Any, step: Any, size: Any, dtype: Any) -> Any:
    if type(size) is not Dim and type(start) is not Dim and type(step) is not Dim:
        return o.value(_arange_kernel(start=start, step=step, size=size, dtype=dtype))
    if kind_of(dtype) == "float":
        o.no("a range of floats of open size has none")
    first, by = [o.reshape(o.size(one), ()) for one in (start, step)]
    return o.cast(in_range(o, 0, size) * by + first, dtype)


@op(
    kernel=_arange_kernel,
    lower=_arange_lower,
    infer=_grid_infer,
    vjp=NO_INPUTS,
    flops=no_flops,
    samples=_arange_samples,
    ulp=1,
    onnx=_arange_onnx,
    padded=counted_up,
)
def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: DeviceLike = None,
    **other: Any,
) -> Tensor:
    """Make a tensor of evenly spaced numbers: ``start, start + step, ...`` up to but without `stop`.

    Args:
        start: the first number; without `stop`, this is the end, and the first number is 0.
        stop: the end, not included.
        step: the distance, not 0.
        dtype: the dtype; if not given, int32 where all arguments are integers, else float32.
        device: where to put it.

    Returns:
        ``(ceil((stop - start) / step),)``.

    Raises:
        ArgumentError: a step of 0.
        NumberRangeError: a number the dtype cannot hold.

    Example:
        >>> import hybridflow as hf
        >>> hf.arange(2, 8, 2)
        Tensor([2, 4, 6], dtype=int32)
    """
    if other:
        plain("arange", other)
    first: Any = 0 if stop is None else start
    end: Any = start if stop is None else stop
    first, end, step = map(as_size, (first, end, step))
    for number in (first, end, step):
        if isinstance(number, TensorMethods) and as_tensor(number)._value is None:
            raise TracedValueError(
                "arange: how many elements there are depends on a tensor, which has no value in a trace",
                got=f"arange({first}, {end}, {step})",
                hint="Loop with `for i in range(n):`; or take a bound, i = hf.arange(100), and mask the "
                     "rest, hf.where(i < n, ...)."
            )
    if step == 0:
        raise ArgumentError("arange: the step is 0", got=f"arange({first}, {end}, 0)", hint="Use 1 or -1.")
    all_integers = all(isinstance(number, int | Dim | np.integer) for number in (first, end, step))
    result_dtype = as_dtype(dtype) if dtype is not None else int32 if all_integers else float32
    if kind_of(result_dtype) in ("bool", "complex"):
        raise DTypeError(f"arange: does not give {result_dtype}", hint="Choose an integer or float dtype.")
    if all_integers:
        size = _whole_steps(first, end, step)
    else:
        size = max(math.ceil((end - first) / step), 0)
    if all_integers:
        whole: list[Any] = [number if isinstance(number, Dim) else int(number) for number in (first, step)]
        first, step = whole
    else:
        first, step = fixed_number("arange", "start", first) + 0.0, fixed_number("arange", "step", step)
    if type(size) is int and size and all_integers:
        check_fits(first, result_dtype)
        check_fits(first + (size - 1) * step, result_dtype)
    return bind_on(device, arange.op, {"start": first, "step": step, "size": size, "dtype": result_dtype})


def _whole_steps(first: Any, end: Any, step: Any) -> Any:
    """Return the number of steps from one integer to another."""
    length, stride = (end - first, step) if step > 0 else (first - end, -step)
    if length <= 0:
        return 0
    return length if stride == 1 else (length + (stride - 1)) // stride


def _linspace_kernel(*, start: float, stop: float, num: int, endpoint: bool, dtype: Any) -> Any:
    return np.linspace(start, stop, num, endpoint=endpoint).astype(dtype)


def _linspace_lower(*, start: float, stop: float, num: int, endpoint: bool, dtype: Any) -> Any:
    gaps = num - 1 if endpoint else num
    if num == 0 or gaps == 0:
        return lax.full((num,), start, dtype)
    wide = _widest()
    points = lax.iota(wide, num) * wide.type((stop - start) / gaps) + wide.type(start)
    if endpoint:
        points = lax.select(lax.iota(int32, num) == num - 1, lax.full_like(points, stop), points)
    return lax.convert_element_type(points, dtype)


def _linspace_samples(rng: np.random.Generator) -> Any:
    del rng
    yield Sample((0.0, 1.0, 5))
    yield Sample((2, -1, 4), {"endpoint": False})
    yield Sample((1.0, 3.0, 1))
    yield Sample((1.0, 3.0, 0), {"dtype": "float64"})
    yield Bad((0.0, 1.0, -1), error=ShapeError, text="-1 is not a number of points")
    yield Bad((0.0, 1.0, 3), {"dtype": "int32"}, error=DTypeError, text="linspace: does not give int32")


@op(
    kernel=_linspace_kernel,
    lower=_linspace_lower,
    infer=lambda *, start, stop, num, endpoint, dtype: make_spec((num,), dtype),
    vjp=NO_INPUTS,
    flops=no_flops,
    samples=_linspace_samples,
    ulp=1,
    onnx=lambda o, **attrs: o.value(_linspace_kernel(**attrs)),
    padded=evenly_spaced,
)
def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: DeviceLike = None, endpoint: bool = True,
    **other: Any,
) -> Tensor:
    """Make a tensor of a number of evenly spaced points.

    Args:
        start: the first point; gradients go to one that is a tensor of shape (), as to `stop`.
        stop: the last point.
        num: how many points.
        dtype: a floating-point dtype, real or complex; if not given, that of ends that are tensors, float32 for
            numbers, complex64 for complex ones.
        device: where to put it.
        endpoint: whether `stop` is the last point; if not, the points are the first `num` of ``num + 1``.

    Returns:
        ``(num,)``.

    Raises:
        ShapeError: a negative number of points.
        DTypeError: a dtype that is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> hf.linspace(0, 1, 5)
        Tensor([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    if other:
        plain("linspace", other)
    endpoint = truth("linspace", "endpoint", endpoint)
    if isinstance(start, TensorMethods) or isinstance(stop, TensorMethods):
        ends: Any = promote_float(start, stop)
        result_dtype = ends[0].dtype if dtype is None else as_dtype(dtype)
        first, last = [cast_to(end, result_dtype) for end in ends]
        steps = linspace(0, 1, num, dtype=result_dtype, device=device, endpoint=endpoint)
        return first * (1 - steps) + last * steps
    has_complex_end = isinstance(start, complex) or isinstance(stop, complex)
    result_dtype = as_dtype(dtype) if dtype is not None else complex64 if has_complex_end else float32
    if kind_of(result_dtype) == "complex":
        part_dtype = float64 if result_dtype == complex128 else float32
        ends = [(end.real, end.imag) for end in (complex(start), complex(stop))]
        parts = [
            cast(Any, cast_to(linspace(a, b, num, dtype=part_dtype, device=device, endpoint=endpoint), result_dtype))
            for a, b in zip(*ends, strict=True)
        ]
        return parts[0] + parts[1] * 1j
    if kind_of(result_dtype) != "float" or has_complex_end:
        raise DTypeError(f"linspace: does not give {result_dtype}", hint="Choose a floating-point dtype.")
    count = num if isinstance(num, Dim) else num.__index__()
    if count < 0:
        raise ShapeError(f"linspace: {count} is not a number of points", hint="Ask for 0 or more.")
    first, last = float(cast(float, start)) + 0.0, float(cast(float, stop)) + 0.0
    attrs = {"start": first, "stop": last, "num": count, "endpoint": endpoint}
    return bind_on(device, linspace.op, {**attrs, "dtype": result_dtype})


__all__ = ["arange", "linspace"]

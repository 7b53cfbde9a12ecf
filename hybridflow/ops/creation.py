"""Tensors made from nothing: constants, ranges, identity matrices."""

from __future__ import annotations

import math
from typing import Any, cast

import jax
import numpy as np
from jax import lax

from hybridflow.core.device import DeviceLike
from hybridflow.core.device import device as on_device
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import (
    as_dtype,
    check_fits,
    complex64,
    complex128,
    default_dtype,
    float32,
    float64,
    int32,
    int64,
    kind_of,
)
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError, message
from hybridflow.core.keywords import plain
from hybridflow.core.op import Bad, Op, Sample, Stops, op, public_names
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.traced_float import TracedFloat
from hybridflow.ops.common import (
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    asarray,
    cast_to,
    is_number,
    lower_offsets,
    make_spec,
    no_flops,
    truth,
)
from hybridflow.ops.onnx import in_range
from hybridflow.ops.padding import counted_up, evenly_spaced, made_of_size
from hybridflow.ops.shape import broadcast_to
from hybridflow.ops.sizes import normalize_shape

_NO_INPUTS = Stops("it has no inputs")


# -- constants ----------------------------------------------------------------------------------------------------


def _full_infer(*, shape: Shape, fill_value: Any, dtype: Any) -> TensorSpec:
    del fill_value
    for size in shape:
        if not isinstance(size, Dim) and size < 0:
            raise ShapeError(message(f"full: {size} is not a size", got=f"shape={shape}", hint="Use sizes from 0 on."))
    return make_spec(shape, dtype)


def _full_samples(rng: np.random.Generator) -> Any:
    del rng
    yield Sample(((2, 3), 1.5))
    yield Sample((3, 7))
    yield Sample(((), True))
    yield Sample(((0, 2), -1), {"dtype": "float64"})
    yield Sample(((2,), -0.0))
    yield Sample(((2,), float("nan")))
    yield Sample(((2,), 2), {"dtype": "bfloat16"})
    yield Bad(((2, -1), 0), error=ShapeError, text="-1 is not a size")
    yield Bad(((2,), 300), {"dtype": "uint8"}, error=OverflowError, text="300 does not fit uint8")


@op(
    kernel=lambda *, shape, fill_value, dtype: np.full(shape, fill_value, dtype),
    lower=lambda *, shape, fill_value, dtype: lax.full(shape, fill_value, dtype),
    infer=_full_infer,
    vjp=_NO_INPUTS,
    flops=no_flops,
    samples=_full_samples,
    traits=("uniform",),
    ulp=0,
    onnx=lambda o, *, shape, fill_value, dtype: o.Expand(o.value(fill_value, dtype), o.ints(shape)),
    padded=made_of_size,
)
def full(shape: Any, fill_value: TensorLike, *, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of one repeated value.

    Args:
        shape: its shape.
        fill_value: the value: a number, or a tensor of shape ().
        dtype: its dtype; that of the value if not given.
        device: where to put it.

    Returns:
        The tensor.

    Raises:
        ShapeError: a negative size.
        NumberRangeError: a number the dtype cannot hold.

    Example:
        >>> import hybridflow as hf
        >>> hf.full((2,), 3.0)
        Tensor([3., 3.], dtype=float32)
    """
    if other:
        plain("full", other)
    if device is not None:
        with on_device(device):
            return full(shape, fill_value, dtype=dtype)
    sizes = normalize_shape("full", shape)
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(fill_value, Dim) or type(fill_value) is SizeFloat:
        dtype = target or (int32 if isinstance(fill_value, Dim) else float32)
        return bind(full.op, (), {"shape": sizes, "fill_value": fill_value, "dtype": dtype})
    if type(fill_value) is TracedFloat:
        fill_value = fill_value.tensor(target or float32)
    if type(fill_value) is StagedNumber:
        fill_value = asarray(fill_value, dtype=target)
    if not is_number(fill_value):
        tensor = as_tensor(fill_value)
        return broadcast_to(tensor if target is None else cast_to(tensor, target), sizes)
    if target is None:
        target = default_dtype(fill_value)
    check_fits(fill_value, target)
    attrs: dict[str, Any] = {"shape": sizes, "fill_value": _EXACT[kind_of(target)](fill_value), "dtype": target}
    _full_infer(**attrs)
    return bind(full.op, (), attrs)


_EXACT: dict[str, Any] = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}
"""What a number is as an attribute, by the kind of the dtype."""


def _one_shape(name: str, shape: Any, sizes: tuple[Any, ...]) -> Any:
    """Return a shape that may be given as one tuple or as several sizes.

    Raises:
        ArgumentTypeError: more than sizes: NumPy takes the dtype there.
    """
    for size in sizes:
        if not isinstance(size, int | np.integer | Dim):
            raise ArgumentTypeError(
                message(f"{name}: {size!r} is not a size", got=f"{name}({shape!r}, {size!r})",
                        hint=f"A dtype is given by keyword: hf.{name}(shape, dtype=dtype).")
            )  # fmt: skip
    return (shape, *sizes) if sizes else shape


def zeros(shape: Any, *sizes: int, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of zeros.

    Args:
        shape: its shape.
        *sizes: the other sizes, if `shape` is the first one.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.zeros((2,))
        Tensor([0., 0.], dtype=float32)
    """
    if other:
        plain("zeros", other)
    return full(_one_shape("zeros", shape, sizes), 0, dtype=float32 if dtype is None else dtype, device=device)


def ones(shape: Any, *sizes: int, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of ones.

    Args:
        shape: its shape.
        *sizes: the other sizes, if `shape` is the first one.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.ones((2,), dtype=hf.int32)
        Tensor([1, 1], dtype=int32)
    """
    if other:
        plain("ones", other)
    return full(_one_shape("ones", shape, sizes), 1, dtype=float32 if dtype is None else dtype, device=device)


def full_like(
    x: TensorLike, /, fill_value: TensorLike, *, dtype: Any = None, device: DeviceLike = None, **other: Any
) -> Tensor:
    """Make a tensor of one repeated value, shaped like another.

    Args:
        x: the tensor whose shape it gets.
        fill_value: the value.
        dtype: its dtype; that of `x` if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.full_like([1.0, 2.0], 7)
        Tensor([7., 7.], dtype=float32)
    """
    if other:
        plain("full_like", other)
    tensor = as_tensor(x)
    return full(tensor.shape, fill_value, dtype=tensor.dtype if dtype is None else dtype, device=device)


def zeros_like(x: TensorLike, /, *, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of zeros, shaped like another.

    Args:
        x: the tensor whose shape it gets.
        dtype: its dtype; that of `x` if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.zeros_like([1, 2])
        Tensor([0, 0], dtype=int32)
    """
    if other:
        plain("zeros_like", other)
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: TensorLike, /, *, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of ones, shaped like another.

    Args:
        x: the tensor whose shape it gets.
        dtype: its dtype; that of `x` if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.ones_like([1, 2])
        Tensor([1, 1], dtype=int32)
    """
    if other:
        plain("ones_like", other)
    return full_like(x, 1, dtype=dtype, device=device)


def empty(shape: Any, *sizes: int, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor whose values do not matter; they are zeros, so that eager and compiled results agree.

    Args:
        shape: its shape.
        *sizes: the other sizes, if `shape` is the first one.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.empty((2,)).shape
        (2,)
    """
    if other:
        plain("empty", other)
    return zeros(shape, *sizes, dtype=dtype, device=device)


def empty_like(x: TensorLike, /, *, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor whose values do not matter, shaped like another; see `empty`.

    Args:
        x: the tensor whose shape it gets.
        dtype: its dtype; that of `x` if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.empty_like([1, 2]).dtype
        dtype('int32')
    """
    if other:
        plain("empty_like", other)
    return zeros_like(x, dtype=dtype, device=device)


def from_dlpack(x: Any, /, *, device: DeviceLike = None, copy: bool | None = None) -> Tensor:
    """Make a tensor of another library's array, by the DLPack protocol.

    Args:
        x: an object with ``__dlpack__`` and ``__dlpack_device__``.
        device: where to put it; the host if not given.
        copy: False raises for what is not a hybridflow tensor: others can write to their memory, so it is copied.

    Returns:
        The tensor.

    Raises:
        ArgumentTypeError: an object without the protocol.
        ArgumentError: `copy` is False.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> hf.from_dlpack(np.arange(3.0))
        Tensor([0., 1., 2.], dtype=float64)
    """
    if not hasattr(x, "__dlpack__"):
        raise ArgumentTypeError(
            message(f"from_dlpack: a {type(x).__name__} has no __dlpack__", hint="Use hf.asarray for other values.")
        )
    return asarray(x, device=device, copy=copy)


# -- ranges -------------------------------------------------------------------------------------------------------


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
    vjp=_NO_INPUTS,
    flops=no_flops,
    samples=_arange_samples,
    ulp=1,
    onnx=_arange_onnx,
    padded=counted_up,
)
def arange(
    start: float, /, stop: float | None = None, step: float = 1, *, dtype: Any = None, device: DeviceLike = None,
    **other: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of evenly spaced numbers: ``start, start + step, ...`` up to but without `stop`.

    Args:
        start: the first number; the end, and the first is 0, if `stop` is not given.
        stop: the end, not included.
        step: the distance, not 0.
        dtype: int32 if all are integers, else float32, if not given.
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
    first, end = (0, start) if stop is None else (start, stop)
    if step == 0:
        raise ArgumentError(message("arange: the step is 0", got=f"arange({first}, {end}, 0)", hint="Use 1 or -1."))
    whole = all(isinstance(number, int | Dim | np.integer) for number in (first, end, step))
    result_dtype = as_dtype(dtype) if dtype is not None else int32 if whole else float32
    if kind_of(result_dtype) in ("bool", "complex"):
        raise DTypeError(message(f"arange: does not give {result_dtype}", hint="Choose an integer or float dtype."))
    if whole:
        size = _whole_steps(first, end, step)
    else:
        size = max(math.ceil((end - first) / step), 0)
    if whole:
        first, step = [number if isinstance(number, Dim) else int(number) for number in (first, step)]
    else:
        first, step = float(first) + 0.0, float(step)
    if type(size) is int and size and whole:
        check_fits(first, result_dtype)
        check_fits(first + (size - 1) * step, result_dtype)
    return _bind_on(device, arange.op, {"start": first, "step": step, "size": size, "dtype": result_dtype})


def _bind_on(device: DeviceLike, op: Op, attrs: dict[str, Any]) -> Tensor:
    """Bind an op without inputs on a device, or wherever its result goes by default."""
    if device is None:
        return bind(op, (), attrs)
    with on_device(device):
        return bind(op, (), attrs)


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
    vjp=_NO_INPUTS,
    flops=no_flops,
    samples=_linspace_samples,
    ulp=1,
    onnx=lambda o, **attrs: o.value(_linspace_kernel(**attrs)),
    padded=evenly_spaced,
)
def linspace(
    start: complex, stop: complex, /, num: int, *, dtype: Any = None, device: DeviceLike = None, endpoint: bool = True,
    **other: Any,
) -> Tensor:  # fmt: skip
    """Make a tensor of a number of evenly spaced points.

    Args:
        start: the first point.
        stop: the last point.
        num: how many points.
        dtype: a floating-point dtype, real or complex; float32 if not given, complex64 for complex ends.
        device: where to put it.
        endpoint: False leaves `stop` out, with the distance that its place would have.

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
    whole = isinstance(start, complex) or isinstance(stop, complex)
    result_dtype = as_dtype(dtype) if dtype is not None else complex64 if whole else float32
    if kind_of(result_dtype) == "complex":
        part = float64 if result_dtype == complex128 else float32
        ends = [(end.real, end.imag) for end in (complex(start), complex(stop))]
        parts = [
            cast(Any, cast_to(linspace(a, b, num, dtype=part, device=device, endpoint=endpoint), result_dtype))
            for a, b in zip(*ends, strict=True)
        ]
        return parts[0] + parts[1] * 1j
    if kind_of(result_dtype) != "float" or whole:
        raise DTypeError(message(f"linspace: does not give {result_dtype}", hint="Choose a floating-point dtype."))
    count = num if isinstance(num, Dim) else num.__index__()
    if count < 0:
        raise ShapeError(message(f"linspace: {count} is not a number of points", hint="Ask for 0 or more."))
    first, last = float(cast(float, start)) + 0.0, float(cast(float, stop)) + 0.0
    attrs = {"start": first, "stop": last, "num": count, "endpoint": endpoint}
    return _bind_on(device, linspace.op, {**attrs, "dtype": result_dtype})


# -- matrices -----------------------------------------------------------------------------------------------------


def _eye_kernel(*, rows: int, columns: int, offset: int, dtype: Any) -> Any:
    return np.eye(rows, columns, offset, dtype)


def _eye_lower(*, rows: int, columns: int, offset: int, dtype: Any) -> Any:
    return lax.convert_element_type(lower_offsets(rows, columns) == offset, dtype)


def _eye_samples(rng: np.random.Generator) -> Any:
    del rng
    yield Sample((3,))
    yield Sample((2, 4), {"k": 1})
    yield Sample((3, 2), {"k": -1, "dtype": "int32"})
    yield Sample((0, 2), {"dtype": "bool"})
    yield Sample((2,), {"dtype": "bfloat16"})
    yield Bad((2, -1), error=ShapeError, text="-1 is not a size")


def _eye_infer(*, rows: Any, columns: Any, offset: int, dtype: Any) -> TensorSpec:
    del offset
    return _full_infer(shape=(rows, columns), fill_value=0, dtype=dtype)


def _eye_onnx(o: Any, *, rows: Any, columns: Any, offset: int, dtype: Any) -> Any:
    row = o.Unsqueeze(in_range(o, 0, rows), o.ints([1]))
    return o.cast(o.Equal(row + offset, in_range(o, 0, columns)), dtype)


@op(
    kernel=_eye_kernel,
    lower=_eye_lower,
    infer=_eye_infer,
    vjp=_NO_INPUTS,
    flops=no_flops,
    samples=_eye_samples,
    ulp=0,
    onnx=_eye_onnx,
    padded=made_of_size,
)
def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: Any = None, device: DeviceLike = None,
    **other: Any,
) -> Tensor:  # fmt: skip
    """Make a matrix with ones on a diagonal and zeros elsewhere.

    Args:
        n_rows: the number of rows.
        n_cols: the number of columns; as many as rows if not given.
        k: which diagonal: 0 the main one, above it if positive.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        ``(n_rows, n_cols)``.

    Raises:
        ShapeError: a negative size.

    Example:
        >>> import hybridflow as hf
        >>> hf.eye(2, 3, k=1)
        Tensor([[0., 1., 0.],
                [0., 0., 1.]], dtype=float32)
    """
    if other:
        plain("eye", other)
    rows, columns = normalize_shape("eye", (n_rows, n_rows if n_cols is None else n_cols))
    result_dtype = float32 if dtype is None else as_dtype(dtype)
    attrs = {"rows": rows, "columns": columns, "offset": int(k), "dtype": result_dtype}
    _eye_infer(rows=rows, columns=columns, offset=int(k), dtype=result_dtype)
    return _bind_on(device, eye.op, attrs)


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

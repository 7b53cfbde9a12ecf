"""Tensors made from nothing: constants and identity matrices."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.context import CONTEXT
from hybridflow.core.device import DeviceLike, device_like
from hybridflow.core.device import device as on_device
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import (
    as_dtype,
    check_fits,
    default_dtype,
    float32,
    int32,
    kind_of,
)
from hybridflow.core.errors import ArgumentTypeError, ShapeError
from hybridflow.core.keywords import plain
from hybridflow.core.node import user_place
from hybridflow.core.op import Bad, Op, Sample, Stops, op
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.traced_number import TracedNumber
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
)
from hybridflow.ops.onnx import in_range
from hybridflow.ops.padding import made_of_size
from hybridflow.ops.shape import broadcast_to
from hybridflow.ops.sizes import normalize_shape

NO_INPUTS = Stops("it has no inputs")
"""The gradient rule of operations without inputs."""


# -- constants ----------------------------------------------------------------------------------------------------


def _full_infer(*, shape: Shape, fill_value: Any, dtype: Any) -> TensorSpec:
    del fill_value
    for size in shape:
        if not isinstance(size, Dim) and size < 0:
            raise ShapeError(f"full: {size} is not a size", got=f"shape={shape}", hint="Use sizes from 0 on.")
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
    vjp=NO_INPUTS,
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
    if type(fill_value) is TracedNumber:
        fill_value = fill_value.tensor(target)
    if type(fill_value) is StagedNumber:
        fill_value = asarray(fill_value, dtype=target)
    if not is_number(fill_value):
        tensor = as_tensor(fill_value)
        return broadcast_to(tensor if target is None else cast_to(tensor, target), sizes)
    if target is None:
        target = default_dtype(fill_value)
    check_fits(fill_value, target)
    context = CONTEXT.get()
    if context is not None and context.tracer is not None and context.tracer.changing is not None:
        tensor = context.tracer.changing.tensor(np.asarray(fill_value, target), user_place(2))
        if tensor is not None:
            return broadcast_to(tensor, sizes)
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
            raise ArgumentTypeError(f"{name}: {size!r} is not a size", got=f"{name}({shape!r}, {size!r})",
                                    hint=f"A dtype is given by keyword: hf.{name}(shape, dtype=dtype).")
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
        device: where to put it; where `x` is if not given.

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
    there = device_like(tensor) if device is None else device
    return full(tensor.shape, fill_value, dtype=tensor.dtype if dtype is None else dtype, device=there)


def zeros_like(x: TensorLike, /, *, dtype: Any = None, device: DeviceLike = None, **other: Any) -> Tensor:
    """Make a tensor of zeros, shaped like another.

    Args:
        x: the tensor whose shape it gets.
        dtype: its dtype; that of `x` if not given.
        device: where to put it; where `x` is if not given.

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
        device: where to put it; where `x` is if not given.

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
        device: where to put it; where `x` is if not given.

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
        raise ArgumentTypeError(f"from_dlpack: a {type(x).__name__} has no __dlpack__",
                                hint="Use hf.asarray for other values.")
    return asarray(x, device=device, copy=copy)


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
    vjp=NO_INPUTS,
    flops=no_flops,
    samples=_eye_samples,
    ulp=0,
    onnx=_eye_onnx,
    padded=made_of_size,
)
def eye(
    n_rows: int, n_cols: int | None = None, /, k: int = 0, *, dtype: Any = None, device: DeviceLike = None,
    **other: Any,
) -> Tensor:
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
    return bind_on(device, eye.op, attrs)


def bind_on(device: DeviceLike, op: Op, attrs: dict[str, Any]) -> Tensor:
    """Bind an op without inputs on a device, or wherever its result goes by default."""
    if device is None:
        return bind(op, (), attrs)
    with on_device(device):
        return bind(op, (), attrs)


__all__ = [
    "bind_on", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like", "ones", "ones_like", "zeros",
    "zeros_like",
]

"""Tensors made from nothing: constants, ranges and identity matrices."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.device import use_device
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, check_fits, default_dtype, float32, int32, kind_of
from hybridflow.core.errors import ShapeError, message
from hybridflow.core.op import Bad, Sample, Stops, op, public_names
from hybridflow.ops.common import (
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    cast_to,
    is_number,
    make_spec,
    no_flops,
)
from hybridflow.ops.shape import broadcast_to
from hybridflow.ops.sizes import normalize_shape

_NO_INPUTS = Stops("it has no inputs")


def _on(device: str | None) -> AbstractContextManager[Any]:
    """Make tensors on a device, or wherever they go by default."""
    return nullcontext() if device is None else use_device(device)


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
)
def full(shape: Any, fill_value: TensorLike, *, dtype: Any = None, device: str | None = None) -> Tensor:
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
    sizes = normalize_shape("full", shape)
    with _on(device):
        if isinstance(fill_value, Dim):
            attrs = {"shape": sizes, "fill_value": fill_value, "dtype": int32 if dtype is None else as_dtype(dtype)}
            return bind(full.op, (), attrs)
        if is_number(fill_value):
            found = default_dtype(fill_value) if dtype is None else as_dtype(dtype)
            check_fits(fill_value, found)
            value = _canonical(fill_value, kind_of(found))
            if value is not None:
                _full_infer(shape=sizes, fill_value=value, dtype=found)
                return bind(full.op, (), {"shape": sizes, "fill_value": value, "dtype": found})
        tensor = as_tensor(fill_value)
        return broadcast_to(tensor if dtype is None else cast_to(tensor, dtype), sizes)


_EXACT = {"bool": bool, "int": int, "uint": int, "float": float, "complex": complex}


def _canonical(value: Any, kind: str) -> Any:
    """Return a number as an attribute, or None where equality of numbers would confuse it (-0.0, NaN, 1.5 as int)."""
    if isinstance(value, complex) and kind != "complex":
        return None
    if value != value or (value == 0 and str(value) not in ("0", "0.0", "False")):
        return None
    exact = _EXACT[kind](value) if abs(value) != float("inf") or kind in ("float", "complex") else None
    return exact if exact == value or kind == "bool" else None


def zeros(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Make a tensor of zeros.

    Args:
        shape: its shape.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.zeros((2,))
        Tensor([0., 0.], dtype=float32)
    """
    return full(shape, 0, dtype=float32 if dtype is None else dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: str | None = None) -> Tensor:
    """Make a tensor of ones.

    Args:
        shape: its shape.
        dtype: its dtype; float32 if not given.
        device: where to put it.

    Returns:
        The tensor.

    Example:
        >>> import hybridflow as hf
        >>> hf.ones((2,), dtype=hf.int32)
        Tensor([1, 1], dtype=int32)
    """
    return full(shape, 1, dtype=float32 if dtype is None else dtype, device=device)


def full_like(x: TensorLike, /, fill_value: TensorLike, *, dtype: Any = None, device: str | None = None) -> Tensor:
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
    tensor = as_tensor(x)
    return full(tensor.shape, fill_value, dtype=tensor.dtype if dtype is None else dtype, device=device)


def zeros_like(x: TensorLike, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
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
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: TensorLike, /, *, dtype: Any = None, device: str | None = None) -> Tensor:
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
    return full_like(x, 1, dtype=dtype, device=device)


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

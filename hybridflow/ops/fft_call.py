"""Check the arguments of a Fourier transform and turn them into attributes of the operation."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, complex_dtype, float32, kind_of
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import REGISTRY
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    call_text,
    cast_to,
    normalize_axis,
    widened,
)
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.rearrange import pad

Axes = tuple[int, ...]
OTHER_WAY = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
"""The norm with which the forward transform, up to conjugation, equals the inverse transform."""
_NORMS = ("backward", "ortho", "forward")


def transform(
    name: str, x: TensorLike, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, told: str = ""
) -> Tensor:
    """Normalise arguments, resize `x`, and bind a transform.

    Args:
        name: the op.
        x, s, axes, norm: as given.
        told: the name to use in messages, if not the op's.
    """
    told = told or name
    if norm not in _NORMS:
        raise ArgumentError(f"{told}: norm={norm!r} is not one of {list(_NORMS)}")
    tensor = operand(told, x, real=name == "rfftn")
    transformed = _axes_of(told, tensor, s, axes)
    sizes: list[Any] = [tensor.shape[axis] for axis in transformed] if s is None else [_size(one) for one in s]
    attrs: dict[str, Any] = {"axes": transformed, "norm": norm}
    if name == "irfftn":
        size: Any = sizes[-1] if s is not None else 2 * (sizes[-1] - 1)
        _require_elements(told, tensor, transformed[-1], size)
        attrs = {"axes": transformed, "size": size, "norm": norm}
        sizes[-1] = size // 2 + 1
    for axis, size in zip(transformed, sizes, strict=True):
        _require_elements(told, tensor, axis, size)
        tensor = _resized(tensor, axis, size)
    return bind(REGISTRY[name], (tensor,), attrs)


def _size(size: Any) -> Any:
    return size if isinstance(size, Dim) else operator.index(size)


def operand(name: str, x: TensorLike, *, real: bool) -> Tensor:
    """Return the operand of a transform: a float tensor for a transform of real numbers, else a complex one."""
    tensor = widened(as_tensor(x))
    kind = kind_of(tensor.dtype)
    if kind in ("int", "uint"):
        tensor = cast_to(tensor, float32)
    elif kind == "bool" or tensor.dtype.num in LOW_PRECISION or (real and kind == "complex"):
        raise DTypeError(f"{name}: does not take {tensor.dtype}", got=call_text(name, tensor.spec),
                         hint="Cast it with .astype(...)." if kind != "complex" else "Use fft, or hf.real.")
    return tensor if real or kind_of(tensor.dtype) == "complex" else cast_to(tensor, complex_dtype(tensor.dtype))


def _axes_of(name: str, tensor: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None) -> Axes:
    if axes is None:
        first = tensor.ndim - len(s) if s is not None else 0
        if first < 0 or not tensor.ndim:
            count = 1 if s is None else len(s)
            raise ShapeError(f"{name}: {count} sizes for {tensor.ndim} axes", got=call_text(name, tensor.spec),
                             hint="Give one size per axis.")
        return tuple(range(first, tensor.ndim))
    normalized = tuple([normalize_axis(name, axis, tensor.ndim) for axis in axes])
    if s is not None and len(s) != len(normalized):
        raise ShapeError(f"{name}: {len(s)} sizes for {len(normalized)} axes", got=call_text(name, tensor.spec),
                         hint="Give one size per axis.")
    if not normalized or len(set(normalized)) < len(normalized):
        raise ShapeError(f"{name}: axes={tuple(axes)} must name axes, each once", got=str(tensor.spec))
    return normalized


def _require_elements(name: str, tensor: Tensor, axis: int, size: Any) -> None:
    if not isinstance(size, Dim) and size < 1:
        raise ShapeError(f"{name}: the transformed axis {axis} has size {size}", got=call_text(name, tensor.spec),
                         hint="There must be one element at least.")


def _resized(tensor: Tensor, axis: int, size: Any) -> Tensor:
    """Cut an axis, or fill it with zeros at its end."""
    own = tensor.shape[axis]
    if own == size:
        return tensor
    if own > size:
        return bind(REGISTRY["getitem"], (tensor,), {"index": part_of(tensor.shape, axis, 0, size)})
    return pad(tensor, [(0, size - own if i == axis else 0) for i in range(tensor.ndim)])

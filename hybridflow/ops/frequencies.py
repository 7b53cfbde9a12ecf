"""The frequencies of Fourier transforms, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Unpack

import numpy as np

from hybridflow.core.device import DeviceLike
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, float32, kind_of
from hybridflow.core.errors import ArgumentError, DTypeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY
from hybridflow.core.tensor import asarray
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    normalize_axis,
)
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.joining import concat


def _frequencies(
    name: str, counts: Callable[[int], Any], n: int, d: float, dtype: Any, device: DeviceLike
) -> Tensor:
    size = n.__index__()
    if size < 1:
        raise ArgumentError(f"{name}: {size} samples", hint="There must be one at least.")
    result_dtype = float32 if dtype is None else as_dtype(dtype)
    if kind_of(result_dtype) != "float":
        raise DTypeError(f"{name}: the frequencies are floats, not {result_dtype}", hint="Pass a float dtype.")
    return asarray((counts(size) / (size * d)).astype(result_dtype), device=device)


def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Return the frequencies of the elements of a transform: 0 and up, then the negative ones.

    Args:
        n: the number of samples.
        d: the distance of two samples.
        dtype: a float dtype; float32 if not given.
        device: where to put them.

    Returns:
        ``(n,)``, in cycles per unit of `d`.

    Raises:
        ArgumentError: fewer than one sample.
        DTypeError: a dtype that is not a float.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.fftfreq(4)
        Tensor([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    return _frequencies("fftfreq", lambda n: (np.arange(n) + n // 2) % n - n // 2, n, d, dtype, device)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Return the frequencies of the elements of a transform of real numbers.

    Args:
        n: the number of samples.
        d: the distance of two samples.
        dtype: a float dtype; float32 if not given.
        device: where to put them.

    Returns:
        ``(n // 2 + 1,)``, in cycles per unit of `d`.

    Raises:
        ArgumentError: fewer than one sample.
        DTypeError: a dtype that is not a float.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.rfftfreq(4)
        Tensor([0.  , 0.25, 0.5 ], dtype=float32)
    """
    return _frequencies("rfftfreq", lambda n: np.arange(n // 2 + 1), n, d, dtype, device)


def _rolled(name: str, x: TensorLike, axes: int | Sequence[int] | None, towards_end: bool) -> Tensor:
    tensor = as_tensor(x)
    given = range(tensor.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    for axis in given:
        along = normalize_axis(name, axis, tensor.ndim)
        size = tensor.shape[along]
        cut = size - size // 2 if towards_end else size // 2
        first, second = part_of(tensor.shape, along, 0, cut), part_of(tensor.shape, along, cut, size - cut)
        getitem = REGISTRY["getitem"]
        tensor = concat([bind(getitem, (tensor,), {"index": part}) for part in (second, first)], axis=along)
    return tensor


def fftshift(x: TensorLike, /, axes: int | Sequence[int] | None = None, **other: Unpack[Other]) -> Tensor:
    """Move frequency 0 from the front to the middle.

    Args:
        x: any dtype.
        axes: the axes; all of them if None.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.fftshift([0, 1, 2, -2, -1])
        Tensor([-2, -1,  0,  1,  2], dtype=int32)
    """
    if other:
        return respelled(fftshift, locals())
    return _rolled("fftshift", x, axes, True)


def ifftshift(x: TensorLike, /, axes: int | Sequence[int] | None = None, **other: Unpack[Other]) -> Tensor:
    """Undo `fftshift`.

    Args:
        x: any dtype.
        axes: the axes; all of them if None.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.ifftshift([-2, -1, 0, 1, 2])
        Tensor([ 0,  1,  2, -2, -1], dtype=int32)
    """
    if other:
        return respelled(ifftshift, locals())
    return _rolled("ifftshift", x, axes, False)


__all__ = ["fftfreq", "fftshift", "ifftshift", "rfftfreq"]

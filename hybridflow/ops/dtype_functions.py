"""Questions about dtypes: their limits, their kinds, and what they promote to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from hybridflow.core.dtypes import (
    DType,
    as_dtype,
    kind_of,
    promote_types,
    real_dtype,
)
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError
from hybridflow.core.staged_number import weak_dtype_of as _weak_dtype_of
from hybridflow.ops.common import is_number


@dataclass(frozen=True)
class FloatInfo:
    """The limits of a floating-point dtype.

    Attributes:
        bits: the bits of one number.
        eps: the distance from 1 to the next larger number.
        max: the largest finite number.
        min: the smallest finite number, ``-max``.
        smallest_normal: the smallest positive number of full precision.
        dtype: the dtype; of a complex one that of its parts.
    """

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True)
class IntegerInfo:
    """The limits of an integer dtype.

    Attributes:
        bits: the bits of one number.
        max: the largest number.
        min: the smallest number.
        dtype: the dtype.
    """

    bits: int
    max: int
    min: int
    dtype: DType


def _dtype_of(value: Any) -> DType:
    """Return the dtype of an array or tensor, or the one that a name stands for."""
    return as_dtype(value.dtype if hasattr(value, "dtype") and not isinstance(value, type) else value)


def finfo(type: Any, /) -> FloatInfo:
    """Return the limits of a floating-point dtype.

    Args:
        type: the dtype, or a tensor that has it; of a complex one its parts count.

    Returns:
        The limits.

    Raises:
        DTypeError: a dtype that is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> hf.finfo(hf.float32).bits
        32
    """
    dtype = _dtype_of(type)
    dtype = real_dtype(dtype)
    if kind_of(dtype) != "float":
        raise DTypeError(f"finfo: {dtype} is not floating-point", hint="Use hf.iinfo for integers.")
    info = ml_dtypes.finfo(dtype)
    return FloatInfo(
        info.bits, float(info.eps), float(info.max), float(info.min), float(info.smallest_normal), dtype
    )


def iinfo(type: Any, /) -> IntegerInfo:
    """Return the limits of an integer dtype.

    Args:
        type: the dtype, or a tensor that has it.

    Returns:
        The limits.

    Raises:
        DTypeError: a dtype that is no integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.iinfo(hf.int8).max
        127
    """
    dtype = _dtype_of(type)
    if kind_of(dtype) not in ("int", "uint"):
        raise DTypeError(f"iinfo: {dtype} is not an integer dtype", hint="Use hf.finfo for floats.")
    info = np.iinfo(dtype)
    return IntegerInfo(info.bits, int(info.max), int(info.min), dtype)


_KINDS: dict[str, tuple[str, ...]] = {
    "bool": ("bool",),
    "signed integer": ("int",),
    "unsigned integer": ("uint",),
    "integral": ("int", "uint"),
    "real floating": ("float",),
    "complex floating": ("complex",),
    "numeric": ("int", "uint", "float", "complex"),
}


def isdtype(dtype: Any, kind: Any) -> bool:
    """Say whether a dtype is of a kind.

    Args:
        dtype: the dtype.
        kind: a dtype, which must be the same; ``"bool"``, ``"signed integer"``, ``"unsigned integer"``,
            ``"integral"``, ``"real floating"``, ``"complex floating"`` or ``"numeric"``; or a tuple of such, of which
            one must fit.

    Returns:
        Whether it is.

    Raises:
        ArgumentError: another word for a kind.

    Example:
        >>> import hybridflow as hf
        >>> hf.isdtype(hf.int8, "integral"), hf.isdtype(hf.int8, (hf.float32, hf.float64))
        (True, False)
    """
    checked = as_dtype(dtype)
    if isinstance(kind, tuple):
        return any([isdtype(checked, one) for one in kind])
    if isinstance(kind, str):
        if kind not in _KINDS:
            raise ArgumentError(f"isdtype: {kind!r} is not a kind", hint=f"Choose one of {list(_KINDS)}.")
        return kind_of(checked) in _KINDS[kind]
    return checked == as_dtype(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Say whether promotion turns one dtype into another.

    Args:
        from_: a dtype, or a tensor.
        to: the dtype it would become.

    Returns:
        Whether a value of the first, met by one of the second, gives the second.

    Example:
        >>> import hybridflow as hf
        >>> hf.can_cast(hf.int8, hf.int32), hf.can_cast(hf.int32, hf.int8)
        (True, False)
    """
    source, target = _dtype_of(from_), as_dtype(to)
    try:
        return promote_types(source, target) == target
    except DTypeError:
        return False


def result_type(*arrays_and_dtypes: Any) -> DType:
    """Return the dtype in which values meet.

    Args:
        arrays_and_dtypes: tensors, arrays, dtypes and Python numbers, which take the dtype of what they meet; at
            least one that is no number.

    Returns:
        The promoted dtype.

    Raises:
        ArgumentTypeError: nothing but numbers.
        DTypeError: dtypes that have no common one.

    Example:
        >>> import hybridflow as hf
        >>> hf.result_type(hf.int8, hf.int16, 1)
        dtype('int16')
    """
    common: DType | None = None
    for value in arrays_and_dtypes:
        if not is_number(value):
            dtype = _dtype_of(value)
            common = dtype if common is None else promote_types(common, dtype)
    if common is None:
        raise ArgumentTypeError("result_type: needs a tensor or a dtype", got=f"result_type{arrays_and_dtypes}",
                                hint="A Python number alone has no dtype; hf.asarray gives it one.")
    for value in arrays_and_dtypes:
        if is_number(value):
            common = _weak_dtype_of(value, common)
    return common


__all__ = ["FloatInfo", "IntegerInfo", "can_cast", "finfo", "iinfo", "isdtype", "result_type"]

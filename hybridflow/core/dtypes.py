"""Data types, their promotion, and the rule for Python numbers.

A dtype is a `numpy.dtype` (bfloat16 comes from `ml_dtypes`, which jax ships with). Promotion follows the
Array API standard; an integer with a float gives the float's dtype. Python numbers are weak: they take the
dtype of the other operand, and one that does not fit is an error, never a wrap.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, cast

import ml_dtypes
import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.errors import DTypeError, NumberRangeError

DType = np.dtype[Any]

bool_: DType = np.dtype(np.bool_)
int8: DType = np.dtype(np.int8)
int16: DType = np.dtype(np.int16)
int32: DType = np.dtype(np.int32)
int64: DType = np.dtype(np.int64)
uint8: DType = np.dtype(np.uint8)
uint16: DType = np.dtype(np.uint16)
uint32: DType = np.dtype(np.uint32)
uint64: DType = np.dtype(np.uint64)
float16: DType = np.dtype(np.float16)
bfloat16: DType = np.dtype(ml_dtypes.bfloat16)
float32: DType = np.dtype(np.float32)
float64: DType = np.dtype(np.float64)
complex64: DType = np.dtype(np.complex64)
complex128: DType = np.dtype(np.complex128)

SHORT_NAMES: dict[str, DType] = {
    "bool": bool_, "i8": int8, "i16": int16, "i32": int32, "i64": int64, "u8": uint8, "u16": uint16,
    "u32": uint32, "u64": uint64, "f16": float16, "bf16": bfloat16, "f32": float32, "f64": float64,
    "c64": complex64, "c128": complex128,
}
"""The IR's names of the dtypes."""
_SHORT_NAME: dict[DType, str] = {dtype: name for name, dtype in SHORT_NAMES.items()}
_KIND: dict[DType, str] = {
    dtype: "float" if name.startswith(("f", "bf")) else
    {"b": "bool", "i": "int", "u": "uint", "c": "complex"}[name[0]]
    for name, dtype in SHORT_NAMES.items()
}

LOW_PRECISION = frozenset({float16.num, bfloat16.num})
"""`dtype.num` of the floats with which NumPy is slow; XLA therefore computes them in eager mode too."""
DIFFERENTIABLE = frozenset({dtype.num for dtype, kind in _KIND.items() if kind in ("float", "complex")})
"""`dtype.num` of the floats and complex dtypes; a number hashes several times faster than a dtype."""
WIDE = frozenset({int64.num, uint64.num, float64.num, complex128.num})
"""`dtype.num` of the dtypes that jax supports only inside `enable_x64`."""


def as_dtype(dtype: Any) -> DType:
    """Return the dtype that a name, a NumPy type or a dtype stands for.

    Raises:
        DTypeError: if hybridflow has no such dtype.
    """
    builtin = {bool: bool_, int: int32, float: float32, complex: complex64}
    if isinstance(dtype, type) and dtype in builtin:
        return builtin[dtype]
    try:
        converted = np.dtype(dtype)
    except TypeError:
        converted = None
    if converted is None or converted not in _KIND:
        raise DTypeError(f"dtype: {dtype!r} is not a hybridflow dtype",
                         hint=f"Choose one of: {', '.join(map(str, _KIND))}.")
    return converted


def short_name(dtype: DType) -> str:
    """Return the IR's name for a dtype, such as ``f32``."""
    return _SHORT_NAME[dtype]


def kind_of(dtype: DType) -> str:
    """Return ``bool``, ``int``, ``uint``, ``float`` or ``complex``."""
    return _KIND[dtype]


def is_floating(dtype: DType) -> bool:
    """Whether the dtype is a real float."""
    return _KIND[dtype] == "float"


def is_integer(dtype: DType) -> bool:
    """Whether the dtype is a signed or unsigned integer (bool is not)."""
    return _KIND[dtype] in ("int", "uint")


def is_differentiable(dtype: DType) -> bool:
    """Whether a value of the dtype can carry a gradient."""
    return dtype.num in DIFFERENTIABLE


_INT_BY_BITS = {8: int8, 16: int16, 32: int32, 64: int64}
_COMPLEX_OF = {float16: complex64, bfloat16: complex64, float32: complex64, float64: complex128}
_REAL_OF = {complex64: float32, complex128: float64}
_RANK = {"bool": 0, "uint": 1, "int": 1, "float": 2, "complex": 3}


@cache
def promote_types(a: DType, b: DType) -> DType:
    """Return the dtype to which values of two dtypes are promoted.

    Raises:
        DTypeError: for uint64 with a signed integer, since no integer dtype holds both.
    """
    if a == b:
        return a
    kind_a, kind_b = _KIND[a], _KIND[b]
    if kind_a == kind_b:
        if {a, b} == {float16, bfloat16}:
            return float32
        return a if a.itemsize > b.itemsize else b
    if _RANK[kind_a] > _RANK[kind_b]:
        a, b, kind_a, kind_b = b, a, kind_b, kind_a
    if _RANK[kind_a] == _RANK[kind_b]:
        return _promote_signed(*((a, b) if kind_a == "uint" else (b, a)))
    if kind_a == "float" and kind_b == "complex":
        return promote_types(_COMPLEX_OF[a], b)
    return b


def _promote_signed(unsigned: DType, signed: DType) -> DType:
    if unsigned.itemsize < signed.itemsize:
        return signed
    bits = unsigned.itemsize * 16
    if bits > 64:
        raise DTypeError(f"promotion: no integer dtype holds both {unsigned} and {signed}",
                         hint="Cast one of them with .astype(...).")
    return _INT_BY_BITS[bits]


def real_dtype(dtype: Any) -> Any:
    """Return the dtype of the parts and absolute values of a dtype's numbers: other than complex ones, the dtype."""
    return _REAL_OF.get(dtype, dtype)


def complex_dtype(dtype: Any) -> Any:
    """Return the complex dtype of a float dtype's precision, at least complex64; other dtypes are returned as is."""
    return _COMPLEX_OF.get(dtype, dtype)


def weak_dtype(number: bool | int | float | complex, dtype: DType) -> DType:
    """Return the dtype to which a Python number and a tensor of `dtype` are promoted."""
    kind = _KIND[dtype]
    if isinstance(number, bool):
        return dtype
    if isinstance(number, int):
        return int32 if kind == "bool" else dtype
    if isinstance(number, float):
        return dtype if kind in ("float", "complex") else float32
    return dtype if kind == "complex" else _COMPLEX_OF.get(dtype, complex64)


def default_dtype(number: bool | int | float | complex) -> DType:
    """Return the dtype of a Python number on its own: bool, int32, float32 or complex64."""
    if isinstance(number, bool):
        return bool_
    if isinstance(number, int):
        return int32
    return float32 if isinstance(number, float) else complex64


_ALWAYS_FITS = 1 << 7
"""Integers smaller than this fit every signed dtype."""


def check_fits(number: object, dtype: DType) -> None:
    """Raise if `dtype` cannot hold a Python number.

    A float may round, but not to infinity, which only an infinity becomes. It loses its fraction in an integer dtype.

    Raises:
        NumberRangeError: for a number outside the dtype's range.
        DTypeError: for a complex number where the dtype is real.
    """
    if type(number) is Dim:
        if dtype.itemsize < 4 and is_integer(dtype) and number > _range_of(dtype)[1]:
            _check_int(int(number), int(number), dtype)
        return
    if isinstance(number, bool) or (isinstance(number, int) and 0 <= number < _ALWAYS_FITS):
        return
    if isinstance(number, int):
        _check_int(number, number, dtype)
    elif isinstance(number, float):
        if is_integer(dtype):
            _check_int(int(number) if math.isfinite(number) else None, number, dtype)
        elif issubclass(cast(Any, type(number)), float) and (dtype.itemsize < 8 or dtype == complex64):  # not traced
            _check_float(number, dtype)
    elif isinstance(number, complex):
        if _KIND[dtype] != "complex":
            raise DTypeError(f"asarray: {number} to {dtype} would drop the imaginary part", hint="Pass number.real.")
        if dtype == complex64:
            _check_float(number.real, dtype)
            _check_float(number.imag, dtype)


def _check_float(number: float, dtype: DType) -> None:
    """Raise if a finite float would round to infinity."""
    if dtype != bool_ and rounds_to_infinity(dtype) <= abs(number) < math.inf:
        raise _out_of_range(number, dtype)


def _check_int(whole: int | None, number: float, dtype: DType) -> None:
    """Raise unless an integer lies in the range of a dtype; None never does."""
    if dtype == bool_:
        return
    low, high = _range_of(dtype)
    if whole is None or not low <= whole <= high:
        raise _out_of_range(number, dtype)


def _out_of_range(number: float, dtype: DType) -> NumberRangeError:
    low, high = _range_of(dtype)
    wider = "int64" if is_integer(dtype) else "complex128" if dtype == complex64 else "float64"
    return NumberRangeError(
        f"asarray: {_short(number)} does not fit {dtype}, which holds {_short(low)} to {_short(high)}",
        hint=f"Choose a wider dtype, for example dtype=hf.{wider}."
    )


@cache
def rounds_to_infinity(dtype: DType) -> float:
    """Return the smallest positive float that a floating dtype rounds to infinity: half a step above its largest."""
    info = ml_dtypes.finfo(np.dtype("float32") if dtype == complex64 else dtype)
    largest, step = float(info.max), float(info.eps)
    return largest + largest / (2 - step) * step / 2


@cache
def _range_of(dtype: DType) -> tuple[int, int]:
    """Return the smallest and the largest integer that a dtype holds."""
    if is_integer(dtype):
        info = np.iinfo(dtype)
        return int(info.min), int(info.max)
    largest = int(float(ml_dtypes.finfo(np.dtype("float32") if dtype == complex64 else dtype).max))
    return -largest, largest


def _short(number: float) -> str:
    """Format a number that may be too long to print."""
    if isinstance(number, float) or abs(number) < 1 << 64:
        return str(number)
    return f"{float(number):g}" if abs(number) < 1 << 1000 else f"an integer of {number.bit_length()} bits"


def as_differentiable(dtype: DType) -> DType:
    """Return the dtype itself if it can carry a gradient, else float32, the default float."""
    return dtype if is_differentiable(dtype) else float32

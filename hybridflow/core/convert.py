"""Convert users' values (numbers, nested lists, arrays) to NumPy arrays, and check that their dtype can hold them."""

from __future__ import annotations

from typing import Any, cast

import jax
import numpy as np

from hybridflow.backend.host import run_quietly
from hybridflow.core.dtypes import (
    DType,
    as_dtype,
    check_fits,
    default_dtype,
    is_integer,
    kind_of,
    promote_types,
)
from hybridflow.core.errors import ArgumentTypeError, DTypeError, LayoutWarning, ShapeError
from hybridflow.core.mesh import lies_on_several
from hybridflow.core.node import Where, user_place, warn_at
from hybridflow.core.op import REGISTRY
from hybridflow.core.staged_number import default_dtype_of, weak_dtype_of


class Wide:
    """The line that last made a float64 tensor from an array, perhaps unintentionally: float64 is NumPy's default.

    Attributes:
        place: the user's line.
    """

    place: Where | None = None

    @classmethod
    def came_in(cls, depth: int) -> None:
        """Remember the user's line, searching from `depth` frames up."""
        cls.place = user_place(depth + 1)


NUMBERS = frozenset({bool, int, float, complex})
_DEEPEST = 64
"""The most axes of an array of NumPy, and so the deepest nesting of lists."""
Sequences = (list, tuple, range)


def to_numpy(obj: Any, dtype: DType | None = None) -> np.ndarray[Any, Any]:
    """Return the user's value as a NumPy array that nobody else can write to.

    Args:
        obj: a number, an array, or a nested sequence of them.
        dtype: the dtype to convert to.

    Raises:
        ArgumentTypeError: if something in it is not a number.
        NumberRangeError: if the dtype cannot hold a Python number.
        DTypeError: for an array of objects or strings, or for complex numbers where `dtype` is real.
        ShapeError: if nested sequences have different lengths.
    """
    if is_number(obj):
        target = dtype or default_dtype(obj)
        check_fits(obj, target)
        return run_quietly(np.asarray, obj, dtype=target)
    if isinstance(obj, Sequences):
        return _nested(obj, dtype)
    array = _array(obj)
    if dtype is None and array.dtype == np.float64:
        Wide.came_in(2)
    source_dtype = as_dtype(array.dtype if array.dtype.isnative else array.dtype.newbyteorder("="))
    if dtype is None or dtype == source_dtype:
        return np.array(array, dtype=source_dtype, order="C")
    if kind_of(source_dtype) == "complex" and kind_of(dtype) != "complex":
        raise DTypeError(f"asarray: {source_dtype} to {dtype} would drop the imaginary part",
                         hint="Take .real or .imag first.")
    return np.array(run_quietly(cast(Any, REGISTRY["astype"].kernel), array, dtype=dtype), order="C")


def is_number(value: object) -> bool:
    """Whether a value is a Python number; NumPy's scalars count as arrays."""
    return isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic)


def _array(obj: Any) -> np.ndarray[Any, Any]:
    """Return an array-like object as a NumPy array, without a copy where possible."""
    if isinstance(obj, np.ma.MaskedArray):
        raise ArgumentTypeError("asarray: a tensor has no mask, a masked array does", hint="Use array.filled(value).")
    if isinstance(obj, jax.Array) and lies_on_several(obj):
        text = (
            f"asarray: gathers an array that lies on {len(obj.sharding.device_set)} devices into one on the host. "
            "hf.Variable(x, layout=..., mesh=...) keeps it apart."
        )
        warn_at(user_place(3), text, LayoutWarning)
    if isinstance(obj, np.ndarray | np.generic | jax.Array):
        return np.asarray(cast(Any, obj))
    if hasattr(obj, "__dlpack__") and not hasattr(obj, "__arrow_c_array__"):  # Arrow's has no bits, nulls and lists
        return _from_dlpack(obj)
    if hasattr(obj, "__array__") or hasattr(obj, "__array_interface__"):
        return _of_numbers(obj, np.asarray(obj))
    if not isinstance(obj, bytes | bytearray):
        try:
            return np.asarray(memoryview(obj))
        except TypeError:
            pass
    raise ArgumentTypeError(f"asarray: cannot make a tensor of a {type(obj).__name__}", got=repr(obj)[:80],
                            hint="Pass a number, a nested list of numbers, an array or a tensor.")


def _of_numbers(obj: Any, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return an array that was made of an object.

    Raises:
        DTypeError: it holds objects, such as lists, instead of numbers.
    """
    if array.dtype.kind == "O":
        raise DTypeError(f"asarray: a {type(obj).__name__} of objects has no dtype of numbers", got=repr(obj)[:80],
                         hint="Fill in what is missing, and give rows of one length as nested lists (`obj.tolist()`).")
    return array


def _from_dlpack(obj: Any) -> Any:
    """Return the array of an object that supports DLPack; through jax where NumPy fails, as for bfloat16."""
    try:
        return np.from_dlpack(obj)
    except (RuntimeError, BufferError) as error:
        try:
            return np.asarray(jax.dlpack.from_dlpack(obj))
        except Exception:
            raise error from None


def require_shallow(depth: int) -> None:
    """Raise if lists are nested deeper than any array has axes."""
    if depth > _DEEPEST:
        raise ShapeError(f"asarray: lists are nested more than {_DEEPEST} deep, which is the most axes of an array",
                         hint="A list that holds itself has no end.")


def _nested(obj: Any, dtype: DType | None) -> np.ndarray[Any, Any]:
    """Return a nested sequence as one array."""
    numbers: list[Any] = []
    arrays: list[np.ndarray[Any, Any]] = []

    def walk(item: Any, depth: int = 0) -> Any:
        if isinstance(item, Sequences):
            require_shallow(depth)
            if NUMBERS.issuperset(map(type, item)):
                numbers.extend(item)
                return item
            return [walk(child, depth + 1) for child in cast("list[Any]", item)]
        if is_number(item):
            numbers.append(item)
            return item
        arrays.append(to_numpy(item))
        return arrays[-1]

    nested = walk(obj)
    by_type = dict(zip(map(type, numbers), numbers, strict=True))
    target = dtype or common_dtype([*by_type.values(), *arrays])
    _check_all_fit(numbers, set(by_type), target)
    for array in arrays:
        if array.dtype.kind == "c" and kind_of(target) != "complex":
            raise DTypeError(f"asarray: {array.dtype} to {target} would drop the imaginary part",
                             hint="Take .real first.")
    try:
        made = run_quietly(np.array, nested, dtype=target)
    except ValueError:
        raise ShapeError("asarray: a nested list must be rectangular", got=repr(obj)[:80],
                         hint="Pad the rows to one length.") from None
    if not {float, complex}.isdisjoint(by_type) and made.dtype.itemsize <= 8 and np.isinf(made).any():
        for number in numbers:
            check_fits(number, target)
    return made


def _check_all_fit(numbers: list[Any], types: set[type], target: DType) -> None:
    """Raise if one of many Python numbers does not fit a dtype."""
    if int in types:
        ints = numbers if len(types) == 1 else [number for number in numbers if isinstance(number, int)]
        check_fits(min(ints), target)
        check_fits(max(ints), target)
    if types - {bool, int} and kind_of(target) != "complex" and (types - {bool, int, float} or is_integer(target)):
        for number in numbers:
            check_fits(number, target)


def common_dtype(leaves: list[Any]) -> DType:
    """Return the common dtype of Python numbers and arrays (or tensors); float32 if there are none."""
    weak: list[Any] = []
    strong: DType | None = None
    for leaf in leaves:
        if is_number(leaf):
            weak.append(leaf)
        else:
            dtype = as_dtype(leaf.dtype)
            strong = dtype if strong is None else promote_types(strong, dtype)
    if strong is None:
        if not weak:
            return default_dtype(0.0)
        result = default_dtype_of(weak[0])
        for leaf in weak[1:]:
            result = promote_types(result, default_dtype_of(leaf))
        return result
    for leaf in weak:
        strong = weak_dtype_of(leaf, strong)
    return strong

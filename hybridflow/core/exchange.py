"""Values for other libraries: the buffer protocol, NumPy's array interface, and Arrow."""

from __future__ import annotations

from functools import reduce
from importlib import import_module
from typing import Any

import numpy as np

from hybridflow.core.dtypes import bfloat16, kind_of
from hybridflow.core.errors import DTypeError, MissingPackageError, ShapeError

Array = np.ndarray[Any, Any]


def buffer_of(array: Array) -> memoryview:
    """Return a read-only view of a value's memory.

    Raises:
        DTypeError: buffers have no format for the dtype.
    """
    if array.dtype == bfloat16:
        raise DTypeError("memoryview: buffers have no format for bfloat16",
                         hint="Use memoryview(t.astype(hf.float32)).")
    return memoryview(array)


def array_interface(array: Array) -> dict[str, Any]:
    """Return what NumPy's array interface says of a value, of which a contiguous array is the memory; it is read-only.

    Raises:
        AttributeError: the interface has no name for the dtype; ``__array__`` gives such an array.
    """
    if array.dtype == bfloat16:
        raise AttributeError("the array interface has no name for bfloat16")
    memory = array if array.flags.c_contiguous else array.copy()  # NumPy reads `data` as one piece
    memory.flags.writeable = False
    # Pillow asks for `tobytes` where there are strides, for a buffer where there are none: before Python 3.12 no class
    # of Python's is a buffer.
    typestr = array.dtype.str
    return {"shape": array.shape, "typestr": typestr, "strides": memory.strides, "data": memory, "version": 3}


def arrow_of(array: Array, schema: Any) -> Any:
    """Return the two capsules of a value as an Arrow array; axes after the first are lists of fixed sizes.

    Args:
        array: the value.
        schema: the capsule of the type that the consumer asks for, or None.

    Raises:
        ShapeError: the value has no axis.
        DTypeError: Arrow has no such numbers.
        MissingPackageError: pyarrow is not installed.
    """
    if not array.shape:
        raise ShapeError("arrow: an array has an axis", got=f"shape {array.shape}", hint="Use t.item().")
    if array.dtype == bfloat16 or kind_of(array.dtype) == "complex":
        raise DTypeError(f"arrow: there are no arrays of {array.dtype}",
                         hint="Cast it with .astype(hf.float32), or take .real and .imag.")
    try:
        arrow = import_module("pyarrow")
    except ImportError as error:
        raise MissingPackageError("arrow: an array of Arrow is made by the package pyarrow",
                                  hint="Install it: pip install pyarrow. Or pass t.numpy().") from error
    rows = arrow.array(array.reshape(-1))
    return reduce(arrow.FixedSizeListArray.from_arrays, array.shape[:0:-1], rows).__arrow_c_array__(schema)

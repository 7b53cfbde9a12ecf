"""Products that NumPy's OpenBLAS adds to an array; NumPy itself can only overwrite one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

from hybridflow.backend.blas_threads import libraries

AddProduct = Callable[..., None]
"""A function of ``(rows, columns, length, 1.0, a, a_step, b, b_step, onto, out, out_step)`` that computes
``out = onto * out + a @ b``. The matrices are addresses of their first elements, each with the number of elements from
one row to the next: a ``(rows, length)``, b ``(length, columns)``, out ``(rows, columns)``. It checks nothing."""

_ROW_MAJOR, _AS_IT_IS = 101, 111  # CBLAS's constants
_LETTERS = {"f": ("s", ctypes.c_float), "d": ("d", ctypes.c_double)}
_SYMBOLS = (("scipy_cblas_{}gemm64_", ctypes.c_int64), ("scipy_cblas_{}gemm", ctypes.c_int),
            ("cblas_{}gemm64_", ctypes.c_int64), ("cblas_{}gemm", ctypes.c_int))
"""What wheels call the function, each with the type of its sizes."""


@cache
def adding_product(dtype: np.dtype[Any]) -> AddProduct | None:
    """Return the function for a dtype, or None if NumPy has another library or the dtype is not a real one.

    Example:
        >>> import numpy as np
        >>> add = adding_product(np.dtype(np.float64))
        >>> a, b, out = np.ones((2, 3)), np.ones((3, 2)), np.full((2, 2), 10.0)
        >>> if add is not None:
        ...     add(2, 2, 3, 1.0, a.ctypes.data, 3, b.ctypes.data, 2, 1.0, out.ctypes.data, 2)
        ... else:
        ...     out += a @ b
        >>> out.tolist()
        [[13.0, 13.0], [13.0, 13.0]]
    """
    if dtype.char not in _LETTERS or not dtype.isnative:
        return None
    letter, number = _LETTERS[dtype.char]
    for library in libraries("numpy"):
        loaded = ctypes.CDLL(str(library))
        for symbol, size in _SYMBOLS:
            found: Any = getattr(loaded, symbol.format(letter), None)
            if found is not None:
                choice, address = ctypes.c_int, ctypes.c_void_p
                found.argtypes = (choice, choice, choice, size, size, size, number, address, size, address, size,
                                  number, address, size)
                found.restype = None
                return partial(found, _ROW_MAJOR, _AS_IT_IS, _AS_IT_IS)
    return None

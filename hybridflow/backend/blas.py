"""Products with vectors of ones in the threads of NumPy's BLAS, as long as those threads respond quickly.

OpenBLAS's threads wait for work in a loop, so they begin at once, while a Python thread first has to wake up. But a
product must wait for every one of them, and if another program occupies their core, that takes milliseconds. So after
a product that took too long, none is shared for a while.

Sharing does not change the result: products are cut so that every thread gets whole vectors of the library's kernels,
if the number of threads divides `THREADS`. If it does not, or with another library, products are cut into pieces
small enough for one thread.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache, partial
from time import perf_counter
from typing import Any

import numpy as np

from hybridflow.backend.blas_threads import libraries, one_thread
from hybridflow.backend.cores import usable_cores
from hybridflow.backend.parallel import POOL, QUICK_PART

THREADS = 48
"""A number that many thread counts divide (2, 3, 4, 6, 8, 12, 16, 24 and 48), so that all threads get equal parts."""
SHARED = 115_200 * 4
"""The number of elements from which OpenBLAS 0.3.31 shares the product of a matrix and a vector."""
_PATIENCE_S, _PATIENCE_PER_ELEMENT_S = 1e-4, 1e-9
"""The time limit for a shared product, in seconds: one thread alone needs less, even on a slow machine."""
_PAUSE = 30
"""After a late product, none is shared for this many times its duration, so lateness costs at most a thirtieth of the
time."""


class _Sharing:
    """The time from which products may be shared again."""

    __slots__ = ("resume",)

    def __init__(self) -> None:
        self.resume = 0.0


SHARING = _Sharing()


@cache
def _is_even() -> bool:
    """Whether NumPy's BLAS is OpenBLAS with a core for each thread and a thread count that divides `THREADS`."""
    alone = one_thread("numpy")
    threads = 0 if alone is None else alone.threads()
    return 0 < threads <= usable_cores() and THREADS % threads == 0


def run_products(product: Callable[[int, int], object], length: int, each: int, unit: int) -> None:
    """Run ``product(start, stop)`` so that the ranges make up ``range(length)``.

    Args:
        product: a function that multiplies a part of a matrix by a vector; parts do not overlap.
        length: the number of steps.
        each: the number of matrix elements that one step reads.
        unit: the library's threads share any multiple of so many steps evenly; one unit reads less than `SHARED`
            elements.
    """
    elements = length * each
    if elements < SHARED:
        product(0, length)
        return
    whole = length - length % unit
    begun = perf_counter()
    if begun >= SHARING.resume and _is_even():
        product(0, whole)
        ended = perf_counter()
        if ended - begun > _PATIENCE_S + _PATIENCE_PER_ELEMENT_S * elements:
            SHARING.resume = ended + _PAUSE * (ended - begun)
    else:
        _run_small(product, whole, each, unit)
    if whole < length:
        product(whole, length)


def _run_small(product: Callable[[int, int], object], length: int, each: int, unit: int) -> None:
    """Run products of fewer than `SHARED` elements each, in Python threads if there are very many."""
    step = (SHARED - 1) // (each * unit) * unit

    def task(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            product(first, min(first + step, stop))

    POOL.run(task, length, length * each, unit, QUICK_PART)


# -- products that NumPy's OpenBLAS adds to an array; NumPy itself can only overwrite one -----------------------------

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

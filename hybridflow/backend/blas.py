"""Products with vectors of ones in the threads of NumPy's BLAS, as long as those threads respond quickly.

OpenBLAS's threads wait for work in a loop, so they begin at once, while a Python thread first has to wake up. But a
product must wait for every one of them, and if another program occupies their core, that takes milliseconds. So after
a product that took too long, none is shared for a while.

Sharing does not change the result: products are cut so that every thread gets whole vectors of the library's kernels,
if the number of threads divides `THREADS`. If it does not, or with another library, products are cut into pieces
small enough for one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter

from hybridflow.backend.blas_threads import one_thread
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

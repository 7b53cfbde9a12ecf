"""Products with vectors of ones in the threads of NumPy's BLAS, while these are there to be had.

OpenBLAS's threads wait for work in a loop, so that they begin at once, where a thread of Python's takes 10 to 20 us to
wake up. But a product is not done before each of them has done its part, and where another program has their core that
takes milliseconds. So a product that took that long is the last one they share for a while.

Whether they share one changes no bit: it is cut so that each of them has whole vectors of the library's kernels if
their number divides `THREADS`. If it does not, or the library is another one, products are small enough for one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from time import perf_counter

from hybridflow.backend.blas_threads import one_thread
from hybridflow.backend.cores import usable_cores
from hybridflow.backend.parallel import POOL, QUICK_PART

THREADS = 48
"""What numbers of threads divide, so that all get parts of one size: 2, 3, 4, 6, 8, 12, 16, 24 and 48 do."""
SHARED = 115_200 * 4
"""OpenBLAS 0.3.31 shares the product of a matrix of so many elements and a vector."""
_PATIENCE_S, _PATIENCE_PER_ELEMENT_S = 1e-4, 1e-9
"""One thread is done by then, on a slow machine too: a million float32 take it 50 to 200 us."""
_PAUSE = 30
"""After a shared product was late, none is shared for this many times as long as it took, so lateness costs at most
a thirtieth of the time."""


class _Sharing:
    """Whether products may be shared."""

    __slots__ = ("resume",)

    def __init__(self) -> None:
        self.resume = 0.0


SHARING = _Sharing()


@cache
def _is_even() -> bool:
    """Whether NumPy's BLAS is OpenBLAS, with a number of threads that divides `THREADS` and that have a core each."""
    alone = one_thread("numpy")
    threads = 0 if alone is None else alone.threads()
    return 0 < threads <= usable_cores() and THREADS % threads == 0


def run_products(product: Callable[[int, int], object], length: int, each: int, unit: int) -> None:
    """Run ``product(start, stop)`` so that the ranges make up ``range(length)``.

    Args:
        product: what multiplies a part of a matrix by a vector; parts do not overlap.
        length: how much there is to do.
        each: how many elements of the matrix one step reads.
        unit: how many steps, or a multiple, the library's threads share evenly; that reads less than `SHARED` elements.
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
    """Run products of fewer than `SHARED` elements; of very many in threads of Python's."""
    step = (SHARED - 1) // (each * unit) * unit

    def task(start: int, stop: int) -> None:
        for first in range(start, stop, step):
            product(first, min(first + step, stop))

    POOL.run(task, length, length * each, unit, QUICK_PART)

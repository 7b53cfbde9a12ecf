"""Sums of many elements: as precise as pairwise summation, and the same bits wherever and however often."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend import blas
from hybridflow.backend.blas import SHARED, SHARING, run_products
from hybridflow.ops.host_rows import row_sums
from hybridflow.ops.summation import add_up

CASES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((1_000_000,), (0,)),
    ((600_011,), (0,)),
    ((1000, 1000), (0,)),
    ((1000, 1000), (1,)),
    ((2, 500_003), (1,)),
    ((500_003, 3), (0,)),
    ((600, 1031), (1,)),
    ((70, 130, 131), (0, 2)),
]


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let BLAS share products however long they take on a busy machine."""
    monkeypatch.setattr(blas, "_PATIENCE_S", math.inf)
    monkeypatch.setattr(SHARING, "resume", 0.0)


BITS = """
import ctypes, glob, math, os
import numpy as np
from hybridflow.backend import blas
from hybridflow.ops.summation import add_up
found = glob.glob(os.path.join(os.path.dirname(os.path.dirname(np.__file__)), "numpy.libs", "libscipy_openblas64_*"))
if not found:
    print("another BLAS")
    raise SystemExit
use = ctypes.CDLL(found[0]).scipy_openblas_set_num_threads64_
blas._PATIENCE_S = math.inf
rng = np.random.default_rng(0)
for shape, axis in CASES:
    for dtype in ("float32", "float64"):
        x = rng.standard_normal(shape).astype(dtype)
        for threads in (1, 2, 3, 4):
            use(threads)
            bits = add_up(x, axis, False).tobytes()
            if threads == 1:
                expected = bits
            if bits != expected:
                print(shape, axis, dtype, threads)
"""


def test_bits_do_not_depend_on_the_number_of_threads():
    code = BITS.replace("CASES", repr(CASES))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    if done.stdout.startswith("another"):
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    assert done.stdout == ""


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_bits_do_not_depend_on_who_computes(shape: Any, axis: Any, rng: np.random.Generator):
    x = rng.standard_normal(shape).astype(np.float32)
    shared = add_up(x, axis, False)
    SHARING.resume = math.inf
    assert add_up(x, axis, False).tobytes() == shared.tobytes()


def test_nothing_is_shared_for_a_while_after_a_product_that_took_long(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(blas, "perf_counter", lambda: now)
    monkeypatch.setattr(blas, "_PATIENCE_S", 1e-4)
    monkeypatch.setattr(blas, "_is_even", lambda: True)
    takes = 1e-4

    def largest() -> int:
        sizes: list[int] = []

        def product(start: int, stop: int) -> None:
            nonlocal now
            now += takes
            sizes.append(stop - start)

        run_products(product, 2050, 500, 192)
        assert sum(sizes) == 2050
        return max(sizes) * 500

    assert largest() >= SHARED
    takes = 1e-2
    assert largest() >= SHARED
    takes = 1e-4
    assert largest() < SHARED
    now += 0.2
    assert largest() < SHARED
    now += 0.1
    assert largest() >= SHARED
    monkeypatch.setattr(blas, "_is_even", lambda: False)
    assert largest() < SHARED


def test_equal_arrays_have_equal_sums(rng: np.random.Generator):
    """At any address, any number of times, while other threads multiply matrices."""
    end = threading.Event()

    def work() -> None:
        x = np.ones((300, 300), np.float32)
        while not end.is_set():
            np.matmul(x, x)

    busy = threading.Thread(target=work)
    busy.start()
    try:
        for shape, axis in CASES[1:4]:
            x = rng.standard_normal(shape).astype(np.float32)
            expected = add_up(x, axis, False).tobytes()
            room = np.empty(x.size + 16, np.float32)
            for again in range(16):
                moved = room[again:][: x.size].reshape(shape)
                moved[...] = x
                assert add_up(moved, axis, False).tobytes() == expected
    finally:
        end.set()
        busy.join()


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_precision(shape: Any, axis: Any, rng: np.random.Generator):
    """Sums of one sign round off most, and always in one direction if the order of additions is bad."""
    x = rng.random((shape), np.float32)
    exact = np.add.reduce(x, axis=axis, dtype=np.float64)
    error = np.abs(add_up(x, axis, False) / exact - 1)
    last = np.ascontiguousarray(np.moveaxis(x, axis, range(x.ndim - len(axis), x.ndim)))
    pairwise = np.abs(np.add.reduce(last.reshape(*exact.shape, -1), axis=-1) / exact - 1)
    assert np.sqrt(np.mean(error**2)) <= 3 * np.sqrt(np.mean(pairwise**2)) + np.finfo(np.float32).eps / 4


WAYS: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    *CASES,
    ((1000, 1000), (0, 1)),
    ((997, 1009), (0, 1)),
    ((10,) * 6, (0, 1, 3, 4)),
    ((8, 128, 768), (0, 1)),
    ((4, 4096, 64), (1,)),
    ((16, 64, 32, 32), (0, 2, 3)),
    ((32, 3, 64, 64), (0, 2, 3)),
    ((3, 7, 5, 11, 13, 17, 2), (0, 1, 2, 4, 6)),
    ((16, 1009), (1,)),
    ((4096, 1), (0,)),
    ((2048, 2), (0,)),
    ((1025, 4), (0,)),
    ((1000, 10), (0,)),
    ((128, 10), (0,)),
    ((300_000, 15), (0, 1)),
]
"""Shapes and axes, such that each way of summation is chosen: by sizes, by which axes, and by their divisors."""


def _bound(count: float) -> float:
    """Return the documented bound of the relative error of a sum of so many numbers of one sign.

    It is twice NumPy's, which sums 128 neighbours as eight sums of sixteen, and pairs of such sums.
    """
    return (32 + 2 * math.log2(count)) * 2**-24


def _assert_precise(found: Any, exact: Any, count: float, factor: float = 1) -> None:
    error = np.max(np.abs(np.asarray(found, np.float64) / exact - 1))
    assert error <= factor * _bound(count), f"{error:.1e} > {factor} * {_bound(count):.1e}"


def _apart(shape: Any) -> Any:
    """Split every size into its prime factors."""
    factors: list[int] = []
    for size in shape:
        divisor = 2
        while size > 1:
            if size % divisor:
                divisor += 1
            else:
                factors.append(divisor)
                size //= divisor
    return tuple(factors)


@pytest.mark.parametrize(("shape", "axis"), WAYS, ids=str)
def test_every_way_is_as_precise_as_pairwise_summation(shape: Any, axis: Any, rng: np.random.Generator):
    """Equal numbers round off in one direction; a reshape before the sum must not change how XLA adds."""
    whole = hf.compile(lambda x: hf.sum(x, axis=axis))
    reshaped = hf.compile(lambda x: hf.sum(hf.reshape(x, shape), axis=axis))
    for x in (np.full(shape, 0.1, np.float32), np.full(shape, 1.970604, np.float32), rng.random(shape, np.float32)):
        exact = np.sum(x, axis=axis, dtype=np.float64)
        count = x.size / exact.size
        _assert_precise(hf.sum(x, axis=axis), exact, count)
        _assert_precise(whole(x), exact, count)
        _assert_precise(reshaped(x.reshape(_apart(shape))), exact, count)


REDUCTIONS: dict[str, tuple[Any, tuple[int, ...], Any, float]] = {
    "mean": (hf.mean, (1000, 1000), np.mean, 1),
    "var": (lambda x: hf.var(x, axis=(0, 2)), (100, 100, 100), lambda x: np.var(x, axis=(0, 2)), 3),
    "norm": (hf.linalg.norm, (1000, 1000), np.linalg.norm, 1),
    "vector_norm": (
        lambda x: hf.linalg.vector_norm(x, ord=3, axis=(0, 1)), (40, 500, 50),
        lambda x: np.sum(x**3, axis=(0, 1)) ** (1 / 3), 1,
    ),
    "logsumexp": (
        lambda x: hf.exp(hf.logsumexp(x)), (1000, 1000), lambda x: np.sum(np.exp(x)), 20,  # the logarithm is 14
    ),
    "softmax": (
        lambda x: hf.nn.softmax(x, axis=(0, 1)), (700, 700), lambda x: np.exp(x) / np.sum(np.exp(x)), 2,
    ),
    "mse": (lambda x: hf.mean(hf.nn.mse(x, 0 * x)), (1000, 1000), lambda x: np.mean(x * x), 1),
    "einsum": (lambda x: hf.einsum("ijk->j", x), (300, 20, 200), lambda x: np.sum(x, axis=(0, 2)), 1),
    "gradient of a bias": (
        lambda x: hf.grad(lambda b: hf.sum((x + b) * x))(hf.zeros(x.shape[-1:])), (40, 500, 50),
        lambda x: np.sum(x, axis=(0, 1)), 1,
    ),
    "complex": (
        lambda x: hf.real(hf.sum(hf.astype(x, hf.complex64))), (1000, 1000), np.sum, 1,
    ),
    "rows of vmap": (hf.vmap(hf.sum), (4, 500, 500), lambda x: np.sum(x, axis=(1, 2)), 1),
    "loop": (
        lambda x: hf.scan(lambda t, row: (t, hf.sum(row)), hf.zeros(()), x)[1], (4, 500, 500),
        lambda x: np.sum(x, axis=(1, 2)), 1,
    ),
}
"""Functions that sum, a shape, the function in float64, and how many times the bound of one sum they may be off."""


@pytest.mark.parametrize("name", REDUCTIONS)
def test_whatever_sums_is_as_precise(name: str, rng: np.random.Generator):
    function, shape, reference, factor = REDUCTIONS[name]
    x = rng.random(shape, np.float32) * 1e-3 + np.float32(0.1)
    exact = reference(x.astype(np.float64))
    count = max(x.size / exact.size, x.size if name == "softmax" else 1)
    _assert_precise(function(hf.asarray(x)), exact, count, factor)
    compiled: Any = hf.compile(function)
    _assert_precise(compiled(x), exact, count, factor)


def test_many_short_rows(rng: np.random.Generator):
    for dtype, tolerance in ((np.float32, 1e-5), (np.float64, 1e-14)):
        x = rng.random((3, 700, 333)).astype(dtype)
        exact = np.add.reduce(x, axis=2, keepdims=True, dtype=np.longdouble)
        np.testing.assert_allclose(row_sums(x), exact.astype(dtype), rtol=tolerance)
        assert row_sums(x).tobytes() == add_up(x, (2,), True).tobytes()


def test_one_element_along_an_axis(rng: np.random.Generator):
    x = rng.standard_normal((1, 50_000, 1)).astype(np.float32)
    for axis in ((0,), (2,), (0, 2)):
        found = add_up(x, axis, True)
        np.testing.assert_array_equal(found, x)
        assert not np.shares_memory(found, x)

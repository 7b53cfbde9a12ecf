"""Matrix products on the host: one result whatever the number of threads is and whatever else the machine does."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend import cores, parallel
from hybridflow.backend.blas_threads import OneThread, one_thread
from hybridflow.backend.parallel import POOL, Pool
from hybridflow.backend.products import matmul

NUMPYS = one_thread("numpy")
needs_openblas = pytest.mark.skipif(NUMPYS is None, reason="NumPy's BLAS is not the OpenBLAS of its wheels")

SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 4), (4, 5)),
    ((100, 90), (90, 110)),
    ((330, 333), (333, 331)),
    ((700, 200), (200, 300)),
    ((300, 200), (200, 700)),
    ((7, 160, 170), (7, 170, 190)),
    ((2, 2, 160, 170), (2, 2, 170, 390)),
    ((5, 160, 170), (170, 390)),
    ((160, 170), (9, 170, 190)),
    ((5000, 900), (900,)),
    ((900,), (900, 5000)),
    ((200_000,), (200_000,)),
    ((0, 900), (900, 50)),
    ((32, 512), (512, 128)),
    ((24, 300), (300, 200)),
    ((5, 700), (700, 300)),
]
FEW_ROWS = [(4, 600, 600), (24, 300, 200), (32, 512, 128), (32, 128, 512), (33, 512, 128), (5, 9, 20_000)]
DTYPES = ("float32", "float64", "complex64", "int32")


def operands(rng: np.random.Generator, shapes: Any, dtype: str) -> Any:
    """Draw operands of a dtype."""
    if np.dtype(dtype).kind == "i":
        return [rng.integers(-9, 9, shape).astype(dtype) for shape in shapes]
    return [(rng.standard_normal(shape) + (1j * rng.standard_normal(shape) if dtype[0] == "c" else 0)).astype(dtype)
            for shape in shapes]


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(POOL, "resume", 0.0)
    with hf.config.threads(4):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_products_are_numpys_but_for_rounding(shapes: Any, dtype: str, rng: np.random.Generator):
    a, b = operands(rng, shapes, dtype)
    for left, right in ((a, b), (np.asfortranarray(a), b), (a, np.asfortranarray(b)), (a[..., ::-1], b)):
        found, expected = matmul(left, right), np.matmul(left, right)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        scale = np.matmul(abs(left).astype("float64"), abs(right).astype("float64"))
        np.testing.assert_array_less(abs(found - expected), 1e-5 * scale + 1e-30)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "length", "columns"), FEW_ROWS)
def test_few_rows_times_a_transposed_matrix(rows: int, length: int, columns: int, dtype: str, rng: np.random.Generator):
    a, b = operands(rng, ((rows, length), (columns, length)), dtype)
    found, whole = matmul(a, b.T), matmul(a, np.ascontiguousarray(b.T))
    assert found.flags.c_contiguous
    assert found.base is None
    np.testing.assert_allclose(found, whole, rtol=0, atol=1e-6 * float((abs(a) @ abs(b.T)).max()))
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        matmul(a, b[:, 1:].T)


def test_a_result_is_written_where_it_is_wanted(rng: np.random.Generator):
    for shapes in (((400, 300), (300, 500)), ((8, 200, 200), (8, 200, 200))):
        a, b = operands(rng, shapes, "float32")
        wide = np.zeros((*a.shape[:-1], 2 * b.shape[-1]), np.float32)
        for out in (np.zeros_like(wide[..., ::2]), wide[..., ::2]):
            assert matmul(a, b, out) is out
            np.testing.assert_allclose(out, matmul(a, b), rtol=1e-4, atol=1e-4)  # some NumPys add up otherwise there
        assert not wide[..., 1::2].any()


def test_sizes_that_do_not_fit_are_numpys_error(rng: np.random.Generator):
    a, b = operands(rng, ((400, 400), (401, 400)), "float32")
    with pytest.raises(ValueError, match="mismatch in its core dimension"):
        matmul(a, b)


@needs_openblas
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_bits_depend_on_no_number_of_threads(shapes: Any, dtype: str, rng: np.random.Generator):
    assert NUMPYS is not None
    a, b = operands(rng, shapes, dtype)
    before = NUMPYS.threads()
    found: set[bytes] = set()
    try:
        for theirs, ours in itertools.product((1, 2, 3), (1, 2, 4)):
            NUMPYS._put(theirs)
            with hf.config.threads(ours):
                found.add(matmul(a, b).tobytes() + matmul(a, np.asfortranarray(b)).tobytes())
    finally:
        NUMPYS._put(before)
    assert len(found) == 1


def test_a_matrix_times_its_transpose_is_symmetric(rng: np.random.Generator):
    (a,) = operands(rng, ((500, 400),), "float32")
    for found in (matmul(a, a.T), matmul(a.T, a)):
        np.testing.assert_array_equal(found, found.T)


@needs_openblas
def test_the_library_uses_one_thread_and_gets_its_number_back(monkeypatch: pytest.MonkeyPatch):
    assert NUMPYS is not None
    before = NUMPYS.threads()
    seen: list[int] = []
    multiply = np.matmul
    monkeypatch.setattr(np, "matmul", lambda *args, **named: (seen.append(NUMPYS._get()), multiply(*args, **named))[1])
    NUMPYS._put(2)
    try:
        x = hf.ones((100, 100))
        for y in (x @ x, hf.einsum("ij,kj->ik", x, x), hf.ones((600, 600)) @ hf.ones((600, 600))):
            y.numpy()
        assert len(seen) >= 4
        assert set(seen) == {1}
        assert NUMPYS._get() == 2
    finally:
        NUMPYS._put(before)


def test_blocks_of_several_threads_overlap():
    number = 8
    puts: list[int] = []

    def put(value: int) -> None:
        nonlocal number
        number = value
        puts.append(value)

    block = OneThread(lambda: number, put)
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with block:
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=stay)
    with block:
        thread.start()
        assert inside.wait(10)
    assert (number, block.threads()) == (1, 8)  # the other one is still inside
    leave.set()
    thread.join()
    assert (number, puts) == (8, [1, 8])
    with pytest.raises(ZeroDivisionError), block:
        raise ZeroDivisionError
    assert number == 8


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_is_inside_of_no_block():
    number = 4

    def put(value: int) -> None:
        nonlocal number
        number = value

    block = OneThread(lambda: number, put)
    block.__enter__()
    block.forget()
    assert number == 4
    with block:
        assert number == 1
    assert number == 4


# -- waiting for a core -------------------------------------------------------------------------------------------


def test_after_threads_had_to_wait_nothing_is_shared_for_a_while(monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(parallel, "perf_counter", lambda: now)
    pool = Pool()
    pool.threads = 2

    class Other:
        """A share that another thread has begun."""

        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def finish(self) -> None:
            nonlocal now
            now += self.seconds

    def own() -> None:
        nonlocal now
        now += 1e-3

    pool._compute_and_wait(own, [Other(0.0), Other(1.1e-3)])
    assert pool._parts(2) == 2
    pool._compute_and_wait(own, [Other(0.0), Other(0.1)])
    assert pool._parts(2) == 1
    now += 2.5
    assert pool._parts(2) == 1
    now += 0.5
    assert pool._parts(2) == 2


@pytest.fixture
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Share work however late the threads are."""
    monkeypatch.setattr(parallel, "_PATIENCE_S", math.inf)
    monkeypatch.setattr(POOL, "resume", 0.0)  # threads may have been late in the test before


@pytest.mark.usefixtures("_patient")
def test_pieces_are_taken_by_whoever_is_free():
    both, who = threading.Barrier(2), set[int]()

    def piece(number: int) -> None:
        who.add(threading.get_ident())
        if number < 2:
            both.wait(60)  # two pieces are computed at a time

    POOL.run_pieces(piece, 7, 2)
    assert len(who) == 2


@pytest.mark.usefixtures("_patient")
def test_an_error_in_another_thread_is_raised_here():
    both = threading.Barrier(2)
    here = threading.get_ident()

    def piece(number: int) -> None:
        both.wait(60)
        if threading.get_ident() != here:
            raise MemoryError("no room")

    with pytest.raises(MemoryError, match="no room"):
        POOL.run_pieces(piece, 2, 2)


# -- how many cores there are -------------------------------------------------------------------------------------


def tree(root: Path, files: dict[str, str]) -> str:
    """Write a file system's control files."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/self/cgroup": "0::/\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1.5),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/cpu.max": "200000 100000\n",
          "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n"}, 2.0),
        ({"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/cpu.max": "300000 100000\n"}, 3.0),
        ({"proc/self/cgroup": "3:memory:/\n1:cpu,cpuacct:/x\n0::/\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000\n",
          "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"proc/self/cgroup": "1:cpu:/\n", "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
          "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)
def test_quotas_of_control_groups(tmp_path: Path, files: dict[str, str], expected: float | None):
    assert cores.quota_of_group(tree(tmp_path, files)) == expected


def test_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(cores, "quota_of_group", lambda: None)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert cores.usable_cores("OMP_NUM_THREADS") == 16
    for quota, expected in ((0.5, 1), (1.5, 2), (64.0, 16)):
        monkeypatch.setattr(cores, "quota_of_group", lambda quota=quota: quota)
        assert cores.usable_cores("OMP_NUM_THREADS") == expected
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert cores.usable_cores("OMP_NUM_THREADS") == 3

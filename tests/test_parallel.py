"""Large arrays on the host, shared among threads: the same bits as in one, and nothing left behind."""

from __future__ import annotations

import asyncio
import itertools
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend import parallel
from hybridflow.backend.host import run_quietly
from hybridflow.backend.parallel import LARGE, PART, POOL, Pool
from hybridflow.core.op import REGISTRY
from hybridflow.ops import host_rows
from hybridflow.ops.host_rows import extremum
from hybridflow.ops.summation import add_up

HARD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 1.0, -1.0, 0.5, 88.8, 3e38, -3e38])
SHARED = sorted(
    name for name, op in REGISTRY.items() if isinstance(op.kernel, np.ufunc) and op.large_kernel is not op.kernel
)


@pytest.fixture(autouse=True)
def _four_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(host_rows, "QUICK_PART", PART)
    monkeypatch.setattr(parallel, "_PATIENCE_S", math.inf)  # work is shared however late the threads are
    monkeypatch.setattr(POOL, "resume", 0.0)
    with hf.config.threads(4):
        yield


def hard(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """Draw numbers with hard ones among them."""
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        x = rng.standard_normal(shape).astype(dtype)
        at = rng.random(shape) < 0.01
        with np.errstate(over="ignore"):
            x[at] = rng.choice(HARD, np.count_nonzero(at)).astype(dtype)
        return x
    return rng.integers(0, 2 if dtype.kind == "b" else 100, shape).astype(dtype)


def same_bits(a: Any, b: Any) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


# -- pointwise ----------------------------------------------------------------------------------------------------


def test_functions_of_numpy_are_shared():
    assert {"add", "multiply", "exp", "less", "logical_not"} < set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_no_bit_differs(name: str, rng: np.random.Generator):
    kernel: Any = REGISTRY[name].kernel
    tried = 0
    for dtype in ("float32", "float64", "int32", "bool"):
        arrays = [hard(rng, LARGE + 4099, dtype=dtype) for _ in range(kernel.nin)]
        try:
            kernel.resolve_dtypes((*[x.dtype for x in arrays], None))
        except TypeError:
            continue
        if name == "remainder" and dtype == "bool":
            continue
        tried += 1
        same_bits(run_quietly(parallel.apply_large, kernel, *arrays), run_quietly(kernel, *arrays))
    assert tried


SHAPES: list[tuple[tuple[int, ...], ...]] = [
    ((1000, 600), (600,)),
    ((1000, 600), (1000, 1)),
    ((1000, 600), ()),
    ((), (1000, 600)),
    ((1000, 1), (1, 600)),
    ((3, 200_000), (3, 1)),
    ((1, 600_000), (1, 1)),
    ((600_000,), (2, 1)),
]


@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_broadcasting(shapes: Any, rng: np.random.Generator):
    a, b = [hard(rng, *shape) for shape in shapes]
    for ufunc in (np.subtract, np.less, np.arctan2):
        same_bits(run_quietly(parallel.apply_large, ufunc, a, b), run_quietly(ufunc, a, b))


def test_layouts_are_numpys(rng: np.random.Generator):
    x, y = hard(rng, 900, 700), hard(rng, 700, 900)
    for a, b in ((x, y.T), (x.T, y), (x[::2], x[1::2]), (y.T, y.T), (x[:, ::-1], x)):
        found, expected = run_quietly(parallel.apply_large, np.add, a, b), run_quietly(np.add, a, b)
        same_bits(found, expected)
        assert found.strides == expected.strides


def test_operators_and_functions_share(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator):
    ran: list[int] = []
    run = Pool.run
    monkeypatch.setattr(Pool, "run", lambda *args, **named: (ran.append(args[2]), run(*args, **named))[1])
    a, b = hard(rng, LARGE), hard(rng, LARGE)
    x, y = hf.asarray(a), hf.asarray(b)
    with np.errstate(all="raise"):  # the user's own state is not the threads'
        for ours, theirs in (
            (lambda: x / y, lambda: a / b),
            (lambda: hf.divide(x, y), lambda: a / b),
            (lambda: hf.exp(x), lambda: np.exp(a)),
            (lambda: x * 2.0, lambda: a * np.float32(2)),
            (lambda: -x, lambda: -a),
        ):
            ours()  # the first call of a function with new dtypes takes the general way
            before = len(ran)
            found = ours().numpy()
            assert len(ran) == before + 1
            with np.errstate(all="ignore"):
                same_bits(found, theirs())
    before = len(ran)
    _ = hf.asarray(a[:-1]) + hf.asarray(b[:-1])
    assert len(ran) == before


def test_what_is_recorded_is_the_same(rng: np.random.Generator):
    a, b = rng.standard_normal((2, LARGE)).astype(np.float32)

    def gradients() -> list[Any]:
        x, y = hf.asarray(a), hf.asarray(b)
        with hf.GradientTape() as tape:
            tape.watch((x, y))
            z = hf.sum(hf.tanh(x * y) / hf.sqrt(x * x + 1.0))
        return [g.numpy() for g in tape.gradient(z, (x, y))]

    shared = gradients()
    with hf.config.threads(1):
        alone = gradients()
    for one, other in zip(shared, alone, strict=True):
        same_bits(one, other)


def test_wrong_shapes_are_named():
    with pytest.raises(ValueError, match="size 600000 against 599999"):
        _ = hf.zeros((600_000,)) + hf.zeros((599_999,))


# -- reductions ---------------------------------------------------------------------------------------------------

LONG = [
    ((1_100_000,), (0,)),
    ((600_011,), (0,)),
    ((1000, 1100), (1,)),
    ((600, 1031), (1,)),
    ((3, 200_003), (1,)),
    ((1000, 1100), (0,)),
    ((3, 400_000), (1,)),
    ((3, 400_000), (0,)),
    ((40_000, 30), (1,)),
    ((40_000, 30), (0,)),
    ((70, 130, 131), (0, 2)),
    ((70, 130, 131), (1,)),
    ((70, 130, 131), (1, 2)),
    ((1, 1, 1_100_000), (2,)),
    ((600_000, 2), (0, 1)),
    ((1100, 1000), ()),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), LONG)
def test_sums(shape: Any, axis: Any, dtype: Any, rng: np.random.Generator):
    x = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 6, shape)).astype(dtype)
    found = add_up(x, axis, True)
    with hf.config.threads(1):
        same_bits(found, add_up(x, axis, True))
    exact = np.add.reduce(x.astype(np.longdouble), axis=axis, keepdims=True)
    size = np.add.reduce(np.abs(x).astype(np.longdouble), axis=axis, keepdims=True)
    assert np.all(np.abs(found - exact) <= 4 * np.finfo(dtype).eps * size)
    same_bits(add_up(x, axis, False), found.reshape(np.add.reduce(x, axis=axis).shape))
    assert not np.shares_memory(found, x)


@pytest.mark.parametrize(("shape", "axis"), LONG)
def test_sums_of_what_is_not_finite(shape: Any, axis: Any, rng: np.random.Generator):
    x = rng.standard_normal(shape).astype(np.float32)
    for special in (np.inf, -np.inf, np.nan):
        x[rng.random(shape) < 4 / x.size] = special
    expected = run_quietly(np.add.reduce, x.astype(np.float64), axis=axis)
    found = run_quietly(add_up, x, axis, False)
    for test in (np.isnan, np.isposinf, np.isneginf):
        np.testing.assert_array_equal(test(found), test(expected))
    assert not np.signbit(add_up(np.full(shape, -0.0, np.float32), axis, False)).any() or not axis


@pytest.mark.parametrize("ufunc", [np.maximum, np.minimum])
@pytest.mark.parametrize(("shape", "axis"), [*LONG, ((100, 100), (1,)), ((50, 5000), (1,))])
def test_extremes(shape: Any, axis: Any, ufunc: Any, rng: np.random.Generator):
    for dtype in ("float32", "int32"):
        x = hard(rng, *shape, dtype=dtype)
        for keepdims in (False, True):
            found = np.asarray(extremum(ufunc, x, axis, keepdims))
            expected = np.asarray(ufunc.reduce(x, axis=axis, keepdims=keepdims))
            np.testing.assert_array_equal(found, expected, strict=True)
    for place in (0, x.size // 2, -1):
        single = np.zeros(shape, np.float32)
        single.reshape(-1)[place] = 1 if ufunc is np.maximum else -1
        np.testing.assert_array_equal(extremum(ufunc, single, axis, False), ufunc.reduce(single, axis=axis))
    zeros = rng.choice(np.array([0.0, -0.0], np.float32), shape)
    reduce = hf.max if ufunc is np.maximum else hf.min
    signs = np.signbit(reduce(hf.asarray(zeros), axis=axis).numpy())
    np.testing.assert_array_equal(signs, (np.all if ufunc is np.maximum else np.any)(np.signbit(zeros), axis=axis))


def test_reductions_of_other_layouts(rng: np.random.Generator):
    x = hard(rng, 1100, 1000)
    for view in (x.T, x[::2], x[:, ::2], x[:, ::-1], np.broadcast_to(x[0], x.shape)):
        for axis in ((0,), (1,), (0, 1)):
            np.testing.assert_array_equal(extremum(np.maximum, view, axis, False), np.maximum.reduce(view, axis=axis))
            finite = np.nan_to_num(view, posinf=0, neginf=0) % 7
            np.testing.assert_allclose(add_up(finite, axis, False), finite.astype(np.float64).sum(axis), rtol=2e-6)


# -- threads ------------------------------------------------------------------------------------------------------


def test_every_part_once():
    for threads in (1, 2, 3, 8, 50):
        for length, unit in ((1, 1), (7, 1), (LARGE + 1, 4096), (10 * LARGE, 1)):
            seen: list[tuple[int, int]] = []
            with hf.config.threads(threads):
                POOL.run(lambda start, stop, seen=seen: seen.append((start, stop)), length, 10 * LARGE, unit)
            seen.sort()
            assert seen[0][0] == 0
            assert seen[-1][1] == length
            assert all(a[1] == b[0] and b[0] % unit == 0 for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("where", ["the caller", "another thread"])
def test_errors_arrive_and_leave_nothing_behind(where: str):
    caller = threading.get_ident()
    for _ in range(3):
        woken = threading.Event()

        def task(start: int, stop: int, woken: threading.Event = woken) -> None:
            here = threading.get_ident() == caller
            if not here:
                woken.set()
            assert woken.wait(60)
            if here == (where == "the caller"):
                raise MemoryError(f"in {where}")

        pool = Pool()
        pool.threads = 2
        with pytest.raises(MemoryError, match=f"in {where}"):
            pool.run(task, 100, 4 * LARGE)
        seen: list[int] = []
        pool.run(lambda start, stop, seen=seen: seen.append(stop - start), 100, 4 * LARGE)
        assert sum(seen) == 100
    x = np.ones(4 * LARGE, np.float32)
    same_bits(parallel.apply_large(np.add, x, x), x + x)


def test_nobody_waits_for_a_thread_that_has_not_begun(monkeypatch: pytest.MonkeyPatch):
    x = np.ones(4 * LARGE, np.float32)
    freed = weakref.ref(x)
    asleep: list[Any] = []
    monkeypatch.setattr(parallel._Worker, "begin", lambda self, job: (asleep.append((self, job)), job)[1])
    assert np.array_equal(parallel.apply_large(np.add, x, x), np.full_like(x, 2))
    assert asleep
    del x
    assert freed() is None
    for worker, job in asleep:
        job.run()()  # the thread wakes up, and finds nothing to do
        worker.free.release()


def test_arrays_are_freed_at_once():
    x = np.ones(4 * LARGE, np.float32)
    freed = weakref.ref(x)
    parallel.apply_large(np.add, x, x)
    del x
    assert freed() is None


def test_users_threads_and_tasks(rng: np.random.Generator):
    arrays = [rng.standard_normal(LARGE + i).astype(np.float32) for i in range(6)]
    expected = [np.exp(x) * x for x in arrays]
    failed: list[int] = []

    def work(index: int) -> None:
        x = hf.asarray(arrays[index])
        if not all(np.array_equal((hf.exp(x) * x).numpy(), expected[index]) for _ in range(10)):
            failed.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    async def tasks() -> None:
        await asyncio.gather(*[asyncio.to_thread(work, i) for i in range(3)])
        work(3)

    asyncio.run(tasks())
    assert not failed
    assert len(POOL._workers) <= 7


FORK = """
import os, sys, warnings
import numpy as np
warnings.simplefilter("ignore")
from hybridflow.backend.parallel import LARGE, POOL, apply_large
import atexit
POOL.threads = 4
x = np.arange(2 * LARGE, dtype=np.float32)
assert np.array_equal(apply_large(np.add, x, x), 2 * x)
child = os.fork()
assert np.array_equal(apply_large(np.add, x, x), 2 * x)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
atexit.register(lambda: print(apply_large(np.add, x, x)[1]))

class Last:
    # Some packages (etils, which jax imports if it is there) let Python clear all modules before this runs.
    def __del__(self, x=x, apply_large=apply_large, add=np.add, print=print, numpy=np.__dict__):
        print(4.0 if numpy["empty"] is None else apply_large(add, x, x)[2], flush=True)

last = Last()
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="the system cannot fork")
def test_forks_and_the_end_of_the_process():
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["2.0", "4.0"], "")


def test_how_many(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = Pool().threads
    assert cores >= 1
    for text, expected in (("1", 1), ("1,4", 1), ("", cores), ("0", cores), ("many", cores), (str(cores + 1), cores)):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        assert Pool().threads == expected
    hf.config.threads(3)
    assert POOL.threads == 3
    with pytest.raises(TypeError, match="threads: count is an integer"):
        hf.config.threads(2.0)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="threads: count=0, which is less than 1"):
        hf.config.threads(0)

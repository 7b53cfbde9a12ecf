"""Compiled functions in threads and asyncio."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from modes import close

import hybridflow as hf
from hybridflow.core.errors import TraceError

THREADS = 8


def in_threads(work, count: int = THREADS) -> list:
    """Run `work(i)` in threads that start together; return the results."""
    barrier = threading.Barrier(count)

    def run(i):
        barrier.wait(timeout=30)
        return work(i)

    with ThreadPoolExecutor(count) as pool:
        return [future.result(timeout=60) for future in [pool.submit(run, i) for i in range(count)]]


def test_one_signature_is_traced_and_compiled_once():
    traced = []

    @hf.compile
    def f(x):
        traced.append(True)
        time.sleep(0.05)
        return x * 2

    results = in_threads(lambda i: f(hf.asarray([float(i)])).item())
    assert results == [2.0 * i for i in range(THREADS)]
    assert (len(traced), f.trace_count, f.compile_count) == (THREADS, 1, 1)


def test_one_executable_where_variables_are_read():
    v = hf.Variable(3.0)
    f = hf.compile(lambda x: x * v)
    assert in_threads(lambda i: f(hf.asarray(float(i))).item()) == [3.0 * i for i in range(THREADS)]
    assert (f.trace_count, f.compile_count) == (1, 1)


def test_several_signatures():
    f = hf.compile(lambda x: hf.sum(x), dynamic=False)
    results = in_threads(lambda i: [f(np.ones(1 + (i + k) % 4, np.float32)).item() for k in range(4)])
    assert results == [[1.0 + (i + k) % 4 for k in range(4)] for i in range(THREADS)]
    assert f.trace_count == 4


def test_updates_of_variables_are_not_lost():
    v, w = hf.Variable(np.zeros(5000, np.float32)), hf.Variable(0)

    @hf.compile
    def step(x):
        v.assign_add(x)
        w.assign_add(1)
        return w

    counts = in_threads(lambda i: [step(hf.asarray(1.0)).item() for _ in range(25)])
    assert (v.numpy() == 25.0 * THREADS).all()
    assert sorted(n for row in counts for n in row) == list(range(1, 25 * THREADS + 1))


def test_updates_under_tapes_are_not_lost():
    v = hf.Variable(0.0)

    @hf.compile
    def step(x):
        v.assign_add(1.0)
        return x * x * v

    def work(i):
        for _ in range(10):
            x = hf.asarray(3.0)
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = step(x)
            assert tape.gradient(y, x).item() % 6.0 == 0
        return True

    assert all(in_threads(work))
    assert v.item() == 10.0 * THREADS


def test_readers_see_whole_updates():
    v, w = hf.Variable(np.zeros(20000, np.float32)), hf.Variable(np.zeros(20000, np.float32))

    @hf.compile
    def step():
        v.assign_add(1.0)
        w.assign(v * 2)

    @hf.compile
    def read():
        return v.read()

    def work(i):
        for _ in range(30):
            if i % 2:
                step()
            else:
                for array in (v.numpy(), w.numpy(), read().numpy()):
                    assert (array == array[0]).all()

    in_threads(work)
    assert (v.numpy() == 30.0 * THREADS / 2).all()
    assert (w.numpy() == 30.0 * THREADS).all()


def test_threads_that_swap_variables_do_not_deadlock():
    a, b = hf.Variable(1.0), hf.Variable(2.0)

    @hf.compile
    def swap(v, w):
        x, y = v.read(), w.read()
        v.assign(y)
        w.assign(x)

    in_threads(lambda i: [swap(a, b) if i % 2 else swap(b, a) for _ in range(20)])
    assert sorted([a.item(), b.item()]) == [1.0, 2.0]


def test_functions_that_call_each_other_do_not_deadlock():
    @hf.compile
    def f(x, n):
        return x if n == 0 else g(x + 1, n - 1)

    @hf.compile
    def g(x, n):
        return x if n == 0 else f(x * 2, n - 1)

    results = in_threads(lambda i: (f if i % 2 else g)(hf.asarray(1.0), 4).item())
    assert results == [10.0 if i % 2 else 7.0 for i in range(THREADS)]


def test_methods_are_traced_once_per_instance():
    class Model:
        def __init__(self):
            self.v = hf.Variable(2.0)

        @hf.compile
        def step(self, x):
            time.sleep(0.02)
            return self.v * x

    for _ in range(3):
        model = Model()
        assert in_threads(lambda i, m=model: m.step(hf.asarray(float(i))).item()) == [2.0 * i for i in range(THREADS)]
        assert model.step.trace_count == 1


def test_a_failing_thread_does_not_hold_others_up():
    @hf.compile
    def f(x, fail):
        if fail:
            raise ValueError("in one thread")
        return x + 1

    def work(i):
        if i == 0:
            with pytest.raises(ValueError, match="in one thread"):
                f(hf.asarray(1.0), True)
            return 2.0
        return f(hf.asarray(1.0), False).item()

    assert in_threads(work) == [2.0] * THREADS
    assert f.trace_count == 1


def test_random_draws_in_threads_are_all_different():
    f = hf.compile(lambda: hf.random.uniform((4,)))
    found = {tuple(row) for rows in in_threads(lambda i: [f().tolist() for _ in range(10)]) for row in rows}
    assert len(found) == 10 * THREADS


def test_a_thread_of_a_traced_function_takes_no_part_in_the_trace():
    @hf.compile
    def f(x):
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: x * 2.0).result()

    with pytest.raises(hf.core.errors.LeakError, match=r"'f': it is an input(.|\n)*in another thread"):
        f(hf.ones(3))


def test_clearing_the_cache_while_others_call():
    f = hf.compile(lambda x: x + 1, max_traces=2)

    def work(i):
        for n in range(20):
            if i == 0 and n % 5 == 0:
                f.clear_cache()
            assert f(np.zeros(1 + (n + i) % 3, np.float32)).numpy()[0] == 1.0

    in_threads(work, 4)


def test_recorded_calls_in_threads_share_one_gradient():
    w = hf.Variable([1.0, 2.0])
    f = hf.compile(lambda x: hf.sum(x * w * w))

    def work(i):
        with hf.GradientTape() as tape:
            y = f(hf.asarray(float(i)))
        return tape.gradient(y, w).tolist()

    assert in_threads(work) == [[2.0 * i, 4.0 * i] for i in range(THREADS)]
    trace, _ = f._trace_for((hf.asarray(1.0),), {})
    assert len(trace.gradient_ops) == 1


def test_asyncio_tasks():
    v = hf.Variable(0.0)
    step = hf.compile(lambda x: v.assign_add(x))
    square = hf.compile(lambda x: x * x)

    async def task(i):
        x = hf.asarray(float(i))
        with hf.GradientTape() as tape:
            tape.watch(x)
            await asyncio.sleep(0.001 * (i % 3))
            y = square(x) * x
            await asyncio.sleep(0.001)
            step(1.0)
        return tape.gradient(y, x).item()

    async def main():
        return await asyncio.gather(*[task(i) for i in range(10)])

    close(asyncio.run(main()), [3.0 * i * i for i in range(10)])
    assert v.item() == 10.0
    assert square.trace_count == 1


def test_compiled_functions_in_a_thread_pool_of_asyncio():
    f = hf.compile(lambda x: hf.tanh(x))

    async def main():
        return await asyncio.gather(*[asyncio.to_thread(f, hf.asarray(float(i))) for i in range(8)])

    close([t.item() for t in asyncio.run(main())], np.tanh(np.arange(8, dtype=np.float32)).tolist())
    assert f.trace_count == 1


def in_a_thread(call, x):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call, x).result(timeout=60)


def in_init_scope(call, x):
    with hf.init_scope():
        return call(x)


def in_another_context(call, x):
    return contextvars.Context().run(call, x)


@pytest.mark.parametrize("nested", [True, False], ids=["compiled", "plain"])
@pytest.mark.parametrize("place", [in_a_thread, in_init_scope, in_another_context])
@pytest.mark.parametrize(
    "body",
    [lambda x, n: x * n, lambda x, n: x + len(range(n)), lambda x, n: x * (2.0 if n > 3 else 3.0), lambda x, n: x[:n]],
    ids=["tensor", "needed", "branch", "size"],
)
def test_code_outside_of_a_trace_changes_the_numbers_that_the_trace_changes(body, place, nested):
    def make(compiled):
        n, state, row = 1, SimpleNamespace(n=1), hf.ones(3)

        def inner(x):
            nonlocal n
            n += 1
            state.n = state.n + 2
            return hf.sum(body(x, n)) + hf.sum(body(x, state.n))

        called = hf.compile(inner) if nested and compiled else inner

        def f(x):
            nonlocal n
            n, state.n = n * 2, state.n * 3
            y = place(called, row)
            return x + y * n + state.n

        return (hf.compile(f) if compiled else f), lambda: (n, state.n)

    (eager, of_eager), (compiled, of_compiled) = make(False), make(True)
    for _ in range(4):
        assert compiled(hf.asarray(1.0)).item() == eager(hf.asarray(1.0)).item()
        assert of_compiled() == of_eager()


@pytest.mark.asserts
@pytest.mark.parametrize("handled", [True, False])
def test_a_check_that_fails_while_another_thread_changes_the_same_state(handled):
    state, inside, go = {"n": 0}, threading.Event(), threading.Event()

    def host(a):
        if a < 0:
            inside.set()
            assert go.wait(30)
        return a

    def step(x):
        state["n"] += 1
        y = hf.pure_callback(host, hf.TensorSpec((), hf.float32), x)
        if handled:
            try:
                assert y > 0
            except AssertionError:
                state["n"] += 100
        else:
            assert y > 0
        state["n"] += 10
        return y

    f = hf.compile(step)
    f(hf.asarray(1.0))
    error, text = (TraceError, "was changed again meanwhile") if handled else (AssertionError, None)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(f, hf.asarray(-1.0))
        assert inside.wait(30)
        assert f(hf.asarray(3.0)).item() == 3.0
        go.set()
        with pytest.raises(error, match=text):
            call.result(timeout=30)
    assert state["n"] == 33  # nothing twice

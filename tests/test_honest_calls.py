"""Random sequences of calls, writes, changes and failures: a compiled function does what the plain one does."""

import asyncio
import dataclasses
import gc
import threading
import weakref

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given, settings

import hybridflow as hf
from hybridflow.passes import PassRecord

SCALE = 1.0


@dataclasses.dataclass(frozen=True)
class Options:
    power: int = 1
    negate: bool = False


class Part:
    def __init__(self, k):
        self.k = k
        self.calls = 0


class Machine:
    """State of every kind that a compiled function may read or write."""

    def __init__(self):
        self.w = hf.Variable([1.0, 2.0, 3.0])
        self.steps = hf.Variable(0)
        self.training = True
        self.parts = [Part(1.0), Part(0.5)]
        self.table = {"a": 1, "b": [2, 3]}
        self.options = Options()
        self.random = hf.random.Generator(3)
        self.offset = hf.asarray(0.25)
        self.mode = "sum"

    @hf.compile
    def step(self, x, index, rate):
        self.steps.assign_add(1)
        noise = self.random.uniform(()) if self.training else 0.0
        y = hf.sum(x) * rate * SCALE + noise + self.offset
        for part in self.parts:
            y = y * part.k + self.table["b"][0]
        if self.options.negate:
            y = -y
        self.w.assign(self.w * 0.5 + y)
        hf.debugging.check(hf.all(hf.abs(self.w) < 1e6), "w is too large")
        return {"y": y**self.options.power, "w": self.w[index] if self.mode == "sum" else self.w.read()}


def set_scale(value):
    globals()["SCALE"] = value


ACTIONS = st.one_of(
    st.tuples(st.just("call"), st.integers(1, 3), st.integers(-3, 2), st.sampled_from([0.5, -0.0, 2.0, 0.125])),
    st.tuples(st.just("bad index"), st.integers(3, 9)),
    st.tuples(st.just("too large"), st.just(None)),
    st.tuples(st.just("bad shape"), st.just(None)),
    st.tuples(st.just("assign"), st.floats(-2, 2, width=32)),
    st.tuples(st.just("scale"), st.sampled_from([1.0, 2.0, 2])),
    st.tuples(st.just("training"), st.booleans()),
    st.tuples(st.just("part"), st.sampled_from([0.5, 1.0, -1.0])),
    st.tuples(st.just("table"), st.integers(1, 3)),
    st.tuples(st.just("append"), st.just(None)),
    st.tuples(st.just("options"), st.builds(Options, st.integers(1, 2), st.booleans())),
    st.tuples(st.just("offset"), st.floats(-1, 1, width=32)),
    st.tuples(st.just("mode"), st.sampled_from(["sum", "all"])),
    st.tuples(st.just("new variable"), st.just(None)),
)


def apply(machine, action):
    """Do an action; return what it gave, or the type of what it raised."""
    kind, *values = action
    value = values[0]
    if kind == "assign":
        machine.w.assign([value, 1.0, -value])
    elif kind == "scale":
        set_scale(value)
    elif kind == "part":
        machine.parts[0].k = value
    elif kind == "table":
        machine.table["b"][0] = value
    elif kind == "append" and len(machine.parts) < 4:
        machine.parts.append(Part(0.5))
    elif kind in ("training", "options", "mode"):
        setattr(machine, kind, value)
    elif kind == "offset":
        machine.offset = hf.asarray(np.float32(value))
    elif kind == "new variable":
        machine.w = hf.Variable([0.0, 1.0, 2.0])
    size, index, rate = 2, 0, 0.5
    if kind == "call":
        size, index, rate = values
    x = np.full((size,), 1e30 if kind == "too large" else 0.5, np.float32)
    if kind == "bad index":
        index = value
    if kind == "bad shape":
        x = np.ones((2, 2), np.float32)
        machine.mode = "sum"
        index = hf.asarray([[0, 7]])
    try:
        result = machine.step(x, hf.asarray(index), rate)
        return {name: one.numpy() for name, one in result.items()}
    except (IndexError, AssertionError, ValueError) as error:
        return type(error)


@settings(max_examples=12, deadline=None)
@given(st.lists(ACTIONS, min_size=2, max_size=6))
def test_sequences_of_calls_and_changes(actions):
    machines = Machine(), Machine()
    for action in actions:
        set_scale(1.0) if action is actions[0] else None
        results = []
        before = SCALE
        for machine, eager in zip(machines, (True, False), strict=True):
            set_scale(before)
            with hf.config.run_eagerly(eager):
                results.append(apply(machine, action))
        plain, compiled = results
        if isinstance(plain, dict):
            assert isinstance(compiled, dict), compiled
            for name in plain:
                np.testing.assert_allclose(compiled[name], plain[name], rtol=2e-5, atol=1e-5)
        else:
            assert compiled is plain
        assert machines[0].steps.item() == machines[1].steps.item() or not isinstance(plain, dict)
        if isinstance(plain, dict):
            np.testing.assert_allclose(machines[1].w.numpy(), machines[0].w.numpy(), rtol=2e-5, atol=1e-5)
        else:  # eagerly what came before the failure has happened: the compiled call is all or nothing
            machines[0].w.assign(machines[1].w)
            machines[0].steps.assign(machines[1].steps)
            machines[0].random = hf.random.Generator(7)
            machines[1].random = hf.random.Generator(7)


def test_a_failed_call_changes_nothing():
    machine = Machine()
    machine.step(np.ones(2, np.float32), hf.asarray(0), 1.0)
    before = machine.w.numpy(), machine.steps.item()
    with pytest.raises(IndexError):
        machine.step(np.ones(2, np.float32), hf.asarray(5), 1.0)["w"].numpy()
    np.testing.assert_array_equal(machine.w.numpy(), before[0])
    assert machine.steps.item() == before[1]


# -- eight threads, many tasks ------------------------------------------------------------------------------------


def test_eight_threads_with_guards_checks_and_floats():
    total = hf.Variable(0.0)
    state = Part(1.0)

    @hf.compile
    def add(x, index, rate):
        total.assign_add(x[index] * state.k * rate)
        return total.read() * 0 + x[index]

    x = hf.asarray([1.0, 2.0, 4.0])
    failures, wrong = [], []

    def run(number):
        for i in range(25):
            index = (number + i) % 4
            try:
                if add(x, hf.asarray(index), 1.0).item() != 2.0**index:
                    wrong.append(index)
            except IndexError:
                failures.append(index)

    threads = [threading.Thread(target=run, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert failures == [3] * 50
    assert total.item() == 50 * (1 + 2 + 4)
    assert add.trace_count == 1


def test_tasks_with_tapes_of_their_own():
    f = hf.compile(lambda x, k: x * x * k)

    async def task(number):
        x = hf.asarray(float(number))
        with hf.GradientTape() as tape:
            tape.watch(x)
            await asyncio.sleep(0)
            y = f(x, float(number))
            await asyncio.sleep(0)
        return tape.gradient(y, x).item()

    async def main():
        return await asyncio.gather(*[task(n) for n in range(8)])

    assert asyncio.run(main()) == [2.0 * n * n for n in range(8)]
    assert f.trace_count == 1


# -- nothing is kept ----------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")  # tracing anew is what is wanted here
def test_fresh_functions_objects_and_shapes_leave_nothing_behind():
    """A tenth of the calls of a long run: what is kept per call would show as well."""
    kept = []

    class Config:
        def __init__(self, rate):
            self.rate = rate

        @hf.compile
        def run(self, x):
            return x * self.rate

    f = hf.compile(lambda x, c: x * c.rate, max_traces=4)
    x = hf.asarray([1.0, 2.0])

    def objects():  # the records of traces that explain() shows have one object per pass each
        return sum([type(one) is not PassRecord for one in gc.get_objects()])

    def calls(count):
        for i in range(count):
            config = Config(float(i))
            fresh = hf.compile(lambda x, config=config: x + config.rate)
            if i % 10 == 0:
                config.run(x)
                fresh.graph(x)
                kept.extend([weakref.ref(config), weakref.ref(fresh), weakref.ref(fresh.python_function)])
            f.graph(x, config)
            f.graph(hf.zeros((i % 7 + 1,)), config)

    calls(10)
    jax.clear_caches()
    gc.collect()
    before = objects()
    calls(60)
    del calls
    jax.clear_caches()
    gc.collect()
    assert f.cache_info().traces <= 4
    f.clear_cache()
    gc.collect()
    assert [one() for one in kept if one() is not None] == []
    assert objects() - before < 1000

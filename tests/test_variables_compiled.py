"""Variables in compiled functions: inputs and outputs, program order, aliasing, donated buffers, failed calls."""

from __future__ import annotations

import functools
import gc
import itertools
import random
import time
import weakref

import jax
import numpy as np
import pytest
from modes import same

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, IndexRangeError, LeakError, ShapeError, TraceError

BIG = 1 << 16
"""Elements enough for XLA to reuse buffers and for NumPy to align them."""


def numbers(n: int, start: float = 0.0) -> np.ndarray:
    return np.arange(start, start + n, dtype=np.float32)


# -- inputs and outputs -------------------------------------------------------------------------------------------


def test_an_outside_assign_is_seen_without_a_trace():
    v = hf.Variable(1.0)
    f = hf.compile(lambda x: v * x)
    assert f(2.0).item() == 2.0
    v.assign(5.0)
    assert f(2.0).item() == 10.0
    assert f.trace_count == 1


def test_reads_and_writes_keep_program_order():
    v = hf.Variable(1.0)

    def f(x):
        first = v.read()
        v.assign(first + x)
        second = v * 1
        v.assign_add(10.0)
        v.assign_sub(second)
        return first, second, v.read()

    results = []
    for fn in (f, hf.compile(f)):
        v.assign(1.0)
        results.append((fn(hf.asarray(2.0)), v.read()))
    same(*results)
    first, second, third = results[1][0]
    assert (first.item(), second.item(), third.item(), v.item()) == (1.0, 3.0, 10.0, 10.0)


def test_reads_and_writes_keep_their_order_across_compiled_functions():
    v = hf.Variable(1.0)
    double = hf.compile(lambda: v.assign(v * 2).read())

    def f(x):
        a = double()
        v.assign_add(x)
        return a, double(), v.read()

    results = []
    for fn in (f, hf.compile(f)):
        v.assign(1.0)
        results.append((fn(hf.asarray(3.0)), v.read()))
    same(*results)
    assert v.item() == 10.0


def test_only_what_is_assigned_is_written():
    read, written = hf.Variable(1.0), hf.Variable(2.0)
    f = hf.compile(lambda: written.assign(read * 3).read())
    before = read._value
    f()
    assert read._value is before
    assert written.item() == 3.0
    assert f.explain()[0].variables == ("read", "written")
    assert f.explain()[0].assigned == ("written",)


def test_a_function_that_only_assigns():
    v = hf.Variable([1.0, 2.0])

    @hf.compile
    def reset():
        v.assign([0.0, 0.0])

    assert reset() is None
    assert v.numpy().tolist() == [0.0, 0.0]


def test_an_assigned_value_is_returned_too():
    v = hf.Variable(np.zeros(BIG, np.float32))

    @hf.compile
    def f(x):
        new = v + x
        v.assign(new)
        return new, v, new

    first = f(1.0)
    assert [type(t) for t in first] == [hf.Tensor] * 3
    second = f(1.0)
    f(1.0)
    for found, expected in ((first, 1.0), (second, 2.0)):
        assert all((t.numpy() == expected).all() for t in found)
    assert (v.numpy() == 3.0).all()


def test_dtypes_of_variables():
    for dtype in (hf.float64, hf.int64, hf.bfloat16, hf.uint8, hf.complex64):
        v = hf.Variable([1, 2], dtype=dtype)
        f = hf.compile(lambda v=v: v.assign_add(hf.ones((2,), dtype=v.dtype)))
        f()
        f()
        assert v.dtype == dtype
        assert v.numpy().astype(np.float64 if dtype != hf.complex64 else np.complex64).tolist() == [3, 4]


def test_wrong_assignments_are_errors_with_both_specs():
    v = hf.Variable([1.0, 2.0], name="v")
    with pytest.raises(ShapeError, match=r"(?s)shape \(3,\), the Variable \(2,\).*v: f32\[2\] = f32\[3\]"):
        hf.compile(lambda x: v.assign(x))(np.zeros(3, np.float32))
    assert v.numpy().tolist() == [1.0, 2.0]


def test_a_variable_made_at_every_call_is_an_error_that_names_it_and_the_line():
    @hf.compile
    def f(x):
        return hf.Variable(1.0, name="w") * x

    for _ in range(2):
        text = r"(?s)'f' creates Variables again at every call: Variable 'w' at .*\.py:\d+.*if self.w is None"
        with pytest.raises(TraceError, match=text):
            f(1.0)
    assert f.trace_count == 0


ITEMS = itertools.count(1)
UNWATCHED = {
    "a cache": functools.lru_cache(lambda: 2.0), "random": random.random, "NumPy": np.random.rand, "time": time.time,
    "an iterator": lambda: next(ITEMS),
}


@pytest.mark.filterwarnings("ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("read", UNWATCHED)
@pytest.mark.parametrize("first", [False, True])
def test_a_variable_made_once_in_a_function_that_is_traced_at_each_call(read, first):
    class Layer:
        w = None

        def __call__(self, x):
            scale = UNWATCHED[read]() if first else 1.0
            if self.w is None:
                self.w = hf.Variable(2.0)
            self.w.assign_add(x)
            return self.w * 1, scale if first else UNWATCHED[read]()

    layer = Layer()
    f = hf.compile(layer)
    assert [f(1.0)[0].item() for _ in range(3)] == [3.0, 4.0, 5.0]
    assert layer.w.item() == 5.0


# -- arguments and aliasing ---------------------------------------------------------------------------------------


def test_variables_among_the_arguments_are_those_of_the_call():
    @hf.compile
    def step(v, x):
        v.assign_add(x)
        return v * 10

    a, b = hf.Variable(1.0), hf.Variable(2.0)
    assert step(a, 1.0).item() == 20.0
    assert step(b, 1.0).item() == 30.0
    assert step(a, 1.0).item() == 30.0
    assert (a.item(), b.item(), step.trace_count) == (3.0, 3.0, 1)


def test_the_same_variable_twice():
    def f(v, w):
        v.assign_add(1.0)
        w.assign(w * 2)
        return v - w

    results = []
    for fn in (f, hf.compile(f)):
        a, b = hf.Variable(1.0), hf.Variable(5.0)
        results.append((fn(a, b), a.read(), b.read(), fn(a, a), a.read(), fn(b, a), a.read(), b.read()))
    same(*results)


def test_an_argument_that_the_function_reaches_by_itself_too():
    w = hf.Variable(1.0, name="w")

    def f(v):
        v.assign_add(10.0)
        w.assign(w * 2)
        return v, w.read()

    for order in ("own first", "other first"):
        results = []
        for fn in (f, hf.compile(f)):
            other = hf.Variable(3.0)
            w.assign(1.0)
            calls = (w, other, w, other) if order == "own first" else (other, w, other, w)
            found = []
            for v in calls:
                result = fn(v)
                found.append(([hf.asarray(r).numpy() for r in result], w.numpy(), other.numpy()))
            results.append(found)
        same(*results)
    compiled = hf.compile(f)
    compiled(hf.Variable(1.0))
    compiled(w)
    compiled(hf.Variable(2.0))
    compiled(w)
    assert compiled.trace_count == 2
    assert "Variable 'w', which the function reaches by itself too" in compiled.explain()[1].reason
    assert compiled.explain()[1].changes[0].argument == "v"


def test_a_tape_inside_takes_arguments_and_captured_variables_as_one():
    w = hf.Variable([1.0, 2.0])

    @hf.compile
    def step(variables, x):
        with hf.GradientTape() as tape:
            loss = hf.sum(w * w * x)
        gradients = tape.gradient(loss, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.assign_sub(0.25 * gradient)
        return len(tape.watched_variables())

    assert step([w], 1.0) == 1
    assert w.numpy().tolist() == [0.5, 1.0]


def test_arguments_among_structures():
    @hf.compile
    def swap(pair):
        a, b = pair["a"].read(), pair["b"].read()
        pair["a"].assign(b)
        pair["b"].assign(a)

    one, two = hf.Variable(1.0), hf.Variable(2.0)
    swap({"a": one, "b": two})
    assert (one.item(), two.item()) == (2.0, 1.0)
    swap({"b": one, "a": two})
    assert (one.item(), two.item()) == (1.0, 2.0)
    assert swap.trace_count == 1


def test_an_argument_that_leaves_its_trace(monkeypatch):
    monkeypatch.setattr(hf.config, "kept", None, raising=False)  # nobody looks into hybridflow's own modules

    @hf.compile(autograph=False)
    def f(v):
        hf.config.kept = v
        assert (v.shape, v.dtype, v.name, v.trainable, v.device) == ((), hf.float32, "v", True, "cpu")
        assert repr(v) == "Variable(traced f32[], name='v')"
        return v * 2

    f(hf.Variable(1.0, name="v"))
    for use in (lambda v: v + 1, lambda v: v.numpy(), lambda v: v.assign(2.0), lambda v: v.read()):
        with pytest.raises(LeakError, match=r"(?s)Variable 'v': what stood for this argument.*was passed"):
            use(hf.config.kept)


# -- buffers ------------------------------------------------------------------------------------------------------


def test_variables_that_share_a_buffer():
    v, w = hf.Variable(numbers(BIG)), hf.Variable(numbers(BIG, 5))

    @hf.compile
    def f():
        v.assign(v + 1)
        w.assign(w * 2)

    f()
    v.assign(w.read())
    expected = w.numpy().copy()
    f()
    np.testing.assert_array_equal(v.numpy(), expected + 1)
    np.testing.assert_array_equal(w.numpy(), expected * 2)


def test_variables_that_a_compiled_function_makes_share_a_buffer():
    v, w = hf.Variable(numbers(BIG)), hf.Variable(numbers(BIG))
    copy = hf.compile(lambda: (v.assign(w), None)[1])
    both = hf.compile(lambda: (v.assign_add(1.0), w.assign_add(2.0), None)[2])
    only_v = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    both()
    for _ in range(3):
        copy()
        expected = w.numpy().copy()
        only_v()
        np.testing.assert_array_equal(w.numpy(), expected)
        np.testing.assert_array_equal(v.numpy(), expected + 1)
        both()
        np.testing.assert_array_equal(v.numpy(), expected + 2)
        np.testing.assert_array_equal(w.numpy(), expected + 2)


def test_a_swap():
    v, w = hf.Variable(numbers(BIG)), hf.Variable(numbers(BIG, 5))

    @hf.compile
    def swap():
        a = v.read()
        v.assign(w)
        w.assign(a)

    a, b = v.numpy(), w.numpy()
    for _ in range(4):
        swap()
        a, b = b, a
        np.testing.assert_array_equal(v.numpy(), a)
        np.testing.assert_array_equal(w.numpy(), b)


@pytest.mark.parametrize("warm", [0, 1, 2])
def test_earlier_reads_and_views_stay_valid(warm):
    v = hf.Variable(numbers(BIG))
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    for _ in range(warm):
        step()
    read, view, untouched = v.read(), v.numpy(), v.read()
    array = np.asarray(v)
    dlpack = jax.dlpack.from_dlpack(v.read())
    expected = numbers(BIG, warm)
    for _ in range(3):
        step()
    for kept in (read, view, untouched, array, dlpack):
        np.testing.assert_array_equal(np.asarray(kept), expected)
    np.testing.assert_array_equal(v.numpy(), expected + 3)


def test_a_tensor_that_was_assigned_stays_valid():
    v = hf.Variable(numbers(BIG))
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    given = hf.asarray(numbers(BIG))
    computed = hf.compile(lambda x: x * 2)(given)
    seen = hf.compile(lambda x: x * 3)(given)
    seen.numpy()  # now it has a form for NumPy too
    for factor, value in enumerate((given, computed, seen), start=1):
        v.assign(value)
        step()
        step()
        np.testing.assert_array_equal(value.numpy(), numbers(BIG) * factor)
        np.testing.assert_array_equal(v.numpy(), numbers(BIG) * factor + 2)


def test_the_array_a_variable_was_made_of_stays_valid():
    memory = np.zeros(BIG + 16, np.float32)
    offset = (-memory.ctypes.data % 64) // 4
    aligned = memory[offset : offset + BIG]  # XLA could use this memory without copying it
    v = hf.Variable(aligned)
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    step()
    step()
    assert (aligned == 0).all()
    assert (v.numpy() == 2).all()
    aligned[:] = 7
    assert (v.numpy() == 2).all()


def test_a_tape_that_saved_a_value_keeps_it():
    v = hf.Variable(numbers(BIG))
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    step()
    with hf.GradientTape() as tape:
        y = hf.sum(v * v)
        step()
        step()
    np.testing.assert_array_equal(tape.gradient(y, v).numpy(), 2 * numbers(BIG, 1))


def test_an_argument_that_is_the_value_of_an_assigned_variable():
    v = hf.Variable(numbers(BIG))

    @hf.compile
    def f(x):
        v.assign(v + x)
        return x

    for power in range(3):
        value = v.read()
        expected = numbers(BIG) * 2**power
        result = f(value)
        np.testing.assert_array_equal(result.numpy(), expected)
        np.testing.assert_array_equal(value.numpy(), expected)
        np.testing.assert_array_equal(v.numpy(), expected * 2)


def test_a_captured_tensor_that_is_the_value_of_an_assigned_variable():
    v = hf.Variable(numbers(BIG))
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    step()
    captured = v.read()
    f = hf.compile(lambda: (v.assign(v + captured), None)[1])
    f()
    f()
    np.testing.assert_array_equal(v.numpy(), numbers(BIG, 1) * 3)
    np.testing.assert_array_equal(captured.numpy(), numbers(BIG, 1))


def test_buffers_are_donated_where_nobody_else_holds_them():
    v = hf.Variable(numbers(BIG))
    step = hf.compile(lambda: (v.assign_add(1.0), None)[1])
    step()
    before = v._value
    pointer = before.unsafe_buffer_pointer()
    del before
    step()
    assert v._value.unsafe_buffer_pointer() == pointer
    held = v._value
    step()
    assert v._value.unsafe_buffer_pointer() != pointer
    assert not held.is_deleted()


def test_a_variable_is_freed_with_its_functions():
    def make():
        v = hf.Variable(numbers(BIG))
        return hf.compile(lambda x: (v.assign_add(x), None)[1]), weakref.ref(v)

    f, reference = make()
    f(1.0)
    gc.collect()
    assert reference() is not None
    del f
    gc.collect()
    assert reference() is None


# -- failed calls -------------------------------------------------------------------------------------------------


def test_an_exception_while_tracing_leaves_variables_as_they_were():
    v = hf.Variable(1.0)
    fail = [True]

    @hf.compile
    def f(x):
        v.assign(x)
        if fail[0]:
            raise ArgumentError("not now")
        return v * 2

    with pytest.raises(ArgumentError, match="not now"):
        f(5.0)
    assert v.item() == 1.0
    assert f.trace_count == 0
    fail[0] = False
    assert f(5.0).item() == 10.0
    assert v.item() == 5.0
    assert f.trace_count == 1


def test_a_failed_check_writes_nothing_and_does_not_stick():
    v, w = hf.Variable(np.zeros(3, np.float32)), hf.Variable(1.0)
    table = hf.asarray([10.0, 20.0, 30.0])

    def f(i):
        w.assign_add(1.0)
        v.assign(v + hf.take(table, i))
        w.assign_add(1.0)
        return w * 2

    compiled = hf.compile(f)
    good, bad = hf.asarray([0, 1, 2]), hf.asarray([0, 1, 3])
    assert compiled(good).item() == 6.0
    for _ in range(2):
        with pytest.raises(IndexRangeError, match=r"test_variables_compiled\.py:\d+"):
            compiled(bad)
        assert v.numpy().tolist() == [10.0, 20.0, 30.0]
        assert w.item() == 3.0
    assert compiled(good).item() == 10.0
    assert compiled.trace_count == 1


def test_a_failed_check_of_a_recorded_call_writes_nothing():
    v = hf.Variable(np.ones(3, np.float32))

    @hf.compile
    def f(i):
        v.assign(v * 2)
        return hf.sum(hf.take(v, i))

    with hf.GradientTape() as tape:
        with pytest.raises(IndexRangeError):
            f(hf.asarray([5]))
        assert v.numpy().tolist() == [1.0] * 3
        y = f(hf.asarray([0, 0]))
    assert tape.gradient(y, v).numpy().tolist() == [2.0, 0.0, 0.0]
    assert v.numpy().tolist() == [2.0] * 3


def test_a_failed_check_keeps_the_state_of_random_generators():
    generator = hf.random.Generator(3)

    @hf.compile
    def f(i):
        draw = generator.normal((2,))
        return hf.take(draw, i)

    f(hf.asarray([0]))
    before = generator.state.numpy().copy()
    with pytest.raises(IndexRangeError):
        f(hf.asarray([2]))
    np.testing.assert_array_equal(generator.state.numpy(), before)


def test_a_failure_at_run_time_leaves_variables_as_they_were():
    v = hf.Variable(numbers(BIG))
    f = hf.compile(lambda x: (v.assign_add(x), None)[1])
    f(1.0)
    trace, _ = f._trace_for((1.0,), {})
    run, before = trace.only.into, v._value

    def failing(*arrays):
        raise MemoryError("no memory left")

    trace.only.into = failing
    with pytest.raises(MemoryError):
        f(1.0)
    assert v._value is before
    trace.only.into = run
    f(1.0)
    np.testing.assert_array_equal(v.numpy(), numbers(BIG, 2))


@pytest.mark.parametrize("deep", [False, True])
def test_results_that_jax_refuses_leave_variables_as_they_were(deep: bool):
    v = hf.Variable(numbers(BIG))

    @hf.compile
    def f(x):
        for _ in range(12 if deep else 1):  # the deep one has fusion breaks, and is called in another way
            y = hf.sin(v * x) + v * 0.5
            v.assign(y - hf.exp(-y * y) * y)

    f(hf.asarray(1.0))
    f(hf.asarray(0.5))
    before = v.numpy().copy()
    with jax.debug_nans(True), pytest.raises(Exception, match="nan"):
        f(hf.asarray(np.float32(np.nan)))
    np.testing.assert_array_equal(v.numpy(), before)
    f(hf.asarray(0.5))
    assert np.isfinite(v.numpy()).all()


# -- captured tensors ---------------------------------------------------------------------------------------------


def test_a_captured_tensor_is_an_input():
    captured = hf.asarray(numbers(4))
    f = hf.compile(lambda x: captured * x + captured)
    assert f(2.0).tolist() == [0.0, 3.0, 6.0, 9.0]
    assert f.explain()[0].captured == 1
    assert len(f.graph(2.0).inputs) == 2  # the captured tensor and the number
    np.testing.assert_array_equal(captured.numpy(), numbers(4))


def test_the_gradient_of_a_captured_tensor():
    x = hf.asarray(numbers(3, 1))

    def f(y):
        return hf.sum(x * x * y)

    for fn in (f, hf.compile(f)):
        with hf.GradientTape() as tape:
            tape.watch(x)
            result = fn(3.0)
        assert tape.gradient(result, x).tolist() == [6.0, 12.0, 18.0]


def test_a_captured_tensor_that_was_computed_under_the_tape():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
        z = hf.compile(lambda w: w * y)(hf.asarray(2.0))
    assert tape.gradient(z, x).item() == 12.0


def test_large_values_that_are_only_read_go_to_xla_once():
    given = np.full((200, 200), 2.0, np.float32)
    weight, count = hf.Variable(given), hf.Variable(np.zeros((200, 200), np.float32))
    before = weight.read()

    @hf.compile
    def reading(x):
        return x * weight

    @hf.compile
    def counting():
        count.assign(count + weight)

    @hf.compile
    def assigning():
        weight.assign(weight * 3)

    x = hf.asarray(1.0)
    reading(x)
    moved = weight._value
    assert isinstance(moved, jax.Array)
    counting()
    reading(x)
    assert weight._value is moved
    del moved
    seen, view = weight.read(), weight.numpy()
    assigning()  # takes over the memory of what nobody else holds
    for one, value in ((given, 2.0), (before.numpy(), 2.0), (seen.numpy(), 2.0), (view, 2.0), (weight.numpy(), 6.0)):
        np.testing.assert_array_equal(one, np.full((200, 200), value))
    weight.assign(given)
    np.testing.assert_array_equal(reading(x).numpy(), given)
    np.testing.assert_array_equal((weight * 2).numpy(), given * 2)


def test_large_values_that_are_only_read_by_a_call_that_assigns_others_go_to_xla_once():
    weight, count = hf.Variable(np.ones((200, 200), np.float32)), hf.Variable(np.zeros((200, 200), np.float32))

    @hf.compile
    def counting():
        count.assign(count + weight)

    counting()
    moved = weight._value
    assert isinstance(moved, jax.Array)
    counting()
    assert weight._value is moved
    np.testing.assert_array_equal(count.numpy(), np.full((200, 200), 2.0))


def added_and_read(v, w, x):
    v.assign_add(x)
    return hf.sum(w * x), v * 1


def assigned_a_product(v, w, x):
    v.assign(x * w)
    return v * x


def read_before_and_after(v, w, x):
    y = v * 2
    v.assign(x)
    return y, v * w


def assigned_in_a_branch(v, w, x):
    if hf.sum(x) > 0:
        v.assign(x)
    return v * 1


def one_from_the_other(v, w, x):
    v.assign(x)
    w.assign(v * 2)
    return w * 1, v * 1


def added_in_a_loop(v, w, x):
    for row in hf.stack([x, x]):
        v.assign_add(row)
    return v * 1


@pytest.mark.parametrize("trainable", [True, False])
@pytest.mark.parametrize("program", [added_and_read, assigned_a_product, read_before_and_after, assigned_in_a_branch,
                                     one_from_the_other, added_in_a_loop])
def test_gradients_of_what_was_assigned_are_none_where_they_are_eagerly(program, trainable):
    found = []
    for wrap in (lambda f: f, hf.compile):
        v, w = hf.Variable([3.0, 4.0], trainable=trainable), hf.Variable([1.0, 2.0])
        x = hf.asarray([1.0, 2.0])
        with hf.GradientTape(persistent=True) as tape:
            tape.watch([x, v, w])
            results = wrap(lambda x, v=v, w=w: program(v, w, x))(x)
        results = results if isinstance(results, tuple) else (results,)
        slopes = [tape.gradient(one, [x, v, w]) for one in results]
        found.append([[None if one is None else one.tolist() for one in several] for several in slopes])
    assert found[0] == found[1]

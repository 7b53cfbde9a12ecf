"""`hf.TensorArray`: writes and reads in both modes, in branches and loops, gradients, and writes that are dropped."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    MutationError,
    ShapeError,
)

NUMBERS = st.lists(st.tuples(st.integers(-4, 3), st.floats(-2, 2, width=32)), max_size=8)


@settings(max_examples=15, deadline=None)
@given(NUMBERS)
def test_writes_are_numpys(writes: list[tuple[int, float]]):
    expected = np.zeros((4, 2), np.float32)
    array = hf.TensorArray(hf.float32, 4, (2,))
    for index, value in writes:
        expected[index] = value, -value
        array = array.write(index, tensor(value, -value))
    assert array.stack().tolist() == expected.tolist()
    assert [array.read(i).tolist() for i in range(-4, 4)] == [expected[i].tolist() for i in range(-4, 4)]


def test_what_it_is():
    array = hf.TensorArray("float16", size=3)
    assert (len(array), array.shape, array.dtype) == (3, None, np.float16)
    assert repr(array) == "TensorArray(float16, size=3)"
    written = array.write(1, 2)
    assert (written.shape, repr(written)) == ((), "TensorArray(float16, size=3, shape=())")
    assert written.stack().tolist() == [0, 2, 0]
    assert str(written.read(1).dtype) == "float16"


def test_unstack():
    values = tensor(1, 2, 3)
    array = hf.TensorArray(hf.float32, 3).unstack(values)
    assert array.stack().tolist() == [1, 2, 3]
    assert array.write(0, 5.0).read(-3).item() == 5.0


def recurrence(n: Any, x: hf.Tensor, kind: str) -> Any:
    """Write and read in a loop of 5 steps."""
    array = hf.TensorArray(x.dtype, 5).write(0, x)

    def step(i: Any, array: Any) -> Any:
        return array.write(i, hf.sin(array.read(i - 1)) * 1.5 + x)

    if kind == "python":
        for i in range(1, 5):
            array = step(i, array)
    elif kind == "scan":
        array, _ = n.scan(lambda a, i: (step(i, a), None), array, hf.arange(1, 5))
    else:
        bound = {"while": None, "bounded": 7}[kind]
        _, array = n.while_loop(lambda i, a: i < 5, lambda i, a: (i + 1, step(i, a)), (1, array), max_iterations=bound)
    return array


@pytest.mark.parametrize("kind", ["python", "scan", "while", "bounded"])
def test_in_loops_with_gradients(kind: str):
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                stacked = recurrence(hf, x, kind).stack()
                y = hf.sum(stacked * stacked)
            g = tape.gradient(y, x)
        return stacked, g, outer.gradient(g, x)

    def by_jax(x: Any):
        values = [x]
        for _ in range(4):
            values.append(jnp.sin(values[-1]) * 1.5 + x)
        return jnp.sum(jnp.stack(values) ** 2)

    x = np.float64([0.3, -0.8])
    _, g, second = both(f, hf.asarray(x), rtol=1e-12)
    with jax.enable_x64(True):
        close(g, jax.grad(by_jax)(x), rtol=1e-12)
        close(second, jax.grad(lambda x: jnp.sum(jax.grad(by_jax)(x)))(x), rtol=1e-12)


@pytest.mark.parametrize("kind", ["scan", "while", "bounded"])
def test_the_first_write_may_be_in_the_loop(kind: str):
    def f(x: hf.Tensor):
        array = hf.TensorArray(hf.float32, 3)
        if kind == "scan":
            array, _ = hf.scan(lambda a, i: (a.write(i, x * i), None), array, hf.asarray([0, 1, 2]))
        else:
            bound = None if kind == "while" else 4
            _, (array, _) = hf.while_loop(
                lambda i, s: i < 3, lambda i, s: (i + 1, (s[0].write(i, x * i), s[1])), (0, (array, x)), bound
            )
        return array.stack()

    assert both(f, tensor(1, 2)).tolist() == [[0, 0], [1, 2], [2, 4]]


def test_in_branches():
    def f(x: hf.Tensor):
        array = hf.TensorArray(hf.float32, 2, ())
        array = hf.cond(x > 0, lambda: array.write(0, x), lambda: array.write(1, -x))
        array = hf.cond(x > 5, lambda a: a.write(1, 1.0), lambda a: a, array)
        return array.stack()

    for x in (1.0, -2.0, 7.0):
        both(f, hf.asarray(x))


def test_an_argument_and_a_result():
    f = hf.compile(lambda array, i: array.write(i, array.read(i + 1) * 2.0))
    array = f(hf.TensorArray(hf.float32, 3).unstack(tensor(1, 2, 3)), hf.asarray(0))
    assert isinstance(array, hf.TensorArray)
    assert f(array, hf.asarray(1)).stack().tolist() == [4, 6, 3]
    assert f.trace_count == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("index", [3, -4, 99])
@pytest.mark.parametrize("method", ["write", "read"])
def test_an_index_out_of_range(method: str, index: int, compiled: bool):
    def static(x: hf.Tensor):
        array = hf.TensorArray(hf.float32, 3, ())
        return array.read(index) if method == "read" else array.write(index, x).stack()

    def dynamic(i: hf.Tensor):
        array = hf.TensorArray(hf.float32, 3, ())
        return array.read(i) if method == "read" else array.write(i, 1.0).stack()

    for f, x in ((static, hf.asarray(1.0)), (dynamic, hf.asarray(index))):
        with pytest.raises(IndexRangeError, match=r"out of range for (size )?3"):
            (hf.compile(f) if compiled else f)(x).numpy()


# -- dropped writes -----------------------------------------------------------------------------------------------


def loop_that_drops(x: hf.Tensor):
    def step(i: Any, array: Any) -> Any:
        array.write(i, x)
        return i + 1, array

    return hf.while_loop(lambda i, a: i < 3, step, (0, hf.TensorArray(hf.float32, 3, ())))[1].stack()


def scan_that_drops(x: hf.Tensor):
    array = hf.TensorArray(hf.float32, 3, ())

    def step(c: Any, i: hf.Tensor) -> Any:
        array.write(i, x)
        return c, None

    hf.scan(step, x, hf.asarray([0, 1]))
    return array.stack()


def branch_that_drops(x: hf.Tensor):
    array = hf.TensorArray(hf.float32, 3, ())

    def branch():
        array.write(0, x)
        return array

    return hf.cond(x > 0, branch, lambda: array).stack()


def use(array: hf.TensorArray, how: str) -> Any:
    return {
        "write": lambda: array.write(0, 1.0), "read": lambda: array.read(0), "stack": array.stack,
        "unstack": lambda: array.unstack(tensor(1, 2, 3)),
        "pass on": lambda: hf.cond(True, lambda a: a, lambda a: a, array), "return": lambda: array,
    }[how]()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("how", ["write", "read", "stack", "unstack", "pass on", "return"])
def test_the_old_array_is_used_after_a_write(how: str, compiled: bool):
    def f(x: hf.Tensor):
        array = hf.TensorArray(hf.float32, 3, ())
        array.write(1, x)
        found = use(array, how)
        return found.stack() if how == "return" and not compiled else found

    text = r"was written at .*test_tensor_array\.py:\d+, and the result of that was dropped\s[^!]*array = array\.write"
    with pytest.raises(MutationError, match=text):
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("program", [loop_that_drops, scan_that_drops, branch_that_drops])
def test_a_write_dropped_in_a_body(program: Any, compiled: bool):
    with pytest.raises(MutationError, match="the result of that was dropped"):
        (hf.compile(program) if compiled else program)(hf.asarray(1.0))


def test_a_failed_write_drops_nothing():
    array = hf.TensorArray(hf.float32, 2, ())
    with pytest.raises(IndexRangeError):
        array.write(5, 1.0)
    assert array.write(0, 1.0).stack().tolist() == [1, 0]


def test_every_call_may_write_what_is_around_the_function():
    around = hf.TensorArray(hf.float32, 2, ())
    f = hf.compile(lambda x: around.write(0, x).stack())
    assert f(hf.asarray(1.0)).tolist() == [1, 0]
    assert f(hf.asarray(1.0, dtype="float32")).tolist() == [1, 0]
    assert f.trace_count == 1


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [(lambda: hf.TensorArray(hf.float32, 2.0), ArgumentTypeError, "size must be an integer"),
     (lambda: hf.TensorArray(hf.float32, -1), ArgumentError, "size must not be negative"),
     (lambda: hf.TensorArray(hf.float32, 2).stack(), ShapeError, "nothing was written yet"),
     (lambda: hf.TensorArray(hf.float32, 2).read(0), ShapeError, "nothing was written yet"),
     (lambda: hf.TensorArray(hf.float32, 2, (2,)).write(0, 1.0), ShapeError, r"shape \(\), .* elements \(2,\)"),
     (lambda: hf.TensorArray(hf.int32, 2).write(0, hf.asarray(1.0)), DTypeError, "is float32, the array int32"),
     (lambda: hf.TensorArray(hf.float32, 2).write(1.0, 1.0), ArgumentTypeError, "the index must be an integer"),
     (lambda: hf.TensorArray(hf.float32, 2).unstack(tensor(1, 2, 3)), ShapeError, r"\(3,\), the array takes \(2, ..."),
     (lambda: hf.TensorArray(hf.int32, 2).unstack(tensor(1, 2)), DTypeError, "is float32, the array int32")],
)
def test_errors(call: Any, error: Any, text: str):
    with pytest.raises(error, match=text):
        call()


def test_an_open_size():
    def f(xs: hf.Tensor):
        array = hf.TensorArray(hf.float32, xs.shape[0], ())
        return hf.scan(lambda a, t: (a.write(t[0].astype(hf.int32), t[1]), None), array, xs)[0].stack()

    fast = hf.compile(f, input_signature=[hf.TensorSpec([None, 2])])
    for n in (2, 5):
        xs = hf.asarray(np.stack([np.arange(n)[::-1], np.arange(n) * 2.0], 1).astype(np.float32))
        same(f(xs), fast(xs))
    assert fast.trace_count == 1


# -- in converted loops -------------------------------------------------------------------------------------------


def while_and_if(xs: hf.Tensor):
    array = hf.TensorArray(hf.float32, 6)
    i = 0
    while i < hf.sum(xs).astype(hf.int32):
        array = array.write(i, xs * i) if i > 1 else array.write(5 - i, xs)
        i = i + 1
    return array.stack()


def for_and_break(xs: hf.Tensor):
    array, count = hf.TensorArray(hf.float32, 3, ()), 0
    for x in xs:
        if x > 2.0:
            break
        array = array.write(count, x * 2.0)
        count += 1
    return array.stack(), hf.asarray(count)


@pytest.mark.parametrize("program", [while_and_if, for_and_break])
def test_python_loops(program: Any):
    both(program, tensor(1, 2, 3))
    both(program, tensor(0.5, 1.0, 0.5))


def test_a_write_dropped_in_a_python_loop():
    def f(xs: hf.Tensor):
        array = hf.TensorArray(hf.float32, 3, ())
        for i, x in enumerate(xs):
            array.write(i, x)
        return array.stack()

    for run in (f, hf.compile(f)):
        with pytest.raises(MutationError, match="the result of that was dropped"):
            run(tensor(1, 2, 3))


def write_if(x: hf.Tensor):
    array = hf.TensorArray(hf.float32, 3)
    if x[0] > 0:
        array = array.write(0, x)
    return array.write(1, x).stack()


def write_behind_a_break(x: hf.Tensor):
    array = hf.TensorArray(hf.float32, 3)
    for i, v in enumerate(x):
        if v > 2.5:
            break
        array = array.write(i, v * v)
    return array.stack()


def write_in_a_branch_of_a_loop(x: hf.Tensor):
    array, n = hf.TensorArray(hf.float32, 3), 0
    while x.sum() > 0.5:
        x = x / 2
        if x[0] < 0.3:
            array = array.write(n % 3, x)
        n += 1
    return array.stack()


def write_in_a_list(x: hf.Tensor):
    pair = [hf.TensorArray(hf.float32, 2), 0]
    if x[0] > 2:
        pair = [pair[0].write(0, x), 1]
    elif x[0] > 0:
        pair = [pair[0].write(1, x), 2]
    return pair[0].stack() * pair[1]


def write_beside_numbers(x: hf.Tensor):
    state = (hf.TensorArray(hf.float32, 3), 0, 0.5)
    while x.sum() > 0.5:
        x = x / 2
        state = (state[0].write(state[1] % 3, x), state[1] + 1, state[2] * 0.1)
    return state[0].stack() * state[2] + state[1]


FIRST_WRITES = [
    write_beside_numbers, write_if, write_behind_a_break, write_in_a_branch_of_a_loop, write_in_a_list,
]


@pytest.mark.parametrize("f", FIRST_WRITES)
def test_the_first_write_in_one_branch(f: Any):
    x = tensor(1, 2, 3)
    compiled = hf.compile(f)
    assert compiled(x).tolist() == f(x).tolist()


def test_gradients_through_a_first_write_in_one_branch():
    for run in (write_if, hf.compile(write_if)):
        assert hf.grad(lambda x, run=run: hf.sum(run(x)))(tensor(1, 2)).tolist() == [2.0, 2.0]
        assert hf.grad(lambda x, run=run: hf.sum(run(x)))(tensor(-1, 2)).tolist() == [1.0, 1.0]

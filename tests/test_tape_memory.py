"""What a recording keeps alive: what rules read and nothing else, freed at once, without the garbage collector."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from modes import tensor

import hybridflow as hf


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def array_of(t: hf.Tensor) -> Any:
    return weakref.ref(t._value)


def node_of(t: hf.Tensor) -> Any:
    assert t._edge is not None
    return weakref.ref(t._edge[0])


def live_nodes() -> int:
    from hybridflow.core.node import Node

    return sum(type(o) is Node for o in gc.get_objects())


# -- tensors and nodes --------------------------------------------------------------------------------------------


def test_a_deleted_result_frees_its_graph_at_once():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.exp(x)
        y = hf.tanh(h) * h
    nodes, arrays = [node_of(h), node_of(y)], [array_of(h), array_of(y)]
    del h
    assert all(ref() is not None for ref in (*nodes, arrays[0]))
    del y
    assert all(ref() is None for ref in (*nodes, *arrays))


def test_the_tape_itself_keeps_no_operation_alive():
    x = tensor(1, 2)
    tape = hf.GradientTape(persistent=True)
    with tape:
        tape.watch(x)
        y = hf.exp(x)
        node, array = node_of(y), array_of(y)
        del y
        assert node() is None
        assert array() is None
    del tape


def test_intermediate_values_that_no_rule_reads_are_freed():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        first = hf.exp(x)  # its own rule reads the result
        shifted = first + 1.0  # neither this rule nor the next one reads it
        y = hf.sum(shifted)
    refs = [array_of(first), array_of(shifted)]
    del first, shifted
    assert refs[0]() is not None
    assert refs[1]() is None
    np.testing.assert_allclose(tape.gradient(y, x).numpy(), np.exp([1.0, 2.0]), rtol=1e-6)


def test_values_that_a_rule_reads_are_kept_until_the_result_goes():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.exp(x)
        y = hf.sin(h)
    h_array = array_of(h)
    del h
    assert h_array() is not None
    tape.gradient(y, x)
    del y
    assert h_array() is None


def test_unwatched_work_under_a_tape_keeps_nothing():
    x, w = tensor(1, 2), tensor(3, 4)
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.exp(w)
        assert h._edge is None
        array = array_of(h)
        k = h * 2.0
        del h
        assert array() is None
        y = x * k
    assert tape.gradient(y, x).numpy().tolist() == k.numpy().tolist()


def test_a_tape_and_what_it_answered_die_without_the_collector():
    v = hf.Variable([1.0, 2.0])
    for persistent in (False, True):
        with hf.GradientTape(persistent=persistent) as tape:
            y = hf.sum(v * v)
        g = tape.gradient(y, v)
        tape_ref, node, value = weakref.ref(tape), node_of(y), array_of(g)
        del tape, y, g
        assert tape_ref() is None
        assert node() is None
        assert value() is None


def test_a_variable_keeps_no_tape_and_no_graph_alive():
    v = hf.Variable([1.0, 2.0])
    with hf.GradientTape() as tape:
        y = hf.exp(v)
    tape_ref, node, old = weakref.ref(tape), node_of(y), weakref.ref(v._value)
    v.assign([3.0, 4.0])
    del tape, y
    assert tape_ref() is None
    assert node() is None
    assert old() is None


def test_nested_tapes_die_without_the_collector():
    x = tensor(1, 2)
    with hf.GradientTape() as outer:
        outer.watch(x)
        with hf.GradientTape() as inner:
            inner.watch(x)
            y = hf.sum(x**3)
        g = inner.gradient(y, x)
    second = outer.gradient(g, x)
    refs = [weakref.ref(outer), weakref.ref(inner), node_of(y), node_of(g), array_of(second)]
    del outer, inner, y, g, second
    assert all(ref() is None for ref in refs)


def test_a_custom_gradient_dies_without_the_collector():
    @hf.custom_gradient
    def double(x: hf.Tensor):
        y = hf.exp(x)
        return y, lambda g: g * y

    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = double(x)
    tape.gradient(y, x)
    refs = [weakref.ref(tape), node_of(y), array_of(y)]
    del tape, y
    assert all(ref() is None for ref in refs)


@pytest.mark.parametrize("where", ["eager", "compiled inside", "compiled outside"])
def test_training_steps_leave_nothing_behind(where: str):
    v = hf.Variable(np.ones((8, 8), np.float32))
    x = hf.asarray(np.ones((4, 8), np.float32))
    forward = hf.compile(lambda: hf.mean(hf.tanh(x @ v) ** 2)) if where == "compiled inside" else None

    def step():
        with hf.GradientTape() as tape:
            loss = forward() if forward is not None else hf.mean(hf.tanh(x @ v) ** 2)
        v.assign_sub(tape.gradient(loss, v) * 0.1)
        return loss

    run = hf.compile(step) if where == "compiled outside" else step
    for _ in range(3):
        run()
    before = live_nodes()
    for _ in range(20):
        run().item()
    assert live_nodes() <= before + 2


def test_the_state_of_a_recurrent_network_does_not_grow_over_many_tapes():
    w = hf.Variable(np.eye(4, dtype=np.float32) * 0.5)
    state = hf.asarray(np.ones((2, 4), np.float32))
    counts: list[int] = []
    first = None
    for _ in range(12):
        with hf.GradientTape() as tape:
            for _ in range(3):
                state = hf.tanh(state @ w)
            loss = hf.sum(state)
        if first is None:
            first = weakref.ref(state._value)
        w.assign_sub(tape.gradient(loss, w) * 0.01)
        counts.append(live_nodes())
    assert first() is None
    assert max(counts[2:]) <= counts[2] + 2


def test_a_state_that_goes_on_under_a_new_tape_is_a_constant_there():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        state = hf.exp(x)
    node = node_of(state)
    with hf.GradientTape() as tape:
        tape.watch(x)
        state = hf.tanh(state) * x
    assert node() is None
    del tape


def test_a_long_tape_keeps_few_of_the_values_that_left():
    x = hf.asarray(1.0)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        refs = []
        for _ in range(300):
            y = x * 2.0
            y.item()
            refs.append(node_of(y))
        del y
    assert sum(ref() is not None for ref in refs) <= 100


def test_a_choice_made_of_a_value_keeps_nothing():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.exp(x)
        assert bool(h[0] > 0)
        assert int(hf.argmax(h)) == 1
        node, value = node_of(h), array_of(h)
        del h
        assert node() is None
        assert value() is None


def test_reset_frees_what_the_tape_knew():
    v = hf.Variable(1.0)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(v)
        y = v * 2.0
        y.item()
        ref = weakref.ref(v)
        node = node_of(y)
        del y
        tape.reset()
    assert node() is None
    del v
    assert ref() is None


# -- compiled functions -------------------------------------------------------------------------------------------


def test_a_compiled_function_and_what_it_closed_over_die():
    def make():
        v = hf.Variable([1.0, 2.0])
        held = hf.asarray(np.ones(70_000, np.float32))
        f = hf.compile(lambda x: hf.sum(held) * x * v)
        f(tensor(1, 2))
        return weakref.ref(f), weakref.ref(v), weakref.ref(held)

    refs = make()
    gc.collect()  # a function and its closure may be a cycle of their own
    assert all(ref() is None for ref in refs)


def test_results_of_a_compiled_call_under_a_tape_are_freed():
    f = hf.compile(lambda x: hf.exp(x) * hf.sin(x))
    x = tensor(1, 2)
    for _ in range(2):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        tape.gradient(y, x)
    node = node_of(y)
    saved = [weakref.ref(a) for a in node().saved[0] if a is not None]
    assert saved
    del tape, y
    assert node() is None
    assert all(ref() is None for ref in saved)

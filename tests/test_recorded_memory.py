"""`tape.memory()` and `grad_fn.memory()`: what a recording holds, by line, kind and storage, and the measured peak."""

import tracemalloc

import numpy as np
import pytest

import hybridflow as hf

KIB = 1024


@pytest.fixture
def w():
    return hf.Variable(np.eye(64, dtype=np.float32), name="w")


@pytest.fixture
def x(rng):
    return hf.asarray(rng.standard_normal((128, 64)), dtype=hf.float32)


def test_kinds_and_lines(x, w):
    with hf.GradientTape() as tape:
        h = hf.nn.relu(x @ w)
        h = hf.tanh(h @ w)
        y = hf.mean(h)
    memory = tape.memory()
    assert (memory.inputs, memory.activations, memory.parameters) == (32 * KIB, 64 * KIB, 16 * KIB)
    assert memory.total == 112 * KIB
    first = h.grad_fn is None and test_kinds_and_lines.__code__.co_firstlineno
    place = f"{__file__}:{first + 2}", f"{__file__}:{first + 3}"
    assert memory.by_line() == {(place[0], "matmul"): 32 * KIB, (place[0], "relu"): 32 * KIB,
                                (place[1], "tanh"): 32 * KIB}
    assert [(one.op, one.kind, one.uses) for one in memory] == [
        ("matmul", "input", 1), ("relu", "activation", 2), ("matmul", "parameter", 1), ("tanh", "activation", 1),
    ]
    text = str(memory)
    assert "112.0 KiB in 4 storages (activations 64.0 KiB, inputs 32.0 KiB, parameters 16.0 KiB)" in text
    assert f"32.0 KiB  relu                     {place[0]}" in text
    assert "call tracemalloc.start()" in text
    found = memory.to_dict()
    assert found["total"] == 112 * KIB
    assert found["peak"] is None
    assert found["by_line"][2] == {"location": place[1], "op": "tanh", "bytes": 32 * KIB}
    assert found["saved"][0]["spec"] == "f32[128,64]"
    del y


def test_views_share_a_storage(x):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = hf.exp(x)
        y = hf.reshape(h, (64, 128)) * hf.permute_dims(h, (1, 0)) * h[:1].mT
    assert tape.memory().activations == 2 * 32 * KIB  # exp's result with its views, and the first product
    assert len(tape.memory()) == 2
    del y


def test_a_part_keeps_all_of_its_storage(x):
    with hf.GradientTape() as tape:
        tape.watch(x)
        h = x * 2.0
        y = hf.exp(h)[:2]
        z = hf.square(h[:2])
    (saved,) = [one for one in tape.memory() if one.op == "square"]
    assert (str(saved.spec), saved.bytes) == ("f32[2,64]", 32 * KIB)
    del y, z


def test_what_is_freed_is_not_held(x):
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = hf.exp(x)
        z = hf.tanh(x)
        assert tape.memory().activations == 64 * KIB
        del z
        assert tape.memory().activations == 32 * KIB
        del y
        assert tape.memory().total == 0
    assert "0 B in 0 storages" in str(tape.memory())


def test_only_what_this_tape_watches(x):
    other = hf.tensor(x, requires_grad=True)
    with hf.GradientTape() as outer:
        outer.watch(x)
        a = hf.exp(x)
        b = hf.exp(other)
        with hf.GradientTape() as inner:
            inner.watch(a)
            c = hf.tanh(a)
    assert [one.op for one in outer.memory()] == ["exp", "tanh"]
    assert [one.op for one in inner.memory()] == ["tanh"]
    assert [one.op for one in b.grad_fn.memory()] == ["exp"]
    with outer.stop_recording() if False else hf.no_grad():
        d = hf.exp(c)
    assert len(outer.memory()) == 2
    del d


def test_parameters_are_what_variables_hold(x, w):
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x @ hf.permute_dims(w, (1, 0))
    assert (tape.memory().parameters, tape.memory().inputs) == (16 * KIB, 32 * KIB)
    w.assign(np.zeros((64, 64), np.float32))
    memory = tape.memory()  # what the Variable held then is held by the recording alone
    assert memory.parameters + memory.activations == 16 * KIB
    del y


def test_a_compiled_call_is_one_operation(x, w):
    f = hf.compile(lambda x: hf.mean(hf.tanh(x @ w) ** 2))
    with hf.GradientTape() as tape:
        y = f(x)
    memory = tape.memory()
    assert {one.op for one in memory} == {"<lambda>"}
    assert memory.parameters == 16 * KIB
    assert 32 * KIB <= memory.activations <= 64 * KIB
    del y


def test_low_precision_halves_it(x, w):
    found = []
    for enabled in (False, True):
        with hf.GradientTape() as tape, hf.autocast(hf.bfloat16, enabled=enabled):
            y = hf.nn.relu(hf.nn.relu(x @ w) @ w)
        memory = tape.memory()
        found.append(sum(one.bytes for one in memory if one.spec.shape == (128, 64)))
        del y
    assert found[0] == 2 * found[1] == 96 * KIB


def test_backward_graphs(x):
    v = hf.Variable(np.eye(64, dtype=np.float32), requires_grad=True)
    y = hf.mean(hf.tanh(x @ v))
    memory = y.grad_fn.memory()
    assert (memory.inputs, memory.activations, memory.parameters) == (32 * KIB, 32 * KIB, 0)
    assert memory.peak is None
    y.backward()
    assert y.grad_fn.memory().total == 0


def test_inside_a_compiled_function():
    @hf.compile
    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
        return tape.memory()

    with pytest.raises(RuntimeError, match="is asked for its memory inside a compiled function"):
        f(hf.ones(2))


def test_the_peak_is_measured_while_tracemalloc_traces():
    x = hf.ones((1024, 256))  # a MiB
    tracemalloc.start()
    try:
        hf.exp(hf.exp(x))  # a peak from before does not count
        with hf.GradientTape() as outer:
            outer.watch(x)
            kept = hf.exp(x)
            _ = hf.exp(hf.exp(hf.exp(kept)))
            with hf.GradientTape() as inner:
                inner.watch(kept)
                y = hf.tanh(kept)
        first = outer.memory().peak
        assert 4.9 < first / 2**20 < 5.1  # four of exp, and tanh
        assert 0.9 < inner.memory().peak / 2**20 < 1.1
        assert outer.memory().peak == pytest.approx(first, abs=2**16)
        assert "peak since the recording began: " in str(outer.memory())
    finally:
        tracemalloc.stop()
    assert outer.memory().peak is None
    with hf.GradientTape() as late:
        tracemalloc.start()
    tracemalloc.stop()
    assert late.memory().peak is None
    del y

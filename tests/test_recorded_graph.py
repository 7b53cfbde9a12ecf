"""Recorded eager computations as graphs, and compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.ir.costs import graph_flops


def ops(graph: Any) -> list[str]:
    return [node.op.name for node in graph.nodes if node.op.name != "constant"]


def test_a_grad_fn_as_a_graph():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    w = hf.Variable([3.0, 4.0], requires_grad=True, name="w")
    loss = (hf.exp(x * w) + w * 2.0).sum()
    graph = loss.grad_fn.graph()
    hf.ir.verify(graph)
    assert ops(graph) == ["multiply", "exp", "multiply", "add", "sum"]
    assert sorted(node.attrs["name"] for node in graph.inputs) == ["leaf_0", "w"]
    assert "exp" in str(graph)
    assert graph_flops(graph) > 0
    assert hf.ir.parse(str(graph)).output_specs == graph.output_specs
    before = str(graph)
    loss.backward()
    assert str(loss.grad_fn.graph()) == before  # what is freed is the values only


def test_a_tape_as_a_graph():
    x = hf.asarray([1.0, 2.0])
    early = x * 5
    with hf.GradientTape(persistent=True) as tape:
        tape.watch([x, early])
        y = hf.tanh(x) * early + x
        z = y.sum()
    graph = tape.graph([y, z])
    hf.ir.verify(graph)
    assert ops(graph) == ["tanh", "multiply", "add", "sum"]
    assert len(graph.inputs) == 2
    assert len(graph.outputs) == 2
    with pytest.raises(RuntimeError, match="did not record how a target was computed"):
        tape.graph(x + 1)


def test_recorded_and_compiled_are_equal():
    x = hf.asarray(np.linspace(-1.0, 1.0, 6, dtype=np.float32).reshape(2, 3))
    labels = hf.asarray([1, 0])
    w, b = hf.Variable(np.arange(6, dtype=np.float32).reshape(3, 2) / 9, name="w"), hf.Variable([0.5, -0.5], name="b")

    def model(x: Any, labels: Any) -> Any:
        return hf.nn.softmax_cross_entropy(hf.tanh(x @ w) * 2.0 + b, labels).mean()

    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss = model(x, labels)
    again = hf.compile_recorded(loss, [x, labels])
    np.testing.assert_allclose(again(x, labels).numpy(), loss.numpy(), rtol=1e-6)
    other, flipped = x * 3, hf.asarray([0, 1])
    np.testing.assert_allclose(again(other, flipped).numpy(), model(other, flipped).numpy(), rtol=1e-6)
    b.assign([2.0, 0.0])
    np.testing.assert_allclose(again(x, labels).numpy(), model(x, labels).numpy(), rtol=1e-6)
    with hf.config.run_eagerly():
        np.testing.assert_allclose(again(x, labels).numpy(), model(x, labels).numpy(), rtol=1e-6)
    slopes = [hf.grad(lambda v, f=f: f(v, labels))(x).numpy() for f in (again, model)]
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-5, atol=1e-6)
    fixed = hf.compile_recorded({"loss": loss}, {"w": w, "x": x})
    found = fixed({"w": np.zeros((3, 2), np.float32), "x": x})
    assert set(found) == {"loss"}
    logits = np.broadcast_to(np.float32([2.0, 0.0]), (2, 2))
    expected = hf.nn.softmax_cross_entropy(hf.asarray(logits), labels).mean()
    np.testing.assert_allclose(found["loss"].numpy(), expected.numpy(), rtol=1e-6)


def test_compiled_calls_and_ops_with_hidden_outputs():
    x = hf.tensor(np.linspace(0.1, 1.0, 8, dtype=np.float32).reshape(1, 1, 8), requires_grad=True)
    f = hf.compile(lambda v: (hf.sin(v), v * 2))
    a, b = f(x)
    y = hf.nn.max_pool(a * b, 2).sum()
    graph = y.grad_fn.graph()
    hf.ir.verify(graph)
    assert ops(graph)[0] == "call"
    again = hf.compile_recorded(y, [x])
    value = np.cos(np.arange(8, dtype=np.float32)).reshape(1, 1, 8)
    product = np.sin(value) * value * 2
    np.testing.assert_allclose(again(value).numpy(), product.reshape(4, 2).max(1).sum(), rtol=1e-5)
    y.backward()
    np.testing.assert_allclose(again(x.detach()).numpy(), y.numpy(), rtol=1e-5)


def test_what_cannot_be_compiled_is_named():
    x = hf.tensor([1.0, 2.0], requires_grad=True)
    c = hf.asarray([5.0, 6.0])
    with pytest.raises(RuntimeError, match=r"add at .*test_recorded_graph.* reads a f32\[2\] that the recording did"):
        hf.compile_recorded(x + c, [x])
    assert hf.compile_recorded(x * c, [x])([1.0, 1.0]).tolist() == [5.0, 6.0]
    with pytest.raises(RuntimeError, match=r"depend on a f32\[2\] that is watched or a leaf, and no input"):
        hf.compile_recorded(x * c, [c])
    with pytest.raises(RuntimeError, match="an output was not recorded"):
        hf.compile_recorded(c * 2, [c])
    with pytest.raises(TypeError, match="a float is no tensor"):
        hf.compile_recorded(x * 2, [1.0])
    again = hf.compile_recorded(x * 2, [x])
    with pytest.raises(TypeError, match=r"an argument is f32\[3\], and f32\[2\] was recorded"):
        again([1.0, 2.0, 3.0])
    with pytest.raises(TypeError, match="the arguments are unlike the inputs"):
        again(x, x)
    with pytest.raises(RuntimeError, match="compile_recorded: inside a compiled function"):
        hf.compile(lambda v: hf.compile_recorded(v, [v]))(1.0)

    @hf.custom_gradient
    def double(v: Any) -> Any:
        return v * 2, lambda g: g

    with pytest.raises(RuntimeError, match="its forward pass was not recorded as one"):
        double(x).grad_fn.graph()
    with hf.GradientTape() as tape:
        y = x * 2

    @hf.compile
    def inside(v: Any) -> Any:
        tape.graph(v)

    with pytest.raises(RuntimeError, match="is asked for its graph inside a compiled function"):
        inside(y.detach())


@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "multiply", "tanh", "subtract"]), st.integers(0, 99)), max_size=8))
def test_random_recordings_run_compiled_as_they_ran(steps):
    def run(x: Any, w: Any) -> Any:
        values = [x, w]
        for name, pick in steps:
            one = values[pick % len(values)]
            values.append(hf.tanh(one) if name == "tanh" else getattr(hf, name)(one, values[-1] * 0.5))
        return values[-1] * x

    x, w = hf.tensor([0.3, -0.7], requires_grad=True), hf.tensor([1.1, 0.4], requires_grad=True)
    y = run(x, w)
    again = hf.compile_recorded(y, (x, w))
    graph = y.grad_fn.graph()
    hf.ir.verify(graph)
    a, b = hf.asarray([0.9, -0.2]), hf.asarray([-1.0, 0.5])
    np.testing.assert_allclose(again(a, b).numpy(), run(a, b).numpy(), rtol=1e-5, atol=1e-6)

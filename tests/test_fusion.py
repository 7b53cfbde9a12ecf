"""Breaks between fusions and outlined graphs: what a graph that has them computes, and what XLA makes of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.node import make_node
from hybridflow.core.op import No, Op
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.fusion import BREAK, OUTLINED, ROW_MAJOR_BREAK, reads_never
from hybridflow.ir.graph import Graph, clone_node
from hybridflow.testing.graphs import run_eagerly
from hybridflow.xla.executable import compile_graph

BROKEN = """
graph f(%x: f32[64,64]) -> (f32[64,64], f32[64,64]) {
  %0 = tanh(%x) : f32[64,64]
  %1 = fusion_break(%0) : f32[64,64]
  %2 = exp(%1) : f32[64,64]
  %3 = matmul(%2, %1) : f32[64,64]
  return %2, %3
}
"""

CALLED_TWICE = """
graph f(%x: f32[8,8], %w: f32[8,8]) -> (f32[8,8], f32[8,8]) {
  %0, %1 = outlined(%x, %w) {
    graph=graph block(%a: f32[8,8], %b: f32[8,8]) -> (f32[8,8], f32[8,8]) {
      %0 = matmul(%a, %b) : f32[8,8]
      %1 = tanh(%0) : f32[8,8]
      %2 = fusion_break(%1) : f32[8,8]
      %3 = add(%2, %a) : f32[8,8]
      return %3, %2
    }
  } : f32[8,8], f32[8,8]
  return %0, %1
}
"""


RESULTS_IN_ORDERS = """
graph f(%x: f32[2,3,4,5], %w: f32[5,5]) -> (f32[2,4,3,5], f32[2,4,3,5], f32[2,3,4,1]) {
  %0, %1, %2 = outlined(%x, %w) {
    graph=graph block(%a: f32[2,3,4,5], %b: f32[5,5]) -> (f32[2,3,4,5], f32[2,4,3,5], f32[2,3,4,1]) {
      %0 = matmul(%a, %b) : f32[2,3,4,5]
      %1 = permute_dims(%0) {axes=(0, 2, 1, 3)} : f32[2,4,3,5]
      %2 = sum(%0) {axis=(3,), keepdims=True} : f32[2,3,4,1]
      return %0, %1, %2
    }
  } : f32[2,3,4,5], f32[2,4,3,5], f32[2,3,4,1]
  %3, %4, %5 = outlined(%0, %w) {
    graph=graph block(%a: f32[2,3,4,5], %b: f32[5,5]) -> (f32[2,3,4,5], f32[2,4,3,5], f32[2,3,4,1]) {
      %0 = matmul(%a, %b) : f32[2,3,4,5]
      %1 = permute_dims(%0) {axes=(0, 2, 1, 3)} : f32[2,4,3,5]
      %2 = sum(%0) {axis=(3,), keepdims=True} : f32[2,3,4,1]
      return %0, %1, %2
    }
  } : f32[2,3,4,5], f32[2,4,3,5], f32[2,3,4,1]
  return %1, %4, %5
}
"""


def run(graph: Graph, *values: Any) -> list[np.ndarray[Any, Any]]:
    """Compile a graph as it is, and run it."""
    return [np.asarray(value) for value in compile_graph(graph, sizes={}).call(*values)]


def test_a_break_is_the_identity_and_xla_does_not_look_through_it():
    graph = hf.ir.parse(BROKEN)
    hf.ir.verify(graph)
    assert reads_never(graph)
    x = np.linspace(-2, 2, 64 * 64, dtype=np.float32).reshape(64, 64)
    exp, product = run(graph, x)
    np.testing.assert_allclose(exp, np.exp(np.tanh(x)), rtol=1e-6)
    np.testing.assert_allclose(product, np.exp(np.tanh(x)) @ np.tanh(x), rtol=1e-4, atol=1e-4)
    text = compile_graph(graph, sizes={}).compiled.as_text()
    assert text.count(" call(") == 1
    assert text.count(" tanh(") == 1


@pytest.mark.parametrize(("size", "breaks"), [(64, 1), (4, 0)])
def test_what_several_read_of_a_large_convolution_is_computed_once(size: int, breaks: int):
    def three(x: Any, kernel: Any, bias: Any) -> Any:
        y = hf.nn.conv(x, kernel) + bias
        return hf.sum(y, axis=(2, 3)), hf.nn.relu(y), hf.tanh(y)

    args = hf.random.normal((4, 3, size, size)), hf.random.normal((8, 3, 3, 3)), hf.random.normal((8, 1, 1))
    compiled = hf.compile(three)
    assert hf.compare(three, *args).same
    assert broken(compiled, *args) == ["add"] * breaks


def test_large_random_draws_are_made_once():
    def drop(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.nn.dropout(hf.tanh(x), 0.5, training=True)
        return y, tape.gradient(y, x)

    assert broken(hf.compile(drop), hf.ones((256, 256))) == ["random_bernoulli"]
    assert broken(hf.compile(drop), hf.ones((8, 8))) == []


@pytest.mark.parametrize("pooled", [True, False])
def test_what_a_pooling_reads_is_stored_in_its_order_and_its_positions_are_computed_once(pooled: bool):
    def slopes(x: Any, kernel: Any, bias: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(bias)
            y = hf.nn.relu(hf.nn.conv(x, kernel, padding="same") + bias)
            loss = hf.sum(hf.tanh(hf.nn.max_pool(y, 2) if pooled else y))
        return tape.gradient(loss, bias)

    args = hf.random.normal((8, 16, 64, 64)), hf.random.normal((8, 16, 3, 3)), hf.random.normal((8, 1, 1))
    compiled = hf.compile(slopes)
    assert hf.compare(slopes, *args).same
    ordered, others = (["relu", "max_pool", "max_pool"], []) if pooled else ([], ["relu"])
    assert broken(compiled, *args, op=ROW_MAJOR_BREAK) == ordered
    assert broken(compiled, *args) == others
    if pooled:  # whether XLA else leaves the channels last depends on its version
        text = compile_graph(compiled.graph(*args), sizes={}).compiled.as_text()
        assert " = f32[8,8,64,64]{3,2,1,0} call(" in text


@pytest.mark.parametrize(("images", "breaks"), [(8, 1), (1, 0)])
def test_the_gradient_of_a_large_convolutions_result_is_computed_once(images: int, breaks: int):
    def slopes(x: Any, kernel: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch((x, kernel))
            loss = hf.sum(hf.tanh(hf.nn.conv(x, kernel, padding="same")))
        return tape.gradient(loss, (x, kernel))

    args = hf.random.normal((images, 16, 32, 32)), hf.random.normal((8, 16, 3, 3))
    assert hf.compare(slopes, *args).same
    compiled = hf.compile(slopes)
    (node,) = [node for node in compiled.graph(*args).nodes if node.op.has("kernel_gradient")]
    assert broken(compiled, *args) == [node.inputs[1][0].inputs[0][0].op.name] * breaks


@pytest.mark.parametrize("rule", ["AdamW", "RMSprop", "Adagrad", "SGD"])
def test_an_optimizers_step_copies_no_parameters_or_moments(rule: str):
    net = hf.nn.Sequential(hf.nn.Linear(32, 64), hf.nn.Linear(64, 48))
    optimizer = getattr(hf.optim, rule)(net, 1e-3, **({"momentum": 0.9} if rule == "SGD" else {}))

    @hf.compile
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(net(x) ** 2)
        optimizer.update(tape.gradient(loss, net))
        return loss

    x = hf.ones((16, 32))
    losses = [float(step(x)) for _ in range(3)]
    assert losses == sorted(losses, reverse=True)
    text = step.lower(x).executable.compiled.as_text()
    assert not re.findall(r"f32\[(?:64,32|48,64)\]\S* copy\(", text)


@pytest.mark.always
def test_a_step_waits_for_no_product_that_is_larger_than_its_parameter():
    net = hf.nn.Sequential(hf.nn.Linear(4, 6), hf.nn.Linear(6, 6, bias=False))
    optimizer = hf.optim.SGD(net, 0.1)

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(net(x) ** 2)
        optimizer.update(tape.gradient(loss, net))
        return loss

    assert str(hf.compile(step).graph(hf.ones((6, 4)))).count("tied(") == 1
    assert str(hf.compile(step).graph(hf.ones((7, 4)))).count("tied(") == 0


def test_a_step_waits_for_nothing_that_has_no_elements(capsys: pytest.CaptureFixture[str]):
    net = hf.nn.Sequential(hf.nn.Linear(4, 5), hf.nn.Linear(5, 3))
    optimizer = hf.optim.SGD(net, 0.1)

    @hf.compile
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.sum(net(x) ** 2)
        gradients = tape.gradient(loss, net)
        hf.print(net[1].weight)  # an operation without results
        empty = hf.zeros((0, 5)) @ net[1].weight.mT
        optimizer.update(gradients)
        return loss, empty

    before = net[1].weight.numpy()
    step(hf.ones((2, 4)))
    assert "name='1.weight'" in capsys.readouterr().out
    assert not np.array_equal(net[1].weight.numpy(), before)


@pytest.mark.parametrize(("width", "joined"), [(64, True), (4, False)])
def test_the_gradients_of_a_cells_gates_are_joined_if_they_are_large(width: int, joined: bool):
    cell = hf.nn.LSTM(width, width)

    def slopes(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            loss = hf.sum(cell(x)[0] ** 2)
        return tape.gradient(loss, x)

    x = hf.random.normal((32, 3, width))
    assert hf.compare(slopes, x).same
    text = str(hf.compile(slopes).graph(x))
    assert ("concat(" in text, "slice_scatter(" in text) == (joined, not joined)


def broken(compiled: Any, *args: Any, op: Op = BREAK) -> list[str]:
    """Return the operations that there is a break behind."""
    return [node.inputs[0][0].op.name for node in compiled.graph(*args).nodes if node.op is op]


def test_an_outlined_graph_is_one_function_however_often_it_is_called():
    outer = hf.ir.parse(CALLED_TWICE)
    first = outer.nodes[0]
    second = clone_node(first, ((first, 0), (outer.inputs[1], 0)))
    outputs = ((first, 1), (second, 0), (second, 1))
    twice = Graph("twice", outer.inputs, (first, second), outputs, outer.dims)
    hf.ir.verify(twice)
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((2, 8, 8)).astype(np.float32)
    made = compile_graph(twice, sizes={})
    one = np.tanh(x @ w) + x
    expected = [np.tanh(x @ w), np.tanh(one @ w) + one, np.tanh(one @ w)]
    for result, wanted in zip(made.call(x, w), expected, strict=True):
        np.testing.assert_allclose(np.asarray(result), wanted, rtol=1e-5, atol=1e-5)
    for result, wanted in zip(evaluate(twice, [x, w], run_eagerly), expected, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-5)
    assert made.lower().as_text().count("func.func private @block") == 1
    assert made.compiled.as_text().count(" call(") == 2 * 2  # of the block, and of the break in it


@pytest.mark.parametrize("op", [BREAK, ROW_MAJOR_BREAK, OUTLINED])
def test_nobody_differentiates_them(op: Op):
    assert isinstance(op.vjp, No)
    assert "nobody" in op.vjp.why


def test_breaks_and_python_functions_and_64_bits_in_one_program(capsys: pytest.CaptureFixture[str]):
    @hf.compile
    def shown(x: Any) -> Any:
        hf.print(x)
        return x * 2

    x = hf.asarray(np.ones(2, np.float64))
    traced = shown.graph(x)
    broken = make_node(BREAK, (traced.outputs[0],), {}, (x.spec,))
    outer = Graph("f", traced.inputs, (*traced.nodes, broken), ((broken, 0),), traced.dims)
    capsys.readouterr()
    (result,) = run(outer, np.asarray([0.5, 1.0]))
    assert capsys.readouterr().out.strip() == "Tensor([0.5, 1. ], dtype=float64)"
    assert result.dtype == np.float64
    np.testing.assert_array_equal(result, [1.0, 2.0])


def test_nothing_is_copied_where_functions_return(monkeypatch: pytest.MonkeyPatch):
    """Results have their axes in order in memory, as arguments and outputs do."""

    def copies(graph: Graph) -> int:
        text = compile_graph(graph, sizes={}).compiled.as_text()
        return text[text.index("\nENTRY") :].count("copy")

    graph = hf.ir.parse(RESULTS_IN_ORDERS)
    assert copies(graph) == 0
    x = np.arange(120, dtype=np.float32).reshape(2, 3, 4, 5)
    permuted, again, total = run(graph, x, np.eye(5, dtype=np.float32))
    np.testing.assert_array_equal(permuted, x.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(again, permuted)
    np.testing.assert_array_equal(total, x.sum(-1, keepdims=True))
    monkeypatch.setattr("hybridflow.backend.fusion.row_major", lambda x: x)
    assert copies(hf.ir.parse(RESULTS_IN_ORDERS)) > 0

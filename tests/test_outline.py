"""Repeated parts of a graph as one graph that is called: what is found, what is not, and that values stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import use_limits

import hybridflow as hf
from hybridflow.core.errors import ParityError
from hybridflow.core.node import Node
from hybridflow.ir.builder import trace_body
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph
from hybridflow.passes import PassContext
from hybridflow.passes.outline import outline as whole
from hybridflow.testing.graphs import check_pass

LIMITS = {"nodes": 0, "period": 3, "repeats": 2}
outline = whole.with_limits(**LIMITS)
WIDTH = 3


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    use_limits(monkeypatch, outline=LIMITS)


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op is OUTLINED]


Instruction = tuple[int, int, int]
UNARY: list[Callable[[Any], Any]] = [hf.tanh, hf.negative, hf.square, lambda x: hf.roll(x, 1), hf.nn.relu]
BINARY: list[Callable[[Any, Any], Any]] = [hf.add, hf.multiply, hf.subtract, hf.maximum]


def block(instructions: list[Instruction], state: Any, weight: Any, first: Any) -> Any:
    """Run a straight program on the state, a layer's weight, and a value all layers read."""
    values = [state, weight, first]
    for op, a, b in instructions:
        x, y = values[a % len(values)], values[b % len(values)]
        if op < len(UNARY):
            values.append(UNARY[op](x))
        else:
            values.append(BINARY[(op - len(UNARY)) % len(BINARY)](x, y))
    return hf.tanh(values[-1] + state * 0.5)


def layers(count: int, instructions: list[Instruction], change: Callable[[int, Any], Any] = lambda _, x: x) -> Graph:
    """Trace so many blocks, each followed by a change of its own."""

    def run(x: Any, *weights: Any) -> list[Any]:
        state, seen = x, []
        for index, weight in enumerate(weights):
            state = change(index, block(instructions, state, weight, x))
            seen.append(state)
        return [state, sum(seen[::2], seen[0])]

    specs = [hf.TensorSpec((WIDTH,), np.float32)] * (count + 1)
    return trace_body(run, specs, "f").graph


def values_for(graph: Graph, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in graph.input_specs]


programs = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 20), st.integers(0, 20)), min_size=2, max_size=9)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(programs, st.integers(3, 6))
def test_repeats_are_found_and_compute_the_same_bits(instructions: list[Instruction], count: int):
    graph = layers(count, instructions)
    after = check_pass(outline, graph, values_for(graph), differentiable=False)
    assert len(calls(after)) >= count - 1
    assert len({id(call.attrs["graph"]) for call in calls(after)}) < len(calls(after))


PROGRAM: list[Instruction] = [(0, 0, 0), (5, 1, 3), (6, 4, 2), (8, 5, 3)]


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 5), st.sampled_from(["attribute", "constant", "wiring", "operation"]))
def test_a_repeat_that_differs_in_one_thing_is_not_merged_wrongly(odd: int, kind: str):
    """Another constant may become an argument; another attribute, operation or wiring is another graph."""

    def change(index: int, x: Any) -> Any:
        other = index == odd
        y = hf.sin(x)
        if kind == "attribute":
            return hf.roll(y, 2 if other else 1)
        if kind == "constant":
            return y * (0.25 if other else 0.5)
        if kind == "wiring":
            return hf.subtract(x, y) if other else hf.subtract(y, x)
        return hf.cos(y) if other else hf.exp(y)

    graph = layers(6, PROGRAM, change)
    after = check_pass(outline, graph, values_for(graph), differentiable=False)
    assert calls(after)


def test_swapped_arguments_are_caught(monkeypatch: pytest.MonkeyPatch):
    graph = layers(5, PROGRAM)
    repeats = whole.function.__globals__["_Repeats"]

    def swapped(self: Any, start: int, moved: Any) -> Node:
        self.arguments[start][:2] = self.arguments[start][1::-1]
        return call(self, start, moved)

    call = repeats.call
    monkeypatch.setattr(repeats, "call", swapped)
    with pytest.raises(ParityError, match="output 0 of f differs"):
        check_pass(outline, graph, values_for(graph), differentiable=False)


def test_few_repeats_and_small_graphs_with_few_are_left_alone():
    graph = layers(5, PROGRAM)
    assert calls(outline(graph, PassContext(False)))
    assert whole.with_limits(nodes=0, period=3, repeats=6)(graph, PassContext(False)) is graph
    in_large_graphs = whole.with_limits(nodes=1 << 30, period=3, repeats=2)
    assert in_large_graphs(graph, PassContext(False)) is graph
    assert not calls(in_large_graphs(layers(15, PROGRAM), PassContext(False)))
    assert calls(in_large_graphs(layers(17, PROGRAM), PassContext(False)))  # its first repeat has another wiring


def test_a_repeat_is_as_short_as_may_be():
    """What comes later may repeat itself after a multiple of the layers' nodes, and more often."""

    def run(x: Any, *weights: Any) -> list[Any]:
        state = x
        for weight in weights:
            state = hf.sin(hf.square(hf.tanh(state) * weight))
        for weight in weights * 2:
            state = hf.cos(hf.exp(hf.negative(hf.square(hf.sin(hf.tanh(state * weight)) + x))))
        return [state]

    specs = [hf.TensorSpec((WIDTH,), np.float32)] * 9
    graph = trace_body(run, specs, "f").graph
    after = check_pass(outline, graph, values_for(graph), differentiable=False)
    assert Counter([len(call.attrs["graph"].nodes) for call in calls(after)]) == {4: 8, 8: 16}


def outlined_in(function: Any, *args: Any) -> int:
    return len(calls(function.graph(*args)))


def test_a_training_step_with_variables_is_the_same():
    rng = np.random.default_rng(0)
    starts = [rng.standard_normal((4, 4)).astype(np.float32) for _ in range(6)]
    x = hf.asarray(rng.standard_normal((2, 4)).astype(np.float32))

    def make() -> tuple[Any, list[Any]]:
        weights = [hf.Variable(start) for start in starts]

        def step(x: Any) -> Any:
            with hf.GradientTape() as tape:
                for w in weights:
                    x = x + hf.tanh(x @ w) * hf.nn.sigmoid(x)
                loss = hf.mean(x * x)
            for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
                w.assign_sub(g * 0.1)
            return loss

        return step, weights

    eager, eager_weights = make()
    step, weights = make()  # the same, to be compiled
    compiled: Any = hf.compile(step)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), eager(x).numpy(), rtol=1e-5)
    for a, b in zip(weights, eager_weights, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-4, atol=1e-6)
    assert outlined_in(compiled, x) >= 8
    text = str(compiled.explain())
    assert "repeats of" in text
    assert "from test_outline.py:" in text


def test_every_repeat_draws_its_own_random_numbers():
    def run(x: Any) -> Any:
        for _ in range(6):
            x = hf.tanh(x) + hf.random.normal((WIDTH,)) * 0.5 - hf.sin(x)
        return x

    compiled, x = hf.compile(run), hf.asarray(np.ones(WIDTH, np.float32))
    hf.random.seed(3)
    expected = [run(x).numpy() for _ in range(2)]
    hf.random.seed(3)
    found = [compiled(x).numpy() for _ in range(2)]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(found[0], found[1])
    assert outlined_in(compiled, x) >= 4


def test_prints_come_in_order(capsys: pytest.CaptureFixture[str]):
    @hf.compile
    def run(x: Any) -> Any:
        for index in range(4):
            x = hf.sin(hf.tanh(x) * 2 + x)
            hf.print(index)
        return x

    run(hf.asarray(1.0))
    assert capsys.readouterr().out.split() == ["0", "1", "2", "3"]


def test_sizes_may_be_open():
    @hf.compile(input_signature=[hf.TensorSpec([None])])
    def run(x: Any) -> Any:
        for _ in range(5):
            x = hf.tanh(x) * 2 + hf.sum(x) / x.shape[0]
        return x

    def plain(x: Any) -> Any:
        for _ in range(5):
            x = np.tanh(x) * 2 + x.sum() / x.shape[0]
        return x

    for size in (3, 7):
        x = np.linspace(-1, 1, size, dtype=np.float32)
        np.testing.assert_allclose(run(hf.asarray(x)).numpy(), plain(x), rtol=1e-4, atol=1e-5)
    assert run.trace_count == 1
    assert outlined_in(run, hf.asarray(x)) >= 4


def test_jax_differentiates_a_function_with_outlined_parts():
    import jax

    compiled = hf.compile(lambda x: hf.sum(_deep(x)))
    x = np.linspace(-1, 1, WIDTH, dtype=np.float32)
    gradient = jax.grad(hf.to_jax(compiled))(x)
    step = 1e-3
    for index in range(WIDTH):
        moved = np.eye(WIDTH, dtype=np.float32)[index] * step
        slope = (compiled(hf.asarray(x + moved)).item() - compiled(hf.asarray(x - moved)).item()) / (2 * step)
        np.testing.assert_allclose(gradient[index], slope, rtol=1e-2, atol=1e-3)


def _deep(x: Any) -> Any:
    for _ in range(5):
        x = hf.tanh(x) * 2 + hf.sin(x)
    return x

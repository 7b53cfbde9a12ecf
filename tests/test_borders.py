"""What crosses the border of a part that is called: what is stored anyway, not what is cheaply computed of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import use_limits

import hybridflow as hf
from hybridflow.core.errors import ParityError
from hybridflow.core.node import Edge
from hybridflow.ir.builder import trace_body
from hybridflow.ir.fusion import OUTLINED
from hybridflow.ir.graph import Graph
from hybridflow.passes import Pass
from hybridflow.passes.outline import outline as whole
from hybridflow.testing.graphs import check_pass

LIMITS = {"nodes": 0, "period": 3, "repeats": 2}
outline = whole.with_limits(**LIMITS)
ROWS, WIDTH, LAYERS = 32, 4, 5
Cheap = Callable[[Any, Any], Any]


def specs(layers: int, bias: tuple[int, ...] = (WIDTH,)) -> list[hf.TensorSpec]:
    return [hf.TensorSpec(shape, "float32") for shape in [(ROWS, WIDTH), (WIDTH, WIDTH), *[bias] * layers]]


def there_and_back(cheap: Cheap, back: Cheap, bias: tuple[int, ...] = (WIDTH,)) -> Graph:
    """Trace layers of a product, something cheap of it and a bias, and tanh; then what reads that, last layer first."""

    def run(x: Any, weight: Any, *biases: Any) -> list[Any]:
        seen: list[Any] = []
        for one in biases:
            seen.append(cheap(x @ weight, one))
            x = hf.tanh(seen[-1])
        for value in seen[::-1]:
            x = back(hf.negative(hf.sin(x)), value)
        return [x]

    return trace_body(run, specs(LAYERS, bias), "f").graph


def values_for(graph: Graph) -> list[Any]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(spec.shape).astype(spec.dtype) for spec in graph.input_specs]


def checked(graph: Graph, pass_: Pass = outline) -> Graph:
    return check_pass(pass_, graph, values_for(graph), differentiable=False)


def parts(graph: Graph) -> list[Graph]:
    """Return the graphs that are called, each once, in the order of the calls."""
    calls = [node for node in graph.nodes if node.op is OUTLINED]
    return list({id(call.attrs["graph"]): call.attrs["graph"] for call in calls}.values())


def crossing(graph: Graph) -> list[str]:
    """Return the names of what makes the results of the first part."""
    return [node.op.name for node, _ in parts(graph)[0].outputs]


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_the_reader_adds_the_bias_again():
    """One array per layer is written less; the sum is fused into what reads it, and costs the bias's bytes."""
    graph = checked(there_and_back(hf.add, hf.multiply))
    assert crossing(graph) == ["matmul", "tanh"]
    there, back = parts(graph)
    assert names(there) == ["matmul", "add", "tanh"]
    assert names(back) == ["sin", "negative", "add", "multiply"]
    assert len(back.inputs) == 3  # what it changes, the product, the bias


def test_what_is_in_no_part_computes_it_again_too(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridflow.passes.outline._distances", lambda tokens, limits: [3])
    graph = checked(there_and_back(hf.add, lambda x, y: hf.sum(x) * y + y), outline.with_limits(often=2))
    assert crossing(graph) == ["matmul", "tanh"]
    assert len(parts(graph)) == 1
    assert names(graph)[-6:] == ["sin", "negative", "sum", "add", "multiply", "add"]


def test_where_places_that_look_alike_read_other_things_the_call_takes_a_copy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hybridflow.passes.outline._distances", lambda tokens, limits: [3])

    def run(x: Any, weight: Any, *biases: Any) -> list[Any]:
        seen: list[Any] = []
        for index, one in enumerate(biases):
            seen.append((hf.add if index < LAYERS else hf.multiply)(x @ weight, one))
            x = hf.tanh(seen[-1])
        for value in seen[::-1]:
            x = hf.negative(hf.sin(x)) * value
        return [x]

    graph = checked(trace_body(run, specs(2 * LAYERS), "f").graph)
    added, multiplied, back = parts(graph)
    assert set(names(added)) == {"matmul", "add", "tanh"}
    assert set(names(multiplied)) == {"matmul", "multiply", "tanh"}
    assert names(back) == ["sin", "negative", "multiply"]
    copied = names(graph)[names(graph).index("outlined") :]
    assert copied.count("add") >= LAYERS - 1
    assert copied.count("multiply") >= LAYERS - 1


LEFT: dict[str, tuple[Cheap, Cheap, tuple[int, ...]]] = {
    "a product reads it": (hf.add, lambda x, y: x + hf.sum(hf.permute_dims(y, (1, 0)) @ y), (WIDTH,)),
    "the bias is large": (hf.add, hf.multiply, (ROWS, WIDTH)),
    "it costs much": (lambda x, b: hf.exp(x + b), hf.multiply, (WIDTH,)),
    "it is of two large values": (lambda x, b: (x + b) * hf.roll(x, 1), hf.multiply, (WIDTH,)),
}


@pytest.mark.parametrize("why", LEFT)
def test_others_cross_themselves(why: str):
    cheap, back, bias = LEFT[why]
    found = crossing(checked(there_and_back(cheap, back, bias)))
    assert "matmul" not in found


def test_a_result_crosses_itself():
    def run(x: Any, weight: Any, *biases: Any) -> list[Any]:
        seen: list[Any] = []
        for one in biases:
            seen.append(x @ weight + one)
            x = hf.tanh(seen[-1])
        return seen

    assert "add" in crossing(checked(trace_body(run, specs(LAYERS), "f").graph))


CHEAP: list[Cheap] = [
    hf.add, hf.multiply, hf.subtract, hf.maximum, lambda x, b: hf.negative(x), lambda x, b: hf.square(x),
    lambda x, b: x + 0.5, lambda x, b: hf.nn.relu(x + b), lambda x, b: hf.flip(hf.roll(x, 1), axis=0) * b,
]
BACK: list[Cheap] = [
    hf.multiply, lambda x, y: hf.tanh(x) - hf.flip(y, axis=0), lambda x, y: x * hf.sum(y * y, axis=0),
    lambda x, y: x + y @ hf.permute_dims(y, (1, 0)) @ x, lambda x, y: hf.mean(x) * y - y,
]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(CHEAP), st.sampled_from(BACK), st.sampled_from([(WIDTH,), ()]))
def test_any_such_program_computes_the_same_bits(cheap: Cheap, back: Cheap, bias: tuple[int, ...]):
    assert parts(checked(there_and_back(cheap, back, bias)))


def test_a_value_computed_again_from_something_else_is_caught(monkeypatch: pytest.MonkeyPatch):
    repeats = whole.function.__globals__["_Repeats"]
    copy = repeats._copy

    def swapped(self: Any, edge: Edge, inputs: tuple[Edge, ...]) -> Edge:
        return copy(self, edge, inputs[:1] * len(inputs))

    monkeypatch.setattr(repeats, "_copy", swapped)
    with pytest.raises(ParityError, match="output 0 of f differs"):
        checked(there_and_back(hf.add, hf.multiply, ()))


def test_a_training_step_is_the_same_and_open_sizes_are_asked_nothing(monkeypatch: pytest.MonkeyPatch):
    use_limits(monkeypatch, outline=LIMITS)
    weights = [hf.Variable(np.full((4, 4), 0.1 * i, np.float32)) for i in range(1, 6)]
    biases = [hf.Variable(np.full(4, 0.1 * i, np.float32)) for i in range(1, 6)]

    def loss(x: Any) -> Any:
        for weight, bias in zip(weights, biases, strict=True):
            x = hf.nn.gelu(x @ weight + bias, approximate=True) + x
        return hf.mean(hf.square(x))

    def gradients(x: Any) -> Any:
        with hf.GradientTape() as tape:
            found = loss(x)
        return tape.gradient(found, [*weights, *biases])

    step = hf.compile(gradients, input_signature=[hf.TensorSpec([None, 4])])
    for rows in (64, 65, 3):
        x = np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4)
        report = hf.compare(step, x, repeats=1)
        assert report.same, str(report)
        step(x)
    assert step.trace_count == 1
    assert "matmul" in crossing(step.graph(x))

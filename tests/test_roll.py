"""Repeats in a row as loops: what becomes one, what must not, and that values stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pipelines import use_limits

import hybridflow as hf
from hybridflow.core.node import Node
from hybridflow.ir.builder import trace_body
from hybridflow.ir.graph import Graph, graphs_of
from hybridflow.ir.rolled import ROLLED
from hybridflow.passes.outline import outline
from hybridflow.passes.roll import roll
from hybridflow.testing.graphs import check_pass

WIDTH = 3
Values = Sequence[Any]


OUTLINE = {"nodes": 0, "period": 3, "repeats": 2, "often": 2}
APART = float("inf")


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    use_limits(monkeypatch, outline=OUTLINE, roll={"steps": 3, "apart": APART})


def loops(graph: Graph) -> list[Node]:
    return [node for one in graphs_of(graph) for node in one.nodes if node.op is ROLLED]


def specs_of(values: Values) -> list[hf.TensorSpec]:
    return [hf.TensorSpec(value.shape, value.dtype) for value in values]


def rolled(run: Callable[..., Any], *values: Any, steps: int = 3) -> Graph:
    """Trace a function, outline and roll its graph, and check that no bit changes in either."""

    def listed(*args: Any) -> list[Any]:
        result = run(*args)
        return result if isinstance(result, list) else [result]

    graph = trace_body(listed, specs_of(values), "f").graph
    graph = check_pass(outline.with_limits(**OUTLINE), graph, values, differentiable=False)
    return check_pass(roll.with_limits(steps=steps, apart=APART), graph, values, differentiable=False)


def numbers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) * 2).astype(dtype)


# -- any steps ----------------------------------------------------------------------------------------------------


UNARY: list[Callable[[Any], Any]] = [hf.negative, hf.nn.relu, lambda x: hf.roll(x, 1)]
BINARY: list[Callable[[Any, Any], Any]] = [hf.add, hf.multiply, hf.subtract, hf.maximum]


@dataclass
class Steps:
    """What a random network does.

    Attributes:
        program: the instructions of a step: operation, and which values it reads.
        count: how many steps there are.
        states: for each state, which of a step's last values it is next; 0 for the others is what it was.
        order: how far rows are apart, in which direction.
        axis: the axis of the rows.
        shift: how far windows are apart.
        seen: which results of which steps are read behind the last one.
    """

    program: list[tuple[int, int, int]]
    count: int
    states: list[int]
    order: int
    axis: int
    shift: int
    seen: list[tuple[int, int]]

    def step(self, number: int, states: Values, around: Values) -> list[Any]:
        """Return all values of a step."""
        shared, weight, xs, zs = around
        at = self.order * number if self.order > 0 else -1 + self.order * number
        first = self.shift * number
        values = [*states, shared, xs[at] if self.axis == 0 else xs[:, at], zs[first : first + WIDTH]]
        values.append(hf.multiply(values[0], 0.25 * number))
        for op, a, b in self.program:
            x, y = values[a % len(values)], values[b % len(values)]
            if op == 0:
                values.append(x @ weight)
            else:
                values.append(UNARY[op - 1](x) if op <= len(UNARY) else BINARY[op % len(BINARY)](x, y))
        values.append(hf.tanh(values[-1] + values[0] * 0.5))
        return values

    def run(self, *inputs: Any) -> list[Any]:
        """Run all steps."""
        states, around = [inputs[0] * (1.0 + index) for index in range(len(self.states))], inputs[1:]
        results: list[list[Any]] = []
        for number in range(self.count):
            values = self.step(number, states, around)
            others = zip(states[1:], self.states[1:], strict=True)
            states = [values[-1], *[values[-1 - index % 3] if index else old for old, index in others]]
            results.append(values)
        read = [results[step % self.count][value % len(results[0])] for step, value in self.seen]
        return [*states, sum(read, states[0])]

    def inputs(self) -> list[Any]:
        """Return values for the inputs."""
        length = self.count * abs(self.order)
        rows = (length, WIDTH) if self.axis == 0 else (WIDTH, length)
        shapes = (WIDTH,), (WIDTH,), (WIDTH, WIDTH), rows, (self.shift * self.count + WIDTH,)
        return [numbers(*shape, seed=index) for index, shape in enumerate(shapes)]


number = st.integers(0, 20)
any_steps = st.builds(
    Steps,
    program=st.lists(st.tuples(st.integers(0, 7), number, number), min_size=2, max_size=6),
    count=st.integers(4, 7),
    states=st.lists(number, min_size=1, max_size=3),
    order=st.sampled_from([1, 2, -1, -2]),
    axis=st.integers(0, 1),
    shift=st.integers(0, 2),
    seen=st.lists(st.tuples(number, number), max_size=3),
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(any_steps)
def test_steps_are_rolled_and_compute_the_same_bits(steps: Steps):
    graph = rolled(steps.run, *steps.inputs())

    longest = max(node.attrs["count"] for node in loops(graph))
    assert longest >= steps.count - 1


# -- one thing at a time ------------------------------------------------------------------------------------------


def cell(state: Any, x: Any, weight: Any) -> Any:
    return hf.tanh(state @ weight + x * 0.5)


def recurrent(x: Any, rows: Sequence[Any], weight: Any) -> list[Any]:
    """Return the state behind every step."""
    states: list[Any] = []
    for row in rows:
        x = cell(x, row, weight)
        states.append(x)
    return states


START, ROWS, WEIGHT = numbers(WIDTH), numbers(6, WIDTH, seed=1), numbers(WIDTH, WIDTH, seed=2)


def test_what_is_seen_outside_is_a_row_and_the_last_state_is_none():
    graph = rolled(lambda x, xs, w: recurrent(x, [xs[i] for i in range(6)], w)[-1], START, ROWS, WEIGHT)
    (loop,) = loops(graph)
    assert (loop.attrs["count"], loop.attrs["gives"]) == (6, ())
    graph = rolled(lambda x, xs, w: recurrent(x, [xs[i] for i in range(6)], w)[1::2], START, ROWS, WEIGHT)
    (loop,) = loops(graph)
    assert loop.attrs["gives"] == (0,)
    assert [node.attrs["index"][0] for node in graph.nodes if node.op.name == "getitem"] == [1, 3]
    graph = rolled(lambda x, xs, w: sum(recurrent(x, [xs[i] for i in range(6)], w)), START, ROWS, WEIGHT)
    assert len(loops(graph)) == 1


def test_a_sequence_and_its_reverse_are_two_loops():
    def both(x: Any, xs: Any, w: Any) -> list[Any]:
        rows = [xs[i] for i in range(6)]
        there, back = recurrent(x, rows, w), recurrent(x, rows[::-1], w)[::-1]
        return [hf.concat([a, b]) for a, b in zip(there, back, strict=True)]

    takes = {loop.attrs["takes"][2] for loop in loops(rolled(both, START, ROWS, WEIGHT))}
    assert takes == {(0, 0, 1, 0), (0, 5, -1, 0)}


@pytest.mark.parametrize("order", ["time", "layer"])
def test_layers_take_turns_or_come_one_after_the_other(order: str):
    """In the order of time one loop's states are what the next takes its rows from."""

    def deep(x: Any, xs: Any, *weights: Any) -> list[Any]:
        rows, states = [xs[i] for i in range(6)], [x] * len(weights)
        if order == "layer":
            for weight in weights:
                rows = recurrent(x, rows, weight)
            return rows
        for position, row in enumerate(rows):
            for layer, weight in enumerate(weights):
                row = states[layer] = cell(states[layer], row, weight)
            rows[position] = row
        return rows

    graph = rolled(deep, START, ROWS, WEIGHT, WEIGHT * 0.5)
    assert sorted(loop.attrs["count"] for loop in loops(graph)) == [5, 6]  # one step's row is the last state


@pytest.mark.parametrize("odd", [0, 1, 3, 5])
@pytest.mark.parametrize("kind", ["constant", "operation", "row", "weight"])
def test_a_step_that_differs_is_none_of_the_loop_or_right_in_it(odd: int, kind: str):
    def run(x: Any, xs: Any, w: Any) -> Any:
        for number in range(8):
            other = number == odd
            row = xs[0 if other and kind == "row" else min(number, 5)]
            y = cell(x, row, w * 2.0 if other and kind == "weight" else w)
            y = y * (0.3 if other and kind == "constant" else 0.7)
            x = hf.sin(y) if other and kind == "operation" else hf.cos(y)
        return x

    rolled(run, START, ROWS, WEIGHT)


def test_a_constant_of_each_steps_own_is_a_row():
    times = np.linspace(0.1, 0.9, 6)

    def diffuse(x: Any, w: Any) -> Any:
        for t in times:
            x = hf.tanh(x @ w) * float(t) + x * float(np.sqrt(1 - t * t))
        return x

    graph = rolled(diffuse, START, WEIGHT)
    (loop,) = loops(graph)
    (values,) = [node.attrs["value"].array for node in graph.nodes if node.op.name == "constant"][:1]
    assert loop.attrs["count"] == 6
    np.testing.assert_array_equal(values, times.astype(np.float32))


def test_schedules_may_stay_at_a_value():
    def diffuse(x: Any, w: Any) -> Any:
        for t in (0.5, 0.5, 0.5, 0.25, 0.75, 0.75, 0.1):
            x = hf.tanh(x @ w) * t + x
        return x

    compiled: Any = hf.compile(diffuse)
    args = hf.asarray(START), hf.asarray(WEIGHT)
    np.testing.assert_allclose(compiled(*args).numpy(), diffuse(*args).numpy(), rtol=1e-5, atol=1e-6)
    (loop,) = loops(compiled.graph(*args))
    assert loop.attrs["count"] == 7


def test_layers_whose_weights_are_large_constants_are_calls():
    """A loop would hold them twice, beside each other and stacked."""
    weights = [numbers(40, 40, seed=seed) for seed in range(6)]

    def run(x: Any) -> Any:
        for weight in weights:
            x = cell(x, x, weight)
        return x

    assert not loops(rolled(run, numbers(40)))


def test_a_state_may_be_swapped_or_read_twice():
    def run(x: Any, xs: Any, w: Any) -> list[Any]:
        a, b, c = x, x * 2.0, x
        for number in range(6):
            a, b = cell(b, xs[number], w), hf.sin(a) + c
            c = a
        return [a, b, c]

    (loop,) = loops(rolled(run, START, ROWS, WEIGHT))
    assert loop.attrs["count"] >= 5


@pytest.mark.parametrize("dtype", ["float64", "bfloat16", "int32", "uint8", "complex64", "bool"])
def test_of_every_dtype(dtype: str):
    def run(x: Any, xs: Any) -> list[Any]:
        for number in range(5):
            if dtype == "bool":
                x = hf.logical_not(hf.logical_xor(x, xs[:, number])) | hf.roll(x, 1)
            else:
                x = hf.square(hf.roll(x, 1) - xs[:, number]) * (3 + number)
        return [x]

    values = [(numbers(*shape) * 5 if dtype != "bool" else numbers(*shape) > 0) for shape in ((WIDTH,), (WIDTH, 5))]
    kind = hf.asarray([], dtype=dtype).numpy().dtype
    graph = rolled(run, *[np.abs(value).astype(kind) if dtype == "uint8" else value.astype(kind) for value in values])
    (loop,) = loops(graph)
    assert loop.attrs["count"] == 5


@pytest.mark.parametrize("shape", [(6, 0), (6, 2, 0), (6, 1)])
def test_empty_values(shape: tuple[int, ...]):
    rolled(lambda x, xs: recurrent_sum(x, xs), np.zeros(shape[1:], np.float32), np.ones(shape, np.float32))


def recurrent_sum(x: Any, xs: Any) -> Any:
    for number in range(6):
        x = hf.tanh(x + xs[number]) * 0.5
    return x


def test_empty_parts_of_arrays_are_no_rows():
    def run(x: Any, xs: Any) -> Any:
        for number in range(6):
            x = hf.tanh(x + hf.sum(xs[number:number])) * 0.5
        return x

    rolled(run, np.asarray(1, np.float32), numbers(8))


def test_one_number_of_a_row_is_an_array():
    graph = rolled(lambda x, xs: recurrent_sum(x, xs), np.asarray(1, np.float32), numbers(6))
    (loop,) = loops(graph)
    assert loop.attrs["takes"][1] == (0, 0, 1, 0)


def test_fewer_steps_than_the_limit_are_calls():
    assert not loops(rolled(lambda x, xs: recurrent_sum(x, xs), ROWS[0], ROWS, steps=7))
    assert loops(rolled(lambda x, xs: recurrent_sum(x, xs), ROWS[0], ROWS, steps=6))


def test_layers_with_weights_of_their_own_are_calls():
    def run(x: Any, *weights: Any) -> Any:
        for weight in weights:
            x = cell(x, x, weight)
        return x

    graph = rolled(run, START, *[numbers(WIDTH, WIDTH, seed=seed) for seed in range(6)])
    assert not loops(graph)
    assert any(node.op.name == "outlined" for node in graph.nodes)


@pytest.mark.parametrize("around", ["scan", "cond"])
def test_in_the_body_of_another(around: str):
    def run(x: Any, sequences: Any, w: Any) -> Any:
        def steps(state: Any, xs: Any) -> Any:
            return recurrent(state, [xs[i] for i in range(6)], w)[-1]

        if around == "cond":
            return hf.cond(hf.sum(x) > 0, lambda: steps(x, sequences[0]), lambda: x)
        return hf.scan(lambda state, xs: (steps(state, xs), state), x, sequences)[1]

    assert loops(rolled(run, START, numbers(2, 6, WIDTH), WEIGHT))


def test_what_prints_stays_in_order(capsys: pytest.CaptureFixture[str]):
    """The states go on from before the prints to behind them, but no loop does."""

    def run(x: Any, xs: Any, w: Any) -> Any:
        x = recurrent(x, [xs[i] for i in range(3)], w)[-1]
        hf.print("state", hf.any(x != x))
        hf.print("weight", hf.any(w != w))
        return recurrent(x, [xs[i] for i in range(3, 6)], w)[-1]

    compiled: Any = hf.compile(run)
    compiled(*map(hf.asarray, (START, ROWS, WEIGHT)))
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == ["state", "weight"]
    assert [loop.attrs["count"] for loop in loops(compiled.graph(*map(hf.asarray, (START, ROWS, WEIGHT))))] == [3, 3]


def test_looking_for_rows_asks_nothing_of_open_sizes():
    """A question would be a guard, taken when the trace is already made."""

    @hf.compile(input_signature=[hf.TensorSpec([None, 2]), hf.TensorSpec([6, None])])
    def run(x: Any, rows: Any) -> Any:
        half = hf.reshape(x, (-1,))[: x.shape[0] // 2]
        several = hf.stack([half * float(number) for number in range(6)])
        for number in range(6):
            half = hf.tanh(half * 0.5 + several[number] + hf.sum(rows[number]))
        return half

    def plain(x: Any, rows: Any) -> Any:
        half = x.ravel()[: len(x) // 2]
        several = half * np.arange(6.0)[:, None]
        for number in range(6):
            half = np.tanh(half * 0.5 + several[number] + rows[number].sum())
        return half

    for size in (4, 7):
        values = numbers(size, 2), numbers(6, size + 1)
        found = run(*map(hf.asarray, values))
        np.testing.assert_allclose(found.numpy(), plain(*values), rtol=1e-5, atol=1e-6)
    assert run.trace_count == 1
    graph = run.graph(*map(hf.asarray, values))
    assert loops(graph)
    assert not [guard for guard in graph.dims.guards if guard.compare == "=="]

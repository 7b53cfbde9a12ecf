"""Choices between new and old values made early: what moves, what reads them, that values and failed calls stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.errors import ParityError
from hybridflow.ir.builder import trace_body
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.passes import PassContext
from hybridflow.passes.early_selects import early_selects
from hybridflow.testing.graphs import check_pass

VECTOR, FLAG = hf.TensorSpec((3,), np.float32), hf.TensorSpec((), np.bool_)


def traced(function: Any, *specs: Any) -> Graph:
    return trace_body(lambda *xs: list(function(*xs)), specs, "f").graph


def checked(graph: Graph) -> Graph:
    """Run the pass, with every combination of its flags and special values among the others."""
    rng = np.random.default_rng(0)
    flags = [spec.dtype == np.bool_ for spec in graph.input_specs]
    after = graph
    for number in range(2 ** sum(flags)):
        bits = iter(bin(number + 2 ** sum(flags))[3:])
        values: list[Any] = [np.asarray(next(bits) == "1") if flag else vector(rng) for flag in flags]
        after = check_pass(early_selects, graph, values, differentiable=False)
    assert early_selects(after, PassContext(False)) is after
    return after


def vector(rng: np.random.Generator) -> Any:
    values = rng.standard_normal(3).astype(np.float32)
    return np.where(rng.random(3) < 0.2, rng.choice(np.asarray([-0.0, np.nan, np.inf], np.float32), 3), values)


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


Step = tuple[int, int, int, bool]


PLACES = st.integers(0, 30)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), PLACES, PLACES, st.booleans()), min_size=2, max_size=12),
    st.lists(st.tuples(st.integers(0, 3), PLACES, PLACES), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), max_size=3),
)
def test_any_program_keeps_its_bits(steps: list[Step], choices: list[tuple[int, int, int]], shown: list[int]):
    """Conditions may come of the values, choices may read choices on either side, and values may be results too."""

    def program(first: Any, second: Any, *xs: Any) -> list[Any]:
        values = [*xs]
        conditions = [first, second]
        for op, a, b, asks in steps:
            x, y = values[a % len(values)], values[b % len(values)]
            values.append((hf.add, hf.multiply, hf.subtract, hf.maximum, lambda x, _: hf.tanh(x))[op](x, y))
            if asks:
                conditions.append(hf.all(hf.isfinite(values[-1])))
        conditions.append(hf.logical_and(conditions[0], conditions[-1]))
        written: list[Any] = []
        for condition, new, old in choices:
            of = [*values, *written]
            by = conditions[-1 - condition % len(conditions)]
            written.append(hf.where(by, of[-1 - new % len(of)], of[old % len(of)]))
        return [*written, *[values[one % len(values)] for one in shown]]

    checked(traced(program, FLAG, FLAG, VECTOR, VECTOR, VECTOR))


def test_an_update_goes_on_with_the_moment_that_was_chosen():
    def update(ok: Any, m: Any, w: Any, g: Any) -> list[Any]:
        new = m * 0.5 + g
        step = w - hf.tanh(new)
        return [hf.where(ok, new, m), hf.where(ok, step, w)]

    after = checked(traced(update, FLAG, VECTOR, VECTOR, VECTOR))
    assert [name for name in names(after) if name != "constant"] == [
        "multiply", "add", "where", "tanh", "subtract", "where",
    ]
    assert edges_of(next(node for node in after.nodes if node.op.name == "tanh")) == (after.outputs[0],)


def test_two_conditions_in_each_other():
    """As of a step that is skipped, in a call with checks: the last choice is what is read."""

    def update(ok: Any, finite: Any, m: Any, w: Any, g: Any) -> list[Any]:
        new = m + g
        step = w - hf.tanh(new)
        kept = hf.where(finite, new, m), hf.where(finite, step, w)
        return [hf.where(ok, one, old) for one, old in zip(kept, (m, w), strict=True)]

    after = checked(traced(update, FLAG, FLAG, VECTOR, VECTOR, VECTOR))
    assert names(after) == ["add", "where", "where", "tanh", "subtract", "where", "where"]
    assert edges_of(after.nodes[3]) == (after.outputs[0],)


def test_conditions_of_several_checks_are_there_early():
    def update(ok: Any, other: Any, m: Any, g: Any) -> list[Any]:
        new = m + g
        return [hf.tanh(new * g), hf.where(hf.logical_and(hf.logical_and(ok, hf.all(g > 0)), other), new, m)]

    after = checked(traced(update, FLAG, FLAG, VECTOR, VECTOR))
    assert names(after)[-5:] == ["greater", "all", "logical_and", "logical_and", "where"]

    def late(ok: Any, other: Any, m: Any, g: Any) -> list[Any]:
        enough = hf.all(g > 0)
        new = m + g
        return [hf.tanh(new * g), hf.where(hf.logical_and(hf.logical_and(ok, enough), other), new, m)]

    after = checked(traced(late, FLAG, FLAG, VECTOR, VECTOR))
    assert names(after)[-7:] == ["all", "logical_and", "logical_and", "add", "where", "multiply", "tanh"]


UNCHANGED: dict[str, Any] = {
    "a result": lambda ok, m, w, new: [hf.where(ok, new, m), hf.tanh(new)],
    "a result and chosen": lambda ok, m, w, new: [hf.where(ok, new, m), t := hf.tanh(new), hf.where(ok, t, w)],
    "read by another choice": lambda ok, m, w, new: [hf.where(ok, new, m), hf.where(hf.all(w > 0), hf.tanh(new), w)],
    "what is taken otherwise": lambda ok, m, w, new: [hf.where(ok, new, m), hf.where(ok, w, hf.tanh(new))],
    "a condition": lambda ok, m, w, new: [hf.where(ok, new, m), hf.where(hf.all(hf.tanh(new) > 0), w, m)],
    "chosen by element": lambda ok, m, w, new: [hf.where(c := w > 0, new, m), hf.where(c, hf.roll(new, 1), w)],
    "repeated": lambda ok, m, w, new: [hf.where(ok, t := hf.sum(new), m), hf.where(ok, hf.tanh(t), w)],
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_what_else_counts_reads_the_new_value(name: str):
    graph = traced(lambda ok, m, w, g: UNCHANGED[name](ok, m, w, m + g), FLAG, VECTOR, VECTOR, VECTOR)
    after = checked(graph)
    makers = {node.op.name: [source.op.name for source, _ in edges_of(node)] for node in after.nodes}
    assert all("where" not in makers[op] for op in ("tanh", "roll") if op in makers)


def settle(step: Any, x: Any) -> None:
    step(x)
    hf.synchronize()


@pytest.mark.asserts
def test_python_functions_see_the_new_value():
    m, w = hf.Variable([1.0, 2.0]), hf.Variable([1.0, 2.0])
    seen: list[Any] = []

    def see(x: Any) -> Any:
        seen.append(x.tolist())
        return x

    @hf.compile
    def step(g: Any) -> None:
        assert hf.all(g < 5), "too large"
        new = m.read() + g
        m.assign(new)
        w.assign(hf.pure_callback(see, new.spec, new))

    with pytest.raises(AssertionError, match="too large"):
        settle(step, hf.asarray([1.0, 8.0]))
    assert m.numpy().tolist() == w.numpy().tolist() == [1.0, 2.0]
    assert seen == [[2.0, 10.0]]


def test_conditions_that_are_not_seen_are_caught(monkeypatch: pytest.MonkeyPatch):
    """The faults: a use that is overlooked, and a choice by something else."""

    def update(ok: Any, m: Any, w: Any, g: Any) -> list[Any]:
        new = m + g
        return [hf.tanh(new), hf.where(ok, new, m), hf.where(ok, w * new, w)]

    graph = traced(update, FLAG, VECTOR, VECTOR, VECTOR)
    checked(graph)
    everything = frozenset([(node, 0) for node in graph.inputs])
    monkeypatch.setattr(
        "hybridflow.passes.early_selects._conditions", lambda graph: dict.fromkeys(graph.nodes, everything)
    )
    with pytest.raises(ParityError, match="output 0 of f differs"):
        checked(graph)


# -- steps of Adam ------------------------------------------------------------------------------------------------


def adam(layers: int, width: int, *, check: bool) -> tuple[Any, list[hf.Variable]]:
    """Return a compiled step of Adam and its state."""
    rng = np.random.default_rng(0)
    weights = [hf.Variable(rng.standard_normal((width, width)).astype(np.float32) * 0.1) for _ in range(layers)]
    first, second = ([hf.Variable(np.zeros((width, width), np.float32)) for _ in weights] for _ in range(2))
    count = hf.Variable(np.float32(0.0))

    @hf.compile
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            y = x
            for w in weights:
                y = hf.nn.relu(y @ w)
            loss = hf.mean(hf.square(y - 1.0))
        if check:
            assert hf.isfinite(loss), "not finite"
        n = count.assign_add(1.0).read()
        for w, m, s, g in zip(weights, first, second, tape.gradient(loss, weights), strict=True):
            m.assign(0.9 * m + 0.1 * g)
            s.assign(0.999 * s + 0.001 * g * g)
            w.assign_sub(1e-3 * (m / (1 - 0.9**n)) / (hf.sqrt(s / (1 - 0.999**n)) + 1e-8))
        return loss

    return step, [*weights, *first, *second, count]


@pytest.mark.parametrize("layers", [4, 20])  # in one part, and in parts that are repeated
def test_a_check_costs_a_step_no_temporaries(layers: int):
    x = hf.asarray(np.ones((2, 64), np.float32))
    plain, with_check = (
        adam(layers, 64, check=check)[0].lower(x).executable.compiled.memory_analysis().temp_size_in_bytes
        for check in (False, True)
    )
    assert with_check <= 1.05 * plain


@pytest.mark.parametrize("layers", [4, 20])
def test_a_failed_step_of_adam_changes_nothing(layers: int):
    step, state = adam(layers, 8, check=True)
    other, other_state = adam(layers, 8, check=False)
    x = hf.asarray(np.ones((2, 8), np.float32))
    for _ in range(2):
        step(x)
        other(x)
    before = [one.numpy().tobytes() for one in state]
    with pytest.raises(AssertionError, match="not finite"):
        step(x * float("nan")).item()
    assert [one.numpy().tobytes() for one in state] == before
    np.testing.assert_allclose(step(x).item(), other(x).item(), rtol=1e-6)
    for mine, its in zip(state, other_state, strict=True):
        np.testing.assert_allclose(mine.numpy(), its.numpy(), rtol=1e-5, atol=1e-7)

"""Loops of repeats in compiled functions: values and gradients, other devices, models, figures and pictures."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from pipelines import use_limits

import hybridflow as hf
from hybridflow.core.node import Node
from hybridflow.export.onnx_format import model_of
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, graphs_of
from hybridflow.ir.liveness import liveness
from hybridflow.ir.rolled import ROLLED
from hybridflow.testing.graphs import run_eagerly
from hybridflow.testing.onnx import run_model
from hybridflow.xla.store import stored_programs
from hybridflow.xla.store.fingerprint import fingerprint

WIDTH, BATCH, STEPS = 3, 2, 8


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    outline = {"nodes": 0, "period": 3, "repeats": 2, "often": 2}
    use_limits(monkeypatch, outline=outline, roll={"steps": 3, "apart": float("inf")})


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def loops(graph: Graph) -> list[Node]:
    return [node for one in graphs_of(graph) for node in one.nodes if node.op is ROLLED]


def cell(weights: Sequence[Any], x: Any, h: Any, c: Any) -> tuple[Any, Any]:
    i, f, g, o = hf.split(x @ weights[0] + h @ weights[1] + weights[2], 4, axis=-1)
    c = hf.nn.sigmoid(f) * c + hf.nn.sigmoid(i) * hf.tanh(g)
    return hf.nn.sigmoid(o) * hf.tanh(c), c


def lstm(weights: Sequence[Any], rows: Sequence[Any]) -> list[Any]:
    """Return the states of a layer behind every step."""
    h = c = hf.zeros((BATCH, WIDTH))
    states: list[Any] = []
    for row in rows:
        h, c = cell(weights, row, h, c)
        states.append(h)
    return states


def time_first(x: Any, one: Any, other: Any) -> Any:
    del other
    return hf.mean(hf.square(lstm(one, [x[step] for step in range(STEPS)])[-1]))


def batch_first(x: Any, one: Any, other: Any) -> Any:
    del other
    return sum(map(hf.mean, lstm(one, [x[:, step] for step in range(x.shape[1])])), hf.asarray(0.0))


def two_layers(x: Any, one: Any, other: Any) -> Any:
    return hf.mean(hf.stack(lstm(other, lstm(one, [x[step] for step in range(STEPS)])), axis=1))


def both_directions(x: Any, one: Any, other: Any) -> Any:
    rows = [x[step] for step in range(STEPS)]
    there, back = lstm(one, rows), lstm(other, rows[::-1])[::-1]
    return hf.mean(hf.square(hf.stack([hf.concat([a, b], axis=-1) for a, b in zip(there, back, strict=True)])))


NETWORKS = {time_first: 2, batch_first: 2, two_layers: 4, both_directions: 4}
"""Networks, and how many loops a training step of each has at least."""


def rows_of(network: Callable[..., Any]) -> Any:
    return hf.asarray(numbers(BATCH, STEPS, WIDTH) if network is batch_first else numbers(STEPS, BATCH, WIDTH))


def training(network: Callable[..., Any]) -> tuple[Any, list[hf.Variable]]:
    shapes = [(WIDTH, 4 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,)] * 2
    weights = [hf.Variable(numbers(*shape, seed=seed)) for seed, shape in enumerate(shapes)]

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = network(x, weights[:3], weights[3:])
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            if gradient is not None:
                weight.assign_sub(gradient * 0.1)
        return loss

    return step, weights


@pytest.mark.parametrize("network", NETWORKS)
def test_training_steps_are_what_eager_ones_are(network: Callable[..., Any], monkeypatch: pytest.MonkeyPatch):
    use_limits(monkeypatch, outline={"period": 12})
    x = rows_of(network)
    eager, eager_weights = training(network)
    step, weights = training(network)
    compiled: Any = hf.compile(step)
    for _ in range(2):
        np.testing.assert_allclose(compiled(x).numpy(), eager(x).numpy(), rtol=1e-5)
    for one, other in zip(weights, eager_weights, strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4, atol=1e-6)
    assert len(loops(compiled.graph(x))) >= NETWORKS[network]
    donated = compiled.explain()[0].executables[0].donated
    assert len(donated) == (3 if network in (time_first, batch_first) else 6)


# -- one loop -------------------------------------------------------------------------------------------------------


def recurrent(x: Any, xs: Any, w: Any) -> Any:
    """Return the last state, and one that was not the last."""
    states = [x]
    for step in range(STEPS):
        states.append(hf.tanh(states[-1] @ w + xs[:, step]))
    return states[-1], states[4]


ARGS = numbers(BATCH, WIDTH), numbers(BATCH, STEPS, WIDTH, seed=1), numbers(WIDTH, WIDTH, seed=2)


def compiled_recurrent() -> tuple[Any, list[Any]]:
    fn, args = hf.compile(recurrent), [hf.asarray(value) for value in ARGS]
    (loop,) = loops(fn.graph(*args))
    assert loop.attrs["takes"] == (0, None, (1, 0, 1, 0))
    return fn, args


def oracle(x: Any, xs: Any, w: Any) -> list[Any]:
    states = [x]
    for step in range(STEPS):
        states.append(np.tanh(states[-1] @ w + xs[:, step]))
    return [states[-1], states[4]]


def test_without_a_program_around_it_the_loop_is_straight():
    """As on devices other than the CPU; jax differentiates and vectorises that too."""
    fn, args = compiled_recurrent()
    (loop,) = loops(fn.graph(*args))
    values = [args[position].numpy() for position in (0, 2, 1)]
    lowered = ROLLED.lower(*values, **loop.attrs)
    kernel: Any = ROLLED.kernel
    last, rows = expected = kernel(*values, **loop.attrs)
    for one, other in zip(lowered, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(last, oracle(*ARGS)[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(rows[3], oracle(*ARGS)[1], rtol=1e-5, atol=1e-6)
    assert "while" not in str(jax.make_jaxpr(lambda *xs: ROLLED.lower(*xs, **loop.attrs))(*values))
    assert fn.lower(*args).executable.lower().as_text().count("stablehlo.while") == 1


def test_jax_differentiates_and_vectorises_it():
    fn, args = compiled_recurrent()
    plain = hf.to_jax(fn)
    gradient = jax.grad(lambda w: plain(*ARGS[:2], w)[0].sum())(ARGS[2])
    wanted = hf.grad(lambda w: hf.sum(recurrent(*args[:2], w)[0]))(args[2])
    np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-4, atol=1e-5)
    several = np.stack([ARGS[0], ARGS[0] * 2])
    found = jax.vmap(lambda x: plain(x, *ARGS[1:])[0])(several)
    np.testing.assert_allclose(found[1], oracle(several[1], *ARGS[1:])[0], rtol=1e-5, atol=1e-5)


def test_a_model_of_onnx_has_its_steps():
    fn, args = compiled_recurrent()
    model = model_of(fn.graph(*args))
    onnx.checker.check_model(model)
    for found, wanted in zip(run_model(model, list(ARGS)), oracle(*ARGS), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    assert [node.op_type for node in model.graph.node].count("MatMul") == STEPS


def test_its_text_is_the_same_graph():
    fn, args = compiled_recurrent()
    graph = fn.graph(*args)
    text = hf.ir.print_graph(graph, elide=None)
    again = hf.ir.parse(text)
    assert hf.ir.print_graph(again, elide=None) == text
    for one, other in zip(evaluate(again, ARGS, run_eagerly), evaluate(graph, ARGS, run_eagerly), strict=True):
        np.testing.assert_array_equal(one, other)
    assert fingerprint(again, {}) == fingerprint(graph, {})


@pytest.mark.parametrize(
    ("old", "new"), [("(1, 0, 1, 0)", "(1, 7, -1, 0)"), ("= tanh(", "= sin("), ("(3, (0, 2", "(4, (0, 2")]
)
def test_loops_that_differ_have_other_fingerprints(old: str, new: str):
    """An executable on disk is never that of another loop."""
    fn, args = compiled_recurrent()
    graph = fn.graph(*args)
    text = hf.ir.print_graph(graph, elide=None)
    assert old in text
    other = hf.ir.parse(text.replace(old, new))
    assert fingerprint(other, {}) != fingerprint(graph, {})


def test_it_is_loaded_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 0.0)
    with hf.config.cache(tmp_path / "store"):
        for expected in ("stored", "loaded"):
            fn, args = compiled_recurrent()
            for found, wanted in zip(fn(*args), oracle(*ARGS), strict=True):
                np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-6)
            assert fn.explain()[0].store == [expected]


def test_it_costs_what_its_steps_cost(monkeypatch: pytest.MonkeyPatch):
    fn, args = compiled_recurrent()
    rolled = hf.cost(fn, *args)
    use_limits(monkeypatch, roll={"steps": 100})
    apart = hf.compile(lambda *args: recurrent(*args))
    assert not loops(apart.graph(*args))
    straight = hf.cost(apart, *args)
    assert (rolled.flops, rolled.macs) == (straight.flops, straight.macs)
    assert rolled.flops == STEPS * BATCH * WIDTH * (2 * WIDTH + 2)


def test_what_it_keeps_are_rows_and_the_state():
    fn, args = compiled_recurrent()
    graph = fn.graph(*args)
    live = liveness(graph)
    (loop,) = loops(graph)
    state = BATCH * WIDTH * 4
    inside = liveness(loop.attrs["graph"]).peak
    assert live.at is loop
    assert live.peak == STEPS * state + state + inside


def test_a_profile_counts_its_steps():
    fn = hf.compile(recurrent)
    args = [hf.asarray(numbers(*shape)) for shape in ((64, 128), (64, STEPS, 128), (128, 128))]
    fn(*args)
    with hf.profile() as profile:
        for _ in range(3):
            fn(*args)
    assert [row.calls for row in profile.operations if row.name == "matmul"] == [3 * STEPS]


def test_pictures_show_what_is_inside(tmp_path: Path):
    fn, args = compiled_recurrent()
    graph = fn.graph(*args)
    dot = graph.to_dot()
    (inside,) = re.findall(r'label="rolled";.*?label="repeat";(.*?)\n      }', dot, re.DOTALL)
    assert re.findall(r'label="(matmul|add|tanh)"', inside) == ["matmul", "add", "tanh"]
    graph.to_svg(tmp_path / "a.svg")
    graph.to_html(tmp_path / "a.html")
    graph.to_model_explorer(tmp_path / "a.json")
    for name in ("a.svg", "a.html", "a.json"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "rolled" in text
        assert "tanh" in text

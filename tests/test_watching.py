"""`Module.watch`: figures against NumPy, eager = compiled, no change of results, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, CheckError, TraceError, WatchWarning

BATCHES = [np.random.default_rng(i).normal(size=(16, 4)).astype(np.float32) for i in range(4)]


def made() -> Any:
    nn.init.seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.relu, nn.Sequential(nn.Linear(8, 8), nn.relu), nn.Linear(8, 1))


def by_tape(model: Any, x: Any) -> Any:
    with hf.GradientTape() as tape:
        loss = hf.mean(model(x) ** 2)
    return loss, tape.gradient(loss, model)


def by_grad(model: Any, x: Any) -> Any:
    return hf.value_and_grad(lambda model: hf.mean(model(x) ** 2))(model)


def by_backward(model: Any, x: Any) -> Any:
    for one in model.parameters():
        one.zero_grad()
    loss = hf.mean(model(x) ** 2)
    loss.backward()
    return loss, model


WAYS = [by_tape, by_grad, by_backward]


def trained(way: Any, wrap: Any, watched: bool) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """Train for some steps; return everything that comes out, and the watch."""
    model = made()
    optimizer = hf.optim.SGD(model, rate=0.1)
    seen = model.watch() if watched else None

    def step(x: Any) -> Any:
        loss, gradients = way(model, x)
        if way is by_backward:
            optimizer.step()
        else:
            optimizer.update(gradients)
        return loss

    step = wrap(step)
    losses = [step(hf.asarray(x)).numpy() for x in BATCHES]
    if seen is not None:
        seen.close()
    return [*losses, *[one.numpy() for one in model.parameters()]], seen


@pytest.mark.parametrize("way", WAYS)
def test_eager_and_compiled_figures_are_equal_and_results_do_not_change(way: Any):
    figures = []
    for wrap in (lambda f: f, hf.compile):
        plain, _ = trained(way, wrap, False)
        results, seen = trained(way, wrap, True)
        for a, b in zip(plain, results, strict=True):
            np.testing.assert_array_equal(a, b)
        figures.append({path: seen.history(path) for path in seen.paths})
    eager, compiled = figures
    assert eager.keys() == compiled.keys() == {"", "0", "1", "2", "2.0", "2.1", "3"}
    for path, series in eager.items():
        for name, values in series.items():
            assert values.shape == (len(BATCHES),), (path, name)
            np.testing.assert_allclose(values, compiled[path][name], rtol=1e-5, atol=1e-7, err_msg=f"{path} {name}")


@pytest.mark.parametrize("wrap", [lambda f: f, hf.compile])
def test_the_figures_are_those_of_numpy(wrap: Any):
    model, x = made(), BATCHES[0]
    weights = {path: one.numpy().astype(np.float64) for path, one in model.named_parameters().items()}
    with model.watch("[13]") as seen:
        wrap(lambda x: by_tape(model, x)[0])(hf.asarray(x))
    h = np.maximum(x @ weights["0.weight"].T + weights["0.bias"], 0)
    h2 = np.maximum(h @ weights["2.0.weight"].T + weights["2.0.bias"], 0)
    y = h2 @ weights["3.weight"].T + weights["3.bias"]
    gy = 2 * y / y.size
    gh = ((gy @ weights["3.weight"]) * (h2 > 0)) @ weights["2.0.weight"]
    for path, value, gradient in (("1", h, gh), ("3", y, gy)):
        expected = (value.mean(), value.std(), (value == 0).mean(), np.abs(value).max(), np.sqrt((gradient**2).sum()))
        found = seen.history(path)
        np.testing.assert_allclose([found[name][-1] for name in found], expected, rtol=2e-5)
    assert seen.paths == ("1", "3")


def test_the_last_calls_are_kept_in_order():
    model = nn.Sequential(nn.Linear(1, 1))
    model[0].weight.assign([[1.0]])
    model[0].bias.assign([0.0])
    run = hf.compile(model)
    with model.watch("0", history=3) as seen:
        for value in range(5):
            run(hf.asarray([[float(value)]]))
    assert seen.history("0")["mean"].tolist() == [2.0, 3.0, 4.0]
    assert seen.rows()[0].calls == 5
    run(hf.asarray([[9.0]]))
    assert seen.rows()[0].calls == 5
    assert run.trace_count == 2  # one with the watch, one without


def test_a_failed_call_adds_nothing():
    model = made()

    @hf.compile
    def run(x: Any) -> Any:
        y = model(x)
        hf.debugging.check(hf.all(x < 10), "too large")
        return y

    with model.watch("3") as seen:
        run(hf.asarray(BATCHES[0]))
        with pytest.raises(CheckError):
            run(hf.asarray(BATCHES[0] + 100)).numpy()
        run(hf.asarray(BATCHES[1]))
    assert seen.rows()[0].calls == 2
    assert len(seen.history("3")["mean"]) == 2


def test_traces_without_a_watch_are_kept():
    model = made()
    run = hf.compile(lambda x: model(x))
    run(hf.asarray(BATCHES[0]))
    with model.watch("1"):
        run(hf.asarray(BATCHES[0]))
    run(hf.asarray(BATCHES[0]))
    assert run.trace_count == 2
    assert "what observes modules: none -> Module.watch" in str(run.explain())


def test_dead_exploding_vanishing_and_not_finite():
    model = made()
    model[0].bias.assign(hf.full((8,), -100.0))
    scale = hf.Variable(1.0, name="scale", trainable=False)

    def loss(model: Any) -> Any:
        return scale * hf.sum(model(BATCHES[0]))

    with model.watch() as seen:
        hf.grad(loss)(model)
        remarks = {row.path: row.remark for row in seen.rows()}
        assert remarks["1"] == "dead"
        assert remarks["3"] == ""
        text = str(seen)
        for value, remark in ((1e5, "exploding"), (1e-9, "vanishing"), (float("nan"), "not finite")):
            scale.assign(value)
            hf.grad(loss)(model)
            assert {row.path: row.remark for row in seen.rows()}["3"] == remark
    assert "100.0%" in text
    assert "dead" in text
    assert "not finite" in seen._repr_html_()


def test_recurrent_results_bodies_and_low_precision():
    model = nn.LSTM(3, 5)
    with model.watch() as seen, hf.autocast(hf.bfloat16):
        y, _ = model(hf.ones((2, 4, 3)))
    assert seen.rows()[0].calls == 1
    np.testing.assert_allclose(seen.history("")["mean"][0], y.numpy().astype(np.float32).mean(), rtol=1e-3)
    inner = nn.Linear(3, 3)
    with inner.watch() as seen:
        for wrap in (lambda f: f, hf.compile):
            wrap(lambda x: hf.scan(lambda c, row: (inner(c) + row, c), hf.zeros((3,)), x)[0])(hf.ones((4, 3)))
    figures = seen.history("")["mean"]
    assert len(figures) == 8
    np.testing.assert_allclose(figures[:4], figures[4:], rtol=1e-5)


def test_it_goes_to_tensorboard(tmp_path: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    make_ndarray = pytest.importorskip("tensorboard.util.tensor_util").make_ndarray
    model = made()
    with model.watch("1") as seen, hf.summary.Writer(tmp_path) as writer:
        for number, x in enumerate(BATCHES):
            by_tape(model, hf.asarray(x))
            seen.write(writer, number)
    found = accumulator.EventAccumulator(str(tmp_path)).Reload()
    series = seen.history("1")
    for name in series:
        tag = f"watch/1/{name}"
        values = [make_ndarray(one.tensor_proto).item() for one in found.Tensors(tag)]
        np.testing.assert_allclose(values, series[name], rtol=1e-6)


def test_what_is_wrong_is_said():
    model = made()
    text = r"(?s)no module matches 'blocks\.\*'.*'0', '1', '2', '2.0'.*Paths are dotted"
    with pytest.raises(ArgumentError, match=text):
        model.watch("blocks.*")
    with pytest.raises(ArgumentError, match="history=0"):
        model.watch(history=0)
    with pytest.raises(TraceError, match="inside of a compiled function"):
        hf.compile(lambda x: [model.watch(), x][1])(1.0)
    with model.watch("1") as seen, pytest.raises(ArgumentError, match="'3' is not watched"):
        seen.history("3")
    assert not hf.core.settings.SETTINGS.observers


def test_a_tape_outside_of_the_compiled_call_is_said_once():
    model, x = made(), hf.asarray(BATCHES[0])
    run = hf.compile(lambda x: hf.mean(model(x) ** 2))
    with model.watch("[13]") as seen:
        with pytest.warns(WatchWarning, match=r"a compiled function calls the modules.*\n.*'1', '3'") as told:
            hf.grad(lambda x: run(x))(x)
        assert told[0].filename == __file__
        by_tape(model, x)  # eager calls are seen, and nothing is said twice
        with hf.GradientTape() as tape:
            tape.watch(x)
            loss = run(x)
        tape.gradient(loss, x)
        run(x)  # without a gradient there is nothing to say
    assert [len(seen.history(path)["gradient_norm"]) for path in seen.paths] == [1, 1]
    assert [row.calls for row in seen.rows()] == [4, 4]

"""`hf.train`: fit, evaluate and predict; runs, their logs, and what they leave when they end in other ways."""

from __future__ import annotations

import copy
import gc
import io
import json
import os
import signal
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, GradientError, ShapeError, TraceError
from hybridflow.core.tensor import make_tensor
from hybridflow.train.inputs import rows_of
from hybridflow.train.records import Records
from hybridflow.train.run import Display
from tests.notebooks import run_in_kernel
from tests.processes import run_python


class Net(hf.nn.Module):
    """A small classifier with all that training mode and transactions are about."""

    def __init__(self):
        self.hidden, self.norm, self.drop = hf.nn.Linear(8, bias=False), hf.nn.BatchNorm(8), hf.nn.Dropout(0.1)
        self.out = hf.nn.Linear(3)

    def forward(self, x):
        return self.out(self.drop(hf.relu(self.norm(self.hidden(x)))))


@pytest.fixture(autouse=True)
def _verified() -> Iterator[None]:
    """Every third call of each compiled function is run eagerly too, and compared."""
    with hf.config.verify(every=3):
        yield


def examples(count: int = 22) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((count, 4)).astype(np.float32)
    return x, np.argmax(x[:, :3], axis=1).astype(np.int32)


def made(rate: float = 0.05) -> tuple[Net, hf.optim.Optimizer]:
    hf.random.seed(5)
    model = Net()
    return model, hf.optim.Adam(model, rate=rate)


def fit(model, optimizer, x, y=None, **options):
    options = {"loss": hf.nn.softmax_cross_entropy, "progress": False, "compile": False, "batch_size": 8, **options}
    return hf.train.fit(model, x, y, optimizer=optimizer, **options)


def values_of(model, optimizer) -> dict[str, np.ndarray]:
    return {**model.state_dict(), **optimizer.state_dict(), "random": np.array(hf.random.default_generator().state)}


def assert_equal(first: dict, second: dict) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


# -- fit ----------------------------------------------------------------------------------------------------------


def test_fit_learns_and_says_how_it_went():
    x, y = examples(64)
    model, optimizer = made()
    history = fit(model, optimizer, x, y, epochs=12, metrics=hf.metrics.Accuracy(), validation=(x[:20], y[:20]))
    assert [*history] == ["loss", "accuracy", "val_loss", "val_accuracy"]
    assert all(len(values) == 12 for values in history.values())
    assert history["loss"][-1] < 0.5 * history["loss"][0]
    assert history["val_accuracy"][-1] > 0.8
    assert model.training


def test_fit_is_the_loop_that_one_would_write():
    x, y = examples()
    model, optimizer = made()
    history = fit(model, optimizer, x, y, epochs=2, shuffle=False, metrics={"right": hf.metrics.Accuracy()})
    other, own = made()
    losses, rights = [], []
    for _ in range(2):
        total = right = 0.0
        for batch, labels in hf.data.Batches((x, y), 8):
            with hf.GradientTape() as tape:
                logits = other(batch)
                loss = hf.mean(hf.nn.softmax_cross_entropy(logits, labels))
            own.update(tape.gradient(loss, other))
            total += loss.item() * len(labels)
            right += np.sum(np.argmax(logits.numpy(), 1) == labels.numpy())
        losses.append(total / len(x))
        rights.append(right / len(x))
    np.testing.assert_allclose(history["loss"], losses, rtol=1e-6)
    assert history["right"] == rights
    assert_equal(values_of(model, optimizer), values_of(other, own))


def test_fit_compiled_is_fit_eager():
    x, y = examples()
    found = []
    for compile in (True, False):
        model, optimizer = made()
        history = fit(
            model, optimizer, x, y, epochs=2, compile=compile, metrics=[hf.metrics.Accuracy()], validation=(x, y)
        )
        found.append((history, values_of(model, optimizer)))
    (history, values), (other, others) = found
    assert history["accuracy"] == other["accuracy"]
    np.testing.assert_allclose(history["val_loss"], other["val_loss"], rtol=1e-5)
    for name, value in values.items():
        np.testing.assert_allclose(value, others[name], rtol=2e-3, atol=2e-5, err_msg=name)
    np.testing.assert_array_equal(values["random"], others["random"])


def test_fit_again_traces_nothing_again():
    x, y = examples(16)
    model, optimizer = made()
    loss = hf.nn.softmax_cross_entropy
    for _ in range(2):
        fit(model, optimizer, x, y, loss=loss, compile=True, metrics=[hf.metrics.Accuracy()])
    step = optimizer._fit_step._compiled
    assert step.trace_count == 1
    fit(model, optimizer, x, y, loss=loss, compile=True, metrics=[hf.metrics.TopK(2)])
    assert optimizer._fit_step._compiled is not step


class Weighed(hf.metrics.Metric):
    """A user's metric with settings that change, and with a Variable that is not one of its sums."""

    def __init__(self):
        super().__init__(total=())
        self.settings, self.by, self.seen = {"weight": 2.0}, 1.0, hf.Variable(0.0)

    def update(self, prediction, target):
        self._add("total", hf.ones_like(target) * self.settings["weight"] * self.by)
        self.seen.assign_add(1.0)

    def result(self):
        return self._read("total")

    def variables(self):
        return [*super().variables(), self.seen]


class Costs:
    """A loss that is a method."""

    weight = 1.0

    def of(self, prediction, target):
        return hf.nn.mse(prediction, target) * self.weight


def test_fit_sees_what_changed_in_a_metric_and_in_the_object_of_a_loss():
    x, y = np.ones((4, 2), np.float32), np.ones((4, 1), np.float32)
    model = hf.nn.Linear(2, 1)
    optimizer, metric, costs = hf.optim.SGD(model, rate=0.0), Weighed(), Costs()

    def fitted():
        history = fit(model, optimizer, x, y, loss=costs.of, compile=True, metrics={"m": metric})
        return history["m"][0], history["loss"][0]

    (first, loss), again = fitted(), fitted()
    assert again == (first, loss) == (8.0, loss)
    assert optimizer._fit_step._compiled.trace_count == 1
    metric.settings["weight"] = 5.0
    assert fitted() == (20.0, loss)
    metric.by = 2.0
    assert fitted() == (40.0, loss)
    costs.weight = 3.0
    assert fitted() == (40.0, pytest.approx(3 * loss))
    assert metric.result().item() == metric.seen.item() == 0.0


def test_what_fit_compiled_is_freed_with_the_model():
    x, y = examples(16)
    model, optimizer = made()
    fit(model, optimizer, x, y, compile=True, validation=(x, y))
    copy.deepcopy(model)
    reference = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("rows", [8, 9, 2])
def test_parts_have_the_gradient_of_the_whole_batch(rows: int):
    x, y = examples(rows)
    found = []
    for parts in (1, 3):
        hf.random.seed(2)
        model = hf.nn.Linear(4, 3)
        optimizer = hf.optim.SGD(model, rate=0.1)
        history = fit(model, optimizer, x, y, batch_size=rows, parts=parts, shuffle=False)
        found.append((history["loss"][0], model.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-6)
    for name, value in found[0][1].items():
        np.testing.assert_allclose(value, found[1][1][name], rtol=1e-5, atol=1e-7)


def test_open_sizes_of_several_inputs_are_one_number_of_rows():
    f = hf.compile(lambda given: given["a"] * rows_of(given), dynamic=True)
    for rows in (4, 2, 3):
        assert f({"a": hf.ones(rows), "b": hf.ones((rows, 2))}).numpy().tolist() == [rows] * rows
    with pytest.raises(ShapeError, match="one row per example"):
        f({"a": hf.ones(3), "b": hf.ones((2, 2))})


@pytest.mark.rest
@pytest.mark.parametrize("form", [tuple, lambda pair: dict(zip("ab", pair, strict=True))], ids=["tuple", "dict"])
def test_several_inputs_and_a_smaller_last_batch(form):
    x, y = examples(10)

    class Two(hf.nn.Module):
        def __init__(self):
            self.out = hf.nn.Linear(3)

        def forward(self, given):
            a, b = given.values() if isinstance(given, dict) else given
            return self.out(a * b)

    found = []
    for compiled in (False, True):
        hf.random.seed(2)
        model = Two()
        optimizer = hf.optim.SGD(model, rate=0.1)
        with hf.config.verify(None):
            history = fit(model, optimizer, form((x, x)), y, batch_size=4, epochs=2, compile=compiled)
        found.append(history["loss"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_fit_takes_iterables_of_batches_of_other_packages():
    torch = pytest.importorskip("torch")
    x, y = examples()
    loader = torch.utils.data.DataLoader(list(zip(torch.from_numpy(x), torch.from_numpy(y), strict=True)), batch_size=8)
    found = []
    for data in (loader, hf.data.Batches((x, y), 8), [(x[:8], y[:8]), (x[8:16], y[8:16]), (x[16:], y[16:])]):
        model, optimizer = made()
        fit(model, optimizer, data, epochs=2)
        found.append(model.state_dict())
    assert_equal(found[0], found[1])
    assert_equal(found[0], found[2])


def test_fit_takes_the_loaders_and_datasets_of_grain():
    grain = pytest.importorskip("grain")
    x, y = examples()
    rows = list(zip(x, y, strict=True))
    sampler = grain.samplers.SequentialSampler(len(rows), shard_options=grain.sharding.NoSharding())
    loader = grain.DataLoader(data_source=rows, sampler=sampler, operations=[grain.transforms.Batch(8)])
    states = []
    for data in (hf.data.Batches((x, y), 8), loader, grain.MapDataset.source(rows).batch(8).to_iter_dataset()):
        model, optimizer = made()
        fit(model, optimizer, data, epochs=2)
        states.append(model.state_dict())
    assert_equal(states[0], states[1])
    assert_equal(states[0], states[2])


def test_fit_with_a_loss_scale_and_a_frozen_part():
    x, y = examples()
    model, optimizer = made()
    model(x[:4])
    model.freeze("hidden.*")
    optimizer, scale = hf.optim.Adam(model, rate=0.05), hf.LossScale(1024.0)
    before = model.hidden.weight.numpy()
    first, *_, last = fit(model, optimizer, x, y, epochs=10, loss_scale=scale)["loss"]
    assert last < first
    assert scale.skipped_steps.item() == 0
    np.testing.assert_array_equal(model.hidden.weight.numpy(), before)


def test_callbacks_see_present_weights_and_stop():
    x, y = examples()
    model, optimizer = made(rate=0.0)
    seen = []

    def look(run):
        seen.append((run.epoch, run.last("val_loss"), model.out.weight.numpy().sum()))

    def stop(run):
        if run.stalled("val_loss", patience=2):
            run.stop()

    optimizer.rate = 0.05
    history = fit(model, optimizer, x, y, epochs=2, validation=(x, y), callbacks=[look, stop], compile=True)
    assert [one[0] for one in seen] == [1, 2]
    assert [one[1] for one in seen] == history["val_loss"]
    assert seen[0][2] != seen[1][2]
    assert seen[1][2] == model.out.weight.numpy().sum()
    optimizer.rate = 0.0
    model.norm.eval()
    history = fit(model, optimizer, x, y, epochs=50, validation=(x, y), callbacks=[stop])
    assert len(history["loss"]) == 3


def test_a_callback_that_raises_says_which():
    x, y = examples()
    model, optimizer = made()

    def broken(run):
        raise KeyError("what")

    model.eval()
    with pytest.raises(KeyError) as caught:
        fit(model, optimizer, x, y, callbacks=[broken])
    assert "raised by the callback broken, after epoch 1" in caught.value.__notes__[0]
    assert not model.training


@pytest.mark.parametrize("compile", [False, True])
def test_a_step_that_fails_changes_nothing(compile: bool):
    x, y = examples(8)
    model, optimizer = made()
    fit(model, optimizer, x, y, compile=compile)
    before = values_of(model, optimizer)

    def fails(prediction, target):
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss"):
        fit(model, optimizer, x, y, compile=compile, loss=fails, shuffle=False)
    with pytest.raises(ShapeError, match=r"the loss has shape \(3,\), the batch 8 examples"):
        fit(model, optimizer, x, y, compile=compile, loss=lambda p, y: hf.mean(p, axis=0), shuffle=False)
    with pytest.raises(ShapeError):
        fit(model, optimizer, x[:, :3], y, compile=compile, shuffle=False)
    assert_equal(values_of(model, optimizer), before)


def test_a_gradient_that_is_none_says_why():
    x, y = examples(8)
    model = hf.nn.Sequential(hf.nn.Linear(4, 3))
    model.spare = hf.nn.Linear(4, 3)
    optimizer = hf.optim.Adam(model)
    with pytest.raises(GradientError, match=r"2 of 4 gradients are None\n.*spare.weight: .*no"):
        fit(model, optimizer, x, y)


X, Y = examples(8)


@pytest.mark.parametrize(
    ("arguments", "options", "error", "text"),
    [
        ((X,), {}, ArgumentError, "there are no targets"),
        (({"a": X},), {}, ArgumentError, "there are no targets"),
        ((3,), {}, ArgumentTypeError, "an int cannot be iterated over"),
        (([],), {}, ArgumentError, "yields nothing in epoch 1"),
        ((iter([(X, Y)]),), {"epochs": 2}, ArgumentError, "yields nothing in epoch 2"),
        (([X],), {}, ArgumentError, r"a batch is \(input, target\), or"),
        ((X, Y[:4]), {}, ShapeError, "one row per example"),
        ((hf.data.Batches((X, Y), 4), Y), {}, ArgumentError, "batches have targets of their own"),
        ((X, Y), {"epochs": 0}, ArgumentError, "epochs must be an int, 1 at least"),
        ((X, Y), {"parts": 0}, ArgumentError, "parts must be an int"),
        ((X, Y), {"loss": None}, ArgumentTypeError, "the loss cannot be called"),
        ((X, Y), {"callbacks": [3]}, ArgumentTypeError, "a callback is a function of the run"),
        ((X, Y), {"metrics": [hf.metrics.Accuracy]}, ArgumentTypeError, r"Write Accuracy\(\)"),
        ((X, Y), {"metrics": [hf.metrics.TopK(1), hf.metrics.TopK(2)]}, ArgumentError, "two metrics .* 'top_k'"),
        ((X, Y), {"metrics": {"loss": hf.metrics.MSE()}}, ArgumentError, "a metric is called 'loss'"),
        ((X, Y), {"validation": X}, ArgumentError, "fit: validation: there are no targets"),
        (([(X, Y)],), {"sample_weight": Y}, ArgumentError, "batches have weights of their own"),
        ((X, Y), {"sample_weight": np.ones((8, 2))}, ShapeError, r"fit: weights of shape \(8, 2\) for examples of"),
        ((X, Y), {"sample_weight": np.ones(8), "loss": lambda p, y: hf.mean(hf.nn.softmax_cross_entropy(p, y))},
         ShapeError, "Return a value for each example"),
        (([(X, Y)],), {"class_weight": "balanced"}, ArgumentError, "or \"balanced\" for an array y of classes"),
        ((X, Y), {"class_weight": "equal"}, ArgumentError, "class_weight='equal'"),
        ((X, X), {"class_weight": "balanced", "loss": hf.nn.mse}, ArgumentError, "class_weight='balanced'"),
    ],
)
def test_bad_input_of_fit(arguments, options, error, text: str):
    model, optimizer = made()
    model(X)
    before = model.state_dict()
    with pytest.raises(error, match=text):
        fit(model, optimizer, *arguments, **options)
    if "epoch 2" not in text:
        assert_equal(model.state_dict(), before)
    assert model.training


# -- weights ------------------------------------------------------------------------------------------------------


def weighed(weights, targets=None, compile: bool = True, loss=hf.nn.softmax_cross_entropy, **options):
    """Return the parameters and the history of a model without randomness, and those of a loop with these weights."""
    x, y = examples(22)
    targets = y if targets is None else targets
    results = []
    for loop in (False, True):
        hf.random.seed(3)
        model = hf.nn.Sequential(hf.nn.Linear(4, 8), hf.tanh, hf.nn.Linear(8, 3))
        optimizer = hf.optim.SGD(model, rate=0.1, momentum=0.9)
        if not loop:
            history = fit(model, optimizer, x, targets, epochs=2, shuffle=False, compile=compile, loss=loss, **options)
        else:
            history = {"loss": []}
            for _ in range(2):
                total = 0.0
                for rows in (slice(i, i + 8) for i in range(0, 22, 8)):
                    with hf.GradientTape() as tape:
                        value = hf.mean(loss(model(x[rows]), targets[rows]) * hf.asarray(weights[rows]))
                    optimizer.update(tape.gradient(value, model))
                    total += value.item() * len(x[rows])
                history["loss"].append(total / 22)
        results.append((model.state_dict(), history))
    return results


_, LABELS = examples(22)
DENSE = np.random.default_rng(2).dirichlet(np.ones(3), 22).astype(np.float32)
RANDOM = np.random.default_rng(4).choice([0.0, 0.5, 1.0, 3.0], 22).astype(np.float32)
BY_CLASS = np.float32([2.0, 0.25, 1.0])
COUNTS = np.bincount(LABELS)
WEIGHTS = {
    "examples": (RANDOM, {"sample_weight": RANDOM}),
    "examples in float64": (RANDOM, {"sample_weight": RANDOM.astype(float)}),
    "examples in a list": (RANDOM, {"sample_weight": RANDOM.tolist()}),
    "nothing counts": (RANDOM * 0, {"sample_weight": RANDOM * 0}),
    "a mapping of classes": (BY_CLASS[LABELS], {"class_weight": {1: 0.25, 0: 2.0}}),
    "each class": (BY_CLASS[LABELS], {"class_weight": BY_CLASS}),
    "both": (BY_CLASS[LABELS] * RANDOM, {"class_weight": [*BY_CLASS], "sample_weight": RANDOM}),
    "balanced": ((22 / (3 * COUNTS[LABELS])).astype(np.float32), {"class_weight": "balanced"}),
    "dense targets": (BY_CLASS[DENSE.argmax(-1)], {"class_weight": BY_CLASS, "targets": DENSE}),
    "in parts": (BY_CLASS[LABELS] * RANDOM, {"class_weight": BY_CLASS, "sample_weight": RANDOM, "parts": 3}),
    "each output": (np.float32([[1, 0, 2]]) * RANDOM[:, None], {
        "sample_weight": np.float32([[1, 0, 2]]) * RANDOM[:, None], "targets": DENSE, "loss": hf.nn.mse,
    }),
}


@pytest.mark.parametrize("compile", [True, False])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_factors_of_the_losses(kind: str, compile: bool):
    weights, options = WEIGHTS[kind]
    (found, history), (expected, losses) = weighed(weights, compile=compile, **options)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(history["loss"], losses["loss"], rtol=1e-4)


@pytest.mark.parametrize("compile", [True, False])
def test_metrics_and_validation_are_weighted(compile: bool):
    (found, history), _ = weighed(
        RANDOM, sample_weight=RANDOM, compile=compile, validation=(examples()[0], LABELS, RANDOM),
        metrics={"accuracy": hf.metrics.Accuracy(), "surprise": hf.nn.softmax_cross_entropy},
    )
    model = hf.nn.Sequential(hf.nn.Linear(4, 8), hf.tanh, hf.nn.Linear(8, 3))
    model.load_state_dict(found)
    logits = model(examples()[0])
    right = np.average(logits.numpy().argmax(-1) == LABELS, weights=RANDOM)
    losses = hf.nn.softmax_cross_entropy(logits, LABELS).numpy()
    assert history["val_accuracy"][-1] == pytest.approx(right)
    assert history["val_surprise"][-1] == pytest.approx(np.average(losses, weights=RANDOM), rel=1e-5)
    assert history["val_loss"][-1] == pytest.approx((losses * RANDOM).mean(), rel=1e-5)
    assert history["surprise"][-1] == pytest.approx(history["loss"][-1] / RANDOM.mean(), rel=1e-5)
    measured = hf.train.evaluate(model, examples()[0], LABELS, metrics=hf.metrics.Accuracy(), sample_weight=RANDOM,
                                 batch_size=5, compile=compile)
    assert measured == pytest.approx(right)
    for kind in ("a mapping of classes", "each class", "balanced"):
        for own, given in ((1.0, {}), (RANDOM, {"sample_weight": RANDOM})):
            measured = hf.train.evaluate(
                model, examples()[0], LABELS, metrics=hf.metrics.Accuracy(), batch_size=5, compile=compile,
                **WEIGHTS[kind][1], **given,
            )
            right_by_class = np.average(logits.numpy().argmax(-1) == LABELS, weights=WEIGHTS[kind][0] * own)
            assert measured == pytest.approx(right_by_class)
    batches = hf.data.Batches((examples()[0], LABELS, RANDOM), 7)
    assert hf.train.evaluate(model, batches, metrics=hf.metrics.Accuracy(), compile=compile) == pytest.approx(right)


def test_an_optimizer_that_is_none():
    with pytest.raises(ArgumentTypeError, match="the optimizer has no update"):
        fit(made()[0], hf.optim.Adam, X, Y)


# -- evaluate and predict -----------------------------------------------------------------------------------------


def test_evaluate_and_predict_are_exact_over_uneven_batches():
    x, y = examples(23)
    model, _ = made()
    model(x)
    whole = copy.deepcopy(model).eval()(x).numpy()
    for compile in (True, False):
        out = hf.train.predict(model, x, batch_size=8, compile=compile)
        np.testing.assert_allclose(out.numpy(), whole, rtol=1e-5, atol=1e-6)
        found = hf.train.evaluate(model, x, y, metrics=hf.metrics.Accuracy(), batch_size=8, compile=compile)
        assert found == np.mean(np.argmax(whole, 1) == y)
    assert model.training


def test_evaluate_leaves_each_module_in_its_mode_and_no_gradients():
    x, y = examples()
    model, _ = made()
    model(x)
    model.norm.eval()
    named = {"own": lambda p, y: hf.max(p, axis=-1), "confusion": hf.metrics.ConfusionMatrix(3)}
    found = hf.train.evaluate(model, x, y, metrics=named)
    assert (model.training, model.norm.training, model.drop.training) == (True, False, True)
    assert isinstance(found["own"], float)
    assert found["confusion"].sum() == 22
    assert hf.train.predict(model, x, compile=False).grad_fn is None


def test_predict_keeps_structures():
    out = hf.train.predict(lambda p: {"sum": p["a"] + p["b"], "pair": (p["a"], p["b"])}, {"a": X, "b": X}, batch_size=3)
    np.testing.assert_array_equal(out["sum"].numpy(), X + X)
    np.testing.assert_array_equal(out["pair"][1].numpy(), X)
    assert hf.train.predict(lambda x: x, [X[:5], X[5:]]).shape == X.shape


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: hf.train.evaluate(hf.relu, X, Y, metrics=()), ArgumentError, "there are no metrics"),
        (lambda: hf.train.evaluate(hf.relu, X, Y, metrics=["auc"]), ArgumentTypeError, r"Write hf\.metrics\.AUC\(\)"),
        (lambda: hf.train.evaluate(hf.relu, [], metrics=hf.metrics.MSE()), ArgumentError, "yields nothing"),
        (lambda: hf.train.evaluate(3, X, Y, metrics=hf.metrics.MSE()), ArgumentTypeError, "an int is no model"),
        (lambda: hf.train.predict(hf.sum, X), ShapeError, "one row for each of the 8 examples"),
        (lambda: hf.train.predict(hf.relu, iter([])), ArgumentError, "yields nothing"),
    ],
)
def test_bad_input_of_evaluate_and_predict(call, error, text: str):
    with pytest.raises(error, match=text):
        call()


def test_many_models_are_evaluated_without_a_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(12):
            model = hf.nn.Linear(4, 3)
            for rows in (8, 7):
                hf.train.evaluate(model, X[:rows], Y[:rows], metrics=hf.metrics.Accuracy())


# -- runs ---------------------------------------------------------------------------------------------------------


def records(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def test_a_run_logs_one_line_a_step(tmp_path: Path):
    with hf.train.Run(tmp_path, data=[1.0, 2.0], progress=False) as run:
        for value in run.steps(5):
            run.log(value=hf.asarray(value), other=3)
            if run.every(2):
                run.log({"val/loss": value * 2}, step_again=run.step)
        assert (run.step, run.epoch) == (5, 2)
    found = records(tmp_path)
    assert [one["step"] for one in found] == [1, 2, 3, 4, 5]
    assert [one["epoch"] for one in found] == [1, 1, 2, 2, 3]
    assert found[1] | {"seconds": 0} == {
        "step": 2, "epoch": 1, "seconds": 0, "value": 2.0, "other": 3, "val/loss": 4.0, "step_again": 2
    }


def test_a_variable_that_is_logged_is_read_then():
    v = hf.Variable(0.0)
    run = hf.train.Run(data=range(3), progress=False)
    for _ in run.steps(3):
        v.assign_add(1.0)
        run.log(v=v)
    assert (run.last("v"), run.best("v", larger=False)) == (3.0, 1.0)


def test_stalled_goes_by_the_name():
    run = hf.train.Run(data=range(9), progress=False)
    found = []
    for loss in run.steps(9):
        run.log(val_loss=[5, 4, 3, 4, 5, 2, 3, 4, float("nan")][loss])
        found.append(run.stalled("val_loss", patience=2))
    assert found == [False, False, False, False, True, False, False, True, True]
    assert run.stalled("val_loss", patience=9, larger=True) is False
    for name, text in (("x", "nothing was logged as 'x'"), ("speed", "not known whether 'speed' is better")):
        with pytest.raises(ArgumentError, match=text):
            run.stalled(name, patience=1, larger=True if name == "x" else None)


def test_bad_input_of_runs(tmp_path: Path):
    run = hf.train.Run(data=[], progress=False)
    with pytest.raises(ArgumentError, match="the data yields nothing in epoch 1"):
        list(run.steps(1))
    with pytest.raises(ArgumentError, match="the run has no data"):
        list(hf.train.Run(progress=False).steps(1))
    with pytest.raises(ArgumentError, match="the run has no directory"):
        run.checkpoint()
    with pytest.raises(ShapeError, match="'x' must be one number"):
        run.log(x=hf.ones(3))
    with pytest.raises(TraceError, match="a compiled function would log when it is traced only"):
        hf.compile(lambda x: run.log(x=x))(1.0)
    with pytest.raises(ArgumentError, match="tensorboard=True takes a directory"):
        hf.train.Run(tensorboard=True)
    run = hf.train.Run(tmp_path, data=[1], progress=False)
    list(run.steps(1))
    with pytest.raises(ArgumentError, match="has a checkpoint of step 1, and resume=False"):
        hf.train.Run(tmp_path, data=[1], resume=False)
    with pytest.raises(ArgumentError, match="the data is of another kind than that of the checkpoint"):
        hf.train.Run(tmp_path, data=hf.data.Batches(X, 2))


def test_a_run_goes_on_where_its_loop_was_left():
    seen = []
    run = hf.train.Run(data=hf.data.Batches(np.arange(6), 1, shuffle=True, seed=0), progress=False)
    for x in run.steps(4):
        seen.append(x.item())
        if run.step == 2:
            break
    seen += [x.item() for x in run.steps(4)]
    seen += [x.item() for x in run.steps(9)]
    data = hf.data.Batches(np.arange(6), 1, shuffle=True, seed=0)
    assert seen == [x.item() for _ in range(2) for x in data][:9]
    assert (run.step, run.epoch) == (9, 1)


@pytest.mark.always
def test_a_loop_that_was_left_ends_before_its_program_does():
    printed = run_python(
        """
        import sys
        import hybridflow as hf
        sys.stderr = sys.stdout
        run = hf.train.Run(data=[1, 2, 3])
        steps = run.steps(9)
        sys.kept = steps  # longer than the modules
        next(steps)
        """
    )
    assert [line.split()[:2] for line in printed.splitlines()] == [["step", "1/9"]]


def test_data_without_a_state_is_passed_over(tmp_path: Path):
    for steps, expected in ((4, [0, 1, 2, 0]), (8, [1, 2, 0, 1])):
        run = hf.train.Run(tmp_path, data=hf.data.prefetch([0, 1, 2], 2), progress=False)
        assert list(run.steps(steps)) == expected


def test_a_run_that_was_stopped_stays_so(tmp_path: Path):
    for expected in ([1, 2], []):
        run = hf.train.Run(tmp_path, data=[1, 2, 3], progress=False)
        seen = []
        for item in run.steps(10):
            seen.append(item)
            if item == 2:
                run.stop()
        assert seen == expected


def test_checkpoints_that_are_kept(tmp_path: Path):
    run = hf.train.Run(tmp_path, data=range(6), variables={"w": hf.Variable(1.0)}, progress=False)
    for item in run.steps(6):
        run.log(accuracy=[3, 9, 1, 2, 3, 4][item])
        run.checkpoint(keep=2, best="accuracy").wait()
    assert [one.name for one in sorted(tmp_path.glob("step-*"))] == [f"step-{n:09}.safetensors" for n in (2, 5, 6)]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("ends", ["in memory", "in a directory", "resumed"])
def test_the_weights_of_the_best_epoch(ends: str, compiled: bool, tmp_path: Path):
    w = hf.Variable(0.0, name="w")
    model, seen = (lambda x: w * x), []

    def run(epochs: int):
        directory = None if ends == "in memory" else tmp_path
        return hf.train.fit(model, [(hf.ones(1), hf.asarray([2.0]))], loss=hf.nn.mse, compile=compiled, epochs=epochs,
                            optimizer=hf.optim.SGD([w], rate=0.9), validation=[(hf.ones(1), hf.asarray([3.0]))],
                            callbacks=[lambda run: seen.append(float(w))], directory=directory, restore_best=True,
                            progress=False)

    if ends == "resumed":
        run(3)
        w.assign(0.0)
    errors = run(6)["val_loss"]
    best = seen[int(np.argmin(errors))]
    assert best == float(w) != seen[-1]
    if ends != "in memory":
        other = hf.Variable(0.0)
        path = hf.train.Run(tmp_path, data=[1], optimizer=hf.optim.SGD([w], rate=0.9), metrics=[hf.metrics.Mean()],
                            variables={"w": w}, progress=False).best_checkpoint
        hf.load(path, into={"w": other})
        assert float(other) == best


def test_a_figure_that_there_is_not_cannot_be_the_best():
    model, optimizer = made()
    with pytest.raises(ArgumentError, match="no figure 'val_loss'\n  got: loss"):
        fit(model, optimizer, *examples(), restore_best="val_loss")


def test_another_model_is_an_error_and_changes_nothing(tmp_path: Path):
    model = hf.nn.Linear(3, 2)
    list(hf.train.Run(tmp_path, data=[1], model=model, progress=False).steps(1))
    other = hf.nn.Linear(3, 4)
    before = other.state_dict()
    with pytest.raises(ArgumentError, match=r"model\.weight"):
        hf.train.Run(tmp_path, data=[1], model=other)
    assert_equal(other.state_dict(), before)


def test_fit_resumes(tmp_path: Path):
    x, y = examples()
    found = []
    for directory, epochs in ((tmp_path / "a", (4,)), (tmp_path / "b", (1, 3, 4))):
        for count in epochs:
            model, optimizer = made()
            history = fit(
                model, optimizer, x, y, epochs=count, directory=directory, metrics=[hf.metrics.Accuracy()],
                validation=(x, y),
            )
        found.append((history, values_of(model, optimizer)))
    assert found[0][0] == found[1][0]
    assert_equal(found[0][1], found[1][1])
    assert len(records(tmp_path / "b")) == 4


def test_tensorboard_gets_what_is_logged(tmp_path: Path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    with hf.train.Run(tmp_path, data=range(3), progress=False, tensorboard=True) as run:
        for item in run.steps(3):
            run.log(loss=item / 2)
    (path,) = tmp_path.glob("events*")
    events = [one for one in reader.LegacyEventFileLoader(str(path)).Load() if one.HasField("summary")]
    assert [(one.step, one.summary.value[0].tag, one.summary.value[0].simple_value) for one in events] == [
        (1, "loss", 0.0), (2, "loss", 0.5), (3, "loss", 1.0)
    ]


def test_progress_is_a_bar_in_a_terminal_and_lines_elsewhere():
    for terminal in (True, False):
        text = io.StringIO()
        display = Display(True, Console(file=text, force_terminal=terminal, width=120, legacy_windows=False))
        display.begin(2, 10)
        display.figures({"loss": 0.5})
        display.refresh(4, 1, 64)
        display.end(1)
        shown = text.getvalue()
        for part in ("4/10", "epoch 1", "loss 0.5", "examples/s", "left"):
            assert part in shown
        assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") == int(terminal)  # the cursor is hidden, and back


_INTERRUPTED = """
import os, signal, sys
import hybridflow as hf
signal.signal(signal.SIGINT, signal.default_int_handler)
v = hf.Variable(0.0)
run = hf.train.Run(sys.argv[1], data=range(4), variables={"v": v})
for item in run.steps(1000):
    v.assign_add(1.0)
    if run.step == 3 and len(sys.argv) > 2:
        os.kill(os.getpid(), signal.SIGINT)
        v.assign_add(1.0)
        if sys.argv[2] == "twice":
            os.kill(os.getpid(), signal.SIGINT)
            print("not reached")
    if run.step == 5:
        run.stop()
print(v.item(), run.step)
"""


def test_ctrl_c_finishes_the_step_and_leaves_a_checkpoint(tmp_path: Path):
    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-W", "error", "-c", _INTERRUPTED, str(tmp_path), *arguments], capture_output=True,
            text=True, timeout=100, check=False,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        )

    done = call("twice")
    assert done.returncode == -signal.SIGINT
    assert "not reached" not in done.stdout
    assert not list(tmp_path.glob("step-*"))
    done = call("once")
    assert done.returncode == -signal.SIGINT
    assert "Ctrl-C: stopping after this step" in done.stderr
    done = call()
    assert done.stdout.split() == ["6.0", "5"], done.stderr
    assert "Resumed at step 3" in done.stderr


def test_the_users_way_to_take_ctrl_c_stays():
    def own(number, frame):
        raise AssertionError

    before = signal.getsignal(signal.SIGINT)  # a shell's job in the background ignores it
    try:
        for usual, stays in ((own, True), (signal.default_int_handler, False)):
            signal.signal(signal.SIGINT, usual)
            for _ in hf.train.Run(data=[1, 2], progress=False).steps(2):
                assert (signal.getsignal(signal.SIGINT) is usual) == stays
            assert signal.getsignal(signal.SIGINT) is usual
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_not_computed_yet_is_not_waited_for():
    class Pending:
        shape, dtype = (), np.dtype("float32")

        def is_ready(self) -> bool:
            return False

    reported: list[dict] = []
    log, value = Records(None, False, reported.append), make_tensor(Pending())
    log.add(1, 0, 0.0, {"loss": value, "rate": 0.5})
    log.flush(wait=False)
    assert not reported
    value._value = np.asarray(2.0, np.float32)
    log.flush(wait=False, before=1)  # step 1 may log more
    assert not reported
    log.flush(wait=False)
    assert reported == [{"loss": 2.0, "rate": 0.5}]


def test_a_notebook_without_ipywidgets_shows_one_bar_with_the_last_step():
    made = """
import sys
sys.modules['ipywidgets'] = None  # so that its import fails
import numpy as np
import hybridflow as hf
from hybridflow import nn

x, y, net = np.ones((64, 4), np.float32), np.zeros(64, np.int64), nn.Linear(4, 3)
def fit(data, *targets):
    settings = {"loss": nn.softmax_cross_entropy, "optimizer": hf.optim.SGD(net, 0.1), "epochs": 3, "batch_size": 8}
    return hf.train.fit(net, data, *targets, **settings)
"""
    sources = ["_ = fit(x, y)", "_ = fit([(x[:8], y[:8])] * 5)"]
    _, rows, batches = run_in_kernel(made, *sources)
    for outputs, last in ((rows, "24/24 epoch 3  loss "), (batches, "15/15 epoch 3  loss ")):
        (shown,) = outputs
        assert shown.output_type == "display_data"
        assert shown.data["text/plain"].startswith(last)
        assert "<progress value=" in shown.data["text/html"]

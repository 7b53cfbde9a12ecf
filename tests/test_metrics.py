"""`hf.metrics`: over unequal batches, eager and compiled, against scikit-learn on everything at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ShapeError

RNG = np.random.default_rng(5)
LOGITS = RNG.normal(size=(23, 4)).astype(np.float32)
LABELS = RNG.integers(0, 4, 23)
SCORES = (RNG.integers(0, 64, 23) / 64).astype(np.float32)
BINARY = RNG.integers(0, 2, 23)
FOUND = LOGITS.argmax(-1)
BIG = RNG.normal(size=23) + 1e6


def sk(name: str, *args: Any, **named: Any) -> Any:
    """Return scikit-learn's figure."""
    return getattr(pytest.importorskip("sklearn.metrics"), name)(*args, **named)


def surprise() -> Any:
    shifted = LOGITS.astype(np.float64)
    return np.exp(np.mean(np.log(np.exp(shifted).sum(-1)) - shifted[np.arange(23), LABELS]))


CASES = {
    "accuracy": (lambda: hf.metrics.Accuracy(), LOGITS, LABELS, lambda: (FOUND == LABELS).mean()),
    "binary": (lambda: hf.metrics.Accuracy(), SCORES, BINARY, lambda: ((SCORES > 0.5) == BINARY).mean()),
    "top": (lambda: hf.metrics.TopK(2), LOGITS, LABELS, lambda: sk("top_k_accuracy_score", LABELS, LOGITS, k=2)),
    "matrix": (lambda: hf.metrics.ConfusionMatrix(4), LOGITS, LABELS, lambda: sk("confusion_matrix", LABELS, FOUND)),
    "precision": (lambda: hf.metrics.Precision(), SCORES, BINARY, lambda: sk("precision_score", BINARY, SCORES > 0.5)),
    "recall": (lambda: hf.metrics.Recall(), SCORES, BINARY, lambda: sk("recall_score", BINARY, SCORES > 0.5)),
    "f1": (lambda: hf.metrics.F1(), SCORES, BINARY, lambda: sk("f1_score", BINARY, SCORES > 0.5)),
    "macro": (lambda: hf.metrics.F1(4), LOGITS, LABELS, lambda: sk("f1_score", LABELS, FOUND, average="macro")),
    "auc": (lambda: hf.metrics.AUC(), SCORES, BINARY, lambda: sk("roc_auc_score", BINARY, SCORES)),
    "mse": (lambda: hf.metrics.MSE(), BIG, BIG * 1.000001, lambda: sk("mean_squared_error", BIG * 1.000001, BIG)),
    "mae": (lambda: hf.metrics.MAE(), SCORES, BINARY, lambda: np.abs(SCORES - BINARY).mean(dtype=float)),
    "r2": (lambda: hf.metrics.R2(), BIG + SCORES, BIG, lambda: sk("r2_score", BIG, BIG + SCORES)),
    "r2 of several": (
        lambda: hf.metrics.R2(4), LOGITS * 1.1, LOGITS, lambda: sk("r2_score", LOGITS, LOGITS * 1.1),
    ),
    "perplexity": (lambda: hf.metrics.Perplexity(), LOGITS, LABELS, surprise),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", sorted(CASES))
def test_unequal_batches_count_as_one(name: str, compiled: bool):
    make, predictions, targets, expected = CASES[name]
    metric = make()
    update = hf.compile(metric.update) if compiled else metric.update
    for _ in range(2):
        for first, last in ((0, 10), (10, 20), (20, 23)):
            update(hf.asarray(predictions[first:last]), hf.asarray(targets[first:last]))
        np.testing.assert_allclose(metric.result().numpy(), expected(), rtol=1e-6)
        metric.reset()


WEIGHTS = np.where(RNG.random(23) < 0.2, 0.0, RNG.random(23) + 0.1)
SPARSE = np.where(LABELS == 1, 2, LABELS)
MISSED = np.where(FOUND == 1, 0, FOUND)


def averaged(name: str, average: str | None) -> Any:
    """Return scikit-learn's score of four classes of which class 1 does not occur; a value per class has it."""
    classes = range(4) if average is None else None
    return lambda w: sk(name, SPARSE, MISSED, average=average, labels=classes, zero_division=0, sample_weight=w)


WEIGHTED = {
    "mean": (lambda: hf.metrics.Mean(), SCORES, BINARY, lambda w: np.average(SCORES, weights=w)),
    "accuracy": (
        lambda: hf.metrics.Accuracy(), LOGITS, LABELS, lambda w: sk("accuracy_score", LABELS, FOUND, sample_weight=w),
    ),
    "threshold": (
        lambda: hf.metrics.Accuracy(threshold=0.3), SCORES, BINARY,
        lambda w: sk("accuracy_score", BINARY, SCORES > 0.3, sample_weight=w),
    ),
    "precision from 0.3": (
        lambda: hf.metrics.Precision(threshold=0.3), SCORES, BINARY,
        lambda w: sk("precision_score", BINARY, SCORES > 0.3, sample_weight=w),
    ),
    "top": (
        lambda: hf.metrics.TopK(2), LOGITS, LABELS,
        lambda w: sk("top_k_accuracy_score", LABELS, LOGITS, k=2, sample_weight=w),
    ),
    "matrix": (
        lambda: hf.metrics.ConfusionMatrix(4), LOGITS, LABELS,
        lambda w: sk("confusion_matrix", LABELS, FOUND, sample_weight=w),
    ),
    "auc": (lambda: hf.metrics.AUC(), SCORES, BINARY, lambda w: sk("roc_auc_score", BINARY, SCORES, sample_weight=w)),
    "mse": (
        lambda: hf.metrics.MSE(), SCORES, BINARY, lambda w: sk("mean_squared_error", BINARY, SCORES, sample_weight=w),
    ),
    "mse of several": (
        lambda: hf.metrics.MSE(), LOGITS * 1.1, LOGITS,
        lambda w: sk("mean_squared_error", LOGITS, LOGITS * 1.1, sample_weight=w),
    ),
    "mae": (
        lambda: hf.metrics.MAE(), SCORES, BINARY, lambda w: sk("mean_absolute_error", BINARY, SCORES, sample_weight=w),
    ),
    "r2": (lambda: hf.metrics.R2(), BIG + SCORES, BIG, lambda w: sk("r2_score", BIG, BIG + SCORES, sample_weight=w)),
    "r2 of several": (
        lambda: hf.metrics.R2(4), LOGITS * 1.1, LOGITS, lambda w: sk("r2_score", LOGITS, LOGITS * 1.1, sample_weight=w),
    ),
    "perplexity": (
        lambda: hf.metrics.Perplexity(), LOGITS, LABELS,
        lambda w: np.exp(sk("log_loss", LABELS, np.asarray(hf.nn.softmax(LOGITS.astype(float))), sample_weight=w)),
    ),
} | {
    f"{kind} {average}": (
        lambda kind=kind, average=average: getattr(hf.metrics, kind)(4, average=average), MISSED, SPARSE,
        averaged(f"{kind.lower()}_score", average),
    )
    for kind in ("Precision", "Recall", "F1") for average in ("macro", "micro", "weighted", None)
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("weights", [None, WEIGHTS, np.arange(23) % 3 / 100])
@pytest.mark.parametrize("name", WEIGHTED)
def test_weighted_examples_and_averages_are_scikit_learns(name: str, weights: Any, compiled: bool):
    make, predictions, targets, expected = WEIGHTED[name]
    metric = make()
    update = hf.compile(metric.update) if compiled else metric.update
    for rows in (slice(0, 10), slice(10, 20), slice(20, 23)):
        given = [] if weights is None else [hf.asarray(weights[rows])]
        update(hf.asarray(predictions[rows]), hf.asarray(targets[rows]), *given)
    np.testing.assert_allclose(metric.result().numpy(), expected(weights), rtol=1e-6, atol=1e-12)


def test_weights_that_fit_no_examples_and_averages_that_are_none_are_refused():
    for given in (1.0, np.ones(22), np.ones((1, 23)), np.ones((23, 3)), np.ones((23, 4, 1))):
        with pytest.raises(ShapeError, match=r"MSE\.update: weights of shape .* for examples of shape \(23, 4\)"):
            hf.metrics.MSE().update(LOGITS, LOGITS, given)
    each = hf.metrics.MSE()
    each.update(LOGITS, LOGITS + 1, np.ones((23, 4)))
    assert each.result().item() == pytest.approx(1.0)
    for average, classes in (("samples", 3), ("binary", 3)):
        with pytest.raises(ArgumentError, match=f"F1: average='{average}' of 3 classes"):
            hf.metrics.F1(classes, average=average)
    assert repr(hf.metrics.F1(3, average="micro")) == "F1(classes=3, average='micro')"


def test_nothing_yet_is_zero_and_wrong_shapes_are_refused():
    mean = hf.metrics.Mean()
    assert mean.result().item() == 0.0
    mean.update([2.0], sample_weight=[-1.0])
    assert mean.result().item() == 0.0
    with pytest.raises(ShapeError, match=r"MSE\.update: predictions of shape \(3,\) for targets of shape \(3, 1\)"):
        hf.metrics.MSE().update(np.zeros(3), np.zeros((3, 1)))
    with pytest.raises(ShapeError, match=r"R2\.update: 4 values on the last axis of the targets, not 1"):
        hf.metrics.R2().update(LOGITS, LOGITS)
    with pytest.raises(ShapeError, match=r"Accuracy\.update"):
        hf.metrics.Accuracy().update(np.zeros((3, 2)), np.zeros(4, int))
    with pytest.raises(ShapeError, match=r"TopK\.update"):
        hf.metrics.TopK().update(np.zeros(3), np.zeros(3, int))
    for kind, number in (("TopK", 0), ("AUC", 1), ("R2", 0), ("ConfusionMatrix", 1)):
        with pytest.raises(ArgumentError, match="at least"):
            getattr(hf.metrics, kind)(number)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_area_needs_both_labels_and_scores_from_0_to_1(compiled: bool):
    auc = hf.metrics.AUC()
    update = hf.compile(auc.update) if compiled else auc.update
    assert np.isnan(auc.result().item())
    update(hf.asarray([0.25, 0.5]), hf.asarray([1, 1]))
    assert np.isnan(auc.result().item())
    for wrong in (1.5, -0.25, np.nan):
        with pytest.raises(ArgumentError, match=r"AUC\.update: a score is not in 0 to 1"):
            print(update(hf.asarray([0.25, wrong]), hf.asarray([0, 1])), hf.synchronize())  # its check may come late
    update(hf.asarray([0.25, 0.75]), hf.asarray([0, 0]))
    assert auc.result().item() == 0.375


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("kind", "shape"), [
    ("Accuracy", (3,)), ("Accuracy", (3, 2)), ("Precision", (3,)), ("Recall", (3, 2)), ("F1", (3,)), ("TopK", (3, 2)),
])
def test_a_prediction_that_is_nan_is_an_error(kind: str, shape: tuple[int, ...], compiled: bool):
    metric = getattr(hf.metrics, kind)()
    update = hf.compile(metric.update) if compiled else metric.update
    labels = hf.asarray([0, 1, 1])
    update(hf.zeros(shape), labels)
    before = metric.result().item()
    with pytest.raises(ArgumentError, match=rf"{kind}\.update: a prediction is NaN"):
        print(update(hf.full(shape, np.nan), labels), hf.synchronize())  # its check may come late
    assert metric.result().item() == before

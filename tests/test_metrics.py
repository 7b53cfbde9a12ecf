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
}  # fmt: skip


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


def test_nothing_yet_is_zero_and_wrong_shapes_are_refused():
    assert hf.metrics.Mean().result().item() == 0.0
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

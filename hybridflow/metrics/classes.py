"""Metrics of classification."""

from __future__ import annotations

from typing import Any

from hybridflow.core.dtypes import float64, int32, kind_of
from hybridflow.core.errors import ArgumentError, ShapeError, message
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ir.builder import require
from hybridflow.metrics.means import Mean
from hybridflow.metrics.metric import Metric, ratio
from hybridflow.ops.choice import clip, where
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import equal, logical_and
from hybridflow.ops.creation import eye
from hybridflow.ops.elementwise import floor
from hybridflow.ops.matmul import matmul
from hybridflow.ops.nn.labels import one_hot
from hybridflow.ops.reductions import all as all_true
from hybridflow.ops.reductions import any as any_true
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.sorting import top_k
from hybridflow.ops.statistics import argmax, cumulative_sum


def labels_of(name: str, prediction: Any, target: Any, threshold: float) -> tuple[Tensor, Tensor]:
    """Return predicted and right labels.

    Predictions with one more axis than the targets are logits. Floats of the targets' shape are probabilities of the
    label 1, which is predicted above the threshold.

    Raises:
        ShapeError: predictions and targets whose shapes do not fit.
        ArgumentError: a prediction is NaN.
    """
    predicted, right = as_tensor(prediction), as_tensor(target)
    _require_numbers(name, predicted)
    if predicted.ndim == right.ndim + 1:
        predicted = argmax(predicted, axis=-1)
    elif kind_of(predicted.dtype) == "float" and predicted.shape == right.shape:
        predicted = predicted > threshold
    if predicted.shape != right.shape:
        raise ShapeError(f"{name}.update: predictions of shape {as_tensor(prediction).shape} for labels of shape "
                         f"{right.shape}", hint="Give logits (..., classes), or labels of the targets' shape.")
    return cast_to(predicted, int32), cast_to(right, int32)


def _require_numbers(name: str, prediction: Tensor) -> None:
    if kind_of(prediction.dtype) == "float":
        text = message(f"{name}.update: a prediction is NaN, so no class is predicted", got=str(prediction.spec))
        require(all_true(equal(prediction, prediction)), ArgumentError, text)


class Accuracy(Mean):
    """The fraction of the examples whose label is right.

    Predictions are logits ``(..., classes)``; or labels, or probabilities of the label 1, of the targets' shape.

    Args:
        threshold: the probability above which the label 1 is predicted.

    Example:
        >>> import hybridflow as hf
        >>> accuracy = hf.metrics.Accuracy()
        >>> accuracy.update(hf.asarray([[2.0, 1.0], [0.0, 3.0]]), hf.asarray([0, 0]))
        >>> accuracy.result().item()
        0.5
        >>> accuracy.update(hf.asarray([[0.0, 1.0]]), hf.asarray([1]), sample_weight=[2.0])
        >>> accuracy.result().item()
        0.75
    """

    def __init__(self, *, threshold: float = 0.5) -> None:
        super().__init__()
        self._threshold = threshold

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch."""
        self._take(equal(*labels_of("Accuracy", prediction, target, self._threshold)), sample_weight)


class TopK(Mean):
    """The fraction of the examples whose label is among the `k` largest logits."""

    def __init__(self, k: int = 5) -> None:
        if k < 1:
            raise ArgumentError("TopK: k must be 1 at least", got=f"k={k!r}")
        super().__init__()
        self._k = k

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch of logits ``(..., classes)`` and labels."""
        logits, labels = as_tensor(prediction), as_tensor(target)
        if logits.ndim != labels.ndim + 1 or logits.shape[:-1] != labels.shape:
            raise ShapeError(f"TopK.update: logits of shape {logits.shape} for labels of shape {labels.shape}",
                             hint="Give logits (..., classes) and labels (...).")
        _require_numbers("TopK", logits)
        _, classes = top_k(logits, min(self._k, logits.shape[-1]))
        wanted = cast_to(labels, int32).reshape((*labels.shape, 1))
        self._take(any_true(equal(cast_to(classes, int32), wanted), axis=-1), sample_weight)


class ConfusionMatrix(Metric):
    """The number of examples for each right label (row) and predicted label (column), or the sum of their weights.

    Args:
        classes: the number of classes.
        threshold: the probability above which the label 1 is predicted, if predictions are probabilities.
    """

    def __init__(self, classes: int, *, threshold: float = 0.5) -> None:
        if classes < 2:
            raise ArgumentError(f"{type(self).__name__}: classes must be 2 at least", got=f"{classes!r}")
        super().__init__(matrix=(classes, classes))
        self._classes, self._threshold = classes, threshold

    def update(self, prediction: Any, target: Any, sample_weight: Any = None) -> None:
        """Add a batch."""
        predicted, right = labels_of(type(self).__name__, prediction, target, self._threshold)
        weights = self._weights(sample_weight, right)
        rows, columns = (one_hot(one.reshape((-1,)), self._classes, dtype=float64) for one in (right, predicted))
        if weights is not None:
            rows = rows * weights.reshape((-1, 1))
        self._add("matrix", matmul(rows.T, columns))

    def result(self) -> Tensor:
        """Return the matrix, float64."""
        return self._read("matrix")


_AVERAGES = ("auto", "binary", "macro", "micro", "weighted", None)


class _OfClasses(ConfusionMatrix):
    """A metric that is computed per class, and averaged as scikit-learn's and torchmetrics' are.

    Args:
        classes: the number of classes.
        average: ``"binary"``, the value for the label 1 of two; ``"macro"``, the mean over the classes that occur among
            the labels or the predictions; ``"weighted"``, the mean over the examples, each with its class's value;
            ``"micro"``, the value of all classes' counts together; None for a value per class, 0 for classes that do
            not occur; ``"auto"``, ``"binary"`` for two classes and ``"macro"`` for more.
        threshold: the probability above which the label 1 is predicted, if predictions are probabilities.
    """

    def __init__(self, classes: int = 2, *, average: str | None = "auto", threshold: float = 0.5) -> None:
        super().__init__(classes, threshold=threshold)
        if average not in _AVERAGES or (average == "binary" and classes != 2):
            raise ArgumentError(f"{type(self).__name__}: average={average!r} of {classes} classes",
                                hint=f"It is one of {', '.join(map(repr, _AVERAGES))}, and 'binary' is of two classes.")
        self._average = average

    def _score(self, predicted: float, there: float) -> Tensor:
        """Return right predictions by a weighted sum of all predictions of a class and all examples of it."""
        matrix = self._read("matrix")
        right = sum_of(matrix * eye(self._classes, dtype=float64), axis=0)
        columns, rows = sum_of(matrix, axis=0), sum_of(matrix, axis=1)
        counted = predicted * columns + there * rows
        if self._average == "micro":
            return ratio(sum_of(right), sum_of(counted))
        figures = ratio(right, counted)
        if self._average is None:
            return figures
        if self._average == "weighted":
            return ratio(sum_of(figures * rows), sum_of(rows))
        if self._average == "macro" or self._classes > 2:
            return ratio(sum_of(figures), sum_of(cast_to(columns + rows > 0, float64)))
        return figures[1]


class Precision(_OfClasses):
    """Of the examples predicted as a class, the fraction that belongs to it."""

    def result(self) -> Tensor:
        """Return the precision."""
        return self._score(1.0, 0.0)


class Recall(_OfClasses):
    """Of the examples of a class, the fraction that was predicted as it.

    Example:
        >>> import hybridflow as hf
        >>> recall = hf.metrics.Recall(3, average="weighted")
        >>> recall.update(hf.asarray([0, 2, 2, 2]), hf.asarray([0, 1, 2, 2]))
        >>> recall.result().item()
        0.75
    """

    def result(self) -> Tensor:
        """Return the recall."""
        return self._score(0.0, 1.0)


class F1(_OfClasses):
    """The harmonic mean of precision and recall."""

    def result(self) -> Tensor:
        """Return the score."""
        return self._score(0.5, 0.5)


class AUC(Metric):
    """The area under the ROC curve, for scores from 0 to 1 and labels 0 and 1.

    The curve shows the rate of true positives against that of false positives. Scores are counted in bins of equal
    width; scores in one bin count as equal.

    Args:
        bins: the number of bins.
    """

    def __init__(self, bins: int = 4096) -> None:
        if bins < 2:
            raise ArgumentError("AUC: bins must be 2 at least", got=f"bins={bins!r}")
        super().__init__(positive=(bins,), negative=(bins,))
        self._bins = bins

    def update(self, prediction: Any, target: Any, sample_weight: Any = None) -> None:
        """Add a batch of scores and labels.

        Raises:
            ShapeError: scores and labels of different shapes.
            ArgumentError: a score outside 0 to 1, or NaN.
        """
        scores, labels = self._alike(prediction, target)
        inside = all_true(logical_and(scores >= 0, scores <= 1))  # NaN is not
        text = message("AUC.update: a score is not in 0 to 1", got=str(scores.spec), hint="Use hf.sigmoid of logits.")
        require(inside, ArgumentError, text)
        weights = self._weights(sample_weight, scores)
        bin_index = cast_to(clip(floor(scores.reshape((-1,)) * float(self._bins)), 0, self._bins - 1), int32)
        for name, label in (("positive", 1), ("negative", 0)):
            counted = cast_to(equal(cast_to(labels.reshape((-1,)), int32), label), float64)
            if weights is not None:
                counted = counted * weights.reshape((-1,))
            self._sums[name].assign(self._read(name).at[bin_index].add(counted))

    def result(self) -> Tensor:
        """Return the area; NaN if one of the labels has not occurred yet."""
        positive, negative = self._read("positive"), self._read("negative")
        below = cumulative_sum(negative) - negative * 0.5
        pairs = sum_of(positive) * sum_of(negative)
        return where(pairs > 0, ratio(sum_of(positive * below), pairs), float("nan"))



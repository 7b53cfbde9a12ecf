"""Metrics that are means over examples: of errors, of their squares, and of any values; and R2."""

from __future__ import annotations

from typing import Any

from hybridflow.core.dtypes import float64
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.metrics.metric import Metric, ratio
from hybridflow.ops.choice import where
from hybridflow.ops.common import cast_to
from hybridflow.ops.division import square
from hybridflow.ops.elementwise import abs as absolute
from hybridflow.ops.nn.losses import softmax_cross_entropy
from hybridflow.ops.reductions import mean as mean_of
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.transcendental import exp


class Mean(Metric):
    """The mean of all given values; with weights, the sum of the weighted values by that of the weights.

    Example:
        >>> import hybridflow as hf
        >>> mean = hf.metrics.Mean()
        >>> mean.update([1.0, 2.0])
        >>> mean.update([6.0])
        >>> mean.result().item()
        3.0
    """

    def __init__(self) -> None:
        super().__init__(total=(), count=())

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add values; the target is ignored."""
        del target
        self._take(as_tensor(prediction), sample_weight)

    def _take(self, values: Tensor, sample_weight: Any) -> None:
        weights = self._weights(sample_weight, values)
        self._add("total", values if weights is None else cast_to(values, float64) * weights)
        self._add("count", float(values.size) if weights is None else weights)

    def result(self) -> Tensor:
        """Return the mean; 0 if there were no values."""
        return ratio(self._read("total"), self._read("count"))


class MSE(Mean):
    """The mean of the squares of the errors."""

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch."""
        a, b = self._alike(prediction, target)
        self._take(square(cast_to(a, float64) - cast_to(b, float64)), sample_weight)


class MAE(Mean):
    """The mean of the absolute values of the errors."""

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch."""
        a, b = self._alike(prediction, target)
        self._take(absolute(cast_to(a, float64) - cast_to(b, float64)), sample_weight)


class Perplexity(Mean):
    """e to the mean cross-entropy of logits and integer labels."""

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch of logits ``(..., classes)`` and labels."""
        self._take(softmax_cross_entropy(prediction, target), sample_weight)

    def result(self) -> Tensor:
        """Return the perplexity."""
        return exp(super().result())


class R2(Metric):
    """The fraction of the targets' variance that the predictions explain; 0 if the targets do not vary.

    The first target is subtracted from all targets before they are summed, so a large mean costs no precision.

    Args:
        outputs: how many values an example has, on the last axis: the result is the mean of their fractions.

    Example:
        >>> import hybridflow as hf
        >>> r2 = hf.metrics.R2(outputs=2)
        >>> r2.update(hf.asarray([[0.0, 5.0], [4.0, 6.0]]), hf.asarray([[1.0, 5.0], [3.0, 6.0]]))
        >>> r2.result().item()
        0.5
    """

    def __init__(self, outputs: int = 1) -> None:
        if outputs < 1:
            raise ArgumentError("R2: outputs must be 1 at least", got=f"outputs={outputs!r}")
        super().__init__(**dict.fromkeys(("errors", "offset", "total", "squares"), (outputs,)), count=())
        self._outputs = outputs

    def update(self, prediction: Any, target: Any, sample_weight: Any = None) -> None:
        """Add a batch.

        Raises:
            ShapeError: predictions and targets of different shapes, or not `outputs` values on the last axis.
        """
        a, b = self._alike(prediction, target)
        last = b.shape[-1] if b.ndim > 1 else 1
        if last != self._outputs:
            raise ShapeError(f"R2.update: {last} values on the last axis of the targets, not {self._outputs}",
                             got=str(b.spec), hint=f"Use hf.metrics.R2(outputs={last}), or reshape to one axis.")
        weights = self._weights(sample_weight, b[..., 0] if b.ndim > 1 else b)
        a, b = cast_to(a, float64).reshape((-1, last)), cast_to(b, float64).reshape((-1, last))
        if b.size == 0:
            return
        self._sums["offset"].assign(where(self._read("count") > 0, self._read("offset"), b[0]))
        about = b - self._read("offset")
        for name, terms in (("errors", square(a - b)), ("total", about), ("squares", square(about))):
            self._add(name, sum_of(terms if weights is None else terms * weights.reshape((-1, 1)), axis=0))
        self._add("count", float(b.shape[0]) if weights is None else weights)

    def result(self) -> Tensor:
        """Return the coefficient of determination."""
        total = self._read("total")
        spread = self._read("squares") - total * ratio(total, self._read("count"))
        return mean_of(where(spread > 0, 1.0 - ratio(self._read("errors"), spread), 0.0))

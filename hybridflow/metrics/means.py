"""Metrics that are means over examples: of errors, of their squares, and of any values; and R2."""

from __future__ import annotations

from typing import Any

from hybridflow.core.dtypes import float64
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.metrics.metric import Metric, ratio
from hybridflow.ops.choice import where
from hybridflow.ops.common import cast_to
from hybridflow.ops.division import square
from hybridflow.ops.elementwise import abs as absolute
from hybridflow.ops.nn.losses import softmax_cross_entropy
from hybridflow.ops.transcendental import exp


class Mean(Metric):
    """The mean of all elements of the given values.

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

    def update(self, prediction: Any, target: Any = None) -> None:
        """Add values; the target is ignored."""
        del target
        self._take(as_tensor(prediction))

    def _take(self, values: Tensor) -> None:
        self._add("total", values)
        self._add("count", float(values.size))

    def result(self) -> Tensor:
        """Return the mean; 0 if there were no values."""
        return ratio(self._read("total"), self._read("count"))


class MSE(Mean):
    """The mean of the squares of the errors."""

    def update(self, prediction: Any, target: Any = None) -> None:
        """Add a batch."""
        a, b = self._alike(prediction, target)
        self._take(square(cast_to(a, float64) - cast_to(b, float64)))


class MAE(Mean):
    """The mean of the absolute values of the errors."""

    def update(self, prediction: Any, target: Any = None) -> None:
        """Add a batch."""
        a, b = self._alike(prediction, target)
        self._take(absolute(cast_to(a, float64) - cast_to(b, float64)))


class Perplexity(Mean):
    """e to the mean cross-entropy of logits and integer labels."""

    def update(self, prediction: Any, target: Any = None) -> None:
        """Add a batch of logits ``(..., classes)`` and labels."""
        self._take(softmax_cross_entropy(prediction, target))

    def result(self) -> Tensor:
        """Return the perplexity."""
        return exp(super().result())


class R2(Metric):
    """The fraction of the targets' variance that the predictions explain; 0 if the targets do not vary.

    The first target is subtracted from all targets before they are summed, so a large mean costs no precision.
    """

    def __init__(self) -> None:
        super().__init__(errors=(), offset=(), total=(), squares=(), count=())

    def update(self, prediction: Any, target: Any) -> None:
        """Add a batch."""
        a, b = self._alike(prediction, target)
        a, b = cast_to(a, float64).reshape((-1,)), cast_to(b, float64).reshape((-1,))
        if b.size == 0:
            return
        self._sums["offset"].assign(where(self._read("count") > 0, self._read("offset"), b[0]))
        about = b - self._read("offset")
        self._add("errors", square(a - b))
        self._add("total", about)
        self._add("squares", square(about))
        self._add("count", float(b.size))

    def result(self) -> Tensor:
        """Return the coefficient of determination."""
        total = self._read("total")
        spread = self._read("squares") - total * ratio(total, self._read("count"))
        return where(spread > 0, 1.0 - ratio(self._read("errors"), spread), 0.0)

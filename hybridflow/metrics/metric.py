"""`Metric`: sums over examples in Variables, and a result that is computed from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.context import made_once
from hybridflow.core.dtypes import float64
from hybridflow.core.errors import ShapeError
from hybridflow.core.reprs import settings_of
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.ops.choice import where
from hybridflow.ops.common import cast_to
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.shape import broadcast_to


class Metric:
    """The base class of metrics: named sums over all examples, so batches may have different sizes.

    The sums are float64, which is exact for counts up to 2**53.
    """

    def __init__(self, **shapes: tuple[int, ...]) -> None:
        with made_once():
            self._sums = {
                name: Variable(np.zeros(shape), name=f"{type(self).__name__}.{name}", trainable=False)
                for name, shape in shapes.items()
            }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(settings_of(self))})"

    def update(self, prediction: Any, target: Any, sample_weight: Any = None) -> None:
        """Add a batch.

        Args:
            prediction: the model's output.
            target: the right values.
            sample_weight: how much each example counts, with the examples' axes or the first of them; 1 if not given.

        Raises:
            ShapeError: weights of other axes.
        """
        raise NotImplementedError

    def result(self) -> Tensor:
        """Return the metric over all batches since the last `reset`."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all batches."""
        for variable in self._sums.values():
            variable.assign(np.zeros(variable.shape))

    def variables(self) -> list[Variable]:
        """Return the Variables of the sums."""
        return [*self._sums.values()]

    def named_variables(self) -> dict[str, Variable]:
        """Return the Variables of the sums by name."""
        return {**self._sums}

    def _add(self, name: str, values: Any) -> None:
        """Add values to a sum of their shape, or all of their elements to a scalar sum."""
        variable = self._sums[name]
        wide = cast_to(as_tensor(values), float64)
        variable.assign_add(wide if variable.shape else sum_of(wide))

    def _weights(self, sample_weight: Any, values: Tensor) -> Any:
        """Return the weights of values as float64, of the values' shape; None if there are none."""
        if sample_weight is None:
            return None
        return broadcast_to(cast_to(weights_for(f"{type(self).__name__}.update", sample_weight, values), float64),
                            values.shape)

    def _read(self, name: str) -> Any:
        return self._sums[name].read()

    def _alike(self, prediction: Any, target: Any) -> tuple[Tensor, Tensor]:
        """Return predictions and targets as tensors, checked to have the same shape.

        Raises:
            ShapeError: their shapes differ.
        """
        first, second = as_tensor(prediction), as_tensor(target)
        if first.shape != second.shape:
            raise ShapeError(f"{type(self).__name__}.update: predictions of shape {first.shape} for targets of shape "
                             f"{second.shape}", hint="Reshape one of them; nothing is broadcast.")
        return first, second


def weights_for(what: str, sample_weight: Any, values: Tensor) -> Tensor:
    """Return the weights of examples with an axis for each one of the examples' values.

    Args:
        what: the caller, for messages.
        sample_weight: the weights.
        values: the values of the examples, the examples first.

    Raises:
        ShapeError: the weights do not have the first axes of the values.
    """
    weights = as_tensor(sample_weight)
    if not weights.shape or weights.shape != values.shape[: weights.ndim]:
        each = "Give a weight for each example, or for each of its values."
        raise ShapeError(f"{what}: weights of shape {weights.shape} for examples of shape {values.shape}",
                         hint=each if values.shape else "Return a value for each example.")
    return weights.reshape((*weights.shape, *[1] * (values.ndim - weights.ndim)))


def ratio(above: Any, below: Any) -> Tensor:
    """Return a quotient; 0 where the divisor is not positive."""
    some = below > 0
    return where(some, above / where(some, below, 1.0), 0.0)

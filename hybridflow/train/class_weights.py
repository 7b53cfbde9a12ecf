"""Factors of examples by the classes that they belong to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hybridflow.core.dtypes import DType
from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.ops.choice import where
from hybridflow.ops.comparison import equal
from hybridflow.ops.reductions import any as any_true
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.shape import expand_dims
from hybridflow.ops.statistics import argmax

ClassWeight = tuple[tuple[Any, ...], tuple[float, ...]]
"""Classes, and the factor of each."""


def weights_of_classes(what: str, class_weight: Any, y: Any) -> ClassWeight | None:
    """Return classes and the factors of their losses.

    Args:
        what: the caller, for messages.
        class_weight: a mapping, a sequence with one for each class, ``"balanced"``, or None.
        y: the targets, of which ``"balanced"`` counts the classes.

    Raises:
        ArgumentError: it is another string, or ``"balanced"`` without an array of classes.
    """
    if class_weight is None:
        return None
    if isinstance(class_weight, str):
        labels = np.asarray(y) if y is not None else np.zeros(0)
        if class_weight != "balanced" or labels.dtype.kind not in "iub" or not labels.size:
            raise ArgumentError(
                f"{what}: class_weight={class_weight!r}", got=f"y: {type(y).__name__} of {labels.dtype}",
                hint='It is a mapping, one number for each class, or "balanced" for an array y of classes.'
            )
        classes, counts = np.unique(labels, return_counts=True)
        return tuple(classes.tolist()), tuple((labels.size / (len(classes) * counts)).tolist())
    if isinstance(class_weight, Mapping):
        return tuple(class_weight), tuple(map(float, class_weight.values()))
    factors = as_tensor(class_weight).numpy().tolist()
    return tuple(range(len(factors))), tuple(map(float, factors))


def weights_of_targets(what: str, class_weight: ClassWeight, y: Any, ndim: int, dtype: DType) -> Tensor:
    """Return the factors of targets of so many axes: classes, or with weights of the classes on one axis more.

    Raises:
        ArgumentError: the targets are no tensor.
    """
    if not isinstance(y, Tensor):
        raise ArgumentError(f"{what}: class_weight is for one array of targets", got=type(y).__name__)
    labels = argmax(y, axis=-1) if y.ndim == ndim + 1 else y
    classes, factors = class_weight
    found = equal(expand_dims(labels, axis=-1), asarray(classes, dtype=labels.dtype))
    factor = sum_of(where(found, asarray(factors, dtype=dtype), 0.0), axis=-1)
    return where(any_true(found, axis=-1), factor, 1.0)

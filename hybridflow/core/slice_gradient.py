"""Gradients that are zero but for a slice: they are added up in one array, so a loop over slices takes linear time."""

from __future__ import annotations

from typing import Any

import numpy as np


class SliceGradient:
    """The gradient of an array of which a slice was taken.

    Args:
        value: the gradient of the slice, a NumPy array.
        shape: the shape of the whole array.
        index: the slice, in a form that NumPy takes; it selects no element twice.
    """

    __slots__ = ("index", "shape", "value")

    def __init__(self, value: Any, shape: tuple[int, ...], index: Any) -> None:
        self.value = value
        self.shape = shape
        self.index = index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the gradient as a whole array."""
        del copy
        result = np.zeros(self.shape, self.value.dtype if dtype is None else dtype)
        result[self.index] = self.value
        return result


class SliceSum:
    """The sum of several `SliceGradient` of one array.

    Its bits are those of a sum of whole arrays: -0.0 becomes 0.0, since zeros of the others are added to it.
    """

    __slots__ = ("array",)

    def __init__(self, first: SliceGradient) -> None:
        self.array = np.zeros(first.shape, first.value.dtype)
        self.add(first)

    def add(self, one: SliceGradient) -> None:
        """Add one more, in place."""
        self.array[one.index] += one.value


def add_slice(a: SliceGradient | SliceSum, b: SliceGradient) -> SliceSum:
    """Add a slice's gradient to one or to a sum of others, which is changed."""
    total = SliceSum(a) if isinstance(a, SliceGradient) else a
    total.add(b)
    return total


def whole(gradient: Any) -> Any:
    """Return a gradient as an array."""
    if type(gradient) is SliceSum:
        return gradient.array
    return np.asarray(gradient) if type(gradient) is SliceGradient else gradient

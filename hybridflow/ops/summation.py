"""Sums on the host, as precise as pairwise summation whatever the axes are."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.ops.sizes import Axes, reduced_shape

_SMALL = 4096
"""Up to this many elements, the order of additions matters less than the calls it costs to change it."""
_BLOCK = 32


def add_up(x: Any, axis: Axes, keepdims: bool) -> Any:
    """Sum a NumPy array over axes in its own dtype; float16 and bfloat16 are accumulated, and returned, in float32.

    NumPy sums pairwise along an axis whose elements are neighbours in memory, and one after another along the
    others, where a million float32 additions lose a thousand ulp. There, blocks are summed first.
    """
    dtype = x.dtype
    if dtype.num in LOW_PRECISION:
        dtype = float32
    if x.size <= _SMALL or dtype.kind not in "fc" or axis == tuple(range(x.ndim - len(axis), x.ndim)):
        return np.add.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)
    shape = reduced_shape(x.shape, axis, keepdims)
    neighbours = tuple([i for n, i in enumerate(reversed(axis)) if i == x.ndim - 1 - n])
    if neighbours:
        x = np.add.reduce(x, axis=neighbours, keepdims=True, dtype=dtype)
    for i in axis[: len(axis) - len(neighbours)]:
        x = _along(x, i, dtype)
    rest = np.add.reduce(x, axis=axis[: len(axis) - len(neighbours)], keepdims=True, dtype=dtype)
    return rest.reshape(shape)


def _along(x: Any, axis: int, dtype: Any) -> Any:
    """Sum blocks along one axis until few are left."""
    while x.shape[axis] > 2 * _BLOCK:
        whole = x.shape[axis] // _BLOCK
        head, rest = np.split(x, [whole * _BLOCK], axis)
        split = head.reshape(*x.shape[:axis], whole, _BLOCK, *x.shape[axis + 1 :])
        blocks = np.add.reduce(split, axis=axis + 1, dtype=dtype)
        x = np.concatenate([blocks, rest], axis) if rest.shape[axis] else blocks
    return x

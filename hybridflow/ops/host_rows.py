"""What NumPy kernels of composites share to be fast on the host: blocks that stay in the cache, and sums of rows.

How large is large is decided here alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 16384
"""How many elements a pointwise kernel of several steps takes at a time: they stay in the cache in between."""
LONG_ROW = 512
"""Up to this many elements a row is summed by a product with ones: BLAS adds few enough to each of its partial sums."""
FILLED = 1 << 16
"""Up to this many elements a broadcast gradient is written out, which takes less than making a view that is read so."""

_ones: dict[Any, Any] = {}


def in_blocks(compute: Callable[..., None], buffers: int, *arrays: Any) -> Any:
    """Compute a pointwise function of arrays of one shape and dtype in several in-place steps.

    Args:
        compute: ``(y, *arrays, *buffers)`` writes `y`; all are flat and of one size.
        buffers: how many arrays it needs besides.
        arrays: what it reads.

    Returns:
        A new array of the shape and dtype of the first one.
    """
    first = arrays[0]
    y = np.empty(first.shape, first.dtype)
    flat = y.reshape(-1)
    sources = [array.reshape(-1) for array in arrays]
    size = flat.size
    scratch = [np.empty(min(size, BLOCK), first.dtype) for _ in range(buffers)]
    if size <= BLOCK:
        compute(flat, *sources, *scratch)
        return y
    for start in range(0, size, BLOCK):
        stop = min(start + BLOCK, size)
        buffer = scratch if stop - start == BLOCK else [one[: stop - start] for one in scratch]
        compute(flat[start:stop], *[source[start:stop] for source in sources], *buffer)
    return y


def row_sums(x: Any) -> Any:
    """Sum the last axis, kept with size 1."""
    length = x.shape[-1]
    if length > LONG_ROW or x.dtype.kind != "f" or x.ndim < 2:
        return np.add.reduce(x, axis=-1, keepdims=True)
    key = length, x.dtype
    ones = _ones.get(key)
    if ones is None:
        if len(_ones) > 64:
            _ones.clear()
        ones = _ones[key] = np.ones(length, x.dtype)
    return np.matmul(x.reshape(-1, length), ones).reshape(*x.shape[:-1], 1)


def row_products(x: Any, y: Any) -> Any:
    """Sum ``x * y`` over the last axis, kept with size 1."""
    if x.shape[-1] > LONG_ROW:
        return np.add.reduce(x * y, axis=-1, keepdims=True)
    return np.vecdot(x, y)[..., None]


def spread(value: Any, shape: tuple[int, ...], size: int) -> Any:
    """Broadcast an array to a shape of so many elements."""
    if size > FILLED:
        return np.broadcast_to(value, shape)
    y = np.empty(shape, value.dtype)
    y[...] = value
    return y

"""Sums with a fixed order of additions, and a written-out search, so that NumPy and XLA give the same bits."""

from __future__ import annotations

from typing import Any

import numpy as np


def halved_sum(xp: Any, x: Any) -> Any:
    """Sum along the last axis, which is not empty: add its second half to its first half until one element is left.

    Args:
        xp: `numpy`, or `jax.numpy` in a lowering.
        x: ``(..., n)``.
    """
    while x.shape[-1] > 1:
        half, odd = divmod(x.shape[-1], 2)
        added = x[..., :half] + x[..., half + odd :]
        x = xp.concatenate([added, x[..., half : half + 1]], axis=-1) if odd else added
    return x[..., 0]


def scanned_sum(x: Any) -> Any:
    """Return the running sums of a NumPy array, with the additions in the order of `jax.lax.associative_scan`."""
    if x.size < 2:
        return x
    sums = np.empty_like(x)
    sums[1::2] = scanned_sum(x[:-1:2] + x[1::2])
    sums[0] = x[0]
    sums[2::2] = sums[1:-1:2] + x[2::2]
    return sums


def count_not_above(xp: Any, ascending: Any, points: Any) -> Any:
    """Return, for each point, how many of the ascending numbers are at most the point, as int32; 0 for NaN.

    There must be at least one number. The search is written out so that both modes give the same result even for
    numbers that do not ascend.
    """
    size = ascending.shape[0]
    count = xp.zeros(points.shape, np.int32)
    for bit in reversed(range(size.bit_length())):
        more = count + np.int32(1 << bit)
        inside = xp.minimum(more, np.int32(size))
        count = xp.where((more == inside) & (ascending[inside - 1] <= points), more, count)
    return count

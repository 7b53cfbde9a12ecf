"""Integers in the order of the elements they stand for, by which lowerings sort and search."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dtypes import kind_of


def order_keys(x: Any, *, nan_first: bool = False) -> Any:
    """Return an integer for every element of a jax array, ordered as the elements are.

    XLA:CPU compares floats with subnormal numbers taken for 0, and would leave them unsorted; their bits, as integers,
    ascend as they do. 0.0 and -0.0 have one key, and so have all NaN: after all numbers, or before.

    Args:
        x: any shape; real or bool.
        nan_first: whether NaN comes first.
    """
    kind = kind_of(x.dtype)
    if kind == "bool":
        return x.astype(np.uint8)
    if kind != "float":
        return x
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    limits = np.iinfo(dtype)
    bits = lax.bitcast_convert_type(x, dtype)
    sign = lax.shift_right_arithmetic(bits, lax.full_like(bits, limits.bits - 1))
    # The magnitudes of negative numbers ascend the other way; of -0.0 that leaves -1, and subtracting the sign 0.
    keys = lax.sub(lax.bitwise_xor(bits, lax.bitwise_and(sign, lax.full_like(bits, limits.max))), sign)
    return lax.select(x != x, lax.full_like(bits, limits.min if nan_first else limits.max), keys)

"""Integer keys that are ordered as the elements are; lowerings sort and search by them."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dtypes import kind_of


def order_keys(x: Any, *, nan_first: bool = False) -> Any:
    """Return an integer for every element of a JAX array, ordered as the elements are.

    XLA:CPU treats subnormal numbers as 0 when it compares floats, and would leave them unsorted. Keys made of the
    floats' bits keep their order. 0.0 and -0.0 share one key. All NaN share one key, after all numbers or before.

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
    # The bits of negative numbers descend, so flip all but the sign. That makes -0.0 -1; subtracting the sign gives 0.
    keys = lax.sub(lax.bitwise_xor(bits, lax.bitwise_and(sign, lax.full_like(bits, limits.max))), sign)
    return lax.select(x != x, lax.full_like(bits, limits.min if nan_first else limits.max), keys)

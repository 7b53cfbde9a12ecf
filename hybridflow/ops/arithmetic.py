"""Elementwise arithmetic beyond `add`, `subtract` and `multiply`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Saves, op, public_names
from hybridflow.ops.common import (
    FLOATING,
    Tensor,
    TensorLike,
    binary_samples,
    broadcasting,
    elements,
    pointwise,
    positives,
    promote_float,
    unbroadcast,
)

# -- division -----------------------------------------------------------------------------------------------------


@op(
    kernel=np.divide,
    lower=broadcasting(lax.div),
    infer=pointwise("divide", FLOATING),
    vjp=lambda F, g, y, a, b: (lambda: unbroadcast(F, g / b, a), lambda: unbroadcast(F, -g * y / b, b)),
    saves=Saves(x=(1,), y=True),
    flops=elements,
    samples=binary_samples(positives),
    traits=("pointwise",),
    method="__truediv__ __rtruediv__",
    ulp=1,
)
def divide(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Divide elementwise.

    Division by zero gives an infinity or NaN, as IEEE 754 says.

    Args:
        x1, x2: of shapes that broadcast; integers become float32.

    Returns:
        The quotient, in the promoted floating-point dtype.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.divide([1, 3], 2)
        Tensor([0.5, 1.5], dtype=float32)
    """
    return bind(divide.op, promote_float(x1, x2))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

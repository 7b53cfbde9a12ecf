"""Exponentials, logarithms, roots and trigonometric functions, elementwise."""

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
    elements,
    pointwise,
    positives,
    promote_float,
    unary_samples,
)

# -- exponentials and logarithms ----------------------------------------------------------------------------------


@op(
    kernel=np.exp,
    lower=lax.exp,
    infer=pointwise("exp", FLOATING),
    vjp=lambda F, g, y, x: (g * y,),
    saves=Saves(y=True),
    flops=elements,
    samples=unary_samples(),
    traits=("pointwise",),
    method="exp",
)
def exp(x: TensorLike, /) -> Tensor:
    """Compute e to the power of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.exp([0.0])
        Tensor([1.], dtype=float32)
    """
    return bind(exp.op, promote_float(x))


@op(
    kernel=np.log,
    lower=lax.log,
    infer=pointwise("log", FLOATING),
    vjp=lambda F, g, y, x: (g / x,),
    saves=Saves(x=(0,)),
    flops=elements,
    samples=unary_samples(positives),
    traits=("pointwise",),
    method="log",
)
def log(x: TensorLike, /) -> Tensor:
    """Compute the natural logarithm of every element: -inf at 0, NaN below.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.log([1.0])
        Tensor([0.], dtype=float32)
    """
    return bind(log.op, promote_float(x))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

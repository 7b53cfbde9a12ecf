"""Dropout."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_differentiable, bool_
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import respelled
from hybridflow.core.op import Sample, Saves, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    cast_to,
    elements,
    make_spec,
    normals,
    truth,
)
from hybridflow.ops.nn.common import kept
from hybridflow.ops.random import Generator, default_generator


def _scaled_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), normals(rng, 3, 4) > 0, 2.0))
    yield Sample((normals(rng), np.asarray(True), 1.25))
    yield Sample((normals(rng, 4, dtype=np.float64), normals(rng, 4) > 0, 4.0))
    yield Sample((normals(rng, 4, dtype="bfloat16"), normals(rng, 4) > 0, 2.0), gradient=False)


def _scaled_lower(x: Any, mask: Any, *, scale: float) -> Any:
    return lax.select(mask, lax.mul(x, lax.full_like(x, scale)), lax.full_like(x, 0))


def _scaled_infer(x: TensorSpec, mask: TensorSpec, *, scale: float) -> TensorSpec:
    if mask.dtype != bool_ or not isinstance(cast(object, scale), float | int):
        raise ArgumentError("dropout: needs a mask of booleans and a factor", got=f"{mask}, {scale!r}")
    return make_spec(x.shape, x.dtype)


@op(
    name="dropout",
    kernel=lambda x, mask, *, scale: kept(x * x.dtype.type(scale), mask),
    lower=_scaled_lower,
    infer=_scaled_infer,
    vjp=lambda F, g, y, x, mask, *, scale: (lambda: F.dropout(g, mask, scale=scale), None),
    saves=Saves(x=(1,)),
    flops=elements,
    samples=_scaled_samples,
    traits=("pointwise",),
    ulp=0.5,
    onnx=lambda o, x, mask, *, scale: o.Where(mask, x * scale, 0),
)
def scaled_where(x: TensorLike, mask: TensorLike, scale: float) -> Tensor:
    """Scale the elements where a mask of the same shape is True, and put 0 elsewhere."""
    return bind(scaled_where.op, (as_tensor(x), as_tensor(mask)), {"scale": scale})


def dropout(
    x: TensorLike, rate: float = 0.5, *, training: bool = True, generator: Generator | None = None, **other: Any
) -> Tensor:
    """Replace randomly chosen elements by 0 and scale the others up, so that the expected value stays.

    Args:
        x: floating-point; integers become float32.
        rate: the probability that an element is dropped, from 0 to 1.
        training: whether to drop elements; False returns `x` unchanged.
        generator: the source of randomness; `hf.random`'s default generator if not given.
        other: names that other packages use for these arguments, such as ``p``.

    Returns:
        The shape and dtype of `x`.

    Raises:
        ArgumentError: a rate outside 0 to 1.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.dropout([1.0, 2.0], 0.5, training=False)
        Tensor([1., 2.], dtype=float32)

    Reference:
        Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", 2014.
    """
    if other:
        return respelled(dropout, locals())
    training = truth("dropout", "training", training)
    tensor = as_tensor(x)
    tensor = cast_to(tensor, as_differentiable(tensor.dtype))
    rate = float(rate)
    if not 0 <= rate <= 1:
        raise ArgumentError(f"dropout: rate={rate} is not a probability", hint="Use a number from 0 to 1.")
    if not training or rate == 0:
        return tensor
    source = default_generator() if generator is None else generator
    mask = source.bernoulli(1 - rate, tensor.shape)
    return scaled_where(tensor, mask, 0.0 if rate == 1 else 1 / (1 - rate))

"""The gradients of the targets, with which a backward walk begins."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hybridflow.autodiff.jacobian import flatten
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.context import current
from hybridflow.core.device import place
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, structure_text
from hybridflow.core.tensor import Tensor, as_tensor, asarray, make_tensor
from hybridflow.core.variable import Variable


def seeds_of(targets: list[Tensor], output_gradients: Any, target: Any) -> list[Tensor | None]:
    """Return the output gradients that a caller passes for targets; None means ones.

    Args:
        targets: the leaves of `target`.
        output_gradients: the caller's argument: None, or gradients in the structure of `target`.
        target: the target as the caller passed it.

    Raises:
        ArgumentError: if the structures differ.
        ShapeError, DTypeError: if an output gradient has another shape or dtype than its target.
    """
    if output_gradients is None:
        return [None] * len(targets)
    leaves, tree = flatten(output_gradients)
    _, expected = flatten(target)
    if tree != expected:
        raise ArgumentError(f"gradient: output_gradients have structure {structure_text(tree)}, "
                            f"the target {structure_text(expected)}",
                            hint="Give one output gradient per target, or None.")
    seeds: list[Tensor | None] = []
    for index, (leaf, tensor) in enumerate(zip(leaves, targets, strict=True)):
        seed = leaf
        if leaf is not None:
            seed = as_tensor(leaf) if hasattr(leaf, "dtype") else asarray(leaf, dtype=tensor.dtype)
        if seed is not None and seed.shape != tensor.shape:
            raise ShapeError(f"gradient: output_gradients[{index}] has shape {seed.shape}, its target {tensor.shape}",
                             got=f"{seed.spec} for {tensor.spec}", hint="Give it the target's shape.")
        if seed is not None and seed.dtype != tensor.dtype:
            raise DTypeError(f"gradient: output_gradients[{index}] is {seed.dtype}, its target {tensor.dtype}",
                             got=f"{seed.spec} for {tensor.spec}", hint=f"Cast it with .astype(hf.{tensor.dtype}).")
        seeds.append(seed)
    return seeds


def _filled(like: Tensor | Variable, number: int) -> Tensor:
    if current().tracer is not None:
        return PUBLIC.full(like.shape, number, dtype=like.dtype)
    array = (np.ones if number else np.zeros)(like.shape, like.dtype)
    value = cast(Any, like)._value
    return make_tensor(array if isinstance(value, np.ndarray) else place(array, next(iter(value.devices()))))


def ones(like: Tensor) -> Tensor:
    """Return ones with a tensor's shape and dtype, on its device."""
    return _filled(like, 1)


def zeros(like: Tensor | Variable) -> Tensor:
    """Return zeros with the shape and dtype of a tensor or Variable, on its device."""
    return _filled(like, 0)

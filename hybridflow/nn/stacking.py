"""`hf.nn.stack`: several models of the same structure combined into one, for `hf.vmap`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from hybridflow.core.context import made_once
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.functions import Whole
from hybridflow.core.variable import Variable
from hybridflow.nn.tree import found_in

M = TypeVar("M", bound=Whole)


def stack(models: Sequence[M]) -> M:
    """Return a model whose parameters and buffers are those of several models, stacked along a new first axis.

    With `hf.vmap`, each call gets the slices of one model. The given models do not change.

    Args:
        models: modules of one structure; all their sizes must be known.

    Returns:
        A new module with its own Variables.

    Raises:
        ArgumentError: no models, or models of different structures.

    Example:
        >>> import hybridflow as hf
        >>> ensemble = hf.nn.stack([hf.nn.Linear(3, 2) for _ in range(4)])
        >>> ensemble.weight.shape
        (4, 2, 3)
        >>> hf.vmap(lambda model, x: model(x), in_axes=(0, None))(ensemble, hf.ones((5, 3))).shape
        (4, 5, 2)
    """
    models = list(models)
    if not models:
        raise ArgumentError("stack: there are no models", hint="Give a list of at least one.")
    for model in models:
        if not isinstance(model, Whole):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ArgumentTypeError(f"stack: a {type(model).__name__} is no module", got=repr(model)[:80])
    contents = [found_in(model, buffers=True) for model in models]
    first = contents[0]
    for number, other in enumerate(contents[1:], 1):
        mine = dict(zip(first.plan.names, [one.spec for one in first.leaves], strict=True))
        its = dict(zip(other.plan.names, [one.spec for one in other.leaves], strict=True))
        if other.plan != first.plan or mine != its:
            path = next((path for path in {**mine, **its} if mine.get(path) != its.get(path)), None)
            raise ArgumentError(
                f"stack: models 0 and {number} have different structures",
                got="options that differ" if path is None else f"{path}: {mine.get(path)} and {its.get(path)}",
                hint="Make all of them by the same code with the same sizes."
            )
    with made_once():
        leaves = [
            Variable(
                np.stack([other.leaves[number].numpy() for other in contents]), name=path, trainable=one.trainable,
                requires_grad=one._notes is not None,
            )
            for number, (path, one) in enumerate(zip(first.plan.names, first.leaves, strict=True))
        ]
    return first.plan.made(leaves, whole=True)

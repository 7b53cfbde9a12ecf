"""`hf.prune.channels`: removes channels.

The layers that make them get smaller, and so do the inputs of the layers that read them.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import jax
import numpy as np

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.compress.channels import FIXED, Channels, Slot, example_of, follows, is_depthwise
from hybridflow.compress.layers import is_storable
from hybridflow.compress.replacing import Patterns, copied, in_evaluation, modules_of, require_module, require_sizes
from hybridflow.core.errors import ArgumentError, HybridflowError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.attention import MultiHeadAttention
from hybridflow.nn.layers.convolution import Conv
from hybridflow.nn.layers.linear import Embedding, Linear, parameter
from hybridflow.nn.layers.module import Module
from hybridflow.nn.layers.normalization import BatchNorm
from hybridflow.ops.common import one_of

Array = np.ndarray[Any, Any]
Removed = dict[tuple[str, str], list[int]]
"""The channels to remove, by side and path of a layer."""
_CLOSE = 1e-3
"""The allowed distance of the smaller model's result from that with zeros, relative to the largest number."""


@with_foreign_keywords
def channels(
    model: Module, *args: Any, amount: float = 0.5, by: str = "l2", match: Patterns = "*", skip: Patterns = (),
    seed: int = 0,
) -> Any:
    """Return a copy of a model with fewer filters, features and attention heads, and smaller layers after them.

    Which channels belong together is found by running the model: what a removed channel leads to goes with it, also
    through activations, batch normalisation, pools, reshapes, depthwise convolutions and sums of several layers. The
    query, key and value of an attention head go together. Channels that reach the model's result, or a normalisation
    over all of them, stay. The result is checked: it must be what the model gives if the removed channels are not read.

    Args:
        model: the module.
        args: what it is called with, a small example: arrays, or `hf.TensorSpec`.
        amount: the fraction of the channels of each layer to remove, rounded down, from 0 to below 1.
        by: what is removed first: the smallest norm, ``"l2"`` or ``"l1"``, or ``"random"``.
        match, skip: a pattern, or several, of the dotted paths of layers that get fewer channels and that do not.
        seed: the seed of ``"random"``.

    Returns:
        A new model, to be trained further; it keeps the other weights.

    Raises:
        ArgumentError: a pattern that matches no layer whose channels can go, an amount that does not fit, or a model
            in which the sizes that belong together cannot be told.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 16), hf.nn.relu, hf.nn.Linear(16, 3))
        >>> hf.prune.channels(model, hf.ones((2, 8)), amount=0.5)
        Sequential(
          (0): Linear(8, 8)
          (1): relu
          (2): Linear(8, 3)
        )

    Reference:
        Li et al., "Pruning filters for efficient convnets", 2017; Fang et al., "DepGraph: towards any structural
        pruning", 2023.
    """
    require_module("channels", model)
    if isinstance(amount, bool) or not 0 <= amount < 1:
        raise ArgumentError(f"channels: amount={amount!r} is not a part of all", hint="Use a number from 0 to below 1.")
    one_of("channels", "by", by, ("l2", "l1", "random"))
    example = example_of(args)
    channels_of = _known("channels", model, example)
    families = _families(channels_of, match, skip)
    rng = np.random.default_rng(seed)
    removed: Removed = {}
    for groups in families:
        scores = rng.random(len(groups)) if by == "random" else [_score(channels_of, group, by) for group in groups]
        for number in np.argsort(scores, kind="stable")[: int(amount * len(groups))]:
            for slot in groups[number]:
                removed.setdefault((slot.side, slot.path), []).append(slot.number)
    smaller = _smaller(model, removed)
    _require_same(model, smaller, removed, example)
    return smaller


def prunable(model: Module, *args: Any) -> dict[str, int]:
    """Return the layers whose channels `channels` can remove, with the number of their channels or heads.

    Args:
        model: the module.
        args: what it is called with, a small example.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 16), hf.nn.relu, hf.nn.Linear(16, 3))
        >>> hf.prune.prunable(model, hf.ones((2, 8)))
        {'0': 16}
    """
    require_module("prunable", model)
    channels_of = _known("prunable", model, example_of(args))
    return {path: len(groups) for groups in _families(channels_of, "*", ()) for path in _producers(groups[0])}


def _known(what: str, model: Any, example: tuple[Any, ...]) -> Channels:
    for one in modules_of(model).values():
        if is_storable(one) or follows(one):
            require_sizes(what, one)
    return Channels(model, example)


def _producers(group: list[Slot]) -> tuple[str, ...]:
    return tuple(sorted({slot.path for slot in group if slot.side == "out"}))


def _families(known: Channels, match: Patterns, skip: Patterns) -> list[list[list[Slot]]]:
    """Return the groups that can be removed, those of the same layers together.

    Raises:
        ArgumentError: a pattern that matches no layer with such groups.
    """
    families: dict[tuple[str, ...], list[list[Slot]]] = {}
    for group in known.groups:
        if not any([slot.side == FIXED for slot in group]):
            families.setdefault(_producers(group), []).append(group)
    families = {paths: groups for paths, groups in families.items() if len(groups) > 1}
    free = sorted({path for paths in families for path in paths})
    for pattern in _listed(match) + _listed(skip):
        if not any([fnmatchcase(path, pattern) for path in free]):
            matched = ", ".join([path for path in known.layers if fnmatchcase(path, pattern)][:8])
            why = f"; those of {matched} reach the result, or a norm or sum that keeps its size" if matched else ""
            raise ArgumentError(f"channels: no layer that matches {pattern!r} has channels that can go{why}",
                                got=f"layers with channels that can go: {', '.join(free[:8]) or 'none'}")
    return [
        groups for paths, groups in families.items()
        if _any(paths, match) and not _any(paths, skip)
    ]


def _listed(patterns: Patterns) -> list[str]:
    return [patterns] if isinstance(patterns, str) else [*patterns]


def _any(paths: tuple[str, ...], patterns: Patterns) -> bool:
    return any([fnmatchcase(path, pattern) for path in paths for pattern in _listed(patterns)])


def _score(known: Channels, group: list[Slot], by: str) -> float:
    """Return the mean norm of the weights that give a group's channels."""
    norms: list[float] = []
    for slot in group:
        if slot.side == "out":
            layer = known.layers[slot.path]
            weight = layer.weight.numpy()
            row = weight[:, slot.number] if isinstance(layer, Embedding) else weight[slot.number]
            norms.append(float(np.abs(row).sum() if by == "l1" else np.linalg.norm(row.reshape(-1))))
    return float(np.mean(norms))


# -- the smaller model --------------------------------------------------------------------------------------------


def _without(value: Variable, numbers: list[int], axis: int) -> Variable:
    """Return a Variable without some slices, and of the same kind."""
    remaining = np.delete(value.numpy(), numbers, axis)
    if value._notes is None:
        return Variable(remaining, name=value.name, trainable=False)
    new = parameter(remaining, value.name)
    new.trainable = value.trainable
    return new


def _smaller(model: Any, removed: Removed) -> Any:
    smaller = copied(model)
    modules = modules_of(smaller)
    for (side, path), numbers in removed.items():
        layer = modules[path]
        if side == "same":
            _shrink_both(layer, numbers)
        elif side == "out":
            _shrink_result(layer, numbers)
        else:
            axis = 1
            layer.weight = _without(layer.weight, numbers, axis)
            name = "in_channels" if isinstance(layer, Conv) else "in_features"
            setattr(layer, name, getattr(layer, name) - len(numbers))
    for one in modules.values():
        if isinstance(one, MultiHeadAttention):
            one.heads = one.query.out_features // one.head_width
            one.kv_heads = one.key.out_features // one.head_width
    return smaller


def _shrink_result(layer: Any, numbers: list[int]) -> None:
    if isinstance(layer, Embedding):
        layer.weight = _without(layer.weight, numbers, 1)
        layer.width -= len(numbers)
        return
    layer.weight = _without(layer.weight, numbers, 0)
    if layer.bias is not None:
        layer.bias = _without(layer.bias, numbers, 0)
    name = "out_features" if isinstance(layer, Linear) else "out_channels"
    setattr(layer, name, getattr(layer, name) - len(numbers))


def _shrink_both(layer: Any, numbers: list[int]) -> None:
    """Remove channels of batch normalisation or of a depthwise convolution."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        value = getattr(layer, name, None)
        if value is not None:
            setattr(layer, name, _without(value, numbers, 0))
    if isinstance(layer, BatchNorm):
        layer.size = layer.running_mean.size
    elif is_depthwise(layer) and follows(layer):
        count = layer.out_channels - len(numbers)
        layer.in_channels = layer.out_channels = layer.groups = count


def _require_same(model: Any, made: Any, removed: Removed, example: tuple[Any, ...]) -> None:
    """Raise unless the smaller model gives what the model gives when the removed channels are not read."""
    masked = in_evaluation(model)
    modules = modules_of(masked)
    for (side, path), numbers in removed.items():
        if side == "in":
            weight = modules[path].weight.numpy().copy()
            weight[:, numbers] = 0
            modules[path].weight.assign(weight)
    try:
        result = _result(in_evaluation(made), example)
    except HybridflowError as error:
        raise ArgumentError("channels: the smaller model fails, so sizes that belong together were not found",
                            got=str(error).splitlines()[0],
                            hint="Leave the layers in question out with skip=.") from error
    for one, other in zip(result, _result(masked, example), strict=True):
        far = float(np.max(np.abs(one - other), initial=0))
        if one.shape != other.shape or not far <= _CLOSE * max(1.0, float(np.max(np.abs(other), initial=0))):
            raise ArgumentError(
                "channels: the smaller model gives another result than the model without these channels",
                got=f"a difference of {far:.3g}", hint="Leave the layers in question out with skip=."
            )


def _result(model: Any, example: tuple[Any, ...]) -> list[Array]:
    with no_grad():
        leaves = jax.tree_util.tree_leaves(model(*example), is_leaf=lambda one: hasattr(one, "numpy"))
    return [np.asarray(as_tensor(one).numpy(), np.float64) for one in leaves]

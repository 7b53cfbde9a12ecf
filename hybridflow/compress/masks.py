"""Pruning single weights, which become 0 and stay 0: `magnitude`, `random`, `movement`, `n_of_m`, and schedules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np

from hybridflow.compress.replacing import Patterns, copied, layers_of, modules_of, require_module, with_weight
from hybridflow.core.assignments import assign_all
from hybridflow.core.dtypes import float32
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.convolution import Conv, ConvTranspose
from hybridflow.nn.layers.linear import Embedding, Linear
from hybridflow.nn.layers.module import Module
from hybridflow.ops.common import TensorLike, cast_to, one_of
from hybridflow.ops.elementwise import stop_gradient

Array = np.ndarray[Any, Any]


class Masked(Module):
    """A layer some of whose weights are 0, whatever an optimizer does; the functions of `hf.prune` make it.

    Args:
        layer: the layer.
        mask: True where a weight is kept.

    Attributes:
        mask: a buffer of booleans in the shape of the weight.
    """

    mask: Variable

    def __init__(self, layer: Any, mask: Any) -> None:
        self.layer = layer
        self.register_buffer("mask", np.asarray(mask, np.bool_))

    def forward(self, x: TensorLike) -> Tensor:
        """Return what the layer gives with the weights that are kept."""
        return with_weight(self.layer, lambda weight: weight * cast_to(self.mask.read(), weight.dtype), x)

    @property
    def kept(self) -> Array:
        """The weights, with 0 where the mask is False."""
        return self.layer.weight.numpy() * self.mask.numpy()


def is_prunable(layer: Any) -> bool:
    """Whether a layer has weights of which some can be 0."""
    return isinstance(layer, Masked) or type(layer).forward in (
        Linear.forward, Conv.forward, ConvTranspose.forward, Embedding.forward
    )


def _require_sparsity(what: str, sparsity: Any) -> float:
    if isinstance(sparsity, bool) or not isinstance(sparsity, int | float) or not 0 <= sparsity < 1:
        raise ArgumentError(f"{what}: sparsity={sparsity!r} is not a part of the weights",
                            hint="Use a number from 0 to below 1.")
    return float(sparsity)


def _layers_to_prune(what: str, model: Any, match: Patterns, skip: Patterns) -> dict[str, Any]:
    """Return the layers to prune by path: those asked for, embeddings only if a pattern says so."""
    require_module(what, model)

    def fits(layer: Any) -> bool:
        return is_prunable(layer) and not (match == "*" and isinstance(_inner(layer), Embedding))

    masked_paths = [path for path, one in modules_of(model).items() if isinstance(one, Masked)]
    inner_paths = {f"{path}.layer" if path else "layer" for path in masked_paths}
    layers = {path: one for path, one in layers_of(what, model, fits, match, skip).items() if path not in inner_paths}
    if not layers:
        raise ArgumentError(f"{what}: the model has no layer to prune", got=type(model).__name__)
    return layers


def _inner(layer: Any) -> Any:
    return layer.layer if isinstance(layer, Masked) else layer


def _kept_where(layer: Any) -> Array:
    """Return where a layer's weights are kept so far."""
    return layer.mask.numpy() if isinstance(layer, Masked) else np.ones(layer.weight.shape, np.bool_)


def smallest(scores: Array, sparsity: float, before: Array) -> Array:
    """Return a mask that drops a fraction of all elements: those dropped before, then the lowest scores."""
    count = round(sparsity * scores.size)
    flat = np.where(before, scores, -np.inf).reshape(-1)
    mask = np.ones(scores.size, np.bool_)
    mask[np.argsort(flat, kind="stable")[:count]] = False
    return (mask & before.reshape(-1)).reshape(scores.shape)


def _masks(layers: Mapping[str, Any], scores: Mapping[str, Array], sparsity: float, scope: str) -> dict[str, Array]:
    before = {path: _kept_where(one) for path, one in layers.items()}
    if scope == "layer":
        return {path: smallest(scores[path], sparsity, before[path]) for path in layers}
    flat = smallest(
        np.concatenate([scores[path].reshape(-1) for path in layers]), sparsity,
        np.concatenate([before[path].reshape(-1) for path in layers]),
    )
    ends = np.cumsum([one.size for one in before.values()])[:-1]
    return {path: part.reshape(before[path].shape) for path, part in zip(layers, np.split(flat, ends), strict=True)}


def masked(model: Any, masks: Mapping[str, Array]) -> Any:
    """Return a copy of a model with masks on the layers at some paths."""
    pruned = copied(model)
    modules = modules_of(pruned)
    layers = {path: Masked(_inner(modules[path]), mask) for path, mask in masks.items()}
    for one in layers.values():
        one.layer.weight.assign(one.kept)
        one.training = one.layer.training
    return copied(pruned, layers)


def _pruned(
    what: str, model: Any, sparsity: Any, scope: str, match: Patterns, skip: Patterns,
    score: Callable[[str, Any], Array],
) -> Any:
    sparsity = _require_sparsity(what, sparsity)
    one_of(what, "scope", scope, ("layer", "model"))
    layers = _layers_to_prune(what, model, match, skip)
    return masked(model, _masks(layers, {path: score(path, one) for path, one in layers.items()}, sparsity, scope))


def _size(path: str, layer: Any) -> Array:
    del path
    return np.abs(np.asarray(_inner(layer).weight.numpy(), np.float32))


@with_foreign_keywords
def magnitude(
    model: Module, sparsity: float, *, scope: str = "layer", match: Patterns = "*", skip: Patterns = ()
) -> Any:
    """Return a copy of a model without the weights nearest to 0.

    What is dropped stays 0 through the updates of any optimizer, since the layers compute with masks. `finish` makes
    plain layers of them again.

    Args:
        model: the module.
        sparsity: the fraction of the weights that becomes 0, from 0 to below 1.
        scope: ``"layer"`` drops this fraction of each layer, ``"model"`` of all layers together.
        match, skip: a pattern, or several, of the dotted paths of layers that are pruned and that are not. Embeddings
            are only pruned if a pattern other than ``"*"`` matches them.

    Returns:
        A new model, with each layer inside of a `Masked`.

    Raises:
        ArgumentError: a sparsity or pattern that does not fit, or a layer without sizes.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.prune.magnitude(hf.nn.Sequential(hf.nn.Linear(8, 4)), 0.5)
        >>> hf.prune.sparsity(model)
        0.5

    Reference:
        Han et al., "Learning both weights and connections for efficient neural networks", 2015.
    """
    return _pruned("magnitude", model, sparsity, scope, match, skip, _size)


@with_foreign_keywords
def random(
    model: Module, sparsity: float, *, seed: int = 0, scope: str = "layer", match: Patterns = "*", skip: Patterns = ()
) -> Any:
    """Return a copy of a model without some of its weights, drawn at random: the baseline of other methods.

    Args:
        model, sparsity, scope, match, skip: as for `magnitude`.
        seed: the seed of the draw.

    Returns:
        A new model, with each layer inside of a `Masked`.

    Raises:
        ArgumentError: as for `magnitude`.
    """
    rng = np.random.default_rng(seed)

    def score(path: str, layer: Any) -> Array:
        return rng.random(_size(path, layer).shape)

    return _pruned("random", model, sparsity, scope, match, skip, score)


class Movement:
    """The movement of weights during training, away from 0 or towards it: the scores of `movement`.

    Args:
        model: the module that is trained.
        match, skip: as for `magnitude`.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 4))
        >>> scores, optimizer = hf.prune.Movement(model), hf.optim.SGD(model, rate=0.1)
        >>> @hf.compile
        ... def step(x):
        ...     gradients = hf.grad(lambda model: hf.mean(model(x) ** 2))(model)
        ...     scores.update(gradients)
        ...     optimizer.update(gradients)
        >>> for _ in range(5):
        ...     step(hf.random.normal((16, 8)))
        >>> hf.prune.sparsity(hf.prune.movement(model, 0.25, scores))
        0.25

    Reference:
        Sanh, Wolf and Rush, "Movement pruning: adaptive sparsity by fine-tuning", 2020.
    """

    def __init__(self, model: Module, *, match: Patterns = "*", skip: Patterns = ()) -> None:
        self._layers = _layers_to_prune("Movement", model, match, skip)
        self._scores = {
            path: Variable(np.zeros(_inner(one).weight.shape, np.float32), name=f"{path}.movement", trainable=False)
            for path, one in self._layers.items()
        }

    def update(self, gradients: Any) -> None:
        """Add the movement of one step; this works in compiled functions too.

        Args:
            gradients: the gradients of the model, as `hf.grad` or a tape gives them; or a mapping from the names of
                parameters.
        """
        gradients_by_name = gradients if isinstance(gradients, Mapping) else dict(gradients.named_parameters())
        for path, score in self._scores.items():
            layer = self._layers[path]
            name = ".".join([part for part in (path, "layer" if isinstance(layer, Masked) else "", "weight") if part])
            gradient = gradients_by_name.get(name)
            if gradient is not None:
                weight = stop_gradient(as_tensor(_inner(layer).weight))
                score.assign(score.read() - cast_to(weight * as_tensor(cast(Any, gradient)), float32))

    def scores(self) -> dict[str, Array]:
        """Return the sum of ``-weight * gradient`` of each layer, by path."""
        return {path: one.numpy() for path, one in self._scores.items()}


@with_foreign_keywords
def movement(
    model: Module, sparsity: float, scores: Movement, *, scope: str = "layer", match: Patterns = "*",
    skip: Patterns = (),
) -> Any:
    """Return a copy of a model without the weights that training moved the most towards 0.

    Args:
        model, sparsity, scope, match, skip: as for `magnitude`.
        scores: the `Movement` that was updated while the model was trained.

    Returns:
        A new model, with each layer inside of a `Masked`.

    Raises:
        ArgumentError: as for `magnitude`, or a layer that `scores` does not know.

    Reference:
        Sanh, Wolf and Rush, "Movement pruning: adaptive sparsity by fine-tuning", 2020.
    """
    return _pruned("movement", model, sparsity, scope, match, skip, _moved("movement", scores))


def _moved(what: str, scores: Movement) -> Callable[[str, Any], Array]:
    layer_scores = scores.scores()

    def score(path: str, layer: Any) -> Array:
        del layer
        if path not in layer_scores:
            raise ArgumentError(f"{what}: there are no scores of {path!r}", got=", ".join(layer_scores),
                                hint="Make hf.prune.Movement of the same model and patterns.")
        return layer_scores[path]

    return score


@with_foreign_keywords
def n_of_m(model: Module, n: int = 2, m: int = 4, *, match: Patterns = "*", skip: Patterns = ()) -> Any:
    """Return a copy of a model that keeps the n largest of each m neighbouring weights, as accelerators want it.

    Neighbours are along the axis of inputs; for a convolution, along its channels. What remains of a row that is not a
    multiple of m is kept.

    Args:
        model, match, skip: as for `magnitude`.
        n: how many of a group are kept.
        m: the size of a group.

    Returns:
        A new model, with each layer inside of a `Masked`.

    Raises:
        ArgumentError: n is not below m, or as for `magnitude`.

    Example:
        >>> import hybridflow as hf
        >>> hf.prune.sparsity(hf.prune.n_of_m(hf.nn.Sequential(hf.nn.Linear(8, 4)), 2, 4))
        0.5

    Reference:
        Mishra et al., "Accelerating sparse deep neural networks", 2021.
    """
    if not 0 < n < m:
        raise ArgumentError(f"n_of_m: n={n} of m={m} keeps none or all", hint="Use n=2, m=4.")
    layers = _layers_to_prune("n_of_m", model, match, skip)
    return masked(model, {path: _by_groups(_size(path, one), n, m) & _kept_where(one) for path, one in layers.items()})


def _by_groups(size: Array, n: int, m: int) -> Array:
    rows = np.moveaxis(size, 1, -1)
    mask = np.ones(rows.shape, np.bool_)
    grouped = rows.shape[-1] // m * m
    groups = rows[..., :grouped].reshape(*rows.shape[:-1], grouped // m, m)
    ranks = np.argsort(np.argsort(-groups, -1, kind="stable"), -1, kind="stable")
    mask[..., :grouped] = (ranks < n).reshape(*rows.shape[:-1], grouped)
    return np.moveaxis(mask, -1, 1)


# -- during and after training ------------------------------------------------------------------------------------


@with_foreign_keywords
def set_sparsity(model: Module, sparsity: float, *, scores: Movement | None = None, scope: str = "layer") -> None:
    """Drop more weights of a model that is pruned already, in place, between steps of its training.

    Compiled steps are not traced again. What was dropped before stays so.

    Args:
        model: a model that `magnitude` or another function made.
        sparsity: the fraction of the weights that is 0 from now on; see `cubic` for schedules.
        scores: the movement by which to drop weights; without it, the smallest weights are dropped.
        scope: as for `magnitude`.

    Raises:
        ArgumentError: the model has no masks, or a sparsity that does not fit.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.prune.magnitude(hf.nn.Sequential(hf.nn.Linear(8, 4)), 0.0)
        >>> schedule = hf.prune.cubic(0.75, first=0, last=100)
        >>> for step in range(0, 101, 50):
        ...     hf.prune.set_sparsity(model, schedule(step))
        ...     print(hf.prune.sparsity(model))
        0.0
        0.65625
        0.75
    """
    require_module("set_sparsity", model)
    sparsity = _require_sparsity("set_sparsity", sparsity)
    one_of("set_sparsity", "scope", scope, ("layer", "model"))
    layers = {path: one for path, one in modules_of(model).items() if isinstance(one, Masked)}
    if not layers:
        raise ArgumentError("set_sparsity: the model has no masks", got=type(model).__name__,
                            hint="Make them first: model = hf.prune.magnitude(model, 0.0).")
    score = _size if scores is None else _moved("set_sparsity", scores)
    masks = _masks(layers, {path: score(path, one) for path, one in layers.items()}, sparsity, scope)
    targets: dict[str, Variable] = {}
    values: dict[str, Any] = {}
    for path, one in layers.items():
        targets[f"{path}.mask"], values[f"{path}.mask"] = one.mask, masks[path]
        targets[f"{path}.weight"], values[f"{path}.weight"] = one.layer.weight, one.layer.weight.numpy() * masks[path]
    assign_all(targets, values, what="set_sparsity", strict=True)


@with_foreign_keywords
def cubic(end: float, *, start: float = 0.0, first: int = 0, last: int) -> Callable[[int], float]:
    """Return a schedule: the sparsity of each step, which grows fast at first and then slower.

    Args:
        end: the sparsity from step `last` on.
        start: the sparsity up to step `first`.
        first, last: between which steps it grows.

    Returns:
        A function of the step.

    Raises:
        ArgumentError: numbers that are no sparsity, or a last step that is not after the first.

    Example:
        >>> import hybridflow as hf
        >>> schedule = hf.prune.cubic(0.8, last=100)
        >>> [round(schedule(step), 3) for step in (0, 10, 50, 100, 200)]
        [0.0, 0.217, 0.7, 0.8, 0.8]

    Reference:
        Zhu and Gupta, "To prune, or not to prune: exploring the efficacy of pruning for model compression", 2017.
    """
    return _schedule("cubic", start, end, first, last, lambda part: 1 - (1 - part) ** 3)


@with_foreign_keywords
def linear(end: float, *, start: float = 0.0, first: int = 0, last: int) -> Callable[[int], float]:
    """Return a schedule: a sparsity that grows by the same amount in each step; see `cubic`.

    Example:
        >>> import hybridflow as hf
        >>> hf.prune.linear(0.8, last=100)(50)
        0.4
    """
    return _schedule("linear", start, end, first, last, lambda part: part)


def _schedule(
    what: str, start: float, end: float, first: int, last: int, shape: Callable[[float], float]
) -> Callable[[int], float]:
    _require_sparsity(what, start)
    _require_sparsity(what, end)
    if not last > first:
        raise ArgumentError(f"{what}: the last step, {last}, is not after the first, {first}")

    def at(step: int) -> float:
        return start + (end - start) * shape(min(max((step - first) / (last - first), 0.0), 1.0))

    return at


def finish(model: Module) -> Any:
    """Return a copy of a model with plain layers in place of masked ones; what was dropped is 0 in their weights.

    Args:
        model: a model that `magnitude` or another function made.

    Returns:
        A new model, with the paths of the model before it was pruned.

    Raises:
        ArgumentError: the model has no masks.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 4), hf.nn.relu)
        >>> hf.prune.finish(hf.prune.magnitude(model, 0.5))
        Sequential(
          (0): Linear(8, 4)
          (1): relu
        )
    """
    require_module("finish", model)
    plain = copied(model)
    layers = {path: one for path, one in modules_of(plain).items() if isinstance(one, Masked)}
    if not layers:
        raise ArgumentError("finish: the model has no masks", got=type(model).__name__)
    for one in layers.values():
        one.layer.weight.assign(one.kept)
    return copied(plain, {path: one.layer for path, one in layers.items()})


def weights_of(model: Any) -> dict[str, Array]:
    """Return the weights that a model's prunable layers compute with, by path."""
    weights: dict[str, Array] = {}
    inner: set[int] = set()
    for path, one in modules_of(model).items():
        if isinstance(one, Masked):
            weights[path] = one.kept
            inner.add(id(one.layer))
        elif is_prunable(one) and id(one) not in inner and one.weight is not None:
            weights[path] = one.weight.numpy()
    return weights


def sparsity(model: Module) -> float:
    """Return the fraction of the weights of linear layers and convolutions that is 0.

    Args:
        model: the module.

    Example:
        >>> import hybridflow as hf
        >>> hf.prune.sparsity(hf.nn.Sequential(hf.nn.Linear(8, 4)))
        0.0
    """
    require_module("sparsity", model)
    modules = modules_of(model)
    layers = [one for path, one in weights_of(model).items() if not isinstance(_inner(modules[path]), Embedding)]
    total = math.fsum([one.size for one in layers])
    if not total:
        raise ArgumentTypeError("sparsity: the model has no weights", got=type(model).__name__)
    return math.fsum([one.size - np.count_nonzero(one) for one in layers]) / total

"""`evaluate` and `predict`: a model over data, not in training mode."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.core.dtypes import float64, kind_of
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.functions import as_traced
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.core.tensor import Tensor, as_tensor, new_tensor
from hybridflow.data.batches import Batches
from hybridflow.metrics.metric import Metric, weights_for
from hybridflow.nn.layers.module import Module
from hybridflow.ops.common import cast_to
from hybridflow.tracing.compile import compile as compiled
from hybridflow.tracing.function import CompiledFunction
from hybridflow.train.class_weights import ClassWeight, weights_of_classes, weights_of_targets
from hybridflow.train.inputs import (
    batches_of,
    checked,
    figure,
    is_array,
    metrics_of,
    parts_of,
    require_iterable,
    rows_of,
    tensors,
)

R = TypeVar("R")

Metrics = Any
"""A metric or a function ``(prediction, target)``, a sequence of such, or a mapping with names."""


@contextmanager
def mode(model: Any, training: bool) -> Generator[None]:
    """Return a context in which a model and all its modules are in training mode, or none of them is."""
    modules = [*model.named_modules().values()] if hasattr(model, "named_modules") else []
    before = [one.training for one in modules]
    try:
        for one in modules:
            one.training = training
        yield
    finally:
        for one, was in zip(modules, before, strict=True):
            one.training = was


@compiled(name="forward")
def _forward(model: Any, x: Any) -> Any:
    return as_traced(model)(x)


class _Forward:
    """A compiled function of the inputs of one module; each such object has traces of its own."""

    def __init__(self, model: Module) -> None:
        self.model = model

    @compiled(name="forward")
    def __call__(self, x: Any) -> Any:
        return as_traced(self.model)(x)


def _forward_on(mesh: Mesh, batch: Axis, model: Any) -> Any:
    """Return the function for a mesh; the model's last one is kept with it."""
    last = getattr(model, "_forward_on", None)
    if last is not None and last[0] == (mesh, batch):
        return last[1]
    function = model.__call__ if isinstance(model, Module) else model
    forward = compiled(function, name="forward", mesh=mesh, batch=batch)
    if isinstance(model, Module):
        model._forward_on = (mesh, batch), forward
    return forward


def forward_of(model: Any, compile: bool, mesh: Mesh | None = None, batch: Axis = None) -> Any:
    """Return the function from inputs to predictions; a compiled function lives as long as its model."""
    if not callable(model):
        raise ArgumentTypeError(f"train: a {type(model).__name__} is no model, it cannot be called",
                                hint="Give a module, or a function of the inputs.")
    if mesh is not None:
        return _forward_on(mesh, mesh.axes[0] if batch is None else batch, model)
    if not compile or isinstance(model, CompiledFunction):
        return model
    if not isinstance(model, Module):
        return _forward.__get__(model, type(model))
    if not hasattr(model, "_forward"):
        model._forward = _Forward(model)
    return model._forward


@with_foreign_keywords
def evaluate(
    model: Any, x: Any, y: Any = None, *, metrics: Metrics, sample_weight: Any = None, class_weight: Any = None,
    batch_size: int = 256, compile: bool = True, mesh: Mesh | None = None, batch: Axis = None,
) -> Any:
    """Return the metrics of a model over data.

    The model is not in training mode meanwhile; its mode is restored afterwards. No weight changes.

    Args:
        model: a module, or a function of an input.
        x: inputs with a row per example; or an iterable of batches ``(input, target)`` or
            ``(input, target, sample_weight)``.
        y: the targets, if x are inputs.
        metrics: a metric of `hf.metrics`, or a function of predictions and targets whose values are averaged; or a
            sequence of these, which are named after their classes and functions; or a mapping with names.
        sample_weight: how much each example counts in the metrics, if x are inputs.
        class_weight: factors of that by class, as for `fit`: ``"balanced"`` makes all classes of `y` count the same.
        batch_size: the number of examples in a batch of arrays.
        compile: whether to compile the model.
        mesh, batch: the devices that run it together, and the mesh axis over which batches are split, as for `fit`.

    Returns:
        The result of a single metric, or a dict of results by name. Each is a Python number, or an array if it has
        several elements.

    Raises:
        ArgumentError: there are no targets or no metrics, or the data yields nothing.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> x, y = np.eye(4, dtype=np.float32), np.arange(4)
        >>> hf.train.evaluate(lambda x: x * 2, x, y, metrics=hf.metrics.Accuracy())
        1.0
        >>> hf.train.evaluate(lambda x: x * 2, x, y, metrics=[hf.metrics.Accuracy(), hf.metrics.Perplexity()])
        {'accuracy': 1.0, 'perplexity': 1.4060...}
        >>> guessed, right = np.eye(2)[[0, 0, 0, 0]], np.asarray([0, 0, 0, 1])
        >>> hf.train.evaluate(lambda x: x, guessed, right, metrics=hf.metrics.Accuracy(), class_weight="balanced")
        0.5
    """
    named = metrics_of("evaluate", metrics)
    if not named:
        raise ArgumentError("evaluate: there are no metrics", hint="Give one of hf.metrics, or several.")
    data = batches_of("evaluate", x, y, sample_weight, batch_size)
    weights = weights_of_classes("evaluate", class_weight, y)
    results = figures(model, forward_of(model, compile, mesh, batch), data, named, weights)
    return results if isinstance(metrics, Mapping | Sequence) else next(iter(results.values()))


def figures(
    model: Any, forward: Any, data: Any, metrics: Mapping[str, Metric], class_weight: ClassWeight | None = None
) -> dict[str, Any]:
    """Return metrics of a model by name, over batches of inputs, targets and weights; see `evaluate`.

    Args:
        model: the model.
        forward: what `forward_of` returned for it.
        data: the batches.
        metrics: the metrics.
        class_weight: how much the examples of each class count.
    """
    for one in metrics.values():
        one.reset()
    with mode(model, False), no_grad():
        for batch in checked("evaluate", data):
            inputs, *rest = parts_of("evaluate", batch)
            prediction = forward(inputs)
            if class_weight is not None:
                rest = _by_class(class_weight, *rest)
            for one in metrics.values():
                one.update(prediction, *rest)
    return {name: figure(one.result()) for name, one in metrics.items()}


def _by_class(class_weight: ClassWeight, y: Any, *sample_weight: Any) -> list[Any]:
    """Return targets and the weights of their examples, by class and by themselves."""
    dense = isinstance(y, Tensor) and y.ndim > 1 and kind_of(y.dtype) == "float"
    factors = weights_of_targets("evaluate", class_weight, y, np.ndim(y) - dense, float64)
    for one in sample_weight:
        factors = factors * cast_to(weights_for("evaluate", one, factors), float64)
    return [y, factors]


@with_foreign_keywords
def predict(
    model: Callable[..., R], x: Any, *, batch_size: int = 256, compile: bool = True, mesh: Mesh | None = None,
    batch: Axis = None,
) -> R:
    """Return the predictions of a model for inputs, computed batch after batch.

    The model is not in training mode meanwhile; its mode is restored afterwards.

    Args:
        model: a module, or a function of an input.
        x: inputs with a row per example: an array, or a tuple or mapping of arrays; or an iterable of batches of
            inputs, without targets.
        batch_size: the number of examples in a batch of arrays.
        compile: whether to compile the model.
        mesh, batch: the devices that run it together, and the mesh axis over which batches are split, as for `fit`.

    Returns:
        The results in the order of the inputs, as if the model had been called with all of them at once: a tensor, or
        a structure of tensors if the model returns one.

    Raises:
        ArgumentError: an iterable yields nothing.
        ShapeError: the results do not have a row per example.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> hf.train.predict(lambda x: x * 2, np.arange(5.0, dtype=np.float32), batch_size=2)
        Tensor([0., 2., 4., 6., 8.], dtype=float32)
    """
    arrays = is_array(x) or isinstance(x, tuple | Mapping)
    data = Batches(x, batch_size) if arrays else require_iterable("predict", x)
    with mode(model, False), no_grad():
        results = list(_results(forward_of(model, compile, mesh, batch), data))
    return jax.tree_util.tree_map(lambda *parts: new_tensor(np.concatenate(parts)), *results)


def _results(forward: Any, data: Any) -> Iterator[Any]:
    """Yield the results of batches as NumPy arrays."""
    for batch in checked("predict", data):
        inputs = tensors(batch)
        result = jax.tree_util.tree_map(as_tensor, forward(inputs))
        count = rows_of(inputs)
        leaves: list[Tensor] = jax.tree_util.tree_leaves(result)
        if not all([leaf.shape and leaf.shape[0] == count for leaf in leaves]):
            raise ShapeError(f"predict: the model must return one row for each of the {count} examples",
                             got=", ".join([str(leaf.shape) for leaf in leaves]) or "no tensors",
                             hint="Call the model yourself if its result is about a whole batch.")
        yield jax.tree_util.tree_map(lambda leaf: leaf.numpy(), result)

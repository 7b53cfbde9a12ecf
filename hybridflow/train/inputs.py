"""The inputs of the loops: arrays that are cut into batches, iterables of batches, and metrics by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, cast

import jax
import numpy as np

from hybridflow import metrics as metrics_module
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.functions import as_traced
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.data.batches import Batches
from hybridflow.metrics.means import Mean
from hybridflow.metrics.metric import Metric


class MeanOf(Mean):
    """The mean over examples of a function of predictions and targets.

    Args:
        function: a function that returns a value per example, or the mean of a batch.
        by_rows: whether the sum of the weighted values is divided by the number of examples, as a loss to minimize is,
            and not by the sum of their weights.
    """

    def __init__(self, function: Callable[[Any, Any], Any], by_rows: bool = False) -> None:
        super().__init__()
        self.function, self.by_rows = function, by_rows

    def update(self, prediction: Any, target: Any = None, sample_weight: Any = None) -> None:
        """Add a batch."""
        self.take(as_traced(self.function)(prediction, target), rows_of(prediction), sample_weight)

    def take(self, values: Any, rows: int, sample_weight: Any = None) -> None:
        """Add the values of a batch; each example has the same weight if none are given."""
        values = as_tensor(values)
        share = rows / values.size if values.size else 0.0
        weights = self._weights(sample_weight, values)
        if weights is not None:
            values = values * weights
        self._add("total", values if share == 1 else values * share)
        self._add("count", float(rows) if weights is None or self.by_rows else weights * share)


def is_array(data: Any) -> bool:
    """Whether data is one array of any package, or a table with an ``__array__`` method."""
    return isinstance(data, np.ndarray | Tensor | Variable) or hasattr(data, "__array__")


def batches_of(
    what: str, x: Any, y: Any, sample_weight: Any, size: int, *, shuffle: bool = False, seed: int | None = None
) -> Any:
    """Return batches of inputs and targets, and of weights if there are any.

    Args:
        what: the caller, for messages.
        x: the inputs: an array with a row per example, or a tuple or mapping of such arrays; or an iterable of batches.
        y: the targets if `x` are arrays; None if it is an iterable.
        sample_weight: weights of the examples if `x` are arrays.
        size, shuffle, seed: as for `hf.data.Batches`.

    Raises:
        ArgumentError: arrays have no targets, or an iterable has targets or weights beside it.
        ArgumentTypeError: `x` is neither arrays nor an iterable.
    """
    if y is not None:
        if isinstance(x, Batches) or not (is_array(x) or isinstance(x, list | tuple | Mapping)):
            raise ArgumentError(
                f"{what}: y is given, and x is a {type(x).__name__}, whose batches have targets of their own",
                hint="Leave y out; each batch is (input, target), or (input, target, sample_weight)."
            )
        arrays = (_array(x), _array(y)) if sample_weight is None else (_array(x), _array(y), _array(sample_weight))
        return Batches(arrays, size, shuffle=shuffle, seed=seed)
    if sample_weight is not None:
        raise ArgumentError(f"{what}: sample_weight is given, and no targets", got=f"x={type(x).__name__}, y=None",
                            hint="An iterable's batches have weights of their own: (input, target, sample_weight).")
    if is_array(x) or isinstance(x, Mapping):
        raise ArgumentError(
            f"{what}: there are no targets", got=f"x={type(x).__name__}, y=None",
            hint="Give y (x itself for an autoencoder), or an iterable of batches (input, target) as x."
        )
    return require_iterable(what, x)


def require_iterable(what: str, data: Any) -> Any:
    """Return the data itself, checked to be iterable.

    Raises:
        ArgumentTypeError: it is not.
    """
    if not isinstance(data, Iterable):
        raise ArgumentTypeError(f"{what}: a {type(data).__name__} cannot be iterated over", got=repr(data)[:80],
                                hint="Give arrays, or an iterable of batches.")
    return data


def _array(data: Any) -> Any:
    return np.asarray(data) if isinstance(data, list) else data


def parts_of(what: str, batch: Any) -> tuple[Any, ...]:
    """Return the input and target of a batch as tensors, and the weights of its examples if there are any.

    Raises:
        ArgumentError: the batch has neither two nor three parts.
    """
    if not isinstance(batch, tuple | list) or len(cast("tuple[Any, ...]", batch)) not in (2, 3):
        size = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
        raise ArgumentError(f"{what}: a batch is (input, target), or (input, target, sample_weight)",
                            got=f"a {type(batch).__name__}{size}",
                            hint="Use .map(fn) to make pairs, or a loop of your own with hf.train.Run.")
    return tuple([tensors(part) for part in batch])


def tensors(batch: Any) -> Any:
    """Return a structure of arrays of any package as a structure of tensors."""
    if type(batch) is Tensor:
        return batch
    return jax.tree_util.tree_map(as_tensor, batch)


def rows_of(tree: Any) -> int:
    """Return the number of examples in a structure of tensors.

    Raises:
        ShapeError: a tensor has no axis, or the tensors have different numbers of rows.
    """
    sizes = [leaf.shape[0] if leaf.shape else None for leaf in jax.tree_util.tree_leaves(tree)]
    if not sizes or None in sizes or any([size != sizes[0] for size in sizes]):  # open sizes are equal in this trace
        shapes = ", ".join([str(leaf.shape) for leaf in jax.tree_util.tree_leaves(tree)])
        raise ShapeError("train: the tensors of a batch have one row per example each", got=shapes or "no tensors")
    return sizes[0]  # pyright: ignore[reportReturnType]


def metrics_of(what: str, metrics: Any) -> dict[str, Metric]:
    """Return metrics by name.

    Args:
        what: the caller, for messages.
        metrics: a metric, or a function of predictions and targets; or a sequence of these, which are named after their
            classes and functions; or a mapping with names.

    Raises:
        ArgumentError: two metrics have the same name.
        ArgumentTypeError: a value is neither a metric nor a function.
    """
    if isinstance(metrics, Metric | str) or callable(metrics):
        metrics = (metrics,)
    pairs = list(metrics.items()) if isinstance(metrics, Mapping) else [(None, one) for one in metrics]
    by_name: dict[str, Metric] = {}
    for given, one in pairs:
        if not isinstance(one, Metric) and (not callable(one) or isinstance(one, type)):
            kind = one.__name__ if isinstance(one, type) else type(one).__name__
            known = {name.lower(): name for name in dir(metrics_module) if name[0].isupper()}
            hint = f"Write {kind}()." if isinstance(one, type) else "Give hf.metrics objects or functions (p, y)."
            if isinstance(one, str) and one.lower() in known:
                hint = f"Write hf.metrics.{known[one.lower()]}()."
            raise ArgumentTypeError(f"{what}: a {kind} is no metric", got=repr(one)[:80], hint=hint)
        name = given if given is not None else _name_of(one)
        if name in by_name:
            raise ArgumentError(f"{what}: two metrics are called {name!r}",
                                hint='Give names: metrics={"first": ..., ...}.')
        by_name[name] = one if isinstance(one, Metric) else MeanOf(one)
    return by_name


def _name_of(metric: Any) -> str:
    """Return a metric's name: that of its class, in lower case with underscores (``top_k``), or of its function."""
    if not isinstance(metric, Metric):
        return getattr(metric, "__name__", type(metric).__name__)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(metric).__name__).lower()


def figure(value: Any) -> Any:
    """Return the result of a metric as a Python number, or as an array if it has a shape."""
    return value.item() if value.size == 1 and not value.shape else value.numpy()


def checked(what: str, data: Iterable[Any]) -> Iterator[Any]:
    """Yield the items of an iterable.

    Raises:
        ArgumentError: it yields no items.
    """
    empty = True
    for item in data:
        empty = False
        yield item
    if empty:
        raise ArgumentError(f"{what}: the data yields nothing", got=type(data).__name__,
                            hint="An iterator can be used once; give a list, hf.data.Batches or a loader.")

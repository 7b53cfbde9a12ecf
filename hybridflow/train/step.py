"""One training step: loss, gradients, metrics and update, whole or in parts."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any, cast

import jax

from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.autodiff.tape import GradientTape
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, GradientError, ShapeError
from hybridflow.core.functions import as_traced
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.metrics.metric import Metric, weights_for
from hybridflow.nested.accumulate import accumulate_gradients
from hybridflow.ops.common import cast_to
from hybridflow.ops.random import default_generator
from hybridflow.ops.reductions import mean as mean_of
from hybridflow.tracing.compile import compile as compiled
from hybridflow.train.class_weights import weights_of_targets
from hybridflow.train.inputs import MeanOf, rows_of
from hybridflow.train.loops import mode

_PLAIN = (bool, int, float, str, type(None))
_MOST_EXPLAINED = 3
"""A message explains at most this many gradients that are None."""


class Step:
    """A training step of a model, as `hybridflow.train.fit` makes it.

    Args:
        model: a function from inputs to predictions.
        loss: a function from predictions and targets to losses per example, or to their mean.
        optimizer: an optimizer of `hf.optim`.
        metrics: metrics by name; every step updates copies of them.
        class_weight: classes and the factors of their losses, or None.
        parts: the number of parts of a batch, which run one after the other.
        loss_scale: a `hf.LossScale`, or None.
        compile: whether to compile the step.
        mesh, batch: the mesh to run it on, and the axis of that over which batches are split.
    """

    def __init__(
        self, model: Any, loss: Any, optimizer: Any, metrics: Mapping[str, Metric], class_weight: Any, parts: int,
        loss_scale: Any, compile: bool, mesh: Mesh | None = None, batch: Axis = None,
    ) -> None:
        self.model, self.loss, self.optimizer, self.loss_scale = model, loss, optimizer, loss_scale
        self.metrics, self.parts = {name: _with_own_sums(one) for name, one in metrics.items()}, parts
        self.mean, self.class_weight = MeanOf(loss, by_rows=True), class_weight
        self.chosen = _step_key(model, loss, optimizer, metrics, class_weight, parts, loss_scale, compile, mesh, batch)
        self._compiled: Any = compiled(self._run, name="fit_step", mesh=mesh, batch=batch) if compile else None
        self._built = False

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """Return None: a copied optimizer does not share the step of the original."""

    def __call__(self, x: Any, *targets: Any) -> Tensor:
        """Make a step on a batch, and return the mean loss since the metrics were reset.

        Args:
            x: the inputs.
            targets: the targets, and the weights of the examples if there are any.
        """
        if self.parts > 1:
            self.build(x)
        if self._compiled is not None:
            return self._compiled(x, *targets)
        with _restored_on_failure(self._assigned_variables()):
            return self._run(x, *targets)

    def reset(self) -> None:
        """Reset the metrics and the mean loss."""
        for one in (self.mean, *self.metrics.values()):
            one.reset()

    def build(self, x: Any) -> None:
        """Call the model once, so that it makes parameters whose sizes depend on the input; nothing else changes."""
        if self._built:
            return
        self._built = True
        generator = default_generator()
        before = generator.state
        try:
            with mode(self.model, False), no_grad():
                self.model(x)
        finally:
            generator.state = before

    def _assigned_variables(self) -> list[Variable]:
        """Return the Variables that a step assigns before the optimizer's update; the update is atomic by itself."""
        variables = [default_generator()._state, *self.mean.variables()]
        if hasattr(self.model, "buffers"):
            variables += self.model.buffers()
        return variables + [variable for one in self.metrics.values() for variable in one.variables()]

    def _run(self, *batch: Any) -> Tensor:
        gradients = self._whole(*batch) if self.parts == 1 else self._in_parts(*batch)
        if self.loss_scale is None:
            as_traced(self.optimizer.update)(gradients)
        else:
            self.loss_scale.step(self.optimizer.update, self.loss_scale.unscale(gradients))
        return self.mean.result()

    def parameters(self) -> dict[str, Variable]:
        """Return the optimizer's parameters by its names for them."""
        return {one.name: one.variable for one in self.optimizer._parameters()}

    def _loss_of(self, x: Any, y: Any, *sample_weight: Any) -> Tensor:
        """Return the mean loss of some examples, scaled if there is a loss scale; this also updates the metrics."""
        prediction = as_traced(self.model)(x)
        losses = as_tensor(as_traced(self.loss)(prediction, y))
        rows = rows_of(x)
        if losses.shape and losses.shape[0] != rows:
            raise ShapeError(f"fit: the loss has shape {losses.shape}, the batch {rows} examples",
                             got=f"loss={getattr(self.loss, '__name__', self.loss)!r}",
                             hint="Return one loss per example (rows first), or their mean.")
        for metric in self.metrics.values():
            as_traced(metric.update)(prediction, y, *sample_weight)
        if self.class_weight is not None:
            factors = weights_of_targets("fit", self.class_weight, y, losses.ndim, losses.dtype)
            losses = losses * weights_for("fit: class_weight", factors, losses)
        for weights in sample_weight:
            losses = losses * cast_to(weights_for("fit", weights, losses), losses.dtype)
        self.mean.take(losses, rows)
        mean = mean_of(losses)
        return mean if self.loss_scale is None else self.loss_scale.scale(mean)

    def _whole(self, *batch: Any) -> dict[str, Any]:
        with GradientTape() as tape:
            loss = self._loss_of(*batch)
        parameters = self.parameters()
        gradients = tape.gradient(loss, parameters)
        missing = [name for name, gradient in gradients.items() if gradient is None]
        if missing:
            why = [f"{name}: {tape.why_none(loss, parameters[name])}" for name in missing[:_MOST_EXPLAINED]]
            raise GradientError(f"fit: {len(missing)} of {len(gradients)} gradients are None", got="; ".join(why),
                                hint="Freeze what is not learned, or give the optimizer the parameters of this model.")
        return gradients

    def _in_parts(self, *batch: Any) -> dict[str, Any]:
        """Return the gradients of the mean loss, computed part by part; the last part may have fewer rows."""
        rows = rows_of(batch[0])
        size = -(-rows // self.parts)
        count, rest = divmod(rows, size)
        gradients = self._of_equal_parts(batch, slice(0, count * size), count)
        if rest == 0:
            return gradients
        last = self._of_equal_parts(batch, slice(count * size, rows), 1)
        return {
            name: gradient * (count * size / rows) + last[name] * (rest / rows) for name, gradient in gradients.items()
        }

    def _of_equal_parts(self, batch: tuple[Any, ...], rows: slice, count: int) -> dict[str, Any]:
        examples = jax.tree_util.tree_map(lambda leaf: leaf[rows], batch)
        step = accumulate_gradients(
            self._loss_of, count, None, batch_argnums=tuple(range(len(batch))), variables=self.parameters()
        )
        return step(*examples)[1]


def _step_key(model: Any, loss: Any, optimizer: Any, metrics: Mapping[str, Metric], *rest: Any) -> list[Any]:
    """Return a key that is equal for equal steps; it identifies objects by id, and a step keeps them alive."""
    named = [(name, _metric_key(one)) for name, one in metrics.items()]
    return [_identity(model), _identity(loss), id(optimizer), named, *rest]


def _identity(value: Any) -> Any:
    """Return a key that is equal for the same object, or for the same method of one object."""
    return (id(value.__self__), id(value.__func__)) if isinstance(value, MethodType) else id(value)


def _metric_key(metric: Metric) -> Any:
    """Return a key that is equal for metrics that measure the same; what their objects hold is watched by the trace."""
    settings = [(name, value) for name, value in vars(metric).items() if name != "_sums"]
    return type(metric), [
        (name, type(value), value if isinstance(value, _PLAIN) else _identity(value)) for name, value in settings
    ]


def _with_own_sums(metric: Metric) -> Metric:
    """Return a copy of a metric with Variables of its own, which shares everything else with it."""
    made, memo = copy.copy(metric), dict[int, Any]()
    own = {id(variable) for variable in metric.variables()}
    for name, value in vars(metric).items():
        if any([id(leaf) in own for leaf in jax.tree_util.tree_leaves(value)]):
            setattr(made, name, copy.deepcopy(value, memo))
    return made


@contextmanager
def _restored_on_failure(variables: Sequence[Variable]) -> Generator[None]:
    """Return a context that restores Variables if it fails."""
    before = [variable.read() for variable in variables]
    try:
        yield
    except BaseException:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)
        raise


def step_of(
    model: Any, loss: Callable[[Any, Any], Any], optimizer: Any, metrics: Mapping[str, Metric], class_weight: Any,
    parts: int, loss_scale: Any, compile: bool, mesh: Mesh | None = None, batch: Axis = None,
) -> Step:
    """Return the optimizer's last step if it is equal, so that nothing is traced again; else a new step.

    Raises:
        ArgumentError: `parts` is no integer from 1 on.
        ArgumentTypeError: the model or loss cannot be called, or the optimizer has no update.
    """
    usual = {"model": "hf.nn.Sequential(...)", "loss": "hf.nn.softmax_cross_entropy or hf.nn.mse"}
    for name, one in (("model", model), ("loss", loss)):
        if not callable(one):
            raise ArgumentTypeError(f"fit: the {name} cannot be called", got=repr(one)[:80],
                                    hint=f"Give a function, such as {usual[name]}.")
    if isinstance(optimizer, type) or not hasattr(optimizer, "update"):
        raise ArgumentTypeError("fit: the optimizer has no update", got=repr(optimizer)[:80],
                                hint="Make it with the model, such as hf.optim.Adam(model).")
    if not isinstance(cast(object, parts), int) or parts < 1:
        raise ArgumentError("fit: parts must be an int, 1 at least", got=f"parts={parts!r}")
    step = Step(model, loss, optimizer, metrics, class_weight, parts, loss_scale, compile, mesh, batch)
    last: Step | None = getattr(optimizer, "_fit_step", None)
    if last is not None and last.chosen == step.chosen:
        return last
    optimizer._fit_step = step
    return step

"""`fit`: epochs over data, with metrics, validation and callbacks."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any, Self, cast

from hybridflow.core.assignments import assign_all
from hybridflow.core.errors import ArgumentError, ArgumentTypeError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.mesh import Axis, Mesh
from hybridflow.core.variable import Variable
from hybridflow.ops.random import integers
from hybridflow.saving.checkpoints import Checkpoints
from hybridflow.saving.values import flat, variables_of
from hybridflow.train.class_weights import weights_of_classes
from hybridflow.train.inputs import batches_of, figure, is_array, metrics_of, parts_of
from hybridflow.train.loops import Metrics, figures, forward_of, mode
from hybridflow.train.records import larger_is_better
from hybridflow.train.run import Run
from hybridflow.train.step import Step, step_of


@with_foreign_keywords
def fit(
    model: Any,
    x: Any,
    y: Any = None,
    *,
    loss: Callable[[Any, Any], Any],
    optimizer: Any,
    epochs: int = 1,
    batch_size: int = 32,
    shuffle: bool = True,
    metrics: Metrics = (),
    validation: Any = None,
    sample_weight: Any = None,
    class_weight: Any = None,
    parts: int = 1,
    compile: bool = True,
    callbacks: Sequence[Callable[[Run], Any]] = (),
    loss_scale: Any = None,
    directory: str | os.PathLike[str] | None = None,
    restore_best: bool | str = False,
    progress: bool = True,
    mesh: Mesh | None = None,
    batch: Axis = None,
) -> dict[str, list[Any]]:
    """Train a model for some epochs.

    Args:
        model: a module, or a function of an input.
        x: inputs with a row per example: an array, or a tuple or mapping of arrays; or an iterable of batches
            ``(input, target)`` or ``(input, target, sample_weight)``, such as `hf.data.Batches`. Each epoch iterates
            over it once.
        y: the targets, if x are inputs.
        loss: a function from predictions and targets to a loss per example, such as `hf.nn.softmax_cross_entropy`, or
            to their mean. It is averaged over a batch.
        optimizer: an optimizer of the model's parameters.
        epochs: the number of passes over the data.
        batch_size: the number of examples in a batch of arrays; the last batch may have fewer.
        shuffle: whether each epoch has a new order of the arrays' rows; `hf.random.seed` makes it repeatable.
        metrics: the metrics beside the loss, as for `evaluate`. Copies of them are updated, not the objects themselves.
        validation: inputs and targets, or inputs, targets and weights; or an iterable of batches. The loss and the
            metrics are measured on it after each epoch, not in training mode.
        sample_weight: factors of the examples' losses, if x are inputs; their sum is divided by the number of
            examples. In metrics they say how much each example counts.
        class_weight: factors of the losses by class, in training only: a mapping from classes (1 for those that it
            lacks), or one for each class. Targets are classes, or weights of the classes on the last axis, of which
            the largest counts. ``"balanced"`` makes all classes of the array `y` weigh the same.
        parts: the number of parts of a batch. They run one after the other, so that only one part's activations are in
            memory at a time. The gradient is that of the whole batch.
        compile: whether to compile steps and validation; the numbers are the same.
        callbacks: functions of the run, called in order after each epoch. They see the present weights, ``run.epoch``
            and ``run.last("val_loss")``; ``run.stop()`` ends the training.
        loss_scale: a `hf.LossScale` for a model in float16.
        directory: the directory of checkpoints and a log. Each epoch writes a checkpoint. If the directory has
            checkpoints already, the training resumes from the newest one.
        restore_best: whether the model has the weights of the best epoch at the end: that with the smallest
            ``"val_loss"``, or ``"loss"`` without a validation. A name such as ``"val_accuracy"`` chooses the figure.
        progress: whether to show the progress; see `Run`.
        mesh: the devices that run each step together; `hf.distribute.shard` says how the model lies there.
        batch: the mesh axis (or a tuple of several) over which batches are split; the mesh's first one if not given.

    Returns:
        The mean loss of each epoch as ``"loss"``, and the metrics by name; the names of those of validation start with
        ``"val_"``. If the run was resumed, the earlier epochs are included.

    Raises:
        ArgumentError: there are no targets, a batch has other parts, the data yields nothing, or `restore_best` names
            no figure.
        LayoutError: the mesh has no such axis, or there is a `batch` and no mesh.
        GradientError: the loss does not depend on a parameter of the optimizer.
        ShapeError: the loss and the batch have different numbers of examples, or the loss is one number and there are
            weights.

    Example:
        >>> import hybridflow as hf
        >>> import numpy as np
        >>> x = np.random.default_rng(0).standard_normal((64, 3)).astype(np.float32)
        >>> y = x @ np.array([[1.0], [2.0], [3.0]], np.float32)
        >>> model = hf.nn.Linear(3, 1)
        >>> history = hf.train.fit(model, x, y, loss=hf.nn.mse, optimizer=hf.optim.Adam(model, rate=0.1), epochs=40,
        ...                        validation=(x, y), progress=False)
        >>> history["val_loss"][-1] < 0.01, [*history], len(history["loss"])
        (True, ['loss', 'val_loss'], 40)
    """
    for name, count in (("epochs", epochs), ("batch_size", batch_size)):
        if not isinstance(cast(object, count), int) or count < 1:
            raise ArgumentError(f"fit: {name} must be an int, 1 at least", got=f"{name}={count!r}")
    for callback in callbacks:
        if not callable(callback):
            raise ArgumentTypeError("fit: a callback is a function of the run", got=repr(callback)[:80],
                                    hint="Write callbacks=[lambda run: ...].")
    if mesh is not None and not compile:
        raise ArgumentError("fit: a mesh runs compiled steps", got="compile=False", hint="Leave one out.")
    over = mesh.axes[0] if mesh is not None and batch is None else batch
    weights = weights_of_classes("fit", class_weight, y)
    step = step_of(model, loss, optimizer, metrics_of("fit", metrics), weights, parts, loss_scale, compile, mesh, over)
    if "loss" in step.metrics:
        raise ArgumentError("fit: a metric is called 'loss', as the loss is", hint="Give it another name.")
    seed = integers(0, 2**31 - 1).item() if y is not None and shuffle else None
    data = batches_of("fit", x, y, sample_weight, batch_size, shuffle=shuffle, seed=seed)
    held_out = None if validation is None else _validation(validation, batch_size)
    if directory is not None and Checkpoints(directory).newest() is not None:
        first, data = _first_of(data)
        step.build(parts_of("fit", first)[0])
    run = _run_of(step, data, directory, progress)
    best = Best.of(restore_best, run, step, held_out is not None)
    forward = None if held_out is None else forward_of(model, compile, mesh, over)
    total = epochs * len(data) if hasattr(data, "__len__") else None
    trains = nullcontext() if getattr(model, "training", True) else mode(model, True)
    with trains, run.loop(total):
        while run.epoch < epochs and not run.stopped:
            _epoch(run, step, held_out, callbacks, forward, best)
    run.close()
    if best is not None:
        best.restore()
    return {name: list(values) for name, values in run.state.get("history", {}).items()}


def _validation(given: Any, batch_size: int) -> Any:
    count = len(cast("tuple[Any, ...]", given)) if isinstance(given, tuple) else 0
    arrays = count == 2 or (count == 3 and is_array(given[2]))
    x, y, sample_weight = (*given, None)[:3] if arrays else (given, None, None)
    return batches_of("fit: validation", x, y, sample_weight, batch_size)


def _first_of(data: Any) -> tuple[Any, Any]:
    """Return the first item of data, and data that still yields it."""
    source = iter(data)
    if source is data:
        first = next(source)
        return first, chain([first], source)
    before = data.state() if hasattr(data, "state") else None
    first = next(source)
    if before is not None:
        data.restore(before)
    return first, data


def _run_of(step: Step, data: Any, directory: Any, progress: bool) -> Run:
    is_module = hasattr(step.model, "named_parameters")
    return Run(
        directory,
        model=step.model if is_module else None,
        optimizer=step.optimizer,
        data=data,
        metrics=[step.mean, *step.metrics.values()],
        loss_scale=step.loss_scale,
        variables=None if is_module or directory is None else step.parameters(),
        progress=progress,
    )


def _epoch(
    run: Run, step: Step, validation: Any, callbacks: Sequence[Callable[[Run], Any]], forward: Any, best: Best | None
) -> None:
    """Run the rest of an epoch, then the validation, the log, the callbacks and the checkpoint."""
    if run.at_start_of_epoch:
        step.reset()
    for batch in run.rest_of_epoch():
        run.show(loss=step(*parts_of("fit", batch)))
    with run.undivided():
        measured = {"loss": step.mean, **step.metrics}
        results = {name: figure(one.result()) for name, one in measured.items()}
        if validation is not None:
            after = figures(step.model, forward, validation, measured)
            results |= {f"val_{name}": value for name, value in after.items()}
        history = run.state.setdefault("history", {})
        for name, value in results.items():
            history.setdefault(name, []).append(value if isinstance(value, int | float) else value.tolist())
        run.log({name: value for name, value in results.items() if isinstance(value, int | float)})
        for callback in callbacks:
            _call(callback, run)
        if best is not None:
            best.epoch_ends()
        elif run.directory is not None and not run.is_saved:
            run.checkpoint(keep=2)


def _call(callback: Callable[[Run], Any], run: Run) -> None:
    try:
        callback(run)
    except Exception as error:
        name = getattr(callback, "__name__", repr(callback))
        error.add_note(f"fit: raised by the callback {name}, after epoch {run.epoch}; its weights are kept")
        raise


# -- the weights of the best epoch of `fit`: in its best checkpoint, or in memory if it has no directory --------------


class Best:
    """The weights of the best epoch so far.

    Args:
        name: the figure that says which epoch is best.
        run: the run.
        step: its step, whose model's weights are kept.
    """

    def __init__(self, name: str, run: Run, step: Step) -> None:
        self._name, self._run, self._step = name, run, step
        self._kept: Mapping[str, Any] = {}

    @classmethod
    def of(cls, wanted: bool | str, run: Run, step: Step, validated: bool) -> Self | None:
        """Return the best epoch by the argument ``restore_best`` of `fit`; None if it is false.

        Raises:
            ArgumentError: there is no such figure, or it is not known whether larger is better.
        """
        if not wanted:
            return None
        known = ["loss", *step.metrics]
        known += [f"val_{name}" for name in known] if validated else []
        name = wanted if isinstance(wanted, str) else "val_loss" if validated else "loss"
        if name not in known:
            raise ArgumentError(f"fit: restore_best: there is no figure {name!r}", got=", ".join(known))
        larger_is_better("fit: restore_best", name, None)
        return cls(name, run, step)

    def epoch_ends(self) -> None:
        """Write the epoch's checkpoint with its score, or keep the weights if they are the best so far."""
        if self._run.directory is not None:
            self._run.checkpoint(keep=2, best=self._name)
        elif not self._run.stalled(self._name, 1):
            self._kept = {path: one.read() for path, one in self._weights().items()}

    def restore(self) -> None:
        """Assign the weights of the best epoch."""
        kept = self._kept
        if self._run.directory is not None:
            found = Checkpoints(self._run.directory).best(self._structure())
            kept = {} if found is None else found.values
        weights = self._weights() if kept else {}
        assign_all(weights, {path: kept[path] for path in weights}, what="fit: restore_best")

    def _structure(self) -> dict[str, Any]:
        if hasattr(self._step.model, "named_parameters"):
            return {"model": self._step.model}
        return {"variables": self._step.parameters()}

    def _weights(self) -> Mapping[str, Variable]:
        return variables_of(flat(self._structure(), "fit"), "fit")

"""`hf.quantize.report`: what quantizing a model saved, and what it cost, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from rich.text import Text

from hybridflow.analysis.memory import format_size
from hybridflow.analysis.report import titled_table
from hybridflow.analysis.timing import Timed, Timing, format_seconds, interleave
from hybridflow.autodiff.requires_grad import no_grad
from hybridflow.compress.batch_norm import fuse_batch_norm
from hybridflow.compress.layers import QuantizedConv, QuantizedEmbedding, QuantizedLinear
from hybridflow.compress.replacing import copied, in_evaluation, inputs_of, modules_of, require_module, watched
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.report import Report
from hybridflow.core.tensor import as_tensor
from hybridflow.metrics import Accuracy
from hybridflow.nn.layers.module import Module
from hybridflow.nn.layers.normalization import BatchNorm
from hybridflow.nn.layers.simple import Identity
from hybridflow.tracing.compile import compile as compiled
from hybridflow.train.loops import evaluate

Array = np.ndarray[Any, Any]
_REPEATS = 20
_CLEARLY = 1.1
"""A note is made if a layer got slower by this factor or more."""


@dataclass(frozen=True)
class LayerReport:
    """What quantizing did to one layer.

    Attributes:
        path, type: where it is, and what it is now.
        bytes_before, bytes_after: the size of its parameters and buffers.
        error: the norm of the change of its result for the same input, relative to the norm of the result.
        sensitivity: the same of the whole model's result, if only this layer is quantized.
        seconds_before, seconds_after: the time of a compiled call with the input that it gets.
    """

    path: str
    type: str
    bytes_before: int
    bytes_after: int
    error: float
    sensitivity: float
    seconds_before: float
    seconds_after: float


@dataclass(frozen=True, repr=False)
class QuantizationReport(Report):
    """The result of `report`.

    Attributes:
        layers: one per quantized layer.
        kept: the paths of other modules with parameters, which are as before.
        examples: the number of examples in the call that was timed.
        bytes_before, bytes_after: the size of all parameters and buffers.
        error: the norm of the change of the model's result, relative to the norm of the result.
        seconds_before, seconds_after: the time of a compiled call of the model.
        score_before, score_after: the metric, where targets were given.
    """

    layers: tuple[LayerReport, ...]
    kept: tuple[str, ...]
    examples: int
    bytes_before: int
    bytes_after: int
    error: float
    seconds_before: float
    seconds_after: float
    score_before: float | None
    score_after: float | None

    @property
    def slowest(self) -> LayerReport:
        """The layer whose call takes the longest now."""
        return max(self.layers, key=lambda one: one.seconds_after)

    @property
    def most_sensitive(self) -> LayerReport:
        """The layer that changes the model's result the most."""
        return max(self.layers, key=lambda one: one.sensitivity)

    def parts(self) -> list[Any]:
        """Return the table, and what it shows."""
        numbers = ("before", "after", "error", "sensitivity", "before", "after")
        printed = titled_table(f"Quantized; times of {self.examples} examples, compiled", ("layer", ""), numbers)
        for one in self.layers:
            printed.add_row(Text(one.path), Text(one.type), *_cells(one))
        printed.add_row("model", "", *_cells(self))
        return [printed, *self.notes()]

    def notes(self) -> list[str]:
        """Return what the table shows, one sentence each."""
        notes = [f"{self.bytes_before / max(self.bytes_after, 1):.2f} times smaller."]
        if self.score_before is not None and self.score_after is not None:
            notes.append(f"Score: {self.score_before:.4g} before, {self.score_after:.4g} after.")
        sensitive, slowest = self.most_sensitive, self.slowest
        notes.append(f"Most sensitive: {sensitive.path}; alone it changes the result by {sensitive.sensitivity:.2%}.")
        notes.append(f"Slowest: {slowest.path}, {format_seconds(slowest.seconds_after)}.")
        if self.seconds_after > _CLEARLY * self.seconds_before:
            notes.append(
                f"XLA takes {self.seconds_after / self.seconds_before:.1f} times as long as with floats for "
                f"{self.examples} examples here. For speed, run it with ONNX Runtime: "
                'hf.export.onnx(path, model, *specs, quantize="dynamic"). For size alone, use hf.quantize.weights.'
            )
        if self.kept:
            notes.append(f"As before: {', '.join(self.kept)}.")
        return notes


def _cells(one: LayerReport | QuantizationReport) -> list[str]:
    sensitivity = f"{one.sensitivity:.2%}" if isinstance(one, LayerReport) else ""
    return [
        format_size(one.bytes_before), format_size(one.bytes_after), f"{one.error:.2%}", sensitivity,
        format_seconds(one.seconds_before), format_seconds(one.seconds_after),
    ]


@with_foreign_keywords
def report(
    before: Module, after: Module, x: Any, y: Any = None, *, metrics: Any = None, examples: int = 1,
    repeats: int = _REPEATS,
) -> QuantizationReport:
    """Compare a quantized model with the one it was made of.

    Args:
        before: the model.
        after: what `weights`, `dynamic`, `static` or `convert` made of it.
        x: examples, as an array with a row for each, or a tuple of such arrays, with which the models are called.
        y: targets; accuracy, or another metric, is then measured before and after.
        metrics: as for `hf.train.evaluate`; `hf.metrics.Accuracy()` if not given.
        examples: how many examples the timed calls get.
        repeats: how often each call is timed.

    Returns:
        Sizes, errors, times and scores, which print as a table; ``.to_dict()`` gives plain values. A layer's
        sensitivity is the error of the whole model if that layer alone is quantized.

    Raises:
        ArgumentError: no layer of `after` is quantized.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(64, 256), hf.nn.relu, hf.nn.Linear(256, 10))
        >>> found = hf.quantize.report(model, hf.quantize.weights(model), hf.random.normal((8, 64)))
        >>> [one.path for one in found.layers], found.error < 0.02
        (['0', '2'], True)
    """
    require_module("report", before)
    require_module("report", after)
    after, args = in_evaluation(after), tuple(map(as_tensor, inputs_of(x)))
    new = modules_of(after)
    paths = [path for path, one in new.items() if isinstance(one, QuantizedLinear | QuantizedConv | QuantizedEmbedding)]
    if not paths:
        raise ArgumentError("report: no layer of the second model is quantized", got=type(after).__name__,
                            hint="Give the model first, and what hf.quantize made of it second.")
    reference = _as_fused(before, new, args)
    old = modules_of(reference)
    expected, inputs = _recorded(reference, paths, args)
    shorter = tuple([one[:examples] for one in args])
    small = _recorded(reference, paths, shorter)[1]
    layers = tuple([
        _layer_report(path, old[path], new[path], inputs[path], small[path], repeats,
                      lambda path=path: _error(_result(copied(reference, {path: new[path]}).eval(), args), expected))
        for path in paths
    ])
    first, second = _times(in_evaluation(before), after, shorter, repeats)
    scores = _scores(before, after, args, y, metrics)
    return QuantizationReport(
        layers, _kept(after, paths), int(shorter[0].shape[0]) if shorter[0].ndim else 1, _bytes(before), _bytes(after),
        _error(_result(after, args), expected), first, second, *scores,
    )


def _layer_report(
    path: str, old: Any, new: Any, x: Any, small: Any, repeats: int, sensitivity: Callable[[], float]
) -> LayerReport:
    with no_grad():
        error = _error(np.asarray(new(x).numpy()), np.asarray(old(x).numpy()))
    first, second = _times(old, new, (small,), repeats)
    return LayerReport(path, type(new).__name__, _bytes(old), _bytes(new), error, sensitivity(), first, second)


def _as_fused(before: Any, new: dict[str, Any], args: tuple[Any, ...]) -> Any:
    """Return the model before, with its normalisations fused if those of the quantized one are."""
    old = modules_of(before)
    fused = any([isinstance(one, BatchNorm) and isinstance(new.get(path), Identity) for path, one in old.items()])
    return fuse_batch_norm(before, *args) if fused else in_evaluation(before)


def _recorded(model: Any, paths: Sequence[str], args: tuple[Any, ...]) -> tuple[Array, dict[str, Any]]:
    """Return a model's result, and the input of each layer in its first call."""
    inputs: dict[str, Any] = {}

    def record(path: str) -> Any:
        return lambda x, y: inputs.setdefault(path, as_tensor(x))

    return _result(watched(model, paths, record), args), inputs


def _result(model: Any, args: tuple[Any, ...]) -> Array:
    with no_grad():
        return np.asarray(as_tensor(model(*args)).numpy(), np.float64)


def _error(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / max(float(np.linalg.norm(expected)), 1e-30))


def _times(before: Any, after: Any, args: tuple[Any, ...], repeats: int) -> tuple[float, float]:
    calls = [Timed(_compiled_call(one, args)) for one in (before, after)]
    times: list[Timing] = interleave(calls, repeats=repeats)
    return times[0].median, times[1].median


def _compiled_call(model: Any, args: tuple[Any, ...]) -> Callable[[], Any]:
    fast = compiled(lambda *xs: model(*xs))
    fast(*args)
    return lambda: fast(*args)


def _scores(before: Any, after: Any, args: Any, y: Any, metrics: Any) -> tuple[float | None, float | None]:
    if y is None:
        return None, None
    x = args[0] if len(args) == 1 else args
    chosen = Accuracy() if metrics is None else metrics
    return float(evaluate(before, x, y, metrics=chosen)), float(evaluate(after, x, y, metrics=chosen))


def _kept(model: Any, paths: Sequence[str]) -> tuple[str, ...]:
    owners = {path.rpartition(".")[0] for path in model.named_parameters()}
    return tuple(sorted(owners - {*paths}))


def _bytes(model: Any) -> int:
    return sum([one.nbytes for one in model.state_dict().values()])

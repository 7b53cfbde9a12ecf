"""Rules of convolutions and pooling for values that are padded up to a bound (see `hybridflow.core.padding`).

Along an open axis, elements beyond the real size get the value with which the operation itself pads. A window that
begins within the real size then sees what it would see at the end of the real array.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Padded, Rule, separate
from hybridflow.core.spec import TensorSpec
from hybridflow.ops.nn.windows import spatial_axes
from hybridflow.ops.padding import Neutral, constant
from hybridflow.ops.padding_index import single


def windowed(neutral: Neutral, *, inputs: int = 1) -> Rule:
    """Return the rule of an operation on windows of each example of a batch.

    Args:
        neutral: the value with which it pads its first input.
        inputs: how many of its first inputs hold examples; the others are parameters.
    """

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        examples, parameters = call.xs[:inputs], call.xs[inputs:]
        _require_closed_channels(examples, parameters, call)
        values = [x.value for x in call.xs]
        values[0] = _filled(b, call.xs[0], neutral, call).value
        results = b.run(call, *values)
        return [Padded(y, _axes(b, call, spec)) for y, spec in zip(results, call.specs, strict=True)]

    return rule


@separate
def summed_windows(b: Bounds, call: Call) -> list[Padded]:
    """Sum products of inputs and gradients over the batch and over positions, with zeros beyond real sizes."""
    _require_closed_channels(call.xs, [], call)
    values = [_filled(b, b.filled(x, 0, 0), constant(0), call).value for x in call.xs]
    (value,) = b.run(call, *values)
    return [Padded(value, (None,) * value.ndim)]


@separate
def averaged_windows(b: Bounds, call: Call) -> list[Padded]:
    """Average over the real elements of each window."""
    (x,) = call.xs
    (averages,) = windowed(constant(0))(b, call)
    if not _cut_windows(x, call):
        return [averages]
    return [averages._replace(value=averages.value / _shares(b, x, call))]


def spread_windows(b: Bounds, call: Call) -> list[Padded]:
    """Spread the gradient of each window's average over its real elements."""
    (g,) = call.xs
    axes = _axes(b, call, call.specs[0])
    shape = tuple([b.bound(size) for size in call.specs[0].shape])
    whole = Padded(b.F.full(shape, 0, dtype=g.value.dtype), axes)
    if _cut_windows(whole, call):
        g = g._replace(value=g.value / _shares(b, whole, call))
    return [*windowed(constant(0))(b, call._replace(xs=[g]))]


def _shares(b: Bounds, x: Padded, call: Call) -> Any:
    """Return, for each window, the fraction of real elements among those that it counts."""
    ones = Padded(b.F.full(x.value.shape, 1, dtype=x.value.dtype), x.axes)
    attrs = {name: value for name, value in call.attrs.items() if name != "shape"}
    return b.bind("avg_pool", _filled(b, ones, constant(0), call).value, **attrs)


def _cut_windows(x: Padded, call: Call) -> bool:
    """Whether windows reach beyond the end of an axis that is open."""
    ends = [high for _, high in call.attrs["padding"]]
    return any([x.axes[axis] is not None and end != 0 for axis, end in zip(_spatial(call), ends, strict=True)])


def _spatial(call: Call) -> Sequence[int]:
    return spatial_axes(call.op.name, len(call.xs[0].axes), call.attrs["channels_last"])


def _filled(b: Bounds, x: Padded, neutral: Neutral, call: Call) -> Padded:
    for axis in _spatial(call):
        if x.axes[axis] is not None:
            single(x, axis)
        x = b.filled(x, axis, neutral(x.value.dtype))
    return x


def _require_closed_channels(examples: Sequence[Padded], parameters: Sequence[Padded], call: Call) -> None:
    within = {0, *_spatial(call)}
    first, *others = examples
    if any([axis not in within for axis in first.open()]):
        raise NoRule("the number of channels is open")
    for x in others:
        _require_same(first.axes, x.axes)
    if any([one.open() for one in parameters]):
        raise NoRule("a weight's size is open")


def _require_same(axes: Axes, others: Axes) -> None:
    """Raise unless the same axes are open and the batches have one size."""
    if [one is None for one in axes] != [one is None for one in others]:
        raise NoRule("other axes are open than those of the first input")
    if axes[0] is not None and not axes[0].same(others[0]):
        raise NoRule("batches of two sizes meet")


def _axes(b: Bounds, call: Call, spec: TensorSpec) -> Axes:
    """Return how a result is padded; the same axes must be open as in the input."""
    axes = b.axes_of(spec)
    _require_same(call.xs[0].axes, axes)
    return axes

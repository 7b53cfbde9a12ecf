"""Rules by which single operations work on values padded up to a bound (see `hybridflow.core.padding`)."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import bool_, kind_of
from hybridflow.core.padding import Bounds, Call, NoRule, Open, Padded, Rule, separate
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import asarray
from hybridflow.ops.padding import (
    Neutral,
    along,
    canonical,
    highest,
    listed,
    lowest,
    number_of,
    outer,
    remaining,
    together,
)
from hybridflow.ops.padding_index import picked, single

# -- statistics -------------------------------------------------------------------------------------------------------


def variance(root: bool) -> Rule:
    """Return the rule of `var`, or of `std` if `root`: deviations of real elements from the mean of real elements."""

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        (x,) = call.xs
        F, axis = b.F, call.attrs["axis"]
        if not any([x.axes[one] for one in axis]):
            return [*along()(b, call)]
        dtype = x.value.dtype
        wide = Padded(x.value.astype("float32") if dtype.itemsize < 4 else x.value, x.axes)
        for one in axis:
            wide = b.filled(wide, one, 0)
        number = number_of(b, wide, axis).astype(wide.value.dtype)
        deviation = Padded(wide.value - F.sum(wide.value, axis=axis, keepdims=True) / number, x.axes)
        deviation = Padded(deviation.value, tuple([one and one.anything for one in x.axes]))
        for one in axis:
            deviation = b.filled(deviation, one, 0)
        total = F.sum(deviation.value * deviation.value, axis=axis, keepdims=call.attrs["keepdims"])
        value = total / F.maximum(number - call.attrs["correction"], 0)
        value = (F.sqrt(value) if root else value).astype(dtype)
        return [Padded(value, remaining(x.axes, axis, value))]

    return rule


@separate
def normed(b: Bounds, call: Call) -> list[Padded]:
    """Compute norms; zeros beyond the real size change no norm of positive order."""
    order = call.attrs["order"]
    if not isinstance(order, int | float) or order <= 0:
        return [*along()(b, call)]
    return [*along(lambda dtype: 0)(b, call)]


@separate
def ordered(b: Bounds, call: Call) -> list[Padded]:
    """Sort; elements beyond the real size come last, after equal real elements."""
    (x,) = call.xs
    axis = call.attrs["axis"]
    if x.axes[axis] is not None:
        single(x, axis)
    return [*along(lowest if call.attrs["descending"] else _last)(b, call)]


def _last(dtype: Any) -> Any:
    """Return the value that comes last in ascending order: NaN, or the largest value."""
    return np.nan if kind_of(dtype) == "float" else highest(dtype)


@separate
def searched(b: Bounds, call: Call) -> list[Padded]:
    """Search a sorted row, whose padding gets the value that comes last."""
    row, x = call.xs
    if row.axes[0] is None:
        (value,) = b.run(call, row.value, x.value)
    else:
        (value,) = b.run(call, b.filled(row, 0, _last(row.value.dtype)).value, x.value)
        value = b.F.minimum(value, b.count(single(row, 0).sizes[0]))
    return [Padded(value, tuple([one and one.anything for one in x.axes]))]


def position_of(neutral: Neutral) -> Rule:
    """Return the rule of `argmax` and `argmin`, whose result counts real elements in row-major order.

    Args:
        neutral: the value that is never the result.
    """

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        (x,) = call.xs
        (result,) = along(neutral)(b, call)
        (axis,) = listed(call.attrs["axis"], len(x.axes))
        opened = x.axes[axis]
        if opened is None or len(opened.sizes) == 1:
            return [result]
        rest, total, stride = result.value, None, None
        for size in reversed(opened.sizes):
            bound = b.bound(size)
            coordinate, rest = rest % bound, rest // bound
            term = coordinate if stride is None else coordinate * stride
            total = term if total is None else total + term
            stride = b.count(size) if stride is None else stride * b.count(size)
        return [Padded(total, result.axes)]

    return rule


# -- order of elements ------------------------------------------------------------------------------------------------


@separate
def turned(b: Bounds, call: Call) -> list[Padded]:
    """Reverse axes: the last real element becomes the first."""
    (x,) = call.xs
    value = x.value
    known = tuple([axis for axis in call.attrs["axis"] if x.axes[axis] is None])
    (value,) = b.run(call, value, axis=known)
    for axis in call.attrs["axis"]:
        if axis not in known:
            last = b.count(single(x, axis).sizes[0]) - 1
            value = picked(b, value, axis, last - b.positions(value.shape[axis]))
    return [Padded(value, tuple([one and one.anything for one in x.axes]))]


@separate
def rolled(b: Bounds, call: Call) -> list[Padded]:
    """Roll elements; those that leave at the real end come in at the start."""
    (x,) = call.xs
    value = x.value
    pairs = list(zip(call.attrs["axis"], call.attrs["shift"], strict=True))
    known = [(axis, shift) for axis, shift in pairs if x.axes[axis] is None]
    if any([isinstance(shift, Dim) for _, shift in known]):
        raise NoRule("the shift is an open size")
    if known:
        (value,) = b.run(call, value, axis=tuple([a for a, _ in known]), shift=tuple([s for _, s in known]))
    for axis, shift in pairs:
        if x.axes[axis] is not None:
            size = b.F.maximum(b.count(single(x, axis).sizes[0]), 1)
            offset = b.count(shift) if isinstance(shift, Dim) else shift
            value = picked(b, value, axis, (b.positions(value.shape[axis]) - offset) % size)
    return [Padded(value, tuple([one and one.anything for one in x.axes]))]


@separate
def stacked(b: Bounds, call: Call) -> list[Padded]:
    """Join values of one shape along a new axis."""
    axes = together(call.xs, len(call.xs[0].axes))
    (value,) = b.run(call, *[x.value for x in call.xs])
    at = call.attrs["axis"]
    return [Padded(value, (*axes[:at], None, *axes[at:]))]


@separate
def bordered(b: Bounds, call: Call) -> list[Padded]:
    """Pad with a value, which also replaces everything beyond the real size."""
    x, outside = call.xs
    value, axes = x.value, [*x.axes]
    for axis, (low, high) in enumerate(call.attrs["pads"]):
        opened = axes[axis]
        if opened is None:
            if isinstance(low, Dim) or isinstance(high, Dim):
                raise NoRule("it pads by an open size")
            continue
        if isinstance(low, Dim) or isinstance(high, Dim) or low < 0 or high < 0:
            raise NoRule("it cuts an open axis, or pads it by an open size")
        value = b.F.where(b.inside(Padded(value, tuple(axes)), axis), value, outside.value)
        axes[axis] = Open(canonical([single(x, axis).sizes[0] + low + high]))
    (value,) = b.run(call, value, outside.value)
    return [Padded(value, tuple(axes))]


# -- parts of networks ------------------------------------------------------------------------------------------------


@separate
def with_parameters(b: Bounds, call: Call) -> list[Padded]:
    """Combine the first input with parameters, whose sizes must be known."""
    first, *others = call.xs
    if any([other.open() for other in others]):
        raise NoRule("a parameter has an open size")
    values = b.run(call, *[x.value for x in call.xs])
    ndim = len(first.axes)
    axes = [one and one.anything for one in first.axes]
    return [Padded(value, tuple(axes) if value.ndim == ndim else (None,) * value.ndim) for value in values]


@separate
def normalized_batch(b: Bounds, call: Call) -> list[Padded]:
    """Normalise channels by the statistics of real elements."""
    x = _with_known_channels(call)
    axes = tuple([axis for axis in range(len(x.axes)) if axis != 1])
    y, mean, variance, rstd = _normalized(b, x, axes, number_of(b, x, axes), call)
    channels = (x.value.shape[1],)
    mean, variance, rstd = [b.F.reshape(one, shape=channels) for one in (mean, variance, rstd)]
    y = _scaled(b, y, call, _of_channels(y.shape)).astype(x.value.dtype)
    results = [y, mean.astype(y.dtype), variance.astype(y.dtype)]
    results += [mean, rstd] if call.attrs.get("residuals") else []
    result_axes = tuple([one and one.anything for one in x.axes])
    return [Padded(value, result_axes if number == 0 else (None,)) for number, value in enumerate(results)]


@separate
def normalized_groups(b: Bounds, call: Call) -> list[Padded]:
    """Normalise groups of channels of each example by the statistics of real elements."""
    x = _with_known_channels(call)
    batch, channels, *spatial = x.value.shape
    groups = call.attrs["groups"]
    split = b.F.reshape(x.value, shape=(batch, groups, channels // groups, *spatial))
    parted = Padded(split, (x.axes[0], None, None, *x.axes[2:]))
    axes = tuple(range(2, len(parted.axes)))
    number = b.F.maximum(number_of(b, parted, axes), 1)
    y, mean, _, rstd = _normalized(b, parted, axes, number, call)
    y = b.F.reshape(y, shape=x.value.shape)
    y = _scaled(b, y, call, _of_channels(y.shape)).astype(x.value.dtype)
    results = [Padded(y, tuple([one and one.anything for one in x.axes]))]
    if call.attrs.get("residuals"):
        rows = (x.axes[0] and x.axes[0].anything, None, None)
        results += [Padded(b.F.reshape(one, shape=(batch, groups, 1)), rows) for one in (mean, rstd)]
    return results


def normalized_axes(*, centred: bool) -> Rule:
    """Return the rule of `layer_norm`, or of `rms_norm` if not `centred`: the statistics are those of real elements."""

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        x, *parameters = call.xs
        axes = call.attrs["axis"]
        for parameter in parameters:
            for one, axis in zip(parameter.axes, axes, strict=True):
                if (one is None) != (x.axes[axis] is None) or (one is not None and not one.same(x.axes[axis])):
                    raise NoRule("an open size of a parameter is not that of what is normalised")
        if not any([x.axes[axis] for axis in axes]):
            return [*along()(b, call)]
        number = b.F.maximum(number_of(b, x, axes), 1)
        y, *statistics = _normalized(b, x, axes, number, call, centred=centred)
        aligned = tuple([size if axis in axes else 1 for axis, size in enumerate(x.value.shape)])
        y = _scaled(b, y, call, aligned).astype(x.value.dtype)
        result_axes = tuple([one and one.anything for one in x.axes])
        results = [Padded(y, result_axes)]
        if call.attrs.get("residuals"):
            kept = [statistics[0], statistics[2]] if centred else [statistics[2]]
            results += [Padded(one, remaining(result_axes, axes, one)) for one in kept]
        return results

    return rule


def _with_known_channels(call: Call) -> Padded:
    x, *parameters = call.xs
    if x.axes[1] is not None or any([one.open() for one in parameters]):
        raise NoRule("the number of channels is open")
    return x


def _normalized(
    b: Bounds, x: Padded, axes: tuple[int, ...], number: Any, call: Call, *, centred: bool = True
) -> tuple[Any, Any, Any, Any]:
    """Return normalised elements, and the mean, variance and reciprocal deviation of real ones; float32 at least.

    Args:
        b: the builder of the graph.
        x: what is normalised.
        axes: the axes over which to average; the statistics keep them with size 1.
        number: the number of real elements that each mean averages.
        call: the operation.
        centred: whether the mean is subtracted; if not, the variance is the mean square.
    """
    F = b.F
    wide = x.value.astype("float32") if x.value.dtype.itemsize < 4 else x.value
    number = number.astype(wide.dtype)

    def mean_of(values: Any) -> Any:
        one = Padded(values, tuple([own and own.anything for own in x.axes]))
        for axis in axes:
            one = b.filled(one, axis, 0)
        return F.sum(one.value, axis=axes, keepdims=True) / number

    mean = mean_of(wide) if centred else None
    deviation = wide if mean is None else wide - mean
    variance = mean_of(deviation * deviation)
    rstd = F.rsqrt(variance + asarray(call.attrs["epsilon"], dtype=variance.dtype))
    return deviation * rstd, mean, variance, rstd


def _scaled(b: Bounds, y: Any, call: Call, aligned: tuple[int, ...]) -> Any:
    """Scale and shift by the operation's parameters, if it has any.

    Args:
        b: the builder of the graph.
        y: what is scaled.
        call: the operation.
        aligned: the shape in which a parameter broadcasts against it.
    """
    _, *parameters = call.xs
    has_scale = call.attrs.get("has_scale", bool(parameters))
    if has_scale:
        y = y * b.F.reshape(parameters[0].value, shape=aligned)
    if call.attrs.get("has_shift"):
        y = y + b.F.reshape(parameters[-1].value, shape=aligned)
    return y


def _of_channels(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple([size if axis == 1 else 1 for axis, size in enumerate(shape)])


@separate
def coded(b: Bounds, call: Call) -> list[Padded]:
    """Add an axis of classes, as `one_hot` does."""
    (x,) = call.xs
    (value,) = b.run(call, x.value)
    return [Padded(value, (*[one and one.anything for one in x.axes], None))]


@separate
def attended(b: Bounds, call: Call) -> list[Padded]:
    """Attend to real keys only."""
    query, key, value, *mask = call.xs
    if query.axes[-1] is not None or key.axes[-1] is not None or value.axes[-1] is not None:
        raise NoRule("the features of queries, keys or values have an open size")
    batch = together([outer(one) for one in (query, key, value)], len(query.axes) - 2)
    shape, scores = _scores(query, key)
    together([*mask, Padded(make_spec(shape, bool_), (*batch, *scores))], len(shape))  # raises if the mask does not fit
    values = [query.value, key.value, value.value, *[one.value for one in mask]]
    length = key.axes[-2]
    b.meet(query, -2)  # which keys a query may see can depend on its position
    has_mask = call.attrs["has_mask"]
    if length is not None:
        inside = b.F.permute_dims(b.inside(value, len(value.axes) - 2), axes=_swapped(len(value.axes)))
        values = [query.value, key.value, b.filled(value, len(value.axes) - 2, 0).value, _masked(b, mask, inside)]
        has_mask = True
    results = b.run(call, *values, has_mask=has_mask)
    rows = query.axes[-2] and query.axes[-2].anything
    axes = [(*batch, rows, None), (*batch, rows)]
    return [Padded(one, own) for one, own in zip(results, axes, strict=False)]


def probabilities(b: Bounds, call: Call) -> list[Padded]:
    """Compute the weight of each key for each query; those of keys beyond the real size may be anything."""
    query, key, _, *mask = call.xs
    if query.axes[-1] is not None or key.axes[-1] is not None:
        raise NoRule("the features of queries or keys have an open size")
    batch = together([outer(one) for one in (query, key)], len(query.axes) - 2)
    shape, scores = _scores(query, key)
    together([*mask, Padded(make_spec(shape, bool_), (*batch, *scores))], len(shape))
    (value,) = b.run(call, *[x.value for x in call.xs])
    return [Padded(value, (*batch, *scores))]


def _scores(query: Padded, key: Padded) -> tuple[tuple[int, ...], tuple[Open | None, Open | None]]:
    """Return the shape of the scores, and how their last two axes are padded."""
    shape = (*query.value.shape[:-1], key.value.shape[-2])
    return shape, (query.axes[-2] and query.axes[-2].anything, key.axes[-2] and key.axes[-2].anything)


def _swapped(ndim: int) -> tuple[int, ...]:
    return (*range(ndim - 2), ndim - 1, ndim - 2)


def _masked(b: Bounds, mask: list[Padded], inside: Any) -> Any:
    """Return a mask that also hides what is beyond the real number of keys."""
    if not mask:
        return inside
    given_mask = mask[0].value
    if given_mask.dtype == bool_:
        return b.F.logical_and(given_mask, inside)
    return b.F.where(inside, given_mask, asarray(-np.inf, dtype=given_mask.dtype))

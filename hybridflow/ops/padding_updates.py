"""Rules of updates of values that are padded up to a bound (see `hybridflow.core.padding`).

Updates beyond a real size change nothing: they get a neutral value, or go to an extra row that is cut off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hybridflow.core.dims import Dim
from hybridflow.core.op import REGISTRY
from hybridflow.core.padding import Bounds, Call, NoRule, Open, Padded, Size
from hybridflow.ops.padding import Neutral, canonical, constant, highest, lowest, together
from hybridflow.ops.padding_index import from_the_end, index_axes, index_start, picked, real_size

_NEUTRAL: Mapping[str, Neutral] = {"add": constant(0), "multiply": constant(1), "min": highest, "max": lowest}


def _within(b: Bounds, index: Padded, target: Size, *, real: bool) -> Any:
    """Return positions along an axis; updates beyond a real size get any position of the axis.

    Args:
        index: the positions.
        target: the size of the axis.
        real: whether negative positions count from a real end that is not the bound.
    """
    where = index.value
    if real or index.open():
        where = from_the_end(b, where, target)
    return b.F.clip(where, 0, b.bound(target) - 1) if index.open() else where


def _real_updates(b: Bounds, indices: Sequence[Padded]) -> Any:
    """Return which updates are within the real sizes; None if all are."""
    is_real: Any = None
    for index in indices:
        for axis in index.open():
            is_inside = b.inside(index, axis)
            is_real = is_inside if is_real is None else b.F.logical_and(is_real, is_inside)
    return is_real


def added_rows(b: Bounds, call: Call) -> list[Padded]:
    """Add values at computed indices into zeros; values beyond a real size add nothing."""
    x, *indices = call.xs
    axes, shape = call.attrs["axes"], call.attrs["shape"]
    first, index_part = index_start(axes), index_axes(indices)
    for number in range(len(index_part)):
        x = b.filled(x, first + number, 0)
    targets = [shape[axis] for axis in axes]
    positions = [_within(b, one, size, real=isinstance(size, Dim)) for one, size in zip(indices, targets, strict=True)]
    (value,) = b.run(call, x.value, *positions)
    rest = iter([*x.axes[:first], *x.axes[first + len(index_part) :]])
    result_axes: list[Open | None] = []
    for axis, size in enumerate(shape):
        if axis in axes:
            result_axes.append(Open(canonical([size]), 0) if isinstance(size, Dim) else None)
        else:
            one = next(rest)
            result_axes.append(one and one.anything)
    return [Padded(value, tuple(result_axes))]


def added_along(b: Bounds, call: Call) -> list[Padded]:
    """Add values along an axis; those in the padding, beyond a real size, count as 0."""
    x, indices = call.xs
    axis, size = call.attrs["axis"], call.attrs["size"]
    axes = [*together([x, indices], len(x.axes))]
    where = _within(b, indices, size, real=True)
    (value,) = b.run(call, b.filled(x, axis, 0).value, where, size=b.bound(size))
    axes[axis] = Open(canonical([size])) if isinstance(size, Dim) else None
    return [Padded(value, tuple(axes))]


def updated(b: Bounds, call: Call) -> list[Padded]:
    """Update elements at computed indices; negative ones count from the real end."""
    x, value, *indices = call.xs
    axes, how = call.attrs["axes"], call.attrs["how"]
    first, index_part = index_start(axes), index_axes(indices)
    selected = [one for axis, one in enumerate(x.axes) if axis not in axes]
    for one, other in zip(value.axes, [*selected[:first], *index_part, *selected[first:]], strict=True):
        if (one is None) != (other is None) or (one is not None and not one.same(other)):
            raise NoRule("an open size of the new values is not that of what they replace")
    sizes = [real_size(x, axis) for axis in axes]
    positions = [_within(b, one, size, real=isinstance(size, Dim)) for one, size in zip(indices, sizes, strict=True)]
    is_real, target = _real_updates(b, indices), x.value
    if is_real is None:
        (result,) = b.run(call, target, value.value, *positions)
    elif how != "set":
        for number in range(len(index_part)):
            value = b.filled(value, first + number, _NEUTRAL[how](value.value.dtype))
        (result,) = b.run(call, target, value.value, *positions)
    else:
        length = target.shape[axes[0]]
        pads = tuple([(0, int(axis == axes[0])) for axis in range(target.ndim)])
        positions[0] = b.F.where(is_real, positions[0], length)
        (result,) = b.run(call, b.F.pad(target, pads), value.value, *positions)
        result = picked(b, result, axes[0], b.positions(length))
    return [Padded(result, tuple([one and one.anything for one in x.axes]))]


def last_updates(b: Bounds, call: Call) -> list[Padded]:
    """Find the last update of each element among the real ones."""
    indices, sizes = call.xs, call.attrs["sizes"]
    positions = [_within(b, one, size, real=isinstance(size, Dim)) for one, size in zip(indices, sizes, strict=True)]
    bounds = [b.bound(size) for size in sizes]
    is_real = _real_updates(b, indices)
    if is_real is not None:
        positions[0] = b.F.where(is_real, positions[0], bounds[0])
        bounds[0] += 1
    (value,) = b.run(call, *positions, sizes=tuple(bounds))
    return [Padded(value, index_axes(indices))]


def replaced_part(b: Bounds, call: Call) -> list[Padded]:
    """Replace a part whose position depends on real sizes."""
    x, value = call.xs
    shape = tuple([real_size(x, axis) for axis in range(len(x.axes))])
    scatter = Call(REGISTRY["slice_scatter"], [value], {"index": call.attrs["index"], "shape": shape}, call.specs)
    rule = scatter.op.padded
    ones = value._replace(value=b.F.full(value.value.shape, 1, dtype="bool"))
    (new_values,), (is_replaced,) = rule(b, scatter), rule(b, scatter._replace(xs=[ones]))
    result = b.F.where(is_replaced.value, new_values.value, x.value)
    return [Padded(result, tuple([one and one.anything for one in x.axes]))]

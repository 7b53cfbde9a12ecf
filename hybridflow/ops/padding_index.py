"""Rules for indexing values that are padded up to a bound (see `hybridflow.core.padding`)."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from hybridflow.core.dims import Dim, same_size
from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Open, Padded, Size, separate
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import asarray
from hybridflow.ops.padding import canonical, reshaped, together


def _is_known(size: Any) -> bool:
    return isinstance(size, int) and not isinstance(size, Dim)


def _number(b: Bounds, size: Size) -> Any:
    return b.count(size) if isinstance(size, Dim) else size


def picked(b: Bounds, value: Any, axis: int, positions: Any) -> Any:
    """Return the elements at positions (int32, one axis) along an axis; a position outside gives any element."""
    last = value.shape[axis] - 1
    if last < 0:
        shape = (*value.shape[:axis], positions.shape[0], *value.shape[axis + 1 :])
        return b.F.full(shape, 0, dtype=value.dtype)
    return b.bind("gather", value, b.F.maximum(b.F.minimum(positions, last), 0), axes=(axis,))


def real_positions(b: Bounds, shape: Sequence[Size]) -> Any:
    """Return each element's real position in row-major order, in the shape of the bounds.

    Raises:
        NoRule: there are too many elements.
    """
    if prod([b.bound(size) for size in shape]) > _MOST_POSITIONS:
        raise NoRule("an array of the bounds' sizes has too many elements")
    total: Any = None
    for axis, size in enumerate(shape):
        own = b.F.reshape(b.positions(b.bound(size)), shape=(-1, *[1] * (len(shape) - axis - 1)))
        total = own if total is None else total * _number(b, size) + own
    return total


_MOST_POSITIONS = 2**31 - 1


def padded_positions(b: Bounds, positions: Any, sizes: Sequence[Size]) -> Any:
    """Convert real positions in row-major order to positions in an array of the bounds' sizes."""
    total, stride = b.positions(1)[0], 1
    for size in reversed(sizes):
        real = b.F.maximum(b.count(size), 1)
        total = total + positions % real * stride
        positions, stride = positions // real, stride * b.bound(size)
    return total


@separate
def refolded(b: Bounds, call: Call) -> list[Padded]:
    """Change the shape; if that splits an open size, pick the elements one by one."""
    try:
        return reshaped(b, call)
    except NoRule:
        (x,), shape = call.xs, call.specs[0].shape
    axes = b.axes_of(call.specs[0])
    parts: list[Size] = []
    for size, one in zip(x.value.shape, x.axes, strict=True):
        parts += [int(size)] if one is None else one.sizes
    positions = b.F.reshape(real_positions(b, shape), shape=(-1,))
    flat = b.F.reshape(x.value, shape=(-1,))
    value = picked(b, flat, 0, padded_positions(b, positions, parts))
    return [Padded(b.F.reshape(value, shape=tuple([b.bound(size) for size in shape])), axes)]


def single(x: Padded, axis: int) -> Open:
    """Return how an axis is padded.

    Raises:
        NoRule: its real size is a product of several sizes.
    """
    opened = x.axes[axis]
    assert opened is not None
    if len(opened.sizes) > 1:
        raise NoRule(f"axis {axis} is folded from {' and '.join(map(str, opened.sizes))}")
    return opened


def real_size(x: Padded, axis: int) -> Size:
    """Return the real size of an axis; it must not be a product of several, see `single`."""
    return int(x.value.shape[axis]) if x.axes[axis] is None else single(x, axis).sizes[0]


@separate
def indexed(b: Bounds, call: Call) -> list[Padded]:
    """Apply a static index; positions that depend on an open size are computed from the real size."""
    (x,) = call.xs
    value, axes, items, axis = x.value, list[Open | None](), list[Any](), 0
    for item in call.attrs["index"]:
        if item is None:
            items.append(None)
            axes.append(None)
            continue
        opened, length = x.axes[axis], value.shape[axis]
        if isinstance(item, tuple):
            start, size, step = item
            if opened is not None and not _is_whole(opened, item):
                b.meet(x, axis)
                single(x, axis)
            if opened is not None and _is_whole(opened, item):
                items.append((0, length, 1))
                axes.append(opened)
            elif _is_known(start) and _is_known(step) and start + (b.bound(size) - 1) * step < length and step > 0:
                items.append((start, b.bound(size), step))
                axes.append(Open(canonical([size])) if isinstance(size, Dim) else None)
            else:
                value = picked(b, value, axis, b.positions(b.bound(size)) * _number(b, step) + _number(b, start))
                items.append((0, b.bound(size), 1))
                axes.append(Open(canonical([size])) if isinstance(size, Dim) else None)
        elif isinstance(item, Dim):
            b.meet(x, axis)
            if opened is not None:
                single(x, axis)
            value = picked(b, value, axis, b.F.reshape(b.count(item), shape=(1,)))
            items.append(0)
        else:
            b.meet(x, axis)
            items.append(item)
        axis += 1
    axes += x.axes[axis:]
    (result,) = b.run(call._replace(attrs={}), value, index=tuple(items))
    return [Padded(result, tuple(axes))]


def _is_whole(one: Open, item: Sequence[Any]) -> bool:
    start, size, step = item
    whole: Size = 1
    for part in one.sizes:
        whole = whole * part
    return _is_known(start) and start == 0 and _is_known(step) and step == 1 and same_size(size, whole)


def put_into_zeros(b: Bounds, call: Call) -> list[Padded]:
    """Put values into zeros at a static index; values beyond the real size are left out."""
    (x,) = call.xs
    value, value_axes, axis = x.value, [*x.axes], 0
    shape, index = call.attrs["shape"], call.attrs["index"]
    if not any([isinstance(size, Dim) for size in shape]) and not x.open():
        return [Padded(b.run(call, value)[0], (None,) * len(shape))]
    axes: list[Open | None] = []
    result_axis = 0
    for item in index:
        if item is None:
            value = b.F.squeeze(value, axis=(axis,))
            del value_axes[axis]
            continue
        if not isinstance(item, tuple):
            value = b.F.expand_dims(value, axis=(axis,))
            value_axes.insert(axis, None)
        start, size, step = item if isinstance(item, tuple) else (item, 1, 1)
        opened, length = value_axes[axis], b.bound(shape[result_axis])
        if opened is not None and _is_whole(opened, (start, shape[result_axis], step)):
            axes.append(opened)
        else:
            if opened is not None:
                single(Padded(value, tuple(value_axes)), axis)
            value = _into_zeros(b, value, axis, (start, size, step), length)
            axes.append(Open(canonical([shape[result_axis]]), 0) if isinstance(shape[result_axis], Dim) else None)
            value_axes[axis] = None
        axis, result_axis = axis + 1, result_axis + 1
    axes += value_axes[axis:]
    return [Padded(value, tuple(axes))]


def _into_zeros(b: Bounds, value: Any, axis: int, item: tuple[Any, Any, Any], length: int) -> Any:
    """Spread a value's elements along an axis of zeros."""
    F = b.F
    start, size, step = [_number(b, one) for one in item]
    distance = b.positions(length) - start
    number = distance // step
    inside = F.logical_and(F.equal(number * step, distance), F.logical_and(number >= 0, number < size))
    spread = picked(b, value, axis, number)
    shape = tuple([length if one == axis else 1 for one in range(value.ndim)])
    return F.where(F.reshape(inside, shape=shape), spread, asarray(0, dtype=spread.dtype))


@separate
def gathered(b: Bounds, call: Call) -> list[Padded]:
    """Look up elements by computed indices; negative ones count from the real end."""
    x, *indices = call.xs
    axes = call.attrs["axes"]
    for axis in axes:
        b.meet(x, axis)
    positions = [
        from_the_end(b, index.value, single(x, axis).sizes[0]) if x.axes[axis] is not None else index.value
        for axis, index in zip(axes, indices, strict=True)
    ]
    (value,) = b.run(call, x.value, *positions)
    first, index_part = index_start(axes), index_axes(indices)
    rest = [one and one.anything for axis, one in enumerate(x.axes) if axis not in axes]
    return [Padded(value, (*rest[:first], *index_part, *rest[first:]))]


def index_axes(indices: Sequence[Padded]) -> Axes:
    """Return how the broadcast of several indices is padded."""
    return together(indices, max([len(one.axes) for one in indices]))


def index_start(axes: Sequence[int]) -> int:
    """Return the position at which the indices' axes stand among the axes of the result."""
    return axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0


@separate
def along_indices(b: Bounds, call: Call) -> list[Padded]:
    """Take elements along an axis by indices of the result's shape; negative ones count from the real end."""
    x, indices = call.xs
    axis = call.attrs["axis"]
    b.meet(x, axis)
    axes = [*together([_without(one, axis) for one in (x, indices)], len(x.axes))]
    positions = indices.value
    if x.axes[axis] is not None:
        positions = from_the_end(b, positions, single(x, axis).sizes[0])
    (value,) = b.run(call, x.value, positions)
    opened = indices.axes[axis]
    axes[axis] = opened and opened.anything
    return [Padded(value, tuple(axes))]


def _without(x: Padded, axis: int) -> Padded:
    """Return how a value is padded along all axes but one; the value is only a spec."""
    shape = tuple([1 if at == axis else size for at, size in enumerate(x.value.shape)])
    return Padded(make_spec(shape, x.value.dtype), (*x.axes[:axis], None, *x.axes[axis + 1 :]))


def from_the_end(b: Bounds, where: Any, size: Size) -> Any:
    """Convert positions that may count from the real end to positions from the start."""
    return b.F.where(where < 0, where + b.count(size).astype(where.dtype), where)


@separate
def joined(b: Bounds, call: Call) -> list[Padded]:
    """Join values: the real elements of each follow those of the value before it."""
    axis = call.attrs["axis"]
    others = [Padded(x.value, (*x.axes[:axis], None, *x.axes[axis + 1 :])) for x in call.xs]
    rest: list[Open | None] = [None] * len(others[0].axes)
    for other in others:
        for number, one in enumerate(other.axes):
            before = rest[number]
            if one is not None and before is not None and not before.same(one):
                raise NoRule(f"sizes {before.sizes} and {one.sizes} meet on axis {number}")
            rest[number] = before if one is None else one.anything
    (value,) = b.run(call, *[x.value for x in call.xs])
    if not any([x.axes[axis] for x in call.xs]):
        return [Padded(value, tuple(rest))]
    for x in call.xs:
        b.meet(x, axis)
    real_start: Size = 0
    bound_start, positions = 0, b.positions(value.shape[axis])
    source = positions
    for x in call.xs:
        size = real_size(x, axis)
        if not same_size(real_start, bound_start):  # an earlier value is padded
            source = b.F.where(positions >= b.count(real_start), positions - b.count(real_start) + bound_start, source)
        real_start, bound_start = real_start + size, bound_start + x.value.shape[axis]
    if call.xs and any([x.axes[axis] for x in call.xs[:-1]]):
        value = picked(b, value, axis, source)
    rest[axis] = Open(canonical([real_start]))
    return [Padded(value, tuple(rest))]


# -- diagonals --------------------------------------------------------------------------------------------------------


def diagonal_of(b: Bounds, call: Call) -> list[Padded]:
    """Take a diagonal: its first elements are the real ones."""
    (x,) = call.xs
    own = b.axes_of(call.specs[0])[-1]
    (value,) = b.run(call, x.value)
    if b.bound(call.specs[0].shape[-1]) != value.shape[-1]:
        raise NoRule("the diagonal of the bounds' matrix has another length")
    return [Padded(value, (*[one and one.anything for one in x.axes[:-2]], own))]


def on_diagonal(b: Bounds, call: Call) -> list[Padded]:
    """Put a diagonal into zeros."""
    (x,) = call.xs
    rows, columns = b.bound(call.attrs["rows"]), b.bound(call.attrs["columns"])
    offset = call.attrs["offset"]
    if min(rows + min(offset, 0), columns - max(offset, 0)) != x.value.shape[-1]:
        raise NoRule("the diagonal of the bounds' matrix has another length")
    (value,) = b.run(call, b.filled(x, len(x.axes) - 1, 0).value, rows=rows, columns=columns)
    return [Padded(value, (*[one and one.anything for one in x.axes[:-1]], *b.axes_of(call.specs[0], 0)[-2:]))]

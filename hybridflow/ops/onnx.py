"""Shared values of the ops' `onnx` columns: builders ``(o, *inputs, **attrs)`` of ONNX operators, and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import float32, int64, is_floating
from hybridflow.core.op import No

DRAWS = No("ONNX's random operators draw other numbers than its counter gives")
DECOMPOSITION = No("ONNX has no decompositions of matrices")
COMPLEX = No("ONNX's operators take no complex numbers")
BITS = No("ONNX has no operator that reads a float's bits")

Builder = Callable[..., Any]


def same(o: Any, x: Any, *_: Any, **__: Any) -> Any:
    """Return the first input unchanged."""
    del o
    return x


def on_floats(name: str) -> Builder:
    """Return the builder of an operator on floats that leaves integers unchanged."""
    return lambda o, x: o.emit(name, x) if is_floating(x.dtype) else x


def never(o: Any, x: Any) -> Any:
    """Return False everywhere."""
    return o.Expand(o.value(np.asarray(False)), o.Shape(x))


def reduction(name: str) -> Builder:
    """Return the builder of a reduction over axes."""

    def build(o: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        return o.emit(name, x, o.ints(axis), keepdims=int(keepdims)) if axis else x

    return build


def mean(o: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Average over axes.

    The mean of no elements is NaN. Runtimes do not agree on that, so such a mean is built as a sum and a division.
    """
    if all([type(x.shape[i]) is not Dim and x.shape[i] > 0 for i in axis]):
        return reduction("ReduceMean")(o, x, axis=axis, keepdims=keepdims)
    return reduction("ReduceSum")(o, x, axis=axis, keepdims=keepdims) / counted(o, x, axis)


def any_true(o: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Return whether any element along axes is True; over an empty axis it is False."""
    return o.Greater(o.ReduceSum(o.cast(x, np.int32), o.ints(axis), keepdims=int(keepdims)), 0) if axis else x


def kept_nan(name: str) -> Builder:
    """Return the builder of a reduction to the largest or smallest element that propagates NaN."""

    def build(o: Any, x: Any, *, axis: tuple[int, ...], keepdims: bool) -> Any:
        reduced = reduction(name)(o, x, axis=axis, keepdims=keepdims)
        if not axis or not is_floating(x.dtype):
            return reduced
        return o.Where(any_true(o, o.IsNaN(x), axis=axis, keepdims=keepdims), np.nan, reduced)

    return build


def position(name: str) -> Builder:
    """Return the builder of the first position of the largest or smallest element; a NaN wins over numbers."""

    def build(o: Any, x: Any, *, axis: int) -> Any:
        index = o.emit(name, x, axis=axis, keepdims=0)
        if not is_floating(x.dtype):
            return index
        nan = o.IsNaN(x)
        first = o.ArgMax(o.cast(nan, np.int32), axis=axis, keepdims=0)
        return o.Where(any_true(o, nan, axis=(axis,), keepdims=False), first, index)

    return build


def counted(o: Any, x: Any, axis: Sequence[int], least: int = 0, correction: float = 0.0) -> Any:
    """Return the number of elements along axes minus a correction, at least `least`, in the dtype of `x`."""
    sizes = [x.shape[i] for i in axis]
    if any(type(size) is Dim for size in sizes):
        total = o.cast(o.reshape(o.ReduceProd(o.ints(sizes), keepdims=1), ()), x.dtype)
        return o.Max(total - correction if correction else total, least)
    return o.value(max(int(np.prod(sizes)) - correction, least), x.dtype)


def mean_over(o: Any, x: Any, axis: tuple[int, ...]) -> Any:
    """Average over axes, which stay with size 1."""
    return o.ReduceMean(x, o.ints(axis), keepdims=1) if axis else x


def exp_m1(o: Any, x: Any) -> Any:
    """Compute ``exp(x) - 1`` precisely near 0: the errors of the exponential and of a logarithm cancel."""
    u = o.Exp(x)
    exact = (u - 1) * x / o.Log(u)
    return o.Where(o.Equal(u, 1), x, o.Where(o.Or(o.Equal(u - 1, -1), o.IsInf(u)), u - 1, exact))


def log_1p(o: Any, x: Any) -> Any:
    """Compute ``log(1 + x)`` precisely near 0: the rounding errors of ``1 + x`` cancel."""
    u = x + 1
    return o.Where(o.Or(o.Equal(u, 1), o.IsInf(u)), x, o.Log(u) * x / (u - 1))


def exactly(name: str, build: Builder, **attributes: str) -> Builder:
    """Return the builder of an operator whose attributes are float32; other dtypes need several operators.

    Args:
        name: the ONNX operator.
        build: the builder for other dtypes.
        **attributes: for each attribute of the operator, the name of the op's attribute.
    """

    def chosen(o: Any, x: Any, **attrs: Any) -> Any:
        if x.dtype != float32:
            return build(o, x, **attrs)
        return o.emit(name, x, **{key: attrs[value] for key, value in attributes.items()})

    return chosen


def in_range(o: Any, start: Any, size: Any) -> Any:
    """Return `size` ascending integers from a start on, as int64."""
    if type(size) is not Dim and type(start) is not Dim:
        return o.value(np.arange(start, start + size))
    first, number = [o.reshape(o.size(one), ()) for one in (start, size)]
    return o.Range(first, first + number, o.value(np.int64(1)))


def sliced(o: Any, x: Any, index: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Apply a static index, one ``(start, size, step)`` per axis; an entry that is a position takes one element."""
    entries = [item if type(item) is tuple else (item, 1, 1) for item in index]
    cut = [(axis, item) for axis, item in enumerate(entries) if not _whole(item, sizes[axis])]
    if not cut:
        return x
    starts = [start for _, (start, _, _) in cut]
    # With a negative step the end may be before the first element; -1 would mean the last, so subtract the size.
    ends = [start + size * step - (sizes[axis] if step < 0 else 0) for axis, (start, size, step) in cut]
    axes, steps = [axis for axis, _ in cut], [step for _, (_, _, step) in cut]
    return o.Slice(x, o.ints(starts), o.ints(ends), o.ints(axes), o.ints(steps))


def _whole(item: tuple[Any, Any, Any], size: Any) -> bool:
    start, taken, step = item
    plain = type(start) is not Dim and start == 0 and step == 1
    if type(taken) is Dim or type(size) is Dim:
        return plain and type(taken) is type(size) and taken.terms == size.terms
    return plain and taken == size


def backwards(o: Any, x: Any, axis: Sequence[int] = (0,)) -> Any:
    """Reverse the order along axes."""
    count = len(axis)
    end = np.iinfo(np.int64).min + 1
    return o.Slice(x, o.ints([-1] * count), o.ints([end] * count), o.ints(axis), o.ints([-1] * count)) if axis else x


def positions(o: Any, shape: Sequence[Any], index: Any) -> Any:
    """Return the row-major positions of the elements that a NumPy index selects, as a flat constant."""
    if any(type(size) is Dim for size in shape):
        o.no("positions in a tensor of open size have none")
    return o.value(np.arange(int(np.prod(shape)), dtype=np.int64).reshape(tuple(shape))[index].reshape(-1))


def scattered(o: Any, base: Any, positions: Any, values: Any, shape: Sequence[Any]) -> Any:
    """Put values, in row-major order, at constant flat positions of a tensor of a given shape."""
    flat = o.Reshape(base, o.ints([-1]))
    return o.reshape(o.ScatterElements(flat, positions, o.Reshape(values, o.ints([-1])), axis=0), shape)


def zeros(o: Any, shape: Sequence[Any], dtype: Any) -> Any:
    """Return zeros of a shape."""
    return o.Expand(o.value(np.zeros((), dtype)), o.ints(shape))


def index_rows(o: Any, indices: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """Broadcast index tensors and stack them on a new last axis, as int64, with negative positions wrapped."""
    wide = [o.cast(index, int64) for index in indices]
    rows = [o.Where(o.Less(one, 0), one + o.reshape(o.size(size), ()), one)
             for one, size in zip(wide, sizes, strict=True)]
    if len(rows) > 1:
        shape = o.Shape(o.Max(*rows))
        rows = [o.Expand(one, shape) for one in rows]
    return o.Concat(*[o.Unsqueeze(one, o.ints([-1])) for one in rows], axis=-1)


def from_front(o: Any, y: Any, indices: Sequence[Any], axes: Sequence[int], rest: int) -> Any:
    """Move the axes that index tensors made from the front of `y` to where NumPy puts them."""
    return _turned(o, y, max(index.ndim for index in indices), axes, rest, back=True)


def _turned(o: Any, y: Any, selected: int, axes: Sequence[int], rest: int, *, back: bool) -> Any:
    first_axis = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    if not first_axis or not selected:
        return y
    order = [*range(selected, selected + first_axis), *range(selected), *range(selected + first_axis, selected + rest)]
    return o.Transpose(y, perm=order if back else np.argsort(order).tolist())


def scatter_rows(
    o: Any, base: Any, values: Any, indices: Sequence[Any], axes: Sequence[int], shape: Sequence[Any], how: str
) -> Any:
    """Update the elements that integer tensors select; if one element is set several times, the last value stays.

    Args:
        o: the operators.
        base: the tensor to update.
        values: one value per selected element, in the layout that indexing gives.
        indices, axes: the index tensors, and the axes that they select from.
        shape: the shape of `base`.
        how: ``"set"``, ``"add"``, ``"multiply"``, ``"min"`` or ``"max"``.
    """
    rest = [axis for axis in range(len(shape)) if axis not in axes]
    order = [*axes, *rest]
    selected = max(index.ndim for index in indices)
    rows = o.reshape(index_rows(o, indices, [shape[axis] for axis in axes]), (-1, len(axes)))
    updates = _turned(o, values, selected, axes, len(rest), back=False)
    updates = o.Reshape(updates, o.ints([-1, *[shape[axis] for axis in rest]]), allowzero=0)
    first = o.Transpose(base, perm=order)
    if how == "set":
        number = o.Shape(rows, start=0, end=1)
        order_of = o.Range(o.value(np.int64(0)), o.Squeeze(number), o.value(np.int64(1)))
        none = o.Expand(o.value(np.int64(-1)), o.ints([shape[axis] for axis in axes]))
        last = o.GatherND(o.ScatterND(none, rows, order_of, reduction="max"), rows)
        updated = o.ScatterND(first, rows, o.Gather(updates, last, axis=0))
    else:
        updated = o.ScatterND(first, rows, updates, reduction={"multiply": "mul"}.get(how, how))
    return o.Transpose(updated, perm=np.argsort(order).tolist())


def channels_to(o: Any, x: Any, to: int, ndim: int) -> Any:
    """Move the channels from last to axis 1, or back."""
    return o.Transpose(x, perm=[0, ndim - 1, *range(1, ndim - 1)] if to == 1 else [0, *range(2, ndim), 1])


def kernel_first(o: Any, kernel: Any) -> Any:
    """Return a kernel ``(*window, in, out)`` as ``(out, in, *window)``."""
    ndim = kernel.ndim
    return o.Transpose(kernel, perm=[ndim - 1, ndim - 2, *range(ndim - 2)])

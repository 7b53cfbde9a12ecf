"""Rules by which families of operations work on values padded up to a bound (see `hybridflow.core.padding`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from hybridflow.core.dims import Dim, SizeFloat, same_size
from hybridflow.core.dtypes import kind_of
from hybridflow.core.padding import Axes, Bounds, Call, NoRule, Open, Padded, Rule, Size, separate
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import asarray

Neutral = Callable[[Any], Any]
"""A function that returns, for a dtype, the value that changes no result, such as 0 for sums."""


def constant(value: Any) -> Neutral:
    """Return a neutral value that is the same for every dtype."""
    return lambda dtype: value


def lowest(dtype: Any) -> Any:
    """Return the smallest value of a dtype, which changes no maximum."""
    kind = kind_of(dtype)
    return -np.inf if kind == "float" else False if kind == "bool" else int(np.iinfo(dtype).min)


def highest(dtype: Any) -> Any:
    """Return the largest value of a dtype, which changes no minimum."""
    kind = kind_of(dtype)
    return np.inf if kind == "float" else True if kind == "bool" else int(np.iinfo(dtype).max)


# -- axis by axis -----------------------------------------------------------------------------------------------------


def together(xs: Sequence[Padded], ndim: int) -> Axes:
    """Return how the broadcast of several values is padded; elements beyond the real sizes may be anything.

    Raises:
        NoRule: two values are padded differently along an axis.
    """
    axes: list[Open | None] = [None] * ndim
    for x in xs:
        for axis, one in enumerate(x.axes, ndim - len(x.axes)):
            if one is None:
                continue
            before = axes[axis]
            if before is not None and not before.same(one):
                raise NoRule(f"sizes {before.sizes} and {one.sizes} meet on axis {axis}")
            axes[axis] = one.anything
    for x in xs:
        for axis, one in enumerate(x.axes, ndim - len(x.axes)):
            if one is None and axes[axis] is not None and x.value.shape[axis - ndim] != 1:
                raise NoRule(f"an open size meets {x.value.shape[axis - ndim]} on axis {axis}")
    return tuple(axes)


@separate
def pointwise(b: Bounds, call: Call) -> list[Padded]:
    """Compute every element, those beyond the real sizes too."""
    values = b.run(call, *[x.value for x in call.xs])
    ndim = max([len(x.axes) for x in call.xs], default=0)
    axes = together(call.xs, ndim)
    return [Padded(value, axes[ndim - value.ndim :]) for value in values]


def per_row(fixed: int = 1) -> Rule:
    """Return the rule of an operation on rows, which are the last axes of the first input and must not be open.

    Args:
        fixed: the number of axes that make up a row.
    """

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        first = call.xs[0]
        count = len(first.axes) - fixed
        if any(first.axes[count:]):
            raise NoRule(f"axis {next(i for i in first.open() if i >= count)} of its rows is open")
        axes = list(first.axes[:count])
        for x in call.xs[1:]:
            for axis, one in enumerate(x.axes):
                if one is not None and not (axis < count and one.same(axes[axis])):
                    raise NoRule(f"axis {axis} of another input is open")
        values = b.run(call, *[x.value for x in call.xs])
        return [_of_rows(value, axes) for value in values]

    return rule


def _of_rows(value: Any, axes: list[Open | None]) -> Padded:
    plain = [one if one is None else one.anything for one in axes]
    return Padded(value, (*plain, *[None] * (value.ndim - len(plain)))[: value.ndim])


def listed(axis: Any, ndim: int) -> tuple[int, ...]:
    """Return the axes that an attribute names; None names all of them."""
    return tuple(range(ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)


def along(neutral: Neutral | None = None, *, result: Any = None, name: str = "axis") -> Rule:
    """Return the rule of an operation that mixes elements of its first input along the axes of an attribute.

    Args:
        neutral: the value that changes no result; if None, none of these axes may be open.
        result: the value of the result beyond the real size of such an axis, if the axis stays.
        name: the attribute that names the axes.
    """

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        x, *others = call.xs
        if any([other.open() for other in others]):
            raise NoRule("an input other than the first has an open size")
        mixed = listed(call.attrs[name], len(x.axes))
        for axis in mixed:
            if x.axes[axis] is not None and neutral is None:
                raise NoRule(f"it mixes elements along axis {axis}, whose size is open")
            if x.axes[axis] is not None and neutral is not None:
                x = b.filled(x, axis, neutral(x.value.dtype))
        values = b.run(call, x.value, *[other.value for other in others])
        return [Padded(value, remaining(x.axes, mixed, value, result)) for value in values]

    return rule


def remaining(axes: Axes, mixed: Sequence[int], value: Any, result: Any = None) -> Axes:
    """Return how a result is padded: as the input is, without the mixed axes unless the result keeps them."""
    if value.ndim != len(axes):
        return tuple([one and one.anything for axis, one in enumerate(axes) if axis not in mixed])
    axes_left: list[Open | None] = []
    for axis, one in enumerate(axes):
        reduced = axis in mixed and value.shape[axis] == 1
        axes_left.append(None if one is None or reduced else one._replace(fill=result if axis in mixed else None))
    return tuple(axes_left)


@separate
def mean_of(b: Bounds, call: Call) -> list[Padded]:
    """Average over the real elements: their sum, divided by their number."""
    (x,) = call.xs
    F, attrs = b.F, call.attrs
    mixed = listed(attrs["axis"], len(x.axes))
    if not any([x.axes[axis] for axis in mixed]):
        return [*along()(b, call)]
    for axis in mixed:
        x = b.filled(x, axis, 0)
    dtype = x.value.dtype
    wide = x.value.astype("float32") if dtype.itemsize < 4 else x.value
    total = F.sum(wide, axis=mixed, keepdims=attrs["keepdims"])
    number = number_of(b, x, mixed).astype(total.dtype)
    value = (total / number).astype(dtype)
    return [Padded(value, remaining(x.axes, mixed, value))]


def number_of(b: Bounds, x: Padded, axes: Sequence[int]) -> Any:
    """Return the real number of elements along axes, as an int32 tensor."""
    sizes: list[Size] = []
    for axis in axes:
        opened = x.axes[axis]
        sizes += [int(x.value.shape[axis])] if opened is None else opened.sizes
    return b.count(prod(sizes))  # the product of open sizes is an open size


def running(neutral: Neutral) -> Rule:
    """Return the rule of cumulative operations; only reversed ones meet elements beyond the real size."""

    @separate
    def rule(b: Bounds, call: Call) -> list[Padded]:
        (x,) = call.xs
        (axis,) = listed(call.attrs["axis"], len(x.axes))
        b.meet(x, axis)
        if x.axes[axis] is not None and (call.attrs.get("reverse") or len(x.axes[axis].sizes) > 1):  # pyright: ignore
            x = b.filled(x, axis, neutral(x.value.dtype))
        (value,) = b.run(call, x.value)
        return [Padded(value, tuple([one and one.anything for one in x.axes]))]

    return rule


@separate
def by_position(b: Bounds, call: Call) -> list[Padded]:
    """Compute every element from itself and its position in a matrix."""
    (x,) = call.xs
    for axis in (-2, -1):
        b.meet(x, axis)
    return pointwise(b, call)


def outer(x: Padded) -> Padded:
    """Return how the axes before the last two are padded; the value is only a spec."""
    return Padded(make_spec(x.value.shape[:-2], x.value.dtype), x.axes[:-2])


# -- products ---------------------------------------------------------------------------------------------------------


@separate
def product(b: Bounds, call: Call) -> list[Padded]:
    """Multiply matrices, with zeros beyond the real size of the axis that is summed over."""
    x, y = call.xs
    right = max(len(y.axes) - 2, 0)
    if x.axes[-1] is not None or y.axes[right] is not None:
        x, y = b.filled(x, len(x.axes) - 1, 0), b.filled(y, right, 0)
    (value,) = b.run(call, x.value, y.value)
    rows = x.axes[-2:-1] if len(x.axes) > 1 else ()
    columns = y.axes[-1:] if len(y.axes) > 1 else ()
    batch = value.ndim - len(rows) - len(columns)
    axes = (*together([outer(one) for one in (x, y) if len(one.axes) > 2], batch), *rows, *columns)
    return [Padded(value, tuple([one and one.anything for one in axes]))]


@separate
def summed_products(b: Bounds, call: Call) -> list[Padded]:
    """Compute an einsum, with zeros beyond the real sizes of the axes that are summed over."""
    terms, result = call.attrs["subscripts"].split("->")
    letters = terms.split(",")
    axes: dict[str, Open] = {}
    for term, x in zip(letters, call.xs, strict=True):
        for letter, one in zip(term, x.axes, strict=True):
            if one is not None and not axes.setdefault(letter, one.anything).same(one):
                raise NoRule(f"sizes {axes[letter].sizes} and {one.sizes} meet on axis {letter}")
    xs = [*call.xs]
    for number, term in enumerate(letters):
        for axis, letter in enumerate(term):
            if letter in axes and letter not in result:
                xs[number] = b.filled(xs[number], axis, 0)
    (value,) = b.run(call, *[x.value for x in xs])
    return [Padded(value, tuple([axes.get(letter) for letter in result]))]


@separate
def dense(b: Bounds, call: Call) -> list[Padded]:
    """Multiply rows by a weight whose sizes are known."""
    x, *others = call.xs
    if x.axes[-1] is not None or any([other.open() for other in others]):
        raise NoRule("a weight's size is open")
    (value,) = b.run(call, *[one.value for one in call.xs])
    return [Padded(value, (*[one and one.anything for one in x.axes[:-1]], None))]


# -- shapes -----------------------------------------------------------------------------------------------------------


@separate
def made_of_size(b: Bounds, call: Call) -> list[Padded]:
    """Make a value as large as the bounds; a fill value that is computed from an open size uses the real size."""
    fill = call.attrs.get("fill_value")
    if not isinstance(fill, Dim) and type(fill) is not SizeFloat:
        sizes = {name: b.bound(call.attrs[name]) for name in ("rows", "columns") if name in call.attrs}
        return [Padded(b.run(call, **sizes)[0], b.axes_of(call.specs[0], fill))]
    shape = tuple([b.bound(size) for size in call.attrs["shape"]])
    number = b.number(fill, call.attrs["dtype"])
    return [Padded(b.F.broadcast_to(number, shape=shape), b.axes_of(call.specs[0]))]


def counted_up(b: Bounds, call: Call) -> list[Padded]:
    """Count up from a number, which may itself be an open size."""
    start, dtype = call.attrs["start"], call.attrs["dtype"]
    axes, size = b.axes_of(call.specs[0]), b.bound(call.attrs["size"])
    if not isinstance(start, Dim):
        return [Padded(b.run(call, size=size)[0], axes)]
    return [Padded(b.run(call, start=0, size=size)[0] + b.number(start, dtype), axes)]


def evenly_spaced(b: Bounds, call: Call) -> list[Padded]:
    """Make evenly spaced points, whose distance depends on their real number."""
    F, attrs = b.F, call.attrs
    start, stop, endpoint = attrs["start"], attrs["stop"], attrs["endpoint"]
    if isinstance(start, SizeFloat) or isinstance(stop, SizeFloat):
        raise NoRule("an end is computed from an open size")
    axes, number = b.axes_of(call.specs[0]), b.count(attrs["num"])
    position = b.positions(b.bound(attrs["num"]))
    gaps = F.astype(F.maximum(number - int(endpoint), 1), dtype="float64")
    points = F.astype(position, dtype="float64") * (asarray(stop - start, dtype="float64") / gaps) + start
    if endpoint:
        last = F.logical_and(position > 0, F.equal(position, number - 1))
        points = F.where(last, asarray(stop, dtype="float64"), points)
    return [Padded(F.astype(points, dtype=attrs["dtype"]), axes)]


@separate
def permuted(b: Bounds, call: Call) -> list[Padded]:
    """Reorder axes."""
    (x,) = call.xs
    (value,) = b.run(call, x.value)
    return [Padded(value, tuple([x.axes[axis] for axis in call.attrs["axes"]]))]


@separate
def expanded(b: Bounds, call: Call) -> list[Padded]:
    """Add axes of size 1."""
    (x,) = call.xs
    (value,) = b.run(call, x.value)
    own = iter(x.axes)
    return [Padded(value, tuple([None if axis in call.attrs["axis"] else next(own) for axis in range(value.ndim)]))]


@separate
def squeezed(b: Bounds, call: Call) -> list[Padded]:
    """Remove axes of size 1."""
    (x,) = call.xs
    (value,) = b.run(call, x.value)
    return [Padded(value, tuple([one for axis, one in enumerate(x.axes) if axis not in call.attrs["axis"]]))]


@separate
def spread(b: Bounds, call: Call) -> list[Padded]:
    """Repeat a value along axes; repeats beyond a real size may be anything."""
    (x,) = call.xs
    (value,) = b.run(call, x.value)
    wanted = b.axes_of(call.specs[0])
    own = (*[None] * (value.ndim - len(x.axes)), *x.axes)
    return [Padded(value, tuple([one if one is not None else new for one, new in zip(own, wanted, strict=True)]))]


@separate
def reshaped(b: Bounds, call: Call) -> list[Padded]:
    """Split and merge axes, as long as every open size stays whole."""
    (x,) = call.xs
    atoms: list[tuple[Size, Open | None]] = []
    for size, opened in zip(x.value.shape, x.axes, strict=True):
        parts = (size,) if opened is None else opened.sizes
        atoms += [(part, opened if isinstance(part, Dim) else None) for part in parts]
    atoms = [atom for atom in atoms if not same_size(atom[0], 1)]
    axes = [_group(atoms, size) for size in call.specs[0].shape]
    if atoms:
        raise NoRule("it splits an open size")
    (value,) = b.run(call, x.value)
    return [Padded(value, tuple(axes))]


def _group(atoms: list[tuple[Size, Open | None]], size: Size) -> Open | None:
    """Remove the first factors, whose product is a size, and return the axis that they form."""
    taken: list[tuple[Size, Open | None]] = []
    total: Size = 1
    while not same_size(total, size):
        if not atoms:
            raise NoRule("it splits an open size")
        part, opened = atoms.pop(0)
        if not same_size(total * part, size):
            first = _first_part(size, total, part)
            if first is not None:
                rest = part // first
                atoms.insert(0, (rest, opened if isinstance(rest, Dim) else None))
                part, opened = first, opened if isinstance(first, Dim) else None
        taken.append((part, opened))
        total = total * part
    open_axes = [opened for part, opened in taken if isinstance(part, Dim)]
    parts = canonical([part for part, _ in taken])
    if not any([isinstance(part, Dim) for part in parts]):  # an open size times 0 is 0
        return None
    fills = {repr(opened and opened.fill) for opened in open_axes}
    return Open(parts, open_axes[0] and open_axes[0].fill if len(fills) == 1 else None)


def _first_part(size: Size, have: Size, part: Size) -> Size | None:
    """Return the part of a factor that completes a size; None if the whole factor belongs to it."""
    if _is_zero(have) or not same_size(size % have, 0):
        return None
    left = size // have
    if _is_zero(left) or same_size(left, 1) or not same_size(part % left, 0):
        return None
    if isinstance(part, Dim) and (not isinstance(left, Dim) or isinstance(part // left, Dim)):
        raise NoRule("it splits an open size")
    return left


def _is_zero(size: Size) -> bool:
    """Whether a size is known to be 0. An open size is not compared with 0: that would restrict it."""
    return not isinstance(size, Dim) and size == 0


def canonical(parts: Sequence[Size]) -> tuple[Size, ...]:
    """Return the factors of an axis in a canonical form, in which two axes can be compared.

    A known factor is multiplied into the open one before it: the real elements are still the first ones of the axis.
    """
    merged: list[Size] = []
    for part in parts:
        if merged and (isinstance(part, int) and not isinstance(part, Dim)):
            merged[-1] = merged[-1] * part
        else:
            merged.append(part)
    return tuple(merged)

"""Parse what stands between the brackets of ``x[...]`` into a static index and integer tensors.

A static index is a tuple with one entry per axis of `x`, plus None for a new axis. An entry is an integer that
removes the axis, or ``(start, size, step)``: the elements ``start, start + step, ...``, `size` of them. All sizes
are known, so the index is hashable, its result's shape needs no arithmetic, and its adjoint is a padding.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.context import is_tracing
from hybridflow.core.dims import Dim
from hybridflow.core.errors import ArgumentTypeError, IndexRangeError, TraceError
from hybridflow.core.staged_number import INT, StagedNumber, tried, used_at
from hybridflow.core.tensor import Tensor, as_tensor, asarray, host_array
from hybridflow.core.traced_array import TracedArray, without_array
from hybridflow.core.traced_number import SPOKEN, TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.ops.ranges import arange

StaticIndex = tuple[Any, ...]
Shape = tuple[Any, ...]


class ParsedKey(NamedTuple):
    """A key in parts: first the static index is applied, then the tensors select on `axes` of what it gave.

    Attributes:
        static: the static index, or None if it would change nothing.
        axes: the axes, counted after the static index, that tensors select from.
        tensors: the integer tensors, one for each of `axes`.
        adjacent: whether NumPy leaves the selected axes where they were (True) or puts them first.
    """

    static: StaticIndex | None
    axes: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    adjacent: bool


def check_position(number: Any, size: Any, axis: int, name: str) -> Any:
    """Return an index on an axis counted from the front.

    Raises:
        IndexRangeError: if the axis has no such element.
    """
    if number >= size or number < -size:
        raise IndexRangeError(f"{name}: index {number} is out of range for size {size} on axis {axis}",
                              hint=f"Use an index from {-size} to {size - 1}." if size else "The axis is empty.")
    return number + size if number < 0 else number


def _bound(value: Any, size: Any, low: Any, high: Any, default: Any) -> Any:
    """Clamp one end of a slice as Python does."""
    if value is None:
        return default
    value = value if type(value) in (Dim, TracedNumber) else value.__index__()
    if value < 0:
        value = value + size
        return low if value < low else value
    return high if value > high else value


def _no_bounds(item: slice) -> Exception:
    """Return the error of a slice whose ends are no integers."""
    given = [end.raw if type(end) is StagedNumber else without_array(end) for end in (item.start, item.stop, item.step)]
    ends = [end for end in given if isinstance(end, Tensor | Variable)]
    if any(end.ndim == 0 and end.dtype.kind in "iu" for end in ends) and is_tracing():
        shown = ":".join("" if end is None else str(getattr(end, "spec", end)) for end in given[:2])
        return TraceError("x[index]: the size of a slice from or to a tensor depends on its value, unknown in a trace",
                          got=f"x[{shown}], {used_at()}",
                          hint="For n elements from i on: hf.take(x, i + hf.arange(n)). For all sizes: "
                               "hf.where(mask, x, other) with a mask such as hf.arange(len(x)) >= i.")
    return ArgumentTypeError("x[index]: a slice takes integers", got=repr(item),
                             hint="Use hf.take for other positions.")


def normalize_slice(item: slice, size: Any) -> tuple[Any, Any, int]:
    """Return a slice of an axis as ``(start, size, step)``; the start may be a number that each call decides.

    Raises:
        ArgumentTypeError: a step that is no non-zero integer, or an end that is no integer.
    """
    if any(type(end) in (StagedNumber, TracedArray) for end in (item.start, item.stop, item.step)):
        raise _no_bounds(item)
    if type(size) is int and not {type(item.start), type(item.stop)} & {Dim, TracedNumber} and item.step != 0:
        try:
            with tried():
                start, stop, step = item.indices(size)
        except TypeError:
            raise _no_bounds(item) from None
        count = len(range(start, stop, step))
        return (start, count, step if count > 1 else 1) if count else (0, 0, 1)
    try:
        step = 1 if item.step is None else item.step.__index__()
        if step == 0:
            raise ArgumentTypeError("x[index]: a slice's step is 0", got=repr(item), hint="Use 1 or -1.")
        if step > 0:
            start = _bound(item.start, size, 0, size, 0)
            stop = _bound(item.stop, size, 0, size, size)
            length = stop - start
        else:
            start = _bound(item.start, size, -1, size - 1, size - 1)
            stop = _bound(item.stop, size, -1, size - 1, -1)
            length = start - stop
    except AttributeError:
        raise _no_bounds(item) from None
    if length <= 0:
        return (0, 0, 1)
    if type(length) is TracedNumber:
        length = length.as_size()
        length = length if length <= size else size  # a bound of its size stays within the axis
    return (start, length if step in (1, -1) else (length + (abs(step) - 1)) // abs(step), step)


def _slice_of_numbers(item: slice, size: Any, *, alone: bool) -> tuple[Any, Any, Any] | Tensor:
    """Return what a slice selects whose ends each call decides.

    The trace serves only calls in which the slice has as many elements, unless its length differs from call to call.

    Args:
        item: the slice.
        size: the size of its axis.
        alone: whether nothing else in the key is a tensor: NumPy orders the axes of index tensors otherwise.

    Returns:
        The slice as `normalize_slice` gives it; positions, if the call decides where it starts.

    Raises:
        NeedsNumber: it is not alone, or an end is no integer.
    """
    ends = item.start, item.stop
    number = next(one for one in (item.step, *ends) if type(one) is TracedNumber)
    if number is item.step or any([one is not None and one.__class__ is not int for one in ends]):
        number.needed()
    count = None
    if type(size) is int and Dim not in map(type, ends):
        counted = number.count if abs(item.step or 1) <= _LONGEST_STEP else number.decided
        count = counted(_count_of_slice, *ends, item.step, size)
    if count is None:
        start, count, step = normalize_slice(item, size)
        at = start.as_size(new=False) if type(start) is TracedNumber else start
        if at is not None:
            return at, count, step
    else:
        start, step = number.of(_start_of_slice, (*ends, item.step, size)), item.step or 1
    if not alone:
        number.needed()
    return start.tensor() + _steps(count, step)


_LONGEST_STEP = 1 << 20
"""The longest step of a slice whose length may be open: XLA takes no step that is no int64."""


def _steps(count: Any, step: int) -> Tensor:
    """Return the distances of the elements of a slice from its first one."""
    if type(count) is Dim:
        return arange(cast(Any, count)) * step
    return asarray(np.arange(count, dtype=np.int32) * (step if count > 1 else 1))


def _count_of_slice(start: int | None, stop: int | None, step: int | None, size: int) -> int:
    return len(range(*slice(start, stop, step).indices(size)))


def _length_of_slice(start: str, stop: str, step: str, size: str) -> str:
    del size
    ends = (start, stop) if step == "None" else (start, stop, step)
    return f"the length of x[{':'.join(['' if one == 'None' else one for one in ends])}]"


SPOKEN[_count_of_slice] = _length_of_slice


def _start_of_slice(start: int | None, stop: int | None, step: int | None, size: int) -> int:
    return slice(start, stop, step).indices(size)[0]


def static_shape(index: StaticIndex) -> Shape:
    """Return the shape that a static index gives."""
    return tuple([1 if item is None else item[1] for item in index if item is None or type(item) is tuple])


def numpy_index(index: StaticIndex) -> tuple[Any, ...]:
    """Return a static index as NumPy takes it."""
    return tuple([_numpy_slice(*item) if type(item) is tuple else item for item in index])


def _numpy_slice(start: int, size: int, step: int) -> slice:
    stop = start + size * step
    return slice(start, None if stop < 0 else stop, step)


def _is_integer(item: Any) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, Tensor | Variable) and getattr(item, "ndim", 0) == 0


def _as_items(key: Any, shape: Shape) -> list[Any]:
    """Return a key as a list: one item per axis and None for new axes; masks become integer tensors, ``...`` slices."""
    given: tuple[Any, ...] = key if type(key) is tuple else (key,)
    items: list[Any] = []
    for item in map(without_array, given):
        if isinstance(item, bool | np.bool_):
            raise ArgumentTypeError(f"x[index]: {item} is not an index", got=f"x[{item}]",
                                    hint="Use an integer, or a mask tensor.")
        if type(item) is StagedNumber and item.kinds == INT:
            items.append(item.raw)
        elif type(item) is TracedNumber and item.__class__ is int:
            items.append(item.of(_of_int32, (item,)).tensor())
        elif item is None or item is Ellipsis or isinstance(item, slice | Dim):
            items.append(item)
        else:
            items.append(cast(Any, item).__index__() if _is_integer(item) else _index_tensor(item))
    used = sum(_width(item) for item in items)
    if used > len(shape):
        raise IndexRangeError(f"x[index]: {used} indices for {len(shape)} dimensions", got=f"x[{key!r}]"[:80],
                              hint=f"The shape is {shape}: give at most one index per axis.")
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    if len(dots) > 1:
        raise ArgumentTypeError("x[index]: an index has one ... at most", got=f"x[{key!r}]"[:80])
    rest = [slice(None)] * (len(shape) - used)
    dots_at = dots[0] if dots else len(items)
    return _without_masks([*items[:dots_at], *rest, *items[dots_at + len(dots) :]], shape)


def _of_int32(number: int) -> int:
    """Return an index; no axis has an element beyond int32."""
    if not -(2**31) <= number < 2**31:
        raise IndexRangeError(f"x[index]: index {number} is out of range of every axis", hint="Use a smaller index.")
    return number


def _width(item: Any) -> int:
    """Return how many axes an item of a key covers."""
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) else 1


def _without_masks(items: list[Any], shape: Shape) -> list[Any]:
    """Replace every mask by the positions of its True elements, one integer tensor per axis."""
    result: list[Any] = []
    axis = 0
    for item in items:
        result.extend(mask_positions(item, shape[axis:], axis) if isinstance(item, np.ndarray) else [item])
        axis += _width(item)
    return result


def _index_tensor(item: Any) -> Tensor | np.ndarray[Any, Any]:
    """Return an index tensor as a tensor, a mask as an array of bools."""
    if isinstance(item, list | tuple) and not item:
        item = np.zeros(0, np.int32)
    if isinstance(item, str | float | complex) or not (isinstance(item, list | tuple) or hasattr(item, "dtype")):
        raise ArgumentTypeError(f"x[index]: a {type(item).__name__} is not an index", got=repr(item)[:60],
                                hint="Index with integers, slices, None, ..., integer tensors or masks.")
    traced = isinstance(item, Tensor | Variable)
    tensor = as_tensor(item)
    kind = tensor.dtype.kind
    if kind == "b":
        if is_tracing() and traced:
            raise TraceError("x[index]: the shape of x[mask] depends on values, which a trace does not have",
                             got=f"x[{tensor.spec}]", hint="Use hf.where(mask, x, other), which keeps the shape.")
        return np.asarray(item) if is_tracing() else host_array(tensor)
    if kind not in "iu":
        raise ArgumentTypeError(f"x[index]: an index tensor is {tensor.dtype}, not an integer or a mask",
                                got=str(tensor.spec), hint="Cast it with .astype(hf.int32).")
    return tensor


def mask_positions(mask: np.ndarray[Any, Any], shape: Shape, axis: int) -> list[Tensor]:
    """Return the positions of a mask's True elements, one integer tensor per axis.

    Args:
        mask: bools.
        shape: the sizes of the axes from the mask's first one on.
        axis: the mask's first axis, for the message.

    Raises:
        IndexRangeError: a mask whose shape is not that of the axes that it covers; an empty mask fits any axes, as in
            NumPy.
    """
    if mask.ndim == 0 or any(a != b and a != 0 for a, b in zip(mask.shape, shape, strict=False)):
        raise IndexRangeError(
            f"x[mask]: a mask of shape {mask.shape} for axes of sizes {shape[: mask.ndim]} from axis {axis} on",
            hint="A mask has the sizes of the axes that it covers."
        )
    return [asarray(positions.astype(np.int32)) for positions in np.nonzero(mask)]


def traced_mask(key: Any, shape: Shape) -> Tensor | None:
    """Return the mask that a key is, if it covers the first axes and its values are not known in a trace, else None."""
    item = key[0] if type(key) is tuple and len(key) == 1 else key
    if not isinstance(item, Tensor | Variable) or item.dtype.kind != "b" or not is_tracing():
        return None
    return as_tensor(item) if item.ndim and item.shape == shape[: item.ndim] else None


def parse_key(key: Any, shape: Shape) -> ParsedKey:
    """Parse what stands between the brackets of ``x[...]`` for a tensor of a shape."""
    items = _as_items(key, shape)
    advanced = any(isinstance(item, Tensor) for item in items)
    index: list[Any] = []
    axes: list[int] = []
    tensors: list[Tensor] = []
    plain = True
    axis = position = 0
    for item in items:
        if item is None:
            index.append(None)
            plain = False
            position += 1
            continue
        size = shape[axis]
        if isinstance(item, slice) and TracedNumber in (type(item.start), type(item.stop), type(item.step)):
            found = _slice_of_numbers(item, size, alone=not advanced and not tensors)
            if type(found) is tuple:
                index.append(found)
                plain = False
            else:
                index.append((0, size, 1))
                axes.append(position)
                tensors.append(cast(Tensor, found))
        elif isinstance(item, slice):
            index.append(normalize_slice(item, size))
            plain = plain and item == slice(None)
        elif isinstance(item, Tensor):
            index.append((0, size, 1))
            axes.append(position)
            tensors.append(item)
        else:
            number = check_position(item, size, axis, "x[index]")
            if advanced:  # next to index tensors, an integer means the same as a tensor of shape ()
                index.append((0, size, 1))
                axes.append(position)
                tensors.append(asarray(number))
            else:
                index.append(number)
                plain = False
                axis += 1
                continue
        axis += 1
        position += 1
    adjacent = not axes or axes == list(range(axes[0], axes[0] + len(axes)))
    return ParsedKey(None if plain else tuple(index), tuple(axes), tuple(tensors), adjacent)


def part_of(shape: Shape, axis: int, start: Any, size: Any) -> StaticIndex:
    """Return the static index that selects `size` elements of an axis, from `start` on."""
    return tuple([(start, size, 1) if i == axis else (0, whole, 1) for i, whole in enumerate(shape)])

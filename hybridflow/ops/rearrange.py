"""Functions that move axes, and roll, repeat, flip or pad elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, Unpack, cast

import numpy as np
from jax import lax

from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int32
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, TraceError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY, Bad, Sample, op
from hybridflow.ops import common
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    cast_to,
    integers,
    is_number,
    known_value,
    make_spec,
    no_flops,
    normalize_axes,
    normalize_axis,
    normals,
    promote,
)
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.indexing import take
from hybridflow.ops.onnx import backwards
from hybridflow.ops.padding_nn import bordered, rolled, turned
from hybridflow.ops.shape import broadcast_to, expand_dims, permute_dims, reshape
from hybridflow.ops.sizes import Axis, normalize_shape

# -- axes ---------------------------------------------------------------------------------------------------------


def moveaxis(x: TensorLike, source: int | tuple[int, ...], destination: int | tuple[int, ...], /) -> Tensor:
    """Move axes to other positions; the rest keep their order.

    Args:
        x: any shape and dtype.
        source: the axes to move.
        destination: where each goes.

    Returns:
        The permuted tensor.

    Raises:
        ShapeError: an axis is out of range or named twice, or there are not as many destinations as sources.

    Example:
        >>> import hybridflow as hf
        >>> hf.moveaxis(hf.zeros((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    tensor = as_tensor(x)
    sides: list[list[int]] = []
    for axes in (source, destination):
        items = axes if isinstance(axes, list | tuple) else (axes,)
        sides.append([normalize_axis("moveaxis", axis, tensor.ndim) for axis in items])
    old, new = sides
    if len(old) != len(new):
        raise ShapeError(f"moveaxis: {len(old)} axes to {len(new)} places", hint="Give each a position.")
    moves = set(zip(new, old, strict=True))  # an axis may be named twice for one place, as where it changes with itself
    for axes, normal in ((source, old), (destination, new)):
        if len(set(normal)) != len(moves):
            raise ShapeError(f"moveaxis: {axes} names an axis twice", hint="Name each axis once.")
    order = [axis for axis in range(tensor.ndim) if axis not in old]
    for position, axis in sorted(moves):
        order.insert(position, axis)
    return permute_dims(tensor, order)


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape to which shapes broadcast together.

    Args:
        shapes: the shapes.

    Returns:
        The broadcast shape.

    Raises:
        ShapeError: two sizes that differ, neither of them 1.

    Example:
        >>> import hybridflow as hf
        >>> hf.broadcast_shapes((3, 1), (4,))
        (3, 4)
    """
    return common.broadcast_shapes("broadcast_shapes", *[normalize_shape("broadcast_shapes", s) for s in (*shapes, ())])


def broadcast_arrays(*arrays: TensorLike) -> list[Tensor]:
    """Broadcast tensors to their common shape.

    Args:
        arrays: tensors of any dtypes, whose shapes broadcast.

    Returns:
        The tensors, all of one shape.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> [t.shape for t in hf.broadcast_arrays(hf.zeros((3, 1)), [1.0, 2.0])]
        [(3, 2), (3, 2)]
    """
    tensors = [as_tensor(array) for array in arrays]
    shape = common.broadcast_shapes("broadcast_arrays", *[tensor.shape for tensor in tensors], ())
    return [tensor if tensor.shape == shape else broadcast_to(tensor, shape) for tensor in tensors]


def meshgrid(*arrays: TensorLike, indexing: Literal["xy", "ij"] = "xy") -> list[Tensor]:
    """Return the coordinates of the points of a grid.

    Args:
        arrays: the coordinates along every axis, each of one dimension.
        indexing: ``"ij"`` keeps the axes in the order of the arrays, ``"xy"`` exchanges the first two.

    Returns:
        One tensor per array, all of the grid's shape.

    Raises:
        ShapeError: an array does not have exactly one dimension.
        ArgumentError: an unknown `indexing`.

    Example:
        >>> import hybridflow as hf
        >>> hf.meshgrid([1, 2], [3, 4, 5])[0]
        Tensor([[1, 2],
                [1, 2],
                [1, 2]], dtype=int32)
    """
    if indexing not in ("xy", "ij"):
        raise ArgumentError(f"meshgrid: {indexing!r} is neither 'xy' nor 'ij'")
    rows = list(promote(*arrays)) if arrays else []
    for row in rows:
        if row.ndim != 1:
            raise ShapeError(f"meshgrid: an array of {row.ndim} dimensions", got=str(row.spec), hint="Pass rows.")
    order = list(range(len(rows)))
    if indexing == "xy" and len(rows) > 1:
        order[:2] = [1, 0]
    spread = [
        reshape(row, [-1 if i == axis else 1 for i in range(len(rows))])
        for axis, row in zip(order, rows, strict=True)
    ]
    return broadcast_arrays(*spread)


# -- rolling ------------------------------------------------------------------------------------------------------


def _roll_lower(x: Any, *, shift: tuple[int, ...], axis: tuple[int, ...]) -> Any:
    for step, along in zip(shift, axis, strict=True):
        size = x.shape[along]
        if size and step % size:
            cut = size - step % size
            x = lax.concatenate([lax.slice_in_dim(x, cut, size, axis=along), lax.slice_in_dim(x, 0, cut, axis=along)],
                                along)
    return x


def _roll_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), 1))
    yield Sample((normals(rng, 3, 4), -2), {"axis": 1})
    yield Sample((normals(rng, 2, 3), (1, 5)), {"axis": (0, -1)})
    yield Sample((normals(rng, 5, dtype="float64"), (1, 2)), {"axis": (0, 0)})
    yield Sample((normals(rng), 3))
    yield Sample((normals(rng, 0, 2, dtype="bfloat16"), 1), {"axis": 0}, gradient=False)
    yield Bad((normals(rng, 3), 1), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")
    yield Bad((normals(rng, 3), (1, 2)), {"axis": 0}, error=ShapeError, text="2 shifts for 1 axes")


def _roll_onnx(o: Any, x: Any, *, shift: tuple[Any, ...], axis: tuple[int, ...]) -> Any:
    sizes = x.shape
    for by, along in zip(shift, axis, strict=True):
        size = sizes[along]
        if type(size) is Dim or type(by) is Dim:
            o.no("rolling along an axis of open size has none")
        by %= max(size, 1)
        if by:
            tail = o.Slice(x, o.ints([size - by]), o.ints([size]), o.ints([along]))
            x = o.Concat(tail, o.Slice(x, o.ints([0]), o.ints([size - by]), o.ints([along])), axis=along)
    return x


@op(
    kernel=lambda x, shift, axis: np.roll(x, shift, axis),
    lower=_roll_lower,
    infer=lambda x, *, shift, axis: make_spec(x.shape, x.dtype),
    vjp=lambda F, g, y, x, *, shift, axis: (F.roll(g, shift=tuple([-step for step in shift]), axis=axis),),
    flops=no_flops,
    samples=_roll_samples,
    traits=("layout",),
    ulp=0,
    onnx=_roll_onnx,
    padded=rolled,
)
def roll(x: TensorLike, /, shift: int | tuple[int, ...], axis: Axis = None, **other: Unpack[Other]) -> Tensor:
    """Move elements along axes; those that leave at one end come in at the other.

    Args:
        x: any shape and dtype.
        shift: the number of positions, towards the end if positive; one number, or one per axis.
        axis: the axes; None rolls the flattened tensor. An axis named twice is rolled twice.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis is out of range, or there are not as many shifts as axes.

    Example:
        >>> import hybridflow as hf
        >>> hf.roll([1, 2, 3, 4], 1)
        Tensor([4, 1, 2, 3], dtype=int32)
    """
    if other:
        return respelled(roll, locals())
    tensor = as_tensor(x)
    if axis is None:
        flat = tensor if tensor.ndim == 1 else reshape(tensor, -1)
        rolled = bind(roll.op, (flat,), {"shift": (_total(shift),), "axis": (0,)})
        return rolled if tensor.ndim == 1 else reshape(rolled, tensor.shape)
    axes = axis if isinstance(axis, list | tuple) else (axis,)
    normalized = tuple([normalize_axis("roll", one, tensor.ndim) for one in axes])
    steps = tuple([int(step) for step in shift]) if isinstance(shift, list | tuple) else (int(shift),) * len(normalized)
    if len(steps) != len(normalized):
        raise ShapeError(f"roll: {len(steps)} shifts for {len(normalized)} axes", hint="Give one shift per axis.")
    return bind(roll.op, (tensor,), {"shift": steps, "axis": normalized})


def _total(shift: int | tuple[int, ...]) -> int:
    return sum([int(step) for step in shift]) if isinstance(shift, list | tuple) else int(shift)


# -- repeating ----------------------------------------------------------------------------------------------------


def repeat(x: TensorLike, repeats: TensorLike, /, axis: int | None = None, **other: Unpack[Other]) -> Tensor:
    """Repeat every element; its copies follow one another.

    Args:
        x: any shape and dtype.
        repeats: how often: one number, or integers of shape () or ``(n,)``, one per element of the axis.
        axis: the axis; None repeats the elements of the flattened tensor.

    Returns:
        The shape of `x`, longer along the axis.

    Raises:
        ShapeError: the axis is out of range, or there are not as many counts as elements.
        ArgumentError: a negative count.
        TraceError: the counts are traced; the shape depends on their values.

    Example:
        >>> import hybridflow as hf
        >>> hf.repeat([1, 2], 2), hf.repeat([1, 2], [1, 3])
        (Tensor([1, 1, 2, 2], dtype=int32), Tensor([1, 2, 2, 2], dtype=int32))
    """
    if other:
        return respelled(repeat, locals())
    tensor = as_tensor(x)
    if axis is None:
        tensor, axis = (tensor if tensor.ndim == 1 else reshape(tensor, -1)), 0
    along = normalize_axis("repeat", axis, tensor.ndim)
    if is_number(repeats):
        return _repeat_all(tensor, cast(int, repeats), along)
    counts = _counts(repeats)
    if (counts < 0).any():
        raise ArgumentError("repeat: a negative count", got=str(counts.tolist())[:80], hint="Use 0 or more.")
    if counts.size == 1:
        return _repeat_all(tensor, int(counts.reshape(())), along)
    if counts.shape != (tensor.shape[along],):
        raise ShapeError(f"repeat: counts of shape {counts.shape} for axis {along} of size {tensor.shape[along]}",
                         got=str(tensor.spec), hint="Give one count per element, or one for all.")
    return take(tensor, np.repeat(np.arange(counts.size, dtype=int32), counts), axis=along)


def _counts(repeats: TensorLike) -> np.ndarray[Any, Any]:
    counts = as_tensor(repeats)
    value = known_value(counts)
    if value is None:
        raise TraceError("repeat: the shape depends on the counts, whose values a trace does not have",
                         got=str(counts.spec), hint="Pass a Python number, or mark the argument static.")
    return value


def _repeat_all(x: Tensor, count: int, axis: int) -> Tensor:
    """Repeat every element equally often, whatever the axis's size."""
    if count < 0:
        raise ArgumentError(f"repeat: {count} times", hint="Use 0 or more.")
    shape = x.shape
    longer = (*shape[: axis + 1], count, *shape[axis + 1 :])
    spread = broadcast_to(expand_dims(x, axis + 1), longer)
    return reshape(spread, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def tile(x: TensorLike, repetitions: int | tuple[int, ...], /) -> Tensor:
    """Put copies of a tensor side by side.

    Args:
        x: any shape and dtype.
        repetitions: the number of copies along each axis; the last number belongs to the last axis.

    Returns:
        The tiled tensor; it has more dimensions than `x` if there are more numbers.

    Raises:
        ArgumentError: a negative number.

    Example:
        >>> import hybridflow as hf
        >>> hf.tile([1, 2], (2, 2))
        Tensor([[1, 2, 1, 2],
                [1, 2, 1, 2]], dtype=int32)
    """
    tensor = as_tensor(x)
    counts = normalize_shape("tile", repetitions, negative=True)
    if any(count < 0 for count in counts):
        raise ArgumentError(f"tile: {counts} holds a negative number", hint="Use 0 or more.")
    ndim = max(len(counts), tensor.ndim)
    counts = (1,) * (ndim - len(counts)) + counts
    shape = (1,) * (ndim - tensor.ndim) + tensor.shape
    pairs = [size for pair in zip(counts, shape, strict=True) for size in pair]
    apart = reshape(tensor, [size for one in shape for size in (1, one)])
    return reshape(broadcast_to(apart, pairs), [count * size for count, size in zip(counts, shape, strict=True)])


# -- order and borders --------------------------------------------------------------------------------------------


def _flip_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3),))
    yield Sample((normals(rng, 2, 3),), {"axis": -1})
    yield Sample((normals(rng),))
    yield Sample((normals(rng, 0, 2, dtype="bfloat16"),), {"axis": (0, 1)}, gradient=False)
    yield Bad((normals(rng, 2),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range for 1 dimensions")


@op(
    kernel=lambda x, axis: np.flip(x, axis),
    lower=lambda x, axis: lax.rev(x, axis),
    infer=lambda x, *, axis: make_spec(x.shape, x.dtype),
    vjp=lambda F, g, y, x, *, axis: (F.flip(g, axis=axis),),
    flops=no_flops,
    samples=_flip_samples,
    traits=("layout",),
    method="flip",
    ulp=0,
    onnx=lambda o, x, *, axis: backwards(o, x, axis),
    padded=turned,
)
def flip(x: TensorLike, /, axis: int | tuple[int, ...] | None = None, **other: Unpack[Other]) -> Tensor:
    """Reverse the order of the elements along axes.

    Args:
        x: any shape and dtype.
        axis: the axes; all of them if None.

    Returns:
        The reversed tensor.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.flip([1, 2, 3])
        Tensor([3, 2, 1], dtype=int32)
    """
    if other:
        return respelled(flip, locals())
    tensor = as_tensor(x)
    return bind(flip.op, (tensor,), {"axis": normalize_axes("flip", axis, tensor.ndim)})


Pads = tuple[tuple[int, int], ...]


def _pad_infer(x: TensorSpec, value: TensorSpec, *, pads: Pads) -> TensorSpec:
    if x.dtype != value.dtype:
        raise DTypeError(f"pad: dtypes differ: {x.dtype} and {value.dtype}", got=call_text("pad", x, value))
    if value.shape != ():
        raise ShapeError(f"pad: the value has shape {value.shape}, not ()", got=call_text("pad", x, value),
                         hint="Pad with one number.")
    sizes = zip(x.shape, pads, strict=True)
    return make_spec(tuple([low + size + high for size, (low, high) in sizes]), x.dtype)


def _pad_kernel(x: Any, value: Any, pads: Pads) -> Any:
    return np.pad(x, pads, constant_values=value) if pads else x


def _pad_vjp(F: Any, g: Any, y: Any, x: Any, value: Any, *, pads: Pads) -> Any:
    del y, value
    index = tuple([(low, size, 1) for (low, _), size in zip(pads, x.shape, strict=True)])
    axes = tuple(range(len(pads)))

    def of_value() -> Any:
        border = F.slice_scatter(F.getitem(g, index=index), shape=g.shape, index=index)
        return F.sum(g - border, axis=axes, keepdims=False)

    return lambda: F.getitem(g, index=index), of_value


def _pad_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3), ((1, 0), (2, 1))))
    yield Sample((normals(rng, 2, 3), 1, 5.0))
    yield Sample((normals(rng, 2, dtype="float64"), (0, 2)))
    yield Sample((normals(rng), ()))
    yield Sample((normals(rng, 0, 2, dtype="bfloat16"), 1), gradient=False)
    yield Sample((integers(rng, 0, 9, 3), 1, 7))
    yield Bad((normals(rng, 2, 3), ((1, 0),) * 3), error=ShapeError, text="3 pairs of widths for 2 dimensions")
    yield Bad((normals(rng, 2), -1), error=ShapeError, text="-1 is not a width")
    yield Bad((normals(rng, 2), 1, normals(rng, 2)), error=ShapeError, text="the value has shape (2,)")


def _pad_onnx(o: Any, x: Any, value: Any, *, pads: Pads) -> Any:
    return o.Pad(x, o.ints([*[low for low, _ in pads], *[high for _, high in pads]]), value) if pads else x


@op(
    kernel=_pad_kernel,
    lower=lambda x, value, pads: lax.pad(x, value, [(low, high, 0) for low, high in pads]),
    infer=_pad_infer,
    vjp=_pad_vjp,
    flops=no_flops,
    samples=_pad_samples,
    traits=("layout",),
    ulp=0,
    onnx=_pad_onnx,
    padded=bordered,
)
def pad(x: TensorLike, /, pad_width: Any, value: TensorLike = 0, *, mode: PadMode = "constant") -> Tensor:
    """Put a border around a tensor, made of one value or of the tensor's own elements.

    Args:
        x: any shape and dtype.
        pad_width: the border's width: one number, ``(before, after)``, or such a pair per axis.
        value: the value of a constant border, a number or a tensor of shape ().
        mode: ``"constant"``; ``"edge"`` repeats the outermost element; ``"reflect"`` mirrors the elements without the
            outermost one, ``"symmetric"`` with it; ``"wrap"`` continues at the other end.

    Returns:
        The tensor with its border.

    Raises:
        ShapeError: a negative width, not as many pairs as axes, or an empty axis that has no elements to repeat.
        ArgumentError: an unknown `mode`.

    Example:
        >>> import hybridflow as hf
        >>> hf.pad([1, 2], (1, 2))
        Tensor([0, 1, 2, 0, 0], dtype=int32)
        >>> hf.pad([1, 2, 3], 2, mode="reflect")
        Tensor([3, 2, 1, 2, 3, 2, 1], dtype=int32)
    """
    tensor = as_tensor(x)
    if mode != "constant":
        if mode not in _BORDERS:
            raise ArgumentError(f"pad: {mode!r} is not one of {['constant', *_BORDERS]}")
        for axis, (low, high) in enumerate(_pairs(pad_width, tensor)):
            tensor = _with_border(tensor, axis, low, high, mode)
        return tensor
    outside = cast_to(promote(tensor, value)[1], tensor.dtype)
    pads = _pairs(pad_width, tensor)
    pad.op.infer(tensor.spec, outside.spec, pads=pads)
    return bind(pad.op, (tensor, outside), {"pads": pads})


PadMode = Literal["constant", "edge", "reflect", "symmetric", "wrap"]
_BORDERS = ("edge", "reflect", "symmetric", "wrap")


def _with_border(x: Tensor, axis: int, low: Any, high: Any, mode: str) -> Tensor:
    """Put elements of an axis before and after it.

    A border may be wider than the elements that can be mirrored or repeated. Then it is added in steps of their
    number, and after each step the longer axis can be mirrored or continued again.
    """
    join: Any = REGISTRY["concat"].public
    if low == 0 and high == 0:
        return x
    if x.shape[axis] == 0:
        raise ShapeError(f"pad: axis {axis} is empty, so there is nothing for a border of mode {mode!r}",
                         got=str(x.spec), hint='Use mode="constant".')
    if mode == "edge" or (mode == "reflect" and x.shape[axis] == 1):
        ends = [(_part(x, axis, 0, 1), low), (x, 1), (_part(x, axis, x.shape[axis] - 1, 1), high)]
        return join([part if part is x else _spread(part, axis, count) for part, count in ends], axis=axis)
    period, skip = x.shape[axis], int(mode == "reflect")
    for width, first in ((low, True), (high, False)):
        left = width
        while left > 0:
            size = x.shape[axis]
            step = left if left <= period - skip else period - skip
            if mode == "wrap":
                piece = _part(x, axis, period - step if first else size - period, step)
            else:
                piece = flip(_part(x, axis, skip if first else size - skip - step, step), axis)
            x = join([piece, x] if first else [x, piece], axis=axis)
            left = left - step
    return x


def _part(x: Tensor, axis: int, start: Any, size: Any) -> Tensor:
    return bind(REGISTRY["getitem"], (x,), {"index": part_of(x.shape, axis, start, size)})


def _spread(x: Tensor, axis: int, count: Any) -> Tensor:
    broadcast_to: Any = REGISTRY["broadcast_to"].public
    return broadcast_to(x, (*x.shape[:axis], count, *x.shape[axis + 1 :]))


def _pairs(width: Any, x: Tensor) -> Pads:
    """Return the border's widths as one pair per axis."""
    if not isinstance(width, list | tuple):
        width = (width, width)
    items: list[Any] = list(cast("Iterable[Any]", width))
    if len(items) == 2 and not any(isinstance(item, list | tuple) for item in items):
        items = [tuple(items)] * x.ndim
    if len(items) != x.ndim:
        raise ShapeError(f"pad: {len(items)} pairs of widths for {x.ndim} dimensions", got=f"pad({x.spec}, {width})",
                         hint="Give one pair per axis.")
    pairs = [normalize_shape("pad", item, negative=True) for item in items]
    for pair in pairs:
        for size in pair:
            if size < 0:
                raise ShapeError(f"pad: {size} is not a width", got=f"{width}", hint="Use 0 or more.")
    return tuple([(pair[0], pair[1]) for pair in pairs])


__all__ = ["broadcast_arrays", "broadcast_shapes", "flip", "meshgrid", "moveaxis", "pad", "repeat", "roll", "tile"]

"""Cutting, flipping and padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal, Unpack, cast

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, message
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY, Bad, Sample, op, public_names
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    cast_to,
    integers,
    make_spec,
    no_flops,
    normalize_axes,
    normalize_axis,
    normals,
    promote,
)
from hybridflow.ops.index_keys import normalize_slice, part_of
from hybridflow.ops.onnx import backwards
from hybridflow.ops.sizes import normalize_shape

# -- cutting ------------------------------------------------------------------------------------------------------


def unstack(x: TensorLike, /, axis: int = 0, **other: Unpack[Other]) -> tuple[Tensor, ...]:
    """Take a tensor apart along an axis.

    Args:
        x: one dimension at least; the axis must have a fixed size.
        axis: the axis, which the parts do not have.

    Returns:
        One tensor per element of the axis.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.unstack([[1, 2], [3, 4]])
        (Tensor([1, 2], dtype=int32), Tensor([3, 4], dtype=int32))
    """
    if other:
        return respelled(unstack, locals())
    tensor = as_tensor(x)
    place = normalize_axis("unstack", axis, tensor.ndim)
    whole = [(0, size, 1) for size in tensor.shape]
    getitem = REGISTRY["getitem"]
    return tuple(
        [
            bind(getitem, (tensor,), {"index": (*whole[:place], i, *whole[place + 1 :])})
            for i in range(int(tensor.shape[place]))
        ]
    )


def split(
    x: TensorLike, /, sections_or_indices: int | Sequence[int], axis: int = 0, **other: Unpack[Other]
) -> list[Tensor]:
    """Cut a tensor into parts along an axis.

    Args:
        x: one dimension at least.
        sections_or_indices: the number of equal parts, or the positions at which to cut.
        axis: the axis.

    Returns:
        The parts, in order.

    Raises:
        ShapeError: a size that the number of parts does not divide, or an axis out of range.
        ArgumentError: fewer than one part.

    Example:
        >>> import hybridflow as hf
        >>> hf.split([1, 2, 3, 4, 5, 6], 3)[1]
        Tensor([3, 4], dtype=int32)
        >>> hf.split([1, 2, 3, 4, 5, 6], [1, 4])[1]
        Tensor([2, 3, 4], dtype=int32)
    """
    if other:
        return respelled(split, locals())
    tensor = as_tensor(x)
    place = normalize_axis("split", axis, tensor.ndim)
    size = tensor.shape[place]
    if isinstance(sections_or_indices, list | tuple):
        cuts: list[Any] = [slice(a, b) for a, b in pairwise([0, *sections_or_indices, None])]
        parts = [normalize_slice(cut, size) for cut in cuts]
    else:
        parts = _equal_parts(int(cast(Any, sections_or_indices)), size, place, tensor)
    getitem = REGISTRY["getitem"]
    return [
        bind(getitem, (tensor,), {"index": part_of(tensor.shape, place, start, count)}) for start, count, _ in parts
    ]


def _equal_parts(count: int, size: Any, axis: int, tensor: Tensor) -> list[tuple[Any, Any, int]]:
    if count < 1:
        raise ArgumentError(message(f"split: {count} parts", hint="Ask for one part at least."))
    each = size // count
    if each * count != size:
        raise ShapeError(
            message(f"split: axis {axis} of size {size} does not divide into {count} equal parts",
                    got=str(tensor.spec), hint="Give the positions of the cuts instead.")
        )  # fmt: skip
    return [(i * each, each, 1) for i in range(count)]


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
        raise DTypeError(message(f"pad: dtypes differ: {x.dtype} and {value.dtype}", got=call_text("pad", x, value)))
    if value.shape != ():
        raise ShapeError(
            message(f"pad: the value has shape {value.shape}, not ()", got=call_text("pad", x, value),
                    hint="Pad with one number.")
        )  # fmt: skip
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
)
def pad(x: TensorLike, /, pad_width: Any, value: TensorLike = 0, *, mode: PadMode = "constant") -> Tensor:
    """Put a border around a tensor: of one value, or of elements of its own.

    Args:
        x: any shape and dtype.
        pad_width: the border's width: one number, ``(before, after)``, or such a pair per axis.
        value: the value of a constant border, a number or a tensor of shape ().
        mode: ``"constant"``; ``"edge"`` repeats the outermost element; ``"reflect"`` mirrors what is inside of it, and
            ``"symmetric"`` what begins with it; ``"wrap"`` goes on at the other end.

    Returns:
        The tensor with its border.

    Raises:
        ShapeError: a negative width, another number of pairs than axes, or an empty axis to take elements of.
        ArgumentError: another word for `mode`.

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
            raise ArgumentError(message(f"pad: {mode!r} is not one of {['constant', *_BORDERS]}"))
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

    A border wider than what there is to mirror or repeat is put on in steps of that width, each of which ends where
    the whole can be mirrored, or goes on, again.
    """
    join: Any = REGISTRY["concat"].public
    if low == 0 and high == 0:
        return x
    if x.shape[axis] == 0:
        raise ShapeError(
            message(f"pad: axis {axis} is empty, so there is nothing for a border of mode {mode!r}", got=str(x.spec),
                    hint='Use mode="constant".')
        )  # fmt: skip
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
    """Return the border's widths as a pair per axis."""
    if not isinstance(width, list | tuple):
        width = (width, width)
    items: list[Any] = list(cast("Iterable[Any]", width))
    if len(items) == 2 and not any(isinstance(item, list | tuple) for item in items):
        items = [tuple(items)] * x.ndim
    if len(items) != x.ndim:
        raise ShapeError(
            message(f"pad: {len(items)} pairs of widths for {x.ndim} dimensions", got=f"pad({x.spec}, {width})",
                    hint="Give one pair per axis.")
        )  # fmt: skip
    pairs = [normalize_shape("pad", item) for item in items]
    for pair in pairs:
        for size in pair:
            if size < 0:
                raise ShapeError(message(f"pad: {size} is not a width", got=f"{width}", hint="Use 0 or more."))
    return tuple([(pair[0], pair[1]) for pair in pairs])


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

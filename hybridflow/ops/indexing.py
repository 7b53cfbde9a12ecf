"""Indexing: ``x[...]``, `take` and its relatives, and their adjoints, which are operations too."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.context import context_now, is_tracing
from hybridflow.core.dims import same_size
from hybridflow.core.dispatch import as_arrays, bind
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.core.errors import IndexRangeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, on_host, op
from hybridflow.core.operators import add_method
from hybridflow.core.slice_gradient import SliceGradient
from hybridflow.core.tensor import host_array, make_tensor
from hybridflow.ops.common import (
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    input_elements,
    make_spec,
    no_flops,
    normalize_axis,
    normals,
)
from hybridflow.ops.index_checks import checked_indices, explained, gathered_shape, index_key, lowered_key
from hybridflow.ops.index_keys import StaticIndex, check_position, numpy_index, parse_key, static_shape
from hybridflow.ops.onnx import from_front, index_rows, positions, scatter_rows, scattered, sliced, zeros
from hybridflow.ops.padding_index import gathered, indexed, put_into_zeros
from hybridflow.ops.padding_updates import added_rows
from hybridflow.ops.shape import reshape
from hybridflow.ops.sizes import Axes, count_elements, normalize_shape

# -- static indices -----------------------------------------------------------------------------------------------


def _getitem_lower(x: Any, index: StaticIndex) -> Any:
    entries = [item if type(item) is tuple else (item, 1, 1) for item in index if item is not None]
    flipped = [i for i, (_, _, step) in enumerate(entries) if step < 0]
    starts = [start if step > 0 else start + (size - 1) * step for start, size, step in entries]
    limits = [
        start + (size - 1) * abs(step) + 1 if size else start
        for start, (_, size, step) in zip(starts, entries, strict=True)
    ]
    y = lax.slice(x, starts, limits, [abs(step) for _, _, step in entries])
    if flipped:
        y = lax.rev(y, flipped)
    return lax.reshape(y, static_shape(index))


def _getitem_infer(x: TensorSpec, *, index: StaticIndex) -> TensorSpec:
    entries = [item for item in index if item is not None]
    if len(entries) != len(x.shape):
        raise ShapeError(f"getitem: {len(entries)} entries for {len(x.shape)} dimensions", got=call_text("getitem", x),
                         hint="A static index has one entry per axis.")
    for axis, (item, size) in enumerate(zip(entries, x.shape, strict=True)):
        if type(item) is not tuple:
            check_position(item, size, axis, "x[index]")
        elif not (same_size(item[1], size) and item[2] == 1) and item[1] > 0:
            check_position(item[0], size, axis, "x[index]")
            check_position(item[0] + (item[1] - 1) * item[2], size, axis, "x[index]")
    return make_spec(static_shape(index), x.dtype)


def _getitem_samples(rng: np.random.Generator) -> Any:
    x = normals(rng, 3, 4)
    yield Sample((x, 1))
    yield Sample((x, (-1, slice(None, None, -1))))
    yield Sample((x, (slice(0, 3, 2), None, slice(1, -1))))
    yield Sample((x, (..., slice(3, None, -2))))
    yield Sample((x, (slice(2, 1), 0)))
    yield Sample((x[0, 0], ()))
    yield Sample((x.astype("float64"), (2, 3)))
    yield Sample((normals(rng, 3, 2, dtype="bfloat16"), slice(1, None)), gradient=False)
    yield Sample((x, (np.array([[0, -1], [2, 2]], np.int32), slice(1, 3))))
    yield Bad((x, 3), error=IndexRangeError, text="index 3 is out of range for size 3 on axis 0")
    yield Bad((x, (0, -5)), error=IndexRangeError, text="index -5 is out of range for size 4 on axis 1")
    yield Bad((x, (0, 0, 0)), error=IndexRangeError, text="3 indices for 2 dimensions")
    yield Bad((x, 1.0), error=TypeError, text="a float is not an index")
    yield Bad((x, slice(None, None, 0)), error=TypeError, text="step is 0")


_BASIC = frozenset({int, slice, type(None), type(...)})


def _is_basic(key: Any) -> bool:
    """Whether a key certainly means the same to NumPy as here."""
    if type(key) is not tuple:
        return type(key) in _BASIC
    for item in key:  # noqa: SIM110  (a generator costs more than the loop)
        if type(item) not in _BASIC:
            return False
    return True


def _getitem_onnx(o: Any, x: Any, *, index: StaticIndex) -> Any:
    entries = [item for item in index if item is not None]
    y = sliced(o, x, entries, x.shape)
    numbers = [axis for axis, item in enumerate(entries) if type(item) is not tuple]
    y = o.Squeeze(y, o.ints(numbers)) if numbers else y
    kept = [item for item in index if item is None or type(item) is tuple]
    new = [axis for axis, item in enumerate(kept) if item is None]
    return o.Unsqueeze(y, o.ints(new)) if new else y


def _getitem_vjp(F: Any, g: Any, y: Any, x: Any, *, index: StaticIndex) -> Any:
    del y
    return (F.slice_scatter(g, shape=x.shape, index=index),)


def _getitem_host(g: Any, y: Any, x: Any, *, index: StaticIndex) -> Any:
    del y
    if g.dtype.num in LOW_PRECISION or g.size == prod(x.shape):
        return None
    return (SliceGradient(g, x.shape, numpy_index(index)),)


@op(
    kernel=lambda x, index: x[numpy_index(index)],
    lower=_getitem_lower,
    infer=_getitem_infer,
    vjp=on_host(_getitem_vjp, _getitem_host),
    flops=no_flops,
    samples=_getitem_samples,
    traits=("layout", "slice", "inner"),
    method="__getitem__",
    ulp=0,
    onnx=_getitem_onnx,
    padded=indexed,
)
def getitem(x: TensorLike, key: Any = None, *, index: StaticIndex | None = None) -> Tensor:
    """Index a tensor, as ``x[key]`` does.

    Args:
        x: any shape and dtype.
        key: integers, slices, None, ``...``, integer tensors and masks, with NumPy's meaning.
        index: the key as the operation stores it; used by gradient rules only.

    Returns:
        The elements selected.

    Raises:
        IndexRangeError: an index outside its axis, or more indices than axes.
        ArgumentTypeError: something that is no index.
        TraceError: a mask inside a compiled function.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.asarray([[1, 2, 3], [4, 5, 6]])
        >>> x[1, ::-1]
        Tensor([6, 5, 4], dtype=int32)
    """
    tensor = x if type(x) is Tensor else as_tensor(x)
    if index is not None:
        return bind(getitem.op, (tensor,), {"index": index})
    value = tensor._value
    if type(value) is np.ndarray and tensor._edge is None and context_now() is None and _is_basic(key):
        try:
            return make_tensor(as_arrays(value[key]))
        except (IndexError, TypeError, ValueError):
            parse_key(key, tensor.shape)  # raises the error that says what is wrong
            raise
    if type(key) is Tensor and key.dtype.kind in "iu" and tensor.ndim:
        return selected("x[index]", tensor, (key,), (0,))
    if isinstance(key, Tensor) and not key.shape and key.dtype.kind == "b" and not is_tracing():
        whole = [(0, size, 1) for size in tensor.shape]
        apart = bind(getitem.op, (tensor,), {"index": (None, *whole)})
        return bind(getitem.op, (apart,), {"index": ((0, int(key), 1), *whole)})
    parsed = parse_key(key, tensor.shape)
    if parsed.static is not None:
        tensor = bind(getitem.op, (tensor,), {"index": parsed.static})
    return selected("x[index]", tensor, parsed.tensors, parsed.axes) if parsed.tensors else tensor


def _slice_scatter_kernel(x: Any, *, shape: Shape, index: StaticIndex) -> Any:
    result = np.zeros(shape, x.dtype)
    result[numpy_index(index)] = x
    return result


def _slice_scatter_lower(x: Any, *, shape: Shape, index: StaticIndex) -> Any:
    entries = [item if type(item) is tuple else (item, 1, 1) for item in index if item is not None]
    y = lax.reshape(x, tuple([size for _, size, _ in entries]))
    flipped = [i for i, (_, _, step) in enumerate(entries) if step < 0]
    if flipped:
        y = lax.rev(y, flipped)
    pads: list[tuple[int, int, int]] = []
    for (start, size, step), whole in zip(entries, shape, strict=True):
        gap = abs(step)
        low = start if step > 0 else start + (size - 1) * step
        pads.append((low, whole - low - (size - 1) * gap - 1, gap - 1) if size else (0, whole, 0))
    return lax.pad(y, np.zeros((), x.dtype), pads)


def _slice_scatter_infer(x: TensorSpec, *, shape: Shape, index: StaticIndex) -> TensorSpec:
    expected = _getitem_infer(make_spec(shape, x.dtype), index=index).shape
    if x.shape != expected:
        raise ShapeError(f"slice_scatter: a value of shape {x.shape} for elements of shape {expected}",
                         got=call_text("slice_scatter", x), hint="Give one value per selected element.")
    return make_spec(shape, x.dtype)


def _slice_scatter_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3),), {"shape": (5, 4), "index": ((4, 2, -2), (1, 3, 1))})
    yield Sample((normals(rng, 1, 3),), {"shape": (2, 7), "index": (1, None, (0, 3, 3))})
    yield Sample((normals(rng, 0, 2, dtype="float64"),), {"shape": (3, 2), "index": ((0, 0, 1), (0, 2, 1))})
    yield Sample((normals(rng, 2, dtype="bfloat16"),), {"shape": (4,), "index": ((1, 2, 1),)}, gradient=False)
    yield Bad((normals(rng, 3),), {"shape": (4,), "index": ((0, 2, 1),)}, error=ShapeError, text="shape (3,) for")


def _slice_scatter_onnx(o: Any, x: Any, *, shape: Shape, index: StaticIndex) -> Any:
    return scattered(o, zeros(o, shape, x.dtype), positions(o, shape, numpy_index(index)), x, shape)


@op(
    kernel=_slice_scatter_kernel,
    lower=_slice_scatter_lower,
    infer=_slice_scatter_infer,
    vjp=lambda F, g, y, x, *, shape, index: (F.getitem(g, index=index),),
    flops=no_flops,
    samples=_slice_scatter_samples,
    traits=("layout", "placement", "inner"),
    ulp=0,
    onnx=_slice_scatter_onnx,
    padded=put_into_zeros,
)
def slice_scatter(x: TensorLike, /, *, shape: Shape, index: StaticIndex) -> Tensor:
    """Put elements at the positions that a static index selects, and zeros elsewhere: the adjoint of `getitem`.

    Args:
        x: of the shape that the index gives.
        shape: the result's shape.
        index: per axis an integer or ``(start, size, step)``; None for a new axis.

    Returns:
        The tensor of that shape.

    Raises:
        ShapeError: `x` has another shape than the index gives.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.indexing import slice_scatter
        >>> slice_scatter([1.0, 2.0], shape=(5,), index=((0, 2, 2),))
        Tensor([1., 0., 2., 0., 0.], dtype=float32)
    """
    tensor = as_tensor(x)
    _slice_scatter_infer(tensor.spec, shape=shape, index=index)
    return bind(slice_scatter.op, (tensor,), {"shape": shape, "index": index})


# -- positions in tensors -----------------------------------------------------------------------------------------


def _gather_infer(x: TensorSpec, *indices: TensorSpec, axes: Axes) -> TensorSpec:
    return make_spec(gathered_shape("gather", x.shape, indices, axes), x.dtype)


def _gather_kernel(x: Any, *indices: Any, axes: Axes) -> Any:
    try:
        if len(axes) == 1:
            return np.take(x, indices[0], axes[0])
        return x[index_key(indices, axes)]
    except IndexError:
        raise explained("gather", x.shape, indices, axes) from None


def _gather_vjp(F: Any, g: Any, y: Any, x: Any, *indices: Any, axes: Axes) -> Any:
    del y
    return (F.index_add(g, *indices, axes=axes, shape=x.shape), *[None] * len(indices))


def _gather_samples(rng: np.random.Generator) -> Any:
    x = normals(rng, 3, 4, 2)
    yield Sample((x, np.array([2, 0, -1, 2], np.int32)), {"axes": (0,)})
    yield Sample((x, np.array([[0], [1]], np.int32), np.array([1, -2, 1], np.int64)), {"axes": (1, 2)})
    yield Sample((x, np.array([0, 2], np.uint8), np.array(1)), {"axes": (0, 2)})
    yield Sample((x.astype("float64"), np.zeros(0, np.int32)), {"axes": (1,)})
    yield Sample((normals(rng, 3, dtype="bfloat16"), np.array(1, np.int32)), {"axes": (0,)}, gradient=False)
    yield Bad((x, np.array([0, 4], np.int32)), {"axes": (1,)}, error=IndexRangeError,
              text="index 4 is out of range for size 4 on axis 1")
    yield Bad((x, np.array([0, -4]), np.array([0])), {"axes": (0, 1)}, error=IndexRangeError,
              text="index -4 is out of range for size 3 on axis 0")
    yield Bad((x, np.array([0.5])), {"axes": (0,)}, error=TypeError, text="does not take float64, only int, uint")


def _gather_onnx(o: Any, x: Any, *indices: Any, axes: Axes) -> Any:
    if len(axes) == 1:
        return o.Gather(x, o.cast(indices[0], np.int64), axis=axes[0])
    rows = index_rows(o, indices, [x.shape[axis] for axis in axes])
    rest = [axis for axis in range(x.ndim) if axis not in axes]
    return from_front(o, o.GatherND(o.Transpose(x, perm=[*axes, *rest]), rows), indices, axes, len(rest))


@op(
    kernel=_gather_kernel,
    lower=lambda x, *indices, axes: jnp.asarray(x).at[lowered_key(indices, axes)].get(mode="clip"),
    infer=_gather_infer,
    vjp=_gather_vjp,
    saves=Saves(x="rest"),
    flops=no_flops,
    samples=_gather_samples,
    traits=("layout", "inner"),
    ulp=0,
    onnx=_gather_onnx,
    padded=gathered,
)
def gather(x: TensorLike, /, *indices: TensorLike, axes: Axes) -> Tensor:
    """Select elements by integer tensors, as ``x[i, j]`` does.

    Args:
        x: any dtype.
        indices: one integer tensor per axis that is selected from, of shapes that broadcast; negative integers count
            from the end.
        axes: the axes, in increasing order.

    Returns:
        The elements. The indices' axes replace neighbouring axes in place; if the axes are not neighbours, they come
        first.

    Raises:
        IndexRangeError: an index outside its axis; inside a compiled function, when the call is made.
        DTypeError: indices that are no integers.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.indexing import gather
        >>> gather([10, 20, 30], [2, 0, -1], axes=(0,))
        Tensor([30, 10, 30], dtype=int32)
    """
    tensor = as_tensor(x)
    return selected("gather", tensor, indices, tuple([normalize_axis("gather", axis, tensor.ndim) for axis in axes]))


def selected(name: str, tensor: Tensor, indices: Sequence[TensorLike], axes: Axes) -> Tensor:
    """Select elements as `gather` does, for a function whose name the errors of indices tell."""
    index = checked_indices(name, indices, tensor.shape, axes)
    try:
        return bind(gather.op, (tensor, *index), {"axes": axes})
    except IndexRangeError:
        raise explained(name, tensor.shape, [host_array(one) for one in index], axes) from None


def _index_add_infer(x: TensorSpec, *indices: TensorSpec, axes: Axes, shape: Shape) -> TensorSpec:
    expected = gathered_shape("index_add", shape, indices, axes)
    if x.shape != expected:
        raise ShapeError(f"index_add: values of shape {x.shape} for elements of shape {expected}",
                         got=call_text("index_add", x, *indices), hint="Give one value per selected element.")
    return make_spec(shape, x.dtype)


_WIDE_ROW = 128
"""The fewest elements of a row for which adding row by row takes less time than `numpy.add.at`, in the same order."""


def _index_add_kernel(x: Any, *indices: Any, axes: Axes, shape: Shape) -> Any:
    wide = float32 if x.dtype.num in LOW_PRECISION else x.dtype
    result = np.zeros(shape, wide)
    values = x.astype(wide, copy=False)
    try:
        if axes == (0,) and count_elements(shape[1:]) >= _WIDE_ROW:
            for index, row in zip(indices[0].ravel().tolist(), values.reshape(-1, *shape[1:]), strict=True):
                total = result[index]
                np.add(total, row, out=total)
        else:
            np.add.at(result, index_key(indices, axes), values)
    except IndexError:
        raise explained("index_add", shape, indices, axes) from None
    return result.astype(x.dtype, copy=False)


def _index_add_lower(x: Any, *indices: Any, axes: Axes, shape: Shape) -> Any:
    wide = float32 if x.dtype.num in LOW_PRECISION else x.dtype
    result = lax.full(shape, 0, wide).at[lowered_key(indices, axes)].add(x.astype(wide), mode="drop")
    return result.astype(x.dtype)


def _index_add_samples(rng: np.random.Generator) -> Any:
    index = np.array([2, 0, -1, 2], np.int32)
    yield Sample((normals(rng, 4, 2), index), {"axes": (0,), "shape": (3, 2)})
    yield Sample((normals(rng, 2, 2), np.array([[0], [1]]), np.array([1, 1])), {"axes": (0, 1), "shape": (2, 3)})
    yield Sample((normals(rng, 0, 2), np.zeros(0, np.int32)), {"axes": (0,), "shape": (3, 2)})
    yield Bad((normals(rng, 3), index), {"axes": (0,), "shape": (3,)}, error=ShapeError, text="values of shape (3,)")
    yield Bad((normals(rng, 4), index), {"axes": (0,), "shape": (2,)}, error=IndexRangeError, text="index 2 is out")


def _index_add_onnx(o: Any, x: Any, *indices: Any, axes: Axes, shape: Shape) -> Any:
    return scatter_rows(o, zeros(o, shape, x.dtype), x, indices, axes, shape, "add")


@op(
    kernel=_index_add_kernel,
    lower=_index_add_lower,
    infer=_index_add_infer,
    vjp=lambda F, g, y, x, *indices, axes, shape: (F.gather(g, *indices, axes=axes), *[None] * len(indices)),
    saves=Saves(x="all"),
    flops=input_elements,
    samples=_index_add_samples,
    traits=("inner",),
    onnx=_index_add_onnx,
    padded=added_rows,
)
def index_add(x: TensorLike, /, *indices: TensorLike, axes: Axes, shape: Shape) -> Tensor:
    """Add values to a tensor of zeros, at the positions given by integer tensors: the adjoint of `gather`.

    float16 and bfloat16 accumulate in float32.

    Args:
        x: values, of the shape that `gather` would give.
        indices: one integer tensor per axis in `axes`.
        axes: the axes that are selected from, in increasing order.
        shape: the result's shape.

    Returns:
        The sums, in the dtype of `x`.

    Raises:
        IndexRangeError: an index outside its axis.
        ShapeError: `x` has another shape than the indices select.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.indexing import index_add
        >>> index_add([1.0, 2.0, 3.0], [0, 2, 0], axes=(0,), shape=(3,))
        Tensor([4., 0., 2.], dtype=float32)
    """
    tensor = as_tensor(x)
    attrs = {"axes": axes, "shape": normalize_shape("index_add", shape)}
    checked = checked_indices("index_add", indices, shape, axes)
    _index_add_infer(tensor.spec, *[one.spec for one in checked], **attrs)
    return bind(index_add.op, (tensor, *checked), attrs)


def take(x: TensorLike, indices: TensorLike, /, axis: int | None = None, **other: Unpack[Other]) -> Tensor:
    """Take elements along one axis.

    Args:
        x: one dimension at least, any dtype.
        indices: integers of any shape; negative ones count from the end.
        axis: the axis; None takes from the flattened tensor.

    Returns:
        The shape of `x`, with that of the indices in place of the axis.

    Raises:
        IndexRangeError: an index outside the axis; inside a compiled function, when the call is made.
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.take([[1, 2, 3], [4, 5, 6]], [2, 0], axis=1)
        Tensor([[3, 1],
                [6, 4]], dtype=int32)
    """
    if other:
        return respelled(take, locals())
    tensor = as_tensor(x)
    if axis is None:
        tensor, axis = (tensor if tensor.ndim == 1 else reshape(tensor, -1)), 0
    return selected("take", tensor, (indices,), (normalize_axis("take", axis, tensor.ndim),))


add_method("take", take)


__all__ = ["take"]

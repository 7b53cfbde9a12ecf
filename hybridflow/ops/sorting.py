"""Sorting, argsort, the largest elements, the median, and searches in a sorted tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np
from jax import lax
from jax import numpy as jnp

from hybridflow.core.dims import Dim, evaluate
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int32, is_floating, kind_of
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
from hybridflow.ops.along_axis import take_along_axis
from hybridflow.ops.arithmetic import add, multiply
from hybridflow.ops.choice import where
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_bound,
    as_tensor,
    call_text,
    integers,
    make_spec,
    normalize_axis,
    normals,
    promote,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.comparison import isnan
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.indexing import getitem, take
from hybridflow.ops.padding_nn import ordered, searched
from hybridflow.ops.shape import reshape, squeeze

_ORDERED = ("bool", "int", "uint", "float")


def _sort_flops(outputs: Any, x: Any, *, axis: int, **attrs: Any) -> Any:
    """Count one comparison per element and halving of the axis; a symbolic size counts as it was when traced."""
    del outputs, attrs
    size = x.shape[axis]
    length = evaluate(size, size.scope.hints) if isinstance(size, Dim) else size
    return x.size * max(length - 1, 1).bit_length()


# -- sorting ------------------------------------------------------------------------------------------------------


def _host_order(x: Any, axis: int, descending: bool) -> Any:
    """Return the positions that sort; equal elements keep their order."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable").astype(int32)
    backwards = np.argsort(np.flip(x, axis), axis=axis, kind="stable")
    return np.flip(x.shape[axis] - 1 - backwards, axis).astype(int32)


def _lowered_order(x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    """Return the sorted elements and their positions."""
    keys = order_keys(x)
    if descending:
        keys = lax.bitwise_not(keys)
    positions = lax.broadcasted_iota(int32, x.shape, axis)
    order = lax.sort((keys, positions), dimension=axis, is_stable=True, num_keys=1)[1]
    return jnp.take_along_axis(x, order, axis, mode="promise_in_bounds"), order


def _sort_kernel(x: Any, *, axis: int, descending: bool, residuals: bool) -> Any:
    if not residuals and not descending:
        return np.sort(x, axis=axis, kind="stable")
    order = _host_order(x, axis, descending)
    ordered = np.take_along_axis(x, order, axis)
    return (ordered, order) if residuals else ordered


def _sort_lower(x: Any, *, axis: int, descending: bool, residuals: bool) -> Any:
    ordered = _lowered_order(x, axis, descending)
    return ordered if residuals else ordered[0]


def _sort_infer(x: TensorSpec, *, axis: int, descending: bool, residuals: bool) -> Any:
    del axis, descending
    require_kind("sort", _ORDERED, x)
    spec = make_spec(x.shape, x.dtype)
    return (spec, make_spec(x.shape, int32)) if residuals else spec


def _sort_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: int, descending: bool) -> Any:
    del descending
    return (F.add_along_axis(g, y[1], axis=axis, size=x.shape[axis]),)


def _order_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 3, 4),), {"axis": 0, "descending": True})
    yield Sample((normals(rng, 5, dtype="float64"),), {"stable": False})
    yield Sample((normals(rng, 0, 2),), {"axis": 0})
    yield Sample((integers(rng, 0, 3, 2, 6),), {"descending": True})
    yield Sample((np.array([3, 0, 200], np.uint8),))
    yield Sample((integers(rng, 0, 2, 6, dtype="bool"),), {"descending": True})
    special = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, 0.0, np.nan, 1.0], np.float32)
    yield Sample((special,), gradient=False)
    yield Sample((special,), {"descending": True}, gradient=False)
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 3),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")
    yield Bad((normals(rng),), error=ShapeError, text="A tensor of shape () has no axes")
    yield Bad((np.array([1j], np.complex64),), error=DTypeError, text="does not take complex64")


def _onnx_order(o: Any, x: Any, axis: int, descending: bool) -> tuple[Any, Any]:
    """Return sorted elements and their positions; NaN, which TopK does not order, comes first or last."""
    size = o.size(x.shape[axis])
    if not is_floating(x.dtype):
        return o.TopK(x, size, axis=axis, largest=int(descending), outputs=2)
    nan = o.IsNaN(x)
    _, order = o.TopK(o.Where(nan, 0, x), size, axis=axis, largest=int(descending), outputs=2)
    flags = o.cast(o.GatherElements(nan, order, axis=axis), np.float32)
    _, again = o.TopK(flags, size, axis=axis, largest=int(descending), outputs=2)
    order = o.GatherElements(order, again, axis=axis)
    return o.GatherElements(x, order, axis=axis), order


def _sort_onnx(o: Any, x: Any, *, axis: int, descending: bool, residuals: bool = False) -> Any:
    ordered = _onnx_order(o, x, axis, descending)
    return ordered if residuals else ordered[0]


@op(
    kernel=_sort_kernel,
    lower=_sort_lower,
    infer=_sort_infer,
    vjp=_sort_vjp,
    saves=Saves(hidden=1),
    flops=_sort_flops,
    samples=_order_samples,
    ulp=0,
    onnx=_sort_onnx,
    padded=ordered,
    traits=("picks",),
)
def sort(
    x: TensorLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True, **other: Unpack[Other]
) -> Tensor:
    """Sort the elements along an axis; each element gets the gradient of its position in the result.

    NaN counts as the largest. Equal elements, such as 0.0 and -0.0, keep their order.

    Args:
        x: at least one dimension; real or bool.
        axis: the axis.
        descending: whether the largest comes first.
        stable: accepted for the Array API standard; sorting is always stable.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.sort([3, 1, 2], descending=True)
        Tensor([3, 2, 1], dtype=int32)
    """
    if other:
        return respelled(sort, locals())
    descending = truth("sort", "descending", descending)
    stable = truth("sort", "stable", stable)
    del stable
    tensor = as_tensor(x)
    along = normalize_axis("sort", axis, tensor.ndim)
    return bind(sort.op, (tensor,), {"axis": along, "descending": descending})


def _argsort_infer(x: TensorSpec, *, axis: int, descending: bool) -> TensorSpec:
    del axis, descending
    require_kind("argsort", _ORDERED, x)
    return make_spec(x.shape, int32)


@op(
    kernel=lambda x, axis, descending: _host_order(x, axis, descending),
    lower=lambda x, axis, descending: _lowered_order(x, axis, descending)[1],
    infer=_argsort_infer,
    vjp=Stops("a position has no gradient"),
    flops=_sort_flops,
    samples=_order_samples,
    method="argsort",
    ulp=0,
    onnx=lambda o, x, *, axis, descending: _onnx_order(o, x, axis, descending)[1],
    padded=ordered,
    traits=("picks",),
)
def argsort(
    x: TensorLike, /, axis: int = -1, *, descending: bool = False, stable: bool = True, **other: Unpack[Other]
) -> Tensor:
    """Find the positions from which `sort` takes the elements.

    Args:
        x: at least one dimension; real or bool.
        axis: the axis.
        descending: whether the position of the largest comes first.
        stable: accepted for the Array API standard; sorting is always stable.

    Returns:
        Positions, int32, in the shape of `x`.

    Raises:
        ShapeError: an axis out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.argsort([3.0, 1.0, 2.0])
        Tensor([1, 2, 0], dtype=int32)
    """
    if other:
        return respelled(argsort, locals())
    descending = truth("argsort", "descending", descending)
    stable = truth("argsort", "stable", stable)
    del stable
    tensor = as_tensor(x)
    along = normalize_axis("argsort", axis, tensor.ndim)
    return bind(argsort.op, (tensor,), {"axis": along, "descending": descending})


class TopK(NamedTuple):
    """The result of `top_k`.

    Attributes:
        values: the elements, the most extreme one first.
        indices: their positions along the axis, int32.
    """

    values: Tensor
    indices: Tensor


def top_k(
    x: TensorLike,
    k: int,
    /,
    *,
    axis: int = -1,
    mode: Literal["largest", "smallest"] = "largest",
    **other: Unpack[Other],
) -> TopK:
    """Find the largest elements along an axis, or the smallest, in order; gradients pass to them.

    NaN counts as the largest, and equal elements keep their order.

    Args:
        x: at least one dimension; real.
        k: the number of elements.
        axis: the axis.
        mode: ``"largest"`` or ``"smallest"``.

    Returns:
        The elements and their positions; both have the size `k` along the axis.

    Raises:
        ShapeError: an axis out of range, or with fewer than `k` elements.
        ArgumentError: an unknown `mode`.

    Example:
        >>> import hybridflow as hf
        >>> hf.top_k([1.0, 4.0, 2.0, 3.0], 2).indices
        Tensor([1, 3], dtype=int32)
    """
    if other:
        return respelled(top_k, locals())
    if mode not in ("largest", "smallest"):
        raise ArgumentError(f"top_k: {mode!r} is neither 'largest' nor 'smallest'")
    tensor = as_tensor(x)
    along = normalize_axis("top_k", axis, tensor.ndim)
    size = tensor.shape[along]
    if k < 0 or k > size:
        raise ShapeError(f"top_k: {k} elements of axis {along}, which has {size}", got=call_text("top_k", tensor.spec),
                         hint=f"Ask for 0 to {size}.")
    order = argsort(tensor, axis=along, descending=mode == "largest")
    indices = bind(getitem.op, (order,), {"index": part_of(order.shape, along, 0, k)})
    return TopK(take_along_axis(tensor, indices, axis=along), indices)


def median(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Find the middle element along an axis, or the average of the two middle ones; NaN if there is a NaN.

    The gradient passes to the elements in the middle.

    Args:
        x: real; integers become float32.
        axis: the axis to reduce; None takes all elements.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The medians.

    Raises:
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.median([3.0, 1.0, 2.0, 10.0])
        Tensor(2.5, dtype=float32)
    """
    if other:
        return respelled(median, locals())
    keepdims = truth("median", "keepdims", keepdims)
    (tensor,) = promote_float(x)
    ndim = tensor.ndim
    if axis is None:
        middle_ = median(reshape(tensor, -1), 0)
        return reshape(middle_, (1,) * ndim) if keepdims else middle_
    along = normalize_axis("median", axis, ndim)
    size = tensor.shape[along]
    if size == 0:
        raise ShapeError(f"median: axis {along} has size 0, so there is nothing to choose from",
                         got=call_text("median", tensor.spec), hint="Reduce non-empty axes only.")
    ordered = sort(tensor, axis=along)

    def element(position: Any) -> Tensor:
        return bind(getitem.op, (ordered,), {"index": part_of(ordered.shape, along, position, 1)})

    lower, upper, last = element((size - 1) // 2), element(size // 2), element(size - 1)
    middle = multiply(add(lower, upper), 0.5)
    middle_ = where(isnan(last), last, middle)
    return middle_ if keepdims else squeeze(middle_, along)


# -- searching ----------------------------------------------------------------------------------------------------


def _search_infer(x1: TensorSpec, x2: TensorSpec, *, side: str) -> TensorSpec:
    del side
    require_kind("searchsorted", ("int", "uint", "float"), x1, x2)
    if len(x1.shape) != 1:
        raise ShapeError(f"searchsorted: what is searched has {len(x1.shape)} dimensions, not 1",
                         got=call_text("searchsorted", x1, x2), hint="Search one sorted row; hf.vmap searches several.")
    if x1.dtype != x2.dtype:
        text = f"searchsorted: dtypes differ: {x1.dtype} and {x2.dtype}"
        raise DTypeError(text, got=call_text("searchsorted", x1, x2))
    return make_spec(x2.shape, int32)


def _search_lower(x1: Any, x2: Any, *, side: str) -> Any:
    if x1.shape[0] == 0 or 0 in x2.shape:
        return lax.full(x2.shape, 0, int32)
    return jnp.searchsorted(order_keys(x1), order_keys(x2), side=side).astype(int32)


def _search_samples(rng: np.random.Generator) -> Any:
    ordered = np.sort(integers(rng, -5, 5, 7))
    for side in ("left", "right"):
        yield Sample((ordered, integers(rng, -6, 6, 2, 5)), {"side": side})
        special = np.array([-np.inf, -0.0, 0.0, 1.0, np.inf, np.nan, np.nan], np.float32)
        yield Sample((special, special[[5, 1, 2, 3, 0, 4]]), {"side": side}, gradient=False)
    yield Sample((np.array([1.0, 2.0, 4.0]), np.array(3.0)))
    yield Sample((np.array([3.0, 1.0, 2.0]), np.array([2.5])), {"sorter": np.array([1, 2, 0], np.int32)})
    yield Sample((np.zeros(0, np.float32), normals(rng, 2)), gradient=False)
    yield Bad((normals(rng, 2, 2), normals(rng, 3)), error=ShapeError, text="has 2 dimensions, not 1")
    yield Bad((normals(rng, 2), normals(rng, 3)), {"side": "up"}, error=ArgumentError, text="'up' is neither")
    yield Bad((np.array([1j]), np.array([1j])), error=DTypeError, text="does not take complex128")


_searchsorted: Callable[..., Any] = np.searchsorted


def _search_onnx(o: Any, row: Any, x: Any, *, side: str) -> Any:
    """Count, for every searched element, the elements of the row that come before it."""
    each = o.Unsqueeze(x, o.ints([-1]))
    before = o.Less(row, each) if side == "left" else o.LessOrEqual(row, each)
    if is_floating(x.dtype):
        nan = o.IsNaN(each)
        before = o.Or(before, o.And(nan, o.Not(o.IsNaN(row))) if side == "left" else nan)
    return o.ReduceSum(o.cast(before, np.int32), o.ints([-1]), keepdims=0)


@op(
    kernel=lambda x1, x2, side: _searchsorted(x1, x2, side=side).astype(int32),
    lower=_search_lower,
    infer=_search_infer,
    vjp=Stops("a position has no gradient"),
    flops=lambda outputs, x1, x2, *, side: x2.size,
    samples=_search_samples,
    ulp=0,
    onnx=_search_onnx,
    padded=searched,
)
def searchsorted(
    x1: TensorLike, x2: TensorLike, /, side: Literal["left", "right"] = "left", sorter: TensorLike | None = None
) -> Tensor:
    """Find where to insert elements into a sorted row to keep it sorted.

    NaN counts as the largest, and 0.0 and -0.0 are equal.

    Args:
        x1: ``(n,)``; real, in ascending order.
        x2: the elements, any shape.
        side: whether to insert to the ``"left"`` or to the ``"right"`` of equal elements.
        sorter: ``(n,)``, positions that sort `x1`, as from `argsort`.

    Returns:
        Positions from 0 to n, int32, in the shape of `x2`.

    Raises:
        ShapeError: `x1` is not one row.
        ArgumentError: an unknown `side`.
        DTypeError: bool or complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.searchsorted([1, 2, 2, 5], [2, 3, 9])
        Tensor([1, 3, 4], dtype=int32)
    """
    if side not in ("left", "right"):
        raise ArgumentError(f"searchsorted: {side!r} is neither 'left' nor 'right'")
    row, elements = as_bound(searchsorted.op, promote(x1, x2))
    _search_infer(row.spec, elements.spec, side=side)
    if sorter is not None:
        row = take(row, sorter, axis=0)
    return bind(searchsorted.op, (row, elements), {"side": side})


__all__ = ["TopK", "argsort", "median", "searchsorted", "sort", "top_k"]


# -- integer keys that are ordered as the elements are; lowerings sort and search by them -----------------------------


def order_keys(x: Any, *, nan_first: bool = False) -> Any:
    """Return an integer for every element of a JAX array, ordered as the elements are.

    XLA:CPU treats subnormal numbers as 0 when it compares floats, and would leave them unsorted. Keys made of the
    floats' bits keep their order. 0.0 and -0.0 share one key. All NaN share one key, after all numbers or before.

    Args:
        x: any shape; real or bool.
        nan_first: whether NaN comes first.
    """
    kind = kind_of(x.dtype)
    if kind == "bool":
        return x.astype(np.uint8)
    if kind != "float":
        return x
    dtype = np.dtype(f"int{8 * x.dtype.itemsize}")
    limits = np.iinfo(dtype)
    bits = lax.bitcast_convert_type(x, dtype)
    sign = lax.shift_right_arithmetic(bits, lax.full_like(bits, limits.bits - 1))
    # The bits of negative numbers descend, so flip all but the sign. That makes -0.0 -1; subtracting the sign gives 0.
    keys = lax.sub(lax.bitwise_xor(bits, lax.bitwise_and(sign, lax.full_like(bits, limits.max))), sign)
    return lax.select(x != x, lax.full_like(bits, limits.min if nan_first else limits.max), keys)

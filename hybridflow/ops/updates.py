"""Functional updates: ``x.at[key].set(v)``, `add`, `multiply`, `divide`, `min`, `max` and `apply`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, bool_, float32
from hybridflow.core.errors import ArgumentError, DTypeError, IndexRangeError, ShapeError
from hybridflow.core.functions import as_traced
from hybridflow.core.op import Bad, No, Sample, Saves, Stops, op
from hybridflow.core.operators import add_method
from hybridflow.ops.arithmetic import add, multiply
from hybridflow.ops.choice import maximum, minimum, where
from hybridflow.ops.common import (
    FLOATING,
    NUMERIC,
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_shapes,
    call_text,
    cast_to,
    input_elements,
    make_spec,
    met_shape,
    no_flops,
    normals,
    promote,
    require_kind,
)
from hybridflow.ops.creation import full_like
from hybridflow.ops.index_checks import (
    checked_indices,
    explained,
    gathered_shape,
    index_key,
    lowered_key,
)
from hybridflow.ops.index_keys import StaticIndex, numpy_index, parse_key, static_shape, traced_mask
from hybridflow.ops.indexing import getitem
from hybridflow.ops.onnx import positions, scatter_rows, scattered
from hybridflow.ops.padding_updates import last_updates, replaced_part, updated
from hybridflow.ops.shape import broadcast_to, reshape
from hybridflow.ops.sizes import Axes

# -- static indices -----------------------------------------------------------------------------------------------


def _slice_set_infer(x: TensorSpec, value: TensorSpec, *, index: StaticIndex) -> TensorSpec:
    if x.dtype != value.dtype:
        text = f"slice_set: dtypes differ: {x.dtype} and {value.dtype}"
        raise DTypeError(text, got=call_text("slice_set", x, value))
    expected = getitem.op.infer(x, index=index).shape
    if value.shape != expected:
        raise ShapeError(f"slice_set: a value of shape {value.shape} for elements of shape {expected}",
                         got=call_text("slice_set", x, value), hint="Give one value per selected element.")
    return make_spec(x.shape, x.dtype)


def _slice_set_kernel(x: Any, value: Any, *, index: StaticIndex) -> Any:
    result = x.copy()
    result[numpy_index(index)] = value
    return result


def _slice_set_lower(x: Any, value: Any, *, index: StaticIndex) -> Any:
    entries = [item if type(item) is tuple else (item, 1, 1) for item in index if item is not None]
    if all(step == 1 or size <= 1 for _, size, step in entries):
        if any(size == 0 for _, size, _ in entries):
            return x
        block = lax.reshape(value, tuple([size for _, size, _ in entries]))
        return lax.dynamic_update_slice(x, block, [start for start, _, _ in entries])
    return jnp.asarray(x).at[numpy_index(index)].set(value)


def _slice_set_vjp(F: Any, g: Any, y: Any, x: Any, value: Any, *, index: StaticIndex) -> Any:
    del y, x

    def of_x() -> Any:
        return F.slice_set(g, F.full(shape=value.shape, fill_value=0, dtype=value.dtype), index=index)

    return of_x, lambda: F.getitem(g, index=index)


def _slice_set_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 5, 4), normals(rng, 2, 3)), {"index": ((4, 2, -2), (1, 3, 1))})
    yield Sample((normals(rng, 5, 4), normals(rng, 1, 2)), {"index": (1, None, (2, 2, 1))})
    yield Sample((normals(rng, 3, dtype="float64"), normals(rng, 0, dtype="float64")), {"index": ((0, 0, 1),)})
    pair = normals(rng, 4, dtype="bfloat16")
    yield Sample((pair, pair[:2]), {"index": ((1, 2, 1),)}, gradient=False)
    yield Bad((normals(rng, 4), normals(rng, 3)), {"index": ((0, 2, 1),)}, error=ShapeError, text="shape (3,) for")
    yield Bad((normals(rng, 4), np.zeros(2)), {"index": ((0, 2, 1),)}, error=DTypeError, text="dtypes differ")


@op(
    kernel=_slice_set_kernel,
    lower=_slice_set_lower,
    infer=_slice_set_infer,
    vjp=_slice_set_vjp,
    flops=no_flops,
    samples=_slice_set_samples,
    traits=("layout", "inner"),
    ulp=0,
    onnx=lambda o, x, value, *, index: scattered(o, x, positions(o, x.shape, numpy_index(index)), value, x.shape),
    padded=replaced_part,
)
def slice_set(x: TensorLike, value: TensorLike, /, *, index: StaticIndex) -> Tensor:
    """Replace the elements that a static index selects.

    Args:
        x: any dtype.
        value: the new elements, with the shape of the selected elements and the dtype of `x`.
        index: per axis an integer or ``(start, size, step)``; None for a new axis.

    Returns:
        The tensor with those elements replaced.

    Raises:
        ShapeError: `value` does not have the shape of the selected elements.
        DTypeError: `value` does not have the dtype of `x`.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.updates import slice_set
        >>> slice_set([1, 2, 3], [7, 8], index=((0, 2, 2),))
        Tensor([7, 2, 8], dtype=int32)
    """
    tensor, new = as_tensor(x), as_tensor(value)
    _slice_set_infer(tensor.spec, new.spec, index=index)
    return bind(slice_set.op, (tensor, new), {"index": index})


# -- positions in tensors -----------------------------------------------------------------------------------------


def _winners_infer(*indices: TensorSpec, sizes: Shape) -> TensorSpec:
    del sizes
    require_kind("index_winners", ("int", "uint"), *indices)
    return make_spec(broadcast_shapes("index_winners", *[spec.shape for spec in indices]), bool_)


def _winners_kernel(*indices: Any, sizes: Shape) -> Any:
    index = np.broadcast_arrays(*indices)
    order = np.arange(index[0].size).reshape(index[0].shape)
    last = np.zeros(sizes, order.dtype)
    last[tuple(index)] = order
    return last[tuple(index)] == order


def _winners_lower(*indices: Any, sizes: Shape) -> Any:
    shape = met_shape(*[array.shape for array in indices])
    key = lowered_key([lax.broadcast_in_dim(a, shape, range(len(shape) - a.ndim, len(shape))) for a in indices],
                      tuple(range(len(sizes))))
    order = lax.reshape(lax.iota(np.int32, math.prod(shape)), shape)
    last = lax.full(sizes, -1, np.int32).at[key].max(order, mode="drop")
    return last.at[key].get(mode="clip") == order


def _winners_samples(rng: np.random.Generator) -> Any:
    del rng
    yield Sample((np.array([2, 0, -1, 2], np.int32),), {"sizes": (3,)})
    yield Sample((np.array([[0], [1]]), np.array([1, 1])), {"sizes": (2, 3)})


@op(
    kernel=_winners_kernel,
    lower=_winners_lower,
    infer=_winners_infer,
    vjp=Stops("a truth value has no gradient"),
    flops=no_flops,
    samples=_winners_samples,
    ulp=0,
    traits=("inner",),
    onnx=No("it serves updates, which ONNX has as one operator"),
    padded=last_updates,
)
def index_winners(*indices: TensorLike, sizes: Shape) -> Tensor:
    """Return for every position in integer tensors whether no later position names the same element.

    Args:
        indices: one integer tensor per axis, of shapes that broadcast, within `sizes`.
        sizes: the sizes of the axes.

    Returns:
        Bools.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.updates import index_winners
        >>> index_winners([0, 1, 0], sizes=(2,))
        Tensor([False,  True,  True], dtype=bool)
    """
    return bind(index_winners.op, tuple([as_tensor(value) for value in indices]), {"sizes": sizes})


_AT: dict[str, Any] = {"set": None, "add": np.add, "multiply": np.multiply, "min": np.minimum, "max": np.maximum}


def _update_infer(x: TensorSpec, value: TensorSpec, *indices: TensorSpec, axes: Axes, how: str) -> TensorSpec:
    if how != "set":
        require_kind("index_update", NUMERIC, x)
    if x.dtype != value.dtype:
        text = f"index_update: dtypes differ: {x.dtype} and {value.dtype}"
        raise DTypeError(text, got=call_text("index_update", x, value))
    expected = gathered_shape("index_update", x.shape, indices, axes)
    if value.shape != expected:
        raise ShapeError(f"index_update: values of shape {value.shape} for elements of shape {expected}",
                         got=call_text("index_update", x, value, *indices), hint="Give one value per selected element.")
    return make_spec(x.shape, x.dtype)


def _update_kernel(x: Any, value: Any, *indices: Any, axes: Axes, how: str) -> Any:
    wide = float32 if how in ("add", "multiply") and x.dtype.num in LOW_PRECISION else x.dtype
    result = x.astype(wide)
    key = index_key(indices, axes)
    try:
        if how == "set":  # NumPy writes in the order of the memory, and the last value stays
            result[index_key([np.ascontiguousarray(one) for one in indices], axes)] = np.ascontiguousarray(value)
        else:
            _AT[how].at(result, key, value.astype(wide, copy=False))
            if how in ("min", "max") and wide.kind == "f":
                result = _signed_zeros(result, x, value, key, how == "min")
    except IndexError:
        raise explained("x.at[index]", x.shape, indices, axes) from None
    return result.astype(x.dtype, copy=False)


def _signed_zeros(result: Any, x: Any, value: Any, key: Any, negative: bool) -> Any:
    """Return extrema in which 0.0 is larger than -0.0, as in XLA; NumPy takes either."""
    zeros = result == 0
    if not zeros.any():
        return result
    preferred = (x == 0) & (np.signbit(x) == negative)
    np.logical_or.at(preferred, key, (value == 0) & (np.signbit(value) == negative))
    return np.where(zeros & preferred, result.dtype.type(-0.0 if negative else 0.0), result)


def _update_lower(x: Any, value: Any, *indices: Any, axes: Axes, how: str) -> Any:
    if how == "set":
        sizes = tuple([x.shape[axis] for axis in axes])
        shape = met_shape(*[array.shape for array in indices])
        count: Any = math.prod(shape)
        if not isinstance(count, int) or count > 1:
            # XLA does not define which of several values for one element stays, so only the last is written.
            keep = _winners_lower(*indices, sizes=sizes)
            first = _spread(indices[0], shape)
            first = lax.select(keep, first, lax.full_like(first, sizes[0]))
            indices = (first, *indices[1:])
        return jnp.asarray(x).at[lowered_key(indices, axes)].set(value, mode="drop")
    wide = float32 if how in ("add", "multiply") and x.dtype.num in LOW_PRECISION else x.dtype
    target = x.astype(wide).at[lowered_key(indices, axes)]
    return getattr(target, how)(value.astype(wide), mode="drop").astype(x.dtype)


def _spread(index: Any, shape: Shape) -> Any:
    """Broadcast an index and widen it, so that a size past the end fits."""
    wide = index.astype(np.int64 if index.dtype.itemsize == 8 else np.int32)
    return lax.broadcast_in_dim(wide, shape, range(len(shape) - index.ndim, len(shape)))


def _update_vjp(F: Any, g: Any, y: Any, x: Any, value: Any, *indices: Any, axes: Axes, how: str) -> Any:
    del y
    none = [None] * len(indices)
    if how == "add":
        return (g, lambda: F.gather(g, *indices, axes=axes), *none)
    if how == "multiply":
        return (*_scaled_vjp(F, g, x, value, indices, axes), *none)
    if how != "set":
        return (*_chosen_vjp(F, g, x, value, indices, axes, how), *none)

    def of_x() -> Any:
        zeros = F.full(shape=value.shape, fill_value=0, dtype=value.dtype)
        return F.index_update(g, zeros, *indices, axes=axes, how="set")

    def of_value() -> Any:
        keep = F.index_winners(*indices, sizes=tuple([x.shape[axis] for axis in axes]))
        first_axis = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        after = len(value.shape) - first_axis - len(keep.shape)
        keep = F.reshape(keep, shape=(*keep.shape, *[1] * after))
        return F.where(keep, F.gather(g, *indices, axes=axes), 0)

    return (of_x, of_value, *none)


def _chosen_vjp(F: Any, g: Any, x: Any, value: Any, indices: Any, axes: Axes, how: str) -> tuple[Any, Any]:
    """Share the cotangent evenly among the element and the values that tie for the extremum (or are NaN)."""
    best = F.index_update(x, value, *indices, axes=axes, how=how)

    def chosen(one: Any, extremum: Any) -> Any:
        return F.astype(F.logical_or(F.equal(one, extremum), F.isnan(one)), dtype=g.dtype)

    of_x, of_value = chosen(x, best), chosen(value, F.gather(best, *indices, axes=axes))
    share = g / (of_x + F.index_add(of_value, *indices, axes=axes, shape=x.shape))
    return share * of_x, F.gather(share, *indices, axes=axes) * of_value


def _scaled_vjp(F: Any, g: Any, x: Any, value: Any, indices: Any, axes: Axes) -> tuple[Any, Any]:
    """Multiply the cotangent by all factors except the differentiated one, without dividing by 0."""
    ones = F.full(shape=x.shape, fill_value=1, dtype=x.dtype)

    def of_x() -> Any:
        return g * F.index_update(ones, value, *indices, axes=axes, how="multiply")

    def of_value() -> Any:
        zero = value == 0
        factors = F.where(zero, 1, value)
        product = F.index_update(ones, factors, *indices, axes=axes, how="multiply")
        zeros = F.index_add(F.astype(zero, dtype=g.dtype), *indices, axes=axes, shape=x.shape)
        other_zeros = F.gather(zeros, *indices, axes=axes) - F.astype(zero, dtype=g.dtype)
        others = F.where(other_zeros == 0, F.gather(product, *indices, axes=axes) / factors, 0)
        return F.gather(g * x, *indices, axes=axes) * others

    return of_x, of_value


def _update_samples(rng: np.random.Generator) -> Any:
    x = normals(rng, 3, 4)
    index = np.array([2, 0, 2], np.int32)
    for how in _AT:
        smooth = how in ("set", "add")
        yield Sample((x, normals(rng, 3, 4), index), {"axes": (0,), "how": how}, gradient=smooth)
    yield Sample((x, normals(rng, 2, 3), np.array([[0], [1]]), np.array([1, -1, 1])), {"axes": (0, 1), "how": "set"})
    yield Sample((x, normals(rng, 3, 3), index), {"axes": (1,), "how": "set"})
    yield Sample((x, normals(rng, 4), np.array(1)), {"axes": (0,), "how": "set"})
    low = normals(rng, 3, dtype="bfloat16")
    yield Sample((low, low, index), {"axes": (0,), "how": "add"}, gradient=False)
    bad = {"axes": (0,), "how": "set"}
    yield Bad((x, normals(rng, 2, 4), index), bad, error=ShapeError, text="values of shape (2, 4) for elements")
    yield Bad((x, normals(rng, 1, 4), index[:1] + 1), bad, error=IndexRangeError, text="index 3 is out of range")
    yield Bad((x, normals(rng, 3, 4), index), {"axes": (0,), "how": "sub"}, error=ArgumentError, text="'sub' is not")


@op(
    kernel=_update_kernel,
    lower=_update_lower,
    infer=_update_infer,
    vjp=_update_vjp,
    saves=Saves(x="all"),
    flops=input_elements,
    samples=_update_samples,
    traits=("inner",),
    onnx=lambda o, x, value, *indices, axes, how: scatter_rows(o, x, value, indices, axes, x.shape, how),
    padded=updated,
)
def index_update(x: TensorLike, value: TensorLike, /, *indices: TensorLike, axes: Axes, how: str) -> Tensor:
    """Update the elements that integer tensors select, as ``x.at[i, j].set(v)`` does.

    Args:
        x: any dtype.
        value: one value per selected element, in the dtype of `x`.
        indices: one integer tensor per axis in `axes`.
        axes: the axes to select from, in increasing order.
        how: ``"set"``, which keeps the last of several values for one element, or ``"add"``, ``"multiply"``,
            ``"min"`` or ``"max"``, which use all of them.

    Returns:
        The updated tensor.

    Raises:
        IndexRangeError: an index outside its axis.
        ShapeError: `value` does not have the shape of the selected elements.
        DTypeError: `value` does not have the dtype of `x`.
        ArgumentError: an unknown `how`.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.updates import index_update
        >>> index_update([1, 2, 3], [5, 5], [0, 0], axes=(0,), how="add")
        Tensor([11,  2,  3], dtype=int32)
    """
    if how not in _AT:
        raise ArgumentError(f"index_update: {how!r} is not one of {list(_AT)}")
    tensor = as_tensor(x)
    checked = checked_indices("x.at[index]", indices, tensor.shape, axes)
    new = as_tensor(value)
    _update_infer(tensor.spec, new.spec, *[one.spec for one in checked], axes=axes, how=how)
    return bind(index_update.op, (tensor, new, *checked), {"axes": axes, "how": how})


# -- x.at[key] ----------------------------------------------------------------------------------------------------


class IndexUpdater:
    """The value of ``x.at``: index it to select the elements to update."""

    __slots__ = ("_x",)

    def __init__(self, x: TensorLike) -> None:
        self._x = as_tensor(x)

    def __getitem__(self, key: Any) -> IndexUpdate:
        return IndexUpdate(self._x, key)


class IndexUpdate:
    """The value of ``x.at[key]``: each method returns a copy of `x` with the selected elements updated.

    Values broadcast to the shape of ``x[key]`` and are cast to the dtype of `x`. If index tensors select an element
    several times, `set` keeps the last value and the other methods use all of them. All methods have gradients. With
    `set`, the value that stays gets the gradient; with `min` and `max`, values that tie share it evenly. Where
    positions repeat and a factor is 0, the second-order gradient of `multiply` leaves out that factor's contribution.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.asarray([1.0, 2.0, 3.0])
        >>> x.at[1].set(9.0)
        Tensor([1., 9., 3.], dtype=float32)
        >>> x.at[[0, 0]].add(1.0)
        Tensor([3., 2., 3.], dtype=float32)
    """

    __slots__ = ("_key", "_x")

    def __init__(self, x: Tensor, key: Any) -> None:
        self._x = x
        self._key = key

    def set(self, value: TensorLike) -> Tensor:
        """Replace the elements."""
        return self._update(value, "set")

    def add(self, value: TensorLike) -> Tensor:
        """Add to the elements."""
        return self._update(value, "add")

    def multiply(self, value: TensorLike) -> Tensor:
        """Multiply the elements."""
        return self._update(value, "multiply")

    def divide(self, value: TensorLike) -> Tensor:
        """Divide the elements, which must be floats."""
        require_kind("index_update", FLOATING, self._x.spec)
        ones: Any = IndexUpdate(full_like(self._x, 1), self._key).multiply(value)
        return cast(Any, self._x) / ones

    def apply(self, function: Callable[[Tensor], TensorLike]) -> Tensor:
        """Replace the elements by a function of them, which is applied once, also where positions repeat."""
        return self.set(as_traced(function)(self.get()))

    def get(self) -> Tensor:
        """Return the elements: ``x[key]``."""
        return cast(Any, self._x)[self._key]

    def min(self, value: TensorLike) -> Tensor:
        """Take the smaller of the elements and the value."""
        return self._update(value, "min")

    def max(self, value: TensorLike) -> Tensor:
        """Take the larger of the elements and the value."""
        return self._update(value, "max")

    def _update(self, value: TensorLike, how: str) -> Tensor:
        x = self._x
        value = _in_dtype(value, x)
        # Other updates share gradients in their own way where values tie or are not finite.
        mask = traced_mask(self._key, x.shape) if how in ("set", "add") else None
        if mask is not None and value.ndim <= x.ndim - mask.ndim:
            return _where_masked(x, mask, value, how)
        parsed = parse_key(self._key, x.shape)
        index = parsed.static if parsed.static is not None else tuple([(0, size, 1) for size in x.shape])
        if not parsed.tensors:
            if how != "set":
                value = _COMBINE[how](bind(getitem.op, (x,), {"index": index}), value)
            return slice_set(x, _to_shape(value, static_shape(index), how), index=index)
        if how != "set":
            require_kind("index_update", NUMERIC, x.spec)
        selected = x if parsed.static is None else bind(getitem.op, (x,), {"index": index})
        indices = checked_indices("index_update", parsed.tensors, selected.shape, parsed.axes)
        shape = gathered_shape("index_update", selected.shape, [tensor.spec for tensor in indices], parsed.axes)
        attrs = {"axes": parsed.axes, "how": how}
        selected = bind(index_update.op, (selected, _to_shape(value, shape, how), *indices), attrs)
        return selected if parsed.static is None else slice_set(x, selected, index=index)


def _where_masked(x: Tensor, mask: Tensor, value: Tensor, how: str) -> Tensor:
    """Replace, or add to, the elements where a mask without known values is True, all by one value."""
    if how != "set":
        require_kind("index_update", NUMERIC, x.spec)
    value = broadcast_to(_to_shape(value, x.shape[mask.ndim :], how), x.shape)
    mask = reshape(mask, (*mask.shape, *[1] * (x.ndim - mask.ndim)))
    return where(mask, value if how == "set" else add(x, value), x)


_COMBINE = {"add": add, "multiply": multiply, "min": minimum, "max": maximum}


def _in_dtype(value: TensorLike, x: Tensor) -> Tensor:
    """Return the new value in the dtype of the tensor that it goes into."""
    if not isinstance(value, bool | int | float | complex) or isinstance(value, np.generic):
        return cast_to(as_tensor(value), x.dtype)
    return cast_to(promote(x, value)[1], x.dtype)


def _to_shape(value: Tensor, shape: Shape, how: str) -> Tensor:
    """Broadcast the new values to the shape of the elements they replace."""
    if value.shape == shape:
        return value
    try:
        return broadcast_to(value, shape)
    except ShapeError:
        raise ShapeError(f"at[...].{how}: a value of shape {value.shape} for elements of shape {shape}",
                         hint="The value must broadcast to the selected elements.") from None


add_method("at", IndexUpdater, as_property=True)


__all__: list[str] = []  # all is reached through `x.at`

"""Indexing along one axis, with an index for every position, and its adjoint."""

from __future__ import annotations

from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, float32
from hybridflow.core.errors import IndexRangeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, op
from hybridflow.ops.common import (
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_shapes,
    call_text,
    input_elements,
    make_spec,
    no_flops,
    normalize_axis,
    normals,
    require_kind,
)
from hybridflow.ops.index_checks import (
    check_indices,
    check_range,
    lowered_key,
)
from hybridflow.ops.onnx import zeros
from hybridflow.ops.padding_index import along_indices
from hybridflow.ops.padding_updates import added_along
from hybridflow.ops.shape import broadcast_to
from hybridflow.ops.sizes import normalize_shape


def _along_shapes(name: str, x: TensorSpec, indices: TensorSpec, axis: int, shape: Shape) -> None:
    require_kind(name, ("int", "uint"), indices)
    if len(indices.shape) != len(shape) or any(
        a != b for i, (a, b) in enumerate(zip(indices.shape, shape, strict=True)) if i != axis
    ):
        raise ShapeError(f"{name}: indices of shape {indices.shape} for a tensor of shape {shape}",
                         got=call_text(name, x, indices), hint=f"All sizes but that of axis {axis} must be equal.")


def _take_along_infer(x: TensorSpec, indices: TensorSpec, *, axis: int) -> TensorSpec:
    _along_shapes("take_along_axis", x, indices, axis, x.shape)
    return make_spec(indices.shape, x.dtype)


def _take_along_kernel(x: Any, indices: Any, *, axis: int) -> Any:
    try:
        return np.take_along_axis(x, indices, axis)
    except IndexError:
        check_range("take_along_axis", indices, x.shape[axis], axis)
        raise


def _along_key(indices: Any, axis: int) -> tuple[Any, ...]:
    """Return the key that names, for every index, its element."""
    ndim = indices.ndim

    def places(size: Any) -> Any:
        return np.arange(size) if isinstance(size, int) else jnp.arange(size)  # jax's open sizes have no number

    return tuple(
        [
            indices if i == axis else places(size).reshape([-1 if j == i else 1 for j in range(ndim)])
            for i, size in enumerate(indices.shape)
        ]
    )


def _take_along_lower(x: Any, indices: Any, *, axis: int) -> Any:
    (wide,) = lowered_key([indices], (0,))
    return jnp.asarray(x).at[_along_key(wide, axis)].get(mode="clip")


def _take_along_vjp(F: Any, g: Any, y: Any, x: Any, indices: Any, *, axis: int) -> Any:
    del y
    return F.add_along_axis(g, indices, axis=axis, size=x.shape[axis]), None


def _take_along_samples(rng: np.random.Generator) -> Any:
    index = np.array([[0, -1, 1], [2, 2, 0]], np.int32)
    yield Sample((normals(rng, 2, 3), index), {"axis": 1})
    yield Sample((normals(rng, 3, 3), index), {"axis": 0})
    yield Sample((normals(rng, 1, 3), index.astype(np.uint8) % 3), {"axis": -1})
    yield Sample((normals(rng, 0, 3), index[:0]), {"axis": 1})
    yield Bad((normals(rng, 2, 2), index), {"axis": 1}, error=IndexRangeError, text="index 2 is out of range")
    yield Bad((normals(rng, 3), index), {"axis": 0}, error=ShapeError, text="1 dimensions and indices of 2")
    yield Bad((normals(rng, 2, 3), normals(rng, 2, 3)), {"axis": 0}, error=TypeError, text="only int, uint")


@op(
    kernel=_take_along_kernel,
    lower=_take_along_lower,
    infer=_take_along_infer,
    vjp=_take_along_vjp,
    saves=Saves(x=(1,)),
    flops=no_flops,
    samples=_take_along_samples,
    traits=("layout",),
    ulp=0,
    onnx=lambda o, x, indices, *, axis: o.GatherElements(x, o.cast(indices, np.int64), axis=axis),
    padded=along_indices,
)
def take_along_axis(x: TensorLike, indices: TensorLike, /, axis: int = -1, **other: Unpack[Other]) -> Tensor:
    """Take, at every position of an index tensor, the element it names along an axis.

    Args:
        x: any dtype.
        indices: integers, with as many dimensions as `x`; sizes off the axis broadcast.
        axis: the axis.

    Returns:
        The shape of the indices, broadcast off the axis.

    Raises:
        IndexRangeError: an index outside the axis; inside a compiled function, when the call is made.
        ShapeError: other dimensions, or an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.take_along_axis([[1, 2, 3], [4, 5, 6]], [[2], [0]], axis=1)
        Tensor([[3],
                [4]], dtype=int32)
    """
    if other:
        return respelled(take_along_axis, locals())
    tensor, indices_ = as_tensor(x), as_tensor(indices)
    if tensor.ndim != indices_.ndim:
        raise ShapeError(f"take_along_axis: a tensor of {tensor.ndim} dimensions and indices of {indices_.ndim}",
                         got=call_text("take_along_axis", tensor.spec, indices_.spec),
                         hint="Both need the same number.")
    along = normalize_axis("take_along_axis", axis, tensor.ndim)
    off = [1 if i == along else size for i, size in enumerate(tensor.shape)]
    common = broadcast_shapes("take_along_axis", tuple(off), (*indices_.shape[:along], 1, *indices_.shape[along + 1 :]))

    def spread(value: Tensor) -> Tensor:
        shape = (*common[:along], value.shape[along], *common[along + 1 :])
        return value if value.shape == shape else broadcast_to(value, shape)

    require_kind("take_along_axis", ("int", "uint"), indices_.spec)
    check_indices("take_along_axis", indices_, tensor.shape[along], along)
    return bind(take_along_axis.op, (spread(tensor), spread(indices_)), {"axis": along})


def _add_along_infer(x: TensorSpec, indices: TensorSpec, *, axis: int, size: Any) -> TensorSpec:
    shape = (*x.shape[:axis], size, *x.shape[axis + 1 :])
    _along_shapes("add_along_axis", x, indices, axis, shape)
    if x.shape != indices.shape:
        raise ShapeError(f"add_along_axis: values of shape {x.shape} and indices of shape {indices.shape}",
                         got=call_text("add_along_axis", x, indices), hint="Give one value per index.")
    return make_spec(shape, x.dtype)


def _add_along_kernel(x: Any, indices: Any, *, axis: int, size: int) -> Any:
    wide = float32 if x.dtype.num in LOW_PRECISION else x.dtype
    result = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), wide)
    try:
        np.add.at(result, _along_key(indices, axis), x.astype(wide, copy=False))
    except IndexError:
        check_range("add_along_axis", indices, size, axis)
        raise
    return result.astype(x.dtype, copy=False)


def _add_along_lower(x: Any, indices: Any, *, axis: int, size: int) -> Any:
    wide = float32 if x.dtype.num in LOW_PRECISION else x.dtype
    (index,) = lowered_key([indices], (0,))
    zeros = lax.full((*x.shape[:axis], size, *x.shape[axis + 1 :]), 0, wide)
    return zeros.at[_along_key(index, axis)].add(x.astype(wide), mode="drop").astype(x.dtype)


def _add_along_samples(rng: np.random.Generator) -> Any:
    index = np.array([[0, -1, 1], [2, 2, 0]], np.int32)
    yield Sample((normals(rng, 2, 3), index), {"axis": 1, "size": 4})
    yield Sample((normals(rng, 2, 3), index), {"axis": 0, "size": 3})
    yield Bad((normals(rng, 2, 2), index), {"axis": 1, "size": 3}, error=ShapeError, text="values of shape (2, 2)")
    yield Bad((normals(rng, 2, 3), index), {"axis": 1, "size": 2}, error=IndexRangeError, text="index 2 is out of")


def _add_along_onnx(o: Any, x: Any, indices: Any, *, axis: int, size: Any) -> Any:
    base = zeros(o, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
    return o.ScatterElements(base, o.cast(indices, np.int64), x, axis=axis, reduction="add")


@op(
    kernel=_add_along_kernel,
    lower=_add_along_lower,
    infer=_add_along_infer,
    vjp=lambda F, g, y, x, indices, *, axis, size: (F.take_along_axis(g, indices, axis=axis), None),
    saves=Saves(x=(1,)),
    flops=input_elements,
    samples=_add_along_samples,
    traits=("inner",),
    onnx=_add_along_onnx,
    padded=added_along,
)
def add_along_axis(x: TensorLike, indices: TensorLike, /, *, axis: int, size: Any) -> Tensor:
    """Add values up where an index tensor points along an axis: the adjoint of `take_along_axis`.

    float16 and bfloat16 accumulate in float32.

    Args:
        x: values.
        indices: integers, of the shape of `x`.
        axis: the axis.
        size: its size in the result.

    Returns:
        The sums, in the dtype of `x`.

    Raises:
        IndexRangeError: an index outside the axis.
        ShapeError: shapes that differ.

    Example:
        >>> import hybridflow as hf
        >>> from hybridflow.ops.along_axis import add_along_axis
        >>> add_along_axis([[1.0, 2.0, 3.0]], [[0, 0, 1]], axis=1, size=2)
        Tensor([[3., 3.]], dtype=float32)
    """
    tensor, indices_ = as_tensor(x), as_tensor(indices)
    along = normalize_axis("add_along_axis", axis, tensor.ndim)
    require_kind("add_along_axis", ("int", "uint"), indices_.spec)
    (length,) = normalize_shape("add_along_axis", size)
    check_indices("add_along_axis", indices_, length, along)
    _add_along_infer(tensor.spec, indices_.spec, axis=along, size=length)
    return bind(add_along_axis.op, (tensor, indices_), {"axis": along, "size": length})


__all__ = ["take_along_axis"]

"""Functions that change shapes: reshape, permute, broadcast, and add or remove axes of size 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dims import Dim, same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, op
from hybridflow.core.operators import add_method
from hybridflow.ops.common import (
    Shape,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    integers,
    make_spec,
    no_flops,
    normalize_axes,
    normalize_axis,
    normals,
    unbroadcast,
)
from hybridflow.ops.padding import expanded, permuted, spread, squeezed
from hybridflow.ops.padding_index import refolded
from hybridflow.ops.sizes import count_elements, normalize_shape

# -- reshape ------------------------------------------------------------------------------------------------------


def _reshape_infer(x: TensorSpec, *, shape: Shape) -> TensorSpec:
    if not same_size(x.size, count_elements(shape)) and x.size != count_elements(shape):
        raise ShapeError(f"reshape: {x.size} elements do not fit shape {shape}, which has {count_elements(shape)}",
                         got=call_text("reshape", x), hint="The number of elements must stay; one size may be -1.")
    return make_spec(shape, x.dtype)


def _fill_unknown(x: Tensor, shape: Shape) -> Shape:
    """Replace the one -1 of a shape by the remaining size."""
    unknown = [i for i, size in enumerate(shape) if not isinstance(size, Dim) and size == -1]
    for size in shape:
        if not isinstance(size, Dim) and size < -1:
            raise ShapeError(f"reshape: {size} is not a size", got=f"shape={shape}", hint="Use -1 or more.")
    if not unknown:
        return shape
    if len(unknown) > 1:
        raise ShapeError("reshape: only one size may be -1", got=f"shape={shape}", hint="Give all sizes but one.")
    total = count_elements(x.shape)
    rest = count_elements(tuple([size for i, size in enumerate(shape) if i != unknown[0]]))
    if rest == 0:
        raise ShapeError("reshape: -1 is ambiguous beside a size of 0", got=f"shape={shape} of {x.spec}",
                         hint="Give every size.")
    left = total // rest
    return tuple([left if i == unknown[0] else size for i, size in enumerate(shape)])


def _reshape_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), (2, 6)))
    yield Sample((normals(rng, 2, 3, 2), (-1, 2)))
    yield Sample((normals(rng), (1, 1)))
    yield Sample((normals(rng, 0, 3), (3, 0)))
    yield Sample((normals(rng, 4, dtype="bfloat16"), 4), gradient=False)
    yield Sample((integers(rng, 0, 9, 6), (3, 2)))
    yield Bad((normals(rng, 3, 4), (5, 2)), error=ShapeError, text="12 elements do not fit shape (5, 2)")
    yield Bad((normals(rng, 3, 4), (-1, -1)), error=ShapeError, text="only one size may be -1")
    yield Bad((normals(rng, 3, 4), (-2, 6)), error=ShapeError, text="-2 is not a size")
    yield Bad((normals(rng, 0, 4), (0, -1)), error=ShapeError, text="-1 is ambiguous")
    yield Bad((normals(rng, 4), 2.0), error=TypeError, text="2.0 is not a size")


@op(
    kernel=lambda x, shape: x.reshape(shape),
    lower=lambda x, shape: lax.reshape(x, shape),
    infer=_reshape_infer,
    vjp=lambda F, g, y, x, *, shape: (F.reshape(g, shape=x.shape),),
    flops=no_flops,
    samples=_reshape_samples,
    traits=("layout", "conversion", "reshape"),
    ulp=0,
    onnx=lambda o, x, *, shape: o.reshape(x, shape),
    padded=refolded,
)
def reshape(x: TensorLike, /, shape: Any, *, copy: bool | None = None) -> Tensor:
    """Change the shape; the elements keep their row-major order.

    Args:
        x: any shape and dtype.
        shape: the new shape; one size may be -1, which stands for the remaining size.
        copy: accepted for the Array API standard; tensors are immutable, so it changes nothing.

    Returns:
        The tensor of that shape.

    Raises:
        ShapeError: the number of elements differs.

    Example:
        >>> import hybridflow as hf
        >>> hf.reshape([1, 2, 3, 4], (2, -1))
        Tensor([[1, 2],
                [3, 4]], dtype=int32)
    """
    del copy
    tensor = as_tensor(x)
    new = _fill_unknown(tensor, normalize_shape("reshape", shape, negative=True))
    return bind(reshape.op, (tensor,), {"shape": new})


def _reshape_method(x: TensorLike, /, *shape: Any, copy: bool | None = None) -> Tensor:
    """Change the shape to a tuple or to several sizes; see `hf.reshape`."""
    return reshape(x, shape[0] if len(shape) == 1 else shape, copy=copy)


add_method("reshape", _reshape_method)


# -- permute ------------------------------------------------------------------------------------------------------


def _permute_infer(x: TensorSpec, *, axes: tuple[int, ...]) -> TensorSpec:
    return make_spec(tuple([x.shape[axis] for axis in axes]), x.dtype)


def _permute_vjp(F: Any, g: Any, y: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    del y, x
    return (F.permute_dims(g, axes=tuple(sorted(range(len(axes)), key=axes.__getitem__))),)


def _permute_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3, 4), (2, 0, 1)))
    yield Sample((normals(rng, 2, 3), (-1, 0)))
    yield Sample((normals(rng), ()))
    yield Sample((normals(rng, 0, 2, dtype="bfloat16"), (1, 0)), gradient=False)
    yield Sample((integers(rng, 0, 9, 2, 3), (1, 0)))
    yield Bad((normals(rng, 2, 3), (0, 0)), error=ShapeError, text="names an axis twice")
    yield Bad((normals(rng, 2, 3), (0, 1, 2)), error=ShapeError, text="3 axes for 2 dimensions")
    yield Bad((normals(rng, 2, 3), (0, 2)), error=ShapeError, text="axis 2 is out of range")


@op(
    kernel=lambda x, axes: x.transpose(axes),
    lower=lambda x, axes: lax.transpose(x, axes),
    infer=_permute_infer,
    vjp=_permute_vjp,
    flops=no_flops,
    samples=_permute_samples,
    traits=("layout", "permute"),
    method="permute_dims",
    ulp=0,
    onnx=lambda o, x, *, axes: o.Transpose(x, perm=axes) if axes else x,
    padded=permuted,
)
def permute_dims(x: TensorLike, /, axes: Sequence[int], **other: Unpack[Other]) -> Tensor:
    """Reorder the axes.

    Args:
        x: any shape and dtype.
        axes: for every axis of the result, the axis of `x` it comes from.

    Returns:
        The tensor with its axes in that order.

    Raises:
        ShapeError: `axes` is not a permutation of the axes.

    Example:
        >>> import hybridflow as hf
        >>> hf.permute_dims(hf.zeros((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    if other:
        return respelled(permute_dims, locals())
    tensor = as_tensor(x)
    ndim = tensor.ndim
    if len(axes) != ndim:
        raise ShapeError(f"permute_dims: {len(axes)} axes for {ndim} dimensions",
                         got=f"axes={tuple(axes)} of {tensor.spec}", hint="Name every axis once.")
    order = tuple([normalize_axis("permute_dims", axis, ndim) for axis in axes])
    normalize_axes("permute_dims", tuple(axes), ndim)
    return bind(permute_dims.op, (tensor,), {"axes": order})


# -- broadcast ----------------------------------------------------------------------------------------------------


def _broadcast_infer(x: TensorSpec, *, shape: Shape) -> TensorSpec:
    extra = len(shape) - len(x.shape)
    for axis, size in enumerate(x.shape):
        target = shape[axis + extra] if extra >= 0 else None
        if target is None or not (same_size(size, target) or size == 1 or size == target):
            raise ShapeError(f"broadcast_to: shape {x.shape} does not broadcast to {shape}",
                             got=call_text("broadcast_to", x), hint="From the right, sizes must be equal or 1.")
    return make_spec(shape, x.dtype)


def _broadcast_lower(x: Any, shape: Shape) -> Any:
    return lax.broadcast_in_dim(x, shape, tuple(range(len(shape) - x.ndim, len(shape))))


def _broadcast_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 1), (2, 3, 4)))
    yield Sample((normals(rng), (2, 2)))
    yield Sample((normals(rng, 3), (3,)))
    yield Sample((normals(rng, 1, 2), (0, 2)))
    yield Sample((normals(rng, 3, dtype="bfloat16"), (2, 3)), gradient=False)
    yield Bad((normals(rng, 3), (2, 4)), error=ShapeError, text="shape (3,) does not broadcast to (2, 4)")
    yield Bad((normals(rng, 2, 3), (3,)), error=ShapeError, text="shape (2, 3) does not broadcast to (3,)")


@op(
    kernel=lambda x, shape: np.broadcast_to(x, shape),
    lower=_broadcast_lower,
    infer=_broadcast_infer,
    vjp=lambda F, g, y, x, *, shape: (unbroadcast(F, g, x),),
    flops=no_flops,
    samples=_broadcast_samples,
    traits=("layout", "conversion"),
    method="broadcast_to",
    ulp=0,
    onnx=lambda o, x, *, shape: o.Expand(x, o.ints(shape)) if shape else x,
    padded=spread,
)
def broadcast_to(x: TensorLike, /, shape: Any) -> Tensor:
    """Repeat a tensor along new axes and axes of size 1 to give it a shape.

    Args:
        x: any shape that broadcasts to `shape`; any dtype.
        shape: the shape of the result.

    Returns:
        The tensor of that shape.

    Raises:
        ShapeError: a size is neither 1 nor the target's.

    Example:
        >>> import hybridflow as hf
        >>> hf.broadcast_to([1, 2], (2, 2))
        Tensor([[1, 2],
                [1, 2]], dtype=int32)
    """
    return bind(broadcast_to.op, (as_tensor(x),), {"shape": normalize_shape("broadcast_to", shape)})


# -- axes of size 1 -----------------------------------------------------------------------------------------------


def _expand_infer(x: TensorSpec, *, axis: tuple[int, ...]) -> TensorSpec:
    old = iter(x.shape)
    ndim = len(x.shape) + len(axis)
    return make_spec(tuple([1 if i in axis else next(old) for i in range(ndim)]), x.dtype)


def _expand_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3),), {"axis": 1})
    yield Sample((normals(rng, 2, 3),), {"axis": (0, -1)})
    yield Sample((normals(rng),), {"axis": -1})
    yield Sample((normals(rng, 0, dtype="bfloat16"),), {"axis": 0}, gradient=False)
    yield Bad((normals(rng, 2, 3),), {"axis": 3}, error=ShapeError, text="axis 3 is out of range for 3 dimensions")
    yield Bad((normals(rng, 2),), {"axis": (0, 0)}, error=ShapeError, text="names an axis twice")


@op(
    kernel=lambda x, axis: np.expand_dims(x, axis),
    lower=lambda x, axis: lax.expand_dims(x, axis),
    infer=_expand_infer,
    vjp=lambda F, g, y, x, *, axis: (F.reshape(g, shape=x.shape),),
    flops=no_flops,
    samples=_expand_samples,
    traits=("layout", "conversion"),
    method="expand_dims",
    ulp=0,
    onnx=lambda o, x, *, axis: o.Unsqueeze(x, o.ints(axis)) if axis else x,
    padded=expanded,
)
def expand_dims(x: TensorLike, /, axis: int | tuple[int, ...] = 0, **other: Unpack[Other]) -> Tensor:
    """Insert axes of size 1.

    Args:
        x: any shape and dtype.
        axis: the positions of the new axes in the result.

    Returns:
        The tensor with the new axes.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.expand_dims([1.0, 2.0], axis=1).shape
        (2, 1)
    """
    if other:
        return respelled(expand_dims, locals())
    tensor = as_tensor(x)
    extra = len(axis) if isinstance(axis, list | tuple) else 1
    axes = normalize_axes("expand_dims", axis, tensor.ndim + extra)
    return bind(expand_dims.op, (tensor,), {"axis": axes})


def _squeeze_infer(x: TensorSpec, *, axis: tuple[int, ...]) -> TensorSpec:
    for i in axis:
        if x.shape[i] != 1:
            raise ShapeError(f"squeeze: axis {i} has size {x.shape[i]}, not 1", got=call_text("squeeze", x),
                             hint="Only axes of size 1 can be removed; index or reduce the others.")
    return make_spec(tuple([size for i, size in enumerate(x.shape) if i not in axis]), x.dtype)


def _squeeze_kernel(x: Any, axis: tuple[int, ...]) -> Any:
    return x.reshape(_squeeze_infer(x, axis=axis).shape)


def _squeeze_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 1, 3),), {"axis": 1})
    yield Sample((normals(rng, 1, 3, 1),), {"axis": (0, -1)})
    yield Sample((normals(rng, 1, 0, dtype="bfloat16"),), {"axis": 0}, gradient=False)
    yield Bad((normals(rng, 2, 1),), {"axis": 0}, error=ShapeError, text="axis 0 has size 2, not 1")
    yield Bad((normals(rng, 2, 1),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range for 2 dimensions")


@op(
    kernel=_squeeze_kernel,
    lower=lambda x, axis: lax.squeeze(x, axis),
    infer=_squeeze_infer,
    vjp=lambda F, g, y, x, *, axis: (F.reshape(g, shape=x.shape),),
    flops=no_flops,
    samples=_squeeze_samples,
    traits=("layout", "conversion"),
    method="squeeze",
    ulp=0,
    onnx=lambda o, x, *, axis: o.Squeeze(x, o.ints(axis)) if axis else x,
    padded=squeezed,
)
def squeeze(x: TensorLike, /, axis: int | tuple[int, ...] | None = None, **other: Unpack[Other]) -> Tensor:
    """Remove axes of size 1.

    Args:
        x: any shape and dtype.
        axis: the axes to remove; all of size 1 if None.

    Returns:
        The tensor without them.

    Raises:
        ShapeError: an axis whose size is not 1, that is out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.squeeze(hf.zeros((2, 1, 3)), axis=1).shape
        (2, 3)
    """
    if other:
        return respelled(squeeze, locals())
    tensor = as_tensor(x)
    if axis is None:
        axis = tuple([one for one, size in enumerate(tensor.shape) if size == 1])
    return bind(squeeze.op, (tensor,), {"axis": normalize_axes("squeeze", axis, tensor.ndim)})


def matrix_transpose(x: TensorLike, /) -> Tensor:
    """Swap the last two axes; the property ``.mT`` does the same.

    Args:
        x: ``(..., m, n)``, any dtype.

    Returns:
        ``(..., n, m)``.

    Raises:
        ShapeError: fewer than two dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.matrix_transpose([[1, 2, 3]]).shape
        (3, 1)
    """
    tensor = as_tensor(x)
    ndim = tensor.ndim
    if ndim < 2:
        raise ShapeError(f"matrix_transpose: needs 2 dimensions at least, there are {ndim}", got=str(tensor.spec),
                         hint="Add an axis with hf.expand_dims.")
    return bind(permute_dims.op, (tensor,), {"axes": (*range(ndim - 2), ndim - 1, ndim - 2)})


def _transpose(x: TensorLike, /) -> Tensor:
    """Swap the axes of a matrix, which must have two dimensions."""
    tensor = as_tensor(x)
    if tensor.ndim != 2:
        raise ShapeError(f".T: needs exactly 2 dimensions, there are {tensor.ndim}", got=str(tensor.spec),
                         hint="Use .mT for the last two axes, or hf.permute_dims.")
    return bind(permute_dims.op, (tensor,), {"axes": (1, 0)})


add_method("mT", matrix_transpose, as_property=True)
add_method("T", _transpose, as_property=True)


__all__ = ["broadcast_to", "expand_dims", "matrix_transpose", "permute_dims", "reshape", "squeeze"]

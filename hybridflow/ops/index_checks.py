"""Range checks of index tensors, done at once or as part of a compiled call, and indexing keys made from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hybridflow.core.context import is_tracing
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import int8, int16, int32, int64, uint8, uint16, uint64
from hybridflow.core.errors import IndexRangeError, message
from hybridflow.core.tensor import Tensor, host_array
from hybridflow.ir.builder import add_check
from hybridflow.ops.arithmetic import negative
from hybridflow.ops.common import (
    Shape,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_shapes,
    cast_to,
    known_value,
    require_kind,
)
from hybridflow.ops.comparison import greater_equal, less, logical_and
from hybridflow.ops.creation import full
from hybridflow.ops.index_keys import check_position
from hybridflow.ops.reductions import all as reduce_all
from hybridflow.ops.sizes import Axes, count_elements


def check_indices(name: str, indices: Tensor, size: Any, axis: int) -> None:
    """Check that indices are in range, for operations that do not check it themselves.

    In a trace, this adds a check to the graph that makes the call fail. Known indices, and those on a device, are
    checked now. On the host nothing is done, because the kernels check.

    Args:
        name: the operation, for the message.
        indices: integers.
        size: the size of the axis.
        axis: the axis, for the message.

    Raises:
        IndexRangeError: an index outside the axis.
    """
    value = indices._value
    if not is_tracing():
        if not isinstance(value, np.ndarray):
            check_range(name, host_array(indices), size, axis)
        return
    known = known_value(indices)
    if known is not None and type(size) is not Dim:
        check_range(name, known, size, axis)
        return
    # A size of the indices' own dtype may wrap; int64 holds every index and size, but makes the graph a 64-bit one.
    narrow = indices.dtype in (int8, int16, int32, uint8, uint16) and (type(size) is Dim or size < 2**31)
    dtype = int32 if narrow else int64
    wide = cast_to(indices, dtype)
    limit = full((), size, dtype=dtype)
    inside = logical_and(greater_equal(wide, negative(limit)), less(wide, limit))
    text = message(f"{name}: an index is out of range for size {size} on axis {axis}", got=str(indices.spec),
                   hint="Indices count from 0, negative ones from the end.")
    add_check(reduce_all(inside), IndexRangeError, text)


def check_range(name: str, indices: Any, size: int, axis: int) -> None:
    """Raise if an index in an array lies outside its axis.

    Raises:
        IndexRangeError: naming the index, the size and the axis.
    """
    outside = (indices >= size) | (indices < -size)
    if outside.any():
        check_position(int(indices[outside].ravel()[0]), size, axis, name)


def index_key(indices: Sequence[Any], axes: Axes) -> tuple[Any, ...]:
    """Return index arrays as a key for NumPy and jax."""
    key: list[Any] = [slice(None)] * (axes[-1] + 1)
    for axis, array in zip(axes, indices, strict=True):
        key[axis] = array
    return tuple(key)


def lowered_key(indices: Sequence[Any], axes: Axes) -> tuple[Any, ...]:
    """Return traced indices as a key, in a dtype wide enough to count from the end."""
    return index_key([array.astype(np.int64 if array.dtype.itemsize == 8 else np.int32) for array in indices], axes)


def gathered_shape(name: str, shape: Shape, indices: Sequence[TensorSpec], axes: Axes) -> Shape:
    """Return the shape that index tensors select; tensors on neighbouring axes stay there, others come first."""
    for spec in indices:
        require_kind(name, ("int", "uint"), spec)
    selected = broadcast_shapes(name, *[spec.shape for spec in indices])
    for axis in axes:
        if shape[axis] == 0 and count_elements(selected) != 0:
            check_position(0, 0, axis, name)
    rest = [size for i, size in enumerate(shape) if i not in axes]
    first_axis = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
    return (*rest[:first_axis], *selected, *rest[first_axis:])


def explained(name: str, shape: Shape, indices: Sequence[Any], axes: Axes) -> IndexRangeError:
    """Return the error that names the index which NumPy refused."""
    for axis, array in zip(axes, indices, strict=True):
        try:
            check_range(name, np.asarray(array), shape[axis], axis)
        except IndexRangeError as error:
            return error
    return IndexRangeError(f"{name}: an index is out of range")


def checked_indices(name: str, indices: Sequence[TensorLike], shape: Shape, axes: Axes) -> list[Tensor]:
    """Return indices as tensors, checked to be in range."""
    tensors: list[Tensor] = []
    for value, axis in zip(indices, axes, strict=True):
        tensor = as_tensor(value)
        require_kind(name, ("int", "uint"), tensor.spec)
        if tensor.dtype == uint64:
            tensor = cast_to(tensor, int64)
        check_indices(name, tensor, shape[axis], axis)
        tensors.append(tensor)
    return tensors

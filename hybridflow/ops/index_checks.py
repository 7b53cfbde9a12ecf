"""Range checks of indices that are values: done at once, or attached to the call of a compiled function."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.core.context import is_tracing
from hybridflow.core.dtypes import int64
from hybridflow.core.errors import IndexRangeError, message
from hybridflow.core.tensor import Tensor, host_array
from hybridflow.ir.builder import add_check
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import greater_equal, less, logical_and
from hybridflow.ops.creation import full
from hybridflow.ops.elementwise import negative
from hybridflow.ops.index_keys import check_position
from hybridflow.ops.reductions import all as reduce_all


def check_indices(name: str, indices: Tensor, size: Any, axis: int) -> None:
    """Make sure that indices lie on their axis, where the operation itself does not.

    A trace gets a check that fails the call; indices that the trace knows, or that live on a device, are looked at
    now. On the host the kernels look themselves.

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
    node = indices._edge[0] if indices._edge is not None else None
    if node is not None and node.op.name == "constant" and isinstance(size, int):
        check_range(name, node.attrs["value"].array, size, axis)
        return
    # A size of the indices' own dtype would wrap; int64 holds every index and size.
    wide = cast_to(indices, int64)
    limit = full((), size, dtype=int64)
    inside = logical_and(greater_equal(wide, negative(limit)), less(wide, limit))
    text = message(f"{name}: an index is out of range for size {size} on axis {axis}", got=str(indices.spec),
                   hint="Indices count from 0, negative ones from the end.")  # fmt: skip
    add_check(reduce_all(inside), IndexRangeError, text)


def check_range(name: str, indices: Any, size: int, axis: int) -> None:
    """Raise if an index in an array lies outside its axis.

    Raises:
        IndexRangeError: naming the index, the size and the axis.
    """
    outside = (indices >= size) | (indices < -size)
    if outside.any():
        check_position(int(indices[outside].ravel()[0]), size, axis, name)

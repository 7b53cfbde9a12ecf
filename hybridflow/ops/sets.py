"""Functions of sets of values: distinct elements, membership, and the positions and number of nonzero elements.

The shape of most results depends on values, so a trace cannot compute them. It raises an error that names an
alternative of fixed shape. Distinct elements are gathered by position, so each passes its gradient to its first
occurrence.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Unpack

import numpy as np

from hybridflow.core.dtypes import int32, kind_of
from hybridflow.core.errors import ShapeError, TraceError
from hybridflow.core.keywords import Other, respelled
from hybridflow.ops.choice import clip
from hybridflow.ops.common import Tensor, TensorLike, as_tensor, asarray, cast_to, known_value, promote, truth
from hybridflow.ops.comparison import equal, logical_and, logical_not, not_equal
from hybridflow.ops.creation import full
from hybridflow.ops.indexing import take
from hybridflow.ops.reductions import sum as add_up
from hybridflow.ops.shape import reshape
from hybridflow.ops.sizes import Axis
from hybridflow.ops.sorting import searchsorted, sort


def _value(name: str, x: TensorLike, hint: str) -> tuple[Tensor, np.ndarray[Any, Any]]:
    """Return a tensor and its value.

    Raises:
        TraceError: the tensor is traced and has no value.
    """
    tensor = as_tensor(x)
    value = known_value(tensor)
    if value is None:
        raise TraceError(f"{name}: the shape of its result depends on values, which a trace does not have",
                         got=f"{name}({tensor.spec})", hint=hint)
    return tensor, value


# -- distinct elements --------------------------------------------------------------------------------------------


class UniqueAllResult(NamedTuple):
    """The result of `unique_all`.

    Attributes:
        values: the distinct elements, in ascending order.
        indices: the position of each value's first occurrence, in row-major order.
        inverse_indices: for every element, the position of its value in `values`; the shape is that of the input.
        counts: the number of occurrences of each value.
    """

    values: Tensor
    indices: Tensor
    inverse_indices: Tensor
    counts: Tensor


class UniqueCountsResult(NamedTuple):
    """The result of `unique_counts`.

    Attributes:
        values: the distinct elements, in ascending order.
        counts: the number of occurrences of each value.
    """

    values: Tensor
    counts: Tensor


class UniqueInverseResult(NamedTuple):
    """The result of `unique_inverse`.

    Attributes:
        values: the distinct elements, in ascending order.
        inverse_indices: for every element, the position of its value in `values`; the shape is that of the input.
    """

    values: Tensor
    inverse_indices: Tensor


_UNIQUE_HINT = "Use hf.sort(x), whose neighbours can be compared, or call it outside the compiled function."


def _unique(name: str, x: TensorLike) -> UniqueAllResult:
    tensor, value = _value(name, x, _UNIQUE_HINT)
    flat = value.reshape(-1)
    if kind_of(tensor.dtype) == "float" and value.dtype.kind != "f":
        flat = flat.astype(np.float32)  # bfloat16, which NumPy compares as float32
    _, indices, inverse, counts = np.unique(
        flat, return_index=True, return_inverse=True, return_counts=True, equal_nan=False
    )
    indices, inverse, counts = (part.astype(int32) for part in (indices, inverse.reshape(value.shape), counts))
    return UniqueAllResult(take(reshape(tensor, -1), indices), asarray(indices), asarray(inverse), asarray(counts))


def unique_all(x: TensorLike, /) -> UniqueAllResult:
    """Find the distinct elements, their first positions, every element's position among them, and their counts.

    Every NaN is distinct, and all NaN come last. 0.0 and -0.0 are equal, and the one that comes first is returned.

    Args:
        x: any shape and dtype.

    Returns:
        A named tuple of `values`, `indices`, `inverse_indices` and `counts`; all but the values are int32.

    Raises:
        TraceError: inside a compiled function; use `hf.sort` there.

    Example:
        >>> import hybridflow as hf
        >>> hf.unique_all([3, 1, 3]).inverse_indices
        Tensor([1, 0, 1], dtype=int32)
    """
    return _unique("unique_all", x)


def unique_counts(x: TensorLike, /) -> UniqueCountsResult:
    """Find the distinct elements and their counts; see `unique_all`.

    Args:
        x: any shape and dtype.

    Returns:
        A named tuple of `values` and `counts` (int32).

    Raises:
        TraceError: inside a compiled function; use `hf.sort` there.

    Example:
        >>> import hybridflow as hf
        >>> hf.unique_counts([3, 1, 3]).counts
        Tensor([1, 2], dtype=int32)
    """
    distinct = _unique("unique_counts", x)
    return UniqueCountsResult(distinct.values, distinct.counts)


def unique_inverse(x: TensorLike, /) -> UniqueInverseResult:
    """Find the distinct elements, and every element's position among them; see `unique_all`.

    Args:
        x: any shape and dtype.

    Returns:
        A named tuple of `values` and `inverse_indices` (int32).

    Raises:
        TraceError: inside a compiled function; use `hf.sort` there.

    Example:
        >>> import hybridflow as hf
        >>> hf.unique_inverse([3, 1, 3]).values
        Tensor([1, 3], dtype=int32)
    """
    distinct = _unique("unique_inverse", x)
    return UniqueInverseResult(distinct.values, distinct.inverse_indices)


def unique_values(x: TensorLike, /) -> Tensor:
    """Find the distinct elements, in ascending order; see `unique_all`.

    Args:
        x: any shape and dtype.

    Returns:
        One dimension, the dtype of `x`.

    Raises:
        TraceError: inside a compiled function; use `hf.sort` there.

    Example:
        >>> import hybridflow as hf
        >>> hf.unique_values([3, 1, 3])
        Tensor([1, 3], dtype=int32)
    """
    return _unique("unique_values", x).values


def isin(x1: TensorLike, x2: TensorLike, /, *, invert: bool = False) -> Tensor:
    """Return for every element whether it is among others; NaN never is.

    Args:
        x1: the elements, any shape; real.
        x2: the others, any shape; real.
        invert: whether to invert the result.

    Returns:
        Bools, in the shape of `x1`.

    Raises:
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.isin([1, 2, 3], [3, 1])
        Tensor([ True, False,  True], dtype=bool)
    """
    invert = truth("isin", "invert", invert)
    elements, others = promote(x1, x2)
    if kind_of(elements.dtype) == "bool":
        elements, others = cast_to(elements, int32), cast_to(others, int32)
    row = sort(reshape(others, -1))
    if row.shape[0] == 0:
        among = full(elements.shape, False)
    else:
        positions = clip(searchsorted(row, elements), None, full((), row.shape[0] - 1, dtype=int32))
        among = logical_and(equal(take(row, positions, axis=0), elements), equal(elements, elements))
    return logical_not(among) if invert else among


# -- elements that are not zero -----------------------------------------------------------------------------------


def nonzero(x: TensorLike, /) -> tuple[Tensor, ...]:
    """Find the positions of the elements that are not 0, in row-major order; NaN is not 0.

    Args:
        x: at least one dimension, any dtype.

    Returns:
        One row of int32 positions per dimension.

    Raises:
        ShapeError: a tensor of shape ().
        TraceError: inside a compiled function; a mask with `hf.where` keeps the shape there.

    Example:
        >>> import hybridflow as hf
        >>> hf.nonzero([0, 7, 0, 9])
        (Tensor([1, 3], dtype=int32),)
    """
    tensor, value = _value("nonzero", x, "Use hf.where(x != 0, a, b), which keeps the shape, or hf.count_nonzero.")
    if not tensor.ndim:
        raise ShapeError("nonzero: a tensor of shape () has no positions", got=str(tensor.spec),
                         hint="Compare it with 0.")
    return tuple([asarray(positions.astype(int32)) for positions in np.nonzero(value)])


def count_nonzero(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Count the elements along axes that are not 0; NaN is not 0.

    Args:
        x: any shape and dtype.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        Counts, int32.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.count_nonzero([0, 7, 0, 9])
        Tensor(2, dtype=int32)
    """
    if other:
        return respelled(count_nonzero, locals())
    keepdims = truth("count_nonzero", "keepdims", keepdims)
    tensor = as_tensor(x)
    hits = tensor if kind_of(tensor.dtype) == "bool" else not_equal(tensor, full((), 0, dtype=tensor.dtype))
    return add_up(hits, axis, dtype=int32, keepdims=keepdims)


__all__ = [
    "UniqueAllResult", "UniqueCountsResult", "UniqueInverseResult", "count_nonzero", "isin", "nonzero", "unique_all",
    "unique_counts", "unique_inverse", "unique_values",
]

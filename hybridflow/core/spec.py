"""`TensorSpec`: the shape and dtype of a tensor without its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from hybridflow.core.dims import Dim, Size
from hybridflow.core.dtypes import DType, as_dtype, float32, short_name
from hybridflow.core.errors import ArgumentTypeError, message

Shape = tuple[Size, ...]


class TensorSpec:
    """The shape and dtype of a tensor.

    Args:
        shape: the size of each dimension; ``None`` is a dimension of any size.
        dtype: the dtype.
        name: an optional name for messages.

    Example:
        >>> import hybridflow as hf
        >>> hf.TensorSpec([None, 3])
        TensorSpec(f32[?,3])
    """

    __slots__ = ("dtype", "name", "shape")

    shape: tuple[Any, ...]
    dtype: DType
    name: str | None

    def __init__(self, shape: Iterable[Size | None], dtype: Any = float32, name: str | None = None) -> None:
        self.shape = tuple([_size(size) for size in shape])
        self.dtype = as_dtype(dtype)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorSpec, (self.shape, self.dtype, self.name)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> Any:
        """The number of elements."""
        total: Any = 1
        for size in self.shape:
            total = total * size
        return total

    @property
    def nbytes(self) -> Any:
        """The size of the value in bytes."""
        return self.size * self.dtype.itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TensorSpec):
            return NotImplemented
        return self.dtype == other.dtype and self.shape == other.shape

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __str__(self) -> str:
        return format_spec(self.shape, self.dtype)

    def __repr__(self) -> str:
        name = f", name={self.name!r}" if self.name is not None else ""
        return f"TensorSpec({self}{name})"


def _size(size: Any) -> Size | None:
    if size is None or isinstance(size, Dim):
        return size
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise ArgumentTypeError(
            message(f"TensorSpec: {size!r} is not a size", hint="Use integers from 0 on, or None for any size.")
        )
    return int(size)


def spec_of(value: Any) -> TensorSpec:
    """Return the spec of anything that has a shape and a dtype."""
    if isinstance(value, TensorSpec):
        return value
    return make_spec(value.shape, value.dtype)


def make_spec(shape: tuple[Any, ...], dtype: DType) -> TensorSpec:
    """Build a spec from parts that are known to be right, without the checks of the constructor."""
    spec = object.__new__(TensorSpec)
    spec.shape = shape
    spec.dtype = dtype
    spec.name = None
    return spec


def format_spec(shape: tuple[Any, ...], dtype: DType) -> str:
    """Format a shape and dtype the way the IR prints them, such as ``f32[4,3]``."""
    return f"{short_name(dtype)}[{','.join('?' if size is None else str(size) for size in shape)}]"

"""`TensorSpec`: the shape and dtype of a tensor without its value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim, Size
from hybridflow.core.dtypes import DType, as_dtype, float32, short_name
from hybridflow.core.errors import ArgumentTypeError

Shape = tuple[Size, ...]


class SizeName(str):
    """An open size with a name; it is the same wherever the name occurs.

    Attributes:
        max: the largest size allowed, or None.
    """

    __slots__ = ("max",)
    max: int | None

    def __reduce__(self) -> tuple[Any, ...]:
        return _named, (str(self), self.max)

    def allows(self, size: int) -> bool:
        """Whether a size is not too large."""
        return self.max is None or size <= self.max


def dim(name: str, *, max: int | None = None) -> SizeName:
    """Return an open size for `TensorSpec`; a name alone is short for `dim(name)`.

    Args:
        name: an identifier; the size is the same wherever the name occurs.
        max: the largest size allowed.

    Raises:
        ArgumentTypeError: if the name is not an identifier, or `max` is not a positive integer.

    Example:
        >>> import hybridflow as hf
        >>> hf.TensorSpec(["batch", hf.dim("time", max=512), 3])
        TensorSpec(f32[batch,time<=512,3])
    """
    if not isinstance(cast(object, name), str) or not name.isidentifier() or not name.isascii():
        raise ArgumentTypeError(f"TensorSpec: {name!r} is not a size",
                                hint="Names of sizes are identifiers, such as 'batch'.")
    if max is not None and (type(max) is not int or max < 1):
        raise ArgumentTypeError(f"dim: max={max!r} is no number from 1 on")
    return _named(name, max)


def _named(name: str, largest: int | None) -> SizeName:
    made = SizeName(name)
    made.max = largest
    return made


def is_open_size(size: Any) -> bool:
    """Whether a size of a spec is open."""
    return size is None or type(size) is SizeName


def example_size(size: Any, example: int) -> Any:
    """Return a size of a spec; for an open size, the example, or the largest size allowed if that is smaller."""
    if type(size) is SizeName:
        return example if size.max is None else min(example, size.max)
    return example if size is None else size


class TensorSpec:
    """The shape and dtype of a tensor.

    Args:
        shape: the size of each dimension. None means any size; a name means a size that is the same wherever the
            name occurs (see `hf.dim`).
        dtype: the dtype.
        name: an optional name for messages.

    Example:
        >>> import hybridflow as hf
        >>> hf.TensorSpec([None, 3])
        TensorSpec(f32[?,3])
        >>> hf.TensorSpec(["batch", 3])
        TensorSpec(f32[batch,3])
    """

    __slots__ = ("dtype", "name", "shape")

    shape: tuple[Any, ...]
    dtype: DType
    name: str | None

    def __init__(self, shape: Iterable[Size | str | None], dtype: Any = float32, name: str | None = None) -> None:
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


def _size(size: Any) -> Any:
    if size is None or isinstance(size, Dim | SizeName):
        return size
    if isinstance(size, str):
        return dim(size)
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 0:
        raise ArgumentTypeError(f"TensorSpec: {size!r} is not a size",
                                hint="Use integers from 0 on, None for any size, or a name.")
    return int(size)


def spec_of(value: Any) -> TensorSpec:
    """Return the spec of anything that has a shape and a dtype."""
    if isinstance(value, TensorSpec):
        return value
    return make_spec(value.shape, value.dtype)


def make_spec(shape: tuple[Any, ...], dtype: DType) -> TensorSpec:
    """Build a spec from parts that are known to be valid, without the constructor's checks."""
    spec = object.__new__(TensorSpec)
    spec.shape = shape
    spec.dtype = dtype
    spec.name = None
    return spec


def format_spec(shape: tuple[Any, ...], dtype: DType) -> str:
    """Format a shape and dtype the way the IR prints them, such as ``f32[4,3]``."""
    return f"{short_name(dtype)}[{','.join(map(_shown, shape))}]"


def _shown(size: Any) -> str:
    if type(size) is SizeName and size.max is not None:
        return f"{size}<={size.max}"
    return "?" if size is None else str(size)

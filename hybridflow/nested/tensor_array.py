"""`hf.TensorArray`: a fixed number of tensors of one shape, written one by one, also in loops."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard, cast

import jax

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core import structures
from hybridflow.core.context import current
from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import DType, as_dtype
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    IndexRangeError,
    MutationError,
    ShapeError,
)
from hybridflow.core.node import Where, format_where, user_place
from hybridflow.core.tensor import Tensor, as_tensor, asarray
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import GraphBuilder, Scope


class TensorArray:
    """An immutable array of tensors with one shape and dtype; a write returns a new array.

    It is a pytree, so it can be an argument, a result, or a loop variable, and gradients flow through writes and
    reads. Elements that were never written are zeros. If no shape is given, the first write decides it, even in a
    branch or loop on tensors (if a call of a compiled function skips that write, the elements are zeros).

    After ``b = a.write(i, v)``, every use of `a` (writing, reading, stacking, returning it or passing it on) raises
    an error that names the line of the write: the element would be missing in `a`. The two branches of a condition may
    each write the same array. Dropping both arrays is no error.

    Args:
        dtype: the elements' dtype.
        size: the number of elements.
        shape: the elements' shape.

    Raises:
        ArgumentError: if the size is negative.
        ArgumentTypeError: if the size is not an integer.

    Example:
        >>> import hybridflow as hf
        >>> squares = hf.TensorArray(hf.float32, size=3)
        >>> for i in range(3):
        ...     squares = squares.write(i, float(i * i))
        >>> squares.stack()
        Tensor([0., 1., 4.], dtype=float32)
    """

    __slots__ = ("_buffer", "_dtype", "_size", "_written")

    _buffer: Any
    _dtype: DType
    _size: Any
    _written: tuple[Scope | None, Where | None] | None

    def __init__(self, dtype: Any, size: Any, shape: tuple[int, ...] | None = None) -> None:
        if not isinstance(size, int | Dim) or isinstance(size, bool):
            raise ArgumentTypeError("TensorArray: size must be an integer", got=f"size={size!r}",
                                    hint="Pass the number of elements.")
        if size < 0:
            raise ArgumentError("TensorArray: size must not be negative", got=f"size={size}")
        self._dtype = as_dtype(dtype)
        self._size = size
        self._buffer = None if shape is None else PUBLIC.full((size, *shape), 0, dtype=self._dtype)
        self._written = None

    @classmethod
    def _make(cls, dtype: DType, size: Any, buffer: Any) -> TensorArray:
        result = object.__new__(cls)
        result._dtype, result._size, result._buffer, result._written = dtype, size, buffer, None
        return result

    @property
    def dtype(self) -> DType:
        """The elements' dtype."""
        return self._dtype

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The elements' shape, None while it is not known."""
        return None if self._buffer is None else self._buffer.shape[1:]

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        # A structure that jax unflattens for a message holds no tensors.
        shape = f", shape={self._buffer.shape[1:]}" if hasattr(self._buffer, "shape") else ""
        return f"TensorArray({self._dtype}, size={self._size}{shape})"

    def with_shape(self, shape: tuple[int, ...]) -> TensorArray:
        """Return an array of zeros with the same size and dtype, and elements of the given shape.

        Args:
            shape: the elements' shape.
        """
        return TensorArray(self._dtype, self._size, shape)

    def write(self, index: Any, value: Any) -> TensorArray:
        """Return an array with one element replaced; this array must not be used any more.

        Args:
            index: an integer, or an integer tensor of shape (); negative ones count from the end.
            value: the element, of the array's shape and dtype; Python numbers take its dtype.

        Returns:
            The new array.

        Raises:
            IndexRangeError: if the index is outside the array.
            ShapeError: if the value has another shape.
            DTypeError: if the value has another dtype.
            MutationError: if this array was written before, so that the result of that write would be lost.
        """
        self._check("write")
        has_dtype = isinstance(value, Tensor | Variable) or hasattr(value, "dtype")
        tensor = as_tensor(value) if has_dtype else asarray(value, dtype=self._dtype)
        if tensor.dtype != self._dtype:
            raise DTypeError(f"TensorArray.write: the value is {tensor.dtype}, the array {self._dtype}",
                             got=f"{self}.write({index}, {tensor.spec})",
                             hint=f"Cast it with .astype(hf.{self._dtype}).")
        if self._buffer is not None and tensor.shape != self.shape:
            raise ShapeError(
                f"TensorArray.write: the value has shape {tensor.shape}, the array's elements {self.shape}",
                got=f"{self}.write({index}, {tensor.spec})", hint="All elements have one shape."
            )
        position = self._position("write", index)
        buffer = self._buffer
        if buffer is None:
            buffer = PUBLIC.full((self._size, *tensor.shape), 0, dtype=self._dtype)
        result = self._make(self._dtype, self._size, buffer.at[position].set(tensor))
        self._written = (_scope(), user_place(1))
        return result

    def read(self, index: Any) -> Tensor:
        """Return one element.

        Args:
            index: an integer, or an integer tensor of shape (); negative ones count from the end.

        Returns:
            The element, of the array's shape and dtype.

        Raises:
            IndexRangeError: if the index is outside the array.
            ShapeError: if the elements' shape is not known yet.
            MutationError: if this array was written before, so that the result of that write would be lost.
        """
        self._check("read")
        position = self._position("read", index)
        return self._filled("read")[position]

    def stack(self) -> Tensor:
        """Return all elements along a new first axis.

        Returns:
            A tensor of shape ``(len(array), *array.shape)``.

        Raises:
            ShapeError: if the elements' shape is not known yet.
            MutationError: if this array was written before, so that the result of that write would be lost.
        """
        self._check("stack")
        return self._filled("stack")

    def unstack(self, value: Any) -> TensorArray:
        """Return an array with all elements taken from a tensor; this array must not be used any more.

        Args:
            value: a tensor of shape ``(len(array), ...)`` and of the array's dtype.

        Returns:
            The new array.

        Raises:
            ShapeError: if the number or the shape of the elements differs.
            DTypeError: if the dtype differs.
            MutationError: if this array was written before, so that the result of that write would be lost.
        """
        self._check("unstack")
        tensor = as_tensor(value)
        if tensor.dtype != self._dtype:
            raise DTypeError(f"TensorArray.unstack: the value is {tensor.dtype}, the array {self._dtype}",
                             got=f"{self}.unstack({tensor.spec})", hint=f"Cast it with .astype(hf.{self._dtype}).")
        fits = tensor.shape and tensor.shape[0] == self._size and self.shape in (None, tensor.shape[1:])
        if not fits:
            wanted = f"({self._size}, {'...' if self.shape is None else ', '.join(map(str, self.shape))})"
            raise ShapeError(f"TensorArray.unstack: the value has shape {tensor.shape}, the array takes {wanted}",
                             got=f"{self}.unstack({tensor.spec})",
                             hint="Make the array with the size of the first axis.")
        result = self._make(self._dtype, self._size, tensor)
        self._written = (_scope(), user_place(1))
        return result

    def _filled(self, method: str) -> Any:
        if self._buffer is None:
            raise ShapeError(
                f"TensorArray.{method}: nothing was written yet, so the shape of the elements is not known",
                got=f"{self}.{method}()", hint="Write first, or make the array with shape=."
            )
        return self._buffer

    def _position(self, method: str, index: Any) -> Any:
        """Return an index as an int in range, or as an integer tensor of shape ()."""
        if type(index) is int:
            if not -self._size <= index < self._size:
                raise IndexRangeError(f"TensorArray.{method}: index {index} is out of range for {self._size} elements",
                                      got=f"{self}.{method}({index})", hint="Make the array with a larger size=.")
            return index
        tensor = as_tensor(index)
        if tensor.shape != () or tensor.dtype.kind not in "iu":
            raise ArgumentTypeError(f"TensorArray.{method}: the index must be an integer", got=str(tensor.spec),
                                    hint="Pass an integer, or an integer tensor of shape ().")
        return tensor

    def _check(self, method: str) -> None:
        """Raise if this array was written in a trace that the current code belongs to or contains."""
        if self._written is None:
            return
        scope, where = self._written
        if _concerns(scope, _scope()):
            place = "" if where is None else f" at {format_where(where)}"
            raise MutationError(
                f"TensorArray.{method}: this array was written{place}, and the result of that was dropped",
                got=f"{self}.{method}", hint="A write returns the new array: use `array = array.write(index, value)`."
            )



def is_array(value: Any) -> TypeGuard[TensorArray]:
    """Whether a value is a TensorArray."""
    return isinstance(value, TensorArray)


def shapes_to_begin_with(before: Any, after: Any) -> dict[int, Any]:
    """Return the element shapes of the arrays that a step of a loop was the first to write to.

    Args:
        before: the structure that the loop began with.
        after: the structure after the step.

    Returns:
        The shapes by position among the leaves, where arrays count as leaves. Empty if the structures differ otherwise.
    """
    a, tree = structures.flatten(before, is_leaf=is_array)
    b, other = structures.flatten(after, is_leaf=is_array)
    if tree != other:
        return {}
    return {
        index: two.shape
        for index, (one, two) in enumerate(zip(a, b, strict=True))
        if is_array(one) and is_array(two) and one.shape is None and two.shape is not None
    }


def begun_with(before: Any, shapes: dict[int, Any]) -> Any:
    """Return a structure in which arrays get zeros of the given shapes; see `shapes_to_begin_with`."""
    leaves, tree = structures.flatten(before, is_leaf=is_array)
    return tree.unflatten([leaf.with_shape(shapes[i]) if i in shapes else leaf for i, leaf in enumerate(leaves)])


def _scope() -> Scope | None:
    tracer = current().tracer
    return cast(GraphBuilder, tracer).scope if tracer is not None else None


def _concerns(written: Scope | None, now: Scope | None) -> bool:
    """Whether a write in one trace affects another: not if the traces are two branches, or two calls."""
    return written is None or (now is not None and (now.is_within(written) or written.is_within(now)))


_LOOKING: ContextVar[bool] = ContextVar("hybridflow looking", default=False)


@contextmanager
def looking() -> Generator[None]:
    """Allow flattening of structures without counting it as a use of the arrays in them."""
    token = _LOOKING.set(True)
    try:
        yield
    finally:
        _LOOKING.reset(token)


def _flatten(array: TensorArray) -> tuple[tuple[Any, ...], Any]:
    if not _LOOKING.get():
        array._check("use")
    return (() if array._buffer is None else (array._buffer,)), (array._dtype, array._size)


def _unflatten(aux: Any, children: Any) -> TensorArray:
    dtype, size = aux
    items = tuple(children)
    return TensorArray._make(dtype, size, items[0] if items else None)


jax.tree_util.register_pytree_node(TensorArray, _flatten, _unflatten)

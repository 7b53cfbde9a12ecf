"""Gradient clipping: `hf.clip_by_value`, `hf.clip_by_norm`, `hf.clip_by_global_norm`, and `hf.global_norm`."""

from __future__ import annotations

from typing import Any, TypeVar

from hybridflow.core import structures
from hybridflow.core.dtypes import float32, is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ops.choice import clip, where
from hybridflow.ops.common import cast_to
from hybridflow.ops.comparison import greater, isfinite
from hybridflow.ops.division import square
from hybridflow.ops.elementwise import abs as absolute
from hybridflow.ops.elementwise import stop_gradient
from hybridflow.ops.joining import stack
from hybridflow.ops.reductions import max as maximum_of
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.transcendental import sqrt

T = TypeVar("T")

Axis = int | tuple[int, ...] | None


def clip_by_value(tensors: T, low: Any, high: Any) -> T:
    """Limit every element to an interval.

    Args:
        tensors: a tensor, or a pytree of them; None stays None.
        low, high: the bounds: numbers, or tensors that broadcast with every tensor.

    Returns:
        The same structure.

    Example:
        >>> import hybridflow as hf
        >>> hf.clip_by_value([hf.asarray([-3.0, 0.5]), None], -1.0, 1.0)
        [Tensor([-1. ,  0.5], dtype=float32), None]
    """
    return structures.map_leaves(lambda leaf: clip(_floats("clip_by_value", leaf), low, high), tensors)


def clip_by_norm(tensors: T, max_norm: Any, axis: Axis = None) -> T:
    """Scale every tensor down separately, so that its Euclidean norm is at most `max_norm`.

    Args:
        tensors: a tensor, or a pytree of them; None stays None.
        max_norm: the largest norm, a number or scalar tensor; smaller tensors stay as they are.
        axis: the axes over which norms are taken; all of them if None.

    Returns:
        The same structure; NaN where a norm is not finite.

    Raises:
        ArgumentError: if `max_norm` is negative.
        DTypeError: if a tensor is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> hf.clip_by_norm(hf.asarray([3.0, 4.0]), 1.0)
        Tensor([0.6, 0.8], dtype=float32)
    """
    _require_norm("clip_by_norm", max_norm)

    def clipped(leaf: Any) -> Tensor:
        tensor = _floats("clip_by_norm", leaf)
        return tensor if tensor.size == 0 else _scaled(tensor, _norm(tensor, axis), max_norm)

    return structures.map_leaves(clipped, tensors)


def clip_by_global_norm(tensors: T, max_norm: Any) -> tuple[T, Tensor]:
    """Scale tensors down together, so that the norm of all their elements is at most `max_norm`.

    Args:
        tensors: a pytree of tensors, such as the gradients of a model; None stays None.
        max_norm: the largest norm, a number or scalar tensor; smaller gradients stay as they are.

    Returns:
        The same structure (NaN if the norm is not finite), and the norm before scaling.

    Raises:
        ArgumentError: if `max_norm` is negative.
        DTypeError: if a tensor is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> gradients, norm = hf.clip_by_global_norm({"w": hf.asarray([3.0]), "b": hf.asarray([4.0])}, 1.0)
        >>> gradients["w"], norm
        (Tensor([0.6], dtype=float32), Tensor(5., dtype=float32))

    Reference:
        R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks", 2013.
    """
    _require_norm("clip_by_global_norm", max_norm)
    norm = global_norm(tensors)
    return structures.map_leaves(lambda leaf: _scaled(as_tensor(leaf), norm, max_norm), tensors), norm


def global_norm(tensors: Any) -> Tensor:
    """Return the Euclidean norm of all elements of a pytree of tensors.

    Args:
        tensors: a tensor, or a pytree of them.

    Returns:
        A scalar: float64 if one of the tensors is, else float32. Its gradient at 0 is 0. Intermediate results do not
        overflow if the norm itself does not.

    Raises:
        DTypeError: if a tensor is not floating-point.

    Example:
        >>> import hybridflow as hf
        >>> hf.global_norm([hf.asarray([3.0]), hf.asarray([[4.0]])])
        Tensor(5., dtype=float32)
    """
    leaves = [_floats("global_norm", leaf) for leaf in structures.leaves(tensors)]
    norms = [_norm(leaf, None) for leaf in leaves if leaf.size != 0]
    if not norms:
        return as_tensor(0.0)
    if len(norms) == 1:
        return norms[0]
    wide = max([norm.dtype for norm in norms], key=lambda dtype: dtype.itemsize)
    return _norm(stack([cast_to(norm, wide) for norm in norms]), None)


def _norm(tensor: Tensor, axis: Axis) -> Tensor:
    """Return norms over axes, which are kept unless `axis` is None; scaling by the largest element avoids overflow."""
    kept = axis is not None
    if tensor.dtype.itemsize < 4:
        tensor = cast_to(tensor, float32)
    size = absolute(tensor)
    largest = stop_gradient(maximum_of(size, axis=axis, keepdims=True))
    largest = where((largest > 0) & isfinite(largest), largest, 1)
    total = sum_of(square(size / largest), axis=axis, keepdims=True)
    some = greater(total, 0)
    norm = where(some, largest * sqrt(where(some, total, 1)), total)
    return norm if kept else norm.reshape(())


def _scaled(tensor: Tensor, norm: Tensor, max_norm: Any) -> Tensor:
    """Return a tensor scaled by the factor that brings a norm down to `max_norm`."""
    limit = cast_to(as_tensor(max_norm), norm.dtype) if hasattr(max_norm, "dtype") else max_norm
    above = greater(norm, limit)
    factor = where(above, limit / where(above, norm, 1), 1)
    factor = where(isfinite(norm), factor, float("nan"))
    if tensor.dtype.kind == "c" or factor.dtype == tensor.dtype:
        return tensor * factor
    return cast_to(cast_to(tensor, factor.dtype) * factor, tensor.dtype)


def _floats(name: str, leaf: Any) -> Tensor:
    tensor = as_tensor(leaf)
    if not is_differentiable(tensor.dtype):
        raise DTypeError(f"{name}: a tensor is {tensor.dtype}, not floating-point", got=str(tensor.spec),
                         hint="Clip the gradients only.")
    return tensor


def _require_norm(name: str, max_norm: Any) -> None:
    if isinstance(max_norm, str) or max_norm is None:
        raise ArgumentTypeError(f"{name}: max_norm={max_norm!r} is no number")
    if isinstance(max_norm, int | float) and not max_norm >= 0:
        raise ArgumentError(f"{name}: max_norm={max_norm} is negative", hint="A norm is at least 0.")

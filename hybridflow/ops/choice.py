"""Choosing between elements: `where`, `maximum`, `minimum` and `clip`."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_
from hybridflow.core.errors import ArgumentTypeError, DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Each, Sample, Saves, op
from hybridflow.ops.common import (
    REAL,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    binary_samples,
    broadcast_lowered,
    broadcast_shapes,
    broadcasting,
    call_text,
    elements,
    integers,
    make_spec,
    met_shape,
    no_flops,
    normals,
    pointwise,
    promote,
    unbroadcast,
)

# -- by a condition -----------------------------------------------------------------------------------------------


def _where_infer(condition: TensorSpec, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if condition.dtype != bool_:
        raise DTypeError(f"where: the condition is {condition.dtype}, not bool",
                         got=call_text("where", condition, a, b),
                         hint="Compare it with something, or cast it with .astype(hf.bool).")
    if a.dtype != b.dtype:
        text = f"where: dtypes differ: {a.dtype} and {b.dtype}"
        raise DTypeError(text, got=call_text("where", condition, a, b))
    return make_spec(broadcast_shapes("where", condition.shape, a.shape, b.shape), a.dtype)


def _where_lower(condition: Any, a: Any, b: Any) -> Any:
    dtype = a.dtype if hasattr(a, "dtype") else b.dtype
    a, b = (value if hasattr(value, "dtype") else np.asarray(value, dtype) for value in (a, b))
    shape = met_shape(condition.shape, a.shape, b.shape)
    return lax.select(*[broadcast_lowered(value, shape) for value in (condition, a, b)])


_where_vjp = Each(
    lambda F, g, y, condition, a, b: None,
    lambda F, g, y, condition, a, b: unbroadcast(F, F.where(condition, g, 0), a),
    lambda F, g, y, condition, a, b: unbroadcast(F, F.where(condition, 0, g), b),
)


def _where_samples(rng: np.random.Generator) -> Any:
    flags = integers(rng, 0, 2, 3, 4, dtype="bool")
    yield Sample((flags, normals(rng, 3, 4), normals(rng, 3, 4)))
    yield Sample((flags, normals(rng, 4), 2.0))
    yield Sample((flags[0], normals(rng, 3, 1), normals(rng)))
    yield Sample((flags[0, 0], normals(rng), normals(rng)))
    yield Sample((flags[:0], normals(rng, 0, 4), normals(rng, 4)))
    yield Sample((flags, normals(rng, 4, dtype="bfloat16"), normals(rng, 4, dtype="bfloat16")), gradient=False)
    yield Sample((flags, integers(rng, 0, 9, 4), integers(rng, 0, 9, 3, 1)))
    yield Bad((normals(rng, 3), 1.0, 2.0), error=DTypeError, text="the condition is float32, not bool")
    yield Bad((flags, normals(rng, 3), 2.0), error=ShapeError, text="do not broadcast")


@op(
    kernel=np.where,
    lower=_where_lower,
    infer=_where_infer,
    vjp=_where_vjp,
    saves=Saves(x=(0,)),
    flops=no_flops,
    samples=_where_samples,
    traits=("pointwise", "layout", "select"),
    ulp=0,
    onnx="Where",
)
def where(condition: TensorLike, x1: TensorLike | None = None, x2: TensorLike | None = None, /) -> Tensor:
    """Take elements of one tensor where a condition holds, of another where it does not.

    No gradient passes to an element that was not taken.

    Args:
        condition: bool.
        x1, x2: both are needed; of any dtype; the three shapes broadcast.

    Returns:
        The elements taken, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: the condition is not bool.
        ArgumentTypeError: there is nothing to take from.

    Example:
        >>> import hybridflow as hf
        >>> hf.where([True, False], 1.0, [2.0, 3.0])
        Tensor([1., 3.], dtype=float32)
    """
    if x1 is None or x2 is None:
        raise ArgumentTypeError(
            "where: it takes elements of two tensors, and is not given them", got="hf.where(condition)",
            hint="Write hf.where(condition, x, y); the positions where it holds are hf.nonzero(condition)."
        )
    return bind(where.op, (as_tensor(condition), *promote(x1, x2)))


# -- the larger and the smaller -----------------------------------------------------------------------------------


def _choice_vjp(first: str) -> Any:
    """Return the rule of `maximum` and `minimum`: the winner takes the cotangent, a tie halves it."""

    def share(F: Any, g: Any, one: Any, other: Any) -> Any:
        wins = getattr(F, first)(one, other)
        return unbroadcast(F, F.where(wins, g, F.where(F.equal(one, other), g * 0.5, 0)), one)

    return Each(lambda F, g, y, a, b: share(F, g, a, b), lambda F, g, y, a, b: share(F, g, b, a))


def _choice_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples()(rng)
    nan = np.nan
    yield Sample((np.array([1, nan, nan, np.inf], np.float32), np.array([nan, 1, nan, 2], np.float32)), gradient=False)
    zeros = np.array([0.0, -0.0, 0.0, -0.0, 5.0, -5.0], np.float32)
    yield Sample((zeros, np.array([-0.0, 0.0, 3.0, -3.0, 0.0, -0.0], np.float32)), gradient=False)
    yield Sample((integers(rng, -9, 9, 4), 3))
    yield Bad((np.array([True]), np.array([True])), error=DTypeError, text="does not take bool")


def _ordered(ufunc: Any, sign: float) -> Any:
    """Return the kernel of `maximum` or `minimum` in which 0.0 is larger than -0.0, as it is for XLA.

    NumPy may return either of two zeros. `sign` is 1.0 for the maximum and -1.0 for the minimum; the sum of two zeros
    is 0.0 if either is.
    """

    def kernel(a: Any, b: Any) -> Any:
        y = ufunc(a, b)
        if y.dtype.kind != "f" or np.count_nonzero(y) == y.size:
            return y
        if b.size == 1:
            zero = sign * b.reshape(())
            if zero or not np.signbit(zero):  # no two zeros met, or one of them is always the one to take
                return y if zero else sign * (sign * y + zero)
        zeros = (a == 0) & (b == 0)
        return np.where(zeros, sign * (sign * a + sign * b), y) if zeros.any() else y

    return kernel


_maximum_kernel = _ordered(np.maximum, 1.0)
_minimum_kernel = _ordered(np.minimum, -1.0)


@op(
    kernel=_maximum_kernel,
    lower=broadcasting(lax.max),
    infer=pointwise("maximum", REAL),
    vjp=_choice_vjp("greater"),
    saves=Saves(x=(0, 1)),
    flops=elements,
    samples=_choice_samples,
    traits=("pointwise", "commutative"),
    ulp=0,
    onnx="Max",
)
def maximum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Take the larger of two elements; NaN wins over every number, 0.0 is larger than -0.0.

    Args:
        x1, x2: real, of shapes that broadcast.

    Returns:
        The larger elements, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool or complex operands.

    Kink:
        Each of two equal elements gets half of the gradient.

    Example:
        >>> import hybridflow as hf
        >>> hf.maximum([1, 5], 3)
        Tensor([3, 5], dtype=int32)
    """
    return bind(maximum.op, promote(x1, x2))


@op(
    kernel=_minimum_kernel,
    lower=broadcasting(lax.min),
    infer=pointwise("minimum", REAL),
    vjp=_choice_vjp("less"),
    saves=Saves(x=(0, 1)),
    flops=elements,
    samples=_choice_samples,
    traits=("pointwise", "commutative"),
    ulp=0,
    onnx="Min",
)
def minimum(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Take the smaller of two elements; NaN wins over every number, 0.0 is larger than -0.0.

    Args:
        x1, x2: real, of shapes that broadcast.

    Returns:
        The smaller elements, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool or complex operands.

    Kink:
        Each of two equal elements gets half of the gradient.

    Example:
        >>> import hybridflow as hf
        >>> hf.minimum([1, 5], 3)
        Tensor([1, 3], dtype=int32)
    """
    return bind(minimum.op, promote(x1, x2))


def _clip_kernel(x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    if low:
        x = _maximum_kernel(x, bounds[0])
    return _minimum_kernel(x, bounds[-1]) if high else x


def _clip_lower(x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    if low:
        x = broadcasting(lax.max)(x, bounds[0])
    return broadcasting(lax.min)(x, bounds[-1]) if high else x


def _clip_vjp(F: Any, g: Any, y: Any, x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    del y
    raised = F.less(x, bounds[0]) if low else None
    lifted = F.maximum(x, bounds[0]) if low else x
    lowered = F.greater(lifted, bounds[-1]) if high else None

    def of_x() -> Any:
        kept = g
        for outside in (raised, lowered):
            kept = kept if outside is None else F.where(outside, 0, kept)
        return unbroadcast(F, kept, x)

    def of_low() -> Any:
        passed = F.where(raised, g, 0)
        return unbroadcast(F, passed if lowered is None else F.where(lowered, 0, passed), bounds[0])

    gradients: list[Any] = [of_x]
    if low:
        gradients.append(of_low)
    if high:
        gradients.append(lambda: unbroadcast(F, F.where(lowered, g, 0), bounds[-1]))
    return gradients


def _clip_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), -0.5, 0.5))
    yield Sample((normals(rng, 3, 4), normals(rng, 4), normals(rng, 3, 1) + 3))
    yield Sample((normals(rng), None, 0.25))
    yield Sample((normals(rng, 3, dtype="float64"), 0.1))
    yield Sample((normals(rng, 0, 2), -1.0, 1.0))
    yield Sample((integers(rng, -9, 9, 5), -2, 3))
    yield Sample((np.array([np.nan, 1.0, -1.0], np.float32), -1.0, 1.0), gradient=False)
    yield Sample((np.array([-0.0, 0.0], np.float32), 0.0, -0.0), gradient=False)
    yield Sample((np.array([-0.0, 0.0, 3.0, -3.0], np.float32), 0.0, 2.0), gradient=False)
    yield Sample((normals(rng, 3), 1.0, -1.0))
    yield Bad((normals(rng, 3), normals(rng, 4)), error=ShapeError, text="do not broadcast")
    yield Bad((np.array([True]), True), error=DTypeError, text="does not take bool")


def _clip_onnx(o: Any, x: Any, *bounds: Any, low: bool, high: bool) -> Any:
    if all(bound.ndim == 0 for bound in bounds):
        return o.Clip(x, bounds[0] if low else None, *(bounds[-1:] if high else ()))
    x = o.Max(x, bounds[0]) if low else x
    return o.Min(x, bounds[-1]) if high else x


@op(
    kernel=_clip_kernel,
    lower=_clip_lower,
    infer=lambda *xs, low, high: pointwise("clip", REAL)(*xs),
    vjp=_clip_vjp,
    saves=Saves(x="all"),
    flops=elements,
    samples=_clip_samples,
    traits=("pointwise",),
    method="clip",
    ulp=0,
    onnx=_clip_onnx,
)
def clip(x: TensorLike, /, min: TensorLike = None, max: TensorLike = None, **other: Unpack[Other]) -> Tensor:
    """Limit every element to a range; NaN stays NaN.

    Args:
        x: real.
        min, max: the bounds, of shapes that broadcast with `x`; None for no bound. Where ``min > max``, `max` is taken.

    Returns:
        The limited elements, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: bool or complex operands.

    Kink:
        The gradient passes inside the range and on its ends, and to a bound where it was taken.

    Example:
        >>> import hybridflow as hf
        >>> hf.clip([1, 5, 9], 2, 6)
        Tensor([2, 5, 6], dtype=int32)
    """
    if other:
        return respelled(clip, locals())
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds:
        return as_tensor(x)
    return bind(clip.op, promote(x, *bounds), {"low": min is not None, "high": max is not None})


__all__ = ["clip", "maximum", "minimum", "where"]

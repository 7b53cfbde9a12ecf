"""Variance, positions of extrema, log-sum-exp and running sums."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, float32, float64, int32, kind_of
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    fixed_number,
    input_elements,
    integers,
    make_spec,
    normalize_axes,
    normalize_axis,
    normals,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.host_rows import extremum
from hybridflow.ops.nn.common import compute_dtype, narrow, wide
from hybridflow.ops.onnx import counted, mean_over, position
from hybridflow.ops.padding import along, constant, highest, lowest, running
from hybridflow.ops.padding_nn import position_of, variance
from hybridflow.ops.rearrange import pad
from hybridflow.ops.shape import expand_dims, reshape
from hybridflow.ops.sizes import (
    Axes,
    Axis,
    accumulator,
    as_asked,
    count_along,
    lowered_count,
    reduced_shape,
    restore_axes,
    size_value,
)
from hybridflow.ops.sorting import order_keys
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum

_FLOAT = ("float",)


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 2, 3, 4),), {"axis": (0, -1)})
    yield Sample((normals(rng, 2, 3),), {"axis": 1, "keepdims": True})
    yield Sample((normals(rng, 5, dtype="float64"),), {"axis": 0})
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"),), {"axis": -1}, gradient=False)
    yield Sample((integers(rng, -9, 9, 4, 3),), {"axis": 0})
    yield Bad((normals(rng, 2, 3),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range for 2 dimensions")
    yield Bad((normals(rng, 2, dtype="complex64"),), error=TypeError, text="does not take complex64")


def _wide(x: Any) -> Any:
    """Return values in the dtype of their accumulation: float32 for low-precision ones."""
    return x.astype(float32) if x.dtype.num in LOW_PRECISION else x


# -- variance -----------------------------------------------------------------------------------------------------


def _spread_infer(name: str) -> Any:
    def infer(x: TensorSpec, *, axis: Axes, correction: float, keepdims: bool) -> TensorSpec:
        del correction
        require_kind(name, _FLOAT, x)
        return make_spec(reduced_shape(x.shape, axis, keepdims), x.dtype)

    return infer


def _var_host(x: Any, axis: Axes, correction: float, keepdims: bool) -> Any:
    count = count_along(x.shape, axis)
    number = x.dtype.type
    distance = x - add_up(x, axis, True) / number(count)
    total = add_up(np.square(distance), axis, keepdims)
    return total / number(max(count - correction, 0))


def _var_kernel(x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    return _var_host(_wide(x), axis, correction, keepdims).astype(x.dtype)


def _var_wide(x: Any, axis: Axes, correction: float, keepdims: bool) -> Any:
    """Compute the variance in two passes: the mean, then the mean squared distance from it."""
    count = count_along(x.shape, axis)
    shape = reduced_shape(x.shape, axis, True)
    center = lax.reshape(float_sum(x, axis) / lowered_count(count, x.dtype), shape)
    total = float_sum(lax.square(lax.sub(x, lax.broadcast_in_dim(center, x.shape, range(x.ndim)))), axis)
    freedom = count - correction
    result = total / (
        np.asarray(max(freedom, 0), x.dtype) if isinstance(freedom, int | float)
        else lax.max(lowered_count(freedom, x.dtype), np.zeros((), x.dtype))
    )
    return lax.reshape(result, shape) if keepdims else result


def _var_lower(x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    return _var_wide(_wide(x), axis, correction, keepdims).astype(x.dtype)


def _deviation(F: Any, x: Any, axis: Axes, correction: float) -> Any:
    """Return the distance from the mean, divided by the corrected count."""
    count = size_value(F, count_along(x.shape, axis), x.dtype)
    return (x - F.mean(x, axis=axis, keepdims=True)) / (count - correction)


def _var_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    del y, keepdims
    return (restore_axes(F, 2 * g, x, axis) * _deviation(F, x, axis, correction),)


def _var_samples(rng: np.random.Generator) -> Any:
    yield from _samples(rng)
    yield Sample((normals(rng, 3, 4),), {"axis": 0, "correction": 1})
    yield Sample((normals(rng, 4),), {"correction": 0.5})
    yield Sample((1e4 + normals(rng, 50),))
    yield Sample((normals(rng, 0, 3),), {"axis": 0}, gradient=False)


def _var_onnx(o: Any, x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    deviation = x - mean_over(o, x, axis)
    total = o.ReduceSumSquare(deviation, o.ints(axis), keepdims=int(keepdims)) if axis else deviation * deviation
    return total / counted(o, x, axis, correction=correction)


@op(
    kernel=_var_kernel,
    lower=_var_lower,
    infer=_spread_infer("var"),
    vjp=_var_vjp,
    saves=Saves(x=(0,)),
    flops=input_elements,
    samples=_var_samples,
    traits=("full_precision",),
    method="var",
    ulp=16,
    onnx=_var_onnx,
    padded=variance(root=False),
)
def var(
    x: TensorLike, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False, **other: Unpack[Other]
) -> Tensor:
    """Compute the variance along axes: the mean squared distance from the mean.

    float16 and bfloat16 accumulate in float32.

    Args:
        x: any shape; real, integers become float32.
        axis: the axes to reduce; all of them if None.
        correction: the number to subtract from the count; 1 gives the unbiased estimate from a sample.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The variances; NaN over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.var([1.0, 2.0, 3.0, 4.0])
        Tensor(1.25, dtype=float32)
    """
    if other:
        return respelled(var, locals())
    keepdims = truth("var", "keepdims", keepdims)
    (tensor,) = promote_float(x)
    axes = normalize_axes("var", axis, tensor.ndim)
    return bind(
        var.op, (tensor,),
        {"axis": axes, "correction": fixed_number("var", "correction", correction), "keepdims": keepdims},
    )


def _std_kernel(x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    return np.sqrt(_var_host(_wide(x), axis, correction, keepdims)).astype(x.dtype)


def _std_lower(x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    return lax.sqrt(_var_wide(_wide(x), axis, correction, keepdims)).astype(x.dtype)


def _std_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, correction: float, keepdims: bool) -> Any:
    del keepdims
    flat = y == 0
    slope = F.where(flat, 0, g / F.where(flat, 1, y))
    return (restore_axes(F, slope, x, axis) * _deviation(F, x, axis, correction),)


def _std_samples(rng: np.random.Generator) -> Any:
    yield from _samples(rng)
    yield Sample((normals(rng, 3, 4),), {"axis": 0, "correction": 1})
    yield Sample((np.ones((2, 3), np.float32),), {"axis": 1}, gradient=False)


@op(
    kernel=_std_kernel,
    lower=_std_lower,
    infer=_spread_infer("std"),
    vjp=_std_vjp,
    saves=Saves(x=(0,), y=True),
    flops=input_elements,
    samples=_std_samples,
    traits=("full_precision",),
    method="std",
    ulp=16,
    onnx=lambda o, x, **attrs: o.Sqrt(_var_onnx(o, x, **attrs)),
    padded=variance(root=True),
)
def std(
    x: TensorLike, /, axis: Axis = None, *, correction: float = 0.0, keepdims: bool = False, **other: Unpack[Other]
) -> Tensor:
    """Compute the standard deviation along axes: the square root of `var`.

    float16 and bfloat16 accumulate in float32. The gradient at a deviation of 0 is 0.

    Args:
        x: any shape; real, integers become float32.
        axis: the axes to reduce; all of them if None.
        correction: the number to subtract from the count; 1 gives the usual estimate from a sample.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The standard deviations; NaN over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.std([1.0, 1.0, 3.0, 3.0])
        Tensor(1., dtype=float32)
    """
    if other:
        return respelled(std, locals())
    keepdims = truth("std", "keepdims", keepdims)
    (tensor,) = promote_float(x)
    axes = normalize_axes("std", axis, tensor.ndim)
    return bind(
        std.op, (tensor,),
        {"axis": axes, "correction": fixed_number("std", "correction", correction), "keepdims": keepdims},
    )


# -- positions of extrema -----------------------------------------------------------------------------------------


def _position_infer(name: str) -> Any:
    def infer(x: TensorSpec, *, axis: int) -> TensorSpec:
        require_kind(name, ("bool", "int", "uint", "float"), x)
        if x.shape[axis] == 0:
            raise ShapeError(f"{name}: axis {axis} has size 0, so there is nothing to choose from",
                             got=call_text(name, x), hint="Reduce non-empty axes only.")
        return make_spec((*x.shape[:axis], *x.shape[axis + 1 :]), int32)

    return infer


def _position_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),))
    yield Sample((normals(rng, 3, 4),), {"axis": -1, "keepdims": True})
    yield Sample((normals(rng, 2, 3),), {"keepdims": True})
    yield Sample((normals(rng),))
    yield Sample((np.array([1, 3, 3, 0, 0], np.int32),))
    yield Sample((np.array([1.0, np.nan, np.inf, np.nan, -np.inf]),), gradient=False)
    yield Sample((np.array([False, True, True]),))
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"),), {"axis": 0}, gradient=False)
    yield Bad((normals(rng, 2, 0),), {"axis": 1}, error=ShapeError, text="axis 1 has size 0")
    yield Bad((normals(rng, 2),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")
    yield Bad((normals(rng, 2, dtype="complex64"),), error=TypeError, text="does not take complex64")


_POSITION = Stops("a position has no gradient")


@op(
    kernel=lambda x, axis: np.argmax(x, axis).astype(int32),
    lower=lambda x, axis: lax.argmax(order_keys(x), axis, int32),
    infer=_position_infer("argmax"),
    vjp=_POSITION,
    flops=input_elements,
    samples=_position_samples,
    method="argmax",
    ulp=0,
    onnx=position("ArgMax"),
    padded=position_of(lowest),
    traits=("picks",),
)
def argmax(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Find the position of the largest element, the first of equal ones; NaN counts as the largest.

    Args:
        x: any shape; real or bool.
        axis: the axis to reduce; None counts through all elements in row-major order.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        Positions, int32.

    Raises:
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.argmax([[1, 4, 4], [3, 2, 1]], axis=1)
        Tensor([1, 0], dtype=int32)
    """
    if other:
        return respelled(argmax, locals())
    keepdims = truth("argmax", "keepdims", keepdims)
    return _position(argmax.op, as_tensor(x), axis, keepdims)


@op(
    kernel=lambda x, axis: np.argmin(x, axis).astype(int32),
    lower=lambda x, axis: lax.argmin(order_keys(x, nan_first=True), axis, int32),
    infer=_position_infer("argmin"),
    vjp=_POSITION,
    flops=input_elements,
    samples=_position_samples,
    method="argmin",
    ulp=0,
    onnx=position("ArgMin"),
    padded=position_of(highest),
    traits=("picks",),
)
def argmin(x: TensorLike, /, axis: int | None = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Find the position of the smallest element, the first of equal ones; NaN counts as the smallest.

    Args:
        x: any shape; real or bool.
        axis: the axis to reduce; None counts through all elements in row-major order.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        Positions, int32.

    Raises:
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.argmin([[1, 4, 1], [3, 2, 1]], axis=1)
        Tensor([0, 2], dtype=int32)
    """
    if other:
        return respelled(argmin, locals())
    keepdims = truth("argmin", "keepdims", keepdims)
    return _position(argmin.op, as_tensor(x), axis, keepdims)


def _position(op: Any, tensor: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    ndim = tensor.ndim
    if axis is None:
        positions = bind(op, (tensor if ndim == 1 else reshape(tensor, -1),), {"axis": 0})
        return reshape(positions, (1,) * ndim) if keepdims and ndim else positions
    along = normalize_axis(op.name, axis, ndim)
    positions = bind(op, (tensor,), {"axis": along})
    return expand_dims(positions, axis=along) if keepdims else positions


# -- log-sum-exp --------------------------------------------------------------------------------------------------


def _logsumexp_infer(x: TensorSpec, *, axis: Axes, keepdims: bool, residuals: bool) -> Any:
    require_kind("logsumexp", _FLOAT, x)
    y = make_spec(reduced_shape(x.shape, axis, keepdims), x.dtype)
    if not residuals:
        return y
    dtype = compute_dtype(x.dtype)
    return y, make_spec(x.shape, dtype), make_spec(reduced_shape(x.shape, axis, True), dtype)


def _logsumexp_kernel(x: Any, *, axis: Axes, keepdims: bool, residuals: bool) -> Any:
    wide = _wide(x)
    top = extremum(np.maximum, wide, axis, True, -np.inf)
    shifted = wide - top
    if not np.isfinite(top).all():
        shifted[np.isinf(wide) & (wide == top)] = 0  # equal infinities count alike
    parts = np.exp(shifted)
    total = add_up(parts, axis, True)
    y = (np.log(total) + top).astype(x.dtype).reshape(reduced_shape(x.shape, axis, keepdims))
    return (y, parts, total) if residuals else y


def _logsumexp_lower(x: Any, *, axis: Axes, keepdims: bool, residuals: bool) -> Any:
    wide = _wide(x)
    shape = reduced_shape(x.shape, axis, True)

    def spread(value: Any) -> Any:
        return lax.broadcast_in_dim(lax.reshape(value, shape), x.shape, range(x.ndim))

    top = lax.stop_gradient(lax.reduce_max(wide, axis))
    infinite = lax.select(lax.is_finite(top), lax.full_like(top, np.nan), top)
    shifted = lax.select(lax.eq(wide, spread(infinite)), lax.full_like(wide, 0), wide - spread(top))
    parts = lax.exp(shifted)
    total = float_sum(parts, axis)
    y = (lax.log(total) + top).astype(x.dtype)
    y = lax.reshape(y, shape) if keepdims else y
    return (y, parts, lax.reshape(total, shape)) if residuals else y


def _logsumexp_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    del keepdims
    _, parts, total = y
    return (narrow(F, wide(F, restore_axes(F, g, x, axis)) / total * parts, x.dtype),)


def _logsumexp_samples(rng: np.random.Generator) -> Any:
    yield from _samples(rng)
    yield Sample((normals(rng),))
    yield Sample((1e4 * normals(rng, 2, 3),), {"axis": 1})
    inf = np.inf
    yield Sample((np.array([[-inf, -inf], [inf, 1.0], [-inf, 2.0]], np.float32),), {"axis": 1}, gradient=False)
    yield Sample((normals(rng, 0, 3),), {"axis": 0}, gradient=False)


def _logsumexp_onnx(o: Any, x: Any, *, axis: Axes, keepdims: bool, residuals: bool = False) -> Any:
    y = o.ReduceLogSumExp(x, o.ints(axis), keepdims=int(keepdims)) if axis else x
    if not residuals:
        return y
    top = o.ReduceMax(x, o.ints(axis), keepdims=1) if axis else x
    parts = o.Exp(o.Where(o.And(o.IsInf(top), o.Equal(x, top)), 0, x - top))
    return y, parts, o.ReduceSum(parts, o.ints(axis), keepdims=1) if axis else o.Identity(parts)


@op(
    kernel=_logsumexp_kernel,
    lower=_logsumexp_lower,
    infer=_logsumexp_infer,
    vjp=_logsumexp_vjp,
    saves=Saves(x=(0,), hidden=2),
    flops=input_elements,
    samples=_logsumexp_samples,
    traits=("log_sum", "full_precision"),
    method="logsumexp",
    ulp=8,
    onnx=_logsumexp_onnx,
    padded=along(lowest),
)
def logsumexp(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Compute ``log(sum(exp(x)))`` along axes without overflow.

    float16 and bfloat16 accumulate in float32.

    Args:
        x: any shape; real, integers become float32.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The logarithms; -inf over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.logsumexp([1000.0, -1000.0])
        Tensor(1000., dtype=float32)
    """
    if other:
        return respelled(logsumexp, locals())
    keepdims = truth("logsumexp", "keepdims", keepdims)
    (tensor,) = promote_float(x)
    axes = normalize_axes("logsumexp", axis, tensor.ndim)
    return bind(logsumexp.op, (tensor,), {"axis": axes, "keepdims": keepdims})


logsumexp.op.upgrades = (lambda attrs: {**attrs, "residuals": False},)
"""Version 1 had no hidden outputs."""


# -- running sums -------------------------------------------------------------------------------------------------


def _cumulative_sum_kernel(x: Any, *, axis: int, reverse: bool) -> Any:
    if reverse:
        return np.flip(_cumulative_sum_kernel(np.flip(x, axis), axis=axis, reverse=False), axis)
    # NumPy adds from one end to the other; float64 keeps the digits that many float32 additions would lose.
    floating = kind_of(x.dtype) == "float"
    total = np.add.accumulate(x, axis=axis, dtype=float64 if floating else x.dtype)
    if floating:
        total += 0.0  # sums begin with 0.0, so none is -0.0
    return total.astype(x.dtype)


def _cumulative_sum_lower(x: Any, *, axis: int, reverse: bool) -> Any:
    return lax.cumsum(_wide(x), axis, reverse=reverse).astype(x.dtype)


def _cumulative_sum_infer(x: TensorSpec, *, axis: int, reverse: bool) -> TensorSpec:
    del axis, reverse
    require_kind("cumulative_sum", NUMERIC, x)
    return make_spec(x.shape, x.dtype)


def _cumulative_sum_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),), {"axis": 1})
    yield Sample((normals(rng, 3, 4),), {"axis": 0, "reverse": True})
    yield Sample((normals(rng, 5),))
    yield Sample((normals(rng, 3, dtype="float64"),), {"include_initial": True})
    yield Sample((normals(rng, 0, 2),), {"axis": 0})
    yield Sample((np.array([-0.0, -0.0, 0.0, -0.0, 1.0], np.float32),))
    yield Sample((np.array([-0.0], np.float32),), {"reverse": True})
    yield Sample((integers(rng, 0, 5, 4, dtype="int8"),))
    yield Sample((normals(rng, 4, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 2, 2),), error=ShapeError, text="needs an axis")
    yield Bad((normals(rng, 2),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")


@op(
    kernel=_cumulative_sum_kernel,
    lower=_cumulative_sum_lower,
    infer=_cumulative_sum_infer,
    vjp=lambda F, g, y, x, *, axis, reverse: (F.cumulative_sum(g, axis=axis, reverse=not reverse),),
    flops=input_elements,
    samples=_cumulative_sum_samples,
    traits=("full_precision",),
    method="cumulative_sum",
    ulp=16,
    onnx=lambda o, x, *, axis, reverse: o.CumSum(x, o.value(np.int64(axis)), reverse=int(reverse)),
    padded=running(constant(0)),
)
def cumulative_sum(
    x: TensorLike,
    /,
    axis: int | None = None,
    *,
    dtype: Any = None,
    include_initial: bool = False,
    reverse: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Compute running sums along an axis.

    float16 and bfloat16 accumulate in float32. Integers below 32 bits and bools give int32 or uint32.

    Args:
        x: at least one dimension.
        axis: the axis; needed if there are several.
        dtype: the dtype to cast to before adding.
        include_initial: whether to start with 0, the sum of no elements.
        reverse: whether to sum from the end.

    Returns:
        The shape of `x`, longer by one along the axis with `include_initial`.

    Raises:
        ShapeError: the axis is out of range, or missing for several dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.cumulative_sum([1, 2, 3])
        Tensor([1, 3, 6], dtype=int32)
    """
    if other:
        return respelled(cumulative_sum, locals())
    include_initial = truth("cumulative_sum", "include_initial", include_initial)
    reverse = truth("cumulative_sum", "reverse", reverse)
    tensor = accumulator(as_tensor(x), dtype)
    if axis is None and tensor.ndim != 1:
        raise ShapeError(f"cumulative_sum: needs an axis, there are {tensor.ndim} dimensions", got=str(tensor.spec),
                         hint="Give axis=...")
    along = normalize_axis("cumulative_sum", 0 if axis is None else axis, tensor.ndim)
    total = as_asked(bind(cumulative_sum.op, (tensor,), {"axis": along, "reverse": reverse}), dtype)
    if not include_initial:
        return total
    widths = [(0, 0)] * tensor.ndim
    widths[along] = (0, 1) if reverse else (1, 0)
    return pad(total, widths)


__all__ = ["argmax", "argmin", "cumulative_sum", "logsumexp", "std", "var"]

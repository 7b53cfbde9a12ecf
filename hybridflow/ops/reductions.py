"""Reductions over all axes or some: sums, means, extrema, products and truth values."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, bool_, float32, is_differentiable
from hybridflow.core.errors import ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, Saves, Stops, on_host, op
from hybridflow.core.spec import TensorSpec
from hybridflow.ops.common import (
    FLOATING,
    NUMERIC,
    REAL,
    Tensor,
    TensorLike,
    as_tensor,
    call_text,
    cast_to,
    input_elements,
    integers,
    make_spec,
    no_flops,
    normalize_axes,
    normals,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.host_rows import extremum, spread
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.onnx import any_true, kept_nan, reduction
from hybridflow.ops.onnx import mean as mean_onnx
from hybridflow.ops.padding import along, constant, highest, lowest, mean_of
from hybridflow.ops.sizes import (
    Axes,
    Axis,
    accumulator,
    as_asked,
    count_along,
    count_elements,
    lowered_count,
    reduced_shape,
    restore_axes,
    size_value,
)
from hybridflow.ops.summation import add_up
from hybridflow.ops.xla_algebra import float_sum, positive_zero


def _reduction(name: str, kinds: tuple[str, ...], *, empty: bool = True) -> Any:
    """Return the shape rule of a reduction that keeps the dtype; `empty` says whether axes may have size 0."""

    def infer(x: TensorSpec, *, axis: Axes, keepdims: bool, **attrs: Any) -> TensorSpec:
        del attrs
        require_kind(name, kinds, x)
        if not empty:
            for i in axis:
                if x.shape[i] == 0:
                    raise ShapeError(f"{name}: axis {i} has size 0, so there is nothing to choose from",
                                     got=call_text(name, x), hint="Reduce non-empty axes only.")
        return make_spec(reduced_shape(x.shape, axis, keepdims), x.dtype)

    return infer


def _keep(y: Any, axis: Axes, keepdims: bool) -> Any:
    """Restore the reduced axes of a JAX reduction, with size 1, if `keepdims` asks for them."""
    return lax.expand_dims(y, axis) if keepdims and axis else y


def _prepare(x: TensorLike, axis: Axis, keepdims: bool, name: str) -> tuple[Tensor, dict[str, Any]]:
    tensor = as_tensor(x)
    if type(keepdims) is not bool:
        keepdims = truth(name, "keepdims", keepdims)
    return tensor, {"axis": normalize_axes(name, axis, tensor.ndim), "keepdims": keepdims}


def _axis_samples(rng: np.random.Generator, **more: Any) -> Any:
    """Yield the samples on which every reduction is tried."""
    yield Sample((normals(rng, 3, 4),), more)
    yield Sample((normals(rng, 2, 3, 4),), {"axis": (0, -1), **more})
    yield Sample((normals(rng, 2, 3),), {"axis": 1, "keepdims": True, **more})
    yield Sample((normals(rng),), more)
    yield Sample((normals(rng, 5, dtype="float64"),), {"axis": 0, **more})
    yield Sample((normals(rng, 2, 3, dtype="bfloat16"),), {"axis": -1, **more}, gradient=False)


def _bad_axes(rng: np.random.Generator) -> Any:
    yield Bad((normals(rng, 2, 3),), {"axis": 2}, error=ShapeError, text="axis 2 is out of range for 2 dimensions")
    yield Bad((normals(rng, 2, 3),), {"axis": (1, -1)}, error=ShapeError, text="names an axis twice")


# -- sum ----------------------------------------------------------------------------------------------------------


def _sum_kernel(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    total = add_up(x, axis, keepdims)
    return total if total.dtype is x.dtype else total.astype(x.dtype)


def _total_lower(x: Any, axis: Axes) -> Any:
    """Sum over axes; no sum is -0.0."""
    if x.dtype.kind not in "fc":
        return lax.reduce_sum(x, axis)
    total = float_sum(x, axis)
    return positive_zero(total) if x.dtype.kind == "f" else total


def _sum_lower(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    wide = x.astype(float32) if x.dtype.num in LOW_PRECISION else x
    return _keep(_total_lower(wide, axis).astype(x.dtype), axis, keepdims)


def _sum_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    del y, keepdims
    return (F.broadcast_to(restore_axes(F, g, x, axis), shape=x.shape),)


def _sum_host(g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    del y, keepdims
    shape = x.shape
    if len(axis) < len(shape):
        g = g.reshape(reduced_shape(shape, axis, True))
    return (spread(g, shape, count_elements(shape)),)


def _sum_samples(rng: np.random.Generator) -> Any:
    yield from _axis_samples(rng)
    yield Sample((normals(rng, 0, 3),), {"axis": 0})
    yield Sample((normals(rng, 2, 3),), {"axis": ()})
    yield Sample((integers(rng, -9, 9, 4, 3, dtype="int8"),), {"axis": 0})
    yield Sample((integers(rng, 0, 2, 4, dtype="bool"),))
    yield Sample((integers(rng, -9, 9, 4),), {"dtype": "float64"})
    yield from _bad_axes(rng)


@op(
    kernel=_sum_kernel,
    lower=_sum_lower,
    infer=_reduction("sum", NUMERIC),
    vjp=on_host(_sum_vjp, _sum_host),
    flops=input_elements,
    samples=_sum_samples,
    traits=("full_precision", "sum"),
    method="sum",
    onnx=reduction("ReduceSum"),
    padded=along(constant(0)),
)
def sum(
    x: TensorLike, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False, **other: Unpack[Other]
) -> Tensor:
    """Add up the elements along axes, as precisely as pairwise summation does.

    The relative error of n float32 numbers of one sign is at most ``(32 + 2 * log2(n)) * 2**-24``, which is twice the
    bound of NumPy's sum of neighbours, along any axes. float16 and bfloat16 accumulate in float32. Integers below 32
    bits and bools are summed as int32 or uint32.

    Args:
        x: any shape and dtype.
        axis: the axes to reduce; all of them if None.
        dtype: the dtype to cast to before adding.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The sums; 0 over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.sum([[1, 2], [3, 4]], axis=0)
        Tensor([4, 6], dtype=int32)
    """
    if other:
        return respelled(sum, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "sum")
    return as_asked(bind(sum.op, (accumulator(tensor, dtype),), attrs), dtype)


# -- mean ---------------------------------------------------------------------------------------------------------


def _mean_kernel(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    average = add_up(x, axis, keepdims) / count_along(x.shape, axis)
    return average if average.dtype is x.dtype else average.astype(x.dtype)


def _mean_lower(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    wide = x.astype(float32) if x.dtype.num in LOW_PRECISION else x
    total = _total_lower(wide, axis)
    return _keep((total / lowered_count(count_along(x.shape, axis), wide.dtype)).astype(x.dtype), axis, keepdims)


def _mean_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    del y, keepdims
    g = g / size_value(F, count_along(x.shape, axis), g.dtype)
    return (F.broadcast_to(restore_axes(F, g, x, axis), shape=x.shape),)


def _mean_host(g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    del y, keepdims
    shape = x.shape
    if len(axis) < len(shape):
        g = g.reshape(reduced_shape(shape, axis, True))
    return (spread(np.asarray(g / g.dtype.type(count_along(shape, axis))), shape, count_elements(shape)),)


def _mean_samples(rng: np.random.Generator) -> Any:
    yield from _axis_samples(rng)
    yield Sample((normals(rng, 0, 3),), {"axis": 0}, gradient=False)
    yield Sample((integers(rng, -9, 9, 4, 3),), {"axis": 0})
    yield from _bad_axes(rng)


@op(
    kernel=_mean_kernel,
    lower=_mean_lower,
    infer=_reduction("mean", FLOATING),
    vjp=on_host(_mean_vjp, _mean_host),
    flops=input_elements,
    samples=_mean_samples,
    traits=("full_precision",),
    method="mean",
    onnx=mean_onnx,
    padded=mean_of,
)
def mean(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Average the elements along axes.

    float16 and bfloat16 accumulate in float32.

    Args:
        x: any shape; integers become float32.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The averages; NaN over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.mean([[1.0, 2.0], [3.0, 4.0]], axis=1)
        Tensor([1.5, 3.5], dtype=float32)
    """
    if other:
        return respelled(mean, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "mean")
    return bind(mean.op, promote_float(tensor), attrs)


# -- max and min --------------------------------------------------------------------------------------------------


def _extremum_kernel(ufunc: Any, negative: bool) -> Any:
    """Return the kernel of `max` or `min`; as in XLA, 0.0 is larger than -0.0, while NumPy takes either."""

    def kernel(x: Any, *, axis: Axes, keepdims: bool) -> Any:
        y = extremum(ufunc, x, axis, keepdims)
        if y.dtype.kind != "f" or np.count_nonzero(y) == y.size:
            return y
        preferred = (x == 0) & (np.signbit(x) == negative)
        extrema = np.logical_or.reduce(preferred, axis=axis, keepdims=keepdims)
        return np.where((y == 0) & extrema, y.dtype.type(-0.0 if negative else 0.0), y)

    return kernel


def _lower_extremum(reduce: Any, x: Any, axis: Axes) -> Any:
    y = reduce(x, axis)
    if LOWERED_FOR.get() is None or not is_differentiable(x.dtype):
        return y
    # Between devices, XLA:CPU leaves NaN out of a maximum or minimum.
    nan = lax.reduce_or(lax.ne(x, x), axis)
    return lax.select(nan, lax.full_like(y, np.nan), y)


def _extremum_vjp(F: Any, g: Any, y: Any, x: Any, *, axis: Axes, keepdims: bool) -> Any:
    """Share the cotangent evenly among the elements that tie; if there is a NaN, exactly the NaN elements tie."""
    del keepdims
    chosen = F.astype(F.logical_or(F.equal(x, restore_axes(F, y, x, axis)), F.isnan(x)), dtype=g.dtype)
    ties = F.sum(chosen, axis=axis, keepdims=True)
    return (restore_axes(F, g, x, axis) / ties * chosen,)


def _extremum_samples(rng: np.random.Generator) -> Any:
    yield from _axis_samples(rng)
    yield Sample((integers(rng, -9, 9, 4, 3),), {"axis": 0})
    yield Sample((np.array([[1.0, np.nan], [np.inf, 2.0]], np.float32),), {"axis": 0}, gradient=False)
    yield Sample((np.array([1.0, 3.0, 3.0], np.float32),), gradient=False)
    yield Sample((np.array([[0.0, -0.0], [-0.0, 0.0], [-0.0, -0.0]], np.float32),), {"axis": 1}, gradient=False)
    yield Sample((normals(rng, 2, 0),), {"axis": 0}, gradient=False)
    yield from _bad_axes(rng)
    yield Bad((normals(rng, 2, 0),), {"axis": 1}, error=ShapeError, text="axis 1 has size 0")
    yield Bad((normals(rng, 2, dtype="complex64"),), error=TypeError, text="does not take complex64")


@op(
    kernel=_extremum_kernel(np.maximum, False),
    lower=lambda x, axis, keepdims: _keep(_lower_extremum(lax.reduce_max, x, axis), axis, keepdims),
    infer=_reduction("max", REAL, empty=False),
    vjp=_extremum_vjp,
    saves=Saves(x=(0,), y=True),
    flops=input_elements,
    samples=_extremum_samples,
    method="max",
    ulp=0,
    onnx=kept_nan("ReduceMax"),
    padded=along(lowest),
    traits=("picks",),
)
def max(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Find the largest element along axes.

    NaN wins over every number, and 0.0 is larger than -0.0.

    Args:
        x: any shape; real.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The largest elements, in the dtype of `x`.

    Raises:
        ShapeError: an axis that is empty, out of range, or named twice.
        DTypeError: bool or complex elements.

    Kink:
        Elements that tie share the gradient evenly; if there are NaN elements, they share it.

    Example:
        >>> import hybridflow as hf
        >>> hf.max([[1, 4], [3, 2]], axis=1)
        Tensor([4, 3], dtype=int32)
    """
    if other:
        return respelled(max, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "max")
    return bind(max.op, (tensor,), attrs)


@op(
    kernel=_extremum_kernel(np.minimum, True),
    lower=lambda x, axis, keepdims: _keep(_lower_extremum(lax.reduce_min, x, axis), axis, keepdims),
    infer=_reduction("min", REAL, empty=False),
    vjp=_extremum_vjp,
    saves=Saves(x=(0,), y=True),
    flops=input_elements,
    samples=_extremum_samples,
    method="min",
    ulp=0,
    onnx=kept_nan("ReduceMin"),
    padded=along(highest),
    traits=("picks",),
)
def min(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Find the smallest element along axes.

    NaN wins over every number, and 0.0 is larger than -0.0.

    Args:
        x: any shape; real.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The smallest elements, in the dtype of `x`.

    Raises:
        ShapeError: an axis that is empty, out of range, or named twice.
        DTypeError: bool or complex elements.

    Kink:
        Elements that tie share the gradient evenly; if there are NaN elements, they share it.

    Example:
        >>> import hybridflow as hf
        >>> hf.min([[1, 4], [3, 2]], axis=1)
        Tensor([1, 2], dtype=int32)
    """
    if other:
        return respelled(min, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "min")
    return bind(min.op, (tensor,), attrs)


# -- product ------------------------------------------------------------------------------------------------------


def _prod_kernel(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    dtype = x.dtype
    if dtype.num in LOW_PRECISION:
        return np.multiply.reduce(x, axis=axis, keepdims=keepdims, dtype=float32).astype(dtype)
    return np.multiply.reduce(x, axis=axis, keepdims=keepdims, dtype=dtype)


def _prod_lower(x: Any, *, axis: Axes, keepdims: bool) -> Any:
    wide = x.astype(float32) if x.dtype.num in LOW_PRECISION else x
    return _keep(lax.reduce_prod(wide, axis).astype(x.dtype), axis, keepdims)


def _prod_samples(rng: np.random.Generator) -> Any:
    yield from _axis_samples(rng)
    yield Sample((normals(rng, 0, 3),), {"axis": 0})
    yield Sample((np.array([[2.0, 0.0, 3.0], [0.0, 0.0, 1.0]], np.float32),), {"axis": 1})
    yield Sample((integers(rng, -3, 3, 4, 3, dtype="int16"),), {"axis": 0})
    yield from _bad_axes(rng)


@op(
    kernel=_prod_kernel,
    lower=_prod_lower,
    infer=_reduction("prod", NUMERIC),
    vjp=RuleFromLowering("prod"),
    saves=Saves(x="all"),
    flops=input_elements,
    samples=_prod_samples,
    traits=("full_precision",),
    method="prod",
    ulp=16,
    onnx=reduction("ReduceProd"),
    padded=along(constant(1)),
)
def prod(
    x: TensorLike, /, axis: Axis = None, *, dtype: Any = None, keepdims: bool = False, **other: Unpack[Other]
) -> Tensor:
    """Multiply the elements along axes.

    float16 and bfloat16 accumulate in float32. Integers below 32 bits and bools give int32 or uint32. The gradient is
    correct even where elements are 0.

    Args:
        x: any shape and dtype.
        axis: the axes to reduce; all of them if None.
        dtype: the dtype to cast to before multiplying.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The products; 1 over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.prod([[1, 2], [3, 4]], axis=0)
        Tensor([3, 8], dtype=int32)
    """
    if other:
        return respelled(prod, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "prod")
    return as_asked(bind(prod.op, (accumulator(tensor, dtype),), attrs), dtype)


# -- truth values -------------------------------------------------------------------------------------------------

_TRUTH = Stops("a truth value has no gradient")


def _all_lower(x: Any, axis: tuple[int, ...]) -> Any:
    if LOWERED_FOR.get() is None:
        return lax.reduce_and(x, axis)
    # Devices then send one another a sum, which XLA sends together with the sums of gradients.
    return lax.reduce_sum(lax.convert_element_type(~x, np.float32), axis) == 0


def _truth_samples(rng: np.random.Generator) -> Any:
    flags = integers(rng, 0, 2, 3, 4, dtype="bool")
    yield Sample((flags,))
    yield Sample((flags,), {"axis": -1, "keepdims": True})
    yield Sample((flags[:0],), {"axis": 0})
    yield Sample((flags[0, 0],))
    yield Sample((np.array([[1.0, np.nan], [0.0, -0.0]], np.float32),), {"axis": 1})
    yield from _bad_axes(rng)


@op(
    kernel=lambda x, axis, keepdims: np.logical_and.reduce(x, axis=axis, keepdims=keepdims),
    lower=lambda x, axis, keepdims: _keep(_all_lower(x, axis), axis, keepdims),
    infer=_reduction("all", ("bool",)),
    vjp=_TRUTH,
    flops=no_flops,
    samples=_truth_samples,
    method="all",
    ulp=0,
    onnx=lambda o, x, **attrs: o.Not(any_true(o, o.Not(x), **attrs)),
    padded=along(constant(True)),
)
def all(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Return whether all elements along axes are true.

    Args:
        x: any shape; every element except zero counts as true.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        Bools; True over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.all([[True, False], [True, True]], axis=1)
        Tensor([False,  True], dtype=bool)
    """
    if other:
        return respelled(all, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "all")
    return bind(all.op, (cast_to(tensor, bool_),), attrs)


@op(
    kernel=lambda x, axis, keepdims: np.logical_or.reduce(x, axis=axis, keepdims=keepdims),
    lower=lambda x, axis, keepdims: _keep(lax.reduce_or(x, axis), axis, keepdims),
    infer=_reduction("any", ("bool",)),
    vjp=_TRUTH,
    flops=no_flops,
    samples=_truth_samples,
    method="any",
    ulp=0,
    onnx=any_true,
    padded=along(constant(False)),
)
def any(x: TensorLike, /, axis: Axis = None, *, keepdims: bool = False, **other: Unpack[Other]) -> Tensor:
    """Return whether any element along axes is true.

    Args:
        x: any shape; every element except zero counts as true.
        axis: the axes to reduce; all of them if None.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        Bools; False over an empty axis.

    Raises:
        ShapeError: an axis out of range, or named twice.

    Example:
        >>> import hybridflow as hf
        >>> hf.any([[True, False], [False, False]], axis=1)
        Tensor([ True, False], dtype=bool)
    """
    if other:
        return respelled(any, locals())
    tensor, attrs = _prepare(x, axis, keepdims, "any")
    return bind(any.op, (cast_to(tensor, bool_),), attrs)


__all__ = ["all", "any", "max", "mean", "min", "prod", "sum"]

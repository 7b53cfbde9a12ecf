"""NumPy's functions of samples and of tables, made of other operations: quantiles, covariances, interpolation."""

from __future__ import annotations

from typing import Any, Literal, Unpack, cast

import numpy as np

from hybridflow.core.dtypes import float32, int32, kind_of
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.ops.along_axis import take_along_axis
from hybridflow.ops.choice import clip, maximum, minimum, where
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    asarray,
    call_text,
    cast_to,
    is_number,
    known_value,
    normalize_axis,
    one_of,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.comparison import isnan
from hybridflow.ops.complex_parts import conj, imag, real
from hybridflow.ops.dtype_functions import finfo
from hybridflow.ops.elementwise import floor, round
from hybridflow.ops.indexing import take
from hybridflow.ops.joining import concat
from hybridflow.ops.rearrange import moveaxis
from hybridflow.ops.reductions import mean, sum
from hybridflow.ops.sets import count_nonzero
from hybridflow.ops.shape import broadcast_to, expand_dims, reshape
from hybridflow.ops.sorting import argsort, searchsorted, sort

Method = Literal["linear", "lower", "higher", "nearest", "midpoint"]
_METHODS = ("linear", "lower", "higher", "nearest", "midpoint")


# -- values that are no numbers -----------------------------------------------------------------------------------


def nan_to_num(
    x: TensorLike, /, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Tensor:
    """Replace NaN and infinities by numbers; they get no gradient.

    Args:
        x: any shape and dtype; integers have none of them.
        nan: what stands for NaN.
        posinf, neginf: what stands for infinities; the largest and smallest number of the dtype if not given.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.nan_to_num([1.0, float("nan"), float("inf")], posinf=9.0)
        Tensor([1., 0., 9.], dtype=float32)
    """
    tensor = cast(Any, as_tensor(x))
    kind = kind_of(tensor.dtype)
    if kind == "complex":
        return cast(Any, nan_to_num(real(tensor), nan, posinf, neginf)) + 1j * cast(
            Any, nan_to_num(imag(tensor), nan, posinf, neginf)
        )
    if kind != "float":
        return tensor
    limits = finfo(tensor.dtype)
    tensor = where(isnan(tensor), nan, tensor)
    tensor = where(tensor == np.inf, limits.max if posinf is None else posinf, tensor)
    return where(tensor == -np.inf, limits.min if neginf is None else neginf, tensor)


# -- quantiles ----------------------------------------------------------------------------------------------------


def quantile(
    x: TensorLike,
    q: TensorLike,
    /,
    axis: int | None = None,
    *,
    method: Method = "linear",
    keepdims: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Find the values below which shares of the elements along an axis lie; NaN if there is a NaN.

    The gradient passes to the elements between which the value lies.

    Args:
        x: real; integers become float32.
        q: shares from 0 to 1, of any shape.
        axis: the axis to reduce; None takes all elements.
        method: what to take between two elements: a point on the line from the ``"lower"`` to the ``"higher"`` one, as
            near to each as the share is (``"linear"``), in the middle (``"midpoint"``), or the ``"nearest"``.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The shape of `q`, followed by that of `x` without the axis.

    Raises:
        ArgumentError: a share outside of 0 and 1, or another method.
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.quantile([1.0, 2.0, 3.0, 4.0], [0.5, 1.0])
        Tensor([2.5, 4. ], dtype=float32)

    Reference:
        R. J. Hyndman and Y. Fan, "Sample quantiles in statistical packages", The American Statistician 50, 1996,
        definition 7.
    """
    if other:
        return respelled(quantile, locals())
    return _quantile("quantile", x, q, axis, method, keepdims, skip=False)


def nanquantile(
    x: TensorLike,
    q: TensorLike,
    /,
    axis: int | None = None,
    *,
    method: Method = "linear",
    keepdims: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Find quantiles of the elements that are not NaN; NaN where there are none.

    Args:
        x: real; integers become float32.
        q: shares from 0 to 1, of any shape.
        axis: the axis to reduce; None takes all elements.
        method: as `quantile` takes it.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The shape of `q`, followed by that of `x` without the axis.

    Raises:
        ArgumentError: a share outside of 0 and 1, or another method.
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.nanquantile([1.0, float("nan"), 3.0], 0.5)
        Tensor(2., dtype=float32)
    """
    if other:
        return respelled(nanquantile, locals())
    return _quantile("nanquantile", x, q, axis, method, keepdims, skip=True)


def percentile(
    x: TensorLike,
    q: TensorLike,
    /,
    axis: int | None = None,
    *,
    method: Method = "linear",
    keepdims: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Find quantiles for percentages: `quantile` of ``q / 100``.

    Args:
        x: real; integers become float32.
        q: percentages from 0 to 100, of any shape.
        axis: the axis to reduce; None takes all elements.
        method: as `quantile` takes it.
        keepdims: whether reduced axes stay, with size 1.

    Returns:
        The shape of `q`, followed by that of `x` without the axis.

    Raises:
        ArgumentError: a percentage outside of 0 and 100, or another method.
        ShapeError: an axis that is empty or out of range.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.percentile([1.0, 2.0, 3.0], 50)
        Tensor(2., dtype=float32)
    """
    if other:
        return respelled(percentile, locals())
    return _quantile("percentile", x, q, axis, method, keepdims, skip=False, whole=100)


def _quantile(
    name: str, x: Any, q: Any, axis: int | None, method: str, keepdims: bool, *, skip: bool, whole: int = 1
) -> Tensor:
    keepdims = truth(name, "keepdims", keepdims)
    one_of(name, "method", method, _METHODS)
    (tensor,) = promote_float(x)
    require_kind(name, ("float",), tensor.spec)
    full = tensor.ndim
    if axis is None:
        tensor = reshape(tensor, (-1,))
    along = normalize_axis(name, 0 if axis is None else axis, tensor.ndim)
    if tensor.shape[along] == 0:
        raise ShapeError(f"{name}: axis {along} has size 0, so there is nothing to choose from",
                         got=call_text(name, tensor.spec), hint="Reduce non-empty axes only.")
    shares, shape = _shares(name, q, tensor.dtype, whole)
    ordered: Any = sort(moveaxis(tensor, along, -1), axis=-1)
    rest = ordered.shape[:-1]
    missing: Any = isnan(ordered)
    if skip:
        count = cast(Any, cast_to(count_nonzero(~missing, axis=-1, keepdims=True), shares.dtype))
    else:
        count = ordered.shape[-1]
    steps = maximum(count - 1, 0) if skip else count - 1
    place: Any = broadcast_to(shares * steps, (*rest, shares.shape[0]))
    found = _between(ordered, place, steps, method)
    bad = (count == 0) if skip else take(missing, as_tensor([-1]), axis=-1)
    found = moveaxis(where(bad, np.nan, found), -1, 0)
    found = reshape(found, (*shape, *rest))
    if not keepdims:
        return found
    sizes = [1] * full if axis is None else [*rest[:along], 1, *rest[along:]]
    return reshape(found, (*shape, *sizes))


def _shares(name: str, q: Any, dtype: Any, whole: int) -> tuple[Any, Any]:
    """Return shares from 0 to 1 in a row, and their shape.

    Raises:
        ArgumentError: a share that is known and outside.
    """
    wide = dtype if dtype.itemsize >= 4 else float32
    listed = is_number(q) or isinstance(q, list | tuple)
    (shares,) = (asarray(q, dtype=wide),) if listed else promote_float(q)
    known = known_value(shares)
    if known is not None and not bool(np.all((known >= 0) & (known <= whole))):
        raise ArgumentError(f"{name}: q has numbers outside of 0 and {whole}", got=f"q={known.tolist()}",
                            hint="percentile takes 0 to 100, quantile 0 to 1.")
    inside = cast(Any, cast_to(shares, wide)) / whole
    inside = where((inside >= 0) & (inside <= 1), inside, np.nan)
    return reshape(inside, (-1,)), shares.shape


def _between(ordered: Any, place: Any, last: Any, method: str) -> Any:
    """Return what lies at places between elements of rows."""
    if method == "nearest":
        place = round(place)
    low: Any = floor(place)
    part = place - low
    start = cast_to(where(isnan(low), 0, low), int32)
    end = cast_to(minimum(where(isnan(low), 0, low) + cast_to(part > 0, low.dtype), last), int32)
    below: Any = take_along_axis(ordered, start, axis=-1)
    if method in ("lower", "nearest"):
        return where(isnan(place), np.nan, below)
    above: Any = take_along_axis(ordered, end, axis=-1)
    if method == "higher":
        return where(isnan(place), np.nan, above)
    part = cast_to(part, ordered.dtype) if method == "linear" else where(part > 0, 0.5, part)
    step = above - below
    line = where(part < 0.5, below + step * part, above - step * (1 - part))
    return where(isnan(place), np.nan, where(above == below, below, line))


# -- covariances --------------------------------------------------------------------------------------------------


def cov(
    x: TensorLike,
    y: TensorLike | None = None,
    /,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: TensorLike | None = None,
    aweights: TensorLike | None = None,
) -> Tensor:
    """Estimate the covariances of variables from observations.

    Args:
        x: ``(variables, observations)``, or observations of one variable; integers become float32.
        y: more variables, with as many observations.
        rowvar: False if variables are columns.
        bias: whether sums are divided by the number of observations, not by one less.
        ddof: what is subtracted from that number, if not 1 or 0 by `bias`.
        fweights: how often each observation occurs.
        aweights: weights of observations, of which only the proportions count.

    Returns:
        ``(variables, variables)``, or shape () for one variable.

    Raises:
        ShapeError: more than 2 dimensions, or numbers of observations that differ.

    Example:
        >>> import hybridflow as hf
        >>> hf.cov([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])
        Tensor([[ 1., -1.],
                [-1.,  1.]], dtype=float32)

    Reference:
        NumPy's documentation of `numpy.cov`, whose definition of weights it follows.
    """
    table = _variables("cov", x, y, truth("cov", "rowvar", rowvar))
    less = (0 if truth("cov", "bias", bias) else 1) if ddof is None else ddof
    count: Any = table.shape[1]
    weights: Any = None
    for one in (fweights, aweights):
        if one is not None:
            (own,) = promote_float(one)
            if own.shape != (table.shape[1],):
                raise ShapeError(f"cov: weights of shape {own.shape} for {table.shape[1]} observations",
                                 hint="Pass one weight for each observation.")
            weights = own if weights is None else weights * own
    if weights is None:
        centered: Any = table - cast(Any, mean(table, axis=1, keepdims=True))
        factor: Any = count - less
        product = centered @ conj(centered).mT
    else:
        total: Any = sum(weights)
        centered = table - cast(Any, sum(table * weights, axis=1, keepdims=True)) / total
        own = 1 if aweights is None else promote_float(aweights)[0]
        factor = total - less * cast(Any, sum(weights * own)) / total
        product = (centered * weights) @ conj(centered).mT
    result = product / factor
    return reshape(result, ()) if result.shape == (1, 1) else result


def corrcoef(x: TensorLike, y: TensorLike | None = None, /, rowvar: bool = True) -> Tensor:
    """Estimate the correlations of variables from observations.

    Args:
        x: ``(variables, observations)``, or observations of one variable; integers become float32.
        y: more variables, with as many observations.
        rowvar: False if variables are columns.

    Returns:
        ``(variables, variables)``, from -1 to 1, or shape () for one variable.

    Raises:
        ShapeError: more than 2 dimensions, or numbers of observations that differ.

    Example:
        >>> import hybridflow as hf
        >>> hf.corrcoef([1.0, 2.0, 3.0], [2.0, 4.0, 6.0])
        Tensor([[1., 1.],
                [1., 1.]], dtype=float32)
    """
    found = cast(Any, cov(x, y, rowvar))
    if not found.ndim:
        return found / found
    spread = real(reshape(take_along_axis(found, _diagonal(found), axis=1), (-1,))) ** 0.5
    found = found / expand_dims(spread, 1) / spread
    if kind_of(found.dtype) == "complex":
        return cast(Any, clip(real(found), -1, 1)) + 1j * cast(Any, clip(imag(found), -1, 1))
    return clip(found, -1, 1)


def _diagonal(square: Tensor) -> Tensor:
    return as_tensor(np.arange(square.shape[0], dtype=np.int32)[:, None])


def _variables(name: str, x: Any, y: Any, rowvar: bool) -> Any:
    """Return variables as rows."""
    tables: list[Any] = []
    given = promote_float(x) if y is None else promote_float(x, y)
    for one in given:
        table = cast(Any, one)
        if table.ndim > 2:
            raise ShapeError(f"{name}: {table.ndim} dimensions", got=call_text(name, table.spec),
                             hint="Pass variables as rows, observations as columns; hf.vmap does it for many tables.")
        tables.append(reshape(table, (1, -1)) if table.ndim < 2 else table if rowvar else table.mT)
    if len(tables) == 2 and tables[0].shape[1] != tables[1].shape[1]:
        raise ShapeError(f"{name}: {tables[0].shape[1]} and {tables[1].shape[1]} observations differ",
                         got=call_text(name, *[one.spec for one in given]), hint="Pass as many of each variable.")
    return tables[0] if len(tables) == 1 else concat(tables, axis=0)


# -- interpolation ------------------------------------------------------------------------------------------------


def interp(
    x: TensorLike,
    xp: TensorLike,
    fp: TensorLike,
    /,
    left: float | None = None,
    right: float | None = None,
    period: float | None = None,
) -> Tensor:
    """Interpolate linearly between points of a table; its gradient passes to `x`, `xp` and `fp`.

    Args:
        x: where to interpolate, any shape; integers become float32.
        xp: the points, increasing; in any order if there is a period.
        fp: the values at the points.
        left, right: what is below the first and above the last point, if not the values there.
        period: the length after which the table repeats.

    Returns:
        The shape of `x`.

    Raises:
        ShapeError: `xp` and `fp` are not rows of one size, or there are no points.
        DTypeError: complex numbers.

    Example:
        >>> import hybridflow as hf
        >>> hf.interp([0.5, 3.0], [0.0, 1.0, 2.0], [0.0, 10.0, 20.0])
        Tensor([ 5., 20.], dtype=float32)
    """
    at, points, values = cast("tuple[Any, Any, Any]", promote_float(x, xp, fp))
    require_kind("interp", ("float",), at.spec)
    if points.ndim != 1 or points.shape != values.shape or points.shape[0] == 0:
        raise ShapeError("interp: the table must be two rows of one size",
                         got=call_text("interp", at.spec, points.spec, values.spec),
                         hint="Pass xp and fp of shape (n,).")
    if period is not None:
        at, points = at % period, points % period
        order = argsort(points)
        points, values = cast(Any, take(points, order, axis=0)), cast(Any, take(values, order, axis=0))
        points = concat([points[-1:] - period, points, points[:1] + period])
        values = concat([values[-1:], values, values[:1]])
    last = points.shape[0] - 1
    above = clip(searchsorted(points, at, side="right"), 1, max(last, 1))
    below = cast(Any, above) - 1
    above = minimum(above, last)
    x0, x1, y0, y1 = [cast(Any, take(row, index, axis=0)) for row in (points, values) for index in (below, above)]
    flat = x1 == x0
    part = where(flat, 0, (at - x0) / where(flat, 1, x1 - x0))
    found = y0 + (y1 - y0) * part
    if period is not None:
        return found
    found = where(at < points[0], values[0] if left is None else left, found)
    return where(at > points[-1], values[-1] if right is None else right, found)


__all__ = ["corrcoef", "cov", "interp", "nan_to_num", "nanquantile", "percentile", "quantile"]

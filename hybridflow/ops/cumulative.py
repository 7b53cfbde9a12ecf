"""Running products and differences of neighbours."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, float32, float64, kind_of
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, No, Sample, Saves, op
from hybridflow.ops.arithmetic import subtract
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    input_elements,
    integers,
    make_spec,
    normalize_axis,
    normals,
    promote,
    require_kind,
    truth,
)
from hybridflow.ops.indexing import getitem
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.joining import concat
from hybridflow.ops.padding import constant, running
from hybridflow.ops.rearrange import pad
from hybridflow.ops.sizes import accumulator, as_asked

# -- running products ---------------------------------------------------------------------------------------------


def _product_kernel(x: Any, *, axis: int) -> Any:
    wide = float64 if kind_of(x.dtype) == "float" else x.dtype
    return np.multiply.accumulate(x, axis=axis, dtype=wide).astype(x.dtype)


def _product_lower(x: Any, *, axis: int) -> Any:
    wide = x.astype(float32) if x.dtype.num in LOW_PRECISION else x
    return lax.cumprod(wide, axis).astype(x.dtype)


def _product_infer(x: TensorSpec, *, axis: int) -> TensorSpec:
    del axis
    require_kind("cumulative_prod", NUMERIC, x)
    return make_spec(x.shape, x.dtype)


def _product_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4),), {"axis": 1})
    yield Sample((np.array([2.0, 0.0, 3.0, 0.0, 5.0], np.float32),))
    yield Sample((normals(rng, 3, dtype="float64"),), {"include_initial": True})
    yield Sample((normals(rng, 0, 2),), {"axis": 0})
    yield Sample((integers(rng, 1, 5, 4, dtype="int8"),))
    yield Sample((normals(rng, 4, dtype="bfloat16"),), gradient=False)
    yield Bad((normals(rng, 2, 2),), error=ShapeError, text="needs an axis")
    yield Bad((normals(rng, 2),), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")


@op(
    kernel=_product_kernel,
    lower=_product_lower,
    infer=_product_infer,
    vjp=RuleFromLowering("cumulative_prod"),
    saves=Saves(x="all"),
    flops=input_elements,
    samples=_product_samples,
    traits=("full_precision",),
    method="cumulative_prod",
    ulp=16,
    onnx=No("CumProd is newer than the operators that the runtimes have"),
    padded=running(constant(1)),
)
def cumulative_prod(
    x: TensorLike,
    /,
    axis: int | None = None,
    *,
    dtype: Any = None,
    include_initial: bool = False,
    **other: Unpack[Other],
) -> Tensor:
    """Compute the product of all elements up to each position along an axis.

    float16 and bfloat16 accumulate in float32. Integers below 32 bits and bools give int32 or uint32.

    Args:
        x: one dimension at least.
        axis: the axis; needed if there are several.
        dtype: the dtype to cast to before multiplying.
        include_initial: whether to start with the product of nothing, 1.

    Returns:
        The shape of `x`, longer by one along the axis with `include_initial`.

    Raises:
        ShapeError: an axis out of range, or none given for several dimensions.

    Example:
        >>> import hybridflow as hf
        >>> hf.cumulative_prod([1, 2, 3, 4])
        Tensor([ 1,  2,  6, 24], dtype=int32)
    """
    if other:
        return respelled(cumulative_prod, locals())
    include_initial = truth("cumulative_prod", "include_initial", include_initial)
    tensor = accumulator(as_tensor(x), dtype)
    if axis is None and tensor.ndim != 1:
        raise ShapeError(f"cumulative_prod: needs an axis, there are {tensor.ndim} dimensions", got=str(tensor.spec),
                         hint="Give axis=...")
    along = normalize_axis("cumulative_prod", 0 if axis is None else axis, tensor.ndim)
    total = as_asked(bind(cumulative_prod.op, (tensor,), {"axis": along}), dtype)
    if not include_initial:
        return total
    widths = [(0, 0)] * tensor.ndim
    widths[along] = (1, 0)
    return pad(total, widths, 1)


# -- differences --------------------------------------------------------------------------------------------------


def diff(
    x: TensorLike,
    /,
    n: int = 1,
    axis: int = -1,
    prepend: TensorLike | None = None,
    append: TensorLike | None = None,
    **other: Unpack[Other],
) -> Tensor:
    """Subtract from every element its neighbour before it along an axis.

    Args:
        x: one dimension at least; numeric.
        n: how many times.
        axis: the axis.
        prepend, append: what to put before and after `x` along the axis first, of its dtype.

    Returns:
        The shape of `x`, shorter by `n` along the axis (but never below 0).

    Raises:
        ShapeError: an axis out of range.
        ArgumentError: a negative `n`.

    Example:
        >>> import hybridflow as hf
        >>> hf.diff([1, 4, 9, 16]), hf.diff([1, 4, 9, 16], n=2)
        (Tensor([3, 5, 7], dtype=int32), Tensor([2, 2], dtype=int32))
    """
    if other:
        return respelled(diff, locals())
    tensor = as_tensor(x)
    along = normalize_axis("diff", axis, tensor.ndim)
    if n < 0:
        raise ArgumentError(f"diff: {n} times", hint="Use 0 or more.")
    parts = [part for part in (prepend, tensor, append) if part is not None]
    if len(parts) > 1:
        tensor = concat(promote(*parts), axis=along)
    require_kind("diff", NUMERIC, tensor.spec)
    for _ in range(n):
        size = tensor.shape[along]
        less = size - 1 if size > 0 else 0
        after = bind(getitem.op, (tensor,), {"index": _from(tensor, along, 1 if size > 0 else 0, less)})
        tensor = subtract(after, bind(getitem.op, (tensor,), {"index": _from(tensor, along, 0, less)}))
    return tensor


def _from(x: Tensor, axis: int, start: int, size: Any) -> Any:
    """Return the static index of a part along an axis; an empty part starts at 0."""
    entry = (start, size, 1) if size != 0 else (0, 0, 1)
    return tuple([entry if i == axis else (0, whole, 1) for i, whole in enumerate(x.shape)])


__all__ = ["cumulative_prod", "diff"]

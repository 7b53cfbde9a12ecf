"""Helpers that the neural-network ops share: compute dtypes, selection by a mask, and the operands of losses."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dims import same_shape
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, DType
from hybridflow.core.errors import BroadcastWarning, message
from hybridflow.core.node import user_place, where_file_line
from hybridflow.core.op import Sample, Saves, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    as_tensor,
    broadcast_shapes,
    broadcasting,
    call_text,
    make_spec,
    no_flops,
    normals,
    promote_float,
)

FLOAT32: DType = np.dtype(np.float32)
REAL_FLOAT = ("float",)
_BITS = {2: np.int16, 4: np.int32, 8: np.int64}


def compute_dtype(dtype: DType) -> DType:
    """Return the dtype of a composite's inner computation: float32 for float16 and bfloat16."""
    return FLOAT32 if dtype.num in LOW_PRECISION else dtype


def wide(F: Any, value: Any) -> Any:
    """Return a value in its compute dtype, inside a gradient rule."""
    dtype = compute_dtype(value.dtype)
    return value if value.dtype == dtype else F.astype(value, dtype=dtype)


def narrow(F: Any, value: Any, dtype: DType) -> Any:
    """Round a gradient back to the dtype of its input."""
    return value if value.dtype == dtype else F.astype(value, dtype=dtype)


def lower_wide(x: Any) -> Any:
    """Return a JAX value in its compute dtype."""
    dtype = compute_dtype(x.dtype)
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


def lower_narrow(x: Any, dtype: Any) -> Any:
    """Round a JAX value to a dtype."""
    return x if x.dtype == dtype else lax.convert_element_type(x, dtype)


# -- selection by a mask ------------------------------------------------------------------------------------------


def kept(x: Any, mask: Any) -> Any:
    """Return a NumPy array with 0 where a mask of the same shape is False."""
    # Multiplying the bit patterns by 0 or 1 is several times faster than np.where, and exact for inf and NaN.
    bits = _BITS.get(x.dtype.itemsize) if x.dtype.kind == "f" else None
    if bits is None:
        return np.where(mask, x, np.zeros((), x.dtype))
    return np.multiply(x.view(bits), mask).view(x.dtype)


def _keep_vjp(F: Any, g: Any, y: Any, x: Any, mask: Any) -> Any:
    del y, x
    return lambda: F.keep_where(g, mask), None


def _keep_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), normals(rng, 3, 4) > 0))
    yield Sample((normals(rng), np.asarray(True)))
    yield Sample((normals(rng, 5, dtype=np.float64), normals(rng, 5) > 0))
    yield Sample((np.asarray([np.inf, np.nan], np.float32), np.asarray([False, True])), gradient=False)


@op(
    name="keep_where",
    kernel=kept,
    lower=broadcasting(lambda x, mask: lax.select(mask, x, lax.full_like(x, 0))),
    infer=lambda x, mask: make_spec(x.shape, x.dtype),
    vjp=_keep_vjp,
    saves=Saves(x=(1,)),
    flops=no_flops,
    samples=_keep_samples,
    traits=("pointwise", "inner"),
    ulp=0,
    onnx=lambda o, x, mask: o.Where(mask, x, 0),
)
def keep_where(x: TensorLike, mask: TensorLike) -> Tensor:
    """Keep elements where a mask of the same shape is True, and put 0 elsewhere (gradient rules use it)."""
    return bind(keep_where.op, (as_tensor(x), as_tensor(mask)))


_WARNED: set[tuple[Any, ...]] = set()


def paired(op: str, prediction: TensorLike, target: TensorLike) -> tuple[Tensor, Tensor]:
    """Return the operands of an elementwise loss; warn, once per line, if both must grow to broadcast.

    Such operands are nearly always a column and a vector by mistake; the loss would compare every pair of elements.
    """
    first, second = promote_float(prediction, target)
    a, b = first._value, second._value
    if a is not None and b is not None and a.shape == b.shape:
        return first, second  # the case of nearly every eager call
    if not same_shape(first.shape, second.shape):
        shape = broadcast_shapes(op, first.shape, second.shape)
        place = where_file_line(user_place())
        grown = not same_shape(shape, first.shape) and not same_shape(shape, second.shape)
        if grown and place is not None and (op, *place) not in _WARNED:
            _WARNED.add((op, *place))
            text = message(
                f"{op}: prediction {first.shape} and target {second.shape} broadcast to {shape}, larger than both",
                got=call_text(op, first.spec, second.spec),
                hint="Give both one shape: prediction[..., 0], or target[..., None].",
            )
            warnings.warn_explicit(text, BroadcastWarning, *place)
    return first, second

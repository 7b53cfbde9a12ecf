"""Scaled dot-product attention as one operation."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.autocast import without_autocast
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_, kind_of
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, op
from hybridflow.core.tensor import TensorMethods
from hybridflow.ops.choice import where
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_lowered,
    broadcast_shapes,
    call_text,
    cast_to,
    make_spec,
    normals,
    promote_float,
    require_kind,
    truth,
    unbroadcast,
)
from hybridflow.ops.comparison import equal, greater_equal, logical_and
from hybridflow.ops.elementwise import stop_gradient
from hybridflow.ops.host_rows import extremum
from hybridflow.ops.matmul import matmul
from hybridflow.ops.nn.common import REAL_FLOAT, compute_dtype, lower_narrow, lower_wide, narrow, wide
from hybridflow.ops.nn.regularization import dropout as drop
from hybridflow.ops.onnx import in_range
from hybridflow.ops.padding_nn import attended, probabilities
from hybridflow.ops.ranges import arange
from hybridflow.ops.reductions import max as largest_of
from hybridflow.ops.reductions import sum as sum_of
from hybridflow.ops.shape import broadcast_to, expand_dims, matrix_transpose
from hybridflow.ops.summation import add_up
from hybridflow.ops.transcendental import exp
from hybridflow.ops.xla_algebra import float_sum

_NAME = "scaled_dot_product_attention"


# -- forward ------------------------------------------------------------------------------------------------------


def _kernel(
    query: Any, key: Any, value: Any, *mask: Any, is_causal: bool, scale: float, has_mask: bool, residuals: bool
) -> Any:
    del has_mask
    if value.shape[:-2] != query.shape[:-2]:
        raise ValueError("shapes that only NumPy would broadcast")  # `bind` then runs the shape rule, which says more
    scores = _kernel_scores(query, key, mask, is_causal, scale)
    largest = extremum(np.maximum, scores, (scores.ndim - 1,), True, -np.inf)
    # If a query may look at no key, the maximum of its scores is -inf; its probabilities become 0.
    largest = np.where(largest == -np.inf, scores.dtype.type(0), largest)
    scores -= largest
    p = np.exp(scores, out=scores)
    total = add_up(p, (p.ndim - 1,), True)
    p /= np.where(total == 0, scores.dtype.type(1), total)
    y = products.matmul(p, value)
    if not residuals:
        return y
    return y, np.where(total == 0, scores.dtype.type(np.inf), largest + np.log(total))[..., 0]


def _kernel_scores(query: Any, key: Any, mask: tuple[Any, ...], is_causal: bool, scale: float) -> Any:
    """Return the scores, -inf where a query may not look."""
    if key.shape[:-2] != query.shape[:-2] or (mask and mask[0].ndim > query.ndim):
        raise ValueError("shapes that only NumPy would broadcast")  # `bind` then runs the shape rule, which says more
    scores = products.matmul(query * query.dtype.type(scale), np.swapaxes(key, -1, -2))
    allowed = mask[0] if mask and mask[0].dtype == np.bool_ else None
    if mask and allowed is None:
        scores += mask[0]
    if is_causal:
        causal = np.tri(*scores.shape[-2:], dtype=np.bool_)
        allowed = causal if allowed is None else allowed & causal
    hidden = scores.dtype.type(-np.inf)
    if allowed is not None:
        # Faster than np.where, with the same result: a NaN that becomes inf here makes its row NaN below.
        np.fmin(scores, np.where(allowed, -hidden, hidden), out=scores)
    return scores


def _kernel_probabilities(
    query: Any, key: Any, log_sum: Any, *mask: Any, is_causal: bool, scale: float, has_mask: bool
) -> Any:
    del has_mask
    if log_sum.shape != query.shape[:-1]:
        raise ValueError("shapes that only NumPy would broadcast")
    scores = _kernel_scores(query, key, mask, is_causal, scale)
    scores -= log_sum[..., None]
    return np.exp(scores, out=scores)


def _lower(
    query: Any, key: Any, value: Any, *mask: Any, is_causal: bool, scale: float, has_mask: bool, residuals: bool
) -> Any:
    del has_mask
    full = lower_wide(query)
    scores = _lower_scores(lax.mul(full, lax.full_like(full, scale)), lower_wide(key), mask, is_causal)
    p, log_sum = _lower_probabilities(scores)
    y = lower_narrow(matmul.op.lower(p, lower_wide(value)), query.dtype)
    return (y, log_sum) if residuals else y


def _lower_again(
    query: Any, key: Any, log_sum: Any, *mask: Any, is_causal: bool, scale: float, has_mask: bool
) -> Any:
    del has_mask
    # Scale the key, not the query: XLA would recognise the forward pass's product and keep it for the backward pass.
    full = lower_wide(key)
    scores = _lower_scores(lower_wide(query), lax.mul(full, lax.full_like(full, scale)), mask, is_causal)
    return lax.exp(lax.sub(scores, lax.broadcast_in_dim(log_sum, scores.shape, tuple(range(log_sum.ndim)))))


def _lower_scores(query: Any, key: Any, mask: tuple[Any, ...], is_causal: bool) -> Any:
    ndim = query.ndim
    scores = matmul.op.lower(query, lax.transpose(key, (*range(ndim - 2), ndim - 1, ndim - 2)))
    hidden = lax.full_like(scores, -np.inf)
    if mask and mask[0].dtype == bool_:
        scores = lax.select(broadcast_lowered(mask[0], scores.shape), scores, hidden)
    elif mask:
        scores = lax.add(scores, broadcast_lowered(lower_wide(mask[0]), scores.shape))
    if is_causal:
        rows, columns = (lax.broadcasted_iota(np.int32, scores.shape, scores.ndim - side) for side in (2, 1))
        scores = lax.select(lax.ge(rows, columns), scores, hidden)
    return scores


def _lower_probabilities(scores: Any) -> tuple[Any, Any]:
    """Return the softmax of scores and the log of each row's sum of exponentials; inf where all keys are hidden."""
    axis = scores.ndim - 1

    def spread(row: Any) -> Any:
        return lax.broadcast_in_dim(row, scores.shape, tuple(range(axis)))

    largest = lax.reduce_max(scores, axes=(axis,))
    largest = lax.select(lax.eq(largest, lax.full_like(largest, -np.inf)), lax.full_like(largest, 0), largest)
    p = lax.exp(lax.sub(scores, spread(largest)))
    total = float_sum(p, (axis,))
    nothing = lax.eq(total, lax.full_like(total, 0))
    log_sum = lax.select(nothing, lax.full_like(total, np.inf), lax.add(largest, lax.log(total)))
    return lax.div(p, spread(lax.select(nothing, lax.full_like(total, 1), total))), log_sum


# -- shapes -------------------------------------------------------------------------------------------------------


def _require(condition: bool, what: str, specs: tuple[TensorSpec, ...], hint: str) -> None:
    if not condition:
        raise ShapeError(f"{_NAME}: {what}", got=call_text(_NAME, *specs), hint=hint)


def _infer(
    query: TensorSpec,
    key: TensorSpec,
    value: TensorSpec,
    *mask: TensorSpec,
    is_causal: bool,
    scale: float,
    has_mask: bool,
    residuals: bool,
) -> Any:
    del is_causal, scale, has_mask
    specs = (query, key, value, *mask)
    require_kind(_NAME, REAL_FLOAT, query, key, value)
    if mask and mask[0].dtype != bool_ and mask[0].dtype != query.dtype:
        raise DTypeError(f"{_NAME}: the mask is {mask[0].dtype}, the query {query.dtype}")
    _require(
        query.shape[-1] == key.shape[-1], f"query has dim {query.shape[-1]}, key {key.shape[-1]}", specs,
        "Query and key need the same last axis.",
    )
    _require(
        key.shape[-2] == value.shape[-2], f"key has length {key.shape[-2]}, value {value.shape[-2]}", specs,
        "Key and value need the same length.",
    )
    batch = broadcast_shapes(_NAME, query.shape[:-2], key.shape[:-2], value.shape[:-2])
    _require(
        query.shape[:-2] == batch and key.shape[:-2] == batch and value.shape[:-2] == batch,
        "query, key and value have different leading axes", specs, "hf.broadcast_to them to one shape.",
    )
    scores = (*batch, query.shape[-2], key.shape[-2])
    if mask:
        _require(
            broadcast_shapes(_NAME, mask[0].shape, scores) == scores,
            f"the mask {mask[0].shape} does not broadcast to (..., query length, key length) = {scores}", specs,
            "Reshape the mask.",
        )
    y = make_spec((*batch, query.shape[-2], value.shape[-1]), query.dtype)
    return (y, make_spec(scores[:-1], compute_dtype(query.dtype))) if residuals else y


def _infer_probabilities(
    query: TensorSpec, key: TensorSpec, log_sum: TensorSpec, *mask: TensorSpec, **attrs: Any
) -> TensorSpec:
    del mask, attrs
    _require(
        query.shape[-1] == key.shape[-1] and log_sum.shape == query.shape[:-1],
        "the key and the sums do not belong to the query", (query, key, log_sum), "They come from a forward pass.",
    )
    return make_spec((*query.shape[:-1], key.shape[-2]), compute_dtype(query.dtype))


# -- gradient -----------------------------------------------------------------------------------------------------


def _swap(F: Any, x: Any) -> Any:
    ndim = len(x.shape)
    return F.permute_dims(x, axes=(*range(ndim - 2), ndim - 1, ndim - 2))


def _vjp(
    F: Any,
    g: Any,
    y: Any,
    query: Any,
    key: Any,
    value: Any,
    *mask: Any,
    is_causal: bool,
    scale: float,
    has_mask: bool,
) -> Any:
    # Compute the probabilities again: keeping them would take memory that is quadratic in the length.
    p = F.attention_probabilities(
        query, key, y[1], *mask, is_causal=is_causal, scale=scale, has_mask=has_mask
    )
    dtype, g = query.dtype, wide(F, g)
    of_p = F.matmul(g, _swap(F, wide(F, value)))
    product = of_p * p
    # Hidden positions have p = 0, and so no gradient.
    of_scores = product - p * F.sum(product, axis=(len(p.shape) - 1,), keepdims=True)

    def of_mask() -> Any:
        return narrow(F, unbroadcast(F, of_scores, mask[0]), mask[0].dtype)

    return (
        lambda: narrow(F, F.matmul(of_scores, wide(F, key)) * scale, dtype),
        lambda: narrow(F, F.matmul(_swap(F, of_scores), wide(F, query)) * scale, dtype),
        lambda: narrow(F, F.matmul(_swap(F, p), g), dtype),
        *[of_mask if kind_of(one.dtype) == "float" else None for one in mask],
    )


def _probabilities_vjp(
    F: Any,
    g: Any,
    y: Any,
    query: Any,
    key: Any,
    log_sum: Any,
    *mask: Any,
    is_causal: bool,
    scale: float,
    has_mask: bool,
) -> Any:
    del log_sum, is_causal, has_mask
    of_scores = g * y

    def of_mask() -> Any:
        return narrow(F, unbroadcast(F, of_scores, mask[0]), mask[0].dtype)

    return (
        lambda: narrow(F, F.matmul(of_scores, wide(F, key)) * scale, query.dtype),
        lambda: narrow(F, F.matmul(_swap(F, of_scores), wide(F, query)) * scale, key.dtype),
        lambda: -F.sum(of_scores, axis=(len(y.shape) - 1,), keepdims=False),
        *[of_mask if kind_of(one.dtype) == "float" else None for one in mask],
    )


def _scores(query: TensorSpec, key: TensorSpec) -> Any:
    return math.prod(query.shape[:-1]) * key.shape[-2]


def _macs(y: Any, query: TensorSpec, key: TensorSpec, value: TensorSpec, *mask: TensorSpec, **attrs: Any) -> Any:
    del y, mask, attrs
    return _scores(query, key) * (query.shape[-1] + value.shape[-1])


def _softmax_flops(y: Any, query: TensorSpec, key: TensorSpec, *rest: TensorSpec, **attrs: Any) -> Any:
    del y, rest, attrs
    return 5 * _scores(query, key)


def _onnx_scores(o: Any, query: Any, key: Any, mask: tuple[Any, ...], is_causal: bool, scale: float) -> Any:
    ndim = query.ndim
    turned = o.Transpose(key, perm=[*range(ndim - 2), ndim - 1, ndim - 2])
    scores = o.MatMul(query * scale, turned)
    if mask:
        scores = o.Where(mask[0], scores, -np.inf) if mask[0].dtype == bool_ else scores + mask[0]
    if is_causal:
        rows, columns = in_range(o, 0, query.shape[-2]), in_range(o, 0, key.shape[-2])
        scores = o.Where(o.GreaterOrEqual(o.Unsqueeze(rows, o.ints([1])), columns), scores, -np.inf)
    return scores


def _probabilities_onnx(
    o: Any, query: Any, key: Any, log_sum: Any, *mask: Any, is_causal: bool, scale: float, has_mask: bool
) -> Any:
    del has_mask
    scores = _onnx_scores(o, query, key, mask, is_causal, scale)
    return o.Exp(scores - o.Unsqueeze(log_sum, o.ints([-1])))


def _probabilities_samples(rng: np.random.Generator) -> Any:
    q, k, sums = normals(rng, 2, 4, 3), normals(rng, 2, 5, 3), normals(rng, 2, 4) + 2
    plain = {"is_causal": False, "scale": 0.5, "has_mask": False}
    yield Sample((q, k, sums), plain)
    yield Sample((q[0], k[0], sums[0]), {**plain, "is_causal": True})
    yield Sample((q, k, sums, normals(rng, 4, 5) > -0.5), {**plain, "has_mask": True})
    yield Sample((q, k, sums, normals(rng, 2, 4, 5)), {**plain, "has_mask": True, "is_causal": True})
    yield Sample((q.astype("bfloat16"), k.astype("bfloat16"), sums), plain, gradient=False)
    yield Bad((q, k[..., :2], sums), plain, error=ShapeError, text="do not belong to the query")
    yield Bad((q, k, sums[:, :2]), plain, error=ShapeError, text="do not belong to the query")


@op(
    kernel=_kernel_probabilities,
    lower=_lower_again,
    infer=_infer_probabilities,
    vjp=_probabilities_vjp,
    saves=Saves(x=(0, 1), y=True),
    flops=MultiplyAdds(
        lambda y, query, key, *rest, **attrs: _scores(query, key) * query.shape[-1],
        lambda y, query, key, *rest, **attrs: 3 * _scores(query, key),
    ),
    samples=_probabilities_samples,
    traits=("inner",),
    ulp=64,
    onnx=_probabilities_onnx,
    padded=probabilities,
)
def attention_probabilities(
    query: TensorLike,
    key: TensorLike,
    log_sum: TensorLike,
    *mask: TensorLike,
    is_causal: bool,
    scale: float,
    has_mask: bool,
) -> Tensor:
    """Compute the attention weights again, given the logs of the sums that the forward pass kept.

    Args:
        query, key, mask, is_causal, scale: as in `scaled_dot_product_attention`, with equal leading axes.
        log_sum: ``(..., n)``, the log of the sum of the exponentials of each query's scores.
        has_mask: whether there is a mask.

    Returns:
        ``(..., n, m)``, in float32 for float16 and bfloat16.
    """
    attrs = {"is_causal": is_causal, "scale": scale, "has_mask": has_mask}
    return bind(attention_probabilities.op, tuple(map(as_tensor, (query, key, log_sum, *mask))), attrs)


def _samples(rng: np.random.Generator) -> Any:
    def triple(*batch: int, dtype: Any = np.float32) -> Any:
        return (
            normals(rng, *batch, 4, 3, dtype=dtype),
            normals(rng, *batch, 5, 3, dtype=dtype),
            normals(rng, *batch, 5, 2, dtype=dtype),
        )

    yield Sample(triple(2, 3))
    yield Sample(triple(), {"is_causal": True})
    yield Sample((*triple(2, 3), normals(rng, 2, 1, 4, 5) > -0.5), {"scale": 0.3})
    yield Sample((*triple(2, 3), normals(rng, 4, 5)), {"is_causal": True})
    yield Sample((*triple(2), np.arange(4)[:, None] > np.zeros((4, 5))))
    yield Sample(triple(2, dtype=np.float64))
    yield Sample(triple(2, dtype="bfloat16"), gradient=False)
    q, k, v = triple(2)
    yield Bad((q, k[..., :2], v), error=ShapeError, text="query has dim 3, key 2")
    yield Bad((q, k, v[:, :4]), error=ShapeError, text="key has length 5, value 4")
    yield Bad((q, k, v, np.ones((3, 5), bool)), error=ShapeError, text="do not broadcast")
    yield Bad((q[0, 0], k[0], v[0]), error=ShapeError, text="need 2 dimensions")
    yield Bad((normals(rng, 3, 4, 3), k, v), error=ShapeError, text="size 3 against 2")


def _onnx(
    o: Any,
    query: Any,
    key: Any,
    value: Any,
    *mask: Any,
    is_causal: bool,
    scale: float,
    has_mask: bool,
    residuals: bool = False,
) -> Any:
    scores = _onnx_scores(o, query, key, mask, is_causal, scale)
    p = o.Softmax(scores, axis=-1)
    if has_mask:  # a query that may look at no key
        p = o.Where(o.Equal(o.ReduceMax(scores, o.ints([-1]), keepdims=1), -np.inf), 0, p)
    y = o.MatMul(p, value)
    if not residuals:
        return y
    log_sum = o.ReduceLogSumExp(scores, o.ints([-1]), keepdims=0)
    return y, o.Where(o.Equal(log_sum, -np.inf), np.inf, log_sum) if has_mask else log_sum


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=_vjp,
    saves=Saves(x="all", hidden=1),
    flops=MultiplyAdds(_macs, _softmax_flops),
    samples=_samples,
    traits=("low_precision",),
    ulp=64,
    onnx=_onnx,
    padded=attended,
)
def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    mask: TensorLike | None = None,
    *,
    is_causal: bool = False,
    scale: TensorLike | None = None,
    dropout: float = 0.0,
    **other: Unpack[Other],
) -> Tensor:
    """Average the values for each query, weighted by the softmax of the query's products with the keys.

    Args:
        query: ``(..., heads, n, dim)``, floating-point.
        key: ``(..., heads, m, dim)``; leading axes broadcast.
        value: ``(..., heads, m, dim_v)``; leading axes broadcast.
        mask: a tensor that broadcasts to ``(..., heads, n, m)``: bool, True where a query may look at a key, or
            floating-point and added to the scores.
        is_causal: whether a query may look only at keys up to its own position.
        scale: the factor of the scores, a tensor if gradients are to go to it; ``1 / sqrt(dim)`` if not given.
        dropout: the probability that a weight is dropped, as in `hf.nn.dropout`. Attention is then several operations,
            and the weights, whose size is quadratic in the length, are kept for the gradient.

    Returns:
        ``(..., heads, n, dim_v)``. A query that may look at no key gets zeros. float16 and bfloat16 are computed in
        float32 and rounded once.

    Raises:
        ShapeError: the sizes do not match.
        DTypeError: the mask has integers.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.asarray([[1.0, 0.0], [0.0, 1.0]])
        >>> hf.nn.scaled_dot_product_attention(x, x, x, is_causal=True)[0]
        Tensor([1., 0.], dtype=float32)

    Reference:
        Vaswani et al., "Attention is all you need", 2017.
    """
    if other:
        return respelled(scaled_dot_product_attention, locals())
    is_causal = truth("scaled_dot_product_attention", "is_causal", is_causal)
    q, k, v = promote_float(query, key, value)
    _require(
        min(q.ndim, k.ndim, v.ndim) >= 2, "query, key and value need 2 dimensions: length and dim",
        (q.spec, k.spec, v.spec), "Shapes are (..., length, dim).",
    )
    batch = broadcast_shapes(_NAME, q.shape[:-2], k.shape[:-2], v.shape[:-2])
    inputs = tuple([x if x.shape[:-2] == batch else broadcast_to(x, (*batch, *x.shape[-2:])) for x in (q, k, v)])
    if mask is not None:
        given = as_tensor(mask)
        if kind_of(given.dtype) not in ("bool", "float"):
            raise DTypeError(f"{_NAME}: the mask is {given.dtype}; it must be bool or floating-point",
                             got=call_text(_NAME, q.spec, k.spec, v.spec, given.spec),
                             hint="Cast it with .astype(hf.bool).")
        inputs = (*inputs, given if given.dtype == bool_ else cast_to(given, q.dtype))
    if scale is None:
        scale = 1 / math.sqrt(int(q.shape[-1])) if q.shape[-1] != 0 else 1.0
    if isinstance(scale, TensorMethods):
        inputs, scale = (inputs[0] * cast_to(as_tensor(scale), q.dtype), *inputs[1:]), 1.0
    attrs = {"is_causal": is_causal, "scale": float(scale), "has_mask": mask is not None}
    if dropout:
        return _with_dropout(inputs, is_causal, float(scale), dropout)
    return bind(scaled_dot_product_attention.op, inputs, attrs)


def _with_dropout(inputs: tuple[Tensor, ...], is_causal: bool, scale: float, rate: float) -> Tensor:
    """Compute attention with dropout of its weights, in the same precision as without dropout."""
    casts = current().autocast
    given = inputs if casts is None else casts(scaled_dot_product_attention.op, inputs)
    with without_autocast():
        dtype = given[0].dtype
        query, key, value = [cast_to(one, compute_dtype(dtype)) for one in given[:3]]
        scores: Any = matmul(query * scale, matrix_transpose(key))
        allowed: Any = None
        for mask in given[3:]:
            if mask.dtype == bool_:
                allowed = mask
            else:
                scores = scores + cast_to(mask, scores.dtype)
        if is_causal:
            rows, columns = arange(query.shape[-2]), arange(key.shape[-2])
            causal = greater_equal(expand_dims(rows, axis=1), columns)
            allowed = causal if allowed is None else logical_and(allowed, causal)
        if allowed is not None:
            scores = where(allowed, scores, -math.inf)
        largest = stop_gradient(largest_of(scores, axis=-1, keepdims=True))
        p = exp(scores - where(equal(largest, -math.inf), 0.0, largest))
        total = sum_of(p, axis=-1, keepdims=True)
        p = p / where(equal(total, 0.0), 1.0, total)  # a query that may look at no key gets zeros
        return cast_to(matmul(drop(p, rate), value), dtype)

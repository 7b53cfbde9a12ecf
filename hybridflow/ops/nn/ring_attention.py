"""Attention over sequences whose parts lie on the devices along a mesh axis: keys and values go round in a ring.

As in `ops.collectives`, a kernel takes the values of all devices along the axis, stacked along a new first axis.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import MultiplyAdds, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor
from hybridflow.ops.matmul import matmul
from hybridflow.ops.nn.attention import attention_probabilities, scaled_dot_product_attention
from hybridflow.ops.nn.common import compute_dtype, lower_narrow, lower_wide

_TESTED = No("only inside hf.shard_map; tested with hf.distribute.ring_attention")
_ONNX = No("ONNX has no devices")


def _joined(x: Any) -> Any:
    """Return the whole of parts: sequences are joined along axis -2, in float32 at least."""
    whole = np.concatenate(list(x), axis=-2)
    return whole.astype(compute_dtype(whole.dtype))


def _parts(x: Any, size: int, axis: int, dtype: Any) -> Any:
    return np.stack(np.split(x, size, axis=axis)).astype(dtype)


def _kernel(query: Any, key: Any, value: Any, *, axis: str, size: int, is_causal: bool, scale: float) -> Any:
    del axis
    attend: Any = scaled_dot_product_attention.op.kernel
    y, log_sum = attend(
        *map(_joined, (query, key, value)), is_causal=is_causal, scale=scale, has_mask=False, residuals=True
    )
    return _parts(y, size, -2, query.dtype), _parts(log_sum, size, -1, log_sum.dtype)


def _kernel_gradient(
    query: Any, key: Any, value: Any, y: Any, log_sum: Any, g: Any, *, axis: str, size: int, is_causal: bool,
    scale: float,
) -> Any:
    del axis
    q, k, v, out, given = map(_joined, (query, key, value, y, g))
    again: Any = attention_probabilities.op.kernel
    sums = np.concatenate(list(log_sum), axis=-1)
    p = again(q, k, sums, is_causal=is_causal, scale=scale, has_mask=False)
    of_p = given @ np.swapaxes(v, -1, -2)
    of_scores = p * (of_p - np.sum(given * out, axis=-1, keepdims=True)) * scale
    made = of_scores @ k, np.swapaxes(of_scores, -1, -2) @ q, np.swapaxes(p, -1, -2) @ given
    return tuple([_parts(one, size, -2, like.dtype) for one, like in zip(made, (query, key, value), strict=True)])


# -- lowering -----------------------------------------------------------------------------------------------------


def _turned(x: Any) -> Any:
    return lax.transpose(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def _rows(row: Any, like: Any) -> Any:
    """Return a number per query, spread over the last axis of `like`."""
    return lax.broadcast_in_dim(row, like.shape, tuple(range(row.ndim)))


class _Ring:
    """The scores of a device's queries and of the keys that it has at a step."""

    def __init__(self, query: Any, axis: str, size: int, is_causal: bool, scale: float) -> None:
        self.query, self.axis, self.size, self.is_causal = lower_wide(query), axis, size, is_causal
        self.scale = self.query.dtype.type(scale)
        self.index = lax.axis_index(axis)
        self.pairs = [(number, (number + 1) % size) for number in range(size)]

    def scores(self, key: Any, step: Any) -> Any:
        """Return the scores, -inf where a query may not look."""
        scores = matmul.op.lower(self.query * self.scale, _turned(lower_wide(key)))
        if not self.is_causal:
            return scores
        source = lax.rem(self.index - step + self.size, np.int32(self.size))  # whose keys these are
        rows, columns = [lax.broadcasted_iota(np.int32, scores.shape, scores.ndim - side) for side in (2, 1)]
        rows, columns = rows + self.index * scores.shape[-2], columns + source * scores.shape[-1]
        return lax.select(rows >= columns, scores, lax.full_like(scores, -np.inf))

    def sent(self, *values: Any) -> tuple[Any, ...]:
        """Send values to the next device."""
        return values if self.size == 1 else tuple([lax.ppermute(one, self.axis, self.pairs) for one in values])


def _lower(query: Any, key: Any, value: Any, *, axis: str, size: int, is_causal: bool, scale: float) -> Any:
    ring = _Ring(query, axis, size, is_causal, scale)

    def attend(state: Any, key: Any, value: Any, step: Any) -> Any:
        total, largest, sums = state
        scores = ring.scores(key, step)
        most = lax.max(largest, lax.reduce_max(scores, axes=(scores.ndim - 1,)))
        safe = lax.select(lax.eq(most, lax.full_like(most, -np.inf)), lax.full_like(most, 0), most)
        before, p = lax.exp(largest - safe), lax.exp(scores - _rows(safe, scores))
        added = matmul.op.lower(p, lower_wide(value))
        total = total * _rows(before, total) + added
        return total, most, sums * before + lax.reduce_sum(p, axes=(p.ndim - 1,))

    def turn(carry: Any, step: Any) -> Any:
        state, key, value = carry
        state = attend(state, key, value, step)
        return (state, *ring.sent(key, value)), None

    shape, dtype = query.shape[:-1], ring.query.dtype
    start = (
        lax.full((*shape, value.shape[-1]), 0, dtype), lax.full(shape, -np.inf, dtype), lax.full(shape, 0, dtype)
    )
    (state, key, value), _ = lax.scan(turn, (start, key, value), np.arange(size - 1, dtype=np.int32))
    total, largest, sums = attend(state, key, value, np.int32(size - 1))
    return lower_narrow(total / _rows(sums, total), query.dtype), largest + lax.log(sums)


def _lower_gradient(
    query: Any, key: Any, value: Any, y: Any, log_sum: Any, g: Any, *, axis: str, size: int, is_causal: bool,
    scale: float,
) -> Any:
    ring = _Ring(query, axis, size, is_causal, scale)
    given = lower_wide(g)
    share = lax.reduce_sum(given * lower_wide(y), axes=(y.ndim - 1,))

    def add(state: Any, step: Any) -> Any:
        key, value, of_query, of_key, of_value = state
        scores = ring.scores(key, step)
        p = lax.exp(scores - _rows(log_sum, scores))
        of_p = matmul.op.lower(given, _turned(lower_wide(value)))
        of_scores = p * (of_p - _rows(share, of_p)) * ring.scale
        return (
            key, value, of_query + matmul.op.lower(of_scores, lower_wide(key)),
            of_key + matmul.op.lower(_turned(of_scores), ring.query),
            of_value + matmul.op.lower(_turned(p), given),
        )

    def turn(state: Any, step: Any) -> Any:
        key, value, of_query, of_key, of_value = add(state, step)
        key, value, of_key, of_value = ring.sent(key, value, of_key, of_value)
        return (key, value, of_query, of_key, of_value), None

    zeros = [lax.full(one.shape, 0, ring.query.dtype) for one in (query, key, value)]
    state, _ = lax.scan(turn, (key, value, *zeros), np.arange(size - 1, dtype=np.int32))
    _, _, of_query, of_key, of_value = add(state, np.int32(size - 1))
    of_key, of_value = ring.sent(of_key, of_value)  # the last step home
    made = of_query, of_key, of_value
    return tuple([lower_narrow(one, like.dtype) for one, like in zip(made, (query, key, value), strict=True)])


# -- the records --------------------------------------------------------------------------------------------------


def _infer(query: TensorSpec, key: TensorSpec, value: TensorSpec, *, axis: str, size: int, **attrs: Any) -> Any:
    del axis, size
    attend: Any = scaled_dot_product_attention.op
    return attend.infer(query, key, value, **attrs, has_mask=False, residuals=True)


def _infer_gradient(query: TensorSpec, key: TensorSpec, value: TensorSpec, *rest: TensorSpec, **attrs: Any) -> Any:
    del rest, attrs
    return tuple([make_spec(one.shape, one.dtype) for one in (query, key, value)])


def _vjp(F: Any, g: Any, y: Any, query: Any, key: Any, value: Any, **attrs: Any) -> Any:
    if g[1] is not None:
        raise NotImplementedError("nothing but its gradient rule reads the sums")
    return F.ring_attention_gradient(query, key, value, y[0], y[1], g[0], **attrs)


def _products(y: Any, query: TensorSpec, key: TensorSpec, value: TensorSpec, *, size: int, **attrs: Any) -> Any:
    del y, attrs
    return math.prod(query.shape[:-1]) * key.shape[-2] * size * (query.shape[-1] + value.shape[-1])


def _products_gradient(
    y: Any, query: TensorSpec, key: TensorSpec, value: TensorSpec, *rest: TensorSpec, size: int, **attrs: Any
) -> Any:
    del y, rest, attrs
    return math.prod(query.shape[:-1]) * key.shape[-2] * size * (3 * query.shape[-1] + 2 * value.shape[-1])


def run_ring_attention(query: Tensor, key: Tensor, value: Tensor, **attrs: Any) -> Any:
    """Return the attention of each device's queries to the keys of all devices, and the logs of the sums.

    Args:
        query, key, value: each device's parts, with equal leading axes; as in `scaled_dot_product_attention`.
        **attrs: ``axis``, its ``size``, ``is_causal`` and ``scale``.
    """
    return bind(RING_ATTENTION, (query, key, value), attrs)


def run_ring_attention_gradient(*xs: Tensor, **attrs: Any) -> Any:
    """Return the gradients of query, key and value, given these, the result, the sums and the result's gradient."""
    return bind(RING_ATTENTION_GRADIENT, xs, attrs)


RING_ATTENTION = register(
    Op(
        "ring_attention", _kernel, _lower, _infer, _vjp, saves=Saves(x="all", y=True), flops=MultiplyAdds(_products),
        samples=_TESTED, traits=frozenset({"collective", "inner", "low_precision"}), public=run_ring_attention,
        onnx=_ONNX, ulp=64,
    )
)
RING_ATTENTION_GRADIENT = register(
    Op(
        "ring_attention_gradient", _kernel_gradient, _lower_gradient, _infer_gradient,
        No("ring attention has first-order gradients; compile the function without mesh= for higher ones"),
        flops=MultiplyAdds(_products_gradient), samples=_TESTED, traits=frozenset({"collective", "inner"}),
        public=run_ring_attention_gradient, onnx=_ONNX, ulp=64,
    )
)

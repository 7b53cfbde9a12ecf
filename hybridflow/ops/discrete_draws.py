"""The operations behind the discrete draws of generators, permutations among them; see `draws`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, bool_, int32, kind_of, uint32, uint64
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Stops, op
from hybridflow.ops.blocks import drawn, each_for_itself, mapped, parts, rows_of
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_lowered,
    broadcast_shapes,
    make_spec,
    no_flops,
    normals,
)
from hybridflow.ops.draws import infer_draw, open_unit, require_state, state_sample, unit_of, word_of, working_dtype
from hybridflow.ops.onnx import DRAWS
from hybridflow.ops.padding_draws import drawn_by_position, drawn_classes, drawn_order
from hybridflow.ops.sizes import Shape
from hybridflow.ops.threefry import random_bits, random_words


def _bernoulli_lower(state: Any, p: Any, *, shape: Shape) -> Any:
    working = working_dtype(p.dtype)
    unit = unit_of(random_bits(state, shape, word_of(working)), working)
    return lax.lt(unit, broadcast_lowered(lax.convert_element_type(p, working), shape))


def _bernoulli_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), np.asarray(0.3, np.float32), (3, 4)))
    yield Sample((state_sample(rng), rng.random(4), (3, 4)))
    yield Bad((state_sample(rng), normals(rng, 2, 4), (4,)), error=ShapeError, text="of shape (2, 4) do not fit")


@op(
    kernel=each_for_itself(_bernoulli_lower),
    lower=_bernoulli_lower,
    infer=infer_draw("bernoulli", bool_),
    vjp=Stops("a draw of True or False has no gradient"),
    flops=no_flops,
    samples=_bernoulli_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_bernoulli(state: TensorLike, p: TensorLike, shape: Shape) -> Tensor:
    """Draw True with probability `p`."""
    return bind(random_bernoulli.op, (as_tensor(state), as_tensor(p)), {"shape": shape})


def _high_product(x: Any, y: Any) -> Any:
    """Return the upper word of the product of two unsigned words."""
    half = lax.full_like(x, x.dtype.itemsize * 4)
    mask = lax.full_like(x, 2 ** (x.dtype.itemsize * 4) - 1)
    x_low, x_high = lax.bitwise_and(x, mask), lax.shift_right_logical(x, half)
    y_low, y_high = lax.bitwise_and(y, mask), lax.shift_right_logical(y, half)
    first = lax.add(lax.mul(x_high, y_low), lax.shift_right_logical(lax.mul(x_low, y_low), half))
    second = lax.add(lax.mul(x_low, y_high), lax.bitwise_and(first, mask))
    carried = lax.add(lax.shift_right_logical(first, half), lax.shift_right_logical(second, half))
    return lax.add(lax.mul(x_high, y_high), carried)


def _integers_lower(state: Any, low: Any, span: Any, *, shape: Shape, dtype: Any) -> Any:
    if span.dtype == uint64:
        flat = random_bits(state, (2, *shape), uint64)
        high, rest = (lax.index_in_dim(flat, index, keepdims=False) for index in (0, 1))
    else:
        high, rest = random_words(state, shape)
    return _offset(high, rest, broadcast_lowered(low, shape), broadcast_lowered(span, shape), dtype=dtype)


def _integers_kernel(state: Any, low: Any, span: Any, *, shape: Shape, dtype: Any) -> Any:
    if span.dtype == uint32:
        return drawn(_integers_lower, state, low, span, shape=shape, dtype=dtype)
    high, rest = drawn(random_bits, state, shape=(2, *shape), dtype=uint64)
    return mapped(_offset, high, rest, low, span, dtype=dtype)


def _offset(high: Any, rest: Any, low: Any, span: Any, *, dtype: Any) -> Any:
    """Return random integers, uniform over the `span` values from `low` on.

    They are ``floor(bits * span / 2**64)`` for 64 random bits in two words (128 in two wide ones): a bias below
    2**-32.
    """
    word = span.dtype
    low_part = lax.mul(high, span)
    carry = lax.convert_element_type(lax.lt(lax.add(low_part, _high_product(rest, span)), low_part), word)
    offset = lax.add(_high_product(high, span), carry)
    # A span of 0 stands for all values of the word.
    offset = lax.select(lax.eq(span, lax.full_like(span, 0)), high, offset)
    return lax.convert_element_type(lax.add(low, offset), dtype)


def _integers_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), 0, 10, (3, 4), "int32"))
    yield Sample((state_sample(rng), -5, 6, (), "int8"))
    yield Sample((state_sample(rng), -(2**40), 2**40, (5,), "int64"))
    yield Sample((state_sample(rng), 0, 2**32, (4,), "uint32"))
    yield Bad((state_sample(rng), 3, 3, (2,), "int32"), error=ArgumentError, text="low must be less than high")
    yield Bad((state_sample(rng), 0, 300, (2,), "uint8"), error=ArgumentError, text="uint8 holds 0 to 255")
    yield Bad((state_sample(rng), 0, 3, (2,), "float32"), error=DTypeError, text="draws integers, not float32")


@op(
    kernel=_integers_kernel,
    lower=_integers_lower,
    infer=infer_draw("integers"),
    vjp=Stops("an integer has no gradient"),
    flops=no_flops,
    samples=_integers_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_integers(state: TensorLike, low: int, high: int, shape: Shape, dtype: Any) -> Tensor:
    """Draw integers from `low` up to but without `high`."""
    result_dtype = as_dtype(dtype)
    if kind_of(result_dtype) not in ("int", "uint"):
        raise DTypeError(f"integers: draws integers, not {result_dtype}", hint="Pass dtype=hf.int32, for example.")
    info = np.iinfo(result_dtype)
    if not low < high:
        raise ArgumentError(f"integers: low must be less than high, got {low} and {high}",
                            hint="`high` itself is never drawn.")
    if low < info.min or high - 1 > info.max:
        raise ArgumentError(f"integers: {result_dtype} holds {info.min} to {info.max}, not {low} to {high - 1}",
                            hint="Choose a wider dtype.")
    word = uint64 if result_dtype.itemsize == 8 else uint32
    modulus = 2 ** (word.itemsize * 8)
    start, span = np.asarray(low % modulus, word), np.asarray((high - low) % modulus, word)
    attrs = {"shape": shape, "dtype": result_dtype}
    return bind(random_integers.op, (as_tensor(state), as_tensor(start), as_tensor(span)), attrs)


def _permutation_lower(state: Any, *, shape: Shape, dtype: Any) -> Any:
    high, low = random_words(state, shape)
    return lax.sort((high, low, lax.iota(dtype, shape[0])), num_keys=2)[2]


def _permutation_kernel(state: Any, *, shape: Shape, dtype: Any) -> Any:
    bits = drawn(random_bits, state, shape=shape, dtype=uint64)
    return np.argsort(bits, kind="stable").astype(dtype)


def _permutation_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), 7))
    yield Sample((state_sample(rng), 0))


@op(
    kernel=_permutation_kernel,
    lower=_permutation_lower,
    infer=infer_draw("permutation"),
    vjp=Stops("an integer has no gradient"),
    flops=no_flops,
    samples=_permutation_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_order,
)
def random_permutation(state: TensorLike, n: Any) -> Tensor:
    """Draw an order of 0 to n - 1, by sorting 64 random bits each."""
    return bind(random_permutation.op, (as_tensor(state),), {"shape": (n,), "dtype": int32})


def _scores(state: Any, logits: Any, *, shape: Shape) -> Any:
    """Return logits plus Gumbel noise: the largest is distributed as their softmax."""
    working = working_dtype(logits.dtype)
    noise = lax.neg(lax.log(lax.neg(lax.log(open_unit(random_bits(state, shape, word_of(working)), working)))))
    return lax.add(noise, broadcast_lowered(lax.convert_element_type(logits, working), shape))


def _categorical_lower(state: Any, logits: Any, *, shape: Shape) -> Any:
    return lax.argmax(_scores(state, logits, shape=(*shape, logits.shape[-1])), len(shape), int32)


def _categorical_kernel(state: Any, logits: Any, *, shape: Shape) -> Any:
    _require_classes(logits)
    classes = logits.shape[-1]
    rows = rows_of(logits, shape)
    result = np.empty(len(rows), int32)
    for part in parts(len(rows), classes):
        some = rows[part]
        scores = drawn(_scores, state, some, shape=some.shape, first=part.start * classes)
        result[part] = np.argmax(scores, axis=-1)
    return result.reshape(shape)


def _require_classes(logits: Any) -> None:
    if not logits.shape or logits.shape[-1] == 0:
        raise ShapeError("categorical: logits need a last axis of at least one class", got=f"categorical({logits})")


def _categorical_infer(state: TensorSpec, logits: TensorSpec, *, shape: Shape) -> TensorSpec:
    require_state("categorical", state)
    _require_classes(logits)
    batch = logits.shape[:-1]
    if broadcast_shapes("categorical", tuple(shape), batch) != tuple(shape):
        raise ShapeError(f"categorical: logits of batch shape {batch} do not fit draws of shape {tuple(shape)}",
                         hint="The shape must end in the batch shape of the logits.")
    return make_spec(tuple(shape), int32)


def _categorical_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), normals(rng, 3, 5), (3,)))
    yield Sample((state_sample(rng), normals(rng, 5), (4, 2)))
    yield Sample((state_sample(rng), normals(rng, 5, dtype=np.float64), ()))
    yield Bad((state_sample(rng), normals(rng, 3, 5), ()), error=ShapeError, text="do not fit draws of shape ()")
    yield Bad((state_sample(rng), normals(rng), ()), error=ShapeError, text="at least one class")


@op(
    kernel=_categorical_kernel,
    lower=_categorical_lower,
    infer=_categorical_infer,
    vjp=Stops("an integer has no gradient"),
    flops=no_flops,
    samples=_categorical_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_classes,
)
def random_categorical(state: TensorLike, logits: TensorLike, shape: Shape) -> Tensor:
    """Draw classes with probabilities ``softmax(logits)``."""
    return bind(random_categorical.op, (as_tensor(state), as_tensor(logits)), {"shape": shape})

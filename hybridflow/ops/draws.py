"""The operations behind `hf.random`: each takes a generator's state and draws from the stream it stands for.

A draw is a function of its state alone, so its bits are the same eager and compiled; `random_advance` moves the
state's counter on. The kernels of draws run XLA too, in blocks (`blocks`), and NumPy where the arithmetic is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, bool_, float32, float64, int32, kind_of, uint32, uint64
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, message
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
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
    unbroadcast,
)
from hybridflow.ops.onnx import DRAWS
from hybridflow.ops.sizes import Shape
from hybridflow.ops.threefry import STATE_WORDS, random_bits, random_words

_NO_GRADIENT = Stops("a draw does not depend on its generator's state in a differentiable way")
_PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


# -- what draws share ---------------------------------------------------------------------------------------------


def working_dtype(dtype: Any) -> Any:
    """Return the dtype in which numbers of a dtype are computed."""
    return float64 if dtype == float64 else float32


def require_state(name: str, state: TensorSpec) -> None:
    """Raise unless a spec is that of a generator's state.

    Raises:
        ShapeError: another spec.
    """
    if state.dtype != uint32 or state.shape != (STATE_WORDS,):
        raise ShapeError(
            message(f"{name}: a generator's state is u32[{STATE_WORDS}], not {state}",
                    hint="Draw through hf.random.Generator.")
        )  # fmt: skip


def _infer_draw(name: str, fixed: Any = None) -> Callable[..., TensorSpec]:
    def infer(state: TensorSpec, *others: TensorSpec, shape: Shape, dtype: Any = fixed) -> TensorSpec:
        require_state(name, state)
        if others:
            met = broadcast_shapes(name, tuple(shape), *[other.shape for other in others])
            if met != tuple(shape):
                raise ShapeError(
                    message(f"{name}: parameters of shape {met} do not fit draws of shape {tuple(shape)}",
                            hint="Ask for the shape in which the parameters broadcast.")
                )  # fmt: skip
        return make_spec(tuple(shape), dtype)

    return infer


def float_dtype(name: str, dtype: Any) -> Any:
    """Return a dtype that must be a float.

    Raises:
        DTypeError: another kind of dtype.
    """
    found = as_dtype(dtype)
    if kind_of(found) != "float":
        raise DTypeError(
            message(f"{name}: draws floating-point numbers, not {found}", hint="Pass dtype=hf.float32, for example.")
        )
    return found


def state_sample(rng: np.random.Generator) -> Any:
    """Return a generator's state for a sample."""
    return rng.integers(0, 2**32, STATE_WORDS, dtype=np.uint32)


def _float_samples(rng: np.random.Generator) -> Any:
    for shape, dtype in (((3, 4), "float32"), ((), "float32"), ((0, 2), "float32"), ((5,), "float64")):
        yield Sample((state_sample(rng), shape, dtype))
    yield Sample((state_sample(rng), (5,), "bfloat16"))
    yield Sample((state_sample(rng), (5,), "float16"))
    yield Bad((state_sample(rng), (3,), "int32"), error=DTypeError, text="draws floating-point numbers, not int32")
    yield Bad((state_sample(rng)[:3], (3,), "float32"), error=ShapeError, text="state is u32[4], not u32[3]")


# -- the counter --------------------------------------------------------------------------------------------------


def _advance_kernel(state: Any) -> Any:
    result = state.copy()
    result[2] += np.uint32(1)
    if result[2] == 0:
        result[3] += np.uint32(1)
    return result


def _advance_lower(state: Any) -> Any:
    low = lax.add(lax.slice(state, (2,), (3,)), np.ones(1, uint32))
    carry = lax.convert_element_type(lax.eq(low, np.zeros(1, uint32)), uint32)
    high = lax.add(lax.slice(state, (3,), (4,)), carry)
    return lax.concatenate([lax.slice(state, (0,), (2,)), low, high], 0)


def _advance_infer(state: TensorSpec) -> TensorSpec:
    require_state("random_advance", state)
    return make_spec(state.shape, state.dtype)


def _advance_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng),))
    yield Sample((np.asarray([1, 2, 2**32 - 1, 5], np.uint32),))
    yield Bad((normals(rng, 4),), error=ShapeError, text="a generator's state is u32[4], not f32[4]")


@op(
    kernel=_advance_kernel,
    lower=_advance_lower,
    infer=_advance_infer,
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_advance_samples,
    ulp=0,
    onnx=DRAWS,
)
def random_advance(state: TensorLike) -> Tensor:
    """Return the state of the next draw."""
    return bind(random_advance.op, (as_tensor(state),))


# -- uniform ------------------------------------------------------------------------------------------------------


def _unit(bits: Any, dtype: Any) -> Any:
    """Turn random bits into a multiple of 2**-p in [0, 1), for a dtype of p bits of precision; exact."""
    precision, working = _PRECISION[dtype.name], working_dtype(dtype)
    top = lax.shift_right_logical(bits, lax.full_like(bits, bits.dtype.itemsize * 8 - precision))
    number = lax.convert_element_type(top, working)
    return lax.convert_element_type(lax.mul(number, lax.full_like(number, 2.0**-precision)), dtype)


def word_of(dtype: Any) -> Any:
    """Return the dtype of the random bits that a number of a dtype is made of."""
    return uint64 if dtype == float64 else uint32


def _uniform_lower(state: Any, *, shape: Shape, dtype: Any) -> Any:
    return _unit(random_bits(state, shape, word_of(dtype)), dtype)


@op(
    kernel=each_for_itself(_uniform_lower),
    lower=_uniform_lower,
    infer=_infer_draw("random_uniform"),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_float_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
)
def random_uniform(state: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw from [0, 1): multiples of 2**-p, for a dtype of p bits of precision."""
    attrs = {"shape": shape, "dtype": float_dtype("uniform", dtype)}
    return bind(random_uniform.op, (as_tensor(state),), attrs)


def _between_kernel(unit: Any, low: Any, high: Any) -> Any:
    value = low + unit * (high - low)
    return np.where(value == high, np.nextafter(high, low), value)


@jax.custom_jvp
def uncontracted(product: Any, factor: Any) -> Any:
    """Keep a product from being contracted with the sum that uses it, which would round once instead of twice.

    A bit that is 1 only for factors of 2**65 and more is flipped into the product: no compiler knows that draws are
    smaller. What `jax` differentiates is the product.
    """
    word = uint64 if factor.dtype == float64 else uint32
    bits = lax.bitcast_convert_type(factor, word)

    def shifted(distance: int) -> Any:
        return lax.shift_right_logical(bits, lax.full_like(bits, word.itemsize * 8 - distance))

    huge = lax.bitwise_and(lax.bitwise_and(shifted(2), shifted(3)), lax.full_like(bits, 1))
    return lax.bitcast_convert_type(lax.bitwise_xor(lax.bitcast_convert_type(product, word), huge), product.dtype)


@uncontracted.defjvp
def _derivative(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
    return uncontracted(*primals), tangents[0]


def _widened(value: Any) -> Any:
    return lax.convert_element_type(value, working_dtype(value.dtype))


def _between_lower(unit: Any, low: Any, high: Any) -> Any:
    shape = np.broadcast_shapes(unit.shape, low.shape, high.shape)
    dtype = unit.dtype
    unit, low, high = (broadcast_lowered(_widened(value), shape) for value in (unit, low, high))
    value = lax.add(low, uncontracted(lax.mul(unit, lax.sub(high, low)), unit))
    value, low, high = (lax.convert_element_type(one, dtype) for one in (value, low, high))
    return lax.select(lax.eq(value, high), lax.nextafter(high, low), value)


def _infer_mapped(name: str) -> Callable[..., TensorSpec]:
    def infer(*specs: TensorSpec) -> TensorSpec:
        return make_spec(broadcast_shapes(name, *[spec.shape for spec in specs]), specs[0].dtype)

    return infer


def _between_vjp(F: Any, g: Any, y: Any, unit: Any, low: Any, high: Any) -> Any:
    del y
    return None, lambda: unbroadcast(F, g * (1 - unit), low), lambda: unbroadcast(F, g * unit, high)


def _between_samples(rng: np.random.Generator) -> Any:
    # The first input is a draw and has no gradient, which finite differences would not know.
    yield Sample((rng.random(5, np.float32), normals(rng), normals(rng)), gradient=False)
    yield Sample((rng.random((3, 4), np.float32), normals(rng, 4), normals(rng, 3, 1)), gradient=False)
    yield Sample((rng.random(5), np.asarray(-1.0), np.asarray(2.0)), gradient=False)
    yield Bad((normals(rng, 3), normals(rng, 2), normals(rng)), error=ShapeError, text="size 3 against 2")


@op(
    kernel=_between_kernel,
    lower=_between_lower,
    infer=_infer_mapped("uniform"),
    vjp=_between_vjp,
    saves=Saves(x=(0,)),
    samples=_between_samples,
    traits=("pointwise",),
    ulp=0,
    onnx=DRAWS,
)
def random_between(unit: TensorLike, low: TensorLike, high: TensorLike) -> Tensor:
    """Map draws from [0, 1) to [low, high); the gradient flows to the ends."""
    return bind(random_between.op, (as_tensor(unit), as_tensor(low), as_tensor(high)))


# -- normal -------------------------------------------------------------------------------------------------------


def _odd(bits: Any, count: int) -> Any:
    """Return 2 * k + 1, signed, for the first `count` bits as a number k."""
    signed = np.dtype(f"int{bits.dtype.itemsize * 8}")
    top = lax.shift_right_logical(bits, lax.full_like(bits, bits.dtype.itemsize * 8 - count))
    doubled = lax.mul(lax.convert_element_type(top, signed), lax.full(top.shape, 2, signed))
    return lax.add(doubled, lax.full_like(doubled, 1))


def symmetric(bits: Any, working: Any) -> Any:
    """Turn random bits into an odd multiple of 2**-p in (-1, 1): never 0 and never an end; exact."""
    precision = _PRECISION[working.name]
    odd = _odd(bits, precision)
    number = lax.convert_element_type(lax.sub(odd, lax.full_like(odd, 2**precision)), working)
    return lax.mul(number, lax.full_like(number, 2.0**-precision))


def open_unit(bits: Any, working: Any) -> Any:
    """Turn random bits into an odd multiple of 2**-p in (0, 1); exact."""
    precision = _PRECISION[working.name]
    number = lax.convert_element_type(_odd(bits, precision - 1), working)
    return lax.mul(number, lax.full_like(number, 2.0**-precision))


def inverse_normal(u: Any) -> Any:
    """Return the standard normal number whose distribution function is (1 + u) / 2.

    It ends in a choice of signs, so that no product is left to be contracted with what comes next.
    """
    size = lax.mul(lax.erf_inv(lax.abs(u)), lax.full_like(u, math.sqrt(2)))
    return lax.select(lax.lt(u, lax.full_like(u, 0)), lax.neg(size), size)


def _normal_lower(state: Any, *, shape: Shape, dtype: Any) -> Any:
    working = working_dtype(dtype)
    u = symmetric(random_bits(state, shape, word_of(dtype)), working)
    return lax.convert_element_type(inverse_normal(u), dtype)


@op(
    kernel=each_for_itself(_normal_lower),
    lower=_normal_lower,
    infer=_infer_draw("random_normal"),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_float_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
)
def random_normal(state: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw standard normal numbers by inverting their distribution function."""
    attrs = {"shape": shape, "dtype": float_dtype("normal", dtype)}
    return bind(random_normal.op, (as_tensor(state),), attrs)


def _scaled_lower(unit: Any, mean: Any, std: Any) -> Any:
    shape = np.broadcast_shapes(unit.shape, mean.shape, std.shape)
    dtype = unit.dtype
    unit, mean, std = (broadcast_lowered(_widened(value), shape) for value in (unit, mean, std))
    return lax.convert_element_type(lax.add(uncontracted(lax.mul(unit, std), unit), mean), dtype)


def _scaled_vjp(F: Any, g: Any, y: Any, unit: Any, mean: Any, std: Any) -> Any:
    del y
    return None, lambda: unbroadcast(F, g, mean), lambda: unbroadcast(F, g * unit, std)


@op(
    kernel=lambda unit, mean, std: unit * std + mean,
    lower=_scaled_lower,
    infer=_infer_mapped("normal"),
    vjp=_scaled_vjp,
    saves=Saves(x=(0,)),
    samples=_between_samples,
    traits=("pointwise",),
    ulp=0,
    onnx=DRAWS,
)
def random_scaled(unit: TensorLike, mean: TensorLike, std: TensorLike) -> Tensor:
    """Map standard draws to a mean and standard deviation; the gradient flows to both."""
    return bind(random_scaled.op, (as_tensor(unit), as_tensor(mean), as_tensor(std)))


def _truncation(low: float, high: float, dtype: Any) -> list[Any]:
    """Return the two ends, and where between -1 and 1 the numbers that are inverted begin and how far they reach."""
    left, right = (math.erf(bound * math.sqrt(0.5)) for bound in (low, high))
    return [np.asarray(number, working_dtype(dtype)) for number in (low, high, left, right - left)]


def _between_ends(state: Any, low: Any, high: Any, left: Any, reach: Any, *, shape: Shape, dtype: Any) -> Any:
    low, high, left, reach = (broadcast_lowered(one, shape) for one in (low, high, left, reach))
    unit = _unit(random_bits(state, shape, word_of(dtype)), working_dtype(dtype))
    z = inverse_normal(lax.add(uncontracted(lax.mul(unit, reach), unit), left))
    # Rounding may reach past an end, where the inverse is infinite.
    return lax.convert_element_type(lax.clamp(low, z, high), dtype)


def _truncated_lower(state: Any, *, shape: Shape, dtype: Any, low: float, high: float) -> Any:
    return _between_ends(state, *_truncation(low, high, dtype), shape=shape, dtype=dtype)


def _truncated_kernel(state: Any, *, shape: Shape, dtype: Any, low: float, high: float) -> Any:
    return drawn(_between_ends, state, *_truncation(low, high, dtype), shape=shape, dtype=dtype)


def _truncated_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), -2.0, 2.0, (3, 4), "float32"))
    yield Sample((state_sample(rng), -1, 0.5, (5,), "float64"))
    yield Sample((state_sample(rng), 1.0, 3.0, (5,), "bfloat16"))
    yield Bad((state_sample(rng), 2.0, -2.0, (3,), "float32"), error=ArgumentError, text="low 2.0 is not less than")


@op(
    kernel=_truncated_kernel,
    lower=_truncated_lower,
    infer=lambda state, *, shape, dtype, low, high: _infer_draw("truncated_normal")(state, shape=shape, dtype=dtype),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_truncated_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
)
def random_truncated(state: TensorLike, low: float, high: float, shape: Shape, dtype: Any) -> Tensor:
    """Draw standard normal numbers from [low, high]."""
    if not low < high:
        raise ArgumentError(
            message(f"truncated_normal: low {low} is not less than high {high}", hint="Bounds are standard deviations.")
        )
    attrs = {"shape": shape, "dtype": float_dtype("truncated_normal", dtype), "low": float(low), "high": float(high)}
    return bind(random_truncated.op, (as_tensor(state),), attrs)


# -- discrete -----------------------------------------------------------------------------------------------------


def _bernoulli_lower(state: Any, p: Any, *, shape: Shape) -> Any:
    working = working_dtype(p.dtype)
    unit = _unit(random_bits(state, shape, word_of(working)), working)
    return lax.lt(unit, broadcast_lowered(lax.convert_element_type(p, working), shape))


def _bernoulli_samples(rng: np.random.Generator) -> Any:
    yield Sample((state_sample(rng), np.asarray(0.3, np.float32), (3, 4)))
    yield Sample((state_sample(rng), rng.random(4), (3, 4)))
    yield Bad((state_sample(rng), normals(rng, 2, 4), (4,)), error=ShapeError, text="of shape (2, 4) do not fit")


@op(
    kernel=each_for_itself(_bernoulli_lower),
    lower=_bernoulli_lower,
    infer=_infer_draw("bernoulli", bool_),
    vjp=Stops("a draw of True or False has no gradient"),
    flops=no_flops,
    samples=_bernoulli_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
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
    """Return integers of which all from `low` on, `span` of them, are as likely, from random words.

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
    infer=_infer_draw("integers"),
    vjp=Stops("an integer has no gradient"),
    flops=no_flops,
    samples=_integers_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
)
def random_integers(state: TensorLike, low: int, high: int, shape: Shape, dtype: Any) -> Tensor:
    """Draw integers from `low` up to but without `high`."""
    found = as_dtype(dtype)
    if kind_of(found) not in ("int", "uint"):
        raise DTypeError(message(f"integers: draws integers, not {found}", hint="Pass dtype=hf.int32, for example."))
    info = np.iinfo(found)
    if not low < high:
        raise ArgumentError(
            message(f"integers: low must be less than high, got {low} and {high}", hint="`high` itself is never drawn.")
        )
    if low < info.min or high - 1 > info.max:
        raise ArgumentError(
            message(f"integers: {found} holds {info.min} to {info.max}, not {low} to {high - 1}",
                    hint="Choose a wider dtype.")
        )  # fmt: skip
    word = uint64 if found.itemsize == 8 else uint32
    modulus = 2 ** (word.itemsize * 8)
    start, span = np.asarray(low % modulus, word), np.asarray((high - low) % modulus, word)
    return bind(
        random_integers.op, (as_tensor(state), as_tensor(start), as_tensor(span)), {"shape": shape, "dtype": found}
    )


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
    infer=_infer_draw("permutation"),
    vjp=Stops("an integer has no gradient"),
    flops=no_flops,
    samples=_permutation_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
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
        raise ShapeError(
            message("categorical: logits need a last axis of at least one class", got=f"categorical({logits})")
        )


def _categorical_infer(state: TensorSpec, logits: TensorSpec, *, shape: Shape) -> TensorSpec:
    require_state("categorical", state)
    _require_classes(logits)
    batch = logits.shape[:-1]
    if broadcast_shapes("categorical", tuple(shape), batch) != tuple(shape):
        raise ShapeError(
            message(f"categorical: logits of batch shape {batch} do not fit draws of shape {tuple(shape)}",
                    hint="The shape must end in the batch shape of the logits.")
        )  # fmt: skip
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
)
def random_categorical(state: TensorLike, logits: TensorLike, shape: Shape) -> Tensor:
    """Draw classes with probabilities ``softmax(logits)``."""
    return bind(random_categorical.op, (as_tensor(state), as_tensor(logits)), {"shape": shape})

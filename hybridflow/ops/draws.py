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
from hybridflow.core.dtypes import as_dtype, float32, float64, kind_of, uint32, uint64
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, Sample, Saves, Stops, op
from hybridflow.ops.blocks import drawn, each_for_itself
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    broadcast_lowered,
    broadcast_shapes,
    make_spec,
    met_shape,
    no_flops,
    normals,
    unbroadcast,
)
from hybridflow.ops.onnx import DRAWS
from hybridflow.ops.padding_draws import drawn_by_position
from hybridflow.ops.sizes import Shape
from hybridflow.ops.threefry import STATE_WORDS, random_bits

_NO_GRADIENT = Stops("a draw does not depend on its generator's state in a differentiable way")
_PRECISION = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}


# -- what draws share ---------------------------------------------------------------------------------------------


def working_dtype(dtype: Any) -> Any:
    """Return the dtype in which draws of a dtype are computed."""
    return float64 if dtype == float64 else float32


def require_state(name: str, state: TensorSpec) -> None:
    """Raise unless a spec is that of a generator's state.

    Raises:
        ShapeError: another spec.
    """
    if state.dtype != uint32 or state.shape != (STATE_WORDS,):
        raise ShapeError(f"{name}: a generator's state is u32[{STATE_WORDS}], not {state}",
                         hint="Draw through hf.random.Generator.")


def infer_draw(name: str, fixed: Any = None) -> Callable[..., TensorSpec]:
    """Return the shape rule of a draw from a state and parameters, in a dtype that is asked for or fixed."""

    def infer(state: TensorSpec, *others: TensorSpec, shape: Shape, dtype: Any = fixed) -> TensorSpec:
        require_state(name, state)
        if others:
            met = broadcast_shapes(name, tuple(shape), *[other.shape for other in others])
            if met != tuple(shape):
                raise ShapeError(f"{name}: parameters of shape {met} do not fit draws of shape {tuple(shape)}",
                                 hint="Ask for the shape in which the parameters broadcast.")
        return make_spec(tuple(shape), dtype)

    return infer


def float_dtype(name: str, dtype: Any) -> Any:
    """Return a dtype that must be a float.

    Raises:
        DTypeError: another kind of dtype.
    """
    checked = as_dtype(dtype)
    if kind_of(checked) != "float":
        raise DTypeError(f"{name}: draws floating-point numbers, not {checked}",
                         hint="Pass dtype=hf.float32, for example.")
    return checked


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


def unit_of(bits: Any, dtype: Any) -> Any:
    """Turn random bits into a multiple of 2**-p in [0, 1), for a dtype of p bits of precision; exact."""
    precision, working = _PRECISION[dtype.name], working_dtype(dtype)
    top = lax.shift_right_logical(bits, lax.full_like(bits, bits.dtype.itemsize * 8 - precision))
    number = lax.convert_element_type(top, working)
    return lax.convert_element_type(lax.mul(number, lax.full_like(number, 2.0**-precision)), dtype)


def word_of(dtype: Any) -> Any:
    """Return the dtype of the random words from which numbers of a dtype are made."""
    return uint64 if dtype == float64 else uint32


def _uniform_lower(state: Any, *, shape: Shape, dtype: Any) -> Any:
    return unit_of(random_bits(state, shape, word_of(dtype)), dtype)


@op(
    kernel=each_for_itself(_uniform_lower),
    lower=_uniform_lower,
    infer=infer_draw("random_uniform"),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_float_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
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

    The product is combined with a bit that is 1 only for factors of 2**65 and more. Draws are smaller, but no compiler
    knows that. jax differentiates the plain product.
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
    shape = met_shape(unit.shape, low.shape, high.shape)
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
    """Turn random bits into an odd multiple of 2**-p: a number strictly between 0 and 1, which p bits hold exactly."""
    precision = _PRECISION[working.name]
    number = lax.convert_element_type(_odd(bits, precision - 1), working)
    return lax.mul(number, lax.full_like(number, 2.0**-precision))


def inverse_normal(u: Any) -> Any:
    """Return the standard normal number whose distribution function is (1 + u) / 2.

    It ends with a choice of signs, so the next operation cannot be contracted with a product.
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
    infer=infer_draw("random_normal"),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_float_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_normal(state: TensorLike, shape: Shape, dtype: Any) -> Tensor:
    """Draw standard normal numbers by inverting their distribution function."""
    attrs = {"shape": shape, "dtype": float_dtype("normal", dtype)}
    return bind(random_normal.op, (as_tensor(state),), attrs)


def _scaled_lower(unit: Any, mean: Any, std: Any) -> Any:
    shape = met_shape(unit.shape, mean.shape, std.shape)
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
    unit = unit_of(random_bits(state, shape, word_of(dtype)), working_dtype(dtype))
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
    infer=lambda state, *, shape, dtype, low, high: infer_draw("truncated_normal")(state, shape=shape, dtype=dtype),
    vjp=_NO_GRADIENT,
    flops=no_flops,
    samples=_truncated_samples,
    traits=("random",),
    ulp=0,
    onnx=DRAWS,
    padded=drawn_by_position,
)
def random_truncated(state: TensorLike, low: float, high: float, shape: Shape, dtype: Any) -> Tensor:
    """Draw standard normal numbers from [low, high]."""
    if not low < high:
        raise ArgumentError(f"truncated_normal: low {low:g} is not less than high {high:g}",
                            hint="Bounds are standard deviations.")
    attrs = {"shape": shape, "dtype": float_dtype("truncated_normal", dtype), "low": float(low), "high": float(high)}
    return bind(random_truncated.op, (as_tensor(state),), attrs)



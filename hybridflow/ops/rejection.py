"""Samplers that try until they accept: every element has its own counters, so its draw depends on nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dtypes import float64, uint32, uint64
from hybridflow.ops.draws import inverse_normal, open_unit, symmetric
from hybridflow.ops.threefry import STATE_WORDS, threefry

Bits = tuple[Any, Any]


def _tries(state: Any, shape: tuple[int, ...], working: Any) -> Callable[[Any], Bits]:
    """Return the function from the number of a try to two arrays of random bits."""
    words = [lax.index_in_dim(state, index, keepdims=False) for index in range(STATE_WORDS)]
    key = threefry((words[0], words[1]), (words[3], words[2]))
    position = lax.reshape(lax.iota(uint32, int(np.prod(shape, dtype=object))), shape)

    def bits(number: Any) -> Bits:
        number = lax.convert_element_type(number, uint32)
        if working != float64:
            return threefry(key, (lax.broadcast(number, shape), position))
        pairs = [threefry(key, (lax.broadcast(number * np.uint32(2) + np.uint32(i), shape), position)) for i in (0, 1)]
        first, second = (
            lax.bitwise_or(
                lax.shift_left(lax.convert_element_type(high, uint64), lax.full(shape, 32, uint64)),
                lax.convert_element_type(low, uint64),
            )
            for high, low in pairs
        )
        return first, second

    return bits


def unfolded(state: Any, parameter: Any) -> Any:
    """Return a parameter that XLA computes with when a program runs, and not, with other roundings, when it compiles.

    It would do that for constants of a compiled function, which are inputs in eager mode. No compiler knows that a
    generator's counter does not reach its end.
    """
    last = lax.eq(lax.index_in_dim(state, STATE_WORDS - 1, keepdims=False), np.uint32(2**32 - 1))
    return jnp.where(last, jnp.zeros_like(parameter), parameter)


def _until_accepted(start: Any, wanted: Any, propose: Callable[[Any], tuple[Any, Any]]) -> Any:
    """Return proposals: for every wanted element the first one accepted, for the others what they start from."""

    def step(carry: Any) -> Any:
        number, missing, value = carry
        proposed, accepted = propose(number)
        taken = missing & accepted
        return number + np.uint32(1), missing & ~accepted, jnp.where(taken, proposed, value)

    carry = (jnp.zeros((), uint32), wanted, start)
    return lax.while_loop(lambda carry: jnp.any(carry[1]), step, carry)[2]


def log_gamma_draw(state: Any, concentration: Any) -> Any:
    """Draw the logarithm of gamma-distributed numbers; JAX differentiates it implicitly.

    Args:
        state: a generator's state.
        concentration: float32 or float64; NaN where it is not positive and finite.

    Reference:
        Marsaglia and Tsang, "A simple method for generating gamma variables", 2000; Figurnov, Mohamed and Mnih,
        "Implicit reparameterization gradients", 2018.
    """

    @jax.custom_jvp
    def draw(alpha: Any) -> Any:
        return _log_gamma(state, alpha)

    @draw.defjvp
    def derivative(primals: Any, tangents: Any) -> Any:  # pyright: ignore[reportUnusedFunction]
        (alpha,), (tangent,) = primals, tangents
        log = draw(alpha)
        value = jnp.maximum(jnp.exp(log), np.finfo(np.dtype(alpha.dtype)).tiny)
        return log, tangent * cast(Any, lax.random_gamma_grad)(alpha, value) / value

    return draw(concentration)


def _log_gamma(state: Any, alpha: Any) -> Any:
    working, shape = alpha.dtype, alpha.shape
    alpha = unfolded(state, alpha)
    tries = _tries(state, shape, working)
    valid = (alpha > 0) & (alpha < np.inf)
    # Below 1, one more than alpha is drawn, and scaled by a power of a uniform number.
    d = jnp.where(alpha < 1, alpha + 1, alpha) - np.asarray(1 / 3, working)
    c = 1 / lax.sqrt(9 * d)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        x, u = inverse_normal(symmetric(first, working)), open_unit(second, working)
        v = (1 + c * x) ** 3
        safe = jnp.where(v > 0, v, 1)
        return d * v, (v > 0) & (lax.log(u) < 0.5 * x * x + d - d * safe + d * lax.log(safe))

    value = _until_accepted(jnp.full(shape, np.nan, working), valid, propose)
    # Magnitudes and choices of signs, so that no product inside a logarithm is contracted with the sum.
    boost = lax.abs(lax.log(open_unit(tries(jnp.zeros((), uint32))[0], working))) / alpha
    size = lax.abs(lax.log(value))
    return jnp.where(value < 1, -size, size) - jnp.where(alpha < 1, boost, 0)


_LARGE_RATE = 10.0


def poisson_draw(state: Any, rate: Any) -> Any:
    """Draw Poisson-distributed counts, as floats: by inversion of small rates, by transformed rejection of others.

    Args:
        state: a generator's state.
        rate: float32 or float64; NaN where it is not from 0 on and finite.

    Reference:
        Hormann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    working, shape = rate.dtype, rate.shape
    rate = unfolded(state, rate)
    tries = _tries(state, shape, working)
    valid = (rate >= 0) & (rate < np.inf)
    small = rate < _LARGE_RATE
    u = open_unit(tries(jnp.zeros((), uint32))[0], working)
    counts = jnp.where(valid & small, _by_inversion(u, jnp.where(valid & small, rate, 0)), np.nan)
    mu = jnp.where(valid & ~small, rate, _LARGE_RATE)
    b = 0.931 + 2.53 * lax.sqrt(mu)
    a = -0.059 + 0.02483 * b
    log_inverse = lax.log(1.1239 + 1.1328 / (b - 3.4))
    squeeze = 0.9277 - 3.6224 / (b - 2)
    log_mu = lax.log(mu)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        centred, v = open_unit(first, working) - 0.5, open_unit(second, working)
        us = 0.5 - lax.abs(centred)
        k = lax.floor((2 * a / us + b) * centred + mu + 0.43)
        quick = (us >= 0.07) & (v <= squeeze)
        hopeless = (k < 0) | ((us < 0.013) & (v > us))
        bound = k * log_mu - mu - lax.lgamma(jnp.maximum(k, 0) + 1)
        exact = lax.log(v) + log_inverse - lax.log(a / (us * us) + b) <= bound
        return k, quick | (~hopeless & exact)

    return _until_accepted(counts, valid & ~small, propose)


def _by_inversion(u: Any, rate: Any) -> Any:
    """Return the least counts whose distribution function reaches `u`."""
    most = 10 * math.ceil(_LARGE_RATE)  # far beyond what one uniform number can ask for

    def step(carry: Any) -> Any:
        k, term, total = carry
        going = u > total
        term = jnp.where(going, term * rate / (k + 1), term)
        return jnp.where(going, k + 1, k), term, jnp.where(going, total + term, total)

    def unfinished(carry: Any) -> Any:
        return jnp.any((u > carry[2]) & (carry[0] < most))

    first = lax.exp(-rate)
    return lax.while_loop(unfinished, step, (jnp.zeros_like(u), first, first))[0]

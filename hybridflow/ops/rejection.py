"""Rejection samplers; every element has its own counters, so its draw does not depend on other elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dtypes import float64, uint32, uint64
from hybridflow.ops.draws import inverse_normal, open_unit, symmetric
from hybridflow.ops.special.incomplete import quantile_slope
from hybridflow.ops.threefry import STATE_WORDS, key_of, positions, threefry

Bits = tuple[Any, Any]


def _tries(state: Any, shape: tuple[int, ...], working: Any) -> Callable[[Any], Bits]:
    """Return a function that maps the number of a try to two arrays of random bits."""
    key, position = key_of(state), positions(state, shape)

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
    """Return a parameter in a form that XLA does not fold at compile time, where its roundings differ.

    A parameter may be a constant in a compiled function and an input in eager mode; both must give the same draws.
    The result depends on the generator's counter, and no compiler knows that the counter never reaches its end.
    """
    last = lax.eq(lax.index_in_dim(state, STATE_WORDS - 1, keepdims=False), np.uint32(2**32 - 1))
    return jnp.where(last, jnp.zeros_like(parameter), parameter)


def _until_accepted(start: Any, wanted: Any, propose: Callable[[Any], tuple[Any, Any]]) -> Any:
    """Return the first accepted proposal for every wanted element, and the start value for the others."""

    def step(carry: Any) -> Any:
        number, missing, value = carry
        proposed, accepted = propose(number)
        taken = missing & accepted
        return number + np.uint32(1), missing & ~accepted, jnp.where(taken, proposed, value)

    carry = (jnp.zeros((), uint32), wanted, start)
    return lax.while_loop(lambda carry: jnp.any(carry[1]), step, carry)[2]


def log_gamma_draw(state: Any, concentration: Any) -> Any:
    """Draw the logarithm of gamma-distributed numbers; JAX differentiates it implicitly, to any order.

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
        return log, tangent * quantile_slope(alpha, log)

    return draw(concentration)


def _log_gamma(state: Any, alpha: Any) -> Any:
    working, shape = alpha.dtype, alpha.shape
    alpha = unfolded(state, alpha)
    tries = _tries(state, shape, working)
    valid = (alpha > 0) & (alpha < np.inf)
    # For alpha below 1, draw with alpha + 1 and scale by a power of a uniform number.
    d = jnp.where(alpha < 1, alpha + 1, alpha) - np.asarray(1 / 3, working)
    c = 1 / lax.sqrt(9 * d)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        x, u = inverse_normal(symmetric(first, working)), open_unit(second, working)
        v = (1 + c * x) ** 3
        safe = jnp.where(v > 0, v, 1)
        return d * v, (v > 0) & (lax.log(u) < 0.5 * x * x + d - d * safe + d * lax.log(safe))

    value = _until_accepted(jnp.full(shape, np.nan, working), valid, propose)
    # Take magnitudes and choose signs, so that XLA contracts no product inside a logarithm with the sum.
    boost = lax.abs(lax.log(open_unit(tries(jnp.zeros((), uint32))[0], working))) / alpha
    size = lax.abs(lax.log(value))
    return jnp.where(value < 1, -size, size) - jnp.where(alpha < 1, boost, 0)


_LARGE_RATE = 10.0


def poisson_draw(state: Any, rate: Any) -> Any:
    """Draw Poisson-distributed counts, as floats: by inversion for small rates, else by transformed rejection.

    Args:
        state: a generator's state.
        rate: float32 or float64; NaN where it is negative or not finite.

    Reference:
        Hormann, "The transformed rejection method for generating Poisson random variables", 1993.
    """
    working, shape = rate.dtype, rate.shape
    rate = unfolded(state, rate)
    tries = _tries(state, shape, working)
    valid = (rate >= 0) & (rate < np.inf)
    small = rate < _LARGE_RATE
    u = open_unit(tries(jnp.zeros((), uint32))[0], working)
    inverted = jnp.where(valid & small, rate, 0)
    counts = jnp.where(valid & small, _by_inversion(u, lax.exp(-inverted), lambda k: inverted / (k + 1)), np.nan)
    mu = jnp.where(valid & ~small, rate, _LARGE_RATE)
    b = 0.931 + 2.53 * lax.sqrt(mu)
    a = -0.059 + 0.02483 * b
    log_inverse = lax.log(1.1239 + 1.1328 / (b - 3.4))
    squeeze = 0.9277 - 3.6224 / (b - 2)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        centred, v = open_unit(first, working) - 0.5, open_unit(second, working)
        us = 0.5 - lax.abs(centred)
        k = lax.floor((2 * a / us + b) * centred + mu + 0.43)
        quick = (us >= 0.07) & (v <= squeeze)
        hopeless = (k < 0) | ((us < 0.013) & (v > us))
        exact = lax.log(v) + log_inverse - lax.log(a / (us * us) + b) <= _log_poisson(k, mu)
        return k, quick | (~hopeless & exact)

    return _until_accepted(counts, valid & ~small, propose)


def binomial_draw(state: Any, trials: Any, p: Any) -> Any:
    """Draw binomially distributed counts, as floats: by inversion for small means, else by transformed rejection.

    Args:
        state: a generator's state.
        trials: integers, as float32 or float64; NaN where they are negative or not finite.
        p: probabilities, of the same shape and dtype; NaN where they are outside 0 to 1.

    Reference:
        Hormann, "The generation of binomial random variates", 1993.
    """
    working, shape = p.dtype, p.shape
    tries = _tries(state, shape, working)
    n, p = unfolded(state, trials), unfolded(state, p)
    valid = (n >= 0) & (n < np.inf) & (p >= 0) & (p <= 1)
    rare = jnp.where(valid, jnp.minimum(p, 1 - p), 0)
    small = n * rare < _LARGE_RATE
    u = open_unit(tries(jnp.zeros((), uint32))[0], working)
    few = jnp.where(valid & small, n, 0)
    odds = rare / (1 - rare)
    inverted = _by_inversion(u, lax.exp(few * lax.log1p(-rare)), lambda k: (few - k) / (k + 1) * odds)
    counts = jnp.where(valid & small, inverted, np.nan)
    n_, q = jnp.where(valid & ~small, n, 40), jnp.where(valid & ~small, rare, 0.5)
    spread = lax.sqrt(n_ * q * (1 - q))
    b = 1.15 + 2.53 * spread
    a = -0.0873 + 0.0248 * b + 0.01 * q
    log_alpha = lax.log((2.83 + 5.1 / b) * spread)
    squeeze = 0.92 - 4.2 / b
    at_mode = _log_binomial(lax.floor((n_ + 1) * q), n_, q)

    def propose(number: Any) -> tuple[Any, Any]:
        first, second = tries(number + np.uint32(1))
        centred, v = open_unit(first, working) - 0.5, open_unit(second, working)
        us = 0.5 - lax.abs(centred)
        k = lax.floor((2 * a / us + b) * centred + n_ * q + 0.5)
        inside = (k >= 0) & (k <= n_)
        quick = (us >= 0.07) & (v <= squeeze)
        height = _log_binomial(lax.clamp(jnp.zeros_like(k), k, n_), n_, q) - at_mode
        exact = lax.log(v) + log_alpha - lax.log(a / (us * us) + b) <= height
        return k, inside & (quick | exact)

    drawn = _until_accepted(counts, valid & ~small, propose)
    return jnp.where(p > 0.5, n - drawn, drawn)


def _deviance(k: Any, mean: Any) -> Any:
    """Return ``k log(mean / k) + k - mean`` for positive `k`, without the cancellation of its terms."""
    delta = (mean - k) / k
    return k * (lax.log1p(delta) - delta)


def _stirling(k: Any) -> Any:
    """Return the correction that Stirling's formula needs to give ``log(k!)``, for `k` from 1 on."""
    square = 1 / (k * k)
    return (1 / 12 - (1 / 360 - square / 1260) * square) / k


def _log_poisson(k: Any, mean: Any) -> Any:
    """Return the logarithm of the Poisson probability of `k`.

    Reference:
        Loader, "Fast and accurate computation of binomial probabilities", 2000.
    """
    some = jnp.maximum(k, 1)
    logarithm = _deviance(some, mean) - 0.5 * lax.log(2 * math.pi * some) - _stirling(some)
    return jnp.where(k < 1, -mean, logarithm)


def _log_binomial(k: Any, n: Any, p: Any) -> Any:
    """Return the logarithm of the binomial probability of `k`; see `_log_poisson`."""
    some = lax.clamp(jnp.ones_like(k), k, n - 1)
    rest = n - some
    logarithm = _deviance(some, n * p) + _deviance(rest, n * (1 - p)) + 0.5 * lax.log(n / (2 * math.pi * some * rest))
    logarithm += _stirling(n) - _stirling(some) - _stirling(rest)
    return jnp.where(k < 1, n * lax.log1p(-p), jnp.where(k > n - 1, n * lax.log(p), logarithm))


def _by_inversion(u: Any, first: Any, ratio: Callable[[Any], Any]) -> Any:
    """Return the least counts whose distribution function reaches `u`.

    Args:
        u: uniform numbers.
        first: the probability of 0.
        ratio: a function of k that returns the probability of k + 1 divided by that of k.
    """
    most = 10 * math.ceil(_LARGE_RATE)  # far beyond any count that a uniform number reaches

    def step(carry: Any) -> Any:
        k, term, total = carry
        going = u > total
        term = jnp.where(going, term * ratio(k), term)
        return jnp.where(going, k + 1, k), term, jnp.where(going, total + term, total)

    def unfinished(carry: Any) -> Any:
        return jnp.any((u > carry[2]) & (carry[0] < most) & (carry[1] > 0))

    return lax.while_loop(unfinished, step, (jnp.zeros_like(u), first, first))[0]

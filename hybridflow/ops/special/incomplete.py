"""Incomplete gamma and beta functions of `hf.special`, and their inverses.

SciPy computes them in eager code. The lowerings compute the smaller tail of the distribution as its density times the
integral over the tail, relative to the density, by double exponential quadrature, whose nodes crowd near the end that
counts. It takes the same few sums for all arguments, and can be differentiated by each of them, to any order.

Reference:
    H. Takahasi and M. Mori, "Double exponential formulas for numerical integration", Publications of the Research
    Institute for Mathematical Sciences 9, 1974; C. Loader, "Fast and Accurate Computation of Binomial Probabilities",
    2000, for the densities.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Sample, Saves
from hybridflow.ops.common import Tensor, TensorLike, normals, positives, promote_float
from hybridflow.ops.kinds import Kind
from hybridflow.ops.special.common import (
    NO_OPERATOR,
    by_scipy,
    expm1_less,
    few_samples,
    log1p_less,
    row_samples,
    rule,
    widened,
)
from hybridflow.ops.special.of_gamma import betaln_lower, beyond_stirling, beyond_stirling_far, inner
from hybridflow.ops.special.pairs import special_pair

_FAR_FROM_0 = 10.0
"""From here on, logarithms of densities are computed from the distance to the mean: the large terms would cancel."""
_BOTH, _ALL = Saves(x=(0, 1)), Saves(x=(0, 1, 2))
special_triple = Kind(("float",), operands=3)
"""Functions of three real floats."""

# -- quadrature ---------------------------------------------------------------------------------------------------


def _nodes(dtype: Any) -> tuple[Any, Any]:
    """Return the nodes and weights of an integral from 0 to infinity of what decays like ``exp(-v)``."""
    count, low, high = (32, -3.2, 4.0) if np.dtype(dtype).itemsize == 4 else (72, -3.7, 4.3)
    step = (high - low) / (count - 1)
    t = low + step * np.arange(count)
    v = np.exp(t - np.exp(-t))
    return v.astype(dtype), (step * v * (1 + np.exp(-t))).astype(dtype)


def _integral(log_integrand: Callable[[Any], Any], scale: Any) -> Any:
    """Integrate from 0 to infinity; the integrand decays at about `scale`, of which the result is independent."""
    scale = lax.stop_gradient(scale)

    def step(total: Any, node: Any) -> tuple[Any, None]:
        v, weight = node
        return total + weight * jnp.exp(log_integrand(v * scale)), None

    return lax.scan(step, jnp.zeros_like(scale), _nodes(scale.dtype))[0] * scale


# -- gamma --------------------------------------------------------------------------------------------------------


def _gamma_density(a: Any, x: Any) -> Any:
    """Return the logarithm of ``x ** a * exp(-x) / gamma(a)``."""
    return a * log1p_less(jnp, (x - a) / a, x / a) + 0.5 * jnp.log(a / (2 * math.pi)) - beyond_stirling(a)


def _gamma_tails(a: Any, x: Any) -> tuple[Any, Any, Any, Any]:
    """Return whether the lower tail is computed, the log density, that tail relative to it, and the tail."""
    below = x <= a + 1
    under, over = jnp.where(below, x, a), jnp.where(below, a + 2, x)

    def log_integrand(y: Any) -> Any:
        lower = -(a + 1 - under) * y - under * expm1_less(-y)
        upper = -y * ((over - a + 1) / over) + (a - 1) * log1p_less(jnp, y / over)
        return jnp.where(below, lower, upper)

    lower_scale = 1 / ((a + 1 - under) + jnp.minimum(jnp.sqrt(under), a + 1))
    upper_scale = 1 / ((over - a) / over + 1 / jnp.sqrt(over))
    integral = _integral(log_integrand, jnp.where(below, lower_scale, upper_scale))
    relative = jnp.where(below, (1 + under * integral) / a, integral / over)  # for a, from the integral for a + 1
    density = _gamma_density(a, x)
    return below, density, relative, jnp.exp(density) * relative


def _gamma_of_ends(a: Any, x: Any) -> tuple[Any, Any, Any]:
    """Return where both arguments are positive and finite, and what the lower function is elsewhere."""
    inside = (a > 0) & (x > 0) & (a < np.inf) & (x < np.inf)
    zero = (a > 0) & (x == 0) | (a == np.inf) & (x >= 0) & (x < np.inf)
    one = (a == 0) & (x > 0) | (x == np.inf) & (a >= 0)
    return inside, zero & ~one, one & ~((a == np.inf) & (x == np.inf))


def _at_ends(xp: Any, a: Any, x: Any, y: Any, upper: bool) -> Any:
    inside, zero, one = _gamma_of_ends(a, x)
    outside = xp.where(zero, float(upper), xp.where(one, float(not upper), np.nan))
    return xp.where(inside, y, outside).astype(a.dtype)


def _gammainc_lower(a: Any, x: Any, upper: bool = False) -> Any:
    inside = _gamma_of_ends(a, x)[0]
    below, _, _, tail = _gamma_tails(jnp.where(inside, a, 1), jnp.where(inside, x, 1))
    return _at_ends(jnp, a, x, jnp.where(below != upper, tail, 1 - tail), upper)


def _gammaincc_lower(a: Any, x: Any) -> Any:
    return _gammainc_lower(a, x, upper=True)


def _gammainc_by_a_lower(a: Any, x: Any) -> Any:
    return jax.jvp(lambda a: _gammainc_lower(a, x), (a,), (jnp.ones_like(a),))[1]


def quantile_slope(a: Any, log_x: Any) -> Any:
    """Return the derivative by `a` of the logarithm of an x whose ``gammainc(a, x)`` stays as it is."""

    def log_tail(a: Any, log_x: Any) -> Any:
        _, density, relative, _ = _gamma_tails(a, jnp.maximum(jnp.exp(log_x), np.finfo(np.dtype(a.dtype)).tiny))
        return density + jnp.log(relative)

    one, zero = jnp.ones_like(a), jnp.zeros_like(a)
    by_a, by_log_x = (jax.jvp(log_tail, (a, log_x), tangents)[1] for tangents in ((one, zero), (zero, one)))
    return -by_a / by_log_x


def _gamma_kernel(name: str, upper: bool) -> Callable[..., Any]:
    return lambda a, x: _at_ends(np, a, x, by_scipy(name, a, x), upper)


_GAMMA_ENDS = [[a, x] for a in (0.0, 0.5, -1.0, np.inf, np.nan) for x in (0.0, 2.0, -1.0, np.inf, np.nan)]
_GAMMA_AT_ENDS = [Sample(tuple(np.array(_GAMMA_ENDS, dtype).T), gradient=False) for dtype in (np.float32, np.float64)]
_FAR = Sample((np.array([30.0, 30.0, 2.0, 0.1]), np.array([20.0, 45.0, 9.0, 2.0])))
gammainc_by_a = inner("gammainc_by_a", _gammainc_by_a_lower, few_samples(positives, positives), 512)


def _gamma_slope(F: Any, y: Any, a: Any, x: Any) -> Any:
    del y
    far = a > _FAR_FROM_0
    large, at = F.where(far, a, _FAR_FROM_0), F.where(far, x, _FAR_FROM_0)
    off = (at - large) / large
    smooth = (large - 1) * log1p_less(F, off, at / large) - off - 0.5 * F.log(2 * math.pi * large)
    smooth = smooth - beyond_stirling_far(1 / large)
    return F.exp(F.where(far, smooth, F.xlogy(a - 1, x) - x - F.gammaln(a)))


@special_pair(
    _gamma_kernel("gammainc", False), widened(_gammainc_lower),
    vjp=rule(_BOTH, lambda F, y, a, x: F.gammainc_by_a(a, x), _gamma_slope), saves=_BOTH,
    samples=row_samples(positives, positives, more=[*_GAMMA_AT_ENDS, _FAR]), traits=("full_precision",), ulp=1024,
    onnx=NO_OPERATOR,
)
def gammainc(a: TensorLike, x: TensorLike, /) -> Tensor:
    """Compute the regularized lower incomplete gamma function elementwise.

    It is the integral of ``t ** (a - 1) * exp(-t)`` from 0 to `x`, divided by ``gamma(a)``: the distribution function
    of a gamma distribution of shape `a`.

    Args:
        a: floating-point, positive (NaN comes of negative numbers); integers become float32.
        x: the same from 0 on, of a shape that broadcasts with that of `a`.

    Returns:
        The promoted floating-point dtype, within 1024 units in the last place for `a` up to 1000, and within 64 for
        `a` up to 10.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.gammainc([1.0], [1.0])
        Tensor([0.63212055], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 8.2.
    """
    return bind(gammainc.op, promote_float(a, x))


@special_pair(
    _gamma_kernel("gammaincc", True), widened(_gammaincc_lower),
    vjp=rule(_BOTH, lambda F, y, a, x: -F.gammainc_by_a(a, x), lambda F, y, a, x: -_gamma_slope(F, y, a, x)),
    saves=_BOTH,
    samples=row_samples(positives, positives, more=[*_GAMMA_AT_ENDS, _FAR]), traits=("full_precision", "log_sum"),
    ulp=1024, onnx=NO_OPERATOR,
)
def gammaincc(a: TensorLike, x: TensorLike, /) -> Tensor:
    """Compute the regularized upper incomplete gamma function elementwise: 1 minus `gammainc`.

    Args:
        a: floating-point, positive (NaN comes of negative numbers); integers become float32.
        x: the same from 0 on, of a shape that broadcasts with that of `a`.

    Returns:
        The promoted floating-point dtype, with the bound of `gammainc` where `x` is above ``a + 1``, and with that
        relative to 1 below.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.gammaincc([1.0], [1.0])
        Tensor([0.36787945], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 8.2.
    """
    return bind(gammaincc.op, promote_float(a, x))


def _solved(newton: Callable[[Any], Any], start: Any) -> Any:
    """Apply Newton's method from a start from which it converges, and twice more, so that JAX may differentiate it."""
    dtype = np.dtype(start.dtype)
    most, near = 40, 4 * float(jnp.finfo(dtype).eps)

    def moves(state: Any) -> Any:
        count, before, now = state
        return (count < most) & jnp.any(jnp.abs(now - before) > near * jnp.maximum(1, jnp.abs(now)))

    def step(state: Any) -> Any:
        return state[0] + 1, state[2], newton(state[2])

    start = lax.stop_gradient(start)
    found = lax.while_loop(moves, lambda state: lax.stop_gradient(step(state)), (0, start, newton(start)))[2]
    return newton(newton(lax.stop_gradient(found)))


def _newton(tails: Any, first: Any, wanted: Any, at: Any) -> Any:
    """Return a step of Newton's method for the logarithm of a tail, which is concave.

    Args:
        tails: what `_gamma_tails` returns, at the point.
        first: whether the lower tail is solved for.
        wanted: the logarithm that it must have.
        at: the point, in a scale in which the tail's derivative is the density.
    """
    below, density, relative, tail = tails
    same = below == first
    value = jnp.where(same, density + jnp.log(relative), jnp.log1p(-tail))
    ratio = jnp.where(same, relative, (1 - tail) * jnp.exp(-density))
    return at + jnp.where(first, -1, 1) * (value - wanted) * ratio


def _gammaincinv_lower(a: Any, y: Any) -> Any:
    """Solve for the logarithm of the argument, from a bound: from the left for the lower tail, else from the right.

    The bound on the right is S. Boucheron, G. Lugosi and P. Massart, Concentration Inequalities, 2013, section 2.4.
    """
    inside = (a > 0) & (a < jnp.inf) & (y > 0) & (y < 1)
    shape, part = jnp.where(inside, a, 1), jnp.where(inside, y, 0.5)
    first = part <= 0.5
    wanted = jnp.where(first, jnp.log(part), jnp.log1p(-part))
    left = (jnp.log(part) + lax.lgamma(shape + 1)) / shape
    right = jnp.log(shape + jnp.sqrt(jnp.where(first, 1, -2 * shape * wanted)) - wanted)
    least = math.log(float(jnp.finfo(a.dtype).tiny))
    found = _solved(
        lambda u: _newton(_gamma_tails(shape, jnp.exp(jnp.maximum(u, least))), first, wanted, jnp.maximum(u, least)),
        jnp.where(first, left, right),
    )
    x = jnp.exp(jnp.where(left < least, left, found))
    zero, endless = (a > 0) & (y == 0), (a > 0) & (y == 1)
    return jnp.where(inside, x, jnp.where(zero, 0, jnp.where(endless, jnp.inf, jnp.nan)).astype(a.dtype))


def _gammaincinv_kernel(a: Any, y: Any) -> Any:
    known = (a > 0) & (a < np.inf) | (a == np.inf) & ((y == 0) | (y == 1))
    at_end = np.where(y == 0, 0, np.inf)
    x = np.where((y == 0) | (y == 1), at_end, by_scipy("gammaincinv", a, y))
    return np.where(known, x, np.nan).astype(a.dtype)


def _share(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    return np.asarray(rng.uniform(0.1, 0.9, shape)).astype(normals(rng, dtype=dtype).dtype)


_INVERSE_ENDS = [[a, y] for a in (0.0, 0.5, -1.0, 3.0, np.nan) for y in (0.0, 0.3, 1.0, -1.0, 2.0, np.nan)]
_INVERSE_ENDS.append([1e6, 0.3])  # takes more steps than numbers near 1
_INVERSE_AT_ENDS = [
    Sample(tuple(np.array(_INVERSE_ENDS, dtype).T), gradient=False) for dtype in (np.float32, np.float64)
]


@special_pair(
    _gammaincinv_kernel, widened(_gammaincinv_lower),
    vjp=rule(
        Saves(x=(0,), y=True),
        lambda F, y, a, p: -F.gammainc_by_a(a, y) / _gamma_slope(F, None, a, y),
        lambda F, y, a, p: 1 / _gamma_slope(F, None, a, y),
    ),
    saves=Saves(x=(0,), y=True), samples=row_samples(positives, _share, more=_INVERSE_AT_ENDS),
    traits=("full_precision",), ulp=32768, onnx=NO_OPERATOR,
)
def gammaincinv(a: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute the inverse of `gammainc` by its second argument: the quantiles of a gamma distribution of shape `a`.

    Args:
        a: floating-point, positive (NaN comes of other numbers); integers become float32.
        y: the same from 0 to 1, of a shape that broadcasts with that of `a`; 1 gives infinity.

    Returns:
        The promoted floating-point dtype, within 32768 units in the last place; 1024 for `a` from 0.1 to 1000, below
        which results change much with `y`.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.gammaincinv([1.0], [0.5])
        Tensor([0.6931472], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 8.2.
    """
    return bind(gammaincinv.op, promote_float(a, y))


# -- beta ---------------------------------------------------------------------------------------------------------


def _beta_tails(a: Any, b: Any, x: Any, rest: Any) -> tuple[Any, Any, Any, Any]:
    """Return what `_gamma_tails` returns, for a beta distribution at x, where ``1 - x`` is `rest`."""
    below = x * (b + 1) <= rest * (a + 1)
    off = x * b - rest * a
    density = a * log1p_less(jnp, off / a, x / a * (a + b)) + b * log1p_less(jnp, -off / b, rest / b * (a + b))
    density = density + 0.5 * jnp.log(a / (a + b) * b / (2 * math.pi))
    density = density + beyond_stirling(a + b) - beyond_stirling(a) - beyond_stirling(b)
    one, two = jnp.where(below, a, b), jnp.where(below, b, a)
    part, other = jnp.where(below, x, rest), jnp.where(below, rest, x)
    rate, power, half = (one + 1) * other - two * part, one + 1 + two, part < 0.5
    sign, least = jnp.where(half, -1, 1), jnp.where(half, part, other)

    def log_integrand(y: Any) -> Any:
        """Return ``-(one + 1) * y - power * log(other + part * exp(-y))`` from the smaller one of part and other."""
        moved = sign * y
        grown = least * jnp.expm1(moved)
        near = least * expm1_less(moved) + log1p_less(jnp, grown)
        return -rate * y - power * jnp.where(grown < 1, near, jnp.log1p(grown) - least * moved)

    scale = 1 / (jnp.maximum(rate, 0) + jnp.minimum(jnp.sqrt(power * part * other), one + 1))
    relative = (1 + (one + two) * part * _integral(log_integrand, scale)) / one  # from the integral for one more
    return below, density, relative, jnp.exp(density) * relative


def _betainc_lower(a: Any, b: Any, x: Any) -> Any:
    known = (a > 0) & (b > 0) & (a < jnp.inf) & (b < jnp.inf)
    inside = known & (x > 0) & (x < 1)
    a, b, at = jnp.where(inside, a, 1), jnp.where(inside, b, 1), jnp.where(inside, x, 0.5)
    below, _, _, tail = _beta_tails(a, b, at, 1 - at)
    outside = jnp.where(known & ((x == 0) | (x == 1)), x, jnp.nan)
    return jnp.where(inside, jnp.where(below, tail, 1 - tail), outside)


def _beta_kernel(name: str) -> Callable[..., Any]:
    def kernel(a: Any, b: Any, x: Any) -> Any:
        known = (a > 0) & (b > 0) & (a < np.inf) & (b < np.inf) & (x >= 0) & (x <= 1)
        y = by_scipy(name, *[one.astype(np.float64) for one in (a, b, x)])  # SciPy's own float32 loses much
        return np.where(known, y, np.nan).astype(a.dtype)

    return kernel


def _by_a_lower(a: Any, b: Any, x: Any) -> Any:
    return jax.jvp(lambda a: _betainc_lower(a, b, x), (a,), (jnp.ones_like(a),))[1]


def _by_b_lower(a: Any, b: Any, x: Any) -> Any:
    return jax.jvp(lambda b: _betainc_lower(a, b, x), (b,), (jnp.ones_like(b),))[1]


def _beta_samples(at: float = 0.5) -> Callable[..., Any]:
    last = (0.0, at, 1.0, 2.0, np.nan)
    ends = [[a, b, x] for a in (0.0, 0.5, -1.0, np.inf) for b in (2.0, 0.0, np.nan) for x in last]
    far = [0.01, 5e8, 0.885]  # the inverse takes more than 16 steps
    more = [Sample(tuple(np.array(rows).T.astype(dtype)), gradient=False)
            for rows, dtype in ((ends, np.float32), ([*ends, far], np.float64))]
    return row_samples(positives, positives, _share, more=more)


betainc_by_a = inner("betainc_by_a", _by_a_lower, few_samples(positives, positives, _share), 512)
betainc_by_b = inner("betainc_by_b", _by_b_lower, few_samples(positives, positives, _share), 512)


def _beta_slope(F: Any, y: Any, a: Any, b: Any, x: Any) -> Any:
    del y
    far = (a > _FAR_FROM_0) & (b > _FAR_FROM_0)
    one, two, at = F.where(far, a, _FAR_FROM_0), F.where(far, b, _FAR_FROM_0), F.where(far, x, 0.5)
    both, rest = one + two, 1 - at
    off = at * two - rest * one
    smooth = (one - 1) * log1p_less(F, off / one, at / one * both) - off / one
    smooth = smooth + (two - 1) * log1p_less(F, -off / two, rest / two * both) + off / two
    smooth = smooth - 0.5 * F.log(2 * math.pi * one / both * two / both / both)
    smooth = smooth + beyond_stirling_far(1 / both) - beyond_stirling_far(1 / one) - beyond_stirling_far(1 / two)
    return F.exp(F.where(far, smooth, F.xlogy(a - 1, x) + F.xlog1py(b - 1, -x) - F.betaln(a, b)))


@special_triple(
    _beta_kernel("betainc"), widened(_betainc_lower),
    vjp=rule(
        _ALL,
        lambda F, y, a, b, x: F.betainc_by_a(a, b, x),
        lambda F, y, a, b, x: F.betainc_by_b(a, b, x),
        _beta_slope,
    ),
    saves=_ALL, samples=_beta_samples(), traits=("full_precision",), ulp=1024, onnx=NO_OPERATOR,
)
def betainc(a: TensorLike, b: TensorLike, x: TensorLike, /) -> Tensor:
    """Compute the regularized incomplete beta function elementwise.

    It is the integral of ``t ** (a - 1) * (1 - t) ** (b - 1)`` from 0 to `x`, divided by ``beta(a, b)``: the
    distribution function of a beta distribution.

    Args:
        a, b: floating-point, positive (NaN comes of other numbers); integers become float32.
        x: the same from 0 to 1. The three shapes broadcast.

    Returns:
        The promoted floating-point dtype, within 1024 units in the last place for `a` and `b` up to 100.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.betainc([1.0], [2.0], [0.5])
        Tensor([0.75], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 8.17.
    """
    return bind(betainc.op, promote_float(a, b, x))


def _betaincinv_lower(a: Any, b: Any, y: Any) -> Any:
    """Solve for ``log(x / (1 - x))`` of the smaller tail, from the left."""
    inside = (a > 0) & (b > 0) & (a < jnp.inf) & (b < jnp.inf) & (y > 0) & (y < 1)
    part = jnp.where(inside, y, 0.5)
    lower = part <= 0.5
    one = jnp.where(inside, jnp.where(lower, a, b), 1)
    two = jnp.where(inside, jnp.where(lower, b, a), 1)
    wanted = jnp.where(lower, jnp.log(part), jnp.log1p(-part))

    least = math.log(2 * float(jnp.finfo(a.dtype).tiny))  # XLA makes 0 of what is below the smallest normal number

    def newton(s: Any) -> Any:
        s = jnp.clip(s, least, -least)
        return _newton(_beta_tails(one, two, lax.logistic(s), lax.logistic(-s)), True, wanted, s)

    whole = betaln_lower(one, two)
    start = (wanted + jnp.log(one) + whole) / one
    far = -(jnp.log(-jnp.expm1(wanted)) + jnp.log(two) + whole) / two  # of the other tail, if it is short
    guesses = jnp.clip(jnp.stack([start, *[far - less for less in (0, 1, 2, 4, 8)]]), least, -least)
    is_left = newton(guesses) >= guesses
    left = jnp.max(jnp.where(is_left, guesses, -jnp.inf), 0)
    found = _solved(newton, jnp.where(jnp.any(is_left, 0), left, jnp.min(guesses, 0)))
    found = jnp.where(start < least, start, found)
    x = lax.logistic(jnp.where(lower, found, -found))
    known = (a > 0) & (b > 0) & (a < jnp.inf) & (b < jnp.inf) & ((y == 0) | (y == 1))
    return jnp.where(inside, x, jnp.where(known, y, jnp.nan))


def _inverse_slope(by: str) -> Callable[..., Any]:
    return lambda F, y, a, b, p: -getattr(F, by)(a, b, y) / _beta_slope(F, None, a, b, y)


def _betaincinv_kernel(a: Any, b: Any, y: Any) -> Any:
    """Call SciPy, whose result is 2 ** -56 or NaN where that is smaller and b is below 1: one term of the series there.

    SciPy gives the smallest normal number for what is less than that; it is 0 here, as in compiled functions.
    """
    x = _beta_kernel("betaincinv")(a, b, y)
    wide = [one.astype(np.float64) for one in (a, b, y)]
    inside = (a > 0) & (a < np.inf) & (b > 0) & (b <= 1) & (y > 0) & (y < 1)
    one, two, part = [np.where(inside, one, 0.5) for one in wide]
    first = np.exp((np.log(part) + np.log(one) + by_scipy("betaln", one, two)) / one)
    x = np.where(inside & (first < 1e-16), first, x).astype(a.dtype)
    return np.where(x == np.finfo(np.float64).tiny, 0, x).astype(a.dtype)


@special_triple(
    _betaincinv_kernel, widened(_betaincinv_lower),
    vjp=rule(
        Saves(x=(0, 1), y=True), _inverse_slope("betainc_by_a"), _inverse_slope("betainc_by_b"),
        lambda F, y, a, b, p: 1 / _beta_slope(F, None, a, b, y),
    ),
    saves=Saves(x=(0, 1), y=True), samples=_beta_samples(0.3), traits=("full_precision",), ulp=32768, onnx=NO_OPERATOR,
)
def betaincinv(a: TensorLike, b: TensorLike, y: TensorLike, /) -> Tensor:
    """Compute the inverse of `betainc` by its last argument: the quantiles of a beta distribution.

    Args:
        a, b: floating-point, positive (NaN comes of other numbers); integers become float32.
        y: the same from 0 to 1. The three shapes broadcast.

    Returns:
        The promoted floating-point dtype, within 32768 units in the last place for `a` and `b` from 1e-3 to 1e6; 1024
        from 0.1 to 100, below which results change much with `y`. The smallest normal number counts as 0.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.betaincinv([1.0], [2.0], [0.75])
        Tensor([0.5], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 8.17.
    """
    return bind(betaincinv.op, promote_float(a, b, y))


__all__ = ["betainc", "betaincinv", "gammainc", "gammaincc", "gammaincinv"]

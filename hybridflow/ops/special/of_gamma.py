"""Functions of `hf.special` that are made of the gamma function: of several arguments, or with an order."""

from __future__ import annotations

import math
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Polynomial

from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError
from hybridflow.core.op import No, Sample, Saves, op
from hybridflow.core.tensor import describe
from hybridflow.ops.choice import where
from hybridflow.ops.common import Tensor, TensorLike, broadcasting, elements, pointwise, positives, promote_float
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.special.common import (
    NO_OPERATOR,
    by_scipy,
    few_samples,
    horner,
    row_samples,
    rule,
    special,
    widened,
)
from hybridflow.ops.special.one_argument import digamma, gammaln
from hybridflow.ops.special.pairs import special_pair

_BOTH = Saves(x=(0, 1))

# -- Stirling's formula -------------------------------------------------------------------------------------------

_STIRLING = [1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156, -3617 / 122400]
_MOVED = 10
_HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)


def beyond_stirling(x: Any) -> Any:
    """Return ``gammaln(x) - ((x - 1/2) log(x) - x + log(2 pi) / 2)`` of a jax value that is positive.

    It is a series in 1 / x for large ones; small ones are moved up by gamma's recurrence. Only logarithms are needed.
    """
    is_large = x > _MOVED
    inverse = 1 / jnp.where(is_large, x, x + _MOVED)
    small = jnp.where(is_large, 1, x)
    product = math.prod([small + k for k in range(_MOVED)])
    up = (small - 0.5) * jnp.log1p(_MOVED / small) + _MOVED * (jnp.log(small + _MOVED) - 1) - jnp.log(product)
    return beyond_stirling_far(inverse) + jnp.where(is_large, 0, up)


def beyond_stirling_far(inverse: Any) -> Any:
    """Return what is beyond Stirling's formula at ``1 / inverse``, of at least 10, in any namespace."""
    return inverse * horner(_STIRLING, inverse * inverse)


# -- zeta and polygamma -------------------------------------------------------------------------------------------

_EULER = [
    1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160, -691 / 1307674368000, 1 / 74724249600,
    -3617 / 10670622842880000, 43867 / 5109094217170944000, -174611 / 802857662698291200000,
    77683 / 14101100039391805440000, -236364091 / 1693824136731743669452800000,
]
"""Bernoulli's numbers of even index 2k, divided by the factorial of 2k."""
_SUMMED = 9


def _sum_of_powers(x: Any, q: Any) -> Any:
    """Return Hurwitz' zeta function of jax values ``x > 1`` and ``q > 0``, by Euler's and Maclaurin's formula."""
    steps = jnp.arange(_SUMMED, dtype=q.dtype)
    total = jnp.sum(jnp.power(1 + steps / q[..., None], -x[..., None]), -1)
    far = q + _SUMMED
    power = jnp.power(far / q, -x)
    rest = _EULER[-1]
    for k in range(len(_EULER) - 2, -1, -1):
        rest = _EULER[k] + rest * ((x + (2 * k + 1)) / far) * ((x + (2 * k + 2)) / far)
    total = total + power * (far / (x - 1) + 0.5 + x / far * rest)
    return jnp.power(q, 1 - x) * (total / q)  # not by q ** -x, which may underflow where this does not


def _zeta_lower(x: Any, q: Any) -> Any:
    inside = (x > 1) & (q > 0) & (x < jnp.inf) & (q < jnp.inf)
    y = _sum_of_powers(jnp.where(inside, x, 2), jnp.where(inside, q, 1))
    outside = jnp.where((x == 1) & (q >= 0), jnp.inf, jnp.nan)
    outside = jnp.where((q == jnp.inf) & (x > 1), 0, jnp.where((q == 0) & (x > 1), jnp.inf, outside))
    endless = jnp.where(q > 1, 0, jnp.where(q == 1, 1, jnp.inf))
    outside = jnp.where((x == jnp.inf) & (q >= 0), endless, outside)
    return jnp.where(inside, y, outside.astype(x.dtype))


def _zeta_kernel(x: Any, q: Any) -> Any:
    from scipy import special  # slow to import, and most programs need none

    y = np.asarray(special.zeta(x, np.where(q > 0, q, 1)))
    y = np.where(q > 0, np.where(x >= 1, y, np.nan), np.where((q == 0) & (x >= 1), np.inf, np.nan))
    endless = np.where(q > 1, 0, np.where(q == 1, 1, np.inf))
    return np.where((x == np.inf) & (q >= 0), endless, y).astype(x.dtype)


def _zeta_by_x_lower(x: Any, q: Any) -> Any:
    return jax.jvp(lambda x: _zeta_lower(x, q), (x,), (jnp.ones_like(x),))[1]


def _above_one(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    return positives(rng, *shape, dtype=dtype) + 1


def inner(name: str, lower: Any, samples: Any, ulp: float, operands: int = 2) -> Any:
    """Make an operation that serves gradient rules: a derivative, whose own derivatives jax takes.

    Args:
        name: its name.
        lower: its lowering, in float32 or float64.
        samples, ulp: columns of its record.
        operands: how many it takes.
    """

    def function(*xs: TensorLike) -> Tensor:
        return bind(record.op, promote_float(*xs))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"Compute the derivative that {name} names, for gradient rules."
    record = op(
        kernel=No("a formula of jax's, which only derivatives need"), lower=broadcasting(widened(lower)),
        infer=pointwise(name, ("float",)), vjp=RuleFromLowering(name), saves=Saves(x="all"), flops=elements,
        samples=samples, traits=("pointwise", "full_precision", "inner"), ulp=ulp, onnx=NO_OPERATOR,
    )(function)
    return record


_ENDS = [[x, q] for x in (0.5, 1.0, 2.0, np.inf, np.nan) for q in (-1.5, 0.0, 0.5, 1.0, 3.0, np.inf, np.nan)]
_ZETA_ENDS = [Sample(tuple(np.array(_ENDS, dtype).T), gradient=False) for dtype in (np.float32, np.float64)]
zeta_by_x = inner("zeta_by_x", _zeta_by_x_lower, few_samples(_above_one, positives), 64)


@special_pair(
    _zeta_kernel, widened(_zeta_lower),
    vjp=rule(_BOTH, lambda F, y, x, q: F.zeta_by_x(x, q), lambda F, y, x, q: -x * F.zeta(x + 1, q)),
    saves=_BOTH, samples=row_samples(_above_one, positives, more=_ZETA_ENDS), traits=("full_precision",), ulp=16,
    onnx=NO_OPERATOR,
)
def zeta(x: TensorLike, q: TensorLike = 1.0, /) -> Tensor:
    """Compute Hurwitz' zeta function elementwise, the sum of ``(k + q) ** -x`` for all k from 0 on.

    It is infinite where `x` is 1 or `q` is 0, and NaN below.

    Args:
        x: floating-point, above 1; integers become float32.
        q: floating-point, positive, of a shape that broadcasts with that of `x`; with 1 it is Riemann's zeta function.

    Returns:
        The promoted floating-point dtype, within 16 units in the last place.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.zeta([2.0])
        Tensor([1.644934], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, sections 25.11 and 2.10.
    """
    return bind(zeta.op, promote_float(x, q))


def _of_cotangent(n: int) -> list[float]:
    """Return the polynomial in ``cot(pi x)`` that is the derivative of order n of it, divided by ``pi ** n``."""
    polynomial = Polynomial([0.0, 1.0])
    for _ in range(n):
        polynomial = polynomial.deriv() * Polynomial([-1.0, 0.0, -1.0])
    return polynomial.coef.tolist()


def _polygamma_lower(x: Any, *, n: int) -> Any:
    """Sum powers for positive arguments, and reflect others: the two differ by a derivative of the cotangent."""
    negative = x < 0
    y = math.factorial(n) * (-1.0) ** (n + 1) * _zeta_lower(jnp.full_like(x, n + 1), jnp.where(negative, 1 - x, x))
    pole = negative & (x == jnp.floor(x))
    turned = jnp.pi * jnp.where(negative & ~pole, x - jnp.round(x), 0.25)
    reflected = (-1.0) ** n * y - jnp.pi ** (n + 1) * horner(_of_cotangent(n), 1 / jnp.tan(turned))
    infinite = jnp.full_like(x, (-1.0) ** (n + 1) * math.inf)
    return jnp.where(pole, infinite, jnp.where(negative & (x > -jnp.inf), reflected, y))


def _polygamma_kernel(x: Any, *, n: int) -> Any:
    from scipy import special  # slow to import, and most programs need none

    return np.asarray(special.polygamma(n, x)).astype(x.dtype)


def _polygamma_samples(rng: np.random.Generator) -> Any:
    for sample in row_samples(positives)(rng):
        sample.kwargs["n"] = 1
        yield sample
    yield Sample((positives(rng, 3),), {"n": 4})
    yield Sample((np.array([-0.4, -1.5, -3.3]),), {"n": 2})
    yield Sample((np.array([0.0, -1.0, np.inf, np.nan, 300.0], np.float32),), {"n": 1}, gradient=False)


@special(
    _polygamma_kernel, widened(_polygamma_lower),
    vjp=rule(Saves(x=(0,)), lambda F, y, x, *, n: F.polygamma(x, n=n + 1)), saves=Saves(x=(0,)),
    samples=_polygamma_samples, traits=("full_precision", "inner", "log_sum"), ulp=64, name="polygamma",
    onnx=NO_OPERATOR,
)
def polygamma_of(x: TensorLike, /, *, n: int) -> Tensor:
    """Compute the derivative of order n of `digamma`, for n from 1 on: `polygamma` with its arguments exchanged."""
    return bind(polygamma_of.op, promote_float(x), {"n": n})


def polygamma(n: int, x: TensorLike, /) -> Tensor:
    """Compute the derivative of order n of `digamma` of every element.

    It is infinite at 0 and at the negative integers.

    Args:
        n: a number of Python's, from 0 on; 0 gives `digamma` itself.
        x: any shape; floating-point; integers become float32.

    Returns:
        The shape and dtype of `x`, within 64 units in the last place of the largest of the result, the
        argument and 1.

    Raises:
        ArgumentError: n is no whole number from 0 on.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.polygamma(1, [1.0])
        Tensor([1.644934], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 5.15.
    """
    order = order_of("polygamma", "n", n, 0)
    return polygamma_of(x, n=order) if order else digamma(x)


def order_of(name: str, option: str, value: Any, least: int) -> int:
    """Return an order, which must be a whole number of Python's or NumPy's.

    Raises:
        ArgumentError: it is none, or too small.
    """
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if whole and value >= least:
        return int(value)
    raise ArgumentError(f"{name}: {option}={describe(value)} is no whole number from {least} on",
                        hint=f"Pass an int; call {name} once for each {option} and hf.stack the results.")


def multigammaln(a: TensorLike, d: int, /) -> Tensor:
    """Compute the logarithm of the multivariate gamma function of every element.

    Args:
        a: any shape; floating-point, above ``(d - 1) / 2``, below which the result is NaN; integers become float32.
        d: the dimension, a number of Python's from 1 on.

    Returns:
        The shape and dtype of `a`.

    Raises:
        ArgumentError: d is no whole number from 1 on.
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.multigammaln([2.0], 2)
        Tensor([0.45158267], dtype=float32)

    Reference:
        R. J. Muirhead, Aspects of Multivariate Statistical Theory, 1982, section 2.1.2.
    """
    count = order_of("multigammaln", "d", d, 1)
    (x,) = cast("tuple[Any]", promote_float(a))
    total = gammaln(x) + count * (count - 1) * 0.25 * math.log(math.pi)
    for k in range(1, count):
        total = total + gammaln(x - 0.5 * k)
    return where(x > 0.5 * (count - 1), total, math.nan)


# -- beta ---------------------------------------------------------------------------------------------------------


def betaln_lower(a: Any, b: Any) -> Any:
    """Use Stirling's formula and what is beyond it: the logarithms of large gamma functions would cancel."""
    inside = (a > 0) & (b > 0) & (a < jnp.inf) & (b < jnp.inf)
    low = jnp.where(inside, jnp.minimum(a, b), 1)
    high = jnp.where(inside, jnp.maximum(a, b), 1)
    total = low + high
    beyond = beyond_stirling(low) + beyond_stirling(high) - beyond_stirling(total)
    y = (low - 0.5) * jnp.log(low / total) + high * jnp.log1p(-low / total) + (_HALF_LOG_2_PI - 0.5 * jnp.log(high))
    y = y + beyond
    least, most = jnp.minimum(a, b), jnp.maximum(a, b)
    outside = jnp.where((least == 0) & (most < jnp.inf), jnp.inf, jnp.nan)
    outside = jnp.where((least > 0) & (most == jnp.inf), -jnp.inf, outside)
    return jnp.where(inside, y, outside.astype(a.dtype))


def _positive(name: str, endless: float) -> Any:
    """Return SciPy's kernel of two positive arguments, and of infinite ones what its limits are."""

    def kernel(a: Any, b: Any) -> Any:
        least, most = np.minimum(a, b), np.maximum(a, b)
        inside = (least > 0) & (most < np.inf)
        y = by_scipy(name, np.where(inside, a, 1).astype(a.dtype), np.where(inside, b, 1).astype(a.dtype))
        outside = np.where((least == 0) & (most < np.inf), np.inf, np.nan)
        return np.where(inside, y, np.where((least > 0) & (most == np.inf), endless, outside)).astype(a.dtype)

    return kernel


_BETA_ENDS = [[a, b] for a in (0.0, 2.0, -1.5, np.inf, np.nan) for b in (0.0, 0.5, np.inf, 30.0)]
_AT_ENDS = [Sample(tuple(np.array(_BETA_ENDS, dtype).T), gradient=False) for dtype in (np.float32, np.float64)]


@special_pair(
    _positive("betaln", -math.inf), widened(betaln_lower),
    vjp=rule(
        _BOTH,
        lambda F, y, a, b: F.digamma(a) - F.digamma(a + b),
        lambda F, y, a, b: F.digamma(b) - F.digamma(a + b),
    ),
    saves=_BOTH, samples=row_samples(positives, positives, more=_AT_ENDS), ulp=64,
    traits=("full_precision", "log_sum", "commutative"), onnx=NO_OPERATOR,
)
def betaln(a: TensorLike, b: TensorLike, /) -> Tensor:
    """Compute the logarithm of the beta function elementwise.

    Args:
        a, b: floating-point, positive (NaN comes of negative ones), of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 64 units in the last place of the largest of the result, the
        arguments and 1.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.betaln([2.0], [3.0])
        Tensor([-2.4849067], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, sections 5.12 and 5.11.
    """
    return bind(betaln.op, promote_float(a, b))


def _beta_slope(F: Any, y: Any, a: Any, b: Any) -> Any:
    return y * (F.digamma(a) - F.digamma(a + b))


@special_pair(
    _positive("beta", 0.0), widened(lambda a, b: jnp.exp(betaln_lower(a, b))),
    vjp=rule(Saves(x=(0, 1), y=True), _beta_slope, lambda F, y, a, b: _beta_slope(F, y, b, a)),
    saves=Saves(x=(0, 1), y=True), samples=row_samples(positives, positives, more=_AT_ENDS), ulp=256,
    traits=("full_precision", "commutative"), onnx=NO_OPERATOR,
)
def beta(a: TensorLike, b: TensorLike, /) -> Tensor:
    """Compute the beta function elementwise, ``gamma(a) * gamma(b) / gamma(a + b)``.

    Args:
        a, b: floating-point, positive (NaN comes of negative ones), of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, within 256 units in the last place for arguments up to 50.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.special.beta([2.0], [4.0])
        Tensor([0.05], dtype=float32)

    Reference:
        NIST Digital Library of Mathematical Functions, section 5.12.
    """
    return bind(beta.op, promote_float(a, b))


__all__ = ["beta", "betaln", "multigammaln", "polygamma", "zeta"]

"""The functions of `hf.special` of one argument: a table, a row for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import OpFunction, Saves
from hybridflow.ops.common import Sample, Tensor, TensorLike, normals, positives, promote_float
from hybridflow.ops.special.common import (
    NO_OPERATOR,
    Slope,
    horner,
    jaxes,
    row_samples,
    rule,
    scipys,
    special,
    widened,
)

_DOC = """{says}

{about}

Args:
    x: any shape; {domain}; integers become float32.

Returns:
    The same shape and dtype, within {ulp} units in the last place{of}.

Raises:
    DTypeError: complex elements.

Example:
    >>> import hybridflow as hf
    >>> hf.special.{name}([{given}])
    Tensor([{result}], dtype=float32)

Reference:
    {reference}
"""
_HANDBOOK = "NIST Digital Library of Mathematical Functions, "


def _row(
    name: str,
    says: str,
    slope: Slope,
    *,
    about: str,
    example: tuple[str, str],
    reference: str,
    lower: Callable[..., Any] | None = None,
    kernel: Callable[..., Any] | None = None,
    keeps: str = "x",
    draw: Callable[..., Any] = normals,
    ends: tuple[float, ...] = (),
    domain: str = "floating-point",
    ulp: float = 4,
    of: str = "",
    own_slope: bool = False,
) -> OpFunction[[TensorLike], Tensor]:
    """Make a function.

    Args:
        name: its name, which is SciPy's and jax's too.
        says: what it does.
        slope: its derivative.
        about, example, reference, domain: parts of its docstring.
        lower, kernel: its lowering and kernel, if they are not jax's and SciPy's functions.
        keeps: which of ``x`` and ``y`` its derivative reads.
        draw: draws arguments of samples.
        ends: arguments at the ends of its domain.
        ulp: the error bound.
        of: what the bound is relative to, if that is not the result alone; the operation then has ``log_sum``.
        own_slope: whether JAX differentiates the lowering by `slope`, because its own derivative is wrong in places.
    """

    def function(x: TensorLike, /) -> Tensor:
        return bind(record.op, promote_float(x))

    function.__name__ = function.__qualname__ = name
    function.__doc__ = _DOC.format(
        says=says, about=about, domain=domain, ulp=f"{ulp:g}", of=of, name=name, given=example[0], result=example[1],
        reference=reference,
    )
    saves = Saves(x=(0,) if "x" in keeps else (), y="y" in keeps)
    at_ends = [Sample((np.array([*ends, np.nan], dtype),), gradient=False) for dtype in (np.float32, np.float64)]
    lowered = lower or jaxes(name)
    record = special(
        kernel or scipys(name),
        widened(_with_slope(lowered, slope) if own_slope else lowered),
        vjp=rule(saves, slope),
        saves=saves,
        samples=row_samples(draw, more=at_ends),
        traits=("full_precision", *(("log_sum",) if of else ())),
        ulp=ulp,
        onnx=NO_OPERATOR,
    )(function)
    return record


def _with_slope(lower: Callable[..., Any], slope: Slope) -> Callable[..., Any]:
    function = jax.custom_jvp(lower)

    @function.defjvp
    def derivative(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        y = function(*primals)
        return y, tangents[0] * slope(jnp, y, *primals)

    del derivative
    return function


def _odd(name: str) -> Callable[..., Any]:
    """Return SciPy's kernel of an odd function, which is to keep the sign of zeros."""
    return lambda x: np.where(x == 0, x, scipys(name)(x))


_OF_ONE = " of the largest of the result, the argument and 1"
_ROOT_PI, _ROOT_2 = math.sqrt(math.pi), math.sqrt(2)


def _within(low: float, high: float) -> Callable[..., Any]:
    """Return a function that draws arguments from an interval."""

    def draw(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
        return np.asarray(rng.uniform(low, high, shape)).astype(normals(rng, dtype=dtype).dtype)

    return draw


def _near(F: Any, x: Any, limit: float, near: Callable[[Any], Any], far: Callable[[Any], Any]) -> Any:
    """Return one formula near 0 and another elsewhere; both are smooth wherever they are computed."""
    is_near = F.abs(x) < limit
    return F.where(is_near, near(F.where(is_near, x, 0)), far(F.where(is_near, 1, x)))


# -- gamma function and its derivatives ---------------------------------------------------------------------------

gammaln = _row(
    "gammaln", "Compute the logarithm of the absolute value of the gamma function of every element.",
    lambda F, y, x: F.digamma(x), lower=lax.lgamma,
    kernel=lambda x: np.where(x == -np.inf, x.dtype.type(np.inf), scipys("gammaln")(x)),
    about="It is infinite at 0 and at the negative integers. `digamma` is its derivative.",
    example=("4.0", "1.7917595"), reference=_HANDBOOK + "section 5.2.",
    draw=positives, ends=(0, 1, 2, np.inf, 1e4), ulp=32, of=_OF_ONE,
)


def _digamma_lower(x: Any) -> Any:
    y = lax.digamma(x)
    pole = jnp.where(jnp.signbit(x), jnp.inf, -jnp.inf).astype(x.dtype)
    return jnp.where(x == 0, pole, y)


digamma = _row(
    "digamma", "Compute the derivative of the logarithm of the gamma function of every element.",
    lambda F, y, x: F.polygamma(x, n=1), lower=_digamma_lower,
    about="It is NaN at the negative integers, and an infinity at 0. Its derivatives are ``polygamma(n, x)``.",
    example=("1.0", "-0.5772157"), reference=_HANDBOOK + "section 5.2.",
    draw=positives, ends=(0.0, -0.0, 1, -1, np.inf), ulp=32, of=_OF_ONE,
)
psi = digamma

# -- error function -----------------------------------------------------------------------------------------------

erfc = _row(
    "erfc", "Compute one minus the error function of every element, without cancellation.",
    lambda F, y, x: F.exp(-(x * x)) * (-2 / _ROOT_PI), lower=lax.erfc,
    about="For arguments above 9 the bound grows as the square of the argument.",
    example=("3.0", "2.2090497e-05"), reference=_HANDBOOK + "section 7.2.", ends=(0, np.inf, -np.inf), ulp=64,
)

_SCALED_TAIL = [(-1) ** k * math.prod(range(1, 2 * k + 2, 2)) / 2**k for k in range(12)]
"""Of ``-erfcx'(x) x**2 sqrt(pi)`` as a series in ``1 / x**2``."""


def _erfcx_slope(F: Any, y: Any, x: Any) -> Any:
    """Return ``2 x y - 2 / sqrt(pi)``, and its series where the two terms cancel."""
    far = x > 12
    large = F.where(far, x, 12)
    inverse = 1 / (large * large)
    return F.where(far, inverse * horner(_SCALED_TAIL, inverse) * (-1 / _ROOT_PI), 2 * x * y - 2 / _ROOT_PI)


erfcx = _row(
    "erfcx", "Compute ``exp(x * x) * erfc(x)`` of every element, which does not underflow for large ones.",
    _erfcx_slope, keeps="xy", own_slope=True, about="Far below 0, where the result is too large, it is infinite.",
    example=("10.0", "0.05614099"), reference=_HANDBOOK + "sections 7.2 and 7.12.", ends=(0, 50, np.inf, -np.inf),
    ulp=8,
)


def _erfinv_lower(x: Any) -> Any:
    """Refine XLA's result, which has the precision of float32 in float64, by a step of Newton's."""
    size = jnp.abs(x)
    y = lax.erf_inv(size)
    inside = size < 1
    y = jnp.where(inside, y, 0)
    excess = jnp.where(size < 0.5, lax.erf(y) - size, (1 - size) - lax.erfc(y))
    better = y - excess * jnp.exp(y * y) * (_ROOT_PI / 2)
    better = jnp.where(inside, better, jnp.where(size == 1, jnp.inf, jnp.nan).astype(x.dtype))
    return jnp.where(x < 0, -better, jnp.where(x == 0, x, better))


erfinv = _row(
    "erfinv", "Compute the inverse of the error function of every element.",
    lambda F, y, x: F.exp(y * y) * (_ROOT_PI / 2), keeps="y", kernel=_odd("erfinv"), lower=_erfinv_lower,
    about="It is infinite at -1 and 1, and NaN beyond.", domain="floating-point, from -1 to 1",
    example=("0.5", "0.47693628"), reference=_HANDBOOK + "section 7.17.",
    draw=_within(-0.9, 0.9), ends=(0.0, -0.0, 1, -1, 2, -2), ulp=4,
)


def _erfcinv_lower(x: Any) -> Any:
    middle = (x > 0.5) & (x < 1.5)
    near = _erfinv_lower(jnp.where(middle, 1 - x, 0))
    upper = x >= 1.5
    tail = jaxes("ndtri")(jnp.where(middle, 0.25, jnp.where(upper, 2 - x, x) / 2).astype(x.dtype)) / -_ROOT_2
    return jnp.where(middle, near, jnp.where(upper, -tail, tail))


erfcinv = _row(
    "erfcinv", "Compute the inverse of the complementary error function of every element.",
    lambda F, y, x: F.exp(y * y) * (-_ROOT_PI / 2), keeps="y", lower=_erfcinv_lower,
    kernel=lambda x: scipys("erfcinv")(x) + x.dtype.type(0),  # never -0.0
    about="It is infinite at 0 and 2, and NaN beyond.", domain="floating-point, from 0 to 2",
    example=("0.5", "0.47693628"), reference=_HANDBOOK + "section 7.17.",
    draw=_within(0.1, 1.9), ends=(0, 1, 2, -1, 3, 1e-30), ulp=4,
)

# -- normal and logistic distributions ----------------------------------------------------------------------------

_DENSITY = 1 / math.sqrt(2 * math.pi)

ndtr = _row(
    "ndtr", "Compute the normal distribution function of every element: the area under the density below it.",
    lambda F, y, x: F.exp(x * x * -0.5) * _DENSITY,
    about="For arguments below -12 the bound grows as the square of the argument.",
    example=("1.0", "0.8413448"), reference=_HANDBOOK + "section 7.18.", ends=(0, np.inf, -np.inf), ulp=128,
)


_erfcx = _with_slope(jaxes("erfcx"), _erfcx_slope)


def _log_ndtr_lower(x: Any) -> Any:
    right = x > 0
    low, high = jnp.where(right, 0, x), jnp.where(right, x, 0)
    far = low < -1e15  # where erfcx is 0 for some versions of jax, the other term is all
    low = jnp.where(far, -1, low)
    left = jnp.where(far, 0, jnp.log(_erfcx(low / -_ROOT_2) / 2)) - 0.5 * jnp.where(right, 0, x) ** 2
    return jnp.where(right, jnp.log1p(lax.erfc(high / _ROOT_2) / -2), left)


log_ndtr = _row(
    "log_ndtr", "Compute the logarithm of the normal distribution function of every element.",
    lambda F, y, x: math.sqrt(2 / math.pi) / F.erfcx(x * (-1 / _ROOT_2)), lower=_log_ndtr_lower,
    about="It neither underflows below nor loses the small values above 0; up to 6 it is\n"
    "within 64 units, and the bound grows as the square of the argument.",
    example=("-40.0", "-804.60846"), reference=_HANDBOOK + "sections 7.12 and 7.18.",
    draw=_within(-4, 4), ends=(0, np.inf, -np.inf, 5, -50), ulp=1024,
)

ndtri = _row(
    "ndtri", "Compute the inverse of the normal distribution function of every element.",
    lambda F, y, x: F.exp(y * y * 0.5) * math.sqrt(2 * math.pi), keeps="y",
    about="It is infinite at 0 and 1, and NaN beyond.", domain="floating-point, from 0 to 1",
    example=("0.975", "1.9599644"), reference="M. J. Wichura, \"Algorithm AS 241\", Applied Statistics 37, 1988.",
    draw=_within(0.05, 0.95), ends=(0, 0.5, 1, -1, 2, 1e-30), ulp=8,
)

expit = _row(
    "expit", "Compute the logistic function ``1 / (1 + exp(-x))`` of every element.",
    lambda F, y, x: F.expit(x) * F.expit(-x), lower=lax.logistic,
    about="It is `hf.nn.sigmoid`, except that its derivative keeps its precision for large arguments.",
    example=("0.0", "0.5"), reference=_HANDBOOK + "section 4.2, for the exponential.", ends=(np.inf, -np.inf, 80, -80),
)


def _logit_lower(x: Any) -> Any:
    middle = (x > 0.25) & (x < 0.75)
    twice = jnp.where(middle, 2 * x - 1, 0)
    outside = jnp.where(middle, 0.2, x)
    return jnp.where(middle, lax.log1p(twice) - lax.log1p(-twice), lax.log(outside) - lax.log1p(-outside))


logit = _row(
    "logit", "Compute ``log(x / (1 - x))`` of every element, the inverse of `expit`.",
    lambda F, y, x: 1 / (x * (1 - x)), lower=_logit_lower,
    about="It is infinite at 0 and 1, and NaN beyond.", domain="floating-point, from 0 to 1",
    example=("0.75", "1.0986123"), reference=_HANDBOOK + "section 4.2, for the logarithm.",
    draw=_within(0.05, 0.95), ends=(0, 0.5, 1, -1, 2, 1e-30), ulp=4,
)

# -- entropy ------------------------------------------------------------------------------------------------------

entr = _row(
    "entr", "Compute ``-x * log(x)`` of every element: 0 at 0, and minus infinity below.",
    lambda F, y, x: -F.log(x) - 1, lower=lambda x: jnp.where(x == 0, 0, jaxes("entr")(x)),
    about="Its sum over probabilities is their entropy.",
    example=("0.5", "0.3465736"), reference="T. M. Cover and J. A. Thomas, Elements of Information Theory, 2006.",
    draw=positives, ends=(0.0, -0.0, 1, -1, np.inf), ulp=4,
)

# -- Bessel functions ---------------------------------------------------------------------------------------------

_I1_BY_X = [0.5 / (4**k * math.factorial(k) * math.factorial(k + 1)) for k in range(10)]


def _i1_by_x(F: Any, y: Any, x: Any, scaled: bool) -> Any:
    """Return ``i1(x) / x`` or ``i1e(x) / x``, which have a limit at 0; `y` is their numerator."""
    is_near = F.abs(x) < 1
    small = F.where(is_near, x, 0)
    series = horner(_I1_BY_X, small * small)
    return F.where(is_near, series * F.exp(-F.abs(small)) if scaled else series, y / F.where(is_near, 1, x))


_BESSEL = _HANDBOOK + "sections 10.25 and 10.29."

i0 = _row(
    "i0", "Compute the modified Bessel function of the first kind and order 0 of every element.",
    lambda F, y, x: F.i1(x), about="It grows as the exponential function; `i0e` does not.",
    example=("1.0", "1.2660658"), reference=_BESSEL, ends=(0.0, -0.0, 30, -30), ulp=8,
)
i1 = _row(
    "i1", "Compute the modified Bessel function of the first kind and order 1 of every element.",
    lambda F, y, x: F.i0(x) - _i1_by_x(F, y, x, scaled=False), keeps="xy", kernel=_odd("i1"),
    about="It grows as the exponential function; `i1e` does not.",
    example=("1.0", "0.5651591"), reference=_BESSEL, ends=(0.0, -0.0, 30, -30), ulp=16,
)
i0e = _row(
    "i0e", "Compute ``exp(-abs(x)) * i0(x)`` of every element.",
    lambda F, y, x: F.i1e(x) - F.sign(x) * y, keeps="xy", about="There is no derivative at 0; the gradient there is 0.",
    example=("1.0", "0.4657596"), reference=_BESSEL, ends=(0.0, -0.0, 30, -1e4), ulp=8,
)
i1e = _row(
    "i1e", "Compute ``exp(-abs(x)) * i1(x)`` of every element.",
    lambda F, y, x: F.i0e(x) - F.sign(x) * y - _i1_by_x(F, y, x, scaled=True), keeps="xy", kernel=_odd("i1e"),
    about="Its second derivative jumps at 0.",
    example=("1.0", "0.20791042"), reference=_BESSEL, ends=(0.0, -0.0, 30, -1e4), ulp=16,
)

# -- integrals of exponentials and logarithms ---------------------------------------------------------------------


_EXPI_NEAR = [np.euler_gamma, *[1 / (k * math.factorial(k)) for k in range(1, 11)]]


def _exp1_lower(x: Any) -> Any:
    """Sum the series near 0, where jax 0.10 takes ``1 / x`` steps; it also gives NaN at infinity."""
    far = (x > 0.1) & (x < jnp.inf)
    near = -horner(_EXPI_NEAR, -x) - jnp.log(x)
    return jnp.where(far, jaxes("exp1")(jnp.where(far, x, 1)), jnp.where(x == jnp.inf, 0, near))


def _expi_lower(x: Any) -> Any:
    """Sum the series near 0, since jax calls ``exp1`` for negative arguments."""
    far = (abs(x) > 0.1) & (abs(x) < jnp.inf)
    near = horner(_EXPI_NEAR, x) + jnp.log(abs(x))
    return jnp.where(far, jaxes("expi")(jnp.where(far, x, 1)), jnp.where(x == -jnp.inf, -0.0, near))


def _on_positives(x: Any) -> Any:
    y = scipys("exp1")(x)
    return np.where(x < 0, x.dtype.type(np.nan), y)


exp1 = _row(
    "exp1", "Compute the integral of ``exp(-t) / t`` from every element to infinity.",
    lambda F, y, x: -F.exp(-x) / x, kernel=_on_positives, lower=_exp1_lower, own_slope=True,
    about="It is infinite at 0 and NaN below.", domain="floating-point, positive",
    example=("1.0", "0.21938394"), reference=_HANDBOOK + "section 6.2.", draw=positives,
    ends=(0, -1, 1e-30, 1e-6, 0.09, 0.11, 2, 50, np.inf), ulp=16,
)
expi = _row(
    "expi", "Compute the principal value of the integral of ``exp(t) / t`` from minus infinity to every element.",
    lambda F, y, x: F.exp(x) / x, lower=_expi_lower, own_slope=True,
    about="It is minus infinity at 0.",
    example=("1.0", "1.8951178"), reference=_HANDBOOK + "section 6.2.", draw=_within(0.5, 3),
    ends=(0, 1e-6, -1e-6, 0.09, -0.11, -2, 20, -20, np.inf, -np.inf), ulp=32, of=_OF_ONE,
)

_ATANH_SERIES = [1 / (2 * k + 1) for k in range(14)]


def _spence_slope(F: Any, y: Any, x: Any) -> Any:
    """Return ``log(x) / (1 - x)``; near 1, by ``log(1 + t) = 2 atanh(t / (2 + t))``."""

    def series(t: Any) -> Any:
        r = t / (t + 2)
        return horner(_ATANH_SERIES, r * r) * (-2 / (t + 2))

    return _near(F, x - 1, 0.5, series, lambda t: -F.log1p(t) / t)


spence = _row(
    "spence", "Compute the integral of ``log(t) / (1 - t)`` from 1 to every element, Spence's function.",
    _spence_slope, own_slope=True, about="It is the dilogarithm of ``1 - x``, and NaN below 0.",
    domain="floating-point, from 0 on",
    example=("0.0", "1.644934"), reference=_HANDBOOK + "section 25.12.", draw=positives, ends=(0, 1, -1, 1e4), ulp=32,
    of=_OF_ONE,
)

_SINC_SLOPE = [math.pi * (-1) ** k * 2 * k / math.factorial(2 * k + 1) for k in range(1, 12)]


def _sinc_slope(F: Any, y: Any, x: Any) -> Any:
    """Return ``(cos(pi x) - sinc(x)) / x``, which is 0 at 0; near there, by the series of the sine."""
    z = x * math.pi

    def series(z: Any) -> Any:
        return z * horner(_SINC_SLOPE, z * z)

    return _near(F, z, 1.5, series, lambda z: (F.cos(z) - F.sin(z) / z) / z * math.pi)


sinc = _row(
    "sinc", "Compute ``sin(pi * x) / (pi * x)`` of every element, and 1 at 0.",
    _sinc_slope, kernel=lambda x: np.sinc(x).astype(x.dtype, copy=False),
    lower=lambda x: jnp.where(jnp.isinf(x), jnp.nan, jnp.sinc(x)),
    about="It is the normalized one, as in NumPy and SciPy.",
    example=("0.5", "0.63661975"), reference=_HANDBOOK + "section 3.3.", draw=_within(-0.9, 0.9),
    ends=(0, 0.25), ulp=16, of=_OF_ONE,
)

__all__ = [
    "digamma", "entr", "erfc", "erfcinv", "erfcx", "erfinv", "exp1", "expi", "expit", "gammaln", "i0", "i0e", "i1",
    "i1e", "log_ndtr", "logit", "ndtr", "ndtri", "psi", "sinc", "spence",
]

"""Exponentials, logarithms, roots and the error function, elementwise."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.op import Each, Sample, Saves
from hybridflow.ops.blocks import by_xla
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    binary_samples,
    positives,
    promote_float,
    unary_samples,
    unbroadcast,
)
from hybridflow.ops.kinds import analytic, floating, real_function, real_pair
from hybridflow.ops.onnx import exp_m1, log_1p
from hybridflow.ops.xla_algebra import hidden_result

# -- exponentials and logarithms ----------------------------------------------------------------------------------


@analytic(np.exp, lax.exp, vjp=lambda F, g, y, x: (g * y,), saves=Saves(y=True), traits=("full_precision",), onnx="Exp")
def exp(x: TensorLike, /) -> Tensor:
    """Compute e to the power of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.exp([0.0])
        Tensor([1.], dtype=float32)
    """
    return bind(exp.op, promote_float(x))


@analytic(
    np.log, lax.log,
    vjp=lambda F, g, y, x: (g / x,), saves=Saves(x=(0,)), samples=unary_samples(positives), traits=("full_precision",),
    onnx="Log",
)
def log(x: TensorLike, /) -> Tensor:
    """Compute the natural logarithm of every element: -inf at 0, NaN below.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.log([1.0])
        Tensor([0.], dtype=float32)
    """
    return bind(log.op, promote_float(x))


def _expm1(parts: Any, make: Any, xp: Any, where: Any) -> Any:
    """Return a function for ``exp(x) - 1`` of complex numbers with C99's special values, from NumPy's or JAX's."""

    def complex_expm1(x: Any) -> Any:
        real, imag = parts(x)
        zero = imag == 0
        finite = abs(imag) < math.inf
        below, above = real == -math.inf, real == math.inf
        less, half = xp.expm1(real), xp.sin(imag * 0.5)
        new_real = where(zero, less, less * xp.cos(imag) - 2 * (half * half))
        new_real = where(below, -1, where(above & ~finite, math.inf, new_real))
        new_real = where(zero & (real == 0), 0, new_real)
        new_imag = where(zero, imag, where(below & ~finite, 0, xp.exp(real) * xp.sin(imag)))
        return make(new_real, new_imag)

    return lambda x: complex_expm1(x) if x.dtype.kind == "c" else xp.expm1(x)


def _lowered_where(condition: Any, a: Any, b: Any) -> Any:
    a, b = (lax.full_like(condition, value, dtype) if not hasattr(value, "dtype") else value
            for value, dtype in ((a, getattr(b, "dtype", None)), (b, getattr(a, "dtype", None))))
    return lax.select(condition, a, b)


def _host_complex(real: Any, imag: Any) -> Any:
    result = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    result.real, result.imag = real, imag
    return result


def _host_where(condition: Any, a: Any, b: Any) -> Any:
    dtype = getattr(a, "dtype", None) or b.dtype
    return np.where(condition, a, b).astype(dtype, copy=False)


def _expm1_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples()(rng)
    z = np.asarray(rng.standard_normal(3) + 1j * rng.standard_normal(3))
    yield Sample((z,))
    yield Sample((z.astype(np.complex64) * 1e-5,), gradient=False)
    special = [0.0, -0.0, 1.0, np.inf, -np.inf, np.nan]
    pairs = np.array([complex(a, b) for a in special for b in special])
    yield Sample((pairs,), gradient=False)


@floating(
    _expm1(lambda x: (x.real, x.imag), _host_complex, np, _host_where),
    _expm1(lambda x: (lax.real(x), lax.imag(x)), lax.complex, lax, _lowered_where),
    vjp=lambda F, g, y, x: (g * (y + 1),), saves=Saves(y=True), samples=_expm1_samples, traits=("full_precision",),
    onnx=exp_m1,
)
def expm1(x: TensorLike, /) -> Tensor:
    """Compute ``exp(x) - 1`` of every element, precisely near 0.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.expm1([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(expm1.op, promote_float(x))


def _log1p_samples(rng: np.random.Generator) -> Any:
    yield from unary_samples(positives)(rng)
    yield Sample((rng.uniform(-0.6, 0.6, 50),))


def _log1p_kernel(x: Any) -> Any:
    """Compute ``log(1 + x)``; NumPy's own function loses digits of small complex numbers."""
    if x.dtype.kind != "c":
        return np.log1p(x)
    wide = x.astype(np.complex128)
    real, imag = wide.real, wide.imag
    near = _host_complex(0.5 * np.log1p(real * (2 + real) + imag * imag), np.arctan2(imag, 1 + real))
    return np.where((np.abs(real) < 0.4) & (np.abs(imag) < 0.4), near, np.log1p(wide)).astype(x.dtype)


cast(Any, _log1p_kernel).of_reals = np.log1p


def _lower_log1p(x: Any) -> Any:
    """Compute ``log(1 + x)``; in float64, XLA's `log1p` is inaccurate near -0.414, where the plain formula is not."""
    if x.dtype != np.float64:
        return lax.log1p(x)
    return lax.select(lax.abs(x) < 0.28, lax.log1p(x), lax.log(1 + x))


@analytic(
    _log1p_kernel, _lower_log1p,
    vjp=lambda F, g, y, x: (g / (1 + x),), saves=Saves(x=(0,)), samples=_log1p_samples, traits=("full_precision",),
    onnx=log_1p,
)
def log1p(x: TensorLike, /) -> Tensor:
    """Compute ``log(1 + x)`` of every element, precisely near 0.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.log1p([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(log1p.op, promote_float(x))


_LOG_2 = math.log(2.0)
_LOG_10 = math.log(10.0)


def _scaled_log(scale: float) -> Any:
    """Return the lowering of a logarithm to another base."""

    def lowered(x: Any) -> Any:
        y = lax.log(x)
        if x.dtype.kind != "c":
            return lax.mul(y, lax.full_like(x, 1 / scale))
        return lax.complex(lax.real(y) * (1 / scale), lax.imag(y) * (1 / scale))

    return lowered


@analytic(
    np.log2, _scaled_log(_LOG_2),
    vjp=lambda F, g, y, x: (g / (x * _LOG_2),), saves=Saves(x=(0,)), samples=unary_samples(positives),
    traits=("full_precision",), onnx=lambda o, x: o.Log(x) * (1 / _LOG_2),
)
def log2(x: TensorLike, /) -> Tensor:
    """Compute the logarithm to base 2 of every element: -inf at 0, NaN below.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.log2([8.0])
        Tensor([3.], dtype=float32)
    """
    return bind(log2.op, promote_float(x))


@analytic(
    np.log10, _scaled_log(_LOG_10),
    vjp=lambda F, g, y, x: (g / (x * _LOG_10),), saves=Saves(x=(0,)), samples=unary_samples(positives),
    traits=("full_precision",), onnx=lambda o, x: o.Log(x) * (1 / _LOG_10),
)
def log10(x: TensorLike, /) -> Tensor:
    """Compute the logarithm to base 10 of every element: -inf at 0, NaN below.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.log10([1.0])
        Tensor([0.], dtype=float32)
    """
    return bind(log10.op, promote_float(x))


def _logaddexp_lower(a: Any, b: Any) -> Any:
    difference = a - b
    unequal = lax.max(a, b) + lax.log1p(lax.exp(-lax.abs(difference)))
    # The difference of two equal infinities is NaN; their sum is the infinity, and NaN stays NaN.
    return lax.select(difference != difference, a + b, unequal)


def _logaddexp_share(F: Any, g: Any, x: Any, other: Any) -> Any:
    equal_infinities = F.logical_and(F.equal(x, other), F.isinf(x))  # of others, the difference is differentiated again
    return unbroadcast(F, g / (1 + F.exp(F.where(equal_infinities, 0, other - x))), x)


def _logaddexp_samples(rng: np.random.Generator) -> Any:
    yield from binary_samples()(rng)
    inf = np.inf
    left, right = np.array([inf, -inf, inf, 1], np.float32), np.array([inf, -inf, 1, -inf], np.float32)
    yield Sample((left, right), gradient=False)


def _logaddexp_onnx(o: Any, a: Any, b: Any) -> Any:
    a, b = o.cast(a, np.float64), o.cast(b, np.float64)  # the two terms may cancel
    away = a - b
    return o.Where(o.IsNaN(away), a + b, o.Max(a, b) + log_1p(o, o.Exp(-o.Abs(away))))


@real_pair(
    np.logaddexp, _logaddexp_lower,
    vjp=Each(
        lambda F, g, y, a, b: _logaddexp_share(F, g, a, b),
        lambda F, g, y, a, b: _logaddexp_share(F, g, b, a),
    ),
    saves=Saves(x=(0, 1)), samples=_logaddexp_samples, traits=("commutative", "full_precision"), ulp=8,
    onnx=_logaddexp_onnx,
)
def logaddexp(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compute ``log(exp(x1) + exp(x2))`` elementwise without overflow.

    Args:
        x1, x2: real, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.logaddexp([1000.0], float("-inf"))
        Tensor([1000.], dtype=float32)
    """
    return bind(logaddexp.op, promote_float(x1, x2))


# -- roots --------------------------------------------------------------------------------------------------------


@analytic(
    np.sqrt, lax.sqrt,
    vjp=lambda F, g, y, x: (g * (0.5 / y),), saves=Saves(y=True), samples=unary_samples(positives), ulp=1, onnx="Sqrt",
)
def sqrt(x: TensorLike, /) -> Tensor:
    """Compute the square root of every element: NaN below 0.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.sqrt([4.0, 9.0])
        Tensor([2., 3.], dtype=float32)
    """
    return bind(sqrt.op, promote_float(x))


@floating(
    lambda x: np.reciprocal(np.sqrt(x)), lambda x: hidden_result(lax.rsqrt(x)),
    vjp=lambda F, g, y, x: (g * (-0.5 * (y * y * y)),), saves=Saves(y=True), samples=unary_samples(positives),
    traits=("full_precision",), onnx=lambda o, x: o.Reciprocal(o.Sqrt(x)),
)
def rsqrt(x: TensorLike, /) -> Tensor:
    """Compute one over the square root of every element: an infinity at 0, NaN below.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.rsqrt([4.0, 16.0])
        Tensor([0.5 , 0.25], dtype=float32)
    """
    return bind(rsqrt.op, promote_float(x))


# -- error function -----------------------------------------------------------------------------------------------

_SLOPE = 2.0 / math.sqrt(math.pi)


@real_function(
    by_xla(lax.erf), lax.erf,
    vjp=lambda F, g, y, x: (g * (_SLOPE * F.exp(-(x * x))),), saves=Saves(x=(0,)), method="erf", onnx="Erf",
)
def erf(x: TensorLike, /) -> Tensor:
    """Compute the error function of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.erf([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(erf.op, promote_float(x))


__all__ = ["erf", "exp", "expm1", "log", "log1p", "log2", "log10", "logaddexp", "rsqrt", "sqrt"]

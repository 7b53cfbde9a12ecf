"""Trigonometric and hyperbolic functions and their inverses, elementwise."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype
from hybridflow.core.op import Each, No, Saves, on_host
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    binary_samples,
    positives,
    promote_float,
    unary_samples,
    unbroadcast,
)
from hybridflow.ops.kinds import analytic, real_pair
from hybridflow.ops.transcendental import _lower_log1p


def _inside(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers from -0.9 to 0.9."""
    return np.asarray(rng.uniform(-0.9, 0.9, shape), dtype=as_dtype(dtype))


def _above_one(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> Any:
    """Draw numbers from 1.2 to 3."""
    return np.asarray(rng.uniform(1.2, 3.0, shape), dtype=as_dtype(dtype))


def _by_parts(lowered: Any) -> Any:
    """Return a lowering of a sine or cosine that splits complex numbers; XLA's own loses digits of small ones."""

    def lower(x: Any) -> Any:
        if x.dtype.kind != "c":
            return lowered(x)
        a, b = lax.real(x), lax.imag(x)
        if lowered is lax.sin:
            return lax.complex(_scaled(lax.sin(a), lax.cosh(b)), _scaled(lax.cos(a), lax.sinh(b)))
        if lowered is lax.cos:
            return lax.complex(_scaled(lax.cos(a), lax.cosh(b)), -_scaled(lax.sin(a), lax.sinh(b)))
        if lowered is lax.sinh:
            return lax.complex(_scaled(lax.cos(b), lax.sinh(a)), _scaled(lax.sin(b), lax.cosh(a)))
        return lax.complex(_scaled(lax.cos(b), lax.cosh(a)), _scaled(lax.sin(b), lax.sinh(a)))

    return lower


def _scaled(x: Any, size: Any) -> Any:
    """Multiply by a positive number that may have overflowed to infinity; 0 stays 0."""
    return lax.select(x == 0, x, x * size)


def _atan_lower(x: Any) -> Any:
    """Compute the inverse tangent; complex numbers go through `atanh`, whose zeros have the right signs."""
    if x.dtype.kind != "c":
        return lax.atan(x)
    turned = lax.atanh(lax.complex(lax.imag(x), lax.real(x)))
    return lax.complex(lax.imag(turned), lax.real(turned))


@analytic(np.sin, _by_parts(lax.sin), "odd", vjp=lambda F, g, y, x: (g * F.cos(x),), saves=Saves(x=(0,)), onnx="Sin")
def sin(x: TensorLike, /) -> Tensor:
    """Compute the sine of every element, an angle in radians.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.sin([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(sin.op, promote_float(x))


@analytic(np.cos, _by_parts(lax.cos), "even", vjp=lambda F, g, y, x: (-g * F.sin(x),), saves=Saves(x=(0,)), onnx="Cos")
def cos(x: TensorLike, /) -> Tensor:
    """Compute the cosine of every element, an angle in radians.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.cos([0.0])
        Tensor([1.], dtype=float32)
    """
    return bind(cos.op, promote_float(x))


@analytic(
    np.tan, lax.tan, "odd",
    vjp=lambda F, g, y, x: (g * (1 + y * y),), saves=Saves(y=True), samples=unary_samples(_inside),
    traits=("full_precision",), onnx="Tan",
)
def tan(x: TensorLike, /) -> Tensor:
    """Compute the tangent of every element, an angle in radians.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.tan([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(tan.op, promote_float(x))


@analytic(
    np.arcsin, lax.asin, "odd",
    vjp=lambda F, g, y, x: (g * F.rsqrt(1 - x * x),), saves=Saves(x=(0,)), samples=unary_samples(_inside),
    traits=("full_precision",), onnx="Asin",
)
def asin(x: TensorLike, /) -> Tensor:
    """Compute the angle in radians whose sine is each element; NaN outside [-1, 1].

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.asin([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(asin.op, promote_float(x))


@analytic(
    np.arccos, lax.acos,
    vjp=lambda F, g, y, x: (-g * F.rsqrt(1 - x * x),), saves=Saves(x=(0,)), samples=unary_samples(_inside),
    traits=("full_precision",), onnx="Acos",
)
def acos(x: TensorLike, /) -> Tensor:
    """Compute the angle in radians whose cosine is each element; NaN outside [-1, 1].

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.acos([1.0])
        Tensor([0.], dtype=float32)
    """
    return bind(acos.op, promote_float(x))


@analytic(np.arctan, _atan_lower, "odd", vjp=lambda F, g, y, x: (g / (1 + x * x),), saves=Saves(x=(0,)), onnx="Atan")
def atan(x: TensorLike, /) -> Tensor:
    """Compute the angle in radians whose tangent is each element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.atan([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(atan.op, promote_float(x))


@analytic(
    np.sinh, _by_parts(lax.sinh), "odd",
    vjp=lambda F, g, y, x: (g * F.cosh(x),), saves=Saves(x=(0,)), traits=("full_precision",), onnx="Sinh",
)
def sinh(x: TensorLike, /) -> Tensor:
    """Compute the hyperbolic sine of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.sinh([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(sinh.op, promote_float(x))


@analytic(
    np.cosh, _by_parts(lax.cosh), "even",
    vjp=lambda F, g, y, x: (g * F.sinh(x),), saves=Saves(x=(0,)), traits=("full_precision",), onnx="Cosh",
)
def cosh(x: TensorLike, /) -> Tensor:
    """Compute the hyperbolic cosine of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.cosh([0.0])
        Tensor([1.], dtype=float32)
    """
    return bind(cosh.op, promote_float(x))


def _tanh_kernel(x: Any) -> Any:
    """Compute tanh as NumPy does, but beside an infinite real part give a zero the sign of the imaginary part."""
    y: Any = np.tanh(x)
    if x.dtype.kind == "c":
        far = np.isinf(x.real) & np.isfinite(x.imag)
        if far.any():
            y = np.array(y)
            y.imag = np.where(far, np.copysign(y.real.dtype.type(0), x.imag), y.imag)
    return y


cast(Any, _tanh_kernel).of_reals = np.tanh


def _tanh_host(g: Any, y: Any, x: Any) -> Any:
    del x
    if not y.ndim:
        return None
    slope = y * y
    slope *= g
    return (np.subtract(g, slope, slope),)


def _tanh_lower(x: Any) -> Any:
    y = lax.tanh(x)
    if x.dtype.kind != "c":
        return y
    imag = lax.imag(y)
    return lax.complex(lax.real(y), lax.select(lax.real(x) == np.inf, lax.full_like(imag, 0), imag))


@analytic(
    _tanh_kernel, _tanh_lower, "odd",
    vjp=on_host(lambda F, g, y, x: (g - g * (y * y),), _tanh_host), saves=Saves(y=True), onnx="Tanh",
)
def tanh(x: TensorLike, /) -> Tensor:
    """Compute the hyperbolic tangent elementwise.

    Args:
        x: floating-point; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.tanh([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(tanh.op, promote_float(x))


@analytic(
    np.arcsinh, lax.asinh, "odd",
    vjp=lambda F, g, y, x: (g * F.rsqrt(x * x + 1),), saves=Saves(x=(0,)), onnx="Asinh",
)
def asinh(x: TensorLike, /) -> Tensor:
    """Compute the inverse hyperbolic sine of every element.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.asinh([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(asinh.op, promote_float(x))


@analytic(
    np.arccosh, lax.acosh,
    vjp=lambda F, g, y, x: (g * F.rsqrt((x - 1) * (x + 1)),), saves=Saves(x=(0,)), samples=unary_samples(_above_one),
    traits=("full_precision",), onnx="Acosh",
)
def acosh(x: TensorLike, /) -> Tensor:
    """Compute the inverse hyperbolic cosine of every element; NaN below 1.

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.acosh([1.0])
        Tensor([0.], dtype=float32)
    """
    return bind(acosh.op, promote_float(x))


def _atanh_lower(x: Any) -> Any:
    """Compute atanh as XLA does, but in float64, where XLA is inaccurate, from better logarithms."""
    return lax.atanh(x) if x.dtype != np.float64 else 0.5 * (_lower_log1p(x) - _lower_log1p(-x))


@analytic(
    np.arctanh, _atanh_lower, "odd",
    vjp=lambda F, g, y, x: (g / (1 - x * x),), saves=Saves(x=(0,)), samples=unary_samples(_inside),
    traits=("full_precision",), onnx="Atanh",
)
def atanh(x: TensorLike, /) -> Tensor:
    """Compute the inverse hyperbolic tangent of every element; NaN outside [-1, 1].

    Args:
        x: any shape; integers become float32.

    Returns:
        The same shape and dtype.

    Example:
        >>> import hybridflow as hf
        >>> hf.atanh([0.0])
        Tensor([0.], dtype=float32)
    """
    return bind(atanh.op, promote_float(x))


@real_pair(
    np.arctan2, lax.atan2,
    vjp=Each(
        lambda F, g, y, a, b: unbroadcast(F, g * b / (a * a + b * b), a),
        lambda F, g, y, a, b: unbroadcast(F, -g * a / (a * a + b * b), b),
    ),
    saves=Saves(x=(0, 1)), samples=binary_samples(positives), onnx=No("ONNX has no arc tangent of two numbers"),
)
def atan2(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compute the angle in radians of the point ``(x2, x1)`` elementwise, in its quadrant.

    Args:
        x1, x2: real, of shapes that broadcast; integers become float32.

    Returns:
        The promoted floating-point dtype, from -pi to pi.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: complex operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.atan2([0.0], 1.0)
        Tensor([0.], dtype=float32)
    """
    return bind(atan2.op, promote_float(x1, x2))


__all__ = ["acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cos", "cosh", "sin", "sinh", "tan", "tanh"]

"""Parts of complex numbers, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import kind_of, real_dtype
from hybridflow.core.op import Bad, Sample, op
from hybridflow.core.operators import add_method
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    make_spec,
    no_flops,
    normals,
    pointwise,
    promote_float,
    require_kind,
)
from hybridflow.ops.creation import zeros_like
from hybridflow.ops.onnx import COMPLEX
from hybridflow.ops.trigonometric import atan2


def _complex_normals(rng: np.random.Generator, *shape: int, dtype: Any = np.complex64) -> Any:
    return np.asarray(normals(rng, *shape) + 1j * normals(rng, *shape), dtype=dtype)


def _complex_samples(rng: np.random.Generator) -> Any:
    yield Sample((_complex_normals(rng, 3, 4),))
    yield Sample((_complex_normals(rng),))
    yield Sample((_complex_normals(rng, 0, 2),))
    yield Sample((_complex_normals(rng, 5, dtype=np.complex128),))
    special = np.array([complex(-0.0, 0.0), complex(0.0, -0.0), complex(np.inf, np.nan)], np.complex64)
    yield Sample((special,), gradient=False)
    yield Bad((np.array([True]),), error=TypeError, text="does not take bool")


def _part_infer(name: str) -> Any:
    def infer(x: TensorSpec) -> TensorSpec:
        require_kind(name, ("complex",), x)
        return make_spec(x.shape, real_dtype(x.dtype))

    return infer


@op(
    kernel=np.conj,
    lower=lax.conj,
    infer=pointwise("conj", ("complex",)),
    vjp=lambda F, g, y, x: (F.conj(g),),
    flops=no_flops,
    samples=_complex_samples,
    traits=("pointwise",),
    method="conj",
    ulp=0,
    onnx=COMPLEX,
)
def conj(x: TensorLike, /) -> Tensor:
    """Change the sign of the imaginary part of every element; real numbers stay as they are.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape and dtype.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.conj([1 + 2j])
        Tensor([1.-2.j], dtype=complex64)
    """
    tensor = as_tensor(x)
    require_kind("conj", NUMERIC, tensor.spec)
    return bind(conj.op, (tensor,)) if kind_of(tensor.dtype) == "complex" else tensor


@op(
    kernel=lambda x: np.real(x).copy(),
    lower=lax.real,
    infer=_part_infer("real"),
    vjp=lambda F, g, y, x: (F.astype(g, dtype=x.dtype),),
    flops=no_flops,
    samples=_complex_samples,
    traits=("pointwise",),
    ulp=0,
    onnx=COMPLEX,
)
def real(x: TensorLike, /) -> Tensor:
    """Take the real part of every element.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape; floats of the width of the complex numbers. Real numbers stay as they are.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.real([1 + 2j])
        Tensor([1.], dtype=float32)
    """
    tensor = as_tensor(x)
    require_kind("real", NUMERIC, tensor.spec)
    return bind(real.op, (tensor,)) if kind_of(tensor.dtype) == "complex" else tensor


@op(
    kernel=lambda x: np.imag(x).copy(),
    lower=lax.imag,
    infer=_part_infer("imag"),
    vjp=lambda F, g, y, x: (g * -1j,),
    flops=no_flops,
    samples=_complex_samples,
    traits=("pointwise",),
    ulp=0,
    onnx=COMPLEX,
)
def imag(x: TensorLike, /) -> Tensor:
    """Take the imaginary part of every element.

    Args:
        x: any shape; numeric.

    Returns:
        The same shape; floats of the width of the complex numbers. Of real numbers zeros, in their dtype.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.imag([1 + 2j])
        Tensor([2.], dtype=float32)
    """
    tensor = as_tensor(x)
    require_kind("imag", NUMERIC, tensor.spec)
    return bind(imag.op, (tensor,)) if kind_of(tensor.dtype) == "complex" else zeros_like(tensor)


def angle(x: TensorLike, /) -> Tensor:
    """Compute the angle of every element with the positive real axis, in radians from -pi to pi.

    Its gradient at 0, where every angle is as good, is NaN.

    Args:
        x: any shape; numeric. A real number has the angle 0, or pi if it is negative.

    Returns:
        The same shape; floats of the width of the complex numbers; integers give float32.

    Raises:
        DTypeError: bool elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.angle([3.0, 2j, -1.0])
        Tensor([0.       , 1.5707964, 3.1415927], dtype=float32)
    """
    tensor = as_tensor(x)
    require_kind("angle", NUMERIC, tensor.spec)
    (tensor,) = promote_float(tensor)
    return atan2(imag(tensor), real(tensor))


add_method("real", real, as_property=True)
add_method("imag", imag, as_property=True)


__all__ = ["angle", "conj", "imag", "real"]

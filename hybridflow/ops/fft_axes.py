"""Discrete Fourier transforms over any axes: the operations, and the functions that bind them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from hybridflow.core.dims import Dim, Size, evaluate
from hybridflow.core.dtypes import complex_dtype, kind_of, real_dtype
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import Bad, Sample, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    make_spec,
    normals,
    require_kind,
)
from hybridflow.ops.fft_call import OTHER_WAY, Axes, transform
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.onnx import COMPLEX
from hybridflow.ops.padding import along

# -- the four transforms ------------------------------------------------------------------------------------------


def _flops(output: TensorSpec, x: TensorSpec, *, axes: Axes, **attrs: Any) -> Any:
    del attrs
    shape = x.shape if kind_of(x.dtype) == "float" else output.shape
    count = 1
    for axis in axes:
        size = shape[axis]
        count = count * (evaluate(size, size.scope.hints) if isinstance(size, Dim) else size)
    return 5 * max(x.size, output.size) * math.ceil(math.log2(count) if count > 1 else 1)


def _in_turn(x: Any, axes: Axes, transform: Callable[[Any, Axes], Any]) -> Any:
    """Transform three axes at a time, which is the most that jax takes."""
    if not x.size:
        return x
    for first in range(0, len(axes), 3):
        x = transform(x, axes[first : first + 3])
    return x


def _complex_infer(name: str) -> Callable[..., TensorSpec]:
    def infer(x: TensorSpec, *, axes: Axes, norm: str) -> TensorSpec:
        del axes, norm
        require_kind(name, ("complex",), x)
        return make_spec(x.shape, x.dtype)

    return infer


def _complex_normals(rng: np.random.Generator, *shape: int, dtype: Any = np.complex64) -> Any:
    return np.asarray(rng.standard_normal(shape) + 1j * rng.standard_normal(shape), dtype=dtype)


def _complex_samples(rng: np.random.Generator) -> Any:
    yield Sample((_complex_normals(rng, 2, 3),), {"axes": (1,)})
    yield Sample((_complex_normals(rng, 4, 3, dtype=np.complex128),), {"norm": "ortho"})
    yield Sample((normals(rng, 2, 3),), {"s": (4, 2), "axes": (-2, -1), "norm": "forward"}, gradient=False)
    yield Sample((_complex_normals(rng, 2, 1, 2, 3, 2),), {"axes": (0, 2, 3, 4)}, gradient=False)
    yield Sample((_complex_normals(rng, 0, 3),), {"axes": (1,)}, gradient=False)
    yield from _bad_samples(rng)


def _bad_samples(rng: np.random.Generator) -> Any:
    yield Bad((normals(rng, 3),), {"axes": (1,)}, error=ShapeError, text="axis 1 is out of range")
    yield Bad((normals(rng, 3),), {"norm": "none"}, error=ArgumentError, text="norm='none' is not one of")
    yield Bad((normals(rng, 3),), {"s": (0,)}, error=ShapeError, text="transformed axis 0 has size 0")
    yield Bad((normals(rng, 3),), {"s": (2, 2)}, error=ShapeError, text="2 sizes for 1 axes")
    yield Bad((normals(rng, 3, dtype="bfloat16"),), error=DTypeError, text="does not take bfloat16")
    yield Bad((normals(rng, 3) > 0,), error=DTypeError, text="does not take bool")


@op(
    kernel=lambda x, axes, norm: np.fft.fftn(x, axes=axes, norm=norm),
    lower=lambda x, axes, norm: _in_turn(x, axes, lambda x, some: jnp.fft.fftn(x, axes=some, norm=norm)),
    infer=_complex_infer("fftn"),
    vjp=lambda F, g, y, x, *, axes, norm: (F.fftn(g, axes=axes, norm=norm),),
    flops=_flops,
    samples=_complex_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=COMPLEX,
    padded=along(name="axes"),
)
def fftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Transform over several axes.

    Args:
        x: real or complex; integers become float32.
        s: the sizes of the transformed axes in the result; `x` is cut or filled with zeros at the end.
        axes: the axes; the last ones if only `s` is given, else all.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.real(hf.fft.fftn([[1.0, 2.0], [3.0, 4.0]]))
        Tensor([[10., -2.],
                [-4.,  0.]], dtype=float32)
    """
    if other:
        return respelled(fftn, locals())
    return transform("fftn", x, s, axes, norm)


@op(
    kernel=lambda x, axes, norm: np.fft.ifftn(x, axes=axes, norm=norm),
    lower=lambda x, axes, norm: _in_turn(x, axes, lambda x, some: jnp.fft.ifftn(x, axes=some, norm=norm)),
    infer=_complex_infer("ifftn"),
    vjp=lambda F, g, y, x, *, axes, norm: (F.ifftn(g, axes=axes, norm=norm),),
    flops=_flops,
    samples=_complex_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=COMPLEX,
    padded=along(name="axes"),
)
def ifftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Undo `fftn`.

    Args:
        x: real or complex; integers become float32.
        s: the sizes of the transformed axes in the result; `x` is cut or filled with zeros at the end.
        axes: the axes; the last ones if only `s` is given, else all.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, complex.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.real(hf.fft.ifftn(hf.fft.fftn([[1.0, 2.0], [3.0, 4.0]])))
        Tensor([[1., 2.],
                [3., 4.]], dtype=float32)
    """
    if other:
        return respelled(ifftn, locals())
    return transform("ifftn", x, s, axes, norm)


def _rfftn_infer(x: TensorSpec, *, axes: Axes, norm: str) -> TensorSpec:
    del norm
    require_kind("rfftn", ("float",), x)
    shape = list(x.shape)
    shape[axes[-1]] = shape[axes[-1]] // 2 + 1
    return make_spec(tuple(shape), complex_dtype(x.dtype))


def _rfftn_lower(x: Any, *, axes: Axes, norm: str) -> Any:
    if not x.size:
        spec = _rfftn_infer(make_spec(x.shape, x.dtype), axes=axes, norm=norm)
        return jnp.zeros(spec.shape, spec.dtype)
    half = jnp.fft.rfft(x, axis=axes[-1], norm=norm)
    return _in_turn(half, axes[:-1], lambda x, some: jnp.fft.fftn(x, axes=some, norm=norm))


def _rfftn_vjp(F: Any, g: Any, y: Any, x: Any, *, axes: Axes, norm: str) -> Any:
    del y
    last = axes[-1]
    full = F.slice_scatter(g, shape=x.shape, index=part_of(x.shape, last, 0, g.shape[last]))
    return (F.real(F.fftn(full, axes=axes, norm=norm)),)


def _rfftn_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 5),), {"axes": (1,)})
    yield Sample((normals(rng, 3, 4, dtype="float64"),), {"norm": "ortho"})
    yield Sample((normals(rng, 0, 3),), {"axes": (1,)}, gradient=False)
    yield Bad((_complex_normals(rng, 3),), error=DTypeError, text="does not take complex64")
    yield from _bad_samples(rng)


@op(
    kernel=lambda x, axes, norm: np.fft.rfftn(x, axes=axes, norm=norm),
    lower=_rfftn_lower,
    infer=_rfftn_infer,
    vjp=_rfftn_vjp,
    flops=_flops,
    samples=_rfftn_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=COMPLEX,
    padded=along(name="axes"),
)
def rfftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Transform real numbers over several axes; of the last one, only the half that determines the rest is returned.

    Args:
        x: real; integers become float32.
        s: the sizes to which the axes of `x` are cut or filled with zeros first.
        axes: the axes; the last ones if only `s` is given, else all.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex; its last transformed axis has ``n // 2 + 1`` elements.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, complex, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.rfftn([[1.0, 2.0, 3.0], [3.0, 4.0, 5.0]]).shape
        (2, 2)
    """
    if other:
        return respelled(rfftn, locals())
    return transform("rfftn", x, s, axes, norm)


def _irfftn_infer(x: TensorSpec, *, axes: Axes, size: Size, norm: str) -> TensorSpec:
    del norm
    require_kind("irfftn", ("complex",), x)
    shape = list(x.shape)
    shape[axes[-1]] = size
    return make_spec(tuple(shape), real_dtype(x.dtype))


def _irfftn_kernel(x: Any, *, axes: Any, size: int, norm: Any) -> Any:
    if len(axes) > 1:
        x = np.fft.ifftn(x, axes=axes[:-1], norm=norm)
    return np.fft.irfft(x, n=size, axis=axes[-1], norm=norm)


def _irfftn_lower(x: Any, *, axes: Axes, size: int, norm: str) -> Any:
    if not x.size:
        spec = _irfftn_infer(make_spec(x.shape, x.dtype), axes=axes, size=size, norm=norm)
        return jnp.zeros(spec.shape, spec.dtype)
    x = _in_turn(x, axes[:-1], lambda x, some: jnp.fft.ifftn(x, axes=some, norm=norm))
    return jnp.fft.irfft(x, n=size, axis=axes[-1], norm=norm)


def _irfftn_vjp(F: Any, g: Any, y: Any, x: Any, *, axes: Axes, size: Size, norm: str) -> Any:
    """Transform the gradient; a frequency that also stands for its mirror image counts twice."""
    del y
    last = axes[-1]
    gradient = F.conj(F.rfftn(g, axes=axes, norm=OTHER_WAY[norm]))
    twice = part_of(x.shape, last, 1, size - x.shape[last])
    return (gradient + F.slice_scatter(F.getitem(gradient, index=twice), shape=x.shape, index=twice),)


def _irfftn_samples(rng: np.random.Generator) -> Any:
    yield Sample((_complex_normals(rng, 2, 3),), {"axes": (1,)})
    yield Sample((_complex_normals(rng, 3, 3, dtype=np.complex128),), {"s": (3, 5), "norm": "ortho"})
    yield Sample((_complex_normals(rng, 0, 3),), {"axes": (1,)}, gradient=False)
    yield from _bad_samples(rng)
    yield Bad((normals(rng, 1),), error=ShapeError, text="transformed axis 0 has size 0")


@op(
    kernel=_irfftn_kernel,
    lower=_irfftn_lower,
    infer=_irfftn_infer,
    vjp=_irfftn_vjp,
    flops=_flops,
    samples=_irfftn_samples,
    traits=("full_precision",),
    ulp=16,
    onnx=COMPLEX,
    padded=along(name="axes"),
)
def irfftn(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Undo `rfftn`.

    The imaginary parts of frequency 0, and of the highest frequency of an even size, are ignored: in a transform of
    real numbers they are 0.

    Args:
        x: complex or real; integers become float32.
        s: the sizes of the transformed axes in the result; the last one is even, ``2 * (m - 1)``, if not given.
        axes: the axes; the last ones if only `s` is given, else all.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, real.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.irfftn(hf.fft.rfftn([[1.0, 2.0], [3.0, 4.0]]))
        Tensor([[1., 2.],
                [3., 4.]], dtype=float32)
    """
    if other:
        return respelled(irfftn, locals())
    return transform("irfftn", x, s, axes, norm)


__all__ = ["fftn", "ifftn", "irfftn", "rfftn"]

"""`hf.fft`: discrete Fourier transforms.

With ``w = exp(-2 pi i / n)`` the transform of `x` is ``y[k] = sum(x[j] w**(j k))``, its inverse divides by ``n``. The
modes of `norm` say where the factor ``1/n`` goes: ``"backward"`` to the inverse, ``"forward"`` to the transform,
``"ortho"`` its root to both. Transforms over several axes are taken over each in turn.

float32 stays float32 and complex64 in both modes. float16 and bfloat16 are not taken.

Reference:
    J. W. Cooley and J. W. Tukey, "An algorithm for the machine calculation of complex Fourier series", Mathematics of
    Computation 19, 1965; ``5 n log2(n)`` FLOPs: C. Van Loan, Computational Frameworks for the Fast Fourier Transform,
    1992, section 1.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax.numpy as jnp
import numpy as np

from hybridflow.core.device import DeviceLike
from hybridflow.core.dims import Dim, Size, evaluate
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import as_dtype, complex_dtype, float32, kind_of, real_dtype
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY, Bad, Sample, op
from hybridflow.core.tensor import asarray
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    make_spec,
    normalize_axis,
    normals,
    require_kind,
)
from hybridflow.ops.complex_parts import conj
from hybridflow.ops.fft_call import OTHER_WAY, Axes, operand, transform
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.joining import concat
from hybridflow.ops.onnx import COMPLEX
from hybridflow.ops.padding import along


def _one(name: str, x: TensorLike, n: int | None, axis: int, norm: str, told: str) -> Tensor:
    return transform(name, x, None if n is None else (n,), (axis,), norm, told)


def fft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Transform over one axis.

    Args:
        x: real or complex; integers become float32.
        n: the size of the axis in the result; `x` is cut or filled with zeros at the end.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.fft([1.0, 0.0, 0.0])
        Tensor([1.+0.j, 1.+0.j, 1.+0.j], dtype=complex64)
    """
    if other:
        return respelled(fft, locals())
    return _one("fftn", x, n, axis, norm, "fft")


def fft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Transform over two axes: `fftn`, whose axes are the last two.

    Args:
        x: real or complex; integers become float32.
        s: the sizes of the transformed axes in the result; `x` is cut or filled with zeros at the end.
        axes: the axes.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.real(hf.fft.fft2([[1.0, 2.0], [3.0, 4.0]]))
        Tensor([[10., -2.],
                [-4.,  0.]], dtype=float32)
    """
    return fftn(x, s=s, axes=axes, norm=norm, **other)


def ifft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Undo `fft2`.

    Args:
        x: real or complex; integers become float32.
        s: the sizes of the transformed axes in the result; `x` is cut or filled with zeros at the end.
        axes: the axes.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, complex.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.real(hf.fft.ifft2(hf.fft.fft2([[1.0, 2.0], [3.0, 4.0]])))
        Tensor([[1., 2.],
                [3., 4.]], dtype=float32)
    """
    return ifftn(x, s=s, axes=axes, norm=norm, **other)


def rfft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Transform real numbers over two axes: `rfftn`, whose axes are the last two.

    Args:
        x: real; integers become float32.
        s: the sizes of the transformed axes that `x` is cut or filled with zeros to, at the end.
        axes: the axes; the last one has only its nonnegative frequencies in the result.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16, bfloat16 or complex elements.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.rfft2(hf.ones((2, 4))).shape
        (2, 3)
    """
    return rfftn(x, s=s, axes=axes, norm=norm, **other)


def irfft2(
    x: TensorLike,
    /,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Undo `rfft2`.

    Args:
        x: the nonnegative frequencies of the last axis, and all of the other.
        s: the sizes of the transformed axes in the result; the last one is even if not given.
        axes: the axes.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, real.

    Raises:
        ShapeError: an axis out of range, named twice or of size 0, or another number of sizes than axes.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.irfft2(hf.fft.rfft2(hf.ones((2, 4)))).shape
        (2, 4)
    """
    return irfftn(x, s=s, axes=axes, norm=norm, **other)


def ifft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Undo `fft`.

    Args:
        x: real or complex; integers become float32.
        n: the size of the axis in the result; `x` is cut or filled with zeros at the end.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, complex.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.ifft([4.0, 0.0])
        Tensor([2.+0.j, 2.+0.j], dtype=complex64)
    """
    if other:
        return respelled(ifft, locals())
    return _one("ifftn", x, n, axis, norm, "ifft")


def rfft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Transform real numbers over one axis, and return the half that determines the rest.

    Args:
        x: real; integers become float32.
        n: the size to which the axis of `x` is cut or filled with zeros first.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, complex; the axis has ``n // 2 + 1`` elements.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, complex, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.rfft([1.0, 0.0, 0.0])
        Tensor([1.+0.j, 1.+0.j], dtype=complex64)
    """
    if other:
        return respelled(rfft, locals())
    return _one("rfftn", x, n, axis, norm, "rfft")


def irfft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Undo `rfft`.

    Args:
        x: complex or real; integers become float32.
        n: the size of the axis in the result; even, ``2 * (m - 1)``, if not given.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, real.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.irfft(hf.fft.rfft([1.0, 2.0, 3.0]), n=3)
        Tensor([1., 2., 3.], dtype=float32)
    """
    if other:
        return respelled(irfft, locals())
    return _one("irfftn", x, n, axis, norm, "irfft")


def hfft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Transform a Hermitian-symmetric signal, of which only the first half is given; the result is real.

    Args:
        x: complex or real; integers become float32.
        n: the size of the axis in the result; even, ``2 * (m - 1)``, if not given.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The transform, real.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.hfft([1.0, 2.0, 3.0])
        Tensor([ 8., -2.,  0., -2.], dtype=float32)
    """
    if other:
        return respelled(hfft, locals())
    return _one("irfftn", conj(operand("hfft", x, real=False)), n, axis, OTHER_WAY.get(norm, norm), "hfft")


def ihfft(
    x: TensorLike, /, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Undo `hfft`.

    Args:
        x: real; integers become float32.
        n: the size to which the axis of `x` is cut or filled with zeros first.
        axis: the axis.
        norm: ``"backward"``, ``"ortho"`` or ``"forward"``.

    Returns:
        The inverse transform, complex; the axis has ``n // 2 + 1`` elements.

    Raises:
        ShapeError: an axis out of range or of size 0.
        ArgumentError: another norm.
        DTypeError: bool, complex, float16 or bfloat16.

    Example:
        >>> import hybridflow as hf
        >>> hf.real(hf.fft.ihfft([8.0, -2.0, 0.0, -2.0]))
        Tensor([1., 2., 3.], dtype=float32)
    """
    if other:
        return respelled(ihfft, locals())
    return conj(_one("rfftn", x, n, axis, OTHER_WAY.get(norm, norm), "ihfft"))


__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]


# -- the frequencies of Fourier transforms, and their order -----------------------------------------------------------


def _frequencies(
    name: str, counts: Callable[[int], Any], n: int, d: float, dtype: Any, device: DeviceLike
) -> Tensor:
    size = n.__index__()
    if size < 1:
        raise ArgumentError(f"{name}: {size} samples", hint="There must be one at least.")
    result_dtype = float32 if dtype is None else as_dtype(dtype)
    if kind_of(result_dtype) != "float":
        raise DTypeError(f"{name}: the frequencies are floats, not {result_dtype}", hint="Pass a float dtype.")
    return asarray((counts(size) / (size * d)).astype(result_dtype), device=device)


def fftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Return the frequencies of the elements of a transform: 0 and up, then the negative ones.

    Args:
        n: the number of samples.
        d: the distance of two samples.
        dtype: a float dtype; float32 if not given.
        device: where to put them.

    Returns:
        ``(n,)``, in cycles per unit of `d`.

    Raises:
        ArgumentError: fewer than one sample.
        DTypeError: a dtype that is not a float.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.fftfreq(4)
        Tensor([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    return _frequencies("fftfreq", lambda n: (np.arange(n) + n // 2) % n - n // 2, n, d, dtype, device)


def rfftfreq(n: int, /, d: float = 1.0, *, dtype: Any = None, device: DeviceLike = None) -> Tensor:
    """Return the frequencies of the elements of a transform of real numbers.

    Args:
        n: the number of samples.
        d: the distance of two samples.
        dtype: a float dtype; float32 if not given.
        device: where to put them.

    Returns:
        ``(n // 2 + 1,)``, in cycles per unit of `d`.

    Raises:
        ArgumentError: fewer than one sample.
        DTypeError: a dtype that is not a float.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.rfftfreq(4)
        Tensor([0.  , 0.25, 0.5 ], dtype=float32)
    """
    return _frequencies("rfftfreq", lambda n: np.arange(n // 2 + 1), n, d, dtype, device)


def _rolled(name: str, x: TensorLike, axes: int | Sequence[int] | None, towards_end: bool) -> Tensor:
    tensor = as_tensor(x)
    given = range(tensor.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    for axis in given:
        along = normalize_axis(name, axis, tensor.ndim)
        size = tensor.shape[along]
        cut = size - size // 2 if towards_end else size // 2
        first, second = part_of(tensor.shape, along, 0, cut), part_of(tensor.shape, along, cut, size - cut)
        getitem = REGISTRY["getitem"]
        tensor = concat([bind(getitem, (tensor,), {"index": part}) for part in (second, first)], axis=along)
    return tensor


def fftshift(x: TensorLike, /, axes: int | Sequence[int] | None = None, **other: Unpack[Other]) -> Tensor:
    """Move frequency 0 from the front to the middle.

    Args:
        x: any dtype.
        axes: the axes; all of them if None.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.fftshift([0, 1, 2, -2, -1])
        Tensor([-2, -1,  0,  1,  2], dtype=int32)
    """
    if other:
        return respelled(fftshift, locals())
    return _rolled("fftshift", x, axes, True)


def ifftshift(x: TensorLike, /, axes: int | Sequence[int] | None = None, **other: Unpack[Other]) -> Tensor:
    """Undo `fftshift`.

    Args:
        x: any dtype.
        axes: the axes; all of them if None.

    Returns:
        The same shape and dtype.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.fft.ifftshift([-2, -1, 0, 1, 2])
        Tensor([ 0,  1,  2, -2, -1], dtype=int32)
    """
    if other:
        return respelled(ifftshift, locals())
    return _rolled("ifftshift", x, axes, False)


# -- discrete Fourier transforms over any axes: the operations, and the functions that bind them ----------------------

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

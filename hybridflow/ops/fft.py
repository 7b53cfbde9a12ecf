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

from hybridflow.core.dims import Dim, Size, evaluate
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION, complex64, complex128, float32, float64, kind_of
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError, message
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY, Bad, Sample, op, public_names
from hybridflow.ops import frequencies
from hybridflow.ops.arrange import pad
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    cast_to,
    make_spec,
    normalize_axis,
    normals,
    require_kind,
    widened,
)
from hybridflow.ops.complex_parts import conj
from hybridflow.ops.frequencies import *  # noqa: F403
from hybridflow.ops.index_keys import part_of
from hybridflow.ops.onnx import COMPLEX

Axes = tuple[int, ...]
_COMPLEX_OF = {float32: complex64, float64: complex128}
_REAL_OF = {complex64: float32, complex128: float64}
_NORMS = ("backward", "ortho", "forward")
_OTHER_WAY = {"backward": "forward", "forward": "backward", "ortho": "ortho"}

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
    """Transform in jax, which takes three axes at a time."""
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
)
def fftn(
    x: TensorLike,
    /,
    *,
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
    return _transform("fftn", x, s, axes, norm)


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
)
def ifftn(
    x: TensorLike,
    /,
    *,
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
    return _transform("ifftn", x, s, axes, norm)


def _rfftn_infer(x: TensorSpec, *, axes: Axes, norm: str) -> TensorSpec:
    del norm
    require_kind("rfftn", ("float",), x)
    shape = list(x.shape)
    shape[axes[-1]] = shape[axes[-1]] // 2 + 1
    return make_spec(tuple(shape), _COMPLEX_OF[x.dtype])


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
)
def rfftn(
    x: TensorLike,
    /,
    *,
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
    return _transform("rfftn", x, s, axes, norm)


def _irfftn_infer(x: TensorSpec, *, axes: Axes, size: Size, norm: str) -> TensorSpec:
    del norm
    require_kind("irfftn", ("complex",), x)
    shape = list(x.shape)
    shape[axes[-1]] = size
    return make_spec(tuple(shape), _REAL_OF[x.dtype])


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
    """Transform back; frequencies that stand for their mirror image too count twice."""
    del y
    last = axes[-1]
    found = F.conj(F.rfftn(g, axes=axes, norm=_OTHER_WAY[norm]))
    twice = part_of(x.shape, last, 1, size - x.shape[last])
    return (found + F.slice_scatter(F.getitem(found, index=twice), shape=x.shape, index=twice),)


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
)
def irfftn(
    x: TensorLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
    **other: Unpack[Other],
) -> Tensor:
    """Undo `rfftn`.

    The imaginary parts that a transform of real numbers does not have (of frequency 0, and of the highest one of an
    even size) are not read.

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
    return _transform("irfftn", x, s, axes, norm)


# -- what the user wrote ------------------------------------------------------------------------------------------


def _transform(
    name: str, x: TensorLike, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, told: str = ""
) -> Tensor:
    """Normalise arguments, resize `x`, and bind a transform.

    Args:
        name: the op.
        x, s, axes, norm: as given.
        told: the name for messages, if not the op's.
    """
    told = told or name
    if norm not in _NORMS:
        raise ArgumentError(message(f"{told}: norm={norm!r} is not one of {list(_NORMS)}"))
    tensor = _operand(told, x, real=name == "rfftn")
    places = _places(told, tensor, s, axes)
    sizes: list[Any] = [tensor.shape[axis] for axis in places] if s is None else list(s)
    attrs: dict[str, Any] = {"axes": places, "norm": norm}
    if name == "irfftn":
        size: Any = sizes[-1] if s is not None else 2 * (sizes[-1] - 1)
        _require_elements(told, tensor, places[-1], size)
        attrs = {"axes": places, "size": size, "norm": norm}
        sizes[-1] = size // 2 + 1
    for axis, size in zip(places, sizes, strict=True):
        _require_elements(told, tensor, axis, size)
        tensor = _resized(tensor, axis, size)
    return bind(REGISTRY[name], (tensor,), attrs)


def _operand(name: str, x: TensorLike, *, real: bool) -> Tensor:
    tensor = widened(as_tensor(x))
    kind = kind_of(tensor.dtype)
    if kind in ("int", "uint"):
        tensor = cast_to(tensor, float32)
    elif kind == "bool" or tensor.dtype.num in LOW_PRECISION or (real and kind == "complex"):
        raise DTypeError(
            message(f"{name}: does not take {tensor.dtype}", got=call_text(name, tensor.spec),
                    hint="Cast it with .astype(...)." if kind != "complex" else "Use fft, or hf.real.")
        )  # fmt: skip
    return tensor if real or kind_of(tensor.dtype) == "complex" else cast_to(tensor, _COMPLEX_OF[tensor.dtype])


def _places(name: str, tensor: Tensor, s: Sequence[int] | None, axes: Sequence[int] | None) -> Axes:
    if axes is None:
        first = tensor.ndim - len(s) if s is not None else 0
        if first < 0 or not tensor.ndim:
            count = 1 if s is None else len(s)
            raise ShapeError(
                message(f"{name}: {count} sizes for {tensor.ndim} axes", got=call_text(name, tensor.spec),
                        hint="Give one size per axis.")
            )  # fmt: skip
        return tuple(range(first, tensor.ndim))
    places = tuple([normalize_axis(name, axis, tensor.ndim) for axis in axes])
    if s is not None and len(s) != len(places):
        raise ShapeError(
            message(f"{name}: {len(s)} sizes for {len(places)} axes", got=call_text(name, tensor.spec),
                    hint="Give one size per axis.")
        )  # fmt: skip
    if not places or len(set(places)) < len(places):
        raise ShapeError(message(f"{name}: axes={tuple(axes)} must name axes, each once", got=str(tensor.spec)))
    return places


def _require_elements(name: str, tensor: Tensor, axis: int, size: Any) -> None:
    if not isinstance(size, Dim) and size < 1:
        raise ShapeError(
            message(f"{name}: the transformed axis {axis} has size {size}", got=call_text(name, tensor.spec),
                    hint="There must be one element at least.")
        )  # fmt: skip


def _resized(tensor: Tensor, axis: int, size: Any) -> Tensor:
    """Cut an axis, or fill it with zeros at its end."""
    own = tensor.shape[axis]
    if own == size:
        return tensor
    if own > size:
        return bind(REGISTRY["getitem"], (tensor,), {"index": part_of(tensor.shape, axis, 0, size)})
    return pad(tensor, [(0, size - own if i == axis else 0) for i in range(tensor.ndim)])


def _one(name: str, x: TensorLike, n: int | None, axis: int, norm: str, told: str) -> Tensor:
    return _transform(name, x, None if n is None else (n,), (axis,), norm, told)


# -- over one axis ------------------------------------------------------------------------------------------------


def fft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
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


def ifft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
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
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
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
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
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
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
) -> Tensor:
    """Transform numbers of which half is given and the other half mirrored and conjugated, so the result is real.

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
    return _one("irfftn", conj(_operand("hfft", x, real=False)), n, axis, _OTHER_WAY.get(norm, norm), "hfft")


def ihfft(
    x: TensorLike, /, *, n: int | None = None, axis: int = -1, norm: str = "backward", **other: Unpack[Other]
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
    return conj(_one("rfftn", x, n, axis, _OTHER_WAY.get(norm, norm), "ihfft"))


__all__ = [*public_names(globals()), *frequencies.__all__]  # pyright: ignore[reportUnsupportedDunderAll]

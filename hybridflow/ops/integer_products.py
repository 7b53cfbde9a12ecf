"""Products of small integers that are added up in int32, exactly: `integer_linear` and `integer_conv`.

Plain products of int8 give int8, as the Array API standard says, and wrap. These do not: a product of two such numbers
has 16 bits, and 65,000 of them fit into an int32. What is larger wraps, in both modes alike.
"""

from __future__ import annotations

from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import int8, int32, uint8
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Stops, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, as_tensor, call_text, make_spec
from hybridflow.ops.nn.host_convolution import convolve
from hybridflow.ops.nn.windows import Sizes, output_sizes, paddings, per_axis, reach, spatial_axes
from hybridflow.ops.padding import dense

EXACT = 512
"""How many products of an 8-bit number and a difference of two are surely added up exactly in float32, whose integers
are exact up to 2**24."""

STOPPED = Stops("a stored integer has no gradient; see fake_quantize")


def _require_stored(name: str, x: TensorSpec, weight: TensorSpec, zero: tuple[TensorSpec, ...], text: str) -> None:
    if x.dtype not in (int8, uint8) or weight.dtype != int8:
        raise DTypeError(
            f"{name}: takes an input of int8 or uint8 and a weight of int8, not {x.dtype} and {weight.dtype}", got=text,
            hint="Quantize them with hf.quantize.quantize_linear."
        )
    for one in zero:
        if one.dtype != x.dtype or one.shape:
            raise DTypeError(f"{name}: the zero point is {one}, not one number of the input's dtype, {x.dtype}",
                             got=text)


def _differences(x: Any, zero_point: Any, dtype: Any) -> Any:
    """Return ``x - zero_point`` in a dtype that holds it."""
    wide = x.astype(dtype)
    return wide if zero_point is None else wide - zero_point.astype(dtype)


# -- linear -------------------------------------------------------------------------------------------------------


def linear_on_host(x: Any, weight: Any, zero_point: Any = None) -> Any:
    """Compute `integer_linear` of NumPy arrays: by products of floats, in parts that are exact."""
    if x.shape[-1] != weight.shape[1] or weight.dtype != int8 or x.dtype not in (int8, uint8):
        raise ValueError("operands that do not fit")  # `bind` then runs the shape rule, which says more
    size, out = weight.shape[1], weight.shape[0]
    rows = _differences(x, zero_point, np.float32).reshape(prod(x.shape[:-1]), size)
    total = np.zeros((rows.shape[0], out), np.int32)
    for start in range(0, size, EXACT):
        part = slice(start, start + EXACT)
        total += products.matmul(rows[:, part], weight[:, part].astype(np.float32).T).astype(np.int32)
    return total.reshape(*x.shape[:-1], out)


def linear_lowered(x: Any, weight: Any, zero_point: Any = None) -> Any:
    """Compute `integer_linear` of jax's arrays: as products of int8, and a correction by the sums of the weights."""
    shift = jnp.int32(0) if zero_point is None else zero_point.astype(jnp.int32)
    if x.dtype == jnp.uint8:
        x, shift = lax.bitcast_convert_type(x ^ np.uint8(128), jnp.int8), shift - 128
    total = lax.dot_general(x, weight, (((x.ndim - 1,), (1,)), ((), ())), preferred_element_type=jnp.int32)
    return total - shift * jnp.sum(weight, 1, dtype=jnp.int32)


def onnx_weight(o: Any, weight: Any, beside: Any) -> tuple[Any, Any]:
    """Return a stored weight for ONNX, and its zero point: of uint8 if it meets uint8.

    Without VNNI, ONNX Runtime adds products of uint8 and int8 up in 16 bits, which saturate: see "Quantize ONNX models"
    in its documentation.
    """
    if beside != uint8:
        return weight, o.value(np.int8(0))
    moved = o.Add(o.cast(weight, np.int32), o.value(np.int32(128)))
    return o.cast(moved, np.uint8), o.value(np.uint8(128))


def _linear_onnx(o: Any, x: Any, weight: Any, zero: Any = None) -> Any:
    weight, middle = onnx_weight(o, weight, x.dtype)
    zero = o.value(np.zeros((), x.dtype)) if zero is None else zero
    return o.MatMulInteger(x, o.Transpose(weight, perm=(1, 0)), zero, middle)


def _conv_onnx(o: Any, x: Any, kernel: Any, zero: Any = None, **attrs: Any) -> Any:
    kernel, middle = onnx_weight(o, kernel, x.dtype)
    zero = o.value(np.zeros((), x.dtype)) if zero is None else zero
    return o.ConvInteger(x, kernel, zero, middle, **onnx_windows(**attrs))


def _infer_linear(x: TensorSpec, weight: TensorSpec, *zero: TensorSpec) -> TensorSpec:
    text = call_text("integer_linear", x, weight, *zero)
    _require_stored("integer_linear", x, weight, zero, text)
    if weight.ndim != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"integer_linear: an input of shape {x.shape} does not fit a weight of shape {weight.shape}",
                         got=text, hint="The input is (..., in), the weight (out, in).")
    return make_spec((*x.shape[:-1], weight.shape[0]), int32)


def stored(rng: np.random.Generator, *shape: int, dtype: Any = np.int8) -> Any:
    """Draw integers from the whole range of a dtype."""
    info = np.iinfo(dtype)
    return np.asarray(rng.integers(info.min, info.max + 1, shape), dtype)


def _linear_samples(rng: np.random.Generator) -> Any:
    x, weight = stored(rng, 3, 4, dtype=np.uint8), stored(rng, 2, 4)
    yield Sample((stored(rng, 32, 40, dtype=np.uint8), stored(rng, 32, 40), np.uint8(100)))
    yield Sample((x[:1], weight))
    yield Sample((stored(rng, 2, 1, 3), stored(rng, 2, 3), np.int8(-7)))
    yield Sample((stored(rng, 5), stored(rng, 2, 5)))
    yield Sample((stored(rng, 0, 5), stored(rng, 4, 5)))
    yield Sample((np.full((20, 1300), 255, np.uint8), np.full((20, 1300), -128, np.int8), np.uint8(0)))
    yield Bad((x, weight.T), error=ShapeError, text="does not fit a weight of shape (4, 2)")
    yield Bad((x, x), error=DTypeError, text="a weight of int8, not uint8 and uint8")


def _shifting(y: TensorSpec, x: TensorSpec, weight: TensorSpec, *zero: TensorSpec) -> Any:
    """Count what the zero point, or the other range of uint8, adds."""
    return y.size + 2 * (x.size + weight.size) if zero or x.dtype == uint8 else 0


@op(
    kernel=linear_on_host,
    lower=linear_lowered,
    infer=_infer_linear,
    vjp=STOPPED,
    flops=MultiplyAdds(lambda y, x, *others: y.size * x.shape[-1],
                       _shifting),
    samples=_linear_samples,
    traits=("dot",),
    onnx=_linear_onnx,
    padded=dense,
)
def integer_linear(x: TensorLike, weight: TensorLike, zero_point: TensorLike | None = None) -> Tensor:
    """Multiply stored integers by a matrix of such and add up in int32: ``(x - zero_point) @ weight.T``.

    Args:
        x: int8 or uint8, ``(..., in)``.
        weight: int8, ``(out, in)``.
        zero_point: the integer of `x` that stands for 0, of shape (); 0 if not given.

    Returns:
        int32, ``(..., out)``.

    Raises:
        ShapeError: the sizes do not fit.
        DTypeError: other dtypes.

    Example:
        >>> import hybridflow as hf
        >>> x = hf.asarray([[100, 100]], dtype="int8")
        >>> hf.quantize.integer_linear(x, x), x @ x.T
        (Tensor([[20000]], dtype=int32), Tensor([[32]], dtype=int8))

    Reference:
        ONNX, operator MatMulInteger.
    """
    given = (x, weight) if zero_point is None else (x, weight, zero_point)
    return bind(integer_linear.op, tuple(map(as_tensor, given)))


# -- conv ---------------------------------------------------------------------------------------------------------


def _parts(x: Any, kernel: Any, groups: int) -> Any:
    """Yield input and kernel in parts of the input channels, so few that their products are exact in float32."""
    into, window = kernel.shape[1], prod(kernel.shape[2:])
    count = max(1, EXACT // window)
    if count >= into:
        yield x, kernel
        return
    split = x.reshape(x.shape[0], groups, into, *x.shape[2:])
    for start in range(0, into, count):
        part = split[:, :, start : start + count]
        yield part.reshape(x.shape[0], -1, *x.shape[2:]), kernel[:, start : start + count]


def conv_on_host(x: Any, kernel: Any, zero_point: Any = None, **attrs: Any) -> Any:
    """Compute `integer_conv` of NumPy arrays."""
    if kernel.dtype != int8 or x.dtype not in (int8, uint8):
        raise ValueError("dtypes that do not fit")  # `bind` then runs the shape rule, which says more
    wide = np.dtype(np.float32 if prod(kernel.shape[2:]) <= EXACT else np.float64)
    total: Any = 0
    for part, weights in _parts(_differences(x, zero_point, wide), kernel.astype(wide), attrs["groups"]):
        total = total + convolve(part, weights, channels_last=False, **attrs).astype(np.int32)
    return total


def conv_lowered(
    x: Any, kernel: Any, zero_point: Any = None, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int
) -> Any:
    """Compute `integer_conv` of jax's arrays: by convolutions of floats, for which XLA:CPU has a library."""
    wide = jnp.float32 if prod(kernel.shape[2:]) <= EXACT else jnp.int32
    total: Any = 0
    for part, weights in _parts(_differences(x, zero_point, wide), kernel.astype(wide), groups):
        y = lax.conv_general_dilated(
            part, weights, stride, padding, rhs_dilation=dilation, feature_group_count=groups,
            precision=lax.Precision.HIGHEST,
        )
        total = total + y.astype(jnp.int32)
    return total


def _infer_conv(
    x: TensorSpec, kernel: TensorSpec, *zero: TensorSpec, stride: Sizes, padding: Any, dilation: Sizes, groups: int
) -> TensorSpec:
    text = call_text("integer_conv", x, kernel, *zero)
    _require_stored("integer_conv", x, kernel, zero, text)
    shape = conv_shape("integer_conv", x, kernel, text, stride, padding, dilation, groups)
    return make_spec(shape, int32)


def conv_shape(
    name: str, x: TensorSpec, kernel: TensorSpec, text: str, stride: Sizes, padding: Any, dilation: Sizes, groups: int
) -> tuple[Any, ...]:
    """Return the shape of a convolution's result; `text` is the call, for an error.

    Raises:
        ShapeError: the channels do not match, or a window is larger than the padded input.
    """
    if kernel.ndim != x.ndim or x.shape[1] != kernel.shape[1] * groups or kernel.shape[0] % groups:
        raise ShapeError(
            f"{name}: {x.shape[1]} channels do not fit a kernel of shape {kernel.shape} in {groups} groups", got=text,
            hint="Kernels are (out, in / groups, *window)."
        )
    spans = reach(tuple(kernel.shape[2:]), dilation)
    return (x.shape[0], kernel.shape[0], *output_sizes(name, tuple(x.shape[2:]), spans, stride, padding, x, kernel))


def _conv_samples(rng: np.random.Generator) -> Any:
    x, kernel = stored(rng, 2, 3, 6, 5, dtype=np.uint8), stored(rng, 4, 3, 3, 2)
    yield Sample((stored(rng, 2, 8, 12, 12, dtype=np.uint8), stored(rng, 16, 8, 3, 3), np.uint8(90)))
    yield Sample((x[:1, :1], kernel[:1, :1], np.uint8(90)), {"stride": (2, 1), "padding": "same"})
    yield Sample((stored(rng, 1, 4, 4, 3), stored(rng, 2, 2, 2, 2), np.int8(5)), {"groups": 2, "dilation": (2, 1)})
    yield Sample((stored(rng, 2, 1, 6), stored(rng, 2, 1, 3)), {"padding": ((2, 0),)})
    yield Sample((stored(rng, 1, 80, 4, 4), stored(rng, 2, 80, 3, 3)))
    yield Sample((stored(rng, 1, 1, 600), stored(rng, 1, 1, 590)))
    other = stored(rng, 4, 2, 3, 3)
    yield Bad((x, other), error=ShapeError, text="3 channels do not fit a kernel of shape (4, 2, 3, 3)")
    yield Bad((x, x), error=DTypeError, text="a weight of int8, not uint8 and uint8")
    yield Bad((x, kernel), {"stride": 0}, error=ArgumentError, text="stride=0 is not an integer")


def conv_attrs(name: str, x: Tensor, kernel: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Return the attributes of a convolution with channels first, every axis spelled out."""
    count = len(spatial_axes(name, x.ndim, False))
    steps, spread = per_axis(name, "stride", stride, count), per_axis(name, "dilation", dilation, count)
    spans = reach(tuple(kernel.shape[2:]), spread)
    pads = paddings(name, padding, tuple(x.shape[2:]), spans, steps) if len(spans) == count else padding
    return {"stride": steps, "padding": pads, "dilation": spread, "groups": int(groups)}


def onnx_windows(stride: Sizes, padding: Any, dilation: Sizes, groups: int) -> dict[str, Any]:
    """Return the attributes of ONNX's convolutions."""
    pads = [*[low for low, _ in padding], *[high for _, high in padding]]
    return {"strides": stride, "pads": pads, "dilations": dilation, "group": groups}


def conv_macs(y: TensorSpec, x: TensorSpec, kernel: TensorSpec, *others: Any, **attrs: Any) -> Any:
    """Count the products of a convolution."""
    del x, others, attrs
    return y.size * prod(kernel.shape[1:])


@op(
    kernel=conv_on_host,
    lower=conv_lowered,
    infer=_infer_conv,
    vjp=STOPPED,
    flops=MultiplyAdds(conv_macs, lambda y, x, kernel, *zero, **attrs: y.size + 2 * x.size + kernel.size),
    samples=_conv_samples,
    traits=("convolution",),
    onnx=_conv_onnx,
)
def integer_conv(
    x: TensorLike, kernel: TensorLike, zero_point: TensorLike | None = None, *, stride: Any = 1,
    padding: Any = "valid", dilation: Any = 1, groups: int = 1,
) -> Tensor:
    """Slide a kernel of stored integers over stored integers and add up in int32.

    Padding stands for 0: for the zero point.

    Args:
        x: int8 or uint8, ``(n, c, *spatial)``.
        kernel: int8, ``(out, c / groups, *window)``.
        zero_point: the integer of `x` that stands for 0, of shape (); 0 if not given.
        stride, padding, dilation, groups: as in `hf.nn.conv`.

    Returns:
        int32, ``(n, out, *spatial)``.

    Raises:
        ShapeError: the channels do not match, or a window is larger than the padded input.
        DTypeError: other dtypes.
        ArgumentError: an invalid stride, dilation or padding.

    Example:
        >>> import hybridflow as hf
        >>> image = hf.asarray([[[100, 100, 100]]], dtype="int8")
        >>> hf.quantize.integer_conv(image, image)
        Tensor([[[30000]]], dtype=int32)

    Reference:
        ONNX, operator ConvInteger.
    """
    given = (x, kernel) if zero_point is None else (x, kernel, zero_point)
    tensors = tuple(map(as_tensor, given))
    attrs = conv_attrs("integer_conv", tensors[0], tensors[1], stride, padding, dilation, groups)
    return bind(integer_conv.op, tensors, attrs)


__all__ = [
    "conv_attrs", "conv_lowered", "conv_macs", "conv_on_host", "conv_shape", "integer_conv", "integer_linear",
    "linear_lowered", "linear_on_host", "onnx_windows", "stored",
]

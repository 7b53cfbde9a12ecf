"""Products of floats with stored weights: `weight_only_linear`, `quantized_linear` and `quantized_conv`."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import DType, float32, int8, uint8
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, op
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    cast_to,
    make_spec,
    normals,
    promote_float,
    require_kind,
)
from hybridflow.ops.integer_products import (
    STOPPED,
    conv_attrs,
    conv_lowered,
    conv_macs,
    conv_on_host,
    conv_shape,
    linear_lowered,
    linear_on_host,
    onnx_weight,
    onnx_windows,
    stored,
)
from hybridflow.ops.jax_rule import RuleFromLowering
from hybridflow.ops.matmul import accumulate_in
from hybridflow.ops.nn.common import compute_dtype
from hybridflow.ops.packing import onnx_unpacked, packed, unpacked
from hybridflow.ops.padding import dense
from hybridflow.ops.quantization import (
    FORMATS,
    in_format,
    quantize_lowered,
    quantize_on_host,
)

# -- weights alone ------------------------------------------------------------------------------------------------


def stored_dtype(dtype: str) -> DType:
    """Return the dtype of an array of weights: uint8 for int4, two of which are in a byte."""
    return np.dtype(np.uint8) if dtype == "int4" else FORMATS[dtype].stored


def _row_of(size: int, dtype: str) -> int:
    """Return how many elements of an array of weights hold a row of so many weights."""
    return (size + 1) // 2 if dtype == "int4" else size


def restored(weight: Any, scale: Any, size: int, dtype: str, group: int | None) -> Any:
    """Return the real weights ``(out, size)`` of stored ones, NumPy's or jax's."""
    values = in_format(unpacked(weight, size) if dtype == "int4" else weight, FORMATS[dtype], scale)
    if group is None:
        return values * scale[:, None]
    return values * scale.repeat(group, 1)[:, :size]


def _weight_on_host(x: Any, weight: Any, scale: Any, *bias: Any, dtype: str, group: int | None) -> Any:
    if weight.dtype != stored_dtype(dtype) or weight.shape[1:] != (_row_of(x.shape[-1], dtype),):
        raise ValueError("weights that do not fit")  # `bind` then runs the shape rule, which says more
    wide = compute_dtype(x.dtype)
    values = restored(weight, scale.astype(wide), x.shape[-1], dtype, group)
    y = products.matmul(x.astype(wide).reshape(-1, x.shape[-1]) if x.ndim > 2 and x.size else x.astype(wide), values.T)
    y = y.reshape(*x.shape[:-1], weight.shape[0])
    return (y + bias[0] if bias else y).astype(x.dtype)


def _weight_lowered(x: Any, weight: Any, scale: Any, *bias: Any, dtype: str, group: int | None) -> Any:
    wide = compute_dtype(np.dtype(x.dtype))
    values = restored(weight, scale.astype(wide), x.shape[-1], dtype, group)
    y = lax.dot_general(
        x.astype(wide), values, (((x.ndim - 1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST,
        preferred_element_type=accumulate_in(x.dtype),
    )
    return (y + bias[0].astype(wide) if bias else y).astype(x.dtype)


def _infer_weight(
    x: TensorSpec, weight: TensorSpec, scale: TensorSpec, *bias: TensorSpec, dtype: str, group: int | None
) -> TensorSpec:
    text = call_text("weight_only_linear", x, weight, scale, *bias)
    require_kind("weight_only_linear", ("float",), x, scale, *bias)
    if weight.dtype != stored_dtype(dtype) or weight.ndim != 2:
        raise DTypeError(f"weight_only_linear: a matrix of {dtype} is stored in {stored_dtype(dtype)}", got=text,
                         hint="Quantize it with hf.quantize.quantize_linear; int4 then with pack_int4.")
    if not x.shape:
        raise ShapeError("weight_only_linear: the input has no axis", got=text, hint="It is (..., in).")
    size = x.shape[-1]
    count = _row_of(size, dtype)
    if weight.shape[1] != count:
        raise ShapeError(
            f"weight_only_linear: {size} inputs in {dtype} take rows of {count}, there are {weight.shape[1]}", got=text,
            hint="The input is (..., in), the weight (out, in)."
        )
    rows = weight.shape[0]
    scales = (rows,) if group is None else (rows, -(-size // group))
    if scale.shape != scales or any([one.shape != (rows,) for one in bias]):
        raise ShapeError(f"weight_only_linear: the scale has shape {scale.shape}, the weight takes {scales}", got=text,
                         hint=f"group={group}; a bias is ({rows},).")
    return make_spec((*x.shape[:-1], rows), x.dtype)


def _scales(rng: np.random.Generator, *shape: int) -> Any:
    return np.asarray(rng.uniform(0.02, 0.1, shape), np.float32)


def _weight_samples(rng: np.random.Generator) -> Any:
    x, weight, scale = normals(rng, 3, 4), stored(rng, 2, 4), _scales(rng, 2)
    yield Sample((x, weight, scale, normals(rng, 2)))
    yield Sample((normals(rng, 32, 16), stored(rng, 16, 16), _scales(rng, 16)))
    int4 = {"dtype": "int4", "group": 3}
    yield Sample((normals(rng, 2, 2, 7), packed(stored(rng, 1, 7) >> 4), _scales(rng, 1, 3)), int4)
    yield Sample((normals(rng, 6), packed(stored(rng, 2, 6) >> 4), _scales(rng, 2, 2)), int4)
    yield Sample((normals(rng, 0, 4), weight, scale))
    yield Sample((x, stored(rng, 2, 4, dtype=np.uint8) & np.uint8(63), scale), {"dtype": "float8_e4m3fn"})
    yield Sample((normals(rng, 3, 4, dtype="bfloat16"), weight, scale), gradient=False)
    yield Bad((x, weight.T, scale), error=ShapeError, text="4 inputs in int8 take rows of 4, there are 2")
    yield Bad((normals(rng), weight[:, :0], scale), error=ShapeError, text="the input has no axis")
    for size, count in ((6, 3), (9, 5)):
        yield Bad((normals(rng, size), packed(stored(rng, 2, 8) >> 4), scale), {"dtype": "int4"}, error=ShapeError,
                  text=f"{size} inputs in int4 take rows of {count}, there are 4")
    yield Bad((x, weight.view(np.uint8), scale), error=DTypeError, text="a matrix of int8 is stored in int8")
    yield Bad((x, weight[:1, :, None], scale[:1]), error=DTypeError, text="a matrix of int8 is stored in int8")
    yield Bad((x, weight, scale), {"dtype": "int4"}, error=DTypeError, text="a matrix of int4 is stored in uint8")
    yield Bad((x, weight, scale), {"group": 2}, error=ShapeError, text="the weight takes (2, 2)")
    yield Bad((x, weight, scale), {"group": 0}, error=ArgumentError, text="group=0 is not a number of weights")


def _onnx_restored(o: Any, weight: Any, scale: Any, size: int, dtype: str, group: int | None) -> Any:
    if FORMATS[dtype].float8 is not None:
        values = FORMATS[dtype].float8
        table = np.arange(256, dtype=np.uint8).view(values).astype(np.float32)
        wide = o.Gather(o.value(table), o.cast(weight, np.int32))
        return wide * o.reshape(scale, (scale.shape[0], 1)) if group is None else o.no("grouped float8 has none")
    values = onnx_unpacked(o, weight, (weight.shape[0], size)) if dtype == "int4" else weight
    zero = o.value(np.zeros(scale.shape, np.int8))
    settings = {"axis": 0} if group is None else {"axis": 1, "block_size": group}
    return o.DequantizeLinear(values, scale, zero, dtypes=[float32], **settings)


def _weight_onnx(
    o: Any, x: Any, weight: Any, scale: Any, bias: Any = None, *, dtype: str, group: int | None
) -> Any:
    values = _onnx_restored(o, weight, scale, x.shape[-1], dtype, group)
    y = o.MatMul(x, o.Transpose(o.cast(values, x.dtype), perm=(1, 0)))
    return y if bias is None else y + bias


def _restoring(y: TensorSpec, x: TensorSpec, weight: TensorSpec, scale: TensorSpec, *bias: Any, **attrs: Any) -> Any:
    """Count the operations that turn stored weights into real ones, and the addition of a bias."""
    del x, scale
    return weight.size * (14 if attrs["dtype"] == "int4" else 2) + y.size * len(bias)


@op(
    kernel=_weight_on_host,
    lower=_weight_lowered,
    infer=_infer_weight,
    vjp=RuleFromLowering("weight_only_linear"),
    saves=Saves(x="all"),
    flops=MultiplyAdds(lambda y, x, *others, **attrs: y.size * x.shape[-1], _restoring),
    samples=_weight_samples,
    traits=("dot",),
    ulp=16,
    onnx=_weight_onnx,
    padded=dense,
)
def weight_only_linear(
    x: TensorLike, weight: TensorLike, scale: TensorLike, bias: TensorLike | None = None, *, dtype: str = "int8",
    group: int | None = None,
) -> Tensor:
    """Compute a linear layer whose weights are quantized: ``x @ (weight * scale).T + bias``.

    The weights become floats where they are multiplied. The gradient reaches `x`, the scale and the bias.

    Args:
        x: floating-point, ``(..., in)``.
        weight: ``(out, in)`` as `quantize_linear` stores it; int4 as `pack_int4` packs it.
        scale: float32, ``(out,)``; or ``(out, ceil(in / group))``, one for each `group` weights of a row.
        bias: ``(out,)``; none if not given.
        dtype: the format: ``"int8"``, ``"int4"``, ``"float8_e4m3fn"`` or ``"float8_e5m2"``.
        group: how many neighbouring weights of a row have a scale in common; all if not given.

    Returns:
        ``(..., out)`` in the dtype of `x`.

    Raises:
        ShapeError: the sizes do not fit.
        DTypeError: weights that are not stored in the format.
        ArgumentError: an unknown format, or a group of no weights.

    Example:
        >>> import hybridflow as hf
        >>> weight = hf.asarray([[1, -2]], dtype="int8")
        >>> hf.quantize.weight_only_linear([10.0, 1.0], weight, [0.5])
        Tensor([4.], dtype=float32)

    Reference:
        Frantar et al., "GPTQ: accurate post-training quantization for generative pre-trained transformers", 2023, for
        scales of groups.
    """
    (value,) = promote_float(x)
    if dtype not in FORMATS or dtype == "uint8":
        raise ArgumentError(f"weight_only_linear: dtype={dtype!r} is no format of weights",
                            hint="Use int8, int4, float8_e4m3fn or float8_e5m2.")
    require_group("weight_only_linear", group)
    given = [value, as_tensor(weight), cast_to(as_tensor(scale), float32)]
    given += [] if bias is None else [cast_to(as_tensor(bias), value.dtype)]
    return bind(weight_only_linear.op, tuple(given), {"dtype": dtype, "group": group})


def require_group(name: str, group: Any) -> None:
    """Raise unless a group is a positive number of weights, or None."""
    if group is not None and (type(group) is not int or group < 1):
        raise ArgumentError(f"{name}: group={group!r} is not a number of weights",
                            hint="Use 32, 64 or 128, or None for all.")


# -- input and weights --------------------------------------------------------------------------------------------


def _scaled(total: Any, x_scale: Any, scale: Any, bias: tuple[Any, ...], axis: int) -> Any:
    """Return the real numbers of sums of products of stored numbers, plus a bias."""
    shape = [-1 if i == axis % total.ndim else 1 for i in range(total.ndim)]
    y = total.astype(x_scale.dtype) * (x_scale * scale).reshape(shape)
    return y + bias[0].reshape(shape) if bias else y


def _linear_on_host(x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any, *bias: Any) -> Any:
    q = quantize_on_host(x, x_scale, x_zero, dtype=str(x_zero.dtype))
    return _scaled(linear_on_host(q, weight, x_zero), x_scale, scale, bias, -1)


def _linear_lowered(x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any, *bias: Any) -> Any:
    q = quantize_lowered(x, x_scale, x_zero, dtype=str(x_zero.dtype))
    return _scaled(linear_lowered(q, weight, x_zero), x_scale, scale, bias, -1)


def _require(name: str, x: TensorSpec, x_scale: TensorSpec, x_zero: TensorSpec, weight: TensorSpec, scale: TensorSpec,
             *bias: TensorSpec) -> str:
    text = call_text(name, x, x_scale, x_zero, weight, scale, *bias)
    require_kind(name, ("float",), x, x_scale, scale, *bias)
    if weight.dtype != int8 or str(x_zero.dtype) not in ("int8", "uint8"):
        raise DTypeError(f"{name}: takes a weight of int8 and a zero point of int8 or uint8, not {weight.dtype} and "
                         f"{x_zero.dtype}", got=text, hint="Quantize the weight with hf.quantize.quantize_linear.")
    if x_scale.shape or x_zero.shape:
        raise ShapeError(f"{name}: scale and zero point of the input are one number each", got=text)
    if any([one.shape != weight.shape[:1] for one in (scale, *bias)]):
        raise ShapeError(f"{name}: the weight takes scales, and a bias, of shape {weight.shape[:1]}", got=text)
    return text


def _infer_linear(x: TensorSpec, *others: TensorSpec) -> TensorSpec:
    text, weight = _require("quantized_linear", x, *others), others[2]
    if weight.ndim != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
        raise ShapeError(f"quantized_linear: an input of shape {x.shape} does not fit a weight of shape {weight.shape}",
                         got=text, hint="The input is (..., in), the weight (out, in).")
    return make_spec((*x.shape[:-1], weight.shape[0]), x.dtype)


def _quantized_samples(rng: np.random.Generator, x: Any, weight: Any) -> Any:
    """Return the operands of a product, with and without a bias."""
    rows = weight.shape[0]
    by = (np.float32(0.03), np.int8(-5), weight, _scales(rng, rows))
    yield (x, *by)
    yield (x, np.float32(0.02), np.uint8(128), weight, _scales(rng, rows), normals(rng, rows))


def _linear_samples(rng: np.random.Generator) -> Any:
    for args in _quantized_samples(rng, normals(rng, 32, 40), stored(rng, 32, 40)):
        yield Sample(args, gradient=False)
    for args in _quantized_samples(rng, normals(rng, 2, 1, 3), stored(rng, 2, 3)):
        yield Sample(args, gradient=False)
    x, scale = normals(rng, 3, 4), np.float32(0.1)
    other = stored(rng, 4, 2)
    yield Bad((x, scale, np.int8(0), other, _scales(rng, 4)), error=ShapeError, text="does not fit a weight")
    yield Bad((x, scale, np.int8(0), x, _scales(rng, 3)), error=DTypeError, text="not float32 and int8")
    yield Bad((x, scale, np.int8(0), stored(rng, 2, 4), _scales(rng, 4)), error=ShapeError, text="of shape (2,)")


def _onnx_operands(o: Any, x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any) -> tuple[Any, Any]:
    """Return input and weight as floats that come from stored integers: the QDQ form, which runtimes fuse."""
    if x_zero.dtype != uint8:
        x_zero = o.cast(o.Add(o.cast(x_zero, np.int32), o.value(np.int32(128))), np.uint8)
    q = o.QuantizeLinear(x, x_scale, x_zero)
    weight, middle = onnx_weight(o, weight, uint8)
    zero = o.Expand(middle, o.ints(scale.shape))
    return (
        o.DequantizeLinear(q, x_scale, x_zero, dtypes=[float32]),
        o.DequantizeLinear(weight, scale, zero, axis=0, dtypes=[float32]),
    )


def _linear_onnx(
    o: Any, x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any, bias: Any = None
) -> Any:
    x, weight = _onnx_operands(o, x, x_scale, x_zero, weight, scale)
    y = o.MatMul(x, o.Transpose(weight, perm=(1, 0)))
    return y if bias is None else y + bias


def _operands(
    x: Any, x_scale: Any, x_zero: Any, weight: Any, scale: Any, bias: Any
) -> tuple[Tensor, ...]:
    (value,) = promote_float(x)
    floats = [value, x_scale, scale, *([] if bias is None else [bias])]
    value, first, second, *rest = [cast_to(as_tensor(one), float32) for one in floats]
    return (value, first, as_tensor(x_zero), as_tensor(weight), second, *rest)


@op(
    kernel=_linear_on_host,
    lower=_linear_lowered,
    infer=_infer_linear,
    vjp=STOPPED,
    flops=MultiplyAdds(lambda y, x, *others: y.size * x.shape[-1],
                       lambda y, x, x_scale, x_zero, weight, *others: 10 * x.size + 2 * weight.size + 3 * y.size),
    samples=_linear_samples,
    traits=("dot",),
    ulp=32,
    onnx=_linear_onnx,
    padded=dense,
)
def quantized_linear(
    x: TensorLike, x_scale: TensorLike, x_zero_point: TensorLike, weight: TensorLike, scale: TensorLike,
    bias: TensorLike | None = None,
) -> Tensor:
    """Compute a linear layer in integers: the input is stored, multiplied, added up in int32, and scaled back.

    In ONNX it is written as QuantizeLinear and DequantizeLinear around a product of floats (QDQ), which runtimes fuse
    into one of integers.

    Args:
        x: floating-point, ``(..., in)``.
        x_scale, x_zero_point: how `x` is stored: float32, and int8 or uint8, of shape (); see `quantize_linear`.
        weight: int8, ``(out, in)``.
        scale: float32, ``(out,)``.
        bias: ``(out,)``; none if not given.

    Returns:
        float32, ``(..., out)``.

    Raises:
        ShapeError: the sizes do not fit.
        DTypeError: other dtypes.

    Example:
        >>> import hybridflow as hf
        >>> weight = hf.asarray([[2, -1]], dtype="int8")
        >>> hf.quantize.quantized_linear([[0.3, 0.1]], 0.1, hf.asarray(0, dtype="int8"), weight, [0.5])
        Tensor([[0.25]], dtype=float32)

    Reference:
        Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
        2018.
    """
    return bind(quantized_linear.op, _operands(x, x_scale, x_zero_point, weight, scale, bias))


def _conv_on_host(x: Any, x_scale: Any, x_zero: Any, kernel: Any, scale: Any, *bias: Any, **attrs: Any) -> Any:
    q = quantize_on_host(x, x_scale, x_zero, dtype=str(x_zero.dtype))
    return _scaled(conv_on_host(q, kernel, x_zero, **attrs), x_scale, scale, bias, 1)


def _conv_lowered(x: Any, x_scale: Any, x_zero: Any, kernel: Any, scale: Any, *bias: Any, **attrs: Any) -> Any:
    q = quantize_lowered(x, x_scale, x_zero, dtype=str(x_zero.dtype))
    return _scaled(conv_lowered(q, kernel, x_zero, **attrs), x_scale, scale, bias, 1)


def _infer_conv(
    x: TensorSpec, *others: TensorSpec, stride: Any, padding: Any, dilation: Any, groups: int
) -> TensorSpec:
    text, kernel = _require("quantized_conv", x, *others), others[2]
    return make_spec(conv_shape("quantized_conv", x, kernel, text, stride, padding, dilation, groups), x.dtype)


def _conv_samples(rng: np.random.Generator) -> Any:
    for args in _quantized_samples(rng, normals(rng, 2, 8, 12, 12), stored(rng, 16, 8, 3, 3)):
        yield Sample(args, gradient=False)
    for args in _quantized_samples(rng, normals(rng, 1, 2, 3, 3), stored(rng, 2, 2, 1, 2)):
        yield Sample(args, {"stride": (2, 1), "padding": ((1, 0), (0, 1))}, gradient=False)
    for args in _quantized_samples(rng, normals(rng, 1, 4, 4), stored(rng, 2, 2, 2)):
        yield Sample(args, {"groups": 2, "dilation": 2}, gradient=False)
    x, kernel = normals(rng, 2, 3, 6, 5), stored(rng, 4, 2, 3, 3)
    by = (np.float32(0.1), np.int8(0), kernel, _scales(rng, 4))
    yield Bad((x, *by), error=ShapeError, text="3 channels do not fit a kernel of shape (4, 2, 3, 3)")


def _conv_onnx(
    o: Any, x: Any, x_scale: Any, x_zero: Any, kernel: Any, scale: Any, bias: Any = None, **attrs: Any
) -> Any:
    x, kernel = _onnx_operands(o, x, x_scale, x_zero, kernel, scale)
    return o.Conv(x, kernel, *[] if bias is None else [bias], **onnx_windows(**attrs))


@op(
    kernel=_conv_on_host,
    lower=_conv_lowered,
    infer=_infer_conv,
    vjp=STOPPED,
    flops=MultiplyAdds(lambda y, x, x_scale, x_zero, kernel, *others, **attrs: conv_macs(y, x, kernel),
                       lambda y, x, x_scale, x_zero, kernel, *others, **attrs: 10 * x.size + kernel.size + 3 * y.size),
    samples=_conv_samples,
    traits=("convolution",),
    ulp=64,
    onnx=_conv_onnx,
)
def quantized_conv(
    x: TensorLike, x_scale: TensorLike, x_zero_point: TensorLike, kernel: TensorLike, scale: TensorLike,
    bias: TensorLike | None = None, *, stride: Any = 1, padding: Any = "valid", dilation: Any = 1, groups: int = 1,
) -> Tensor:
    """Compute a convolution in integers, with a bias; see `quantized_linear`.

    Args:
        x: floating-point, ``(n, c, *spatial)``.
        x_scale, x_zero_point: how `x` is stored, as for `quantized_linear`.
        kernel: int8, ``(out, c / groups, *window)``.
        scale: float32, ``(out,)``.
        bias: ``(out,)``; none if not given.
        stride, padding, dilation, groups: as in `hf.nn.conv`.

    Returns:
        float32, ``(n, out, *spatial)``.

    Raises:
        ShapeError: the sizes do not fit.
        DTypeError: other dtypes.
        ArgumentError: an invalid stride, dilation or padding.

    Example:
        >>> import hybridflow as hf
        >>> kernel = hf.asarray([[[2, -1]]], dtype="int8")
        >>> hf.quantize.quantized_conv([[[0.3, 0.1, 0.2]]], 0.1, hf.asarray(0, dtype="int8"), kernel, [0.5]).tolist()
        [[[0.25, 0.0]]]

    Reference:
        Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
        2018.
    """
    given = _operands(x, x_scale, x_zero_point, kernel, scale, bias)
    attrs = conv_attrs("quantized_conv", given[0], given[3], stride, padding, dilation, groups)
    return bind(quantized_conv.op, given, attrs)


__all__ = ["quantized_conv", "quantized_linear", "require_group", "restored", "stored_dtype", "weight_only_linear"]

"""Convolution over one to three spatial axes, and the two operations that are its gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from hybridflow.backend.cores import usable_cores
from hybridflow.backend.options import is_on_cpus, jaxlib_version
from hybridflow.core.dims import Dim
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, op
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_bound,
    call_text,
    make_spec,
    normals,
    promote_float,
    require_kind,
    truth,
)
from hybridflow.ops.matmul import accumulate_in
from hybridflow.ops.nn.common import REAL_FLOAT, lower_narrow
from hybridflow.ops.nn.host_convolution import convolve, input_gradient, kernel_gradient
from hybridflow.ops.nn.windows import Sizes, output_sizes, paddings, per_axis, reach, spatial_axes
from hybridflow.ops.onnx import channels_to, kernel_first
from hybridflow.ops.padding import constant
from hybridflow.ops.padding_windows import summed_windows, windowed

# Each of the three operations is linear in both of its operands, and its two gradients are the other two operations.


def _channel_axes(ndim: int, channels_last: bool) -> tuple[int, int, int]:
    """Return the channel axis of the input, and the output and input channel axes of the kernel."""
    return (ndim - 1, ndim - 1, ndim - 2) if channels_last else (1, 0, 1)


def _window_axes(ndim: int, channels_last: bool) -> tuple[int, ...]:
    return tuple(range(ndim - 2)) if channels_last else tuple(range(2, ndim))


def _numbers(ndim: int, channels_last: bool) -> lax.ConvDimensionNumbers:
    """Return the positions of the batch, channel and spatial axes, for JAX."""
    channel, out, into = _channel_axes(ndim, channels_last)
    image = (0, channel, *spatial_axes("conv", ndim, channels_last))
    return lax.ConvDimensionNumbers(image, (out, into, *_window_axes(ndim, channels_last)), image)


def _convolve(
    x: Any,
    kernel: Any,
    *,
    stride: Sizes,
    padding: Any,
    dilation: Sizes,
    groups: int,
    channels_last: bool,
    result: Any = None,
) -> Any:
    return lax.conv_general_dilated(
        x,
        kernel,
        window_strides=stride,
        padding=padding,
        rhs_dilation=dilation,
        dimension_numbers=_numbers(x.ndim, channels_last),
        feature_group_count=groups,
        precision=SETTINGS.matmul_precision,
        preferred_element_type=result,
    )


def _way(name: str, x: Sizes, kernel: Sizes, dtype: Any, **attrs: Any) -> tuple[Way, Sizes]:
    """Return the way in which XLA is to compute a convolution, and the result's spatial sizes."""
    groups, channels_last, stride = attrs["groups"], attrs["channels_last"], attrs["stride"]
    if accumulate_in(dtype) is not None or channels_last:
        return "plain", ()
    sizes = tuple([
        (size + low + high - (wide - 1) * apart - 1) // step + 1
        for size, (low, high), wide, apart, step in zip(
            x[2:], attrs["padding"], kernel[2:], attrs["dilation"], stride, strict=True
        )
    ])
    return choose(
        name, x, kernel, sizes, stride=stride, padding=attrs["padding"], groups=groups, channels_last=channels_last
    ), sizes


def _plain(attrs: dict[str, Any]) -> dict[str, Any]:
    return {name: attrs[name] for name in ("stride", "padding", "dilation")}


def _lower(x: Any, kernel: Any, **attrs: Any) -> Any:
    way, sizes = _way("conv", x.shape, kernel.shape, x.dtype, **attrs)
    if way == "images":
        return convolve_images(x, kernel, sizes, **_plain(attrs))
    if way == "columns":
        return convolve_columns(x, kernel, sizes, **_plain(attrs))
    return lower_narrow(_convolve(x, kernel, result=accumulate_in(x.dtype), **attrs), x.dtype)


def _check(name: str, x: TensorSpec, kernel: TensorSpec, groups: int, channels_last: bool) -> None:
    require_kind(name, REAL_FLOAT, x, kernel)
    if x.dtype != kernel.dtype:
        raise DTypeError(f"{name}: dtypes differ: {x.dtype} and {kernel.dtype}", got=call_text(name, x, kernel))
    channel, out, into = _channel_axes(x.ndim, channels_last)
    if kernel.ndim != x.ndim:
        raise ShapeError(f"{name}: an input of {x.ndim} dimensions needs a kernel of {x.ndim}, not {kernel.ndim}",
                         got=call_text(name, x, kernel), hint="Kernels are (out, in / groups, *window).")
    if x.shape[channel] != kernel.shape[into] * groups:
        raise ShapeError(
            f"{name}: the input has {x.shape[channel]} channels, the kernel takes {kernel.shape[into]} in each of "
            f"{groups} groups", got=call_text(name, x, kernel),
            hint="The channels must be the kernel's input channels times groups."
        )
    if kernel.shape[out] % groups != 0:
        raise ShapeError(f"{name}: {kernel.shape[out]} output channels do not divide into {groups} groups",
                         got=call_text(name, x, kernel), hint="Choose a multiple of groups.")


def _infer(
    x: TensorSpec, kernel: TensorSpec, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int, channels_last: bool
) -> TensorSpec:
    _check("conv", x, kernel, groups, channels_last)
    channel, out, _ = _channel_axes(x.ndim, channels_last)
    axes = spatial_axes("conv", x.ndim, channels_last)
    window = tuple([kernel.shape[axis] for axis in _window_axes(x.ndim, channels_last)])
    sizes = output_sizes(
        "conv", tuple([x.shape[axis] for axis in axes]), reach(window, dilation), stride, padding, x, kernel
    )
    shape = list(x.shape)
    shape[channel] = kernel.shape[out]
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    return make_spec(tuple(shape), x.dtype)


def _vjp(F: Any, g: Any, y: Any, x: Any, kernel: Any, **attrs: Any) -> Any:
    del y
    return (
        lambda: F.conv_input_gradient(g, kernel, shape=x.shape, **attrs),
        lambda: F.conv_kernel_gradient(x, g, shape=kernel.shape, **attrs),
    )


def _macs(y: TensorSpec, x: TensorSpec, kernel: TensorSpec, **attrs: Any) -> Any:
    _, out, _ = _channel_axes(x.ndim, attrs["channels_last"])
    return y.size * (kernel.size // kernel.shape[out])


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 3, 6, 5), normals(rng, 4, 3, 3, 2)))
    yield Sample((normals(rng, 2, 3, 7, 6), normals(rng, 4, 3, 3, 3)), {"stride": (2, 1), "padding": "same"})
    yield Sample((normals(rng, 1, 4, 7, 7), normals(rng, 6, 2, 2, 2)), {"groups": 2, "dilation": 2, "padding": 1})
    yield Sample((normals(rng, 2, 3, 8), normals(rng, 2, 3, 3)), {"stride": 3, "padding": ((2, 0),)})
    yield Sample((normals(rng, 1, 2, 4, 4, 4), normals(rng, 2, 2, 2, 2, 2)))
    yield Sample((normals(rng, 2, 6, 5, 3), normals(rng, 3, 2, 3, 4)), {"channels_last": True, "stride": 2})
    yield Sample((normals(rng, 1, 1, 4, 4, dtype=np.float64), normals(rng, 1, 1, 3, 3, dtype=np.float64)))
    low = {"dtype": "bfloat16"}
    yield Sample((normals(rng, 1, 2, 4, 4, **low), normals(rng, 2, 2, 3, 3, **low)), gradient=False)
    x = normals(rng, 2, 3, 6, 5)
    yield Bad((x, normals(rng, 4, 2, 3, 3)), error=ShapeError, text="the input has 3 channels, the kernel takes 2")
    yield Bad((x, normals(rng, 4, 3, 3)), error=ShapeError, text="needs a kernel of 4, not 3")
    yield Bad((x, normals(rng, 4, 3, 7, 3)), error=ShapeError, text="spans 7 positions, but the padded input has 6")
    yield Bad((x, normals(rng, 4, 3, 3, 3)), {"padding": "full"}, error=ArgumentError, text="padding='full' is not")
    yield Bad((x, normals(rng, 4, 3, 3, 3)), {"stride": 0}, error=ArgumentError, text="stride=0 is not an integer")
    yield Bad((normals(rng, 3, 4), normals(rng, 3, 4)), error=ShapeError, text="the input has 2 dimensions")


def _conv_onnx(
    o: Any, x: Any, kernel: Any, *, stride: Sizes, padding: Any, dilation: Sizes, groups: int, channels_last: bool
) -> Any:
    pads = [*[low for low, _ in padding], *[high for _, high in padding]]
    settings = {"strides": stride, "pads": pads, "dilations": dilation, "group": groups}
    if not channels_last:
        return o.Conv(x, kernel, **settings)
    return channels_to(o, o.Conv(channels_to(o, x, 1, x.ndim), kernel_first(o, kernel), **settings), -1, x.ndim)


@op(
    kernel=convolve,
    lower=_lower,
    infer=_infer,
    vjp=_vjp,
    saves=Saves(x=(0, 1), each="others"),
    flops=MultiplyAdds(_macs),
    samples=_samples,
    traits=("convolution", "low_precision"),
    ulp=64,
    onnx=_conv_onnx,
    padded=windowed(constant(0)),
)
def conv(
    x: TensorLike,
    kernel: TensorLike,
    *,
    stride: Any = 1,
    padding: Any = "valid",
    dilation: Any = 1,
    groups: int = 1,
    channels_last: bool = False,
) -> Tensor:
    """Slide a kernel over one to three spatial axes (cross-correlation, as in deep learning).

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        kernel: ``(out, c / groups, *window)``.
        stride: the step of the window, one number or one per spatial axis.
        padding: zeros around the input: ``"valid"`` (none), ``"same"`` (``ceil(size / stride)`` outputs), a number
            for all sides, or per spatial axis a number or a pair.
        dilation: the distance between the kernel's elements, one number or one per spatial axis.
        groups: the number of groups into which the channels are divided; each has its own kernels.
        channels_last: whether to take ``(n, *spatial, c)`` and kernels ``(*window, c / groups, out)`` instead.

    Returns:
        ``(n, out, *spatial)`` (channels last if asked for), in the promoted dtype. float16 and bfloat16 are summed in
        float32 and rounded once.

    Raises:
        ShapeError: the channels do not match, or a window is larger than the padded input.
        ArgumentError: an invalid stride, dilation or padding.

    Example:
        >>> import hybridflow as hf
        >>> image = hf.asarray([[[[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]]])
        >>> hf.nn.conv(image, hf.asarray([[[[1.0, 1.0]]]])).tolist()
        [[[[3.0, 5.0], [9.0, 11.0]]]]
    """
    channels_last = truth("conv", "channels_last", channels_last)
    image, weights = as_bound(conv.op, promote_float(x, kernel))
    axes = spatial_axes("conv", image.ndim, channels_last)
    count = len(axes)
    steps = per_axis("conv", "stride", stride, count)
    spread = per_axis("conv", "dilation", dilation, count)
    _check("conv", image.spec, weights.spec, groups, channels_last)
    window = tuple([weights.shape[axis] for axis in _window_axes(image.ndim, channels_last)])
    sizes = tuple([image.shape[axis] for axis in axes])
    attrs = {
        "stride": steps,
        "padding": paddings("conv", padding, sizes, reach(window, spread), steps),
        "dilation": spread,
        "groups": int(groups),
        "channels_last": channels_last,
    }
    return bind(conv.op, (image, weights), attrs)


# -- the gradients ------------------------------------------------------------------------------------------------


def _input_gradient_lower(g: Any, kernel: Any, *, shape: Sizes, **attrs: Any) -> Any:
    if _way("conv_input_gradient", shape, kernel.shape, g.dtype, **attrs)[0] == "images":
        return input_gradient_images(g, kernel, shape, **_plain(attrs))

    def forward(x: Any) -> Any:
        return _convolve(x, kernel, **attrs)

    return jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, g.dtype))(g)[0]


def _kernel_gradient_lower(x: Any, g: Any, *, shape: Sizes, **attrs: Any) -> Any:
    way, _ = _way("conv_kernel_gradient", x.shape, shape, x.dtype, **attrs)
    if way == "images":
        return kernel_gradient_images(x, g, shape, **_plain(attrs))
    if way == "columns":
        return kernel_gradient_columns(x, g, shape, **_plain(attrs))
    if way == "zeros":
        x = with_zeros(x, attrs["padding"])
        attrs["padding"] = ((0, 0),) * (x.ndim - 2)

    def forward(kernel: Any) -> Any:
        return _convolve(x, kernel, **attrs)

    return jax.linear_transpose(forward, jax.ShapeDtypeStruct(shape, g.dtype))(g)[0]


def _input_gradient_vjp(F: Any, h: Any, y: Any, g: Any, kernel: Any, *, shape: Sizes, **attrs: Any) -> Any:
    del y, shape
    return lambda: F.conv(h, kernel, **attrs), lambda: F.conv_kernel_gradient(h, g, shape=kernel.shape, **attrs)


def _kernel_gradient_vjp(F: Any, h: Any, y: Any, x: Any, g: Any, *, shape: Sizes, **attrs: Any) -> Any:
    del y, shape
    return lambda: F.conv_input_gradient(g, h, shape=x.shape, **attrs), lambda: F.conv(x, h, **attrs)


_PLAIN_2D = {
    "stride": (2, 1), "padding": ((1, 0), (0, 1)), "dilation": (1, 2), "groups": 1, "channels_last": False,
}


_BARE = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "channels_last": False}


def _input_gradient_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 2, 4, 3, 4), normals(rng, 4, 3, 3, 2)), {"shape": (2, 3, 6, 5), **_PLAIN_2D})
    yield Sample((normals(rng, 1, 2, 6, 3), normals(rng, 2, 1, 5, 4)), {"shape": (1, 1, 10, 6), **_BARE})


def _kernel_gradient_samples(rng: np.random.Generator) -> Any:
    grouped = {"shape": (6, 2, 2, 3), "groups": 2, "stride": (2, 1)}
    yield Sample((normals(rng, 3, 4, 7, 5), normals(rng, 3, 6, 3, 3)), {**_BARE, **grouped})
    last = {"shape": (2, 3, 3, 4), "channels_last": True}
    yield Sample((normals(rng, 2, 5, 6, 3), normals(rng, 2, 4, 4, 4)), {**_BARE, **last})
    yield Sample((normals(rng, 2, 3, 6, 5), normals(rng, 2, 4, 3, 4)), {"shape": (4, 3, 3, 2), **_PLAIN_2D})
    yield Sample((normals(rng, 2, 1, 7, 5), normals(rng, 2, 1, 6, 3)), {"shape": (1, 1, 2, 3), **_BARE})


def _of_shape(name: str) -> Any:
    def infer(a: TensorSpec, b: TensorSpec, *, shape: Any, **attrs: Any) -> TensorSpec:
        del attrs
        require_kind(name, REAL_FLOAT, a, b)
        return make_spec(tuple(shape), a.dtype)

    return infer


def _transposed_onnx(
    o: Any, g: Any, kernel: Any, *, shape: Sizes, stride: Sizes, padding: Any, dilation: Sizes, groups: int,
    channels_last: bool,
) -> Any:
    """Write the gradient for the input, which is also `conv_transpose`, as ConvTranspose."""
    axes = spatial_axes("conv", g.ndim, channels_last)
    window = tuple([kernel.shape[axis] for axis in _window_axes(g.ndim, channels_last)])
    low, high = [one for one, _ in padding], [one for _, one in padding]
    steps = zip(axes, stride, reach(window, dilation), strict=True)
    reached = [(g.shape[axis] - 1) * step + wide for axis, step, wide in steps]
    more = [shape[axis] - (size - a - b) for axis, size, a, b in zip(axes, reached, low, high, strict=True)]
    if any([type(size) is Dim for size in (*more, *window)]):
        o.no("a transposed convolution has none whose size beyond the reach of its kernel is open")
    pads = [*low, *high]
    settings = {"strides": stride, "pads": pads, "dilations": dilation, "group": groups, "output_padding": more}
    if not channels_last:
        return o.ConvTranspose(g, kernel, **settings)
    gradient = o.ConvTranspose(channels_to(o, g, 1, g.ndim), kernel_first(o, kernel), **settings)
    return channels_to(o, gradient, -1, g.ndim)


@op(
    kernel=input_gradient,
    lower=_input_gradient_lower,
    infer=_of_shape("conv_input_gradient"),
    vjp=_input_gradient_vjp,
    saves=Saves(x=(0, 1), each="others"),
    flops=MultiplyAdds(lambda y, g, kernel, *, shape, **attrs: _macs(g, y, kernel, **attrs)),
    samples=_input_gradient_samples,
    traits=("convolution", "low_precision"),
    ulp=64,
    onnx=_transposed_onnx,
    padded=windowed(constant(0)),
)
def conv_input_gradient(g: TensorLike, kernel: TensorLike, *, shape: Sizes, **attrs: Any) -> Tensor:
    """Return the gradient of `conv` for its input, which has the given shape, from the gradient `g` of its result."""
    return bind(conv_input_gradient.op, promote_float(g, kernel), {"shape": shape, **attrs})


def _kernel_gradient_onnx(
    o: Any, x: Any, g: Any, *, shape: Sizes, stride: Sizes, padding: Any, dilation: Sizes, groups: int,
    channels_last: bool,
) -> Any:
    """Write the gradient as a convolution whose channels are the examples, with strides and dilations exchanged."""
    ndim = g.ndim
    spatial, out = range(2, ndim), g.shape[-1 if channels_last else 1]
    sizes = [x.shape[axis] for axis in spatial_axes("conv", ndim, channels_last)]
    count, channels = x.shape[0], x.shape[-1 if channels_last else 1]
    if channels_last:
        x, g = channels_to(o, x, 1, ndim), channels_to(o, g, 1, ndim)
    if groups == 1:
        x = o.Transpose(x, perm=[1, 0, *spatial])
    else:
        parts = o.reshape(x, [count, groups, channels // groups, *sizes])
        parts = o.Transpose(parts, perm=[2, 1, 0, *[axis + 1 for axis in spatial]])
        x = o.reshape(parts, [channels // groups, groups * count, *sizes])
    pads = [*[low for low, _ in padding], *[high for _, high in padding]]
    rows = o.Transpose(g, perm=[1, 0, *spatial])
    settings = {"strides": dilation, "dilations": stride, "pads": pads, "group": groups}
    gradient = o.Conv(x, rows, **settings)
    axes = _window_axes(ndim, channels_last)
    window = [shape[axis] for axis in axes]
    gradient = o.Slice(gradient, o.ints([0] * len(axes)), o.ints(window), o.ints(spatial))  # cut what strides left over
    gradient = o.reshape(gradient, [channels // groups, out, *window])
    return o.Transpose(gradient, perm=[*spatial, 0, 1] if channels_last else [1, 0, *spatial])


@op(
    kernel=kernel_gradient,
    lower=_kernel_gradient_lower,
    infer=_of_shape("conv_kernel_gradient"),
    vjp=_kernel_gradient_vjp,
    saves=Saves(x=(0, 1), each="others"),
    flops=MultiplyAdds(lambda y, x, g, *, shape, **attrs: _macs(g, x, y, **attrs)),
    samples=_kernel_gradient_samples,
    traits=("convolution", "kernel_gradient"),
    ulp=64,
    onnx=_kernel_gradient_onnx,
    padded=summed_windows,
)
def conv_kernel_gradient(x: TensorLike, g: TensorLike, *, shape: Sizes, **attrs: Any) -> Tensor:
    """Return the gradient of `conv` for its kernel, which has the given shape, from the gradient `g` of its result."""
    return bind(conv_kernel_gradient.op, promote_float(x, g), {"shape": shape, **attrs})


def conv_transpose(
    x: TensorLike,
    kernel: TensorLike,
    *,
    stride: Any = 1,
    padding: Any = "valid",
    output_padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    channels_last: bool = False,
) -> Tensor:
    """Spread every input element over a window of the output: the transpose of `conv`, used to upsample.

    Args:
        x: ``(n, c, *spatial)``, floating-point.
        kernel: ``(c, out / groups, *window)``: the kernel of the `conv` in the other direction.
        stride: the distance between neighbouring inputs in the output, one number or one per spatial axis.
        padding: the number of positions cut from the output: ``"valid"`` (none), ``"same"`` (``size * stride``
            outputs), a number for all sides, or per spatial axis a number or a pair.
        output_padding: the number of positions added at the output's end, one number or one per spatial axis.
        dilation: the distance between the kernel's elements, one number or one per spatial axis.
        groups: the number of groups into which the channels are divided.
        channels_last: whether to take ``(n, *spatial, c)`` and kernels ``(*window, out / groups, c)`` instead.

    Returns:
        ``(n, out, *spatial)`` (channels last if asked for), in the promoted dtype.

    Raises:
        ShapeError: the channels do not match.
        ArgumentError: an invalid stride, dilation or padding, or an output padding that is not less than the stride.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.conv_transpose([[[1.0, 2.0]]], [[[1.0, 1.0]]], stride=2).tolist()
        [[[1.0, 1.0, 2.0, 2.0]]]
    """
    channels_last = truth("conv_transpose", "channels_last", channels_last)
    image, weights = promote_float(x, kernel)
    axes = spatial_axes("conv_transpose", image.ndim, channels_last)
    count = len(axes)
    steps = per_axis("conv_transpose", "stride", stride, count)
    spread = per_axis("conv_transpose", "dilation", dilation, count)
    extra = per_axis("conv_transpose", "output_padding", output_padding, count, least=0)
    channel, out, into = _channel_axes(image.ndim, channels_last)
    if weights.ndim != image.ndim or weights.shape[out] != image.shape[channel] or weights.shape[out] % groups:
        raise ShapeError(
            f"conv_transpose: the kernel {weights.spec} does not take an input of {image.shape[channel]} channels "
            f"in {groups} groups", got=call_text("conv_transpose", image.spec, weights.spec),
            hint="Kernels are (in, out / groups, *window)."
        )
    for axis, step, more in zip(axes, steps, extra, strict=True):
        if not image.shape[axis]:
            raise ShapeError("conv_transpose: the input has no positions", got=f"{image.spec} along axis {axis}",
                             hint="Give at least one; an empty batch has size 0 along axis 0.")
        if more >= step:
            raise ArgumentError(f"conv_transpose: output_padding {more} is not less than stride {step}",
                                got=f"along axis {axis}", hint="Only that many sizes of the result fit one input.")
    window = tuple([weights.shape[axis] for axis in _window_axes(image.ndim, channels_last)])
    spans = reach(window, spread)
    full = tuple([image.shape[axis] * step for axis, step in zip(axes, steps, strict=True)])
    pads = paddings("conv_transpose", padding, full, spans, steps)
    shape = list(image.shape)
    shape[channel] = weights.shape[into] * groups
    for i, axis in enumerate(axes):
        if isinstance(padding, str) and padding.lower() == "same":
            shape[axis] = full[i] + extra[i]
        else:
            shape[axis] = (image.shape[axis] - 1) * steps[i] + spans[i] - pads[i][0] - pads[i][1] + extra[i]
    return conv_input_gradient(
        image, weights, shape=tuple(shape), stride=steps, padding=pads, dilation=spread, groups=int(groups),
        channels_last=channels_last,
    )


__all__ = ["conv", "conv_transpose"]


# -- other ways to compute convolutions in XLA:CPU, for machines with few cores ---------------------------------------
# XLA:CPU is slow at some shapes, and something else that XLA can do takes a half of the time or less there:
# - A loop over images lays out the windows of one image as columns, and multiplies them while they are in the cache:
#   for gradients of inputs that are not padded or have few channels, and gradients of the kernel without padding.
# - The columns of all images and one product: for a window of one element, for few input channels, and for small images
#   with many channels, where XLA would spend the time on another layout of the kernel or its gradient.
# - Zeros around the input, and then a convolution without padding: for gradients of the kernel from few images.

Way = Literal["plain", "images", "columns", "zeros"]
"""XLA's own way, a loop over images, columns of all images, or zeros around the input."""

_MOST_CORES = {"conv": 1, "conv_kernel_gradient": 2, "conv_input_gradient": 2}
"""By operation, the largest number of cores for which the loop is faster; XLA shares its work between cores."""
_MOST_CORES_OTHERS = 2
"""The largest number of cores for the other ways."""
_FEWEST_IMAGES = 4
_SLOW_FORWARD = (0, 12)
"""Before this version of jaxlib, XLA is also slow at the convolution itself if nothing is padded."""
_LEAST_WORK = 1 << 22
"""The smallest number of multiplications per image for which the loop is faster at the convolution itself."""
_LEAST_ROWS = 32
"""The smallest number of result channels for which the loop is faster at the gradient of the kernel."""
_LEAST_RESULT = {"conv_kernel_gradient": 128, "conv_input_gradient": 96}
"""The smallest number of elements per channel of the result for which the loop is faster at a gradient."""
_FEW_CHANNELS = 16
"""The largest number of input channels for which the loop is faster at the gradient of a padded input."""
_FEW_ROWS = 32
"""The largest number of elements under a window for which columns are faster at the convolution itself."""
_FEW_PLACES = 16
"""The largest number of elements per channel of the result for which columns are faster if the kernel is large."""
_LARGE_KERNEL = 1 << 18
"""The smallest number of elements of such a kernel; before other layouts of it cost more than the columns."""
_MOST_COLUMNS = 1 << 21
"""The largest number of elements of all columns; more would leave the cache, and take much memory."""
_SMALL_WEIGHTS = 1 << 14
"""The largest number of a kernel's elements of which there is a copy for each image."""
_VECTOR = 16
"""A multiple of the floats in a vector register: XLA needs no zeros for the gradient of the kernel if the number of
images is a multiple of this."""
_LIBRARY = (0, 11)
"""Before this version of jaxlib, on one core, a library computes convolutions of `_LEAST_ROWS` channels, padded ones
too."""


def choose(
    name: str, x: Sizes, kernel: Sizes, sizes: Sizes, *, stride: Sizes, padding: Any, groups: int, channels_last: bool
) -> Way:
    """Return the way to compute a convolution of arrays of these shapes.

    Args:
        name: the operation.
        x, kernel: the shapes of the input and the kernel.
        sizes: the sizes of the result's spatial axes.
        stride, padding, groups, channels_last: as in `hf.nn.conv`.
    """
    if not all([isinstance(size, int) for size in (*x, *kernel, *sizes)]):  # symbolic sizes
        return "plain"
    if groups != 1 or channels_last or x[0] < _FEWEST_IMAGES or not is_on_cpus():
        return "plain"
    cores = usable_cores("OMP_NUM_THREADS")
    padded = any(low or high for low, high in padding)
    if cores <= _MOST_CORES_OTHERS and name != "conv_input_gradient" and _has_better_columns(name, x[0], kernel, sizes):
        return "columns"
    if cores <= _MOST_CORES[name] and _has_better_loop(name, kernel, sizes, padded, stride):
        return "images"
    if cores <= _MOST_CORES_OTHERS and name == "conv_kernel_gradient" and padded and x[0] % _VECTOR:
        return "plain" if cores == 1 and jaxlib_version() < _LIBRARY and kernel[0] >= _LEAST_ROWS else "zeros"
    return "plain"


def _has_better_columns(name: str, batch: int, kernel: Sizes, sizes: Sizes) -> bool:
    rows, places = _product(kernel[1:]), _product(sizes)
    if _product(kernel[2:]) == 1:  # the columns are the input
        return True
    if batch * rows * places > _MOST_COLUMNS:
        return False
    if places <= _FEW_PLACES and _product(kernel) >= _LARGE_KERNEL:
        return True
    return name == "conv" and rows <= _FEW_ROWS


def _has_better_loop(name: str, kernel: Sizes, sizes: Sizes, padded: bool, stride: Sizes) -> bool:
    if name == "conv":
        return not padded and _product(kernel) * _product(sizes) >= _LEAST_WORK and jaxlib_version() < _SLOW_FORWARD
    if _product(sizes) < _LEAST_RESULT[name]:
        return False
    if name == "conv_kernel_gradient":
        return not padded and kernel[0] >= _LEAST_ROWS
    return set(stride) <= {1} and (not padded or kernel[1] <= _FEW_CHANNELS)


def _product(sizes: Sizes) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def _columns(x: Any, window: Sizes, sizes: Sizes, stride: Sizes, dilation: Sizes) -> Any:
    """Return the windows of padded images ``(..., c, *spatial)`` as ``(..., c * window, length)``."""
    *outer, channels = x.shape[: x.ndim - len(sizes)]
    parts: list[Any] = []
    for offset in product(*[range(size) for size in window]):
        first = [at * apart for at, apart in zip(offset, dilation, strict=True)]
        last = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, stride, strict=True)]
        start, stop = (*[0] * len(outer), 0, *first), (*outer, channels, *last)
        parts.append(lax.slice(x, start, stop, (*[1] * len(outer), 1, *stride)))
    return jnp.stack(parts, len(outer) + 1).reshape(*outer, channels * len(parts), _product(sizes))


def with_zeros(x: Any, padding: Any) -> Any:
    """Put zeros around images ``(n, c, *spatial)``."""
    return lax.pad(x, jnp.zeros((), x.dtype), ((0, 0, 0), (0, 0, 0), *[(low, high, 0) for low, high in padding]))


def _dot(a: Any, b: Any, contract: tuple[int, int]) -> Any:
    return lax.dot_general(a, b, (((contract[0],), (contract[1],)), ((), ())), precision=SETTINGS.matmul_precision)


def _map_images(function: Callable[[Any], Any], images: Any, shape: Sizes) -> Any:
    """Apply a function to each image, as `lax.map` does.

    `lax.map` writes results into an array of zeros, which XLA would allocate at the program's start and keep until the
    loop.
    """

    def step(results: Any, item: Any) -> Any:
        number, image = item
        return lax.dynamic_update_index_in_dim(results, function(image), number, 0), None

    count = images.shape[0]
    initial = jnp.broadcast_to(images[(0,) * images.ndim], (count, *shape))  # zeros would be allocated too early
    return lax.scan(step, initial, (jnp.arange(count), images))[0]


def convolve_images(x: Any, kernel: Any, sizes: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)

    def one(image: Any) -> Any:
        columns = _columns(image, kernel.shape[2:], sizes, stride, dilation)
        return _dot(weights, columns, (1, 0)).reshape(kernel.shape[0], *sizes)

    return _map_images(one, with_zeros(x, padding), (kernel.shape[0], *sizes))


def kernel_gradient_images(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, image by image."""

    def add(total: Any, one: Any) -> Any:
        image, slope = one
        columns = _columns(image, shape[2:], g.shape[2:], stride, dilation)
        return total + _dot(columns, slope.reshape(shape[0], -1), (1, 1)), None  # XLA is slower the other way round

    start = jnp.zeros((_product(shape[1:]), shape[0]), g.dtype)
    return lax.scan(add, start, (with_zeros(x, padding), g))[0].T.reshape(shape)


def convolve_columns(x: Any, kernel: Any, sizes: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute `hf.nn.conv` by the columns of all images."""
    weights = kernel.reshape(kernel.shape[0], -1)
    columns = _columns(with_zeros(x, padding), kernel.shape[2:], sizes, stride, dilation)
    precision = SETTINGS.matmul_precision
    if columns.shape[2] <= _FEW_PLACES or kernel.size > _SMALL_WEIGHTS:
        y = lax.dot_general(weights, columns, (((1,), (1,)), ((), ())), precision=precision).swapaxes(0, 1)
    else:  # a product for each image leaves the result in order
        each = jnp.broadcast_to(weights, (x.shape[0], *weights.shape))
        y = lax.dot_general(each, columns, (((2,), (1,)), ((0,), (0,))), precision=precision)
    return y.reshape(x.shape[0], kernel.shape[0], *sizes)


def kernel_gradient_columns(x: Any, g: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its kernel, which has the given shape, by the columns of all images."""
    columns = _columns(with_zeros(x, padding), shape[2:], g.shape[2:], stride, dilation)
    slopes, both = g.reshape(*g.shape[:2], -1), (0, 2)
    made = lax.dot_general(slopes, columns, ((both, both), ((), ())), precision=SETTINGS.matmul_precision)
    return made.reshape(shape)


def input_gradient_images(g: Any, kernel: Any, shape: Sizes, *, stride: Sizes, padding: Any, dilation: Sizes) -> Any:
    """Compute the gradient of `hf.nn.conv` for its input, which has the given shape, image by image."""
    weights = kernel.reshape(kernel.shape[0], -1)
    zero = jnp.zeros((), g.dtype)
    offsets = [*product(*[range(size) for size in kernel.shape[2:]])]

    def margins(offset: tuple[int, ...]) -> list[tuple[int, int, int]]:
        """Return the padding before, after and between the products of one element of the window."""
        around = [(0, 0, 0)]
        for at, apart, step, size, count, (low, _) in zip(
            offset, dilation, stride, shape[2:], g.shape[2:], padding, strict=True
        ):
            first = at * apart - low
            around.append((first, size - 1 - (first + (count - 1) * step), step - 1))
        return around

    def one(slope: Any) -> Any:
        columns = _dot(weights, slope.reshape(kernel.shape[0], -1), (0, 0))
        columns = columns.reshape(kernel.shape[1], len(offsets), *g.shape[2:])
        total = lax.pad(columns[:, 0], zero, margins(offsets[0]))
        for number, offset in enumerate(offsets[1:], 1):
            total = total + lax.pad(columns[:, number], zero, margins(offset))
        return total

    return _map_images(one, g, tuple(shape[1:]))

"""Convolutions over one to three spatial axes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import in_and_out, label, make_parameters, require_axes, require_size
from hybridflow.ops.common import TensorLike
from hybridflow.ops.nn.convolution import conv, conv_transpose
from hybridflow.ops.shape import permute_dims


class Conv(Module):
    """A convolution over the spatial axes of ``(n, channels, *spatial)``.

    Args:
        sizes: the input channels (if left out, the first call sets them), the output channels, and the window: a number
            for all axes or a tuple with one per axis.
        stride: the step of the window.
        padding: how many zeros are put before and after each axis, pairs of these, ``"same"`` or ``"valid"``.
        dilation: the distance between the elements of a window.
        groups: the number of groups of channels that are convolved independently.
        bias: whether there is a bias.
        channels_last: whether the input is ``(n, *spatial, channels)``; the weight is the same.
        dtype: the dtype of the parameters.

    Attributes:
        weight: ``(out, in / groups, *window)``; uniform in ±1/sqrt(in / groups * window) at first.
        bias: ``(out,)``, the same; None without one.

    Example:
        >>> import hybridflow as hf
        >>> layer = hf.nn.Conv(8, (3, 3), padding=1)
        >>> layer(hf.ones((2, 3, 5, 5))).shape
        (2, 8, 5, 5)
        >>> layer
        Conv(3, 8, (3, 3), padding=1)
    """

    weight: Variable
    bias: Variable | None
    axes: ClassVar[int | None] = None
    """The number of spatial axes; None if the class leaves it open."""
    sized_by: ClassVar[str] = "in_channels"
    """The attribute with the input size, which the first call sets if it was left out."""

    def __init__(
        self,
        *sizes: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        channels_last: bool = False,
        dtype: Any = "float32",
    ) -> None:
        self.in_channels, self.out_channels, window = in_and_out(type(self).__name__, sizes, 1)
        if self.axes is not None and type(window) is int:
            window = (window,) * self.axes
        self.window = tuple(window) if isinstance(window, list | tuple) else window
        if self.axes is not None and len(self.window) != self.axes:
            raise ArgumentError(f"{type(self).__name__}: the window has {self.axes} axes, not {len(self.window)}",
                                got=f"window={self.window}")
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        for name, count in (("in_channels", self.in_channels), ("out_channels", self.out_channels)):
            if count is not None and count % groups:
                raise ArgumentError(f"{type(self).__name__}: {name}={count} are not divisible by groups={groups}")
        self.has_bias, self.channels_last, self.dtype = bias, channels_last, dtype
        self.weight = self.bias = None  # pyright: ignore[reportAttributeAccessIssue]
        if self.in_channels is not None and isinstance(self.window, tuple):
            make_parameters(self, self.in_channels, self._make)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the convolution."""
        x = as_tensor(x)
        _require_channels(self, x)
        y = conv(
            x, _kernel(self), stride=self.stride, padding=self.padding, dilation=self.dilation, groups=self.groups,
            channels_last=self.channels_last,
        )
        return _with_bias(self, y)

    @staticmethod
    def _make(layer: Conv, size: int) -> None:
        _make(layer, (layer.out_channels, size // layer.groups, *layer.window), size)

    def extra_repr(self) -> str:
        """Return the sizes, and the settings that differ from their defaults."""
        shown = [] if self.in_channels is None else [str(self.in_channels)]
        shown += [str(self.out_channels), str(self.window)]
        for name, usual in (("stride", 1), ("padding", 0), ("dilation", 1), ("groups", 1)):
            if getattr(self, name) != usual:
                shown.append(f"{name}={getattr(self, name)!r}")
        return ", ".join([*shown, *([] if self.has_bias else ["bias=False"])])


def _make(layer: Any, shape: tuple[int, ...], size: int) -> None:
    if size % layer.groups:
        raise ShapeError(f"{label(layer)}: {size} channels are not divisible by groups={layer.groups}",
                         got=f"{label(layer)} of {size} channels")
    bound = 1 / math.sqrt(max(init.fans(shape)[0], 1))
    values = init.uniform(-bound, bound)
    layer.weight = parameter(values(shape, layer.dtype), "weight")
    if layer.has_bias:
        layer.bias = parameter(values((layer.out_channels,), layer.dtype), "bias")


def _require_channels(layer: Any, x: Tensor) -> None:
    """Check the input's spatial axes and channels; the first call sets those that were left out."""
    require_axes(layer, x)
    require_size(layer, "in_channels", x, -1 if layer.channels_last else 1, layer._make)
    if layer.weight is None:  # the channels were given, and the window's axes come with this call
        make_parameters(layer, layer.in_channels, layer._make)


def _kernel(layer: Any) -> Any:
    """Return the weight in the operation's layout; the layer stores it with channels first in any case."""
    weight = layer.weight
    return permute_dims(weight, (*range(2, weight.ndim), 1, 0)) if layer.channels_last else weight


def _with_bias(layer: Any, y: Tensor) -> Tensor:
    if layer.bias is None:
        return y
    return y + (layer.bias if layer.channels_last else layer.bias.reshape((-1, *[1] * (y.ndim - 2))))


class ConvTranspose(Conv):
    """A transposed convolution: every input element is spread over a window of the result.

    Args:
        sizes: as for `Conv`.
        stride, padding, dilation, groups, bias, channels_last, dtype: as for `Conv`, of the convolution it transposes.
        output_padding: how many elements are added at the end of each spatial axis of the result.

    Attributes:
        weight: ``(in, out / groups, *window)``; uniform in ±1/sqrt(out / groups * window) at first.
        bias: ``(out,)``, the same; None without one.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.ConvTranspose(4, (2, 2), stride=2)(hf.ones((1, 3, 5, 5))).shape
        (1, 4, 10, 10)
    """

    def __init__(self, *sizes: Any, output_padding: Any = 0, **options: Any) -> None:
        self.output_padding = output_padding
        super().__init__(*sizes, **options)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the transposed convolution."""
        x = as_tensor(x)
        _require_channels(self, x)
        y = conv_transpose(
            x, _kernel(self), stride=self.stride, padding=self.padding, output_padding=self.output_padding,
            dilation=self.dilation, groups=self.groups, channels_last=self.channels_last,
        )
        return _with_bias(self, y)

    @staticmethod
    def _make(layer: Conv, size: int) -> None:
        _make(layer, (size, layer.out_channels // layer.groups, *layer.window), size)


class Conv1d(Conv):
    """A convolution over one spatial axis; see `Conv`."""

    axes = 1


class Conv2d(Conv):
    """A convolution over two spatial axes; see `Conv`."""

    axes = 2


class Conv3d(Conv):
    """A convolution over three spatial axes; see `Conv`."""

    axes = 3


class ConvTranspose1d(ConvTranspose):
    """A transposed convolution over one spatial axis; see `ConvTranspose`."""

    axes = 1


class ConvTranspose2d(ConvTranspose):
    """A transposed convolution over two spatial axes; see `ConvTranspose`."""

    axes = 2


class ConvTranspose3d(ConvTranspose):
    """A transposed convolution over three spatial axes; see `ConvTranspose`."""

    axes = 3

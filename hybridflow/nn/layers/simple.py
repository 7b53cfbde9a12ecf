"""Layers without parameters, and `Sequential`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.settings import SETTINGS
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.nn.layers.module import Module
from hybridflow.nn.observed import observed_function
from hybridflow.nn.sizes import label
from hybridflow.ops.common import TensorLike
from hybridflow.ops.creation import ones
from hybridflow.ops.joining import concat
from hybridflow.ops.nn.average_pooling import avg_pool
from hybridflow.ops.nn.pooling import max_pool
from hybridflow.ops.nn.regularization import dropout
from hybridflow.ops.rearrange import repeat
from hybridflow.ops.reductions import max as largest
from hybridflow.ops.reductions import mean
from hybridflow.ops.shape import reshape

T = TypeVar("T")


class Sequential(Module):
    """Layers or functions that are called one after the other.

    Args:
        layers: modules and functions of one tensor; paths contain their positions, from 0 on.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(4, 8), hf.nn.relu, hf.nn.Linear(2))
        >>> model(hf.ones((3, 4))).shape
        (3, 2)
        >>> model
        Sequential(
          (0): Linear(4, 8)
          (1): relu
          (2): Linear(8, 2)
        )
        >>> [*model.named_parameters()]
        ['0.weight', '0.bias', '2.weight', '2.bias']
    """

    def __init__(self, *layers: Callable[..., Any]) -> None:
        for number, layer in enumerate(layers):
            if isinstance(layer, type):
                raise ArgumentTypeError(f"Sequential: layer {number} is the class {layer.__name__}, not a layer of it",
                                        hint=f"Write {layer.__name__}(), with its arguments in the parentheses.")
            if not callable(layer):
                raise ArgumentTypeError(
                    f"Sequential: layer {number} is a {type(layer).__name__}, which cannot be called",
                    got=repr(layer)[:80], hint="Write Sequential(*layers) for a list of layers."
                )
            setattr(self, str(number), layer)
        self.count = len(layers)

    def forward(self, x: Any) -> Tensor:
        """Call the layers."""
        for number in range(self.count):
            layer = getattr(self, str(number))
            x = layer(x)
            if SETTINGS.observers and not isinstance(layer, Module):
                observed_function(self, str(number), x)
        return x

    def __len__(self) -> int:
        return self.count

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, number: int) -> Any:
        return getattr(self, self._place(number))

    def __setitem__(self, number: int, layer: Callable[..., Any]) -> None:
        setattr(self, self._place(number), layer)

    def _place(self, number: int) -> str:
        if not -self.count <= number < self.count:
            raise IndexError(f"Sequential: layer {number} of {self.count}")
        return str(number % self.count)


class Identity(Module):
    """A layer that returns its input.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.Identity()(3)
        3
    """

    def forward(self, x: T) -> T:
        """Return the input."""
        return x


def _require_axes(layer: Dropout | _Adaptive, x: Tensor) -> None:
    """Raise unless an input has the number of spatial axes that a class such as `Dropout2d` demands."""
    if layer.axes is not None and x.ndim - 2 != layer.axes:
        raise ShapeError(f"{label(layer)}: the input has {max(x.ndim - 2, 0)} spatial axes, the layer {layer.axes}",
                         got=f"{label(layer)}({x.spec})",
                         hint="The input is (n, channels, *spatial); an example alone needs x[None].")


class Dropout(Module):
    """Dropout: in training mode, zeros replace randomly chosen elements; see `hf.nn.dropout`.

    Args:
        rate: the probability that an element is dropped.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.Dropout(0.5).eval()(hf.ones((2,)))
        Tensor([1., 1.], dtype=float32)
    """

    axes: int | None = None

    def __init__(self, rate: float = 0.5) -> None:
        if not 0 <= rate <= 1:
            raise ArgumentError(f"Dropout: rate={rate} is not a probability", hint="Use a number from 0 to 1.")
        self.rate = rate

    def forward(self, x: TensorLike) -> Tensor:
        """Return the input, some elements dropped in training mode."""
        if self.axes is None:
            return dropout(x, self.rate, training=self.training)
        x = as_tensor(x)
        _require_axes(self, x)
        channels = ones((*x.shape[:2], *(1,) * self.axes), dtype=x.dtype)
        return x * dropout(channels, self.rate, training=self.training) if self.training else x

    def extra_repr(self) -> str:
        """Return the rate."""
        return str(self.rate)


class Flatten(Module):
    """A layer that merges all axes from one on into one axis.

    Args:
        start: the first of the axes.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.Flatten()(hf.ones((2, 3, 4))).shape
        (2, 12)
    """

    def __init__(self, start: int = 1) -> None:
        self.start = start

    def forward(self, x: TensorLike) -> Tensor:
        """Return the input with fewer axes."""
        x = as_tensor(x)
        return reshape(x, (*x.shape[: self.start], math.prod(x.shape[self.start :]) if 0 in x.shape else -1))


class Upsample(Module):
    """A layer that repeats each element along the spatial axes.

    Args:
        scale: the number of repetitions, one for all spatial axes or one per axis.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.Upsample(2)(hf.asarray([[[1.0, 2.0]]]))
        Tensor([[[1., 1., 2., 2.]]], dtype=float32)
    """

    def __init__(self, scale: int | tuple[int, ...] = 2) -> None:
        self.scale = scale

    def forward(self, x: TensorLike) -> Tensor:
        """Return the enlarged input."""
        x = as_tensor(x)
        scales = (self.scale,) * (x.ndim - 2) if isinstance(self.scale, int) else self.scale
        if len(scales) != x.ndim - 2:
            raise ShapeError(f"{label(self)}: the input has {x.ndim - 2} spatial axes, scale {len(scales)}",
                             got=str(x.spec))
        for axis, times in enumerate(scales):
            x = repeat(x, times, axis=axis + 2)
        return x

    def extra_repr(self) -> str:
        """Return the scale."""
        return str(self.scale)


class _Pool(Module):
    """The base class of pools; a window of one number is used for every spatial axis."""

    axes: int | None = None

    def __init__(self, window: Any, *, stride: Any = None, padding: Any = 0) -> None:
        self.window, self.stride, self.padding = window, stride, padding
        if self.axes is not None and type(window) is int:
            self.window = (window,) * self.axes

    def extra_repr(self) -> str:
        """Return the window."""
        return str(self.window)


class MaxPool(_Pool):
    """The maximum of every window of the spatial axes; see `hf.nn.max_pool`.

    Args:
        window: its size, one number or one per spatial axis.
        stride: its step; the window's size if not given.
        padding: how many elements are put before and after each axis.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.MaxPool(2)(hf.asarray([[[1.0, 3.0, 2.0, 0.0]]]))
        Tensor([[[3., 2.]]], dtype=float32)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Return the maxima."""
        return max_pool(x, self.window, self.stride, padding=self.padding)


class AvgPool(_Pool):
    """The mean of every window of the spatial axes; see `hf.nn.avg_pool`.

    Args:
        window: its size, one number or one per spatial axis.
        stride: its step; the window's size if not given.
        padding: how many elements are put before and after each axis; the mean ignores them.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.AvgPool(2)(hf.asarray([[[1.0, 3.0, 2.0, 0.0]]]))
        Tensor([[[2., 1.]]], dtype=float32)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Return the means."""
        return avg_pool(x, self.window, self.stride, padding=self.padding)


class _Adaptive(Module):
    """The base class of pools to a given size: part i of n begins at i * size // n, and ends where the next begins."""

    axes: int | None = None

    def __init__(self, size: int | tuple[int | None, ...]) -> None:
        self.size = size

    def _pooled(self, x: TensorLike, reduce: Callable[..., Tensor]) -> Tensor:
        x = as_tensor(x)
        _require_axes(self, x)
        sizes = (self.size,) * (x.ndim - 2) if isinstance(self.size, int) else self.size
        if len(sizes) != x.ndim - 2:
            raise ShapeError(f"{label(self)}: the input has {x.ndim - 2} spatial axes, size {len(sizes)}",
                             got=str(x.spec))
        for axis, count in enumerate(sizes, 2):
            if count is not None:
                x = _parts(x, axis, count, reduce)
        return x

    def extra_repr(self) -> str:
        """Return the size."""
        return str(self.size)


def _parts(x: Tensor, axis: int, count: int, reduce: Callable[..., Tensor]) -> Tensor:
    size = x.shape[axis]
    before = (slice(None),) * axis
    if size % count == 0:
        return reduce(reshape(x, (*x.shape[:axis], count, size // count, *x.shape[axis + 1 :])), axis=axis + 1)
    parts = [
        reduce(x[(*before, slice(i * size // count, -(-(i + 1) * size // count)))], axis=axis, keepdims=True)
        for i in range(count)
    ]
    return concat(parts, axis=axis)


class AdaptiveAvgPool(_Adaptive):
    """Means over windows whose sizes are chosen so that the result has a given size.

    Args:
        size: one number, or one per spatial axis; None leaves an axis as it is.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.AdaptiveAvgPool(2)(hf.asarray([[[1.0, 3.0, 2.0]]]))
        Tensor([[[2. , 2.5]]], dtype=float32)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Return the means."""
        return self._pooled(x, mean)


class AdaptiveMaxPool(_Adaptive):
    """Maxima over windows whose sizes are chosen so that the result has a given size.

    Args:
        size: one number, or one per spatial axis; None leaves an axis as it is.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.AdaptiveMaxPool(1)(hf.asarray([[[1.0, 3.0, 2.0]]]))
        Tensor([[[3.]]], dtype=float32)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Return the maxima."""
        return self._pooled(x, largest)


class GlobalAvgPool(Module):
    """The mean over the spatial axes: ``(n, channels)``.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.GlobalAvgPool()(hf.ones((2, 3, 4, 4))).shape
        (2, 3)
    """

    def forward(self, x: TensorLike) -> Tensor:
        """Return the means."""
        x = as_tensor(x)
        return mean(x, axis=tuple(range(2, x.ndim)))


class MaxPool1d(MaxPool):
    """The maximum of every window of one spatial axis; see `MaxPool`."""

    axes = 1


class MaxPool2d(MaxPool):
    """The maximum of every window of two spatial axes; see `MaxPool`."""

    axes = 2


class MaxPool3d(MaxPool):
    """The maximum of every window of three spatial axes; see `MaxPool`."""

    axes = 3


class AvgPool1d(AvgPool):
    """The mean of every window of one spatial axis; see `AvgPool`."""

    axes = 1


class AvgPool2d(AvgPool):
    """The mean of every window of two spatial axes; see `AvgPool`."""

    axes = 2


class AvgPool3d(AvgPool):
    """The mean of every window of three spatial axes; see `AvgPool`."""

    axes = 3


class AdaptiveAvgPool1d(AdaptiveAvgPool):
    """Means over windows that are chosen so that one spatial axis comes out in a given size; see `AdaptiveAvgPool`."""

    axes = 1


class AdaptiveAvgPool2d(AdaptiveAvgPool):
    """Means over windows that are chosen so that two spatial axes come out in given sizes; see `AdaptiveAvgPool`."""

    axes = 2


class AdaptiveAvgPool3d(AdaptiveAvgPool):
    """Means over windows that are chosen so that three spatial axes come out in given sizes; see `AdaptiveAvgPool`."""

    axes = 3


class AdaptiveMaxPool1d(AdaptiveMaxPool):
    """Maxima over windows that are chosen so that one spatial axis comes out in a given size; see `AdaptiveMaxPool`."""

    axes = 1


class AdaptiveMaxPool2d(AdaptiveMaxPool):
    """Maxima over windows that are chosen so that two spatial axes come out in given sizes; see `AdaptiveMaxPool`."""

    axes = 2


class AdaptiveMaxPool3d(AdaptiveMaxPool):
    """Maxima over windows that are chosen so that three spatial axes come out in given sizes; see `AdaptiveMaxPool`."""

    axes = 3


class Dropout1d(Dropout):
    """Zeros in place of randomly chosen channels of one spatial axis, in training mode; see `Dropout`."""

    axes = 1


class Dropout2d(Dropout):
    """Zeros in place of randomly chosen channels of two spatial axes, in training mode; see `Dropout`."""

    axes = 2


class Dropout3d(Dropout):
    """Zeros in place of randomly chosen channels of three spatial axes, in training mode; see `Dropout`."""

    axes = 3

"""Normalisation: over the last axis, over groups of channels, over the batch."""

from __future__ import annotations

from typing import Any

from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.nn.layers.module import Module
from hybridflow.nn.sizes import label, make_parameters, require_size
from hybridflow.ops.common import TensorLike, cast_to
from hybridflow.ops.elementwise import stop_gradient
from hybridflow.ops.nn.batch_statistics import normalize_batch
from hybridflow.ops.nn.channels import batch_norm, group_norm, instance_norm
from hybridflow.ops.nn.normalization import layer_norm, rms_norm


def _make_parameters(layer: Any, size: int) -> None:
    """Make a scale of ones and a shift of zeros, where the layer has them."""
    if layer.has_scale:
        layer.weight = parameter(init.ones((size,), layer.dtype), "weight")
        if layer.has_bias:
            layer.bias = parameter(init.zeros((size,), layer.dtype), "bias")


class _Norm(Module):
    """The base class of normalisations: a size, and optional parameters to scale and shift."""

    weight: Variable | None
    bias: Variable | None

    def _set_up(self, size: int | None, epsilon: float, scale: bool, bias: bool, dtype: Any) -> None:
        if size is not None and (type(size) is not int or size < 1):
            raise ArgumentError(f"{type(self).__name__}: a size is a positive integer", got=repr(size)[:80])
        self.size = size
        self.epsilon, self.has_scale, self.has_bias, self.dtype = epsilon, scale, bias, dtype
        self.weight = self.bias = None

    @property
    def sized_by(self) -> str | None:
        """The attribute with the size that the first call gives if it was left out, if anything has that size."""
        return "size" if self.has_scale else None

    def extra_repr(self) -> str:
        """Return the size."""
        return "" if self.size is None else str(self.size)


class LayerNorm(_Norm):
    """Normalisation over the last axis, then a scale and a shift; see `hf.nn.layer_norm`.

    Args:
        size: the size of the last axis; the first call gives it if it is left out.
        epsilon: a small number that is added to the variance.
        scale: whether to scale (and shift) the result by parameters.
        bias: whether to shift too.
        dtype: their dtype.

    Attributes:
        weight: ones at first.
        bias: zeros at first.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.LayerNorm()(hf.asarray([[1.0, 3.0]]))
        Tensor([[-0.999995,  0.999995]], dtype=float32)
    """

    def __init__(
        self, size: int | None = None, *, epsilon: float = 1e-5, scale: bool = True, bias: bool = True,
        dtype: Any = "float32",
    ) -> None:
        self._set_up(size, epsilon, scale, bias, dtype)
        if size is not None:
            make_parameters(self, size, _make_parameters)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        require_size(self, "size", x, -1, _make_parameters)
        return layer_norm(x, self.weight, self.bias, epsilon=self.epsilon)


class RMSNorm(_Norm):
    """Division by the root of the mean square over the last axis, then a scale; see `hf.nn.rms_norm`.

    Args:
        size: the size of the last axis; the first call gives it if it is left out.
        epsilon: a small number that is added to the mean square.
        scale: whether to scale the result by a parameter.
        dtype: its dtype.

    Attributes:
        weight: ones at first.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.RMSNorm()(hf.asarray([[3.0, 3.0]])).round()
        Tensor([[1., 1.]], dtype=float32)
    """

    def __init__(
        self, size: int | None = None, *, epsilon: float = 1e-6, scale: bool = True, dtype: Any = "float32"
    ) -> None:
        self._set_up(size, epsilon, scale, False, dtype)
        if size is not None:
            make_parameters(self, size, _make_parameters)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        require_size(self, "size", x, -1, _make_parameters)
        return rms_norm(x, self.weight, epsilon=self.epsilon)


class GroupNorm(_Norm):
    """Normalisation over groups of channels of every example; see `hf.nn.group_norm`.

    Args:
        groups: the number of groups.
        size: the number of channels; the first call gives it if it is left out.
        epsilon: a small number that is added to the variance.
        scale: whether to scale (and shift) the result by parameters.
        dtype: their dtype.

    Attributes:
        weight: ones at first.
        bias: zeros at first.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.GroupNorm(2)(hf.ones((1, 4, 3))).shape
        (1, 4, 3)
    """

    def __init__(
        self, groups: int, size: int | None = None, *, epsilon: float = 1e-5, scale: bool = True, dtype: Any = "float32"
    ) -> None:
        self.groups = groups
        self._set_up(size, epsilon, scale, True, dtype)
        if size is not None:
            make_parameters(self, size, _make_parameters)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        require_size(self, "size", x, 1, _make_parameters)
        return group_norm(x, self.groups, self.weight, self.bias, epsilon=self.epsilon)

    def extra_repr(self) -> str:
        """Return the sizes."""
        return str(self.groups) if self.size is None else f"{self.groups}, {self.size}"


class InstanceNorm(_Norm):
    """Normalisation over the spatial axes of every channel of every example; see `hf.nn.instance_norm`.

    Args:
        size: the number of channels; the first call gives it if it is left out.
        epsilon: a small number that is added to the variance.
        scale: whether to scale (and shift) the result by parameters.
        dtype: their dtype.

    Attributes:
        weight: ones at first; None without a scale.
        bias: zeros at first; None without a scale.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.InstanceNorm()(hf.ones((1, 4, 3))).shape
        (1, 4, 3)
    """

    axes: int | None = None

    def __init__(
        self, size: int | None = None, *, epsilon: float = 1e-5, scale: bool = False, dtype: Any = "float32"
    ) -> None:
        self._set_up(size, epsilon, scale, True, dtype)
        if size is not None:
            make_parameters(self, size, _make_parameters)

    def forward(self, x: TensorLike) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        _require_spatial(self, x)
        require_size(self, "size", x, 1, _make_parameters)
        return instance_norm(x, self.weight, self.bias, epsilon=self.epsilon)


def _require_spatial(layer: Any, x: Tensor) -> None:
    count = layer.axes
    if count is not None and x.ndim != count + 2 and not (count == 1 and x.ndim == 2):
        raise ShapeError(f"{label(layer)}: the input has {x.ndim - 2} spatial axes, not {count}", got=str(x.spec),
                         hint="The input is (n, channels, *spatial).")


class BatchNorm(_Norm):
    """Normalisation of every channel: by the batch's mean and variance, or in evaluation mode by moving averages.

    In training mode, each call moves the averages towards the batch's mean and unbiased variance. If a compiled call
    fails, they stay unchanged, like every Variable.

    Args:
        size: the number of channels (axis 1); the first call gives it if it is left out.
        momentum: the weight of a call's statistics in the new averages; 1 forgets the earlier ones.
        epsilon: a small number that is added to the variance.
        scale: whether to scale (and shift) the result by parameters.
        dtype: their dtype, and that of the averages.

    Attributes:
        weight: ones at first.
        bias: zeros at first.
        running_mean: the average of the means, a buffer.
        running_var: the average of the variances, a buffer.

    Example:
        >>> import hybridflow as hf
        >>> norm = hf.nn.BatchNorm(2)
        >>> norm(hf.asarray([[0.0, 1.0], [2.0, 3.0]])).shape
        (2, 2)
        >>> norm.running_mean
        Variable([0.1, 0.2], dtype=float32, name='running_mean')
        >>> norm.eval()(hf.asarray([[0.1, 0.2]]))
        Tensor([[0., 0.]], dtype=float32)

    Reference:
        Ioffe and Szegedy, "Batch normalization: accelerating deep network training by reducing internal covariate
        shift", 2015.
    """

    running_mean: Variable
    running_var: Variable
    axes: int | None = None

    def __init__(
        self, size: int | None = None, *, momentum: float = 0.1, epsilon: float = 1e-5, scale: bool = True,
        dtype: Any = "float32",
    ) -> None:
        self._set_up(size, epsilon, scale, True, dtype)
        self.momentum = momentum
        self.running_mean = self.running_var = None  # pyright: ignore[reportAttributeAccessIssue]
        if size is not None:
            make_parameters(self, size, _make_batch_norm)

    @property
    def sized_by(self) -> str | None:
        """The attribute with the size that the first call gives if it was left out."""
        return "size"

    def forward(self, x: TensorLike) -> Tensor:
        """Return the normalised input."""
        x = as_tensor(x)
        _require_spatial(self, x)
        require_size(self, "size", x, 1, _make_batch_norm)
        if not self.training:
            return batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, epsilon=self.epsilon)
        y, mean, variance = normalize_batch(x, self.weight, self.bias, epsilon=self.epsilon)
        count = x.size // x.shape[1]
        _move(self, self.running_mean, stop_gradient(mean))
        _move(self, self.running_var, stop_gradient(variance) * (count / max(count - 1, 1)))
        return y


def _move(layer: BatchNorm, average: Any, value: Tensor) -> None:
    """Move an average towards a value."""
    if not isinstance(average, Variable):
        raise ArgumentError(
            f"{label(layer)}: in training mode its averages are assigned, and here they are slices of others",
            hint="Call model.eval() before hf.nn.stack, or train each model by itself."
        )
    average.assign((1.0 - layer.momentum) * average.read() + layer.momentum * cast_to(value, average.dtype))


def _make_batch_norm(layer: BatchNorm, size: int) -> None:
    _make_parameters(layer, size)
    layer.running_mean = Variable(init.zeros((size,), layer.dtype), name="running_mean", trainable=False)
    layer.running_var = Variable(init.ones((size,), layer.dtype), name="running_var", trainable=False)


class BatchNorm1d(BatchNorm):
    """Batch normalisation of ``(n, channels)`` or ``(n, channels, length)``; see `BatchNorm`."""

    axes = 1


class BatchNorm2d(BatchNorm):
    """Batch normalisation of ``(n, channels, height, width)``; see `BatchNorm`."""

    axes = 2


class BatchNorm3d(BatchNorm):
    """Batch normalisation of ``(n, channels, depth, height, width)``; see `BatchNorm`."""

    axes = 3


class InstanceNorm1d(InstanceNorm):
    """Instance normalisation of ``(n, channels, length)``; see `InstanceNorm`."""

    axes = 1


class InstanceNorm2d(InstanceNorm):
    """Instance normalisation of ``(n, channels, height, width)``; see `InstanceNorm`."""

    axes = 2


class InstanceNorm3d(InstanceNorm):
    """Instance normalisation of ``(n, channels, depth, height, width)``; see `InstanceNorm`."""

    axes = 3

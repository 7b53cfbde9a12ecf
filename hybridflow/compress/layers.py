"""Layers with stored weights: `QuantizedLinear`, `QuantizedConv` and `QuantizedEmbedding`."""

from __future__ import annotations

from math import prod
from typing import Any

from hybridflow.compress.scales import Stored, stored_weights
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.convolution import Conv
from hybridflow.nn.layers.linear import Embedding, Linear
from hybridflow.nn.layers.module import Module
from hybridflow.ops.common import TensorLike, cast_to
from hybridflow.ops.integer_products import integer_conv, integer_linear
from hybridflow.ops.nn.convolution import conv
from hybridflow.ops.nn.embeddings import embedding
from hybridflow.ops.packing import unpack_int4
from hybridflow.ops.quantization import dequantize_linear, quantize_dynamic
from hybridflow.ops.quantized_products import quantized_conv, quantized_linear, weight_only_linear
from hybridflow.ops.rearrange import repeat
from hybridflow.ops.shape import permute_dims, reshape

Range = tuple[Any, Any]
"""Scale and zero point of a layer's input."""


class _Quantized(Module):
    """What the layers share: stored weights, their scales, and what happens to the input.

    Attributes:
        weight, scale: buffers; see `hf.quantize.weights`.
        bias: the bias, in floats.
        dtype, group: the format of the weights.
        inputs: ``"float"``, ``"dynamic"`` or ``"static"``.
        x_scale, x_zero_point: buffers, of a static layer.
    """

    weight: Variable
    scale: Variable
    bias: Variable | None
    x_scale: Variable
    x_zero_point: Variable

    def _store(self, stored: Stored, dtype: str, group: int | None, inputs: str, range: Range | None) -> None:
        self.dtype, self.group, self.inputs = dtype, group, inputs
        self.register_buffer("weight", stored.weight)
        self.register_buffer("scale", stored.scale)
        if range is not None:
            self.register_buffer("x_scale", range[0])
            self.register_buffer("x_zero_point", range[1])

    def _dynamic(self, x: Tensor, product: Any, axis: int) -> Tensor:
        """Return a product of integers; the input is quantized with its own range."""
        q, x_scale, zero = quantize_dynamic(x)
        total = cast_to(product(q, zero), x_scale.dtype)
        shape = tuple([-1 if i == axis % total.ndim else 1 for i in range(total.ndim)])
        y = total * reshape(x_scale * self.scale, shape)
        return y if self.bias is None else y + reshape(self.bias, shape)

    def _shown(self, sizes: str) -> str:
        group = "" if self.group is None else f", group={self.group}"
        inputs = "" if self.inputs == "float" else f", {self.inputs}"
        return f"{sizes}, {self.dtype}{group}{inputs}"


def _restored(weight: Tensor, scale: Tensor, size: int, dtype: str, group: int | None) -> Tensor:
    """Return rows of real weights, given stored ones; the scale has an axis of groups, if there are groups."""
    q = unpack_int4(weight, size) if dtype == "int4" else weight
    by = reshape(scale, (*scale.shape, 1)) if group is None else repeat(scale, group, axis=-1)[..., :size]
    return dequantize_linear(q, by, dtype=dtype)


class QuantizedLinear(_Quantized):
    """A linear layer with stored weights; `hf.quantize.weights`, `dynamic` and `static` make it.

    Args:
        layer: the layer whose weights it stores.
        dtype, group: the format of the weights.
        inputs: how the input is quantized: not at all (``"float"``), with its own range at each call (``"dynamic"``),
            or with a fixed range (``"static"``).
        range: scale and zero point of the input, for ``"static"``.
        bits: see `stored_weights`.
    """

    def __init__(
        self, layer: Linear, dtype: str = "int8", *, group: int | None = None, inputs: str = "float",
        range: Range | None = None, bits: int = 8,
    ) -> None:
        self.out_features, self.in_features = layer.weight.shape
        self._store(stored_weights(layer.weight.numpy(), dtype, group=group, bits=bits), dtype, group, inputs, range)
        self.bias = layer.bias

    def forward(self, x: TensorLike) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        x = as_tensor(x)
        if self.inputs == "float":
            return weight_only_linear(x, self.weight, self.scale, self.bias, dtype=self.dtype, group=self.group)
        if self.inputs == "static":
            return quantized_linear(x, self.x_scale, self.x_zero_point, self.weight, self.scale, self.bias)
        return self._dynamic(x, lambda q, zero: integer_linear(q, self.weight, zero), -1)

    def extra_repr(self) -> str:
        """Return the sizes and the format."""
        return self._shown(f"{self.in_features}, {self.out_features}")


class QuantizedConv(_Quantized):
    """A convolution with stored weights, and a scale for each filter; see `QuantizedLinear`.

    Args:
        layer: the layer whose weights it stores.
        dtype, group, inputs, range, bits: as for `QuantizedLinear`; the weights of a filter are a row.
    """

    def __init__(
        self, layer: Conv, dtype: str = "int8", *, group: int | None = None, inputs: str = "float",
        range: Range | None = None, bits: int = 8,
    ) -> None:
        self.shape = tuple(layer.weight.shape)
        self.options = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "groups")}
        self.channels_last = layer.channels_last
        rows = layer.weight.numpy().reshape(self.shape[0], -1)
        stored = stored_weights(rows, dtype, group=group, bits=bits)
        if dtype != "int4":
            stored = Stored(stored.weight.reshape(self.shape), stored.scale)
        self._store(stored, dtype, group, inputs, range)
        self.bias = layer.bias

    def forward(self, x: TensorLike) -> Tensor:
        """Return the convolution."""
        x = as_tensor(x)
        if self.channels_last:
            x = permute_dims(x, (0, x.ndim - 1, *range(1, x.ndim - 1)))
        y = self._convolved(x)
        return permute_dims(y, (0, *range(2, y.ndim), 1)) if self.channels_last else y

    def _convolved(self, x: Tensor) -> Tensor:
        if self.inputs == "static":
            return quantized_conv(
                x, self.x_scale, self.x_zero_point, self.weight, self.scale, self.bias, **self.options
            )
        if self.inputs == "dynamic":
            return self._dynamic(x, lambda q, zero: integer_conv(q, self.weight, zero, **self.options), 1)
        size = prod(self.shape[1:])
        rows = self.weight.read() if self.dtype == "int4" else reshape(self.weight, (self.shape[0], size))
        kernel = reshape(_restored(rows, self.scale.read(), size, self.dtype, self.group), self.shape)
        y = conv(x, cast_to(kernel, x.dtype), **self.options)
        return y if self.bias is None else y + reshape(self.bias, (-1, *[1] * (y.ndim - 2)))

    def extra_repr(self) -> str:
        """Return the sizes and the format."""
        groups = self.options["groups"]
        return self._shown(f"{self.shape[1] * groups}, {self.shape[0]}, {self.shape[2:]}")


class QuantizedEmbedding(_Quantized):
    """A table of stored vectors, with a scale for each vector or group of its numbers; see `QuantizedLinear`.

    Args:
        layer: the layer whose table it stores.
        dtype, group: the format.
    """

    def __init__(self, layer: Embedding, dtype: str = "int8", *, group: int | None = None) -> None:
        self.count, self.width = layer.weight.shape
        self._store(stored_weights(layer.weight.numpy(), dtype, group=group), dtype, group, "float", None)
        self.bias = None

    def forward(self, ids: TensorLike) -> Tensor:
        """Return the vector of each id."""
        rows, scales = embedding(ids, self.weight), embedding(ids, self.scale)
        return _restored(rows, scales, self.width, self.dtype, self.group)

    def extra_repr(self) -> str:
        """Return the sizes and the format."""
        return self._shown(f"{self.count}, {self.width}")


def is_product(layer: Any) -> bool:
    """Whether a layer is a product whose weights and inputs can be stored."""
    return isinstance(layer, Linear | Conv)


def is_storable(layer: Any) -> bool:
    """Whether a layer has a form with stored weights; a subclass with a ``forward`` of its own has none."""
    return type(layer).forward in (Linear.forward, Conv.forward, Embedding.forward)


def quantized(layer: Any, dtype: str = "int8", **options: Any) -> Any:
    """Return the form of a layer with stored weights."""
    if isinstance(layer, Embedding):
        return QuantizedEmbedding(layer, dtype, group=options.get("group"))
    if isinstance(layer, Linear):
        return QuantizedLinear(layer, dtype, **options)
    return QuantizedConv(layer, dtype, **options)

"""Quantization-aware training: `prepare` a model, train it, `convert` it."""

from __future__ import annotations

from typing import Any

import numpy as np

from hybridflow.compress.batch_norm import fuse_batch_norm
from hybridflow.compress.calibration import ranges_of
from hybridflow.compress.layers import is_product, quantized
from hybridflow.compress.quantized_models import chosen, require_bits
from hybridflow.compress.replacing import Patterns, batches_of, copied, modules_of, require_module, with_weight
from hybridflow.compress.scales import input_scale
from hybridflow.core.dtypes import float32, int8
from hybridflow.core.errors import ArgumentError
from hybridflow.core.keywords import with_foreign_keywords
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.core.variable import Variable
from hybridflow.nn.layers.module import Module
from hybridflow.ops.choice import clip, maximum, minimum, where
from hybridflow.ops.common import TensorLike, cast_to
from hybridflow.ops.elementwise import abs, round, stop_gradient
from hybridflow.ops.quantization import fake_quantize
from hybridflow.ops.reductions import max, min


class FakeQuantized(Module):
    """A layer that rounds weights and inputs as its quantized form will, but has gradients; `prepare` makes it.

    In training mode each call moves the range of the inputs towards the range of its own inputs.

    Args:
        layer: the layer.
        range: the initial range of its inputs; None if its inputs are ids.
        momentum: the weight of a call's range in the moving average.
        bits: how many bits of int8 the weights use.
    """

    low: Variable
    high: Variable

    def __init__(self, layer: Any, range: tuple[float, float] | None, momentum: float, bits: int) -> None:
        self.layer, self.momentum, self.bits, self.has_range = layer, momentum, bits, range is not None
        if range is not None:
            self.register_buffer("low", np.float32(range[0]))
            self.register_buffer("high", np.float32(range[1]))

    def forward(self, x: TensorLike) -> Tensor:
        """Return what the layer gives for rounded weights and inputs."""
        x = as_tensor(x)
        return with_weight(self.layer, self._weight, self._input(x) if self.has_range else x)

    def _weight(self, w: Tensor) -> Tensor:
        most = max(abs(stop_gradient(w)), axis=tuple(range(1, w.ndim)), keepdims=True)
        scale = where(most > 0, cast_to(most, float32) / float(2 ** (self.bits - 1) - 1), 1.0)
        return fake_quantize(w, scale)

    def _input(self, x: Tensor) -> Tensor:
        low, high = self.low.read(), self.high.read()
        if self.training:
            values = cast_to(stop_gradient(x), float32)
            low, high = low + self.momentum * (min(values) - low), high + self.momentum * (max(values) - high)
            self.low.assign(low)
            self.high.assign(high)
        low, high = minimum(low, 0.0), maximum(high, 0.0)
        scale = where(high > low, (high - low) / 255.0, 1.0)
        zero = cast_to(clip(round(-128.0 - low / scale), -128.0, 127.0), int8)
        return fake_quantize(x, scale, zero)


@with_foreign_keywords
def prepare(
    model: Module, batches: Any, *, momentum: float = 0.01, bits: int = 8, match: Patterns = "*", skip: Patterns = ()
) -> Any:
    """Return a copy of a model that rounds as its quantized form will, to be trained further.

    Batch normalisation that follows a product is merged into it first. Train the copy as any model, at a small rate,
    and then `convert` it.

    Args:
        model: the module, trained already.
        batches: as for `static`; they give the initial ranges of inputs.
        momentum: the weight of a call's range of inputs in the moving average, in training mode.
        bits, match, skip: as for `dynamic`.

    Returns:
        A new model, in training mode, with each layer inside of a `FakeQuantized`. In ONNX it has the QDQ form.

    Raises:
        ArgumentError: no batches, a layer that they do not reach, or a pattern that matches nothing.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.nn.Sequential(hf.nn.Linear(8, 4), hf.nn.relu)
        >>> x = hf.random.normal((16, 8))
        >>> prepared = hf.quantize.prepare(model, x)
        >>> optimizer = hf.optim.SGD(prepared, rate=1e-3)
        >>> optimizer.update(hf.grad(lambda model: hf.mean(model(x)))(prepared))
        >>> hf.quantize.convert(prepared)
        Sequential(
          (0): QuantizedLinear(8, 4, int8, static)
          (1): relu
        )

    Reference:
        Jacob et al., "Quantization and training of neural networks for efficient integer-arithmetic-only inference",
        2018, section 3.
    """
    require_bits("prepare", bits)
    layers_by_path = chosen("prepare", model, match, skip)
    given = batches_of("prepare", batches)
    fused = fuse_batch_norm(model, *given[0])
    modules = modules_of(fused)
    products = [path for path in layers_by_path if is_product(modules[path])]
    ranges = ranges_of("prepare", fused, products, given)
    layers = {path: FakeQuantized(modules[path], ranges.get(path), momentum, bits) for path in layers_by_path}
    return copied(fused, layers).train()


def convert(model: Module) -> Any:
    """Return the quantized form of a model that `prepare` made, as `static` would give it.

    Args:
        model: the model, after training.

    Returns:
        A new model, in evaluation mode.

    Raises:
        ArgumentError: no layer of the model is prepared.
    """
    require_module("convert", model)
    plain = copied(model).eval()
    prepared = {path: one for path, one in modules_of(plain).items() if isinstance(one, FakeQuantized)}
    if not prepared:
        raise ArgumentError("convert: the model has no prepared layers", got=type(model).__name__,
                            hint="Call hf.quantize.prepare(model, batches) and train what it returns.")
    layers: dict[str, Any] = {}
    for path, one in prepared.items():
        if one.has_range:
            scale_and_zero = input_scale(one.low.numpy().item(), one.high.numpy().item())
            layers[path] = quantized(one.layer, inputs="static", range=scale_and_zero, bits=one.bits)
        else:
            layers[path] = quantized(one.layer)
    return copied(plain, layers).eval()

"""``tf.layers``: functions that make their Variables."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hybridflow.compat.v1 import nn
from hybridflow.compat.v1.functions import identity, matmul, reshape, tensordot, where, zeros_initializer
from hybridflow.compat.v1.variables import get_variable, variable_scope
from hybridflow.core.errors import ArgumentError

_ZEROS = zeros_initializer()


def _features(layer: str, x: Any) -> int:
    width = x.get_shape()[-1].value
    if width is None:
        raise ArgumentError(f"{layer}: the last size of the input is open", got=str(x.spec()))
    return width


def dense(
    inputs: Any, units: int, activation: Callable[..., Any] | None = None, use_bias: bool = True,
    kernel_initializer: Any = None, bias_initializer: Any = _ZEROS, name: str | None = None, reuse: Any = None,
) -> Any:
    """Add ``activation(inputs kernel + bias)``.

    Args:
        inputs: ``(..., features)``.
        units: the number of results.
        activation: a function, or None.
        use_bias: whether there is a bias.
        kernel_initializer: the initializer of the kernel ``(features, units)``.
        bias_initializer: that of the bias.
        name: the name of the Variables' scope; ``dense``, ``dense_1`` and so on if not given.
        reuse: as for `variable_scope`.
    """
    with variable_scope(name, default_name="dense", reuse=reuse):
        kernel = get_variable("kernel", [_features("dense", inputs), units], inputs.dtype, kernel_initializer)
        flat = len(inputs.get_shape()) == 2
        result = matmul(inputs, kernel) if flat else tensordot(inputs, kernel, axes=1)
        if use_bias:
            result = nn.bias_add(result, get_variable("bias", [units], inputs.dtype, bias_initializer))
        return result if activation is None else activation(result)


def conv2d(
    inputs: Any, filters: int, kernel_size: Any, strides: Any = 1, padding: str = "valid",
    activation: Callable[..., Any] | None = None, use_bias: bool = True, kernel_initializer: Any = None,
    name: str | None = None, reuse: Any = None,
) -> Any:
    """Add ``activation(convolution(inputs, kernel) + bias)`` of ``(n, height, width, channels)``."""
    window = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
    with variable_scope(name, default_name="conv2d", reuse=reuse):
        sizes = [*window, _features("conv2d", inputs), filters]
        kernel = get_variable("kernel", sizes, inputs.dtype, kernel_initializer)
        result = nn.conv2d(inputs, kernel, strides, padding.upper())
        if use_bias:
            result = nn.bias_add(result, get_variable("bias", [filters], inputs.dtype, _ZEROS))
        return result if activation is None else activation(result)


def max_pooling2d(
    inputs: Any, pool_size: Any, strides: Any, padding: str = "valid", name: str = "max_pooling2d"
) -> Any:
    """Add the maximum of every window."""
    return nn.max_pool(inputs, pool_size, strides, padding.upper(), name=name)


def average_pooling2d(
    inputs: Any, pool_size: Any, strides: Any, padding: str = "valid", name: str = "average_pooling2d"
) -> Any:
    """Add the mean of every window."""
    return nn.avg_pool(inputs, pool_size, strides, padding.upper(), name=name)


def flatten(inputs: Any, name: str = "flatten") -> Any:
    """Join all axes but the first."""
    sizes = inputs.get_shape()[1:]
    return reshape(inputs, [-1, math.prod([int(size) for size in sizes])], name=name)


def dropout(inputs: Any, rate: Any = 0.5, seed: int | None = None, training: Any = False, name: str = "dropout") -> Any:
    """Drop elements in training; `training` is a Python bool or a bool tensor."""
    if training is False:
        return identity(inputs, name=name)
    dropped = nn.dropout(inputs, rate=rate, seed=seed, name=name)
    return dropped if training is True else where(training, dropped, inputs)

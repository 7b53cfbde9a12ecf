"""``tf.nn``: functions of neural networks with TensorFlow 1's arguments; images are channels last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hybridflow as hf
from hybridflow.compat.v1 import rnn_cell as rnn_cell
from hybridflow.compat.v1.functions import sigmoid as sigmoid
from hybridflow.compat.v1.functions import tanh as tanh
from hybridflow.compat.v1.graph import added, lifted
from hybridflow.compat.v1.rnn_cell import dynamic_rnn as dynamic_rnn
from hybridflow.compat.v1.rnn_cell import static_rnn as static_rnn
from hybridflow.core.errors import ArgumentError

relu = lifted(lambda features: hf.nn.relu(features), "Relu")
relu6 = lifted(lambda features: hf.nn.relu6(features), "Relu6")
elu = lifted(lambda features: hf.nn.elu(features), "Elu")
selu = lifted(lambda features: hf.nn.selu(features), "Selu")
softplus = lifted(lambda features: hf.nn.softplus(features), "Softplus")
leaky_relu = lifted(lambda features, alpha=0.2: hf.nn.leaky_relu(features, slope=alpha), "LeakyRelu")
l2_loss = lifted(lambda t: hf.sum(hf.square(t)) / 2, "L2Loss")
xw_plus_b = lifted(lambda x, weights, biases: hf.matmul(x, weights) + biases, "xw_plus_b")
bias_add = lifted(lambda value, bias: value + hf.asarray(bias), "BiasAdd")
embedding_lookup = lifted(lambda params, ids: hf.take(params, hf.asarray(ids), axis=0), "embedding_lookup")


def softmax(logits: Any, axis: int = -1, name: str = "Softmax", dim: int | None = None) -> Any:
    """Add probabilities along an axis."""
    return added(lambda x: hf.nn.softmax(x, axis=axis if dim is None else dim), (logits,), {}, name)


def log_softmax(logits: Any, axis: int = -1, name: str = "LogSoftmax", dim: int | None = None) -> Any:
    """Add logarithms of probabilities along an axis."""
    return added(lambda x: hf.nn.log_softmax(x, axis=axis if dim is None else dim), (logits,), {}, name)


def softmax_cross_entropy_with_logits(*, labels: Any, logits: Any, dim: int = -1, name: str = "softmax_ce") -> Any:
    """Add a loss per example from class probabilities and logits; both are given by name."""

    def loss(y: Any, x: Any) -> Any:
        y, x = (hf.moveaxis(hf.asarray(one), dim, -1) for one in (y, x))
        return hf.nn.softmax_cross_entropy(x, y)

    return added(loss, (labels, logits), {}, name)


softmax_cross_entropy_with_logits_v2 = softmax_cross_entropy_with_logits


def sparse_softmax_cross_entropy_with_logits(*, labels: Any, logits: Any, name: str = "sparse_softmax_ce") -> Any:
    """Add a loss per example from integer classes and logits; both are given by name."""
    return added(lambda y, x: hf.nn.softmax_cross_entropy(x, y), (labels, logits), {}, name)


def sigmoid_cross_entropy_with_logits(*, labels: Any, logits: Any, name: str = "logistic_loss") -> Any:
    """Add a loss per element from probabilities and logits; both are given by name."""
    return added(lambda y, x: hf.nn.sigmoid_cross_entropy(x, y), (labels, logits), {}, name)


def dropout(
    x: Any, keep_prob: Any = None, noise_shape: Any = None, seed: int | None = None, name: str = "dropout",
    rate: Any = None,
) -> Any:
    """Replace randomly chosen elements by 0 and scale the others up.

    Args:
        x: floating-point.
        keep_prob: the probability that an element stays, a number or a tensor; or give `rate`.
        noise_shape: the shape of the random choice, which is broadcast; that of `x` if None.
        seed: a seed of its own.
        name: the operation's name.
        rate: the probability that an element goes.
    """
    if (keep_prob is None) == (rate is None):
        given = f"keep_prob={keep_prob}, rate={rate}"
        raise ArgumentError("dropout: give either keep_prob= or rate=", got=given)
    source = hf.random if seed is None else hf.random.Generator(seed)

    def drop(x: Any, share: Any) -> Any:
        keep = share if rate is None else 1.0 - share
        drawn = source.uniform(x.shape if noise_shape is None else tuple(noise_shape), dtype=x.dtype)
        return hf.where(drawn < keep, x / keep, 0.0)

    return added(drop, (x, keep_prob if rate is None else rate), {}, name)


def _spatial(name: str, sizes: Sequence[int] | int) -> tuple[int, int]:
    """Return the two inner ones of four sizes ``[1, height, width, 1]``."""
    if isinstance(sizes, int):
        return sizes, sizes
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    if len(sizes) != 4 or sizes[0] != 1 or sizes[3] != 1:
        raise ArgumentError(f"{name}: sizes are [1, height, width, 1]", got=repr(list(sizes)))
    return sizes[1], sizes[2]


def _images_last(name: str, data_format: str) -> None:
    if data_format != "NHWC":
        raise ArgumentError(f"{name}: data_format={data_format!r}", hint="Use NHWC, or hf.nn.conv and hf.nn.max_pool.")


def conv2d(
    input: Any, filter: Any = None, strides: Any = 1, padding: str = "VALID", use_cudnn_on_gpu: bool = True,
    data_format: str = "NHWC", dilations: Any = 1, name: str = "Conv2D", filters: Any = None,
) -> Any:
    """Add a convolution of ``(n, height, width, in)`` with a kernel ``(height, width, in, out)``."""
    del use_cudnn_on_gpu
    _images_last("conv2d", data_format)
    stride, dilation = _spatial("conv2d", strides), _spatial("conv2d", dilations)

    def convolved(x: Any, kernel: Any) -> Any:
        return hf.nn.conv(x, kernel, stride=stride, padding=padding.lower(), dilation=dilation, channels_last=True)

    return added(convolved, (input, filter if filter is not None else filters), {}, name)


def max_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str = "MaxPool"
) -> Any:
    """Add the maximum of every window of ``(n, height, width, channels)``."""
    _images_last("max_pool", data_format)
    window, stride = _spatial("max_pool", ksize), _spatial("max_pool", strides)
    return added(
        lambda x: hf.nn.max_pool(x, window, stride, padding=padding.lower(), channels_last=True), (value,), {}, name
    )


def avg_pool(
    value: Any, ksize: Any, strides: Any, padding: str, data_format: str = "NHWC", name: str = "AvgPool"
) -> Any:
    """Add the mean of every window of ``(n, height, width, channels)``."""
    _images_last("avg_pool", data_format)
    window, stride = _spatial("avg_pool", ksize), _spatial("avg_pool", strides)
    return added(
        lambda x: hf.nn.avg_pool(x, window, stride, padding=padding.lower(), channels_last=True), (value,), {}, name
    )


def l2_normalize(x: Any, axis: Any = None, epsilon: float = 1e-12, name: str = "l2_normalize") -> Any:
    """Add a tensor divided by its norm along axes; epsilon bounds the sum of squares."""

    def normalized(x: Any) -> Any:
        return x / hf.sqrt(hf.maximum(hf.sum(hf.square(x), axis=axis, keepdims=True), epsilon))

    return added(normalized, (x,), {}, name)


def moments(x: Any, axes: Sequence[int], keep_dims: bool = False, keepdims: bool = False, name: str = "moments") -> Any:
    """Return mean and variance over axes."""
    keep = keep_dims or keepdims

    def both(x: Any) -> Any:
        return hf.mean(x, axis=tuple(axes), keepdims=keep), hf.var(x, axis=tuple(axes), keepdims=keep)

    return added(both, (x,), {}, name)


def in_top_k(predictions: Any, targets: Any, k: int, name: str = "in_top_k") -> Any:
    """Say of each row whether its class is among the k largest predictions."""

    def among(x: Any, y: Any) -> Any:
        of_class = hf.take_along_axis(x, hf.expand_dims(hf.asarray(y), axis=-1), axis=-1)
        return hf.sum(hf.astype(x > of_class, hf.int32), axis=-1) < k

    return added(among, (predictions, targets), {}, name)

"""Small models and their training steps, whose costs and memory are known or can be measured."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import hybridflow as hf

Step = tuple[Any, tuple[hf.Tensor, ...]]
Optimizer = Callable[[Callable[..., Any], list[hf.Variable]], Any]


def weights(*shape: int, name: str = "w") -> hf.Variable:
    return hf.Variable(np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 0.05, name=name)


def sgd(loss: Callable[..., Any], parameters: list[hf.Variable]) -> Any:
    """Return a compiled step of stochastic gradient descent."""

    @hf.compile
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            value = loss(x, y)
        for p, g in zip(parameters, tape.gradient(value, parameters), strict=True):
            p.assign_sub(0.1 * g)
        return value

    return step


def adam(loss: Callable[..., Any], parameters: list[hf.Variable]) -> Any:
    """Return a compiled step of Adam."""
    first = [hf.Variable(hf.zeros(p.shape), trainable=False, name=f"{p.name}_m") for p in parameters]
    second = [hf.Variable(hf.zeros(p.shape), trainable=False, name=f"{p.name}_v") for p in parameters]
    count = hf.Variable(0.0, trainable=False, name="count")

    @hf.compile
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            value = loss(x, y)
        count.assign_add(1.0)
        n: Any = count.read()
        for p, m, v, g in zip(parameters, first, second, tape.gradient(value, parameters), strict=True):
            m.assign(0.9 * m + 0.1 * g)
            v.assign(0.999 * v + 0.001 * g * g)
            p.assign_sub(1e-3 * (m / (1 - 0.9**n)) / (hf.sqrt(v / (1 - 0.999**n)) + 1e-8))
        return value

    return step


def _labels(*shape: int) -> hf.Tensor:
    return hf.zeros(shape, dtype=hf.int32)


def mlp(sizes: Sequence[int] = (784, 256, 256, 256, 10), batch: int = 512, optimizer: Optimizer = sgd) -> Step:
    """Return a step of a multilayer perceptron with ReLU."""
    pairs = [(weights(a, b), weights(b, name="b")) for a, b in itertools.pairwise(sizes)]

    def loss(x: Any, y: Any) -> Any:
        for w, b in pairs[:-1]:
            x = hf.nn.relu(x @ w + b)
        w, b = pairs[-1]
        return hf.mean(hf.nn.softmax_cross_entropy(x @ w + b, y))

    return optimizer(loss, [one for pair in pairs for one in pair]), (hf.zeros((batch, sizes[0])), _labels(batch))


def cnn(batch: int = 32, size: int = 32, optimizer: Optimizer = sgd, act: Any = hf.nn.relu) -> Step:
    """Return a step of a network of three convolutions with pooling between them."""
    kernels = [weights(16, 3, 3, 3), weights(32, 16, 3, 3), weights(64, 32, 3, 3)]
    head = weights(64, 10)

    def loss(x: Any, y: Any) -> Any:
        for kernel in kernels[:-1]:
            x = hf.nn.max_pool(act(hf.nn.conv(x, kernel, padding="same")), 2)
        x = hf.mean(act(hf.nn.conv(x, kernels[-1], padding="same")), axis=(2, 3))
        return hf.mean(hf.nn.softmax_cross_entropy(x @ head, y))

    return optimizer(loss, [*kernels, head]), (hf.zeros((batch, 3, size, size)), _labels(batch))


def transformer(
    batch: int = 8, length: int = 64, width: int = 64, layers: int = 2, optimizer: Optimizer = sgd
) -> Step:
    """Return a step of a causal language model with pre-norm blocks of four heads."""
    table = weights(100, width, name="table")
    shapes = ((width, 3 * width), (width, width), (width, 4 * width), (4 * width, width), (width,), (width,))
    blocks = [[weights(*shape) for shape in shapes] for _ in range(layers)]

    def heads(x: Any) -> Any:
        return hf.permute_dims(hf.reshape(x, (batch, length, 4, width // 4)), (0, 2, 1, 3))

    def loss(ids: Any, labels: Any) -> Any:
        x: Any = hf.nn.embedding(ids, table)
        for qkv, out, up, down, g, h in blocks:
            q, k, v = hf.split(hf.nn.layer_norm(x, g) @ qkv, 3, axis=-1)
            found = hf.nn.scaled_dot_product_attention(heads(q), heads(k), heads(v), is_causal=True)
            x = x + hf.reshape(hf.permute_dims(found, (0, 2, 1, 3)), (batch, length, width)) @ out
            x = x + hf.nn.gelu(hf.nn.layer_norm(x, h) @ up) @ down
        return hf.mean(hf.nn.softmax_cross_entropy(x @ table.mT, labels))

    parameters = [table, *[one for block in blocks for one in block]]
    return optimizer(loss, parameters), (_labels(batch, length), _labels(batch, length))


def lstm(batch: int = 32, steps: int = 24, width: int = 32, hidden: int = 64, optimizer: Optimizer = sgd) -> Step:
    """Return a step of an LSTM over a sequence, with a classifier on its last state."""
    wx, wh, b, head = weights(width, 4 * hidden), weights(hidden, 4 * hidden), weights(4 * hidden), weights(hidden, 10)

    def cell(carry: Any, x: Any) -> Any:
        h, c = carry
        i, f, g, o = hf.split(x @ wx + h @ wh + b, 4, axis=-1)
        c = hf.nn.sigmoid(f) * c + hf.nn.sigmoid(i) * hf.tanh(g)
        h = hf.nn.sigmoid(o) * hf.tanh(c)
        return (h, c), h

    def loss(xs: Any, y: Any) -> Any:
        (h, _), _ = hf.scan(cell, (hf.zeros((batch, hidden)), hf.zeros((batch, hidden))), xs)
        return hf.mean(hf.nn.softmax_cross_entropy(h @ head, y))

    return optimizer(loss, [wx, wh, b, head]), (hf.zeros((steps, batch, width)), _labels(batch))

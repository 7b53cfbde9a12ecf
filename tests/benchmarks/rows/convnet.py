"""A small convolutional network: one SGD step, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, row

RATE = 0.001


class Data:
    """Kernels ``(out, in, 3, 3)``, the last layer's weights, and a batch of 28 x 28 images."""

    def __init__(self, case: Case) -> None:
        batch, size = case.size(16, 2), case.size(28, 8)
        first, second = case.size(16, 2), case.size(32, 3)
        shapes = (first, 1, 3, 3), (second, first, 3, 3), (second * (size // 4) ** 2, 10), (10,)
        self.weights = [case.normal(*shape, scale=0.1) for shape in shapes]
        self.images = case.normal(batch, 1, size, size)
        self.labels = case.rng.integers(0, 10, batch).astype(np.int32)


def hybridflow_step(data: Data) -> tuple[Any, list[hf.Variable]]:
    """Return a step function of a batch and the Variables it trains."""
    variables = [hf.Variable(weight) for weight in data.weights]
    first, second, w, b = variables

    def step(images: Any, labels: Any) -> Any:
        with hf.GradientTape() as tape:
            h = hf.nn.max_pool(hf.nn.relu(hf.nn.conv(images, first, padding="same")), 2)
            h = hf.nn.max_pool(hf.nn.relu(hf.nn.conv(h, second, padding="same")), 2)
            logits = hf.reshape(h, (h.shape[0], -1)) @ w + b
            loss = hf.mean(hf.nn.softmax_cross_entropy(logits, labels))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(gradient * RATE)
        return loss

    return step, variables


def jax_step(weights: list[Any], images: Any, labels: Any) -> tuple[Any, list[Any]]:
    """Return the loss and the trained weights."""

    def layer(x: Any, kernel: Any) -> Any:
        y = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME"))
        return jax.lax.reduce_window(y, -np.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss_of(weights: list[Any]) -> Any:
        first, second, w, b = weights
        h = layer(layer(images, first), second)
        logits = h.reshape(h.shape[0], -1) @ w + b
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return loss, [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def add_ours(case: Case, data: Data, decorate: Callable[[Any], Any]) -> None:
    """Add hybridflow's side."""
    step, variables = hybridflow_step(data)
    step, images, labels = decorate(step), hf.asarray(data.images), hf.asarray(data.labels)
    case.ours(lambda: step(images, labels), state=lambda: [variable.read() for variable in variables])


@row("convnet, 2 conv, batch 16, 28 x 28, SGD step, eager", aims={"torch": 1.5})
def convnet_eager(case: Case) -> None:
    data = Data(case)
    add_ours(case, data, lambda step: step)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        functional = torch.nn.functional
        weights = [put(weight).requires_grad_() for weight in data.weights]
        first, second, w, b = weights
        images, labels = put(data.images), put(data.labels).long()

        def call() -> Any:
            h = functional.max_pool2d(torch.relu(functional.conv2d(images, first, padding="same")), 2)
            h = functional.max_pool2d(torch.relu(functional.conv2d(h, second, padding="same")), 2)
            loss = functional.cross_entropy(h.reshape(h.shape[0], -1) @ w + b, labels)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=RATE)
            return loss

        return call, {"state": lambda: weights}


@row("convnet, 2 conv, batch 16, 28 x 28, SGD step, compiled", aims={"jax.jit": 1.0})
def convnet_compiled(case: Case) -> None:
    data = Data(case)
    add_ours(case, data, hf.compile)
    held = [[jnp.asarray(weight) for weight in data.weights]]
    step, images, labels = jax.jit(jax_step), jnp.asarray(data.images), jnp.asarray(data.labels)

    def call() -> Any:
        loss, held[0] = step(held[0], images, labels)
        return loss

    case.peer("jax.jit", call, state=lambda: held[0])

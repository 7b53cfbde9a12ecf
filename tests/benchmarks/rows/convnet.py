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


# -- torch's example for MNIST, with batch normalisation ----------------------------------------------------------


class _Net(hf.nn.Module):
    def __init__(self, first: int, second: int, hidden: int) -> None:
        nn = hf.nn
        self.conv1, self.conv2 = nn.Conv2d(1, first, 3), nn.Conv2d(first, second, 3)
        self.norm1, self.norm2 = nn.BatchNorm2d(first), nn.BatchNorm2d(second)
        self.drop1, self.drop2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(hidden), nn.Linear(hidden, 10)

    def forward(self, x: Any) -> Any:
        x = hf.nn.relu(self.norm1(self.conv1(x)))
        x = hf.nn.relu(self.norm2(self.conv2(x)))
        x = self.drop1(hf.nn.max_pool(x, 2))
        x = hf.nn.relu(self.fc1(hf.reshape(x, (x.shape[0], -1))))
        return self.fc2(self.drop2(x))


def _mnist(case: Case, *, compiled: bool) -> None:
    batch, size, sizes = case.size((64, 28, (32, 64, 128)), (2, 8, (2, 3, 4)))
    images = case.normal(batch, 1, size, size)
    labels = case.rng.integers(0, 10, batch).astype(np.int32)
    net = _Net(*sizes)
    x, y = hf.asarray(images), hf.asarray(labels)
    net(x)
    opt = hf.optim.SGD(net, RATE)

    def step(x: Any, y: Any) -> Any:
        loss = hf.mean(hf.nn.softmax_cross_entropy(net(x), y))
        loss.backward()
        opt.step()
        opt.zero_grad()
        return loss

    run = hf.compile(step) if compiled else step
    # Nothing is compared: the sides draw other random numbers. The tests of layers compare the computations.
    case.ours(lambda: run(x, y), comparable=lambda result: None)

    @case.torch()
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        nn, functional = torch.nn, torch.nn.functional
        conv1, conv2 = nn.Conv2d(1, sizes[0], 3), nn.Conv2d(sizes[0], sizes[1], 3)
        norm1, norm2 = nn.BatchNorm2d(sizes[0]), nn.BatchNorm2d(sizes[1])
        fc1, fc2 = nn.Linear(sizes[1] * ((size - 4) // 2) ** 2, sizes[2]), nn.Linear(sizes[2], 10)
        x, y = put(images), put(labels).long()
        layers = [layer.to(x.device) for layer in (conv1, conv2, norm1, norm2, fc1, fc2)]
        opt = torch.optim.SGD([one for layer in layers for one in layer.parameters()], RATE)

        def theirs() -> Any:
            opt.zero_grad()
            h = torch.relu(norm1(conv1(x)))
            h = torch.relu(norm2(conv2(h)))
            h = functional.dropout(functional.max_pool2d(h, 2), 0.25)
            h = functional.dropout(torch.relu(fc1(h.flatten(1))), 0.5)
            loss = functional.cross_entropy(fc2(h), y)
            loss.backward()
            opt.step()
            return loss

        return theirs, {"comparable": lambda result: None}


@row("convnet of torch's MNIST example with batch norm, batch 64, step, eager", aims={"torch": 1.3})
def mnist_eager(case: Case) -> None:
    _mnist(case, compiled=False)


@row("convnet of torch's MNIST example with batch norm, batch 64, step, compiled", aims={"torch": 0.85})
def mnist_compiled(case: Case) -> None:
    _mnist(case, compiled=True)


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

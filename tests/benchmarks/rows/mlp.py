"""A multilayer perceptron: one SGD step, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, SkippedRow, row

RATE = 0.001


class Data:
    """Initial weights and a batch."""

    def __init__(self, case: Case) -> None:
        batch, wide, hidden, classes = 64, case.size(784, 20), case.size(128, 16), 10
        shapes = (wide, hidden), (hidden,), (hidden, classes), (classes,)
        self.weights = [case.normal(*shape, scale=0.05) for shape in shapes]
        self.x = case.normal(batch, wide)
        self.labels = case.rng.integers(0, classes, batch).astype(np.int32)


def hybridflow_step(data: Data) -> tuple[Any, list[hf.Variable]]:
    """Return a step function of a batch and the Variables it trains."""
    variables = [hf.Variable(weight) for weight in data.weights]
    w1, b1, w2, b2 = variables

    def step(x: Any, labels: Any) -> Any:
        with hf.GradientTape() as tape:
            logits = hf.nn.relu(x @ w1 + b1) @ w2 + b2
            loss = hf.mean(hf.nn.softmax_cross_entropy(logits, labels))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(gradient * RATE)
        return loss

    return step, variables


def jax_step(weights: list[Any], x: Any, labels: Any) -> tuple[Any, list[Any]]:
    """Return the loss and the trained weights."""

    def loss_of(weights: list[Any]) -> Any:
        w1, b1, w2, b2 = weights
        logits = jax.nn.relu(x @ w1 + b1) @ w2 + b2
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], axis=1).mean()

    loss, gradients = jax.value_and_grad(loss_of)(weights)
    return loss, [w - RATE * g for w, g in zip(weights, gradients, strict=True)]


def add_ours(case: Case, data: Data, decorate: Callable[[Any], Any]) -> None:
    """Add hybridflow's side."""
    step, variables = hybridflow_step(data)
    step, x, labels = decorate(step), hf.asarray(data.x), hf.asarray(data.labels)
    case.ours(
        lambda: step(x, labels), state=lambda: [variable.read() for variable in variables],
        lowered=(lambda: step.lower(x, labels)) if hasattr(step, "lower") else None,
    )


def add_jax(case: Case, data: Data, name: str, step: Any) -> None:
    """Add one of jax's sides."""
    held = [[jnp.asarray(weight) for weight in data.weights]]
    x, labels = jnp.asarray(data.x), jnp.asarray(data.labels)

    def call() -> Any:
        loss, held[0] = step(held[0], x, labels)
        return loss

    case.peer(name, call, state=lambda: held[0], lowered=lambda: step.lower(held[0], x, labels))


def torch_side(torch: Any, put: Callable[[Any], Any], data: Data, forward: Callable[[Any], Any]) -> Any:
    """Return torch's side; `forward` wraps the loss function, for example with `torch.compile`."""
    weights = [put(weight).requires_grad_() for weight in data.weights]
    x, labels = put(data.x), put(data.labels).long()

    def loss_of(w1: Any, b1: Any, w2: Any, b2: Any, x: Any, labels: Any) -> Any:
        return torch.nn.functional.cross_entropy(torch.relu(x @ w1 + b1) @ w2 + b2, labels)

    loss_of = forward(loss_of)

    def call() -> Any:
        loss = loss_of(*weights, x, labels)
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.sub_(gradient, alpha=RATE)
        return loss

    return call, {"state": lambda: weights}


@row("MLP 784-128-10, batch 64, SGD step, eager", aims={"torch": 1.0})
def mlp_eager(case: Case) -> None:
    data = Data(case)
    add_ours(case, data, lambda step: step)
    case.torch()(lambda torch, put: torch_side(torch, put, data, lambda loss_of: loss_of))


@row(
    "MLP 784-128-10, batch 64, SGD step, compiled",
    aims={"jax.jit": 0.85, "jax.jit, donated": 1.0, "torch.compile": 0.8},
)
def mlp_compiled(case: Case) -> None:
    data = Data(case)
    add_ours(case, data, hf.compile)
    add_jax(case, data, "jax.jit", jax.jit(jax_step))
    add_jax(case, data, "jax.jit, donated", jax.jit(jax_step, donate_argnums=0))

    @case.torch("torch.compile")
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        if case.smoke:
            raise SkippedRow("takes too long to compile for a smoke run")
        call, options = torch_side(torch, put, data, torch.compile)
        try:
            call()
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise SkippedRow(f"does not work here: {str(error).splitlines()[0]}") from error
        # Undo this step: the other sides make none before results are compared.
        for weight, initial in zip(options["state"](), data.weights, strict=True):
            weight.data.copy_(put(initial))
        return call, options

"""Mixed precision: `hf.autocast` against float32 and against torch's autocast."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import hybridflow as hf

from ..registry import Case, row

RATE = 0.001
TOLERANCE = 0.3
"""Relative to the largest change. It is wide because a gradient's element sums rounded products that nearly cancel."""


class Data:
    """The weights of two layers, and a batch."""

    def __init__(self, case: Case) -> None:
        batch, wide = case.size(256, 8), case.size(1024, 16)
        self.weights = [case.normal(wide, wide, scale=0.03), np.zeros(wide, np.float32), case.normal(wide, 10)]
        self.x = case.normal(batch, wide)
        self.labels = case.rng.integers(0, 10, batch).astype(np.int32)


def step_of(data: Data, *, low: bool, compiled: bool) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return a training step, and a function that reads the weights."""
    variables = [hf.Variable(weight) for weight in data.weights]

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape, hf.autocast(hf.bfloat16, enabled=low):
            h = hf.nn.relu(x @ variables[0] + variables[1])
            loss = hf.mean(hf.nn.softmax_cross_entropy(h @ variables[2], data.labels))
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(gradient * RATE)
        return loss

    x = hf.asarray(data.x)
    run = hf.compile(step) if compiled else step
    return lambda: run(x), lambda: [variable.read() for variable in variables]


def _add(case: Case, *, compiled: bool) -> None:
    data = Data(case)
    call, state = step_of(data, low=True, compiled=compiled)
    case.ours(call, state=state)
    call, state = step_of(data, low=False, compiled=compiled)
    case.peer("float32", call, state=state)

    @case.torch("torch.autocast")
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        weights = [put(weight).requires_grad_() for weight in data.weights]
        x, labels = put(data.x), put(data.labels).long()

        def call() -> Any:
            with torch.autocast(x.device.type, dtype=torch.bfloat16):
                h = torch.relu(torch.nn.functional.linear(x, weights[0].T, weights[1]))
                loss = torch.nn.functional.cross_entropy((h @ weights[2]).float(), labels)
            gradients = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(gradient, alpha=RATE)
            return loss

        return call, {"state": lambda: weights}


@row("MLP 1024-1024-10, batch 256, SGD step in bfloat16, eager", tolerance=TOLERANCE)
def autocast_eager(case: Case) -> None:
    _add(case, compiled=False)


@row("MLP 1024-1024-10, batch 256, SGD step in bfloat16, compiled", tolerance=TOLERANCE)
def autocast_compiled(case: Case) -> None:
    _add(case, compiled=True)

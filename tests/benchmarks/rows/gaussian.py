"""A Gaussian process: the marginal likelihood of 200 points and its gradients, with a Cholesky factor."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import hybridflow as hf

from ..registry import Case, row
from .busy import spinning

TOLERANCE = 1e-3
"""For single precision and matrices with a condition number of some hundreds."""


class Data:
    """The points, their values, and the logarithms of length scale, amplitude and noise."""

    def __init__(self, case: Case) -> None:
        self.count = case.size(200, 10)
        self.x = case.rng.uniform(-3, 3, (self.count, 2)).astype(np.float32)
        self.y = (np.sin(self.x[:, 0]) + case.normal(self.count, scale=0.1)).astype(np.float32)
        self.parameters = [np.float32(value) for value in (0.1, -0.2, -1.5)]
        self.constant = 0.5 * self.count * math.log(2 * math.pi)


def ours_of(data: Data) -> Callable[[], Any]:
    """Return a function that computes value and gradients in hybridflow."""
    variables = [hf.Variable(value) for value in data.parameters]
    x, y = hf.asarray(data.x), hf.asarray(data.y)

    def loss() -> Any:
        length, amplitude, noise = variables
        squares = hf.sum(x * x, axis=1)
        distances = hf.maximum(squares[:, None] + squares[None, :] - 2.0 * (x @ x.T), 0.0)
        kernel = hf.exp(amplitude) * hf.exp(-0.5 * distances * hf.exp(-2 * length))
        factor = hf.linalg.cholesky(kernel + hf.exp(noise) * hf.eye(data.count))
        weights = hf.linalg.cholesky_solve(factor, y)
        return 0.5 * hf.sum(y * weights) + hf.sum(hf.log(hf.linalg.diagonal(factor))) + data.constant

    def step() -> Any:
        with hf.GradientTape() as tape:
            value = loss()
        return value, tape.gradient(value, variables)

    return step


def by_hand(data: Data) -> Callable[[], Any]:
    """Return a function that computes the same in NumPy, with gradients derived by hand."""
    x, y = data.x, data.y
    length, amplitude, noise = data.parameters
    half, two = np.float32(0.5), np.float32(2)

    def step() -> Any:
        squares = (x * x).sum(1)
        distances = np.maximum(squares[:, None] + squares[None, :] - two * (x @ x.T), 0)
        scale, variance = np.exp(-two * length), np.exp(noise)
        kernel = np.exp(amplitude) * np.exp(-half * distances * scale)
        whole = kernel + variance * np.eye(data.count, dtype=np.float32)
        factor, inverse = np.linalg.cholesky(whole), np.linalg.inv(whole)
        weights = inverse @ y
        value = half * (y @ weights) + np.log(np.diagonal(factor)).sum() + data.constant
        by_matrix = half * (inverse - np.outer(weights, weights))
        by_kernel = by_matrix * kernel
        return value, [(by_kernel * distances).sum() * scale, by_kernel.sum(), np.trace(by_matrix) * variance]

    return step


def jitted(data: Data) -> Callable[[], Any]:
    """Return a function that computes the same under `jax.jit`."""

    @jax.jit
    @jax.value_and_grad
    def step(parameters: Any, x: Any, y: Any) -> Any:
        length, amplitude, noise = parameters
        squares = jnp.sum(x * x, axis=1)
        distances = jnp.maximum(squares[:, None] + squares[None, :] - 2.0 * (x @ x.T), 0.0)
        kernel = jnp.exp(amplitude) * jnp.exp(-0.5 * distances * jnp.exp(-2 * length))
        factor = jnp.linalg.cholesky(kernel + jnp.exp(noise) * jnp.eye(data.count))
        weights = jax.scipy.linalg.cho_solve((factor, True), y)
        return 0.5 * jnp.sum(y * weights) + jnp.sum(jnp.log(jnp.diagonal(factor))) + data.constant

    given = jax.tree.map(jnp.asarray, (data.parameters, data.x, data.y))
    return lambda: step(*given)


@row("Gaussian process, 200 points, likelihood + gradients, eager", aims={"NumPy": 1.3}, tolerance=TOLERANCE)
def gaussian_eager(case: Case) -> None:
    data = Data(case)
    case.ours(ours_of(data))
    case.peer("NumPy", by_hand(data))


@row("Gaussian process, 200 points, likelihood + gradients, compiled", aims={"jax.jit": 1.1}, tolerance=TOLERANCE)
def gaussian_compiled(case: Case) -> None:
    data = Data(case)
    case.ours(hf.compile(ours_of(data)))
    case.peer("jax.jit", jitted(data))


@row("Gaussian process, eager, all cores busy with other programs", aims={"NumPy": 1.3}, tolerance=TOLERANCE)
def gaussian_busy(case: Case) -> None:
    gaussian_eager(case)
    case.enter(spinning())


@row("Gaussian process, compiled, all cores busy with other programs", aims={"jax.jit": 1.1}, tolerance=TOLERANCE)
def gaussian_compiled_busy(case: Case) -> None:
    gaussian_compiled(case)
    case.enter(spinning())

"""Random programs of nested branches and loops: eager, compiled inside and outside a tape give the same gradients.

Some assign a Variable and draw random numbers on the way, at any depth.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from modes import same

import hybridflow as hf
from hybridflow.ir.evaluate import evaluate, run_eagerly

Step = Callable[[hf.Tensor, dict[str, hf.Tensor]], hf.Tensor]
"""Takes a state of two elements and what is around it, and returns the next state."""

V = hf.Variable(np.array([0.6, -0.5]), name="v")
S = hf.Variable(np.array([0.3, 0.8]), name="s")
ARRAYS = [
    np.array([0.4, -0.6]),
    np.array([[0.5, -0.4], [0.3, 0.6]]),
    np.array([0.2, -0.3]),
    np.array([[0.5, -0.2], [0.1, 0.9], [-0.7, 0.3]]),
]
FUNCTIONS = [hf.tanh, hf.sin, lambda h: h * h * 0.5, lambda h: hf.exp(-hf.abs(h)), lambda h: h / (1.0 + hf.sum(h * h))]


class Maker:
    """Draws programs."""

    def __init__(self, seed: int, state: bool = False) -> None:
        self.rng = random.Random(seed)
        self.state = state

    def block(self, depth: int) -> Step:
        steps = [self.step(depth) for _ in range(self.rng.randint(1, 3))]

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            for step in steps:
                h = step(h, env)
            return h

        return run

    def step(self, depth: int) -> Step:
        kinds = [self.pointwise, self.pointwise, self.product, self.surroundings, self.variable]
        kinds += [self.assignment, self.reading, self.draw] if self.state else []
        nested = [self.branch, self.branch_of_operands, self.scan, self.scan_of_structures, self.loop]
        kind = self.rng.choice(kinds + nested * 2 if depth else kinds)
        return kind(depth) if kind in nested else kind()

    def pointwise(self) -> Step:
        f, c = self.rng.choice(FUNCTIONS), self.rng.uniform(-1.2, 1.2)
        return lambda h, env: f(h) * c + h * 0.5

    def product(self) -> Step:
        return lambda h, env: env["w"] @ h

    def surroundings(self) -> Step:
        name, c = self.rng.choice(["b", "x"]), self.rng.uniform(-1.2, 1.2)
        return lambda h, env: h * 0.7 + env[name] * c

    def variable(self) -> Step:
        return lambda h, env: h * V * 0.3 + V

    def assignment(self) -> Step:
        c = self.rng.uniform(-0.9, 0.9)

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            S.assign(hf.tanh(S * c + h))
            return h * 0.8

        return run

    def reading(self) -> Step:
        return lambda h, env: h * 0.6 + S * 0.5

    def draw(self) -> Step:
        return lambda h, env: h + hf.random.uniform((2,), dtype=hf.float64) * 0.1

    def branch(self, depth: int) -> Step:
        a, b, limit = self.block(depth - 1), self.block(depth - 1), self.rng.uniform(-0.5, 0.5)
        return lambda h, env: hf.cond(hf.sum(h) > limit, lambda: a(h, env), lambda: b(h, env))

    def branch_of_operands(self, depth: int) -> Step:
        a, b, limit = self.block(depth - 1), self.block(depth - 1), self.rng.uniform(-0.5, 0.5)

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            p, q = hf.cond(
                h[0] > limit, lambda h, env: (a(h, env), h * 2.0), lambda h, env: (env["b"], b(h, env)), h, env
            )
            return p + q * 0.5

        return run

    def scan(self, depth: int) -> Step:
        body, c = self.block(depth - 1), self.rng.uniform(-1.2, 1.2)

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            def step(h: hf.Tensor, x: hf.Tensor) -> Any:
                after = body(h, {**env, "x": x})
                return after, after * h

            last, ys = hf.scan(step, h, env["xs"])
            return last * 0.5 + hf.sum(ys, axis=0) * c

        return run

    def scan_of_structures(self, depth: int) -> Step:
        body = self.block(depth - 1)

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            def step(state: Any, x: hf.Tensor) -> Any:
                i, h = state
                h = body(h, env) * 0.9 + x * i
                return (i + 1, h), {"y": h[0]}

            (i, last), ys = hf.scan(step, (0, h), env["xs"][:2])
            return last + ys["y"] * 0.1 + i * 0.01

        return run

    def loop(self, depth: int) -> Step:
        body, trips, limit = self.block(depth - 1), self.rng.randint(0, 3), self.rng.uniform(0.5, 3.0)

        def run(h: hf.Tensor, env: dict[str, hf.Tensor]) -> hf.Tensor:
            return hf.while_loop(
                lambda i, h: hf.logical_and(i < trips, hf.sum(h * h) < limit),
                lambda i, h: (i + 1, body(h, env)), (0, h), max_iterations=3,
            )[1]

        return run


def loss_of(seed: int, state: bool = False) -> Callable[..., hf.Tensor]:
    program = Maker(seed, state).block(2)

    def loss(h: hf.Tensor, w: hf.Tensor, b: hf.Tensor, xs: hf.Tensor) -> hf.Tensor:
        return hf.sum(hf.sin(program(h, {"w": w, "b": b, "xs": xs, "x": b * 2.0})))

    return loss


def gradients(loss: Any, tensors: tuple[hf.Tensor, ...]) -> Any:
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = loss(*tensors)
    return y, tape.gradient(y, [*tensors, V, S], unconnected_gradients="zero")


def second_gradients(loss: Any, tensors: tuple[hf.Tensor, ...]) -> Any:
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        _, found = gradients(loss, tensors)
        total = hf.asarray(0.0, dtype="float64")
        for g in found:
            total = total + hf.sum(hf.sin(g))
    return total, tape.gradient(total, [*tensors, V], unconnected_gradients="zero")


@pytest.mark.parametrize("seed", range(7))
def test_gradients(seed: int):
    loss = loss_of(seed)
    tensors = tuple(map(hf.asarray, ARRAYS))
    eager = gradients(loss, tensors)
    same(eager, hf.compile(lambda *tensors: gradients(loss, tensors))(*tensors), rtol=1e-8, atol=1e-10)
    same(eager, gradients(hf.compile(loss), tensors), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("seed", range(100, 103))
def test_second_gradients(seed: int):
    loss = loss_of(seed)
    tensors = tuple(map(hf.asarray, ARRAYS))
    eager = second_gradients(loss, tensors)
    same(eager, hf.compile(lambda *tensors: second_gradients(loss, tensors))(*tensors), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("seed", range(200, 206))
def test_gradients_of_programs_with_state(seed: int):
    loss = loss_of(seed, state=True)
    tensors = tuple(map(hf.asarray, ARRAYS))
    compiled = hf.compile(loss)
    results: list[Any] = []
    for run in (
        lambda: gradients(loss, tensors), lambda: hf.compile(lambda *tensors: gradients(loss, tensors))(*tensors),
        lambda: gradients(compiled, tensors),
    ):
        S.assign(np.array([0.3, 0.8]))
        hf.random.seed(seed)
        results.append((run(), S.read(), hf.random.uniform((2,))))
    same(results[0], results[1], rtol=1e-8, atol=1e-10)
    same(results[0], results[2], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("function", [
    lambda x: hf.cond(hf.sum(x) > 0, lambda: x * 2, lambda: x[::-1]),
    lambda x: hf.while_loop(lambda a: hf.sum(a * a) > 1e-3, lambda a: a * 0.5, x),
    lambda x: hf.scan(lambda c, row: (c + row, x * c), x[0], x),
], ids=["cond", "while", "scan"])
def test_a_graph_of_open_sizes_runs_node_by_node(function: Any):
    x = np.arange(6, dtype=np.float32).reshape(2, 3) - 1
    graph = hf.compile(function).graph(hf.TensorSpec([None, 3]))
    found = evaluate(graph, [x], run_eagerly)
    for one, expected in zip(found, jax.tree_util.tree_leaves(function(hf.asarray(x))), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(expected), rtol=1e-6)

"""Programs as users write them, whose loops and branches depend on tensors: eager and compiled, over several inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf


def newton(x: Any) -> Any:
    """Find a cube root for each element's sum, and stop when it moves no more."""
    target = hf.sum(x * x) + 1.0
    y = target
    steps = 0
    while True:
        move = (y * y * y - target) / (3.0 * y * y)
        y = y - move
        steps += 1
        if hf.abs(move) < 1e-5 or steps >= 40:
            break
    return y, hf.asarray(steps)


def adaptive_steps(x: Any) -> Any:
    """Follow y' = -y * x[0] ** 2 with steps that halve where two half ones differ from a whole one."""
    rate = x[0] * x[0]
    t, h, y, refused = hf.asarray(0.0), hf.asarray(0.5), hf.sum(x), 0
    while t < 1.0:
        h = hf.minimum(h, 1.0 - t)
        whole = y - h * rate * y
        half = y - 0.5 * h * rate * y
        half = half - 0.5 * h * rate * half
        if hf.abs(whole - half) > 0.05 and h > 0.01:
            h = 0.5 * h
            refused += 1
            continue
        y, t = half, t + h
    return y, hf.asarray(refused)


def conjugate_gradient(x: Any) -> Any:
    a = hf.eye(4) * 3.0 + x[:, None] * x[None, :]
    b = hf.ones((4,))
    solution = hf.zeros((4,))
    residual = b
    direction = residual
    norm = hf.sum(residual * residual)
    for _ in range(8):
        if norm < 1e-8:
            break
        image = a @ direction
        step = norm / hf.sum(direction * image)
        solution = solution + step * direction
        residual = residual - step * image
        after = hf.sum(residual * residual)
        direction = residual + after / norm * direction
        norm = after
    return solution


def viterbi(x: Any) -> Any:
    score = x[:2]
    backs = []
    for t in range(1, 4):
        every = score[:, None] + hf.asarray([[0.0, -1.0], [-0.5, 0.25]])
        backs.append(hf.argmax(every, axis=0))
        score = hf.max(every, axis=0) + hf.stack([x[t], -x[t]])
    last = hf.argmax(score)
    path = [last]
    for back in reversed(backs):
        last = back[last]
        path.append(last)
    return hf.stack(path[::-1]), hf.max(score)


def k_means(x: Any) -> Any:
    low, high = hf.min(x), hf.max(x)
    for _ in range(10):
        near_low = hf.abs(x - low) <= hf.abs(x - high)
        count = hf.sum(hf.astype(near_low, "float32"))
        new_low = hf.sum(hf.where(near_low, x, 0.0)) / hf.maximum(count, 1.0)
        new_high = hf.sum(hf.where(near_low, 0.0, x)) / hf.maximum(4.0 - count, 1.0)
        moved = hf.abs(new_low - low) + hf.abs(new_high - high)
        low, high = new_low, new_high
        if moved == 0.0:
            break
    else:
        low = low - 100.0
    return low, high


def power_by_squaring(x: Any) -> Any:
    n = hf.astype(hf.abs(x[0] * 4.0), "int32") + 3
    base = hf.reshape(x, (2, 2)) * 0.5
    result = hf.eye(2)
    while n > 0:
        if n % 2 == 1:
            result = result @ base
        base = base @ base
        n = n // 2
    return result


def adam_by_hand(x: Any) -> Any:
    state = {"w": x * 0.1, "m": hf.zeros((4,)), "v": hf.zeros((4,))}
    for step in range(1, 7):
        with hf.GradientTape() as tape:
            tape.watch(state["w"])
            loss = hf.sum((state["w"] - x) ** 2)
        slope = tape.gradient(loss, state["w"])
        m = 0.9 * state["m"] + 0.1 * slope
        v = 0.99 * state["v"] + 0.01 * slope * slope
        move = m / (1 - 0.9**step) / (hf.sqrt(v / (1 - 0.99**step)) + 1e-6)
        state = {"w": state["w"] - 0.1 * move, "m": m, "v": v}
        if loss < 0.01:
            break
    return state


def first_large(x: Any) -> Any:
    def search(limit: Any) -> Any:
        for i in range(4):
            if x[i] > limit:
                return x[i] * 2.0
            if x[i] < -2.0:
                return x[i] - limit
        return hf.sum(x)

    return search(0.5), search(1.5)


def finally_counts(x: Any) -> Any:
    count = hf.asarray(0.0)

    def bump(value: Any) -> Any:
        nonlocal count
        count = count + value
        return count

    for i in range(4):
        try:
            if x[i] < 0:
                continue
            bump(x[i])
        finally:
            bump(1.0)
    return count


def collatz(x: Any) -> Any:
    n = hf.astype(hf.abs(x[0]) * 7.0, "int32") + 1
    length = 0
    while (n := hf.where(n % 2 == 0, n // 2, 3 * n + 1)) != 1:
        length += 1
    return hf.asarray(length)


def matched(x: Any) -> Any:
    total = hf.asarray(0.0)
    for kind, part in (("sum", x), ("scale", x[:2]), ("other", x[2:])):
        match kind, part.shape:
            case "sum", (n,) if n > 3:
                total = total + hf.sum(part)
            case "scale", _:
                total = total * part[0] if part[1] > 0 else total - part[0]
            case _:
                total = hf.maximum(total, hf.sum(part))
    return total


def generated(x: Any) -> Any:
    def partial_sums() -> Any:
        total = hf.asarray(0.0)
        for i in range(4):
            total = total + (x[i] if x[i] > 0 else 0.5 * x[i])
            yield total

    return hf.stack(list(partial_sums()))


EXACT = [1.5, 0.5, -1.0, 2.0]
INPUTS = [EXACT, [-0.5, 0.25, 1.0, -2.5], [0.0, 0.0, 0.0, 0.0], [2.5, -2.0, 1.75, 1.6]]
PROGRAMS = [
    newton, adaptive_steps, conjugate_gradient, viterbi, k_means, power_by_squaring, adam_by_hand, first_large,
    finally_counts, collatz, matched, generated,
]


def numbers(tree: Any) -> list[Any]:
    parts = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, tuple) else (tree,)
    return [part.numpy() for part in parts]


def loss(program: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def total(x: Any) -> Any:
        with hf.max_iterations(60):
            found = program(x)
        parts = list(found.values()) if isinstance(found, dict) else found if isinstance(found, tuple) else (found,)
        return sum(hf.sum(part) for part in parts if part.dtype == hf.float32)

    return total


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_a_program_gives_the_same_over_several_calls(program: Callable[[Any], Any]) -> None:
    compiled = hf.compile(program)
    for values in INPUTS:
        x = hf.asarray(values)
        for found, right in zip(numbers(compiled(x)), numbers(program(x)), strict=True):
            assert found.dtype == right.dtype
            np.testing.assert_allclose(found, right, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("program", [f for f in PROGRAMS if f not in (collatz, adam_by_hand)], ids=lambda f: f.__name__)
def test_a_program_has_the_same_gradient(program: Callable[[Any], Any]) -> None:
    slope = hf.grad(loss(program))
    compiled = hf.compile(slope)
    for values in INPUTS[:2]:
        x = hf.asarray(values)
        np.testing.assert_allclose(compiled(x).numpy(), slope(x).numpy(), rtol=1e-4, atol=1e-5)

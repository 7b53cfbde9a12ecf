"""Loops of any number of steps: an error to who asks for a gradient through one in a compiled function, else none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import GradientError


def halved(z: Any, w: Any) -> Any:
    while hf.sum(z) > 1.0:
        z = z * w
    return z


def in_a_branch(z: Any, w: Any) -> Any:
    return halved(z, w) if hf.sum(z) > 0.0 else z


def in_rows(z: Any, w: Any) -> Any:
    rows = []
    for row in hf.reshape(z, (1, -1)):
        rows.append(halved(row, w))  # noqa: PERF401 (the conversion stacks these)
    return hf.stack(rows)[0]


@pytest.mark.parametrize("kind", ["variable", "leaf", "tape"])
@pytest.mark.parametrize("loop", [halved, in_a_branch, in_rows])
def test_only_a_gradient_through_a_loop_without_a_bound_is_an_error(loop: Any, kind: str):
    w = hf.Variable([0.5, 0.25], requires_grad=kind == "variable")
    if kind == "leaf":
        w = hf.tensor([0.5, 0.25], requires_grad=True)
    z = hf.asarray([3.0, 5.0])
    f = hf.compile(lambda z: (hf.sum(w * w), loop(z, w)))

    def gradient_of(which: int) -> Any:
        if kind == "tape":
            with hf.GradientTape() as tape:
                found = f(z)
            return tape.gradient(found[which], w), found
        found = f(z)
        hf.sum(found[which]).backward()
        return w.grad, found

    slope, found = gradient_of(0)
    np.testing.assert_allclose(slope.numpy(), [1.0, 0.5])
    np.testing.assert_allclose(found[1].numpy(), loop(z, w).numpy())
    with pytest.raises(GradientError, match="max_iterations"):
        gradient_of(1)


@pytest.mark.parametrize("loop", [halved, in_a_branch, in_rows])
def test_a_tape_inside_asks_only_for_what_it_is_asked(loop: Any):
    w = hf.Variable([0.5, 0.25])

    @hf.compile
    def f(z: Any, through: bool) -> Any:
        with hf.GradientTape() as tape:
            found = hf.sum(w * w), loop(z, w)
        return tape.gradient(found[through], w), found[1]

    slope, last = f(hf.asarray([3.0, 5.0]), False)
    np.testing.assert_allclose(slope.numpy(), [1.0, 0.5])
    np.testing.assert_allclose(last.numpy(), loop(hf.asarray([3.0, 5.0]), w).numpy())
    with pytest.raises(GradientError, match="max_iterations"):
        f(hf.asarray([3.0, 5.0]), True)


def test_what_only_decides_how_often_a_loop_runs_has_no_gradient():
    w = hf.Variable([0.5, 0.25])

    def f(z: Any) -> Any:
        while hf.sum(z * w) > 1.0:
            z = z / 2
        return hf.sum(z * w)

    slopes: list[Any] = []
    for one in (f, hf.compile(f)):
        with hf.GradientTape() as tape:
            last = one(hf.asarray([3.0, 5.0]))
        slopes.append(tape.gradient(last, w).numpy())
    np.testing.assert_allclose(*slopes)


def test_text_is_generated_while_the_parameters_require_gradients():
    table = hf.Variable(np.random.default_rng(0).normal(size=(5, 5)).astype(np.float32), requires_grad=True)

    def generated(token: Any) -> Any:
        tokens, count = hf.zeros((8,), dtype=hf.int32), 0
        done = hf.asarray(False)
        while not done:
            token = hf.argmax(table[token])
            tokens = tokens.at[count].set(token)
            count = count + 1
            done = (token == 4) | (count == 8)
        return tokens

    start = hf.asarray(0)
    assert hf.compile(generated)(start).tolist() == generated(start).tolist()

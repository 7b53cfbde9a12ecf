"""Gradients have the same bits whichever way they are asked for: one walk adds contributions in one order.

``HYBRIDFLOW_PROGRAMS=10000 pytest tests/test_gradient_bits.py`` tries as many random programs.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf

PROGRAMS = int(os.environ.get("HYBRIDFLOW_PROGRAMS", "150"))
SIZE = 6
Function = Callable[..., Any]
Gradients = list[Any]

ONE: list[Function] = [
    hf.tanh, hf.sin, hf.nn.relu, hf.nn.softmax, hf.cumulative_sum,
    lambda x: x * x,
    lambda x: hf.exp(x * 0.1),
    lambda x: x[::-1],
    lambda x: hf.reshape(hf.reshape(x, (2, 3)) + 1.5, (SIZE,)),
    lambda x: x - hf.mean(x),
    lambda x: hf.concat([x[3:], x[:3]]),
    lambda x: hf.where(x > 0, x, x * 0.3),
    lambda x: x / (1 + x * x),
]
TWO: list[Function] = [
    lambda x, y: x + y,
    lambda x, y: x * y,
    lambda x, y: x - y,
    hf.maximum,
    lambda x, y: hf.take(hf.reshape(x, (2, 3)) @ hf.reshape(y, (3, 2)), hf.asarray([0, 1, 0]), axis=0).reshape((SIZE,)),
]


def checkpointed(inner: Function, outer: Function) -> Function:
    return hf.checkpoint(lambda x: outer(inner(x)) + x * x)


def repeated(step: Function, times: int) -> Function:
    def run(x: Any) -> Any:
        for _ in range(times):
            x = step(x) + x * 0.5
        return x

    return run


def scanned(x: Any) -> Any:
    last, rows = hf.scan(lambda c, row: (hf.tanh(c + row), c * row), x[0], x)
    return rows + last


def random_program(rng: random.Random) -> Function:
    """Return a function that reads its arguments and intermediate values in any order, and sums up."""
    steps: list[tuple[Function, list[float]]] = []
    for _ in range(rng.randint(2, 14)):
        step = rng.choice([
            *[rng.choice(ONE)] * 8, *[rng.choice(TWO)] * 8, checkpointed(rng.choice(ONE), rng.choice(ONE)),
            repeated(rng.choice(ONE), rng.randint(1, 3)), scanned,
        ])
        steps.append((step, [rng.random() for _ in range(2 if step in TWO else 1)]))
    read_again = [rng.random() for _ in range(3)]

    def run(*args: Any) -> Any:
        values = [*args]
        for step, reads in steps:
            values.append(step(*[values[int(read * len(values))] for read in reads]))
        total = values[-1]
        for read in read_again:
            total = total + values[int(read * len(values))] * 1.3
        return hf.sum(total)

    return run


def on_tape(fn: Function, arrays: list[Any], persistent: bool = False) -> Gradients:
    args = [hf.asarray(one) for one in arrays]
    with hf.GradientTape(persistent=persistent) as tape:
        tape.watch(args)
        result = fn(*args)
    return tape.gradient(result, args)


def on_recorded_tape(fn: Function, arrays: list[Any]) -> Gradients:
    args = [hf.asarray(one) for one in arrays]
    with hf.GradientTape() as outer:
        outer.watch(args)
        with hf.GradientTape() as tape:
            tape.watch(args)
            result = fn(*args)
        return tape.gradient(result, args)


def under_an_idle_tape(fn: Function, arrays: list[Any]) -> Gradients:
    with hf.GradientTape() as outer:
        outer.watch(hf.asarray(1.0))
        return on_tape(fn, arrays)


def run_eagerly(fn: Function, arrays: list[Any]) -> Gradients:
    with hf.config.run_eagerly():
        return hf.compile(lambda *args: on_tape(fn, [*args]))(*[hf.asarray(one) for one in arrays])


def by_value_and_grad(fn: Function, arrays: list[Any]) -> Gradients:
    _, gradients = hf.value_and_grad(fn, argnums=tuple(range(len(arrays))))(*[hf.asarray(one) for one in arrays])
    return [*gradients]


def by_vjp(fn: Function, arrays: list[Any]) -> Gradients:
    _, pullback = hf.vjp(fn, *[hf.asarray(one) for one in arrays])
    return [*pullback(hf.asarray(1.0))]


def by_backward(fn: Function, arrays: list[Any]) -> Gradients:
    args = [hf.tensor(one, requires_grad=True) for one in arrays]
    fn(*args).backward()
    return [one.grad for one in args]


WAYS: dict[str, Callable[[Function, list[Any]], Gradients]] = {
    "a persistent tape": lambda fn, arrays: on_tape(fn, arrays, persistent=True),
    "a recorded tape": on_recorded_tape,
    "an idle tape": under_an_idle_tape,
    "run_eagerly": run_eagerly,
    "value_and_grad": by_value_and_grad,
    "vjp": by_vjp,
    "backward": by_backward,
}


def bits(gradients: Gradients) -> list[bytes]:
    """Return the bytes of gradients; None, of what nothing reads, counts as zeros."""
    return [np.asarray(np.zeros(SIZE, np.float32) if one is None else one).tobytes() for one in gradients]


@pytest.mark.parametrize("part", range(10))
def test_gradients_have_the_same_bits(part: int):
    for number in range(PROGRAMS // 10):
        rng = random.Random(1_000_003 * part + number)
        fn = random_program(rng)
        arrays = [np.random.default_rng(number + k).standard_normal(SIZE).astype(np.float32) for k in range(3)]
        expected = bits(on_tape(fn, arrays))
        for way, gradients in WAYS.items():
            assert bits(gradients(fn, arrays)) == expected, f"{way}, program {number} of part {part}"


def of_several(rng: random.Random) -> Function:
    """Return a function of any number of arrays that reads them in any order, and returns an array."""
    steps = [(rng.choice([*ONE, *TWO, *TWO]), [rng.random() for _ in range(2)]) for _ in range(rng.randint(2, 6))]

    def run(*args: Any) -> Any:
        values = [*args]
        for step, reads in steps:
            values.append(step(*[values[int(read * len(values))] for read in reads[: 2 if step in TWO else 1]]))
        total = values[-1]
        for read in (0.1, 0.4, 0.7, 0.9):
            total = total + values[int(read * len(values))] * 1.3
        return total

    return run


def with_an_own_rule(function: Function) -> Function:
    @hf.custom_gradient
    def wrapped(*args: Any) -> Any:
        return function(*args), lambda g: [g * (number + 0.3) for number, _ in enumerate(args)]

    return wrapped


def by_keyword(function: Function) -> Function:
    inner = hf.checkpoint(lambda pair, last: function(*pair, *last["rest"]))
    return lambda *args: inner(args[:2], last={"rest": args[2:]})


CHECKPOINTED: dict[str, Callable[[Function], Function]] = {
    "checkpoint": hf.checkpoint,
    "dots": lambda function: hf.checkpoint(function, policy="dots"),
    "nested": lambda function: hf.checkpoint(hf.checkpoint(function)),
    "by keyword": by_keyword,
}
OTHERS: dict[str, Callable[[Function], Function]] = {"own rule": with_an_own_rule, "compiled": hf.compile}


def repeats(wrap: Callable[[Function], Function], number: int) -> tuple[Function, list[Any]]:
    """Return a program that gives its arguments to a wrapped function in any order, each several times."""
    rng = random.Random(number)
    function = wrap(of_several(rng))
    given = [rng.randrange(2) for _ in range(rng.choice([2, 3, 4]))]
    arrays = [np.random.default_rng(number + k).standard_normal(SIZE).astype(np.float32) for k in range(2)]
    return lambda *args: hf.sum(function(*[args[index] for index in given])), arrays


@pytest.mark.parametrize("kind", CHECKPOINTED)
def test_tensors_given_twice_to_a_checkpoint(kind: str):
    for number in range(PROGRAMS // 10):
        plain, arrays = repeats(lambda function: function, number)
        expected = bits(on_tape(plain, arrays))
        fn, _ = repeats(CHECKPOINTED[kind], number)
        for way, gradients in {"a tape": on_tape, **WAYS}.items():
            assert bits(gradients(fn, arrays)) == expected, f"{way}, program {number}"


@pytest.mark.parametrize("kind", OTHERS)
def test_tensors_given_twice_have_the_same_bits(kind: str):
    for number in range(PROGRAMS // 10 if kind == "own rule" else 1):
        fn, arrays = repeats(OTHERS[kind], number)
        expected = bits(on_tape(fn, arrays))
        for way, gradients in WAYS.items():
            if (kind, way) not in RUN_OTHERWISE:
                assert bits(gradients(fn, arrays)) == expected, f"{way}, program {number}"


RUN_OTHERWISE = {("compiled", "run_eagerly")}
"""Kinds and ways that NumPy runs instead of XLA, which agrees with it up to rounding."""

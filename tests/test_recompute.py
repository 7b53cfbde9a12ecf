"""`Module.recompute`: modules that are computed again for their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from zoo import made

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, TraceError


def kept(fn: Any, *args: Any) -> int:
    return sum(one.bytes for one in hf.cost(fn, *args).memory.activations)


@pytest.mark.parametrize(("name", "pattern"), [("gpt2", "blocks.*"), ("resnet", "stages.*")])
def test_updates_are_the_same_eager_and_compiled(name: str, pattern: str):
    """Dropout's draws and batch normalization's statistics included."""
    states: list[Any] = []
    for again in (False, True):
        for way in (lambda fn: fn, *[hf.compile] * again):
            model, inputs = made(name)
            hf.random.seed(3)
            optimizer = hf.optim.SGD(model, rate=0.1)
            if again:
                model.recompute(pattern)

            def step(*args: Any, model: Any = model, optimizer: Any = optimizer) -> Any:
                with hf.GradientTape() as tape:
                    result = model(*args)
                    loss = hf.mean((result[0] if isinstance(result, tuple) else result) ** 2)
                optimizer.update(tape.gradient(loss, model))
                return loss

            run = way(step)
            for _ in range(2):
                run(*inputs)
            states.append(model.state_dict())
    for state in states[1:]:
        for path, value in states[0].items():
            np.testing.assert_allclose(state[path], value, rtol=1e-3, atol=1e-5, err_msg=path)


def deep() -> Any:
    return nn.Sequential(*[nn.Sequential(nn.Linear(4, 64), hf.tanh, nn.Linear(64, 4)) for _ in range(3)])


def test_functional_gradients_are_those_of_the_copies():
    """`hf.grad` calls a copy of the model with other leaves."""
    hf.random.seed(0)
    model = deep()
    loss = lambda model, x: hf.sum(model(x) ** 2)  # noqa: E731
    x = hf.ones((8, 4))
    wanted = hf.grad(loss)(model, x)
    found = hf.grad(loss)(model.recompute("[0-9]*"), x)
    compiled = hf.compile(hf.grad(loss))(model, x)
    for one in (found, compiled):
        for path, value in wanted.state_dict().items():
            np.testing.assert_allclose(one.state_dict()[path], value, rtol=1e-4, atol=1e-6)


def test_a_compiled_function_is_traced_again_and_everything_keeps_everything():
    model = deep()
    gradients = hf.compile(hf.grad(lambda x: hf.sum(model(x))))
    x = hf.ones((8, 4))
    gradients(x)
    before = kept(gradients.python_function, x)
    assert kept(gradients.python_function, x) == before
    model.recompute("[0-9]*")
    gradients(x)
    assert gradients.trace_count == 2
    assert kept(gradients.python_function, x) < before / 4
    model.recompute("[0-9]*", policy="everything")
    assert kept(gradients.python_function, x) == before


def test_watched_modules_may_be_computed_again():
    model = deep().recompute("[0-9]*")
    with model.watch("[0-9]") as seen:
        hf.compile(hf.grad(lambda x: hf.sum(model(x))))(hf.ones((8, 4)))
    assert [row.calls for row in seen.rows()] == [1, 1, 1]


def test_only_the_outermost_matches_count_and_mistakes_change_nothing():
    model = deep().recompute("*.[02]").recompute("2*")
    assert {path for path, one in model.named_modules().items() if one.recomputed} == {
        "0.0", "0.2", "1.0", "1.2", "2", "2.0", "2.2",
    }
    other = deep()
    with pytest.raises(ArgumentError, match="recompute: no module matches 'blocks"):
        other.recompute("blocks.*")
    with pytest.raises(ArgumentError, match="nothing"):
        other.recompute("*", policy="all")
    with pytest.raises(TraceError, match="recompute"):
        hf.compile(lambda x: other.recompute("*")(x))(hf.ones((8, 4)))
    assert not any(one.recomputed for one in other.named_modules().values())

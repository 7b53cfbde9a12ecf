"""`memory_budget=`: values computed again so that XLA's temporaries fit, with the same results."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from modes import same

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, MemoryBudgetError
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.verify import verify
from hybridflow.passes.lib.recompute import plans
from hybridflow.tracing.budget import budget_bytes, bytes_text

RNG = np.random.default_rng(0)


def mlp_loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = x + hf.nn.gelu(hf.nn.layer_norm(x) @ w)
    return hf.mean(x**2)


def conv_loss(ws: Any, x: Any) -> Any:
    for w in ws:
        x = hf.nn.relu(hf.nn.conv(hf.nn.relu(hf.nn.conv(x, w, padding="same") * 0.5), w, padding="same") + x)
    return hf.mean(x**2)


def step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def run(ws: Any, x: Any) -> Any:
        value, gradients = hf.value_and_grad(loss)(ws, x)
        return value, [w - 0.1 * g for w, g in zip(ws, gradients, strict=True)]

    return run


MLP = [hf.asarray((RNG.normal(size=(24, 24)) * 0.2).astype(np.float32)) for _ in range(6)]
X = hf.asarray(RNG.normal(size=(128, 24)).astype(np.float32))
CONV = [hf.asarray((RNG.normal(size=(4, 4, 3, 3)) * 0.2).astype(np.float32)) for _ in range(4)]
IMAGES = hf.asarray(RNG.normal(size=(2, 4, 12, 12)).astype(np.float32))
MODELS = {"mlp": (mlp_loss, MLP, X), "conv": (conv_loss, CONV, IMAGES)}


def temporaries(fn: Any, *args: Any) -> int:
    return fn.lower(*args).executable.compiled.memory_analysis().temp_size_in_bytes


@cache
def without(name: str) -> tuple[int, Any]:
    loss, ws, x = MODELS[name]
    fn = hf.compile(step(loss))
    return temporaries(fn, ws, x), fn(ws, x)


@pytest.mark.parametrize("name", MODELS)
def test_it_holds_is_monotone_and_changes_nothing(name: str):
    loss, ws, x = MODELS[name]
    full, expected = without(name)
    found = [full]
    for share in (0.95, 0.87):
        fn = hf.compile(step(loss), memory_budget=int(full * share))
        same(fn(ws, x), expected, rtol=1e-6, atol=1e-7)
        found.append(temporaries(fn, ws, x))
        assert found[-1] <= full * share
        (record,) = fn.explain()
        assert record.memory.temporaries == found[-1]
        assert record.memory.without == full
        assert fn.compile_count == 1
    assert found == sorted(found, reverse=True)


def test_explain_lists_what_is_computed_again():
    loss, ws, x = MODELS["mlp"]
    fn = hf.compile(step(loss), memory_budget=without("mlp")[0] * 9 // 10)
    fn(ws, x)
    text = str(fn.explain())
    assert "memory budget " in text
    assert "instead of " in text
    line = mlp_loss.__code__.co_firstlineno + 2
    assert f"test_memory_budget.py:{line}" in text
    memory = fn.explain()[0].memory
    assert memory.flops == sum(one.flops for one in memory.recomputed) > 0
    assert any("gelu" in one.operations for one in memory.recomputed)


def test_a_budget_that_is_kept_anyway_costs_nothing():
    loss, ws, x = MODELS["mlp"]
    fn = hf.compile(step(loss), memory_budget="1GiB")
    fn(ws, x)
    memory = fn.explain()[0].memory
    assert (memory.recomputed, memory.attempts, memory.flops) == ((), 1, 0)
    assert "nothing is computed again" in str(fn.explain())


def test_a_budget_that_cannot_be_kept_says_which_can():
    loss, ws, x = MODELS["mlp"]
    fn = hf.compile(step(loss), memory_budget=1000)
    with pytest.raises(MemoryBudgetError, match="The smallest budget that can be kept is ") as error:
        fn(ws, x)
    assert isinstance(error.value, MemoryError)
    least = int(str(error.value).split("can be kept is ")[1].split(";")[0])
    assert least < without("mlp")[0]


def test_variables_and_draws_are_as_without():
    def program(budget: Any) -> Any:
        hf.random.seed(3)
        ws = [hf.Variable(w) for w in MLP]

        @hf.compile(memory_budget=budget)
        def train(x: Any) -> Any:
            with hf.GradientTape() as tape:
                y = x
                for w in ws:
                    y = y + hf.nn.dropout(hf.nn.gelu(y @ w), 0.5)
                loss = hf.mean(y**2)
            for w, g in zip(ws, tape.gradient(loss, ws), strict=True):
                w.assign_sub(0.1 * g)
            return loss

        losses = [train(X) for _ in range(2)]
        return losses, [w.read() for w in ws], hf.random.uniform(()), train

    *expected, plain = program(None)
    *found, fn = program(temporaries(plain, X) * 9 // 10)
    same(found, expected, rtol=1e-5, atol=1e-7)
    assert fn.explain()[0].memory.recomputed


def test_of_any_batch_size_and_as_a_method():
    budget = int(temporaries(hf.compile(hf.grad(mlp_loss)), MLP, X) * 0.9)

    class Model:
        def __init__(self) -> None:
            self.ws = [hf.Variable(w) for w in MLP]

        @hf.compile(input_signature=[hf.TensorSpec([None, 24])], memory_budget=budget)
        def gradient(self, x: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = mlp_loss(self.ws, x)
            return tape.gradient(loss, self.ws)

    model = Model()
    for size in (64, 128):
        x = np.asarray(X)[:size]
        expected = hf.grad(mlp_loss)(MLP, hf.asarray(x))
        same(model.gradient(x), expected, rtol=1e-4, atol=1e-6)
        assert model.gradient.explain()[0].memory.temporaries <= budget


def test_every_plan_computes_the_same_and_needs_less():
    """The plans of the graph, run op by op: what they tell falls, and the gradient stays jax's."""
    loss, ws, x = MODELS["mlp"]
    graph = hf.compile(step(loss)).graph(ws, x)
    found = plans(graph)
    assert [plan.peak for plan in found] == sorted({plan.peak for plan in found}, reverse=True)
    assert found[0].graph(graph) is graph
    inputs = [np.asarray(value) for value in jax.tree_util.tree_leaves((ws, x))]
    expected = evaluate(graph, inputs, _lowered)
    for plan in found[:: max(1, len(found) // 4)]:
        rewritten = plan.graph(graph)
        verify(rewritten)
        for a, b in zip(evaluate(rewritten, inputs, _lowered), expected, strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def _lowered(node: Any, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    return node.op.lower(*inputs, **attrs)


@pytest.mark.parametrize(
    ("text", "count"),
    [("256MiB", 2**28), ("1.5 kB", 1500), (4096, 4096), ("64", 64), ("2GiB", 2**31), ("1 gb", 10**9), (None, None)],
)
def test_sizes(text: Any, count: int | None):
    assert budget_bytes(text) == count


def test_sizes_are_printed():
    assert [bytes_text(n) for n in (12, 2048, 3 * 2**20, 2**31)] == ["12 B", "2 KiB", "3 MiB", "2 GiB"]


def test_wrong_sizes():
    for wrong in ("a lot", "12 furlongs", 0, -5, "0MiB"):
        with pytest.raises(ArgumentError, match="is no size"):
            hf.compile(lambda x: x, memory_budget=wrong)
    for other in (1.5, True, [1]):
        with pytest.raises(ArgumentTypeError, match="memory_budget is a"):
            hf.compile(lambda x: x, memory_budget=other)

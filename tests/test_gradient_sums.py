"""Values that are read often: how the contributions to their gradients are added, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core.node import Node
from hybridflow.ir.builder import trace_body
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ir.liveness import liveness
from hybridflow.testing.graphs import run_eagerly

WIDTH = 16


def gradient_of(loss: Callable[..., Any], *shapes: tuple[int, ...]) -> Graph:
    """Trace the gradient with respect to the last argument."""

    def run(*args: Any) -> list[Any]:
        return [hf.grad(loss, argnums=len(args) - 1)(*args)]

    return trace_body(run, [hf.TensorSpec(shape, np.float32) for shape in shapes], "f").graph


def steps(count: int) -> Callable[..., Any]:
    def loss(x: Any, w: Any) -> Any:
        for _ in range(count):
            x = hf.tanh(x @ w)
        return hf.sum(x)

    return loss


def sums(graph: Graph) -> list[Node]:
    """Return the additions of gradients for the weight."""
    return [node for node in graph.nodes if node.op.name == "add" and node.spec().shape == (WIDTH, WIDTH)]


@pytest.mark.parametrize("count", [3, 4, 9])
def test_contributions_are_added_as_they_come(count: int):
    graph = gradient_of(steps(count), (1, WIDTH), (WIDTH, WIDTH))
    place = {node: position for position, node in enumerate(graph.nodes)}
    found = sums(graph)
    assert len(found) == count - 1
    for number, node in enumerate(found[:-1]):
        before, new = [edge[0] for edge in edges_of(node)]
        assert place[new] == place[node] - 1
        assert number == 0 or before is found[number - 1]
    near, far = [edge[0] for edge in edges_of(found[-1])]
    assert near is found[-2]
    assert far is min((node for node in graph.nodes if node.op.name == "matmul" and node.spec().shape[0] == WIDTH),
                      key=place.__getitem__)


def test_gradients_of_many_steps_are_not_kept():
    """In the graph as it is traced, at most the first, the sum of the others, the next one and their new sum."""

    def most(count: int) -> int:
        graph = gradient_of(steps(count), (1, WIDTH), (WIDTH, WIDTH))
        live = liveness(graph)
        small = count * 8 * WIDTH * 4  # what each step's forward pass keeps
        return (live.peak - small) // (WIDTH * WIDTH * 4)

    assert most(40) <= most(6) <= 5


def test_what_is_near_is_added_first():
    """A residual's gradient is added to the sum of those of the block that it goes around."""

    def block(x: Any) -> Any:
        return hf.sum(hf.exp(hf.tanh(x) * hf.sin(x) * x + x))

    graph = gradient_of(block, (3,))
    names = [node.op.name for node in graph.nodes]
    forward = names.index("exp")
    added = [node for node in graph.nodes[forward:] if node.op.name == "add"]
    assert graph.outputs[0][0] is added[-1]
    near, far = [edge[0] for edge in edges_of(added[-1])]
    assert near is added[-2]
    assert far is graph.nodes[names.index("multiply", forward)]  # the cotangent of what exp reads: the residual's


# -- any reading ----------------------------------------------------------------------------------------------------


Program = list[tuple[int, int, int]]
number = st.integers(0, 30)


def run(program: Program, split: Callable[..., Any], values: Sequence[Any]) -> Any:
    """Read values in any order; whole numbers stay whole, so no order of adding changes a bit."""
    found = list(values)
    for op, a, b in program:
        x, y = found[a % len(found)], found[b % len(found)]
        if op == 0:
            found += split(x)
        else:
            found.append((x + y, x - y, x * (y - y + 2.0), x[::-1] + y)[op - 1])
    total = found[-1]
    for one in found[: len(values) + 3]:
        total = total + one * 3.0
    return total


def halves(split: Callable[..., Any], concat: Callable[..., Any]) -> Callable[..., Any]:
    def swapped(x: Any) -> list[Any]:
        a, b = split(x, 2)
        return [concat([b, a]), concat([a, a])]

    return swapped


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), number, number), min_size=1, max_size=12), st.integers(0, 99))
def test_sums_are_what_jax_has(program: Program, seed: int):
    rng = np.random.default_rng(seed)
    x, y, g = rng.integers(-3, 4, (3, 4)).astype(np.float64)
    ours, theirs = halves(hf.split, hf.concat), halves(jnp.split, jnp.concatenate)
    with jax.enable_x64(True):
        expected = jax.vjp(lambda *values: run(program, theirs, values), x, y)[1](jnp.asarray(g))

    def gradients(x: Any, y: Any, g: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch([x, y])
            result = run(program, ours, (x, y))
        return tape.gradient(result, [x, y], output_gradients=g)

    arguments = [hf.asarray(value) for value in (x, y, g)]
    traced = trace_body(lambda *args: list(gradients(*args)), [one.spec for one in arguments], "f").graph
    for found in (gradients(*arguments), evaluate(traced, [x, y, g], run_eagerly)):
        for one, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(wanted))

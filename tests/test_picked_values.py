"""What a maximum, a minimum or a sort picks has the bits of what it is compared with, in compiled functions too."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

STEPS: list[Callable[[Any], Any]] = [
    hf.tanh, hf.sin, nn.sigmoid, nn.gelu, nn.softmax,
    lambda x: x * 0.37 + 1.1, lambda x: x * x, lambda x: x / 3.3, lambda x: hf.log(hf.abs(x) + 1),
    lambda x: hf.sqrt(hf.abs(x) + 0.1), lambda x: x - hf.mean(x), lambda x: hf.exp(x * 0.1),
]


@pytest.mark.parametrize("seed", range(24))
def test_a_picked_value_is_found_again(seed: int):
    rng = random.Random(seed)
    steps = [rng.choice(STEPS) for _ in range(rng.randint(2, 5))]
    shape, axis, pick = rng.choice([(16, 3), (100, 7), (33,)]), 0, rng.choice([hf.max, hf.min])

    def value(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    def found(x: Any) -> Any:
        y = value(x)
        ordered = hf.sort(y, axis=axis)
        return hf.sum(y == pick(y, axis=axis), axis=axis), hf.sum(y == ordered[:1], axis=axis)

    def loss(x: Any) -> Any:
        y = value(x)
        picked = pick(y, axis=axis)
        return hf.sum(picked * picked + picked) + hf.sum(y * 0.1)

    fast_found, fast_slope, slope = hf.compile(found), hf.compile(hf.grad(loss)), hf.grad(loss)
    for number in range(4):
        x = hf.asarray(np.random.default_rng(number).standard_normal(shape).astype(np.float32))
        assert all(np.all(np.asarray(count) >= 1) for count in fast_found(x))
        expected = np.asarray(slope(x))
        tolerance = 1e-3 * max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(np.asarray(fast_slope(x)), expected, rtol=1e-3, atol=tolerance)


def test_a_break_only_where_bits_are_compared():
    def broken(function: Callable[[Any], Any]) -> int:
        graph = hf.ir.parse(str(hf.compile(function).graph(hf.TensorSpec([8, 8]))))
        return sum(node.op.name == "fusion_break" for node in graph.walk())

    assert broken(lambda x: hf.max(hf.tanh(x) * 2, axis=0)) == 0  # nobody else reads it
    assert broken(lambda x: (hf.max(x, axis=0), x + 1)) == 0  # an argument is stored
    assert broken(lambda x: (hf.max(x.T, axis=0), x.T + 1)) == 0  # so are its elements in another order
    assert broken(lambda x: (hf.max(x @ x, axis=0), x @ x + 1)) == 0  # and a product of matrices
    assert broken(lambda x: (hf.max(hf.tanh(x) * 2, axis=0), hf.tanh(x) * 2 + 1)) == 1
    assert broken(lambda x: hf.scan(lambda c, row: (c, hf.tanh(row + c) == hf.max(hf.tanh(row + c))), x[0], x)) == 1


CHAINS: dict[str, Callable[[Any], Any]] = {
    "operations": lambda x: x * hf.sum(x) + 1,
    "mapped": hf.vmap(lambda row: row * hf.sum(row) + 1),
    "the second result of what is mapped": lambda x: hf.vmap(lambda row: (row, row * hf.sum(row) + 1))(x)[1],
    "a checkpoint": hf.checkpoint(lambda x: x * hf.sum(x) + 1),
    "a rule of one's own": hf.custom_gradient(lambda x: (x * hf.sum(x) + 1, lambda g: g)),
    "a compiled function": hf.compile(lambda x: x * hf.sum(x) + 1),
    "a function of jax": hf.from_jax(lambda x: x * x.sum() + 1),
}
PICKS: dict[str, Callable[[Any], Any]] = {
    "beside": lambda y: hf.max(y, axis=0),
    "in another order": lambda y: hf.max(y.T, axis=1),
    "mapped": lambda y: hf.vmap(hf.max)(y.T),
    "in a branch": lambda y: hf.cond(hf.sum(y) > -1e9, lambda: hf.max(y, axis=0), lambda: hf.min(y, axis=0)),
    "in a checkpoint": lambda y: hf.checkpoint(lambda z: hf.sort(z, axis=0)[-1])(y),
    "in a loop": lambda y: hf.scan(lambda carry, row: (carry, hf.max(row)), 0.0, y.T)[1],
}


@pytest.mark.parametrize("pick", PICKS)
@pytest.mark.parametrize("chain", CHAINS)
def test_a_value_picked_in_another_graph_is_found_again(chain: str, pick: str):
    def both(x: Any) -> Any:
        y = CHAINS[chain](x)
        return y, PICKS[pick](y)

    fast, counted = hf.compile(both), hf.compile(lambda x: hf.sum(hf.equal(*both(x)), axis=0))
    for number in range(12):
        x = hf.asarray(np.random.default_rng(number).standard_normal((16, 3)).astype(np.float32))
        y, largest = fast(x)
        assert np.all(np.sum(np.asarray(y) == np.asarray(largest), axis=0) >= 1)
        assert np.all(np.asarray(counted(x)) >= 1)

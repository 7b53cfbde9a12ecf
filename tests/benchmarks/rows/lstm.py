"""An LSTM cell over 50 steps, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hybridflow as hf

from ..registry import Case, row


class Data:
    """A batch of sequences, and weights with the gates in the order input, forget, cell, output."""

    def __init__(self, case: Case) -> None:
        self.width, batch = case.size(128, 8), case.size(32, 4)
        steps = case.size(50, 5)
        self.wx = case.normal(self.width, 4 * self.width, scale=0.1)
        self.wh = case.normal(self.width, 4 * self.width, scale=0.1)
        self.bias = case.normal(4 * self.width, scale=0.1)
        self.xs = case.normal(steps, batch, self.width)
        self.zeros = self.xs[0] * 0


def cell(wx: Any, wh: Any, bias: Any, state: Any, x: Any) -> Any:
    """Return the next state, in hybridflow."""
    h, c = state
    i, f, g, o = hf.split(x @ wx + h @ wh + bias, 4, axis=-1)
    c = hf.nn.sigmoid(f) * c + hf.nn.sigmoid(i) * hf.tanh(g)
    return hf.nn.sigmoid(o) * hf.tanh(c), c


def jax_cell(wx: Any, wh: Any, bias: Any, state: Any, x: Any) -> Any:
    """Return the next state, in jax."""
    h, c = state
    i, f, g, o = jnp.split(x @ wx + h @ wh + bias, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


@row("LSTM cell 128, batch 32, 50 steps, forward + backward, eager", aims={"torch.nn.LSTMCell": 1.0})
def lstm_eager(case: Case) -> None:
    data = Data(case)
    weights = [hf.Variable(value) for value in (data.wx, data.wh, data.bias)]
    xs, zeros = [hf.asarray(x) for x in data.xs], hf.asarray(data.zeros)

    def ours() -> Any:
        with hf.GradientTape() as tape:
            state = zeros, zeros
            for x in xs:
                state = hf.nn.lstm_cell(x, state, *weights)
            loss = hf.mean(state[0])
        return loss, tape.gradient(loss, weights)

    case.ours(ours)

    @case.torch("torch.nn.LSTMCell")
    def _(torch: Any, put: Callable[[Any], Any]) -> Any:
        theirs = torch.nn.LSTMCell(data.width, data.width)
        theirs.weight_ih.data, theirs.weight_hh.data = put(data.wx.T.copy()), put(data.wh.T.copy())
        theirs.bias_ih.data, theirs.bias_hh.data = put(data.bias), put(data.bias * 0)
        theirs.bias_hh.requires_grad_(False)  # torch adds two biases; the other sides have one
        weights = [theirs.weight_ih, theirs.weight_hh, theirs.bias_ih]
        inputs, start = [put(x) for x in data.xs], put(data.zeros)

        def call() -> Any:
            state = start, start
            for x in inputs:
                state = theirs(x, state)
            loss = state[0].mean()
            return loss, torch.autograd.grad(loss, weights)

        def comparable(result: Any) -> Any:
            loss, (wx, wh, bias) = result
            return loss, (wx.T, wh.T, bias)

        return call, {"comparable": comparable}


@row("LSTM cell 128, batch 32, scan of 50 steps, forward + backward, compiled", aims={"jax.jit, lax.scan": 1.0})
def lstm_compiled(case: Case) -> None:
    data = Data(case)
    weights = [hf.Variable(value) for value in (data.wx, data.wh, data.bias)]
    xs, zeros = hf.asarray(data.xs), hf.asarray(data.zeros)

    @hf.compile
    def ours(xs: Any, zeros: Any) -> Any:
        def advance(state: Any, x: Any) -> Any:
            return cell(*weights, state, x), 0.0

        with hf.GradientTape() as tape:
            (h, _), _ = hf.scan(advance, (zeros, zeros), xs)
            loss = hf.mean(h)
        return loss, tape.gradient(loss, weights)

    case.ours(lambda: ours(xs, zeros))

    @jax.jit
    def theirs(weights: Any, xs: Any, zeros: Any) -> Any:
        def loss_of(weights: Any) -> Any:
            def advance(state: Any, x: Any) -> Any:
                return jax_cell(*weights, state, x), None

            (h, _), _ = jax.lax.scan(advance, (zeros, zeros), xs)
            return h.mean()

        return jax.value_and_grad(loss_of)(weights)

    given = jax.tree.map(jnp.asarray, ([data.wx, data.wh, data.bias], data.xs, data.zeros))
    case.peer("jax.jit, lax.scan", lambda: theirs(*given))

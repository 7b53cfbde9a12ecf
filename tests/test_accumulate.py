"""`hf.accumulate_gradients`: micro-batches give what the full batch gives, in both modes, in less memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError

RNG = np.random.default_rng(0)
X = RNG.normal(size=(12, 3)).astype(np.float32)
Y = RNG.normal(size=(12, 2)).astype(np.float32)
W = RNG.normal(size=(3, 2)).astype(np.float32)
PARAMETERS = {"w": W, "b": np.zeros(2, np.float32)}


def loss(p: Any, x: Any, y: Any) -> Any:
    return hf.mean((hf.tanh(x @ p["w"] + p["b"]) - y) ** 2)


def jax_loss(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ p["w"] + p["b"]) - y) ** 2)


def tensors(tree: Any) -> Any:
    return jax.tree_util.tree_map(hf.asarray, tree)


@pytest.mark.parametrize("parts", [1, 2, 3, 4, 12])
def test_it_is_the_gradient_of_the_full_batch(parts: int):
    found = both(hf.accumulate_gradients(loss, parts), tensors(PARAMETERS), hf.asarray(X), hf.asarray(Y))
    value, gradient = jax.value_and_grad(jax_loss)(PARAMETERS, X, Y)
    close(found[0], value)
    close(found[1], gradient)


def test_sums_are_added():
    def total(p: Any, x: Any, y: Any) -> Any:
        return loss(p, x, y) * float(x.shape[0])

    found = both(
        hf.accumulate_gradients(total, 4, reduction="sum"), tensors(PARAMETERS), hf.asarray(X), hf.asarray(Y)
    )
    value, gradient = jax.value_and_grad(lambda *a: jax_loss(*a) * 12)(PARAMETERS, X, Y)
    close(found[0], value)
    close(found[1], gradient)


def test_variables_and_aux():
    w, count = hf.Variable(W), hf.Variable(0)

    def fn(x: Any, y: Any, *, scale: float) -> Any:
        count.assign_add(1)
        out = hf.tanh(x @ w)
        return hf.mean((out - y) ** 2) * scale, {"out": out, "text": None}

    def program() -> Any:
        count.assign(0)
        run = hf.accumulate_gradients(fn, 3, None, variables={"w": [w]}, has_aux=True)
        (value, aux), gradient = run(hf.asarray(X), hf.asarray(Y), scale=2.0)
        return value, aux, gradient, count.read()

    value, aux, gradient, times = both(program)
    expected = jax.value_and_grad(lambda w: jnp.mean((jnp.tanh(X @ w) - Y) ** 2) * 2)(W)
    close(value, expected[0])
    close(gradient, {"w": [expected[1]]})
    assert times.numpy() == 3
    assert aux["out"].shape == (3, 4, 2)
    close(aux["out"].numpy().reshape(12, 2), np.tanh(X @ W))


def test_gradients_of_arguments_variables_and_of_the_batch_itself():
    v = hf.Variable(2.0)

    def fn(w: Any, x: Any) -> Any:
        return hf.mean(hf.sin(x @ w) * v)

    run = hf.accumulate_gradients(fn, 4, (0, 1), batch_argnums=-1, variables=v)
    value, ((dw, dx), dv) = both(run, hf.asarray(W), hf.asarray(X))
    expected, (ew, ex, ev) = jax.value_and_grad(lambda w, x, v: jnp.mean(jnp.sin(x @ w) * v), argnums=(0, 1, 2))(
        W, X, 2.0
    )
    close((value, dw, dx, dv), (expected, ew, ex, ev))


def test_low_precision_is_summed_in_float32():
    """512 gradients of 1 are 512: a bfloat16 sum would stop at 256."""
    run = hf.accumulate_gradients(lambda w, x: hf.sum(w * x), 512, reduction="sum")
    w, x = hf.ones((), dtype=hf.bfloat16), hf.ones((512,), dtype=hf.bfloat16)
    _, found = both(run, w, x)
    assert found.dtype == hf.bfloat16
    assert float(found) == 512


def test_inside_an_outer_gradient():
    def outer(w: Any) -> Any:
        return hf.sum(hf.accumulate_gradients(lambda w, x: hf.mean(hf.sin(x @ w)), 3)(w, hf.asarray(X))[1] ** 2)

    found = both(lambda w: hf.grad(outer)(w), hf.asarray(W), rtol=1e-4)
    expected = jax.grad(lambda w: jnp.sum(jax.grad(lambda w: jnp.mean(jnp.sin(X @ w)))(w) ** 2))(W)
    close(found, expected, rtol=1e-4, atol=1e-5)


def test_with_checkpoints_and_draws():
    """Draws are new in every micro-batch, and equal in both modes."""

    def fn(w: Any, x: Any) -> Any:
        return hf.mean(hf.nn.dropout(hf.checkpoint(lambda x: hf.tanh(x @ w))(x), 0.5))

    def program() -> Any:
        hf.random.seed(0)
        return hf.accumulate_gradients(fn, 3)(hf.asarray(W), hf.asarray(X))

    both(program)


def test_errors():
    p, x, y = tensors(PARAMETERS), hf.asarray(X), hf.asarray(Y)
    for run in (hf.accumulate_gradients(loss, 5), hf.compile(hf.accumulate_gradients(loss, 5))):
        with pytest.raises(ShapeError, match="a batch of 12 cannot be cut into 5 equal micro-batches"):
            run(p, x, y)
    with pytest.raises(ShapeError, match="leading sizes differ in the batch"):
        hf.accumulate_gradients(loss, 2)(p, x, y[:6])
    with pytest.raises(ArgumentError, match="micro_batches=0"):
        hf.accumulate_gradients(loss, 0)
    with pytest.raises(ArgumentError, match="reduction='max' is not one of"):
        hf.accumulate_gradients(loss, 2, reduction="max")
    with pytest.raises(ArgumentError, match="nothing to differentiate"):
        hf.accumulate_gradients(loss, 2, None)
    with pytest.raises(ArgumentError, match="there is no batch"):
        hf.accumulate_gradients(lambda w: hf.sum(w), 2)(x)
    with pytest.raises(ArgumentError, match="there is no argument 3, the call has 3"):
        hf.accumulate_gradients(loss, 2, 3)(p, x, y)
    with pytest.raises(ArgumentTypeError, match="a Tensor among variables"):
        hf.accumulate_gradients(loss, 2, variables=x)(p, x, y)
    with pytest.raises(ShapeError, match="must be a scalar"):
        hf.accumulate_gradients(lambda w, x: x @ w, 2)(hf.asarray(W), x)


def test_memory_falls_with_their_number():
    """By XLA's own figure: the activations of 1/8 of the batch, and sums of the gradients."""
    w = hf.asarray(RNG.normal(size=(32, 32)).astype(np.float32))
    x = hf.asarray(RNG.normal(size=(512, 32)).astype(np.float32))

    def fn(w: Any, x: Any) -> Any:
        for _ in range(6):
            x = hf.tanh(x @ w)
        return hf.mean(x**2)

    sizes: list[int] = []
    for parts in (1, 2, 8):
        lowered = hf.compile(hf.accumulate_gradients(fn, parts)).lower(w, x)
        sizes.append(lowered.executable.compiled.memory_analysis().temp_size_in_bytes)
    assert sizes[1] < 0.65 * sizes[0], sizes
    assert sizes[2] < 0.25 * sizes[0], sizes

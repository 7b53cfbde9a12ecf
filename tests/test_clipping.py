"""`hf.clip_by_value`, `hf.clip_by_norm`, `hf.clip_by_global_norm`, `hf.global_norm`: against NumPy and jax."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError

NUMBERS = arrays.arrays(np.float64, (3,), elements=st.floats(-100, 100))


@settings(max_examples=30, deadline=None)
@given(NUMBERS, NUMBERS, st.floats(0, 50))
def test_clipped_gradients_have_the_norm_and_the_direction(a: Any, b: Any, limit: float):
    (x, rest), norm = hf.clip_by_global_norm((hf.asarray(a), {"b": hf.asarray(b), "n": None}), limit)
    both_arrays = np.concatenate([a, b])
    expected = math.hypot(*both_arrays)  # NumPy's norm of tiny numbers is 0
    np.testing.assert_allclose(norm.item(), expected, rtol=1e-12)
    clipped = np.concatenate([x.numpy(), rest["b"].numpy()])
    if expected <= limit:
        np.testing.assert_allclose(clipped, both_arrays)
    else:
        np.testing.assert_allclose(clipped, both_arrays * (limit / expected), rtol=1e-12)
    assert rest["n"] is None


def test_every_tensor_on_its_own_and_along_an_axis():
    tree = {"a": tensor(3, 4), "b": hf.asarray([[0.6, 0.8], [30.0, 40.0]])}
    found = both(lambda t: hf.clip_by_norm(t, 2.0), tree)
    close(found, {"a": np.array([1.2, 1.6]), "b": tree["b"].numpy() * (2 / np.linalg.norm(tree["b"].numpy()))})
    rows = both(lambda t: hf.clip_by_norm(t["b"], 2.0, axis=1), tree)
    close(rows, np.array([[0.6, 0.8], [1.2, 1.6]]))


def test_values_and_none():
    low, high = hf.clip_by_value([tensor(-3, 0.5), None, tensor(7)], -1.0, 1.0)[::2]
    close([low, high], [np.array([-1.0, 0.5]), np.array([1.0])])
    gradients = both(lambda x: hf.grad(lambda x: hf.sum(hf.clip_by_value(x, -1.0, 1.0) ** 2))(x), tensor(-3, 0.5, 1))
    close(gradients, np.array([0.0, 1.0, 2.0]))


def test_gradients_through_clipping_are_jax_s():
    def program(n: Any, clip: Any):
        return lambda x, limit: n.sum(clip(x, limit) * n.arange(3.0))

    def by_hand(x: Any, limit: Any):
        return x * jnp.minimum(1.0, limit / jnp.sqrt(jnp.sum(x * x)))

    for x in (np.float32([3, -4, 1]), np.float32([0.1, 0.2, -0.1])):
        found = both(hf.grad(program(hf, hf.clip_by_norm), (0, 1)), hf.asarray(x), hf.asarray(2.0))
        close(found, jax.jit(jax.grad(program(jnp, by_hand), (0, 1)))(x, 2.0))


def test_zeros_have_no_gradient_and_stay():
    gradient = both(hf.grad(lambda x: hf.sum(hf.clip_by_norm(x, 1.0)) + hf.global_norm([x, x])), hf.zeros((2,)))
    close(gradient, np.ones(2))
    close(hf.clip_by_norm(hf.zeros((2,)), 0.0), np.zeros(2))


def test_large_small_and_low_precision_numbers_do_not_overflow():
    close(hf.clip_by_norm(hf.asarray(np.float32([3e30, 4e30])), 1.0), np.array([0.6, 0.8]))
    close(hf.global_norm(hf.asarray(np.float32([3e-30, 4e-30]))) * 1e30, np.array(5.0))
    half = hf.clip_by_norm(hf.asarray(np.float16([3e4, 4e4])), 1.0)
    assert half.dtype == np.float16
    close(half, np.array([0.6, 0.8]), rtol=1e-3)
    mixed = hf.global_norm([tensor(3, dtype=np.float16), hf.asarray(np.float64([4]))])
    assert (mixed.dtype, mixed.item()) == (np.float64, 5.0)
    close(hf.clip_by_norm(hf.asarray([3 + 4j]), 1.0), np.array([0.6 + 0.8j]))


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_a_norm_that_is_not_finite_spoils_everything(bad: float):
    clipped, norm = both(lambda x: hf.clip_by_global_norm([x, tensor(1)], 1.0), tensor(bad, 1))
    assert not np.isfinite(norm.item())
    assert all(np.isnan(leaf.numpy()).all() for leaf in clipped)


def test_nothing_to_clip():
    clipped, norm = hf.clip_by_global_norm({"a": None, "b": hf.zeros((0, 2))}, 1.0)
    assert clipped["a"] is None
    assert (clipped["b"].shape, norm.item()) == ((0, 2), 0.0)
    assert hf.clip_by_norm(hf.zeros((0,)), 1.0).shape == (0,)


def test_errors():
    with pytest.raises(ArgumentError, match=r"clip_by_norm: max_norm=-1\.0 is negative"):
        hf.clip_by_norm(tensor(1), -1.0)
    with pytest.raises(ArgumentError, match="max_norm=nan"):
        hf.clip_by_global_norm(tensor(1), float("nan"))
    with pytest.raises(ArgumentTypeError, match="max_norm=None is no number"):
        hf.clip_by_global_norm(tensor(1), None)
    for clip in (lambda x: hf.clip_by_norm(x, 1.0), lambda x: hf.clip_by_value(x, 0, 1), hf.global_norm):
        with pytest.raises(DTypeError, match="a tensor is int32, not floating-point"):
            clip([hf.asarray([1, 2])])

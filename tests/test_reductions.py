"""Reductions beyond what every op is checked for: long sums, accumulation, empty axes, ties."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.ops.indexing import index_add
from hybridflow.ops.nn.batch_statistics import normalize_batch

LONG = [
    ((100_000,), 0),
    ((100_000, 3), 0),
    ((3, 100_000), 1),
    ((3, 40_000, 3), (0, 1)),
    ((4_000, 3, 300), (0, 2)),
    ((500, 600), None),
]


@pytest.mark.parametrize(("shape", "axis"), LONG)
@pytest.mark.parametrize("reduce", [hf.sum, hf.mean])
def test_long_sums_are_as_precise_as_pairwise(reduce: Any, shape: Any, axis: Any, rng: np.random.Generator):
    x = rng.uniform(0, 1, shape).astype(np.float32)
    exact = np.asarray(getattr(np, reduce.__name__)(x.astype(np.float64), axis=axis))
    bound = np.log2(x.size) * np.finfo(np.float32).eps * exact
    for run in (reduce, hf.compile(reduce)):
        assert np.all(np.abs(run(hf.asarray(x), axis=axis).numpy() - exact) <= bound)


LARGE = [((300, 400), 0), ((300, 400), 1), ((20, 30, 70), (0, 1)), ((20, 30, 70), (1, 2)), ((9, 40, 10, 11), (0, 2, 3))]


@pytest.mark.parametrize(("shape", "axis"), [*LARGE, ((6007, 20), 0), ((5, 9001), 1)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_sums_of_infinities_zeros_and_nan(dtype: str, shape: Any, axis: Any, rng: np.random.Generator):
    x = rng.integers(-9, 9, shape).astype(dtype)  # their sums are exact
    terms = np.moveaxis(x, axis, -1) if type(axis) is int else np.moveaxis(x, axis, range(-len(axis), 0))
    for row, one in enumerate((np.inf, -np.inf, np.nan)):
        terms[row].flat[7 * row] = one
    terms[3] = -0.0
    terms[4].flat[:2] = np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        exact = x.sum(axis)
    for run in (hf.sum, hf.compile(hf.sum)):
        y = run(hf.asarray(x), axis=axis).numpy()
        assert y.dtype == x.dtype
        np.testing.assert_array_equal(y, exact)
        assert not np.signbit(y[y == 0]).any()


@pytest.mark.parametrize(("shape", "axis"), LARGE)
def test_large_sums_on_cpus_are_products(shape: Any, axis: Any):
    def products(*sizes: int) -> bool:
        return "dot(" in hf.compile(lambda x: hf.sum(x, axis=axis)).lower(hf.ones(sizes)).as_text("hlo")

    assert products(*shape)
    assert not products(*[min(size, 4) for size in shape])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_accumulates_in_float32(dtype: str):
    x = hf.full((4096,), 1.0, dtype=dtype)
    running = hf.cumulative_sum
    for run in (hf.sum, hf.compile(hf.sum), lambda x: running(x)[-1], hf.compile(lambda x: running(x)[-1])):
        assert run(x).item() == 4096.0
    index = hf.zeros((4096,), dtype="int32")
    for run in (index_add, hf.compile(index_add)):
        assert run(x, index, axes=(0,), shape=(1,)).numpy().tolist() == [4096.0]


def test_long_running_sums(rng: np.random.Generator):
    x = rng.uniform(0, 1, 300_000).astype(np.float32)
    exact = np.cumsum(x.astype(np.float64))
    for run in (hf.cumulative_sum, hf.compile(hf.cumulative_sum)):
        assert np.max(np.abs(run(hf.asarray(x)).numpy() - exact) / exact) <= 20 * np.finfo(np.float32).eps


@pytest.mark.parametrize("name", ["max", "min", "argmax", "argmin"])
def test_nothing_to_choose_from(name: str):
    reduce = getattr(hf, name)
    for run in (reduce, hf.compile(reduce)):
        with pytest.raises(ValueError, match=f"{name}: axis 0 has size 0, so there is nothing to choose from"):
            run(hf.zeros((0, 2)), axis=0)
    assert reduce(hf.zeros((0, 2)), axis=1).shape == (0,)


def test_ties_share_the_gradient_evenly():
    grad = hf.grad(lambda x: hf.max(x))
    assert grad(hf.asarray([1.0, 3.0, 3.0])).numpy().tolist() == [0.0, 0.5, 0.5]
    share = hf.grad(lambda x: hf.sum(hf.maximum(x, 1.0)))
    assert share(hf.asarray([0.0, 1.0, 2.0])).numpy().tolist() == [0.0, 0.5, 1.0]
    inside = hf.grad(lambda x: hf.sum(hf.clip(x, 0.0, 1.0)))
    assert inside(hf.asarray([-1.0, 0.0, 0.5, 1.0, 2.0])).numpy().tolist() == [0.0, 1.0, 1.0, 1.0, 0.0]


def test_prod_at_zeros():
    grad = hf.grad(lambda x: hf.prod(x))
    assert grad(hf.asarray([2.0, 0.0, 3.0])).numpy().tolist() == [0.0, 6.0, 0.0]
    assert grad(hf.asarray([0.0, 0.0, 3.0])).numpy().tolist() == [0.0, 0.0, 0.0]


def test_power_gradients_are_safe():
    def grads(x: float, y: float) -> list[float]:
        return [g.item() for g in hf.grad(lambda x, y: hf.power(x, y), argnums=(0, 1))(hf.asarray(x), hf.asarray(y))]

    assert grads(0.0, 2.0) == [0.0, 0.0]
    assert grads(0.0, 0.0) == [0.0, 0.0]
    assert grads(2.0, 0.0)[0] == 0.0


INT_EDGES = [
    (lambda a, b: a // b, [7, -7, 0, -128], [0, 0, 0, -1], [0, 0, 0, -128]),
    (lambda a, b: a % b, [7, -7, 0, -128], [0, 0, 0, -1], [0, 0, 0, 0]),
    (lambda a, b: a**b, [0, 1, -1, 2], [-1, -3, -3, -1], [0, 1, -1, 0]),
    (lambda a, b: a << b, [1, 1, 1, 1], [7, 8, 9, -1], [-128, 0, 0, 0]),
    (lambda a, b: a >> b, [-1, -1, 64, -64], [8, -1, 8, 3], [-1, -1, 0, -8]),
    (lambda a, b: abs(a) + 0 * b, [-128, -1], [0, 0], [-128, 1]),
    (lambda a, b: a * b, [100, -128], [3, -1], [44, -128]),
]


@pytest.mark.parametrize(("fn", "a", "b", "expected"), INT_EDGES)
def test_integer_edges_are_one_result_in_both_modes(fn: Any, a: Any, b: Any, expected: Any):
    a, b = hf.asarray(a, dtype="int8"), hf.asarray(b, dtype="int8")
    for run in (fn, hf.compile(fn)):
        found = run(a, b)
        assert found.dtype == np.int8
        assert found.numpy().tolist() == expected


def test_full_keeps_the_sign_of_zero_and_nan():
    for run in (lambda: hf.full((2,), -0.0), hf.compile(lambda: hf.full((2,), -0.0))):
        assert np.signbit(run().numpy()).all()
    for run in (lambda: hf.full((), 0.0), hf.compile(lambda: hf.full((), 0.0))):
        assert not np.signbit(run().numpy())
    assert np.isnan(hf.full((2,), float("nan")).numpy()).all()


@pytest.mark.parametrize("name", ["sum", "mean", "var"])
def test_sums_over_several_axes_are_as_exact_compiled(name: str, rng: np.random.Generator):
    """XLA sums in runs over up to 32 elements of each axis: over four axes, a million."""
    x = (rng.random((64, 3, 26, 26)) + 1).astype(np.float32)
    exact = getattr(np, name)(x.astype(np.float64), axis=(0, 2, 3))
    found = hf.compile(lambda x: getattr(hf, name)(x * 1.0, axis=(0, 2, 3)))(x).numpy()
    np.testing.assert_allclose(found, exact, rtol=4e-7)
    assert hf.compare(lambda x: getattr(hf, name)(x * 1.0, axis=(0, 2, 3)), x, repeats=1).same


SUMMING: dict[str, Any] = {
    "normalize_batch": lambda x: normalize_batch(x)[1:],
    "layer_norm": lambda x: hf.nn.layer_norm(x, axis=(0, 1, 2, 3)),
    "l2_normalize": lambda x: hf.nn.l2_normalize(x, (0, 2, 3)),
    "softmax": lambda x: hf.nn.softmax(x, (0, 2, 3)),
    "logsumexp": lambda x: hf.exp(hf.logsumexp(x, (0, 2, 3)) - 10),
    "einsum": lambda x: hf.einsum("abcd->b", x),
}


@pytest.mark.parametrize("name", SUMMING)
def test_what_sums_over_several_axes_is_as_exact_compiled(name: str, rng: np.random.Generator):
    run = SUMMING[name]
    x = hf.asarray((rng.random((64, 3, 26, 26)) + 1).astype(np.float32))
    exact = jax.tree_util.tree_leaves(run(hf.astype(x, "float64")))
    for found, one in zip(jax.tree_util.tree_leaves(hf.compile(run)(x)), exact, strict=True):
        np.testing.assert_allclose(found.numpy(), one.numpy(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("scanned", [False, True])
def test_logsumexp_computes_its_exponentials_once(scanned):
    def loss(x):
        if not scanned:
            return hf.sum(hf.logsumexp(x, axis=1))
        return hf.sum(hf.scan(lambda state, row: (hf.logsumexp(state[:, None] + x, axis=0) + row, None), x[0], x)[0])

    x = hf.random.normal((40, 40))
    lowered = hf.compile(hf.value_and_grad(loss)).lower(x)
    assert lowered.as_text("stablehlo").count("stablehlo.exponential") == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("row", "expected"), [
    ([-np.inf, -np.inf], [0.5, 0.5]), ([np.inf, 1.0, np.inf, np.inf, np.inf], [0.25, 0, 0.25, 0.25, 0.25]),
    ([np.nan, np.inf], [np.nan, np.nan]), ([0.0, -np.inf], [1.0, 0.0]),
])
def test_gradient_of_logsumexp_shares_infinities_alike(row, expected, dtype):
    x = np.array([row], dtype)
    gradient = hf.grad(lambda x: hf.sum(hf.logsumexp(x, axis=1)))
    for function in (gradient, hf.compile(gradient)):
        np.testing.assert_array_equal(function(x).numpy(), np.array([expected], dtype))

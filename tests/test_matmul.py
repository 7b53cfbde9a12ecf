"""Matrix products: shapes, accumulation, gradients that differentiate again, errors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf

SHAPES = [
    ((3, 4), (4, 2)),
    ((4,), (4,)),
    ((3, 4), (4,)),
    ((4,), (4, 2)),
    ((2, 3, 4), (4,)),
    ((4,), (2, 4, 3)),
    ((2, 3, 4), (4, 5)),
    ((3, 4), (2, 4, 5)),
    ((2, 1, 3, 4), (5, 4, 2)),
]


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def close(found: hf.Tensor | None, expected: object, tolerance: float = 1e-5) -> None:
    assert found is not None
    np.testing.assert_allclose(found.numpy(), np.asarray(expected), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_value_and_gradients_are_those_of_jax(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = draw(*left), draw(*right, seed=1)
    x, y = hf.asarray(a), hf.asarray(b)
    with hf.GradientTape() as tape:
        tape.watch([x, y])
        product = x @ y
        loss = hf.sum(product * product)
    expected = jax.grad(lambda a, b: jnp.sum(jnp.matmul(a, b, precision="highest") ** 2), argnums=(0, 1))(a, b)
    close(product, np.matmul(a, b))
    for found, wanted in zip(tape.gradient(loss, [x, y]), expected, strict=True):
        assert found.shape == wanted.shape
        close(found, wanted, 1e-4)


@pytest.mark.parametrize(("left", "right"), SHAPES)
def test_compiled_is_eager(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    a, b = draw(*left), draw(*right, seed=1)
    close(hf.compile(hf.matmul)(a, b), hf.matmul(a, b).numpy())


def test_second_order() -> None:
    a, b = draw(2, 3, 4), draw(4, 5, seed=1)
    x, y = hf.asarray(a), hf.asarray(b)
    with hf.GradientTape() as outer:
        outer.watch([x, y])
        with hf.GradientTape() as inner:
            inner.watch([x, y])
            loss = hf.sum(hf.tanh(x @ y))
        first = inner.gradient(loss, [x, y])
        total = hf.sum(first[0] * first[0]) + hf.sum(first[1] * first[1])
    found = outer.gradient(total, [x, y])

    def loss_of(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.sum(jnp.tanh(jnp.matmul(a, b, precision="highest")))

    def total_of(a: jax.Array, b: jax.Array) -> jax.Array:
        return sum(jnp.sum(g * g) for g in jax.grad(loss_of, argnums=(0, 1))(a, b))

    for one, wanted in zip(found, jax.grad(total_of, argnums=(0, 1))(a, b), strict=True):
        close(one, wanted, 1e-4)


def test_an_array_on_the_left_keeps_the_gradient() -> None:
    weights = hf.Variable(draw(4, 2))
    data = draw(3, 4)
    with hf.GradientTape() as tape:
        loss = hf.sum(data @ weights)
    close(tape.gradient(loss, weights), data.T @ np.ones((3, 2), np.float32))


def test_only_the_wanted_gradient_is_computed() -> None:
    data, weights = hf.asarray(draw(3, 4)), hf.Variable(draw(4, 2))
    with hf.GradientTape() as tape:
        tape.watch(data)
        loss = hf.sum(data @ weights)
    assert tape.gradient(loss, [weights])[0].shape == (4, 2)


@pytest.mark.parametrize("dtype", ["int8", "int32", "uint16", "int64"])
def test_integers(dtype: str) -> None:
    a = np.asarray([[1, 2], [3, 4]], dtype)
    result = hf.matmul(a, a)
    assert result.dtype == np.dtype(dtype)
    assert result.tolist() == [[7, 10], [15, 22]]
    compiled = hf.compile(hf.matmul)(a, a)
    assert compiled.dtype == result.dtype
    assert compiled.tolist() == result.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_summed_in_float32(dtype: str) -> None:
    # 4096 ones and a small last term: a running sum in the low precision would lose it, and much more.
    a = np.ones((1, 4097), np.float32)
    a[0, -1] = 64
    x = hf.asarray(a, dtype=dtype)
    y = hf.asarray(np.ones((4097, 1), np.float32), dtype=dtype)
    expected = np.float32(4160).astype(x.dtype)
    assert (x @ y).item() == expected
    assert hf.compile(hf.matmul)(x, y).item() == expected


def test_float32_is_not_rounded_before_the_product() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((64, 256)).astype("f"), rng.standard_normal((256, 64)).astype("f")
    exact = a.astype("d") @ b.astype("d")
    bound = 256 * np.finfo(np.float32).eps * (np.abs(a).astype("d") @ np.abs(b))
    for run in (hf.matmul, hf.compile(hf.matmul)):
        assert np.all(np.abs(run(a, b).numpy() - exact) <= bound)


def test_empty_products() -> None:
    assert hf.matmul(np.ones((2, 0), "f"), np.ones((0, 3), "f")).tolist() == [[0.0] * 3] * 2
    assert hf.matmul(np.ones((0, 4, 2), "f"), np.ones((2, 3), "f")).shape == (0, 4, 3)


def test_errors_name_both_sizes() -> None:
    with pytest.raises(ValueError, match=r"inner sizes differ: 4 and 3\n  got: matmul\(f32\[3,4\], f32\[3,4\]\)"):
        hf.matmul(draw(3, 4), draw(3, 4))
    with pytest.raises(ValueError, match="size 2 against 5"):
        hf.matmul(draw(2, 3, 4), draw(5, 4, 2))
    with pytest.raises(ValueError, match="0 dimensions"):
        hf.matmul(hf.asarray(1.0), draw(3))
    with pytest.raises(ValueError, match="inner sizes differ"):
        hf.compile(hf.matmul)(draw(3, 4), draw(3, 4))

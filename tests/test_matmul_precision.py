"""`hf.config.matmul_precision`: what XLA is told, that CPUs do not round factors, and that traces are not mixed up."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError

NAMES = ("highest", "high", "default")
PRODUCTS: dict[str, tuple[Any, tuple[tuple[int, ...], ...]]] = {
    "matmul": (lambda x, w: x @ w, ((3, 5), (5, 2))),
    "batches": (lambda x, w: x @ w, ((2, 3, 5), (2, 5, 4))),
    "einsum": (lambda x, w: hf.einsum("bij,bjk->bik", x, w), ((2, 3, 5), (2, 5, 4))),
    "tensordot": (lambda x, w: hf.tensordot(x, w, axes=1), ((3, 5), (5, 4))),
    "conv": (lambda x, w: nn.conv(x, w, stride=2), ((2, 3, 9, 9), (4, 3, 3, 3))),
    "conv_transpose": (lambda x, w: nn.conv_transpose(x, w, stride=2), ((2, 3, 5, 5), (3, 4, 3, 3))),
    "attention": (lambda x, w: nn.scaled_dot_product_attention(x, w, w), ((1, 2, 4, 8), (1, 2, 6, 8))),
    "linear": (lambda x, w: hf.sum(nn.linear(x, w)), ((3, 5), (4, 5))),
}
PRECISION = re.compile(r"precision_config = \[#stablehlo<precision (\w+)>|precision = \[(\w+),")


def told(function: Any, *args: Any) -> set[str]:
    """Return the precisions that XLA is told for the products of a function."""
    text = hf.compile(function).lower(*args).as_text("stablehlo")
    found = {(one or other).lower() for one, other in PRECISION.findall(text)}
    products = len(re.findall(r"stablehlo\.(?:dot_general|convolution)", text))
    said = len(PRECISION.findall(text))
    assert products
    return found if said == products else found | {"default"}


def drawn(shapes: Any, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [hf.asarray(rng.normal(size=shape).astype(np.float32)) for shape in shapes]


@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("precision", NAMES)
def test_xla_is_told_for_products_and_their_gradients(name, precision):
    function, shapes = PRODUCTS[name]
    args = drawn(shapes)
    with hf.config.matmul_precision(precision):
        assert told(function, *args) == {precision}
        assert told(hf.grad(lambda *given: hf.sum(function(*given) ** 2), argnums=(0, 1)), *args) == {precision}
    assert told(function, *args) == {"highest"}


@settings(max_examples=10)
@given(st.sampled_from([*PRODUCTS]), st.integers(0, 10**6))
def test_on_a_cpu_the_bits_are_the_same(name, seed):
    function, shapes = PRODUCTS[name]
    args = drawn(shapes, seed)
    wanted = function(*args).numpy()
    for precision in NAMES:
        with hf.config.matmul_precision(precision):
            np.testing.assert_array_equal(function(*args).numpy(), wanted)
            hf.testing.assert_same(function, *args)


def test_a_compiled_function_has_a_trace_per_precision_and_says_why():
    product = hf.compile(lambda x, w: x @ w)
    x, w = drawn(((3, 5), (5, 2)))
    for _ in range(2):
        for precision in NAMES:
            with hf.config.matmul_precision(precision):
                product(x, w)
    assert product.trace_count == 3
    assert "hf.config.matmul_precision" in str(product.explain())


def test_linear_algebra_keeps_the_highest():
    a = drawn(((4, 4),))[0]
    with hf.config.matmul_precision("default"):
        text = hf.compile(hf.linalg.inv).lower(a).as_text("stablehlo")
        assert "precision DEFAULT" not in text
        hf.testing.assert_same(hf.linalg.inv, a)


def test_a_block_restores_what_was_set_before_it():
    def product() -> set[str]:
        return told(lambda x, w: x @ w, *drawn(((3, 5), (5, 2))))

    hf.config.matmul_precision("high")
    try:
        with hf.config.matmul_precision("default"):
            assert product() == {"default"}
        assert product() == {"high"}
        with pytest.raises(ArgumentError, match="'tf32' is not one of highest, high, default"):
            hf.config.matmul_precision("tf32")
        assert product() == {"high"}
    finally:
        hf.config.matmul_precision("highest")

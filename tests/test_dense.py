"""`hf.nn.linear`: one node of a product and a bias, its precision, its place among products, and no copies."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

import hybridflow as hf
from hybridflow.core.op import REGISTRY, Op
from hybridflow.ir.costs import has_large_products
from hybridflow.passes.lib.stored import is_kept


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(dtype)


@settings(deadline=None, max_examples=40)
@given(
    array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5), st.integers(1, 6), st.integers(1, 6), st.booleans()
)
def test_values_and_gradients_are_those_of_product_and_sum(lead: Any, size: int, out: int, bias: bool):
    arrays = [normal(*lead, size, dtype=np.float64), normal(out, size, dtype=np.float64)]
    arrays += [normal(out, dtype=np.float64)] if bias else []

    def plain(x: Any, weight: Any, *bias: Any) -> Any:
        y = x @ weight.mT
        return hf.sum(hf.sin(y + bias[0] if bias else y))

    def fused(*values: Any) -> Any:
        return hf.sum(hf.sin(hf.nn.linear(*values)))

    given = [hf.asarray(one) for one in arrays]
    places = tuple(range(len(given)))
    expected, wanted = hf.value_and_grad(plain, places)(*given)
    for function in (fused, hf.compile(fused)):
        found, gradients = hf.value_and_grad(function, places)(*given)
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-12, atol=1e-12)
        for a, b in zip(gradients, wanted, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_is_rounded_once(dtype: str):
    x, weight, bias = [hf.asarray(normal(*shape)).astype(dtype) for shape in ((7, 64), (5, 64), (5,))]
    wide = [one.astype("float32").numpy() for one in (x, weight, bias)]
    exact = hf.asarray(wide[0] @ wide[1].T + wide[2]).astype(dtype)
    for found in (hf.nn.linear(x, weight, bias), hf.compile(hf.nn.linear)(x, weight, bias)):
        assert found.dtype == exact.dtype
        a, b = found.astype("float32").numpy(), exact.astype("float32").numpy()
        np.testing.assert_allclose(a, b, rtol=float(hf.finfo(dtype).eps))
        assert (a == b).mean() > 0.9  # the float32 sums differ in the order of their additions only


@pytest.mark.parametrize("compiled", [False, True])
def test_autocast_takes_it_in_low_precision(compiled: bool):
    layer = hf.nn.Linear(4, 3)

    @hf.autocast(hf.bfloat16)
    def loss(x: Any) -> Any:
        y = layer(x)
        assert y.dtype == hf.bfloat16
        return hf.sum(y)

    with hf.GradientTape() as tape:
        total = (hf.compile(loss) if compiled else loss)(hf.ones((2, 4)))
    assert [g.dtype for g in tape.gradient(total, layer.parameters())] == [hf.float32, hf.float32]


def test_a_layer_is_one_node_which_passes_know_as_a_product():
    layer = hf.nn.Linear(512, 512)
    graph = hf.compile(lambda x: layer(x)).graph(hf.ones((512, 512)))
    (node,) = [one for one in graph.nodes if one.op.name == "linear"]
    assert len([one for one in graph.nodes if one.inputs]) == 1
    assert has_large_products(graph, {})
    assert is_kept(node, graph, 1)
    assert hf.cost(lambda x: layer(x), hf.ones((8, 512))).macs == 8 * 512 * 512


def test_what_multiplies_like_matmul_is_cast_like_it():
    def listed(trait: str) -> set[str]:
        return {name for name, one in REGISTRY.items() if isinstance(one, Op) and one.has(trait)}

    integers = {"integer_linear", "quantized_linear", "weight_only_linear"}  # their numbers have a precision already
    assert {"matmul", "linear"} <= listed("dot") <= listed("low_precision") | integers


def test_no_array_is_copied():
    x, weight, bias = hf.ones((256, 300)), hf.ones((400, 300)), hf.ones(400)
    hf.nn.linear(x, weight, bias)
    tracemalloc.start()
    try:
        y = hf.nn.linear(x, weight, bias)
        assert tracemalloc.get_traced_memory()[1] < 1.1 * y.nbytes
    finally:
        tracemalloc.stop()


def test_a_frozen_weight_keeps_no_input_alive():
    weight, bias = hf.asarray(normal(3, 4)), hf.Variable(normal(3))
    with hf.GradientTape() as tape:
        y = hf.nn.linear(hf.ones((5, 4)), weight, bias)
    assert all(one is None for one in y._edge[0].saved)
    np.testing.assert_array_equal(tape.gradient(y, bias).numpy(), np.full(3, 5.0))

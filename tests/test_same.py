"""The definition of "the same": what rounding explains passes, what it does not is found."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.analysis.same import Float64Run, disturb, into_range, judge
from hybridflow.core.spec import spec_of
from hybridflow.ir.builder import trace_body


def graph_of(function: Any, *arrays: Any):
    """Trace a function of tensors."""

    def body(*tensors: Any) -> Any:
        result = function(*tensors)
        return result if isinstance(result, tuple) else (result,)

    return trace_body(body, [spec_of(array) for array in arrays], "program").graph


def run_jax(function: Any, *arrays: Any):
    return np.asarray(jax.jit(function)(*arrays))


def f32(*numbers: float) -> np.ndarray:
    return np.array(numbers, dtype=np.float32)


def difference_of_squares(x, y):
    return x * x - y * y


def test_identical_results_need_no_reference():
    x = f32(1, 2)
    (found,) = judge(graph_of(hf.tanh, x), [x], [x], [x])
    assert (found.same, found.largest, found.used, found.text) == (True, 0.0, 0.0, "")


def test_nan_is_the_same_as_nan():
    x = f32(np.nan, np.inf, -np.inf)
    assert judge(graph_of(hf.tanh, x), [x], [x], [x.copy()])[0].same


def test_a_contracted_product_is_rounding():
    x = np.linspace(1, 2, 64, dtype=np.float32)
    exact_product = x.astype(np.float64) * x
    contracted = (exact_product - (x * x)).astype(np.float32)  # what a fused multiply-add gives
    eager = x * x - x * x
    assert np.abs(contracted).max() > 0
    (found,) = judge(graph_of(difference_of_squares, x, x), [x, x], [eager], [contracted])
    assert found.same
    assert 0 < found.used <= 1


@pytest.mark.parametrize("fault", [1e-3, 1e-5])
def test_a_wrong_coefficient_is_found(fault: float):
    x = np.linspace(0.1, 2, 50, dtype=np.float32)
    eager = np.tanh(x) * x
    (found,) = judge(graph_of(lambda x: hf.tanh(x) * x, x), [x], [eager], [eager * np.float32(1 + fault)])
    assert not found.same
    assert found.used > 1
    assert "eager" in found.text
    assert "50 of 50 elements differ" in found.text


def test_one_wrong_element_is_found_and_named():
    x = np.linspace(0.1, 2, 12, dtype=np.float32).reshape(3, 4)
    eager = x + x
    compiled = eager.copy()
    compiled[1, 2] *= np.float32(1 + 1e-5)
    (found,) = judge(graph_of(lambda x: x + x, x), [x], [eager], [compiled])
    assert not found.same
    assert found.text.startswith("at [1, 2]: eager ")
    assert "1 of 12 elements differ" in found.text


def test_shape_and_dtype_must_be_identical():
    x = f32(1, 2)
    graph = graph_of(lambda x: x + x, x)
    assert judge(graph, [x], [x], [x[:1]])[0].text == "shape (2,) eager, (1,) compiled"
    assert judge(graph, [x], [x], [x.astype("float64")])[0].text == "dtype float32 eager, float64 compiled"


def test_integers_must_be_identical():
    n = np.array([1, 2, 3], dtype=np.int32)
    graph = graph_of(lambda n: n * n, n)
    assert judge(graph, [n], [n * n], [n * n])[0].same
    (found,) = judge(graph, [n], [n * n], [n * n + np.array([0, 0, 1], np.int32)])
    assert not found.same
    assert found.largest == 1


def test_a_bool_on_the_edge_of_rounding_may_flip():
    x = f32(1.5, 2.5)
    y = f32(1.0 / 3.0, 1.0 / 3.0)
    # (x y) y against x (y y): equal in exact arithmetic, so rounding decides the comparison.
    graph = graph_of(lambda x, y: (x * y) * y > x * (y * y), x, y)
    assert judge(graph, [x, y], [np.array([True, False])], [np.array([False, True])])[0].same


def test_a_bool_that_rounding_cannot_flip_must_be_identical():
    x = f32(1.0, 3.0)
    graph = graph_of(lambda x: x * x > 4.0, x)
    (found,) = judge(graph, [x], [np.array([False, True])], [np.array([True, True])])
    assert not found.same
    assert "at [0]" in found.text


def test_comparing_inputs_is_exact():
    x = f32(1.0, 1.0)
    graph = graph_of(lambda x, y: x == y, x, x)
    assert not judge(graph, [x, x], [np.array([True, True])], [np.array([True, False])])[0].same


def test_infinity_against_a_number_is_a_difference():
    x = f32(1.0)
    graph = graph_of(lambda x: x + x, x)
    (found,) = judge(graph, [x], [f32(2.0)], [f32(np.inf)])
    assert not found.same
    assert found.largest == np.inf


def test_overflow_is_that_of_the_programs_dtype():
    x = f32(3e38)
    graph = graph_of(lambda x: x + x, x)
    assert Float64Run(graph, [x]).exact()[0] == np.inf
    assert not judge(graph, [x], [f32(np.inf)], [f32(3.4e38)])[0].same


def test_flushed_subnormals_are_rounding():
    x = f32(1e-30)
    graph = graph_of(lambda x: x * 1e-10, x)
    assert judge(graph, [x], [f32(1e-40)], [f32(0.0)])[0].same


def test_the_sign_of_zero_is_no_difference():
    x = f32(0.0)
    assert judge(graph_of(lambda x: x * 1.0, x), [x], [f32(0.0)], [f32(-0.0)])[0].same


def test_a_long_sum_may_be_reordered(rng: np.random.Generator):
    x = rng.standard_normal(4096).astype(np.float32)
    eager = np.asarray(np.sum(x, dtype=np.float32))
    other = np.asarray(np.sum(x[::-1].reshape(64, 64).sum(axis=0, dtype=np.float32), dtype=np.float32))
    graph = graph_of(lambda x: hf.sum(x), x)
    assert judge(graph, [x], [eager], [other])[0].same
    assert not judge(graph, [x], [eager], [np.asarray(other + np.float32(1e-2))])[0].same


def test_a_float64_program_is_judged_too(rng: np.random.Generator):
    x = rng.standard_normal(100)
    eager = np.tanh(x) * x
    graph = graph_of(lambda x: hf.tanh(x) * x, x)
    assert judge(graph, [x], [eager], [eager * (1 + 2e-16)])[0].same
    assert not judge(graph, [x], [eager], [eager * (1 + 1e-13)])[0].same


def test_low_precision_is_judged_by_its_own_spacing():
    x = jnp.linspace(0.1, 2, 20, dtype=jnp.bfloat16)
    array = np.asarray(x)
    eager = np.asarray(x * x)
    graph = graph_of(lambda x: x * x, array)
    one_ulp = np.asarray(jnp.asarray(eager) * jnp.bfloat16(1.01))
    assert judge(graph, [array], [eager], [one_ulp])[0].same
    assert not judge(graph, [array], [eager], [np.asarray(jnp.asarray(eager) * jnp.bfloat16(1.2))])[0].same


def test_a_tolerance_replaces_the_reference():
    x = f32(1.0, 2.0)
    graph = graph_of(lambda x: x + x, x)
    assert judge(graph, [x], [x], [x * 1.01], tolerance=(0.02, 0.0))[0].same
    assert not judge(graph, [x], [x], [x * np.float32(1.05)], tolerance=(0.02, 0.0))[0].same


def test_names_are_those_given():
    x = f32(1.0)
    assert judge(graph_of(hf.tanh, x), [x], [x], [x], names=["loss"])[0].name == "loss"


def test_disturbing_is_relative_and_leaves_integers(rng: np.random.Generator):
    value = np.array([0.0, 1.0, -4.0])
    moved = disturb(value, 1e-3, rng)
    assert moved[0] == 0
    assert 0 < np.abs(moved[1:] / value[1:] - 1).max() <= 1e-3
    whole = np.arange(3)
    assert disturb(whole, 1e-3, rng) is whole
    complex_moved = disturb(np.array([1 + 1j]), 1e-3, rng)
    assert 0 < abs(complex_moved[0] - (1 + 1j)) <= 2.1e-3


def test_range_of_a_dtype():
    huge = np.array([1e39, -1e39, 3.4028235e38, 1.0])
    assert into_range(huge, np.dtype("float32"), None).tolist() == [np.inf, -np.inf, 3.4028235e38, 1.0]
    assert into_range(huge, np.dtype("float64"), None) is huge

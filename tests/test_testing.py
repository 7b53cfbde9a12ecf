"""`hf.testing`: what it accepts, what it catches, and how it says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import CheckError


def test_right_gradients_pass():
    rng = np.random.default_rng(0)
    args = [{"w": rng.standard_normal((3, 2)), "b": hf.asarray(rng.standard_normal(2))}, rng.standard_normal((4, 3))]

    def layer(p: Any, x: Any) -> Any:
        return {"y": hf.tanh(x @ p["w"] + p["b"])}, hf.sum(x)

    hf.testing.check_gradients(layer, args)


def test_float32_arguments_are_checked_in_float64():
    hf.testing.check_gradients(lambda x, n: hf.exp(x) ** n, [np.float32([0.1, 0.2]), 3])


@hf.custom_gradient
def _off(x: Any) -> Any:
    return hf.exp(x), lambda g: g * hf.exp(x) * 1.001


@hf.custom_gradient
def _cut(x: Any) -> Any:
    return hf.exp(x), lambda g: g * hf.stop_gradient(hf.exp(x))


def test_a_wrong_gradient_is_reported_by_element():
    with pytest.raises(CheckError) as caught:
        hf.testing.check_gradients(lambda p: _off(p["x"]), [{"x": np.linspace(0.1, 1, 9)}])
    lines = str(caught.value).splitlines()
    assert lines[0] == "check_gradients: the gradient is not the central difference"
    assert lines[1].startswith("  argument [0]['x'] f64[9] at [0]: tape ")
    assert lines[-2] == "  argument [0]['x'] f64[9]: 4 more of 9 elements"


def test_a_wrong_second_order_is_reported():
    hf.testing.check_gradients(_cut, [np.float64(0.3)], order=1)
    with pytest.raises(CheckError, match="the second-order gradient is not the central difference"):
        hf.testing.check_gradients(_cut, [np.float64(0.3)])


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ([1, np.int32([1])], {}, "no argument is floating-point"),
        ([np.ones(2)], {"order": 5}, "order=5 is not one of 1, 2, 3, 4"),
    ],
)
def test_check_gradients_refuses(args: Any, kwargs: Any, text: str):
    with pytest.raises(ValueError, match=text):
        hf.testing.check_gradients(lambda *xs: xs[0], args, **kwargs)


def test_no_float_result():
    with pytest.raises(ValueError, match="no result is floating-point"):
        hf.testing.check_gradients(lambda x: x > 0, [np.ones(2)])


def test_traces_are_counted():
    square = hf.compile(lambda x: x * x)
    square(hf.asarray(1.0))
    hf.testing.assert_max_traces(square, 1)
    square(hf.asarray([1.0, 2.0]))
    with pytest.raises(CheckError, match="2 traces, at most 1 allowed"):
        hf.testing.assert_max_traces(square, 1)
    with pytest.raises(TypeError, match="a function is not compiled"):
        hf.testing.assert_max_traces(lambda x: x, 1)  # type: ignore[arg-type]


def test_check_op_takes_functions_and_records():
    hf.testing.check_op(hf.square)
    hf.testing.check_op(hf.square.op, seed=1)
    with pytest.raises(TypeError, match="a function is no op"):
        hf.testing.check_op(hf.zeros)
    from hybridflow.core.op import REGISTRY

    with pytest.raises(ValueError, match="check_op: identity has no samples"):
        hf.testing.check_op(REGISTRY["identity"])

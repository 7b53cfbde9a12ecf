"""`hf.testing.check_gradients`: what it accepts, what it finds, and what its report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from modes import tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, CheckError

check = hf.testing.check_gradients


def wrong(factor: float, offset: float = 0.0) -> Any:
    @hf.custom_gradient
    def function(x: hf.Tensor):
        return hf.sin(x), lambda g: g * hf.cos(x) * factor + offset * g

    return function


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_right_gradients_of_every_order(order: int):
    def function(p: Any):
        return {"y": hf.sin(p["x"]) * p["s"][0], "n": hf.argmax(p["x"])}

    check(function, [{"x": tensor(0.3, -1), "s": [2.0]}], order)
    check(hf.compile(lambda x: hf.nn.softmax(x) * x), [tensor(0.3, -1)], order)


def test_complex_arguments_and_results():
    check(lambda z, x: hf.sin(z) * x, [hf.asarray([0.5 + 1j, -0.3 - 0.2j]), tensor(1, 2)])
    check(lambda z: hf.abs(z) ** 2, [0.5 - 0.7j])
    with pytest.raises(CheckError, match=r"argument \[0\] \(imaginary part\) f64\[\]"):
        check(lambda z: hf.real(z) + hf.stop_gradient(hf.imag(z)), [0.5 - 0.7j])


@pytest.mark.parametrize("factor", [1.001, 0.0, float("nan")])
def test_a_wrong_gradient_is_a_row_of_the_report(factor: float):
    with pytest.raises(CheckError) as caught:
        check(lambda x, y: wrong(factor)(x) + y, [tensor(0.3, -1), tensor(1, 2)], 1)
    lines = str(caught.value).splitlines()
    assert lines[0] == "check_gradients: the gradient is not the central difference"
    assert [line.split(":")[0] for line in lines[1:-1]] == [f"  argument [0] f64[2] at [{i}]" for i in (0, 1)]
    assert ": tape " in lines[1]
    assert ", central difference " in lines[1]
    assert "tolerance" in lines[-1]


def test_long_reports_are_cut():
    with pytest.raises(CheckError, match=r"argument \[0\] f64\[20\]: 15 more of 20 elements"):
        check(wrong(2.0), [np.linspace(-1, 1, 20)], 1)


def test_a_gradient_that_is_right_only_at_first_order():
    @hf.custom_gradient
    def function(x: hf.Tensor):
        return hf.sin(x), lambda g: g * hf.stop_gradient(hf.cos(x))

    check(function, [tensor(0.3)], 1)
    with pytest.raises(CheckError, match="the second-order gradient is not"):
        check(function, [tensor(0.3)])


def test_functions_that_give_another_result_every_time():
    with pytest.raises(CheckError, match="result 0 is another one when the function is called again"):
        check(lambda x: x * hf.random.uniform(()), [1.0])

    def seeded(x: hf.Tensor):
        hf.random.seed(3)
        return x * hf.random.uniform(())

    check(seeded, [1.0])


def test_errors():
    with pytest.raises(ArgumentError, match="order=5 is not one of 1, 2, 3, 4"):
        check(hf.sin, [1.0], 5)
    with pytest.raises(ArgumentError, match="no argument is floating-point"):
        check(hf.abs, [3])
    with pytest.raises(ArgumentError, match="no result is floating-point"):
        check(hf.argmax, [tensor(1, 2)])

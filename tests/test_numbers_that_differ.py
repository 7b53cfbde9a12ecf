"""What notebooks/compile.md says that compiled functions cannot know of numbers: a test for each line, no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.backend.options import jaxlib_version

JOINS = jaxlib_version() < (0, 11)
"""Whether XLA's algebra joins what stands next to each other, as jaxlib 0.10's does."""


def both(fn: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """Return what a function gives eagerly, and compiled."""
    return fn(*args), hf.compile(fn)(*args)


def single(*numbers: float) -> Any:
    return hf.asarray(np.array(numbers, np.float32))


def test_a_square_that_is_subnormal_may_be_zero_and_compare_says_so() -> None:
    def positive(x: Any) -> Any:
        return x * x > 0

    x = single(1e-21)
    assert positive(x).tolist() == [True]
    report = hf.compare(positive, x)
    assert len(report.subnormals()) == 1
    assert "multiply" in str(report)
    assert "subnormal" in str(report)
    assert not hf.compare(positive, single(1e-3)).subnormals()


def test_a_power_that_is_subnormal_may_be_zero_and_compare_says_so() -> None:
    def log_of_power(a: Any, b: Any) -> Any:
        return hf.log(a**b)

    x, y = single(-3.4e38, 3.4e38), single(-1.0, -1.0)
    np.testing.assert_allclose(log_of_power(x, y).numpy(), [np.nan, -88.722], rtol=1e-5)
    assert "power" in hf.compare(log_of_power, x, y, repeats=2).subnormals()[0]
    for one in both(log_of_power, single(-2.0, 2.0, -0.5, 1e30), single(-1.0, 3.0, 3.0, 2.0)):
        np.testing.assert_allclose(one.numpy(), [np.nan, math.log(8.0), np.nan, np.inf], rtol=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_ordering_sees_subnormals_as_they_are(seed: int) -> None:
    numbers = np.random.default_rng(seed).permutation(np.arange(9)).astype(np.float32) * np.float32(1e-40)

    def fn(x: Any) -> Any:
        return hf.sort(x), hf.argsort(x), hf.argmax(x), hf.argmin(x), hf.searchsorted(hf.sort(x), x)

    eager, compiled = both(fn, hf.asarray(numbers))
    order = np.argsort(numbers)
    expected = numbers[order], order, numbers.argmax(), numbers.argmin(), np.searchsorted(numbers[order], numbers)
    for found, again, right in zip(eager, compiled, expected, strict=True):
        np.testing.assert_array_equal(found.numpy(), right)
        np.testing.assert_array_equal(again.numpy(), right)


@pytest.mark.parametrize("size", [8, 100, 3000])
def test_a_sum_that_passes_the_largest_number_on_its_way_is_no_other_number(size: int) -> None:
    half = size // 2
    x = single(*[3e38] * half, *[-3e38] * half)
    for total in both(hf.sum, x):
        assert not math.isfinite(total.item()) or abs(total.item()) <= size * float(np.spacing(np.float32(3e38)))


def test_a_product_and_a_sum_may_be_fused() -> None:
    a, c = 1 + 2.0**-12, -(1 + 2.0**-11)  # a * a is 1 + 2**-11 + 2**-24, of which a float32 keeps all but the last
    eager, compiled = both(lambda a, c: a * a + c, single(a), single(c))
    assert eager.tolist() == [0.0]
    assert compiled.tolist() in ([0.0], [2.0**-24])


JOINED: list[tuple[Callable[[Any], Any], float, float, float]] = [
    (lambda x: (x + 1e8) - 1e8, 1.0, 0.0, 1.0),
    (lambda x: hf.log(hf.exp(x)), 100.0, math.inf, 100.0),
    (lambda x: hf.sqrt(x * x), float(np.float32(1e30)), math.inf, float(np.float32(1e30))),
    (lambda x: hf.exp(x) * hf.exp(20.0 - x), 95.0, math.inf, math.exp(20.0)),
]
"""Functions, a number, what eager code gives where it rounds each step, and what it is without rounding."""


@pytest.mark.parametrize(("fn", "number", "rounded", "exact"), JOINED, ids=["constants", "log", "sqrt", "exp"])
def test_what_is_joined_is_what_it_is_without_rounding(
    fn: Callable[[Any], Any], number: float, rounded: float, exact: float
) -> None:
    eager, compiled = both(fn, single(number))
    assert eager.item() == rounded
    if JOINS:
        assert compiled.item() == pytest.approx(exact, rel=1e-5)
    else:
        np.testing.assert_array_equal(compiled.numpy(), eager.numpy())


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_kernels_with_infinities_give_the_inputs_gradient_nan_or_the_same(stride: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(2, 2, 3, 3)).astype(np.float32)

    def slope(x: Any, kernel: Any) -> Any:
        return hf.grad(lambda x: hf.sum(hf.nn.conv(x, kernel, stride=stride, padding=1)))(x)

    x = hf.asarray(rng.normal(size=(1, 2, 4, 4)).astype(np.float32))
    eager, compiled = both(slope, x, hf.asarray(kernel))
    np.testing.assert_allclose(compiled.numpy(), eager.numpy(), rtol=1e-5, atol=1e-5)
    kernel[0, 0, 0, 0], kernel[1, 1, 2, 1] = np.inf, np.nan
    eager, compiled = (y.numpy() for y in both(slope, x, hf.asarray(kernel)))
    assert np.isnan(compiled[np.isnan(eager)]).all()
    told = ~np.isnan(compiled)
    np.testing.assert_allclose(compiled[told], eager[told], rtol=1e-5, atol=1e-5)


def raises(x: Any, count: Any, log: list[int]) -> Any:
    count.assign_add(1.0)
    log.append(1)
    drawn = hf.random.normal(())
    if not log:
        return drawn
    raise KeyError("no")


def asserts(x: Any, count: Any, log: list[int]) -> Any:
    count.assign_add(1.0)
    log.append(1)
    drawn = hf.random.normal(())
    assert x > 0, "positive"
    log.append(2)
    return drawn


def raises_in_a_branch(x: Any, count: Any, log: list[int]) -> Any:
    count.assign_add(1.0)
    log.append(1)
    drawn = hf.random.normal(())
    if x < 0:
        raise KeyError("negative")
    log.append(2)
    return drawn


def has_no_such_shape(x: Any, count: Any, log: list[int]) -> Any:
    count.assign_add(1.0)
    log.append(1)
    drawn = hf.random.normal((2,)) @ hf.ones((3,))
    log.append(2)
    return drawn * x


def test_complex_quotients_with_zeros_and_infinities_have_other_parts_that_are_not_finite() -> None:
    for z in (0j, complex(-0.0, 0.0), complex(np.inf, 0)):
        x = hf.asarray(z, dtype="complex64")
        eager, compiled = hf.reciprocal(x).item(), hf.compile(hf.reciprocal)(x).item()
        assert str(eager) != str(compiled)
        assert np.isfinite(eager) == np.isfinite(compiled)
        assert hf.compare(hf.reciprocal, x, repeats=1).same


def test_complex_powers_of_infinities_have_other_parts_that_are_not_finite() -> None:
    x, y = hf.asarray([complex(np.inf, 1), 2 + 3j], dtype="complex64")
    eager, compiled = hf.pow(x, y).item(), hf.compile(hf.pow)(x, y).item()
    assert str(eager) != str(compiled)
    assert not np.isfinite(eager)
    assert not np.isfinite(compiled)
    assert hf.compare(hf.pow, x, y, repeats=1).same


@pytest.mark.parametrize("fn", [raises, asserts, raises_in_a_branch, has_no_such_shape])
def test_a_call_that_fails_writes_no_variable_and_draws_nothing(fn: Callable[..., Any]) -> None:
    x = hf.asarray(-1.0)

    def state_after(run: Callable[..., Any], count: Any, log: list[int]) -> tuple[float, int, float]:
        hf.random.seed(0)
        for _ in range(2):
            with pytest.raises((KeyError, AssertionError, ValueError)):
                run(x).numpy()
        return count.item(), len(log), hf.random.normal(()).item()

    hf.random.seed(0)
    first, _, third = (hf.random.normal(()).item() for _ in range(3))
    count, log = hf.Variable(0.0), list[int]()
    assert state_after(lambda x: fn(x, count, log), count, log) == (2.0, 2, third)
    count, log = hf.Variable(0.0), list[int]()
    assert state_after(hf.compile(lambda x: fn(x, count, log)), count, log) == (0.0, 2, first)

"""`hf.optimize.root` and `minimize` against SciPy's and closed forms, with implicit gradients, in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize

import hybridflow as hf
from hybridflow.core.errors import TraceError

ORDERS = [lambda a: a**0.5, lambda a: a**-0.5 / 2, lambda a: a**-1.5 / -4, lambda a: a**-2.5 * 3 / 8]
"""The square root and its derivatives."""


def f64(x: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(x, np.float64))


def ways(function: Any) -> tuple[Any, ...]:
    return function, hf.compile(function)


def root_of_square(a: Any) -> Any:
    return hf.optimize.root(lambda x: x * x - a, f64(1.0)).x


def lowest_cube(a: Any) -> Any:
    return hf.optimize.minimize(lambda x: x**3 / 3 - a * x, f64(1.0), tol=1e-9).x


@pytest.mark.parametrize("solved", [root_of_square, lowest_cube])
@pytest.mark.parametrize("order", range(4))
def test_derivatives_of_any_order(solved: Any, order: int) -> None:
    derivative = solved
    for _ in range(order):
        derivative = hf.grad(derivative)
    for way in ways(derivative):
        np.testing.assert_allclose(way(f64(2.5)), ORDERS[order](2.5), rtol=1e-7)


def rates(x: Any, feed: Any, cold: Any) -> Any:
    """A reactor's balances of mass and heat."""
    speed = feed["rate"] * hf.exp(-5.0 / x["heat"]) * x["mass"]
    return {"heat": x["heat"] - cold - 3.0 * speed, "mass": x["mass"] - 1.0 + speed}


def test_a_system_is_that_of_scipy_with_gradients_by_arguments_variables_and_what_is_around() -> None:
    rate, start = hf.Variable(f64(2.0)), {"heat": f64(1.0), "mass": f64(1.0)}

    def by_scipy(rate: float, cold: float) -> Any:
        def balances(x: Any) -> Any:
            speed = rate * np.exp(-5.0 / x[0]) * x[1]
            return [x[0] - cold - 3.0 * speed, x[1] - 1.0 + speed]

        return scipy.optimize.root(balances, [1.0, 1.0], tol=1e-13).x

    def heat(cold: Any) -> Any:
        result = hf.optimize.root(rates, start, ({"rate": rate}, cold))
        return result.x["heat"], result.x["mass"], result.success, result.fun["heat"]

    def gradients(cold: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(cold)
            value = heat(cold)[0]
        return tape.gradient(value, [rate, cold])

    step = 1e-5
    expected = [
        (by_scipy(2.0 + step, 1.0)[0] - by_scipy(2.0 - step, 1.0)[0]) / (2 * step),
        (by_scipy(2.0, 1.0 + step)[0] - by_scipy(2.0, 1.0 - step)[0]) / (2 * step),
    ]
    for way in ways(heat):
        *found, success, left = way(f64(1.0))
        assert bool(success)
        assert abs(float(left)) < 1e-12
        np.testing.assert_allclose(found, by_scipy(2.0, 1.0), rtol=1e-9)
    for way in ways(gradients):
        np.testing.assert_allclose(way(f64(1.0)), expected, rtol=1e-6)


def test_forward_mode_and_slices() -> None:
    values = f64([0.5, 2.0, 9.0])
    for way in ways(lambda a: hf.jvp(root_of_square, (a,), (f64(1.0),))):
        np.testing.assert_allclose(way(f64(4.0)), [2.0, 0.25])
    for way in ways(hf.vmap(hf.value_and_grad(root_of_square))):
        np.testing.assert_allclose(way(values), [ORDERS[0](values.numpy()), ORDERS[1](values.numpy())])
    for way in ways(hf.vmap(lowest_cube)):
        np.testing.assert_allclose(way(values), ORDERS[0](values.numpy()), rtol=1e-7)


def valley(x: Any, a: Any = 1.0) -> Any:
    return hf.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (a - x[:-1]) ** 2)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_valley_and_its_inverse_hessian_are_those_of_scipy(dtype: str) -> None:
    start = np.array([1.3, 0.7, 0.8, 1.9, 1.2])
    expected = scipy.optimize.minimize(scipy.optimize.rosen, start, jac=scipy.optimize.rosen_der)
    for way in ways(lambda x: hf.optimize.minimize(valley, x)):
        found = way(hf.asarray(start, dtype=dtype))
        assert bool(found.success)
        assert int(found.nit) < 60
        np.testing.assert_allclose(found.x, expected.x, rtol=1e-5)
        exact = np.linalg.inv(scipy.optimize.rosen_hess(np.ones(5)))
        np.testing.assert_allclose(found.hess_inv, exact, rtol=0.1)
        assert float(hf.max(hf.abs(found.jac))) < {"float32": 1e-3, "float64": 1e-5}[dtype]


def test_gradients_of_a_fit_are_finite_differences() -> None:
    rng = np.random.default_rng(0)
    x, y = f64(rng.normal(size=(20, 2))), f64(rng.integers(0, 2, 20))

    def fit(penalty: Any, x: Any) -> Any:
        def loss(parts: Any) -> Any:
            logits = x @ parts["w"] + parts["b"]
            return hf.mean(hf.nn.softplus(logits) - y * logits) + penalty * hf.sum(parts["w"] ** 2)

        found = hf.optimize.minimize(loss, {"w": f64([0.0, 0.0]), "b": f64(0.0)}, tol=1e-9)
        return hf.sum(found.x["w"] ** 3) + found.x["b"] * found.fun

    given = f64(0.1), x
    for order in (1, 2):
        hf.testing.check_gradients(fit, given, order=order)
    hf.testing.assert_same(hf.grad(fit, argnums=(0, 1)), *given)


def test_what_fails_says_so_and_has_no_gradient() -> None:
    def rootless(a: Any) -> Any:
        found = hf.optimize.root(lambda x: x * x + a, f64(1.0), maxiter=20)
        return found.x, found.success

    def bottomless(a: Any) -> Any:
        found = hf.optimize.minimize(lambda x: a * x, f64(1.0), maxiter=20)
        return found.x, found.success

    def singular(a: Any) -> Any:
        found = hf.optimize.root(lambda x: hf.stack([x[0] + x[1], x[0] + x[1]]) - a, f64([1.0, 2.0]))
        return found.x[0], found.success

    for function in (rootless, bottomless, singular):
        for way in ways(function):
            assert not bool(way(f64(1.0))[1])
        for way in ways(hf.grad(lambda a, function=function: function(a)[0])):
            assert np.isnan(float(way(f64(1.0))))


def test_checks_hold_at_the_result_and_variables_stay() -> None:
    step = hf.Variable(1.0)

    def checked(a: Any) -> Any:
        def equation(x: Any) -> Any:
            hf.debugging.check(x < 2.0, "too large")
            return x * x - a

        return hf.optimize.root(equation, 1.0).x

    def counted(a: Any) -> Any:
        def equation(x: Any) -> Any:
            step.assign_add(1.0)
            return x * x - a

        return hf.optimize.root(equation, 1.0).x

    for way in ways(checked):
        assert float(way(hf.asarray(2.25))) == 1.5
        with pytest.raises(AssertionError, match="too large"):
            way(hf.asarray(9.0)).numpy()
    for way in ways(counted):
        with pytest.raises(TraceError, match="root: the function assigns Variable"):
            way(hf.asarray(2.0))
    assert float(step) == 1.0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: hf.optimize.root(lambda x: x, []), "root: x0 is empty"),
        (lambda: hf.optimize.root(lambda x: x, 1j), "does not take complex64"),
        (lambda: hf.optimize.root(lambda x: x, 1.0, maxiter=0), "root: maxiter=0 is no number of steps"),
        (lambda: hf.optimize.root(lambda x: (x, x), 1.0), "root: the value is "),
        (lambda: hf.optimize.root(lambda x: hf.stack([x, x]), 1.0), r"root: the value has shape \(2,\), the x \(\)"),
        (lambda: hf.optimize.root(lambda x: x.astype("float64"), 1.0), "root: the value is float64, the x float32"),
        (lambda: hf.optimize.minimize(lambda x: x, hf.ones(2)), r"minimize: the value has shape \(2,\), the number"),
        (lambda: hf.optimize.minimize(lambda x: x, 1.0, maxiter=1.5), "minimize: maxiter=1.5 is no number of steps"),
        (lambda: hf.optimize.minimize(lambda x: x, 1.0, method="CG"), "minimize: method='CG' is not one of"),
    ],
)
def test_errors(call: Any, text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        call()

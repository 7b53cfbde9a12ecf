"""`hf.integrate.odeint` against SciPy's solver and closed forms, with gradients, in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import hybridflow as hf

TIMES = np.array([0.0, 0.5, 1.0, 3.0])


def f64(x: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(x, np.float64))


def ways(function: Any) -> tuple[Any, ...]:
    return function, hf.compile(function)


def pendulum(y: Any, t: Any, rub: Any = 0.1) -> Any:
    return {"angle": y["speed"], "speed": -hf.sin(y["angle"]) - rub * y["speed"] + 0.1 * hf.cos(t)}


@pytest.mark.parametrize("times", [TIMES, -TIMES], ids=["forward", "backward"])
def test_a_pendulum_is_that_of_scipy(times: Any) -> None:
    def slope(t: float, y: Any) -> Any:
        return [y[1], -np.sin(y[0]) - 0.1 * y[1] + 0.1 * np.cos(t)]

    expected = solve_ivp(slope, (0, times[-1]), [1.0, 0.2], t_eval=times, rtol=1e-10, atol=1e-12, method="DOP853").y

    def run(angle: Any) -> Any:
        start = {"angle": angle, "speed": f64(0.2)}
        return hf.integrate.odeint(pendulum, start, f64(times), rtol=1e-9, atol=1e-11)

    for way in ways(run):
        found = way(f64(1.0))
        np.testing.assert_allclose([found["angle"], found["speed"]], expected, rtol=1e-7)


def test_gradients_to_the_second_order_and_by_times() -> None:
    def at_end(k: Any, y: Any, t: Any) -> Any:
        return hf.integrate.odeint(lambda y, t, k: -k * y, y, t, (k,), rtol=1e-9, atol=1e-12)[-1]

    given = f64(0.7), f64(2.0), f64([0.0, 1.0, 3.0])
    end = np.exp(-2.1)
    for way in ways(hf.grad(at_end, argnums=(0, 1, 2))):
        k, y, t = way(*given)
        np.testing.assert_allclose([k, y], [-6 * end, end], rtol=1e-7)
        np.testing.assert_allclose(t, [1.4 * end, 0.0, -1.4 * end], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(hf.grad(hf.grad(at_end))(*given).numpy(), 18 * end, rtol=1e-7)


def test_steps_that_do_not_suffice_and_other_errors() -> None:
    def endless(y: Any) -> Any:
        return hf.integrate.odeint(lambda y, t: y * y, y, [0.0, 2.0], mxstep=50)

    for way in ways(endless):
        with pytest.raises(AssertionError, match="odeint: 50 steps between two times do not suffice"):
            way(hf.asarray(1.0)).numpy()
    for call, text in (
        (lambda: hf.integrate.odeint(lambda y, t: y, 1.0, 2.0), r"odeint: times of shape \(\)"),
        (lambda: hf.integrate.odeint(lambda y, t: y, 1.0, [0.0, 1.0], mxstep=0), "mxstep=0 is no number of steps"),
        (lambda: hf.integrate.odeint(lambda y, t: hf.stack([y, y]), 1.0, [0.0, 1.0]), r"the slope has shape \(2,\)"),
        (lambda: hf.integrate.odeint(lambda y, t: (y, y), 1.0, [0.0, 1.0]), "odeint: the slope is "),
        (lambda: hf.integrate.odeint(lambda y, t: y.astype("float64"), 1.0, [0.0, 1.0]), "the slope is float64"),
        (lambda: hf.integrate.odeint(lambda y, t: y, 1j, [0.0, 1.0]), "does not take complex64"),
    ):
        with pytest.raises((ValueError, TypeError), match=text):
            call()

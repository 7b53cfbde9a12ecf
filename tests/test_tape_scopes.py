"""Tapes and the bodies of traced branches and loops: what may be asked where, and what is refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.core.errors import TapeError, TapeStateError


def test_a_body_can_ask_what_was_recorded_around_it():
    v = hf.Variable(5.0)

    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            h = x * x
            y = h * v
        return hf.cond(x > 0, lambda: tape.gradient(y, [x, v, h]), lambda: [x, x, x])

    assert [g.item() for g in both(f, hf.asarray(3.0))] == [30.0, 9.0, 5.0]
    assert [g.item() for g in both(f, hf.asarray(-3.0))] == [-3.0, -3.0, -3.0]


def test_a_jacobian_by_a_scan_over_pullbacks():
    def program(n: Any):
        return lambda x: n.tanh(x * x[0]) + n.sum(x * x)

    def f(x: hf.Tensor):
        value, pullback = hf.vjp(program(hf), x)
        return value, hf.scan(lambda c, g: (c, pullback(g)[0]), (), hf.eye(3, dtype=x.dtype))[1]

    x = np.array([0.3, -0.7, 1.1])
    value, jacobian = both(f, hf.asarray(x), rtol=1e-12)
    with jax.enable_x64(True):
        close(jacobian, np.asarray(jax.jit(jax.jacobian(program(jnp)))(x)), rtol=1e-11)
    assert value.shape == (3,)


def test_a_body_in_a_body_can_ask_too():
    def f(x: hf.Tensor):
        _, pullback = hf.vjp(hf.sin, x)

        def step(c: hf.Tensor, g: hf.Tensor):
            return c + hf.cond(g > 0, lambda: pullback(g)[0], lambda: g), None

        return hf.scan(step, hf.asarray(0.0), tensor(1, -1, 2))[0]

    close(both(f, hf.asarray(0.5)), np.array(3 * np.cos(0.5) - 1))


def test_what_a_body_asks_can_be_differentiated_again():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x**4
            g = hf.cond(x > 0, lambda: tape.gradient(y, x), lambda: x)
            (h,) = hf.while_loop(lambda t: t < 30.0, lambda t: (t + tape.gradient(y, x),), (g,), max_iterations=3)
        return g, tape.gradient(g, x), h

    # 4 x^3 at 1.5 is 13.5, its derivative 12 x^2 is 27; 13.5, 27, 40.5.
    assert [g.item() for g in both(f, hf.asarray(1.5))] == [13.5, 27.0, 40.5]


def test_output_gradients_of_a_body():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return hf.scan(lambda c, g: (c, tape.gradient(y, x, output_gradients=g * x)), (), hf.eye(2))[1]

    close(both(f, tensor(3, 4)), np.diag([18.0, 32.0]))


def test_what_a_body_made_is_not_connected_to_a_tape_that_has_ended():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
        return hf.cond(x > 0, lambda: tape.gradient(y * x, x, unconnected_gradients="zero"), lambda: x)

    assert both(f, hf.asarray(3.0)).item() == 0.0


def asks_about_the_body(tape: hf.GradientTape, x: hf.Tensor):
    return tape.gradient(x * x, x)


def stops(tape: hf.GradientTape, x: hf.Tensor):
    with tape.stop_recording():
        return x * x


def resets(tape: hf.GradientTape, x: hf.Tensor):
    tape.reset()
    return x * x


def watches(tape: hf.GradientTape, x: hf.Tensor):
    tape.watch(x)
    return x * x


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("body", [asks_about_the_body, stops, resets, watches])
def test_what_a_recording_tape_cannot_do_in_a_body(body: Any, persistent: bool):
    @hf.compile
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            return hf.cond(x > 0, lambda: body(tape, x), lambda: x)

    with pytest.raises(TapeError, match=r"cond_true") as caught:
        f(hf.asarray(3.0))
    assert isinstance(caught.value, RuntimeError)
    assert "same side" in str(caught.value)


def test_a_tape_that_does_not_record_cannot_be_stopped_in_a_body_either():
    def f(x: hf.Tensor):
        tape = hf.GradientTape()
        return hf.cond(x > 0, lambda: stops(tape, x), lambda: x)

    for run in (f, hf.compile(f)):
        with pytest.raises(TapeStateError):
            run(hf.asarray(3.0))


def test_tapes_may_begin_and_end_in_a_body():
    def f(x: hf.Tensor):
        tape = hf.GradientTape()

        def body():
            with tape:
                tape.watch(x)
                y = x * x * x
            return tape.gradient(y, x)

        return hf.cond(x > 0, body, lambda: x)

    assert both(f, hf.asarray(2.0)).item() == 12.0


def test_one_tape_for_many_traces():
    tape = hf.GradientTape(persistent=True)

    def f(x: hf.Tensor):
        with tape:
            tape.watch(x)
            y = hf.sum(x * x)
        return tape.gradient(y, x)

    fast = hf.compile(f)
    for size in (1, 2, 3):
        x = hf.asarray(np.ones(size, np.float32))
        close(fast(x), np.full(size, 2.0))
        close(f(x), np.full(size, 2.0))
        tape.reset()

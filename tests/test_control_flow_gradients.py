"""Gradients through `hf.cond`, `hf.scan` and `hf.while_loop`: eager, compiled inside and outside, against jax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import GradientError

W = np.array([[0.5, 0.1], [-0.3, 0.6]])
XS = np.linspace(-1, 1, 8).reshape(4, 2)


class Jax:
    """The same programs on jax."""

    sum, tanh, sin, exp, max = jnp.sum, jnp.tanh, jnp.sin, jnp.exp, jnp.max
    cond = staticmethod(lambda p, t, f, *xs: jax.lax.cond(p, t, f, *xs))
    scan = staticmethod(jax.lax.scan)

    @staticmethod
    def while_loop(cond: Any, body: Any, state: Any, max_iterations: int) -> Any:
        def step(state: Any, _: Any) -> Any:
            return jax.lax.cond(cond(*state), lambda s: body(*s), lambda s: s, state), None

        return jax.lax.scan(step, tuple(state), None, length=max_iterations)[0]


# Programs of (namespace, w: (2, 2), xs: (n, 2)) to a scalar.


def branch(n: Any, w: Any, xs: Any) -> Any:
    y = n.tanh(xs @ w)
    return n.cond(n.sum(xs) > 0, lambda: n.sum(y * y), lambda: n.sum(n.sin(y)) * w[0, 0])


def branch_operands(n: Any, w: Any, xs: Any) -> Any:
    a, b = n.cond(n.sum(xs) > 0, lambda p, q: (p * q, q), lambda p, q: (q, n.exp(p)), w[0], xs[0])
    return n.sum(a * 3.0 + b * b)


def unused_branch(n: Any, w: Any, xs: Any) -> Any:
    return n.cond(n.sum(xs) > 0, lambda: n.sum(xs), lambda: n.sum(w)) + n.sum(w) * 0.5


def recurrent(n: Any, w: Any, xs: Any) -> Any:
    h, ys = n.scan(lambda h, x: ((h2 := n.tanh(w @ h + x)), n.sum(h2 * h)), xs[0], xs)
    return n.sum(h) + n.sum(ys**2)


def scan_of_structures(n: Any, w: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        a, rest = carry["a"], carry["rest"]
        a = n.sin(a * x["u"]) + rest[0]
        return {"a": a, "rest": (rest[0] * 0.5 + x["v"],)}, {"y": a * w[0], "z": rest[0]}

    carry, ys = n.scan(step, {"a": w[1], "rest": (w[0],)}, {"u": xs, "v": xs * 2.0})
    return n.sum(carry["a"]) + n.sum(ys["y"] ** 2) + n.sum(ys["z"])


def only_ys(n: Any, w: Any, xs: Any) -> Any:
    return n.sum(n.scan(lambda h, x: (h * 0.5 + x, n.tanh(h) * w[0]), w[1], xs)[1])


def only_carry(n: Any, w: Any, xs: Any) -> Any:
    return n.sum(n.scan(lambda h, x: (h * x + w[0], n.exp(h)), w[1], xs)[0])


def scan_without_inputs(n: Any, w: Any, xs: Any) -> Any:
    return n.sum(n.scan(lambda h, x: (n.sin(h) * w[0], None), w[1], xs * 0.0)[0])


def integer_carry(n: Any, w: Any, xs: Any) -> Any:
    def step(carry: Any, x: Any) -> Any:
        i, h = carry
        return (i + 1, h * x * (i + 1)), i * h

    (_, h), ys = n.scan(step, (0, w[0]), xs)
    return n.sum(h) + n.sum(ys)


def cond_in_scan(n: Any, w: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = n.cond(n.sum(x) > 0, lambda h: n.tanh(w @ h) + x, lambda h: h * w[0], h)
        return h, h * x

    h, ys = n.scan(step, xs[0], xs)
    return n.sum(h * h) + n.sum(ys)


def scan_in_cond_in_scan(n: Any, w: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        def inner(h: Any) -> Any:
            return n.scan(lambda c, t: (n.tanh(c * t + w[0]), None), h, xs)[0]

        return n.cond(n.sum(x * h) > 0, inner, lambda h: h * x[0] + w[1], h), None

    return n.sum(n.scan(step, xs[3], xs)[0] ** 2)


def scan_in_scan(n: Any, w: Any, xs: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        inner, ys = n.scan(lambda c, t: (n.sin(c + t * x[0]), c * w[1, 1]), h, xs)
        return inner * w[0], n.sum(ys)

    h, ys = n.scan(step, w[1], xs)
    return n.sum(h) + n.sum(ys)


def loop(n: Any, w: Any, xs: Any) -> Any:
    _, h = n.while_loop(
        lambda i, h: n.sum(h * h) < 4.0, lambda i, h: (i + 1, h * 1.5 + w[0] * 0.1 * i), (0, xs[1]), max_iterations=9
    )
    return n.sum(h) * 2.0


def loop_without_a_trip(n: Any, w: Any, xs: Any) -> Any:
    (h,) = n.while_loop(lambda h: n.sum(h * h) < -1.0, lambda h: (h * w[0],), (w[1] * xs[0],), max_iterations=3)
    return n.sum(h**2)


def nested_loops(n: Any, w: Any, xs: Any) -> Any:
    def outer(i: Any, h: Any) -> Any:
        _, h = n.while_loop(
            lambda j, h: j < i, lambda j, h: (j + 1, n.tanh(w @ h) + xs[0]), (0, h), max_iterations=4
        )
        return i + 1, h

    return n.sum(n.while_loop(lambda i, h: i < 3, outer, (0, xs[1]), max_iterations=4)[1])


PROGRAMS: list[Callable[[Any, Any, Any], Any]] = [
    branch, branch_operands, unused_branch, recurrent, scan_of_structures, only_ys, only_carry, scan_without_inputs,
    integer_carry, cond_in_scan, scan_in_cond_in_scan, scan_in_scan, loop, loop_without_a_trip, nested_loops,
]


def name(program: Any) -> str:
    return program.__name__


def value_and_gradient(program: Any) -> Any:
    def f(w: hf.Tensor, xs: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([w, xs])
            y = program(hf, w, xs)
        return y, tape.gradient(y, [w, xs], unconnected_gradients="zero")

    return f


@functools.cache
def by_jax(program: Any, sign: float = 1.0) -> Any:
    with jax.enable_x64(True):
        value, gradients = jax.jit(jax.value_and_grad(lambda w, xs: program(Jax, w, xs), (0, 1)))(W, XS + 0.1 * sign)
        return np.asarray(value), [np.asarray(g) for g in gradients]


@pytest.mark.parametrize(
    ("program", "sign"),
    [*[(one, 1.0) for one in PROGRAMS], *[(one, -1.0) for one in PROGRAMS if "branch" in name(one)]],
)
def test_a_tape_inside(program: Any, sign: float):
    xs = XS + 0.1 * sign
    found = both(value_and_gradient(program), hf.asarray(W), hf.asarray(xs), rtol=1e-11)
    close(found, by_jax(program, sign), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_a_tape_outside(program: Any):
    compiled = hf.compile(lambda w, xs: program(hf, w, xs))
    w, xs = hf.asarray(W), hf.asarray(XS + 0.1)
    with hf.GradientTape() as tape:
        tape.watch([w, xs])
        y = compiled(w, xs)
    found = y, tape.gradient(y, [w, xs], unconnected_gradients="zero")
    close(found, by_jax(program), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("program", [branch, recurrent, scan_of_structures, cond_in_scan, loop], ids=name)
def test_second_order(program: Any):
    def f(w: hf.Tensor, xs: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch([w, xs])
            with hf.GradientTape() as inner:
                inner.watch([w, xs])
                y = program(hf, w, xs)
            g, gx = inner.gradient(y, [w, xs])
            total = hf.sum(hf.sin(g)) + hf.sum(gx * gx)
        return g, outer.gradient(total, [w, xs], unconnected_gradients="zero")

    def of_jax(w: Any, xs: Any):
        g, gx = jax.grad(lambda w, xs: program(Jax, w, xs), (0, 1))(w, xs)
        return jnp.sum(jnp.sin(g)) + jnp.sum(gx * gx)

    xs = XS + 0.1
    with jax.enable_x64(True):
        expected = [np.asarray(g) for g in jax.jit(jax.grad(of_jax, (0, 1)))(W, xs)]
    g, found = both(f, hf.asarray(W), hf.asarray(xs), rtol=1e-9)
    close(found, expected, rtol=1e-8, atol=1e-10)
    close(g, by_jax(program)[1][0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("program", [branch, recurrent], ids=name)
def test_second_order_of_a_tape_outside(program: Any):
    compiled = hf.compile(lambda w, xs: program(hf, w, xs))

    def second(function: Any) -> Any:
        w, xs = hf.asarray(W), hf.asarray(XS + 0.1)
        with hf.GradientTape() as outer:
            outer.watch(w)
            with hf.GradientTape() as inner:
                inner.watch(w)
                y = function(w, xs)
            g = inner.gradient(y, w)
            total = hf.sum(hf.sin(g))
        return g, outer.gradient(total, w)

    same(second(lambda w, xs: program(hf, w, xs)), second(compiled), rtol=1e-10)


@pytest.mark.parametrize("program", [branch_operands, scan_in_cond_in_scan, loop], ids=name)
def test_grad_functions(program: Any):
    w, xs = hf.asarray(W), hf.asarray(XS + 0.1)
    found = hf.compile(hf.grad(lambda w, xs: program(hf, w, xs), (0, 1)))(w, xs)
    close(list(found), by_jax(program)[1], rtol=1e-10, atol=1e-12)


# -- Variables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_captured_variables(where: str):
    w, b, aside = hf.Variable(W, name="w"), hf.Variable(np.array([0.1, -0.1]), name="b"), hf.Variable(1.0)

    def program(xs: hf.Tensor):
        def step(h: hf.Tensor, x: hf.Tensor):
            h = hf.tanh(w @ h + x)
            return hf.cond(hf.sum(h) > 0, lambda: h + b, lambda: h * 2.0), h

        h, ys = hf.scan(step, xs[0], xs)
        return hf.sum(h) + hf.sum(ys * ys)

    def run(xs: hf.Tensor, program: Any = program):
        with hf.GradientTape() as tape:
            tape.watch(xs)
            y = program(xs)
        return tape.gradient(y, [xs, w, b, aside])

    xs = hf.asarray(XS)
    eager = run(xs)
    compiled = hf.compile(lambda xs: run(xs))(xs) if where == "inside" else run(xs, hf.compile(program))
    same(eager, compiled, rtol=1e-11)
    assert eager[3] is None


def test_a_training_step_with_a_scan():
    def step(w: hf.Variable, xs: hf.Tensor):
        with hf.GradientTape() as tape:
            h, _ = hf.scan(lambda h, x: (hf.tanh(w @ h + x), None), xs[0], xs)
            loss = hf.sum((h - 1.0) ** 2)
        w.assign_sub(tape.gradient(loss, w) * 0.1)
        return loss

    eager, compiled = hf.Variable(W), hf.Variable(W)
    fast = hf.compile(step)
    for _ in range(4):
        same(step(eager, hf.asarray(XS)), fast(compiled, hf.asarray(XS)), rtol=1e-11)
    close(eager.numpy(), compiled.numpy(), rtol=1e-11)


# -- what is inside a body is not what is around it ---------------------------------------------------------------


def test_a_tape_in_a_body_knows_the_carry_from_what_it_began_with():
    def f(x: hf.Tensor):
        def step(c: hf.Tensor, t: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(c)
                y = c * c * t * x  # x is where the carry began
            return tape.gradient(y, c), y

        return hf.scan(step, x, hf.asarray([1.0, 2.0]))

    last, ys = both(f, hf.asarray(0.5))
    assert last.item() == 1.0
    assert ys.tolist() == [0.125, 0.25]


def test_a_tape_around_tapes_in_a_body():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)

            def step(c: hf.Tensor, t: hf.Tensor):
                with hf.GradientTape() as tape:
                    tape.watch(c)
                    y = hf.sin(c) * t * x
                return tape.gradient(y, c), y

            c, ys = hf.scan(step, x, hf.asarray([1.0, 2.0, 3.0]))
            z = hf.sum(ys) + c
        return z, outer.gradient(z, x)

    def by_jax(x: Any):
        def step(c: Any, t: Any):
            return jax.grad(lambda c: jnp.sin(c) * t * x)(c), jnp.sin(c) * t * x

        c, ys = jax.lax.scan(step, x, jnp.float32([1, 2, 3]))
        return jnp.sum(ys) + c

    close(both(f, hf.asarray(0.5)), jax.value_and_grad(by_jax)(jnp.float32(0.5)))


@pytest.mark.parametrize("kind", ["cond", "while", "bounded while"])
def test_operands_and_results_are_tensors_of_their_own(kind: str):
    def f(x: hf.Tensor):
        def body(c: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(c)
                y = c * x
            return tape.gradient(y, c) * c

        if kind == "cond":
            y = hf.cond(x > 0, body, lambda c: c, x)
            same = hf.cond(x > 0, lambda: x, lambda: -x)
        else:
            bound = 3 if "bounded" in kind else None
            (y,) = hf.while_loop(lambda c: c < 10.0, lambda c: (body(c),), (x,), max_iterations=bound)
            (same,) = hf.while_loop(lambda c: c < 0.0, lambda c: (c,), (x,), max_iterations=bound)
        with hf.GradientTape() as tape:
            tape.watch(same)
            z = same * x
        return y, tape.gradient(z, same)

    y, g = both(f, hf.asarray(4.0))
    assert (y.item(), g.item()) == (16.0, 4.0)


def test_a_carry_that_a_step_replaces_by_something_around_it():
    def f(x: hf.Tensor):
        def step(c: hf.Tensor, t: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(c)
                y = c * x * t
            return x, tape.gradient(y, c)

        return hf.scan(step, x * 2.0, hf.asarray([1.0, 1.0]))[1]

    assert both(f, hf.asarray(3.0)).tolist() == [3.0, 3.0]


# -- edges --------------------------------------------------------------------------------------------------------


def test_a_scan_of_no_steps():
    def f(c: hf.Tensor, w: hf.Tensor, xs: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([c, w, xs])
            last, ys = hf.scan(lambda c, x: (c * w + x, c * x), c, xs)
            y = hf.sum(last * 3.0) + hf.sum(ys)
        return tape.gradient(y, [c, w, xs], unconnected_gradients="zero")

    c, w, xs = both(f, hf.asarray(2.0), hf.asarray(5.0), hf.asarray(np.zeros((0,), np.float32)))
    assert (c.item(), w.item(), xs.shape) == (3.0, 0.0, (0,))


def test_outputs_that_are_integers_have_none():
    def f(xs: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            (i, total), ys = hf.scan(lambda c, x: ((c[0] + 1, c[1] + x), hf.argmax(hf.stack([x, c[1]]))), (0, 0.0), xs)
            n = hf.cond(total > 0, lambda: 1, lambda: 2)
        return [tape.gradient(t, xs) for t in (i, ys, n, total)]

    i, ys, n, total = both(f, tensor(1, 2, 3))
    assert i is ys is n is None
    close(total, np.ones(3))


def test_a_stopped_path_in_a_body():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y, _ = hf.scan(lambda c, t: (c * hf.stop_gradient(x) + t, None), x, tensor(1, 2))
        return tape.gradient(y, x)

    # ((x s + 1) s + 2) with s constant: s^2.
    assert both(f, hf.asarray(3.0)).item() == 9.0


def test_a_branch_that_uses_nothing_watched():
    def f(x: hf.Tensor, p: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.cond(p, lambda: x * 2.0, lambda: 5.0)
        return tape.gradient(y, x, unconnected_gradients="zero")

    assert both(f, hf.asarray(3.0), hf.asarray(True)).item() == 2.0
    assert both(f, hf.asarray(3.0), hf.asarray(False)).item() == 0.0


def test_a_division_by_zero_in_the_branch_not_taken_does_not_poison():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.cond(x > 0, lambda: 1.0 / x + hf.sqrt(x), lambda: x * 3.0)
        return y, tape.gradient(y, x)

    y, g = both(f, hf.asarray(0.0))
    assert (y.item(), g.item()) == (0.0, 3.0)


def test_steps_after_the_condition_failed_do_not_poison():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            (y,) = hf.while_loop(lambda y: y > 0.5, hf.log, (x,), max_iterations=8)
        return y, tape.gradient(y, x)

    close(both(f, hf.asarray(1.5)), (np.array(np.log(1.5)), np.array(1 / 1.5)))


def test_the_number_of_trips_may_depend_on_the_source():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            _, y = hf.while_loop(lambda i, y: y < 100.0, lambda i, y: (i + 1, y * x), (0, x), max_iterations=20)
        return y, tape.gradient(y, x)

    fast = hf.compile(f)
    for x in (2.0, 3.0, 10.0, 200.0):
        eager, compiled = f(hf.asarray(x)), fast(hf.asarray(x))
        same(eager, compiled)
        n = next(n for n in range(1, 20) if x**n >= 100)
        close(eager, (np.array(x**n), np.array(n * x ** (n - 1))))
    assert fast.trace_count == 1


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "complex64"])
def test_dtypes(dtype: str):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y, _ = hf.scan(lambda c, t: (c * x + t, None), x, hf.asarray([1, 2], dtype=dtype))
        return tape.gradient(y, x)

    found = both(f, hf.asarray(0.5, dtype=dtype), rtol=1e-2)
    assert str(found.dtype) == dtype
    np.testing.assert_allclose(np.asarray(found).astype(np.complex64), 3 * 0.25 + 1, rtol=1e-2)


def test_many_steps():
    n = 500

    def f(w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(w)
            h, ys = hf.scan(lambda h, x: (hf.tanh(w * h + x), h), hf.asarray(0.1), hf.full((n,), 0.1))
            y = h + hf.mean(ys)
        return y, tape.gradient(y, w)

    both(f, hf.asarray(0.7), rtol=3e-5)


# -- errors -------------------------------------------------------------------------------------------------------


def unbounded(x: hf.Tensor) -> Any:
    return hf.while_loop(lambda y: y < 10.0, lambda y: (y * x,), (x,))[0]


@pytest.mark.parametrize("where", ["inside", "outside"])
def test_a_loop_without_a_bound_says_what_to_pass(where: str):
    def f(x: hf.Tensor, program: Any = unbounded):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = program(x)
        return tape.gradient(y, x)

    run = hf.compile(lambda x: f(x)) if where == "inside" else lambda x: f(x, hf.compile(unbounded))
    with pytest.raises(GradientError, match="max_iterations") as caught:
        run(hf.asarray(2.0))
    assert isinstance(caught.value, RuntimeError)
    assert "while" in str(caught.value)


@pytest.mark.parametrize(
    ("start", "test", "step", "trips"),
    [(0, lambda i: i < 4, 1, 4), (0, lambda i: i <= 4, 2, 3), (9, lambda i: i > 1, -3, 3), (5, lambda i: i >= 5, -1, 1),
     (0, lambda i: i < 3, 1, 3), (7, lambda i: i < 4, 1, 0), (np.uint8(250), lambda i: i < 255, 1, 5)],
)
def test_a_loop_that_counts_needs_no_bound(start: Any, test: Any, step: int, trips: int):
    def loop(x: hf.Tensor):
        return hf.while_loop(lambda i, y: test(i), lambda i, y: (i + step, y * x), (hf.asarray(start), x))

    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            i, y = loop(x)
        return i, y, tape.gradient(y, x)

    i, y, g = both(f, hf.asarray(2.0))
    assert (i.item(), y.item(), g.item()) == (start + step * trips, 2.0 ** (trips + 1), (trips + 1) * 2.0**trips)
    assert [node.op.name for node in hf.compile(loop).graph(hf.asarray(2.0)).nodes].count("while") == 0


@pytest.mark.parametrize(
    ("start", "test", "step"),
    [(0, lambda i, n: i < n, 1), (0, lambda i, n: i < 4, -1), (np.uint8(3), lambda i, n: i <= 255, 1),
     (0, lambda i, n: hf.logical_and(i < 4, n > 0), 1), (0, lambda i, n: i != 4, 1)],
)
def test_a_loop_whose_count_is_not_known_stays_a_loop(start: Any, test: Any, step: int):
    def f(n: hf.Tensor):
        return hf.while_loop(lambda i: test(i, n), lambda i: i + step, (hf.asarray(start),))

    assert [node.op.name for node in hf.compile(f).graph(hf.asarray(3)).nodes].count("while") == 1


def test_a_loop_without_a_bound_has_gradients_in_eager_mode():
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = unbounded(x)
    assert tape.gradient(y, x).item() == 27.0


def test_a_loop_without_a_bound_beside_the_path_is_no_error():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            (n,) = hf.while_loop(lambda n: n < 5.0, lambda n: n * 2.0, (hf.asarray(1.0),))
            (m,) = hf.while_loop(lambda m: m < 5, lambda m: m + 2, (0,))
            stopped = hf.stop_gradient(unbounded(hf.stop_gradient(x)))
            y = x * n * stopped * m
        return tape.gradient(y, x)

    assert both(f, hf.asarray(3.0)).item() == 8.0 * 27.0 * 6

"""Variables assigned, and random numbers drawn, in branches and loops: as in plain Python, in both modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from modes import close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import IndexRangeError, TraceError

XS = np.float64([0.4, -0.7, 1.1])


def assigning_branch(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def yes():
        v.assign_add(x)
        return v * w

    def no():
        w.assign(v * x)
        return w - v

    y = n.cond(x > 0, yes, no)
    return y + v * w


def assigning_scan(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def step(c: hf.Tensor, t: hf.Tensor):
        before = v.read()
        v.assign(v * 0.5 + t * c)
        return c + v * w * before, v * x

    c, ys = n.scan(step, x, hf.asarray(XS))
    return c * v + hf.sum(ys)


def assigning_while(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def step(i: Any, c: hf.Tensor):
        w.assign_sub(v * 0.1)
        c = c + w * x
        v.assign(c * 0.3)
        return i + 1, c * v

    _, c = n.while_loop(lambda i, c: i < 3, step, (0, x))
    return c * v + w


def assigning_bounded_while(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def step(c: hf.Tensor):
        v.assign(v * 0.5 + c)
        return c + v * w * 0.1

    (c,) = n.while_loop(lambda c: c + hf.abs(v) < 4.0, step, (x,), max_iterations=6)
    return c * v + w


def assigning_condition(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    (c,) = n.while_loop(lambda c: v.assign_add(1.0) * 1.0 < 5.0, lambda c: (c * v * w,), (x,), max_iterations=8)
    return c + v * x


def nested(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def inner(c: hf.Tensor, t: hf.Tensor):
        def yes():
            v.assign(v * t + c)
            return c * v

        c = n.cond(c * t > 0, yes, lambda: c * 0.5 - w)
        n.cond(v > 0.5, lambda: w.assign_sub(t * 0.1).read(), lambda: w.read())
        return c, c * v

    def outer(i: Any, c: hf.Tensor):
        c, ys = n.scan(inner, c, hf.asarray(XS) * (i + 1.0))
        w.assign(w * 0.5 + hf.sum(ys))
        return i + 1, c * 0.5

    _, c = n.while_loop(lambda i, c: i < 2, outer, (0, x), max_iterations=4)
    return c + v * w


def only_written(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    def step(c: hf.Tensor, t: hf.Tensor):
        w.assign(c * t)
        return c + t, None

    c, _ = n.scan(step, x, hf.asarray(XS))
    n.cond(c > 0, lambda: (v.assign(c * 2.0), None)[1], lambda: None)
    return c + v


helper = hf.compile(lambda v, t: v.assign_add(t * t).read() * t)


def inside_a_compiled_function(n: Any, v: hf.Variable, w: hf.Variable, x: hf.Tensor):
    c, _ = n.scan(lambda c, t: (c + helper(v, t) + helper(w, c), None), x, hf.asarray(XS))
    return c + v


PROGRAMS = [
    assigning_branch, assigning_scan, assigning_while, assigning_bounded_while, assigning_condition, nested,
    only_written, inside_a_compiled_function,
]
name = lambda program: program.__name__  # noqa: E731


def variables() -> tuple[hf.Variable, hf.Variable]:
    return hf.Variable(np.float64(0.7), name="v"), hf.Variable(np.float64(-0.4), name="w")


@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("program", PROGRAMS, ids=name)
def test_values_and_gradients(program: Any, sign: float):
    """Two calls each: eager, a tape inside, and a tape outside of the compiled function."""

    def inside(v: hf.Variable, w: hf.Variable, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = program(hf, v, w, x)
        return y, tape.gradient(y, [x, v, w], unconnected_gradients="zero")

    compiled = hf.compile(lambda v, w, x: program(hf, v, w, x))

    def outside(v: hf.Variable, w: hf.Variable, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = compiled(v, w, x)
        return y, tape.gradient(y, [x, v, w], unconnected_gradients="zero")

    results: list[Any] = []
    for run in (inside, hf.compile(inside), outside):
        v, w = variables()
        found = [run(v, w, hf.asarray(np.float64(sign * 0.9))) for _ in range(2)]
        results.append((found, v.read(), w.read()))
    same(results[0], results[1], rtol=1e-11, atol=1e-12)
    same(results[0], results[2], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("program", [assigning_branch, assigning_scan, nested], ids=name)
def test_captured_variables_and_second_order(program: Any):
    def run(compiled: bool):
        v, w = variables()

        def f(x: hf.Tensor):
            start = v.read(), w.read()
            with hf.GradientTape() as outer:
                outer.watch(x)
                with hf.GradientTape() as tape:
                    tape.watch(x)
                    y = program(hf, v, w, x)
                gx, gv = tape.gradient(y, [x, v], unconnected_gradients="zero")
                v.assign(start[0])
                w.assign(start[1])
                total = hf.sin(gx) + gv * gv
            return total, outer.gradient(total, [x, v, w], unconnected_gradients="zero")

        return (hf.compile(f) if compiled else f)(hf.asarray(np.float64(0.9)))

    same(run(False), run(True), rtol=1e-10)


def test_a_variable_read_before_a_loop_keeps_its_value():
    def f(v: hf.Variable):
        kept = v.read()
        total, _ = hf.scan(lambda c, t: (c + kept * v.assign_add(t), None), hf.asarray(0.0), tensor(1, 2))
        return total, kept, v.read()

    eager, compiled = hf.Variable(2.0), hf.Variable(2.0)
    same(f(eager), hf.compile(f)(compiled))
    assert compiled.item() == 5.0


def test_one_variable_reached_in_two_ways():
    def make():
        v = hf.Variable(1.0)

        def f(argument: hf.Variable, x: hf.Tensor):
            def yes():
                argument.assign_add(x)
                return v * 10.0

            return hf.cond(x > 0, yes, lambda: v * 1.0)

        return v, f

    (v, f), (u, g) = make(), make()
    fast = hf.compile(g)
    for x in (2.0, -1.0):
        same(f(v, hf.asarray(x)), fast(u, hf.asarray(x)))
        assert v.item() == u.item()
    other = hf.Variable(5.0)
    assert fast(other, hf.asarray(1.0)).item() == u.item() * 10.0
    assert other.item() == 6.0


def test_only_the_taken_branch_assigns():
    v = hf.Variable(0.0)
    f = hf.compile(lambda x: hf.cond(x > 0, lambda: v.assign_add(1.0).read(), lambda: x))
    f(hf.asarray(-1.0))
    assert v.item() == 0.0
    f(hf.asarray(1.0))
    assert v.item() == 1.0
    assert f.trace_count == 1


@pytest.mark.parametrize("bound", [None, 5])
def test_a_loop_without_a_trip_assigns_nothing(bound: int | None):
    v = hf.Variable(3.0)

    def body(x: hf.Tensor):
        v.assign(x)
        return x

    hf.compile(lambda x: hf.while_loop(lambda c: c < -1.0, body, (x,), max_iterations=bound))(hf.asarray(1.0))
    assert v.item() == 3.0


def test_a_failed_check_in_a_body_leaves_what_bodies_assign():
    v = hf.Variable(0.0)

    def step(c: hf.Tensor, i: hf.Tensor):
        v.assign_add(1.0)
        return c + hf.take(tensor(1, 2, 3), i), None

    f = hf.compile(lambda last: hf.scan(step, hf.asarray(0.0), hf.stack([hf.asarray(0), last]))[0])
    assert f(hf.asarray(2)).item() == 4.0
    with pytest.raises(IndexRangeError):
        f(hf.asarray(5)).item()
    assert v.item() == 2.0


def test_an_assigned_value_has_the_variables_shape():
    v = hf.Variable([1.0, 2.0], name="v")
    with pytest.raises(ValueError, match=r"the value has shape \(\), the Variable \(2,\)"):
        hf.compile(lambda x: hf.cond(x > 0, lambda: v.assign(x).read(), lambda: x))(hf.asarray(1.0))


def test_a_gradient_function_cannot_assign():
    v = hf.Variable(1.0, name="counter")

    @hf.custom_gradient
    def double(x: hf.Tensor):
        def pull(g: hf.Tensor):
            v.assign_add(1.0)
            return g * 2.0

        return x * 2.0, pull

    with pytest.raises(TraceError, match=r"Variable 'counter' is assigned in .*which may run more than once") as caught:
        hf.compile(hf.grad(double))(hf.asarray(1.0))
    assert "assign it outside" in str(caught.value)


# -- random numbers -----------------------------------------------------------------------------------------------


def draw_in_branch(x: hf.Tensor):
    y = hf.cond(x > 0, lambda: hf.random.normal(()), lambda: hf.random.uniform(()) + hf.random.normal(()))
    return y, hf.random.normal((2,))


def draw_in_scan(x: hf.Tensor):
    return hf.scan(lambda c, t: (c + t * hf.random.normal(()), hf.random.integers(0, 100, (2,))), x, tensor(1, 2, 3))


def draw_in_while(x: hf.Tensor):
    walk = hf.while_loop(lambda i, c: hf.abs(c) < 2.0, lambda i, c: (i + 1, c + hf.random.normal(())), (0, x))
    return walk, hf.random.normal(())


def draw_in_condition(x: hf.Tensor):
    return hf.while_loop(lambda i: hf.random.uniform(()) < 0.8, lambda i: i + 1, (0,), max_iterations=50)


@pytest.mark.parametrize("program", [draw_in_branch, draw_in_scan, draw_in_while, draw_in_condition], ids=name)
def test_random_numbers(program: Any):
    results: list[Any] = []
    for run in (program, hf.compile(program)):
        hf.random.seed(3)
        results.append([run(hf.asarray(sign)) for sign in (0.5, -0.5, 0.5)])
    same(*results)
    first, _, third = results[0]
    assert str(first) != str(third)


def test_a_step_of_dropout_in_a_scan():
    def f(w: hf.Variable, xs: hf.Tensor):
        with hf.GradientTape() as tape:
            h, _ = hf.scan(lambda h, x: (hf.tanh(hf.nn.dropout(h * w, 0.5) + x), None), xs[0], xs)
            loss = hf.sum(h * h)
        w.assign_sub(tape.gradient(loss, w) * 0.1)
        return loss

    xs = hf.asarray(np.linspace(-1, 1, 12).reshape(3, 4).astype(np.float32))
    losses: list[Any] = []
    for run in (f, hf.compile(f)):
        hf.random.seed(1)
        w = hf.Variable(np.ones(4, np.float32))
        losses.append([run(w, xs) for _ in range(3)] + [w.read()])
    same(*losses)
    close(losses[0], losses[1])


def test_under_vmap():
    w = hf.Variable(np.float64(0.5))

    def f(x: hf.Tensor):
        def step(c: hf.Tensor, t: hf.Tensor):
            return hf.cond(c > 0, lambda: c * w + t, lambda: c - w), c * w

        return hf.scan(step, x, hf.asarray(XS))

    xs = hf.asarray(np.float64([0.5, -2.0]))
    expected = [f(x) for x in xs]
    for run in (hf.vmap(f), hf.compile(hf.vmap(f))):
        last, ys = run(xs)
        close(last, hf.stack([one[0] for one in expected]))
        close(ys, hf.stack([one[1] for one in expected]))


@pytest.mark.parametrize("compiled", [False, True])
def test_drawing_in_a_body_under_vmap(compiled: bool):
    def f(x: hf.Tensor):
        return hf.scan(lambda c, t: (c + hf.random.normal(()), hf.random.uniform(())), x, tensor(1, 2, 3))

    hf.random.seed(0)
    last, ys = (hf.compile(hf.vmap(f)) if compiled else hf.vmap(f))(tensor(0, 0))
    assert len({*ys.reshape((6,)).tolist()}) == 6
    assert last[0].item() != last[1].item()

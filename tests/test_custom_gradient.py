"""`hf.custom_gradient` and `hf.stop_gradient`: functions with a gradient of their own, in both modes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.autodiff import vectorize
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError, TraceError


@hf.custom_gradient
def clipped(x: hf.Tensor):
    """The square, with its gradient clipped."""
    return x * x, lambda g: hf.clip(g * 2.0 * x, -1.0, 1.0)


@hf.custom_gradient
def log1pexp(x: hf.Tensor):
    e = hf.exp(x)
    return hf.log(1.0 + e), lambda g: g * (1.0 - 1.0 / (1.0 + e))


def gradient(fn: Any, *tensors: Any, which: Any = None) -> Any:
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = fn(*tensors)
    return tape.gradient(y, list(tensors) if which is None else which)


# -- first order --------------------------------------------------------------------------------------------------


def test_the_given_gradient_replaces_the_ordinary_one():
    value, (found,) = both(lambda x: (clipped(x), gradient(clipped, x)), tensor(-3, 0.25, 3))
    close(value, np.array([9.0, 0.0625, 9.0]))
    close(found, np.array([-1.0, 0.5, 1.0]))


def test_it_is_stable_where_the_ordinary_one_overflows():
    (found,) = both(lambda x: gradient(log1pexp, x), tensor(100.0, 0.0))
    close(found, np.array([1.0, 0.5]))


def test_without_a_tape_the_result_is_the_functions():
    close(both(log1pexp, tensor(0.0, 1.0)), np.log1p(np.exp([0.0, 1.0])))


def test_it_takes_part_in_a_chain():
    (found,) = both(lambda x: gradient(lambda x: hf.sum(clipped(x * 0.25) * 3.0), x), tensor(1, 2))
    close(found, np.array([0.25, 0.25]))  # clip(3 * 2 * x / 4, -1, 1) / 4


def test_the_cotangent_reaches_the_rule():
    seen: list[Any] = []

    @hf.custom_gradient
    def f(x: hf.Tensor):
        def rule(g: hf.Tensor):
            seen.append((g.shape, g.dtype))
            return g * 10.0

        return x * 1.0, rule

    (found,) = gradient(lambda x: f(x) * tensor(1, 2), tensor(5, 6))
    close(found, np.array([10.0, 20.0]))
    assert seen == [((2,), np.float32)]


def test_several_arguments_in_signature_order():
    @hf.custom_gradient
    def f(a: hf.Tensor, b: hf.Tensor, c: hf.Tensor):
        return a + b + c, lambda g: (g * 1.0, g * 2.0, g * 3.0)

    found = both(lambda a, b, c: gradient(f, a, b, c), *[hf.asarray(1.0) for _ in range(3)])
    assert [g.item() for g in found] == [1.0, 2.0, 3.0]


def test_keyword_tensors_count_as_arguments():
    @hf.custom_gradient
    def f(a: hf.Tensor, *, scale: hf.Tensor):
        return a * scale, lambda g: (g * 5.0, g * 7.0)

    def run(a: hf.Tensor, scale: hf.Tensor):
        return gradient(lambda a, s: f(a, scale=s), a, scale)

    assert [g.item() for g in both(run, hf.asarray(1.0), hf.asarray(2.0))] == [5.0, 7.0]


def test_keywords_come_in_signature_order_however_they_are_written():
    @hf.custom_gradient
    def f(a: hf.Tensor, *, zeta: hf.Tensor, alpha: hf.Tensor):
        return a * zeta * alpha, lambda g: (g * 1.0, g * 2.0, g * 3.0)

    def run(a: hf.Tensor, b: hf.Tensor, c: hf.Tensor):
        return gradient(lambda a, z, al: f(alpha=al, zeta=z, a=a), a, b, c)

    assert [g.item() for g in both(run, *[hf.asarray(1.0) for _ in range(3)])] == [1.0, 2.0, 3.0]


def test_nested_arguments():
    @hf.custom_gradient
    def f(params: dict[str, hf.Tensor], x: hf.Tensor):
        return params["w"] * x + params["b"], lambda g: (g * 10.0, g * 20.0, g * 30.0)  # b, w, x

    def run(w: hf.Tensor, b: hf.Tensor, x: hf.Tensor):
        return gradient(lambda w, b, x: f({"w": w, "b": b}, x), w, b, x)

    assert [g.item() for g in both(run, *[hf.asarray(1.0) for _ in range(3)])] == [20.0, 10.0, 30.0]


def test_arguments_that_are_no_tensors_do_not_count():
    @hf.custom_gradient
    def power(x: hf.Tensor, n: int, name: str, *, half: bool):
        assert (n, name, half) == (3, "p", True)
        return x**n, lambda g: g * n

    found = both(lambda x: gradient(lambda x: power(x, 3, "p", half=True), x), hf.asarray(2.0))
    assert found[0].item() == 3.0


def test_none_is_no_gradient():
    @hf.custom_gradient
    def f(a: hf.Tensor, b: hf.Tensor):
        return a * b, lambda g: (g * 2.0, None)

    a, b = both(lambda a, b: gradient(f, a, b), hf.asarray(3.0), hf.asarray(4.0))
    assert a.item() == 2.0
    assert b is None


def test_several_results():
    @hf.custom_gradient
    def f(x: hf.Tensor):
        return {"a": x * 1.0, "b": (x + 0.0, hf.argmax(x))}, lambda a, b, n: a * 2.0 + b * 100.0

    def run(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            found = f(x)
        a, (b, n) = found["a"], found["b"]
        return tape.gradient(a, x), tape.gradient(b, x), tape.gradient([a, b], x), tape.gradient(n, x), n

    a, b, both_of_them, none, n = both(run, tensor(1, 2))
    close([a, b, both_of_them], [np.full(2, 2.0), np.full(2, 100.0), np.full(2, 102.0)])
    assert none is None
    assert n.item() == 1


def test_an_integer_argument_has_none():
    @hf.custom_gradient
    def f(x: hf.Tensor, n: hf.Tensor):
        return x * n, lambda g: (g * 9.0, g * 1.0)

    def run(x: hf.Tensor, n: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, n)
        return tape.gradient(y, [x, n])

    x, n = both(run, hf.asarray(2.0), hf.asarray(3))
    assert x.item() == 9.0
    assert n is None


def test_the_gradient_comes_in_the_arguments_dtype():
    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x.astype(hf.float32) * 2.0, lambda g: g.astype(hf.float64) * 3.0

    (found,) = both(lambda x: gradient(f, x), hf.asarray([1.0, 2.0], dtype="float16"))
    assert found.dtype == np.float16
    close(found, np.array([3.0, 3.0]))


def test_numbers_and_arrays_as_gradients():
    @hf.custom_gradient
    def f(a: hf.Tensor, b: hf.Tensor):
        return a * b, lambda g: (7.0, np.float32(8.0))

    found = both(lambda a, b: gradient(f, a, b), hf.asarray(3.0), hf.asarray(4.0))
    assert [g.item() for g in found] == [7.0, 8.0]


def test_in_a_loop():
    def run(x: hf.Tensor):
        def repeated(x: hf.Tensor):
            for _ in range(4):
                x = clipped(x)
            return x

        return gradient(repeated, x)

    (found,) = both(run, hf.asarray(0.9))
    expected, x = 1.0, 0.9
    xs = [x := x if i == 0 else x * x for i in range(4)]
    for x in reversed(xs):
        expected = float(np.clip(expected * 2 * x, -1, 1))
    close(found, np.array(expected))


def test_as_a_method():
    class Layer:
        def __init__(self) -> None:
            self.factor = 3.0

        @hf.custom_gradient
        def call(self, x: hf.Tensor):
            return x * self.factor, lambda g: g * 100.0

    layer = Layer()
    found = both(lambda x: gradient(layer.call, x), hf.asarray(1.0))
    assert found[0].item() == 100.0


# -- what the body reads besides its arguments --------------------------------------------------------------------


def test_variables_read_in_the_body_get_ordinary_gradients():
    v = hf.Variable(3.0)

    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x * v * v, lambda g: g * 1000.0

    def run(x: hf.Tensor):
        return gradient(f, x, which=[x, v])

    assert [g.item() for g in both(run, hf.asarray(2.0))] == [1000.0, 12.0]


def test_closed_over_watched_tensors_get_ordinary_gradients():
    def run(x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, w])
            h = w * w

            @hf.custom_gradient
            def f(x: hf.Tensor):
                return hf.sin(h) * x, lambda g: g * 1000.0

            y = f(x)
        return tape.gradient(y, [x, w, h])

    x, w, h = both(run, hf.asarray(2.0), hf.asarray(0.5))
    assert x.item() == 1000.0
    close(h, np.array(2.0 * np.cos(0.25)))
    close(w, np.array(2.0 * np.cos(0.25) * 2 * 0.5))


def test_variables_that_only_the_rule_reads_get_none():
    v = hf.Variable(3.0)

    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x * 2.0, lambda g: g * v

    x, v_gradient = both(lambda x: gradient(f, x, which=[x, v]), hf.asarray(2.0))
    assert x.item() == 3.0
    assert v_gradient is None


def test_a_variable_as_argument():
    v = hf.Variable(3.0)
    found = both(lambda: gradient(lambda: clipped(v), which=[v]))
    assert found[0].item() == 1.0


@pytest.mark.parametrize("make", [hf.Variable, hf.asarray])
def test_an_argument_that_the_body_reads_too_has_the_rules_gradient_alone(make: Any):
    v, w = make(3.0), hf.Variable(5.0)

    def run(v: Any):
        @hf.custom_gradient
        def f(x: hf.Tensor):
            return x * v * w, lambda g: g * 100.0

        with hf.GradientTape() as tape:
            tape.watch(v)
            y = f(v)
        return tape.gradient(y, [v, w])

    assert [one.item() for one in both(run, v)] == [100.0, 9.0]


def test_a_value_the_result_passes_through():
    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x, lambda g: g * -1.0

    (found,) = both(lambda x: gradient(f, x), hf.asarray(2.0))
    assert found.item() == -1.0


def test_a_closed_over_tensor_as_the_result():
    def run(x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, w])

            @hf.custom_gradient
            def f(x: hf.Tensor):
                return w, lambda g: g * 5.0

            y = f(x) * 2.0
        return tape.gradient(y, [x, w])

    x, w = both(run, hf.asarray(2.0), hf.asarray(0.5))
    assert (x.item(), w.item()) == (10.0, 2.0)


# -- higher orders ------------------------------------------------------------------------------------------------


def second(fn: Any, x: hf.Tensor) -> tuple[Any, Any]:
    with hf.GradientTape() as outer:
        outer.watch(x)
        with hf.GradientTape() as inner:
            inner.watch(x)
            y = fn(x)
        first = inner.gradient(y, x)
    return first, outer.gradient(first, x)


def test_the_second_order_differentiates_the_rule():
    first, found = both(lambda x: second(log1pexp, x), tensor(0.3, -1.0))
    x = np.array([0.3, -1.0])
    s = 1 / (1 + np.exp(-x))
    close(first, s)
    close(found, s * (1 - s))


def test_a_nested_override_is_the_second_order():
    @hf.custom_gradient
    def slope(x: hf.Tensor, g: hf.Tensor):
        return g * 2.0 * x, lambda gg: (gg * 1000.0, gg * 0.0)

    @hf.custom_gradient
    def square(x: hf.Tensor):
        return x * x, lambda g: slope(x, g)

    first, found = both(lambda x: second(square, x), hf.asarray(3.0))
    assert (first.item(), found.item()) == (6.0, 1000.0)


def test_variables_of_the_body_in_the_second_order():
    v = hf.Variable(2.0)

    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x * v**3, lambda g: g * v**3

    def run(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            gx, gv = inner.gradient(y, [x, v])
            total = gx + gv
        return gx, gv, outer.gradient(total, [x, v])

    # x v^3: dx = v^3, dv = 3 x v^2; then d/dx (dx + dv) = 3 v^2, d/dv = 3 v^2 + 6 x v.
    gx, gv, (xx, vv) = both(run, hf.asarray(5.0))
    assert (gx.item(), gv.item(), xx.item(), vv.item()) == (8.0, 60.0, 12.0, 72.0)


def test_second_order_through_a_compiled_function():
    compiled = hf.compile(lambda x: log1pexp(x) * 2.0)
    first, found = second(compiled, tensor(0.3, -1.0))
    x = np.array([0.3, -1.0])
    s = 1 / (1 + np.exp(-x))
    close(first, 2 * s)
    close(found, 2 * s * (1 - s))


def test_third_order_is_jax_s():
    @jax.custom_jvp
    def f(x: Any):
        return x**3

    f.defjvp(lambda primals, tangents: (primals[0] ** 3, jnp.sin(primals[0]) * tangents[0]))

    @hf.custom_gradient
    def g(x: hf.Tensor):
        return x**3, lambda c: c * hf.sin(x)

    def third(x: hf.Tensor):
        with hf.GradientTape() as outermost:
            outermost.watch(x)
            first, found = second(g, x)
        return first, found, outermost.gradient(found, x)

    expected = [jax.grad(f), jax.grad(jax.grad(f)), jax.grad(jax.grad(jax.grad(f)))]
    close(list(both(third, hf.asarray(0.7))), [np.asarray(e(0.7)) for e in expected])


# -- compiled -----------------------------------------------------------------------------------------------------


def test_a_compiled_custom_gradient_under_an_eager_tape():
    v = hf.Variable(3.0)

    @hf.custom_gradient
    def f(x: hf.Tensor):
        return x * v, lambda g: g * 1000.0

    compiled = hf.compile(lambda x: f(x) * 2.0)
    x = hf.asarray(5.0)
    found = gradient(compiled, x, which=[x, v])
    assert [g.item() for g in found] == [2000.0, 10.0]


def test_a_custom_gradient_of_a_compiled_body():
    body = hf.compile(lambda x: hf.exp(x))

    @hf.custom_gradient
    def f(x: hf.Tensor):
        y = body(x)
        return y, lambda g: g * y * 2.0

    (found,) = both(lambda x: gradient(f, x), tensor(0.0, 1.0))
    close(found, 2 * np.exp([0.0, 1.0]))


def test_inside_control_flow():
    def run(x: hf.Tensor, c: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.cond(c > 0, clipped, lambda x: x, x)
            z, _ = hf.scan(lambda s, _: (clipped(s), None), y, hf.asarray([0.0, 0.0]))
            w = hf.while_loop(lambda s: s > 1.0, lambda s: clipped(s) * 0.1, (z,), max_iterations=3)
        return w, tape.gradient(w, x)

    for c in (1.0, -1.0):
        both(run, hf.asarray(1.25), hf.asarray(c))


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("returned", [lambda g: (g,), lambda g: (g, g, g), lambda g: g, lambda g: ()])
def test_another_number_of_gradients_than_arguments(returned: Any, compiled: bool):
    @hf.custom_gradient
    def product(a: hf.Tensor, b: hf.Tensor):
        return a * b, returned

    count = len(returned(1)) if isinstance(returned(1), tuple) else 1

    def run(a: hf.Tensor, b: hf.Tensor):
        return gradient(product, a, b)

    with pytest.raises(ArgumentError, match=f"product returned {count} gradients for 2 tensor arguments") as caught:
        (hf.compile(run) if compiled else run)(hf.asarray(1.0), hf.asarray(2.0))
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_gradient_of_another_shape(compiled: bool):
    @hf.custom_gradient
    def total(x: hf.Tensor):
        return hf.sum(x), lambda g: g

    def run(x: hf.Tensor):
        return gradient(total, x)

    with pytest.raises(ShapeError, match=r"gradient 0 of .*total has shape \(\), its argument \(2,\)"):
        (hf.compile(run) if compiled else run)(tensor(1, 2))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("answer", [lambda x: x, lambda x: (x, 3), lambda x: (x, None), lambda x: (x, x, x)])
def test_the_function_must_return_result_and_rule(answer: Any, compiled: bool):
    @hf.custom_gradient
    def wrong(x: hf.Tensor):
        return answer(x)

    with pytest.raises(ArgumentTypeError, match=r"wrong must return \(result, grad_fn\)"):
        (hf.compile(wrong) if compiled else wrong)(hf.asarray(1.0))


def test_an_exception_in_the_rule_comes_through():
    @hf.custom_gradient
    def f(x: hf.Tensor):
        def rule(g: hf.Tensor):
            raise KeyError("mine")

        return x * 1.0, rule

    for run in (lambda x: gradient(f, x), hf.compile(lambda x: gradient(f, x))):
        with pytest.raises(KeyError, match="mine"):
            run(hf.asarray(1.0))


# -- rules that call their own function ---------------------------------------------------------------------------


@hf.custom_gradient
def own_exp(x: Any):
    return hf.exp(x), lambda g: g * own_exp(x)


@hf.custom_gradient
def own_inverse(x: Any):
    return 1 / x, lambda g: -g * own_inverse(x) * own_inverse(x)


@hf.custom_gradient
def own_sin(x: Any):
    return hf.sin(x), lambda g: g * own_cos(x)


@hf.custom_gradient
def own_cos(x: Any):
    return hf.cos(x), lambda g: -g * own_sin(x)


@hf.custom_gradient
def own_root(x: Any, steps: int = 20):
    """The square root by Newton's method; its derivative is implicit."""
    y = hf.while_loop(lambda y, i: i < steps, lambda y, i: ((y + x / y) / 2, i + 1), (x + 1, 0))[0]
    return y, lambda g: g / (2 * own_root(x, steps=steps))


OWN: dict[str, tuple[Any, Any]] = {
    "exp": (own_exp, jnp.exp), "inverse": (own_inverse, lambda x: 1 / x), "sin": (own_sin, jnp.sin),
    "root": (own_root, jnp.sqrt),
}
AROUND: dict[str, Any] = {
    "alone": lambda f: f,
    "vmap": lambda f: lambda x: hf.vmap(f)(x[None])[0],
    "scan": lambda f: lambda x: hf.scan(lambda s, _: (s, f(s)), x, hf.arange(1))[1][0],
    "checkpoint": hf.checkpoint,
}


def to_order(f: Any, order: int, grad: Any) -> Any:
    for _ in range(order):
        f = grad(f)
    return f


@pytest.mark.parametrize("around", AROUND)
@pytest.mark.parametrize("name", OWN)
def test_a_rule_may_call_its_own_function(name: str, around: str):
    own, reference = OWN[name]
    x = hf.asarray(0.75)
    for order in (0, 1, 3):
        expected = float(to_order(reference, order, jax.grad)(0.75))
        functions: list[Any] = [
            AROUND[around](to_order(own, order, hf.grad)),
            hf.compile(AROUND[around](to_order(own, order, hf.grad))),
            to_order(hf.compile(AROUND[around](own)), order, hf.grad),
        ]
        for f in functions:
            np.testing.assert_allclose(f(x), expected, rtol=1e-5)


def test_a_rule_that_calls_its_own_function_compiles_once_under_vmap():
    f = hf.vmap(own_exp)
    f(tensor(1, 2))
    before = dict(vectorize._GRAPHS._entries)
    close(f(tensor(2, 3)), np.exp([2.0, 3.0]))
    assert dict(vectorize._GRAPHS._entries) == before


def test_a_rule_without_end_whose_body_reads_more_says_so():
    w = hf.Variable(2.0, name="w")

    @hf.custom_gradient
    def scaled(x: Any):
        return w * x, lambda g: g * scaled(x) / x

    runs: list[Any] = [hf.compile(scaled), hf.vmap(scaled)]
    for run in runs:
        with pytest.raises(TraceError, match=r"the rule of .*scaled calls .*scaled without end"):
            run(tensor(1, 2))


def test_functions_without_source():
    names: dict[str, Any] = {"hf": hf}
    exec("@hf.custom_gradient\ndef own(x):\n    return hf.exp(x), lambda g: g * own(x)", names)
    f: Any = hf.compile(lambda x: hf.grad(hf.grad(names["own"]))(x))
    np.testing.assert_allclose(f(hf.asarray(0.5)), np.exp(0.5), rtol=1e-6)


# -- stop_gradient ------------------------------------------------------------------------------------------------


def test_stop_gradient():
    v = hf.Variable(3.0)

    def run(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * hf.stop_gradient(x * v)
            z = hf.stop_gradient(x)
        return tape.gradient(y, [x, v]), tape.gradient(z, x), y

    (x, v_gradient), none, y = both(run, hf.asarray(2.0))
    assert (x.item(), y.item()) == (6.0, 12.0)
    assert v_gradient is None
    assert none is None


def test_stop_gradient_in_higher_orders():
    first, found = both(lambda x: second(lambda x: x**3 * hf.stop_gradient(x), x), hf.asarray(2.0))
    # 3 x^2 x0, then 6 x x0: jax's answer.
    expected = jax.grad(lambda x: x**3 * jax.lax.stop_gradient(x))
    assert first.item() == float(expected(2.0)) == 24.0
    assert found.item() == float(jax.grad(expected)(2.0)) == 24.0


def _rows(x: Any, w: Any) -> Any:
    for row in hf.stack([x, x * 0.3]):
        x = hf.sin(x) * w + row
    return x


def _while(x: Any, w: Any) -> Any:
    return hf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, hf.sin(y) * w), (0, x), max_iterations=3)[1]


def _branch(x: Any, w: Any) -> Any:
    return hf.cond(hf.sum(x) > 0, lambda: hf.sin(x * w), lambda: x)


def _operations(x: Any, w: Any) -> Any:
    return hf.nn.layer_norm(hf.sort(hf.sin(x) * w)) * hf.std(x * w) + hf.logsumexp(x * w)


def _slope(x: Any, w: Any) -> Any:
    return hf.grad(lambda x: hf.sum(hf.sin(x) * w))(x) * w


BODIES: list[Callable[[Any, Any], Any]] = [_rows, _while, _branch, _operations, _slope]
PLACES: dict[str, Callable[[Any], Any]] = {
    "alone": lambda f: f,
    "compiled": hf.compile,
    "while": lambda f: lambda x: hf.while_loop(
        lambda i, y: i < 2, lambda i, y: (i + 1, f(y)), (hf.asarray(0), x), max_iterations=2)[1],
    "scan": lambda f: lambda x: hf.scan(lambda c, row: (f(c) + row, row), x, hf.stack([x, x]))[0],
    "cond": lambda f: lambda x: hf.cond(hf.sum(x) > 0, f, lambda y: y, x),
    "vmap": lambda f: lambda x: hf.vmap(f)(x[None])[0],
    "checkpoint": hf.checkpoint,
    "no_grad": lambda f: hf.no_grad()(f),
}
USUAL = (_rows, "while"), (_operations, "alone"), (_slope, "alone")


@pytest.mark.parametrize(("body", "place"), [
    pytest.param(*one, marks=() if one in USUAL else pytest.mark.rest) for one in product(BODIES, PLACES)
])
def test_bodies_that_keep_values_for_a_gradient_where_no_tape_is(body: Any, place: str):
    """Their operations are traced, or run, before anybody has said that a gradient is wanted."""
    w, x = hf.Variable(0.8, requires_grad=True), hf.asarray([[0.3, 1.0], [0.2, -0.1]])

    def steep(rule: Any) -> Any:
        return PLACES[place](hf.custom_gradient(lambda x: (body(x, w), rule)))

    def by_a_tape(f: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(f(x) ** 2)
        return y, *tape.gradient(y, [x, w], unconnected_gradients="zero")

    def by_backward(f: Any) -> Any:
        leaf = x.detach().requires_grad_()
        w.zero_grad()
        y = hf.sum(f(leaf) ** 2)
        (y + hf.sum(leaf * w) * 0.0).backward()
        return y.detach(), leaf.grad, w.grad

    expected = by_a_tape(steep(lambda g: g * 2))
    f = steep(lambda g: g * 2)
    for found in (by_backward(f), by_a_tape(hf.compile(f)), hf.compile(lambda: by_a_tape(f))(),
                  hf.compile(lambda: by_backward(f))()):
        close(found, expected)
    close(hf.compile(f)(x), f(x))

"""`hf.grad`, `hf.value_and_grad`, `hf.vjp`: against jax, nested, inside compiled functions and under tapes."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, central, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

Params = namedtuple("Params", "w b")
X = np.array([0.4, -1.3, 0.9])


def f64(array: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(array, np.float64))


def in_x64(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(fn)(*args))


def loss(n: Any, w: Any, b: Any, x: Any) -> Any:
    return n.sum(n.tanh(x @ w + b) ** 2) + n.mean(n.exp(b))


W, B, DATA = np.array([[0.5, -0.2], [0.3, 0.8], [-1.0, 0.1]]), np.array([0.1, -0.4]), np.ones((4, 3)) * X


# -- grad ---------------------------------------------------------------------------------------------------------


def test_grad_is_jax_s():
    found = both(lambda w: hf.grad(lambda w: loss(hf, w, f64(B), f64(DATA)))(w), f64(W), rtol=1e-12)
    close(found, in_x64(jax.grad(lambda w: loss(jnp, w, B, DATA)), W), rtol=1e-12)
    assert found.dtype == np.float64


def test_grad_is_the_central_difference():
    found = both(hf.grad(lambda x: hf.sum(hf.sin(x) * x * x)), f64(X), rtol=1e-12)
    close(found, central(lambda x: np.sum(np.sin(x) * x * x), X)[0], rtol=1e-6)


@pytest.mark.parametrize("argnums", [0, 1, 2, -1, -3, (0,), (1, 0), (0, 1, 2), (2, 0), (0, -1)])
def test_argnums(argnums: Any):
    def program(n: Any):
        return lambda w, b, x: loss(n, w, b, x)

    found = both(hf.grad(program(hf), argnums), f64(W), f64(B), f64(DATA), rtol=1e-12)
    expected = in_x64(jax.grad(program(jnp), argnums), W, B, DATA)
    assert isinstance(found, tuple) == isinstance(argnums, tuple)
    close(found, expected, rtol=1e-11)


def test_arguments_may_be_pytrees():
    def program(n: Any):
        return lambda params, batch: loss(n, params["layer"].w, params["layer"].b, batch[0]) * params["scale"][0]

    def params(make: Any):
        return {"layer": Params(make(W), make(B)), "scale": [make(2.0)]}

    found = hf.grad(program(hf))(params(f64), (f64(DATA), "label"))
    expected = in_x64(lambda p: jax.grad(program(jnp))(p, (DATA, None)), params(np.asarray))
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    close(found, expected, rtol=1e-11)
    same(found, hf.compile(lambda p, x: hf.grad(program(hf))(p, (x, "label")))(params(f64), f64(DATA)), rtol=1e-12)


def test_numbers_arrays_and_lists_as_arguments():
    assert hf.grad(lambda x: x * x)(3.0).item() == 6.0
    assert hf.grad(lambda x: hf.sum(x * x))(np.float32([1, 2])).numpy().tolist() == [2.0, 4.0]
    first, second = hf.grad(lambda xs: xs[0] * xs[1])([2.0, 5.0])
    assert (first.item(), second.item()) == (5.0, 2.0)


def test_a_variable_as_argument():
    v = hf.Variable(3.0)
    found = both(lambda: hf.grad(lambda x: x * x)(v))
    assert found.item() == 6.0
    assert v.item() == 3.0


def test_what_the_result_does_not_depend_on_gets_zeros():
    found = both(hf.grad(lambda x, y: hf.sum(x * x), (0, 1)), tensor(1, 2), f64(np.ones((2, 2))))
    close(found, (np.array([2.0, 4.0]), np.zeros((2, 2))))
    assert [g.dtype for g in found] == [np.float32, np.float64]


def test_keyword_arguments_are_passed_on():
    def run(x: hf.Tensor, k: hf.Tensor):
        return hf.grad(lambda x, *, power, k: hf.sum(x**power * k))(x, power=3, k=k)

    found = both(run, tensor(1, 2), tensor(5))
    close(found, np.array([15.0, 60.0]))


def test_has_aux():
    def program(x: hf.Tensor):
        y = hf.sum(x**3)
        return y, {"twice": y * 2.0, "note": "any", "n": 3}

    gradient, aux = hf.grad(program, has_aux=True)(tensor(1, 2))
    close(gradient, np.array([3.0, 12.0]))
    assert (aux["twice"].item(), aux["note"], aux["n"]) == (18.0, "any", 3)
    (value, aux), gradient = hf.value_and_grad(program, has_aux=True)(tensor(1, 2))
    assert value.item() == 9.0
    close(gradient, np.array([3.0, 12.0]))
    both(lambda x: hf.value_and_grad(lambda x: (hf.sum(x**3), {"y": x * 2.0}), has_aux=True)(x), tensor(1, 2))


def test_value_and_grad():
    value, found = both(hf.value_and_grad(lambda w, b: loss(hf, w, b, f64(DATA)), (0, 1)), f64(W), f64(B), rtol=1e-12)
    expected = in_x64(jax.value_and_grad(lambda w, b: loss(jnp, w, b, DATA), (0, 1)), W, B)
    close((value, found), expected, rtol=1e-11)


def test_the_name_and_the_docstring_stay():
    def my_loss(x: hf.Tensor):
        """Say what it is."""
        return hf.sum(x)

    for made in (hf.grad(my_loss), hf.value_and_grad(my_loss)):
        assert made.__name__ == "my_loss"
        assert made.__doc__ == "Say what it is."


def test_a_captured_variable_is_a_constant():
    v = hf.Variable(5.0)
    assert both(lambda x: hf.grad(lambda x: x * x * v)(x), hf.asarray(2.0)).item() == 20.0


def test_a_closed_over_tensor_is_a_constant_even_if_it_is_the_argument():
    def program(x: hf.Tensor):
        return hf.grad(lambda y: y * x)(x)

    assert both(program, hf.asarray(3.0)).item() == float(jax.grad(lambda y: y * 3.0)(3.0)) == 3.0


def test_the_same_tensor_twice():
    x = tensor(1, 2)
    a, b = hf.grad(lambda a, b: hf.sum(a * a * b), (0, 1))(x, x)
    close([a, b], [2 * np.array([1.0, 4.0]), np.array([1.0, 4.0])])


# -- nested -------------------------------------------------------------------------------------------------------


def nest(grad: Any, n: Any, order: int) -> Any:
    def f(x: Any) -> Any:
        return n.sum(n.exp(n.sin(x)) * x)

    for _ in range(order):
        f = (lambda inner: lambda x: n.sum(grad(inner)(x)))(f)
    return grad(f)


@pytest.mark.parametrize("order", [1, 2])
def test_nested_grad(order: int):
    found = both(nest(hf.grad, hf, order), f64(X), rtol=1e-10)
    close(found, in_x64(nest(jax.grad, jnp, order), X), rtol=1e-9)


def test_a_hessian_row_by_row():
    def f(n: Any, x: Any):
        return n.sum(n.tanh(x) * x[0] * x[1])

    def row(i: int):
        return lambda x: hf.grad(lambda x: hf.grad(lambda x: f(hf, x))(x)[i])(x)

    found = both(lambda x: [row(i)(x) for i in range(3)], f64(X), rtol=1e-10)
    close(np.stack([np.asarray(r) for r in found]), in_x64(jax.hessian(lambda x: f(jnp, x)), X), rtol=1e-9)


def test_perturbations_are_not_confused():
    # d/dx (x * d/dy (x + y) at y=1): 1, not 2.
    found = both(lambda x: hf.grad(lambda x: x * hf.grad(lambda y: x + y)(hf.asarray(1.0)))(x), hf.asarray(1.0))
    assert found.item() == 1.0
    found = both(lambda x: hf.grad(lambda x: hf.grad(lambda y: x * y * y)(x))(x), hf.asarray(3.0))
    assert found.item() == float(jax.grad(lambda x: jax.grad(lambda y: x * y * y)(x))(3.0)) == 12.0


def test_under_a_tape():
    v = hf.Variable(2.0)

    def program(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            g = hf.grad(lambda x: x**3 * v)(x)
        return g, tape.gradient(g, [x, v])

    g, (x, v_gradient) = both(program, hf.asarray(3.0))
    assert (g.item(), x.item(), v_gradient.item()) == (54.0, 36.0, 27.0)


def test_a_tape_inside():
    def program(x: hf.Tensor):
        def inner(x: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = x**4
            return tape.gradient(y, x)

        return hf.grad(inner)(x)

    assert both(program, hf.asarray(2.0)).item() == 48.0


def test_of_a_compiled_function():
    cube = hf.compile(lambda x: hf.sum(x**3))
    close(hf.grad(cube)(tensor(1, 2)), np.array([3.0, 12.0]))
    close(hf.grad(lambda x: hf.sum(hf.grad(cube)(x)))(tensor(1, 2)), np.array([6.0, 12.0]))
    close(hf.compile(hf.grad(cube))(tensor(1, 2)), np.array([3.0, 12.0]))
    close(hf.grad(hf.compile(hf.grad(lambda x: x**3)))(2.0), np.array(12.0))


# -- vjp ----------------------------------------------------------------------------------------------------------


def test_vjp_is_jax_s():
    def program(n: Any):
        return lambda w, x: (n.tanh(x @ w), {"sum": n.sum(w * w)})

    seeds = (np.linspace(-1, 1, 8).reshape(4, 2), {"sum": np.array(3.0)})

    def run(w: hf.Tensor, x: hf.Tensor):
        value, pullback = hf.vjp(program(hf), w, x)
        return value, pullback(jax.tree_util.tree_map(f64, seeds))

    value, found = both(run, f64(W), f64(DATA), rtol=1e-12)

    def by_jax(w: Any, x: Any):
        value, pullback = jax.vjp(program(jnp), w, x)
        return value, pullback(seeds)

    close((value, found), in_x64(by_jax, W, DATA), rtol=1e-11)
    assert isinstance(found, tuple)


def test_a_pullback_answers_any_number_of_times():
    def run(x: hf.Tensor):
        value, pullback = hf.vjp(lambda x: x * x, x)
        return value, [pullback(hf.asarray([c, 0.0]))[0] for c in (1.0, 10.0)]

    value, found = both(run, tensor(3, 4))
    close(value, np.array([9.0, 16.0]))
    close(found, [np.array([6.0, 0.0]), np.array([60.0, 0.0])])


def test_vjp_of_pytrees_and_zeros():
    _, pullback = hf.vjp(lambda p, q: p["a"] * 2.0, {"a": tensor(1), "b": [tensor(1, 2)]}, tensor(5))
    p, q = pullback(tensor(3))
    close([p, q], [{"a": np.array([6.0]), "b": [np.zeros(2)]}, np.zeros(1)])


def test_a_pullback_can_be_differentiated():
    def run(x: hf.Tensor, c: hf.Tensor):
        return hf.grad(lambda x, c: hf.sum(hf.vjp(lambda x: x**3, x)[1](c)[0]), (0, 1))(x, c)

    x, c = both(run, tensor(1, 2), tensor(10, 20))
    close([x, c], [np.array([60.0, 240.0]), np.array([3.0, 12.0])])  # 3 c x^2: 6 c x and 3 x^2


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("seed", "error", "text"),
    [(lambda: tensor(1, 2, 3), ShapeError, r"\(3,\), its target \(2,\)"),
     (lambda: f64([1, 2]), DTypeError, "float64, its target float32"),
     (lambda: [tensor(1, 2)], ArgumentError, "structure")],
)
def test_a_pullback_checks_its_argument(seed: Any, error: Any, text: str, compiled: bool):
    def run(x: hf.Tensor):
        return hf.vjp(lambda x: x * x, x)[1](seed())

    with pytest.raises(error, match=text):
        (hf.compile(run) if compiled else run)(tensor(1, 2))


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("transform", [hf.grad, hf.value_and_grad])
def test_a_result_that_is_no_scalar(transform: Any, compiled: bool):
    run = transform(lambda x: x * x)
    with pytest.raises(ShapeError, match=r"must be a scalar, its shape is \(2,\)") as caught:
        (hf.compile(run) if compiled else run)(tensor(1, 2))
    assert "hf.sum" in str(caught.value)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", [np.int32, np.bool_])
def test_an_integer_argument(dtype: Any, compiled: bool):
    run = hf.grad(lambda p: hf.sum(p["x"] * 1.0) + hf.sum(p["n"] * 1.0))
    text = rf"grad: argument\['n'\] is {np.dtype(dtype)}, which has no gradient"
    with pytest.raises(DTypeError, match=text) as caught:
        (hf.compile(run) if compiled else run)({"x": tensor(1, 2), "n": hf.asarray(np.ones(2, dtype))})
    assert "argnums" in str(caught.value)
    assert isinstance(caught.value, TypeError)


def test_a_python_integer_argument():
    with pytest.raises(TypeError, match="int32, which has no gradient"):
        hf.grad(lambda x: x * x)(3)
    with pytest.raises(TypeError, match=r"vjp: argument.* is int32"):
        hf.vjp(lambda x: x * x, 3)


def test_an_integer_argument_beside_those_differentiated():
    found = both(hf.grad(lambda x, n: hf.sum(x**n)), tensor(1, 2), hf.asarray(3))
    close(found, np.array([3.0, 12.0]))


@pytest.mark.parametrize("compiled", [False, True])
def test_an_integer_result(compiled: bool):
    run = hf.grad(lambda x: hf.argmax(x))
    with pytest.raises(DTypeError, match="result is int32"):
        (hf.compile(run) if compiled else run)(tensor(1, 2))


@pytest.mark.parametrize("result", [lambda x: (x, x), lambda x: None, lambda x: 1.0, lambda x: {"y": x, "z": x}])
def test_a_result_that_is_no_tensor(result: Any):
    with pytest.raises(ArgumentTypeError, match="must return one tensor, it returned"):
        hf.grad(result)(1.0)


def test_has_aux_needs_a_pair():
    for result in (lambda x: x, lambda x: (x, 1, 2)):
        with pytest.raises(ArgumentTypeError, match=r"has_aux.*\(result, aux\)"):
            hf.grad(result, has_aux=True)(1.0)


@pytest.mark.parametrize("argnums", [2, -3, (0, 5)])
def test_an_argument_number_that_the_call_does_not_have(argnums: Any):
    with pytest.raises(ArgumentError, match=r"argnums has -?\d, the call has 2 positional arguments"):
        hf.grad(lambda a, b: a * b, argnums)(1.0, 2.0)


def test_an_exception_in_the_function_comes_through_and_leaves_nothing():
    def fail(x: hf.Tensor):
        raise KeyError("mine")

    for run in (hf.grad(fail), hf.compile(hf.grad(fail))):
        with pytest.raises(KeyError, match="mine"):
            run(1.0)
    assert hf.grad(lambda x: x * x)(3.0).item() == 6.0


def test_arguments_are_left_as_they_are():
    params = {"w": tensor(1, 2)}
    before = params["w"]
    hf.grad(lambda p: hf.sum(p["w"] ** 2))(params)
    assert params["w"] is before

"""`hf.jvp`, `hf.jacobian`, `hf.hessian`, `hf.hvp`, and every transformation inside every other: against jax."""

from __future__ import annotations

import functools
import itertools
from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError

Pair = namedtuple("Pair", "a b")
X, V = np.array([0.4, -1.3, 0.9]), np.array([1.0, 0.5, -2.0])
W = np.array([[0.5, -0.2], [0.3, 0.8], [-1.0, 0.1]])


def f64(array: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(array, np.float64))


def in_x64(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(fn)(*args))


def several(n: Any, p: Any, x: Any) -> Any:
    return {"y": n.tanh(x @ p.a) * p.b, "z": (n.sum(x**3), n.exp(p.b))}


# -- jvp ----------------------------------------------------------------------------------------------------------


def test_jvp_is_jax_s():
    p, dp = Pair(W, V[:2]), Pair(np.ones_like(W), X[:2])

    def run(p: Any, x: hf.Tensor, dp: Any, dx: hf.Tensor):
        return hf.jvp(lambda p, x: several(hf, p, x), (p, x), (dp, dx))

    found = both(run, *jax.tree_util.tree_map(f64, (p, X, dp, V)), rtol=1e-12)
    expected = in_x64(lambda *a: jax.jvp(lambda p, x: several(jnp, p, x), a[:2], a[2:]), p, X, dp, V)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    close(found, expected, rtol=1e-11)


def test_none_stands_for_no_change():
    def run(x: hf.Tensor, y: hf.Tensor, n: hf.Tensor):
        return hf.jvp(lambda x, y, n: (x * y, y * n, hf.argmax(x), {"n": n}), (x, y, n), (tensor(1, 1), None, None))

    value, tangent = both(run, tensor(1, 2), tensor(3, 4), hf.asarray([5, 6]))
    close([*tangent[:2]], [np.array([3.0, 4.0]), np.zeros(2)])
    assert tangent[2] is None
    assert tangent[3] == {"n": None}
    close(value[1], np.array([15.0, 24.0]))


def test_what_does_not_depend_on_the_primals_and_constants():
    value, tangent = both(lambda x: hf.jvp(lambda x: (tensor(1, 2), hf.stop_gradient(x), x), (x,), (x,)), tensor(5))
    close(tangent, (np.zeros(2), np.zeros(1), np.array([5.0])))
    close(value, (np.array([1.0, 2.0]), np.array([5.0]), np.array([5.0])))
    assert hf.jvp(lambda x: hf.argmax(x), (tensor(5),), (tensor(1),))[1] is None
    assert hf.jvp(lambda x: x * 2.0, (tensor(3),), (None,))[1].item() == 0.0


def test_numbers_and_dtypes():
    assert hf.jvp(lambda x: x * x, (3.0,), (2,))[1].item() == 12.0
    half = hf.jvp(lambda x: x * x, (tensor(3, dtype=np.float16),), (tensor(2, dtype=np.float16),))[1]
    assert (half.dtype, half.item()) == (np.float16, 12.0)


def test_a_captured_variable_and_an_outer_tape():
    v = hf.Variable(2.0)

    def run(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            _, tangent = hf.jvp(lambda x: x**3 * v, (x,), (hf.asarray(1.0),))
        return tangent, tape.gradient(tangent, [x, v])

    tangent, (x, of_v) = both(run, hf.asarray(3.0))
    assert (tangent.item(), x.item(), of_v.item()) == (54.0, 36.0, 27.0)


def test_eager_jvp_may_look_at_values():
    def program(x: hf.Tensor):
        while hf.sum(x) < 10:
            x = x * x + 1.0
        return x

    close(hf.jvp(program, (tensor(1, 2),), (tensor(1, 1),))[1], np.array([2.0 * 2 * 2, 4.0 * 2 * 5]))


def test_custom_rules_and_kinks_are_those_of_gradients():
    @hf.custom_gradient
    def doubled(x: hf.Tensor):
        return x * x, lambda g: g * 100.0 * x

    found = both(lambda x: hf.jvp(lambda x: doubled(x) + hf.nn.relu(x * 0.0), (x,), (x,))[1], tensor(1, 2))
    close(found, np.array([100.0, 400.0]))


def test_jvp_is_the_transpose_of_vjp():
    def program(x: hf.Tensor):
        return hf.nn.softmax(x) * hf.cumulative_sum(x, axis=0)

    _, tangent = hf.jvp(program, (f64(X),), (f64(V),))
    _, pullback = hf.vjp(program, f64(X))
    np.testing.assert_allclose(np.dot(tangent.numpy(), [1.0, 2.0, 3.0]),
                               np.dot(pullback(f64([1.0, 2.0, 3.0]))[0].numpy(), V), rtol=1e-12)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["jvp", "hvp"])
@pytest.mark.parametrize(
    ("primals", "tangents", "error", "text"),
    [((1.0,), (tensor(1, 2),), ShapeError, r"\[0\] has shape \(2,\), its primal \(\)"),
     ((tensor(1, 2),), (f64([1, 2]),), DTypeError, r"\[0\] is float64, its primal float32"),
     (({"a": 1.0},), (1.0,), ArgumentError, r"have structure .*, the primals .*'a'"),
     ((1.0, 2.0), (1.0,), ArgumentError, "have structure"),
     ((3,), (1.0,), DTypeError, r"primal\[0\] is int32, which has no derivative"),
     (1.0, (1.0,), ArgumentTypeError, "primals must be a tuple .*"),
     ((1.0,), 1.0, ArgumentTypeError, "must be a tuple")],
)
def test_directions_are_checked(name: str, primals: Any, tangents: Any, error: Any, text: str, compiled: bool):
    def run():
        return getattr(hf, name)(lambda *xs: hf.sum(xs[0]), primals, tangents)

    with pytest.raises(error, match=f"^{name}: .*{text}"):
        (hf.compile(run) if compiled else run)()


# -- jacobian and hessian -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["auto", "forward", "reverse"])
@pytest.mark.parametrize("argnums", [-1, (1, 0)])
def test_jacobian_is_jax_s(mode: str, argnums: Any):
    p = Pair(W, V[:2])
    run = hf.jacobian(lambda p, x: several(hf, p, x), argnums, mode)
    found = both(run, jax.tree_util.tree_map(f64, p), f64(X), rtol=1e-11)
    expected = in_x64(jax.jacobian(lambda p, x: several(jnp, p, x), argnums), p, X)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("mode", ["forward", "reverse"])
def test_unconnected_and_partly_unconnected_results(mode: str):
    found = both(hf.jacobian(lambda x, y: (x * x, hf.ones((2,))), (0, 1), mode), tensor(1, 2), hf.ones((1, 3)))
    close(found, ((np.diag([2.0, 4.0]), np.zeros((2, 1, 3))), (np.zeros((2, 2)), np.zeros((2, 1, 3)))))


def test_auto_takes_the_smaller_side(monkeypatch: pytest.MonkeyPatch):
    taken: list[str] = []
    from hybridflow.transforms import forward

    rows = forward._forward_rows
    monkeypatch.setattr(forward, "_forward_rows", lambda *a: taken.append("forward") or rows(*a))
    hf.jacobian(lambda x: hf.concat([x, x]))(tensor(1, 2))
    hf.jacobian(lambda x: x[:1] * 2.0)(tensor(1, 2))
    assert taken == ["forward"]


def test_complex_jacobians_are_holomorphic_derivatives():
    z = np.array([1 + 2j, 0.5 - 1j])
    expected = in_x64(jax.jacobian(lambda z: jnp.sin(z) * z[0], holomorphic=True), z)
    for mode in ("forward", "reverse"):
        close(both(hf.jacobian(lambda z: hf.sin(z) * z[0], mode=mode), hf.asarray(z), rtol=1e-11), expected, rtol=1e-10)


def test_hessian_is_jax_s():
    def program(n: Any):
        return lambda p, x: n.sum(n.tanh(x @ p.a) * n.exp(p.b)) + n.sum(x**3)

    p = Pair(W, V[:2])
    for argnums in (0, (0, 1)):
        found = both(hf.hessian(program(hf), argnums), jax.tree_util.tree_map(f64, p), f64(X), rtol=1e-11)
        expected = in_x64(jax.hessian(program(jnp), argnums), p, X)
        assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
        close(found, expected, rtol=1e-10, atol=1e-11)


def test_hessian_of_a_vector():
    found = both(hf.hessian(lambda x: hf.sin(x) * x[0]), f64(X), rtol=1e-11)
    close(found, in_x64(jax.hessian(lambda x: jnp.sin(x) * x[0]), X), rtol=1e-10, atol=1e-12)


def test_hvp_is_jax_s():
    def program(n: Any):
        return lambda p, x: n.sum(n.tanh(x @ p.a) * n.exp(p.b)) + n.sum(x**3)

    args, vectors = (Pair(W, V[:2]), X), (Pair(W * 2, X[:2]), V)
    to = functools.partial(jax.tree_util.tree_map, f64)
    found = both(lambda a, v: hf.hvp(program(hf), a, v), to(args), to(vectors), rtol=1e-11)
    expected = in_x64(lambda a, v: jax.jvp(jax.grad(program(jnp), (0, 1)), a, v)[1], args, vectors)
    assert isinstance(found, tuple)
    close(found, expected, rtol=1e-10)


def test_hvp_of_a_linear_function_is_zero_and_needs_a_vector_each():
    close(hf.hvp(hf.sum, (tensor(1, 2),), (tensor(1, 1),)), (np.zeros(2),))
    with pytest.raises(DTypeError, match="hvp: primal 1 has no gradient or no vector"):
        hf.hvp(lambda x, y: hf.sum(x * y), (1.0, 2.0), (1.0, None))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("run", "error", "text"),
    [(lambda: hf.jacobian(lambda x: x, mode="fwd"), ArgumentError, r"mode='fwd' is not one of \['auto'"),
     (lambda: hf.jacobian(lambda x: x, 1)(1.0), ArgumentError, "jacobian: argnums has 1, the call has 1"),
     (lambda: hf.jacobian(lambda x: x)(1), DTypeError, "jacobian: argument.* is int32"),
     (lambda: hf.jacobian(lambda x: hf.argmax(x))(tensor(1)), DTypeError, r"tensors of floats, it returned i32\[\]"),
     (lambda: hf.jacobian(lambda x: None)(1.0), ArgumentTypeError, "it returned a NoneType"),
     (lambda: hf.hvp(lambda x: x, (tensor(1, 2),), (tensor(1, 2),)), ShapeError, "must be a scalar")],
)
def test_errors(run: Any, error: Any, text: str, compiled: bool):
    with pytest.raises(error, match=text):
        (hf.compile(run) if compiled else run)()


def test_names_and_docstrings_stay():
    def loss(x: hf.Tensor):
        """Say what it is."""
        return hf.sum(x)

    for made in (hf.jacobian(loss), hf.hessian(loss), hf.vmap(loss)):
        assert (made.__name__, made.__doc__) == ("loss", "Say what it is.")


# -- orders -------------------------------------------------------------------------------------------------------

SMOOTH = [
    lambda n, x: n.exp(n.sin(x)) * x[0],
    lambda n, x: n.tanh(x) ** 2 / (1.0 + n.sum(x * x)),
    lambda n, x: n.log(1.0 + n.exp(x @ x * 0.1)) * n.cos(x),
]


@pytest.mark.parametrize("order", [2, 3, 4])
@pytest.mark.parametrize("number", range(len(SMOOTH)))
def test_directional_derivatives_up_to_the_fourth_order(number: int, order: int):
    def derivative(lib: Any, n: Any):
        f = lambda x: SMOOTH[number](n, x)  # noqa: E731
        for direction in itertools.islice(itertools.cycle([V, X]), order):
            f = functools.partial(lambda f, d, x: lib.jvp(f, (x,), (d,))[1], f, direction)
        return f

    found = both(derivative(hf, hf), f64(X), rtol=1e-9, atol=1e-9)
    close(found, in_x64(derivative(jax, jnp), X), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("modes", [("forward", "reverse", "reverse"), ("reverse", "forward", "forward"),
                                   ("auto", "auto", "auto", "auto")])
def test_jacobians_of_jacobians(modes: tuple[str, ...]):
    def f(n: Any, x: Any) -> Any:
        return n.sum(n.exp(n.sin(x)) * x)

    found: Any = functools.reduce(lambda g, mode: hf.jacobian(g, mode=mode), modes, lambda x: f(hf, x))
    expected: Any = functools.reduce(lambda g, _: jax.jacobian(g), modes, lambda x: f(jnp, x))
    close(found(f64(X[:2])), in_x64(expected, X[:2]), rtol=1e-8, atol=1e-9)


# -- every transformation inside every other ----------------------------------------------------------------------


def by_tape(f: Any) -> Any:
    def gradient(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(f(x) ** 2)
        return tape.gradient(y, x)

    return gradient


def tape_jacobian(f: Any) -> Any:
    def rows(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return V @ tape.jacobian(y, x)

    return rows


def of(lib: Any, n: Any) -> dict[str, Any]:
    ours = lib is hf
    return {
        "grad": lambda f: lib.grad(lambda x: n.sum(f(x) * x)),
        "vjp": lambda f: lambda x: lib.vjp(f, x)[1](x * 0 + V)[0],
        "jvp": lambda f: lambda x: lib.jvp(f, (x,), (x * 0 + V,))[1],
        "jacobian": lambda f: lambda x: V @ lib.jacobian(f)(x),
        "hessian": lambda f: lambda x: lib.hessian(lambda x: n.sum(f(x) * V))(x) @ x,
        "vmap": lambda f: lambda x: n.sum(lib.vmap(f)(n.stack([x, 0.5 * x])), axis=0),
        "vmap in": lambda f: lambda x: lib.vmap(lambda a, b: n.sum(f(a) * b), (None, 0))(x, n.stack([x, x * x, 0 * x])),
        "compile": hf.compile if ours else jax.jit,
        "tape": by_tape if ours else lambda f: jax.grad(lambda x: jnp.sum(f(x) ** 2)),
        "tape.jacobian": tape_jacobian if ours else lambda f: lambda x: V @ jax.jacobian(f)(x),
        "scan": lambda f: lambda x: (lib if ours else jax.lax).scan(
            lambda c, s: (0.5 * f(c) + s, c * s), x, n.stack([x, 0.1 * x])
        )[1][1],
    }


OURS, JAXS = of(hf, hf), of(jax, jnp)
MAIN = ["grad", "jvp", "jacobian", "vmap", "compile", "tape.jacobian"]
PAIRS = [*itertools.product(MAIN, MAIN), ("scan", "jvp"), ("vmap", "scan"), ("vmap in", "vjp"), ("tape", "vmap in"),
         ("jvp", "scan"), ("hessian", "vmap"), ("vmap", "hessian"), ("compile", "hessian")]
TRIPLES = [tuple(np.random.default_rng(i).choice([name for name in OURS if name != "hessian"], 3)) for i in range(6)]


@pytest.mark.parametrize("names", [*PAIRS, *TRIPLES], ids="-".join)
def test_compositions(names: tuple[str, ...]):
    def f(n: Any):
        return lambda x: n.tanh(x * x[0]) + 0.3 * x * n.sum(x)

    found = functools.reduce(lambda g, name: OURS[name](g), reversed(names), f(hf))(f64(X))
    expected = in_x64(functools.reduce(lambda g, name: JAXS[name](g), reversed(names), f(jnp)), X)
    close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("names", TRIPLES[::2], ids="-".join)
def test_compositions_compiled(names: tuple[str, ...]):
    def f(x: Any):
        return hf.tanh(x * x[0]) + 0.3 * x * hf.sum(x)

    run = functools.reduce(lambda g, name: OURS[name](g), reversed(names), f)
    same(run(f64(X)), hf.compile(run)(f64(X)), rtol=1e-9, atol=1e-9)

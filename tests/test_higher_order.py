"""Gradients of gradients: nested tapes, a persistent tape asked inside its own block, and tapes under functions."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, DTypeError, GradientError
from hybridflow.core.op import REGISTRY, Sample

Program = Callable[[Any, Any], Any]


def nested(program: Program, order: int) -> Callable[[hf.Tensor], hf.Tensor]:
    """Return the order-th derivative of the sum of a program by nested tapes, one inside the other."""
    if order == 0:
        return lambda x: program(hf, x)

    def derivative(x: hf.Tensor) -> hf.Tensor:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = nested(program, order - 1)(x)
        return tape.gradient(y, x, unconnected_gradients="zero")

    return derivative


def by_jax(program: Program, order: int) -> Callable[[Any], Any]:
    def gradient_of(function: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(function(x)))

    derivative: Any = lambda x: program(jnp, x)  # noqa: E731
    for _ in range(order):
        derivative = gradient_of(derivative)
    return jax.jit(derivative)


PROGRAMS: list[Program] = [
    lambda n, x: n.tanh(x) * x,
    lambda n, x: n.exp(n.sin(x)) / (1.0 + x * x),
    lambda n, x: n.sum(x * x) * x + n.log(1.0 + n.exp(x)),
    lambda n, x: n.sqrt(n.abs(x) + 0.5) ** 3,
    lambda n, x: n.matmul(n.reshape(x, (1, -1)) * x, n.reshape(x, (-1, 1))),
    lambda n, x: n.max(x * x) * n.mean(x) + x[1] ** 3 * x[0],
    lambda n, x: n.where(x > 0, x**3, n.cos(x)),
    lambda n, x: n.concat([x * x, x[::-1] ** 3]) if n is hf else jnp.concatenate([x * x, x[::-1] ** 3]),
    lambda n, x: n.var(x) * n.cumulative_sum(x**2),
]


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("program", PROGRAMS)
def test_nested_tapes_give_what_jax_gives(program: Program, order: int):
    x = np.array([0.4, -1.3, 0.9])
    found = both(nested(program, order), hf.asarray(x), rtol=1e-9)
    with jax.enable_x64(True):
        expected = np.asarray(by_jax(program, order)(jnp.asarray(x)))
    close(found, expected, rtol=1e-8, atol=1e-9)


def test_gradient_in_the_block_of_a_persistent_tape_is_recorded():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x**4
            first = tape.gradient(y, x)
            second = tape.gradient(first, x)
            third = tape.gradient(second, x)
        return first, second, third, tape.gradient(third, x)

    assert [g.item() for g in both(f, hf.asarray(2.0))] == [32.0, 48.0, 48.0, 24.0]


def test_gradient_in_the_block_of_a_tape_that_is_not_persistent_is_not_recorded():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                first = tape.gradient(x**3, x)
        return first, outer.gradient(first, x)

    first, second = both(f, hf.asarray(2.0))
    assert (first.item(), second.item()) == (12.0, 12.0)  # the outer tape recorded it


def test_variables_in_higher_orders():
    v = hf.Variable(2.0)

    def f():
        with hf.GradientTape() as outer:
            with hf.GradientTape() as inner:
                y = v * v * v
            first = inner.gradient(y, v)
        return first, outer.gradient(first, v)

    assert [g.item() for g in both(f)] == [12.0, 12.0]


def test_a_gradient_joins_the_outer_loss():
    # A gradient penalty: the loss contains the norm of an inner gradient.
    w = np.array([[0.5, -0.2], [0.1, 0.8]])
    x = np.array([1.0, -2.0])

    def f(w: hf.Tensor, x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(w)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = hf.sum(hf.tanh(w @ x))
            penalty = hf.sum(inner.gradient(y, x) ** 2)
            loss = y + 0.1 * penalty
        return outer.gradient(loss, w)

    def of_jax(w: Any):
        def y(x: Any):
            return jnp.sum(jnp.tanh(w @ x))

        return y(x) + 0.1 * jnp.sum(jax.grad(y)(x) ** 2)

    found = both(f, hf.asarray(w), hf.asarray(x), rtol=1e-10)
    with jax.enable_x64(True):
        close(found, np.asarray(jax.jit(jax.grad(of_jax))(w)), rtol=1e-10)


def test_mixed_second_derivatives():
    def f(x: hf.Tensor, y: hf.Tensor):
        with hf.GradientTape(persistent=True) as outer:
            outer.watch([x, y])
            with hf.GradientTape() as inner:
                inner.watch([x, y])
                z = x * x * y * y * y
            gx, gy = inner.gradient(z, [x, y])
        return outer.gradient(gx, [x, y]), outer.gradient(gy, [x, y])

    (xx, xy), (yx, yy) = both(f, hf.asarray(2.0), hf.asarray(3.0))
    assert (xx.item(), xy.item(), yx.item(), yy.item()) == (54.0, 108.0, 108.0, 72.0)


def test_a_second_order_that_is_zero_is_none():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = x * 3.0
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = both(f, hf.asarray(2.0))
    assert first.item() == 3.0
    assert second is None


def test_an_inner_gradient_outside_every_block_is_a_constant():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = x * x
        first = inner.gradient(y, x)
        return outer.gradient(first, x)

    assert both(f, hf.asarray(2.0)) is None


def test_a_step_of_gradient_descent_can_be_differentiated():
    # MAML: the outer gradient goes through the inner update.
    def f(w: hf.Tensor, x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(w)
            fast = w
            for _ in range(3):
                with hf.GradientTape() as inner:
                    inner.watch(fast)
                    loss = hf.sum((fast * x - 1.0) ** 2)
                fast = fast - 0.1 * inner.gradient(loss, fast)
            final = hf.sum((fast * x - 1.0) ** 2)
        return outer.gradient(final, w)

    x = np.array([0.5, -1.2, 0.3])

    def of_jax(w: Any):
        def loss(w: Any):
            return jnp.sum((w * x - 1.0) ** 2)

        for _ in range(3):
            w = w - 0.1 * jax.grad(loss)(w)
        return loss(w)

    w = np.array([1.0, 2.0, 3.0])
    found = both(f, hf.asarray(w), hf.asarray(x), rtol=1e-10)
    with jax.enable_x64(True):
        close(found, np.asarray(jax.jit(jax.grad(of_jax))(w)), rtol=1e-10)


@pytest.mark.parametrize("where", ["outside", "inside", "between"])
def test_second_order_across_a_compiled_function(where: str):
    """The compiled function is under both tapes, holds both, or holds the inner one."""

    def program(x: hf.Tensor):
        return hf.sum(hf.tanh(x) * x * x)

    def inner(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = (hf.compile(program) if where == "outside" else program)(x)
        return tape.gradient(y, x)

    def outer(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            g = (hf.compile(inner) if where == "between" else inner)(x)
        return g, tape.gradient(g, x)

    x = np.array([0.4, -1.3, 0.9])
    first, second = (hf.compile(outer) if where == "inside" else outer)(hf.asarray(x))
    with jax.enable_x64(True):
        by = jax.grad(lambda x: jnp.sum(jnp.tanh(x) * x * x))
        close(first, np.asarray(jax.jit(by)(x)), rtol=1e-10)
        close(second, np.asarray(jax.jit(jax.grad(lambda x: jnp.sum(by(x))))(x)), rtol=1e-10)


def test_third_order_across_a_compiled_function():
    cube = hf.compile(lambda x: x**4)

    def derivative(f: Any):
        def g(x: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return tape.gradient(y, x)

        return g

    assert derivative(derivative(derivative(cube)))(hf.asarray(2.0)).item() == 48.0


def test_low_precision_second_order():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = hf.sum(x * x * x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x)

    first, second = both(f, tensor(1, 2, dtype=np.float16))
    assert first.dtype == second.dtype == np.float16
    close([first, second], [np.array([3.0, 12.0]), np.array([6.0, 12.0])])


# -- special points ----------------------------------------------------------------------------------------------------


BY_QUADRATURE = ("gammainc", "gammaincc", "gammaincinv", "zeta")
"""Their third derivatives by parameters take a minute to compile; tests/test_special.py has the others."""


def curved_ops() -> dict[str, int]:
    """Return the names of the pointwise ops of floats that have gradients, each with how many operands it takes."""
    found: dict[str, int] = {}
    for name, op in REGISTRY.items():
        if name in BY_QUADRATURE:
            continue
        if op.has("pointwise") and not {"inner", "own_rule"} & op.traits and op.vjp is not None and op.public:
            for count in (1, 2):
                with contextlib.suppress(Exception):  # it takes another number of operands
                    if op.public(*[hf.asarray(0.5, dtype=hf.float64)] * count).dtype == hf.float64:
                        found[name] = count
                        break
    return found


CURVED = curved_ops()
NEARBY = np.array([[0.0, 0.0], [1.0, 2.3], [-1.7, 1.0], [-1.0, -1.9], [2.1, -1.3]]) * 1e-4
PLACES = {1: (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0), 2: (-1.0, 0.0, 1.0, 2.0)}


Orders = dict[tuple[int, ...], Any]


def derivatives(function: Any, order: int) -> Callable[..., Orders]:
    """Return a function that computes all derivatives up to an order, by the operands by which it derives in turn."""

    def compute(*xs: hf.Tensor) -> Orders:
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(xs)
            found: Orders = {(): function(*xs)}
            for number in range(order):
                for by in [one for one in found if len(one) == number]:
                    for index, x in enumerate(xs):
                        found[*by, index] = tape.gradient(found[by], x, unconnected_gradients="zero")
        return found

    return compute


@pytest.mark.parametrize("name", sorted(CURVED))
def test_derivatives_at_special_points_are_those_nearby(name: str):
    """A rule that gives a constant at a point (a tie, a zero, an exponent of 0) loses what is differentiated again."""
    count, function = CURVED[name], REGISTRY[name].public
    places = np.array(list(itertools.product(PLACES[count], repeat=count)))
    points = [hf.asarray(x) for x in np.moveaxis(places + NEARBY[:, None, :count], -1, 0)]
    compute = derivatives(function, 3)
    for found in (compute(*points), hf.compile(compute)(*points)):
        smooth = {(): np.ones(len(places), bool)}
        for by in list(found)[1:]:
            here, *near = found[by].numpy()
            scale = 0.01 + 0.01 * np.max(np.abs(near), 0)
            spread = np.max(np.abs(near - near[0]), 0)
            smooth[by] = smooth[by[:-1]] & np.isfinite(near).all(0) & (spread < scale)
            for number in np.flatnonzero(smooth[by] & ~(np.abs(here - near[0]) < 5 * scale)):
                text = f"{here[number]} at {places[number]}, but {near[0][number]} nearby"
                raise AssertionError(f"{name}: derivative of order {len(by)} by {by}: {text}")


def det_by_minors(a: Any) -> Any:
    n = len(a)
    return sum((-1) ** j * a[0, j] * det_by_minors(jnp.delete(a[1:], j, 1)) for j in range(n)) if n else jnp.ones(())


def adjugate_by_minors(a: Any) -> Any:
    n = len(a)
    minors = [[det_by_minors(jnp.delete(jnp.delete(a, j, 0), i, 1)) for j in range(n)] for i in range(n)]
    return jnp.array([[(-1) ** (i + j) * minors[i][j] for j in range(n)] for i in range(n)])


def product_of_all(x: Any) -> Any:
    return functools.reduce(lambda product, one: product * one, x, jnp.ones(()))


SINGULAR = {
    "zeros": np.zeros((3, 3)), "ones": np.ones((3, 3)), "rank 2": np.arange(1.0, 10).reshape(3, 3),
    "rank 1": np.diag([0.0, 2, 0]), "one by one": np.zeros((1, 1)), "two by two": np.ones((2, 2)),
}
ROWS = {
    "zeros": np.zeros(3), "one zero": np.array([2.0, 0, 3]), "two zeros": np.array([0.0, 5, 0, 2]), "ties": np.ones(3),
}
POLYNOMIALS: list[tuple[Any, Any, dict[str, np.ndarray[Any, Any]]]] = [
    (hf.linalg.det, det_by_minors, {**SINGULAR, "empty": np.zeros((0, 0))}),
    (hf.linalg.adjugate, adjugate_by_minors, {one: SINGULAR[one] for one in ("ones", "one by one", "two by two")}),
    (lambda a: hf.linalg.matrix_power(a, 3), lambda a: a @ a @ a, SINGULAR),
    (hf.prod, product_of_all, {**ROWS, "empty": np.zeros(0)}),
    (hf.cumulative_prod, lambda x: jnp.stack([product_of_all(x[: i + 1]) for i in range(len(x))]), ROWS),
    (hf.var, jnp.var, ROWS),
    (hf.logsumexp, jax.nn.logsumexp, {**ROWS, "one": np.ones(1), "an infinity": np.array([-np.inf, 1.0, 2.0])}),
    (hf.nn.softmax, jax.nn.softmax, ROWS),
    (hf.nn.log_softmax, jax.nn.log_softmax, ROWS),
]
REGULAR = {"identity": np.eye(3), "diagonal": np.diag([1.0, 2, 3]), "equal rows and one": np.eye(3) + np.ones((3, 3))}
SIGNED = {"one zero": np.array([2.0, 0, -3]), "ties": np.array([1.0, 1, -1])}
TWO = np.arange(1.0, 7).reshape(3, 2)
OF_INVERSES: list[tuple[Any, Any, dict[str, np.ndarray[Any, Any]]]] = [
    (hf.linalg.inv, jnp.linalg.inv, REGULAR),
    (lambda a: hf.linalg.solve(a, hf.asarray(TWO)), lambda a: jnp.linalg.inv(a) @ TWO, REGULAR),
    (hf.linalg.pinv, jnp.linalg.inv, REGULAR),
    (lambda a: hf.linalg.cholesky((a + a.mT) / 2), lambda a: jnp.linalg.cholesky((a + a.T) / 2), REGULAR),
    (lambda a: hf.linalg.slogdet(a)[1], lambda a: jnp.log(det_by_minors(a)), REGULAR),
    (hf.linalg.expm, jax.scipy.linalg.expm, {"identity": np.eye(3)}),
    (lambda a: hf.linalg.matrix_power(a, -2), lambda a: jnp.linalg.inv(a @ a), REGULAR),
    (hf.linalg.vector_norm, lambda x: jnp.sqrt(x @ x), SIGNED),
    (lambda x: hf.linalg.vector_norm(x, ord=4), lambda x: jnp.sum(x**4) ** 0.25, SIGNED),
    (lambda x: hf.sum(hf.sort(x) ** 3), lambda x: jnp.sum(x**3), {**SIGNED, **ROWS}),
    (lambda x: hf.sum(hf.top_k(x, 3)[0] ** 3), lambda x: jnp.sum(x**3), {**SIGNED, "ties": np.ones(3)}),
    (lambda x: hf.nn.softmax_cross_entropy(x, hf.asarray(1)), lambda x: -jax.nn.log_softmax(x)[1], ROWS),
]
"""Of equal eigenvalues, `eigh` and `svd` say what they do; a norm has no derivative at 0."""
POINTS = [
    pytest.param(function, of_jax, x, id=f"{number}-{name}", marks=[pytest.mark.rest] * (number >= len(POLYNOMIALS)))
    for number, (function, of_jax, points) in enumerate([*POLYNOMIALS, *OF_INVERSES])
    for name, x in points.items()
]


@pytest.mark.parametrize(("function", "of_jax", "x"), POINTS)
def test_derivatives_along_directions_at_special_points(function: Any, of_jax: Any, x: np.ndarray[Any, Any]):
    """To the third order, against nested jets of plain formulas in jax."""
    rng = np.random.default_rng(3)
    directions = rng.standard_normal((3, *x.shape))

    def along(x: hf.Tensor) -> list[hf.Tensor]:
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            found = [hf.sum(function(x) * weights)]
            for direction in directions:
                gradient = tape.gradient(found[-1], x, unconnected_gradients="zero")
                found.append(hf.sum(gradient * direction))
        return found

    with jax.enable_x64(True):
        jets = [of_jax]
        for direction in directions:
            jets.append(lambda x, jet=jets[-1], direction=direction: jax.jvp(jet, (x,), (direction,))[1])
        value = jets[0](jnp.asarray(x))
        weights = rng.uniform(0.5, 1.5, value.shape)
        expected = [np.sum(weights * np.asarray(jet(jnp.asarray(x)))) for jet in jets]
    close(both(along, hf.asarray(x), rtol=1e-9, atol=1e-9), expected, rtol=1e-8, atol=1e-9)


def test_equal_infinities_share_a_gradient():
    gradient = hf.grad(lambda x: hf.sum(hf.logsumexp(x, axis=1)))
    inf = np.inf
    x = hf.asarray([[-inf, -inf], [inf, inf], [-inf, 1.0], [inf, 1.0]])
    assert both(gradient, x).tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 1.0], [1.0, 0.0]]


def numbers_given() -> list[Any]:
    """Return every floating-point argument of the samples of public functions, with the call that takes another."""
    public = {id(value) for part in (hf, hf.nn, hf.linalg, hf.fft, hf.special) for value in vars(part).values()}
    found: dict[str, Any] = {}
    for op in REGISTRY.values():
        function = op.public
        if id(function) not in public or not callable(op.samples):
            continue
        for sample in op.samples(np.random.default_rng(0)):
            if isinstance(sample, Sample):
                named = {**dict(enumerate(sample.args)), **sample.kwargs}
                for place in [place for place, value in named.items() if type(value) is float and np.isfinite(value)]:

                    def call(number: Any, place: Any = place, named: Any = named, function: Any = function) -> Any:
                        given = {**named, place: number}
                        args = [given.pop(key) for key in sorted(key for key in named if type(key) is int)]
                        return hf.tree.leaves(function(*args, **given))

                    found.setdefault(f"{op.name}-{place}", (call, named[place]))
    found["truncated_normal-low"] = lambda low: [hf.random.truncated_normal((3,), low=low)], -1.0
    return [pytest.param(*values, id=name) for name, values in found.items()]


@pytest.mark.parametrize(("call", "number"), numbers_given())
def test_a_number_given_as_a_tensor_gets_its_gradient_or_an_error_says_that_it_gets_none(call, number):
    t = hf.tensor(np.asarray(number), requires_grad=True)
    try:
        results = call(t)
    except (GradientError, ArgumentError, DTypeError, TypeError):
        return
    hf.random.seed(0)
    before = [np.asarray(y) for y in call(number)]
    hf.random.seed(0)
    after = [np.asarray(y) for y in call(number * 1.001 + 1e-3)]
    pairs = [(x, y) for x, y in zip(before, after, strict=True) if x.shape == y.shape]
    depends = not all(np.array_equal(x, y, equal_nan=True) for x, y in pairs)
    assert not depends or any(y.requires_grad for y in results)


def test_ends_of_linspace_and_the_scale_of_attention_have_gradients():
    q = np.random.default_rng(0).normal(size=(2, 3, 4))
    points: Program = lambda n, x: n.linspace(x, 3.0, 5) * n.linspace(-1.0, x * x, 5)  # noqa: E731
    weights: Program = lambda n, x: hf.nn.scaled_dot_product_attention(q, q, q, scale=x)  # noqa: E731
    by_hand: Program = lambda n, x: hf.nn.softmax((q @ q.swapaxes(1, 2)) * x, axis=-1) @ hf.asarray(q)  # noqa: E731
    x = hf.asarray(np.asarray(0.7))
    for order in (1, 2, 3):
        with jax.enable_x64(True):
            expected = by_jax(points, order)(0.7)
        close(both(nested(points, order), x), expected)
        close(both(nested(weights, order), x), nested(by_hand, order)(x))

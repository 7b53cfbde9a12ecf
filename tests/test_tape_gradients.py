"""`tape.gradient`: structures, seeds, dtypes and shapes of what it returns."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, central, close, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, DTypeError, ShapeError

Pair = namedtuple("Pair", "first second")


@jax.tree_util.register_pytree_node_class
class Model:
    """A registered pytree of two weights."""

    def __init__(self, scale: Any, shift: Any) -> None:
        self.scale = scale
        self.shift = shift

    def tree_flatten(self):
        return (self.scale, self.shift), None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any):
        return cls(*children)


# -- structures ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "nest",
    [lambda a, b: [a, b], lambda a, b: (a, b), lambda a, b: {"b": b, "a": a}, lambda a, b: Pair(a, b),
     lambda a, b: {"deep": [(a,), {"b": [b]}]}, lambda a, b: Model(a, b)],
)
def test_gradients_have_the_nesting_of_the_sources(nest: Any):
    def f(a: hf.Tensor, b: hf.Tensor):
        sources = nest(a, b)
        with hf.GradientTape() as tape:
            tape.watch(sources)
            y = hf.sum(a * a * b)
        return tape.gradient(y, sources)

    a, b = np.float32([1, 2]), np.float32([3, 4])
    found = both(f, hf.asarray(a), hf.asarray(b))
    expected = nest(2 * a * b, a * a)
    assert jax.tree_util.tree_structure(found) == jax.tree_util.tree_structure(expected)
    close(found, expected)


def test_none_keeps_its_place():
    def f(a: hf.Tensor, b: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([a, b])
            y = a * a
        return tape.gradient(y, {"a": a, "b": [b, a]})

    found = both(f, hf.asarray(1.0), hf.asarray(2.0))
    assert found["b"][0] is None
    assert found["a"].item() == found["b"][1].item() == 2.0


def test_an_empty_structure_of_sources_gives_an_empty_one():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, {"nothing": []})

    assert both(f, hf.asarray(1.0)) == {"nothing": []}


@pytest.mark.parametrize("nest", [list, tuple, lambda ts: {"a": ts[0], "rest": ts[1:]}])
def test_several_targets_are_summed(nest: Any):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            targets = nest([x * x, hf.sum(x * 3.0), x[0]])
        return tape.gradient(targets, x)

    close(both(f, tensor(1, 2)), np.array([6.0, 7.0]))


def test_the_elements_of_a_target_are_summed():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    close(both(f, hf.asarray(np.float32([[1, 2], [3, 4]]))), np.array([[2.0, 4.0], [6.0, 8.0]]))


def test_the_same_target_twice_counts_twice():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient([y, y], x)

    assert both(f, hf.asarray(3.0)).item() == 12.0


def test_an_unconnected_target_adds_nothing():
    def f(x: hf.Tensor, other: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            targets = [x * x, other * other, other]
        return tape.gradient(targets, x)

    assert both(f, hf.asarray(3.0), hf.asarray(1.0)).item() == 6.0


def test_a_target_may_be_a_source():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = x * x
            z = hf.sum(y * y)
        return [
            tape.gradient(x, x),
            tape.gradient(y, y),
            tape.gradient([z, y], [y, x]),
            tape.gradient(z, [z, y, x]),
            tape.gradient(x, y),
        ]

    same_x, same_y, mixed, chain, backwards = both(f, tensor(1, 2))
    close([same_x, same_y], [np.ones(2), np.ones(2)])
    close(mixed, [np.array([3.0, 9.0]), np.array([6.0, 36.0])])
    close(chain, [np.array(1.0), np.array([2.0, 8.0]), np.array([4.0, 32.0])])
    assert backwards is None


def test_a_variable_as_target():
    v, w = hf.Variable([1.0, 2.0]), hf.Variable([3.0, 4.0], trainable=False)

    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            y = v * x
            inside = tape.gradient(v, v)
        nones = tape.gradient(w, w), tape.gradient(w, v)
        return inside, tape.gradient(v, [v, w]), tape.gradient([y, {"v": v}], v), nones

    inside, (ones, none), summed, (not_trainable, other) = both(f, tensor(5, 6))
    close([inside, ones, summed], [np.ones(2), np.ones(2), np.array([6.0, 7.0])])
    assert none is not_trainable is other is None


def test_a_variable_as_target_was_watched_or_not():
    v = hf.Variable(2.0)

    def f():
        found = []
        for watched in (False, True):
            tape = hf.GradientTape(watch_accessed_variables=False)
            with tape:
                if watched:
                    tape.watch(v)
            found.append(tape.gradient(v, v))
        return found

    none, one = both(f)
    assert none is None
    assert one.item() == 1.0


def test_repeated_sources_each_get_the_whole_gradient():
    v = hf.Variable(3.0)

    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x * v
        return tape.gradient(y, [x, v, x, [v]])

    a, b, c, (d,) = both(f, hf.asarray(2.0))
    assert a.item() == c.item() == 12.0
    assert b.item() == d.item() == 4.0


def test_an_intermediate_value_as_source_does_not_hide_what_is_behind_it():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            h = x * x
            y = h * x
        return tape.gradient(y, [h, x])

    assert [g.item() for g in both(f, hf.asarray(2.0))] == [2.0, 12.0]


def test_one_of_several_outputs_as_source_and_target():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b = hf.split(x, 2)
            y = hf.sum(a * a * b)
        return tape.gradient(y, [a, b, x]), tape.gradient(b, [a, b, x])

    (a, b, x), (none, ones, half) = both(f, tensor(1, 2, 3, 4))
    close([a, b, x], [np.array([6.0, 16.0]), np.array([1.0, 4.0]), np.array([6.0, 16.0, 1.0, 4.0])])
    assert none is None
    close([ones, half], [np.ones(2), np.array([0.0, 0.0, 1.0, 1.0])])


# -- output gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [[1.0, 10.0], np.float32([1, 10]), (1.0, 10), tensor(1, 10), hf.Variable([1.0, 10.0])])
def test_output_gradients_start_the_walk(seed: Any):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient([y], x, output_gradients=[hf.asarray(seed)])

    close(both(f, tensor(1, 2)), np.array([2.0, 40.0]))


def test_output_gradients_have_the_targets_structure():
    def f(x: hf.Tensor, g: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y, z = x * x, hf.sum(x)
        return (
            tape.gradient({"y": y, "z": z}, x, output_gradients={"z": 100.0, "y": g}),
            tape.gradient([y, z], x, output_gradients=[g, None]),
            tape.gradient([y, z], x, output_gradients=None),
        )

    given, ones_for_none, ones = both(f, tensor(1, 2), tensor(1, 10))
    close(given, np.array([102.0, 140.0]))
    close(ones_for_none, np.array([3.0, 41.0]))
    close(ones, np.array([3.0, 5.0]))


def test_output_gradients_may_depend_on_the_source():
    def f(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = x * x
            g = inner.gradient(y, x, output_gradients=hf.sin(x))
        return g, outer.gradient(g, x)

    x = np.float32([0.3, 1.2])
    g, second = both(f, hf.asarray(x))
    close(g, 2 * x * np.sin(x))
    close(second, 2 * np.sin(x) + 2 * x * np.cos(x))


BAD_SEEDS = [
    (lambda: tensor(1, 2, 3), ShapeError, r"output_gradients\[0\] has shape \(3,\), its target \(2,\)"),
    (lambda: hf.asarray(1.0), ShapeError, r"has shape \(\), its target \(2,\)"),
    (lambda: 1.0, ShapeError, r"has shape \(\), its target \(2,\)"),
    (lambda: [1.0, 2.0, 3.0], (ArgumentError, ShapeError), r"\[\*, \*, \*\]|\(3,\)"),
    (lambda: hf.asarray(np.ones(2)), DTypeError, r"output_gradients\[0\] is float64, its target float32"),
    (lambda: np.ones(2, np.int32), DTypeError, r"is int32, its target float32"),
    (lambda: {"a": tensor(1, 2)}, ArgumentError, r"structure .*'a'.*, the target .*\*"),
    (lambda: [tensor(1, 2), tensor(1, 2)], ArgumentError, r"\[\*, \*\]"),
]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("seed", "error", "text"), BAD_SEEDS)
def test_output_gradients_unlike_the_target(seed: Any, error: Any, text: str, compiled: bool):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x, output_gradients=seed())

    with pytest.raises(error, match=text):
        (hf.compile(f) if compiled else f)(tensor(1, 2))


def test_the_wrong_one_of_several_output_gradients_is_named():
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y, z = x * x, hf.sum(x)
    with pytest.raises(ShapeError, match=r"output_gradients\[1\] has shape \(2,\), its target \(\)"):
        tape.gradient([y, z], x, output_gradients=[tensor(1, 1), tensor(1, 1)])
    with pytest.raises(DTypeError, match=r"output_gradients\[0\] is float64"):
        tape.gradient([y, z], x, output_gradients=[np.ones(2), 1.0])


# -- dtypes and shapes --------------------------------------------------------------------------------------------

FLOATS = ["float16", "bfloat16", "float32", "float64"]


@pytest.mark.parametrize("through", FLOATS)
@pytest.mark.parametrize("source", FLOATS)
def test_a_gradient_has_its_sources_dtype_through_casts(source: str, through: str):
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum((x.astype(through) * 2).astype("float32"))
        return tape.gradient(y, x)

    found = both(f, hf.asarray([1.0, 2.0], dtype=source))
    assert str(found.dtype) == source
    assert np.asarray(found, np.float64).tolist() == [2.0, 2.0]


def test_a_cast_through_an_integer_cuts_the_path():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x.astype(hf.int32).astype(hf.float32) * 2.0
        return tape.gradient(y, x)

    assert both(f, tensor(1.5, 2.5)) is None


def test_mixed_dtypes_each_get_their_own():
    def f(a: hf.Tensor, b: hf.Tensor, n: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([a, b])
            y = hf.sum(a * b * n + 1)
        return y, tape.gradient(y, [a, b, n])

    y, (a, b, n) = both(f, tensor(1, 2), hf.asarray(np.array([3.0, 4.0])), hf.asarray([5, 6]))
    assert (y.dtype, a.dtype, b.dtype) == (np.float64, np.float32, np.float64)
    close([a, b], [np.array([15.0, 24.0]), np.array([5.0, 12.0])])
    assert n is None


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [((), (2, 3)), ((3,), (2, 3)), ((2, 1), (2, 3)), ((1, 3), (4, 1)), ((0, 3), (1,)), ((1,), (0,))],
)
@pytest.mark.parametrize("name", ["add", "multiply", "subtract", "divide", "where", "maximum"])
def test_a_gradient_has_its_sources_shape_through_broadcasting(name: str, a_shape: Any, b_shape: Any, rng: Any):
    a, b = rng.uniform(1, 2, a_shape), rng.uniform(3, 4, b_shape)

    def call(namespace: Any, x: Any, y: Any):
        return namespace.where(x > 0, x, y) if name == "where" else getattr(namespace, name)(x, y)

    def f(x: hf.Tensor, y: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, y])
            z = hf.sum(call(hf, x, y) ** 2)
        return tape.gradient(z, [x, y], unconnected_gradients="zero")

    found = both(f, hf.asarray(a), hf.asarray(b), rtol=1e-12)
    with jax.enable_x64(True):
        expected = jax.grad(lambda x, y: jnp.sum(call(jnp, x, y) ** 2), argnums=(0, 1))(jnp.asarray(a), jnp.asarray(b))
    close(found, list(expected), rtol=1e-10)
    assert [g.dtype for g in found] == [np.float64, np.float64]


def test_an_integer_output_has_no_gradient_in_either_mode():
    def f(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            targets = [hf.argmax(x), x > 1.0, hf.floor(x).astype(hf.int32), hf.sum((x > 1.5).astype(hf.float32))]
        return [tape.gradient(target, x) for target in targets], tape.gradient(targets, x)

    each, together = both(f, tensor(1, 2))
    assert each == [None] * 4
    assert together is None


def test_an_integer_output_beside_a_float_one():
    def f(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y, n = x * x, hf.argmax(x)
        return tape.gradient([y, n], x)

    close(both(f, tensor(1, 2)), np.array([2.0, 4.0]))


def test_an_integer_output_of_a_compiled_function_has_none_under_an_eager_tape():
    @hf.compile
    def f(x: hf.Tensor):
        return x * x, hf.argmax(x), {"above": x > 1.0}

    x = tensor(1, 2)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y, n, rest = f(x)
    assert tape.gradient(n, x) is None
    assert tape.gradient(rest["above"], x) is None
    close(tape.gradient([y, n], x), np.array([2.0, 4.0]))


# -- against finite differences -----------------------------------------------------------------------------------


def programs():
    def mlp(n: Any, x: Any, w: Any, b: Any):
        return n.sum(n.tanh(x @ w + b) ** 2)

    def shared(n: Any, x: Any, w: Any, b: Any):
        h = n.exp(b) * n.sum(x, axis=0)
        return n.sum(h @ w) + n.sum(h) * n.sum(w) + n.max(h * 3)

    def shaped(n: Any, x: Any, w: Any, b: Any):
        y = n.concat([x, n.permute_dims(w, (1, 0))[:, :4] * 2.0], axis=0)
        return n.sum(n.reshape(y, (-1,))[1:] * n.reshape(y, (-1,))[:-1]) + n.mean(b * b)

    return [mlp, shared, shaped]


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.__name__)
def test_gradients_are_central_differences(program: Any, rng: np.random.Generator):
    arrays = [rng.standard_normal(shape) for shape in ((3, 4), (4, 2), (2,))]
    if program.__name__ == "shared":
        arrays[2] = rng.standard_normal(4)
        arrays[1] = rng.standard_normal((4, 4))

    def f(*tensors: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(tensors)
            y = program(hf, *tensors)
        return tape.gradient(y, tensors)

    found = both(f, *[hf.asarray(a) for a in arrays], rtol=1e-9)
    expected = central(lambda *a: program(np, *a), *arrays)
    close(list(found), expected, rtol=1e-5, atol=1e-7)

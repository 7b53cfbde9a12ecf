"""`hf.vmap`: against jax.vmap and against a Python loop, in both modes, with gradients on either side."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.autodiff import vectorize
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    IndexRangeError,
    LeakError,
    ShapeError,
    TapeError,
    TracedValueError,
    TraceError,
)

Pair = namedtuple("Pair", "a b")
RNG = np.random.default_rng(3)
X, W, Y = RNG.standard_normal((5, 3)), RNG.standard_normal((3, 2)), RNG.standard_normal((4, 3))


def f64(array: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(array, np.float64))


def in_x64(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(fn)(*args))


def loss(n: Any, w: Any, x: Any) -> Any:
    return n.sum(n.tanh(x @ w) ** 2) * x[0]


# -- axes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("in_axes", "out_axes"), [
    (0, 0), (1, 0), (-1, -1), ((1, None), 1), ((None, 0), 0), ([0, None], -2), ((2, {"p": None, "q": (0, None)}), 1),
    ((None, {"p": 0, "q": None}), (1, {"z": 0})), ((0, {"p": 0, "q": 1}), (2, {"z": -1})),
])
def test_axes_are_jax_s(in_axes: Any, out_axes: Any):
    x = RNG.standard_normal((2, 2, 2))
    tree = {"p": RNG.standard_normal((2, 2, 2)), "q": (RNG.standard_normal((2, 2, 2)), RNG.standard_normal((2, 2, 2)))}
    if isinstance(out_axes, int):
        def program(n: Any):
            return lambda x, t: n.sum(x, axis=0, keepdims=True) * t["p"] + n.exp(t["q"][0] * t["q"][1])
    else:
        def program(n: Any):
            return lambda x, t: (x * t["p"] + t["q"][0], {"z": n.sum(t["q"][1] * t["p"], axis=-1)})

    found = both(hf.vmap(program(hf), in_axes, out_axes), f64(x), jax.tree_util.tree_map(f64, tree), rtol=1e-12)
    close(found, in_x64(jax.vmap(program(jnp), in_axes, out_axes), x, tree), rtol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_random_axes_against_a_loop(data: Any):
    rank, other = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    n = data.draw(st.integers(1, 3))
    axis, other_axis = data.draw(st.integers(-rank, rank - 1)), data.draw(st.integers(-other, other - 1))
    shape, other_shape = [2] * rank, [2] * other
    shape[axis], other_shape[other_axis] = n, n
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = np.cos(np.arange(np.prod(other_shape), dtype=np.float32).reshape(other_shape))
    out = data.draw(st.integers(-max(rank, other), max(rank, other) - 1))
    found = hf.vmap(lambda x, y: x * y, (axis, other_axis), out)(x, y)
    rows = [np.take(x, i, axis) * np.take(y, i, other_axis) for i in range(n)]
    np.testing.assert_allclose(found.numpy(), np.stack(rows, out), rtol=1e-6)


def test_structures_none_numbers_and_arrays():
    def program(p: Pair, scale: float, flag: Any):
        assert flag is None
        return {"y": p.a * scale, "n": None}, 3, p.b

    found = both(lambda: hf.vmap(program, (0, None, None))(Pair(X.astype("f"), hf.ones((5,))), 2.0, None))
    assert found[0]["n"] is None
    close(found[0]["y"], 2 * X)
    assert (found[1].tolist(), found[1].dtype) == ([3] * 5, np.int32)


def test_keywords_are_sliced_along_the_first_axis():
    close(both(lambda x, y: hf.vmap(lambda x, *, y: x @ y)(x, y=y), f64(X), f64(X * 2)), np.sum(X * X * 2, 1))


def test_what_is_the_same_for_all_slices_may_come_once():
    y, total = both(lambda x, w: hf.vmap(lambda x, w: (x @ w, hf.sum(w)), (0, None), (0, None))(x, w), f64(X), f64(W))
    close([y, total], [X @ W, np.sum(W)], rtol=1e-12)


def test_batches_of_nothing_and_of_one():
    assert both(hf.vmap(lambda x: hf.tanh(x) @ x), hf.zeros((0, 3))).shape == (0,)
    assert both(hf.vmap(lambda x: hf.tanh(x) @ x), hf.zeros((1, 3))).shape == (1,)


# -- what functions may do ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [
    lambda x: hf.cond(x[0] > 0, lambda x: x * 2.0, lambda x: hf.sin(x), x),
    lambda x: hf.scan(lambda c, r: (hf.tanh(c * r), c), x[0], x)[1],
    lambda x: hf.while_loop(lambda s: hf.sum(s) < 5, lambda s: s * s + 1.0, (x,))[0],
    lambda x: hf.while_loop(lambda s: hf.sum(s) < 5, lambda s: s * s + 1.0, (x,), max_iterations=4)[0],
    lambda x: hf.nn.softmax(hf.reshape(x, (3, 1)) @ hf.reshape(x, (1, 3))),
    lambda x: x[hf.argmax(x)] + hf.take(x, hf.asarray([0, 2])).sum(),
    lambda x: hf.where(x > 0, x, hf.mean(x)).at[0].set(7.0),
    lambda x: hf.compile(lambda x: hf.nn.layer_norm(x))(x),
    lambda x: hf.stop_gradient(x) * x,
])
def test_programs_are_a_loop(program: Any):
    found = both(lambda x: hf.vmap(program)(x), f64(X), rtol=1e-11)
    close(found, hf.stack([program(f64(x)) for x in X]), rtol=1e-10)


def test_nested():
    def pairwise(lib: Any, n: Any):
        return lib.vmap(lib.vmap(lambda x, y: n.sum((x - y) ** 2), (None, 0)), (0, None), out_axes=1)

    close(both(pairwise(hf, hf), f64(X), f64(Y), rtol=1e-12), in_x64(pairwise(jax, jnp), X, Y), rtol=1e-12)


def test_python_values_around_it_are_seen_at_every_call():
    scale, shift = 2.0, tensor(1, 1, 1)
    seen: list[int] = []

    def program(x: hf.Tensor):
        seen.append(x.ndim)
        return x * scale + shift

    run = hf.vmap(program)
    close(run(X.astype("f")), X * 2 + 1)
    scale, shift = 3.0, tensor(0, 0, 5)
    close(run(X.astype("f")), X * 3 + [0, 0, 5])
    assert seen == [1, 1]


def test_repeated_calls_compile_nothing_even_of_new_functions():
    def call(x: Any, w: Any):
        return hf.vmap(hf.grad(lambda w, x: loss(hf, w, x)), (None, 0))(w, x)

    call(f64(X), f64(W))
    before = dict(vectorize._GRAPHS._entries)
    graph = next(reversed(before.values()))
    executables = len(graph.executables)
    expected = in_x64(jax.vmap(jax.grad(lambda w, x: loss(jnp, w, x)), (None, 0)), W * 3, X * 2)
    close(call(f64(X * 2), f64(W * 3)), expected)
    assert dict(vectorize._GRAPHS._entries) == before
    assert len(graph.executables) == executables


def test_equal_graphs_of_other_constants_are_not_mixed_up():
    for constant in (1.0, 2.0, -0.0, 0.0):
        found = hf.vmap(lambda x: x * hf.asarray(np.float32(constant)))(tensor(1, 2)).numpy()  # noqa: B023
        assert found.tobytes() == (np.float32([1, 2]) * np.float32(constant)).tobytes()
    for axis in (0, 1):
        found = hf.vmap(lambda x: hf.sum(x, axis=axis))(f64(X.reshape(5, 3, 1)))  # noqa: B023
        close(found, X.reshape(5, 3, 1).sum(axis + 1))


WITH_NUMBERS: dict[str, Any] = {
    "product": lambda x, t: hf.vmap(lambda row: hf.sum(row * t) / (1 + t))(x),
    "int": lambda x, t: hf.vmap(lambda row: row * int(t * 8))(x),
    "argument": lambda x, t: hf.vmap(lambda row, t: row + t, (0, None))(x, t),
    "clip": lambda x, t: hf.vmap(lambda row: hf.clip(row, 0.0, t))(x),
    "full": lambda x, t: hf.vmap(lambda row: row + hf.full((3,), t))(x),
    "gradient": lambda x, t: hf.vmap(hf.grad(lambda row: hf.sum(row**2 * t)))(x),
    "power": lambda x, t: hf.vmap(lambda row: hf.abs(row) ** t)(x),
    "scan": lambda x, t: hf.vmap(lambda row: hf.scan(lambda s, _: (s * t, None), row, hf.arange(2))[0])(x),
    "cond": lambda x, t: hf.vmap(lambda row: hf.cond(hf.sum(row) > 0, lambda r: r * t, lambda r: r, row))(x),
    "nested": lambda x, t: hf.vmap(lambda row: hf.vmap(lambda one: one - t)(row))(x),
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_a_number_that_changes_is_an_input(name: str):
    """The first value is a constant of the program, the second one makes it an input of another program."""
    program = WITH_NUMBERS[name]
    x = hf.asarray(X.astype("f")[:, :3])
    graphs: list[Any] = []
    for t in (0.125, 0.25, 0.5, 0.75):
        found = program(x, t)
        graphs.append(dict(vectorize._GRAPHS._entries))
        close(found, hf.compile(lambda x: program(x, t))(x), rtol=1e-6)  # noqa: B023
    assert graphs[-1] == graphs[1]


def doubled(y: Any) -> Any:
    """Double a positive number until it is 10 at least; this never ends for others."""
    return hf.while_loop(lambda y: y < 10.0, lambda y: y * 2, y)


def converted(x: Any) -> Any:
    y = x
    if x > 0:
        while y < 10.0:
            y = y * 2
    return y


def left_early(x: Any) -> Any:
    """An inner loop that never ends for slices that have left the outer one."""

    def step(y: Any, i: Any) -> Any:
        grown = hf.while_loop(lambda z: z < 10.0, lambda z: z + hf.astype(hf.where(x > 0, 2, 1) - i, hf.float32), y * 0)
        return y + grown, i + 1

    return hf.while_loop(lambda y, i: i < hf.where(x > 0, 2, 1), step, (x, 0))[0]


ENDLESS: dict[str, Any] = {
    "a branch": lambda x: hf.cond(x > 0, doubled, lambda x: -x, x),
    "the other branch": lambda x: hf.cond(x <= 0, lambda x: -x, doubled, x),
    "a converted branch": converted,
    "branches in branches": lambda x: hf.cond(x > 0, lambda x: hf.cond(x > 2, lambda x: x, doubled, x), hf.abs, x),
    "a scan in a branch": lambda x: hf.cond(
        x > 0, lambda x: hf.scan(lambda c, _: (doubled(c), None), x, hf.arange(2))[0], lambda x: x, x
    ),
    "a checkpoint in a branch": lambda x: hf.cond(x > 0, hf.checkpoint(doubled), lambda x: -x, x),
    "vmap in a branch": lambda x: hf.cond(x > 0, lambda x: hf.sum(hf.vmap(doubled)(x[None])), lambda x: x, x),
    "a loop in a loop": left_early,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_ends_for_slices_that_do_not_come_to_it(name: str):
    f = ENDLESS[name]
    for values in ([1.0, -1.0, 3.0, 0.0], [-1.0, -2.0]):
        x = hf.asarray(values)
        compiled = hf.compile(f)
        expected = np.array([compiled(one).item() for one in x])
        close(hf.vmap(f)(x), expected)
        close(hf.compile(hf.vmap(f))(x), expected)


# -- gradients ----------------------------------------------------------------------------------------------------


def test_gradients_of_each_example():
    """Per-example gradients, their norms and the mean of the clipped ones, as private learning takes them."""
    def run(w: hf.Tensor, x: hf.Tensor):
        gradients = hf.vmap(hf.grad(lambda w, x: loss(hf, w, x)), (None, 0))(w, x)
        norms = hf.vmap(lambda g: hf.sqrt(hf.sum(g * g)))(gradients)
        return gradients, norms

    gradients, norms = both(run, f64(W), f64(X), rtol=1e-11)
    each = [hf.grad(lambda w: loss(hf, w, f64(x)))(f64(W)) for x in X]  # noqa: B023
    close(gradients, hf.stack(each), rtol=1e-11)
    close(gradients, in_x64(jax.vmap(jax.grad(lambda w, x: loss(jnp, w, x)), (None, 0)), W, X), rtol=1e-11)
    close(norms, np.sqrt(np.sum(gradients.numpy() ** 2, (1, 2))), rtol=1e-12)


@pytest.mark.parametrize("out_axes", [0, -1])
def test_gradients_through_it(out_axes: int):
    def total(lib: Any, n: Any):
        def f(w: Any, x: Any):
            y = lib.vmap(lambda w, x: n.tanh(x @ w), (None, 0), out_axes)(w, x)
            return n.sum(y**2) * n.mean(y)

        return lib.grad(f, (0, 1))

    close(both(total(hf, hf), f64(W), f64(X), rtol=1e-11), in_x64(total(jax, jnp), W, X), rtol=1e-10)


def test_variables_and_watched_tensors_around_it():
    v = hf.Variable(W)

    def run(s: hf.Tensor, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([s, x])
            y = hf.sum(hf.vmap(lambda x: hf.sum(x @ v * s) + hf.sum(v[0]))(x) ** 2)
        return tape.gradient(y, [v, s, x])

    def by_jax(v: Any, s: Any, x: Any):
        return jnp.sum(jax.vmap(lambda x: jnp.sum(x @ v * s) + jnp.sum(v[0]))(x) ** 2)

    found = both(run, f64([1.0, -2.0]), f64(X), rtol=1e-11)
    close(found, in_x64(jax.grad(by_jax, (0, 1, 2)), W, np.array([1.0, -2.0]), X), rtol=1e-10)


def test_variables_are_read_at_every_call():
    v = hf.Variable(1.0)
    run = hf.vmap(lambda x: x * v)
    close(run(tensor(1, 2)), np.array([1.0, 2.0]))
    v.assign(10.0)
    close(run(tensor(1, 2)), np.array([10.0, 20.0]))
    compiled = hf.compile(run)
    compiled(tensor(1, 2))
    v.assign(5.0)
    close(compiled(tensor(1, 2)), np.array([5.0, 10.0]))
    assert compiled.trace_count == 1


def test_a_tape_with_a_variable_inside():
    v = hf.Variable(3.0)

    def one(x: hf.Tensor):
        with hf.GradientTape() as tape:
            y = x * v * v
        return tape.gradient(y, v)

    close(both(lambda x: hf.vmap(one)(x), tensor(1, 2)), np.array([6.0, 12.0]))


def test_custom_gradients_keep_their_rule():
    scale = hf.Variable(2.0)

    @hf.custom_gradient
    def odd(x: hf.Tensor):
        return hf.sum(x * x), lambda g: g * 100.0 * scale * x

    inside = both(lambda x: hf.vmap(hf.grad(odd))(x), f64(X))
    outside = both(lambda x: hf.grad(lambda x: hf.sum(hf.vmap(odd)(x)))(x), f64(X))
    close([inside, outside], [X * 200, X * 200])


def test_second_order_through_it():
    def total(lib: Any, n: Any):
        return lib.hessian(lambda w: n.sum(lib.vmap(lambda x: loss(n, w, x))(X if lib is jax else f64(X))))

    close(both(total(hf, hf), f64(W), rtol=1e-10), in_x64(total(jax, jnp), W), rtol=1e-9)


# -- random numbers -----------------------------------------------------------------------------------------------


def test_random_numbers_are_drawn_for_every_slice():
    def program(x: hf.Tensor):
        return x + hf.random.uniform(()), hf.random.normal((2,)), hf.nn.dropout(hf.ones((8,)), 0.5)

    def run():
        hf.random.seed(3)
        return hf.vmap(program)(hf.zeros((6,))), hf.vmap(program)(hf.zeros((6,))), hf.random.uniform(())

    (u, n, d), (again, _, _), after = run()
    assert len({float(x) for x in [*u.numpy(), *again.numpy(), after.item()]}) == 13
    assert len(set(n.numpy().ravel().tolist())) == 12
    assert len({tuple(row) for row in d.numpy().tolist()}) > 3
    expected = run()
    same(expected, ((u, n, d), (again, *expected[1][1:]), after), rtol=0, atol=0)
    hf.random.seed(3)
    compiled = hf.compile(lambda: (hf.vmap(program)(hf.zeros((6,))), hf.random.uniform(())))
    found = compiled()[0]
    same(found[0], u, rtol=0, atol=0)
    same(found, (u, n, d))
    assert not set(compiled()[0][0].tolist()) & set(u.tolist())


def test_random_numbers_in_nested_slices_and_with_a_generator():
    generator = hf.random.Generator(1)
    u = hf.vmap(hf.vmap(lambda x: x + generator.uniform(())))(hf.zeros((3, 4)))
    assert len(set(u.numpy().ravel().tolist())) == 12
    g = hf.vmap(hf.grad(lambda x: x * generator.normal(())))(hf.ones((5,)))
    assert len(set(g.numpy().tolist())) == 5


# -- errors -------------------------------------------------------------------------------------------------------

V = hf.Variable(1.0, name="v")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("run", "error", "text"),
    [(lambda: hf.vmap(lambda x, y: x)(X, Y), ShapeError, r"\[0\] has size 5 along axis 0, argument\[1\] has size 4"),
     (lambda: hf.vmap(lambda x, y: x, (0, 1))(X, Y[:, :2]), ShapeError, r"argument\[1\] has size 2 along axis 1"),
     (lambda: hf.vmap(lambda x: x, 2)(X), IndexError, r"argument\[0\] has shape \(5, 3\), which has no axis 2"),
     (lambda: hf.vmap(lambda x: x)({"a": 1.0}), ArgumentTypeError, r"argument\[0\]\['a'\] is the float 1.0"),
     (lambda: hf.vmap(lambda x: x, (0, 0))(X), ArgumentError, "in_axes has 2 entries, the call has 1 positional"),
     (lambda: hf.vmap(lambda x: x, None)(X), ArgumentError, "nothing to slice"),
     (lambda: hf.vmap(lambda x: x, 0.5)(X), ArgumentTypeError, "in_axes has a float"),
     (lambda: hf.vmap(lambda x: x, ({"a": 0},))({"b": X}), ArgumentError, r"in_axes has structure .*'a'.*'b'"),
     (lambda: hf.vmap(lambda x: (x, x), out_axes=(0,))(X), ArgumentError, "out_axes has structure .*the result"),
     (lambda: hf.vmap(lambda x: x, out_axes=2)(X), ShapeError, r"result 0 has shape \(5, 3\).*no axis 2"),
     (lambda: hf.vmap(lambda x: x, out_axes=None)(X), ArgumentError, "result 0 has out_axes=None, but it differs"),
     (lambda: hf.vmap(lambda x: "no")(X), ArgumentTypeError, "the function returned a str"),
     (lambda: hf.vmap(lambda x: V.assign(x[0]))(tensor(1)[None]), TraceError, "Variable 'v' is assigned under vmap"),
     (lambda: hf.vmap(lambda x: hf.Variable(1.0) * x)(X), TraceError, "Variable .*: created under vmap"),
     (lambda: hf.vmap(lambda x: float(x[0]))(X), TracedValueError, "float: .* no value under hf.vmap"),
     (lambda: hf.vmap(hf.take)(X, hf.asarray([0, 1, 2, 3, 0])), IndexRangeError, "out of range for size 3")],
)
def test_errors(run: Any, error: Any, text: str, compiled: bool):
    with pytest.raises(error, match=text):
        (hf.compile(run) if compiled else run)()
    assert V.item() == 1.0


@pytest.mark.parametrize("compiled", [False, True])
def test_python_control_flow_and_prints_of_values_are_each_slices(compiled: bool, capsys: pytest.CaptureFixture[str]):
    def program(x: hf.Tensor):
        print(f"{hf.sum(x):.1f}")
        while hf.sum(x) > -9:
            x = x - 1.0 if hf.max(x) > 0 else x * 2.0
        return x

    mapped = hf.vmap(program)
    result = hf.compile(lambda x: mapped(x))(X) if compiled else mapped(X)
    printed = capsys.readouterr().out
    np.testing.assert_array_equal(result, hf.stack([program(X[i]) for i in range(len(X))]))
    assert printed == capsys.readouterr().out
    with pytest.raises(TracedValueError, match=r"bool: a traced tensor has no value under hf.vmap.*\n.*\n.*hf.cond"):
        hf.vmap(hf.no_convert(lambda x: x if hf.sum(x) > 0 else -x))(X)


def test_what_leaks_says_where_from():
    kept: list[hf.Tensor] = []
    hf.vmap(lambda x: kept.append(x * 2.0))(X)
    with pytest.raises(LeakError, match=r"leaked out of the function under hf.vmap '<lambda>'.*test_vmap"):
        kept[0] + 1.0


def test_an_exception_comes_through_and_leaves_nothing():
    def fail(x: hf.Tensor):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        hf.vmap(fail)(X)
    assert hf.vmap(lambda x: x * 2.0)(tensor(1, 2)).tolist() == [2.0, 4.0]
    assert not hf.is_tracing()


# -- what branches and loops do inside ----------------------------------------------------------------------------


def test_random_numbers_and_variables_in_branches_and_loops():
    v = hf.Variable(2.0)

    def branch(x: hf.Tensor):
        return hf.cond(x > 0, lambda x: x * v + hf.random.uniform(()), lambda x: hf.random.normal(()) * x, x)

    def run(x: hf.Tensor):
        hf.random.seed(0)
        with hf.GradientTape() as tape:
            y = hf.vmap(branch)(x)
        steps = hf.vmap(lambda x: hf.scan(lambda c, _: (c, hf.random.uniform(()) + c), x, hf.zeros((3,)))[1])(x)
        return y, tape.gradient(y, v), steps

    x = tensor(1, 2, -3, -4)
    y, of_v, steps = run(x)
    assert of_v.item() == 3.0
    assert len(set((steps.numpy() - x.numpy()[:, None]).ravel().tolist())) == 12
    inside = y.numpy()[:2] - 2 * x.numpy()[:2]
    assert ((inside >= 0) & (inside < 1)).all()
    assert inside[0] != inside[1]
    hf.random.seed(0)
    same(hf.compile(lambda x: hf.vmap(branch)(x))(x), y)


def test_a_variable_cannot_be_assigned_in_a_branch_either():
    with pytest.raises(TraceError, match="Variable 'v' is assigned under vmap"):
        hf.vmap(lambda x: hf.cond(x > 0, lambda x: V.assign(x).read(), lambda x: x, x))(tensor(1, 2))
    assert V.item() == 1.0


def test_python_floats_of_a_compiled_function():
    run = hf.compile(lambda x, s: hf.vmap(lambda x: x * s + (s + 1))(x))
    close([run(tensor(1, 2), 2.0), run(tensor(1, 2), 3.0)], [np.array([5.0, 7.0]), np.array([7.0, 10.0])])
    assert run.trace_count == 1


def test_several_checks_of_slices():
    rows, first, second = np.eye(3, dtype=np.float32), np.array([0, 1, 2]), np.array([1, 1, 3])
    run = hf.vmap(lambda x, i, j: x[i] + x[j])
    with pytest.raises(IndexRangeError, match="size 3"):
        run(rows, first, second)
    close(run(rows, first, second % 3), np.array([1.0, 2.0, 1.0]))


def test_printing_and_callbacks_run_slice_after_slice(capfd: pytest.CaptureFixture[str]):
    def one(x: hf.Tensor):
        hf.print("x", x)
        return hf.pure_callback(lambda a: np.sin(a), hf.TensorSpec(x.shape, x.dtype), hf.stop_gradient(x)) + x * x

    for run in (hf.vmap(one), hf.compile(lambda x: hf.vmap(one)(x)), lambda x: hf.vmap(hf.grad(one))(x) / 2.0):
        found = run(tensor(1, 2))
        hf.synchronize()
        lines = capfd.readouterr().out.splitlines()
        assert [line[:11] for line in lines] == ["x Tensor(1.", "x Tensor(2."]
        assert found.shape == (2,)
    x = np.array([1.0, 2.0])
    close(hf.vmap(one)(x), np.sin(x) + x * x)
    close(hf.vmap(hf.vmap(one))(x[:, None]), (np.sin(x) + x * x)[:, None])


def test_branches_on_values_are_converted_inside_a_compiled_function():
    def one(x: hf.Tensor):
        if x > 0:
            return x * 2.0
        return -x

    for run in (hf.compile(lambda x: hf.vmap(one)(x)), hf.vmap(hf.compile(one))):
        close(run(tensor(3, -1)), np.array([6.0, 1.0]))


def test_batches_of_any_size_are_one_trace():
    def total(x: hf.Tensor):
        return hf.sum(hf.vmap(lambda r: hf.sum(hf.tanh(r)) * r[0])(x))

    run = hf.compile(lambda x: hf.grad(total)(x), dynamic=True)
    for size in (2, 3, 5, 4):
        x = X[:1].repeat(size, 0)
        close(run(f64(x)), in_x64(jax.grad(lambda x: jnp.sum(jnp.sum(jnp.tanh(x), 1) * x[:, 0])), x))
    assert run.trace_count <= 2


# -- sums over slices ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("program", [
    lambda n, w, x: n.sum(n.tanh(x @ w)),
    lambda n, w, x: n.sum(n.tanh(n.reshape(x, (1, 3)) @ w)),
    lambda n, w, x: n.sum(n.tanh(n.stack([x, x * x]) @ w)),
    lambda n, w, x: n.sum(x @ (w * n.reshape(x, (3, 1)))),
    lambda n, w, x: n.sum(w.T @ x) * n.sum((w @ w.T) @ x),
    lambda n, w, x: n.sum(w[:, 0] * x) ** 2 + n.sum(n.reshape(w, (2, 3, 1)) * n.sin(x)),
])
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_gradients_for_what_every_slice_reads_whole(program: Any, dtype: Any):
    w, x = W.astype(dtype), X.astype(dtype)

    def total(lib: Any, n: Any):
        return lambda w, x: lib.grad(lambda w: n.sum(lib.vmap(lambda x: program(n, w, x))(x)))(w)

    rtol = 1e-11 if dtype is np.float64 else 2e-2
    found = both(total(hf, hf), hf.asarray(w), hf.asarray(x), rtol=rtol, atol=rtol)
    assert found.dtype == dtype
    close(found, in_x64(total(jax, jnp), w.astype(np.float64), x.astype(np.float64)), rtol=rtol, atol=4 * rtol)


def test_outer_products_are_contracted_without_a_stack_of_them():
    run = hf.compile(hf.grad(lambda w, x: hf.sum(hf.vmap(lambda x: hf.sum(hf.tanh(x @ w)))(x))))
    w, x = hf.ones((40, 30)), hf.ones((50, 40))
    text = run.lower(w, x).as_text("stablehlo")
    assert "50x40x30" not in text
    assert "dot_general" in text


# -- with the other ways to make a graph --------------------------------------------------------------------------


def test_backward_goes_through_every_transformation():
    programs: list[Any] = [
        lambda x: hf.vmap(lambda r: r**3)(x),
        lambda x: hf.jvp(lambda z: z**3, (x,), (x * 0 + 1,))[1] * x,
        lambda x: hf.jacobian(lambda z: z**3)(x) * x,
    ]
    for program in programs:
        x = hf.tensor([1.0, 2.0], requires_grad=True)
        hf.sum(program(x)).backward()
        expected = hf.grad(lambda x: hf.sum(program(x)))(tensor(1, 2))  # noqa: B023
        close(x.grad, expected)
        close(x.grad, np.array([3.0, 12.0]) * (1 if program is programs[0] else 3))
    w = hf.tensor(2.0, requires_grad=True)
    hf.sum(hf.vmap(lambda r: r * w)(tensor(1, 2))).backward()
    assert w.grad.item() == 3.0


def test_a_recorded_vmap_is_a_vmap_in_its_graph():
    v = hf.Variable([1.0, 2.0])
    with hf.GradientTape() as tape:
        y = hf.sum(hf.vmap(lambda r: r * r + hf.sum(v))(v))
    text = str(tape.graph(y))
    assert "= vmap(" in text
    assert "mapped=(True, False)" in text


def test_in_a_graph_made_by_hand():
    graph = hf.Graph()
    with graph:
        p = hf.placeholder((3,), hf.float32)
        fetches = [hf.jacobian(lambda z: z * z)(p), hf.vmap(lambda r: r * 2.0)(p), hf.hvp(hf.sum, (p,), (p,))[0]]
    with hf.Session(graph) as session:
        found = session.run(fetches, feed={p: np.float32([1, 2, 3])})
    close(found, [np.diag([2.0, 4.0, 6.0]), np.array([2.0, 4.0, 6.0]), np.zeros(3)])


# -- the gradient of what was recorded outside --------------------------------------------------------------------


def _through(x: hf.Tensor) -> hf.Tensor:
    return hf.sin(x) * hf.sum(x)


RECORDED = {
    "vjp": lambda x, eye: hf.vmap(hf.vjp(_through, x)[1])(eye)[0],
    "twice": lambda x, eye: hf.vmap(hf.vmap(hf.vjp(_through, x)[1]))(eye[None])[0][0],
    "of a checkpoint": lambda x, eye: hf.vmap(hf.vjp(hf.checkpoint(_through), x)[1])(eye)[0],
    "of a compiled function": lambda x, eye: hf.vmap(hf.vjp(hf.compile(_through), x)[1])(eye)[0],
    "a tape": lambda x, eye: _asked(x, eye, inside=False),
    "a tape that records": lambda x, eye: _asked(x, eye, inside=True),
}


def _asked(x: hf.Tensor, eye: hf.Tensor, *, inside: bool) -> Any:
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = _through(x)
        if inside:
            return hf.vmap(lambda one: tape.gradient(y, x, one))(eye)
    return hf.vmap(lambda one: tape.gradient(y, x, one))(eye)


@pytest.mark.parametrize("name", RECORDED)
def test_slices_of_cotangents_go_back_through_what_was_recorded_outside(name: str):
    x, eye = tensor(0.3, -0.7, 1.1), hf.eye(3)
    expected = hf.jacobian(_through)(x)
    close(both(RECORDED[name], x, eye), expected)
    slope = hf.grad(lambda x: hf.sum(RECORDED[name](x, eye) ** 2))
    close(slope(x), hf.grad(lambda x: hf.sum(hf.jacobian(_through)(x) ** 2))(x), rtol=1e-4)


@pytest.mark.parametrize("mode", [lambda f: f, hf.compile], ids=["eager", "compiled"])
def test_a_tape_around_does_not_know_what_a_slice_makes(mode: Any):
    def run(x: hf.Tensor) -> hf.Tensor:
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            return hf.vmap(lambda s: tape.gradient(s * hf.sum(x), x))(hf.eye(3))

    with pytest.raises(TapeError, match="records outside of '<lambda>', and is asked about what it made"):
        mode(run)(tensor(0.3, -0.7, 1.1))


CURVES = [
    lambda t: hf.where(hf.sum(t) > 0.1, t * t, t),
    lambda t: hf.sin(t) * hf.exp(t),
    lambda t: t * 0.0,
    lambda t: hf.maximum(t, hf.sum(t)) * t,
]


def test_one_line_differentiates_branches_of_any_kind():
    """The numbers that gradient rules make there are the rules' own, not numbers of the user's that change."""

    def curved(f, x):
        return hf.vmap(hf.grad(lambda a: hf.sum(hf.sin(hf.grad(lambda b: hf.sum(f(b)))(a)))))(x)

    x = hf.asarray([[0.3, -0.2, 0.5], [0.1, -0.2, -0.3]])
    for one in CURVES:
        for other in CURVES:
            found = curved(lambda v, a=one, b=other: hf.cond(hf.sum(v) > 0, a, b, v), x)
            for row, slopes, f in zip(x, found, (one, other), strict=True):
                np.testing.assert_allclose(slopes, curved(f, row[None])[0], rtol=1e-5, atol=1e-6)

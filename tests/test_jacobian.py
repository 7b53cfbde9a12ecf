"""`tape.jacobian` and `tape.batch_jacobian`: against jax, in both modes, and without tracing again."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.autodiff import jacobian as module
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError, TapeError

RNG = np.random.default_rng(5)
W, X, B = RNG.standard_normal((3, 2)), RNG.standard_normal((4, 3)), RNG.standard_normal(2)


def f64(array: Any) -> hf.Tensor:
    return hf.asarray(np.asarray(array, np.float64))


def in_x64(fn: Any, *args: Any) -> Any:
    with jax.enable_x64(True):
        return jax.tree_util.tree_map(np.asarray, jax.jit(fn)(*args))


def network(n: Any, w: Any, b: Any, x: Any) -> Any:
    h = n.tanh(x @ w + b)
    return h * n.sum(h, axis=-1, keepdims=True) + n.exp(b)


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Count how often a walk is traced."""
    counted: list[None] = []
    trace = module.Pullback._trace

    def counting(self: Any) -> Any:
        counted.append(None)
        return trace(self)

    monkeypatch.setattr(module.Pullback, "_trace", counting)
    return counted


def test_it_is_jax_s():
    def run(w: hf.Tensor, b: hf.Tensor, x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([w, b, x])
            y = network(hf, w, b, x)
        return tape.jacobian(y, {"w": w, "rest": (b, x)})

    found = both(run, f64(W), f64(B), f64(X), rtol=1e-12)
    w, b, x = in_x64(jax.jacobian(lambda *a: network(jnp, *a), (0, 1, 2)), W, B, X)
    close(found, {"w": w, "rest": (b, x)}, rtol=1e-10, atol=1e-12)
    assert found["w"].shape == (4, 2, 3, 2)


def test_scalars_on_either_side():
    def run(x: hf.Tensor, s: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch([x, s])
            total, scaled = hf.sum(x * x * s), x * s
        return tape.jacobian(total, [x, s]), tape.jacobian(scaled, [x, s])

    (a, b), (c, d) = both(run, tensor(1, 2, 3), hf.asarray(2.0))
    assert (a.shape, b.shape, c.shape, d.shape) == ((3,), (), (3, 3), (3,))
    close([a, b, c, d], [np.array([4.0, 8.0, 12.0]), 14.0, 2 * np.eye(3), np.array([1.0, 2.0, 3.0])])


@pytest.mark.parametrize("shape", [(0,), (1,), (1, 1), (2, 0)])
def test_targets_without_or_with_one_element(shape: tuple[int, ...]):
    def run(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.broadcast_to(hf.sum(x * x), shape)
        return tape.jacobian(y, x)

    found = both(run, tensor(1, 2))
    close(found, np.broadcast_to(np.array([2.0, 4.0]), (*shape, 2)))


def test_several_targets_and_the_structure_of_the_result():
    def run(x: hf.Tensor, y: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, y])
            targets = {"p": x * y, "q": (hf.sum(x), y)}
        return tape.jacobian(targets, [x, y])

    found = both(run, tensor(1, 2), tensor(3, 4))
    assert found["q"][0][1] is None
    assert found["q"][1][0] is None
    close(found["p"], [np.diag([3.0, 4.0]), np.diag([1.0, 2.0])])
    close([found["q"][0][0], found["q"][1][1]], [np.ones(2), np.eye(2)])


def test_variables_and_unconnected_gradients():
    v, u = hf.Variable([1.0, 2.0]), hf.Variable([[1.0]])

    def run(choice: str):
        with hf.GradientTape() as tape:
            y = v * v + 0.0 * hf.sum(hf.stop_gradient(u))
        return tape.jacobian(y, [v, u], unconnected_gradients=choice)

    of_v, of_u = both(lambda: run("none"))
    assert of_u is None
    close(of_v, np.diag([2.0, 4.0]))
    _, of_u = both(lambda: run("zero"))
    assert of_u.shape == (2, 1, 1)
    assert not of_u.numpy().any()


def test_a_variable_read_more_than_once_and_one_as_target():
    v = hf.Variable([1.0, 2.0])

    def run():
        with hf.GradientTape(persistent=True) as tape:
            y = v.read() * v.read() + v
        return tape.jacobian(y, v), tape.jacobian(v, v)

    y, own = both(run)
    close([y, own], [np.diag([3.0, 5.0]), np.eye(2)])


def test_dtypes_are_the_sources():
    def run(x: hf.Tensor, h: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, h])
            y = hf.astype(x, hf.float64) * hf.astype(h, hf.float64)
        return tape.jacobian(y, [x, h])

    x, h = both(run, tensor(1, 2), tensor(3, 4, dtype=np.float16))
    assert (x.dtype, h.dtype) == (np.float32, np.float16)


def test_integers_give_none():
    with hf.GradientTape() as tape:
        x = tensor(1, 2)
        tape.watch(x)
        y = hf.astype(x, hf.int32)
    assert tape.jacobian([y, x * 0], [x])[0] == [None]


def test_second_order_and_recording():
    def run(x: hf.Tensor):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = hf.sin(x) * x[0]
            jacobian = tape.jacobian(y, x)
            penalty = hf.sum(jacobian**2)
        return jacobian, outer.gradient(penalty, x)

    def by_jax(x: Any):
        j = jax.jacobian(lambda x: jnp.sin(x) * x[0])
        return j(x), jax.grad(lambda x: jnp.sum(j(x) ** 2))(x)

    x = np.array([0.3, -1.0, 2.0])
    close(both(run, f64(x), rtol=1e-11), in_x64(by_jax, x), rtol=1e-10)


def test_inside_the_block_of_a_persistent_tape_it_is_recorded():
    x = tensor(1, 2)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        j = tape.jacobian(x**3, x)
    close(tape.jacobian(j, x)[0, 0], np.array([6.0, 0.0]))


def test_through_a_compiled_function():
    inner = hf.compile(lambda w, x: hf.nn.softmax(x @ w))

    def run(w: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(w)
            y = inner(w, f64(X))
        return tape.jacobian(y, w)

    found = both(run, f64(W), rtol=1e-11)
    close(found, in_x64(jax.jacobian(lambda w: jax.nn.softmax(X @ w)), W), rtol=1e-9, atol=1e-12)


def test_a_custom_gradient_with_a_variable_in_its_rule():
    scale = hf.Variable(10.0)

    @hf.custom_gradient
    def odd(x: hf.Tensor):
        return x * x, lambda g: g * scale

    def run(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = odd(x) * 2.0
        return tape.jacobian(y, x)

    close(both(run, tensor(1, 2)), 20 * np.eye(2))


def test_watched_late():
    def run(x: hf.Tensor):
        with hf.GradientTape() as tape:
            before = x * 2.0
            tape.watch(x)
            y = before * x
        return tape.jacobian(y, x)

    close(both(run, tensor(1, 2)), np.diag([2.0, 4.0]))


@pytest.mark.parametrize("program", [
    lambda x: hf.scan(lambda c, r: (c * r + hf.sin(c), c), x[0], x)[1],
    lambda x: hf.cond(hf.sum(x) > 0, lambda x: x * x, lambda x: -x, x),
    lambda x: hf.max(x) * hf.cumulative_sum(x, axis=0),
    lambda x: hf.nn.layer_norm(x) @ hf.reshape(x, (-1, 1)),
])
def test_other_programs_are_the_rows_of_gradients(program: Any):
    x = f64([0.5, 1.5, -0.2])

    def run(x: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = program(x)
        return tape.jacobian(y, x)

    def rows(x: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = hf.reshape(program(x), (-1,))
            parts = [y[i] for i in range(y.shape[0])]
        return hf.stack([tape.gradient(part, x) for part in parts])

    close(hf.reshape(both(run, x, rtol=1e-11), (-1, 3)), rows(x), rtol=1e-10, atol=1e-12)


# -- no second trace ----------------------------------------------------------------------------------------------


def test_repeated_calls_do_not_trace_again(traces: list[None]):
    w = hf.Variable(W)

    def run(x: hf.Tensor, power: float):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.tanh(x @ w) ** power
        return tape.jacobian(y, [x, w])

    def expected(x: Any, w: Any):
        return jax.jacobian(lambda x, w: jnp.tanh(x @ w) ** 2.0, (0, 1))(x, w)

    for step in range(4):
        x = X[step]
        w.assign(W * (step + 1))
        found = run(f64(x), 2.0)
        close(found, in_x64(expected, x, W * (step + 1)), rtol=1e-10, atol=1e-12)
    assert len(traces) == 1
    run(f64(X), 2.0)
    assert len(traces) == 2
    w.assign(W)
    cubed = in_x64(jax.jacobian(lambda x: jnp.tanh(x @ W) ** 3.0), X[0])
    close(run(f64(X[0]), 3.0)[0], cubed, rtol=1e-10)


def test_the_wiring_and_the_sources_tell_walks_apart(traces: list[None]):
    a, b = tensor(1, 2), tensor(3, 5)

    def run(program: Any, which: int):
        with hf.GradientTape() as tape:
            tape.watch([a, b])
            y = program(a, b)
        return tape.jacobian(y, (a, b)[which])

    for _ in range(2):
        close(run(lambda a, b: (a + b) * a, 0), np.diag([5.0, 9.0]))
        close(run(lambda a, b: (a + b) * b, 0), np.diag([3.0, 5.0]))
        close(run(lambda a, b: (a + b) * a, 1), np.diag([1.0, 2.0]))
        close(run(lambda a, b: (a + a) * b, 0), np.diag([6.0, 10.0]))
        close(run(lambda a, b: a * a * a, 0), np.diag([3.0, 12.0]))
        close(run(lambda a, b: a * b * a, 0), np.diag([6.0, 20.0]))
    assert len(traces) == 6


BASE: dict[str, Any] = {
    "shape": (3, 4), "dtype": "float64", "flipped": False, "factor": 2.0, "twice": False, "others": "float64",
    "target": 3, "first": "x",
}
CHANGED: dict[str, Sequence[Any]] = {
    "shape": [(3, 6), (2, 6), (5, 4), (4, 3)], "dtype": ["float32", "float16"], "flipped": [True],
    "factor": [3.0, -0.0], "twice": [True], "others": ["float32"], "target": [2, 4], "first": ["w"],
}
"""What a cached walk depends on in a program, one after the other with other values."""
CHANGES = [
    pytest.param(name, value, way, marks=() if number == 0 and way in ("rows", "batch") else pytest.mark.rest)
    for name, values in CHANGED.items() for number, value in enumerate(values) for way in ("rows", "columns", "batch")
]


@pytest.mark.parametrize(("name", "value", "way"), CHANGES)
def test_whatever_a_walk_depends_on_tells_it_from_the_one_before(name: str, value: Any, way: str):
    def made(shape: Any, dtype: str, flipped: bool, factor: float, twice: bool, others: str, target: int, first: str):
        def program(x: hf.Tensor, w: hf.Tensor) -> hf.Tensor:
            if way == "batch":
                y = hf.astype(x, "float64")[:, 1:] if name == "dtype" else hf.astype(x[:, 1:3], "float64")
                return (hf.flip(y, axis=1) if flipped else y)[:, :target] * factor
            y = hf.astype(x, "float64")[1, 1:3] if name == "dtype" else hf.astype(x[1, 1:3], "float64")
            z = hf.astype(hf.reshape(w, (-1,)), "float64")
            y = hf.concat([y, y if twice else z] if first == "x" else [z, y])
            return (hf.flip(y) if flipped else y)[:target] * factor

        x = hf.astype(hf.reshape(hf.arange(float(np.prod(shape))), shape), dtype)
        return program, x, hf.ones((2, 2), dtype=others)

    def rows(program: Any, x: hf.Tensor, w: hf.Tensor) -> Any:
        with hf.GradientTape(persistent=True) as tape:
            tape.watch([x, w])
            y = program(x, w)
        seeds = hf.reshape(hf.eye(y.size, dtype=y.dtype), (-1, *y.shape))
        each = [tape.gradient(y, [x, w], seed, "zero") for seed in seeds]
        of_x = hf.reshape(hf.stack([one for one, _ in each]), (*y.shape, *x.shape))
        of_w = hf.reshape(hf.stack([one for _, one in each]), (*y.shape, *w.shape))
        return hf.sum(of_x, axis=2) if way == "batch" else (of_x, of_w)

    def asked(program: Any, x: hf.Tensor, w: hf.Tensor) -> Any:
        if way == "columns":
            return hf.jacobian(program, (0, 1), "forward")(x, w)
        with hf.GradientTape() as tape:
            tape.watch([x, w])
            y = program(x, w)
        return tape.batch_jacobian(y, x) if way == "batch" else tuple(tape.jacobian(y, [x, w], "zero"))

    for given in (BASE, BASE | {name: value}, BASE):
        judge = close if way == "columns" else same  # columns have the dtype of the result
        judge(asked(*made(**given)), rows(*made(**given)))


def test_compiled_functions_die_with_what_was_traced_for_them(traces: list[None]):
    def make():
        inner = hf.compile(lambda x: hf.sin(x) * x)

        def run(x: hf.Tensor):
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = inner(x)
            return tape.jacobian(y, x)

        for _ in range(3):
            run(tensor(1, 2))
        return weakref.ref(inner)

    reference = make()
    assert len(traces) == 1
    gc.collect()
    assert reference() is None


# -- batches ------------------------------------------------------------------------------------------------------


def test_batch_jacobian_is_jax_s():
    def run(x: hf.Tensor, w: hf.Tensor):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = hf.reshape(network(hf, w, f64(B), x), (4, 2, 1))
        return tape.batch_jacobian(y, x), tape.jacobian(y, x)

    batch, full = both(run, f64(X), f64(W), rtol=1e-11)
    expected = in_x64(jax.vmap(jax.jacobian(lambda x: network(jnp, W, B, x))), X)
    assert batch.shape == (4, 2, 1, 3)
    close(batch[:, :, 0], expected, rtol=1e-10)
    close(batch, np.einsum("bijbk->bijk", full.numpy()), rtol=1e-12)


def test_batch_jacobian_of_vectors_several_targets_and_unconnected():
    def run(x: hf.Tensor, z: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch([x, z])
            targets = (x * x, hf.reshape(x, (3, 1)) * hf.asarray([1.0, 2.0]))
        return tape.batch_jacobian(targets, [x, z], unconnected_gradients="zero")

    (a, za), (b, zb) = both(run, tensor(1, 2, 3), hf.zeros((3, 2)))
    assert [t.shape for t in (a, za, b, zb)] == [(3,), (3, 2), (3, 2), (3, 2, 2)]
    close([a, b], [np.array([2.0, 4.0, 6.0]), np.tile([1.0, 2.0], (3, 1))])
    assert not za.numpy().any()
    assert not zb.numpy().any()


def test_batch_jacobian_is_not_traced_again(traces: list[None]):
    for step in range(3):
        x = hf.asarray(X + step)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.exp(x) @ hf.asarray(W)
        tape.batch_jacobian(y, x)
    assert len(traces) == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("shape", "text"), [((3, 2), r"\(2, 2\).*\(3, 2\)"), ((), r"\(2, 2\).*\(\)")])
def test_batch_sizes_are_checked(shape: tuple[int, ...], text: str, compiled: bool):
    def run(x: hf.Tensor, y: hf.Tensor):
        with hf.GradientTape() as tape:
            tape.watch(x)
            z = y * hf.sum(x)
        return tape.batch_jacobian(z, x)

    with pytest.raises(ShapeError, match="batch_jacobian: the target has shape " + text):
        (hf.compile(run) if compiled else run)(hf.ones(shape), hf.ones((2, 2)))


# -- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["jacobian", "batch_jacobian"])
def test_errors(name: str):
    x = tensor(1, 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = x * x
    ask = getattr(tape, name)
    with pytest.raises(ArgumentError, match=rf"{name}: unconnected_gradients='zeros'.*'none', 'zero'"):
        ask(y, x, unconnected_gradients="zeros")
    with pytest.raises(ArgumentTypeError, match="the source is a float"):
        ask(y, 1.0)
    with pytest.raises(ArgumentTypeError, match="the target is empty"):
        ask([], x)
    same(ask(y, x), np.diag([2.0, 4.0]).astype("f") if name == "jacobian" else np.float32([2, 4]))
    with pytest.raises(TapeError, match=f"{name}: a tape that is not persistent answers once"):
        ask(y, x)

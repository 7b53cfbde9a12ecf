"""`hf.from_jax` and `hf.to_jax`: functions that cross over to JAX and back, with their derivatives."""

from __future__ import annotations

import functools
import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.autodiff.jax_derivatives import evaluate_with_rules
from hybridflow.autodiff.transform import differentiate
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.dims import DimScope
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.op import REGISTRY, No, Sample
from hybridflow.core.spec import make_spec
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ops.jax_functions import JaxFunction, jax_function
from hybridflow.testing.calls import trace_sample
from hybridflow.testing.checks import samples_of
from tests.modes import both, close, tensor

X = np.asarray([0.5, -1.0, 2.0], np.float32)


# -- from_jax -----------------------------------------------------------------------------------------------------


def structured(x, y):
    return {"product": jnp.sin(x) * y["k"], "nothing": None, "largest": (jnp.argmax(x), jnp.sum(x, keepdims=True))}


def test_structures_go_in_and_out():
    result = both(lambda x: hf.from_jax(structured)(x, {"k": [x, 2.0][0]}), tensor(*X))
    assert result["nothing"] is None
    assert result["largest"][0].dtype == hf.int32
    close(result, structured(X, {"k": X}))


def test_gradients_are_jaxs():
    def smooth(x, w):
        return jnp.sum(jnp.tanh(x @ w["a"]) * w["b"])

    rng = np.random.default_rng(0)
    x, a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 3), (3, 2), (2,)))
    f = hf.from_jax(smooth)
    found = both(hf.grad(f, argnums=(0, 1)), hf.asarray(x), {"a": hf.asarray(a), "b": hf.asarray(b)})
    close(found, jax.grad(smooth, argnums=(0, 1))(x, {"a": a, "b": b}))


def test_higher_orders():
    third = hf.grad(hf.grad(hf.grad(hf.from_jax(lambda x: jnp.exp(2 * x)))))
    close(both(third, tensor(*X)[0]), 8 * np.exp(1.0, dtype=np.float32))


def test_variables_and_the_tape():
    w = hf.Variable(X)
    f = hf.from_jax(lambda x, scale: x["w"] ** 2 * scale)

    def gradient(x):
        with hf.GradientTape() as tape:
            y = f({"w": w}, 3.0) * x
        return tape.gradient(y, w)

    close(both(gradient, tensor(1.0, 2.0, 0.0)), 6 * X * np.asarray([1, 2, 0]))


@pytest.mark.parametrize("mode", [lambda fn: fn, hf.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("fn", [lambda x: "text", lambda x: x.nothing, lambda x: x if x > 0 else -x])
def test_what_jax_cannot_trace_names_the_call(mode, fn):
    asked = hf.from_jax(fn)
    with pytest.raises(Exception) as raised:  # noqa: PT011 (each is jax's own)
        mode(lambda x: asked(x))(hf.asarray(1.0))
    note = next(one for one in raised.value.__notes__ if one.startswith("while jax traced "))
    assert note.rpartition(", called at ")[2].rpartition(":")[0] == __file__


def test_integer_and_unused_inputs_have_no_gradient():
    f = hf.from_jax(lambda x, i, unused: (x[i], i))
    x, i, unused = tensor(*X), hf.asarray([0, 0]), tensor(1.0)
    with hf.GradientTape(persistent=True) as tape:
        tape.watch((x, unused))
        y, same = f(x, i, unused)
    assert same.dtype == hf.int32
    close(tape.gradient(y, x), np.asarray([2.0, 0.0, 0.0]))
    close(tape.gradient(y, unused), np.zeros(1))
    assert tape.gradient(same, x) is None


def test_custom_derivatives_of_jax_are_kept():
    @jax.custom_vjp
    def f(x):
        return x * x

    f.defvjp(lambda x: (x * x, x), lambda x, g: (g * 100 * x,))
    close(both(hf.grad(hf.from_jax(f)), 3.0), 300.0)


@pytest.mark.always
def test_what_jax_cannot_differentiate_fails_when_asked():
    f = hf.from_jax(lambda x: jax.lax.while_loop(lambda s: s < 10, lambda s: s * 2, x))
    close(both(f, 1.5), 12.0)
    with pytest.raises(ValueError, match="Reverse-mode differentiation does not work"):
        hf.grad(f)(1.5)


def test_closed_over_arrays_are_seen_when_they_change():
    weights = jnp.ones(3)
    f = hf.from_jax(lambda x: x * weights)
    close(f(tensor(*X)), X)
    compiled = hf.compile(lambda x: f(x))
    close(compiled(tensor(*X)), X)
    weights = jnp.full(3, 2.0)
    close(f(tensor(*X)), 2 * X)
    close(compiled(tensor(*X)), 2 * X)
    assert compiled.trace_count == 2
    assert "weights" in str(compiled.explain())


def test_a_closed_over_numpy_array_that_is_written_to_is_the_same_in_both_modes():
    weights = np.ones(3, np.float32)
    f = hf.from_jax(lambda x: x * weights)
    compiled = hf.compile(lambda x: f(x))
    for value in (1.0, 5.0):  # the function is pure to JAX: what it read first stays
        weights[:] = value
        close(f(tensor(*X)), X)
        close(compiled(tensor(*X)), X)


def test_python_values_and_static_arguments():
    traces = []

    @functools.partial(hf.from_jax, static_argnames=("axis", "how"))
    def reduce(x, axis, how="sum", *, scale=1.0):
        traces.append((axis, how, scale))
        assert isinstance(scale, float)
        return getattr(jnp, how)(x, axis=axis) * scale

    x = hf.asarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    close(reduce(x, 0), np.asarray([3.0, 5.0, 7.0]))
    close(reduce(x, axis=(0, 1), how="max", scale=2.0), 10.0)
    assert len(traces) == 2
    reduce(x, 0)
    assert len(traces) == 2
    with pytest.raises(ValueError, match="no parameters of"):
        hf.from_jax(jnp.sin, static_argnames="axis")
    with pytest.raises(TypeError, match="neither an array nor hashable"):
        hf.from_jax(lambda x, y: x)(x, {1, 2})
    with pytest.raises(TypeError, match="not callable"):
        hf.from_jax(3)


def test_zero_and_minus_zero_are_two_values():
    f = hf.from_jax(lambda x, s: jnp.copysign(x, s))
    assert f(tensor(1.0), 0.0).tolist() == [1.0]
    assert f(tensor(1.0), -0.0).tolist() == [-1.0]


def test_64_bit_arguments_turn_64_bits_on():
    f = hf.from_jax(lambda x: x + jnp.arange(3.0))
    assert both(f, hf.asarray(X)).dtype == hf.float32
    found = both(f, hf.asarray(X.astype(np.float64) / 3))
    assert found.dtype == hf.float64
    np.testing.assert_array_equal(found, X.astype(np.float64) / 3 + np.arange(3.0))
    mixed = both(lambda x: f(x) + hf.asarray(X.astype(np.float64)), hf.asarray(X))  # 32-bit JAX in a 64-bit graph
    assert mixed.dtype == hf.float64


def test_random_keys():
    key = jax.random.key(3)
    expected = jax.random.normal(key, (2,))
    close(both(hf.from_jax(lambda x: x + jax.random.normal(key, (2,))), 0.0), expected)
    unwrapped = hf.from_jax(lambda data: jax.random.normal(jax.random.wrap_key_data(data), (2,)))
    close(both(unwrapped, hf.asarray(jax.random.key_data(key))), expected)
    with pytest.raises(TypeError, match=r"key_data"):
        hf.from_jax(lambda key: jax.random.normal(key))(key)


def test_symbolic_sizes_specialise():
    scope = DimScope()
    size = scope.symbol("n", 3)
    f = JaxFunction("double", lambda x: jnp.concatenate([x, x]), wide=False)
    found = REGISTRY["jax_function"].infer(make_spec((size,), np.dtype("float32")), function=f)
    assert found.shape == (6,)
    assert [str(guard) for guard in scope.guards] == ["n == 3 is True"]


def test_effects_are_kept(capfd):
    def noisy(x):
        jax.debug.print("seen {}", x)
        return x + 1

    f = hf.from_jax(noisy)
    hf.compile(lambda x: (f(x), x)[1])(2.0)
    jax.effects_barrier()
    assert capfd.readouterr().out == "seen 2.0\n"


def test_one_node_and_a_comparison():
    f = hf.from_jax(structured)
    compiled = hf.compile(lambda x: f(x, {"k": x})["product"])
    assert [node.op.name for node in compiled.graph(tensor(*X)).nodes] == ["jax_function"]
    assert hf.compare(compiled, tensor(*X), gradients=True, repeats=2).same


def test_a_function_is_freed_with_what_it_closes_over():
    class Weights:
        def __init__(self):
            self.array = jnp.ones(3)

    weights = Weights()
    alive = weakref.ref(weights)
    f = hf.from_jax(lambda x: x * weights.array)
    f(tensor(*X))
    hf.grad(lambda x: hf.sum(f(x)))(tensor(*X))
    f = weights = None
    jax.clear_caches()
    gc.collect()
    assert alive() is None


def test_jax_function_returns_nothing():
    assert hf.from_jax(lambda x: {"a": None})(1.0) == {"a": None}
    assert jax_function(tensor(1.0), function=JaxFunction("neg", jnp.negative, wide=False)).tolist() == [-1.0]


# -- to_jax -------------------------------------------------------------------------------------------------------


def kinked(x):
    return hf.sum(hf.nn.relu(x) * hf.stop_gradient(x) + hf.abs(x) + hf.maximum(x, 0.0))


def test_transformations_of_jax():
    f = hf.to_jax(kinked)
    x = jnp.asarray([-1.0, 0.0, 2.0])
    expected = np.asarray(hf.grad(kinked)(hf.asarray(x)))
    close(jax.jit(f)(x), 2 + 2 + 3 + 2)
    close(jax.grad(f)(x), expected)
    close(jax.jit(jax.grad(f))(x), expected)
    close(jax.vmap(jax.grad(f))(jnp.stack([x, x, x])), np.stack([expected] * 3))
    value, tangent = jax.jvp(f, (x,), (jnp.asarray([1.0, 10.0, 100.0]),))
    close(tangent, expected @ np.asarray([1.0, 10.0, 100.0]))
    close(jax.vjp(f, x)[1](value)[0], value * expected)
    close(jax.linearize(f, x)[1](jnp.ones(3)), expected.sum())


def test_second_order():
    def f(x):
        return hf.sum(hf.nn.softmax(x) * hf.nn.layer_norm(x * x))

    found = jax.hessian(hf.to_jax(f))(X)
    for row in range(3):
        close(found[row], hf.grad(lambda x, row=row: hf.grad(f)(x)[row])(hf.asarray(X)), rtol=1e-4, atol=1e-5)


def test_custom_gradients_are_kept():
    @hf.custom_gradient
    def f(x):
        return x * x, lambda g: g * 100 * x

    close(jax.grad(hf.to_jax(f))(3.0), 300.0)
    close(jax.grad(jax.grad(hf.to_jax(f)))(3.0), 100.0)


def test_control_flow():
    def f(x):
        ys = hf.scan(lambda c, y: (hf.nn.relu(c) * y, c * hf.stop_gradient(y)), x, hf.ones((4, 3)) * x)[1]
        return hf.sum(hf.cond(x[0] > 0, lambda: ys, lambda: hf.nn.relu(ys) * 2.0))

    for x in (X, -X):
        close(jax.jit(jax.grad(hf.to_jax(f)))(x), hf.grad(f)(hf.asarray(x)))


def test_structures_and_python_values():
    f = hf.to_jax(lambda tree, flag, *, power: {"y": tree["x"] ** power if flag else None, "k": 2})
    found = f({"x": X}, True, power=2)
    assert isinstance(found["y"], jax.Array)
    close(found["y"], X**2)
    assert f({"x": X}, False, power=2)["y"] is None
    assert jax.jit(lambda x: f({"x": x}, True, power=3)["y"])(2).dtype == jnp.int32
    with pytest.raises(TypeError, match="not callable"):
        hf.to_jax(3)
    with pytest.raises(TypeError, match="returned a str"):
        hf.to_jax(lambda x: "y")(X)


def test_a_compiled_function_and_a_tape_inside():
    @hf.compile
    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.nn.gelu(x) * x
        return tape.gradient(y, x)

    close(jax.jit(hf.to_jax(f))(X), f(hf.asarray(X)))
    close(jax.grad(lambda x: hf.to_jax(f)(x).sum())(X), hf.grad(lambda x: hf.sum(f(x)))(hf.asarray(X)))


def test_round_trips():
    close(both(hf.grad(hf.from_jax(hf.to_jax(kinked))), tensor(*X)), hf.grad(kinked)(tensor(*X)))
    close(jax.grad(hf.to_jax(hf.from_jax(lambda x: jnp.sum(x**3))))(X), 3 * X**2)


def test_variables_are_an_error_or_constants():
    v = hf.Variable(2.0, name="speed")

    def read(x):
        return x * v

    with pytest.raises(hf.core.errors.TraceError, match=r"reads Variable 'speed'(.|\n)*freeze_variables=True"):
        hf.to_jax(read)(X)
    frozen = hf.to_jax(read, freeze_variables=True)
    close(frozen(X), 2 * X)
    v.assign(3.0)
    close(frozen(X), 3 * X)
    close(hf.to_jax(lambda x, v: x * v)(X, v), 3 * X)
    with pytest.raises(hf.core.errors.TraceError, match="assigns Variable 'speed'"):
        hf.to_jax(lambda x: v.assign(x[0]), freeze_variables=True)(X)
    assert v.item() == 3.0


def test_random_state_is_an_error():
    before = hf.random.default_generator().state.numpy().copy()
    with pytest.raises(hf.core.errors.TraceError, match="draw random numbers outside"):
        hf.to_jax(lambda x: x + hf.random.normal((3,)))(X)
    np.testing.assert_array_equal(hf.random.default_generator().state.numpy(), before)


def test_several_checks_fail_each_with_its_error():
    def picked(table, i, j):
        return table[i] + table[j]

    given = jnp.arange(3.0), jnp.array([0]), jnp.array([2])
    for way in (hf.to_jax(picked), jax.jit(hf.to_jax(picked))):
        np.testing.assert_array_equal(way(*given), [2.0])
    with pytest.raises(IndexError, match="3"):
        hf.to_jax(picked)(given[0], given[1], jnp.array([3]))


def test_checks():
    take = hf.to_jax(lambda ids, table: hf.nn.embedding(ids, table))
    table = jnp.arange(6.0).reshape(3, 2)
    close(jax.jit(take)(jnp.asarray([0, 2]), table), table[jnp.asarray([0, 2])])
    with pytest.raises(IndexError, match="out of range for size 3"):
        take(jnp.asarray([0, 9]), table)
    with pytest.raises(jax.errors.JaxRuntimeError, match="out of range for size 3"):
        jax.block_until_ready(jax.jit(take)(jnp.asarray([0, 9]), table))
    unchecked = hf.to_jax(lambda ids, table: hf.nn.embedding(ids, table), checks=False)
    assert jax.jit(unchecked)(jnp.asarray([0, 9]), table).shape == (2, 2)


def test_64_bits_need_jaxs_64_bit_mode():
    def f(x):
        return hf.astype(x, hf.float64) / 3

    with pytest.raises(TypeError, match="computes in f64, and JAX's 64-bit mode is off"):
        hf.to_jax(f)(X)
    with jax.enable_x64(True):
        found = hf.to_jax(f)(X)
        assert found.dtype == jnp.float64
        assert hf.to_jax(lambda x, k: x * k)(X, jnp.ones(3)).dtype == jnp.float64
        assert jax.jit(hf.to_jax(lambda x, k: x * k))(X, 2.0).dtype == jnp.float32


# -- every rule, forward and reverse ------------------------------------------------------------------------------


def _with_rule() -> list[str]:
    names = [name for name, op in REGISTRY.items() if not isinstance(op.samples, No)]
    special = [name for name in names if REGISTRY[name].saves.hidden or REGISTRY[name].has("own_rule")]
    ordinary = sorted(
        name for name in names
        if name not in special and not isinstance(REGISTRY[name].vjp, No)
    )
    return sorted({*sorted(special)[::2], *ordinary[::25]})


def _work(traced):
    sizes = [x.size for x in traced.arrays]
    return min(sizes, default=0) == 0, sum(sizes)


@pytest.mark.parametrize("name", _with_rule())
def test_jax_derives_by_our_rules(name: str):
    op = REGISTRY[name]
    samples = [one for one in samples_of(op, 0) if isinstance(one, Sample) and one.gradient]
    traces = [trace_sample(op, one) for one in samples]
    traced = min(traces, key=_work) if traces else None
    places = [i for i, x in enumerate(traced.arrays) if is_differentiable(x.dtype)] if traced else []
    if traced is None or not places:
        return

    def f(*floats):
        values = [jnp.asarray(x) for x in traced.arrays]
        for place, x in zip(places, floats, strict=True):
            values[place] = x
        outputs = evaluate_with_rules(traced.graph, values)[: traced.outputs]
        return [y for y in outputs if is_differentiable(y.dtype)]

    rng = np.random.default_rng(0)

    def random_like(xs):
        return [jnp.asarray(rng.standard_normal(x.shape), x.dtype) for x in xs]

    specs = traced.graph.output_specs
    given = tuple([i < traced.outputs and is_differentiable(spec.dtype) for i, spec in enumerate(specs)])
    wanted = tuple([is_differentiable(x.dtype) for x in traced.arrays])
    with enable_x64():
        xs = [jnp.asarray(traced.arrays[place]) for place in places]
        ys, forward = jax.linearize(f, *xs)
        if not ys:
            return
        gs, ts = random_like(ys), random_like(xs)
        backward = jax.linear_transpose(forward, *xs)(gs)
        rule = differentiate(traced.graph, given, wanted)
        found = iter(lower_graph(rule.graph)(*map(jnp.asarray, traced.arrays), *gs))
        expected = [next(found) if rule.present[i] else jnp.zeros_like(x) for i, x in zip(places, xs, strict=True)]
        close(list(backward), expected, rtol=1e-4, atol=1e-5)
        pulled = sum(complex(jnp.vdot(t.conj(), g)) for t, g in zip(ts, backward, strict=True))
        pushed = sum(complex(jnp.vdot(t.conj(), g)) for t, g in zip(forward(*ts), gs, strict=True))
        np.testing.assert_allclose(pushed.real, pulled.real, rtol=1e-3, atol=1e-4)


# -- numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_a_number_that_changes_is_an_input(compiled, dtype):
    traced: list[int] = []

    def scaled(x, t):
        traced.append(0)
        return x * t["rate"] + t["offset"]

    wrapped = hf.from_jax(scaled)
    call = hf.compile(lambda x, t: wrapped(x, t)) if compiled else wrapped
    x = hf.asarray([1.0, 2.0], dtype=dtype)
    for step in range(6):
        found = call(x, {"rate": 0.5 * step, "offset": step})
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found.astype("float32"), np.float32([1, 2]) * 0.5 * step + step)
    assert len(traced) <= 2


@pytest.mark.parametrize("compiled", [False, True])
def test_a_number_that_the_function_needs_counts_by_value(compiled):
    wrapped = hf.from_jax(lambda x, n: x[:n] if n > 1 else -x[:n])
    call = hf.compile(lambda x, n: wrapped(x, n)) if compiled else wrapped
    for n in (1, 2, 3, 1, 2):
        np.testing.assert_array_equal(call(hf.ones(4), n), np.ones(n) if n > 1 else -np.ones(n))


def test_other_programs_for_true_and_one_and_for_signs_of_zeros():
    wrapped = hf.from_jax(lambda x, n: jnp.copysign(x, n))
    for n in (0.0, -0.0, 1.0, -1.0, 0.0):
        assert wrapped(hf.asarray(2.0), n).item() == np.copysign(2.0, n)
    kinds = hf.from_jax(lambda x, n: x + (0 if isinstance(n, bool) else 10))
    assert [kinds(hf.asarray(1.0), n).item() for n in (1, True, 2, False)] == [11, 1, 11, 1]

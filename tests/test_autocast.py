"""`hf.autocast`: which operations run in which precision, eager and compiled, and their gradients."""

import asyncio
import gc
import threading
import weakref

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

import hybridflow as hf
from hybridflow.core.context import current
from hybridflow.core.op import REGISTRY, Sample

BF16, F16, F32, F64 = hf.bfloat16, hf.float16, hf.float32, hf.float64


@pytest.fixture
def x(rng):
    return hf.asarray(rng.standard_normal((8, 16)), dtype=F32)


@pytest.fixture
def w(rng):
    return hf.Variable(hf.asarray(rng.standard_normal((16, 4)), dtype=F32), name="w")


# -- which operations ---------------------------------------------------------------------------------------------

SQUARE = np.linspace(0.1, 0.9, 16, dtype=np.float32).reshape(4, 4)
IMAGE = SQUARE.reshape(1, 1, 4, 4)
LOW = {
    "matmul": lambda x: x @ x,
    "einsum": lambda x: hf.einsum("ij,kj->ik", x, x),
    "tensordot": lambda x: hf.tensordot(x, x, axes=1),
    "vecdot": lambda x: hf.vecdot(x, x),
    "conv": lambda x: hf.nn.conv(hf.reshape(x, (1, 1, 4, 4)), x[None, None, :2, :2]),
    "conv_transpose": lambda x: hf.nn.conv_transpose(hf.reshape(x, (1, 1, 4, 4)), x[None, None, :2, :2]),
    "attention": lambda x: hf.nn.scaled_dot_product_attention(x, x, x),
}
FULL = {
    # what torch.autocast runs in float32 on a GPU, as far as there is such an operation here
    **{name: getattr(hf, name) for name in (
        "exp", "expm1", "log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "acos", "asin", "cosh", "sinh", "tan",
        "sum", "prod",
    )},
    **{name: getattr(hf.nn, name) for name in ("softmax", "log_softmax", "softplus", "layer_norm", "rms_norm")},
    "cumulative_sum": lambda x: hf.cumulative_sum(x, axis=0),
    "cumulative_prod": lambda x: hf.cumulative_prod(x, axis=0),
    "norm": lambda x: hf.linalg.vector_norm(x),
    "pow": lambda x: x**0.3,
    "square": lambda x: x**2,
    "group_norm": lambda x: hf.nn.group_norm(x, 2),
    "mse": lambda x: hf.nn.mse(x, x[::-1]),
    "huber": lambda x: hf.nn.huber(x, x[::-1]),
    "cross_entropy": lambda x: hf.nn.softmax_cross_entropy(x, np.zeros(4, np.int32)),
    "dense_cross_entropy": lambda x: hf.nn.softmax_cross_entropy(x, x),
    "binary_cross_entropy": lambda x: hf.nn.sigmoid_cross_entropy(x, x),
    # and what has no low precision kernel, or loses too much
    "mean": hf.mean, "var": hf.var, "std": hf.std, "logsumexp": hf.nn.logsumexp,
    "det": hf.linalg.det, "fft": lambda x: hf.real(hf.fft.fft(x)),
    "solve": lambda x: hf.linalg.solve(x + hf.eye(4), x),
}
AS_IT_IS = {
    "relu": hf.nn.relu, "tanh": hf.tanh, "sigmoid": hf.nn.sigmoid, "gelu": hf.nn.gelu, "max": hf.max,
    "reshape": lambda x: hf.reshape(x, (2, 8)), "negative": lambda x: -x, "add": lambda x: x + x,
    "multiply": lambda x: x * 2.0, "max_pool": lambda x: hf.nn.max_pool(hf.reshape(x, (1, 1, 4, 4)), 2),
    "dropout": lambda x: hf.nn.dropout(x, 0.5), "gather": lambda x: hf.take(x, np.array([0, 1]), axis=0),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("low", [BF16, F16], ids=str)
def test_what_runs_in_which_precision(low, compiled):
    def dtypes(x):
        return [f(x) for f in (*LOW.values(), *FULL.values(), *AS_IT_IS.values())]

    run = hf.compile(dtypes) if compiled else dtypes
    names = [*LOW, *FULL, *AS_IT_IS]
    for given_as in (F32, low):
        with hf.autocast(low):
            found = dict(zip(names, [y.dtype for y in run(hf.asarray(SQUARE, dtype=given_as))], strict=True))
        expected = {**dict.fromkeys(LOW, low), **dict.fromkeys(FULL, F32), **dict.fromkeys(AS_IT_IS, given_as)}
        assert found == expected


def test_an_operation_is_of_one_precision_only():
    assert not [name for name, op in REGISTRY.items() if op.has("low_precision") and op.has("full_precision")]


def test_values_are_those_of_explicit_casts(x, w):
    """The oracle is jax, told every cast; for the gradients float64, as jax 0.12 rounds more often in that of tanh."""

    def program(x):
        with hf.autocast(BF16):
            h = hf.tanh(x @ w)
            return hf.sum(hf.nn.softmax(h) * h, axis=0)

    def by_hand(x, w):
        h = jnp.tanh(jnp.matmul(x.astype("bfloat16"), w.astype("bfloat16")))
        return jnp.sum(jax.nn.softmax(h.astype("float32")) * h.astype("float32"), axis=0)

    def exact(x, w):
        h = jnp.tanh(x @ w)
        return jnp.sum(jax.nn.softmax(h) * h, axis=0)

    value = by_hand(x.numpy(), w.numpy())
    with jax.enable_x64(True):
        rounded = [one.numpy().astype(jnp.bfloat16).astype(np.float64) for one in (x, w)]
        total, pullback = jax.vjp(exact, *rounded)
        expected = [np.asarray(one) for one in pullback(jnp.ones_like(total))]
    for f in (program, hf.compile(program)):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        gradients = tape.gradient(y, [x, w])
        assert y.dtype == F32
        np.testing.assert_allclose(y.numpy(), value, rtol=2e-2, atol=2e-2)
        for gradient, one in zip(gradients, expected, strict=True):
            assert gradient.dtype == F32
            # bfloat16 keeps 8 bits: 2**-8 of the largest is what two roundings may differ by
            np.testing.assert_allclose(gradient.numpy(), one, rtol=0, atol=2**-7 * np.abs(one).max())


def test_float64_complex_and_integers_are_left_alone():
    with hf.autocast(BF16):
        double = hf.ones((2, 2), dtype=F64)
        assert (double @ double).dtype == F64
        assert hf.exp(double).dtype == F64
        assert (double @ hf.ones((2, 2))).dtype == F64
        assert (double + hf.ones(2, dtype=BF16)).dtype == F64
        assert (hf.ones((2, 2), dtype=hf.complex64) @ hf.ones((2, 2))).dtype == hf.complex64
        assert (hf.ones((2, 2), dtype=hf.int32) @ hf.ones((2, 2), dtype=hf.int32)).dtype == hf.int32
        assert hf.sum(hf.ones(3, dtype=hf.int32)).dtype == hf.int32


def test_operands_that_differ_meet_in_the_widest():
    with hf.autocast(BF16):
        low, full, half = hf.ones(3, dtype=BF16), hf.ones(3), hf.ones(3, dtype=F16)
        assert (low + full).dtype == F32
        assert (low + half).dtype == F32
        assert hf.concat([low, full]).dtype == F32
        assert hf.stack([low, low]).dtype == BF16
        assert hf.where(hf.asarray([True, False, True]), low, full).dtype == F32
        assert hf.maximum(low, 0.5).dtype == BF16
        assert hf.clip(low, 0.0, 1.0).dtype == BF16


def mixed_calls():
    """Return the calls of public operations with several float32 operands: one good sample each."""
    found = {}
    for name, op in sorted(REGISTRY.items()):
        if op.public is None or not callable(op.samples) or op.has("inner") or op.has("nested"):
            continue
        for sample in op.samples(np.random.default_rng(0)):
            arrays = [x for x in getattr(sample, "args", ()) if isinstance(x, np.ndarray) and x.dtype.kind in "fc"]
            if isinstance(sample, Sample) and len(arrays) > 1 and all(x.dtype == np.float32 for x in arrays):
                found[name] = op, sample
                break
    return found


def test_every_operation_takes_operands_of_both_precisions():
    calls = mixed_calls()
    assert {"matmul", "conv", "where", "layer_norm", "softmax_cross_entropy"} <= calls.keys()
    for op, sample in calls.values():
        with hf.autocast(BF16):
            expected = op.public(*sample.args, **sample.kwargs)
            for position, value in enumerate(sample.args):
                if isinstance(value, np.ndarray) and value.dtype == np.float32:
                    args = [x.astype(BF16) if i == position else x for i, x in enumerate(sample.args)]
                    found = op.public(*args, **sample.kwargs)
                    assert jax.tree_util.tree_map(lambda y: (y.shape, y.dtype), found) == jax.tree_util.tree_map(
                        lambda y: (y.shape, y.dtype), expected
                    ), op
        if op.has("low_precision"):
            assert found.dtype == BF16


def test_a_dtype_that_was_asked_for_is_kept():
    low = hf.ones(300, dtype=BF16)
    with hf.autocast(BF16):
        assert hf.sum(low, dtype=BF16).dtype == BF16
        assert hf.prod(low, dtype=F64).dtype == F64
        assert hf.cumulative_sum(low, dtype=BF16, axis=0).dtype == BF16


def test_an_exponent_is_not_rounded():
    base = hf.asarray([2.0, 3.0], dtype=BF16)
    with hf.autocast(BF16):
        y = base**0.1
    np.testing.assert_allclose(y.numpy(), np.float32([2, 3]) ** np.float32(0.1), rtol=1e-6)


def test_a_bias_does_not_widen_what_it_is_added_to(x, w):
    b = hf.Variable(np.ones(4, np.float32))

    def f(x):
        return hf.nn.relu(x @ w + b), b + hf.ones(4), b * 2.0, b + b

    for g in (f, hf.compile(f)):
        with hf.autocast(BF16):
            assert [y.dtype for y in g(x)] == [BF16, F32, F32, F32]
        with hf.autocast(BF16), hf.GradientTape() as tape:
            y = g(x)[0]
        gradient = tape.gradient(y, b)
        assert gradient.dtype == F32
        np.testing.assert_array_equal(gradient.numpy(), (y.numpy() > 0).sum(0))


def test_a_variable_meets_low_precision_in_its_own_dtype_when_it_is_added_to(x, w):
    total = hf.Variable(np.zeros((8, 4), np.float32))
    with hf.autocast(BF16):
        total.assign_add(x @ w)
        total.assign_sub(0.5 * (x @ w))
        assert (0.9 * total + 0.1 * (x @ w)).dtype == F32
    assert total.dtype == F32
    half = (hf.astype(x, BF16) @ hf.astype(w, BF16)).numpy().astype(np.float32) / 2
    np.testing.assert_array_equal(total.numpy(), half)


# -- where it holds -----------------------------------------------------------------------------------------------


def test_blocks_nest_and_end(x, w):
    def dtype():
        return (x @ w).dtype

    assert dtype() == F32
    with hf.autocast(BF16):
        assert dtype() == BF16
        with hf.autocast(F16):
            assert dtype() == F16
            with hf.autocast(enabled=False):
                assert dtype() == F32
                with hf.autocast(BF16):
                    assert dtype() == BF16
            assert dtype() == F16
        assert dtype() == BF16
    assert dtype() == F32
    with pytest.raises(ZeroDivisionError), hf.autocast(BF16):
        _ = 1 / 0
    assert dtype() == F32


def test_one_object_is_entered_several_times(x, w):
    cast = hf.autocast(BF16)
    with cast:
        with cast:
            assert (x @ w).dtype == BF16
        assert (x @ w).dtype == BF16
    assert (x @ w).dtype == F32


def test_decorator(x, w):
    @hf.autocast(BF16)
    def f(x):
        """Multiply."""
        return x @ w if x.ndim == 2 else f(x[None])

    assert (f.__name__, f.__doc__) == ("f", "Multiply.")
    assert f(x).dtype == f(x[0]).dtype == BF16
    assert hf.compile(f)(x).dtype == BF16
    assert hf.autocast(BF16)(hf.compile(lambda x: x @ w))(x).dtype == BF16
    assert hf.autocast(enabled=False)(lambda: (x @ w).dtype)() == F32
    with hf.autocast(BF16):
        assert hf.autocast(enabled=False)(lambda: (x @ w).dtype)() == F32


def test_coroutines_keep_their_own(x, w):
    @hf.autocast(BF16)
    async def low():
        await asyncio.sleep(0)
        return (x @ w).dtype

    async def full():
        await asyncio.sleep(0)
        return (x @ w).dtype

    async def both():
        return await asyncio.gather(low(), full(), low(), full())

    assert asyncio.run(both()) == [BF16, F32, BF16, F32]


def test_threads_start_without(x, w):
    found = []
    with hf.autocast(BF16):
        thread = threading.Thread(target=lambda: found.append((x @ w).dtype))
        thread.start()
        thread.join()
    assert found == [F32]


def test_errors():
    with pytest.raises(hf.core.errors.DTypeError, match="autocast: float32 is no low precision"):
        hf.autocast(F32)
    with pytest.raises(TypeError, match="is not a hybridflow dtype"):
        hf.autocast("float7")
    with pytest.raises(TypeError, match="autocast: an int cannot be called"):
        hf.autocast(BF16)(3)
    with pytest.raises(TypeError, match="is a generator function"):

        @hf.autocast(BF16)
        def numbers():
            yield 1


# -- compiled -----------------------------------------------------------------------------------------------------


def test_part_of_the_key(x, w):
    f = hf.compile(lambda x: x @ w)
    assert f(x).dtype == F32
    with hf.autocast(BF16):
        assert f(x).dtype == f(x).dtype == BF16
        with hf.autocast(F16):
            assert f(x).dtype == F16
    assert f(x).dtype == f(x).dtype == F32
    assert f.trace_count == 3
    text = str(f.explain())
    assert "why: hf.autocast: off -> bfloat16" in text
    assert "autocast: float16" in text
    assert [record.autocast for record in f.explain()] == ["off", "bfloat16", "float16"]


def test_a_trace_made_under_autocast_is_not_used_outside(x):
    f = hf.compile(lambda x: x @ hf.permute_dims(x, (1, 0)))
    with hf.autocast(BF16):
        assert [f(x).dtype for _ in range(3)] == [BF16] * 3
    assert [f(x).dtype for _ in range(3)] == [F32] * 3
    with hf.autocast(BF16):
        assert f(x).dtype == BF16
    assert f.trace_count == 2


def test_inside_a_trace(x, w):
    inner = hf.compile(lambda x: x @ w)

    @hf.compile
    def f(x):
        before = inner(x)
        with hf.autocast(BF16):
            within = inner(x)
            with hf.autocast(enabled=False):
                off = x @ w
        return before, within, off, hf.compile(lambda: x @ w)()

    assert [y.dtype for y in f(x)] == [F32, BF16, F32, F32]
    with hf.autocast(F16):
        assert [y.dtype for y in f(x)] == [F16, BF16, F32, F16]


def test_a_weight_is_cast_once_in_a_graph(x, w):
    with hf.autocast(BF16):
        graph = hf.compile(lambda x: (x @ w) + (x @ w) * (x @ w)).graph(x)
    assert sum(node.op.name == "astype" for node in graph.nodes) == 2


def test_session_graphs(x, w):
    with hf.autocast(BF16), hf.Graph() as graph:
        given = hf.placeholder((8, 16), F32)
        y = given @ w
    with hf.Session(graph) as session:
        assert session.run(y, feed={given: x}).dtype == BF16


def test_init_scope_is_outside(x, w):
    def f(x):
        with hf.init_scope():
            kept = hf.ones((2, 2)) @ hf.ones((2, 2))
        return kept.dtype == F32, x @ w

    with hf.autocast(BF16):
        assert f(x)[0]
        assert hf.compile(f)(x)[0]


# -- gradients ----------------------------------------------------------------------------------------------------


def losses(x, w):
    h = hf.nn.gelu(x @ w)
    return hf.mean(hf.nn.softmax_cross_entropy(h * h + h, np.zeros(8, np.int32)))


def test_gradients_are_the_same_asked_inside_and_outside(x, w):
    found = []
    for inside in (False, True):
        with hf.GradientTape(persistent=True) as tape:
            with hf.autocast(BF16):
                y = losses(x, w)
                if inside:
                    found.append(tape.gradient(y, w))
            if not inside:
                found.append(tape.gradient(y, w))
    assert found[0].dtype == found[1].dtype == F32
    np.testing.assert_array_equal(found[0].numpy(), found[1].numpy())


def test_backward(x, w):
    v = hf.Variable(w, requires_grad=True)
    with hf.autocast(BF16):
        losses(x, v).backward()
    with hf.GradientTape() as tape, hf.autocast(BF16):
        y = losses(x, w)
    assert v.grad.dtype == F32
    np.testing.assert_array_equal(v.grad.numpy(), tape.gradient(y, w).numpy())

    @hf.compile
    def step():
        with hf.autocast(BF16):
            losses(x, v).backward()

    before = v.grad.numpy()
    v.zero_grad()
    step()
    np.testing.assert_allclose(v.grad.numpy(), before, rtol=0, atol=2**-7 * np.abs(before).max())


def test_functional_transforms(x, w):
    weights = w.read()

    @hf.autocast(BF16)
    def f(v):
        return losses(x, v)

    expected = hf.grad(lambda v: losses(x, v))(weights).numpy()
    bound = 2**-6 * np.abs(expected).max()
    for one in (f, hf.compile(f)):
        g = hf.grad(one)(weights)
        assert g.dtype == F32
        np.testing.assert_allclose(g.numpy(), expected, rtol=0, atol=bound)
        value, tangent = hf.jvp(one, (weights,), (hf.ones((16, 4)),))
        assert (value.dtype, tangent.dtype) == (F32, F32)
        np.testing.assert_allclose(tangent.item(), expected.sum(), atol=16 * bound)
        value, pullback = hf.vjp(one, weights)
        np.testing.assert_allclose(pullback(hf.ones(()))[0].numpy(), expected, rtol=0, atol=bound)

    batched = hf.vmap(hf.autocast(BF16)(lambda row: row @ weights))(x)
    assert batched.dtype == BF16
    with hf.autocast(BF16):
        np.testing.assert_array_equal(batched.numpy(), (x @ weights).numpy())
        assert hf.vmap(lambda row: row @ weights)(x).dtype == BF16
        assert hf.jacobian(lambda v: x[0] @ v)(weights).dtype == F32


def test_second_order(x, w):
    def second(low):
        with hf.GradientTape() as outer:
            with hf.GradientTape() as inner, hf.autocast(BF16, enabled=low):
                y = hf.sum(hf.tanh(x @ w) ** 2)
            (g,) = inner.gradient(y, [w])
            s = hf.sum(g * g)
        return outer.gradient(s, w)

    full, low = second(False).numpy(), second(True)
    assert low.dtype == F32
    assert np.abs(low.numpy() - full).max() < 0.1 * np.abs(full).max()


def test_custom_gradient(x, w):
    seen = []

    @hf.custom_gradient
    def f(x):
        def grad(g):
            seen.append((g @ hf.permute_dims(w.read(), (1, 0))).dtype)
            return g @ hf.permute_dims(hf.astype(w.read(), g.dtype), (1, 0))

        return x @ w, grad

    with hf.GradientTape() as tape:
        tape.watch(x)
        with hf.autocast(BF16):
            y = f(x)
            assert y.dtype == BF16
            g = tape.gradient(y, x)
    assert seen == [F32]
    assert g.dtype == F32


def test_uses_of_a_variable_are_added_in_float32():
    """1 and 2**-12 in bfloat16 make 1; in float32 they are apart."""
    v = hf.Variable(np.ones((1, 1), np.float32))
    small = hf.full((1, 1), 2.0**-12)

    def f():
        return hf.ones((1, 1)) @ v + small @ v

    for g in (f, hf.compile(f)):
        with hf.GradientTape() as tape, hf.autocast(BF16):
            y = g()
        assert tape.gradient(y, v).item() == 1 + 2.0**-12


@pytest.mark.parametrize("low", [BF16, F16], ids=str)
def test_many_contributions_of_low_precision_are_added(low):
    x = hf.asarray(np.arange(4.0), dtype=low)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.sum(x * x + x * 2.0 + x * 3.0 + hf.tanh(x) * 0.0 + x)
    np.testing.assert_array_equal(tape.gradient(y, x).numpy().astype(F32), 2 * np.arange(4.0) + 6)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_checkpoint_recomputes_in_the_same_precision(x, w, compiled):
    def block(h):
        return hf.nn.gelu(hf.nn.relu(h @ w) @ w.mT)

    def gradients(part):
        def run():
            with hf.GradientTape() as tape, hf.autocast(BF16):
                loss = hf.mean(part(part(x)) ** 2)
            return tape.gradient(loss, w)

        return (hf.compile(run) if compiled else run)()

    plain, recomputed = gradients(block), gradients(hf.checkpoint(block))
    assert recomputed.dtype == F32
    np.testing.assert_allclose(recomputed.numpy(), plain.numpy(), rtol=0, atol=2**-8 * np.abs(plain.numpy()).max())


# -- control flow -------------------------------------------------------------------------------------------------


def in_a_branch(x, w):
    return hf.cond(hf.sum(x) < 1e9, lambda: x @ w, lambda: hf.zeros((8, 4), dtype=BF16))


def in_a_while(x, w):
    return hf.while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, hf.tanh(h @ w @ w.mT)), (0, hf.astype(x, BF16)))[1]


def in_a_scan(x, w):
    return hf.scan(lambda h, row: (h + hf.astype(row @ w, F32), row @ w), hf.zeros(4), x)[1]


@pytest.mark.parametrize("f", [in_a_branch, in_a_while, in_a_scan], ids=lambda f: f.__name__)
def test_control_flow_bodies(f, x, w):
    @hf.autocast(BF16)
    def run(x):
        return f(x, w)

    eager, compiled = run(x), hf.compile(run)(x)
    assert eager.dtype == compiled.dtype == BF16
    np.testing.assert_allclose(compiled.numpy().astype(F32), eager.numpy().astype(F32), rtol=0.05, atol=0.05)
    gradients = []
    for one in (run, hf.compile(run)):
        with hf.GradientTape() as tape:
            y = hf.sum(hf.astype(one(x), F32))
        gradients.append(tape.gradient(y, w))
        assert gradients[-1].dtype == F32
    a, b = [g.numpy() for g in gradients]
    np.testing.assert_allclose(a, b, rtol=0, atol=0.03 * np.abs(a).max())


def test_a_body_with_autocast_off_stays_off_in_its_gradient(x, w):
    @hf.compile
    @hf.autocast(BF16)
    def f(x, flag):
        def full():
            with hf.autocast(enabled=False):
                return hf.sum(hf.tanh(x @ w))

        return hf.cond(flag, full, lambda: hf.sum(x))

    with hf.GradientTape() as tape:
        y = f(x, True)
    low = tape.gradient(y, w).numpy()
    with hf.GradientTape() as tape:
        y = hf.sum(hf.tanh(x @ w))
    np.testing.assert_allclose(low, tape.gradient(y, w).numpy(), rtol=1e-5, atol=1e-5)


def test_python_conditions_and_loops_of_converted_code(x, w):
    @hf.compile
    @hf.autocast(BF16)
    def f(x):
        h = x @ w
        for _ in range(2):
            if hf.sum(h) > 0:
                h = hf.nn.relu(h)
            else:
                h = hf.tanh(h)
        return h

    assert f(x).dtype == BF16


def test_jax_functions_get_what_they_are_given(x, w):
    f = hf.from_jax(lambda a, b: jnp.dot(a.astype("float32"), b) if a.dtype == "bfloat16" else jnp.dot(a, b))
    with hf.autocast(BF16):
        assert f(x, w).dtype == F32
        assert f(hf.astype(x, BF16), w).dtype == F32
    to_jax = hf.autocast(BF16)(hf.to_jax(lambda x: x @ w, freeze_variables=True))
    assert to_jax(x.numpy()).dtype == "bfloat16"


# -- weights that were cast ---------------------------------------------------------------------------------------


@pytest.fixture
def casts(monkeypatch):
    """The shapes of what was cast to bfloat16."""
    found = []
    astype = REGISTRY["astype"]
    kernel = astype.fast_kernel

    def noting(a, dtype):
        if dtype == BF16:
            found.append(a.shape)
        return kernel(a, dtype=dtype)

    monkeypatch.setattr(astype, "fast_kernel", noting)
    return found


@pytest.mark.parametrize("taped", [False, True])
def test_a_variable_is_cast_once_until_it_is_assigned(x, w, casts, taped):
    with hf.GradientTape() if taped else hf.no_grad(), hf.autocast(BF16):
        for _ in range(3):
            _ = x @ w
        with hf.autocast(BF16):
            _ = x @ w
        assert casts.count((16, 4)) == 1
        assert casts.count((8, 16)) == 4
        old = (x @ w).numpy()
        w.assign(2 * w.numpy())
        np.testing.assert_array_equal((x @ w).numpy(), 2 * old)
        _ = x @ w
        assert casts.count((16, 4)) == 2
    with hf.autocast(BF16):
        _ = x @ w
    assert casts.count((16, 4)) == 3


def test_what_was_cast_is_freed(x):
    with hf.autocast(BF16):
        v = hf.Variable(np.ones((16, 4), np.float32))
        _ = x @ v
        state = current().autocast
        old = weakref.ref(v._value)
        assert len(state._weights) == 1
        v.assign(np.zeros((16, 4), np.float32))
        gc.collect()
        assert old() is None
        assert len(state._weights) == 0
        _ = x @ v
        assert len(state._weights) == 1
    assert not state._weights
    assert not state._reads


def test_a_long_block_does_not_grow(x, w):
    with hf.autocast(BF16):
        state = current().autocast
        for _ in range(20):
            with hf.GradientTape() as tape:
                y = hf.sum(hf.nn.relu(x @ w + w[0]))
            w.assign_sub(0.01 * tape.gradient(y, w))
            del y, tape
        gc.collect()
        assert len(state._reads) <= 2
        assert len(state._weights) <= 2


def test_compiled_steps_that_write_the_variable(x, w):
    @hf.compile
    def step():
        w.assign_sub(0.5 * w)

    with hf.autocast(BF16):
        before = (x @ w).numpy()
        step()
        np.testing.assert_array_equal((x @ w).numpy(), before / 2)


# -- random programs ----------------------------------------------------------------------------------------------

STEPS = {
    "matmul": lambda h, v: h @ v,
    "bias": lambda h, v: h + v[0],
    "tanh": lambda h, v: hf.tanh(h),
    "softmax": lambda h, v: hf.nn.softmax(h),
    "norm": lambda h, v: hf.nn.layer_norm(h),
    "residual": lambda h, v: h + hf.nn.relu(h @ v),
    "off": lambda h, v: hf.autocast(enabled=False)(lambda: hf.astype(h, F32) @ v.read())(),
    "scale": lambda h, v: 0.5 * h,
    "exp": lambda h, v: hf.exp(-hf.abs(h)),
}


@settings(max_examples=15)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5), st.booleans())
def test_random_programs_are_the_same_eager_and_compiled(steps, ask_inside):
    rng = np.random.default_rng(len(steps))
    x = hf.asarray(rng.standard_normal((3, 4)), dtype=F32)
    v = hf.Variable(hf.asarray(rng.standard_normal((4, 4)), dtype=F32) / 2)

    def run(x):
        with hf.GradientTape(persistent=True) as tape:
            with hf.autocast(BF16):
                h = x
                for step in steps:
                    h = STEPS[step](h, v)
                loss = hf.mean(hf.astype(h, F32) ** 2)
                if ask_inside:
                    return h, tape.gradient(loss, v, unconnected_gradients="zero")
            return h, tape.gradient(loss, v, unconnected_gradients="zero")

    h, gradient = run(x)
    h2, gradient2 = hf.compile(run, autograph=False)(x)
    assert h.dtype == h2.dtype
    assert gradient.dtype == gradient2.dtype == F32
    for a, b in ((h, h2), (gradient, gradient2)):
        first, second = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
        np.testing.assert_allclose(first, second, rtol=0, atol=2**-5 * max(np.abs(first).max(), 1e-3))

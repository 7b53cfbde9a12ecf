"""Compiled functions under an eager tape, inside each other, and tapes inside them."""

from __future__ import annotations

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same

import hybridflow as hf
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import GradientError, TapeError

RNG = np.random.default_rng(11)


def normal(*shape: int, dtype=np.float32) -> hf.Tensor:
    return hf.asarray(RNG.standard_normal(shape).astype(dtype))


def gradients(fn, *args, sources=None, **kwargs):
    """The result of a call and the gradients of the sum of its float outputs."""
    leaves = [a for a in jax.tree_util.tree_leaves((args, kwargs)) if isinstance(a, hf.Tensor)]
    watched = [a for a in leaves if is_differentiable(a.dtype)]
    with hf.GradientTape() as tape:
        tape.watch(watched)
        result = fn(*args, **kwargs)
    return result, tape.gradient(result, sources if sources is not None else watched)


def agree(fn, *args, sources=None, rtol=2e-6, **kwargs):
    """Require the same results and gradients eager and compiled; return the gradients."""
    eager = gradients(fn, *args, sources=sources, **kwargs)
    compiled = hf.compile(fn)
    for _ in range(2):
        same(eager, gradients(compiled, *args, sources=sources, **kwargs), rtol=rtol)
    assert compiled.trace_count == 1
    return eager[1]


# -- under an eager tape ------------------------------------------------------------------------------------------


def test_a_small_network_against_eager_and_jax():
    x, w1, b1, w2 = normal(8, 5), normal(5, 7), normal(7), normal(7, 3)

    def f(x, w1, b1, w2):
        return hf.sum(hf.tanh(x @ w1 + b1) @ w2)

    found = agree(f, x, w1, b1, w2, rtol=1e-5)
    arrays = [t.numpy() for t in (x, w1, b1, w2)]
    expected = jax.grad(lambda x, w1, b1, w2: jnp.sum(jnp.tanh(x @ w1 + b1) @ w2), argnums=(0, 1, 2, 3))(*arrays)
    close(found, list(expected))


def test_structured_arguments_and_outputs():
    def f(pair, *, scale, extra=None):
        assert extra is None
        a, b = pair["a"], pair["b"]
        return {"sum": a + b * scale, "list": [a * b, (b,)]}

    agree(f, {"a": normal(3), "b": normal(3)}, scale=normal())


def test_keyword_arguments_and_defaults():
    default = normal(3)

    def f(x, *, y=default, n=2):
        return hf.sum(x * y) ** n

    agree(f, normal(3))
    agree(f, normal(3), y=normal(3), n=3)


def test_integer_and_bool_outputs_have_no_gradient():
    def f(x):
        return hf.argmax(x), x > 0, x * 2

    x = normal(4)
    agree(f, x)
    for fn in (f, hf.compile(f)):
        with hf.GradientTape() as tape:
            tape.watch(x)
            index, positive, _ = fn(x)
        assert tape.gradient([index, positive], x) is None


def test_integer_inputs():
    def f(table, ids, mask):
        return hf.where(mask, hf.take(table, ids, axis=0), 0.0)

    agree(f, normal(5, 2), hf.asarray([0, 3, 3]), hf.asarray([[True], [False], [True]]))


def test_an_output_that_is_an_input_or_a_constant():
    agree(lambda x, y: (x, hf.asarray(1.0), y * 2, x), normal(2), normal(2))


def test_none_among_the_outputs():
    x = normal(2)
    for fn in (f := lambda x: {"a": x * x, "b": None}, hf.compile(f)):
        with hf.GradientTape() as tape:
            tape.watch(x)
            result = fn(x)
        assert result["b"] is None
        close(tape.gradient(result["a"], x), 2 * x.numpy())


def test_unconnected_sources_are_none():
    x, y = normal(2), normal(2)

    def f(x, y):
        return x * 2

    for fn in (f, hf.compile(f)):
        with hf.GradientTape(persistent=True) as tape:
            tape.watch([x, y])
            result = fn(x, y)
        assert tape.gradient(result, y) is None
        assert tape.gradient(result, [x, y], unconnected_gradients="zero")[1].tolist() == [0.0, 0.0]


def test_one_of_several_outputs():
    x = normal(3)

    def f(x):
        return x * x, hf.exp(x), hf.sum(x)

    for index in range(3):
        results = []
        for fn in (f, hf.compile(f)):
            with hf.GradientTape() as tape:
                tape.watch(x)
                target = fn(x)[index]
            results.append(tape.gradient(target, x))
        same(*results)


def test_output_gradients():
    x = normal(3)
    f = hf.compile(lambda x: (x * x, x * 3))
    with hf.GradientTape() as tape:
        tape.watch(x)
        a, b = f(x)
    found = tape.gradient((a, b), x, output_gradients=(hf.asarray([1.0, 2.0, 3.0]), None))
    close(found, 2 * x.numpy() * [1, 2, 3] + 3)


def test_captured_variables():
    w, frozen = hf.Variable([2.0, 3.0]), hf.Variable([5.0, 7.0], trainable=False)

    def f(x):
        return hf.sum(w * x * frozen + w * w)

    x = normal(2)
    agree(f, x, sources=[x, w, frozen])
    with hf.GradientTape() as tape:
        hf.compile(f)(x)
    assert tape.watched_variables() == (w,)


def test_variables_among_the_arguments():
    a, b = hf.Variable([2.0, 3.0]), hf.Variable([5.0, 7.0])

    def f(v, w):
        return hf.sum(v * v * w)

    compiled = hf.compile(f)
    for v, w in ((a, b), (b, a), (a, a), (b, b)):
        same(gradients(f, v, w, sources=[a, b]), gradients(compiled, v, w, sources=[a, b]))
    assert compiled.trace_count == 2


def test_a_variable_that_is_only_assigned_is_not_watched():
    v, w = hf.Variable(1.0), hf.Variable(2.0)

    def f(x):
        v.assign(x)
        return w * x

    for fn in (f, hf.compile(f)):
        with hf.GradientTape() as tape:
            fn(hf.asarray(3.0))
        assert tape.watched_variables() == (w,)


def test_reads_after_an_assignment_count_and_the_assigned_value_does_not():
    v = hf.Variable(2.0)

    def f(x):
        before = v * 1
        v.assign(x * 3)
        return before * 5 + v * v * 7, v.read()

    x = hf.asarray(1.5)
    results = []
    for fn in (f, hf.compile(f)):
        v.assign(2.0)
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            a, b = fn(x)
            after = v * 11
        results.append([tape.gradient(t, [x, v]) for t in (a, b, after)])
    same(*results)


def test_what_is_left_in_a_variable_is_no_output():
    v = hf.Variable(2.0)

    def f(x):
        v.assign(v * x)
        return x * 2

    x = hf.asarray(1.5)
    for fn in (f, hf.compile(f)):
        v.assign(2.0)
        with hf.GradientTape() as tape:
            tape.watch(x)
            result = fn(x)
        dx, dv = tape.gradient(result, [x, v])
        assert (dx.item(), dv, v.item()) == (2.0, None, 3.0)


def test_training_with_a_compiled_loss():
    x, y = normal(16, 4), normal(16)

    def run(compile):
        w = hf.Variable(np.zeros(4, np.float32))
        loss = compile(lambda: hf.mean((x @ w - y) ** 2))
        for _ in range(5):
            with hf.GradientTape() as tape:
                value = loss()
            w.assign_sub(0.1 * tape.gradient(value, w))
        return value, w.read()

    same(run(lambda fn: fn), run(hf.compile), rtol=1e-5)


def test_second_order():
    x = normal(3)

    def f(x):
        return hf.sum(hf.sin(x) * x * x)

    def second(fn):
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = fn(x)
            first = inner.gradient(y, x)
            total = hf.sum(first * first)
        return first, outer.gradient(total, x)

    same(second(f), second(hf.compile(f)), rtol=1e-5)
    array = x.numpy()
    first = jax.grad(lambda x: jnp.sum(jnp.sin(x) * x * x))
    close(second(hf.compile(f))[1], jax.grad(lambda x: jnp.sum(first(x) ** 2))(array), rtol=1e-4)


def test_third_order():
    def third(fn):
        x = hf.asarray(1.3)
        with hf.GradientTape() as one:
            one.watch(x)
            with hf.GradientTape() as two:
                two.watch(x)
                with hf.GradientTape() as three:
                    three.watch(x)
                    y = fn(x)
                a = three.gradient(y, x)
            b = two.gradient(a, x)
        return one.gradient(b, x)

    close(third(hf.compile(lambda x: x**5)), 60 * 1.3**2)
    close(third(hf.compile(lambda x: hf.exp(2 * x))), 8 * np.exp(2.6), rtol=1e-4)


def test_a_gradient_through_a_persistent_tape_and_output_gradients_of_second_order():
    x = hf.asarray([1.0, 2.0])
    f = hf.compile(lambda x: (x**3, x * 2))
    with hf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        a, _ = f(x)
        first = tape.gradient(a, x)
    assert first.tolist() == [3.0, 12.0]
    assert tape.gradient(first, x).tolist() == [6.0, 12.0]
    assert tape.gradient(a, x).tolist() == [3.0, 12.0]


def test_functional_gradients_of_compiled_functions():
    x = normal(3)
    f = hf.compile(lambda x, y: hf.sum(x * x * y))
    close(hf.grad(f)(x, x), 2 * x.numpy() ** 2)
    value, (dx, dy) = hf.value_and_grad(f, argnums=(0, 1))(x, x)
    close([value, dx, dy], [np.sum(x.numpy() ** 3), 2 * x.numpy() ** 2, x.numpy() ** 2])
    close(hf.compile(hf.grad(f))(x, x), 2 * x.numpy() ** 2)


def test_a_call_under_a_tape_that_follows_nothing_of_it():
    v = hf.Variable(1.0, trainable=False)
    f = hf.compile(lambda x: (v.assign_add(x), x * 2)[1])
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        y = f(x)
    assert y.item() == 6.0
    assert v.item() == 4.0
    assert tape.gradient(y, x) is None
    assert f.trace_count == 1


def test_the_tape_and_the_thread_are_no_part_of_the_signature():
    f = hf.compile(lambda x: x * x)
    x = hf.asarray(3.0)
    f(x)
    for persistent in (False, True):
        with hf.GradientTape(persistent=persistent) as tape:
            tape.watch(x)
            f(x)
    assert f.trace_count == 1


def test_each_call_is_one_node():
    f = hf.compile(lambda x: hf.tanh(x) * hf.exp(x) + 1, name="block")
    x = hf.asarray(3.0)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = f(f(x))
    node = y._edge[0]
    assert node.op.name == "block"
    assert node.inputs[0][0].op.name == "block"
    assert node.location.rpartition(":")[0] == __file__


def test_a_recorded_function_is_freed():
    def make():
        w, captured = hf.Variable(np.ones(100, np.float32)), hf.ones((100,))
        f = hf.compile(lambda x: hf.sum(hf.tanh(x * w) * captured))
        x = hf.ones((100,))
        with hf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = f(x)
            first = inner.gradient(y, [x, w])
        outer.gradient(first[0], x)
        trace, _ = f._trace_for((x,), {})
        return [weakref.ref(o) for o in (f, w, captured, x, trace, trace.raw_graph, trace.recorded)]

    references = make()
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_recorded_calls_keep_only_what_their_gradients_read():
    x = normal(1000)
    f = hf.compile(lambda x: (x + 1) * 3 - 2)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert len(y._edge[0].outputs) == 1  # no residuals: the gradient is a constant times g
    assert tape.gradient(y, x).tolist() == [3.0] * 1000


def test_an_operation_without_a_gradient_says_so():
    x = normal(3)
    f = hf.compile(lambda x: hf.while_loop(lambda i, y: i < 3.0, lambda i, y: (i + 1.0, y * 2), (0.0, x))[1])
    with hf.GradientTape() as tape:
        tape.watch(x)
        with pytest.raises(GradientError, match="max_iterations"):
            tape.gradient(f(x), x)
    with hf.GradientTape() as tape:
        y = f(x)  # not watched: no gradient is needed
    assert y.tolist() == (x * 8).tolist()


def test_an_operation_without_a_gradient_on_no_path():
    x, n = normal(3), hf.asarray(5)

    def f(x, n):
        count = hf.while_loop(lambda i: i < n, lambda i: i + 1, (0,))
        return x * 2, count

    agree(f, x, n)


def test_dropout_and_other_draws():
    x = hf.ones((1000,))
    f = hf.compile(lambda x: hf.nn.dropout(x, 0.5) * x)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    found = tape.gradient(y, x).numpy()
    np.testing.assert_array_equal(found, 2 * y.numpy())  # the mask of the forward pass
    assert 0 < (found == 0).sum() < 1000


def test_low_and_high_precision():
    def f(x, y):
        return hf.sum(hf.tanh(x) * y)

    for dtype in (hf.float64, hf.bfloat16, hf.float16):
        x, y = normal(6).astype(dtype), normal(6).astype(dtype)
        found = agree(f, x, y, rtol=1e-12 if dtype == hf.float64 else 2e-2)
        assert [g.dtype for g in found] == [dtype, dtype]


def test_mixed_precision_gradients_have_their_sources_dtype():
    x, y = normal(6).astype(hf.float64), normal(6)
    found = agree(lambda x, y: hf.sum(x * y), x, y)
    assert [g.dtype for g in found] == [hf.float64, hf.float32]


def test_complex_gradients():
    z = hf.asarray(np.array([1 + 2j, 3 - 1j], np.complex64))
    agree(lambda z: z * z * 3 + z, z)


def test_empty_and_zero_dimensional_arrays():
    agree(lambda x, y: (x * 2, hf.sum(x) + y), normal(0, 3), normal())


# -- inside each other --------------------------------------------------------------------------------------------


def test_a_compiled_function_called_by_another_is_inlined():
    inner = hf.compile(lambda x: x * x)
    outer = hf.compile(lambda x: inner(x) + inner(x + 1))
    assert outer(hf.asarray(2.0)).item() == 13.0
    assert (inner.trace_count, outer.trace_count) == (0, 1)
    assert "multiply" in str(outer.graph(hf.asarray(2.0)))
    assert inner(hf.asarray(3.0)).item() == 9.0
    assert (inner.trace_count, outer.trace_count) == (1, 1)


def test_gradients_through_nested_compiled_functions():
    w = hf.Variable([1.0, 2.0])
    inner = hf.compile(lambda x, scale=2.0: x * w * scale)

    def f(x):
        return hf.sum(inner(hf.sin(x)) * inner(x, scale=3.0))

    x = normal(2)
    agree(f, x, sources=[x, w], rtol=1e-5)


def test_what_an_inlined_call_gets_and_returns_is_what_any_call_does():
    @hf.compile
    def inner(x, n):
        assert isinstance(x, np.ndarray)
        return {"x": x * 2, "n": n, "array": np.float64(3)}

    def f():
        result = inner(np.array([1, 2], np.int64), 3)
        return result["x"], result["n"] / 2, result["array"] * np.float32(2)

    both(f)
    x = hf.asarray([1.0], dtype=hf.bfloat16)
    scale = hf.compile(lambda: 2.0)
    assert hf.compile(lambda: x * scale())().dtype == (x * scale()).dtype == hf.bfloat16


def test_recursion_with_a_python_base_case():
    @hf.compile
    def power(x, n):
        return x if n == 1 else x * power(x, n - 1)

    assert power(hf.asarray(2.0), 5).item() == 32.0
    assert power.trace_count == 1


# -- tapes inside -------------------------------------------------------------------------------------------------


def test_a_tape_inside():
    w = hf.Variable(np.array([[1.0, -2.0], [3.0, 0.5]], np.float32))

    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            loss = hf.mean(hf.tanh(x @ w))
        return loss, tape.gradient(loss, [x, w])

    both(f, normal(4, 2), rtol=1e-5)


@pytest.mark.always
def test_gradients_taken_inside_keep_nothing_for_second_ones_until_they_are_asked_for():
    w = hf.Variable(normal(4, 4), requires_grad=True)

    def f(x):
        with hf.GradientTape() as tape:
            loss = hf.sum(hf.tanh(hf.nn.dropout(x, 0.2) @ w) ** 2)
        return tape.gradient(loss, w)

    def kept(compiled):
        return len(compiled(x)._edge[0].outputs)

    x, compiled = normal(3, 4), hf.compile(f)
    assert kept(compiled) == kept(compiled) == 2  # the result, and the state of the generator
    for seed in range(3):
        found = []
        for function in (f, compiled):
            hf.random.seed(seed)
            first = function(x)
            w.grad = None
            hf.sum(first**2).backward()
            found.append((first, w.grad))
        same(*found, rtol=1e-4)  # of small elements, beside others that are 1000 times as large
    assert kept(compiled) > 2


def test_a_persistent_tape_inside_and_second_order():
    def f(x):
        with hf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with hf.GradientTape() as inner:
                inner.watch(x)
                y = hf.sum(hf.sin(x) * x)
            first = inner.gradient(y, x)
        return first, outer.gradient(first, x), outer.gradient(y, x)

    both(f, normal(3), rtol=1e-5)


def test_a_tape_inside_under_a_tape_outside():
    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(x**3)
        return tape.gradient(y, x)

    agree(f, normal(3), rtol=1e-5)


def test_unconnected_gradients_inside():
    v = hf.Variable(1.0)

    def f(x):
        with hf.GradientTape(persistent=True) as tape:
            y = v * x
        return tape.gradient(y, [v, x]), tape.gradient(y, x, unconnected_gradients="zero")

    both(f, hf.asarray(2.0))


def test_a_read_after_an_assignment_inside_a_tape_inside():
    v = hf.Variable(2.0)

    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            before = v * 5
            v.assign(x * 3)
            y = before + v * v
        return tape.gradient(y, [v, x])

    results = []
    for fn in (f, hf.compile(f)):
        v.assign(2.0)
        results.append(fn(hf.asarray(1.0)))
    same(*results)


def test_variables_of_a_branch_that_is_not_taken():
    v, w, u = hf.Variable(2.0, name="v"), hf.Variable(3.0, name="w"), hf.Variable(4.0, name="u")

    def f(x):
        _ = u * 2  # no path from here to the result
        return hf.cond(x > 0, lambda: v * x, lambda: w * x)

    found = []
    for fn in (f, hf.compile(f)):
        with hf.GradientTape(persistent=True) as tape:
            y = fn(hf.asarray(1.0))
        found.append((tape.gradient(y, [v, w, u]), tape.gradient(y, [v, w, u], unconnected_gradients="zero")))
        assert "branch" in tape.why_none(y, w) or fn is not f
        assert tape.why_none(y, u)
    (eager, eager_zero), (compiled, compiled_zero) = found
    assert [None if g is None else g.item() for g in eager] == [1.0, None, None]
    assert [None if g is None else g.item() for g in compiled] == [1.0, 0.0, None]
    same(eager_zero, compiled_zero)
    hf.testing.assert_same(f, hf.asarray(1.0), gradients=True)
    hf.testing.assert_same(f, hf.asarray(-1.0), gradients=True)


def test_a_tape_does_not_cross_the_border_of_a_compiled_function():
    x = hf.asarray(2.0)
    with hf.GradientTape(persistent=True) as outside:
        outside.watch(x)
        y = x * x

        @hf.compile
        def watching(x):
            outside.watch(x)
            return x * x

        with pytest.raises(TapeError, match=r"(?s)watch: the tape is used inside 'watching' while .*entered outside"):
            watching(x)
    with pytest.raises(TapeError, match=r"(?s)gradient: the tape is used inside 'asking' .*same side"):
        hf.compile(lambda: outside.gradient(y, x), name="asking")()
    assert outside.gradient(y, x).item() == 4.0

    class Left(Exception):
        pass

    @hf.compile
    def leaking(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        raise Left(tape, y, x)

    with pytest.raises(Left) as caught:
        leaking(x)
    tape, y, inner = caught.value.args
    with pytest.raises(TapeError, match=r"gradient: the tape was entered inside 'leaking' .*used outside of it"):
        tape.gradient(y, inner)


def test_a_training_step():
    x, y = normal(16, 4), hf.asarray(RNG.integers(0, 3, 16).astype(np.int32))

    def run(compile):
        rng = np.random.default_rng(0)
        w1 = hf.Variable(rng.standard_normal((4, 8)).astype(np.float32))
        w2 = hf.Variable(rng.standard_normal((8, 3)).astype(np.float32))

        @compile
        def step(x, y):
            with hf.GradientTape() as tape:
                logits = hf.nn.relu(x @ w1) @ w2
                loss = hf.mean(hf.nn.softmax_cross_entropy(logits, y))
            for v, g in zip((w1, w2), tape.gradient(loss, (w1, w2)), strict=True):
                v.assign_sub(0.5 * g)
            return loss

        return [step(x, y) for _ in range(10)], w1.read(), w2.read()

    eager, compiled = run(lambda fn: fn), run(hf.compile)
    same(eager, compiled, rtol=1e-3, atol=1e-5)
    assert compiled[0][-1].item() < compiled[0][0].item()

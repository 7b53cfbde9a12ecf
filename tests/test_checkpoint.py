"""`hf.checkpoint`: the same results, gradients and draws as without it, and less kept, in both modes."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import both, close, same, tensor

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, GradientError
from hybridflow.passes.lib.ties import Ties

RNG = np.random.default_rng(0)
X = RNG.normal(size=(4, 3)).astype(np.float32)
W = (RNG.normal(size=(3, 3)) * 0.5).astype(np.float32)
POLICIES: list[Any] = [
    "nothing", "dots", "dots_without_batch", "everything", hf.save_only_names("h"), hf.save_any_except("h"),
]


def layer(x: Any, w: Any) -> Any:
    return hf.tanh(hf.checkpoint_name(hf.tanh(x @ w), "h") @ w) * 2.0


def jax_layer(x: Any, w: Any) -> Any:
    return jnp.tanh(jnp.tanh(x @ w) @ w) * 2.0


def gradients(fn: Callable[..., Any], *tensors: Any) -> Any:
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = hf.sum(fn(*tensors) ** 2)
    return y, tape.gradient(y, tensors)


def plain_and_checkpointed(program: Callable[[Callable[..., Any]], Any], policy: Any = "nothing") -> Any:
    """Run a program with and without checkpoints, both eager and compiled, and require one result."""
    expected = program(lambda fn: fn)
    wrap = hf.checkpoint(policy=policy)
    same(program(wrap), expected, rtol=1e-5, atol=1e-6)
    same(hf.compile(lambda: program(wrap))(), expected, rtol=1e-5, atol=1e-6)
    return expected


# -- gradients ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_gradients_are_those_of_jax_checkpoint(policy: Any):
    kept = hf.checkpoint(layer, policy=policy)
    y, found = both(lambda x, w: gradients(kept, x, w), hf.asarray(X), hf.asarray(W), rtol=1e-5)
    fn = jax.checkpoint(jax_layer)
    expected, pullback = jax.value_and_grad(lambda x, w: jnp.sum(fn(x, w) ** 2), argnums=(0, 1))(X, W)
    close(y, expected)
    close(found, pullback, atol=1e-5)


@pytest.mark.parametrize("policy", ["nothing", "dots", hf.save_any_except("h")], ids=str)
def test_second_order_gradients_are_those_of_jax(policy: Any):
    kept = hf.checkpoint(layer, policy=policy)

    def program(x: Any) -> Any:
        return hf.grad(lambda x: hf.sum(hf.grad(lambda x: hf.sum(kept(x, W)))(x) ** 2))(x)

    found = both(program, hf.asarray(X), rtol=1e-4)
    expected = jax.grad(lambda x: jnp.sum(jax.grad(lambda x: jnp.sum(jax_layer(x, W)))(x) ** 2))(X)
    close(found, expected, rtol=1e-4, atol=1e-5)


def test_gradients_are_those_of_torch_checkpoint():
    torch = pytest.importorskip("torch")
    from torch.utils.checkpoint import checkpoint

    x, w = torch.tensor(X, requires_grad=True), torch.tensor(W, requires_grad=True)
    y = checkpoint(lambda x, w: torch.tanh(torch.tanh(x @ w) @ w) * 2.0, x, w, use_reentrant=False)
    (y**2).sum().backward()
    _, (dx, dw) = gradients(hf.checkpoint(layer), hf.asarray(X), hf.asarray(W))
    close(dx, x.grad.numpy(), atol=1e-5)
    close(dw, w.grad.numpy(), atol=1e-5)


def test_requires_grad_and_backward():
    w = hf.Variable(W, requires_grad=True)
    x = hf.tensor(X, requires_grad=True)
    hf.sum(hf.checkpoint(layer)(x, w) ** 2).backward()
    _, (dx, dw) = gradients(layer, hf.asarray(X), hf.asarray(W))
    close(x.grad, dx)
    close(w.grad, dw)


def test_backward_inside_a_compiled_function():
    w = hf.Variable(W, requires_grad=True)

    @hf.compile
    def step(x: Any) -> Any:
        w.zero_grad()
        hf.sum(hf.checkpoint(lambda x: layer(x, w))(x) ** 2).backward()
        return w.grad

    close(step(hf.asarray(X)), gradients(layer, hf.asarray(X), hf.asarray(W))[1][1])


def test_structures_keywords_other_arguments_and_none():
    def fn(tree: Any, *, scale: float, flag: bool) -> Any:
        a, b = tree["a"], tree["b"][0]
        assert flag
        return {"y": (a * b, None), "text": "t", "n": 3, "x": a, "c": hf.sum(a) * scale}

    def program(wrap: Any) -> Any:
        a, b = tensor(1.0, 2.0), tensor(3.0, 4.0)
        with hf.GradientTape() as tape:
            tape.watch([a, b])
            out = wrap(fn)({"a": a, "b": [b, None]}, scale=3.0, flag=True)
            assert (out["text"], out["n"], out["y"][1]) == ("t", 3, None)
            y = hf.sum(out["y"][0]) + out["c"] + hf.sum(out["x"] ** 2)
        return y, tape.gradient(y, [a, b])

    plain_and_checkpointed(program)


def test_an_integer_argument_and_an_output_without_gradient():
    def fn(x: Any, i: Any) -> Any:
        return hf.take(x, i, axis=0) * 2.0, hf.argmax(x)

    def program(wrap: Any) -> Any:
        x, i = tensor(1.0, 5.0, 3.0), hf.asarray([2, 0])
        with hf.GradientTape() as tape:
            tape.watch(x)
            y, best = wrap(fn)(x, i)
        return best, tape.gradient(y, [x, i])

    plain_and_checkpointed(program)


def test_what_is_not_connected_stays_so():
    x, u = tensor(1.0, 2.0), tensor(3.0, 4.0)
    with hf.GradientTape() as tape:
        tape.watch([x, u])
        y = hf.checkpoint(lambda x, u: x * hf.stop_gradient(u))(x, u)
    assert tape.gradient(y, [x, u])[1] is None
    assert hf.checkpoint(lambda x: x * 2)(x)._edge is None  # nothing is recorded where nothing is watched


# -- what is around -----------------------------------------------------------------------------------------------


def test_captured_variables_and_tensors_get_gradients():
    v, c = hf.Variable(W), hf.asarray(X)

    def program(wrap: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(c)
            d = c * 2.0
            y = hf.sum(wrap(lambda s: hf.sin(d @ v) * s)(hf.asarray(2.0)))
        return y, tape.gradient(y, [v, c])

    plain_and_checkpointed(program)


def test_a_variable_assigned_between_forward_and_backward_keeps_its_old_value():
    def program(wrap: Any) -> Any:
        v, x = hf.Variable(2.0), tensor(3.0, 4.0)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(wrap(lambda x: x * v * v)(x))
            v.assign(10.0)
        found = tape.gradient(y, [x, v])
        assert v.numpy() == 10
        return found

    found = program(hf.checkpoint)
    close(found, [np.array([4.0, 4.0]), 28.0])
    same(found, program(lambda fn: fn))


def test_a_variable_assigned_in_the_body():
    v = hf.Variable(2.0)

    def fn(x: Any) -> Any:
        y = x * v
        v.assign(v * 3.0)
        return y * v

    def program(wrap: Any) -> Any:
        v.assign(2.0)
        x = tensor(3.0, 4.0)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(wrap(fn)(x))
        return y, tape.gradient(y, [x, v]), v.read()

    plain_and_checkpointed(program)
    assert v.numpy() == 6  # once, by the last run, and not again by its gradient


@pytest.mark.parametrize("policy", ["nothing", "dots"])
def test_draws_are_the_same_and_are_drawn_once(policy: str):
    def fn(x: Any) -> Any:
        return hf.nn.dropout(hf.tanh(x @ hf.asarray(W)), 0.5) + hf.random.normal((4, 3))

    def program(wrap: Any) -> Any:
        hf.random.seed(5)
        x = hf.asarray(X)
        y, grads = gradients(wrap(fn), x)
        return y, grads, hf.random.uniform((3,))

    plain_and_checkpointed(program, policy)


def test_a_generator_of_its_own_is_replayed():
    def program(wrap: Any) -> Any:
        generator = hf.random.Generator(3)
        found = gradients(wrap(lambda x: x * generator.normal((4, 3))), hf.asarray(X))
        return found, generator.uniform((2,))

    same(program(hf.checkpoint), program(lambda fn: fn))


def test_compiled_functions_and_custom_gradients_inside():
    v = hf.Variable(W)
    inner = hf.compile(lambda x: hf.nn.dropout(hf.tanh(x @ v), 0.5))

    @hf.custom_gradient
    def twice(x: Any) -> Any:
        return x * 1.0, lambda g: g * 2.0

    def program(wrap: Any) -> Any:
        hf.random.seed(5)
        x = hf.asarray(X)
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(wrap(lambda x: twice(inner(x)) * x)(x))
        return y, tape.gradient(y, [x, v]), hf.random.uniform(())

    plain_and_checkpointed(program)


def test_a_compiled_function_that_assigns_is_run_again_without_assigning():
    v = hf.Variable(1.0)

    @hf.compile
    def inner(x: Any) -> Any:
        v.assign_add(1.0)
        return x * v

    x = tensor(2.0, 3.0)
    _, (found,) = gradients(hf.checkpoint(lambda x: inner(x) * x), x)
    close(found, 2 * (2 * np.array([2.0, 3.0]) ** 2) * 2 * 2 * np.array([2.0, 3.0]))
    assert v.numpy() == 2


def test_nested_checkpoints():
    def program(wrap: Any) -> Any:
        inner = wrap(layer)
        return gradients(wrap(lambda x, w: inner(inner(x, w), w)), hf.asarray(X), hf.asarray(W))

    plain_and_checkpointed(program)


def test_a_gradient_inside():
    def program(wrap: Any) -> Any:
        return gradients(wrap(lambda x: hf.grad(lambda x: hf.sum(hf.sin(x) * x))(x)), hf.asarray(X))

    plain_and_checkpointed(program)


def test_no_grad_inside():
    v = hf.Variable(W)

    def fn(x: Any) -> Any:
        with hf.no_grad():
            mask = hf.random.bernoulli(0.5, (4, 3)).astype(hf.float32)
            scale = hf.sum(v)
        return x * mask * scale

    def program(wrap: Any) -> Any:
        hf.random.seed(5)
        return gradients(wrap(fn), hf.asarray(X)), hf.random.uniform(())

    same(program(hf.checkpoint), program(lambda fn: fn))


# -- control flow and transformations -----------------------------------------------------------------------------


def test_in_a_scan_a_branch_and_a_loop():
    def program(wrap: Any) -> Any:
        body = wrap(layer)

        def run(x: Any, w: Any) -> Any:
            x, _ = hf.scan(lambda c, _: (body(c, w), c), x, hf.zeros((3,)))
            x = hf.cond(hf.sum(x) > -1000.0, lambda x: body(x, w), lambda x: x, x)
            return hf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, body(x, w)), (0, x), max_iterations=3)[1]

        return gradients(run, hf.asarray(X), hf.asarray(W))

    plain_and_checkpointed(program)


def test_control_flow_inside():
    def fn(x: Any, w: Any) -> Any:
        x = hf.cond(hf.sum(x) > 0, lambda x: hf.tanh(x @ w), lambda x: x * 2.0, x)
        return hf.scan(lambda c, _: (hf.sin(c) @ w, None), x, hf.zeros((2,)))[0]

    plain_and_checkpointed(lambda wrap: gradients(wrap(fn), hf.asarray(X), hf.asarray(W)))


def test_vmap_jvp_and_hessian():
    def program(wrap: Any) -> Any:
        fn = wrap(lambda x: hf.sum(hf.sin(x @ hf.asarray(W)) ** 2))
        return (
            hf.vmap(hf.grad(fn))(hf.asarray(X)),
            hf.jvp(fn, (hf.asarray(X),), (hf.ones((4, 3)),)),
            hf.hessian(fn)(tensor(1.0, 2.0, 3.0)),
        )

    expected = program(lambda fn: fn)
    same(program(hf.checkpoint), expected, rtol=1e-5, atol=1e-5)
    same(hf.compile(lambda: program(hf.checkpoint))(), expected, rtol=1e-5, atol=1e-5)


def test_of_any_batch_size():
    @hf.compile(input_signature=[hf.TensorSpec([None, 3])])
    def fn(x: Any) -> Any:
        return gradients(hf.checkpoint(lambda x: layer(x, W)), x)[1][0]

    for n in (2, 5):
        x = RNG.normal(size=(n, 3)).astype(np.float32)
        close(fn(x), gradients(lambda x: layer(x, W), hf.asarray(x))[1][0])


def test_a_compiled_function_with_a_checkpoint_under_an_eager_tape():
    fn = hf.compile(hf.checkpoint(layer))
    same(gradients(fn, hf.asarray(X), hf.asarray(W)), gradients(layer, hf.asarray(X), hf.asarray(W)), rtol=1e-5)


def test_effects_and_checks(capsys: pytest.CaptureFixture[str]):
    def fn(x: Any) -> Any:
        hf.print("here")
        hf.debugging.check(hf.sum(x) < 100.0, "too large")
        return hf.sin(x)

    def program(x: Any) -> Any:
        return gradients(hf.checkpoint(fn), x)[1][0]

    compiled = hf.compile(program)
    close(program(hf.asarray(X)), compiled(hf.asarray(X)))
    assert capsys.readouterr().out == "here\n" * 2
    with pytest.raises(Exception, match="too large"):
        compiled(hf.asarray(X + 100)).numpy()
    with pytest.raises(Exception, match="too large"):
        program(hf.asarray(X + 100))


def test_the_graph_is_printed_and_read_back():
    fn = hf.compile(lambda x: gradients(hf.checkpoint(layer, policy="dots"), x, hf.asarray(W)))
    text = fn.lower(hf.asarray(X)).as_text("graph")
    assert "checkpoint(" in text
    assert str(hf.ir.parse(text)) == text


# -- errors -------------------------------------------------------------------------------------------------------


def test_a_function_that_does_something_else_is_an_error():
    calls: list[int] = []

    def fn(x: Any) -> Any:
        calls.append(0)
        return hf.sin(x) if len(calls) < 2 else hf.cos(x)

    with pytest.raises(GradientError, match=r"has cos giving f32\[4,3\] where it had sin giving f32\[4,3\]"):
        gradients(hf.checkpoint(fn), hf.asarray(X))


def test_a_function_that_reads_something_else_is_an_error():
    tensors = [hf.asarray(X), hf.asarray(X)]
    with hf.GradientTape() as tape:
        tape.watch(tensors)
        y = hf.checkpoint(lambda x: x * tensors[0])(tensors[1])
        tensors[0] = tensors[1] * 1.0
    with pytest.raises(GradientError, match="reads other tensors around it"):
        tape.gradient(y, tensors)


@pytest.mark.parametrize("x", [X, np.zeros_like(X)])  # of zeros, the result does not show the change
def test_python_state_that_changes_before_the_gradient_is_an_error(x: Any):
    state = {"number": 2.0, "array": np.arange(3, dtype=np.float32)}
    for name in state:
        with hf.GradientTape() as tape:
            tape.watch(tensor := hf.asarray(x))
            y = hf.checkpoint(lambda x, name=name: x * state[name])(tensor)
        state[name] = state[name] + 1
        if x.any() or name == "number":
            with pytest.raises(GradientError, match=r"other numbers in multiply|result 0 of 1, .*differs"):
                tape.gradient(y, tensor)


def test_wrong_policies():
    with pytest.raises(ArgumentError, match=r"'dot' is not a policy\n.*dots"):
        hf.checkpoint(layer, policy="dot")
    with pytest.raises(ArgumentTypeError, match="an int is no policy"):
        hf.checkpoint(policy=3)
    with pytest.raises(ArgumentTypeError, match="an int is not callable"):
        hf.checkpoint(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="an int is no name"):
        hf.checkpoint_name(tensor(1.0), 3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="an int is no name"):
        hf.save_only_names("a", 3)  # type: ignore[arg-type]


# -- memory -------------------------------------------------------------------------------------------------------


def kept_bytes(run: Callable[[], Any]) -> int:
    """Return what a run leaves allocated while its result lives, by Python's own count (NumPy reports to it)."""
    run()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        result = run()
        gc.collect()
        after = tracemalloc.get_traced_memory()[0]
        del result
        return after - before
    finally:
        tracemalloc.stop()


def chain(x: Any, w: Any) -> Any:
    for _ in range(20):
        x = hf.sin(hf.tanh(x) @ w)
    return x


@pytest.mark.parametrize(("policy", "kept"), [("everything", 42), ("nothing", 1), ("dots", 21)])
def test_what_an_eager_checkpoint_keeps(policy: str, kept: int):
    x, w = hf.asarray(np.ones((128, 64), np.float32)), hf.asarray(np.eye(64, dtype=np.float32))
    one = 128 * 64 * 4

    def run() -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.checkpoint(chain, policy=policy)(x, w)
        return y, tape

    assert kept_bytes(run) == pytest.approx(kept * one, rel=0.25, abs=one)


def test_a_policy_is_not_computed_again_eagerly():
    """The kept product is handed out: poisoning it is seen in the second run's result."""
    x, w = hf.asarray(X), hf.asarray(W)
    with hf.GradientTape() as tape:
        tape.watch(x)
        y = hf.sum(hf.checkpoint(lambda x: hf.sin(x @ w), policy="dots")(x))
    node = next(edge[0] for edge in y._edge[0].inputs)
    (kept,) = node.attrs["run"].kept
    kept[0][...] = 0.0
    with pytest.raises(GradientError, match=r"result 0 of 1, f32\[4,.*differs"):
        tape.gradient(y, x)


def temporaries(fn: Callable[..., Any], *args: Any) -> int:
    return hf.compile(fn).lower(*args).executable.compiled.memory_analysis().temp_size_in_bytes


def test_a_compiled_checkpoint_saves_on_the_cpu():
    def block(x: Any, w: Any) -> Any:
        return x + hf.tanh(hf.nn.gelu(hf.nn.layer_norm(x) @ w) @ hf.permute_dims(w, (1, 0)))

    def program(wrap: Any) -> Callable[..., Any]:
        def loss(ws: Any, x: Any) -> Any:
            for w in ws:
                x = wrap(block)(x, w)
            return hf.mean(x**2)

        return hf.grad(loss)

    ws = [hf.asarray((RNG.normal(size=(16, 64)) * 0.1).astype(np.float32)) for _ in range(12)]
    x = hf.asarray(RNG.normal(size=(256, 16)).astype(np.float32))
    without, found = temporaries(program(lambda fn: fn), ws, x), temporaries(program(hf.checkpoint), ws, x)
    assert found <= without / 4, (found, without)
    expected = hf.compile(program(lambda fn: fn))(ws, x)
    same(hf.compile(program(hf.checkpoint))(ws, x), expected, rtol=1e-5, atol=1e-7)


def test_a_second_run_of_a_layer_with_a_bias_is_not_merged_with_the_first():
    """The product does not depend on the bias, which is the smallest input."""
    shapes = ((64, 16), (64,), (16, 64))
    w, b, back = [hf.asarray((RNG.normal(size=shape) * 0.1).astype(np.float32)) for shape in shapes]

    def program(wrap: Any) -> Callable[..., Any]:
        def loss(x: Any, *ws: Any) -> Any:
            for _ in range(6):
                x = wrap(lambda x, w, b, back: x + hf.nn.linear(hf.tanh(hf.nn.linear(x, w, b)), back))(x, *ws)
            return hf.mean(x**2)

        return hf.grad(loss, argnums=(0, 1, 2, 3))

    x = hf.asarray(RNG.normal(size=(512, 16)).astype(np.float32))
    without, found = [temporaries(program(wrap), x, w, b, back) for wrap in (lambda fn: fn, hf.checkpoint)]
    assert found <= 0.7 * without, (found, without)
    same(hf.compile(program(hf.checkpoint))(x, w, b, back), program(lambda fn: fn)(x, w, b, back), rtol=1e-4, atol=1e-6)


TIED_INPUTS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...], tuple[int, ...]]] = {
    "a bias": (hf.nn.linear, ((512, 16), (64, 16), (64,)), (0, 1)),
    "a scale": (lambda x, s, t: hf.nn.layer_norm(x, s, t), ((512, 16), (16,), (16,)), (0,)),
    "statistics": (
        lambda x, m, v, s, t: hf.nn.batch_norm(x, m, v, s, t), ((8, 16, 9), *[(16,)] * 4), (1, 2)
    ),
    "a mask": (hf.nn.scaled_dot_product_attention, ((8, 2, 32, 16), (8, 2, 32, 16), (8, 2, 32, 16), (32, 32)), (0, 1)),
    "a row": (hf.multiply, ((512, 16), (16,)), (1,)),
    "nothing": (hf.add, ((0, 16), (1, 16)), (1,)),
}


@pytest.mark.parametrize("name", TIED_INPUTS)
def test_what_is_tied_is_what_the_large_values_depend_on(name: str):
    function, shapes, allowed = TIED_INPUTS[name]
    graph = hf.compile(function).graph(*[hf.zeros(shape) for shape in shapes])
    node = max(graph.nodes, key=lambda one: len(one.inputs))
    edges = [edge for edge in node.inputs if edge is not None]
    position = Ties({}).position(node, edges)
    assert position is not None
    assert graph.inputs.index(edges[position][0]) in allowed


@pytest.mark.parametrize("policy", ["nothing", "dots", "everything"])
def test_a_jacobian_goes_through(policy: str):
    x = hf.asarray([0.3, -0.7])
    found = hf.jacobian(hf.checkpoint(hf.sin, policy=policy))(x)
    np.testing.assert_allclose(found, np.diag(np.cos([0.3, -0.7])), rtol=1e-6)


@pytest.mark.parametrize("part", [lambda f: f, hf.compile], ids=["eager", "compiled"])
@pytest.mark.parametrize("transform", ["grad", "jvp", "hvp", "jacobian"])
def test_a_derivative_inside_is_the_same_in_the_second_run(part, transform):
    """Its tape watches values that every run makes anew."""
    rows, inner = hf.asarray([0.3, -0.7, 1.1, 0.4]), part(lambda rows, x: hf.mean(hf.tanh(rows * x)))

    def body(rows):
        def derivative(x):
            f = lambda x: inner(rows, x)  # noqa: E731
            if transform in ("grad", "jacobian"):
                return getattr(hf, transform)(f)(x)
            return hf.jvp(f, (x,), (x,))[1] if transform == "jvp" else hf.hvp(f, (x,), (x,))[0]

        return derivative

    def by_backward(f: Any) -> Any:
        leaf = rows.detach().requires_grad_()
        f(leaf).backward()
        return leaf.grad

    for ask in (lambda f: hf.grad(f)(rows), by_backward):
        plain = ask(lambda rows: body(rows)(hf.mean(rows)))
        kept = ask(lambda rows: hf.checkpoint(body(rows))(hf.mean(rows)))
        np.testing.assert_allclose(kept, plain, rtol=1e-5)


@pytest.mark.parametrize("uses", [
    lambda f: f, lambda f: lambda x: f(f(x)), lambda f: lambda x: f(x) + f(x * 2) * f(x),
])
def test_a_compiled_function_that_took_a_gradient_itself_may_keep_more_in_the_second_run(uses):
    """Its calls keep nothing for a second gradient until one is asked for, which the first run did not know."""

    def slope(x: Any) -> Any:
        return x * 0.5 + hf.grad(lambda x: hf.sum(hf.sin(x) * x))(x)

    def by_backward(f: Any) -> Any:
        x = hf.tensor(X[0], requires_grad=True)
        (f(x) ** 2).sum().backward()
        return x.grad

    kept = hf.checkpoint(uses(hf.compile(slope)))
    for ask in (by_backward, by_backward, lambda f: gradients(f, hf.asarray(X[0]))[1][0]):
        close(ask(kept), ask(uses(slope)))

"""`.backward()` inside compiled functions: the same gradients, and written only if the call counts."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.tracing.trace import Trace

X = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)


def model(w: Any, b: Any, x: Any) -> Any:
    return hf.nn.softmax_cross_entropy(hf.tanh(x @ w) + b, hf.asarray([0, 1, 1, 0])).mean()


def parameters() -> tuple[Any, Any]:
    start = np.arange(6, dtype=np.float32).reshape(3, 2) / 10
    return hf.Variable(start, requires_grad=True, name="w"), hf.Variable(np.zeros(2), dtype=hf.float32,
                                                                         requires_grad=True, name="b")


def train(compiled: bool, *, clear: bool = True) -> list[Any]:
    w, b = parameters()

    def step(x: Any) -> Any:
        if clear:
            w.zero_grad()
            b.zero_grad()
        loss = model(w, b, x)
        loss.backward()
        w.assign_sub(0.5 * w.grad)
        b.assign_sub(0.5 * b.grad)
        return loss

    run = hf.compile(step) if compiled else step
    losses = [run(hf.asarray(X)).item() for _ in range(4)]
    if compiled:
        assert run.trace_count == (1 if clear else 2)  # without a gradient at first, and with one
    return [losses, w.numpy(), b.numpy(), w.grad.numpy(), b.grad.numpy()]


@pytest.mark.parametrize("clear", [True, False])
def test_training_is_the_same_eager_and_compiled(clear):
    for eager, compiled in zip(train(False, clear=clear), train(True, clear=clear), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-5, atol=1e-6)


def test_what_torch_gets():
    torch = pytest.importorskip("torch")
    w, b = (torch.tensor(v.numpy().copy(), requires_grad=True) for v in parameters())
    losses: list[float] = []
    for _ in range(4):
        w.grad = b.grad = None
        loss = torch.nn.functional.cross_entropy(torch.tanh(torch.tensor(X) @ w) + b, torch.tensor([0, 1, 1, 0]))
        loss.backward()
        with torch.no_grad():
            w -= 0.5 * w.grad
            b -= 0.5 * b.grad
        losses.append(loss.item())
    ours = train(True)
    np.testing.assert_allclose(ours[0], losses, rtol=1e-5)
    np.testing.assert_allclose(ours[1], w.detach().numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[3], w.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("before", [None, [10.0, 20.0]])
def test_a_call_that_fails_changes_no_gradient(before):
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    w.grad = before

    @hf.compile
    def step(index: Any) -> Any:
        w.sum().backward()
        return hf.take(hf.asarray([1.0, 2.0]), index)

    held = w.grad
    for _ in range(2):
        with pytest.raises(IndexError):
            step(hf.asarray(7))
        assert (w.grad is None) if before is None else (w.grad.tolist() == before)
    step(hf.asarray(1))
    assert w.grad.tolist() == ([1.0, 1.0] if before is None else [11.0, 21.0])
    assert held is None or held.tolist() == before  # what was read before is no buffer that was given away


def test_a_trace_that_fails_changes_no_gradient():
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    w.sum().backward()

    @hf.compile
    def step(x: Any) -> Any:
        w.zero_grad()
        (w * x).sum().backward()
        raise KeyError("no")

    with pytest.raises(KeyError):
        step(hf.asarray([1.0, 1.0]))
    assert w.grad.tolist() == [1.0, 1.0]


def test_variables_as_arguments():
    def step(v: Any, x: Any) -> Any:
        (v * x).sum().backward()
        return v.grad * 2

    compiled = hf.compile(step)
    for run in (step, compiled):
        u, v = hf.Variable([1.0, 1.0], requires_grad=True), hf.Variable([2.0, 2.0], requires_grad=True)
        x = hf.asarray([1.0, 3.0])
        assert run(u, x).tolist() == [2.0, 6.0]
        assert run(v, x).tolist() == [2.0, 6.0]
        assert run(u, x).tolist() == [4.0, 12.0]
        assert u.grad.tolist() == [2.0, 6.0]
        assert v.grad.tolist() == [1.0, 3.0]
        with pytest.raises(RuntimeError, match="does not require a gradient"):
            run(hf.Variable([1.0, 1.0]), x)
    assert compiled.trace_count == 2
    assert "grad: as it was -> with a gradient" in str(compiled.explain())


def test_an_argument_that_is_captured_too():
    w = hf.Variable([1.0, 1.0], requires_grad=True)
    other = hf.Variable([5.0, 5.0], requires_grad=True)

    def step(v: Any) -> Any:
        (v * w).sum().backward()
        return w.grad

    for run in (step, hf.compile(step)):
        for argument, expected in ((w, [2.0, 2.0]), (other, [7.0, 7.0]), (w, [9.0, 9.0])):
            if argument is w and expected == [2.0, 2.0]:
                w.zero_grad()
                other.zero_grad()
            assert run(argument).tolist() == expected
        assert w.grad.tolist() == [9.0, 9.0]
        assert other.grad.tolist() == [1.0, 1.0]


def test_clearing_alone_is_an_effect_too():
    w = hf.Variable([1.0], requires_grad=True)
    w.sum().backward()

    @hf.compile
    def clear(x: Any) -> Any:
        w.zero_grad()
        return x

    clear(hf.asarray(1.0))
    assert w.grad is None
    w.sum().backward()
    clear(hf.asarray(1.0))
    assert w.grad is None


def test_a_result_whose_graph_was_freed_says_so_and_a_retained_one_goes_on():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def lose(x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward()
        return loss

    def keep(x: Any) -> Any:
        loss = (w * w * x).sum()
        loss.backward(retain_graph=True)
        return loss, (w * 2).sum()

    x = hf.asarray([1.0, 1.0])
    for wrap in (lambda f: f, hf.compile):
        w.zero_grad()
        loss = wrap(lose)(x)
        assert loss.requires_grad
        with pytest.raises(RuntimeError, match="call that one with retain_graph=True"):
            loss.backward()
        loss, other = wrap(keep)(x)
        loss.backward()
        other.backward()
        assert w.grad.tolist() == [2.0 * 3 + 2, 4.0 * 3 + 2]


def test_what_is_a_leaf_inside():
    def f(x: Any) -> Any:
        y = (x * 2).detach().requires_grad_()
        z = hf.tensor(x, requires_grad=True)
        with hf.no_grad():
            scale = y.sum()
        t = y * z
        t.retain_grad()
        t.register_hook(lambda g: g * 10)
        (t * scale).sum().backward()
        return y.grad, z.grad, t.grad, y.is_leaf, t.requires_grad, scale.requires_grad, hf.is_grad_enabled()

    x = hf.asarray([1.0, 2.0])
    for a, b in zip(f(x), hf.compile(f)(x), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a))


def test_a_hook_of_a_variable_is_part_of_the_trace():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    @hf.compile
    def step(x: Any) -> Any:
        w.zero_grad()
        (w * x).sum().backward()
        return w.grad

    x = hf.asarray([1.0, 1.0])
    assert step(x).tolist() == [1.0, 1.0]
    handle = w.register_hook(lambda g: g * 10)
    assert step(x).tolist() == [10.0, 10.0]
    handle.remove()
    assert step(x).tolist() == [1.0, 1.0]
    assert step.trace_count == 2

    @hf.compile
    def registers(x: Any) -> Any:
        w.register_hook(print)
        return x

    with pytest.raises(RuntimeError, match="Register it once, outside"):
        registers(x)


def test_tensors_from_outside_are_refused_by_name():
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    x = hf.tensor([1.0, 2.0], requires_grad=True)

    @hf.compile
    def step(v: Any) -> Any:
        (w * v).sum().backward()
        return v * 1

    step(x.detach())
    with pytest.raises(RuntimeError, match=r"step: a tensor that requires a gradient reaches a compiled function"):
        step(x)
    assert x.grad is None
    with pytest.raises(RuntimeError, match="written to a tensor made outside of this trace"):
        hf.compile(lambda v: (x * v).sum().backward())(x.detach())
    for ask in (lambda v: v.grad, lambda v: v.requires_grad_(), lambda _: x.is_leaf):
        with pytest.raises(RuntimeError, match="asked of a tensor that was made outside"):
            hf.compile(ask)(x.detach())


def test_no_grad_around_a_compiled_function():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def step(x: Any) -> Any:
        (w * x).sum().backward()
        return w.grad

    compiled = hf.compile(step)
    x = hf.asarray([1.0, 1.0])
    compiled(x)
    for run in (step, compiled):
        with hf.no_grad(), pytest.raises(RuntimeError, match="does not require a gradient"):
            run(x)
    assert w.grad.tolist() == [1.0, 1.0]


def test_inside_a_branch_it_is_refused():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def inner(x: Any) -> Any:
        (w * x).sum().backward()
        return x

    def clear(x: Any) -> Any:
        w.zero_grad()
        return x

    for body, text in ((inner, "made outside of this trace"), (clear, "changed inside a branch or loop")):
        f = hf.compile(lambda x, body=body: hf.cond(x.sum() > 0, body, lambda v: v, x))
        with pytest.raises(RuntimeError, match=text):
            f(hf.asarray([1.0, 1.0]))


def test_through_branches_and_loops():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def step(x: Any) -> Any:
        w.zero_grad()
        y = hf.cond(x.sum() > 0, lambda v: v * w, lambda v: v - w, x)
        y, _ = hf.scan(lambda c, s: (c * s, c), y, hf.asarray([2.0, 3.0]))
        y.sum().backward()
        return w.grad

    for x in (hf.asarray([1.0, 1.0]), hf.asarray([-1.0, -1.0])):
        np.testing.assert_allclose(hf.compile(step)(x).numpy(), step(x).numpy())


def test_a_tape_and_backward_in_one_trace():
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def step(x: Any) -> Any:
        w.zero_grad()
        with hf.GradientTape() as tape:
            loss = (w * w * x).sum()
        loss.backward(retain_graph=True)
        return tape.gradient(loss, w), w.grad

    x = hf.asarray([1.0, 3.0])
    for run in (step, hf.compile(step)):
        by_tape, by_backward = run(x)
        assert by_tape.tolist() == by_backward.tolist() == [2.0, 12.0]

def test_compare_and_assert_same_leave_gradients_as_they_were():
    w = hf.Variable([3.0, 4.0], requires_grad=True)

    def step(x: Any) -> Any:
        (w * w * x).sum().backward()
        return w.grad * 1

    x = hf.asarray([1.0, 2.0])
    hf.testing.assert_same(step, x)
    assert w.grad is None
    step(x)
    hf.testing.assert_same(step, x)
    assert w.grad.tolist() == [6.0, 16.0]


STEP = st.tuples(
    st.sampled_from(["multiply", "tanh", "read", "detach", "no_grad", "backward", "retain", "zero", "assign", "grad"]),
    st.integers(0, 99),
)


def interpret(steps: list[tuple[str, int]], variables: list[Any], x: Any) -> list[Any]:
    """Run a program of values, gradients and writes; return what it found."""
    values: list[Any] = [variable * x for variable in variables]
    found: list[Any] = []
    for name, pick in steps:
        value, variable = values[pick % len(values)], variables[pick % len(variables)]
        if name == "multiply":
            values.append(value * values[-1])
        elif name == "tanh":
            values.append(hf.tanh(value))
        elif name == "read":
            values.append(variable * 0.5 + x)
        elif name == "detach":
            values.append(value.detach())
        elif name == "no_grad":
            with hf.no_grad():
                values.append(value * 2)
        elif name in ("backward", "retain"):
            value.sum().backward(retain_graph=name == "retain")
        elif name == "zero":
            variable.zero_grad()
        elif name == "assign":
            variable.assign(hf.tanh(value))
        elif variable.grad is not None:
            found.append(variable.grad + 0)
            values.append(variable.grad * x)
        found.append(hf.asarray(values[-1].requires_grad))
    return found


def outcome(run: Any, steps: list[tuple[str, int]]) -> list[Any]:
    """Return everything that two calls leave behind, or the error of the one that failed."""
    variables = [hf.Variable([0.5, -1.0], requires_grad=True), hf.Variable([1.5, 0.25], requires_grad=True)]
    left: list[Any] = []
    for x in ([1.0, 2.0], [0.5, -0.5]):
        try:
            left += [one.numpy() for one in run(steps, variables, hf.asarray(x))]
        except RuntimeError as error:
            left.append(str(error).split(":")[0])
            break
        left += [variable.numpy() for variable in variables]
        left += [None if variable.grad is None else variable.grad.numpy() for variable in variables]
    return left


@settings(max_examples=30, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8))
def test_random_programs_leave_the_same_gradients_eager_and_compiled(steps):
    eager = outcome(interpret, steps)
    compiled = outcome(hf.compile(interpret, static_argnames="steps", autograph=False), tuple(steps))
    assert [type(one) for one in eager] == [type(one) for one in compiled]
    for a, b in zip(eager, compiled, strict=True):
        if isinstance(a, np.ndarray):
            np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-5)
        else:
            assert a == b


def test_a_step_whose_results_nobody_differentiates_is_not_recorded(monkeypatch: pytest.MonkeyPatch):
    """It keeps no residuals, and its Variables' buffers are donated, though its parameters require gradients."""
    w = hf.Variable([1.0, 2.0], requires_grad=True)

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.sum((x * w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return hf.stop_gradient(loss)

    recorded: list[Any] = []
    whole = Trace._gradient_op
    monkeypatch.setattr(Trace, "_gradient_op", lambda self, *args: recorded.append(self) or whole(self, *args))
    fast = hf.compile(step)
    assert fast(hf.ones(2)).grad_fn is None
    assert not recorded
    with hf.GradientTape() as tape:
        result = fast(hf.ones(2))
    assert tape.gradient(result, w) is None
    assert tape.why_none(result, w)
    recorded.clear()
    both = hf.compile(lambda x: (step(x), hf.sum(x * w)))(hf.ones(2))
    assert recorded
    assert (both[0].grad_fn is None, both[1].grad_fn is None) == (True, False)


def natural_step(w: Any, returned: Any = lambda loss: loss) -> Any:
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.sum((x * w) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return returned(loss)

    return step


@pytest.mark.parametrize("asks", ["tape", "grad", "argument"])
def test_a_training_step_that_returns_its_loss_is_not_recorded(monkeypatch: pytest.MonkeyPatch, asks: str):
    """It has taken the gradient already: nothing is kept for another one, and who asks for that is told."""
    w = hf.Variable([1.0, 2.0], requires_grad=True, name="w")

    def by_grad(x: Any) -> Any:
        loss, slope = hf.value_and_grad(lambda v: hf.sum((x * v) ** 2))(w)
        w.assign_sub(0.1 * slope)
        return loss

    def by_argument(x: Any, v: Any) -> Any:
        return natural_step(v)(x)

    step = {"tape": natural_step(w), "grad": by_grad, "argument": by_argument}[asks]
    arguments = (hf.ones(2), w) if asks == "argument" else (hf.ones(2),)
    recorded: list[Any] = []
    monkeypatch.setattr(Trace, "_call_recorded", lambda self, *_: recorded.append(self))
    compiled = hf.compile(step)
    for expected in (5.0, 3.2):
        loss = compiled(*arguments)
        assert loss.item() == pytest.approx(expected)
        assert loss.requires_grad
        assert not loss.is_leaf
        assert (loss * 2).requires_grad
        with pytest.raises(RuntimeError, match=r"assigned Variable 'w'.* not kept.*hf\.GradientTape"):
            (loss * 2).backward()
    with hf.no_grad():
        assert not compiled(*arguments).requires_grad
    assert not recorded
    assert compiled.trace_count == 1
    assert w.grad is None


def test_a_tape_around_a_training_step_follows_it():
    """As it does eagerly: gradients of a step for what the weights were before it."""
    results: list[Any] = []
    for wrap in (lambda f: f, hf.compile):
        w = hf.Variable([1.0, 2.0], requires_grad=True)
        step = wrap(natural_step(w))
        step(hf.ones(2))
        with hf.GradientTape() as tape:
            loss = step(hf.ones(2))
        outer = tape.gradient(loss, w)
        loss.backward()
        results.append((loss.numpy(), outer.numpy(), w.numpy(), w.grad.numpy()))
    for eager, compiled in zip(*results, strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-6)


def test_what_was_assigned_without_a_gradient_is_still_followed():
    """A weight that is scaled in the call, or one that another step trains: `.backward()` works after the call."""

    def run(wrap: Any) -> list[Any]:
        w = hf.Variable([3.0, 4.0], requires_grad=True)
        other = hf.Variable([1.0, 1.0], requires_grad=True)

        def forward(x: Any) -> Any:
            w.assign(w / hf.sqrt(hf.sum(w * w)))
            return hf.sum(w * x)

        def trains_other(x: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.sum((other * x) ** 2)
            other.assign_sub(0.1 * tape.gradient(loss, other))
            return hf.sum(w * x), hf.stop_gradient(loss)

        wrap(forward)(hf.asarray([1.0, 2.0])).backward()
        wrap(trains_other)(hf.asarray([1.0, 2.0]))[0].backward()
        return [w.numpy(), w.grad.numpy(), other.numpy()]

    for eager, compiled in zip(run(lambda f: f), run(hf.compile), strict=True):
        np.testing.assert_allclose(compiled, eager, rtol=1e-6)


def test_a_result_beside_the_loss_keeps_the_call_recorded():
    w, v = hf.Variable([1.0, 2.0], requires_grad=True), hf.Variable([1.0, 2.0], requires_grad=True)

    def both(x: Any) -> Any:
        return natural_step(w)(x), hf.sum(v * x)

    loss, beside = hf.compile(both)(hf.ones(2))
    beside.backward()
    loss.backward()
    assert v.grad.tolist() == [1.0, 1.0]
    assert w.grad.tolist() == [2.0, 4.0]


def test_a_first_call_without_gradients_does_not_decide_for_later_ones():
    w = hf.Variable([1.0, 2.0], requires_grad=True)
    f = hf.compile(lambda x: hf.sum(w * x))
    with hf.no_grad():
        assert not f(hf.ones(2)).requires_grad
    f(hf.asarray([3.0, 4.0])).backward()
    assert w.grad.tolist() == [3.0, 4.0]
    with hf.no_grad():
        assert not f(hf.ones(2)).requires_grad
    assert f.trace_count == 2
    x = hf.tensor([1.0, 1.0], requires_grad=True)
    with hf.no_grad(), hf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    assert tape.gradient(y, x).tolist() == [1.0, 2.0]


# -- a gradient is a value ----------------------------------------------------------------------------------------


def _leaf(kind: str, w: Any, x: Any) -> Any:
    return {"argument": lambda: x.detach().requires_grad_(), "tensor": lambda: hf.tensor(x, requires_grad=True),
            "of zeros": lambda: (x * 0.0 + 0.4).detach().requires_grad_(), "Variable": lambda: w}[kind]()


def _taken(how: str, leaf: Any, x: Any) -> Any:
    """Return a gradient that `.backward()` leaves, or gives to a hook."""
    seen: list[Any] = []
    y = hf.sin(leaf * x)
    if how == "a hook's":
        y.register_hook(lambda g: seen.append(g))
    if how == "of a leaf with a hook":
        y.register_hook(lambda g: g * hf.cos(x))
    if how == "retained":
        y.retain_grad()
    hf.sum(y * y).backward()
    if how == "added up":
        hf.sum(leaf * leaf * leaf).backward()
    return seen[0] if how == "a hook's" else y.grad if how == "retained" else leaf.grad


def _backward_again(leaf: Any, z: Any) -> Any:
    leaf.zero_grad()
    z.backward()
    return leaf.grad


GRADIENTS = ["as it is", "added up", "a hook's", "of a leaf with a hook", "retained"]
LEAVES = ["argument", "tensor", "of zeros", "Variable"]
AGAIN = ["a tape around", "a tape behind", "backward", "a tape outside", "backward outside"]


CASES = [
    pytest.param(kind, how, again, marks=() if index % 12 == 0 else pytest.mark.rest)
    for index, (kind, how, again) in enumerate(itertools.product(LEAVES, GRADIENTS, AGAIN))
    if again != "backward outside" or kind == "Variable"  # a leaf made inside is not found outside
]


@pytest.mark.parametrize(("kind", "how", "again"), CASES)
def test_what_is_computed_from_a_gradient_is_differentiated_again(kind: str, how: str, again: str):
    def run(mode: Any) -> Any:
        w = hf.Variable([0.2, -0.6, 0.9], requires_grad=True)

        def f(x: Any) -> Any:
            with hf.GradientTape(persistent=True) as around:
                leaf = _leaf(kind, w, x)
                around.watch(leaf)
                leaf.zero_grad()
                g = _taken(how, leaf, x)
                with hf.GradientTape() as behind:
                    behind.watch(leaf)
                    z = hf.sum(hf.exp(g) * leaf * leaf)
            if again == "a tape around":
                return around.gradient(z, leaf)
            if again == "a tape behind":
                return behind.gradient(z, leaf)
            return _backward_again(leaf, z) if again == "backward" else z

        f, x = mode(f), hf.asarray([0.3, -0.7, 1.1])
        if again == "a tape outside":
            with hf.GradientTape() as tape:
                tape.watch(x)
                z = f(x)
            return tape.gradient(z, [x, w])
        if again == "backward outside":
            return _backward_again(w, f(x))
        return f(x)

    eager, compiled = run(lambda f: f), run(hf.compile)
    for one, other in zip(*[x if isinstance(x, list) else [x] for x in (eager, compiled)], strict=True):
        assert (one is None) == (other is None), (one, other)
        if one is not None:
            np.testing.assert_allclose(np.asarray(other), np.asarray(one), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("steps", [1, 3])
def test_adversarial_training_compiled_as_a_whole(steps: int):
    def train(mode: Any) -> Any:
        w, b = parameters()
        optimizer = hf.optim.SGD([w, b], rate=0.1)

        def step(x: Any) -> Any:
            near = x
            for _ in range(steps):
                near = hf.tensor(near, requires_grad=True)
                model(w, b, near).backward()
                near = x + hf.clip(near + 0.05 * hf.sign(near.grad) - x, -0.1, 0.1)
            optimizer.zero_grad()
            loss = model(w, b, near)
            loss.backward()
            optimizer.step()
            return loss

        run = mode(step)
        return [run(hf.asarray(X)).item() for _ in range(3)], w.numpy()

    (losses, w), (compiled_losses, compiled_w) = train(lambda f: f), train(hf.compile)
    np.testing.assert_allclose(compiled_losses, losses, rtol=1e-5)
    np.testing.assert_allclose(compiled_w, w, rtol=1e-5, atol=1e-6)

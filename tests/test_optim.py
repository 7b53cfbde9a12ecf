"""`hf.optim`: every optimizer against torch's or optax's, eager and compiled; state, groups, errors."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, GradientError, ShapeError, TraceError

# -- against torch and optax ----------------------------------------------------------------------------------------


def arrays(model: str) -> tuple[dict[str, Any], Any, Any]:
    """Return the parameters of a small model, its input and its target, in float64."""
    rng = np.random.default_rng(3)
    sizes = (6, 5, 3) if model == "mlp" else (6, 3)
    made: dict[str, Any] = {}
    for i, (a, b) in enumerate(pairwise(sizes)):
        made[f"layers.{i}.weight"], made[f"layers.{i}.bias"] = rng.normal(size=(a, b)) * 0.5, np.zeros(b)
    return made, rng.normal(size=(16, 6)), rng.normal(size=(16, 3))


def loss_of(parameters: list[Any], x: Any, y: Any, tanh: Any) -> Any:
    """Return the mean squared error of a net of matrices and biases, in any package."""
    for i in range(0, len(parameters), 2):
        x = x @ parameters[i] + parameters[i + 1]
        x = tanh(x) if i + 2 < len(parameters) else x
    return ((x - y) ** 2).mean()


def ours(make: Any, model: str, compiled: bool, steps: int = 200) -> list[Any]:
    """Train a model and return its parameters."""
    start, x, y = arrays(model)
    variables = {name: hf.Variable(value, name=name) for name, value in start.items()}
    opt = make(variables)
    x, y = hf.asarray(x), hf.asarray(y)

    def step() -> None:
        with hf.GradientTape() as tape:
            loss = loss_of([*variables.values()], x, y, hf.tanh)
        opt.update(tape.gradient(loss, variables))

    run = hf.compile(step) if compiled else step
    for _ in range(steps):
        run()
    assert int(opt.steps) == steps
    if compiled:
        assert run.trace_count == 1
    return [variable.numpy() for variable in variables.values()]


def torchs(make: Any, model: str) -> list[Any]:
    """Train the same in torch."""
    torch = pytest.importorskip("torch")
    start, x, y = arrays(model)
    parameters = [torch.nn.Parameter(torch.tensor(value)) for value in start.values()]
    opt = make(torch, parameters)
    x, y = torch.tensor(x), torch.tensor(y)
    for _ in range(200):
        opt.zero_grad()
        loss_of(parameters, x, y, torch.tanh).backward()
        opt.step()
    return [one.detach().numpy() for one in parameters]


CASES = {
    "sgd": (lambda p: hf.optim.SGD(p, 0.05), lambda t, p: t.optim.SGD(p, 0.05)),
    "momentum": (lambda p: hf.optim.SGD(p, 0.02, momentum=0.9), lambda t, p: t.optim.SGD(p, 0.02, momentum=0.9)),
    "nesterov": (
        lambda p: hf.optim.SGD(p, 0.02, momentum=0.9, nesterov=True),
        lambda t, p: t.optim.SGD(p, 0.02, momentum=0.9, nesterov=True),
    ),
    "adam": (lambda p: hf.optim.Adam(p, 0.01), lambda t, p: t.optim.Adam(p, 0.01)),
    "adamw": (lambda p: hf.optim.AdamW(p, 0.01, decay=0.1), lambda t, p: t.optim.AdamW(p, 0.01, weight_decay=0.1)),
    "rmsprop": (lambda p: hf.optim.RMSprop(p, 0.002), lambda t, p: t.optim.RMSprop(p, 0.002)),
    "adagrad": (lambda p: hf.optim.Adagrad(p, 0.05), lambda t, p: t.optim.Adagrad(p, 0.05)),
    "adadelta": (lambda p: hf.optim.Adadelta(p), lambda t, p: t.optim.Adadelta(p)),
    "rmsprop, momentum": (
        lambda p: hf.optim.RMSprop(p, 0.002, momentum=0.9), lambda t, p: t.optim.RMSprop(p, 0.002, momentum=0.9)
    ),
    "rmsprop, centered": (
        lambda p: hf.optim.RMSprop(p, 0.002, centered=True), lambda t, p: t.optim.RMSprop(p, 0.002, centered=True)
    ),
    "rmsprop, both": (
        lambda p: hf.optim.RMSprop(p, 0.001, centered=True, momentum=0.5),
        lambda t, p: t.optim.RMSprop(p, 0.001, centered=True, momentum=0.5),
    ),
    "adafactor": (
        lambda p: hf.optim.Adafactor(p, 0.005, decay=0.1), lambda t, p: t.optim.Adafactor(p, 0.005, weight_decay=0.1)
    ),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_200_steps_are_torchs(name: str, model: str, compiled: bool):
    make, torch_make = CASES[name]
    for a, b in zip(ours(make, model, compiled), torchs(torch_make, model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("compiled", [False, True])
def test_200_steps_of_lion_are_optaxs(compiled: bool):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    start, x, y = arrays("mlp")
    with jax.enable_x64(True):
        parameters = [jax.numpy.asarray(value) for value in start.values()]
        tx = optax.lion(0.01, b1=0.9, b2=0.99, weight_decay=0.0)
        state = tx.init(parameters)
        gradient = jax.jit(jax.grad(lambda p: loss_of(p, x, y, jax.numpy.tanh)))
        for _ in range(200):
            changes, state = tx.update(gradient(parameters), state, parameters)
            parameters = optax.apply_updates(parameters, changes)
    for a, b in zip(ours(lambda p: hf.optim.Lion(p, 0.01), "mlp", compiled), parameters, strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-9, atol=1e-11)


def near_orthogonal(x: Any) -> Any:
    """Return what five rounds of Newton and Schulz make of a matrix: the odd polynomial of its singular values."""
    u, s, v = np.linalg.svd(x, full_matrices=False)
    s = s / np.sqrt((s * s).sum())
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    return u * s @ v


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("model", "scale"), [("linear", "original"), ("mlp", "original"), ("mlp", "adam")])
def test_20_steps_of_muon_are_those_of_its_definition(model: str, scale: str, compiled: bool):
    start, x, y = arrays(model)
    parameters = [hf.Variable(value) for value in start.values()]
    vectors = hf.optim.AdamW([one for one in parameters if one.ndim < 2], 0.002, decay=0.1)
    velocities = [np.zeros(one.shape) for one in parameters]
    for _ in range(20):
        with hf.GradientTape() as tape:
            loss = loss_of(parameters, hf.asarray(x), hf.asarray(y), hf.tanh)
        gradients = tape.gradient(loss, parameters)
        vectors.update([g for g in gradients if g.ndim < 2])
        for one, gradient, velocity in zip(parameters, gradients, velocities, strict=True):
            if one.ndim == 2:
                g, (rows, columns) = gradient.numpy(), one.shape
                velocity += 0.05 * (g - velocity)
                size = max(1, rows / columns) ** 0.5 if scale == "original" else 0.2 * max(rows, columns) ** 0.5
                change = near_orthogonal(g + 0.95 * (velocity - g)) * size
                one.assign(one.numpy() * (1 - 0.002 * 0.1) - 0.002 * change)
    for a, b in zip(ours(lambda p: hf.optim.Muon(p, 0.002, scale=scale), model, compiled, 20), parameters, strict=True):
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-8, atol=1e-10)


def damped(parameters: list[Any], *data: Any) -> Any:
    """Return a loss with one minimum nearby: along a flat valley, curvatures amplify how sums are rounded."""
    return loss_of(parameters, *data) + 0.05 * sum((one * one).sum() for one in parameters)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("model", ["linear", "mlp"])
@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_200_iterations_of_lbfgs_are_torchs(search: str | None, model: str, compiled: bool):
    torch = pytest.importorskip("torch")
    start, x, y = arrays(model)
    theirs = [torch.nn.Parameter(torch.tensor(value)) for value in start.values()]
    rate = 0.1 if search is None else 1.0
    peer = torch.optim.LBFGS(theirs, rate, max_iter=5, history_size=4, line_search_fn=search)
    tx, ty = torch.tensor(x), torch.tensor(y)

    def their_loss() -> Any:
        peer.zero_grad()
        loss = damped(theirs, tx, ty, torch.tanh)
        loss.backward()
        return loss

    variables = [hf.Variable(value, name=name, requires_grad=True) for name, value in start.items()]
    opt = hf.optim.LBFGS(variables, rate, iterations=5, history=4, line_search=search)
    hx, hy = hf.asarray(x), hf.asarray(y)

    def loss() -> Any:
        found = damped(variables, hx, hy, hf.tanh)
        found.backward()
        return found

    closure = hf.compile(loss) if compiled else loss
    for number in range(40):
        a, b = opt.step(closure).item(), peer.step(their_loss).item()
        np.testing.assert_allclose(a, b, rtol=1e-6)
        if number < 4:
            for mine, their in zip(variables, theirs, strict=True):
                np.testing.assert_allclose(mine.numpy(), their.detach().numpy(), rtol=1e-6, atol=1e-8)


def test_lbfgs_goes_on_from_its_state():
    def made() -> tuple[Any, Any, Any]:
        w = hf.Variable(np.linspace(-1.0, 1.0, 5), name="w")
        opt = hf.optim.LBFGS([w], iterations=2, history=3, line_search="strong_wolfe")

        def closure() -> Any:  # the gradients may be returned, too
            with hf.GradientTape() as tape:
                loss = hf.sum(100 * (w[1:] - w[:-1] ** 2) ** 2 + (1 - w[:-1]) ** 2)
            return loss, [tape.gradient(loss, w)]

        return w, opt, closure

    w, opt, closure = made()
    for _ in range(6):
        opt.step(closure)
        if int(opt.steps) == 3:
            state, value = opt.state_dict(), w.numpy().copy()
    again, other, closure = made()
    again.assign(value)
    other.load_state_dict(state)
    for _ in range(3):
        other.step(closure)
    assert again.numpy().tobytes() == w.numpy().tobytes()


def test_lbfgs_says_what_it_needs_and_leaves_all_as_it_was():
    w = hf.Variable([1.0, 2.0], name="w", requires_grad=True)
    opt = hf.optim.LBFGS([w], line_search="strong_wolfe")
    calls: list[int] = []

    def fails() -> Any:
        calls.append(1)
        if len(calls) == 4:
            raise KeyError("no")
        loss = hf.sum((w * w) ** 2)
        loss.backward()
        return loss

    before = {name: value.tobytes() for name, value in opt.state_dict().items()}
    with pytest.raises(KeyError):
        opt.step(fails)
    assert w.numpy().tolist() == [1.0, 2.0]
    assert {name: value.tobytes() for name, value in opt.state_dict().items()} == before
    with pytest.raises(ArgumentTypeError, match="a function that computes the loss"):
        opt.step()
    with pytest.raises(ArgumentTypeError, match=r"Call opt\.step\(closure\)"):
        opt.update([hf.ones(2)])
    with pytest.raises(TraceError, match=r"opt\.step\(hf\.compile\(closure\)\)"):
        hf.compile(lambda: opt.step(fails))()
    with pytest.raises(ArgumentError, match="line_search='armijo'"):
        hf.optim.LBFGS([w], line_search="armijo")


@pytest.mark.parametrize("compiled", [False, True])
def test_lbfgs_goes_on_from_where_its_closure_left_the_parameters(compiled: bool):
    w = hf.Variable([50.0], name="w", requires_grad=True)
    opt = hf.optim.LBFGS([w])

    def closure() -> Any:
        w.assign(hf.clip(w, 0.0, 1.0))
        loss = hf.sum((w - 58.0) ** 2)
        loss.backward()
        return loss

    opt.step(hf.compile(closure) if compiled else closure)
    assert w.numpy().tolist() == [1.0]


@pytest.mark.parametrize("given", ["model", "mapping", "list", "tensor"])
def test_lbfgs_takes_gradients_as_update_does(given: str):
    net = hf.nn.Linear(2, bias=given not in ("list", "tensor"))
    x = hf.asarray([[1.0, 2.0], [0.5, -1.0]])
    net(x)
    names = net.named_parameters()
    opt = hf.optim.LBFGS(net, line_search="strong_wolfe")
    of = {"model": net, "list": [*names.values()], "tensor": net.weight}.get(given, names)

    def closure() -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean((net(x) - 1.0) ** 2)
        return loss, tape.gradient(loss, of)

    for _ in range(3):
        loss = opt.step(closure)
    assert loss.item() < 1e-6
    with pytest.raises(ArgumentTypeError, match=r"returns no loss\n  got: a \w+\n  Return the loss, or"):
        opt.step(lambda: closure()[1] if given != "tensor" else None)


CLOSURES = [
    pytest.param(name, projection, compiled, marks=() if name == "LBFGS" and not compiled else pytest.mark.rest)
    for name in ("SGD", "Adam", "RMSprop", "LBFGS", "LBFGS with a search")
    for projection in ("clamp before", "clamp after", "renormalize", "decay", "tie", "clip")
    for compiled in (False, True)
]


@pytest.mark.parametrize(("name", "projection", "compiled"), CLOSURES)
def test_what_a_closure_does_to_parameters_and_gradients_is_as_in_torch(name: str, projection: str, compiled: bool):
    torch = pytest.importorskip("torch")
    starts = [np.linspace(-1.0, 2.0, 4), np.linspace(0.5, -0.5, 4)]
    theirs = [torch.nn.Parameter(torch.tensor(one)) for one in starts]
    a, b = [hf.Variable(one, name=name, requires_grad=True) for one, name in zip(starts, "ab", strict=True)]
    rate = 0.3 if name.startswith("LBFGS") else 0.05
    options: dict[str, Any] = {"line_search": "strong_wolfe"} if "search" in name else {}
    peers: dict[str, Any] = {"line_search_fn": "strong_wolfe"} if "search" in name else {}
    if name.startswith("LBFGS"):
        options["iterations"] = peers["max_iter"] = 4
    kind = name.split()[0]
    peer, opt = getattr(torch.optim, kind)(theirs, rate, **peers), getattr(hf.optim, kind)([a, b], rate, **options)

    def loss_of(n: Any, a: Any, b: Any) -> Any:
        return n.sum((a - 3.0) ** 2) + n.sum((b + a * 0.5) ** 4)

    def their_closure() -> Any:
        peer.zero_grad()
        with torch.no_grad():
            if projection == "clamp before":
                theirs[0].clamp_(0.0, 1.0)
            if projection == "tie":
                theirs[1].copy_(theirs[0])
        loss = loss_of(torch, *theirs)
        loss.backward()
        with torch.no_grad():
            if projection == "clamp after":
                theirs[0].clamp_(0.0, 1.0)
            if projection == "renormalize":
                theirs[0].div_(theirs[0].norm())
            if projection == "decay":
                theirs[1].mul_(0.9)
        if projection == "clip":
            torch.nn.utils.clip_grad_value_(theirs, 0.5)
        return loss

    def closure() -> Any:
        opt.zero_grad()
        if projection == "clamp before":
            a.assign(hf.clip(a, 0.0, 1.0))
        if projection == "tie":
            b.assign(a)
        loss = loss_of(hf, a, b)
        loss.backward()
        if projection == "clamp after":
            a.assign(hf.clip(a, 0.0, 1.0))
        if projection == "renormalize":
            a.assign(a / hf.sqrt(hf.sum(a * a)))
        if projection == "decay":
            b.assign(b * 0.9)
        if projection == "clip":
            for one in (a, b):
                one.grad = hf.clip(one.grad, -0.5, 0.5)
        return loss

    run = closure
    if compiled:
        run = hf.compile(closure)
    for _ in range(3):
        np.testing.assert_allclose(opt.step(run).item(), peer.step(their_closure).item(), rtol=1e-6)
        for mine, their in zip((a, b), theirs, strict=True):
            np.testing.assert_allclose(mine.numpy(), their.detach().numpy(), rtol=1e-5, atol=1e-6)


# -- the state ------------------------------------------------------------------------------------------------------


def pair() -> tuple[hf.Variable, hf.Variable]:
    return hf.Variable([1.0, 2.0], name="w"), hf.Variable([0.5], name="b")


def ones() -> list[hf.Tensor]:
    return [hf.ones(2), hf.ones(1)]


def test_a_value_that_somebody_holds_stays_as_it_is():
    w, b = pair()
    opt = hf.optim.AdamW([w, b], 0.1)
    opt.update(ones())
    tensor, array, alias = w.read(), w.numpy(), hf.Variable(w, name="alias")
    before = array.copy()
    opt.update(ones())
    for seen in (tensor.numpy(), array, alias.numpy()):
        np.testing.assert_array_equal(seen, before)
    assert not np.array_equal(w.numpy(), before)


def test_arrays_that_nobody_else_holds_are_written_in_place():
    w, b = pair()
    opt = hf.optim.AdamW([w, b], 0.1)
    opt.update(ones())
    places = [id(one._value) for one in (w, b, *opt.variables()[2:])]
    opt.update(ones())
    assert [id(one._value) for one in (w, b, *opt.variables()[2:])] == places


def test_an_update_among_casts_is_seen_by_them():
    w = hf.Variable(np.ones((2, 2), np.float32), name="w")
    opt = hf.optim.SGD([w], 0.5)
    with hf.autocast(hf.bfloat16):
        x = hf.ones((1, 2))
        assert (x @ w)[0, 0].item() == 2.0
        opt.update([hf.ones((2, 2))])
        assert (x @ w)[0, 0].item() == 1.0


def test_a_closure_is_called_before_the_step():
    w = hf.Variable([1.0, 2.0], name="w", requires_grad=True)
    opt = hf.optim.SGD([w], 0.5)

    def closure() -> Any:
        opt.zero_grad()
        loss = hf.sum(w * w)
        loss.backward()
        return loss

    assert opt.step(closure).item() == 5.0
    assert w.numpy().tolist() == [0.0, 0.0]


def test_torchs_habit():
    w = hf.Variable([1.0, 2.0], name="w", requires_grad=True)
    opt = hf.optim.SGD([w], 0.5)
    (w * w).sum().backward()
    opt.step()
    opt.zero_grad()
    assert w.grad is None
    np.testing.assert_array_equal(w.numpy(), [0.0, 0.0])


def test_state_goes_on_in_another_optimizer():
    def run(a: Any, n: int) -> None:
        for _ in range(n):
            a.update(ones())

    w, b = pair()
    first = hf.optim.AdamW([w, b], 0.1)
    run(first, 3)
    w2, b2 = hf.Variable(w, name="w"), hf.Variable(b, name="b")
    second = hf.optim.AdamW([w2, b2], 0.7)
    second.load_state_dict(first.state_dict())
    run(first, 2)
    run(second, 2)
    assert w.numpy().tobytes() == w2.numpy().tobytes()
    assert int(second.steps) == 5


def test_wrong_state_is_named_all_at_once_and_loads_nothing():
    opt = hf.optim.AdamW([*pair()], 0.1)
    state = opt.state_dict()
    del state["w.m"]
    state["b.v"] = np.ones(3, np.float32)
    state["c.m"] = np.ones(1, np.float32)
    state["steps"] = np.asarray(9, np.int32)
    with pytest.raises(ArgumentError, match=r"missing: w\.m; extra: c\.m; misshaped: b\.v \(float32\[3\]"):
        opt.load_state_dict(state)
    assert int(opt.steps) == 0


def test_the_rate_is_assigned_without_a_new_trace():
    w, b = pair()
    opt = hf.optim.SGD([w, b], 1.0)
    step = hf.compile(lambda: opt.update(ones()))
    step()
    opt.rate = 0.5
    step()
    np.testing.assert_allclose(w.numpy(), [-0.5, 0.5])
    assert step.trace_count == 1
    assert opt.rate.item() == 0.5


def test_a_compiled_step_assigns_the_rate_of_each_call_and_refuses_it_as_eager_code_does():
    w, b = pair()
    opt = hf.optim.SGD([w, b], 1.0)

    def step(x: hf.Tensor, rate: float) -> None:
        opt.rate = rate * 0.5
        opt.update(ones())
        decided = 0.125
        if x > 0:
            decided = 0.25
        elif x < -1:
            decided = -1.0
        opt.rate = decided

    compiled = hf.compile(step)
    for rate in (1.0, 0.5, 0.1):
        compiled(hf.asarray(1.0), rate)
        assert opt.rate.item() == 0.25
    np.testing.assert_allclose(b.numpy(), [0.5 - 0.5 - 0.25 - 0.05], rtol=1e-6)
    before = w.numpy()
    for bad in (-1.0, math.nan, math.inf):
        for call in (step, compiled):
            with pytest.raises(ArgumentError, match=rf"SGD: the rate must be finite, .*\n  got: rate={bad * 0.5}"):
                call(hf.asarray(1.0), bad)
    with pytest.raises(ArgumentError, match="SGD: the rate must be finite, and 0 at least"):
        compiled(hf.asarray(-2.0), 1.0)
    np.testing.assert_array_equal(w.numpy(), before)
    assert opt.rate.item() == 0.25
    assert compiled.trace_count == 1


@pytest.mark.parametrize("compiled", [False, True])
def test_an_assigned_rate_stays_until_the_schedule_is_asked_for_again(compiled: bool):
    w, b = pair()
    opt = hf.optim.SGD([w, b], lambda step: 1.0 / (step + 1))
    step = hf.compile(lambda: opt.update(ones())) if compiled else lambda: opt.update(ones())
    step()
    opt.rate = 0.25
    assert opt.rate.item() == 0.25
    step()
    step()
    np.testing.assert_allclose(b.numpy(), [0.5 - 1 - 0.25 - 0.25])
    kept = opt.state_dict()
    opt.rate = None
    np.testing.assert_allclose(opt.rate.item(), 0.25)  # that of step 3
    step()
    step()
    np.testing.assert_allclose(b.numpy(), [0.5 - 1 - 0.5 - 1 / 4 - 1 / 5], rtol=1e-6)
    opt.load_state_dict(kept)
    assert opt.rate.item() == 0.25
    step()
    np.testing.assert_allclose(b.numpy(), [0.5 - 1 - 0.5 - 1 / 4 - 1 / 5 - 0.25], rtol=1e-6)
    if compiled:
        assert step.trace_count == 1
    with pytest.raises(ArgumentError, match="a function of the step cannot be assigned"):
        opt.rate = hf.optim.constant(1.0)
    with pytest.raises(ArgumentError, match="no schedule to go back to"):
        hf.optim.SGD([w]).rate = None


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["SGD", "AdamW", "Muon"])
def test_what_is_not_finite_is_skipped_or_raises(name: str, compiled: bool):
    make = getattr(hf.optim, name)
    for nonfinite in ("skip", "raise"):
        w, b = pair()
        opt = make([w, b], 0.1, clip=1.0, nonfinite=nonfinite)

        def update(g: Any, opt: Any = opt) -> None:
            opt.update([g, hf.ones(1)])

        step = hf.compile(update) if compiled else update
        step(hf.ones(2))
        before = [one.numpy().tobytes() for one in (w, b, *opt.variables())]
        if nonfinite == "skip":
            step(hf.asarray([1.0, hf.nan]))
        else:
            with pytest.raises(GradientError, match=r"gradients are not finite" + ("" if compiled else "(.|\n)*: w")):
                step(hf.asarray([1.0, hf.inf]))
        assert [one.numpy().tobytes() for one in (w, b, *opt.variables())] == before
        step(hf.ones(2))
        assert int(opt.steps) == 2
    with pytest.raises(ArgumentError, match=r"nonfinite='drop' is none of 'apply', 'skip', 'raise'"):
        make([w, b], 0.1, nonfinite="drop")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_of_the_step(compiled: bool):
    w, b = pair()
    opt = hf.optim.SGD([w, b], lambda step: 1.0 / (step + 1))
    step = hf.compile(lambda: opt.update(ones())) if compiled else lambda: opt.update(ones())
    for _ in range(3):
        step()
    np.testing.assert_allclose(w.numpy(), [1 - 1 - 1 / 2 - 1 / 3, 2 - 1 - 1 / 2 - 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(opt.rate.item(), 0.25)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_rate_of_nan_changes_nothing(compiled: bool):
    w, b = pair()
    opt = hf.optim.AdamW([w, b], lambda step: hf.where(step < 1, 0.1, hf.nan))
    step = hf.compile(lambda: opt.update(ones())) if compiled else lambda: opt.update(ones())
    step()
    before = [one.numpy().tobytes() for one in (w, b, *opt.variables())]
    with pytest.raises(ArgumentError, match="the rate is not finite"):
        step()
    assert [one.numpy().tobytes() for one in (w, b, *opt.variables())] == before


def test_groups_clip_and_decay():
    w, b = pair()
    opt = hf.optim.SGD({"w": w, "b": b}, 0.5, decay=0.1, groups=[{"match": "b", "decay": 0.0, "rate": 1.0}], clip=1.0)
    opt.update({"w": hf.asarray([3.0, 0.0]), "b": hf.asarray([4.0])})
    np.testing.assert_allclose(w.numpy(), [0.95 - 0.3, 1.9], rtol=1e-6)
    np.testing.assert_allclose(b.numpy(), [0.5 - 0.8], rtol=1e-6)


def test_what_is_wrong_is_said_and_changes_nothing():
    w, b = pair()
    with pytest.raises(ArgumentError, match=r"'\*\.bias' matches no parameter(.|\n)*Names that are like it"):
        hf.optim.SGD([w, b], groups=[{"match": "*.bias", "decay": 0.0}])
    with pytest.raises(ArgumentError, match="cannot set deacy"):
        hf.optim.SGD([w, b], groups=[{"match": "b", "deacy": 0.0}])
    with pytest.raises(ArgumentTypeError, match="is no Variable"):
        hf.optim.SGD([hf.ones(2)])
    with pytest.raises(ArgumentError, match="the rate must be finite"):
        hf.optim.SGD([w], float("nan"))
    opt = hf.optim.AdamW([w, b])
    with pytest.raises(GradientError, match=r"1 of 2 gradients are None\n  got: b(.|\n)*why_none"):
        opt.update([hf.ones(2), None])
    with pytest.raises(ShapeError, match=r"'b' has shape \(3,\), the parameter \(1,\)"):
        opt.update([hf.ones(2), hf.ones(3)])
    with pytest.raises(ArgumentError, match="3 gradients for 2 parameters"):
        opt.update([*ones(), hf.ones(1)])
    with pytest.raises(ArgumentError, match=r"no parameter of it\n  got: weight"):
        opt.update({"weight": hf.ones(2)})
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    assert int(opt.steps) == 0


# -- schedules ------------------------------------------------------------------------------------------------------

SCHEDULES = {
    "linear": (hf.optim.linear(0.5, 0.1, 10), lambda o: o.linear_schedule(0.5, 0.1, 10)),
    "cosine": (hf.optim.cosine(0.5, 10), lambda o: o.cosine_decay_schedule(0.5, 10)),
    "warmup_cosine": (
        hf.optim.warmup_cosine(0.5, 4, 20), lambda o: o.warmup_cosine_decay_schedule(0.0, 0.5, 4, 20)
    ),
    "exponential": (hf.optim.exponential(0.5, 0.9), lambda o: o.exponential_decay(0.5, 1, 0.9)),
    "step": (hf.optim.step(0.5, 0.1, 3), lambda o: o.exponential_decay(0.5, 3, 0.1, staircase=True)),
    "piecewise": (
        hf.optim.piecewise([0.5, 0.1, 0.01], [4, 9]),
        lambda o: o.join_schedules([o.constant_schedule(v) for v in (0.5, 0.1, 0.01)], [4, 9]),
    ),
    "constant": (hf.optim.constant(0.5), lambda o: o.constant_schedule(0.5)),
}


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_schedules_are_optaxs(name: str):
    optax = pytest.importorskip("optax")
    mine, theirs = SCHEDULES[name]
    compiled = hf.compile(mine)
    for step in range(25):
        expected = float(theirs(optax)(step))
        for found in (mine(step), mine(hf.asarray(step)), compiled(hf.asarray(step))):
            np.testing.assert_allclose(found.item(), expected, rtol=1e-5, atol=1e-7)


def test_one_cycle_is_torchs():
    torch = pytest.importorskip("torch")
    opt = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)
    theirs = torch.optim.lr_scheduler.OneCycleLR(opt, 0.5, 20, cycle_momentum=False)
    mine = hf.optim.one_cycle(0.5, 20)
    for step in range(20):
        np.testing.assert_allclose(mine(step).item(), opt.param_groups[0]["lr"], rtol=1e-5, atol=1e-7)
        opt.step()
        if step < 19:
            theirs.step()


def test_wrong_schedules_are_refused():
    with pytest.raises(ArgumentError, match="steps must be positive"):
        hf.optim.linear(1.0, 0.0, 0)
    with pytest.raises(ArgumentError, match="one value more than boundaries"):
        hf.optim.piecewise([1.0], [1])
    with pytest.raises(ArgumentError, match="every number must be finite"):
        hf.optim.cosine(hf.nan, 10)


@pytest.mark.parametrize("compiled", [False, True])
class Chosen(hf.nn.Module):
    """A module that says itself which of its Variables are parameters."""

    def __init__(self):
        self.first, self.second = hf.Variable(1.0), hf.Variable(1.0)
        self.names = ["first"]

    def named_parameters(self):
        return {name: getattr(self, name) for name in self.names}


@pytest.mark.parametrize("compile", [hf.compile, lambda function: function], ids=["compiled", "eager"])
def test_a_mean_takes_up_parameters_that_are_added_later(compile):
    model, chosen = hf.nn.Linear(1, 1), Chosen()
    means = [hf.optim.EMA(model, 0.5), hf.optim.EMA(chosen, 0.5)]

    @compile
    def update():
        for mean in means:
            mean.update()

    update()
    model.more = hf.nn.Linear(1, 1)
    chosen.names.append("second")
    update()
    assert [*means[0].state_dict()] == ["weight", "bias", "more.weight", "more.bias"]
    assert [*means[1].state_dict()] == ["first", "second"]


@pytest.mark.parametrize("compiled", [False, True])
def test_means_of_parameters(compiled: bool):
    w, _ = pair()
    mean = hf.optim.EMA([w], 0.9)
    w.assign([2.0, 4.0])
    (hf.compile(mean.update) if compiled else mean.update)()
    np.testing.assert_allclose(mean.variables()[0].numpy(), [1.1, 2.2], rtol=1e-6)
    with mean.applied():
        np.testing.assert_allclose(w.numpy(), [1.1, 2.2], rtol=1e-6)
    np.testing.assert_array_equal(w.numpy(), [2.0, 4.0])


# -- optax ----------------------------------------------------------------------------------------------------------

TRANSFORMATIONS = {
    "adam": lambda o: o.adam(0.01),
    "adamw": lambda o: o.adamw(0.01),
    "sgd": lambda o: o.sgd(0.01, momentum=0.9),
    "lion": lambda o: o.lion(0.01),
    "adafactor": lambda o: o.adafactor(0.01),
    "lamb": lambda o: o.lamb(0.01),
    "yogi": lambda o: o.yogi(0.01),
    "radam": lambda o: o.radam(0.01),
    "chain": lambda o: o.chain(o.clip_by_global_norm(0.5), o.adam(o.cosine_decay_schedule(0.01, 100))),
    "novograd": lambda o: o.novograd(0.01),
}


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", sorted(TRANSFORMATIONS))
def test_transformations_of_optax(name: str, compiled: bool):
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    start, x, y = arrays("mlp")
    tx = TRANSFORMATIONS[name](optax)
    with jax.enable_x64(True):
        parameters = {key: jax.numpy.asarray(value) for key, value in start.items()}
        state = tx.init(parameters)
        gradient = jax.jit(jax.grad(lambda p: loss_of([p[key] for key in start], x, y, jax.numpy.tanh)))
        update = jax.jit(tx.update)
        for _ in range(20):
            changes, state = update(gradient(parameters), state, parameters)
            parameters = optax.apply_updates(parameters, changes)
    found = ours(lambda p: hf.optim.Optax(p, tx), "mlp", compiled, 20)
    for a, b in zip(found, [parameters[key] for key in start], strict=True):
        np.testing.assert_allclose(a, np.asarray(b), rtol=1e-5, atol=1e-7)


def test_state_of_optax_goes_on():
    optax = pytest.importorskip("optax")
    w, b = pair()
    opt = hf.optim.Optax([w, b], optax.adam(0.1))
    opt.update(ones())
    other = hf.optim.Optax([w, b], optax.adam(0.1))
    other.load_state_dict(opt.state_dict())
    assert {k: v.tobytes() for k, v in other.state_dict().items()} == {
        k: v.tobytes() for k, v in opt.state_dict().items()
    }
    with pytest.raises(ArgumentTypeError, match="is no transformation"):
        hf.optim.Optax([w], 0.1)


# -- what others know of optimizers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "options", "copies"), [
    ("SGD", {}, 0), ("SGD", {"momentum": 0.9}, 1), ("RMSprop", {}, 1), ("Adagrad", {}, 1), ("Lion", {}, 1),
    ("AdamW", {}, 2), ("RMSprop", {"momentum": 0.9, "centered": True}, 3), ("Muon", {}, 1),
])
def test_cost_tells_slots_from_parameters(name: str, options: dict[str, Any], copies: int):
    w = hf.Variable(np.ones((6, 5), np.float32), name="w")
    opt = getattr(hf.optim, name)([w], 0.1, **options)

    def step(x: Any) -> None:
        with hf.GradientTape() as tape:
            loss = hf.sum((x @ w) ** 2)
        opt.update(tape.gradient(loss, [w]))

    memory = hf.cost(step, hf.ones((4, 6))).memory
    found = memory.bytes
    assert found["parameters"] == w.size * 4
    assert found.get("slots", 0) == copies * w.size * 4
    assert {one.name for one in memory.slots} <= {one.name for one in memory.state}
    assert found["optimizer state"] == found.get("slots", 0) + 8  # the rate, and the number of steps


def test_text_with_a_rule_is_read_by_a_process_that_made_no_optimizer(tmp_path: Any):
    w, b = pair()
    opts = [hf.optim.AdamW([w, b]), hf.optim.Adafactor([hf.Variable(np.ones((2, 2), np.float32), name="m")])]
    graph = hf.compile(lambda: [opts[0].update(ones()), opts[1].update([hf.ones((2, 2))])]).graph()
    path = tmp_path / "graph.txt"
    path.write_text(str(graph), encoding="utf-8")
    code = (
        "import sys, hybridflow as hf; text = open(sys.argv[1], encoding='utf-8').read(); "
        "assert 'hybridflow.optim' not in sys.modules; assert str(hf.ir.parse(text)) == text"
    )
    subprocess.run([sys.executable, "-c", code, str(path)], check=True, timeout=120)


def test_every_operation_is_known_to_the_parser():
    code = (
        "import importlib, pkgutil, hybridflow as hf; from hybridflow import later\n"
        "from hybridflow.core.op import REGISTRY\n"
        "later.register_rest(); known = set(REGISTRY)\n"
        "for one in pkgutil.walk_packages(hf.__path__, 'hybridflow.'):\n"
        "    one.name.endswith('__main__') or importlib.import_module(one.name)\n"
        "assert set(REGISTRY) == known, set(REGISTRY) - known"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_a_model_whose_sizes_are_known_in_part_is_trained_as_a_whole():
    for call in (lambda fn: fn, hf.compile):
        model = hf.nn.Sequential(hf.nn.Linear(8), hf.nn.LayerNorm(8), hf.nn.Linear(2))
        optimizer = hf.optim.Adam(model, rate=0.1)

        @call
        def step(x, model=model, optimizer=optimizer):
            with hf.GradientTape() as tape:
                loss = hf.mean(model(x) ** 2)
            optimizer.update(tape.gradient(loss, model))

        step(hf.ones((3, 4)))
        assert len(optimizer._parameters()) == 6


@pytest.mark.parametrize("as_mapping", [False, True])
def test_a_parameter_that_came_later_is_an_error(as_mapping: bool):
    model = hf.nn.Sequential(hf.nn.Linear(4, 4), hf.nn.Linear(4, 2))
    model.freeze("0.*")
    optimizer = hf.optim.Adam(model)
    model.unfreeze("0.*")
    with hf.GradientTape() as tape:
        loss = hf.mean(model(hf.ones((3, 4))) ** 2)
    gradients = tape.gradient(loss, model.named_parameters() if as_mapping else model)
    before = model.state_dict()
    with pytest.raises(ArgumentError, match=r"2 parameters are not among those that it took.*\n  got: 0\."):
        optimizer.update(gradients)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_cycle_says_how_many_steps_it_takes(steps: int):
    with pytest.raises(ValueError, match=rf"one_cycle: steps={steps}, and it takes 4 at least .*warmup=0.3"):
        hf.optim.one_cycle(0.1, steps)
    assert hf.optim.one_cycle(0.1, 4)(1).item() < 0.1
    with pytest.raises(ValueError, match=r"warmup=1\.0 is not between 0 and 1"):
        hf.optim.one_cycle(0.1, 10, warmup=1.0)

"""Compiled functions on a mesh: the results of one device, or an error that says why."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.mesh import lies_on_several

CALLS = int(os.environ.get("HYBRIDFLOW_MESH_CALLS", "200"))
"""How many calls nobody waits for; without the guard around them, XLA gets stuck after hundreds, on some versions."""
RNG = np.random.default_rng(0)
X = RNG.normal(size=(32, 6)).astype(np.float32)
Y = RNG.integers(0, 4, 32).astype(np.int32)


class Net(nn.Module):
    """A small network with dropout."""

    def __init__(self, rate=0.0):
        self.first, self.second, self.drop = nn.Linear(6, 16), nn.Linear(16, 4), nn.Dropout(rate)

    def forward(self, x):
        return self.second(self.drop(nn.relu(self.first(x))))


def trained(mesh, steps=5, *, rate=0.0, prepare=None, size=32, **options):
    """Train a network; return its losses and its parameters."""
    hf.random.seed(0)
    nn.init.seed(0)
    net = Net(rate)
    if prepare is not None:
        prepare(net)
    opt = hf.optim.Adam(net, rate=0.01, **options)

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        opt.update(tape.gradient(loss, net))
        return loss

    run = hf.compile(step, mesh=mesh, batch="data") if isinstance(mesh, hf.Mesh) else mesh(step)
    losses = [float(run(X[:size], Y[:size])) for _ in range(steps)]
    return losses, net.state_dict()


def same(a, b, tolerance=2e-6):
    """Compare losses and parameters."""
    np.testing.assert_allclose(a[0], b[0], rtol=0, atol=tolerance)
    for name, value in a[1].items():
        np.testing.assert_allclose(value, b[1][name], rtol=0, atol=10 * tolerance, err_msg=name)


def test_a_python_number_may_change_from_call_to_call():
    factors, calls = [2.0], []
    for devices in (1, 8):
        scaled = hf.compile(
            lambda x, by: x * by * factors[0], mesh=hf.Mesh({"data": devices}), in_layouts={"x": ("data", None)}
        )
        for factor, by in ((2.0, 1.0), (3.0, 1.0), (3.0, 0.5)):
            factors[0] = factor
            np.testing.assert_allclose(scaled(X, by), X * (by * factor), rtol=1e-6)
        calls.append(scaled.trace_count)
    assert calls == [2, 2]


@pytest.mark.parametrize(("devices", "rate"), [(1, 0.3), (2, 0.0), (8, 0.3)])
def test_data_parallel_is_one_device(devices, rate):
    eager = trained(lambda step: step, rate=rate)
    same(trained(hf.Mesh({"data": devices}), rate=rate), eager)


def test_random_bits_are_equal(mesh):
    def draw():
        return hf.random.normal((16, 3)), hf.random.permutation(8), hf.random.integers(0, 100, (8,))

    hf.random.seed(3)
    eager = [one.numpy() for _ in range(2) for one in draw()]
    hf.random.seed(3)
    on_mesh = hf.compile(draw, mesh=mesh, out_layouts=(("data", None), None, ("data",)))
    made = [one.numpy() for _ in range(2) for one in on_mesh()]
    for a, b in zip(eager, made, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("size", [13, 3])
def test_an_uneven_batch_is_one_devices(mesh, size):
    same(trained(mesh, size=size), trained(lambda step: step, size=size))


def test_clipping_and_accumulation(mesh):
    same(trained(mesh, clip=0.1), trained(lambda step: step, clip=0.1))
    net = Net()
    grads = hf.accumulate_gradients(lambda m, x, y: hf.mean(nn.softmax_cross_entropy(m(x), y)), 4)
    made = [jax.tree_util.tree_leaves(f(net, X, Y)) for f in (grads, hf.compile(grads, mesh=mesh, batch="data"))]
    for a, b in zip(*made, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=1e-6)


def parts(tensor):
    """Return the shape of the part on each device."""
    value = tensor._value if lies_on_several(tensor._value) else tensor._alt  # the host's copy was made
    return {one.data.shape for one in value.addressable_shards}


def test_layouts_of_arguments_and_results(mesh):
    f = hf.compile(lambda x, y: (x @ y, y + 1.0), mesh=mesh, in_layouts={"x": (None, "data"), "y": ("data", None)},
                   out_layouts=(("data", None), (None, None)))
    x, y = RNG.normal(size=(16, 8)).astype("f"), RNG.normal(size=(8, 3)).astype("f")
    product, more = f(x, y)
    np.testing.assert_allclose(product.numpy(), x @ y, atol=1e-5)
    np.testing.assert_array_equal(more.numpy(), y + 1)
    assert parts(product) == {(2, 3)}
    assert parts(more) == {(8, 3)}
    g = hf.compile(lambda d: d["a"] + d["b"][0], mesh=mesh, in_layouts={"d": {"a": ("data",), "b": [()]}})
    assert parts(g({"a": x[:, 0], "b": [x[0, 0]]})) == {(2,)}


def test_constrain_lays_out_a_value_inside(mesh):
    def f(x):
        h = hf.constrain(x * 2.0, (None, "data"))
        return h, hf.grad(lambda x: hf.sum(hf.constrain(x, ("data", None)) ** 2))(x)

    x = RNG.normal(size=(8, 16)).astype("f")
    h, g = hf.compile(f, mesh=mesh)(x)
    assert parts(h) == {(8, 2)}
    assert parts(g) == {(1, 16)}
    hf.testing.assert_same(f, x)
    with pytest.raises(hf.LayoutError, match="constrain: the mesh has no axis 'rows'"):
        hf.compile(lambda x: hf.constrain(x, ("rows", None)), mesh=mesh)(x)


def test_checks_fail_the_call_and_change_nothing(mesh):
    total = hf.Variable(0.0, name="total")

    def add(x):
        total.assign_add(hf.sum(x))
        hf.debugging.check(hf.all(x > 0), "not positive")
        return x * 2

    run = hf.compile(add, mesh=mesh, batch="data")
    assert run(np.ones(16, "f")).numpy().sum() == 32
    x = np.ones(16, "f")
    x[13] = -1
    with pytest.raises(AssertionError, match="not positive"):
        run(x).numpy()
    assert float(total) == 16.0
    with pytest.raises(IndexError, match="index"):
        hf.compile(lambda t, i: t[i], mesh=mesh, batch="data")(np.ones(16, "f"), np.full(16, 99)).numpy()


def test_prints_and_callbacks_run_once(mesh, capsys):
    seen = []

    def f(x):
        hf.print("sum", hf.sum(x))
        y = hf.pure_callback(lambda x: seen.append(x.shape) or x * 2, hf.TensorSpec([16]), x)
        return y + x

    run = hf.compile(f, mesh=mesh, batch="data")
    np.testing.assert_array_equal(run(np.arange(16, dtype="f")).numpy(), 3 * np.arange(16))
    assert capsys.readouterr().out == "sum Tensor(120., dtype=float32)\n"
    assert seen == [(16,)]


def test_metrics_and_loss_scale(mesh):
    accuracy = hf.metrics.Accuracy()
    scale = hf.LossScale(2.0**10)
    net = Net()
    opt = hf.optim.SGD(net, rate=0.1)

    def step(x, y):
        logits = net(x)
        accuracy.update(logits, y)
        with hf.GradientTape() as tape:
            loss = scale.scale(hf.mean(nn.softmax_cross_entropy(net(x), y)))
        scale.step(opt.update, tape.gradient(loss, net))
        return loss

    before = net.state_dict()
    eager = [float(step(X, Y)), float(accuracy.result())]
    after = net.state_dict()
    net.load_state_dict(before)
    accuracy.reset()
    run = hf.compile(step, mesh=mesh, batch="data")
    np.testing.assert_allclose([float(run(X, Y)), float(accuracy.result())], eager, rtol=1e-6)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value, after[name], atol=1e-5)


def test_loops_branches_and_scans(mesh):
    def f(x, n):
        total = hf.zeros((16,))
        for i in range(n):
            if hf.sum(x) > 0:
                total = total + x * float(i)
            else:
                total = total - x
        carry, ys = hf.scan(lambda c, row: (c + row, c * 2), hf.asarray(0.0), x)
        return total, carry, ys

    run = hf.compile(f, mesh=mesh, batch="data")
    x = RNG.normal(size=16).astype("f")
    for a, b in zip(f(x, 3), run(x, 3), strict=True):
        np.testing.assert_allclose(hf.asarray(a).numpy(), b.numpy(), atol=1e-5)
    for a, b in zip(f(x, 3), run(x, hf.asarray(3)), strict=True):
        np.testing.assert_allclose(hf.asarray(a).numpy(), b.numpy(), atol=1e-5)


def test_a_tape_outside_records_the_call(mesh):
    net = Net()
    for parameter in net.parameters()[:1]:
        parameter.lay_out(None)
    net.first.weight = hf.Variable(net.first.weight.numpy(), layout=("data", None), mesh=mesh, requires_grad=True)
    run = hf.compile(lambda x: net(x), mesh=mesh, batch="data")
    for call in (run, net):
        with hf.GradientTape() as tape:
            loss = hf.mean(call(X) ** 2)
        gradient = tape.gradient(loss, net.parameters())
        if call is run:
            got = gradient
    for a, b in zip(got, gradient, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)
    hf.mean(run(X) ** 2).backward()
    for variable, b in zip(net.parameters(), gradient, strict=True):
        np.testing.assert_allclose(variable.grad.numpy(), b.numpy(), atol=1e-6)
    with hf.GradientTape() as outer:
        with hf.GradientTape() as tape:
            loss = hf.sum(run(X) ** 2)
        slope = hf.sum(tape.gradient(loss, net.second.weight) ** 2)
    second = outer.gradient(slope, net.second.bias)
    with hf.GradientTape() as outer:
        with hf.GradientTape() as tape:
            loss = hf.sum(net(X) ** 2)
        slope = hf.sum(tape.gradient(loss, net.second.weight) ** 2)
    np.testing.assert_allclose(second.numpy(), outer.gradient(slope, net.second.bias).numpy(), rtol=1e-4)


def test_functions_on_one_device_take_what_a_mesh_left(mesh):
    v = hf.Variable(np.arange(16.0, dtype="f"), layout=("data",), mesh=mesh)
    w = hf.Variable(np.float32(1.0))

    def step(x):
        v.assign_add(x * w)
        w.assign_add(1.0)
        return x * 2

    on_mesh, alone = hf.compile(step, mesh=mesh, batch="data"), hf.compile(step)
    x = on_mesh(np.ones(16, "f"))
    assert lies_on_several(x._value)
    assert lies_on_several(w._value)
    y = alone(x)
    np.testing.assert_array_equal(y.numpy(), 4)
    assert v.layout == ("data",)
    assert parts(v) == {(2,)}
    np.testing.assert_array_equal(v.numpy(), np.arange(16) + 1 + 4)
    plain = hf.compile(lambda x: x + v + w)
    for _ in range(3):
        np.testing.assert_array_equal(plain(x).numpy(), 2 + v.numpy() + 3)
    np.testing.assert_array_equal(on_mesh(y).numpy(), 8)
    pure = hf.compile(lambda x: x + 1.0)
    for _ in range(3):
        np.testing.assert_array_equal(pure(x).numpy(), 3)
    with hf.GradientTape() as tape:
        tape.watch(x)
        z = hf.sum(plain(x) ** 2)
    assert tape.gradient(z, x).shape == (16,)
    assert hf.random.normal((3,)).shape == (3,)


def test_a_changed_layout_is_a_new_trace(mesh):
    v = hf.Variable(np.arange(16.0, dtype="f"), name="v")
    run = hf.compile(lambda: v * 2, mesh=mesh)
    run()
    run()
    assert run.trace_count == 1
    from hybridflow.core.mesh import Placement

    v.lay_out(Placement(mesh, ("data",)))
    np.testing.assert_array_equal(run().numpy(), 2 * np.arange(16))
    assert run.trace_count == 2
    assert "the layout of v: none -> ('data',) on Mesh" in str(run.explain())


def test_a_compiled_function_inside_another(mesh):
    inner = hf.compile(lambda x: x * 2, mesh=mesh, batch="data")
    np.testing.assert_array_equal(hf.compile(lambda x: inner(x) + 1, mesh=mesh)(np.ones(8, "f")).numpy(), 3)
    with pytest.raises(hf.LayoutError, match="the function that calls it for one device"):
        hf.compile(lambda x: inner(x) + 1)(np.ones(8, "f"))
    with pytest.raises(hf.LayoutError, match="compiled for Mesh"):
        hf.compile(lambda x: inner(x) + 1, mesh=hf.Mesh({"data": 4}))(np.ones(8, "f"))
    plain = hf.compile(lambda x: x * 3)
    np.testing.assert_array_equal(hf.compile(lambda x: plain(x), mesh=mesh)(np.ones(8, "f")).numpy(), 3)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"batch": "rows"}, hf.LayoutError, "compile: batch: the mesh has no axis 'rows'"),
        ({"batch": ("data", "data")}, hf.LayoutError, "used twice"),
        ({"in_layouts": {"z": ()}}, ValueError, r"in_layouts \['z'\] are no parameters of <lambda>"),
        ({"in_layouts": ("data",)}, TypeError, "in_layouts is a mapping"),
        ({"in_layouts": {"x": ("rows",)}}, hf.LayoutError, "the mesh has no axis 'rows'"),
        ({"out_layouts": "data"}, hf.LayoutError, "a layout is a tuple"),
        ({"memory_budget": "1MiB"}, ValueError, "has a memory_budget and a mesh"),
        ({"mesh": {"data": 8}}, TypeError, "mesh is no hf.Mesh"),
        ({"mesh": None, "batch": "data"}, hf.LayoutError, "is given layouts but no mesh"),
    ],
)
def test_bad_options(mesh, options, error, text):
    with pytest.raises(error, match=text):
        hf.compile(lambda x: x, **{"mesh": mesh, **options})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"in_layouts": {"x": ("data",)}}, "argument 'x': the layout has 1 entries, the tensor 2 dimensions"),
        ({"in_layouts": {"x": (None, "data")}}, "argument 'x': dimension 1 of size 6 cannot be divided by 8"),
        ({"in_layouts": {"x": {"a": ()}}}, r"a layout for \"x\['a'\]\", and no tensor is there"),
        ({"out_layouts": ("data",)}, "result 0: the layout has 1 entries"),
        ({"out_layouts": (None, "data")}, "result 0: dimension 1 of size 6 cannot be divided by 8"),
        ({"out_layouts": [("data", None)]}, "out_layouts has another structure"),
    ],
)
def test_bad_calls(mesh, options, text):
    f = hf.compile(lambda x: x * 2, mesh=mesh, **options)
    with pytest.raises(hf.LayoutError, match=text):
        f(X)
    with pytest.raises(hf.LayoutError, match="no argument has an axis to split"):
        hf.compile(lambda x: x, mesh=mesh, batch="data")(hf.asarray(1.0))
    v = hf.Variable(np.zeros(8), name="v", layout=("data",), mesh=hf.Mesh({"data": 4}))
    with pytest.raises(hf.LayoutError, match="Variable 'v' lies on another mesh than the function's"):
        hf.compile(lambda: v + 1, mesh=mesh)()


@pytest.mark.parametrize("reduce", [hf.max, hf.min])
def test_nan_on_one_device_reaches_an_extremum(mesh, reduce):
    x = np.tile(np.array([[1.0, np.nan], [np.inf, 2.0]], "f"), (8, 1))
    run = hf.compile(lambda x: (reduce(x, axis=0), reduce(x)), mesh=mesh, batch="data")
    for got, expected in zip(run(x), (reduce(hf.asarray(x), axis=0), reduce(hf.asarray(x))), strict=True):
        np.testing.assert_array_equal(got.numpy(), expected.numpy())


def test_many_calls_that_nobody_waits_for_end():
    for devices in (2, 8):
        mesh = hf.Mesh({"data": devices})
        w = hf.asarray(np.ones((64, 64), "f"))

        def step(x, w=w):
            for _ in range(4):
                x = x + 1e-6 * hf.sum(x @ w)
            return hf.sum(x)

        run = hf.compile(step, mesh=mesh, batch="data")
        x = hf.asarray(np.ones((8 * devices, 64), "f"))
        for _ in range(CALLS):
            last = run(x)
        np.testing.assert_allclose(last.item(), step(x).item(), rtol=1e-5)


def test_nothing_of_a_mesh_is_stored(mesh, tmp_path):
    hf.config.cache(tmp_path)
    try:
        run = hf.compile(lambda x: hf.sum(hf.tanh(x) @ hf.tanh(x).T), mesh=mesh, batch="data")
        run(X)
        assert run.explain()[0].store == ["not stored: it runs on several devices"]
    finally:
        hf.config.cache(False)

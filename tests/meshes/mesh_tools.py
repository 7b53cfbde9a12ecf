"""The framework's tools on a mesh: each works there, or says by a named error why it does not."""

from __future__ import annotations

import re

import jax
import numpy as np
import pytest
from mesh_sharding import X, Y, on_each, trained

import hybridflow as hf
from hybridflow import nn

RNG = np.random.default_rng(1)


def made():
    """Return a network with two layers."""
    nn.init.seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.gelu, nn.Linear(64, 16))


def parts(variable):
    """Return the shape of the part on each device."""
    return {one.data.shape for one in variable._value.addressable_shards}


def sharded(mesh, **options):
    """Return a network whose parameters are split over the mesh."""
    return hf.distribute.shard(made(), mesh, fsdp="data", **options)


def step_of(net, optimizer, mesh, **options):
    """Return a compiled training step."""

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        optimizer.update(tape.gradient(loss, net))
        return loss

    return hf.compile(step, mesh=mesh, batch="data", **options)


def test_profile(mesh):
    net = sharded(mesh, reshard=False)
    step = step_of(net, hf.optim.SGD(net, rate=0.1), mesh)
    step(X, Y)
    with hf.profile() as profile:
        for _ in range(2):
            step(X, Y).numpy()
    text = str(profile)
    assert "step" in text
    assert "mesh_tools.py" in text


def test_compare(mesh):
    x = RNG.normal(size=(16, 8)).astype(np.float32)
    w = hf.Variable(RNG.normal(size=(8, 8)).astype(np.float32), layout=("data", None), mesh=mesh)
    run = hf.compile(lambda x: hf.tanh(x @ w), mesh=mesh, batch="data", name="product")
    report = hf.compare(run, x, repeats=2)
    assert "product" in str(report)
    assert report.same


def test_an_artifact_holds_the_whole(mesh, tmp_path):
    net = sharded(mesh)
    expected = net(X).numpy()
    forward = hf.compile(lambda x: net(x), mesh=mesh, batch="data")
    np.testing.assert_allclose(forward(X).numpy(), expected, atol=1e-5)
    hf.export.save(tmp_path / "net", net, hf.TensorSpec(X.shape))
    np.testing.assert_allclose(hf.export.load(tmp_path / "net").predict(X), expected, atol=1e-5)
    assert {one.layout is None for one in net.parameters()} == {False}


def test_a_run_is_resumed_on_another_mesh(mesh, tmp_path):
    def run_for(steps, mesh, directory):
        net = sharded(mesh, reshard=False)
        optimizer = hf.optim.Adam(net, rate=0.01)
        data = hf.data.Batches((X, Y), 8, shuffle=True, seed=0)
        run = hf.train.Run(directory, model=net, optimizer=optimizer, data=data, progress=False, mesh=mesh)
        step = step_of(net, optimizer, mesh)
        for x, y in run.steps(steps):
            run.log(loss=step(x, y))
        return net, optimizer

    straight, _ = run_for(4, mesh, tmp_path / "a")
    run_for(2, mesh, tmp_path / "b")
    again, optimizer = run_for(4, mesh, tmp_path / "b")
    for name, value in straight.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[name], value, err_msg=name)
    run_for(2, mesh, tmp_path / "c")
    other, optimizer = run_for(4, hf.Mesh({"data": 4}), tmp_path / "c")
    for name, value in straight.state_dict().items():
        np.testing.assert_allclose(other.state_dict()[name], value, atol=1e-5, err_msg=name)
    variables = [*other.parameters(), *optimizer.variables()]
    assert on_each(variables) <= sum([one.size * 4 for one in variables]) / 4 + 64
    with pytest.raises(hf.LayoutError, match="lies on another mesh than the run's"):
        hf.train.Run(tmp_path / "c", model=other, mesh=mesh)
    with pytest.raises(TypeError, match="Run: mesh is no hf"):
        hf.train.Run(model=other, mesh={"data": 8})


def test_means_of_parameters_lie_like_them(mesh):
    net = sharded(mesh)
    mean = hf.optim.EMA(net, 0.5)
    optimizer = hf.optim.SGD(net, rate=0.1)
    before = net.state_dict()

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        optimizer.update(tape.gradient(loss, net))
        mean.update()

    hf.compile(step, mesh=mesh, batch="data")(X, Y)
    for variable, average in zip(net.parameters(), mean.variables(), strict=True):
        assert average.layout == variable.layout
        assert parts(average) == parts(variable)
    after = net.state_dict()
    for name, value in mean.state_dict().items():
        np.testing.assert_allclose(value, (before[name] + after[name]) / 2, atol=1e-6)
    with mean.applied():
        np.testing.assert_allclose(net[2].weight.numpy(), mean.state_dict()["2.weight"])
    assert parts(net[2].weight) == {(16, 8)}


def test_loss_scale_and_clipping_under_full_sharding(mesh):
    def run(net, wrap):
        scale, optimizer = hf.LossScale(2.0**10), hf.optim.SGD(net, rate=0.1, momentum=0.9)

        def step(x, y):
            with hf.GradientTape() as tape:
                loss = scale.scale(hf.mean(nn.softmax_cross_entropy(net(x), y)))
            grads, norm = hf.clip_by_global_norm(scale.unscale(tape.gradient(loss, net.parameters())), 0.01)
            optimizer.update(grads)
            return norm

        return [float(wrap(step)(X, Y)), net.state_dict()]

    norm, after = run(made(), lambda step: step)
    got, there = run(sharded(mesh), lambda step: hf.compile(step, mesh=mesh, batch="data"))
    np.testing.assert_allclose(got, norm, rtol=1e-5)
    for name, value in after.items():
        np.testing.assert_allclose(there[name], value, atol=1e-5, err_msg=name)


def test_accumulation_by_hand_reduces_once(mesh):
    net = made()
    many, labels = np.tile(X, (4, 1, 1)), np.tile(Y, (4, 1))
    accumulated = hf.accumulate_gradients(lambda m, x, y: hf.mean(nn.softmax_cross_entropy(m(x), y)), 4)
    expected, tree = jax.tree_util.tree_flatten(accumulated(net, many, labels))

    def each(x, y):
        return jax.tree_util.tree_map(lambda g: hf.distribute.pmean(g, "data"), accumulated(net, x, y))

    whole = jax.tree_util.tree_unflatten(tree, [(None,) * one.ndim for one in expected])
    once = hf.compile(hf.shard_map(each, mesh, [("data", None, None), ("data", None)], whole), mesh=mesh, batch="data")
    for got, want in zip(jax.tree_util.tree_leaves(once(many, labels)), expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-6)
    parameters = sum([variable.size * 4 for variable in net.parameters()])
    assert hf.cost(once, many, labels).communication.bytes["all-reduce"] - parameters < 64


@pytest.mark.parametrize("full", [False, True])
def test_accumulation_reduces_once(mesh, full):
    net = made()
    many, labels = np.tile(X, (4, 1, 1)), np.tile(Y, (4, 1))

    def loss(m, x, y):
        return hf.mean(nn.softmax_cross_entropy(m(x), y))

    expected = jax.tree_util.tree_leaves(hf.accumulate_gradients(loss, 4)(net, many, labels))
    if full:
        hf.distribute.shard(net, mesh, fsdp="data", reshard=False)
    sent = []
    for micro_batches in (1, 4):
        accumulated = hf.accumulate_gradients(loss, micro_batches)
        step = hf.compile(lambda x, y, accumulated=accumulated: accumulated(net, x, y), mesh=mesh, batch="data")
        for got, want in zip(jax.tree_util.tree_leaves(step(many, labels)), expected, strict=True):
            np.testing.assert_allclose(got.numpy(), want.numpy(), atol=1e-6)
        report = hf.cost(step, many, labels)
        report.against_xla()
        (found,) = step._last().executables.values()
        text = found.compiled.as_text()
        inside = text[: text.index("\nENTRY ")]
        for shape in re.findall(r"= (.*) all-reduce\(", inside):
            assert not re.search(r"\[\d", shape), f"reduced in each step: {shape}"
        sent.append(report.communication.bytes)
    assert sent[1]["all-reduce"] - sent[0]["all-reduce"] < 64  # the loss, for each micro-batch
    assert sent[1].get("all-gather") == sent[0].get("all-gather")


def test_whole_numbers_in_a_loop_are_those_of_eager_code(mesh):
    x = np.random.default_rng(2).normal(size=(16, 6, 4)).astype(np.float32)

    def step(carry, rows):
        whole, small = carry
        signs = hf.astype(rows > 0, "int8")
        return (whole + hf.astype(hf.sum(hf.abs(rows), axis=0), "int32"), small + signs.T @ signs), None

    def counted(x):
        carry = hf.zeros((4,), dtype="int32"), hf.zeros((4, 4), dtype="int8")
        return hf.scan(step, carry, hf.permute_dims(x, (1, 0, 2)))[0]

    together = hf.compile(counted, mesh=mesh, batch="data")
    for got, want in zip(together(x), counted(x), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_mixed_precision_under_full_sharding(mesh):
    def run(net, wrap):
        optimizer = hf.optim.SGD(net, rate=0.1)

        def step(x, y):
            with hf.GradientTape() as tape, hf.autocast("bfloat16"):
                loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
            optimizer.update(tape.gradient(loss, net))
            return loss

        step = wrap(step)
        return [float(step(X, Y)) for _ in range(2)], step

    expected, _ = run(made(), lambda step: step)
    net = sharded(mesh, reshard=False)
    got, _ = run(net, lambda step: hf.compile(step, mesh=mesh, batch="data"))
    np.testing.assert_allclose(got, expected, rtol=5e-3)
    assert {str(one.dtype) for one in net.parameters()} == {"float32"}
    assert {one.layout is None for one in net.parameters()} == {False}


def test_explain_says_what_is_sent(mesh):
    net = made()
    *_, step = trained(net, mesh, steps=1)
    text = str(step.explain())
    assert re.search(r"collectives: \d+ on Mesh\(\{'data': 8\}\), [\d,]+ bytes a device", text)
    assert re.search(r"all-reduce of [\d,]+ bytes in \d+ arrays at .*mesh_sharding.py:\d+", text)
    assert "no layout asked for it" not in text
    whole = sum([one.size * 4 for one in net.parameters()])
    assert sum([one.bytes for one in step.explain()[0].executables[0].collectives()]) - whole < 64


def test_a_gathering_that_nobody_asked_for_is_marked(mesh):
    def f(x):
        return hf.sort(x, axis=0)

    run = hf.compile(f, mesh=mesh, batch="data")
    run(RNG.normal(size=(16, 4)).astype("f"))
    sent = next(one for one in run.explain()[0].executables[0].collectives() if one.kind == "all-gather")
    assert not sent.asked
    assert sent.lines
    assert sent.lines[0].endswith(f"mesh_tools.py:{f.__code__.co_firstlineno + 1}")
    assert f"{sent.kind} of {sent.bytes:,} bytes at {sent.lines[0]}; no layout asked for it: see hf.constrain" in str(
        run.explain()
    )


def test_loops_with_sharded_variables(mesh):
    w = hf.Variable(RNG.normal(size=(8, 8)).astype("f") / 4, layout=("data", None), mesh=mesh)
    total = hf.Variable(np.zeros((8, 8), "f"), layout=("data", None), mesh=mesh)

    def f(x, n):
        while hf.sum(x) < n:
            x = x + hf.abs(hf.tanh(x @ w)) + 0.1
            total.assign_add(w * hf.sum(x))
        return x

    x = np.zeros((16, 8), "f")
    expected = f(hf.asarray(x), hf.asarray(100.0)).numpy()
    sums = total.numpy()
    total.assign(np.zeros((8, 8), "f"))
    run = hf.compile(f, mesh=mesh, batch="data")
    np.testing.assert_allclose(run(x, hf.asarray(100.0)).numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(total.numpy(), sums, rtol=1e-4)
    assert parts(total) == {(1, 8)}


def test_a_memory_budget_has_no_mesh(mesh):
    with pytest.raises(ValueError, match="has a memory_budget and a mesh"):
        hf.compile(lambda x: x, mesh=mesh, memory_budget="1MiB")

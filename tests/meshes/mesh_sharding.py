"""`hf.distribute.shard`: data, fully sharded and tensor parallel training, and mixtures, with one device's results."""

from __future__ import annotations

import copy
import re
from collections import Counter

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8, 32)).astype(np.float32)
Y = RNG.integers(0, 16, (16, 8)).astype(np.int32)


class Block(nn.Module):
    """A block of a transformer, with or without the presets of its layers."""

    def __init__(self, split):
        self.norm, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attend = nn.MultiHeadAttention(32, 4, is_causal=True, layouts="heads:model" if split else None)
        self.up = nn.Linear(32, 64, layouts="column:model" if split else None)
        self.down = nn.Linear(64, 32, layouts="row:model" if split else None)

    def forward(self, x):
        x = x + self.attend(self.norm(x))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


class Net(nn.Module):
    """A block and a head."""

    def __init__(self, split=False):
        self.blocks = [Block(split)]
        self.head = nn.Linear(32, 16, layouts="column:model" if split else None)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def made(split=False):
    """Return a network with all of its sizes."""
    nn.init.seed(0)
    net = Net(split)
    with hf.no_grad():
        net(X[:1])
    return net


def trained(net, mesh, batch="data", steps=2, late=None):
    """Train a network; return its losses, its parameters, the optimizer and the program."""
    opt = hf.optim.AdamW(net, rate=0.01, clip=1.0)
    if late is not None:
        opt.variables()
        late(net)

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        opt.update(tape.gradient(loss, net))
        return loss

    run = step if mesh is None else hf.compile(step, mesh=mesh, batch=batch)
    losses = [float(run(X, Y)) for _ in range(steps)]
    return losses, net.state_dict(), opt, run


def program(run):
    """Return the program of a compiled function as text."""
    (found,) = run._last().executables.values()
    return found.compiled


def collectives(run):
    """Return the kinds of collectives, each with its number and bytes."""
    kinds: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for line in program(run).as_text().splitlines():
        found = re.search(r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\(", line)
        if found:
            shapes = re.findall(r"(\w+)\[([\d,]*)\]", found[1])
            kinds[found[2]] += len(shapes)
            width = {"f32": 4, "pred": 1, "s32": 4}
            sizes[found[2]] += sum(
                width[kind] * int(np.prod([int(one) for one in dims.split(",") if one])) for kind, dims in shapes
            )
    return kinds, sizes


def on_each(variables):
    """Return the bytes of Variables on the device that has most."""
    per = Counter()
    for one in variables:
        for shard in one._value.addressable_shards:
            per[shard.device.id] += shard.data.nbytes
    return max(per.values())


@pytest.fixture(scope="module")
def eager():
    losses, state, *_ = trained(made(), None)
    return losses, state


def same(got, eager, tolerance=5e-6):
    np.testing.assert_allclose(got[0], eager[0], rtol=0, atol=tolerance)
    for name, value in eager[1].items():
        if not name.endswith("key.bias"):  # its gradient is rounding only, which Adam scales up
            np.testing.assert_allclose(got[1][name], value, rtol=0, atol=2e-4, err_msg=name)


@pytest.mark.parametrize(("reshard", "late"), [(False, False), (True, True)])
def test_fully_sharded_training(mesh, eager, reshard, late):
    net = made()
    shard = lambda net: hf.distribute.shard(net, mesh, fsdp="data", reshard=reshard)  # noqa: E731
    got = trained(net if late else shard(net), mesh, late=shard if late else None)
    same(got, eager)
    _, _, opt, run = got
    variables = [*net.parameters(), *opt.variables()]
    total = sum(one.size * 4 for one in variables)
    assert on_each(variables) <= total / 8 + 64
    assert {one.layout is None for one in net.parameters()} == {False}
    kinds, sizes = collectives(run)
    whole = sum(one.size * 4 for one in net.parameters())
    if reshard:
        assert sizes["all-gather"] > 1.4 * whole
    else:
        assert sizes["all-gather"] == whole
        assert kinds["all-gather"] == len(net.parameters())


def test_resharding_holds_two_blocks_weights(mesh):
    """A block has two layers. Without the options, all gathered weights or all gradients are there at once."""
    layers = [nn.Linear(512, 512) for _ in range(6)]
    x = np.random.default_rng(1).normal(size=(8, 512)).astype(np.float32)

    def gradients(x):
        with hf.GradientTape() as tape:
            h = x
            for up, down in zip(layers[::2], layers[1::2], strict=True):
                h = hf.checkpoint(lambda h, up=up, down=down: h + down(nn.gelu(up(h))))(h)
            loss = hf.mean(h**2)
        return tape.gradient(loss, layers)

    expected = jax.tree_util.tree_leaves(gradients(x))
    hf.distribute.shard(layers, mesh, fsdp="data")
    run = hf.compile(gradients, mesh=mesh, batch="data")
    with hf.no_grad():
        found = jax.tree_util.tree_leaves(run(x))
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=1e-6)
    assert program(run).memory_analysis().temp_size_in_bytes < 2 * 2 * layers[0].weight.size * 4


def test_data_parallel_bytes_are_those_of_parameters_loss_and_flags(mesh, eager):
    net = made()
    got = trained(net, mesh)
    same(got, eager)
    kinds, sizes = collectives(got[3])
    assert set(kinds) == {"all-reduce"}
    parameters = sum(one.size * 4 for one in net.parameters())
    assert parameters + 4 <= sizes["all-reduce"] <= parameters + 4 + 16


@pytest.mark.parametrize(
    ("sizes", "fsdp"), [({"data": 2, "model": 4}, None), ({"data": 4, "model": 2}, "data")]
)
def test_tensor_parallel_training(eager, sizes, fsdp):
    mesh = hf.Mesh(sizes)
    net = hf.distribute.shard(made(split=True), mesh, fsdp=fsdp)
    assert net.blocks[0].attend.query.weight.layout == ("model", fsdp)
    assert net.blocks[0].down.weight.layout == (fsdp, "model")
    same(trained(net, mesh, batch="data" if "data" in sizes else None), eager)


def test_tensor_parallel_needs_two_reductions_each_way():
    mesh = hf.Mesh({"model": 4})
    net = hf.distribute.shard(made(split=True).blocks, mesh)
    layer = lambda x: net[0](x)  # noqa: E731
    forward = hf.compile(layer, mesh=mesh)
    with hf.no_grad():
        forward(X)
    kinds, sizes = collectives(forward)
    assert (kinds, sizes) == ({"all-reduce": 2}, {"all-reduce": 2 * X.nbytes})
    both = hf.compile(lambda x: hf.grad(lambda x: hf.mean(layer(x) ** 2))(x), mesh=mesh)
    with hf.no_grad():
        both(X)
    kinds, sizes = collectives(both)
    assert (kinds, sizes) == ({"all-reduce": 4}, {"all-reduce": 4 * X.nbytes})


def test_patterns(mesh, eager):
    two = hf.Mesh({"data": 2, "model": 4})
    net = made()
    layouts = {"*.up.weight": ("model", None), "*.up.bias": ("model",), "*.down.weight": (None, "model")}
    rest = {"*.attend.*.weight": (None, None), "head.weight": (None, None)}
    hf.distribute.shard(net, two, {**layouts, **rest})
    assert net.blocks[0].up.weight.layout == ("model", None)
    assert net.head.bias.layout == (None,)
    same(trained(net, two), eager)
    pair = {"a": hf.Variable(np.zeros((8, 2))), "b": [hf.Variable(np.zeros(3))]}
    assert hf.distribute.shard(pair, mesh, {"a": ("data", None), "b.0": (None,)}) is pair
    assert pair["a"].layout == ("data", None)


@pytest.mark.parametrize(
    ("layouts", "options", "text"),
    [
        ({"*.up.weigth": ("data", None)}, {}, r"the pattern '\*.up.weigth' matches nothing"),
        ({"*": (None, None)}, {}, r"Variable .* the layout has 2 entries, the tensor 1 dimensions"),
        ({"*.up.weight": (None, None), "blocks.0.up.weight": ("data", None)}, {}, "An earlier pattern takes blocks.0"),
        ({"head.weight": ("rows", None)}, {}, "the mesh has no axis 'rows'"),
        ({"head.weight": "data"}, {}, "a layout is a tuple"),
        (None, {"fsdp": "rows"}, "shard: fsdp: the mesh has no axis 'rows'"),
    ],
)
def test_bad_patterns_change_nothing(mesh, layouts, options, text):
    net = made()
    with pytest.raises(hf.LayoutError, match=text):
        hf.distribute.shard(net, mesh, layouts, **options)
    assert {one.layout for one in net.parameters()} == {None}


@pytest.mark.parametrize("options", [{}, {"fsdp": "data"}], ids=["", "fsdp"])
def test_none_leaves_the_rest_whole_whatever_its_dimensions(mesh, options):
    net = {"a": hf.Variable(np.zeros((8, 64))), **{
        f"rank {rank}": hf.Variable(np.zeros((64, 64, 8, 2)[:rank])) for rank in range(5)
    }}
    hf.distribute.shard(net, mesh, {"a": (None, "data"), "*": None}, **options)
    assert net["a"].layout == (None, "data")
    split = ("data",) if options else (None,)
    assert [net[f"rank {rank}"].layout for rank in range(5)] == [(), *[split + (None,) * rest for rest in range(4)]]


def test_what_cannot_be_sharded(mesh):
    pair = {"a": hf.Variable(np.zeros(8)), "b": hf.Variable(np.zeros((64, 64)))}
    with pytest.raises(hf.LayoutError, match=r"1 large matrices match no pattern[\s\S]*b: \(64, 64\)"):
        hf.distribute.shard(pair, mesh, {"a": ("data",)})
    with pytest.raises(ValueError, match="does not know its sizes before the first call"):
        hf.distribute.shard(nn.Linear(8), mesh)
    with pytest.raises(ValueError, match="there are no Variables"):
        hf.distribute.shard({}, mesh)
    with pytest.raises(TypeError, match=r"mesh is no hf\.Mesh"):
        hf.distribute.shard(nn.Linear(8, 8), {"data": 8})
    with pytest.raises(TypeError, match="layouts are a mapping"):
        hf.distribute.shard(nn.Linear(8, 8), mesh, ("data", None))
    net, eight = made(split=True), hf.Mesh({"model": 8})
    with pytest.raises(hf.LayoutError, match=r"the 4 heads of blocks\.0\.attend cannot be divided by 8"):
        hf.distribute.shard(net, eight)
    with pytest.raises(hf.LayoutError, match='layouts is "column:AXIS" or "row:AXIS"'):
        nn.Linear(8, 8, layouts="columns:model")
    with pytest.raises(hf.LayoutError, match='layouts is "heads:AXIS"'):
        nn.MultiHeadAttention(8, 2, layouts={"query": ()})


def test_small_and_indivisible_variables_stay_whole(mesh):
    net = nn.Linear(6, 16)
    hf.distribute.shard(net, mesh, fsdp="data", min_size=20)
    assert net.weight.layout == ("data", None)
    assert net.bias.layout == (None,)
    odd = hf.distribute.shard({"w": hf.Variable(np.zeros((3, 5)))}, mesh, fsdp="data")
    assert odd["w"].layout == (None, None)


def test_other_state_follows(mesh, tmp_path):
    net = hf.distribute.shard(made(), mesh, fsdp="data")
    again = copy.deepcopy(net)
    assert again.head.weight.layout == net.head.weight.layout
    average = hf.optim.EMA(net, 0.9)
    opt = hf.optim.Adam(net)
    hf.save(tmp_path / "net.safetensors", net)
    before = net.head.weight.numpy().copy()
    net.head.weight.assign(before * 0)
    hf.load(tmp_path / "net.safetensors", into=net)
    np.testing.assert_array_equal(net.head.weight.numpy(), before)
    assert len(net.head.weight._value.addressable_shards) == 8
    state = opt.state_dict()
    opt.load_state_dict(state)
    assert average is not None


def test_checkpointed_blocks(mesh, eager):
    net = hf.distribute.shard(made(), mesh, fsdp="data")
    opt = hf.optim.AdamW(net, rate=0.01, clip=1.0)

    def step(x, y):
        with hf.GradientTape() as tape:
            h = x
            for block in net.blocks:
                h = hf.checkpoint(block)(h)
            loss = hf.mean(nn.softmax_cross_entropy(net.head(h), y))
        opt.update(tape.gradient(loss, net))
        return loss

    run = hf.compile(step, mesh=mesh, batch="data")
    np.testing.assert_allclose([float(run(X, Y)) for _ in range(2)], eager[0], atol=5e-6)


def test_mixed_precision(mesh):
    def losses(mesh):
        net = made()
        if mesh is not None:
            hf.distribute.shard(net, mesh, fsdp="data")
        opt = hf.optim.AdamW(net, rate=0.01)

        def step(x, y):
            with hf.GradientTape() as tape, hf.autocast("bfloat16"):
                loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
            opt.update(tape.gradient(loss, net))
            return loss

        run = hf.compile(step, mesh=mesh, batch=None if mesh is None else "data")
        return [float(run(X, Y)) for _ in range(3)]

    np.testing.assert_allclose(losses(mesh), losses(None), atol=0.02)


def test_fit_evaluate_and_predict(mesh):
    x, y = RNG.normal(size=(52, 6)).astype("f"), RNG.integers(0, 4, 52)

    def fitted(mesh, **options):
        hf.random.seed(1)
        nn.init.seed(1)
        net = nn.Sequential(nn.Linear(6, 32), nn.relu, nn.BatchNorm(32), nn.Dropout(0.1), nn.Linear(32, 4))
        if mesh is not None:
            hf.distribute.shard(net, mesh, fsdp="data")
            options["mesh"] = mesh
        history = hf.train.fit(
            net, x, y, loss=nn.softmax_cross_entropy, optimizer=hf.optim.Adam(net, rate=0.01), epochs=2, batch_size=16,
            metrics=hf.metrics.Accuracy(), validation=(x, y), progress=False, **options,
        )
        given = {} if mesh is None else {"mesh": mesh}
        found = hf.train.evaluate(net, x, y, metrics=hf.metrics.Accuracy(), batch_size=20, **given)
        return history, found, hf.train.predict(net, x, batch_size=20, **given).numpy()

    one, many = fitted(None), fitted(mesh)
    for name, values in one[0].items():
        np.testing.assert_allclose(many[0][name], values, atol=2e-5, err_msg=name)
    assert one[1] == many[1]
    np.testing.assert_allclose(many[2], one[2], atol=2e-5)
    with pytest.raises(ValueError, match="a mesh runs compiled steps"):
        fitted(mesh, compile=False)
    with pytest.raises(hf.LayoutError, match="no mesh"):
        fitted(None, batch="data")


@pytest.mark.parametrize("rule", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Lion"])
def test_a_step_that_may_be_undone_copies_no_moments(mesh, rule):
    """XLA copies what is read while it is written over: each moment, if the parameter is computed from the old ones."""

    def run(wrap):
        nn.init.seed(0)
        net = nn.Sequential(nn.Linear(32, 64), nn.gelu, nn.Linear(64, 16))
        momentum = {"momentum": 0.9} if rule == "SGD" else {}
        optimizer = getattr(hf.optim, rule)(net, rate=0.01, **momentum)

        def step(x, y):
            with hf.GradientTape() as tape:
                loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
            optimizer.update(tape.gradient(loss, net))
            return loss

        step = wrap(step)
        losses = [float(step(X, Y)) for _ in range(3)]
        with pytest.raises(IndexError):
            hf.asarray(step(X, Y + 16)).numpy()
        return losses, net.state_dict(), [one.numpy() for one in optimizer.variables()], step

    losses, state, slots, step = run(lambda step: hf.compile(step, mesh=mesh, batch="data"))
    expected, known, values, _ = run(lambda step: step)
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    for name, value in known.items():
        np.testing.assert_allclose(state[name], value, atol=1e-4, err_msg=name)
    for got, value in zip(slots, values, strict=True):
        np.testing.assert_allclose(got, value, atol=1e-4)
    graph = str(step._last().graph)
    assert graph.count("selected_update(") == 4
    if rule not in ("Adadelta", "Lion"):  # their parameters are computed from old moments
        assert not re.findall(r"f32\[64,32\]\S* copy\(", program(step).as_text())


def test_checks_are_reduced_with_the_gradients(mesh):
    net = made()
    *_, run = trained(net, mesh, steps=1)
    (found,) = [line for line in program(run).as_text().splitlines() if re.search(r" all-reduce\(", line)]
    assert "pred" not in found

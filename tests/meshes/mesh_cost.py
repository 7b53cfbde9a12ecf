"""`hf.cost` on meshes: bytes of collectives and memory of a device, predicted without devices, are XLA's."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from mesh_sharding import X, Y, made

import hybridflow as hf
from hybridflow import nn

WHOLE = bool(os.environ.get("HYBRIDFLOW_MESH_WHOLE"))
"""Whether to compile the transformer in every way, for every number of devices."""
KINDS = ("mlp", "transformer")


def training(net, mesh, **options):
    """Return a compiled training step."""
    opt = hf.optim.AdamW(net, rate=0.01, clip=None if isinstance(net, Mlp) else 1.0)

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        opt.update(tape.gradient(loss, net))
        return loss

    return hf.compile(step, mesh=mesh, **options)


class Mlp(nn.Module):
    """Two layers, divided as Megatron does or not at all."""

    def __init__(self, split):
        self.up = nn.Linear(32, 64, layouts="column:model" if split else None)
        self.down = nn.Linear(64, 16, layouts="row:model" if split else None)

    def forward(self, x):
        return self.down(nn.gelu(self.up(x)))


def model_of(kind, split):
    """Return a model with all of its sizes."""
    return made(split=split) if kind == "transformer" else Mlp(split)


def checked(step, memory=0.6):
    """Compare a report with XLA's program; return the bytes by kind."""
    report = hf.cost(step, hf.TensorSpec(X.shape), hf.TensorSpec(Y.shape, "int32"))
    check = report.against_xla()
    assert check.sent == check.xla_sent
    assert check.sent == report.communication.bytes
    held = report.memory
    assert abs(held.peak - check.xla_peak) <= memory * check.xla_peak
    return report


@pytest.mark.parametrize(
    ("way", "kind", "devices"),
    [
        (way, kind, devices)
        for way, kind, devices in itertools.product(("data", "fsdp", "tensor", "both"), KINDS, (2, 4, 8))
        if WHOLE or kind == "mlp" or (devices == 8 and way in ("fsdp", "both"))
    ],
)
def test_bytes_are_those_of_xla(way, kind, devices):
    sizes = {"data": {"data": devices}, "fsdp": {"data": devices}, "tensor": {"model": min(devices, 4)},
             "both": {"data": devices // 2, "model": 2}}[way]
    mesh = hf.Mesh(sizes)
    net = model_of(kind, way in ("tensor", "both"))
    if way != "data":
        hf.distribute.shard(net, mesh, fsdp=None if way == "tensor" else "data", reshard=False)
    report = checked(training(net, mesh, batch=None if way == "tensor" else "data"))
    whole = sum([one.size * 4 for one in net.parameters()])
    if way == "fsdp":
        assert report.communication.bytes["all-gather"] == whole
        assert report.memory.bytes["parameters"] == sum(
            [one.size * 4 // (1 if one.layout == (None,) * one.ndim else devices) for one in net.parameters()]
        )
    if way == "data":
        assert set(report.communication.bytes) == {"all-reduce"}
        assert report.memory.bytes["parameters"] == whole


def test_no_devices_are_needed_and_layouts_may_be_those_of_other_sizes():
    small = hf.Mesh({"data": 1, "model": 1})
    net = hf.distribute.shard(made(split=True), small, fsdp="data", reshard=False)
    step = training(net, small, batch="data")
    specs = hf.TensorSpec([64, 8, 32]), hf.TensorSpec([64, 8], "int32")
    there = hf.Mesh({"data": 2, "model": 4})
    real = hf.distribute.shard(made(split=True), there, fsdp="data", reshard=False)
    expected = hf.cost(training(real, there, batch="data"), *specs)
    predicted = hf.cost(step, *specs, mesh={"data": 2, "model": 4})
    assert predicted.communication.rows == expected.communication.rows
    assert predicted.memory.bytes == expected.memory.bytes
    assert predicted.against_xla().xla_sent == predicted.communication.bytes
    large = hf.cost(step, *specs, mesh={"data": 64, "model": 4})
    assert large.communication.mesh == {"data": 64, "model": 4}
    assert large.memory.bytes["arguments"] == (64 * 8 * 32 * 4 + 64 * 8 * 4) // 64
    with pytest.raises(hf.LayoutError, match="needs 256 devices, there are 8"):
        large.against_xla()
    assert net.head.weight.layout == ("model", "data")
    assert step.trace_count == 0


def test_a_row_says_what_is_sent_along_which_axis_and_for_which_line(mesh):
    def f(x, w):
        return hf.sum(x @ w, axis=0)

    report = hf.cost(hf.compile(f, mesh=mesh, batch="data", in_layouts={"w": (None, None)}),
                     hf.TensorSpec([16, 4]), hf.TensorSpec([4, 6]))
    (row,) = report.communication.rows
    assert (row.kind, row.axes, row.devices, row.bytes, row.shape, row.runs, row.operation) == (
        "all-reduce", ("data",), 8, 24, (6,), 1, "sum"
    )
    assert row.line.endswith(f"mesh_cost.py:{f.__code__.co_firstlineno + 1}")
    text = str(report)
    assert "Sent between devices, data=8; bytes of results on each" in text
    assert "Memory of each device" in text
    assert "those of all devices together" in text
    assert report.to_dict()["collectives"] == [vars(row)]
    assert "all-reduce, bytes" in str(report.against_xla())
    plain = hf.cost(f, hf.TensorSpec([16, 4]), hf.TensorSpec([4, 6]))
    assert plain.communication is None
    assert "Sent between" not in str(plain)


def test_a_loop_sends_as_often_as_it_runs(mesh):
    def f(x):
        total, _ = hf.scan(lambda c, _: (c + hf.sum(hf.tanh(x * c)), None), hf.asarray(0.0), hf.zeros((5, 1)))
        return total

    report = hf.cost(hf.compile(f, mesh=mesh, batch="data"), hf.TensorSpec([16]))
    assert [row.runs for row in report.communication.rows] == [5]
    check = report.against_xla()
    assert (check.sent, check.xla_sent) == ({"all-reduce": 4}, {"all-reduce": 4})
    assert report.communication.bytes == {"all-reduce": 20}


def test_what_shard_map_sends(mesh):
    body = lambda x: hf.distribute.psum_scatter(hf.distribute.all_gather(x, "data") * 2, "data", 0)  # noqa: E731
    f = hf.shard_map(body, mesh, [("data", None)], ("data", None))
    report = hf.cost(hf.compile(lambda x: f(x), mesh=mesh, batch="data"), hf.TensorSpec([16, 4]))
    assert report.communication.bytes == {"all-gather": 256, "reduce-scatter": 32}
    assert [row.axes for row in report.communication.rows] == [("data",)] * 2
    assert report.against_xla().xla_sent == report.communication.bytes
    other = hf.cost(hf.compile(lambda x: f(x), mesh=mesh, batch="data"), hf.TensorSpec([16, 4]), mesh={"data": 8})
    assert other.communication.bytes == report.communication.bytes
    with pytest.raises(hf.LayoutError, match="shard_map: it is for"):
        hf.cost(hf.compile(lambda x: f(x), mesh=mesh), hf.TensorSpec([16, 4]), mesh={"data": 4})


def test_sums_over_two_axes_and_moves_between_layouts():
    mesh = hf.Mesh({"data": 2, "model": 4})

    def f(x, y):
        moved = hf.constrain(hf.constrain(x * 2, ("data", "model")), ("model", "data"))
        return hf.sum(x), hf.einsum("bt,bt->", x, y), moved, hf.constrain(y, (None, None)) + 1

    run = hf.compile(f, mesh=mesh, in_layouts={"x": ("data", "model"), "y": ("data", "model")})
    report = hf.cost(run, hf.TensorSpec([8, 8]), hf.TensorSpec([8, 8]))
    check = report.against_xla()
    assert check.sent == check.xla_sent
    assert set(check.sent) == {"all-reduce", "all-gather", "all-to-all", "collective-permute"}


def test_devices_that_scatter_sums():
    from hybridflow.xla.partition import partition

    mesh = hf.Mesh({"data": 8})
    net = hf.distribute.shard(Mlp(False), mesh, fsdp="data", reshard=False)
    step = training(net, mesh, batch="data")
    step(X, Y)
    trace = step._last()
    on_cpu, elsewhere = [partition(trace.graph, {}, trace.placing, kind).bytes() for kind in ("cpu", "cuda")]
    assert set(on_cpu) == {"all-gather", "all-reduce"}
    whole = sum([one.size * 4 for one in net.parameters()])
    assert elsewhere["reduce-scatter"] == whole / 8
    assert elsewhere["all-gather"] == whole
    assert elsewhere["all-reduce"] == on_cpu["all-reduce"] - whole


def test_functions_of_python_need_no_devices(mesh):
    def f(x):
        hf.print("sum", hf.sum(x))
        return hf.pure_callback(lambda x: x * 2, hf.TensorSpec([16]), x) + x

    report = hf.cost(hf.compile(f, mesh=mesh, batch="data"), hf.TensorSpec([16]))
    assert report.communication.bytes.keys() <= {"all-reduce"}


def test_open_sizes_have_no_collectives_until_they_are_known(mesh):
    report = hf.cost(hf.compile(lambda x: hf.sum(x), mesh=mesh, batch="data"), hf.TensorSpec([None, 4]))
    assert report.communication is None
    (name,) = report.total.flops.symbols if hasattr(report.total.flops, "symbols") else ("x_0",)
    assert report.at(**{name: 64}).communication.bytes == {"all-reduce": 4}


@pytest.mark.parametrize(
    ("mesh", "error", "text"),
    [
        ({"rows": 2}, hf.LayoutError, "the mesh has no axis 'data'"),
        ({"data": 0}, hf.LayoutError, "axis 'data' has size 0"),
        ({"data": -1}, hf.LayoutError, "cannot be divided"),
        (8, TypeError, "mesh is a hf.Mesh, or sizes by axis"),
    ],
)
def test_bad_meshes(mesh, error, text):
    step = hf.compile(lambda x: hf.sum(x), mesh=hf.Mesh({"data": 1}), batch="data")
    with pytest.raises(error, match=text):
        hf.cost(step, hf.TensorSpec([16]), mesh=mesh)
    v = hf.Variable(np.zeros(6, "f"), layout=("data",), mesh=hf.Mesh({"data": 2}))
    with pytest.raises(hf.LayoutError, match="dimension 0 of size 6 cannot be divided by 4"):
        hf.cost(lambda: v + 1, mesh={"data": 4})

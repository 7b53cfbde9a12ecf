"""`hf.simulate` on meshes: bytes of collectives are those of XLA's program, and memory is near XLA's."""

from __future__ import annotations

import dataclasses

import pytest
from mesh_cost import Mlp, training

import hybridflow as hf

CPU = dataclasses.replace(hf.Hardware.load("a100-80gb"), platform="cpu")


@pytest.mark.parametrize("devices", [2, 4, 8])
@pytest.mark.parametrize("way", ["data", "fsdp", "tensor"])
def test_bytes_and_memory_are_those_of_xla(way, devices):
    mesh = hf.Mesh({"model" if way == "tensor" else "data": devices})
    net = Mlp(way == "tensor")
    if way != "data":
        hf.distribute.shard(net, mesh, fsdp="data" if way == "fsdp" else None, reshard=False)
    step = training(net, mesh, batch=None if way == "tensor" else "data")
    specs = hf.TensorSpec([1024, 8, 32]), hf.TensorSpec([1024, 8], "int32")
    found = hf.simulate(step, *specs, hardware=CPU)
    check = found.cost.against_xla()
    sent: dict[str, int] = {}
    for one in found.collectives:
        sent[one.row.kind] = sent.get(one.row.kind, 0) + one.row.bytes * one.row.runs
    assert sent == check.xla_sent
    assert found.memory == pytest.approx(check.xla_peak, rel=0.25)
    assert found.communication == pytest.approx(sum([one.seconds for one in found.collectives]))

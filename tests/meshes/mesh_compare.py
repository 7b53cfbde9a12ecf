"""`hf.compare(mesh=)`: a function on a mesh, timed and judged beside its eager and compiled calls on one device."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.core.op import REGISTRY

RNG = np.random.default_rng(0)
X = RNG.normal(size=(16, 8)).astype(np.float32)


def test_a_third_column_and_state_is_restored(mesh):
    model = nn.Linear(8, 4)
    optimizer = hf.optim.Adam(model, rate=0.1)

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(model(x) ** 2)
        optimizer.update(tape.gradient(loss, model))
        return loss

    step(hf.asarray(X))
    before = [one.numpy().copy() for one in (*model.parameters(), *optimizer.variables())]
    found = hf.compare(step, X, mesh=mesh, batch="data", repeats=2)
    assert found.same
    assert [one.name for one in found.peers] == ["mesh data=8"]
    assert found.grids()[0].head == ("", "eager", "compiled", "mesh data=8")
    assert found.peers[0].first > found.peers[0].timing.median > 0
    assert "SAME: eager and compiled and mesh data=8 results agree but for rounding." in str(found)
    for one, old in zip((*model.parameters(), *optimizer.variables()), before, strict=True):
        np.testing.assert_array_equal(one.numpy(), old)


def test_a_pipeline_on_its_own_mesh():
    mesh = hf.Mesh({"stage": 2})
    stages = [nn.Linear(8, 8), nn.Linear(8, 8)]

    @hf.compile(mesh=mesh)
    def loss(x):
        return hf.distribute.pipeline(stages, x, loss=lambda y: hf.mean(y**2), microbatches=4)

    found = hf.compare(loss, X, mesh=mesh, repeats=2)
    assert found.same
    assert found.to_dict()["peers"][0]["name"] == "mesh stage=2"
    assert hf.compare(loss, X, repeats=2).same  # "compiled" is the mesh's program then


def test_a_difference_on_the_mesh_is_found(mesh, monkeypatch):
    # A planted fault: on a mesh, a value that is constrained becomes a little larger.
    fault = lambda x, *, layout, gradient: x if LOWERED_FOR.get() is None else x * 1.001  # noqa: E731
    monkeypatch.setattr(REGISTRY["constrain"], "lower", fault)
    found = hf.compare(lambda x: hf.constrain(hf.sin(x), ("data", None)), X, mesh=mesh, batch="data", repeats=2)
    assert not found.same
    assert found.parities[0].same
    assert any("mesh data=8" in line for line in found.differences())


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"mesh": 3}, TypeError, r"compare: mesh is no hf\.Mesh"),
        ({"batch": "data"}, hf.LayoutError, "there is no mesh"),
        ({"mesh": hf.Mesh({"data": 2})}, hf.LayoutError, r"compiled for Mesh\(\{'data': 4\}\)"),
    ],
)
def test_bad_calls(options, error, text):
    fn = hf.compile(lambda x: hf.sin(x), mesh=hf.Mesh({"data": 4}), batch="data")
    with pytest.raises(error, match=text):
        hf.compare(fn, X, repeats=2, **options)
    with pytest.raises(ValueError, match="2 functions and a mesh"):
        hf.compare([hf.sin, hf.cos], X, repeats=2, mesh=hf.Mesh({"data": 4}))

"""Pictures of functions that are compiled for a mesh say how values lie there."""

from __future__ import annotations

import numpy as np
import pytest

import hybridflow as hf

X = np.ones((16, 8), np.float32)


def test_layouts_on_edges(tmp_path):
    mesh = hf.Mesh({"data": 2, "model": 4})
    w = hf.Variable(np.ones((8, 12), np.float32), layout=(None, "model"), mesh=mesh, name="w")
    bias = hf.Variable(np.ones(12, np.float32), name="bias")

    @hf.compile(mesh=mesh, batch="data")
    def layer(x):
        return hf.sum(hf.tanh(x @ w + bias), axis=1)

    graph = layer.graph(X)
    text = graph.to_mermaid()
    assert "f32[16,8] (data, -)" in text
    assert "f32[8,12] (-, model)" in text
    assert "f32[16,12] (data, model)" in text
    graph.to_svg(tmp_path / "graph.svg")
    assert "f32[16,12] (data, model)" in (tmp_path / "graph.svg").read_text(encoding="utf-8")
    one = hf.compile(lambda x: hf.tanh(x)).graph(X)
    assert one.layouts is None
    assert "f32[16,8]" in one.to_mermaid()


@pytest.mark.parametrize("data", [1, 2])
def test_what_a_pipeline_sends_is_predicted(data):
    mesh = hf.Mesh({"data": data, "stage": 2})
    stages = [hf.nn.Linear(8, 8), hf.nn.Linear(8, 8)]
    step = hf.compile(
        lambda x: hf.distribute.pipeline(stages, x, loss=lambda y: hf.mean(y**2), microbatches=4), mesh=mesh,
        batch="data",
    )
    rows = [row for row in hf.cost(step, X).communication.rows if row.kind == "collective-permute"]
    assert [(row.bytes, row.runs, row.axes) for row in rows] == [(4 * 8 * 4 // data, 5, ("stage",))]
    step(X)
    record = step.explain()[0]
    (made,) = [*record.executables, *record.recorded]
    assert [one.bytes for one in made.collectives() if one.kind == "collective-permute"] == [4 * 8 * 4 // data]

"""`hf.advise` with several devices: the plan fits by XLA's figure, its code is the step, and nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow import nn


def setting() -> tuple[Any, Any, Any]:
    """Return a model, its optimizer and its step."""
    hf.random.seed(0)
    model = nn.Sequential(nn.Linear(32, 256), hf.tanh, nn.Linear(256, 256), hf.tanh, nn.Linear(256, 4))
    optimizer = hf.optim.Adam(model, rate=0.01)

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(model(x) ** 2)
        optimizer.update(tape.gradient(loss, model))
        return loss

    return model, optimizer, step


def test_a_plan_for_devices_fits_and_does_what_the_step_does():
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    model, optimizer, step = setting()
    plain = hf.cost(step, x).against_xla().xla_peak
    values = [one._value for one in (*model.parameters(), *optimizer.variables())]
    found = hf.advise(step, hf.TensorSpec(x.shape), memory=int(plain * 0.65), model=model)
    best = found.best
    assert best.name == f"FSDP over {best.devices} devices"
    assert best.devices in (4, 8)
    assert best.peak <= plain * 0.65
    assert 0.8 < best.predicted / best.peak < 1.5
    assert all(one is other for one, other in zip(
        values, [one._value for one in (*model.parameters(), *optimizer.variables())], strict=True
    ))
    assert model[0].weight.layout is None
    names = {"hf": hf, "step": step, "model": model}
    exec(best.code, names)
    assert names["step"].cost(x).against_xla().xla_peak == best.peak
    losses = [float(names["step"](x)) for _ in range(3)]
    other, _, eager = setting()
    np.testing.assert_allclose(losses, [float(eager(x)) for _ in range(3)], rtol=1e-4)
    assert (model[2].weight.layout, other[2].weight.layout) == (("data", None), None)


def test_fewer_devices_if_that_is_said():
    model, _, step = setting()
    found = hf.advise(step, hf.TensorSpec((64, 32)), memory="1 KiB", model=model, devices=2)
    assert [one.devices for one in found.plans if one.devices > 1] == [2]
    assert found.best is None


def test_layers_that_need_another_mesh_are_a_note():
    model = nn.Sequential(nn.Linear(32, 64, layouts="column:model"), hf.tanh, nn.Linear(64, 4))
    found = hf.advise(lambda x: hf.mean(model(x)), hf.TensorSpec((64, 32)), memory="1 GiB", model=model)
    assert any("FSDP over 2 devices: " in note and "model" in note for note in found.notes)

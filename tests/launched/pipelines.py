"""Processes run a pipeline by every schedule; each prints how far loss and gradients are from one device's."""

from __future__ import annotations

import numpy as np

import hybridflow as hf
from hybridflow import nn

hf.distribute.initialize(step_timeout="60s")
hf.random.seed(0)
stages = [nn.Sequential(nn.Linear(16, 16), nn.gelu) for _ in range(hf.distribute.process_count())]
x, target = np.random.default_rng(0).normal(size=(2, 16, 16)).astype("float32")
mesh = hf.Mesh({"stage": -1})
for schedule in ("gpipe", "1f1b"):

    def step(x, target):
        with hf.GradientTape() as tape:
            loss = hf.distribute.pipeline(
                stages, x, target, loss=lambda y, t: hf.mean((y - t) ** 2), microbatches=8,
                schedule=schedule,  # noqa: B023 (it is called in this turn only)
            )
        return [loss, *tape.gradient(loss, [stage[0].weight for stage in stages])]

    alone, together = step(x, target), hf.compile(step, mesh=mesh)(x, target)
    gathered = [hf.distribute.gather(one).numpy() for one in together]
    gaps = [abs(np.asarray(one) - other).max() for one, other in zip(alone, gathered, strict=True)]
    print("gap", schedule, max(gaps), flush=True)

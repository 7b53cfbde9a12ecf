"""Processes train one model for 50 steps in every layout; process 0 prints the losses."""

from __future__ import annotations

import json
import sys

import numpy as np

import hybridflow as hf
from hybridflow import nn

hf.distribute.initialize(step_timeout="60s")
x = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
y = (x.sum(axis=1) > 0).astype("int32")
for how in sys.argv[1:]:
    hf.random.seed(0)
    mesh = None if how == "one" else hf.Mesh({"model" if how == "tp" else "data": -1})
    batch = "data" if how in ("dp", "fsdp") else None
    columns, rows = ("column:model", "row:model") if how == "tp" else (None, None)
    model = nn.Sequential(nn.Linear(16, 64, layouts=columns), nn.relu, nn.Linear(64, 8, layouts=rows))
    if mesh is not None and how != "dp":
        hf.distribute.shard(model, mesh, fsdp="data" if how == "fsdp" else None)
    optimizer = hf.optim.AdamW(model, rate=0.01, clip=1.0)

    @hf.compile(mesh=mesh, batch=batch)
    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(model(x), y))  # noqa: B023 (it is called in this turn only)
        optimizer.update(tape.gradient(loss, model))  # noqa: B023
        return loss

    batches = hf.data.Batches((x, y), 16, shuffle=True, seed=1, shard=mesh if batch else None)
    losses = [step(*pair).item() for _ in range(13) for pair in batches][:50]
    if hf.distribute.process_index() == 0:
        print(json.dumps([how, losses]), flush=True)

"""A training run with checkpoints: ``trains.py DIRECTORY LAYOUT STEPS [DIE_AT PROCESS]``; it prints every loss."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np

import hybridflow as hf
from hybridflow import nn

if "FORCED_DEVICES" in os.environ:
    hf.distribute.cpu_devices(int(os.environ["FORCED_DEVICES"]))
hf.distribute.initialize(step_timeout="20s")
directory, how, steps = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
deaths = [int(one) for one in sys.argv[4].split(",")] if len(sys.argv) > 4 else []
dies = int(sys.argv[5]) if len(sys.argv) > 5 else 0
hf.random.seed(3)
x = np.random.default_rng(0).normal(size=(83, 16)).astype("float32")  # the last batch of 16 has 3 rows
y = (x.sum(axis=1) > 0).astype("int32")
mesh = None if how == "one" else hf.Mesh({"model" if how == "tp" else "data": -1})
batch = "data" if how in ("dp", "fsdp") else None
columns, rows = ("column:model", "row:model") if how == "tp" else (None, None)
model = nn.Sequential(nn.Linear(16, 64, layouts=columns), nn.relu, nn.Dropout(0.1), nn.Linear(64, 8, layouts=rows))
if mesh is not None and how != "dp":
    hf.distribute.shard(model, mesh, fsdp="data" if how == "fsdp" else None)
optimizer = hf.optim.AdamW(model, rate=0.01, clip=1.0)
data = hf.data.Batches((x, y), 16, shuffle=True, seed=5, shard=mesh if batch else None)


@hf.compile(mesh=mesh, batch=batch)
def step(x, y):
    with hf.GradientTape() as tape:
        loss = hf.mean(nn.softmax_cross_entropy(model(x), y))
    optimizer.update(tape.gradient(loss, model))
    return loss


run = hf.train.Run(directory, model=model, optimizer=optimizer, data=data, progress=False)
index = hf.distribute.process_index()
for x, y in run.steps(steps):
    loss = step(x, y)
    run.log(loss=loss)
    if index == 0:
        print(f"loss {run.step} {loss.item().hex()}", flush=True)
    if "SLOW" in os.environ:
        time.sleep(0.05)
    if run.every(10):
        run.checkpoint(keep=2)
    died = directory / f"died-{run.step}"
    if run.step in deaths and index == dies and not died.exists():  # once, if the run is started again
        died.touch()
        run.wait()
        os.kill(os.getpid(), signal.SIGKILL)
run.close()
if index == 0:
    print("done", flush=True)

"""Two processes whose programs differ in the way that is asked for: both must raise, and no Variable may change."""

from __future__ import annotations

import sys

import numpy as np

import hybridflow as hf

hf.distribute.initialize(step_timeout="20s")
how = sys.argv[1]
index = hf.distribute.process_index()
mesh = hf.Mesh({"data": -1})
v = hf.Variable(np.ones(4, np.float32), name="v", layout=("data",), mesh=mesh)
w = hf.Variable(np.ones(4, np.float32), name="w")
rows = 8 if how == "shape" and index else 4
constant = 3.0 if how == "constant" and index else 2.0
rate = 0.2 if how == "value" and index else 0.1
x = np.ones((rows, 2), np.float32)
if how == "batch" and index:
    x[3, 1] = 7.0


@hf.compile(mesh=mesh, batch="data")
def first(x, rate):
    v.assign_add(rate * hf.sum(x) * hf.ones_like(v))
    w.assign_add(hf.ones_like(w))
    return hf.sum(x) * constant


@hf.compile(mesh=mesh, batch="data")
def second(x, rate):
    v.assign_sub(rate * hf.mean(x) * hf.ones_like(v))
    w.assign_sub(hf.ones_like(w))
    return hf.sum(x) + constant


def parts():
    return [part.data.tolist() for part in v.current().addressable_shards], w.numpy().tolist()


functions = [first, second]
if how == "late":  # both programs exist already, and are then called in another order
    for function in functions:
        function(x, rate)
before = parts()
try:
    if how == "initial":
        model = hf.nn.Linear(4, 4)
        model.bias.assign_add(np.full(4, float(index), np.float32))
        hf.distribute.shard(model, mesh, fsdp="data")
    for function in functions[:: -1 if how in ("order", "late") and index else 1]:
        function(x, rate)
except hf.distribute.ProgramsDifferError as error:
    print(f"differ: {error}", flush=True)
else:
    print("no error", flush=True)
print("unchanged" if parts() == before else "CHANGED", flush=True)

"""Two processes whose programs differ in one way after another: both must raise, and no Variable may change."""

from __future__ import annotations

import numpy as np

import hybridflow as hf

hf.distribute.initialize(step_timeout="20s")
index = hf.distribute.process_index()
mesh = hf.Mesh({"data": -1})
v = hf.Variable(np.ones(4, np.float32), name="v", layout=("data",), mesh=mesh)
w = hf.Variable(np.ones(4, np.float32), name="w")


def functions(constant):
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

    return [first, second]


def call(how):
    x = np.ones((8 if how == "shape" and index else 4, 2), np.float32)
    if how == "batch" and index:
        x[3, 1] = 7.0
    both = functions(3.0 if how == "constant" and index else 2.0)
    if how == "late":  # both programs exist in both processes, and are then called in another order
        for function in both:
            function(x, 0.1)
    before = parts()
    try:
        if how == "initial":
            model = hf.nn.Linear(4, 4)
            model.bias.assign_add(np.full(4, float(index), np.float32))
            hf.distribute.shard(model, mesh, fsdp="data")
        if how == "place" and index:
            hf.distribute.barrier("elsewhere")
        for function in both[:: -1 if how in ("order", "late") and index else 1]:
            function(x, 0.2 if how == "value" and index else 0.1)
    except hf.distribute.ProgramsDifferError as error:
        lines = str(error).splitlines()
        assert parts() == before, how
        return " | ".join(line.strip() for line in lines)
    raise AssertionError(f"{how}: no error")


def parts():
    return [part.data.tolist() for part in v.current().addressable_shards], w.numpy().tolist()


for how in ("order", "late", "shape", "constant", "value", "batch", "initial", "place"):
    print(f"{how}: {call(how)}", flush=True)
for function in functions(2.0):  # a caught error leaves processes that can go on together
    function(np.ones((4, 2), np.float32), 0.1)
print("went on", flush=True)

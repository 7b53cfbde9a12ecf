"""Saves a checkpoint after every step, for a test that kills it in the middle of one; prints what it resumed."""

from __future__ import annotations

import sys

import numpy as np

import hybridflow as hf

hf.distribute.cpu_devices(2)
hf.distribute.initialize()
mesh = hf.Mesh({"data": -1})
variables = [hf.Variable(np.zeros((256, 256), np.float32), layout=("data", None), mesh=mesh) for _ in range(8)]
run = hf.train.Run(sys.argv[1], variables=variables, data=[0] * 10**6, progress=False)
values = {float(one) for variable in variables for one in np.unique(hf.distribute.gather(variable).numpy())}
assert values == {float(run.step)}, (values, run.step)  # all parts are of the step that it says
print(f"resumed {run.step}", flush=True)
for _ in run.steps(int(sys.argv[2])):
    for variable in variables:
        variable.assign_add(np.ones((256, 256), np.float32))
    run.checkpoint(keep=2)
    print(f"step {run.step}", flush=True)

"""Times calls of a small program on the devices of all processes, by hybridflow or by jax alone; prints seconds."""

from __future__ import annotations

import sys
import time

import jax
import numpy as np

import hybridflow as hf

hf.distribute.initialize(step_timeout="60s")
side, count = sys.argv[1], int(sys.argv[2])
mesh = hf.Mesh({"data": -1})
x = hf.distribute.from_local(np.ones((4, 64), np.float32), mesh, ("data", None))
if side == "hybridflow":
    call, argument = hf.compile(lambda x: hf.sum(x * 2), mesh=mesh, batch="data"), x
else:
    call, argument = jax.jit(lambda x: (x * 2).sum()), x._value
for _ in range(20):
    jax.block_until_ready(getattr(call(argument), "_value", None))
start = time.perf_counter()
for _ in range(count):
    result = call(argument)
    if side == "jax":
        jax.block_until_ready(result)
if hf.distribute.process_index() == 0:
    print(f"seconds {(time.perf_counter() - start) / count}", flush=True)

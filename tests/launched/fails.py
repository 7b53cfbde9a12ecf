"""Two or more processes train; one of them fails in the way that is asked for, in the middle of a step or between."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np

import hybridflow as hf

hf.distribute.initialize(step_timeout="2s")
how, who, when = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mesh = hf.Mesh({"data": -1})
weight = hf.Variable(np.zeros((256, 256), np.float32), name="weight")


@hf.compile(mesh=mesh, batch="data")
def step(x):
    loss = hf.mean((x @ weight - 1) ** 2)
    weight.assign_sub(0.1 * hf.mean(x) * hf.ones_like(weight))
    return loss


def fail():
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "raise":
        try:
            raise ValueError("a fault of the user's")
        finally:
            sys.stdout.flush()
    elif how == "stuck":
        time.sleep(1000)
    elif how == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif how == "exit":
        sys.exit(5)


x = np.ones((64, 256), np.float32)
for number in range(1000):
    if number == 20:
        print(f"pid {os.getpid()}", flush=True)
        if hf.distribute.process_index() == who:
            print("fails now", flush=True)
            if when == "inside":  # while the main thread is in a step
                threading.Timer(0.003, fail).start()
            else:
                fail()
    step(x)
print("went through", flush=True)

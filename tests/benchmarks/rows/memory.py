"""Memory of a process that goes on training."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

from ..registry import Case, row

STEPS = """
import sys
import numpy as np
import hybridflow as hf

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096 / 1e6

rng = np.random.default_rng(0)
shapes = (784, 128), (128,), (128, 10), (10,)
w1, b1, w2, b2 = variables = [hf.Variable(rng.standard_normal(shape).astype(np.float32) * 0.05) for shape in shapes]
x = hf.asarray(rng.standard_normal((64, 784)).astype(np.float32))
labels = hf.asarray(np.arange(64, dtype=np.int32) % 10)
for step in range(1, int(sys.argv[2]) + 1):
    with hf.GradientTape() as tape:
        logits = hf.nn.relu(x @ w1 + b1) @ w2 + b2
        loss = hf.mean(hf.nn.softmax_cross_entropy(logits, labels))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(gradient * 0.001)
    if step == int(sys.argv[1]):
        early = resident()
print(early, resident())
"""


@row("resident memory after 1000 eager MLP steps", unit="MB", aims={"after 100": 1.02})
def memory_steps(case: Case) -> None:
    if sys.platform != "linux":
        case.skip("reads /proc")
    counts = case.size(("100", "1000"), ("2", "4"))

    @cache
    def measured() -> tuple[float, float]:
        done = subprocess.run([sys.executable, "-c", STEPS, *counts], capture_output=True, text=True, check=True)
        early, late = map(float, done.stdout.split())
        return early, late

    case.ours(lambda: measured()[1], self_timed=True)
    case.peer("after 100", lambda: measured()[0], self_timed=True)

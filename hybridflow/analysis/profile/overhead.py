"""How much time it costs to profile one operation."""

from __future__ import annotations

import time
from functools import cache

import numpy as np

from hybridflow.analysis.profile.recorder import Recorder
from hybridflow.core.context import CONTEXT
from hybridflow.core.dispatch import bind_eagerly
from hybridflow.core.op import REGISTRY
from hybridflow.core.tensor import make_tensor

_TIMES = 200


@cache
def overhead_per_operation() -> float:
    """Return how many seconds longer an operation takes when it is profiled, measured once on a small addition."""
    op, x = REGISTRY["add"], make_tensor(np.ones(8, np.float32))
    recorder, taken = Recorder(), [0.0, 0.0]
    for index, run in enumerate((
        lambda: bind_eagerly(op, (x, x), {}, CONTEXT.get()),
        lambda: recorder.bind(op, (x, x), {}),
    )):
        run()
        best = float("inf")
        for _ in range(_TIMES):
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        taken[index] = best
    return max(taken[1] - taken[0], 0.0)

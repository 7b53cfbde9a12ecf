"""The overhead of `hf.train`'s loops besides the steps."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import hybridflow as hf

from ..registry import Case, row

STEPS = 5000
ALLOWED = 30e-6
"""The extra processor time, in seconds, that a step in a run may take."""


@row("5000 steps in a Run that logs two figures, over a bare loop", aims={"30 us a step": 1.0})
def run_steps(case: Case) -> None:
    steps = case.size(STEPS, 20)
    w, x = hf.Variable(np.zeros(8, np.float32)), hf.asarray(np.ones(8, np.float32))
    directory = Path(case.enter(tempfile.TemporaryDirectory()))
    count = iter(range(1_000_000))

    @hf.compile
    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean((x * w - 1) ** 2)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    def seconds(items: Any, log: Any) -> float:
        start = time.thread_time()
        for item in items:
            log(loss=step(item), rate=0.1)
        hf.synchronize()
        return time.thread_time() - start

    def over() -> float:
        run = hf.train.Run(directory / str(next(count)), data=[x] * 100, variables={"w": w}, progress=False)
        return seconds(run.steps(steps), run.log) - seconds([x] * steps, lambda **values: None)

    case.ours(over, self_timed=True, calls=5)
    case.peer("30 us a step", lambda: steps * ALLOWED, self_timed=True, calls=5)

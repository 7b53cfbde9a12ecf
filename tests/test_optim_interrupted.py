"""An eager update that a signal interrupts changed everything, or nothing."""

from __future__ import annotations

import signal
from collections.abc import Callable
from random import Random
from time import perf_counter
from typing import Any

import numpy as np
import pytest

import hybridflow as hf

SHAPES = [(40, 30), (30,)] * 15 + [(300, 400)]


def interrupted(call: Callable[[], Any], seconds: float) -> bool:
    """Call something, and raise KeyboardInterrupt after a time, as Ctrl-C does; return whether it came in the call."""

    def handler(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            call()
        except KeyboardInterrupt:
            return True
        signal.setitimer(signal.ITIMER_REAL, 0)
        return False
    except KeyboardInterrupt:  # between the call and the end of the timer
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def state_of(variables: list[hf.Variable]) -> list[bytes]:
    return [one.numpy().tobytes() for one in variables]


MAKERS = {
    "sgd": lambda v: hf.optim.SGD(v, 0.1),
    "adamw": lambda v: hf.optim.AdamW(v, 0.1),
    "adadelta": lambda v: hf.optim.Adadelta(v),
    "adafactor": lambda v: hf.optim.Adafactor(v),
    "averaged": lambda v: hf.optim.EMA(v, 0.9),
}


# NumPy 2.1 enters ufuncs by a generator, which an interrupt may leave to the collector, in another context.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("seen", [False, True])
@pytest.mark.parametrize("name", sorted(MAKERS))
def test_an_interrupted_update_is_whole(name: str, seen: bool):
    rng = np.random.default_rng(0)
    variables = [hf.Variable(rng.normal(size=shape).astype(np.float32), name=f"v{i}") for i, shape in enumerate(SHAPES)]
    gradients = [hf.asarray(rng.normal(size=shape).astype(np.float32)) for shape in SHAPES]
    kept = MAKERS[name](variables)

    def call() -> None:
        kept.update() if name == "averaged" else kept.update(gradients)

    call()
    everything = [*variables, *kept.variables()]
    start = perf_counter()
    call()
    whole = perf_counter() - start
    random, hits = Random(1), 0
    for _ in range(60):
        held = [one.read() for one in everything] if seen else None  # then nothing is written in place
        before = state_of(everything)
        if interrupted(call, max(random.random() * whole, 2e-6)):
            hits += 1
            after = state_of(everything)
            changed = [a != b for a, b in zip(before, after, strict=True)]
            if any(changed):  # then all of it is as after an update that nothing interrupts
                for one, value in zip(everything, before, strict=True):
                    one.assign(np.frombuffer(value, one.dtype).reshape(one.shape))
                call()
                assert state_of(everything) == after
        del held
    assert hits > 5

"""Jobs of computational science in the steady state and in the first call, against the same under `jax.jit`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import hybridflow as hf

from ..measure import finish
from ..registry import Case, row
from ..science import JAXS, JOBS, OURS, Job
from .gaussian import TOLERANCE, Data, jitted, ours_of


def compiled(job: Job, arrays: Any) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return the job as a function of hybridflow and of `jax`, neither of which was compiled before."""

    @hf.compile
    def ours(*arrays: Any) -> Any:
        return job.run(OURS, *arrays)

    @jax.jit
    def theirs(*arrays: Any) -> Any:
        return job.run(JAXS, *arrays)

    @hf.compile
    def returned(*xs: Any) -> Any:
        return [x + 0 for x in xs]

    # Both sides take what another program of XLA returned, as the next of many steps does.
    tensors = returned(*map(hf.asarray, arrays))
    given = list(map(jnp.asarray, arrays))
    return lambda: ours(*tensors), lambda: theirs(*given)


def first(make: Callable[[], Callable[[], Any]]) -> Callable[[], float]:
    """Return a function that makes another function and returns the seconds of its first call."""

    def seconds() -> float:
        call = make()
        start = time.perf_counter()
        finish(call())
        return time.perf_counter() - start

    return seconds


def add_rows(name: str, job: Job) -> None:
    """Register both rows of a job."""

    def steady(case: Case) -> None:
        ours, theirs = compiled(job, job.arrays(case.rng, case.smoke))
        case.ours(ours)
        case.peer("jax.jit", theirs)

    def begins(case: Case) -> None:
        arrays = job.arrays(case.rng, case.smoke)
        case.ours(first(lambda: compiled(job, arrays)[0]), self_timed=True)
        case.peer("jax.jit", first(lambda: compiled(job, arrays)[1]), self_timed=True)

    for build, what in ((steady, ""), (begins, ", first call")):
        build.__name__ = f"science_{name}{'_first' if what else ''}"
        row(job.about + what, aims={"jax.jit": 1.1}, tolerance=job.tolerance)(build)


for _name, _job in JOBS.items():
    add_rows(_name, _job)


@row("Gaussian process, 200 points, likelihood + gradients, first call", aims={"jax.jit": 1.1}, tolerance=TOLERANCE)
def science_gaussian_first(case: Case) -> None:
    """Add the sides of the job whose steady state is `gaussian_compiled`."""
    data = Data(case)
    case.ours(first(lambda: hf.compile(ours_of(data))), self_timed=True)
    case.peer("jax.jit", first(lambda: jitted(data)), self_timed=True)

"""Programs known to crash inside jaxlib, each run in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple


class Crash(NamedTuple):
    """A program that crashes some versions of jaxlib.

    Attributes:
        what: what the program does.
        plain: the program in plain jax.
        ours: the same program in hybridflow.
        avoided: how hybridflow avoids the crash.
    """

    what: str
    plain: str
    ours: str
    avoided: str


KNOWN = (
    Crash(
        what="a sum over an axis of a product of f32[3,1,2,2,8,8,8]",
        plain="""
import jax, numpy as np
x = np.ones((3, 1, 2, 2, 8, 8, 8), np.float32)
jax.jit(lambda a, b: (a * b).sum(axis=3))(x, x).block_until_ready()
""",
        ours="""
import hybridflow as hf
x = hf.ones((3, 1, 2, 2, 8, 8, 8))
hf.compile(lambda a, b: hf.sum(a * b, axis=3))(x, x).numpy()
""",
        avoided="its options of XLA leave sums to no library",
    ),
    Crash(
        what="reading a profile where warnings are errors",
        plain="""
import pathlib, tempfile, jax
with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
        pass
    for path in pathlib.Path(folder).rglob("*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            dict(plane.stats)
""",
        ours="""
import hybridflow as hf
with hf.profile():
    hf.compile(lambda x: x + 1)(1.0)
""",
        avoided="it reads profiles without that warning",
    ),
)
"""The first one was seen to crash jaxlib 0.10.2, the second one jaxlib 0.12.0 with Python 3.13."""


def crashes() -> Iterator[Check]:
    """Yield a check per program: a fault if hybridflow crashes, and a remark on whether plain jax does."""
    for crash, (plain, ours) in zip(KNOWN, _ends(), strict=True):
        remark = f"plain jax: {plain}; hybridflow avoids it: {crash.avoided}" if plain else "plain jax survives it too"
        yield Check(f"hybridflow survives {crash.what}", ours, remark)


@cache
def _ends() -> list[tuple[str, str]]:
    """Return how each program ended in plain jax and in hybridflow; an empty text means success."""
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "HYBRIDFLOW_CACHE_DIR": "off",
        "JAX_PLATFORMS": "cpu",
    }
    running = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code], env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for crash in KNOWN for code in (crash.plain, crash.ours)
    ]
    ends = iter([_end(process) for process in running])
    return list(zip(ends, ends, strict=True))


def _end(process: subprocess.Popen[str]) -> str:
    said = process.communicate()[1].strip().splitlines()
    if process.returncode == 0:
        return ""
    if process.returncode < 0:
        return f"the process dies of signal {-process.returncode}"
    return said[-1] if said else f"exit status {process.returncode}"


# -- the result of one check of `hybridflow doctor` -------------------------------------------------------------------


class Check(NamedTuple):
    """The result of one check.

    Attributes:
        what: what was checked.
        fault: what is wrong and how to fix it; empty if nothing is wrong.
        remark: what is worth knowing if nothing is wrong.
    """

    what: str
    fault: str = ""
    remark: str = ""

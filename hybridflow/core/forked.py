"""What a forked process cannot do: XLA's threads, and whatever locks they held, stayed with its parent.

A child forked from a process that has begun to run XLA would wait forever for threads that it does not have, so it is
told. What NumPy's kernels compute goes on working, and so does everything in a child of a process without XLA.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.backend.jax_shim import xla_has_started
from hybridflow.core.errors import ForkError, message
from hybridflow.core.settings import SETTINGS


class _Process:
    """What a process knows of its fork.

    Attributes:
        lost: whether XLA's threads are its parent's.
        read: takes a `jax.Array` and returns it as a NumPy array, waiting for it.
    """

    __slots__ = ("lost", "read")

    def __init__(self) -> None:
        self.lost = False
        self.read: Callable[[Any], np.ndarray[Any, Any]] = np.asarray

    def forked(self) -> None:
        """Take note, in the child, of what it does not have."""
        if xla_has_started():
            self.lost = True
            self.read = _read_if_there
            SETTINGS.forbid_runs()


PROCESS = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS.forked)


def require_xla(what: str) -> None:
    """Raise if XLA cannot run here.

    Args:
        what: what would run it.

    Raises:
        ForkError: in a process that was forked from one in which XLA ran.
    """
    if PROCESS.lost:
        raise ForkError(
            message(
                f"{what} runs XLA, which cannot run in this process: it was forked from one that runs XLA, and has "
                "none of its threads",
                hint="Start it by multiprocessing.get_context('spawn') or 'forkserver'. NumPy kernels work "
                "here; everything does if XLA had not begun, which it does when needed with JAX_PLATFORMS=cpu.",
            )
        )


def _read_if_there(value: Any) -> np.ndarray[Any, Any]:
    if not value.is_ready():
        require_xla("a result that was not computed yet when the process was forked")
    return np.asarray(value)

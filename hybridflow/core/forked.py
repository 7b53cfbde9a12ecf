"""Errors instead of deadlocks in a forked process: XLA's threads do not survive the fork.

If XLA had started before the fork, the child would wait forever for threads that it does not have, so it raises
instead. NumPy kernels still work there. In a child of a process without XLA everything works.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from hybridflow.backend.jax_shim import xla_has_started
from hybridflow.core.errors import ForkError
from hybridflow.core.out_of_memory import read_array
from hybridflow.core.settings import SETTINGS


class _Process:
    """The state of this process after a fork.

    Attributes:
        lost: whether XLA's threads were lost in the fork.
        read: the function that returns a `jax.Array` as a NumPy array, waiting for it.
    """

    __slots__ = ("lost", "read")

    def __init__(self) -> None:
        self.lost = False
        self.read: Callable[[Any], np.ndarray[Any, Any]] = read_array

    def forked(self) -> None:
        """In the child: note that XLA's threads are lost, if it had started."""
        if xla_has_started():
            self.lost = True
            self.read = _read_if_there
            SETTINGS.forbid_runs()


    def one_of_several(self, read: Callable[[Any], np.ndarray[Any, Any]]) -> None:
        """Read values by a function from now on that knows of other processes."""
        self.read = read


PROCESS = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=PROCESS.forked)


def require_xla(what: str) -> None:
    """Raise if XLA cannot run here.

    Args:
        what: the name of what would run it, for the message.

    Raises:
        ForkError: if the process was forked from one that had started XLA.
    """
    if PROCESS.lost:
        raise ForkError(
            f"{what} runs XLA, which cannot run in this process: it was forked from one that runs XLA, and has "
            "none of its threads",
            hint="Start it by multiprocessing.get_context('spawn') or 'forkserver'. NumPy kernels work "
                 "here; everything does if XLA had not begun, which it does when needed with JAX_PLATFORMS=cpu."
        )


def _read_if_there(value: Any) -> np.ndarray[Any, Any]:
    if not value.is_ready():
        require_xla("a result that was not computed yet when the process was forked")
    return read_array(value)

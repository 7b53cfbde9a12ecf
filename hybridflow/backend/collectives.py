"""Programs on several devices: the mesh they are lowered for, and the guard around their calls on CPUs."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, cast

import jax

LOWERED_FOR: ContextVar[Any] = ContextVar("hybridflow mesh", default=None)
"""The mesh of the program that is being lowered, or None."""
BATCH_AXES: ContextVar[tuple[str, ...]] = ContextVar("hybridflow batch axes", default=())
"""The mesh axes over which the batch of the program that is being lowered is split."""

_RUNNING = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=cast(Any, _RUNNING)._at_fork_reinit)  # its holder is not in the child


def run_alone(run: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """Run a program with collectives on CPU devices, and wait until it ends.

    XLA runs the parts of a program in one pool of threads, and each part of a collective waits in a thread for the
    other parts. If several programs are under way, their parts can take all threads and wait for one another for good.
    """
    with _RUNNING:
        outputs = run(*arrays)
        jax.block_until_ready(outputs)
    return outputs

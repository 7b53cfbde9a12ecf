"""Waiting for calls that run in the background."""

from __future__ import annotations

from hybridflow.backend.jax_shim import wait_for_everything
from hybridflow.core.forked import PROCESS
from hybridflow.core.pending import settle_calls


def synchronize() -> None:
    """Wait for all pending work: compiled calls return before their results are there.

    To time some work, call this before and after it. Errors of this thread's compiled calls that were not raised yet
    are raised here.

    Example:
        >>> import time
        >>> import hybridflow as hf
        >>> f = hf.compile(lambda x: x @ x)
        >>> x = hf.asarray([[1.0, 2.0], [3.0, 4.0]])
        >>> start = time.perf_counter()
        >>> y = f(x)
        >>> hf.synchronize()
        >>> elapsed = time.perf_counter() - start
    """
    if not PROCESS.lost:  # a forked process does not wait for work that its parent began
        wait_for_everything()
    settle_calls()

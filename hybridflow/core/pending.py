"""Checks of compiled calls that are still running.

A compiled call returns before XLA has run it. The outcome of its checks is one more output, which is read at the first
of these events:

- the thread that made the call reads any result;
- any thread reads one of the call's own results;
- the same trace is called again, and the outcome is known by then, at most `MOST` calls later.

To read one bool from an accelerator takes longer than many programs run. There, outcomes are left alone until a result
is read or a trace has `MOST_AWAY` of them, which are then read together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp

from hybridflow.core.device import default_is_host, device_of, is_host
from hybridflow.core.forked import PROCESS, require_xla

MOST = 16
"""The largest number of unsettled calls of one trace."""
FEWEST = 8
"""How many of them are left after a wait for the others."""
MOST_AWAY = 64
"""The largest number on an accelerator."""


class PendingChecks:
    """The checks of one call of a compiled function, whose outcomes may not be computed yet.

    Args:
        flags: whether each check held, bool of shape () or (n,): a `jax.Array` that may not be computed yet.
        owner: the trace that was called.
        fail: raises the error of the first check that is False.
    """

    __slots__ = ("_fail", "flags", "owner")

    def __init__(self, flags: Any, owner: object, fail: Callable[[Any], None]) -> None:
        self.flags = flags
        self.owner = owner
        self._fail = fail

    def settle(self, known: Any = None) -> None:
        """Wait for the outcome, unless it is known; raise if a check failed."""
        self.forget()
        flags = PROCESS.read(self.flags) if known is None else known
        if not flags.all():
            self._fail(flags)

    def forget(self) -> None:
        """Remove the call from the thread's list; only its own results will still settle it."""
        calls = LOCAL.calls
        if self in calls:
            calls.remove(self)

    def later(self) -> None:
        """Settle the checks now if the outcome is known, else later."""
        if self.flags.is_ready() and not _is_away(self.flags):
            self.settle()
        else:
            LOCAL.calls.append(self)


class _Local(threading.local):
    """The unsettled calls of one thread."""

    calls: list[PendingChecks]

    def __init__(self) -> None:
        super().__init__()
        self.calls = []


LOCAL = _Local()


def settle_calls() -> None:
    """Settle the calls of this thread.

    Raises:
        HybridflowError: if a check failed.
    """
    calls = tuple(LOCAL.calls)
    if len(calls) > 1 and _is_away(calls[0].flags):
        for call in calls:
            call.flags.copy_to_host_async()
    for call in calls:
        call.settle()


def settle_known(owner: object) -> None:
    """Settle the calls of one trace whose outcome is known; wait for a call only if there are too many.

    Waiting for every call would keep a training step from overlapping with Python.

    Raises:
        HybridflowError: if a check failed.
    """
    calls = [call for call in LOCAL.calls if call.owner is owner]
    if calls and _is_away(calls[0].flags):
        if len(calls) >= MOST_AWAY:
            _settle_together(calls)
        return
    waited = len(calls) - FEWEST if len(calls) > MOST else 0
    if waited:  # to wait for each call in turn would change threads at each call
        with suppress(Exception):  # an earlier call may have an error too, and that is raised
            PROCESS.read(calls[waited - 1].flags)
    for number, call in enumerate(calls):
        if number >= waited and not call.flags.is_ready():
            break  # later calls are not ready either
        call.settle()


def _is_away(flags: Any) -> bool:
    """Whether an outcome is on an accelerator."""
    return not (default_is_host() or is_host(device_of(flags)))


def _settle_together(calls: list[PendingChecks]) -> None:
    """Settle calls of one trace after one transfer of all their outcomes.

    Raises:
        HybridflowError: if a check failed.
    """
    require_xla("reading the checks of compiled calls")
    flags = PROCESS.read(_stacked(*[call.flags for call in calls]))
    for call, outcome in zip(calls, flags, strict=True):
        call.settle(outcome)


_stacked = jax.jit(lambda *flags: jnp.stack(flags))

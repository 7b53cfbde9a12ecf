"""Checks of compiled calls whose outcome nobody has waited for yet.

A compiled call returns before XLA has run it. Whether its checks held is one more output, which is looked at when a
result is read in the thread that made the call, when one of the call's own results is read anywhere, or when the same
trace is called again and the outcome is known by then, at most `MOST` calls later; whichever comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from hybridflow.core.forked import PROCESS

MOST = 16
"""How many calls of a trace may be unsettled."""


class PendingChecks:
    """The checks of one call.

    Args:
        flags: bool, shape () or (n,): whether each check held; a `jax.Array` that may not be computed yet.
        owner: the trace that was called.
        fail: raises the error of the first check that is False.
    """

    __slots__ = ("_fail", "flags", "owner")

    def __init__(self, flags: Any, owner: object, fail: Callable[[Any], None]) -> None:
        self.flags = flags
        self.owner = owner
        self._fail = fail

    def settle(self) -> None:
        """Wait for the outcome; raise if a check failed."""
        self.forget()
        flags = PROCESS.read(self.flags)
        if not flags.all():
            self._fail(flags)

    def forget(self) -> None:
        """Have nobody but the call's own results ask again."""
        calls = LOCAL.calls
        if self in calls:
            calls.remove(self)

    def later(self) -> None:
        """Raise at once if the outcome is known; have it settled later otherwise."""
        if self.flags.is_ready():
            self.settle()
        else:
            LOCAL.calls.append(self)


class _Local(threading.local):
    """The calls of one thread that are not settled."""

    calls: list[PendingChecks]

    def __init__(self) -> None:
        super().__init__()
        self.calls = []


LOCAL = _Local()


def settle_calls() -> None:
    """Settle the calls of this thread.

    Raises:
        HybridflowError: a check failed.
    """
    for call in tuple(LOCAL.calls):
        call.settle()


def settle_known(owner: object) -> None:
    """Settle those calls of one trace whose outcome is known; wait only for the oldest of many.

    Waiting for each call before the next one would cost a training step its overlap with Python.

    Raises:
        HybridflowError: a check failed.
    """
    calls = [call for call in LOCAL.calls if call.owner is owner]
    for number, call in enumerate(calls):
        if not call.flags.is_ready() and number >= len(calls) - MOST:
            break  # nor are those after it
        call.settle()

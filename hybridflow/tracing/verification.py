"""What a compiled function knows of its verified calls; see `hf.config.verify`."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar

from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.settings import SETTINGS, check_every

RERUN: ContextVar[bool] = ContextVar("a verified call is run as Python", default=False)


@contextmanager
def rerunning() -> Generator[None]:
    """Run compiled functions as Python in a ``with`` block, in this thread only."""
    token = RERUN.set(True)
    SETTINGS.rerun(1)
    try:
        yield
    finally:
        SETTINGS.rerun(-1)
        RERUN.reset(token)


class Verification:
    """Counts the calls of one compiled function, and what became of those that were to be verified.

    Args:
        every: every how many calls one is verified, whatever `hf.config.verify` says; False for never, None for as it
            says.

    Attributes:
        own: `every`.
        diverts: as of `Settings`, for functions with an `every` of their own.

    Raises:
        ArgumentTypeError: `every` is True or no integer.
        ArgumentError: `every` is below 1.
    """

    diverts = True

    def __init__(self, every: int | None) -> None:
        if every is True:
            raise ArgumentTypeError("compile: verify=True does not say every how many calls",
                                    hint="Pass 1 or more, or False.")
        self.own = every if every is None or every is False else check_every("compile: verify", every)
        self._next: Callable[[], int] = itertools.count(1).__next__
        self._calls = self._verified = 0
        self._left_out: Counter[str] = Counter()

    def due(self) -> int | None:
        """Count a call; return its number if it is to be verified."""
        every = SETTINGS.verify if self.own is None else self.own
        if not every:
            return None
        self._calls = number = self._next()
        return None if number % every else number

    def passed(self) -> None:
        """Note that a call was the same both ways."""
        self._verified += 1

    def leave_out(self, reason: str) -> None:
        """Note that a call is not verified."""
        self._left_out[reason] += 1

    def lines(self) -> list[str]:
        """Return what `explain` says."""
        lines = [f"verified: {self._verified} of {self._calls} calls, all the same"] if self._calls else []
        if self.own is False:
            lines.append("not verified: verify=False")
        return lines + [f"not verified: {reason} ({count} calls)" for reason, count in self._left_out.items()]

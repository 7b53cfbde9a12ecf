"""Ctrl-C in a loop of steps: the present step is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Handles Ctrl-C while a loop runs in the main thread, unless the program has a handler of its own.

    The first Ctrl-C within a step is remembered, and raised when the step is done. A second one is raised at once. So
    is every Ctrl-C between steps.

    Attributes:
        in_step: whether a step is running.
    """

    __slots__ = ("_before", "_held", "_notice", "in_step")

    def __init__(self, notice: Any) -> None:
        self._notice = notice
        self._held = False
        self.in_step = False
        self._before: Any = None

    def begin(self) -> None:
        """Handle Ctrl-C from now on."""
        self.in_step = self._held = False
        main = threading.current_thread() is threading.main_thread()
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._take)

    def end(self) -> None:
        """Restore Python's own handling of Ctrl-C."""
        before, self._before = self._before, None
        if before is not None:
            signal.signal(signal.SIGINT, before)

    def step_ends(self) -> None:
        """End the step, and raise the Ctrl-C that came during it.

        Raises:
            KeyboardInterrupt: Ctrl-C came during the step.
        """
        self.in_step = False
        if self._held:
            self._held = False
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Generator[None]:
        """Return a context that Ctrl-C lets finish, like a step."""
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False
        self.step_ends()

    def _take(self, number: int, frame: Any) -> None:
        if not self.in_step or self._held:
            raise KeyboardInterrupt
        self._held = True
        self._notice()

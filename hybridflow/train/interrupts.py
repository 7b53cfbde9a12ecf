"""Ctrl-C and SIGTERM in a loop of steps: the present step is finished first, in all processes of a run the same one."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from hybridflow.core.processes.member import member


class Terminated(SystemExit):
    """SIGTERM, after the present step; it ends the program with the exit code that shells expect then."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Interrupts:
    """Handles Ctrl-C and SIGTERM while a loop runs in the main thread, unless the program has handlers of its own.

    The first one within a step is remembered, and raised when the step is done. A second one is raised at once. So is
    every one between steps. Of several processes, all stop after the same step, whichever got the signal.

    Attributes:
        in_step: whether a step is running.
    """

    __slots__ = ("_before", "_held", "_notice", "_together", "in_step")

    def __init__(self, notice: Any) -> None:
        self._notice = notice
        self._held: int | None = None
        self._together = member()
        self.in_step = False
        self._before: dict[int, Any] = {}

    def begin(self) -> None:
        """Handle the signals from now on."""
        self.in_step, self._held = False, None
        if threading.current_thread() is not threading.main_thread():
            return
        for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
            if signal.getsignal(number) is usual:
                self._before[number] = signal.signal(number, self._take)

    def end(self) -> None:
        """Restore the system's own handling of the signals."""
        while self._before:
            signal.signal(*self._before.popitem())

    def begin_step(self) -> None:
        """Begin a step, unless all processes stop before it.

        Raises:
            KeyboardInterrupt, Terminated: they do.
        """
        if self._together is not None and not self._together.begins_step():
            number, self._held = self._held, None
            raise _exception(number or signal.SIGTERM)
        self.in_step = True

    def step_ends(self) -> None:
        """End the step, and raise what came during it.

        Raises:
            KeyboardInterrupt: Ctrl-C came during the step.
            Terminated: SIGTERM did.
        """
        self.in_step = False
        if self._held is not None and self._together is None:
            number, self._held = self._held, None
            raise _exception(number)

    @contextmanager
    def held(self) -> Generator[None]:
        """Return a context that the signals let finish, like a step."""
        self.in_step = True
        try:
            yield
        finally:
            self.in_step = False
        self.step_ends()

    def _take(self, number: int, frame: Any) -> None:
        if self._held is not None or (not self.in_step and self._together is None):
            raise _exception(number)
        self._held = number
        if self._together is not None:
            self._together.ask_to_stop()
        self._notice(signal.Signals(number).name)


def _exception(number: int) -> BaseException:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()

"""Starting the processes of a run on this machine, passing on what they print, and ending all of them."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import IO, Any, cast

from hybridflow.core.processes.environment import COORDINATOR, COUNT, DEVICES, HOSTED, INDEX, LOCAL, TOKEN
from hybridflow.core.processes.host import Coordinator

_GRACE = 2.0
"""Seconds in which processes end by themselves after one of them was lost."""
_PATIENCE = 60.0
"""Seconds in which they end by themselves, with a checkpoint, after Ctrl-C or SIGTERM."""
_TICK = 0.05
_BOUND = (
    "import ctypes,os,signal,sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGKILL)\n"
    "os.getppid() == int(sys.argv[1]) or os._exit(1)\n"
    "os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"
)
"""On Linux, the kernel ends a process together with its launcher, however that one ends."""


class _Child:
    """A process of the run.

    Args:
        index: its number.
        process: it.
    """

    def __init__(self, index: int, process: subprocess.Popen[bytes]) -> None:
        self.index = index
        self.process = process
        self.rests = {1: b"", 2: b""}

    def signal(self, number: int, *, group: bool = False) -> None:
        """Send a signal to the process, or to all that it has started too."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if group:
                os.killpg(self.process.pid, number)
            elif self.process.poll() is None:
                self.process.send_signal(number)

    def ending(self) -> str:
        """Return how it ended, as words."""
        code = self.process.returncode
        if code == 0:
            return "has ended as it should"
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class Launcher:
    """The processes of a run on this machine.

    Args:
        command: the script and its arguments, as Python takes them.
        devices: the number of CPU devices of each process; None leaves it to jax.
        say: prints a line about the run.
    """

    def __init__(self, command: Sequence[str], devices: int | None, say: Callable[[str], None]) -> None:
        self._command = list(command)
        self._devices = devices
        self._say = say
        self._signals: list[int] = []
        self._sent = 0

    def run(self, count: int, restarts: int, least: int | None) -> int:
        """Run the processes to their end, and return the exit code.

        Args:
            count: their number.
            restarts: how often they are started again after one was lost.
            least: the number of processes, at least, with which the run goes on without those that were lost; None
                starts all of them again.
        """
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            for attempt in range(restarts + 1):
                code, lost = self._once(count)
                if code == 0 or self._signals or attempt == restarts:
                    return code
                count = count if least is None else max(least, count - lost)
                self._say(f"restart {attempt + 1} of {restarts}, with {count} processes")
            return 1
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: Any) -> None:
        self._signals.append(number)

    def _once(self, count: int) -> tuple[int, int]:
        """Run the processes once; return the exit code, and how many were lost by themselves."""
        token = secrets.token_hex(16)
        coordinator = Coordinator("127.0.0.1:0", count, token)
        children: list[_Child] = []
        address = coordinator.board.address
        try:
            children.extend(self._start(index, count, address, token) for index in range(count))
            self._until_ended(children, coordinator)
        finally:
            for child in children:
                child.signal(signal.SIGKILL, group=True)  # also what it has started
                child.process.wait()
                for stream in (child.process.stdout, child.process.stderr):
                    cast("IO[bytes]", stream).close()
            coordinator.close()
        return self._result(children, coordinator)

    def _start(self, index: int, count: int, address: str, token: str) -> _Child:
        environment = {
            **os.environ, COORDINATOR: address, INDEX: str(index), COUNT: str(count), TOKEN: token, HOSTED: "1",
            LOCAL: str(index), "PYTHONUNBUFFERED": "1",
        }
        if self._devices is not None:
            environment[DEVICES] = str(self._devices)
        command = [sys.executable, *self._command]
        if sys.platform == "linux":
            command = [sys.executable, "-S", "-E", "-c", _BOUND, str(os.getpid()), *self._command]
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return _Child(index, process)

    def _until_ended(self, children: list[_Child], coordinator: Coordinator) -> None:
        """Pass on what processes print until all have ended; end them if one fails or a signal comes."""
        failed_at: float | None = None
        with selectors.DefaultSelector() as select:
            for child in children:
                for number, stream in ((1, child.process.stdout), (2, child.process.stderr)):
                    os.set_blocking(cast("IO[bytes]", stream).fileno(), False)
                    select.register(cast("IO[bytes]", stream), selectors.EVENT_READ, (child, number))
            while any([child.process.poll() is None for child in children]):
                self._pass_on(select, _TICK)
                now = time.monotonic()
                self._pass_signals(children)
                lost: _Child | None = next((child for child in children if child.process.poll()), None)
                ends = lost is not None or coordinator.board.verdict is not None or bool(self._signals)
                if failed_at is None and ends:
                    failed_at = now
                if lost is not None and not self._signals:
                    coordinator.board.say_later(f"process {lost.index} {lost.ending()}", lost.index)
                limit = _PATIENCE if self._signals else _GRACE
                if failed_at is not None and now - failed_at > limit:
                    for child in children:
                        child.signal(signal.SIGKILL, group=True)
            self._pass_on(select, 0.0)
            for child in children:
                for number in (1, 2):
                    self._print(child, number, b"" if not child.rests[number] else b"\n")

    def _pass_signals(self, children: list[_Child]) -> None:
        """Hand a signal on; a third one ends the processes at once."""
        while self._sent < len(self._signals):
            number = self._signals[self._sent]
            self._sent += 1
            for child in children:
                child.signal(number if self._sent < 3 else signal.SIGKILL)

    def _pass_on(self, select: selectors.BaseSelector, wait: float) -> None:
        """Print whole lines that have arrived."""
        if not select.get_map():
            time.sleep(wait)
            return
        for key, _ in select.select(wait):
            child, number = key.data
            while True:
                try:
                    received = os.read(key.fd, 1 << 16)
                except BlockingIOError:
                    break
                if not received:
                    select.unregister(key.fileobj)
                    break
                self._print(child, number, received)

    def _print(self, child: _Child, number: int, received: bytes) -> None:
        *lines, child.rests[number] = (child.rests[number] + received).split(b"\n")
        stream = sys.stdout if number == 1 else sys.stderr
        for line in lines:
            stream.write(f"[{child.index}] {line.decode(errors='replace')}\n")
        stream.flush()

    def _result(self, children: list[_Child], coordinator: Coordinator) -> tuple[int, int]:
        """Say how each process ended, and return the exit code of the first that failed."""
        codes = [child.process.returncode for child in children]
        if not any(codes):
            return 0, 0
        verdict = coordinator.board.verdict
        cause = next((i for i, code in enumerate(codes) if code), 0) if verdict is None else verdict[1]
        if verdict is not None:
            self._say(verdict[0])
        for child in children:
            self._say(f"process {child.index} {child.ending()}")
        if self._signals:
            return 128 + self._signals[0], 0
        code = codes[cause] or next(code for code in codes if code)
        return (128 - code if code < 0 else code), 1

"""This process as one of several: meeting the others, and ending with them."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, cast

from hybridflow.core.errors import DeviceLostError, HybridflowError, ProgramsDifferError
from hybridflow.core.processes.environment import Place
from hybridflow.core.processes.wire import Line, encoded, split_address

_GRACE = 1.2
"""Seconds in which a process may end by itself, after another one was lost; then it is ended."""
_LOST = 70
"""The exit code of a process that ends since another one was lost."""
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Member:
    """This process as one of several.

    Args:
        place: which one it is.
        step_timeout: the seconds after which processes that others wait for count as stuck.

    Attributes:
        place: the same.
        service: the address of jax's service.
        inside: when the main thread began to run a program with the others; None if it does not.
    """

    def __init__(self, place: Place, step_timeout: float) -> None:
        self.place = place
        self._timeout = step_timeout
        self._meeting = threading.RLock()
        self._stopping = threading.Condition()
        self._begun = 0
        self._asked_to_stop = False
        self._stop_at: int | None = None
        self._lost: str | None = None
        self._failed = self._told = False
        self._main = threading.main_thread().ident
        self.inside: float | None = None
        self._call, self._watch = self._connect("call"), self._connect("watch")
        threading.Thread(target=self._follow, name="hybridflow-watch", daemon=True).start()
        threading.Thread(target=self._look, name="hybridflow-overdue", daemon=True).start()
        self._hook = sys.excepthook
        sys.excepthook = self._raised

    def ready(self) -> None:
        """Take part from now on: when the program ends, leave together, before jax waits for the others."""
        atexit.register(self._leave)

    def _connect(self, kind: str) -> Line:
        import socket  # a single process needs none

        until = time.monotonic() + max(self._timeout, 60.0)
        while True:
            try:
                line = Line(socket.create_connection(split_address(self.place.coordinator), timeout=10))
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise DeviceLostError(
                        f"initialize: nobody answers at {self.place.coordinator}", got=str(error),
                        hint="Process 0 runs the coordinator there; does it run, and does a firewall allow it?"
                    ) from None
                time.sleep(0.1)
        line.socket.settimeout(None)
        line.send({"hello": self.place.index, "kind": kind, "token": self.place.token, "timeout": self._timeout})
        welcome = line.receive() or {"refused": "the coordinator is gone"}
        if "refused" in welcome:
            raise DeviceLostError(f"initialize: {welcome['refused']}", got=f"process {self.place.index}")
        self.service = welcome["service"]
        return line

    # -- meeting ------------------------------------------------------------------------------------------------------

    def meet(self, request: bytes, texts: Callable[[], Sequence[str]] | None = None) -> list[Any]:
        """Wait until all processes have come with the same request, and return what each has brought.

        Args:
            request: a message with ``meet``, a digest and perhaps a value, encoded.
            texts: returns what the digest is of, line by line, to say what differs.

        Raises:
            ProgramsDifferError: the others have come for something else.
            DeviceLostError: another process is lost.
        """
        with self._meeting:
            reply = self._asked(request)
            if "differs" in reply:
                first = ""
                if reply["texts"]:
                    lines = [] if texts is None else list(texts())
                    first = self._asked(encoded({"meet": "texts", "lines": lines}))["values"][0]
                raise ProgramsDifferError(reply["differs"] + (f"\n  {first}" if first else ""),
                                          hint="Every process must run the same program with the same Python values.")
            return reply.get("values", [])

    def _asked(self, request: bytes) -> dict[str, Any]:
        if self._lost is not None:
            raise self._lost_error(self._lost)
        try:
            self._call.send(request)
            reply = self._call.receive()
        except OSError:
            reply = None
        if reply is None:
            raise self._lost_error("the coordinator is gone: process 0's machine or the launcher has ended")
        if "lost" in reply:
            self._lost = reply["lost"]
            raise self._lost_error(reply["lost"])
        return reply

    def _lost_error(self, sentence: str) -> DeviceLostError:
        self._failed = True
        return DeviceLostError(sentence, hint=f"So process {self.place.index} cannot go on.")

    def broadcast(self, what: str, value: Any) -> Any:
        """Return process 0's value, of JSON's types."""
        return self.meet(encoded({"meet": what, "value": value}))[0]

    def compare(self, what: str, digest: str, texts: Callable[[], Sequence[str]]) -> None:
        """Raise if a digest is not the same in all processes; see `meet`."""
        self.meet(encoded({"meet": "compare", "name": what, "digest": digest}), texts)

    @contextmanager
    def running(self) -> Generator[None]:
        """Run a program with the others; what the transport raises when another process is lost says so.

        Raises:
            DeviceLostError: another process is lost.
        """
        self.inside = time.monotonic()
        try:
            yield
        except Exception as error:
            if isinstance(error, HybridflowError) or not _is_transport(error):
                raise
            until = time.monotonic() + _GRACE  # the board says which process it was
            while self._lost is None and time.monotonic() < until:
                time.sleep(0.02)
            raise self._lost_error(self._lost or "the connection to another process broke") from error
        finally:
            self.inside = None

    # -- stopping at one step -----------------------------------------------------------------------------------------

    def ask_to_stop(self) -> None:
        """Ask all processes to stop after the same step; safe in a signal handler."""
        threading.Thread(target=self._report_begun, daemon=True).start()

    def _report_begun(self) -> None:
        with self._stopping:
            if self._asked_to_stop:
                return
            self._asked_to_stop = True
            begun = self._begun
        self._tell({"stop": begun})

    def begins_step(self) -> bool:
        """Count a step that is about to begin; return False if all processes stop before it."""
        with self._stopping:
            while self._asked_to_stop and self._stop_at is None and self._lost is None:
                self._stopping.wait(0.1)
            if self._stop_at is not None and self._begun >= self._stop_at:
                self._asked_to_stop, self._stop_at = False, None
                return False
            self._begun += 1
            return True

    # -- watching -----------------------------------------------------------------------------------------------------

    def _tell(self, what: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._watch.send(what)

    def _follow(self) -> None:
        """Answer the board, and end with the others."""
        while True:
            messages = self._watch.arrived()
            for one in messages or ():
                if "where?" in one:
                    self._tell({"where": self.where()})
                elif "stop?" in one:
                    self._report_begun()
                elif "stop at" in one:
                    with self._stopping:
                        self._stop_at = one["stop at"]
                        self._stopping.notify_all()
                elif "end" in one:
                    self._end(one["end"], one["cause"])
            if messages is None:
                if not self._told:
                    self._end("the coordinator is gone: process 0's machine or the launcher has ended", -1)
                return

    def _look(self) -> None:
        """Tell the board if a program with the others takes too long."""
        while True:
            time.sleep(0.25)
            since = self.inside
            if since is not None and time.monotonic() - since > self._timeout:
                self._tell({"overdue": 1})
                return

    def where(self) -> str:
        """Return the user's line that the main thread is in."""
        frame = sys._current_frames().get(cast(int, self._main))
        return place_in(frame)

    def _end(self, sentence: str, cause: int) -> None:
        """End this process, unless it does so by itself in a moment."""
        if self._told:  # the board says what this process has said
            return
        self._lost = sentence
        with self._stopping:
            self._stopping.notify_all()
        time.sleep(_GRACE)
        what = f"so process {self.place.index} ends" if cause != self.place.index else "so it ends"
        sys.stderr.write(f"hybridflow.DeviceLostError: {sentence}\n  {what}, at {self.where()}\n")
        _exit(_LOST)

    def _raised(self, kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
        """Tell the others of an exception that ends this process."""
        self._failed = True
        if isinstance(error, DeviceLostError):
            sys.stderr.write(f"hybridflow.DeviceLostError: {error}\n  at {_last_line(at)}\n")
            return
        if not self._told:
            self._told = True
            text = "".join(traceback.format_exception_only(kind, error)).strip().splitlines()[0][:300]
            self._tell({"raised": f"{text} at {_last_line(at)}"})
        self._hook(kind, error, at)

    def _leave(self) -> None:
        """At the end of the program: wait for the others, or end at once if they cannot come."""
        if not self._failed:
            try:
                self.meet(encoded({"meet": "leave"}))
                self._told = True
                return
            except HybridflowError as error:
                self._told = True
                self._tell({"raised": str(error).splitlines()[0]})
                sys.stderr.write(f"hybridflow.{type(error).__name__}: {error}\n")
        self._told = True
        time.sleep(0.1)  # what was told is on its way
        _exit(_LOST if self._lost is not None else 1)


def _exit(code: int) -> None:
    """End without jax's barrier at exit, which would wait for processes that are gone."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def _is_transport(error: Exception) -> bool:
    """Whether an error is one of XLA's, and not one of the program."""
    return type(error).__name__ in ("XlaRuntimeError", "JaxRuntimeError") or "Gloo" in str(error)


def place_in(frame: FrameType | None) -> str:
    """Return the innermost line outside of this package and the libraries below, as ``file:line (function)``."""
    return _first_of_the_users(traceback.walk_stack(frame)) if frame is not None else "its end"


def _last_line(at: TracebackType | None) -> str:
    """Return the innermost line of the user's in a traceback; a frame that handled the error has gone on since."""
    return _first_of_the_users(reversed([*traceback.walk_tb(at)]))


def _first_of_the_users(places: Iterable[tuple[FrameType, int]]) -> str:
    first: str | None = None
    for frame, line in places:
        file = frame.f_code.co_filename
        if not file.startswith((_PACKAGE, "<")) and "site-packages" not in file and not file.startswith(_LIBRARY):
            return f"{os.path.relpath(file)}:{line} ({frame.f_code.co_name})"
        first = first or f"{file}:{line}"
    return first or "its end"


_LIBRARY = os.path.dirname(os.__file__)


MEMBER: list[Member] = []
"""This process, if it is one of several."""


def member() -> Member | None:
    """Return this process as a member of a run; None if it is alone."""
    return MEMBER[0] if MEMBER else None

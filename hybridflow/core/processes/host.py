"""The coordinator of a run: the board and jax's service, in a process that no failure of a member ends.

`hybridflow launch` runs it itself; elsewhere process 0 starts it as ``python -m hybridflow.core.processes.host``.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import subprocess
import sys
import threading
import time
from typing import Any, cast

from hybridflow.backend.jax_shim import serve_processes
from hybridflow.core.processes.environment import TOKEN, Place
from hybridflow.core.processes.wire import Line, Message, encoded, split_address


class Coordinator:
    """The board and jax's service.

    Args:
        address: where the board listens; port 0 takes a free one.
        count: the number of processes.
        token: what they must say first.

    Attributes:
        board: the board.
    """

    def __init__(self, address: str, count: int, token: str = "") -> None:
        host = split_address(address)[0]
        port = free_port()
        self.board = Board(address, count, token, f"{host}:{port}")
        self._service = serve_processes(f"{host}:{port}" if is_local(host) else f"[::]:{port}", count)

    def close(self) -> None:
        """End both."""
        self.board.close()
        self._service.shutdown()


def is_local(host: str) -> bool:
    """Whether a host's name is this machine's own."""
    return host in ("127.0.0.1", "::1", "localhost")


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("", 0)) as server:
        return server.getsockname()[1]


def start_beside(place: Place) -> None:
    """Start the coordinator of a run in a process of its own, beside process 0."""
    command = [sys.executable, "-m", "hybridflow.core.processes.host", place.coordinator, str(place.count)]
    subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env={**os.environ, TOKEN: place.token, "JAX_PLATFORMS": "cpu"},
        start_new_session=True,
    )


def main() -> None:
    """Run the coordinator until all processes have left or are lost."""
    address, count = sys.argv[1:]
    coordinator = Coordinator(address, int(count), os.environ.get(TOKEN, ""))
    threading.Thread(target=coordinator.board.wait_for_first, args=(os.getppid(),), daemon=True).start()
    coordinator.board.wait()
    os._exit(0)  # the service would wait for members that are lost


if __name__ == "__main__":
    main()


# -- the board where the processes of a run meet: it compares what they are about to do, and says who is missing ------

_TICK = 0.2
_WORD = 0.3
"""Seconds that a lost process's last words, and those of its launcher, may take."""
_ANSWER = 0.6
"""Seconds in which a process says where it is."""


class _Member:
    """What the board knows of a process.

    Attributes:
        call: the connection on which it meets the others.
        watch: the connection of its watching thread.
        meets: what it has come to meet for; None while it computes.
        since: when it came.
        where: where it is, if it has said so.
        left: whether it has ended as programs do.
        lost_at: when its connection broke; None if it has not.
        stop: the number of steps that it has begun, if it was asked to stop.
    """

    def __init__(self) -> None:
        self.call: Line | None = None
        self.watch: Line | None = None
        self.meets: Message | None = None
        self.since = 0.0
        self.where: str | None = None
        self.left = False
        self.lost_at: float | None = None
        self.stop: int | None = None


class Board:
    """Serves the processes of a run, in a thread.

    Args:
        address: where to listen, as ``host:port``; port 0 takes a free one.
        count: the number of processes.
        token: what they must say first.
        service: the address of jax's service, which members ask for.

    Attributes:
        address: where it listens.
        verdict: why the run ends, if it does; and the process that is the cause.
    """

    def __init__(self, address: str, count: int, token: str = "", service: str = "") -> None:
        host, port = split_address(address)
        self._count = count
        self._token = token
        self._service = service
        self._members = [_Member() for _ in range(count)]
        self._select = selectors.DefaultSelector()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        local = host in ("127.0.0.1", "::1", "localhost")  # others on the network have no business here then
        self._listens = socket.create_server((host if local else "", port), family=family, backlog=2 * count)
        self._select.register(self._listens, selectors.EVENT_READ)
        self.address = f"{host}:{self._listens.getsockname()[1]}"
        self.verdict: tuple[str, int] | None = None
        self._timeout = float("inf")
        self._asked_at: float | None = None
        self._later: tuple[float, str, int] | None = None
        self._stops = False
        self._over = False
        self._thread = threading.Thread(target=self._serve, name="hybridflow-board", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End serving."""
        self._over = True
        self._thread.join()

    def wait(self) -> None:
        """Serve until every process has left or is lost."""
        while not all([one.left or one.lost_at is not None for one in self._members]):
            time.sleep(_TICK)

    def wait_for_first(self, parent: int) -> None:
        """End this process if its parent ends before it has become a member."""
        while self._members[0].watch is None:
            if os.getppid() != parent:
                os._exit(1)
            time.sleep(_TICK)

    def say(self, sentence: str, cause: int) -> None:
        """Say why the run ends, if nothing was said before: for a launcher, which knows how a process ended."""
        if self.verdict is None:
            self.verdict = sentence, cause
            self._asked_at = None
            for member in self._members:
                if member.watch is not None:
                    self._send(member.watch, {"end": sentence, "cause": cause})
                if member.meets is not None and member.call is not None:
                    member.meets = None
                    self._send(member.call, {"lost": sentence})

    def say_later(self, sentence: str, cause: int) -> None:
        """Say why the run ends, unless the process says so itself in a moment; see `say`."""
        if self._later is None:
            self._later = time.monotonic() + _WORD, sentence, cause

    def _serve(self) -> None:
        while not self._over:
            for key, _ in self._select.select(_TICK):
                if key.fileobj is self._listens:
                    end, _ = self._listens.accept()
                    self._select.register(end, selectors.EVENT_READ, (Line(end), []))
                else:
                    line, who = key.data
                    self._read(line, cast("list[Any]", who))
            self._look()
        for key in list(self._select.get_map().values()):
            cast(socket.socket, key.fileobj).close()
        self._select.close()

    def _read(self, line: Line, who: list[Any]) -> None:
        """Take what arrived on a connection; `who` has the process and the kind, once it has said them."""
        try:
            messages = line.arrived()
        except ValueError:  # no process of ours
            messages = None
        if messages is None:
            self._select.unregister(line.socket)
            line.close()
            if who and not self._members[who[0]].left and self._members[who[0]].lost_at is None:
                self._members[who[0]].lost_at = time.monotonic()
            return
        for one in messages:
            if who:
                self._take(who[0], who[1], one)
            elif one.get("token") != self._token or not 0 <= one.get("hello", -1) < self._count:
                self._send(line, {"refused": f"there are {self._count} processes, and this is none of them"})
            else:
                who[:] = one["hello"], one["kind"]
                setattr(self._members[who[0]], who[1], line)
                self._timeout = min(self._timeout, one.get("timeout", self._timeout))
                self._send(line, {"service": self._service})

    def _take(self, index: int, kind: str, one: Message) -> None:
        member = self._members[index]
        if kind == "call":
            if self.verdict is not None:
                self._send(cast(Line, member.call), {"lost": self.verdict[0]})
                return
            member.meets, member.since, member.where = one, time.monotonic(), None
            if all([other.meets is not None for other in self._members]):
                self._meet()
        elif "where" in one:
            member.where = one["where"]
        elif "raised" in one:
            self.say(f"process {index} raised {one['raised']}", index)
        elif "overdue" in one and self._asked_at is None:
            self._ask()
        elif "stop" in one:
            self._stop(member, one["stop"])

    def _meet(self) -> None:
        """All have come: let them go on, if they came for the same."""
        came = [cast(Message, one.meets) for one in self._members]
        differs = next((i for i in range(1, self._count) if _key(came[i]) != _key(came[0])), None)
        for member in self._members:
            member.meets = None
        self._asked_at = None
        if differs is not None:
            same = _texts(came[0], came[differs])
            words = (
                f"process 0 and process {differs} {describe(came[0])} in different ways" if same
                else difference(came[0], came[differs], differs)
            )
            reply = {"differs": words, "texts": same}
        else:
            if came[0]["meet"] == "leave":
                for member in self._members:
                    member.left = True
            reply = {"values": [one.get("value") for one in came]} if "value" in came[0] else {}
            if came[0]["meet"] == "texts":
                reply = {"values": [_first_difference([one["lines"] for one in came])]}
        line = encoded(reply)
        for member in self._members:
            self._send(cast(Line, member.call), line)

    def _stop(self, member: _Member, begun: int) -> None:
        """One process was asked to stop: all stop after the last step that one of them has begun."""
        member.stop = begun
        if not self._stops:
            self._stops = True
            for other in self._members:
                if other is not member and other.watch is not None:
                    self._send(other.watch, {"stop?": 1})
        if all([one.stop is not None for one in self._members]):
            last = max([cast(int, one.stop) for one in self._members])
            for one in self._members:
                self._send(cast(Line, one.watch), {"stop at": last})
                one.stop = None
            self._stops = False

    def _ask(self) -> None:
        """Ask all where they are; `_look` reads the answers."""
        self._asked_at = time.monotonic()
        for member in self._members:
            member.where = None
            if member.watch is not None:
                self._send(member.watch, {"where?": 1})

    def _look(self) -> None:
        """Look for processes that are lost, or that others have waited for too long."""
        now = time.monotonic()
        if self.verdict is not None:
            return
        if self._later is not None and now > self._later[0]:
            self.say(*self._later[1:])
            return
        for index, member in enumerate(self._members):
            if self._later is None and member.lost_at is not None and now - member.lost_at > 2 * _WORD:
                self.say(f"process {index} ended without a word: it was killed, or the machine has failed", index)
                return
        waiting = [one for one in self._members if one.meets is not None]
        longest = max([now - one.since for one in waiting], default=0.0)
        if self._asked_at is None:
            if longest > self._timeout:
                self._ask()
        elif now - self._asked_at > _ANSWER or all([one.where is not None for one in self._members]):
            self._judge(longest)

    def _judge(self, longest: float) -> None:
        """Say who waits for whom, and where."""
        waits = [i for i, one in enumerate(self._members) if one.meets is not None]
        others = [i for i in range(self._count) if i not in waits]
        silent = [i for i in others if self._members[i].where is None]
        cause = (silent or others)[0]

        def place(index: int) -> str:
            where = self._members[index].where
            return f"process {index} does not answer" if where is None else f"process {index} is at {where}"

        missing = "; ".join([place(i) for i in (others if waits else [cause])])
        first = waits[0] if waits else next(i for i in range(self._count) if i != cause)
        member = self._members[first]
        name = "" if member.meets is None else f" to {describe(member.meets)}"
        seconds = f"{longest:.1f} s" if waits else "longer than the step timeout"
        where = "" if member.where is None else f", at {member.where}"
        self.say(f"process {first} has waited for {seconds}{name}{where}; {missing}", cause)

    def _send(self, line: Line, message: Message | bytes) -> None:
        with contextlib.suppress(OSError):  # it is gone, which `_read` learns
            line.send(message)


def _key(message: Message) -> Any:
    return message["meet"], message.get("digest")


def describe(message: Message) -> str:
    """Return what a process has come for, as words."""
    words = {"call": "call", "make": "compile", "leave": "end its program"}
    kind: str = message["meet"]
    return f"{words.get(kind, kind)} {message.get('name', '')}".strip()


def difference(first: Message, other: Message, index: int) -> str:
    """Return what two processes are about to do, as a sentence."""
    return f"process 0 is about to {describe(first)}, and process {index} to {describe(other)}"


def _texts(first: Message, other: Message) -> bool:
    """Whether the processes should send the texts behind two digests: they came for the same, with another content."""
    same = describe(first) == describe(other)
    return same and first["meet"] in ("make", "compare", "call")


def _first_difference(texts: list[list[str]]) -> str:
    """Return the first line in which the text of a process is not that of process 0."""
    for index, lines in enumerate(texts):
        for number in range(max(len(lines), len(texts[0]))):
            ours, theirs = [one[number] if number < len(one) else "(nothing)" for one in (texts[0], lines)]
            if ours != theirs:
                return f"process 0 has {ours.strip()[:300]}\n  process {index} has {theirs.strip()[:300]}"
    return ""

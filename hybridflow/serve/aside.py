"""Where large requests are read and large answers written, so that no other request waits for that."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
import socket
import struct
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import numpy as np

from hybridflow.serve.protocol import Refused

T = TypeVar("T")
LARGE = 1 << 16
"""The size of a request or of results, in bytes, from which they are read and written elsewhere."""
AT_ONCE = 2
"""How many large requests of a model are read or written at a time."""


class _Place(NamedTuple):
    """The threads of a model, and the connections to its processes that wait."""

    threads: ThreadPoolExecutor
    idle: list[socket.socket]


class Aside:
    """Calls functions of large things: each model's in threads of its own, and those of text in processes of their own.

    To read or write text takes Python's lock, which whatever else is served waits for; to copy bytes does not.

    Args:
        copies: starts a process; None to read and write text in threads too.
    """

    def __init__(self, copies: Copies | None = None) -> None:
        self._copies = copies
        self._places: dict[str, _Place] = {}

    async def call(self, model: str, size: int, text: int, work: Callable[..., T], *arguments: Any) -> T:
        """Call a function for a model.

        Args:
            model: the model's name.
            size: how many bytes are read or written; if they are few, the function is called at once.
            text: how many of them are text.
            work: the function, of a module; one that may be called in another process if there is much text.
            arguments: its arguments.
        """
        if size < LARGE:
            return work(*arguments)
        place = self._places.get(model)
        if place is None:
            place = self._places[model] = _Place(ThreadPoolExecutor(AT_ONCE, "hybridflow-aside"), [])
        loop = asyncio.get_running_loop()
        if text < LARGE or self._copies is None:
            return await loop.run_in_executor(place.threads, work, *arguments)
        return await loop.run_in_executor(place.threads, lambda: self._elsewhere(place.idle, work, arguments))

    def _elsewhere(self, idle: list[socket.socket], work: Callable[..., T], arguments: tuple[Any, ...]) -> T:
        """Call a function in a process."""
        assert self._copies is not None
        try:
            connection = idle.pop()
        except IndexError:
            try:
                connection = self._copies.start()
            except OSError:  # no process can be started; the threads can do it too
                return work(*arguments)
        try:
            _send(connection, (work, [_apart(one) for one in arguments]))
            value, error = _receive(connection)
        except OSError as lost:
            connection.close()
            raise Refused("the process that reads and writes large requests ended", 503) from lost
        idle.append(connection)
        if error is not None:
            raise error
        return value

    def stop(self) -> None:
        """End the threads and processes; what they do is awaited."""
        for place in self._places.values():
            place.threads.shutdown()
            for one in place.idle:
                one.close()
        if self._copies is not None:
            self._copies.stop()


class Copies:
    """Starts processes that are copies of this one as it is now, before it has threads.

    Args:
        nicer: by how much their priority is lower.
    """

    def __init__(self, nicer: int) -> None:
        self._asks, own = socket.socketpair()
        self._process = _forked()
        if not self._process:
            _alone(own, _copy_on_demand, nicer)
        own.close()

    def start(self) -> socket.socket:
        """Start a process and return the connection to it; it ends with that."""
        here, there = socket.socketpair()
        with there:
            socket.send_fds(self._asks, [b"."], [there.fileno()])
        return here

    def stop(self) -> None:
        """Start no more."""
        self._asks.close()
        os.waitpid(self._process, 0)


def _forked() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the threads that there are, of libraries, hold no lock that is used here
        return os.fork()


def _alone(connection: socket.socket, run: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a process that was forked just now, with nothing open but a connection; then end it."""
    try:
        os.closerange(3, connection.fileno())
        os.closerange(connection.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        run(connection, *arguments)
    except (OSError, KeyboardInterrupt):  # who asked is gone
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def _copy_on_demand(connection: socket.socket, nicer: int) -> None:
    gc.freeze()  # a collection would write to all pages, which are shared
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    os.nice(nicer)
    while True:
        message, numbers, *_ = socket.recv_fds(connection, 1, 1)
        if not message:
            return
        with suppress(OSError):  # there is no room for a process: who asked sees the connection end
            if _forked() == 0:
                connection.close()
                _alone(socket.socket(fileno=numbers[0]), _work_on_demand)
        os.close(numbers[0])


def _work_on_demand(connection: socket.socket) -> None:
    while True:
        work, arguments = _receive(connection)
        try:
            answer = _apart(work(*arguments)), None
        except Exception as error:  # who asked raises it
            answer = None, error
        _send(connection, answer)
        del work, arguments, answer


def _apart(value: Any) -> Any:
    """Return a value whose bytes are sent as they are, and not copied into what is sent."""
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([_apart(one) for one in value])
    return pickle.PickleBuffer(value) if isinstance(value, bytes | bytearray | memoryview) else value


def _send(connection: socket.socket, value: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, 5, buffer_callback=buffers.append)
    parts = [memoryview(head), *[one.raw() for one in buffers]]
    connection.sendall(struct.pack(f"<{1 + len(parts)}Q", len(parts), *[one.nbytes for one in parts]))
    for one in parts:
        connection.sendall(one)


def _receive(connection: socket.socket) -> Any:
    (count,) = struct.unpack("<Q", _exactly(connection, 8))
    sizes = struct.unpack(f"<{count}Q", _exactly(connection, 8 * count))
    head, *buffers = [_exactly(connection, size) for size in sizes]
    return pickle.loads(head, buffers=buffers)


def _exactly(connection: socket.socket, size: int) -> memoryview:
    """Return the next bytes; other threads run while they come."""
    view = left = memoryview(np.empty(size, np.uint8))
    while len(left):
        count = connection.recv_into(left, flags=socket.MSG_WAITALL)
        if not count:
            raise ConnectionResetError("the other process ended")
        left = left[count:]
    return view

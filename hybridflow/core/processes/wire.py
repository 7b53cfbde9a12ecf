"""Messages between processes: one line of JSON each."""

from __future__ import annotations

import json
import socket
from typing import Any, cast

Message = dict[str, Any]


def encoded(message: Message) -> bytes:
    """Return a message as it is sent."""
    return json.dumps(message).encode() + b"\n"


class Line:
    """One end of a connection.

    Args:
        end: the socket.

    Attributes:
        socket: the same.
    """

    __slots__ = ("_rest", "socket")

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._rest = b""
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, message: Message | bytes) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone.
        """
        self.socket.sendall(message if isinstance(message, bytes) else encoded(message))

    def arrived(self) -> list[Message] | None:
        """Wait until something arrives, and return the whole messages; None when the other end is gone."""
        try:
            received = self.socket.recv(1 << 16)
        except OSError:
            return None
        if not received:
            return None
        *whole, self._rest = (self._rest + received).split(b"\n")
        return [cast(Message, json.loads(line)) for line in whole]

    def receive(self) -> Message | None:
        """Wait for one message, where one at a time is sent; None when the other end is gone."""
        while True:
            messages = self.arrived()
            if messages is None or messages:
                return None if messages is None else messages[0]

    def close(self) -> None:
        """Close the connection."""
        self.socket.close()


def split_address(address: str) -> tuple[str, int]:
    """Return the host and the port of an address such as ``10.0.0.1:8476`` or ``[::1]:8476``."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)

"""The HTTP side of a worker: limits on heads and bodies that hold before the application sees anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, cast

HEAD_BYTES, HEAD_SECONDS, BODY_SECONDS = 64 << 10, 15.0, 30.0
LINGER_SECONDS = 0.5
"""How long idle connections stay open while the server ends: a request may be on its way."""

_PIECE = 16 << 10


def _refusal(status: int, text: str) -> bytes:
    body = json.dumps({"error": text}).encode()
    head = (
        f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


class _Watch:
    """The part of a request that is being received, its size so far, and the timer that ends it.

    Attributes:
        part: ``"head"``, ``"body"``, or ``""`` between requests.
        size: the bytes of it that came.
    """

    def __init__(self) -> None:
        self.part, self.size = "", 0
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, part: str, seconds: float, loop: Any, refuse: Callable[[int, str], None]) -> None:
        """Begin to receive a part, and refuse the request if it takes too long."""
        self.end()
        self.part = part
        self._timer = loop.call_later(seconds, refuse, 408, f"the {part} took more than {seconds:g} s")

    def end(self) -> None:
        """Note that the part is complete, or of no interest any more."""
        self.part, self.size = "", 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def guarded_protocol(body_bytes: int) -> type[asyncio.Protocol]:  # noqa: C901 (a class, whose methods count)
    """Return uvicorn's protocol class with limits on the size and time of heads and bodies."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Guarded(HttpToolsProtocol):
        """One connection."""

        _refused = _draining = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch = _Watch()
            self._begin_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._watch.end()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            view = memoryview(data)
            while len(view) and not self._refused and not self.transport.is_closing():
                if not self._watch.part:
                    self._begin_head()
                in_head = self._watch.part == "head"
                piece = view[:_PIECE] if in_head else view
                view = view[len(piece) :]
                super().data_received(bytes(piece))
                if in_head and self._watch.part == "head":
                    self._watch.size += len(piece)
                    if self._watch.size > HEAD_BYTES:
                        self._refuse(431, f"the head has more than {HEAD_BYTES} bytes")

        def _begin_head(self) -> None:
            self._watch.begin("head", HEAD_SECONDS, self.loop, self._refuse)

        def on_headers_complete(self) -> None:
            self._watch.begin("body", BODY_SECONDS, self.loop, self._refuse)
            for name, value in self.headers:
                if name == b"content-length" and int(value) > body_bytes:
                    self._refuse(413, f"the body has more than {body_bytes} bytes")
            if not self._refused:
                super().on_headers_complete()
                if self._draining:
                    cast(Any, self.cycle).keep_alive = False

        def shutdown(self) -> None:
            """End after the request under way, or after one that may have been sent already."""
            self._draining = True
            cycle: Any = self.cycle
            idle = cycle is None or cycle.response_complete
            self.loop.call_later(LINGER_SECONDS if idle else 0, super().shutdown)

        def on_body(self, body: bytes) -> None:
            self._watch.size += len(body)
            if self._watch.size > body_bytes and not self._refused:
                self._refuse(413, f"the body has more than {body_bytes} bytes")
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._watch.end()
            if not self._refused:
                super().on_message_complete()

        def _refuse(self, status: int, text: str) -> None:
            """Answer with an error, unless an answer is under way, and close the connection."""
            self._refused = True
            self._watch.end()
            cycle: Any = self.cycle  # None before the first request
            if cycle is None or not cycle.response_started or cycle.response_complete:
                self.transport.write(_refusal(status, text))
            self.transport.close()

    return Guarded

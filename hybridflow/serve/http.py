"""The HTTP side of a worker: limits on heads and bodies that hold before the application sees anything."""

from __future__ import annotations

import asyncio
import json
from typing import Any

HEAD_BYTES, HEAD_SECONDS, BODY_SECONDS = 64 << 10, 15.0, 30.0
_PIECE = 16 << 10


def guarded_protocol(body_bytes: int) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol class with limits on the size and time of heads and bodies."""
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class Guarded(HttpToolsProtocol):
        """One connection."""

        _in_head = _in_body = _refused = False
        _size = 0
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._begin_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_timer()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            view = memoryview(data)
            while len(view) and not self._refused and not self.transport.is_closing():
                if not self._in_head and not self._in_body:
                    self._begin_head()
                piece = view[:_PIECE] if self._in_head else view
                view = view[len(piece) :]
                before = self._size
                super().data_received(bytes(piece))
                if self._in_head and self._size == before:
                    self._size += len(piece)
                    if self._size > HEAD_BYTES:
                        self._refuse(431, f"the head has more than {HEAD_BYTES} bytes")

        def _begin_head(self) -> None:
            self._in_head, self._size = True, 0
            self._start_timer(HEAD_SECONDS, "head")

        def on_headers_complete(self) -> None:
            self._in_head, self._in_body, self._size = False, True, 0
            self._start_timer(BODY_SECONDS, "body")
            for name, value in self.headers:
                if name == b"content-length" and int(value) > body_bytes:
                    self._refuse(413, f"the body has more than {body_bytes} bytes")
            if not self._refused:
                super().on_headers_complete()

        def on_body(self, body: bytes) -> None:
            self._size += len(body)
            if self._size > body_bytes and not self._refused:
                self._refuse(413, f"the body has more than {body_bytes} bytes")
            if not self._refused:
                super().on_body(body)

        def on_message_complete(self) -> None:
            self._in_body = False
            self._stop_timer()
            if not self._refused:
                super().on_message_complete()

        def _start_timer(self, seconds: float, what: str) -> None:
            self._stop_timer()
            self._timer = self.loop.call_later(seconds, self._late, seconds, what)

        def _stop_timer(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _late(self, seconds: float, what: str) -> None:
            self._refuse(408, f"the {what} took more than {seconds:g} s")

        def _refuse(self, status: int, text: str) -> None:
            """Answer with an error, unless an answer is under way, and close the connection."""
            self._refused = True
            self._stop_timer()
            body = json.dumps({"error": text}).encode()
            head = (
                f"HTTP/1.1 {status} Refused\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
                "connection: close\r\n\r\n"
            )
            cycle: Any = self.cycle  # None before the first request
            if cycle is None or not cycle.response_started or cycle.response_complete:
                self.transport.write(head.encode() + body)
            self.transport.close()

    return Guarded

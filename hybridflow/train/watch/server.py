"""The server of the page: only this machine can ask it, and it sends nothing but the page and the runs' figures."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from hybridflow.core.errors import FileError
from hybridflow.train.watch.page import page_of
from hybridflow.train.watch.runs import Runs

_HOSTS = ("127.0.0.1", "localhost")


class Server(ThreadingHTTPServer):
    """Serves the page about the runs in some directories at the loopback address.

    Args:
        directories: directories that are runs or have runs in them.
        port: the port; 0 takes a free one.
    """

    daemon_threads = True

    def __init__(self, directories: Sequence[Path], port: int) -> None:
        self._runs = Runs(directories)
        self._reading = threading.Lock()
        self._nonce = secrets.token_urlsafe(16)
        super().__init__((_HOSTS[0], port), _Handler)

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{_HOSTS[0]}:{self.server_address[1]}/"

    def answer(self, path: str) -> tuple[str, bytes] | None:
        """Return the type and the content of what is at a path; None if there is nothing."""
        if path == "/":
            return "text/html; charset=utf-8", page_of(self._nonce).encode()
        if path == "/runs":
            with self._reading:
                runs = self._runs.shown()
            return "application/json", json.dumps(runs, separators=(",", ":")).encode()
        return None

    @property
    def policy(self) -> str:
        """The page's content security policy: its own style and script, and requests to this server."""
        nonce = f"'nonce-{self._nonce}'"
        return f"default-src 'none'; style-src {nonce}; script-src {nonce}; connect-src 'self'; img-src data:"


class _Handler(BaseHTTPRequestHandler):
    """Answers GET."""

    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer, unless the request names another host: that of a page elsewhere that points to this machine."""
        host = self.headers.get("host", "").rpartition(":")[0] or self.headers.get("host", "")
        answer = self.server.answer(self.path.partition("?")[0]) if host in _HOSTS else None
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND if host in _HOSTS else HTTPStatus.FORBIDDEN)
            return
        kind, body = answer
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("content-type", kind), ("content-length", str(len(body))), ("cache-control", "no-store"),
            ("content-security-policy", self.server.policy), ("x-content-type-options", "nosniff"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the page asks every second."""


def serve(directories: Sequence[Path], port: int, say: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        directories: directories that are runs or have runs in them.
        port: the port; 0 takes a free one.
        say: a function that is called with the address.

    Raises:
        FileError: the port is taken.
    """
    try:
        server = Server(directories, port)
    except OSError as error:
        raise FileError(f"watch: port {port} cannot be used", got=str(error),
                        hint="Choose another, or 0 for a free one.") from error
    with server:
        say(f"Watching {', '.join(map(str, directories))} at {server.url} (Ctrl-C ends it)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            say("ended")

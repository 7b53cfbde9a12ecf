"""The server of the page: only this machine can ask it, and it sends nothing but the page and the runs' figures."""

from __future__ import annotations

import json
import secrets
import threading
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from hybridflow.core.errors import FileError
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


# -- the page of `hybridflow watch`. It loads nothing from elsewhere --------------------------------------------------

_STYLE = """
:root { color-scheme: light dark; --text: #1c2733; --quiet: #5b6875; --line: #d5dce2; --card: #fff; --page: #f5f7f9; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e6ebf0; --quiet: #9aa7b3; --line: #35414c; --card: #1b232b; --page: #11171d; }
}
* { box-sizing: border-box; }
body { margin: 0; padding: 1rem; font: 15px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page); }
main { max-width: 76rem; margin: 0 auto; }
header { display: flex; flex-wrap: wrap; gap: .4rem 1.5rem; align-items: baseline; margin-bottom: .8rem; }
h1 { font-size: 1.15rem; margin: 0; }
h2 { font-size: .95rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 21rem), 1fr)); gap: .8rem; }
#tools { margin: .8rem 0; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .7rem .8rem;
  min-width: 0; }
.state { display: inline-block; border-radius: 99px; padding: 0 .55rem; font-size: .85rem; color: #fff;
  background: #5b6875; }
.state.running { background: #17692b; } .state.compiling, .state.tracing { background: #8a5a00; }
.state.failed, .state.gone { background: #a40000; }
.track { height: 6px; background: var(--line); border-radius: 3px; overflow: hidden; margin: .45rem 0; }
.track > div { height: 100%; background: #1f5fa8; }
.key { display: inline-block; width: .8rem; height: .8rem; border-radius: 3px; margin-right: .4rem;
  vertical-align: -1px; }
label { cursor: pointer; }
svg { width: 100%; height: 12rem; display: block; touch-action: pan-y; }
svg text { font: 11px system-ui, sans-serif; fill: var(--quiet); }
svg .axis { stroke: var(--line); } svg .curve { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
svg .at { stroke: var(--quiet); stroke-dasharray: 3 3; }
.read { min-height: 1.5em; font-size: .85rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
#lost { color: #fff; background: #a40000; padding: .4rem .7rem; border-radius: 6px; }
.pair { white-space: nowrap; margin-right: .5rem; }
[hidden] { display: none !important; }
"""


def page_of(nonce: str) -> str:
    """Return the page.

    Args:
        nonce: the text by which the server's security policy knows the page's own style and script.
    """
    script = files("hybridflow.train.watch").joinpath("page.js").read_text("utf-8")
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>hybridflow watch</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<style nonce="{nonce}">{_STYLE}</style></head>
<body><main><header><h1>hybridflow watch</h1><span id="load" class="quiet"></span></header>
<p id="lost" role="alert" hidden>The server does not answer; what is shown is what it said last.</p>
<p id="none" class="quiet" hidden>There are no runs here yet. A
run appears when its first step has logged something.</p>
<div id="runs" class="cards"></div>
<div id="tools" hidden><label><input type="checkbox" id="log"> logarithmic scale</label></div>
<div id="curves" class="cards"></div></main>
<script nonce="{nonce}">{script}</script></body></html>
"""

"""The server of the page: only this machine can ask it, and it sends nothing but the page and the runs' figures."""

from __future__ import annotations

import json
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any

from hybridflow.backend.process_memory import process_memory
from hybridflow.core.errors import FileError
from hybridflow.train import activity, records

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


# -- what the page shows of runs, read from their lines of JSON as they grow, and of the machine ----------------------

POINTS = 400
"""The most points of a curve that are sent."""
_ABOUT = ("step", "epoch", "seconds")
_BUSY = ("running", "tracing", "compiling")


class _Lines:
    """The complete lines of a growing file, read once each."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._inode = 0

    def new(self) -> tuple[list[dict[str, Any]], bool]:
        """Return the new lines, and whether the file was rewritten, so that these are all its lines."""
        try:
            with self._path.open("rb") as file:
                status = os.fstat(file.fileno())
                anew = status.st_ino != self._inode or status.st_size < self._offset
                if anew:
                    self._offset, self._inode = 0, status.st_ino
                file.seek(self._offset)
                text = file.read()
        except OSError:
            return [], False
        complete = text[: text.rfind(b"\n") + 1]
        self._offset += len(complete)
        return list(_objects(complete)), anew


def _objects(text: bytes) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # a line that was cut off when its process was killed
        if isinstance(record, dict):
            yield record


class Run:
    """One run's directory.

    Args:
        path: the directory.
        name: the name it is shown by.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._log = _Lines(path / records.FILE)
        self._activity = _Lines(path / activity.FILE)
        self._curves: dict[str, list[tuple[float, float | None]]] = {}
        self._last: dict[str, Any] = {}
        self._state: dict[str, Any] = {}

    def read(self) -> None:
        """Read what was written since the last time."""
        lines, anew = self._log.new()
        if anew:
            self._curves.clear()
        for line in lines:
            step = line.get("step")
            if not isinstance(step, int | float):
                continue
            self._last = {name: line.get(name) for name in _ABOUT}
            for name, value in line.items():
                if name not in _ABOUT and isinstance(value, int | float):
                    self._curves.setdefault(name, []).append((step, value if math.isfinite(value) else None))
        lines, _ = self._activity.new()
        if lines:
            self._state = lines[-1]

    def shown(self) -> dict[str, Any]:
        """Return what the page shows of it."""
        state = self._state
        pid = state.get("pid")
        name = str(state.get("state", "unknown"))
        process = _process(pid) if isinstance(pid, int) and name in _BUSY else None
        if name in _BUSY and process is None:
            name = "gone"
        steps = [one for one in (state.get("step"), self._last.get("step")) if isinstance(one, int | float)]
        return {
            "name": self.name, "state": name, "function": state.get("function"), "since": state.get("time"),
            "pid": pid, "step": max(steps, default=0), "steps": state.get("steps"), "epoch": self._last.get("epoch"),
            "seconds": self._last.get("seconds"), "process": process,
            "curves": {name: _thinned(points) for name, points in self._curves.items()},
        }


def _thinned(points: Sequence[tuple[float, float | None]]) -> list[tuple[float, float | None]]:
    """Return at most `POINTS` points: of more, the mean of every stretch, and the last one as it is."""
    if len(points) <= POINTS:
        return list(points)
    width = math.ceil((len(points) - 1) / (POINTS - 1))
    thinned: list[tuple[float, float | None]] = []
    for start in range(0, len(points) - 1, width):
        stretch = points[start : min(start + width, len(points) - 1)]
        values = [value for _, value in stretch if value is not None]
        mean = sum(values) / len(values) if len(values) == len(stretch) else None
        thinned.append((stretch[len(stretch) // 2][0], mean))
    return [*thinned, points[-1]]


class Runs:
    """The runs in directories, also those that begin later.

    Args:
        directories: directories that are runs, or have runs in them at any depth.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._runs: dict[Path, Run] = {}
        self._load = Load()

    def shown(self) -> dict[str, Any]:
        """Return what the page shows now."""
        for top in self._directories:
            for file in (records.FILE, activity.FILE):
                for found in top.rglob(file):
                    path = found.parent
                    if path not in self._runs:
                        name = top.name if path == top else str(path.relative_to(top))
                        self._runs[path] = Run(path, name or str(path))
        for run in self._runs.values():
            run.read()
        runs = [run.shown() for _, run in sorted(self._runs.items())]
        return {"time": time.time(), "load": self._load.now(), "runs": runs}


class Load:
    """The load of the machine, as Linux tells it; elsewhere what Python knows."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._before = self._ticks()

    def now(self) -> dict[str, Any]:
        """Return the share of the cores that is busy since the last time, their number, and memory in bytes."""
        ticks, before = self._ticks(), self._before
        busy = None
        if ticks is not None and before is not None and ticks[1] > before[1]:
            busy = (ticks[0] - before[0]) / (ticks[1] - before[1])
            self._before = ticks
        memory = self._memory()
        return {
            "cores": os.cpu_count(), "busy": busy, "memory": memory.get("MemTotal"),
            "used": memory["MemTotal"] - memory["MemAvailable"] if "MemAvailable" in memory else None,
        }

    def _ticks(self) -> tuple[int, int] | None:
        """Return the ticks of all cores: those with work, and all."""
        try:
            words = (self._proc / "stat").read_text(encoding="utf-8").split("\n", 1)[0].split()[1:9]
        except OSError:
            return None
        numbers = [int(word) for word in words]
        return sum(numbers) - sum(numbers[3:5]), sum(numbers)

    def _memory(self) -> dict[str, int]:
        try:
            lines = (self._proc / "meminfo").read_text(encoding="utf-8").splitlines()
        except OSError:
            return {}
        pairs = [line.split()[:2] for line in lines]
        return {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes in pairs}


def _process(pid: int) -> dict[str, Any] | None:
    """Return the bytes of memory that a process takes, where the system tells; None if there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except OSError:
        pass  # it is another user's
    memory = process_memory(pid)
    if memory is None:
        return {"memory": None}
    return {"memory": memory.resident} if memory.resident else None

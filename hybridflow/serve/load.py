"""Load for a server on this machine: clients that each ask again as soon as they have an answer, and their figures."""

from __future__ import annotations

import asyncio
import importlib.util
import ipaddress
import json
import socket
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridflow.core.errors import ArgumentError

MOST_CLIENTS, MOST_REQUESTS, MOST_SECONDS = 1024, 10_000_000, 3600.0


class Figures(NamedTuple):
    """What the clients of a load saw.

    Attributes:
        seconds: how long the load took.
        statuses: the number of responses by status.
        broken: the number of connections that ended without a response.
        latencies: the seconds from sending each request to its complete response.
    """

    seconds: float
    statuses: Mapping[int, int]
    broken: int
    latencies: Any

    @property
    def rate(self) -> float:
        """Responses with status 200 in a second."""
        return self.statuses.get(200, 0) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return the seconds within which a percentage of the responses came, such as 99."""
        return float(np.percentile(self.latencies, percent)) if len(self.latencies) else float("nan")

    def text(self) -> str:
        """Return the figures as one line."""
        statuses = ", ".join([f"{count} x {status}" for status, count in sorted(self.statuses.items())]) or "none"
        p50, p95, p99 = [1e3 * self.percentile(part) for part in (50, 95, 99)]
        return (
            f"{self.rate:.0f} requests/s, p50 {p50:.2f} ms, p95 {p95:.2f} ms, p99 {p99:.2f} ms; "
            f"responses: {statuses}; broken connections: {self.broken}; {self.seconds:.1f} s"
        )


class Target(NamedTuple):
    """A request that is made over and over.

    Attributes:
        host, port: where the server listens.
        data: the bytes of the request.
    """

    host: str
    port: int
    data: bytes


def target(url: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Target:
    """Return the request for a URL on this machine; without a body it is a GET.

    Raises:
        ArgumentError: the URL is not one of HTTP, or of another machine.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise ArgumentError("bench-serve: needs a URL of HTTP", got=url, hint="Such as http://localhost:8000.")
    try:
        hosts = [str(one[4][0]) for one in socket.getaddrinfo(parts.hostname, parts.port or 80, proto=socket.SOL_TCP)]
    except OSError as error:
        raise ArgumentError(f"bench-serve: there is no host {parts.hostname}", got=str(error)) from None
    if not all([ipaddress.ip_address(one).is_loopback for one in hosts]):
        raise ArgumentError("bench-serve: makes load on this machine alone", got=f"{parts.hostname}, {hosts[0]}",
                            hint="Run it where the server runs, with localhost.")
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"host": parts.netloc, **(headers or {})}
    if body is not None:
        fields |= {"content-type": "application/json", "content-length": str(len(body))}
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", *[f"{k}: {v}" for k, v in fields.items()]]
    return Target(hosts[0], parts.port or 80, "\r\n".join([*lines, "", ""]).encode() + (body or b""))


def sample_request(url: str, headers: Mapping[str, str] | None = None) -> tuple[str, bytes]:
    """Return the URL and body that ask the first model of a server with its own sample.

    Raises:
        ArgumentError: the server does not answer, or has no model.
    """
    target(url)  # it is of this machine
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/models", headers={**(headers or {})})
        with urllib.request.urlopen(request, timeout=10) as response:
            models = json.load(response)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"bench-serve: {url} does not list its models", got=str(error)) from None
    if not models:
        raise ArgumentError(f"bench-serve: {url} has no model")
    model = models[0]
    name, function = next(iter(model["functions"].items()))
    body = {"signature_name": name, "inputs": function["sample"]}
    return f"{url.rstrip('/')}/v1/models/{model['name']}:predict", json.dumps(body).encode()


class _Run:
    """A load under way."""

    def __init__(self, requests: int, until: float) -> None:
        self.left, self.until = requests, until
        self.statuses: Counter[int] = Counter()
        self.latencies: list[float] = []
        self.broken = 0

    def takes_one(self) -> bool:
        """Whether another request is to be made; it is counted."""
        if self.left <= 0 or time.perf_counter() >= self.until:
            return False
        self.left -= 1
        return True


class _Client(asyncio.Protocol):
    """A connection that asks again as soon as it has an answer."""

    def __init__(self, run: _Run, data: bytes) -> None:
        self.ended = asyncio.get_running_loop().create_future()
        self._run, self._data = run, data
        self._buffer = b""
        self._want = 0
        self._sent = 0.0
        self._waits = self._closes = False

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._waits = not self._closes and self._run.takes_one()
        if not self._waits:
            self._transport.close()
            return
        self._sent = time.perf_counter()
        self._transport.write(self._data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._want:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = self._buffer[:end].lower()
            length = head.partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0]
            if not length.strip().isdigit():  # in chunks, for example: this client reads none
                self._transport.abort()
                return
            self._status, self._want = int(head[9:12]), end + 4 + int(length)
            self._closes = b"\r\nconnection: close" in head
        if len(self._buffer) >= self._want:
            self._run.latencies.append(time.perf_counter() - self._sent)
            self._run.statuses[self._status] += 1
            self._buffer, self._want = self._buffer[self._want :], 0
            self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self._run.broken += self._waits
        if not self.ended.done():
            self.ended.set_result(None)


async def _client(run: _Run, made: Target) -> None:
    """Ask on one connection after another: a server may close one after any response."""
    loop = asyncio.get_running_loop()
    failures = 0
    while run.left > 0 and (left := run.until - time.perf_counter()) > 0 and failures < 100:
        try:
            _, client = await loop.create_connection(lambda: _Client(run, made.data), made.host, made.port)
        except OSError:
            run.broken += 1
            failures += 1
            await asyncio.sleep(0.01)
            continue
        await asyncio.wait({client.ended}, timeout=left + 10)


async def _load(made: Target, clients: int, run: _Run) -> Figures:
    began = time.perf_counter()
    await asyncio.gather(*[_client(run, made) for _ in range(clients)])
    return Figures(time.perf_counter() - began, dict(run.statuses), run.broken, np.asarray(run.latencies))


def load(made: Target, *, clients: int, requests: int, seconds: float) -> Figures:
    """Make a request over and over, until a number or a time is reached.

    Args:
        made: the request, of `target`.
        clients: the number of connections at a time, each with one request under way.
        requests: the largest number of requests.
        seconds: the longest time; requests under way are awaited for ten more.

    Raises:
        ArgumentError: a bound is out of range.
    """
    for name, value, most in (("clients", clients, MOST_CLIENTS), ("requests", requests, MOST_REQUESTS),
                              ("seconds", seconds, MOST_SECONDS)):
        if not 0 < value <= most:
            raise ArgumentError(f"bench-serve: {name} must be above 0 and at most {most:g}", got=str(value))
    work = _load(made, clients, _Run(requests, time.perf_counter() + seconds))
    if importlib.util.find_spec("uvloop") is None:
        return asyncio.run(work)
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def together(figures: Sequence[Figures]) -> Figures:
    """Return the figures of several loads, one after the other, as those of one."""
    statuses: Counter[int] = Counter()
    for one in figures:
        statuses.update(one.statuses)
    seconds, broken = sum([one.seconds for one in figures]), sum([one.broken for one in figures])
    return Figures(seconds, dict(statuses), broken, np.concatenate([one.latencies for one in figures]))

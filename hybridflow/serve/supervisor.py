"""The parent process of ``hybridflow serve``: it opens the port, starts workers, and replaces those that end."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybridflow.core.errors import ArgumentError, MissingPackageError
from hybridflow.serve.app import Options, memory_for_requests
from hybridflow.serve.models import found_in

DRAIN_SECONDS = 8


class Server(NamedTuple):
    """Where and how the processes run.

    Attributes:
        host, port: the address; port 0 takes a free one.
        workers: the number of processes.
        max_seconds: how long a computation may take until its worker is replaced.
        certificate, key: files for TLS; None for plain HTTP.
        grpc_port: the port for gRPC; None for none, 0 takes a free one.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    workers: int = 1
    max_seconds: float = 60.0
    certificate: str | None = None
    key: str | None = None
    grpc_port: int | None = None


def require_packages() -> None:
    """Raise unless the packages of the extra ``serve`` are installed."""
    for name in ("uvicorn", "httptools"):
        if importlib.util.find_spec(name) is None:
            raise MissingPackageError(f"serve: needs the package {name}", hint="Run pip install 'hybridflow[serve]'.")


def require_grpc() -> None:
    """Raise unless the packages of the extra ``grpc`` are installed."""
    for name in ("grpc", "google.protobuf"):
        try:
            importlib.import_module(name)
        except ImportError:
            raise MissingPackageError(f"serve: gRPC needs the package {name}",
                                      hint="Run pip install 'hybridflow[grpc]'.") from None


def serve(
    paths: Sequence[Path], options: Options, server: Server, say: Callable[[str], None] = lambda text: None
) -> None:
    """Serve artifacts until SIGTERM or SIGINT; then answer what was accepted, and return."""
    require_packages()
    if not found_in(paths):
        raise ArgumentError("serve: there is no artifact", got=", ".join(map(str, paths)))
    _require_certificate(server)
    if server.grpc_port is not None:
        require_grpc()
    calls = None if server.grpc_port is None else _reserved(server.host, server.grpc_port)
    listening = _listen(server)
    host, port = listening.getsockname()[:2]
    ended: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda got, frame: ended.append(got))
    with tempfile.TemporaryDirectory(prefix="hybridflow-serve-") as folder:
        if options.memory is None:
            options = options._replace(memory=memory_for_requests(server.workers))
        settings = {
            "paths": [str(one) for one in paths], "options": options._asdict(), "socket": listening.fileno(),
            "metrics": folder, "parent": os.getpid(), "drain": DRAIN_SECONDS, "max_seconds": server.max_seconds,
            "certificate": server.certificate, "key": server.key, "grpc": calls and _address(calls),
            "loop": "uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        }
        workers: list[subprocess.Popen[bytes]] = []
        try:
            if calls is not None:
                say(f"serving gRPC on {_address(calls)}")
            say(f"serving on http{'s' if server.certificate else ''}://{host}:{port}")
            _keep(workers, server.workers, settings, ended, say)
        finally:
            listening.close()
            _end(workers)
            if calls is not None:
                calls.close()


def _reserved(host: str, port: int) -> socket.socket:
    """Return a socket that keeps a port for the workers, which listen at it together."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        raise ArgumentError(f"serve: cannot listen at {host}:{port}", got=str(error)) from None
    return listener


def _address(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _require_certificate(server: Server) -> None:
    """Raise unless the files for TLS are there and fit together, or none is given."""
    if server.certificate is None:
        if server.key is not None:
            raise ArgumentError("serve: a key for TLS needs its certificate", got=server.key)
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(server.certificate, server.key, lambda: "")
    except OSError as error:
        files = " and ".join([one for one in (server.certificate, server.key) if one is not None])
        raise ArgumentError(f"serve: {files} are no certificate and key for TLS", got=str(error)) from None


def _listen(server: Server) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
        return socket.create_server((server.host, server.port), family=family, backlog=512)
    except OSError as error:
        raise ArgumentError(f"serve: cannot listen at {server.host}:{server.port}", got=str(error)) from None


def _keep(
    workers: list[subprocess.Popen[bytes]], count: int, settings: dict[str, Any], ended: list[int],
    say: Callable[[str], None],
) -> None:
    """Keep a number of workers running until a signal comes; wait longer each time one ends quickly."""
    started = 0.0
    pause = 0.1
    while not ended:
        for one in [one for one in workers if one.poll() is not None]:
            workers.remove(one)
            say(f"worker {one.pid} ended with {one.returncode}, and is replaced")
        if len(workers) < count and time.monotonic() - started >= (0 if len(workers) or not started else pause):
            pause = 0.1 if time.monotonic() - started > 10 else min(pause * 2, 5.0)
            workers.append(_start(settings))
            started = time.monotonic()
        time.sleep(0.05)


def _start(settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "hybridflow.serve.worker"]
    fresh = subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[settings["socket"]], start_new_session=True)
    assert fresh.stdin is not None
    with fresh.stdin as pipe:  # not by an argument, which other users see: the settings have the token
        pipe.write(json.dumps(settings).encode())
    return fresh


def _end(workers: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell the workers to answer what they accepted and to end; kill those that do not."""
    for one in workers:
        one.terminate()
    until = time.monotonic() + DRAIN_SECONDS + 1
    for one in workers:
        try:
            one.wait(max(until - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            one.kill()
            one.wait()

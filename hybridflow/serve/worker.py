"""A worker process of ``hybridflow serve``: it serves on the socket of its parent until it is told to end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import jax

from hybridflow.serve.app import App, Options
from hybridflow.serve.aside import Aside, Copies
from hybridflow.serve.http import guarded_protocol
from hybridflow.serve.metrics import Metrics

STUCK = 70
"""The exit status of a worker whose computation does not end."""

SWITCH_SECONDS = 5e-5
"""How long the thread of connections or of the device keeps the other one waiting for the interpreter."""

LOWER_PRIORITY = 5
"""By how much the threads that compute are nicer than those that answer."""

BACKLOG_SECONDS = 1.0
"""How long a server that ends accepts connections that wait."""


def work(settings: dict[str, Any]) -> None:
    """Serve on the parent's socket.

    Args:
        settings: paths, options, the socket's number, and what else `hybridflow.serve.supervisor` says.
    """
    import uvicorn

    copies = Copies(LOWER_PRIORITY)  # while the process has no threads
    first = threading.Thread(target=_start_xla)
    first.start()
    first.join()
    metrics = Metrics(Path(settings["metrics"]))
    app = App([Path(one) for one in settings["paths"]], Options(**settings["options"]), None, metrics, Aside(copies))
    config = uvicorn.Config(
        cast(Any, app), loop=settings["loop"], http=guarded_protocol(app.options.body), ws="none", lifespan="on",
        access_log=False, log_level="warning", proxy_headers=False, timeout_keep_alive=30, server_header=False,
        timeout_graceful_shutdown=settings["drain"], ssl_certfile=settings["certificate"], ssl_keyfile=settings["key"],
        h11_max_incomplete_event_size=None,
    )
    server = _draining(uvicorn.Server)(config)
    server.calls = _calls(app, settings) if settings["grpc"] else None
    sys.setswitchinterval(SWITCH_SECONDS)
    app.start()
    gc.collect()
    gc.freeze()  # a collection would visit all objects of the libraries, which takes long
    threading.Thread(target=_watch, args=(app, server, settings), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=settings["socket"])])
    metrics.write()


def _start_xla() -> None:
    """Start XLA's threads with a lower priority, which they inherit from this thread.

    A large computation takes all cores: the threads that answer requests for other models would wait for their turn.
    """
    if sys.platform == "linux":  # elsewhere the priority is that of the whole process
        os.nice(LOWER_PRIORITY)
    jax.devices()


def _draining(base: type[Any]) -> type[Any]:
    """Return uvicorn's server class with a shutdown that first accepts the connections that the kernel has accepted."""

    class Draining(base):
        """A server whose waiting connections are served before its socket is closed, which would reset them.

        Attributes:
            calls: starts what answers calls over gRPC, in the same loop; None for HTTP alone.
        """

        calls: Callable[[], Awaitable[Any]] | None = None

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """Start to serve."""
            await super().startup(sockets)
            self._answering = None if self.calls is None else await self.calls()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            """Accept the connections that already wait, but no later ones, and end."""
            until = time.monotonic() + BACKLOG_SECONDS
            for one in sockets or ():
                one.listen(0)
            while sockets and select.select(sockets, (), (), 0)[0] and time.monotonic() < until:
                await asyncio.sleep(0.002)
            if self._answering is not None:
                await self._answering.stop(self.config.timeout_graceful_shutdown)
            await super().shutdown(sockets)

    return Draining


def _calls(app: App, settings: dict[str, Any]) -> Callable[[], Awaitable[Any]]:
    """Return the function that starts to answer calls over gRPC."""
    from hybridflow.serve import rpc  # it needs an extra

    files = [settings["key"], settings["certificate"]]
    certificate = None if files[1] is None else tuple([Path(one or files[1]).read_bytes() for one in files])
    return lambda: rpc.start(app, settings["grpc"], cast(Any, certificate))


def _watch(app: App, server: Any, settings: dict[str, Any]) -> None:
    """Write the metrics for the other workers; end the process if a computation hangs or the parent is gone."""
    while True:
        time.sleep(0.25)
        app.metrics.gauges["hybridflow_queue"] = app.batcher.waiting
        try:
            app.metrics.write()
        except OSError as error:  # a full disk, which must not end the watch
            sys.stderr.write(f"worker {os.getpid()}: its metrics cannot be written: {error}\n")
        since = app.batcher.busy_since
        if since is not None and app.ready and time.monotonic() - since > settings["max_seconds"]:
            sys.stderr.write(f"worker {os.getpid()}: a computation takes more than {settings['max_seconds']:g} s\n")
            os._exit(STUCK)
        if os.getppid() != settings["parent"]:
            server.should_exit = True


if __name__ == "__main__":
    work(json.load(sys.stdin))

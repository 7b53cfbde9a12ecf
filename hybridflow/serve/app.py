"""`hf.serve.app`: models as an ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import json
import re
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hybridflow.backend.free_memory import free_memory
from hybridflow.core.errors import HybridflowError
from hybridflow.export.limits import Limits
from hybridflow.serve import protocol
from hybridflow.serve.aside import LARGE, Aside
from hybridflow.serve.batcher import Batcher
from hybridflow.serve.metrics import Metrics
from hybridflow.serve.models import Model, Repository, Servable
from hybridflow.serve.page import PAGE, POLICY
from hybridflow.serve.protocol import Array, Refused

JSON = {"content-type": "application/json"}
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

_V2 = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(/infer|/ready|)")
_TF = re.compile(r"/v1/models/([^/:]+)(?:/versions/([^/:]+))?(:predict|/metadata|)")
_ID = re.compile(r"[\w.:-]{1,100}", re.ASCII)


class Options(NamedTuple):
    """How models are served.

    Attributes:
        max_batch: the largest number of rows that are computed together.
        max_delay: how many seconds a request waits at most for others to share its batch.
        queue: how many requests may wait; more get 503.
        timeout: the seconds that a request may take; then it gets 504.
        body: the largest number of bytes of a request's body.
        token: the bearer token that requests must have; None for none.
        reload: the seconds between checks of the artifacts' directories; None to load them once.
        log: whether each request is written to stderr, as a line of JSON.
        memory: the bytes that a request may take at once, by its sizes; more get 413. None for half of those that are
            free at the start.
        flops: the floating-point operations that a request may take; more get 413.
        hosts: the names by which requests may ask for this server (their header ``Host``); None for any.
    """

    max_batch: int = 32
    max_delay: float = 0.002
    queue: int = 256
    timeout: float = 30.0
    body: int = 64 << 20
    token: str | None = None
    reload: float | None = 2.0
    log: bool = False
    memory: int | None = None
    flops: int = 10**12
    hosts: Sequence[str] | None = None


class Response(NamedTuple):
    """A response, and the model that it is of."""

    status: int
    body: bytes | memoryview
    headers: Mapping[str, str]
    model: Model | None = None


class App:
    """The ASGI application; see `app`.

    Attributes:
        batcher: computes the requests.
        aside: reads and writes them, if they are large.
        metrics: counts them.
        ready: whether all models were loaded and warmed up.
    """

    def __init__(
        self, paths: Sequence[Path], options: Options, limits: Limits | None, metrics: Metrics, aside: Aside
    ) -> None:
        self.options = options
        self.aside = aside
        self.metrics = metrics
        self.models = Repository(paths, options.max_batch, _limited(limits or Limits(), options))
        self.batcher = Batcher(
            options.max_batch, options.max_delay, options.queue,
            lambda rows: metrics.observe("hybridflow_batch_rows", rows),
        )
        self.ready = False
        self._prefix, self._numbers = f"{uuid.uuid4().hex[:16]}-", itertools.count()
        self._stop = threading.Event()
        self._starting = threading.Lock()

    def start(self) -> None:
        """Load and warm up the models, then watch for changes in a thread."""
        with self._starting:
            if self.ready:
                return
            self._refresh()
            self.ready = True
            if self.options.reload is not None:
                threading.Thread(target=self._reload, args=(self.options.reload,), daemon=True).start()

    def stop(self) -> None:
        """Compute the waiting requests, and end the threads."""
        self._stop.set()
        self.batcher.stop()
        self.aside.stop()

    def _refresh(self) -> None:
        for line in self.models.refresh(self.batcher.compute):
            self.log({"event": line})
        for name, versions in self.models.models.items():
            for version in versions:
                self.metrics.begin(name, version)

    def _reload(self, seconds: float) -> None:
        while not self._stop.wait(seconds):
            try:
                self._refresh()
            except (HybridflowError, OSError) as error:  # a directory cannot be read; loaded models go on serving
                self.log({"event": f"looking for changes failed: {error}"})
            except Exception as error:  # a fault of the server, which must not end the watch
                self.log({"fault": "".join(traceback.format_exception(error))}, always=True)

    @property
    def serves(self) -> bool:
        """Whether it is ready, and each model has a version that serves."""
        return self.ready and bool(self.models.models) and not self.models.missing

    def identity(self, given: str) -> str:
        """Return the id of a request: the one that it was given, if that is one, or a new one."""
        return given if _ID.fullmatch(given) else f"{self._prefix}{next(self._numbers):x}"

    def log(self, fields: Mapping[str, Any], *, always: bool = False) -> None:
        """Write a line to the log; faults are always written, other lines only if the options say so."""
        if self.options.log or always:
            sys.stderr.write(json.dumps({"time": round(time.time(), 3), **fields}) + "\n")

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Answer a request, or the server's lifespan events."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close"})

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            await asyncio.to_thread(self.start if kind == "lifespan.startup" else self.stop)
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    async def _answer(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if not self.ready:  # mounted in an application that does not pass on lifespan events
            await asyncio.to_thread(self.start)
        began, path = time.monotonic(), scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        identity = self.identity(headers.get("x-request-id", ""))
        try:
            self._require_host(headers)
            self._authorize(path, headers)
            body = await self._body(receive)
            response = await self._routed(scope["method"], path, headers, body, receive)
        except _GoneAway:
            self.log({"id": identity, "path": path[:200], "status": 499})
            return
        except Refused as error:
            response = _refusal(error)
        except Exception as error:  # a fault of the server or of a model's program: this request's alone
            self.log({"id": identity, "fault": "".join(traceback.format_exception(error))}, always=True)
            response = _refusal(Refused(f"the server failed; its log tells why at the request {identity}", 500))
        took = time.monotonic() - began
        self.count(response, took)
        fields = {"id": identity, "method": scope["method"], "path": path[:200]}
        self.log({**fields, "status": response.status, "seconds": round(took, 6), "bytes": len(response.body)})
        response_headers = {**response.headers, "x-request-id": identity, "content-length": str(len(response.body))}
        response_headers |= {"x-content-type-options": "nosniff"}
        response_headers |= {"retry-after": "1"} if response.status == 503 else {}
        response_headers |= {"www-authenticate": "Bearer"} if response.status == 401 else {}
        encoded = [(k.encode("latin-1"), v.encode("latin-1")) for k, v in response_headers.items()]
        await send({"type": "http.response.start", "status": response.status, "headers": encoded})
        body = b"" if scope["method"] == "HEAD" else response.body
        for start in range(0, len(body) - _PIECE, _PIECE):  # to hand over all of it takes long
            await send({"type": "http.response.body", "body": body[start : start + _PIECE], "more_body": True})
            await asyncio.sleep(0)  # others' turn
        await send({"type": "http.response.body", "body": body[-(len(body) % _PIECE or _PIECE) :]})

    def count(self, response: Response, took: float) -> None:
        """Count a response that took some seconds."""
        if response.model is not None:
            of = {"model": response.model.name, "version": response.model.version}
            self.metrics.count("hybridflow_requests_total", **of, status=str(response.status))
            self.metrics.observe("hybridflow_request_seconds", took, **of)
        elif response.status >= 400:
            self.metrics.count("hybridflow_refused_total", status=str(response.status))

    def _require_host(self, headers: Mapping[str, str]) -> None:
        """Raise if a request names another host: that of a page elsewhere whose name was pointed to this machine."""
        host = re.sub(r":\d+$", "", headers.get("host", "")).lower()
        if host and self.options.hosts is not None and host not in self.options.hosts:
            raise Refused(f"this server is not {host[:80]!r}: --allow-host makes it answer to that name", 403)

    def _authorize(self, path: str, headers: Mapping[str, str]) -> None:
        """Raise unless a request has the token; health checks need none, since load balancers have none."""
        token = self.options.token
        if token is None or path in ("/v2/health/live", "/v2/health/ready"):
            return
        if not hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {token}".encode()):
            raise Refused("this server needs the header 'Authorization: Bearer TOKEN'", 401)

    async def _body(self, receive: Receive) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _GoneAway
            chunks.append(event.get("body", b""))
            size += len(chunks[-1])
            if size > self.options.body:
                raise Refused(f"the body has more than {self.options.body} bytes", 413)
            if not event.get("more_body"):
                return b"".join(chunks) if size < LARGE else await asyncio.to_thread(b"".join, chunks)

    async def _routed(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes, receive: Receive
    ) -> Response:
        posts = path.endswith(("/infer", ":predict"))
        if method not in (("POST",) if posts else ("GET", "HEAD")):
            raise Refused(f"{path[:80]} takes {'POST' if posts else 'GET'}, got {method[:20]}", 405)
        if found := _V2.fullmatch(path):
            return await self._v2(found[1], found[2], found[3], headers, body, receive)
        if found := _TF.fullmatch(path):
            return await self._tf(found[1], found[2], found[3], body, receive)
        return self._plain(path)

    def _plain(self, path: str) -> Response:
        if path == "/v2/health/live":
            return _json({"live": True})
        if path == "/v2/health/ready":
            return _json({"ready": self.serves, "faults": self.models.faults}, 200 if self.serves else 503)
        if path == "/v2":
            return _json({"name": "hybridflow", "version": "1", "extensions": ["binary_tensor_data"]})
        if path == "/metrics":
            self.metrics.gauges["hybridflow_queue"] = self.batcher.waiting
            return Response(200, self.metrics.text().encode(), {"content-type": "text/plain; version=0.0.4"})
        if path == "/models":
            return _json([_described(one) for versions in self.models.models.values() for one in versions.values()])
        if path == "/":
            headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": POLICY}
            return Response(200, PAGE.encode(), headers)
        raise Refused(f"there is nothing at {path[:80]!r}", 404)

    async def _v2(
        self, name: str, version: str | None, verb: str, headers: Mapping[str, str], body: bytes, receive: Receive
    ) -> Response:
        model = self.models.model(name, version)
        if verb == "/ready":
            return _json({"name": name, "ready": True})
        if verb == "":
            versions = [*self.models.models[name]]
            return _json(protocol.metadata_v2(name, versions, model.function().signature))
        try:
            self.batcher.require_room(name)  # before the body is read, which takes longer
            servable = model.function()
            length = headers.get("inference-header-content-length")
            text = min(int(length), len(body)) if length and length.isdecimal() else len(body)
            parsed = await self.aside.call(
                name, len(body), text, protocol.read_v2, body, length, servable.signature
            )
            results = await self.computed(servable, parsed.tensors, receive)
            wanted = parsed._replace(tensors={})
            text = size_of([results[key] for key, binary in wanted.outputs.items() if not binary])
            size = size_of(results.values())
            written = await self.aside.call(name, size, text, protocol.write_v2, name, model.version, wanted, results)
            return Response(200, *written, model)
        except Refused as error:
            return _refusal(error, model)

    async def _tf(self, name: str, version: str | None, verb: str, body: bytes, receive: Receive) -> Response:
        model = self.models.model(name, version)
        if verb == "":
            status = {"error_code": "OK", "error_message": ""}
            state = {"version": model.version, "state": "AVAILABLE", "status": status}
            return _json({"model_version_status": [state]})
        if verb == "/metadata":
            functions = {key: one.signature for key, one in model.functions.items()}
            return _json(protocol.metadata_tf(name, model.version, functions))
        try:
            self.batcher.require_room(name)
            signatures = {key: one.signature for key, one in model.functions.items()}
            size = len(body)
            called, tensors, rows = await self.aside.call(
                name, size, size, protocol.read_predict, body, signatures, model.usual
            )
            results = await self.computed(model.function(called), tensors, receive)
            size = size_of(results.values())
            return Response(
                200, await self.aside.call(name, size, size, protocol.write_tf, results, rows), JSON, model
            )
        except Refused as error:
            return _refusal(error, model)

    async def computed(self, servable: Servable, tensors: Mapping[str, Array], receive: Receive) -> dict[str, Array]:
        """Have a request computed; give up when its time is over or its client goes away."""
        servable.require_sizes(tensors)
        loop = asyncio.get_running_loop()
        result: asyncio.Future[dict[str, Array]] = loop.create_future()
        self.batcher.submit(servable, tensors, result)
        watch = _Watch(result, receive, self.options.timeout)
        starts = loop.call_later(min(_WATCH_DELAY, self.options.timeout), watch.start)
        try:
            return await result
        except asyncio.CancelledError:
            if watch.why is not None:
                raise watch.why from None
            raise
        finally:
            starts.cancel()
            watch.end()


def _limited(limits: Limits, options: Options) -> Limits:
    """Return limits with those of the options, where they have none."""
    memory = memory_for_requests(1) if options.memory is None else options.memory
    memory = memory if limits.memory is None else limits.memory
    return limits._replace(memory=memory, flops=options.flops if limits.flops is None else limits.flops)


def memory_for_requests(workers: int) -> int | None:
    """Return how many bytes a request may take by default; None if the system does not tell what is free."""
    free = free_memory()
    return None if free is None else free // 2 // workers


def size_of(arrays: Iterable[Array]) -> int:
    """Return how many bytes arrays have."""
    return sum([one.nbytes for one in arrays])


_PIECE = 1 << 18
"""The bytes of a response that are sent at a time."""

_WATCH_DELAY = 0.02
"""Seconds before a request's client and time are watched; most requests are answered earlier."""


class _Watch:
    """What cancels a request that takes too long, or whose client goes away.

    Attributes:
        why: why it was cancelled; None if it was not.
    """

    def __init__(self, result: asyncio.Future[Any], receive: Receive, seconds: float) -> None:
        self.why: Exception | None = None
        self._result, self._receive, self._seconds = result, receive, seconds
        self._task: asyncio.Task[None] | None = None
        self._began = time.monotonic()

    def start(self) -> None:
        """Begin to watch the client and the time."""
        self._task = asyncio.ensure_future(self._wait())

    def end(self) -> None:
        """Stop watching."""
        if self._task is not None:
            self._task.cancel()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(max(self._began + self._seconds - time.monotonic(), 0)):
                await _gone(self._receive)
            self.why = _GoneAway()
        except TimeoutError:
            self.why = Refused(f"the request took more than {self._seconds:g} s", 504)
        self._result.cancel()


class _GoneAway(Exception):
    """The client closed its connection."""


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _refusal(error: Refused, model: Model | None = None) -> Response:
    return Response(error.status, protocol.dumps({"error": str(error)}), JSON, model)


def _json(value: Any, status: int = 200) -> Response:
    return Response(status, protocol.dumps(value), JSON)


def _described(model: Model) -> dict[str, Any]:
    """Return what the page shows of a model."""
    functions = {
        name: {
            "inputs": {key: str(spec) for key, spec in one.signature.inputs.items()},
            "outputs": {key: str(spec) for key, spec in one.signature.outputs.items()},
            "flops": one.flops,
            "alone": one.alone,
            "sample": one.sample(),
        }
        for name, one in model.functions.items()
    }
    return {"name": model.name, "version": model.version, "functions": functions}


def app(artifacts: Any, *, limits: Limits | None = None, metrics: Metrics | None = None, **options: Any) -> App:
    """Return an ASGI application that serves artifacts.

    It speaks the Open Inference Protocol v2 (``/v2/models/NAME/infer``) and TensorFlow Serving's REST
    (``/v1/models/NAME:predict``), and has a page at ``/`` and ``/metrics``. The models are loaded when it starts.

    Args:
        artifacts: a path or several: artifacts, or directories of models and versions such as ``models/digits/3``.
        limits: limits on the artifacts and their calls.
        metrics: where requests are counted.
        options: see `Options`.
    """
    paths = [artifacts] if isinstance(artifacts, str | Path) else artifacts
    return App([Path(one) for one in paths], Options(**options), limits, metrics or Metrics(), Aside())

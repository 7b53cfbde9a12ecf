"""A real server under mutated requests, overload, and clients that go away."""

from __future__ import annotations

import http.client
import json
import os
import random
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from exported_models import MODELS
from served import Running

import hybridflow as hf
from hybridflow.backend.process_memory import process_memory
from hybridflow.serve.load import load, target

MUTATED = int(os.environ.get("HYBRIDFLOW_SERVED", "600"))
OVERLOAD_SECONDS = float(os.environ.get("HYBRIDFLOW_OVERLOAD_SECONDS", "3"))
ROW = {"instances": [[0.5] * 12]}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in ("mlp", "gpt"):
        hf.export.save(folder / f"{name}.hf", MODELS[name].make(), MODELS[name].spec)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Running, Path]]:
    pytest.importorskip("uvicorn")
    log = tmp_path_factory.mktemp("log") / "log"
    running = Running(models / "mlp.hf", models / "gpt.hf", "--max-body", 1 << 20, log=log)
    yield running, log
    assert running.end() == 0


# -- mutated requests -------------------------------------------------------------------------------------------------


def _binary() -> tuple[dict[str, str], bytes]:
    x = {"name": "x", "shape": [2, 12], "datatype": "FP32", "parameters": {"binary_data_size": 96}}
    head = json.dumps({"inputs": [x], "parameters": {"binary_data_output": True}}).encode()
    return {"inference-header-content-length": str(len(head))}, head + bytes(96)


def _valid() -> list[tuple[str, str, dict[str, str], bytes]]:
    x = {"name": "x", "shape": [1, 12], "datatype": "FP32", "data": [0.5] * 12}
    tokens = {"name": "tokens", "shape": [1, 4], "datatype": "INT32", "data": [1, 2, 3, 4]}
    post = [
        ("/v1/models/mlp:predict", {}, json.dumps(ROW).encode()),
        ("/v1/models/mlp/versions/1:predict", {}, b'{"inputs": {"x": [[1,2,3,4,5,6,7,8,9,10,11,12]]}}'),
        ("/v2/models/mlp/infer", {}, json.dumps({"id": "7", "inputs": [x], "outputs": [{"name": "logits"}]}).encode()),
        ("/v2/models/mlp/versions/1/infer", *_binary()),
        ("/v2/models/gpt/infer", {}, json.dumps({"inputs": [tokens]}).encode()),
        ("/v1/models/gpt:predict", {}, b'{"signature_name": "predict", "instances": [[1, 2], [3, 4]]}'),
    ]
    got = ["/", "/metrics", "/models", "/v2", "/v2/health/ready", "/v2/models/mlp", "/v1/models/mlp/metadata"]
    return [("POST", *one) for one in post] + [("GET", one, {}, b"") for one in got]


WORDS = [
    b"[", b"]", b"{", b"}", b"null", b"-1", b"1e999", b"NaN", b'"', b",", b":", b"true", b"9" * 30, b"\x00", b"\xff",
    b'"shape"', b'"BYTES"', b"[[[[[[[[", b"-0", b"1e-400", b"\r\n", b" ", b"%00", b"../", b"0", b"99999999",
]


def mutated(rng: random.Random, data: bytes, most: int) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randint(1, most)):
        place, kind = rng.randint(0, len(changed)), rng.randrange(4)
        if kind == 0:
            changed[place : place + rng.randint(0, 8)] = rng.choice(WORDS)
        elif kind == 1:
            changed[place : place + 1] = rng.randbytes(rng.randint(0, 3))
        elif kind == 2:
            changed[place:place] = changed[place : place + rng.randint(0, 40)]
        else:
            del changed[place : place + rng.randint(0, 20)]
    return bytes(changed)


def with_another_body(running: Running, rng: random.Random, connection: http.client.HTTPConnection) -> int:
    """Send a body that was changed under a head that is right; there must be an answer."""
    method, path, headers, body = rng.choice(_valid())
    connection.request(method, path, mutated(rng, body, 4) if body else None, headers)
    response = connection.getresponse()
    answer = response.read()
    assert response.status < 400 or method == "GET" or json.loads(answer)["error"]
    return response.status


def with_another_head(running: Running, rng: random.Random) -> int:
    """Send a request that was changed anywhere, and nothing more; the connection must end."""
    method, path, headers, body = rng.choice(_valid())
    fields = {"host": "x", "content-length": str(len(body)), "connection": "close", **headers}
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *[f"{k}: {v}" for k, v in fields.items()], "", ""]).encode()
    with socket.create_connection(("127.0.0.1", running.port), 20) as connection:
        received = b""
        try:
            connection.sendall(mutated(rng, head, 3) + body)
            if rng.random() < 0.5:
                connection.shutdown(socket.SHUT_WR)
            else:
                connection.settimeout(0.3)  # a request that is not complete gets its time
            while part := connection.recv(65536):
                received += part
        except (ConnectionError, TimeoutError):
            pass
    return int(received[9:12]) if received.startswith(b"HTTP/1.1 ") else 0


def test_mutated_requests_are_answered_or_refused(server: tuple[Running, Path]):
    running, log = server
    workers = running.workers()

    def several(seed: int) -> Counter[int]:
        rng, statuses = random.Random(seed), Counter[int]()
        with closing(http.client.HTTPConnection("127.0.0.1", running.port, timeout=20)) as connection:
            for _ in range(MUTATED // 4):
                if rng.random() < 0.6:
                    statuses[with_another_body(running, rng, connection)] += 1
                else:
                    statuses[with_another_head(running, rng)] += 1
        return statuses

    with ThreadPoolExecutor(4) as pool:
        statuses = sum(pool.map(several, range(4)), Counter[int]())
    assert running.workers() == workers
    assert running.ask("/v1/models/mlp:predict", ROW)[0] == 200
    assert {status for status in statuses if status >= 500} <= {503, 505}, statuses
    assert statuses[200] > MUTATED / 20, statuses
    assert statuses[400] > MUTATED / 5, statuses
    assert "fault" not in log.read_text(encoding="utf-8")
    print(statuses)


# -- overload ---------------------------------------------------------------------------------------------------------


def resident(pid: int) -> int:
    """Return the resident memory of a process in bytes."""
    memory = process_memory(pid)
    assert memory is not None
    return memory.resident


def test_overload_takes_bounded_memory_and_loses_nothing(models: Path, tmp_path: Path):
    """Every connection that was accepted gets an answer: a result, or 503 at once."""
    pytest.importorskip("uvicorn")
    running = Running(models / "mlp.hf", "--max-queue", 16, "--max-batch", 8, log=tmp_path / "log")
    (worker,) = running.workers()
    made = target(f"http://127.0.0.1:{running.port}/v1/models/mlp:predict", json.dumps(ROW).encode())
    load(made, clients=64, requests=2000, seconds=OVERLOAD_SECONDS)  # until its memory is what it stays at
    before = resident(worker)
    figures = load(made, clients=128, requests=10_000_000, seconds=OVERLOAD_SECONDS)
    assert {*figures.statuses} == {200, 503}, figures.text()
    assert figures.broken == 0
    assert figures.percentile(99) < 5
    grown = resident(worker) - before
    assert grown < 64 << 20, grown
    assert running.workers() == [worker]
    assert running.ask("/v1/models/mlp:predict", ROW)[0] == 200
    assert running.end() == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text(encoding="utf-8").splitlines()]
    logged = Counter([one["status"] for one in lines if one.get("path", "").endswith(":predict")])
    assert logged[503] >= figures.statuses[503]
    print(figures.text(), "grown by", grown)


# -- ends -------------------------------------------------------------------------------------------------------------


def request(body: Any, path: str = "/v1/models/mlp:predict", *fields: str) -> bytes:
    data = json.dumps(body).encode()
    given = [f"content-length: {len(data)}", "connection: close", *fields]
    head = [f"POST {path} HTTP/1.1", "host: localhost", *given, "", ""]
    return "\r\n".join(head).encode() + data


def test_connections_that_wait_at_sigterm_are_served(models: Path):
    pytest.importorskip("uvicorn")
    running = Running(models / "mlp.hf")
    (worker,) = running.workers()
    os.kill(worker, signal.SIGSTOP)
    waiting = [socket.create_connection(("127.0.0.1", running.port), 20) for _ in range(40)]
    for one in waiting:
        one.sendall(request(ROW))
    running.process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    os.kill(worker, signal.SIGCONT)
    for one in waiting:
        with one:
            assert one.recv(65536).startswith(b"HTTP/1.1 200")
    assert running.process.wait(12) == 0
    assert running.end() == 0


def test_new_connections_are_served_or_refused_while_a_server_ends(models: Path):
    """None is reset after it was accepted."""
    pytest.importorskip("uvicorn")
    running = Running(models / "mlp.hf", "--workers", 2)
    until = time.monotonic() + 20

    def ask() -> Counter[str]:
        outcomes = Counter[str]()
        while time.monotonic() < until:
            try:
                connection = socket.create_connection(("127.0.0.1", running.port), 5)
            except OSError:
                outcomes["refused"] += 1
                return outcomes
            with connection:
                connection.sendall(request(ROW))
                outcomes[connection.recv(65536)[:12].decode()] += 1
        return outcomes

    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask) for _ in range(8)]
        time.sleep(1)
        workers = running.workers()
        began = time.monotonic()
        assert running.end() == 0
        assert time.monotonic() - began < 10
    outcomes = sum([one.result() for one in asked], Counter[str]())
    assert outcomes.keys() == {"HTTP/1.1 200", "refused"}, outcomes
    assert outcomes["refused"] == 8
    assert not [one for one in workers if Path(f"/proc/{one}").exists()]


def test_a_client_that_goes_away_frees_its_place(models: Path):
    pytest.importorskip("uvicorn")
    # Requests wait for a batch of 8 for as long as two seconds: one that leaves is in none.
    running = Running(models / "mlp.hf", "--max-queue", 4, "--max-batch", 8, "--max-delay", "2s")
    long = [socket.create_connection(("127.0.0.1", running.port), 20) for _ in range(4)]
    for one in long:
        one.sendall(request(ROW))
    time.sleep(0.5)
    gone = running.ask("/metrics")[1]
    for one in long:
        one.close()
    deadline = time.monotonic() + 10
    while "hybridflow_queue 0\n" not in running.ask("/metrics")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert re.search(r"hybridflow_queue \d", gone)
    assert running.ask("/v1/models/mlp:predict", ROW)[0] == 200
    assert running.end() == 0

"""A model behind a port: `hybridflow serve` beside LitServe, in turns, and beside calling the loaded function.

Command line: ``python -m tests.benchmarks.serving [--rounds N] [--seconds S]``. Both serve the same weights
(784-128-10) to the same JSON body, in batches, with one worker each. `instantly` is a server that answers without
computing anything: what these clients can do at most.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import hybridflow as hf
from hybridflow.serve.load import Figures, Target, load, target, together

MAX_BATCH, MAX_DELAY = 32, 0.002
CLIENTS = (1, 32)
OURS, PEER, INSTANTLY = "hybridflow", "litserve", "instantly"
NEEDS = ("litserve", "torch", "zmq")

_INSTANTLY = """
import asyncio, sys
body = b'{"predictions": [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0]]}'
answer = b"HTTP/1.1 200 OK\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(body) + body
class Instantly(asyncio.Protocol):
    size = 0
    def connection_made(self, transport): self.transport = transport
    def data_received(self, data):
        self.size += len(data)
        if self.size >= int(sys.argv[2]):
            self.size = 0
            self.transport.write(answer)
async def serve():
    loop = asyncio.get_running_loop()
    await (await loop.create_server(Instantly, "127.0.0.1", int(sys.argv[1]))).serve_forever()
asyncio.run(serve())
"""


def free_port() -> int:
    """Return a port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


@contextmanager
def running(command: list[str], made: Target) -> Iterator[None]:
    """Run a server in a process group of its own until it answers; end all of the group afterwards."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        try:
            until = time.monotonic() + 120
            while load(made, clients=1, requests=1, seconds=5).statuses.get(200) != 1:
                if process.poll() is not None or time.monotonic() > until:
                    output.seek(0)
                    raise RuntimeError(f"{command}: {output.read().decode()[-2000:]}")
                time.sleep(0.2)
            yield
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a server left behind
            process.wait()


def commands(folder: Path, names: list[str], body: bytes) -> dict[str, tuple[list[str], Target]]:
    """Return each server's command and the request that is made of it."""
    hf.random.seed(0)
    net = hf.nn.Sequential(hf.nn.Linear(784, 128), hf.nn.relu, hf.nn.Linear(128, 10))
    hf.export.save(folder / "digits.hf", net, hf.TensorSpec([None, 784]))
    weights = hf.export.load(folder / "digits.hf", copy=True).named_variables()
    np.savez(folder / "weights.npz", allow_pickle=False, **{name: np.asarray(one) for name, one in weights.items()})
    made: dict[str, tuple[list[str], Target]] = {}
    for name in names:
        port = free_port()
        path = "/predict" if name == PEER else "/v1/models/digits:predict"
        one = target(f"http://127.0.0.1:{port}{path}", body)
        arguments: Mapping[str, list[Any]] = {
            OURS: ["-m", "hybridflow", "serve", folder / "digits.hf", "--port", port, "--max-batch", MAX_BATCH,
                   "--max-delay", MAX_DELAY, "--quiet"],
            PEER: ["-m", "tests.benchmarks.serving_peer", folder / "weights.npz", port, MAX_BATCH, MAX_DELAY],
            INSTANTLY: ["-c", _INSTANTLY, port, len(one.data)],
        }
        made[name] = [sys.executable, *map(str, arguments[name])], one
    return made


def call_seconds(folder: Path, row: Any, calls: int) -> float:
    """Return the median seconds of calling the loaded function, compiled, with one row."""
    function = hf.compile(hf.export.load(folder / "digits.hf", copy=True).predict)
    times: list[float] = []
    for _ in range(calls):
        start = time.perf_counter()
        np.asarray(function(row))
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def measure(rounds: int, seconds: float, say: Callable[[str], None]) -> tuple[dict[tuple[str, int], Figures], float]:
    """Return the figures by server and number of clients, and the seconds of a call without a server."""
    absent = [name for name in NEEDS if find_spec(name) is None]
    if absent:
        say(f"{PEER}: {', '.join(absent)} not installed")
    row = np.random.default_rng(0).random((1, 784)).round(4)
    body = json.dumps({"instances": row.tolist()}).encode()
    found: dict[tuple[str, int], list[Figures]] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = commands(folder, [OURS, *([] if absent else [PEER]), INSTANTLY], body)
        for command, one in servers.values():
            stack.enter_context(running(command, one))
        for name, clients in [(name, clients) for clients in CLIENTS for name in servers]:  # one turn to get warm
            load(servers[name][1], clients=clients, requests=1000, seconds=seconds)
        for _ in range(rounds):
            for clients in CLIENTS:
                for name, (_, one) in servers.items():
                    figures = load(one, clients=clients, requests=1_000_000, seconds=seconds)
                    found.setdefault((name, clients), []).append(figures)
        alone = call_seconds(folder, row.astype(np.float32), 50 if seconds < 1 else 3000)
    return {key: together(several) for key, several in found.items()}, alone


def main(arguments: list[str] | None = None) -> int:
    """Run the servers in turns; the exit status is 1 if a response was no 200."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.serving", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="how often the servers take turns")
    parser.add_argument("--seconds", type=float, default=3.0, help="how long a turn takes")
    options = parser.parse_args(arguments)
    found, alone = measure(options.rounds, options.seconds, lambda text: print(text, file=sys.stderr))
    table = Table("server", "clients", "requests/s", "p50 (ms)", "p95 (ms)", "p99 (ms)", "responses that are no 200")
    for (name, clients), one in found.items():
        bad = sum([count for status, count in one.statuses.items() if status != 200]) + one.broken
        parts = [f"{1e3 * one.percentile(part):.2f}" for part in (50, 95, 99)]
        table.add_row(name, str(clients), f"{one.rate:.0f}", *parts, str(bad))
    console = Console(width=100)
    console.print(table)
    console.print(f"calling the loaded function, compiled, with one row: {1e3 * alone:.3f} ms; load {os.getloadavg()}")
    return int(any([{*one.statuses} != {200} or one.broken for one in found.values()]))


if __name__ == "__main__":
    sys.exit(main())

"""Training, saving, exporting and serving side by side, with faults at random: `python tests/soak.py --minutes 20`.

Faults are kills, a full disk, memory that runs out, damaged files, requests of any size, clients that are slow or go
away. A run that was broken off must end with the bytes of the run that was not; a server must answer rightly or refuse,
and recover; and nothing may be left behind.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import killed
import numpy as np
from served import Running

import hybridflow as hf

HERE, WAYS = Path(__file__).parent, ("eager", "compiled")
PATIENCE = 90.0
"""Seconds after a fault by which a server must answer again."""
X = np.arange(8, dtype=np.float32).reshape(2, 4)


LIMITS = {"full disk": (resource.RLIMIT_FSIZE, 100, 4000), "memory": (resource.RLIMIT_AS, 1 << 29, 3 << 30)}
"""The limits that stand for faults, each between two sizes."""


def run(arguments: Sequence[Any], fault: str, rng: random.Random, environment: dict[str, str]) -> tuple[int, str]:
    """Run a program of this folder with a fault; return its status and what it printed."""
    process = subprocess.Popen(
        [sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        bufsize=0,  # what is read ahead of a line would be lost to `communicate`
        env={**os.environ, "PYTHONPATH": str(HERE.parent), **environment},
    )
    if fault in LIMITS:
        limit, least, most = LIMITS[fault]
        size = rng.randrange(least, most)
        resource.prlimit(process.pid, limit, (size, size))
    printed = b""
    if fault == "kill":
        assert process.stdout is not None
        # A training says each step; an export says that it begins.
        for _ in range(rng.randrange(1, killed.STEPS) if "train" in arguments else 1):
            printed += process.stdout.readline()
        time.sleep(rng.random() * 0.05)
        process.kill()
    printed += process.communicate(timeout=600)[0]
    return process.returncode, printed.decode()


def damage(path: Path, rng: random.Random) -> None:
    """Change a byte of a file."""
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    path.write_bytes(content)


class Soak:
    """The parts that run side by side, each in a thread, until the time is over or a part fails.

    Args:
        folder: where everything is.
        minutes: how long it runs.
        seed: of the faults.
    """

    def __init__(self, folder: Path, minutes: float, seed: int) -> None:
        self.folder, self.until, self.seed = folder, time.monotonic() + 60 * minutes, seed
        self.counts: Counter[str] = Counter()
        self.failure: BaseException | None = None
        self.good: set[float] = set()
        self.environment = {"HYBRIDFLOW_CACHE_DIR": str(folder / "store")}
        self.server: Any = None
        self.killed_at = 0.0

    @property
    def over(self) -> bool:
        """Whether to end."""
        return time.monotonic() > self.until or self.failure is not None

    def run(self) -> Counter[str]:
        """Run all parts, and return how often each thing happened."""
        (self.folder / "models").mkdir()
        self.good.add(1.0)
        export(self.folder / "models" / "m" / "1", 1.0)
        outer = lambda x: hf.reshape(x, (-1, 1)) * hf.reshape(x, (1, -1))  # noqa: E731
        hf.export.save(self.folder / "models" / "outer.hf", outer, hf.TensorSpec([None]))
        self.server = Running(self.folder / "models", "--workers", 2, "--reload", "0.2s", "--max-memory", "256MiB")
        parts = (self.train, self.export, self.ask, self.ask, self.ask_for_much, self.be_slow, self.kill_workers)
        threads = [threading.Thread(target=self._part, args=(part, n)) for n, part in enumerate(parts)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        workers = self.server.workers()
        status = self.server.end()
        if self.failure is not None:
            raise self.failure
        assert status == 0
        assert not [one for one in workers if Path(f"/proc/{one}").exists()]
        export(self.folder / "models" / "m" / "1", 1.0)
        left = [path for path in (self.folder / "models").rglob("*") if path.name.endswith((".part", ".new"))]
        assert not left, left
        assert not [*Path(tempfile.gettempdir()).glob("hybridflow-*")]
        return self.counts

    def _part(self, part: Callable[[random.Random], None], number: int) -> None:
        rng = random.Random(self.seed * 100 + number)
        try:
            while not self.over:
                part(rng)
        except BaseException as error:
            self.failure = self.failure or error

    def train(self, rng: random.Random) -> None:
        """Train, with faults, until the run ends; it ends with the bytes of a run without any."""
        how, number = rng.choice(WAYS), self.counts["runs"]
        directory = self.folder / f"run {number}"
        straight = self.folder / how
        program = HERE / "killed.py"
        expected = run([program, "train", straight, how], "none", rng, self.environment)
        assert expected[0] == 0
        for fault in [*rng.choices(["kill", "full disk", "memory"], k=4), "none"]:
            found = sorted(directory.glob("**/*.safetensors"), key=lambda one: one.stat().st_mtime)
            if len(found) > 1 and rng.random() < 0.5:  # the run goes on from the checkpoint before
                damage(found[-1], rng)
                self.counts["damaged checkpoints"] += 1
            status, printed = run([program, "train", directory, how], fault, rng, self.environment)
            self.counts[f"training, {fault}: {'ended' if status == 0 else 'broken off'}"] += 1
            assert fault != "none" or status == 0, (status, printed)
            if status == 0:
                assert printed.split()[-1] == expected[1].split()[-1], (how, fault, printed, expected)
                break
        assert killed.numbers_logged(directory) == killed.numbers_logged(straight)
        self.counts["runs"] += 1

    def export(self, rng: random.Random) -> None:
        """Export a version, with a fault or damaged afterwards."""
        number = rng.randrange(2, 6)
        factor = float(rng.randrange(2, 1 << 20))
        fault = rng.choice(["none", "kill", "full disk", "damaged file"])
        target = self.folder / "models" / "m" / str(number)
        if fault == "damaged file":
            other = self.folder / "elsewhere" / str(number)
            export(other, factor)
            damage(rng.choice([path for path in other.rglob("*") if path.is_file()]), rng)
            away = self.folder / f"away {time.time_ns()}"
            if target.exists():
                target.rename(away)
            other.rename(target)
        else:
            self.good.add(factor)
            run([__file__, "export", target, factor], fault, rng, self.environment)
        self.counts[f"exported, {fault}"] += 1
        time.sleep(rng.random())

    def asked(self, path: str, inputs: Any) -> tuple[int, Any]:
        """Ask the server; the status is 0 if the connection ends, which may be only if a worker was just killed."""
        began = time.monotonic()
        try:
            return self.server.ask(path, {"inputs": inputs}, timeout=120)
        except (OSError, http.client.HTTPException) as error:
            if self.killed_at < began - PATIENCE:
                raise
            return 0, repr(error)

    def ask(self, rng: random.Random) -> None:
        """Ask for a prediction until it is answered, which may take a while after a worker was killed."""
        until = time.monotonic() + PATIENCE
        while True:
            status, answer = self.asked("/v1/models/m:predict", X.tolist())
            self.counts[f"asked: {status}"] += 1
            if status == 200:
                break
            assert status in (0, 503, 504), (status, answer)
            assert time.monotonic() < until, (status, answer)
            time.sleep(0.05)
        values = np.float32(answer["outputs"])
        assert np.array_equal(values, X * values[0, 1]), values
        assert float(values[0, 1]) in self.good, values
        time.sleep(0.1 * rng.random())

    def ask_for_much(self, rng: random.Random) -> None:
        """Ask for something of any size: it is right, or refused by its size."""
        length = int(10 ** rng.uniform(0, 5.3))
        status, answer = self.asked("/v1/models/outer:predict", [1.0] * length)
        self.counts[f"asked for much: {status}"] += 1
        assert status in (0, 200, 413, 503, 504), (status, answer)
        assert (status == 413) == (4 * length**2 > 256 << 20) or status in (0, 503, 504), (status, length)
        time.sleep(rng.random())

    def be_slow(self, rng: random.Random) -> None:
        """Send a part of a request, wait, and go away."""
        text = b"POST /v1/models/m:predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 100\r\n\r\n" + b"[" * 100
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(text[: rng.randrange(len(text))])
            time.sleep(rng.uniform(0, 5))
        self.counts["slow clients"] += 1

    def kill_workers(self, rng: random.Random) -> None:
        """Kill one of the server's workers now and then."""
        time.sleep(rng.uniform(10, 40))
        if workers := self.server.workers():
            self.killed_at = time.monotonic()
            os.kill(rng.choice(workers), signal.SIGKILL)
            self.counts["killed workers"] += 1


def export(path: Path, factor: float) -> None:
    """Export a model that multiplies by a factor."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weight = hf.Variable(np.full((4,), factor, np.float32))
    hf.export.save(path, lambda x: x * weight, hf.TensorSpec([None, 4]), overwrite=True)


def main() -> None:
    """Run for some minutes; print what happened."""
    if sys.argv[1:2] == ["export"]:
        print("begin", flush=True)
        export(Path(sys.argv[2]), float(sys.argv[3]))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 10_000)
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        (Path(name) / "temporary").mkdir()
        tempfile.tempdir = os.environ["TMPDIR"] = str(Path(name) / "temporary")
        counts = Soak(Path(name), given.minutes, given.seed).run()
    print(json.dumps(dict(sorted(counts.items())), indent=1))


if __name__ == "__main__":
    main()

"""A process whose memory runs out again and again, each time a little later: its state must stay whole.

    python tests/out_of_memory.py step|adam|mesh|eager|served TRIES

It prints the outcomes and their counts, as JSON.
"""

from __future__ import annotations

import ctypes
import json
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import jax
import numpy as np

if sys.argv[1] == "mesh":
    jax.config.update("jax_num_cpu_devices", 2)

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import OutOfMemoryError
from hybridflow.serve.batcher import Batcher
from hybridflow.serve.models import Servable
from hybridflow.serve.protocol import Refused

WIDTH, ROWS, MOST = 512, 2048, 48 << 20
"""The layers' width, the batch, and the memory of the last try: more than a step takes."""
Arrays = Sequence[np.ndarray[Any, Any]]


@contextmanager
def room(size: int) -> Generator[None]:
    """Let the process take so many bytes more and no others, from within its heap neither."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    held: list[np.ndarray[Any, Any]] = []
    try:
        resource.setrlimit(resource.RLIMIT_AS, (taken, before[1]))
        with suppress(MemoryError):
            while True:  # XLA leaves the heap with gaps of tens of megabytes
                held.append(np.empty(1 << 16, np.uint8))
        resource.setrlimit(resource.RLIMIT_AS, (taken + size, before[1]))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Net(nn.Module):
    """A layer with batch statistics and dropout, and a classifier."""

    def __init__(self) -> None:
        self.first, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm(WIDTH)
        self.dropout, self.last = nn.Dropout(0.2), nn.Linear(WIDTH, 16)

    def forward(self, x: Any) -> Any:
        return self.last(self.dropout(nn.relu(self.norm(self.first(x)))))


def batch() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    return (hf.asarray(rng.normal(size=(ROWS, WIDTH)).astype("float32")),
            hf.asarray(rng.integers(0, 16, ROWS).astype("int32")))


def step_of(kind: str) -> tuple[Callable[..., Any], list[hf.Variable]]:
    """Return a training step, and the Variables that a failed call leaves alone."""
    if kind == "step":
        w = hf.Variable(np.ones((WIDTH, WIDTH), np.float32))

        def descend(x: Any, y: Any) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(hf.tanh(x @ w) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        return hf.compile(descend), [w]
    net = Net()
    optimizer = hf.optim.Adam(net, rate=1e-3, clip=1.0)

    def train(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        optimizer.update(tape.gradient(loss, net))
        return loss

    owned = [*optimizer.named_variables().values(), *[one for one in net.parameters() if one.trainable]]
    if kind == "eager":  # eager code keeps what it assigned and drew before it failed
        return train, owned
    states = [*net.named_buffers().values(), *hf.random.default_generator().named_variables().values()]
    mesh = {"mesh": hf.Mesh({"data": 2}), "batch": "data"} if kind == "mesh" else {}
    return hf.compile(train, **mesh), [*owned, *states]


def values(variables: Sequence[hf.Variable]) -> Arrays:
    return [one.numpy().copy() for one in variables]


def same(first: Arrays, second: Arrays) -> bool:
    return all(np.array_equal(one, other) for one, other in zip(first, second, strict=True))


def train(kind: str, tries: int) -> Mapping[str, int]:
    hf.random.seed(0)
    step, variables = step_of(kind)
    given = batch()
    step(*given)
    step(*given)
    before = values(variables)

    def back() -> None:
        for variable, value in zip(variables, before, strict=True):
            variable.assign(value)

    step(*given)
    after = values(variables)
    outcomes: Counter[str] = Counter()
    for number in range(tries):
        step(*given)  # XLA has the values, and the process the memory that a step leaves it with
        back()
        try:
            with room(MOST * number // tries):
                step(*given).numpy()
        except OutOfMemoryError:
            outcomes["raised, and nothing changed" if same(values(variables), before) else "raised, and changed"] += 1
        else:
            right = kind == "eager" or same(values(variables), after)  # eager code drew other numbers for its dropout
            outcomes["computed" if right else "wrong"] += 1
        back()
    return outcomes


def served(tries: int) -> Mapping[str, int]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.hf"
        hf.export.save(path, lambda x: hf.reshape(x, (-1, 1)) * hf.reshape(x, (1, -1)), hf.TensorSpec([3000]))
        servable = Servable(hf.export.load(path).predict, 8)
    batcher = Batcher(8, 0, 8)
    for warm_up in servable.warmups():
        batcher.compute(warm_up, "")
    x = np.arange(3000, dtype=np.float32)
    outcomes: Counter[str] = Counter()
    for number in range(tries):
        try:
            with room(MOST * number // tries):
                result: Future[Any] = Future()
                batcher.submit(servable, {"x": x}, result)
                (answer,) = result.result(60).values()
        except Refused as error:
            outcomes["raised, and nothing changed" if error.status == 503 else "raised, and changed"] += 1
            continue
        outcomes["computed" if np.array_equal(answer, x[:, None] * x) else "wrong"] += 1
    batcher.stop()
    return outcomes


if __name__ == "__main__":
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed goes back, so that a limit is one
    kind, tries = sys.argv[1], int(sys.argv[2])
    print(json.dumps(served(tries) if kind == "served" else train(kind, tries)))

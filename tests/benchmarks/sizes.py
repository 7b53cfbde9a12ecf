"""Programs whose inputs have many sizes: what compiling costs them, and what padding does.

Command line: ``python -m tests.benchmarks.sizes [PROGRAM ...] [--way WAY ...]``. An epoch calls a function with real
sizes: a GPT that writes a text letter by letter, the updates of REINFORCE, an LSTM that learns which topic of Python's
documentation a paragraph belongs to. Each way runs in a process of its own, for two epochs; the second one of `exact`
is what a program takes with all sizes compiled beforehand. `by hand` is the program that users write who pad to powers
of two with masks of their own. The same programs, with the same first weights, run in PyTorch (``torch.compile`` with
``dynamic=True``) and padded by hand in JAX (`jax.jit`), where these are installed.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pydoc_data.topics import topics
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
import hybridflow.tracing.choice as choice
from hybridflow import nn

from .alone import run_each_alone
from .sizes_peers import Peer, Weights, jax_side, torch_side


class Program(NamedTuple):
    """A program with many sizes.

    Attributes:
        model: what it runs or trains, with all sizes known.
        step: the function that is compiled.
        epoch: calls a step with the arguments of an epoch; returns a number that all ways must agree on.
        masked: the same function of padded arguments, with a mask or the real size as the last one.
        pad: returns the padded arguments.
    """

    model: nn.Module
    step: Callable[..., Any]
    epoch: Callable[[Callable[..., Any]], float]
    masked: Callable[..., Any]
    pad: Callable[..., tuple[Any, ...]]


TEXT = "\n".join(topics.values())
LETTERS = sorted(set(TEXT))


def ids(text: str) -> Any:
    """Return a text's letters as numbers."""
    return np.array([LETTERS.index(letter) for letter in text], np.int32)


# -- a GPT that writes ------------------------------------------------------------------------------------------------

LONGEST, WIDTH, HEADS, BLOCKS = 256, 128, 4, 4


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(), nn.LayerNorm()
        self.attend = nn.MultiHeadAttention(WIDTH, HEADS, is_causal=True)
        self.mlp = nn.Sequential(nn.Linear(4 * WIDTH), nn.gelu, nn.Linear(WIDTH))

    def forward(self, x: Any) -> Any:
        """Return the block's result."""
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A small GPT, without a cache of keys and values, as nanoGPT writes texts."""

    def __init__(self) -> None:
        self.embed, self.place = nn.Embedding(len(LETTERS), WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.blocks = [Block() for _ in range(BLOCKS)]
        self.norm, self.head = nn.LayerNorm(), nn.Linear(len(LETTERS), bias=False)

    def forward(self, x: Any, last: Any = None) -> Any:
        """Return the logits of the letter behind a place, or behind the last one."""
        x = self.embed(x) + self.place(hf.arange(x.shape[1], dtype=hf.int32))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, -1] if last is None else hf.take(x, last, axis=1)))


def room(size: int) -> int:
    """Return the power of two that a size is padded to."""
    return max(8, 1 << (size - 1).bit_length())


def gpt() -> Program:
    """Return the program that writes."""
    model = GPT()
    model(np.zeros((1, 1), np.int32))

    def logits(letters: Any) -> Any:
        return model(letters)

    def masked(letters: Any, count: Any) -> Any:
        return model(letters, count - 1)

    def pad(letters: Any) -> tuple[Any, ...]:
        size = letters.shape[1]
        return np.pad(letters, ((0, 0), (0, room(size) - size))), hf.asarray(size)

    def write(step: Callable[..., Any]) -> float:
        written, total = ids("T")[None], 0.0
        with hf.no_grad():
            while written.shape[1] < LONGEST:
                found = np.asarray(step(written))
                total += float(np.sum(found**2))
                written = np.concatenate([written, found.argmax(-1, keepdims=True).astype(np.int32)], axis=1)
        return total

    return Program(model, logits, write, masked, pad)


# -- REINFORCE --------------------------------------------------------------------------------------------------------


def reinforce() -> Program:
    """Return the program that learns from episodes, whose lengths grow as they do in practice."""
    policy = nn.Sequential(nn.Linear(4, 32), hf.tanh, nn.Linear(32, 2))
    optimizer = hf.optim.Adam(policy, rate=1e-2)

    def update(seen: Any, done: Any, returns: Any) -> Any:
        with hf.GradientTape() as tape:
            weights = (returns - hf.mean(returns)) / (hf.std(returns) + 1e-6)
            loss = hf.mean(nn.softmax_cross_entropy(policy(seen), done) * weights)
        optimizer.update(tape.gradient(loss, policy))
        return loss

    def masked(seen: Any, done: Any, returns: Any, real: Any) -> Any:
        count = hf.sum(real)
        away = (returns - hf.sum(returns * real) / count) * real
        weights = away / (hf.sqrt(hf.sum(away * away) / count) + 1e-6)
        with hf.GradientTape() as tape:
            loss = hf.sum(nn.softmax_cross_entropy(policy(seen), done) * weights) / count
        optimizer.update(tape.gradient(loss, policy))
        return loss

    def pad(seen: Any, done: Any, returns: Any) -> tuple[Any, ...]:
        size = len(seen)
        more = (0, room(size) - size)
        real = np.pad(np.ones(size, np.float32), more)
        return np.pad(seen, (more, (0, 0))), np.pad(done, more), np.pad(returns, more), real

    def play(step: Callable[..., Any]) -> float:
        rng, total = np.random.default_rng(0), 0.0
        for number in range(200):
            length = int(min(10 + number / 2 + rng.exponential(20), 200))
            seen = rng.standard_normal((length, 4)).astype(np.float32)
            done, returns = rng.integers(0, 2, length, dtype=np.int32), np.arange(length, 0, -1.0, np.float32)
            total += float(step(seen, done, returns))
        return total

    return Program(policy, update, play, masked, pad)


# -- an LSTM for texts ------------------------------------------------------------------------------------------------


class Classifier(nn.Module):
    """An LSTM that reads a text and names its topic."""

    def __init__(self, classes: int) -> None:
        self.embed, self.read = nn.Embedding(len(LETTERS), 32), nn.LSTM(32, 64)
        self.head = nn.Linear(64, classes)

    def forward(self, x: Any, real: Any = None) -> Any:
        """Return the logits of the topics."""
        y, _ = self.read(self.embed(x))
        if real is not None:
            return self.head(hf.sum(y * real[:, :, None], axis=1) / hf.sum(real))
        return self.head(hf.mean(y, axis=1))


def paragraphs() -> Iterator[tuple[Any, int]]:
    """Yield paragraphs of eight topics as numbers, with their topics."""
    chosen = sorted(topics, key=lambda name: -len(topics[name]))[:8]
    for label, name in enumerate(chosen):
        for text in itertools.islice([one for one in topics[name].split("\n\n") if len(one) > 20], 15):
            yield ids(text[:400]), label


def classifier() -> Program:
    """Return the program that learns from texts, each in its own length."""
    model = Classifier(8)
    optimizer = hf.optim.Adam(model, rate=3e-3)
    texts = [*paragraphs()]
    np.random.default_rng(0).shuffle(texts)  # pyright: ignore[reportArgumentType, reportCallIssue]

    def train(letters: Any, label: Any, real: Any = None) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(model(letters, real), label))
        optimizer.update(tape.gradient(loss, model))
        return loss

    def pad(letters: Any, label: Any) -> tuple[Any, ...]:
        size = letters.shape[1]
        more = ((0, 0), (0, room(size) - size))
        return np.pad(letters, more), label, np.pad(np.ones((1, size), np.float32), more)

    def read(step: Callable[..., Any]) -> float:
        return float(np.sum([float(step(text[None], np.array([label], np.int32))) for text, label in texts]))

    return Program(model, train, read, train, pad)


PROGRAMS = {"gpt": gpt, "reinforce": reinforce, "classifier": classifier}


def _ours(sizes: Any) -> Callable[[str, Program], Peer]:
    def way(name: str, program: Program) -> Peer:
        fast = hf.compile(program.step, sizes=sizes)
        return fast, lambda: fast.compile_count

    return way


def _by_hand(name: str, program: Program) -> Peer:
    fast = hf.compile(program.masked, sizes="exact")
    return lambda *args: fast(*program.pad(*args)), lambda: fast.compile_count


def _weights(program: Program) -> Weights:
    return {name: np.array(value) for name, value in program.model.named_parameters().items()}


def _jax(name: str, program: Program) -> Peer:
    step, count = jax_side(name, _weights(program), HEADS)
    return lambda *args: step(*program.pad(*args)), count


WAYS: Mapping[str, Callable[[str, Program], Peer]] = {
    "default": _ours("auto"),
    "bounded": _ours("bounded"),
    "by hand": _by_hand,
    "exact": _ours("exact"),
    "eager": lambda name, program: (program.step, lambda: 0),
    "torch.compile": lambda name, program: torch_side(name, _weights(program), HEADS),
    "jax.jit, by hand": _jax,
}
"""The ways to run a program: each returns its step, and what counts compilations."""
NEEDS = {"torch.compile": "torch", "jax.jit, by hand": "optax"}


def run(program: str, way: str) -> dict[str, Any]:
    """Run two epochs of a program in one way; return the figures."""
    hf.random.seed(0)
    made = PROGRAMS[program]()
    choice.EXECUTABLES = 1000  # all sizes stay compiled
    step, compilations = WAYS[way](program, made)
    figures: list[tuple[float, float]] = []
    with hf.config.cache(False):
        for _ in range(2):
            start = time.perf_counter()
            total = made.epoch(step)
            figures.append((time.perf_counter() - start, total))
    (first, total), (second, _) = figures
    return {"first": first, "second": second, "sum": total, "compilations": compilations()}


COLUMNS: dict[str, Callable[[Any], str]] = {
    "first epoch (s)": lambda figures: f"{figures['first']:.2f}",
    "second epoch (s)": lambda figures: f"{figures['second']:.2f}",
    "compilations": lambda figures: str(figures["compilations"]),
    "sum of results": lambda figures: f"{figures['sum']:.6g}",
}


def main(arguments: list[str] | None = None) -> int:
    """Run the programs; the exit status is 1 if a process failed."""
    return run_each_alone("tests.benchmarks.sizes", __doc__, PROGRAMS, WAYS, run, COLUMNS, arguments, NEEDS)


if __name__ == "__main__":
    sys.exit(main())

"""The networks whose steps are timed on a mesh, each with the same loss written for jax by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow import nn

CLASSES = 64
LAYERS, HEADS, SEQUENCES, LENGTH = 2, 8, 16, 64


class Mlp(nn.Module):
    """Two layers and a head."""

    def __init__(self, width: int, split: bool) -> None:
        self.up = nn.Linear(width, 4 * width, layouts="column:model" if split else None)
        self.down = nn.Linear(4 * width, width, layouts="row:model" if split else None)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Any) -> Any:
        """Return the classes' scores."""
        return self.head(self.down(nn.gelu(self.up(x))))


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int, split: bool) -> None:
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiHeadAttention(
            width, HEADS, features=width, is_causal=True, layouts="heads:model" if split else None
        )
        self.up = nn.Linear(width, 4 * width, layouts="column:model" if split else None)
        self.down = nn.Linear(4 * width, width, layouts="row:model" if split else None)

    def forward(self, x: Any) -> Any:
        """Return the block's output."""
        x = x + self.attend(self.norm(x))
        return x + self.down(nn.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """A language model."""

    def __init__(self, width: int, split: bool) -> None:
        self.table = nn.Embedding(CLASSES, width)
        self.blocks = [Block(width, split) for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, ids: Any) -> Any:
        """Return the scores of each next token."""
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def _linear(p: Any, name: str, x: Any) -> Any:
    return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]


def _mlp(p: Any, x: Any) -> Any:
    hidden = jax.nn.gelu(_linear(p, "up", x), approximate=False)
    return _linear(p, "head", _linear(p, "down", hidden))


def _norm(p: Any, name: str, x: Any) -> Any:
    mean, variance = jnp.mean(x, -1, keepdims=True), jnp.var(x, -1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * p[f"{name}.weight"] + p[f"{name}.bias"]


def _attend(p: Any, name: str, x: Any) -> Any:
    *rows, length, width = x.shape
    query, key, value = [
        _linear(p, f"{name}.{one}", x).reshape(*rows, length, HEADS, width // HEADS)
        for one in ("query", "key", "value")
    ]
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(width // HEADS).astype(np.float32)
    scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), value)
    return _linear(p, f"{name}.out", mixed.reshape(*rows, length, width))


def _gpt(p: Any, ids: Any) -> Any:
    x = p["table.weight"][ids]
    for index in range(LAYERS):
        block = f"blocks.{index}"
        x = x + _attend(p, f"{block}.attend", _norm(p, f"{block}.norm", x))
        hidden = jax.nn.gelu(_linear(p, f"{block}.up", _norm(p, f"{block}.norm2", x)), approximate=False)
        x = x + _linear(p, f"{block}.down", hidden)
    return _linear(p, "head", _norm(p, "norm", x))


def _rows(width: int, rng: np.random.Generator) -> tuple[Any, Any]:
    x = rng.normal(size=(128, width)).astype(np.float32)
    return x, rng.integers(0, CLASSES, 128).astype(np.int32)


def _texts(width: int, rng: np.random.Generator) -> tuple[Any, Any]:
    x, y = [rng.integers(0, CLASSES, (SEQUENCES, LENGTH)).astype(np.int32) for _ in range(2)]
    return x, y


class Network(NamedTuple):
    """A network to time.

    Attributes:
        make: makes it, from its width and whether it is split over the axis ``model``.
        of_jax: returns the scores, from parameters by name and the inputs.
        data: returns inputs and targets, from the width and a source of random numbers.
    """

    make: Callable[[int, bool], nn.Module]
    of_jax: Callable[[Any, Any], Any]
    data: Callable[[int, np.random.Generator], tuple[Any, Any]]


NETWORKS = {"mlp": Network(Mlp, _mlp, _rows), "gpt": Network(Gpt, _gpt, _texts)}

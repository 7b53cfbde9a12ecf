"""A decoder as in Llama: RMSNorm, rotary positions, grouped-query attention, gated networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridflow import nn
from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import drawn
from hybridflow.nn import init

SIZES: dict[str, dict[str, Any]] = {
    "llama2-7b": {"width": 4096, "blocks": 32, "heads": 32, "kv_heads": 32, "hidden": 11008, "tokens": 32000},
    "llama3-8b": {"width": 4096, "blocks": 32, "heads": 32, "kv_heads": 8, "hidden": 14336, "tokens": 128256,
                  "base": 500000.0, "epsilon": 1e-5},
    "tinyllama-1.1b": {"width": 2048, "blocks": 22, "heads": 32, "kv_heads": 4, "hidden": 5632, "tokens": 32000,
                       "epsilon": 1e-5},
}
"""The options of models that were published, by their names."""


class GatedMLP(nn.Module):
    """A network per position whose hidden layer is a product with a gate (SwiGLU).

    Args:
        width: the size of the last axis.
        hidden: the width of the hidden layer.

    Reference:
        Shazeer, "GLU variants improve transformer", 2020.
    """

    def __init__(self, width: int, hidden: int) -> None:
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        return self.down(nn.silu(self.gate(x)) * self.up(x))


class DecoderBlock(nn.Module):
    """Attention and a gated network, each of a normalised input and added to it.

    Args:
        width, heads, kv_heads, hidden, base, epsilon: as for `Llama`.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int, base: float, epsilon: float) -> None:
        self.norm1 = nn.RMSNorm(width, epsilon=epsilon)
        self.attend = nn.MultiHeadAttention(
            width, heads, kv_heads=kv_heads, features=width, is_causal=True, bias=False, rotary=True, base=base
        )
        self.norm2, self.mlp = nn.RMSNorm(width, epsilon=epsilon), GatedMLP(width, hidden)

    def forward(self, x: Tensor, cache: nn.KeyValueCache | None = None) -> Tensor:
        """Return ``(batch, length, width)``."""
        x = x + self.attend(self.norm1(x), cache=cache)
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """A decoder as in Llama: it predicts the next token.

    Args:
        width: the size of a position's vector.
        blocks: the number of blocks.
        heads: the number of heads of queries.
        kv_heads: the number of heads of keys and values, each shared by a group of queries' heads.
        hidden: the width of the gated networks.
        tokens: the number of tokens.
        base: the base of the rotary wavelengths.
        epsilon: the epsilon of the normalisations.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.Llama(width=16, blocks=1, heads=4, kv_heads=2, hidden=32, tokens=10)
        >>> ids = hf.asarray([[1, 2, 3]])
        >>> model(ids).shape
        (1, 3, 10)
        >>> caches = model.caches(1, 3)  # keys and values of earlier tokens: one token after the other
        >>> parts = [model(ids[:, t : t + 1], caches) for t in range(3)]
        >>> bool(hf.max(hf.abs(hf.concat(parts, axis=1) - model(ids))) < 1e-5)
        True

    Reference:
        Touvron et al., "Llama 2: open foundation and fine-tuned chat models", 2023; Ainslie et al., "GQA: training
        generalized multi-query transformer models from multi-head checkpoints", 2023.
    """

    def __init__(
        self,
        *,
        width: int = 2048,
        blocks: int = 22,
        heads: int = 32,
        kv_heads: int = 4,
        hidden: int = 5632,
        tokens: int = 32000,
        base: float = 10000.0,
        epsilon: float = 1e-6,
    ) -> None:
        self.tokens = drawn(nn.Embedding(tokens, width), init.normal(std=0.02))
        self.blocks = [DecoderBlock(width, heads, kv_heads, hidden, base, epsilon) for _ in range(blocks)]
        self.norm, self.head = nn.RMSNorm(width, epsilon=epsilon), nn.Linear(width, tokens, bias=False)

    def caches(self, batch: int, length: int) -> list[nn.KeyValueCache]:
        """Return empty caches, one for each block, for texts of up to `length` tokens."""
        return [block.attend.cache(batch, length) for block in self.blocks]

    def forward(self, ids: Tensor, caches: Sequence[nn.KeyValueCache] = ()) -> Tensor:
        """Return logits ``(batch, length, tokens)`` of integer ids ``(batch, length)``.

        Args:
            ids: the tokens; with `caches`, those that follow the ones before.
            caches: keys and values of earlier calls; those of this call are appended.
        """
        x = self.tokens(ids)
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None)
        return self.head(self.norm(x))


def llama(size: str = "tinyllama-1.1b", **options: Any) -> Llama:
    """Return a decoder of the sizes of a published model.

    Args:
        size: ``"llama2-7b"``, ``"llama3-8b"`` or ``"tinyllama-1.1b"``.
        options: as for `Llama`.

    Raises:
        ArgumentError: there is no such size.

    Example:
        >>> import hybridflow as hf
        >>> with hf.nn.init.abstract():  # 27 GB otherwise
        ...     model = hf.models.llama("llama2-7b")
        >>> sum(one.size for one in model.parameters())
        6738415616
    """
    if size not in SIZES:
        raise ArgumentError(f"llama: the sizes are {', '.join(SIZES)}", got=f"size={size!r}")
    return Llama(**{**SIZES[size], **options})

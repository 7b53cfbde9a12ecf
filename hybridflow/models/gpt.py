"""GPT-2: a transformer that predicts the next token."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from hybridflow import nn
from hybridflow.core.dtypes import int32
from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import Block, drawn
from hybridflow.nn import init
from hybridflow.ops.ranges import arange

SIZES = {"small": (768, 12, 12), "medium": (1024, 24, 16), "large": (1280, 36, 20), "xl": (1600, 48, 25)}
"""The width, the number of blocks and the number of heads, by the size's name."""


class GPT2(nn.Module):
    """GPT-2: pre-norm transformer blocks, learned positions, and a last layer that shares the table of tokens.

    Args:
        width: the size of a position's vector.
        blocks: the number of blocks.
        heads: the number of heads.
        tokens: the number of tokens.
        length: the largest number of positions.
        dropout: the probability that an element of a branch is dropped in training mode.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.GPT2(width=8, blocks=1, heads=2, tokens=10, length=6).eval()
        >>> ids = hf.asarray([[1, 2, 3]])
        >>> model(ids).shape
        (1, 3, 10)
        >>> caches = model.caches(1)  # keys and values of earlier tokens: one token after the other
        >>> parts = [model(ids[:, t : t + 1], caches) for t in range(3)]
        >>> bool(hf.max(hf.abs(hf.concat(parts, axis=1) - model(ids))) < 1e-5)
        True

    Reference:
        Radford et al., "Language models are unsupervised multitask learners", 2019.
    """

    def __init__(
        self,
        *,
        width: int = 768,
        blocks: int = 12,
        heads: int = 12,
        tokens: int = 50257,
        length: int = 1024,
        dropout: float = 0.1,
    ) -> None:
        self.tokens = drawn(nn.Embedding(tokens, width), init.normal(std=0.02))
        self.positions = drawn(nn.Embedding(length, width), init.normal(std=0.01))
        self.drop = nn.Dropout(dropout)
        gelu = functools.partial(nn.gelu, approximate=True)
        self.blocks = [
            Block(width, heads, 4 * width, is_causal=True, activation=gelu, dropout=dropout) for _ in range(blocks)
        ]
        self.norm = nn.LayerNorm(width)

    def caches(self, batch: int, length: int | None = None) -> list[nn.KeyValueCache]:
        """Return empty caches, one for each block, for texts of up to `length` tokens, at most the model's."""
        return [block.attend.cache(batch, length or self.positions.count) for block in self.blocks]

    def forward(self, ids: Tensor, caches: Sequence[nn.KeyValueCache] = ()) -> Tensor:
        """Return logits ``(batch, length, tokens)`` of integer ids ``(batch, length)``.

        Args:
            ids: the tokens; with `caches`, those that follow the ones before.
            caches: keys and values of earlier calls; those of this call are appended.
        """
        before: Any = caches[0].position.read() if caches else 0
        x = self.drop(self.tokens(ids) + self.positions(arange(ids.shape[1], dtype=int32) + before))
        for number, block in enumerate(self.blocks):
            x = block(x, cache=caches[number] if caches else None)
        return nn.linear(self.norm(x), self.tokens.weight)


def gpt2(size: str = "small", **options: Any) -> GPT2:
    """Return GPT-2 in one of its sizes.

    Args:
        size: ``"small"``, ``"medium"``, ``"large"`` or ``"xl"``.
        options: as for `GPT2`.

    Raises:
        ArgumentError: there is no such size.

    Example:
        >>> import hybridflow as hf
        >>> with hf.nn.init.abstract():  # 6 GB otherwise
        ...     model = hf.models.gpt2("xl")
        >>> sum(one.size for one in model.parameters())
        1557611200
    """
    if size not in SIZES:
        raise ArgumentError(f"gpt2: the sizes are {', '.join(SIZES)}", got=f"size={size!r}")
    width, blocks, heads = SIZES[size]
    return GPT2(**{"width": width, "blocks": blocks, "heads": heads, **options})

"""BERT: a transformer that reads a text in both directions."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.dtypes import bool_, int32
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.models.parts import Block, drawn
from hybridflow.nn import init
from hybridflow.ops.common import cast_to
from hybridflow.ops.ranges import arange
from hybridflow.ops.trigonometric import tanh


class BERT(nn.Module):
    """BERT: post-norm transformer blocks over the sums of embeddings of tokens, positions and segments.

    Args:
        width: the size of a position's vector.
        blocks: the number of blocks.
        heads: the number of heads.
        tokens: the number of tokens.
        length: the largest number of positions.
        segments: the number of segments.
        dropout: the probability that an element of a branch is dropped in training mode.
        epsilon: the epsilon of the normalisations.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.BERT(width=8, blocks=1, heads=2, tokens=10, length=6).eval()
        >>> hidden, pooled = model(hf.asarray([[1, 2, 3]]))
        >>> hidden.shape, pooled.shape
        ((1, 3, 8), (1, 8))

    Reference:
        Devlin et al., "BERT: pre-training of deep bidirectional transformers for language understanding", 2019.
    """

    def __init__(
        self,
        *,
        width: int = 768,
        blocks: int = 12,
        heads: int = 12,
        tokens: int = 30522,
        length: int = 512,
        segments: int = 2,
        dropout: float = 0.1,
        epsilon: float = 1e-12,
    ) -> None:
        small = init.normal(std=0.02)
        self.tokens = drawn(nn.Embedding(tokens, width), small)
        self.positions = drawn(nn.Embedding(length, width), small)
        self.segments = drawn(nn.Embedding(segments, width), small)
        self.norm, self.drop = nn.LayerNorm(width, epsilon=epsilon), nn.Dropout(dropout)
        options: dict[str, Any] = {"norm_first": False, "dropout": dropout, "epsilon": epsilon}
        self.blocks = [Block(width, heads, 4 * width, **options) for _ in range(blocks)]
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor, segments: Tensor | None = None, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return a vector for each token ``(batch, length, width)``, and one for the text ``(batch, width)``.

        Args:
            ids: the tokens, integers ``(batch, length)``.
            segments: the segment of each token; the first if not given.
            mask: ``(batch, length)``: true, or not 0, where there is a token and no padding.
        """
        x = self.tokens(ids) + self.positions(arange(ids.shape[1], dtype=int32))
        x = x + (self.segments.weight[0] if segments is None else self.segments(segments))
        x = self.drop(self.norm(x))
        attended: Any = None if mask is None else cast_to(as_tensor(mask), bool_)[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask=attended)
        return x, tanh(self.pooler(x[:, 0]))


def bert_base(**options: Any) -> BERT:
    """Return BERT-base; options as for `BERT`."""
    return BERT(**options)

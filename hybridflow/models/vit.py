"""ViT: a transformer over patches of an image."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import Block
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.ops.joining import concat
from hybridflow.ops.shape import broadcast_to, permute_dims, reshape


class ViT(nn.Module):
    """ViT: patches of an image and a class token go through a transformer; the token's result is classified.

    Args:
        size: the height and width of images.
        patch: the height and width of patches.
        width: the size of a patch's vector.
        blocks: the number of blocks.
        heads: the number of heads.
        hidden: the width of the network per position; ``4 * width`` if not given.
        classes: the number of classes.
        channels: the channels of images.
        dropout: the probability that an element of a branch is dropped in training mode.
        epsilon: the epsilon of the normalisations.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.ViT(size=8, patch=4, width=8, blocks=1, heads=2, classes=10)
        >>> model(hf.zeros((1, 3, 8, 8))).shape
        (1, 10)

    Reference:
        Dosovitskiy et al., "An image is worth 16x16 words: transformers for image recognition at scale", 2021.
    """

    def __init__(
        self,
        *,
        size: int = 224,
        patch: int = 16,
        width: int = 768,
        blocks: int = 12,
        heads: int = 12,
        hidden: int | None = None,
        classes: int = 1000,
        channels: int = 3,
        dropout: float = 0.0,
        epsilon: float = 1e-6,
    ) -> None:
        hidden = hidden or 4 * width
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = parameter(init.zeros((1, 1, width), "float32"), "token")
        length = (size // patch) ** 2 + 1
        self.positions = parameter(init.normal(std=0.02)((1, length, width), "float32"), "positions")
        options: dict[str, Any] = {"dropout": dropout, "epsilon": epsilon}
        self.blocks = [Block(width, heads, hidden, **options) for _ in range(blocks)]
        self.norm, self.head = nn.LayerNorm(width, epsilon=epsilon), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, channels, size, size)``."""
        x = self.patches(x)
        n, width = x.shape[0], x.shape[1]
        x = permute_dims(reshape(x, (n, width, -1)), (0, 2, 1))
        x = concat([broadcast_to(self.token, (n, 1, width)), x], axis=1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def vit_b_16(**options: Any) -> ViT:
    """Return ViT-B/16; options as for `ViT`."""
    return ViT(**options)

"""ConvNeXt: a convolutional network made like a transformer."""

from __future__ import annotations

import itertools
from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import StochasticDepth
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.ops.shape import permute_dims


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of ``(n, channels, height, width)``."""

    def forward(self, x: Any) -> Tensor:
        """Return the normalised image."""
        return permute_dims(super().forward(permute_dims(x, (0, 2, 3, 1))), (0, 3, 1, 2))


class Block(nn.Module):
    """A depthwise 7 x 7 convolution and a network per position, added to their input.

    Args:
        width: the channels.
        scale: the first value of the factors of the branch's channels.
        drop_path: the probability that an example of the branch is dropped in training mode.
    """

    def __init__(self, width: int, *, scale: float = 1e-6, drop_path: float = 0.0) -> None:
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, epsilon=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.gelu, nn.Linear(4 * width, width))
        self.scale = parameter(init.constant(scale)((width,), "float32"), "scale")
        self.drop = StochasticDepth(drop_path)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the shape of `x`."""
        y = self.mlp(self.norm(permute_dims(self.depthwise(x), (0, 2, 3, 1)))) * self.scale
        return x + self.drop(permute_dims(y, (0, 3, 1, 2)))


class ConvNeXt(nn.Module):
    """ConvNeXt: stages of blocks; the first layer and the halvings between stages are convolutions without overlap.

    Args:
        blocks: the number of blocks of each stage.
        widths: the channels of each stage.
        classes: the number of classes.
        channels: the channels of the images.
        drop_path: the probability that an example of the last block's branch is dropped in training mode; it grows from
            0 from block to block.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.ConvNeXt((1, 1), (4, 8), classes=10)(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Liu et al., "A ConvNet for the 2020s", 2022.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        widths: tuple[int, ...],
        *,
        classes: int = 1000,
        channels: int = 3,
        drop_path: float = 0.1,
    ) -> None:
        self.stem = nn.Sequential(nn.Conv2d(channels, widths[0], 4, stride=4), LayerNorm2d(widths[0], epsilon=1e-6))
        self.halvings = [
            nn.Sequential(LayerNorm2d(into, epsilon=1e-6), nn.Conv2d(into, out, 2, stride=2))
            for into, out in itertools.pairwise(widths)
        ]
        rates = [drop_path * number / max(sum(blocks) - 1, 1) for number in range(sum(blocks))]
        self.stages: list[nn.Sequential] = []
        for count, width in zip(blocks, widths, strict=True):
            self.stages.append(nn.Sequential(*[Block(width, drop_path=rates.pop(0)) for _ in range(count)]))
        self.pool = nn.GlobalAvgPool()
        self.norm, self.head = nn.LayerNorm(widths[-1], epsilon=1e-6), nn.Linear(widths[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, channels, height, width)``."""
        x = self.stem(x)
        for number, stage in enumerate(self.stages):
            x = stage(self.halvings[number - 1](x) if number else x)
        return self.head(self.norm(self.pool(x)))


def convnext_tiny(**options: Any) -> ConvNeXt:
    """Return ConvNeXt-T; options as for `ConvNeXt`."""
    return ConvNeXt((3, 3, 9, 3), (96, 192, 384, 768), **options)

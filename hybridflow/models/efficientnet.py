"""EfficientNet B0 to B7: depth, width and image grow together."""

from __future__ import annotations

import math
from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.mobilenet import InvertedResidual
from hybridflow.models.parts import SqueezeExcite, StochasticDepth, conv_norm, divisible

SCALES = (
    (1.0, 1.0, 224, 0.2), (1.0, 1.1, 240, 0.2), (1.1, 1.2, 260, 0.3), (1.2, 1.4, 300, 0.3),
    (1.4, 1.8, 380, 0.4), (1.6, 2.2, 456, 0.4), (1.8, 2.6, 528, 0.5), (2.0, 3.1, 600, 0.5),
)
"""The factors of width and depth, the size of images, and the dropout, of B0 to B7."""
STAGES = ((1, 3, 1, 16, 1), (6, 3, 2, 24, 2), (6, 5, 2, 40, 2), (6, 3, 2, 80, 3), (6, 5, 1, 112, 3), (6, 5, 2, 192, 4),
          (6, 3, 1, 320, 1))
"""The factor of inner channels, the window, the stride, the channels and the number of blocks, of each stage of B0."""


class EfficientNet(nn.Module):
    """EfficientNet: seven stages of inverted residuals with scaled channels.

    Args:
        width: the factor of channels.
        depth: the factor of the numbers of blocks.
        classes: the number of classes.
        dropout: the probability that an input of the last layer is dropped in training mode.
        drop_path: the probability that an example of the last block's branch is dropped in training mode; it grows from
            0 from block to block.
        norm: options of the batch normalisations.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.EfficientNet(0.1, 0.1, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural networks", 2019.
    """

    def __init__(
        self,
        width: float = 1.0,
        depth: float = 1.0,
        *,
        classes: int = 1000,
        dropout: float = 0.2,
        drop_path: float = 0.2,
        **norm: Any,
    ) -> None:
        counts = [math.ceil(count * depth) for *_, count in STAGES]
        into, last = divisible(32 * width), 4 * divisible(320 * width)
        layers: list[nn.Module] = [conv_norm(3, into, stride=2, activation=nn.silu, **norm)]
        before = 0
        for (factor, window, stride, size, _), count in zip(STAGES, counts, strict=True):
            out = divisible(size * width)
            blocks: list[nn.Module] = []
            for number in range(count):
                inner = divisible(into * factor)
                blocks.append(
                    InvertedResidual(
                        into, inner, out, window=window, stride=1 if number else stride, activation=nn.silu,
                        gate=SqueezeExcite(inner, max(1, into // 4), activation=nn.silu),
                        after=StochasticDepth(drop_path * before / sum(counts)), **norm,
                    )
                )
                into, before = out, before + 1
            layers.append(nn.Sequential(*blocks))
        layers.append(conv_norm(into, last, 1, activation=nn.silu, **norm))
        self.features = nn.Sequential(*layers)
        self.pool = nn.GlobalAvgPool()
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        return self.classifier(self.pool(self.features(x)))


def _scaled(size: int, options: dict[str, Any]) -> EfficientNet:
    width, depth, _, dropout = SCALES[size]
    norm: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.01} if size >= 5 else {}
    chosen: dict[str, Any] = {"dropout": dropout, **norm, **options}
    return EfficientNet(width, depth, **chosen)


def efficientnet_b0(**options: Any) -> EfficientNet:
    """Return EfficientNet-B0, made for images of 224 x 224; options as for `EfficientNet`."""
    return _scaled(0, options)


def efficientnet_b1(**options: Any) -> EfficientNet:
    """Return EfficientNet-B1, made for images of 240 x 240; options as for `EfficientNet`."""
    return _scaled(1, options)


def efficientnet_b2(**options: Any) -> EfficientNet:
    """Return EfficientNet-B2, made for images of 260 x 260; options as for `EfficientNet`."""
    return _scaled(2, options)


def efficientnet_b3(**options: Any) -> EfficientNet:
    """Return EfficientNet-B3, made for images of 300 x 300; options as for `EfficientNet`."""
    return _scaled(3, options)


def efficientnet_b4(**options: Any) -> EfficientNet:
    """Return EfficientNet-B4, made for images of 380 x 380; options as for `EfficientNet`."""
    return _scaled(4, options)


def efficientnet_b5(**options: Any) -> EfficientNet:
    """Return EfficientNet-B5, made for images of 456 x 456; options as for `EfficientNet`."""
    return _scaled(5, options)


def efficientnet_b6(**options: Any) -> EfficientNet:
    """Return EfficientNet-B6, made for images of 528 x 528; options as for `EfficientNet`."""
    return _scaled(6, options)


def efficientnet_b7(**options: Any) -> EfficientNet:
    """Return EfficientNet-B7, made for images of 600 x 600; options as for `EfficientNet`."""
    return _scaled(7, options)

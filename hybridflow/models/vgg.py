"""VGG: stacks of small convolutions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import drawn
from hybridflow.nn import init

WIDTHS = (64, 128, 256, 512, 512)
"""The channels of the five stages."""


class VGG(nn.Module):
    """VGG: five stages of 3 x 3 convolutions, each ended by a pool, and three linear layers with dropout.

    Args:
        convolutions: the number of convolutions of each stage.
        classes: the number of classes.
        norm: whether each convolution is followed by batch normalisation.
        dropout: the probability that a result of a hidden linear layer is dropped in training mode.
        widths: the channels of each stage.
        hidden: the width of the two hidden linear layers.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.VGG((1, 1, 1, 1, 1), widths=(4, 4, 4, 4, 4), hidden=8, classes=10)
        >>> model.eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition", 2015.
    """

    def __init__(
        self,
        convolutions: tuple[int, ...],
        *,
        classes: int = 1000,
        norm: bool = False,
        dropout: float = 0.5,
        widths: tuple[int, ...] = WIDTHS,
        hidden: int = 4096,
    ) -> None:
        layers: list[Callable[..., Any]] = []
        into = 3
        for count, width in zip(convolutions, widths, strict=True):
            for _ in range(count):
                layers += [drawn(nn.Conv2d(into, width, 3, padding=1), init.kaiming_normal())]
                layers += [*([nn.BatchNorm2d(width)] if norm else []), nn.relu]
                into = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(7), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(into * 49, hidden), nn.relu, nn.Dropout(dropout),
            nn.Linear(hidden, hidden), nn.relu, nn.Dropout(dropout),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``, 32 x 32 or larger."""
        return self.classifier(self.pool(self.features(x)))


def vgg11(**options: Any) -> VGG:
    """Return VGG-11, configuration A; options as for `VGG`."""
    return VGG((1, 1, 2, 2, 2), **options)


def vgg13(**options: Any) -> VGG:
    """Return VGG-13, configuration B; options as for `VGG`."""
    return VGG((2, 2, 2, 2, 2), **options)


def vgg16(**options: Any) -> VGG:
    """Return VGG-16, configuration D; options as for `VGG`."""
    return VGG((2, 2, 3, 3, 3), **options)


def vgg19(**options: Any) -> VGG:
    """Return VGG-19, configuration E; options as for `VGG`."""
    return VGG((2, 2, 4, 4, 4), **options)

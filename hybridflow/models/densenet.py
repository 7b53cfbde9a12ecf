"""DenseNet: every layer sees all layers before it."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import conv_norm, drawn
from hybridflow.nn import init
from hybridflow.ops.joining import concat


def _conv(into: int, out: int, window: int) -> nn.Conv2d:
    return drawn(nn.Conv2d(into, out, window, padding=window // 2, bias=False), init.kaiming_normal())


class DenseLayer(nn.Module):
    """A 1 x 1 and a 3 x 3 convolution, each after normalisation; the result is put beside the input.

    Args:
        into: the channels of the input.
        growth: the channels that are added.
        factor: the channels between the convolutions, as a multiple of `growth`.
    """

    def __init__(self, into: int, growth: int, factor: int) -> None:
        inner = factor * growth
        self.norm1, self.conv1 = nn.BatchNorm2d(into), _conv(into, inner, 1)
        self.norm2, self.conv2 = nn.BatchNorm2d(inner), _conv(inner, growth, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, into + growth, height, width)``."""
        y = self.conv1(nn.relu(self.norm1(x)))
        return concat([x, self.conv2(nn.relu(self.norm2(y)))], axis=1)


class DenseNet(nn.Module):
    """DenseNet: dense blocks, with a halving of channels and image between them.

    Args:
        layers: the number of layers of each dense block.
        growth: the channels that a layer adds.
        classes: the number of classes.
        factor: the channels between a layer's two convolutions, as a multiple of `growth`.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.DenseNet((1, 1), growth=4, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Huang et al., "Densely connected convolutional networks", 2017.
    """

    def __init__(self, layers: tuple[int, ...], *, growth: int = 32, classes: int = 1000, factor: int = 4) -> None:
        into = 2 * growth
        self.stem = nn.Sequential(conv_norm(3, into, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))
        self.blocks: list[nn.Sequential] = []
        self.transitions: list[nn.Sequential] = []
        for number, count in enumerate(layers):
            if number:
                halving = nn.BatchNorm2d(into), nn.relu, _conv(into, into // 2, 1), nn.AvgPool2d(2)
                self.transitions.append(nn.Sequential(*halving))
                into //= 2
            self.blocks.append(nn.Sequential(*[DenseLayer(into + i * growth, growth, factor) for i in range(count)]))
            into += count * growth
        self.norm, self.pool, self.classifier = nn.BatchNorm2d(into), nn.GlobalAvgPool(), nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            x = block(self.transitions[number - 1](x) if number else x)
        return self.classifier(self.pool(nn.relu(self.norm(x))))


def densenet121(**options: Any) -> DenseNet:
    """Return DenseNet-121; options as for `DenseNet`."""
    return DenseNet((6, 12, 24, 16), **options)

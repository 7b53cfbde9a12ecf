"""ResNet and Wide ResNet: residual networks."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import conv_norm


class Basic(nn.Module):
    """Two 3 x 3 convolutions, added to their input.

    Args:
        into: the channels of the input.
        width: the channels of the result.
        stride: the step of the first convolution.
        inner: is not used; `Bottleneck` has it.
    """

    expansion = 1

    def __init__(self, into: int, width: int, *, stride: int = 1, inner: int | None = None) -> None:
        del inner
        self.branch = nn.Sequential(conv_norm(into, width, stride=stride), conv_norm(width, width, activation=None))
        self.downsample = _shortcut(into, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, width, height / stride, width / stride)``."""
        return nn.relu(self.branch(x) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 convolutions that narrow and widen, added to their input.

    Args:
        into: the channels of the input.
        width: a quarter of the channels of the result.
        stride: the step of the 3 x 3 convolution.
        inner: the channels of the 3 x 3 convolution; `width` if not given.
    """

    expansion = 4

    def __init__(self, into: int, width: int, *, stride: int = 1, inner: int | None = None) -> None:
        inner = inner or width
        self.branch = nn.Sequential(
            conv_norm(into, inner, 1),
            conv_norm(inner, inner, stride=stride),
            conv_norm(inner, 4 * width, 1, activation=None),
        )
        self.downsample = _shortcut(into, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, 4 width, height / stride, width / stride)``."""
        return nn.relu(self.branch(x) + self.downsample(x))


def _shortcut(into: int, out: int, stride: int) -> nn.Module:
    """Return what brings the input to the result's shape."""
    return nn.Identity() if stride == 1 and into == out else conv_norm(into, out, 1, stride=stride, activation=None)


class ResNet(nn.Module):
    """ResNet: four stages of residual blocks. A stage's first block halves the image, by its 3 x 3 convolution.

    Args:
        blocks: the number of blocks of each stage.
        block: `Basic` or `Bottleneck`, the classes of `hybridflow.models.resnet`.
        classes: the number of classes.
        width: the channels of the first stage; each stage doubles them.
        wider: the factor of the channels of the 3 x 3 convolutions in bottlenecks.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.ResNet((1, 1, 1, 1), width=4, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        He et al., "Deep residual learning for image recognition", 2016; Zagoruyko and Komodakis, "Wide residual
        networks", 2016.
    """

    def __init__(
        self,
        blocks: tuple[int, ...],
        block: type[Basic] | type[Bottleneck] = Basic,
        *,
        classes: int = 1000,
        width: int = 64,
        wider: int = 1,
    ) -> None:
        self.stem = nn.Sequential(conv_norm(3, width, 7, stride=2), nn.MaxPool2d(3, stride=2, padding=1))
        self.stages: list[nn.Sequential] = []
        into = width
        for stage, count in enumerate(blocks):
            size = width * 2**stage
            layers: list[nn.Module] = []
            for number in range(count):
                stride = 2 if stage and not number else 1
                layers.append(block(into, size, stride=stride, inner=wider * size))
                into = size * block.expansion
            self.stages.append(nn.Sequential(*layers))
        self.pool = nn.GlobalAvgPool()
        self.fc = nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.fc(self.pool(x))


def resnet18(**options: Any) -> ResNet:
    """Return ResNet-18; options as for `ResNet`."""
    return ResNet((2, 2, 2, 2), **options)


def resnet34(**options: Any) -> ResNet:
    """Return ResNet-34; options as for `ResNet`."""
    return ResNet((3, 4, 6, 3), **options)


def resnet50(**options: Any) -> ResNet:
    """Return ResNet-50; options as for `ResNet`."""
    return ResNet((3, 4, 6, 3), Bottleneck, **options)


def resnet101(**options: Any) -> ResNet:
    """Return ResNet-101; options as for `ResNet`."""
    return ResNet((3, 4, 23, 3), Bottleneck, **options)


def resnet152(**options: Any) -> ResNet:
    """Return ResNet-152; options as for `ResNet`."""
    return ResNet((3, 8, 36, 3), Bottleneck, **options)


def wide_resnet50_2(**options: Any) -> ResNet:
    """Return Wide ResNet-50-2, whose 3 x 3 convolutions have twice the channels; options as for `ResNet`."""
    return ResNet((3, 4, 6, 3), Bottleneck, wider=2, **options)

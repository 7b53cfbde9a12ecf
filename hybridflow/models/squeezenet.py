"""SqueezeNet: as good as AlexNet with a fiftieth of its parameters."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.errors import ArgumentError
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import drawn
from hybridflow.nn import init
from hybridflow.ops.joining import concat


class Fire(nn.Module):
    """A 1 x 1 convolution that narrows, then 1 x 1 and 3 x 3 convolutions side by side.

    Args:
        into: the channels of the input.
        squeeze: the channels of the narrow image.
        expand: the channels of each of the two results.
    """

    def __init__(self, into: int, squeeze: int, expand: int) -> None:
        self.squeeze = _conv(into, squeeze, 1)
        self.expand1x1, self.expand3x3 = _conv(squeeze, expand, 1), _conv(squeeze, expand, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, 2 expand, height, width)``."""
        x = nn.relu(self.squeeze(x))
        return nn.relu(concat([self.expand1x1(x), self.expand3x3(x)], axis=1))


def _conv(into: int, out: int, window: int, stride: int = 1) -> nn.Conv2d:
    padding = window // 2 if stride == 1 else 0
    return drawn(nn.Conv2d(into, out, window, stride=stride, padding=padding), init.kaiming_uniform())


def _pool(x: Tensor) -> Tensor:
    """Return the maxima of windows of 3 at steps of 2; the last window may reach over the edge."""
    beyond = tuple([(0, (size - 3) % 2) for size in x.shape[2:]])
    return nn.max_pool(x, 3, 2, padding=beyond)


class SqueezeNet(nn.Module):
    """SqueezeNet: eight Fire modules and a convolution to the classes; no linear layer.

    Args:
        version: ``"1.0"``, the paper's, or ``"1.1"``, which needs less than half of its multiply-adds.
        classes: the number of classes.
        dropout: the probability that an input of the last convolution is dropped in training mode.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.SqueezeNet(classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size", 2016.
    """

    def __init__(self, version: str = "1.1", *, classes: int = 1000, dropout: float = 0.5) -> None:
        if version not in ("1.0", "1.1"):
            raise ArgumentError("SqueezeNet: the versions are '1.0' and '1.1'", got=f"version={version!r}")
        fires = [
            Fire(96 if version == "1.0" else 64, 16, 64), Fire(128, 16, 64), Fire(128, 32, 128), Fire(256, 32, 128),
            Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256),
        ]
        pools = (0, 3, 7) if version == "1.0" else (0, 2, 4)  # before these modules
        stem = _conv(3, 96, 7, 2) if version == "1.0" else _conv(3, 64, 3, 2)
        layers: list[Any] = [stem, nn.relu]
        for number, fire in enumerate(fires):
            layers += [*([_pool] if number in pools else []), fire]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), drawn(nn.Conv2d(512, classes, 1), init.normal(std=0.01)), nn.relu, nn.GlobalAvgPool()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        return self.classifier(self.features(x))


def squeezenet1_0(**options: Any) -> SqueezeNet:
    """Return SqueezeNet 1.0; options as for `SqueezeNet`."""
    return SqueezeNet("1.0", **options)


def squeezenet1_1(**options: Any) -> SqueezeNet:
    """Return SqueezeNet 1.1; options as for `SqueezeNet`."""
    return SqueezeNet("1.1", **options)

"""ShuffleNet V2."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import conv_norm
from hybridflow.ops.joining import concat
from hybridflow.ops.shape import permute_dims, reshape

WIDTHS = {0.5: (24, 48, 96, 192, 1024), 1.0: (24, 116, 232, 464, 1024), 1.5: (24, 176, 352, 704, 1024),
          2.0: (24, 244, 488, 976, 2048)}
"""The channels of the first convolution, of the three stages and of the last convolution, by the model's factor."""


def _shuffled(x: Tensor) -> Tensor:
    """Interleave the channels of the two halves."""
    n, channels, height, width = x.shape
    x = permute_dims(reshape(x, (n, 2, channels // 2, height, width)), (0, 2, 1, 3, 4))
    return reshape(x, (n, channels, height, width))


class Unit(nn.Module):
    """A branch over half of the channels, or two branches that halve the image; then the channels are shuffled.

    Args:
        into: the channels of the input.
        out: the channels of the result.
        stride: 1, or 2 to halve the image.
    """

    def __init__(self, into: int, out: int, *, stride: int = 1) -> None:
        half = out // 2
        self.stride = stride
        self.branch1 = nn.Identity() if stride == 1 else nn.Sequential(
            conv_norm(into, into, stride=stride, groups=into, activation=None), conv_norm(into, half, 1)
        )
        self.branch2 = nn.Sequential(
            conv_norm(half if stride == 1 else into, half, 1),
            conv_norm(half, half, stride=stride, groups=half, activation=None),
            conv_norm(half, half, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, out, height / stride, width / stride)``."""
        half = x.shape[1] // 2
        first, second = (x[:, :half], x[:, half:]) if self.stride == 1 else (x, x)
        return _shuffled(concat([self.branch1(first), self.branch2(second)], axis=1))


class ShuffleNetV2(nn.Module):
    """ShuffleNet V2: units that work on half of the channels and shuffle them.

    Args:
        width: the model's factor: 0.5, 1.0, 1.5 or 2.0.
        classes: the number of classes.
        widths: the channels of the first convolution, of each stage and of the last convolution; the factor's if
            not given.
        units: the number of units of each stage.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.ShuffleNetV2(widths=(4, 8, 8, 8, 16), units=(1, 1, 1), classes=10)
        >>> model.eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Ma et al., "ShuffleNet V2: practical guidelines for efficient CNN architecture design", 2018.
    """

    def __init__(
        self,
        width: float = 1.0,
        *,
        classes: int = 1000,
        widths: tuple[int, ...] | None = None,
        units: tuple[int, ...] = (4, 8, 4),
    ) -> None:
        into, *sizes, last = widths or WIDTHS[width]
        self.stem = nn.Sequential(conv_norm(3, into, stride=2), nn.MaxPool2d(3, stride=2, padding=1))
        self.stages: list[nn.Sequential] = []
        for count, out in zip(units, sizes, strict=True):
            layers = [Unit(into, out, stride=2), *[Unit(out, out) for _ in range(count - 1)]]
            self.stages.append(nn.Sequential(*layers))
            into = out
        self.last = conv_norm(into, last, 1)
        self.pool, self.fc = nn.GlobalAvgPool(), nn.Linear(last, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.fc(self.pool(self.last(x)))


def shufflenet_v2(width: float = 1.0, **options: Any) -> ShuffleNetV2:
    """Return ShuffleNet V2 of a factor; options as for `ShuffleNetV2`."""
    return ShuffleNetV2(width, **options)

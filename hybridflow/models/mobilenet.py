"""MobileNet V1, V2 and V3: convolutions split into one per channel and one per position."""

from __future__ import annotations

from typing import Any

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import Activation, SqueezeExcite, conv_norm, divisible


class MobileNetV1(nn.Module):
    """MobileNet V1: thirteen pairs of a depthwise 3 x 3 and a 1 x 1 convolution.

    Args:
        classes: the number of classes.
        width: the factor of all channels.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.MobileNetV1(width=0.125, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications", 2017.
    """

    def __init__(self, *, classes: int = 1000, width: float = 1.0) -> None:
        sizes = [64, 128, 128, 256, 256, *[512] * 6, 1024, 1024]
        halved = (1, 3, 5, 11)
        into = divisible(32 * width)
        layers = [conv_norm(3, into, stride=2)]
        for number, size in enumerate(sizes):
            out = divisible(size * width)
            layers.append(conv_norm(into, into, stride=2 if number in halved else 1, groups=into))
            layers.append(conv_norm(into, out, 1))
            into = out
        self.features = nn.Sequential(*layers)
        self.pool, self.classifier = nn.GlobalAvgPool(), nn.Linear(into, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        return self.classifier(self.pool(self.features(x)))


class InvertedResidual(nn.Module):
    """A depthwise convolution between 1 x 1 convolutions that widen and narrow, added to its input if shapes allow.

    Args:
        into, inner, out: the channels of the input, of the depthwise convolution, and of the result.
        window: the window of the depthwise convolution.
        stride: its step.
        activation: after the first two convolutions.
        gate: what scales channels before the last convolution; None for nothing.
        after: what the branch goes through before it is added; None for nothing.
        norm: options of the batch normalisations.

    Reference:
        Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018.
    """

    def __init__(
        self,
        into: int,
        inner: int,
        out: int,
        *,
        window: int = 3,
        stride: int = 1,
        activation: Activation = nn.relu6,
        gate: nn.Module | None = None,
        after: nn.Module | None = None,
        **norm: Any,
    ) -> None:
        self.is_residual = stride == 1 and into == out
        self.block = nn.Sequential(
            *([conv_norm(into, inner, 1, activation=activation, **norm)] if inner != into else []),
            conv_norm(inner, inner, window, stride=stride, groups=inner, activation=activation, **norm),
            *([] if gate is None else [gate]),
            conv_norm(inner, out, 1, activation=None, **norm),
        )
        self.after = nn.Identity() if after is None else after

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(n, out, height / stride, width / stride)``."""
        return x + self.after(self.block(x)) if self.is_residual else self.block(x)


class MobileNetV2(nn.Module):
    """MobileNet V2: seventeen inverted residuals.

    Args:
        classes: the number of classes.
        width: the factor of all channels.
        dropout: the probability that an input of the last layer is dropped in training mode.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.MobileNetV2(width=0.1, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018.
    """

    def __init__(self, *, classes: int = 1000, width: float = 1.0, dropout: float = 0.2) -> None:
        stages = (
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        )
        into, last = divisible(32 * width), divisible(1280 * max(1.0, width))
        layers: list[nn.Module] = [conv_norm(3, into, stride=2, activation=nn.relu6)]
        for factor, size, count, stride in stages:
            out = divisible(size * width)
            for number in range(count):
                layers.append(InvertedResidual(into, into * factor, out, stride=1 if number else stride))
                into = out
        layers.append(conv_norm(into, last, 1, activation=nn.relu6))
        self.features = nn.Sequential(*layers)
        self.pool = nn.GlobalAvgPool()
        self.classifier = nn.Sequential(nn.Dropout(dropout), nn.Linear(last, classes))

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        return self.classifier(self.pool(self.features(x)))


# The window, the inner channels, the channels, whether channels are scaled, whether hard_swish is used, and the stride.
_LARGE = (
    (3, 16, 16, False, False, 1), (3, 64, 24, False, False, 2), (3, 72, 24, False, False, 1),
    (5, 72, 40, True, False, 2), (5, 120, 40, True, False, 1), (5, 120, 40, True, False, 1),
    (3, 240, 80, False, True, 2), (3, 200, 80, False, True, 1), (3, 184, 80, False, True, 1),
    (3, 184, 80, False, True, 1), (3, 480, 112, True, True, 1), (3, 672, 112, True, True, 1),
    (5, 672, 160, True, True, 2), (5, 960, 160, True, True, 1), (5, 960, 160, True, True, 1),
)
_SMALL = (
    (3, 16, 16, True, False, 2), (3, 72, 24, False, False, 2), (3, 88, 24, False, False, 1),
    (5, 96, 40, True, True, 2), (5, 240, 40, True, True, 1), (5, 240, 40, True, True, 1),
    (5, 120, 48, True, True, 1), (5, 144, 48, True, True, 1), (5, 288, 96, True, True, 2),
    (5, 576, 96, True, True, 1), (5, 576, 96, True, True, 1),
)


class MobileNetV3(nn.Module):
    """MobileNet V3: inverted residuals with scaled channels, found by a search, and a head of two linear layers.

    Args:
        large: whether it is the large or the small one.
        classes: the number of classes.
        width: the factor of all channels.
        dropout: the probability that an input of the last layer is dropped in training mode.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.MobileNetV3(large=False, width=0.1, classes=10).eval()(hf.zeros((1, 3, 32, 32))).shape
        (1, 10)

    Reference:
        Howard et al., "Searching for MobileNetV3", 2019.
    """

    def __init__(self, *, large: bool = True, classes: int = 1000, width: float = 1.0, dropout: float = 0.2) -> None:
        norm: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.01}
        into = divisible(16 * width)
        layers: list[nn.Module] = [conv_norm(3, into, stride=2, activation=nn.hard_swish, **norm)]
        for window, inner, out, scaled, hard, stride in _LARGE if large else _SMALL:
            inner, out = divisible(inner * width), divisible(out * width)
            gate = SqueezeExcite(inner, divisible(inner / 4), gate=nn.hard_sigmoid) if scaled else None
            activation = nn.hard_swish if hard else nn.relu
            layers.append(
                InvertedResidual(
                    into, inner, out, window=window, stride=stride, activation=activation, gate=gate, **norm
                )
            )
            into = out
        last, hidden = 6 * into, divisible((1280 if large else 1024) * width)
        layers.append(conv_norm(into, last, 1, activation=nn.hard_swish, **norm))
        self.features = nn.Sequential(*layers)
        self.pool = nn.GlobalAvgPool()
        self.classifier = nn.Sequential(
            nn.Linear(last, hidden), nn.hard_swish, nn.Dropout(dropout), nn.Linear(hidden, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``."""
        return self.classifier(self.pool(self.features(x)))


def mobilenet_v1(**options: Any) -> MobileNetV1:
    """Return MobileNet V1; options as for `MobileNetV1`."""
    return MobileNetV1(**options)


def mobilenet_v2(**options: Any) -> MobileNetV2:
    """Return MobileNet V2; options as for `MobileNetV2`."""
    return MobileNetV2(**options)


def mobilenet_v3_large(**options: Any) -> MobileNetV3:
    """Return the large MobileNet V3; options as for `MobileNetV3`."""
    return MobileNetV3(large=True, **options)


def mobilenet_v3_small(**options: Any) -> MobileNetV3:
    """Return the small MobileNet V3; options as for `MobileNetV3`."""
    return MobileNetV3(large=False, **options)

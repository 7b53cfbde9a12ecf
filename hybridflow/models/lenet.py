"""LeNet-5."""

from __future__ import annotations

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.ops.trigonometric import tanh


class LeNet(nn.Module):
    """LeNet-5: two convolutions, each with a pool of means, and three linear layers.

    Args:
        classes: the number of classes.
        channels: the channels of the images, which are 32 x 32.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.LeNet()(hf.zeros((2, 1, 32, 32))).shape
        (2, 10)

    Reference:
        LeCun et al., "Gradient-based learning applied to document recognition", 1998; its second convolution sees
        all maps, and its last layer is linear, as is usual since.
    """

    def __init__(self, *, classes: int = 10, channels: int = 1) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(channels, 6, 5), tanh, nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), tanh, nn.AvgPool2d(2)
        )
        self.classifier = nn.Sequential(
            nn.Flatten(), nn.Linear(400, 120), tanh, nn.Linear(120, 84), tanh, nn.Linear(84, classes)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, channels, 32, 32)``."""
        return self.classifier(self.features(x))

"""AlexNet."""

from __future__ import annotations

from hybridflow import nn
from hybridflow.core.tensor import Tensor


class AlexNet(nn.Module):
    """AlexNet for one device: five convolutions and three linear layers with dropout.

    Args:
        classes: the number of classes.
        dropout: the probability that an input of a hidden linear layer is dropped in training mode.
        hidden: the width of the two hidden linear layers.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.AlexNet(classes=10, hidden=16).eval()(hf.zeros((1, 3, 64, 64))).shape
        (1, 10)

    Reference:
        Krizhevsky, "One weird trick for parallelizing convolutional neural networks", 2014.
    """

    def __init__(self, *, classes: int = 1000, dropout: float = 0.5, hidden: int = 4096) -> None:
        self.features = nn.Sequential(
            nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.relu, nn.MaxPool2d(3, stride=2),
            nn.Conv2d(64, 192, 5, padding=2), nn.relu, nn.MaxPool2d(3, stride=2),
            nn.Conv2d(192, 384, 3, padding=1), nn.relu,
            nn.Conv2d(384, 256, 3, padding=1), nn.relu,
            nn.Conv2d(256, 256, 3, padding=1), nn.relu, nn.MaxPool2d(3, stride=2),
        )
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(6), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Dropout(dropout), nn.Linear(256 * 36, hidden), nn.relu,
            nn.Dropout(dropout), nn.Linear(hidden, hidden), nn.relu,
            nn.Linear(hidden, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes)`` of images ``(n, 3, height, width)``, 63 x 63 or larger."""
        return self.classifier(self.pool(self.features(x)))

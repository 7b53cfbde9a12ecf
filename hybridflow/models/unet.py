"""U-Net: images to maps of the same size."""

from __future__ import annotations

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.models.parts import drawn
from hybridflow.nn import init
from hybridflow.ops.joining import concat


def _twice(into: int, out: int) -> nn.Sequential:
    """Return two 3 x 3 convolutions with rectifiers."""
    first, second = [drawn(nn.Conv2d(size, out, 3, padding=1), init.kaiming_normal()) for size in (into, out)]
    return nn.Sequential(first, nn.relu, second, nn.relu)


class UNet(nn.Module):
    """U-Net: halved four times, doubled four times, with the image before each halving beside the doubled one.

    Args:
        channels: the channels of the images.
        classes: the channels of the result.
        width: the channels of the largest level; each smaller level doubles them.
        levels: the number of halvings.

    Example:
        >>> import hybridflow as hf
        >>> hf.models.UNet(width=4)(hf.zeros((1, 1, 32, 32))).shape
        (1, 2, 32, 32)

    Reference:
        Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation", 2015. Its images shrink
        at every convolution; here they are padded, so that the result has the size of the image.
    """

    def __init__(self, *, channels: int = 1, classes: int = 2, width: int = 64, levels: int = 4) -> None:
        sizes = [width * 2**level for level in range(levels + 1)]
        self.down = [_twice(into, out) for into, out in zip([channels, *sizes], sizes, strict=False)]
        pairs = [*zip(sizes[1:], sizes, strict=False)][::-1]
        self.up = [nn.ConvTranspose2d(into, out, 2, stride=2) for into, out in pairs]
        self.join = [_twice(into, out) for into, out in pairs]
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits ``(n, classes, height, width)`` of images ``(n, channels, height, width)``.

        Height and width are multiples of 2 to the number of levels.
        """
        skips: list[Tensor] = []
        for number, level in enumerate(self.down):
            x = level(self.pool(x) if number else x)
            skips.append(x)
        for up, join, before in zip(self.up, self.join, skips[-2::-1], strict=True):
            x = join(concat([before, up(x)], axis=1))
        return self.head(x)

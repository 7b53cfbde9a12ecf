"""A small U-Net for diffusion: it predicts the noise in an image."""

from __future__ import annotations

import math

from hybridflow import nn
from hybridflow.core.dtypes import float32
from hybridflow.core.tensor import Tensor, as_tensor
from hybridflow.ops.common import cast_to
from hybridflow.ops.joining import concat
from hybridflow.ops.ranges import arange
from hybridflow.ops.shape import permute_dims, reshape
from hybridflow.ops.transcendental import exp
from hybridflow.ops.trigonometric import cos, sin


def waves(times: Tensor, width: int) -> Tensor:
    """Return cosines and sines of times, ``(n, width)``, with wavelengths from 2 pi to 20,000 pi."""
    half = width // 2
    rates = exp(arange(half, dtype=float32) * (-math.log(10000.0) / half))
    angles = cast_to(as_tensor(times), float32)[:, None] * rates
    return concat([cos(angles), sin(angles)], axis=-1)


class Residual(nn.Module):
    """Two 3 x 3 convolutions with the time's vector in between, added to their input.

    Args:
        into, out: the channels of the input and of the result.
        time: the size of the time's vector.
        groups: the groups of the normalisations.
    """

    def __init__(self, into: int, out: int, time: int, groups: int) -> None:
        self.norm1, self.conv1 = nn.GroupNorm(groups, into), nn.Conv2d(into, out, 3, padding=1)
        self.time = nn.Linear(time, out)
        self.norm2, self.conv2 = nn.GroupNorm(groups, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Identity() if into == out else nn.Conv2d(into, out, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Return ``(n, out, height, width)``."""
        y = self.conv1(nn.silu(self.norm1(x))) + self.time(nn.silu(time))[:, :, None, None]
        return self.shortcut(x) + self.conv2(nn.silu(self.norm2(y)))


class ImageAttention(nn.Module):
    """Attention between all positions of an image, added to it.

    Args:
        width: the channels.
        heads: the number of heads.
        groups: the groups of the normalisation.
    """

    def __init__(self, width: int, heads: int, groups: int) -> None:
        self.norm, self.attend = nn.GroupNorm(groups, width), nn.MultiHeadAttention(width, heads, features=width)

    def forward(self, x: Tensor) -> Tensor:
        """Return an image of the shape of `x`."""
        n, channels, height, width = x.shape
        y = permute_dims(reshape(self.norm(x), (n, channels, height * width)), (0, 2, 1))
        return x + reshape(permute_dims(self.attend(y), (0, 2, 1)), (n, channels, height, width))


class DiffusionUNet(nn.Module):
    """A U-Net of residual blocks that are given the time, with attention at its smallest level.

    Args:
        channels: the channels of images.
        width: the channels of the largest level.
        factors: the channels of each level, as multiples of `width`; each level has half the size of the one before.
        heads: the number of heads of the attention.
        groups: the groups of the normalisations.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.DiffusionUNet(width=8, factors=(1, 2), heads=2, groups=4)
        >>> model(hf.zeros((2, 3, 8, 8)), hf.asarray([0, 500])).shape
        (2, 3, 8, 8)

    Reference:
        Ho et al., "Denoising diffusion probabilistic models", 2020, with fewer blocks.
    """

    def __init__(
        self,
        *,
        channels: int = 3,
        width: int = 64,
        factors: tuple[int, ...] = (1, 2, 4),
        heads: int = 4,
        groups: int = 8,
    ) -> None:
        self.width = width
        time = 4 * width
        sizes = [width * factor for factor in factors]
        self.time = nn.Sequential(nn.Linear(width, time), nn.silu, nn.Linear(time, time))
        self.first = nn.Conv2d(channels, width, 3, padding=1)
        steps = [*zip([width, *sizes], sizes, strict=False)]
        self.down = [Residual(into, out, time, groups) for into, out in steps]
        self.halvings = [nn.Conv2d(size, size, 3, stride=2, padding=1) for size in sizes[:-1]]
        last = sizes[-1]
        self.middle = Residual(last, last, time, groups)
        self.attend = ImageAttention(last, heads, groups)
        self.up = [Residual(2 * out, into, time, groups) for into, out in steps[::-1]]
        self.doublings = [nn.Conv2d(size, size, 3, padding=1) for size in sizes[-2::-1]]
        self.enlarge = nn.Upsample(2)
        self.norm, self.last = nn.GroupNorm(groups, width), nn.Conv2d(width, channels, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        """Return the noise ``(n, channels, height, width)`` in noisy images of that shape.

        Args:
            x: the images; height and width are multiples of 2 to the number of levels, less one.
            times: ``(n,)``: how many steps of noise each image has had.
        """
        time = self.time(waves(times, self.width))
        x = self.first(x)
        skips: list[Tensor] = []
        for number, block in enumerate(self.down):
            x = block(self.halvings[number - 1](x) if number else x, time)
            skips.append(x)
        x = self.attend(self.middle(x, time))
        for number, block in enumerate(self.up):
            x = self.doublings[number - 1](self.enlarge(x)) if number else x
            x = block(concat([x, skips.pop()], axis=1), time)
        return self.last(nn.silu(self.norm(x)))

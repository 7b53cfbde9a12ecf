"""What several models share: convolutions with normalisation, gates over channels, transformer blocks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.nn import init
from hybridflow.nn.layers.linear import parameter
from hybridflow.ops.creation import ones

Activation = Callable[[Any], Tensor]
Layer = TypeVar("Layer", bound=Any)


def drawn(layer: Layer, values: init.Initializer) -> Layer:
    """Draw a layer's weight anew, and return the layer.

    Args:
        layer: the layer; its sizes are known.
        values: draws the values, such as ``init.normal(std=0.02)``.
    """
    layer.weight = parameter(values(layer.weight.shape, layer.weight.dtype), "weight")
    return layer


def conv_norm(
    into: int,
    out: int,
    window: int = 3,
    *,
    stride: int = 1,
    groups: int = 1,
    activation: Activation | None = nn.relu,
    epsilon: float = 1e-5,
    momentum: float = 0.1,
) -> nn.Sequential:
    """Return a convolution without bias, batch normalisation, and an activation if there is one.

    Args:
        into, out: the channels of the input and of the result.
        window: the size of the window, an odd number; the padding keeps the size of an image, apart from the stride.
        stride: the step of the window.
        groups: the number of groups of channels; as many as channels is a depthwise convolution.
        activation: what comes last; None for nothing.
        epsilon, momentum: those of the normalisation.
    """
    conv = nn.Conv2d(into, out, window, stride=stride, padding=window // 2, groups=groups, bias=False)
    norm = nn.BatchNorm2d(out, epsilon=epsilon, momentum=momentum)
    return nn.Sequential(drawn(conv, init.kaiming_normal()), norm, *(() if activation is None else (activation,)))


def divisible(count: float, by: int = 8) -> int:
    """Return the multiple of a number that is nearest to a count, and at least nine tenths of it."""
    rounded = max(by, int(count + by / 2) // by * by)
    return rounded if rounded >= 0.9 * count else rounded + by


class SqueezeExcite(nn.Module):
    """Channels scaled by a small network of their means.

    Args:
        channels: the channels of the image.
        inner: the width of the small network.
        activation: its activation.
        gate: the function that turns its results into factors.

    Reference:
        Hu et al., "Squeeze-and-excitation networks", 2018.
    """

    def __init__(
        self, channels: int, inner: int, *, activation: Activation = nn.relu, gate: Activation = nn.sigmoid
    ) -> None:
        self.fc1, self.fc2 = nn.Conv2d(channels, inner, 1), nn.Conv2d(inner, channels, 1)
        self.activation, self.gate = activation, gate
        self.pool = nn.AdaptiveAvgPool2d(1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the image with its channels scaled."""
        return x * self.gate(self.fc2(self.activation(self.fc1(self.pool(x)))))


class StochasticDepth(nn.Module):
    """In training mode, whole examples of a residual branch are dropped at random.

    Args:
        rate: the probability that an example is dropped.

    Reference:
        Huang et al., "Deep networks with stochastic depth", 2016.
    """

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Return the branch, some examples of it zero in training mode."""
        if not self.training or not self.rate:
            return x
        return x * nn.dropout(ones((x.shape[0], *[1] * (x.ndim - 1)), dtype=x.dtype), self.rate)

    def extra_repr(self) -> str:
        """Return the rate."""
        return f"{self.rate:.3g}"


class Block(nn.Module):
    """A block of a transformer: attention and a network per position, each added to its input.

    Args:
        width: the size of the last axis.
        heads: the number of heads.
        hidden: the width of the network per position.
        norm_first: whether to normalise what goes into a branch, or the sum that comes out.
        is_causal: whether a position attends only to itself and earlier ones.
        activation: the activation of the network per position.
        dropout: the probability that an element of a branch is dropped in training mode.
        epsilon: the epsilon of the normalisations.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        *,
        norm_first: bool = True,
        is_causal: bool = False,
        activation: Activation = nn.gelu,
        dropout: float = 0.0,
        epsilon: float = 1e-5,
    ) -> None:
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(width, epsilon=epsilon)
        self.attend = nn.MultiHeadAttention(width, heads, features=width, is_causal=is_causal, dropout=dropout)
        self.norm2 = nn.LayerNorm(width, epsilon=epsilon)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Any = None, cache: nn.KeyValueCache | None = None) -> Tensor:
        """Return ``(batch, length, width)``; `mask` and `cache` are those of `hf.nn.MultiHeadAttention`."""
        if self.norm_first:
            x = x + self.drop(self.attend(self.norm1(x), mask=mask, cache=cache))
            return x + self.drop(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.drop(self.attend(x, mask=mask, cache=cache)))
        return self.norm2(x + self.drop(self.mlp(x)))

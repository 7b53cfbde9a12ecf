"""A variational autoencoder."""

from __future__ import annotations

from hybridflow import nn
from hybridflow.core.tensor import Tensor
from hybridflow.ops import random
from hybridflow.ops.joining import split
from hybridflow.ops.transcendental import exp


class VAE(nn.Module):
    """A variational autoencoder of vectors, such as the pixels of small images.

    Args:
        size: the size of the vectors.
        hidden: the width of the hidden layers.
        latent: the size of the code.

    Example:
        >>> import hybridflow as hf
        >>> model = hf.models.VAE(size=16, hidden=8, latent=2)
        >>> logits, mean, log_variance = model(hf.zeros((3, 16)))
        >>> logits.shape, mean.shape
        ((3, 16), (3, 2))
        >>> hf.sigmoid(model.decode(hf.random.normal((5, 2)))).shape  # new ones
        (5, 16)

    Reference:
        Kingma and Welling, "Auto-encoding variational Bayes", 2014.
    """

    def __init__(self, *, size: int = 784, hidden: int = 400, latent: int = 20) -> None:
        self.encode = nn.Sequential(nn.Linear(size, hidden), nn.relu, nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent, hidden), nn.relu, nn.Linear(hidden, size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return logits of the vectors ``(n, size)``, and the mean and logarithm of the variance of their codes.

        A code is drawn in training mode; in evaluation mode it is the mean.
        """
        mean, log_variance = split(self.encode(x), 2, axis=-1)
        code = mean
        if self.training:
            code = mean + exp(0.5 * log_variance) * random.normal(mean.shape)
        return self.decode(code), mean, log_variance

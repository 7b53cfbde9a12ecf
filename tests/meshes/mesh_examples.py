"""The models of the examples: eager code, one device and several give the same losses, dropout included."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits

import hybridflow as hf
from hybridflow import nn

STEPS = int(os.environ.get("HYBRIDFLOW_MESH_STEPS", "3"))
DEVICES = (1, 2, 4, 8) if "HYBRIDFLOW_MESH_STEPS" in os.environ else (8,)
EXAMPLES = Path(__file__).parents[2] / "examples"
RNG = np.random.default_rng(0)
IMAGES, DIGITS = load_digits(return_X_y=True)
IMAGES = (IMAGES / 16).astype(np.float32)


def classes_of(example: str, **names: Any) -> SimpleNamespace:
    """Return the classes of an example, which is not run."""
    tree = ast.parse((EXAMPLES / example).read_text(encoding="utf-8"))
    tree.body = [one for one in tree.body if isinstance(one, ast.ClassDef)]
    space = {"nn": nn, "hf": hf, **names}
    exec(compile(tree, str(EXAMPLES / example), "exec"), space)
    return SimpleNamespace(**space)


def mlp(rate):
    layers = [nn.Linear(64, 64), nn.relu, *[nn.Dropout(rate)] * (rate > 0), nn.Linear(64, 10)]
    return nn.Sequential(*layers), lambda i: (IMAGES[64 * i : 64 * i + 64], DIGITS[64 * i : 64 * i + 64])


def convnet():
    net = classes_of("convnet.py").Net()
    images = np.pad(IMAGES.reshape(-1, 1, 8, 8), ((0, 0), (0, 0), (3, 3), (3, 3)))
    return net, lambda i: (images[32 * i : 32 * i + 32], DIGITS[32 * i : 32 * i + 32])


def gpt():
    made = classes_of("gpt.py", WIDTH=32, HEADS=2, BLOCKS=2, letters=range(50)).GPT()
    windows = RNG.integers(0, 50, (STEPS, 8, 17)).astype(np.int32)
    return made, lambda i: (windows[i, :, :-1], windows[i, :, 1:])


MODELS = {"digits": lambda: mlp(0.0), "digits with dropout": lambda: mlp(0.3), "convnet": convnet, "gpt": gpt}


def losses(name: str, how: Any, fsdp: str | None = None) -> list[float]:
    """Train a model with Adam."""
    global RNG
    RNG = np.random.default_rng(0)
    hf.random.seed(0)
    nn.init.seed(0)
    net, batch = MODELS[name]()
    net(batch(0)[0][:1])
    hf.random.seed(1)
    if fsdp is not None:
        hf.distribute.shard(net, how, fsdp=fsdp)
    opt = hf.optim.Adam(net, rate=1e-3)

    def step(x, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(x), y))
        opt.update(tape.gradient(loss, net))
        return loss

    run = hf.compile(step, mesh=how, batch="data") if isinstance(how, hf.Mesh) else how(step)
    return [float(run(*batch(i % 20))) for i in range(STEPS)]


@cache
def eager(name: str) -> list[float]:
    return losses(name, lambda step: step)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("devices", DEVICES)
def test_training_is_eager_training(name, devices):
    mesh = hf.Mesh({"data": devices})
    np.testing.assert_allclose(losses(name, mesh), eager(name), rtol=2e-5 * STEPS)
    if devices == 8:
        np.testing.assert_allclose(losses(name, hf.compile), eager(name), rtol=2e-5 * STEPS)
        np.testing.assert_allclose(losses(name, mesh, fsdp="data"), eager(name), rtol=2e-5 * STEPS)

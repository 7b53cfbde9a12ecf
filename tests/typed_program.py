"""A program as people write it, with the types that checkers must find; `test_types` checks and runs a copy of it."""

from collections.abc import Callable
from typing import assert_type

import numpy as np

import hybridflow as hf
from hybridflow import nn


class Net(nn.Module):
    def __init__(self, width: int) -> None:
        self.hidden = nn.Linear(4, width)
        self.dropout = nn.Dropout(0.1)
        self.out = nn.Linear(width, 3)

    def forward(self, x: hf.Tensor, scale: float = 1.0) -> hf.Tensor:
        hidden = nn.relu(self.hidden(x))
        assert_type(hidden, hf.Tensor)
        return self.out(self.dropout(hidden)) * scale


class Two(nn.Module):
    def forward(self, x: hf.Tensor) -> tuple[hf.Tensor, int]:
        return hf.exp(x), 2


images = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
labels = np.repeat(np.asarray([0, 1, 2], np.int32), 4)
model = Net(8)
optimizer = hf.optim.AdamW(model, rate=hf.optim.warmup_cosine(5e-3, 2, 10))
batches = hf.data.Batches((images, labels), 4, shuffle=True, seed=0)


@hf.compile
def step(x: hf.Tensor, y: hf.Tensor, *, weight: float = 1.0) -> hf.Tensor:
    with hf.GradientTape() as tape:
        loss = hf.mean(nn.softmax_cross_entropy(model(x), y)) * weight
    optimizer.update(tape.gradient(loss, model))
    return loss


for x, y in batches.prefetch():
    assert_type(x, hf.Tensor)
    assert_type(step(x, y, weight=0.5), hf.Tensor)
for named in hf.data.Batches({"x": images}, 6):
    assert_type(named, dict[str, hf.Tensor])

first = hf.asarray(images)
assert_type(model(first, scale=2.0), hf.Tensor)
assert_type(Two()(first), tuple[hf.Tensor, int])
assert_type(nn.Sequential(nn.Linear(4, 2), nn.gelu)(first), hf.Tensor)
assert_type(hf.train.predict(model, images), hf.Tensor)
assert_type(hf.linalg.svd(first).S, hf.Tensor)
assert_type(hf.random.normal((2, 3)), hf.Tensor)


def energy(x: hf.Tensor, *, power: int = 2) -> hf.Tensor:
    return hf.sum(x**power)


value, slope = hf.value_and_grad(energy)(first, power=3)
assert_type(value, hf.Tensor)
assert_type(hf.vmap(energy)(first, power=3) if slope is None else value, hf.Tensor)
assert_type(hf.checkpoint(energy)(first, power=4), hf.Tensor)
assert_type(hf.jvp(energy, (first,), (first,)), tuple[hf.Tensor, hf.Tensor])
rule: Callable[[hf.Tensor], hf.Tensor] = hf.grad(energy)
print(rule(first).shape, value.item() > 0.0)

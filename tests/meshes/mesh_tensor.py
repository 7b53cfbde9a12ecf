"""Tensor parallel transformers: what a layer sends, and sequences that are split between blocks."""

from __future__ import annotations

import os
from collections import Counter

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn

RNG = np.random.default_rng(0)
IDS, Y = [RNG.integers(0, 64, (4, 16)).astype(np.int32) for _ in range(2)]
ACTIVATION = 4 * 16 * 32 * 4
WHOLE = bool(os.environ.get("HYBRIDFLOW_MESH_WHOLE"))
"""Whether XLA compiles deep networks too; without it, their collectives are predicted only."""


class Block(nn.Module):
    """A block of a transformer whose layers are split over `model`; `rows` says how its input and result lie."""

    def __init__(self, split, rows):
        over = "model" if split else None
        self.norm, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attend = nn.MultiHeadAttention(32, 4, features=32, is_causal=True, layouts=over and f"heads:{over}")
        self.up = nn.Linear(32, 64, layouts=over and f"column:{over}")
        self.down = nn.Linear(64, 32, layouts=over and f"row:{over}")
        self.rows = rows

    def whole(self, x):
        return x if self.rows is None else hf.constrain(x, (self.rows[0], None, None))

    def part(self, x):
        return x if self.rows is None else hf.constrain(x, self.rows)

    def forward(self, x):
        x = x + self.part(self.attend(self.whole(self.norm(x))))
        return x + self.part(self.down(nn.gelu(self.up(self.whole(self.norm2(x))))))


class Gpt(nn.Module):
    """A small language model."""

    def __init__(self, layers, split=False, rows=None):
        self.table = nn.Embedding(64, 32, layouts="row:model" if split else None)
        self.blocks = [Block(split, rows) for _ in range(layers)]
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 64, bias=False, layouts="column:model" if split else None)

    def forward(self, ids):
        x = self.blocks[0].part(self.table(ids))
        for block in self.blocks:
            x = block(x)
        return self.head(self.blocks[0].whole(self.norm(x)))


def stepped(layers, mesh=None, rows=None, batch=None):
    """Return a network and its training step."""
    nn.init.seed(0)
    net = Gpt(layers, mesh is not None, rows)
    if mesh is not None:
        hf.distribute.shard(net, mesh)
    optimizer = hf.optim.SGD(net, rate=0.1)

    def step(ids, y):
        with hf.GradientTape() as tape:
            loss = hf.mean(nn.softmax_cross_entropy(net(ids), y))
        optimizer.update(tape.gradient(loss, net))
        return loss

    return net, step if mesh is None else hf.compile(step, mesh=mesh, batch=batch)


def same(net, step, layers):
    """Compare two steps with those of eager code on one device."""
    plain, eager = stepped(layers)
    losses, expected = [[float(run(IDS, Y)) for _ in range(2)] for run in (step, eager)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for name, value in plain.state_dict().items():
        np.testing.assert_allclose(net.state_dict()[name], value, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(("layers", "devices"), [(4, 2), (4, 4), (8, 4), *[(48, 4), (8, 2)] * WHOLE])
def test_a_layer_sends_four_activations(layers, devices):
    mesh = hf.Mesh({"model": devices})
    net, step = stepped(layers, mesh)
    report = hf.cost(step, IDS, Y)
    large = Counter(row.operation for row in report.communication.rows if row.bytes == ACTIVATION)
    # Each layer has two reductions each way; the table and the head have one, and no logits are gathered.
    assert sum(large.values()) == 4 * layers + 2
    assert set(report.communication.bytes) == {"all-reduce"}
    small = 3 * 4 * 16 * 4  # the maximum, the sum and the label's score of each position
    assert report.communication.bytes["all-reduce"] == ACTIVATION * (4 * layers + 2) + small
    if WHOLE or (layers, devices) == (4, 4):
        assert report.against_xla().xla_sent == report.communication.bytes
    if (layers, devices) == (4, 4):
        same(net, step, layers)


@pytest.mark.parametrize(
    ("sizes", "rows", "batch"),
    [({"model": 4}, (None, "model", None), None), ({"data": 2, "model": 4}, ("data", "model", None), "data")],
)
def test_sequences_are_split_between_blocks(sizes, rows, batch):
    mesh = hf.Mesh(sizes)
    net, step = stepped(2, mesh, rows, batch)
    report = hf.cost(step, IDS, Y)
    assert report.against_xla().xla_sent == report.communication.bytes
    activation = ACTIVATION // mesh.shape.get("data", 1)
    gathered = [row for row in report.communication.rows if row.kind == "all-gather"]
    assert {row.bytes for row in gathered} == {activation}
    assert len(gathered) == 4 * 2 + 2  # of each norm's result and of each gradient that comes back; table and head
    _, whole = stepped(2, mesh, None, batch)
    assert report.memory.bytes["activations"] < hf.cost(whole, IDS, Y).memory.bytes["activations"]
    same(net, step, 2)


def test_a_split_table_and_split_logits_are_the_plain_ones():
    mesh = hf.Mesh({"model": 4})
    nn.init.seed(0)
    plain = nn.Embedding(64, 32)
    table = {"table": hf.Variable(plain.weight.numpy(), name="table")}
    hf.distribute.shard(table, mesh, {"table": ("model", None)})
    scores = RNG.normal(size=(4, 16, 64)).astype(np.float32)

    def loss(weight, scores):
        found = nn.embedding(hf.asarray(IDS), weight)
        logits = hf.constrain(scores + hf.sum(found, axis=-1, keepdims=True), (None, None, "model"))
        return nn.softmax_cross_entropy(logits, hf.asarray(Y))

    def gradients(weight):
        return lambda scores: hf.value_and_grad(lambda w, s: hf.mean(loss(w, s)), argnums=(0, 1))(weight.read(), scores)

    run = hf.compile(gradients(table["table"]), mesh=mesh, in_layouts={"scores": (None, None, "model")})
    expected = gradients(plain.weight)(hf.asarray(scores))
    got = run(scores)
    np.testing.assert_allclose(got[0].numpy(), expected[0].numpy(), rtol=1e-5)
    for a, b in zip(got[1], expected[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6)
    report = hf.cost(run, scores)
    assert set(report.communication.bytes) == {"all-reduce"}
    assert report.against_xla().xla_sent == report.communication.bytes

"""`nn.MoE`: equal to the evaluation of all experts on all tokens, on one device and on several."""

from __future__ import annotations

import math

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, LayoutError, ShapeError

RNG = np.random.default_rng(0)
WIDTH, HIDDEN, EXPERTS, GROUPS = 8, 12, 8, 8
X = RNG.normal(size=(16, 4, WIDTH)).astype(np.float32)  # 64 tokens, 8 for each group
TARGET = RNG.normal(size=X.shape).astype(np.float32)


def layer(**options):
    nn.init.seed(0)
    options = {"groups": GROUPS, "layouts": "experts:data", **options}
    return nn.MoE(WIDTH, HIDDEN, EXPERTS, **options)


def kept(chosen, capacity):
    """Return which choices fit, by walking over them: all first choices of a group, then all second ones."""
    fits = np.zeros(chosen.shape, bool)
    for group in range(chosen.shape[0]):
        count = [0] * EXPERTS
        for choice in range(chosen.shape[2]):
            for token in range(chosen.shape[1]):
                expert = chosen[group, token, choice]
                fits[group, token, choice] = count[expert] < capacity
                count[expert] += 1
    return fits


def dense(moe, x):
    """Return the results and the balancing loss by running all experts on all tokens."""
    rows = hf.reshape(x, (moe.groups, -1, WIDTH))
    shares = nn.softmax(rows @ moe.router)
    chosen = np.argsort(-shares.numpy(), axis=-1, kind="stable")[..., : moe.k]
    marks = hf.asarray((chosen[..., None] == np.arange(EXPERTS)).astype(np.float32))
    gates = hf.sum(marks * shares[:, :, None, :], axis=-1)
    if moe.k > 1:
        gates = gates / hf.sum(gates, axis=-1, keepdims=True)
    tokens = rows.shape[1]
    capacity = tokens
    if moe.capacity_factor is not None:
        capacity = min(tokens, math.ceil(moe.capacity_factor * moe.k * tokens / EXPERTS))
    fits = kept(chosen, capacity)
    weights = hf.sum(marks * (gates * fits.astype(np.float32))[..., None], axis=2)
    hidden = hf.einsum("gtw,ewh->gteh", rows, moe.up)
    if moe.up_bias is not None:
        hidden = hidden + moe.up_bias
    hidden = nn.gelu(hidden)
    if moe.gate is not None:
        hidden = hidden * hf.einsum("gtw,ewh->gteh", rows, moe.gate)
    made = hf.einsum("gteh,ehw->gtew", hidden, moe.down)
    if moe.down_bias is not None:
        made = made + moe.down_bias
    y = hf.einsum("gte,gtew->gtw", weights, made)
    share = hf.mean(hf.sum(marks, axis=2), axis=1) / moe.k
    balance = hf.mean(hf.sum(share * hf.mean(shares, axis=1), axis=-1) * EXPERTS)
    return hf.reshape(y, x.shape), balance, fits


def results(moe, x, run):
    """Return the results, the balancing loss and all gradients of a loss of both."""
    with hf.GradientTape() as tape:
        tape.watch(x)
        y, balance = run(moe, x)[:2]
        loss = hf.mean((y - TARGET) ** 2) + 0.1 * balance
    return [y, balance, *tape.gradient(loss, [x, *moe.parameters()])]


def require_close(one, other):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=0, atol=2e-6 * max(np.abs(a.numpy()).max(), 1e-2))


@pytest.mark.parametrize(
    "options",
    [
        {}, {"k": 1, "bias": True}, {"k": 3, "gated": True, "bias": True, "capacity_factor": None},
        {"capacity_factor": 0.5, "groups": 2},
    ],
    ids=str,
)
def test_one_device_equals_dense(options):
    moe = layer(**options)
    x = hf.asarray(X)
    require_close(results(moe, x, dense), results(moe, x, lambda moe, x: moe(x)))
    fits = dense(moe, x)[2]
    assert fits.all() == (options.get("capacity_factor", 1) is None)


@pytest.mark.parametrize("devices", [1, 2, 4, 8])
def test_several_devices_equal_dense_and_send_what_was_predicted(devices):
    mesh = hf.Mesh({"data": devices})
    moe = hf.distribute.shard(layer(), mesh)
    one = results(layer(), hf.asarray(X), dense)
    assert moe.up.layout == ("data", None, None)
    step = hf.compile(lambda x: results(moe, x, lambda moe, x: moe(x)), mesh=mesh, batch="data")
    require_close(one, step(hf.asarray(X)))
    record = step.explain()[0]
    sent = [one for made in (*record.executables, *record.recorded) for one in made.collectives() or ()]
    capacity = math.ceil(1.25 * 2 * 8 / EXPERTS)
    each = GROUPS // devices * EXPERTS * capacity * WIDTH * 4
    exchanged = [one.bytes for one in sent if one.kind == "all-to-all"]
    # To the experts and back, and the same for the gradient, which sends the tokens once more to run the experts again.
    assert exchanged == ([] if devices == 1 else [each] * 5)
    assert all(one.asked for one in sent)


def test_experts_over_one_axis_and_tokens_over_two():
    mesh = hf.Mesh({"data": 2, "expert": 4})
    moe = hf.distribute.shard(layer(layouts="experts:expert", tokens=("data", "expert")), mesh)
    step = hf.compile(lambda x: results(moe, x, lambda moe, x: moe(x)), mesh=mesh, batch=("data", "expert"))
    require_close(results(layer(), hf.asarray(X), dense), step(hf.asarray(X)))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: layer(k=9), ArgumentError, "k is at most the number of experts"),
        (lambda: layer(capacity_factor=0.0), ArgumentError, "capacity_factor=0.0"),
        (lambda: layer(layouts="expert:data"), LayoutError, 'layouts is "experts:AXIS"'),
        (lambda: layer(groups=7)(X), ShapeError, "tokens for 7 equal groups"),
        (lambda: layer()(X[..., :5]), ShapeError, r"the input is \(\.\.\., 8\)"),
        (lambda: hf.compile(layer(groups=4), mesh=hf.Mesh({"data": 8}))(X), LayoutError, "4 groups of tokens over 8"),
    ],
)
def test_bad_calls(call, error, text):
    with pytest.raises(error, match=text):
        call()

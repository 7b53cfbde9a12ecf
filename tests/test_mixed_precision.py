"""Training in mixed precision: like float32 within what rounding explains, and no further from it than PyTorch is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hybridflow as hf

BF16, F16, F32 = hf.bfloat16, hf.float16, hf.float32
RNG = np.random.default_rng(3)
LABELS = RNG.integers(0, 10, 32).astype(np.int32)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray[Any, Any]:
    return (scale * RNG.standard_normal(shape)).astype(np.float32)


def mlp(w: list[Any], x: Any) -> Any:
    h = hf.nn.relu(x @ w[0] + w[1])
    return hf.nn.gelu(h @ w[2] + w[3]) @ w[4] + w[5]


def cnn(w: list[Any], x: Any) -> Any:
    h = hf.nn.max_pool(hf.nn.relu(hf.nn.conv(x, w[0], padding=1)), 2)
    h = hf.nn.relu(hf.nn.conv(h, w[1], padding=1))
    return hf.mean(h, axis=(2, 3)) @ w[2] + w[3]


def transformer(w: list[Any], x: Any) -> Any:
    def heads(y: Any) -> Any:
        return hf.permute_dims(hf.reshape(y, (32, 8, 2, 8)), (0, 2, 1, 3))

    y = hf.nn.layer_norm(x, w[0], w[1])
    a = hf.nn.scaled_dot_product_attention(heads(y @ w[2]), heads(y @ w[3]), heads(y @ w[4]), is_causal=True)
    x = x + hf.reshape(hf.permute_dims(a, (0, 2, 1, 3)), (32, 8, 16)) @ w[5]
    x = x + hf.nn.gelu(hf.nn.layer_norm(x, w[6], w[7]) @ w[8]) @ w[9]
    return hf.mean(x, axis=1) @ w[10]


MODELS = {
    "mlp": (mlp, normal(32, 16), [normal(16, 64, scale=0.25), np.zeros(64, np.float32), normal(64, 64, scale=0.12),
                                  np.zeros(64, np.float32), normal(64, 10, scale=0.12), np.zeros(10, np.float32)]),
    "cnn": (cnn, normal(32, 3, 8, 8), [normal(8, 3, 3, 3, scale=0.2), normal(16, 8, 3, 3, scale=0.12),
                                       normal(16, 10, scale=0.25), np.zeros(10, np.float32)]),
    "transformer": (transformer, normal(32, 8, 16), [
        np.ones(16, np.float32), np.zeros(16, np.float32), *[normal(16, 16, scale=0.25) for _ in range(4)],
        np.ones(16, np.float32), np.zeros(16, np.float32), normal(16, 64, scale=0.25), normal(64, 16, scale=0.12),
        normal(16, 10, scale=0.25),
    ]),
}


class Training:
    """Plain SGD on float32 Variables, in mixed precision or not."""

    def __init__(self, name: str, low: Any, *, rate: float = 0.3, loss_scale: Any = None, factor: float = 1.0) -> None:
        self.model, batch, weights = MODELS[name]
        self.batch = hf.asarray(batch)
        self.weights = [hf.Variable(one) for one in weights]
        self.low, self.rate, self.factor = low, rate, factor
        self.loss_scale = loss_scale or hf.LossScale(1.0, dynamic=False)

    def step(self, x: Any) -> Any:
        with hf.GradientTape() as tape, hf.autocast(self.low or BF16, enabled=self.low is not None):
            loss = hf.mean(hf.nn.softmax_cross_entropy(self.model(self.weights, x), LABELS))
            scaled = self.loss_scale.scale(loss * self.factor)
        gradients = self.loss_scale.unscale(tape.gradient(scaled, self.weights))
        self.loss_scale.step(self.update, gradients)
        return loss

    def update(self, gradients: Any) -> None:
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.assign_sub(gradient * (self.rate / self.factor))

    def run(self, steps: int, *, compiled: bool = True) -> np.ndarray[Any, Any]:
        step = hf.compile(self.step) if compiled else self.step
        return np.array([step(self.batch).item() for _ in range(steps)])


@pytest.mark.parametrize("name", MODELS)
def test_losses_fall_as_in_float32(name):
    """bfloat16 rounds to 2**-9 of each value: a step's loss and gradients are off by a few times that, in no direction.

    Twenty such steps may be 2**-9 of the first loss apart (they are a third of that). Weights that were kept in
    bfloat16 instead would stand still, since a step changes most of them by less than 2**-9.
    """
    full, low = Training(name, None).run(20), Training(name, BF16).run(20)
    assert full[-1] < 0.9 * full[0]
    np.testing.assert_allclose(low, full, rtol=0, atol=2.0**-9 * full[0])


@pytest.mark.parametrize("name", MODELS)
def test_eager_and_compiled_are_the_same(name):
    """By the one definition of it: within what rounding explains, judged against a run in float64."""
    model, batch, weights = MODELS[name]
    variables = [hf.Variable(one) for one in weights]

    def gradients(x):
        with hf.GradientTape() as tape, hf.autocast(BF16):
            loss = hf.mean(hf.nn.softmax_cross_entropy(model(variables, x), LABELS))
        return loss, tape.gradient(loss, variables)

    hf.testing.assert_same(gradients, hf.asarray(batch))


def test_float16_needs_its_loss_scale():
    """A loss divided by 2**20 has gradients that float16 does not have; its scale brings them back."""
    full = Training("mlp", None).run(12)
    unscaled = Training("mlp", F16, factor=2.0**-20).run(12)
    scaled = Training("mlp", F16, factor=2.0**-20, loss_scale=hf.LossScale(2.0**20)).run(12)
    assert unscaled[-1] > 0.97 * unscaled[0]
    np.testing.assert_allclose(scaled, full, rtol=0, atol=8 * 2.0**-12 * full[0])


def test_a_scale_that_is_too_large_comes_down_by_itself():
    loss_scale = hf.LossScale(2.0**24)
    training = Training("mlp", F16, loss_scale=loss_scale)
    losses = training.run(20)
    skipped = loss_scale.skipped_steps.item()
    assert 2 <= skipped <= 12
    assert loss_scale.value.item() == 2.0 ** (24 - skipped)
    np.testing.assert_array_equal(losses[:skipped], losses[0])
    assert losses[-1] < 0.9 * losses[0]


# -- PyTorch ------------------------------------------------------------------------------------------------------


def torch_gradients(name: str, torch: Any, *, low: bool) -> list[np.ndarray[Any, Any]]:
    """Return the gradients of the same model in PyTorch, under its autocast or not."""
    TF = torch.nn.functional
    _, batch, weights = MODELS[name]
    w = [torch.tensor(one, requires_grad=True) for one in weights]
    x = torch.tensor(batch)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
        if name == "mlp":
            h = TF.relu(TF.linear(x, w[0].T, w[1]))
            y = TF.linear(TF.gelu(TF.linear(h, w[2].T, w[3])), w[4].T, w[5])
        elif name == "cnn":
            h = TF.max_pool2d(TF.relu(TF.conv2d(x, w[0], padding=1)), 2)
            h = TF.relu(TF.conv2d(h, w[1], padding=1))
            y = TF.linear(h.mean((2, 3)), w[2].T, w[3])
        else:
            h = TF.layer_norm(x, (16,), w[0], w[1])
            q, k, v = [(h @ one).reshape(32, 8, 2, 8).transpose(1, 2) for one in w[2:5]]
            a = TF.scaled_dot_product_attention(q, k, v, is_causal=True)
            h = x + a.transpose(1, 2).reshape(32, 8, 16) @ w[5]
            h = h + TF.gelu(TF.layer_norm(h, (16,), w[6], w[7]) @ w[8]) @ w[9]
            y = h.mean(1) @ w[10]
        loss = TF.cross_entropy(y.float(), torch.tensor(LABELS).long())
    loss.backward()
    return [one.grad.numpy() for one in w]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_as_near_to_float32_as_torch_s(name):
    """The reference is float32; both roundings are alike, so neither error is much more than the other's."""
    torch = pytest.importorskip("torch")
    exact = torch_gradients(name, torch, low=False)
    theirs = torch_gradients(name, torch, low=True)
    model, batch, weights = MODELS[name]
    variables = [hf.Variable(one) for one in weights]
    with hf.GradientTape() as tape, hf.autocast(BF16):
        loss = hf.mean(hf.nn.softmax_cross_entropy(model(variables, hf.asarray(batch)), LABELS))
    ours = [g.numpy() for g in tape.gradient(loss, variables)]

    def distance(found: list[Any]) -> float:
        squares = [(np.square(a - b).sum(), np.square(b).sum()) for a, b in zip(found, exact, strict=True)]
        return float(np.sqrt(sum(s for s, _ in squares) / sum(n for _, n in squares)))

    assert all(g.dtype == np.float32 for g in ours)
    assert 0 < distance(ours) < 1.1 * distance(theirs)


# -- what it brings -----------------------------------------------------------------------------------------------


def test_cost_and_compare_say_what_it_changes():
    costs, kept = {}, {}
    for low in (None, BF16):
        training = Training("mlp", low)
        costs[low] = hf.cost(training.step, training.batch)
        kept[low] = sum(one.bytes for one in costs[low].memory.activations)
    assert costs[BF16].flops <= 1.05 * costs[None].flops
    assert kept[BF16] < kept[None]
    found = hf.compare(Training("mlp", BF16).step, hf.asarray(MODELS["mlp"][1]), repeats=2)
    assert found.precisions["bfloat16"] > 5
    assert found.precisions["float32"] > 5
    assert found.casts >= 8
    assert "operations by precision" in str(found)
    assert found.to_dict()["casts"] == found.casts
    plain = hf.compare(lambda x: hf.sum(x * x), hf.ones(4), repeats=2)
    assert (plain.precisions, plain.casts) == ({"float32": 2}, 0)
    assert "operations by precision" not in str(plain)

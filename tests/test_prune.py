"""Pruning: masks that hold, schedules, and layers that shrink with those that read them."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from compressed_models import Convnet, Transformer
from zoo import made

import hybridflow as hf
from hybridflow import nn
from hybridflow.compress import channels as channels_room
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, HybridflowError


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def small_net() -> Any:
    nn.init.seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.relu, nn.Linear(16, 12), nn.relu, nn.Linear(12, 4))


def zeros(model: Any) -> dict[str, Any]:
    return {path: one.numpy() == 0 for path, one in model.named_parameters().items() if path.endswith("weight")}


# -- masks ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("make", [
    lambda model: hf.optim.Adam(model, rate=1e-2), lambda model: hf.optim.AdamW(model, rate=1e-2, decay=0.1),
    lambda model: hf.optim.SGD(model, rate=1e-2, momentum=0.9),
])
def test_half_of_the_weights_stay_zero_through_twenty_steps(compiled: bool, make: Any):
    model = hf.prune.magnitude(small_net(), 0.5)
    optimizer, before = make(model), zeros(model)
    first = model.state_dict()
    assert hf.prune.sparsity(model) == 0.5

    def step(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean((model(x) - 1.0) ** 2)
        optimizer.update(tape.gradient(loss, model))
        return loss

    run = hf.compile(step) if compiled else step
    losses = [run(numbers(16, 8, seed=seed)).item() for seed in range(20)]
    assert losses[-1] < losses[0]
    assert hf.prune.sparsity(model) == 0.5
    for path, mask in zeros(model).items():
        np.testing.assert_array_equal(mask, before[path])  # the stored weights themselves, exactly
        assert (model.state_dict()[path] != first[path])[~mask].mean() > 0.8  # a unit may never be active


def test_the_smallest_weights_go():
    model = small_net()
    made = hf.prune.magnitude(model, 0.25)
    for path in ("0", "2", "4"):
        weight, kept = np.abs(model[int(path)].weight.numpy()), made[int(path)].mask.numpy()
        assert (~kept).sum() == weight.size // 4
        assert weight[~kept].max() <= weight[kept].min()
    whole = hf.prune.magnitude(model, 0.5, scope="model")
    parts = {path: mask.mean() for path, mask in zeros(whole).items()}
    assert len({*parts.values()}) > 1
    weights = np.concatenate([np.abs(model[number].weight.numpy()).ravel() for number in (0, 2, 4)])
    masks = np.concatenate([whole[number].mask.numpy().ravel() for number in (0, 2, 4)])
    assert weights[~masks].max() <= weights[masks].min()


def test_random_masks_are_those_of_the_seed():
    first, second, other = [hf.prune.random(small_net(), 0.5, seed=seed) for seed in (1, 1, 2)]
    assert hf.prune.sparsity(first) == 0.5
    np.testing.assert_array_equal(first[0].mask.numpy(), second[0].mask.numpy())
    assert (first[0].mask.numpy() != other[0].mask.numpy()).any()


def test_weights_that_move_towards_zero_go():
    model = nn.Sequential(nn.Linear(4, 3, bias=False))
    scores, optimizer = hf.prune.Movement(model), hf.optim.SGD(model, rate=0.1)
    start = model[0].weight.numpy().copy()
    pull = np.where(np.arange(12).reshape(3, 4) % 2 == 0, 1.0, -1.0).astype(np.float32) * np.sign(start)

    @hf.compile
    def step() -> None:
        gradients = hf.grad(lambda model: hf.sum(model[0].weight * pull))(model)
        scores.update(gradients)
        optimizer.update(gradients)

    step()
    step()
    expected = -(start * pull + (start - 0.1 * pull) * pull)
    np.testing.assert_allclose(scores.scores()["0"], expected, rtol=1e-5)
    made = hf.prune.movement(model, 0.5, scores)
    np.testing.assert_array_equal(made[0].mask.numpy(), pull * np.sign(start) < 0)
    named = hf.prune.Movement(model)
    named.update({"0.weight": hf.asarray(pull)})
    np.testing.assert_allclose(named.scores()["0"], -model[0].weight.numpy() * pull, rtol=1e-6)


def test_two_of_four_neighbours_are_kept():
    model = nn.Sequential(nn.Conv2d(6, 3, 2), nn.Flatten(), nn.Linear(12, 5))
    made = hf.prune.n_of_m(model)
    rows = made[2].mask.numpy().reshape(5, 3, 4)
    assert (rows.sum(-1) == 2).all()
    size = np.abs(model[2].weight.numpy()).reshape(5, 3, 4)
    assert (np.where(rows, size, np.inf).min(-1) >= np.where(rows, 0, size).max(-1)).all()
    mask = made[0].mask.numpy()
    assert (mask[:, :4].sum(1) == 2).all()
    assert mask[:, 4:].all()  # what is left of a row is kept


def test_a_schedule_drops_more_between_compiled_steps():
    model = hf.prune.magnitude(small_net(), 0.0)
    optimizer = hf.optim.Adam(model, rate=1e-2)

    @hf.compile
    def step(x: Any) -> Any:
        optimizer.update(hf.grad(lambda model: hf.mean(model(x) ** 2))(model))

    schedule, dropped = hf.prune.cubic(0.75, first=2, last=8), None
    for number in range(12):
        hf.prune.set_sparsity(model, schedule(number))
        step(numbers(4, 8, seed=number))
        now = {path: ~one.mask.numpy() for path, one in model.named_modules().items() if hasattr(one, "mask")}
        if dropped is not None:
            assert all([now[path][mask].all() for path, mask in dropped.items()])
        dropped = now
        assert hf.prune.sparsity(model) == pytest.approx(schedule(number), abs=0.01)
    assert step.trace_count == 1
    assert [schedule(number) for number in (0, 2, 8, 20)] == [0, 0, 0.75, 0.75]
    x = numbers(3, 8)
    plain = hf.prune.finish(model)
    assert "Masked" not in repr(plain)
    assert hf.prune.sparsity(plain) == hf.prune.sparsity(model)
    np.testing.assert_array_equal(plain(x).numpy(), model(x).numpy())


def test_masks_are_the_same_in_both_modes():
    model = hf.prune.magnitude(small_net(), 0.5)
    hf.testing.assert_same(lambda x: model(x), hf.asarray(numbers(3, 8)))


# -- channels ---------------------------------------------------------------------------------------------------------

IMAGE = numbers(2, 1, 28, 28)
SPEC = hf.TensorSpec([1, 1, 28, 28])


def test_half_the_filters_are_half_of_their_and_a_quarter_of_the_next_products():
    model = Convnet()
    model(IMAGE)
    for seed in range(2):
        model(numbers(2, 1, 28, 28, seed=seed))  # so that the averages of normalisation are no zeros
    model.eval()
    made = hf.prune.channels(model, IMAGE, match="features.0")
    found = {one.path: one for one in hf.prune.report(model, made, SPEC).layers}
    assert found["features.0"].shape == (4, 1, 3, 3)
    assert found["features.0"].macs * 2 == found["features.0"].macs_before
    assert found["features.3"].macs * 2 == found["features.3"].macs_before
    assert found["head.1"].macs == found["head.1"].macs_before
    both = hf.prune.report(model, hf.prune.channels(model, IMAGE), SPEC)
    ratios = {one.path: one.macs_before / one.macs for one in both.layers}
    assert ratios == {"features.0": 2, "features.3": 4, "head.1": 4, "head.4": 2}
    assert "MACs before" in str(both)
    assert both.to_dict()["macs"] == both.macs
    kept = np.linalg.norm(model.features[0].weight.numpy().reshape(8, -1), axis=1).argsort()[4:]
    np.testing.assert_array_equal(made.features[0].weight.numpy(), model.features[0].weight.numpy()[np.sort(kept)])
    means = [one.features[1].running_mean.numpy() for one in (made, model)]
    np.testing.assert_array_equal(means[0], means[1][np.sort(kept)])


def test_heads_go_with_their_queries_keys_and_values():
    model = Transformer(16)
    model(IMAGE)
    assert hf.prune.prunable(model, IMAGE) == {"attend.query": 4, "attend.key": 4, "attend.value": 4, "mlp.0": 64}
    made = hf.prune.channels(model, IMAGE, match="attend.*")
    assert made.attend.heads == 2
    assert made.attend.query.weight.shape == made.attend.value.weight.shape == (8, 16)
    assert made.attend.out.weight.shape == (16, 8)
    assert made.mlp[0].weight.shape == (64, 16)
    hf.testing.assert_same(lambda x: made(x), hf.asarray(IMAGE))
    optimizer = hf.optim.Adam(made, rate=1e-2)
    optimizer.update(hf.grad(lambda made: hf.sum(made(IMAGE) ** 2))(made))


class Residual(nn.Module):
    def __init__(self):
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.first, self.norm = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm(8)
        self.depth, self.point = nn.Conv2d(8, 8, 3, groups=8, padding=1), nn.Conv2d(8, 6, 1)
        self.head = nn.Linear(6 * 4, 3)

    def forward(self, x: Any) -> Any:
        y = nn.relu(self.stem(x))
        y = nn.relu(y + self.norm(self.first(y)))
        y = nn.max_pool(nn.relu(self.point(self.depth(y))), 2)
        return self.head(hf.reshape(y, (y.shape[0], -1)))


def residual() -> Any:
    model = Residual()
    for seed in range(2):
        model(numbers(2, 1, 4, 4, seed=seed))
    return model.eval()


def test_sums_and_depthwise_convolutions_bind_channels():
    model, x = residual(), numbers(2, 1, 4, 4)
    assert hf.prune.prunable(model, x) == {"first": 8, "stem": 8, "point": 6}
    made = hf.prune.channels(model, x, amount=0.25, skip="point")
    shapes = {path: one.shape for path, one in made.named_parameters().items() if path.endswith("weight")}
    assert shapes == {
        "stem.weight": (6, 1, 3, 3), "first.weight": (6, 6, 3, 3), "norm.weight": (6,), "depth.weight": (6, 1, 3, 3),
        "point.weight": (6, 6, 1, 1), "head.weight": (3, 24),
    }
    assert made.depth.groups == 6
    less = hf.prune.channels(model, x, amount=0.5, match="point", by="l1")
    assert less.head.weight.shape == (3, 12)
    assert hf.prune.channels(model, hf.TensorSpec(["n", 1, 4, 4]), amount=0.0).stem.weight.shape == (8, 1, 3, 3)


def test_channels_that_were_not_found_are_an_error(monkeypatch: pytest.MonkeyPatch):
    model, x = residual(), numbers(2, 1, 4, 4)
    reaches = channels_room._reaches  # pyright: ignore[reportPrivateUsage]

    def forgets(x: Any, axis: int) -> Any:
        found = reaches(x, axis)
        return found & (len(found) != 24)  # what the last layer reads

    monkeypatch.setattr(channels_room, "_reaches", forgets)
    with pytest.raises(ArgumentError, match="the smaller model fails"):
        hf.prune.channels(model, x, match="point")


def test_a_wrong_choice_of_columns_is_an_error(monkeypatch: pytest.MonkeyPatch):
    from hybridflow.compress import structured

    model, x = small_net(), numbers(2, 8)
    smaller = structured._smaller  # pyright: ignore[reportPrivateUsage]

    def shifted(model: Any, removed: Any) -> Any:
        return smaller(model, {key: [(n + (key[0] == "in")) % 12 for n in value] for key, value in removed.items()})

    monkeypatch.setattr(structured, "_smaller", shifted)
    with pytest.raises(ArgumentError, match="another result than the model without these channels"):
        hf.prune.channels(model, x, match="2")


def test_what_cannot_be_pruned_is_said():
    model = small_net()
    cases: list[tuple[Any, type[HybridflowError], str]] = [
        (lambda: hf.prune.magnitude(model, 1.0), ArgumentError, "sparsity=1.0 is not a part of the weights"),
        (lambda: hf.prune.magnitude(model, 0.5, scope="x"), ArgumentError, "scope='x' is none of"),
        (lambda: hf.prune.magnitude(model, 0.5, match="9"), ArgumentError, "no layer matches '9'"),
        (lambda: hf.prune.magnitude(nn.Linear(3), 0.5), ArgumentError, "size of Linear is not known yet"),
        (lambda: hf.prune.channels(nn.Linear(3), numbers(2, 8)), ArgumentError, "size of Linear is not known yet"),
        (lambda: hf.prune.n_of_m(model, 4, 4), ArgumentError, "n=4 of m=4 keeps none or all"),
        (lambda: hf.prune.set_sparsity(model, 0.5), ArgumentError, "the model has no masks"),
        (lambda: hf.prune.finish(model), ArgumentError, "the model has no masks"),
        (lambda: hf.prune.cubic(0.5, first=3, last=3), ArgumentError, "the last step, 3, is not after the first, 3"),
        (lambda: hf.prune.movement(model, 0.5, hf.prune.Movement(model, match="0")), ArgumentError, "no scores of '2'"),
        (lambda: hf.prune.channels(model, numbers(2, 8), amount=1), ArgumentError, "amount=1 is not a part"),
        (lambda: hf.prune.channels(model, numbers(2, 8), match="4"), ArgumentError, "those of 4 reach the result"),
        (lambda: hf.prune.sparsity(nn.Sequential(nn.relu)), ArgumentTypeError, "the model has no weights"),
    ]
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()


@pytest.mark.parametrize("name", ["gpt2", "bert", "resnet", "mobilenet_v2"])
def test_families_of_the_zoo_shrink(name: str):
    """Layers whose weight another layer reads, such as a tied table of tokens, keep their sizes."""
    model, inputs = made(name)
    model.eval()
    small = hf.prune.channels(model, *inputs, amount=0.5)
    found = hf.prune.report(model, small, *[hf.TensorSpec(one.shape, one.dtype) for one in inputs])
    assert found.macs < 0.55 * found.macs_before
    wanted, results = [jax.tree_util.tree_leaves(one(*inputs)) for one in (model, small)]
    assert [one.shape for one in results] == [one.shape for one in wanted]
    assert all(np.isfinite(one.numpy()).all() for one in results)
    if name == "gpt2":
        assert small.tokens.weight.shape == model.tokens.weight.shape
        assert small.blocks[0].attend.heads == 1

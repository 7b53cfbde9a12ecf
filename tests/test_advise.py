"""`hf.advise`: plans that fit into a memory, by XLA's own figures."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import models, nn
from hybridflow.analysis.advise import _blocks
from hybridflow.core.errors import ArgumentError


def setting(model: Any) -> Any:
    """Return a training step of a model, its loss and its optimizer."""
    optimizer = hf.optim.SGD(model, rate=0.1)

    def loss(*batch: Any) -> Any:
        return sum(hf.mean(leaf * leaf) for leaf in jax.tree_util.tree_leaves(model(*batch)))

    def step(*batch: Any) -> Any:
        with hf.GradientTape() as tape:
            value = loss(*batch)
        optimizer.update(tape.gradient(value, model))
        return value

    return step, loss, optimizer


def mlp() -> Any:
    return nn.Sequential(nn.Linear(32, 64), hf.tanh, nn.Linear(64, 64), hf.tanh, nn.Linear(64, 4))


FOUR: dict[str, tuple[Any, Any, float]] = {
    "mlp": (mlp, hf.TensorSpec((4096, 32)), 0.75),
    "convnet": (lambda: models.LeNet(), hf.TensorSpec((64, 1, 32, 32)), 0.7),
    "transformer": (
        lambda: models.GPT2(width=8, blocks=1, heads=1, tokens=32, length=16, dropout=0.0),
        hf.TensorSpec((64, 16), hf.int32), 0.7,
    ),
    "vae": (lambda: models.VAE(size=64, hidden=64, latent=4), hf.TensorSpec((2048, 64)), 0.7),
}
"""A model, the arguments of its step, and the part of the memory that the step would take which there is."""


@pytest.mark.parametrize("name", FOUR)
def test_the_best_plan_stays_below_the_limit_by_xlas_figure(name: str):
    make, spec, part = FOUR[name]
    model = make()
    step, loss, optimizer = setting(model)
    plain = hf.cost(step, spec).against_xla().xla_peak
    limit = int(plain * part)
    before = model.state_dict()
    found = hf.advise(step, spec, memory=limit, loss=loss, model=model, optimizer=optimizer)
    best = found.best
    assert best is not None
    assert best.peak is not None
    assert best.peak <= limit < plain
    as_it_is = next(one for one in found.plans if one.name == "as it is")
    assert (as_it_is.peak, as_it_is.fits) == (plain, False)
    assert all((model.state_dict()[path] == value).all() for path, value in before.items())
    assert best.name in str(found)
    assert best.code in str(found)


def test_the_code_of_a_plan_does_what_the_step_does():
    x = np.random.default_rng(0).normal(size=(64, 32)).astype(np.float32)
    values: list[Any] = []
    for plan in ("as it is", "accumulation"):
        hf.random.seed(0)
        model = mlp()
        step, loss, optimizer = setting(model)
        found = hf.advise(step, hf.TensorSpec(x.shape), memory="1 GiB", loss=loss, model=model, optimizer=optimizer)
        assert found.best is not None
        assert found.best.name == "as it is"
        names: dict[str, Any] = {"hf": hf, "step": step, "loss": loss, "model": model, "optimizer": optimizer}
        code = next(one.code for one in found.plans if one.name.startswith(plan))
        exec(code, names)
        names["step"](x)
        values.append(model.state_dict())
    for path, value in values[0].items():
        np.testing.assert_allclose(values[1][path], value, atol=1e-5)


def test_a_smaller_batch_is_a_plan_if_nothing_else_fits():
    model = mlp()
    step, *_ = setting(model)
    spec = hf.TensorSpec((1024, 32))
    limit = int(hf.cost(step, hf.TensorSpec((16, 32))).against_xla().xla_peak * 1.2)
    found = hf.advise(step, spec, memory=limit)
    assert found.best is not None
    assert found.best.name == f"a batch of {found.best.batch}"
    assert 8 <= found.best.batch <= 64


def test_an_open_batch_gets_the_largest_that_fits():
    model = mlp()
    step, *_ = setting(model)
    limit = int(hf.cost(step, hf.TensorSpec((256, 32))).memory.peak * 1.5)
    found = hf.advise(step, hf.TensorSpec((None, 32)), memory=limit)
    assert found.plans[0].batch in (128, 256)


def test_if_nothing_fits_it_says_so():
    model = mlp()
    step, *_ = setting(model)
    found = hf.advise(step, hf.TensorSpec((4, 32)), memory="1 KiB")
    assert found.best is None
    assert "Nothing fits." in str(found)


@pytest.mark.parametrize(
    ("args", "options", "text"),
    [
        ((hf.TensorSpec((4, 32)),), {"memory": "much"}, "advise: memory='much' is no size"),
        ((hf.TensorSpec((4, 32)),), {"memory": 10, "loss": sum}, "given together"),
        ((hf.TensorSpec(()),), {"memory": 10}, "the batch as its axis 0"),
        ((), {"memory": 10}, "the batch as its axis 0"),
    ],
)
def test_arguments_that_make_no_sense(args: Any, options: Any, text: str):
    step, *_ = setting(mlp())
    with pytest.raises(ArgumentError, match=text):
        hf.advise(step, *args, **options)


def block_of(width: int) -> Any:
    return nn.Sequential(nn.Linear(width, 4 * width), hf.tanh, nn.Linear(4 * width, width))


def test_blocks_that_are_computed_again_are_a_plan_whose_code_gives_the_same_updates():
    x = np.random.default_rng(0).normal(size=(1024, 8)).astype(np.float32)
    values: list[Any] = []
    for plan in ("as it is", "4 checkpoints"):
        hf.random.seed(0)
        model = nn.Sequential(*[block_of(8) for _ in range(4)])
        step, *_ = setting(model)
        plain = hf.cost(step, hf.TensorSpec(x.shape)).against_xla().xla_peak
        found = hf.advise(step, hf.TensorSpec(x.shape), memory=int(plain * 0.75), model=model)
        assert not any(vars(one).get("recomputed") for one in model.named_modules().values())
        one = next(one for one in found.plans if one.name == plan)
        assert one.fits is (plan == "4 checkpoints")
        names: dict[str, Any] = {"hf": hf, "step": step, "model": model}
        exec(one.code, names)
        assert hf.cost(names["step"], x).against_xla().xla_peak == one.peak
        names["step"](x)
        values.append(model.state_dict())
    for path, value in values[0].items():
        np.testing.assert_allclose(values[1][path], value, rtol=1e-5, atol=1e-6)


def test_blocks_of_the_zoo_are_found():
    with nn.init.abstract():
        found = {
            "gpt2": _blocks(models.GPT2(width=8, blocks=3, heads=2, tokens=11, length=8)),
            "resnet": _blocks(models.ResNet((1, 2), width=4, classes=5)),
            "mlp": _blocks(mlp()),
            "vit": _blocks(models.ViT(size=8, patch=4, width=8, blocks=2, heads=2, classes=5)),
        }
    assert found["gpt2"] == ["blocks.0", "blocks.1", "blocks.2"]
    assert found["resnet"] == ["stem.0", "stages.0.0", "stages.1.0", "stages.1.1"]
    assert found["vit"] == ["blocks.0", "blocks.1"]
    assert found["mlp"] == []


def test_a_policy_that_was_set_before_is_kept():
    model = nn.Sequential(*[block_of(8) for _ in range(2)]).recompute("[0-9]*", policy="dots")
    step, *_ = setting(model)
    hf.advise(step, hf.TensorSpec((64, 8)), memory="1 GiB", model=model)
    assert [model[i].recomputed for i in range(2)] == ["dots", "dots"]


def test_more_devices_than_there_are_is_an_error():
    model = mlp()
    step, *_ = setting(model)
    with pytest.raises(hf.LayoutError, match="needs 512 devices"):
        hf.advise(step, hf.TensorSpec((512, 32)), memory="1 KiB", model=model, devices=512)
    with pytest.raises(ArgumentError, match="devices=0, which is less than 1"):
        hf.advise(step, hf.TensorSpec((512, 32)), memory="1 KiB", model=model, devices=0)

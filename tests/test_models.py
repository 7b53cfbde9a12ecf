"""The zoo: the published figures, training eager and compiled, artifacts, and ONNX Runtime."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from processes import run_python
from zoo import SMALL, made

import hybridflow as hf
from hybridflow import models
from hybridflow.core.errors import ArgumentError
from hybridflow.models.figures import CATALOG, main, row_of

PAGE = (Path(__file__).parent.parent / "notebooks" / "models.md").read_text(encoding="utf-8")
FACTORS = {"M": 10**6, "G": 10**9}


def agrees(ours: int, published: str) -> bool:
    """Whether a figure is the published one: to the digit, or within the rounding of a number with a unit."""
    number, _, unit = published.partition(" ")
    if not unit:
        return ours == int(number.replace(",", ""))
    last = Decimal(1).scaleb(int(Decimal(number).as_tuple().exponent))
    return abs(Decimal(ours) / FACTORS[unit] - Decimal(number)) <= last / 2


def listed(name: str) -> list[str]:
    """Return the cells of a model's row on the page."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in row.split("|")[1:-1]]


@pytest.mark.parametrize(
    ("ours", "published", "same"),
    [(4_089_184_256, "4.09 G", True), (4_089_184_256, "4.1 G", True), (4_089_184_256, "4.10 G", False),
     (100, "100", True), (101, "100", False), (2_278_604, "2.279 M", True)],
)
def test_a_rounded_figure_agrees_within_its_rounding(ours: int, published: str, same: bool):
    assert agrees(ours, published) is same


@pytest.mark.parametrize("entry", CATALOG, ids=lambda one: one.name)
def test_the_figures_are_the_published_ones(entry: Any):
    found = entry.figures()
    assert not entry.parameters or agrees(found.parameters, entry.parameters)
    assert not entry.macs or agrees(found.macs, entry.macs)
    cells = listed(entry.name)
    assert cells[2:6] == [f"{found.parameters:,}", entry.parameters, f"{found.macs:,}", entry.macs]


@pytest.mark.parametrize("name", ["LeNet-5", "AlexNet", "VAE"])
def test_rows_of_the_page_are_up_to_date(name: str):
    (entry,) = [one for one in CATALOG if one.name == name]
    cells = row_of(entry).cells
    assert listed(name)[: len(cells)] == list(cells)  # what XLA stores depends on its version


def test_the_page_has_the_models_in_their_order():
    titles = [one for one in PAGE.splitlines() if one.startswith("| ")]
    assert [one.split(" | ")[0].removeprefix("| ") for one in titles[2:]] == [one.name for one in CATALOG]


def test_the_command_prints_a_table(capsys: Any):
    main(["lenet-5"])
    printed = capsys.readouterr().out
    assert "LeNet-5" in printed
    main(["lenet-5", "--markdown", "--xla"])
    assert "XLA, training" in capsys.readouterr().out


def test_the_facts_to_the_digit():
    """Parameters and multiply-adds that were counted on independent models."""
    wanted = {
        "AlexNet": (61_100_840, 714_188_480), "VGG-16": (138_357_544, 15_470_264_320),
        "ResNet-18": (11_689_512, 1_814_073_344), "ResNet-50": (25_557_032, 4_089_184_256),
        "ResNet-152": (60_192_808, 11_513_626_624), "Wide ResNet-50-2": (68_883_240, 11_398_021_120),
        "MobileNet V1": (4_231_976, 568_740_352), "MobileNet V2": (3_504_872, 300_774_272),
        "EfficientNet-B0": (5_288_548, 385_814_752), "EfficientNet-B7": (66_347_960, 37_745_884_192),
    }
    published = {one.name: (one.parameters, one.macs) for one in CATALOG}
    for name, figures in wanted.items():
        assert published[name] == tuple(f"{one:,}" for one in figures)


def test_rows_of_resnet_50_sum_to_its_cost():
    with hf.nn.init.abstract():
        model = models.resnet50().eval()
    report = hf.cost(model, hf.TensorSpec((1, 3, 224, 224)))
    rows = report.layers
    assert sum(row.macs for row in rows) == report.macs == 4_089_184_256
    assert sum(row.parameters for row in rows) == 25_557_032
    assert sum(row.flops + row.integer_operations for row in rows) == report.flops


def test_figures_of_gpt2_xl_take_no_memory():
    """Its parameters alone are 6 GB."""
    code = """
import resource
import hybridflow as hf
hf.nn.Linear(1, 1)
hf.cost(hf.nn.Linear(1, 1), hf.TensorSpec((1, 1)))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with hf.nn.init.abstract():
    model = hf.models.gpt2("xl").eval()
spec = hf.TensorSpec((1, 64), hf.int32)
print(sum(one.size for one in model.parameters()), hf.cost(model, spec).macs == hf.nn.summary(model, spec).macs)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000)
"""
    assert run_python(code).split() == ["1557611200", "True", "True"]


# -- training, artifacts and ONNX Runtime -----------------------------------------------------------------------------


def loss_of(result: Any) -> Any:
    """Return a number that depends on all results."""
    return sum(hf.mean(leaf * leaf) for leaf in jax.tree_util.tree_leaves(result))


ALIKE = {"mobilenet_v1", "mobilenet_v2", "efficientnet"}
"""Families whose steps have no operation that "mobilenet_v3" lacks, and take long to compile."""


@pytest.mark.parametrize("name", [name for name in SMALL if name not in ALIKE])
def test_a_step_is_the_same_eager_and_compiled(name: str):
    model, inputs = made(name)
    optimizer = hf.optim.SGD(model, rate=0.1)

    def step(*args: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = loss_of(model(*args))
        optimizer.update(tape.gradient(loss, model))
        return loss

    hf.testing.assert_same(step, *inputs)
    before = model.state_dict()
    step(*inputs)
    after = model.state_dict()
    changed = [path for path in model.named_parameters() if not np.array_equal(before[path], after[path])]
    assert len(changed) > 0.8 * len(model.parameters())


@pytest.mark.parametrize("name", SMALL)
def test_an_artifact_in_onnx_runtime_gives_the_same(name: str, tmp_path: Path):
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model, inputs = made(name)
    model.eval()
    specs = [hf.TensorSpec(one.shape, one.dtype) for one in inputs]
    wanted = [leaf.numpy() for leaf in jax.tree_util.tree_leaves(model(*inputs))]
    hf.export.save(tmp_path / "model.hf", model, *specs)
    hf.export.onnx(tmp_path / "model.onnx", tmp_path / "model.hf")
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    given = {one.name: value for one, value in zip(session.get_inputs(), inputs, strict=True)}
    results = [one.name for one in session.get_outputs() if one.name.startswith("output")]  # others are checks
    for one, other in zip(session.run(results, given), wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-5 * np.abs(other).max())
    if name in ("lenet", "llama"):
        loaded = hf.export.load(tmp_path / "model.hf")
        for one, other in zip(jax.tree_util.tree_leaves(loaded.predict(*inputs)), wanted, strict=True):
            np.testing.assert_allclose(one.numpy(), other, rtol=0, atol=2e-5 * np.abs(other).max())


# -- details ----------------------------------------------------------------------------------------------------------


def test_a_larger_window_of_squeezenets_pool_may_reach_over_the_edge():
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    assert models.squeezenet._pool(hf.asarray(x)).numpy().tolist() == [[[[10.0, 11.0], [14.0, 15.0]]]]


def test_stochastic_depth_drops_whole_examples():
    drop = models.parts.StochasticDepth(0.5)
    hf.random.seed(3)
    found = drop(hf.ones((64, 2, 3))).numpy()
    assert set(np.unique(found)) == {0.0, 2.0}
    assert (found.min(axis=(1, 2)) == found.max(axis=(1, 2))).all()
    assert (drop.eval()(hf.ones((4, 2))).numpy() == 1).all()


def test_a_mode_changed_later_is_seen_by_compiled_calls():
    model = models.VAE(size=4, hidden=4, latent=2)
    call = hf.compile(model)
    x = np.ones((1, 4), np.float32)
    assert not np.array_equal(call(x)[0].numpy(), call(x)[0].numpy())
    model.eval()
    assert np.array_equal(call(x)[0].numpy(), call(x)[0].numpy())


@pytest.mark.parametrize(
    ("make", "text"),
    [(lambda: models.gpt2("tiny"), "small, medium, large, xl"), (lambda: models.llama("8b"), "llama2-7b"),
     (lambda: models.SqueezeNet("2.0"), "'1.0' and '1.1'")],
)
def test_a_size_that_is_not_there_is_an_error(make: Any, text: str):
    with pytest.raises(ArgumentError, match=re.escape(text)):
        make()


def test_grouped_queries_are_those_with_repeated_keys():
    hf.random.seed(0)
    grouped = hf.nn.MultiHeadAttention(8, 4, kv_heads=2, features=8, is_causal=True)
    full = hf.nn.MultiHeadAttention(8, 4, features=8, is_causal=True)
    values = grouped.state_dict()
    for name in ("key", "value"):
        for kind in ("weight", "bias"):
            rows = values[f"{name}.{kind}"].reshape(2, 2, -1)
            values[f"{name}.{kind}"] = np.repeat(rows, 2, axis=0).reshape(full.state_dict()[f"{name}.{kind}"].shape)
    full.load_state_dict(values)
    x = hf.random.normal((2, 5, 8))
    np.testing.assert_allclose(grouped(x).numpy(), full(x).numpy(), atol=1e-6)
    with pytest.raises(ArgumentError, match="groups of equal sizes"):
        hf.nn.MultiHeadAttention(8, 4, kv_heads=3)

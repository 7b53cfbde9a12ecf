"""Quantization: the operations, models, artifacts, ONNX models, and what the report says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compressed_models import MODELS, accuracy, digits, trained
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow import nn
from hybridflow.compress.calibration import by_entropy, by_percentile
from hybridflow.compress.scales import stored_weights
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, HybridflowError, ShapeError
from hybridflow.core.op import REGISTRY, No, Op
from hybridflow.ops import integer_products, packing, quantization, quantized_products

ROOMS = (packing, quantization, integer_products, quantized_products)
OPS = sorted({one.op.name for room in ROOMS for one in vars(room).values() if isinstance(getattr(one, "op", None), Op)})
OPS = [name for name in OPS if REGISTRY[name].public.__module__ in {room.__name__ for room in ROOMS}]  # pyright: ignore
EXAMPLES = int(os.environ.get("HYBRIDFLOW_QUANTIZE_EXAMPLES", "8"))
FEW = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def arrays(value: Any) -> Any:
    return np.asarray(value.numpy())


# -- operations -------------------------------------------------------------------------------------------------------


def test_the_operations_are_these():
    assert len(OPS) == 12
    assert not [name for name in OPS if isinstance(REGISTRY[name].samples, No)]


SPECIAL = [np.nan, np.inf, -np.inf, 0.5, 1.5, 2.5, -0.5, -1.5, 127.4, 127.5, 300, -128.5, -129, -0.0, 1e38, 2.0**-149]


@pytest.mark.parametrize(("dtype", "expected"), [
    ("int8", [0, 127, -128, 0, 2, 2, 0, -2, 127, 127, 127, -128, -128, 0, 127, 0]),
    ("uint8", [7, 255, 0, 7, 9, 9, 7, 5, 134, 135, 255, 0, 0, 7, 255, 7]),
    ("int4", [0, 7, -8, 0, 2, 2, 0, -2, 7, 7, 7, -8, -8, 0, 7, 0]),
])
def test_special_values_are_the_same_in_both_modes(dtype: str, expected: list[int]):
    zero = hf.asarray(7, dtype="uint8") if dtype == "uint8" else None

    def stored(x: Any) -> Any:
        return hf.quantize.quantize_linear(x, 1.0, zero, dtype=dtype)

    x = hf.asarray(np.array(SPECIAL, np.float32))
    if dtype == "uint8":
        expected[9] = 7 + 128  # 127.5 is halfway between 127 and 128, which is even
    assert stored(x).tolist() == hf.compile(stored)(x).tolist() == expected


def test_float8_keeps_nan_and_saturates():
    for dtype, largest in (("float8_e4m3fn", 448.0), ("float8_e5m2", 57344.0)):

        def there_and_back(x: Any, dtype: str = dtype) -> Any:
            q = hf.quantize.quantize_linear(x, 1.0, dtype=dtype)
            return hf.quantize.dequantize_linear(q, 1.0, dtype=dtype)

        x = hf.asarray(np.array([np.nan, np.inf, -1e30, 1.0, 0.0], np.float32))
        for run in (there_and_back, hf.compile(there_and_back)):
            np.testing.assert_array_equal(arrays(run(x)), [np.nan, largest, -largest, 1.0, 0.0])


@FEW
@given(st.integers(0, 10_000), st.floats(1e-6, 1e3), st.integers(-128, 127))
def test_dividing_by_a_scale_is_exact_when_compiled(seed: int, scale: float, zero: int):
    x = (numbers(500, seed=seed) * scale * 60).astype(np.float32)
    factor, point = hf.asarray(np.float32(scale)), hf.asarray(np.int8(zero))

    def stored(x: Any) -> Any:
        return hf.quantize.quantize_linear(x, factor, point)

    quotient = np.rint(x / np.float32(scale))
    expected = np.clip(quotient + np.float32(zero), -128, 127).astype(np.int8)
    np.testing.assert_array_equal(arrays(stored(hf.asarray(x))), expected)
    np.testing.assert_array_equal(arrays(hf.compile(stored)(hf.asarray(x))), expected)


def test_all_zeros_have_a_scale():
    for run in (hf.quantize.quantize_dynamic, hf.compile(hf.quantize.quantize_dynamic)):
        q, scale, zero = run(hf.asarray(np.array([0.0, np.nan, 0.0], np.float32)))
        assert (q.tolist(), scale.item(), zero.item()) == ([0, 0, 0], 1.0, 0)


@FEW
@given(st.integers(0, 10_000), st.sampled_from([1, 511, 513, 1500]), st.sampled_from(["int8", "uint8"]))
def test_integer_products_are_exact(seed: int, size: int, dtype: str):
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    x = rng.integers(info.min, info.max + 1, (3, size)).astype(dtype)
    weight, zero = rng.integers(-128, 128, (4, size)).astype(np.int8), x[0, 0]
    expected = (x.astype(np.int64) - int(zero)) @ weight.astype(np.int64).T
    for run in (hf.quantize.integer_linear, hf.compile(hf.quantize.integer_linear)):
        np.testing.assert_array_equal(arrays(run(x, weight, np.asarray(zero))), expected)


@pytest.mark.parametrize("groups", [1, 2])
def test_integer_convolutions_are_exact_in_parts(groups: int):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2, 140, 5, 4)).astype(np.uint8)
    kernel = rng.integers(-128, 128, (4, 140 // groups, 3, 3)).astype(np.int8)
    zero = np.asarray(np.uint8(77))
    real = x.astype(np.float64) - 77
    with hf.device("cpu"):
        expected = hf.nn.conv(hf.asarray(real), hf.asarray(kernel.astype(np.float64)), padding=1, groups=groups)

    def run(x: Any) -> Any:
        return hf.quantize.integer_conv(x, kernel, zero, padding=1, groups=groups)

    for found in (run(x), hf.compile(run)(x)):
        np.testing.assert_array_equal(arrays(found), arrays(expected))


def test_plain_products_still_wrap():
    x = hf.asarray(np.full((1, 2), 100, np.int8))
    assert (x @ x.T).tolist() == [[32]]
    assert hf.quantize.integer_linear(x, x).tolist() == [[20_000]]


def test_the_gradient_passes_straight_through():
    def loss(x: Any) -> Any:
        return hf.sum(hf.quantize.fake_quantize(x, 0.1) ** 2)

    x = hf.asarray(np.array([0.26, -50.0, 12.0], np.float32))
    expected = [2 * 0.3, 0.0, 24.0]  # of the rounded number, and none beyond the range
    np.testing.assert_allclose(arrays(hf.grad(loss)(x)), expected, rtol=1e-6)
    np.testing.assert_allclose(arrays(hf.compile(hf.grad(loss))(x)), expected, rtol=1e-6)


@pytest.mark.always
@FEW
@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([None, 1, 7, 32]))
def test_stored_weights_are_within_half_a_step(seed: int, size: int, group: int | None):
    rows = numbers(3, size, seed=seed)
    for dtype, bits in (("int8", 8), ("int8", 7), ("int4", 8)):
        stored = stored_weights(rows, dtype, group=group, bits=bits)
        eye, scale = np.eye(size, dtype=np.float32), stored.scale
        back = arrays(hf.quantize.weight_only_linear(eye, stored.weight, scale, dtype=dtype, group=group)).T
        step = (scale[:, None] if group is None else np.repeat(scale, group, 1)[:, :size]) / 2
        if dtype == "int8":
            assert (np.abs(back - rows) <= step * 1.001).all()
            assert np.abs(stored.weight).max() <= 2 ** (bits - 1) - 1
        else:
            plain = np.abs(rows).max() / 7 / 2
            assert np.sum((back - rows) ** 2) <= rows.size * plain**2


# -- models -----------------------------------------------------------------------------------------------------------


def file_size(model: Any, folder: Path) -> int:
    path = folder / "weights.safetensors"
    hf.save(path, model, overwrite=True)
    return path.stat().st_size


@pytest.mark.parametrize("name", MODELS)
def test_int8_costs_less_than_half_a_point_and_a_quarter_of_the_file(name: str, tmp_path: Path):
    model = trained(name)
    before, size = accuracy(model), file_size(model, tmp_path)
    assert nn.summary(model, hf.TensorSpec([1, 1, 28, 28])).parameters >= 100_000
    assert before > 0.85
    images = digits()[0]
    forms = [hf.quantize.weights(model), hf.quantize.dynamic(model)]
    methods = ("minmax", "percentile", "entropy") if name == "convnet" else ("minmax",)
    forms += [hf.quantize.static(model, [images[:100], images[100:200]], method=method) for method in methods]
    for form in forms:
        assert accuracy(form) > before - 0.005
        assert size / file_size(form, tmp_path) >= 3.8
    int4 = hf.quantize.weights(model, "int4", group=32)
    assert accuracy(int4) > before - 0.02
    assert size / file_size(int4, tmp_path) > 6


class Mixed(nn.Module):
    def __init__(self):
        self.table, self.conv = nn.Embedding(10, 6), nn.Conv2d(3, 4, 3, padding=1)
        self.last = nn.Conv2d(4, 4, 2, channels_last=True)
        self.out = nn.Linear(4, 5)

    def forward(self, ids: Any) -> Any:
        x = hf.reshape(self.table(ids), (ids.shape[0], 3, 6, 3))
        y = nn.relu(self.conv(x))
        return self.out(self.last(hf.permute_dims(y, (0, 2, 3, 1))))


IDS = np.random.default_rng(0).integers(0, 10, (2, 9)).astype(np.int32)
FORMS: dict[str, Any] = {
    "int8": hf.quantize.weights,
    "groups": lambda model: hf.quantize.weights(model, group=5),
    "int4": lambda model: hf.quantize.weights(model, "int4", group=4),
    "float8": lambda model: hf.quantize.weights(model, "float8_e4m3fn"),
    "dynamic": hf.quantize.dynamic,
    "static": lambda model: hf.quantize.static(model, hf.asarray(IDS)),
}


@pytest.mark.parametrize("form", FORMS)
def test_layers_are_the_same_in_both_modes_and_near_floats(form: str):
    nn.init.seed(3)
    model = Mixed()
    expected = arrays(model(IDS))
    before = {path: one.tobytes() for path, one in model.state_dict().items()}
    made = FORMS[form](model)
    assert before == {path: one.tobytes() for path, one in model.state_dict().items()}
    hf.testing.assert_same(lambda ids: made(ids), hf.asarray(IDS))
    loose = 0.3 if form == "int4" else 0.1 if form == "float8" else 0.03
    assert np.linalg.norm(arrays(made(IDS)) - expected) < loose * np.linalg.norm(expected)
    twin = FORMS[form](Mixed())
    twin.load_state_dict(made.state_dict())
    np.testing.assert_array_equal(arrays(twin(IDS)), arrays(made(IDS)))


def test_patterns_choose_layers():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.MultiHeadAttention(4, 2))
    model(hf.ones((1, 2, 4)))
    made = hf.quantize.weights(model, match=["0", "2.*"], skip="2.key")
    kinds = {path: type(one).__name__ for path, one in made.named_modules().items()}
    assert [path for path, kind in kinds.items() if kind == "QuantizedLinear"] == ["0", "2.query", "2.value", "2.out"]
    assert made.training is False
    assert model.training is True


def test_gradients_reach_what_stays_a_float():
    model = nn.Sequential(nn.Linear(4, 3), nn.relu, nn.Linear(3, 2))
    made = hf.quantize.weights(model, match="0")
    gradients = hf.grad(lambda made: hf.sum(made(hf.ones((2, 4)))))(made).named_parameters()
    assert [*gradients] == ["0.bias", "2.weight", "2.bias"]
    x = hf.asarray(numbers(2, 4))
    slope = hf.grad(lambda x: hf.sum(made(x)))(x)
    scale = made[0].scale.numpy()[:, None] * made[0].weight.numpy()
    active = arrays(x) @ scale.T + made[0].bias.numpy() > 0
    np.testing.assert_allclose(arrays(slope), (active * model[2].weight.numpy().sum(0)) @ scale, rtol=1e-5)


def test_normalisation_becomes_a_part_of_the_product_in_front():
    class Net(nn.Module):
        def __init__(self):
            self.conv, self.norm = nn.Conv2d(2, 3, 2), nn.BatchNorm()
            self.twice, self.other = nn.Conv2d(3, 3, 1), nn.BatchNorm()
            self.head, self.last = nn.Linear(3, 4), nn.BatchNorm(scale=False)

        def forward(self, x: Any) -> Any:
            y = nn.relu(self.norm(self.conv(x)))
            z = self.twice(y)
            y = self.other(z) + z  # the result of the convolution is read twice
            return self.last(self.head(hf.mean(y, axis=(2, 3))))

    model = Net()
    for seed in range(3):
        model(numbers(4, 2, 5, 5, seed=seed))
    model.norm.weight.assign([1.0, -2.0, 0.5])
    x = numbers(3, 2, 5, 5, seed=9)
    made = hf.quantize.fuse_batch_norm(model, hf.TensorSpec(["n", 2, 5, 5]))
    kinds = [type(one).__name__ for one in (made.norm, made.other, made.last)]
    assert kinds == ["Identity", "BatchNorm", "Identity"]
    np.testing.assert_allclose(arrays(made(x)), arrays(model.eval()(x)), rtol=1e-4, atol=1e-5)


def test_calibration_finds_the_range():
    rng = np.random.default_rng(0)
    values = np.append(rng.standard_normal(100_000), 50.0)
    around = float(values.min()), float(values.max())
    counts = np.histogram(values, 4096, around)[0]
    low, high = by_percentile(counts, around, 99.9)
    np.testing.assert_allclose([low, high], [-3.1, 3.1], atol=0.15)
    low, high = by_entropy(counts, around)
    assert 4 < high < 20


def test_training_that_knows_of_quantization():
    images, labels = digits()
    model, calibration = trained("convnet"), images[:200]
    runs: list[Any] = []
    for decorate in (lambda step: step, hf.compile):
        made = hf.quantize.prepare(model, calibration)
        first = made.head[1].high.numpy().item()
        optimizer = hf.optim.SGD(made, rate=1e-3)

        def step(x: Any, y: Any, made: Any = made, optimizer: Any = optimizer) -> Any:
            with hf.GradientTape() as tape:
                loss = hf.mean(nn.softmax_cross_entropy(made(x), y))
            optimizer.update(tape.gradient(loss, made))
            return loss

        hf.random.seed(0)
        run = decorate(step)
        losses = [run(images[i : i + 20], labels[i : i + 20]).item() for i in (0, 20, 40)]
        assert made.head[1].high.numpy().item() != first
        runs.append((losses, made))
    np.testing.assert_allclose(runs[0][0], runs[1][0], rtol=1e-4)
    made = runs[1][1].eval()
    found = hf.quantize.convert(made)
    x = images[4000:4100]
    np.testing.assert_allclose(arrays(found(x)), arrays(made(x)), rtol=1e-3, atol=2e-2)
    assert accuracy(found) > accuracy(model) - 0.005


def test_errors_say_what_to_do():
    model = nn.Sequential(nn.Linear(4, 3), nn.relu)
    cases: list[tuple[Any, type[HybridflowError], str]] = [
        (lambda: hf.quantize.weights(model, "int3"), ArgumentError, "dtype='int3' is no format of weights"),
        (lambda: hf.quantize.weights(model, "int4", group=0), ArgumentError, "group=0 is not a number of weights"),
        (lambda: hf.quantize.weights(model, match="x*"), ArgumentError, r"no layer matches 'x\*'"),
        (lambda: hf.quantize.weights(nn.Linear(3)), ArgumentError, "size of Linear is not known yet"),
        (lambda: hf.quantize.weights(nn.Sequential(nn.relu)), ArgumentError, "no layer matches"),
        (lambda: hf.quantize.weights(3), ArgumentTypeError, "the model is an int, not a module"),  # pyright: ignore
        (lambda: hf.quantize.dynamic(model, bits=4), ArgumentError, "bits=4 is neither 8 nor 7"),
        (lambda: hf.quantize.static(model, []), ArgumentError, "there are no batches"),
        (lambda: hf.quantize.static(model, numbers(2, 4), method="x"), ArgumentError, "method='x' is none of"),
        (lambda: hf.quantize.static(model, numbers(2, 4), percentile=5), ArgumentError, "percentile=5 is not above 50"),
        (lambda: hf.quantize.convert(model), ArgumentError, "the model has no prepared layers"),
        (lambda: hf.quantize.report(model, model, numbers(2, 4)), ArgumentError, "no layer of the second model"),
        (lambda: hf.quantize.unpack_int4(hf.zeros((3,), dtype="uint8"), 7), ShapeError, "7 numbers take 4 bytes"),
        (lambda: hf.quantize.quantize_linear(hf.asarray([1 + 2j]), 1.0), DTypeError, "does not take complex64"),
    ]
    for call, error, text in cases:
        with pytest.raises(error, match=text):
            call()


# -- the report -------------------------------------------------------------------------------------------------------


def test_the_report_says_what_was_saved_and_what_it_cost():
    model = trained("convnet")
    images, labels = digits()
    x, y = images[4000:4200], labels[4000:4200]
    made = hf.quantize.static(model, images[:100])
    made.features[3].scale.assign(made.features[3].scale.read() * 1.5)  # a layer that is off
    found = hf.quantize.report(model, made, x, y, repeats=6)
    assert [one.path for one in found.layers] == ["features.0", "features.3", "head.1", "head.4"]
    assert found.most_sensitive.path == "features.3"
    assert found.most_sensitive.error == pytest.approx(0.5, abs=0.1)
    assert all([one.error < 0.05 for one in found.layers if one.path != "features.3"])
    assert found.bytes_before == sum([one.nbytes for one in model.state_dict().values()])
    assert 3.7 < found.bytes_before / found.bytes_after < 4
    assert found.score_before == pytest.approx(accuracy_of(model, x, y))
    assert found.score_after == pytest.approx(accuracy_of(made, x, y))
    assert found.slowest in found.layers
    text = str(found)
    assert "Most sensitive: features.3" in text
    assert "times smaller" in text
    assert found.to_dict()["layers"][1]["path"] == "features.3"
    slow = found.__class__(**{**vars(found), "seconds_before": 1.0, "seconds_after": 4.3})
    assert "XLA takes 4.3 times as long" in str(slow)
    assert 'quantize="dynamic"' in slow._repr_html_().replace("&quot;", '"')


def accuracy_of(model: Any, x: Any, y: Any) -> float:
    return float((arrays(model(x)).argmax(1) == y).mean())


# -- files of others --------------------------------------------------------------------------------------------------


def in_runtime(path: Path, x: Any) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_runs_quantized_models(name: str, tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    model, images = trained(name), digits()[0]
    x, spec, path = images[4000:4100], hf.TensorSpec([None, 1, 28, 28]), tmp_path / "model.onnx"
    expected = arrays(model(x))
    hf.export.onnx(path, model, spec)
    size = path.stat().st_size
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "weights": (model, {"quantize": "weights"}), "dynamic": (model, {"quantize": "dynamic"}),
        "static": (model, {"quantize": "static", "batches": images[:200]}),
        "of weights": (hf.quantize.weights(model), {}), "of dynamic": (hf.quantize.dynamic(model), {}),
        "of static": (hf.quantize.static(model, images[:200]), {}),
    }
    operators: dict[str, set[str]] = {}
    for way, (form, options) in ways.items():
        hf.export.onnx(path, form, spec, **options)
        operators[way] = {node.op_type for node in onnx.load(path).graph.node}
        found = in_runtime(path, x)
        assert (found.argmax(1) == expected.argmax(1)).mean() >= 0.98, way
        assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected), way
        assert size / path.stat().st_size > 2.5, way
    for way in ("static", "of static"):
        assert {"QuantizeLinear", "DequantizeLinear"} <= operators[way]
        assert "MatMulInteger" not in operators[way]
    for way in ("dynamic", "of dynamic"):
        assert {"DynamicQuantizeLinear", "MatMulInteger"} <= operators[way]
    assert ("ConvInteger" in operators["of dynamic"]) is (name == "convnet")
    assert "ConvInteger" not in operators["dynamic"]


def test_prepared_models_are_written_as_qdq(tmp_path: Path):
    onnx = pytest.importorskip("onnx")
    model, images = trained("convnet"), digits()[0]
    made, path = hf.quantize.prepare(model, images[:100]).eval(), tmp_path / "model.onnx"
    hf.export.onnx(path, made, hf.TensorSpec([None, 1, 28, 28]))
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds.count("QuantizeLinear") == kinds.count("DequantizeLinear") == 8
    x = images[4000:4050]
    np.testing.assert_allclose(in_runtime(path, x), arrays(made(x)), rtol=1e-2, atol=0.1)


@pytest.mark.parametrize("options", [
    {}, {"dtype": "int4", "group": 32}, {"dtype": "float8_e4m3fn"}, {"inputs": "dynamic"}, {"inputs": "static"},
])
def test_artifacts_are_quantized_without_their_source(options: dict[str, Any], tmp_path: Path):
    model, images = trained("transformer"), digits()[0]
    hf.export.save(tmp_path / "a.hf", model, hf.TensorSpec(["n", 1, 28, 28]))
    if options.get("inputs") == "static":
        options = {**options, "batches": images[:100]}
    hf.export.quantize(tmp_path / "a.hf", tmp_path / "b.hf", **options)
    large, small = [(tmp_path / name / "weights.safetensors").stat().st_size for name in ("a.hf", "b.hf")]
    assert large / small > (6 if options.get("dtype") == "int4" else 3.8)
    loaded = hf.export.load(tmp_path / "b.hf", copy=True)
    x = images[4000:4100]
    found = arrays(loaded.predict(x))
    np.testing.assert_allclose(arrays(hf.compile(loaded.predict)(x)), found, rtol=1e-2, atol=0.2)
    assert (found.argmax(1) == arrays(model(x)).argmax(1)).mean() >= 0.97
    with pytest.raises(HybridflowError, match="is there"):
        hf.export.quantize(tmp_path / "a.hf", tmp_path / "b.hf", **options)


def test_functions_and_shared_weights_are_quantized(tmp_path: Path):
    table = hf.Variable(numbers(6, 8))

    def f(ids: Any) -> Any:
        rows = hf.take(table, ids, axis=0)
        return rows @ table.read().T + rows @ hf.asarray(numbers(8, 6, seed=1))

    spec, ids = hf.TensorSpec(["n"], hf.int32), np.array([0, 5, 2], np.int32)
    hf.export.save(tmp_path / "a.hf", f, spec)
    hf.export.quantize(tmp_path / "a.hf", tmp_path / "b.hf", inputs="dynamic")
    found = arrays(hf.export.load(tmp_path / "b.hf", copy=True).predict(ids))
    expected = arrays(f(ids))
    assert np.linalg.norm(found - expected) < 0.03 * np.linalg.norm(expected)


def test_what_cannot_be_quantized_is_said(tmp_path: Path):
    hf.export.save(tmp_path / "a.hf", hf.sin, hf.TensorSpec([3]))
    with pytest.raises(ArgumentError, match="the artifact has no weights of products"):
        hf.export.quantize(tmp_path / "a.hf", tmp_path / "b.hf")
    hf.export.save(tmp_path / "c.hf", nn.Linear(3, 4), hf.TensorSpec([2, 3]))
    for options, text in (
        ({"inputs": "static"}, "batches= give the ranges of static inputs, and only these"),
        ({"batches": numbers(2, 3)}, "batches= give the ranges of static inputs, and only these"),
        ({"inputs": "dynamic", "dtype": "int4"}, "products of integers take int8 without groups"),
        ({"inputs": "x"}, "inputs='x' is none of"),
    ):
        with pytest.raises(ArgumentError, match=text):
            hf.export.quantize(tmp_path / "c.hf", tmp_path / "b.hf", **options)
    assert not (tmp_path / "b.hf").exists()
    pytest.importorskip("onnx")
    for options, text in (
        ({"quantize": "int8"}, "quantize='int8' is none of"), ({"batches": numbers(2, 3)}, "batches= are for quantize"),
    ):
        with pytest.raises(ArgumentError, match=text):
            hf.export.onnx(tmp_path / "c.onnx", nn.Linear(3, 4), hf.TensorSpec([2, 3]), **options)
    with pytest.raises(ArgumentError, match="the function has no products with weights"):
        hf.export.onnx(tmp_path / "c.onnx", hf.sin, hf.TensorSpec([3]), quantize="weights")

"""ONNX models in ONNX Runtime: every operation that has a counterpart, and models from modules and artifacts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from exported_models import MODELS, OPEN, SIZES, numbers

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import ArgumentError, ExportError
from hybridflow.core.op import REGISTRY, Bad, No
from hybridflow.testing.calls import capture
from hybridflow.testing.checks import samples_of
from hybridflow.testing.onnx import is_kernels, run_exported, run_in_runtime

runtime = pytest.importorskip("onnxruntime")
NOT_IMPLEMENTED = runtime.capi.onnxruntime_pybind11_state.NotImplemented
NAMES = [name for name, op in REGISTRY.items() if not isinstance(op.onnx, No) and not isinstance(op.samples, No)]


# -- operations -------------------------------------------------------------------------------------------------------


def chosen(name: str) -> Iterator[Any]:
    """Yield two of an operation's samples of each kind of dtypes."""
    seen: Counter[Any] = Counter()
    for sample in samples_of(REGISTRY[name], 0):
        if not isinstance(sample, Bad):
            kind = tuple([str(getattr(one, "dtype", "")) for one in sample.args])
            seen[kind] += 1
            if seen[kind] <= 2:
                yield sample


@pytest.mark.parametrize("name", NAMES)
def test_an_operation_is_its_kernel_in_onnx_runtime(name: str):
    for sample in chosen(name):
        for call in capture(REGISTRY[name], sample):
            for attrs in call.with_residuals():
                try:
                    found = run_exported(call, attrs, run_in_runtime)
                except NOT_IMPLEMENTED:  # on a CPU it has few operators for these
                    dtypes = {str(x.dtype) for x in [*call.inputs, *call.run_lowering(attrs)]}
                    assert dtypes & {"float64", "uint64"}
                    continue
                if found is not None and name != "gelu_tanh":  # its tanh is some 1e-7 off, which 1 + tanh keeps
                    is_kernels(call, attrs, found)


# -- models -----------------------------------------------------------------------------------------------------------

REFUSED = {"vae": "random_normal at .*exported_models.py", "fft": "fftn at .*exported_models.py"}


def run(path: Path, *args: Any) -> list[np.ndarray[Any, Any]]:
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    return run_in_runtime(model, args)


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_the_same_at_any_size(name: str, tmp_path: Path):
    case, path = MODELS[name], tmp_path / "model.onnx"
    model = case.make()
    if isinstance(model, nn.Module):
        model.eval()
    for opset in (21, 23):
        if name in REFUSED:
            with pytest.raises(ExportError, match=REFUSED[name]):
                hf.export.onnx(path, model, case.spec, opset=opset)
            assert not path.exists()
            continue
        hf.export.onnx(path, model, case.spec, opset=opset)
        assert onnx.load(path).opset_import[0].version == opset
        for size in SIZES if opset == 23 else SIZES[-1:]:
            x = case.argument(size)
            expected = jax.tree_util.tree_leaves(model(hf.asarray(x)))
            found = run(path, x)
            if name == "gpt":
                assert found.pop().all()  # whether indices are in range
            for a, one in zip(found, expected, strict=True):
                b, rtol = np.asarray(one), case.rtol
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-3, float(np.max(np.abs(b), initial=0))))


def test_inputs_results_and_weights_have_their_names(tmp_path: Path):
    model = MODELS["mlp"].make()
    hf.export.save(tmp_path / "one", predict=(model, OPEN), both=(lambda given, n: given["x"] * n, {"x": OPEN}, OPEN))
    artifact = hf.export.load(tmp_path / "one")
    for target, *specs in ((model, OPEN), (artifact,), (str(tmp_path / "one"),), (artifact.predict,)):
        hf.export.onnx(tmp_path / "model.onnx", target, *specs)
        graph = onnx.load(tmp_path / "model.onnx").graph
        assert [one.name for one in graph.input] == ["x"]
        assert [one.name for one in graph.output] == ["hidden_0", "logits"]
        weights = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
        for path, parameter in model.named_parameters().items():
            assert weights[path].tolist() == parameter.read().tolist()
        assert graph.input[0].type.tensor_type.shape.dim[0].dim_param == "x_0"
        assert any("exported_models.py:" in node.doc_string for node in graph.node)
    hf.export.onnx(tmp_path / "model.onnx", artifact, function="both")
    assert [one.name for one in onnx.load(tmp_path / "model.onnx").graph.input] == ["given_x", "n"]
    x = numbers(4, 12)
    np.testing.assert_allclose(run(tmp_path / "model.onnx", x, x)[0], x * x, rtol=1e-6)
    with pytest.raises(ArgumentError, match="opset=24 is no version"):
        hf.export.onnx(tmp_path / "model.onnx", artifact, opset=24)


def test_examples_in_place_of_specs(tmp_path: Path):
    model, dummy = nn.Linear(12, 3), hf.ones((2, 12))
    for example in (dummy, dummy.numpy()):
        hf.export.onnx(tmp_path / "model.onnx", model, example)
        x = numbers(2, 12)
        np.testing.assert_allclose(run(tmp_path / "model.onnx", x)[0], model(x).numpy(), rtol=1e-5, atol=1e-6)
    size = onnx.load(tmp_path / "model.onnx").graph.input[0].type.tensor_type.shape.dim[0]
    assert size.dim_value == 2


class Small(nn.Module):
    def __init__(self) -> None:
        self.first, self.second = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, groups=2, dilation=2)
        self.out = nn.Linear(4, 3)

    def forward(self, image: Any) -> Any:
        x = nn.relu(self.first(image))
        x = nn.avg_pool(nn.max_pool(x, 3, 2, padding=1), 2, 1, padding=1)
        return self.out(hf.mean(self.second(x), axis=(2, 3)))


def test_gradients_of_convolutions_and_poolings_are_exported(tmp_path: Path):
    model = Small()

    def gradients(image: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(image)
            loss = hf.mean(hf.square(model(image)))
        return loss, tape.gradient(loss, [image, *model.parameters()])

    hf.export.onnx(tmp_path / "model.onnx", gradients, hf.TensorSpec([None, 1, 16, 16]))
    for size in (1, 3):
        image = numbers(size, 1, 16, 16, seed=size)
        expected = jax.tree_util.tree_leaves(gradients(hf.asarray(image)))
        found = run(tmp_path / "model.onnx", image)
        for a, b in zip(found, expected, strict=True):
            y = b.numpy()
            np.testing.assert_allclose(a, y, rtol=1e-4, atol=1e-5 * float(np.max(np.abs(y))))


def test_bfloat16_and_float16_models_run(tmp_path: Path):
    for dtype in (hf.bfloat16, hf.float16):
        weight = hf.Variable(numbers(12, 5), dtype=dtype, name="weight")

        def f(x: Any, weight: Any = weight) -> Any:
            return nn.softmax(nn.gelu(x @ weight) + 1)

        hf.export.onnx(tmp_path / "model.onnx", f, hf.TensorSpec([None, 12], dtype))
        x = np.asarray(numbers(3, 12), dtype)
        (found,) = run(tmp_path / "model.onnx", x)
        assert found.dtype == dtype
        np.testing.assert_allclose(found.astype(np.float32), f(x).numpy().astype(np.float32), rtol=2**-6)


def test_what_only_a_gradient_reads_is_left_out(tmp_path: Path):
    case = MODELS["convnet"]
    hf.export.onnx(tmp_path / "model.onnx", case.make(), case.spec)
    operators = [node.op_type for node in onnx.load(tmp_path / "model.onnx").graph.node]
    assert operators.count("MaxPool") == 1
    assert "Where" not in operators

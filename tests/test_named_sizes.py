"""Sizes with names: one size wherever the name stands, in signatures, specs, graphs and exports."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.cli import main
from hybridflow.core.errors import ArgumentTypeError, ShapeError

ROWS, ROW = hf.TensorSpec(["batch", 3]), hf.TensorSpec(["batch"])


def weighted(x: Any, y: Any) -> Any:
    return hf.sum(x * y[:, None], axis=0)


def test_specs_with_names_are_specs():
    spec = hf.TensorSpec(["batch", hf.dim("time", max=8), None, 3])
    assert str(spec) == "f32[batch,time<=8,?,3]"
    for other in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec)):
        assert other == spec
        assert str(other) == str(spec)
    assert hf.TensorSpec(["a"]) != hf.TensorSpec(["b"])
    for wrong in ("a b", "", "3", "\u00e4"):
        with pytest.raises(ArgumentTypeError, match="is not a size"):
            hf.TensorSpec([wrong])
    for largest in (0, -1, True, 2.0):
        with pytest.raises(ArgumentTypeError, match="is no number from 1 on"):
            hf.dim("a", max=largest)


def test_an_input_signature_asks_for_one_size():
    f = hf.compile(weighted, input_signature=[ROWS, ROW])
    for size in (4, 1, 7):
        x, y = np.ones((size, 3), np.float32), np.arange(size, dtype=np.float32)
        np.testing.assert_allclose(f(x, y).numpy(), np.full(3, y.sum()))
    assert f.trace_count == 1
    assert f(hf.ones((0, 3)), hf.ones(0)).tolist() == [0.0] * 3
    for size in (1, 4):
        with pytest.raises(ArgumentTypeError, match=f"the size 'batch' is 3 in x and {size} in y"):
            f(hf.ones((3, 3)), hf.ones(size))
    nested = hf.compile(lambda given: given["a"] + given["b"], input_signature=[{"a": ROW, "b": ROW}])
    assert nested({"a": hf.ones(2), "b": [1.0, 2.0]}).tolist() == [2.0, 3.0]
    with pytest.raises(ArgumentTypeError, match=r"is 2 in given\['a'\] and 3 in given\['b'\]"):
        nested({"a": hf.ones(2), "b": hf.ones(3)})
    concrete = hf.compile(weighted).concrete(ROWS, ROW)
    assert concrete(hf.ones((2, 3)), hf.ones(2)).tolist() == [2.0] * 3
    with pytest.raises(ArgumentTypeError, match="the size 'batch'"):
        concrete(hf.ones((2, 3)), hf.ones(3))


def test_a_size_may_have_a_largest_one(tmp_path: Path):
    spec = hf.TensorSpec([hf.dim("time", max=8)])
    f = hf.compile(lambda x: x[::-1], input_signature=[spec])
    assert f(hf.ones(8)).shape == (8,)
    with pytest.raises(ArgumentTypeError, match=r"is f32\[9\], its input_signature is f32\[time<=8\]"):
        f(hf.ones(9))
    hf.export.save(tmp_path / "one", lambda x: x[::-1], spec)
    loaded = hf.export.load(tmp_path / "one").predict
    assert loaded(hf.ones(8)).shape == (8,)
    with pytest.raises(ShapeError, match="time is at most 8"):
        loaded(hf.ones(9))


def test_graphs_costs_and_calls_use_the_names():
    f = hf.compile(weighted)
    graph = f.graph(ROWS, ROW)
    assert [str(spec) for spec in graph.input_specs] == ["f32[batch,3]", "f32[batch]"]
    assert "batch" in str(hf.cost(f, ROWS, ROW).flops)
    assert not [guard for guard in graph.dims.guards if guard.compare == "=="]
    for size in (5, 1, 2):
        assert f(hf.ones((size, 3)), hf.ones(size)).tolist() == [float(size)] * 3
    assert f.trace_count == 1
    with pytest.raises(ShapeError, match="size 4 against 3"):  # as eagerly
        f(hf.ones((4, 3)), hf.ones(3))
    assert f(hf.ones((4, 3)), hf.ones(1)).tolist() == [4.0] * 3
    two = f.graph(hf.TensorSpec(["n", 3]), hf.TensorSpec(["m"]))
    assert [str(guard) for guard in two.dims.guards if guard.compare == "=="] == ["n == m is True"]


def test_a_name_that_another_size_would_get_is_left_to_it():
    f = hf.compile(lambda x, y: (x + 1, y + 1))
    specs = f.graph(hf.TensorSpec([None]), hf.TensorSpec(["x_0"])).input_specs
    assert [str(spec) for spec in specs] == ["f32[x_0_]", "f32[x_0]"]


def test_placeholders_share_a_size():
    with hf.Graph("g") as graph:
        x, y = hf.placeholder(["batch", 3], name="x"), hf.placeholder(["batch"], name="y")
        z = weighted(x, y)
    session = hf.Session(graph)
    assert session.run(z, feed={x: hf.ones((2, 3)), y: hf.ones(2)}).tolist() == [2.0] * 3
    with pytest.raises(ShapeError, match="the size batch is 2 in one tensor and 3 in another"):
        session.run(z, feed={x: hf.ones((2, 3)), y: hf.ones(3)})


def test_artifacts_have_the_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    hf.export.save(tmp_path / "one", weighted, ROWS, ROW)
    loaded = hf.export.load(tmp_path / "one").predict
    assert [str(spec) for spec in loaded.inputs.values()] == ["f32[batch,3]", "f32[batch]"]
    with pytest.raises(ShapeError, match="dimension batch is 2 in one input and 3 in another"):
        loaded(hf.ones((2, 3)), hf.ones(3))
    source = tmp_path / "source.py"
    source.write_text("def f(x, y):\n    return x * y[:, None]\n")
    given = ["export", f"{source}:f", "--spec", "f32[batch,3]", "f32[batch]", "--to", str(tmp_path / "two")]
    assert main(given) == 0
    assert main(["inspect", str(tmp_path / "two")]) == 0
    out = capsys.readouterr().out
    assert "takes x: f32[batch,3]\n  takes y: f32[batch]\n" in out
    assert "sizes left open: batch\n" in out


@pytest.mark.parametrize(("package", "export"), [("onnx", "onnx"), ("flatbuffers", "stablehlo")])
def test_other_formats_have_the_names(package: str, export: str, tmp_path: Path):
    pytest.importorskip(package)
    path = tmp_path / "model"
    if export == "onnx":
        hf.export.onnx(path, weighted, ROWS, ROW)
        model = pytest.importorskip("onnx").load(path)
        sizes = [one.type.tensor_type.shape.dim[0].dim_param for one in model.graph.input]
        assert sizes == ["batch", "batch"]
        return
    import jax

    hf.export.stablehlo(path, weighted, ROWS, ROW)
    found = jax.export.deserialize(path.read_bytes())
    assert [str(one) for one in found.in_avals] == ["float32[batch,3]", "float32[batch]"]
    with pytest.raises(ValueError, match="batch"):
        found.call(np.ones((2, 3), np.float32), np.ones(3, np.float32))

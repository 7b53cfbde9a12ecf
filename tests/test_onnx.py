"""ONNX models: what they compute, what they say, and what has no counterpart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnx
import pytest
from exported_models import agree, sample_gradients

import hybridflow as hf
from hybridflow.core.errors import ExportError, MissingPackageError
from hybridflow.core.op import REGISTRY, No, Op
from hybridflow.export import onnx_format as export
from hybridflow.testing.edge_cases import EDGE_CASES, EdgeCase
from hybridflow.testing.onnx import run_in_runtime, run_model


def leaves(result: Any) -> list[np.ndarray[Any, Any]]:
    tensors = jax.tree_util.tree_leaves(result, is_leaf=lambda y: isinstance(y, hf.Tensor))
    return [np.asarray(y.numpy()) for y in tensors]


def exported(fn: Any, *args: Any) -> Any:
    return export.model_of(fn.graph(*args))


def arrays(*args: Any) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(x.numpy()) for x in args]


def compare(fn: Callable[..., Any], *args: Any, rtol: float = 2e-5) -> Any:
    """Check that an exported function gives what the function gives eagerly; return the model."""
    args = tuple(map(hf.asarray, args))
    expected = leaves(fn(*args))
    model = exported(hf.compile(fn), *args)
    found = run_model(model, arrays(*args))
    if model.graph.output[-1].name == "checks":
        assert found.pop().all()
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-3, float(np.max(np.abs(b), initial=0))))
    return model


def operators(model: Any) -> list[str]:
    return [node.op_type for node in model.graph.node]


def weights(*shape: int, seed: int = 0) -> Any:
    return hf.Variable(np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * 0.3, name="w")


def numbers(*shape: int, seed: int = 1) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# -- whole models ---------------------------------------------------------------------------------------------------


def mlp() -> Any:
    layers = [(weights(8, 16), weights(16)), (weights(16, 4), weights(4))]

    def model(x: Any) -> Any:
        for number, (w, b) in enumerate(layers):
            with hf.name_scope(f"layer_{number}"):
                x = hf.matmul(x, w) + b
                x = hf.nn.relu(x) if number == 0 else hf.nn.softmax(x)
        return x, hf.argmax(x, axis=-1)

    return model, (numbers(5, 8),)


def convnet() -> Any:
    first, second, depthwise = weights(6, 3, 3, 3), weights(4, 6, 2, 2), weights(6, 1, 3, 3)
    mean, variance, scale = hf.asarray(numbers(6)), hf.asarray(np.abs(numbers(6)) + 1), weights(6)

    def model(x: Any) -> Any:
        y = hf.nn.conv(x, first, padding=1, stride=2)
        y = hf.nn.relu(hf.nn.batch_norm(y, mean, variance, scale, scale))
        y = hf.nn.silu(hf.nn.conv(y, depthwise, padding="same", groups=6))
        y = hf.nn.avg_pool(hf.nn.max_pool(y, 2), 2, stride=1, padding=1)
        y = hf.nn.conv(y, second, dilation=2)
        return hf.mean(hf.nn.group_norm(y, 2), axis=(2, 3))

    return model, (numbers(2, 3, 16, 16),)


def transformer() -> Any:
    width, heads = 16, 4
    table, positions = weights(11, width), weights(7, width)
    qkv, out, up, down = weights(width, 3 * width), weights(width, width), weights(width, 32), weights(32, width)
    scale, shift = weights(width), weights(width)

    def model(tokens: Any) -> Any:
        x = table[tokens] + positions
        h = hf.nn.layer_norm(x, scale, shift)
        parts = hf.permute_dims(hf.reshape(hf.matmul(h, qkv), (-1, 7, 3, heads, width // heads)), (2, 0, 3, 1, 4))
        y = hf.nn.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + hf.matmul(hf.reshape(hf.permute_dims(y, (0, 2, 1, 3)), (-1, 7, width)), out)
        h = hf.nn.rms_norm(x, scale)
        x = x + hf.matmul(hf.nn.gelu(hf.matmul(h, up)), down)
        return hf.nn.log_softmax(hf.matmul(x, hf.permute_dims(table.read(), (1, 0))))

    return model, (np.random.default_rng(3).integers(0, 11, (2, 7)).astype(np.int32),)


def lstm() -> Any:
    into, hidden, bias = weights(5, 24), weights(6, 24, seed=2), weights(24, seed=3)

    def model(xs: Any, h: Any, c: Any) -> Any:
        def step(state: Any, x: Any) -> Any:
            state = hf.nn.lstm_cell(x, state, into, hidden, bias)
            return state, state[0]

        return hf.scan(step, (h, c), xs)

    return model, (numbers(9, 3, 5), numbers(3, 6), numbers(3, 6))


MODELS = {"mlp": mlp, "convnet": convnet, "transformer": transformer, "lstm": lstm}


@pytest.mark.parametrize("name", MODELS)
def test_whole_models_compute_what_the_function_does(name: str):
    fn, args = MODELS[name]()
    model = compare(fn, *args)
    expected = {"mlp": "Gemm MatMul Softmax", "convnet": "Conv BatchNormalization MaxPool AveragePool",
                "transformer": "Gather LayerNormalization Softmax", "lstm": "Scan"}[name]
    assert set(expected.split()) - {"Gemm"} <= set(operators(model))


def test_a_training_step_of_plain_operations_is_a_model_too():
    w = weights(3, 2)

    @hf.compile
    def step(x: Any, y: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.square(hf.tanh(hf.matmul(x, w)) - y))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    x, y = numbers(4, 3), numbers(4, 2)
    model = exported(step, hf.asarray(x), hf.asarray(y))
    assert [one.name for one in model.graph.output] == ["output", "w_assigned"]
    found = run_model(model, [x, y])
    expected = step(hf.asarray(x), hf.asarray(y)).numpy(), w.numpy()
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_training_steps_that_keep_what_gradients_read_are_models_too():
    table, inner, out = weights(7, 8), weights(8, 24), weights(8, 8)

    @hf.compile
    def step(ids: Any) -> Any:
        with hf.GradientTape() as tape:
            x = hf.nn.embedding(ids, table)
            parts = hf.split(hf.nn.layer_norm(x) @ inner, 3, axis=-1)
            q, k, v = [hf.permute_dims(hf.reshape(one, (2, 5, 2, 4)), (0, 2, 1, 3)) for one in parts]
            y = hf.nn.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + hf.nn.gelu(hf.reshape(hf.permute_dims(y, (0, 2, 1, 3)), (2, 5, 8)) @ out)
            logits = hf.nn.rms_norm(x) @ hf.matrix_transpose(table)
            loss = hf.mean(hf.nn.softmax_cross_entropy(logits, ids))
        for one, gradient in zip((table, inner, out), tape.gradient(loss, (table, inner, out)), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    ids = np.asarray([[0, 3, 6, 2, 2], [5, 5, 1, 4, 0]], np.int32)
    model = exported(step, hf.asarray(ids))
    found = run_model(model, [ids])
    loss = step(hf.asarray(ids))
    for a, b in zip(found[:4], (loss, table, inner, out), strict=True):  # then whether the ids are in range
        np.testing.assert_allclose(a, b.numpy(), rtol=1e-4, atol=1e-6)


# -- control flow and open sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [True, pytest.param(False, marks=pytest.mark.rest)], ids=["hidden results", "all"])
def test_the_gradient_of_every_operation_runs_or_is_refused(hidden: bool):
    count = 0
    for name, function, tensors in sample_gradients(hidden=hidden):
        try:
            model = exported(hf.compile(function, autograph=False), *tensors)
        except ExportError:
            continue
        # ONNX's own evaluator has no ConvTranspose in groups.
        run = run_in_runtime if name.startswith("conv_kernel_gradient") else run_model
        expected = function(*tensors)
        agree(run(model, arrays(*tensors))[: len(expected)], expected)
        count += 1
    assert count > (10 if hidden else 120)


def test_branches_and_loops_read_what_is_around_them():
    w, xs = weights(3), numbers(40, 3)

    def fn(x: Any, go: Any) -> Any:
        y = hf.cond(go, lambda v: (v + w, hf.sum(v)), lambda v: (v * x, hf.max(v)), x * 2)
        (z,) = hf.while_loop(lambda v: hf.sum(v) < 50, lambda v: (v * 2 + 1,), (hf.abs(y[0]),))
        last, rows = hf.scan(lambda c, v: (c * 0.5 + v, c * y[1]), z, hf.asarray(xs))
        (bounded,) = hf.while_loop(lambda v: hf.sum(v) < 50, lambda v: (v + x * x,), (hf.abs(y[0]),), max_iterations=3)
        return last, rows, bounded

    x = numbers(3)
    for go in (True, False):
        model = compare(fn, x, np.asarray(go))
        assert {"If", "Loop", "Scan"} <= set(operators(model))


def test_the_gradient_of_a_scan_goes_the_other_way():
    xs = numbers(5, 3)

    @hf.compile
    def fn(x: Any) -> Any:
        with hf.GradientTape() as tape:
            tape.watch(x)
            last, rows = hf.scan(lambda c, v: (hf.tanh(c * v), c * 2), x, hf.asarray(xs))
            loss = hf.sum(last) + hf.sum(rows * rows)
        return tape.gradient(loss, x)

    x = hf.asarray(numbers(3))
    model = exported(fn, x)
    assert operators(model).count("Scan") == 2
    np.testing.assert_allclose(run_model(model, arrays(x))[0], fn(x).numpy(), rtol=1e-5)


def test_a_loop_whose_steps_are_known_counts_them():
    def fn(x: Any) -> Any:
        return hf.while_loop(lambda i, v: i < 40, lambda i, v: (i + 1, v * 1.1 + 1), (hf.asarray(0), x))[1]

    assert "Loop" in operators(compare(fn, numbers(2)))


def test_open_sizes_stay_open():
    @hf.compile(dynamic=True)
    def fn(x: Any) -> Any:
        n = x.shape[0]
        y = hf.concat([hf.reshape(x, (n * 2, -1)), hf.zeros((n, 3))])
        half = x[: n // 2] * (1 / n)
        return y[1 : 2 * n], x[::-1], hf.arange(n) * 2, hf.sum(x) / n, hf.var(x, axis=0), half, hf.eye(n)

    for size in (4, 7):
        fn(hf.asarray(numbers(size, 6)))
    model = exported(fn, hf.asarray(numbers(7, 6)))
    dims = model.graph.input[0].type.tensor_type.shape.dim
    assert dims[0].dim_param
    assert dims[1].dim_value == 6
    (sizes,) = [prop.value for prop in model.metadata_props if prop.key == "sizes"]
    assert dims[0].dim_param in sizes
    for size in (2, 9):
        x = numbers(size, 6)
        for a, b in zip(run_model(model, [x]), leaves(fn(hf.asarray(x))), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"stride": (2, 3), "padding": 1, "output_padding": (1, 0)}, {"dilation": 2, "bias": False}],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(None, None), (None, 5), (5, None)], ids=str)
def test_transposed_convolutions_take_open_sizes(tmp_path: Path, options: dict[str, Any], sizes: tuple[Any, ...]):
    layer = hf.nn.ConvTranspose2d(3, 6, (3, 2), **options)
    hf.export.onnx(tmp_path / "model.onnx", layer, hf.TensorSpec([None, 3, *sizes]))
    for size in (4, 7):
        x = numbers(2, 3, *[size if one is None else one for one in sizes])
        found = run_model(onnx.load(tmp_path / "model.onnx"), [x])[0]
        np.testing.assert_allclose(found, np.asarray(layer(hf.asarray(x))), rtol=1e-5, atol=1e-6)


def test_a_size_that_must_be_known_is_an_error():
    @hf.compile(dynamic=True)
    def fn(x: Any) -> Any:
        return hf.roll(x, 1), hf.linspace(0.0, 1.0, x.shape[0])

    for size in (4, 7):
        fn(hf.asarray(numbers(size)))
    graph = fn.graph(hf.asarray(numbers(7)))
    guards = list(graph.dims.guards)
    with pytest.raises(ExportError) as raised:
        export.model_of(graph)
    assert "roll at" in str(raised.value)
    assert "rolling along an axis of open size" in str(raised.value)
    assert "linspace" in str(raised.value)
    assert graph.dims.guards == guards


# -- what a model says ------------------------------------------------------------------------------------------------


def test_nodes_carry_names_lines_and_operations(tmp_path: Path):
    fn, args = mlp()
    hf.compile(fn).graph(hf.asarray(args[0])).to_onnx(tmp_path / "m.onnx")
    model = onnx.load(tmp_path / "m.onnx")
    node = next(node for node in model.graph.node if node.op_type == "MatMul")
    assert node.name == "layer_0/matmul"
    assert "test_onnx.py:" in node.doc_string
    known = {prop.key: prop.value for prop in node.metadata_props}
    assert known["hybridflow.op"] == "matmul()"
    assert known["hybridflow.scope"] == "layer_0"
    assert [one.name for one in model.graph.input] == ["x"]
    assert [one.name for one in model.graph.output] == ["output_0", "output_1"]
    assert model.producer_name == "hybridflow"


def test_variables_are_constants_or_inputs():
    w, c = hf.Variable([1.0, 2.0], name="scale"), hf.asarray([3.0, 4.0])
    fn = hf.compile(lambda x: x * w + c)
    x = hf.asarray([1.0, 1.0])
    graph = fn.graph(x)
    w.assign([10.0, 20.0])
    assert run_model(export.model_of(graph), arrays(x))[0].tolist() == [13.0, 24.0]
    model = export.model_of(graph, as_inputs=True)
    names = [one.name for one in model.graph.input]
    assert names[0] == "x"
    assert "scale" in names
    assert not model.graph.initializer
    values = {"x": x, "scale": w.read()}
    assert run_model(model, arrays(*[values.get(name, c) for name in names]))[0].tolist() == [13.0, 24.0]


def test_a_graph_made_by_hand_is_a_model_too():
    with hf.Graph("square") as graph:
        x = hf.placeholder((2,), name="x")
        y = x * x
    assert hf.Session(graph).run(y, feed={x: [1.0, 3.0]}).tolist() == [1.0, 9.0]
    with pytest.raises(ExportError, match="square: the graph has no results"):
        export.model_of(graph)


def test_large_constants_lie_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    w = hf.asarray(numbers(64, 64))
    graph = hf.compile(lambda x: hf.matmul(x, w)).graph(hf.asarray(numbers(2, 64)))
    monkeypatch.setattr(export, "LARGEST", 1000)
    for _ in range(2):
        graph.to_onnx(tmp_path / "m.onnx")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert (tmp_path / "m.onnx.data").stat().st_size == 64 * 64 * 4
    found = run_model(onnx.load(tmp_path / "m.onnx"), [numbers(2, 64)])
    np.testing.assert_allclose(found[0], numbers(2, 64) @ w.numpy(), rtol=1e-5, atol=1e-5)


# -- what has no counterpart -------------------------------------------------------------------------------------


def test_all_that_has_no_counterpart_is_named_and_nothing_is_written(tmp_path: Path):
    @hf.compile
    def fn(x: Any) -> Any:
        y = hf.linalg.inv(x)
        z = hf.fft.fft(x)
        return hf.cond(hf.sum(x) > 0, lambda: hf.linalg.inv(y), lambda: hf.sin(y)), hf.real(z)

    with pytest.raises(ExportError) as raised:
        fn.graph(hf.asarray(np.eye(2, dtype=np.float32))).to_onnx(tmp_path / "m.onnx")
    text = str(raised.value)
    assert "kinds of operations have no counterpart in ONNX" in text
    assert text.count("inv at ") == 2
    assert "test_onnx.py:" in text
    assert "ONNX has no decompositions of matrices" in text
    assert "ONNX's operators take no complex numbers" in text
    assert not list(tmp_path.iterdir())


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    def missing(name: str) -> Any:
        raise ImportError(name)

    graph = hf.compile(lambda x: x + 1).graph(hf.asarray([1.0]))
    monkeypatch.setattr("hybridflow.export.onnx_format.model.import_module", missing)
    with pytest.raises(MissingPackageError, match=r"hybridflow\[onnx\]"):
        graph.to_onnx(tmp_path / "m.onnx")


def test_every_operation_says_what_it_is_in_onnx():
    default = Op("x", No(""), len, len, No("")).onnx
    assert [name for name, op in REGISTRY.items() if op.onnx is default] == []


# -- edge cases -----------------------------------------------------------------------------------------------------

OPEN = {
    "signed zeros": "which zero of two ONNX gives is open",
    "subnormal numbers": "runtimes may take them for 0",
    "long sums are as good as pairwise ones": "the order of a sum is the runtime's",
    "along any axis": "the order of a sum is the runtime's",
}
CASES = [
    case for case in EDGE_CASES
    if case.topic not in OPEN and not isinstance(case.expected, type) and case.rule not in OPEN
]


def _by_onnx(case: EdgeCase) -> list[np.ndarray[Any, Any]] | None:
    code = eval(f"lambda {', '.join('xy'[: len(case.operands)])}: {case.call}", {"hf": hf})
    try:
        model = exported(hf.compile(code, autograph=False), *map(hf.asarray, case.operands))
    except ExportError:
        return None
    return run_model(model, list(case.operands))


def test_edge_cases_have_one_result_in_onnx_too():
    wrong: list[str] = []
    mapped = 0
    for case in CASES:
        found = _by_onnx(case)
        if found is None:
            continue
        mapped += 1
        expected = np.asarray(case.expected)
        eps = float(np.finfo(np.float32).eps) if expected.dtype.kind not in "iub" else 0.0
        same = found[0].dtype == expected.dtype and np.allclose(
            found[0].astype(np.float64), expected.astype(np.float64), rtol=(case.ulp + 1) * eps, atol=0, equal_nan=True
        )
        if not same:
            wrong.append(f"{case.call}: {found[0]} against {expected}")
    assert wrong == []
    assert mapped > 60

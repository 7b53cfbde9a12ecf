"""`hf.export.stablehlo`: files that a process with jax alone runs, and what no such file can hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from exported_models import MODELS, OPEN, SIZES, agree, numbers, sample_gradients

import hybridflow as hf
from hybridflow.backend.jax_shim import enable_x64
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ExportError, FileMissingError, MissingPackageError
from hybridflow.core.op import REGISTRY, No
from hybridflow.export.to_stablehlo import in_jax
from hybridflow.testing.symbolic import cases

pytest.importorskip("flatbuffers")

JAX_ONLY = """
import sys
sys.modules["hybridflow"] = None  # as where it is not installed
import numpy as np
from jax import export
from jax.tree_util import tree_leaves
arguments = np.load("arguments.npz")
found = {}
for name in {*[key.split("|")[0] for key in arguments.files]}:
    call = export.deserialize(open(f"{name}.stablehlo", "rb").read()).call
    for size in %r:
        given = [arguments[f"{name}|{size}"]]
        if f"{name}|{size}|state" in arguments.files:
            given.append(arguments[f"{name}|{size}|state"])
        for place, one in enumerate(tree_leaves(call(*given))):
            found[f"{name}|{size}|{place}"] = np.asarray(one)
np.savez("found.npz", **found)
assert not any(name.startswith("hybridflow.") for name in sys.modules)
print("done")
"""


def leaves(value: Any) -> list[Any]:
    return [np.asarray(one) for one in jax.tree_util.tree_leaves(value, is_leaf=lambda y: isinstance(y, hf.Tensor))]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a process with jax alone computes with all models, and what ours computes eagerly."""
    folder = tmp_path_factory.mktemp("stablehlo")
    arguments: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for name, case in MODELS.items():
        model = case.make()
        if isinstance(model, hf.nn.Module):
            model.eval()
        hf.export.stablehlo(folder / f"{name}.stablehlo", model, case.spec)
        for size in SIZES:
            x = arguments[f"{name}|{size}"] = case.argument(size)
            if name == "vae":
                hf.random.seed(size)
                arguments[f"{name}|{size}|state"] = np.asarray(hf.ops.random.default_generator().state)
            for place, one in enumerate(leaves(model(hf.asarray(x)))):
                expected[f"{name}|{size}|{place}"] = one
    np.savez(folder / "arguments.npz", **arguments)
    done = subprocess.run(
        [sys.executable, "-I", "-c", JAX_ONLY % (SIZES,)], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0"},  # it compiles in half the time
    )
    assert done.stdout == "done\n", done.stderr[-2000:]
    with np.load(folder / "found.npz") as made:
        return dict(made), expected


@pytest.mark.parametrize("name", MODELS)
def test_a_process_with_jax_alone_computes_the_same(name: str, found: Any):
    made, expected = found
    keys = [key for key in expected if key.startswith(f"{name}|")]
    assert len(keys) >= len(SIZES)
    for key in keys:
        a, b, rtol = made[key], expected[key], MODELS[name].rtol
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1e-3, float(np.max(np.abs(b), initial=0))))


def call(path: Path, *args: Any) -> Any:
    return jax.export.deserialize(path.read_bytes()).call(*args)


def test_the_gradients_of_operations_with_hidden_results_run(tmp_path: Path):
    for name, function, tensors in sample_gradients(hidden=True):
        path = tmp_path / f"{name}.stablehlo"
        hf.export.stablehlo(path, function, *[one.spec for one in tensors])
        expected = function(*tensors)
        with enable_x64():
            found = jax.export.deserialize(bytearray(path.read_bytes())).call(*[one.numpy() for one in tensors])
        agree(jax.tree_util.tree_leaves(found)[: len(expected)], expected)


def test_an_artifact_is_exported_without_its_source(tmp_path: Path):
    model = MODELS["mlp"].make()
    hf.export.save(tmp_path / "one", predict=(model, OPEN), twice=(lambda given: given["x"] * 2, {"x": OPEN}))
    artifact = hf.export.load(tmp_path / "one")
    x = numbers(3, 12)
    for number, target in enumerate((artifact, tmp_path / "one", artifact.predict)):
        path = tmp_path / f"{number}.stablehlo"
        hf.export.stablehlo(path, target)
        made = call(path, x)
        assert {*made} == {"logits", "hidden"}
        np.testing.assert_allclose(made["logits"], artifact.predict(x)["logits"].numpy(), rtol=2e-5, atol=1e-6)
    hf.export.stablehlo(tmp_path / "twice.stablehlo", artifact, function="twice")
    assert call(tmp_path / "twice.stablehlo", {"x": x}).tolist() == (x * 2).tolist()
    assert {path.name for path in tmp_path.iterdir()} == {"one", *[f"{n}.stablehlo" for n in (0, 1, 2, "twice")]}


def test_checks_and_random_states_are_results(tmp_path: Path):
    def f(x: Any) -> Any:
        hf.debugging.check(hf.all(x > 0), "positive")
        return x + hf.random.normal(x.shape)

    path = tmp_path / "f"
    hf.export.stablehlo(path, f, hf.TensorSpec([None]))
    hf.random.seed(3)
    state = np.asarray(hf.ops.random.default_generator().state)
    for good in (1.0, -1.0):
        y, more = call(path, np.full(3, good, np.float32), state)
        assert bool(more["checks"]) is (good > 0)
        assert (more["random_state"].tolist() != state.tolist()) is (good > 0)  # a failed call advances nothing
    np.testing.assert_allclose(np.asarray(y + 1), hf.random.normal((3,)).numpy(), rtol=1e-6)
    with hf.config.checks(False):
        hf.export.stablehlo(path, lambda x: x[hf.asarray([0, 2])], hf.TensorSpec([None, 2]))
    assert call(path, np.ones((3, 2), np.float32)).shape == (2, 2)


def test_64_bits_stay_64_bits_where_jax_has_32(tmp_path: Path):
    hf.export.stablehlo(tmp_path / "f", lambda x: (x.astype(hf.int64) * 3_000_000_000) // 1_000_000_000, OPEN)
    assert set(np.asarray(call(tmp_path / "f", np.ones((2, 12), np.float32))).ravel()) == {3}


def test_what_the_trace_relied_on_is_asked_for(tmp_path: Path):
    path = tmp_path / "f"
    hf.export.stablehlo(path, lambda x: x * 2 if x.shape[0] % 2 == 0 else x, OPEN)
    assert call(path, np.ones((3, 12), np.float32))[0, 0] == 1.0  # the trace is of an odd size
    with pytest.raises(ValueError, match=r"."):  # in words of jax's
        call(path, np.ones((2, 12), np.float32))
    hf.export.stablehlo(path, lambda x: x * 2 if x.shape[0] > 3 else x, OPEN)
    assert call(path, np.ones((4, 12), np.float32))[0, 0] == 2.0
    with pytest.raises(ValueError, match=r"."):
        call(path, np.ones((3, 12), np.float32))
    hf.export.stablehlo(path, lambda x, y: x + y, OPEN, OPEN)
    assert call(path, *[np.ones((4, 12), np.float32)] * 2).shape == (4, 12)
    with pytest.raises(ValueError, match=r"."):
        call(path, np.ones((4, 12), np.float32), np.ones((3, 12), np.float32))


def branch(x: Any) -> Any:
    return hf.cond(hf.sum(x) > 0, lambda: hf.linalg.svd(x @ x.T)[1], lambda: x[:, 0])


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (branch, r"svd at .*test_stablehlo.py:\d+ cannot be exported"),
        (lambda x: x if x.shape[0] == 17 else x * 2, "x_0 is 17, which such a file cannot say"),
        (lambda x: x if x.shape[0] == 5 else x * 2, "x_0 is not 5, which such a file cannot say"),
        (lambda x: (hf.print(x), x)[1], r"predict calls print at .*test_stablehlo.py:\d+"),
        (lambda x: hf.pure_callback(lambda a: a, hf.TensorSpec([3]), x[0, :3]), "predict calls pure_callback at"),
    ],
)
def test_what_no_file_can_hold_is_named_with_its_line(function: Any, text: str, tmp_path: Path):
    with pytest.raises(ExportError, match=text):
        hf.export.stablehlo(tmp_path / "f", function, OPEN)
    assert not [*tmp_path.iterdir()]


OF_ONE_SIZE = {
    # a matrix of open size, or a shape or a state that the sample gives in numbers
    "adjugate", "det", "det_derivative", "eig", "eigh", "lu", "pinv", "qr", "schur", "slogdet", "sqrtm", "svd",
    "broadcast_to", "embed_diagonal",
    "index_add", "pack_int4", "unpack_int4",
    "lstm_update", "muon", "random_advance", "reshape", "scaled_dot_product_attention", "slice_scatter", "slice_set",
    "einsum",
    # several axes of one open size, whose windows jax cannot compare
    "avg_pool", "avg_pool_gradient", "conv", "conv_input_gradient", "conv_kernel_gradient", "max_pool_pick",
    "integer_conv", "quantized_conv",
    "fftn", "ifftn", "irfftn",
}
"""Operations of which a sample needs the number of a size that is left open."""


def test_operations_have_open_sizes_or_say_that_they_have_none():
    count, refused = 0, set[str]()
    for op in REGISTRY.values():
        if isinstance(op.lower, No) or isinstance(op.samples, No) or op.infer.__module__.startswith("test"):
            continue  # the last are those that other tests register
        for case in cases(op, 0):
            graph, _ = case.trace(op)
            try:
                run, specs = in_jax(op.name, graph)
                with enable_x64():
                    found = jax.eval_shape(lambda *xs, run=run: run(xs), *specs)
                assert [one.dtype for one in found] == [spec.dtype for spec in graph.output_specs]
                count += 1
            except ExportError:
                refused.add(op.name)
    assert refused <= OF_ONE_SIZE
    assert count > 400


def test_other_targets_are_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    hf.export.save(tmp_path / "one", lambda x: x, OPEN)
    for target, specs, function, error, text in (
        (3, (), "predict", ArgumentTypeError, "an int is no function, module or artifact"),
        (tmp_path / "one", (), "other", ArgumentError, "has no function 'other'\n  got: predict"),
        (hf.export.load(tmp_path / "one"), (OPEN,), "predict", ArgumentTypeError, "has its own specs"),
        (lambda x: x, (), "predict", ArgumentTypeError, "0 specs do not fit the function"),
        (tmp_path / "two", (), "predict", FileMissingError, "The file to write comes first"),
    ):
        with pytest.raises(error, match=text):
            hf.export.stablehlo(tmp_path / "f", target, *specs, function=function)
    monkeypatch.setattr("hybridflow.export.to_stablehlo.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"hybridflow\[stablehlo\]"):
        hf.export.stablehlo(tmp_path / "f", lambda x: x, OPEN)


@pytest.mark.parametrize(("platforms", "products"), [(("cpu",), 1), (("cuda",), 0), (("cpu", "cuda"), 0)])
def test_a_program_is_spelled_for_the_platform_that_it_runs_on(
    tmp_path: Path, platforms: tuple[str, ...], products: int
) -> None:
    hf.export.stablehlo(tmp_path / "sum", lambda x: hf.sum(x, axis=-1), hf.TensorSpec([512, 256]), platforms=platforms)
    module = jax.export.deserialize(bytearray((tmp_path / "sum").read_bytes())).mlir_module()
    assert module.count("stablehlo.dot_general") == products  # XLA:CPU sums fastest by a product with ones

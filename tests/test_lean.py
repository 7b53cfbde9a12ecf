"""Saved executables without their fusions' descriptions: the same results bit by bit, and whole again when asked."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from benchmarks.networks import NETWORKS, Draw, OurStep

import hybridflow as hf
from hybridflow.backend import lean
from hybridflow.backend.jax_shim import compile_with, load_executable, save_executable
from hybridflow.backend.lean import without_descriptions
from hybridflow.backend.options import call_options, compiler_options
from hybridflow.xla import executable
from hybridflow.xla.executable import compile_graph
from hybridflow.xla.store import ahead, keeping
from hybridflow.xla.store.directory import WHOLE, Directory

pytestmark = pytest.mark.skipif(
    version("jaxlib") not in lean.TESTED or jax.default_backend() != "cpu", reason="nothing is left out here"
)


@pytest.fixture
def everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave descriptions out of the smallest executables too."""
    monkeypatch.setattr(lean, "_PRODUCTS", 0)
    monkeypatch.setattr(keeping, "_WORTH_LEAVING_OUT", 0)
    monkeypatch.setattr(keeping, "_WORTH_KEEPING", 0.0)
    monkeypatch.setattr(ahead, "_WORTH_A_NOTE", 0)
    monkeypatch.setattr(ahead, "_LOADING", {})


def files(path: Path) -> dict[bool, Path]:
    """Return the one executable of a store by whether it is whole."""
    return {one.name.startswith(WHOLE): one for one in path.glob("*.xla") if not one.name.startswith("note-")}


def program_text(executable: Any) -> str:
    """Return XLA's program without the names that stand for lines."""
    return re.sub(r", metadata={.*?}", "", executable.compiled.as_text()).partition("\n")[2]


def trained(name: str, layers: int) -> tuple[list[Any], OurStep]:
    """Return everything that two steps of a network compute, and the network."""
    network = NETWORKS[name]
    model = OurStep(network, *network.make(Draw(smoke=True), layers))
    losses = [model.step().numpy() for _ in range(2)]
    return [*losses, *[one.numpy() for one in model.state()]], model


@pytest.mark.parametrize("name", ["pre_norm", "resnet", "lstm", "unet", "lenet"])
def test_networks_compute_the_same_bit_by_bit(everything: None, tmp_path: Path, name: str):
    with hf.config.cache(tmp_path / "store"):
        first, stored = trained(name, 4)
        again, loaded = trained(name, 4)
        assert [one.compiled.explain()[0].store for one in (stored, loaded)] == [["stored"], ["loaded"]]
        for one, other in zip(first, again, strict=True):
            assert np.array_equal(one, other)
        found = files(tmp_path / "store")
        assert found[False].stat().st_size < found[True].stat().st_size
        assert Directory(tmp_path / "store").use().entries == 1
        made, other = (one.compiled.lower(one.x).executable for one in (stored, loaded))
        assert other.compiled is other.compiled
        assert made.compiled.memory_analysis().temp_size_in_bytes == other.compiled.memory_analysis().temp_size_in_bytes
        assert program_text(made) == program_text(other)
        assert len(made.fusions()) == len(other.fusions()) > 0


def loop(x: Any) -> Any:
    i = 0
    while hf.sum(x) > 0.5:
        x = hf.tanh(x) * 0.5 + hf.exp(-x) * 0.001
        i = i + 1
    return x, i


def branch(x: Any) -> Any:
    return hf.exp(x) * hf.sin(x) + hf.sort(x) if hf.sum(x) > 0 else hf.cumulative_sum(x * x - hf.cos(x))


def several(x: Any) -> Any:
    y = hf.exp(x) / hf.sum(hf.exp(x))
    return y, hf.max(y), hf.argmax(y), y[::-1], x.at[2:5].set(hf.square(y[2:5]))


def factors(x: Any) -> Any:
    a = hf.reshape(hf.tile(x, (8,)), (8, 8)) * hf.sin(hf.reshape(hf.arange(64.0), (8, 8))) + hf.eye(8) * 9.0
    return hf.linalg.inv(a) @ a, hf.linalg.cholesky(a @ a.mT), hf.sort(hf.abs(a))


def draws(x: Any) -> Any:
    return hf.random.normal((64,)) * hf.exp(x[0]), hf.random.permutation(16)


def products(x: Any) -> Any:
    a = hf.reshape(hf.sin(hf.arange(float(1 << 18))), (512, 512)) * x[0]
    return hf.tanh(a @ a) @ a, hf.sum(a @ hf.exp(a * 0.1), axis=0)  # large enough to be left to a library


@pytest.mark.parametrize("function", [loop, branch, several, factors, draws, products])
def test_programs_compute_the_same_bit_by_bit(everything: None, tmp_path: Path, function: Callable[..., Any]):
    x = hf.asarray(np.linspace(0.1, 2.0, 8, dtype=np.float32))
    results: list[list[Any]] = []
    did: list[str] = []
    with hf.config.cache(tmp_path / "store"):
        for _ in range(2):
            hf.random.seed(3)
            compiled = hf.compile(function)
            results.append([np.asarray(one) for one in jax.tree_util.tree_leaves(compiled(x))])
            did += compiled.explain()[0].store
    assert did == ["stored", "loaded"]
    for one, other in zip(*results, strict=True):
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def work(x: Any) -> Any:
    return (jax.numpy.tanh(x @ x.T) * 2.0,)


def saved_program(function: Callable[..., Any]) -> bytes:
    options = compiler_options(backend="cpu")
    return save_executable(jax.jit(function, compiler_options=options).lower(np.ones((64, 64), np.float32)).compile())


def test_code_order_and_buffers_are_not_touched():
    saved = saved_program(work)
    made = without_descriptions(saved)
    assert made is not None
    programs: list[bytes] = []

    def taken_out(program: bytes) -> bytes:
        programs.append(program)
        return b""

    def rest(one: bytes) -> bytes:
        return lean._in_pickle(one, lambda executable: lean._in_executable(executable, taken_out))

    assert rest(saved) == rest(made)
    assert len(programs[1]) < len(programs[0])
    shown = load_executable(made, 1, 1, jax.devices()[0]).as_text()
    assert "tanh" not in shown
    assert "dot" in shown


def test_what_is_not_known_stays_whole(monkeypatch: pytest.MonkeyPatch):
    saved = saved_program(work)
    assert without_descriptions(saved) is not None
    light = saved_program(lambda x: (jax.numpy.tanh(x) * 2.0,))
    assert without_descriptions(light) is None  # nothing would be left that looks like work
    monkeypatch.setattr(lean, "version", lambda _: "0.99.0")
    assert without_descriptions(saved) is None
    monkeypatch.undo()
    for bad in (b"", b"x", saved[:1000], saved[: len(saved) // 2]):
        assert without_descriptions(bad) is None


def test_one_that_does_not_load_gives_way_to_the_whole_one(
    everything: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def f(x: Any) -> Any:
        return hf.tanh(x @ x.mT) * 2.0

    x = hf.asarray(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    with hf.config.cache(tmp_path / "store"), monkeypatch.context() as patch:
        message = lean.write_field  # a planted fault: a fusion that becomes nothing XLA knows
        patch.setattr(lean, "write_field", lambda n, b: message(n, b"nonsense" if b == b"custom-call" else b))
        expected = hf.compile(f)(x).numpy()
    with hf.config.cache(tmp_path / "store"):
        for _ in range(2):
            compiled = hf.compile(f)
            assert np.array_equal(compiled(x).numpy(), expected)
            assert compiled.explain()[0].store == ["loaded"]
        found = files(tmp_path / "store")
        assert found[False].stat().st_size >= found[True].stat().st_size - len(WHOLE)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def test_texts_of_a_program_with_calls_when_the_whole_one_is_gone(everything: None, tmp_path: Path):
    """It is compiled once more with the extra options that it was compiled with."""
    text = """
graph f(%x: f32[8,8]) -> (f32[8,8]) {
  %0 = exp(%x) : f32[8,8]
  %1 = fusion_break(%0) : f32[8,8]
  %2 = tanh(%1) : f32[8,8]
  %3 = add(%2, %1) : f32[8,8]
  return %3
}
"""
    with hf.config.cache(tmp_path / "store"):
        stored = compile_graph(hf.ir.parse(text), sizes={})
        files(tmp_path / "store")[True].unlink()
        asked: list[Any] = []
        loaded = compile_graph(hf.ir.parse(text), sizes={})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(executable, "compile_with", lambda *given: asked.append(given[1]) or compile_with(*given))
            assert program_text(loaded) == program_text(stored)
    assert (stored.store, loaded.store) == ("stored", "loaded")
    assert asked == [call_options("cpu")]


@pytest.mark.parametrize("spoil", [Path.unlink, cut])
def test_texts_when_the_whole_one_is_gone_or_cut(everything: None, tmp_path: Path, spoil: Callable[[Path], None]):
    x = hf.asarray(np.linspace(-1, 1, 64, dtype=np.float32).reshape(8, 8))
    texts: list[str] = []
    with hf.config.cache(tmp_path / "store"):
        for expected in ("stored", "loaded"):
            compiled = hf.compile(lambda x: hf.tanh(x @ x.mT) * 2.0, name="f")
            compiled(x)
            assert compiled.explain()[0].store == [expected]
            texts.append(program_text(compiled.lower(x).executable))
            if expected == "stored":
                spoil(files(tmp_path / "store")[True])
        assert "tanh" in texts[1]
    assert texts[0] == texts[1]

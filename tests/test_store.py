"""The store of executables on disk: what is found again, what is never trusted, and what many processes do at once."""

from __future__ import annotations

import itertools
import os
import pickle
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache
from processes import run_python

import hybridflow as hf
from hybridflow.backend.jax_shim import row_major
from hybridflow.cli import main
from hybridflow.core.op import REGISTRY
from hybridflow.ir import parse
from hybridflow.xla.executable import compile_graph
from hybridflow.xla.store import ahead, directory, environment, stored_programs
from hybridflow.xla.store.directory import MAGIC, Directory, Unsafe
from hybridflow.xla.store.fingerprint import NotPlain, fingerprint
from hybridflow.xla.store.location import place

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="the store needs a system with owners of files")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A store of this test, in which everything is kept, however quickly it was compiled."""
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 0.0)
    monkeypatch.setattr("hybridflow.xla.store.location._WARNED", set())
    monkeypatch.setattr(stored_programs, "_REFUSED", set())
    path = tmp_path / "store"
    with hf.config.cache(path):
        yield path


def files(path: Path) -> list[Path]:
    return sorted(path.glob("*.xla"))


def outcome(function: Any, *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """Compile a function anew, call it, and return its result and what the store did."""
    compiled = hf.compile(function, **options)
    result = compiled(*args)
    return result, [text for record in compiled.explain() for text in record.store]


# -- what is found again ------------------------------------------------------------------------------------------


def test_an_executable_is_found_again(store: Path):
    x = hf.asarray([1.0, 2.0])
    first, did = outcome(lambda x: hf.exp(x) * 2.0, x)
    assert did == ["stored"]
    second, did = outcome(lambda x: hf.exp(x) * 2.0, x)
    assert did == ["loaded"]
    assert np.array_equal(first.numpy(), second.numpy())
    assert stat.S_IMODE(store.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in store.iterdir()} == {0o600}


@pytest.fixture
def cache_of_jax(tmp_path: Path) -> Iterator[None]:
    """Jax's own cache on disk, which holds whatever was compiled."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path / "jax"), "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.usefixtures("cache_of_jax")
def test_what_jax_found_in_its_own_cache_is_not_saved(store: Path):
    """XLA saves no machine code of what it loaded: such a file loads, and its call fails."""
    x = hf.asarray([1.0, 2.0])
    done: list[list[str]] = []
    for _ in range(3):
        result, did = outcome(lambda x: hf.tanh(x) * 7.0, x)
        np.testing.assert_allclose(result.numpy(), np.tanh([1.0, 2.0]) * 7, rtol=1e-6)
        done.append(did)
        shutil.rmtree(store, ignore_errors=True)
    assert done == [["stored"], *[["not stored: jax's own cache has it"]] * 2]


def test_explain_and_the_texts_of_a_loaded_executable(store: Path):
    x = hf.asarray([1.0, 2.0])
    texts: list[tuple[str, ...]] = []
    for _ in range(2):
        f = hf.compile(lambda x: hf.tanh(x) * 3.0, name="f")
        f(x)
        lowered = f.lower(x)
        hlo = re.sub(r", metadata={.*?}", "", lowered.as_text("hlo"))
        texts.append((lowered.as_text("optimized"), lowered.as_text("stablehlo"), hlo[hlo.index("ENTRY") :]))
    assert texts[0] == texts[1]
    assert "stablehlo.tanh" in texts[1][1]
    record = f.explain()[0]
    assert record.store == ["loaded"]
    assert record.xla_ms == record.lower_ms == 0.0 < record.load_ms
    assert "loaded from the store on disk: 1 of 1" in str(record)
    assert f"executable 1: loaded in {record.load_ms:.1f} ms" in str(record)
    assert "compile(s)" not in str(record)
    assert "XLA 0.0 ms" not in str(record)


def test_variables_are_donated_and_assigned(store: Path):
    def make() -> tuple[Any, hf.Variable]:
        v = hf.Variable(np.arange(4.0, dtype=np.float32))

        @hf.compile
        def step(x: Any) -> Any:
            v.assign_add(x * v)
            return hf.sum(v)

        return step, v

    values: list[list[float]] = []
    for _ in range(2):
        step, v = make()
        step(hf.asarray(1.0))
        held = v.current()
        step(hf.asarray(2.0))
        step(hf.asarray(3.0))
        values.append(v.numpy().tolist())
        did = step.explain()[0].store
        assert np.asarray(held).tolist() == [0.0, 2.0, 4.0, 6.0]  # held, so it was copied and not given away
    assert did == ["loaded"]
    assert values == [[0.0, 24.0, 48.0, 72.0]] * 2


def test_wide_dtypes_and_jax_as_it_was(store: Path):
    x = hf.asarray(np.array([1.0, 1e-300]))
    for expected in ("stored", "loaded"):
        result, did = outcome(lambda x: hf.exp(x) + 1e-9, x)
        assert did == [expected]
        assert result.dtype == np.float64
        assert result.numpy()[1] == 1 + 1e-9
    assert not jax.config.jax_enable_x64


def test_symbolic_sizes_have_an_executable_each(store: Path):
    def f(x: Any) -> Any:
        return hf.sum(x * x.shape[0])

    for expected in ("stored", "loaded"):
        compiled = hf.compile(f, input_signature=[hf.TensorSpec([None])])
        assert [compiled(np.ones(n, np.float32)).item() for n in (2, 3)] == [4.0, 9.0]
        assert compiled.explain()[0].store == [expected] * 2


def test_gradients_through_a_compiled_call(store: Path):
    @hf.compile
    def f(x: Any) -> Any:
        return hf.sum(hf.exp(x) * x)

    x = hf.asarray([0.5, 1.0])
    gradients: list[Any] = []
    for _ in range(2):
        f.clear_cache()
        before = Directory(store).use()
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        gradients.append(tape.gradient(y, x).numpy())
    after = Directory(store).use()
    assert after.entries == before.entries == 3  # alone, forward, and backward
    assert after.hits == before.hits + 3
    assert np.array_equal(*gradients)
    np.testing.assert_allclose(gradients[0], np.exp(x.numpy()) * (1 + x.numpy()), rtol=1e-6)


def test_another_process_finds_it_and_needs_no_lowering(tmp_path: Path):
    code = """
        import hybridflow as hf, numpy as np
        from hybridflow.xla.store import ahead, stored_programs
        stored_programs._WORTH_KEEPING = 0
        a = np.array([[4.0, 1.0], [1.0, 3.0]], np.float32)
        f = hf.compile(lambda a: hf.linalg.cholesky(a) @ hf.linalg.inv(a))  # calls libraries that lowering prepares
        g = hf.compile(lambda x: hf.cumulative_sum(hf.sort(x)))
        h = hf.compile(lambda x: hf.random.normal((3,)) + x)
        hf.random.seed(7)
        print([f(a).numpy().tolist(), g(a[0]).numpy().tolist(), h(a[0, 0]).numpy().tolist()])
        print([one.explain()[0].store for one in (f, g, h)], [one.explain()[0].lower_ms > 0 for one in (f, g, h)])
    """
    first = run_python(code, HYBRIDFLOW_CACHE_DIR=str(tmp_path / "c")).splitlines()
    second = run_python(code, HYBRIDFLOW_CACHE_DIR=str(tmp_path / "c")).splitlines()
    assert first[0] == second[0]
    assert first[1] == "[['stored'], ['stored'], ['stored']] [True, True, True]"
    assert second[1] == "[['loaded'], ['loaded'], ['loaded']] [True, False, False]"


@pytest.mark.parametrize(
    ("function", "calls"), [(lambda x: row_major(x + x.T) * 2.0, False), (lambda x: jnp.linalg.cholesky(x), True)]
)
def test_only_what_calls_a_library_is_lowered_before_it_is_loaded(store: Path, function: Any, calls: bool):
    x = hf.asarray([[4.0, 1.0], [1.0, 3.0]])
    used = hf.from_jax(function)
    assert outcome(lambda x: used(x), x, autograph=False)[1] == ["stored"]
    (path,) = files(store)
    body = Directory(store).read(path.stem)
    assert body is not None
    assert ahead.without_head(body)[0].calls is calls


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Have every executable loaded ahead, and return those that are under way."""
    monkeypatch.setattr(ahead, "_WORTH_A_NOTE", 0)
    monkeypatch.setattr(ahead, "_LOADING", {})
    return ahead._LOADING


def test_what_was_needed_the_last_time_is_loaded_ahead(
    store: Path, noted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    def f(x: Any) -> Any:
        return hf.exp(x) * factor

    factor, x = 2.0, hf.asarray(np.array([1.0, 2.0]))
    first, did = outcome(f, x)
    assert did == ["stored"]
    monkeypatch.setattr(stored_programs, "load_executable", None)  # only the thread can load it
    second, did = outcome(f, x)
    assert did == ["loaded"]
    assert second.dtype == np.float64
    assert np.array_equal(first.numpy(), second.numpy())
    assert not noted
    assert Directory(store).use()[::2] == (1, 1)


def test_what_was_loaded_ahead_counts_only_if_the_trace_has_its_key(store: Path, noted: dict[str, Any]):
    def f(x: Any) -> Any:
        return hf.exp(x) * factor

    x = hf.asarray([0.0])
    for factor, expected in ((2.0, "stored"), (3.0, "stored"), (2.0, "loaded"), (3.0, "loaded")):
        result, did = outcome(f, x)  # the note is of another factor
        assert did == [expected]
        assert result.item() == factor
    for factor in map(float, range(4, 20)):
        assert outcome(f, x)[0].item() == factor
    assert 0 < len(noted) <= 8


def test_a_note_of_what_is_gone_or_broken(store: Path, noted: dict[str, Any]):
    def f(x: Any) -> Any:
        return hf.exp(x) * 2.0

    x = hf.asarray([0.0])
    outcome(f, x)
    (path,) = [path for path in files(store) if not path.name.startswith("note-")]
    path.write_bytes(path.read_bytes()[:-1])
    assert outcome(f, x)[1] == ["stored"]
    assert outcome(f, x)[1] == ["loaded"]
    path.unlink()
    assert outcome(f, x)[1] == ["stored"]


# -- the key ------------------------------------------------------------------------------------------------------

BASE = """graph f(%x: f32[4]) -> (f32[4]) {
  %0 = constant() {value=f32[4] [1., 2., 3., 4.]} : f32[4]
  %1 = add(%x, %0) : f32[4]
  return %1
}"""
OTHERS = [
    BASE.replace("4.]", "5.]"),
    BASE.replace("add", "multiply"),
    BASE.replace("(%x, %0)", "(%0, %x)"),
    BASE.replace("return %1", "return %0"),
    BASE.replace("%x: f32[4]", "%x: f32[1]"),
    BASE.replace("graph f", "graph g"),
]


def test_graphs_that_differ_have_other_fingerprints():
    found = [fingerprint(parse(text), {}) for text in [BASE, *OTHERS]]
    assert len(set(found)) == len(found)
    assert fingerprint(parse(BASE), {}) == found[0]
    assert fingerprint(parse(BASE.replace("%0", "%other").replace("%x", "%in")), {}) == found[0]
    assert fingerprint(parse(BASE), {"n": 3}) != found[0]


@pytest.mark.parametrize(
    ("one", "other"), [(1, True), (0.0, -0.0), (1, 1.0), (float("nan"), -float("nan")), ((1, (2,)), (1, 2)), ("1", 1)]
)
def test_attributes_that_differ_have_other_fingerprints(one: Any, other: Any):
    graph = parse(BASE)
    found: list[bytes] = []
    for value in (one, other):
        graph.nodes[1].attrs["extra"] = value
        found.append(fingerprint(graph, {}))
    assert found[0] != found[1]


def test_a_function_among_the_attributes_has_no_fingerprint():
    graph = parse(BASE)
    graph.nodes[1].attrs["extra"] = len
    with pytest.raises(NotPlain):
        fingerprint(graph, {})


def test_an_op_of_the_users_is_known_by_what_it_lowers_to(store: Path, monkeypatch: pytest.MonkeyPatch):
    x = hf.asarray([1.0, 4.0])
    assert outcome(lambda x: hf.sqrt(x) + 1.0, x)[1] == ["stored"]
    monkeypatch.setattr(REGISTRY["sqrt"], "lower", lambda x: x * 10.0)
    monkeypatch.setattr("hybridflow.xla.store.fingerprint._FOREIGN", [0, frozenset()])
    result, did = outcome(lambda x: hf.sqrt(x) + 1.0, x)
    assert did == ["stored"]
    assert result.numpy().tolist() == [11.0, 41.0]


def test_jax_functions_are_known_by_what_they_lower_to(store: Path):
    x = hf.asarray([1.0, 4.0])
    for factor, expected in ((2.0, "stored"), (3.0, "stored"), (2.0, "loaded")):
        scaled = hf.from_jax(lambda x, factor=factor: jnp.sin(x) * factor)
        result, did = outcome(lambda x, scaled=scaled: scaled(x) + 1.0, x, autograph=False)
        assert did == [expected]
        np.testing.assert_allclose(result.numpy(), np.sin([1.0, 4.0]) * factor + 1.0, rtol=1e-6)


@pytest.mark.parametrize("own", [True, False])
def test_large_constants_count_bit_by_bit(store: Path, own: bool):
    first = np.linspace(0, 1, 20_000, dtype=np.float32)
    other = first.copy()
    other[12_345] = np.nextafter(other[12_345], np.float32(2))
    x = hf.ones((20_000,))
    for values, expected in ((first, "stored"), (other, "stored"), (first, "loaded"), (other, "loaded")):
        scaled = (lambda x, c=values: x * hf.asarray(c)) if own else hf.from_jax(lambda x, c=values: x * c)
        result, did = outcome(lambda x, scaled=scaled: scaled(x), x, autograph=False)
        assert did == [expected]
        assert np.array_equal(result.numpy(), values)


def test_what_calls_python_is_not_stored(store: Path, capsys: pytest.CaptureFixture[str]):
    def f(x: Any) -> Any:
        hf.print(x)
        return x + 1.0

    assert outcome(f, hf.asarray(1.0))[1] == ["not stored: it calls Python functions"]
    inside = hf.from_jax(lambda x: jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), "float32"), x))
    assert outcome(lambda x: inside(x) + 1.0, hf.asarray(1.0))[1] == ["not stored: it calls Python functions"]
    assert not files(store)
    assert capsys.readouterr().out.startswith("Tensor(1.")


def test_settings_of_jax_are_part_of_the_key(store: Path, monkeypatch: pytest.MonkeyPatch):
    x = hf.asarray([[1.0, 4.0]])
    assert outcome(lambda x: x @ x.mT, x)[1] == ["stored"]
    with jax.default_matmul_precision("highest"):
        assert outcome(lambda x: x @ x.mT, x)[1] == ["stored"]
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    assert outcome(lambda x: x @ x.mT, x)[1] == ["stored"]
    monkeypatch.delenv("XLA_FLAGS")
    assert outcome(lambda x: x @ x.mT, x)[1] == ["loaded"]


def test_donation_and_device_are_part_of_the_key(store: Path):
    graph = parse(BASE)
    made = [compile_graph(graph, donate=donate, sizes={}, device=device).store
            for donate in ((), (0,)) for device in (None, jax.devices()[0])]
    assert made == ["stored"] * 4
    assert compile_graph(graph, donate=(0,), sizes={}).store == "loaded"


def test_several_devices_in_one_process(tmp_path: Path):
    code = """
        import jax, numpy as np, hybridflow as hf
        from hybridflow.xla.store import ahead, stored_programs
        stored_programs._WORTH_KEEPING = 0
        f = hf.compile(lambda x: hf.tanh(x) * 2)
        x = np.ones(3, np.float32)
        for name in ("cpu:0", "cpu:1"):
            with hf.device(name):
                f(hf.asarray(x)).numpy()
        g = hf.compile(lambda x: hf.tanh(x) * 2)
        with hf.device("cpu:1"):
            y = g(hf.asarray(x))
        did = [text for record in f.explain() for text in record.store]
        print(did, g.explain()[0].store, y.numpy().tolist() == f(x).numpy().tolist())
    """
    flags = "--xla_force_host_platform_device_count=2"
    printed = run_python(code, HYBRIDFLOW_CACHE_DIR=str(tmp_path / "c"), XLA_FLAGS=flags)
    assert printed == "['stored', 'stored'] ['loaded'] True\n"


# -- what is never trusted ----------------------------------------------------------------------------------------


class Bomb:
    """Runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["BOMB"],)


def test_damaged_and_hostile_files_are_rewritten(
    store: Path, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("BOMB", str(tmp_path / "exploded"))
    x = hf.asarray([1.0, 2.0])

    def run() -> list[str]:
        result, did = outcome(lambda x: hf.exp(x) * 2.0, x)
        assert np.array_equal(result.numpy(), expected)
        return did

    expected = hf.compile(lambda x: hf.exp(x) * 2.0)(x).numpy()
    (path,) = files(store)
    good = path.read_bytes()
    bomb = pickle.dumps(Bomb())
    start = len(MAGIC) + 32
    bad = [b"", good[:10], good[: len(good) // 2], good[:-1], good + b"x", bomb, MAGIC + bomb, good[:start] + bomb]
    bad += [good.replace(b"hybridflow store 1", b"hybridflow store 2")]
    for position in rng.integers(0, len(good), 12):
        bad.append(good[:position] + bytes([good[position] ^ (1 << int(rng.integers(8)))]) + good[position + 1 :])
    for data in bad:
        path.write_bytes(data)
        assert run() == ["stored"]
        assert run() == ["loaded"]
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["entry", "key"])
def test_a_directory_in_a_files_place_is_replaced(store: Path, name: str):
    x = hf.asarray([1.0, 2.0])
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    path = store / "key" if name == "key" else files(store)[0]
    path.unlink()
    (path / "inner").mkdir(parents=True)
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    assert outcome(lambda x: x + 1.0, x)[1] == ["loaded"]


def test_a_file_under_another_name_does_not_count(store: Path):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    outcome(lambda x: x * 5.0, x)
    one, other = files(store)
    for path, source in ((one, other.read_bytes()), (other, one.read_bytes())):
        path.write_bytes(source)
    assert outcome(lambda x: x + 1.0, x)[0].numpy().tolist() == [2.0, 3.0]
    assert outcome(lambda x: x * 5.0, x)[0].numpy().tolist() == [5.0, 10.0]


def test_a_file_from_another_store_does_not_count(store: Path, tmp_path: Path):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    (path,) = files(store)
    other = tmp_path / "other"
    with hf.config.cache(other):
        outcome(lambda x: x + 2.0, x)
        (other / path.name).write_bytes(path.read_bytes())
        assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]


@pytest.mark.parametrize("key", [b"", b"short", None])
def test_a_broken_key_makes_all_files_new(store: Path, key: bytes | None):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    (store / "key").unlink()
    if key is not None:
        (store / "key").write_bytes(key)
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    assert outcome(lambda x: x + 1.0, x)[1] == ["loaded"]
    assert len((store / "key").read_bytes()) == 32
    assert stat.S_IMODE((store / "key").stat().st_mode) == 0o600


def test_a_key_that_others_could_read_is_replaced(store: Path):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    before = (store / "key").read_bytes()
    (store / "key").chmod(0o644)
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    assert (store / "key").read_bytes() != before


@pytest.mark.parametrize("fault", ["world", "group", "link", "file", "owner"])
def test_a_directory_that_others_can_write_is_not_used(
    store: Path, tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    if fault in ("world", "group"):
        store.chmod(0o707 if fault == "world" else 0o770)
    elif fault == "link":
        store.rename(tmp_path / "elsewhere")
        store.symlink_to(tmp_path / "elsewhere")
    elif fault == "file":
        store.rename(tmp_path / "elsewhere")
        store.write_bytes(b"")
    else:
        monkeypatch.setattr("os.geteuid", lambda: 4321)
    with pytest.warns(hf.CacheWarning, match=str(store)) as caught:
        result, did = outcome(lambda x: x + 1.0, x)
    assert did == ["not stored: the directory cannot be used"]
    assert result.numpy().tolist() == [2.0, 3.0]
    assert len(caught) == 1
    assert re.search("[Cc]hoose another directory", str(caught[0].message))
    outcome(lambda x: x + 1.0, x)  # it is said once


@pytest.mark.parametrize("fault", ["link", "writable", "pipe"])
def test_a_file_that_others_could_have_put_there_is_not_read(store: Path, tmp_path: Path, fault: str):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    (path,) = files(store)
    if fault == "link":
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
    elif fault == "writable":
        path.chmod(0o666)
    else:
        path.unlink()
        os.mkfifo(path)
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    assert outcome(lambda x: x + 1.0, x)[1] == ["loaded"]


def test_a_machine_that_refuses_what_it_compiled(store: Path, monkeypatch: pytest.MonkeyPatch):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)

    def refuse(*args: Any) -> Any:
        raise RuntimeError("target machine features differ")

    monkeypatch.setattr(stored_programs, "load_executable", refuse)
    with pytest.warns(hf.CacheWarning, match="target machine features differ"):
        result, _ = outcome(lambda x: x + 1.0, x)
    assert result.numpy().tolist() == [2.0, 3.0]
    assert outcome(lambda x: x + 1.0, x)[1] == ["off: this jaxlib cannot load what it saved"]


def test_one_file_that_does_not_load_is_made_again(store: Path, monkeypatch: pytest.MonkeyPatch):
    x = hf.asarray([1.0, 2.0])
    outcome(lambda x: x + 1.0, x)
    load, calls = stored_programs.load_executable, []

    def refuse_first(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 1:
            raise RuntimeError("no")
        return load(*args)

    monkeypatch.setattr(stored_programs, "load_executable", refuse_first)
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]
    assert outcome(lambda x: x + 1.0, x)[1] == ["loaded"]


# -- disks --------------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full(store: Path):
    """A limit of the size of files stands for it: the write fails in its middle."""
    x = hf.asarray([1.0, 2.0])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.warns(hf.CacheWarning, match="Free space or choose another directory"):
            result, did = outcome(lambda x: x + 1.0, x)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert did == ["not stored: the directory cannot be used"]
    assert result.numpy().tolist() == [2.0, 3.0]
    assert [path.name for path in store.iterdir()] == ["key"]
    assert outcome(lambda x: x + 1.0, x)[1] == ["stored"]


def test_one_warning_for_any_number_of_writes_that_fail(store: Path, monkeypatch: pytest.MonkeyPatch):
    def closed(opened: int, name: str, data: bytes, **options: Any) -> None:
        raise PermissionError(13, "Permission denied", f"writing-{next(count)}")

    count = itertools.count()
    monkeypatch.setattr(directory, "_write", closed)
    with pytest.warns(hf.CacheWarning, match="nothing is stored: Permission denied"):
        outcome(lambda x: x + 1.0, hf.asarray([1.0, 2.0]))
    outcome(lambda x: x + 2.0, hf.asarray([1.0, 2.0]))  # warnings are errors here
    assert next(count) == 2


def test_a_directory_that_cannot_be_made(store: Path, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"")
    with hf.config.cache(tmp_path / "file" / "store"):
        with pytest.warns(hf.CacheWarning, match="choose another directory"):
            assert outcome(lambda x: x + 1.0, hf.asarray(1.0))[1] == ["not stored: the directory cannot be used"]
        assert outcome(lambda x: x + 1.0, hf.asarray(1.0))[0].item() == 2.0


def test_what_was_used_longest_ago_makes_room(tmp_path: Path):
    directory = Directory(tmp_path / "d")
    now = time.time()
    for index in range(5):
        directory.write(f"n{index}", bytes(1000), 100_000)
        os.utime(tmp_path / "d" / f"n{index}.xla", (now + index - 100,) * 2)
    assert directory.read("n0") == bytes(1000)  # used now
    directory.write("n5", bytes(1000), 5000)
    assert {path.stem for path in files(tmp_path / "d")} == {"n0", "n4", "n5"}
    directory.write("n6", bytes(6000), 5000)  # larger than all: not written
    assert directory.read("n6") is None
    assert directory.use().size <= 5000


def test_what_a_wrong_clock_dated_makes_room_first(tmp_path: Path):
    directory = Directory(tmp_path / "d")
    for index in range(4):
        directory.write(f"n{index}", bytes(1000), 100_000)
        os.utime(tmp_path / "d" / f"n{index}.xla", (4e9, 4e9))
    for index in range(4, 8):
        directory.write(f"n{index}", bytes(1000), 5000)
        assert directory.use().size <= 5000
        assert directory.read(f"n{index}") == bytes(1000)


def test_what_a_killed_writer_left_is_removed(tmp_path: Path):
    directory = Directory(tmp_path / "d")
    directory.write("a", b"1", 1000)
    left = tmp_path / "d" / "writing-1-abc"
    left.write_bytes(bytes(10))
    directory.write("b", b"1", 1000)
    assert left.exists()  # somebody may be writing it
    os.utime(left, (0, 0))
    directory.write("c", b"1", 1000)
    assert not left.exists()


def test_clearing(tmp_path: Path):
    directory = Directory(tmp_path / "d")
    assert directory.clear() == (0, 0, 0)
    directory.write("a", b"1", 1000)
    directory.count_hit()
    (tmp_path / "d" / "mine.txt").write_text("not the store's")
    assert directory.clear() == (1, len(MAGIC) + 33, 1)
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["mine.txt"]
    assert directory.read("a") is None
    (tmp_path / "d").chmod(0o777)
    with pytest.raises(Unsafe, match="can be written by others"):
        directory.clear()


# -- where --------------------------------------------------------------------------------------------------------


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv("HYBRIDFLOW_CACHE_DIR")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert place() == (tmp_path / "hybridflow", 2 << 30, "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    assert place().path == tmp_path / "home" / ".cache" / "hybridflow"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert place().path == tmp_path / "home" / "Library" / "Caches" / "hybridflow"
    monkeypatch.setenv("HYBRIDFLOW_CACHE_DIR", "~/mine")
    monkeypatch.setenv("HYBRIDFLOW_CACHE_BYTES", "1000")
    assert place() == (tmp_path / "home" / "mine", 1000, "")
    with hf.config.cache(tmp_path, max_bytes=5):
        assert place() == (tmp_path, 5, "")
        with hf.config.cache(False):
            assert place() == (None, 0, "hf.config.cache(False)")
        assert place().path == tmp_path
    monkeypatch.setenv("HYBRIDFLOW_CACHE_BYTES", "1.5 GB")
    assert place().most == 1_500_000_000
    monkeypatch.setenv("HYBRIDFLOW_CACHE_BYTES", "plenty")
    with pytest.warns(hf.CacheWarning, match="HYBRIDFLOW_CACHE_BYTES=plenty is no number of bytes"):
        assert hf.compile(lambda x: x + 1)(hf.asarray(1.0)).item() == 2  # the call is not what is wrong
    assert place().most == 2 << 30  # and it is said once
    monkeypatch.setenv("HYBRIDFLOW_CACHE_DIR", "Off")
    assert place() == (None, 0, "HYBRIDFLOW_CACHE_DIR=Off")


def test_a_relative_directory_where_there_is_no_current_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HYBRIDFLOW_CACHE_DIR", "mine")
    monkeypatch.chdir(tmp_path)
    assert place().path == tmp_path / "mine"
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert place() == (None, 0, "HYBRIDFLOW_CACHE_DIR=mine is in the current directory, which was removed")


REPLACED = """
    import sys
    from pathlib import Path
    import hybridflow as hf
    from hybridflow.xla.store import stored_programs
    stored_programs._WORTH_KEEPING = 0
    if sys.argv[1] == "replaced":
        path = Path(hf.__file__).parent / "ops" / "nn" / "softmax.py"
        path.write_text(path.read_text(encoding="utf-8") + "# another version\\n")
    f = hf.compile(hf.nn.softmax)
    f(hf.asarray([1.0, 2.0]))
    print(*f.explain()[0].store)
"""


def test_a_package_that_was_replaced_since_it_was_loaded(tmp_path: Path):
    """Else what the old code made would have the new code's key."""
    shutil.copytree(Path(hf.__file__).parent, tmp_path / "hybridflow", ignore=shutil.ignore_patterns("__pycache__"))
    environment = {
        **os.environ, "HYBRIDFLOW_CACHE_DIR": str(tmp_path / "c"), "PYTHONPATH": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def run(how: str) -> str:
        code = [sys.executable, "-c", textwrap.dedent(REPLACED), how]
        return subprocess.run(code, env=environment, cwd=tmp_path, text=True, capture_output=True, check=True).stdout

    changed = "off: by their files' times, hybridflow or jaxlib was changed after this process loaded it\n"
    assert run("replaced") == changed
    assert run("as it is") == "stored\n"


def test_builds_of_one_version_of_jaxlib_have_other_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    here = environment.installation.__wrapped__()
    for path in Path(environment.jaxlib.__file__).parent.glob("*.so"):
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(environment.jaxlib, "__file__", str(tmp_path / "__init__.py"))
    assert environment.installation.__wrapped__() == here
    (tmp_path / "one.so").write_bytes(b"built with other options")
    assert environment.installation.__wrapped__() != here


def test_wrong_arguments():
    with pytest.raises(TypeError, match="where is a directory, True or False"):
        hf.config.cache(3)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="max_bytes=-1"):
        hf.config.cache(max_bytes=-1)


def test_off_means_that_nothing_is_written(store: Path):
    with hf.config.cache(False):
        assert outcome(lambda x: x + 1.0, hf.asarray(1.0))[1] == ["off: hf.config.cache(False)"]
    assert not store.exists()


def test_what_compiles_in_no_time_is_not_stored(store: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 1e9)
    assert outcome(lambda x: x + 1.0, hf.asarray(1.0))[1][0].startswith("not stored: made in less than")
    assert not store.exists()


# -- many processes -----------------------------------------------------------------------------------------------

MANY = """
    import sys, time, warnings
    warnings.simplefilter("error")
    import numpy as np, hybridflow as hf
    from hybridflow.xla.store import ahead, stored_programs
    stored_programs._WORTH_KEEPING = 0
    x = np.arange(4, dtype=np.float32)
    while time.time() < float(sys.argv[1]):
        pass
    for factor in range(3):
        for _ in range(2):
            f = hf.compile(lambda x: x * float(factor) + hf.exp(x * 0.0), autograph=False, static_argnames=())
            assert f(x).numpy().tolist() == [i * factor + 1.0 for i in range(4)], factor
    print("right")
"""


def test_eight_processes_at_once(tmp_path: Path):
    environment = {**os.environ, "HYBRIDFLOW_CACHE_DIR": str(tmp_path / "c"), "HYBRIDFLOW_CACHE_BYTES": "60000"}
    start = str(time.time() + 3.0)
    many = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(MANY), start], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for _ in range(8)
    ]
    for one in many:
        out, err = one.communicate(timeout=100)
        assert (out, err) == ("right\n", "")
    left = {path.name for path in (tmp_path / "c").iterdir() if not path.name.endswith(".xla")}
    assert left <= {"key", "hits"}


def kill_writers(path: Path, times: int, rng: np.random.Generator) -> int:
    """Kill processes that write at random moments, and return how often what was read was whole.

    The long proof, from the folder of this file: ``python -c "import test_store; test_store.prove()"``.
    """
    directory = Directory(path)
    body = {name: bytes([ord(name)]) * 3_000_000 for name in "abc"}
    whole = 0
    start = time.perf_counter()
    directory.write("z", body["a"], 7_000_000)
    took = time.perf_counter() - start
    for turn in range(times):
        written, tell = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                while True:
                    for name, data in body.items():
                        directory.write(name, data, 7_000_000)
                        os.write(tell, b".")
            finally:
                os._exit(1)
        os.close(tell)
        if turn % 2:  # a child may start late on a busy machine: every other one has time for a whole file
            os.read(written, 1)
        time.sleep(float(rng.uniform(0.0, max(0.02, 5 * took))))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(written)
        for name, data in body.items():
            found = directory.read(name)
            assert found in (None, data)
            whole += found is not None
        directory.write("z", b"z", 7_000_000)
        assert directory.read("z") == b"z"
    return whole


def test_writers_that_are_killed(tmp_path: Path, rng: np.random.Generator):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking where jax has threads: the child only writes
        warnings.simplefilter("ignore", RuntimeWarning)
        assert kill_writers(tmp_path / "d", 12, rng) > 0


def prove(times: int = 200) -> None:
    """Kill many writers."""
    with tempfile.TemporaryDirectory() as path:
        whole = kill_writers(Path(path) / "d", times, np.random.default_rng(0))
    print(f"{times} writers killed; {whole} of {3 * times} reads were whole, none was wrong")


# -- the command line ---------------------------------------------------------------------------------------------


def test_the_command_line_shows_and_clears_it(store: Path, capsys: pytest.CaptureFixture[str]):
    for _ in range(2):
        outcome(lambda x: x + 1.0, hf.asarray(1.0))
    assert main(["cache"]) == 0
    shown = capsys.readouterr().out
    assert "1 executables" in shown
    assert "1 times" in shown
    assert main(["cache", "clear"]) == 0
    assert "Removed 1 executables" in capsys.readouterr().out
    assert not files(store)
    store.chmod(0o777)
    assert main(["cache"]) == 0
    assert "not used" in capsys.readouterr().out
    assert main(["cache", "clear"]) == 2
    assert "can be written by others" in capsys.readouterr().err
    with hf.config.cache(False):
        assert main(["cache"]) == 0
        assert "hf.config.cache(False)" in capsys.readouterr().out

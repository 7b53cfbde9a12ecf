"""Large graphs as several programs: what is cut, what a call gives away, and the same results as one program's."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np
import pytest
from benchmarks.networks import NETWORKS, Draw, OurStep
from pipelines import use_limits

import hybridflow as hf
from hybridflow.core.variable import WRITES
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.rewrite import count_nodes
from hybridflow.xla import chain, pieces
from hybridflow.xla.chain import Chain
from hybridflow.xla.executable import Executable, compile_graph
from hybridflow.xla.store import ahead, stored_programs

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="other backends inline repeated parts")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Find repeats in small graphs, and cut those."""
    use_limits(monkeypatch, outline={"nodes": 0})
    monkeypatch.setattr(pieces, "SECONDS", 0.0)
    monkeypatch.setattr(pieces, "GAIN", 0)
    monkeypatch.setattr(chain, "MUCH_MORE", 1 << 30)


def model(name: str, layers: int = 6) -> OurStep:
    return OurStep(NETWORKS[name], *NETWORKS[name].make(Draw(smoke=True), layers))


def executable(made: OurStep) -> Executable:
    return made.compiled.lower(made.x).executable


def trained(name: str) -> tuple[list[Any], OurStep]:
    """Return what three steps of a network compute, and the network."""
    made = model(name)
    losses = [made.step().numpy() for _ in range(3)]
    return [*losses, *[one.numpy() for one in made.state()]], made


@pytest.mark.parametrize("name", NETWORKS)
def test_programs_one_by_one_compute_what_one_computes(small: None, monkeypatch: pytest.MonkeyPatch, name: str):
    found, made = trained(name)
    monkeypatch.setattr(pieces, "GAIN", 1 << 30)
    expected, whole = trained(name)
    assert not executable(whole).parts
    assert bool(executable(made).parts) == (name not in ("lenet", "unet", "resnet"))  # convolutions are not outlined
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("batch", "cut"), [(64, True), (1, False)])
def test_large_gradients_do_not_wait_for_the_last_programs(
    small: None, monkeypatch: pytest.MonkeyPatch, batch: int, cut: bool
):
    """In pieces all of them are there before the first update: of a batch of 1, eight times the activations."""
    monkeypatch.setattr(chain, "MUCH_MORE", 1.1)
    weights = [hf.Variable(np.eye(8, dtype=np.float32) * 0.5) for _ in range(8)]

    @hf.compile
    def step(x: Any) -> None:
        with hf.GradientTape() as tape:
            y = x
            for w in weights:
                y = hf.tanh(y @ w)
            loss = hf.sum(y)
        for w, g in zip(weights, tape.gradient(loss, weights), strict=True):
            w.assign_sub(g * 0.1)

    made = step.lower(hf.asarray(np.ones((batch, 8), np.float32))).executable
    assert bool(made.parts) == cut
    assert len(made.donated) == len(weights)


def repeated(x: Any) -> Any:
    for number in range(8):
        x = hf.tanh(x @ x.mT + number * 0.1) @ x * 0.5 - hf.cos(x) * hf.exp(-x * x)
        x = x / (1.0 + hf.sum(hf.abs(x), axis=-1, keepdims=True)) + hf.sin(x)
    return x, hf.sum(x)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("host", [True, False])
def test_calls_take_arrays_of_numpy_and_wide_ones(small: None, dtype: Any, host: bool):
    value = np.linspace(-1, 1, 16, dtype=dtype).reshape(4, 4)
    compiled = hf.compile(repeated)
    x = value if host else hf.asarray(value)
    for _ in range(2):
        for one, other in zip(compiled(x), repeated(hf.asarray(value)), strict=True):
            assert one.dtype == other.dtype == dtype
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4 if dtype == np.float32 else 1e-12)
    assert compiled.lower(x).executable.parts


def test_open_sizes_have_programs_of_their_own(small: None):
    compiled = hf.compile(repeated, dynamic=True, sizes="exact")
    for rows in (3, 5, 6):
        x = hf.asarray(np.linspace(-1, 1, rows * 4, dtype=np.float32).reshape(rows, 4))
        for one, other in zip(compiled(x), repeated(x), strict=True):
            np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-4)
        assert compiled.lower(x).executable.parts
    assert [len(trace.executables) for trace in compiled.explain()] == [1, 2]


def test_every_node_is_in_one_piece(small: None):
    graph = model("pre_norm").compiled.graph(hf.asarray(model("pre_norm").x))
    found = pieces.cut(graph, {})
    assert found is not None
    one = {node for node in graph.nodes if node.op.name == "outlined"}
    between = Counter(n.op.name for piece in found for n in piece.graph.nodes if piece.graph not in called(one))
    assert sum(piece.graph in called(one) for piece in found) == len(one)
    expected = Counter(n.op.name for n in graph.nodes if n not in one)
    for name, count in expected.items():
        assert between[name] >= count if name == "constant" else between[name] == count
    made = {(node, 0) for node in graph.inputs}
    for piece in found:
        assert made.issuperset(piece.reads)
        made.update(piece.makes)
    assert made.issuperset(graph.outputs)


def called(calls: set[Any]) -> set[Graph]:
    return {node.attrs["graph"] for node in calls}


def test_graphs_stay_one_program_if_xla_would_compile_as_much_in_pieces(
    small: None, monkeypatch: pytest.MonkeyPatch
):
    made = model("pre_norm")
    graph = made.compiled.graph(made.x)
    found = pieces.cut(graph, {})
    assert found is not None
    different = sum(count_nodes(one) for one in {piece.graph for piece in found})
    gain = count_nodes(graph) // different
    assert gain > 1
    monkeypatch.setattr(pieces, "GAIN", gain)
    assert pieces.cut(graph, {}) is not None
    monkeypatch.setattr(pieces, "GAIN", gain + 1)
    assert pieces.cut(graph, {}) is None


def test_a_graph_without_calls_is_one_program(small: None):
    assert pieces.cut(hf.compile(lambda x: hf.exp(x) * 2.0).graph(hf.asarray([1.0])), {}) is None


def test_short_calls_in_a_row_are_one_piece(small: None, monkeypatch: pytest.MonkeyPatch):
    graph = model("pre_norm", 7).compiled.graph(hf.asarray(model("pre_norm", 7).x))
    monkeypatch.setattr(pieces, "_calls_per_piece", lambda graph, sizes: 3)
    found = pieces.cut(graph, {})
    assert found is not None
    forward = [[node.op.name for node in piece.graph.nodes if node.op.name != "constant"] for piece in found[:2]]
    assert forward == [["outlined"] * 3] * 2
    assert found[0].graph is found[1].graph


def test_calls_that_compute_nothing_are_many_in_a_piece():
    graph = hf.compile(lambda x: hf.reshape(x, (4,))).graph(hf.asarray([[1.0, 2.0], [3.0, 4.0]]))
    assert pieces._calls_per_piece(graph, {}) > 1000


@pytest.mark.parametrize("together", [2, 3])
def test_several_calls_in_a_program_compute_the_same(small: None, monkeypatch: pytest.MonkeyPatch, together: int):
    monkeypatch.setattr(pieces, "_calls_per_piece", lambda graph, sizes: together)
    found, made = trained("gated")
    monkeypatch.setattr(pieces, "GAIN", 1 << 30)
    expected, _ = trained("gated")
    assert len(executable(made).parts) > 2
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_what_an_input_is_handed_on_as_stays_one_program(small: None):
    def handed_on(x: Any) -> Any:
        return *repeated(x), x

    x = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)
    compiled = hf.compile(handed_on)
    result = compiled(x)[2]
    assert not compiled.lower(x).executable.parts
    x[0, 0] = 7
    assert result.numpy()[0, 0] == -1


def test_python_functions_are_called_in_one_program(small: None, capsys: pytest.CaptureFixture[str]):
    def noisy(x: Any) -> Any:
        y, total = repeated(x)
        hf.print("total", total)
        return y

    compiled = hf.compile(noisy)
    x = hf.asarray(np.eye(4, dtype=np.float32))
    compiled(x)
    assert "total" in capsys.readouterr().out
    assert not compiled.lower(x).executable.parts


# -- giving buffers away ------------------------------------------------------------------------------------------


def test_updates_take_over_the_old_values(small: None):
    made = model("gated")
    made.step()
    found = executable(made)
    before = [cast(Any, variable._value).unsafe_buffer_pointer() for variable in made.variables]
    made.step()
    assert [cast(Any, variable._value).unsafe_buffer_pointer() for variable in made.variables] == before
    assert len(found.donated) == len(before)
    (record,) = made.compiled.explain()[0].executables
    assert len(record.donated) == len(before)


def test_a_value_that_is_read_later_is_not_taken_over(small: None):
    weights = [hf.Variable(np.eye(4, dtype=np.float32) * (1 + i / 10)) for i in range(8)]

    def step(x: Any) -> Any:
        for weight in weights:
            x = hf.tanh(x @ weight + x) * hf.exp(-x * x) + hf.cos(x) * hf.sin(x * 2) - hf.abs(x) / (2 + hf.square(x))
            weight.assign(weight * 0.5 + hf.sum(x))
        for weight in weights:  # what the loop above made is read here
            x = x + weight
        return x

    x = hf.asarray(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4))
    compiled = hf.compile(step)
    start = [weight.numpy() for weight in weights]
    expected = [step(x).numpy() for _ in range(2)]
    after = [weight.numpy() for weight in weights]
    for weight, value in zip(weights, start, strict=True):
        weight.assign(value)
    for value in expected:
        np.testing.assert_allclose(compiled(x).numpy(), value, rtol=1e-4, atol=1e-6)
    for weight, value in zip(weights, after, strict=True):
        np.testing.assert_allclose(weight.numpy(), value, rtol=1e-4, atol=1e-6)
    assert compiled.lower(x).executable.parts


def test_a_value_that_two_updates_read_is_not_taken_over(small: None):
    weights = [hf.Variable(np.eye(4, dtype=np.float32) * (1 + i / 10)) for i in range(8)]

    def step(x: Any) -> Any:
        news = [hf.tanh(one @ x) * 0.5 + hf.cos(two) for two, one in pairwise(weights)]
        for weight, new in zip(weights, news, strict=False):
            weight.assign(new)

    x = hf.asarray(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4))
    compiled = hf.compile(step)
    found: list[list[Any]] = []
    for function in (compiled, step):
        for i, weight in enumerate(weights):
            weight.assign(np.eye(4, dtype=np.float32) * (1 + i / 10))
        for _ in range(3):
            function(x)
        found.append([weight.numpy() for weight in weights])
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6)
    assert compiled.lower(x).executable.parts


@pytest.mark.parametrize("at", [0, 3, -1])
def test_an_interrupted_call_has_changed_nothing(small: None, monkeypatch: pytest.MonkeyPatch, at: int):
    made, other = model("gated"), model("gated")
    for one in (made, other):
        one.step()
    found = executable(made).compiled
    assert isinstance(found, Chain)
    run = found._runs[at]
    job = chain._Run.job

    def interrupted(self: Any, values: list[Any]) -> Any:
        if self is run:
            raise KeyboardInterrupt
        return job(self, values)

    with monkeypatch.context() as planted:
        planted.setattr(chain._Run, "job", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made.step()
    for one, same in zip(made.state(), other.state(), strict=True):
        np.testing.assert_array_equal(one, same)
    np.testing.assert_array_equal(made.step(), other.step())


@pytest.mark.parametrize("several", [True, False])
def test_an_interrupt_at_any_point_leaves_a_whole_step_or_none(
    small: None, monkeypatch: pytest.MonkeyPatch, several: bool
):
    """Python raises where a function begins and behind a call, but not between a `with` block and leaving it."""
    if not several:
        monkeypatch.setattr(pieces, "GAIN", 1 << 30)
    made = model("gated")

    def step(at: int = -1) -> bool:
        moments = itertools.count()

        def interrupt(frame: Any, event: str, _: Any) -> None:
            if event in ("call", "c_return") and frame.f_code is not step.__code__ and next(moments) == at:
                raise KeyboardInterrupt

        sys.setprofile(interrupt)
        try:
            made.compiled(made.x)
        except KeyboardInterrupt:
            return False
        finally:
            sys.setprofile(None)
        return True

    def state() -> list[Any]:
        return [one.numpy().copy() for one in made.state()]

    starts = state()
    for _ in range(2):  # the second call goes the short way
        step()
        steps = [starts, state()]
        for variable, value in zip(made.variables, starts, strict=True):
            variable.assign(value)
    assert bool(executable(made).parts) == several
    left: Counter[int] = Counter()
    for at in itertools.count():
        done = step(at)
        now = state()
        (which,) = [n for n, one in enumerate(steps) if all(map(np.array_equal, now, one))]
        for variable, value in zip(made.variables, starts, strict=True):
            variable.assign(value)
        if done:
            break
        left[which] += 1
    assert min(left[0], left[1]) > 3
    with ThreadPoolExecutor(1) as other:
        assert other.submit(_is_free, WRITES).result()


def _is_free(lock: Any) -> bool:
    """Whether a thread that does not hold a lock can have it."""
    found = lock.acquire(timeout=5)
    if found:
        lock.release()
    return found


def test_threads_run_one_chain(small: None):
    compiled = hf.compile(repeated)
    inputs = [hf.asarray(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4) * k) for k in range(1, 5)]
    expected = [compiled(x)[0].numpy() for x in inputs]
    found: dict[int, list[Any]] = {}

    def work(k: int) -> None:
        found[k] = [compiled(inputs[k])[0].numpy() for _ in range(10)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k, results in found.items():
        for result in results:
            np.testing.assert_array_equal(result, expected[k])


# -- what is shown ------------------------------------------------------------------------------------------------


def test_texts_and_figures_are_of_all_programs(small: None, monkeypatch: pytest.MonkeyPatch):
    made = model("gated")
    made.step()
    found = executable(made)
    text = made.compiled.lower(made.x).as_text("hlo")
    assert text.count("HloModule") == len(found.parts) >= 3
    assert "// program 1, run 6x" in text
    text = made.compiled.lower(made.x).as_text("stablehlo")
    assert text.count("module @") == len(found.parts)
    assert "// program 1, run 6x" in text
    explained = str(made.compiled.explain())
    assert f"programs: {len(found.parts)}, cut at the calls of outlined parts; run" in explained
    assert "program 1: " in " ".join(found.fusions())
    monkeypatch.setattr(pieces, "GAIN", 1 << 30)
    whole = model("gated")
    whole.step()
    ours, one = (executable(each).compiled.memory_analysis() for each in (made, whole))
    assert ours.argument_size_in_bytes == pytest.approx(one.argument_size_in_bytes, rel=0.1)
    assert ours.output_size_in_bytes == pytest.approx(one.output_size_in_bytes, rel=0.1)
    assert ours.alias_size_in_bytes == pytest.approx(one.alias_size_in_bytes, rel=0.1)
    assert 0.7 < ours.temp_size_in_bytes / one.temp_size_in_bytes < 1.4


def test_a_profile_names_the_nodes_of_one_program(small: None):
    made = model("mlp")
    made.step()
    with hf.profile() as profile:
        made.step()
    assert executable(made).parts
    assert profile.calls


def test_programs_are_found_in_the_store(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stored_programs, "_WORTH_KEEPING", 0.0)
    monkeypatch.setattr(ahead, "_LOADING", {})
    with hf.config.cache(tmp_path / "store"):
        first, stored = trained("gated")
        again, loaded = trained("gated")
        assert [one.compiled.explain()[0].store for one in (stored, loaded)] == [["stored"], ["loaded"]]
        assert "loaded from the store on disk: 1 of 1" in str(loaded.compiled.explain())
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, other)


def test_gradients_of_a_recorded_call(small: None):
    x = hf.Variable(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4))
    compiled = hf.compile(repeated)
    gradients: list[Any] = []
    for function in (compiled, repeated):
        with hf.GradientTape() as tape:
            y, total = function(x)
            loss = hf.sum(y * y) + total
        gradients.append(tape.gradient(loss, x).numpy())
    np.testing.assert_allclose(*gradients, rtol=1e-3, atol=1e-5)


def test_a_graph_runs_by_itself(small: None):
    x = hf.asarray(np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4))
    graph = hf.compile(repeated).graph(x)
    made = compile_graph(graph, sizes={})
    np.testing.assert_allclose(np.asarray(made.call(x.numpy())[0]), repeated(x)[0].numpy(), rtol=1e-4)


def irregular(length: int) -> Any:
    """Return a step of a long chain in which no part repeats, with values that live long, and an assigned Variable."""
    w = hf.Variable(np.eye(4, dtype=np.float32) * 0.9)
    chosen = np.random.default_rng(0).integers(0, 4, length)

    def step(x: Any) -> Any:
        before = x
        for number, kind in enumerate(chosen):
            x = (hf.sin(x), x @ w, x * 0.5 + before, hf.tanh(x) - 0.01 * number)[kind]
            before = x if number % 9 == 0 else before
        w.assign_sub(0.01 * x)
        return x, hf.sum(before)

    def slope(x: Any) -> Any:
        with hf.GradientTape() as tape:
            loss = hf.sum(step(x)[0])
        return loss, tape.gradient(loss, w)

    return w, step, slope


@pytest.mark.parametrize("which", [1, 2], ids=["step", "gradient"])
def test_a_graph_that_is_too_long_is_several_programs(monkeypatch: pytest.MonkeyPatch, which: int):
    monkeypatch.setattr(pieces, "LONGEST", 40)
    monkeypatch.setattr(pieces, "LENGTH", 9)
    x, found = hf.asarray(np.random.default_rng(1).normal(size=(4, 4)).astype(np.float32)), []
    for wrap in (lambda f: f, hf.compile):
        made = irregular(60)
        run = wrap(made[which])
        for _ in range(2):
            results = hf.tree.leaves(run(x))
        found.append([*results, made[0]])
    (executable,) = run._last().executables.values()
    assert len(executable.parts) > 6
    for a, b in zip(*found, strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-5)


@pytest.mark.rest
def test_a_chain_of_twenty_thousand_operations_is_compiled():
    made = hf.compile(irregular(20_000)[1])
    assert np.isfinite(hf.tree.leaves(made(hf.ones((4, 4))))[0].numpy()).all()

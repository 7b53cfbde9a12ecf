"""`hf.compare` of several functions, several sizes and other packages; kernels, dispatch and memory."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hybridflow as hf
from hybridflow import nn
from hybridflow.analysis.compare import Comparison, Comparisons, Crossover, KernelRun, Sweep, kernels
from hybridflow.analysis.compare.sweep import crossover_of
from hybridflow.analysis.profile.events import Kernel
from hybridflow.analysis.statistics import Ratio
from hybridflow.analysis.timing import Timing
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, MissingPackageError
from hybridflow.core.op import REGISTRY
from hybridflow.nested.bounded import Engine
from hybridflow.xla.scopes import Namer


def numbers(*shape: int, seed: int = 0) -> hf.Tensor:
    return hf.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def straight(x):
    return hf.sum(hf.tanh(x) * x, axis=0)


def halves(x):
    half = x.shape[0] // 2
    return straight(x[:half]) + straight(x[half:])


def off(x):
    return straight(x) * 1.001


def in_jax(x):
    return jnp.sum(jnp.tanh(x) * x, axis=0)


def in_numpy(x):
    return np.sum(np.tanh(x) * x, axis=0)


X = numbers(8, 4)


# -- several functions --------------------------------------------------------------------------------------------


def test_several_functions_are_compared_in_one_run():
    found = hf.compare([straight, halves], X, repeats=3, agree=True)
    assert isinstance(found, Comparisons)
    assert found.names == ("straight", "halves")
    assert [type(one) for one in found] == [Comparison, Comparison]
    assert found["halves"] is found[1]
    assert found.same
    assert [parity.name for parity in found.agreements] == ["results of halves"]
    assert {len(timing.turns) for timing in found.timings().values()} == {3}
    assert "and with those of straight" in str(found)
    with pytest.raises(ArgumentError, match="there is no function 'other'"):
        found["other"]


def test_functions_that_disagree_are_told_if_that_is_asked():
    assert hf.compare([straight, off], X, repeats=1).same
    found = hf.compare([straight, off], X, repeats=1, agree=True)
    assert not found.same
    assert all(one.same for one in found)
    assert any("straight" in line and "off" in line and "float64" in line for line in found.differences())
    assert "DIFFERENT" in str(found)
    assert hf.compare([straight, off], X, repeats=1, agree=True, rtol=0.01).same


def test_a_mode_that_differs_is_told_beside_others():
    def faulty(x):
        return straight(x) * (1.001 if hf.is_tracing() else 1.0)

    found = hf.compare([straight, faulty], X, repeats=1)
    assert [one.same for one in found] == [True, False]
    assert not found.same
    assert found.differences()[0].startswith("faulty, result: at")


def test_functions_of_one_name_are_numbered():
    found = hf.compare([lambda x: x + 1, lambda x: x + 2, lambda x: x + 3], X, repeats=1)
    assert found.names == ("<lambda>", "<lambda> (2)", "<lambda> (3)")


def test_functions_start_from_the_same_state():
    v = hf.Variable(1.0, name="v")
    seen: list[float] = []

    def double():
        seen.append(v.item()) if not hf.is_tracing() else None
        v.assign(v * 2.0)

    def triple():
        v.assign(v * 3.0)

    found = hf.compare([double, triple], repeats=2)
    assert found.same
    assert v.item() == 1.0
    assert set(seen) <= {1.0, 2.0, 4.0}


@pytest.mark.parametrize("fn", [[], 3, [straight, 4], None])
def test_what_is_no_function(fn: Any):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"takes a function, or a list|list of functions is"):
        hf.compare(fn, X)


# -- sizes --------------------------------------------------------------------------------------------------------


def test_sizes_fill_open_dimensions():
    shapes: set[tuple[int, ...]] = set()

    @hf.no_convert  # what converted code changes of Python's state is taken back
    def note(shape):
        shapes.add(shape)

    def seen(x, y, k):
        note(x.shape)
        return hf.sum(x @ y) * k

    found = hf.compare(seen, hf.TensorSpec([None, 4]), hf.TensorSpec([4, None]), 2.0, sizes=[16, 4], repeats=2)
    assert isinstance(found, Sweep)
    assert found.sizes == (4, 16)
    assert shapes == {(4, 4), (16, 4)}
    assert found.same
    assert found[16].flops > found[4].flops
    assert [one.name for one in found] == ["seen", "seen"]
    with pytest.raises(ArgumentError, match=r"size 5 was not measured"):
        found[5]


def weighed(x):
    return nn.softmax(hf.mean(x, axis=0) @ x.T)


def test_programs_that_serve_several_sizes_are_judged_too(monkeypatch):
    def compared(function):
        return hf.compare(function, hf.TensorSpec([None, 4]), sizes=[4, 8, 16], repeats=1)

    found = compared(weighed)
    assert [one.parities[-1].name for one in found] == ["results of padded inputs"] * 2 + ["results"]
    assert found.same
    exact = compared(hf.compile(weighed, sizes="exact"))
    assert [len(one.parities) for one in exact] == [1, 1, 1]
    monkeypatch.setattr(Engine, "filled", lambda self, x, axis, fill: x)
    wrong = compared(weighed)
    assert [one.same for one in wrong] == [False, False, True]
    assert "size 4: result" in str(wrong)


@pytest.mark.parametrize(
    "inputs", [lambda n: (numbers(n, 4),), lambda n: {"x": numbers(n, 4)}, lambda n: numbers(n, 4)]
)
def test_a_function_makes_the_inputs_of_each_size(inputs: Any):
    found = hf.compare([straight, halves], sizes=[4, 8], inputs=inputs, repeats=1, agree=True)
    assert isinstance(found[4], Comparisons)
    assert found.same
    assert [one.name for one in found.comparisons("halves")] == ["halves", "halves"]
    assert set(found.break_even()) == {4, 8}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"sizes": []}, "different whole numbers"),
        ({"sizes": [4, 4]}, "different whole numbers"),
        ({"sizes": [0]}, "different whole numbers"),
        ({"sizes": [1.5]}, "different whole numbers"),
        ({"sizes": [4]}, "none of the arguments depends on the size"),
        ({"sizes": [4], "inputs": 3}, "inputs= is a function of the size"),
        ({"inputs": lambda n: n}, "sizes=, which is not given"),
    ],
)
def test_sizes_that_make_no_sense(given: Any, text: str):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=text):
        hf.compare(straight, **given)


def test_options_that_the_function_has_too():
    def sized(x, sizes=3, agree=False):
        return x * sizes

    for given in ({"sizes": 4}, {"agree": True}):
        with pytest.raises(ArgumentError, match=f"{next(iter(given))}= is an option of hf.compare, and a parameter"):
            hf.compare(sized, X, **given)
    settled = partial(sized, sizes=4)
    assert hf.compare(settled, X, repeats=1).same
    assert hf.compare(settled, hf.TensorSpec([None]), sizes=[2], repeats=1).same


def test_arguments_beside_inputs():
    with pytest.raises(ArgumentError, match="beside inputs="):
        hf.compare(straight, X, sizes=[4], inputs=lambda n: X)


def ratios(*values: float) -> list[Ratio]:
    return [Ratio(value, value * 0.9, value * 1.1, told=not 0.9 < value < 1.1) for value in values]


@pytest.mark.parametrize(
    ("values", "below", "at", "estimate"),
    [
        ((0.5, 2.0, 4.0), 10, 100, 10**1.5),
        ((0.5, 1.05, 4.0), 100, 1000, None),
        ((2.0, 3.0, 4.0), None, 10, None),
        ((0.2, 0.4, 0.8), 1000, None, None),
        ((2.0, 0.5, 4.0), 100, 1000, 10 ** (2 + 1 / 3)),
    ],
)
def test_the_crossover(values: Any, below: int | None, at: int | None, estimate: float | None):
    found = crossover_of([10, 100, 1000], ratios(*values))
    assert (found.below, found.at) == (below, at)
    assert found.estimate == (None if estimate is None else pytest.approx(estimate))
    assert str(below or at) in str(found).replace(",", "")
    assert found.also == ((10,) if values == (2.0, 0.5, 4.0) else ())
    assert ("it is faster at 10 too" in str(found)) == bool(found.also)


def test_a_crossover_needs_a_difference_that_is_told():
    slow = [Ratio(0.5, 0.4, 0.6, told=True), Ratio(3.0, 0.5, 9.0, told=False)]
    assert crossover_of([1, 2], slow) == Crossover(2, None, None)


# -- peers --------------------------------------------------------------------------------------------------------


def test_peers_run_in_the_same_turns_and_are_judged():
    found = hf.compare(straight, X, repeats=4, peers={"jax.jit": jax.jit(in_jax), "jax": in_jax, "numpy": in_numpy})
    assert [peer.name for peer in found.peers] == ["jax.jit", "jax", "numpy"]
    assert all(peer.parity.same and len(peer.timing.turns) == 4 and peer.first > 0 for peer in found.peers)
    assert found.same
    assert all(len(row) == 6 for row in found.rows())
    wrong = hf.compare(straight, X, repeats=1, peers={"numpy": lambda x: in_numpy(x) * 1.001})
    assert not wrong.same
    assert [parity.same for parity in wrong.parities] == [True]
    assert "straight" in wrong.differences()[0]
    assert "numpy" in wrong.differences()[0]
    assert any("DIFFERENT" in row[-1] for row in wrong.rows())


def test_gradients_of_peers_are_judged_as_results():
    def loss(x):
        return hf.sum(hf.tanh(x) * x)

    def in_jax(x):
        return jnp.sum(jnp.tanh(x) * x)

    assert hf.compare(hf.grad(loss), X, repeats=1, peers={"jax": jax.grad(in_jax)}).same
    wrong = hf.compare(hf.grad(loss), X, repeats=1, peers={"jax": jax.grad(lambda x: 1.001 * in_jax(x))})
    assert [wrong.parities[0].same, wrong.peers[0].parity.same] == [True, False]


def test_torch_is_a_peer():
    torch = pytest.importorskip("torch")
    seen: list[Any] = []

    def in_torch(pair, weight):
        seen.append(weight)
        pair["x"].add_(0.0)  # what a peer does to its arguments is no business of ours
        return {"sum": torch.sum(torch.tanh(pair["x"]) * weight, dim=0), "most": torch.argmax(weight)}

    def ours(pair, weight):
        return {"sum": hf.sum(hf.tanh(pair["x"]) * weight, axis=0), "most": hf.argmax(weight)}

    v = hf.Variable(numbers(8, 4, seed=1), name="v")
    found = hf.compare(ours, {"x": X}, v, repeats=1, peers={"torch": in_torch})
    assert found.same, found
    assert all(isinstance(one, torch.Tensor) for one in seen)
    low = hf.compare(lambda x: x * 2.0, X.astype("bfloat16"), repeats=1, peers={"torch": lambda x: x * 2.0})
    assert low.same
    trained = torch.nn.Parameter(torch.ones(4))
    assert hf.compare(lambda x: x * 1.0, X, repeats=1, peers={"torch": lambda x: x * trained}).same


@pytest.mark.parametrize(
    ("peer", "text"),
    [
        (lambda x: (in_numpy(x), x), "1 arrays of straight, 2 of numpy"),
        (lambda x: in_numpy(x)[:2], r"shape \(4,\) straight, \(2,\) numpy"),
        (lambda x: in_numpy(x).astype(np.int32), "dtype float32 straight, int32 numpy"),
    ],
)
def test_peers_of_other_results(peer: Any, text: str):
    found = hf.compare(straight, X, repeats=1, peers={"numpy": peer})
    assert not found.same
    with pytest.raises(AssertionError, match=text):
        raise AssertionError(found.verdict())


def test_a_peer_may_count_in_wider_integers_only_if_they_fit():
    found = hf.compare(lambda x: hf.argmax(x), X, repeats=1, peers={"numpy": lambda x: np.argmax(x)})
    assert found.same
    far = hf.compare(lambda x: hf.argmax(x), X, repeats=1, peers={"numpy": lambda x: np.argmax(x) + 2**33})
    assert not far.same


def test_peers_that_cannot_run(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ArgumentTypeError, match="peers= takes functions by name"):
        hf.compare(straight, X, peers=["torch", "jax"])  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="the peer 'jax' is 3, which cannot be called"):
        hf.compare(straight, X, peers={"jax": 3})  # type: ignore[dict-item]
    with pytest.raises(ArgumentError, match="'cupy' names no package"):
        hf.compare(straight, X, peers={"cupy": in_numpy})
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingPackageError, match=r"needs torch, which is not installed\n.*'hybridflow\[bench\]'"):
        hf.compare(straight, X, peers={"torch": in_numpy})


def test_jax_would_cut_wide_numbers():
    with pytest.raises(ArgumentError, match="'jax' would get float64 cut to 32 bits"):
        hf.compare(straight, X.astype("float64"), peers={"jax": in_jax})


def test_peers_over_sizes_and_beside_several_functions():
    found = hf.compare([straight, halves], hf.TensorSpec([None, 2]), sizes=[4, 8], repeats=1, peers={"numpy": in_numpy})
    assert found.same
    assert [peer.name for peer in found[4].peers] == ["numpy"]
    assert "numpy" in str(found)
    one = hf.compare(straight, hf.TensorSpec([None, 2]), sizes=[4, 8], repeats=1, peers={"numpy": in_numpy})
    assert [peer.name for peer in one[8].peers] == ["numpy"]


# -- kernels and dispatch -----------------------------------------------------------------------------------------


class Clock:
    """A clock that shows what it is set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_eager_kernels_are_told_from_dispatch(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()

    def kernel_of_3_seconds(*_: Any, **__: Any) -> None:
        clock.now += 3.0

    def python(x):
        clock.now += 100.0
        y = hf.tanh(x)
        clock.now += 100.0
        return hf.sum(y * x)

    execute = kernels.execute

    def dispatch_of_50_seconds(*args: Any) -> Any:
        clock.now += 50.0
        return execute(*args)

    monkeypatch.setattr(kernels, "time", clock)
    monkeypatch.setattr(kernels, "execute", dispatch_of_50_seconds)
    monkeypatch.setattr(kernels, "run_quietly", kernel_of_3_seconds)
    # A plain call takes 200; 9 of them would be kernels however slow the machine is otherwise.
    for slower in (1.0, 50.0):
        assert kernels.eager_kernels(lambda: python(X), lambda: None, 200 * slower) == (pytest.approx(9 * slower), 3)


def test_gradient_rules_count_as_kernels(monkeypatch: pytest.MonkeyPatch):
    clock = Clock()

    @hf.custom_gradient
    def slow(x):
        def gradient(g):
            clock.now += 7.0
            return g

        return x + 0.0, gradient

    def python(x):
        clock.now += 100.0
        return hf.grad(lambda x: hf.sum(slow(x)))(x)

    monkeypatch.setattr(kernels, "time", clock)
    found = kernels.eager_kernels(lambda: python(X), lambda: None, 107.0)
    assert found is not None
    assert found[0] == pytest.approx(7.0)


def test_operations_of_a_gradient_rule_count_once(monkeypatch: pytest.MonkeyPatch):
    clock, timer = Clock(), kernels._KernelTimer()

    class Inner:
        def run(self, node: Any, g: Any, wanted: Any) -> list[Any]:
            clock.now += 5.0
            timer.seconds += 2.0  # of operations that the rule binds
            timer.operations += 2
            return [g]

    monkeypatch.setattr(kernels, "time", clock)
    timer.seconds, timer.operations = 1.0, 3
    assert timer.engine(Inner()).run(None, X, (True,)) == [X]
    assert (timer.seconds, timer.operations) == (1.0 + 5.0, 3 + 1)


def test_what_may_have_effects_runs_once(monkeypatch: pytest.MonkeyPatch):
    runs: list[str] = []
    tanh = REGISTRY["tanh"]
    monkeypatch.setattr(kernels, "run_quietly", lambda kernel, *values, **attrs: runs.append("again"))
    for traits, count in ((tanh.traits, 1), (tanh.traits | {"effect"}, 0), (tanh.traits | {"nested"}, 0)):
        runs.clear()
        kernels._KernelTimer().bind(replace(tanh, traits=traits), (X,), {})
        assert len(runs) == count


def test_kernels_are_named_by_operations_and_lines():
    def fused(x):
        y = hf.tanh(x)
        z = y * x
        return z - 0.5

    found = hf.compare(fused, numbers(64, 64), repeats=2)
    lines = inspect.getsourcelines(fused)[1]
    (run,) = found.kernel_runs
    assert found.kernels == 1 == found.fusions
    assert run.fused == 3 == found.operations
    assert {part.split()[-1] for part in run.operations.split(" + ")} == {"tanh", "multiply", "subtract"}
    assert run.lines == tuple(f"{Path(__file__).name}:{lines + offset}" for offset in (1, 2, 3))
    assert (run.runs, run.seconds is not None) == (1, True)
    assert run.operations in str(found)


def test_kernels_of_a_loop_run_as_often_as_its_body():
    w, rows = numbers(64, 64), numbers(40, 64)

    def loop(x):
        return hf.scan(lambda c, row: (hf.tanh(c @ w + row), row), x, rows)[0]

    found = hf.compare(loop, numbers(64), repeats=1)
    if any(run.name == "call" for run in found.kernel_runs):
        pytest.skip("this jaxlib (0.12) runs the loop as one kernel, and tells nothing of its body")
    assert {run.runs for run in found.kernel_runs if "tanh" in run.operations} == {40}
    assert found.kernels < len(found.kernel_runs)  # those of the body are launched by the loop


@pytest.mark.parametrize("gradients", [False, True])
def test_operations_and_launches_are_those_of_a_profile(gradients: bool):
    def loop(x):
        with hf.max_iterations(9):
            while hf.sum(x) > 1.0:
                x = x * 0.5
        for _ in range(2):
            for row in x:
                x = hf.tanh(x @ x) * 0.5 + row * 0.01
        return hf.sum(x)

    fn, x = hf.grad(loop) if gradients else loop, hf.ones((48, 48)) / 48
    found = hf.compare(fn, x, repeats=1)
    with hf.profile() as eagerly:
        fn(x)
    compiled = hf.compile(fn)
    with hf.profile() as p:
        compiled(x)
    free = {"identity", "constant"}
    assert found.operations == sum(row.calls for row in eagerly.operations if row.name not in free) > 20
    assert found.launches == p.calls[0].kernels > found.kernels
    assert f"{found.launches:,}: {len(found.kernel_runs)} kernels, {found.fusions} of them fused" in str(found)


def test_copies_that_xla_adds_are_no_fusions():
    weights = [hf.Variable(numbers(8, 8), name=f"w{i}") for i in range(4)]

    def step(ids):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.nn.embedding(ids, weights[0]) @ weights[1] @ weights[2] @ weights[3])
        for one, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            one.assign_sub(0.1 * gradient)
        return loss

    ids = hf.asarray([1, 2, 3])
    found = hf.compare(step, ids, repeats=1)
    compiled = hf.compile(step)
    compiled(ids)
    fused = compiled.explain()[0].executables[0].fused()
    assert fused
    assert {run.name for run in found.kernel_runs if run.fused > 1} == {one.name for one in fused}
    assert any(run.operations.startswith("for ") for run in found.kernel_runs)


def test_time_in_kernels_is_a_union(monkeypatch: pytest.MonkeyPatch):
    compiled = hf.compile(straight)
    program = kernels.program_of("straight", compiled.lower(X).executable, Namer(""), None)

    def known(_: Any, calls: list[Any]) -> list[Kernel]:
        for late in calls[2:]:
            late.start, late.returned = 0, 300
        calls[0].start, calls[0].returned = 0, 200
        calls[1].start, calls[1].returned = 1000, 1100  # the quickest
        spans = [(1000, 1040), (1010, 1030), (1050, 1060), (1095, 1500)]  # one beside another, one noted late
        return [Kernel(f"k{n}", calls[1], (), a, b, b - a) for n, (a, b) in enumerate(spans)]

    monkeypatch.setattr(kernels, "read_kernels", known)
    monkeypatch.setattr(kernels, "launched", lambda program: ())
    for without, scale in ((1.0, 1.0), (50e-9, 0.5)):  # a profiled call takes 100 ns
        seconds, runs = kernels.compiled_kernels(lambda: None, lambda: None, program, without)
        assert seconds == pytest.approx(scale * 55e-9)
        assert {run.name: run.seconds for run in runs} == pytest.approx(
            {"k0": scale * 40e-9, "k1": scale * 20e-9, "k2": scale * 10e-9, "k3": scale * 405e-9}
        )


def test_a_comparison_inside_of_a_profile():
    with hf.profile():
        found = hf.compare(straight, X, repeats=1)
    assert found.same
    assert (found.eager_kernels, found.compiled_kernels) == (None, None)
    assert ("dispatch", "not known", "not known") in found.rows()
    assert found.kernel_runs == ()


def test_a_comparison_beside_jaxs_own_profiler(tmp_path: Path):
    jax.profiler.start_trace(tmp_path)
    try:
        found = hf.compare(straight, X, repeats=1)
    finally:
        jax.profiler.stop_trace()
    assert found.compiled_kernels is None
    assert [run.seconds for run in found.kernel_runs] == [None] * found.kernels
    assert "not seen" in str(found)


def test_dispatch_is_the_rest_of_the_call():
    found = hf.compare(straight, X, repeats=2)
    for timing, inside, rest in (
        (found.eager, found.eager_kernels, found.eager_dispatch),
        (found.compiled, found.compiled_kernels, found.compiled_dispatch),
    ):
        assert inside is not None
        assert rest == timing.median - inside
        assert 0 <= inside <= timing.median


# -- memory -------------------------------------------------------------------------------------------------------


def test_memory_is_what_an_independent_count_says():
    n = 1 << 18
    array = 4 * n
    found = hf.compare(lambda x: hf.tanh(x * 2.0) + 1.0, numbers(n), repeats=1)
    assert found.eager_bytes == pytest.approx(2 * array, rel=0.02)  # an operation's operand and its result
    assert found.compiled_bytes == array  # one kernel that writes the result
    found = hf.compare(lambda a, b: hf.sum(a @ b), numbers(256, 64), numbers(64, 512), repeats=1)
    assert found.eager_bytes == pytest.approx(4 * 256 * 512, rel=0.05)
    assert found.compiled_bytes == pytest.approx(4 * 256 * 512, rel=0.05)


# -- views --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def all_kinds() -> dict[str, Any]:
    peers = {"jax.jit": jax.jit(in_jax)}
    return {
        "one": hf.compare(straight, X, repeats=6, peers=peers, gradients=True),
        "several": hf.compare([straight, halves], X, repeats=6, peers=peers, agree=True),
        "sweep": hf.compare([straight, halves], hf.TensorSpec([None, 4]), sizes=[4, 8, 16], repeats=6, peers=peers),
    }


@pytest.mark.parametrize("kind", ["one", "several", "sweep"])
def test_every_kind_is_shown_and_written(kind: str, all_kinds: dict[str, Any], tmp_path: Path):
    pytest.importorskip("matplotlib")
    found = all_kinds[kind]
    text, notebook = str(found), found._repr_html_()
    for name in ("straight", "jax.jit", "SAME"):
        assert name in text
        assert name in notebook
    for line in found.findings():
        assert line in text
    found.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 1
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "http://creativecommons.org", ""
    ).replace("https://matplotlib.org", "")
    found.plot(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    found.to_json(tmp_path / "found.json")
    kept = json.loads((tmp_path / "found.json").read_bytes(), parse_constant=lambda name: pytest.fail(name))
    assert kept["same"] is True
    assert sorted(file.name for file in tmp_path.iterdir()) == ["found.json", "page.html", "plot.png"]


def test_json_has_no_infinities(tmp_path: Path):
    found = hf.compare(lambda x: x[:2] if hf.is_tracing() else x, X, repeats=1)
    found.to_json(tmp_path / "found.json")
    kept = json.loads((tmp_path / "found.json").read_bytes(), parse_constant=lambda name: pytest.fail(name))
    assert kept["parities"][0]["outputs"][0]["largest"] is None
    assert kept["speedup_interval"] is None
    assert kept["eager"]["interval"] is None


def test_brackets_and_tags_are_no_markup():
    runs = (KernelRun("k[0]", "a + b[red]", ("<f>.py:1",), 2, 1e-6, 1),)
    found = hf.compare(straight, X, repeats=1)
    changed = Comparison(**{**vars(found), "kernel_runs": runs, "name": "<b>[bold]"})
    assert "a + b[red]" in str(changed)
    assert "<b>" not in changed._repr_html_()
    assert "&lt;f&gt;.py:1" in changed._repr_html_()


def test_long_tables_are_cut_in_print_only():
    runs = tuple([KernelRun(f"kernel_{number}", "add", (), 1, 1e-6, 1) for number in range(40)])
    changed = Comparison(**{**vars(hf.compare(straight, X, repeats=1)), "kernel_runs": runs})
    assert "kernel_39" not in str(changed)
    assert "28 more" in str(changed)
    assert "kernel_39" in changed._repr_html_()


def test_progress_is_told():
    told: list[tuple[str, float]] = []
    hf.compare(straight, hf.TensorSpec([None, 2]), sizes=[2, 4], repeats=2, progress=lambda *one: told.append(one))
    parts = [part for _, part in told]
    assert parts == sorted(parts)
    assert told[-1] == ("done", 1.0)
    assert any(what.startswith("size 4: compiling straight") for what, _ in told)


def test_timings_of_a_plot_on_both_scales(tmp_path: Path):
    pytest.importorskip("matplotlib")
    from hybridflow.analysis.compare.figures import bars_figure

    near = {"f eager": Timing(1.0, 1.0, 1.0, 6, (1.0,) * 6), "f compiled": Timing(0.5, 0.5, 0.5, 1)}
    assert bars_figure("near", near).axes[0].get_xscale() == "linear"
    far = {**near, "torch": Timing(100.0, 99.0, 101.0, 6, (100.0,) * 6)}
    assert bars_figure("far", far).axes[0].get_xscale() == "log"

"""`hf.compare`, `assert_same` and what they are made of: verdicts, state, timings, reports."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.analysis.compare import Comparison, Comparisons, FirstCall, Sweep, compare, count_kernels
from hybridflow.analysis.machine import Usage, own_cores, usage
from hybridflow.analysis.parity import Parity, assert_same, check_parity, fresh_copy, with_gradients
from hybridflow.analysis.same import Judgement
from hybridflow.analysis.timing import CROWDED, Timed, Timing, format_seconds, interleave
from hybridflow.backend.files import write_text
from hybridflow.core.errors import ArgumentError, MissingPackageError, ParityError
from hybridflow.ir.costs import graph_flops


def numbers(*shape: int, seed: int = 0) -> hf.Tensor:
    return hf.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def model(x):
    return hf.sum(hf.tanh(x) * x, axis=0)


def faulty(x):
    """Differs between the modes by one part in a thousand."""
    return hf.tanh(x) * (1.001 if hf.is_tracing() else 1.0)


def needs_nothing(page: str) -> bool:
    """Whether a page refers to nothing outside of itself."""
    return not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", "href").replace('href="#', ""))


def made(**changes: Any) -> Comparison:
    """A comparison with chosen figures."""
    figures: dict[str, Any] = {
        "name": "f",
        "eager": Timing(1e-3, 0.9e-3, 1.1e-3, 5),
        "compiled": Timing(1e-4, 0.9e-4, 1.1e-4, 5),
        "eager_first": 1e-3,
        "first_call": FirstCall(0.91, 0.01, 0.01, 0.1, 0.7),
        "parities": (Parity("results", (Judgement("result", True, 0.0, 0.0, 0.0, ""),)),),
        "flops": 1000,
        "operations": 4,
        "kernels": 1,
        "eager_bytes": 2048,
        "compiled_bytes": None,
    }
    return Comparison(**{**figures, **changes})


# -- the verdict --------------------------------------------------------------------------------------------------


def test_a_function_that_is_the_same():
    found = compare(model, numbers(8, 4), repeats=3, gradients=True)
    assert found.same
    assert [parity.name for parity in found.parities] == ["results", "gradients"]
    assert [one.name for one in found.parities[1].judgements] == ["gradient of argument [0]"]
    assert str(found).endswith("SAME: eager and compiled results agree but for rounding.")


def test_a_difference_is_loud():
    found = compare(faulty, numbers(4), repeats=3)
    assert not found.same
    text = str(found)
    assert "DIFFERENT: results differ by more than rounding." in text
    assert re.search(r"result: at \[\d\]: eager .*, compiled .*, float64 .*; allowed .*; 4 of 4 elements differ", text)
    assert any("DIFFERENT" in row[2] for row in found.rows())


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: hf.sum(x > (0.0 if hf.is_tracing() else 100.0)), "eager 0, compiled 3"),
        (lambda x: x.astype("int32" if hf.is_tracing() else "float32"), "dtype float32 eager, int32 compiled"),
        (lambda x: x[:2] if hf.is_tracing() else x, "shape (3,) eager, (2,) compiled"),
        (lambda x: [x] if hf.is_tracing() else (x,), "structure PyTreeDef((*,)) eager, PyTreeDef([*]) compiled"),
        (lambda x: x / (x - x) if hf.is_tracing() else x, "compiled inf"),
    ],
)
def test_differences_of_every_kind(function: Any, text: str):
    with pytest.raises(ParityError, match=re.escape(text)):
        assert_same(function, hf.asarray([1.0, 2.0, 3.0]))


def test_a_wrong_gradient_is_found():
    @hf.custom_gradient
    def wrong(x):
        factor = 1.001 if hf.is_tracing() else 1.0
        return hf.tanh(x), lambda g: g * (1 - hf.tanh(x) ** 2) * factor

    found = compare(wrong, numbers(4), repeats=1, gradients=True)
    assert [parity.same for parity in found.parities] == [True, False]
    with pytest.raises(ParityError, match=r"gradient of argument \[0\]: at"):
        assert_same(wrong, numbers(4), gradients=True)


def test_a_wrong_assignment_is_found():
    v = hf.Variable([1.0, 2.0], name="v")

    def step():
        v.assign(v * (3.0 if hf.is_tracing() else 2.0))

    found = compare(step, repeats=1)
    assert not found.same
    assert found.parities[0].judgements[0].name == "Variable 'v'"
    assert v.numpy().tolist() == [1.0, 2.0]


def test_a_tolerance_can_be_given():
    x = numbers(4)
    assert compare(faulty, x, repeats=1, rtol=0.01).same
    assert not compare(faulty, x, repeats=1, rtol=1e-5).same
    assert compare(faulty, x, repeats=1, atol=0.1).same


def test_bad_arguments():
    with pytest.raises(ArgumentError, match="repeats=0, which is less than 1"):
        compare(model, numbers(2), repeats=0)
    with pytest.raises(ArgumentError, match="a negative tolerance: rtol=-1"):
        compare(model, numbers(2), rtol=-1)


def test_assert_same_passes_for_what_rounding_explains():
    assert_same(lambda x, y: hf.sum(x * x - y * y), numbers(64), numbers(64))
    assert_same(lambda x: hf.nn.softmax(x @ x), numbers(16, 16), gradients=True)
    assert_same(lambda x, flag: x if flag else -x, numbers(3), flag=True)


def test_control_flow_is_judged_inside_too():
    def loop(x):
        carry, ys = hf.scan(lambda c, row: (hf.tanh(c + row), c * row), hf.zeros(4), x)
        total = hf.while_loop(lambda i, t: i < 5, lambda i, t: (i + 1, t * 1.1 + carry), (0, carry), max_iterations=5)
        return hf.cond(hf.sum(x) > 0.0, lambda: total[1] * 2.0, lambda: total[1] / 3.0), ys

    assert_same(loop, numbers(6, 4), gradients=True)


def test_numbers_made_inside_a_loop_keep_their_precision():
    def loop(x, n):
        def body(carry, i):
            tenth = hf.full((4,), 0.1) * i.astype("float32")
            return hf.tanh(carry * 0.9 + tenth), carry.astype("bfloat16") * 3.0

        return hf.scan(body, x, n)

    assert_same(loop, numbers(4), hf.asarray([1, 2, 3]), gradients=True)


def test_a_fault_inside_a_loop_is_found():
    def loop(x):
        factor = 1.001 if hf.is_tracing() else 1.0
        return hf.scan(lambda c, row: (hf.tanh(c + row) * factor, c), hf.zeros(4), x)[0]

    with pytest.raises(ParityError):
        assert_same(loop, numbers(6, 4))


def test_integers_and_random_numbers_are_judged():
    hf.random.seed(3)

    def draw(n):
        return hf.random.normal((4,)) + hf.random.uniform((4,)), n * n

    assert_same(draw, hf.asarray([1, 2]))


# -- state --------------------------------------------------------------------------------------------------------


def test_variables_and_functions_are_left_as_they_were():
    v = hf.Variable(np.ones((3, 2), np.float32), name="v")

    @hf.compile
    def step(x):
        v.assign_add(x)
        return hf.sum(v)

    found = compare(step, numbers(3, 2), repeats=4)
    assert found.same
    assert v.numpy().tolist() == np.ones((3, 2)).tolist()
    assert step.trace_count == 0


def test_random_state_is_left_as_it_was():
    hf.random.seed(5)
    first = hf.random.normal((3,)).numpy()
    hf.random.seed(5)
    compare(lambda: hf.random.normal((3,)), repeats=2)
    assert np.array_equal(hf.random.normal((3,)).numpy(), first)


def test_state_survives_an_error():
    v = hf.Variable(1.0, name="v")

    def step():
        v.assign_add(1.0)
        if not hf.is_tracing():
            raise KeyError("eager only")
        return v.read()

    with pytest.raises(KeyError):
        compare(step, repeats=1)
    assert v.item() == 1.0


def test_methods_and_keywords():
    class Scale:
        def __init__(self):
            self.factor = hf.Variable(3.0, name="factor")

        @hf.compile
        def __call__(self, x, *, twice=False):
            return x * self.factor * (2.0 if twice else 1.0)

        def plain(self, x):
            return x * self.factor

    scale = Scale()
    assert compare(scale.__call__, numbers(3), repeats=1, twice=True).same
    assert compare(scale.plain, numbers(3), repeats=1, gradients=True).same
    assert fresh_copy(scale.__call__)(hf.asarray(2.0)).item() == 6.0


def test_several_calls_in_a_row():
    v = hf.Variable(np.ones(4, np.float32), name="v")

    def step(x):
        v.assign(hf.tanh(v * 1.3 + x))
        return v.read()

    calls = [((numbers(4, seed=i),), {}) for i in range(6)]
    parity = check_parity(hf.compile(step), calls, "six steps", part="Variables")
    assert parity.same
    assert [one.name for one in parity.judgements] == ["Variable 'v'"]
    assert v.numpy().tolist() == [1.0] * 4


def test_gradients_are_named():
    v = hf.Variable(2.0, name="v")
    gradients = with_gradients(lambda x, n: x * v + n)(hf.asarray(3.0), hf.asarray(1))
    assert {name: g.item() for name, g in gradients.items()} == {"gradient of argument [0]": 2.0, "gradient of v": 3.0}
    assert with_gradients(lambda n: n)(hf.asarray(1)) == {}


# -- figures ------------------------------------------------------------------------------------------------------


def test_break_even():
    assert made(first_call=FirstCall(0.9095, 0.01, 0.01, 0.1, 0.7)).break_even == 1 + 1010
    assert made(compiled=Timing(2e-3, 2e-3, 2e-3, 5)).break_even is None
    assert made(eager_first=2.0).break_even == 1
    assert ("break-even", "", "never: the compiled call is not faster") in made(
        compiled=Timing(2e-3, 2e-3, 2e-3, 5)
    ).rows()


def test_a_break_even_of_what_is_not_told_apart_is_said_to_be_one():
    found = made(first_call=FirstCall(0.9095, 0.01, 0.01, 0.1, 0.7))
    assert not found.ratio.told
    assert ("break-even", "", "1,011 calls, if faster at all") in found.rows()
    told = replace(found, eager=Timing(1e-3, 1e-3, 1e-3, 60, (1e-3,) * 60),
                   compiled=Timing(1e-4, 1e-4, 1e-4, 60, (1e-4,) * 60))
    assert told.ratio.told
    assert ("break-even", "", "1,011 calls") in told.rows()
    assert any("pays off soonest at 8, after 1,011 calls" in line for line in sweep_of(told, found).findings())
    assert not any("pays off" in line for line in sweep_of(found, found).findings())


def sweep_of(*found):
    return Sweep(tuple(8 * (at + 1) for at in range(len(found))), tuple(Comparisons((one,), (), ()) for one in found))


def test_the_table_shows_what_was_measured():
    rows = {what: (eager, compiled) for what, eager, compiled in made().rows()}
    assert rows["one call, median (95 %)"] == ("1 ms (of 5 calls)", "100 us (of 5 calls)")
    assert rows["first call"] == ("1 ms", "910 ms (trace 20 ms, lower 100 ms, XLA 700 ms)")
    assert rows["speed-up over eager (95 %)"] == ("", "10.0x (too few turns for an interval)")
    assert rows["memory of one call"] == ("2.0 KiB", "not known")
    assert rows["FLOPs"] == ("1,000 (0.001 GFLOP/s)", "1,000 (0.01 GFLOP/s)")
    assert rows["results: largest difference"] == ("", "from eager: 0, identical")


def test_unsteady_timings_are_said_to_be():
    assert made().caution() == ""
    shaky = made(eager=Timing(1e-3, 1e-4, 4e-3, 5))
    assert "Noisy: the quartiles of eager are 40.0x apart." in str(shaky)
    assert "quartiles of eager are 40.0x apart" in shaky._repr_html_()
    cores = len(own_cores())
    assert made(eager=Timing(1e-3, 1e-3, 1e-3, 5, others=0.1 * cores)).caution() == ""
    busy = made(eager=Timing(1e-3, 1e-3, 1e-3, 5, others=0.5 * cores))
    assert f"other programs took {0.5 * cores:.1f} of {cores} cores" in busy.caution()


def timing(seconds: float, processor: float, others: float) -> Timing:
    return Timing(seconds, seconds, seconds, 60, (seconds,) * 60, (processor,) * 60, others)


def test_a_speed_up_that_comes_from_other_programs_is_not_announced():
    cores = len(own_cores())
    quiet = made(eager=timing(50e-3, 0.4e-3, 0.0), compiled=timing(0.1e-3, 0.4e-3, 0.0))
    assert quiet.findings() == ["compiled is 500x faster than eager (500 to 500)."]
    for processor, said in ((0.4e-3, "no difference can be told"), (0.5e-3, "compiled is 1.25x slower")):
        busy = made(eager=timing(50e-3, 0.4e-3, cores), compiled=timing(0.1e-3, processor, cores))
        (finding,) = busy.findings()
        assert finding.startswith(
            f"compiled against eager: 500x (500 to 500) by the clock, while other programs took {cores}.0 of {cores} "
        )
        assert said in finding
        assert not busy.ratio.told
        assert tuple(
            text.rpartition(", ")[2] for what, _, text in busy.rows() if what.startswith(("speed-up", "break-even"))
        ) == ("not told apart", "if faster at all")
    told = made(eager=timing(50e-3, 0.8e-3, cores), compiled=timing(0.1e-3, 0.4e-3, cores))
    assert told.ratio.told
    assert told.findings()[0].endswith("Of the processor's time, compiled is 2.00x faster than eager (2.00 to 2.00).")
    assert told.to_dict()["by_processor"] == pytest.approx(2.0)


@pytest.mark.skipif(usage().cores is None, reason="the system does not tell what its cores do")
def test_programs_beside_are_seen():
    spin = "import time; end = time.time() + 60\nwhile time.time() < end: pass"
    programs = [subprocess.Popen([sys.executable, "-c", spin]) for _ in own_cores()]
    try:
        seen = compare(model, numbers(300, 300)).eager.others
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert seen is not None
    assert CROWDED * len(own_cores()) <= seen <= len(own_cores()) * 1.1


def test_what_other_programs_took():
    assert Usage(2.0, 1.5, 4.0).others_since(Usage(0.0, 0.5, 1.0)) == 1.0
    assert Usage(2.0, 1.5, 1.0).others_since(Usage(0.0, 0.0, 0.0)) == 0.0  # counted in coarser steps than our own
    assert Usage(0.1, 0.0, 1.0).others_since(Usage(0.0, 0.0, 0.0)) is None
    assert Usage(2.0, 0.0, None).others_since(Usage(0.0, 0.0, 0.0)) is None


def test_first_call_parts_are_measured():
    found = compare(model, numbers(4, 4), repeats=2)
    first = found.first_call
    assert min(first.trace, first.lower, first.xla) > 0
    assert first.trace + first.passes + first.lower + first.xla <= first.total
    assert found.operations == 3
    assert found.kernels >= 1
    assert found.eager_bytes > 0


def test_flops_and_kernels():
    graph = hf.compile(lambda x: x @ x).graph(numbers(8, 8))
    assert graph_flops(graph) == pytest.approx(2 * 8**3, rel=0.1)
    hlo = """HloModule m
%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  ROOT %t = f32[4]{0} tanh(%p)
}

ENTRY %main (x: f32[4]) -> (f32[4]) {
  %x = f32[4]{0} parameter(0)
  %f = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused
  ROOT %out = (f32[4]{0}) tuple(%f)
}
"""
    assert count_kernels(hlo) == 1


def test_timings_interleave_and_start_from_one_state():
    order: list[str] = []
    calls = [Timed(lambda: order.append("a")), Timed(lambda: order.append("b"))]
    timings = interleave(calls, repeats=5, before_turn=lambda: order.append("start"))
    assert [timing.calls for timing in timings] == [5, 5]
    there, back = ["start", "a", "a", "start", "b", "b"], ["start", "b", "b", "start", "a", "a"]
    assert order == ["a", "b", *there, *back, *there, *back, *there]
    assert timings[0].low <= timings[0].median <= timings[0].high
    assert len(timings[0].turns) == 5


@pytest.mark.parametrize(("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4e-6, "4 us"), (5e-8, "50 ns")])
def test_durations(seconds: float, text: str):
    assert format_seconds(seconds) == text


def test_to_dict_is_json():
    found = json.loads(json.dumps(compare(model, numbers(3, 3), repeats=2).to_dict()))
    assert found["same"] is True
    assert found["parities"][0]["outputs"][0]["name"] == "result"
    assert found["eager"]["calls"] == 2


# -- reports ------------------------------------------------------------------------------------------------------


def test_a_page_needs_no_other_file(tmp_path: Path):
    path = tmp_path / "report.html"
    made().to_html(path)
    text = path.read_text(encoding="utf-8")
    assert "10.0x" in text
    assert "<svg" in text
    assert "SAME:" in text
    assert needs_nothing(text)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_text_in_pages_is_escaped():
    assert "<lambda>" not in made(name="<lambda>")._repr_html_()


@pytest.mark.parametrize(("ending", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_plots(tmp_path: Path, ending: str, start: bytes):
    path = tmp_path / f"plot.{ending}"
    made().plot(path)
    assert path.read_bytes().startswith(start)


def test_a_plot_without_a_path_is_one_of_pyplots():
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    made().plot()
    try:
        assert [axes.get_xlabel() for axes in plt.gcf().axes] == ["calls"]
    finally:
        plt.close("all")


def test_an_interrupted_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "report.html"
    write_text(path, "old")

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_text(path, "new")
    assert path.read_text(encoding="utf-8") == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_plotting_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'hybridflow\[viz\]'"):
        made().plot(tmp_path / "plot.png")
    assert not list(tmp_path.iterdir())


def test_python_floats_among_the_arguments():
    w = hf.Variable([1.0, 2.0])

    def step(x, rate):
        w.assign_sub(rate * 0.5 * x)
        return hf.sum(w * x) * rate

    found = hf.compare(step, hf.asarray([0.3, 0.7]), 0.1, repeats=2, gradients=True)
    assert found.same
    hf.testing.assert_same(step, hf.asarray([0.3, 0.7]), 1e-3)


def test_a_compiled_function_is_compared_with_its_options():
    def square(x):
        return hf.sum(x * x)

    specs = [hf.TensorSpec([None, 3])]
    compiled = hf.compile(square, autograph=False, input_signature=specs, memory_budget="1 GiB", name="squares")
    assert hf.compare(compiled, np.ones((4, 3)), repeats=2, gradients=True).same  # float64 is cast, as it says
    copy = fresh_copy(compiled)
    assert (copy._autograph, copy._options["memory_budget"], copy._name) == (False, "1 GiB", "squares")
    assert copy.trace_count == 0


def _prints(x: Any) -> Any:
    print("seen", x)
    return x * 2


def _prints_when_it_runs(x: Any) -> Any:
    hf.print("seen", x)
    return x * 2


def _logs(x: Any) -> Any:
    logging.getLogger("seen").warning("seen")
    return x * 2


def _prints_to_the_error_stream(x: Any) -> Any:
    print("seen", x, file=sys.stderr)
    return x * 2


MEASURED: list[dict[str, Any]] = [{}, {"gradients": True}, {"sizes": [2, 3]}]


@pytest.mark.parametrize("fn", [_prints, _prints_when_it_runs, _logs, _prints_to_the_error_stream])
@pytest.mark.parametrize("options", MEASURED)
def test_what_a_function_prints_is_shown_once_per_mode(
    fn: Any, options: dict[str, Any], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    handler = logging.StreamHandler(sys.stdout)
    monkeypatch.setattr(logging.getLogger("seen"), "handlers", [handler])
    monkeypatch.setattr(logging.getLogger("seen"), "propagate", False)
    found = hf.compare(fn, hf.TensorSpec([None]) if "sizes" in options else hf.ones(2), repeats=2, **options)
    assert found.same
    assert handler.stream is sys.stdout
    said = capfd.readouterr()
    assert (said.out + said.err).count("seen") <= 2 * len(options.get("sizes", [1]))
    assert "seen" in said.out + said.err


def test_a_report_explains_the_words_of_its_tables():
    x = hf.ones(4)
    words = ("not told apart", "too few turns", "of what rounding explains")
    few, several = hf.compare(hf.sin, x, repeats=2), hf.compare([hf.sin, hf.exp], x, repeats=2)
    alike = made(eager=timing(1e-3, 1e-3, 0.0), compiled=timing(1e-3, 1e-3, 0.0))
    for found in (few, several, alike):
        for text in (str(found), found._repr_html_()):
            assert [f"{word}: " in text for word in words] == [text.count(word) > 0 for word in words]
    for found in (few, several):
        assert "too few turns: an interval needs 6" in str(found)
        assert "not told apart" not in str(found)
    assert "x, but the turns are too few to be sure." in str(few)
    assert "not told apart: the times vary" in str(alike)


def test_the_time_may_be_over_before_all_turns_are_made():
    found = hf.compare(hf.sin, hf.ones(4), seconds=1e-9)
    assert len(found.eager.turns) == len(found.compiled.turns) == 1
    assert f"The time was over after 1 of {found.eager.planned} turns: give more seconds= to tell more." in str(found)
    assert found.same
    assert "The time was over" not in hf.compare(hf.sin, hf.ones(4), repeats=6).caution()
    with pytest.raises(hf.core.errors.ArgumentError, match="seconds=0, which is not above 0"):
        hf.compare(hf.sin, hf.ones(4), seconds=0)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_terminal_shows_the_step_in_a_line_that_disappears(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr", stream)
    hf.compare(_prints, hf.ones(4), repeats=2)
    steps = stream.getvalue().split("\r\x1b[2K")
    if not stream.isatty():
        assert steps == [""]
        return
    for step in ("tracing _prints", "compiling _prints", "timing", "looking into the calls", "judging"):
        assert any(line.startswith(f"compare: {step}, ") for line in steps)
    assert steps[-1] == ""


def test_explain_shows_what_a_comparison_traced():
    class Model:
        @hf.compile
        def run(self, x: Any) -> Any:
            return x * 2

    for fn in (hf.compile(lambda x: x * 2), Model().run):
        hf.compare(fn, hf.ones(3), repeats=2)
        hf.compare([fn, hf.sin], hf.ones(4), repeats=2)
        fn(hf.ones(3))
        fn(hf.ones(4))
        records = fn.explain()
        assert [record.number for record in records] == [1, 2, 3, 4][: len(records)]
        by_compare = "hf.compare, which compiles the function anew"
        assert [record.reason for record in records][:3] == [by_compare, by_compare, "first call"]
        assert fn.trace_count == len(records) - 2
        assert by_compare in records._repr_html_()

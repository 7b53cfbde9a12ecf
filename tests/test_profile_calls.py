"""`hf.profile` of compiled calls: whose kernels are whose, nothing awaited, control flow, tapes, threads."""

import asyncio
import contextvars
import gc
import json
import re
import threading
from collections import Counter
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.analysis.profile.compiled import Call, Program
from hybridflow.analysis.profile.events import _find_ends, _in_order, covered
from hybridflow.analysis.profile.result import Axis, Span, flame_svg
from hybridflow.core.errors import TraceError
from hybridflow.core.profiling import PROFILER
from hybridflow.core.units import format_bytes

RNG = np.random.default_rng(0)
X = hf.asarray(RNG.normal(size=(64, 64)).astype(np.float32))


def calls_of(profile, **wanted):
    found = Counter()
    for row in profile.operations:
        if all(getattr(row, name) == value for name, value in wanted.items()):
            found[row.name] += row.calls
    return found


def runs_of(profile, name, **wanted):
    """How often kernels ran that compute an operation, alone or fused with others."""
    return sum(calls for row, calls in calls_of(profile, **wanted).items() if name in row.split(" + "))


def step_of(shape=(64, 64)):
    w = hf.Variable(np.full(shape, 0.01, np.float32), name="w")

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.square(hf.tanh(x @ w)))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return w, step


# -- whose kernels are whose --------------------------------------------------------------------------------------


def test_calls_that_overlap_get_their_own_kernels():
    f, g = hf.compile(lambda x: hf.tanh(x @ x) @ x, name="f"), hf.compile(lambda x: hf.max(x @ x), name="g")
    order = [f, g, g, f, f, g] * 3
    with hf.profile() as p:
        kept = [one(X) for one in order]
    assert [call.name for call in p.calls] == ["f" if one is f else "g" for one in order]
    for name in ("f", "g"):
        (count,) = {call.kernels for call in p.calls if call.name == name}
        assert count > 0
    assert sum(call.seconds for call in p.calls) <= p.seconds
    starts = {call: call.start for call in p._calls}
    assert all(kernel.start >= starts[kernel.call] - 1e4 for kernel in p._kernels)
    assert runs_of(p, "matmul") == 2 * 9 + 9
    del kept


def test_results_that_nobody_keeps_are_waited_for():
    f = hf.compile(lambda x: (x @ x) @ (x @ x))
    with hf.profile() as p:
        for _ in range(30):
            f(X)
    assert len({call.kernels for call in p.calls}) == 1
    assert p.calls[0].kernels > 0


def test_a_step_without_a_result_is_waited_for():
    w = hf.Variable(np.eye(64, dtype=np.float32))
    f = hf.compile(lambda x: w.assign(w @ x))
    with hf.profile() as p:
        for _ in range(10):
            f(X)
    assert len(p.calls) == 10
    assert all(call.kernels for call in p.calls)


def test_numbers_of_runs_are_ordered_across_the_end_of_32_bits():
    last = (1 << 31) - 2
    wrapped = [(last + i + (1 << 31)) % (1 << 32) - (1 << 31) for i in range(5)]
    assert wrapped[1] > 0 > wrapped[2]
    assert _in_order([wrapped[i] for i in (2, 2, 0, 4, 1, 3, 0)]) == wrapped


def test_a_call_has_the_time_that_no_earlier_one_took():
    def call(start, returned):
        return Call(1, Program("f", None, None, "", "cpu"), None, start, returned)  # type: ignore[arg-type]

    first, second, third, none = call(0, 10), call(12, 20), call(500, 510), call(600, 605)
    _find_ends([first, second, third, none], {first: 100.0, second: 170.0, third: 560.0})
    assert [(one.since, one.end) for one in (first, second, third, none)] == [
        (0, 100), (100, 170), (500, 560), (600, 605),
    ]


def test_variables_are_updated_in_place_as_without_a_profile():
    w, step = step_of()
    compiled = hf.compile(step)
    compiled(X)
    with hf.profile():
        compiled(X)
        before = w.current().unsafe_buffer_pointer()
        for _ in range(4):
            compiled(X)
        assert w.current().unsafe_buffer_pointer() == before


def test_what_taking_note_cost_is_stated():
    f = hf.compile(lambda x: x @ x)
    with hf.profile() as p:
        for _ in range(3):
            f(X)
    costs = [call.cost for call in p._calls]
    assert all(cost > 0 for cost in costs)
    assert p.overhead == pytest.approx(sum(costs) / 1e9)
    with hf.profile() as both:
        f(X)
        hf.tanh(X)
    eager = both.overhead - sum(call.cost for call in both._calls) / 1e9
    with hf.profile() as more:
        for _ in range(5):
            hf.tanh(X)
    assert more.overhead == pytest.approx(5 * eager)


def test_results_of_calls_are_part_of_the_memory():
    size = X.numpy().nbytes
    f = hf.compile(lambda x: x @ x)
    with hf.profile() as p:
        kept = [f(X) for _ in range(3)]
        hf.synchronize()
        del kept
        hf.tanh(X)
    assert p.calls[0].temporary_bytes == 0
    changes = [after // size for before, after in pairwise([0, *[after for _, after in p.memory]]) if after != before]
    assert changes == [1, 2, 3, 2, 1, 0, 1, 0]


def test_a_variable_that_is_updated_in_place_is_in_the_memory_once():
    w, step = step_of((64, 640))
    compiled = hf.compile(step)
    compiled(X)
    with hf.profile() as p:
        for _ in range(5):
            compiled(X)
    size = w.numpy().nbytes
    made = {time for time, change in p._memory if change == size}
    gone = {time for time, change in p._memory if change == -size}
    assert len(made) == 5
    # XLA may copy what it cannot write over at that moment; otherwise the one goes as the other comes.
    assert len(made & gone) >= 2
    assert p.memory[-1][1] == size


def test_a_call_whose_end_is_noted_after_the_block_leaves_no_memory():
    size = X.numpy().nbytes
    f = hf.compile(lambda x: hf.tanh(x @ x) @ x)
    f(X)
    with hf.profile() as p:
        kept = [f(X) for _ in range(2)]
    assert p.calls[0].temporary_bytes > 0
    last = p._calls[-1]
    last.since, last.end = p.end + 1000.0, p.end + 2000.0  # as on a machine that is busy with others
    assert p.memory[-1][1] == len(kept) * size
    assert min(after for _, after in p.memory) >= 0


def test_the_time_before_the_first_kernel_is_told():
    f = hf.compile(lambda x: hf.tanh(x @ x) @ x)
    f(X)
    with hf.profile() as p:
        f(X)
    (call,) = p._calls
    call.since = min(kernel.start for kernel in p._kernels) - 1e9  # as if XLA had taken a second to begin
    (found,) = p.calls
    assert found.starting == pytest.approx(1.0 / found.seconds)
    assert 0.99 < found.starting + found.attributed <= 1.0
    assert f"{found.starting:.1%} before the first kernel" in p.summary()


def test_times_of_kernels_side_by_side_are_said_to_add_up_to_more():
    f = hf.compile(lambda x: hf.tanh(x @ x) @ x)
    f(X)
    with hf.profile() as p:
        f(X)
    assert "side by side" not in p.summary()
    p._kernels[0].own = (p.end - p.start) + 1.0
    assert "side by side" in p.summary()


def test_columns_that_tell_nothing_are_not_printed():
    with hf.profile() as p:
        hf.tanh(X)
    head = str(p).splitlines()[2]
    assert "bytes made" in head
    assert "mode" not in head
    with hf.profile() as p:
        hf.tanh(hf.compile(lambda x: x @ x)(X))
    assert "mode" in str(p).splitlines()[2]


# -- control flow, checkpoints, tapes -----------------------------------------------------------------------------


def test_a_scan_counts_the_runs_of_its_body_in_both_modes():
    def scanned(x):
        return hf.scan(lambda c, row: (hf.tanh(c @ x), hf.sum(row)), x, x)[0]

    with hf.profile() as eager:
        scanned(X)
    assert (calls_of(eager)["matmul"], calls_of(eager)["tanh"]) == (64, 64)
    compiled = hf.compile(scanned)
    with hf.profile() as p:
        for _ in range(2):
            compiled(X)
    assert runs_of(p, "matmul") == 2 * 64


@pytest.mark.parametrize(("sign", "taken", "left"), [(1.0, "tanh", "exp"), (-1.0, "exp", "tanh")])
def test_only_the_branch_that_ran_is_in_the_profile(sign, taken, left):
    f = hf.compile(lambda x: hf.cond(hf.sum(x) > 0, lambda: hf.tanh(x @ x) @ x, lambda: hf.exp(x @ x) @ x))
    with hf.profile() as p:
        f(sign * hf.ones((64, 64)))
    assert runs_of(p, taken, mode="compiled") == 1
    assert runs_of(p, left, mode="compiled") == 0


def test_what_a_checkpoint_computes_again_is_counted_again():
    block = hf.checkpoint(lambda x: hf.tanh(x @ x) @ x)

    def gradient(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = hf.sum(block(x))
        return tape.gradient(y, x)

    with hf.profile() as eager:
        gradient(X)
    assert calls_of(eager, phase="forward")["matmul"] == 2 + 2
    compiled = hf.compile(gradient)
    with hf.profile() as p:
        compiled(X)
    assert runs_of(p, "matmul") == sum(node.op.name == "matmul" for node in compiled.graph(X).walk())


def test_a_compiled_call_under_a_tape_has_its_forward_and_its_gradient():
    f = hf.compile(lambda x: hf.sum(hf.tanh(x @ x)), name="f")

    def gradient():
        with hf.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        return tape.gradient(y, X)

    with hf.profile() as p:
        profiled = [gradient() for _ in range(2)]
    assert [call.name for call in p.calls] == ["f", "f_gradient"] * 2
    assert runs_of(p, "matmul", phase="forward", mode="compiled") == 2
    assert runs_of(p, "matmul", phase="gradient", mode="compiled") == 4
    (rule,) = [row for row in p.operations if row.mode == "eager"]
    assert (rule.name, rule.phase, rule.calls) == ("f", "gradient", 2)
    np.testing.assert_array_equal(profiled[0].numpy(), gradient().numpy())
    with hf.profile() as again:
        gradient()
    (run,) = [run for run in again._runs if run.kind == "gradient"]
    kernels = [kernel for kernel in again._kernels if kernel.call.program.name == "f_gradient"]
    assert run.inside >= covered(kernels, run.start, run.end) > 0, "the rule's own time has none of its kernels'"


def test_an_operation_that_reads_what_is_not_there_yet_does_not_count_the_wait():
    big = hf.asarray(RNG.normal(size=(700, 700)).astype(np.float32))
    f = hf.compile(lambda x: x @ x @ x @ x)
    with hf.profile() as p:
        hf.reshape(f(big), (-1,))
    (run,) = [run for run in p._runs if run.kind == "op"]
    assert run.start >= p._calls[0].end - 1e5


# -- threads and contexts -----------------------------------------------------------------------------------------


def test_threads_that_copy_the_context_are_not_profiled():
    f = hf.compile(lambda x: x @ x)
    f(X)

    async def both():
        with hf.profile() as p:
            await asyncio.to_thread(lambda: (hf.exp(X), f(X)))
            hf.tanh(X)
        return p

    p = asyncio.run(both())
    assert calls_of(p) == {"tanh": 1}
    assert p.calls == []


def test_a_context_that_outlives_the_block_is_not_profiled():
    f = hf.compile(lambda x: x @ x)
    with hf.profile() as p:
        context = contextvars.copy_context()
        hf.tanh(X)
    recorder = context[PROFILER]
    assert recorder is not None

    def later():
        f(X)
        x = hf.tensor(np.ones(4, np.float32), requires_grad=True)
        hf.sum(hf.exp(x)).backward()
        return x.grad

    np.testing.assert_allclose(context.run(later).numpy(), np.full(4, np.e, np.float32), rtol=1e-6)
    assert calls_of(p) == {"tanh": 1}
    assert len(recorder.runs) == 1
    assert recorder.calls == []

    def profiled():
        with hf.profile() as inner:
            hf.exp(X)
        return inner

    assert calls_of(context.run(profiled)) == {"exp": 1}


def test_the_first_operation_of_a_thread_may_be_in_a_profile():
    found = []

    def run():
        with hf.profile() as p:
            x = hf.tensor(np.ones(4, np.float32), requires_grad=True)
            hf.sum(hf.exp(x)).backward()
        found.append(p)
        f = hf.compile(lambda x: hf.sum(x * x))
        with hf.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        np.testing.assert_allclose(tape.gradient(y, X).numpy(), 2 * X.numpy(), rtol=1e-6)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert calls_of(found[0], phase="forward") == {"exp": 1, "sum": 1, "stop_gradient": 1}
    assert found[0].calls == []


def test_one_profile_at_a_time_in_a_process(tmp_path: Path):
    errors = []

    def other():
        try:
            with hf.profile():
                pass
        except TraceError as error:
            errors.append(str(error))

    with hf.profile() as p:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        hf.tanh(X)
    assert len(errors) == 1
    assert "one profile at a time" in errors[0]
    assert calls_of(p) == {"tanh": 1}
    jax.profiler.start_trace(tmp_path)
    try:
        with pytest.raises(TraceError, match="jax's profiler is running"), hf.profile():
            pass
        assert PROFILER.get() is None
    finally:
        jax.profiler.stop_trace()
    with hf.profile() as p:
        hf.tanh(X)
    assert calls_of(p) == {"tanh": 1}


def test_an_exception_in_the_block_leaves_compiled_calls_whole():
    w, step = step_of()
    other, same = step_of()
    compiled, plain = hf.compile(step), hf.compile(same)

    def fail():
        compiled(X)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), hf.profile():
        fail()
    plain(X)
    np.testing.assert_array_equal(w.numpy(), other.numpy())
    assert PROFILER.get() is None


def test_arguments_that_are_refused_are_no_call():
    f = hf.compile(lambda x: x @ X)
    with hf.profile() as p:
        with pytest.raises(ValueError, match="matmul"):
            f(hf.zeros((3, 3)))
        f(X)
    assert [call.kernels > 0 for call in p.calls] == [True]


def test_programs_are_freed_with_their_functions():
    from hybridflow.analysis.profile.compiled import _programs

    gc.collect()
    before = len(_programs)
    f = hf.compile(lambda x: x @ x)
    with hf.profile():
        f(X)
    assert len(_programs) == before + 1
    del f
    gc.collect()
    assert len(_programs) == before


# -- the flame chart ----------------------------------------------------------------------------------------------


def check_trace_events(data):
    """Raise unless this is what the Trace Event Format says of complete, counter and metadata events."""
    assert data["displayTimeUnit"] in ("ms", "ns")
    named = set()
    for event in data["traceEvents"]:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] == "X":
            assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur", "args"}
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)
        elif event["ph"] == "C":
            assert event["ts"] >= 0
            assert all(isinstance(value, int | float) for value in event["args"].values())
        else:
            assert event["ph"] == "M"
            named.add(event.get("tid"))
    threads = {event["tid"] for event in data["traceEvents"] if event["ph"] == "X"}
    assert threads <= named
    for thread in threads:
        ends: list[float] = []
        spans = [event for event in data["traceEvents"] if event["ph"] == "X" and event["tid"] == thread]
        for event in sorted(spans, key=lambda one: (one["ts"], -one["dur"])):
            while ends and ends[-1] <= event["ts"] + 1e-3:
                ends.pop()
            assert not ends or event["ts"] + event["dur"] <= ends[-1] + 1e-3, "spans of a thread overlap"
            ends.append(event["ts"] + event["dur"])


def test_the_flame_chart_is_in_the_trace_event_format(tmp_path: Path):
    _, step = step_of()
    compiled = hf.compile(step)
    f = hf.compile(lambda x: hf.sum(hf.tanh(x @ x)))
    with hf.profile() as p:
        step(X)
        for _ in range(5):
            compiled(X)
        with hf.GradientTape() as tape:
            tape.watch(X)
            y = f(X)
        tape.gradient(y, X)
    p.to_chrome_trace(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))
    check_trace_events(data)
    kinds = Counter(event["cat"] for event in data["traceEvents"] if event["ph"] == "X")
    assert kinds["call"] == kinds["dispatch"] == len(p.calls) == 7
    assert kinds["kernel"] == sum(call.kernels for call in p.calls)
    spans = [event for event in data["traceEvents"] if event["ph"] == "X" and event["cat"] == "call"]
    assert sum(span["dur"] for span in spans) == pytest.approx(1e6 * sum(call.seconds for call in p.calls))


# -- the pictures of the page -------------------------------------------------------------------------------------


def pictures(path):
    """Return the pictures of a page, parsed."""
    return [ElementTree.fromstring(one) for one in re.findall(r"<svg.*?</svg>", path.read_text(encoding="utf-8"), re.S)]


def test_the_page_draws_what_ran_and_what_was_alive(tmp_path: Path):
    _, step = step_of()
    compiled = hf.compile(step, name="a<b")
    with hf.profile() as p:
        step(X)
        compiled(X)
    p.to_html(tmp_path / "p.html")
    _, flame, memory = pictures(tmp_path / "p.html")
    hints = [title.text or "" for title in flame.iter("title")]
    names = {hint.split(",")[0] for hint in hints}
    assert {"matmul", "a<b"} <= names
    assert not any("compile" in name for name in names)
    bars = [bar for group in flame.iter("g") for bar in group.iter("rect")]
    right = max(float(bar.get("x", 0)) + float(bar.get("width", 0)) for bar in bars)
    assert right <= float(flame.get("width", 0)) + 1
    assert [text.text for text in memory.iter("text")] == [format_bytes(p.peak_bytes), "0 B"]
    assert "Compiled calls" in (tmp_path / "p.html").read_text(encoding="utf-8")


def test_many_short_operations_are_drawn_as_few():
    spans = [Span("op", "op", 0, 10.0 * i, 10.0 * i + 9, {}) for i in range(20_000)]
    drawn = flame_svg(spans, Axis(0, 200_000, spans)).count("<title>")
    assert 500 < drawn < 3000


def test_compilations_take_no_room_on_the_axis():
    spans = [Span("compile", "compile", 0, 100, 900, {}), Span("op", "op", 0, 950, 1000, {})]
    axis = Axis(0, 1000, spans)
    assert axis.length == 200
    assert axis.at(100) == axis.at(500) == axis.at(900)
    assert (axis.at(1000) - axis.at(900)) == pytest.approx(axis.at(100) - axis.at(0))


def test_an_empty_profile_has_a_page_without_pictures(tmp_path: Path):
    with hf.profile() as p:
        pass
    p.to_html(tmp_path / "p.html")
    assert pictures(tmp_path / "p.html") == []
    assert "in the block" in p._repr_html_()

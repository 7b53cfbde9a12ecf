"""`hf.profile`: what ran, how often, on whose line; times against the clock around the whole."""

import gc
import json
import threading
import time
import weakref
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.analysis.profile.events import Kernel, covered
from hybridflow.core.context import CONTEXT
from hybridflow.core.errors import ArgumentTypeError, IndexRangeError, TraceError
from hybridflow.core.profiling import PROFILER
from hybridflow.xla.scopes import Namer, instructions

X = hf.asarray(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32))


def layer(x):
    return hf.tanh(x @ x) + x


def training():
    w = hf.Variable(np.full((64, 8), 0.1, np.float32), name="w")

    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.square(x @ w))
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    return w, step


def counts(profile, **wanted):
    return {row.name: row.calls for row in profile.operations if all(getattr(row, k) == v for k, v in wanted.items())}


# -- eager --------------------------------------------------------------------------------------------------------


def test_every_operation_is_counted():
    graph = hf.compile(layer).lower(X).traced
    with hf.profile() as p:
        for _ in range(3):
            layer(X)
    assert counts(p) == {name: 3 * count for name, count in Counter(node.op.name for node in graph.nodes).items()}


def test_a_call_of_a_function_is_profiled_as_a_block_is():
    profiled = hf.profile(lambda x, *, times: [layer(x) for _ in range(times)], X, times=3)
    with hf.profile() as p:
        [layer(X) for _ in range(3)]
    assert counts(profiled) == counts(p)
    assert counts(hf.profile(hf.compile(layer), X), mode="compiled")
    with pytest.raises(ArgumentTypeError, match=r"profile: a Tensor is no function(.|\n)*Write hf\.profile\(f, x\)"):
        hf.profile(layer(X))


def test_times_add_up_to_no_more_than_the_clock_says():
    start = time.perf_counter()
    with hf.profile() as p:
        for _ in range(20):
            layer(X)
    around = time.perf_counter() - start
    timed = sum(row.seconds for row in p.operations)
    assert 0 < timed <= p.seconds <= around
    assert all(row.seconds >= 0 for row in p.operations)
    assert sum(row.seconds for row in p.lines) == pytest.approx(timed)


def test_rows_of_lines_name_the_users_lines():
    first = layer.__code__.co_firstlineno
    with hf.profile() as p:
        layer(X)
    assert {row.line for row in p.lines} == {f"test_profile.py:{first + 1}"}


def test_gradients_are_told_apart_and_belong_to_the_forward_line():
    _, step = training()
    with hf.profile() as p:
        step(X)
    assert counts(p, phase="gradient")["matmul"] == 1
    assert counts(p, phase="forward")["matmul"] == 1
    line = step.__code__.co_firstlineno + 2
    (row,) = [row for row in p.operations if (row.name, row.phase) == ("matmul", "gradient")]
    assert row.line == f"test_profile.py:{line}"
    x = hf.tensor(np.ones(4, np.float32), requires_grad=True)
    with hf.profile() as p:
        hf.sum(hf.tanh(x)).backward()
    assert counts(p, phase="gradient")["tanh"] == 1


def test_bytes_are_those_of_new_arrays():
    with hf.profile() as p:
        y = hf.tanh(X)
        hf.reshape(y, (-1,))
    made = {row.name: row.bytes for row in p.operations}
    assert made == {"tanh": 4 * 64 * 64, "reshape": 0}


def test_memory_over_time_rises_and_falls():
    size = 4 * 64 * 64
    with hf.profile() as p:
        kept = [hf.tanh(X) for _ in range(3)]
        del kept
        hf.tanh(X)
    assert p.peak_bytes == 3 * size
    assert [after for _, after in p.memory][:3] == [size, 2 * size, 3 * size]
    assert p.memory[-1][1] == 0
    assert all(0 <= seconds <= p.seconds for seconds, _ in p.memory)


def test_results_are_those_without_it():
    w, step = training()
    other, same = training()
    with hf.profile():
        losses = [float(step(X)) for _ in range(3)]
    assert losses == [float(same(X)) for _ in range(3)]
    np.testing.assert_array_equal(w.numpy(), other.numpy())


def test_autocast_and_tapes_inside_the_block():
    with hf.profile() as p, hf.autocast(hf.bfloat16):
        y = X @ X
    assert y.dtype == hf.bfloat16
    assert counts(p) == {"astype": 2, "matmul": 1} or counts(p) == {"astype": 1, "matmul": 1}


def test_other_threads_are_not_profiled():
    with hf.profile() as p:
        thread = threading.Thread(target=lambda: hf.exp(X))
        thread.start()
        thread.join()
        hf.tanh(X)
    assert counts(p) == {"tanh": 1}


# -- compiled -----------------------------------------------------------------------------------------------------


def test_kernels_are_joined_to_nodes_and_lines():
    f = hf.compile(layer)
    with hf.profile() as p:
        for _ in range(4):
            f(X)
    line = f"test_profile.py:{layer.__code__.co_firstlineno + 1}"
    graph = f.graph(X)
    assert [call.name for call in p.calls] == ["layer"] * 4
    assert all(0 < call.attributed <= 1 for call in p.calls)
    assert {row.mode for row in p.operations} == {"compiled"}
    assert any(row.name.startswith("matmul") and row.calls % 4 == 0 for row in p.operations)
    assert {row.line for row in p.lines} <= {line, ""}
    assert set(p.node_seconds(graph)) <= set(graph.walk())
    assert {node.op.name for node in p.node_seconds(graph)} == {"matmul", "tanh", "add"}
    named = sum(row.seconds for row in p.operations if not row.name.startswith("XLA's own"))
    assert sum(p.node_seconds(graph).values()) == pytest.approx(named)


def test_a_compiled_training_step_keeps_its_effects():
    w, step = training()
    other, same = training()
    compiled, plain = hf.compile(step), hf.compile(same)
    with hf.profile() as p:
        losses = [float(compiled(X)) for _ in range(3)]
    assert losses == [float(plain(X)) for _ in range(3)]
    np.testing.assert_array_equal(w.numpy(), other.numpy())
    assert {"forward", "gradient"} <= {part for row in p.operations for part in row.phase.split(" and ")}
    assert compiled.trace_count == 1


def test_loops_count_their_bodies_and_no_time_twice():
    f = hf.compile(lambda x: hf.while_loop(lambda i, x: hf.sum(x) < 1e6, lambda i, x: (i + 1, hf.abs(x) @ hf.abs(x)),
                                           (hf.asarray(0), x))[1])
    with hf.profile() as p:
        f(X)
    seconds = sum(row.seconds for row in p.operations)
    (loop,) = [kernel for kernel in p._kernels if kernel.name.startswith("while")]
    assert loop.own < loop.end - loop.start
    assert seconds <= 2 * p.calls[0].seconds
    assert any("matmul" in row.name for row in p.operations)


def test_calls_after_the_block_are_as_ever():
    f = hf.compile(layer)
    with hf.profile():
        f(X)
        recorder = weakref.ref(PROFILER.get())
    f(X)
    f(X)
    gc.collect()
    assert recorder() is None  # no call of the profile's is left in the function


def test_compiling_for_the_profile_is_told_apart_and_done_once():
    f = hf.compile(layer)
    f(X)
    with hf.profile() as p:
        f(X)
    assert 0 < p.compiling < p.seconds
    with hf.profile() as again:
        f(X)
    assert again.compiling == 0
    assert f.compile_count == 1


def test_an_eager_operation_and_a_compiled_call_in_one_block():
    f = hf.compile(layer)
    with hf.profile() as p:
        hf.exp(f(X))
    assert counts(p, mode="eager") == {"exp": 1}
    assert len(p.calls) == 1


def test_temporaries_of_compiled_calls_are_part_of_the_memory():
    f = hf.compile(lambda x: hf.sum((x @ x) @ x))
    with hf.profile() as p:
        f(X)
    assert p.peak_bytes >= p.calls[0].temporary_bytes > 0


# -- joining, by itself -------------------------------------------------------------------------------------------

HLO = """HloModule jit_f_profiled_1, is_scheduled=true

%fused (p: f32[4]) -> f32[4] {
  %p = f32[4]{0} parameter(0)
  %tanh.1 = f32[4]{0} tanh(%p), metadata={op_name="jit(f)/hfn0/tanh"}
  ROOT %add.1 = f32[4]{0} add(%tanh.1, %p), metadata={op_name="jit(f)/hfn2/jit(g)/hfn1/add"}
}

ENTRY %main (x: f32[4]) -> f32[] {
  %x = f32[4]{0} parameter(0), metadata={op_name="x"}
  %fusion = f32[4]{0} fusion(%x), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/hfn1/add"}
  %reduce-window = f32[1]{0} reduce-window(%fusion, %c)
  ROOT %reduce = f32[] reduce(%reduce-window, %c), to_apply=%sum, metadata={op_name="jit(f)/hfn2/reduce_sum"}
}
"""


def test_instructions_are_joined_to_the_innermost_node_and_fusions_to_all_of_theirs():
    namer = Namer("")
    nodes = list(hf.compile(layer).graph(X).nodes)
    for node in nodes:
        with namer(node):
            pass
    zero, one, two = nodes
    found = instructions(HLO, namer)
    assert set(found["fusion"].nodes) == {zero, one}
    assert found["reduce"].nodes == (two,)
    assert found["reduce-window"].nodes == (two,), "what XLA added serves who reads it"
    assert [name for name in ("fusion", "reduce-window", "reduce") if found[name].serves] == ["reduce-window"]
    assert {found["tanh.1"].computation, found["reduce"].computation} == {"fused", "main"}


def test_time_that_kernels_cover_together_counts_once():
    spans = [(0, 10), (5, 12), (20, 30), (22, 25), (40, 60)]
    kernels = [Kernel("k", None, (), start, end) for start, end in spans]  # type: ignore[arg-type]
    assert covered(kernels, 0, 50) == 12 + 10 + 10
    assert covered([], 0, 50) == 0


# -- leaving ------------------------------------------------------------------------------------------------------


def test_an_exception_leaves_everything_as_it_was():
    with pytest.raises(ZeroDivisionError), hf.profile():
        1 / 0  # noqa: B018
    assert PROFILER.get() is None
    assert CONTEXT.get() is None
    with hf.profile() as p:
        hf.tanh(X)
    assert counts(p) == {"tanh": 1}


def test_a_failing_operation_and_a_failing_check_are_raised_as_ever():
    f = hf.compile(lambda x, i: x[i])
    with hf.profile() as p:
        with pytest.raises(ValueError, match="matmul"):
            X @ hf.zeros((3, 3))
        with pytest.raises(IndexRangeError):
            float(f(hf.zeros(3), hf.asarray(7)))
        hf.tanh(X)
    assert counts(p)["tanh"] == 1


def test_it_is_refused_inside_of_itself_and_of_a_compiled_function():
    with hf.profile(), pytest.raises(TraceError, match="inside of another profile"), hf.profile():
        pass

    @hf.compile
    def f(x):
        with hf.profile():
            return x + 1

    with pytest.raises(TraceError, match="in a compiled function"):
        f(X)


# -- what is written ----------------------------------------------------------------------------------------------


def test_the_flame_chart_is_nested_and_complete(tmp_path: Path):
    _, step = training()
    compiled = hf.compile(step)
    with hf.profile() as p:
        step(X)
        compiled(X)
    p.to_chrome_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert Counter(event["cat"] for event in spans)["op"] == sum(counts(p, mode="eager", phase="forward").values())
    assert sum(event["cat"] == "kernel" for event in spans) == p.calls[0].kernels
    for thread in {event["tid"] for event in spans}:
        stack: list[float] = []
        for event in sorted((e for e in spans if e["tid"] == thread), key=lambda e: (e["ts"], -e["dur"])):
            while stack and stack[-1] <= event["ts"] + 1e-3:
                stack.pop()
            assert not stack or event["ts"] + event["dur"] <= stack[-1] + 1e-3
            stack.append(event["ts"] + event["dur"])
    assert [event["args"]["bytes"] for event in events if event["ph"] == "C"] == [size for _, size in p.memory]


def test_tables_pages_and_dicts_say_the_same(tmp_path: Path):
    with hf.profile() as p:
        layer(X)
    text = str(p)
    assert "matmul" in text
    assert "in the block" in text
    p.to_html(tmp_path / "profile.html")
    assert "By line" in (tmp_path / "profile.html").read_text(encoding="utf-8")
    assert json.loads(json.dumps(p.to_dict()))["operations"][0]["name"] == p.operations[0].name
    assert "<table>" in p._repr_html_()


def test_an_empty_block_has_an_empty_profile():
    with hf.profile() as p:
        pass
    assert (p.operations, p.calls, p.memory, p.peak_bytes, p.overhead) == ([], [], [], 0, 0.0)
    assert "in the block" in str(p)


@pytest.mark.bench
def test_nearly_all_of_a_compiled_call_is_attributed():
    x = hf.asarray(np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32))
    f = hf.compile(lambda x: hf.tanh(x @ x) @ x)
    with hf.profile() as p:
        for _ in range(20):
            f(x)
    assert sorted(call.attributed for call in p.calls)[10] > 0.9


def test_a_function_with_a_budget_runs_its_plan():
    layers = [hf.Variable(np.full((64, 64), 0.01, np.float32)) for _ in range(6)]

    def loss(x):
        for w in layers:
            x = hf.tanh(hf.tanh(x @ w) @ w)
        return hf.mean(x * x)

    gradient = hf.grad(loss)
    x = hf.ones((512, 64))
    whole = hf.compile(gradient).lower(x).executable.compiled.memory_analysis().temp_size_in_bytes
    small = hf.compile(gradient, memory_budget=int(whole * 0.8))
    with hf.profile() as p:
        result = small(x)
    assert p.calls[0].temporary_bytes <= whole * 0.8
    np.testing.assert_allclose(result.numpy(), hf.compile(gradient)(x).numpy(), rtol=1e-5, atol=1e-7)


def test_names_of_functions_are_escaped_in_pages():
    f = hf.compile(lambda x: hf.tanh(x @ x))
    with hf.profile() as p:
        f(X)
    assert "<lambda>" in str(p)
    assert "<lambda>" not in p._repr_html_()
    assert "&lt;lambda&gt;: 1 compiled calls" in p._repr_html_()


def test_a_profile_is_read_where_warnings_are_errors():
    """jaxlib's types for statistics end the process then, when they are made: at the first read and at later ones."""
    code = """
import gc
import hybridflow as hf
f, x = hf.compile(lambda x: hf.tanh(x @ x)), hf.ones((16, 16))
for _ in range(2):
    with hf.profile() as p:
        f(x)
    print(sorted(row.name for row in p.operations))
    gc.collect()
"""
    assert run_python(code, PYTHONWARNINGS="error").splitlines() == ["['matmul', 'tanh']"] * 2

"""`fn.explain()`: why each trace was made, from where, and at what cost."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

import hybridflow as hf


def ones(*shape: int, dtype=np.float32) -> hf.Tensor:
    return hf.asarray(np.ones(shape, dtype))


def reasons(fn, *calls, **options) -> list[str]:
    """Why each of these calls made a trace."""
    compiled = hf.compile(fn, **options)
    for args in calls:
        compiled(*args)
    return [record.reason for record in compiled.explain()]


def test_the_first_call():
    @hf.compile
    def f(x, n):
        return hf.tanh(x) * n

    assert len(f.explain()) == 0
    assert str(f.explain()) == "f: 0 traces"
    f(ones(2, 3), 2)
    record = f.explain()[0]
    assert (record.number, record.reason, record.changes) == (1, "first call", ())
    assert record.signature == {"x": "f32[2,3]", "n": "int 2"}
    assert record.call_site == f"{__file__}:{test_the_first_call.__code__.co_firstlineno + 7}"
    assert record.nodes == 3
    assert record.compiles == 1
    assert min(record.trace_ms, record.lower_ms, record.xla_ms) > 0
    assert record.passes
    text = str(f.explain())
    assert text.startswith("f: 1 trace\ntrace 1 at ")
    assert "(x: f32[2,3], n: int 2)" in text
    assert "why: first call" in text
    assert "XLA" in text
    assert "in 1 compile(s); 3 nodes" in text
    assert "other runs of passes changed nothing" in text
    assert repr(f.explain()) == text


def test_the_argument_that_changed():
    a = ones(2)
    assert reasons(lambda x: x + 1, (ones(4),), (ones(5),)) == ["first call", "x: f32[4] -> f32[5]"]
    assert reasons(lambda x: x + 1, (a,), (ones(2, dtype=np.int32),))[1] == "x: f32[2] -> i32[2]"
    assert reasons(lambda x, n: x + n, (a, 1), (a, 2), (a, 2.0))[1:] == ["n: int 1 -> int 2", "n: int 1 -> float"]
    assert reasons(lambda x, mode: x + 1, (a, "a"), (a, None))[1] == "mode: str 'a' -> NoneType None"
    assert reasons(lambda x: x["a"] + 1, ({"a": a},), ({"a": a, "b": 1},))[1] == "x['b']: absent -> int 1"
    assert reasons(lambda x: x[0] + 1, ([a],), ((a,),))[1].startswith("structure: ")
    assert reasons(lambda x: x + 1, (a,), (hf.Variable([1.0, 2.0]),))[1] == "x: f32[2] -> Variable f32[2]"


def test_several_arguments_that_changed():
    assert reasons(lambda x, y: x + y, (ones(4), 1), (ones(5), 2))[1] == "x: f32[4] -> f32[5]; y: int 1 -> int 2"


def test_the_nearest_earlier_trace_is_compared():
    f = hf.compile(lambda x, y: x + y)
    f(ones(2), ones(2))
    f(ones(3), ones(3))
    f(ones(3), ones(1))
    assert f.explain()[2].reason == "y: f32[3] -> f32[1]"
    change = f.explain()[2].changes[0]
    assert (change.argument, change.before, change.after) == ("y", "f32[3]", "f32[1]")


def test_values_that_look_alike():
    class Config:
        def __repr__(self):
            return "Config()"

    one, two = Config(), Config()
    found = reasons(lambda x, c: x + 1, (ones(1), one), (ones(1), two))[1]
    assert found.startswith("c: Config Config() (")
    assert found.count("Config()") == 2
    v, w = hf.Variable(1.0), hf.Variable(1.0)
    found = reasons(lambda a, b: a + b, (v, w), (v, v))[1]
    assert found == "b: Variable f32[] (alias pattern 1) -> Variable f32[] (alias pattern 0)"
    assert reasons(lambda x, n: x + float(n), (ones(1), 0.0), (ones(1), -0.0))[1] == "n: float 0.0 -> float -0.0"


def test_frozen_dataclasses():
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: int

    found = reasons(lambda x, c: x * c.n, (ones(1), Config(1)), (ones(1), Config(2)))[1]
    assert "Config(n=1)" in found
    assert "Config(n=2)" in found


def test_dropped_traces():
    f = hf.compile(lambda x: x + 1, max_traces=1)
    for size in (1, 2, 1):
        f(ones(size))
    assert [record.reason for record in f.explain()] == [
        "first call",
        "x: f32[1] -> f32[2]",
        "an equal trace was dropped from the cache",
    ]
    f.clear_cache()
    f(ones(1))
    assert f.explain()[3].reason == "an equal trace was dropped from the cache"
    f.clear_cache()
    f(ones(5))
    assert f.explain()[4].reason == "no earlier trace was left in the cache"
    assert str(f.explain()).startswith("<lambda>: 5 traces")


def test_variables_and_captured_tensors():
    v, w, captured = hf.Variable(1.0, name="v"), hf.Variable(2.0, name="w"), ones(2)

    @hf.compile
    def f(x):
        v.assign_add(w)
        return x * captured

    f(1.0)
    record = f.explain()[0]
    assert (record.variables, record.assigned, record.captured) == (("v", "w"), ("v",), 1)
    text = str(record)
    assert "Variables: reads v, w, writes v" in text
    assert "captured tensors: 1" in text


def test_records_are_a_sequence():
    f = hf.compile(lambda x: x + 1, dynamic=False)
    for size in (1, 2, 3):
        f(ones(size))
    assert [record.number for record in f.explain()] == [1, 2, 3]
    assert len(f.explain()[1:]) == 2
    assert [p.name for p in f.explain()[0].passes]


def test_methods_explain_themselves():
    class Model:
        @hf.compile
        def step(self, x):
            return x + 1

    model = Model()
    model.step(ones(1))
    model.step(ones(2))
    assert [r.reason for r in model.step.explain()] == ["first call", "x: f32[1] -> f32[2]"]


def test_a_warning_after_many_traces_says_why_once():
    f = hf.compile(lambda x, step: x * step, name="train")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(40):
            f(ones(1), step)
    assert len(caught) == 1
    warning = caught[0]
    assert warning.category is hf.RetraceWarning
    assert warning.filename == __file__
    assert warning.lineno == test_a_warning_after_many_traces_says_why_once.__code__.co_firstlineno + 5
    text = str(warning.message)
    assert text.startswith("train was traced 16 times; only 0 calls found a trace")
    assert "step: int 14 -> int 15" in text or "step: int 0 -> int 15" in text
    assert f"for the call at {__file__}:{warning.lineno}; tracing has cost " in text
    assert "Pass what changes as a tensor" in text


def test_no_warning_where_most_calls_find_a_trace():
    f = hf.compile(lambda x, n: x * n)
    for n in range(20):
        for _ in range(3):
            f(ones(1), n)
    assert f.trace_count == 20


def test_a_call_site_inside_a_helper():
    f = hf.compile(lambda x: x + 1)

    def helper():
        return f(ones(1))

    helper()
    assert f.explain()[0].call_site == f"{__file__}:{helper.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("starter", ["<frozen runpy>", "/somewhere/bin/hybridflow"])
def test_what_starts_the_command_line_is_no_line_of_the_users(starter: str):
    step, x = hf.compile(lambda x: hf.tanh(x @ x)), hf.ones((2, 2))
    space = {"step": step, "x": x, "hf": hf}
    exec(compile("step(x)\nwith hf.profile() as p:\n    hf.tanh(x)", starter, "exec"), space)
    (record,) = step.explain()
    assert record.call_site is None
    assert "trace 1: (x: f32[2,2])" in str(step.explain())
    assert "called at" in step.explain()._repr_html_()
    assert "the command line" in step.explain()._repr_html_()
    assert [row.line for row in space["p"].operations] == [""]

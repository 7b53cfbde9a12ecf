"""`fn.explain()`: why each trace was made, from where, and at what cost."""

from __future__ import annotations

import dataclasses
import types
import warnings

import numpy as np
import pytest
from reference import without_xla

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
    assert reasons(lambda x, n: x + n, (a, 1), (a, 2), (a, 2.0))[1:] == ["n: int 1 -> int", "n: int 1 -> float"]
    assert reasons(lambda x, mode: x + 1, (a, "a"), (a, None))[1] == "mode: str 'a' -> NoneType None"
    assert reasons(lambda x: x["a"] + 1, ({"a": a},), ({"a": a, "b": 1},))[1] == "x['b']: absent -> int 1"
    assert reasons(lambda x: x[0] + 1, ([a],), ((a,),))[1].startswith("structure: ")
    assert reasons(lambda x: x + 1, (a,), (hf.Variable([1.0, 2.0]),))[1] == "x: f32[2] -> Variable f32[2]"


def test_several_arguments_that_changed():
    assert reasons(lambda x, y: x + y, (ones(4), 1), (ones(5), 2))[1] == "x: f32[4] -> f32[5]; y: int 1 -> int"


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
    assert found.startswith("c: a Config (id ")
    assert found.count("a Config") == 2
    v, w = hf.Variable(1.0), hf.Variable(1.0)
    found = reasons(lambda a, b: a + b, (v, w), (v, v))[1]
    assert found == "b: Variable f32[] (alias pattern 1) -> Variable f32[] (alias pattern 0)"
    assert reasons(lambda x, n: x + float(str(n)), (ones(1), 0.0), (ones(1), -0.0))[1] == "n: float 0.0 -> float -0.0"


def test_frozen_dataclasses():
    @dataclasses.dataclass(frozen=True)
    class Config:
        n: str

    found = reasons(lambda x, c: x * len(c.n), (ones(1), Config("a")), (ones(1), Config("bc")))[1]
    assert "Config(n='a')" in found
    assert "Config(n='bc')" in found


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
    assert "Variables: reads and writes v; reads w" in text
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


SETTINGS = types.SimpleNamespace(mode="", stack=[1], length=1, kept=[])


def with_a_range(x, step):
    for _ in range(step):
        x = x + 1
    return x


def with_a_log(x, rate):
    SETTINGS.kept.append(str(rate))
    return x * rate


def with_a_list(x, rate):
    SETTINGS.kept.insert(0, rate)
    return x * rate


def with_a_text(x, step):
    return x * len(f"{step:05d}")


def with_a_mode(x, step):
    return x * len(SETTINGS.mode)


def with_a_stack(x, step):
    return x * SETTINGS.stack.pop()


def with_a_function(x, f):
    return f(x)


def with_a_length(x, n):
    return x[: SETTINGS.length]


USELESS = [
    (with_a_range, int, "`for _ in range(step):` at {line} makes every new step a new trace", "Write hf.arange(n)"),
    (with_a_log, float, "`SETTINGS.kept.append(str(rate))` at {line} makes every new rate a new trace", "outside"),
    (with_a_list, float, "`SETTINGS.kept.insert(0, rate)` at {line} makes every new rate a new trace", "hf.Variable"),
    (with_a_text, int, "`return x * len(f\"{step:05d}\")` at {line} makes every new step a new trace", "Make texts"),
    (with_a_mode, lambda n: 0, "`return x * len(SETTINGS.mode)` at {line} makes every new SETTINGS.mode a new trace",
     "same"),
    (with_a_stack, lambda n: 0, "`return x * SETTINGS.stack.pop()` at {line} makes every new SETTINGS.stack[0] a new "
     "trace", "hf.Variable"),
    (with_a_function, lambda n: lambda x: x + n, "every new f makes a new trace", "Make it once outside"),
    (with_a_length, lambda n: 0, "`return x[: SETTINGS.length]` at {line} makes every new length of "
     "x[:SETTINGS.length] a new trace", "Use few lengths"),
]


@pytest.mark.parametrize(("fn", "kind", "said", "hint"), USELESS)
def test_the_third_useless_trace_warns_once_with_the_line_and_what_to_write(fn, kind, said, hint):
    compiled, counts = hf.compile(fn, name="train", dynamic=False if fn is with_a_length else "auto"), []
    with warnings.catch_warnings(record=True) as caught, without_xla():
        warnings.simplefilter("always")
        for number in range(1, 25):
            SETTINGS.mode, SETTINGS.stack, SETTINGS.length = "a" * number, [number], number
            before = len(caught)
            compiled(ones(32), kind(number))
            counts += [compiled.trace_count] * (len(caught) - before)
    (warning,) = caught
    assert counts == [6 if fn is with_a_length else 5]
    assert warning.category is hf.RetraceWarning
    assert warning.filename == __file__
    text, line = str(warning.message), f"{__file__}:{fn.__code__.co_firstlineno + 1}"
    said = said.replace("{line}", line)
    assert text.startswith(f"train: {said}\n")
    assert f", for the call at {__file__}:{warning.lineno}; tracing has cost " in text
    assert hint in text.splitlines()[-1]
    (found,) = [one for one in compiled.explain().advice if one.kind == "retrace"]
    assert (found.said, found.hint) == (said, text.splitlines()[-1].strip())
    assert found.line in (line, f"{__file__}:{warning.lineno}")


def test_compare_says_what_retraces():
    compiled = hf.compile(with_a_text)
    for number in range(5):
        compiled(ones(2), number)
    found = hf.compare(compiled, ones(2), 3, repeats=1)
    assert found.retraces[0] in str(found)
    assert "`return x * len(f\"{step:05d}\")` at test_explain.py:" in found.retraces[0]
    assert hf.compare(with_a_text, ones(2), 3, repeats=1).retraces == ()


NOT_USELESS = {
    "sizes": (lambda x, n: x * 2, lambda n: (ones(n + 2), 1)),
    "exact sizes": (lambda x, n: x * 2, lambda n: (ones(n + 2), 1)),
    "dtypes": (lambda x, n: x * 2, lambda n: (hf.ones(2, dtype=["int8", "int16", "int32", "bool"][n % 4]), 1)),
    "modes": (lambda x, n: x * len(n), lambda n: (ones(2), "train" if n % 2 else "eval")),
    "numbers": (lambda x, n: x * n, lambda n: (ones(2), n)),
    "answers": (lambda x, n: x * (n > 3) + (n > 5) - (n > 7), lambda n: (ones(2), n)),
    "kinds": (lambda x, n: x * n, lambda n: (ones(2), [1, 2.0, True, 3, 4.0, False][n % 6])),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NOT_USELESS)
def test_traces_for_sizes_dtypes_and_modes_are_not_useless(name):
    fn, arguments = NOT_USELESS[name]
    compiled = hf.compile(fn, dynamic=False if name == "exact sizes" else "auto")
    with without_xla():
        for number in range(12):
            compiled(*arguments(number))


def test_a_warning_after_many_traces_of_any_reason():
    f = hf.compile(lambda x, xs: x * len(xs), name="train", dynamic=False)
    with warnings.catch_warnings(record=True) as caught, without_xla():
        warnings.simplefilter("always")
        for number in range(20):
            f(ones(1), [ones(1)] * number)
    (text,) = [str(one.message) for one in caught]
    assert text.startswith("train was traced 16 times; only 0 calls found a trace")
    assert "Pass what changes as a tensor" in text


@pytest.mark.filterwarnings("error")
def test_no_warning_where_most_calls_find_a_trace():
    f = hf.compile(lambda x, n: x * len(range(n)))
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


def test_what_differs_around_a_call_is_named():
    f = hf.compile(lambda x: x * 2)
    f(ones(2))
    with hf.config.checks(False):
        f(ones(2))
    assert [record.reason for record in f.explain()] == ["first call", "hf.config.checks: True -> False"]


def test_an_equal_variable_is_another_one():
    class Model:
        def __init__(self):
            self.w = hf.Variable(2.0)

        @hf.compile
        def step(self, x):
            return x * self.w

    model = Model()
    model.step(ones(1))
    model.w = hf.Variable(3.0)
    model.step(ones(1))
    assert model.step.explain()[1].reason == "self.w: Variable f32[] -> another Variable f32[]"


class _Layer:
    def __init__(self):
        self.w = hf.Variable(np.ones((2, 2), np.float32))


def test_variables_without_a_name_of_their_own_are_named_by_how_they_were_reached():
    class Model:
        def __init__(self):
            self.layers = [_Layer(), _Layer()]
            self.scale = hf.Variable(1.0, name="scale")

        @hf.compile
        def step(self, x):
            for layer in self.layers:
                x = x @ layer.w
            self.layers[1].w.assign_sub(self.layers[1].w * 0.1)
            return x * self.scale

    model = Model()
    model.step(hf.ones((2, 2)))
    (record,) = model.step.explain()
    assert record.variables == ("self.layers[0].w", "self.layers[1].w", "scale")
    assert record.assigned == record.executables[0].donated == ("self.layers[1].w",)

    alike = [hf.Variable(1.0, name="w"), hf.Variable(2.0, name="w")]
    f = hf.compile(lambda given, x: x * alike[0] * alike[1] * given["a"])
    f({"a": hf.Variable(1.0)}, ones(1))
    assert f.explain()[0].variables == ("alike[0]", "alike[1]", "given['a']")

    leaf = hf.Variable(1.0, requires_grad=True)

    @hf.compile
    def gradient(x):
        (x * leaf).backward()
        return leaf.grad

    gradient(hf.asarray(3.0))
    assert gradient.explain()[0].variables == ("leaf", "leaf.grad")


def test_executables_that_differ_in_sizes_alone_are_one_item_with_their_range():
    f = hf.compile(lambda x: x * 2, input_signature=[hf.TensorSpec([None, None])], sizes="exact")
    for size in (2, 3, 4):
        f(hf.ones((size, 5)))
    assert str(f.explain()).count("executable 2 for x_0=3, x_1=5: lower") == 1
    for size in range(5, 20):
        f(hf.ones((size, 5)))
    (record,) = f.explain()
    text = str(record)
    assert "  executables 1 to 18 for x_0=2 to 19, x_1=5: lower " in text
    assert text.count("store on disk") == 1
    assert f"XLA {sum(one.xla_ms for one in record.executables):.1f} ms in 18 compile(s)" in text
    assert f.explain()._repr_html_().count("executable ") == 18  # the page has each

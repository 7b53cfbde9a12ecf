"""Converted code does what the user's does, tells what it reads and writes, and keeps file and lines."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import importlib
import linecache
import os
import sys
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from processes import run_python

import hybridflow as hf
from hybridflow.convert import converted, is_converted
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TracedValueError
from hybridflow.guards import calls as call_guards
from hybridflow.guards import observe

COUNTER = 10


class Log(list[Any]):
    """Collects what converted code tells, by hooks of `observe` and `calls`."""

    def watch(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        for name in names:
            owner = observe if hasattr(observe, name) else call_guards
            real = getattr(owner, name)
            monkeypatch.setattr(owner, name, functools.partial(self._note, name, real))

    def _note(self, name: str, real: Any, *args: Any, **kwargs: Any) -> Any:
        shown = list(args)
        for one in args:
            if isinstance(one, types.CellType) or (isinstance(one, dict) and len(one) >= 20):  # a namespace
                shown.remove(one)
        self.append((name, *shown, *kwargs.values()))
        return real(*args, **kwargs)

    _note.__code__ = _note.__code__.replace(co_filename="<frozen log>")  # a part of what it logs, not a user's code


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Log]:
    def start(*names: str) -> Log:
        made = Log()
        made.watch(monkeypatch, *names)
        return made

    return start


# -- the same results ---------------------------------------------------------------------------------------------


class Base:
    def __init__(self, k):
        self.k = k

    def value(self):
        return self.k


class Private(Base):
    shared = [1]

    def __init__(self, k):
        super().__init__(k)
        self.__hidden = k + 1

    @property
    def hidden(self):
        return self.__hidden

    def __secret(self, __x):
        return self.__hidden + __x

    def value(self):
        self.__hidden += 1
        inner = lambda: super(Private, self).value()  # noqa: E731
        return super().value(), inner(), self.__secret(1), self.hidden, [self.__hidden for _ in range(1)]

    @classmethod
    def made(cls, k):
        return cls(k).hidden

    @staticmethod
    def double(x):
        return 2 * x

    def __call__(self, x, *rest, key=3, **more):
        return x, rest, key, more, self.k


def targets():
    box = types.SimpleNamespace(a=1, b=[0, 0, 0])
    box.a, (box.b[0], *box.b[1:]), c = 5, [6, 7, 8], 9
    d = box.c = e = [c]
    e += [1]
    box.b[0] += 10
    box.a *= 2
    for box.d in range(3):
        pass
    for i, box.b[1] in enumerate("xy"):
        c += i
    del box.b[2], box.d
    x: int = 4
    box.e: int = x
    with open(__file__, encoding="utf-8") as box.f:
        first = box.f.readline()
    box.f = (n := 3) + n
    return vars(box), d, e, c, first[:3]


def nested(a, b=2, *args, c, d=4, **kwargs):
    total = 0

    def add(n, scale=b):
        nonlocal total
        total += n * scale
        return total

    class Local(Base):
        size = b
        names = [n for n in "ab"]

        def grow(self):
            return super().value() + self.size

    add(a)
    return add(c), Local(7).grow(), Local.names, args, kwargs, d


def generators(n):
    def pairs(k):
        for i in range(k):
            got = yield i, k
            if got is not None:
                yield got
        return "end"

    def outer():
        result = yield from pairs(n)
        yield result

    running = pairs(2)
    return list(outer()), next(running), running.send("sent"), {k: v for k, v in pairs(n)}, {i for i, _ in pairs(n)}


def exceptions(x):
    seen = []
    try:
        try:
            x.missing  # noqa: B018
        except (AttributeError, KeyError) as error:
            seen.append(type(error).__name__)
            raise ValueError("bad") from error
        else:
            seen.append("else")
        finally:
            seen.append("finally")
    except ValueError as error:
        seen.append(str(error))
    return seen


def patterns(x):
    found = []
    for one in (x, [1, 2, 3], {"k": 5, "r": 1}, Base(3), "text", None):
        match one:
            case [a, *rest] if a < len(rest):
                found.append((a, rest))
            case {"k": v, **more}:
                found.append((v, more))
            case Base(k=k):
                found.append(k)
            case str() as s:
                found.append(s)
            case None | 7:
                found.append(0)
            case _:
                found.append("other")
    return found


def order():
    seen = []

    def note(name, value=None):
        seen.append(name)
        return value if value is not None else types.SimpleNamespace(x=1)

    note("a").x = note("v")
    note("f", lambda *a, **k: None)(note("1"), *note("s", [1]), k=note("2"), **note("d", {"z": 1}))
    note("i", [0, 0])[note("k", 1)] = note("w")
    note("g").x += note("o", 1)
    note("h", {"q": 1})[note("key", "q")] += note("p", 1)
    (note("t").x, note("u").x) = note("r", (1, 2))
    return seen


def texts(x):
    return f"{x!r:>{len(str(x)) + 3}} {x + 1 = } {'nested ' + f'{x}'}", "a" "b", [*"xy", *range(2)], {**{"a": 1}}


def names(flag):
    if flag:
        only = 1
    try:
        return only
    except UnboundLocalError as error:
        return str(error)


def classes(many):
    class Written:
        class Inner:
            pass

        def method(self):
            return self

    made = [
        Written, Written.Inner, collections.namedtuple("Point", "a b"), enum.Enum("Kind", "A B"), type("Made", (), {}),
        dataclasses.make_dataclass("Record", ["a"]),
    ]
    if many:

        class Branched:
            pass

        made.append(Branched)
    return [(one.__module__, one.__qualname__) for one in made], Written.method.__qualname__


def frames(x):
    y = x + 1
    return locals(), sorted(dir()), eval("x + y"), globals()["COUNTER"]


def lambdas():
    first, second = (lambda x: x + 1), (lambda x, y=3: (lambda z: x + y + z)(1))
    return first(1), second(2), sorted([3, 1, 2], key=lambda v: -v), list(map(lambda v: v * 2, [1]))


def walrus(xs):
    found = [y := 0, y**2]
    return any((last := x) > 2 for x in xs), last, found, y


def decorated(x):
    def twice(f):
        @functools.wraps(f)
        def run(*args):
            return f(f(*args))

        return run

    @twice
    @twice
    def inc(v):
        "Doc."
        return v + 1

    return inc(x), inc.__name__, inc.__doc__


def partials(x):
    add = functools.partial(lambda a, b, c=0: a * b - c, x, c=1)
    return add(3), functools.reduce(lambda a, b: a - b, [x, 1, 2]), max([1, -5], key=lambda v: abs(v))


CASES = [
    (targets,), (nested, 1, 5, 6, 7), (generators, 2), (exceptions, 1), (patterns, [1, 2, 3]), (order,), (texts, 4),
    (names, True), (names, False), (frames, 3), (classes, True), (lambdas,), (walrus, [1, 2, 3, 4]), (decorated, 1),
    (partials, 2),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_converted_functions_do_what_the_users_do(case):
    function, *args = case
    kwargs = {"c": 3, "z": 1} if function is nested else {}
    made = converted(function)
    assert is_converted(made.__code__)
    assert made(*args, **kwargs) == function(*args, **kwargs)


def test_methods_of_every_kind():
    for run in (lambda p: p.value(), lambda p: p.hidden, lambda p: type(p).made(3), lambda p: p.double(4)):
        assert converted(run)(Private(2)) == run(Private(2))
    plain, rewritten = Private(2), Private(2)
    assert converted(rewritten.value)() == plain.value()
    assert vars(rewritten) == vars(plain)
    assert converted(plain)(1, 2, key=4, z=5) == plain(1, 2, key=4, z=5)


def test_a_function_keeps_what_it_is():
    made = converted(nested)
    for name in ("__name__", "__qualname__", "__module__", "__doc__", "__defaults__", "__kwdefaults__"):
        assert getattr(made, name) == getattr(nested, name)
    assert made.__globals__ is nested.__globals__
    assert set(globals()) == set(nested.__globals__)
    assert made.__code__.co_filename == __file__


def test_closure_cells_are_shared():
    count = 0

    def step():
        nonlocal count
        count += 1
        return count

    assert converted(step)() == 1
    assert step() == 2
    assert count == 2


def test_recursion_reaches_the_converted_function():
    seen = []

    def down(n):
        seen.append(sys._getframe().f_code.co_freevars)
        return n if n == 0 else down(n - 1)

    assert converted(down)(2) == 0
    assert len(set(seen)) == 1
    assert ".hf" in seen[0]  # the runtime's cell


# -- what is converted ------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.filterwarnings("ignore::hybridflow.core.errors.EffectWarning")  # `_getframe` cannot be watched


def runs_converted() -> bool:
    """Whether the function that calls this one is converted."""
    return is_converted(sys._getframe(1).f_code)


hf.no_convert(runs_converted)


class Probe:
    def __init__(self):
        self.at_init = runs_converted()

    def __call__(self):
        return runs_converted()

    def method(self):
        return runs_converted()

    @property
    def prop(self):
        return runs_converted()

    @classmethod
    def of_class(cls):
        return runs_converted()

    @staticmethod
    def static():
        return runs_converted()


def helper():
    return runs_converted()


@hf.no_convert
def kept():
    return runs_converted()


def calls():
    probe = Probe()
    inner = lambda: runs_converted()  # noqa: E731
    return {
        "init": probe.at_init, "call": probe(), "method": probe.method(), "property": probe.prop,
        "class": Probe.of_class(), "static": probe.static(), "function": helper(), "lambda": inner(),
        "partial": functools.partial(helper)(), "map": next(map(lambda _: helper(), [0])),
        "sorted": sorted([1], key=lambda _: runs_converted()) == [1] and helper(),
    }


def test_what_a_converted_function_calls_is_converted():
    assert set(converted(calls)().values()) == {True}
    assert set(calls().values()) == {False}


def test_no_convert_leaves_a_function_alone():
    assert converted(lambda: kept())() is False
    assert converted(kept) is kept

    def outer():
        @hf.no_convert
        def inner():
            return runs_converted.__name__, helper()

        return inner()

    assert converted(outer)() == ("runs_converted", False)


def test_libraries_and_hybridflow_are_left_alone():
    def run():
        return hf.is_tracing.__code__, functools.wraps.__code__

    assert not any(is_converted(code) for code in converted(run)())


@hf.custom_gradient
def doubled(x):
    return x * 2, lambda g: g * 2


@pytest.mark.parametrize(
    "function", [hf.tanh, doubled, functools.partial(hf.sum, axis=0), hf.grad(hf.sum), hf.vmap(hf.sin)],
    ids=["operation", "custom_gradient", "partial", "grad", "vmap"],
)
def test_compiled_functions_of_hybridflow_are_traced_once(function):
    """What hybridflow reads of its own, like the context of the trace, is no reason to trace again."""
    compiled = hf.compile(function)
    for _ in range(3):
        np.testing.assert_allclose(compiled(hf.asarray([0.5, 2.0])), function(hf.asarray([0.5, 2.0])), rtol=1e-6)
    assert len(compiled.explain()) == 1


@pytest.mark.parametrize("bad", [len, 3, Probe])
def test_no_convert_takes_functions(bad):
    with pytest.raises(ArgumentTypeError, match=r"no_convert: an? .* is no Python function"):
        hf.no_convert(bad)


def test_functions_given_to_transformations_are_converted(monkeypatch):
    seen = {}
    monkeypatch.setattr(hf.config, "note", seen.__setitem__, raising=False)  # nobody looks into hybridflow's modules

    @hf.no_convert  # converted code must not change Python state in a branch
    def note(name, value):
        hf.config.note(name, value)

    def loss(x):
        note("grad", runs_converted())
        return x * x

    outside = hf.grad(loss)

    def run(x):
        def step(c, v):
            note("scan", runs_converted())
            return c + v, c

        def branch(v):
            note("cond", runs_converted())
            return v

        hf.scan(step, x, hf.ones((2,)))
        return hf.cond(x > 0, branch, lambda v: -v, x), outside(x)

    hf.compile(run)(2.0)
    assert seen == {"grad": True, "scan": True, "cond": True}
    seen.clear()
    run(2.0)
    outside(2.0)
    assert set(seen.values()) == {False}


def test_a_compiled_function_inside_another_is_converted():
    seen = []

    @hf.compile
    def inner(x):
        seen.append(runs_converted())
        return x + 1

    hf.compile(lambda x: inner(x))(1.0)
    inner(1.0)
    with hf.config.run_eagerly():
        inner(1.0)
    assert seen == [True, True, False]


def test_autograph_can_be_switched_off():
    seen = []

    def f(x):
        seen.append(runs_converted())
        return x

    hf.compile(f, autograph=False)(1.0)
    hf.compile(autograph=False)(f)(1.0)
    assert seen == [False, False]


# -- source -------------------------------------------------------------------------------------------------------


def test_two_lambdas_on_one_line():
    both = [lambda x: x + 1, lambda x: x * 5]
    assert [converted(one)(3) for one in both] == [4, 15]
    assert [is_converted(converted(one).__code__) for one in both] == [True, True]


def from_cell(name: str, text: str) -> dict[str, Any]:
    """Run text as notebooks do: its lines are in `linecache` only."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace: dict[str, Any] = {"hf": hf}
    exec(compile(text, name, "exec"), namespace)
    return namespace


def test_cells_of_a_notebook():
    names = from_cell("<cell 1>", "def f(x):\n    return g(x) + 1\ndef g(x):\n    return x * 2\n")
    assert is_converted(converted(names["f"]).__code__)
    assert converted(names["f"])(3) == 7


def test_a_function_without_source_is_traced_as_it_is():
    namespace: dict[str, Any] = {}
    exec(compile("def positive(x):\n    if x > 0:\n        return x\n    return -x\n", "<nowhere>", "exec"), namespace)
    f = hf.compile(namespace["positive"])
    with pytest.raises(TracedValueError, match=r"positive was not converted: its source, <nowhere>, cannot be found"):
        f(hf.asarray(1.0))
    with pytest.raises(ArgumentError, match=r"converted_code: positive is traced as it is, for .*cannot be found"):
        f.converted_code()


def test_source_that_was_changed_is_not_used():
    names = from_cell("<cell 2>", "def f(x, y):\n    return x + y\n")
    linecache.cache["<cell 2>"] = (1, None, ["def f(x):\n", "    return x\n"], "<cell 2>")
    assert converted(names["f"]) is names["f"]
    g = from_cell("<cell 3>", "def g(x):\n    return x if x > 0 else x\n")["g"]
    linecache.cache["<cell 3>"] = (1, None, ["pass\n"], "<cell 3>")
    with pytest.raises(TracedValueError, match="was changed since it was loaded"):
        hf.compile(g)(hf.asarray(1.0))


def test_a_file_that_was_changed_before_the_first_trace_is_not_used(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    for name, body in {"edited_a": "x * 2", "edited_b": "x * 2 if x > 0 else x"}.items():
        file = tmp_path / f"{name}.py"
        file.write_text(f"def f(x):\n    return {body}\n")
        function = importlib.import_module(name).f
        file.write_text(f"def f(x):\n    return {body.replace('2', '3')}\n")
        if name == "edited_a":
            assert hf.compile(function)(hf.asarray(1.0)).item() == 2.0
        else:
            with pytest.raises(TracedValueError, match="was changed since it was loaded"):
                hf.compile(function)(hf.asarray(1.0))
        monkeypatch.delitem(sys.modules, name)
        reloaded = importlib.import_module(name).f
        assert hf.compile(reloaded)(hf.asarray(1.0)).item() == 3.0


def test_an_unconverted_function_says_why():
    @hf.no_convert
    def choose(x):
        return x if x > 0 else -x

    with pytest.raises(TracedValueError, match=r"choose was not converted: it is marked with hf.no_convert"):
        hf.compile(lambda x: choose(x))(hf.asarray(1.0))

    def plain(x):
        return x if x > 0 else -x

    with pytest.raises(TracedValueError, match=r"plain was not converted: .*autograph=False"):
        hf.compile(plain, autograph=False)(hf.asarray(1.0))


def test_converted_code_can_be_shown():
    def f(x):
        return x.shape

    text = hf.compile(f).converted_code()
    assert text == "def f(x):\n    return _hf.read_attr(x, 'shape')"
    with pytest.raises(ArgumentError, match="autograph=False"):
        hf.compile(f, autograph=False).converted_code()


def test_errors_lie_on_the_users_lines():
    def fails(x):
        y = x + 1
        return [
            y,
            {}["missing"],
        ]

    def outer(x):
        return fails(
            x
        )

    found = []
    for function in (outer, converted(outer)):
        with pytest.raises(KeyError) as info:
            function(1)
        frames = [frame for frame in traceback.extract_tb(info.value.__traceback__) if frame.filename == __file__]
        found.append([(frame.lineno, frame.name) for frame in frames][1:])
    assert found[0] == found[1]


def test_a_function_is_converted_once_and_freed():
    names = from_cell("<cell 4>", "def f(x):\n    return x + 1\n")
    made = names["f"]
    assert converted(made).__code__ is converted(made).__code__
    dies = weakref.ref(made.__code__)
    names.clear()
    del made
    gc.collect()
    assert dies() is None


# -- what is told ---------------------------------------------------------------------------------------------------


def test_reads_are_told(log):
    told = log("read_global", "read_attr", "read_item", "iterate", "read_free")
    box = types.SimpleNamespace(items=[4, 5])
    free = 3

    def f(b):
        return [b.items[0] + i for i in b.items] and COUNTER and [free for _ in "a"]

    converted(f)(box)
    assert told == [
        ("read_attr", box, "items"), ("iterate", [4, 5]), ("read_attr", box, "items"),
        ("read_item", [4, 5], 0), ("read_attr", box, "items"), ("read_item", [4, 5], 0), ("read_global", "COUNTER", 10),
        ("iterate", "a"), ("read_free", "free", 3),
    ]


def test_writes_are_told(log):
    told = log("write_attr", "write_item", "delete_attr", "delete_item", "load_attr", "load_item")
    box, row = types.SimpleNamespace(a=1), [1, 2]

    def f():
        box.a = 2
        row[0] = 3
        box.a += 1
        row[1] -= 1
        del box.a, row[0]

    converted(f)()
    assert [one[0] for one in told] == [
        "write_attr", "write_item", "load_attr", "write_attr", "load_item", "write_item", "delete_attr", "delete_item",
    ]
    assert told[0][2:] == ("a", 2, False)
    assert told[3][2:] == ("a", 3, True)
    assert told[5][2:] == (1, 1, True)


def test_names_from_outside_are_told(log):
    told = log("write_global", "write_free", "delete_global", "delete_free")
    free = 1

    def f():
        global COUNTER
        nonlocal free
        own = 1

        def inner():
            nonlocal own, free
            own, free = 2, 3

        COUNTER = 11
        COUNTER -= 1
        free += 1
        inner()
        return [free := free + own]

    converted(f)()
    assert COUNTER == 10
    assert free == 5
    assert told == [
        ("write_global", "COUNTER", 11, False), ("write_global", "COUNTER", 10, True), ("write_free", "free", 2, True),
        ("write_free", "free", 3, False), ("write_free", "free", 5, False),
    ]


def test_calls_of_the_unconverted_are_told(log):
    told = log("before_call")
    row = [1]

    def f():
        row.append(len(row))
        copy = row
        copy += [5]
        return helper()

    converted(f)()
    assert [(one[1].__name__, one[2]) for one in told] == [("len", (row,)), ("append", (1,)), ("__iadd__", ([5],))]
    assert row == [1, 1, 5]


def test_eager_calls_tell_nothing(log):
    told = log("read_global", "read_attr", "before_call", "read_free", "iterate")

    @hf.compile
    def f(x):
        return hf.sum(x)

    f(1.0)
    assert told
    told.clear()
    f(1.0)
    with hf.config.run_eagerly():
        f(1.0)
    assert told == []


def test_python_alone_warns_of_syntax(tmp_path):
    """Code that Python warned of when it compiled it can be converted where warnings have become errors."""
    code = """
import hybridflow as hf
@hf.compile
def f(x, pattern="\\d"):
    try:
        y = x * 2 if x > 0 else -x
    finally:
        return y * (2 if len(pattern) is 2 else 3)
"""
    (tmp_path / "warned.py").write_text(code)
    where = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    run = "import warned\nimport hybridflow as hf\nprint([warned.f(hf.asarray(x)).item() for x in (3.0, -3.0)])"
    for given in ("ignore", "error"):
        assert run_python(run, PYTHONWARNINGS=given, PYTHONDONTWRITEBYTECODE="", **where) == "[12.0, 6.0]\n"

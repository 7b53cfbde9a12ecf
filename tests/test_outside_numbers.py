"""Numbers that a function reads outside its arguments: inputs from their second value on."""

import collections
import contextlib
import copy
import enum
import functools
import importlib.util
import itertools
import json
import math
import random
import re
import sys

import numpy as np
import pytest
from modes import answer
from reference import without_xla

import hybridflow as hf

RATE = 1.0
VALUES = {
    "floats": [0.5, 0.25, -0.0, 0.0, math.nan, 2.0, 1e37, 0.5],
    "ints": [5, 2, 0, -3, 7, 1, 2**31 - 1, 5],
}
"""Of each eight values, one comes twice."""


class Holder:
    def __init__(self, **values):
        vars(self).update(values)


def attribute():
    o = Holder()
    return lambda x: x * o.lr, lambda v: setattr(o, "lr", v)


def deep_attribute():
    o = Holder(part=Holder())
    return lambda x: x * o.part.lr + (1 - o.part.lr) * 2, lambda v: setattr(o.part, "lr", v)


def global_name():
    return lambda x: x * RATE, lambda v: globals().__setitem__("RATE", v)


def cell():
    rate = 1.0

    def change(value):
        nonlocal rate
        rate = value

    return lambda x: x + rate, change


def method():
    class Model:
        def step(self, x):
            return x * self.lr

    model = Model()
    return model.step, lambda v: setattr(model, "lr", v)


def item_of_a_dict():
    o = Holder(cfg={"lr": 1.0, "betas": (0.9, 0.99), "steps": 3})
    return lambda x: x * o.cfg["lr"] + o.cfg["betas"][0], lambda v: o.cfg.__setitem__("lr", v)


def parameter_groups():
    o = Holder(groups=[{"lr": 1.0, "sizes": [1, 2]}, {"lr": 5.0}])

    def f(x):
        for group in o.groups:
            x = x * group["lr"] + group.get("lr")
        for name, value in o.groups[0].items():
            if name == "lr":
                x = x - value
        return x

    return f, lambda v: o.groups[0].__setitem__("lr", v)


def unpacked_tuple():
    o = Holder()

    def f(x):
        a, b = o.betas
        return x * a + b * (1 - a)

    return f, lambda v: setattr(o, "betas", (v, 0.75))


def list_as_a_whole():
    o = Holder(rates=[1.0, 2.0])
    return lambda x: x * sum(o.rates) + hf.asarray(o.rates) + len(o.rates), lambda v: o.rates.__setitem__(0, v)


def branch():
    o = Holder()
    return lambda x: x * o.lr if hf.sum(x) > 0 else x - o.lr, lambda v: setattr(o, "lr", v)


def loop():
    o = Holder()

    def f(x):
        while hf.sum(hf.abs(x)) > 1.0:
            x = x * 0.5 - o.lr * 0.0
        return x + o.lr

    return f, lambda v: setattr(o, "lr", v)


def compiled_inside():
    o = Holder()
    inner = hf.compile(lambda x, s: x * s + o.lr)
    return lambda x: inner(x, o.lr) + inner(x, 2.0), lambda v: setattr(o, "lr", v)


def type_of_it():
    o = Holder()
    return lambda x: x * o.lr * (2.0 if type(o.lr) is float else 3.0), lambda v: setattr(o, "lr", v)


def read_through_library():
    o = Holder(cfg={"lr": 1.0})
    return lambda x: x * len(json.dumps(o.cfg)), lambda v: o.cfg.__setitem__("lr", v)


def functions_of_it():
    o = Holder()
    return lambda x: x * math.copysign(1.0, o.lr) + round(o.lr % 7, 1) + int(o.lr < 9), lambda v: setattr(o, "lr", v)


def compared():
    o = Holder()
    return lambda x: x * 2 if o.lr > 0.3 else x, lambda v: setattr(o, "lr", v)


def formatted():
    o = Holder()
    return lambda x: x * len(f"{o.lr}"), lambda v: setattr(o, "lr", v)


def by_name():
    o = Holder()
    return lambda x: x * getattr(o, "lr") + o.lr, lambda v: setattr(o, "lr", v)  # noqa: B009


def unconverted():
    o = Holder()

    @hf.no_convert
    def helper(x):
        return x * o.lr

    return lambda x: o.lr + helper(x), lambda v: setattr(o, "lr", v)


def stored_elsewhere():
    o = Holder(last=0.0)

    def f(x):
        o.last = o.lr
        return x * o.lr

    return f, lambda v: setattr(o, "lr", v)


def one_dict_in_two_places():
    shared = {"lr": 1.0}
    o = Holder(a=shared, b=collections.OrderedDict(x=shared))
    return lambda x: x * o.a["lr"] + o.b["x"]["lr"] * 10, lambda v: shared.__setitem__("lr", v)


INPUTS = [
    attribute, deep_attribute, global_name, cell, method, item_of_a_dict, parameter_groups, unpacked_tuple,
    list_as_a_whole, branch, loop, compiled_inside, type_of_it, by_name, stored_elsewhere,
]
COMPARED = [compared, functions_of_it]
BY_VALUE = [read_through_library, formatted, unconverted, one_dict_in_two_places]


def results(make, values, *, eager):
    f, change = make()
    compiled = hf.compile(f)
    found = []
    for value in values:
        change(value)
        with hf.config.run_eagerly(eager):
            found.append(compiled(hf.asarray([1.0, -2.0])).numpy())
    return found, compiled


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("make", [*INPUTS, *COMPARED, *BY_VALUE])
def test_every_value_gives_the_eager_bits(make, kind):
    expected, _ = results(make, VALUES[kind], eager=True)
    got, compiled = results(make, VALUES[kind], eager=False)
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_array_equal(one, other, strict=True)
        np.testing.assert_array_equal(np.signbit(one), np.signbit(other))
    assert compiled.trace_count == (2 if make in INPUTS else 3 if make in COMPARED else 7)


def test_explain_says_that_the_float_became_an_input():
    o = Holder(lr=0.5, cfg={"wd": 1.0})
    f = hf.compile(lambda x: x * o.lr + o.cfg["wd"])
    for _ in range(4):
        f(hf.asarray(1.0))
        o.lr *= 0.5
        o.cfg["wd"] *= 0.5
    first, second = f.explain()
    assert "o.lr is 0.5 (read at" in str(first)
    assert "o.lr: 0.5 -> 0.25" in second.reason
    assert "o.lr is a float, which is an input since it was seen to change (read at" in str(second)
    assert "o.cfg['wd'] is a float, which is an input since it was seen to change" in str(second)


def test_the_rest_of_a_container_still_counts():
    o = Holder(cfg={"lr": 0.5, "n": 2, "w": 1.0})
    f = hf.compile(lambda x: x * o.cfg["lr"] * o.cfg["n"] + len(o.cfg))
    x = hf.asarray(1.0)
    for rate in (0.5, 0.25, 0.125):
        o.cfg["lr"] = rate
        assert f(x).item() == rate * 2 + 3
    assert f.trace_count == 2
    for steps in (3, 5, 4):
        o.cfg["n"] = steps
        assert f(x).item() == 0.125 * steps + 3
    assert f.trace_count == 3
    o.cfg["n"] = 3
    assert f(x).item() == 0.125 * 3 + 3
    o.cfg["more"] = 1
    assert f(x).item() == 0.125 * 3 + 4
    o.cfg["lr"] = 2
    assert f(x).item() == 10.0
    assert f(x).dtype == hf.float32
    o.cfg = {"w": 0.0, "n": 1, "lr": 0.5}
    assert f(x).item() == 3.5


def test_a_container_in_two_places_that_part():
    o = Holder()
    o.a = o.b = [0.5, [0.25]]
    f = hf.compile(lambda x: x * o.a[0] + o.b[0] * 10 + o.a[1][0] * 100 + o.b[1][0] * 1000)
    expected = [280.5, 145.75, 163.4, 331.9, 731.9]
    changes = [
        lambda: None,
        lambda: (o.a.__setitem__(0, 0.75), o.a[1].__setitem__(0, 0.125)),
        lambda: setattr(o, "a", [0.9, [0.3]]),
        lambda: setattr(o, "b", [0.1, [0.3]]),
        lambda: setattr(o, "b", [0.1, [0.7]]),
    ]
    for change, value in zip(changes, expected, strict=True):
        change()
        assert f(hf.asarray(1.0)).item() == pytest.approx(value)


def test_a_list_that_holds_itself():
    o = Holder(a=[1.0, [2.0]])
    o.a[1].append(o.a)
    f = hf.compile(lambda x: x * o.a[0] + o.a[1][0])
    assert f(hf.asarray(1.0)).item() == 3.0
    o.a[0] = 4.0
    assert f(hf.asarray(1.0)).item() == 6.0
    o.a[1][0] = 5.0
    assert f(hf.asarray(1.0)).item() == 9.0


@pytest.mark.parametrize("outside", [True, False])
def test_tapes_gradients_and_variables(outside):
    o = Holder(lr=0.5)
    w = hf.Variable([1.0, 2.0])

    @hf.compile
    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.sum(w * w * x)
        w.assign_sub(o.lr * tape.gradient(loss, w))
        return loss * o.lr

    expected = np.array([1.0, 2.0], np.float32)
    x = hf.asarray([1.0, 2.0])
    for rate in (0.25, 0.125, 0.0625, -0.5):
        o.lr = rate
        if outside:
            with hf.GradientTape() as tape:
                tape.watch(x)
                loss = step(x)
            np.testing.assert_allclose(tape.gradient(loss, x).numpy(), expected**2 * rate, rtol=1e-6)
        else:
            step(x)
        expected = expected - np.float32(rate) * 2 * expected * x.numpy()
        np.testing.assert_allclose(w.numpy(), expected, rtol=1e-6)
    assert step.trace_count == 2


def test_errors_of_arithmetic_come_at_the_call():
    o = Holder(lr=2.0)
    f = hf.compile(lambda x: x * (1 / o.lr))
    for rate in (2.0, 4.0, 8.0):
        o.lr = rate
        assert f(hf.asarray(1.0)).item() == 1 / rate
    o.lr = 0.0
    with pytest.raises(ZeroDivisionError):
        f(hf.asarray(1.0))
    o.lr = 16.0
    assert f(hf.asarray(1.0)).item() == 1 / 16
    del o.lr
    with pytest.raises(AttributeError, match="lr"):
        f(hf.asarray(1.0))
    assert f.trace_count == 2


@pytest.mark.parametrize("write", ["o.lr *= 0.5", "o.lr = o.lr * 0.5", "lr = o.lr; o.lr = lr * 0.5"])
def test_a_float_that_the_function_writes_is_written_by_every_call(write, tmp_path):
    path = tmp_path / "schedule.py"
    path.write_text(f"def make(o):\n    def f(x):\n        {write}\n        return x * o.lr\n    return f\n")
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    o = Holder(lr=1.0)
    f = hf.compile(space["make"](o))
    got = [f(hf.asarray(1.0)).item() for _ in range(3)]
    o.lr = 1.0
    got += [f(hf.asarray(1.0)).item() for _ in range(3)]
    assert got == [0.5, 0.25, 0.125] * 2
    assert o.lr == 0.125


def test_locate_and_compare_take_floats():
    o = Holder(lr=0.5)
    f = hf.compile(lambda x, s: x * o.lr + s)
    for rate in (0.5, 0.25, 0.125):
        o.lr = rate
        f(hf.asarray(1.0), 2.0)
    assert f.trace_count == 2
    assert not hf.debugging.locate(f, hf.asarray(1.0), 2.0)
    assert hf.debugging.locate(f, hf.asarray(3e38), 3.3e38).op == "add"
    assert hf.compare(f, hf.asarray(1.0), 0.1, repeats=1).same
    assert f.cost(hf.asarray(1.0), 2.0).flops == 2
    assert "f32[]" in f.lower(hf.asarray(1.0), 2.0).as_text("graph")


def test_clear_cache_forgets_the_floats_too():
    o = Holder(lr=0.5)
    f = hf.compile(lambda x: x * o.lr)
    for rate in (0.5, 0.25):
        o.lr = rate
        f(hf.asarray(1.0))
    f.clear_cache()
    f(hf.asarray(1.0))
    assert "o.lr is 0.25" in str(f.explain()[-1])


# -- numbers that live anywhere, are used in any way, and change in any way ----------------------------------------

PLACES = {
    "attribute": ("o.t", ""), "global": ("G", "global G"), "cell": ("c", "nonlocal c"), "dict": ("d['t']", ""),
    "list": ("l[1]", ""), "deep": ("o.inner.t", ""), "class": ("K.t", ""), "module": ("m.t", ""),
    "last": ("l[-1]", ""), "nested": ("o.nested['a'][1]['t']", ""), "counter": ("o.counter['t']", ""),
    "default": ("o.default['t']", ""), "ordered": ("o.ordered['t']", ""), "deque": ("o.queue[0]", ""),
    "missing": ("o.missing['t']", ""), "two": ("o.one['t']", "", "o.two[0]['t']"),
    "two after": ("o.two[0]['t']", "", "o.one['t']"), "base": ("K.__base__.t", "", "b.t"),
    "class of": ("type(k).t", "", "k.t"), "subclass": ("K.t", "", "type(k)().t"),
    "inherited": ("K.__base__.t", "", "type(b).t"), "got": ("d['t']", "", "d.get('t')"),
    "values": ("o.nested['a'][1]['t']", "", "[*o.nested['a'][1].values()][0]"),
    "long": ("o.long[70]", ""), "file": ("f.n", "", "f.get()"), "file's": ("f.n", "", "vars(f)['n']"),
}
"""How a place is written, what a function declares for that, and how it is read, if that differs."""
WRITES = [
    "pass", "{p} += 1", "{p} = {p} * 2", "{p} = n", "{p} = {p} + 0.5", "before = {p}; {p} = 7",
    "for _ in range(3): {p} += n",
]
USES = [
    "x * {p}", "x[{p} % 3]", "x * len(range({p} % 4))", "x * 2 if {p} > 2 else x", "x * len(f'{{{p}}}')",
    "x * {{1: 2.0}}.get({p}, 3.0)", "x * 0.9 ** {p}", "x * (type({p}) is int) + isinstance({p}, int)",
    "x / ({p} + 1) - {p} // 2", "hf.where(hf.sum(x) > 0, x, {p})", "x[{p} % 2 : {p} % 2 + 2]", "x[-{p}:][:1]",
    "x.at[{p} % 2 :].set(0.0)", "x * max({p}, 2) + min(3, {p})", "x * 2 if {p} % 2 else x", "x * 2 ** ({p} % 5)",
    "x * math.cos({p}) + math.sqrt({p})", "x * round({p} / 3, 1) + int({p} * 0.5)",
    "x * divmod({p}, 2)[1] * {p} ** 0.5",
    "x * sorted([{p}, 2.0, 1])[1] + (0 < {p} <= 2)", "x if {p} != 2 and {p} else x * math.floor({p})",
]


class Number(enum.IntEnum):
    A = 1
    B = 2
    C = 3


CHANGES = {
    "none": (), "ints": (1, 2, 3, -1, 7, 2), "mixed": (1, 2.5, True, 2**40, -3, 7),
    "floats": (0.5, 1.0, -0.0, 2.0, 3.0, 0.5), "numpy": (np.int64(1), np.int64(2), 3, np.float32(2), 5, 6),
    "enum": (Number.A, Number.B, 2, Number.C, Number.A, 1),
}
SOURCE = """
import math
G = 1
def make(o, d, l, K, k, b, m, f, hf):
    c = 1
    def step(x, n):
        {names}
        {first}
        {second}
        return y
    def put(value):
        {names}
        {p} = value
    def get():
        return {p}
    return step, put, get
"""
FILE = "n = 1\ndef get(): return n\n"

PROGRAMS = random.Random(0).sample([*itertools.product(PLACES, WRITES, USES, (False, True), CHANGES)], 15_000)
ONE_TRACE_MORE = [(place, write, "x * {p}", late, "none") for place in PLACES if place != "file's"
                  for write in WRITES[1:4] for late in (False, True)]


def containers():
    one = {"u": 2, "t": 1}
    return {
        "nested": {"a": [0.5, {"t": 1}], "t": 3}, "counter": collections.Counter(t=1, u=2),
        "default": collections.defaultdict(int, t=1), "missing": collections.defaultdict(int),
        "ordered": collections.OrderedDict(u=2, t=1), "queue": collections.deque([1, 2.5]), "one": one, "two": [one],
        "long": [*range(100)],
    }


def seen_in(program, path, *, eager):
    """Return what six calls of a program give and leave behind, and the number of traces."""
    place, write, use, late, change = program
    p, names, *read = PLACES[place]
    lines = [write.format(p=p), f"y = {use.format(p=read[0] if read else p)}"]
    first, second = reversed(lines) if late else lines
    path.write_text(SOURCE.format(names=names or "pass", first=first, second=second, p=p))
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    module = hf.nn.Module()
    module.t = 1
    o, kind = Holder(t=1, inner=Holder(t=1), **containers()), type("K", (type("B", (), {"t": 1}),), {"t": 1})
    beside = type("Beside", kind.__bases__, {})()
    (path.parent / "of_a_file.py").write_text(FILE)
    spec = importlib.util.spec_from_file_location("of_a_file", path.parent / "of_a_file.py")
    file = importlib.util.module_from_spec(spec)
    sys.modules["of_a_file"] = file
    spec.loader.exec_module(file)
    f, put, get = space["make"](o, {"t": 1, "u": 2}, [0, 1, 2], kind, kind(), beside, module, file, hf)
    compiled = hf.compile(f)
    seen = []
    for number in range(6):
        if CHANGES[change]:
            put(CHANGES[change][number])
        with hf.config.run_eagerly(eager):
            try:
                y = compiled(hf.asarray([1.0, 2.0, 3.0]), number * number)
                found = y.dtype, y.tolist()
            except Exception as error:
                found = type(error), str(error)
        seen.append((found, type(get()), repr(get())))
    return seen, compiled.trace_count


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize(
    "part", [0, *[pytest.param(one, marks=pytest.mark.rest) for one in range(1, len(PROGRAMS) // 60)]]
)
def test_numbers_wherever_they_are_however_they_are_used(part, tmp_path):
    for number, program in enumerate(PROGRAMS[part * 60 : part * 60 + 60]):
        with without_xla():
            expected, _ = seen_in(program, tmp_path / f"eager_{number}.py", eager=True)
            assert seen_in(program, tmp_path / f"compiled_{number}.py", eager=False)[0] == expected, program


@pytest.mark.parametrize("program", ONE_TRACE_MORE)
def test_a_counter_that_the_call_writes_makes_two_traces(program, tmp_path):
    with without_xla():
        expected, _ = seen_in(program, tmp_path / "eager.py", eager=True)
        assert seen_in(program, tmp_path / "compiled.py", eager=False) == (expected, 2)


BOXES = {
    "dict": ("{'u': 2, 't': 1, 'v': 0.5}", "'t'"), "counter": ("collections.Counter(u=2, t=1)", "'t'"),
    "default": ("collections.defaultdict(int, u=2)", "'t'"), "ordered": ("collections.OrderedDict(u=2, t=1)", "'t'"),
    "list": ("[1, 2, 0.5]", "0"), "deque": ("collections.deque([1, 2, 0.5])", "-1"), "nested": ("[[1, 2], 3]", "1"),
}
STORES = [
    "c[{k}] += 1", "c[{k}] = c[{k}] * 2", "c[{k}] = n", "pass", "c[{k}], old = n, c[{k}]", "c[{k}] += n; c[{k}] -= 0.5",
    "b = c; b[{k}] += n", "h.c = h.d; c[{k}] += 1", "h.c = copy.copy(c); h.c[{k}] += 1", "c[{k}] = [n]", "keep(c)",
    "[c.__setitem__({k}, n), 0]", "h.d[{k}] += 1; c[{k}] += 1", "c.clear(); c.{add}(n)", "c.{add}(n)", "del c[{k}]",
    "c[{k}] = 'a'", "c[{k}] += 1; 1 / (n - 1)", "c = h.d = {{**c}} if isinstance(c, dict) else [*c]; c[{k}] += 1",
]
SEEN = {
    "both": ["c[{k}]", "len(c)", "sum(map(float, flat(c)))", "sorted(map(float, flat(c)))[0]", "len(str(c))",
             "copy.copy(c)[{k}]", "copy.deepcopy(c)[{k}]", "len(json.dumps(flat(c)))", "looked(c)", "(c == h.d) + 1.0",
             "read_again()", "h.d[{k}]", "min(flat(c), default=1)", "hf.asarray(flat(c)).sum()", "np.sum(flat(c))",
             "[one for one in flat(c)][-1]", "pickle.loads(pickle.dumps(c))[{k}]", "len(repr(c[{k}]))",
             "type(c[{k}])(3)"],
    "dict": ["c.get('t', 1)", "[*c.items()][-1][1]", "dict(c)['t']", "{{**c}}['t']", "(lambda **k: k['t'])(**c)",
             "(c | {{'w': 2}})['t']", "c.setdefault('t', 4)", "c.copy()['t']", "('t' in c) + 1", "c.pop('u', 3)"],
    "list": ["c[-1]", "[*c][-1]", "c.index(c[-1]) + 1", "c.count(2)", "(2 in c) + 1", "tuple(c)[-1]", "c.copy()[-1]",
             "[*reversed(c)][0]", "max(enumerate(c))[0]", "c.pop()"],
}
BOXED = """
import collections, copy, json, pickle
def make(h, hf, np):
    def flat(c):
        return [one for one in (c.values() if isinstance(c, dict) else c) if not isinstance(one, (list, str))]
    @hf.no_convert
    def looked(c):
        return sum(flat(c))
    @hf.no_convert
    def read_again():
        return sum(flat(h.d))
    @hf.no_convert
    def keep(c):
        h.kept = c
    def step(x, n):
        c = h.c
        {first}
        {second}
        return y
    return step
"""
HELD = [
    (box, store, seen, late, alike) for box, (_, key) in BOXES.items() for store in STORES
    for seen in SEEN["both"] + SEEN["dict" if key == "'t'" else "list"] for late in (False, True)
    for alike in (False, True)
]
HELD = random.Random(2).sample(HELD, 4000)


def seen_in_a_box(program, path, *, eager):
    """Return what calls give, and leave in a container that they write to and see in other ways."""
    box, store, seen, late, alike = program
    text, key = BOXES[box]
    lines = [store.format(k=key, add="append" if key != "'t'" else "setdefault"), f"y = x * {seen.format(k=key)}"]
    first, second = reversed(lines) if late else lines
    path.write_text(BOXED.format(first=first, second=second))
    space = {"__name__": "of_a_box"}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)

    def boxes():
        made = eval(text, {"collections": collections})
        return {"c": made, "d": made if alike else eval(text, {"collections": collections})}

    h = Holder(**boxes())
    compiled, found = hf.compile(space["make"](h, hf, np)), []
    for number in (3, 5, 2, 1, 0.5):
        with hf.config.run_eagerly(eager):
            try:
                y = compiled(hf.asarray([1.0, 2.0]), number)
                got = str(y.dtype), y.tolist()
            except Exception as error:
                got = type(error)
                assert "Traced" not in repr(vars(h))
                vars(h).update(boxes())  # a call that fails leaves what it found
            found.append((got, repr((h.c, h.d, getattr(h, "kept", 0))), h.c is h.d))
    return found


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("part", [0, *[pytest.param(one, marks=pytest.mark.rest) for one in range(1, 200)]])
def test_containers_that_a_call_writes_and_sees_in_other_ways(part, tmp_path):
    with without_xla():
        for number, program in enumerate(HELD[part::200]):
            expected = seen_in_a_box(program, tmp_path / f"eager_{number}.py", eager=True)
            assert seen_in_a_box(program, tmp_path / f"compiled_{number}.py", eager=False) == expected, program


PUTS = {
    "h.": ["h.{n} = v", "setattr(h, '{n}', v)", "vars(h)['{n}'] = v", "vars(h).update({n}=v)", "h.{n}, old = v, h.{n}",
           "h.__dict__ |= {{'{n}': v}}", "h.__dict__.pop('{n}'); h.{n} = v", "del h.{n}; h.{n} = v"],
    "": ["{n} = v", "globals()['{n}'] = v", "globals().update({n}=v)", "globals().__setitem__('{n}', v)",
         "globals().pop('{n}'); {n} = v", "{n}, old = v, {n}", "del {n}; {n} = v", "globals().setdefault('{n}', v)"],
}
NEW = {
    "o": ["Holder(w=0.5)", "copy.copy({p}o)", "Holder(w={p}o.w + 1)", "{p}other", "pickle.loads(pickle.dumps({p}o))"],
    "t": ["7.0", "{p}t * 2", "{p}t", "{p}other.w", "3"],
}
AFTER = ["pass", "{r} += 1", "{r} = {r} * 2", "x = x + {r}"]
REPLACED = [*itertools.product(PUTS, range(8), (False, True), NEW, range(5), AFTER)]
random.Random(1).shuffle(REPLACED)


def seen_after(program, path, *, eager):
    """Return what a call that replaces what it has read gives, and leaves in the object, call by call."""
    p, put, reads_first, n, new, after = program
    r = f"{p}{n}.w" if n == "o" else f"{p}{n}"
    names = "pass" if p else f"global {n}"
    first, last = f"x = x * {r}" if reads_first else "pass", f"return x * {r}"
    lines = [names, first, f"v = {NEW[n][new].format(p=p)}", PUTS[p][put].format(n=n), after.format(r=r), last]
    path.write_text("\n    ".join(["import copy, pickle\ndef f(x):", *lines]))
    h = Holder(o=Holder(w=0.5), t=0.5, other=Holder(w=3.0))
    space = vars(h) | {"h": h, "Holder": Holder}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    compiled = hf.compile(space["f"])
    held, seen = vars(h) if p else space, []
    for number in range(4):
        with hf.config.run_eagerly(eager):
            y = compiled(hf.asarray(1.0)).item()
        seen.append((y, held["t"], held["o"].w, held["other"].w))
        held["t"] += number
        held["o"].w += number
    return seen


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("part", [0, *[pytest.param(one, marks=pytest.mark.rest) for one in range(1, 64)]])
def test_what_a_call_puts_in_place_of_what_it_read(part, tmp_path):
    with without_xla():
        for number, program in enumerate(REPLACED[part::64]):
            expected = seen_after(program, tmp_path / f"eager_{number}.py", eager=True)
            assert seen_after(program, tmp_path / f"compiled_{number}.py", eager=False) == expected, program


CLASS_STEPS = [
    "x = x * o.t", "x = x + kind.t", "x = x - base.t * 2", "x = x * getattr(o, 't')", "base.t += 1", "base.t = n",
    "kind.t = kind.t + n", "kind.t *= 2", "o.t = o.t + 0.5", "del_own(o)", "unseen(base, n)", "unseen(o, n)",
    "base.t = o.t * 2",
]
"""What a call does with a number that an object may find in its class, or in the base of that."""
CLASS_PROGRAMS = [*itertools.product(itertools.permutations(CLASS_STEPS, 3), ("o", "kind", "base"))]
random.Random(2).shuffle(CLASS_PROGRAMS)


def del_own(o):
    if "t" in vars(o):
        del o.t


@hf.no_convert
def unseen(holder, n):
    holder.t = n * 3


def seen_in_classes(steps, where, path, *, eager):
    """Return what each call gives, and the numbers that it leaves; between calls one of them is set from outside."""
    base = type("Base", (), {"t": 1})
    kind = type("Kind", (base,), {})
    o = kind()
    path.write_text("\n    ".join(["def f(x, n):", *steps, "return x * o.t"]))
    space = {"o": o, "kind": kind, "base": base, "unseen": unseen, "del_own": del_own}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    compiled = hf.compile(space["f"])
    found = []
    for number in range(6):
        if number == 3:
            space[where].t = 30
        with hf.config.run_eagerly(eager):
            y = compiled(hf.asarray(1.0), number % 4).item()
        found.append((y, base.t, kind.t, o.t, vars(o).get("t")))
    return found


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("part", [0, *[pytest.param(one, marks=pytest.mark.rest) for one in range(1, 128)]])
def test_numbers_in_classes_are_found_as_python_finds_them(part, tmp_path):
    with without_xla():
        for number, (steps, where) in enumerate(CLASS_PROGRAMS[part::128]):
            expected = seen_in_classes(steps, where, tmp_path / f"eager_{number}.py", eager=True)
            found = seen_in_classes(steps, where, tmp_path / f"compiled_{number}.py", eager=False)
            assert found == expected, (steps, where)


WRITERS = [
    "unseen(o, 3.0)", "o.__dict__ = {'t': 9.0}", "Special(o)['z']", "{Special(o): 1}", "[1, 2][Special(o)]",
    "float(Special(o))", "'%s' % Special(o)", "'{}'.format(Special(o))", "list(itertools.starmap(unseen, [(o, 3.0)]))",
    "collections.defaultdict(lambda: unseen(o, 3.0))['z']", "functools.lru_cache(unseen)(o, 3.0)",
    "exec('o.t = 9.0', {'o': o})", "with contextlib.ExitStack() as stack: stack.callback(unseen, o, 3.0)",
    "sorted([2, 1], key=lambda k: unseen(o, 3.0) or k)", "re.sub('a', lambda _: unseen(o, 3.0) or 'b', 'a')",
]
"""Statements by which code that is not converted stores 9.0 in ``o.t``."""


class Special(dict):
    def __init__(self, o):
        self.o = o

    def __missing__(self, key):
        self.o.t = 9.0
        return 1

    def __index__(self):
        return self[0]

    def __float__(self):
        return float(self[0])

    def __str__(self):
        return str(self[0])

    def __format__(self, spec):
        return str(self[0])

    __hash__ = __index__


@pytest.mark.filterwarnings("ignore::hybridflow.EffectWarning", "ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_number_that_code_stores_unseen_is_read_again(writer, tmp_path):
    path = tmp_path / "program.py"
    path.write_text("\n    ".join(["def f(x):", "a = o.t", writer, "return x * a + o.t"]))

    def run(eager):
        o = Holder(t=1.0)
        space = {
            "o": o, "unseen": unseen, "Special": Special, "itertools": itertools, "collections": collections,
            "functools": functools, "contextlib": contextlib, "re": re,
        }
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        compiled = hf.compile(space["f"])
        found = []
        for number in range(5):
            if number == 3:
                o.t = 7.0
            with hf.config.run_eagerly(eager):
                found.append((compiled(hf.asarray(1.0)).item(), o.t))
        return found

    with without_xla():
        assert run(False) == run(True)


MOVED = {
    "attribute": ("", "o.t {0}", "o.t"),
    "item of a dict": ("", "o.d['t'] {0}", "o.d['t']"),
    "item of a list": ("", "o.l[0] {0}", "o.l[0]"),
    "attribute of a class": ("", "Kind.t {0}", "Kind.t"),
    "attribute of a function": ("", "fn.t {0}", "fn.t"),
    "global": ("global t", "t {0}", "t"),
    "nonlocal": ("nonlocal t", "t {0}", "t"),
}
"""Where a number lives: its declaration, a statement that changes it, and an expression that reads it."""


def made(where, lines, path):
    """Return a function, from a file, and one that reads the number that it changes."""
    declared, _, read = MOVED[where]
    head = ["def make(o, Kind, fn):", "    t = 1.0" if where == "nonlocal" else "    pass", "    def f(x):"]
    body = [f"        {line}" for line in (declared or "pass", *lines)]
    tail = [f"    return f, lambda: {read}"]
    path.write_text("\n".join(["import hybridflow as hf", "t = 1.0", *head, *body, *tail]))
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    fn = lambda: None  # noqa: E731
    fn.t = 1.0
    return space["make"](Holder(t=1.0, d={"t": 1.0}, l=[1.0]), type("Kind", (), {"t": 1.0}), fn)


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("change", ["*= 2", "+= 3"])
@pytest.mark.parametrize("where", MOVED)
def test_a_call_that_fails_in_a_new_trace_leaves_numbers(where, change, tmp_path):
    statement = MOVED[where][1].format(change)
    lines = [statement, "if hf.sum(x) < 0: raise ValueError('less')", statement, f"return x * {MOVED[where][2]}"]

    def run(eager):
        f, read = made(where, lines, tmp_path / f"{eager}.py")
        f = hf.compile(f)
        found = []
        for x in ([1.0], [1.0, 2.0], [-1.0, -2.0, -3.0], [1.0], [-1.0] * 4, [1.0]):
            with hf.config.run_eagerly(eager):
                try:
                    found.append(f(hf.asarray(x)).tolist())
                except ValueError as error:
                    found.append(str(error))
            found.append((type(read()), read()))
        return found

    assert run(False) == run(True)


MADE = [
    ("o.d['k'] = d = {'b': 1}", "d['b'] = 2"), ("d = []; o.l.append(d)", "d.append(2)"),
    ("d = [[]]; o.t = d", "d[0].append(2)"), ("o.l = [{}]", "o.l[0]['b'] = 2"),
    ("d = Holder(); o.t = (d, 1)", "d.b = 2"), ("d = Holder(); o.d['k'] = [d]", "helper(d)"),
]
"""What a call makes and stores, and how it changes that later."""


def helper(made):
    made.b = 2


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("program", MADE)
def test_a_call_that_fails_takes_back_what_came_later_in_what_it_made(program, tmp_path):
    store, change = program
    path = tmp_path / "program.py"
    path.write_text("\n    ".join(["def f(x):", store, "if hf.sum(x) < 0: raise ValueError", change, "return x"]))

    def run(eager):
        o = Holder(t=0, d={}, l=[])
        space = {"o": o, "hf": hf, "Holder": Holder, "helper": helper}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        f, found = hf.compile(space["f"]), []
        for x in (-1.0, 1.0, -1.0, -1.0):
            with hf.config.run_eagerly(eager), contextlib.suppress(ValueError):
                f(hf.asarray(x))
            found.append(json.dumps(vars(o), default=vars))
        return found

    assert run(False) == run(True)


UNSEEN_AFTER = ["o.{0} = 3", "o.{0} = float(o.{0} > 1)", "if o.{0} > 1: o.{0} = o.{0} > 1", "o.{0} = n", "o.{0} += 1"]


@hf.no_convert
def one_more(holder, key):
    holder[key] = holder[key] + 1


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("write", UNSEEN_AFTER)
@pytest.mark.parametrize("place", ["l[0]", "d['t']", "t"])
def test_what_code_stores_unseen_after_the_call_has_is_stored_by_every_call(place, write, tmp_path):
    holder, key = {"l[0]": ("o.l", "0"), "d['t']": ("o.d", "'t'"), "t": ("vars(o)", "'t'")}[place]
    path = tmp_path / "program.py"
    lines = ["def f(x, n):", write.format(place), f"one_more({holder}, {key})", f"return x * o.{place}"]
    path.write_text("\n    ".join(lines))

    def run(eager):
        o = Holder(t=2, d={"t": 2}, l=[2])
        space = {"o": o, "one_more": one_more}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        f, found = hf.compile(space["f"]), []
        for number in (5, 5, 5, 7, 7, 5):
            with hf.config.run_eagerly(eager):
                found.append((f(hf.asarray(1.0), number).item(), repr(vars(o))))
        return found

    with without_xla():
        assert run(False) == run(True)


UNSEEN_CHANGES = [
    ("d", "S = {'a': 2.0, 'b': 1}", "d.update(a=7.0)", "unseen(S)", "S['a']"),
    ("d", "S = {'a': 2.0, 'b': 1}", "d.pop('a'); d['a'] = 7.0", "unseen(S)", "S['a']"),
    ("d", "S = {'a': 2.0, 'b': 1}", "d.clear(); d['a'] = 7.0", "unseen(S)", "S['a']"),
    ("d", "S = [2.0, 1.0]", "d[:] = [7.0, 8.0]", "unseen(S)", "S[0]"),
    ("d", "S = [[2.0, 1.0]]", "d[:] = [7.0, 8.0]", "unseen(S[0])", "S[0][0]"),
    ("d", "S = {'l': [2.0]}", "d['l'][0] = 7.0", "unseen(S)", "S['l'][0]"),
    ("d", "S = [2.0]", "d.__setitem__(0, 7.0)", "list(itertools.starmap(unseen, [(S,)]))", "S[0]"),
    ("d", "S = 2.0", "global S; S = d", "S = S + 1; unseen(7.0)", "S"),
    ("d", "S = 2.0", "global S; S = d", "S = 3.0; unseen(7.0)", "S"),
    ("d", "S = 2.0", "global S; S = S + d", "unseen(7.0); S = S * 2", "S"),
]
"""What code that is not converted does to what it is given or to a global, in a call."""


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("program", UNSEEN_CHANGES)
def test_what_code_changes_unseen_is_changed_by_every_call(program, tmp_path):
    given, setup, change, body, read = program
    path = tmp_path / "program.py"
    lines = [
        "import itertools, hybridflow as hf", setup, "@hf.no_convert", f"def unseen({given}):", f"    {change}",
        "def f(x):", "    global S", f"    {body}", f"    return x * {read}",
    ]
    path.write_text("\n".join(lines))

    def run(eager):
        space = {}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        f, found = hf.compile(space["f"]), []
        for number in range(7):
            if number in (2, 4):
                exec(f"{read} = {number}.0", space)
            with hf.config.run_eagerly(eager):
                found.append((f(hf.asarray(1.0)).item(), repr(space["S"])))
        return found

    with without_xla():
        assert run(False) == run(True)


LOOPS = ["for row in x:", "while hf.sum(x) > 0:", "for i in range(hf.argmax(x)):", "if hf.sum(x) > 0:"]


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("where", ["global", "nonlocal"])
def test_a_body_that_may_not_change_a_name_leaves_it(where, loop, tmp_path):
    lines = ["y = x", loop, f"    {MOVED[where][1].format('/= 2')}", "    y = y * t", "    x = x - 1", "return y"]
    f, read = made(where, lines, tmp_path / "program.py")
    for _ in range(2):
        with pytest.raises(hf.core.errors.MutationError):
            hf.compile(f)(hf.asarray([1.0, 2.0]))
        assert (type(read()), read()) == (float, 1.0)


def of_a_new_object(kind, x):
    return x * kind().t


def of_a_new_class(kind, x):
    class Made(kind):
        pass

    return x * Made.t + Made().t


def of_super(kind, x):
    class Made(kind):
        def get(self):
            return super().t

    return x * Made().get()


def of_the_class_after_a_write(kind, x):
    kind.t += 1
    return x * kind().t


@pytest.mark.parametrize("f", [of_a_new_object, of_a_new_class, of_super, of_the_class_after_a_write])
def test_numbers_of_classes_that_are_read_through_what_the_call_makes(f):
    kind, again = type("Kind", (), {"t": 1}), type("Kind", (), {"t": 1})
    compiled = hf.compile(lambda x: f(kind, x))
    for number in (1, 2, 3, 3, 0.5, 5):
        kind.t = again.t = number
        assert compiled(hf.asarray(2.0)).item() == f(again, hf.asarray(2.0)).item()
        assert kind.t == again.t


class Failing(Exception):
    pass


def failing(o, x, n):
    o.d["t"] += n
    o.d["l"][0] *= 2
    if o.fails:
        raise Failing(o.d)
    return x * o.d["t"]


@pytest.mark.parametrize("first", range(4))
def test_containers_hold_numbers_after_calls_that_fail_and_traces_that_only_show(first):
    o = Holder(d={"t": 1, "l": [1, 2]}, fails=False)
    compiled = hf.compile(lambda x, n: failing(o, x, n))
    for number in range(first):
        compiled(hf.asarray(1.0), number + 1)
    before = copy.deepcopy(o.d)
    compiled.lower(hf.asarray([1.0]), 7)
    assert repr(o.d) == repr(before)
    o.fails = True
    with pytest.raises(Failing):
        compiled(hf.asarray([1.0, 2.0]), 5)
    assert [type(one) for one in (o.d["t"], *o.d["l"])] == [int] * 3
    o.fails = False
    t = o.d["t"]
    assert compiled(hf.asarray(1.0), 3).item() == t + 3 == o.d["t"]


def test_a_counter_in_a_dict_is_two_traces_beside_all_that_is_read():
    state = {"step": 0, "seen": 0.0, "name": "a", "groups": [{"lr": 0.5, "decay": 0.0}]}

    @hf.compile
    def step(x):
        state["step"] += 1
        for group in state["groups"]:
            group["lr"] *= 0.5
        state["seen"] += len(x) * 0.5
        return x * state["step"] - state["groups"][0]["lr"] * state["seen"]

    for number in range(1, 20):
        y = step(hf.asarray([1.0, 2.0]))
        groups = [{"lr": 0.5 ** (number + 1), "decay": 0.0}]
        assert state == {"step": number, "seen": number * 1.0, "name": "a", "groups": groups}
        np.testing.assert_allclose(y.numpy(), np.array([1, 2]) * number - 0.5 ** (number + 1) * number, rtol=1e-6)
    assert step.trace_count == 2


def stored_first(o, x, n):
    o.a = o.a + n
    return x * o.a


def counted(o, x, n):
    o.b += 1
    y = x * n
    o.a += 1
    return y


def handled(o, x, n):
    try:
        y = x * n
    except OverflowError:
        y = x * 3
    return y


@pytest.mark.parametrize("f", [stored_first, counted, handled])
@pytest.mark.parametrize("numbers", [[1.0, 2.0, 10**400, 3.0, 4], [1, 2, 3, 10**400, 5], [1, 2**200, 2, 3, 2**200, 4]])
def test_a_number_that_does_not_fit_fails_its_own_call_only(f, numbers):
    o, again = Holder(a=1.0, b=0), Holder(a=1.0, b=0)
    compiled = hf.compile(lambda x, n: f(o, x, n))
    for number in numbers:
        before = dict(vars(o))
        vars(again).update(before)
        found = answer(compiled, hf.asarray(1.0), number)
        assert found == answer(lambda x, n: f(again, x, n), hf.asarray(1.0), number)
        failed = isinstance(found[0], type)
        assert vars(o) == (before if failed else vars(again)) or (failed and vars(o) == vars(again))


def test_long_chains_of_numbers_take_no_time():
    o = Holder(a=1, b=1)

    def f(x):
        for _ in range(60):
            o.a, o.b = o.b, o.a + o.b
        return x * (o.a % 7)

    compiled = hf.compile(f)
    a, b = 1, 1
    for _ in range(3):
        found = compiled(hf.asarray(1.0)).item()
        for _ in range(60):
            a, b = b, a + b
        assert (found, o.a, o.b) == (a % 7, a, b)
    assert compiled.trace_count == 2


def test_a_module_that_counts_its_calls_makes_two_traces():
    class Net(hf.nn.Module):
        def __init__(self):
            self.w, self.calls = hf.Variable([1.0, 2.0]), 0

        def forward(self, x):
            self.calls += 1
            return hf.sum(self.w * x) * self.calls

    net = Net()
    optimizer = hf.optim.SGD(net, 0.1)

    @hf.compile
    def step(x):
        with hf.GradientTape() as tape:
            loss = net(x)
        optimizer.update(tape.gradient(loss, net))
        return loss

    for _ in range(4):
        step(hf.asarray([0.5, 1.0]))
    assert (net.calls, step.trace_count) == (4, 2)


KEYS_OF_DICTS = (None, (None,), len, Holder())
NUMBERS_UNDER_KEYS = (
    "return x * d[k]",
    "d[k] += 1\n    return x * d[k]",
    "d[k] = d.get(k, 0) + len(d)\n    return x + d[k]",
    "d['j'], d[k] = d[k], d['j'] + 1\n    return x * d['j'] - d[k]",
    "return x * sum(d.values()) + d[k]",
    "e = {**d, k: d[k] + 2}\n    return x * e[k] + d['j']",
    "return x * d[k] if k in d else x",
)


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("program", NUMBERS_UNDER_KEYS)
def test_a_number_may_lie_under_any_key(program, tmp_path):
    path = tmp_path / "keys.py"
    path.write_text(f"def f(x, d, k):\n    {program}\n")
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)

    def results_of(way, key):
        box = Holder(d={"i": 1.5, key: 2, "j": 3})
        f = way(lambda x: space["f"](x, box.d, key))
        for number in range(3):
            box.d[key] += number
            yield f(hf.asarray(2.0)).item(), [*box.d.items()]

    for key in KEYS_OF_DICTS:
        assert [*results_of(hf.compile, key)] == [*results_of(lambda f: f, key)], key

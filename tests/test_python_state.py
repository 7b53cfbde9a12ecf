"""What a compiled function changes of Python's state is changed once per call, and by calls alone."""

import collections
import copy
import gc
import heapq
import itertools
import json
import math
import operator
import random
import types
import warnings

import numpy as np
import pytest

import hybridflow as hf
from hybridflow import passes
from hybridflow.core.errors import ArgumentError, TraceError

COUNT = 0


class Holder:
    def __init__(self, **values):
        vars(self).update(values)


def x():
    return hf.asarray([1.0, 2.0])


def first_and_later():
    """The value of the first call is not that of later ones."""
    o = Holder(buf=None, lr=1.0)

    def f(x):
        if o.buf is None:
            o.buf = hf.Variable(hf.sum(x))
            return x * 100
        o.lr *= 0.5
        o.buf.assign(o.buf * 0.5 + o.lr)
        return x * o.buf

    return o, f


def momentum():
    o = Holder(buf=None, lr=1.0, t=0, log=[], table={}, seen={0})

    def f(x):
        if o.buf is None:
            o.buf = hf.Variable(0.0)
        o.lr *= 0.5
        o.t += 1
        o.log.append(o.t)
        o.table[o.t] = o.lr
        o.seen.add(o.t)
        o.buf.assign_add(o.lr)
        return x * o.t + o.buf * len(o.log) + len(o.table) + len(o.seen)

    return o, f


def names():
    o = Holder()
    count = 0

    def f(x):
        global COUNT
        nonlocal count
        if not hasattr(o, "w"):
            o.w = hf.Variable(1.0)
        COUNT += 1
        count += 2
        return x * (COUNT - start) + count * o.w

    start = COUNT
    return o, f


def several_traces():
    o = Holder(buffers=[], calls=0)

    def f(x):
        o.calls += 1
        if len(o.buffers) < 3:
            o.buffers.append(hf.Variable(float(o.calls)))
        for one in o.buffers:
            one.assign_add(x[0])
        return x * sum([one.read() for one in o.buffers]) * o.calls

    return o, f


def compiled_inside():
    o = Holder(a=None, b=None, t=0)

    @hf.compile
    def inner(x):
        if o.a is None:
            o.a = hf.Variable(2.0)
        o.t += 1
        return x * o.a * o.t

    def f(x):
        if o.b is None:
            o.b = hf.Variable(3.0)
        o.t *= 2
        return inner(x) + inner(x) * o.b

    return o, f


def built():
    o = Holder(built=False, times=0)

    def f(x):
        if not o.built:
            o.w = hf.Variable(hf.random.normal(x.shape))
            o.built = True
            o.times += 1
        return x * o.w + hf.random.uniform(()) + o.times

    return o, f


def put_back_by_the_user():
    """A trace must not run again where what it writes would be skipped."""
    o = Holder(t=0)

    def g(x):
        o.t += 1
        return x * o.t

    compiled = hf.compile(g)

    def f(x):
        o.t = 0
        return compiled(x) + o.t

    return o, f


def look_after_change(look):
    """What is changed and then looked at, in ways that are not a name, an attribute or an item."""

    def make():
        o = Holder(n=0, log=[], table={}, seen=set(), ring=collections.deque())

        def f(x):
            o.log.append(1.0)
            o.table["n"] = o.table.get("n", 0) + 1
            o.n += 1
            return x * look(o)

        return o, f

    return make


def pattern(o):
    match o.log:
        case [_]:
            return 1
        case [_, *rest]:
            return 10 * len(rest)


LOOKED = {
    "equal": lambda o: 1 if o.log == [1.0] else 2,
    "compared": lambda o: 1 if o.log > [1.0, 1.0] else 2,
    "shown": lambda o: len(f"{o.log}"),
    "joined": lambda o: len(operator.add(o.log, [2.0])),
    "added": lambda o: len(o.log + o.log),
    "repeated": lambda o: len(o.log * 2),
    "matched": pattern,
    "by name": lambda o: (lambda log: len([*log]))(o.log),
    "inside": lambda o: 1 if (o.log, 1) == ([1.0], 1) else 2,
    "vars": lambda o: vars(o)["n"],
    "dict": lambda o: o.__dict__["n"],
    "library": lambda o: len(json.dumps({"log": o.log})),
    "aliased": lambda o: sum([one.n for one in (o,)]),
}


def only_changed(change):
    """What nothing of the function looks at."""

    def make():
        o = Holder(n=0, log=[], table={"n": 0}, seen=set(), ring=collections.deque(), numbers=[0, 0.5])

        def f(x):
            change(o)
            return x * 2

        return o, f

    return make


def add(o):
    o.n += 1


def add_float(o):
    o.n += 0.5
    o.n *= 2


def several(o):
    o.log.append(1)
    o.log.extend([2, 3])
    o.log += [4]
    o.table["n"] += 2
    o.table[3, "k"] = "v"
    o.table.update(m=1)
    o.seen.add(5)
    o.ring.append(1)
    o.ring.rotate(1)
    o.numbers[1] += 1
    o.flag = True


def pops(o):
    o.log.extend((1, 2, 3))
    o.log.pop(0)
    o.log.remove(3)


def replaced(o):
    o.log.append(1)
    o.log = []


def emptied(o):
    o.log.append(1)
    o.log.clear()
    o.n = 3


def nested(o):
    o.log.append([1])
    o.log[-1].append(2)


def deleted(o):
    del o.log
    o.log = []
    o.table.pop("n")
    o.table["n"] = 1
    o.n += 1


def by_library(o):
    heapq.heappush(o.log, 3)
    setattr(o, "n", 7)  # noqa: B010 (the builtin is what is tested)


def first_only(o):
    o.table.setdefault("first", 1)
    o.table["n"] += 1


ONLY_CHANGED = [add, add_float, several, pops, replaced, emptied, nested, deleted, by_library, first_only]
MAKERS = [first_and_later, momentum, names, several_traces, compiled_inside, built]


def state_of(o):
    return {name: shown(value) for name, value in vars(o).items()}


def shown(value):
    if isinstance(value, hf.Variable):
        return value.numpy().round(4).tolist()
    return [shown(item) for item in value] if isinstance(value, list) else copy.copy(value)


def run(make, *, compiled, calls=4):
    hf.random.seed(3)
    o, f = make()
    function = hf.compile(f) if compiled else f
    return [(function(x()).numpy(), state_of(o)) for _ in range(calls)]


@pytest.mark.parametrize("make", MAKERS)
def test_every_call_changes_state_once(make):
    for got, expected in zip(run(make, compiled=True), run(make, compiled=False), strict=True):
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
        assert repr(got[1]) == repr(expected[1])


@pytest.mark.parametrize("look", LOOKED)
def test_what_is_changed_and_looked_at_is_exact(look):
    make = look_after_change(LOOKED[look])
    for got, expected in zip(run(make, compiled=True), run(make, compiled=False), strict=True):
        np.testing.assert_allclose(got[0], expected[0], rtol=1e-6)
        assert repr(got[1]) == repr(expected[1])


@pytest.mark.parametrize("change", ONLY_CHANGED, ids=lambda change: change.__name__)
def test_what_is_only_changed_is_changed_by_every_call(change):
    make = only_changed(change)
    for got, expected in zip(run(make, compiled=True), run(make, compiled=False), strict=True):
        assert repr(got[1]) == repr(expected[1])


@pytest.mark.parametrize("change", [add, several, emptied, first_only], ids=lambda change: change.__name__)
def test_changes_take_no_new_trace(change):
    o, f = only_changed(change)()
    compiled = hf.compile(f)
    compiled(x())
    traces = 1 + (change is first_only)  # `setdefault` looks too
    compiled(x())
    o.n, o.log, o.table = 100, [9], dict(o.table)
    compiled(x())
    assert compiled.trace_count <= traces
    assert o.n in (101, 100, 3)
    assert change is not several or o.log == [9, 1, 2, 3, 4]


@pytest.mark.asserts
def test_a_change_behind_a_check_that_fails_does_not_happen():
    o = Holder(before=0, between=0, after=0, log=[])

    @hf.compile
    def f(x):
        o.before += 1
        assert x[0] > 0
        o.between += 1
        o.log.append(1)
        assert x[1] > 0
        o.after += 1
        return x

    expected = [0, 0, 0, 0]
    for number, changed in enumerate(([1, 1], [1, 1], [1, -1], [-1, 1], [1, 1], [1, -1], [1, 1])):
        reached = 1 + (changed[0] > 0) * (1 + (changed[1] > 0))
        expected = [one + (reached > when) for one, when in zip(expected, (0, 1, 2, 1), strict=True)]
        if reached == 3:
            f(hf.asarray(changed) * 1.0)
        else:
            with pytest.raises(AssertionError):
                f(hf.asarray(changed) * 1.0)
        assert [o.before, o.between, o.after, len(o.log)] == expected, number
    assert f.trace_count == 1


def test_a_namespace_is_changed_without_a_new_trace():
    s = types.SimpleNamespace(n=0)

    @hf.compile
    def f(x):
        s.n += 1
        return x

    for _ in range(3):
        f(x())
    assert (s.n, f.trace_count) == (3, 1)


def test_a_change_meets_what_is_there():
    """Another type, or nothing at all, is no longer what the trace was made for."""
    o, f = only_changed(add)()
    compiled = hf.compile(f)
    compiled(x())
    o.n = 0.5
    compiled(x())
    assert o.n == 1.5
    o.n = "text"
    with pytest.raises(TypeError, match="can only concatenate str"):
        compiled(x())
    del o.n
    with pytest.raises(AttributeError, match="n"):
        compiled(x())


def test_looking_whether_a_trace_holds_makes_no_items():
    o = Holder(state=collections.defaultdict(dict), parameters=["a", "b"])

    @hf.compile
    def f(x):
        for name in o.parameters:
            if "m" not in o.state[name]:
                o.state[name]["m"] = hf.Variable(0.0)
            o.state[name]["m"].assign_add(1.0)
        return x

    f(x())
    f(x())
    o.parameters = ["a"]
    f(x())
    assert [*o.state] == ["a", "b"]
    o.state.clear()
    f(x())
    assert [*o.state] == ["a"]


def test_variables_and_tapes_do_not_keep_changes_from_happening():
    w, o = hf.Variable([1.0, 2.0]), Holder(t=0)

    @hf.compile
    def step(x):
        o.t += 1
        w.assign_sub(x)
        return hf.sum(w * x)

    for number in range(3):
        with hf.GradientTape() as tape:
            loss = step(x())
        assert tape.gradient(loss, w) is not None
        step(x())
        assert o.t == 2 * number + 2
    assert step.trace_count == 1
    assert hf.compare(step, x(), repeats=2).same
    assert o.t == 6


def test_a_trace_does_not_come_back_when_the_state_does():
    o, f = put_back_by_the_user()
    got = [f(x()).tolist() for _ in range(4)]
    assert got == [[2.0, 3.0]] * 4
    assert o.t == 1


def test_the_executable_of_the_creating_call_serves_the_later_ones():
    o = Holder(m=None)

    @hf.compile
    def step(x):
        if o.m is None:
            o.m = hf.Variable(hf.zeros((2,)))
        o.m.assign(o.m * 0.5 + x)
        return o.m * 2

    for _ in range(3):
        step(x())
    assert (step.trace_count, step.compile_count) == (2, 1)
    text = str(step.explain()[0])
    assert "created: Variable" in text
    assert "changed, and read too: the trace served this call alone: o.m at" in text


def test_a_variable_that_dies_and_a_none_in_its_place():
    o = Holder(buf=None)

    @hf.compile
    def f(x):
        if o.buf is None:
            o.buf = hf.Variable(0.5)
        return x * 2

    f(x())
    f(x())
    o.buf = None
    f(x())
    assert o.buf is not None


def test_a_number_that_is_needed_late_changes_nothing_twice():
    o = Holder(t=0, log=[], d={}, random=random.Random(4), heap=[5, 1])

    def f(x, s):
        o.t += 1
        o.log.append(o.t)
        o.d[o.t] = 1
        heapq.heappush(o.heap, o.t)
        noise = o.random.random()
        return x * (2.0 if s > 0 else 1.0) + o.t + len(o.log) + len(o.d) + o.heap[0] + noise

    results = []
    for compiled in (False, True):
        o.t, o.log, o.d, o.random, o.heap = 0, [], {}, random.Random(4), [5, 1]
        function = hf.compile(f) if compiled else f
        with pytest.warns(hf.EffectWarning) if compiled else pytest.MonkeyPatch.context():
            found = [function(x(), s).tolist() for s in (1.0, -1.0, 2.0)]
        results.append((found, o.t, o.log, o.d, o.random.random(), o.heap))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-6)
    assert results[1][1:] == results[0][1:]


def returned_by_finally(x, k, o):
    y = x
    try:
        y = x * 2 if k > 1 else x * 5
        o.t += 1
    finally:
        return y  # noqa: B012 (what is tested)


def left_by_finally(x, k, o):
    for _ in range(2):
        try:
            x = x * (2 if k * o.scale > 1 else 5)
            o.t += 1
        finally:
            break  # noqa: B012 (what is tested)
    return x


def swallowed_by_a_manager(x, k, o):
    class Quiet:
        def __enter__(self):
            return self

        def __exit__(self, *error):
            return True

    y = None
    with Quiet():
        y = x * 2 if k > 1 else x * 5
    return y


@pytest.mark.filterwarnings("ignore:'(return|break)' in a 'finally':SyntaxWarning")
@pytest.mark.parametrize("function", [returned_by_finally, left_by_finally, swallowed_by_a_manager])
def test_that_a_number_is_needed_is_not_swallowed(function):
    results = []
    for compiled in (False, True):
        o = Holder(t=0, scale=1.0)
        f = lambda x, k, o=o: function(x, k, o)  # noqa: E731
        f = hf.compile(f) if compiled else f
        results.append([(f(x(), k).tolist(), o.t) for k in (2.0, 0.5, 3.0)])
    assert results[1] == results[0]


def test_a_class_that_a_call_makes_may_be_gone_when_its_trace_ends(monkeypatch: pytest.MonkeyPatch):
    def collected(*args, **options):
        gc.collect()
        return passes.run_passes(*args, **options)

    monkeypatch.setattr("hybridflow.tracing.trace.run_passes", collected)
    f = hf.compile(lambda x, k: swallowed_by_a_manager(x, k, None))
    assert [f(x(), k).tolist() for k in (2.0, 0.5)] == [[2.0, 4.0], [5.0, 10.0]]


def test_a_refused_call_leaves_state_alone():
    o = Holder(t=0, log=[])

    @hf.compile
    def f(x):
        o.t += 1
        o.log.append(o.t)
        o.kept = x * 2
        return x

    with pytest.raises(TraceError, match="stores a traced tensor outside"):
        f(x())
    assert vars(o) == {"t": 0, "log": []}


def test_what_follows_a_check_that_fails_does_not_happen():
    def run(decorate):
        o = Holder(t=0, log=[], table={}, buf=None)

        def f(x):
            o.t += 1
            o.table[o.t] = x.shape
            assert hf.sum(x) < 4, "large"
            o.t += 10
            o.log.append(o.t)
            if o.buf is None:
                o.buf = hf.Variable(0.0)
            assert hf.sum(x) > -4, "small"
            o.log.append(0)
            o.buf.assign_add(1.0)
            return x * o.t + len(o.log) * o.buf

        fn, found = decorate(f), []
        for scale in (5.0, 1.0, -5.0, 5.0, 0.5):
            try:
                found.append(fn(x() * scale).numpy().tolist())
            except AssertionError as error:
                found.append(str(error))
            found.append((o.t, [*o.log], {**o.table}, o.buf if o.buf is None else o.buf.numpy().tolist()))
        return found

    eager, compiled = run(lambda f: f), run(hf.compile)
    assert [str(one).splitlines()[0] for one in eager] == [str(one).splitlines()[0] for one in compiled]


@pytest.mark.asserts
def test_a_call_that_fails_after_a_look_puts_back_what_it_changed():
    o = Holder(count=0)

    @hf.compile
    def f(x):
        assert hf.sum(x) < 4, "large"
        o.count = 7
        return x

    f.graph(x())
    with pytest.raises(AssertionError):
        f(x() * 5)
    assert o.count == 0
    f(x())
    f(x())


def test_an_error_of_the_users_leaves_what_it_had_changed():
    o = Holder(t=0)

    @hf.compile
    def f(x):
        o.t += 1
        if o.t < 3:
            raise KeyError(o.t)
        return x * o.t

    for number in (1, 2):
        with pytest.raises(KeyError, match=str(number)):
            f(x())
    assert f(x()).tolist() == [3.0, 6.0]


# -- what moves when it is read -------------------------------------------------------------------------------------


def counting():
    number = 0.0
    while True:
        number += 1.0
        yield number


MOVING = {
    "count": (lambda: itertools.count(1), lambda o: next(o.source)),
    "cycle": (lambda: itertools.cycle([5, 6]), lambda o: next(o.source)),
    "list": (lambda: iter([1.0, 2.0, 3.0, 4.0, 5.0]), lambda o: next(o.source)),
    "generator": (counting, lambda o: next(o.source)),
    "zip": (counting, lambda o: sum([a for _, a in zip([0], o.source, strict=False)])),
    "islice": (counting, lambda o: sum(itertools.islice(o.source, 1))),
    "NumPy's Generator": (lambda: np.random.default_rng(0), lambda o: o.source.standard_normal(2).astype(np.float32)),
    "NumPy's RandomState": (lambda: np.random.RandomState(0), lambda o: float(o.source.rand())),
    "Random": (lambda: random.Random(0), lambda o: o.source.random()),
    "shuffle": (lambda: random.Random(0), lambda o: o.source.sample([1.0, 2.0, 3.0], 1)[0]),
    "a draw by another name": (lambda: random.Random(0), lambda o: (lambda draw: draw())(o.source.random)),
}


@pytest.mark.parametrize("late", [False, True], ids=["", "starts again"])
@pytest.mark.parametrize("kind", MOVING)
def test_what_moves_is_read_by_every_call(kind, late):
    """Also where the trace starts again, since a float turns out to be needed as a number."""
    make, read = MOVING[kind]
    results = []
    for compiled in (False, True):
        o = Holder(source=make(), scale=1.0)

        def f(x, s, o=o):
            x = x * read(o)
            return x * (2.0 if late and s * o.scale > 1.0 else s)

        function = hf.compile(f) if compiled else f
        found = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hf.EffectWarning)
            for s in (1.0, 1.5, 0.5):
                found.append(function(x(), s).tolist())
                o.scale += 0.25
            o.source = make()
            found.append(function(x(), 1.0).tolist())
        results.append(found)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)


def test_what_moves_warns_once():
    o = Holder(source=itertools.count(1))
    f = hf.compile(lambda x: x * next(o.source))
    with pytest.warns(hf.EffectWarning, match=r"traced again at every call[\s\S]*next\(\)") as caught:
        assert [f(x())[0].item() for _ in range(3)] == [1.0, 2.0, 3.0]
    assert len(caught) == 1
    assert "it reads what cannot be watched: next()" in str(f.explain())


def test_a_source_of_the_functions_own_is_part_of_the_trace():
    def f(x):
        return x * np.random.default_rng(3).random() * random.Random(4).random() * next(iter([2.0]))

    compiled = hf.compile(f)
    np.testing.assert_allclose(compiled(x()).numpy(), f(x()).numpy(), rtol=1e-6)
    np.testing.assert_allclose(compiled(x()).numpy(), f(x()).numpy(), rtol=1e-6)
    assert compiled.trace_count == 1


@pytest.mark.parametrize("make", [np.random.default_rng, random.Random])
def test_a_source_without_a_seed_is_none_of_the_traces(make):
    f = hf.compile(lambda x: x * make().random())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        assert len({f(x())[0].item() for _ in range(3)}) == 3


ARRAY_WRITES = {
    "item": lambda a: a.__setitem__(0, a[0] + 1),
    "augmented": lambda a: augmented_item(a),
    "slice": lambda a: whole_slice(a),
    "out": lambda a: np.add(a, 1, out=a),
    "copyto": lambda a: np.copyto(a, a + 1),
    "in place": lambda a: in_place(a),
    "fill": lambda a: a.fill(a[0] + 1),
    "sort": lambda a: (np.add(a, [2, 0, 1], out=a), a.sort()),
    "view": lambda a: augmented_item(a[::-1]),
    "put": lambda a: np.put(a, [1], a[1] + 3),
    "memoryview": lambda a: memoryview(a).__setitem__(0, a[0] + 1),
    "flat": lambda a: a.flat.__setitem__(0, a[0] + 1),
}


def augmented_item(a):
    a[0] += 1


def whole_slice(a):
    a[:] = a + 1


def in_place(a):
    a += 1


@pytest.mark.parametrize("reads", [False, True], ids=["only written", "read"])
@pytest.mark.parametrize("way", ARRAY_WRITES)
def test_arrays_are_written_by_every_call(way, reads):
    results = []
    for compiled in (False, True):
        o = Holder(a=np.array([1.0, 0.0, 2.0]))

        def f(x, o=o):
            ARRAY_WRITES[way](o.a)
            return x * float(o.a[0]) + o.a[1] if reads else x

        function = hf.compile(f) if compiled else f
        results.append([(function(x()).tolist(), o.a.tolist()) for _ in range(3)])
        o.a[1] = 7.0
        results[-1].append((function(x()).tolist(), o.a.tolist()))
    assert results[1] == results[0]


# -- looking at a function ------------------------------------------------------------------------------------------


def effects_only():
    o = Holder(log=[])

    def f(x):
        o.log.append(1)
        return x * 2

    return o, f


LOOKS = {
    "graph": lambda f: hf.compile(f).graph(x()),
    "lower": lambda f: hf.compile(f).lower(x()),
    "cost": lambda f: hf.cost(f, x()),
    "concrete": lambda f: hf.compile(f).concrete(hf.TensorSpec([2])),
    "locate": lambda f: hf.debugging.locate(f, x()),
    "assert_same": lambda f: hf.testing.assert_same(f, x(), gradients=True),
    "compare": lambda f: hf.compare(f, x(), repeats=2),
}


@pytest.mark.parametrize("make", [momentum, first_and_later, names, built, effects_only])
@pytest.mark.parametrize("look", LOOKS)
def test_looking_leaves_state_alone(make, look):
    o, f = make()
    before = state_of(o)
    hf.random.seed(3)
    count = COUNT
    found = LOOKS[look](f)
    assert (state_of(o), COUNT) == (before, count)
    drawn = hf.random.normal((2,)).tolist()
    hf.random.seed(3)
    assert hf.random.normal((2,)).tolist() == drawn
    if look == "compare":
        assert found.same, found.differences()


def test_arrays_are_put_back_bit_for_bit_without_asking_what_is_in_them():
    class Unequal:
        def __eq__(self, other):
            raise ValueError("not to be compared")

        __hash__ = None

    one = Unequal()
    zeros, objects = np.array([-0.0, np.nan]), np.array([one, 1], dtype=object)

    def f(x):
        zeros[0], objects[0] = 0.0, None
        return x * 2

    hf.compile(f).graph(x())
    assert np.signbit(zeros[0])
    assert objects[0] is one


def test_a_look_before_the_first_call_changes_nothing_of_the_calls():
    for make in (*MAKERS, effects_only):
        expected = run(make, compiled=False)
        hf.random.seed(3)
        o, f = make()
        compiled = hf.compile(f)
        for number, (value, state) in enumerate(expected):
            if number in (0, 2):
                compiled.graph(x())
                compiled.cost(x())
            np.testing.assert_allclose(compiled(x()).numpy(), value, rtol=1e-6)
            assert repr(state_of(o)) == repr(state)


def test_a_look_leaves_its_changes_to_the_calls_that_use_its_trace():
    o, f = effects_only()
    compiled = hf.compile(f)
    compiled.cost(x())
    assert (o.log, compiled.trace_count) == ([], 1)
    compiled(x())
    compiled(x())
    assert (o.log, compiled.trace_count) == ([1, 1], 1)
    other, f = effects_only()
    compiled = hf.compile(f)
    compiled.graph(x())
    other.log.append(5)
    compiled(x())
    assert (other.log, compiled.trace_count) == ([5, 1], 1)


def test_what_creates_variables_forever_cannot_be_compared():
    o = Holder(all=[])

    def f(x):
        o.all.append(hf.Variable(float(len(o.all))))
        return x * o.all[-1]

    with pytest.raises(ArgumentError, match="creates Variables at one call after another"):
        hf.compare(f, x())
    assert o.all == []


def test_state_that_is_stored_in_other_ways():
    class Slotted:
        __slots__ = ("t", "u")

    class Hooked:
        def __setattr__(self, name, value):
            self.__dict__.setdefault("names", []).append(name)
            self.__dict__[name] = value

    class Shared:
        level = 1

    slotted, hooked, shared = Slotted(), Hooked(), Shared()
    slotted.t = 0
    hooked.t = 0

    def f(x):
        slotted.t += 1
        slotted.u = slotted.t
        hooked.t += 1
        shared.level += 1
        Shared.level += 5
        del slotted.u
        return x * slotted.t * hooked.t * shared.level

    hf.compile(f).graph(x())
    hf.compile(f).cost(x())
    assert (slotted.t, hasattr(slotted, "u"), hooked.t, hooked.names) == (0, False, 0, ["t"])
    assert (vars(shared), Shared.level) == ({}, 1)


# -- changes that change nothing in the traced call ------------------------------------------------------------------


class Containers:
    """An object with containers."""

    def __init__(self):
        self.own, self.mode = [1], ()
        self.inner, self.rows = [1], [[1], [2]]
        self.table = {"k": self.inner}
        self.order = collections.OrderedDict(a=1.0)


def stored(holder):
    holder.own = holder.other


def stored_tuple(holder):
    holder.mode = ("train", 1)


def put(holder):
    holder.table["k"] = holder.inner


def updated(holder):
    holder.table.update(k=holder.inner)


def sorted_in_place(holder):
    holder.rows.sort(key=len)


def sliced(holder):
    holder.rows[:] = [holder.inner, *holder.rows[1:]]


def spoil(holder):
    holder.own, holder.mode, holder.table["k"], holder.rows[0] = [1], "eval", [9], [9, 9]


@pytest.mark.filterwarnings("ignore::hybridflow.core.errors.EffectWarning")
@pytest.mark.parametrize("change", [stored, stored_tuple, put, updated, sorted_in_place, sliced])
def test_a_change_that_changes_nothing_when_it_is_traced_is_made_at_every_call(change):
    found = []
    for compiled in (False, True):
        holder = Containers()
        holder.other = holder.own

        def run(x, holder=holder):
            change(holder)
            return x * 2

        called = hf.compile(run) if compiled else run
        for _ in range(3):
            called(hf.asarray(1.0))
            shown = holder.own is holder.other, holder.mode, holder.table["k"] is holder.inner, str(holder.rows)
            found.append((compiled, shown))
            spoil(holder)
    assert [one for _, one in found[:3]] == [one for _, one in found[3:]]


def test_an_ordered_dict_is_put_back_in_order():
    order = collections.OrderedDict(a=1.0)

    @hf.compile
    def f(x, k):
        order["b"] = 2.0
        return x * math.sqrt(k)

    f.graph(hf.asarray(1.0), 4.0)
    assert [*order.items()] == [("a", 1.0)]
    f(hf.asarray(1.0), 4.0)  # it starts again, as it needs the number
    assert [*order.items()] == [("a", 1.0), ("b", 2.0)]


# -- changes that may fail: whether they do can depend on what is in the container ---------------------------------

OPERATIONS = {
    list: "s.append(1); s.pop(); s.pop(0); s.pop(2); s.remove(1); s.remove(5); s.insert(0, 7); s.extend((1, 2)); "
    "s[0] = 4; s[-1] = 4; s[2] = 9; s[0] += 1; del s[0]; del s[1:]; s[1:2] = [3]; s.sort(); s.reverse(); s.clear(); "
    "s.index(1); s += [2]; s *= 2; s[0], s[1] = 5, 6; s.append(s[0]); s.append(s.pop()); s[1] = s[0]",
    collections.deque: "s.append(1); s.pop(); s.popleft(); s.remove(1); s.remove(5); s.insert(0, 7); s.extend((1, 2)); "
    "s[0] = 4; s[-1] = 4; s[2] = 9; s[0] += 1; del s[0]; s.reverse(); s.clear(); s.index(1); s += [2]; "
    "s[0], s[1] = 5, 6; s.rotate(1); s.appendleft(3); s.extendleft((8, 9)); s.append(s.popleft())",
    set: "s.add(1); s.pop() if len(s) < 2 else None; s.remove(1); s.remove(5); s.discard(2); s.update((1, 2)); "
    "s |= {7}; s -= {1}; s &= {1, 2, 3}; s ^= {1}; s.clear(); s.add(frozenset(s)) if len(s) < 2 else None; s.add([])",
    dict: "s['a'] = 1; s['a'] += 1; s.pop('a'); s.pop('b', None); s.popitem(); s.setdefault('a', 3); del s['b']; "
    "s.update(b=2); s |= {'c': 1}; s.clear(); s['c'] = s.pop('a'); s[[]] = 1; s['b'] = s['a']; s.update(((1, 2), 3)); "
    "s.setdefault('q', []); s.missing()",
    bytearray: "s.append(1); s.append(300); s.pop(); s.pop(0); s.remove(1); s.insert(0, 7); s.extend((1, 2)); "
    "s[0] = 4; s[2] = 9; s[0] += 1; del s[0]; s.reverse(); s.clear(); s += b'x'; s[0], s[1] = 5, 6; s[0] = 256",
}


def container(kind, generator):
    numbers = [generator.randrange(1, 4) for _ in range(generator.randrange(4))]
    if kind is dict:
        return {"abc"[number - 1]: number for number in numbers}
    return collections.deque(numbers, 3) if kind is collections.deque else kind(numbers)


def handling(kind, generator):
    """Return the text of a function whose changes may fail, which it handles."""
    lines = ["def step(x):", "    global s", "    n = 0"]
    for operation in generator.choices(OPERATIONS[kind].split("; "), k=generator.choice((1, 1, 2, 3))):
        lines += ["    try:", f"        {operation}",
                  "    except (IndexError, KeyError, ValueError, TypeError, AttributeError) as error:",
                  "        log.append(type(error).__name__)", "        n += 1"]
        lines += generator.choice(([], ["    else:", "        n += 3"], ["    finally:", "        log.append(0)"]))
    return "\n".join([*lines, "    return x * (n + 1)", ""])


def handled(kind, seed, decorator, path):
    """Call such a function, with other things in the container now and then; return what came of each call."""
    generator = random.Random(seed)
    path.write_text(handling(kind, generator))
    names = {"s": container(kind, generator), "log": []}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
    step, found = decorator(names["step"]), []
    for _ in range(6):
        found.append((step(x()).tolist(), repr(names["s"]), names["log"].copy()))
        names["log"].clear()
        if generator.random() < 0.5:
            names["s"].clear()
            (names["s"].update if kind in (set, dict) else names["s"].extend)(container(kind, generator))
    return found


SEEDS = [*range(4), *[pytest.param(seed, marks=pytest.mark.rest) for seed in range(4, 100)]]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_changes_that_may_fail(kind, seed, tmp_path):
    path = tmp_path / "program.py"
    assert handled(kind, seed, hf.compile, path) == handled(kind, seed, lambda f: f, path)


class Slotted:
    __slots__ = ("a",)


class WithoutSetter:
    b = property(lambda self: 1)


WRITES = ["o.b = 1", "del o.b", "setattr(o, 'b', 2)", "o[5] = 1", "del o['t']"]


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("made", [Slotted, WithoutSetter, object, Holder, tuple, int, lambda: len, lambda: int])
def test_writes_that_fail_at_every_call(made, write, tmp_path):
    lines = ["def step(x):", "    try:", f"        {write}", "    except (AttributeError, TypeError) as error:",
             "        log.append(type(error).__name__)", "    return x", ""]
    path = tmp_path / "program.py"
    path.write_text("\n".join(lines))
    logs = []
    for decorator in (hf.compile, lambda f: f):
        names = {"o": made(), "log": []}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), names)
        step = decorator(names["step"])
        for _ in range(3):
            step(x())
        logs.append(names["log"])
    assert logs[0] == logs[1]

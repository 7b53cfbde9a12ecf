"""Which object is which: aliases, ``is``, ``id`` and hashes of Python objects give compiled what they give eagerly."""

import collections
import copy
import dataclasses
import functools
import inspect
import math
import operator
import types
import warnings

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import EffectWarning, MutationError


def x():
    return hf.asarray([1.0, -2.0, 3.0])


def run_both(make):
    """Return what the calls of a program give eagerly and compiled: `make` yields them, given what compiles."""

    def values(compiled):
        return [np.asarray(one).tolist() for one in make(compiled)]

    return values(lambda function: function), values(hf.compile)


class Cell:
    def __init__(self, value):
        self.value = value

    def set(self, value):
        self.value = value

    def hand(self, x, function):
        return self.value(x, function)


class Total:
    """Something that ``+=`` changes in place."""

    def __init__(self):
        self.k = 1.0

    def __iadd__(self, other):
        self.k += other
        return self


TOTAL = Total()


def added_to_a_free_name(compiled):
    total, log = Total(), [1.0]

    @compiled
    def f(x):
        nonlocal total, log
        total += 2.0
        log += [0.0]
        return x * total.k + len(log)

    yield from (f(x()) for _ in range(3))
    total.k = 70.0
    log.clear()
    yield f(x())
    total = Total()
    yield f(x())


def added_to_a_global(compiled):
    global TOTAL
    TOTAL = Total()

    @compiled
    def f(x):
        global TOTAL
        TOTAL += 2.0
        return x * TOTAL.k

    yield from (f(x()) for _ in range(3))
    TOTAL = Total()
    yield f(x())


def added_to_attributes_and_items(compiled):
    s = types.SimpleNamespace(total=Total(), log=[1.0], table={"total": Total(), "log": []})

    @compiled
    def f(x):
        s.total += 2.0
        s.table["total"] += 3.0
        return x * s.total.k + s.table["total"].k

    @compiled
    def g(x):
        s.log += [2.0]
        s.table["log"] += [2.0, 3.0]
        return x * len(s.log) + len(s.table["log"])

    for function in (f, g):
        yield from (function(x()) for _ in range(3))
    s.total.k, s.log, s.table["log"] = 50.0, [], s.log
    for function in (f, g):
        yield from (function(x()) for _ in range(3))
    yield len(s.log), len(s.table["log"])


@pytest.mark.parametrize(
    "make", [added_to_a_free_name, added_to_a_global, added_to_attributes_and_items], ids=lambda make: make.__name__
)
def test_what_an_augmented_assignment_changes_in_place_is_read(make):
    eager, compiled = run_both(make)
    assert compiled == eager


def test_a_counter_that_nothing_reads_is_no_reason_to_trace_again():
    s = Cell(0)

    @hf.compile
    def f(x):
        s.value += 1
        return x * 2

    for _ in range(3):
        f(x())
    assert f.trace_count == 1


def test_asking_whether_a_trace_still_fits_adds_nothing_to_a_defaultdict():
    def program(compiled):
        v, w = hf.Variable([1.0, 2.0, 3.0]), hf.Variable([1.0, 2.0, 3.0])
        state, s = collections.defaultdict(dict), types.SimpleNamespace(parameters=[v, w])

        @compiled
        def f(x):
            for one in s.parameters:
                mine = state[id(one)]
                if "m" not in mine:
                    mine["m"] = hf.Variable(hf.zeros_like(one))
                mine["m"].assign_add(x)
                x = x + mine["m"]
            return x

        yield f(x())
        s.parameters = [v]
        yield f(x())
        state.clear()
        yield f(x())
        yield len(state)
        yield f(x())
        yield len(state)

    eager, compiled = run_both(program)
    assert compiled == eager


# -- is ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
    left: object
    right: object


def pairs():
    """Return pairs of arguments of one signature each: the same object twice, and two that are alike."""
    array = np.ones(3, np.float32)
    a, b = hf.asarray([1.0, 2.0]), hf.asarray([1.0, 2.0])
    v, w = hf.Variable(1.0), hf.Variable(1.0)
    return {
        "tensors": (a, b),
        "Variables": (v, w),
        "arrays": (array, array.copy()),
        "lists": ([1.0, a], [1.0, a]),
        "empty lists": ([], []),
        "dicts": ({"a": a}, {"a": a}),
        "tuples in lists": ([(a, a)], [(a, a)]),
        "sets": ({1, 2}, {1, 2}),
        "objects": (types.SimpleNamespace(k=1), types.SimpleNamespace(k=1)),
        "dataclasses": (Pair(1, 2), Pair(1, 2)),
        "dataclasses with tensors": (Pair(a, v), Pair(a, v)),
        "functions": (lambda: 1, lambda: 1),
    }


@pytest.mark.parametrize("name", pairs())
def test_is_of_two_arguments(name):
    def program(compiled):
        @compiled
        def f(x, p, q):
            return x * 2 if p is q else x

        @compiled
        def g(x, p, q):
            return x * 2 if p is not q else x

        p, q = pairs()[name]
        for function in (f, g):
            for one, other in ((p, p), (p, q), (q, q), (q, p), (p, p)):
                yield function(x(), one, other)

    eager, compiled = run_both(program)
    assert compiled == eager


@pytest.mark.parametrize("name", pairs())
def test_is_of_two_attributes(name):
    def program(compiled):
        p, q = pairs()[name]
        s = types.SimpleNamespace(p=p, q=p)

        @compiled
        def f(x):
            return x * 2 if s.p is s.q else x

        for one, other in ((p, p), (p, q), (q, q), (q, p), (p, p)):
            s.p, s.q = one, other
            yield f(x())

    eager, compiled = run_both(program)
    assert compiled == eager


@pytest.mark.parametrize("name", pairs())
def test_is_of_an_argument_and_what_is_in_a_list(name):
    def program(compiled):
        p, q = pairs()[name]
        kept = [p, q]

        @compiled
        def f(x, one):
            return x * sum([2**number for number, other in enumerate(kept) if other is one])

        for now, one in (([p, q], p), ([p, q], q), ([q, p], p), ([q, q], q), ([p], p), ([p], q), ([], p)):
            kept[:] = now
            yield f(x(), one)

    eager, compiled = run_both(program)
    assert compiled == eager


def test_is_of_what_is_inside_of_arguments():
    def program(compiled):
        @compiled
        def f(x, p, q):
            return x * 2 if p["a"][0] is q.left else x

        a, b = hf.asarray([1.0]), hf.asarray([1.0])
        for one, other in ((a, a), (a, b), (b, b)):
            yield f(x(), {"a": [one]}, Pair(other, 3))

    eager, compiled = run_both(program)
    assert compiled == eager


def test_is_where_it_is_a_function_or_a_chain():
    def program(compiled):
        @compiled
        def f(x, p, q, r):
            if p is q is r:
                return x * 2
            return x * 3 if operator.is_(q, r) else x * 4 if operator.is_not(p, q) else x

        a, b = hf.asarray([1.0]), hf.asarray([1.0])
        for given in ((a, a, a), (a, b, b), (a, b, a), (a, a, b), (b, b, b)):
            yield f(x(), *given)

    eager, compiled = run_both(program)
    assert compiled == eager


HOLDS = {
    "dict": lambda variable: ({"a": variable}, "a"),
    "list": lambda variable: ([1.0, variable], 1),
    "only item": lambda variable: ([variable], 0),
    "last": lambda variable: ([0, variable], -1),
    "nested": lambda variable: (collections.OrderedDict(a=variable), "a"),
    "deque": lambda variable: (collections.deque([variable]), 0),
}


@pytest.mark.parametrize("name", HOLDS)
@pytest.mark.parametrize("other", HOLDS)
def test_is_of_variables_in_containers(name, other):
    u, w = hf.Variable(1.0), hf.Variable(2.0)
    (held, key), (others, at) = HOLDS[name](u), HOLDS[other](u)

    @hf.compile
    def f(x):
        here, there = held[key], others[at]
        return x + here * (10.0 if here is w else 1.0) + there * (100.0 if here is there else 1.0)

    for one in (u, u, w, w, u):
        others[at] = one
        for two in (u, u, w):
            held[key] = two
            with hf.config.run_eagerly():
                expected = f(x()).numpy().tolist()
            assert f(x()).numpy().tolist() == expected


def test_is_of_what_no_other_can_stand_for_costs_no_trace():
    s = types.SimpleNamespace(last=None, layers=[types.SimpleNamespace(k=1.0), types.SimpleNamespace(k=2.0)])

    @hf.compile
    def f(x, mask=None):
        for layer in s.layers:
            x = x * layer.k if layer is not s.last else x
        return x if mask is None else x * mask

    for _ in range(3):
        f(hf.asarray(np.float32(_)))
    assert f.trace_count == 1


# -- id and hashes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [id, lambda variable: variable], ids=["id", "the Variable"])
def test_state_by_variable(key):
    def program(compiled):
        v, w = hf.Variable([1.0, 1.0, 1.0]), hf.Variable([2.0, 2.0, 2.0])
        rates = {key(v): 5.0}
        state = {}

        @compiled
        def f(x, one):
            return x * rates.get(key(one), 50.0) + one

        @compiled
        def step(x, ones):
            for one in ones:
                if key(one) not in state:
                    state[key(one)] = hf.Variable(hf.zeros_like(one))
                state[key(one)].assign_add(x)
                one.assign_sub(state[key(one)] * 0.5)
            return len(state)

        yield from (f(x(), v), f(x(), w))
        rates[key(w)] = 8.0
        yield from (f(x(), w), f(x(), v))
        for ones in ([v, w], [v, w], [w, v], [v], [v, v]):
            yield step(x(), ones)
            yield from (v, w)
        state.clear()
        yield step(x(), [w])
        yield from (v, w)

    eager, compiled = run_both(program)
    assert compiled == eager


def test_variables_in_sets_and_lists():
    def program(compiled):
        v, w = hf.Variable([1.0]), hf.Variable([2.0])
        frozen = {v}
        order = [v, w]

        @compiled
        def f(x, ones):
            for one in ones:
                x = x * 2 if one in frozen else x + len({one, *ones})
            return x

        for ones in ([v, w], [w, v], [v, v], [w]):
            yield f(x(), ones)
        frozen.add(w)
        order.reverse()
        for ones in ([v, w], [w, v], [v, v], [w]):
            yield f(x(), ones)

    eager, compiled = run_both(program)
    assert compiled == eager


def test_other_variables_go_on_sharing_a_trace():
    known = {}

    @hf.compile
    def f(x, by_identity, any_one):
        return x * known.get(by_identity, 2.0) + any_one

    v = hf.Variable(1.0)
    for value in range(3):
        assert f(1.0, v, hf.Variable(float(value))).item() == 2.0 + value
    assert f(1.0, v, v).item() == 3.0
    assert f(1.0, hf.Variable(1.0), v).item() == 3.0
    assert f.trace_count == 3


def test_id_of_what_is_outside():
    def program(compiled):
        a, b, rows, more = hf.asarray([1.0]), hf.asarray([1.0]), [1.0], [1.0]
        s = types.SimpleNamespace(a=a, rows=rows)
        known = {id(a): 2.0, id(rows): 3.0}

        @compiled
        def f(x):
            return x * known.get(id(s.a), 5.0) + known.get(id(s.rows), 7.0)

        for s.a, s.rows in ((a, rows), (b, rows), (a, more), (b, more), (a, rows)):
            yield f(x())

    eager, compiled = run_both(program)
    assert compiled == eager


def test_id_of_a_tensor_that_is_an_argument():
    a, b = x(), x()
    known = {id(a): 2.0}

    @hf.compile
    def f(x):
        return x * known.get(id(x), 5.0)

    with pytest.warns(EffectWarning, match="traced again at every call"):
        assert [f(one)[0].item() for one in (a, b, a)] == [2.0, 5.0, 2.0]


# -- writes by one way, reads by another ------------------------------------------------------------------------------


def containers():
    return {
        "lists": ([1.0], lambda one: one.append(3.0)),
        "dicts": ({"a": 1.0}, lambda one: one.update({len(one): 3.0})),
        "sets": ({1}, lambda one: one.add(len(one) + 5)),
        "deques": (collections.deque([1]), lambda one: one.append(3.0)),
    }


@pytest.mark.parametrize("name", containers())
def test_a_change_by_one_way_is_seen_by_another(name):
    def program(compiled):
        one, change = containers()[name]
        other = type(one)(one)
        s = types.SimpleNamespace(p=one, q=one)

        @compiled
        def f(x):
            change(s.p)
            return x * len(s.q)

        def both(p, q):
            s.p, s.q = p, q
            yield f(x())
            yield f(x())

        fresh = type(one)
        yield from both(one, one)
        yield from both(fresh(), fresh())
        yield from both(one, fresh())
        yield from both(one, other)
        same = fresh()
        yield from both(same, same)
        yield from both(other, other)

    eager, compiled = run_both(program)
    assert compiled == eager


def test_an_argument_that_is_what_the_function_changes():
    log = [1.0]

    @hf.compile
    def f(x, rows):
        log.append(1.0)
        return x * len(rows)

    with pytest.raises(MutationError, match="changed its argument 'rows'"):
        f(x(), log)
    assert log == [1.0]
    assert f(x(), [2.0])[0] == 1.0
    with pytest.raises(MutationError, match="changed its argument 'rows'"):
        f(x(), log)


def test_a_log_that_nothing_reads_is_no_reason_to_trace_again():
    s, rows = Cell([]), [1.0, 2.0]

    @hf.compile
    def f(x):
        s.value.append(1.0)
        return x * len(rows)

    for _ in range(3):
        f(x())
        s.value = []
    assert f.trace_count == 1
    rows = s.value
    assert f(x())[0] == len(rows) == 1
    s.value = None
    with pytest.raises(AttributeError):
        f(x())


# -- what a branch or loop on tensors chose, and what it chose from ---------------------------------------------------


def chosen_by_branch(a, b, x):
    if hf.sum(x) > 0:
        a = b
    return a


def chosen_by_expression(a, b, x):
    return b if hf.sum(x) > 0 else a


def chosen_by_loop(a, b, x):
    n = hf.sum(x)
    while n > 0:
        a = b
        n = n - 100
    return a


CHOICES = [chosen_by_branch, chosen_by_expression, chosen_by_loop]
KINDS = {
    "list, an item": (lambda x: [x], lambda one, x: one.__setitem__(0, x * 10), lambda one: one[0]),
    "list, its length": (lambda x: [x], lambda one, x: one.append(x), lambda one: len(one) * hf.ones(())),
    "list, returned": (lambda x: [x], lambda one, x: one.append(x), lambda one: one),
    "list, to a function": (lambda x: [x], lambda one, x: one.reverse() or one.append(x), lambda one: hf.stack(one)),
    "list, compared": (lambda x: [1], lambda one, x: one.append(2), lambda one: hf.ones(()) * (one == [1])),
    "dict": (lambda x: {"k": x}, lambda one, x: one.update(k=x * 10), lambda one: one["k"]),
    "dict, run over": (lambda x: {"k": x}, lambda one, x: one.update(l=x), lambda one: sum(one.values())),
    "nested": (lambda x: {"k": [x]}, lambda one, x: one["k"].append(x), lambda one: len(one["k"]) * hf.ones(())),
    "set": (lambda x: {1}, lambda one, x: one.add(2), lambda one: len(one) * hf.ones(())),
    "empty": (lambda x: [], lambda one, x: one.append(x), lambda one: hf.ones(()) * (2 if one else 3)),
    "object": (Cell, lambda one, x: one.set(x * 10), lambda one: one.value),
}


@pytest.mark.parametrize("choose", CHOICES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", KINDS)
def test_a_change_of_one_that_may_be_another(choose, name):
    make, change, read = KINDS[name]

    def change_the_first(x):
        a, b = make(x), make(x * 2)
        c = choose(a, b, x)
        change(b, x)
        return read(c)

    def change_the_chosen(x):
        a, b = make(x), make(x * 2)
        c = choose(a, b, x)
        change(c, x)
        return read(b)

    for function in (change_the_first, change_the_chosen):
        with pytest.raises(MutationError, match="depend"):
            hf.compile(function)(x())


@pytest.mark.parametrize("choose", CHOICES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", [name for name in KINDS if name != "object"])
def test_changes_that_only_the_changed_one_sees(choose, name):
    make, change, read = KINDS[name]

    def changed_before(x):
        a, b = make(x), make(x * 2)
        change(a, x)
        change(b, x)
        return read(choose(a, b, x))

    def chosen_alone(x):
        c = choose(make(x), make(x * 2), x)
        change(c, x)
        return read(c)

    def another_one(x):
        a, b, other = make(x), make(x * 2), make(x * 3)
        choose(a, b, x)
        c = choose(make(x), b, x)
        change(other, x)
        return read(c)

    for function in (changed_before, chosen_alone, another_one):
        for value in (x(), x() * -1):
            expected, found = (np.asarray(one(value)).tolist() for one in (function, hf.compile(function)))
            assert found == expected


def test_a_method_of_an_object_that_the_function_made_may_store_tensors():
    @hf.compile
    def f(x):
        cell = Cell(x)
        cell.set(x * 10)
        return cell.value

    assert f(1.0) == 10.0


def test_the_class_of_a_variable_that_is_an_argument():
    def step(x, w):
        kinds = [type(w) is hf.Variable, w.__class__ is hf.Variable, isinstance(w, hf.Variable)]
        return x * (sum(kinds) + {hf.Variable: 10}.get(type(w), 20) + 100 * len(type(w).__name__))

    x, w = hf.asarray(1.0), hf.Variable(2.0)
    assert hf.compile(step)(x, w).item() == step(x, w).item() == 813.0


def test_callables_that_are_values_are_themselves():
    class Doubled:
        def method(self):
            return 1

        def __call__(self):
            return 3

    def helper(x):
        return x

    doubled, part = Doubled(), functools.partial(helper, 1)

    def facts(x):
        made = []
        for one in (
            helper, doubled.method, Doubled.method, Doubled, doubled, part, str, repr, operator.add, made.append,
            {}.get, dict.fromkeys, "a".join, int.__add__, (3).__add__, math.sqrt, print, map, type, object.__setattr__,
        ):
            other = one
            made += [
                type(one).__name__, type(one) is type(other), id(one) == id(other), operator.is_(one, other),
                {one: 1}[one], isinstance(one, type), callable(one), one in [other], str(one)[:9],
                getattr(one, "__name__", None), inspect.isfunction(one), inspect.ismethod(one), inspect.isbuiltin(one),
                type(copy.copy(one)).__name__,
            ]
        told.append(made)
        return x

    told = []
    facts(x())
    hf.compile(facts)(x())
    assert told[0] == told[1]


STORED = {
    "attribute": (lambda s, c: setattr(s, "v", c), lambda s: s.v),
    "item": (lambda s, c: s.table.__setitem__("k", c), lambda s: s.table["k"]),
    "append": (lambda s, c: s.items.append(c), lambda s: s.items[-1]),
    "in a tuple": (lambda s, c: setattr(s, "v", (c, 1)), lambda s: s.v[0]),
    "in a list": (lambda s, c: setattr(s, "v", [c]), lambda s: s.v[0]),
    "in a function": (lambda s, c: setattr(s, "v", lambda: c), lambda s: s.v()),
    "in a partial": (lambda s, c: setattr(s, "v", functools.partial(len, c)), lambda s: s.v.args[0]),
    "in a method": (lambda s, c: setattr(s, "v", c.copy), lambda s: s.v.__self__),
    "in an object": (lambda s, c: setattr(s, "v", Cell(c)), lambda s: s.v.value),
}


@pytest.mark.parametrize("way", STORED)
@pytest.mark.parametrize("make", [
    lambda: {"a": 1}, lambda: [1, "b", None], lambda: {"lr": 0.1, "n": 2}, lambda: {"a": {"b": [1, 2]}}, lambda: [0.5],
    lambda: collections.OrderedDict(b=1, a=2), lambda: collections.defaultdict(list, a=1), lambda: {1, 2},
    lambda: collections.deque([1]), lambda: [("a", [1])],
])
def test_an_argument_that_is_stored_is_the_caller_s_own(way, make):
    store, get = STORED[way]
    state = types.SimpleNamespace(v=None, items=[], table={})

    def f(x, given):
        store(state, given)
        return x * len(given)

    compiled = hf.compile(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EffectWarning)
        for _ in range(3):
            given = make()
            compiled(x(), given)
            assert get(state) is given


@pytest.mark.parametrize("way", STORED)
def test_an_argument_with_tensors_is_not_stored(way):
    state = types.SimpleNamespace(v=None, items=[], table={})
    compiled = hf.compile(lambda x, given: (STORED[way][0](state, given), x)[1])
    with pytest.raises(MutationError, match="stores a traced tensor outside"):
        compiled(x(), {"a": x(), "b": [1]})
    assert state == types.SimpleNamespace(v=None, items=[], table={})


@dataclasses.dataclass(frozen=True)
class Plan:
    value: object
    part: object


class Named(collections.namedtuple("_Named", "value part")):
    """A named tuple with attributes."""


def noted(value, part):
    pair = Named(value, part)
    pair.note = "b"
    return pair


AROUND = {
    "dict": (lambda value, part: {"x": value, "part": part}, lambda one: one["part"]),
    "dict in its own order": (lambda value, part: {"x": value, "a": part}, lambda one: one["a"]),
    "ordered dict": (lambda value, part: collections.OrderedDict(x=value, part=part), lambda one: one["part"]),
    "default dict": (lambda value, part: collections.defaultdict(int, x=value, a=part), lambda one: one["a"]),
    "list": (lambda value, part: [part, value], lambda one: one[0]),
    "tuple": (lambda value, part: (value, part), lambda one: one[1]),
    "named tuple": (Named, lambda one: one.part),
    "named tuple with attributes": (noted, lambda one: one.part),
    "frozen dataclass": (Plan, lambda one: one.part),
    "tuple in a dict": (lambda value, part: {"k": ([part], value), "j": 1}, lambda one: one["k"][0][0]),
    "dict in a tuple": (lambda value, part: ({"k": part, "j": 1}, value), lambda one: one[0]["k"]),
    "twice in a tuple": (lambda value, part: (part, part, value), lambda one: one[1]),
}
BESIDE = {
    "tensor": x, "float": lambda: 1.5, "itself": None, "copy": lambda: [1, 2.0, "a"], "array": lambda: np.ones(3),
    "Variable": lambda: hf.Variable(2.0),
}


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("way", AROUND)
def test_a_part_without_tensors_of_an_argument_is_stored_as_it_is(way):
    make, get = AROUND[way]
    state = types.SimpleNamespace(v=None)

    @hf.compile
    def f(x, given):
        state.v = get(given)
        return x * 2

    for beside in BESIDE.values():
        for part in ([1, "b"], {"k": 2.5, "j": [None]}):
            given = make(beside() if beside else part, part)
            f(x(), given)
            assert state.v is part


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("way", AROUND)
def test_an_argument_that_holds_a_list_twice_is_stored_as_it_is(way):
    state = types.SimpleNamespace(v=None)

    @hf.compile
    def f(x, given):
        state.v = given
        return x * 2

    for part in ([1], [1, 2.0], {"k": 2.5, "j": [None]}):
        given = AROUND[way][0](part, part)
        f(x(), given)
        assert state.v == given
        assert way == "frozen dataclass" or state.v is given  # a dataclass counts by its value


def acted(x):
    return x * 3


class Acting:
    def method(self, x):
        return x * 3

    def __call__(self, x):
        return x * 3


ACTING = Acting()
FUNCTIONS = {
    "function": acted, "lambda": lambda x: x * 3, "bound method": ACTING.method, "partial": functools.partial(acted),
    "object": ACTING, "class": Acting, "builtin": len, "transformed": hf.grad(acted), "compiled": hf.compile(acted),
    "wrapper": functools.wraps(acted)(lambda x: acted(x)), "cached": functools.lru_cache(acted),
    "jax": hf.from_jax(acted),
}
HANDED_ON = {
    "by position": lambda way, body, one: (way(body), lambda f, x: f(x, one)),
    "by name": lambda way, body, one: (way(lambda x, *, g: body(x, g)), lambda f, x: f(x, g=one)),
    "by default": lambda way, body, one: (way(lambda x, g=one: body(x, g)), lambda f, x: f(x)),
    "in a list": lambda way, body, one: (way(lambda x, g: body(x, g[0])), lambda f, x: f(x, [one])),
    "in a dict": lambda way, body, one: (way(lambda x, g: body(x, g["k"])), lambda f, x: f(x, {"k": one})),
    "by stars": lambda way, body, one: (way(lambda x, *g, **k: body(x, g[0])), lambda f, x: f(x, one, k=one)),
    "to a method": lambda way, body, one: (way(Cell(body).hand), lambda f, x: f(x, one)),
    "by a decorator": lambda way, body, one: (hf.no_grad()(body), lambda f, x: f(x, one)),
    "to a gradient": lambda way, body, one: (hf.grad(lambda x, g: hf.sum(body(x, g))), lambda f, x: f(x, one)),
}


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("handed_on", HANDED_ON)
def test_a_function_that_is_handed_on_is_the_caller_s_own(handed_on):
    for name, one in FUNCTIONS.items():
        for way in (lambda f: f, hf.compile):
            kept, counts = [], {}

            def body(x, g, one=one, kept=kept, counts=counts):
                kept.append(g)
                counts[g] = counts.get(g, 0) + 1
                return x * kept.count(one) * (2 if g is one else 3)

            f, call = HANDED_ON[handed_on](way, body, one)
            outer = way(lambda x, f=f, call=call: call(f, x) + call(f, x))
            found = [outer(x()).tolist() for _ in range(2)]
            told = found, [g is one for g in kept], [*counts.items()]
            if way is not hf.compile:
                expected = told
        assert told == expected, name

"""Guards on hidden reads: what a function reads although no line of its source says so.

For example, containers whose methods return something else than they store, memory of C, users' methods that Python or
a library calls, freed objects, iterators that a call uses up, and state inside libraries. test_guards.py has the plain
ways to read, test_things_read.py has objects in containers and modules, and test_read_matrix.py has every way to read
with every way to change.
"""

import array
import collections
import contextvars
import copy
import ctypes
import decimal
import enum
import fractions
import functools
import itertools
import logging
import math
import operator
import pathlib
import random
import re
import threading
import types
import warnings
import weakref

import jax
import numpy as np
import pytest
from reference import without_xla
from test_things_read import same

import hybridflow as hf
from hybridflow import nn
from hybridflow.core.errors import MutationError


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        yield


# -- containers that say otherwise than what they hold, and memory ---------------------------------------------------


class Rows(list):
    """A list that shows others than it holds."""

    shift = 0.0

    def __iter__(self):
        return iter([row + self.shift for row in [*list.__iter__(self)]])

    def __len__(self):
        return 7

    def __getitem__(self, index):
        return 10.0 + list.__getitem__(self, index)


class Names(dict):
    """A dict that hides its names."""

    def __iter__(self):
        return iter(["a"])

    def __getitem__(self, name):
        return 10.0 + dict.__getitem__(self, name)

    keys = values = items = __iter__


class Pair(ctypes.Structure):
    _fields_ = (("first", ctypes.c_float), ("rest", ctypes.c_int * 2))


class Pointing(ctypes.Structure):
    _fields_ = (("place", ctypes.POINTER(ctypes.c_int)),)


def rows_of(read):
    def make():
        rows = Rows([2.0, 3.0])
        changes = [
            lambda: list.append(rows, 4.0), lambda: setattr(rows, "shift", 5.0), lambda: list.__setitem__(rows, 1, 6.0),
        ]
        return lambda x: x * read(rows), changes

    return make


def names_of(read):
    def make():
        names = Names(a=2.0, b=3.0)
        return lambda x: x * read(names), [lambda: dict.__setitem__(names, "b", 6.0), lambda: dict.pop(names, "a")]

    return make


def rows_given():
    rows = Rows([2.0, 3.0])
    f = functools.partial(lambda rows, x: x * rows[1] + len([*list.__iter__(rows)]), rows)
    return f, [lambda: list.__setitem__(rows, 1, 6.0), lambda: list.append(rows, 4.0)]


def memory(read):
    def make():
        numbers, pair = (ctypes.c_float * 2)(2, 3), Pair(2.0)
        number = ctypes.c_int(4)
        pointing = Pointing(ctypes.pointer(number))
        changes = [
            lambda: numbers.__setitem__(0, 5.0), lambda: setattr(pair, "first", 7.0),
            lambda: pair.rest.__setitem__(1, 8), lambda: setattr(number, "value", 9),
        ]
        return lambda x: x * read(numbers, pair, pointing, number), changes

    return make


HIDDEN = {
    "rows": rows_of(lambda rows: sum(rows) + rows[1] + len(rows)),
    "a row": rows_of(lambda rows: rows[1]),
    "a row by the base": rows_of(lambda rows: list.__getitem__(rows, 1) + list.__len__(rows)),
    "a name": names_of(lambda names: names["b"]),
    "rows given": rows_given,
    "array of C": memory(lambda numbers, *_: numbers[0] + sum(numbers)),
    "structure of C": memory(lambda _, pair, *rest: pair.first + pair.rest[1]),
    "number of C": memory(lambda *given: given[-1].value),
    "pointer of C": memory(lambda _, __, pointing, *rest: pointing.place[0] + pointing.place.contents.value),
    "buffer of C": memory(lambda numbers, *_: float(np.frombuffer(numbers, np.float32).sum())),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_containers_and_memory_hold(name):
    assert len(set(map(str, same(HIDDEN[name])))) > 2


# -- what Python and libraries call of what the user wrote -----------------------------------------------------------


class Kind(type):
    """A metaclass of which everything is asked."""

    @classmethod
    def __prepare__(cls, name, bases):
        return {"prepared": BOX.a}

    def __new__(cls, name, bases, names):
        return super().__new__(cls, name, bases, {**names, "made": BOX.b})

    def __instancecheck__(cls, one):
        return BOX.a > 3.0


class Base:
    def __init_subclass__(cls, unit=None, **rest):
        cls.unit = BOX.b * unit.a


class Named:
    def __set_name__(self, owner, name):
        owner.named = BOX.a


class Asked(enum.Enum):
    """An enumeration that knows what to do with a value that it lacks."""

    LOW = 1
    HIGH = 2

    @classmethod
    def _missing_(cls, value):
        return cls.HIGH if BOX.a > 3.0 else cls.LOW


class Key:
    def __init__(self, box):
        self.box = box

    def __hash__(self):
        return 1

    def __eq__(self, other):
        return self.box.a == other.box.a


class Shown:
    def __str__(self):
        return str(float(isinstance(3, Kind("Any", (), {}))))


class Logged:
    def __format__(self, spec):
        return str(LOGGERS["one"].level)


BOX = types.SimpleNamespace(a=2.0, b=3.0)
LOGGERS = types.MappingProxyType({"one": logging.getLogger(f"{__name__}.level")})


def with_metaclass(x):
    class Made(metaclass=Kind):
        pass

    return x * Made.prepared + Made.made


def with_base(x):
    class Made(Base, unit=BOX):
        pass

    return x * Made.unit


def with_descriptor(x):
    class Made:
        field = Named()

    return x * Made.named


def with_key(x):
    two = types.SimpleNamespace(a=2.0)
    table = {Key(two): 4.0}
    found = {Key(BOX)}
    return x * table.get(Key(BOX), 9.0) + (Key(two) in found)


ASKED = {
    "metaclass": with_metaclass,
    "base": with_base,
    "descriptor": with_descriptor,
    "enumeration": lambda x: x * Asked(9).value,
    "keys made": with_key,
    "class of a text": lambda x: x * float(str(Shown())),
    "logger": lambda x: x * float(f"{Logged():x}"),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_called_by_itself(name):
    def make():
        BOX.a, BOX.b = 2.0, 3.0
        LOGGERS["one"].setLevel(10)
        changes = [
            lambda: setattr(BOX, "a", 5.0), lambda: setattr(BOX, "b", 7.0), lambda: LOGGERS["one"].setLevel(30),
        ]
        return ASKED[name], changes

    assert len(set(map(str, same(make)))) > 2


@pytest.mark.parametrize("find", [
    lambda table, key: table.get(key, 9.0), lambda table, key: float(key in table),
    lambda table, key: dict.get(table, key, 9.0), lambda table, key: table.setdefault(key, 4.0) * len(table),
])
def test_keys_that_others_are_compared_with(find):
    def make():
        box, two = types.SimpleNamespace(a=2.0), types.SimpleNamespace(a=2.0)
        table = {Key(box): 4.0}
        return lambda x: x * find(table, Key(two)), [lambda: setattr(box, "a", 5.0), lambda: setattr(box, "a", 2.0)]

    assert len(set(map(str, same(make)))) > 2


# -- what a call does beside its result ------------------------------------------------------------------------------


class Counted:
    count = 0

    def __init__(self):
        Counted.count += 1

    def __del__(self):
        Counted.count -= 1


def test_what_is_let_go_of_is_gone():
    def run(x):
        one, seen = Counted(), weakref.WeakSet()
        seen.add(one)
        weak = weakref.ref(one)
        del one
        return x * (len(seen) + (weak() is None) * 3 + Counted.count * 10)

    same(lambda: (run, []))


def filled(x, rows):
    found = [0.0]
    found[:] = rows
    return x * len(found)


def passed_on(x, rows):
    def rest():
        yield from rows

    return x * len([*rest()])


@pytest.mark.parametrize("run", [filled, passed_on])
def test_an_iterator_that_is_used_up(run):
    def make():
        rows = iter([1.0, 2.0])
        return lambda x: run(x, rows), []

    assert len(set(map(str, same(make)))) > 2


def drawn_in_a_loop(x):
    for _ in hf.arange(3):
        x = x * STREAM.random()
    return x


def drawn_in_a_branch(x):
    return x * next(ROWS) if hf.sum(x) > 0 else x


STREAM, ROWS = random.Random(0), iter([1.0, 2.0, 3.0])


@pytest.mark.parametrize("run", [drawn_in_a_loop, drawn_in_a_branch])
def test_draws_in_a_branch_or_loop_on_tensors(run):
    with pytest.raises(MutationError, match=r"in a branch or loop on tensors(.|\n)*(random\.random|next)\(\)"):
        hf.compile(run)(hf.asarray([1.0, -2.0]))


def test_a_cache_that_the_function_clears():
    def make():
        box = types.SimpleNamespace(a=2.0)

        @functools.cache
        def read(number):
            return box.a * number

        def run(x):
            read.cache_clear()
            return x * read(1.0)

        return run, [lambda: setattr(box, "a", 5.0)]

    assert len(set(map(str, same(make)))) > 2


def test_a_cache_of_what_the_function_changes():
    def make():
        box = types.SimpleNamespace(a=2.0)

        @functools.cache
        def read(number):
            return box.a * number

        def run(x):
            box.a = 6.0
            return x * read(1.0)

        def changed():
            read.cache_clear()
            box.a = 5.0

        return run, [changed]

    same(make)


def test_a_dict_that_is_changed_by_one_way_and_read_by_another():
    def make():
        box = collections.UserDict(a=2.0)

        def run(x):
            box.data["c"] = 1.0
            return x * (box["a"] + len(box))

        return run, [lambda: box.update(a=7.0), lambda: box.pop("c")], lambda: dict(box)

    assert len(set(map(str, same(make)))) > 3


class Product:
    """An object that changes itself where it is multiplied."""

    def __init__(self):
        self.value = 1.0

    def __imul__(self, factor):
        self.value *= factor
        return self

    def __repr__(self):
        return str(self.value)


CHANGED_IN_PLACE = {
    "array": (lambda: np.float32([2, 3]), "Mult", 2),
    "list": (lambda: [2.0], "Add", [1.0]),
    "set": (lambda: {1, 2}, "BitOr", {3}),
    "deque": (lambda: collections.deque([1.0]), "Mult", 2),
    "bytes": (lambda: bytearray(b"a"), "Add", b"b"),
    "numbers": (lambda: array.array("f", [1.0]), "Mult", 2),
    "counter": (lambda: collections.Counter(a=1), "Add", collections.Counter(a=1)),
    "object": (Product, "Mult", 2.0),
}


@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("name", CHANGED_IN_PLACE)
def test_items_that_augmented_assignments_change_in_place(name, reads):
    made, kind, operand = CHANGED_IN_PLACE[name]

    def make():
        held, item, inner = [made()], {"a": made()}, types.SimpleNamespace(rows=[made()])

        def multiplied(x):
            held[0] *= operand
            item["a"] *= operand
            inner.rows[0] *= operand
            return x * len(str(held[0])) if reads else x

        def added(x):
            held[0] += operand
            item["a"] += operand
            inner.rows[0] += operand
            return x * len(str(held[0])) if reads else x

        def joined(x):
            held[0] |= operand
            item["a"] |= operand
            inner.rows[0] |= operand
            return x * len(str(held[0])) if reads else x

        run = {"Mult": multiplied, "Add": added, "BitOr": joined}[kind]

        def again():
            held[0] = made()

        return run, [again], lambda: repr((held, item, inner))

    same(make)


def test_settings_that_the_function_makes():
    def make():
        np.seterr(over="warn")

        def run(x):
            np.seterr(over="ignore")
            return x

        return run, [lambda: np.seterr(over="print")], lambda: np.geterr()["over"]

    with np.errstate():
        same(make)


# -- what libraries keep -----------------------------------------------------------------------------------------------


class Leaf:
    def __init__(self, value):
        self.value = value


def test_a_class_that_jax_comes_to_know():
    def make():
        kind = type("Leaf", (Leaf,), {})
        inside = {"one": [kind(2.0)]}

        def register():
            jax.tree_util.register_pytree_node(kind, lambda one: ((one.value, 1.0), None), lambda _, held: kind(*held))

        return lambda x: x * len(jax.tree_util.tree_leaves(inside)) + len(jax.tree.leaves(inside["one"][0])), [register]

    assert len(set(map(str, same(make)))) > 2


THIRD = hf.asarray([1 / 3, 2 / 3])
ONE, ZERO, FEW, MANY = np.float32(1), np.float32(0), np.array([1.0, 0.0]), decimal.Decimal("1.23456789")
BY_NUMPY = [
    lambda: ONE / ZERO, lambda: FEW / FEW[::-1], lambda: np.divide(FEW, 0.0), lambda: np.divide(1.0, 0.0),
    lambda: np.log(ZERO), lambda: -np.sqrt(-ONE), lambda: FEW.prod() / ZERO, lambda: operator.truediv(ONE, ZERO),
    lambda: sum([np.float32(3e38), np.float32(3e38)]), lambda: np.array([1e300]).astype(np.float32),
    lambda: functools.reduce(operator.mul, [np.float32(3e38), np.float32(3e38)]), lambda: FEW.__rtruediv__(1.0),
]
BY_DECIMAL = [
    lambda: len(str(MANY / 3)), lambda: len(str(+MANY)), lambda: len(str(MANY.sqrt())), lambda: float(MANY * MANY),
    lambda: decimal.getcontext().prec, lambda: len(str(decimal.Decimal("1.23456789") * 3)),
    lambda: len(str(sum([MANY]))),
]
SHOWN = [lambda: len(str(FEW / 3)), lambda: len(f"{FEW / 3}"), lambda: len(np.array2string(FEW / 3)),
         lambda: len(repr([FEW / 3])), lambda: len("%s" % (FEW / 3)), lambda: len(str(THIRD)), lambda: len(f"{THIRD}"),
         lambda: len(repr({"a": (THIRD, 1)}))]


@pytest.mark.parametrize(("computed", "outside", "inside"), [
    *itertools.product(BY_NUMPY, [lambda: np.seterr(all="raise")], [lambda: np.errstate(all="ignore")]),
    *itertools.product(BY_DECIMAL, [lambda: setattr(decimal.getcontext(), "prec", 4)],
                       [lambda: decimal.localcontext(prec=5)]),
    *itertools.product(SHOWN, [lambda: np.set_printoptions(precision=2)], [lambda: np.printoptions(precision=3)]),
])
def test_what_libraries_compute_by(computed, outside, inside):
    def plain(x):
        return x * float(np.max(computed()))

    def within(x):
        with inside():
            return x * float(np.max(computed()))

    @hf.no_convert
    def unseen():
        return computed()

    def elsewhere(x):
        return x * float(np.max(unseen()))

    for function in (plain, within, elsewhere):
        with np.errstate(all="ignore"), decimal.localcontext(), np.printoptions():
            compiled = hf.compile(function)
            found = []
            for change in (lambda: None, lambda: None, outside):
                change()
                found.append([outcome(one) for one in (function, compiled)])
            assert [eager for eager, _ in found] == [made for _, made in found]
            assert (found[0] != found[2]) == (function is not within)
            assert compiled.trace_count <= 2 or function is elsewhere


def outcome(function):
    try:
        return str(function(hf.asarray(1.0)))
    except FloatingPointError as error:
        return str(error)


class Failing:
    """An object whose attributes, length and state cannot be read."""

    def __getattr__(self, name):
        raise AttributeError(name) if name.startswith("__") else RuntimeError(name)

    def __len__(self):
        raise RuntimeError

    def __reduce_ex__(self, protocol):
        raise RuntimeError

    def __repr__(self):
        return "failing"


def length_of(value):
    try:
        return len(value)
    except (TypeError, RuntimeError) as error:
        return 20.0 + len(type(error).__name__)


def copied(value):
    try:
        mine = copy.copy(value)
        if hasattr(mine, "append"):
            mine.append(8)
            mine.append(9)
        return len(str(mine[7])) if hasattr(mine, "keys") else len(repr(mine))
    except (TypeError, RuntimeError, KeyError) as error:
        return 20.0 + len(type(error).__name__)


@pytest.mark.filterwarnings("ignore::hybridflow.core.errors.RetraceWarning")
@pytest.mark.parametrize("read", [lambda value: len(repr(value)), lambda value: len(repr([value])), length_of, copied,
                                  lambda value: len(type(value).__name__)])
def test_a_value_of_any_kind_in_the_place_of_any_other(read):
    values = [
        1, 1.5, "text", None, int, re.compile("a"), types.MappingProxyType({}), memoryview(b"a"), b"ab", bytearray(3),
        [1], (1, 2), {1: 2}, {1}, pathlib.PurePath("a/b"), fractions.Fraction(1, 2), decimal.Decimal(2), np.ones(2),
        np.float32(2), array.array("i", [1]), collections.deque([1]), collections.deque([1], maxlen=2), len, Failing(),
        slice(1), range(3), hf.ones(2), re, enum.Enum("E", "a").a, 2j, object(), contextvars.ContextVar("name"),
        weakref.ref(Failing),
        collections.defaultdict(int), collections.defaultdict(list), collections.OrderedDict(a=1, b=2),
        collections.OrderedDict(b=2, a=1), np.dtype("f4"), np.dtype([("a", "f4")]), np.dtype([("a", "f4")], align=True),
        np.dtype("f4", metadata={"a": 1}), np.array(["a"]), np.array(["b"]), np.str_("a"), np.datetime64(1, "D"),
        np.datetime64(1, "ns"), np.array(["a"], object),
    ]
    holder = types.SimpleNamespace()

    def function(x):
        return x * read(holder.value)

    with without_xla():
        for number, holder.value in enumerate(values):
            compiled = hf.compile(function)
            compiled(hf.asarray(1.0))
            for holder.value in (*values[number % 9 :: 9], *values[max(number - 2, 0) : number + 3]):
                assert compiled(hf.asarray(1.0)).item() == function(hf.asarray(1.0)).item()


def test_a_lock_that_is_taken():
    def make():
        lock = threading.Lock()
        return lambda x: x * (2.0 if lock.locked() else 3.0), [lock.acquire, lock.release]

    assert len(set(map(str, same(make)))) > 2


def test_another_function_in_a_module_written_in_c(monkeypatch):
    root = math.sqrt

    def make():
        monkeypatch.setattr(math, "sqrt", root)
        return lambda x: x * math.sqrt(4.0), [lambda: monkeypatch.setattr(math, "sqrt", lambda number: 9.0)]

    assert len(set(map(str, same(make)))) > 2


def test_a_parameter_that_is_frozen_after_a_compiled_call_stays_one():
    class Two(nn.Module):
        def __init__(self):
            self.first, self.second = hf.Variable(2.0), hf.Variable(3.0)

    def make():
        model = Two()
        return lambda x: x * len(model.parameters()), [lambda: setattr(model.first, "trainable", False)]

    same(make)


def test_a_variable_that_goes_to_code_that_is_not_converted():
    def make():
        held = {"one": hf.Variable(2.0)}

        class Text:
            def __str__(self):
                return str(float(held["one"].trainable))

        text = Text()
        return lambda x: x * float(str(text)), [lambda: setattr(held["one"], "trainable", False)]

    assert len(set(map(str, same(make)))) > 2


class Counting:
    """A descriptor that counts how often it is read."""

    def __init__(self):
        self.reads = 0

    def __get__(self, obj, kind=None):
        self.reads += 1
        return self.reads * 0.5


def _of_a_class(box):
    return lambda x: x * box.c


def _of_a_metaclass(box):
    return lambda x: x * box.live + (box.c if hasattr(box, "c") else 0)


def _of_no_class(box):
    return lambda x: x * box.missing_too


def _hidden_by_the_object(box):
    o = box()

    def f(x):
        o.__dict__.pop("c", None)
        o.__dict__["c"] = o.c
        return x + o.c

    return f


def _by_a_hook(box):
    class Hooked:
        def __init__(self):
            self.a = 2

        def __getattribute__(self, name):
            box.made += name == "a"
            return object.__getattribute__(self, name)

    o = Hooked()
    return lambda x: x * o.a


@pytest.mark.parametrize("make", [_by_a_hook, _of_a_class, _of_a_metaclass, _of_no_class, _hidden_by_the_object])
def test_guards_run_no_getters_of_classes(make):
    def run(eager):
        class Meta(type):
            made = 0

            @property
            def live(cls):
                cls.made += 1
                return cls.made

            def __getattr__(cls, name):
                cls.made += 2
                return float(len(name) + cls.made)

        class Box(metaclass=Meta):
            c = Counting()

        compiled, seen = hf.compile(make(Box)), []
        for _ in range(4):
            with hf.config.run_eagerly(eager):
                seen.append((compiled(hf.asarray(1.0)).item(), Box.made, vars(Box)["c"].reads))
        return seen

    with without_xla():
        assert run(False) == run(True)


def test_a_partial_of_a_partial_from_outside_is_one_partial():
    inner = functools.partial(pow, 2)

    def f(x):
        outer = functools.partial(inner, 3)
        return x * outer(), outer.func is pow, len(outer.args)

    assert [float(one) for one in hf.compile(f)(1.0)] == [8.0, 1.0, 2.0]
    assert functools.partial(inner, 3).func is pow

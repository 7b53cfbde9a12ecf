"""Ways in which a function reads Python state, crossed with where the state sits and how it changes between calls.

A `Kind` is something to read a number from, with the ways in which that number becomes another one. A route is how a
compiled function comes to the thing that holds it. Every pair of them, with every change, is one question: does a
compiled call give what the function itself gives, after the change too?
"""

import array
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import functools
import itertools
import json
import math
import operator
import string
import types
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import hybridflow as hf
from hybridflow.tracing import trace

# -- kinds --------------------------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """Something to read a number from.

    Attributes:
        make: makes one that holds a number.
        read: reads the number.
        changes: ways to make it hold 5.
    """

    make: Callable[[Any], Any]
    read: Callable[[Any], Any]
    changes: dict[str, Callable[[Any], Any]]


class Box:
    """An object with attributes."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Slotted:
    """An object with a slot."""

    __slots__ = ("__weakref__", "k")

    def __init__(self, k: Any) -> None:
        self.k = k


class Pair(NamedTuple):
    """A named tuple."""

    k: Any
    other: Any = 1.0


@dataclasses.dataclass
class Data:
    """A dataclass."""

    k: Any
    other: Any = 1.0


@dataclasses.dataclass(frozen=True)
class Frozen:
    """A frozen dataclass."""

    k: Any
    other: Any = 1.0


KINDS: dict[str, Kind] = {}


def kind(name, make, read, **changes):
    KINDS[name] = Kind(make, read, changes)


def sets(h):
    h.k = 5.0


def by_dict(h):
    h.__dict__["k"] = 5.0


def set_item(h):
    h["k"] = 5.0


def set_first(h):
    h[0] = 5.0


def box(k):
    return Box(k=k)


# attributes
kind("an attribute", box, lambda h: h.k, set=sets, dict=by_dict)
kind("an int attribute", lambda k: Box(k=int(k)), lambda h: h.k, set=lambda h: setattr(h, "k", 5))
kind("a str attribute", lambda k: Box(k="x" * int(k)), lambda h: len(h.k), set=lambda h: setattr(h, "k", "x" * 5))
kind("a slot", Slotted, lambda h: h.k, set=sets)
kind("an attribute's attribute", lambda k: Box(b=box(k)), lambda h: h.b.k,
     set=lambda h: sets(h.b), replace=lambda h: setattr(h, "b", box(5.0)))
kind("getattr", box, lambda h: getattr(h, "k"), set=sets)  # noqa: B009
kind("getattr with a default", box, lambda h: getattr(h, "absent", 2.0), set=lambda h: setattr(h, "absent", 5.0))
kind("hasattr", box, lambda h: 5.0 if hasattr(h, "absent") else 2.0, set=lambda h: setattr(h, "absent", 5.0))
kind("vars", box, lambda h: vars(h)["k"], set=sets)
kind("__dict__", box, lambda h: h.__dict__["k"], set=sets)
kind("__dict__.get", box, lambda h: h.__dict__.get("k"), set=sets)
kind("dir", box, lambda h: len(dir(h)), add=lambda h: setattr(h, "more", 1))
kind("vars, its length", box, lambda h: len(vars(h)), add=lambda h: setattr(h, "more", 1))
kind("object.__getattribute__", box, lambda h: object.__getattribute__(h, "k"), set=sets)
kind("a namespace", lambda k: types.SimpleNamespace(k=k), lambda h: h.k, set=sets)
kind("a dataclass", Data, lambda h: h.k, set=sets)
kind("dataclasses.asdict", Data, lambda h: dataclasses.asdict(h)["k"], set=sets)
kind("dataclasses.astuple", Data, lambda h: dataclasses.astuple(h)[0], set=sets)
kind("dataclasses.replace", Data, lambda h: dataclasses.replace(h, other=2.0).k, set=sets)
kind("copy.copy", box, lambda h: copy.copy(h).k, set=sets)
kind("copy.deepcopy", lambda k: Box(b=box(k)), lambda h: copy.deepcopy(h).b.k, set=lambda h: sets(h.b))
kind("attrgetter", box, lambda h: operator.attrgetter("k")(h), set=sets)
kind("attrgetter, deep", lambda k: Box(b=box(k)), lambda h: operator.attrgetter("b.k")(h), set=lambda h: sets(h.b))


class WithMethods:
    """An object with a method."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def m(self, x: Any = 1.0) -> Any:
        return self.k * x


def redefine_m(h):
    type(h).m = five_m


def five_m(self, x=1.0):
    return 5.0


def fresh(base, **more):
    """Return a class of its own for a test that changes it."""
    return type(base.__name__, (base,), more)


def with_methods(k):
    return fresh(WithMethods)(k)


kind("a method", with_methods, lambda h: h.m(), set=sets, redefine=redefine_m)
kind("a method held in a local", with_methods, lambda h: (lambda m: m())(h.m), set=sets, redefine=redefine_m)
kind("methodcaller", with_methods, lambda h: operator.methodcaller("m")(h), set=sets, redefine=redefine_m)
kind("a method in a list", lambda k: [with_methods(k).m], lambda h: h[0](), set=lambda h: sets(h[0].__self__))
kind("a method in an attribute", lambda k: Box(m=with_methods(k).m), lambda h: h.m(),
     set=lambda h: sets(h.m.__self__), replace=lambda h: setattr(h, "m", with_methods(5.0).m))
kind("a method by its function", with_methods, lambda h: type(h).m(h), set=sets, redefine=redefine_m)


# classes
def class_k(k):
    return type("Thing", (), {"k": k})()


def set_class(h):
    type(h).k = 5.0


def inherited_k(k):
    return type("Derived", (type("Base", (), {"k": k}),), {})()


def set_base(h):
    type(h).__mro__[1].k = 5.0


class Other:
    """A class to change to."""

    k = 5.0

    def m(self, x=1.0):
        return 5.0

    def __call__(self, x=1.0):
        return 5.0


def swap(h):
    h.__class__ = Other


kind("a class attribute", class_k, lambda h: h.k, cls=set_class, shadow=sets, swap=swap)
kind("an inherited class attribute", inherited_k, lambda h: h.k, base=set_base, derived=set_class, shadow=sets)
kind("type(h).k", class_k, lambda h: type(h).k, cls=set_class, swap=swap)
kind("__class__.k", class_k, lambda h: h.__class__.k, cls=set_class, swap=swap)
kind("a fresh object's class attribute", lambda k: type("Thing", (), {"k": k}), lambda h: h().k, set=sets)
kind("a class's own attribute", lambda k: type("Thing", (), {"k": k}), lambda h: h.k, set=sets)
kind("a class's dict", lambda k: type("Thing", (), {"k": k}), lambda h: vars(h)["k"], set=sets)
kind("the name of a class", lambda k: Box(c=type("T" * int(k), (), {})), lambda h: len(type(h.c()).__name__),
     set=lambda h: setattr(h.c, "__name__", "T" * 5))
kind("isinstance", lambda k: class_k(k), lambda h: 5.0 if isinstance(h, Other) else 2.0, swap=swap)
kind("a classmethod", lambda k: type("Thing", (), {"k": k, "c": classmethod(lambda cls: cls.k)}), lambda h: h.c(),
     set=sets, redefine=lambda h: setattr(h, "c", classmethod(lambda cls: 5.0)))
kind("a classmethod of an object", lambda k: type("Thing", (), {"k": k, "c": classmethod(lambda cls: cls.k)})(),
     lambda h: h.c(), cls=set_class)
kind("a staticmethod", lambda k: type("Thing", (), {"c": staticmethod(lambda: 2.0)}), lambda h: h.c(),
     redefine=lambda h: setattr(h, "c", staticmethod(lambda: 5.0)))


def with_property(k):
    return type("Thing", (Box,), {"p": property(lambda self: self.k)})(k=k)


kind("a property", with_property, lambda h: h.p, set=sets,
     redefine=lambda h: setattr(type(h), "p", property(lambda self: 5.0)))


class Descriptor:
    """A descriptor with a value of its own."""

    def __init__(self, k: Any) -> None:
        self.k = k

    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else self.k


class Delegating:
    """A descriptor that reads another attribute of the object."""

    def __get__(self, obj: Any, owner: Any) -> Any:
        return self if obj is None else obj.k


kind("a descriptor", lambda k: type("Thing", (), {"d": Descriptor(k)})(), lambda h: h.d,
     set=lambda h: sets(type(h).__dict__["d"]), redefine=lambda h: setattr(type(h), "d", Descriptor(5.0)),
     shadow=lambda h: h.__dict__.update(d=5.0))
kind("a descriptor that delegates", lambda k: type("Thing", (Box,), {"d": Delegating()})(k=k), lambda h: h.d, set=sets)
kind("__getattr__", lambda k: type("Thing", (Box,), {"__getattr__": lambda self, name: self.k})(k=k),
     lambda h: h.absent, set=sets, add=lambda h: setattr(h, "absent", 5.0),
     redefine=lambda h: setattr(type(h), "__getattr__", lambda self, name: 5.0))
kind("__getattribute__", lambda k: type("Thing", (Box,), {
         "__getattribute__": lambda self, name: object.__getattribute__(self, "k" if name == "p" else name)})(k=k),
     lambda h: h.p, set=lambda h: object.__setattr__(h, "k", 5.0))


class Level(enum.Enum):
    """An enum whose members have attributes."""

    LOW = 1


def member(k):
    made = enum.Enum("Level", {"LOW": 1}).LOW
    made.k = k
    return made


kind("an enum's attribute", member, lambda h: h.k, set=sets)
kind("a cached property", lambda k: type("Thing", (Box,), {"p": functools.cached_property(lambda self: self.k)})(k=k),
     lambda h: 1.0 * h.p, dict=lambda h: h.__dict__.update(p=5.0, k=5.0))


# what Python calls by itself
def thing(name, method, other):
    """Add a kind whose special method reads ``self.k``."""

    def make(k):
        return type("Thing", (Box,), {name: method})(k=k)

    def redefine(h):
        setattr(type(h), name, other)

    return {"make": make, "set": sets, "redefine": redefine}


BOOL = thing("__bool__", lambda self: self.k > 3, lambda self: True)
kind("__bool__ of an if", read=lambda h: 5.0 if h else 2.0, **BOOL)
kind("__bool__ of a not", read=lambda h: 2.0 if not h else 5.0, **BOOL)
kind("__bool__ of an and", read=lambda h: (h and 5.0) or 2.0, **BOOL)
kind("bool()", read=lambda h: 5.0 if bool(h) else 2.0, **BOOL)
kind("all()", read=lambda h: 5.0 if all([h, 1]) else 2.0, **BOOL)
kind("any()", read=lambda h: 5.0 if any([h, 0]) else 2.0, **BOOL)
kind("filter()", read=lambda h: 1 + len(list(filter(None, [h]))), **BOOL)


def while_h(h):
    count = 0.0
    while h and count < 3.0:
        count = count + 1.0
    return count + 1.0


def asserted(h):
    try:
        assert h
    except AssertionError:
        return 2.0
    return 5.0


kind("__bool__ of a while", read=while_h, **BOOL)
kind("__bool__ of an assert", read=asserted, **BOOL)
LEN = thing("__len__", lambda self: int(self.k), lambda self: 5)
kind("len()", read=lambda h: len(h), **LEN)
LEN_0 = thing("__len__", lambda self: int(self.k) // 4, lambda self: 5)
kind("__len__ of an if", read=lambda h: 5.0 if h else 2.0, **LEN_0)
INT = thing("__int__", lambda self: int(self.k), lambda self: 5)
kind("int()", read=lambda h: int(h), **INT)
FLOAT = thing("__float__", lambda self: float(self.k), lambda self: 5.0)
kind("float()", read=lambda h: float(h), **FLOAT)
kind("math.sqrt()", read=lambda h: math.sqrt(h), **FLOAT)
kind("np.float64()", read=lambda h: float(np.float64(h)), **FLOAT)
COMPLEX = thing("__complex__", lambda self: complex(self.k), lambda self: 5.0j)
kind("complex()", read=lambda h: complex(h).real + 1.0, **COMPLEX)
INDEX = thing("__index__", lambda self: int(self.k), lambda self: 5)
kind("range()", read=lambda h: len(range(h)), **INDEX)
kind("an index", read=lambda h: [0, 1, 2, 3, 4, 5, 6][h], **INDEX)
kind("a slice", read=lambda h: len([0, 1, 2, 3, 4, 5, 6][:h]), **INDEX)
kind("operator.index()", read=lambda h: operator.index(h), **INDEX)
kind("a special method called by its name", read=lambda h: h.__index__(), **INDEX)
HASH = thing("__hash__", lambda self: int(self.k), lambda self: 5)
kind("hash()", read=lambda h: hash(h), **HASH)
REPR = thing("__repr__", lambda self: "x" * int(self.k), lambda self: "x" * 5)
kind("repr()", read=lambda h: len(repr(h)), **REPR)
kind("str()", read=lambda h: len(str(h)), **REPR)
kind("!r", read=lambda h: len(f"{h!r}"), **REPR)
kind("an f-string", read=lambda h: len(f"{h}"), **REPR)
kind("%s", read=lambda h: len("%s" % h), **REPR)  # noqa: UP031
kind("str.format", read=lambda h: len("{}".format(h)), **REPR)  # noqa: UP032
kind("string.Template", read=lambda h: len(string.Template("$h").substitute(h=h)), **REPR)
kind("repr() of a list", read=lambda h: len(repr([h])), **REPR)
STR = thing("__str__", lambda self: "x" * int(self.k), lambda self: "x" * 5)
kind("__str__", read=lambda h: len(str(h)), **STR)
FORMAT = thing("__format__", lambda self, spec: "x" * int(self.k), lambda self, spec: "x" * 5)
kind("format()", read=lambda h: len(format(h, "")), **FORMAT)
kind("__format__ of an f-string", read=lambda h: len(f"{h:>3}"), **FORMAT)
EQ = thing("__eq__", lambda self, other: self.k == other, lambda self, other: True)
kind("==", read=lambda h: 5.0 if h == 5.0 else 2.0, **EQ)
kind("== from the other side", read=lambda h: 5.0 if 5.0 == h else 2.0, **EQ)  # noqa: SIM300
kind("!=", read=lambda h: 2.0 if h != 5.0 else 5.0, **EQ)
kind("in a list", read=lambda h: 5.0 if 5.0 in [1.0, h] else 2.0, **EQ)
kind("list.count", read=lambda h: 1 + [1.0, h].count(5.0), **EQ)
kind("list.index", read=lambda h: [h, 5.0].index(5.0) + 1, **EQ)
kind("== of lists", read=lambda h: 5.0 if [h] == [5.0] else 2.0, **EQ)
kind("operator.eq", read=lambda h: 5.0 if operator.eq(h, 5.0) else 2.0, **EQ)
LT = thing("__lt__", lambda self, other: self.k < 3, lambda self, other: False)
kind("<", read=lambda h: 2.0 if h < h else 5.0, **LT)
kind("sorted()", read=lambda h: 1 + [one is h for one in sorted([Box(k=1), h])].index(True), **LT)
kind("min()", read=lambda h: 2.0 if min([Box(k=1), h]) is h else 5.0, **LT)
CONTAINS = thing("__contains__", lambda self, one: self.k == one, lambda self, one: True)
kind("in", read=lambda h: 5.0 if 5.0 in h else 2.0, **CONTAINS)
ITER = thing("__iter__", lambda self: iter([1.0, self.k]), lambda self: iter([5.0]))
kind("a for loop", read=lambda h: sum([one for one in h]), **ITER)
kind("list()", read=lambda h: list(h)[-1], **ITER)
kind("sum()", read=lambda h: sum(h), **ITER)
kind("a star", read=lambda h: [0.0, *h][-1], **ITER)
kind("a star in a call", read=lambda h: max(*h, 0.0), **ITER)
kind("an unpacking", read=lambda h: (lambda pair: pair[1])((lambda *all_: all_)(*h)), make=ITER["make"], set=sets)


def unpacked(h):
    _, last = h
    return last


kind("an unpacking assignment", read=unpacked, make=ITER["make"], set=sets)
kind("max()", read=lambda h: max(h), **ITER)
kind("str.join", read=lambda h: float("".join(map(str, h))[-3:]), **ITER)
kind("dict.fromkeys", read=lambda h: max(dict.fromkeys(h)), **ITER)
kind("itertools.chain", read=lambda h: max(itertools.chain(h)), **ITER)
GETITEM = thing("__getitem__", lambda self, key: self.k, lambda self, key: 5.0)
kind("[]", read=lambda h: h["a"], **GETITEM)
kind("itemgetter", read=lambda h: operator.itemgetter("a")(h), **GETITEM)
CALL = thing("__call__", lambda self, x=1.0: self.k * x, lambda self, x=1.0: 5.0)
kind("a call", read=lambda h: h(), **CALL)
kind("a call by map", read=lambda h: next(iter(map(h, [1.0]))), **CALL)
kind("a call by reduce", read=lambda h: functools.reduce(lambda a, b: h(b), [1.0, 1.0]), **CALL)
ADD = thing("__add__", lambda self, other: self.k + other, lambda self, other: 5.0)
kind("+", read=lambda h: h + 1.0, **ADD)
kind("operator.add", read=lambda h: operator.add(h, 1.0), **ADD)
RADD = thing("__radd__", lambda self, other: self.k + other, lambda self, other: 5.0)
kind("sum() of objects", read=lambda h: sum([h]), **RADD)
kind("-", read=lambda h: -h, **thing("__neg__", lambda self: -self.k, lambda self: 5.0))
kind("abs()", read=lambda h: abs(h), **thing("__abs__", lambda self: self.k, lambda self: 5.0))
kind("round()", read=lambda h: round(h), **thing("__round__", lambda self, n=0: self.k, lambda self, n=0: 5.0))
kind("divmod()", read=lambda h: divmod(h, 1)[0], **thing("__divmod__", lambda s, n: (s.k, 0), lambda s, n: (5.0, 0)))
kind("pow()", read=lambda h: pow(h, 1), **thing("__pow__", lambda s, n: s.k, lambda s, n: 5.0))
kind("math.floor()", read=lambda h: math.floor(h), **thing("__floor__", lambda s: int(s.k), lambda s: 5))
kind("math.trunc()", read=lambda h: math.trunc(h), **thing("__trunc__", lambda s: int(s.k), lambda s: 5))
kind("reversed()", read=lambda h: next(iter(reversed(h))),
     **thing("__reversed__", lambda s: iter([s.k]), lambda s: iter([5.0])))
kind("next()", read=lambda h: next(h), **thing("__next__", lambda s: s.k, lambda s: 5.0))


def with_manager(k):
    def enter(self):
        return self.k

    return type("Thing", (Box,), {"__enter__": enter, "__exit__": lambda self, *error: None})(k=k)


def entered(h):
    with h as found:
        return found


kind("with", with_manager, entered, set=sets, redefine=lambda h: setattr(type(h), "__enter__", lambda self: 5.0))
kind("__array__", read=lambda h: float(np.asarray(h)),
     **thing("__array__", lambda self, dtype=None, copy=None: np.array(self.k),
             lambda self, dtype=None, copy=None: np.array(5.0)))
kind("__missing__", lambda k: type("D", (dict,), {"__missing__": lambda self, key: self.k, "k": k})(),
     lambda h: h["absent"], cls=set_class, add=lambda h: h.__setitem__("absent", 5.0))
kind("json.dumps", lambda k: {"k": [k]}, lambda h: float(json.dumps(h)[7:-2]), set=lambda h: h["k"].__setitem__(0, 5.0))
kind("__copy__", read=lambda h: copy.copy(h),
     **thing("__copy__", lambda self: self.k, lambda self: 5.0))
kind("a metaclass", lambda k: type("M", (type,), {"p": property(lambda cls: cls.k)})("C", (), {"k": k}),
     lambda h: h.p, set=sets)


def matched(h):
    match h:
        case Box(k=2.0):
            return 2.0
        case _:
            return 5.0


def matched_list(h):
    match h:
        case [2.0]:
            return 2.0
        case _:
            return 5.0


def matched_dict(h):
    match h:
        case {"k": 2.0}:
            return 2.0
        case _:
            return 5.0


kind("match of a class", box, matched, set=sets)
kind("match of a sequence", lambda k: [k], matched_list, set=set_first)
kind("match of a mapping", lambda k: {"k": k}, matched_dict, set=set_item)


# containers
kind("a list's item", lambda k: [k], lambda h: h[0], set=set_first)
kind("a list's length", lambda k: [0] * int(k), len, add=lambda h: h.append(0))
kind("a list run over", lambda k: [1.0, k], lambda h: sum([one for one in h]), add=lambda h: h.append(5.0))
kind("a list in a list", lambda k: [[k]], lambda h: h[0][0], set=lambda h: set_first(h[0]))
kind("a tuple in a list", lambda k: [(k,)], lambda h: h[0][0], set=lambda h: h.__setitem__(0, (5.0,)))
kind("an object in a list", lambda k: [box(k)], lambda h: h[0].k, set=lambda h: sets(h[0]))
kind("an object in a tuple", lambda k: (box(k),), lambda h: h[0].k, set=lambda h: sets(h[0]))
kind("objects run over", lambda k: [box(1.0), box(k)], lambda h: sum([one.k for one in h]), set=lambda h: sets(h[1]))
kind("objects zipped", lambda k: [box(k)], lambda h: next(iter(zip(h, h, strict=True)))[0].k, set=lambda h: sets(h[0]))
kind("a dict's item", lambda k: {"k": k}, lambda h: h["k"], set=set_item)
kind("dict.get", lambda k: {"k": k}, lambda h: h.get("k"), set=set_item)
kind("dict.values", lambda k: {"k": k}, lambda h: sum(h.values()), set=set_item)
kind("dict.items", lambda k: {"k": k}, lambda h: sum([v for _, v in h.items()]), set=set_item)
kind("a key in a dict", lambda k: {"k": k}, lambda h: 5.0 if "x" in h else 2.0, add=lambda h: h.update(x=1))
kind("a key's type", lambda k: {1: k}, lambda h: 2.0 if type(next(iter(h))) is int else 5.0,
     set=lambda h: (h.clear(), h.update({True: 2.0})))
kind("an object in a dict", lambda k: {"k": box(k)}, lambda h: h["k"].k, set=lambda h: sets(h["k"]))
kind("an object as a key", lambda k: {box(k): 1}, lambda h: sum([one.k for one in h]),
     set=lambda h: sets(next(iter(h))))
kind("a dict's order", lambda k: {"a": k, "b": 5.0}, lambda h: next(iter(h.values())),
     move=lambda h: h.update(a=h.pop("a")))
kind("a set", lambda k: {k}, lambda h: sum(h), change=lambda h: (h.clear(), h.add(5.0)))
kind("objects in a set", lambda k: {box(k)}, lambda h: sum([one.k for one in h]), set=lambda h: sets(next(iter(h))))
kind("in a set", lambda k: {k}, lambda h: 5.0 if 5.0 in h else 2.0, change=lambda h: h.add(5.0))
kind("a deque", lambda k: collections.deque([k]), lambda h: h[0], set=set_first)
kind("a named tuple", lambda k: Box(p=Pair(k)), lambda h: h.p.k, replace=lambda h: setattr(h, "p", Pair(5.0)))
kind("a frozen dataclass", lambda k: Box(p=Frozen(k)), lambda h: h.p.k,
     replace=lambda h: setattr(h, "p", Frozen(5.0)), force=lambda h: object.__setattr__(h.p, "k", 5.0))
kind("a frozen dataclass with a list", lambda k: Frozen([k]), lambda h: h.k[0], set=lambda h: set_first(h.k))
kind("an ordered dict", lambda k: collections.OrderedDict(k=k), lambda h: h["k"], set=set_item)
kind("a default dict", lambda k: collections.defaultdict(float, k=k), lambda h: h["k"], set=set_item)
kind("a counter", lambda k: collections.Counter(k=int(k)), lambda h: h["k"], set=lambda h: h.update(k=3))
kind("a user dict", lambda k: collections.UserDict(k=k), lambda h: h["k"], set=set_item)
kind("a user dict run over", lambda k: collections.UserDict(k=k), lambda h: sum(h.values()), set=set_item)
kind("a user list", lambda k: collections.UserList([k]), lambda h: h[0], set=set_first)
kind("a user string", lambda k: Box(s=collections.UserString("x" * int(k))), lambda h: len(h.s),
     set=lambda h: setattr(h.s, "data", "x" * 5))
kind("a chain map", lambda k: collections.ChainMap({}, {"k": k}), lambda h: h["k"],
     set=set_item, deep=lambda h: set_item(h.maps[1]))
kind("a mapping proxy", lambda k: Box(d=(d := {"k": k}), p=types.MappingProxyType(d)), lambda h: h.p["k"],
     set=lambda h: set_item(h.d))
kind("a view of a dict", lambda k: Box(d=(d := {"k": k}), v=d.values()), lambda h: sum(h.v),
     set=lambda h: set_item(h.d))
kind("a view of keys", lambda k: Box(d=(d := {"k": k}), v=d.keys()), lambda h: len(h.v),
     add=lambda h: h.d.update(x=1))
kind("a bytearray", lambda k: bytearray([int(k)]), lambda h: h[0], set=lambda h: h.__setitem__(0, 5))
kind("an array", lambda k: array.array("d", [k]), lambda h: h[0], set=set_first)
kind("an array run over", lambda k: array.array("d", [k]), lambda h: sum(h), set=set_first)
kind("a memoryview", lambda k: Box(b=(b := bytearray([int(k)])), m=memoryview(b)), lambda h: h.m[0],
     set=lambda h: h.b.__setitem__(0, 5))
kind("a NumPy array", lambda k: np.array([k]), lambda h: float(h[0]), set=set_first)
kind("np.sum", lambda k: np.array([k]), lambda h: float(np.sum(h)), set=set_first)
kind("a NumPy array as a tensor", lambda k: np.array([k]), lambda h: hf.sum(hf.asarray(h)), set=set_first)
kind("a view of a NumPy array", lambda k: Box(a=(a := np.array([k])), v=a[:]), lambda h: float(h.v[0]),
     set=lambda h: set_first(h.a))
kind("ndarray.tolist", lambda k: np.array([k]), lambda h: h.tolist()[0], set=set_first)
kind("an array of objects", lambda k: np.array([box(k)], object), lambda h: h[0].k, set=lambda h: sets(h[0]))
kind("copy.copy of a list", lambda k: [box(k)], lambda h: copy.copy(h)[0].k, set=lambda h: sets(h[0]))
kind("list.copy", lambda k: [k], lambda h: h.copy()[0], set=set_first)
kind("dict()", lambda k: {"k": k}, lambda h: dict(h)["k"], set=set_item)
kind("a spread dict", lambda k: {"k": k}, lambda h: {**h}["k"], set=set_item)
kind("a spread call", lambda k: {"k": k}, lambda h: (lambda k: k)(**h), set=set_item)
kind("list + list", lambda k: [k], lambda h: (h + h)[0], set=set_first)
kind("dict | dict", lambda k: {"k": k}, lambda h: (h | {})["k"], set=set_item)
kind("itemgetter of a list", lambda k: [k], lambda h: operator.itemgetter(0)(h), set=set_first)
kind("list.__getitem__", lambda k: [k], lambda h: h.__getitem__(0), set=set_first)
kind("a method of a list", lambda k: Box(d=(d := {"k": k}), get=d.get), lambda h: h.get("k"),
     set=lambda h: set_item(h.d))
kind("a subclass of list", lambda k: type("L", (list,), {})([k]), lambda h: h[0], set=set_first)
kind("a subclass of dict", lambda k: type("D", (dict,), {})(k=k), lambda h: h["k"], set=set_item)
kind("a subclass of dict, its attribute", lambda k: type("D", (dict,), {"k": k})(), lambda h: h.k, set=sets)
kind("a subclass of float", lambda k: type("F", (float,), {"k": k})(1.0), lambda h: h.k * h, set=sets)


# functions
def function_of(k):
    def f(x, s=k):
        return x * s

    return f


def function_with(k):
    def f(x, *, s=k):
        return x * s

    return f


def function_attribute(k):
    def f(x):
        return x

    f.k = k
    return f


def closing(k):
    def f(x):
        return x * k

    return f


def set_cell(h):
    h.__closure__[0].cell_contents = 5.0


def twice(x):
    return x * 2.0


def five_times(x):
    return x * 5.0


def own_code(k):
    return types.FunctionType(twice.__code__, globals())


kind("__defaults__", function_of, lambda h: h(1.0), replace=lambda h: setattr(h, "__defaults__", (5.0,)))
kind("a default list", lambda k: function_of([k]), lambda h: len(h(1)) and h.__defaults__[0][0],
     set=lambda h: set_first(h.__defaults__[0]))
kind("a default object", lambda k: (lambda x, l=box(k): x * l.k), lambda h: h(1.0),  # noqa: E741, B008
     set=lambda h: sets(h.__defaults__[0]))
kind("__kwdefaults__", function_with, lambda h: h(1.0), replace=lambda h: setattr(h, "__kwdefaults__", {"s": 5.0}),
     set=lambda h: h.__kwdefaults__.update(s=5.0))
kind("an attribute of a function", function_attribute, lambda h: h(h.k), set=sets)
kind("a cell", closing, lambda h: h(1.0), set=set_cell)
kind("__code__", own_code, lambda h: h(1.0), replace=lambda h: setattr(h, "__code__", five_times.__code__))
kind("__closure__", closing, lambda h: h.__closure__[0].cell_contents, set=set_cell)
kind("inspected defaults", function_of, lambda h: h.__defaults__[0],
     replace=lambda h: setattr(h, "__defaults__", (5.0,)))
kind("partial.keywords", lambda k: functools.partial(lambda x, s: x * s, s=k), lambda h: h(1.0),
     set=lambda h: h.keywords.update(s=5.0))
kind("partial of a method", lambda k: functools.partial(with_methods(k).m), lambda h: h(1.0),
     set=lambda h: sets(h.func.__self__))
kind("partial of an object", lambda k: functools.partial(lambda b, x: b.k * x, box(k)), lambda h: h(1.0),
     set=lambda h: sets(h.args[0]))
kind("a wrapped function", lambda k: functools.wraps(twice)(closing(k)), lambda h: h(1.0), set=set_cell)
kind("a function without source", lambda k: eval("lambda x: x * b.k", {"b": box(k)}), lambda h: h(1.0),
     set=lambda h: sets(h.__globals__["b"]), replace=lambda h: h.__globals__.update(b=box(5.0)))
kind("one without source, by a local", lambda k: eval("lambda x: [c.k for c in [b]][0] * x", {"b": box(k)}),
     lambda h: h(1.0), set=lambda h: sets(h.__globals__["b"]))
kind("one without source, by its argument", lambda k: Box(f=eval("lambda b: b.k"), b=box(k)),
     lambda h: h.f(h.b), set=lambda h: sets(h.b))
kind("one that is not converted", lambda k: Box(f=hf.no_convert(lambda b: b.k), b=box(k)), lambda h: h.f(h.b),
     set=lambda h: sets(h.b))
kind("a generator function", lambda k: Box(k=k), lambda h: next(iter([one for one in (h.k for _ in range(1))])),
     set=sets)
kind("a shadowed builtin", lambda k: types.FunctionType((lambda: len("xx")).__code__, {"__builtins__": __builtins__}),
     lambda h: h(), shadow=lambda h: h.__globals__.update(len=lambda x: 5))


# modules and others
def module(k):
    made = types.ModuleType("settings_made_by_hand")
    made.k = k
    return made


kind("a module made by hand", module, lambda h: h.k, set=sets)
kind("an attribute of os.environ's kind", lambda k: collections.UserDict(k=str(k)), lambda h: float(h["k"]),
     set=lambda h: h.update(k="5.0"))
kind("a weak reference", lambda k: Box(b=(b := box(k)), w=weakref.ref(b)), lambda h: h.w().k, set=lambda h: sets(h.b))
kind("a weak proxy", lambda k: Box(b=(b := box(k)), w=weakref.proxy(b)), lambda h: h.w.k, set=lambda h: sets(h.b))
kind("a weak dict", lambda k: Box(b=(b := box(k)), w=weakref.WeakValueDictionary(k=b)), lambda h: h.w["k"].k,
     set=lambda h: sets(h.b))


def context_variable(k):
    made = contextvars.ContextVar("rate")
    made.set(k)
    return made


kind("a context variable", context_variable, lambda h: h.get(), set=lambda h: h.set(5.0))
kind("an object in a context variable", lambda k: context_variable(box(k)), lambda h: h.get().k,
     set=lambda h: sets(h.get()), replace=lambda h: h.set(box(5.0)))
kind("an iterator of a list", lambda k: Box(b=(b := [k]), i=lambda: iter(b)), lambda h: next(h.i()),
     set=lambda h: set_first(h.b))

# tensors and Variables
kind("a tensor", lambda k: Box(k=hf.asarray(k)), lambda h: h.k, replace=lambda h: setattr(h, "k", hf.asarray(5.0)))
kind("a tensor in a list", lambda k: [hf.asarray(k)], lambda h: h[0], set=lambda h: h.__setitem__(0, hf.asarray(5.0)))
kind("a tensor's number", lambda k: Box(k=hf.asarray(k)), lambda h: float(h.k),
     replace=lambda h: setattr(h, "k", hf.asarray(5.0)))
kind("a Variable", lambda k: Box(k=hf.Variable(k)), lambda h: h.k, assign=lambda h: h.k.assign(5.0),
     replace=lambda h: setattr(h, "k", hf.Variable(5.0)))
kind("a Variable in a dict", lambda k: {"k": hf.Variable(k)}, lambda h: h["k"], assign=lambda h: h["k"].assign(5.0),
     replace=lambda h: h.update(k=hf.Variable(5.0)))
kind("a Variable by copy", lambda k: Box(k=hf.Variable(k)), lambda h: copy.copy(h).k,
     assign=lambda h: h.k.assign(5.0), replace=lambda h: setattr(h, "k", hf.Variable(5.0)))
kind("a Variable of a method", lambda k: with_methods(hf.Variable(k)).m, lambda h: h(),
     assign=lambda h: h.__self__.k.assign(5.0),
     replace=lambda h: setattr(h.__self__, "k", hf.Variable(5.0)))
kind("a tensor in a frozen dataclass", lambda k: Frozen(hf.asarray(k)), lambda h: h.k,
     force=lambda h: object.__setattr__(h, "k", hf.asarray(5.0)))


# -- routes -------------------------------------------------------------------------------------------------------


class Route(NamedTuple):
    """How a compiled function comes to a thing: the function, its arguments behind the tensor, and a replacement."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    put: Callable[[Any], Any] | None = None


ROUTES: dict[str, Callable[[Any, Any], Route]] = {}


def route(make):
    ROUTES[make.__name__] = make
    return make


@route
def a_closure(read, h):
    def put(other):
        nonlocal h
        h = other

    return Route(lambda t: t * read(h), put=put)


class Outer:
    """An object around a thing."""

    cls: Any = None

    def __init__(self, read: Any, h: Any) -> None:
        self.read = read
        self.h = h

    def m(self, t: Any) -> Any:
        return t * self.read(self.h)

    def put(self, h: Any) -> None:
        self.h = h

    @property
    def p(self) -> Any:
        return self.h

    def __call__(self, t: Any) -> Any:
        return t * self.read(self.h)


@route
def an_attribute(read, h):
    outer = Outer(read, h)
    return Route(lambda t: t * read(outer.h), put=outer.put)


@route
def a_bound_method(read, h):
    outer = Outer(read, h)
    m = outer.m
    return Route(lambda t: m(t), put=outer.put)


@route
def a_bound_method_itself(read, h):
    outer = Outer(read, h)
    return Route(outer.m, put=outer.put)


@route
def a_bound_method_in_a_list(read, h):
    outer = Outer(read, h)
    methods = [outer.m]
    return Route(lambda t: methods[0](t), put=outer.put)


@route
def a_bound_method_as_an_argument(read, h):
    outer = Outer(read, h)
    return Route(lambda t, m: m(t), (outer.m,), outer.put)


@route
def a_bound_method_in_a_partial(read, h):
    outer = Outer(read, h)
    part = functools.partial(outer.m)
    return Route(lambda t: part(t), put=outer.put)


@route
def an_object_as_an_argument(read, h):
    return Route(lambda t, outer: t * read(outer.h), (outer := Outer(read, h),), outer.put)


@route
def a_callable_object(read, h):
    outer = Outer(read, h)
    return Route(lambda t: outer(t), put=outer.put)


@route
def a_property(read, h):
    outer = Outer(read, h)
    return Route(lambda t: t * read(outer.p), put=outer.put)


@route
def a_classmethod(read, h):
    made = type("Made", (), {"h": h, "m": classmethod(lambda cls, t: t * read(cls.h))})
    m = made.m
    return Route(lambda t: m(t), put=lambda other: setattr(made, "h", other))


@route
def a_class(read, h):
    made = type("Made", (), {"h": h})
    return Route(lambda t: t * read(made.h), put=lambda other: setattr(made, "h", other))


@route
def a_fresh_object(read, h):
    made = type("Made", (), {"h": h})
    return Route(lambda t: t * read(made().h), put=lambda other: setattr(made, "h", other))


@route
def a_list(read, h):
    kept = [h]
    return Route(lambda t: t * read(kept[0]), put=lambda other: kept.__setitem__(0, other))


@route
def a_list_run_over(read, h):
    kept = [h]

    def run(t):
        for one in kept:
            t = t * read(one)
        return t

    return Route(run, put=lambda other: kept.__setitem__(0, other))


@route
def a_dict(read, h):
    kept = {"h": h}
    return Route(lambda t: t * read(kept["h"]), put=lambda other: kept.update(h=other))


@route
def a_tuple(read, h):
    outer = Outer(read, (h,))
    return Route(lambda t: t * read(outer.h[0]), put=lambda other: outer.put((other,)))


@route
def a_default(read, h):
    helper = lambda t, h=h: t * read(h)  # noqa: E731
    return Route(lambda t: helper(t), put=lambda other: setattr(helper, "__defaults__", (other,)))


@route
def a_default_of_the_function(read, h):
    run = lambda t, h=Box(h=h): t * read(h.h)  # noqa: B008, E731
    return Route(run, put=lambda other: setattr(run.__defaults__[0], "h", other))


@route
def a_keyword_default(read, h):
    helper = lambda t, *, h=h: t * read(h)  # noqa: E731
    return Route(lambda t: helper(t), put=lambda other: helper.__kwdefaults__.update(h=other))


@route
def a_partial(read, h):
    part = functools.partial(lambda h, t: t * read(h.h), Box(h=h))
    return Route(lambda t: part(t), put=lambda other: setattr(part.args[0], "h", other))


@route
def a_partial_keyword(read, h):
    part = functools.partial(lambda t, h: t * read(h), h=h)
    return Route(lambda t: part(t), put=lambda other: part.keywords.update(h=other))


@route
def a_partial_itself(read, h):
    part = functools.partial(lambda t, h: t * read(h), h=h)
    return Route(part, put=lambda other: part.keywords.update(h=other))


@route
def a_function_attribute(read, h):
    def helper(t):
        return t * read(helper.h)

    helper.h = h
    return Route(lambda t: helper(t), put=lambda other: setattr(helper, "h", other))


@route
def a_nested_function(read, h):
    kept = Box(h=h)

    def run(t):
        def inner():
            return read(kept.h)

        return t * inner()

    return Route(run, put=lambda other: setattr(kept, "h", other))


@route
def a_comprehension(read, h):
    kept = Box(h=h)
    return Route(lambda t: t * sum([read(one) for one in [kept.h]]), put=lambda other: setattr(kept, "h", other))


@route
def a_map(read, h):
    kept = Box(h=h)
    return Route(lambda t: t * next(map(read, [kept.h])), put=lambda other: setattr(kept, "h", other))


@route
def an_attrgetter(read, h):
    outer = Outer(read, h)
    get = operator.attrgetter("h")
    return Route(lambda t: t * read(get(outer)), put=outer.put)


@route
def a_methodcaller(read, h):
    outer = Outer(read, h)
    return Route(lambda t: operator.methodcaller("m", t)(outer), put=outer.put)


@route
def a_copy(read, h):
    outer = Outer(read, h)
    return Route(lambda t: t * read(copy.copy(outer).h), put=outer.put)


@route
def a_dict_of_an_object(read, h):
    outer = Outer(read, h)
    return Route(lambda t: t * read(vars(outer)["h"]), put=outer.put)


@route
def a_frozen_dataclass(read, h):
    kept = Box(h=Frozen(h))
    return Route(lambda t: t * read(kept.h.k), put=lambda other: setattr(kept, "h", Frozen(other)))


@route
def a_slot(read, h):
    kept = Slotted(h)
    return Route(lambda t: t * read(kept.k), put=lambda other: setattr(kept, "k", other))


@route
def a_module(read, h):
    kept = module(h)
    return Route(lambda t: t * read(kept.k), put=lambda other: setattr(kept, "k", other))


@route
def a_weak_reference(read, h):
    outer = Outer(read, h)
    kept = Box(outer=outer, ref=weakref.ref(outer))
    return Route(lambda t: t * read(kept.ref().h), put=outer.put)


@route
def a_context_variable(read, h):
    variable = context_variable(h)
    return Route(lambda t: t * read(variable.get()), put=variable.set)


@route
def a_user_dict(read, h):
    kept = collections.UserDict(h=h)
    return Route(lambda t: t * read(kept["h"]), put=lambda other: kept.update(h=other))


@route
def a_mapping_proxy(read, h):
    inner = {"h": h}
    kept = types.MappingProxyType(inner)
    return Route(lambda t: t * read(kept["h"]), put=lambda other: inner.update(h=other))


@route
def a_set_of_objects(read, h):
    outer = Outer(read, h)
    kept = {outer}
    return Route(lambda t: t * sum([read(one.h) for one in kept]), put=outer.put)


@route
def a_descriptor(read, h):
    made = type("Made", (), {"h": Descriptor(h)})
    outer = made()
    return Route(lambda t: t * read(outer.h), put=lambda other: setattr(made.__dict__["h"], "k", other))


@route
def a_function_without_source(read, h):
    space = {"read": read, "h": h}
    run = eval("lambda t: t * read(h)", space)
    return Route(run, put=lambda other: space.update(h=other))


@route
def a_function_left_alone(read, h):
    kept = Box(h=h)
    alone = hf.no_convert(lambda kept: read(kept.h))
    return Route(lambda t: t * alone(kept), put=lambda other: setattr(kept, "h", other))


@route
def a_reader_that_changes(read, h):
    kept = Box(read=read)
    return Route(lambda t: t * kept.read(h))


def questions():
    """Yield every question: the name of the kind, of the route and of the change ("put" is another thing there)."""
    for number, (name, one) in enumerate(KINDS.items()):
        for place, way in enumerate(ROUTES):
            for count, change in enumerate(one.changes):
                # Every change in a closure; by other ways every second kind, with one change after the other.
                in_turn = (number + place) % 2 == 0 and count == (number + place) // 2 % len(one.changes)
                if place == 0 or in_turn:
                    yield name, way, change
            if (number + place) % 5 == 0 and way != "a_reader_that_changes":
                yield name, way, "put"


@contextlib.contextmanager
def compiled_once():
    """Compile equal graphs for one device once in a block: what is asked is which graph a call runs."""
    made, real = {}, trace.compile_graph

    def compile_graph(graph, *, donate=(), placing=None, **more):
        if placing is not None:
            return real(graph, donate=donate, placing=placing, **more)
        key = str(graph), tuple(donate)
        if key not in made:
            made[key] = real(graph, donate=donate, **more)
        return made[key]

    trace.compile_graph = compile_graph
    try:
        yield
    finally:
        trace.compile_graph = real


__all__ = ["KINDS", "ROUTES", "compiled_once", "questions"]

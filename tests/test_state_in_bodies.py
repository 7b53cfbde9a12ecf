"""No way of changing Python state in a branch or loop body on tensors gives a silent difference.

Each program is built from a state, a statement that changes it and an expression that reads it, for each place where
the state may live and for each kind of body. Compiled it gives eager's results, or a MutationError or TraceError.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import linecache
import logging
import pickle
import queue
import textwrap
import threading
import types
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.convert.regions import Outside
from hybridflow.core.errors import MutationError, TraceError

LOG = logging.getLogger(__name__)
PRELUDE = """
import array, bisect, collections, collections.abc, contextlib, contextvars, functools, heapq, io, itertools, operator
import dataclasses, random, types, weakref
import numpy as np
import hybridflow as hf

class Plain:
    def __init__(self, y=1.0): self.y = y
    def set(self, value): self.y = value
    def __next__(self):
        self.y += 1
        return self.y
    def __setitem__(self, key, value): self.y = value
    @property
    def p(self): return self.y
    @p.setter
    def p(self, value): self.y = value

COUNT = 0

class Counts:
    y = all = 0
    def count(self, key=None):
        global COUNT
        self.y += 1
        COUNT += 1
        type(self).all = type(self).all + 1
        return 2.0
    def __str__(self): return str(self.count())
    def __hash__(self): return int(self.count())
    __missing__ = count

class Counted(Counts, dict): pass
class UserCounted(Counts, collections.UserDict): pass
class Mapped(Counts, collections.abc.Mapping):
    __getitem__ = Counts.count
    __iter__ = __len__ = None

HOOKED = []

class Hooks:
    def __setattr__(self, name, value):
        HOOKED.append(name)
        object.__setattr__(self, name, value)

Hooked = dataclasses.make_dataclass("Hooked", [("y", float)], bases=(Hooks,))

class Slotted:
    __slots__ = ("y",)
    def __init__(self, y=1.0): self.y = y
    def set(self, value): self.y = value

def closure():
    y = 1.0
    def put(value):
        nonlocal y
        y = value
    return put, lambda: y

def around(made):
    return lambda value: setattr(made, "y", value)

context = contextvars.ContextVar("context", default=1.0)
"""
CHANGES = {
    "a list's method": ("l = [1]", "l.append(5)", "sum(l)"),
    "a list's method by its class": ("l = [1]", "list.append(l, 5)", "sum(l)"),
    "operator.setitem": ("l = [1]", "operator.setitem(l, 0, 5)", "sum(l)"),
    "methodcaller": ("l = [1]", "operator.methodcaller('append', 5)(l)", "sum(l)"),
    "heapq": ("l = [1]", "heapq.heappush(l, 5)", "sum(l)"),
    "bisect": ("l = [1]", "bisect.insort(l, 5)", "sum(l)"),
    "a comprehension": ("l = []", "[l.append(i) for i in range(3)]", "len(l)"),
    "a key function": ("l = []", "sorted([1, 2], key=lambda k: l.append(k) or k)", "len(l)"),
    "a far list": ("l = [[1] for _ in range(1000)]", "l[0][0] = 5", "l[0][0]"),
    "a far object": ("l = [Plain() for _ in range(1000)]", "l[0].y = 5.0", "l[0].y"),
    "a dict": ("d = {'a': 1}", "d['a'] = 5", "d['a']"),
    "a default": ("d = collections.defaultdict(list)", "d['a']", "len(d)"),
    "an order": ("d = collections.OrderedDict(a=1, b=2)", "d.move_to_end('a')", "[*d].index('a')"),
    "a set": ("s = {1}", "s.add(5)", "sum(s)"),
    "a deque": ("q = collections.deque([1, 2])", "q.rotate(1)", "q[0]"),
    "a UserList": ("l = collections.UserList([1])", "l.append(5)", "sum(l)"),
    "an attribute": ("p = Plain()", "p.y = 5.0", "p.y"),
    "a namespace": ("p = types.SimpleNamespace(y=1)", "p.y = 5", "p.y"),
    "vars": ("p = Plain()", "vars(p)['y'] = 5.0", "p.y"),
    "a property": ("p = Plain()", "p.p = 5.0", "p.y"),
    "a special method": ("p = Plain()", "p[0] = 5.0", "p.y"),
    "a class": ("p = Plain()", "p.__class__ = Slotless", "p.k"),
    "a bound method": ("m = Plain().set", "m(5.0)", "m.__self__.y"),
    "a partial": ("p = Plain(); m = functools.partial(setattr, p, 'y')", "m(5.0)", "p.y"),
    "a closure's variable": ("put, get = closure()", "put(5.0)", "get()"),
    "a closure's object": ("p = Plain(); put = around(p)", "put(5.0)", "p.y"),
    "a closure's slots": ("p = Slotted(); put = around(p)", "put(5.0)", "p.y"),
    "a slot": ("p = Slotted()", "p.y = 5.0", "p.y"),
    "a slot's method": ("p = Slotted()", "p.set(5.0)", "p.y"),
    "a slot's descriptor": ("p = Slotted()", "Slotted.y.__set__(p, 5.0)", "p.y"),
    "slots in a list": ("l = [Slotted()]", "l[0].y = 5.0", "l[0].y"),
    "an object in a slot": ("p = Slotted(Plain())", "p.y.y = 5.0", "p.y.y"),
    "an object that is a key": ("d = {Plain(): 1}", "next(iter(d)).y = 5.0", "next(iter(d)).y"),
    "an object in a frozenset": ("d = frozenset([Plain()])", "next(iter(d)).y = 5.0", "next(iter(d)).y"),
    "an object in a namedtuple": ("p = collections.namedtuple('N', 'a')(Plain())", "p.a.y = 5.0", "p.a.y"),
    "an object in a view": ("v = {'a': Plain()}.values()", "next(iter(v)).y = 5.0", "next(iter(v)).y"),
    "an object in a proxy": ("d = types.MappingProxyType({'a': Plain()})", "d['a'].y = 5.0", "d['a'].y"),
    "a weak reference": ("p = Plain(); w = weakref.ref(p)", "w().y = 5.0", "p.y"),
    "an array": ("a = np.ones(2, np.float32)", "a[0] = 5", "float(a[0])"),
    "a large array": ("a = np.ones(20_000, np.float32)", "a.fill(5)", "float(a[0])"),
    "out=": ("a = np.ones(2, np.float32)", "np.add(a, 1, out=a)", "float(a[0])"),
    "an array.array": ("a = array.array('d', [1.0])", "a[0] = 5.0", "a[0]"),
    "a bytearray": ("a = bytearray(b'a')", "a[0] = 5", "a[0]"),
    "a memoryview": ("a = memoryview(bytearray(b'a'))", "a[0] = 5", "a[0]"),
    "a stream": ("a = io.StringIO()", "a.write('abc')", "len(a.getvalue())"),
    "an iterator": ("i = iter([*range(99)])", "next(i)", "next(i)"),
    "a generator": ("i = (i for i in range(99))", "next(i)", "next(i)"),
    "a count": ("i = itertools.count()", "next(i)", "next(i)"),
    "an iterator of the user's": ("i = Plain()", "next(i)", "i.y"),
    "a generator of random numbers": ("g = random.Random(0)", "g.random()", "g.random()"),
    "NumPy's random numbers": ("g = np.random.default_rng(0)", "g.random()", "g.random()"),
    "a class attribute": ("class A: y = 1", "A.y = 5", "A.y"),
    "a function attribute": ("def A(): pass\nA.y = 1", "A.y = 5", "A.y"),
    "defaults": ("def A(a=1): return a", "A.__defaults__ = (5,)", "A()"),
    "a module": ("m = types.ModuleType('m'); m.y = 1", "m.y = 5", "m.y"),
    "an exception": ("e = ValueError(1)", "e.args = (5,)", "e.args[0]"),
    "a context variable": ("context.set(1.0)", "context.set(5.0)", "context.get()"),
    "targets": ("p = Plain()", "p.y, *q = 5.0, 6", "p.y"),
    "a missing key": ("d = Counted()", "d['a']", "d.y"),
    "a missing key that a class counts": ("d = Counted()", "d['a']", "Counted.all"),
    "a missing key that a module counts": ("d = Counted()", "d['a']", "COUNT"),
    "a missing key of a library's dict": ("d = UserCounted()", "d['a']", "d.y"),
    "a mapping's method": ("d = Mapped()", "d.get('a')", "d.y"),
    "a format": ("d = Counted()", "'%s' % d", "d.y"),
    "a hook of a base of a dataclass": ("", "Hooked(5)", "len(HOOKED)"),
    "a hash": ("d = Counted()", "{d: 1}", "d.y"),
    "a callback": ("d = Counted()", "list(itertools.starmap(d.count, [()]))", "d.y"),
}
PLACES = {
    "the function": """
def make():
    def f(x, n):
{setup:2}
{control:2}
{change:3}
        return x * ({read})
    return f
""",
    "a caller": """
def make():
    def f(x, n):
{setup:2}
        def change():
{change:3}
        helper(x, n, change)
        return x * ({read})
    return f

def helper(x, n, change):
{control:1}
        change()
""",
    "a closure": """
def make():
{setup:1}
    def f(x, n):
{control:2}
{change:3}
        return x * ({read})
    return f
""",
    "a global": """
{setup:0}
def make():
    def f(x, n):
{control:2}
{change:3}
        return x * ({read})
    return f
""",
}
CONTROLS = ("if hf.sum(x) > 0:", "for _ in range(n):")


class Part(str):
    """A text whose format is the depth of its indentation."""

    def __format__(self, depth: str) -> str:
        return textwrap.indent(self, "    " * int(depth)) if depth else str(self)


def make(name: str, source: str) -> Any:
    """Return a new function from a module of its own."""
    module = types.ModuleType(name)
    file = f"<{name}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), vars(module))
    return module.make()


def results(function: Any) -> list[np.ndarray]:
    """Call a function with a body that does not run, does, and does not."""
    calls = [(hf.asarray([-1.0, -2.0]), 0), (hf.asarray([1.0, 2.0]), 3), (hf.asarray([-1.0, -2.0]), 0)]
    return [np.asarray(function(x, hf.asarray(n))) for x, n in calls]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_a_body_is_seen(what: str, place: str):
    setup, change, read = map(Part, CHANGES[what])
    for control in CONTROLS:
        body = PLACES[place].format(setup=setup, control=Part(control), change=change, read=read)
        source = f"{PRELUDE}\nclass Slotless(Plain): k = 7\nPlain.k = 3\n{body}\n"
        name = f"state_{abs(hash((what, place, control)))}"
        eager = results(make(name, source))
        try:
            compiled = results(hf.compile(make(name, source)))
        except (MutationError, TraceError):
            continue
        np.testing.assert_array_equal(compiled, eager)


FORMS = [
    "hf.cond(hf.sum(x) > 0, body, lambda v: v, x)",
    "hf.while_loop(lambda i: i < n, lambda i: (body(x), i + 1)[1], 0)",
    "hf.scan(lambda c, v: (body(c), v), x, x)",
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", CHANGES)
def test_a_change_in_a_function_that_is_a_body_is_seen(what: str):
    setup, change, read = map(Part, CHANGES[what])
    for form in FORMS:
        lines = [
            "def make():", "    def f(x, n):", f"{setup:2}", "        def body(now):", f"{change:3}",
            "            return now", f"        {form}", f"        return x * ({read})", "    return f",
        ]
        source = "\n".join([PRELUDE, "class Slotless(Plain): k = 7", "Plain.k = 3", *lines, ""])
        name = f"form_{abs(hash((what, form)))}"
        eager = results(make(name, source))
        try:
            compiled = results(hf.compile(make(name, source)))
        except (MutationError, TraceError):
            continue
        np.testing.assert_array_equal(compiled, eager)


def test_what_a_body_makes_may_be_changed_in_it():
    class Slotted:
        __slots__ = ("y",)

    def helper(x: Any) -> Any:
        made, rows = Slotted(), [x]
        if hf.sum(x) > 0:
            made = Slotted()
            made.y = x * 2
            rows = [1.0]
            rows.append(2.0)
            table = np.zeros(2, np.float32)
            table[0] = len(rows)
            step = iter(rows)
            return made.y * next(step) * next(step) + table[0]
        return x

    for sign in (1.0, -1.0):
        hf.testing.assert_same(lambda x: helper(x) + 1.0, hf.asarray([1.0, 2.0]) * sign)


def test_what_libraries_keep_in_their_objects_may_change():
    class Trainer:
        def __init__(self) -> None:
            self.ready: queue.Queue[int] = queue.Queue()
            self.ends = threading.Event()
            self.thread = threading.Thread(target=self.fill, daemon=True)
            self.thread.start()

        def fill(self) -> None:
            while not self.ends.wait(1e-4):
                self.ready.put(1)

        @hf.compile
        def step(self, x: hf.Tensor) -> hf.Tensor:
            for _ in range(4):
                if hf.sum(x) > 0:
                    LOG.debug("a branch")
                    x = x * 2
            return x

    trainer = Trainer()
    try:
        assert trainer.step(hf.asarray(1.0)).item() == 16.0
        assert trainer.ready.qsize() >= 0
    finally:
        trainer.ends.set()
        trainer.thread.join()


def test_a_trace_does_not_look_through_a_whole_data_set():
    class Held:
        def __init__(self) -> None:
            self.far = [[number] for number in range(100_000)]

    held = Held()
    cells = (lambda: held).__closure__
    assert cells is not None
    before = Outside(cells, None)
    assert len(before.known) < 30_000
    held.far.append([1])
    assert before.changed() is held.far


def partly(kept):
    held = functools.partial(len, kept)
    return lambda: held()


def total_of(numbers):
    total = 0
    for number in numbers:
        total += number
    return total


READ_IN_A_LOOP = {
    "text": lambda kept: lambda: len(str({"a": kept})),
    "f-string": lambda kept: lambda: len(f"{(kept,)}"),
    "json": lambda kept: lambda: len(json.dumps({"a": kept})),
    "pickle": lambda kept: lambda: len(pickle.dumps([kept])),
    "copy": lambda kept: lambda: len(copy.deepcopy({"a": kept})["a"]),
    "==": lambda kept: lambda: 2 if {"a": kept} == {"a": [1]} else 3,
    "chained": lambda kept: lambda: len(list(itertools.chain.from_iterable({"a": kept}.values()))),
    "sum": lambda kept: lambda: len(sum([kept], [])),  # noqa: RUF017
    "array": lambda kept: lambda: np.array([kept]).size,
    "vars": lambda kept: lambda: len(str(vars(types.SimpleNamespace(kept=kept)))),
    "partial": partly,
    "for": lambda kept: lambda: total_of(kept),
    "in": lambda kept: lambda: 2 if 5 in kept else 3,
    "hybridflow": lambda kept: lambda: hf.asarray(kept).size,
    "hybridflow in a dict": lambda kept: lambda: hf.sum(hf.concat([hf.asarray([1]), hf.asarray(kept)])),
}


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("way", READ_IN_A_LOOP)
def test_a_list_that_a_loop_appends_to_is_not_read_in_it_through_whatever_holds_it(way, first):
    kept = [1]
    read = READ_IN_A_LOOP[way](kept)

    def f(x, n):
        total = 0.0
        for row in x:
            if first:
                kept.append(n)
            total = total + row * read()
            if not first:
                kept.append(n)
        return total

    with pytest.raises(MutationError, match="read in the loop over rows"):
        hf.compile(f)(hf.ones(3), 2)

"""Generated programs that change Python's state: each call gives, raises and leaves the same eager and compiled."""

from __future__ import annotations

import array
import collections
import gc
import itertools
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from modes import program
from reference import without_xla

import hybridflow as hf
from hybridflow.core.errors import HybridflowError

MADE = {"array": array, "collections": collections, "threading": threading}
"""Modules that programs name."""
CALLS = [(1.0, 1), (1.0, 2), (4.0, 3), (1.0, 1.5), (1.0, 1.5)]
"""The tensor and the number of each call; checks fail in the third."""


class Thing:
    def __init__(self, v: float = 0.0) -> None:
        self.v, self.d, self.l = v, {"x": v}, [v]


THINGS = [Thing() for _ in range(9)]


def shown(value: Any) -> Any:
    """Return all that a program can see of a value, without identities."""
    if type(value).__name__ == "K":
        return [shown(getattr(value, name, None)) for name in Slotted.__slots__]
    if isinstance(value, Thing | SimpleNamespace):
        return type(value).__name__, {name: shown(one) for name, one in vars(value).items()}
    if isinstance(value, weakref.WeakSet):
        return "WeakSet", len(value)
    if isinstance(value, collections.ChainMap):
        return "ChainMap", [*map(shown, value.maps)]
    if isinstance(value, dict | collections.UserDict):
        return type(value).__name__, [(one, shown(item)) for one, item in value.items()]
    if isinstance(value, set):
        return type(value).__name__, sorted(map(str, value))
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, str | bytes | bytearray | collections.UserString):
        return type(value).__name__, str(value)
    if hasattr(value, "__iter__"):
        return type(value).__name__, [*map(shown, value)]
    return type(value).__name__, value


def refill(value: Any) -> None:
    """Change what is in a container, or in what an object or a dict holds."""
    if type(value).__name__ == "K":
        value.c = 3
    elif isinstance(value, SimpleNamespace):
        [*map(refill, vars(value).values())]
    elif isinstance(value, np.ndarray):
        value[:] = 3.0
    elif isinstance(value, dict | collections.UserDict | collections.ChainMap):
        [*map(refill, value.values())]
        value.pop("c", None)
        value["a"] = 4
    elif isinstance(value, set):
        value.add(8)
    elif hasattr(value, "append"):
        value.append(9)
        value.reverse()


def same(text: str, make: Callable[[], dict[str, Any]], path: Path) -> bool:
    """Run a program eagerly and compiled; return whether compiling refuses it, with the state as before the call.

    Before the last call, all state is changed from outside.
    """
    path.write_text(text, encoding="utf-8")
    found: list[list[Any]] = []
    for wrap in (lambda function: function, hf.compile):
        space = {**globals(), **MADE, **make()}
        exec(compile(text, str(path), "exec"), space)
        body = wrap(space["body"])
        seen: list[Any] = []
        for number, (x, n) in enumerate(CALLS):
            if number == len(CALLS) - 1:
                [refill(space[name]) for name in make()]
            before = {name: shown(space[name]) for name in make()}
            try:
                result = body(hf.asarray(x), n).tolist()
            except HybridflowError:
                return before == {name: shown(space[name]) for name in make()}
            except Exception as error:
                result = type(error), str(error).partition("\n")[0]
            seen.append((result, {name: shown(space[name]) for name in make()}))
        found.append(seen)
    assert found[1] == found[0], text
    return False


# -- in-place operators -----------------------------------------------------------------------------------------------

IN_PLACE = {
    "collections.Counter('ab')": ["+= collections.Counter('z')", "-= collections.Counter('a')", "|= {'a': 9}"],
    "collections.UserList([1])": ["+= [2]", "*= 2"],
    "collections.UserDict(a=1)": ["|= {n: 2}"],
    "collections.ChainMap({'a': 1})": ["|= {n: 2}"],
    "collections.OrderedDict(a=1)": ["|= {n: 2}", "|= {'c': 2}"],
    "collections.defaultdict(int, a=1)": ["|= {n: 2}", "|= {'c': n}", "|= {'c': 2}"],
    "type('D', (dict,), {})(a=1)": ["|= {'c': 2}", "|= {n: n}"],
    "type('L', (list,), {})([1])": ["+= [2]", "+= [n]"],
    "[1]": ["+= [2]", "*= 2", "+= (n,)"],
    "{1}": ["|= {n}", "^= {n}"],
    "collections.deque([1], 3)": ["+= [n]", "*= 2"],
    "array.array('i', [1])": ["+= array.array('i', [2])", "*= 2"],
    "bytearray(b'a')": ["+= b'b'"],
    "weakref.WeakSet()": ["|= {THINGS[int(n)]}"],
    "collections.UserString('a')": ["+= 'b'"],
    "np.zeros(2)": ["+= 1.0", "[:] += 2.0", ".__iadd__(1.0)"],
}


@pytest.mark.parametrize("made", IN_PLACE)
def test_in_place_operators(made: str, tmp_path: Path):
    def held() -> dict[str, Any]:
        one, two, three = [eval(made, {**globals(), **MADE}) for _ in range(3)]
        return {"c": one, "s": SimpleNamespace(c=two, d={"c": three})}

    check = "if hf.sum(x) > 3.5: raise ValueError"
    places = ("c", "global c"), ("s.c", "pass"), ("s.d['c']", "pass"), ("z", "z = s.c")
    for number, (operator, (place, first), late) in enumerate(itertools.product(IN_PLACE[made], places, (0, 1, 2))):
        lines = [f"{place} {operator}".replace(" [", "[").replace(" .", "."), *[check] * (late > 0)]
        lines = lines[::-1] if late > 1 else lines
        text = "\n    ".join(["def body(x, n):", first, *lines, f"return x * len({place})"])
        with without_xla():
            same(text, held, tmp_path / f"{number}.py")


# -- numbers that containers keep -------------------------------------------------------------------------------------

KEPT = {
    "[1, 2]": ["append({v})", "extend([{v}, 7])", "insert(0, {v})", "[0] = {v}", " += [{v}]", "[-1] += n"],
    "collections.deque([1, 2], 3)": ["append({v})", "appendleft({v})", "extendleft([{v}])", "[0] = {v}"],
    "{'a': 1, 2: 5}": ["update(c={v})", "update({{'a': {v}}})", "[n] = {v}", " |= {{'c': {v}}}", "setdefault(n, {v})",
                       "[n, 1] = {v}", "['a'] += n"],
    "collections.OrderedDict(a=1)": ["update(c={v})", "[n] = {v}", " |= {{'c': {v}}}", "move_to_end('a')"],
    "collections.defaultdict(int, a=1)": ["update(c={v})", "[n] = {v}", "[n] += 1"],
    "{1, 2}": ["add({v})", "update([{v}])", "discard({v})", " |= {{{v}}}"],
}
NUMBERS = ["n", "n * 2 + 1", "(n, 'x')", "s.t", "(n, (s.t, None))"]
READS = ["pass", "x = x + len(c)", "s.r = [*c]", "x = x * (2 if 3 in c else 1)", "s.r = str(c)", "s.r = (c == s.c)",
         "e['z'].append(n)", "s.r = str(e)", "z = e['c']; s.r = len(z)", "e['n'] += 1", "e['c'] = type(c)()"]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("made", KEPT)
def test_numbers_that_a_container_keeps(made: str, tmp_path: Path):
    def held() -> dict[str, Any]:
        one, two, three = [eval(made, {**globals(), **MADE}) for _ in range(3)]
        return {"c": one, "s": SimpleNamespace(c=two, t=0), "e": {"c": three, "z": [], "n": 0}}

    # Two changes with numbers, of one container or of two, and a read before, between or after them.
    changes = [*itertools.product(("c", "s.c", "e['c']"), KEPT[made])]
    for number, ((name, first), (other, second)) in enumerate(itertools.product(changes, changes)):
        value, read = NUMBERS[number % len(NUMBERS)], READS[number // 2 % len(READS)]
        lines = [name + _method(first.format(v=value)), other + _method(second.format(v="n - 1"))]
        lines.insert(number % 3, read)
        text = "\n    ".join(["def body(x, n):", "global c", "s.t += 1", *lines, "return x * n"])
        if number % 7 == 0:
            with without_xla():
                same(text, held, tmp_path / f"{number}.py")


def _method(change: str) -> str:
    return change if change.startswith((" ", "[")) else f".{change}"


@pytest.mark.parametrize(
    "change", ["log.append(n)", "log.append((n, 'x'))", "log += [n, 2 * n]", "d[n] = n * 2", "d.update(step=n)",
               "d.setdefault(n, 1)", "q.appendleft(n / 2)", "s.add(n)", "h['lr'].append(n); h['loss'].append(n / 2)",
               "h['n']['a'] += 1; h['lr'].append(n)", "h['all'][1].append(n); h['c']['k'] += n",
               "h['lr'].append(n); x = x * h['rate']", "h['n']['a'] += 1; h['lr'].append(h['n']['a'] + h['rate'])"]
)
def test_a_number_that_a_container_keeps_is_no_new_trace(change: str, tmp_path: Path):
    space: dict[str, Any] = {"log": [], "d": {}, "q": collections.deque(maxlen=3), "s": set()}
    space["h"] = {"lr": [], "loss": [], "n": {"a": 0}, "all": [[], []], "c": collections.Counter(k=0), "rate": 0.5}
    text = f"def body(x, n):\n    global log\n    {change}\n    return x * n\n"
    body = hf.compile(program(text, tmp_path / "program.py", **space)["body"])
    for n in range(9):
        body(hf.asarray(1.0), n)
    assert body.trace_count == 2


ITEMS = [
    "x = x * {d}['lr']", "x = x + {d}['n']", "x = x * 2 if {d}['flag'] else x + 1", "x = x + len({d}['name'])",
    "x = x * (1.0 if {d}['none'] is None else 2.0)", "x = x + len({d}['log'])", "k = {d}; x = x * k['lr'] + k['n']",
    "x = x * {d}.get('lr', 3.0) + len({d})", "if x > 0: x = x * {d}['lr']", "x = x + of({d})",
    "y = dict({d}); x = x * y['lr']", "{d}['log'].append(n)", "{d}['log'].append({d}['lr'])", "{d}['n'] += 1",
    "{d}['lr'] = 0.5 * {d}['lr']", "{d}['new'] = n", "{d}['flag'] = not {d}['flag']", "{d}.pop('new', None)",
    "{d}.setdefault('log', []).append(n)", "{d}['log'] += [n]",
]
AROUND = [
    "s.d = dict(s.d)", "s.d = {**s.d, 'lr': 1.0 + n}", "s.d = {**s.d, 'lr': 3.0 + n}", "cell['lr'] = 2.5 + n",
    "c['lr'] = 2.0 + n", "c['in'] = dict(c['in'], n=n)", "c['n'] = True", "s.d['lr'] = 1.5 + n", "s.d['lr'] = 1",
    "s.d['name'] = 'q' * n", "s.d['none'] = 0.0", "s.d['log'] = []", "s.d['n'] = None", "c.pop('flag', None)",
    "c['flag'] = n % 2",
]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("seed", [*range(100), 157, 254, 263, 390])
def test_items_of_dicts_that_change_from_outside_too(seed: int, tmp_path: Path):
    random = Random(seed)
    shared = random.randrange(3)
    roots = ["s.d", "cell"] if shared == 2 else ["s.d", "c", "c['in']", "s.d['in']", "cell"]
    lines = [random.choice(ITEMS).format(d=random.choice(roots)) for _ in range(random.choice([1, 2, 3]))]
    text = "\n    ".join(["def body(x, n):", *lines, "return x"]) + "\ndef of(d): return d['lr'] + d['n']\n"
    changes, found = random.choices(AROUND, k=6), []
    for wrap in (lambda function: function, hf.compile):
        made = [{"lr": 0.5, "n": 1, "flag": True, "name": "a", "log": [], "none": None} for _ in range(4)]
        c = {**made[0], "in": made[1]}
        s = SimpleNamespace(d={**made[2], "in": made[1] if shared == 1 else made[3]})
        space = program(text, tmp_path / "program.py", hf=hf, s=s, c=c, cell=s.d if shared else c)
        body, seen = wrap(space["body"]), []
        for number, change in enumerate(changes):
            exec(change, {**space, "n": number})
            before = shown(space["s"]), shown(space["c"])
            try:
                result = body(hf.asarray(1.0), number).tolist()
            except HybridflowError:
                assert before == (shown(space["s"]), shown(space["c"]))
                return  # refused, with the state as before the call
            except Exception as error:
                result = type(error)
            seen.append((result, shown(space["s"]), shown(space["c"])))
        found.append(seen)
    assert found[1] == found[0], text


@pytest.mark.parametrize(
    "line", ["print({1: x, 'a': n})", "if hf.sum(x) > 3.5: raise KeyError({1: 2, 'a': n})", "int({1: 2, 'a': n})",
             "s.r = [{None: n, 'a': (n, {1: 2, 'b': n})}]",
             "match {1: n, 'a': True, 'b': hf.sum(x)}:\n        case {'a': True}: x = x * 3"]
)
def test_keys_of_a_dict_need_no_order(line: str, tmp_path: Path):
    text = f"def body(x, n):\n    {line}\n    return x * n\n"
    assert not same(text, lambda: {"s": SimpleNamespace()}, tmp_path / "program.py")


# -- attributes of classes that store in their own way ----------------------------------------------------------------

STORES = {
    "pass": "",
    "super": "def __setattr__(self, n, v): super().__setattr__(n, v)",
    "object": "def __setattr__(self, n, v): object.__setattr__(self, n, v)",
    "dict": "def __setattr__(self, n, v): self.__dict__[n] = v",
    "two": "def __setattr__(self, n, v): super().__setattr__(n, v); super().__setattr__('last', (n, v))",
    "other": "def __setattr__(self, n, v): super().__setattr__(n, v if type(v) is not int else v + 1)",
    "fails": "def __setattr__(self, n, v):\n        if v == 4: raise ValueError(n)\n        super().__setattr__(n, v)",
    "reads": "def __getattribute__(self, n): return super().__getattribute__(n)",
    "property": "@property\n    def c(self): return self._c\n    @c.setter\n    def c(self, v): self._c = v",
}
AUGMENTED = ["o.c += 1", "o.c *= 2; o.c += 1", "o.c += n", "o.c += 1; x = x * o.c", "o.s += 'a'", "o.l += [1]",
             "o.t += (1,)", "setattr(o, 'c', o.c + 1)", "o.d['k'] += 1"]
BASES = ["object", "SimpleNamespace", "hf.nn.Module", "threading.local", "dict", "list", "Exception", "Slotted", "type"]


class Slotted:
    __slots__ = ("_c", "c", "d", "l", "last", "s", "t")


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("stores", STORES)
def test_attributes_of_classes_that_store_in_their_own_way(stores: str, tmp_path: Path):
    for number, (base, act) in enumerate(itertools.product(BASES, AUGMENTED)):
        unfit = (base == "type" and stores in ("dict", "object")) or (base, stores) == ("Slotted", "dict")
        if unfit or number % 3:
            continue

        def held(base: str = base) -> dict[str, Any]:
            space = {**globals(), **MADE}
            slots = "__slots__ = ()\n    " if base == "Slotted" else ""
            exec(f"class K({base}):\n    {slots}{STORES[stores] or 'pass'}", space)
            made: Any = space["K"]("made", (), {}) if base == "type" else space["K"]()
            made.c, made.s, made.l, made.t, made.d = 0, "", [], (), {"k": 0}
            return {"o": made}

        with without_xla():
            same(f"def body(x, n):\n    {act}\n    return x * n\n", held, tmp_path / f"{number}.py")


def test_an_attribute_that_a_class_inherits_is_stored_though_it_is_equal():
    for wrap in (lambda function: function, hf.compile):

        class Base:
            m = 0

        class Derived(Base):
            pass

        def reset(x: Any, kind: Any = Derived) -> Any:
            kind.m = 0
            return x

        wrap(reset)(hf.asarray(1.0))
        assert "m" in vars(Derived)


# -- what a call changes and drops ----------------------------------------------------------------------------------

HELD = {
    "[a, b, c]": ("h[0]", ["h.pop(0)", "h.reverse()", "h.insert(0, 7)", "h.append(h.pop(0))", "del h[0]", "h[0] = h[1]",
                           "h[0], h[1] = h[1], h[0]", "h.clear()", "h[:] = h[1:]", "h[0] = None"]),
    "{'k': a, 'm': b, 0: c}": ("h['k']", ["h.pop('k')", "del h['k']", "h['k'] = h['m']", "h.clear()", "h.update(k=1)"]),
    "SimpleNamespace(k=a, m=b)": ("h.k", ["del h.k", "h.k = h.m", "h.k = None", "h.__dict__.clear()"]),
}
ACTS = ["o.v += 1.0 * n", "o.v = 5", "o.d['x'] += 1.0 * n", "o.l.append(3)", "o.l[0] = o.l[0] + 1.0 * n"]
ORDERS = ["{act}\n    {drop}", "{drop}\n    {act}", "{act}\n    if n > 2: {drop}\n    {act}"]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("held", HELD)
def test_objects_that_a_call_changes_and_drops(held: str, tmp_path: Path):
    def make() -> dict[str, Any]:
        space: dict[str, Any] = dict(zip("abc", map(Thing, (0.0, 1.0, 2.0)), strict=True))
        return {"h": eval(held, {**globals(), **space}), **space}

    place, drops = HELD[held]
    for number, (act, order, drop) in enumerate(itertools.product(ACTS, ORDERS, drops)):
        if number % 3 == 0:
            text = f"def body(x, n):\n    o = {place}\n    {order.format(act=act, drop=drop)}\n    return x * o.v\n"
            with without_xla():
                same(text, make, tmp_path / f"{number}.py")


def test_a_trace_keeps_no_object_alive_that_a_call_changes():
    class Listener:
        n = 0

        def on(self):
            self.n += 1
            return 1.0

    listeners = [Listener(), Listener()]
    signal = [weakref.WeakMethod(one.on) for one in listeners]
    f = hf.compile(lambda x: x * sum(one()() for one in signal if one() is not None))
    for _ in range(3):
        assert f(hf.asarray(1.0)).item() == 2.0
    del listeners[0]
    gc.collect()
    assert f(hf.asarray(1.0)).item() == 1.0


# -- what a tensor chooses ------------------------------------------------------------------------------------------

CHOICES = {
    "ternary": "w = h[0] if x > 0 else h[1]",
    "if": "w = h[0]\n    if x <= 0: w = h[1]",
    "loop": "w = h[0]\n    for k in hf.arange(2):\n        if x <= 0: w = h[1]",
    "max": "w = max(h, key=lambda q: (x if q is h[0] else -x))",
}
CHOSEN = {
    "[[1.0, 2.0], [3.0, 4.0]]": ["w[0] = 4.0", "w.append(4.0)", "w += [5.0]", "w.sort()", "del w[0]"],
    "[{'k': 1.0, 'l': [1.0]}, {'k': 2.0, 'l': [2.0]}]": ["w['k'] = 4.0", "w.update(k=3.0)", "w['l'].append(3.0)"],
    "[([1.0],), ([2.0],)]": ["w[0][0] = 4.0", "w[0].append(1.0)"],
    "[np.ones(2), np.zeros(2)]": ["w += 1", "w[0] = 5.0", "np.add(w, 1, out=w)"],
    "[Thing(1.0), Thing(2.0)]": ["w.v = 3.0", "w.l.append(1.0)", "w.d['x'] = 2.0", "w.__dict__['v'] = 8.0"],
}


@pytest.mark.parametrize("chosen", CHOSEN)
def test_a_change_of_what_a_tensor_chose_is_refused(chosen: str, tmp_path: Path):
    for number, (choice, act) in enumerate(itertools.product(CHOICES.values(), CHOSEN[chosen])):
        text = f"def body(x, n):\n    {choice}\n    {act}\n    return x\n"
        assert same(text, lambda: {"h": eval(chosen, globals())}, tmp_path / f"{number}.py"), text


def test_whether_an_object_is_that_which_a_tensor_chose_is_refused():
    a, b = [1.0], [2.0]

    def of_lists(x):
        w = a if x > 0 else b
        return x * (1.0 if w is a else 2.0)

    def handled(x):
        try:
            return of_lists(x)
        except HybridflowError:
            return x

    for f in (of_lists, handled):
        with pytest.raises(HybridflowError, match=r"is: which list it is depends on a tensor"):
            hf.compile(f)(hf.asarray(1.0))


def test_what_a_loop_that_is_sure_to_step_has_made_may_change():
    given = {"w": hf.asarray(1.0), "n": 0}

    def f(xs):
        params = given
        for x in xs:
            params = {"w": params["w"] - x, "n": params["n"] + 1}
        params["rate"] = 0.5
        return params["w"] * params["rate"] * params["n"]

    assert hf.compile(f)(hf.asarray([1.0, 2.0])).item() == f(hf.asarray([1.0, 2.0])).item() == -2.0
    assert [*given] == ["w", "n"]


def test_a_copy_of_what_a_tensor_chose_may_change():
    a, b = [1.0], [2.0]

    def f(x):
        w = [*(a if x > 0 else b)]
        w[0] = w[0] + 1
        return x * w[0]

    assert hf.compile(f)(hf.asarray(-1.0)).item() == -3.0
    assert (a, b) == ([1.0], [2.0])

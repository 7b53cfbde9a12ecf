"""The user's code that Python or a library calls while a function is traced: none runs unobserved.

Every way to have code called is crossed with every place where that code reads a number. The compiled function must
give what the function itself gives, also after the number has changed; and what the code writes must be written at
every call, as eager code does.
"""

import abc
import asyncio
import bisect
import collections
import concurrent.futures
import contextlib
import contextvars
import copy
import dataclasses
import decimal
import enum
import functools
import heapq
import importlib.abc
import importlib.util
import io
import itertools
import json
import math
import operator
import os
import pickle
import queue
import random
import re
import string
import sys
import threading
import time
import types
import warnings
import weakref
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import scipy.integrate
import scipy.optimize
from sklearn.preprocessing import FunctionTransformer

import hybridflow as hf
from hybridflow.core.errors import MutationError, TracedValueError

X = hf.asarray(1.0)


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        yield


# -- places: what the called code reads, and how that becomes another number ------------------------------------------


NUMBER, LIST, DICT, ARRAY = 2.0, [2.0], {"k": 2.0}, np.array([2.0])
BOX = types.SimpleNamespace(k=2.0, inner=types.SimpleNamespace(k=2.0))


class Of:
    k = 2.0


def of_helper():
    return LIST[0]


def of_helpers():
    return of_helper()


def _cell():
    k = 2.0

    def read():
        return k

    def write(value):
        nonlocal k
        k = value

    return read, write


_of_cell, _write_cell = _cell()


def _set_number(value):
    global NUMBER
    NUMBER = value


def of_global():
    return NUMBER


def of_list():
    return LIST[0]


def of_dict():
    return DICT["k"]


def of_array():
    return float(ARRAY[0])


def of_attribute():
    return BOX.k


def of_attributes():
    return getattr(BOX.inner, "".join(["k"]))


def of_class():
    return Of.k


def of_default(values=LIST):
    return values[0]


def of_globals():
    return globals()["NUMBER"]


def of_module():
    return sys.modules[__name__].NUMBER


PLACES = {
    of_global: _set_number, of_list: lambda v: LIST.__setitem__(0, v), of_dict: lambda v: DICT.__setitem__("k", v),
    of_array: lambda v: ARRAY.__setitem__(0, v), of_attribute: lambda v: setattr(BOX, "k", v),
    of_attributes: lambda v: setattr(BOX.inner, "k", v), of_class: lambda v: setattr(Of, "k", v),
    of_helpers: lambda v: LIST.__setitem__(0, v), of_default: lambda v: LIST.__setitem__(0, v),
    _of_cell: _write_cell, of_globals: _set_number, of_module: _set_number,
}


# -- ways: how `read` comes to be called -------------------------------------------------------------------------------


class Ways(dict):
    def __call__(self, way):
        self[way.__name__] = way
        return way


WAYS = Ways()


class _Plain(contextlib.ContextDecorator):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


@contextlib.contextmanager
def _managed():
    yield


DECORATORS = {
    "no_grad": hf.no_grad(), "enable_grad": hf.enable_grad(), "name_scope": hf.name_scope("a"),
    "autocast": hf.autocast("bfloat16"), "device": hf.device("cpu"), "context_decorator": _Plain(),
    "context_manager": _managed(), "errstate": np.errstate(all="ignore"),
    "patch_dict": mock.patch.dict({}, {}), "patch_object": mock.patch.object(BOX, "other", 1, create=True),
    "wraps": lambda f: functools.wraps(f)(lambda *args: f(*args)),
    "lru_cache_of": lambda f: functools.lru_cache(1)(f),
    "custom_gradient": lambda f: hf.custom_gradient(lambda x: (x * f(), lambda g: g)),
    "checkpoint": lambda f: hf.checkpoint(lambda x: x * f()), "vmap": lambda f: hf.vmap(lambda x: x * f()),
}
"""Decorators; the last ones make functions of a tensor."""


def decorated(name):
    def way(read):
        made = DECORATORS[name](read)
        return made(hf.ones((1,)))[0] if name in ("custom_gradient", "checkpoint", "vmap") else made()

    way.__name__ = name
    return way


for _name in DECORATORS:
    WAYS(decorated(_name))


@WAYS
def partial_in_c(read):
    return next(map(functools.partial(lambda _, f: f(), f=read), [0]))


@WAYS
def mapped(read):
    return [*map(lambda _: read(), [0])][0]


@WAYS
def filtered(read):
    return len([*filter(lambda one: one < read(), [1.0, 2.5, 7.0])])


@WAYS
def reduced(read):
    return functools.reduce(lambda a, b: a + read(), [0.0, 1.0])


@WAYS
def starred(read):
    return next(itertools.starmap(lambda a: a + read(), [(1,)]))


@WAYS
def accumulated(read):
    return [*itertools.accumulate([1.0, 2.0], lambda a, b: a * read())][-1]


@WAYS
def grouped(read):
    return len([*itertools.groupby([1.0, 2.5, 7.0], lambda one: one < read())])


@WAYS
def taken(read):
    return len([*itertools.takewhile(lambda one: one < read(), [1.0, 2.5, 7.0])])


@WAYS
def called_until(read):
    return next(iter(read, None))


@WAYS
def sorted_by(read):
    return sorted([1.0, 4.0], key=lambda one: abs(one - read()))[0]


@WAYS
def list_sorted(read):
    values = [1.0, 4.0]
    values.sort(key=lambda one: abs(one - read()))
    return values[0]


@WAYS
def compared(read):
    return sorted([1.0, 4.0], key=functools.cmp_to_key(lambda a, b: (a - b) * (read() - 2.5)))[0]


@WAYS
def smallest(read):
    return heapq.nsmallest(1, [1.0, 4.0], key=lambda one: abs(one - read()))[0]


@WAYS
def merged(read):
    return [*heapq.merge([1.0], [4.0], key=lambda one: one * (read() - 2.5))][0]


@WAYS
def bisected(read):
    return bisect.bisect([1.0, 2.5, 4.0], read(), key=lambda one: one * read())


@WAYS
def substituted(read):
    return float(re.sub("a", lambda _: str(read()), "a"))


@WAYS
def in_threads(read):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return next(pool.map(lambda _: read(), [0]))


@WAYS
def in_a_thread(read):
    found = []
    thread = threading.Thread(target=lambda: found.append(read()))
    thread.start()
    thread.join()
    return found[0]


@WAYS
def dispatched(read):
    @functools.singledispatch
    def chosen(one):
        return 0.0

    chosen.register(int, lambda one: read())
    return chosen(1)


@WAYS
def in_a_context(read):
    return contextvars.copy_context().run(read)


@WAYS
def awaited(read):
    async def inner():
        return read()

    return asyncio.run(inner())


@WAYS
def scheduled(read):
    async def inner():
        found = []
        asyncio.get_running_loop().call_soon(lambda: found.append(read()))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return found[0]

    return asyncio.run(inner())


class Lazy:
    """An object whose special methods call a function."""

    def __init__(self, read=None):
        self.read = read

    def __copy__(self):
        return self.read()

    def __deepcopy__(self, memo):
        return self.read()

    def __reduce__(self):
        return float, (self.read(),)

    def __format__(self, text):
        return str(self.read())

    def __str__(self):
        return str(self.read())

    __repr__ = __str__

    def __float__(self):
        return self.read()

    def __index__(self):
        return int(self.read())

    def __bytes__(self):
        return str(self.read()).encode()

    def __array__(self, dtype=None, copy=None):
        return np.array(self.read(), dtype)

    def __fspath__(self):
        return str(self.read())

    def __round__(self, digits=None):
        return self.read()

    def __length_hint__(self):
        return int(self.read())

    def __hash__(self):
        return int(self.read())

    def __eq__(self, other):
        return self.read() > 2.5

    def __lt__(self, other):
        return self.read() > 2.5

    def __iter__(self):
        yield self.read()

    def __dir__(self):
        return [str(self.read())]

    def keys(self):
        return [self.read()]

    def __getitem__(self, key):
        return key


USES = {
    "copied": copy.copy,
    "deepcopied": copy.deepcopy,
    "pickled": lambda one: pickle.loads(pickle.dumps(one)),
    "formatted": lambda one: float("%s" % one),
    "formatted_too": lambda one: float(f"{one:x}"),
    "templated": lambda one: float(string.Template("$a").substitute(a=one)),
    "as_float": float,
    "as_index": lambda one: float(operator.index(one)),
    "as_bytes": lambda one: float(bytes(one)),
    "as_array": lambda one: float(np.asarray(one)),
    "as_path": lambda one: float(os.fspath(one)),
    "rounded": round,
    "hinted": lambda one: float(operator.length_hint(one)),
    "hashed": lambda one: float(hash(one)),
    "in_a_set": lambda one: float(len({one, Lazy(one.read)})),
    "counted": lambda one: float([one].count(1)),
    "found": lambda one: float([1, one, 2].index(2)),
    "lesser": lambda one: float(min([5.0, one], key=lambda x: x) is one),
    "unpacked": lambda one: [*one][0],
    "summed": lambda one: sum(one),
    "as_tuple": lambda one: tuple(one)[0],
    "zipped": lambda one: next(zip(one, [1]))[0],
    "chained": lambda one: next(itertools.chain(one)),
    "spread": lambda one: dict(one).popitem()[0],
    "listed": lambda one: float(dir(one)[0]),
    "heaped": lambda one: float(heapq.nlargest(1, [one, one])[0] is one) * one.read(),
    "joined": lambda one: float("".join([str(one)])),
    "array_of": lambda one: float(np.fromiter(one, float)[0]),
    "jsoned": lambda one: json.loads(json.dumps([1, one], default=float))[1],
    "filled": lambda one: float(np.full(2, one)[1]),
    "mathed": lambda one: math.sqrt(one),
}


def used(name):
    def way(read):
        return USES[name](Lazy(read))

    way.__name__ = name
    return way


for _name in USES:
    WAYS(used(_name))


@WAYS
def finalized(read):
    found = []

    class Dying:
        def __del__(self):
            found.append(read())

    Dying()
    return found[0]


@WAYS
def weakly_called(read):
    found = []
    one = Lazy(read)
    kept = weakref.ref(one, lambda _: found.append(read()))
    del one
    return found[0] if kept() is None else 0.0


@WAYS
def weakly_finalized(read):
    found = []
    one = Lazy(read)
    weakref.finalize(one, lambda: found.append(read()))
    del one
    return found[0]


@WAYS
def left_at_exit(read):
    found = []
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: found.append(read()))
    return found[0]


@WAYS
def closed(read):
    found = []
    with contextlib.closing(types.SimpleNamespace(close=lambda: found.append(read()))):
        pass
    return found[0]


@WAYS
def named_in_a_class(read):
    class Named:
        def __set_name__(self, owner, name):
            owner.k = read()

    return type("Made", (), {"one": Named()}).k


@WAYS
def made_by_a_metaclass(read):
    class Meta(type):
        def __call__(cls):
            return read()

    return Meta("Made", (), {})()


@WAYS
def subclassed(read):
    class Base:
        def __init_subclass__(cls):
            cls.k = read()

    return type("Made", (Base,), {}).k


@WAYS
def instance_checked(read):
    class Meta(type):
        def __instancecheck__(cls, one):
            return read() > 2.5

    return float(isinstance(1, Meta("Made", (), {})))


@WAYS
def subclass_hooked(read):
    class Base(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other):
            return read() > 2.5

    return float(issubclass(int, Base))


@WAYS
def described(read):
    class Descriptor:
        def __get__(self, obj, owner):
            return read()

    class Holder:
        one = Descriptor()

    return functools.reduce(getattr, ["one"], Holder())


@WAYS
def cached_on_an_object(read):
    class Holder:
        @functools.cached_property
        def one(self):
            return read()

    return operator.attrgetter("one")(Holder())


@WAYS
def defaulted(read):
    return collections.defaultdict(lambda: read())["a"]


@WAYS
def missing_in_a_dict(read):
    class Filled(dict):
        def __missing__(self, key):
            return read()

    return operator.itemgetter("a")(Filled())


@WAYS
def user_dict(read):
    class Filled(collections.UserDict):
        def __missing__(self, key):
            return read()

    return Filled()["a"]


@WAYS
def in_an_enum(read):
    class Values(enum.Enum):
        A = 1

        @classmethod
        def _missing_(cls, value):
            BOX.found = read()
            return cls.A

    Values(7)
    return BOX.found


@WAYS
def made_by_a_field(read):
    @dataclasses.dataclass
    class Data:
        k: float = dataclasses.field(default_factory=lambda: read())

    return Data().k


@WAYS
def after_init(read):
    @dataclasses.dataclass
    class Data:
        k: float = 0.0

        def __post_init__(self):
            self.k = read()

    return dataclasses.replace(Data()).k


@WAYS
def from_a_generator(read):
    def values():
        yield read()

    return max(values())


@WAYS
def sent_to_a_generator(read):
    def values():
        yield (yield 0) * read()

    made = values()
    next(made)
    return made.send(1.0)


@WAYS
def written_to_a_stream(read):
    class Stream(io.StringIO):
        def write(self, text):
            BOX.found = read()
            return len(text)

    print("a", file=Stream())
    return BOX.found


@WAYS
def decoded(read):
    return json.loads("{}", object_hook=lambda _: read())


@WAYS
def encoded(read):
    class Encoder(json.JSONEncoder):
        def default(self, o):
            return read()

    return float(json.dumps({1}, cls=Encoder))


@WAYS
def imported(read):
    class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path, target=None):
            return importlib.util.spec_from_loader(name, self) if name == "made_by_these_tests" else None

        def exec_module(self, module):
            module.k = read()

    sys.meta_path.insert(0, finder := Finder())
    try:
        return importlib.import_module("made_by_these_tests").k
    finally:
        sys.meta_path.remove(finder)
        del sys.modules["made_by_these_tests"]


@WAYS
def looked_for(read):
    return scipy.optimize.brentq(lambda one: one - read(), 0, 10)


@WAYS
def integrated(read):
    return scipy.integrate.quad(lambda one: read(), 0, 1)[0]


@WAYS
def of_a_series(read):
    return float(pd.Series([1.0]).apply(lambda one: one * read()).iloc[0])


@WAYS
def of_a_frame(read):
    return float(pd.DataFrame({"a": [1.0, 2.0]}).groupby("a").agg(lambda one: read()).index[0]) * read()


@WAYS
def of_scikit_learn(read):
    return float(FunctionTransformer(lambda one: one * read()).transform(np.ones((1, 1)))[0, 0])


@WAYS
def vectorized(read):
    return float(np.vectorize(lambda one: one * read())(1.0))


@WAYS
def from_python(read):
    return float(np.frompyfunc(lambda one: one * read(), 1, 1)(1.0))


@WAYS
def along_an_axis(read):
    return float(np.apply_along_axis(lambda one: one * read(), 0, np.ones(1))[0])


@WAYS
def from_a_function(read):
    return float(np.fromfunction(lambda i: i * 0 + read(), (1,))[0])


@WAYS
def piecewise(read):
    return float(np.piecewise(np.ones(1), [np.array([True])], [lambda one: one * read()])[0])


@WAYS
def with_a_mock(read):
    return mock.Mock(side_effect=lambda: read())()


@WAYS
def in_a_hook(read):
    found = []
    with mock.patch.object(warnings, "showwarning", lambda *_: found.append(read())), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning("a", UserWarning, "", 1)
    return found[-1]


@WAYS
def evaluated(read):
    return eval("read()", {"read": read})


def _set(value):
    for write in PLACES.values():
        write(value)


CASES = [*itertools.product(WAYS, PLACES)]
FEW = {(way, [*PLACES][number % len(PLACES)]) for number, way in enumerate(WAYS)}


@pytest.mark.parametrize(
    ("way", "place"),
    [
        pytest.param(*one, marks=() if one in FEW else pytest.mark.rest, id=f"{one[0]}-{one[1].__name__}")
        for one in CASES
    ],
)
def test_what_called_code_reads_is_seen(way, place):
    def function(x):
        return x * WAYS[way](place)

    compiled = hf.compile(function)
    for value in (2.0, 3.0, 3.0, 2.0):
        PLACES[place](value)
        assert compiled(X).item() == function(X).item()


LOG = []


def counted():
    LOG.append(1)
    return float(len(LOG))


OF_ONE_VALUE = {"looked_for", "integrated"}
"""Ways that need a function which gives the same number each time."""


@pytest.mark.parametrize("way", [one for one in WAYS if one not in OF_ONE_VALUE])
def test_what_called_code_writes_is_written_at_every_call(way):
    def function(x):
        return x * WAYS[way](counted)

    if way in ("checkpoint", "vmap"):
        with pytest.raises(MutationError, match=r"LOG\.append"):
            hf.compile(function)(X)
        return
    found = []
    for called in (function, hf.compile(function)):
        LOG.clear()
        found.append([(called(X).item(), len(LOG)) for _ in range(3)])
    assert found[0] == found[1]


# -- what called code asks of Python and the system --------------------------------------------------------------------


@functools.cache
def _cached():
    return LIST[0]


def _set_cached(value):
    LIST[0] = value
    _cached.cache_clear()


class Kept(hf.Variable):
    """A Variable with an attribute."""


class Failed(Exception):
    """An exception, whose arguments C keeps."""


STREAM, LOCK, LOCAL, FAILED, KEPT = io.StringIO(), threading.Lock(), threading.local(), Failed(2.0), Kept(1.0)


def _set_stream(value):
    STREAM.seek(0)
    STREAM.write(f"{value}\n{value + 1}\n")
    STREAM.seek(0)


def _set_lock(value):
    if LOCK.locked() != (value == 3.0):
        (LOCK.release if LOCK.locked() else LOCK.acquire)()


ASKED = {
    "stream": (lambda: float(STREAM.readline()), _set_stream),
    "lock": (lambda: float(LOCK.locked()), _set_lock),
    "thread": (lambda: LOCAL.k, lambda value: setattr(LOCAL, "k", value)),
    "exception": (lambda: FAILED.args[0], lambda value: setattr(FAILED, "args", (value,))),
    "variable": (lambda: KEPT.k, lambda value: setattr(KEPT, "k", value)),
    "environment": (lambda: float(os.getenv("HYBRIDFLOW_OF_TESTS", "2")),
                    lambda value: os.environ.update(HYBRIDFLOW_OF_TESTS=str(value))),
    "cache": (lambda: _cached(), _set_cached),
    "globals": (lambda: globals()["NUMBER"], _set_number),
    "eval": (lambda: eval("NUMBER"), _set_number),
    "vars": (lambda: vars(BOX)["k"], PLACES[of_attribute]),
    "getattr": (lambda: getattr(BOX, "k"), PLACES[of_attribute]),  # noqa: B009 (a way of its own)
    "modules": (lambda: sys.modules[__name__].LIST[0], PLACES[of_list]),
    "frames": (lambda: sys._getframe(0).f_globals["NUMBER"], _set_number),
    "precision": (lambda: float(decimal.getcontext().prec),
                  lambda value: setattr(decimal.getcontext(), "prec", int(value))),
    "random": (lambda: random.random(), random.seed),
    "numpy_random": (lambda: float(np.random.random()), lambda value: np.random.seed(int(value))),
}


def _as_it_is(read):
    """Return a function that is called, unconverted, by the function written in C that it is given to."""
    return types.FunctionType(read.__code__.replace(co_filename="<without source>"), globals(), "read")


@pytest.mark.parametrize("asked", ASKED)
def test_what_called_code_asks_is_asked_again(asked, monkeypatch):
    monkeypatch.setenv("HYBRIDFLOW_OF_TESTS", "2")
    read, write = _as_it_is(ASKED[asked][0]), ASKED[asked][1]
    with decimal.localcontext():
        found = []
        function = lambda x: x * substituted(read)  # noqa: E731
        for called in (function, hf.compile(function)):
            found.append([])
            for value in (2.0, 3.0, 3.0, 4.0):
                write(value)
                found[-1] += [called(X).item(), called(X).item()]
        assert found[0] == found[1]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="Python 3.11 does not tell that an exception is handled")
def test_called_code_that_handles_what_has_no_value_does_not_go_on():
    def key(v):
        try:
            return float(v)
        except Exception:
            return 0.0

    with pytest.raises(TracedValueError, match="float: a traced tensor has no value"):
        hf.compile(lambda x: heapq.nsmallest(1, [x, -x], key=_as_it_is(key))[0])(X)


def test_objects_of_the_users_classes_with_bases_in_c():
    class Queue(queue.SimpleQueue):
        pass

    for called in (lambda f: f, hf.compile):
        waiting = Queue()
        f = called(lambda x, waiting=waiting: x * (waiting.qsize() + 1.0))
        assert f(X).item() == 1.0
        waiting.put(1)
        assert f(X).item() == 2.0


def test_called_code_that_reads_the_clock_is_traced_again_with_a_warning():
    read = _as_it_is(lambda: time.perf_counter())
    compiled = hf.compile(lambda: hf.asarray(substituted(read), dtype="float64"))
    with pytest.warns(hf.EffectWarning, match=r"time.perf_counter\(\) at"):
        first = compiled()
    assert compiled().item() > first.item()


# -- decorators and packages -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*DECORATORS][:8])
def test_control_flow_below_decorators_is_converted(name):
    @DECORATORS[name]
    def chosen(x):
        while hf.sum(x) < 8:
            x = x * 2 if hf.max(x) > 1 else x + 1
        return x

    class Net(hf.nn.Module):
        forward = DECORATORS[name](lambda self, x: chosen(x) if hf.sum(x) > 0 else -x)

    for function in (chosen, Net()):
        compiled = hf.compile(lambda x, function=function: function(x))
        assert [compiled(hf.asarray(v)).item() for v in (1.0, 7.0, 9.0)] == [8.0, 14.0, 9.0]
        assert compiled.trace_count == 1


def test_a_package_that_needs_hybridflow_or_comes_from_a_folder_is_the_users(tmp_path, monkeypatch):
    folder = tmp_path / "site-packages"
    packages = {"own_a": ("hybridflow>=0.1", ""), "own_b": ("numpy", '{"dir_info": {}}'), "other_c": ("numpy", "")}
    for package, (needs, origin) in packages.items():
        (folder / package).mkdir(parents=True)
        text = "K = [2.0]\ndef f(x):\n    return x * K[0] if x > 0 else -x\n"
        (folder / package / "__init__.py").write_text(text)
        info = folder / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: {package}\nVersion: 1.0\nRequires-Dist: {needs}\n")
        (info / "RECORD").write_text(f"{package}/__init__.py,,\n")
        if origin:
            (info / "direct_url.json").write_text(origin)
    monkeypatch.syspath_prepend(str(folder))
    for package in ("own_a", "own_b"):
        module = importlib.import_module(package)
        compiled = hf.compile(lambda x, module=module: module.f(x))
        assert (compiled(X).item(), compiled(-X).item(), compiled.trace_count) == (2.0, 1.0, 1)
        module.K[0] = 3.0
        assert compiled(X).item() == 3.0
    other = importlib.import_module("other_c")
    with pytest.raises(TracedValueError, match="it belongs to a library"):
        hf.compile(lambda x: other.f(x))(X)


# -- what the call itself made is not outside, whoever changes it ------------------------------------------------------


def by_a_pattern(x):
    kept = []
    re.sub("a", lambda match: kept.append(x) or "", "aa")
    return kept[0] * len(kept)


def by_a_pattern_in_a_dict(x):
    kept = {"n": 0}

    def count(match):
        kept["n"] += 1
        kept["x"] = x * kept["n"]
        return ""

    re.sub("a", count, "aaa")
    return kept["x"]


def by_a_fold(x):
    made = types.SimpleNamespace()
    functools.reduce(lambda _, number: setattr(made, "x", x * number), [1, 2], 0)
    return made.x


def by_a_manager(x):
    kept = {}

    class Closes:
        def close(self):
            kept["x"] = x * 2

    with contextlib.closing(Closes()), contextlib.ExitStack() as stack:
        stack.callback(kept.update, y=x)
    return kept["x"] + kept["y"]


def by_a_sort(x):
    seen, numbers = [], [1, 3, 2]

    def key(number):
        seen.append(x * number)
        return -number

    numbers.sort(key=key)
    return sum(seen) * numbers[0] + len(seen)


@pytest.mark.parametrize("function", [by_a_pattern, by_a_pattern_in_a_dict, by_a_fold, by_a_manager, by_a_sort])
def test_what_the_call_made_may_be_changed_by_a_callback(function):
    compiled = hf.compile(function)
    for number in (2.0, 3.0):
        assert compiled(hf.asarray(number)).item() == function(hf.asarray(number)).item()


def test_what_is_outside_is_outside_in_a_callback():
    outer = []

    def by_its_name(x):
        re.sub("a", lambda match: outer.append(x) or "", "a")
        return x

    def by_another_name(x):
        other = outer
        re.sub("a", lambda match: other.append(x) or "", "a")
        return x

    for function in (by_its_name, by_another_name):
        with pytest.raises(hf.core.errors.MutationError, match="outside of itself"):
            hf.compile(function)(hf.asarray(1.0))
    assert outer == []


async def drawn_later(draw, source):
    return draw(source)


@hf.no_convert
def drawn_as_it_is(draw, source):
    return draw(source)


SOURCES = {
    "NumPy": (lambda: np.random.default_rng(0), lambda source: int(source.integers(0, 100))),
    "Python": (lambda: random.Random(0), lambda source: source.randrange(100)),
    "an iterator": (itertools.count, next),
    "a list": (lambda: [0], lambda source: source.append(len(source)) or len(source)),
}
UNCONVERTED = {
    "async": lambda draw, source: asyncio.run(drawn_later(draw, source)),
    "no_convert": drawn_as_it_is,
    "re.sub": lambda draw, source: int(re.sub("x", lambda match: str(draw(source)), "x")),
    "sorted": lambda draw, source: sorted([3], key=lambda item: draw(source))[0],
}


@pytest.mark.filterwarnings("ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("way", UNCONVERTED)
def test_what_is_drawn_in_code_that_is_not_converted_is_drawn_once(way, source):
    if sys.version_info < (3, 12) and way == "no_convert" and source in ("NumPy", "Python"):
        pytest.skip("the profiling hook of 3.11 tells of no calls of such methods")
    make, draw = SOURCES[source]

    def run(mode):
        state, place = make(), {"n": 1}

        def step(x):
            k = UNCONVERTED[way](draw, state)
            for _ in range(place["n"]):  # the trace starts again, since it needs this number
                x = x + 0
            place["n"] += 1
            return x * k

        function = mode(step)
        return [function(hf.asarray(1.0)).item() for _ in range(5)], draw(state)

    assert run(hf.compile) == run(lambda function: function)

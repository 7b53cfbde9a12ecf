"""What Python's protocols carry into a compiled function: streams, exceptions, namespaces, what makes arrays."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import operator
import warnings
import weakref
from types import MappingProxyType, MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import TracedValueError


def x() -> hf.Tensor:
    return hf.asarray([1.0, -2.0, 3.0])


@pytest.fixture(autouse=True)
def _traced_anew_is_fine():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.EffectWarning)
        yield


class Counting:
    """An iterator with state, and an end."""

    def __init__(self, end: int) -> None:
        self.at, self.end = 0, end

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> float:
        self.at += 1
        if self.at > self.end:
            raise StopIteration
        return float(self.at)


def iterator_with_default(compiled: Any) -> Any:
    items = Counting(2)
    f = compiled(lambda x: x * next(items, 100.0))
    for _ in range(4):
        yield f(x())
        yield items.at


def stream_read(compiled: Any) -> Any:
    stream = io.StringIO("1\n2\n3\n")
    f = compiled(lambda x: x * float(stream.readline() or 7))
    for _ in range(4):
        yield f(x())
    stream.seek(2)
    yield f(x())


def stream_read_beside_a_float(compiled: Any) -> Any:
    stream, state = io.BytesIO(b"abcdef"), SimpleNamespace(k=2.0)

    @compiled
    def f(x: Any) -> Any:
        return x * state.k + len(stream.read(2)) + stream.tell()

    for k in (2.0, 3.0, 4.0, 5.0):
        state.k = k
        yield f(x())


def names_assigned_by_exec(compiled: Any) -> Any:
    names: dict[str, Any] = {"k": 1.0}

    @compiled
    def f(x: Any) -> Any:
        exec("k = k + 1", names)
        return x * names["k"]

    for _ in range(3):
        yield f(x())
        yield names["k"]


class Scaled:
    """Becomes an array when asked."""

    def __init__(self, k: float) -> None:
        self.k = k

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.ones(3, np.float32) * self.k


def array_protocol(compiled: Any) -> Any:
    scaled = Scaled(2.0)
    f = compiled(lambda x: hf.asarray(scaled) + x)
    yield f(x())
    scaled.k = 3.0
    yield f(x())


def name_handled_in_a_generator(compiled: Any) -> Any:
    space: dict[str, Any] = globals()

    def factors() -> Any:
        try:
            yield name_that_comes_and_goes  # pyright: ignore
        except NameError:
            yield 2.0

    @compiled
    def f(x: Any) -> Any:
        for k in factors():
            x = x * k
        return x

    yield f(x())
    space["name_that_comes_and_goes"] = 5.0
    yield f(x())
    del space["name_that_comes_and_goes"]
    yield f(x())


class Told(Exception):
    """Carries a number."""

    def __init__(self, k: float) -> None:
        super().__init__("told", k)
        self.k = k


def number_in_an_exception(compiled: Any) -> Any:
    state = SimpleNamespace(k=1.0)

    @compiled
    def f(x: Any) -> Any:
        try:
            raise KeyError(state.k * 2.0)
        except KeyError as error:
            raise Told(state.k) from error

    for k in (1.0, 2.0, 3.0, 4.0):
        state.k = k
        with pytest.raises(Told) as caught:
            f(x())
        error = caught.value
        yield type(error.k).__name__, error.k, type(error.args[1]).__name__, error.args
        yield type(error.__cause__.args[0]).__name__, error.__cause__.args  # pyright: ignore


@pytest.mark.parametrize(
    "program",
    [
        iterator_with_default, stream_read, stream_read_beside_a_float, names_assigned_by_exec, array_protocol,
        name_handled_in_a_generator, number_in_an_exception,
    ],
)
def test_the_protocol_gives_what_it_gives_eagerly(program: Any) -> None:
    eager, compiled = [list(program(mode)) for mode in (lambda f: f, hf.compile)]
    assert len(eager) == len(compiled)
    for one, other in zip(eager, compiled, strict=True):
        if isinstance(one, hf.Tensor):
            np.testing.assert_array_equal(one.numpy(), other.numpy())
        else:
            assert one == other


@pytest.mark.parametrize("kind", [weakref.WeakKeyDictionary, weakref.WeakSet])
def test_a_traced_tensor_is_not_looked_up_among_weak_tensors(kind: Any) -> None:
    kept, one = kind(), hf.asarray(1.0)
    kept.add(one) if kind is weakref.WeakSet else kept.setdefault(one, 3.0)
    look = (lambda x: x * (2.0 if x in kept else 3.0)) if kind is weakref.WeakSet else lambda x: x * kept.get(x, 1.0)
    with pytest.raises(TracedValueError, match="looked up among tensors that are keys"):
        hf.compile(look)(one)


class Silent:
    """An object whose special methods nobody may call by himself."""

    calls: list[str]
    k = 2.0

    def __repr__(self) -> str:
        self.calls.append("__repr__")
        raise RuntimeError("not printable")

    def __eq__(self, other: object) -> bool:
        self.calls.append("__eq__")
        return self is other

    def __hash__(self) -> int:
        return 1

    def __bool__(self) -> bool:
        self.calls.append("__bool__")
        return True

    __str__ = __repr__


@dataclasses.dataclass(eq=False)
class Around:
    a: Any


HOLDERS: dict[str, tuple[Any, Any]] = {
    "itself": (lambda s: s, lambda h: h.k),
    "list": (lambda s: [s, 1], lambda h: h[0].k),
    "tuple": (lambda s: (s,), lambda h: h[0].k),
    "value": (lambda s: {"a": s}, lambda h: h["a"].k),
    "key": (lambda s: {s: 2.0}, lambda h: next(iter(h)).k),
    "default": (lambda s: collections.defaultdict(list, a=s), lambda h: h["a"].k),
    "ordered": (lambda s: collections.OrderedDict(a=s), lambda h: h["a"].k),
    "deque": (lambda s: collections.deque([s]), lambda h: h[0].k),
    "set": (lambda s: {s}, len),
    "proxy": (lambda s: MappingProxyType({"a": s}), lambda h: h["a"].k),
    "namespace": (lambda s: SimpleNamespace(a=s), lambda h: h.a.k),
    "fields": (Around, lambda h: h.a.k),
    "method": (lambda s: MethodType(lambda self: self.k, s), lambda h: h()),
    "partial": (lambda s: functools.partial(lambda one: one.k, s), lambda h: h()),
    "stored": (lambda s: [s], lambda h: operator.setitem(h, 0, h[0]) or len(h)),
    "asked": (lambda s: [s], lambda h: callable(h[0]) + isinstance(h[0], Silent)),
}


def called_in_vain(one: Any) -> float:
    try:
        return one(1.5)
    except TypeError:
        return 3.0


HOLDERS["called in vain"] = (lambda s: [s], lambda h: called_in_vain(h[0]))


@pytest.mark.parametrize("as_argument", [False, True])
@pytest.mark.parametrize("name", HOLDERS)
def test_special_methods_run_where_the_function_calls_them_only(name: str, as_argument: bool) -> None:
    make, use = HOLDERS[name]
    Silent.calls = []
    one = Silent()
    held = make(one)
    f = hf.compile(lambda x, argument: x * use(held))
    for number in range(4):
        one.k = 2.0 + number // 2
        expected = use(held)
        Silent.calls.clear()
        assert f(hf.ones(2 + number % 2), one if as_argument else 1).tolist()[0] == expected
        assert Silent.calls == []
    assert "not printable" not in str(f.explain())
    assert Silent.calls == []


@pytest.mark.parametrize("name", ["__eq__", "__ne__", "__lt__", "__add__", "__contains__", "find", "join"])
def test_methods_of_texts_by_name(name):
    def f(x, text):
        return x * len(repr(getattr(text, name)("a"))) + len(repr(getattr(str, name)(text, "a")))

    compiled = hf.compile(f)
    for text in ("a", "b%s", "abc"):
        assert compiled(x(), text).numpy().tolist() == f(x(), text).numpy().tolist()


@pytest.mark.parametrize("value", [5, None, 1.5, "text", (1,), len, object(), frozenset()])
def test_items_of_what_has_none(value):
    holder = SimpleNamespace(value=value)

    def store(x):
        holder.value[0] = 1
        return x

    def delete(x):
        del holder.value["a"]
        return x

    for function in (store, delete):
        with pytest.raises(TypeError) as eager:
            function(x())
        with pytest.raises(TypeError) as compiled:
            hf.compile(function)(x())
        assert str(compiled.value).splitlines()[0] == str(eager.value)


def test_containers_outside_may_come_to_contain_themselves():
    state = {}

    def f(x):
        state["kid"] = {"parent": state}
        return x * len(state["kid"]["parent"])

    compiled = hf.compile(f)
    assert [compiled(x()).numpy().tolist() for _ in range(3)] == [x().numpy().tolist()] * 3
    assert state["kid"]["parent"] is state


def test_classes_and_descriptors_that_change():
    class First:
        only = 5.0

    class Second:
        pass

    class Kind(Second):
        pass

    class Typed:
        def __get__(self, obj, kind=None):
            return 7.0

    class Holder:
        value = Typed()

    one, holder = Kind(), Holder()
    holder.__dict__["value"] = 11.0
    compiled = hf.compile(lambda x: x * (isinstance(one, First) + 2.0 * isinstance(one, Second)) + holder.value)
    found = []
    for bases in ((Second,), (First,), (First, Second)):
        Kind.__bases__ = bases
        found.append(compiled(x())[0].item())
        Typed.__set__ = lambda self, obj, value: None
        found.append(compiled(x())[0].item())
        del Typed.__set__
    assert found == [13.0, 9.0, 12.0, 8.0, 14.0, 10.0]


@pytest.mark.parametrize("make", [hf.asarray, hf.Variable], ids=["tensor", "variable"])
@pytest.mark.parametrize("values", [[1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], 1.0, [3, 1]], ids=str)
@pytest.mark.parametrize("item", [1.0, 9, 2.0, float("nan"), [1.0, 2.0], "a"], ids=str)
def test_what_is_in_a_tensor_is_what_is_in_an_array(make: Any, values: Any, item: Any) -> None:
    def contains(values: Any) -> Any:
        return item in values

    tensor = make(values)
    if isinstance(item, str):
        for function in (contains, hf.compile(contains)):
            with pytest.raises(TypeError):
                function(tensor)
        return
    if isinstance(item, list):
        item = hf.asarray(item)
    expected = (np.asarray(item) if isinstance(item, hf.Tensor) else item) in np.asarray(values)
    assert contains(tensor) is expected
    assert bool(hf.compile(contains)(tensor)) is expected

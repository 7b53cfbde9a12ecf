"""An argument that counts by value counts with all that it holds; a trace goes with the arguments only it can serve."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import gc
import math
import weakref
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

import pytest

import hybridflow as hf
from hybridflow.core.errors import MutationError

x = hf.asarray([1.0, 2.0])

# -- what can be seen of a value ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Config:
    k: Any = 1

    @functools.cached_property
    def cached(self):
        return self.k * 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    k: Any = 1


@dataclasses.dataclass(frozen=True, order=True)
class Ordered:
    k: Any = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedOnly:
    k: Any = 1


@dataclasses.dataclass(frozen=True)
class Compared:
    name: str = "same"
    k: Any = dataclasses.field(default=1, compare=False)


@dataclasses.dataclass(frozen=True)
class Initialised:
    given: dataclasses.InitVar[Any] = 1

    def __post_init__(self, given):
        object.__setattr__(self, "k", given)


@dataclasses.dataclass(frozen=True)
class Child(Config):
    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Below(Config):
    __slots__ = ("more",)


T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class OfType(Generic[T]):
    k: Any = 1


class Text(str):
    k = 0


class Whole(int):
    k = 0


class Real(float):
    k = 0


class Raw(bytes):
    k = 0


class Pair(tuple):
    k = 0


class Set(frozenset):
    k = 0


class Always(str):
    """Equal to every text."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


class Named(NamedTuple):
    first: Any = 1


class NamedBelow(Named):
    k = 0


def having(make: Callable[[], Any], name: str = "k") -> Callable[[Any], Any]:
    """Return what makes a value with an attribute that is no part of it."""

    def made(k):
        value = make()
        object.__setattr__(value, name, k)
        return value

    return made


def whole_and(k):
    return Config((k, "and"))


def with_cache(k):
    value = Config(3)
    object.__setattr__(value, "cached", k)
    return value


OBJECTS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "field": (Config, lambda v: v.k),
    "slots": (Slotted, lambda v: v.k),
    "order": (Ordered, lambda v: v.k),
    "kw_only": (lambda k: NamedOnly(k=k), lambda v: v.k),
    "generic": (OfType[int], lambda v: v.k),
    "not compared": (lambda k: Compared(k=k), lambda v: v.k),
    "InitVar": (Initialised, lambda v: v.k),
    "an __eq__ of its own": (Child, lambda v: v.k),
    "inherited": (Below, lambda v: v.k),
    "slot beside fields": (having(Below, "more"), lambda v: v.more),
    "no field": (having(Config, "other"), lambda v: v.other),
    "cached_property": (with_cache, lambda v: v.cached),
    "nested": (lambda k: Config((Config(1), Config({"a": Config(k)}))), lambda v: v.k[1].k["a"].k),
    "nested attribute": (lambda k: Config(having(Config, "other")(k)), lambda v: v.k.other),
    "str": (having(lambda: Text("a")), lambda v: v.k),
    "int": (having(lambda: Whole(1)), lambda v: v.k),
    "float": (having(lambda: Real(1.5)), lambda v: v.k),
    "bytes": (having(lambda: Raw(b"a")), lambda v: v.k),
    "tuple": (having(lambda: Pair((1, 2))), lambda v: v.k),
    "frozenset": (having(lambda: Set({1})), lambda v: v.k),
    "str whose == is always true": (having(lambda: Always("a")), lambda v: v.k),
    "text of such a str": (lambda k: Always("a" * k), lambda v: len(v)),
    "named tuple": (having(NamedBelow), lambda v: v.k),
    "named tuple in a list": (lambda k: [x, having(NamedBelow)(k)], lambda v: v[1].k),
    "vars": (having(Config, "other"), lambda v: vars(v)["other"]),
    "str in a dataclass": (lambda k: Config(having(lambda: Text("a"))(k)), lambda v: v.k.k),
    "str in a list": (lambda k: [x, having(lambda: Text("a"))(k)], lambda v: v[1].k),
    "key of a dict": (lambda k: {having(lambda: Text("a"))(k): x}, lambda v: next(iter(v)).k),
    "key in a dataclass": (lambda k: Config({having(lambda: Text("a"))(k): 1}), lambda v: next(iter(v.k)).k),
    "dataclass with a tensor": (lambda k: having(lambda: Config(x), "other")(k), lambda v: v.other),
    "tuple as a key": (lambda k: {(1, k == 2): x}, lambda v: int(type(next(iter(v))[1]) is bool)),
}


WAYS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "alone": (lambda v: v, lambda v: v), "in a list": (lambda v: [v], lambda v: v[0]),
    "in a dataclass": (Config, lambda v: v.k),
}


@pytest.mark.parametrize("kind", OBJECTS)
@pytest.mark.parametrize("way", WAYS)
def test_equal_arguments_with_other_attributes_have_other_traces(kind, way):
    make, read = OBJECTS[kind]
    into, out = WAYS[way]

    def f(v):
        return read(out(v)) * 10

    compiled = hf.compile(f)
    for k in (1, 2, 1, 3, 2):
        assert compiled(into(make(k))) == f(into(make(k))), k
    kept = [into(make(k)) for k in (1, 2, 1)]
    assert [compiled(one) for one in kept] == [f(one) for one in kept]


@pytest.mark.parametrize("kind", ["field", "slots", "no field", "nested", "str", "str in a dataclass"])
def test_equal_arguments_are_one_trace(kind):
    make, read = OBJECTS[kind]
    compiled = hf.compile(lambda v: read(v) * 10)
    for k in (1, 2, 1, 2, 2):
        assert compiled(make(k)) == 10 * k
    assert compiled.trace_count == 2


EQUAL = [
    (1, True, 1.0, 1 + 0j), (0.0, -0.0), ((1, 2), (True, 2), (1.0, 2)), (frozenset({1}), frozenset({True})),
]


@pytest.mark.parametrize("values", EQUAL, ids=str)
@pytest.mark.parametrize("put", [
    lambda v: {v: x}, lambda v: [x, {v: x}], lambda v: Config({v: x}), lambda v: Config({v: 1}), lambda v: Config((v,)),
    lambda v: Config(frozenset({v})), lambda v: having(Config, "other")(v), lambda v: Config(Config(v)),
])
def test_values_that_are_equal_and_not_the_same(values, put):
    def shown(v):
        held = v[1] if isinstance(v, list) else v
        while isinstance(held, Config):
            held = vars(held).get("other", held.k)
        text = repr(next(iter(held)) if isinstance(held, dict | frozenset | tuple) else held)
        return x * sum(place * ord(letter) for place, letter in enumerate(text))

    compiled = hf.compile(shown)
    for value in (*values, *values):
        assert compiled(put(value)).tolist() == shown(put(value)).tolist(), value


def test_nan_is_one_value():
    compiled = hf.compile(lambda c: x * math.isnan(c.k))
    assert [compiled(Config(math.nan)).tolist() for _ in range(2)] == [[1.0, 2.0]] * 2
    assert compiled.trace_count == 1


class Colour(enum.Enum):
    RED = 1
    BLUE = 2

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


def test_members_of_an_enum_are_themselves():
    compiled = hf.compile(lambda c: x * c.value)
    for member in (Colour.RED, Colour.BLUE, Colour.RED):
        assert compiled(member).tolist() == [member.value, 2.0 * member.value]
    shown = hf.compile(lambda c: x * c.extra)
    for extra in (1, 2, 1):
        Colour.RED.extra = extra
        assert shown(Colour.RED).tolist() == [extra, 2.0 * extra]
    assert compiled.trace_count == 2


class Part:
    def __init__(self, k):
        self.k = k


class SlottedPart:
    __slots__ = ("k",)

    def __init__(self, k):
        self.k = k


@pytest.mark.parametrize("part", [Part, SlottedPart])
@pytest.mark.parametrize("put", [
    Config, lambda p: Config(Config(p)), lambda p: Config([p]), lambda p: having(Config, "other")(p),
    lambda p: Config({"a": (p,)}), lambda p: having(lambda: Text("a"))(p),
])
def test_objects_that_change_inside_an_argument_that_counts_by_value(part, put):
    def inside(value):
        while not isinstance(value, Part | SlottedPart):
            if isinstance(value, Text):
                value = vars(value)["k"]
            elif isinstance(value, Config):
                value = vars(value).get("other", value.k)
            else:
                value = value["a"] if isinstance(value, dict) else value[0]
        return value

    held = part(1)
    value = put(held)
    compiled = hf.compile(lambda v: x * inside(v).k)
    for k in (1, 2, 3, 1):
        held.k = k
        assert compiled(value).tolist() == [k, 2.0 * k]


def test_objects_that_hold_themselves():
    for more in (1, x):
        value = having(lambda: Config(more), "me")(None)  # noqa: B023 (called at once)
        object.__setattr__(value, "me", [value])
        compiled = hf.compile(lambda v: hf.sum(x * v.me[0].k))
        expected = float(hf.sum(x * more))
        assert [compiled(value).item() for _ in range(2)] == [expected] * 2


# -- nested dataclasses -------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layer:
    size: int
    name: str = "dense"


@dataclasses.dataclass(frozen=True)
class Plan:
    layers: tuple[Layer, ...]
    head: Layer | None = None
    rates: dict[str, Any] = dataclasses.field(default_factory=dict, hash=False)


def total(plan, factor):
    result = factor
    for layer in plan.layers:
        result = result * layer.size
    if plan.head is not None:
        result = result + plan.head.size
    for name, rate in plan.rates.items():
        result = result * 10 + rate * len(name)
    return result


PLANS = [
    Plan((Layer(2), Layer(3))), Plan((Layer(2), Layer(3)), Layer(7)), Plan((), Layer(7, "other")),
    Plan((Layer(2),), rates={"b": 1, "aa": 2}), Plan((Layer(2),), rates={"aa": 2, "b": 1}),
    Plan((Layer(2),), rates={"b": x, "aa": 2}), Plan((Layer(2),), rates={"aa": 2, "b": x}),
    Plan((Layer(2),), rates={"b": hf.Variable([1.0, 1.0]), "aa": 2}), Plan([Layer(2), Layer(5)]),  # type: ignore[arg-type]
]


def test_a_plan_of_plans_is_an_argument():
    compiled = hf.compile(total)
    for _ in range(2):
        for plan in PLANS:
            assert compiled(plan, x).tolist() == total(plan, x).tolist()
            assert compiled(dataclasses.replace(plan), x).tolist() == total(plan, x).tolist()
    assert compiled.trace_count == len(PLANS)


def test_lists_inside_an_argument_that_counts_by_value_stay_unchanged():
    def f(plan, x):
        plan.rates["new"] = 1
        return x

    with pytest.raises(MutationError, match=r"changed its argument 'plan.rates', which a compiled call cannot do"):
        hf.compile(f)(Plan(()), x)


def test_which_part_of_an_argument_is_which():
    def f(plan, layer):
        return x * (2 if plan.head is layer else 3)

    compiled = hf.compile(f)
    layer = Layer(1)
    for _ in range(2):
        assert compiled(Plan((), layer), layer).tolist() == [2.0, 4.0]
        assert compiled(Plan((), layer), Layer(1)).tolist() == [3.0, 6.0]


# -- how long arguments live --------------------------------------------------------------------------------------


class Model:
    def __init__(self):
        self.w = hf.Variable([1.0, 2.0])
        self.inner = [hf.Variable([1.0, 1.0])]

    def __call__(self, x):
        return x * self.w + self.inner[0]

    @hf.compile
    def step(self, x):
        self.w.assign_add(x)
        return self(x)


class Net(hf.nn.Module):
    def __init__(self):
        super().__init__()
        self.dense = hf.nn.Linear(2, 2)

    def forward(self, x):
        return self.dense(x)


@dataclasses.dataclass
class Open:
    w: Any


def a_variable():
    return hf.Variable([1.0, 2.0])


def training_step(model, x):
    with hf.GradientTape() as tape:
        loss = hf.sum(model(x) ** 2)
    model.w.assign_sub(tape.gradient(loss, model.w))
    return loss


LIVES: dict[str, tuple[Callable[[], Any], Callable[..., Any], Callable[[Any], list[Any]]]] = {
    "Variable": (a_variable, lambda v, x: v * x, lambda v: [v]),
    "assigned Variable": (a_variable, lambda v, x: v.assign_add(x), lambda v: [v]),
    "list": (lambda: [a_variable()], lambda v, x: v[0] * x, lambda v: [*v]),
    "dict": (lambda: {"a": a_variable()}, lambda v, x: v["a"] * x, lambda v: [*v.values()]),
    "frozen dataclass": (lambda: Config(a_variable()), lambda v, x: v.k * x, lambda v: [v, v.k]),
    "nested dataclass": (lambda: Config(Config(a_variable())), lambda v, x: v.k.k * x, lambda v: [v, v.k.k]),
    "dataclass": (lambda: Open(a_variable()), lambda v, x: v.w * x, lambda v: [v, v.w]),
    "object": (Model, lambda v, x: v(x), lambda v: [v, v.w, *v.inner]),
    "object in a dict": (lambda: {"a": Model()}, lambda v, x: v["a"](x), lambda v: [v["a"], v["a"].w]),
    "object in a dataclass": (lambda: Config(Model()), lambda v, x: v.k(x), lambda v: [v, v.k, v.k.w]),
    "trained object": (Model, training_step, lambda v: [v, v.w, *v.inner]),
    "Module": (Net, lambda v, x: v(x), lambda v: [v, v.dense.weight]),
    "bound method": (lambda: Model().__call__, lambda v, x: v(x), lambda v: [v.__self__, v.__self__.w]),
}


@pytest.mark.parametrize("kind", LIVES)
def test_an_argument_is_freed_though_its_trace_was_made(kind):
    make, f, parts = LIVES[kind]
    compiled = hf.compile(f)
    alive: list[Any] = []
    for _ in range(3):
        value = make()
        for _ in range(3):
            compiled(value, x)
        alive += [weakref.ref(part) for part in parts(value)]
        del value
    gc.collect()
    assert not [one() for one in alive if one() is not None]
    assert compiled(make(), x) is not None


def test_a_method_of_a_temporary_object_frees_it():
    alive: list[Any] = []
    for _ in range(3):
        model = Model()
        model.step(x)
        alive += [weakref.ref(model), weakref.ref(model.w)]
        Model().step(x)
        del model
    gc.collect()
    assert not [one() for one in alive if one() is not None]


def test_a_trace_is_counted_when_its_argument_is_gone():
    compiled = hf.compile(lambda model, x: model(x))
    models = collections.deque([Model() for _ in range(4)])
    for model in models:
        compiled(model, x)
    del model
    assert compiled.cache_info().traces == 4
    while models:
        models.pop()
        gc.collect()
        assert compiled.cache_info().traces == len(models)
    assert compiled.trace_count == 4

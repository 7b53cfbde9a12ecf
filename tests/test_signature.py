"""What makes a new trace of a compiled function, and how long traces live."""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import gc
import itertools
import json
import math
import pickle
import re
import types
import weakref
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import jax
import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core.errors import (
    ArgumentError,
    ArgumentTypeError,
    DTypeError,
    MutationError,
    NumberRangeError,
    ParityError,
)

Point = collections.namedtuple("Point", ["x", "y"])


def ones(*shape: int, dtype: Any = np.float32) -> hf.Tensor:
    return hf.asarray(np.ones(shape, dtype))


def traces_of(fn, *calls, **options) -> int:
    """How many traces calls with these argument tuples make."""
    compiled = hf.compile(fn, **options)
    for args in calls:
        compiled(*args)
    return compiled.trace_count


# -- tensors ------------------------------------------------------------------------------------------------------


def test_dtype_and_shape_of_tensors_make_a_trace_and_values_do_not():
    def f(x):
        return x + x

    assert traces_of(f, (ones(2),), (ones(2) * 3,)) == 1
    assert traces_of(f, (ones(2),), (ones(3),)) == 2
    assert traces_of(f, (ones(2),), (ones(1, 2),)) == 2
    assert traces_of(f, (ones(2),), (ones(2, dtype=np.float64),)) == 2
    assert traces_of(f, (ones(2, dtype=np.int32),), (ones(2, dtype=np.uint32),)) == 2


def test_arrays_and_numpy_scalars_have_traces_of_their_own_by_dtype_and_shape():
    def f(x):
        return hf.multiply(x, 2)

    array = np.ones(3, np.float32)
    assert traces_of(f, (array,), (array + 1,)) == 1
    assert traces_of(f, (array,), (hf.asarray(array),), (jax.numpy.asarray(array),)) == 3
    assert traces_of(f, (np.float32(1),), (np.float32(2),), (hf.asarray(3.0),)) == 2
    assert traces_of(f, (np.float64(1),), (np.float32(1),), (np.int64(1),), (np.uint8(1),)) == 4
    assert hf.compile(f)(np.float64(1)).dtype == hf.float64


def test_explain_tells_an_array_and_a_tensor_apart():
    f = hf.compile(lambda x: x + x)
    f(np.ones(3, np.float32))
    f(hf.ones((3,)))
    assert f.explain()[-1].reason == "x: f32[3] (numpy.ndarray) -> f32[3] (a tensor)"


def test_a_list_of_arrays_is_a_list_of_what_they_are():
    compiled = hf.compile(lambda xs: [type(x) for x in xs] == [np.ndarray, np.float32, hf.Tensor])
    assert bool(compiled([np.ones(2), np.float32(1), hf.ones(())]))


def test_a_users_array_is_copied():
    compiled = hf.compile(lambda x: (x, hf.sum(x @ x)))
    array = np.full((512, 512), 2.0, np.float32)
    for _ in range(3):
        array[:] = 2.0
        same, total = compiled(array)
        array[:] = -1.0
        assert total.item() == 512**3 * 4.0
        assert (same.numpy() == 2.0).all()


def test_a_callers_view_of_other_memory_layouts():
    compiled = hf.compile(lambda x: x + 0)
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    for view in (array.T, array[::2], array[:, ::-1], np.asfortranarray(array)):
        np.testing.assert_array_equal(compiled(view).numpy(), view)


DTYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "bfloat16"]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2)])
def test_every_dtype_goes_in_and_out(dtype, shape):
    spec = hf.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    array = np.ones(shape, spec)
    result = hf.compile(lambda x: (x, hf.reshape(x, (-1,))))(array)
    assert [t.dtype for t in result] == [spec] * 2
    assert result[0].shape == shape
    np.testing.assert_array_equal(result[0].numpy(), array)


# -- structure ----------------------------------------------------------------------------------------------------


def test_structures_differ():
    def f(x):
        return jax.tree_util.tree_leaves(x)[0] * 2

    a = ones(2)
    assert traces_of(f, (a,), ([a],), ((a,),), ({"k": a},), ({"other": a},), ([a, a],), (Point(a, a),), ((a, a),)) == 8
    assert traces_of(f, ((a, None),), ((a, a),), ((a, 1),)) == 3
    assert traces_of(f, ([a, []],), ([a, ()],), ([a, {}],), ([a],)) == 4


def test_empty_structures_differ_from_those_left_out():
    compiled = hf.compile(lambda x, options=(): x * (2 if type(options) is dict else 3))
    assert compiled(ones(1), {}).tolist() == [2.0]
    assert compiled(ones(1)).tolist() == [3.0]
    assert compiled(ones(1), {}).tolist() == [2.0]
    assert compiled.trace_count == 2


def test_results_of_list_tuple_and_namedtuple_differ():
    compiled = hf.compile(lambda p: p)
    a = ones(2)
    assert type(compiled([a, a])) is list
    assert type(compiled((a, a))) is tuple
    assert type(compiled(Point(a, a))) is Point
    assert compiled.trace_count == 3


def test_dict_order_does_not_matter():
    compiled = hf.compile(lambda d, **options: d["a"] - d["b"] + options["c"] * options["e"])
    one, two = ones(2), ones(2) * 2
    first = compiled({"a": one, "b": two}, c=one, e=two)
    second = compiled({"b": two, "a": one}, e=two, c=one)
    assert compiled.trace_count == 1
    assert first.tolist() == second.tolist() == [1.0, 1.0]


def test_a_function_sees_dicts_in_the_order_of_the_call():
    def f(d, **options):
        total = hf.asarray(0.0)
        for value in [*d.values(), *d["inner"][0].values()] if "inner" in d else d.values():
            total = total * 10 + (value if isinstance(value, hf.Tensor) else 0)
        return {"total": total, "a": [{"y": total, "x": total * 2}], "P": Point(total, {"q": total, "p": total})}

    calls = [
        {"b": hf.asarray(1.0), "a": hf.asarray(2.0)},
        {"z": hf.asarray(1.0), "inner": ({"d": hf.asarray(3.0), "c": hf.asarray(4.0)},)},
        collections.defaultdict(int, {"b": hf.asarray(5.0), "a": hf.asarray(6.0)}),
    ]
    for d in calls:
        compiled = hf.compile(f)
        with hf.config.run_eagerly():
            again = compiled(d)
        eager = f(d)
        for result in (compiled(d), compiled(d), again):
            assert result["total"].item() == eager["total"].item()
            assert list(result) == ["total", "a", "P"]
            assert list(result["a"][0]) == ["y", "x"]
            assert list(result["P"].y) == ["q", "p"]
            assert type(result["P"]) is Point
    same = hf.compile(lambda d: d)
    assert type(same(calls[2])) is collections.defaultdict
    assert same(collections.OrderedDict(b=1.0, a=2.0))["b"] == 1.0


def test_dict_keys_that_cannot_be_sorted():
    with pytest.raises(ArgumentTypeError, match=r"(?s)argument 'd': a dict has keys that cannot be sorted.*one type"):
        hf.compile(lambda d: d[1])({1: ones(1), "a": ones(1)})


def chosen(x):
    d = {1: x, "a": x} if hf.sum(x) > 0 else {1: x, "a": -x}
    return d["a"]


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (lambda x: {1: x, "a": x}, "compile"),
        (lambda x: [collections.defaultdict(int, {1: x, "a": x})], "compile"),
        (chosen, "a branch or loop on tensors"),
    ],
)
def test_dicts_of_the_functions_own_with_keys_that_cannot_be_sorted(function, text):
    with pytest.raises(ArgumentTypeError, match=rf"(?s)^{text}: a dict has keys that cannot be sorted.*OrderedDict"):
        hf.compile(function)(ones(1))


@pytest.mark.parametrize("around", [lambda d: d, lambda d: [d], lambda d: {"in": d}])
def test_the_keys_of_an_ordered_dict_need_no_order(around):
    def f(nested):
        d = nested
        while type(d) is not collections.OrderedDict:
            d = d[0] if type(d) is list else d["in"]
        return {name: value for name, value in zip("abc", d.values(), strict=False)}, collections.OrderedDict(d)

    compiled = hf.compile(f)
    for keys in ([2.0, "a", (1,)], [(1,), 2.0, "a"], [2, "a", (1,)], ["a"]):
        d = around(collections.OrderedDict({key: ones(1) * number for number, key in enumerate(keys)}))
        for got, expected in zip(compiled(d), f(d), strict=True):
            assert repr(got) == repr(expected)
    assert compiled.trace_count == 4


class Foreign:
    """An array of another library."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **keywords):
        return self.array.__dlpack__(**keywords)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_arrays_of_other_libraries_are_tensors_to_functions():
    compiled = hf.compile(lambda x: hf.multiply(x, 2))
    array = np.ones(2, np.float32)
    assert compiled(Foreign(array)).tolist() == [2.0, 2.0]
    array[:] = 3.0
    assert compiled(Foreign(array)).tolist() == [6.0, 6.0]
    assert compiled.trace_count == 1
    with hf.config.run_eagerly():
        assert compiled(Foreign(array)).tolist() == [6.0, 6.0]


def test_registered_classes_are_structures():
    @jax.tree_util.register_pytree_node_class
    class Layer:
        def __init__(self, w, name):
            self.w, self.name = w, name

        def tree_flatten(self):
            return (self.w,), self.name

        @classmethod
        def tree_unflatten(cls, name, children):
            return cls(*children, name)

    compiled = hf.compile(lambda layer, x: Layer(layer.w * x, layer.name))
    result = compiled(Layer(ones(2), "a"), 3.0)
    assert type(result) is Layer
    assert (result.w.tolist(), result.name) == ([3.0, 3.0], "a")
    compiled(Layer(ones(2) * 5, "a"), 3.0)
    assert compiled.trace_count == 1
    compiled(Layer(ones(2), "b"), 3.0)
    assert compiled.trace_count == 2


# -- spellings ----------------------------------------------------------------------------------------------------


def test_positional_keyword_and_default_spellings_are_one_trace():
    @hf.compile
    def f(x, y=2, *, z=3):
        return x * y + z

    one = ones(2)
    for result in (f(one), f(x=one), f(one, 2), f(one, y=2, z=3), f(z=3, y=2, x=one)):
        assert result.tolist() == [5.0, 5.0]
    assert f.trace_count == 1
    assert f(one, 3).tolist() == [6.0, 6.0]
    assert f.trace_count == 2


def test_variadic_arguments():
    @hf.compile
    def f(x, /, *rest, scale=1, **named):
        return sum(rest, x) * scale + sum(named.values())

    one = ones(2)
    assert f(one, one, one, scale=2, a=one, b=one).tolist() == [8.0, 8.0]
    assert f(one, one, one, a=one, scale=2, b=one).tolist() == [8.0, 8.0]
    assert f.trace_count == 1
    assert f(one, one, one, b=one, a=one, scale=2).tolist() == [8.0, 8.0]
    assert f.trace_count == 2  # it runs over the keywords in their order
    assert f(one, one).tolist() == [2.0, 2.0]
    assert f(one, x=one).tolist() == [2.0, 2.0]  # a keyword of the name of a positional-only parameter
    assert f.trace_count == 4


@pytest.mark.parametrize(
    ("read", "traces"),
    [
        (lambda x, **named: x * named["a"] + named.get("b") + ("a" in named) + len(named), 1),
        (lambda x, **named: x * next(iter(named.values())), 2),
        (lambda x, **named: x * [*named.values()][0], 2),  # noqa: RUF015
        (lambda x, **named: {**named}, 2),
        (lambda x, **named: dict(named), 2),
        (lambda x, **named: named, 2),
    ],
)
def test_the_order_of_keywords_counts_where_it_is_read(read, traces):
    f = hf.compile(read)
    for named in ({"a": 2.0, "b": 3.0}, {"b": 3.0, "a": 2.0}, {"a": 4.0, "b": 5.0}):
        found, expected = f(hf.asarray(1.0), **named), read(1.0, **named)
        assert repr(jax.tree_util.tree_map(float, found)) == repr(jax.tree_util.tree_map(float, expected))
        assert list(found if traces == 2 and isinstance(found, dict) else ()) in ([], list(named))
    assert f.trace_count == traces


def test_types_of_keys_count():
    f = hf.compile(lambda x, table: x * sum(10 if type(key) is int else 1 for key in table))
    assert [f(hf.asarray(1.0), table).item() for table in ({1: 2.0}, {True: 2.0}, {1.0: 2.0})] == [10.0, 1.0, 1.0]
    assert f.trace_count == 3
    assert "int -> bool" in f.explain()[1].reason or "True" in f.explain()[1].reason


@dataclasses.dataclass(frozen=True)
class Settings:
    rate: float
    weights: object = None
    depth: int = 2


def test_equal_frozen_dataclasses_are_one_trace():
    f = hf.compile(lambda x, settings: x * settings.rate * settings.depth)
    assert [f(hf.asarray(1.0), Settings(2.0)).item() for _ in range(3)] == [4.0] * 3
    assert f.trace_count == 1
    assert f(hf.asarray(1.0), Settings(2.0, depth=3)).item() == 6.0


def test_tensors_and_variables_in_frozen_dataclasses_are_arguments():
    f = hf.compile(lambda x, settings: x * settings.weights["w"])
    for number in range(3):
        assert f(hf.asarray(1.0), Settings(2.0, {"w": hf.asarray(float(number))})).item() == number
    assert f.trace_count == 1
    variables = [hf.Variable(3.0), hf.Variable(4.0)]
    for variable in (*variables, variables[0]):
        assert f(hf.asarray(1.0), Settings(2.0, {"w": variable})).item() == variable.item()
    assert f.trace_count == 2
    weights = hf.asarray(2.0)
    with hf.GradientTape() as tape:
        tape.watch(weights)
        y = f(hf.asarray(3.0), Settings(2.0, {"w": weights}))
    assert tape.gradient(y, weights).item() == 3.0


def test_traces_of_objects_that_are_gone_make_room():
    class Model:
        def __init__(self):
            self.w = hf.Variable(2.0)

    f = hf.compile(lambda x, model: x * model.w)
    variables = []
    for _ in range(4):
        model = Model()
        variables.append(weakref.ref(model.w))
        assert f(hf.asarray(1.0), model).item() == 2.0
    del model
    f(hf.asarray(1.0), Model())
    assert len(f._traces) <= 2
    assert sum(one() is not None for one in variables) <= 1


def test_tensors_as_defaults():
    default = ones(2)

    @hf.compile
    def f(x, y=default):
        return x + y

    assert f(ones(2)).tolist() == [2.0, 2.0]
    assert f(ones(2), ones(2) * 3).tolist() == [4.0, 4.0]
    assert f.trace_count == 1


def test_wrong_arguments_say_what_the_signature_is():
    compiled = hf.compile(lambda x, y: x, name="area")
    for args, kwargs in (((1,), {}), ((1, 2, 3), {}), ((1, 2), {"z": 3}), ((1, 2), {"y": 3})):
        with pytest.raises(ArgumentTypeError, match=r"(?s)area: .*positional.*The signature is area\(x, y\)"):
            compiled(*args, **kwargs)
    assert compiled.trace_count == 0


def test_callables_that_are_no_functions():
    compiled = hf.compile(functools.partial(lambda a, b, c: a - b * c, 10, c=2))
    assert compiled(hf.asarray(3.0)).item() == 4.0

    class Callable:
        def __call__(self, x, scale=2):
            return x * scale

    assert hf.compile(Callable())(hf.asarray(3.0)).item() == 6.0
    assert hf.compile(Callable())(hf.asarray(3.0), scale=3).item() == 9.0


class NoSignature:
    """A callable for which Python knows no signature."""

    __signature__ = "unknown"

    def __call__(self, *args, **kwargs):
        return args[0] * args[1] - kwargs["offset"]


def test_a_callable_of_unknown_signature():
    compiled = hf.compile(NoSignature())
    assert compiled(ones(1), 3, offset=ones(1)).tolist() == [2.0]
    assert compiled(ones(1), 3, offset=ones(1)).tolist() == [2.0]
    assert compiled.trace_count == 1


# -- Python values ------------------------------------------------------------------------------------------------


def test_numbers_of_different_types_never_share_a_trace():
    compiled = hf.compile(lambda n: hf.asarray(n))
    results = [compiled(n) for n in (1, True, 1.0, 1 + 0j)]
    assert [str(r.dtype) for r in results] == ["int32", "bool", "float32", "complex64"]
    assert compiled.trace_count == 4
    assert [str(compiled(n).dtype) for n in (1 + 0j, 1.0, True, 1)] == ["complex64", "float32", "bool", "int32"]
    assert compiled.trace_count == 4


def test_minus_zero_and_nan():
    compiled = hf.compile(lambda n: hf.asarray(1.0) / hf.asarray(n))
    assert compiled(0.0).item() == math.inf
    assert compiled(-0.0).item() == -math.inf
    assert math.isnan(compiled(math.nan).item())
    assert math.isnan(compiled(float("nan")).item())
    assert compiled.trace_count == 1
    signs = hf.compile(lambda z: hf.asarray(1.0) / hf.asarray(z.imag))
    assert signs(complex(1, -0.0)).item() == -math.inf
    assert signs(complex(1, 0.0)).item() == math.inf


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        ("relu", "re" + "lu", "tanh"),
        (b"a", bytes([97]), b"b"),
        (None, None, 0),
        (Color.RED, Color(1), Color.BLUE),
        (Level.LOW, Level(1), 1),
        (slice(1, 2), slice(1, 2), slice(1, 2, 1)),
        (slice(0, 1), slice(0, 1), slice(False, 1)),
        (range(3), range(3), range(4)),
        (frozenset({1, 2}), frozenset({2, 1}), frozenset({True, 2})),
        (hf.float32, np.dtype("float32"), hf.float64),
        (float, float, int),
        (..., ..., None),
        (hf.TensorSpec([2]), hf.TensorSpec([2]), hf.TensorSpec([3])),
        ((1, (2.0, "a")), (1, (2.0, "a")), (1, (2, "a"))),
    ],
)
def test_python_values_are_compared_by_type_and_value(one, equal, other):
    def f(x, option):
        return x + 1

    x = ones(2)
    assert traces_of(f, (x, one), (x, equal)) == 1
    assert traces_of(f, (x, one), (x, other)) == 2


def test_frozen_dataclasses_are_compared_by_value_and_other_objects_by_identity():
    @dataclasses.dataclass(frozen=True)
    class Config:
        size: int
        rate: float = 0.5

    @dataclasses.dataclass
    class Mutable:
        size: int

    class Plain:
        def __eq__(self, other):
            return True

        def __hash__(self):
            return 1

    def f(x, config):
        return x * 2

    x = ones(2)
    assert traces_of(f, (x, Config(1)), (x, Config(1)), (x, Config(1, 0.5))) == 1
    assert traces_of(f, (x, Config(1)), (x, Config(True)), (x, Config(2)), (x, Config(1, 0))) == 4
    assert traces_of(f, (x, Config(1, [1])), (x, Config(1, [1])), (x, Config(1, [1.0]))) == 2
    mutable = Mutable(1)
    assert traces_of(f, (x, mutable), (x, mutable)) == 1
    assert traces_of(f, (x, Mutable(1)), (x, Mutable(1))) == 2
    assert traces_of(f, (x, Plain()), (x, Plain())) == 2


def test_a_changed_list_in_a_frozen_dataclass_is_seen():
    @dataclasses.dataclass(frozen=True)
    class Config:
        factors: list

    compiled = hf.compile(lambda x, config: x * sum(config.factors))
    config = Config([1.0])
    assert compiled(ones(1), config).tolist() == [1.0]
    config.factors.append(2.0)
    assert compiled(ones(1), config).tolist() == [3.0]


def test_functions_and_methods_as_arguments():
    class Model:
        def forward(self, x):
            return x * 2

        @hf.compile
        def step(self, x):
            return x * 3

    compiled = hf.compile(lambda fn, x: fn(x))
    model, other = Model(), Model()
    for _ in range(2):
        assert compiled(model.forward, ones(1)).tolist() == [2.0]  # a new bound method each time
    assert compiled.trace_count == 1
    for _ in range(2):
        assert compiled(model.step, ones(1)).tolist() == [3.0]
    assert compiled.trace_count == 2
    compiled(other.forward, ones(1))
    assert compiled.trace_count == 3
    compiled(lambda x: x, ones(1))
    compiled(lambda x: x, ones(1))
    assert compiled.trace_count == 5


def test_an_object_that_took_the_place_of_another_is_another():
    class Config:
        def __init__(self, n):
            self.n = n

    class Slotted:
        __slots__ = ("n",)

        def __init__(self, n):
            self.n = n

    for kind in (Config, Slotted):
        compiled = hf.compile(lambda x, config: x * config.n)
        for n in range(1, 15):
            assert compiled(ones(1), kind(n)).tolist() == [n]  # freed at once; its id is used again


# -- static_argnames ----------------------------------------------------------------------------------------------


def test_static_arguments_may_be_anything():
    compiled = hf.compile(lambda x, sizes: x * sum(sizes), static_argnames="sizes")
    assert compiled(ones(1), [1, 2]).tolist() == [3.0]
    assert compiled(ones(1), [1, 2]).tolist() == [3.0]
    assert compiled.trace_count == 1
    sizes = [1, 2]
    compiled(ones(1), sizes)
    sizes.append(4)
    assert compiled(ones(1), sizes).tolist() == [7.0]
    assert compiled.trace_count == 2


@pytest.mark.parametrize(
    ("one", "equal", "other"),
    [
        ([1, 2], [1, 2], [1, 2.0]),
        ((1, 2), (1, 2), (True, 2)),
        ([1, 2], [1, 2], (1, 2)),
        ({"a": 1}, {"a": 1}, {"a": True}),
        ({"a": 1, "b": 2}, {"a": 1, "b": 2}, {"b": 2, "a": 1}),  # the function may see the order
        ({1, 2}, {2, 1}, {1, 2.5}),
        (np.ones(2), np.ones(2), np.ones(2, np.float32)),
        (np.array([0.0]), np.array([0.0]), np.array([-0.0])),
        (np.float32(1), np.float32(1), 1.0),
        (0.0, 0.0, -0.0),
        ("a", "a", "b"),
        (Decimal("1.5"), Decimal("1.5"), Decimal("1.50")),
        ({"a": [Decimal("0")]}, {"a": [Decimal("0")]}, {"a": [Decimal("-0")]}),
        (datetime(2020, 1, 1, 12, tzinfo=UTC), datetime(2020, 1, 1, 12, tzinfo=UTC),
         datetime(2020, 1, 1, 14, tzinfo=timezone(timedelta(hours=2)))),
        (time(2), time(2), time(2, fold=1)),
    ],
)
def test_static_arguments_are_compared_by_type_and_value(one, equal, other):
    compiled = hf.compile(lambda x, option: x + 1, static_argnames=["option"])
    compiled(ones(1), one)
    compiled(ones(1), equal)
    compiled(ones(1), option=copy.deepcopy(one))
    assert compiled.trace_count == 1
    compiled(ones(1), other)
    assert compiled.trace_count == 2


def test_static_objects_use_their_own_equality_or_identity():
    class ByValue:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __hash__(self):
            return hash(self.n)

    class Unhashable:
        __hash__ = None

    compiled = hf.compile(lambda x, option: x + 1, static_argnames="option")
    for option in (ByValue(1), ByValue(1), ByValue(2)):
        compiled(ones(1), option)
    assert compiled.trace_count == 2
    one = Unhashable()
    for option in (one, one, Unhashable()):
        compiled(ones(1), option)
    assert compiled.trace_count == 4


def test_a_static_array_stays_an_array():
    compiled = hf.compile(lambda x, table: x * float(table[1]), static_argnames="table")
    assert compiled(ones(1), np.array([1.0, 5.0])).tolist() == [5.0]


def test_static_names_that_only_var_keywords_take():
    @hf.compile(static_argnames=("mode",))
    def f(x, **options):
        assert type(options["mode"]) is list
        return x * len(options["mode"]) + options["y"]

    for _ in range(2):
        assert f(ones(1), mode=[1, 2], y=np.float32(1)).tolist() == [3.0]
    assert f.trace_count == 1
    assert f(ones(1), mode=[1], y=np.float32(1)).tolist() == [2.0]


def test_unknown_static_names_and_other_bad_options():
    with pytest.raises(ArgumentError, match=r"(?s)static_argnames \['z'\] are no parameters of f.*Name parameters"):
        hf.compile(lambda x: x, static_argnames="z", name="f")
    with pytest.raises(ArgumentError, match="max_traces=0, which is less than 1"):
        hf.compile(lambda x: x, max_traces=0)
    with pytest.raises(ArgumentTypeError, match=r"compile: an int is not callable(.|\n)*Pass a function"):
        hf.compile(3)


def test_compiling_a_compiled_function_compiles_the_function():
    inner = hf.compile(lambda x: x + 1)
    outer = hf.compile(inner)
    assert outer.python_function is inner.python_function
    assert outer(ones(1)).tolist() == [2.0]
    assert (inner.trace_count, outer.trace_count) == (0, 1)


# -- Variables ----------------------------------------------------------------------------------------------------


def test_variables_are_known_by_spec_and_aliasing():
    compiled = hf.compile(lambda v, w: v * 10 + w)
    a, b, c = hf.Variable(1.0), hf.Variable(2.0), hf.Variable(3.0)
    assert compiled(a, b).item() == 12.0
    assert compiled(b, c).item() == 23.0
    assert compiled.trace_count == 1
    assert compiled(a, a).item() == 11.0
    assert compiled(c, c).item() == 33.0
    assert compiled.trace_count == 2
    assert compiled(hf.Variable(1), hf.Variable(2.0)).item() == 12.0
    assert compiled(hf.Variable(1.0, trainable=False), b).item() == 12.0
    assert compiled.trace_count == 4
    assert compiled(a.read(), b).item() == 12.0
    assert compiled.trace_count == 5


# -- the cache ----------------------------------------------------------------------------------------------------


def test_the_least_recently_used_trace_is_dropped():
    compiled = hf.compile(lambda x: x + 1, max_traces=2, dynamic=False)
    compiled(ones(1))
    compiled(ones(2))
    compiled(ones(1))
    compiled(ones(3))  # drops the trace of two elements
    assert compiled.trace_count == 3
    compiled(ones(1))
    assert compiled.trace_count == 3
    compiled(ones(2))
    assert compiled.trace_count == 4
    info = compiled.cache_info()
    assert (info.max_traces, info.traces, info.executables) == (2, 2, 2)
    assert compiled.compile_count == 4


def test_a_cache_of_one_trace():
    compiled = hf.compile(lambda x: x + 1, max_traces=1)
    for size in (1, 2, 1, 1):
        assert compiled(ones(size)).tolist() == [2.0] * size
    assert compiled.trace_count == 3


def test_cache_info_counts():
    compiled = hf.compile(lambda x, n: x + n)
    assert tuple(compiled.cache_info()) == (0, 0, 64, 0, 0)
    assert (compiled.trace_count, compiled.compile_count) == (0, 0)
    compiled(ones(1), 1)
    compiled(ones(1), 1)
    compiled(ones(1), 2)
    info = compiled.cache_info()
    assert (info.hits, info.misses, info.traces, info.executables) == (1, 2, 2, 2)
    assert compiled.compile_count == 2
    compiled.clear_cache()
    assert compiled.cache_info().traces == compiled.cache_info().executables == 0
    assert (compiled.trace_count, compiled.compile_count) == (2, 2)
    compiled(ones(1), 1)
    assert (compiled.trace_count, compiled.compile_count) == (3, 3)


def test_clearing_the_cache_of_a_function_of_plain_tensors():
    compiled = hf.compile(lambda x: x + 1)
    compiled(ones(1))
    compiled.clear_cache()
    assert compiled(ones(1)).tolist() == [2.0]
    assert compiled.trace_count == 2


def test_functions_graphs_and_what_they_close_over_are_freed():
    class Big:
        pass

    def make():
        big, captured = Big(), ones(1000)

        @hf.compile
        def f(x, config=None):
            _ = big
            return x + captured

        graph = f.graph(ones(1000))
        f(ones(1000), big)
        return f, [weakref.ref(o) for o in (f, f.python_function, big, captured, graph, graph.nodes[0])]

    f, references = make()
    del f
    gc.collect()
    assert [reference() for reference in references] == [None] * len(references)


def test_arguments_are_not_kept_alive():
    class Config:
        pass

    compiled = hf.compile(lambda v, x, config: v * x)
    config, variable, x = Config(), hf.Variable(2.0), ones(3)
    references = [weakref.ref(o) for o in (config, variable, x)]
    compiled(variable, x, config)
    del config, variable, x
    gc.collect()
    assert [reference() for reference in references] == [None] * 3


def test_an_executable_dies_with_its_trace():
    compiled = hf.compile(lambda x: x + 1, max_traces=1)
    lowered = compiled.lower(ones(1))
    references = [weakref.ref(lowered.graph), weakref.ref(lowered.traced)]
    del lowered
    compiled(ones(2))
    gc.collect()
    assert [reference() for reference in references] == [None, None]


# -- methods ------------------------------------------------------------------------------------------------------


class Model:
    def __init__(self, factor):
        self.factor = hf.Variable(factor)

    @hf.compile
    def forward(self, x):
        """Multiply."""
        return self.factor * x


def test_methods_have_a_cache_per_instance_that_is_freed_with_it():
    one, two = Model(1.0), Model(2.0)
    x = ones(2)
    assert one.forward(x).tolist() == [1.0, 1.0]
    assert two.forward(x=x).tolist() == [2.0, 2.0]
    one.forward(x)
    assert (one.forward.trace_count, two.forward.trace_count, Model.forward.trace_count) == (1, 1, 0)
    assert len(Model.forward._instances) >= 2
    reference, cache = weakref.ref(one), weakref.ref(one.forward.__func__)
    del one
    gc.collect()
    assert reference() is None
    assert cache() is None
    assert Model.forward(two, x).tolist() == [2.0, 2.0]
    assert Model.forward.__name__ == "forward"
    assert Model.forward.__doc__ == "Multiply."
    assert "CompiledMethod" in repr(two.forward)
    assert "Model" in repr(two.forward)
    assert "multiply" in str(two.forward.graph(x))
    assert "multiply" in two.forward.lower(x).as_text("graph")


def test_a_method_of_a_temporary_object():
    for factor in (2.0, 3.0, 4.0):
        assert Model(factor).forward(ones(1)).tolist() == [factor]
    gc.collect()
    method = Model(5.0).forward  # keeps its instance
    gc.collect()
    assert method(ones(1)).tolist() == [5.0]


def test_methods_of_objects_that_are_unhashable_slotted_or_equal():
    @dataclasses.dataclass
    class Data:  # unhashable, and equal to others
        n: int

        @hf.compile
        def times(self, x):
            return x * self.n

    class Slotted:
        __slots__ = ("n",)

        def __init__(self, n):
            self.n = n

        @hf.compile
        def times(self, x):
            return x * self.n

    for kind in (Data, Slotted):
        one, equal, other = kind(2), kind(2), kind(3)
        assert one.times(ones(1)).tolist() == [2.0]
        assert equal.times(ones(1)).tolist() == [2.0]
        assert other.times(ones(1)).tolist() == [3.0]
        assert one.times(ones(1)).tolist() == [2.0]
        assert "times" in repr(one.times)
        assert one.times.trace_count > 0
        assert kind(7).times(ones(1)).tolist() == [7.0]


def test_a_method_of_a_structure_traces_through_the_instance():
    class Scaled(collections.namedtuple("Scaled", ["w", "b"])):
        @hf.compile
        def apply(self, x):
            return self.w * x + self.b

    assert Scaled(ones(1), ones(1)).apply(2.0).tolist() == [3.0]
    assert Scaled(ones(1) * 5, ones(1)).apply(2.0).tolist() == [11.0]
    assert Scaled.apply.trace_count == 1


def test_compiled_functions_in_classes_of_other_kinds():
    class Tools:
        @staticmethod
        @hf.compile
        def double(x):
            return x * 2

        @classmethod
        @hf.compile
        def named(cls, x):
            return x * len(cls.__name__)

    class Child(Model):
        @hf.compile
        def forward(self, x):
            return super().forward(x) + 1

    assert Tools.double(ones(1)).tolist() == Tools().double(ones(1)).tolist() == [2.0]
    assert Tools.named(ones(1)).tolist() == [5.0]
    assert Child(3.0).forward(ones(1)).tolist() == [4.0]


def test_a_compiled_function_as_an_attribute():
    class Trainer:
        def __init__(self):
            self.v = hf.Variable(2.0)
            self.step = hf.compile(self._step)

        def _step(self, x):
            return self.v * x

    trainer = Trainer()
    assert trainer.step(ones(1)).tolist() == [2.0]
    assert copy.copy(trainer).step is trainer.step
    copied = copy.deepcopy(trainer)  # a method is copied with its instance
    copied.v.assign(5.0)
    assert copied.step(ones(1)).tolist() == [5.0]
    assert trainer.step(ones(1)).tolist() == [2.0]


@hf.compile
def at_the_top(x):
    return x + 1


def test_functions_are_copied_and_pickled_like_pythons():
    assert copy.deepcopy(at_the_top) is at_the_top
    assert pickle.loads(pickle.dumps(at_the_top)) is at_the_top
    again = pickle.loads(pickle.dumps(hf.compile(not_at_the_top, dynamic=False)))  # no name leads to it
    assert again(ones(1)).tolist() == [3.0]
    assert again._options["dynamic"] is False


def not_at_the_top(x):
    return x + 2


class WithMethods:
    def __init__(self):
        self.k = 2.0

    def _plain(self, x):
        return x * self.k

    step = hf.compile(_plain)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda method: pickle.loads(pickle.dumps(method))])
def test_a_copied_method_reads_its_own_instance(copied):
    method = WithMethods().step
    assert method(ones(1)).tolist() == [2.0]
    assert copy.copy(method) is method
    other = copied(method)
    assert type(other) is type(method)
    assert other.__self__ is not method.__self__
    other.__self__.k = 5.0
    for _ in range(2):
        assert (other(ones(1)).tolist(), method(ones(1)).tolist()) == ([5.0], [2.0])


def test_compiled_methods_are_equal_like_bound_methods():
    one, other = WithMethods(), WithMethods()
    assert one.step == one.step
    assert one.step not in (other.step, 1)
    assert len({one.step, one.step, other.step}) == 2


def test_attributes_of_compiled_functions_are_state_like_those_of_functions():
    @hf.compile
    def counted(x):
        counted.calls += 1
        return x * counted.calls * getattr(counted, "factor", 1.0)

    counted.calls = 0
    assert [counted(ones(1)).tolist() for _ in range(3)] == [[1.0], [2.0], [3.0]]
    assert counted.calls == 3
    counted.factor = 5.0
    assert counted(ones(1)).tolist() == [20.0]
    reader = hf.compile(lambda x: x * counted.factor)
    assert reader(ones(1)).tolist() == [5.0]
    counted.factor = 7.0
    assert reader(ones(1)).tolist() == [7.0]


def test_a_compiled_method_has_the_attributes_of_its_function():
    class Model:
        @hf.compile
        def step(self, x):
            Model.step.calls += 1
            return x * self.step.calls

    Model.step.calls = 0
    model = Model()
    assert [model.step(ones(1)).tolist() for _ in range(3)] == [[1.0], [2.0], [3.0]]
    assert model.step.calls == Model.step.calls == 3


# -- arguments stay what they were --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "argument"),
    [
        (lambda xs, d: xs.append(xs[0]), "xs"),
        (lambda xs, d: xs.pop(), "xs"),
        (lambda xs, d: xs.__setitem__(0, xs[0] * 2), "xs"),
        (lambda xs, d: d.update(b=1), "d"),
        (lambda xs, d: d["inner"].append(2), "d"),
        (lambda xs, d: d.update({3: 1}), "d"),  # keys that cannot be sorted
    ],
)
def test_changing_an_argument_is_an_error(change, argument):
    @hf.compile
    def f(xs, d):
        change(xs, d)
        return hf.asarray(1.0)

    xs, d = [ones(1), ones(1)], {"inner": [1]}
    with pytest.raises(MutationError, match=rf"(?s)f changed its argument '{argument}'.*Build a new structure"):
        f(xs, d)
    assert (len(xs), d) == (2, {"inner": [1]})
    assert f.trace_count == 0
    with pytest.raises(MutationError):  # and the retry finds no trace
        f(xs, d)


def test_a_method_of_a_changed_argument_is_named():
    def swapping(pair):
        pair[0], pair[1] = pair[1], pair[0]
        return pair[0]

    with pytest.raises(MutationError, match="swapping changed its argument 'pair'"):
        hf.compile(swapping)([ones(1), ones(1)])


WHOLE = {
    "json": lambda rows: json.dumps(rows),
    "text": lambda rows: f"{rows}",
    "repr": lambda rows: repr(rows),
    "percent": lambda rows: "%s" % (rows,),  # noqa: UP031 (the way of writing is the test)
    "format": lambda rows: "{}".format(rows),  # noqa: UP032 (the way of writing is the test)
    "copy": lambda rows: str(copy.deepcopy(rows)),
    "pickle": lambda rows: str(pickle.dumps(rows)),
    "map": lambda rows: str([*map(list, [rows])]) if isinstance(rows, dict) else str([*map(list, rows)]),
    "chain": lambda rows: str([*itertools.chain.from_iterable([rows] if isinstance(rows, dict) else rows)]),
    "in a list": lambda rows: str([rows, 1]),
    "in an object": lambda rows: str(types.SimpleNamespace(rows=rows)),
    "unconverted": lambda rows: plainly(rows),
}


@hf.no_convert
def plainly(rows):
    return str([*rows] if isinstance(rows, dict) else [*rows[0]])


@pytest.mark.parametrize("way", WHOLE)
@pytest.mark.parametrize("make", [lambda row: row, lambda row: [row], lambda row: collections.defaultdict(int, row)])
def test_the_order_of_a_dict_counts_where_it_is_read_as_a_whole(way, make):
    def f(x, rows):
        return x * WHOLE[way](rows).index("a")

    def named(x, **rows):
        return x * WHOLE[way](rows).index("a")

    rows = [{"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1, "b": 2}]
    compiled, of_named = hf.compile(f), hf.compile(named)
    for row in rows:
        assert compiled(ones(1), make(row)).item() == f(ones(1), make(row)).item()
        assert of_named(ones(1), **row).item() == named(ones(1), **row).item()
    assert compiled.trace_count == 2


NUMBERS = [1e300, -1e300, 1e-300, 2.5, 0.1, 123456789.123, 0.0, -0.0, 1e-40, math.inf, math.nan, 1, -7, 2**31,
           2**53 + 1, -(2**63), 2**70, True, False, 1j, complex(0.1, 1e300)]
RETURNS = {
    "an argument": lambda x, a: (x, a),
    "in structures": lambda x, a: [{"lr": a, "x": x}, (a, None)],
    "alone": lambda x, a: a,
    "computed": lambda x, a: (x, a * 1, a + 0, -a),
    "by a tensor": lambda x, a: (x, a if x.sum() > 0 else -a),
    "of a compiled function": lambda x, a: (x, inner(x, a)),
    "counted": lambda x, a: (x, sum([a for row in x if row > 0])),
    "a size": lambda x, a: (x, x.shape[0], x.shape[0] * 2, x.size / 4),
}
inner = hf.compile(lambda x, a: [x * 2, a][1])
REFUSED = {
    NumberRangeError: "more than 64 bits|larger than 2|does not fit (int64|complex64)",
    DTypeError: "as a tensor decides, is returned",  # True or -1, 0 or 0.5
    ParityError: "dtype complex128 eager, complex64 compiled",  # complex numbers are no staged numbers
}


@pytest.mark.parametrize("kind", [bool, int, float, complex])
@pytest.mark.parametrize("way", RETURNS)
def test_numbers_among_the_results_are_those_of_eager_code(way: str, kind: type):
    f = RETURNS[way]
    compiled, verified = hf.compile(f), hf.compile(f, verify=1)
    for number in [one for one in NUMBERS if type(one) is kind]:
        for x in (ones(3), ones(4)):
            with hf.config.run_eagerly():
                expected = repr(f(x, number))
            try:
                found = [repr(compiled(x, number)), repr(verified(x, number))]
            except tuple(REFUSED) as error:
                refusal = error
            else:
                assert found == [expected] * 2
                continue
            assert re.search(REFUSED[type(refusal)], str(refusal))
            assert way in ("by a tensor", "counted") or abs(number) >= 2**62

"""`input_signature`, `dynamic=` and `.concrete`: traces with open sizes."""

import collections
import contextlib
import copy
import datetime
import decimal
import fractions
import functools
import inspect
import json
import operator
import pickle
import statistics
import types
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hybridflow as hf
from hybridflow.core import errors


def batch(n, dtype=np.float32):
    return np.arange(n * 3, dtype=dtype).reshape(n, 3)


def centred(x):
    return (x - hf.mean(x, axis=0)) / x.shape[0], x.shape[0]


class Model:
    def __init__(self, scale=2.0):
        self.scale = hf.Variable(scale)

    @hf.compile(input_signature=[hf.TensorSpec([None, 3])])
    def run(this, x):  # noqa: N805
        return hf.sum(x * this.scale, axis=0)


class Slotted:
    __slots__ = ("scale",)  # cannot be referenced weakly: the instance is an argument

    def __init__(self):
        self.scale = hf.Variable(3.0)

    @hf.compile(input_signature=[hf.TensorSpec([None, 3])])
    def run(me, x):  # noqa: N805
        return hf.sum(x * me.scale, axis=0)


# -- input_signature ----------------------------------------------------------------------------------------------


def test_one_trace_for_every_batch_size():
    f = hf.compile(centred, input_signature=[hf.TensorSpec([None, 3])], sizes="exact")
    for n in (4, 1, 2, 7, 4):
        found, size = f(batch(n))
        expected, _ = centred(hf.asarray(batch(n)))
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-5, atol=1e-6)
        assert size == n
    assert f.trace_count == 1
    assert f.compile_count == f.cache_info().executables == f.explain()[0].compiles == 4
    assert "f32[?,3]" in str(f.explain())
    assert "4 compile(s)" in str(f.explain())
    assert f.graph(batch(9)).input_specs[0].shape[1] == 3


@pytest.mark.parametrize("kind", [Model, Slotted])
def test_methods_whatever_the_first_parameter_is_called(kind):
    model = kind()
    for n in (2, 5):
        np.testing.assert_allclose(model.run(batch(n)).numpy(), batch(n).sum(0) * model.scale.item())
    assert model.run.trace_count == 1
    with pytest.raises(TypeError, match=r"run: argument 'x' is numpy f32\[3\], its input_signature is f32\[\?,3\]"):
        model.run(np.zeros(3, np.float32))


def test_lists_and_arrays_are_cast():
    f = hf.compile(lambda x, n: x + n, input_signature=[hf.TensorSpec([None]), hf.TensorSpec([], hf.int32)])
    for value in ([1, 2, 3], (1.0, 2.0), np.arange(3), np.arange(3.0), np.float32([1, 2])):
        assert f(value, 1).dtype == np.float32
    assert f.trace_count == 1


def test_inside_another_compiled_function():
    inner = hf.compile(lambda x, k=2: x * k + x.shape[0], input_signature=[hf.TensorSpec([None, 3])])
    outer = hf.compile(lambda x: inner(x) + inner([x[0], x[1]])[0])
    for n in (2, 3, 4):
        np.testing.assert_array_equal(outer(hf.ones((n, 3))).numpy(), np.full((n, 3), 2.0 + n + 4))
    assert (outer.trace_count, inner.trace_count) == (2, 0)
    with pytest.raises(TypeError, match=r"argument 'x' is f32\[2,4\], its input_signature is f32\[\?,3\]"):
        hf.compile(lambda x: inner(x))(hf.ones((2, 4)))


class Holder:
    @staticmethod
    @hf.compile(input_signature=[hf.TensorSpec([None])])
    def plain(x):
        return x + 1

    @classmethod
    @hf.compile(input_signature=[hf.TensorSpec([None])])
    def of_class(cls, x):
        return x + 2


def test_static_and_class_methods():
    for n in (1, 3):
        assert Holder.plain([0.0] * n).tolist() == Holder().plain([0.0] * n).tolist() == [1.0] * n
        assert Holder.of_class([0.0] * n).tolist() == Holder().of_class([0.0] * n).tolist() == [2.0] * n


class Doubling:
    factor = 2.0

    @classmethod
    @hf.compile
    def scaled(cls, x):
        return x * cls.factor


class Tripling(Doubling):
    factor = 3.0


def test_class_methods_read_their_own_class(monkeypatch):
    both = hf.compile(lambda x: Doubling.scaled(x) + Tripling.scaled(x))
    assert [Doubling.scaled(1.0), Tripling.scaled(1.0), Doubling().scaled(1.0)] == [2, 3, 2]
    assert both(1.0) == 5
    monkeypatch.setattr(Doubling, "factor", 7.0)
    assert [Doubling.scaled(1.0), Tripling.scaled(1.0), both(1.0)] == [7, 3, 10]
    given = hf.compile(lambda kind, x: x * kind.factor)  # a class that is an argument like others
    assert [given(Doubling, 1.0), given(Tripling, 1.0)] == [7, 3]


def test_a_methods_signature_leaves_out_the_instance():
    class Model:
        @hf.compile
        def __call__(self, x, n=2):
            return x * n

    assert str(inspect.signature(Model())) == str(inspect.signature(Model().__call__)) == "(x, n=2)"
    assert str(inspect.signature(Model.__call__)) == "(self, x, n=2)"


class Pair(NamedTuple):
    left: object
    right: object


def test_structures_of_specs():
    spec = {"a": hf.TensorSpec([None, 2]), "b": Pair(hf.TensorSpec([None]), [hf.TensorSpec([2])])}
    f = hf.compile(lambda t: t["a"] * t["b"].right[0] + t["b"].left[:1], input_signature=[spec])
    for n in (2, 3):
        value = {"a": np.ones((n, 2)), "b": Pair([1.0] * n, [[1.0, 2.0]])}
        assert f(value).numpy().tolist() == [[2.0, 3.0]] * n
    assert f.trace_count == 1
    with pytest.raises(TypeError, match=r"argument \"t\['b'\]\.right\[0\]\" is list f32\[1\], .* is f32\[2\]"):
        f({"a": np.ones((2, 2)), "b": Pair([1.0], [[1.0]])})
    with pytest.raises(TypeError, match=r"argument 't' has another structure than its input_signature\n  got: list"):
        f([1.0])


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.zeros((2, 4), np.float32), r"numpy f32\[2,4\]"),
        (hf.zeros((2, 3, 1)), r"f32\[2,3,1\]"),
        (hf.zeros((2, 3), dtype=hf.float64), r"f64\[2,3\]"),
        (np.zeros((2, 3), np.complex64), r"numpy c64\[2,3\]"),
        ([[1.0, 2.0]], r"list f32\[1,2\]"),
        ("text", "'text'"),
        (None, "None"),
    ],
)
def test_what_does_not_fit_is_refused_with_both(value, shown, compiled):
    f = hf.compile(lambda x: x, input_signature=[hf.TensorSpec([None, 3])])
    text = rf"<lambda>: argument 'x' is {shown}, its input_signature is f32\[\?,3\]"
    with contextlib.nullcontext() if compiled else hf.config.run_eagerly(), pytest.raises(TypeError, match=text):
        f(value)
    assert f.trace_count == 0


def test_what_an_input_signature_is():
    with pytest.raises(ValueError, match="input_signature has 2 entries, <lambda> takes 1 arguments"):
        hf.compile(lambda x: x, input_signature=[hf.TensorSpec([]), hf.TensorSpec([])])
    with pytest.raises(TypeError, match="input_signature has 3 for 'x', which is no TensorSpec"):
        hf.compile(lambda x: x, input_signature=[3])


def test_variables_and_gradients_with_open_sizes():
    w = hf.Variable(np.ones((3, 2), np.float32))

    @hf.compile(input_signature=[hf.TensorSpec([None, 3])])
    def step(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.tanh(x @ w) ** 2)
        gradient = tape.gradient(loss, w)
        w.assign_sub(0.1 * gradient)
        return gradient

    for n in (2, 1, 4):
        before = hf.Variable(w.read())
        x = hf.asarray(batch(n)) * 0.1
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.tanh(x @ before) ** 2)
        expected = tape.gradient(loss, before)
        np.testing.assert_allclose(step(x).numpy(), expected.numpy(), rtol=1e-5, atol=1e-7)
        np.testing.assert_allclose(w.numpy(), (before - 0.1 * expected).numpy(), rtol=1e-5)
    assert step.trace_count == 1


def test_a_tape_around_a_call_with_open_sizes():
    f = hf.compile(lambda x: hf.sum(x * x, axis=0) * x.shape[0], input_signature=[hf.TensorSpec([None, 3])])
    for n in (2, 5, 1, 2):
        x = hf.asarray(batch(n))
        with hf.GradientTape() as outer:
            outer.watch(x)
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            first = tape.gradient(y, x)
        np.testing.assert_allclose(first.numpy(), 2 * n * batch(n))
        np.testing.assert_allclose(outer.gradient(first, x).numpy(), np.full((n, 3), 2.0 * n))
    assert f.trace_count == 1


# -- dynamic ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", ["auto", True])
def test_only_the_sizes_that_differ_are_opened(dynamic):
    f = hf.compile(lambda x, y: (x @ y).sum(), dynamic=dynamic)
    y = hf.ones((3, 4))
    for n in (2, 5, 6, 7):
        assert f(batch(n), y).item() == batch(n).sum() * 4
    assert f.trace_count == 2
    specs = [record.signature for record in f.explain()]
    assert specs == [{"x": "f32[2,3]", "y": "f32[3,4]"}, {"x": "f32[5,3] as f32[?,3]", "y": "f32[3,4]"}]
    assert f.explain()[1].reason == "x: f32[2,3] -> f32[5,3]"


def test_the_most_specific_trace_is_used():
    f = hf.compile(lambda x: x + 1)
    for n in (2, 3, 4):
        f(batch(n))
    assert f.trace_count == 2
    f(np.zeros((4, 5), np.float32))  # another axis differs: both are open now
    assert f.trace_count == 3
    assert f.explain()[2].signature == {"x": "f32[4,5] as f32[?,?]"}
    for x, spec in [(batch(2), "f32[2,3]"), (batch(9), "f32[x_0,3]"), (np.zeros((7, 6), np.float32), "f32[x_0,x_1]")]:
        assert str(f.graph(x).input_specs[0]) == spec
    assert f.trace_count == 3


def test_sizes_0_and_1_have_their_own_traces():
    f = hf.compile(lambda x: x * 2)
    for n in (4, 5, 1, 0, 6, 1, 0):
        assert f(batch(n)).shape == (n, 3)
    assert [record.signature["x"] for record in f.explain()] == [
        "f32[4,3]", "f32[5,3] as f32[?,3]", "f32[1,3]", "f32[0,3]",
    ]


def test_without_dynamic_every_shape_is_a_trace():
    f = hf.compile(lambda x: x * 2, dynamic=False)
    for n in (2, 3, 4):
        f(batch(n))
    assert f.trace_count == 3


def test_what_the_code_asks_of_a_size_is_a_guard():
    f = hf.compile(lambda x: x * 2 if x.shape[0] > 4 else x)
    for n in (2, 3, 4, 5, 6, 3):
        np.testing.assert_array_equal(f(batch(n)).numpy(), batch(n) * (2 if n > 4 else 1))
    assert f.trace_count == 3
    assert f.explain()[2].reason == "sizes: x_0 > 4 is False -> True for x_0=5"
    assert "guard x_0 > 4 is True" in str(f.graph(batch(7)))


def test_code_that_needs_the_number_is_traced_by_size_again():
    f = hf.compile(lambda x: x * float(x.shape[0]))
    for n in [*range(2, 14), 3, 3]:
        np.testing.assert_array_equal(f(batch(n)).numpy(), batch(n) * n)
    assert f.trace_count == 12
    assert f.explain()[-1].signature == {"x": "f32[13,3]"}  # opening sizes was of no use here


def test_sizes_are_numbers_to_the_code():
    def f(x):
        n = x.shape[0]
        assert isinstance(n, int)
        return hf.asarray(n), hf.asarray([n, 3]), x * n, n * x, n - x, hf.sum(x) / n, x.reshape((n * 3,)), [n, n + 1]

    compiled = hf.compile(f)
    for n in (2, 3, 4):
        for a, b in zip(compiled(hf.asarray(batch(n))), f(hf.asarray(batch(n))), strict=True):
            if isinstance(b, list):
                assert [*a] == b
            else:
                assert (a.dtype, a.shape) == (b.dtype, b.shape)
                np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6)
    assert compiled.trace_count == 2


def floats_of_sizes(x):
    n = x.shape[0]
    scale = 1.0 / n
    wide = hf.asarray(n * 0.5 + 1, dtype=hf.float64)
    powers = x * n**-0.5, x ** (1 / n)
    return hf.mean(x) * scale, powers, n * 0.5, [n / 3, 1.0], wide, hf.full((2,), scale), -(n / 4) * x


def test_floats_made_of_sizes_need_no_trace_of_their_own():
    f = hf.compile(floats_of_sizes, input_signature=[hf.TensorSpec([None])])
    for n in (4, 2, 7):
        x = hf.arange(n, dtype=hf.float32) + 1
        for a, b in zip(jax.tree.leaves(f(x)), jax.tree.leaves(floats_of_sizes(x)), strict=True):
            assert type(a) is type(b)
            assert np.asarray(a).dtype == np.asarray(b).dtype
            np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-6)
    assert f.trace_count == 1
    with pytest.raises(ZeroDivisionError):
        hf.compile(lambda x: x * (1 / (x.shape[0] - 2)), input_signature=[hf.TensorSpec([None])])([1.0, 2.0])


def by_item(d, key):
    d[key] = 1


def more(d, key):
    d[key] += 1


def asked_first(d, key):
    if key not in d:
        d[key] = 1


def by_loop(d, key):
    for d[key] in range(2):
        pass


STORES = [
    (dict, by_item),
    (dict, asked_first),
    (dict, by_loop),
    (dict, lambda d, key: operator.setitem(d, key, 1)),
    (dict, lambda d, key: d.update({key: 1})),
    (dict, lambda d, key: d.setdefault(key, []).append(1)),
    (dict, lambda d, key: by_item(d.setdefault("in", {}), key)),
    (collections.OrderedDict, by_item),
    (collections.Counter, more),
    (functools.partial(collections.defaultdict, list), lambda d, key: d[key]),
    (functools.partial(collections.defaultdict, int), more),
    (collections.UserDict, by_item),
    (collections.UserDict, lambda d, key: d.update({key: 1})),
    (collections.ChainMap, by_item),
]
KEYS = [lambda n: n, lambda n: n * 2 + 1, lambda n: n / 2, lambda n: (n, "a"), lambda n: frozenset([n])]


@pytest.mark.parametrize(("make", "store"), STORES)
def test_a_size_that_is_a_key_is_a_number(make, store):
    def step_of(d, key_of):
        def step(x):
            store(d, key_of(x.shape[0]))
            return x * 1.0

        return step

    for key_of in KEYS:
        held = make(), make()
        steps = step_of(held[0], key_of), hf.compile(step_of(held[1], key_of))
        for n in (5, 4, 6, 4):
            for step in steps:
                step(batch(n))
        assert repr(held[0]) == repr(held[1])


def test_a_size_that_leaks_raises(monkeypatch):
    monkeypatch.setattr(hf.config, "kept", None, raising=False)  # nobody looks into hybridflow's own modules

    @hf.no_convert
    def keep(size):
        hf.config.kept = size

    @hf.compile(input_signature=[hf.TensorSpec([None])])
    def f(x):
        keep(x.shape[0])
        return x

    f([1.0, 2.0])
    with pytest.raises(errors.LeakError, match="the size x_0 was kept while a compiled function was traced"):
        hf.asarray(hf.config.kept)


@pytest.mark.parametrize(
    "make",
    [hf.zeros, hf.random.normal, hf.random.permutation, hf.eye, lambda n: hf.broadcast_to(1.0, (n,)),
     lambda n: hf.nn.one_hot([0], n)],
)
def test_a_size_that_falls_below_0_is_an_error_of_its_call(make):
    f = hf.compile(lambda x, n: make(x.shape[0] - n))
    for n in (2, 3, 5, 9, 4, 11):
        if n > 6:
            with pytest.raises(errors.ShapeError, match="is not a size"):
                f(hf.ones(6), n)
            with pytest.raises(errors.ShapeError, match=f"{6 - n} is not a size"):
                make(6 - n)
        else:
            assert f(hf.ones(6), n).shape == make(6 - n).shape


def test_a_size_that_an_error_takes_out_raises():
    @hf.compile(input_signature=[hf.TensorSpec([None])])
    def f(x):
        raise LookupError(x.shape[0])

    with pytest.raises(errors.MutationError, match="f stores a size outside of itself that its signature leaves open"):
        f([1.0, 2.0])


def test_executables_of_a_trace_are_bounded(monkeypatch):
    monkeypatch.setattr("hybridflow.tracing.choice.EXECUTABLES", 2)
    f = hf.compile(lambda x: x + 1, input_signature=[hf.TensorSpec([None])], sizes="exact")
    for n in (1, 2, 3, 3, 1):
        assert f([0.0] * n).shape == (n,)
    assert f.cache_info().executables == 2
    assert f.compile_count == 4


def test_dynamic_takes_three_words():
    with pytest.raises(ValueError, match="dynamic='yes' is not a choice\n  Choose 'auto', True or False"):
        hf.compile(lambda x: x, dynamic="yes")


def shape_dependent(x, y):
    total = hf.sum(x) + y.shape[0]
    if x.shape[0] > 3:
        total = total * 2
    if x.shape[0] == y.shape[0]:
        total = total + hf.sum(x * y)
    return total, hf.concat([x, y]), x.shape[0] - y.shape[0]


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=3, max_size=6), st.booleans())
def test_any_sequence_of_sizes_gives_the_eager_results(sizes, dynamic):
    f = hf.compile(shape_dependent, dynamic=dynamic)
    for n, m in sizes:
        x, y = hf.arange(n, dtype=hf.float32), hf.arange(m, dtype=hf.float32) + 1
        for a, b in zip(f(x, y), shape_dependent(x, y), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
    assert f.trace_count <= len(set(sizes))


def test_what_is_remembered_of_sizes_is_bounded(monkeypatch):
    monkeypatch.setattr("hybridflow.guards.dynamic._FORGET", 3)
    f = hf.compile(lambda x, tag: x * 2, max_traces=4)
    for tag in range(6):
        for n in (2, 3):
            assert f(hf.ones(n), tag).shape == (n,)
    shapes = f._shapes
    assert max(len(shapes._seen), len(shapes._patterns), len(shapes._failures)) <= 3
    assert f.cache_info().traces == 4


# -- concrete -----------------------------------------------------------------------------------------------------


def test_concrete_traces_without_running():
    runs = []
    f = hf.compile(lambda x, n: (hf.pure_callback(lambda v: (runs.append(1), v)[1], hf.TensorSpec([]), n), x * n)[1])
    g = f.concrete(hf.TensorSpec([None, 3]), hf.TensorSpec([]))
    assert (f.trace_count, f.compile_count, runs) == (1, 0, [])
    for n in (2, 4):
        np.testing.assert_array_equal(g(batch(n), 2.0).numpy(), batch(n) * 2)
    assert (f.trace_count, f.compile_count, len(runs)) == (1, 2, 2)
    np.testing.assert_array_equal(f(hf.asarray(batch(7)), hf.asarray(2.0)).numpy(), batch(7) * 2)
    assert f.trace_count == 1  # ordinary calls find it
    with pytest.raises(TypeError, match=r"argument 'x' is f32\[2\], its input_signature is f32\[\?,3\]"):
        g(hf.zeros(2), 2.0)
    assert str(g.graph.input_specs[0]) == "f32[x_0,3]"
    assert repr(g) == "<ConcreteFunction <lambda>(f32[?,3], f32[])>"


def test_concrete_methods():
    model = Model()
    run = model.run.concrete(hf.TensorSpec([2, 3]))
    np.testing.assert_array_equal(run(batch(2)).numpy(), batch(2).sum(0) * 2)
    with pytest.raises(TypeError, match=r"is numpy f32\[3,3\], its input_signature is f32\[2,3\]"):
        run(batch(3))


def test_gradients_have_the_bits_of_programs_of_their_own_size(rng):
    """Which products and sums a program holds must not depend on whether its sizes are open."""
    hf.nn.init.seed(0)
    lstm, wide, narrow = hf.nn.LSTM(5, 8), hf.nn.Linear(8, 40), hf.nn.Linear(40, 3)
    parameters = [*lstm.parameters(), *wide.parameters(), *narrow.parameters()]

    def gradients(x):
        with hf.GradientTape() as tape:
            loss = hf.mean(hf.square(narrow(hf.tanh(wide(lstm(x)[0])))))
        return tape.gradient(loss, parameters)

    batches = [rng.standard_normal((size, 7, 5)).astype(np.float32) for size in (3, 64, 50)]
    gradients(batches[0])  # the layers' sizes are known from here on
    opened = hf.compile(gradients)
    for x in batches:
        opened(x)
    for x in batches:
        for found, expected in zip(opened(x), hf.compile(gradients)(x), strict=True):
            assert found.numpy().tobytes() == expected.numpy().tobytes()
    assert opened.trace_count == 2


@functools.singledispatch
def of_kind(value):
    return 1.0


of_kind.register(int, lambda value: value + 0.5)
of_kind.register(float, lambda value: value * 3)


@pytest.mark.parametrize(
    "use",
    [
        lambda x, n: np.array(x.shape).sum(),
        lambda x, n: np.array([n, 2]).dtype.itemsize,
        lambda x, n: 2.0 if type(n) is int else 3.0,
        lambda x, n: 2.0 if type(n / 2) is float else 3.0,
        lambda x, n: of_kind(n) + of_kind(n / 2),
        lambda x, n: (1 << n) + (n & 1) + (n | 4) + (n ^ 3) + ~n + (n >> 1),
        lambda x, n: n.bit_length() + n.numerator + n.real + len(n.to_bytes(2, "big")),
        lambda x, n: divmod(10, n)[1] + divmod(n, 3)[0] + round(n, -1),
        lambda x, n: len(json.dumps([n, *x.shape])),
        lambda x, n: sum(pickle.loads(pickle.dumps(x.shape))) + copy.deepcopy([n])[0],
        lambda x, n: float(fractions.Fraction(n, 4)) + float(decimal.Decimal(n)) + statistics.mean(x.shape),
        lambda x, n: collections.deque([1, 2, 3], maxlen=n)[0] + datetime.timedelta(n).days,
    ],
)
def test_what_takes_only_an_int_gets_the_size(use):
    def f(x):
        return hf.sum(x) * use(x, x.shape[0])

    compiled = hf.compile(f)
    for size in (2, 3, 4, 3):
        assert compiled(hf.ones(size)).item() == f(hf.ones(size)).item()


LENGTHS = [
    lambda x: x.sum() / len(x), lambda x: x * len(x) + len(x) // 2, lambda x: hf.arange(len(x)) + x[:, 0],
    lambda x: x[len(x) - 1], lambda x: x.reshape((len(x) * 2,)), lambda x: x * isinstance(len(x), int),
    lambda x: x * len(x[:, 0][1:]), lambda x: hf.mean(x) * len(x) == hf.sum(x[:, 0]),
]


@pytest.mark.parametrize("f", LENGTHS)
def test_the_length_of_a_tensor_is_its_open_size(f):
    compiled = hf.compile(f)
    for size in (3, 4, 5, 8, 16):
        x = hf.reshape(hf.arange(2.0 * size), (size, 2))
        np.testing.assert_allclose(compiled(x).numpy(), f(x).numpy(), rtol=1e-6)
    assert compiled.trace_count == 2


BESIDE_NUMBERS = [
    lambda x, o: (x, x.shape[0] * o.n, o.n * len(x)), lambda x, o: (x.shape[0] + o.n, len(x) - o.n, x.shape[0] / o.n),
    lambda x, o: (x.shape[0] // o.n, o.n % x.shape[0]), lambda x, o: x * 2 if x.shape[0] > o.n else x,
    lambda x, o: x.sum() * max(o.n, len(x)), lambda x, o: (len(x) ** o.n, o.n ** len(x)),
    lambda x, o: x[len(x) - o.n :],
    lambda x, o: (min(len(x), o.n), [len(x), o.n], x * (len(x) * 0.5 * o.n)), lambda x, o: hf.zeros((len(x) + o.n,)),
]


@pytest.mark.parametrize("f", BESIDE_NUMBERS)
def test_open_sizes_beside_numbers_that_are_inputs(f):
    o = types.SimpleNamespace(n=4)
    compiled = hf.compile(lambda x: f(x, o))
    for size, o.n in ((3, 4), (3, 5), (5, 6), (6, 2), (7, 3), (5, 5), (4, 4)):
        x = hf.arange(1.0 * size)
        found, expected = (jax.tree_util.tree_leaves(one) for one in (compiled(x), f(x, o)))
        assert [*map(type, found)] == [*map(type, expected)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(one), np.asarray(other), strict=True)

"""Python numbers among the arguments: inputs (ints at their second value), unless the code needs the number."""

import collections
import contextlib
import copy
import dataclasses
import functools
import itertools
import math
import queue
import types
from random import Random

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from modes import answer, program, same
from reference import without_xla

import hybridflow as hf
from hybridflow.core.traced_number import NeedsNumber


def ones(*shape, dtype=np.float32):
    return hf.asarray(np.ones(shape, dtype))


def both(fn, *calls):
    """Return the compiled function after each call gave what the function itself gives, bit for bit."""
    compiled = hf.compile(fn)
    for args in calls:
        with hf.config.run_eagerly():
            expected = compiled(*args)
        got = compiled(*args)
        np.testing.assert_array_equal(got.numpy(), expected.numpy(), strict=True)
    return compiled


RATES = (0.1, 1e-9, -0.0, 0.0, math.inf, -3.25, 3e38)


ARITHMETIC = [
    lambda x, s: x + s,
    lambda x, s: s - x,
    lambda x, s: x * (1 - (1 - s)),
    lambda x, s: x * (s * 0.3 + 2),
    lambda x, s: x * -s + abs(s),
    lambda x, s: x * (s % 0.7) + s // 0.3,
    lambda x, s: hf.where(x > 0, s, -s),
    lambda x, s: hf.asarray([s, 1.0, 2 * s]) + x[0],
    lambda x, s: hf.full((2,), s),
    lambda x, s: hf.asarray(s) + x,
    lambda x, s: hf.maximum(x, s),
    lambda x, s: (x + 1) ** (hf.asarray(s) * 0 + 2),
    lambda x, s: x.astype(hf.int32) * s,
    lambda x, s: x.astype(hf.float64) * (s + 0.1),
    lambda x, s: x.astype(hf.bfloat16) * s,
    lambda x, s: hf.clip(x, -1.0, 1.0) * np.float32(2) * s,
    lambda x, s: x * math.sqrt(abs(s)) + math.copysign(1.0, s) + math.floor(s),
    lambda x, s: x * round(s, 1) + int(s) + float(s) + round(s),
    lambda x, s: x * 1.5**s + abs(s) ** 3,
    lambda x, s: x * divmod(s, 0.3)[1] + divmod(7, 1 + abs(s))[0],
]


@pytest.mark.parametrize("fn", ARITHMETIC)
def test_one_trace_for_every_value(fn):
    compiled = both(fn, *[(ones(3), rate) for rate in RATES if not (math.isinf(rate) or rate > 1e20)])
    assert compiled.trace_count == 1


INTEGERS = [
    lambda x, s: x * (s << 2) + (s >> 1) + (s & 6) + (s | 1) + (s ^ 5) + ~s,
    lambda x, s: x * (0.9 ** s) + s**3 + s / 7,
    lambda x, s: x.astype(hf.int32) * s,
    lambda x, s: x.astype(hf.int8) * (s % 5) - s // 3,
    lambda x, s: hf.asarray([1, 2]) * s,
    lambda x, s: hf.asarray([s, 2 * s]) + x[0],
    lambda x, s: (x > 0) * s,
    lambda x, s: x.astype(hf.complex64) * s,
    lambda x, s: x * isinstance(s, int) * (type(s) is int),
    lambda x, s: x * sum([s, 1, s]) + sum([s, 0.5]),
]


@pytest.mark.parametrize("fn", [*ARITHMETIC, *INTEGERS])
def test_ints_are_inputs_from_their_second_value_on(fn):
    compiled = both(fn, *[(ones(3), number) for number in (3, 2, 0, -5, 7, 100, -128, 3)])
    assert compiled.trace_count == 2


@pytest.mark.parametrize("rate", RATES)
def test_rounded_once_after_python_arithmetic(rate):
    """1 - (1 - 1e-9) is not 0 in Python's doubles."""
    both(lambda x, s: x * (1 - (1 - s)), (ones(2), rate))


COMPARED = [
    lambda x, s: x * (1.0 if s > 2 else 2.0),
    lambda x, s: x * (s == 2),
    lambda x, s: x * max(s, 2) + min(1, s),
    lambda x, s: x * 2 if 1 <= s < 6 else x,
    lambda x, s: x * s if s in (0, 2) else x,
    lambda x, s: x * (2.0 if s else 1.0),
    lambda x, s: x * (s**0.5 if s > 0 else s),
    lambda x, s: x * sorted([s, 1.5, 0.0])[1],
    lambda x, s: x * (s is None) + x * (s == 1) + math.isfinite(s),
    lambda x, s: x * (not s) if s != 3 or x is None else x,
    lambda x, s: x[: 2 if s < 2 else 1],
]


@pytest.mark.parametrize("kind", [int, float])
@pytest.mark.parametrize("fn", COMPARED)
def test_a_comparison_makes_a_trace_for_each_answer(fn, kind):
    compiled = both(fn, *[(ones(3), kind(number)) for number in (*range(10), *range(10))])
    assert 2 <= compiled.trace_count <= 4
    assert any(" (asked at " in one for one in compiled.explain()[-1].guards)


SLICES = [
    lambda x, i: x[i : i + 3], lambda x, i: x[i:][:2], lambda x, i: x[i : i + 6 : 2, 1], lambda x, i: x[..., i % 2 : 2],
    lambda x, i: x[i + 4 : i : -1], lambda x, i: x[:, None, i % 2 :], lambda x, i: x.at[i : i + 2].set(-1.0),
    lambda x, i: x.at[i : i + 2, 1].add(x[i : i + 2, 0]), lambda x, i: x[-i - 1 : -i - 1 + 2 if i > 0 else None],
    lambda x, i: x[i % 2, i : i + 2], lambda x, i: x[i : i + 2, i % 2 : i % 2 + 1], lambda x, i: x[::i % 2 + 1],
    lambda x, i: x[i:i], lambda x, i: x[1 : i : 10**30], lambda x, i: x[i : i + 3 : 10**30],
    lambda x, i: x[1 : i : (i or 1) << 64],
    lambda x, i: hf.grad(lambda v: v[i : i + 2].sum())(x),
]


@pytest.mark.parametrize("fn", SLICES)
def test_slices_that_a_number_moves(fn):
    x = hf.reshape(hf.arange(20.0), (10, 2))
    compiled = both(fn, *[(x, number) for number in (0, 1, 2, 3, 4, 5, 20, -1, -3, 0, 8, 9)])
    for number in (2, 3):
        before = compiled.trace_count
        compiled(x, number)
        assert compiled.trace_count == before


def test_a_slice_of_one_length_is_one_trace():
    cache = hf.zeros((2, 100, 4))

    @hf.compile
    def decode(cache, token, position):
        cache = cache.at[:, position].set(token)
        window = cache[:, position : position + 1] * (hf.arange(100) <= position)[None, :, None]
        return cache, window.sum()

    for position in range(40):
        cache, _ = decode(cache, hf.ones((2, 4)), position)
    assert decode.trace_count == 2


def rolled(x, n):
    for i in hf.arange(n):
        x = x + i
    return x


LENGTHS = [
    lambda x, n: x[:n] * 2, lambda x, n: x + hf.arange(n).sum(), lambda x, n: hf.zeros((n, 3)) + x[0],
    lambda x, n: hf.tanh(x[:n]).sum() / n, lambda x, n: x[-n:].sum(), lambda x, n: x[90 - 2 * n : 90], rolled,
    lambda x, n: x.at[:n].set(1.0), lambda x, n: hf.reshape(x[: n * 2], (n, 2)), lambda x, n: x[n] * x[:n].sum(),
    lambda x, n: hf.broadcast_to(x[0], (n,)) * n, lambda x, n: x[1 : n + 1 : 2],
    lambda x, n: hf.grad(lambda v: (v[:n] ** 2).sum())(x), lambda x, n: hf.where(hf.arange(100) < n, x, 0)[:n],
]


@pytest.mark.parametrize("fn", LENGTHS)
def test_lengths_that_an_int_decides_are_open_sizes(fn):
    x = hf.arange(100.0)
    compiled = hf.compile(fn)
    for n in (5, 6, 7, 31, 40, 8, 5, 22):
        check_close(compiled(x, n), fn(x, n))
    assert compiled.trace_count <= 3
    assert compiled.compile_count <= 7
    assert [one for one in compiled.explain()[-1].guards if one.endswith("is an open size")]
    for n in (1, 0, 2, 44, 3):  # 0 and 1 have traces of their own
        check_close(compiled(x, n), fn(x, n))
    assert compiled.trace_count <= 7


def check_close(found, expected):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


SHORTER = [
    lambda x, n: x[n:], lambda x, n: x[2 * n - 4 : 90], lambda x, n: x[n % 3 :], lambda x, n: x[: 50 - n],
    lambda x, n: x[n : 2 * n : 10**30], lambda x, n: x[: 1 + n % 64],
    lambda x, n: x[: min(n, 80)] + hf.ones(min(n, 80)),
    lambda x, n: x[int(n * 0.7) : n],
]


@pytest.mark.parametrize("fn", SHORTER)
def test_lengths_that_are_computed_or_fall_are_open_sizes(fn):
    assert both(fn, *[(hf.arange(100.0), n) for n in (5, 6, 7, 8, 5, 22, 6)]).trace_count <= 3


FORMS = (
    "n", "n + 1", "2 * n", "n // 2", "1 + n % 5", "min(n, 6)", "int(n * 0.7)", "n * n", "abs(n - 6)", "10 - n",
    "n & 7", "-n", "n + k", "n * k", "x.shape[0] - n", "n if n > 4 else 4", "round(n / 3)",
)
USES = (
    "x[:{a}]", "x[{a}:]", "x[{a} : {b}]", "x[-{a}:]", "x[{a} : {b} : 2]", "x[{b} : {a} : -1]", "hf.arange({a}) * 1.0",
    "hf.arange({a}, {b}) * 1.0", "hf.zeros(({a}, 3)) + x[0]", "hf.split(x, [{a}])[0]",
    "x[:{a}] * hf.arange({a})[:, None]", "x.at[:{a}].set(1.0)", "x.at[{a} : {b}].add(1.0)",
    "hf.reshape(x[: 2 * {a}], ({a}, -1))", "x[:{a}] + x[1 : {a} + 1]", "hf.grad(lambda v: (v[:{a}] ** 2).sum())(x)",
    "x[:{a}].sum() / {a}", "x[[0, 1]][:, : {b} % 3]", "x[:{a}] @ hf.ones((3, {a}))",
    "hf.concatenate([x[:{a}], hf.zeros(({b}, 3))])", "(x[:{a}].shape[0] + x) * 1.0", "x[{a} : {b}, 1]",
    "x[:, : {b} & 1][:{a}]",
)
PLACES = (
    "n = a", "n = s.n", "n = s.items[0]", "n = s.names['n']", "s.kept = a; n = s.kept", "s.t += 1; n = s.t",
    "n = a; s.log.append(n)",
)


def program_of_sizes(random: Random) -> str:
    """Return the source of a function of a tensor and two ints, some of which decide sizes."""
    a, b = [f"({random.choice(FORMS)})" for _ in range(2)]
    y, z = [random.choice(USES).format(a=a, b=b) for _ in range(2)]
    extra = random.choice(["pass", "pass", "s.last = n + 1", "s.shape = y.shape", "s.text = f'{n}'"])
    result = random.choice(["y", "(y, z)", "(y, n)"])
    lines = [random.choice(PLACES), f"y = {y}", f"z = {z if 'z' in result else None}", extra, f"return {result}"]
    return "\n    ".join(["def fn(x, a, k, s):", *lines])


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("seed", range(40))
def test_sizes_that_numbers_decide_are_what_eager_code_makes(seed, tmp_path):
    random = Random(seed)
    space = program(program_of_sizes(random), tmp_path / "fn.py", hf=hf)
    options = random.choice([{}, {}, {"sizes": "exact"}, {"sizes": "bounded"}, {"dynamic": True}, {"dynamic": False}])
    states = [types.SimpleNamespace(n=0, t=0, items=[0], names={"n": 0}, log=[]) for _ in range(2)]
    functions = space["fn"], hf.compile(space["fn"], **options)
    for call in range(8):
        value, rows = random.randrange(12) if random.random() < 0.3 else 3 + call, 12 + (random.random() < 0.1)
        x = hf.reshape(hf.arange(3.0 * rows) / 7, (rows, 3))
        found = []
        for function, state in zip(functions, states, strict=True):
            state.n = state.items[0] = state.names["n"] = value
            try:
                found.append(function(x, value, 2, state))
            except Exception as error:
                found.append(type(error).__name__)
        if str in map(type, found):
            assert found[0] == found[1]
        else:
            same(*found, rtol=1e-5, atol=1e-5)
        assert vars(states[0]) == vars(states[1])



def test_windows_whose_length_and_place_are_arguments():
    x, compiled = hf.arange(100.0), hf.compile(lambda x, i, n: x[i : i + n] * 2)
    for step in range(60):
        i, n = 2 + step * 7 % 40, 8 + step // 6
        np.testing.assert_array_equal(compiled(x, i, n).numpy(), np.arange(i, i + n, dtype=np.float32) * 2)
    assert compiled.trace_count <= 4


@pytest.mark.parametrize("outside", [False, True])
def test_a_curriculum_of_lengths_is_three_traces(outside):
    w, x = hf.Variable(hf.ones(40)), hf.arange(40.0)

    @hf.compile
    def step(x, length):
        with hf.GradientTape() as tape:
            loss = ((w[:length] - x[:length]) ** 2).sum() / length
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    losses = []
    for eager in (True, False):
        w.assign(hf.ones(40))
        losses.append([])
        for number in range(100):
            if outside:
                with hf.GradientTape() as tape, hf.config.run_eagerly(eager):
                    tape.watch(x)
                    found = step(x, 4 + number // 4)
                found = tape.gradient(found, x).numpy().sum()
            else:
                with hf.config.run_eagerly(eager):
                    found = step(x, 4 + number // 4).item()
            losses[-1].append(found)
    np.testing.assert_allclose(*losses, rtol=1e-5)
    assert step.trace_count == 3


KEPT = [
    lambda x, n: x[:n] * len(f"{n}"), lambda x, n: (x[:n].sum(), {"n": n}), lambda x, n: x[:n] * {5: 2.0}.get(n, 1.0),
    lambda x, n: x[:n] * 0.9**n, lambda x, n: x[:n] * math.sqrt(n), lambda x, n: hf.zeros((n, 2)) + float(str(n)),
]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("fn", KEPT)
def test_lengths_whose_number_is_needed_too_are_right(fn):
    x, compiled = hf.arange(50.0), hf.compile(fn)
    for n in (5, 6, 7, 5, 31, 1, 40):
        found, expected = compiled(x, n), fn(x, n)
        assert type(found) is type(expected)
        for one, other in zip(*[one if type(one) is tuple else (one,) for one in (found, expected)], strict=True):
            if isinstance(other, dict):
                assert (one, type(one["n"])) == (other, int)
            else:
                np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-6)
                assert one.dtype == other.dtype


@pytest.mark.parametrize(("steps", "traces"), [(3, 4), (60, 3)])
def test_a_loop_that_a_number_ends_is_by_value_if_it_is_long(steps, traces):
    @hf.compile
    def f(x, n):
        i = 0
        while i < n:
            x, i = x + 1, i + 1
        return x

    for n in (steps, steps + 1, steps + 2, steps):
        assert f(ones(), n).item() == n + 1
    assert f.trace_count == traces
    assert bool(f.explain().needed) == (steps > 16)


def inverted(x, s):
    try:
        return x * ~s
    except TypeError:
        return x * 2 + s


NEEDED = [
    inverted,
    lambda x, s: x * len(f"{s}"),
    lambda x, s: x * {0.5: 1.0}.get(s, 3.0),
    lambda x, s: x * np.sqrt(s),
    lambda x, s: x * np.float64(2) * np.asarray(s),
    lambda x, s: x * s.is_integer(),
    lambda x, s: x + hf.asarray(s, dtype=hf.int32),
    lambda x, s: hf.nn.layer_norm(x, epsilon=s),
]


@pytest.mark.parametrize("fn", NEEDED)
def test_code_that_needs_the_number_is_traced_by_value(fn):
    compiled = both(fn, (ones(3), 0.5), (ones(3), 2.25), (ones(3), 0.5))
    assert compiled.trace_count == 2
    assert "0.5" in compiled.explain()[0].signature["s"]
    assert "0.5 -> float 2.25" in compiled.explain()[1].reason


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int8", "int32", "uint64", "float16", "float32", "complex64"])
def test_ints_that_a_dtype_does_not_hold(dtype):
    x = hf.asarray([1, 2], dtype=dtype)
    f = hf.compile(lambda x, n: x * n)
    for number in (3, 4, 300, -1, 2**40, 2**70, 5, 10**400):
        with hf.config.run_eagerly():
            expected = answer(f, x, number)
        assert answer(f, x, number) == expected


AS_NUMBERS = [
    lambda x, s: x * len(range(s)), lambda x, s: x * s.conjugate(), lambda x, s: x * len(bytes(s)),
    lambda x, s: x * [1.0, 2.0, 3.0, 4.0][s], lambda x, s: x * len("ab" * s), lambda x, s: x * int(f"{s:03d}"),
    lambda x, s: hf.sum(x, axis=s - 1 if s < 2 else s * 0), lambda x, s: x * np.arange(3)[:s].sum(),
    lambda x, s: x * sum(1 for _ in range(s)), lambda x, s: x * {1: 5.0}.get(s, 2.0),
    lambda x, s: x * s.bit_length() + s.real,
]


@pytest.mark.parametrize("fn", [*NEEDED[1:5], *AS_NUMBERS])
def test_code_that_needs_an_int_is_traced_by_value(fn):
    compiled = both(fn, *[(ones(3), number) for number in (1, 3, 1)])
    assert compiled.trace_count == 2
    assert "int 1 -> int 3" in compiled.explain()[1].reason
    (line,) = compiled.explain().needed
    assert f"is needed at {__file__}:" in line


def test_only_the_floats_that_are_needed_are_in_the_key():
    @hf.compile
    def f(x, exponent, scale):
        return x * len(f"{exponent}") * scale

    for exponent in (1.0, 20.0):
        for scale in (0.5, 0.25, 0.125):
            assert f(ones(), exponent, scale).item() == len(str(exponent)) * scale
    assert f.trace_count == 2


def test_minus_zero_and_nan_are_apart_by_value():
    f = hf.compile(lambda x, s: x * len(f"{s}"))
    assert [f(ones(), s).item() for s in (0.0, -0.0, math.nan, float("nan"))] == [3, 4, 3, 3]
    assert f.trace_count == 3


def test_floats_in_structures_keywords_defaults_and_methods():
    @hf.compile
    def f(x, options, *, rate=0.5):
        return x * options["a"][0] + options["b"] * rate

    for a in (1.0, 2.0):
        assert f(ones(), {"a": [a], "b": 3.0}).item() == a + 1.5
        assert f(ones(), {"b": 3.0, "a": [a]}, rate=2.0).item() == a + 6.0
    assert f.trace_count == 1

    class Model:
        @hf.compile
        def step(self, x, rate):
            return x * rate

    model = Model()
    assert [model.step(ones(), r).item() for r in (1.0, 2.0)] == [1.0, 2.0]
    assert model.step.trace_count == 1


def test_static_argnames_are_by_value():
    f = hf.compile(lambda x, s: x * s, static_argnames="s")
    assert [f(ones(), s).item() for s in (1.0, 2.0)] == [1.0, 2.0]
    assert f.trace_count == 2


def test_isinstance_says_float_and_copies_are_the_number():
    @hf.compile
    def f(x, s):
        assert isinstance(s, float)
        assert not isinstance(s, int)
        return x * copy.copy(s) + copy.deepcopy(s)

    assert [f(ones(), s).item() for s in (1.0, 2.0)] == [2.0, 4.0]
    assert f.trace_count == 1


def test_nested_compiled_functions_pass_the_float_on():
    inner = hf.compile(lambda x, s: x * s)
    outer = hf.compile(lambda x, s: inner(x, s + 1) + inner(ones(2), s))
    assert [outer(ones(2), s).tolist()[0] for s in (1.0, 2.0)] == [3.0, 5.0]
    assert outer.trace_count == 1


def test_gradients_and_variables():
    v = hf.Variable(1.0)

    @hf.compile
    def step(x, rate):
        with hf.GradientTape() as tape:
            loss = v * v * x
        v.assign_sub(rate * tape.gradient(loss, v))
        return loss

    expected = 1.0
    for rate in (0.25, 0.125, 0.0):
        step(ones(), rate)
        expected -= rate * 2 * expected
        assert v.item() == expected
    assert step.trace_count == 1
    x = ones(2)
    f = hf.compile(lambda x, s: x * x * (s * 2))
    for s in (1.0, 3.0):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = f(x, s)
        assert tape.gradient(y, x).tolist() == [4 * s, 4 * s]
    assert f.trace_count == 1


def test_errors_of_python_arithmetic_come_at_the_call_with_the_line():
    f = hf.compile(lambda x, s: (x * 2, 1 / s)[0])
    assert f(ones(), 2.0).item() == 2.0
    with pytest.raises(ZeroDivisionError, match="division by zero") as caught:
        f(ones(), 0.0)
    assert __file__ in caught.value.__notes__[0]
    assert f(ones(), 4.0).item() == 2.0
    assert f.trace_count == 1
    with pytest.raises(OverflowError):
        hf.compile(lambda x, s: x * s**3)(ones(), 1e300)


def test_a_float_in_branches_and_loops():
    @hf.compile
    def f(x, s):
        y = hf.cond(hf.sum(x) > 0, lambda x: x * s, lambda x: x * (s + 1), x)
        return hf.scan(lambda c, e: (c * s + e, c), y, hf.asarray([1.0, 2.0]))[0]

    for s in (0.5, 2.0):
        with hf.config.run_eagerly():
            expected = f(ones(), s)
        assert f(ones(), s).item() == expected.item()
    assert f.trace_count == 1


def test_handlers_of_exceptions_do_not_see_the_restart():
    @hf.compile
    def f(x, s):
        try:
            factor = math.exp(s)
        except Exception:
            factor = -1.0
        return x * factor

    assert f(ones(), 0.0).item() == 1.0
    assert not issubclass(NeedsNumber, Exception)


def test_a_float_that_is_kept_is_a_number():
    kept = []

    @hf.compile
    def f(x, s):
        kept.append(s)
        return x * s

    assert [f(ones(), number).item() for number in (2.0, 3.0)] == kept == [2.0, 3.0]
    assert all(type(one) is float for one in kept)


class Slots:
    __slots__ = ("a",)

    def __init__(self, a):
        self.a = a

    def get(self):
        return self.a


@dataclasses.dataclass
class Fields:
    a: object


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: object


def closure(a):
    return lambda: a


def generator(a):
    yield a


def of_args(one):
    return one.args[0]


KINDS = {
    "exception": (ValueError, of_args),
    "partial": (lambda a: functools.partial(max, a), of_args),
    "partial's keyword": (lambda a: functools.partial(max, key=a), lambda one: one.keywords["key"]),
    "class": (lambda a: type("Made", (), {"a": a}), lambda one: one.a),
    "slice": (lambda a: slice(0, a), lambda one: one.stop),
    "repeat": (itertools.repeat, next),
    "count": (itertools.count, next),
    "chain": (lambda a: itertools.chain([a]), next),
    "iterator": (lambda a: iter([a]), next),
    "generator": (generator, next),
    "slots": (Slots, Slots.get),
    "method": (lambda a: Slots(a).get, lambda one: one()),
    "property": (lambda a: property(Slots(a).get), lambda one: one.fget()),
    "closure": (closure, lambda one: one()),
    "default": (lambda a: lambda b=a: b, lambda one: one()),
    "cell": (types.CellType, lambda one: one.cell_contents),
    "fields": (Fields, lambda one: one.a),
    "frozen": (Frozen, lambda one: one.a),
    "fields in fields": (lambda a: Fields(Slots({"b": [Fields(a)]})), lambda one: one.a.a["b"][0].a),
    "chain map": (lambda a: collections.ChainMap({"a": a}), lambda one: one["a"]),
    "user list": (lambda a: collections.UserList([a]), lambda one: one[0]),
    "proxy": (lambda a: types.MappingProxyType({"a": a}), lambda one: one["a"]),
    "values": (lambda a: {"a": a}.values(), lambda one: next(iter(one))),
    "deque": (lambda a: collections.deque([a]), lambda one: one[0]),
    "key": (lambda a: {(a, "b"): 1}, lambda one: next(iter(one))[0]),
}
NUMBERS = {"argument": lambda x, s: s, "outside": lambda x, s: OUTSIDE.b * 1.5, "size": lambda x, s: x.shape[0]}
OUTSIDE = types.SimpleNamespace(b=2.0)


def by_key(keeper, value, make):
    keeper.d["a"] = make(value)


def in_list(keeper, value, make):
    keeper.l.append([make(value)])
    keeper.d["a"] = keeper.l.pop()[0]


def by_attribute(keeper, value, make):
    keeper.o = make(value)
    keeper.d["a"] = keeper.o


def by_library(keeper, value, make):
    keeper.q.put(make(value))


def later(keeper, value, make):
    keeper.d["a"] = held = []
    held.append(make(value))


def kept_by(keeper):
    """Return what a keeper was given."""
    if not keeper.q.empty():
        return keeper.q.get()
    held = keeper.d["a"]
    return held[0] if type(held) is list else held


KEEPS = [by_key, in_list, by_attribute, by_library, later]


def step_of(keep, keeper, number, make):
    def step(x, s):
        keep(keeper, number(x, s), make)
        return x * s * OUTSIDE.b

    return step


@pytest.mark.parametrize(
    ("kind", "number", "keep"),
    [
        pytest.param(kind, number, keep, marks=() if (i + j) % 3 == 0 and (i + k) % 5 == 0 else pytest.mark.rest)
        for i, kind in enumerate(KINDS)
        for j, number in enumerate(NUMBERS)
        for k, keep in enumerate(KEEPS)
    ],
)
def test_what_is_kept_in_an_object_of_any_kind_is_a_number(kind, number, keep):
    make, show = KINDS[kind]
    found = []
    for wrap in (lambda f: f, hf.compile):
        keeper = types.SimpleNamespace(d={}, l=[], q=queue.Queue())
        step = wrap(step_of(keep, keeper, NUMBERS[number], make))
        shown = []
        for i in range(3):
            OUTSIDE.b = 2.0 + i
            step(hf.ones(5 - i), 1.5 + i)
            shown.append((type(one := show(kept_by(keeper))), one + 1))
        found.append(shown)
    assert found[0] == found[1]


def test_a_float_that_code_keeps_which_is_not_converted_names_the_leak(monkeypatch):
    monkeypatch.setattr(hf.config, "kept", None, raising=False)  # nobody looks into hybridflow's own modules

    @hf.no_convert
    def keep(s):
        hf.config.kept = s

    @hf.compile
    def f(x, s):
        keep(s)
        return x * s

    f(ones(), 2.0)
    with pytest.raises(RuntimeError, match="a number of a compiled function was kept"):
        float(hf.config.kept)


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("+-*/%"), st.floats(-4, 4, allow_nan=False).filter(lambda v: abs(v) > 1e-3))),
    st.lists(st.floats(-1e3, 1e3, allow_nan=False), min_size=2, max_size=3),
)
def test_random_arithmetic(steps, values):
    def f(x, s):
        n = s
        for sign, number in steps:
            n = {"+": n + number, "-": number - n, "*": n * number, "/": n / number, "%": n % number}[sign]
        return x + n

    assert both(f, *[(ones(2), value) for value in values]).trace_count == 1


OTHERS = {
    "decimal": "Decimal(3)", "fraction": "Fraction(7, 2)", "complex": "(3 + 1j)", "bool": "True", "text": "'ab'",
    "list": "[1, 2]", "tuple": "(1,)", "bytes": "b'x'", "time": "timedelta(3)", "range": "range(9)", "none": "None",
}
OPERATORS = ["+", "-", "*", "/", "//", "%", "**", "<", "<=", "==", "!=", "&", "|", "^", "<<", "in", "is"]


@pytest.mark.parametrize("first", [2, 2.5])
@pytest.mark.parametrize("other", OTHERS)
def test_operators_of_numbers_and_pythons_own_objects(other, first, tmp_path):
    """The results, and the types and texts of the errors, are those of the number that Python has."""
    expressions = [(f"s {op} d", f"d {op} s") for op in OPERATORS]
    lines = ["from datetime import timedelta", "from decimal import Decimal", "from fractions import Fraction"]
    lines.append(f"d = {OTHERS[other]}")
    for number, one in enumerate(itertools.chain.from_iterable(expressions)):
        lines += [f"def f{number}(found, x, s):", f"    found.append({one})", "    return x"]
    path = tmp_path / "program.py"
    path.write_text("\n".join(lines))
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)

    def answers(fn, mode):
        found, call = [], mode(functools.partial(fn, given := []))
        for number in range(3):
            try:
                call(ones(1), first + number)
                found.append((type(given[-1]), given[-1]))
            except Exception as error:
                found.append((type(error), str(error).splitlines()[0]))
        return found

    for number in range(2 * len(OPERATORS)):
        fn = space[f"f{number}"]
        assert answers(fn, hf.compile) == answers(fn, lambda fn: fn)


class Measured:
    def __init__(self, value):
        self.value = value

    def __float__(self):
        return self.value

    def __complex__(self):
        return complex(self.value * 2)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, s: x * float(Measured(s)),
        lambda x, s: x * float(Measured(s * 2)),
        lambda x, s: x * abs(complex(Measured(s))),
        lambda x, s: x * np.array([Measured(s)], float)[0],
        lambda x, s: x * math.fsum([Measured(s), Measured(1.0)]),
        lambda x, s: x * math.atan(Measured(s)),
    ],
)
def test_what_c_takes_only_from_a_float(fn):
    both(fn, *[(ones(2), s) for s in (0.5, 2.5, -1.0)])


def divided(s):
    return 1.0 / s


def in_a_try(x, s):
    try:
        return x * (1.0 / s)
    except ZeroDivisionError:
        return x - 7.0


def in_a_helper(x, s):
    try:
        return x * divided(s)
    except Exception:
        return x - 7.0


def suppressed(x, s):
    y = x - 7.0
    with contextlib.suppress(ArithmeticError):
        y = x * (5.0 % s)
    return y


def to_a_power(x, s):
    try:
        return x * s**-1
    except (ValueError, ArithmeticError):
        return x - 7.0


def by_a_number(x, s):
    try:
        return x * (s / 2.0)
    except ArithmeticError:
        return x - 7.0


def for_another_error(x, s):
    try:
        return x * divided(s + 1.0)
    except KeyError:
        return x - 7.0


@pytest.mark.parametrize(
    ("fn", "traces"),
    [(in_a_try, 4), (in_a_helper, 4), (suppressed, 4), (to_a_power, 4), (by_a_number, 1), (for_another_error, 1)],
)
def test_a_division_that_fails_where_the_code_handles_it(fn, traces):
    calls = [(ones(2), s) for s in (2.0, 3.0, 0.0, 2.0, -0.0)]
    assert both(fn, *calls).trace_count == traces


@hf.no_convert
def of_type(n):
    return 2.0 if type(n) is int else 3.0


class Typed:
    def __init__(self, n):
        self.n = n

    @hf.no_convert
    def __len__(self):
        return 3 if type(self.n) is int else 4


UNCONVERTED = [
    hf.no_convert(lambda x, n: x * of_type(n)), lambda x, n: x * of_type(n), lambda x, n: x * of_type(n=n + 1),
    lambda x, n: x * sum(map(of_type, [n])), lambda x, n: x * sorted([n, 1, 0.5], key=of_type)[0],
    lambda x, n: x * len(Typed(n)), eval("lambda x, n: x * (2.0 if type(n) is int else 3.0)"),
]


@pytest.mark.parametrize("f", UNCONVERTED)
def test_code_that_is_not_converted_sees_types_of_numbers(f):
    compiled = both(f, *[(ones(3), number) for number in (1, 2, 3, 0.5, 1.5, 2.5)])
    assert compiled.trace_count <= 6


# -- jobs ------------------------------------------------------------------------------------------------------------


class Job:
    """The state of a training job: plain attributes, a weight, an optimizer."""

    def __init__(self):
        self.t, self.eps, self.best, self.bad, self.rate, self.mean = 0, 1.0, math.inf, 0, 0.1, 0.0
        self.w = hf.Variable([1.0, 2.0, 3.0])
        self.optimizer = hf.optim.SGD([self.w], rate=0.1)
        self.cache = hf.zeros((100, 3))


def scheduled(job, x, i):
    job.t += 1
    warm = 10
    job.rate = 0.1 * job.t / warm if job.t <= warm else 0.05 * (1 + math.cos(math.pi * (job.t - warm) / 90))
    job.w.assign_sub(job.rate * x)
    return job.w.sum()


def bias_corrected(job, x, i):
    job.t += 1
    job.w.assign_add(x * math.sqrt(1 - 0.999**job.t) / (1 - 0.9**job.t))
    return job.w.sum()


def finding_a_rate(job, x, i):
    job.optimizer.rate = 1e-5 * 1.1**i
    with hf.GradientTape() as tape:
        loss = (job.w * x).sum()
    job.optimizer.update(tape.gradient(loss, [job.w]))
    return loss


def greedy(job, x, i):
    job.eps = max(0.05, job.eps * 0.97)
    return hf.where(hf.sum(x) % 1.0 < job.eps, x, -x)


def decoding(job, x, position):
    cache = job.cache.at[position].set(x)
    scores = hf.where(hf.arange(100) <= position, cache @ x, -hf.inf)
    return hf.nn.softmax(scores) @ cache + cache[position : position + 1].sum()


def every_ten_steps(job, x, i):
    job.w.assign_add(x)
    if i % 10 == 0:
        job.rate *= 0.5
    return job.w * job.rate


def moving_average(job, x, i):
    job.mean = 0.9 * job.mean + 0.1 * i
    return x - job.mean if job.mean > 3 else x


def dropped_after(job, x, i):
    keep = 1.0 - min(0.5, i / 100)
    return x * round(keep, 2) + int(keep * 10)


JOBS = [scheduled, bias_corrected, finding_a_rate, greedy, decoding, every_ten_steps, moving_average, dropped_after]


@pytest.mark.parametrize("f", JOBS)
def test_a_hundred_steps_of_a_job_make_few_traces(f):
    def run(eager):
        job, seen = Job(), []
        compiled = hf.compile(lambda x, i: f(job, x, i))
        with hf.config.run_eagerly(eager):
            for i in range(100):
                y = compiled(hf.asarray([0.5, -0.25, 0.125]), i)
                kept = [type(one) for one in vars(job).values()], job.t, job.eps, job.rate, job.mean, job.optimizer.rate
                seen.append((y.tolist(), job.w.numpy().tolist(), kept))
        return seen, compiled.trace_count

    with without_xla():
        expected, _ = run(True)
        found, traces = run(False)
    assert found == expected
    assert traces <= 4


def in_a_taken_branch(x, n):
    y = x
    if hf.sum(y) > 2:
        y = y + 1
        1 // (n - 6)
    else:
        y = y * 2
    return y


def in_a_loop(x, n):
    for _ in x:
        1 / (n - 6)
    return x


@pytest.mark.parametrize(
    "f", [in_a_taken_branch, in_a_loop, lambda x, n: hf.vmap(lambda row: (row * 2, 1 / (n - 6))[0])(x)]
)
def test_an_error_of_a_number_that_nothing_uses_is_not_lost(f):
    compiled = hf.compile(f)
    for number in (4, 5, 6, 7, 6.0, 2.5):
        assert answer(compiled, ones(3), number)[0] == answer(f, ones(3), number)[0]

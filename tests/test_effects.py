"""`hf.print`, `hf.pure_callback`, `hf.debugging.check`: what a compiled function does at every call."""

import bisect
import collections
import contextlib
import dataclasses
import heapq
import io
import json
import logging
import pickle
import re
import sys
import threading
import traceback
import types
import warnings
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from modes import answer
from reference import without_xla

import hybridflow as hf
from hybridflow.core import errors


def printed(function, *args):
    """Return what a call prints."""
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream):
        function(*args)
    return stream.getvalue()


class Point(NamedTuple):
    x: object
    y: object


class Model:
    def __init__(self):
        self.weight = hf.Variable([2.0, 3.0], name="weight")

    def report(self, x):
        hf.print("model:", self.weight, x @ self.weight, sep=" / ", end=".\n")
        self.weight.assign_add([1.0, 1.0])
        hf.print(self.weight)
        return x

    compiled = hf.compile(report)


def flat(x):
    hf.print(x, "text", 1, 2.5, None, True, x.shape, hf.float32, sep="|")
    return x


def structures(x):
    hf.print({"b": [x, (x + 1, "s")], "a": Point(x, 3)}, [], {}, end="")
    return x


def nested(x):
    hf.cond(x[0] > 1, lambda: hf.print("large", x[0]), lambda: hf.print("small", x[1]))
    total, _ = hf.scan(lambda c, one: ((hf.print("step", c, one), c + one)[1], one), 0.0, x)

    def holds(c):
        hf.print("again?", c)
        return c < 8.0

    def double(c):
        hf.cond(c > 5, lambda: hf.print("over 5"), lambda: None)
        return c * 2

    hf.print("end", hf.while_loop(holds, double, (total,)))
    return total


def unread(x):
    unused = x * 2
    hf.print("same")
    hf.print("same")
    hf.print(unused)


@pytest.mark.parametrize("function", [flat, structures, nested, unread])
def test_compiled_prints_are_the_eager_ones(function):
    compiled = hf.compile(function)
    for values in ([1.0, 2.0], [3.0, 4.0], [1.0, 2.0]):
        x = hf.asarray(values)
        assert printed(compiled, x) == printed(function, x) != ""
    assert compiled.trace_count == 1


def test_prints_of_a_method_show_its_variables():
    eager, compiled = Model(), Model()
    x = hf.asarray([1.0, 1.0])
    for _ in range(2):
        assert printed(compiled.compiled, x) == printed(eager.report, x)
    assert printed(compiled.compiled, x) == (
        "model: / Variable([4., 5.], dtype=float32, name='weight') / Tensor(9., dtype=float32).\n"
        "Variable([5., 6.], dtype=float32, name='weight')\n"
    )


def test_what_a_python_object_printed_stays():
    things = [1]

    class Thing:
        def __str__(self):
            return f"thing {things[0]}"

    thing = Thing()

    @hf.compile
    def f(x):
        hf.print(thing, x)
        return x

    assert printed(f, hf.asarray(1)) == "thing 1 Tensor(1, dtype=int32)\n"


def test_print_and_python_print_keep_their_order():
    f = hf.compile(flat)
    x = hf.asarray([1.0])

    def both():
        print("before")
        f(x)
        print("between")
        hf.print(x)
        f(x)

    lines = printed(both).splitlines()
    shown = "Tensor([1.], dtype=float32)"
    assert [line.split("|")[0] for line in lines] == ["before", shown, "between", shown, shown]


def test_gradients_do_not_print_again():
    def loss(x):
        def body(c, one):
            hf.print("step", c)
            return c * one, c

        hf.print("loss")
        last, _ = hf.scan(body, 1.0, x)
        return hf.cond(last > 0, lambda v: (hf.print("branch"), v * v)[1], lambda v: v, last)

    def step(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            value = loss(x)
        return tape.gradient(value, x)

    x = hf.asarray([2.0, 3.0])
    expected = printed(step, x)
    assert expected == "loss\nstep Tensor(1., dtype=float32)\nstep Tensor(2., dtype=float32)\nbranch\n"
    assert printed(hf.compile(step), x) == expected
    np.testing.assert_allclose(hf.compile(step)(x).numpy(), step(x).numpy())
    compiled = hf.compile(loss)

    def outside():
        with hf.GradientTape() as tape:
            tape.watch(x)
            value = compiled(x)
        return tape.gradient(value, x)

    assert printed(outside) == expected
    np.testing.assert_allclose(outside().numpy(), step(x).numpy())


def test_a_print_that_fails_fails_the_call():
    class Closed(io.StringIO):
        def write(self, text):
            raise BrokenPipeError("closed")

    v = hf.Variable(1.0)

    @hf.compile
    def f(x):
        v.assign_add(x)
        hf.print(x)
        return x

    with contextlib.redirect_stdout(Closed()), pytest.raises(BrokenPipeError, match="closed"):
        f(hf.asarray(1.0))
    assert v.item() == 1.0
    assert printed(f, hf.asarray(1.0)) == "Tensor(1., dtype=float32)\n"
    assert v.item() == 2.0


@pytest.mark.parametrize("words", [{"sep": 1}, {"end": 2}])
def test_print_takes_strings(words):
    with pytest.raises(TypeError, match=f"print: {next(iter(words))} must be a str or None"):
        hf.print(1, **words)


def test_eight_threads_print_their_own_values():
    f = hf.compile(lambda x: (hf.print(x, x + 1), x)[1])
    f(hf.asarray(0))
    stream = io.StringIO()
    threads = [threading.Thread(target=f, args=(hf.asarray(i),)) for i in range(8)]
    with contextlib.redirect_stdout(stream):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    numbers = sorted(int(line.split("(")[1].split(",")[0]) for line in stream.getvalue().splitlines() if line)
    assert numbers == list(range(8))


# -- callbacks ----------------------------------------------------------------------------------------------------


def ordered(x):
    return hf.pure_callback(np.sort, hf.TensorSpec(x.shape, x.dtype), x)


def twice(x):
    def host(pair, factor, *, names=("a", "b")):
        assert isinstance(pair["a"], np.ndarray)
        assert not pair["a"].flags.writeable
        return {name: pair[name] * factor for name in names}

    found = hf.pure_callback(host, {"a": hf.TensorSpec(x.shape), "b": hf.TensorSpec(x.shape)}, {"a": x, "b": -x}, 2)
    return found["a"] - found["b"]


def in_bodies(x):
    spec = hf.TensorSpec((), hf.float32)

    def half(c):
        return hf.pure_callback(lambda v: v / 2, spec, c)

    last, rows = hf.scan(lambda c, one: (half(c) + one, half(one)), 0.0, x)
    (small,) = hf.while_loop(lambda c: c > 1, half, (last * 8,))
    return hf.cond(small > 0.6, half, lambda v: v, small), rows


@pytest.mark.parametrize("function", [ordered, twice, in_bodies])
def test_callbacks_give_the_eager_result(function):
    compiled = hf.compile(function)
    for values in ([3.0, 1.0, 2.0], [0.5, 4.0, -1.0]):
        x = hf.asarray(values)
        for a, b in zip(jax.tree.leaves(compiled(x)), jax.tree.leaves(function(x)), strict=True):
            np.testing.assert_array_equal(a.numpy(), b.numpy())
    assert compiled.trace_count == 1


@pytest.mark.parametrize("dtype", ["float64", "int64", "bfloat16", "bool", "complex64"])
def test_callbacks_keep_dtypes(dtype):
    seen = []

    def host(x):
        seen.append(x.dtype)
        return x

    x = hf.asarray([1, 0], dtype=dtype)
    f = hf.compile(lambda x: hf.pure_callback(host, x.spec, x))
    assert f(x).dtype == x.dtype
    assert seen == [x.dtype]


def test_callbacks_run_once_per_call_read_or_not():
    calls = []

    def host(x):
        calls.append(x.item())
        return 0

    @hf.compile
    def f(x):
        hf.pure_callback(host, hf.TensorSpec((), hf.int32), x)
        hf.pure_callback(host, hf.TensorSpec((), hf.int32), x)
        return x

    f(hf.asarray(1.0))
    f(hf.asarray(2.0))
    assert calls == [1.0, 1.0, 2.0, 2.0]


def test_a_callback_that_fails_is_not_called_again():
    calls = []

    def host(x):
        calls.append(x.item())
        if x > 1:
            raise ValueError("too large")  # as jax says of arguments that a program was not compiled for
        return x

    f = hf.compile(lambda x: hf.pure_callback(host, hf.TensorSpec((), hf.float32), x))
    for value in (1.0, 1.0, 2.0, 1.0):
        if value > 1:
            with pytest.raises(ValueError, match="too large"):
                f(hf.asarray(value))
        else:
            f(hf.asarray(value))
    assert calls == [1.0, 1.0, 2.0, 1.0]


class OwnError(Exception):
    def __init__(self, code):
        super().__init__(f"code {code}")
        self.code = code


def failing(x):
    if x > 1:
        raise OwnError(7)
    return x


def make_failing_function(kind):
    spec = hf.TensorSpec((), hf.float32)
    if kind == "flat":
        return lambda x: hf.pure_callback(failing, spec, x)
    if kind == "branch":
        return lambda x: hf.cond(x > 0, lambda: hf.pure_callback(failing, spec, x), lambda: x)
    return lambda x: hf.while_loop(lambda c: c < 5, lambda c: hf.pure_callback(failing, spec, c) + 1, (x,))[0]


@pytest.mark.parametrize("kind", ["flat", "branch", "endless loop"])
def test_what_a_callback_raises_is_raised_and_nothing_is_written(kind):
    function = make_failing_function(kind)
    v = hf.Variable([1.0, 2.0])

    @hf.compile
    def f(x):
        v.assign_add([1.0, 1.0])
        y = function(x)
        hf.print("after", y)
        return y

    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), pytest.raises(OwnError, match="code 7") as raised:
        f(hf.asarray(2.0))
    assert raised.value.code == 7
    assert raised.traceback[-1].name == "failing"
    assert stream.getvalue() == ""
    assert v.numpy().tolist() == [1.0, 2.0]
    if kind != "endless loop":
        assert printed(f, hf.asarray(1.0)) == "after Tensor(1., dtype=float32)\n"
        assert v.numpy().tolist() == [2.0, 3.0]
    with pytest.raises(OwnError), hf.config.run_eagerly():
        function(hf.asarray(2.0))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    ("result", "error", "text"),
    [
        (np.zeros(3, np.float32), errors.ShapeError, r"returned f32\[3\] as result 0, the spec says f32\[2\]"),
        (np.zeros(2), errors.DTypeError, r"returned f64\[2\] as result 0, the spec says f32\[2\]"),
        ((1, 2), errors.ArgumentError, r"another structure than the spec's\n  got: \(\*, \*\), the spec is \*"),
    ],
)
def test_results_must_be_what_the_spec_says(compiled, result, error, text):
    def wrong(x):
        return result

    def f(x):
        return hf.pure_callback(wrong, hf.TensorSpec([2]), x)

    with pytest.raises(error, match=text) as raised:
        (hf.compile(f) if compiled else f)(hf.asarray(1.0))
    assert "wrong" in str(raised.value)


@pytest.mark.parametrize("spec", [hf.TensorSpec([None]), np.float32, [hf.TensorSpec([2]), 3]])
def test_the_spec_must_say_everything(spec):
    with pytest.raises(TypeError, match="the spec must say every result's shape and dtype"):
        hf.pure_callback(np.sort, spec, 1.0)


def test_a_callback_must_be_callable():
    with pytest.raises(TypeError, match="pure_callback: an int is not callable"):
        hf.pure_callback(3, hf.TensorSpec([]), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_callback_has_no_gradient(compiled):
    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = ordered(x * 2)
        return tape.gradient(y, x)

    with pytest.raises(errors.GradientError, match="Python code has no derivative"):
        (hf.compile(f) if compiled else f)(hf.asarray([2.0, 1.0]))


@pytest.mark.parametrize("compiled", [False, True])
def test_custom_gradient_gives_a_callback_one(compiled):
    @hf.custom_gradient
    def cube(x):
        return hf.pure_callback(lambda v: v**3, x.spec, x), lambda g: g * 3 * x * x

    def f(x):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = cube(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose((hf.compile(f) if compiled else f)(hf.asarray(2.0)).numpy(), 12.0)


def test_callbacks_may_read_variables_but_not_assign_them():
    v = hf.Variable(5.0, name="count")

    def read(x):
        return x + v.numpy()

    def write(x):
        v.assign(x)
        return x

    spec = hf.TensorSpec([])

    @hf.compile
    def f(x):
        v.assign_add(1.0)
        return hf.pure_callback(read, spec, x)

    assert f(hf.asarray(1.0)).item() == 6.0  # it sees what the Variable is before the call

    @hf.compile
    def g(x):
        v.assign_add(1.0)
        return hf.pure_callback(write, spec, x)

    for function in (g, g.python_function):
        v.assign(5.0)
        with pytest.raises(errors.TraceError, match=r"Variable 'count' is assigned by .*write"):
            function(hf.asarray(1.0))
    v.assign(1.0)


# -- checks -------------------------------------------------------------------------------------------------------


def checked(x):
    hf.debugging.check(hf.all(x > 0), "must be positive")
    return x + 1


def checked_in_a_branch(x):
    return hf.cond(x[0] > 5, lambda: x, lambda: checked(x))


def checked_in_a_loop(x):
    def body(c, one):
        hf.debugging.check(one > 0, "must be positive")
        return c + one, c

    return hf.scan(body, 0.0, x)[0]


@pytest.mark.parametrize("function", [checked, checked_in_a_branch, checked_in_a_loop])
def test_checks_hold_and_protect_writes(function):
    v = hf.Variable(0.0)

    def f(x):
        y = function(x)
        v.assign_add(1.0)
        return y

    compiled = hf.compile(f)
    good, bad = hf.asarray([1.0, 2.0]), hf.asarray([1.0, -2.0])
    for run in (f, compiled):
        before = v.item()
        run(good)
        with pytest.raises(AssertionError, match="must be positive") as raised:
            run(bad)
        assert isinstance(raised.value, errors.CheckError)
        assert v.item() == before + 1
        run(good)
        v.assign(0.0)


def test_a_check_that_python_knows_is_made_at_once():
    f = hf.compile(lambda x, n: (hf.debugging.check(n > 2, "n must be more than 2"), x)[1])
    f(hf.asarray(1.0), 3)
    with pytest.raises(AssertionError, match="n must be more than 2"):
        f(hf.asarray(1.0), 2)


@pytest.mark.parametrize("compiled", [False, True])
def test_what_a_check_takes(compiled):
    wrap = hf.compile if compiled else (lambda f: f)
    with pytest.raises(errors.DTypeError, match=r"check: the condition must be a bool of shape \(\)\n  got: bool"):
        wrap(lambda x: hf.debugging.check(x > 0, "no"))(hf.asarray([1.0, 2.0]))
    with pytest.raises(errors.DTypeError, match=r"got: f32\[\]"):
        wrap(lambda x: hf.debugging.check(x, "no"))(hf.asarray(1.0))
    with pytest.raises(TypeError, match="check: the message must be a str"):
        wrap(lambda x: hf.debugging.check(x > 0, 3))(hf.asarray(1.0))


def test_synchronize_waits():
    f = hf.compile(lambda x: x @ x)
    y = f(hf.ones((300, 300)))
    hf.synchronize()
    assert y._value.is_ready()


# -- streams: text goes where eager code writes it, at every call

STREAM = [io.StringIO()]


def to_the_output(x):
    hf.print("x", x)


def to_a_redirected_output(x):
    with contextlib.redirect_stdout(STREAM[0]):
        print("in", x)
    print("after", x)


def to_a_redirected_output_of_ours(x):
    with contextlib.redirect_stdout(STREAM[0]):
        hf.print("in", x)
    hf.print("after", x)


def to_a_replaced_output(x):
    before, sys.stdout = sys.stdout, STREAM[0]
    print("in", x)
    sys.stdout = before
    print("after", x)


def to_the_error_output(x):
    print("x", x, file=sys.stderr)


def to_a_redirected_error_output(x):
    with contextlib.redirect_stderr(STREAM[0]):
        print("in", x, file=sys.stderr)
    print("after", x, file=sys.stderr)


def to_an_output_as_the_other(x):
    with contextlib.redirect_stdout(sys.stderr):
        print("in", x)


def to_a_file(x):
    print("in", x, file=STREAM[0], flush=True)


def to_a_redirected_output_in_a_branch(x):
    if x > 1:
        with contextlib.redirect_stdout(STREAM[0]):
            print("in", x)
    else:
        print("other", x)


def written(function, capsys):
    """Return what four calls print: to a stream of the function's, to the outputs, and to replaced outputs."""
    STREAM[0] = first = io.StringIO()
    replaced = io.StringIO(), io.StringIO()
    for value in (1.0, 2.0):
        function(hf.asarray(value))
    with contextlib.redirect_stdout(replaced[0]), contextlib.redirect_stderr(replaced[1]):
        function(hf.asarray(3.0))
    STREAM[0] = io.StringIO()
    function(hf.asarray(4.0))
    return [one.getvalue() for one in (first, STREAM[0], *replaced)], capsys.readouterr()


@pytest.mark.filterwarnings("ignore:compile. to_a_file is traced again")
@pytest.mark.parametrize(
    "program",
    [
        to_the_output, to_a_redirected_output, to_a_redirected_output_of_ours, to_a_replaced_output,
        to_the_error_output, to_a_redirected_error_output, to_an_output_as_the_other, to_a_file,
        to_a_redirected_output_in_a_branch,
    ],
)
def test_text_goes_to_the_stream_that_eager_code_writes_to(program, capsys):
    expected = written(program, capsys)
    assert any("Tensor(4., " in text for text in (*expected[0], *expected[1]))
    assert written(hf.compile(program), capsys) == expected


def test_a_stream_that_the_call_makes_is_refused():
    def returns(x):
        made = io.StringIO()
        with contextlib.redirect_stdout(made):
            print(x)
        return x * len(made.getvalue())

    with pytest.raises(errors.TraceError, match="prints a tensor to a stream that it made itself"):
        hf.compile(returns)(hf.asarray(1.0))


def test_printing_fails_as_in_eager_code(monkeypatch):
    closed = io.StringIO()
    closed.close()
    prints = hf.compile(to_the_output)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", closed)
        with pytest.raises(ValueError, match="closed file"):
            prints(hf.asarray(1.0))
    with pytest.raises(TypeError, match="unexpected keyword"):
        hf.compile(lambda x: print(x, colour=1))(hf.asarray(1.0))


# -- texts of traced values -----------------------------------------------------------------------------------------


class Shown:
    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return f"Shown({self.value})"


@dataclasses.dataclass
class Kept:
    value: Any


def a_loop_prints(x):
    for i in range(2):
        text = f"{i} {x:.2f}"
        print(text)
    while x < 9.0:
        text = f"in {x:.2f}"
        print(text)
        x = x * 2
    return x


def a_number_is_printed(x):
    n = 0
    while x > n:
        n += 1
    print(f"n={n:03d}", "%d!" % n, str(n), "{:>4}".format(n), f"{[n]}")  # noqa: UP031, UP032
    return x


def parts_are_added(x):
    text = "a"
    text += f"{x!r:>30}"
    print((text + "b").upper() * 2, "%".join(["<", text, str(x)]))
    return x


V = hf.Variable(0.0, name="v")
class Counts:
    def __init__(self):
        self.count = 0

    def __str__(self):
        self.count += 1
        return f"count {self.count}"


def what_is_shown_changes_later(x):
    held, items, named, counts = Kept(1), [x, 1], {"a": x}, Counts()
    texts = [str(items), "%s %s" % (held, x), "{} {}".format(named, x), f"{items}|{x}", "%s %s" % (counts, x)]  # noqa: UP031, UP032
    items[0] = 0
    items.append(2)
    held.value = 5
    named["a"] = 3
    print(*texts, counts, x)
    return x * counts.count


TEXTS = [
    what_is_shown_changes_later,
    a_loop_prints, a_number_is_printed, parts_are_added,
    lambda x: print("loss %.3f %s %s" % (x, "a", [x])) or x,  # noqa: UP031
    lambda x: print("a{:.2f}b{k}".format(x, k=x)) or x,  # noqa: UP032
    lambda x: print(", ".join(f"{v:.1f}" for v in [x, x + 1]), ", ".join(map(str, [x, x + 1]))) or x,
    lambda x: print(Shown(x), f"{Shown(x)!s:>40}", repr(Shown(x)) + "!") or x,
    lambda x: hf.print(f"{x:.3f}".rjust(9)) or x,
    lambda x: print(Kept(x), f"{Kept(Kept(x))!r:>70}", [Kept(x)], {"a": Kept(x)}, "%s" % Kept(x)) or x,  # noqa: UP031
    lambda x: print(f"{ {'b': x, 'a': 1, 3: (x,)} } {Point(x, 2)}", str(collections.OrderedDict(b=x, a=1))) or x,
    lambda x: print("{a.ndim} {b[0]}".format(a=x, b=[x]), str.format("{}", x), str.join(",", [str(x)])) or x,  # noqa: UP032
    lambda x: [V.assign_add(x), print(V, f"{V} {V!r} {V:.2f}", str(V), repr([V]), Kept(V), f"{Shown(V)}"), x][2],
]


@pytest.mark.parametrize("function", TEXTS)
def test_texts_that_are_printed_are_made_by_each_call(function, capsys):
    printed = []
    for call in (function, hf.compile(function)):
        V.assign(0.0)
        for number in (1.5, 2.25):
            call(hf.asarray(number))
            hf.synchronize()
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    assert "traced" not in printed[0]


LOOKS = {
    "in": lambda x: x * 2 if "nan" in str(x) else x,
    "==": lambda x: x * 2 if f"{x}" == "a" else x,
    "len": lambda x: x * len(f"{x:.1f}"),
    "key": lambda x: x * len({f"{x}": 1}),
    "split": lambda x: x * len("%s" % x),  # noqa: UP031
    "a library": lambda x: x * len(re.findall("n", f"{x}")),
    "kept": lambda x: KEPT.append(f"loss {x}") or x,
    "kept by a library's words": lambda x: KEPT.append(json.dumps({"a": x}, default=str)) or x,
    "kept by a class's words": lambda x: KEPT.append(str(Shown(x))) or x,
    "kept by a dataclass's words": lambda x: KEPT.append(f"{Kept(x)}") or x,
    "kept in a dict": lambda x: KEPT.append({"text": [str(x).strip()]}) or x,
    "hidden": lambda x: x * len(Shown(x).__repr__()),
    "pickled": lambda x: x * len(pickle.dumps(f"{x}")),
    "returned": lambda x: f"{x}",
    "a variable": lambda x: V.assign_add(x) * len(str(V)),
    "a variable kept": lambda x: KEPT.append(repr(V)) or x,
    "an error's": lambda x: x * len(ValueError(f"{x}").args[0]),
    "an error's kept": lambda x: KEPT.append(ValueError(f"{x}")) or x,
    "an error's in a print": lambda x: print(f"{ValueError(x)}") or x,
    "its method": lambda x: x * len(x.__repr__()),
    "its method kept": lambda x: KEPT.append(x.__format__("")) or x,
    "in an object of a library": lambda x: print(types.SimpleNamespace(a=x)) or x,
    "in a list of objects": lambda x: print([Shown(x)]) or x,
    "in a deque": lambda x: print(collections.deque([x])) or x,
    "between": lambda x: print(1, 2, sep=f"{x}") or x,
    "named": lambda x: x if hasattr(x, f"{x}") else x * 2,
    "named to be set": lambda x: setattr(Kept(1), f"{x}", 1) or x,
    "named for hybridflow": lambda x: hf.Variable(1.0, name=f"{x}") + x,
}
KEPT: list[Any] = []


@pytest.mark.parametrize("way", LOOKS)
def test_a_text_that_each_call_makes_cannot_be_looked_at(way):
    KEPT.clear()
    with pytest.raises((errors.TracedValueError, errors.MutationError, errors.ArgumentTypeError)):
        hf.compile(LOOKS[way])(hf.asarray(1.5))
    assert not KEPT


def test_errors_logs_and_warnings_say_what_is_traced_from_the_users_line(caplog):
    def told(x):
        logging.getLogger("told").warning("loss %.3f", x)
        logging.getLogger("told").warning(f"loss {x}")
        warnings.warn("w" + str(x), stacklevel=1)

        def inner():
            warnings.warn("of the caller", stacklevel=2)

        inner()
        if x.ndim == 0:
            raise ValueError("bad " + str(x) + f"{x:.2f}" + "%d" % x)  # noqa: UP031
        return x

    compiled = hf.compile(told)
    says = pytest.raises(ValueError, match=r"bad Tensor\(traced f32\[\]")
    with warnings.catch_warnings(record=True, action="always") as caught, says:
        compiled(hf.asarray(1.5))
    first = told.__code__.co_firstlineno
    assert [(one.filename, one.lineno - first) for one in caught] == [(__file__, 3), (__file__, 8)]
    assert [(one.pathname, one.lineno - first) for one in caplog.records] == [(__file__, 1), (__file__, 2)]
    assert all("Tensor(traced f32[])" in one.getMessage() for one in caplog.records)


def test_a_text_that_outlives_the_trace_is_named():
    class Left(Exception):
        pass

    def f(x):
        text = f"{x}"
        raise Left(lambda: text)

    with pytest.raises(Left) as caught:
        hf.compile(f)(hf.asarray(1.5))
    with pytest.raises(errors.LeakError, match="the text of a traced tensor was kept"):
        str(caught.value.args[0]())


def test_a_text_is_a_str():
    @hf.compile
    def f(x):
        return x * isinstance(str(x), str) * (type(f"{x}") is str) * (f"{x}".__class__ is str)

    assert f(hf.asarray(1.5)).item() == 1.5


@pytest.mark.asserts
def test_errors_that_leave_hold_texts_of_python():
    def f(x):
        assert x.ndim == 9, str(x)

    with pytest.raises(AssertionError) as caught:
        hf.compile(f)(hf.asarray(1.5))
    assert type(caught.value.args[0]) is str
    assert "Tensor(traced f32[])" in "".join(traceback.format_exception(caught.value))


def test_a_print_to_a_redirected_stream_is_made_by_each_call():
    def f(x):
        with contextlib.redirect_stdout(stream):
            print("hello")
        return x

    texts = []
    for call in (f, hf.compile(f)):
        stream = io.StringIO()
        for _ in range(3):
            call(hf.asarray(1.5))
        hf.synchronize()
        texts.append(stream.getvalue())
    assert texts == ["hello\n" * 3] * 2


OUTER = [
    "d |= {'x': 4}", "d['x'] = 4", "d.update(x=4)", "d.pop('x', 0)", "l += [2]", "l.insert(0, l.pop())",
    "o.d, o.l = l, d",
]
INNER = ["d['y'].append(1)", "d['y'][0] = 9", "l[0].append(1)", "d['y'] += [n]", "d['y'].pop()",
         "heapq.heappop(d['y'])", "heapq.heappush(d['y'], n)", "bisect.insort(l[0], 2)",
         "d['y'], l[0] = l[0], d['y']"]


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning")
@pytest.mark.parametrize("outer", OUTER)
def test_a_trace_that_restarts_takes_changes_inside_changed_containers_back(outer, tmp_path):
    def run(inner, eager):
        o = types.SimpleNamespace()
        space = {"d": {"x": 0.5, "y": [1, 2, 3, 4, 5, 6, 7]}, "l": [[1, 2], 3], "o": o, "n": 0,
                 "heapq": heapq, "bisect": bisect}
        path = tmp_path / f"restarts_{eager}.py"
        lines = ["def f(x):", "global d, l, n", outer, inner, "n += 1", "return x * len(f'{n}')"]
        path.write_text("\n    ".join(lines))
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        compiled, seen = hf.compile(space["f"]), []
        for _ in range(4):
            with hf.config.run_eagerly(eager):
                found = answer(compiled, hf.asarray(1.0))
            seen.append((found, repr((space["d"], space["l"], vars(o), space["n"]))))
        return seen

    with without_xla():
        for inner in INNER:
            assert run(inner, False) == run(inner, True), inner


CALLERS = ["cb()", "re.sub('a', cb, 'a')", "with contextlib.ExitStack() as es: es.callback(cb)", "hf.no_convert(cb)()",
           "asyncio.run(co())", "list(map(hf.no_convert(cb), [1]))"]
STORES = ["g += 1", "k += 1", "globals()['g'] = g + 1", "o = Box(o.k + 1)", "globals().update(g=g * 2)", "l.append(g)",
          "o.k += 1", "exec('g = g + 1', globals())", "vars(o)['k'] = 5 + g", "setattr(o, 'k', o.k + 1)"]
RESTARTING = """
import asyncio, contextlib, re
n = g = 1
def make():
    k = 1
    def cb(*_):
        global g, o
        nonlocal k
        {store}
        return ""
    return cb, lambda: k
cb, get = make()
async def co(): cb()
def f(x):
    x = x * n
    {caller}
    return x + len(range(n)) * g
"""


@pytest.mark.filterwarnings("ignore::hybridflow.RetraceWarning", "ignore::hybridflow.EffectWarning")
@pytest.mark.parametrize("caller", CALLERS)
def test_a_trace_that_restarts_takes_back_what_code_that_is_not_converted_stored(caller, tmp_path):
    def run(store, eager):
        path = tmp_path / f"{STORES.index(store)}_{eager}.py"
        path.write_text(RESTARTING.format(store=store, caller=caller))
        space = {"hf": hf, "Box": lambda k: types.SimpleNamespace(k=k), "o": types.SimpleNamespace(k=1), "l": [1]}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        compiled, seen = hf.compile(space["f"]), []
        for space["n"] in range(1, 5):
            with hf.config.run_eagerly(eager):
                found = answer(compiled, hf.asarray(1.0))
            seen.append((found, space["g"], space["o"].k, space["get"](), [*space["l"]]))
        return seen

    with without_xla():
        for store in STORES:
            assert run(store, False) == run(store, True), store


BEFORE_AN_ERROR = [
    "del o.t; o.t = n + 1", "o.t = n + 1", "o.l.clear(); o.l.append(n + 1)", "o.__dict__.pop('t'); setattr(o, 't', n)",
    "o.q = (n, [n + 1], {'a': n * 2})", "o.f = [lambda: n + 1]", "o.g = (k + n for k in [1, 2])",
    "o.z = types.SimpleNamespace(v=n + 1)", "o.dq = collections.deque([n + 1])", "del o.t; o.t = n + 1; o.absent",
]


@pytest.mark.parametrize("store", BEFORE_AN_ERROR)
def test_a_call_that_fails_leaves_numbers_and_no_stand_ins(store, tmp_path):
    def run(eager):
        path = tmp_path / f"fails_{eager}.py"
        path.write_text(f"def f(x, n):\n    {store}\n    raise ValueError(n)\n")
        o, seen = types.SimpleNamespace(t=1, l=[1]), []
        space = {"o": o, "types": types, "collections": collections}
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
        compiled = hf.compile(space["f"])
        for number in (1.0, 2.0, 3, 4, 2**40):
            o.t = getattr(o, "t", 1)
            with hf.config.run_eagerly(eager):
                found = answer(compiled, hf.asarray(1.0), number)
            held = {name: [*one] if name == "g" else one for name, one in vars(o).items() if name != "f"}
            seen.append((found, repr(held), [one() for one in vars(o).get("f", ())]))
        return seen

    assert run(False) == run(True)

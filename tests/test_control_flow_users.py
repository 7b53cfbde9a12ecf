"""Programs as users write them: tapes in loops, states made anew, map and filter, deep recursion; in both modes."""

from __future__ import annotations

import dataclasses
import sys
from contextlib import suppress
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from modes import program

import hybridflow as hf
from hybridflow.core.errors import DepthError, MutationError, TraceError

X = np.array([1.0, -2.0, 3.0, -4.0, 5.0], np.float32)


def close(a: Any, b: Any) -> None:
    one, other = jax.tree_util.tree_leaves(a), jax.tree_util.tree_leaves(b)
    assert len(one) == len(other) > 0
    for x, y in zip(one, other, strict=True):
        np.testing.assert_allclose(np.asarray(hf.asarray(x)), np.asarray(hf.asarray(y)), rtol=1e-5, atol=1e-6)


def same(f: Any, *args: Any) -> Any:
    """Check that a function gives the same eager and compiled, and return that."""
    eager = f(*args)
    close(eager, hf.compile(f)(*args))
    return eager


# -- tapes --------------------------------------------------------------------------------------------------------


def descent(start: Any, steps: int, rate: float = 0.1) -> Any:
    w = jnp.asarray(start)
    for _ in range(steps):
        w = w - rate * jax.grad(lambda w: jnp.sum((w - 3.0) ** 2))(w)
    return w


def in_range(n, w):
    for _ in range(n):
        with hf.GradientTape() as tape:
            tape.watch(w)
            loss = hf.sum((w - 3.0) ** 2)
        w = w - 0.1 * tape.gradient(loss, w)
    return w


def in_while(n, w):
    i = 0
    while i < n:
        with hf.GradientTape(persistent=True) as tape:
            tape.watch(w)
            loss = hf.sum((w - 3.0) ** 2)
        w = w - 0.05 * tape.gradient(loss, w) - 0.05 * tape.gradient(loss, w)
        i += 1
    return w


def in_branch(n, w):
    for i in range(n):
        if i >= 0:
            with hf.GradientTape() as tape:
                tape.watch(w)
                loss = hf.sum((w - 3.0) ** 2) if i < 100 else hf.sum(w)
            w = w - 0.1 * tape.gradient(loss, w)
    return w


def within_another(n, w):
    for _ in range(n):
        with hf.name_scope("step"), hf.GradientTape() as tape:
            tape.watch(w)
            loss = hf.sum((w - 3.0) ** 2)
        g = tape.gradient(loss, w)
        w = w - 0.1 * g
    return w


@pytest.mark.parametrize("f", [in_range, in_while, in_branch, within_another])
def test_a_tape_in_each_step(f: Any):
    start = hf.asarray([1.0, 2.0])
    close(same(f, hf.asarray(4), start), descent([1.0, 2.0], 4))


def test_variables_are_trained_over_batches():
    w = hf.Variable([1.0, 2.0])
    batches = hf.asarray([[1.0, 2.0], [0.5, -1.0], [2.0, 0.0]])

    def train(batches):
        loss = hf.asarray(0.0)
        for x in batches:
            with hf.GradientTape() as tape:
                loss = hf.sum((w * x - 3.0) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss

    eager = train(batches), w.numpy()
    w.assign([1.0, 2.0])
    close(eager, (hf.compile(train)(batches), w.numpy()))


def test_second_order_in_a_loop():
    def curvature(n, w):
        total = hf.zeros_like(w)
        for _ in range(n):
            with hf.GradientTape() as outer:
                outer.watch(w)
                with hf.GradientTape() as inner:
                    inner.watch(w)
                    y = hf.sum(w**3)
                g = inner.gradient(y, w)
            total = total + outer.gradient(g, w)
        return total

    close(same(curvature, hf.asarray(2), hf.asarray([1.0, 2.0])), np.array([12.0, 24.0]))


def test_what_a_swallowed_exception_left_out_is_not_taken_from_an_earlier_step():
    def f(n, x, fail):
        y = x
        total = x * 0.0
        for _ in range(n):
            with suppress(KeyError):
                if fail:
                    raise KeyError
                y = x * 2.0
            total = total + y
            y = total
        return total

    close(same(lambda n, x: f(n, x, False), hf.asarray(3), hf.asarray(1.0)), 6.0)
    with pytest.raises(TraceError, match="'y' is read although an exception left out"):
        hf.compile(lambda n, x: f(n, x, True))(hf.asarray(3), hf.asarray(1.0))


# -- objects made anew --------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    count: Any = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    x: Any
    count: Any = 0


@dataclasses.dataclass
class Nested:
    x: Any
    count: Any = 0
    more: Any = None


class Pair(NamedTuple):
    x: Any
    count: Any = 0


class Plain:
    def __init__(self, x, count=0):
        self.x, self.count = x, count

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


KINDS = [Frozen, Slots, Nested, Pair, Plain]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_state_that_each_step_makes_anew(kind: Any, steps: int):
    def f(n, x):
        s = kind(x)
        for _ in range(n):
            s = kind(s.x * 2.0, s.count + 1)
        best = s
        while hf.sum(s.x) < 40.0:
            s = kind(s.x + 1.0, s.count + 1)
            if hf.sum(s.x) < 20.0:
                best = s
        return s.x, s.count, best.x, best.count

    same(f, hf.asarray(steps), hf.asarray([1.0, 2.0]))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 5])
def test_a_state_that_a_branch_makes(kind: Any, n: int):
    def f(n, x):
        s = kind(x)
        if n > 2:
            s = kind(s.x * 2.0, 7)
        t = kind(x * 3.0) if n > 3 else kind(x)
        if n > 0:
            u = kind(x * n)
        else:
            raise ValueError("no")
        return s.x, s.count, t.x, u.x

    same(f, hf.asarray(n), hf.asarray([1.0, 2.0]))


def test_replace_first_set_and_nested():
    def f(n, x):
        s = Nested(Plain(x), more={"b": [Frozen(x)], "a": x})
        for i in range(n):
            made = dataclasses.replace(s.more["b"][0], x=s.more["b"][0].x + s.x.x)
            s = dataclasses.replace(s, x=Plain(s.x.x * 1.5), more={"b": [made], "a": x * i})
            last = Plain(x * i)
        assert list(s.more) == ["b", "a"]
        return s.x.x, s.more["b"][0].x, s.more["a"], last.x

    same(f, hf.asarray(3), hf.asarray([1.0, 2.0]))


def test_gradients_go_through_a_state():
    def f(w):
        with hf.GradientTape() as tape, hf.max_iterations(6):
            tape.watch(w)
            s = Frozen(w)
            while hf.sum(s.x) < 50.0:
                s = dataclasses.replace(s, x=s.x * w)
            loss = hf.sum(s.x)
        return tape.gradient(loss, w)

    close(same(f, hf.asarray([2.0, 3.0])), np.array([4 * 2.0**3, 4 * 3.0**3]))


def test_a_dataclass_is_returned():
    def f(n, x):
        s = Frozen(x)
        for _ in range(n):
            s = Frozen(s.x * 2.0, s.count + 1)
        return s

    found = hf.compile(f)(hf.asarray(2), hf.asarray(3.0))
    assert type(found) is Frozen
    close((found.x, found.count), (12.0, 2))


def test_an_object_that_was_chosen_is_not_changed():
    def after_branch(n, x):
        s = Plain(x)
        if n > 2:
            s = Plain(x * 2.0)
        s.count = 3
        return s.x

    def after_loop(n, x):
        s = Plain(x)
        for _ in range(n):
            s = Plain(s.x * 2.0)
        setattr(s, "x", x)  # noqa: B010
        return s.x

    for f in (after_branch, after_loop):
        with pytest.raises(MutationError, match="which object is changed depends on a tensor"):
            hf.compile(f)(hf.asarray(3), hf.asarray(1.0))


@pytest.mark.parametrize("write", [
    lambda u: setattr(u, "x", 2), lambda u: object.__setattr__(u, "x", 2), lambda u: u.__dict__.update(x=2),
    lambda u: vars(u).pop("x"),
])
def test_attributes_written_by_functions_in_a_branch(write: Any):
    def f(n):
        u = Plain(1)
        if n > 2:
            write(u)
        return u.x

    with pytest.raises(MutationError, match="changes Python state in a branch"):
        hf.compile(f)(hf.asarray(1))


# -- expressions, exits, recursion --------------------------------------------------------------------------------


def test_two_lambdas_on_one_line():
    a, b = (lambda x: x * 2.0 if x > 0 else x * 3.0), (lambda x: x * 4.0 if x > 0 else x * 5.0)
    nested = lambda x: (lambda x: x * 6.0 if x > 0 else -x)(x) if x < 9 else x  # noqa: E731
    for value in (1.0, -1.0, 10.0):
        same(lambda x: (a(x), b(x), nested(x)), hf.asarray(value))


@pytest.mark.parametrize("limit", [1.5, 100.0])
def test_a_for_that_returns_or_else_does(limit: float):
    def rows(x):
        for i, v in enumerate(x):
            if v > limit:
                return i
        else:
            return -1

    def ranged(x, n):
        for i in range(n):
            if x[i] > limit:
                return i
        else:
            return -1

    same(rows, hf.asarray(X))
    same(ranged, hf.asarray(X), hf.asarray(5))


def total(items: Any) -> Any:
    found = 0.0
    for one in items:
        found = found + one
    return found


@pytest.mark.parametrize("f", [
    lambda x: total(filter(lambda v: v > 0, map(lambda v: v - 1.0, x))),
    lambda x: total(map(lambda v: v * 2, filter(lambda v: v > 0, x))),
    lambda x: total(filter(lambda v: v > 0, list(x))),
    lambda x: total(filter(None, filter(lambda v: v < 4, x))),
    lambda x: sum(map(lambda v: v * 2, filter(lambda v: v < 4, filter(lambda v: v > 0, x)))),
    lambda x: (max(filter(lambda v: v < 4, x)), any(filter(lambda v: v > 4, x)), min(map(lambda v: v * v, x))),
    lambda x: list(map(lambda a, b: a * b, x, x)),
    lambda x: total(filter(lambda i: i % 2 == 0, map(lambda i: i + 1, range(hf.argmax(x))))),
    lambda x: (list(filter(None, [1, 0, 2])), next(filter(None, [0, 3])), x),
])
def test_map_and_filter(f: Any):
    same(f, hf.asarray(X))


def test_a_filter_on_tensors_is_no_list():
    with pytest.raises(TraceError, match="filter: which items it keeps depends on a tensor"):
        hf.compile(lambda x: list(filter(lambda v: v > 0, x)))(hf.asarray(X))


def test_recursion_deeper_than_python_goes():
    def down(x, n):
        return x if n <= 0 else down(x * 1.01, n - 1)

    for max_depth, text in ((32, "more than 32 times"), (10_000, f"Python's limit of {sys.getrecursionlimit()} calls")):
        with pytest.raises(TraceError, match=text) as caught:
            hf.compile(down, max_depth=max_depth)(hf.asarray(1.0), hf.asarray(150))
        assert max_depth == 32 or isinstance(caught.value, DepthError | RecursionError)


@pytest.mark.parametrize("start", [1.0, {"a": 1.0, "none": None}, Pair(1.0, 0)])
def test_a_while_loop_of_one_value(start: Any):
    if isinstance(start, Pair):
        run = lambda: hf.while_loop(lambda x, n: x < 10, lambda x, n: (x * 2, n + 1), start)  # noqa: E731
    elif isinstance(start, dict):
        run = lambda: hf.while_loop(lambda d: d["a"] < 10, lambda d: {**d, "a": d["a"] * 2}, start)  # noqa: E731
    else:
        run = lambda: hf.while_loop(lambda x: x < 10, lambda x: x * 2, start)  # noqa: E731
    found = same(run)
    assert type(found) is (hf.Tensor if start == 1.0 else type(start))


# -- constant almost everywhere -----------------------------------------------------------------------------------

FLAT = [
    hf.sign, hf.floor, hf.ceil, hf.round, hf.trunc, lambda x: x // 2.0, lambda x: 7.0 // x,
    lambda x: hf.floor(hf.sqrt(hf.abs(x) * 0.0)), lambda x: hf.floor(x) if hf.sum(x) > 0 else hf.sign(x),
]


@pytest.mark.parametrize("op", FLAT)
def test_gradients_of_what_is_constant_almost_everywhere(op: Any):
    x = hf.asarray([1.5, -2.3])

    def taped(op: Any) -> Any:
        def run(x):
            with hf.GradientTape() as tape:
                tape.watch(x)
                y = hf.sum(op(x))
            return tape.gradient(y, x)

        return run

    def backward(op: Any) -> Any:
        w = hf.Variable([1.5, -2.3], requires_grad=True)
        hf.sum(op(w)).backward()
        return w.grad

    compiled = hf.compile(lambda x: op(x * 1.0))
    for found in (
        taped(op)(x), taped(compiled)(x), hf.compile(taped(op))(x), hf.grad(lambda x: hf.sum(op(x)))(x),
        hf.vjp(op, x)[1](x)[0], hf.jvp(op, (x,), (x,))[1], backward(op), backward(compiled),
    ):
        assert found is not None
        assert found.shape == (2,)
        np.testing.assert_array_equal(found.numpy(), 0.0)


def test_integers_in_between_have_no_gradient():
    x = hf.asarray([1.5, -2.3])
    for wrap in (lambda f: f, hf.compile):
        with hf.GradientTape() as tape:
            tape.watch(x)
            y = wrap(lambda x: hf.floor(x).astype(hf.int32).astype(hf.float32))(x)
        assert tape.gradient(y, x) is None


def test_a_tape_forgets_after_its_block():
    x = hf.Variable([1.0, 2.0])
    with hf.GradientTape(persistent=True) as tape:
        y = hf.sum(x * x)
    tape.reset()
    assert tape.gradient(y, x) is None
    assert tape.watched_variables() == ()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="names the default device")
def test_naming_the_default_device_changes_nothing():
    f = hf.compile(lambda x: x * 2.0)
    x = hf.asarray([1.0])
    f(x)
    for name in ("cpu", "cpu:0"):
        with hf.device(name):
            f(x)
    assert f.trace_count == 1
    assert f.cache_info().executables == 1


@pytest.mark.parametrize("made", [
    "with hf.GradientTape() as held:\n{indent}    y = v * v", "held = lambda a: a * v; y = v * v",
])
@pytest.mark.parametrize("inner", ["def inner(v):", "def inner(v, held=None):", "async def inner(v):"])
def test_names_of_nested_functions_are_their_own(made, inner, tmp_path):
    text = ["def f(xs):", "    last = xs[0]", "    for v in xs:", "        " + made.format(indent=" " * 8)]
    text += [f"        {inner}", "            " + made.format(indent=" " * 12), "            return held, y"]
    space = program("\n".join([*text, "        last = last + y", "    return last"]), tmp_path / "f.py", hf=hf)
    assert hf.compile(space["f"])(hf.asarray([1.0, 2.0])).item() == 6.0

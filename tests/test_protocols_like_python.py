"""Python's protocols are CPython's in a compiled function: the same value, exception and order of calls."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from protocol_programs import HELPERS, program

import hybridflow as hf
from hybridflow.core.errors import ArgumentError, DTypeError, MutationError, ShapeError, TraceError

helpers = sys.modules["protocol_helpers"] = ModuleType("protocol_helpers")
exec(compile(HELPERS, "<frozen protocol_helpers>", "exec"), vars(helpers))


def loaded(path: Path, name: str) -> ModuleType:
    """Import a program; each import has its own classes and its own `OUT`."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def differences(seeds: range, folder: Path) -> list[str]:
    """Run programs plainly and in one compiled function; return the texts of those that differ."""
    texts = {seed: program(seed) for seed in seeds}
    plain: list[Any] = []
    traced: list[Any] = []
    for seed, text in texts.items():
        path = folder / f"program_{seed}.py"
        path.write_text(text)
        plain.append(loaded(path, f"program_{seed}"))
        traced.append(loaded(path, f"program_{seed}"))
    for module in plain:
        module.run()

    @hf.compile
    def run(x: Any) -> Any:
        for module in traced:
            module.run()
        return x

    run(hf.asarray(1.0))
    return [_told(seed, text, one.OUT, other.OUT)
            for (seed, text), one, other in zip(texts.items(), plain, traced, strict=True) if one.OUT != other.OUT]


def _told(seed: int, text: str, right: list[str], wrong: list[str]) -> str:
    at = next((i for i, (a, b) in enumerate(zip(right, wrong, strict=False)) if a != b), min(len(right), len(wrong)))
    classes = text[text.index("    return args, named") + 20:text.index("def run")]
    uses = [i for i, one in enumerate(right[:at]) if one.startswith("t = ") or ";" in one or "\\n" in one]
    start = max([0, *uses])
    return f"{classes}\nseed {seed}\nPython: {right[start:at + 3]}\ntraced: {wrong[start:at + 3]}"


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("start", range(0, 45, 15))
def test_random_classes(start: int, tmp_path: Path):
    assert not differences(range(start, start + 15), tmp_path)


@pytest.mark.rest
@pytest.mark.parametrize("start", range(1000, 3500, 25))
def test_ten_thousand_random_classes(start: int, tmp_path: Path):
    assert not differences(range(start, start + 25), tmp_path)


# -- iterators over tensors are used up once ----------------------------------------------------------------------

MADE: dict[str, Callable[[Any], Any]] = {
    "zip": lambda x: zip(x, x * 2, strict=True),
    "zip of unequal lengths": lambda x: zip(x, x[:3], x[1:], strict=False),
    "enumerate": lambda x: enumerate(x, 5),
    "reversed": reversed,
    "iter": iter,
    "map": lambda x: map(lambda v: v + 1, x),
    "map of two": lambda x: map(lambda v, w: v * w, x, reversed(x)),
    "filter": lambda x: filter(lambda v: v is not None, x),
    "zip of enumerate": lambda x: zip(enumerate(x), x[:3], strict=False),
    "enumerate of zip": lambda x: enumerate(zip(x[:3], x, strict=False)),
}


def number(value: Any) -> Any:
    """Return one number for an item, which depends on all parts of it."""
    if not isinstance(value, tuple):
        return value
    made = 0.0
    for one in value:
        made = made * 3 + number(one)
    return made


def two_loops(items: Any) -> Any:
    total = 0.0
    for one in items:
        total = total * 2 + number(one)
    for one in items:
        total = total * 5 + number(one) * 7
    return total


def loop_after_break(items: Any) -> Any:
    total = 0.0
    for one in items:
        total = total * 2 + number(one)
        if total > 3.0:
            break
    for one in items:
        total = total * 5 + number(one) * 7
    return total


def break_then_list(items: Any) -> Any:
    for one in items:
        if number(one) > 3.0:
            break
    return [number(one) for one in items]


def list_twice(items: Any) -> Any:
    return [number(one) for one in list(items)], list(items)


def pairs(items: Any) -> Any:
    return [number(one) for one in zip(items, items, strict=False)]


def unpacked(items: Any) -> Any:
    first, second, *rest = items
    return number(first), number(second), [number(one) for one in rest], list(items)


def next_then_loop(items: Any) -> Any:
    first, total = number(next(items)), 0.0
    for one in items:
        total = total * 2 + number(one)
    return first, total, next(items, 9.0)


def sources_left(items: Any) -> Any:
    total = 0.0
    for count, one in enumerate(items):
        total = total * 2 + number(one) + count
    return total, [number(one) for one in items]


def part_by_next(items: Any) -> Any:
    other = zip(items, hf.asarray([1.0, 2.0]), strict=False)
    first, total = number(next(other)), 0.0
    for one in other:
        total = total * 2 + number(one)
    return first, total, [number(one) for one in items]


USES = [
    two_loops, loop_after_break, break_then_list, list_twice, pairs, unpacked, next_then_loop, sources_left,
    part_by_next,
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use.__name__)
@pytest.mark.parametrize("made", MADE)
def test_an_iterator_over_tensors_is_used_up_once(made: str, use: Callable[[Any], Any]):
    def f(x: Any) -> Any:
        return use(MADE[made](x))

    x = hf.asarray([1.0, 2.0, 3.0, 4.0])
    eager = jax.tree_util.tree_leaves(f(x))
    unknown = use is break_then_list or (use is loop_after_break and made in ("map", "map of two", "iter"))
    if unknown:  # where the loop stops depends on a tensor
        with pytest.raises(TraceError, match="what is left of an iterator depends on a tensor, which stops"):
            hf.compile(f)(x)
        return
    compiled = jax.tree_util.tree_leaves(hf.compile(f)(x))
    np.testing.assert_array_equal([float(one) for one in eager], [float(one) for one in compiled])


def test_an_iterator_is_not_moved_in_a_branch():
    def f(x: Any) -> Any:
        items = enumerate(x)
        if hf.sum(x) > 0:
            x = x * next(items)[1]
        return x

    with pytest.raises(MutationError, match=r"enumerate\.__next__\(\): changes Python state in a branch"):
        hf.compile(f)(hf.asarray([1.0, 2.0]))


@pytest.mark.parametrize("kind", ["list", "generator", "object"])
def test_what_a_loop_left_of_pythons_iterators_is_not_guessed(kind: str):
    class Counting:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> int:
            if self.at == 5:
                raise StopIteration
            self.at += 1
            return self.at

    def f(x: Any) -> Any:
        numbers = [1, 2, 3]
        items = iter(numbers) if kind == "list" else (one for one in numbers) if kind == "generator" else Counting()
        for one in items:
            x = x * one
            if x > 4:
                break
        return x + next(items, 7)

    with pytest.raises(TraceError, match="what is left of an iterator depends on a tensor"):
        hf.compile(f)(hf.asarray(3.0))


def test_an_endless_container_is_not_searched_for_ever():
    class Endless:
        def __iter__(self) -> Any:
            while True:
                yield 1

    with pytest.raises(TraceError, match="in: an iterator of unknown length, which only a tensor could stop"):
        hf.compile(lambda x: x in Endless())(hf.asarray(3.0))
    assert bool(hf.compile(lambda x: x * (1 in Endless()))(hf.asarray(3.0)) == 3.0)


# -- sorting and sums ---------------------------------------------------------------------------------------------


def by_first(x: Any) -> Any:
    made = sorted([(x[0], 3, {"k": 2.5}), (x[1], 1, {"k": 0.5}), (x[2], 2, {"k": 1.5})], key=lambda one: one[0])
    return [(score, index * 10 + 0.25, kept["k"] + index / 2) for score, index, kept in made]


def ties(x: Any) -> Any:
    made = sorted(((one // 2, place) for place, one in enumerate(x)), key=lambda one: one[0], reverse=True)
    return [place for _, place in made]


def by_numbers(x: Any) -> Any:
    found: list[Any] = []
    for one in (x[0], x[1], x[2]):
        count = 0
        if one > 1.5:
            count = 5
        found.append(count)
    return sorted(found), sorted([True, x[0] > 2])


@pytest.mark.parametrize("f", [by_first, ties, by_numbers], ids=lambda f: f.__name__)
def test_a_sort_by_tensors_keeps_items_whole(f: Callable[[Any], Any]):
    compiled = hf.compile(f)
    for values in itertools.permutations([1.0, 2.0, 3.0]):
        x = hf.asarray(values)
        eager, made = (jax.tree_util.tree_flatten(one) for one in (f(x), compiled(x)))
        assert eager[1] == made[1]
        assert [float(one) for one in eager[0]] == [float(one) for one in made[0]]


@pytest.mark.parametrize(
    ("f", "error", "text"),
    [
        (lambda x: sorted(["a", "b"], key=lambda one: x[0] if one == "a" else x[1]), TraceError, "differ in more than"),
        (lambda x: sorted([(x[0],), (x[1], 2)], key=lambda one: one[0]), TraceError, "differ in more than"),
        (lambda x: sorted([x[0], hf.astype(x[1], hf.int32)]), DTypeError, "the keys have different dtypes"),
        (lambda x: sorted([x, x + 1]), ShapeError, "exactly one element"),
        (lambda x: sorted([x[0] * hf.nan, x[1]]), ArgumentError, "a key is NaN"),
    ],
)
def test_what_cannot_be_sorted_says_why(f: Callable[[Any], Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        jax.tree_util.tree_map(float, hf.compile(f)(hf.asarray([2.0, 1.0])))


def test_a_sum_of_floats_is_cpythons():
    state = SimpleNamespace(a=0.0, b=1e16)
    f: Any = hf.compile(lambda x: x * sum([0.1, state.a, state.b, 0.1, -1e16, state.a]))
    for state.a in (0.1, 0.2, 0.3, 0.7):
        eager = hf.asarray(1.0) * sum([0.1, state.a, state.b, 0.1, -1e16, state.a])
        assert float(f(hf.asarray(1.0))) == float(eager)
    assert f.trace_count <= 2


@pytest.mark.parametrize("start", [0, 1, -(10**20), True, 0.5])
@pytest.mark.parametrize(
    "items",
    [[10**20], [2, 10**20], [10**20, 10**30, 1.5], [True, 10**19], [10**20, "k"], ["k", 2**62, 2**62], ["k"], []],
)
def test_a_sum_that_no_tensor_decides_may_be_of_any_size(items: list[Any], start: Any):
    def f(x: Any, k: float) -> Any:
        return x * float(sum([k if one == "k" else one for one in items], start))

    compiled = hf.compile(f)
    for k in (1.5, 2.5, -1e20):
        assert compiled(hf.ones(()), k).item() == f(hf.ones(()), k).item()


def test_a_sum_of_floats_that_a_tensor_decides_is_cpythons():
    def f(x: Any) -> Any:
        a, b = 0.1, 3
        if x > 0:
            a, b = 0.7, 1 << 40
        return x * 0 + sum([0.1, a, 1e16, b, a, -1e16, a]) + sum([b, b]) + sum([a, a, a, a, a, a, a], 0.3)

    compiled = hf.compile(f)
    for value in (1.0, -1.0):
        x = hf.asarray(value, dtype=hf.float64)
        assert float(compiled(x)) == float(f(x))


# -- what else reaches CPython's operations -----------------------------------------------------------------------


def test_a_changing_check_of_a_pattern_is_seen():
    answer = [True]

    class Asking(type):
        def __instancecheck__(cls, obj: Any) -> bool:
            return answer[0]

    class Asked(metaclass=Asking):
        pass

    def f(x: Any) -> Any:
        match 5:
            case Asked():  # pyright: ignore[reportUnnecessaryComparison]
                return x * 2
            case _:
                return x * 3

    compiled: Any = hf.compile(f)
    assert float(compiled(hf.asarray(1.0))) == 2
    answer[0] = False
    assert float(compiled(hf.asarray(1.0))) == 3


def test_a_dataclass_sees_its_own_fields_only():
    @dataclass
    class Point:
        a: Any

        def __post_init__(self) -> None:
            self.seen = sorted(vars(self))

    assert float(hf.compile(lambda x: x * (Point(x).seen == ["a"]))(hf.asarray(2.0))) == 2


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the syntax is Python 3.12's")
def test_generic_functions_are_converted(tmp_path: Path):
    (tmp_path / "generic.py").write_text(GENERIC)
    module = loaded(tmp_path / "generic.py", "generic")
    for name in ("f", "named", "made"):
        function = getattr(module, name)
        for value in (1.0, -1.0):
            compiled = hf.compile(function)
            assert float(compiled(hf.asarray(value))) == float(function(hf.asarray(value)))
            compiled(hf.asarray(value + 1))
            assert compiled.trace_count == 1


GENERIC = """
def f[T: (int, float)](x: T, *more: T) -> T:
    def inner[U](y: U) -> U:
        if y > 0:
            return y * 2
        return y - len((U.__name__,))
    return inner(x)


class Box[T]:
    def __init__(self, held: T) -> None:
        self.held = held

    def put[S](self, x: S) -> T:
        if x > 0:
            return x * self.held
        return x


def named[T](x: T) -> T:
    return x * len(T.__name__)


def made(x):
    class Local[V]:
        def get[W](self, w: W, *more: V) -> W:
            return w + len(V.__name__)
    return Local().get(Box(3.0).put(x))
"""

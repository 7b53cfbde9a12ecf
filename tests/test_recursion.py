"""Recursion of plain Python is as deep in compiled functions as in eager mode, and endless recursion is an error."""

from __future__ import annotations

import functools
import sys
import threading
from typing import Any

import pytest

import hybridflow as hf
from hybridflow.core.errors import DepthError, EffectWarning


def plain(n):
    return 0 if n == 0 else 1 + plain(n - 1)


def even(n):
    if n == 0:
        return 0
    return 1 + odd(n - 1)


def odd(n):
    return 1 + even(n - 1)


class Tree:
    def method(self, n):
        if n == 0:
            return 0
        return 1 + self.method(n - 1)

    def __call__(self, n):
        return 0 if n == 0 else 1 + self(n - 1)

    def __getitem__(self, n):
        return 0 if n == 0 else 1 + self[n - 1]

    @classmethod
    def of_class(cls, n):
        return 0 if n == 0 else 1 + cls.of_class(n - 1)

    @staticmethod
    def static(n):
        return 0 if n == 0 else 1 + Tree.static(n - 1)


def comprehension(n):
    return 0 if n == 0 else 1 + sum([comprehension(k) for k in [n - 1]])


def generator_expression(n):
    return 0 if n == 0 else 1 + sum(generator_expression(k) for k in [n - 1])


def generator(n):
    if n == 0:
        yield 0
    else:
        for one in generator(n - 1):
            yield one + 1


def mapped(n):
    return 0 if n == 0 else 1 + sum(map(mapped, [n - 1]))


def loop(n):
    total = 0
    for k in range(1 if n else 0):
        total += 1 + loop(n - 1) + k
    return total


def wrapped(f):
    @functools.wraps(f)
    def wrapper(*args):
        return f(*args)

    return wrapper


@wrapped
def decorated(n):
    return 0 if n == 0 else 1 + decorated(n - 1)


def nested_lists(n):
    made: list[Any] = []
    for _ in range(n):
        made = [made]
    return depth_of(made)


def depth_of(lists):
    return sum([1 + depth_of(one) for one in lists])


def with_try(n):
    try:
        return 0 if n == 0 else 1 + with_try(n - 1)
    finally:
        pass


def reduced(n):
    return 0 if n == 0 else functools.reduce(lambda total, k: total + reduced(k), [n - 1], 1)


def by_key(n):
    return 0 if n == 0 else 1 + by_key(min([n - 1], key=lambda k: k))


SHAPES = {
    "plain": plain, "mutual": even, "method": Tree().method, "call": Tree(), "getitem": Tree().__getitem__,
    "classmethod": Tree.of_class, "staticmethod": Tree.static, "comprehension": comprehension,
    "generator expression": generator_expression, "generator": lambda n: next(iter(generator(n))), "map": mapped,
    "loop": loop, "decorated": decorated, "nested lists": nested_lists, "try": with_try, "reduce": reduced,
    "key": by_key, "partial": functools.partial(plain), "lambda": lambda n: plain(n),
}


def result_of(f, n):
    try:
        return f(n)
    except RecursionError:
        return None


@pytest.mark.parametrize("shape", SHAPES)
def test_recursion_that_works_in_eager_mode_works_compiled(shape):
    f = SHAPES[shape]
    limit = sys.getrecursionlimit()
    for n in (150, 300, 600, 900):
        expected = result_of(f, n)
        if expected is not None:
            assert hf.compile(f)(n) == expected == n
    assert sys.getrecursionlimit() == limit


@pytest.mark.parametrize("shape", SHAPES)
def test_endless_recursion_is_an_error(shape):
    limit = sys.getrecursionlimit()
    n = 10**6 if shape != "nested lists" else 10**4
    with pytest.raises(DepthError, match="nested too deep: Python's limit of 1000 calls inside each other was reached"):
        hf.compile(SHAPES[shape])(n)
    assert sys.getrecursionlimit() == limit
    assert hf.compile(SHAPES[shape])(4) == 4


def in_threads(count, size, call):
    """Run a function in threads that have stacks of a size."""
    outcomes: list[Any] = []

    def run(number):
        try:
            outcomes.append(call(number))
        except Exception as error:
            outcomes.append(type(error))

    before = threading.stack_size(size)
    try:
        threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
        for one in threads:
            one.start()
    finally:
        threading.stack_size(before)
    for one in threads:
        one.join()
    return outcomes


@pytest.mark.parametrize("size", [0, 1 << 20])
@pytest.mark.parametrize("shape", ["plain", "map", "loop"])
def test_recursion_in_threads_whose_stacks_are_smaller(shape, size):
    limit = sys.getrecursionlimit()
    depths = [100, 10**6, 150]
    outcomes = in_threads(3, size, lambda number: hf.compile(SHAPES[shape])(depths[number]))
    assert sorted(outcomes, key=str) == sorted([100, DepthError, 150], key=str)
    assert sys.getrecursionlimit() == limit


def test_the_users_code_sees_and_sets_the_users_limit():
    limit = sys.getrecursionlimit()
    compiled = hf.compile(lambda x: x * sys.getrecursionlimit())
    try:
        assert compiled(1) == limit
        sys.setrecursionlimit(limit + 7)
        assert compiled(1) == limit + 7
        assert compiled(1) == limit + 7
        assert compiled.trace_count == 2

        def sets(x):
            sys.setrecursionlimit(limit + 9)
            return x * sys.getrecursionlimit()

        with pytest.warns(EffectWarning, match="traced again at every call"):
            assert hf.compile(sets)(1) == limit + 9
        assert sys.getrecursionlimit() == limit + 9
    finally:
        sys.setrecursionlimit(limit)


def test_traces_in_traces_share_one_limit():
    limit = sys.getrecursionlimit()

    def inner(x):
        return x + plain(400)

    def outer(x):
        hf.compile(inner)(x)
        return inner(x) + plain(400)

    assert hf.compile(outer)(1) == 801
    assert sys.getrecursionlimit() == limit

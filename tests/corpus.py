"""Small functions by construct, each run eagerly and compiled: same results, gradients and errors.

A function's `@on` gives the arguments to call it with; numbers and lists become tensors. `grad` asks for the
gradient of the sum of its floating-point results too.
"""

# ruff: noqa: B007, B905, E731

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import namedtuple
from collections.abc import Callable
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import jax
import numpy as np

import hybridflow as hf

CASES: list[Case] = []
Point = namedtuple("Point", "x y")


class Case(NamedTuple):
    """A function and the calls to make."""

    function: Callable[..., Any]
    calls: tuple[tuple[Any, ...], ...]
    grad: bool


def on(*calls: Any, grad: bool = True) -> Callable[[Any], Any]:
    """Add a function to the corpus."""

    def add(function: Any) -> Any:
        CASES.append(Case(function, tuple([one if isinstance(one, tuple) else (one,) for one in calls]), grad))
        return function

    return add


# -- if -----------------------------------------------------------------------------------------------------------


@on(2.0, -3.0, 0.0)
def if_else(x):
    if x > 0:
        y = x * x
    else:
        y = -x
    return y


@on(2.0, -3.0)
def if_alone(x):
    y = x
    if x > 0:
        y = y * 3
    return y


@on(2.0, -3.0, 0.5)
def elif_chain(x):
    if x > 1:
        y = x * 2
    elif x > 0:
        y = x * 3
    elif x > -1:
        y = x * 4
    else:
        y = x * 5
    return y + 1


@on((2.0, 1.0), (2.0, -1.0), (-2.0, 1.0), (-2.0, -1.0))
def if_nested(x, y):
    if x > 0:
        if y > 0:
            z = x * y
        else:
            z = x - y
    else:
        z = y
        if y > 0:
            z = z + x
    return z


@on(2.0, -3.0)
def if_return(x):
    if x > 0:
        return x * 2
    return x - 1


@on(2.0, -3.0)
def if_return_both(x):
    if x > 0:
        return x * 2
    else:
        return x * 3


@on(3.0, 0.5, -1.0, -5.0)
def if_return_many(x):
    if x > 2:
        return x
    if x > 0:
        y = x * 2
        if y > 1.5:
            return y
    else:
        if x < -3:
            return x * x
        y = -x
    return y + 10


@on(2.0, -2.0)
def if_several_variables(x):
    a, b, c = x, x + 1, x + 2
    if x > 0:
        a, b = b, a
        c = c * 2
    else:
        b = a + c
    return a, b, c


@on(2.0, -2.0)
def if_reads_old_value_in_else(x):
    t = x + 1
    if x > 0:
        t = t * 10
        y = t
    else:
        y = t
    return y


@on(2.0, -2.0)
def if_dead_variables_differ(x):
    if x > 0:
        t = hf.stack([x, x])
        y = hf.sum(t)
    else:
        t = "text"
        y = x
    return y


@on(2.0, -2.0)
def if_one_sided_variable_not_read(x):
    if x > 0:
        t = x * 2
        x = t
    return x


@on(2.0, -2.0)
def if_none_in_both(x):
    if x > 0:
        extra, y = None, x
    else:
        extra, y = None, -x
    return y if extra is None else extra


@on(2.0, -2.0)
def if_number_against_tensor(x):
    if x > 0:
        y = x * 2
    else:
        y = 0.0
    return y


@on(2.0, -2.0)
def if_int_against_float_tensor(x):
    y = 1
    if x > 0:
        y = x
    return y + x


@on(2.0, -2.0)
def if_structures(x):
    state = {"a": x, "b": [x, (x, None)]}
    if x > 0:
        state = {"a": x * 2, "b": [x, (x + 1, None)]}
    return state


@on(2.0, -2.0)
def if_namedtuple(x):
    p = Point(x, x * 2)
    if x > 0:
        p = p._replace(y=x * 5)
    return p.x + p.y


@on(2.0, -2.0)
def if_on_python_value_inside(x):
    for flag in (True, False):
        if flag:
            if x > 0:
                x = x * 2
        else:
            x = x + 1
    return x


@on(2.0, 0.0, grad=False)
def if_truth_of_float(x):
    return 1 if x else 0


@on([2.0], [0.0])
def if_truth_of_one_element(x):
    if x:
        return x * 2
    return x + 1


@on(3, 0, grad=False)
def if_truth_of_integer(n):
    if not n:
        return n - 1
    return n + 1


@on([1.0, 2.0], [3.0, -2.0])
def if_all_any(x):
    if hf.all(x > 0):
        return hf.sum(x)
    if hf.any(x > 2):
        return hf.prod(x)
    return hf.max(x)


@on(2.0, -2.0)
def if_pass(x):
    if x > 0:
        pass
    else:
        x = -x
    return x


@on(2.0, -2.0)
def if_augmented(x):
    y = x
    if x > 0:
        y += x
        y *= 2
    else:
        y -= 1
    return y


@on(2.0, -2.0)
def if_unpacking(x):
    a, (b, *rest) = x, (x + 1, x + 2, x + 3)
    if x > 0:
        a, (b, *rest) = b, (a, x, x * x)
    return a, b, rest


@on(2.0, -2.0)
def if_walrus(x):
    if (y := x * 2) > 1:
        return y
    return y - 1


@on(2.0, -2.0)
def if_with_function_inside(x):
    if x > 0:
        def f(v):
            return v * 3

        y = f(x)
    else:
        y = (lambda v: v * 4)(x)
    return y


@on(2.0, -2.0)
def if_branch_defines_the_rest(x):
    if x > 0:
        y = x
        z = y * 2
    else:
        z = x
        y = z * 3
    w = y + z
    return w * 2


@on(2.0, -2.0)
def if_bool_result(x):
    big = False
    if x > 0:
        big = x > 1
    return hf.where(big, x, x * 2)


@on(2.0, -2.0)
def if_equal_python_values(x):
    if x > 0:
        n, y = 3, x
    else:
        n, y = 3, x * 2
    return y * [1, 2, 3, 4][n]


@on(2.0, -2.0)
def if_equal_computed_values(x):
    if x > 0:
        n, y = len("ab") * 1000, x
    else:
        n, y = len("cd") * 1000, x * 2
    return y * int("1234"[n // 1000])


@on((2.0, 1.0), (2.0, -1.0), (-2.0, 1.0), (-2.0, -1.0))
def if_kept_through_inner_branches(x, z):
    y = x
    if z > 0:
        y = y * 10
    if x > 0:
        if z < 0:
            y = x * 2
    else:
        if z < 0:
            y = x * 3
    return y


@on((2.0, True), (2.0, False), (-2.0, True))
def if_on_several_conditions(x, flag):
    if x > 0 and flag:
        return x * 2
    if x < 0 or flag:
        return x * 3
    return x


@on([[1.0, 2.0], [3.0, 4.0]])
def if_in_called_helper(x):
    return helper_sign(hf.sum(x)) * x + helper_sign(-hf.sum(x))


def helper_sign(v):
    if v > 0:
        return 1.0
    return -1.0


# -- while --------------------------------------------------------------------------------------------------------


@on(9.0, 0.5, grad=False)
def while_simple(x):
    while x > 1:
        x = x / 2
    return x


@on(9.0, 0.5, grad=False)
def while_counter(x):
    n = 0
    while x > 1:
        x = x / 2
        n += 1
    return x, n


@on(9.0, grad=False)
def while_break(x):
    n = 0
    while True:
        x = x * 0.5
        if x < 1:
            break
        n = n + 1
    return x, n


@on((9.0, 3), (9.0, 0), grad=False)
def while_continue(x, n):
    i = 0
    while i < n:
        i += 1
        if x > 20:
            continue
        x = x * 2
    return x, i


@on(9.0, 0.1, grad=False)
def while_else(x):
    while x > 1:
        x = x / 2
        if x < 0.6:
            break
    else:
        x = x + 100
    return x


@on(9.0, 200.0, grad=False)
def while_return(x):
    while x < 100:
        x = x * 3
        if x > 50:
            return x
    return -x


@on(9.0, grad=False)
def while_return_from_endless(x):
    n = 0
    while True:
        if x < 1:
            return x, n
        x, n = x / 2, n + 1


@on(5.0, 0.0, grad=False)
def while_nested(x):
    total = x * 0
    while x > 0:
        y = x
        while y > 0:
            total = total + y
            y = y - 2
        x = x - 1
    return total


@on(9.0, grad=False)
def while_walrus(x):
    while (y := x / 2) > 1:
        x = y
    return x, y


@on(9.0, grad=False)
def while_walrus_and_break(x):
    n = 0
    while (y := x / 2) > 1:
        x = y
        n += 1
        if n > 1:
            break
    return x, y, n


@on(9.0)
def while_python(x):
    n = 0
    while n < 3:
        x = x * 2
        n += 1
    return x, n


@on(3.0)
def while_static_bound(x):
    i = hf.asarray(0)
    while i < 4:
        x = x * 1.5
        i = i + 1
    return x


@on(9.0, 0.1, grad=False)
def while_first_set_in_loop(x):
    last = x
    while x > 1:
        x = x / 2
        step = x * 3
        last = step
    return last


@on([9.0, 3.0], grad=False)
def while_vector_state(x):
    state = (x, {"n": 0})
    while hf.max(state[0]) > 1:
        state = (state[0] / 2, {"n": state[1]["n"] + 1})
    return state


@on(9.0, grad=False)
def while_int_becomes_float(x):
    total = 0
    while x > 1:
        total = total + x
        x = x / 2
    return total


@on((4.0, 1.0), (4.0, 3.9), grad=False)
def while_two_conditions(x, y):
    n = 0
    while x > 1 and y < 4:
        x, y, n = x / 2, y + 0.5, n + 1
    return x, y, n


@on(9.0, grad=False)
def while_condition_with_call(x):
    def more(v):
        return v > 1

    while more(x):
        x = x - 3
    return x


@on(9.0, grad=False)
def while_else_without_break(x):
    while x > 1:
        x = x / 2
    else:
        x = x * 7
    return x


@on(7, 27, grad=False)
def while_collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n = n // 2
        else:
            n = 3 * n + 1
        steps += 1
    return steps


# -- for ----------------------------------------------------------------------------------------------------------


@on([1.0, 2.0, 3.0])
def for_rows(x):
    total = 0.0
    for v in x:
        total = total + v * v
    return total


@on([[1.0, 2.0], [3.0, 4.0]])
def for_matrix_rows(x):
    total = hf.zeros((2,))
    for row in x:
        total = total * 0.5 + row
    return total


@on([1.0, 5.0, 2.0], [1.0, 2.0, 3.0])
def for_break(x):
    total = 0.0
    for v in x:
        if v > 4:
            break
        total = total + v
    return total


@on([1.0, -5.0, 2.0])
def for_continue(x):
    total = 0.0
    for v in x:
        if v < 0:
            continue
        total += v * v
    return total


@on([1.0, 5.0], [1.0, 2.0])
def for_else(x):
    for v in x:
        if v > 4:
            y = v * 2
            break
    else:
        y = v
    return y


@on([1.0, 5.0, 7.0], [1.0, 2.0])
def for_return(x):
    for v in x:
        if v > 4:
            return v * 10
    return hf.sum(x)


@on((2.0, 3), (2.0, 0), grad=False)
def for_range_tensor(x, n):
    for _ in range(n):
        x = x * 2
    return x


@on((2.0, 3, 9, 2), (2.0, 5, 1, -2), (2.0, 5, 1, 1), grad=False)
def for_range_three(x, a, b, c):
    for i in range(a, b, c):
        x = x + i
    return x


@on((2.0, 10, 1), (2.0, 10, 0), grad=False)
def for_range_without_step(x, n, step):
    for i in range(0, n, step * 2):
        x = x + i
    return x


@on((2.0, 10), grad=False)
def for_range_zero_step(x, n):
    for i in range(0, n, 0):
        x = x + i
    return x


@on((2.0, 10), grad=False)
def for_range_break(x, n):
    for i in range(n):
        x = x * 1.5
        if x > 8:
            break
    return x, i


@on(2.0)
def for_range_python(x):
    for i in range(4):
        x = x + i
    return x, i


@on(3.0, 30.0)
def for_range_python_tensor_break(x):
    for i in range(5):
        if x > 10:
            break
        x = x * 2
    return x, i


@on(3.0, 30.0)
def for_range_python_tensor_return(x):
    for _ in range(5):
        if x > 10:
            return x
        x = x * 2
    return -x


@on(3.0, 30.0)
def for_list_with_else(x):
    for k in [1.0, 2.0, 3.0]:
        if x * k > 20:
            break
    else:
        x = x * 100
    return x


@on(2.0)
def for_arange(x):
    for i in hf.arange(4):
        x = x + i
    return x


@on([1.0, 2.0, 3.0])
def for_enumerate(x):
    total = 0.0
    for i, v in enumerate(x):
        total = total + v * i
    return total


@on([1.0, 2.0, 3.0])
def for_enumerate_from_one(x):
    total = 0.0
    for i, v in enumerate(x, 1):
        total = total + v * i
    return total


@on(([1.0, 2.0, 3.0], [4.0, 5.0]))
def for_zip(x, y):
    total = 0.0
    for a, b in zip(x, y):
        total = total + a * b
    return total


@on(([1.0, 2.0], [4.0, 5.0]))
def for_zip_enumerate(x, y):
    total = 0.0
    for i, (a, b) in enumerate(zip(x, y)):
        total = total + a * b * (i + 1)
    return total


@on([1.0, 2.0, 3.0])
def for_reversed(x):
    total = 0.0
    for v in reversed(x):
        total = total * 2 + v
    return total


@on([[1.0, 2.0], [3.0, 4.0]])
def for_nested_rows(x):
    total = 0.0
    for row in x:
        for v in row:
            if v > 1.5:
                total = total + v
    return total


@on([[1.0, 2.0], [3.0, -4.0], [5.0, 6.0]])
def for_nested_break(x):
    total = 0.0
    for row in x:
        for v in row:
            if v < 0:
                break
            total = total + v
        else:
            continue
        break
    return total


@on([1.0, 2.0])
def for_target_after_loop(x):
    for v in x:
        pass
    return v


@on([1.0, 2.0])
def for_last_set_in_loop(x):
    for v in x:
        y = v * 3
    return y


@on([1.0, 2.0, 3.0])
def for_unpacked_rows(x):
    total = 0.0
    for a, b in [(x[0], x[1]), (x[1], x[2])]:
        total = total + a * b
    return total


@on(2.0)
def for_dict_items(x):
    total = x
    for name, k in {"a": 1, "bb": 2}.items():
        total = total * k + len(name)
    return total


@on([1.0, 2.0, 3.0, 4.0])
def for_if_else_inside(x):
    even, odd = 0.0, 0.0
    for i, v in enumerate(x):
        if i % 2 == 0:
            even = even + v
        else:
            odd = odd + v * v
    return even, odd


@on([1.0, 2.0, 3.0])
def for_running_maximum(x):
    best, where = x[0], 0
    for i, v in enumerate(x * hf.asarray([1.0, -1.0, 0.5])):
        if v > best:
            best, where = v, i
    return best, where


@on((2.0, [1.0, 2.0]))
def for_over_tuple_of_tensors(x, y):
    total = 0.0
    for t in (x, y[0], y[1]):
        total = total + t * t
    return total


@on(1.0)
def for_itertools(x):
    for a, b in itertools.product((1, 2), repeat=2):
        x = x * a + b
    return x


@on([[1.0, 2.0], [3.0, 4.0]])
def for_state_dict(x):
    state = {"sum": hf.zeros((2,)), "n": 0}
    for row in x:
        state = {"sum": state["sum"] + row, "n": state["n"] + 1}
    return state["sum"], state["n"]


@on([2.0, 3.0, 4.0])
def for_horner(x):
    y = x[0]
    for c in x[1:]:
        y = y * 0.5 + c
    return y


@on(([1.0, 2.0, 3.0], 2.0), ([1.0, 2.0, 3.0], 9.0))
def for_search_with_flag(x, wanted):
    found = False
    for v in x:
        if v == wanted:
            found = True
    return hf.where(found, wanted * 2, wanted)


@on([1.0, 2.0, 3.0])
def for_while_inside(x):
    total = 0.0
    for v in x:
        n = 0
        while n < 2:
            total = total + v
            n += 1
    return total


@on([1.0, 2.0, 3.0])
def append_rows(x):
    out = []
    total = 0.0
    for v in x:
        total = total + v * v
        out.append(total)
    return hf.stack(out)


@on([1.0, -2.0, 3.0])
def append_structures(x):
    out = [(x[0], {"n": 0.0})]
    for i, v in enumerate(x):
        if v > 0:
            w = v * 2
        else:
            w = v
        out.append((w, {"n": v * i}))
        out.append((w * 2, {"n": 1.0}))
    return out


@on([[1.0, 2.0], [3.0, 4.0]])
def append_in_nested_loops(x):
    out = []
    for row in x:
        inner = []
        for v in row:
            out.append(v * 2)
            inner.append(v)
        out.append(sum(inner))
    return out


# -- and, or, not, comparisons, ternaries ---------------------------------------------------------------------------


@on((1.0, 2.0), (-1.0, 2.0), (1.0, -2.0), grad=False)
def bool_and_or(x, y):
    return x > 0 and y > 0, x > 0 or y > 0, not x > 0, not (x > 0 and y > 0)


@on((1.0, 2.0), (-1.0, 2.0), (1.0, -2.0), grad=False)
def conditions_of_any_values(x, y):
    items, none, text, table = [], None, "text", {"a": 1}
    t = x
    if (x > 0 and items) or (text and y > 0):
        t = t + 1
    if not (x > 0 and none) and (table or y > 0):
        t = t + 2
    i = hf.sum(x) * 0
    while i < 3 and ((table and x > 0) or (i < 2 and text)):
        i = i + 1
    assert text or x > 0
    picked = [k for k in (1, 2, 3) if text and k > 1 and (items or table)]
    match x:
        case _ if y > 0 and text:
            t = t + 4
    return t, i, (1.0 if x > 0 and items else 2.0) + (3.0 if items or y > 0 or none else 4.0), sum(picked)


@on([1.0, 2.0], grad=False)
def iterators_are_pythons(x):
    made = [zip(x, x), enumerate(x), reversed(x), map(abs, x), filter(None, x), range(hf.argmax(x))]
    kinds = [zip, enumerate, reversed, map, filter, range]
    return [
        type(one) is kind and isinstance(one, kind) and one.__class__ is kind
        for one, kind in zip(made, kinds, strict=True)
    ]


@on((1.0, 2.0), (0.0, 2.0))
def and_gives_operands(x, y):
    return (x and y) + 1, (x or y) * 2


@on((1.0, 2.0, 3.0), (1.0, 5.0, 3.0), (4.0, 3.5, 3.0), grad=False)
def and_three(x, y, z):
    return x < y and y < z and x < z, x > y or y > z or z > x


@on(2.0, -2.0, grad=False)
def and_python_first(x):
    flag = None
    return (flag is not None and flag > x) or x > 0


@on(0.5, 2.0, -1.0, grad=False)
def chained(x):
    return 0 < x < 1, -5 < x <= 2 < 3, 0 < x < 1 < 0


@on(0.5, 3.0, grad=False)
def chained_middle_once(x):
    count = []

    def middle():
        count.append(1)
        return x

    result = 0 < middle() < 1
    return result, len(count)


@on(2.0, -2.0)
def ternary(x):
    return x * 2 if x > 0 else x * x


@on(0.5, -2.0, 5.0)
def ternary_nested(x):
    return (x if x < 1 else x * x) if x > 0 else (-x if x < -1 else 1.0)


@on(2.0, -2.0)
def ternary_in_arguments(x):
    return hf.sum(hf.stack([x if x > 0 else 0.0, 1.0 if x < 0 else x]))


@on(2.0, -2.0)
def ternary_tuple(x):
    a, b = (x, x + 1) if x > 0 else (x + 1, x)
    return a * 2 + b


@on(2.0, -2.0)
def lambda_ternary(x):
    f = (lambda v: v * 3 if v > 0 else -v)
    return f(x) + f(-x)


@on((2.0, [1.0, 2.0]), (5.0, [1.0, 2.0]), grad=False)
def membership(x, xs):
    return x in xs, x not in xs, x in [1.0, 2.0], x in (xs[0], xs[1]), 3 in [1, 2, 3]


@on(2.0, 0.0, grad=False)
def bool_call(x):
    return hf.where(bool(x), 1, 2)


@on(2.0, -2.0)
def safe_division(x):
    return 1 / x if x != 0 else x


# -- match ----------------------------------------------------------------------------------------------------------


@on(1, 2, 3, 12, 5, grad=False)
def match_values(n):
    match n:
        case 1:
            return 10
        case 2 | 3:
            return 20
        case k if k > 10:
            return k * 2
        case _:
            return 0


@on(2.0, -2.0)
def match_guard(x):
    match x:
        case v if v > 0:
            y = v * 2
        case v:
            y = v * 3
    return y


@on(2.0, -2.0)
def match_python_patterns(x):
    total = x
    for item in ([x, x], {"k": x}, Point(x, 1), "text", 7):
        match item:
            case [a, b] if a > 0:
                total = total + a + b
            case [a, _]:
                total = total - a
            case {"k": v}:
                total = total * v
            case Point(x=p, y=1):
                total = total + p
            case str():
                total = total + 1
            case _:
                total = total + 2
    return total


@on(1, 4, grad=False)
def match_without_default(n):
    y = n
    match n:
        case 1:
            y = n + 100
    return y


@on((1, 2.0), (2, 2.0), (3, 2.0))
def match_in_loop(n, x):
    for _ in range(2):
        match n:
            case 1:
                x = x * 2
            case 2:
                break
        n = n + 1
    return x


@on(1, 2, 5, -5, grad=False)
def match_captures(n):
    match n:
        case (1 | 2) as small if small > 1:
            y = small * 10
        case (1 | _) as other if other > 0:
            y = other * 100
        case (5 | -5) as five:
            y = five
        case _:
            y = n
    return y


# -- functions ----------------------------------------------------------------------------------------------------


@on(2.0, -2.0)
def nested_function(x):
    def f(v):
        if v > 0:
            return v * x
        return v + x

    return f(x) + f(-x)


@on(2.0, -2.0)
def nonlocal_in_branch(x):
    total = x * 0

    def add(v):
        nonlocal total
        total = total + v

    if x > 0:
        add(x)
        add(x * 2)
    else:
        add(-x)
    return total


@on([1.0, -2.0, 3.0])
def nonlocal_in_loop(x):
    total = 0.0

    def add(v):
        nonlocal total
        total = total + v

    for v in x:
        if v > 0:
            add(v)
    return total


@on(2.0, -2.0)
def closure_over_loop_variable(x):
    fs = [lambda v, k=k: v * k if v > 0 else v - k for k in range(3)]
    return sum(f(x) for f in fs)


@on(2.0, -2.0)
def partials(x):
    def f(a, b, c=0.0):
        return a * b + c if b > 0 else a - b

    g = functools.partial(f, 3.0, c=1.0)
    return g(x) + functools.partial(g)(-x)


@on(2.0, -2.0)
def decorated_function(x):
    def doubled(f):
        @functools.wraps(f)
        def run(*args, **kwargs):
            y = f(*args, **kwargs)
            return y * 2 if y > 0 else y

        return run

    @doubled
    def f(v, *, k=1.0):
        return v * k

    return f(x) + f(x, k=3.0)


class Layer:
    scale = 3.0

    def __init__(self, bias):
        self.bias = bias if bias > 0 else -bias

    def __call__(self, x):
        return self.forward(x) if x > 0 else self.negative

    def forward(self, x):
        if x > 1:
            return x * self.scale
        return x + self.bias

    @property
    def negative(self):
        return -self.bias if self.bias > 1 else self.bias

    @classmethod
    def make(cls, x):
        return cls(x if x > 0 else x * 2)

    @staticmethod
    def clip(x):
        return x if x < 1 else x * 0 + 1


class Deep(Layer):
    def forward(self, x):
        y = super().forward(x)
        if y > 2:
            y = y + super().forward(x * 0.1)
        return y


@on((2.0, 0.5), (-2.0, 3.0), (0.5, -3.0))
def methods(x, b):
    layer = Layer(b)
    return layer(x) + Layer.make(b).bias + Layer.clip(x) + layer.negative


@on((2.0, 0.5), (0.5, 3.0))
def methods_with_super(x, b):
    return Deep(b)(x)


@on(3.0)
def recursion_on_python(x, n=4):
    if n == 0:
        return x
    return recursion_on_python(x * 0.5 if x > 1 else x, n - 1)


@on((2.0, 1.0))
def star_arguments(*xs, **more):
    def f(a, *rest, k=2.0, **others):
        return (a if a > 0 else -a) * k + sum(rest) + len(others)

    return f(*xs, **{"k": 3.0, "other": 1}, **more)


@on([3.0, -1.0, 2.0])
def map_filter_reduce(x):
    doubled = list(map(lambda v: v * 2 if v > 0 else v, x))
    kept = list(filter(lambda i: i != 1, range(3)))
    return functools.reduce(lambda a, b: a if a > b else b, doubled), sum(doubled[i] for i in kept)


@on(2.0, -2.0)
def custom_gradient_inside(x):
    @hf.custom_gradient
    def f(v):
        return (v * v if v > 0 else v), lambda g: g * 5 if v > 0 else g * 7

    return f(x)


@on(2.0, -2.0)
def gradient_inside(x):
    def f(v):
        return v * v * v if v > 0 else v * v

    return hf.grad(f)(x)


@on(2.0, -2.0)
def tape_inside(x):
    with hf.GradientTape() as tape:
        tape.watch(x)
        if x > 0:
            y = x * x
        else:
            y = x * 5
    return tape.gradient(y, x)


# -- builtins -----------------------------------------------------------------------------------------------------


@on([3.0, 1.0, 2.0])
def builtin_min_max(x):
    return min(x), max(x), min(x[0], x[1]), max(x[0], 2.5), max([1, 5, 3]), min(x[0], x[1], key=lambda v: -v)


@on([3.0, -1.0, 2.0], [3.0, 1.0, 2.0], grad=False)
def builtin_any_all(x):
    return any(x > 0), all(x > 0), any(v > 2 for v in x), all([True, x[0] > 0]), any([]), all([])


@on([3.0, 1.0, 2.0])
def builtin_sum_len_abs(x):
    return sum(x), sum(v * v for v in x), len(x), abs(-x[0]), sum([x[0], x[1]], start=10.0)


@on([3.0, 1.0, 2.0])
def builtin_sorted(x):
    a, b, c = sorted(x)
    d, e, f = sorted(x, reverse=True)
    p, q = sorted([x[0], x[2]], key=lambda v: -v)
    return a * 1 + b * 2 + c * 3, d - e * f, p, q


@on([1.0, 2.0, 3.0])
def builtin_unrolled(x):
    pairs = list(zip(x, range(3)))
    numbered = dict(enumerate(x))
    return [v * i for v, i in pairs], numbered[2], list(reversed([x[0], x[1]]))


# -- comprehensions -----------------------------------------------------------------------------------------------


@on([1.0, 2.0, 3.0])
def comprehension_rows(x):
    return [v * 2 if v > 1 else v for v in x], {i: v for i, v in enumerate(x)}, sum(v for v in x)


@on(2.0, -2.0)
def comprehension_python_filter(x):
    return sum(x * i if x > 0 else x - i for i in range(5) if i % 2 == 1)


@on(2.0)
def comprehension_nested(x):
    return [[x * i + j for j in range(2)] for i in range(2)]


@on(2.0, -2.0)
def comprehension_walrus(x):
    ys = [y := x * 2, y + 1]
    return ys[0] + ys[1] + y


# -- with, try, assert, raise ---------------------------------------------------------------------------------------


@on(2.0, -2.0)
def with_block(x):
    with suppress(KeyError):
        if x > 0:
            x = x * 3
    return x


@on(2.0, -2.0)
def with_return(x):
    with suppress(KeyError):
        if x > 0:
            return x * 3
        x = x - 1
    return x


@contextmanager
def scaled(values):
    values.append(2.0)
    yield values[-1]
    values.pop()


@on(2.0, -2.0)
def with_manager(x):
    with scaled([]) as k, scaled([1.0]) as j:
        y = x * k if x > 0 else x - j
    return y


@on(2.0, -2.0)
def try_finally(x):
    try:
        if x > 0:
            return x * 2
        y = x + 1
    finally:
        x = x * 100
    return y + x


@on(2.0, -2.0)
def try_except_python(x):
    try:
        y = {"a": 1}["b"]
    except KeyError as error:
        y = x * len(error.args)
        if x > 0:
            y = y * 2
    else:
        y = y + 1
    return y


@on(2.0, -2.0)
def try_augments_after_a_branch(x):
    c = 0
    if x > 0:
        c += 1
    try:
        c += 2
        if x > 1:
            c += 4
    finally:
        x = x * 2
    return x


@on([1.0, -2.0])
def try_with_a_function_in_a_loop(x):
    total = 0.0
    for v in x:
        try:
            def f(u):
                return u * 2 if u > 0 else u

            total = total + f(v)
        finally:
            total = total * 0.5
    return total


@on(2.0, -2.0)
def try_in_branch(x):
    if x > 0:
        try:
            raise ValueError("caught inside")
        except ValueError:
            y = x * 3
    else:
        y = x
    return y


@on(2.0, -2.0, grad=False)
def asserts(x):
    assert x > 0, "must be positive"
    return x * 2


@on(2.0, -2.0, grad=False)
def assert_without_text(x):
    assert x > 0
    return x * 2


@on(2.0, -2.0, grad=False)
def assert_in_branch(x):
    if x < 0:
        assert x > -1, "too small"
    return x


@on(2.0, -2.0, 50.0, grad=False)
def raise_in_branch(x):
    if x > 10:
        raise ValueError("too large")
    if x < 0:
        raise ZeroDivisionError("negative")
    return x


@on(2.0, 50.0, grad=False)
def raise_in_else(x):
    if x < 10:
        y = x * 2
    else:
        raise OverflowError("too large")
    return y


@on([1.0, 2.0], [1.0, -2.0], grad=False)
def raise_in_loop(x):
    total = 0.0
    for v in x:
        if v < 0:
            raise ValueError("negative")
        total = total + v
    return total


# -- generators ---------------------------------------------------------------------------------------------------


@on(2.0, -2.0)
def generator_of_python(x):
    def scales(n):
        for i in range(n):
            yield i + 1
        return None

    total = 0.0
    for k in scales(3):
        total = total + (x * k if x > 0 else x - k)
    return total


@on(2.0, -2.0)
def generator_with_branch(x):
    def halves(v):
        for _ in range(3):
            if v > 0:
                v = v / 2
            else:
                v = v * 2
            yield v

    return list(halves(x))


@on(2.0, -2.0)
def generator_with_exits(x):
    def some(n):
        for i in range(5):
            if i == n:
                return
            if i == 1:
                continue
            while True:
                if i >= 0:
                    break
            yield x * i if x > 0 else x

    return list(some(4))


@on(2.0, -2.0)
def exits_in_finally(x, n=2):
    for i in range(4):
        try:
            x = x * i if x > 0 else x - i
        finally:
            if i == n:
                return x  # noqa: B012
    return -x


@on(2.0, -2.0)
def generator_from(x):
    def inner(v):
        yield v * 2 if v > 0 else v
        return v + 1

    def outer(v):
        r = yield from inner(v)
        yield r

    return sum(outer(x))


# -- Variables and random numbers ------------------------------------------------------------------------------------


@on(2.0, -2.0, grad=False)
def variable_in_branch(x):
    COUNTER.assign(7.0)
    if x > 0:
        COUNTER.assign_add(x)
    else:
        COUNTER.assign(x * 0)
    return COUNTER.read()


COUNTER = hf.Variable(0.0, name="counter")


@on([1.0, 2.0], grad=False)
def variable_in_loop(x):
    COUNTER.assign(0.0)
    for v in x:
        COUNTER.assign_add(v * 2)
    return COUNTER.read()


@on(3.0, -3.0)
def if_on_variable(x):
    COUNTER.assign(1.0)
    if COUNTER > 0:
        return x * COUNTER
    return x


# -- more shapes of the same ------------------------------------------------------------------------------------------


@on(([4.0, 1.0], 3), grad=False)
def power_iteration(x, n):
    a = hf.asarray([[2.0, 1.0], [1.0, 3.0]])
    for _ in range(n):
        x = a @ x
        x = x / hf.max(hf.abs(x))
    return x


@on(2.0, 10.0, grad=False)
def newton_with_break(a):
    x = a
    for _ in range(20):
        step = (x * x - a) / (2 * x)
        x = x - step
        if hf.abs(step) < 1e-5:
            break
    return x


@on((12, 18), (7, 3), grad=False)
def gcd(a, b):
    while b:
        a, b = b, a % b
    return a


@on(10, 1, grad=False)
def fibonacci(n):
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a


@on([3.0, 1.0, 2.0])
def insertion_by_where(x):
    best = x[0]
    for v in x:
        best = v if v < best else best
    return best


@on((0.3, 0.7), (-0.3, 0.7))
def mixed_exits(x, y):
    total = x
    for k in range(3):
        if total > 1:
            break
        if y > 0.5:
            total = total + y
            if total > 0.8:
                continue
        total = total + k * 0.1
    else:
        return total * 2
    return total


@on((1.0, [1.0, 2.0, 3.0]))
def loop_invariant(x, xs):
    y = x * 3
    total = 0.0
    for v in xs:
        total = total + v * y
    return total, y


@on(2.0)
def python_math(x):
    scale = math.sqrt(4) if math.pi > 3 else 0.0
    return x * scale


@on(2.0, -2.0)
def dictionary_of_functions(x):
    table = {"a": lambda v: v * 2 if v > 0 else v, "b": lambda v: v + 1}
    return sum(table[name](x) for name in sorted(table))


@on(2.0, -2.0)
def class_in_function(x):
    class Scale:
        k = 3.0 if x is not None else 1.0

        def __call__(self, v):
            return v * self.k if v > 0 else v

    return Scale()(x)


@on(2.0, -2.0)
def deletes(x):
    y = x * 2
    if x > 0:
        z = y
        del y
        y = z + 1
    return y


@on(2.0, -2.0)
def globals_and_locals(x):
    y = x * 2 if x > 0 else x
    return locals()["y"] + len([name for name in ("x", "y") if name in locals()])


@on(2.0, -2.0)
def f_string_of_python(x):
    name = f"{'pos' if x is not None else 'none'}-{2:>3}"
    return x * len(name) if x > 0 else x


@on((2.0, 0), (2.0, 1), (2.0, 2))
def select_by_index(x, i):
    choices = hf.stack([x, x * x, -x])
    if i == 2:
        return choices[i] * 2
    return choices[i]


@on([1.0, 2.0, 3.0, 4.0])
def prefix_products(x):
    product = 1.0
    out = hf.zeros((4,))
    for i, v in enumerate(x):
        product = product * v
        out = out.at[i].set(product)
    return out


@on(np.float64(2.0), np.float64(-2.0))
def double_precision(x):
    y = 0.0
    if x > 0:
        y = x * 0.1
    return y + x


# -- protocols ------------------------------------------------------------------------------------------------------


class Clipped:
    """A number whose operators branch on it."""

    def __init__(self, value):
        self.value = value

    def __add__(self, other):
        other = other.value if isinstance(other, Clipped) else other
        return Clipped(self.value + other if self.value > 0 else self.value - other)

    def __radd__(self, other):
        return Clipped(other * 10 if self.value > 0 else other)

    def __iadd__(self, other):
        if other > 0:
            self = Clipped(self.value + 100)
        return self

    def __neg__(self):
        return Clipped(-self.value if self.value > 1 else self.value)

    def __abs__(self):
        return self.value if self.value > 0 else -self.value

    def __lt__(self, other):
        return self.value < other if self.value > 0 else other > 0

    def __eq__(self, other):
        return self.value == other if self.value > 0 else self.value != other

    __hash__ = None

    def __getitem__(self, key):
        return self.value * key if self.value > 0 else self.value + key

    def __contains__(self, item):
        return item > 0 and self.value > item

    def __iter__(self):
        for k in range(3):
            yield self.value * k if self.value > 0 else self.value - k

    def __len__(self):
        return 3


jax.tree_util.register_pytree_node(Clipped, lambda c: ((c.value,), None), lambda _, parts: Clipped(*parts))


@on(2.0, -2.0)
def operators_of_a_class(x):
    c = Clipped(x)
    c += x
    total = (c + 1.0) + Clipped(x)
    return total.value, (3.0 + c).value, (-c).value, abs(c), c < 1.0, c == 2.0, c != 2.0, 1.0 > c  # noqa: SIM300


@on(2.0, -2.0)
def items_of_a_class(x):
    c = Clipped(x)
    total = c[3.0] + sum(c) + max(c) + [v for v in c][1] + len(c)
    for v in c:
        if v > 1:
            total = total + v
    for i, (a, b) in enumerate(zip(c, Clipped(-x))):
        total = total + a * b * i
    return total, 1.0 in c, 3.0 in c, 1.0 not in c


@dataclasses.dataclass(frozen=True)
class Span:
    low: float
    high: float = 0.0

    def __post_init__(self):
        object.__setattr__(self, "high", self.low * 2 if self.low > 0 else self.high)


@on(2.0, -2.0)
def dataclass_with_post_init(x):
    span = Span(x, high=x + 1)
    return span.low, span.high, len(vars(span))


class Countdown:
    def __init__(self, start, steps):
        self.value, self.left = start, steps

    def __iter__(self):
        return self

    def __next__(self):
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        self.value = self.value - 1 if self.value > 0 else self.value * 2
        return self.value


class Rows:
    def __init__(self, rows):
        self.rows = rows

    def __getitem__(self, index):
        if index == 3:
            raise IndexError
        return self.rows[index] if self.rows[index] > 0 else -self.rows[index] * 2


@on([1.5, -2.0, 3.0])
def iterators_of_a_class(x):
    one = Countdown(x[0], 3)
    first = next(one)
    return first, list(one), [v for v in Rows(x)], x[0] in Rows(x)


class Store:
    def __init__(self):
        self.rows = {}
        self._level = None

    def __setitem__(self, key, value):
        self.rows[key] = value if value > 0 else value * 2

    def __delitem__(self, key):
        del self.rows[key]

    def __getitem__(self, key):
        return self.rows[key] * 2

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value if value > 1 else value * 0.5


@on(2.0, -2.0)
def stores_of_a_class(x):
    store = Store()
    store["a"] = x
    store["b"] = x * 2
    store["a"] += x
    del store["b"]
    store.level = x
    store.level -= 1
    return store["a"], store.level, len(store.rows)


class Scaled:
    def __init__(self, k):
        self.k, self.log = k, []

    def __enter__(self):
        return self.k if self.k > 0 else self.k * 3

    def __exit__(self, kind, error, place):
        self.log.append(-self.k if self.k > 1 else self.k)
        return kind is KeyError


@on(2.0, -2.0)
def managers_of_a_class(x):
    manager = Scaled(x)
    with manager as k, Scaled(k) as j:
        if x > 1:
            x = x * k
        {}["missing"]
    return x + j, manager.log


@contextmanager
def halved(v):
    if v > 1:
        v = v / 2
    yield v


class Cached:
    def __init__(self, x):
        self.x, self.made = x, []

    @functools.cached_property
    def level(self):
        self.made.append(1)
        return self.x * 2 if self.x > 0 else -self.x

    @functools.cache  # noqa: B019
    def times(self, k):
        return self.x * k if self.x > 0 else self.x + k


@on(2.0, -2.0)
def standard_library_wrappers(x):
    cached = Cached(x)
    with halved(x) as h:
        y = h * 2
    return cached.level + cached.level, len(cached.made), cached.times(3) + cached.times(3), kinded(x), y


@on(2.0, -2.0, grad=False)
def cached_function(x):
    return power_of(x, 2), power_of(x, n=3), power_of(x, 2)


@functools.cache
def power_of(x, n):
    for _ in range(n):
        x = x * x if x > 0 else x
    return x


@functools.singledispatch
def kinded(x):
    return x * 2 if x > 0 else x


@kinded.register
def _(x: int):
    return x


@on(2.0, -2.0)
def decorators_with_wraps(x):
    return logged(x, k=2.0), logged.__wrapped__(x), logged.__name__ == "logged"


def counted(limit):
    def decorate(f):
        @functools.wraps(f)
        def run(x, **options):
            y = f(x, **options)
            return y if y < limit else limit - y

        return run

    return decorate


@counted(3.0)
def logged(x, k=1.0):
    return x * k if x > 0 else x


# -- comprehensions that keep some ----------------------------------------------------------------------------------


@on([3.0, -1.0, 2.0], [-3.0, 1.0, 9.0])
def filter_in_sum(x):
    count = sum((1.0 for v in x if v < 0), 0.0)
    return sum(v * v for v in x if v > 0), sum([v for v in x if v > 0 if v < 3], 10.0), count


@on([3.0, -1.0, 2.0], [-3.0, 1.0, 9.0], grad=False)
def filter_in_len_any_all(x):
    return len([v for v in x if v > 0]), any(v > 2 for v in x if v > 0), all(v > 1 for v in x if v > 0)


@on([3.0, -1.0, 2.0], [-3.0, 1.0, 9.0])
def filter_in_min_max(x):
    small = min((v for v in x if v < 0), default=x[0] * 5)
    return max(v for v in x if v > 0), small, max((v for v in x if v > -2), key=lambda v: -v)


@on([3.0, -1.0], [-3.0, -1.0], grad=False)
def filter_that_keeps_nothing(x):
    return max(v for v in x if v > 0)


@on([4.0, 0.0, 2.0])
def filter_guards_what_it_keeps(x):
    return sum(hf.log(v) for v in x if v > 0), max(1 / v for v in x if v != 0)


@on([3.0, -1.0, 2.0])
def filter_nested(x):
    return sum(a * b for a in x for b in x if a < b), sum(i * v for i, v in enumerate(x) if i != 1 and v > 2)


# -- := where only some evaluations come by ---------------------------------------------------------------------------


@on(2.0, 0.1, -1.0)
def walrus_in_and(x):
    if x > 0 and (y := x * 2) > 1:
        return y
    return x


@on(2.0, -6.0, -1.0, 0.1)
def walrus_in_and_or(x):
    y = w = x
    z = x
    if (x > 0 and (y := x * 2) > 1 and (z := y * 2) > 3) or (w := x - 1) < -5:
        return y + w + z
    return x + 1


@on(2.0, 100.0, 0.1, grad=False)
def walrus_in_while_and(x):
    y, n = x, 0
    while n < 3 and (y := y * 0.5) > 0.3:
        n += 1
    else:
        n += 10
    return y, n


@on(2.0, -2.0)
def walrus_in_ternary(x):
    y = x
    z = (y := x * 2) + 1 if x > 0 else (y := -x)
    return z + y


@on(1.0, 5.0, -1.0, grad=False)
def walrus_in_chain(x):
    y = x
    inside = 0 < (z := x) < (y := x + 1) < 3
    return inside, y, z


@on(2.0, -2.0)
def walrus_in_arguments(x):
    y = x
    return hf.where(x > 0 and (y := x * 3) > 1, y, x), (x > 0 or (y := x * 5) > 1, y)


# -- conditions with effects ------------------------------------------------------------------------------------------


@on(9.0, 1.5, grad=False)
def while_condition_that_changes(x):
    while (x := x / 2) > 1:
        pass
    return x


@on(3.5, 0.5, grad=False)
def while_condition_that_assigns(x):
    COUNTER.assign(0.0)
    n = 0
    while COUNTER.assign_add(1.0) < x:
        n += 1
    return COUNTER.read(), n


@on((1.0, 2), (-1.0, 2), (1.0, 0), grad=False)
def return_that_the_first_step_cannot_reach(x, n):
    c = 0
    for _ in range(n):
        if x > 0:
            c += 1
            x = -x
        elif c > 0:
            return x * 10
    return x


@on((1.0, 3), (-1.0, 3), grad=False)
def name_that_the_first_step_cannot_set(x, n):
    c, y = 0, x
    while c < n:
        if c > 1:
            z = x * c
            y = y + z
        c += 1
    return y, z


@on([1.0, 5.0, 2.0, 7.0], [1.0, 7.0])
def name_that_some_steps_set(x):
    for v in x:
        if v > 4:
            found = v
            if v > 6:
                large = v * 2
    return found, large


@on(2.0, -2.0, 0.5)
def with_returns_on_every_way(x):
    with suppress(KeyError):
        if x > 0:
            x = x * 2
            if x > 1:
                return x * 3
        if x < -10:
            raise ValueError("low")
        return x - 1


@on(2.0, -2.0, 0.5)
def try_returns_on_every_way(x):
    try:
        if x > 0:
            x = x * 2
            if x > 1:
                return x * 3
        return x - 1
    except KeyError:
        x = x * 2
    return x


@on((2.0, 1), (-2.0, 2), grad=False)
def walrus_in_while_after_a_return(x, k):
    if k == 1:
        x = x * 0.5
        if x > 10:
            return x
    i = 0
    while (j := i + 1) < 4:
        i = j
        x = x * 2 + j
        if x > 20:
            return x
    return x - j


# -- exits in finally, generators' own loops ---------------------------------------------------------------------------


@on(2.0, -2.0, 0.5)
def finally_returns(x):
    for i in range(4):
        try:
            x = x * i if x > 0 else x - i
            if x > 3:
                return x * 100
        finally:
            if x < -2:
                return x  # noqa: B012
    return -x


@on(1.0, -1.0, grad=False)
def finally_swallows(x):
    try:
        raise KeyError("k")
    finally:
        if x > 0:
            return x  # noqa: B012


@on(1.0, 20.0, 3.0, -10.0, grad=False)
def finally_breaks_and_continues(x):
    n = 0
    while n < 5:
        n += 1
        try:
            if x > 10:
                return x
            x = x + n
        finally:
            if x > 4:
                break  # noqa: B012
            if x > 2:
                continue  # noqa: B012
        x = x * 1.5
    return x + n


@on([1.0, 2.0, -3.0])
def generator_with_loops_that_break(x):
    def totals(v):
        for row in (v, v * 2, -v):
            total = 0.0
            for e in row:
                if e > 3:
                    break
                if e < 0:
                    continue
                total = total + e
            else:
                total = total + 100
            yield total

    return list(totals(x))


# -- errors of users' classes ------------------------------------------------------------------------------------------


class Refused(Exception):
    def __init__(self, code, what):
        super().__init__(f"{what}: {code}")
        self.code = code


@on(1.0, 4.0, -1.0, -4.0, grad=False)
def raise_own_class(x):
    if x > 3:
        raise Refused(7, "too large")
    if x < -3:
        raise KeyError("small")
    if x < 0:
        raise OSError(2, "no such value")
    return x

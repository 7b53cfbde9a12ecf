"""Small functions whose code stands in the place of their calls."""

from __future__ import annotations

import itertools
import linecache
import traceback
from typing import Any

import numpy as np
import pytest

import hybridflow as hf
from hybridflow.core import dispatch, operators
from hybridflow.core.inline import inlined

CALLS: list[str] = []


def difference(a: Any, b: Any = 1) -> Any:
    if a < b:
        a, b = b, a
    found = a - b
    return found


def with_next(a: Any, b: Any) -> Any:
    b = b + 1
    a = a * 2
    return a, b


def noted(a: Any) -> Any:
    CALLS.append("read")
    b = a
    return b / 0 if a == 0 else b


def written(x: Any, y: Any) -> Any:
    found = 5
    least = difference(x + y, x)
    a, b = with_next(y, x)
    b, a = with_next(a, b)  # names in each other's places
    least = difference(least)

    def inside(a: Any) -> Any:
        nonlocal least
        least = difference(least, a)
        return noted(a)

    return inside(found), a, b, least, found, x, y


@pytest.mark.parametrize("arguments", list(itertools.product((-2, 0, 3), (1, 7))))
def test_what_is_inlined_does_what_is_written(arguments: Any):
    quick = inlined(difference, with_next, noted)(written)
    assert quick(*arguments) == written(*arguments)
    assert "difference" not in quick.__code__.co_names
    assert quick.__name__ == "written"


def test_errors_show_the_code_that_ran():
    quick = inlined(noted)(divided)
    with pytest.raises(ZeroDivisionError) as caught:
        quick(0)
    last = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert last.line is not None
    assert "/ 0" in last.line
    linecache.checkcache()
    assert linecache.getlines(last.filename)


def divided(x: Any) -> Any:
    result = noted(x)
    return result


@pytest.mark.asserts
def test_a_second_meaning_of_a_name_is_refused():
    space: dict[str, Any] = dict(divided.__globals__)
    other = type(divided)(divided.__code__, {**space, "CALLS": []})
    with pytest.raises(AssertionError, match="CALLS"):
        inlined(noted)(other)


def test_operations_are_recorded_by_one_text():
    quick = [operators._binary, operators._unary, dispatch.record]  # pyright: ignore[reportPrivateUsage]
    for one in quick:
        assert one.__code__ is not one.__wrapped__.__code__
    x = hf.asarray(np.ones(3, np.float32))
    as_written = operators._unary.__wrapped__(hf.tanh.op, hf.tanh)  # pyright: ignore
    with hf.GradientTape() as tape:
        tape.watch(x)
        found = [as_written(x)._edge[0], hf.tanh(x)._edge[0]]
    for name in ("op", "inputs", "attrs", "specs", "input_specs", "backend", "scope"):
        a, b = [getattr(node, name) for node in found]
        assert a == b, name
    assert found[0].stamp < found[1].stamp

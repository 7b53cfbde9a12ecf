"""A fault planted in each rule of the conversion is caught by the corpus."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from corpus import CASES
from reference import without_xla
from test_corpus import check

import hybridflow as hf
from hybridflow.convert import (
    branches,
    build,
    builtin,
    cells,
    control,
    converted,
    exits,
    liveness,
    loops,
    regions,
    rows,
    runtime,
    scopes,
    source,
    staged,
)
from hybridflow.tracing import function

Runtime = runtime.Runtime
BY_NAME = {case.function.__name__: case for case in CASES}


@pytest.fixture(autouse=True)
def _nothing_converted() -> Iterator[None]:
    build._entries.clear()
    yield
    build._entries.clear()


def without_restoring(self: Any, name: str, block: Any) -> Any:
    self.cells.write = lambda values: None
    try:
        return ORIGINAL_RUN(self, name, block)
    finally:
        del self.cells.write


ORIGINAL_RUN = branches._Branches.run
ORIGINAL_BLOCK = liveness.Uses.block


def forgetful(self: Any, statements: Any) -> Any:
    names = ORIGINAL_BLOCK(self, statements)
    return names._replace(killed=names.killed | names.bound)


FAULTS: dict[str, tuple[Any, str, Any, list[str]]] = {
    "branches see each other's variables": (
        branches._Branches, "run", without_restoring, ["if_reads_old_value_in_else"]),
    "differences of branches are not seen": (
        branches, "difference", lambda *_: None, ["if_python_objects"]),
    "equal Python values become tensors": (
        branches, "same_python", lambda a, b: False, ["if_equal_computed_values"]),
    "an unset variable is not kept": (
        branches, "set_in_one", lambda *_: None, ["if_undefined"]),
    "a raise in a branch raises at once": (regions.Region, "raises", lambda self, error: False, ["raise_in_branch"]),
    "a raise in a branch is lost": (branches, "add_raise", lambda error: None, ["raise_in_branch", "raise_in_loop"]),
    "cells are not read": (cells.Cells, "read", lambda self: dict.fromkeys(self.names, 0.0), ["if_else"]),
    "no exit is lowered": (control, "lower_exits", lambda node: True, ["if_return", "for_break"]),
    "every block exits": (exits._Lowering, "always", lambda self, block: True, ["if_return_many", "mixed_exits"]),
    "exits of loops are not known": (
        exits._Lowering, "exits_of", lambda self, node: set(), ["for_return", "for_break"]),
    "guards are missing": (
        exits._Lowering, "clear", lambda self, place, kinds: exits.constant(place, True), ["if_return_many"]),
    "every condition is Python's": (control, "is_converted_branch", lambda node: False, ["if_else"]),
    "everything is killed": (liveness.Uses, "block", forgetful, ["if_kept_through_inner_branches"]),
    "nothing is live": (control.Control, "live_names", lambda self, names, live: (), ["if_else"]),
    "captured names are forgotten": (
        liveness.Uses, "_capture", lambda self, function: None, ["nonlocal_in_branch", "nonlocal_in_loop"]),
    "first-set variables always have a value": (
        loops, "Late", lambda value, ran, text: value, ["while_unset"]),
    "a loop's numbers keep their dtype": (
        loops, "takes_dtype", lambda number, dtype: False, ["while_int_becomes_float", "loop_number_in_branch"]),
    "a loop's numbers keep their kind": (
        loops, "kinds_of", lambda number: frozenset((int,)), ["loop_number_changes_kind"]),
    "a loop over rows ignores its exits": (
        loops, "truth", lambda value: hf.asarray(True), ["for_break", "for_return"]),
    "integers wrap": (staged, "add_check", lambda *_: None, ["while_overflow"]),
    "the rows of append are reversed": (
        loops, "append_rows", lambda lists, stacked, n, call: [
            call(lists[0].append, stacked[0][0].row(i)) for i in reversed(range(n))], ["append_rows"]),
    "private names are not spelled out": (source, "mangled", lambda name, private: name, ["private_names"]),
    "shared names are not checked": (scopes.Scope, "is_shared", lambda self, name: False, ["if_undefined"]),
    "or patterns match the first": (
        control, "_test", lambda pattern, subject: None, ["match_values"]),
    "enumerate starts at 0": (
        builtin.ON_TENSORS, "enumerate", lambda iterable, start: rows.enumerated(iterable), ["for_enumerate_from_one"]),
    "reversed is not": (builtin.ON_TENSORS, "reversed", rows.rows_of, ["for_reversed"]),
    "zip takes the first": (
        builtin.ON_TENSORS, "zip", lambda *several: rows.zipped(several[0], several[0]), ["for_zip"]),
    "any is all": (builtin.ALWAYS, "any", builtin.all_true, ["builtin_any_all"]),
    "min is max": (builtin.ALWAYS, "min", builtin.ALWAYS[max], ["builtin_min_max"]),
    "sorted ignores reverse": (
        builtin.ALWAYS, "sorted", lambda items, key=None, reverse=False: builtin.sorted_items(items, key=key),
        ["builtin_sorted"]),
    "membership is false": (runtime._COMPARISONS, "In", lambda a, b: False, ["membership"]),
    "none_of is any of": (
        Runtime, "none_of", lambda self, *flags: builtin.any_true(flags), ["if_return_many", "for_break"]),
    "and is or": (Runtime, "and_", Runtime.or_, ["bool_and_or"]),
    "or is and": (Runtime, "or_", Runtime.and_, ["bool_and_or"]),
    "not is nothing": (Runtime, "not_", lambda self, value: value, ["bool_and_or"]),
    "a ternary takes its first": (Runtime, "choose", lambda self, test, a, b: a(), ["ternary"]),
    "a chain ends early": (
        Runtime, "compare", lambda self, names, left, *rest: runtime._COMPARISONS[names[0]](left, rest[0]()),
        ["chained"]),
    "asserts are lost": (Runtime, "holds", lambda self, test, text: True, ["asserts"]),
    "a for loop's else is lost": (exits._Lowering, "loop", lambda self, node: [node], ["for_else", "while_else"]),
}


# -- functions for faults that no ordinary program meets ---------------------------------------------------------------


def if_python_objects(x):
    mode = "up"
    if x > 0:
        mode = "down"
    return x if mode == "up" else -x


def must_raise(function: Any, argument: Any, text: str) -> None:
    with pytest.raises(Exception, match=text):
        hf.compile(function)(argument)


def must_equal(function: Any, argument: Any) -> None:
    assert hf.compile(function)(argument).item() == function(argument).item()


def undefined(x):
    if x > 0:
        y = x
    return y


def unset(x):
    while x > 10:
        y = x
        x = x - 1
    return y


def overflow(x):
    n = 1
    while x > 0:
        n = n * 3
        x = x - 1
    return n


def changes_kind(x):
    n = 1
    while x > 0:
        n = n * 0.5
        x = x - 1
    return x * n


def number_in_branch(xs):
    best, where = 0.0, 0.0
    for x in xs:
        if x > best:
            best, where = x, x * 2
    return best + where


class Hidden:
    def __init__(self):
        self.__k = 3.0

    def __call__(self, x):
        return x * self.__k if x > 0 else x


HIDDEN = Hidden()
SPECIAL: dict[str, Any] = {
    "if_undefined": lambda: must_raise(undefined, hf.asarray(1.0), "'y' has a value if the condition at .* is true"),
    "if_python_objects": lambda: must_raise(if_python_objects, hf.asarray(1.0), "is not the same Python object"),
    "while_unset": lambda: must_raise(unset, hf.asarray(1.0), "'y' is set by the loop"),
    "while_overflow": lambda: must_raise(overflow, hf.asarray(50), "is larger than 2"),
    "loop_number_in_branch": lambda: hf.compile(number_in_branch)(hf.asarray([1.0, 3.0, 2.0]).astype(hf.float64)),
    "loop_number_changes_kind": lambda: must_equal(changes_kind, hf.asarray(2.5)),
    "private_names": lambda: hf.compile(HIDDEN)(hf.asarray(1.0)),
}


def run(name: str) -> None:
    if name in SPECIAL:
        SPECIAL[name]()
    else:
        check(BY_NAME[name])


def not_as_python(call: Callable[[], Any], undone: Exception) -> Any:
    raise undone


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=[pytest.mark.asserts] * ("asserts" in fault)) for fault in FAULTS]
)
def test_a_planted_fault_is_caught(fault: str, monkeypatch: pytest.MonkeyPatch):
    owner, name, replacement, cases = FAULTS[fault]
    if isinstance(owner, dict):
        key = {"enumerate": enumerate, "reversed": reversed, "zip": zip, "any": any, "min": min, "sorted": sorted}
        monkeypatch.setitem(owner, key.get(name, name), replacement)
    else:
        monkeypatch.setattr(owner, name, replacement)
    monkeypatch.setattr(function, "as_python", not_as_python)  # which would do what the converted code does not
    caught = 0
    for case in cases:
        try:
            with without_xla():
                run(case)
        except (Exception, pytest.fail.Exception):
            caught += 1
    assert caught, f"{cases} run as if nothing was wrong"


@pytest.mark.parametrize("name", SPECIAL)
def test_without_faults(name: str):
    with without_xla():
        run(name)


def sized(count: int) -> Any:
    """Return a new function of some branches and loops."""
    text = "def f(x):\n" + "".join(
        f"    if x > {i}:\n        y{i} = x * {i}\n    else:\n        y{i} = x\n    for v in x:\n        x = x + v\n"
        for i in range(count)
    ) + "    return x\n"
    name = f"<sized {count}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    names: dict[str, Any] = {}
    exec(compile(text, name, "exec"), names)
    return names["f"]


def python_calls(function: Any) -> int:
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        converted(function)
    finally:
        sys.setprofile(None)
    return count


def test_conversion_is_linear():
    converted(sized(2))
    small, large = python_calls(sized(10)), python_calls(sized(40))
    assert large < 4.5 * small


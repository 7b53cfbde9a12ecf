"""Every rule of the conversion matters: without it, something that is checked here goes wrong."""

from __future__ import annotations

import ast
import functools
import gc
import inspect
import re
import sys
import traceback
import warnings
from collections import UserDict, UserList
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import jax
import pytest
import test_convert
import test_convert_errors
from corpus import CASES, Countdown, helper_sign
from reference import without_xla
from test_corpus import check

import hybridflow as hf
from hybridflow.convert import (
    bindings,
    branches,
    build,
    builtin,
    callee,
    control,
    converted,
    exits,
    filtered,
    loops,
    protocols,
    reads,
    regions,
    runtime,
    writes,
)
from hybridflow.core.errors import HybridflowError, MutationError, TraceError
from hybridflow.guards import noticed

CORPUS = {case.function.__name__: case for case in CASES}
PLAIN = {case[0].__name__: case for case in test_convert.CASES}
X = hf.asarray(2.0)


@pytest.fixture(autouse=True)
def _nothing_converted() -> Iterator[None]:
    build._entries.clear()
    yield
    build._entries.clear()


# -- what else is checked ---------------------------------------------------------------------------------------------

LOG: list[int] = []
GLOBAL = 1.0
BOX = SimpleNamespace(value=1.0)
ROWS = [1.0]
TABLE = {"k": 1.0}


def changed(function: Callable[[Any], Any], change: Callable[[], None], back: Callable[[], None]) -> None:
    """Require that a compiled function sees a change of what it reads."""
    compiled = hf.compile(function)
    before = compiled(X).item()
    try:
        change()
        assert compiled(X).item() == function(X).item() != before
    finally:
        back()


def refused(function: Callable[[Any], Any], what: str = "") -> None:
    """Require that a compiled function may not change what is outside of it, in an error that says `what` it did."""
    with pytest.raises(MutationError, match=re.escape(what) if what else None):
        hf.compile(function)(X)


def sees_globals() -> None:
    def change(to: float) -> None:
        globals()["GLOBAL"] = to

    changed(lambda x: x + GLOBAL, lambda: change(5.0), lambda: change(1.0))


def sees_free_names() -> None:
    free = 1.0

    def change(to: float) -> None:
        nonlocal free
        free = to

    changed(lambda x: x + free, lambda: change(5.0), lambda: change(1.0))


def sees_attributes() -> None:
    changed(lambda x: x + BOX.value, lambda: setattr(BOX, "value", 5.0), lambda: setattr(BOX, "value", 1.0))


def sees_items() -> None:
    def read(x):
        table = vars(BOX)
        return x + table["value"]

    changed(read, lambda: setattr(BOX, "value", 5.0), lambda: setattr(BOX, "value", 1.0))


def sees_what_is_iterated() -> None:
    box = SimpleNamespace(rows=(1.0,))

    def read(x):
        for one in rows_of(box):
            x = x + one
        return x

    changed(read, lambda: ROWS.append(2.0), ROWS.pop)


def sees_spread_mappings() -> None:
    table = UserDict(k=1.0)
    changed(lambda x: x + {**table}["k"], lambda: table.update(k=5.0), lambda: table.update(k=1.0))


def hashed_otherwise(read: Callable[[Any], int]) -> None:
    class Held:
        pass

    def equal() -> None:
        Held.__eq__ = lambda self, other: True
        Held.__hash__ = lambda self: hash(1)

    def itself() -> None:
        Held.__eq__, Held.__hash__ = object.__eq__, object.__hash__

    held = Held()
    changed(lambda x: x + read(held), equal, itself)


def sees_elements_of_sets() -> None:
    hashed_otherwise(lambda held: len({1, held}))


def sees_spread_elements_of_sets() -> None:
    hashed_otherwise(lambda held: len({*[1, held]}))


def sees_spread_rows() -> None:
    rows = UserList([1.0])
    changed(lambda x: x + max([0.0, *rows]), lambda: rows.append(5.0), rows.clear)


def sees_what_is_matched() -> None:
    def read(x):
        match BOX:
            case SimpleNamespace(value=1.0):
                return x + 1.0
            case _:
                return x + 5.0

    changed(read, lambda: setattr(BOX, "value", 5.0), lambda: setattr(BOX, "value", 1.0))


def sees_what_is_yielded_from() -> None:
    rows = iter([1.0, 2.0])

    def rest():
        yield from rows

    f = hf.compile(lambda x: x * len(list(rest())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [f(hf.asarray(1.0)).item() for _ in range(2)] == [2.0, 0.0]


class Naming:
    """A class that gives the classes made of it an attribute."""

    def __init_subclass__(cls):
        cls.value = BOX.value


def sees_what_bases_read() -> None:
    def read(x):
        class Made(Naming):
            pass

        return x * Made.value

    gc.disable()  # a trace that read of a class which is gone is not used again
    try:
        changed(read, lambda: setattr(BOX, "value", 5.0), lambda: setattr(BOX, "value", 1.0))
    finally:
        gc.enable()


class Shown:
    """An object whose text is as long as it says."""

    def __init__(self) -> None:
        self.length = 1

    def __str__(self) -> str:
        return "x" * self.length


def sees_what_is_shown() -> None:
    shown = Shown()
    changed(lambda x: x + len(f"{shown}"), lambda: setattr(shown, "length", 5), lambda: setattr(shown, "length", 1))


def sees_imported_names() -> None:
    def read(x):
        from settings_of_a_test import RATE

        return x + RATE

    module = ModuleType("settings_of_a_test")
    module.RATE = 1.0
    sys.modules[module.__name__] = module
    changed(read, lambda: setattr(module, "RATE", 5.0), lambda: sys.modules.pop(module.__name__))


def sees_all_globals() -> None:
    def read(x):
        return x + globals().get("SHOWN_BY_A_TEST", 1.0)

    changed(read, lambda: globals().update(SHOWN_BY_A_TEST=5.0), lambda: globals().pop("SHOWN_BY_A_TEST"))


def sees_what_eval_reads() -> None:
    def read(x):
        return x + eval("EVALUATED_BY_A_TEST")

    space = globals()
    space["EVALUATED_BY_A_TEST"] = 1.0
    changed(read, lambda: space.update(EVALUATED_BY_A_TEST=5.0), lambda: space.pop("EVALUATED_BY_A_TEST"))


def sees_imports_that_fail() -> None:
    def read(x):
        try:
            import missing_in_a_test
        except ImportError:
            return x
        return x + missing_in_a_test.RATE

    module = ModuleType("missing_in_a_test")
    module.RATE = 5.0
    space = sys.modules
    changed(read, lambda: space.update(missing_in_a_test=module), lambda: space.pop("missing_in_a_test"))


def sees_names_that_fail_in_generators() -> None:
    def rates():
        try:
            yield named_later
        except NameError:
            yield 0.0

    def read(x):
        return x + sum(rates())

    space = globals()
    changed(read, lambda: space.update(named_later=5.0), lambda: space.pop("named_later"))


def sees_its_own_lines() -> None:
    def read(x):
        frames = 0
        try:
            try:
                {}["key"]
            finally:
                frames = len(traceback.extract_tb(sys.exc_info()[2]))
        except KeyError:
            pass
        return x + frames

    assert hf.compile(read)(hf.asarray(1.0)).item() == read(1.0)


class Grown:
    """An object that ``+=`` changes."""

    def __init__(self) -> None:
        self.size = 1.0

    def __iadd__(self, more: float) -> Grown:
        self.size += more
        return self


def sees_what_is_augmented() -> None:
    grown = Grown()

    def run(x):
        nonlocal grown
        grown += 2.0
        return x * grown.size

    assert [hf.compile(run)(X).item() for _ in range(2)] == [6.0, 10.0]
    compiled = hf.compile(run)
    assert [compiled(X).item() for _ in range(2)] == [14.0, 18.0]


@hf.no_convert
def rows_of(_: Any) -> Any:
    return ROWS


def stores_attributes() -> None:
    def run(x):
        BOX.other = x

    refused(run)


def stores_items() -> None:
    def run(x):
        TABLE["x"] = x

    refused(run)


def stores_globals() -> None:
    def run(x):
        global GLOBAL
        GLOBAL = x

    try:
        refused(run)
    finally:
        globals()["GLOBAL"] = 1.0


def stores_free_names() -> None:
    free = 1.0

    def run(x):
        nonlocal free
        free = x
        return free

    refused(run)


def changes_what_it_does_not_read() -> None:
    free: list[int] = []
    del LOG[:]

    def run(x):
        free.append(1)
        LOG.append(1)
        return x

    compiled = hf.compile(run)
    for _ in range(3):
        compiled(X)
    assert (len(free), len(LOG), compiled.trace_count) == (3, 3, 1)


def deletes_attributes() -> None:
    box = SimpleNamespace(a=1)

    def run(x):
        other = box
        if x > 0:
            del other.a
        return x

    refused(run)


def deletes_items() -> None:
    def run(x):
        table = {"a": x}
        if x > 0:
            del table["a"]
        return x

    refused(run, "[...] deleted")


def tells(name: str, function: Callable[[], Any], what: str) -> None:
    """Require that converted code tells of a name."""
    told: list[Any] = []
    with mock.patch.object(runtime.observe, name, lambda *given, **_: told.append(given[1]) or given[-1]):
        converted(function)()
    assert told == [what]


def deletes_names() -> None:
    names = test_convert.from_cell("<deletes>", "G = 1\ndef f():\n    global G\n    del G\n")
    tells("delete_global", names["f"], "G")


def deletes_free_names() -> None:
    free = 1.0

    def run():
        nonlocal free
        del free

    tells("delete_free", run, "free")


def handlers_of_what_a_trace_refuses() -> None:
    @hf.compile
    def f(x):
        try:
            return x * float(x)
        except TypeError:
            raise SystemExit from None

    with pytest.raises((TraceError, SystemExit)) as caught:
        f(hf.asarray(1.0))
    assert caught.type is not SystemExit


def exceptions_of_branches() -> None:
    test_convert_errors.test_exceptions_that_depend_on_tensors_are_not_handled_around()


def imports_are_told() -> None:
    names = test_convert.from_cell("<imports>", "def f():\n    global string\n    import string\n")
    tells("write_global", names["f"], "string")


def augments_from_outside() -> None:
    def run(x):
        rows = ROWS
        rows += [x]

    try:
        refused(run)
    finally:
        del ROWS[1:]


def loops_are_one_operation() -> None:
    def over_rows(x):
        for _ in hf.zeros((50,)) * x:
            x = x + 1
        return x

    def while_(x):
        while x < 50:
            x = x + 1
        return x

    assert "scan" in {node.op.name for node in hf.compile(over_rows).graph(X).nodes}
    assert "while" in {node.op.name for node in hf.compile(while_).graph(X).nodes}


def undefined_is_named() -> None:
    def run(x):
        if x > 0:
            y = x
        return y

    with pytest.raises(HybridflowError, match="'y' has a value if"):
        hf.compile(run)(X)


def lists_are_not_read_in_their_loop() -> None:
    def run(xs):
        out = []
        for x in xs:
            out.append(x)
            last = out[0]
        return last

    def length(xs):
        out = []
        for x in xs:
            out.append(x * len(out))
        return out

    for function in (run, length):
        with pytest.raises(MutationError, match="read in the loop"):
            hf.compile(function)(hf.asarray([1.0, 2.0]))


def changes_in_a_body() -> None:
    def run(x):
        seen: list[Any] = []
        if x > 0:
            seen.extend([x])
        return seen

    refused(run, ".extend(...)")


def unknown_lengths() -> None:
    with pytest.raises(HybridflowError, match="which items it keeps"):
        hf.compile(lambda x: [v for v in (1, 2) if x > v])(X)


def flags_in_patterns() -> None:
    def run(x):
        flag = bool(x > 1)
        match (flag, 1):
            case (True, _):
                return x
        return -x

    with pytest.raises(HybridflowError, match=r"match with True or False in a pattern of several parts"):
        hf.compile(run)(X)


def both_flags_are_matched() -> None:
    def run(x, y):
        flag = y if type(y) is int else not (x > 1)
        match flag:
            case False:
                return x
            case True:
                return -x

    assert [hf.compile(run)(X * sign, None).item() for sign in (1, -1)] == [2.0, 2.0]
    assert hf.compile(run)(X, 1) is run(X, 1) is None


def asserts_in_a_branch() -> None:
    check(CORPUS["assert_in_branch"])


def iterators() -> None:
    assert hf.compile(lambda x: [v * 2 for v in Countdown(x, 2)])(X)[0].item() == 2.0


def positions() -> None:
    test_convert.test_errors_lie_on_the_users_lines()


def recursion_is_bounded() -> None:
    def down(x):
        return x if x < 0 else down(x - 1)

    with pytest.raises(HybridflowError, match="max_depth"):
        hf.compile(down, max_depth=3)(hf.asarray(9.0)).item()


def binds_outside_by_walrus() -> None:
    free = 1.0

    def run(x):
        nonlocal free
        return (free := x)

    refused(run)


def generators_run_over_users_objects() -> None:
    def doubled(rows):
        for row in rows:
            yield row * 2

    assert hf.compile(lambda x: list(doubled(Countdown(x, 2))))(X)[0].item() == 2.0


def generators_match() -> None:
    def some(x):
        match x:
            case _ if BOX.value < 2:
                yield x * 2 if x > 0 else x

    assert hf.compile(lambda x: list(some(x)))(X)[0].item() == 4.0


def locals_are_the_users() -> None:
    def run(x):
        if x > 0:
            x = x * 2
        return len(locals()) + x

    check(CORPUS["globals_and_locals"]._replace(function=run))


def python_iterators_stop() -> None:
    check(CORPUS["for_range_python_tensor_break"])


def effects_in_conditions() -> None:
    check(CORPUS["while_condition_that_assigns"])


def python_rows() -> None:
    def run(x):
        n = 0
        for one in ROWS:
            n += 1
            x = x + one
        return x + n

    assert hf.compile(run)(X).item() == 4.0


def many_assignments() -> None:
    def run(x):
        BOX.other = TABLE["x"] = x

    refused(run)


def first_steps_that_cannot_set() -> None:
    check(CORPUS["return_that_the_first_step_cannot_reach"])


def f_strings_convert() -> None:
    def run(x):
        width = SimpleNamespace(n=7)
        return x * len(f"{len([v for v in ROWS if v > 0]):>{width.n}}")

    compiled = hf.compile(run)
    assert compiled(X).item() == 14.0
    assert "_hf.read_attr(width, 'n')" in compiled.converted_code()


def decorators_are_converted() -> None:
    def twice(function):
        k = 2.0 if X > 0 else 3.0
        return lambda x: function(x) * k if x > 0 else function(x)

    def run(x):
        @twice
        def inner(v):
            return v

        return inner(x)

    assert hf.compile(run)(X).item() == 4.0


def defaults_are_converted() -> None:
    def run(x):
        return (lambda v, k=2.0 if x > 0 else 3.0: v * k)(x)

    assert hf.compile(run)(X).item() == 4.0


def functions_are_passed_on() -> None:
    assert hf.compile(lambda x: sum(jax.tree_util.tree_map(helper_sign, [x, -x, x])))(X) == 1.0


def generators_bind_in_conditions() -> None:
    def some(x):
        n = 0
        while n < 3 and (m := n + 1) < 3:
            yield x * m if x > 0 else x
            n += 1
        else:
            yield x

    assert [one.item() for one in hf.compile(lambda x: list(some(x)))(X)] == [2.0, 4.0, 2.0]


def patterns_that_always_match() -> None:
    def run(x):
        match x:
            case (str() | _) as y if x > 0:
                return y * 2
        return x

    assert hf.compile(run)(X).item() == 4.0


def sizes_are_not_called() -> None:
    with pytest.raises(HybridflowError, match=r"x\.shape\[axis\]"):
        hf.compile(lambda x: x.size(0))(X)


def shapes_are_kept() -> None:
    def run(x):
        y = hf.zeros((1,))
        while x < 10:
            y = hf.concat([y, y])
            x = x + 1
        return y

    with pytest.raises(HybridflowError, match="variable 'y' changes its shape"):
        hf.compile(run)(X)


@functools.cache
def boxed(x: Any) -> Any:
    return (x,)


def cached_values_are_not_kept() -> None:
    boxed.cache_clear()
    compiled = hf.compile(lambda x: boxed(x)[0] + boxed(x)[0])
    assert [compiled(hf.asarray(value)).item() for value in (2.0, 3.0)] == [4.0, 6.0]
    assert boxed.cache_info().currsize == 0


def f_strings_are_printed() -> None:
    def run(x):
        print(f"{x:.2f}")
        return x

    assert "print" in {node.op.name for node in hf.compile(run).graph(X).nodes}


SPECIAL = {
    name: value
    for name, value in list(globals().items())
    if inspect.isfunction(value) and value.__module__ == __name__ and value.__annotations__.get("return") == "None"
    and not inspect.signature(value).parameters
}


def run(name: str) -> None:
    if name in SPECIAL:
        SPECIAL[name]()
    elif name in CORPUS:
        check(CORPUS[name])
    else:
        test_convert.test_converted_functions_do_what_the_users_do(PLAIN[name])


# -- the rules --------------------------------------------------------------------------------------------------------


def as_it_is(self: Any, node: Any) -> Any:
    return ast.NodeTransformer.generic_visit(self, node)


def nothing(*_: Any, **__: Any) -> None:
    return None


def no(*_: Any, **__: Any) -> bool:
    return False


Reads, Writes, Runtime = reads.Reads, writes.Writes, runtime.Runtime
Lowering, Hoisting, Control = exits._Lowering, bindings._Hoisting, control.Control
Rule = tuple[Any, str]


def kept(self: Any, node: Any) -> Any:
    return node


def as_list(self: Any, node: Any, *_: Any) -> Any:
    return [node]


RULES: dict[Rule, tuple[Any, str]] = {
    # Expressions and statements stay as they are.
    (Reads, "visit_Name"): (as_it_is, "sees_globals"),
    (Reads, "visit_NamedExpr"): (as_it_is, "binds_outside_by_walrus"),
    (Reads, "visit_Attribute"): (as_it_is, "methods"),
    (Reads, "visit_Expr"): (as_it_is, "changes_what_it_does_not_read"),
    (Reads, "visit_Dict"): (kept, "sees_spread_mappings"),
    (Reads, "visit_YieldFrom"): (kept, "sees_what_is_yielded_from"),
    (Reads, "visit_Starred"): (kept, "sees_spread_rows"),
    (Reads, "visit_Set"): (kept, "sees_elements_of_sets"),
    (Reads, "hashed"): (lambda self, node: self.visit(node), "sees_elements_of_sets"),
    (Reads, "spread"): (lambda self, node: self.visit(node), "sees_spread_mappings"),
    (Writes, "visit_Match"): (kept, "sees_what_is_matched"),
    (Reads, "visit_Subscript"): (as_it_is, "items_of_a_class"),
    (Reads, "key"): (lambda self, node: reads.constant(node, 0), "targets"),
    (Reads, "visit_Call"): (as_it_is, "if_in_called_helper"),
    (Reads, "is_super"): (no, "methods_with_super"),
    (Reads, "first_argument"): (nothing, "methods_with_super"),
    (Reads, "of_the_frame"): (kept, "methods_with_super"),
    (Reads, "visit_BoolOp"): (as_it_is, "bool_and_or"),
    (Reads, "visit_UnaryOp"): (as_it_is, "bool_and_or"),
    (Reads, "visit_BinOp"): (as_it_is, "operators_of_a_class"),
    (Reads, "visit_IfExp"): (as_it_is, "ternary"),
    (Reads, "visit_Compare"): (as_it_is, "chained"),
    (Reads, "visit_Assert"): (as_it_is, "asserts"),
    (Reads, "visit_Raise"): (as_it_is, "raise_in_branch"),
    (Reads, "visit_ListComp"): (as_it_is, "unknown_lengths"),
    (Reads, "is_filtered"): (no, "filter_in_sum"),
    (Reads, "iterated"): (lambda self, node: self.visit(node), "generators_run_over_users_objects"),
    (Reads, "visit_Lambda"): (kept, "lambda_ternary"),
    (Reads, "visit_defaults"): (nothing, "defaults_are_converted"),
    (Reads, "visit_JoinedStr"): (kept, "f_strings_convert"),
    (Reads, "checked"): (kept, "undefined_is_named"),
    (Reads, "stays"): (lambda self, *later: True, "ternary"),
    (Writes, "visit_Assign"): (as_it_is, "many_assignments"),
    (Writes, "visit_AnnAssign"): (as_it_is, "targets"),
    (Writes, "visit_AugAssign"): (as_it_is, "operators_of_a_class"),
    (Writes, "visit_Delete"): (as_it_is, "deletes_items"),
    (Writes, "visit_For"): (as_it_is, "generators_run_over_users_objects"),
    (Writes, "visit_Try"): (as_it_is, "exceptions_of_branches"),
    (Writes, "visit_With"): (as_it_is, "managers_of_a_class"),
    (Writes, "visit_FunctionDef"): (kept, "decorated_function"),
    (Writes, "visit_ClassDef"): (kept, "class_in_function"),
    (Writes, "visit_match_case"): (kept, "generators_match"),
    (Writes, "decorator"): (lambda self, node: node, "decorators_are_converted"),
    (Writes, "visit_Import"): (kept, "imports_are_told"),
    # The runtime does what Python does.
    (Runtime, "read_global"): (lambda self, name, value: value, "sees_globals"),
    (Runtime, "read_free"): (lambda self, name, value: value, "sees_free_names"),
    (Runtime, "read_attr"): (lambda self, obj, name: getattr(obj, name), "sees_attributes"),
    (Runtime, "read_item"): (lambda self, obj, key: obj[key], "items_of_a_class"),
    (Runtime, "iterate"): (lambda self, obj: obj, "iterators"),
    (Runtime, "callee"): (lambda self, function: function, "if_in_called_helper"),
    (Runtime, "size_callee"): (lambda self, function: function, "sizes_are_not_called"),
    (Runtime, "without_temporaries"): (lambda self, names: names, "locals_are_the_users"),
    (Runtime, "defined"): (lambda self, value, name: value, "undefined_is_named"),
    (Runtime, "if_"): (lambda self, test, true, false, *_: true() if test else false and false(), "if_else"),
    (Runtime, "while_"): (lambda self, test, step, *_: [step() for _ in iter(test, False)], "while_simple"),
    (Runtime, "for_"): (lambda self, rows, step, *_: [step(row) for row in rows], "loops_are_one_operation"),
    (Runtime, "_for_python"): (
        lambda self, rows, step, test, names: [step(row) for row in rows], "for_range_python_tensor_break"),
    (Runtime, "none_of"): (lambda self, *flags: not any(flags), "if_return_many"),
    (Runtime, "and_"): (lambda self, first, second, simple: first and second(), "bool_and_or"),
    (Runtime, "or_"): (lambda self, first, second, simple: first or second(), "bool_and_or"),
    (Runtime, "tested"): (lambda self, value: value, "conditions_of_any_values"),
    (Runtime, "not_"): (lambda self, value: not value, "bool_and_or"),
    (Runtime, "choose"): (lambda self, test, true, false: true() if test else false(), "ternary"),
    (Runtime, "compare"): (
        lambda self, names, left, right, *rest: runtime._COMPARISONS[names[0]](left, right), "chained"),
    (Runtime, "holds"): (lambda self, test, text: test, "asserts"),
    (Runtime, "seen"): (nothing, "sees_its_own_lines"),
    (Runtime, "handled"): (nothing, "handlers_of_what_a_trace_refuses"),
    (Runtime, "trying"): (staticmethod(nullcontext), "exceptions_of_branches"),
    (regions, "require_certain"): (nothing, "handlers_of_what_a_trace_refuses"),
    (Runtime, "caught"): (nothing, "finally_swallows"),
    (Runtime, "joined"): (lambda self, *parts: "", "f_strings_are_printed"),
    (Runtime, "raised"): (lambda self, error: error, "raise_in_branch"),
    (Runtime, "augment"): (
        lambda self, kind, target, operand: protocols.AUGMENTED[kind](target, operand), "augments_from_outside"),
    (Runtime, "load_global"): (lambda self, name, value: value, "changes_what_it_does_not_read"),
    (Runtime, "load_free"): (lambda self, name, value: value, "changes_what_it_does_not_read"),
    (Runtime, "load_attr"): (lambda self, obj, name: 0.0, "stores_of_a_class"),
    (Runtime, "load_item"): (lambda self, obj, key: 0.0, "stores_of_a_class"),
    (Runtime, "write_attr"): (lambda self, value, obj, name, *_: setattr(obj, name, value), "stores_of_a_class"),
    (Runtime, "write_item"): (lambda self, value, obj, key, *_: obj.__setitem__(key, value), "stores_items"),
    (Runtime, "delete_attr"): (lambda self, obj, name: delattr(obj, name), "deletes_attributes"),
    (Runtime, "delete_item"): (lambda self, obj, key: obj.__delitem__(key), "deletes_items"),
    (Runtime, "write_global"): (lambda self, name, value, *_: value, "stores_globals"),
    (Runtime, "delete_global"): (nothing, "deletes_names"),
    (Runtime, "write_free"): (lambda self, name, value, *_: value, "stores_free_names"),
    (Runtime, "delete_free"): (nothing, "deletes_free_names"),
    (Runtime, "manager"): (staticmethod(lambda obj: obj), "managers_of_a_class"),
    (Runtime, "hashed"): (lambda self, key: key, "sees_elements_of_sets"),
    (Runtime, "all_hashed"): (lambda self, keys: keys, "sees_spread_elements_of_sets"),
    (Runtime, "spread"): (lambda self, mapping: mapping, "sees_spread_mappings"),
    (Runtime, "whole"): (lambda self, value: value, "sees_what_is_matched"),
    (Runtime, "matched"): (lambda self, value, *_: value, "flags_in_patterns"),
    (Runtime, "other_bool"): (lambda self, subject, value: subject is value, "both_flags_are_matched"),
    (Runtime, "made_class"): (staticmethod(lambda made: made), "sees_what_bases_read"),
    (Runtime, "formatted"): (lambda self, value, conversion, spec: format(value, spec), "sees_what_is_shown"),
    (Runtime, "imported"): (lambda self, name, value, module: value, "sees_imported_names"),
    (Runtime, "evaluated"): (lambda self, source: source, "sees_what_eval_reads"),
    (Runtime, "importing"): (nothing, "sees_imports_that_fail"),
    (Runtime, "handled_name"): (nothing, "sees_names_that_fail_in_generators"),
    (Runtime, "every_global"): (lambda self, names: names, "sees_all_globals"),
    (Runtime, "keeps"): (staticmethod(lambda test: test), "unknown_lengths"),
    (Runtime, "kept"): (staticmethod(lambda test, value: (value(),)), "filter_in_sum"),
    (runtime._Effects, "grown"): (no, "while_condition_that_assigns"),
    # Exits.
    (Lowering, "leave"): (lambda self, node: [], "if_return"),
    (Lowering, "try_"): (as_list, "finally_breaks_and_continues"),
    (Lowering, "final_exits"): (as_list, "finally_returns"),
    (Lowering, "handed_on"): (lambda self, *_, **__: [], "finally_returns"),
    (exits, "_lower_loops"): (nothing, "generator_with_loops_that_break"),
    (control, "is_converted_loop"): (no, "for_break"),
    # Bindings.
    (Hoisting, "operands"): (lambda self, node, before: node, "walrus_in_and"),
    (Hoisting, "ternary"): (lambda self, node, before: node, "walrus_in_ternary"),
    (Hoisting, "chain"): (lambda self, node, before: node.left, "walrus_in_chain"),
    (Hoisting, "others"): (nothing, "walrus_in_arguments"),
    (control, "lower_bindings"): (nothing, "walrus_in_while_and"),
    (control, "as_endless_loop"): (lambda node: node, "generators_bind_in_conditions"),
    (control, "lower_matches"): (nothing, "match_values"),
    (control, "_irrefutable"): (no, "patterns_that_always_match"),
    # Branches and loops.
    (runtime, "while_with_effects"): (
        lambda goes, test, step, names: loops.while_on_tensor(test, step, names), "while_condition_that_changes"),
    (loops._Loop, "set_now"): (lambda self, names: {}, "for_last_set_in_loop"),
    (loops._Loop, "require_shape"): (nothing, "shapes_are_kept"),
    (branches, "is_set_by_loop"): (no, "name_that_some_steps_set"),
    (branches, "_is_known"): (no, "raise_own_class"),
    (regions, "changed"): (nothing, "changes_in_a_body"),
    (regions, "read"): (nothing, "lists_are_not_read_in_their_loop"),
    (regions, "_collects"): (no, "append_rows"),
    (branches, "is_too_deep"): (no, "recursion_is_bounded"),
    # Callees, protocols, callee, reductions.
    (callee, "_constructor"): (nothing, "methods"),
    (callee, "_construct_dataclass"): (
        lambda cls, after, *args, **kwargs: cls(*args, **kwargs), "dataclass_with_post_init"),
    (callee, "_getter_of"): (nothing, "methods"),
    (callee, "_calls_arguments"): (no, "functions_are_passed_on"),
    (protocols, "items_of"): (lambda obj: obj, "items_of_a_class"),
    (protocols, "stand_in"): (lambda obj, names: obj, "items_of_a_class"),
    (protocols, "setter_of"): (nothing, "stores_of_a_class"),
    (protocols, "drives"): (lambda function, args: args, "iterators_of_a_class"),
    (callee, "unwrapped"): (nothing, "cached_function"),
    (callee, "_call_dispatched"): (lambda function, *args: function(*args), "standard_library_wrappers"),
    (callee, "cached_property_of"): (nothing, "standard_library_wrappers"),
    (callee, "_traced"): (no, "cached_values_are_not_kept"),
    (builtin, "truths"): (lambda items, neutral: iter([neutral]), "filter_in_len_any_all"),
    (filtered, "extreme"): (lambda python, better, items, key, default: python([2.0]), "filter_in_min_max"),
    (filtered, "value_where"): (lambda pred, value: value(), "filter_guards_what_it_keeps"),
}


def name_of(rule: Rule) -> str:
    return f"{rule[0].__name__.rpartition('.')[2]}.{rule[1]}"


ASSERT = ("asserts", "exceptions_of_branches")
"""The cases in which a traced function has an assert."""


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=[pytest.mark.asserts] * (case in ASSERT)) for rule, (_, case) in RULES.items()],
    ids=name_of,
)
def test_without_a_rule(rule: Rule, monkeypatch: pytest.MonkeyPatch):
    replacement, case = RULES[rule]
    monkeypatch.setattr(rule[0], rule[1], replacement)
    for one in ("notice", "calls"):  # the net sees most of what a rule misses, on newer Pythons
        monkeypatch.setattr(noticed, one, nothing)
    with without_xla():
        try:
            run(case)
        except (Exception, pytest.fail.Exception):
            return
    pytest.fail(f"{case} runs as if nothing was wrong")


@pytest.mark.parametrize(
    "name",
    [pytest.param(case, marks=[pytest.mark.asserts] * (case in ASSERT)) for case in
     sorted({case for _, case in RULES.values()})],
)
def test_with_every_rule(name: str):
    with without_xla():
        run(name)


def rules_of(owner: Any) -> list[set[str]]:
    """Return the rules among a class's methods, each with all of its names."""
    found: dict[Any, set[str]] = {}
    for name, value in vars(owner).items():
        if inspect.isfunction(value) and (name.startswith("visit_") if owner is not Runtime else name[0] != "_"):
            found.setdefault(value, set()).add(name)
    return list(found.values())


def test_every_rule_is_here():
    here = {name for _, name in RULES} | set(protocols.METHODS.values()) | {"visit_AsyncFunctionDef"}  # it does nothing
    assert [rule for owner in (Reads, Writes, Runtime) for rule in rules_of(owner) if not rule & here] == []

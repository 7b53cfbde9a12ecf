"""``if`` on a tensor: both branches are traced, and the variables that they set are merged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.autodiff.graph_ops import inline
from hybridflow.convert.cells import Cells
from hybridflow.convert.poison import UNSET, Late, Poison, set_in_one, spoken
from hybridflow.convert.regions import DEPTH, Region, is_set_by_loop, is_too_deep, region
from hybridflow.convert.staged import as_integer, kinds_of, magnitude, raw_dtype, staged, staged_int
from hybridflow.convert.texts import plain
from hybridflow.convert.values import (
    TakeApart,
    Value,
    are_alike,
    difference,
    holds_traced,
    is_number,
    is_real_number,
    is_traced,
    made_at,
    same_python,
    shown,
    standing_for,
    truth,
    zeros_like,
)
from hybridflow.core.dims import NeedsSizes
from hybridflow.core.dtypes import DType, default_dtype, is_integer
from hybridflow.core.errors import CheckError, TraceError, message
from hybridflow.core.held import attributes_of, held_errors
from hybridflow.core.node import format_where, user_place
from hybridflow.core.staged_number import INT, StagedNumber, tried, weak_dtype_of
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import as_tensor
from hybridflow.guards import observe
from hybridflow.guards.storable import require_numbers_in
from hybridflow.ir.builder import Traced, add_check, trace_body
from hybridflow.ir.checks import again
from hybridflow.nested.bodies import predicate, trace_function
from hybridflow.nested.branches import join
from hybridflow.nested.tensor_array import begun_with, shapes_to_begin_with

Block = Callable[[], Any]
_PYTHONS = (ZeroDivisionError, OverflowError, AssertionError, SystemExit)
"""Exceptions of Python's own arithmetic, of ``assert`` and of ``sys.exit``: only calls that get there raise them."""
_FLAGS = (".returned", ".broken", ".continued", ".holds", ".matched", ".goes")


class FirstWrite(Exception):
    """Raised if a branch, or a loop's step, is the first to write to TensorArrays of a variable."""

    def __init__(self, name: str, shapes: dict[int, Any]) -> None:
        super().__init__(name, shapes)
        self.name = name
        self.shapes = shapes


class _Outcome(NamedTuple):
    """The result of tracing a branch.

    Attributes:
        traced: its graph.
        leaves: the values that the graph returns, as the Python code computed them.
        parts: the flattened values of the live variables that it sets.
        ran: for each variable that only some calls set in the branch, whether they did.
        values: the values of all variables.
        raised: whether it raises in the calls that take it.
    """

    traced: Traced
    leaves: list[Any]
    parts: dict[str, Value]
    ran: dict[str, Any]
    values: dict[str, Any]
    raised: bool


class _Branches:
    """One ``if`` on a tensor."""

    def __init__(self, cells: Cells, live: tuple[str, ...], place: str) -> None:
        self.cells = cells
        self.live = live
        self.place = place
        self.before = cells.read()
        self.opened: set[str] = set()
        # If the blocks contain an exit that became a flag, whether a variable has a value differs from call to call.
        self.exits = any(name.startswith(_FLAGS) for name in cells.names)

    def trace(self, pred: Any, true: Block | None, false: Block | None) -> dict[str, Any]:
        """Trace both branches, and return the variables after them."""
        with self.cells.kept():
            while True:
                try:
                    return self.merged(pred, self.run("cond_true", true), self.run("cond_false", false))
                except FirstWrite as found:
                    self.before[found.name] = begun_with(self.before[found.name], found.shapes)
                except TakeApart as found:
                    self.opened.add(found.name)

    def run(self, name: str, block: Block | None) -> _Outcome:
        """Trace a branch from the state before it, and return its outcome."""
        parts: dict[str, Value] = {}
        ran: dict[str, Any] = {}
        left: dict[str, Any] = {}

        def body() -> list[Any]:
            self.cells.write(self.before)
            code = None if block is None else getattr(block, "code", None) or cast(Any, block).__code__
            with region(self.cells, code=code) as made:
                if block is not None and not (self.is_shallow(code) and completes(block, made)):
                    return []
            left.update(self.cells.read())
            leaves: list[Any] = []
            for variable in self.live:
                value = left[variable]
                if type(value) is Late:
                    ran[variable] = value.ran
                    value = value.value
                if value is not UNSET:
                    parts[variable] = Value.of(value, variable in self.opened)
                    leaves += [_left_behind(leaf) for leaf in parts[variable].dynamic()]
            return [*leaves, *ran.values()]

        traced, _, leaves = trace_function(name, body, [], lambda _: ())
        return _Outcome(traced, leaves, parts, ran, left, raised=not left)

    def is_shallow(self, code: Any) -> bool:
        """Return False if recursion is too deep; the calls that take the branch then fail."""
        if is_too_deep(code):
            text = f"the branch at {self.place} is inside of itself more than {DEPTH.get()} times"
            with tried():
                error = TraceError(text, hint="Give hf.compile a larger max_depth, or write a loop.")
            add_raise(error)
            return False
        return True

    def merged(self, pred: Any, true: _Outcome, false: _Outcome) -> dict[str, Any]:
        """Add the node of both branches, and return the variables after it."""
        after: dict[str, Any] = {name: dead(name) for name in self.cells.names}
        plan = _Plan(true, false)
        fill: dict[str, Any] = {}
        for name in self.live:
            met = self.meet(name, true, false, plan)
            if callable(met):
                fill[name] = met
            else:
                after[name] = met[0]
        made = plan.join(pred)
        after.update({name: build(made) for name, build in fill.items()})
        return after

    def meet(self, name: str, true: _Outcome, false: _Outcome, plan: _Plan) -> Any:
        """Return a variable's value after both branches, in a tuple, or a function of the node's results."""
        if true.raised or false.raised:
            other = false if true.raised else true
            parts = other.parts.get(name)
            self.require_open(name, parts)
            return (UNSET,) if other.raised or parts is None else self.joined(name, true, false, plan, parts, parts)
        a, b = true.values[name], false.values[name]
        if a is b:
            return (a,)
        one, two = true.parts.get(name), false.parts.get(name)
        if one is None or two is None:
            has = one or two
            assert has is not None
            self.require_open(name, has)
            poison = next((leaf for leaf in has.leaves if type(leaf) is Poison), None)
            if poison is not None:
                return (poison,)
            known = self.exits or name.startswith(".") or name in true.ran or name in false.ran
            if not (known or is_set_by_loop(name)):
                return (set_in_one(name, "true" if two is None else "false", self.place, shown(has)),)
            return self.joined(name, true, false, plan, has, has)
        if one.tree != two.tree:
            self.first_write(name, true.values[name], false.values[name])
        elif name not in self.opened and any(map(are_alike, one.leaves, two.leaves)):
            raise TakeApart(name)
        reason = difference(name, one, two, self.place)
        return (reason,) if reason is not None else self.joined(name, true, false, plan, one, two)

    def require_open(self, name: str, parts: Value | None) -> None:
        """Raise, to trace the branches again, if a variable that only one of them sets holds an object made there.

        Raises:
            TakeApart: it does.
        """
        if parts is not None and name not in self.opened and holds_traced(parts.leaves):
            raise TakeApart(name)

    def first_write(self, name: str, *values: Any) -> None:
        """Raise, to trace the branches again, if only one of them was the first to write to arrays of a variable.

        Raises:
            FirstWrite: it was.
        """
        one, two = (value.value if type(value) is Late else value for value in values)
        before = self.before[name]
        shapes = shapes_to_begin_with(one, two) or shapes_to_begin_with(two, one)
        if shapes and before is not UNSET and type(before) not in (Late, Poison):
            after = two if shapes_to_begin_with(one, two) else one
            if shapes_to_begin_with(before, after).keys() >= shapes.keys():
                raise FirstWrite(name, shapes)

    def joined(self, name: str, true: _Outcome, false: _Outcome, plan: _Plan, one: Value, two: Value) -> Any:
        """Plan the results that a variable needs, and return the function that builds its value from them."""
        constant = [
            p is q or (is_number(p) and is_number(q) and same_python(p, q))
            for p, q in zip(one.dynamic(), two.dynamic(), strict=True)
        ]
        if true.raised or false.raised:  # every call that does not fail takes the other branch
            constant = [is_number(leaf) and type(leaf) is not StagedNumber for leaf in one.dynamic()]
        else:
            constant = [same and name in true.parts and name in false.parts for same in constant]
        pairs = list(zip(one.dynamic(), two.dynamic(), strict=True))
        places = [plan.add(name, index) for index in range(len(constant))]
        finish = [plan.meet(place, *pair) for place, pair in zip(places, pairs, strict=True)]
        one_sided = (name in true.parts) != (name in false.parts) and not (true.raised or false.raised)
        partly = name in true.ran or name in false.ran or (one_sided and not name.startswith("."))
        late = plan.add_ran(name) if partly else None

        def build(made: list[Any]) -> Any:
            known = zip(constant, one.dynamic(), places, finish, strict=True)
            leaves = [leaf if same else last(made[place]) for same, leaf, place, last in known]
            leaves = [standing_for(p, leaf, q) for (p, q), leaf in zip(pairs, leaves, strict=True)]
            value = one.apart_from(two).filled(leaves, two.source)
            if late is None:
                return value
            text = message(f"{spoken(name)} has no value on the way that the call took past {self.place}",
                           hint="Give it a value on every way.")
            return Late(value, made[late], text)

        return build


class _Plan:
    """The results of the node that joins two branches: for each result, the value from each branch."""

    def __init__(self, true: _Outcome, false: _Outcome) -> None:
        self.true, self.false = true, false
        self.named: list[str] = []
        self.wanted: list[tuple[str, int]] = []
        self.dtypes: dict[int, DType] = {}

    def add(self, name: str, index: int) -> int:
        """Add a leaf of a variable, and return its position among the results."""
        self.named.append(spoken(name))
        self.wanted.append((name, index))
        return len(self.wanted) - 1

    def meet(self, place: int, one: Any, other: Any) -> Callable[[Any], Any]:
        """Choose the dtype of two merged leaves if one is a number; return the function that converts the result."""
        name = self.wanted[place][0]
        numbers = [leaf for leaf in (one, other) if is_real_number(leaf)]
        if len(numbers) == 2:
            kinds = kinds_of(one) | kinds_of(other)
            self.dtypes[place] = raw_dtype(kinds)
            if name.startswith(".") and name != ".result":
                return _as_it_is
            origin = f"{spoken(name)}: {made_at(one)} if the condition is true, {made_at(other)} if it is false"
            limit = max(magnitude(one), magnitude(other))
            return lambda tensor: staged(kinds, tensor, limit, origin)
        if not numbers:
            return _as_it_is
        number = numbers[0]
        tensor = other if one is number else one
        dtype = default_dtype(tensor) if is_number(tensor) else as_tensor(tensor).dtype
        target = self.dtypes[place] = weak_dtype_of(number, dtype)
        if type(number) is not StagedNumber:
            return _as_it_is
        if not is_integer(target) or target == np.uint64 or number.limit <= np.iinfo(target).max:
            return _as_it_is
        self.dtypes[place] = raw_dtype(INT)
        return lambda tensor: as_integer(staged_int(tensor), target)

    def add_ran(self, name: str) -> int:
        """Add a result that tells whether a variable has a value."""
        return self.add(name, -1)

    def join(self, pred: Any) -> list[Any]:
        """Add the node and return its results."""
        sides = [self.side(self.true, self.false), self.side(self.false, self.true)]
        return join(predicate("cond", pred), self.named, sides[0], sides[1], dtypes=self.dtypes)

    def side(self, mine: _Outcome, other: _Outcome) -> tuple[Traced, list[Any]]:
        """Return a branch's graph with the planned results; zeros where only the other branch has a value."""
        starts: dict[str, int] = {}
        position = 0
        for name, parts in mine.parts.items():
            starts[name] = position
            position += len(parts.dynamic())
        for name in mine.ran:
            starts[f"{name} ran"] = position
            position += 1
        leaves: list[Any] = []
        sources: list[int | None] = []
        for name, index in self.wanted:
            if index < 0:
                source = starts.get(f"{name} ran")
                leaves.append(name in mine.parts if source is None else mine.leaves[source])
            elif name in mine.parts:
                source = starts[name] + index
                leaf = mine.parts[name].dynamic()[index]
                plain = is_number(leaf) and type(leaf) is not StagedNumber
                leaves.append(leaf if plain else mine.leaves[source])
            else:
                source = None
                leaf = other.parts[name].dynamic()[index]
                leaves.append(leaf.raw if type(leaf) is StagedNumber else leaf)
            sources.append(source)
        return _selected(mine.traced, position, sources, leaves), leaves


def _as_it_is(tensor: Any) -> Any:
    return tensor


def _left_behind(leaf: Any) -> Any:
    """Return the result of a branch's graph for a leaf; a number gets a placeholder until both branches are known."""
    if type(leaf) is StagedNumber:
        return leaf.raw
    return False if is_real_number(leaf) else leaf


def _selected(traced: Traced, count: int, sources: list[int | None], leaves: list[Any]) -> Traced:
    """Return a graph with other results: some of its own results, and zeros (or flags) for the others."""
    if sources == list(range(count)):
        return traced

    def run(*tensors: Any) -> list[Any]:
        outputs = inline(traced.graph, tensors)
        made = [
            outputs[source] if source is not None else as_tensor(leaf) if type(leaf) is bool else zeros_like(leaf)
            for source, leaf in zip(sources, leaves, strict=True)
        ]
        return [*made, *outputs[count:]]

    return traced._replace(graph=trace_body(run, traced.graph.input_specs, traced.graph.name).graph)


def dead(name: str) -> Poison:
    """Return the content of a variable that no code reads before setting it again, except after an exception."""
    text = f"{spoken(name)} is read although an exception left out what sets it, and a `with` handled that"
    return Poison(TraceError, message(text, hint="Give it a value after the `with` block, or before it in each step."))


def completes(run: Callable[[], Any], body: Region) -> bool:
    """Run a branch, or a step of a loop; return False if it ends in a ``raise``: the calls that get there then fail."""
    try:
        run()
    except BaseException as error:
        if not (body.raises(error) or type(error) in _PYTHONS):
            raise
        add_raise(error)
        return False
    return True


def add_raise(error: BaseException) -> None:
    """Make the calls that reach this point fail with an error.

    Raises:
        NeedsNumber: the error, or one that it comes from or that is in its group, holds numbers that are inputs.
    """
    never: Any = as_tensor(np.asarray(False))
    if isinstance(error, TraceError):
        add_check(never, type(error), str(error))
        return
    try:
        require_numbers_in(error)
    except NeedsSizes:  # a trace for each size would cost more than the few calls that fail
        observe.acts_on_errors(False)
    for one in held_errors(error):
        one.args = tuple(map(plain, one.args))
        one.__dict__.update({name: plain(value) for name, value in vars(one).items()})
    text = str(error)
    if _is_known(error):
        add_check(never, type(error), text, again(error))
    else:
        add_check(never, CheckError, f"{type(error).__name__}: {text}")


def _is_known(error: BaseException) -> bool:
    """Whether an exception can be created again, and holds no values that only the trace has."""
    if any(map(is_traced, parts_of((error.args, attributes_of(error, in_c=True))))):
        return False
    try:
        with tried():
            return type(again(error)) is type(error)
    except Exception:  # noqa: BLE001, RUF100 (the user's class may have another constructor)
        return False


ENDLESS = 10_000
"""The steps after which an iterator of unknown length counts as endless, if only a tensor could end the loop."""


def endless(what: str) -> TraceError:
    """Return the error for an iterator of unknown length, which only a tensor could stop."""
    return TraceError(f"{what}: an iterator of unknown length, which only a tensor could stop, at {where_now()}",
                      hint="Count in a while loop.")


def where_now() -> str:
    """Return the user's current line as text."""
    return format_where(user_place(2)) or "an unknown place"


def branch_on_tensor(
    pred: Any, true: Block | None, false: Block | None, cells: Cells, live: tuple[str, ...]
) -> None:
    """Trace an ``if`` on a tensor.

    Args:
        pred: the condition.
        true, false: the branches.
        cells: the variables that they may set.
        live: those that may be read later.
    """
    cells.write(_Branches(cells, live, where_now()).trace(truth(pred), true, false))


def value_on_tensor(pred: Any, true: Callable[[], Any], false: Callable[[], Any]) -> Any:
    """Trace a conditional expression on a tensor, and return its value."""
    values: dict[str, Any] = {}

    class Slot(Cells):
        """Stands for a variable that holds the expression's value; it has no closure cell."""

        def read(self) -> dict[str, Any]:
            return {"the expression": values.get("value", UNSET)}

        def write(self, values: dict[str, Any]) -> None:
            del values

    def setting(function: Callable[[], Any]) -> Block:
        def run() -> None:
            values["value"] = function()

        run.__dict__["code"] = cast(Any, function).__code__
        return run

    branches = _Branches(Slot(("the expression",)), ("the expression",), where_now())
    after = branches.trace(truth(pred), setting(true), setting(false))["the expression"]
    return after.fail() if type(after) is Poison else after


def value_where(pred: Any, value: Callable[[], Any]) -> Any:
    """Return a value that is computed only if a condition is true; zeros otherwise."""
    made: dict[str, Any] = {}

    class Slot(Cells):
        """The value as a variable without a cell, which has no value before."""

        def read(self) -> dict[str, Any]:
            return {".value": made.get("value", UNSET)}

        def write(self, values: dict[str, Any]) -> None:
            del values
            made.clear()

    def run() -> None:
        made["value"] = value()

    run.__dict__["code"] = cast(Any, value).__code__
    return _Branches(Slot((".value",)), (".value",), where_now()).trace(truth(pred), run, None)[".value"]

"""``while`` and ``for`` on tensors: the body is traced once, and the loop carries the variables that it changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.branches import FirstWrite, completes, dead, where_now
from hybridflow.convert.cells import Cells
from hybridflow.convert.poison import UNSET, Late, Poison, spoken
from hybridflow.convert.regions import Region, append_rows, before_change, region
from hybridflow.convert.rows import Rows, TensorRange
from hybridflow.convert.staged import kinds_of, raw_dtype, raw_of, staged, staged_int, takes_dtype
from hybridflow.convert.values import (
    TakeApart,
    Value,
    are_alike,
    holds_traced,
    is_dynamic,
    is_number,
    is_real_number,
    made_at,
    same_python,
    standing_for,
    truth,
    type_name,
)
from hybridflow.core.errors import DTypeError, ShapeError, TraceError, message
from hybridflow.core.staged_number import BOOL, INT, LARGEST, Kinds, StagedNumber, weak_dtype_of
from hybridflow.core.tensor import as_tensor, asarray
from hybridflow.core.traced_array import TracedArray
from hybridflow.guards.order import in_order_of
from hybridflow.ir.builder import add_check, trace_with_variables
from hybridflow.nested.limits import LIMIT
from hybridflow.nested.loops import iterate
from hybridflow.nested.scans import scan_rows
from hybridflow.nested.tensor_array import begun_with, shapes_to_begin_with


class LoopNames(NamedTuple):
    """The names of a loop.

    Attributes:
        bound: the names that it may set.
        head: those of them that a step may read from the previous step.
        live: those of them that may be read after the loop.
    """

    bound: tuple[str, ...]
    head: tuple[str, ...]
    live: tuple[str, ...]


class _FirstSet(Exception):
    """Raised if a step sets variables that the first step, from the values before the loop, did not set."""

    def __init__(self, names: dict[str, tuple[Value, list[tuple[Any, Any]]]]) -> None:
        super().__init__(names)
        self.found = names


class _Adapt(Exception):
    """Raised if variables that start as Python numbers have another dtype after a step."""

    def __init__(self, leaves: dict[tuple[str, int], Any]) -> None:
        super().__init__(leaves)
        self.leaves = leaves


class _Loop:
    """One loop on tensors: its carried variables and their values before it."""

    def __init__(self, cells: Cells, names: LoopNames) -> None:
        self.cells = cells
        self.place = where_now()
        self.before = cells.read()
        wanted = {*names.head, *names.live}
        self.weak: dict[tuple[str, int], Kinds] = {}
        # The kinds of the numbers after a step. If the loop is certain to make a step, these are also the kinds after
        # the loop.
        self.last: dict[tuple[str, int], Kinds] = {}
        self.certain = self.ended = False
        # The numbers that every step leaves unchanged, or sets to the same value.
        self.same: dict[tuple[str, int], Any] = {}
        self.first_step: Callable[[], dict[str, tuple[Value, list[tuple[Any, Any]]]]] = dict
        self.carried = [name for name in names.bound if name in wanted]
        self.live = names.live
        self.values: dict[str, Value] = {}
        self.after: dict[str, Value] = {}
        # The leaves that a step turns into arrays of an argument.
        self.arrays: dict[tuple[str, int], TracedArray] = {}
        # The variables whose objects are flattened: the steps recreate them.
        self.opened: set[str] = set()
        self.first_set: list[str] = []
        self.unset: list[str] = []
        # For variables that may have no value: whether they have one.
        self.ran: dict[str, Any] = {}
        for name in self.carried:
            value = self.before[name]
            if type(value) is Late:
                self.ran[name] = value.ran
                value = value.value
            if value is UNSET or type(value) is Poison:
                self.first_set.append(name)
            else:
                self.begin_with(name, value)

    def begin_with(self, name: str, value: Any) -> None:
        """Set the value that a variable starts with."""
        self.values[name] = Value.of(value, name in self.opened)
        self.note_numbers(name, self.values[name].leaves)

    def note_numbers(self, name: str, leaves: Sequence[Any]) -> None:
        """Record which leaves of a variable are Python numbers."""
        self.weak.update({(name, index): kinds_of(leaf) for index, leaf in enumerate(leaves) if is_real_number(leaf)})

    # -- before -----------------------------------------------------------------------------------------------

    def discover(self, step: Callable[[], Any], rows: bool = False) -> None:
        """Trace a step to find the shapes of the variables that only the loop sets, and discard the graph."""
        self.first_step = lambda: self.after_first_step(step, rows)
        if not self.first_set:
            return
        with self.cells.kept():
            after = self.first_step()
        for name in list(self.first_set):
            value = after.get(name)
            if value is None:
                self.carried.remove(name)
                self.unset.append(name)
            else:
                self.begin(name, *value)

    def begin(self, name: str, parts: Value, specs: list[tuple[Any, Any]]) -> None:
        """Initialise a variable that only the loop sets: with zeros, and a flag that says it has no value yet."""
        self.begin_with(name, parts.filled([zeros_of(*spec) for spec in specs]))
        self.note_numbers(name, parts.leaves)
        if not name.startswith("."):
            self.ran[name] = asarray(False)

    def after_first_step(self, step: Callable[[], Any], rows: bool) -> dict[str, tuple[Value, list[tuple[Any, Any]]]]:
        """Return the carried variables after a step from their values before the loop, with shapes and dtypes."""
        values: dict[str, tuple[Value, list[tuple[Any, Any]]]] = {}

        def once() -> list[Any]:
            self.cells.write(self.before)
            with region(self.cells, rows) as body:
                done = completes(step, body)
            values.update(self.set_now(self.carried) if done else {})
            return []

        trace_with_variables(once, [], "loop_first_step")
        return values

    def set_now(self, names: Sequence[str]) -> dict[str, tuple[Value, list[tuple[Any, Any]]]]:
        """Return those of `names` that have values now, with shapes and dtypes."""
        values: dict[str, tuple[Value, list[tuple[Any, Any]]]] = {}
        for name, value in self.cells.read().items():
            value = value.value if type(value) is Late else value
            if name in names and value is not UNSET and type(value) is not Poison:
                parts = Value.of(value, name in self.opened)
                values[name] = parts, list(map(_spec, parts.dynamic()))
        return values

    def initial(self) -> tuple[Any, ...]:
        """Return the initial state of the loop."""
        return tuple([self.begun(name) + self.flag(name) for name in self.carried])

    def begun(self, name: str) -> list[Any]:
        """Return the initial leaves of a variable, with numbers as tensors of their raw dtypes."""
        return [
            raw_of(leaf, raw_dtype(self.weak[name, index])) if (name, index) in self.weak else leaf
            for index, leaf in enumerate(self.values[name].leaves)
            if is_dynamic(leaf)
        ]

    def flag(self, name: str) -> list[Any]:
        """Return the flag that tells whether a variable has a value, in a list; empty if it always has one."""
        return [self.ran[name]] if name in self.ran else []

    def value(self, name: str, leaves: Sequence[Any]) -> Any:
        """Build a variable's value from its carried leaves."""
        if name not in self.ran:
            return self.filled(name, leaves)
        text = message(f"{spoken(name)} is set by the loop at {self.place}, which made no step that sets it",
                       hint="Give it a value before the loop.")
        return Late(self.filled(name, leaves[:-1]), leaves[-1], text)

    def filled(self, name: str, leaves: Sequence[Any]) -> Any:
        """Build a variable's value from its leaves, with staged numbers for the raw tensors of numbers."""
        value = self.values[name]
        places = [index for index, leaf in enumerate(value.leaves) if is_dynamic(leaf)]
        made: list[Any] = []
        for index, leaf in zip(places, leaves, strict=True):
            kinds = self.weak.get((name, index))
            if kinds is not None and self.ended and self.same.get((name, index)) is not None:
                leaf = self.same[name, index]
            elif kinds is not None:
                first = made_at(value.leaves[index])
                origin = f"{spoken(name)}: {first} before the loop at {self.place}, another kind later"
                leaf = staged(kinds, raw_of(leaf, raw_dtype(kinds)), 1 if kinds == BOOL else LARGEST, origin)
            made.append(leaf)
        after = self.after.get(name) if self.ended else None
        if after is None:
            return value.filled(made)
        if self.certain:  # it is what the last step made, and not what was there before the loop
            return value.apart_from(after)._replace(source=after.source).filled(made)
        return value.apart_from(after).filled(made, after.source)

    # -- a step -----------------------------------------------------------------------------------------------

    def step(self, state: Sequence[Any], run: Callable[[], Any], rows: bool = False) -> tuple[tuple[Any, ...], Region]:
        """Run a step from a state; return the state after it, which is the same if the step ends in a ``raise``."""
        self.enter(state)
        with region(self.cells, rows) as body:
            if not completes(run, body):
                self.enter(state)
        return self.leave(), body

    def enter(self, state: Sequence[Any]) -> None:
        """Set the variables to the state at the start of a step."""
        now = {name: self.before[name] if name in self.unset else dead(name) for name in self.cells.names}
        for name, leaves in zip(self.carried, state, strict=True):
            now[name] = self.value(name, leaves)
        self.cells.write(now)

    def leave(self) -> tuple[Any, ...]:
        """Return the state after a step.

        Raises:
            _Adapt: a Python number took a dtype.
            _FirstSet: a variable that had no value so far has one.
            TraceError, ShapeError, DTypeError: a variable changed its structure, shape or dtype.
        """
        after = self.cells.read()
        adapt: dict[tuple[str, int], Any] = {}
        made = [self.leaves_after(name, after[name], adapt) for name in self.carried]
        if adapt:
            raise _Adapt(adapt)
        values = self.set_now(self.unset) if self.unset else {}
        if values:
            raise _FirstSet(values)
        return tuple(made)

    def leaves_after(self, name: str, value: Any, adapt: dict[tuple[str, int], Any]) -> list[Any]:
        """Return a variable's leaves after a step, checked and converted to the form that they had before it."""
        before = self.values[name]
        what = spoken(name)
        if type(value) is Poison:
            value.fail()
        ran: list[Any] = []
        if type(value) is Late:
            ran = [value.ran]
            value = value.value
        elif name in self.ran:
            ran = [asarray(True)]
        if ran and name not in self.ran:
            text = f"{what} may lose its value in the loop at {self.place}"
            raise TraceError(text, hint="Keep it, or set it.")
        if value is UNSET:
            raise TraceError(f"{what} is deleted in the loop at {self.place}", hint="Keep it, or set it.")
        after = Value.of(value, name in self.opened)
        if not after.is_like(before):
            shapes = shapes_to_begin_with(jax.tree_util.tree_unflatten(before.tree, before.leaves), value)
            if shapes:
                raise FirstWrite(name, shapes)
            raise TraceError(f"{what} changes its structure in the loop at {self.place}",
                             got=f"{self.shown(before)} before, {self.shown(after)} after a step",
                             hint="Start with a value of the structure that the loop gives it.")
        self.after[name] = after
        made: list[Any] = []
        for index, (a, b) in enumerate(zip(before.leaves, after.leaves, strict=True)):
            if is_dynamic(a) and is_dynamic(b):
                made.append(self.leaf_after(what, (name, index), a, b, adapt))
            elif type(b) is Poison:
                b.fail()
            elif name not in self.opened and are_alike(a, b):
                raise TakeApart(name)
            elif not same_python(a, b):
                raise TraceError(f"{what} is another Python object after a step of the loop at {self.place}",
                                 got=f"{made_at(a)} before, {made_at(b)} after",
                                 hint="Only tensors and numbers can change.")
        return made + ran

    def leaf_after(self, what: str, key: tuple[str, int], a: Any, b: Any, adapt: dict[tuple[str, int], Any]) -> Any:
        """Return a leaf after a step, as a tensor of the dtype it had before."""
        kinds = self.weak.get(key)
        if is_real_number(b) and kinds is not None:
            self.last[key] = kinds_of(b)
            plain = type(b) in (bool, int, float)
            self.same[key] = b if plain and (self.certain or same_python(a, b) or not is_number(a)) else None
            seen = kinds | self.last[key]
            if seen != kinds:
                adapt[key] = seen
            return raw_of(b, raw_dtype(seen))
        self.require_shape(what, a, b)
        if type(b) is TracedArray and type(a) is not TracedArray and key not in self.arrays:
            self.arrays[key] = b
            adapt[key] = b.dtype
            return as_tensor(b)
        if kinds is not None:
            other = as_tensor(b)
            if not takes_dtype(a, other.dtype):
                raise self.other_dtype(what, a, b)
            adapt[key] = other.dtype
            return other
        one = as_tensor(a)
        if is_number(b):
            dtype = weak_dtype_of(b, one.dtype)
            if dtype == one.dtype:
                return asarray(b, dtype=dtype)
        else:
            dtype = as_tensor(b).dtype
            if dtype == one.dtype:
                return as_tensor(b)
        if not is_number(a) and key not in self.adapted:
            raise self.other_dtype(what, a, b)
        adapt[key] = dtype if is_number(b) else self.once_more(what, key, one.dtype, dtype)
        return asarray(b, dtype=dtype)

    def require_shape(self, what: str, a: Any, b: Any) -> None:
        """Raise if a leaf has another shape after a step."""
        one, other = (() if is_number(leaf) else as_tensor(leaf).shape for leaf in (a, b))
        if one != other:
            raise ShapeError(f"{what} changes its shape in the loop at {self.place}: {one} and then {other}",
                             got=f"{made_at(a)} before, {made_at(b)} after",
                             hint="Keep the shape, or start with the other one.")

    def other_dtype(self, what: str, a: Any, b: Any) -> DTypeError:
        """Return the error for a leaf that has another dtype after a step."""
        one, other = (type_name(leaf) for leaf in (a, b))
        return DTypeError(f"{what} is {one} before and {other} after a step of the loop at {self.place}",
                          got=f"{made_at(a)} before, {made_at(b)} after",
                          hint="Cast it, or start with the other dtype.")

    adapted: frozenset[tuple[str, int]] = frozenset()

    def once_more(self, what: str, key: tuple[str, int], before: Any, after: Any) -> Any:
        """Raise for a number whose dtype a step changes again after it was adapted.

        Raises:
            DTypeError: always.
        """
        raise DTypeError(
            f"{what} starts as a number and has another dtype after every step of the loop at {self.place}",
            got=f"{before}, {after}", hint="Start with a tensor."
        )

    def shown(self, value: Value) -> str:
        """Describe a value."""
        return ", ".join(made_at(leaf) for leaf in value.leaves) or str(jax.tree_util.tree_unflatten(value.tree, []))

    def require_end(self, goes_on: Callable[[], Any]) -> None:
        """Add a check that fails in calls in which a bounded loop would go on."""
        bound = LIMIT.get()
        if bound is not None:
            add_check(
                PUBLIC.logical_not(goes_on()), TraceError,
                message(f"the loop at {self.place} would go on after {bound} steps",
                        hint="Give hf.max_iterations a larger count."),
            )

    # -- after ------------------------------------------------------------------------------------------------

    def begin_arrays(self, values: FirstWrite) -> None:
        """Give a variable's TensorArrays the element shapes that a step wrote; their buffers then become leaves."""
        old = self.values[values.name]
        whole = old.filled(old.dynamic())
        new = self.values[values.name] = Value.of(begun_with(whole, values.shapes))
        kept = iter([self.weak.pop((values.name, index), None) for index in range(len(old.leaves))])
        known = {id(leaf) for leaf in old.leaves}
        for index, leaf in enumerate(new.leaves):
            kinds = next(kept) if id(leaf) in known else None
            if kinds is not None:
                self.weak[values.name, index] = kinds

    def open(self, name: str) -> None:
        """Restart a variable with its objects flattened."""
        self.opened.add(name)
        for key in [key for key in self.weak if key[0] == name]:
            del self.weak[key]
        if name in self.first_set:
            self.begin(name, *self.first_step()[name])
        else:
            before = self.before[name]
            self.begin_with(name, before.value if type(before) is Late else before)

    def run(self, loop: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
        """Run the loop, again if its initial state must change, and set the variables to their final values."""
        with self.cells.kept():
            last = self.last_state(loop)
        if self.certain:
            self.weak.update({key: kinds for key, kinds in self.last.items() if key in self.weak})
        self.ended = True
        after: dict[str, Any] = {name: dead(name) for name in self.cells.names}
        for name, leaves in zip(self.carried, last, strict=True):
            after[name] = self.value(name, leaves)
        for name in self.cells.names:
            if name in self.live and name not in self.carried:
                after[name] = self.before[name]
        self.cells.write(after)

    def last_state(self, loop: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Run the loop, again if its initial state must change, and return the state after its last step."""
        while True:
            try:
                return loop(self.initial())
            except FirstWrite as found:
                self.begin_arrays(found)
            except TakeApart as found:
                self.open(found.name)
            except _FirstSet as first:
                self.unset = [name for name in self.unset if name not in first.found]
                self.carried += first.found
                for name, (parts, specs) in first.found.items():
                    self.begin(name, parts, specs)
            except _Adapt as adapt:
                self.adapted = self.adapted | adapt.leaves.keys()
                for (name, index), dtype in adapt.leaves.items():
                    if isinstance(dtype, frozenset):
                        self.weak[name, index] = dtype
                        continue
                    self.weak.pop((name, index), None)
                    value = self.values[name]
                    leaves = list(value.leaves)
                    leaves[index] = self.as_array((name, index), leaves[index], dtype)
                    self.values[name] = value._replace(leaves=leaves)

    def as_array(self, key: tuple[str, int], leaf: Any, dtype: Any) -> Any:
        """Return a leaf in the dtype that the steps give it, as a traced array if they turn it into one."""
        return standing_for(self.arrays.get(key, leaf), asarray(leaf, dtype=dtype), leaf)

    @property
    def names(self) -> list[str]:
        """The names of the carried values, for messages."""
        return self.carried


def _spec(leaf: Any) -> tuple[Any, Any]:
    """Return the shape and dtype that a loop carries for a leaf."""
    if is_real_number(leaf):
        return (), raw_dtype(kinds_of(leaf))
    tensor = as_tensor(leaf)
    return tensor.shape, tensor.dtype


def zeros_of(shape: Any, dtype: Any) -> Any:
    """Return zeros."""
    return PUBLIC.full(shape, 0, dtype=dtype)


def while_on_tensor(test: Callable[[], Any], step: Callable[[], Any], names: LoopNames) -> None:
    """Trace a loop whose condition is a tensor.

    Args:
        test: the condition.
        step: the body.
        names: the loop's names.
    """
    loop = _Loop(Cells(names.bound, test, step), names)
    loop.discover(step)

    def condition(*state: Any) -> Any:
        loop.enter(state)
        return truth(test())

    def run(*state: Any) -> Any:
        return loop.step(state, step)[0]

    loop.run(lambda state: iterate(condition, run, state, LIMIT.get(), loop.names))
    loop.require_end(lambda: truth(test()))


def while_with_effects(goes: Any, test: Callable[[], Any], step: Callable[[], Any], names: LoopNames) -> None:
    """Trace a loop whose condition has effects, so that it is evaluated exactly as often as in Python.

    Args:
        goes: the first result of the condition.
        test: the condition, which is evaluated after every step.
        step: the body.
        names: the loop's names.
    """
    loop = _Loop(Cells(names.bound, test, step), names)

    again: list[Any] = []

    def body() -> None:
        again[:] = [asarray(False)]
        step()
        again[:] = [truth(test())]

    loop.discover(body)

    def run(goes: Any, *state: Any) -> Any:
        after, _ = loop.step(state, body)
        return again[0], *after

    first = truth(goes)
    ends: list[Any] = []

    def whole(state: Any) -> Any:
        goes, *last = iterate(
            lambda goes, *_: goes, run, (first, *state), LIMIT.get(), ["condition", *loop.names]
        )
        ends[:] = [goes]
        return tuple(last)

    loop.run(whole)
    loop.require_end(lambda: ends[0])


def for_on_rows(
    rows: Rows, step: Callable[[Any], Any], test: Callable[[], Any] | None, names: LoopNames
) -> Any:
    """Trace a loop over the rows of tensors; `test` tells whether it goes on. Return the index after the last step."""
    if rows.length == 0:
        return 0
    loop = _Loop(Cells(names.bound, step, test), names)
    every = test is None and type(rows.start) is int
    fixed = every and isinstance(rows.length, int)
    loop.discover(lambda: step(rows.build([tensor[0] for tensor in rows.tensors])), fixed)
    count = rows.length
    if every:
        _for_all_rows(loop, rows, step, fixed)
        return count

    def condition(index: Any, *state: Any) -> Any:
        loop.enter(state)
        return index < count if test is None else PUBLIC.logical_and(index < count, truth(test()))

    def run(index: Any, *state: Any) -> Any:
        after, _ = loop.step(state, lambda: step(rows.build([tensor[index] for tensor in rows.tensors])))
        return index + 1, *after

    bound = count if isinstance(count, int) else None
    ends: list[Any] = []

    def whole(state: Any) -> Any:
        last, *after = iterate(condition, run, (rows.start, *state), bound, ["index", *loop.names])
        ends[:] = [last]
        return tuple(after)

    loop.run(whole)
    return ends[0]


def _for_all_rows(loop: _Loop, rows: Rows, step: Callable[[Any], Any], fixed: bool) -> None:
    """Scan all rows; the values that the steps append to lists are stacked."""
    collected: dict[str, Any] = {}
    loop.certain = isinstance(rows.length, int)

    def one(state: Any, row: Any) -> Any:
        after, body = loop.step(state, lambda: step(rows.build(row)), fixed)
        collected["lists"] = [target for target, _ in body.appended.values()]
        collected["rows"] = [list(map(Appended, values)) for _, values in body.appended.values()]
        return after, [value.tensors for values in collected["rows"] for value in values]

    def run(state: tuple[Any, ...]) -> tuple[Any, ...]:
        last, stacked = scan_rows(one, state, rows.tensors)
        appended: list[Appended] = [value for values in collected["rows"] for value in values]
        for value, tensors in zip(appended, stacked, strict=True):
            value.rows = tensors
        return last

    loop.run(run)
    append_rows(collected["lists"], collected["rows"], rows.length, _append)


def _append(append: Callable[[Any], None], value: Any) -> None:
    """Append a row to a list, or record the append in the enclosing loop's body."""
    if not before_change(append, (value,)):
        append(value)


def for_on_range(
    numbers: TensorRange, step: Callable[[Any], Any], test: Callable[[], Any] | None, names: LoopNames
) -> None:
    """Trace a loop over a range with a tensor among its arguments; `test` tells whether it goes on."""
    loop = _Loop(Cells(names.bound, step, test), names)
    start, stop, stride = numbers.state()
    loop.discover(lambda: step(staged_int(start)))
    up = stride > 0 if not isinstance(numbers.step, int) else None

    def goes_on(index: Any) -> Any:
        if up is not None:
            more = PUBLIC.where(up, index < stop, index > stop)
        else:
            more = index < stop if numbers.step > 0 else index > stop
        return more if test is None else PUBLIC.logical_and(more, truth(test()))

    def condition(index: Any, *state: Any) -> Any:
        loop.enter(state)
        return goes_on(index)

    def run(index: Any, *state: Any) -> Any:
        return index + stride, *loop.step(state, lambda: step(staged(INT, index, numbers.limit)))[0]

    ends: list[Any] = []

    def whole(state: Any) -> Any:
        last, *after = iterate(condition, run, (start, *state), LIMIT.get(), ["index", *loop.names])
        ends[:] = [last]
        return tuple(after)

    loop.run(whole)
    loop.require_end(lambda: goes_on(ends[0]))


# -- values that steps append to lists: tensors are stacked, numbers stay numbers -------------------------------------
# Values that the steps of a loop over a tensor's rows append to lists: tensors are stacked, numbers stay numbers.

_CONSTANT = frozenset({bool, int, float, complex, str, bytes})
"""Types of appended values that are the same in every step, since the step is traced once."""


class Appended:
    """A value that every step appends.

    Attributes:
        tensors: its leaves that depend on the step.
    """

    def __init__(self, value: Any) -> None:
        self.value = Value.of(value, holds_traced(value))
        leaves = [leaf for leaf in self.value.leaves if type(leaf) not in _CONSTANT]
        self.tensors = [leaf.raw if type(leaf) is StagedNumber else leaf for leaf in leaves]
        self.rows: Sequence[Any] = ()

    def row(self, index: int) -> Any:
        """Return the value that the step `index` appended."""
        rows = iter(self.rows)
        leaves = [leaf if type(leaf) in _CONSTANT else _like(leaf, next(rows)[index]) for leaf in self.value.leaves]
        made = jax.tree_util.tree_unflatten(self.value.tree, leaves)
        return made if self.value.order is None else in_order_of(self.value.order, made)


def _like(leaf: Any, row: Any) -> Any:
    return staged(leaf.kinds, row, leaf.limit, leaf.origin) if type(leaf) is StagedNumber else standing_for(leaf, row)

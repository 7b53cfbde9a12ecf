"""Changes of Python state that later calls repeat, such as a counter or a log: the trace does not depend on its value.

A number that is incremented and a list that is appended to need no guards, since the trace does not depend on their
values. The stored value is the same as long as the guards hold, so later calls can store it again: ``self.calls += 1``
adds 1 at each call. A number that is computed from inputs is stored as each call computes it. The trace depends on any
change that cannot be repeated, see `Effects.fixed`.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Callable, Container, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

from hybridflow.core.traced_number import TracedNumber
from hybridflow.guards.guards import PLAIN, Origin, weak
from hybridflow.guards.journal import Journal, Spots, keeper
from hybridflow.guards.numbers import Numbers

LOADED = frozenset({list, dict, set, deque, bytearray}) | PLAIN
"""Types of values that can be changed without being read."""
_EXTENDS = frozenset({"__iadd__", "extend", "extendleft"})
"""Methods that only iterate over their argument."""
_OF_PAIRS = frozenset({"__ior__", "update"})
"""Methods of a dict that take another one, or its pairs."""
_BLIND = _EXTENDS | _OF_PAIRS | {
    "append", "appendleft", "clear", "reverse", "rotate", "add", "discard", "setdefault", "difference_update",
    "intersection_update", "symmetric_difference_update", "__iand__", "__imul__", "__isub__", "__ixor__",
}
"""Methods of which what is in the container does not decide whether they raise an error."""


class Change(NamedTuple):
    """How a later call repeats a change of the trace.

    Attributes:
        note: tells a journal what is about to be changed.
        act: makes the change; None if later calls cannot, since the stored value may differ.
        numbers: numbers that each call computes; they are further arguments of `act`.
        stand_in: what the trace stores in the place of a number.
        target: where it stores that.
    """

    note: Callable[[Journal, Any], None]
    act: Callable[..., None] | None
    numbers: tuple[TracedNumber, ...] = ()
    stand_in: TracedNumber | None = None
    target: Target | None = None


class Target(NamedTuple):
    """The target of a store: an attribute, an item or a name of a holder.

    Attributes:
        note: tells a journal that the target is about to be changed.
        get: reads it.
        put: stores a value.
    """

    note: Callable[[Journal, Any], None]
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]

    def stored(self, value: Any) -> Change:
        """Return the change that stores a value."""
        if type(value) is TracedNumber:
            return Change(self.note, self.put, (value,), value, self)
        return Change(self.note, (lambda holder: self.put(holder, value)) if is_constant(value) else None)


def attribute(name: str, put: Callable[[Any, str, Any], None] = setattr) -> Target:
    """Return an attribute as a target.

    Args:
        name: its name.
        put: stores it; `object.__setattr__` bypasses the object's class.
    """
    return Target(
        lambda journal, holder: journal.attribute(holder, name),
        lambda holder: getattr(holder, name),
        lambda holder, value: put(holder, name, value),
    )


def item(key: Any) -> Target:
    """Return an item of a container as a target."""
    return Target(_content, lambda holder: holder[key], lambda holder, value: operator.setitem(holder, key, value))


def global_name(name: str) -> Target:
    """Return a name of a namespace as a target."""
    return item(name)._replace(note=lambda journal, holder: journal.item_of(holder, name))


def _content(journal: Journal, container: Any) -> None:
    journal.content(container)


CELL_VALUE = Target(
    lambda journal, holder: journal.cell(holder),
    lambda holder: holder.cell_contents,
    lambda holder, value: setattr(holder, "cell_contents", value),
)
"""The content of a closure's cell, as a target."""
OTHER = Change(_content, None)
"""A change of a container that later calls cannot repeat."""


class Augmented(NamedTuple):
    """An augmented assignment whose result is about to be stored.

    Attributes:
        operate: the operation.
        operand: the operand on the right.
        value: the result.
    """

    operate: Callable[[Any, Any], Any]
    operand: Any
    value: Any

    def change(self, target: Target) -> Change:
        """Return the change that repeats the assignment."""
        stand_in = self.value if type(self.value) is TracedNumber else None
        numbers = (self.operand,) if type(self.operand) is TracedNumber else ()
        constant = bool(numbers) or is_constant(self.operand)
        if not constant or not (stand_in is not None or type(self.value) in PLAIN):
            return Change(target.note, None)

        def act(holder: Any, operand: Any = self.operand) -> None:
            target.put(holder, self.operate(target.get(holder), operand))

        return Change(target.note, act, numbers, stand_in, target)


def called_again(owner: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Change:
    """Return the change that calls a container's method, with the numbers of each call in place of their stand-ins."""
    if method not in _BLIND and not (method == "__setitem__" and isinstance(owner, dict)):
        return OTHER
    if method in _EXTENDS and len(args) == 1 and type(args[0]) is list:
        args = (tuple(args[0]),)
    elif method in _OF_PAIRS and isinstance(owner, dict) and len(args) == 1 and type(args[0]) is dict:
        args = (tuple(args[0].items()),)
    given = args, tuple(kwargs.items())
    if not is_constant(given, or_number=True):
        return OTHER

    def act(holder: Any, *computed: Any) -> None:
        numbers = iter(computed)
        positional, named = with_numbers(given, lambda _: next(numbers)) if computed else given
        getattr(holder, method)(*positional, **dict(named))

    stand_ins: list[TracedNumber] = []
    with_numbers(given, stand_ins.append)
    return Change(_content, act, tuple(stand_ins))


def is_constant(value: Any, *, or_number: bool = False) -> bool:
    """Whether a value is immutable and the same at every call for which the guards hold, or a number of each call."""
    if type(value) is tuple:
        return all([is_constant(one, or_number=or_number) for one in cast("tuple[Any, ...]", value)])
    return type(value) in PLAIN or (or_number and type(value) is TracedNumber)


def arguments_now(change: Change, values: Any) -> Any:
    """Return what this call puts into a container: the numbers themselves where later calls put their own ones."""
    return with_numbers(values, operator.attrgetter("value")) if change.numbers else values


def with_numbers(value: Any, number_of: Callable[[TracedNumber], Any]) -> Any:
    """Return a value with other objects in place of the stand-ins for numbers that it, or its list or dict, holds."""
    kind = type(value)
    if kind is TracedNumber:
        return number_of(value)
    if kind is dict:
        return {with_numbers(key, number_of): with_numbers(one, number_of) for key, one in value.items()}
    return kind([with_numbers(one, number_of) for one in value]) if kind in (tuple, list) else value


def _no_numbers(numbers: Sequence[float]) -> list[Any]:
    return []


class Effects:
    """The changes of Python state that every call of a trace makes.

    Attributes:
        fixed: the changes that later calls cannot repeat. The trace may serve later calls if these had no effect.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Origin, Change]] = []
        self._holders: list[Callable[[], Any]] = []  # return what these changed, or None once it is gone
        self._repeated = Spots()
        self._is_mixed = False
        self._numbers: Callable[[Sequence[float]], list[Any]] = _no_numbers
        self.fixed = Journal()

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def serve_one_call(self) -> bool:
        """Whether later calls cannot repeat what the trace has done."""
        return self._is_mixed or self.fixed.has_changed()

    def changes_any(self, holders: Container[int]) -> bool:
        """Whether later calls repeat changes of any of some objects, which are given by their ids."""
        return any(id(spot.holder) in holders for spot in self._repeated)

    @property
    def count(self) -> int:
        """The number of changes that later calls repeat."""
        return len(self._made)

    def forget(self, first: int, last: int) -> list[Origin]:
        """Forget the changes from number `first` to `last`, and return the origins of what they would have changed."""
        forgotten = [origin for origin, _ in self._made[first:last]]
        del self._made[first:last], self._holders[first:last]
        return forgotten

    def only_once(self) -> None:
        """Let the trace serve only its own call."""
        self._is_mixed = True

    def keep(self, kept: Spots) -> None:
        """Let the trace serve only its own call if it changed what now keeps a value, or what other code stores."""
        self._is_mixed |= kept.shares(self._repeated)

    def add(self, origin: Origin, holder: Any, change: Change) -> bool:
        """Record a change, and return whether later calls repeat it.

        Args:
            origin: the origin of the object that is changed.
            holder: that object.
            change: the change.
        """
        spots = Spots()
        change.note(spots, holder)
        # A change after an unrepeatable one is unrepeatable too, and that of an object which has left its place.
        if change.act is None or spots.shares(self.fixed) or origin.now() is not holder:
            self._is_mixed |= spots.shares(self._repeated)
            change.note(self.fixed, holder)
            return False
        change.note(self._repeated, holder)
        self._made.append((origin, change))
        self._holders.append(weak(holder))
        return True

    def finish(self, inputs: int) -> None:
        """Store the numbers of the traced call in place of their stand-ins, and prepare those of later calls.

        Args:
            inputs: how many numbers of a call are inputs.
        """
        made = [*zip([change for _, change in self._made], self._holders, strict=True)]
        if numbers := [(number, None) for change, _ in made for number in change.numbers]:
            self._numbers = Numbers(numbers, (), inputs, wide=False)
        for change, holder_now in made:
            if change.stand_in is None:
                continue
            holder, target = holder_now(), cast(Target, change.target)
            with suppress(AttributeError, LookupError, ValueError):  # it may have been deleted since
                if target.get(holder) is change.stand_in:
                    target.put(holder, change.stand_in.value)

    def alone(self) -> Effects:
        """Return these changes without the objects that the trace changed: a trace that is kept keeps none alive."""
        self.fixed, self._repeated, self._holders = Journal(), Spots(), []
        return self

    def tell(self, journal: Journal) -> None:
        """Tell a journal what every call changes."""
        for origin, change in self._made:
            change.note(journal, origin.now())

    def repeat(self, numbers: Sequence[float], *, noted: bool) -> Journal | None:
        """Repeat the changes.

        Args:
            numbers: the numbers of the call that are inputs.
            noted: whether they may have to be undone.

        Returns:
            The journal of the changes, if they are noted; else None.
        """
        journal = Journal(keeper()) if noted else keeper()
        computed = iter(self._numbers(numbers))
        for origin, change in self._made:
            holder = origin.now()
            if journal is not None:
                change.note(journal, holder)
            cast(Any, change.act)(holder, *itertools.islice(computed, len(change.numbers)))
        return journal if noted else None

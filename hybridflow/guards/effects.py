"""What a trace changes of Python's state without looking at it: a counter, a log. Later calls make the same change.

A number that is counted up and a list that is appended to are no guards, as what they are decides nothing. What is
stored is then the same as long as the guards hold, so it can be stored again: ``self.calls += 1`` adds 1 to what is
there at each call. A change that cannot be made again is one that the trace depends on, see `Effects.fixed`.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from hybridflow.guards.guards import PLAIN, Place
from hybridflow.guards.journal import Journal, Spots, keeper

LOADED = frozenset({list, dict, set, deque, bytearray}) | PLAIN
"""Types of what can be changed without being read."""
_EXTENDS = frozenset({"__iadd__", "extend"})
"""Methods that only run over what they get."""


class Change(NamedTuple):
    """How a call changes something as the trace did.

    Attributes:
        note: lets a journal know of what is about to be changed.
        act: changes it; None if later calls cannot, since what is stored need not be the same then.
    """

    note: Callable[[Journal, Any], None]
    act: Callable[[Any], None] | None


class Target(NamedTuple):
    """What is stored to: an attribute, an item or a name of a holder.

    Attributes:
        note: lets a journal know that it is about to be changed.
        get: reads it.
        put: stores a value.
    """

    note: Callable[[Journal, Any], None]
    get: Callable[[Any], Any]
    put: Callable[[Any, Any], None]

    def stored(self, value: Any) -> Change:
        """Return the change that storing a value is."""
        return Change(self.note, (lambda holder: self.put(holder, value)) if is_constant(value) else None)


def attribute(name: str, put: Callable[[Any, str, Any], None] = setattr) -> Target:
    """Return an attribute as a target.

    Args:
        name: its name.
        put: stores it; `object.__setattr__` does so whatever the object's class says.
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
"""What a closure's cell holds, as a target."""
OTHER = Change(_content, None)
"""A change of a container that later calls cannot make."""


class Augmented(NamedTuple):
    """What an augmented assignment has computed, and is about to store.

    Attributes:
        operate: the operation.
        operand: what stands on the right.
        value: the result.
    """

    operate: Callable[[Any, Any], Any]
    operand: Any
    value: Any

    def change(self, target: Target) -> Change:
        """Return the change that storing it is."""
        if not is_constant(self.operand) or type(self.value) not in PLAIN:
            return Change(target.note, None)
        return Change(target.note, lambda holder: target.put(holder, self.operate(target.get(holder), self.operand)))


def called_again(method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Change:
    """Return the change that a call of a container's method is."""
    if method in _EXTENDS and len(args) == 1 and type(args[0]) is list:
        args = (tuple(args[0]),)
    if not is_constant((*args, *kwargs.values())):
        return OTHER
    return Change(_content, lambda holder: getattr(holder, method)(*args, **kwargs))


def is_constant(value: Any) -> bool:
    """Whether a value is the same at every call for which the guards hold, and nobody can change it."""
    if type(value) is tuple:
        return all(map(is_constant, cast("tuple[Any, ...]", value)))
    return type(value) in PLAIN


class Effects:
    """The changes that each call of a trace makes.

    Attributes:
        fixed: what the trace changes in a way that later calls cannot: it may serve them if it found nothing to change.
    """

    def __init__(self) -> None:
        self._made: list[tuple[Place, Change, int]] = []
        self._repeated = Spots()
        self._is_mixed = False
        self.fixed = Journal()

    def __bool__(self) -> bool:
        return bool(self._made)

    @property
    def serve_one_call(self) -> bool:
        """Whether later calls cannot do what the trace has done."""
        return self._is_mixed or self.fixed.has_changed()

    def add(self, place: Place, holder: Any, change: Change, checks: int) -> bool:
        """Record a change, and return whether calls make it.

        Args:
            place: where what is changed is found.
            holder: what is there.
            change: how it is changed.
            checks: how many checks come before it.
        """
        spots = Spots()
        change.note(spots, holder)
        if change.act is None or spots.shares(self.fixed):  # what comes after a change that calls cannot make is one
            self._is_mixed |= spots.shares(self._repeated)
            change.note(self.fixed, holder)
            return False
        change.note(self._repeated, holder)
        self._made.append((place, change, checks))
        return True

    def repeat(self, states: list[Any]) -> Journal | None:
        """Make the changes again.

        Args:
            states: takes for each check what was changed before it, as `Journal.now` returns it.

        Returns:
            The journal of the changes, if some come behind a check, so that they may have to be put back.
        """
        journal = Journal(keeper()) if self._made[-1][2] else keeper()
        behind = 0
        for place, change, checks in self._made:
            holder = place.now()
            for number in range(behind, checks):
                states[number] = cast(Journal, journal).now()
            behind = checks
            if journal is not None:
                change.note(journal, holder)
            cast(Any, change.act)(holder)
        if not behind:
            return None
        for number in range(behind, len(states)):
            states[number] = cast(Journal, journal).now()
        return journal

"""What Python state was before a trace, or an analysis, changed it: attributes, names, containers, random numbers.

A function is traced by running it, so tracing changes what it changes. Where that run is not the call itself (it
starts again, or a graph is all that was asked for), the journal puts the state back.
"""

from __future__ import annotations

import functools
import random
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CellType
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.guards.contents import in_sequence, pairs_of
from hybridflow.guards.guards import CELL, MISSING


class Spot(NamedTuple):
    """Something that can be changed.

    Attributes:
        kind: what it is, with `holder` and `name` its identity.
        holder: the object that it is in, or that it is.
        name: the attribute or name, None for the whole object.
        save: returns what it is now.
        put: makes it what `save` returned.
    """

    kind: str
    holder: Any
    name: Any
    save: Callable[[], Any]
    put: Callable[[Any], None]


class Journal:
    """Remembers what each spot was when it was first noted.

    Args:
        outer: hears of every spot too.
    """

    def __init__(self, outer: Journal | None = None) -> None:
        self._outer = outer
        self._spots: dict[tuple[str, int, Any], Spot] = {}  # a spot keeps its holder, and so the id, alive
        self._before: dict[tuple[str, int, Any], Any] = {}
        self._marked: dict[tuple[str, int, Any], Any] = {}

    def __bool__(self) -> bool:
        return bool(self._spots)

    def note(self, spot: Spot) -> None:
        """Take note of a spot that is about to be changed."""
        key = spot.kind, id(spot.holder), spot.name
        if key not in self._spots:
            self._spots[key] = spot
            self._before[key] = spot.save()
        if self._outer is not None:
            self._outer.note(spot)

    def mark(self) -> None:
        """Let `restore` go back to how things are now."""
        self._marked = self.now()

    def restore(self) -> None:
        """Put everything back to the last mark; what was not known then to what it was when it was noted."""
        self.back_to(self._marked)

    def now(self) -> dict[tuple[str, int, Any], Any]:
        """Return what every spot is now, for `back_to`."""
        return {key: spot.save() for key, spot in self._spots.items()}

    def back_to(self, state: dict[tuple[str, int, Any], Any]) -> None:
        """Put everything back to what `now` returned; what was not known then to what it was when it was noted."""
        for key in reversed(self._spots):
            self._spots[key].put(state[key] if key in state else self._before[key])

    def is_as_marked(self) -> bool:
        """Whether nothing was changed since the last mark."""
        return self._is(self._marked)

    def _is(self, state: dict[tuple[str, int, Any], Any]) -> bool:
        return all(_same(spot.save(), state[key]) for key, spot in self._spots.items())

    def undo(self) -> None:
        """Put everything back to what it was when it was noted."""
        self.back_to({})

    def has_changed(self) -> bool:
        """Whether anything is not what it was when it was noted."""
        return not self._is(self._before)

    @contextmanager
    def undone(self) -> Generator[None]:
        """Have everything in a ``with`` block be what it was when it was noted."""
        now = self.now()
        self.undo()
        try:
            yield
        finally:
            for key, spot in self._spots.items():
                spot.put(now[key])

    # -- what can be changed ------------------------------------------------------------------------------------

    def attribute(self, obj: Any, name: str) -> None:
        """Note an attribute; all of an object whose class has a say in how its attributes are stored."""
        own = getattr(obj, "__dict__", None)
        if type(own) is dict and type(obj).__setattr__ is not object.__setattr__:
            for value in (own, *own.values()):
                self.content(value)
        found: Any = getattr(type(obj), name, None)
        if isinstance(own, dict) and not hasattr(type(found), "__set__"):
            self.item_of(own, name, obj)
            return

        def put(value: Any) -> None:
            if value is MISSING:
                if hasattr(obj, name):
                    delattr(obj, name)
            elif getattr(obj, name, MISSING) is not value:
                setattr(obj, name, value)

        def save() -> Any:
            # Of a class the attribute itself, not what it gives: a staticmethod stays one.
            return vars(obj).get(name, MISSING) if isinstance(obj, type) else getattr(obj, name, MISSING)

        self.note(Spot("attribute", obj, name, save, put))

    def item_of(self, namespace: dict[str, Any], name: str, holder: Any = None) -> None:
        """Note a name of a namespace: a module's, or an object's."""

        def put(value: Any) -> None:
            if value is MISSING:
                namespace.pop(name, None)
            else:
                namespace[name] = value

        holder = namespace if holder is None else holder
        self.note(Spot("name", holder, name, lambda: namespace.get(name, MISSING), put))

    def cell(self, cell: CellType) -> None:
        """Note the value of a closure's cell."""

        def put(value: Any) -> None:
            if value is not MISSING:
                cell.cell_contents = value
            elif CELL.get(cell, "") is not MISSING:
                del cell.cell_contents

        self.note(Spot("cell", cell, None, lambda: CELL.get(cell, ""), put))

    def content(self, container: Any) -> None:
        """Note what is in a container that can be changed; of anything else nothing."""
        if isinstance(container, _MUTABLE):
            save = functools.partial(_copied, container)
            self.note(Spot("content", container, None, save, lambda before: _refill(container, before)))

    def random(self, source: Any) -> None:
        """Note the state of one of Python's or NumPy's sources of random numbers."""
        if isinstance(source, random.SystemRandom):
            return  # the system's, which has no state
        if isinstance(source, random.Random):
            self.note(Spot("random", source, None, source.getstate, source.setstate))
        elif isinstance(source, np.random.RandomState):
            self.note(Spot("random", source, None, source.get_state, source.set_state))
        elif isinstance(source, np.random.Generator):
            bits = cast(Any, source.bit_generator)

            def put(state: Any) -> None:
                bits.state = state

            self.note(Spot("random", source, None, lambda: bits.state, put))


class Spots(Journal):
    """Knows which spots were noted, and not what they were."""

    def note(self, spot: Spot) -> None:
        """Take note of a spot."""
        self._spots[spot.kind, id(spot.holder), spot.name] = spot

    def shares(self, other: Journal) -> bool:
        """Whether another one has noted one of them, too."""
        return not self._spots.keys().isdisjoint(other._spots)


_MUTABLE = (list, dict, set, deque, bytearray, np.ndarray)


def _copied(container: Any) -> Any:
    """Return a copy of what is in a container, whatever a subclass says of it."""
    if isinstance(container, dict):
        return dict(pairs_of(container))
    if isinstance(container, list | deque):
        return [*in_sequence(container)]
    return container.copy()


def _refill(container: Any, before: Any) -> None:
    """Give a container back what was in it, in the same order."""
    if isinstance(container, np.ndarray):
        if container.flags.writeable:
            container[...] = before
        return
    for kind in (dict, set):
        if isinstance(container, kind):
            kind.clear(cast(Any, container))
            kind.update(cast(Any, container), before)
            return
    for kind in (list, deque, bytearray):
        if isinstance(container, kind):
            kind.clear(cast(Any, container))
            kind.extend(cast(Any, container), before)


def _same(now: Any, before: Any) -> bool:
    """Whether what a spot holds is the same as before; of a container, the same objects in the same order."""
    if now is before:
        return True
    if type(now) is not type(before):
        return False
    if isinstance(now, np.ndarray):
        return bool(np.array_equal(now, before))
    if isinstance(now, set):
        return {*map(id, cast("set[Any]", now))} == {*map(id, before)}
    if isinstance(now, dict):
        return [*map(id, now), *map(id, now.values())] == [*map(id, before), *map(id, before.values())]
    return isinstance(now, list | deque | bytearray | tuple) and [*map(id, now)] == [*map(id, before)]


_KEEPER: ContextVar[Journal | None] = ContextVar("keeper of Python state", default=None)


def keeper() -> Journal | None:
    """Return the journal of what keeps Python state around calls."""
    return _KEEPER.get()


def new_journal() -> Journal:
    """Return the journal of a trace that begins; what keeps Python state around it hears of its spots."""
    return Journal(_KEEPER.get())


@contextmanager
def python_state_kept() -> Generator[Journal]:
    """Put back at the end of a ``with`` block what traces in it found that the traced functions change."""
    journal = new_journal()
    token = _KEEPER.set(journal)
    try:
        yield journal
    finally:
        _KEEPER.reset(token)
        journal.undo()

"""Python state before a trace or an analysis changed it: attributes, names, containers, random number generators.

A function is traced by running it, so tracing has the function's side effects. If that run is not the call itself (the
trace restarts, or only a graph was asked for), the journal restores the state.
"""

from __future__ import annotations

import ctypes
import functools
import pickle
import random
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import CellType, MemberDescriptorType, ModuleType, WrapperDescriptorType
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.held import defines
from hybridflow.guards.access import CURRENT, IN_CLASS, RAW, stored
from hybridflow.guards.contents import in_sequence, pairs_of
from hybridflow.guards.guards import CELL, MISSING, PLAIN
from hybridflow.guards.parts import slots
from hybridflow.guards.users import is_users_class


class Spot(NamedTuple):
    """A piece of state that can be changed; `kind`, `holder` and `name` identify it.

    Attributes:
        kind: the kind of state.
        holder: the object that it belongs to.
        name: the attribute or name; None for the whole object.
        save: returns the current state.
        put: restores what `save` returned.
    """

    kind: str
    holder: Any
    name: Any
    save: Callable[[], Any]
    put: Callable[[Any], None]


Key = tuple[str, int, Any]
"""What identifies a spot."""


class Journal:
    """Remembers the state of each spot when it was first noted.

    Args:
        *told: other journals, which are told of every spot too.
    """

    def __init__(self, *told: Journal | None) -> None:
        self._told = told
        self._spots: dict[Key, Spot] = {}  # a spot keeps its holder, and so the id, alive
        self._before: dict[Key, Any] = {}
        self._marked: dict[Key, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._spots)

    def note(self, spot: Spot) -> None:
        """Save a spot that is about to be changed."""
        key = spot.kind, id(spot.holder), spot.name
        if key not in self._spots:
            self._spots[key] = spot
            self._before[key] = spot.save()
        for other in self._told:
            if other is not None:
                other.note(spot)

    def mark(self) -> None:
        """Make the current state the one that `restore` goes back to."""
        self._marked = self.now()

    def restore(self) -> None:
        """Restore the state of the last mark. Spots that were noted later get the state that they had when noted."""
        self.back_to(self._marked)

    def now(self) -> dict[Key, Any]:
        """Return the current state of every spot, for `back_to`."""
        return {key: spot.save() for key, spot in self._spots.items()}

    def back_to(self, state: dict[Key, Any]) -> None:
        """Restore a state that `now` returned. Spots that were noted later get the state that they had when noted."""
        for key in reversed(self._spots):
            spot, before = self._spots[key], state[key] if key in state else self._before[key]
            if spot.kind != "content" or not _same(spot.save(), before):  # what is unchanged is not touched
                spot.put(before)

    def between(self, first: dict[Key, Any], second: dict[Key, Any]) -> Iterator[tuple[Key, Spot, Any, Any]]:
        """Yield each spot with its states in two results of `now`; a spot noted between them had its first state."""
        for key, spot in self._spots.items():
            before = self._before[key]
            yield key, spot, first.get(key, before), second.get(key, before)

    def is_as_marked(self) -> bool:
        """Whether nothing was changed since the last mark."""
        return not any(True for _ in self._other_than(self._marked))

    def _other_than(self, state: dict[Key, Any]) -> Iterator[tuple[Any, Any]]:
        """Yield the holder and the current state of every spot that differs from one that `now` returned."""
        for key, spot in self._spots.items():
            now = spot.save()
            if not _same(now, state[key], spot.kind in _SLOTS):
                yield spot.holder, now

    def undo(self) -> None:
        """Restore every spot to its state when it was noted."""
        self.back_to({})

    def changed(self) -> Iterator[tuple[Any, Any]]:
        """Return the holder and the current state of every spot that differs from its state when it was noted."""
        return self._other_than(self._before)

    def has_changed(self) -> bool:
        """Whether any spot differs from its state when it was noted."""
        return any(True for _ in self.changed())

    @contextmanager
    def undone(self) -> Generator[None]:
        """Undo all changes for the duration of a ``with`` block."""
        now = self.now()
        self.undo()
        try:
            yield
        finally:
            for key, spot in self._spots.items():
                spot.put(now[key])

    # -- what can be changed ------------------------------------------------------------------------------------

    def attribute(self, obj: Any, name: str) -> None:
        """Note an attribute. If the class overrides ``__setattr__``, note all of the object's containers too."""
        attributes = RAW.get(obj, "__dict__")
        if type(attributes) is dict and type(obj).__setattr__ is not object.__setattr__:
            for value in (obj, attributes, *attributes.values()):
                self.content(value)
        in_class = IN_CLASS.get(type(obj), name)
        if isinstance(attributes, dict) and not defines(type(in_class), "__set__"):
            self.item_of(attributes, name, obj)
            return

        def put(value: Any) -> None:
            if value is MISSING:
                if save() is not MISSING:
                    _pythons(obj, "__delattr__")(obj, name)
            elif save() is not value:
                _pythons(obj, "__setattr__")(obj, name, value)

        def save() -> Any:
            # For a class, read its namespace: getattr would unwrap a staticmethod, and find what it inherits.
            return vars(obj).get(name, MISSING) if isinstance(obj, type) else stored(obj, name)

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
        """Note the content of a mutable container or memory buffer; do nothing for other objects."""
        if isinstance(container, _MUTABLE) or _is_buffer(container):
            save = functools.partial(_copied, container)
            self.note(Spot("content", container, None, save, lambda before: _refill(container, before)))

    def content_before(self, container: Any) -> Any:
        """Return the content of a container when it was first noted; the container itself if it was not."""
        return self._before.get(("content", id(container), None), container)

    def inside(self, value: Any) -> None:
        """Note all that a value holds itself: its content, its attributes."""
        if isinstance(value, ModuleType):
            return
        if isinstance(value, type):
            for name, held in vars(value).items() if is_users_class(value) else ():
                if type(held) in PLAIN and not name.startswith("__"):
                    self.attribute(value, name)
            return
        self.content(value)
        self.content(RAW.get(value, "__dict__"))
        for name in slots(type(value)):
            if type(IN_CLASS.get(type(value), name)) is MemberDescriptorType:
                self.attribute(value, name)

    def context_variable(self, variable: ContextVar[Any]) -> None:
        """Note the value of a context variable."""

        def put(value: Any) -> None:
            if value is not MISSING:  # Python has no way to take the last value away
                variable.set(value)

        self.note(Spot("value", variable, None, lambda: CURRENT.get(variable, None), put))

    def random(self, source: Any) -> None:
        """Note the state of a random number generator of Python or NumPy."""
        if isinstance(source, random.SystemRandom):
            return  # it has no state
        if isinstance(source, random.Random):
            get, put = source.getstate, source.setstate
        elif isinstance(source, np.random.RandomState):
            get, put = source.get_state, source.set_state
        elif isinstance(source, np.random.Generator):
            bits = cast(Any, source.bit_generator)
            get, put = (lambda: bits.state), functools.partial(setattr, bits, "state")
        else:
            return
        # As bytes, which can be compared: each state is a new object.
        self.note(Spot("random", source, None, lambda: pickle.dumps(get()), lambda saved: put(pickle.loads(saved))))


def _pythons(obj: Any, method: str) -> Any:
    """Return Python's own method that stores or deletes an attribute of an object: a user's may do more."""
    found = (vars(kind).get(method) for kind in type(obj).__mro__)
    return next(one for one in found if type(one) is WrapperDescriptorType)


class Spots(Journal):
    """A journal that knows which spots were noted, but not their states."""

    def note(self, spot: Spot) -> None:
        """Remember a spot."""
        self._spots[spot.kind, id(spot.holder), spot.name] = spot

    def __iter__(self) -> Iterator[Spot]:
        return iter(self._spots.values())

    def shares(self, other: Journal) -> bool:
        """Whether another journal has noted one of the same spots."""
        return not self._spots.keys().isdisjoint(other._spots)


_MUTABLE = (list, dict, set, deque, bytearray, np.ndarray)


def _is_buffer(value: Any) -> bool:
    """Whether a value is memory whose bytes can be put back: a memoryview, an array of Python's or of ctypes."""
    if not isinstance(value, memoryview | array | ctypes.Array | ctypes.Structure):
        return False
    with memoryview(value) as memory:
        return memory.contiguous and not memory.readonly


def _copied(container: Any) -> Any:
    """Return a copy of what is in a container, whatever a subclass says of it."""
    if _is_buffer(container):
        return memoryview(container).tobytes()
    if isinstance(container, dict):
        return dict(pairs_of(container))
    if isinstance(container, list | deque):
        return [*in_sequence(container)]
    return container.copy()


def _refill(container: Any, before: Any) -> None:
    """Restore the content of a container, in the same order."""
    if isinstance(container, np.ndarray):
        if container.flags.writeable:
            container[...] = before
        return
    if isinstance(container, array):
        container[:] = array(container.typecode, before)
        return
    if _is_buffer(container):
        with memoryview(container) as memory:
            memory.cast("B")[:] = before
        return
    for kind in (OrderedDict, dict, set):  # an OrderedDict keeps its order itself: methods of dict would break it
        if isinstance(container, kind):
            kind.clear(cast(Any, container))
            kind.update(cast(Any, container), before)
            return
    if isinstance(container, bytearray):
        bytearray.__setitem__(container, slice(None), before)  # in place, since views of it may be in use
        return
    for kind in (list, deque):
        if isinstance(container, kind):
            kind.clear(cast(Any, container))
            kind.extend(cast(Any, container), before)


_SLOTS = frozenset({"attribute", "name", "cell"})
"""The kinds of spots that hold one value: a container there must be the same one, not one that holds the same."""


def _same(now: Any, before: Any, in_slot: bool = False) -> bool:
    """Whether a spot's state is the same as before: a container must hold the same objects in the same order.

    Arrays have the same bytes: -0.0 is not 0.0, and objects are not asked whether they are equal.
    """
    if now is before:
        return True
    if type(now) is not type(before) or (in_slot and isinstance(now, _MUTABLE)):
        return False
    if isinstance(now, np.ndarray):
        return (now.dtype, now.shape) == (before.dtype, before.shape) and now.tobytes() == before.tobytes()
    if isinstance(now, set):
        return {*map(id, cast("set[Any]", now))} == {*map(id, before)}
    if isinstance(now, dict):
        return [*map(id, now), *map(id, now.values())] == [*map(id, before), *map(id, before.values())]
    if isinstance(now, bytes | bytearray):
        return now == before
    return isinstance(now, list | deque | tuple) and [*map(id, now)] == [*map(id, before)]


_KEEPER: ContextVar[Journal | None] = ContextVar("keeper of Python state", default=None)


def keeper() -> Journal | None:
    """Return the journal of the innermost `python_state_kept`, None outside of one."""
    return _KEEPER.get()


def new_journal(*told: Journal) -> Journal:
    """Return a journal for a new trace; it reports its spots to the `keeper`, and to other journals."""
    return Journal(_KEEPER.get(), *told)


@contextmanager
def python_state_noted() -> Generator[Journal]:
    """Note the Python state that compiled calls in a ``with`` block change."""
    journal = new_journal()
    token = _KEEPER.set(journal)
    try:
        yield journal
    finally:
        _KEEPER.reset(token)


@contextmanager
def python_state_kept() -> Generator[Journal]:
    """Restore, at the end of a ``with`` block, the Python state that compiled calls in it changed."""
    with python_state_noted() as journal:
        try:
            yield journal
        finally:
            journal.undo()

"""Python numbers that a function reads outside its arguments: they become inputs once a second value is seen.

A learning rate that an optimizer keeps is a constant of the first trace. When a later trace finds another value in the
same origin, the origin becomes an input, like a float argument: see `hybridflow.core.traced_number`. Numbers in lists,
tuples and dicts are read through a copy of the container, in which stand-ins replace the inputs. In a container whose
items the function writes, the stand-ins lie in the container itself until the trace ends.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from types import ModuleType
from typing import Any, NamedTuple

from hybridflow.core.staged_number import StagedNumber, needed
from hybridflow.core.traced_number import NeedsNumber, SeenNumbers, SeenSizes, TracedNumber
from hybridflow.guards.access import ITSELF, MISSING, RAW, Access
from hybridflow.guards.contents import in_sequence, values_of
from hybridflow.guards.guards import CONTAINERS, ITEM, PLAIN, Origin
from hybridflow.guards.parts import items_of
from hybridflow.guards.signature import static_key

Way = tuple[Any, ...]
"""The path to an origin: the same in every trace of a function."""
_MOST = 4096
"""The largest number of containers that a function remembers to write to."""
_LONG = 64
"""Longer lists, tuples and dicts are read directly: they are data rather than settings."""
_LONG_WRITTEN = 256
"""The same for containers whose items the function writes."""
BY_ITEM = frozenset({list, dict, deque, OrderedDict, Counter, defaultdict})
"""Types of containers whose items are written one by one, by methods that no class overrides."""


class KnownNumbers:
    """What the traces of one function have learned of the numbers outside its arguments."""

    def __init__(self) -> None:
        self._seen = SeenNumbers()
        self._by_value: set[Way] = set()
        self._written: set[Way] = set()
        self.sizes = SeenSizes()

    def __len__(self) -> int:
        """Return how much is known of what the code does with the numbers: a trace that restarts has added to it."""
        return len(self._by_value) + len(self._written)

    def writes(self, way: Way) -> bool:
        """Whether the code is known to write items of a container."""
        return way in self._written

    def note_writes(self, way: Way) -> None:
        """Record that the code writes items of a container."""
        if len(self._written) < _MOST:
            self._written.add(way)

    def note_absent(self, way: Way) -> None:
        """Record that there is nothing in an origin yet."""
        self._seen.has_changed(way, None)

    def is_input(self, way: Way, value: float) -> bool:
        """Whether a float that a trace reads becomes an input of the trace."""
        return self._seen.has_changed(way, static_key(value)) and way not in self._by_value

    def keep_by_value(self, ways: Iterable[Way]) -> None:
        """Record that the code needs the numbers in these origins: they stay constants."""
        self._by_value.update(ways)

    @contextmanager
    def learning(self) -> Generator[None]:
        """Forget what needs numbers by value if the ``with`` block fails: a number of that call may be to blame."""
        before = {*self._by_value}
        try:
            yield
        except Exception:
            self._by_value = before
            raise

    def clear(self) -> None:
        """Forget everything."""
        self._seen, self.sizes = SeenNumbers(), SeenSizes()
        for known in (self._by_value, self._written):
            known.clear()


class _Input(NamedTuple):
    """A float that is an input of a trace.

    Attributes:
        way: the path to the origin where it was read.
        value: its value when the trace read it.
        traced: its stand-in.
    """

    way: Way
    value: float
    traced: TracedNumber


class OutsideNumbers:
    """The numbers that one trace reads outside its arguments.

    Args:
        seen: what earlier traces saw.
        new_input: adds an input to the trace, given its value and where it is read; returns its stand-in.
        count: returns the number of numbers that are inputs, including arguments.
    """

    def __init__(
        self, seen: KnownNumbers, new_input: Callable[[float, str], TracedNumber], count: Callable[[], int]
    ) -> None:
        self._seen = seen
        self._new_input = new_input
        self._count = count
        self._only_numbers = False
        self._needed: frozenset[int] = frozenset()
        self._refusal: tuple[Exception, Exception] | None = None
        self._inputs: dict[int, _Input] = {}
        self._of_origin: dict[Origin, int] = {}
        self._copies: dict[int, tuple[Any, Any]] = {}  # copy and origin, by the ids of container and copy
        self._found: dict[Origin, Any] = {}
        self._as_they_are: set[Origin] = set()
        self._shown: dict[int, Any] = {}  # original containers that the code may hold
        self._looked_at: dict[int, Any] = {}  # containers whose content is seen as it is
        self._around: set[int] = set()
        self._changed: dict[int, Any] = {}  # dicts
        self._placed: dict[tuple[int, Any], tuple[Any, float, TracedNumber]] = {}  # container, number, stand-in
        self._opened: dict[int, Any] = {}  # containers in which all stand-ins are placed
        self._items: dict[tuple[int, Any], Any] = {}  # containers, by the items that the trace has written
        self._restarts = False
        self.note: Callable[[Any], None] = _nothing
        """Tells journals of a container in which stand-ins are about to be placed."""

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the inputs when the trace read them, in the order of the inputs."""
        return tuple([one.value for one in self._inputs.values()])

    def close(self) -> None:
        """Release what was read, and the trace: it refers to this object, and the cycle would need the collector."""
        for known in (
            self._inputs, self._of_origin, self._found, self._copies, self._shown, self._looked_at, self._changed,
            self._placed, self._opened, self._items,
        ):
            known.clear()
        del self._new_input, self._count, self.note

    # -- reads ------------------------------------------------------------------------------------------------

    def read(self, origin: Origin, value: float) -> Any:
        """Return what the code sees of a number in an origin: the number or a stand-in."""
        if origin in self._as_they_are or origin.written or (self._changed and self._is_in_changed(origin)):
            return value
        first = self._found.setdefault(origin, value)
        position = self._of_origin.get(origin)
        if value is not first:  # code that is not converted has stored it meanwhile
            self.look(origin)
            return value
        if position is None:
            if not self._is_input(origin, way := way_of(origin), value):
                return value
            position = self._add(way, value, origin.path)
            self._of_origin[origin] = origin.inputs[ITSELF] = position
        return self._inputs[position].traced

    def saw(self, parent: Origin, access: Access, name: str, value: float) -> None:
        """Remember a number that was found by a way, but is read by another."""
        self._seen.is_input((way_of(parent), access.path, name), value)

    def read_container(self, origin: Origin, container: Any, inner: Callable[[Any, Any], Origin | None]) -> Any:
        """Return what the code sees of a value: itself or, for a list, tuple or dict with inputs, a copy.

        Args:
            origin: where it was read.
            container: the value.
            inner: returns the origin of a container inside a container, if it is known.

        Raises:
            NeedsNumber: a container that was read through a copy is now seen directly, as part of another one.
        """
        copy = self._copy(origin, container, inner)
        self._show(copy)
        return copy

    def copies(self) -> Iterable[tuple[Any, Origin]]:
        """Return the copies that stand for containers, including nested ones, each with the container's origin."""
        return [copy for key, copy in self._copies.items() if key == id(copy[0])]

    # -- containers whose items are written -----------------------------------------------------------------------

    def takes_items(self, origin: Origin, container: Any) -> bool:
        """Whether the items of a container can be written one by one, with numbers that each call computes."""
        names_attributes = origin.parent is None or origin.name == "__dict__"
        return type(container) in BY_ITEM and not names_attributes and id(container) not in self._looked_at

    def key_of_item(self, container: Any, key: Any) -> Any:
        """Return the key, or the position from the start, under which a container holds an item; `MISSING` if none."""
        if isinstance(container, list | deque):
            length = len(container)
            return key % length if type(key) is int and -length <= key < length else MISSING
        if type(key) in PLAIN and key in container:
            return next((one for one in container if type(one) is type(key) and one == key), MISSING)
        return MISSING

    def place(self, origin: Origin, container: Any, inner: Callable[[Any, Any], Origin | None]) -> None:
        """Put stand-ins into a container whose items the function writes, in place of all numbers that are inputs.

        Raises:
            NeedsNumber: the trace has read the container through a copy, and starts again.
        """
        if not self.takes_items(origin, container) or id(container) in self._shown or len(container) > _LONG_WRITTEN:
            return
        self._by_item(origin, container)
        self._shown[id(container)] = self._opened[id(container)] = container
        for key, item in [*items_of(container)]:
            if type(item) in BY_ITEM:
                below = inner(container, key)
                if below is not None:
                    self.place(below, item, inner)
            else:
                self.place_item(origin, container, key)

    def place_item(self, origin: Origin, container: Any, key: Any) -> TracedNumber | None:
        """Put a stand-in into a container, in place of a number, if that is an input; return it.

        Args:
            origin: where the container was read.
            container: the container.
            key: the number's key, as `key_of_item` returns it.
        """
        item = container[key]
        if (type(item) is not float and type(item) is not int) or (id(container), key) in self._items:
            return None
        way = (way_of(origin), ITEM.path, key)
        may_be_used = origin.guarded and id(container) not in self._opened
        if origin in self._as_they_are or may_be_used or not origin.had(key) or not self._is_input(origin, way, item):
            return None
        self.note(container)
        origin.inputs[key] = position = self._add(way, item, f"{origin.path}[{key!r}]")
        stand_in = self._inputs[position].traced
        self._placed[id(container), key] = container, item, stand_in
        container[key] = stand_in
        return stand_in

    def _by_item(self, origin: Origin, container: Any) -> None:
        """Record that the function writes items of a container.

        Raises:
            NeedsNumber: the trace has read the container through a copy, and starts again.
        """
        way = way_of(origin)
        copied = self._copies.get(id(container))
        if copied is None:
            self._seen.note_writes(way)
            return
        before = len(self._seen)
        for one in (way, way_of(copied[1])):
            self._seen.note_writes(one)
        if len(self._seen) == before:
            self.require_numbers(self._held_in(copied[0]))
        self._restarts = True
        raise NeedsNumber(frozenset())

    def write_item(self, origin: Origin, container: Any, key: Any) -> None:
        """Record that the trace is about to write an item of a container.

        Args:
            origin: where the container was read.
            container: the container, or the copy that the code holds.
            key: the item's key.

        Raises:
            NeedsNumber: the trace has read the container through a copy, and starts again.
        """
        self._by_item(origin, container)
        found = self.key_of_item(container, key)
        if found is MISSING:
            self._seen.note_absent((way_of(origin), ITEM.path, key))
        self._items[id(container), key if found is MISSING else found] = container

    def has_written(self, container: Any) -> bool:
        """Whether the trace has written items of a container."""
        return any(holder is container for holder in self._items.values())

    def absent_item(self, origin: Origin, key: Any) -> None:
        """Record that the trace asked for an item that is not there yet."""
        self._seen.note_absent((way_of(origin), ITEM.path, key))

    def put_back(self) -> None:
        """Put the numbers back into the containers where their stand-ins are."""
        for (_, key), (container, number, stand_in) in self._placed.items():
            with suppress(LookupError):
                if container[key] is stand_in:
                    container[key] = number

    @contextmanager
    def put_in(self, container: Any) -> Generator[None]:
        """Put numbers in the place of the stand-ins in a container outside for the duration of a ``with`` block."""
        stand_ins: dict[Any, TracedNumber] = {}
        if type(container) in BY_ITEM and self.copy_of(container) is not container:
            stand_ins = {key: item for key, item in items_of(container) if type(item) is TracedNumber}
        for key, item in stand_ins.items():
            container[key] = item.value
        try:
            yield
        finally:
            for key, item in stand_ins.items():
                container[key] = item

    def _show(self, container: Any) -> None:
        """Record that the code holds a container and its content directly, not through a copy."""
        pending = [container]
        while pending:
            one = pending.pop()
            if id(one) in self._shown or not isinstance(one, CONTAINERS):
                continue
            self._shown[id(one)] = one
            copy = self.copy_of(one)
            if copy is not None and copy is not one:
                self.require_numbers(self._held_in(copy))
            pending += values_of(one) if isinstance(one, dict) else in_sequence(one)

    def _copy(self, origin: Origin, container: Any, inner: Callable[[Any, Any], Origin | None]) -> Any:
        """Return a copy of a container with stand-ins for its inputs; the container itself if it has none."""
        if id(container) in self._around:
            return container
        self._around.add(id(container))
        try:
            return self._copied(origin, container, inner)
        finally:
            self._around.discard(id(container))

    def copy_of(self, container: Any) -> Any:
        """Return the copy of a container with stand-ins for its inputs, which the code sees; None if there is none."""
        return self._copies.get(id(container), (None,))[0]

    def _copied(self, origin: Origin, container: Any, inner: Callable[[Any, Any], Origin | None]) -> Any:
        copied = self._copies.get(id(container))
        if copied is not None:
            if copied[1] is not origin:
                origin.alias = copied[1]
            return copied[0]
        if self._seen.writes(way_of(origin)):
            self.place(origin, container, inner)
            return container
        kind = type(container)
        if kind not in (list, tuple, dict) or len(container) > _LONG:
            if kind in BY_ITEM and len(container) <= _LONG_WRITTEN:
                self._remember(origin, container)
            return container
        if origin in self._as_they_are or id(container) in self._shown:
            return container
        items = container.items() if kind is dict else enumerate(container)
        replaced: dict[Any, Any] = {}
        for key, item in items:
            if type(item) is float or type(item) is int:
                if self._is_input(origin, way := (way_of(origin), ITEM.path, key), item):
                    origin.inputs[key] = self._add(way, item, f"{origin.path}[{key!r}]")
                    replaced[key] = self._inputs[origin.inputs[key]].traced
            elif type(item) in (list, tuple, dict):
                below = inner(container, key)
                now = item if below is None else self._copy(below, item, inner)
                if now is not item:
                    replaced[key] = now
        if not replaced:
            return container
        if kind is dict:
            copy: Any = {**container, **replaced}
        else:
            copy = kind([replaced.get(number, item) for number, item in enumerate(container)])
        self._copies[id(container)] = self._copies[id(copy)] = copy, origin
        return copy

    def _remember(self, origin: Origin, container: Any) -> None:
        """Remember the numbers in a container that the code sees itself: the function may write to it."""
        for key, item in items_of(container):
            if type(item) is float or type(item) is int:
                self._is_input(origin, (way_of(origin), ITEM.path, key), item)

    def _add(self, way: Way, value: float, path: str) -> int:
        traced = self._new_input(value, path)
        position = self._count() - 1
        self._inputs[position] = _Input(way, value, traced)
        return position

    def _is_input(self, origin: Origin, way: Way, value: float) -> bool:
        return not self._only_numbers and not origin.written and self._seen.is_input(way, value)

    # -- where the numbers themselves are needed --------------------------------------------------------------------

    def look(self, origin: Origin, container: Any = None) -> None:
        """Record that an origin, or the content of the container there, is seen directly.

        Raises:
            NeedsNumber: it was read as an input before.
        """
        self._as_they_are.add(origin)
        self.require_numbers(origin.inputs.values())
        self._show(container)
        self._look_at(container)

    def _look_at(self, container: Any) -> None:
        """Record that the content of a container, and of those in it, is seen as it is."""
        pending = [container]
        while pending:
            one = pending.pop()
            if isinstance(one, CONTAINERS) and id(one) not in self._looked_at:
                self._looked_at[id(one)] = one
                pending += values_of(one) if isinstance(one, dict) else in_sequence(one)

    def write(self, origin: Origin | None, container: Any = None) -> None:
        """Record that the trace itself writes to an origin or container: its numbers stay constants.

        Raises:
            NeedsNumber: it was read as an input before.
        """
        if origin is not None:
            origin.written = True
            if self.copy_of(container) is container:
                self.require_numbers(self._held_in(container))  # what is written to a copy would be lost
            self.look(origin, container)

    def change(self, container: Any) -> None:
        """Record that the trace changes a container as such: a dict may be a namespace, whose names it has read.

        Raises:
            NeedsNumber: one of them was read as an input before.
        """
        if isinstance(container, dict):
            self._changed[id(container)] = container
            self.require_numbers([at for one, at in self._of_origin.items() if self._is_in_changed(one)])

    def _is_in_changed(self, origin: Origin) -> bool:
        """Whether an origin is a name in a namespace that the trace has changed as a dict."""
        holder = None if origin.parent is None else origin.parent.now()
        return id(holder) in self._changed or id(RAW.get(holder, "__dict__")) in self._changed

    def require_plain(self, value: Any) -> None:
        """Raise if a value holds inputs that are read outside: it is stored, or leaves in an exception.

        Raises:
            NeedsNumber: it holds inputs.
        """
        self.require_numbers(self._held_in(value))

    def require_no_inputs(self, values: Iterable[Any]) -> None:
        """Raise if values hold numbers that are inputs, or computed from some.

        Raises:
            NeedsNumber: they do.
        """
        numbers = [one for value in values for one in _numbers_in(value) if type(one) is TracedNumber]
        self.require_numbers([position for one in numbers for position in one.arguments])

    def require_no_stand_in(self, name: str, value: Any) -> None:
        """Raise if a value that goes to code which looks at types, as C does, holds a stand-in for a Python number.

        Raises:
            NeedsNumber: it holds a float that is an input, or is computed from some.
            TracedValueError: it holds a number that a tensor decides.
        """
        for one in _numbers_in(value):
            if type(one) is TracedNumber:
                self.require_numbers(one.arguments)
            else:
                needed(one, name)

    def _held_in(self, value: Any) -> list[int]:
        """Return the positions of the inputs that a value contains or is computed from."""
        numbers = [one for one in _numbers_in(value) if type(one) is TracedNumber]
        return [position for one in numbers for position in one.arguments if position in self._inputs]

    def require_numbers(self, positions: Iterable[int]) -> None:
        """Make inputs constants of the trace, by tracing again.

        Raises:
            NeedsNumber: `positions` is not empty.
        """
        needed = frozenset(positions)
        if needed:
            self._needed |= needed
            raise NeedsNumber(needed)

    def need(self, positions: frozenset[int]) -> None:
        """Make inputs constants of the trace, which traces again when the user's code has ended."""
        self._needed |= positions

    def refuse(self, error: Exception, cause: Exception | None = None) -> None:
        """Make the trace end with an error that the user's code, or Python's own, may catch.

        Args:
            error: the error.
            cause: an error with which the trace may end in its place.
        """
        self._refusal = self._refusal or (error, cause or error)

    def refuses(self, error: Exception) -> bool:
        """Whether an error is that with which the trace ends, whatever the user's code does."""
        return self._refusal is not None and error is self._refusal[0]

    @contextmanager
    def nothing_swallowed(self) -> Generator[None]:
        """Raise at the end of a ``with`` block what the user's code swallowed, or replaced by an error of its own.

        A ``return`` in a ``finally`` does that, and functions of Python's that try several ways.

        Raises:
            NeedsNumber: the number of an input was needed in the block.
        """
        try:
            yield
        except Exception as error:
            self.require_numbers(self._needed)
            if self._refusal is not None and not any([error is one for one in self._refusal]):
                raise self._refusal[0] from None
            raise
        self.require_numbers(self._needed)
        if self._restarts:
            raise NeedsNumber(frozenset())
        if self._refusal is not None:
            raise self._refusal[0]

    def only_numbers(self) -> None:
        """Make all numbers constants of the trace, also those not read yet: the trace must not restart after this.

        Raises:
            NeedsNumber: some numbers are inputs.
        """
        self.require_numbers(range(self._count()))
        self._only_numbers = True

    def keep_by_value(self, positions: Iterable[int]) -> None:
        """Make these inputs constants in later traces, since the code needs their numbers."""
        self._seen.keep_by_value([self._inputs[one].way for one in positions if one in self._inputs])


def _nothing(container: Any) -> None:
    del container


def _numbers_in(value: Any) -> list[Any]:
    """Return the stand-ins for Python numbers that a value contains."""
    found: list[Any] = []
    seen: set[int] = set()
    pending = [value]
    attributes = RAW.get(value, "__dict__")
    if attributes is not MISSING and not isinstance(value, type | ModuleType):
        pending += attributes.values()
    while pending:
        one = pending.pop()
        if type(one) is TracedNumber or type(one) is StagedNumber:
            found.append(one)
        elif issubclass(type(one), list | tuple | dict | deque) and id(one) not in seen:
            seen.add(id(one))
            pending += values_of(one) if issubclass(type(one), dict) else in_sequence(one)
    return found


def way_of(origin: Origin) -> Way:
    """Return the path to an origin, starting at the root's object."""
    if origin.parent is None:
        return (id(origin.holder()), origin.name)
    return (way_of(origin.parent), origin.access.path, origin.name)

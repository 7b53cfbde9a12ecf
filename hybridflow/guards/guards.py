"""Guards: check that what a trace read from Python outside its arguments has not changed.

An `Origin` is where a value was read: a global, a closure cell, an attribute, or an item of a container. Origins form a
tree. Its roots are namespaces, cells, and the objects that calls pass in. `Guards` checks the origins before a
call. A generated function first compares the current value of each origin with the recorded one, mostly by identity.
If that fails, the values are compared, so that an equal value that was created anew counts as unchanged.

Only plain values are kept alive; other objects are held weakly.
"""

from __future__ import annotations

import functools
import keyword
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from operator import is_
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.functions import is_whole
from hybridflow.core.held import defines
from hybridflow.core.node import Where, format_where
from hybridflow.core.staged_number import tried
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import Variable
from hybridflow.guards.access import ATTRIBUTE, CELL, GLOBAL, ITEM, ITSELF, METHOD, MISSING, Access, Held
from hybridflow.guards.contents import has_own_way, in_sequence, keys_of, values_of
from hybridflow.guards.questions import ANSWER, LRU_CACHE
from hybridflow.guards.shown import shown
from hybridflow.guards.signature import Identity, static_key

SEQUENCES = (list, tuple, deque)
MAPPINGS = (dict, MappingProxyType)
CONTAINERS = (*SEQUENCES, *MAPPINGS)
CHANGING = (set, bytearray, np.ndarray, array, memoryview)
"""Types of values that change in place and are compared by content at every call."""
PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), type(...)})


def key_of(value: Any) -> Any:
    """Return the key of a value: the trace is valid for every later value with the same key."""
    if value is MISSING or type(value) is Held:
        return value
    if type(value) is Tensor:
        return Tensor, value.shape, value.dtype.num
    kind = type(value)  # `isinstance` would ask a proxy for the class of what it stands for
    if issubclass(kind, MAPPINGS):
        return kind, tuple(map(static_key, keys_of(value))), tuple(map(_key_in_container, values_of(value)))
    if issubclass(kind, SEQUENCES):
        return kind, tuple(map(_key_in_container, in_sequence(value)))
    if not issubclass(kind, np.ndarray):
        return static_key(value, whole=False)
    if _is_fixed(value):
        return Identity(value), value.shape, value.dtype
    return static_key(value, whole=False), value.strides, value.flags.num, value.base is None  # its layout in memory


def _masked(key: Any, indices: Sequence[int]) -> Any:
    """Return the key of a container, with the numbers at `indices` replaced by their types, so that any number fits."""
    if type(key) is not tuple or type(key[-1]) is not tuple:
        return key
    items = list(cast("tuple[Any, ...]", key[-1]))
    for index in indices:
        if index < len(items) and type(items[index]) is tuple and items[index][0] in (float, int):
            items[index] = items[index][0]
    return (*key[:-1], tuple(items))


_A = {int: "an int", float: "a float"}


def _is_fixed(value: Any) -> bool:
    """Whether a value is a read-only array that owns its data: its identity then stands for its content."""
    return type(value) is np.ndarray and not value.flags.writeable and value.base is None


def _key_in_container(value: Any) -> Any:
    """Return the key of an item. An item that is not a plain value counts by its type; it has an origin of its own."""
    return static_key(value) if type(value) in PLAIN else type(value)


class SeenContainer(NamedTuple):
    """A container as the identity check remembers it: by the ids of its items.

    Plain values among the items are kept alive in `kept`, so that their ids are not reused.
    """

    kind: type
    ids: list[int]
    kept: list[Any]


def seen_of(value: Any) -> Any:
    """Return what the identity check compares a value with."""
    if isinstance(value, MAPPINGS):
        held = (*keys_of(value), *values_of(value))
        return SeenContainer(type(value), _ids_of_dict(value), [one for one in held if type(one) in PLAIN])
    if isinstance(value, SEQUENCES):
        return SeenContainer(type(value), _ids_of(value), [one for one in in_sequence(value) if type(one) in PLAIN])
    if (isinstance(value, CHANGING) and not _is_fixed(value)) or value is MISSING or type(value) in PLAIN:
        return None
    return weak(value)


def _ids_of(sequence: Any) -> list[int]:
    return [*map(id, in_sequence(sequence))]


def _ids_of_dict(mapping: Any) -> list[int]:
    return [*map(id, keys_of(mapping)), *map(id, values_of(mapping))]


class Origin:
    """Where a trace read a value, and the value before the trace wrote to it.

    Attributes:
        parent: the origin of the object it was read from; None for a root.
        access: how the value is read from that object.
        name: the attribute, key or name.
        kind: the value's type.
        key: the value's key, by `key_of`.
        plain: the value, if it is a plain one.
        seen: what the identity check compares the value with.
        text: the value, for messages.
        where: the user's line that read it.
        guarded: whether the trace depends on the value.
        written: whether the trace has written to the origin.
        alias: another origin where the trace read the same container.
        inputs: the numbers at this origin that are inputs of the trace. Maps a key or position in the container, or
            `ITSELF` for the value itself, to the position of the input.
        itself: returns the value, if the trace depends on its identity and an equal one will not do; else None.
        tensor: the id of the tensor that was read here; 0 for other values.
        lasting: for a root whose object is gone, whether the origins below it count as changed; else they are dropped.
    """

    __slots__ = (
        "access", "alias", "guarded", "holder", "inputs", "itself", "key", "kind", "lasting", "name", "parent", "plain",
        "seen", "tensor", "text", "where", "written",
    )

    def __init__(
        self, parent: Origin | None, access: Access, name: Any, value: Any, where: Where | None, *, guarded: bool
    ) -> None:
        self.parent = parent
        self.access = access
        self.name = name
        self.kind = type(value)
        self.key = key_of(value)
        self.plain = value if type(value) in PLAIN else None
        self.seen: Any = seen_of(value)
        self.text = describe(value)
        self.where = where
        self.guarded = guarded
        self.written = False
        self.alias: Origin | None = None
        self.inputs: dict[Any, int] = {}
        self.itself: Callable[[], Any] | None = None
        self.tensor = id(value) if type(value) is Tensor else 0
        self.lasting = False
        self.holder: Callable[[], Any] = _nothing

    @classmethod
    def root(cls, holder: Any, label: str, *, lasting: bool = False) -> Origin:
        """Return the origin of a namespace, a cell or an object that calls pass in."""
        origin = cls(None, ATTRIBUTE, label, None, None, guarded=False)
        origin.holder = weak(holder)
        origin.lasting = lasting
        return origin

    @property
    def top(self) -> Origin:
        """The root that the origin is reached from."""
        return self if self.parent is None else self.parent.top

    @property
    def path(self) -> str:
        """The origin as the user would write it."""
        if self.parent is None:
            return str(self.name)
        name = shown(self.name) if self.access is ITEM else self.name
        return self.access.path.format(p=self.parent.path, n=name)

    def now(self) -> Any:
        """Return the current value, or `MISSING` if there is none."""
        if self.parent is None:
            return self.holder()
        return self.read(self.parent.now())

    def read(self, holder: Any) -> Any:
        """Return the value that an object holds, or `MISSING`: the object may be of another kind than the first was."""
        if holder is None or holder is MISSING:
            return MISSING
        try:
            return self.access.get(holder, self.name)
        except Exception:
            return MISSING

    def __str__(self) -> str:
        line = format_where(self.where)
        text = f"{self.path} is {self.text}"
        if ITSELF in self.inputs:
            text = f"{self.path} is {_A[self.kind]}, which is an input since it was seen to change"
        elif self.inputs:
            keys = ", ".join(map(repr, self.inputs))
            text += f", where the numbers at {keys} are inputs since they were seen to change"
        return text + (f" (read at {line})" if line else "")

    def still(self, value: Any) -> bool:
        """Whether the trace is also valid for this value. Which tensor it is, `Guards` checks separately."""
        if not self.inputs:
            return key_of(value) == self.key
        if ITSELF in self.inputs:
            return type(value) is self.kind
        return _masked(key_of(value), self.indices()) == _masked(self.key, self.indices())

    def same_as(self, other: Origin) -> None:
        """Take over what is known of a container that was read at another origin: the trace may have changed it."""
        self.alias = other
        self.inputs, self.key, self.text = other.inputs, other.key, other.text
        if isinstance(other.seen, SeenContainer):
            self.seen = other.seen._replace(ids=[*other.seen.ids])

    def had(self, key: Any) -> bool:
        """Whether the container at this origin held an item under a key, or at a position, before the trace."""
        if issubclass(self.kind, dict):
            return static_key(key) in self.key[1]
        return key < len(self.key[-1])

    def indices(self) -> list[int]:
        """Return the positions in the container of the numbers that are inputs."""
        if not issubclass(self.kind, dict):
            return list(self.inputs)
        return [self.key[1].index(static_key(key)) for key in self.inputs]


def _nothing() -> None:
    return None


def weak(value: Any) -> Callable[[], Any]:
    """Return a function that returns a value, or None once it is gone. Keep values without weakref support alive."""
    try:
        return weakref.ref(value)
    except TypeError:
        return functools.partial(_itself, value)


def _itself(value: Any) -> Any:
    return value


_SHOWN = 60
"""The number of characters of a value that messages show."""
_DEEP = 8
"""The number of containers inside each other that messages show."""


def describe(value: Any) -> str:
    """Return the text for a value in messages."""
    try:
        with tried():
            text = _start_of(value, _SHOWN)
    except Exception as error:  # a user's __repr__ failed; the message must still be made
        text = f"<{type(value).__name__} whose repr raises {type(error).__name__}>"
    if len(text) <= _SHOWN:
        return text
    count = f" of {len(cast(Any, value))}" if isinstance(value, CONTAINERS) else ""
    return f"{type(value).__name__}{count} {text[:50]}..."


def _start_of(value: Any, room: int, depth: int = 0) -> str:
    """Return at least the first `room` characters of a value's text; for tensors and large arrays, shape and dtype."""
    kind = type(value)
    if depth > _DEEP:  # it may hold itself
        return "..."
    if kind is Tensor:
        return str(value.spec)
    if kind is Variable:
        return f"Variable {value.spec}"
    if is_whole(value):
        return f"a {kind.__name__}"
    if kind is np.ndarray and value.size > _SHOWN:
        return f"ndarray {value.dtype}{list(value.shape)}"
    if kind is dict:
        items = (f"{shown(key)}: {_start_of(item, room, depth + 1)}" for key, item in value.items())
        return _joined("{", items, "}", room)
    if kind is list or (kind is tuple and len(value) != 1):
        start, end = "[]" if kind is list else "()"
        return _joined(start, (_start_of(item, room, depth + 1) for item in value), end, room)
    return shown(value)


def _joined(start: str, items: Iterable[str], end: str, room: int) -> str:
    parts: list[str] = []
    for item in items:
        parts.append(item)
        room -= len(item) + 2
        if room < 0:
            break
    return start + ", ".join(parts) + end


class Guards:
    """The checks that decide whether a trace is valid for a call, beyond the call's signature.

    Args:
        origins: the origins it read, parents before children.
        captures: the tensors it captured.
        kept: objects that stay alive as long as the guards are in use, so that their ids are not reused.
        relations: pairs of origins, each with whether both must hold the same object.
    """

    def __init__(
        self,
        origins: Sequence[Origin],
        captures: Sequence[Tensor],
        kept: Sequence[object] = (),
        relations: Sequence[tuple[Origin, Origin, bool]] = (),
    ) -> None:
        self._relations = relations
        captured = {id(tensor): number for number, tensor in enumerate(captures)}
        self._positions_of_captures = captured
        self._kept = kept
        self._take(origins)

    def _take(self, origins: Sequence[Origin]) -> None:
        """Watch these origins. Drop those in objects that are gone, unless the trace has inputs from there."""
        related = {origin for relation in self._relations for origin in relation[:2]}
        with_inputs = {origin.top for origin in origins if origin.inputs}
        guarded = sorted([origin for origin in origins if origin.guarded], key=_is_cached)
        watched = _with_parents((*guarded, *related))
        self.origins = [origin for origin in watched if origin.top in with_inputs or not _is_gone(origin.top)]
        self._positions = {origin: number for number, origin in enumerate(self.origins)}
        self._related = [
            (self._positions[first], self._positions[second], same)
            for first, second, same in self._relations
            if first in self._positions and second in self._positions
        ]
        captured = self._positions_of_captures
        self._captured = {origin: captured[origin.tensor] for origin in self.origins if origin.tensor in captured}
        self._seen: list[Any] = [_without_inputs(origin, origin.seen) for origin in self.origins]
        self._implied = _implied(self.origins, self._kept) - related  # the lines of relations name these
        self.hold: Callable[[], bool | tuple[float, ...]] = self._generate()
        """The identity check: whether everything is unchanged.

        False may also mean that equal values were created anew. If numbers outside are inputs, the check returns their
        current values instead of True.
        """

    def _same_as(self, origin: Origin, number: int) -> int | None:
        """Return where an origin's alias is among those before it; of two that name each other, one comes first."""
        position = -1 if origin.alias is None else self._positions.get(origin.alias, -1)
        return position if 0 <= position < number else None

    def __len__(self) -> int:
        return sum(origin.guarded for origin in self.origins)

    def texts(self) -> tuple[str, ...]:
        """Return a text for each guard."""
        related = [
            f"{first.path} is {'' if same else 'not '}{second.path}" for first, second, same in self._relations
        ]
        return (*[str(origin) for origin in self.origins if origin.guarded], *related)

    def changes(self, captures: tuple[Tensor, ...]) -> tuple[list[tuple[str, str, str]], tuple[Tensor, ...]]:
        """Compare by value, and return what has changed.

        Args:
            captures: the tensors that the trace captured.

        Returns:
            A list of ``(origin, before, after)``, one for each change, and the captured tensors. If nothing changed,
            the captures are current: an origin may now hold another tensor of the same shape and dtype.
        """
        if any(origin.parent is None and _is_gone(origin) for origin in self.origins):
            self._take(self.origins)
        values: list[Any] = []
        changed: list[tuple[str, str, str]] = []
        now: dict[int, Any] = {}
        for number, origin in enumerate(self.origins):
            if changed and _is_cached(origin):
                return changed, captures
            value = self._value(origin, values)
            values.append(value)
            if not origin.guarded:
                continue
            other = self._same_as(origin, number)
            if other is not None and value is not values[other]:
                changed.append((origin.path, f"the same as {self.origins[other].path}", "another one"))
            elif not origin.still(value):
                arrays = isinstance(value, np.ndarray) and type(value) is origin.kind
                layout = ", laid out otherwise in memory" if arrays and key_of(value)[0] == origin.key[0] else ""
                changed.append((origin.path, origin.text, describe(value) + layout))
            elif origin.itself is not None and value is not origin.itself():
                changed.append((origin.path, f"{origin.text}, and no other", "another one like it"))
            elif origin.tensor and now.setdefault(origin.tensor, value) is not value:
                changed.append((origin.path, "the same tensor as elsewhere", "another one"))
        for first, second, same in self._related:
            if (values[first] is values[second]) is not same:
                relation = f"{self.origins[first].path} is {self.origins[second].path}"
                changed.append((relation, str(same), str(not same)))
        if changed:
            return changed, captures
        self._seen[:] = [
            _without_inputs(origin, seen_of(one)) for origin, one in zip(self.origins, values, strict=True)
        ]
        changes = list(captures)
        for origin, position in self._captured.items():
            changes[position] = now[origin.tensor]
        return [], tuple(changes)

    def numbers(self) -> tuple[float, ...]:
        """Return the current values of the numbers that are inputs, in the order of the inputs."""
        values: list[Any] = []
        by_position: dict[int, float] = {}
        for origin in self.origins:
            values.append(value := self._value(origin, values))
            for key, number in origin.inputs.items():
                by_position[number] = value if key is ITSELF else value[key]
        return tuple([by_position[number] for number in sorted(by_position)])

    def untouched(self) -> bool:
        """Whether every origin still has the value that was read. Asked when a trace ends: it may have changed some."""
        values: list[Any] = []
        for origin in self.origins:
            if _is_cached(origin):
                values.append(MISSING)
                continue
            value = self._value(origin, values)
            values.append(value)
            if not origin.guarded:
                continue
            if not origin.still(value) or (origin.tensor and id(value) != origin.tensor):
                return False
        return True

    def _value(self, origin: Origin, values: list[Any]) -> Any:
        if origin.parent is None:
            return origin.holder()
        return origin.read(values[self._positions[origin.parent]])

    def _generate(self) -> Callable[[], bool]:
        """Generate the function that compares by identity."""
        space: dict[str, Any] = {
            "S": self._seen, "MISSING": MISSING, "key_of": key_of, "ids_of": _ids_of, "ids_of_dict": _ids_of_dict,
            "is_": is_,
        }
        whole = _whole(self._implied)
        inputs: dict[int, str] = {}
        lines = ["def check():", "    try:"]
        for number, origin in enumerate(self.origins):
            if origin.parent is None:
                held = isinstance(origin.holder, functools.partial)
                space[f"r{number}"] = origin.holder
                if held:
                    space[f"v{number}"] = origin.holder()
                else:
                    lines.append(f"        v{number} = r{number}()")
                    lines.append(f"        if v{number} is None: return False")
                continue
            if origin in self._implied:
                continue
            code = _read(origin, number, self._positions[origin.parent], space)
            lines.append(f"        v{number} = {code}")
            if origin in whole:
                space[f"o{number}"] = items = whole[origin]
                same = f"len(v{number}) == {len(items)} and all(map(is_, v{number}, o{number}))"
                lines.append(f"        if type(v{number}) is not S[{number}][0] or not ({same}): return False")
            elif (other := self._same_as(origin, number)) is not None:
                lines.append(f"        if v{number} is not v{other}: return False")
            elif origin.inputs and origin.guarded:
                lines += [f"        {line}" for line in _take_inputs(origin, number, space, inputs)]
            elif origin.guarded:
                lines.append(f"        if {_differs(origin, number, space)}: return False")
        for first, second, same in self._related:
            lines.append(f"        if v{first} is {'not ' * same}v{second}: return False")
        lines += ["    except Exception:", "        return False"]
        values = "".join([f"{inputs[position]}, " for position in sorted(inputs)])
        lines.append(f"    return ({values})" if values else "    return True")
        exec(compile("\n".join(lines), __file__, "exec"), space)  # straight-line Python, compiled once
        return space["check"]


def _is_gone(root: Origin) -> bool:
    """Whether a root's object is gone; a lasting root never counts as gone."""
    return not root.lasting and root.holder() is None


def _implied(origins: Sequence[Origin], kept: Sequence[object]) -> set[Origin]:
    """Return the items that need no check of their own, because the check of their container's ids covers them.

    That is sound for objects that are kept alive: no other object can have their id.
    """
    alive = set(map(id, kept))
    parents = {origin.parent for origin in origins}
    return {origin for origin in origins if origin not in parents and _by_container(origin, alive)}


def _by_container(origin: Origin, alive: set[int]) -> bool:
    parent = origin.parent
    if origin.access is not ITEM or parent is None or not parent.guarded or not callable(origin.seen):
        return False
    value = id(origin.seen())
    if value not in alive or not isinstance(parent.seen, SeenContainer):
        return False
    ids = parent.seen.ids
    if parent.kind is dict:
        return value in ids[len(ids) // 2 :]
    return parent.kind in SEQUENCES and type(origin.name) is int and ids[origin.name] == value


def _whole(implied: Iterable[Origin]) -> dict[Origin, tuple[object, ...]]:
    """Return the sequences whose items are all implied, with the items: comparing them is faster than taking ids."""
    items_of: dict[Origin, dict[int, object]] = {}
    for origin in implied:
        parent = cast(Origin, origin.parent)
        if parent.kind is not dict:
            items_of.setdefault(parent, {})[origin.name % len(parent.seen.ids)] = origin.seen()
    return {
        parent: tuple([items[number] for number in range(len(items))])
        for parent, items in items_of.items()
        if len(items) == len(parent.seen.ids)
    }


def _is_cached(origin: Origin | None) -> bool:
    """Whether a value is from the user's cache, or inside: such are asked for last, since that changes the cache."""
    while origin is not None and origin.access is not ANSWER:
        origin = origin.parent
    return origin is not None and type(origin.name.function) is LRU_CACHE


def _with_parents(origins: Iterable[Origin]) -> list[Origin]:
    """Return origins with their parents; parents and aliases come first."""
    ordered: dict[Origin, None] = {}
    begun: set[Origin] = set()

    def add(origin: Origin) -> None:
        way: list[Origin] = []
        one: Origin | None = origin
        while one is not None and one not in begun:
            begun.add(one)
            way.append(one)
            one = one.parent
        for one in reversed(way):
            if one.alias is not None and one.alias.guarded:
                add(one.alias)
            ordered[one] = None

    for origin in origins:
        add(origin)
    return list(ordered)


def _read(origin: Origin, number: int, parent: int, space: dict[str, Any]) -> str:
    """Return the code that reads an origin from its parent's variable."""
    name = origin.name
    space[f"n{number}"] = name
    if origin.access is GLOBAL and origin.key is MISSING:
        return f"v{parent}.get(n{number}, MISSING)"
    own_way = origin.access is ITEM and _reads_its_own_way(cast(Origin, origin.parent).kind)
    if origin.key is MISSING or not origin.access.code or own_way:
        space[f"g{number}"] = origin.access.get
        return f"g{number}(v{parent}, n{number})"
    if origin.access in (ATTRIBUTE, METHOD) and name.isidentifier() and not keyword.iskeyword(name):
        return f"v{parent}.{name}" + (".__func__" if origin.access is METHOD else "")
    return origin.access.code.format(v=f"v{parent}", n=f"n{number}")


def _reads_its_own_way(kind: type) -> bool:
    """Whether a container of this class may return something else than the item that it stores."""
    return defines(kind, "__missing__") or (issubclass(kind, CONTAINERS) and has_own_way(kind, "__getitem__"))


def _ids_code(kind: type, variable: str) -> str:
    """Return Python for the ids of what is in a container."""
    if issubclass(kind, MAPPINGS):
        return f"ids_of_dict({variable})"
    return f"ids_of({variable})" if has_own_way(kind, "__iter__") else f"[*map(id, {variable})]"


def _take_inputs(origin: Origin, number: int, space: dict[str, Any], inputs: dict[int, str]) -> list[str]:
    """Return the code that takes the inputs out of an origin and compares the rest of it."""
    v, seen = f"v{number}", f"S[{number}]"
    if ITSELF in origin.inputs:
        inputs[origin.inputs[ITSELF]] = v
        return [f"if type({v}) is not {origin.kind.__name__}: return False"]
    lines = [f"if type({v}) is not {seen}[0]: return False", f"ids = {_ids_code(origin.kind, v)}"]
    lines += [f"ids[{index}] = 0" for index in _input_positions(origin)]
    lines.append(f"if ids != {seen}[1]: return False")
    kinds = [origin.key[-1][index][0].__name__ for index in origin.indices()]
    for count, ((key, position), kind) in enumerate(zip(origin.inputs.items(), kinds, strict=True)):
        space[f"k{number}_{count}"] = key
        inputs[position] = item = f"{v}_{count}"
        lines += [f"{item} = {v}[k{number}_{count}]", f"if type({item}) is not {kind}: return False"]
    return lines


def _input_positions(origin: Origin) -> list[int]:
    """Return the positions of a container's inputs in the list of ids of its content."""
    first = len(origin.key[1]) if issubclass(origin.kind, dict) else 0
    return [first + index for index in origin.indices()]


def _without_inputs(origin: Origin, seen: Any) -> Any:
    """Return `seen` with the ids of an origin's inputs set to 0, so that the comparison by identity ignores them."""
    if isinstance(seen, SeenContainer):
        for position in _input_positions(origin) if origin.inputs else ():
            seen.ids[position] = 0
    return seen


def _differs(origin: Origin, number: int, space: dict[str, Any]) -> str:
    """Return the code that tells whether the value in an origin's variable differs from the one that was seen."""
    v, kind = f"v{number}", origin.kind
    if origin.itself is not None and kind is not Tensor:
        space[f"i{number}"] = origin.itself
        return f"{v} is not i{number}() or {_has_changed(origin, number, space)}"
    return _has_changed(origin, number, space)


def _has_changed(origin: Origin, number: int, space: dict[str, Any]) -> str:
    """Return the code that tells whether the content of the value in an origin's variable has changed."""
    v, seen = f"v{number}", f"S[{number}]"
    kind = origin.kind
    if origin.key is MISSING:
        return f"{v} is not MISSING"
    if kind in PLAIN:
        value: Any = origin.plain
        space[f"e{number}"] = value
        if value is None or value is ... or kind is bool or value != value or value == 0:
            return f"{v} is not e{number}"
        space[f"t{number}"] = kind
        return f"{v} is not e{number} and (type({v}) is not t{number} or {v} != e{number})"
    if issubclass(kind, CONTAINERS):
        return f"type({v}) is not {seen}[0] or {_ids_code(kind, v)} != {seen}[1]"
    if issubclass(kind, CHANGING) and origin.seen is None:
        space[f"k{number}"] = origin.key
        return f"key_of({v}) != k{number}"
    if kind is np.ndarray:
        space[f"k{number}"] = origin.key
        return f"{v} is not {seen}() or {v}.flags.writeable or {v}.shape != k{number}[1] or {v}.dtype != k{number}[2]"
    return f"{v} is None or {v} is not {seen}()"  # None if the object is gone


__all__ = [
    "ATTRIBUTE", "CELL", "CONTAINERS", "GLOBAL", "ITEM", "METHOD", "MISSING", "PLAIN", "Access", "Guards", "Origin",
    "describe", "key_of",
]

"""Which objects must be identical (or not): the trace compared them with ``is``, or it changed one and read another.

Guards compare the content of containers and tensors, not their identity. A trace that compared two of them, or changed
one and read another, holds only for calls in which the same ones are identical as when it was made.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hybridflow.core.held import Opened, is_by_fields
from hybridflow.guards.guards import CONTAINERS, Origin
from hybridflow.guards.shown import shown

Way = tuple[Any, ...]
"""The path to a value among the arguments: the argument's name, then keys, positions and fields."""
Source = Origin | Way


class Relation(NamedTuple):
    """Two sources, and whether they lead to the same object."""

    first: Source
    second: Source
    same: bool

    def __str__(self) -> str:
        return f"{path_of(self.first)} is {path_of(self.second)}: {self.same}"


def path_of(source: Source) -> str:
    """Return a source as the user would write it."""
    if isinstance(source, Origin):
        return source.path
    name, *keys = source
    return str(name) + "".join([f"[{shown(key)}]" for key in keys])


def at_way(arguments: dict[str, Any], way: Way) -> Any:
    """Return the value at a path among a call's arguments."""
    value: Any = arguments
    for key in way:
        value = value.given if type(value) is Opened else value
        if is_by_fields(value) and not isinstance(value, CONTAINERS):
            value = getattr(value, key)
        else:
            value = value[key]
    return value.given if type(value) is Opened else value


def order_at(arguments: dict[str, Any], way: Way) -> list[Any]:
    """Return the keys, in order, of a dict among a call's arguments."""
    return list(at_way(arguments, way))


def _value(source: Source, arguments: dict[str, Any]) -> Any:
    return source.now() if isinstance(source, Origin) else at_way(arguments, source)


class Identities(NamedTuple):
    """The identities that involve a call's arguments.

    Attributes:
        relations: the relations in which an argument takes part.
        apart: the origins of containers that the trace changed; none of these containers may be part of an argument.
    """

    relations: tuple[Relation, ...]
    apart: tuple[Origin, ...]

    def changes(self, arguments: dict[str, Any]) -> list[tuple[str, str, str]]:
        """Return ``(what, before, after)`` for each identity in which a call differs from the traced one."""
        changes: list[tuple[str, str, str]] = []
        for one in self.relations:
            identical = _value(one.first, arguments) is _value(one.second, arguments)
            if identical is not one.same:
                changes.append((f"{path_of(one.first)} is {path_of(one.second)}", str(one.same), str(identical)))
        if self.apart:
            given = mutable_in(arguments)
            for origin in self.apart:
                name = given.get(id(origin.now()))
                if name is not None:
                    changes.append((f"{origin.path}, which is changed", "no part of an argument", f"part of {name}"))
        return changes


def mutable_in(arguments: dict[str, Any]) -> dict[int, str]:
    """Return the ids of the lists, dicts and deques in arguments, each with the name of its argument."""
    mutable: dict[int, str] = {}
    for name, value in arguments.items():
        pending = [value]
        while pending:
            one = pending.pop()
            if isinstance(one, list | dict | deque):
                if id(one) in mutable:
                    continue
                mutable[id(one)] = name
            if isinstance(one, dict):
                pending += cast("dict[Any, Any]", one).values()
            elif isinstance(one, list | tuple | deque):
                pending += cast("Sequence[Any]", one)
            elif type(one) is Opened:
                pending += one.values
    return mutable



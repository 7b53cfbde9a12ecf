"""Lists, dicts and objects that a branch or loop on tensors merged from several: each call selects one of them.

The merged object is a new one that holds the selected tensors. In Python it would be identical to one of its sources,
and which one depends on the call. That makes no difference until one of the two changes. From then on, reading the
other one is an error, and at the end of the call all that is outside is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from hybridflow.core.attached import attached
from hybridflow.core.errors import MutationError
from hybridflow.core.node import format_where, user_place
from hybridflow.guards.journal import Journal

_CONTAINERS = (list, dict, set, deque, bytearray)


class _Change(NamedTuple):
    """A change of an object that may be identical to others.

    Attributes:
        changed: the id of the changed object.
        roots: the ids of the original objects that it may be.
        text: the change, for messages.
    """

    changed: int
    roots: frozenset[int]
    text: str


class Choices:
    """The merged objects of one trace, by id.

    Args:
        is_outside: whether an object existed before the trace.
    """

    def __init__(self, is_outside: Callable[[Any], bool]) -> None:
        self._is_outside = is_outside
        self._of_outside: set[int] = set()  # those that stand for objects from outside
        self._merged = Journal()  # of these
        self._roots: dict[int, frozenset[int]] = {}
        self._born: dict[int, int] = {}
        self._changes: list[_Change] = []
        self._arrays: set[int] = set()
        self._kept: list[Any] = []

    def forget(self) -> None:
        """Release everything."""
        self.__init__(self._is_outside)

    def made(self, result: Any, sources: Iterable[Any]) -> None:
        """Record a structure that stands for one of several sources of the same form.

        Raises:
            MutationError: one of the sources cannot be read.
        """
        for source in sources:
            self._pair(result, source, outside=False)

    def _pair(self, made: Any, source: Any, *, outside: bool) -> None:
        if made is source:
            return
        if isinstance(source, np.ndarray) or id(source) in self._arrays:
            self._arrays.update((id(made), id(source)))
            self._kept += (made, source)
            return
        if type(made) is not type(source) or not _has_parts(made):
            return
        self._read(source)
        outside = outside or self._is_outside(source) or id(source) in self._of_outside
        if not isinstance(made, tuple):
            if outside:
                self._of_outside.add(id(made))
                self._merged.inside(made)
            self._kept += (made, source)
            ids = frozenset([id(source)])
            self._roots[id(made)] = self._roots.get(id(made), frozenset()) | self._roots.setdefault(id(source), ids)
            self._born[id(made)] = len(self._changes)
        for one, other in zip(_parts(made), _parts(source), strict=False):
            self._pair(one, other, outside=outside)

    def changed(self, obj: Any, what: str) -> None:
        """Record that an object is about to be changed.

        Raises:
            MutationError: it cannot be read, or it is an array that a branch or loop on tensors has chosen from.
        """
        if id(obj) in self._arrays:
            raise MutationError(
                f"{type(obj).__name__}{what}: changes an array that a branch or loop on tensors has chosen "
                f"from, at {format_where(user_place(4))}", hint="Make a copy before the branch, and change that."
            )
        roots = self._roots.get(id(obj))
        if roots is not None:
            self._read(obj)
            where = format_where(user_place(4))
            self._changes.append(_Change(id(obj), roots, f"{type(obj).__name__}{what} at {where}"))

    def may_be_one(self, a: Any, b: Any) -> bool:
        """Whether a tensor decides whether two objects are one: they may be the same original object."""
        roots = self._roots.get(id(a)) if self._roots else None
        return roots is not None and not roots.isdisjoint(self._roots.get(id(b), ()))

    def require_unchanged(self) -> None:
        """Raise if the call has changed an object that stands for one of several from outside: none of them is changed.

        Raises:
            MutationError: it has.
        """
        for obj, _ in self._merged.changed():
            texts = [one.text for one in self._changes if one.changed == id(obj)]
            kind = type(obj).__name__
            raise MutationError(f"{kind}: changed, though a tensor decides which {kind} from outside it is",
                                got=texts[0] if texts else None,
                                hint="Change each of them in all calls, by hf.where of its old and its new content.")

    def read(self, value: Any) -> None:
        """Record that a value and its content are read.

        Raises:
            MutationError: a tensor decides whether the value is identical to something that was changed.
        """
        if not self._changes:
            return
        pending, seen = [value], set[int]()
        while pending:
            one = pending.pop()
            if _has_parts(one) and id(one) not in seen:
                seen.add(id(one))
                self._read(one)
                pending += _parts(one)

    def read_one(self, obj: Any) -> None:
        """Record that an object is read, but not its content; see `read`."""
        if self._changes:
            self._read(obj)

    def _read(self, obj: Any) -> None:
        roots = self._roots.get(id(obj))
        if roots is None:
            return
        for change in self._changes[self._born.get(id(obj), 0) :]:
            if change.changed != id(obj) and not roots.isdisjoint(change.roots):
                kind = type(obj).__name__
                raise MutationError(
                    f"{kind}: read after a change that was of this {kind} or of another one, depending on a "
                    f"tensor, at {format_where(user_place(4))}",
                    got=f"{change.text}: a branch or loop on tensors has chosen between the two",
                    hint="Change it before the branch, or make a copy there and change that."
                )


def _has_parts(value: Any) -> bool:
    return isinstance(value, (*_CONTAINERS, tuple)) or attached("is_object")(value)


def _parts(value: Any) -> Iterator[Any]:
    """Return the content of a container or object, in an order that all objects of its form share."""
    if isinstance(value, dict):
        items = cast("dict[Any, Any]", value)
        return iter([items[key] for key in sorted(items, key=repr)])
    if isinstance(value, list | tuple | deque):
        return iter(cast("Sequence[Any]", value))
    return iter(()) if isinstance(value, set | bytearray) else iter(attached("vars_of")(value))

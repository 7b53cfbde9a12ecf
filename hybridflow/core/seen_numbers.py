"""Which numbers have changed from call to call: from its second value on, a number is an input of a program."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_MOST = 4096


class SeenNumbers:
    """The numbers that earlier calls met, by place.

    A number that never changes stays a constant, which XLA computes with when it compiles. One that has changed is an
    input, so that no value of it makes another program.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, Any] = {}
        self._changed: set[Hashable] = set()

    def has_changed(self, place: Hashable, value: Hashable) -> bool:
        """Note a number, and return whether the one at this place has ever changed."""
        if place in self._changed:
            return True
        if len(self._first) >= _MOST:
            self._first.clear()
        if self._first.setdefault(place, value) == value:
            return False
        if len(self._changed) >= _MOST:
            self._changed.clear()
        self._changed.add(place)
        return True

"""Observers of the Variables that a function reads and assigns, for `hf.checkpoint`.

The first run of a function records the values that its Variables had. When the function runs again, a replaying
observer gives it those values back, and keeps its assignments from the Variables themselves.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class _Observed:
    """The number of observers in all threads; at zero, the lookup is skipped."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


OBSERVED = _Observed()
_OBSERVER: ContextVar[Observer | None] = ContextVar("hybridflow observer", default=None)


class Observer:
    """Records or replays the values of Variables; see `observing`.

    Args:
        values: the raw values to replay, by the Variable's leaf; if None, values are only recorded.
        binder: the object that receives eager operations, as a tracer does in a trace; if None, they run as usual.

    Attributes:
        values: the raw value that each Variable had before the function read or assigned it.
        replays: whether reads return these values.
    """

    def __init__(self, values: dict[Any, Any] | None = None, binder: Any = None) -> None:
        self.binder = binder
        self.replays = values is not None
        self.values: dict[Any, Any] = {} if values is None else dict(values)
        self._outer = _OBSERVER.get()

    def value_of(self, variable: Any, value: Any) -> Any:
        """Return the raw value that the function sees in a Variable."""
        if self._outer is not None:
            value = self._outer.value_of(variable, value)
        known = self.values.setdefault(variable._leaf, value)
        return known if self.replays else value

    def assigned(self, variable: Any, value: Any) -> bool:
        """Note that a Variable is assigned; return whether the Variable itself must stay unchanged."""
        if self.replays:
            self.values[variable._leaf] = value
            return True
        self.value_of(variable, variable._value)
        return self._outer is not None and self._outer.assigned(variable, value)


def observed_value(variable: Any, value: Any) -> Any:
    """Return the raw value of a Variable, as the current observer shows it."""
    observer = _OBSERVER.get()
    return value if observer is None else observer.value_of(variable, value)


def observed_assignment(variable: Any, value: Any) -> bool:
    """Note that a Variable is assigned; return whether the Variable itself must stay unchanged."""
    observer = _OBSERVER.get()
    return observer is not None and observer.assigned(variable, value)


def binder_now() -> Any:
    """Return the current observer's binder of eager operations, or None if they run as usual."""
    observer = _OBSERVER.get() if OBSERVED.count else None
    return None if observer is None else observer.binder


def replaying() -> bool:
    """Whether a function is being replayed, which must have no visible effects."""
    if not OBSERVED.count:
        return False
    observer = _OBSERVER.get()
    while observer is not None:
        if observer.replays:
            return True
        observer = observer._outer
    return False


@contextmanager
def observing(values: dict[Any, Any] | None = None, binder: Any = None) -> Generator[Observer]:
    """Record or replay the values of the Variables that a block reads and assigns; see `Observer`."""
    observer = Observer(values, binder)
    token = _OBSERVER.set(observer)
    OBSERVED.count += 1
    try:
        yield observer
    finally:
        OBSERVED.count -= 1
        _OBSERVER.reset(token)

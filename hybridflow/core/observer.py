"""Who hears of every Variable that a function reads and assigns, and may stand between: see `hf.checkpoint`.

One who only listens takes note of the values that Variables had; one who plays them back hands them to a function that
is run again, and keeps to itself what that assigns.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class _Observed:
    """How many observers there are in all threads: nobody looks for one otherwise."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


OBSERVED = _Observed()
_OBSERVER: ContextVar[Observer | None] = ContextVar("hybridflow observer", default=None)


class Observer:
    """Listens to Variables; see `observing`.

    Args:
        values: per Variable's leaf, the raw value to hand out; if not given, nothing is changed.
        binder: what operations are handed to in eager code, as to a tracer in a trace; they run as ever if not given.

    Attributes:
        values: the raw value that each Variable had before the function read or assigned it.
        replays: whether those are handed out.
    """

    def __init__(self, values: dict[Any, Any] | None = None, binder: Any = None) -> None:
        self.binder = binder
        self.replays = values is not None
        self.values: dict[Any, Any] = {} if values is None else dict(values)
        self._outer = _OBSERVER.get()

    def value_of(self, variable: Any, value: Any) -> Any:
        """Return the raw value that a Variable has to the function."""
        if self._outer is not None:
            value = self._outer.value_of(variable, value)
        known = self.values.setdefault(variable._leaf, value)
        return known if self.replays else value

    def assigned(self, variable: Any, value: Any) -> bool:
        """Take note that a Variable is assigned; return whether it is not to be changed itself."""
        if self.replays:
            self.values[variable._leaf] = value
            return True
        self.value_of(variable, variable._value)
        return self._outer is not None and self._outer.assigned(variable, value)


def observed_value(variable: Any, value: Any) -> Any:
    """Return the raw value that a Variable has here."""
    observer = _OBSERVER.get()
    return value if observer is None else observer.value_of(variable, value)


def observed_assignment(variable: Any, value: Any) -> bool:
    """Take note that a Variable is assigned; return whether it is not to be changed itself."""
    observer = _OBSERVER.get()
    return observer is not None and observer.assigned(variable, value)


def binder_now() -> Any:
    """Return what operations of eager code are handed to, None if they run as ever."""
    observer = _OBSERVER.get() if OBSERVED.count else None
    return None if observer is None else observer.binder


def replaying() -> bool:
    """Whether a function is run again here, that should not be seen to run."""
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
    """Observe the Variables that a block reads and assigns, or hand out values of theirs: see `Observer`."""
    observer = Observer(values, binder)
    token = _OBSERVER.set(observer)
    OBSERVED.count += 1
    try:
        yield observer
    finally:
        OBSERVED.count -= 1
        _OBSERVER.reset(token)

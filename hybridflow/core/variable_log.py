"""Observers of the Variables that a function reads and assigns.

`hf.checkpoint`, `hf.config.verify` and eager code in a trace have one each.

The first run of a checkpointed function records the values that its Variables had. When the function runs again, a
replaying log gives it those values back, and keeps its assignments from the Variables themselves.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar


class _OpenLogs:
    """The number of logs in all threads; at zero, the lookup is skipped."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


OPEN_LOGS = _OpenLogs()
_LOG: ContextVar[VariableLog | None] = ContextVar("hybridflow log", default=None)


class VariableLog:
    """Records or replays the values of Variables; see `logging_variables`.

    Args:
        values: the raw values to replay, by the Variable's leaf; if None, values are only recorded.
        binder: the object that receives eager operations, as a tracer does in a trace; if None, they run as usual.

    Attributes:
        values: the raw value that each Variable had before the function read or assigned it.
        replays: whether reads return these values.
        once: whether the code runs once for all calls.
        tracer: the tracer of the compiled function in which the eager code runs, or None.
    """

    once = False

    def __init__(self, values: dict[Any, Any] | None = None, binder: Any = None) -> None:
        self.binder = binder
        self.replays = values is not None
        self.values: dict[Any, Any] = {} if values is None else dict(values)
        self._outer = _LOG.get()
        self.tracer: Any = None if self._outer is None else self._outer.tracer

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


Log = TypeVar("Log", bound=VariableLog)


def logged_value(variable: Any, value: Any) -> Any:
    """Return the raw value of a Variable, as the current log shows it."""
    log = _LOG.get()
    return value if log is None else log.value_of(variable, value)


def logged_assignment(variable: Any, value: Any) -> bool:
    """Note that a Variable is assigned; return whether the Variable itself must stay unchanged."""
    log = _LOG.get()
    return log is not None and log.assigned(variable, value)


def binder_now() -> Any:
    """Return the current log's binder of eager operations, or None if they run as usual."""
    log = _LOG.get() if OPEN_LOGS.count else None
    return None if log is None else log.binder


def replaying() -> bool:
    """Whether a function is being replayed, which must have no visible effects."""
    if not OPEN_LOGS.count:
        return False
    log = _LOG.get()
    while log is not None:
        if log.replays:
            return True
        log = log._outer
    return False


def tracer_around(*, watched: bool = False) -> Any:
    """Return the tracer of the compiled function in whose trace the present eager code runs, or None.

    Args:
        watched: leave out code that runs once for all calls: what it reads and writes does not concern later ones.
    """
    log = _LOG.get() if OPEN_LOGS.count else None
    return None if log is None or (watched and log.once) else log.tracer


@contextmanager
def without_log(log: VariableLog) -> Generator[None]:
    """Run a block as outside of a log."""
    token = _LOG.set(log._outer)
    try:
        yield
    finally:
        _LOG.reset(token)


@contextmanager
def logging_variables(log: Log) -> Generator[Log]:
    """Record or replay the values of the Variables that a block reads and assigns."""
    token = _LOG.set(log)
    OPEN_LOGS.count += 1
    try:
        yield log
    finally:
        OPEN_LOGS.count -= 1
        _LOG.reset(token)

"""What the process is doing that takes long, told to whoever listens: a run's log of activities, for example."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager

LISTENERS: list[Callable[[str, str, bool], None]] = []
"""Functions that are called with ``(what, name, begins)`` when the process begins and ends something."""


@contextmanager
def doing(what: str, name: str) -> Generator[None]:
    """Tell the listeners that something begins, and when it has ended.

    Args:
        what: ``tracing`` or ``compiling``.
        name: the function.
    """
    if not LISTENERS:
        yield
        return
    for listener in [*LISTENERS]:
        listener(what, name, True)
    try:
        yield
    finally:
        for listener in [*LISTENERS]:
            listener(what, name, False)

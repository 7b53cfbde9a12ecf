"""Pause Python's garbage collector where there is no garbage to find."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause Python's garbage collector inside a ``with`` block, while a graph is built or changed.

    On a large graph it would take most of the time, walking over the heap again and again, and find no garbage.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_MANY = 1_000_000
"""More allocations than an import makes; they are not garbage, so the collector need not look at them."""
_BY_PYTHON = 1_000
"""More objects than Python 3.12 freezes when it starts, and fewer than any program has when it freezes them itself."""


def rare_collections() -> Callable[[], None]:
    """Make collections rare, and return the function that undoes this.

    ``import jax`` makes so many objects that a large part of its time would go into collections. If the import fails,
    the collector still works.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY, *before[1:])
    during = gc.get_threshold()

    def back() -> None:
        if gc.get_freeze_count() < _BY_PYTHON:  # keep objects frozen that others froze
            gc.freeze()
            gc.unfreeze()  # make the import's objects old, so that the next collection does not visit them
        if gc.get_threshold() == during:
            gc.set_threshold(*before)

    return back

"""Python's garbage collector, kept still where it has nothing to find."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Generator[None]:
    """Keep Python's garbage collector from walking over the whole heap again and again while a graph is worked on.

    It would take most of the time on a graph of 10,000 nodes, and find nothing: what is made is alive.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_MANY = 1_000_000
"""More allocations than an import makes: none of what it makes is garbage, so the collector need not look at it."""
_BY_PYTHON = 1_000
"""More objects than Python 3.12 freezes when it starts, and fewer than are there when a program can freeze any."""


def rare_collections() -> Callable[[], None]:
    """Have the collector look rarely, and return what sets it back.

    ``import jax`` makes so much that a third of the time would go into looking at it. An import that fails leaves
    a collector that still works.
    """
    before = gc.get_threshold()
    gc.set_threshold(_MANY, *before[1:])
    during = gc.get_threshold()

    def back() -> None:
        if gc.get_freeze_count() < _BY_PYTHON:  # what others froze stays frozen
            gc.freeze()
            gc.unfreeze()  # what the import made is old now: the next look, some lines later, would take 10 ms
        if gc.get_threshold() == during:
            gc.set_threshold(*before)

    return back

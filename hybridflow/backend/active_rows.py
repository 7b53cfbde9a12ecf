"""Which slices of a vectorised program run the code that is being lowered.

Under `jax.vmap`, both branches of a condition that differs from slice to slice run for every slice, and so does the
body of a loop for slices that have left it. A loop in there might never end for values that it was not written for.
So its condition also asks whether the slice takes the branch, or is still in the loop around.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from jax import lax

ACTIVE: ContextVar[Any] = ContextVar("hybridflow active slices", default=None)
"""A bool of shape () for each slice: whether it runs the code; None if no loop is vectorised."""


@contextmanager
def active_if(holds: Any) -> Generator[None]:
    """Lower code in a block that only those active slices run for which a condition holds; None is all of them."""
    outer = ACTIVE.get()
    token = ACTIVE.set(outer if holds is None else holds if outer is None else lax.bitwise_and(outer, holds))
    try:
        yield
    finally:
        ACTIVE.reset(token)

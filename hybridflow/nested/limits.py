"""`hf.max_iterations`: how many steps loops of plain Python take at most."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message

LIMIT: ContextVar[int | None] = ContextVar("max_iterations", default=None)
"""The bound of the loops that are traced now, None if there is none."""


@contextmanager
def max_iterations(count: int | None) -> Generator[None]:
    """Say how many steps a `while` on tensors, or a `for` over ``range(tensor)``, takes at most.

    Gradients through such a loop in a compiled function need it, since XLA must know how much to keep: memory for
    `count` steps is taken, but only the steps that there are run. It holds for all loops in the block that are traced
    and whose number of steps is not known, those of functions called there too; an inner block replaces it.

    A call in which a loop would go on after `count` steps fails. Eagerly, and for loops that Python runs, the block
    does nothing.

    Args:
        count: the number of steps, 0 or more; None takes the bound away.

    Raises:
        ArgumentTypeError, ArgumentError: something else.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def halved(x):
        ...     with hf.max_iterations(20):
        ...         while x > 1:
        ...             x = x / 2
        ...     return x
        >>> hf.grad(halved)(12.0)
        Tensor(0.0625, dtype=float32)
    """
    whole = isinstance(count, int) and not isinstance(count, bool)
    if count is not None and (not whole or count < 0):
        raise (ArgumentError if whole else ArgumentTypeError)(
            message("max_iterations: takes a count of steps", got=f"max_iterations({count!r})",
                    hint="Pass an integer from 0 on.")
        )  # fmt: skip
    token = LIMIT.set(count)
    try:
        yield
    finally:
        LIMIT.reset(token)

"""`hf.max_iterations`: a bound on the steps of Python loops in a trace."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message

LIMIT: ContextVar[int | None] = ContextVar("max_iterations", default=None)
"""The largest number of steps of the loops that are being traced; None if there is no bound."""


@contextmanager
def max_iterations(count: int | None) -> Generator[None]:
    """Bound the number of steps of a `while` on tensors, or a `for` over ``range(tensor)``.

    Gradients through such a loop in a compiled function need a bound, since XLA must know how much to keep. It
    allocates memory for `count` steps, but runs only the steps that are needed. The bound holds for all traced loops
    with an unknown number of steps in the block, including those in called functions; an inner block replaces it.

    A call fails if a loop needs more than `count` steps. In eager code, and for loops that Python runs, the block has
    no effect.

    Args:
        count: the number of steps, 0 or more; None removes the bound.

    Raises:
        ArgumentTypeError, ArgumentError: if `count` is anything else.

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
        )
    token = LIMIT.set(count)
    try:
        yield
    finally:
        LIMIT.reset(token)

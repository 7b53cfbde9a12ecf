"""`hf.config`: the switches that change how every compiled function runs."""

from __future__ import annotations

from typing import Self


class _State:
    eager: bool = False


STATE = _State()


class run_eagerly:  # noqa: N801 (used like a function: a call, or a context manager)
    """Run compiled functions op by op, as if they were not decorated: for debugging.

    Calling it sets the switch at once, for the whole process; as a context manager it is set back at the end.

    Args:
        flag: whether to run eagerly.

    Example:
        >>> import hybridflow as hf
        >>> f = hf.compile(lambda x: x + 1)
        >>> with hf.config.run_eagerly():
        ...     f(hf.asarray(1.0)).item(), f.trace_count
        (2.0, 0)
    """

    def __init__(self, flag: bool = True) -> None:
        self._before = STATE.eager
        STATE.eager = bool(flag)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        STATE.eager = self._before

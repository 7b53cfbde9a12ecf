"""`hf.config`: the switches that change how every compiled function runs."""

from __future__ import annotations

from typing import Self

from hybridflow.core.settings import SETTINGS


class _Switch:
    """A setting that is changed by a call, and set back at the end of a ``with`` block of it."""

    name: str

    def __init__(self, flag: bool = True) -> None:
        self._before: bool = getattr(SETTINGS, self.name)
        SETTINGS.set(self.name, bool(flag))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        SETTINGS.set(self.name, self._before)


class run_eagerly(_Switch):  # noqa: N801 (used like a function: a call, or a context manager)
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

    name = "eager"


class checks(_Switch):  # noqa: N801
    """Keep checks in compiled functions, or take them out: of indices, labels, ``hf.debugging.check`` and asserts.

    Without them a compiled call does not look at its values, and what comes of an index out of range is unspecified.
    The switch is part of a trace's key. Eager code checks always. Used as `run_eagerly` is.

    Args:
        flag: whether to check.

    Example:
        >>> import hybridflow as hf
        >>> f = hf.compile(lambda x, i: x[i])
        >>> with hf.config.checks(False):
        ...     f(hf.asarray([1.0, 2.0]), hf.asarray(1)).item()
        2.0
    """

    name = "checks"


class full_tracebacks(_Switch):  # noqa: N801
    """Show hybridflow's own lines in the tracebacks of compiled calls, for those who work on it.

    Used as `run_eagerly` is.

    Args:
        flag: whether to show them.
    """

    name = "full_tracebacks"

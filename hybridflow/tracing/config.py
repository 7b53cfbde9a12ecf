"""`hf.config`: the switches that change how everything runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self, cast

from hybridflow.backend.parallel import POOL
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, message
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


class cache:  # noqa: N801
    """Choose the store of executables on disk, from which later processes load what was compiled before.

    By default it is ``hybridflow`` in the user's directory for caches (``$XDG_CACHE_HOME`` or ``~/.cache``;
    ``~/Library/Caches`` on macOS), or what the environment variable ``HYBRIDFLOW_CACHE_DIR`` says: a directory, or
    ``off``. It may have 2 GiB, or as many bytes as ``HYBRIDFLOW_CACHE_BYTES`` says (``500MB``, for example); what was
    used longest ago makes room. What is loaded is code that runs, so only a directory that nobody else can write to is
    used.

    Used as `run_eagerly` is.

    Args:
        where: a directory, which is made if needed; False for no store; True for the default one.
        max_bytes: how large it may become; as it is by default if not given.

    Raises:
        ArgumentTypeError: another `where`.
        ArgumentError: a negative `max_bytes`.

    Example:
        >>> import hybridflow as hf
        >>> with hf.config.cache(False):
        ...     f = hf.compile(lambda x: x + 1)
        ...     f(hf.asarray(1.0)).item()
        2.0
    """

    def __init__(self, where: str | os.PathLike[str] | bool = True, *, max_bytes: int | None = None) -> None:
        if not isinstance(cast(object, where), str | os.PathLike | bool) or where == "":
            raise ArgumentTypeError(
                message("cache: where is a directory, True or False", got=repr(where), hint="Pass a path.")
            )
        if max_bytes is not None and max_bytes < 0:
            raise ArgumentError(message(f"cache: max_bytes={max_bytes}, which is less than 0"))
        self._before = SETTINGS.cache_dir, SETTINGS.cache_bytes
        SETTINGS.set("cache_dir", where if isinstance(where, bool) else Path(where).expanduser().absolute())
        SETTINGS.set("cache_bytes", max_bytes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        directory, size = self._before
        SETTINGS.set("cache_dir", directory)
        SETTINGS.set("cache_bytes", size)


class threads:  # noqa: N801
    """Choose how many threads share an eager operation on a large array, half a million elements and more.

    By default they are as many as the cores that the process may run on, or fewer if ``OMP_NUM_THREADS`` says so. No
    result depends on it. XLA and NumPy's BLAS, which adds up large sums, have threads of their own. Used as
    `run_eagerly` is.

    Args:
        count: how many; 1 for the calling one alone.

    Raises:
        ArgumentTypeError: a count that is no integer.
        ArgumentError: a count below 1.

    Example:
        >>> import hybridflow as hf
        >>> with hf.config.threads(1):
        ...     hf.sum(hf.ones((1000, 1000))).item()
        1000000.0
    """

    def __init__(self, count: int) -> None:
        if type(cast(object, count)) is not int:
            raise ArgumentTypeError(message("threads: count is an integer", got=repr(count), hint="Pass 1 or more."))
        if count < 1:
            raise ArgumentError(message(f"threads: count={count}, which is less than 1", hint="Pass 1 or more."))
        self._before = POOL.threads
        POOL.threads = count

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        POOL.threads = self._before

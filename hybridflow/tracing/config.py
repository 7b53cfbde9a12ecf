"""`hf.config`: the switches that change how everything runs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self, cast

from hybridflow.backend.parallel import POOL
from hybridflow.core.context import context_now
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError
from hybridflow.core.node import format_where, user_place
from hybridflow.core.settings import SETTINGS, check_every


class _Setting:
    """The base class: a call changes a setting of the process; as a context manager, it is restored at the end."""

    def __new__(cls, *_: Any, **__: Any) -> Self:
        context = context_now()
        if context is not None and context.tracer is not None:
            raise TraceError(f"{cls.__name__}: a compiled function cannot change a setting of the process",
                             got=f"hf.config.{cls.__name__}(...) at {format_where(user_place(2))}",
                             hint="Change it around the call of the compiled function.")
        return super().__new__(cls)

    def __enter__(self) -> Self:
        return self


class _Switch(_Setting):
    name: str

    def __init__(self, flag: bool = True) -> None:
        self._before: bool = getattr(SETTINGS, self.name)
        SETTINGS.set(self.name, bool(flag))

    def __exit__(self, *_: object) -> None:
        SETTINGS.set(self.name, self._before)


class run_eagerly(_Switch):  # noqa: N801 (used like a function: a call, or a context manager)
    """Run compiled functions op by op, as if they were not decorated: for debugging.

    A call sets the switch at once, for the whole process. As a context manager, it restores the switch at the end.

    Args:
        flag: whether to run eagerly.

    Raises:
        TraceError: in a compiled function, as for all settings here.

    Example:
        >>> import hybridflow as hf
        >>> f = hf.compile(lambda x: x + 1)
        >>> with hf.config.run_eagerly():
        ...     f(hf.asarray(1.0)).item(), f.trace_count
        (2.0, 0)
    """

    name = "eager"


class checks(_Switch):  # noqa: N801
    """Keep or remove the checks in compiled functions: of indices, labels, ``hf.debugging.check`` and asserts.

    Without checks, the result of an index out of range is unspecified. The switch is part of a trace's key. Eager code
    always checks. It is used like `run_eagerly`.

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


class verify(_Setting):  # noqa: N801
    """Run every so many calls of each compiled function eagerly too, and raise if the results differ.

    A verified call runs compiled. Then its Python function runs from the same state, and everything is set back to what
    the compiled call left: Variables, random numbers, and Python's state (attributes, lists, globals, closures). The
    results, the assigned Variables and the changes of Python's state are compared as `hf.compare` does. A call that
    differs raises, and changes nothing. The error names the first operation that differs, its line, both values and the
    number of the call.

    It holds for all threads, and for calls inside `hf.train.fit`, `predict` and `evaluate`. Each compiled function
    counts its own calls, from when verifying was turned on. ``hf.compile(verify=...)`` chooses for one function. The
    environment variable ``HYBRIDFLOW_VERIFY=100`` turns it on for a program. It is used like `run_eagerly`, and part of
    no trace's key.

    Some calls are left out, and ``fn.explain()`` says why: those that `hf.print` or call Python, read what cannot be
    watched (iterators, clocks), create Variables, are profiled or observed, or run on the devices of several
    processes. Python's own ``print``, and what else cannot be undone, happens once more in a verified call. Gradients
    that a tape outside of the function asks for are not compared. A loaded artifact has no Python function: its graph
    is run op by op instead.

    Args:
        every: 1 verifies every call, 100 the calls 100, 200, ...; None turns it off.

    Raises:
        ArgumentTypeError: `every` is no integer.
        ArgumentError: it is below 1.

    Example:
        >>> import hybridflow as hf
        >>> @hf.compile
        ... def f(x):
        ...     return x * (2.0 if hf.is_tracing() else 3.0)
        >>> with hf.config.verify(every=1):
        ...     f(hf.asarray([1.0, 2.0]))
        Traceback (most recent call last):
          ...
        hybridflow.core.errors.ParityError: f: call 1 is not the same eager and compiled
          ...
    """

    def __init__(self, every: int | None = 100) -> None:
        self._before = SETTINGS.verify
        SETTINGS.set("verify", None if every is None else check_every("verify", every))

    def __exit__(self, *_: object) -> None:
        SETTINGS.set("verify", self._before)


class matmul_precision(_Setting):  # noqa: N801
    """Choose how exactly accelerators multiply the matrices of float32, in products and convolutions.

    Units for matrices round factors before they multiply them. On a CPU the choice has no effect: factors are not
    rounded there, in eager and in compiled code. It is part of a trace's key and used like `run_eagerly`. Linear
    algebra (`hf.linalg`) always has the highest precision.

    Args:
        name: ``"highest"``, the default: float32. ``"high"``: about 16 bits, such as three products of bfloat16 or
            TF32. ``"default"``: the fastest of the device, such as TF32 (10 bits) on recent GPUs of NVIDIA, or
            bfloat16 (7 bits) on TPUs.

    Raises:
        ArgumentError: another name.

    Example:
        >>> import hybridflow as hf
        >>> with hf.config.matmul_precision("default"):
        ...     (hf.ones((2, 3)) @ hf.ones((3, 2))).shape
        (2, 2)
    """

    def __init__(self, name: str = "highest") -> None:
        names = ("highest", "high", "default")
        if name not in names:
            raise ArgumentError(f"matmul_precision: {name!r} is not one of {', '.join(names)}",
                                hint="TF32 is 'default' on GPUs that have it.")
        self._before = SETTINGS.matmul_precision
        SETTINGS.set("matmul_precision", name)

    def __exit__(self, *_: object) -> None:
        SETTINGS.set("matmul_precision", self._before)


class full_tracebacks(_Switch):  # noqa: N801
    """Show hybridflow's own lines in tracebacks, for work on hybridflow itself.

    It is used like `run_eagerly`.

    Args:
        flag: whether to show them.
    """

    name = "full_tracebacks"


class cache(_Setting):  # noqa: N801
    """Choose the store on disk from which later processes load executables that were compiled before.

    The default is ``hybridflow`` in the user's cache directory (``$XDG_CACHE_HOME`` or ``~/.cache``;
    ``~/Library/Caches`` on macOS). The environment variable ``HYBRIDFLOW_CACHE_DIR`` overrides it with a directory or
    ``off``. The store may grow to 2 GiB, or to the size in ``HYBRIDFLOW_CACHE_BYTES`` (such as ``500MB``); the least
    recently used executables make room. Executables are code, so the store is used only if nobody else can write to
    its directory.

    It is used like `run_eagerly`.

    Args:
        where: a directory, which is created if needed; False for no store; True for the default one.
        max_bytes: the largest size of the store; the default size if not given.

    Raises:
        ArgumentTypeError: `where` is neither a path nor a bool.
        ArgumentError: `max_bytes` is negative.

    Example:
        >>> import hybridflow as hf
        >>> with hf.config.cache(False):
        ...     f = hf.compile(lambda x: x + 1)
        ...     f(hf.asarray(1.0)).item()
        2.0
    """

    def __init__(self, where: str | os.PathLike[str] | bool = True, *, max_bytes: int | None = None) -> None:
        if not isinstance(cast(object, where), str | os.PathLike | bool) or where == "":
            raise ArgumentTypeError("cache: where is a directory, True or False", got=repr(where), hint="Pass a path.")
        if max_bytes is not None and max_bytes < 0:
            raise ArgumentError(f"cache: max_bytes={max_bytes}, which is less than 0")
        self._before = SETTINGS.cache_dir, SETTINGS.cache_bytes
        SETTINGS.set("cache_dir", where if isinstance(where, bool) else Path(where).expanduser().absolute())
        SETTINGS.set("cache_bytes", max_bytes)

    def __exit__(self, *_: object) -> None:
        directory, size = self._before
        SETTINGS.set("cache_dir", directory)
        SETTINGS.set("cache_bytes", size)


class threads(_Setting):  # noqa: N801
    """Choose how many threads share an eager operation on a large array (half a million elements or more).

    The default is the number of cores that the process may use, or fewer if ``OMP_NUM_THREADS`` says so. Results do
    not depend on it. XLA, and NumPy's BLAS, which computes large sums, have their own threads. It is used like
    `run_eagerly`.

    Args:
        count: the number of threads; 1 for only the calling thread.

    Raises:
        ArgumentTypeError: `count` is no integer.
        ArgumentError: `count` is below 1.

    Example:
        >>> import hybridflow as hf
        >>> with hf.config.threads(1):
        ...     hf.sum(hf.ones((1000, 1000))).item()
        1000000.0
    """

    def __init__(self, count: int) -> None:
        if type(cast(object, count)) is not int:
            raise ArgumentTypeError("threads: count is an integer", got=repr(count), hint="Pass 1 or more.")
        if count < 1:
            raise ArgumentError(f"threads: count={count}, which is less than 1", hint="Pass 1 or more.")
        self._before = POOL.threads
        POOL.threads = count

    def __exit__(self, *_: object) -> None:
        POOL.threads = self._before


__all__ = ["cache", "checks", "full_tracebacks", "matmul_precision", "run_eagerly", "threads", "verify"]

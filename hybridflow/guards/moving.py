"""What gives something else at every call: iterators, random numbers, clocks, streams."""

from __future__ import annotations

import builtins
import datetime
import io
import random
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from hybridflow.core.errors import EffectWarning, message
from hybridflow.core.node import Where, format_where, where_file_line


class Known(Protocol):
    """What is known of objects: see `Observations`."""

    def is_outside(self, obj: Any) -> bool:
        """Whether a value is one that was there before the trace."""
        ...

    def is_made_here(self, obj: Any) -> bool:
        """Whether the trace made a value."""
        ...


_WARNED: set[tuple[str, int]] = set()
"""The lines that have been warned about."""


def warn_once(label: str, why: str, where: Where | None) -> None:
    """Say once for each line that a function is traced anew at every call.

    Args:
        label: the function's name.
        why: what it reads.
        where: the place that reads it.
    """
    file, line = where_file_line(where) or (__file__, 0)
    if (file, line) in _WARNED:
        return
    _WARNED.add((file, line))
    text = message(
        f"compile: {label} is traced anew at every call, for what it reads cannot be watched",
        got=f"{why} at {format_where(where)}",
        hint="Read it before the call and pass what was read as an argument; draw random numbers with hf.random.",
    )
    warnings.warn_explicit(text, EffectWarning, file, line)


def makes_random_source(function: Any) -> bool:
    """Whether a function makes a source of random numbers, without a seed one that no other call has."""
    return function is np.random.default_rng or function is np.random.RandomState or function is random.Random


def moving(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: Known
) -> str | None:
    """Return the name of a function whose result is another one at every call, or that changes what a stream has."""
    owner = getattr(function, "__self__", None)
    name = getattr(function, "__name__", "?")
    if function is builtins.next:
        return "next()" if args and found.is_outside(args[0]) else None
    if isinstance(owner, random.Random | np.random.Generator | np.random.RandomState):
        module = "random." if isinstance(owner, random.Random) else "numpy.random's "
        return None if name == "seed" or found.is_made_here(owner) else f"{module}{name}()"
    stream = kwargs.get("file") if function is builtins.print else owner
    if isinstance(stream, io.IOBase) and stream not in (sys.stdout, sys.stderr) and found.is_outside(stream):
        return f"{type(stream).__name__}.{name}()" if stream is owner else f"print(file={type(stream).__name__})"
    if makes_random_source(function) and (not args or args[0] is None):
        return f"{name}() without a seed"
    if owner is datetime.datetime and name in ("now", "utcnow", "today"):
        return f"datetime.{name}()"
    if owner is time and name not in ("sleep", "get_clock_info"):
        return f"time.{name}()"
    return f"{name}()" if function in (builtins.input, builtins.open) else None

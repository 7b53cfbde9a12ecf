"""What a call of a compiled function runs first: written per instance, without a frame of Python before it."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hybridflow.tracing.tracebacks import trimmed


class Entry:
    """An object whose calls run what its own `__call__` is at the time.

    Python looks for ``__call__`` on the type alone. What it finds here is a slot, whose value is the instance's.
    """

    __slots__ = {"__call__": "Run the function, tracing it first if no trace fits the arguments."}


def general_call(function: Any) -> Callable[..., Any]:
    """Return the call that finds or makes a trace for its arguments, by the function's ``_call``.

    The function holds it, so it holds no more than the function's state: the two would wait for the garbage collector.
    """
    reference, kind, state = weakref.ref(function), type(function), function.__dict__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            function = reference()
            if function is None:  # nothing but its bound `__call__` was kept
                function = object.__new__(kind)
                function.__dict__ = state
            return function._call(args, kwargs)
        except Exception as error:
            raise trimmed(error)  # noqa: B904 (it is the same error)

    return call

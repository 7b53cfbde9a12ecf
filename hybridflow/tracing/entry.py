"""`Entry`: lets each compiled function have a ``__call__`` of its own, which Python runs without a frame in between."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from hybridflow.core.tracebacks import trimmed


class Entry:
    """An object whose calls run the current value of its own `__call__`.

    Python looks for ``__call__`` only on the type. There it finds a slot, which holds the instance's function.
    """

    __slots__ = {"__call__": "Run the function, tracing it first if no trace fits the arguments."}


def general_call(function: Any) -> Callable[..., Any]:
    """Return the call that finds or makes a trace for its arguments, by the function's ``_call``.

    It refers to the function's state, not to the function, which refers to it: a cycle would need the garbage
    collector.
    """
    reference, kind, state = weakref.ref(function), type(function), function.__dict__

    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            function = reference()
            if function is None:  # only its bound `__call__` was kept
                function = object.__new__(kind)
                function.__dict__ = state
            return function._call(args, kwargs)
        except Exception as error:
            raise trimmed(error)  # noqa: B904 (it is the same error)

    return call

"""A call that fails where its trace cannot follow it is made again as Python.

A trace knows the straight way through the code. Where a check fails, Python leaves that way: it runs ``finally``,
``except`` and ``__exit__``, which may change Python's state or go on. So the call's changes are undone and Python
decides, unless nothing but the error itself can come of it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow.core.variable import GradientCell
from hybridflow.core.variable_log import VariableLog, logging_variables
from hybridflow.tracing.verification import rerunning


class Undone(Exception):
    """Raised when a call has failed and its changes of Python's state are undone.

    Attributes:
        handled: tells that the call went on as Python, though its trace raised an error.
    """

    def __init__(self, handled: Callable[[], None] | None = None) -> None:
        super().__init__()
        self.handled = handled


class _Before(VariableLog):
    """Remembers the Variables that a call assigns as they were before it."""

    def __init__(self) -> None:
        super().__init__()
        self._assigned: dict[Any, Any] = {}
        self._present: dict[GradientCell, bool] = {}

    def value_of(self, variable: Any, value: Any) -> Any:
        """Return the raw value that the call sees in a Variable."""
        if isinstance(variable, GradientCell):
            self._present.setdefault(variable, variable.present)
        return super().value_of(variable, value)

    def assigned(self, variable: Any, value: Any) -> bool:
        """Note that a Variable is assigned."""
        self._assigned[variable._leaf] = variable
        return super().assigned(variable, value)

    def restore(self) -> None:
        """Set the Variables back."""
        for leaf, variable in self._assigned.items():
            variable.store(self.values[leaf])
        for cell, present in self._present.items():
            cell.present = present


def as_python(call: Callable[[], Any], undone: Undone) -> Any:
    """Make a call as Python; if it raises, Variables are as they were before it."""
    before = _Before()
    try:
        with logging_variables(before), rerunning():
            result = call()
        if undone.handled is not None:
            undone.handled()
    except BaseException:
        before.restore()
        raise
    return result

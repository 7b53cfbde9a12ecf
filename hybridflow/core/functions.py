"""The user's functions as a trace runs them: the conversion of their source, which comes later in the import order."""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any

from hybridflow.core.context import CONTEXT


def _as_it_is(function: Any) -> Any:
    return function


def _no_reason(code: CodeType) -> str | None:
    del code
    return None


class Hooks:
    """What the conversion of source installs here.

    Attributes:
        convert: returns a function's converted form.
        reason: returns why code of a user runs in a trace without being converted, None if it is converted.
    """

    convert: Callable[[Any], Any] = staticmethod(_as_it_is)
    reason: Callable[[CodeType], str | None] = staticmethod(_no_reason)


def as_traced(function: Any) -> Any:
    """Return a user's function as it is to be called now: converted inside a trace, untouched outside."""
    context = CONTEXT.get()
    return function if context is None or context.tracer is None else Hooks.convert(function)

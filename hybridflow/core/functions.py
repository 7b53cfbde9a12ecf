"""The user's functions as a trace runs them: the conversion of their source, which comes later in the import order."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from hybridflow.core.attached import attached
from hybridflow.core.context import context_now
from hybridflow.core.errors import ArgumentTypeError, message

F = TypeVar("F", bound=Callable[..., Any])

KEPT: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that are never converted."""


def as_traced(function: Any) -> Any:
    """Return a user's function as it is to be called now: converted inside a trace, untouched outside."""
    context = context_now()
    return function if context is None or context.tracer is None else attached("converted")(function)


def no_convert(function: F) -> F:
    """Leave a function as it is when a compiled function calls it: its Python control flow is not converted.

    Args:
        function: a Python function.

    Returns:
        The same function.

    Raises:
        ArgumentTypeError: something else than a Python function.

    Example:
        >>> import hybridflow as hf
        >>> @hf.no_convert
        ... def plain(x):
        ...     return x * 2 if hf.is_tracing() else x
        >>> hf.compile(lambda x: plain(x))(1.0).item()
        2.0
    """
    if not isinstance(function, FunctionType):
        raise ArgumentTypeError(
            message(
                f"no_convert: a {type(function).__name__} is no Python function", got=repr(function)[:80],
                hint="Decorate the function itself, below other decorators.",
            )
        )  # fmt: skip
    KEPT.add(function)
    return cast(F, function)


def is_kept(code: CodeType) -> bool:
    """Whether a function of this code is marked with `no_convert`."""
    return any(one.__code__ is code for one in KEPT)

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
LAYERS = "hybridflow.nn.layers."
"""hybridflow's own modules that are to a trace what a user's are: their code is converted, their objects watched."""


def is_own(module: str) -> bool:
    """Whether a module of a name is part of hybridflow, whose state a trace need not watch: not its `LAYERS`."""
    return module.startswith("hybridflow.") and not module.startswith(LAYERS)


def is_layers(module: Any) -> bool:
    """Whether a module of a name is one of `LAYERS`: its functions and globals do not change."""
    return isinstance(module, str) and module.startswith(LAYERS)


class Whole:
    """A base of classes whose objects jax could take apart, but a compiled function gets as they are.

    They are keyed by identity, and what is read of them is guarded, as for objects that jax knows no structure of.
    """

    __slots__ = ()

    exist = False
    """Whether there is such a class: if not, nobody looks for its objects."""

    @property
    def is_whole(self) -> bool:
        """Whether this one is: a structure of tensors that was made of another one is none."""
        raise NotImplementedError


def is_whole(value: Any) -> bool:
    """Whether a compiled function gets a value as it is, though jax could take it apart."""
    return isinstance(value, Whole) and value.is_whole


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

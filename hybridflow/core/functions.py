"""The user's functions as a trace runs them. `attached` gives the conversion, which is imported later than this."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

from hybridflow.core.attached import attached
from hybridflow.core.context import context_now
from hybridflow.core.errors import ArgumentTypeError

F = TypeVar("F", bound=Callable[..., Any])

KEPT: weakref.WeakSet[Any] = weakref.WeakSet()
"""Functions that are never converted."""
LAYERS = ("hybridflow.nn.layers.", "hybridflow.models.")
"""hybridflow's own modules that a trace treats like a user's: it converts their code and watches their objects."""


def is_own(module: str) -> bool:
    """Whether a module, given by name, is a part of hybridflow whose state a trace need not watch (not `LAYERS`)."""
    return module.startswith("hybridflow.") and not module.startswith(LAYERS)


def is_layers(module: Any) -> bool:
    """Whether a module, given by name, is one of `LAYERS`: its functions and globals do not change."""
    return isinstance(module, str) and module.startswith(LAYERS)


class Whole:
    """Base of classes whose objects are pytrees to jax, but which a compiled function takes as they are.

    A compiled function keys them by identity and guards the attributes it reads, as it does for ordinary objects.
    """

    __slots__ = ()

    exist = False
    """Whether there is any such class; if not, the search for its objects is skipped."""

    @property
    def is_whole(self) -> bool:
        """Whether this object is taken as it is; a structure of tensors that was mapped from another is not."""
        raise NotImplementedError


def is_whole(value: Any) -> bool:
    """Whether a compiled function takes a value as it is, although it is a pytree to jax."""
    return isinstance(value, Whole) and value.is_whole


def is_of_users(obj: Any, name: str) -> bool:
    """Whether an attribute of an object of hybridflow, there or not, is one that users set.

    A class whose objects have private attributes of users too names its own in ``internal_attributes``.
    """
    internal = getattr(type(obj), "internal_attributes", None)
    return not hasattr(type(obj), name) and (name[:1] != "_" if internal is None else name not in internal)


def as_traced(function: Any) -> Any:
    """Return a user's callable, converted and watched if a trace is running.

    It is the one way in which hybridflow calls what users gave it while a function is traced: models, losses, metrics,
    hooks, functions to transform. A call without it would be a read that no guard sees.
    """
    context = context_now()
    return function if context is None or context.tracer is None else attached("handed_in")(function)


def as_body(function: Any) -> Any:
    """Return a user's callable as `as_traced` does, for a body that is traced whether or not a call runs it.

    The callable raises a MutationError if what existed before it has changed in a way that no trace sees.
    """
    context = context_now()
    traced = as_traced(function)
    known = context is None or context.tracer is None or is_own(str(getattr(function, "__module__", "")))
    return traced if known else attached("changing_nothing")(traced)


def no_convert(function: F) -> F:
    """Mark a function whose Python control flow is not converted when a compiled function calls it.

    Args:
        function: a Python function.

    Returns:
        The same function.

    Raises:
        ArgumentTypeError: if it is not a Python function.

    Example:
        >>> import hybridflow as hf
        >>> @hf.no_convert
        ... def plain(x):
        ...     return x * 2 if hf.is_tracing() else x
        >>> hf.compile(lambda x: plain(x))(1.0)
        2.0
    """
    if not isinstance(function, FunctionType):
        raise ArgumentTypeError(f"no_convert: a {type(function).__name__} is no Python function",
                                got=repr(function)[:80], hint="Decorate the function itself, below other decorators.")
    KEPT.add(function)
    return cast(F, function)


def require_function(name: str, function: object) -> None:
    """Raise if a public function is given something else where it takes a function, such as the result of a call.

    Raises:
        ArgumentTypeError: it cannot be called.
    """
    if not callable(function):
        raise ArgumentTypeError(f"{name}: a {type(function).__name__} is not callable", got=repr(function)[:80],
                                hint="Pass a function: f itself, not the result f(x).")


def decorated(name: str, block: Callable[[], AbstractContextManager[Any]], function: F) -> F:
    """Return a function, or a coroutine function, each call of which runs inside a block of its own.

    Args:
        name: the name of the decorator, for messages.
        block: makes the block.
        function: the function.

    Raises:
        ArgumentTypeError: it cannot be called, or is a generator function.
    """
    if not callable(function):
        raise ArgumentTypeError(f"{name}: a {type(function).__name__} cannot be called", got=repr(function)[:60],
                                hint=f"Decorate a function, or use with hf.{name}(...):")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentTypeError(
            f"{name}: {function.__qualname__} is a generator function, which runs after it was called",
            hint=f"Use with hf.{name}(...): in its body."
        )
    if inspect.iscoroutinefunction(function):

        async def waiting(*args: Any, **kwargs: Any) -> Any:
            with block():
                return await function(*args, **kwargs)

        return cast(F, functools.wraps(function)(waiting))

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with block():
            return function(*args, **kwargs)

    return cast(F, wrapped)


def is_kept(code: CodeType) -> bool:
    """Whether a function with this code is marked with `no_convert`."""
    return any(one.__code__ is code for one in KEPT)

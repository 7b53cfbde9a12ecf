"""Checks of values that a function stores outside itself: values known only to the trace must not get there."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from types import CodeType, FrameType, FunctionType, ModuleType, TracebackType
from typing import Any, NoReturn

import jax
import numpy as np

from hybridflow.core.dims import Dim, NeedsSizes, SizeFloat
from hybridflow.core.errors import MutationError
from hybridflow.core.functions import is_own
from hybridflow.core.held import attributes_of, held_errors
from hybridflow.core.node import format_where, user_place
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.traced_text import TracedText
from hybridflow.core.variable import Variable
from hybridflow.guards.contents import in_sequence, values_of
from hybridflow.guards.guards import CONTAINERS, PLAIN
from hybridflow.ir.variables import ArgumentVariable

_CLOSED = (Tensor, Variable, TracedArray, jax.Array, np.generic, CodeType, FrameType, TracebackType, ModuleType)
"""Types of values that hold no Python numbers of a trace."""
_MOST = 10_000
"""How many objects are looked at: a store shall not wait for a whole data set."""


class NeedsPython(BaseException):
    """Raised when a check fails in the call that is traced, before the code does what cannot be undone.

    Not an `Exception`, so that users' handlers do not catch it. Its cause is the error of the check.
    """


class NeedsGiven(BaseException):
    """Raised when a list or dict among a traced function's arguments is stored outside: it must be the caller's own.

    Not an `Exception`, so that users' handlers do not catch it.
    """


def is_traced(value: Any) -> bool:
    """Whether only the trace knows a value."""
    kind = type(value)
    stands_in = kind in (TracedArray, TracedNumber, StagedNumber, TracedText) or isinstance(value, ArgumentVariable)
    return stands_in or (kind is Tensor and value._value is None)


def holds_traced(value: Any) -> bool:
    """Whether a value is one that only the trace knows, or a container that holds one."""
    pending, seen = [value], set[int]()
    while pending:
        one = pending.pop()
        if is_traced(one):
            return True
        if id(one) in seen:
            continue
        if isinstance(one, CONTAINERS):
            seen.add(id(one))
            pending += values_of(one) if isinstance(one, dict) else in_sequence(one)
        elif isinstance(one, BaseException):
            pending.append(one.args)
    return False


def require_numbers(value: Any, is_known: Callable[[Any], bool]) -> None:
    """Raise if a value that is stored outside is, or holds, a float input or an open size: it must be a number.

    Args:
        value: the value; whatever it holds is looked at, in objects of any kind.
        is_known: whether an object existed before the trace, so that what it holds has been looked at.

    Raises:
        NeedsNumber: the value is a float that is an input, or holds some.
        NeedsSizes: the value is an open size, or holds some.
        NeedsGiven: the value is, or holds, a copy of an argument.
    """
    for one in _reached([value], is_known):
        if type(one) is TracedNumber:
            one.needed()
        if type(one) is Dim or type(one) is SizeFloat:
            raise NeedsSizes


def require_numbers_in(error: BaseException) -> None:
    """Raise if an exception, or one that it comes from, holds a number that is an input, or an open size.

    Raises:
        NeedsNumber, NeedsSizes: as `require_numbers`.
    """
    for one in held_errors(error):
        require_numbers((one.args, attributes_of(one, in_c=True)), lambda _: False)


def _reached(values: Iterable[Any], is_known: Callable[[Any], bool]) -> Iterator[Any]:
    """Return values, and what they hold but for what is held by objects that existed before the trace."""
    seen: dict[int, Any] = {}
    pending = [*values]
    while pending and len(seen) < _MOST:
        one = pending.pop()
        kind = type(one)
        yield one
        if kind in PLAIN or id(one) in seen or issubclass(kind, _CLOSED) or is_own(str(kind.__module__)):
            continue
        seen[id(one)] = one
        if not is_known(one):
            pending += _held_by(one)


def new_inside(value: Any, is_known: Callable[[Any], bool]) -> Iterator[Any]:
    """Return the objects in a value, and itself, that the trace has made and that may change."""
    for one in _reached([value], is_known):
        kind = type(one)
        closed = kind in PLAIN or issubclass(kind, (*_CLOSED, type)) or is_own(str(kind.__module__))
        if not closed and not is_known(one):
            yield one


def _held_by(value: Any) -> Iterable[Any]:
    """Return what an object holds, in attributes, items, slots or in C."""
    if isinstance(value, ContextVar):
        return (value.get(None),)
    if isinstance(value, np.ndarray):
        return value.flat if value.dtype.hasobject else ()
    if isinstance(value, FunctionType):
        return value.__closure__, value.__defaults__, value.__kwdefaults__, value.__dict__
    if isinstance(value, type):
        return vars(value).values()
    held = gc.get_referents(value)
    return [*held, value.__dict__] if isinstance(value, threading.local) else held


def refuse_nested(label: str, what: str) -> NoReturn:
    """Raise the error of a change of Python state in the body of a branch or loop.

    Args:
        label: the name of the compiled function.
        what: what is changed.

    Raises:
        MutationError: always.
    """
    raise MutationError(
        f"compile: {label} changes Python state in a branch or loop on tensors, a checkpoint or a custom "
        "gradient, whose body is traced by itself", got=f"{what} at {format_where(user_place(5))}",
        hint="Return the new value from the body or carry it through the loop; keep state in an hf.Variable."
    )


def require_storable(label: str, what: str, value: Any) -> None:
    """Raise if a value that is stored outside the function means something only while it is traced.

    Args:
        label: the name of the compiled function.
        what: where the value is stored.
        value: the value.

    Raises:
        MutationError: it is, or holds, a traced tensor.
    """
    if holds_traced(value):
        raise _stored(label, f"{what} at {format_where(user_place(5))}")


def require_none_inside(label: str, where: str | None, holder: Any, is_known: Callable[[Any], bool]) -> None:
    """Raise if an object that was changed outside of the function holds a traced tensor, however deep.

    Args:
        label: the name of the compiled function.
        where: the line of the change, if it is known.
        holder: the object.
        is_known: see `require_numbers`.

    Raises:
        MutationError: it holds a tensor of the trace.
    """
    if any(map(is_traced, _reached(_held_by(holder), is_known))):
        raise _stored(label, f"in a {type(holder).__name__}" + (f", at {where}" if where else ""))


def _stored(label: str, what: str) -> MutationError:
    return MutationError(f"compile: {label} stores a traced tensor outside of itself, where it has no value", got=what,
                         hint="Return it, or keep it in an hf.Variable and assign that.")

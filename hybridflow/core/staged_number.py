"""`StagedNumber`: in a trace, a Python number whose value depends on a branch or loop on tensors.

In eager code this is a Python number: it takes the dtype of the tensors it meets, and arithmetic among such numbers
uses doubles and integers of any length. In a trace, a float64 or int64 tensor of shape () holds it. Arithmetic on
these tensors rounds as Python does; an integer that does not fit 64 bits makes the call fail.
The operators are in `hybridflow.convert.staged`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from hybridflow.core.attached import attached
from hybridflow.core.context import CONTEXT, context_now
from hybridflow.core.dims import DECIDING
from hybridflow.core.dtypes import DType, default_dtype, weak_dtype
from hybridflow.core.errors import DTypeError, TracedValueError
from hybridflow.core.functions import is_own
from hybridflow.core.node import format_where

Kinds = frozenset[type]
"""The types that a number may have (bool, int, float); several if the type depends on the branch that a call takes."""

BOOL: Kinds = frozenset((bool,))
INT: Kinds = frozenset((int,))
FLOAT: Kinds = frozenset((float,))
LARGEST = 1 << 62
"""The largest magnitude of a staged integer."""
_EXAMPLES: dict[type, Any] = {bool: False, int: 0, float: 0.0}


class StagedNumber:
    """A bool, int or float whose value each call decides; `isinstance` takes it for one.

    Attributes:
        kinds: the types it may have.
        raw: the tensor that holds it: bool, int32, int64, or float64.
        limit: the largest magnitude that the integer can have.
        origin: why it may have several types, for messages.
        where: the place in the user's code that made it.
    """

    __slots__ = ("kinds", "limit", "origin", "raw", "where")

    if TYPE_CHECKING:
        tensor: Callable[..., Any]
        truth: Callable[[], Any]

        def __add__(self, other: Any) -> Any: ...

        def __truediv__(self, other: Any) -> Any: ...

    __array_priority__ = 1000

    def __init__(self, kinds: Kinds, raw: Any, limit: int, origin: str | None, where: Any) -> None:
        self.kinds = kinds
        self.raw = raw
        self.limit = limit
        self.origin = origin
        self.where = where

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Its type, for `isinstance`; hybridflow itself gets the widest of several.

        Raises:
            DTypeError: it may have several types, and code of others asks.
        """
        if len(self.kinds) > 1 and not _is_asked_by_us():
            raise several_kinds(self, "is asked for its type")
        return widest(self.kinds)

    def examples(self) -> list[Any]:
        """Return a Python number of each type."""
        return [_EXAMPLES[kind] for kind in self.kinds]

    def __copy__(self) -> StagedNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StagedNumber:
        return self


DECIDING.add(StagedNumber)


def widest(kinds: Kinds) -> type:
    """Return the type that can hold numbers of all the types."""
    return float if float in kinds else int if int in kinds else bool


def _is_asked_by_us() -> bool:
    """Whether the caller's caller is code of hybridflow or jax, which knows what a stand-in is."""
    frame = sys._getframe(2)
    if frame.f_globals.get("__name__") == "abc":  # the `isinstance` of an abstract class
        frame = frame.f_back or frame
    module = str(frame.f_globals.get("__name__"))
    return is_own(module) or module.partition(".")[0] == "jax"


Refusal = TypeVar("Refusal", bound=Exception)


def refused(error: Refusal) -> Refusal:
    """Return an error, and make the trace end with it even if code catches it or puts another in its place.

    Eager code raises no such error, so what a handler does next would be a wrong way.
    """
    context = context_now()
    if context is not None and context.tracer is not None and not _TRIED.get():
        context.tracer.refused(error)
    return error


_TRIED: ContextVar[bool] = ContextVar("tried by hybridflow", default=False)


FOR_MESSAGES: ContextVar[bool] = ContextVar("text for a message of hybridflow", default=False)
"""Whether `text_for_messages` makes a text: stand-ins for numbers then show the numbers of the traced call."""


@contextmanager
def tried() -> Generator[None]:
    """Run what hybridflow tries by itself: a trace goes on if that fails."""
    token = _TRIED.set(True)
    try:
        yield
    finally:
        _TRIED.reset(token)


def text_for_messages(value: Any) -> str:
    """Return the ``repr`` of a value for a message of hybridflow; what it reads is no read of a trace."""
    token, inside = CONTEXT.set(None), FOR_MESSAGES.set(True)
    try:
        return repr(value)
    finally:
        CONTEXT.reset(token)
        FOR_MESSAGES.reset(inside)


def used_at() -> str:
    """Return the user's current line as text, whatever library it called."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        generated = frame.f_code.co_filename == "<string>" and frame.f_code.co_name[:2] == "__"  # by dataclasses
        if not generated and attached("is_users_file")(frame.f_code.co_filename):
            break
        frame = frame.f_back
    return "used at an unknown place" if frame is None else f"used at {frame.f_code.co_filename}:{frame.f_lineno}"


def _places(number: StagedNumber) -> str:
    return f"made at {format_where(number.where) or 'an unknown place'}, {used_at()}"


def kinds_text(number: StagedNumber) -> str:
    """Return the names of the types that a number may have."""
    return " or ".join(sorted(kind.__name__ for kind in number.kinds))


def several_kinds(number: StagedNumber, what: str) -> DTypeError:
    """Return the error for a number that may have several types, where the type matters."""
    return refused(
        DTypeError(f"a Python number that is {kinds_text(number)}, as a tensor decides, {what}",
                   got=f"{_places(number)}" + ("" if number.origin is None else f": {number.origin}"),
                   hint="Make it a float (or an int) on every way, for example 1.0 in place of 1.")
    )


def needed(number: StagedNumber, wanted: str) -> Any:
    """Raise an error: the code needs the number's value, which is not known during a trace.

    Raises:
        TracedValueError: always.
    """
    raise TracedValueError(
        f"{wanted}: a Python number that a branch or loop on tensors decides has no value while the "
        "function is being compiled", got=f"{kinds_text(number)} {_places(number)}",
        hint="Arithmetic, comparisons, int(n), math functions, x[n], range(n) and print(n) take it; "
             "shapes, texts, dict keys and libraries do not. Return it, and go on outside of the compiled "
             "function; or make it a tensor, hf.asarray(n)."
    )


def weak_dtype_of(number: Any, dtype: DType) -> DType:
    """Return `weak_dtype` of any Python number, staged ones included."""
    if type(number) is not StagedNumber:
        return weak_dtype(number, dtype)
    dtypes = {weak_dtype(one, dtype) for one in number.examples()}
    if len(dtypes) > 1:
        raise several_kinds(number, f"meets {dtype}, where they give different dtypes")
    return dtypes.pop()


def default_dtype_of(number: Any) -> DType:
    """Return `default_dtype` of any Python number, staged ones included."""
    if type(number) is not StagedNumber:
        return default_dtype(number)
    dtypes = {default_dtype(one) for one in number.examples()}
    if len(dtypes) > 1:
        raise several_kinds(number, "becomes a tensor, of which they give different dtypes")
    return dtypes.pop()

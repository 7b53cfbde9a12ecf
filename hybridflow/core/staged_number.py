"""`StagedNumber`: a Python number that a branch or loop on tensors decides, while the function is traced.

Eagerly it is a Python number: it takes the dtype of the tensors that it meets, and arithmetic among such numbers is
done in doubles and in integers of any length. In a trace a tensor of shape () holds it, float64 or int64, and the
arithmetic is done on these, so that each call rounds as Python does; integers that leave 64 bits fail the call.
The operators are in `hybridflow.convert.staged`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hybridflow.core.dims import DECIDING
from hybridflow.core.dtypes import DType, default_dtype, weak_dtype
from hybridflow.core.errors import DTypeError, message
from hybridflow.core.node import format_where

Kinds = frozenset[type]
"""Which of bool, int and float a number may be; more than one if that depends on the way that a call takes."""

BOOL: Kinds = frozenset((bool,))
INT: Kinds = frozenset((int,))
FLOAT: Kinds = frozenset((float,))
LARGEST = 1 << 62
"""The largest magnitude of a staged integer."""
_EXAMPLES: dict[type, Any] = {bool: False, int: 0, float: 0.0}


class StagedNumber:
    """A bool, int or float that each call has its own value of; to `isinstance` it is one.

    Attributes:
        kinds: what it may be.
        raw: the tensor that holds it: bool, int32, int64, or float64.
        limit: the largest magnitude that an integer can have here.
        origin: what says why it may be of several kinds, for messages.
        where: the place in the user's code that made it.
    """

    __slots__ = ("kinds", "limit", "origin", "raw", "where")

    if TYPE_CHECKING:
        tensor: Callable[..., Any]
        truth: Callable[[], Any]

        def __add__(self, other: Any) -> Any: ...

        def __truediv__(self, other: Any) -> Any: ...

    __array_priority__ = 1000
    __array_ufunc__ = None

    def __init__(self, kinds: Kinds, raw: Any, limit: int, origin: str | None, where: Any) -> None:
        self.kinds = kinds
        self.raw = raw
        self.limit = limit
        self.origin = origin
        self.where = where

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """The widest kind, for `isinstance`."""
        return widest(self.kinds)

    def examples(self) -> list[Any]:
        """Return a Python number of each kind."""
        return [_EXAMPLES[kind] for kind in self.kinds]

    def __copy__(self) -> StagedNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> StagedNumber:
        return self


DECIDING.add(StagedNumber)


def widest(kinds: Kinds) -> type:
    """Return the kind that holds the numbers of all kinds."""
    return float if float in kinds else int if int in kinds else bool


def several_kinds(number: StagedNumber, what: str) -> DTypeError:
    """Return the error for a number of which it matters here whether it is an int or a float."""
    names = " or ".join(sorted(kind.__name__ for kind in number.kinds))
    return DTypeError(
        message(f"a Python number that is {names}, as a tensor decides, {what}",
                got=number.origin or format_where(number.where),
                hint="Make it a float (or an int) on every way, for example 1.0 in place of 1.")
    )  # fmt: skip


def weak_dtype_of(number: Any, dtype: DType) -> DType:
    """Return the dtype in which any Python number meets a tensor of `dtype`; see `weak_dtype`."""
    if type(number) is not StagedNumber:
        return weak_dtype(number, dtype)
    found = {weak_dtype(one, dtype) for one in number.examples()}
    if len(found) > 1:
        raise several_kinds(number, f"meets {dtype}, where they give different dtypes")
    return found.pop()


def default_dtype_of(number: Any) -> DType:
    """Return the dtype of any Python number on its own; see `default_dtype`."""
    if type(number) is not StagedNumber:
        return default_dtype(number)
    found = {default_dtype(one) for one in number.examples()}
    if len(found) > 1:
        raise several_kinds(number, "becomes a tensor, of which they give different dtypes")
    return found.pop()

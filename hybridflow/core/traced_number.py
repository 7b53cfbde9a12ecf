"""`TracedNumber`: in a trace, a Python float or int that each call decides.

A trace must not depend on the number, so that one trace serves a whole learning-rate schedule, or all steps of a
counter. Arithmetic among Python numbers is kept as a program, which every call runs again in Python. A number that
meets a tensor becomes an input of shape (). Code that asks for the number itself raises `NeedsNumber`; the function is
then traced again with the number in its signature.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hybridflow.core.attached import attached
from hybridflow.core.dtypes import DType, float32, int32, kind_of
from hybridflow.core.errors import LeakError, NumberRangeError, message
from hybridflow.core.node import Where, user_place
from hybridflow.core.staged_number import StagedNumber

OF_NUMBERS = {kind: frozenset(dir(kind)) for kind in (bool, int, float)}
"""The names of the attributes of Python's numbers; `hasattr` of the class would count those of `type` too."""


class NeedsNumber(BaseException):
    """Raised when traced code asks for the value of numbers that are inputs.

    Not an `Exception`, so that users' handlers do not catch it.

    Attributes:
        arguments: the positions, among the numbers of a call, of those that the number comes from.
        where: the user's line.
    """

    def __init__(self, arguments: frozenset[int]) -> None:
        super().__init__(arguments)
        self.arguments = arguments
        self.where = user_place(2)


class Step(NamedTuple):
    """One operation on Python numbers; operands that are `TracedNumber` are earlier steps."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    where: Where | None


class NumberTracer(Protocol):
    """The part of a tracer that its traced numbers use."""

    @property
    def alive(self) -> bool:
        """Whether the trace is still being made."""
        ...

    def number_tensor(self, number: TracedNumber, dtype: DType) -> Any:
        """Return the tensor of shape () that holds the number in each call."""
        ...

    def needs_numbers(self, arguments: frozenset[int]) -> None:
        """Raise `NeedsNumber` for inputs; the trace is discarded even if user code catches that."""
        ...

    def may_fail(self, number: TracedNumber) -> None:
        """Make each call compute the number even if nothing uses it: it may raise an error, as in eager code."""
        ...


class TracedNumber:
    """A float or int whose value each call decides. `isinstance` takes it for one; `type` returns `TracedNumber`."""

    __slots__ = ("_arguments", "_kind", "_step", "_tracer", "never_fails")

    __array_priority__ = 1000

    def __init__(
        self, tracer: NumberTracer, kind: type, step: Step | int, arguments: frozenset[int], *, never_fails: bool = True
    ) -> None:
        self.never_fails = never_fails
        """Whether no operation that makes the number can fail, but where an int is too large to become a float."""
        self._tracer = tracer
        self._kind = kind
        self._step = step
        self._arguments = arguments

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`float` or `int`, for `isinstance`. C code looks at the type itself, so it asks for the number instead."""
        return self._kind

    @property
    def step(self) -> Step | int:
        """The operation that makes the number, or its position among the numbers of a call."""
        return self._step

    @property
    def arguments(self) -> frozenset[int]:
        """The positions, among the numbers of a call, of those that this number comes from."""
        return self._arguments

    def tensor(self, dtype: DType | None = None) -> Any:
        """Return the number as a tensor of a dtype; by default of float32 or int32."""
        dtype = dtype or _DEFAULTS[self._kind]
        if kind_of(dtype) not in _HOLD[self._kind] or not self._tracer.alive:
            self.needed()
        if self._kind is int and attached("may_be_handled")(NumberRangeError):
            self.needed()  # the dtype may not hold it, and what the code does next depends on that
        return self._tracer.number_tensor(self, dtype)

    def needed(self, *_: Any, **__: Any) -> Any:
        """Ask for the number itself.

        Raises:
            NeedsNumber: while the function is traced.
            LeakError: later.
        """
        if self._tracer.alive:
            self._tracer.needs_numbers(self._arguments)
        number = "an int" if self._kind is int else "a float"
        raise LeakError(
            message(f"{number} argument of a compiled function was kept while it was traced, and used outside of it",
                    hint="Return it from the function, or make it static with static_argnames.")
        )  # fmt: skip

    def applied(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return what a function makes of Python's numbers, this one among them; every call computes it anew."""
        arguments = self._arguments
        sure = function in _SURE or (function in _FALLIBLE and _is_safe(function, operands))
        kinds: set[type] = set()
        for operand in operands:
            if type(operand) is TracedNumber:
                sure = sure and operand.never_fails
                arguments = arguments | operand._arguments
                kinds.add(operand._kind)
            elif type(operand) in _EXACT:
                kinds.add(type(operand))
            else:
                return NotImplemented
        if float in kinds and function in _OF_INTS:
            return NotImplemented
        kind = float if float in kinds or function is operator.truediv else int
        step = Step(function, operands, user_place(2))
        result = TracedNumber(self._tracer, kind, step, arguments, never_fails=sure)
        if function in _FALLIBLE and not _is_safe(function, operands):
            if attached("may_be_handled")(_FALLIBLE[function]):
                result.needed()  # what the code does next depends on it
            self._tracer.may_fail(result)
        return result

    def checked(self, check: Callable[[Any], Any]) -> TracedNumber:
        """Return the number that `check` returns for this one; every call runs `check`, which may raise."""
        step = Step(check, (self,), user_place(2))
        result = TracedNumber(self._tracer, self._kind, step, self._arguments, never_fails=False)
        self._tracer.may_fail(result)
        return result

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        # The type of a power depends on the sign of the base if the exponent is a float, on that of the exponent if
        # both are ints.
        if type(other) is int and modulus is None and (self._kind is float or other >= 0):
            return self.applied(operator.pow, self, other)
        if type(other) is TracedNumber and modulus is None and (self._kind, other._kind) == (float, int):
            return self.applied(operator.pow, self, other)
        return self._foreign(other)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        if type(other) is float and self._kind is int and modulus is None:
            return self.applied(operator.pow, other, self)
        return self._foreign(other)

    def _foreign(self, other: Any) -> Any:
        if type(other) is StagedNumber:
            return NotImplemented
        return self.needed() if isinstance(other, bool | int | float | complex) else NotImplemented

    def __getattr__(self, name: str) -> Any:
        if name in OF_NUMBERS[self._kind]:
            self.needed()
        raise AttributeError(f"{self._kind.__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __copy__(self) -> TracedNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedNumber:
        return self

    def __hash__(self) -> int:
        return self.needed()

    def __eq__(self, other: object) -> Any:
        return self._foreign(other)

    def __ne__(self, other: object) -> Any:
        return self._foreign(other)


_DEFAULTS: dict[type, DType] = {float: float32, int: int32}
_HOLD = {float: ("float", "complex"), int: ("float", "complex", "int", "uint")}
"""The kinds of dtypes that hold a number without a change of its value that Python would not make."""
_OF_INTS = frozenset({operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.invert})
_FALLIBLE: dict[Callable[..., Any], type[Exception]] = {
    **dict.fromkeys((operator.truediv, operator.floordiv, operator.mod, operator.pow), ArithmeticError),
    **dict.fromkeys((operator.lshift, operator.rshift), ValueError),
}
"""Operations that may fail, and with what."""
_SURE = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, operator.and_, operator.or_,
    operator.xor, operator.invert,
})  # fmt: skip
_EXACT = frozenset({bool, int, float})


def _is_safe(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether an operation cannot fail, whatever the inputs are."""
    base, other = operands
    if function is operator.pow:
        return type(other) is int and other >= 0 and base.__class__ is int
    return type(other) in _EXACT and (other >= 0 if function in _OF_INTS else other != 0)


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        result = self.applied(function, self, other)
        return self._foreign(other) if result is NotImplemented else result

    return method


def _backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        result = self.applied(function, other, self)
        return self._foreign(other) if result is NotImplemented else result

    return method


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any) -> Any:
        return self.applied(function, self)

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _bare = _name.rstrip("_")
    setattr(TracedNumber, f"__{_bare}__", _forward(getattr(operator, _name)))
    setattr(TracedNumber, f"__r{_bare}__", _backward(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(TracedNumber, f"__{_name}__", _alone(getattr(operator, _name)))
for _name in (
    "bool", "float", "int", "complex", "round", "trunc", "floor", "ceil", "divmod", "rdivmod", "lt", "le", "gt", "ge",
    "str", "repr", "format", "reduce_ex", "reduce", "array", "array_ufunc", "index", "sizeof", "getnewargs", "getstate",
):  # fmt: skip
    setattr(TracedNumber, f"__{_name}__", TracedNumber.needed)

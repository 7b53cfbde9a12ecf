"""`TracedFloat`: in a trace, a Python float argument.

A trace must not depend on the number, so that one trace serves a whole learning-rate schedule. Arithmetic among Python
numbers is kept as a program, which every call runs again in Python's doubles. A number that meets a tensor becomes an
input of shape (). Code that asks for the number itself raises `NeedsNumber`; the function is then traced again with the
number in its signature.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hybridflow.core.attached import attached
from hybridflow.core.dtypes import DType, float32, kind_of
from hybridflow.core.errors import LeakError, message
from hybridflow.core.node import Where, user_place
from hybridflow.core.staged_number import StagedNumber

OF_FLOATS = frozenset(dir(float))
"""The names of a float's attributes; `hasattr` of the class would count those of `type` too."""


class NeedsNumber(BaseException):
    """Raised when traced code asks for the value of float arguments.

    Not an `Exception`, so that users' handlers do not catch it.

    Attributes:
        arguments: the positions of the float arguments that the number comes from.
    """

    def __init__(self, arguments: frozenset[int]) -> None:
        super().__init__(arguments)
        self.arguments = arguments


class Step(NamedTuple):
    """One operation on Python numbers; operands that are `TracedFloat` are earlier steps."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]
    where: Where | None


class NumberTracer(Protocol):
    """The part of a tracer that its traced floats use."""

    @property
    def alive(self) -> bool:
        """Whether the trace is still being made."""
        ...

    def number_tensor(self, number: TracedFloat, dtype: DType) -> Any:
        """Return the tensor of shape () that holds the number in each call."""
        ...

    def needs_numbers(self, arguments: frozenset[int]) -> None:
        """Raise `NeedsNumber` for float arguments; the trace is discarded even if user code catches that."""
        ...

    def may_fail(self, number: TracedFloat) -> None:
        """Make each call compute the number even if nothing uses it: it may raise an error, as in eager code."""
        ...


class TracedFloat:
    """A float whose value each call decides. `isinstance` takes it for a float; `type` returns `TracedFloat`."""

    __slots__ = ("_arguments", "_step", "_tracer")

    __array_priority__ = 1000

    def __init__(self, tracer: NumberTracer, step: Step | int, arguments: frozenset[int]) -> None:
        self._tracer = tracer
        self._step = step
        self._arguments = arguments

    @property
    def __class__(self) -> type[float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`float`, for `isinstance`. C code looks at the type itself, so it asks for the number instead."""
        return float

    @property
    def step(self) -> Step | int:
        """The operation that makes the number, or its position among the float arguments."""
        return self._step

    @property
    def arguments(self) -> frozenset[int]:
        """The positions of the float arguments that the number comes from."""
        return self._arguments

    def tensor(self, dtype: DType = float32) -> Any:
        """Return the number as a tensor of a dtype."""
        if kind_of(dtype) not in ("float", "complex"):
            self.needed()
        if not self._tracer.alive:
            self.needed()
        return self._tracer.number_tensor(self, dtype)

    def needed(self, *_: Any, **__: Any) -> Any:
        """Ask for the number itself.

        Raises:
            NeedsNumber: while the function is traced.
            LeakError: later.
        """
        if self._tracer.alive:
            self._tracer.needs_numbers(self._arguments)
        raise LeakError(
            message("a float argument of a compiled function was kept while it was traced, and used outside of it",
                    hint="Return it from the function, or make it static with static_argnames.")
        )  # fmt: skip

    def applied(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return what a function makes of Python's numbers, this one among them; every call computes it anew."""
        arguments = self._arguments
        for operand in operands:
            if type(operand) is TracedFloat:
                arguments = arguments | operand._arguments
            elif type(operand) not in _EXACT:
                return NotImplemented
        result = TracedFloat(self._tracer, Step(function, operands, user_place(2)), arguments)
        if function in _FALLIBLE:
            if not _is_safe(function, operands[-1]) and attached("may_be_handled")(ArithmeticError):
                result.needed()  # what the code does next depends on it
            self._tracer.may_fail(result)
        return result

    def checked(self, check: Callable[[float], float]) -> TracedFloat:
        """Return the number that `check` returns for this one; every call runs `check`, which may raise."""
        result = TracedFloat(self._tracer, Step(check, (self,), user_place(2)), self._arguments)
        self._tracer.may_fail(result)
        return result

    def __pow__(self, other: Any) -> Any:
        # A float exponent may make the result complex, depending on the numbers.
        return self.applied(operator.pow, self, other) if type(other) is int else self._foreign(other)

    def __rpow__(self, other: Any) -> Any:
        return self._foreign(other)

    def _foreign(self, other: Any) -> Any:
        if type(other) is StagedNumber:
            return NotImplemented
        return self.needed() if isinstance(other, bool | int | float | complex) else NotImplemented

    def __getattr__(self, name: str) -> Any:
        if name in OF_FLOATS:
            self.needed()
        raise AttributeError(f"'float' object has no attribute {name!r}", name=name, obj=self)

    def __copy__(self) -> TracedFloat:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedFloat:
        return self

    def __hash__(self) -> int:
        return self.needed()

    def __eq__(self, other: object) -> Any:
        return self._foreign(other)

    def __ne__(self, other: object) -> Any:
        return self._foreign(other)


_FALLIBLE = frozenset({operator.truediv, operator.floordiv, operator.mod, operator.pow})
_EXACT = frozenset({bool, int, float})


def _is_safe(function: Callable[..., Any], divisor: Any) -> bool:
    """Whether an operation cannot fail, whatever the other operand is."""
    return function is not operator.pow and type(divisor) in _EXACT and divisor != 0


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


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod"):
    setattr(TracedFloat, f"__{_name}__", _forward(getattr(operator, _name)))
    setattr(TracedFloat, f"__r{_name}__", _backward(getattr(operator, _name)))
for _name in ("neg", "pos", "abs"):
    setattr(TracedFloat, f"__{_name}__", _alone(getattr(operator, _name)))
for _name in (
    "bool", "float", "int", "complex", "round", "trunc", "floor", "ceil", "divmod", "rdivmod", "lt", "le", "gt", "ge",
    "str", "repr", "format", "reduce_ex", "reduce", "array", "array_ufunc", "index", "sizeof", "getnewargs", "getstate",
):  # fmt: skip
    setattr(TracedFloat, f"__{_name}__", TracedFloat.needed)

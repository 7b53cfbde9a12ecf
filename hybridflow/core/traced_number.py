"""`TracedNumber`: in a trace, a Python float or int that each call decides.

A trace must not depend on the number, so that one trace serves a whole learning-rate schedule, or all steps of a
counter. Arithmetic among Python numbers is kept as a program, which every call runs again in Python. A number that
meets a tensor becomes an input of shape (). A comparison gives its answer in the traced call; other calls use the trace
if they get the same one. Code that asks for the number itself raises `NeedsNumber`; the function is then traced again
with the number in its signature. So it is if a number cannot be computed: Python then raises the error at its place.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from hybridflow.core.convert import to_numpy
from hybridflow.core.dtypes import DType, float32, int32, kind_of
from hybridflow.core.errors import LeakError, message
from hybridflow.core.node import user_place
from hybridflow.core.staged_number import FOR_MESSAGES, StagedNumber

OF_NUMBERS = {kind: frozenset(dir(kind)) for kind in (bool, int, float)}
"""The names of the attributes of Python's numbers; `hasattr` of the class would count those of `type` too."""


class NeedsNumber(BaseException):
    """Raised when traced code asks for the value of numbers that are inputs.

    Not an `Exception`, so that users' handlers do not catch it.

    Attributes:
        arguments: the positions, among the numbers of a call, of those that the number comes from.
        where: the user's line.
        paths: where these numbers are read; set when the trace ends.
    """

    def __init__(self, arguments: frozenset[int]) -> None:
        super().__init__(arguments)
        self.arguments = arguments
        self.where = user_place(2)
        self.paths: tuple[str, ...] = ()


class NeedsSize(NeedsNumber):
    """Raised when numbers decide a size of a tensor: they can be open sizes of a trace.

    Not an `Exception`, for the reason given at `NeedsNumber`.
    """


class Step(NamedTuple):
    """One operation on Python numbers; operands that are `TracedNumber` are earlier steps."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]


SPOKEN: dict[Callable[..., Any], Callable[..., str]] = {}
"""For functions that a user has not written: what makes a text of the user's code from the texts of their operands."""


class NumberTracer(Protocol):
    """The part of a tracer that its traced numbers use."""

    computed: dict[Any, TracedNumber]
    """The numbers that steps made, by function and operands: what is computed twice is one number."""

    @property
    def alive(self) -> bool:
        """Whether the trace is still being made, and its code runs: not that of another trace, thread or context."""
        ...

    def number_tensor(self, number: TracedNumber, dtype: DType) -> Any:
        """Return the tensor of shape () that holds the number in each call."""
        ...

    def needs_numbers(self, arguments: frozenset[int]) -> NoReturn:
        """Raise `NeedsNumber` for inputs; the trace is discarded even if user code catches that."""
        ...

    def left(self, arguments: frozenset[int]) -> None:
        """Note that code outside of the trace uses inputs: if it is still being made, it starts again by value."""
        ...

    def may_be_sizes(self, arguments: frozenset[int]) -> bool:
        """Whether a trace can take inputs as open sizes; `NeedsSize` makes that trace."""
        ...

    def other_count(self, number: TracedNumber) -> bool:
        """Whether a number of elements was another one in an earlier trace."""
        ...

    def needs_sizes(self, arguments: frozenset[int]) -> NoReturn:
        """Raise `NeedsSize` for inputs; the trace is discarded even if user code catches that."""
        ...

    def may_fail(self, number: TracedNumber) -> None:
        """Make each call compute the number even if nothing uses it: the trace serves only calls that can."""
        ...

    def rely_on(self, number: TracedNumber) -> None:
        """Let the trace serve only calls in which the number is what it is in this one."""
        ...


class TracedNumber:
    """A float or int whose value each call decides. `isinstance` takes it for one; `type` returns `TracedNumber`.

    Attributes:
        value: its value in the call that is traced.
    """

    __slots__ = ("_arguments", "_step", "_tracer", "value")

    __array_priority__ = 1000

    def __init__(self, tracer: NumberTracer, step: Step | int, arguments: frozenset[int], value: float) -> None:
        self._tracer = tracer
        self._step = step
        self._arguments = arguments
        self.value = value

    @property
    def __class__(self) -> type:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`float` or `int`, for `isinstance`. C code looks at the type itself, so it asks for the number instead."""
        return type(self.value)

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
        kind = type(self.value)
        dtype = dtype or _DEFAULTS[kind]
        if kind_of(dtype) not in _HOLD[kind] or not self._tracer.alive:
            self.needed()
        try:
            to_numpy(self.value, dtype)
        except Exception:
            self.needed()  # Python raises the error, by value
        return self._tracer.number_tensor(self, dtype)

    def needed(self, *_: Any, **__: Any) -> Any:
        """Ask for the number itself.

        Raises:
            NeedsNumber: while the function is traced.
            LeakError: later, or in code outside of the trace, which then starts again.
        """
        if self._tracer.alive:
            self._tracer.needs_numbers(self._arguments)
        self._tracer.left(self._arguments)
        raise LeakError(
            message("a number of a compiled function was kept while it was traced, and used outside of it",
                    hint="Return it from the function, or make it static with static_argnames.")
        )  # fmt: skip

    def as_size(self) -> int:
        """Ask for the number as a size of a tensor.

        Raises:
            NeedsSize: a trace can take it as an open size.
            NeedsNumber: it cannot, so that the number itself is needed.
        """
        if self._tracer.alive and self._tracer.may_be_sizes(self._arguments):
            self._tracer.needs_sizes(self._arguments)
        return self.needed()

    def count(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return a number of elements. The trace serves only calls that get the same.

        Args:
            function: computes it.
            operands: numbers, this one among them.

        Raises:
            NeedsSize: an earlier trace got another one, and a trace can take the numbers as open sizes.
        """
        number = self.of(function, operands, sure=True)
        if self._tracer.other_count(number) and self._tracer.may_be_sizes(number.arguments):
            self._tracer.needs_sizes(number.arguments)
        self._tracer.rely_on(number)
        return number.value

    def applied(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return what a function makes of Python's numbers, this one among them; every call computes it anew."""
        kinds: set[type] = set()
        for operand in operands:
            if not _is_number(operand):
                return NotImplemented
            kinds.add(operand.__class__)
        if function in _OF_INTS and float in kinds:
            return NotImplemented
        one_kind = len(kinds - {bool}) == 1  # a float that meets a large int is an OverflowError
        sure = one_kind and (function in _SURE or (function in _DIVIDES and _is_safe(function, operands)))
        return self.of(function, operands, sure=sure)

    def of(self, function: Callable[..., Any], operands: tuple[Any, ...], *, sure: bool = False) -> TracedNumber:
        """Return the number that a function makes of this one and others.

        Args:
            function: a function without side effects; the type of its result depends on those of its operands alone.
            operands: what it is called with.
            sure: whether it cannot fail.

        Raises:
            NeedsNumber: the function fails in this call.
        """
        if not self._tracer.alive:
            self.needed()
        key = (function, *map(_key, operands))
        number = self._tracer.computed.get(key)
        if number is None:
            traced = [operand for operand in operands if type(operand) is TracedNumber]
            arguments = frozenset[int]().union(*[one._arguments for one in traced])
            try:
                value = function(*[one.value if type(one) is TracedNumber else one for one in operands])
            except Exception:
                self._tracer.needs_numbers(arguments)
            number = TracedNumber(self._tracer, Step(function, operands), arguments, value)
            self._tracer.computed[key] = number
        if not sure:
            self._tracer.may_fail(number)
        return number

    def decided(self, function: Callable[..., Any], *operands: Any) -> Any:
        """Return what a function makes of numbers in this call. The trace serves only calls that get the same."""
        number = self.of(function, operands, sure=True)
        self._tracer.rely_on(number)
        return number.value

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        return self._power(self, other) if modulus is None and _is_number(other) else self._foreign(other)

    def __rpow__(self, other: Any, modulus: Any = None) -> Any:
        return self._power(other, self) if modulus is None and _is_number(other) else self._foreign(other)

    def _power(self, base: Any, exponent: Any) -> Any:
        """Return a power: its type depends on the exponent's sign for ints, on the base's for a float exponent."""
        if exponent.__class__ is float:
            if not base >= 0:
                return self.needed()
        elif base.__class__ is not float and type(exponent) is TracedNumber:
            self.decided(operator.ge, exponent, 0)
        return self.applied(operator.pow, base, exponent)

    def _foreign(self, other: Any) -> Any:
        """Return what an operation gives with an operand of another type: Python's own types need the number itself."""
        if type(other) is StagedNumber:
            return NotImplemented
        known = isinstance(other, bool | int | float | complex) or type(other).__module__ in sys.stdlib_module_names
        return self.needed() if known else NotImplemented

    def __bool__(self) -> bool:
        return self.decided(bool, self)

    def __divmod__(self, other: Any) -> Any:
        return (self // other, self % other) if _is_number(other) else self._foreign(other)

    def __rdivmod__(self, other: Any) -> Any:
        return (other // self, other % self) if _is_number(other) else self._foreign(other)

    def __getattr__(self, name: str) -> Any:
        if name in OF_NUMBERS[type(self.value)]:
            self.needed()
        raise AttributeError(f"{type(self.value).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    def __copy__(self) -> TracedNumber:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> TracedNumber:
        return self

    def __hash__(self) -> int:
        return self.needed()

    def __repr__(self) -> str:
        return repr(self.value) if FOR_MESSAGES.get() else self.needed()


_DEFAULTS: dict[type, DType] = {float: float32, int: int32}
_HOLD = {float: ("float", "complex"), int: ("float", "complex", "int", "uint")}
"""The kinds of dtypes that hold a number without a change of its value that Python would not make."""
_OF_INTS = frozenset({operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift, operator.invert})
_DIVIDES = frozenset({
    operator.truediv, operator.floordiv, operator.mod, operator.pow, operator.lshift, operator.rshift,
})  # fmt: skip
_SURE = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, operator.and_, operator.or_,
    operator.xor, operator.invert,
})  # fmt: skip
_EXACT = frozenset({bool, int, float})


_SEVERAL = frozenset({"dist", "frexp", "fsum", "modf", "prod", "sumprod"})
_COMPUTED: frozenset[Any] = frozenset({
    int, float, round,
    *[one for name, one in vars(math).items() if isinstance(one, BuiltinFunctionType) and name not in _SEVERAL],
})  # fmt: skip
"""Python's functions that make a number of numbers: each call computes them anew."""


def call_on_numbers(function: Callable[..., Any], operands: tuple[Any, ...]) -> Any:
    """Call one of Python's functions of numbers if there are traced ones among its operands; else NotImplemented."""
    number = next((one for one in operands if type(one) is TracedNumber), None)
    if number is None or function not in _COMPUTED or not all(map(_is_number, operands)):
        return NotImplemented
    result = number.of(function, operands)
    return number.decided(function, *operands) if type(result.value) is bool else result


def _is_number(value: Any) -> bool:
    return type(value) is TracedNumber or type(value) in _EXACT


def _key(operand: Any) -> Any:
    """Return a key for an operand: equal for operands that no function tells apart."""
    kind = type(operand)
    if kind is TracedNumber:
        return id(operand)
    return (kind, operand, math.copysign(1, operand)) if kind is float else (kind, operand)


def _is_safe(function: Callable[..., Any], operands: tuple[Any, ...]) -> bool:
    """Whether an operation on numbers of one kind cannot fail, whatever the inputs are."""
    base, other = operands
    if function is operator.pow:
        return type(other) is int and other >= 0 and base.__class__ is int
    if function is operator.truediv and base.__class__ is int:
        return False  # both may be too large for floats
    return type(other) in _EXACT and (other >= 0 if function in _OF_INTS else other != 0)


def _compare(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if _is_number(other):
            return self.decided(function, self, other)
        if function in _EQUALITY and not isinstance(other, bool | int | float | complex):
            return NotImplemented
        return self._foreign(other)

    return method


_EQUALITY = (operator.eq, operator.ne)
"""What Python answers for objects of any types."""


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
        result = self.applied(function, self)
        return self.needed() if result is NotImplemented else result  # Python raises its error

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and_", "or_", "xor", "lshift", "rshift"):
    _bare = _name.rstrip("_")
    setattr(TracedNumber, f"__{_bare}__", _forward(getattr(operator, _name)))
    setattr(TracedNumber, f"__r{_bare}__", _backward(getattr(operator, _name)))
for _name in ("neg", "pos", "abs", "invert"):
    setattr(TracedNumber, f"__{_name}__", _alone(getattr(operator, _name)))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(TracedNumber, f"__{_name}__", _compare(getattr(operator, _name)))
for _name in (
    "float", "int", "complex", "round", "trunc", "floor", "ceil", "str",
    "format", "reduce_ex", "reduce", "array", "array_ufunc", "index", "sizeof", "getnewargs", "getstate",
):  # fmt: skip
    setattr(TracedNumber, f"__{_name}__", TracedNumber.needed)


def text_of(number: Any, paths: Sequence[str], depth: int = 4) -> str:
    """Return the formula of a number; of a long one its end.

    Args:
        number: the number, or a constant.
        paths: where each number of a call is read.
        depth: the number of operations inside each other that are shown.
    """
    if type(number) is not TracedNumber:
        return repr(number)
    step = number.step
    if isinstance(step, int):
        return paths[step]
    operands = ["..." if depth == 0 else text_of(one, paths, depth - 1) for one in step.operands]
    spoken = SPOKEN.get(step.function)
    if spoken is not None:
        return spoken(*operands)
    symbol = _SYMBOLS.get(step.function)
    if symbol is None or len(operands) == 1:
        return f"{getattr(step.function, '__name__', 'number')}({', '.join(operands)})"
    return f" {symbol} ".join([f"({one})" if " " in one else one for one in operands])


_SYMBOLS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.mod: "%", operator.pow: "**", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.eq: "==", operator.ne: "!=", operator.and_: "&", operator.or_: "|", operator.xor: "^",
    operator.lshift: "<<", operator.rshift: ">>",
}  # fmt: skip


def slope(number: Any) -> int | None:
    """Return 1 if a number grows with all inputs that it is computed from, -1 if it falls, 0 without any; else None."""
    if type(number) is not TracedNumber:
        return 0
    step = number.step
    if isinstance(step, int):
        return 1
    slopes = [*map(slope, step.operands)]
    if None in slopes:
        return None
    if step.function is operator.neg:
        return -cast(int, slopes[0])
    if step.function is operator.sub:
        slopes[1] = -cast(int, slopes[1])
    if step.function in (operator.add, operator.sub):
        return None if {*slopes} == {-1, 1} else sum(cast("list[int]", slopes)) and (1 if 1 in slopes else -1)
    known = [one for one, own in zip(step.operands, slopes, strict=True) if own == 0]
    scales = step.function is operator.mul or (step.function is operator.floordiv and slopes[1] == 0)
    if scales and known and type(known[0]) is int and known[0] > 0:
        return slopes[0] or slopes[1]
    return None

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
from collections.abc import Callable, Hashable, Sequence
from types import BuiltinFunctionType
from typing import Any, NamedTuple, NoReturn, Protocol, cast

from hybridflow.core.convert import to_numpy
from hybridflow.core.dims import DECIDING, Dim, DimScope
from hybridflow.core.dtypes import DType, float32, int32, kind_of
from hybridflow.core.errors import LeakError
from hybridflow.core.node import format_where, user_place
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


class Step(NamedTuple):
    """One operation on Python numbers; operands that are `TracedNumber` are earlier steps."""

    function: Callable[..., Any]
    operands: tuple[Any, ...]


SPOKEN: dict[Callable[..., Any], Callable[..., str]] = {}
"""For functions that a user has not written: what makes a text of the user's code from the texts of their operands."""


class NumberTracer(Protocol):
    """The part of a tracer that its traced numbers use."""

    number_sizes: NumberSizes | None
    """The open sizes that numbers decide; None if these may not be open."""
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
        raise LeakError("a number of a compiled function was kept while it was traced, and used outside of it",
                        hint="Return it from the function, or make it static with static_argnames.")

    def as_size(self, *, new: bool = True) -> Any:
        """Return the number as a size of a tensor that each call decides; the trace relies on one that is 0 or 1.

        Args:
            new: whether the trace may get a further open size for it; if not, None is returned.

        Raises:
            NeedsNumber: the trace leaves no sizes open, or the code needs this one as a number.
        """
        sizes = self._tracer.number_sizes if self._tracer.alive and self.__class__ is int else None
        if sizes is None:
            return self.needed() if new else None
        size = sizes.of(self, new=new)
        if size is None and new:
            self._tracer.rely_on(self)
            return self.value
        return size

    def count(self, function: Callable[..., Any], *operands: Any) -> int | None:
        """Return a number of elements, so that the trace serves only calls that get the same.

        Args:
            function: computes it.
            operands: numbers, this one among them.

        Returns:
            The number; None if an earlier trace got another one.
        """
        number = self.of(function, operands, sure=True)
        sizes = self._tracer.number_sizes
        if sizes is not None and sizes.other_count(number):
            return None
        self._tracer.rely_on(number)
        return cast(int, number.value)

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
})
_SURE = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.pos, operator.abs, operator.and_, operator.or_,
    operator.xor, operator.invert,
})
_EXACT = frozenset({bool, int, float})


_SEVERAL = frozenset({"dist", "frexp", "fsum", "modf", "prod", "sumprod"})
_COMPUTED: frozenset[Any] = frozenset({
    int, float, round,
    *[one for name, one in vars(math).items() if isinstance(one, BuiltinFunctionType) and name not in _SEVERAL],
})
"""Python's functions that make a number of numbers: each call computes them anew."""


def as_size(value: Any) -> Any:
    """Return a number of a trace as a size that each call decides, and any other value as it is."""
    return value.as_size() if type(value) is TracedNumber and value.__class__ is int else value


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
        if type(other) is Dim:
            return function(self.as_size(), other)
        if function in _EQUALITY and not isinstance(other, bool | int | float | complex):
            return NotImplemented
        return self._foreign(other)

    return method


_EQUALITY = (operator.eq, operator.ne)
"""What Python answers for objects of any types."""


def _forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) is Dim:
            return function(self.as_size(), other)
        result = self.applied(function, self, other)
        return self._foreign(other) if result is NotImplemented else result

    return method


def _backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) is Dim:
            return function(other, self.as_size())
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
):
    setattr(TracedNumber, f"__{_name}__", TracedNumber.needed)
DECIDING.add(TracedNumber)


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
}


class SeenSizes:
    """What the traces of one function have learned of the sizes that numbers decide.

    Attributes:
        counts: the first number of elements at each place, by formula.
        opened: the formulas of the sizes that are open.
        closed: those of sizes that the code needs as numbers.
    """

    def __init__(self) -> None:
        self.counts: dict[str, float] = {}
        self.opened: set[str] = set()
        self.closed: set[str] = set()

    def close(self) -> bool:
        """Let no size be open that is; return whether there are any."""
        opened, self.opened = self.opened, set()
        self.closed |= opened
        return bool(opened)


class NumberSizes:
    """The open sizes of a trace that its numbers decide.

    Numbers that differ by a constant, or by a factor, share a symbol, so that their sizes can be compared.

    Args:
        dims: where the symbols are added.
        seen: what earlier traces have learned.
        paths: where each number of a call is read.
        add: makes the value of a symbol an input of the trace, given the number that it is computed from.
    """

    def __init__(
        self, dims: DimScope, seen: SeenSizes, paths: Sequence[str], add: Callable[[TracedNumber, Dim], None]
    ) -> None:
        self._dims = dims
        self._seen = seen
        self._paths = paths
        self._add = add
        self._atoms = DimScope()
        self._polynomials: dict[int, tuple[TracedNumber, Any]] = {}
        self._symbols: dict[str, tuple[int, Dim, int]] = {}

    def of(self, number: TracedNumber, *, new: bool = True) -> Any:
        """Return an int as a size.

        Args:
            number: the int.
            new: whether a symbol may be added for it.

        Returns:
            The size: an int if no input decides it, and None if it cannot be open.

        Raises:
            NeedsNumber: the code needs such a size as a number.
        """
        polynomial = self._polynomial(number)
        if type(polynomial) is not Dim:
            return polynomial
        constant = polynomial.terms.get((), 0)
        rest = polynomial - constant
        factor = math.gcd(*rest.terms.values()) * (1 if rest.terms[min(rest.terms, key=str)] > 0 else -1)
        key = (rest // factor).text()
        if key not in self._symbols:
            size = abs(factor)
            whole = number if size == 1 else number.of(operator.floordiv, (number, size), sure=True)
            symbol = self._symbol(whole) if new else None
            if symbol is None:
                return None
            self._symbols[key] = (1 if factor > 0 else -1), symbol, constant // size
        sign, symbol, offset = self._symbols[key]
        return (symbol - offset) * (factor * sign) + constant

    def _symbol(self, number: TracedNumber) -> Dim | None:
        """Add a symbol for an int and return it; None if the int is too small or too large for an open size."""
        formula = text_of(number, self._paths)
        if formula in self._seen.closed:
            number.needed()
        if not 2 <= number.value <= LARGEST_SIZE:
            return None
        self._seen.opened.add(formula)
        symbol = self._dims.fresh(formula, cast(int, number.value))
        self._add(number, symbol)
        return symbol

    def other_count(self, number: TracedNumber) -> bool:
        """Whether a number of elements was another one in an earlier trace."""
        formula = f"{text_of(number, self._paths)} at {format_where(user_place(3))}"
        return self._seen.counts.setdefault(formula, number.value) != number.value

    def _polynomial(self, number: TracedNumber) -> Any:
        """Return an int as a polynomial in the ints that are no sums, differences or products themselves."""
        stack = [number]
        while stack:
            step = stack[-1].step
            operands = () if isinstance(step, int) or step.function not in _POLYNOMIAL else step.operands
            operands = operands if all([one.__class__ is int for one in operands]) else ()
            missing = [one for one in operands if type(one) is TracedNumber and id(one) not in self._polynomials]
            if missing:
                stack += missing
                continue
            top = stack.pop()
            parts = [self._polynomials[id(one)][1] if type(one) is TracedNumber else one for one in operands]
            made = cast(Step, step).function(*parts) if parts else self._atoms.symbol(f"n{id(top)}", int(top.value))
            self._polynomials[id(top)] = top, made
        return self._polynomials[id(number)][1]


LARGEST_SIZE = 1 << 24
"""The largest number that may be an open size. 0 and 1 have traces of their own, as sizes of tensors have."""
_POLYNOMIAL = frozenset({operator.add, operator.sub, operator.neg, operator.mul})


# -- which numbers have changed from call to call: from its second value on, a number is an input of a program --------

_MOST = 4096


class SeenNumbers:
    """The numbers that earlier calls met, by place.

    A number that never changes stays a constant, which XLA computes with when it compiles. One that has changed is an
    input, so that no value of it makes another program.
    """

    def __init__(self) -> None:
        self._first: dict[Hashable, Any] = {}
        self._changed: set[Hashable] = set()

    def has_changed(self, place: Hashable, value: Hashable) -> bool:
        """Note a number, and return whether the one at this place has ever changed."""
        if place in self._changed:
            return True
        if len(self._first) >= _MOST:
            self._first.clear()
        if self._first.setdefault(place, value) == value:
            return False
        if len(self._changed) >= _MOST:
            self._changed.clear()
        self._changed.add(place)
        return True

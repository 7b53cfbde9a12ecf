"""Symbolic sizes: integer polynomials over the unknown dimensions of a trace.

A size is an `int` or a `Dim`. A `Dim` belongs to a `DimScope`, which knows the size each symbol had when the
trace was made (its hint). Arithmetic builds new polynomials. A comparison is answered from the hints and recorded
in the scope as a guard, so a later call with other sizes uses the trace only if every answer is still the same.
Converting a `Dim` to an `int` guards on equality. So does user code that hashes a `Dim` or turns it into text.
Arithmetic with floats, and true division, give a `SizeFloat`.
"""

from __future__ import annotations

import operator
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np


class Opaque(NamedTuple):
    """A quotient or remainder of polynomials, which is not a polynomial itself."""

    kind: str
    left: Dim
    right: Dim

    def __str__(self) -> str:
        return f"(({self.left.text()}){self.kind}({self.right.text()}))"


Atom = str | Opaque
Monomial = tuple[Atom, ...]

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}
_WORDS = {
    "==": ("is", "is not"), "<": ("is below", "is at least"), "<=": ("is at most", "is above"),
    ">": ("is above", "is at most"), ">=": ("is at least", "is below"),
}
"""Each comparison in words, where it is true and where it is false."""
_OPAQUE: dict[str, Callable[[int, int], int]] = {"//": operator.floordiv, "%": operator.mod}


class Guard(NamedTuple):
    """A comparison of sizes that a trace relied on, and its answer."""

    left: Dim
    compare: str
    right: Size
    answer: bool

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether the comparison gives the same answer for other sizes of the symbols."""
        return _COMPARE[self.compare](evaluate(self.left, sizes), evaluate(self.right, sizes)) == self.answer

    def sentence(self) -> str:
        """Return it in words, such as "n is not 1"."""
        return f"{text_of(self.left)} {_WORDS[self.compare][not self.answer]} {text_of(self.right)}"

    def __str__(self) -> str:
        return f"{text_of(self.left)} {self.compare} {text_of(self.right)} is {self.answer}"


@dataclass(eq=False)
class DimScope:
    """The symbols of one trace, their sizes in that trace, and the guards on them.

    Attributes:
        hints: the size of each symbol during the trace.
        guards: the comparisons whose answers depend on the sizes, without repetitions.
        least: a lower bound of every symbol, or None. Comparisons that it decides need no guard.
        open: whether the trace is still running. Until it ends, user code sees a size as its number in this call.
    """

    hints: dict[str, int] = field(default_factory=dict[str, int])
    guards: list[Guard] = field(default_factory=list[Guard])
    least: int | None = None
    open: bool = False
    _asked: set[Any] = field(default_factory=set[Any], repr=False)

    def symbol(self, name: str, hint: int) -> Dim:
        """Add a symbol and return it as a size."""
        self.hints[name] = hint
        return Dim({(name,): 1}, self)

    def named(self, name: str, hint: int, largest: int | None = None) -> Dim:
        """Return the symbol with a name, adding it if it is new."""
        name = str(name)  # drop a subclass of str
        symbol = Dim({(name,): 1}, self) if name in self.hints else self.symbol(name, hint)
        if largest is not None:
            self.take(Guard(symbol, "<=", largest, True))
        return symbol

    def fresh(self, label: str, hint: int) -> Dim:
        """Add a symbol whose name is made of a text, and return it as a size."""
        name = re.sub(r"[^A-Za-z0-9]+", "_", label).strip("_")
        while name in self.hints:
            name += "_"
        return self.symbol(name, hint)

    def forget_guards(self, count: int) -> None:
        """Keep only the first `count` guards."""
        kept = self.guards[:count]
        self.guards.clear()
        self._asked.clear()
        for guard in kept:
            self.take(guard)

    def take(self, guard: Guard) -> None:
        """Add a guard unless it is there already."""
        key = (text_of(guard.left), guard.compare, text_of(guard.right))
        if key not in self._asked:
            self._asked.add(key)
            self.guards.append(guard)

    def holds(self, sizes: Mapping[str, int]) -> bool:
        """Whether every guard holds for other sizes of the symbols."""
        return all(guard.holds(sizes) for guard in self.guards)

    def within(self, sizes: Mapping[str, int], bounds: Mapping[str, int]) -> dict[str, int]:
        """Return the given bounds, or the largest below them for which every guard holds, found symbol by symbol.

        Args:
            sizes: sizes for which the guards hold; no bound becomes smaller.
            bounds: as many, as large or larger.
        """
        wanted = {name: max(bounds[name], size) for name, size in sizes.items()}
        if self.holds(wanted):
            return wanted
        found = dict(sizes)
        for name, most in wanted.items():
            holds, fails = found[name], most + 1
            while fails - holds > 1:
                middle = (holds + fails) // 2
                holds, fails = (middle, fails) if self.holds({**found, name: middle}) else (holds, middle)
            found[name] = holds
        return found

    def first_equals(self) -> dict[str, Dim]:
        """Return, for each symbol that a guard says is equal to an earlier one, the first that it is equal to."""
        first = {name: name for name in self.hints}
        for guard in self.guards:
            right = guard.right.symbol if isinstance(guard.right, Dim) else None
            if guard.compare == "==" and guard.answer and guard.left.symbol is not None and right is not None:
                one, other = first[guard.left.symbol], first[right]
                earlier = next(name for name in first if name in (one, other))
                first = {name: earlier if now in (one, other) else now for name, now in first.items()}
        return {name: Dim({(now,): 1}, self) for name, now in first.items() if name != now}


class NeedsSizes(BaseException):
    """Raised when traced code stores a size outside of the trace, where it must be a number.

    Not an `Exception`, for the reason given at `NeedsNumber`.
    """


SIZES: ContextVar[tuple[DimScope, Mapping[str, int]] | None] = ContextVar("hybridflow sizes", default=None)
"""The sizes of the graph that is being evaluated; the inputs of its nested graphs may not determine all of them."""

_UNROLLED_POWER = 8
"""The largest exponent for which a power stays a polynomial; beyond it the size becomes a number, with a guard."""


def _order(monomial: Monomial) -> tuple[int, tuple[str, ...]]:
    return len(monomial), tuple(map(str, monomial))


class Dim:
    """A size that depends on the unknown dimensions of a trace; `isinstance` takes it for an int."""

    __slots__ = ("scope", "terms")

    @property
    def __class__(self) -> type[int]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`int`, so that `isinstance` answers as in eager code; `type` still returns `Dim`."""
        return int

    def __init__(self, terms: dict[Monomial, int], scope: DimScope) -> None:
        self.terms = terms
        self.scope = scope

    def _build(self, terms: dict[Monomial, int]) -> Size:
        terms = {monomial: factor for monomial, factor in terms.items() if factor}
        if not terms:
            return 0
        if len(terms) == 1 and () in terms:
            return terms[()]
        return Dim(terms, self.scope)

    def __add__(self, other: object) -> Any:
        if not isinstance(other, int | Dim):
            return size_float(operator.add, self, other)
        terms = dict(self.terms)
        for monomial, factor in _terms(other).items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return self._build(terms)

    __radd__ = __add__

    def __mul__(self, other: object) -> Any:
        if not isinstance(other, int | Dim):
            return size_float(operator.mul, self, other)
        terms: dict[Monomial, int] = {}
        for left, factor_left in self.terms.items():
            for right, factor_right in _terms(other).items():
                monomial = tuple(sorted(left + right, key=str))
                terms[monomial] = terms.get(monomial, 0) + factor_left * factor_right
        return self._build(terms)

    __rmul__ = __mul__

    def __neg__(self) -> Size:
        return self * -1

    def __sub__(self, other: object) -> Any:
        if not isinstance(other, int | Dim):
            return size_float(operator.sub, self, other)
        return self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return size_float(operator.sub, other, self) if not isinstance(other, int) else self * -1 + other

    def __floordiv__(self, other: Any) -> Any:
        if not isinstance(other, int | Dim):
            return size_float(operator.floordiv, self, other)
        exact = self._divide(other)
        return exact if exact is not None else self._opaque("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        if not isinstance(other, int):
            return size_float(operator.floordiv, other, self)
        return self._opaque("//", other, self)

    def __mod__(self, other: Any) -> Any:
        if not isinstance(other, int | Dim):
            return size_float(operator.mod, self, other)
        return 0 if self._divide(other) is not None else self._opaque("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return size_float(operator.mod, other, self) if not isinstance(other, int) else self._opaque("%", other, self)

    def __divmod__(self, other: Size) -> tuple[Size, Size]:
        return self // other, self % other

    def __rdivmod__(self, other: Size) -> tuple[Size, Size]:
        return other // self, other % self

    def __pow__(self, other: Any) -> Any:
        if type(other) is float:
            return size_float(operator.pow, self, other)
        if not isinstance(other, int) or not 0 <= other <= _UNROLLED_POWER:
            return int(self) ** other
        power: Size = 1
        for _ in range(other):
            power = self * power
        return power

    def __rpow__(self, other: float) -> Any:
        return other ** int(self)

    def __truediv__(self, other: Any) -> Any:
        return size_float(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return size_float(operator.truediv, other, self)

    def __float__(self) -> float:
        return float(self.__index__())

    def __abs__(self) -> Size:
        return self if self >= 0 else -self

    def _opaque(self, kind: str, left: Size, right: Size) -> Dim:
        def as_dim(size: Size) -> Dim:
            return size if isinstance(size, Dim) else Dim({(): operator.index(size)}, self.scope)

        return Dim({(Opaque(kind, as_dim(left), as_dim(right)),): 1}, self.scope)

    def _divide(self, other: Size) -> Size | None:
        """Return the quotient by a constant or a single monomial if it is exact, else None."""
        divisor = _terms(other)
        if len(divisor) != 1:
            return 1 if self.terms == divisor else None
        ((by, factor),) = divisor.items()
        quotient: dict[Monomial, int] = {}
        for monomial, own in self.terms.items():
            rest = list(monomial)
            for atom in by:
                if atom not in rest:
                    return None
                rest.remove(atom)
            if factor == 0 or own % factor:
                return None
            quotient[tuple(rest)] = own // factor
        return self._build(quotient)

    def _ask(self, compare: str, other: Size) -> bool:
        hints = self.scope.hints
        if type(other) not in (int, float, Dim) and isinstance(other, int):
            other = operator.index(other)
        answer = _COMPARE[compare](evaluate(self, hints), evaluate(other, hints))
        if not self._decided(compare, other):
            self.scope.take(Guard(self, compare, other, answer))
        return answer

    def _decided(self, compare: str, other: Size) -> bool:
        """Whether a comparison has the same answer for all sizes, so that it needs no guard."""
        if type(other) not in (int, Dim):
            return False
        least = self.scope.least
        difference = self - other
        if least is None or not isinstance(difference, Dim):
            return not isinstance(difference, Dim)
        terms = {monomial: factor for monomial, factor in difference.terms.items() if monomial}
        if any(isinstance(atom, Opaque) for monomial in terms for atom in monomial):
            return False
        nearest = evaluate(difference, dict.fromkeys(self.scope.hints, least))
        signs = {factor > 0 for factor in terms.values()}
        if nearest == 0:
            return (signs == {True} and compare in ("<", ">=")) or (signs == {False} and compare in (">", "<="))
        return signs == {nearest > 0}

    @property
    def symbol(self) -> str | None:
        """The name if this is a single symbol, else None."""
        if len(self.terms) != 1:
            return None
        ((monomial, factor),) = self.terms.items()
        return monomial[0] if factor == 1 and len(monomial) == 1 and isinstance(monomial[0], str) else None

    def __eq__(self, other: object) -> bool:
        if type(other) is float:
            return self._ask("==", cast(Any, other))
        if not isinstance(other, int | Dim):
            return NotImplemented
        return self.terms == _terms(other) or self._ask("==", other)

    def __lt__(self, other: Size) -> bool:
        return self._ask("<", other)

    def __le__(self, other: Size) -> bool:
        return self._ask("<=", other)

    def __gt__(self, other: Size) -> bool:
        return self._ask(">", other)

    def __ge__(self, other: Size) -> bool:
        return self._ask(">=", other)

    def __bool__(self) -> bool:
        return not self._ask("==", 0)

    def __index__(self) -> int:
        hint = evaluate(self, self.scope.hints)
        self._ask("==", hint)
        return hint

    __int__ = __index__

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.asarray(int(self), dtype)

    def __reduce__(self) -> Any:
        return int, (int(self),)

    def _is_number(self) -> bool:
        """Whether user code is asking during the trace: it must see the size as its number in this call."""
        if not self.scope.open:
            return False
        name = sys._getframe(2).f_code.co_filename
        return not name.startswith(_PACKAGE) or name.startswith(_FOR_USERS)

    def __hash__(self) -> int:
        return hash(int(self) if self._is_number() else frozenset(self.terms.items()))

    def __str__(self) -> str:
        return str(int(self)) if self._is_number() else self.text()

    def __repr__(self) -> str:
        return str(int(self)) if self._is_number() else self.text()

    def __format__(self, spec: str) -> str:
        return format(int(self) if self._is_number() else self.text(), spec)

    def __getattr__(self, name: str) -> Any:
        if hasattr(int, name) and not name.startswith("__"):
            return getattr(int(self), name)
        raise AttributeError(f"'int' object has no attribute {name!r}")

    def text(self) -> str:
        """Return the polynomial."""
        parts: list[str] = []
        for monomial, factor in sorted(self.terms.items(), key=lambda term: _order(term[0]), reverse=True):
            atoms = "*".join(map(str, monomial))
            sign = ("-" if factor < 0 else "+") if parts else ("-" if factor < 0 else "")
            size = abs(factor)
            parts.append(sign + (str(size) if not atoms else atoms if size == 1 else f"{size}*{atoms}"))
        return "".join(parts)


_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_FOR_USERS = tuple([_PACKAGE + os.path.join(*room, "") for room in (("convert",), ("guards",), ("nn", "layers"))])
"""Folders of hybridflow that act for user code, or that a user could have written: they see sizes as numbers too."""


def text_of(size: Any) -> str:
    """Return a size as the IR prints it."""
    return size.text() if type(size) is Dim else str(size)


class SizeFloat:
    """A Python float computed from sizes, such as ``1 / x.shape[0]``; `isinstance` takes it for a float.

    Arithmetic with numbers and sizes gives another one. An operation with a tensor computes it anew from the sizes of
    each call. Code that asks for the number itself gets it, with a guard on the sizes.
    """

    __slots__ = ("function", "operands", "scope")

    __array_ufunc__ = None

    def __init__(self, function: Callable[..., Any], operands: tuple[Any, ...], scope: DimScope) -> None:
        self.function = function
        self.operands = operands
        self.scope = scope
        self.at(scope.hints)  # raise an error, such as a division by zero, at the line that caused it

    @property
    def __class__(self) -> type[float]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """`float`, so that `isinstance` answers as in eager code; `type` still returns `SizeFloat`."""
        return float

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the number for given sizes of the symbols."""
        return self.function(*[substitute(operand, sizes) for operand in self.operands])

    def text(self) -> str:
        """Return the expression as text; equal computations have equal texts."""
        parts = [operand.text() if type(operand) is SizeFloat else text_of(operand) for operand in self.operands]
        return f"{self.function.__name__}({', '.join(parts)})"

    def _number(self) -> Any:
        """Return the number itself, with a guard on every size it depends on."""
        return self.function(*[_as_number(operand) for operand in self.operands])

    def __float__(self) -> float:
        return float(self._number())

    def __hash__(self) -> int:
        return hash(self._number())

    def __getattr__(self, name: str) -> Any:
        if hasattr(float, name) and not name.startswith("__"):
            return getattr(self._number(), name)
        raise AttributeError(f"'float' object has no attribute {name!r}")


def _as_number(operand: Any) -> Any:
    if type(operand) is SizeFloat:
        return operand._number()  # pyright: ignore[reportPrivateUsage]
    return int(operand) if type(operand) is Dim else operand


def size_float(function: Callable[..., Any], *operands: Any) -> Any:
    """Return the `SizeFloat` of an operation on sizes and numbers, or NotImplemented for any other operand."""
    scopes = [operand.scope for operand in operands if type(operand) in (Dim, SizeFloat)]
    if not all(type(operand) in (Dim, SizeFloat, int, float, bool) for operand in operands):
        return NotImplemented
    return SizeFloat(function, operands, scopes[0])


def _add_int_methods() -> None:
    """Let operators on bits and roundings, which give no polynomial, take the number."""

    def of_number(name: str) -> Callable[..., Any]:
        return lambda self, *args: getattr(int(self), name)(*map(_as_number, args))

    both_ways = [f"__{side}{name}__" for name in ("and", "or", "xor", "lshift", "rshift") for side in ("", "r")]
    for method in (*both_ways, "__invert__", "__pos__", "__trunc__", "__floor__", "__ceil__", "__round__"):
        setattr(Dim, method, of_number(method))


def _add_float_methods() -> None:
    def forward(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: size_float(function, self, other)

    def backward(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, other: size_float(function, other, self)

    def asked(name: str) -> Callable[..., Any]:
        return lambda self, *args: getattr(self._number(), f"__{name}__")(*args)

    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(SizeFloat, f"__{name}__", forward(getattr(operator, name)))
        setattr(SizeFloat, f"__r{name}__", backward(getattr(operator, name)))
    for name in ("neg", "pos", "abs"):
        function = getattr(operator, name)
        setattr(SizeFloat, f"__{name}__", lambda self, function=function: size_float(function, self))
    for name in ("bool", "int", "round", "trunc", "floor", "ceil", "eq", "ne", "lt", "le", "gt", "ge", "str", "repr",
                 "format"):
        setattr(SizeFloat, f"__{name}__", asked(name))


_add_int_methods()
_add_float_methods()
DECIDING: set[type] = set()
"""Types of numbers that handle sizes themselves: an operator of a size defers to theirs."""


def _ask_the_other() -> None:
    def deferring(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda self, other: NotImplemented if type(other) in DECIDING else method(self, other)

    arithmetic = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")
    names = [*arithmetic, *[f"r{name}" for name in arithmetic], "lt", "le", "gt", "ge", "eq", "ne"]
    for kind in (Dim, SizeFloat):
        for name in names:
            method = vars(kind).get(f"__{name}__")
            if method is not None:
                setattr(kind, f"__{name}__", deferring(method))


_ask_the_other()

Size = int | Dim


def _terms(size: Size) -> dict[Monomial, int]:
    return size.terms if isinstance(size, Dim) else {(): operator.index(size)}  # of what stands for a number too


def same_size(a: Size, b: Size) -> bool:
    """Whether two sizes are the same expression; never adds a guard."""
    if type(a) is not Dim and type(b) is not Dim:
        return a == b
    return _terms(a) == _terms(b)


def same_shape(a: tuple[Any, ...], b: tuple[Any, ...]) -> bool:
    """Whether two shapes have the same expressions; never adds a guard."""
    return len(a) == len(b) and all(map(same_size, a, b))


def evaluate(size: Size, sizes: Mapping[str, int]) -> int:
    """Return a size as an integer, given the sizes of the symbols."""
    if not isinstance(size, Dim):
        return size
    total = 0
    for monomial, factor in size.terms.items():
        for atom in monomial:
            if isinstance(atom, str):
                factor *= sizes[atom]
            else:
                factor *= _OPAQUE[atom.kind](evaluate(atom.left, sizes), evaluate(atom.right, sizes))
        total += factor
    return total


def substitute(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return an attribute value with every `Dim` in it (tuples and slices included) replaced by its integer."""
    if isinstance(value, Dim):
        return evaluate(value, sizes)
    if type(value) is SizeFloat:
        return value.at(sizes)
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        return tuple([substitute(item, sizes) for item in items])
    if isinstance(value, slice):
        return slice(substitute(value.start, sizes), substitute(value.stop, sizes), substitute(value.step, sizes))
    return value

"""The arithmetic of Python numbers whose values depend on tensors, because a branch or loop on tensors set them.

See `hybridflow.core.staged_number`. Floats are stored in float64 and rounded after every operation, as in Python. The
op `number` keeps XLA from fusing a product with a sum, and from reordering. Integers are stored in 64 bits; a call in
which one overflows fails.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.convert import is_number
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import (
    DType,
    bool_,
    float16,
    float64,
    int64,
    is_floating,
    is_integer,
    rounds_to_infinity,
)
from hybridflow.core.errors import NumberRangeError, message
from hybridflow.core.node import format_where, user_place
from hybridflow.core.staged_number import (
    BOOL,
    FLOAT,
    INT,
    LARGEST,
    Kinds,
    StagedNumber,
    default_dtype_of,
    needed,
    several_kinds,
    weak_dtype_of,
    widest,
)
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import add_check
from hybridflow.ir.number import NUMBER

EXACT = 1 << 53
"""A double holds every integer up to this magnitude."""
_RAW: dict[type, DType] = {bool: bool_, int: int64, float: float64}
_BELOW = float(LARGEST) * (1 - 2.0**-40)


# -- making staged numbers ------------------------------------------------------------------------------------------


def raw_dtype(kinds: Kinds) -> DType:
    """Return the dtype that stores numbers of these kinds: of the widest one."""
    return _RAW[widest(kinds)]


def magnitude(number: Any) -> int:
    """Return the largest magnitude that an integer can have."""
    if type(number) is StagedNumber:
        return number.limit
    return abs(number) if type(number) in (bool, int) else LARGEST


def kinds_of(number: Any) -> Kinds:
    """Return the types that a Python number has, or may have."""
    if type(number) is StagedNumber:
        return number.kinds
    if type(number) is SizeFloat:
        return FLOAT
    return frozenset((bool if isinstance(number, bool) else float if isinstance(number, float) else int,))


def staged(kinds: Kinds, raw: Any, limit: int = LARGEST, origin: str | None = None) -> StagedNumber:
    """Return the staged number that a tensor of shape () holds."""
    return StagedNumber(kinds, raw, limit, origin if len(kinds) > 1 else None, user_place(2))


def staged_int(raw: Any) -> StagedNumber:
    """Return the staged integer that a tensor of shape () holds; its integer dtype may have any width."""
    dtype = raw.dtype
    limit = min(LARGEST, int(np.iinfo(dtype).max))
    if dtype.itemsize == int64.itemsize:
        _require_small(PUBLIC.astype(raw, int64) if dtype != int64 else raw)
    elif dtype.name != "int32":
        raw = PUBLIC.astype(raw, np.dtype("int32") if dtype.itemsize < np.dtype("int32").itemsize else int64)
    return staged(INT, raw if raw.dtype != np.uint64 else PUBLIC.astype(raw, int64), limit)


def takes_dtype(number: Any, dtype: DType) -> bool:
    """Whether a number keeps its value in the dtype that a loop gives its variable."""
    if weak_dtype_of(number, dtype) == dtype:
        return True
    return type(number) in (bool, int, float) and dtype.type(number) == number


def raw_of(number: Any, dtype: DType) -> Tensor:
    """Return the tensor that stores a number, in the dtype of a wider kind."""
    if type(number) is not StagedNumber:
        return asarray(_small(number) if dtype == int64 else number, dtype=dtype)
    raw = number.raw
    return raw if raw.dtype == dtype else PUBLIC.astype(raw, dtype)


def _small(number: Any) -> Any:
    """Return a number; a call fails if it is an int beyond those that a loop can hold.

    Raises:
        NumberRangeError: it is.
    """
    if type(number) is TracedNumber and number.__class__ is int:
        return number.of(_small, (number,))
    if type(number) is int and abs(number) > LARGEST:
        raise NumberRangeError(_overflow_text())
    return number


def operand_of(value: Any) -> StagedNumber | None:
    """Return an operand as a staged number; None if it is no real Python number."""
    kind = type(value)
    if kind is StagedNumber:
        return value
    if kind is SizeFloat or kind is TracedNumber:
        kinds = kinds_of(value)
        return staged(kinds, asarray(_small(value), dtype=raw_dtype(kinds)))
    if kind is Dim:
        return staged(INT, asarray(value, dtype=int64), 1 << 48)
    if not is_number(value) or isinstance(value, complex):
        return None
    kinds = kinds_of(value)
    return staged(kinds, asarray(_small(value), dtype=raw_dtype(kinds)), 0 if float in kinds else abs(int(value)))


def _float(number: StagedNumber) -> Any:
    return raw_of(number, float64)


def _int(number: StagedNumber) -> Any:
    return raw_of(number, int64)


def _overflow_text() -> str:
    return message("a Python integer that a branch or loop on tensors decides is larger than 2**62",
                   hint="Integers there have 64 bits. Make it a float.")


def _require_small(raw: Any, bound: int = LARGEST) -> None:
    ok = PUBLIC.logical_and(raw <= bound, raw >= -bound)
    add_check(ok, NumberRangeError, _overflow_text())


def _require_exact(*numbers: StagedNumber) -> None:
    """Add checks for integers that are converted to doubles and may not be exact there."""
    for number in numbers:
        if float not in number.kinds and number.limit > EXACT:
            ok = PUBLIC.abs(_int(number)) <= EXACT
            text = "a Python integer that a branch or loop on tensors decides is larger than 2**53, and meets a float"
            add_check(ok, NumberRangeError, message(text, hint="Make it a float."))


def _made(kinds: Kinds, raw: Any, limit: int, *operands: StagedNumber) -> StagedNumber:
    origin = next((one.origin for one in operands if one.origin is not None), None)
    if float in kinds:
        raw = bind(NUMBER, (raw,))
        if len(kinds) > 1:
            ok = PUBLIC.logical_or(PUBLIC.abs(raw) <= float(EXACT), PUBLIC.logical_not(PUBLIC.isfinite(raw)))
            text = "a Python number that is an int or a float, as a tensor decides, is larger than 2**53"
            add_check(ok, NumberRangeError, message(text, got=origin, hint="Make it a float on every way."))
    return staged(kinds, raw, limit, origin)


def finished(kinds: Kinds, raw: Any) -> StagedNumber:
    """Return a float or bool that was just computed, as a staged number."""
    return _made(kinds, raw, 0)


# -- as tensors -----------------------------------------------------------------------------------------------------


def _tensor(self: StagedNumber, dtype: DType | None = None) -> Tensor:
    """Return the staged number as a tensor of a dtype, as `asarray` converts a Python number."""
    target = default_dtype_of(self) if dtype is None else dtype
    raw = self.raw
    if target == bool_:
        return raw if raw.dtype == bool_ else raw != 0
    if is_integer(target):
        return as_integer(self, target)
    if float in self.kinds:
        raw = bind(NUMBER, (raw,))
        if target.itemsize < float64.itemsize or target == np.complex64:
            fits = PUBLIC.abs(raw) < rounds_to_infinity(target)
            ok = PUBLIC.logical_or(fits, PUBLIC.logical_not(PUBLIC.isfinite(raw)))
            add_check(ok, NumberRangeError, _range_text(self, target))
    elif target == float16 and self.limit > _HALF:
        ok = PUBLIC.abs(_int(self)) <= _HALF
        add_check(ok, NumberRangeError, _range_text(self, target))
    if raw.dtype == int64 and self.limit > EXACT and is_floating(target):
        raw = PUBLIC.astype(raw, float64)  # Python's integers reach a float through a double
    return raw if raw.dtype == target else PUBLIC.astype(raw, target)


_HALF = 65504


def as_integer(number: StagedNumber, target: DType) -> Tensor:
    """Return a number as a tensor of an integer dtype; a call in which it does not fit fails."""
    info = np.iinfo(target)
    low, high = int(info.min), int(info.max)
    raw = number.raw
    if float in number.kinds:
        ok = PUBLIC.logical_and(raw > float(low) - 1 if low else raw > -1.0, raw < float(high) + 1)
        add_check(ok, NumberRangeError, _range_text(number, target))
    elif number.limit > high or (low == 0 and number.limit > 1):
        wide = _int(number)
        ok = wide >= low if high >= LARGEST else PUBLIC.logical_and(wide >= low, wide <= high)
        add_check(ok, NumberRangeError, _range_text(number, target))
    return raw if raw.dtype == target else PUBLIC.astype(raw, target)


def _range_text(number: StagedNumber, dtype: DType) -> str:
    made = format_where(number.where) or "an unknown place"
    return message(f"asarray: a Python {widest(number.kinds).__name__} that a branch or loop on tensors decides does "
                   f"not fit {dtype}", got=f"the number made at {made}", hint="Choose a wider dtype.")


def _truth(self: StagedNumber) -> Tensor:
    """Return ``bool`` of the number, as a tensor."""
    return self.raw if self.raw.dtype == bool_ else self.raw != 0


# -- arithmetic -----------------------------------------------------------------------------------------------------


def _arithmetic_kind(a: type, b: type) -> type:
    return float if float in (a, b) else int


def _bits_kind(a: type, b: type) -> type:
    if float in (a, b):
        raise TypeError(f"unsupported operand type(s) for a bitwise operator: {a.__name__!r} and {b.__name__!r}")
    return bool if a is b is bool else int


def _kinds(rule: Callable[[type, type], type], a: StagedNumber, b: StagedNumber) -> Kinds:
    if rule is _bits_kind:
        for one in (a, b):
            if float in one.kinds and len(one.kinds) > 1:
                raise several_kinds(one, "is an operand of a bitwise operator, which floats have not")
    return frozenset([rule(one, other) for one in a.kinds for other in b.kinds])


def _sum(function: Callable[[Any, Any], Any]) -> Callable[[StagedNumber, StagedNumber], StagedNumber]:
    def run(a: StagedNumber, b: StagedNumber) -> StagedNumber:
        kinds = _kinds(_arithmetic_kind, a, b)
        if float in kinds:
            return _made(kinds, function(_float(a), _float(b)), 0, a, b)
        raw = function(_int(a), _int(b))
        limit = a.limit + b.limit
        if limit > LARGEST:
            limit = LARGEST
            _require_small(raw)
        return _made(kinds, raw, limit)

    return run


def _multiply(a: StagedNumber, b: StagedNumber) -> StagedNumber:
    kinds = _kinds(_arithmetic_kind, a, b)
    if float in kinds:
        return _made(kinds, _float(a) * _float(b), 0, a, b)
    limit = a.limit * b.limit
    if limit > LARGEST:
        limit = LARGEST
        add_check(PUBLIC.abs(_float(a) * _float(b)) < _BELOW, NumberRangeError, _overflow_text())
    return _made(kinds, _int(a) * _int(b), limit)


def _python_error(function: Callable[[Any, Any], Any], a: Any, b: Any) -> tuple[type[Any], str]:
    try:
        function(a, b)
    except ArithmeticError as error:
        return type(error), str(error)
    raise AssertionError


def _require_divisor(function: Callable[[Any, Any], Any], a: StagedNumber, b: StagedNumber, known: Any) -> None:
    if known is not None and known != 0:
        return
    zero = b.raw != 0 if b.raw.dtype != bool_ else b.raw
    one, other = 1.0 if float in a.kinds else 1, 0.0 if float in b.kinds else 0
    add_check(zero, *_python_error(function, one, other))


def _divide(a: StagedNumber, b: StagedNumber, known: Any) -> StagedNumber:
    _require_divisor(operator.truediv, a, b, known)
    if float not in a.kinds | b.kinds:
        _require_exact(a, b)
    x, y = _float(a), _float(b)
    if known is not None:  # XLA would multiply by the inverse of a constant, which rounds differently
        y = PUBLIC.where(x == x, y, math.nan)
    return _made(FLOAT, PUBLIC.divide(x, y), 0)


def _floor(
    function: Callable[[Any, Any], Any], name: str
) -> Callable[[StagedNumber, StagedNumber, Any], StagedNumber]:
    def run(a: StagedNumber, b: StagedNumber, known: Any) -> StagedNumber:
        _require_divisor(function, a, b, known)
        kinds = _kinds(_arithmetic_kind, a, b)
        ours = getattr(PUBLIC, name)
        if float in kinds:
            return _made(kinds, ours(_float(a), _float(b)), 0, a, b)
        return _made(kinds, ours(_int(a), _int(b)), a.limit if name == "floor_divide" else b.limit)

    return run


def _power(a: StagedNumber, b: StagedNumber, known: Any, base: Any) -> StagedNumber:
    negative = known is not None and known < 0

    def kind(one: type, other: type) -> type:
        return float if float in (one, other) or negative else int

    kinds = _kinds(kind, a, b)
    if int in kinds and known is None:
        if float not in b.kinds:
            text = message("a negative power of a Python integer is a float; that it is one depends on a tensor here",
                           hint="Make the base a float.")
            add_check(_int(b) >= 0, NumberRangeError, text)
        else:
            kinds = FLOAT if kinds == FLOAT else kinds
    if float not in kinds:
        est = PUBLIC.power(PUBLIC.abs(_float(a)), _float(b))
        add_check(est < _BELOW, NumberRangeError, _overflow_text())
        return _made(kinds, PUBLIC.power(_int(a), _int(b)), LARGEST)
    x, y = _float(a), _float(b)
    if known is None or known < 0:
        ok = PUBLIC.logical_not(PUBLIC.logical_and(x == 0, y < 0))
        add_check(ok, *_python_error(operator.pow, 0.0 if float in a.kinds else 0, -1))
    if (known is None or known != int(known)) and not (base is not None and base >= 0):
        ok = PUBLIC.logical_not(PUBLIC.logical_and(x < 0, PUBLIC.floor(y) != y))
        text = message("a fractional power of a negative Python number is complex; a tensor decides that it is one",
                       hint="Take abs() of it, or start with a complex tensor.")
        add_check(ok, NumberRangeError, text)
    raw = PUBLIC.power(x, y)
    finite = PUBLIC.logical_and(PUBLIC.isfinite(x), PUBLIC.isfinite(y))
    broken = PUBLIC.logical_and(PUBLIC.isinf(raw), PUBLIC.logical_and(finite, x != 0))
    add_check(PUBLIC.logical_not(broken), *_python_error(operator.pow, 1e300, 2.0))
    return _made(kinds, raw, 0, a, b)


def _bits(name: str, ours: str) -> Callable[[StagedNumber, StagedNumber], StagedNumber]:
    def run(a: StagedNumber, b: StagedNumber) -> StagedNumber:
        kinds = _kinds(_bits_kind, a, b)
        dtype = raw_dtype(kinds)
        limit = (1 << max(a.limit, b.limit).bit_length()) - 1
        return _made(kinds, getattr(PUBLIC, ours)(raw_of(a, dtype), raw_of(b, dtype)), min(limit + 1, LARGEST))

    run.__name__ = name
    return run


def _require_shift(b: StagedNumber, known: Any) -> None:
    if known is None:
        add_check(_int(b) >= 0, ValueError, "negative shift count")
    elif known < 0:
        raise ValueError("negative shift count")


def _shift_left(a: StagedNumber, b: StagedNumber, known: Any) -> StagedNumber:
    kinds = INT
    _kinds(_bits_kind, a, b)
    _require_shift(b, known)
    est = PUBLIC.abs(_float(a)) * PUBLIC.power(asarray(2.0, dtype=float64), _float(b))
    add_check(PUBLIC.logical_or(est < _BELOW, _int(a) == 0), NumberRangeError, _overflow_text())
    shift = PUBLIC.minimum(_int(b), 62)
    return _made(kinds, PUBLIC.bitwise_left_shift(_int(a), shift), LARGEST)


def _shift_right(a: StagedNumber, b: StagedNumber, known: Any) -> StagedNumber:
    _kinds(_bits_kind, a, b)
    _require_shift(b, known)
    shift = PUBLIC.minimum(_int(b), 63)
    return _made(INT, PUBLIC.bitwise_right_shift(_int(a), shift), a.limit)


def _compare(function: Callable[[Any, Any], Any]) -> Callable[[StagedNumber, StagedNumber], StagedNumber]:
    def run(a: StagedNumber, b: StagedNumber) -> StagedNumber:
        if float in a.kinds | b.kinds:
            _require_exact(a, b)
            raw = function(_float(a), _float(b))
        else:
            raw = function(_int(a), _int(b))
        return staged(BOOL, raw, 1)

    return run


def _known(value: Any) -> Any:
    return value if type(value) in (bool, int, float) else None


_PLAIN: dict[str, Any] = {
    "add": _sum(operator.add), "sub": _sum(operator.sub), "mul": _multiply,
    "and": _bits("and", "bitwise_and"), "or": _bits("or", "bitwise_or"), "xor": _bits("xor", "bitwise_xor"),
}
_DIVIDING: dict[str, Any] = {
    "truediv": _divide, "floordiv": _floor(operator.floordiv, "floor_divide"),
    "mod": _floor(operator.mod, "remainder"), "lshift": _shift_left, "rshift": _shift_right,
}
_ORDER: dict[str, Any] = {name: _compare(getattr(operator, name)) for name in ("lt", "le", "gt", "ge", "eq", "ne")}


def apply(name: str, left: Any, right: Any) -> Any:
    """Return a binary operator's result for two numbers, one of them staged; an array operand becomes traced."""
    for one in (left, right):
        if isinstance(one, Tensor | Variable) or type(one) is TracedArray:
            return NotImplemented
    for array, other, flipped in ((left, right, False), (right, left, True)):
        if isinstance(array, np.ndarray | np.generic | jax.Array):
            function = getattr(operator, f"{name}_" if name in ("and", "or") else name)
            made = TracedArray(asarray(array), type(array), "an array from outside")
            return function(other, made) if flipped else function(made, other)
    a, b = operand_of(left), operand_of(right)
    if a is None or b is None:
        return NotImplemented
    if name in _ORDER:
        return _ORDER[name](a, b)
    if name in _PLAIN:
        return _PLAIN[name](a, b)
    if name == "pow":
        return _power(a, b, _known(right), _known(left))
    return _DIVIDING[name](a, b, _known(right))


def _method(name: str, reflected: bool) -> Callable[[Any, Any], Any]:
    if reflected:
        return lambda self, other: apply(name, other, self)
    return lambda self, other: apply(name, self, other)


def negative(self: StagedNumber) -> StagedNumber:
    """Return ``-self``."""
    if float in self.kinds:
        return _made(self.kinds - {bool} | ({int} if bool in self.kinds else set()), -self.raw, 0, self)
    return _made(INT, -_int(self), min(self.limit + 1, LARGEST))


def positive(self: StagedNumber) -> StagedNumber:
    """Return ``+self``."""
    return as_int(self) if self.kinds <= {bool, int} else self


def absolute(self: StagedNumber) -> StagedNumber:
    """Return ``abs(self)``."""
    if float in self.kinds:
        return _made(self.kinds, PUBLIC.abs(self.raw), 0, self)
    return _made(INT, PUBLIC.abs(_int(self)), min(self.limit + 1, LARGEST))


def inverted(self: StagedNumber) -> StagedNumber:
    """Return ``~self``."""
    if float in self.kinds:
        if len(self.kinds) > 1:
            raise several_kinds(self, "is an operand of ~, which floats have not")
        raise TypeError("bad operand type for unary ~: 'float'")
    return _made(INT, PUBLIC.bitwise_invert(_int(self)), min(self.limit + 1, LARGEST))


def _divmod(left: Any, right: Any) -> Any:
    return left // right, left % right


def powered(self: Any, other: Any, modulus: Any = None) -> Any:
    """Return ``pow(self, other)``; with a modulus, Python's integers of any length are needed."""
    if modulus is None:
        return apply("pow", self, other)
    return needed(next(one for one in (self, other, modulus) if type(one) is StagedNumber), "pow with a modulus")


# -- conversions ----------------------------------------------------------------------------------------------------


def as_int(number: StagedNumber) -> StagedNumber:
    """Return ``int(number)``."""
    if float not in number.kinds:
        raw = number.raw
        return _made(INT, _int(number) if raw.dtype == bool_ else raw, number.limit)
    return _whole(number, PUBLIC.trunc(number.raw))


def _whole(number: StagedNumber, raw: Any) -> StagedNumber:
    """Return a double without a fractional part as an integer."""
    add_check(PUBLIC.logical_not(PUBLIC.isnan(raw)), ValueError, "cannot convert float NaN to integer")
    finite = PUBLIC.logical_not(PUBLIC.isinf(raw))
    add_check(finite, OverflowError, "cannot convert float infinity to integer")
    add_check(PUBLIC.abs(raw) < _BELOW, NumberRangeError, _overflow_text())
    del number
    return _made(INT, PUBLIC.astype(raw, int64), LARGEST)


def as_float(number: StagedNumber) -> StagedNumber:
    """Return ``float(number)``."""
    return _made(FLOAT, _float(number), 0)


def as_bool(number: StagedNumber) -> StagedNumber:
    """Return ``bool(number)``."""
    return staged(BOOL, _truth(number), 1)


def _to_whole(name: str) -> Callable[[StagedNumber], StagedNumber]:
    def run(self: StagedNumber) -> StagedNumber:
        return as_int(self) if float not in self.kinds else _whole(self, getattr(PUBLIC, name)(self.raw))

    return run


def rounded(self: StagedNumber, digits: Any = None) -> StagedNumber:
    """Return ``round(self)``; Python's decimal rounding of floats has no equivalent here."""
    if digits is None:
        return _to_whole("round")(self)
    if float not in self.kinds and type(digits) is int and digits >= 0:
        return as_int(self)
    return needed(self, "round")


def shown(number: StagedNumber) -> str:
    """Return the text that stands for the number in messages."""
    return f"<{widest(number.kinds).__name__} of each call>"


def _refusing(name: str) -> Callable[..., Any]:
    return lambda self, *_, **__: needed(self, name)


def _unknown_attribute(self: StagedNumber, name: str) -> Any:
    raise AttributeError(f"{widest(self.kinds).__name__!r} object has no attribute {name!r}", name=name)


_OF_UFUNCS: dict[Any, str] = {
    np.add: "add", np.subtract: "sub", np.multiply: "mul", np.divide: "truediv", np.floor_divide: "floordiv",
    np.remainder: "mod", np.power: "pow", np.bitwise_and: "and", np.bitwise_or: "or", np.bitwise_xor: "xor",
    np.left_shift: "lshift", np.right_shift: "rshift", np.less: "lt", np.less_equal: "le", np.greater: "gt",
    np.greater_equal: "ge", np.equal: "eq", np.not_equal: "ne",
}


def _ufunc(self: StagedNumber, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
    """Run the operators of NumPy's arrays; the other operand's own rules come first, and the rest has no value here."""
    if any(isinstance(one, Tensor | Variable) or type(one) is TracedArray for one in inputs):
        return NotImplemented
    arrays = any(isinstance(one, np.ndarray | np.generic) for one in inputs)
    if method != "__call__" or options or not arrays or ufunc not in _OF_UFUNCS:
        return needed(self, f"numpy.{ufunc.__name__}")
    return apply(_OF_UFUNCS[ufunc], *inputs)


def _install() -> None:
    for name in (*_PLAIN, *_DIVIDING, "pow"):
        setattr(StagedNumber, f"__{name}__", _method(name, False))
        setattr(StagedNumber, f"__r{name}__", _method(name, True))
    for name in _ORDER:
        setattr(StagedNumber, f"__{name}__", _method(name, False))
    for name in ("bool", "int", "float", "complex", "index", "hash", "array", "reduce_ex", "reduce", "sizeof",
                 "str", "repr", "format"):
        setattr(StagedNumber, f"__{name}__", _refusing(name))
    alone: dict[str, Any] = {
        "neg": negative, "pos": positive, "abs": absolute, "invert": inverted, "round": rounded,
        "trunc": as_int, "floor": _to_whole("floor"), "ceil": _to_whole("ceil"), "divmod": _divmod,
        "rdivmod": lambda self, other: _divmod(other, self), "getattr": _unknown_attribute, "array_ufunc": _ufunc,
        "pow": powered,
    }
    for name, function in alone.items():
        setattr(StagedNumber, f"__{name}__", function)
    StagedNumber.tensor, StagedNumber.truth = _tensor, _truth  # pyright: ignore[reportAttributeAccessIssue]


_install()

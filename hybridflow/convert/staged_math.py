"""Python's functions of numbers, for numbers that a branch or loop on tensors decides.

They are computed in float64. ``math.sqrt`` and the rounding functions are exact. XLA's transcendental functions may
differ from the C library's by a few units in the last place of a double. Domain errors and overflows raise as in
Python.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.staged import as_float, as_int, finished, kinds_of, operand_of, powered, staged
from hybridflow.convert.staged_reads import is_instance
from hybridflow.core.dtypes import float64
from hybridflow.core.staged_number import BOOL, FLOAT, StagedNumber, needed, several_kinds
from hybridflow.core.tensor import asarray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.ir.builder import add_check

_SAME_NAME = (
    "sqrt", "exp", "expm1", "log1p", "log2", "log10", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh",
)
_OVERFLOWS = frozenset({"exp", "expm1", "sinh", "cosh", "pow"})
_TESTS = ("isnan", "isinf", "isfinite")


def _float(value: Any) -> Any:
    """Return an operand in float64."""
    number = operand_of(value)
    return asarray(math.fsum((value,)), dtype=float64) if number is None else as_float(number).raw


def _checked(name: str, raw: Any, *xs: Any) -> StagedNumber:
    """Return a result, with checks that raise Python's domain and range errors."""
    known: Any = None
    finite: Any = None
    for x in xs:
        number, bounded = PUBLIC.logical_not(PUBLIC.isnan(x)), PUBLIC.isfinite(x)
        known = number if known is None else PUBLIC.logical_and(known, number)
        finite = bounded if finite is None else PUBLIC.logical_and(finite, bounded)
    domain = PUBLIC.logical_not(PUBLIC.logical_and(PUBLIC.isnan(raw), known))
    bounded = PUBLIC.logical_not(PUBLIC.logical_and(PUBLIC.isinf(raw), finite))
    if name not in _OVERFLOWS:
        domain = PUBLIC.logical_and(domain, bounded)
    add_check(domain, ValueError, "math domain error")
    if name in _OVERFLOWS:
        add_check(bounded, OverflowError, "math range error")
    return finished(FLOAT, raw)


def _elementary(name: str) -> Callable[[Any], StagedNumber]:
    def run(value: Any, /) -> StagedNumber:
        x = _float(value)
        return _checked(name, getattr(PUBLIC, name)(x), x)

    return run


def _test(name: str) -> Callable[[Any], StagedNumber]:
    return lambda value, /: staged(BOOL, getattr(PUBLIC, name)(_float(value)), 1)


def _log(value: Any, base: Any = math.e, /) -> StagedNumber:
    x = _float(value)
    logarithm = _checked("log", PUBLIC.log(x), x)
    if base is math.e:
        return logarithm
    other = math.log(base) if type(base) in (int, float) else _log(base)
    return logarithm / other


def _two(ours: str, name: str) -> Callable[[Any, Any], StagedNumber]:
    def run(first: Any, second: Any, /) -> StagedNumber:
        x, y = _float(first), _float(second)
        return _checked(name, getattr(PUBLIC, ours)(x, y), x, y)

    return run


_hypot_of_two = _two("hypot", "hypot")


def _hypot(*values: Any) -> StagedNumber:
    if len(values) == 1:
        return _fabs(*values)
    if len(values) == 2:
        return _hypot_of_two(*values)
    return needed(next(one for one in values if type(one) is StagedNumber), "math.hypot of more than two numbers")


def _copysign(first: Any, second: Any, /) -> StagedNumber:
    return finished(FLOAT, PUBLIC.copysign(_float(first), _float(second)))


def _fabs(value: Any, /) -> StagedNumber:
    return finished(FLOAT, PUBLIC.abs(_float(value)))


def _whole(value: Any = 0, /, *more: Any, **named: Any) -> Any:
    if more or named or type(value) is not StagedNumber:
        return needed(next(one for one in (value, *more, *named.values()) if type(one) is StagedNumber), "int")
    return as_int(value)


def _power(first: Any, second: Any, modulus: Any = None) -> Any:
    return pow(first, second) if modulus is None else powered(first, second, modulus)


def _sum_of(*numbers: Any) -> Any:
    return sum(numbers[1:], numbers[0])


def summed(numbers: list[Any]) -> Any:
    """Return the sum of Python numbers as ``sum`` computes it: CPython adds those that no tensor decides."""
    if not any(type(one) is StagedNumber for one in numbers):
        of_call = next((one for one in numbers if type(one) is TracedNumber), None)
        return _sum_of(*numbers) if of_call is None else of_call.applied(_sum_of, *numbers)
    total = numbers.pop(0)
    while numbers and float not in kinds_of(total):
        total = total + numbers.pop(0)
    if sys.version_info < (3, 12) or len(numbers) < 2:
        return _sum_of(total, *numbers)
    for one in (total, *numbers):
        if type(one) is StagedNumber and float in one.kinds and len(one.kinds) > 1:
            raise several_kinds(one, "is added up by sum(), which adds floats and ints differently")
    return _compensated(operand_of(total), numbers)


def _compensated(total: Any, numbers: list[Any]) -> StagedNumber:
    """Return the sum of floats and ints as Python computes it since 3.12: by Neumaier's algorithm."""
    lost: Any = staged(FLOAT, asarray(0.0, dtype=float64))
    for one in map(as_float_of, numbers):
        now = total + one[0]
        if one[1] or sys.version_info >= (3, 14):
            larger = PUBLIC.abs(total.raw) >= PUBLIC.abs(one[0].raw)
            error = PUBLIC.where(larger, ((total - now) + one[0]).raw, ((one[0] - now) + total).raw)
            lost = lost + finished(FLOAT, error)
        total = now
    return finished(FLOAT, PUBLIC.where(PUBLIC.isfinite(lost.raw), (total + lost).raw, total.raw))


def as_float_of(number: Any) -> tuple[StagedNumber, bool]:
    """Return a number as a float, and whether it was one."""
    operand = operand_of(number)
    assert operand is not None
    return as_float(operand), float in operand.kinds


NUMBER_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    int: _whole,
    pow: _power,
    isinstance: is_instance,
    float: as_float,
    math.log: _log,
    math.atan2: _two("atan2", "atan2"),
    math.hypot: _hypot,
    math.pow: _two("power", "pow"),
    math.copysign: _copysign,
    math.fabs: _fabs,
    **{getattr(math, name): _elementary(name) for name in _SAME_NAME},
    **{getattr(math, name): _test(name) for name in _TESTS},
}
"""The replacements of Python's functions for arguments that include a staged number."""

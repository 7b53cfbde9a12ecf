"""Python's built-in functions, applied to tensors."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import filtered, protocols, regions, staged_reads
from hybridflow.convert.branches import ENDLESS, endless, value_on_tensor, where_now
from hybridflow.convert.chains import kept_by, mapped, rest_of
from hybridflow.convert.filtered import Filtered, truths
from hybridflow.convert.rows import StandsFor, Stream, TensorRange, enumerated, ranged, reversed_rows, zipped
from hybridflow.convert.staged import (
    as_float,
    as_int,
    finished,
    kinds_of,
    magnitude,
    operand_of,
    powered,
    raw_dtype,
    raw_of,
    staged,
)
from hybridflow.convert.staged_reads import is_instance
from hybridflow.convert.texts import printed as text_of
from hybridflow.convert.texts import require_known
from hybridflow.convert.values import (
    Value,
    is_dynamic,
    is_real_number,
    is_staged,
    is_tensor,
    made_at,
    negated,
    same_python,
    truth,
)
from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import float64, int32, is_floating
from hybridflow.core.errors import ArgumentError, DTypeError, TraceError, message
from hybridflow.core.held import defines
from hybridflow.core.staged_number import BOOL, FLOAT, StagedNumber, needed, several_kinds, weak_dtype_of
from hybridflow.core.structures import parts_of
from hybridflow.core.tensor import as_tensor, asarray
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.core.traced_text import TracedText
from hybridflow.core.variable import Variable
from hybridflow.guards import numpy_rules, observe
from hybridflow.guards.access import IN_CLASS, MISSING
from hybridflow.guards.moving import is_open
from hybridflow.ir.builder import add_check
from hybridflow.ir.variables import ArgumentVariable
from hybridflow.ops import effects

# -- ``sorted`` in converted code: Python's own sort, or one by tensors -----------------------------------------------


def sorted_items(iterable: Iterable[Any], /, *, key: Callable[[Any], Any] | None = None, reverse: Any = False) -> Any:
    """Return ``sorted``. With tensors among the keys, a number in the items becomes one that a tensor decides.

    Raises:
        DTypeError: the keys have different dtypes.
        TraceError: the items differ in more than tensors and numbers.
        ArgumentError: at run time, if a key is NaN: Python's sort then depends on the order of its comparisons.
    """
    items = list(iterable)
    keys = items if key is None else [key(item) for item in items]
    if len(items) > 1 and any(map(is_staged, keys)):
        return _chosen_from(items, PUBLIC.argsort(_stacked_keys(keys), descending=bool(reverse), stable=True))
    for one in keys:
        observe.special(one, "__lt__", "__gt__")
    compared = protocols.ordered(keys)
    return [items[index] for index in builtins.sorted(range(len(items)), key=compared.__getitem__, reverse=reverse)]


def _stacked_keys(keys: Sequence[Any]) -> Any:
    """Return the keys as a tensor with one axis."""
    tensors = [as_tensor(one) for one in keys if is_tensor(one)]
    if tensors:
        dtypes = [one.dtype if is_tensor(one) else weak_dtype_of(one, tensors[0].dtype) for one in keys]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise DTypeError(f"sorted: the keys have different dtypes, at {where_now()}",
                             got=", ".join(map(str, dict.fromkeys(dtypes))), hint="Cast them to one.")
        made = [asarray(one, dtype=dtypes[0]) for one in keys]
        for one in made:
            if one.size != 1:
                truth(one)  # raises the error for a comparison of several elements
        stacked: Any = PUBLIC.stack([one.reshape(()) for one in made])
    else:
        dtype = raw_dtype(frozenset().union(*map(kinds_of, keys)))
        stacked = PUBLIC.stack([raw_of(one, dtype) for one in keys])
    if is_floating(stacked.dtype):
        text = message("sorted: a key is NaN, which Python's sort leaves where its comparisons happen to put it",
                       hint="Replace it, for example with hf.where(hf.isnan(key), hf.inf, key).")
        add_check(PUBLIC.all(PUBLIC.equal(stacked, stacked)), ArgumentError, text)
    return stacked if stacked.dtype != np.bool_ else PUBLIC.astype(stacked, int32)


def _chosen_from(items: Sequence[Any], order: Any) -> list[Any]:
    """Return the items in an order that a tensor decides; each keeps its structure, and its leaves their types."""
    values = [Value.of(item) for item in items]
    first = values[0]
    other = next((one for one in values if not one.is_like(first)), None)
    if other is not None:
        raise _cannot_move(first.source, other.source)
    columns = [_column(leaves, order) for leaves in zip(*[one.leaves for one in values], strict=True)]
    return [
        first.filled([column(index) for column in columns if column is not None], *items[1:])
        for index in range(len(items))
    ]


def _column(leaves: Sequence[Any], order: Any) -> Callable[[int], Any] | None:
    """Return a function of a position that chooses among the leaves in one place; None for one that cannot change."""
    first = leaves[0]
    if all(same_python(first, one) for one in leaves):
        return (lambda _: first) if is_dynamic(first) else None
    if all(map(is_real_number, leaves)):
        kinds = frozenset().union(*map(kinds_of, leaves))
        limit = max(map(magnitude, leaves))
        raws: Any = PUBLIC.stack([raw_of(one, raw_dtype(kinds)) for one in leaves])
        return lambda index: staged(kinds, raws[order[index]], limit, "an item of a sorted list")
    tensor = next((as_tensor(one) for one in leaves if is_tensor(one)), None)
    if tensor is None:
        raise _cannot_move(first, next(one for one in leaves if not same_python(first, one)))
    other = next((one for one in leaves if not _is_like(one, tensor)), None)
    if other is not None:
        raise _cannot_move(tensor, other)
    whole: Any = PUBLIC.stack([asarray(one, dtype=tensor.dtype) for one in leaves])
    return lambda index: whole[order[index]]


def _is_like(leaf: Any, tensor: Any) -> bool:
    """Whether a leaf has the shape and dtype of a tensor, or is a number that takes them where they meet."""
    if is_real_number(leaf):
        return tensor.shape == () and weak_dtype_of(leaf, tensor.dtype) == tensor.dtype
    return is_tensor(leaf) and leaf.shape == tensor.shape and leaf.dtype == tensor.dtype


def _cannot_move(one: Any, other: Any) -> TraceError:
    return TraceError(
        f"sorted: which item comes where depends on a tensor, and the items differ in more than the values of "
        f"tensors and numbers, at {where_now()}", got=f"{made_at(one)} and {made_at(other)}",
        hint="Sort the tensors with hf.argsort, or give the items one structure and shape."
    )


def concerned(value: Any) -> bool:
    """Whether a builtin's argument is staged, or made of tensors."""
    return is_staged(value) or isinstance(value, Stream | TensorRange)


def any_true(iterable: Iterable[Any]) -> Any:
    """Return ``any``: a bool that a tensor decides, if it depends on one."""
    either: Any = None
    for item in truths(iterable, neutral=False):
        if is_staged(item):
            either = truth(item) if either is None else PUBLIC.logical_or(either, truth(item))
        elif protocols.truth_of(item):
            return True
    return False if either is None else staged(BOOL, either, 1)


def all_true(iterable: Iterable[Any]) -> Any:
    """Return ``all``: a bool that a tensor decides, if it depends on one."""
    every: Any = None
    for item in truths(iterable, neutral=True):
        if is_staged(item):
            every = truth(item) if every is None else PUBLIC.logical_and(every, truth(item))
        elif not protocols.truth_of(item):
            return False
    return True if every is None else staged(BOOL, every, 1)


def _extreme(name: str, better: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    python = getattr(builtins, name)

    def extreme(*args: Any, key: Callable[[Any], Any] | None = None, default: Any = MISSING) -> Any:
        given = {} if default is MISSING else {"default": default}
        if len(args) != 1 and (not args or given):
            return python(*args, **given)  # raises Python's error
        if len(args) == 1 and isinstance(args[0], Filtered):
            return filtered.extreme(python, better, args[0], key, tuple(given.values()))
        best = best_key = MISSING
        for item in args[0] if len(args) == 1 else args:
            item_key = item if key is None else key(item)
            is_better = True if best is MISSING else protocols.truth_of(better(item_key, best_key))
            if is_staged(is_better):
                best, best_key = value_on_tensor(
                    is_better, lambda pair=(item, item_key): pair, lambda pair=(best, best_key): pair
                )
            elif is_better:
                best, best_key = item, item_key
        return python((), **given) if best is MISSING else best

    return extreme


def _is_number(value: Any) -> bool:
    return type(value) is StagedNumber


def _stands_for_more(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether an abstract class would take the stand-in for an array for more than the array is."""
    return function is isinstance and bool(args) and type(args[0]) is TracedArray


def _bool(value: Any) -> Any:
    return staged(BOOL, truth(value), 1)


def printed(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print; if there are tensors among the values, print at every call."""
    require_known(sep, end)
    texts = [one if any(map(is_staged, parts_of(one))) else text_of(one) for one in values]
    stream = sys.stdout if file is None else file
    elsewhere = stream in (sys.stdout, sys.stderr) and is_open(stream) and observe.is_outside(stream)
    if not elsewhere and all([type(one) is str for one in texts]):
        builtins.print(*texts, sep=sep, end=end, file=file, flush=flush)
    else:
        effects.print(*texts, sep=sep, end=end, file=file)


def contains(item: Any, container: Any) -> Any:
    """Return ``item in container``."""
    regions.read(container)
    if type(container) is TracedArray:
        container = container == item
        return _bool(container.any())
    if is_tensor(container):
        return _bool(PUBLIC.any(PUBLIC.equal(as_tensor(container), item)))
    stand = protocols.stand_in(container, protocols.CONTAINMENT)
    if stand is not container:
        if IN_CLASS.get(type(container), "__contains__") is MISSING:
            return _found(item, stand)
        result = protocols.driven(operator.contains, stand, item)
        return _bool(result) if is_staged(result) else result
    if type(container) in (list, tuple) and not all(map(_is_compared_by_python, (item, *container))):
        return _found(item, container)
    if type(item) is StagedNumber and isinstance(container, set | frozenset | dict | range) and len(container) <= _MOST:
        numbers = [one for one in container if isinstance(one, bool | int | float)]
        return any_true(map(protocols.COMPARISONS["Eq"], numbers, itertools.repeat(item)))
    observe.asked(container, item)
    return item in container


def _is_compared_by_python(value: Any) -> bool:
    return protocols.is_plain(value) and not is_staged(value)


def _found(item: Any, items: Any) -> Any:
    """Return whether an item is among others, which are compared one by one; a tensor may decide it."""
    try:
        iterator = iter(items)
    except TypeError:
        return item in type(type(items).__name__, (), {})()  # raises Python's error
    either: Any = None
    count = 0
    while (one := next(iterator, MISSING)) is not MISSING:
        count += 1
        if _identical(one, item):
            return True
        equal = protocols.truth_of(protocols.COMPARISONS["Eq"](one, item))
        if is_staged(equal):
            either = truth(equal) if either is None else PUBLIC.logical_or(either, truth(equal))
            if count > ENDLESS and not defines(type(items), "__len__"):
                raise endless("in")
        elif equal:
            return True
    return False if either is None else staged(BOOL, either, 1)


def _identical(a: Any, b: Any) -> bool:
    """Whether a container takes two values for equal before it compares them; stand-ins are compared."""
    return a is b or (type(a) not in _STAND_INS and type(b) not in _STAND_INS and observe.same(a, b))


_STAND_INS = frozenset({StagedNumber, TracedNumber})
_MOST = 256
"""The number of items of a set or range up to which a number that a tensor decides is compared with each."""


_STOOD_FOR: dict[type, type] = {SizeFloat: float, Dim: int, ArgumentVariable: Variable, TracedText: str}


def type_of(*args: Any, **more: Any) -> Any:
    """Return ``type``; for a stand-in, the type of what it stands for."""
    if len(args) != 1 or more:
        return type(*args, **more)
    kind = type(args[0])
    if kind is TracedArray:
        return numpy_rules.kind_of(args[0])
    if issubclass(kind, StandsFor):
        return args[0].stands_for
    return staged_reads.type_of(args[0]) if kind in _STAND_INS else _STOOD_FOR.get(kind, kind)


class _Addend:
    """An object in a sum: CPython adds it by the operators of converted code."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __add__(self, other: Any) -> Any:
        return _addend(_add(self.value, _of_addend(other)))

    def __radd__(self, other: Any) -> Any:
        return _addend(_add(other, self.value))


_add = protocols.BINARY["Add"]


def _addend(value: Any) -> Any:
    regions.read(value)
    return value if protocols.is_plain(value) else _Addend(value)


def _of_addend(value: Any) -> Any:
    return value.value if type(value) is _Addend else value


_ADDED_BY_PYTHON = frozenset({int, float, bool, TracedNumber, StagedNumber})
"""Types of numbers that Python's sum adds up more exactly than one by one."""


def _sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """Return ``sum``: CPython adds the items, other than its own numbers by the operators of converted code."""
    if isinstance(iterable, Filtered):
        return filtered.summed(iterable, start)
    if isinstance(start, str | bytes | bytearray):
        return sum((), start)  # raises Python's error
    items = rest_of(iter(iterable))
    numbers = [start]
    rest: Iterable[Any] = items
    if type(start) in _ADDED_BY_PYTHON:
        rest = ()
        for item in items:
            if type(item) not in _ADDED_BY_PYTHON:
                rest = itertools.chain((item,), items)
                break
            numbers.append(item)
    total = summed(numbers) if len(numbers) > 1 else start
    return _of_addend(sum(map(_addend, rest), _addend(total)))


ALWAYS: dict[Any, Callable[..., Any]] = {
    any: any_true, all: all_true,
    min: _extreme("min", protocols.COMPARISONS["Lt"]), max: _extreme("max", protocols.COMPARISONS["Gt"]),
    sorted: sorted_items, print: printed, type: type_of, map: mapped, filter: kept_by, sum: _sum,
    id: staged_reads.identity, operator.is_: staged_reads.same,
    operator.is_not: lambda a, b: negated(staged_reads.same(a, b)),
}
"""Builtins that are always replaced: their items may be tensors, or they would reveal a stand-in."""
ON_TENSORS: dict[Any, Callable[..., Any]] = {
    range: ranged, enumerate: enumerated, zip: zipped, reversed: reversed_rows, bool: _bool, operator.truth: _bool,
    operator.not_: negated,
}
"""Builtins that are replaced if an argument is a tensor."""


def _length(items: Any) -> Any:
    if type(items) is Filtered:
        return filtered.counted(items)
    return items.count() if type(items) is TensorRange else items.shape[0]


def _has_open_length(value: Any) -> bool:
    """Whether the number of a value's items is not known in the trace."""
    sizes = value.shape[:1] if is_tensor(value) else ()
    return type(value) in (Filtered, TensorRange) or any(type(size) is Dim for size in sizes)


ON_OPEN: dict[Any, Callable[..., Any]] = {len: _length}
"""Builtins that are replaced if a tensor, or the size of an open axis, decides how many items there are."""


def replacement(function: Any) -> Callable[..., Any] | None:
    """Return the replacement of a builtin in converted code; None if it has none."""
    try:
        stand_in = ALWAYS.get(function) or ON_TENSORS.get(function) or ON_OPEN.get(function)
        return stand_in or NUMBER_FUNCTIONS.get(function)
    except TypeError:  # unhashable, so it is no builtin
        return None


def replaces(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call of a builtin goes to its replacement."""
    if function in ON_OPEN:
        return len(args) == 1 and _has_open_length(args[0])
    if function in NUMBER_FUNCTIONS:
        return any(map(_is_number, args)) or _stands_for_more(function, args)
    return function in ALWAYS or any(map(concerned, args))


__all__ = ["contains", "replacement", "replaces"]


# -- python's functions of numbers, for numbers that a branch or loop on tensors decides ------------------------------
# They are computed in float64. ``math.sqrt`` and the rounding functions are exact. XLA's transcendental functions may
# differ from the C library's by a few units in the last place of a double. Domain errors and overflows raise as in
# Python.

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

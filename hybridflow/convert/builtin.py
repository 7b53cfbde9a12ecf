"""Python's built-in functions, applied to tensors."""

from __future__ import annotations

import builtins
import itertools
import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import filtered, protocols
from hybridflow.convert.branches import ENDLESS, endless, value_on_tensor
from hybridflow.convert.chains import kept_by, mapped
from hybridflow.convert.filtered import Filtered, truths
from hybridflow.convert.rows import Stream, TensorRange, enumerated, ranged, reversed_rows, zipped
from hybridflow.convert.sorting import sorted_items
from hybridflow.convert.staged import as_bool, kinds_of, operand_of
from hybridflow.convert.staged_math import NUMBER_FUNCTIONS
from hybridflow.convert.values import is_staged, is_tensor, truth
from hybridflow.core.staged_number import FLOAT, StagedNumber, several_kinds, widest
from hybridflow.core.tensor import as_tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_float import TracedFloat
from hybridflow.guards import numpy_rules, observe
from hybridflow.guards.access import IN_CLASS, MISSING
from hybridflow.ops import effects
from hybridflow.ops.host_values import Joined


def concerned(value: Any) -> bool:
    """Whether a builtin's argument is staged, or made of tensors."""
    return is_staged(value) or isinstance(value, Stream | TensorRange)


def any_true(iterable: Iterable[Any]) -> Any:
    """Return ``any``: a tensor if it depends on one."""
    either: Any = None
    for item in truths(iterable, neutral=False):
        if is_staged(item):
            either = truth(item) if either is None else PUBLIC.logical_or(either, truth(item))
        elif protocols.truth_of(item):
            return True
    return False if either is None else either


def all_true(iterable: Iterable[Any]) -> Any:
    """Return ``all``: a tensor if it depends on one."""
    every: Any = None
    for item in truths(iterable, neutral=True):
        if is_staged(item):
            every = truth(item) if every is None else PUBLIC.logical_and(every, truth(item))
        elif not protocols.truth_of(item):
            return False
    return True if every is None else every


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


def _bool(value: Any) -> Any:
    return as_bool(value) if type(value) is StagedNumber else truth(value)


def printed(*values: Any, sep: str | None = " ", end: str | None = "\n", **more: Any) -> None:
    """Print; if there are tensors among the values, print at every call."""
    tensors = any(is_staged(leaf) or type(leaf) is Joined for leaf in jax.tree_util.tree_leaves(values))
    if more.get("file") is None and tensors:
        effects.print(*values, sep=sep, end=end)
    else:
        builtins.print(*values, sep=sep, end=end, **more)


def contains(item: Any, container: Any) -> Any:
    """Return ``item in container``."""
    if type(container) is TracedArray:
        container = container == item
        return truth(container.any())
    if is_tensor(container):
        return PUBLIC.any(PUBLIC.equal(as_tensor(container), item))
    stand = protocols.stand_in(container, protocols.CONTAINMENT)
    if stand is not container:
        if IN_CLASS.get(type(container), "__contains__") is MISSING:
            return _found(item, stand)
        result = protocols.driven(operator.contains, stand, item)
        return truth(result) if is_tensor(result) else result
    if type(container) in (list, tuple) and not all(map(_is_compared_by_python, (item, *container))):
        return _found(item, container)
    observe.asked(container, item)
    return item in container


def _is_compared_by_python(value: Any) -> bool:
    return protocols.is_plain(value) and not is_staged(value)


def _found(item: Any, items: Any) -> Any:
    """Return whether an item is among others, which are compared one by one; a tensor if it depends on one."""
    try:
        iterator = iter(items)
    except TypeError:
        return item in type(type(items).__name__, (), {})()  # raises Python's error
    either: Any = None
    count = 0
    while (one := next(iterator, MISSING)) is not MISSING:
        count += 1
        if observe.same(one, item):
            return True
        equal = protocols.truth_of(protocols.COMPARISONS["Eq"](one, item))
        if is_staged(equal):
            either = truth(equal) if either is None else PUBLIC.logical_or(either, truth(equal))
            if count > ENDLESS and not hasattr(type(items), "__len__"):
                raise endless("in")
        elif equal:
            return True
    return False if either is None else either


def type_of(*args: Any, **more: Any) -> Any:
    """Return ``type``; for a stand-in, the type of the number or array that it stands for."""
    if len(args) == 1 and type(args[0]) is TracedFloat:
        return float
    if len(args) == 1 and type(args[0]) is TracedArray:
        return numpy_rules.kind_of(args[0])
    if len(args) == 1 and type(args[0]) is StagedNumber:
        if len(args[0].kinds) > 1:
            raise several_kinds(args[0], "is asked for its type")
        return widest(args[0].kinds)
    return type(*args, **more)


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
    return value if protocols.is_plain(value) else _Addend(value)


def _of_addend(value: Any) -> Any:
    return value.value if type(value) is _Addend else value


_ADDED_BY_PYTHON = frozenset({int, float, bool, TracedFloat})
_KEEPS_WHAT_IS_LOST = sum([0.1] * 10) == 1.0
"""Whether Python's sum of floats makes up for rounding, as from Python 3.12 on."""


def _is_added_by_python(value: Any) -> bool:
    return type(value) in _ADDED_BY_PYTHON or (_is_number(value) and len(value.kinds) == 1)


def _sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """Return ``sum``: CPython adds the items, other than its own numbers by the operators of converted code."""
    if isinstance(iterable, Filtered):
        return filtered.summed(iterable, start)
    if isinstance(start, str | bytes | bytearray):
        return sum((), start)  # raises Python's error
    items = iter(iterable)
    numbers, rest = [start], []
    for item in items if _is_added_by_python(start) else ():
        if not _is_added_by_python(item):
            rest.append(item)
            break
        numbers.append(item)
    total = numbers[0] if len(numbers) == 1 else _sum_of_numbers(*numbers)
    return _of_addend(sum(map(_addend, itertools.chain(rest, items)), _addend(total)))


def _sum_of_numbers(*numbers: Any) -> Any:
    """Return the sum of Python's numbers, which may be rounded more exactly than their additions one by one."""
    if any(map(_is_number, numbers)):
        return _sum_of_staged(*numbers)
    traced = next((one for one in numbers if type(one) is TracedFloat), None)
    return sum(numbers[1:], numbers[0]) if traced is None else traced.applied(_sum_of_numbers, *numbers)


def _sum_of_staged(total: Any, *numbers: Any) -> Any:
    """Return the sum of numbers of which a tensor decides some, as Python rounds it."""
    lost: Any = 0.0 if kinds_of(total) == FLOAT else None
    for number in numbers:
        one: Any = operand_of(number) if type(number) is TracedFloat else number
        before, total = total, total + one
        if lost is None:
            lost = 0.0 if kinds_of(total) == FLOAT else None
        elif kinds_of(one) == FLOAT:
            of_one = _either(abs(before) >= abs(one), before - total + one, one - total + before)
            lost = lost + of_one
    if lost is None or not _KEEPS_WHAT_IS_LOST:
        return total
    return _either(filtered.both(lost != 0, _is_finite(lost)), total + lost, total)


def _is_finite(number: Any) -> Any:
    return NUMBER_FUNCTIONS[math.isfinite](number) if _is_number(number) else math.isfinite(number)


def _either(test: Any, one: Any, other: Any) -> Any:
    return value_on_tensor(test, lambda: one, lambda: other) if is_staged(test) else one if test else other


ALWAYS: dict[Any, Callable[..., Any]] = {
    any: any_true, all: all_true,
    min: _extreme("min", protocols.COMPARISONS["Lt"]), max: _extreme("max", protocols.COMPARISONS["Gt"]),
    sorted: sorted_items, print: printed, type: type_of, map: mapped, filter: kept_by, sum: _sum,
    id: observe.identity, operator.is_: observe.same, operator.is_not: lambda a, b: not observe.same(a, b),
}  # fmt: skip
"""Builtins that are always replaced: their items may be tensors, or they would reveal a stand-in."""
ON_TENSORS: dict[Any, Callable[..., Any]] = {
    range: ranged, enumerate: enumerated, zip: zipped, reversed: reversed_rows, bool: _bool,
}  # fmt: skip
"""Builtins that are replaced if an argument is a tensor."""
ON_FILTERED: dict[Any, Callable[..., Any]] = {len: filtered.counted}
"""Builtins that are replaced if a tensor decides which items there are."""


def replacement(function: Any) -> Callable[..., Any] | None:
    """Return the replacement of a builtin in converted code; None if it has none."""
    try:
        stand_in = ALWAYS.get(function) or ON_TENSORS.get(function) or ON_FILTERED.get(function)
        return stand_in or NUMBER_FUNCTIONS.get(function)
    except TypeError:  # unhashable, so it is no builtin
        return None


def replaces(function: Any, args: tuple[Any, ...]) -> bool:
    """Whether a call of a builtin goes to its replacement."""
    if function in ON_FILTERED:
        return bool(args) and type(args[0]) is Filtered
    if function in NUMBER_FUNCTIONS:
        return any(map(_is_number, args))
    return function in ALWAYS or any(map(concerned, args))


__all__ = ["contains", "replacement", "replaces"]

"""Python's built-in functions, applied to tensors."""

from __future__ import annotations

import builtins
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import jax

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import filtered, protocols, staged_reads
from hybridflow.convert.branches import value_on_tensor
from hybridflow.convert.chains import kept_by, mapped
from hybridflow.convert.filtered import Filtered, truths
from hybridflow.convert.rows import Rows, TensorRange, enumerated, ranged, reversed_rows, zipped
from hybridflow.convert.staged import staged
from hybridflow.convert.staged_math import NUMBER_FUNCTIONS, summed
from hybridflow.convert.values import is_staged, is_tensor, negated, standing_for, truth
from hybridflow.core.staged_number import BOOL, StagedNumber, needed
from hybridflow.core.tensor import as_tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_float import TracedFloat
from hybridflow.guards import numpy_rules, observe
from hybridflow.ops import effects
from hybridflow.ops.host_values import Joined

_MISSING = object()


def concerned(value: Any) -> bool:
    """Whether a builtin's argument is staged, or made of tensors."""
    return is_staged(value) or type(value) in (Rows, TensorRange)


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

    def extreme(*args: Any, key: Callable[[Any], Any] | None = None, default: Any = _MISSING) -> Any:
        if isinstance(args[0], Filtered) and len(args) == 1:
            return filtered.extreme(python, better, args[0], key, () if default is _MISSING else (default,))
        items = list(args[0]) if len(args) == 1 else list(args)
        keys = items if key is None else [key(item) for item in items]
        if not items or not any(map(is_staged, keys)):
            for one in keys:
                observe.special(one, "__lt__", "__gt__")
            if items and key is not None:  # reuse the keys: `key` must be called only once for each item
                return items[python(range(len(items)), key=keys.__getitem__)]
            given = {} if default is _MISSING else {"default": default}
            return python(items, **given) if len(args) == 1 else python(*args, **given)
        best, best_key = items[0], keys[0]
        for item, item_key in zip(items[1:], keys[1:], strict=True):
            is_better = better(item_key, best_key)
            if is_staged(is_better):
                best, best_key = value_on_tensor(
                    is_better, lambda pair=(item, item_key): pair, lambda pair=(best, best_key): pair
                )
            elif is_better:
                best, best_key = item, item_key
        return best

    return extreme


def sorted_items(iterable: Iterable[Any], *, key: Callable[[Any], Any] | None = None, reverse: bool = False) -> Any:
    """Return ``sorted``; for scalar tensors, the rows of a sorted tensor."""
    items = list(iterable)
    keys = items if key is None else [key(item) for item in items]
    if not any(map(is_tensor, keys)):
        for one in keys:
            observe.special(one, "__lt__", "__gt__")
        return [items[index] for index in sorted(range(len(items)), key=keys.__getitem__, reverse=reverse)]
    order: Any = PUBLIC.argsort(PUBLIC.stack(list(map(as_tensor, keys))), descending=bool(reverse), stable=True)
    whole: Any = PUBLIC.stack(list(map(as_tensor, items)))
    return [standing_for(items[0], whole[order[index]], *items[1:]) for index in range(len(items))]


def _bool(value: Any) -> Any:
    return staged(BOOL, truth(value), 1)


def printed(
    *values: Any, sep: str | None = " ", end: str | None = "\n", file: Any = None, flush: bool = False
) -> None:
    """Print; if there are tensors among the values, print at every call."""
    tensors = any(is_staged(leaf) or type(leaf) is Joined for leaf in jax.tree_util.tree_leaves(values))
    if tensors:
        effects.print_to(file, values, sep, end)
    else:
        builtins.print(*values, sep=sep, end=end, file=file, flush=flush)


def contains(item: Any, container: Any) -> Any:
    """Return ``item in container``."""
    if type(container) is TracedArray:
        container = container == item
        return _bool(container.any())
    if is_tensor(container):
        return _bool(PUBLIC.any(PUBLIC.equal(as_tensor(container), item)))
    users = protocols.contains(container)
    if users is not None:
        result = users(container, item)
        return _bool(result) if is_staged(result) else any_true(result) if isinstance(result, list) else bool(result)
    several = isinstance(container, list | tuple)
    if several and (is_staged(item) or any(map(is_staged, container))):
        return any_true(True if _identical(item, one) else item == one for one in container)
    if type(item) is StagedNumber and isinstance(container, set | frozenset | dict | range) and len(container) <= _MOST:
        numbers = [one for one in container if isinstance(one, bool | int | float)]
        return any_true(map(protocols.COMPARISONS["Eq"], numbers, itertools.repeat(item)))
    observe.asked(container, item)
    return item in container


def _identical(a: Any, b: Any) -> bool:
    """Whether a container takes two values for equal before it compares them; stand-ins are compared."""
    return a is b or (type(a) not in _STAND_INS and type(b) not in _STAND_INS and observe.same(a, b))


_STAND_INS = frozenset({StagedNumber, TracedFloat})
_MOST = 256
"""The number of items of a set or range up to which a number that a tensor decides is compared with each."""


def type_of(*args: Any, **more: Any) -> Any:
    """Return ``type``; for a stand-in, the type of the number or array that it stands for."""
    if len(args) == 1 and type(args[0]) is TracedFloat:
        return float
    if len(args) == 1 and type(args[0]) is TracedArray:
        return numpy_rules.kind_of(args[0])
    if len(args) == 1 and type(args[0]) is StagedNumber:
        return staged_reads.type_of(args[0])
    return type(*args, **more)


def _sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """Return ``sum``; objects with their own operators are added one by one."""
    if isinstance(iterable, Filtered):
        return filtered.summed(iterable, start)
    items = list(iterable)
    if any(type(one) in _STAND_INS for one in (start, *items)):
        start, items = summed(start, items)
    if all(protocols.is_plain(one) for one in (start, *items)):
        return sum(items, start)
    for one in items:
        start = protocols.BINARY["Add"](start, one)
    return start


ALWAYS: dict[Any, Callable[..., Any]] = {
    any: any_true, all: all_true, min: _extreme("min", lambda a, b: a < b), max: _extreme("max", lambda a, b: a > b),
    sorted: sorted_items, print: printed, type: type_of, map: mapped, filter: kept_by, sum: _sum,
    id: staged_reads.identity, operator.is_: staged_reads.same,
    operator.is_not: lambda a, b: negated(staged_reads.same(a, b)),
}  # fmt: skip
"""Builtins that are always replaced: their items may be tensors, or they would reveal a stand-in."""
ON_TENSORS: dict[Any, Callable[..., Any]] = {
    range: ranged, enumerate: enumerated, zip: zipped, reversed: reversed_rows, bool: _bool, operator.truth: _bool,
    operator.not_: negated,
}  # fmt: skip
"""Builtins that are replaced if an argument is a tensor."""
ON_FILTERED: dict[Any, Callable[..., Any]] = {
    len: lambda items: filtered.counted(items) if isinstance(items, Filtered) else items.count()
}
"""Builtins that are replaced if a tensor decides which items there are."""


def _is_number(value: Any) -> bool:
    return type(value) is StagedNumber


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
        return bool(args) and type(args[0]) in (Filtered, TensorRange)
    if function in NUMBER_FUNCTIONS:
        return any(map(_is_number, args))
    return function in ALWAYS or any(map(concerned, args))


__all__ = ["contains", "replacement", "replaces"]

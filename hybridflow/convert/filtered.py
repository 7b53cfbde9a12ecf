"""Comprehensions whose filter is a tensor: the number of items they keep is unknown, so only reductions accept them.

``sum(f(x) for x in t if x > 0)`` iterates over all items; an item that is filtered out is not computed and not added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert.branches import value_on_tensor, value_where, where_now
from hybridflow.convert.values import is_staged, negated, truth
from hybridflow.core.errors import ArgumentError, TraceError
from hybridflow.ir.builder import add_check


class Maybe:
    """An item of a comprehension that is kept if a tensor is true.

    Attributes:
        test: the condition.
        value: computes the item.
    """

    __slots__ = ("test", "value")

    def __init__(self, test: Any, value: Callable[[], Any]) -> None:
        self.test = test
        self.value = value


class Filtered:
    """The argument of a reduction: items, some of them `Maybe`. Only reductions can iterate over it."""

    what: str = "comprehension"
    """Its name in messages."""

    def __init__(self, items: Iterable[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            if type(item) is Maybe:
                raise unknown_length(self.what)
            yield item


def unknown_length(what: str = "comprehension") -> TraceError:
    """Return the error for iterating over the items of a filter on a tensor."""
    return TraceError(
        f"{what}: which items it keeps depends on a tensor, so their number is not known, at {where_now()}",
        hint=f"Keep all items and choose with hf.where, or write the {what}, without := in it, into the "
             "brackets of sum, len, min, max, any or all."
    )


def keeps(test: Any) -> Any:
    """Return a comprehension's filter; raise if it is a tensor."""
    if is_staged(test):
        raise unknown_length()
    return test


def kept(test: Any, value: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the items that a filter keeps: one, none, or one `Maybe`."""
    if is_staged(test):
        return (Maybe(truth(test), value),)
    return (value(),) if test else ()


def summed(items: Filtered, /, start: Any = 0) -> Any:
    """Return ``sum``."""
    total = start
    for item in items.items:
        if type(item) is Maybe:
            total = value_on_tensor(item.test, lambda item=item, now=total: now + item.value(), lambda now=total: now)
        else:
            total = total + item
    return total


def counted(items: Filtered, /) -> Any:
    """Return ``len``."""
    return sum([value_on_tensor(one.test, lambda: 1, lambda: 0) if type(one) is Maybe else 1 for one in items.items])


def truths(iterable: Iterable[Any], neutral: bool) -> Iterator[Any]:
    """Yield the items for ``any`` and ``all``, with `neutral` for those that are filtered out."""
    if not isinstance(iterable, Filtered):
        yield from iterable
        return
    for item in iterable.items:
        if type(item) is Maybe:
            yield value_on_tensor(item.test, lambda item=item: _as_bool(item.value()), lambda: neutral)
        else:
            yield item


def _as_bool(value: Any) -> Any:
    return truth(value) if is_staged(value) else bool(value)


def extreme(
    python: Callable[..., Any], better: Callable[[Any, Any], Any], items: Filtered, key: Any, default: tuple[Any, ...]
) -> Any:
    """Return ``min`` or ``max`` of the items that are kept.

    Args:
        python: the builtin.
        better: whether a key is better than another.
        items: the items.
        key: computes an item's key, or None.
        default: the value to return if no item is kept, in a tuple; empty if none was given.
    """
    has: Any = False
    best: Any = None
    for item in items.items:
        maybe = type(item) is Maybe
        test: Any = item.test if maybe else True

        def pair(item: Any = item, maybe: bool = maybe) -> Any:
            value = item.value() if maybe else item
            return value, value if key is None else key(value)

        chosen = value_where(test, pair) if maybe else pair()
        if best is None:
            has, best = test, chosen
            continue
        wins = better(chosen[1], best[1])
        wins = _or(wins, negated(has))
        best = _chosen(both(test, wins), chosen, best)
        has = _or(has, test)
    if not is_staged(has):
        return best[0] if has else python((), **({"default": default[0]} if default else {}))
    if default:
        return value_on_tensor(has, lambda: best[0], lambda: default[0])
    try:
        python(())
    except ValueError as error:
        add_check(has, ArgumentError, str(error))
    return best[0]


def _or(a: Any, b: Any) -> Any:
    if is_staged(a) and is_staged(b):
        return PUBLIC.logical_or(a, b)
    return (b if is_staged(b) and not a else a or b) if not is_staged(a) else (a if not b else True)


def both(a: Any, b: Any) -> Any:
    """Return ``a and b`` for bools; either may be a tensor."""
    return negated(_or(negated(a), negated(b)))


def _chosen(test: Any, one: Any, other: Any) -> Any:
    if is_staged(test):
        return value_on_tensor(test, lambda: one, lambda: other)
    return one if test else other

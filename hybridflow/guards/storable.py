"""Checks of values that a function stores outside itself: values known only to the trace must not get there."""

from __future__ import annotations

from typing import Any, cast

from hybridflow.core.dims import Dim, NeedsSizes, SizeFloat
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_float import TracedFloat
from hybridflow.guards.guards import CONTAINERS, MAPPINGS
from hybridflow.guards.parts import items_of
from hybridflow.ir.variables import ArgumentVariable


def is_traced(value: Any) -> bool:
    """Whether only the trace knows a value."""
    kind = type(value)
    stands_in = kind is TracedArray or kind is TracedFloat or isinstance(value, ArgumentVariable)
    return stands_in or (kind is Tensor and value._value is None)


def holds_traced(value: Any) -> bool:
    """Whether a value is one that only the trace knows, or a container that holds one."""
    if isinstance(value, dict):
        return any(map(holds_traced, cast("dict[Any, Any]", value).values()))
    if isinstance(value, CONTAINERS):
        return any(map(holds_traced, cast("list[Any]", value)))
    return is_traced(value)


def require_numbers(value: Any) -> None:
    """Raise if a value that is stored outside is, or holds, a float input or an open size: it must be a number.

    Raises:
        NeedsNumber: the value is a float that is an input, or a container that holds some.
        NeedsSizes: the value is an open size, or a container that holds some.
    """
    if type(value) is TracedFloat:
        value.needed()
    if type(value) in (Dim, SizeFloat):
        raise NeedsSizes
    if isinstance(value, set | frozenset):
        for one in cast("set[Any]", value):
            require_numbers(one)
    if isinstance(value, MAPPINGS):
        require_numbers([*value])
    if isinstance(value, CONTAINERS):
        for _, one in items_of(value):
            require_numbers(one)

"""What a function may store outside of itself: nothing that the trace alone knows."""

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
    """Whether a value is known to the trace alone."""
    kind = type(value)
    stands_in = kind is TracedArray or kind is TracedFloat or isinstance(value, ArgumentVariable)
    return stands_in or (kind is Tensor and value._value is None)


def holds_traced(value: Any) -> bool:
    """Whether a value is known to the trace alone, or a container that holds such a value."""
    if isinstance(value, dict):
        return any(map(holds_traced, cast("dict[Any, Any]", value).values()))
    if isinstance(value, CONTAINERS):
        return any(map(holds_traced, cast("list[Any]", value)))
    return is_traced(value)


def require_numbers(value: Any) -> None:
    """Have float arguments and open sizes that are stored outside be numbers.

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

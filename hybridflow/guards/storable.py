"""Checks of values that a function stores outside itself: values known only to the trace must not get there."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from hybridflow.core.dims import Dim, NeedsSizes, SizeFloat
from hybridflow.core.errors import MutationError, message
from hybridflow.core.node import format_where, user_place
from hybridflow.core.staged_number import StagedNumber
from hybridflow.core.tensor import Tensor
from hybridflow.core.traced_array import TracedArray
from hybridflow.core.traced_float import TracedFloat
from hybridflow.guards.guards import CONTAINERS, MAPPINGS
from hybridflow.guards.parts import items_of
from hybridflow.ir.variables import ArgumentVariable


def is_traced(value: Any) -> bool:
    """Whether only the trace knows a value."""
    kind = type(value)
    stands_in = kind in (TracedArray, TracedFloat, StagedNumber) or isinstance(value, ArgumentVariable)
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


def refuse_nested(label: str, what: str) -> NoReturn:
    """Raise the error of a change of Python state in the body of a branch or loop.

    Args:
        label: the name of the compiled function.
        what: what is changed.

    Raises:
        MutationError: always.
    """
    raise MutationError(
        message(
            f"compile: {label} changes Python state in a branch or loop on tensors, a checkpoint or a custom "
            "gradient, whose body is traced by itself",
            got=f"{what} at {format_where(user_place(5))}",
            hint="Return the new value from the body or carry it through the loop; keep state in an hf.Variable.",
        )
    )


def require_storable(label: str, what: str, value: Any) -> None:
    """Raise if a value that is stored outside the function means something only while it is traced.

    Args:
        label: the name of the compiled function.
        what: where the value is stored.
        value: the value.

    Raises:
        MutationError: it is, or holds, a traced tensor.
        NeedsNumber, NeedsSizes: see `require_numbers`.
    """
    require_numbers(value)
    if holds_traced(value):
        raise MutationError(
            message(
                f"compile: {label} stores a traced tensor outside of itself, where it has no value",
                got=f"{what} at {format_where(user_place(5))}",
                hint="Return it, or keep it in an hf.Variable and assign that.",
            )
        )

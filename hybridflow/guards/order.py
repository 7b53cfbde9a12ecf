"""The order of dicts: jax sorts their keys, while Python code may see the insertion order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, cast

_DICTS = (dict, defaultdict)


def key_types(structure: Any) -> tuple[type, ...]:
    """Return the types of the keys of all dicts in a structure, except dicts whose keys are all strings."""
    types: tuple[type, ...] = ()
    items: Iterable[Any] = ()
    if isinstance(structure, dict):
        named = cast("dict[Any, Any]", structure)
        if {*map(type, named)} - _STRING:
            types = tuple(map(type, sorted(named)))
        items = [named[key] for key in sorted(named)] if types else named.values()
    elif isinstance(structure, list | tuple):
        items = cast("list[Any]", structure)
    for item in items:
        if isinstance(item, dict | list | tuple):
            types += key_types(item)
    return types


_STRING = {str}


def _is_sequence(structure: Any) -> bool:
    kind = type(structure)
    return kind is list or kind is tuple or (isinstance(structure, tuple) and hasattr(kind, "_fields"))


def has_order(structure: Any) -> bool:
    """Whether a structure has a dict whose keys are not in jax's (sorted) order."""
    if type(structure) in _DICTS:
        keys = list(structure)
        return keys != sorted(keys) or any(map(has_order, structure.values()))
    return _is_sequence(structure) and any(map(has_order, cast("list[Any]", structure)))


def order_at(arguments: dict[str, Any], way: tuple[Any, ...]) -> list[Any]:
    """Return the keys, in order, of a dict among the arguments.

    Args:
        arguments: the arguments by name.
        way: the path to the dict: the argument's name, then keys.
    """
    value: Any = arguments
    for key in way:
        value = value[key]
    return list(value)


def skeleton(structure: Any) -> Any:
    """Return a structure without its leaves, for `in_order_of`."""
    if type(structure) in _DICTS:
        return {key: skeleton(value) for key, value in structure.items()}
    if _is_sequence(structure):
        return [skeleton(item) for item in cast("list[Any]", structure)]
    return None


def in_order_of(like: Any, structure: Any) -> Any:
    """Return a structure with its dicts, including those in lists and tuples, in the order of the structure `like`."""
    kind = type(structure)
    if kind in _DICTS:
        items = {key: in_order_of(like[key], structure[key]) for key in like}
        return defaultdict(structure.default_factory, items) if kind is defaultdict else items
    if _is_sequence(structure):
        items = [in_order_of(a, b) for a, b in zip(like, cast("list[Any]", structure), strict=True)]
        return kind(*items) if hasattr(kind, "_fields") else kind(items)
    return structure

"""What jax loses of a structure that Python code may see: the order of dicts, and attributes of named tuples."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, cast

import jax

from hybridflow.core.errors import ArgumentTypeError
from hybridflow.core.held import Opened, attributes_of, defines, is_by_fields
from hybridflow.core.structures import check_depth, nested_too_deep
from hybridflow.guards.shown import shown

DICTS = (dict, defaultdict)
"""The types of dicts whose keys jax sorts."""
REBUILT = frozenset({*DICTS, OrderedDict, list})
"""The types of which jax makes new ones, and which can be changed."""


def flattened(what: str, value: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Any]:
    """Return the leaves and the structure of a value, as jax finds them.

    Args:
        what: what the value is, for messages.
        value: the value.
        is_leaf: whether a part is a leaf although jax would look inside.

    Raises:
        ArgumentTypeError: a dict in it has keys that cannot be sorted.
        NestingError: it is nested too deep.
    """
    try:
        if is_leaf is not None:
            check_depth(value)
        return jax.tree_util.tree_flatten(value, is_leaf)
    except (RecursionError, SystemError) as error:
        raise nested_too_deep(value, error) from None
    except (TypeError, ValueError) as error:
        if "sorting pytree" not in str(error) and "'<' not supported" not in str(error):
            raise
        raise ArgumentTypeError(f"{what}: a dict has keys that cannot be sorted", got=shown(value)[:80],
                                hint="Use keys of one type, such as strings, or an OrderedDict.") from None


def _is_sequence(structure: Any) -> bool:
    kind = type(structure)
    return kind is list or kind is tuple or (isinstance(structure, tuple) and defines(kind, "_fields"))


def has_order(structure: Any) -> bool:
    """Whether jax loses something of a structure, such as the order of a dict: it sorts the keys."""
    if type(structure) in DICTS:
        keys = list(structure)
        return keys != sorted(keys) or any(map(has_order, structure.values()))
    if type(structure) is Opened:
        return any(map(has_order, structure.values))
    if not _is_sequence(structure):
        return False
    return any(map(has_order, cast("list[Any]", structure))) or bool(attributes_of(structure))


def skeleton(structure: Any) -> Any:
    """Return a structure without its leaves, for `in_order_of`."""
    if type(structure) in DICTS:
        return {key: skeleton(value) for key, value in structure.items()}
    if _is_sequence(structure):
        return [skeleton(item) for item in cast("list[Any]", structure)]
    return None


def with_given_parts(given: Any, made: Any) -> Any:
    """Return a structure that was made like `given`, with the parts of `given` itself that hold the same leaves."""
    if type(given) is Opened:
        given = given.given
    if is_by_fields(given) and made is not given:
        for name, value in attributes_of(given).items():
            object.__setattr__(made, name, with_given_parts(value, getattr(made, name)))
    kind = type(given)
    if made is given or not (_is_sequence(given) or kind in REBUILT):
        return made
    keys = [*given] if isinstance(given, dict) else range(len(given))
    parts = {key: with_given_parts(given[key], made[key]) for key in keys}
    if all(parts[key] is given[key] for key in keys):
        return given
    if isinstance(made, tuple):
        make: Any = getattr(kind, "_make", kind)
        return _with_attributes(given, make(parts.values()))
    for key, part in parts.items():
        made[key] = part
    return made


def in_order_of(like: Any, structure: Any) -> Any:
    """Return a structure with what jax lost of the structure `like`: the order of the dicts in it, and attributes.

    Frozen dataclasses that `like` holds in opened form were made for this; they are changed.
    """
    kind = type(structure)
    if type(like) is Opened:
        for name, value in zip(like.names, like.values, strict=True):
            object.__setattr__(structure, name, in_order_of(value, getattr(structure, name)))
        return structure
    if kind in DICTS:
        items = {key: in_order_of(like[key], structure[key]) for key in like}
        return defaultdict(structure.default_factory, items) if kind is defaultdict else items
    if _is_sequence(structure):
        items = [in_order_of(a, b) for a, b in zip(like, cast("list[Any]", structure), strict=True)]
        return _with_attributes(like, kind(*items) if defines(kind, "_fields") else kind(items))
    return structure


def _with_attributes(like: Any, made: Any) -> Any:
    """Return a sequence that was made like another one, with the attributes of that one."""
    if attributes := attributes_of(like):
        vars(made).update(attributes)
    return made

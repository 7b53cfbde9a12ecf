"""Structures as jax finds them, where users' dataclasses are structures of their attributes too.

Whatever takes a user's structure apart does it here, and puts it together with `unflatten`.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import jax

from hybridflow.core.attached import attached
from hybridflow.core.errors import NestingError

IsLeaf = Callable[[Any], bool]
unflatten = jax.tree_util.tree_unflatten


def opened(tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return a structure with its dataclasses replaced by nodes that jax takes apart; `unflatten` makes new ones."""
    try:
        if is_leaf is not None:
            check_depth(tree)
        leaves = jax.tree_util.tree_leaves(tree, is_leaf)
        return attached("open_records")(tree, is_leaf) if _has_records(leaves) else tree
    except (RecursionError, SystemError) as error:
        raise nested_too_deep(tree, error) from None


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of a structure, and the structure.

    Raises:
        NestingError: it is nested too deep.
    """
    try:
        if is_leaf is not None:
            check_depth(tree)
        leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf)
        if not _has_records(leaves):
            return leaves, structure
        return jax.tree_util.tree_flatten(attached("open_records")(tree, is_leaf), is_leaf)
    except (RecursionError, SystemError) as error:
        raise nested_too_deep(tree, error) from None


def _has_records(leaves: list[Any]) -> bool:
    return any([hasattr(type(leaf), "__dataclass_fields__") for leaf in leaves])


def check_depth(tree: Any) -> None:
    """Raise jax's error if a walk that asks a function about each part would go too deep.

    Such a walk would end in the function's call, and jax then leaves Python's count of calls in C where it is: nothing
    that is called from C would work any more. A walk that asks nobody ends cleanly, so one as deep goes first.
    """
    depth, level = 0, _containers([tree])
    while level and depth < _DEEPEST:
        level = _containers([part for one in level for part in (one.values() if isinstance(one, dict) else one)])
        depth += 1
    if depth > _SHALLOW:
        chain: Any = None
        for _ in range(depth + _OF_A_CALL):
            chain = [chain]
        jax.tree_util.tree_leaves(chain)


def _containers(parts: list[Any]) -> list[Any]:
    """Return the parts in which jax finds more, each once: it may hold itself several times."""
    return [*{id(one): one for one in parts if type(one) in _OPENED or isinstance(one, tuple)}.values()]


_OPENED = {list, tuple, dict, defaultdict, OrderedDict}
_SHALLOW = 100
"""Levels that any program has left."""
_OF_A_CALL = 60
"""The calls that a function which says whether a part is a leaf makes inside each other, at most."""
_DEEPEST = 200_000
"""Levels that no walk of jax's goes down: a list that holds itself has no end."""


def nested_too_deep(tree: Any, error: RecursionError | SystemError) -> Exception:
    """Return the error for a structure whose walk ended with one that is Python's, or jax's way to hand on Python's."""
    if isinstance(error, NestingError) or not isinstance(error.__cause__ or error, RecursionError):
        return error
    return NestingError("lists, tuples or dicts are nested deeper than Python's limit of recursion lets anyone follow",
                        got=f"a {type(tree).__name__}",
                        hint="Put the parts side by side. A list that holds itself has no end.")


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """Return the leaves of a structure."""
    return flatten(tree, is_leaf)[0]


def parts_of(tree: Any) -> list[Any]:
    """Return the leaves of a structure in any order, to look at them: no keys are sorted, and it may hold itself."""
    found: list[Any] = []
    pending, seen = [tree], dict[int, Any]()
    while pending:
        one = pending.pop()
        if type(one) not in _OPENED and not isinstance(one, tuple):
            found += jax.tree_util.tree_leaves(one)
        elif id(one) not in seen:
            seen[id(one)] = one
            pending += one.values() if isinstance(one, dict) else one
    return found


def structure(tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return the structure alone."""
    return flatten(tree, is_leaf)[1]


def with_paths(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the leaves, each with its path, and the structure."""
    tree = opened(tree, is_leaf)
    try:
        return jax.tree_util.tree_flatten_with_path(tree, is_leaf)
    except (RecursionError, SystemError) as error:
        raise nested_too_deep(tree, error) from None


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return a structure with a function's results in place of the leaves; the other structures begin like it."""
    found, first = flatten(tree, is_leaf)
    others = [first.flatten_up_to(opened(one, is_leaf)) for one in rest]
    return unflatten(first, [function(*parts) for parts in zip(found, *others, strict=True)])

"""Structures as jax finds them, where users' dataclasses are structures of their attributes too.

Whatever takes a user's structure apart does it here, and puts it together with `unflatten`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import jax

from hybridflow.core.attached import attached

IsLeaf = Callable[[Any], bool]
unflatten = jax.tree_util.tree_unflatten


def opened(tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return a structure with its dataclasses replaced by nodes that jax takes apart; `unflatten` makes new ones."""
    leaves = jax.tree_util.tree_leaves(tree, is_leaf)
    if not any([hasattr(type(leaf), "__dataclass_fields__") for leaf in leaves]):
        return tree
    return attached("open_records")(tree, is_leaf)


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of a structure, and the structure."""
    leaves, structure = jax.tree_util.tree_flatten(tree, is_leaf)
    if not any([hasattr(type(leaf), "__dataclass_fields__") for leaf in leaves]):
        return leaves, structure
    return jax.tree_util.tree_flatten(attached("open_records")(tree, is_leaf), is_leaf)


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """Return the leaves of a structure."""
    return flatten(tree, is_leaf)[0]


def parts_of(tree: Any) -> list[Any]:
    """Return the leaves of a structure in any order, to look at them: the keys of its dicts need not be sortable."""
    found: list[Any] = []
    pending = [tree]
    while pending:
        for one in jax.tree_util.tree_leaves(pending.pop(), _is_dict):
            if _is_dict(one):
                pending += one.values()
            else:
                found.append(one)
    return found


def _is_dict(value: Any) -> bool:
    return type(value) is dict or type(value) is defaultdict


def structure(tree: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return the structure alone."""
    return flatten(tree, is_leaf)[1]


def with_paths(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[tuple[Any, Any]], Any]:
    """Return the leaves, each with its path, and the structure."""
    return jax.tree_util.tree_flatten_with_path(opened(tree, is_leaf), is_leaf)


def map_leaves(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return a structure with a function's results in place of the leaves; the other structures begin like it."""
    found, first = flatten(tree, is_leaf)
    others = [first.flatten_up_to(opened(one, is_leaf)) for one in rest]
    return unflatten(first, [function(*parts) for parts in zip(found, *others, strict=True)])

"""`hf.tree`: nested lists, tuples, dicts, dataclasses and modules as their leaves, in one order, which is jax's.

The leaves of a list or tuple come in its order, those of a dict in the order of its sorted keys, whatever order they
were set in, those of an `OrderedDict` in its own order, and those of a module or a dataclass in the order in which its
attributes were set. Gradients, optimizers, `hf.vmap`, loops, branches and compiled functions use the same order. A
dataclass is made anew without a call of ``__init__``. None holds no leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hybridflow.core import structures
from hybridflow.core.attached import attached
from hybridflow.core.functions import as_traced

IsLeaf = Callable[[Any], bool]


def leaves(tree: Any, is_leaf: IsLeaf | None = None) -> list[Any]:
    """Return the leaves of a structure.

    Args:
        tree: nested lists, tuples, dicts, dataclasses and modules; anything else is a leaf.
        is_leaf: a function that says of a part whether it is a leaf too, such as ``lambda part: part is None``.

    Raises:
        ValueError: the keys of a dict cannot be sorted, such as 1 and "a".

    Example:
        >>> import hybridflow as hf
        >>> hf.tree.leaves({"z": 1, "a": [2, (3, None)]})
        [2, 3, 1]
    """
    return structures.leaves(tree, is_leaf=is_leaf)


def flatten(tree: Any, is_leaf: IsLeaf | None = None) -> tuple[list[Any], Any]:
    """Return the leaves of a structure, and the structure for `unflatten`. The arguments are those of `leaves`.

    Raises:
        ValueError: the keys of a dict cannot be sorted.

    Example:
        >>> import hybridflow as hf
        >>> found, structure = hf.tree.flatten({"w": hf.ones(2), "b": [hf.zeros(1)]})
        >>> [leaf.shape for leaf in found]
        [(1,), (2,)]
        >>> hf.tree.unflatten(structure, [10, 20])
        {'b': [10], 'w': 20}
    """
    return structures.flatten(tree, is_leaf=is_leaf)


def unflatten(structure: Any, leaves: Any) -> Any:
    """Return a structure with other leaves.

    Args:
        structure: what `flatten` returned.
        leaves: an iterable of as many leaves.

    Raises:
        ValueError: there are more or fewer leaves.

    Example: see `flatten`.
    """
    return structures.unflatten(structure, leaves)


def map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf | None = None) -> Any:
    """Return a structure with a function's results in place of the leaves.

    Args:
        function: a function of a leaf of each structure.
        tree: the structure; see `leaves`.
        rest: more structures of the same form.
        is_leaf: as for `leaves`.

    Raises:
        ValueError: the structures differ.

    Example:
        >>> import hybridflow as hf
        >>> w = {"w": hf.ones(2), "b": [hf.zeros(1)]}
        >>> hf.tree.map(lambda a, b: hf.sum(a - b).item(), w, w)
        {'b': [0.0], 'w': 0.0}
    """
    return structures.map_leaves(as_traced(function), tree, *rest, is_leaf=is_leaf)


__all__ = ["flatten", "leaves", "map", "unflatten"]
attached("name_module")("hf.tree", __name__)

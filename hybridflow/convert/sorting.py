"""``sorted`` in converted code: Python's own sort, or one by tensors."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.convert import protocols
from hybridflow.convert.branches import where_now
from hybridflow.convert.staged import kinds_of, magnitude, raw_dtype, raw_of, staged
from hybridflow.convert.values import (
    Value,
    is_dynamic,
    is_real_number,
    is_staged,
    is_tensor,
    made_at,
    same_python,
    truth,
)
from hybridflow.core.dtypes import int32, is_floating
from hybridflow.core.errors import ArgumentError, DTypeError, TraceError, message
from hybridflow.core.staged_number import weak_dtype_of
from hybridflow.core.tensor import as_tensor, asarray
from hybridflow.guards import observe
from hybridflow.ir.builder import add_check


def sorted_items(iterable: Iterable[Any], /, *, key: Callable[[Any], Any] | None = None, reverse: Any = False) -> Any:
    """Return ``sorted``. With tensors among the keys, a number in the items becomes one that a tensor decides.

    Raises:
        DTypeError: the keys have different dtypes.
        TraceError: the items differ in more than tensors and numbers.
        ArgumentError: at run time, if a key is NaN: Python's sort then depends on the order of its comparisons.
    """
    items = list(iterable)
    keys = items if key is None else [key(item) for item in items]
    if len(items) > 1 and any(map(is_staged, keys)):
        return _chosen_from(items, PUBLIC.argsort(_stacked_keys(keys), descending=bool(reverse), stable=True))
    for one in keys:
        observe.special(one, "__lt__", "__gt__")
    compared = protocols.ordered(keys)
    return [items[index] for index in builtins.sorted(range(len(items)), key=compared.__getitem__, reverse=reverse)]


def _stacked_keys(keys: Sequence[Any]) -> Any:
    """Return the keys as a tensor with one axis."""
    tensors = [as_tensor(one) for one in keys if is_tensor(one)]
    if tensors:
        dtypes = [one.dtype if is_tensor(one) else weak_dtype_of(one, tensors[0].dtype) for one in keys]
        if any(dtype != dtypes[0] for dtype in dtypes):
            raise DTypeError(f"sorted: the keys have different dtypes, at {where_now()}",
                             got=", ".join(map(str, dict.fromkeys(dtypes))), hint="Cast them to one.")
        made = [asarray(one, dtype=dtypes[0]) for one in keys]
        for one in made:
            if one.size != 1:
                truth(one)  # raises the error for a comparison of several elements
        stacked: Any = PUBLIC.stack([one.reshape(()) for one in made])
    else:
        dtype = raw_dtype(frozenset().union(*map(kinds_of, keys)))
        stacked = PUBLIC.stack([raw_of(one, dtype) for one in keys])
    if is_floating(stacked.dtype):
        text = message("sorted: a key is NaN, which Python's sort leaves where its comparisons happen to put it",
                       hint="Replace it, for example with hf.where(hf.isnan(key), hf.inf, key).")
        add_check(PUBLIC.all(PUBLIC.equal(stacked, stacked)), ArgumentError, text)
    return stacked if stacked.dtype != np.bool_ else PUBLIC.astype(stacked, int32)


def _chosen_from(items: Sequence[Any], order: Any) -> list[Any]:
    """Return the items in an order that a tensor decides; each keeps its structure, and its leaves their types."""
    values = [Value.of(item) for item in items]
    first = values[0]
    other = next((one for one in values if not one.is_like(first)), None)
    if other is not None:
        raise _cannot_move(first.source, other.source)
    columns = [_column(leaves, order) for leaves in zip(*[one.leaves for one in values], strict=True)]
    return [
        first.filled([column(index) for column in columns if column is not None], *items[1:])
        for index in range(len(items))
    ]


def _column(leaves: Sequence[Any], order: Any) -> Callable[[int], Any] | None:
    """Return a function of a position that chooses among the leaves in one place; None for one that cannot change."""
    first = leaves[0]
    if all(same_python(first, one) for one in leaves):
        return (lambda _: first) if is_dynamic(first) else None
    if all(map(is_real_number, leaves)):
        kinds = frozenset().union(*map(kinds_of, leaves))
        limit = max(map(magnitude, leaves))
        raws: Any = PUBLIC.stack([raw_of(one, raw_dtype(kinds)) for one in leaves])
        return lambda index: staged(kinds, raws[order[index]], limit, "an item of a sorted list")
    tensor = next((as_tensor(one) for one in leaves if is_tensor(one)), None)
    if tensor is None:
        raise _cannot_move(first, next(one for one in leaves if not same_python(first, one)))
    other = next((one for one in leaves if not _is_like(one, tensor)), None)
    if other is not None:
        raise _cannot_move(tensor, other)
    whole: Any = PUBLIC.stack([asarray(one, dtype=tensor.dtype) for one in leaves])
    return lambda index: whole[order[index]]


def _is_like(leaf: Any, tensor: Any) -> bool:
    """Whether a leaf has the shape and dtype of a tensor, or is a number that takes them where they meet."""
    if is_real_number(leaf):
        return tensor.shape == () and weak_dtype_of(leaf, tensor.dtype) == tensor.dtype
    return is_tensor(leaf) and leaf.shape == tensor.shape and leaf.dtype == tensor.dtype


def _cannot_move(one: Any, other: Any) -> TraceError:
    return TraceError(
        f"sorted: which item comes where depends on a tensor, and the items differ in more than the values of "
        f"tensors and numbers, at {where_now()}", got=f"{made_at(one)} and {made_at(other)}",
        hint="Sort the tensors with hf.argsort, or give the items one structure and shape."
    )

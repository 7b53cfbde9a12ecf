"""`hf.associative_scan`: running combinations of rows in logarithmically many steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from hybridflow.core import structures
from hybridflow.core.errors import ArgumentError, ShapeError
from hybridflow.core.functions import as_traced, require_function
from hybridflow.core.tensor import Tensor
from hybridflow.nested.bodies import leaves_of
from hybridflow.ops.common import normalize_axis, truth
from hybridflow.ops.joining import concat, stack
from hybridflow.ops.rearrange import flip, moveaxis
from hybridflow.ops.shape import reshape


def associative_scan(fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0) -> Any:
    """Combine rows with all those before them, by a function that is associative.

    Pairs are combined first, then pairs of pairs: the function is called about ``2 log2(n)`` times, for many rows at
    once, where `hf.scan` would call it for one row after the other. Sums of floats are rounded in another order.

    Args:
        fn: ``fn(a, b)`` combines rows, of which `b` come later; it takes and returns the structure of `elems`, with
            any number of rows along the axis.
        elems: tensors with one size along the axis, in any nesting.
        reverse: whether to combine with all those after them.
        axis: the axis.

    Returns:
        The structure, shapes and dtypes of `elems`: row i combines the rows 0 to i.

    Raises:
        ArgumentError: there are no tensors, or the function changes their structure.
        ShapeError: sizes along the axis differ, or the function changes a shape.

    Example:
        >>> import hybridflow as hf
        >>> hf.associative_scan(lambda a, b: a * b, hf.asarray([1.0, 2.0, 3.0, 4.0]))
        Tensor([ 1.,  2.,  6., 24.], dtype=float32)

    Reference:
        G. E. Blelloch, "Prefix Sums and Their Applications", 1990.
    """
    require_function("associative_scan", fn)
    leaves, tree = leaves_of(elems)
    if not leaves:
        raise ArgumentError("associative_scan: there is nothing to combine", hint="Pass at least one tensor.")
    axes = [normalize_axis("associative_scan", axis, leaf.ndim) for leaf in leaves]
    rows = [moveaxis(leaf, one, 0) for leaf, one in zip(leaves, axes, strict=True)]
    if len({row.shape[0] for row in rows}) > 1:
        raise ShapeError(f"associative_scan: sizes along axis {axis} differ",
                         got=", ".join(str(x.spec) for x in leaves))
    backwards = truth("associative_scan", "reverse", reverse)

    def turned(some: list[Tensor]) -> list[Tensor]:
        return [flip(one, axis=0) for one in some] if backwards else some

    def combine(a: list[Tensor], b: list[Tensor]) -> list[Tensor]:
        a, b = [[moveaxis(x, 0, one) for x, one in zip(some, axes, strict=True)] for some in (a, b)]
        made, after = leaves_of(as_traced(fn)(structures.unflatten(tree, a), structures.unflatten(tree, b)))
        if after != tree:
            raise ArgumentError(f"associative_scan: the function returns {after}, its arguments are {tree}",
                                hint="Return the structure that it is given.")
        for new, old in zip(made, a, strict=True):
            if new.shape != old.shape:
                raise ShapeError(f"associative_scan: the function returns {new.spec}, its argument is {old.spec}",
                                 hint="It is given any number of rows, and returns as many.")
        return [moveaxis(x, one, 0) for x, one in zip(made, axes, strict=True)]

    found = turned(_scanned(combine, turned(rows)))
    return structures.unflatten(tree, [moveaxis(x, 0, one) for x, one in zip(found, axes, strict=True)])


def _scanned(combine: Callable[[list[Tensor], list[Tensor]], list[Tensor]], rows: list[Tensor]) -> list[Tensor]:
    count = rows[0].shape[0]
    if count < 2:
        return rows
    half = count // 2
    firsts, seconds = ([cast(Any, x)[start : 2 * half : 2] for x in rows] for start in (0, 1))
    odd = _scanned(combine, combine(firsts, seconds))
    first = [cast(Any, x)[:1] for x in rows]
    later = [cast(Any, x)[2::2] for x in rows]
    if not later[0].shape[0]:
        even = first
    else:
        before = [cast(Any, x)[: later[0].shape[0]] for x in odd]
        even = [concat([a, b], axis=0) for a, b in zip(first, combine(before, later), strict=True)]
    woven: list[Tensor] = []
    for a, b in zip(even, odd, strict=True):
        pairs = reshape(stack([cast(Any, a)[:half], b], axis=1), (2 * half, *a.shape[1:]))
        woven.append(concat([pairs, cast(Any, a)[half:]], axis=0) if count % 2 else pairs)
    return woven

"""Functions that join tensors and cut them into parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Unpack, cast

import numpy as np
from jax import lax

from hybridflow.core.dims import same_size
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, ShapeError
from hybridflow.core.keywords import Other, respelled
from hybridflow.core.op import REGISTRY, Bad, Sample, op
from hybridflow.core.tensor import describe
from hybridflow.core.traced_number import as_size
from hybridflow.ops.common import (
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    integers,
    make_spec,
    no_flops,
    normalize_axis,
    normals,
    promote,
)
from hybridflow.ops.index_keys import normalize_slice, part_of
from hybridflow.ops.padding_index import joined
from hybridflow.ops.padding_nn import stacked
from hybridflow.ops.shape import reshape

# -- joining ------------------------------------------------------------------------------------------------------


def _joined(name: str, xs: Any) -> tuple[Tensor, ...]:
    """Return the tensors to join, promoted to one dtype."""
    if isinstance(xs, Tensor | np.ndarray) or not isinstance(xs, Iterable):
        raise ArgumentTypeError(f"{name}: takes a list or tuple of tensors", got=describe(xs),
                                hint=f"Write hf.{name}([a, b]).")
    tensors = tuple(cast("Iterable[Any]", xs))
    if not tensors:
        raise ArgumentError(f"{name}: there is nothing to join", got=f"{name}([])", hint="Pass one at least.")
    return promote(*tensors)


def _concat_infer(*xs: TensorSpec, axis: int) -> TensorSpec:
    first = xs[0]
    total: Any = 0
    for x in xs:
        fits = len(x.shape) == len(first.shape) and all(
            i == axis or same_size(a, b) or a == b for i, (a, b) in enumerate(zip(x.shape, first.shape, strict=True))
        )
        if not fits:
            raise ShapeError(f"concat: shapes {first.shape} and {x.shape} differ off axis {axis}",
                             got=call_text("concat", *xs), hint="All other sizes must be equal.")
        total = total + x.shape[axis]
    return make_spec((*first.shape[:axis], total, *first.shape[axis + 1 :]), first.dtype)


def _concat_vjp(F: Any, g: Any, y: Any, *xs: Any, axis: int) -> Any:
    del y
    start: Any = 0
    gradients: list[Any] = []
    for x in xs:
        index = part_of(g.shape, axis, start, x.shape[axis])
        gradients.append(lambda index=index: F.getitem(g, index=index))
        start = start + x.shape[axis]
    return gradients


def _concat_samples(rng: np.random.Generator) -> Any:
    yield Sample(([normals(rng, 2, 3), normals(rng, 1, 3)],))
    yield Sample(([normals(rng, 2, 3), normals(rng, 2, 0), normals(rng, 2, 1)],), {"axis": -1})
    yield Sample(([normals(rng, 2, 3), normals(rng, 4, dtype="float64")],), {"axis": None})
    yield Sample(((normals(rng, 2), integers(rng, 0, 5, 3)),))
    yield Sample(([normals(rng, 2, dtype="bfloat16")] * 2,), gradient=False)
    yield Bad(([normals(rng, 2, 3), normals(rng, 2, 4)],), error=ShapeError, text="shapes (2, 3) and (2, 4) differ")
    yield Bad(([normals(rng, 2, 3), normals(rng, 3)],), error=ShapeError, text="shapes (2, 3) and (3,) differ")
    yield Bad(([normals(rng, 2)],), {"axis": 1}, error=ShapeError, text="axis 1 is out of range")
    yield Bad(([],), error=ArgumentError, text="nothing to join")
    yield Bad((normals(rng, 2, 2),), error=ArgumentTypeError, text="takes a list or tuple")


@op(
    kernel=lambda *xs, axis: np.concatenate(xs, axis),
    lower=lambda *xs, axis: lax.concatenate(xs, axis),
    infer=_concat_infer,
    vjp=_concat_vjp,
    flops=no_flops,
    samples=_concat_samples,
    traits=("layout",),
    ulp=0,
    onnx=lambda o, *xs, axis: o.Concat(*xs, axis=axis),
    padded=joined,
)
def concat(arrays: Sequence[TensorLike], /, axis: int | None = 0, **other: Unpack[Other]) -> Tensor:
    """Join tensors along an axis that they all have.

    Args:
        arrays: tensors of one shape, except along the joined axis; their dtypes are promoted.
        axis: the axis; None flattens the tensors first.

    Returns:
        The joined tensor.

    Raises:
        ShapeError: shapes that differ along another axis, or an axis out of range.
        ArgumentError: nothing to join.

    Example:
        >>> import hybridflow as hf
        >>> hf.concat([[1, 2], [3]])
        Tensor([1, 2, 3], dtype=int32)
    """
    if other:
        return respelled(concat, locals())
    tensors = _joined("concat", arrays)
    if axis is None:
        tensors, axis = tuple([reshape(tensor, -1) for tensor in tensors]), 0
    return bind(concat.op, tensors, {"axis": normalize_axis("concat", axis, tensors[0].ndim)})


def _stack_infer(*xs: TensorSpec, axis: int) -> TensorSpec:
    first = xs[0]
    for x in xs[1:]:
        if x.shape != first.shape:
            raise ShapeError(f"stack: shapes {first.shape} and {x.shape} differ", got=call_text("stack", *xs),
                             hint="All shapes must be equal; hf.concat joins along an axis of any size.")
    return make_spec((*first.shape[:axis], len(xs), *first.shape[axis:]), first.dtype)


def _stack_vjp(F: Any, g: Any, y: Any, *xs: Any, axis: int) -> Any:
    del y
    full_index = [(0, size, 1) for size in g.shape]
    return [lambda i=i: F.getitem(g, index=(*full_index[:axis], i, *full_index[axis + 1 :])) for i in range(len(xs))]


def _stack_samples(rng: np.random.Generator) -> Any:
    yield Sample(([normals(rng, 2, 3), normals(rng, 2, 3)],))
    yield Sample(([normals(rng, 2, 3)] * 3,), {"axis": -1})
    yield Sample(((normals(rng), 1.0),))
    yield Sample(([normals(rng, 0, dtype="bfloat16")],), gradient=False)
    yield Bad(([normals(rng, 2), normals(rng, 3)],), error=ShapeError, text="shapes (2,) and (3,) differ")
    yield Bad(([normals(rng, 2)],), {"axis": 2}, error=ShapeError, text="axis 2 is out of range for 2 dimensions")
    yield Bad(([],), error=ArgumentError, text="nothing to join")


@op(
    kernel=lambda *xs, axis: np.stack(xs, axis),
    lower=lambda *xs, axis: lax.concatenate([lax.expand_dims(x, (axis,)) for x in xs], axis),
    infer=_stack_infer,
    vjp=_stack_vjp,
    flops=no_flops,
    samples=_stack_samples,
    traits=("layout",),
    ulp=0,
    onnx=lambda o, *xs, axis: o.Concat(*[o.Unsqueeze(x, o.ints([axis])) for x in xs], axis=axis),
    padded=stacked,
)
def stack(arrays: Sequence[TensorLike], /, axis: int = 0, **other: Unpack[Other]) -> Tensor:
    """Join tensors along a new axis.

    Args:
        arrays: tensors of one shape; their dtypes are promoted.
        axis: where the new axis is in the result.

    Returns:
        The joined tensor, which has one more dimension.

    Raises:
        ShapeError: shapes that differ, or an axis out of range.
        ArgumentError: nothing to join.

    Example:
        >>> import hybridflow as hf
        >>> hf.stack([[1, 2], [3, 4]], axis=1)
        Tensor([[1, 3],
                [2, 4]], dtype=int32)
    """
    if other:
        return respelled(stack, locals())
    tensors = _joined("stack", arrays)
    return bind(stack.op, tensors, {"axis": normalize_axis("stack", axis, tensors[0].ndim + 1)})


# -- cutting ------------------------------------------------------------------------------------------------------


def unstack(x: TensorLike, /, axis: int = 0, **other: Unpack[Other]) -> tuple[Tensor, ...]:
    """Take a tensor apart along an axis.

    Args:
        x: a tensor of at least one dimension; the axis must have a fixed size.
        axis: the axis to remove; the parts do not have it.

    Returns:
        One tensor per element of the axis.

    Raises:
        ShapeError: an axis out of range.

    Example:
        >>> import hybridflow as hf
        >>> hf.unstack([[1, 2], [3, 4]])
        (Tensor([1, 2], dtype=int32), Tensor([3, 4], dtype=int32))
    """
    if other:
        return respelled(unstack, locals())
    tensor = as_tensor(x)
    along = normalize_axis("unstack", axis, tensor.ndim)
    full_index = [(0, size, 1) for size in tensor.shape]
    getitem = REGISTRY["getitem"]
    return tuple(
        [
            bind(getitem, (tensor,), {"index": (*full_index[:along], i, *full_index[along + 1 :])})
            for i in range(int(tensor.shape[along]))
        ]
    )


def split(
    x: TensorLike, /, sections_or_indices: int | Sequence[int], axis: int = 0, **other: Unpack[Other]
) -> list[Tensor]:
    """Cut a tensor into parts along an axis.

    Args:
        x: a tensor of at least one dimension.
        sections_or_indices: the number of equal parts, or the positions at which to cut.
        axis: the axis.

    Returns:
        The parts, in order.

    Raises:
        ShapeError: the size is not divisible by the number of parts, or the axis is out of range.
        ArgumentError: fewer than one part.

    Example:
        >>> import hybridflow as hf
        >>> hf.split([1, 2, 3, 4, 5, 6], 3)[1]
        Tensor([3, 4], dtype=int32)
        >>> hf.split([1, 2, 3, 4, 5, 6], [1, 4])[1]
        Tensor([2, 3, 4], dtype=int32)
    """
    if other:
        return respelled(split, locals())
    tensor = as_tensor(x)
    along = normalize_axis("split", axis, tensor.ndim)
    size = tensor.shape[along]
    if isinstance(sections_or_indices, list | tuple):
        cuts: list[Any] = [slice(a, b) for a, b in pairwise([0, *map(as_size, sections_or_indices), None])]
        parts = [normalize_slice(cut, size) for cut in cuts]
    else:
        parts = _equal_parts(int(cast(Any, sections_or_indices)), size, along, tensor)
    getitem = REGISTRY["getitem"]
    return [
        bind(getitem, (tensor,), {"index": part_of(tensor.shape, along, start, count)}) for start, count, _ in parts
    ]


def _equal_parts(count: int, size: Any, axis: int, tensor: Tensor) -> list[tuple[Any, Any, int]]:
    if count < 1:
        raise ArgumentError(f"split: {count} parts", hint="Ask for one part at least.")
    each = size // count
    if each * count != size:
        raise ShapeError(f"split: axis {axis} of size {size} does not divide into {count} equal parts",
                         got=str(tensor.spec), hint="Give the positions of the cuts instead.")
    return [(i * each, each, 1) for i in range(count)]


__all__ = ["concat", "split", "stack", "unstack"]

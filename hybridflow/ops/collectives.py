"""What the devices of a mesh send one another in `hf.shard_map`.

A kernel here takes the values of all devices along a mesh axis, stacked along a new first axis, and returns their
results in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import LOW_PRECISION
from hybridflow.core.errors import LayoutError
from hybridflow.core.op import No, Op, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor
from hybridflow.ops.common import no_flops

_TESTED = No("only inside hf.shard_map; tested with it")
_ONNX = No("ONNX has no devices")
Pairs = tuple[tuple[int, int], ...]


def _resized(x: TensorSpec, changes: dict[int, tuple[int, int]]) -> TensorSpec:
    """Return a spec with dimensions multiplied and divided, or raise if one cannot be divided."""
    shape: list[Any] = list(x.shape)
    for dim, (times, over) in changes.items():
        if shape[dim] * times % over:
            raise LayoutError(f"shard_map: dimension {dim} of size {shape[dim]} cannot be divided by {over}",
                              got=str(x), hint="Pad it, or choose another dimension.")
        shape[dim] = shape[dim] * times // over
    return make_spec(tuple(shape), x.dtype)


def _total(x: Any) -> Any:
    """Return the sum over the first axis, in float32 if the dtype is narrower."""
    wide = x.astype(np.float32) if x.dtype.num in LOW_PRECISION else x
    return np.sum(wide, axis=0, dtype=wide.dtype).astype(x.dtype)


def _scattered(whole: Any, size: int, dim: int) -> Any:
    return np.stack(np.split(whole, size, axis=dim))


def _exchanged(x: Any, size: int, split: int, join: int) -> Any:
    parts = [np.split(one, size, axis=split) for one in x]
    return np.stack([np.concatenate([part[to] for part in parts], axis=join) for to in range(size)])


def _permuted(x: Any, pairs: Pairs) -> Any:
    made = np.zeros_like(x)
    for source, target in pairs:
        made[target] = x[source]
    return made


def _record(name: str, kernel: Any, lower: Any, infer: Any, vjp: Any) -> Callable[..., Any]:
    def run(*xs: Tensor, **attrs: Any) -> Tensor:
        return bind(op, xs, attrs)

    run.__name__ = run.__qualname__ = name
    run.__doc__ = f"Bind the collective {name}."
    op = register(
        Op(name, kernel, lower, infer, vjp, flops=no_flops, samples=_TESTED, traits=frozenset({"collective", "inner"}),
           public=run, onnx=_ONNX)
    )
    return run


psum = _record(
    "psum",
    lambda x, *, axis, size: np.broadcast_to(_total(x), x.shape),
    lambda x, *, axis, size: lax.psum(x, axis),
    lambda x, *, axis, size: make_spec(x.shape, x.dtype),
    lambda F, g, y, x, *, axis, size: (F.psum(g, axis=axis, size=size),),
)
all_gather = _record(
    "all_gather",
    lambda x, *, axis, size, dim: np.stack([np.concatenate(list(x), axis=dim)] * size),
    lambda x, *, axis, size, dim: lax.all_gather(x, axis, axis=dim, tiled=True),
    lambda x, *, axis, size, dim: _resized(x, {dim: (size, 1)}),
    lambda F, g, y, x, *, axis, size, dim: (F.psum_scatter(g, axis=axis, size=size, dim=dim),),
)
psum_scatter = _record(
    "psum_scatter",
    lambda x, *, axis, size, dim: _scattered(_total(x), size, dim),
    lambda x, *, axis, size, dim: lax.psum_scatter(x, axis, scatter_dimension=dim, tiled=True),
    lambda x, *, axis, size, dim: _resized(x, {dim: (1, size)}),
    lambda F, g, y, x, *, axis, size, dim: (F.all_gather(g, axis=axis, size=size, dim=dim),),
)
ppermute = _record(
    "ppermute",
    lambda x, *, axis, size, pairs: _permuted(x, pairs),
    lambda x, *, axis, size, pairs: lax.ppermute(x, axis, pairs),
    lambda x, *, axis, size, pairs: make_spec(x.shape, x.dtype),
    lambda F, g, y, x, *, axis, size, pairs: (
        F.ppermute(g, axis=axis, size=size, pairs=tuple([(target, source) for source, target in pairs])),
    ),
)
all_to_all = _record(
    "all_to_all",
    lambda x, *, axis, size, split, join: _exchanged(x, size, split, join),
    lambda x, *, axis, size, split, join: lax.all_to_all(x, axis, split, join, tiled=True),
    lambda x, *, axis, size, split, join: _resized(_resized(x, {split: (1, size)}), {join: (size, 1)}),
    lambda F, g, y, x, *, axis, size, split, join: (F.all_to_all(g, axis=axis, size=size, split=join, join=split),),
)
axis_index = _record(
    "axis_index",
    lambda *, axis, size: np.arange(size, dtype=np.int32),
    lambda *, axis, size: lax.axis_index(axis),
    lambda *, axis, size: make_spec((), np.dtype(np.int32)),
    No("it has no inputs"),
)

SAME = frozenset({"psum", "all_gather"})
"""The collectives after which all devices along the axis have the same value."""


def axes_after(name: str, axis: str, before: frozenset[str]) -> frozenset[str]:
    """Return the mesh axes along which the result of a collective differs, given those of its input."""
    return before - {axis} if name in SAME else before | {axis}


def groups(sizes: Sequence[tuple[str, int]], axis: str) -> list[list[int]]:
    """Return the devices of a mesh in groups along one axis."""
    names = [name for name, _ in sizes]
    numbers = np.arange(int(np.prod([size for _, size in sizes]))).reshape([size for _, size in sizes])
    along = np.moveaxis(numbers, names.index(axis), -1)
    return along.reshape(-1, along.shape[-1]).tolist()

"""`ring_attention`: attention over sequences that are split over devices."""

from __future__ import annotations

import math
from typing import Any, cast

from hybridflow.core.context import current
from hybridflow.core.errors import LayoutError, ShapeError
from hybridflow.core.mesh import Axis, Layout, Mesh
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import GraphBuilder
from hybridflow.nested.manual import shard_map
from hybridflow.ops.common import TensorLike, broadcast_shapes, promote_float
from hybridflow.ops.nn.attention import scaled_dot_product_attention
from hybridflow.ops.nn.ring_attention import run_ring_attention
from hybridflow.ops.shape import broadcast_to


def ring_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    axis: str = "seq",
    *,
    is_causal: bool = False,
    scale: float | None = None,
    batch: Axis = None,
    heads: Axis = None,
) -> Tensor:
    """Compute `hf.nn.scaled_dot_product_attention` of sequences that are split over a mesh axis.

    Each device keeps its part of the queries; keys and values go round the devices, so none ever has all of them, nor
    the scores of more than one part. In eager code and without a mesh it is `scaled_dot_product_attention`. In
    `hf.shard_map`, the arguments are the device's parts.

    Args:
        query: ``(..., heads, n, dim)``, floating-point.
        key: ``(..., heads, m, dim)``; leading axes broadcast.
        value: ``(..., heads, m, dim_v)``; leading axes broadcast.
        axis: the mesh axis, whose size divides `n` and `m`.
        is_causal: whether a query may look only at keys up to its own position in the whole sequence.
        scale: the factor of the scores; ``1 / sqrt(dim)`` if not given.
        batch: the mesh axes over which axis 0 is split besides.
        heads: the mesh axes over which the heads are split besides.

    Returns:
        ``(..., heads, n, dim_v)``. It has first-order gradients on a mesh.

    Raises:
        ShapeError: the sizes do not match.
        LayoutError: the mesh has no such axis, or it does not divide a size.

    Example:
        >>> import hybridflow as hf
        >>> mesh = hf.Mesh({"seq": 1})
        >>> attend = hf.compile(lambda x: hf.distribute.ring_attention(x, x, x, is_causal=True), mesh=mesh)
        >>> attend(hf.asarray([[1.0, 0.0], [0.0, 1.0]]))[0]
        Tensor([1., 0.], dtype=float32)

    Reference:
        Liu et al., "Ring attention with blockwise transformers for near-infinite context", 2023.
    """
    tracer = cast("GraphBuilder | None", current().tracer)
    mesh: Mesh | None = None if tracer is None else tracer.manual or tracer.mesh
    if mesh is None:
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)
    if axis not in mesh.shape:
        raise LayoutError(f"ring_attention: the mesh has no axis {axis!r}", got=str(mesh),
                          hint=f"Pass axis=, one of {', '.join(mesh.axes)}, or make the mesh with it.")
    given = promote_float(query, key, value)
    if min([one.ndim for one in given]) < 2:
        raise ShapeError("ring_attention: query, key and value need 2 dimensions: length and dim",
                         got=", ".join([str(one.spec) for one in given]))
    leading = broadcast_shapes("ring_attention", *[one.shape[:-2] for one in given])
    q, k, v = [
        one if one.shape[:-2] == leading else broadcast_to(one, (*leading, *one.shape[-2:])) for one in given
    ]
    factor = scale if scale is not None else 1 / math.sqrt(int(q.shape[-1]) or 1)
    attrs: dict[str, Any] = {"axis": axis, "size": mesh.shape[axis], "is_causal": is_causal, "scale": float(factor)}

    def on_each(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return run_ring_attention(q, k, v, **attrs)[0]

    if tracer is not None and tracer.manual is not None:
        return on_each(q, k, v)
    layout = _layout(q.ndim, axis, batch, heads)
    return shard_map(on_each, mesh, [layout] * 3, layout)(q, k, v)


def _layout(ndim: int, axis: str, batch: Axis, heads: Axis) -> Layout:
    """Return how queries, keys and values lie on the mesh."""
    if (heads is not None and ndim < 3) or (batch is not None and ndim < (3 if heads is None else 4)):
        raise ShapeError("ring_attention: there are no axes for batch= and heads=", got=f"{ndim} dimensions",
                         hint="Shapes are (batch, heads, length, dim).")
    leading: list[Axis] = [None] * (ndim - 2)
    if leading:
        leading[-1] = heads
        leading[0] = batch if batch is not None else leading[0]
    return (*leading, axis, None)

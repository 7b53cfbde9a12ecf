"""How the values inside a compiled function lie on its mesh."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import LayoutError
from hybridflow.core.mesh import Axis, Layout, check_axes, check_rank, checked_layout
from hybridflow.core.op import Bad, Sample, op
from hybridflow.ops.common import Tensor, TensorLike, TensorSpec, as_tensor, make_spec, no_flops, normals


def _constrain_lower(x: Any, *, layout: Layout, gradient: Layout) -> Any:
    mesh = LOWERED_FOR.get()
    return x if mesh is None else lax.with_sharding_constraint(x, mesh.sharding(layout))


def _constrain_infer(x: TensorSpec, *, layout: Layout, gradient: Layout) -> TensorSpec:
    check_rank(layout, x.shape, "constrain")
    check_rank(gradient, x.shape, "constrain")
    return make_spec(x.shape, x.dtype)


def _constrain_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 4, 3), ("data", None)))
    yield Sample((normals(rng), ()))
    yield Sample((normals(rng, 2, 3, 4), [None, ("data", "model"), "stage"]))
    yield Sample((normals(rng, 4, dtype=np.float64), (None,)))
    yield Sample((normals(rng, 4, dtype="bfloat16"), ("data",)), gradient=False)
    yield Bad((normals(rng, 4, 3), ("data",)), error=LayoutError, text="the layout has 1 entries, the tensor 2 dimen")
    yield Bad((normals(rng, 4, 3), "data"), error=LayoutError, text="a layout is a tuple")
    yield Bad((normals(rng, 4, 3), ("data", "data")), error=LayoutError, text="'data' is used twice")


@op(
    kernel=lambda x, *, layout, gradient: x,
    lower=_constrain_lower,
    infer=_constrain_infer,
    vjp=lambda F, g, y, x, *, layout, gradient: (F.constrain(g, layout=gradient, gradient=layout),),
    flops=no_flops,
    samples=_constrain_samples,
    traits=("layout", "places"),
    ulp=0,
    onnx="Identity",
)
def constrain(x: TensorLike, layout: Layout, *, gradient: Layout | None = None) -> Tensor:
    """Set how a value lies on the compiled function's mesh; its gradient then lies the same way.

    The value stays the same. Eager code, and functions that are compiled without a mesh, ignore the layout. XLA fills
    up the last part of a dimension that the mesh does not divide evenly.

    Args:
        x: any shape and dtype.
        layout: a mesh axis, a tuple of several, or None for each dimension.
        gradient: the layout of the gradient, if it is another one.

    Returns:
        The same value.

    Raises:
        LayoutError: a layout has another rank, repeats an axis, or names one that the mesh does not have.

    Example:
        >>> import hybridflow as hf
        >>> hf.constrain([1.0, 2.0], ("data",))
        Tensor([1., 2.], dtype=float32)
    """
    tensor, entries = as_tensor(x), checked_layout(layout, "constrain")
    back = entries if gradient is None else checked_layout(gradient, "constrain")
    for one in (entries, back):
        check_rank(one, tensor.shape, "constrain")
        mesh = getattr(current().tracer, "mesh", None)
        if mesh is not None:
            check_axes(one, mesh, "constrain")
    return bind(constrain.op, (tensor,), {"layout": entries, "gradient": back})


def _gathered_samples(rng: np.random.Generator) -> Any:
    for again in (False, True):
        yield Sample((normals(rng, 4, 3), (None, "model"), ("data", "model"), again))


@op(
    kernel=lambda x, *, layout, gradient, again: x,
    lower=lambda x, *, layout, gradient, again: _constrain_lower(x, layout=layout, gradient=gradient),
    infer=lambda x, *, layout, gradient, again: _constrain_infer(x, layout=layout, gradient=gradient),
    vjp=lambda F, g, y, x, *, layout, gradient, again: (F.constrain(g, layout=gradient, gradient=layout),),
    flops=no_flops,
    samples=_gathered_samples,
    traits=("layout", "inner", "places", "gathers"),
    ulp=0,
    onnx="Identity",
)
def gathered(x: TensorLike, layout: Layout, gradient: Layout, again: bool) -> Tensor:
    """Gather the parts of a Variable; its gradient is reduced to the parts.

    Args:
        x: the Variable's value.
        layout: the layout of the result.
        gradient: the Variable's own layout.
        again: whether the gradient's computation gathers the parts again, so that the gathered value is not kept.
    """
    return bind(gathered.op, (as_tensor(x),), {"layout": layout, "gradient": gradient, "again": again})


def _divided_lower(x: Any, *, axis: Axis, dim: int) -> Any:
    mesh = LOWERED_FOR.get()
    if mesh is None:
        return x
    rest = PartitionSpec.UNCONSTRAINED
    layout = [axis if index == dim else rest for index in range(x.ndim)]
    return lax.with_sharding_constraint(x, NamedSharding(mesh.of_jax, PartitionSpec(*layout)))


def _divided_samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 4, 3), "model", 1))
    yield Sample((normals(rng, 2, 3, 4), ("data", "model"), 0))


@op(
    kernel=lambda x, *, axis, dim: x,
    lower=_divided_lower,
    infer=lambda x, *, axis, dim: make_spec(x.shape, x.dtype),
    vjp=lambda F, g, y, x, *, axis, dim: (F.divided(g, axis=axis, dim=dim),),
    flops=no_flops,
    samples=_divided_samples,
    traits=("layout", "inner"),
    ulp=0,
    onnx="Identity",
)
def divided(x: TensorLike, axis: Axis, dim: int) -> Tensor:
    """Split one dimension over a mesh axis, and leave to XLA how the others lie; the gradient lies so too.

    Args:
        x: any shape and dtype.
        axis: a mesh axis, a tuple of several, or None for the whole dimension.
        dim: the dimension, not negative.
    """
    return bind(divided.op, (as_tensor(x),), {"axis": axis, "dim": dim})


__all__ = ["constrain"]

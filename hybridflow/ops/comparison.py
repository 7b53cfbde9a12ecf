"""Comparison, logic and choice, elementwise."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import bool_
from hybridflow.core.errors import DTypeError, ShapeError, message
from hybridflow.core.op import Bad, Sample, Saves, Stops, op, public_names
from hybridflow.ops.common import (
    ANY,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    binary_samples,
    broadcast_lowered,
    broadcast_shapes,
    broadcasting,
    call_text,
    integers,
    make_spec,
    no_flops,
    normals,
    pointwise,
    promote,
    unbroadcast,
)

_NOT_SMOOTH = Stops("a comparison is constant almost everywhere")


# -- comparison ---------------------------------------------------------------------------------------------------


@op(
    kernel=np.equal,
    lower=broadcasting(lax.eq),
    infer=pointwise("equal", ANY, bool_),
    vjp=_NOT_SMOOTH,
    flops=no_flops,
    samples=binary_samples(),
    traits=("pointwise", "commutative"),
    method="__eq__",
    ulp=0,
)
def equal(x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Compare elementwise for equality; NaN equals nothing.

    Args:
        x1, x2: of shapes that broadcast.

    Returns:
        Bools.

    Raises:
        ShapeError: the shapes do not broadcast.

    Example:
        >>> import hybridflow as hf
        >>> hf.equal([1, 2], 2)
        Tensor([False,  True], dtype=bool)
    """
    return bind(equal.op, promote(x1, x2))


# -- choice -------------------------------------------------------------------------------------------------------


def _where_infer(condition: TensorSpec, a: TensorSpec, b: TensorSpec) -> TensorSpec:
    if condition.dtype != bool_:
        raise DTypeError(
            message(f"where: the condition is {condition.dtype}, not bool", got=call_text("where", condition, a, b),
                    hint="Compare it with something, or cast it with .astype(hf.bool).")
        )  # fmt: skip
    if a.dtype != b.dtype:
        raise DTypeError(message(f"where: dtypes differ: {a.dtype} and {b.dtype}", got=call_text("where", condition, a, b)))
    return make_spec(broadcast_shapes("where", condition.shape, a.shape, b.shape), a.dtype)


def _where_lower(condition: Any, a: Any, b: Any) -> Any:
    dtype = a.dtype if hasattr(a, "dtype") else b.dtype
    a, b = (value if hasattr(value, "dtype") else np.asarray(value, dtype) for value in (a, b))
    shape = np.broadcast_shapes(condition.shape, a.shape, b.shape)
    return lax.select(*[broadcast_lowered(value, shape) for value in (condition, a, b)])


def _where_vjp(F: Any, g: Any, y: Any, condition: Any, a: Any, b: Any) -> Any:
    del y
    return (
        None,
        lambda: unbroadcast(F, F.where(condition, g, 0), a),
        lambda: unbroadcast(F, F.where(condition, 0, g), b),
    )


def _where_samples(rng: np.random.Generator) -> Any:
    flags = integers(rng, 0, 2, 3, 4, dtype="bool")
    yield Sample((flags, normals(rng, 3, 4), normals(rng, 3, 4)))
    yield Sample((flags, normals(rng, 4), 2.0))
    yield Sample((flags[0], normals(rng, 3, 1), normals(rng)))
    yield Sample((flags[0, 0], normals(rng), normals(rng)))
    yield Sample((flags[:0], normals(rng, 0, 4), normals(rng, 4)))
    yield Sample((flags, normals(rng, 4, dtype="bfloat16"), normals(rng, 4, dtype="bfloat16")), gradient=False)
    yield Sample((flags, integers(rng, 0, 9, 4), integers(rng, 0, 9, 3, 1)))
    yield Bad((normals(rng, 3), 1.0, 2.0), error=DTypeError, text="the condition is float32, not bool")
    yield Bad((flags, normals(rng, 3), 2.0), error=ShapeError, text="do not broadcast")


@op(
    kernel=np.where,
    lower=_where_lower,
    infer=_where_infer,
    vjp=_where_vjp,
    saves=Saves(x=(0,)),
    flops=no_flops,
    samples=_where_samples,
    traits=("pointwise", "layout"),
    ulp=0,
)
def where(condition: TensorLike, x1: TensorLike, x2: TensorLike, /) -> Tensor:
    """Take elements of one tensor where a condition holds, of another where it does not.

    No gradient passes to an element that was not taken.

    Args:
        condition: bool.
        x1, x2: of any dtype; the three shapes broadcast.

    Returns:
        The elements taken, in the promoted dtype.

    Raises:
        ShapeError: the shapes do not broadcast.
        DTypeError: the condition is not bool.

    Example:
        >>> import hybridflow as hf
        >>> hf.where([True, False], 1.0, [2.0, 3.0])
        Tensor([1., 3.], dtype=float32)
    """
    return bind(where.op, (as_tensor(condition), *promote(x1, x2)))


__all__ = public_names(globals())  # pyright: ignore[reportUnsupportedDunderAll]

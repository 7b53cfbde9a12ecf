"""`linear`: multiplication by a matrix of weights and addition of a bias, as one operation."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from hybridflow.backend import products
from hybridflow.core.dispatch import bind
from hybridflow.core.errors import DTypeError, ShapeError
from hybridflow.core.op import Bad, MultiplyAdds, Sample, Saves, on_host, op
from hybridflow.core.settings import SETTINGS
from hybridflow.ops.common import (
    NUMERIC,
    Tensor,
    TensorLike,
    TensorSpec,
    as_tensor,
    call_text,
    integers,
    make_spec,
    normals,
    promote,
    require_kind,
)
from hybridflow.ops.matmul import accumulate_in, rows, swap
from hybridflow.ops.padding import dense
from hybridflow.ops.summation import add_up


def _flat(x: Any) -> Any:
    """Return an array as a matrix; all axes but the last become one."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


def _kernel(x: Any, weight: Any, bias: Any = None) -> Any:
    out, size = weight.shape
    if x.shape[-1] != size or (bias is not None and bias.shape != (out,)):
        raise ValueError("sizes that do not fit")  # `bind` then runs the shape rule, which says more
    if x.ndim < 3 or not x.size:
        y = products.matmul(x, weight.T)
    else:
        y = products.matmul(_flat(x), weight.T).reshape(*x.shape[:-1], out)
    if bias is not None:
        np.add(y, bias, y)  # the product is a new array
    return y


def _lower(x: Any, weight: Any, bias: Any = None) -> Any:
    y = lax.dot_general(
        x,
        weight,
        (((x.ndim - 1,), (1,)), ((), ())),
        precision=SETTINGS.matmul_precision,
        preferred_element_type=accumulate_in(x.dtype),
    )
    if bias is not None:
        wide = lax.convert_element_type(bias, y.dtype)
        y = lax.add(y, lax.broadcast_in_dim(wide, y.shape, (y.ndim - 1,)))
    return lax.convert_element_type(y, x.dtype)


def _infer(x: TensorSpec, weight: TensorSpec, bias: TensorSpec | None = None) -> TensorSpec:
    given = (x, weight) if bias is None else (x, weight, bias)
    text = call_text("linear", *given)
    require_kind("linear", NUMERIC, *given)
    for one in given:
        if one.dtype != x.dtype:
            raise DTypeError(f"linear: dtypes differ: {x.dtype} and {one.dtype}", got=text)
    if weight.ndim != 2:
        raise ShapeError(f"linear: the weight has {weight.ndim} axes, not (out, in)", got=text,
                         hint="Reshape the weight.")
    if not x.shape:
        raise ShapeError("linear: the input has 0 dimensions, at least 1 is needed", got=text, hint="Use * to scale.")
    out, size = weight.shape
    if x.shape[-1] != size:
        raise ShapeError(f"linear: the input has size {x.shape[-1]} along its last axis, the weight takes {size}",
                         got=text, hint="Weights are (out, in); transpose one that is (in, out).")
    if bias is not None and bias.shape != (out,):
        raise ShapeError(f"linear: the bias has shape {bias.shape}, the weight gives {out} values", got=text,
                         hint=f"A bias has shape ({out},).")
    return make_spec((*x.shape[:-1], out), x.dtype)


def _vjp(F: Any, g: Any, y: Any, x: Any, weight: Any, *bias: Any) -> Any:
    del y
    gradients = [lambda: F.matmul(g, weight), lambda: F.matmul(swap(F, rows(F, g)), rows(F, x))]
    if bias:
        axes = tuple(range(len(g.shape) - 1))
        gradients.append(lambda: F.sum(g, axis=axes, keepdims=False) if axes else g)
    return gradients


def _vjp_on_host(g: Any, y: Any, x: Any, weight: Any, *bias: Any) -> Any:
    del y

    def of_x() -> Any:
        if g.ndim < 3 or not g.size:
            return products.matmul(g, weight)
        return products.matmul(_flat(g), weight).reshape(*g.shape[:-1], weight.shape[1])

    if not g.size or not x.size:
        return None
    gradients = [of_x, lambda: products.matmul(_flat(g).T, _flat(x))]
    if bias:
        gradients.append(lambda: add_up(_flat(g), (0,), False))
    return gradients


def _samples(rng: np.random.Generator) -> Any:
    yield Sample((normals(rng, 3, 4), normals(rng, 2, 4), normals(rng, 2)))
    yield Sample((normals(rng, 3, 4), normals(rng, 2, 4)))
    yield Sample((normals(rng, 4), normals(rng, 2, 4), normals(rng, 2)))
    yield Sample((normals(rng, 2, 3, 4), normals(rng, 5, 4), normals(rng, 5)))
    yield Sample((normals(rng, 2, 1, 3, 4), normals(rng, 5, 4)))
    yield Sample((normals(rng, 0, 3), normals(rng, 2, 3), normals(rng, 2)))
    yield Sample((normals(rng, 2, 0, 3), normals(rng, 2, 3), normals(rng, 2)))
    yield Sample((normals(rng, 2, 0), normals(rng, 3, 0), normals(rng, 3)))
    yield Sample((normals(rng, 2, 3, dtype=np.float64), normals(rng, 4, 3), normals(rng, 4)))
    yield Sample((integers(rng, -5, 5, 2, 3), integers(rng, -5, 5, 4, 3), integers(rng, -5, 5, 4)))
    low = {"dtype": "bfloat16"}
    yield Sample((normals(rng, 2, 3, **low), normals(rng, 4, 3, **low), normals(rng, 4, **low)), gradient=False)
    x, weight = normals(rng, 3, 4), normals(rng, 2, 4)
    yield Bad((x, weight.T), error=ShapeError, text="size 4 along its last axis, the weight takes 2")
    yield Bad((x, weight, normals(rng, 1)), error=ShapeError, text="the bias has shape (1,), the weight gives 2 values")
    yield Bad((x, normals(rng, 4)), error=ShapeError, text="the weight has 1 axes, not (out, in)")
    yield Bad((normals(rng), weight), error=ShapeError, text="0 dimensions")
    yield Bad((x > 0, weight > 0), error=DTypeError, text="does not take bool")


def _onnx(o: Any, x: Any, weight: Any, bias: Any = None) -> Any:
    y = o.MatMul(x, o.Transpose(weight, perm=(1, 0)))
    return y if bias is None else y + bias


@op(
    kernel=_kernel,
    lower=_lower,
    infer=_infer,
    vjp=on_host(_vjp, _vjp_on_host),
    saves=Saves(x=(0, 1), each=((1,), (0,), ())),
    flops=MultiplyAdds(lambda y, x, *weights: y.size * x.shape[-1], lambda y, x, w, *bias: y.size * len(bias)),
    samples=_samples,
    traits=("dot", "low_precision"),
    ulp=16,
    onnx=_onnx,
    padded=dense,
)
def linear(x: TensorLike, weight: TensorLike, bias: TensorLike | None = None) -> Tensor:
    """Multiply by the transpose of a matrix of weights and add a bias: ``x @ weight.T + bias``.

    float16 and bfloat16 are accumulated in float32 and rounded once, after the bias is added.

    Args:
        x: numeric, ``(..., in)``.
        weight: ``(out, in)``.
        bias: ``(out,)``; none if not given.

    Returns:
        ``(..., out)`` in the promoted dtype.

    Raises:
        ShapeError: the sizes do not fit.
        DTypeError: bool operands.

    Example:
        >>> import hybridflow as hf
        >>> hf.nn.linear([1.0, 2.0], [[1.0, 1.0], [0.0, 1.0]], [10.0, 20.0])
        Tensor([13., 22.], dtype=float32)
    """
    first, second = as_tensor(x), as_tensor(weight)
    if bias is None:
        return bind(linear.op, (first, second) if first.dtype is second.dtype else promote(first, second))
    third = as_tensor(bias)
    if first.dtype is second.dtype is third.dtype:  # the case of nearly every call
        return bind(linear.op, (first, second, third))
    return bind(linear.op, promote(first, second, third))


__all__ = ["linear"]

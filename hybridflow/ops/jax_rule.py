"""Gradient rules that apply `jax.vjp` to an op's lowering, for ops whose rule is not worth writing by hand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.op import REGISTRY, Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.core.tensor import Tensor

Attrs = tuple[tuple[str, Any], ...]


def _lower(*values: Any, op: str, attrs: Attrs, given: tuple[bool, ...], positions: tuple[int, ...]) -> Any:
    """Pull cotangents back through the lowering of `op`, to the differentiable inputs at `positions` only."""
    count = len(values) - sum(given)
    xs, gs = values[:count], iter(values[count:])
    run = partial(REGISTRY[op].lower, **dict(attrs))

    def of_wanted(*some: Any) -> Any:
        full = list(xs)
        for position, value in zip(positions, some, strict=True):
            full[position] = value
        outputs = run(*full)
        return tuple(outputs) if isinstance(outputs, tuple | list) else (outputs,)

    outputs, pullback = jax.vjp(of_wanted, *[xs[i] for i in positions])
    cotangents = [
        next(gs) if has else _zero_cotangent(y) for has, y in zip(given, outputs, strict=True)
    ]
    gradients = pullback(tuple(cotangents))
    return gradients[0] if len(gradients) == 1 else gradients


def _zero_cotangent(y: Any) -> Any:
    if jnp.issubdtype(y.dtype, jnp.inexact):
        return jnp.zeros(y.shape, y.dtype)
    return np.zeros(y.shape, jax.dtypes.float0)


def _infer(*specs: TensorSpec, op: str, attrs: Attrs, given: tuple[bool, ...], positions: tuple[int, ...]) -> Any:
    del op, attrs, given
    result_specs = tuple([make_spec(specs[i].shape, specs[i].dtype) for i in positions])
    return result_specs[0] if len(result_specs) == 1 else result_specs


def _vjp(F: Any, g: Any, y: Any, *values: Any, wanted: tuple[bool, ...], **attrs: Any) -> Any:
    del y
    gs = list(g) if isinstance(g, tuple) else [g]
    return _pull_back_in(F, JAX_VJP, values, gs, attrs, wanted)


JAX_VJP = register(
    Op("jax_vjp", No("jax computes it"), _lower, _infer, Joint(_vjp), saves=Saves(x="all"), traits=frozenset(),
       onnx=No("jax computes it"))
)


def vjp_of_lowering(
    op: Op, xs: Sequence[Tensor], cotangents: Sequence[Any], attrs: dict[str, Any], wanted: tuple[bool, ...]
) -> list[Any]:
    """Return the gradients of an op's inputs, taken with `jax.vjp` from its lowering.

    Args:
        op: the op.
        xs: its inputs, as tensors.
        cotangents: one per output (hidden ones included), None for an output without a cotangent.
        attrs: its attributes.
        wanted: for each input, whether its gradient is wanted.
    """
    return _pull_back(op, xs, cotangents, attrs, wanted)


def _pull_back(
    op: Op, xs: Sequence[Any], cotangents: Sequence[Any], attrs: dict[str, Any], wanted: tuple[bool, ...]
) -> list[Any]:
    positions = _positions(xs, wanted)
    result: list[Any] = [None] * len(xs)
    if not positions:
        return result
    gradients = bind(
        JAX_VJP,
        (*xs, *[g for g in cotangents if g is not None]),
        {
            "op": op.name,
            "attrs": tuple(attrs.items()),
            "given": tuple([g is not None for g in cotangents]),
            "positions": positions,
        },
    )
    for position, gradient in zip(positions, gradients if isinstance(gradients, tuple) else (gradients,), strict=True):
        result[position] = gradient
    return result


def _positions(xs: Sequence[Any], wanted: tuple[bool, ...]) -> tuple[int, ...]:
    return tuple([i for i, x in enumerate(xs) if wanted[i] and is_differentiable(x.dtype)])


class RuleFromLowering(Joint):
    """A gradient rule that applies `jax.vjp` to an op's lowering; the op must save all inputs.

    The rule works in every namespace: on tensors it binds one ``jax_vjp`` node, on bare arrays it runs jitted.

    Args:
        name: the name of the op.
    """

    def __init__(self, name: str) -> None:
        super().__init__(partial(_of_lowering, name))


def _of_lowering(name: str, F: Any, g: Any, y: Any, *xs: Any, wanted: tuple[bool, ...], **attrs: Any) -> list[Any]:
    op = REGISTRY[name]
    many = isinstance(y, tuple)
    gs = list(g) if isinstance(g, tuple) else [g]
    if many:
        gs += [None] * (len(y) - len(gs))
    if op.saves.hidden:
        attrs = {**attrs, "residuals": many}
    return _pull_back_in(F, op, xs, gs, attrs, wanted)


def _pull_back_in(
    F: Any, op: Op, xs: Sequence[Any], gs: Sequence[Any], attrs: dict[str, Any], wanted: tuple[bool, ...]
) -> list[Any]:
    """Pull cotangents back in any namespace: bind a node on tensors, run JAX on bare arrays."""
    if any(isinstance(x, Tensor) for x in (*xs, *gs)):
        return _pull_back(op, xs, gs, attrs, wanted)
    positions = _positions(xs, wanted)
    if not positions:
        return [None] * len(xs)
    given = tuple([value is not None for value in gs])
    gradients = F.jax_vjp(
        *xs, *[value for value in gs if value is not None],
        op=op.name, attrs=tuple(attrs.items()), given=given, positions=positions,
    )
    result: list[Any] = [None] * len(xs)
    several = gradients if isinstance(gradients, tuple | list) else (gradients,)
    for position, gradient in zip(positions, several, strict=True):
        result[position] = gradient
    return result

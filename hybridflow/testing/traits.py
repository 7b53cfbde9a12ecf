"""Checks of an op's traits, each a function of one call of the op; registered by a decorator."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.core.dtypes import as_dtype, kind_of
from hybridflow.core.op import REGISTRY
from hybridflow.ops.index_keys import numpy_index
from hybridflow.testing.calls import Array, Call, difference

TraitCheck = Callable[[Call, tuple[Array, ...]], "str | None"]
TRAIT_CHECKS: dict[str, TraitCheck] = {}
"""For each trait, a function of a call and its outputs that describes what is wrong, or returns None."""


def claims(trait: str) -> Callable[[TraitCheck], TraitCheck]:
    """Register a function as the check of a trait."""

    def decorate(function: TraitCheck) -> TraitCheck:
        TRAIT_CHECKS[trait] = function
        return function

    return decorate


def _again(call: Call, *inputs: Array) -> Array:
    return call.run(call.with_residuals()[0], inputs)[0]


def _ulps(call: Call, y: Array) -> Any:
    if kind_of(as_dtype(y.dtype)) not in ("float", "complex"):
        return 0
    magnitude = np.abs(y.astype(np.complex128 if y.dtype.kind == "c" else np.float64))
    return 2 * call.op.ulp * float(jnp.finfo(y.dtype).eps) * np.where(np.isfinite(magnitude), magnitude, 0)


@claims("pointwise")
def _pointwise(call: Call, outputs: tuple[Array, ...]) -> str | None:
    shape = np.broadcast_shapes(*[x.shape for x in call.inputs])
    order = np.random.default_rng(0).permutation(int(np.prod(shape)))
    try:
        moved = call.run(call.with_residuals()[0], [np.broadcast_to(x, shape).ravel()[order] for x in call.inputs])
    except (ValueError, IndexError) as error:
        return f"it does not run on its elements in a row: {error}"
    for y, other in zip(outputs, moved, strict=True):
        if y.shape != shape:
            return f"the result has shape {y.shape}, the operands broadcast to {shape}"
        expected = y.ravel()[order]
        text = difference(other, expected, _ulps(call, expected))
        if text is not None:
            return f"elements change when they are reordered: {text}"
    return None


@claims("commutative")
def _commutative(call: Call, outputs: tuple[Array, ...]) -> str | None:
    swapped = _again(call, call.inputs[1], call.inputs[0], *call.inputs[2:])
    return difference(swapped, outputs[0], 0)


@claims("identity")
def _identity(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0], 0)


@claims("layout")
def _layout(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """Every element of the result is an element of the inputs, or zero."""
    if any(x.dtype != outputs[0].dtype for x in call.inputs[:1]) and not call.op.has("select"):
        return None
    allowed = np.concatenate([np.zeros(1), *[x.ravel().astype(np.complex128) for x in call.inputs]])
    elements = outputs[0].ravel().astype(np.complex128)
    new = elements[~np.isin(elements, allowed) & (elements == elements)]
    return f"{new[0]} is no element of the inputs" if new.size else None


@claims("reshape")
def _reshape(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0].reshape(call.attrs["shape"]), 0)


@claims("permute")
def _permute(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0].transpose(call.attrs["axes"]), 0)


@claims("uniform")
def _uniform(call: Call, outputs: tuple[Array, ...]) -> str | None:
    expected = np.full(call.attrs["shape"], call.attrs["fill_value"], outputs[0].dtype)
    return difference(outputs[0], expected, 0)


@claims("select")
def _select(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], np.where(*call.inputs), 0)


@claims("slice")
def _slice(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], call.inputs[0][numpy_index(call.attrs["index"])], 0)


@claims("placement")
def _placement(call: Call, outputs: tuple[Array, ...]) -> str | None:
    expected = np.zeros(call.attrs["shape"], outputs[0].dtype)
    expected[numpy_index(call.attrs["index"])] = call.inputs[0]
    return difference(outputs[0], expected, 0)


@claims("order")
def _order(call: Call, outputs: tuple[Array, ...]) -> str | None:
    a, b = np.broadcast_arrays(*call.inputs)
    if a.dtype.kind == "c":
        return None
    less, same, more = [_again(call, *[np.asarray(x, a.dtype) for x in pair]) for pair in ((0, 1), (1, 1), (1, 0))]
    ordered = (a < b) | (a == b) | (a > b)
    expected = np.where(a < b, less, np.where(a == b, same, more))
    return difference(outputs[0][ordered], expected[ordered], 0)


@claims("shift")
def _shift(call: Call, outputs: tuple[Array, ...]) -> str | None:
    a, b = call.inputs
    with np.errstate(all="ignore"):
        return difference(outputs[0], a + _again(call, np.asarray(-0.0).astype(a.dtype), b), 0)


@claims("product")
def _product(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(outputs[0], np.multiply(*call.inputs), _ulps(call, outputs[0]))


@claims("matrix_product")
def _matrix_product(call: Call, outputs: tuple[Array, ...]) -> str | None:
    wide = [x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in call.inputs]
    try:
        expected, bound = np.matmul(*wide), np.matmul(*map(np.abs, wide)) * 2 * call.op.ulp
    except ValueError as error:
        return f"its inputs have no matrix product: {error}"
    if kind_of(as_dtype(outputs[0].dtype)) in ("float", "complex"):
        bound = bound * float(jnp.finfo(outputs[0].dtype).eps)
    return difference(outputs[0].astype(wide[0].dtype), expected, bound)


def _lowered_to(name: str) -> TraitCheck:
    def check(call: Call, outputs: tuple[Array, ...]) -> str | None:
        del outputs
        text = jax.jit(partial(call.op.lower, **call.attrs)).lower(*call.inputs).as_text()
        return None if f"stablehlo.{name}" in text else f"its lowering holds no {name}"

    return check


claims("convolution")(_lowered_to("convolution"))
claims("dot")(_lowered_to("dot_general"))


@claims("kernel_gradient")
def _kernel_gradient(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """The products with any kernel add up to those of the second input with that kernel's convolution of the first."""
    x, g = call.inputs
    attrs = {name: value for name, value in call.attrs.items() if name != "shape"}
    kernel = np.random.default_rng(0).standard_normal(outputs[0].shape).astype(x.dtype)
    parts = g * np.asarray(REGISTRY["conv"].lower(x, kernel, **attrs))
    return difference(np.sum(kernel * outputs[0]), np.sum(parts), np.sum(_ulps(call, parts)))


@claims("picks")
def _picks(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """Every element of the result is an element of the first input, or a position."""
    first = call.inputs[0].astype(np.complex128).ravel()
    for output in outputs:
        positions = np.arange(first.size) if output.dtype.kind in "iu" else []
        elements = output.astype(np.complex128).ravel()
        new = elements[~np.isin(elements, [*first, *positions]) & (elements == elements)]
        if new.size:
            return f"{new[0]} is neither an element of the input nor a position"
    return None


@claims("sum")
def _sum(call: Call, outputs: tuple[Array, ...]) -> str | None:
    x, axis = call.inputs[0], call.attrs["axis"]
    exact, size = (
        np.add.reduce(one.astype(np.complex128), axis=axis, keepdims=call.attrs["keepdims"]) for one in (x, np.abs(x))
    )
    return difference(outputs[0].astype(np.complex128), exact, size.real * _ulps(call, np.ones((), x.dtype)) * x.size)


@claims("windowed")
def _windowed(call: Call, outputs: tuple[Array, ...]) -> str | None:
    """An element of the first input affects no more results than a window has elements."""
    first = call.inputs[0].copy()
    if not first.size:
        return None
    first.flat[0] = np.nan
    affected = int(np.sum(np.isnan(_again(call, first, *call.inputs[1:])) & ~np.isnan(outputs[0])))
    most = math.prod(call.attrs["window"])
    return f"an element is seen by {affected} results, and a window has {most} elements" if affected > most else None



@claims("involution")
def _involution(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(_again(call, outputs[0]), call.inputs[0], 0)


@claims("idempotent")
def _idempotent(call: Call, outputs: tuple[Array, ...]) -> str | None:
    return difference(_again(call, outputs[0]), outputs[0], 0)


def _unit(number: float) -> TraitCheck:
    def check(call: Call, outputs: tuple[Array, ...]) -> str | None:
        first = call.inputs[0].ravel()
        if outputs[0].dtype != first.dtype:
            return None
        if kind_of(as_dtype(first.dtype)) == "float":
            first = np.concatenate([first, np.array([0.0, -0.0, np.inf, np.nan], first.dtype)])
        return difference(_again(call, first, np.full_like(first, number)), first, 0)

    return check


claims("unit_one")(_unit(1.0))
claims("unit_zero")(_unit(0.0))
claims("unit_minus_zero")(_unit(-0.0))


@claims("random")
def _random(call: Call, outputs: tuple[Array, ...]) -> str | None:
    second_run = call.run(call.with_residuals()[0])
    return next((text for a, b in zip(second_run, outputs, strict=True) if (text := difference(a, b, 0))), None)

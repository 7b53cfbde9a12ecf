"""Kinds of elementwise operations: what the operations of a family share is said here, once.

A kind is called as `op` is, with the columns that differ, and decorates the public function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cache
from types import FunctionType
from typing import Any, Literal, ParamSpec, TypeVar, cast

import numpy as np
from jax import lax

from hybridflow.backend.host import run_quietly
from hybridflow.core.op import Array, No, Onnx, OpFunction, Samples, Saves, op
from hybridflow.ops.common import (
    FLOATING,
    NUMERIC,
    REAL,
    binary_samples,
    broadcasting,
    elements,
    pointwise,
    unary_samples,
)

P = ParamSpec("P")
R = TypeVar("R")
_NOT_GIVEN = No("not given")


@dataclass(frozen=True)
class Kind:
    """What the operations of a family share.

    Attributes:
        accepts: the kinds of dtypes that operands may have; all operands have one dtype.
        result: the result's dtype, if it is not the operands'.
        operands: their number; several are broadcast against each other.
        complex_planes: whether XLA's function is corrected for special complex values (see `with_special_values`).
        method: whether the function is also a method of `Tensor`, of the same name.
        vjp, flops, ulp, samples: columns of `Op`, unless an operation has its own.
    """

    accepts: tuple[str, ...]
    result: Any = None
    operands: int = 1
    complex_planes: bool = False
    method: bool = False
    vjp: Callable[..., Any] | No = _NOT_GIVEN
    flops: Callable[..., Any] = elements
    ulp: float = 4.0
    samples: Samples = field(default_factory=unary_samples)

    def __call__(
        self,
        kernel: Callable[..., Array],
        lower: Callable[..., Array],
        parity: Parity = "none",
        *,
        vjp: Callable[..., Any] | No | None = None,
        saves: Saves | None = None,
        samples: Samples | None = None,
        traits: Iterable[str] = (),
        method: str = "",
        flops: Callable[..., Any] | None = None,
        ulp: float | None = None,
        name: str | None = None,
        onnx: Onnx | None = None,
    ) -> Callable[[Callable[P, R]], OpFunction[P, R]]:
        """Make a public function an operation of this kind.

        Args:
            kernel: the NumPy function.
            lower: the jax function, of operands of one shape.
            parity: for `complex_planes`, whether the function is odd or even.
            vjp, saves, samples, flops, ulp, name, onnx: as `op` takes them.
            traits: trait names besides ``pointwise``.
            method: names of `Tensor` methods besides that of the kind, separated by spaces.
        """

        def decorate(function: Callable[P, R]) -> OpFunction[P, R]:
            own = name or cast(FunctionType, function).__name__
            if self.complex_planes:
                lowered = with_special_values(kernel, lower, parity)
            else:
                lowered = broadcasting(lower) if self.operands > 1 else lower
            return op(
                kernel=kernel,
                lower=lowered,
                infer=pointwise(own, self.accepts, self.result),
                vjp=self.vjp if vjp is None else vjp,
                saves=saves,
                flops=flops or self.flops,
                samples=samples or self.samples,
                traits=("pointwise", *traits),
                method=method or (own if self.method else ""),
                ulp=self.ulp if ulp is None else ulp,
                name=name,
                onnx=onnx,
            )(function)

        return decorate


analytic = Kind(FLOATING, complex_planes=True, method=True)
"""Functions of real and complex floats, such as `sin`, whose complex form must be corrected for XLA."""
floating = Kind(FLOATING, method=True)
"""Other functions of real and complex floats."""
real_function = Kind(("float",))
"""Functions of real floats, such as activations."""
rounding = Kind(REAL, method=True, ulp=0)
"""Exact functions of real numbers to whole numbers."""
numeric = Kind(NUMERIC)
"""Functions of numbers of any dtype but bool."""
sum_or_product = Kind(NUMERIC, operands=2, ulp=0.5, samples=binary_samples())
"""Operators of numbers of any dtype but bool."""
real_pair = Kind(("float",), operands=2, samples=binary_samples())
"""Functions of two real floats."""


# -- special values of complex functions: what C99, and so NumPy, returns for zeros, infinities and NaN ---------------
# XLA's own functions return NaN for many of them. Where the result depends only on the kinds of the two parts, the
# lowering looks it up in a table of the kernel's results.

Function = Callable[[Any], Any]
Parity = Literal["none", "odd", "even"]

_KINDS = (np.nan, -np.inf, -1.5, -0.0, 0.0, 1.5, np.inf)
"""One number of every kind: its place is the kind's number."""
_FINITE = (2, 5)


@cache
def _table(kernel: Function, dtype: Any) -> tuple[Any, Any]:
    """Return the results for all pairs of kinds, and which of these results hold for all numbers of the kinds."""
    points = np.empty((7, 7), dtype)
    points.real, points.imag = np.array(_KINDS)[:, None], np.array(_KINDS)
    known = np.ones((7, 7), bool)
    for finite in _FINITE:  # beside a NaN, no finite number but 0 matters by more than its sign
        known[finite, 1:] = known[1:, finite] = False
    return run_quietly(kernel, points).reshape(-1), known.reshape(-1)


def _kind(x: Any) -> Any:
    """Return the kind of every element as a number, int32."""

    def pick(condition: Any, yes: Any, no: Any) -> Any:
        full = [value if hasattr(value, "dtype") else lax.full_like(x, value, np.int32) for value in (yes, no)]
        return lax.select(condition, *full)

    zero = pick(_negative(x), 3, 4)
    negative, positive = pick(x == -np.inf, 1, 2), pick(x == np.inf, 6, 5)
    return pick(x != x, 0, pick(x == 0, zero, pick(x < 0, negative, positive)))


def _look_up(table: Any, index: Any) -> Any:
    """Return the entries of a row at positions, which must be in range."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(), collapsed_slice_dims=(0,), start_index_map=(0,))
    return lax.gather(table, lax.expand_dims(index, (index.ndim,)), numbers, (1,), mode="promise_in_bounds")


def _negative(x: Any) -> Any:
    """Whether the sign bit of every element is set."""
    return lax.bitcast_convert_type(x, np.dtype(f"i{x.dtype.itemsize}")) < 0


def with_special_values(kernel: Function, lowered: Function, parity: Parity = "none") -> Function:
    """Return a lowering that is right on the axes and for special values of complex numbers too.

    XLA takes -0.0 for 0.0 on the cuts of many functions. All of these give the conjugate result for the conjugate
    number, so XLA computes them in the upper half plane only (the first quadrant if they are odd or even).

    Args:
        kernel: the NumPy function.
        lowered: the jax function of one argument, used as it is for real numbers.
        parity: whether the function is ``"odd"``, ``"even"`` or neither.
    """

    def lower(x: Any) -> Any:
        if x.dtype.kind != "c":
            return lowered(x)
        real, imag = lax.real(x), lax.imag(x)
        left, below = _negative(real), _negative(imag)
        right = real if parity == "none" else lax.select(left, -real, real)
        y = lowered(lax.complex(right, lax.select(below, -imag, imag)))
        new_real, new_imag = lax.real(y), lax.imag(y)
        if parity == "odd":
            new_real = lax.select(left, -new_real, new_real)
        flipped = below != left if parity == "even" else below
        y = lax.complex(new_real, lax.select(flipped, -new_imag, new_imag))
        values, known = _table(kernel, np.dtype(x.dtype))
        index = _kind(real) * 7 + _kind(imag)
        return lax.select(_look_up(known, index), _look_up(values, index), y)

    return lower

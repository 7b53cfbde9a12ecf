"""Kinds of elementwise operations: what the operations of a family share is said here, once.

A kind is called as `op` is, with the columns that differ, and decorates the public function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

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
from hybridflow.ops.complex_values import Parity, with_special_values

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

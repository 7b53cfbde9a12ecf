"""What becomes of a graph's outputs, and which Python numbers are among its inputs and its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dtypes import float64, int64
from hybridflow.core.errors import NumberRangeError
from hybridflow.core.staged_number import StagedNumber, several_kinds
from hybridflow.core.tensor import Tensor, asarray
from hybridflow.core.traced_number import TracedNumber
from hybridflow.guards.numbers import Numbers
from hybridflow.guards.order import in_order_of
from hybridflow.ir.builder import GraphBuilder
from hybridflow.tracing.calls import is_number, output_tensor

_EXACT = {int: int64, float: float64}


class ReturnedNumbers:
    """The Python numbers among the results of a trace: each call returns them as numbers of the same types and values.

    A number that does not depend on the call is kept. One that comes from Python numbers is computed anew, in Python.
    One that tensors or open sizes decide is read from the graph's output, for which the call waits.

    Args:
        leaves: the leaves of the result.
        arguments: how many numbers a call has.
    """

    def __init__(self, leaves: Sequence[Any], arguments: int) -> None:
        numbers = {index: leaf for index, leaf in enumerate(leaves) if is_number(leaf)}
        self._read = [index for index, leaf in numbers.items() if type(leaf) in (StagedNumber, Dim, SizeFloat)]
        self._computed = [index for index, leaf in numbers.items() if type(leaf) is TracedNumber]
        others = {*self._read, *self._computed}
        self._kept = {index: leaf for index, leaf in numbers.items() if index not in others}
        computed = [(numbers[index], None) for index in self._computed]
        self._run = Numbers(computed, (), arguments, wide=False) if computed else None

    def __bool__(self) -> bool:
        return bool(self._kept or self._computed or self._read)

    @property
    def computes(self) -> bool:
        """Whether some are computed from the numbers of each call."""
        return self._run is not None

    def among(self, tensors: Sequence[Tensor], numbers: Sequence[float]) -> list[Any]:
        """Return the leaves of a call's result.

        Args:
            tensors: the graph's outputs.
            numbers: the numbers of the call.
        """
        leaves: list[Any] = [*tensors]
        for index, number in self._kept.items():
            leaves[index] = number
        for index in self._read:
            leaves[index] = tensors[index].item()
        if self._run is not None:
            for index, number in zip(self._computed, self._run(numbers), strict=True):
                leaves[index] = number
        return leaves


def output_of(label: str, leaf: Any) -> Tensor:
    """Return a leaf of a function's result as the graph's output, which holds what a tensor or a size decides exactly.

    Raises:
        ArgumentTypeError: the leaf is no tensor, number or array.
        DTypeError: it is a number that may have several types.
        NumberRangeError: it is an int that 64 bits do not hold.
    """
    if type(leaf) is StagedNumber:
        if len(leaf.kinds) > 1:
            raise several_kinds(leaf, "is returned")
        return asarray(leaf, dtype=leaf.raw.dtype)
    if type(leaf) in (Dim, SizeFloat):
        return asarray(leaf, dtype=_EXACT[leaf.__class__])
    if type(leaf) is int and not -(1 << 63) <= leaf < 1 << 63:
        raise NumberRangeError("compile: an int among the results has more than 64 bits", got=str(leaf),
                               hint="Return float(number), or compute it outside of the compiled function.")
    return output_tensor(label, leaf)


@dataclass(frozen=True)
class OutputPlan:
    """How the outputs of a graph become what the user's function returned.

    Attributes:
        tree: the structure of the result.
        count: how many tensors are in it.
        numbers: the Python numbers among them.
        order: its skeleton, if it has dicts that are not in jax's order.
    """

    tree: Any
    count: int
    numbers: ReturnedNumbers
    order: Any = None

    def build(self, tensors: Sequence[Tensor], numbers: Sequence[float] = ()) -> Any:
        """Return the user's structure, given the graph's outputs and the Python numbers of the call."""
        leaves = self.numbers.among(tensors, numbers) if self.numbers else tensors
        result = jax.tree_util.tree_unflatten(self.tree, leaves)
        return result if self.order is None else in_order_of(self.order, result)


def numbers_for(builder: GraphBuilder, *, wide: bool) -> Numbers | None:
    """Return what computes the Python numbers among a trace's inputs; None if there are none."""
    if not builder.numbers and not builder.fallible:
        return None
    numbers = [(number, node.spec().dtype) for number, node in builder.numbers.values()]
    return Numbers(numbers, [*builder.fallible.values()], len(builder.number_paths), wide=wide)

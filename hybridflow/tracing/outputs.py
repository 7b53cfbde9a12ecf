"""What becomes of a graph's outputs, and which numbers are its inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from hybridflow.core.tensor import Tensor
from hybridflow.guards.numbers import Numbers
from hybridflow.guards.order import in_order_of
from hybridflow.ir.builder import GraphBuilder


@dataclass(frozen=True)
class OutputPlan:
    """How the outputs of a graph become what the user's function returned.

    Attributes:
        tree: the structure of the result.
        count: how many tensors are in it.
        order: its skeleton, if it has dicts that are not in jax's order.
    """

    tree: Any
    count: int
    order: Any = None

    def build(self, tensors: Sequence[Tensor]) -> Any:
        """Return the user's structure."""
        result = jax.tree_util.tree_unflatten(self.tree, tensors)
        return result if self.order is None else in_order_of(self.order, result)


def numbers_for(builder: GraphBuilder, *, wide: bool) -> Numbers | None:
    """Return what computes the Python numbers among a trace's inputs; None if there are none."""
    if not builder.numbers and not builder.fallible:
        return None
    numbers = [(number, node.spec().dtype) for number, node in builder.numbers.values()]
    return Numbers(numbers, [*builder.fallible.values()], len(builder.number_paths), wide=wide)

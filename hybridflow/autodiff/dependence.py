"""Which inputs of a graph its outputs depend on, as far as gradients go."""

from __future__ import annotations

from collections.abc import Sequence

from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Flat, Stops

Reach = tuple[int, int]
"""Bits of the inputs that a gradient comes to, and of those before what is constant almost everywhere."""


def dependence(inputs: Sequence[Node], nodes: Sequence[Node], outputs: Sequence[Edge]) -> list[Reach]:
    """Return for each output which inputs its gradient, or zeros in place of one, would come to.

    Args:
        inputs: the graph's inputs; bit ``i`` stands for the ``i``-th.
        nodes: its nodes, in order.
        outputs: its outputs.
    """
    found: dict[Node, Reach] = {node: (1 << number, 0) for number, node in enumerate(inputs)}

    def of(edge: Edge) -> Reach:
        node, index = edge
        return found.get(node, (0, 0)) if is_differentiable(node.spec(index).dtype) else (0, 0)

    for node in nodes:
        kind = type(node.op.vjp)
        if node in found or kind is Stops:
            continue
        through, behind = 0, 0
        for edge in node.inputs:
            if edge is not None:
                one, zeros = of(edge)
                through |= one
                behind |= zeros
        if through or behind:
            found[node] = (0, through | behind) if kind is Flat else (through, behind)
    return [of(edge) for edge in outputs]

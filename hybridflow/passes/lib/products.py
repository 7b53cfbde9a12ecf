"""Products of two matrices, as passes find them."""

from __future__ import annotations

from typing import NamedTuple

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import edges_of


class TransposedProduct(NamedTuple):
    """A product ``transpose(a) @ b`` of two matrices, as in the gradient of a layer's weight.

    Attributes:
        transposed: the first operand.
        a: what it is the transpose of, ``(length, rows)``.
        b: the second operand, ``(length, columns)``.
    """

    transposed: Edge
    a: Edge
    b: Edge


def transposed_product(node: Node) -> TransposedProduct | None:
    """Return the operands of a product of two matrices whose first one is transposed for it; None for other nodes."""
    if not node.op.has("matrix_product") or None in node.inputs:
        return None
    first, second = edges_of(node)
    if not first[0].op.has("permute") or first[0].attrs["axes"] != (1, 0) or len(second[0].spec(second[1]).shape) != 2:
        return None
    return TransposedProduct(first, edges_of(first[0])[0], second)

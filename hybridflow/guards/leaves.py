"""What a trace has to do with leaves that require a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hybridflow.autodiff.backward import freed, is_freed, recorded_nodes
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import FOREVER, Edge, make_node
from hybridflow.core.notes import requires
from hybridflow.core.op import No, Op
from hybridflow.core.tensor import Tensor, no_value
from hybridflow.ir.builder import GraphBuilder


class TracedLeaves(NamedTuple):
    """What a trace has to do with `.backward()`.

    Attributes:
        grad_mode: whether what requires a gradient was recorded; None if the function does not depend on that.
        freed: the outputs that a `.backward()` inside the function went through.
        recorded: whether another output was computed from a Variable that requires a gradient.
    """

    grad_mode: bool | None
    freed: tuple[int, ...]
    recorded: bool

    @classmethod
    def of(cls, builder: GraphBuilder, outputs: Sequence[Tensor], grad: bool) -> TracedLeaves:
        """Look at a trace's outputs."""
        freed: list[int] = []
        recorded = False
        for index, tensor in enumerate(outputs):
            edge = tensor._edge
            if edge is None or not requires(edge) or not is_differentiable(tensor.dtype):
                continue
            if any(is_freed(node, builder) for node in recorded_nodes(edge)):
                freed.append(index)
            else:
                recorded = True
        return cls(grad if builder.asks_leaves else None, tuple(freed), recorded)


_RETURNED = freed(
    Op("returned", No("it was run already"), no_value, no_value, No("freed"), samples=No("made by compiled calls"))
)


def freed_edge(tensor: Tensor) -> Edge:
    """Return an edge for a result whose graph a `.backward()` inside the compiled function freed."""
    node = make_node(_RETURNED, (), {}, (tensor.spec,), backend="host")
    node.stamp = FOREVER
    return node, 0

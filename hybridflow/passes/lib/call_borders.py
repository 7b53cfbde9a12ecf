"""Choose the values that cross a call: those stored anyway, not those cheaply computed from them."""

from __future__ import annotations

from collections.abc import Mapping

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ir.liveness import bytes_of
from hybridflow.passes.lib.rewrite import readers_of
from hybridflow.passes.lib.stored import is_kept

SMALL = 16
"""A value this many times smaller than another costs nothing to read along with it; for example, a bias."""


def read_again(graph: Graph, home: Mapping[Node, int]) -> dict[Edge, Edge]:
    """Return the values that readers outside their part compute again, each with the value read instead.

    XLA fuses nothing across a call, so a value that is read after the call is stored. Suppose that value is an
    element-wise function of one stored value of the part, such as a matrix product, and of small values from outside
    the part. Then the reader can recompute it for the price of reading it, and the part writes one array less.
    A value that is stored anyway, as a result of the graph or because a product reads it, is left alone.

    Args:
        graph: the graph.
        home: the part that each node is in; nodes outside all parts are missing.
    """
    stored: _Stored | None = None
    again: dict[Edge, Edge] = {}
    for node, part in home.items():
        large = _large_input(graph, node, home)
        if large is None:
            continue
        stored = stored or _Stored(graph)
        if any(home.get(one, -1) != part for one in stored.readers.get(node, ())) and not stored.holds(node):
            again[node, 0] = large
    return again


def _large_input(graph: Graph, node: Node, home: Mapping[Node, int]) -> Edge | None:
    """Return the stored value from which a cheap node is computed, or None.

    It must be the only value that the node reads from its part, and the node's other inputs must be small.
    """
    if "pointwise" not in node.op.traits or is_kept(node, graph, 2):
        return None
    own = {edge for edge in edges_of(node) if edge[0] in home}
    if len(own) != 1:
        return None
    (large,) = own
    if home[large[0]] != home[node] or not is_kept(large[0], graph, 1):
        return None
    hints = graph.dims.hints
    size = bytes_of((node, 0), hints)
    others = sum([bytes_of(edge, hints) for edge in edges_of(node) if edge != large])
    return large if bytes_of(large, hints) <= size >= SMALL * others else None


class _Stored:
    """The values of a graph that XLA stores; this is decided on demand, since few nodes are asked about."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.readers = readers_of(graph)
        self.results = {edge[0] for edge in graph.outputs}

    def holds(self, node: Node) -> bool:
        """Whether XLA stores a cheap node's value anyway.

        It does if the value is a result, or if a node that never fuses with it reads it, directly or through layout
        ops.
        """
        if node in self.results:
            return True
        return any(
            is_kept(one, self.graph, 1) or ("layout" in one.op.traits and self.holds(one))
            for one in self.readers.get(node, ())
        )

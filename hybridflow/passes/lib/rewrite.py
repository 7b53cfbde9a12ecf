"""Helpers for passes: rebuilding graphs, mapping nested graphs, and finding readers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import Op
from hybridflow.ir.graph import Graph, clone_node, edges_of, nested_graphs


class Replacement(NamedTuple):
    """Values that stand in for the outputs of a node, and the new nodes that make them, if any."""

    edges: tuple[Edge, ...]
    nodes: tuple[Node, ...] = ()


Visit = Callable[[Node], Replacement | Node | None]
"""A function that takes a node, with its inputs already replaced, and decides about it.

It returns None to keep the node, another node, or a replacement.
"""


def rewrite(graph: Graph, visit: Visit) -> Graph:
    """Walk over a graph once, in order, and rebuild the nodes that change; unchanged nodes are shared.

    Args:
        graph: the graph.
        visit: decides about each node; it is not called for the nodes that it returns.

    Returns:
        The graph itself if nothing changed, else a new one with the same inputs.
    """
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        current = relinked(node, moved) if moved else node
        rewritten = visit(current)
        if isinstance(rewritten, Replacement):
            changed = True
            nodes += rewritten.nodes
            for index, edge in enumerate(rewritten.edges):
                moved[node, index] = edge
            continue
        kept = current if rewritten is None else rewritten
        nodes.append(kept)
        if kept is not node:
            changed = True
            for index in range(len(kept.outputs)):
                moved[node, index] = (kept, index)
    if not changed:
        return graph
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs])


def rebuilt(graph: Graph, nodes: Sequence[Node], outputs: Sequence[Edge]) -> Graph:
    """Return a graph with other nodes and outputs; name, inputs and symbolic sizes stay."""
    return Graph(graph.name, graph.inputs, tuple(nodes), tuple(outputs), graph.dims)


def relinked(node: Node, moved: dict[Edge, Edge]) -> Node:
    """Return the node with its inputs replaced, or the node itself if none of them moved."""
    for edge in node.inputs:
        if edge in moved:
            return changed(node, tuple([moved.get(e, e) for e in cast("tuple[Edge, ...]", node.inputs)]))
    return node


def followed(node: Node, moved: dict[Edge, Edge]) -> Node:
    """Return the relinked node, and add its new results to `moved`."""
    current = relinked(node, moved)
    if current is not node:
        moved.update({(node, index): (current, index) for index in range(len(node.outputs))})
    return current


def changed(node: Node, inputs: tuple[Edge, ...], **changes: Any) -> Node:
    """Return a copy with other inputs (and attrs or outputs) that keeps the node's position in the recording."""
    return placed(clone_node(node, inputs, **changes), node)


def placed(new: Node, old: Node) -> Node:
    """Give a new node the recording position of the one it replaces, so that sorting by sequence stays valid."""
    new.sequence = old.sequence
    new.stamp = old.stamp
    return new


class Added:
    """New nodes in the place of another one.

    Args:
        node: the other one; they keep its position in the recording.

    Attributes:
        nodes: the new nodes, in order.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.nodes: list[Node] = []

    def put(self, op: Op, *inputs: Edge, **attrs: Any) -> Edge:
        """Add a node of one output, and return that."""
        spec = op.infer(*[node.spec(index) for node, index in inputs], **attrs)
        made = make_node(op, inputs, attrs, (spec,), where=self.node.where, scope=self.node.scope)
        self.nodes.append(placed(made, self.node))
        return made, 0


def reads_of(graph: Graph) -> Counter[Edge]:
    """Count how often each value is read: by nodes, and as an output."""
    return Counter([*graph.outputs, *[edge for node in graph.nodes for edge in edges_of(node)]])


def readers_of(graph: Graph) -> dict[Node, list[Node]]:
    """Map each node to the nodes that read its results."""
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for source in {edge[0] for edge in edges_of(node)}:
            readers.setdefault(source, []).append(node)
    return readers


# -- nested graphs ------------------------------------------------------------------------------------------------


def map_nested(graph: Graph, function: Callable[[Graph], Graph]) -> Graph:
    """Apply a function to the nested graphs, except those whose bodies define hidden residual outputs."""
    if not any("nested" in node.op.traits for node in graph.nodes):
        return graph

    def visit(node: Node) -> Node | None:
        # The body determines a loop's hidden outputs, so a body with residuals must stay as it is.
        if "nested" not in node.op.traits or node.attrs.get("residuals"):
            return None
        attrs = {name: _mapped(value, function) for name, value in node.attrs.items()}
        if all(attrs[name] is value for name, value in node.attrs.items()):
            return None
        return changed(node, cast("tuple[Edge, ...]", node.inputs), attrs=attrs)

    return rewrite(graph, visit)


def _mapped(value: Any, function: Callable[[Graph], Graph]) -> Any:
    if isinstance(value, Graph):
        return function(value)
    if type(value) is tuple:
        items = cast("tuple[Any, ...]", value)
        mapped = tuple([_mapped(item, function) for item in items])
        return value if all(a is b for a, b in zip(mapped, items, strict=True)) else mapped
    return value


def count_nodes(graph: Graph) -> int:
    """Return the number of nodes, including those of nested graphs."""
    total = len(graph.nodes)
    for node in graph.nodes:
        if "nested" in node.op.traits:
            total += sum(map(count_nodes, nested_graphs(node)))
    return total

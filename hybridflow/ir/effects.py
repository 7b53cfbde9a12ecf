"""Effects: nodes that must run even if nothing reads their results."""

from __future__ import annotations

from typing import Any, cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, clone_node, nested_graphs


def has_effect(node: Node) -> bool:
    """Whether a node, or one in a graph it carries, must run even if nothing reads its result."""
    return "effect" in node.op.traits or any(map(has_effects, nested_graphs(node)))


def has_effects(graph: Graph) -> bool:
    """Whether a graph has such a node."""
    return any(map(has_effect, graph.nodes))


def silenced(graph: Graph) -> Graph:
    """Return a graph that computes the same outputs, without the effects that the outputs do not need.

    It is used to run a graph again: a gradient that recomputes a branch must not print the branch's text again.
    """
    if not has_effects(graph):
        return graph
    needed: set[Node] = {node for node, _ in graph.outputs}
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update([edge[0] for edge in node.inputs if edge is not None])
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node not in needed:
            continue
        inputs = tuple([moved.get(edge, edge) for edge in node.inputs if edge is not None])
        attrs = silenced_in(node.attrs) if nested_graphs(node) else node.attrs
        kept = node
        if inputs != node.inputs or any(attrs[name] is not value for name, value in node.attrs.items()):
            kept = clone_node(node, inputs, attrs=attrs)
            kept.sequence, kept.stamp = node.sequence, node.stamp
            moved.update({(node, index): (kept, index) for index in range(len(node.outputs))})
        nodes.append(kept)
    return Graph(graph.name, graph.inputs, tuple(nodes), tuple([moved.get(e, e) for e in graph.outputs]), graph.dims)


def silenced_in(attrs: dict[str, Any]) -> dict[str, Any]:
    """Return attributes with every graph among them `silenced`."""
    return {name: _silenced_in(value) for name, value in attrs.items()}


def _silenced_in(value: Any) -> Any:
    if isinstance(value, Graph):
        return silenced(value)
    if type(value) is tuple:
        return tuple([_silenced_in(item) for item in cast("tuple[Any, ...]", value)])
    return value

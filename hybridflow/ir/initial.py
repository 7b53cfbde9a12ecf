"""Initial values of Variables that a compiled function creates, computed during the trace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from hybridflow.core.context import context_of
from hybridflow.core.dispatch import run_raw
from hybridflow.core.node import Edge, Node
from hybridflow.core.sources import INPUT
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph


def needed_for(edge: Edge) -> set[Node]:
    """Return the nodes, including inputs, that a value is computed from."""
    needed: set[Node] = set()
    stack = [edge[0]]
    while stack:
        node = stack.pop()
        if node not in needed:
            needed.add(node)
            stack += [source[0] for source in node.inputs if source is not None]
    return needed


def value_now(edge: Edge, nodes: Iterable[Node], given: Mapping[Node, Any], dims: Any) -> Any:
    """Compute a traced value as eager code would.

    Args:
        edge: the value.
        nodes: the nodes of the trace so far, in order.
        given: the values of the inputs that it is computed from.
        dims: the trace's symbolic sizes.
    """
    needed = needed_for(edge)
    inputs = tuple([node for node in needed if node.op is INPUT])
    graph = Graph("initial_value", inputs, tuple([node for node in nodes if node in needed]), (edge,), dims)

    def run(node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        return run_raw(node.op, values, attrs)

    with context_of(None):
        return evaluate(graph, [given[node] for node in inputs], run, sizes=dims.hints)[0]

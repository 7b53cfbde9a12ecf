"""Which operation inside a graph passes no gradient back, for `GradientTape.why_none`."""

from __future__ import annotations

from hybridflow.autodiff.backprop import EVER, reachable
from hybridflow.autodiff.transform import differentiate
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Node
from hybridflow.core.op import Stops
from hybridflow.ir.graph import Graph


def cut_inside(node: Node, index: int) -> str | None:
    """Say where the path from an input of a node that carries a graph is cut in it.

    Args:
        node: the node, with a ``graph`` among its attributes whose inputs are its own.
        index: the input.

    Returns:
        A sentence, or None if the node carries no such graph or the cut is not found.
    """
    graph = node.attrs.get("graph")
    if not isinstance(graph, Graph) or index >= len(graph.inputs):
        return None
    source = (graph.inputs[index], 0)
    nodes = reachable(graph.outputs, [EVER])
    if source[0] not in nodes:
        return f"Nothing that {node.op.name} at {node.location} returns depends on it."
    given = tuple([is_differentiable(spec.dtype) for spec in graph.output_specs])
    wanted = tuple([position == index for position in range(len(graph.inputs))])
    if differentiate(graph, given, wanted).present[index]:
        return None
    path = {source[0]}
    found: str | None = None
    for one in nodes:
        for position, edge in enumerate(one.inputs):
            if edge is None or edge[0] not in path or not is_differentiable(edge[0].spec(edge[1]).dtype):
                continue
            text = _cut(one, position)
            if text is None:
                path.add(one)
                break
            found = text
    return found


def _cut(node: Node, index: int) -> str | None:
    """Say why a node of a graph passes nothing back to an input, if that is so."""
    rule = node.op.vjp
    if isinstance(rule, Stops):
        return f"The path goes through {node.op.name} at {node.location}: {rule.why}."
    if not any(is_differentiable(spec.dtype) for spec in node.specs):
        return (
            f"The path goes through {node.op.name} at {node.location}, whose result is {node.spec().dtype}: "
            "integers and bools have no gradient."
        )
    return cut_inside(node, index)

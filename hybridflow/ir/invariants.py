"""Loop invariants: values that every step would compute again, and carried values that never change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, cast

from hybridflow.core.node import Edge, Node
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph, input_node, reading_from


class Hoisted(NamedTuple):
    """A loop body without its invariant operations.

    Attributes:
        graph: the new body; its additional last inputs are the hoisted values.
        nodes: the nodes that compute these values from the constant inputs, in order.
        values: the hoisted values, as edges of those nodes.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    values: tuple[Edge, ...]


def hoist(body: Graph, first: int) -> Hoisted | None:
    """Move operations that depend only on constant inputs out of a loop's body.

    Nodes that only repeat elements stay, since their results would take memory outside. So do nodes with an effect.

    Args:
        body: the graph of one step.
        first: the inputs from this one on are the same in every step.

    Returns:
        The new body and the hoisted nodes, or None if there are none.
    """
    fixed: set[Edge] = {(node, 0) for node in body.inputs[first:]}
    free: set[Node] = set()
    out: list[Node] = []
    for node in body.nodes:
        if not node.inputs and not has_effect(node):
            free.add(node)
        elif _depends_on(node, fixed, free) and not has_effect(node) and not _repeats(node):
            out.append(node)
            fixed.update((node, index) for index in range(len(node.outputs)))
    taken = set(out)
    read = [edge for node in body.nodes if node not in taken for edge in cast("tuple[Edge, ...]", node.inputs)]
    values = tuple(dict.fromkeys([edge for edge in (*read, *body.outputs) if edge[0] in taken]))
    if not values:
        return None
    inputs = [
        input_node(node.spec(index), f"invariant_{number}", node.scope) for number, (node, index) in enumerate(values)
    ]
    kept = Graph(
        body.name, (*body.inputs, *inputs), tuple([n for n in body.nodes if n not in taken]), body.outputs, body.dims
    )
    moved: dict[Edge, Edge] = {edge: (node, 0) for edge, node in zip(values, inputs, strict=True)}
    used = {edge[0] for node in out for edge in cast("tuple[Edge, ...]", node.inputs)}
    nodes = [node for node in body.nodes if node in taken or (node in free and node in used)]
    return Hoisted(reading_from(kept, moved), tuple(nodes), values)


def _depends_on(node: Node, fixed: set[Edge], free: set[Node]) -> bool:
    inputs = cast("tuple[Edge, ...]", node.inputs)
    return all(edge in fixed or edge[0] in free for edge in inputs) and any(edge in fixed for edge in inputs)


def _repeats(node: Node) -> bool:
    """Whether a node only moves elements and its outputs are larger than its inputs."""
    if not node.op.has("layout") or node.op.has("identity"):
        return False
    sizes = [edge[0].spec(edge[1]).nbytes for edge in cast("tuple[Edge, ...]", node.inputs)]
    made = [spec.nbytes for spec in node.specs]
    return not all(type(size) is int for size in (*sizes, *made)) or sum(made) > sum(sizes)


def unchanged(body: Graph, carry: int) -> list[int]:
    """Return the positions of the carried values that every step returns unchanged."""
    return [index for index in range(carry) if body.outputs[index] == (body.inputs[index], 0)]


def rearranged(graph: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    """Return a graph with its inputs and outputs in another order, or with some left out."""
    return Graph(
        graph.name, tuple([graph.inputs[i] for i in inputs]), graph.nodes, tuple([graph.outputs[i] for i in outputs]),
        graph.dims,
    )

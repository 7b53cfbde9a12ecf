"""Optimizers' steps that select between new and old values while they run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hybridflow.core.node import Edge, Node, make_node
from hybridflow.ir.fusion import SELECTED
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import placed, readers_of, rebuilt, relinked


@graph_pass(final=True)
def select_updates(graph: Graph, context: PassContext) -> Graph:
    """Let an optimizer's step of a parameter read the selected new moments, if all of its results are selected.

    A call with a check gives each Variable its new value if the check holds, and its old value otherwise. XLA computes
    a step once for the parameter and once for each moment, so both read the old moments, while the new ones take their
    memory: XLA copies every moment first. A parameter that is computed from the selected moments needs no old ones.

    Before:
        graph f(%ok: bool[], %w: f32[2], %g: f32[2], %s: f32[2], %n: i32[], %r: f32[]) -> (f32[2], f32[2]) {
          %0, %1 = adagrad(%w, %g, %s, %n, %r) {decay=0.0, epsilon=1e-10} : f32[2], f32[2]
          %2 = where(%ok, %0, %w) : f32[2]
          %3 = where(%ok, %1, %s) : f32[2]
          return %2, %3
        }

    After:
        graph f(%ok: bool[], %w: f32[2], %g: f32[2], %s: f32[2], %n: i32[], %r: f32[]) -> (f32[2], f32[2]) {
          %0, %1 = selected_update(%ok, %w, %g, %s, %n, %r) {rule="adagrad", decay=0.0, epsilon=1e-10} : f32[2], f32[2]
          return %0, %1
        }
    """
    readers = readers_of(graph)
    results = {node for node, _ in graph.outputs}
    updates: dict[Node, tuple[Node, ...]] = {}
    for node in graph.nodes:
        if node.op.has("updates") and node not in results:
            selects = _selects_of(node, readers.get(node, ()))
            if selects:
                updates[node] = selects
    if not updates:
        return graph
    update_of = {select: node for node, selects in updates.items() for select in selects}
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        update = update_of.get(node)
        if update is None:
            if node not in updates:
                current = relinked(node, moved)
                nodes.append(current)
                if current is not node:
                    moved.update({(node, index): (current, index) for index in range(len(node.outputs))})
        elif (node, 0) not in moved:
            made = _selected(update, edges_of(node)[0], moved)
            nodes.append(made)
            moved.update({(select, 0): (made, index) for index, select in enumerate(updates[update])})
            context.notes["a step selects its moments"] += 1
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs])


def _selected(update: Node, condition: Edge, moved: Mapping[Edge, Edge]) -> Node:
    """Return the operation that takes a step and selects its results."""
    inputs = tuple([moved.get(edge, edge) for edge in (condition, *edges_of(update))])
    attrs = {"rule": update.op.name, **update.attrs}
    return placed(make_node(SELECTED, inputs, attrs, update.outputs, where=update.where, scope=update.scope), update)


def _selects_of(update: Node, reading: Sequence[Node]) -> tuple[Node, ...]:
    """Return the select of each output of a step, or none if they do not all select by one scalar from the inputs."""
    count = len(update.outputs)
    if count < 2 or len(reading) != count or not all([node.op.has("select") for node in reading]):
        return ()
    parameter, _, *slots = edges_of(update)
    by_output = {edges_of(node)[1]: node for node in reading}
    selects = [by_output.get((update, index)) for index in range(count)]
    found = tuple([node for node in selects if node is not None])
    if len(found) < count or len({edges_of(node)[0] for node in found}) > 1:
        return ()
    condition, at = edges_of(found[0])[0]
    olds = [edges_of(node)[2] for node in found]
    return found if olds == [parameter, *slots[: count - 1]] and not condition.spec(at).shape else ()

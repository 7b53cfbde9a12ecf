"""Move selects between a new and an old value to where both are first known."""

from __future__ import annotations

from collections import defaultdict, deque
from operator import is_

from hybridflow.core.node import Edge, Node
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, readers_of, rebuilt, relinked

Conditions = frozenset[Edge]


@graph_pass(final=True)
def early_selects(graph: Graph, context: PassContext) -> Graph:
    """Select a result by a scalar condition right after its new value, and let later nodes read the selected value.

    A call with a check gives each Variable its new value if the check holds, and its old value otherwise. Steps that
    may be skipped do the same. The selects for this are traced last.

    Some nodes read a new value, and their own results count only if the same condition holds. For example, the update
    of a weight reads the new moment. Such a node reads the selected value instead. Then nothing reads the old value
    after the select, so XLA can write the selected value into its memory without a copy. Temporaries shrink. A select
    right after its new value is also part of the repeated updates, and outlined with them.

    Before:
        graph f(%ok: bool[], %m: f32[2], %w: f32[2], %g: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%m, %g) : f32[2]
          %1 = subtract(%w, %0) : f32[2]
          %2 = where(%ok, %0, %m) : f32[2]
          %3 = where(%ok, %1, %w) : f32[2]
          return %2, %3
        }

    After:
        graph f(%ok: bool[], %m: f32[2], %w: f32[2], %g: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%m, %g) : f32[2]
          %1 = where(%ok, %0, %m) : f32[2]
          %2 = subtract(%w, %1) : f32[2]
          %3 = where(%ok, %2, %w) : f32[2]
          return %1, %3
        }
    """
    selects = _selects(graph)
    if not selects:
        return graph
    conditions = _conditions(graph)
    chosen: dict[Edge, tuple[Edge, Edge]] = {}
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in _early(graph, selects):
        edges = edges_of(node)
        read = tuple([_chosen(edge, conditions[node], chosen) for edge in edges])
        current = relinked(node if read == edges else changed(node, read), moved)
        nodes.append(current)
        if current is not node:
            moved.update({(node, index): (current, index) for index in range(len(node.outputs))})
        if node in selects:
            chosen.setdefault(edges[1], (edges[0], (node, 0)))
    if all(map(is_, nodes, graph.nodes)):
        return graph
    context.notes["select"] += len(selects)
    return rebuilt(graph, nodes, [moved.get(edge, edge) for edge in graph.outputs])


def _selects(graph: Graph) -> set[Node]:
    """Return the selects of whole results; only the graph's outputs and other such selects read them."""
    readers = readers_of(graph)
    results = {node for node, _ in graph.outputs}
    selects: set[Node] = set()
    for node in reversed(graph.nodes):
        reading = readers.get(node, ())
        if (node in results or reading) and selects.issuperset(reading) and _selects_whole(node):
            selects.add(node)
    return selects


def _selects_whole(node: Node) -> bool:
    """Whether a node's condition is a scalar, and its result has the shape and dtype of the new value."""
    if "select" not in node.op.traits:
        return False
    (condition, at), (new, index), _ = edges_of(node)
    return not condition.spec(at).shape and new.spec(index) == node.spec()


def _conditions(graph: Graph) -> dict[Node, Conditions]:
    """Return the conditions under which a node counts; if one fails, every use of the node is dropped in the end."""
    conditions: dict[Node, Conditions] = {node: frozenset() for node, _ in graph.outputs}
    for node in reversed(graph.nodes):
        if node not in conditions or has_effect(node):
            conditions[node] = frozenset()
        own = conditions[node]
        edges = edges_of(node)
        whole = _selects_whole(node)
        for index, (source, _) in enumerate(edges):
            use = own | {edges[0]} if whole and index == 1 else own
            conditions[source] = conditions[source] & use if source in conditions else use
    return conditions


def _chosen(edge: Edge, holding: Conditions, chosen: dict[Edge, tuple[Edge, Edge]]) -> Edge:
    """Return the value that a node may read instead of a new one, given the conditions under which it counts."""
    while edge in chosen and chosen[edge][0] in holding:
        edge = chosen[edge][1]
    return edge


def _early(graph: Graph, selects: set[Node]) -> list[Node]:
    """Return the nodes in order, with selects, and the scalars that their conditions need, moved to their last input.

    Each of these comes right after the last of its inputs.
    """
    movable = set(selects)
    waiting = [edges_of(node)[0][0] for node in selects]
    while waiting:
        node = waiting.pop()
        if node not in movable and "pointwise" in node.op.traits and not node.spec().shape:
            movable.add(node)
            waiting += [source for source, _ in edges_of(node)]
    missing: dict[Node, set[Node]] = {}
    readers: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node in movable:
            missing[node] = {source for source, _ in edges_of(node)}.difference(graph.inputs)
            for source in missing[node]:
                readers[source].append(node)
    ordered: dict[Node, None] = {}
    for node in [*[one for one, sources in missing.items() if not sources], *graph.nodes]:
        ready = deque([] if node in ordered else [node])
        while ready:
            one = ready.popleft()
            ordered[one] = None
            for reader in readers[one]:
                missing[reader].discard(one)
                if not missing[reader]:
                    ready.append(reader)
    return list(ordered)

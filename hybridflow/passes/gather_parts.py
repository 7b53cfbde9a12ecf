"""Where the parts of a Variable are gathered: not for an optimizer's step, and anew for a gradient."""

from __future__ import annotations

from hybridflow.core.node import Edge, Node, make_node
from hybridflow.ir.fusion import TIED
from hybridflow.ir.graph import Graph, clone_node, edges_of
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import changed, rebuilt, relinked


@graph_pass(final=True)
def gather_parts(graph: Graph, context: PassContext) -> Graph:
    """Let optimizers' steps read the parts of a Variable, and gather them anew for gradients that ask for that.

    A reader that depends on an earlier reader of the same gathered value needs it for a gradient. If the value was kept
    until then, the whole of every Variable would be there at once.

    Before:
        graph f(%w: f32[8,8], %x: f32[8,8]) -> (f32[8,8]) {
          %0 = gathered(%w) {again=True, gradient=("data", None), layout=(None, None)} : f32[8,8]
          %1 = matmul(%x, %0) : f32[8,8]
          %2 = matmul(%1, %0) : f32[8,8]
          return %2
        }

    After:
        graph f(%w: f32[8,8], %x: f32[8,8]) -> (f32[8,8]) {
          %0 = gathered(%w) {again=True, gradient=("data", None), layout=(None, None)} : f32[8,8]
          %1 = matmul(%x, %0) : f32[8,8]
          %2 = tied(%w, %1) : f32[8,8]
          %3 = gathered(%2) {again=True, gradient=("data", None), layout=(None, None)} : f32[8,8]
          %4 = matmul(%1, %3) : f32[8,8]
          return %4
        }
    """
    gathers = [node for node in graph.nodes if node.op.has("gathers")]
    if not gathers:
        return graph
    late = _late(graph, [node for node in gathers if node.attrs["again"]])
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    again: dict[Node, Edge] = {}
    for node in graph.nodes:
        current = relinked(node, moved)
        for source in dict.fromkeys([edge[0] for edge in edges_of(node) if edge[0].op.has("gathers")]):
            parts = edges_of(source)[0]
            parts = moved.get(parts, parts)
            instead: Edge | None = None
            if node.op.has("updates"):
                instead = parts
                context.notes["an optimizer reads the parts"] += 1
            elif (node, source) in late:
                instead = again.get(source)
                if instead is None:
                    then = moved.get(late[node, source], late[node, source])
                    tied = make_node(TIED, (parts, then), {}, source.outputs, where=node.where, scope=node.scope)
                    anew = clone_node(source, ((tied, 0),))
                    nodes += [tied, anew]
                    instead = again[source] = anew, 0
                    context.notes["gathered anew"] += 1
            if instead is not None:
                old = moved.get((source, 0), (source, 0))
                current = changed(current, tuple([instead if edge == old else edge for edge in edges_of(current)]))
        nodes.append(current)
        if current is not node:
            moved.update({(node, index): (current, index) for index in range(len(node.outputs))})
    if not moved and not again:
        return graph
    outputs = [moved.get(edge, edge) for edge in graph.outputs]
    read = {edge[0] for edges in (outputs, *map(edges_of, nodes)) for edge in edges}
    return rebuilt(graph, [node for node in nodes if node in read or not node.op.has("gathers")], outputs)


def _late(graph: Graph, gathers: list[Node]) -> dict[tuple[Node, Node], Edge]:
    """Return the readers that depend on an earlier reader of the same gathered value, each with what they need of it.

    Returns:
        A mapping from ``(reader, gathered)`` to the reader's input that depends on an earlier reader.
    """
    bits = {node: 1 << index for index, node in enumerate(gathers)}
    behind: dict[Node, int] = {}
    late: dict[tuple[Node, Node], Edge] = {}
    for node in graph.nodes:
        mask = read = 0
        for edge in edges_of(node):
            mask |= behind.get(edge[0], 0)
            read |= bits.get(edge[0], 0)
        if mask & read:
            for source, bit in bits.items():
                if mask & read & bit:
                    late[node, source] = next(edge for edge in edges_of(node) if behind.get(edge[0], 0) & bit)
        if mask | read:
            behind[node] = mask | read
    return late

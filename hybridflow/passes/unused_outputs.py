"""Drop what loops and branches compute or carry but nothing reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast

from hybridflow.core.node import Edge, Node, Position
from hybridflow.ir.effects import has_effect, has_effects
from hybridflow.ir.graph import Graph, nested_graphs
from hybridflow.nested.branches import COND
from hybridflow.nested.loops import WHILE
from hybridflow.nested.scans import SCAN
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, changed, reads_of, rewrite


@graph_pass()
def unused_outputs(graph: Graph, context: PassContext) -> Graph:
    """Drop unread outputs of loops and branches, the carried values that only those need, and unread inputs.

    Before:
        graph f(%x: f32[], %y: f32[], %w: f32[], %xs: f32[4]) -> (f32[]) {
          %0, %1, %2 = scan(%x, %y, %xs, %w) {
            body=graph step(%a: f32[], %b: f32[], %t: f32[], %w: f32[]) -> (f32[], f32[], f32[]) {
              %0 = add(%a, %t) : f32[]
              %1 = multiply(%b, %w) : f32[]
              return %0, %1, %1
            },
            carry=2,
            sequences=1,
            length=4,
            reverse=False,
            residuals=False
          } : f32[], f32[], f32[4]
          return %0
        }

    After:
        graph f(%x: f32[], %y: f32[], %w: f32[], %xs: f32[4]) -> (f32[]) {
          %0 = scan(%x, %xs) {
            body=graph step(%a: f32[], %t: f32[]) -> (f32[]) {
              %0 = add(%a, %t) : f32[]
              return %0
            },
            carry=1,
            sequences=1,
            length=4,
            reverse=False,
            residuals=False
          } : f32[]
          return %0
        }
    """
    nodes = [node for node in graph.nodes if node.op in _KINDS and not node.op.hidden_outputs(node.attrs)]
    if not nodes:
        return graph
    read = reads_of(graph)
    plans: dict[Position, tuple[_Kept, list[int]]] = {}
    for node in nodes:
        outputs = [index for index in range(len(node.outputs)) if (node, index) in read]
        if not outputs and not any(map(has_effects, nested_graphs(node))):
            continue  # dead code
        kept = _KINDS[node.op](node, outputs)
        if len(kept.outputs) < len(node.outputs) or len(kept.inputs) < len(node.inputs):
            plans[node.sequence] = kept, outputs

    def visit(node: Node) -> Replacement | None:
        plan = plans.get(node.sequence)
        if plan is None or node.op not in _KINDS:
            return None
        kept = plan[0]
        context.notes[node.op.name] += 1
        inputs = tuple([cast(Edge, node.inputs[index]) for index in kept.inputs])
        outputs = tuple([node.outputs[index] for index in kept.outputs])
        new = changed(node, inputs, attrs={**node.attrs, **kept.attrs}, outputs=outputs)
        position_of = {index: position for position, index in enumerate(kept.outputs)}
        return Replacement(tuple([(new, position_of.get(index, 0)) for index in range(len(node.outputs))]), (new,))

    return rewrite(graph, visit)


class _Kept(NamedTuple):
    """The inputs and outputs of a node that stay, and its new attributes."""

    inputs: list[int]
    outputs: list[int]
    attrs: dict[str, Any]


def _needed(graph: Graph, outputs: Iterable[int]) -> tuple[set[int], set[Node]]:
    """Return the inputs and nodes that a graph needs for some of its outputs and for its effects."""
    nodes = {graph.outputs[index][0] for index in outputs}
    for node in reversed(graph.nodes):
        if node in nodes or has_effect(node):
            nodes.add(node)
            nodes.update([edge[0] for edge in cast("tuple[Edge, ...]", node.inputs)])
    return {index for index, node in enumerate(graph.inputs) if node in nodes}, nodes


def _reduced(graph: Graph, inputs: Sequence[int], outputs: Sequence[int]) -> Graph:
    needed = _needed(graph, outputs)[1]
    return Graph(
        graph.name,
        tuple([graph.inputs[i] for i in inputs]),
        tuple([node for node in graph.nodes if node in needed]),
        tuple([graph.outputs[i] for i in outputs]),
        graph.dims,
    )


def _cond(node: Node, read: list[int]) -> _Kept:
    true, false = node.attrs["true"], node.attrs["false"]
    inputs = sorted(_needed(true, read)[0] | _needed(false, read)[0])
    attrs = {"true": _reduced(true, inputs, read), "false": _reduced(false, inputs, read)}
    return _Kept([0, *[index + 1 for index in inputs]], read, attrs)


def _carried(body: Graph, carry: int, live: set[int], inputs: set[int]) -> tuple[set[int], set[int]]:
    """Return the live outputs and inputs, together with the carried values that they need."""
    while True:
        inputs = inputs | _needed(body, live)[0]
        more = {index for index in inputs if index < carry} - live
        if not more:
            return live, inputs
        live = live | more


def _scan(node: Node, read: list[int]) -> _Kept:
    body, carry, sequences = node.attrs["body"], node.attrs["carry"], node.attrs["sequences"]
    first = int(bool(node.attrs.get("counted")))
    live, needed = _carried(body, carry, set(read), set())
    inputs = sorted(needed | {index for index in live if index < carry})
    outputs = sorted(live)
    attrs = {
        "body": _reduced(body, inputs, outputs),
        "carry": sum(index < carry for index in inputs),
        "sequences": sum(carry <= index < carry + sequences for index in inputs),
    }
    return _Kept([*range(first), *[index + first for index in inputs]], outputs, attrs)


def _while(node: Node, read: list[int]) -> _Kept:
    body, test, carry = node.attrs["body"], node.attrs["cond"], node.attrs["carry"]
    first = int(node.attrs["bound"] is not None)  # the first output of a bounded loop is its number of steps
    live, needed = _carried(body, carry, {index - first for index in read if index >= first}, _needed(test, [0])[0])
    inputs = sorted(needed | {index for index in live if index < carry})
    outputs = sorted(live)
    attrs = {
        "body": _reduced(body, inputs, outputs),
        "cond": _reduced(test, inputs, [0]),
        "carry": sum(index < carry for index in inputs),
    }
    return _Kept(inputs, [*range(first), *[index + first for index in outputs]], attrs)


_KINDS = {COND: _cond, SCAN: _scan, WHILE: _while}

"""Merge nodes that compute the same value."""

from __future__ import annotations

from typing import Any

from hybridflow.core.attrs import attrs_key
from hybridflow.core.node import Node
from hybridflow.core.op import Op
from hybridflow.ir.effects import has_effect
from hybridflow.ir.graph import Graph
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, rewrite


@graph_pass()
def cse(graph: Graph, context: PassContext) -> Graph:
    """Compute equal things once: the same op on the same inputs with the same attributes.

    The inputs of a commutative op may be in either order. An op with an effect is never merged. An op that draws
    random numbers is merged, since the numbers depend only on the key that it is given.

    Before:
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%x, %y) : f32[2]
          %1 = tanh(%0) : f32[2]
          %2 = add(%y, %x) : f32[2]
          %3 = tanh(%2) : f32[2]
          return %1, %3
        }

    After:
        graph f(%x: f32[2], %y: f32[2]) -> (f32[2], f32[2]) {
          %0 = add(%x, %y) : f32[2]
          %1 = tanh(%0) : f32[2]
          return %1, %1
        }
    """
    seen: dict[Any, Node] = {}
    commutative: dict[Op, bool] = {}

    def visit(node: Node) -> Replacement | None:
        op = node.op
        inputs: Any = node.inputs
        swap = commutative.get(op)
        if swap is None:
            swap = commutative[op] = "commutative" in op.traits
        if swap and len(inputs) == 2:
            inputs = frozenset(inputs)
        key = (op, inputs, attrs_key(node.attrs)) if node.attrs else (op, inputs)
        first = seen.setdefault(key, node)
        if first is node:
            return None
        if has_effect(node):
            return None
        context.notes[op.name] += 1
        return Replacement(tuple([(first, index) for index in range(len(node.outputs))]))

    return rewrite(graph, visit)

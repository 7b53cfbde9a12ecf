"""Compute ahead of time what depends only on constants."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from hybridflow.core.dims import Dim, SizeFloat
from hybridflow.core.dispatch import run_raw
from hybridflow.core.dtypes import LOW_PRECISION
from hybridflow.core.errors import HybridflowError
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import No, Op
from hybridflow.core.sources import CONSTANT
from hybridflow.ir.graph import Graph, constant_node
from hybridflow.passes.lib.graph_pass import PassContext, graph_pass
from hybridflow.passes.lib.rewrite import Replacement, placed, rewrite

SMALL = 1024
"""A result of up to this many elements is folded, however small its inputs are."""
LARGE = 1 << 16
"""A result that is no larger than its largest input is folded up to this many elements."""
_IMPURE = frozenset({"effect", "random", "nested", "source", "tensor_rule", "collective"})


@graph_pass()
def constant_fold(graph: Graph, context: PassContext) -> Graph:
    """Replace an op on constants by its result, computed as eager code computes it.

    Ops that make a value from attributes alone, or repeat a value, stay, because they are smaller than their results.
    Ops on their results are folded. Results that would be large constants are not computed. An op that fails on its
    constants stays, so that the call raises the error.

    Before:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = constant() {value=f32[2] [1.0, 2.0]} : f32[2]
          %1 = constant() {value=f32[] 0.5} : f32[]
          %2 = multiply(%0, %1) : f32[2]
          %3 = add(%x, %2) : f32[2]
          return %3
        }

    After:
        graph f(%x: f32[2]) -> (f32[2]) {
          %0 = constant() {value=f32[2] [1.0, 2.0]} : f32[2]
          %1 = constant() {value=f32[] 0.5} : f32[]
          %2 = constant() {value=f32[2] [0.5, 1.0]} : f32[2]
          %3 = add(%x, %2) : f32[2]
          return %3
        }
    """
    known: dict[Edge, np.ndarray[Any, Any] | Node] = {}

    def visit(node: Node) -> Replacement | None:
        if not node.inputs:
            if node.op is CONSTANT:
                known[node, 0] = node.attrs["value"].array
            elif len(node.outputs) == 1 and _foldable(node, 0):
                known[node, 0] = node
            return None
        for edge in node.inputs:
            if edge not in known:
                return None
        edges = cast("tuple[Edge, ...]", node.inputs)
        largest = max([edge[0].spec(edge[1]).size for edge in edges])
        if not _foldable(node, largest):
            return None
        if "conversion" in node.op.traits and (node.spec().size > largest or isinstance(known[edges[0]], Node)):
            known[node, 0] = node
            return None
        try:
            values = [_value(known, edge) for edge in edges]
            results = run_raw(node.op, values, node.attrs)
        except HybridflowError as error:
            context.notes[f"left {node.op.name}, which raises {type(error).__name__}"] += 1
            return None
        context.notes[node.op.name] += 1
        arrays = results if isinstance(results, tuple) else (results,)
        nodes = tuple([placed(constant_node(array, node.scope, node.where), node) for array in arrays])
        for new in nodes:
            known[new, 0] = new.attrs["value"].array
        return Replacement(tuple([(new, 0) for new in nodes]), nodes)

    return rewrite(graph, visit)


def _value(known: dict[Edge, Any], edge: Edge) -> np.ndarray[Any, Any]:
    """Return a known value; that of a node that stays in the graph is computed on first use."""
    value = known[edge]
    if isinstance(value, Node):
        inputs = [_value(known, cast(Edge, other)) for other in value.inputs]
        value = known[edge] = np.asarray(run_raw(value.op, inputs, value.attrs))
    return value


def _foldable(node: Node, largest: int) -> bool:
    """Whether a node whose inputs are known may be computed now.

    Args:
        node: the node.
        largest: the number of elements of its largest input.
    """
    op = node.op
    if type(op.kernel) is No or not _IMPURE.isdisjoint(op.traits):
        return False
    for spec in node.specs:
        elements = spec.size
        if isinstance(elements, Dim) or elements > (LARGE if elements <= largest else SMALL):
            return False
    return largest <= LARGE and _on_host(op, node) and not _symbolic(tuple(node.attrs.values()))


def _on_host(op: Op, node: Node) -> bool:
    """Whether eager code would run the op's kernel; otherwise XLA would compile a program for one result."""
    if "layout" in op.traits:
        return True
    inputs = [edge[0].spec(edge[1]) for edge in node.inputs if edge is not None]
    return all(spec.dtype.num not in LOW_PRECISION for spec in inputs)


def _symbolic(value: Any) -> bool:
    if isinstance(value, tuple):
        return any(map(_symbolic, cast("tuple[Any, ...]", value)))
    return type(value) in (Dim, SizeFloat)

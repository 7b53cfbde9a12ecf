"""Which values XLA:CPU stores, which it recomputes in every reader, and which are large."""

from __future__ import annotations

from typing import Any

from hybridflow.core.dims import evaluate as evaluate_size
from hybridflow.core.node import Node
from hybridflow.ir.graph import Graph, edges_of

_CHEAP = 32
"""An operation is cheap if it takes at most this many floating-point operations per element of its result."""
_EXACT = 1
"""An element-wise operation with a larger error bound in ulp, such as exp, is costly: XLA never runs it twice."""
_KEPT = frozenset({"effect", "random", "nested", "source", "foreign", "tensor_rule", "reads_never"})
"""Traits of nodes that XLA computes once, however many nodes read them."""


def is_stored(node: Node) -> bool:
    """Whether XLA computes a node once in any case: `is_kept` only says that recomputing would not pay."""
    return "inline" not in node.op.traits and not (_KEPT | {"dot", "convolution"}).isdisjoint(node.op.traits)


def is_kept(node: Node, graph: Graph, readers: int) -> bool:
    """Whether XLA computes a node once for this many readers, because recomputing costs more than storing."""
    op = node.op
    traits = op.traits
    if not _KEPT.isdisjoint(traits):
        return True
    if "pointwise" in traits:
        return readers > 1 and op.ulp > _EXACT
    if "layout" in traits:
        return False
    if "dot" in traits:
        return True
    specs: Any = node.specs
    inputs = [edge[0].spec(edge[1]) for edge in edges_of(node)]
    guards = len(graph.dims.guards)
    try:
        work = op.flops(specs if len(specs) != 1 else specs[0], *inputs, **node.attrs)
        hints = graph.dims.hints
        return evaluate_size(work, hints) > _CHEAP * sum([evaluate_size(spec.size, hints) for spec in specs])
    finally:
        graph.dims.forget_guards(guards)  # questions about sizes here must not become guards of the trace


def is_large(graph: Graph, node: Node, least: int) -> bool:
    """Whether a node's result has at least so many elements; symbolic sizes count as in the first call."""
    guards = len(graph.dims.guards)
    try:
        return evaluate_size(node.spec().size, graph.dims.hints) >= least
    finally:
        graph.dims.forget_guards(guards)

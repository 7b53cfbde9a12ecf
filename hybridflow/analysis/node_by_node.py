"""Run a graph node by node, those in its branches and loops included, as eager code runs operations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from hybridflow.backend.jax_shim import enable_x64, is_tracer
from hybridflow.core.context import context_of
from hybridflow.core.dispatch import run_raw
from hybridflow.core.node import Node
from hybridflow.ir.evaluate import RUN_NODE, evaluate
from hybridflow.ir.graph import Graph


class NodeByNode:
    """Runs each node alone; subclasses look at what it gives.

    Attributes:
        around: the branches and loops around the node that runs now, outermost first.
    """

    def __init__(self) -> None:
        self.around: list[Node] = []

    def evaluate(self, graph: Graph, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run a graph and return its outputs."""
        with context_of(None):
            return evaluate(graph, inputs, self.node)

    def node(self, node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        """Run a node; a branch or loop node by node, as Python."""
        if "nested" not in node.op.traits:
            return run_raw(node.op, [np.asarray(value) for value in values], attrs)
        if attrs.get("length") == 0:  # jax does not run an empty loop as Python
            with jax.disable_jit(False):
                return run_raw(node.op, [np.asarray(value) for value in values], attrs)
        self.around.append(node)
        token = RUN_NODE.set(self._node_inside)
        try:
            with jax.disable_jit(), enable_x64():
                return node.op.lower(*[jax.numpy.asarray(value) for value in values], **attrs)
        finally:
            RUN_NODE.reset(token)
            self.around.pop()

    def _node_inside(self, node: Node, values: list[Any], attrs: dict[str, Any]) -> Any:
        """Run a node of a nested graph on jax's values; those that only stand for values are passed on."""
        if any(map(is_tracer, values)):
            return node.op.lower(*values, **attrs)
        outputs = self.node(node, values, attrs)
        if isinstance(outputs, tuple | list):
            return tuple([jax.numpy.asarray(value) for value in outputs])
        return jax.numpy.asarray(outputs)

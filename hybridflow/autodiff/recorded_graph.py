"""Recorded eager computations as graphs, to print, verify, cost and run like those of compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridflow.autodiff.backward import original
from hybridflow.autodiff.graph_ops import CALL
from hybridflow.core.errors import GradientError
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import REGISTRY
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor
from hybridflow.core.variable import VARIABLE, Variable
from hybridflow.ir.graph import Graph, constant_node, input_node


class Unkept(NamedTuple):
    """A value that an operation read but the recording did not keep.

    Attributes:
        node: the operation.
        position: the index of the input.
    """

    node: Node
    position: int


Origin = Edge | Tensor | Unkept
"""The origin of the value of a graph's input: a leaf of the recording, a given tensor, or a value not kept."""


class RecordedGraph(NamedTuple):
    """A graph, and the origin of the value of each input."""

    graph: Graph
    origins: tuple[Origin, ...]


def recorded_graph(
    outputs: Sequence[Edge], name: str, inputs: Sequence[Any] = (), member: Callable[[Node], bool] = lambda _: True
) -> RecordedGraph:
    """Return a recorded computation as a graph.

    Args:
        outputs: the edges that it computes.
        name: its name.
        inputs: tensors and Variables that become its first inputs, in this order; the leaves it reaches follow.
        member: whether a node belongs to it; others become inputs.

    Raises:
        GradientError: if it contains a custom gradient, whose forward pass was not recorded.
    """
    made = _Maker(name, member)
    for value in inputs:
        made.give(value)
    return made.make(outputs)


class _Maker:
    def __init__(self, name: str, member: Callable[[Node], bool]) -> None:
        self.name = name
        self.member = member
        self.inputs: list[Node] = []
        self.origins: list[Origin] = []
        self.nodes: list[Node] = []
        self.moved: dict[Edge, Edge] = {}
        self.given: dict[int, Edge] = {}
        self.variables: dict[int, Edge] = {}
        self.constants: dict[int, Edge] = {}

    def give(self, value: Any) -> None:
        """Add an input that stands for a tensor or Variable."""
        edge = self._input(value.spec, f"x{len(self.inputs)}", value._edge or value)
        if isinstance(value, Variable):
            self.variables[id(value)] = edge
            return
        self.given[id(value._value)] = edge
        if value._edge is not None:
            self.moved[value._edge] = edge

    def _input(self, spec: Any, name: str, origin: Origin) -> Edge:
        node = input_node(spec, name)
        self.inputs.append(node)
        self.origins.append(origin)
        return node, 0

    def make(self, outputs: Sequence[Edge]) -> RecordedGraph:
        """Copy the nodes that the outputs depend on."""
        seen: set[Node] = set()
        stack = [edge for edge in outputs if edge not in self.moved]
        while stack:
            node = stack.pop()[0]
            if node in seen:
                continue
            seen.add(node)
            if self._computes(node):
                stack.extend([edge for edge in node.inputs if edge is not None and edge not in self.moved])
        for node in sorted(seen, key=lambda one: one.sequence):
            if self._computes(node):
                self._copy(node)
            else:
                for index in range(len(node.outputs)):
                    if (node, index) not in self.moved:
                        self.moved[node, index] = self._leaf(node, index)
        graph = Graph(self.name, tuple(self.inputs), tuple(self.nodes), tuple([self.moved[edge] for edge in outputs]))
        return RecordedGraph(graph, tuple(self.origins))

    def _computes(self, node: Node) -> bool:
        return bool(node.inputs) and self.member(node)

    def _leaf(self, node: Node, index: int) -> Edge:
        if node.op is not VARIABLE:
            return self._input(node.spec(index), f"leaf_{len(self.inputs)}", (node, index))
        variable = node.attrs["variable"]()
        input_ = self.variables.get(id(variable))
        if input_ is None:  # a Variable may have several nodes, one per epoch
            input_ = self.variables[id(variable)] = self._input(node.spec(), node.attrs["name"], (node, index))
        return input_

    def _copy(self, node: Node) -> None:
        op, attrs, specs = original(node.op), node.attrs, node.specs
        if "tensor_rule" in op.traits:
            raise GradientError(
                f"graph: {op.name} at {node.location} has no graph: its forward pass was not recorded as one",
                hint="Leave custom gradients out of what is to become a graph."
            )
        graph = attrs.get("graph")
        if isinstance(graph, Graph) and REGISTRY.get(op.name) is not op:
            # A compiled call: drop the outputs that only its gradient rule reads.
            op, attrs, specs = CALL, {"graph": graph}, specs[: len(graph.outputs)]
        edges = tuple([
            self._value(node, position) if edge is None else self.moved[edge]
            for position, edge in enumerate(node.inputs)
        ])
        copy = make_node(op, edges, attrs, specs, where=node.where)
        self.nodes.append(copy)
        for index in range(len(specs)):
            self.moved.setdefault((node, index), (copy, index))

    def _value(self, node: Node, position: int) -> Edge:
        """Return the edge for an input without a producer: a given input, a constant if it was kept, or a new input."""
        value = None if node.saved is None else node.saved[position + 1]
        spec = None if node.input_specs is None else node.input_specs[position]
        if value is None and spec is not None:
            value = spec[2]
        if value is None:
            assert spec is not None
            return self._input(make_spec(spec[0], spec[1]), f"unkept_{len(self.inputs)}", Unkept(node, position))
        if id(value) in self.given:
            return self.given[id(value)]
        if id(value) not in self.constants:
            constant = constant_node(np.asarray(value), where=node.where)
            self.nodes.append(constant)
            self.constants[id(value)] = (constant, 0)
        return self.constants[id(value)]

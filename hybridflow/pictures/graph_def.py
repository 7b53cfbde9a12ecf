"""Graphs as TensorBoard's GraphDef."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from hybridflow.core.dims import Dim
from hybridflow.core.dtypes import short_name
from hybridflow.core.node import Edge, Node
from hybridflow.core.variable import Variable
from hybridflow.ir.graph import Graph, nested_graphs, plain_attrs
from hybridflow.ir.printer import format_value
from hybridflow.pictures.tensorboard import tensorboard_module

_PRODUCER = 22
"""TensorFlow's number of this version of the GraphDef format."""
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_.\\/-]+")


def graph_def_of(graph: Graph) -> Any:
    """Return a graph as a `GraphDef` message; nested graphs are scopes of the operation that carries them.

    Variables and assignments have TensorFlow's operations for them, ``VariableV2`` and ``Assign``, and all other
    inputs are ``Placeholder``.

    Raises:
        MissingPackageError: the `tensorboard` package is not installed.
    """
    versions = tensorboard_module("versions", "GraphDef").VersionDef(producer=_PRODUCER)
    made = tensorboard_module("graph", "GraphDef").GraphDef
    return made(node=list(_Names().nodes(graph, "", {})), versions=versions)


class _Names:
    """Gives every node a name of its own."""

    def __init__(self) -> None:
        self.taken: set[str] = set()

    def name(self, prefix: str, text: str) -> str:
        base = f"{prefix}{_NOT_IN_NAMES.sub('_', text).strip('_/') or 'node'}"
        unique, count = base, 0
        while unique in self.taken:
            count += 1
            unique = f"{base}_{count}"
        self.taken.add(unique)
        return unique

    def nodes(self, graph: Graph, prefix: str, outer: dict[Edge, str]) -> Iterator[Any]:
        names = dict(outer)
        for node in graph.inputs:
            name = self.name(prefix, str(node.attrs.get("name") or "input"))
            names[node, 0] = name
            is_variable = isinstance(graph.captured.get(node), Variable)
            yield _node_def(name, "VariableV2" if is_variable else "Placeholder", [], node)
        for node in graph.nodes:
            scope = f"{node.scope_name}/" if node.scope_name else ""
            name = self.name(prefix, f"{scope}{node.op.name}")
            names.update({(node, index): f"{name}:{index}" if index else name for index in range(len(node.outputs))})
            yield _node_def(name, node.op.name, [names[edge] for edge in node.inputs if edge is not None], node)
            for position, nested in enumerate(nested_graphs(node)):
                yield from self.nodes(nested, f"{name}_bodies/{nested.name}_{position}/", {})
        for position, edge in enumerate(graph.outputs):
            variable = graph.assigned.get(position)
            if variable is None:
                yield _node_def(self.name(prefix, "output"), "Identity", [names[edge]], edge[0])
            else:
                name = self.name(prefix, f"{names[variable, 0]}_assign")
                yield _node_def(name, "Assign", [names[variable, 0], names[edge]], variable)


def _node_def(name: str, op: str, inputs: list[str], node: Node) -> Any:
    attr_value = tensorboard_module("attr_value", "GraphDef").AttrValue
    shape_proto = tensorboard_module("tensor_shape", "GraphDef").TensorShapeProto
    node_def = tensorboard_module("node_def", "GraphDef").NodeDef
    shapes = [
        shape_proto(dim=[shape_proto.Dim(size=-1 if isinstance(size, Dim) else size) for size in spec.shape])
        for spec in node.specs
    ]
    attrs = {"_output_shapes": attr_value(list=attr_value.ListValue(shape=shapes))}
    attrs["dtype"] = attr_value(s=", ".join(short_name(spec.dtype) for spec in node.specs).encode())
    for key, value in plain_attrs(node).items():
        attrs[key] = attr_value(s=format_value(value).encode())
    if node.location is not None:
        attrs["line"] = attr_value(s=node.location.encode())
    return node_def(name=name, op=op, input=inputs, attr=attrs)

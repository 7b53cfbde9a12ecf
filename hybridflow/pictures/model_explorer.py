"""Graphs in Model Explorer's JSON (github.com/google-ai-edge/model-explorer)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, nested_graphs, plain_attrs
from hybridflow.ir.printer import format_value, value_names


def model_explorer_of(graph: Graph) -> str:
    """Return a graph as the JSON text of a graph collection; each nested graph has a namespace of its own."""
    nodes = list(_nodes(graph, ""))
    return json.dumps([{"label": graph.name, "graphs": [{"id": graph.name, "nodes": nodes}]}], indent=1)


def _nodes(graph: Graph, prefix: str) -> Iterator[dict[str, Any]]:
    names = {edge: f"{prefix}{name}" for edge, name in value_names(graph).items()}
    ids: dict[Node, str] = {}
    for number, node in enumerate((*graph.inputs, *graph.nodes)):
        ids[node] = names.get((node, 0), f"{prefix}{node.op.name}_{number}")
        graphs = nested_graphs(node)
        yield _node(ids, node, prefix, is_input=number < len(graph.inputs))
        for position, nested in enumerate(graphs):
            yield from _nodes(nested, f"{prefix}{node.op.name}_{number}/{nested.name}_{position}/")
    for position, edge in enumerate(graph.outputs):
        yield {
            "id": f"{prefix}output_{position}", "label": "output", "namespace": prefix.rstrip("/"),
            "attrs": [], "incomingEdges": [_edge(ids, edge, 0)], "outputsMetadata": [],
        }


def _node(ids: dict[Node, str], node: Node, prefix: str, *, is_input: bool) -> dict[str, Any]:
    attrs = [{"key": name, "value": format_value(value)} for name, value in plain_attrs(node).items()]
    if node.location is not None:
        attrs.append({"key": "line", "value": node.location})
    return {
        "id": ids[node],
        "label": str(node.attrs.get("name") or node.op.name) if is_input else node.op.name,
        "namespace": f"{prefix}{node.scope_name}".rstrip("/"),
        "attrs": attrs,
        "incomingEdges": [_edge(ids, edge, position) for position, edge in enumerate(node.inputs) if edge is not None],
        "outputsMetadata": [
            {"id": str(index), "attrs": [{"key": "tensor_shape", "value": str(spec)}]}
            for index, spec in enumerate(node.specs)
        ],
    }


def _edge(ids: dict[Node, str], edge: Edge, position: int) -> dict[str, str]:
    return {"sourceNodeId": ids[edge[0]], "sourceNodeOutputId": str(edge[1]), "targetNodeInputId": str(position)}

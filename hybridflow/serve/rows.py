"""Find out from a graph whether requests may share a batch, and a batch be padded."""

from __future__ import annotations

from hybridflow.core.dims import Dim
from hybridflow.export.loaded import Function
from hybridflow.ir.graph import Graph
from hybridflow.nested.rows import why_rows_mix


def why_alone(function: Function) -> str | None:
    """Return why requests for a function cannot share a batch, or None if they can.

    They can if each row of the results is computed from the same row of the inputs alone, and nothing is drawn at
    random.
    """
    graph, count = function.graph(), len(function.inputs)
    firsts = [spec.shape[0] if spec.shape else None for spec in graph.input_specs[:count]]
    symbols = {str(size) for size in firsts if isinstance(size, Dim)}
    if not firsts or len(symbols) != 1 or not all([isinstance(size, Dim) for size in firsts]):
        return "its inputs have no common open size as their first axis"
    (symbol,) = symbols
    if symbol not in graph.dims.hints:
        return f"its batch size is {symbol}, and no size of its own"
    if function.random:
        return "it draws random numbers"
    return why_rows_mix(_results_alone(graph, len(function.outputs)), symbol)


def batch_symbol(function: Function) -> str:
    """Return the name of the size that is the batch of a function, of which `why_alone` is None."""
    return str(next(iter(function.inputs.values())).shape[0])


def _results_alone(graph: Graph, count: int) -> Graph:
    """Return a graph with its first outputs alone: its checks may look at all rows."""
    outputs = graph.outputs[:count]
    wanted = {edge[0] for edge in outputs}
    for node in reversed(graph.nodes):
        if node in wanted:
            wanted |= {edge[0] for edge in node.inputs if edge is not None}
    nodes = [node for node in graph.nodes if node in wanted]
    return Graph(graph.name, graph.inputs, type(graph.nodes)(nodes), outputs, graph.dims)

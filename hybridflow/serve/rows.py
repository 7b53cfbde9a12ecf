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
    results = graph.outputs[: len(function.outputs)]  # the checks may look at all rows
    return why_rows_mix(Graph(graph.name, graph.inputs, graph.nodes, results, graph.dims), symbol)


def batch_symbol(function: Function) -> str:
    """Return the name of the size that is the batch of a function, of which `why_alone` is None."""
    return str(next(iter(function.inputs.values())).shape[0])


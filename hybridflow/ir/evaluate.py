"""Run a graph node by node: on jax values (lowering), on NumPy arrays, or on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol

from hybridflow.core.dims import SIZES, Dim, substitute
from hybridflow.core.dispatch import run_raw
from hybridflow.core.errors import ShapeError
from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph

RunNode = Callable[[Node, list[Any], dict[str, Any]], Any]
"""A function ``(node, input values, attrs)`` that returns the output, or a tuple if the node has several outputs."""


def evaluate(
    graph: Graph,
    values: Sequence[Any],
    run: RunNode,
    *,
    keep_dims: bool = False,
    sizes: Mapping[str, int] | None = None,
) -> tuple[Any, ...]:
    """Run every node of a graph and return the values of its outputs.

    Args:
        graph: the graph.
        values: one value per input.
        run: the function that runs one node.
        keep_dims: whether to keep symbolic sizes in attributes.
        sizes: the size of each symbol, if the inputs do not determine them.
    """
    if not graph.dims.hints or keep_dims:
        return _evaluate(graph, values, run, None)
    if sizes is None:
        around = SIZES.get()
        if around is not None and around[0] is graph.dims:
            return _evaluate(graph, values, run, around[1])
        sizes = bind_sizes(graph, values)
    token = SIZES.set((graph.dims, sizes))
    try:
        return _evaluate(graph, values, run, sizes)
    finally:
        SIZES.reset(token)


def _evaluate(
    graph: Graph, values: Sequence[Any], run: RunNode, sizes: Mapping[str, int] | None
) -> tuple[Any, ...]:
    environment: dict[Edge, Any] = {(node, 0): value for node, value in zip(graph.inputs, values, strict=True)}
    for node in graph.nodes:
        attrs = node.attrs
        if sizes is not None:
            attrs = {name: substitute(value, sizes) for name, value in attrs.items()}
        result = run(node, [environment[edge] for edge in node.inputs if edge is not None], attrs)
        if len(node.outputs) == 1:
            environment[node, 0] = result
        else:
            for index, value in enumerate(result):
                environment[node, index] = value
    return tuple([environment[edge] for edge in graph.outputs])


def bind_sizes(graph: Graph, values: Sequence[Any]) -> dict[str, int]:
    """Return the size of each symbol of the graph for given input values.

    Raises:
        ShapeError: if two inputs disagree about a symbol.
    """
    sizes: dict[str, int] = {}
    for node, value in zip(graph.inputs, values, strict=True):
        shape = node.spec().shape
        for size, actual in zip(shape, value.shape if shape else (), strict=True):  # a bare number has no shape
            name = size.symbol if isinstance(size, Dim) else None
            if name is not None and sizes.setdefault(name, actual) != actual:
                raise ShapeError(
                    f"{graph.name}: dimension {name} is {sizes[name]} in one input and {actual} in another",
                    got=", ".join(str(n.spec()) for n in graph.inputs), hint="Pass inputs whose sizes agree."
                )
    return sizes


def symbol_positions(graph: Graph) -> tuple[tuple[int, int, str], ...]:
    """Return the input and axis from which each symbol of a graph can be read."""
    positions: dict[str, tuple[int, int, str]] = {}
    for position, spec in enumerate(graph.input_specs if graph.dims.hints else ()):
        for axis, size in enumerate(spec.shape):
            name = size.symbol if isinstance(size, Dim) else None
            if name is not None:
                positions.setdefault(name, (position, axis, name))
    return tuple(positions.values())


def sizes_around(graph: Graph) -> Mapping[str, int] | None:
    """Return the current symbol sizes for a graph nested in the one being lowered; None if it has no symbols."""
    around = SIZES.get()
    return None if around is None or not graph.dims.hints else around[1]


def run_eagerly(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Run a node as eager code does: its NumPy kernel, or its lowering compiled on its own."""
    return run_raw(node.op, inputs, attrs)


def run_lowering(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
    """Run a node as jax operations."""
    namer = NAMER.get()
    if namer is None:
        return node.op.lower(*inputs, **attrs)
    with namer(node):
        return node.op.lower(*inputs, **attrs)


class NamerProtocol(Protocol):
    """An object that names the operations of a lowered program after their nodes."""

    suffix: str

    def __call__(self, node: Node) -> AbstractContextManager[Any]:
        """Return the scope in which a node is lowered."""
        ...


NAMER: ContextVar[NamerProtocol | None] = ContextVar("namer", default=None)


RUN_NODE: ContextVar[RunNode] = ContextVar("run_node", default=run_lowering)
"""The function with which `lower_graph` runs a node."""


def lower_graph(graph: Graph, sizes: Mapping[str, int] | None = None) -> Callable[..., tuple[Any, ...]]:
    """Return the graph as one jax function of its inputs; `sizes` gives the symbols' sizes if the inputs do not."""

    def lowered(*values: Any) -> tuple[Any, ...]:
        return evaluate(graph, values, RUN_NODE.get(), sizes=sizes)

    namer = NAMER.get()
    name = "".join(c if c.isalnum() else "_" for c in graph.name) or "graph"
    lowered.__name__ = name if namer is None else name + namer.suffix
    return lowered

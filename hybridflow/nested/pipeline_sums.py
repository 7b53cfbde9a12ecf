"""Gradients of weights that stay sums over parts of a micro-batch, until the pipeline has run all of them.

Where a mesh splits the batch too, the gradient of a weight is a sum over rows that lie on several devices. Summing
after the last micro-batch instead of in each one sends as many bytes once. So a node that sums over rows, such as the
product of activations and cotangents, is run for each device's rows apart, and its results are added up at the end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Node
from hybridflow.ir.evaluate import RUN_NODE, evaluate
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ops.einsum import einsum
from hybridflow.ops.indexing import index_add
from hybridflow.ops.matmul import matmul
from hybridflow.ops.reductions import sum as sum_op

Axes = tuple[int | None, ...]
"""Per input of a node, the axis over whose elements the node adds up; None if it is needed whole."""


def _axes_of_sum(node: Node, parts: int) -> Axes | None:
    ((source, index),) = edges_of(node)
    shape = source.spec(index).shape
    axes = [axis for axis in sorted(node.attrs["axis"]) if shape[axis] % parts == 0]
    return (axes[0],) if axes else None


def _axes_of_product(node: Node, parts: int) -> Axes | None:
    (a, i), (b, j) = edges_of(node)
    left, right = a.spec(i).shape, b.spec(j).shape
    return (1, 0) if len(left) == len(right) == 2 and right[0] % parts == 0 else None


def _axes_of_additions(node: Node, parts: int) -> Axes | None:
    values, *indices = [source.spec(index).shape for source, index in edges_of(node)]
    first = node.attrs["axes"] == tuple(range(len(indices)))
    equal = all([one and one == indices[0] for one in indices])
    return (0,) * (1 + len(indices)) if first and equal and values[0] % parts == 0 else None


def _axes_of_einsum(node: Node, parts: int) -> Axes | None:
    given, result = node.attrs["subscripts"].split("->")
    labels = given.split(",")
    shapes = [source.spec(index).shape for source, index in edges_of(node)]
    for label, size in zip(labels[0], shapes[0], strict=False):
        counts = [one.count(label) for one in labels]
        if label not in result and label != "." and max(counts) == 1 and size % parts == 0:
            return tuple([one.index(label) if label in one else None for one in labels])
    return None


_SUMMED: dict[Any, Callable[[Node, int], Axes | None]] = {
    sum_op.op: _axes_of_sum, matmul.op: _axes_of_product, einsum.op: _axes_of_einsum, index_add.op: _axes_of_additions,
}
"""Operations whose result is the sum of their results for parts of the inputs, and along which axes these are cut."""


def summed_axes(node: Node, parts: int) -> Axes | None:
    """Return the axes along which a node's inputs can be cut into parts whose results add up to the node's.

    Args:
        node: the node.
        parts: the number of parts.
    """
    found = _SUMMED.get(node.op)
    return None if found is None else found(node, parts)


def _is_linear(node: Node) -> bool:
    """Whether a node may be run on parts of a sum: it rearranges one value, or converts it without a whole number."""
    kinds = {"reshape", "layout", "identity", "conversion"}
    if len(edges_of(node)) != 1 or len(node.outputs) != 1 or not kinds & set(node.op.traits):
        return False
    ((source, index),) = edges_of(node)
    before, after = source.spec(index).dtype, node.spec(0).dtype
    return before == after or (is_differentiable(before) and is_differentiable(after))


def late_nodes(graph: Graph, outputs: Sequence[int], parts: int) -> set[Node]:
    """Return the nodes that run on parts, so that as many of some outputs as possible are sums that are not yet added.

    Args:
        graph: the graph.
        outputs: the positions of the outputs that may be parts.
        parts: the number of parts.
    """
    allowed = set(outputs)
    readers: dict[Node, list[Node | None]] = defaultdict(list)
    for position, (node, _) in enumerate(graph.outputs):
        if position not in allowed:
            readers[node].append(None)
    for node in graph.nodes:
        for source, _ in edges_of(node):
            readers[source].append(node)
    found = {node for node in graph.nodes if _is_linear(node) or summed_axes(node, parts) is not None}
    while True:
        kept = {
            node for node in found
            if all([one in found and _is_linear(one) for one in readers[node] if one is not None])
            and None not in readers[node]
            and (summed_axes(node, parts) is not None or edges_of(node)[0][0] in found)
        }
        if kept == found:
            return found
        found = kept


def run_in_parts(graph: Graph, late: set[Node], parts: int) -> Callable[..., tuple[Any, ...]]:
    """Return a graph as a jax function; outputs of late nodes have a first axis, with one summand for each part."""

    def run(*values: Any) -> tuple[Any, ...]:
        plain = RUN_NODE.get()

        def run_node(node: Node, inputs: list[Any], attrs: dict[str, Any]) -> Any:
            if node not in late:
                return plain(node, inputs, attrs)
            axes = summed_axes(node, parts)
            if node.op.has("places"):  # parts of a sum lie where their rows lie
                return inputs[0]
            if axes is None:  # it rearranges parts of a sum
                return jax.vmap(lambda own: plain(node, [own], attrs))(*inputs)
            cut = [x if axis is None else _cut(x, axis, parts) for x, axis in zip(inputs, axes, strict=True)]
            return jax.vmap(lambda *own: plain(node, list(own), attrs), in_axes=axes)(*cut)

        return evaluate(graph, values, run_node)

    return run


def _cut(x: Any, axis: int, parts: int) -> Any:
    return x.reshape((*x.shape[:axis], parts, x.shape[axis] // parts, *x.shape[axis + 1 :]))


def constrained(value: Any, axes: tuple[str, ...]) -> Any:
    """Return a value whose first axis lies along some mesh axes; how its other axes lie is left to XLA."""
    rest = [PartitionSpec.UNCONSTRAINED] * (value.ndim - 1)
    return jax.lax.with_sharding_constraint(value, PartitionSpec(axes, *rest))

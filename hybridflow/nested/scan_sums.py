"""Sums in a loop on a mesh that are added up over the devices once, after the last step.

Where a mesh splits the rows of each step, what a step adds to a sum, such as a weight's gradient, is a sum over rows on
several devices. Each device keeps a sum of its own, and one reduction follows the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding, PartitionSpec

from hybridflow.backend.collectives import BATCH_AXES, LOWERED_FOR
from hybridflow.core.node import Edge, Node
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.pipeline_sums import late_nodes, run_in_parts
from hybridflow.ops.arithmetic import add


def scan_with_sums(
    body: Graph, carry: int, state: Sequence[Any], rows: Sequence[Any], constants: Sequence[Any], length: Any
) -> tuple[Any, ...] | None:
    """Run a scan whose sums are reduced after it; return its carry and rows, or None if it has no such sums.

    Args:
        body: the graph of one step.
        carry: the number of carried values.
        state, rows, constants: jax's arrays.
        length: the number of steps; None to take it from the rows.
    """
    mesh, axes = LOWERED_FOR.get(), BATCH_AXES.get()
    if mesh is None or mesh.parts(axes) == 1:
        return None
    parts, devices = mesh.parts(axes), mesh.of_jax
    found = _added(body, carry)
    steps = _without_sums(body, found)
    late = late_nodes(steps, list(found), parts)
    split = {index for index, edge in found.items() if edge[0] in late}
    if not split:
        return None
    run = run_in_parts(steps, late, parts)

    def divided(value: Any, dim: int) -> Any:
        layout = [axes if index == dim else PartitionSpec.UNCONSTRAINED for index in range(value.ndim)]
        return lax.with_sharding_constraint(value, NamedSharding(devices, PartitionSpec(*layout)))

    def step(now: tuple[Any, ...], x: tuple[Any, ...]) -> Any:
        made = list(run(*now, *x, *constants))
        for index in found:
            made[index] = now[index] + made[index]
            if index in split:
                made[index] = divided(made[index], 0)
        return tuple(made[:carry]), tuple(made[carry:])

    first = [
        divided(jnp.zeros((parts, *one.shape), one.dtype), 0) if index in split else one
        for index, one in enumerate(state)
    ]
    cut = [divided(one, 1) if one.ndim > 1 and one.shape[1] % parts == 0 else one for one in rows]
    last, ys = lax.scan(step, tuple(first), tuple(cut), length=length)
    total = [
        state[index] + _placing(found[index][0])(jnp.sum(one, axis=0, dtype=one.dtype)) if index in split else one
        for index, one in enumerate(last)
    ]
    return (*total, *ys)


def _added(body: Graph, carry: int) -> dict[int, Edge]:
    """Return the carried values that are read only to add something to them, each with what is added."""
    read: dict[Edge, int] = {}
    for edge in [*[edge for node in body.nodes for edge in edges_of(node)], *body.outputs]:
        read[edge] = read.get(edge, 0) + 1
    found: dict[int, Edge] = {}
    for index in range(carry):
        own, made = (body.inputs[index], 0), body.outputs[index]
        edges = edges_of(made[0])
        if made[0].op is add.op and own in edges and read[own] == read[made] == 1:
            other = edges[1] if edges[0] == own else edges[0]
            if other[0].spec(other[1]) == body.inputs[index].spec(0):
                found[index] = other
    return found


def _without_sums(body: Graph, found: dict[int, Edge]) -> Graph:
    """Return a body that returns what is added to carried values instead of their sums."""
    sums = {body.outputs[index][0] for index in found}
    nodes = type(body.nodes)([node for node in body.nodes if node not in sums])
    outputs = tuple([found.get(index, edge) for index, edge in enumerate(body.outputs)])
    return Graph(body.name, body.inputs, nodes, outputs, body.dims)


def _placing(node: Node) -> Callable[[Any], Any]:
    """Return how a step lays out what it adds, which the parts of a sum do not follow."""
    while node.op.has("conversion"):
        node = edges_of(node)[0][0]
    lower: Any = node.op.lower
    return (lambda x: lower(x, **node.attrs)) if node.op.has("places") else (lambda x: x)

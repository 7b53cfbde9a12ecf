"""Sums of products over slices, computed as one contraction instead of one product per slice.

An input that every slice reads in full gets the sum of the slices' gradients. For weights, each of these is an outer
product or a matrix product; computed slice by slice, they would be a stack of arrays as large as the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hybridflow.backend.active_rows import active_if
from hybridflow.core.attached import attached
from hybridflow.core.dtypes import LOW_PRECISION
from hybridflow.core.node import Edge, Node
from hybridflow.core.settings import SETTINGS
from hybridflow.core.spec import TensorSpec
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph

Mask = tuple[bool, ...]


class _Product(NamedTuple):
    """A summed output that is the product of two values, both of which differ from slice to slice.

    Attributes:
        factors: the two values.
        shapes: their shapes; for an outer product, without axes of size 1.
        equation: the contraction, with ``n`` for the slices.
    """

    factors: tuple[Edge, Edge]
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    equation: str


class _Plan(NamedTuple):
    """The graph to run on slices instead of the given one, and which outputs are products of two of its results."""

    graph: Graph
    products: tuple[_Product | None, ...]


def summed_lowering(graph: Graph, mapped: Mask, summed: Mask, size: Any) -> Callable[..., tuple[Any, ...]]:
    """Return a jax function that runs a graph on slices, and adds up the results of the outputs in `summed`."""
    key = ("slice sums", mapped, summed)
    plan: _Plan | None = graph.executables.get(key)
    if plan is None:
        plan = graph.executables[key] = _plan(graph, mapped, summed)
    axes = tuple([0 if one else None for one in mapped])
    run = jax.vmap(lower_graph(plan.graph), in_axes=axes, axis_size=size)
    has_loops = any(node.op.name == "while" for node in plan.graph.walk())

    def lowered(*xs: Any) -> tuple[Any, ...]:
        # JAX fails where a function with `custom_jvp` or `custom_vjp` is mapped over a NumPy array.
        xs = tuple([jnp.asarray(x) if one else x for x, one in zip(xs, mapped, strict=True)])
        with active_if(np.True_ if has_loops else None):
            results = iter(run(*xs))
        outputs: list[Any] = []
        for product, add, spec in zip(plan.products, summed, graph.output_specs, strict=True):
            if product is not None:
                a, b = next(results), next(results)
                outputs.append(_contract(product, a, b, spec))
            else:
                one = next(results)
                outputs.append(total(one) if add else one)
        return tuple(outputs)

    return lowered


def total(values: Any) -> Any:
    """Add up slices; low precision accumulates in float32, as sums do."""
    if values.dtype.num in LOW_PRECISION:
        return jnp.sum(values.astype(jnp.float32), axis=0).astype(values.dtype)
    return jnp.sum(values, axis=0)


def _contract(product: _Product, a: Any, b: Any, spec: TensorSpec) -> Any:
    a, b = [x.reshape((x.shape[0], *shape)) for x, shape in zip((a, b), product.shapes, strict=True)]
    wide = jnp.float32 if a.dtype.num in LOW_PRECISION else a.dtype
    result = jnp.einsum(product.equation, a, b, precision=SETTINGS.matmul_precision, preferred_element_type=wide)
    return result.astype(a.dtype).reshape(spec.shape)


def _plan(graph: Graph, mapped: Mask, summed: Mask) -> _Plan:
    graph = attached("rewritten")(graph)  # eager code runs no passes, and XLA would lose zeros' signs
    varying = {node for node, one in zip(graph.inputs, mapped, strict=True) if one}
    for node in graph.nodes:
        if any(edge is not None and edge[0] in varying for edge in node.inputs):
            varying.add(node)
    products = tuple([
        _product(edge[0], varying) if add else None for edge, add in zip(graph.outputs, summed, strict=True)
    ])
    if all(product is None for product in products):
        return _Plan(graph, products)
    outputs: list[Edge] = []
    for edge, product in zip(graph.outputs, products, strict=True):
        outputs.extend((edge,) if product is None else product.factors)
    return _Plan(Graph(graph.name, graph.inputs, graph.nodes, tuple(outputs), graph.dims), products)


def _product(node: Node, varying: set[Node]) -> _Product | None:
    """Return the contraction that computes a node's output summed over slices, or None if it does not help."""
    if not (node.op.has("product") or node.op.has("matrix_product")):
        return None
    factors: list[Edge] = [edge for edge in node.inputs if edge is not None and edge[0] in varying]
    if len(factors) != 2:
        return None
    a, b = [node.spec(index).shape for node, index in factors]
    if not all(isinstance(size, int) for size in (*a, *b, *node.spec().shape)):
        return None
    equation = _matrix_equation(a, b) if node.op.has("matrix_product") else _outer_equation(a, b, node.spec().shape)
    return None if equation is None else _Product((factors[0], factors[1]), *equation)


_LETTERS = "abcdefghijklm"
_Found = tuple[tuple[tuple[int, ...], tuple[int, ...]], str]


def _matrix_equation(a: Sequence[int], b: Sequence[int]) -> _Found | None:
    if len(a) > 2 or len(b) != 2:
        return None
    left = "ik"[2 - len(a) :]
    return (tuple(a), tuple(b)), f"n{left},nkj->{left[:-1]}j"


def _outer_equation(a: Sequence[int], b: Sequence[int], shape: Sequence[int]) -> _Found | None:
    """Return the contraction of an element-wise product in which both factors are broadcast."""
    rank = len(shape)
    if rank > len(_LETTERS):
        return None
    a, b = (*[1] * (rank - len(a)), *a), (*[1] * (rank - len(b)), *b)
    of_a = [i for i in range(rank) if a[i] != 1]
    of_b = [i for i in range(rank) if b[i] != 1]
    if not set(of_a) - set(of_b) or not set(of_b) - set(of_a):
        return None
    left, right = ("".join(_LETTERS[i] for i in axes) for axes in (of_a, of_b))
    result = "".join(_LETTERS[i] for i in range(rank) if i in of_a or i in of_b)
    return (tuple([a[i] for i in of_a]), tuple([b[i] for i in of_b])), f"n{left},n{right}->{result}"

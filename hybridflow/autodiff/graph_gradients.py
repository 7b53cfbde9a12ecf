"""`Graph.gradients`: gradients as part of a hand-made graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridflow.autodiff.backprop import BOUND, backprop
from hybridflow.autodiff.jacobian import flatten
from hybridflow.autodiff.seeds import ones
from hybridflow.autodiff.walk import EVER, reachable
from hybridflow.core.context import current
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, TraceError
from hybridflow.core.node import Edge
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.construction import Construction
from hybridflow.ir.graph import Graph


def gradients(graph: Graph, ys: Any, xs: Any, output_gradients: Any) -> Any:
    """Add gradients to a hand-made graph; see `Graph.gradients`."""
    tracer = current().tracer
    if not isinstance(tracer, Construction) or tracer.graph is not graph:
        raise TraceError("gradients: they are operations of the graph, and its block has ended",
                         hint="Ask for them inside `with graph:`.")
    targets = [tracer.used(tracer.own_edge(_tensor(leaf))) for leaf in flatten(ys)[0]]
    sources, tree = flatten(xs)
    edges = [tracer.own_edge(_tensor(leaf)) for leaf in sources]
    seeds = _seeds(targets, output_gradients)
    starts = [(edge, seed) for edge, seed in zip(targets, seeds, strict=True) if _floats(edge)]
    by_edge = backprop(starts, set(filter(_floats, edges)), reachable([edge for edge, _ in starts], [EVER]), BOUND)
    return tree.unflatten([by_edge.get(edge) for edge in edges])


def _floats(edge: Edge) -> bool:
    return is_differentiable(edge[0].spec(edge[1]).dtype)


def _tensor(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor | Variable):
        raise ArgumentTypeError(f"gradients: a {type(leaf).__name__} is no tensor", got=repr(leaf)[:60],
                                hint="Pass tensors and Variables of the graph.")
    return leaf


def _seeds(targets: Sequence[Edge], output_gradients: Any) -> list[Tensor]:
    tensors = [make_tensor(None, edge) for edge in targets]
    if output_gradients is None:
        return [ones(tensor) for tensor in tensors]
    given = [as_tensor(leaf) for leaf in flatten(output_gradients)[0]]
    if [one.spec for one in given] != [tensor.spec for tensor in tensors]:
        raise ArgumentError("gradients: output_gradients are unlike the targets",
                            got=f"{[str(one.spec) for one in given]} for {[str(tensor.spec) for tensor in tensors]}",
                            hint="Give one per target, of its shape and dtype.")
    return given


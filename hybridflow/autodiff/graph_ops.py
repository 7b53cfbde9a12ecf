"""`call`, the operation that runs a graph; it lives beside `differentiate`, which its gradient rule needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.transform import Mask, differentiate
from hybridflow.core.context import current
from hybridflow.core.dispatch import bind
from hybridflow.core.node import Node
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.evaluate import evaluate, lower_graph
from hybridflow.ir.graph import Graph, require_inputs


def _call_lower(*xs: Any, graph: Graph) -> Any:
    outputs = lower_graph(graph)(*xs)
    return outputs[0] if len(outputs) == 1 else outputs


def _call_infer(*specs: Any, graph: Graph) -> Any:
    require_inputs("call", graph, specs)
    return graph.output_specs[0] if len(graph.outputs) == 1 else graph.output_specs


def _call_vjp(F: Any, g: Any, y: Any, *xs: Any, graph: Graph, wanted: Mask) -> list[Any]:
    del y
    return graph_pullback(F, graph, xs, list(g) if isinstance(g, tuple) else [g], wanted)


def graph_pullback(F: Any, graph: Graph, xs: Sequence[Any], gs: Sequence[Any], wanted: Mask) -> list[Any]:
    """Return the gradients of a graph's inputs: one call of its joint graph, which recomputes the forward pass."""
    given = tuple([g is not None for g in gs])
    gradient = differentiate(graph, given, wanted)
    if not any(gradient.present):
        return [None] * len(xs)
    gradients = F.call(*xs, *[g for g in gs if g is not None], graph=gradient.graph)
    several = iter(gradients if isinstance(gradients, tuple | list) else (gradients,))
    return [next(several) if present else None for present in gradient.present]



def inline(graph: Graph, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copy a graph's nodes into the graph being traced, or run them one by one in eager code; return its outputs."""
    tracer = current().tracer

    def rebind(node: Node, xs: list[Any], attrs: dict[str, Any]) -> Any:
        if not attrs.get("residuals"):  # then a tape around may still ask for them
            attrs = {name: value for name, value in attrs.items() if name != "residuals"}
        if not isinstance(tracer, GraphBuilder):
            return bind(node.op, tuple(xs), attrs)
        outer, tracer.place = tracer.place, node.where
        try:
            return tracer.bind(node.op, tuple(xs), attrs)
        finally:
            tracer.place = outer

    return list(evaluate(graph, tensors, rebind, keep_dims=True))


def _call_bodies(graph: Graph) -> tuple[Body, ...]:
    return (Body(graph),)


def call(*xs: Any, graph: Graph) -> Any:
    """Run a graph as one operation.

    Args:
        *xs: one tensor per input of the graph.
        graph: the graph.

    Returns:
        Its output, or a tuple of them.
    """
    return bind(CALL, xs, {"graph": graph})


CALL = register(
    Op(
        "call",
        No("the graph is compiled"),
        _call_lower,
        _call_infer,
        Joint(_call_vjp),
        flops=Bodies(_call_bodies),
        saves=Saves(x="all", depends=of_graph),
        samples=No("made by compiled functions; tested with them"),
        traits=frozenset({"nested", "inline"}),
        public=call,
        onnx=lambda o, *xs, graph: o.inline(graph, xs),  # pyright: ignore[reportUnknownLambdaType]
    )
)

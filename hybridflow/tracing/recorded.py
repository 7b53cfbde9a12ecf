"""Recording a compiled call: one node on the tape, whose rule is a compiled backward graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

from hybridflow.autodiff.graph_ops import graph_pullback
from hybridflow.autodiff.transform import Mask, SplitGradient, reached_inputs, split_gradient, zero_cotangents
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import No, Op, Saves
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import ASSIGN, REREAD
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, clone_node
from hybridflow.passes import run_passes
from hybridflow.xla.executable import compile_graph, concrete_specs


def graph_to_record(graph: Graph, assignments: Mapping[Node, Node], outputs: int) -> Graph:
    """Return a graph whose gradients are those of the eager run.

    Eagerly, every read of a Variable is the Variable to a tape, before and after it is assigned, and what is left in
    it at the end is no output.

    Args:
        graph: the graph as it was traced.
        assignments: each node that assigns a Variable, and the input that holds the Variable's first value.
        outputs: how many of the graph's outputs the user's function returned.
    """
    moved: dict[Edge, Edge] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        inputs = tuple([moved.get(edge, edge) for edge in node.inputs if edge is not None])
        variable = assignments.get(node)
        if variable is not None:
            copy = make_node(REREAD, (*inputs, (variable, 0)), {}, node.outputs, where=node.where, scope=node.scope)
        else:
            copy = node if inputs == node.inputs else clone_node(node, inputs)
        nodes.append(copy)
        if copy is not node:
            moved.update({(node, index): (copy, index) for index in range(len(node.outputs))})
    returned = [moved.get(edge, edge) for edge in graph.outputs]
    for position in range(outputs, len(returned)):
        node, index = returned[position]
        if is_differentiable(node.spec(index).dtype):
            stop = make_node(ASSIGN, (returned[position],), {}, (node.spec(index),), where=node.where, scope=node.scope)
            nodes.append(stop)
            returned[position] = (stop, 0)
    return Graph(graph.name, graph.inputs, tuple(nodes), tuple(returned), graph.dims)


def gradient_op(graph: Graph, wanted: Mask, device: Any, sizes: dict[str, int]) -> Op:
    """Return the op of recorded calls of a graph; ``op.jitted["forward"]`` runs it.

    Args:
        graph: what `graph_to_record` returned.
        wanted: per input, whether its gradient may be asked.
        device: the jax device to run on; jax's default one if None.
        sizes: the size of each symbol.
    """
    split = split_gradient(graph, wanted)
    forward, _ = run_passes(split.forward, differentiable=False)
    backward, _ = run_passes(split.backward, differentiable=False)
    executable = compile_graph(forward, sizes=sizes, device=device)
    op = Op(
        name=graph.name,
        kernel=No("compiled"),
        lower=lower_graph(forward, sizes),
        infer=_recorded_infer(graph),
        vjp=_recorded_rule(graph, split, lower_graph(backward, sizes), sizes),
        saves=Saves(x="all", hidden=split.residuals),
        traits=frozenset({"nested"}),
    )
    op.jitted["forward"] = executable.call
    return op


def _recorded_infer(graph: Graph) -> Callable[..., Any]:
    def infer(*specs: TensorSpec, **attrs: Any) -> Any:
        del specs, attrs
        return graph.output_specs

    return infer


def _recorded_rule(
    graph: Graph, split: SplitGradient, backward: Callable[..., Any], sizes: dict[str, int]
) -> Callable[..., Any]:
    """Return the rule of a recorded call: the compiled backward graph on bare arrays, a graph call on tensors."""
    outputs = concrete_specs(graph.output_specs, sizes)

    def rule(F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> list[Any]:
        del attrs
        visible = len(graph.outputs)
        gs = list(g) if isinstance(g, tuple) else [g]
        if any(isinstance(value, Tensor) for value in (*xs, *gs)):
            return graph_pullback(F, graph, xs, gs, split.present)
        cotangents = zero_cotangents(split.given, gs, outputs, jnp.full)
        residuals = y[visible:] if isinstance(y, tuple) else ()
        found = iter(backward(*[xs[i] for i in split.reads], *residuals, *cotangents))
        gradients = [next(found) if present else None for present in split.present]
        if None not in gs:
            return gradients
        # The backward graph took zeros for outputs without a gradient; what only those depend on has none either.
        reached = reached_inputs(graph, tuple([one is not None for one in gs]))
        return [one if reach else None for one, reach in zip(gradients, reached, strict=True)]

    return rule

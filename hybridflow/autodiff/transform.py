"""Gradients of whole graphs: a joint graph that recomputes the forward pass, and its split into two graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from hybridflow.autodiff.backprop import BOUND, backprop
from hybridflow.autodiff.no_gradient import preparing
from hybridflow.autodiff.walk import EVER, reachable
from hybridflow.core.context import context_of
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Flat, Stops
from hybridflow.core.sources import CONSTANT, INPUT
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import GraphBuilder
from hybridflow.ir.effects import silenced
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, clone_node, input_node
from hybridflow.ir.liveness import roots

Mask = tuple[bool, ...]


class GradientGraph(NamedTuple):
    """A graph that takes ``(*inputs, *given cotangents)`` and returns the gradients that exist.

    Attributes:
        graph: the joint graph; its outputs are the gradients of the inputs that are `present`.
        present: per input, whether a gradient reaches it.
        forward: the outputs of the original graph, as edges of the joint graph.
        forward_nodes: the nodes of the joint graph that compute them.
    """

    graph: Graph
    present: Mask
    forward: tuple[Edge, ...]
    forward_nodes: tuple[Node, ...]


def differentiate(graph: Graph, given: Mask, wanted: Mask) -> GradientGraph:
    """Return the graph of a graph's gradients, which recomputes the forward values it needs, without effects.

    Args:
        graph: the graph.
        given: per output, whether it has a cotangent.
        wanted: per input, whether its gradient is wanted.
    """
    key = ("differentiate", given, wanted)
    gradient = graph.executables.get(key)
    if gradient is None:
        gradient = differentiate_anew(graph, given, wanted)
        gradient = graph.executables[key] = gradient._replace(graph=silenced(gradient.graph))
    return gradient


def differentiate_anew(graph: Graph, given: Mask, wanted: Mask) -> GradientGraph:
    """Return a new graph as `differentiate` does, without its cache and with all effects of the forward pass."""
    with context_of(None):
        builder = GraphBuilder(f"{graph.name}_gradient")
    builder.dims = graph.dims
    try:
        with context_of(builder):
            return _trace_joint(builder, graph, given, wanted)
    finally:
        builder.scope.alive = False


def _trace_joint(builder: GraphBuilder, graph: Graph, given: Mask, wanted: Mask) -> GradientGraph:
    inputs = [builder.argument(node.spec(), node.attrs["name"]) for node in graph.inputs]

    def rebind(node: Node, xs: list[Any], attrs: dict[str, Any]) -> Any:
        builder.place = node.where
        attrs = {name: value for name, value in attrs.items() if name != "residuals"}
        outputs = builder.bind_all(node.op, xs, attrs, residuals=bool(node.op.saves.hidden))
        return outputs[0] if len(node.outputs) == 1 else outputs

    # Symbolic sizes stay symbolic here, so the evaluator must not replace them.
    outputs = evaluate(graph, inputs, rebind, keep_dims=True)
    builder.place = None
    forward = tuple([builder.edge_of(tensor) for tensor in outputs])
    forward_nodes = tuple(builder.nodes)
    starts: list[tuple[Edge, Tensor]] = []
    for index, (edge, has) in enumerate(zip(forward, given, strict=True)):
        if has:
            starts.append((edge, builder.argument(edge[0].spec(edge[1]), f"d_output_{index}")))
    sources: dict[int, Edge] = {}
    for index, (tensor, want) in enumerate(zip(inputs, wanted, strict=True)):
        if want and is_differentiable(tensor.dtype):
            sources[index] = builder.edge_of(tensor)
    nodes = reachable([edge for edge, _ in starts], [EVER])
    by_edge = backprop(starts, set(sources.values()), nodes, BOUND)
    gradients = [by_edge.get(sources[i]) if i in sources else None for i in range(len(inputs))]
    builder.checks.clear()  # the rules check what the forward pass checks, and the outputs are gradients only
    joint = builder.finish([gradient for gradient in gradients if gradient is not None])
    return GradientGraph(joint, tuple([gradient is not None for gradient in gradients]), forward, forward_nodes)


def reached_inputs(graph: Graph, given: Mask) -> Mask:
    """Return which inputs the gradients of the given outputs can reach."""
    key = ("reached", given)
    reached = graph.executables.get(key)
    if reached is None:
        seen: set[Node] = set()
        stack = [edge for edge, has in zip(graph.outputs, given, strict=True) if has]
        while stack:
            node, index = stack.pop()
            if node in seen or not is_differentiable(node.spec(index).dtype):
                continue
            seen.add(node)
            if not isinstance(node.op.vjp, Stops) or type(node.op.vjp) is Flat:
                stack += [edge for edge in node.inputs if edge is not None]
        reached = graph.executables[key] = tuple([node in seen for node in graph.inputs])
    return reached


class SplitGradient(NamedTuple):
    """A graph's gradient as two graphs; the forward one returns the values that the backward one needs.

    Attributes:
        forward: a graph from ``(*inputs)`` to ``(*outputs, *residuals)``.
        backward: a graph from ``(*some inputs, *residuals, *cotangents)`` to the present gradients.
        reads: the positions of those inputs, ascending (a scan passes its sequences before its constants).
        residuals: the number of residuals.
        present: per input, whether a gradient reaches it.
        given: per output, whether the backward graph takes a cotangent for it.
    """

    forward: Graph
    backward: Graph
    reads: tuple[int, ...]
    residuals: int
    present: Mask
    given: Mask


def split_gradient(graph: Graph, wanted: Mask, readable: Mask | None = None) -> SplitGradient:
    """Return forward and backward graphs; every differentiable output gets a cotangent.

    Args:
        graph: the graph.
        wanted: per input, whether its gradient is wanted.
        readable: per input, whether the backward pass can read it again (all, if None); the others become
            residuals.
    """
    key = ("split", wanted, readable)
    split = graph.executables.get(key)
    if split is None:
        split = graph.executables[key] = _split(graph, wanted, readable or tuple([True] * len(wanted)))
    return split


def _split(graph: Graph, wanted: Mask, readable: Mask) -> SplitGradient:
    given = tuple([is_differentiable(spec.dtype) for spec in graph.output_specs])
    with preparing():
        gradient = differentiate_anew(graph, given, wanted)
    joint = gradient.graph
    count = len(graph.inputs)
    before = {*gradient.forward_nodes, *joint.inputs[:count]}
    later = [node for node in joint.nodes if node not in before]
    positions = {node: index for index, node in enumerate(joint.inputs[:count]) if readable[index]}
    views = roots(joint)
    crossing: dict[Edge, None] = {}
    again: set[Node] = set()
    for edges in (*[node.inputs for node in later], joint.outputs):
        for edge in edges:
            if edge is None or edge[0] not in before:
                continue
            if edge[0].op is CONSTANT:
                again.add(edge[0])
                continue
            root = views.get(edge, edge)
            if root[0] in positions:  # as a residual, a view of an input would be a copy of it
                while edge != root:
                    again.add(edge[0])
                    edge = cast(Edge, edge[0].inputs[0])
            crossing[edge] = None
    reads = tuple(sorted([edge for edge in crossing if edge[0] in positions], key=lambda edge: positions[edge[0]]))
    residuals = tuple([edge for edge in crossing if edge[0] not in positions])
    forward = Graph(
        graph.name, joint.inputs[:count], gradient.forward_nodes, gradient.forward + residuals, joint.dims
    )
    nodes = [*[node for node in gradient.forward_nodes if node in again], *later]
    backward = _backward_graph(joint, reads + residuals, joint.inputs[count:], nodes)
    return SplitGradient(
        forward, backward, tuple([positions[edge[0]] for edge in reads]), len(residuals), gradient.present, given
    )


def _backward_graph(
    joint: Graph, residuals: tuple[Edge, ...], cotangents: tuple[Node, ...], nodes: list[Node]
) -> Graph:
    inputs = [input_node(node.spec(index), f"residual_{i}") for i, (node, index) in enumerate(residuals)]
    moved: dict[Edge, Edge] = {edge: (node, 0) for edge, node in zip(residuals, inputs, strict=True)}
    rebuilt: list[Node] = []
    for node in nodes:
        fresh = clone_node(node, tuple([moved.get(edge, edge) for edge in node.inputs if edge is not None]))
        rebuilt.append(fresh)
        for index in range(len(node.outputs)):
            moved[node, index] = (fresh, index)
    outputs = tuple([moved.get(edge, edge) for edge in joint.outputs])
    return Graph(joint.name, (*inputs, *cotangents), tuple(rebuilt), outputs, joint.dims)


def graph_from(graph: Graph, inputs: Sequence[Edge]) -> Graph:
    """Return a graph that computes the same outputs from other edges as inputs; it shares no node with `graph`."""
    moved: dict[Edge, Edge] = {}
    nodes = [
        input_node(edge[0].spec(edge[1]), edge[0].attrs["name"] if edge[0].op is INPUT else f"kept_{index}")
        for index, edge in enumerate(inputs)
    ]
    moved.update({edge: (node, 0) for edge, node in zip(inputs, nodes, strict=True)})
    needed: set[Node] = set()
    stack = [edge for edge in graph.outputs if edge not in moved]
    while stack:
        node = stack.pop()[0]
        if node not in needed:
            needed.add(node)
            stack.extend([edge for edge in node.inputs if edge is not None and edge not in moved])
    rebuilt: list[Node] = []
    for node in graph.nodes:
        if node in needed:
            rebuilt.append(clone_node(node, tuple([moved.get(edge, edge) for edge in node.inputs if edge is not None])))
            for index in range(len(node.outputs)):
                moved.setdefault((node, index), (rebuilt[-1], index))
    outputs = tuple([moved.get(edge, edge) for edge in graph.outputs])
    return Graph(graph.name, tuple(nodes), tuple(rebuilt), outputs, graph.dims)


def zero_cotangents(given: Mask, cotangents: Any, specs: Any, full: Any) -> list[Any]:
    """Return the cotangents that a backward graph takes, with zeros for outputs that have none."""
    result: list[Any] = []
    for has, cotangent, spec in zip(given, cotangents, specs, strict=True):
        if has:
            result.append(full(spec.shape, 0, dtype=spec.dtype) if cotangent is None else cotangent)
    return result




"""Checkpoints in graphs: one operation that runs a graph and whose gradient runs it again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.transform import GradientGraph, Mask, differentiate_anew, graph_from
from hybridflow.core.dispatch import bind
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import silenced
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Edge, Graph, require_inputs
from hybridflow.nested.checkpoint_policies import Policy, kept_nodes

_TESTED = No("made by hf.checkpoint; tested with it")
Place = tuple[int, int]
"""A value of a graph: the index of the node that computes it, and of the output (hidden ones included)."""


class Kept(NamedTuple):
    """The values that a checkpoint keeps.

    Attributes:
        places: the kept values, which the backward pass reads.
        forward: the graph with those values as additional outputs.
    """

    places: tuple[Place, ...]
    forward: Graph


class Backward(NamedTuple):
    """The backward pass of a checkpoint.

    Attributes:
        graph: a graph from ``(*some inputs, *some kept values, *cotangents)`` to the gradients that exist.
        reads: the positions of those inputs.
        kept: the positions of those kept values.
        present: per input, whether a gradient reaches it.
    """

    graph: Graph
    reads: tuple[int, ...]
    kept: tuple[int, ...]
    present: Mask


def kept_by(graph: Graph, policy: Policy) -> Kept:
    """Return the values of a graph that a checkpoint keeps."""
    key = ("checkpoint", policy)
    kept = graph.executables.get(key)
    if kept is None:
        kept = graph.executables[key] = _kept_by(graph, policy)
    return kept


def _kept_by(graph: Graph, policy: Policy) -> Kept:
    if policy == "nothing":
        return Kept((), graph)
    given = tuple([is_differentiable(spec.dtype) for spec in graph.output_specs])
    joint = differentiate_anew(graph, given, (True,) * len(graph.inputs))
    edges = {
        (node, output): (position, output)
        for position, node in enumerate(joint.forward_nodes)
        for output in range(len(node.outputs))
    }
    kept = kept_nodes(policy, joint.forward_nodes)
    needed = _needed(joint, {edge for edge in edges if edge[0] in kept and not edge[0].op.has("source")})
    inputs, outputs = joint.graph.inputs[: len(graph.inputs)], joint.forward + tuple(needed)
    forward = Graph(graph.name, inputs, joint.forward_nodes, outputs, graph.dims)
    return Kept(tuple([edges[edge] for edge in needed]), forward)


def _needed(joint: GradientGraph, stops: set[Edge]) -> list[Edge]:
    """Return the edges among `stops` that the gradients need directly: a search from the gradients ends at them."""
    needed: dict[Edge, None] = {}
    seen: set[Any] = set()
    stack = list(joint.graph.outputs)
    while stack:
        edge = stack.pop()
        if edge in stops:
            needed[edge] = None
        elif edge[0] not in seen:
            seen.add(edge[0])
            stack.extend([one for one in edge[0].inputs if one is not None])
    order = {node: index for index, node in enumerate(joint.forward_nodes)}
    return sorted(needed, key=lambda edge: (order[edge[0]], edge[1]))


def backward_of(graph: Graph, policy: Policy, given: Mask, wanted: Mask) -> Backward:
    """Return the backward pass of a checkpoint for given cotangents and wanted gradients."""
    key = ("checkpoint_backward", policy, given, wanted)
    backward = graph.executables.get(key)
    if backward is None:
        backward = graph.executables[key] = _backward_of(graph, policy, given, wanted)
    return backward


def _backward_of(graph: Graph, policy: Policy, given: Mask, wanted: Mask) -> Backward:
    joint = differentiate_anew(graph, given, wanted)
    count = len(graph.inputs)
    kept_edges = kept_by(graph, policy).places
    edges: list[Edge] = [(joint.forward_nodes[position], output) for position, output in kept_edges]
    used = set(_needed(joint, set(edges)))
    kept = tuple([index for index, edge in enumerate(edges) if edge in used])
    inputs: list[Edge] = [(node, 0) for node in joint.graph.inputs]
    whole = graph_from(joint.graph, [*inputs[:count], *[edges[i] for i in kept], *inputs[count:]])
    whole = silenced(whole)
    read = {edge[0] for edges in (whole.outputs, *[node.inputs for node in whole.nodes]) for edge in edges if edge}
    reads = tuple([index for index in range(count) if whole.inputs[index] in read])
    rest = whole.inputs[count:]
    backward = Graph(whole.name, (*[whole.inputs[i] for i in reads], *rest), whole.nodes, whole.outputs, graph.dims)
    return Backward(backward, reads, kept, joint.present)


# -- the operation that runs again --------------------------------------------------------------------------------


def _one_or_all(outputs: Sequence[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _lower(*xs: Any, graph: Graph, policy: Policy, after: int, residuals: bool = False) -> Any:
    del after
    return _one_or_all(lower_graph(kept_by(graph, policy).forward if residuals else graph)(*xs))


def _infer(*specs: Any, graph: Graph, policy: Policy, after: int, residuals: bool = False) -> Any:
    del after
    require_inputs("checkpoint", graph, specs)
    return _one_or_all((kept_by(graph, policy).forward if residuals else graph).output_specs)


def _hidden(attrs: dict[str, Any]) -> int:
    return len(kept_by(attrs["graph"], attrs["policy"]).places)


def _exposed(attrs: dict[str, Any]) -> dict[str, Any]:
    return {**attrs, "graph": kept_by(attrs["graph"], attrs["policy"]).forward, "policy": "nothing"}


def _vjp(F: Any, g: Any, y: Any, *xs: Any, wanted: Mask, graph: Graph, policy: Policy, after: int) -> list[Any]:
    del after
    gs = list(g) if isinstance(g, tuple) else [g]
    backward = backward_of(graph, policy, tuple([one is not None for one in gs]), wanted)
    if not any(backward.present):
        return [None] * len(xs)
    kept = y[len(graph.outputs) :] if isinstance(y, tuple) else ()
    inputs = [*[xs[i] for i in backward.reads], *[kept[i] for i in backward.kept]]
    given = [one for one in gs if one is not None]
    gradients = F.checkpoint(*inputs, *given, graph=backward.graph, policy="nothing", after=len(given))
    several = iter(gradients if isinstance(gradients, tuple | list) else (gradients,))
    return [next(several) if present else None for present in backward.present]


def run_checkpoint(*xs: Any, graph: Graph, policy: Policy, after: int) -> Any:
    """Run a graph as one operation that keeps the values which a policy names for its gradient.

    Args:
        *xs: one tensor per input of the graph.
        graph: the graph.
        policy: the policy.
        after: for a backward pass, the number of trailing inputs (cotangents) that it must wait for; else 0.
    """
    return bind(CHECKPOINT, xs, {"graph": graph, "policy": policy, "after": after})


CHECKPOINT = register(
    Op(
        "checkpoint",
        No("eager checkpoints run the function again"),
        _lower,
        _infer,
        Joint(_vjp),
        flops=Bodies(lambda *, graph, policy, after, residuals=False: (Body(graph),)),  # pyright: ignore
        saves=Saves(x="all", hidden=_hidden, expose=_exposed, depends=lambda *, graph, **_: of_graph(graph)),  # pyright: ignore
        samples=_TESTED,
        traits=frozenset({"nested", "inline"}),
        public=run_checkpoint,
        onnx=lambda o, *xs, graph, **_: o.inline(graph, xs),  # pyright: ignore[reportUnknownLambdaType]
    )
)

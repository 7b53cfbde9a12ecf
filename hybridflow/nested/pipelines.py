"""The operations of `hf.distribute.pipeline`: stages on the devices along a mesh axis, micro-batch by micro-batch.

One operation computes the loss, another one the loss and the gradients, since a schedule that runs a backward pass
early must mix both. If a program asks for both, `passes.one_pipeline` leaves the second one only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from hybridflow.autodiff.transform import Mask, differentiate_anew, graph_from
from hybridflow.core.dispatch import bind, run_raw
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import silenced
from hybridflow.ir.evaluate import evaluate
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.pipeline_buffers import Buffers, Plan
from hybridflow.nested.pipeline_programs import run_plainly, run_program
from hybridflow.nested.schedules import Schedule

_TESTED = No("made by hf.distribute.pipeline; tested with it")
_ONNX = No("ONNX has no devices")
_BOOL = np.dtype(bool)


class Stages(NamedTuple):
    """The forward and backward graphs of stages.

    Attributes:
        forward: per stage, a graph from ``(*activations, *what it reads)`` to
            ``(*results, *checks, *new values, *residuals)``.
        backward: per stage, a graph from ``(*what it reads, *residuals, *cotangents of results)`` to gradients.
        present: per stage, which of the activations and of what it reads have a gradient.
    """

    forward: tuple[Graph, ...]
    backward: tuple[Graph, ...]
    present: tuple[Mask, ...]


def _split(
    graph: Graph, activations: int, results: int, kept_out: Sequence[bool], assigned: Sequence[bool], wanted: Mask
) -> Any:
    """Return a stage's forward graph with residuals, its backward graph, and which gradients exist.

    What depends only on values that all micro-batches share, such as a transposed weight, is no residual: the backward
    graph computes it again, or else there would be a copy per micro-batch.

    Args:
        graph: the stage.
        activations: the number of inputs that come from the stage before.
        results: the number of outputs that the next stage takes.
        kept_out: per further input, whether all micro-batches share it.
        assigned: per further input, whether the stage assigns it: the next micro-batch finds another value there.
        wanted: which inputs' gradients are wanted.
    """
    given = tuple([
        index < results and is_differentiable(spec.dtype) for index, spec in enumerate(graph.output_specs)
    ])
    joint = differentiate_anew(graph, given, wanted)
    inputs = joint.graph.inputs[: len(graph.inputs)]
    before = {*joint.forward_nodes, *inputs}
    own: set[Node] = {node for node, shared in zip(inputs, [False] * activations + list(kept_out), strict=True)
                      if not shared}
    for node in joint.forward_nodes:
        if any([edge[0] in own for edge in edges_of(node)]):
            own.add(node)
    readable = {node for node, other in zip(inputs[activations:], assigned, strict=True) if not other}
    residuals: dict[Edge, None] = {}
    later = [node for node in joint.graph.nodes if node not in before]
    for edges in (*map(edges_of, later), joint.graph.outputs):
        residuals.update({edge: None for edge in edges if edge[0] in own and edge[0] not in readable})
    taken: list[Edge] = [(node, 0) for node in inputs[activations:]]
    cotangents: list[Edge] = [(node, 0) for node in joint.graph.inputs[len(inputs) :]]
    backward = silenced(graph_from(joint.graph, [*taken, *residuals, *cotangents]))
    forward = Graph(graph.name, inputs, joint.forward_nodes, (*joint.forward, *residuals), graph.dims)
    return forward, backward, joint.present


def _stages(plan: Plan, wanted: Mask) -> Stages:
    made: list[Any] = []
    for number, graph in enumerate(plan.stages):
        activations = len(graph.inputs) - len(plan.reads[number])
        own = (*[True] * activations, *[wanted[index] for index in plan.reads[number]])
        assigned = [index in plan.assigns[number] for index in plan.reads[number]]
        shared = [index >= plan.cut and index not in plan.assigns[number] for index in plan.reads[number]]
        key = ("pipeline", activations, tuple(shared), tuple(assigned), own)
        if key not in graph.executables:
            graph.executables[key] = _split(graph, activations, plan.results(number), shared, assigned, own)
        made.append(graph.executables[key])
    return Stages(*[tuple(one) for one in zip(*made, strict=True)])


def _plan(attrs: dict[str, Any]) -> Plan:
    return Plan(**{name: attrs[name] for name in Plan._fields})


def schedule_of(node: Node) -> Schedule:
    """Return the schedule by which a pipeline's node runs."""
    return _plan(node.attrs).table(forward_only=node.op is PIPELINE)


def buffer_bytes(node: Node, parts: Callable[[Node, tuple[int, ...]], int] | None) -> int:
    """Return the bytes of what a device keeps while a pipeline's node runs: values on their way, residuals, weights.

    Args:
        node: the node.
        parts: a function from a node, and the shape of a value that it computes, to the number of its parts on a mesh.
    """
    plan = _plan(node.attrs)
    return 0 if plan.mesh is None else Buffers(plan, node.op is PIPELINE_GRADIENT).bytes(parts)


def _loss_specs(plan: Plan) -> list[TensorSpec]:
    loss = plan.stages[-1].output_specs[0]
    given: list[TensorSpec] = []
    for number, graph in enumerate(plan.stages):
        _, first, last = plan.ends(number)
        given += graph.output_specs[first:last]
    return [make_spec((), loss.dtype), *[make_spec((), _BOOL)] * sum(plan.checks), *given]


def _one_or_all(outputs: Sequence[Any]) -> Any:
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


def _infer(*specs: Any, **attrs: Any) -> Any:
    del specs
    return _one_or_all(_loss_specs(_plan(attrs)))


def _infer_gradient(g: Any, *specs: Any, given: Mask, **attrs: Any) -> Any:
    del g
    wanted = [spec for spec, has in zip(specs, given, strict=True) if has]
    return tuple([*_loss_specs(_plan(attrs)), *[make_spec(one.shape, one.dtype) for one in wanted]])


def _lower(*xs: Any, **attrs: Any) -> Any:
    return _one_or_all(run_program(_plan(attrs), xs))


def _lower_gradient(g: Any, *xs: Any, given: Mask, backward: Any, present: Any, **attrs: Any) -> Any:
    return tuple(run_program(_plan(attrs), xs, backward, present, given, g))


def _run(graph: Graph, values: Sequence[Any]) -> Sequence[Any]:
    arrays = [np.asarray(value) for value in values]  # NumPy's arithmetic turns arrays of shape () into numbers
    return evaluate(graph, arrays, lambda node, xs, attrs: run_raw(node.op, xs, attrs))


def _kernel(*xs: Any, **attrs: Any) -> Any:
    return _one_or_all([np.asarray(one) for one in run_plainly(_plan(attrs), xs, _run)])


def _kernel_gradient(g: Any, *xs: Any, given: Mask, backward: Any, present: Any, **attrs: Any) -> Any:
    return tuple([np.asarray(one) for one in run_plainly(_plan(attrs), xs, _run, backward, present, given, g)])


def _vjp(F: Any, g: Any, y: Any, *xs: Any, wanted: Mask, **attrs: Any) -> list[Any]:
    del y
    plan = _plan(attrs)
    cotangent = g[0] if isinstance(g, tuple) else g
    stages = _stages(plan, wanted)
    given = [False] * len(xs)
    for number, (reads, present) in enumerate(zip(plan.reads, stages.present, strict=True)):
        activations = len(plan.stages[number].inputs) - len(reads)
        for index, has in zip(reads, present[activations:], strict=True):
            given[index] |= has
    if cotangent is None or not any(given):
        return [None] * len(xs)
    made = F.pipeline_gradient(
        cotangent, *xs, **{**attrs, "stages": stages.forward}, backward=stages.backward, present=stages.present,
        given=tuple(given),
    )
    gradients = iter(made[1 + sum(plan.checks) + sum(map(len, plan.assigns)) :])
    return [next(gradients) if has else None for has in given]


def run_pipeline(*xs: Any, **attrs: Any) -> Any:
    """Compute the mean loss of stages on the devices along a mesh axis; the attributes are those of `Plan`."""
    return bind(PIPELINE, xs, attrs)


def run_pipeline_gradient(g: Any, *xs: Any, **attrs: Any) -> Any:
    """Compute the mean loss and its gradients, times `g`; the attributes are those of `Plan` and `Stages`."""
    return bind(PIPELINE_GRADIENT, (g, *xs), attrs)


def _bodies(*, stages: tuple[Graph, ...], microbatches: int, backward: tuple[Graph, ...] = (), **_: Any) -> Any:
    return tuple([Body(graph, microbatches) for graph in (*stages, *backward)])


PIPELINE = register(
    Op(
        "pipeline",
        _kernel,
        _lower,
        _infer,
        Joint(_vjp),
        flops=Bodies(_bodies),
        saves=Saves(x="all"),
        samples=_TESTED,
        traits=frozenset({"nested", "inner", "stages"}),
        public=run_pipeline,
        onnx=_ONNX,
    )
)
PIPELINE_GRADIENT = register(
    Op(
        "pipeline_gradient",
        _kernel_gradient,
        _lower_gradient,
        _infer_gradient,
        No("a pipeline on a mesh has first-order gradients; compile the function without mesh= for higher ones"),
        flops=Bodies(_bodies),
        samples=_TESTED,
        traits=frozenset({"nested", "inner", "stages"}),
        public=run_pipeline_gradient,
        onnx=_ONNX,
    )
)

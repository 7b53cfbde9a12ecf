"""Recording a compiled call: one node on the tape, whose rule is a compiled backward graph."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import Event
from typing import Any

import jax.numpy as jnp
import numpy as np

from hybridflow.autodiff.dependence import of_graph
from hybridflow.autodiff.graph_ops import graph_pullback
from hybridflow.autodiff.no_gradient import require_gradients
from hybridflow.autodiff.transform import Mask, SplitGradient, reached_inputs, split_gradient, zero_cotangents
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import GradientError
from hybridflow.core.node import Edge, Node, make_node
from hybridflow.core.op import No, Op, Saves
from hybridflow.core.profiling import PROFILER
from hybridflow.core.spec import TensorSpec
from hybridflow.core.tensor import Tensor
from hybridflow.ir.builder import ASSIGN, REREAD
from hybridflow.ir.effects import silenced
from hybridflow.ir.evaluate import lower_graph
from hybridflow.ir.graph import Graph, clone_node
from hybridflow.passes import ON_A_MESH, run_passes
from hybridflow.xla.executable import Executable, compile_graph, concrete_specs
from hybridflow.xla.placing import Placing, input_shardings, output_shardings


def graph_to_record(graph: Graph, assignments: Mapping[Node, Node], outputs: int) -> Graph:
    """Return the graph whose gradients are those of an eager run.

    In eager mode, a tape treats every read of a Variable, before and after an assignment, as the Variable. The final
    value of a Variable is no output.

    Args:
        graph: the graph as it was traced.
        assignments: maps each node that assigns a Variable to the input that holds the Variable's first value.
        outputs: the number of the graph's outputs that the user's function returned.
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


Note = Callable[[str, Executable], None]
"""A function that is called with each compiled program and what it computes: ``results`` or ``gradients``."""


def gradient_op(
    graph: Graph, wanted: Mask, device: Any, sizes: dict[str, int], note: Note, placing: Placing | None = None,
    asked: Event | None = None,
) -> Op:
    """Return the op of recorded calls of a graph; ``op.jitted["forward"]`` runs it.

    A part of the graph may have no gradient, such as a loop with an unknown number of steps. It is an error only to ask
    for a gradient through that part.

    Args:
        graph: the result of `graph_to_record`.
        wanted: for each input, whether its gradient may be asked for.
        device: the jax device to run on; jax's default one if None.
        sizes: the size of each symbol.
        note: called with what each program is for, when it is compiled.
        placing: how the graph's inputs and outputs lie on a mesh; None for one device.
        asked: given if a gradient will hardly be asked for: calls keep nothing for it, and the first that is asked for
            one computes its values again and sets the event.
    """
    if asked is None:
        try:
            return _split_op(graph, wanted, device, sizes, note, placing)
        except GradientError:
            asked = Event()
    return _on_demand_op(graph, wanted, device, sizes, note, placing, asked)


def _split_op(
    graph: Graph, wanted: Mask, device: Any, sizes: dict[str, int], note: Note, placing: Placing | None
) -> Op:
    """Return the op whose backward graph reads residuals of the forward graph."""
    split = split_gradient(graph, wanted)
    pipeline = None if placing is None else ON_A_MESH
    forward, _ = run_passes(split.forward, pipeline=pipeline, differentiable=False)
    backward, _ = run_passes(split.backward, pipeline=pipeline, differentiable=False)
    require_gradients(backward)
    forward_placing = None if placing is None else placing.with_outputs((*placing.outputs, *[None] * split.residuals))
    executable = compile_graph(forward, sizes=sizes, device=device, placing=forward_placing)
    note("results", executable)
    backward_placing = None if placing is None else _of_backward(placing, split, executable)
    rule = Recorded(graph, split._replace(backward=backward), sizes, device, note, backward_placing)
    call = _timed_if_profiled(rule, "forward", forward, executable, forward_placing)
    return op_of(graph, forward, rule, call, split.residuals)


def _of_backward(placing: Placing, split: SplitGradient, executable: Executable) -> Placing:
    """Return how the inputs and outputs of a backward graph lie: as the forward program left them."""
    given = input_shardings(executable)
    shardings = output_shardings(executable)
    cotangents = [one for one, has in zip(shardings, split.given, strict=False) if has]
    inputs = (*[given[index] for index in split.reads], *shardings[len(split.given) :], *cotangents)
    gradients = [
        None if index in placing.batch else layout or ()
        for index, (layout, present) in enumerate(zip(placing.inputs, split.present, strict=True))
        if present
    ]
    return Placing(placing.mesh, inputs, tuple(gradients))


def _on_demand_op(
    graph: Graph, wanted: Mask, device: Any, sizes: dict[str, int], note: Note, placing: Placing | None, asked: Event
) -> Op:
    """Return the op that derives gradients only when they are asked for, of the outputs of which they are asked."""
    forward, _ = run_passes(graph, pipeline=None if placing is None else ON_A_MESH, differentiable=False)
    executable = compile_graph(forward, sizes=sizes, device=device, placing=placing)
    note("results", executable)
    rule = _OnDemandRule(graph, wanted, sizes, device, note, placing, asked)
    return op_of(graph, forward, rule, _timed_if_profiled(rule, "forward", forward, executable, placing), 0)


def op_of(graph: Graph, forward: Graph, rule: Recorded | _OnDemandRule, call: Callable[..., Any], residuals: int) -> Op:
    """Return the op of recorded calls of a graph.

    Args:
        graph: the graph.
        forward: the graph that also returns the residuals.
        rule: the gradient rule.
        call: runs the forward graph on bare arrays.
        residuals: the number of residuals.
    """
    op = Op(
        name=graph.name,
        kernel=No("compiled"),
        lower=lower_graph(forward, rule.sizes),
        infer=_recorded_infer(graph),
        vjp=rule.rule,
        saves=Saves(x="all", hidden=residuals, depends=lambda *, graph, **_: of_graph(graph)),  # pyright: ignore
        traits=frozenset({"nested"}),
    )
    op.jitted["forward"] = call
    op.jitted["rule"] = rule.compiled
    return op


def _timed_if_profiled(
    rule: Recorded | _OnDemandRule, part: Hashable, graph: Graph, executable: Executable, placing: Placing | None
) -> Callable[..., Any]:
    """Return the call of a compiled graph that reports to `hf.profile` inside its block."""

    def run(*arrays: Any) -> Any:
        profiler = PROFILER.get()
        if profiler is None or not profiler.records():
            return executable.call(*arrays)  # this also keeps the executable alive for its record
        made = profiler.compiled(
            rule, part, graph.name, rule.device,
            lambda: compile_graph(graph, sizes=rule.sizes, device=rule.device, placing=placing),
        )
        return made.call(*arrays)

    return run


def _recorded_infer(graph: Graph) -> Callable[..., Any]:
    def infer(*specs: TensorSpec, **attrs: Any) -> Any:
        del specs, attrs
        return graph.output_specs

    return infer


class Recorded:
    """The gradient rule of a recorded call.

    Args:
        graph: the graph that is called.
        split: its forward graph, and its backward graph after the passes.
        sizes: the size of each symbol.
        device: the jax device to run on.
        note: as `gradient_op` takes it.
        placing: how the inputs and outputs of the backward graph lie on a mesh; None for one device.
    """

    def __init__(
        self, graph: Graph, split: SplitGradient, sizes: dict[str, int], device: Any, note: Note,
        placing: Placing | None = None,
    ) -> None:
        self.graph = graph
        self.placing = placing
        self.split = split
        self.sizes = sizes
        self.device = device
        self.note = note
        self.outputs = concrete_specs(graph.output_specs, sizes)
        self.executables: dict[Sequence[bool], Callable[..., Any]] = {}
        self.lowered = lower_graph(split.backward, sizes)

    def rule(self, F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> list[Any]:
        """Return every input's gradient: for jax values by the backward graph, for tensors by a recorded call."""
        del attrs
        gs = list(g) if isinstance(g, tuple) else [g]
        if any(isinstance(value, Tensor) for value in (*xs, *gs)):
            return graph_pullback(F, self.graph, xs, gs, self.split.present)
        visible = len(self.graph.outputs)
        residuals = self.residuals(y[visible:]) if isinstance(y, tuple) else ()
        return self._by_input(self.lowered(*self._arguments(gs, residuals, xs, jnp.full)), self.split.present, gs)

    def compiled(self, g: Any, args: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Return the wanted gradients of a call's inputs, from bare arrays, by the compiled backward graph.

        Args:
            g: the cotangents.
            args: the call's outputs and its inputs.
            wanted: for each input, whether its gradient is wanted.
        """
        gs = list(g) if isinstance(g, tuple) else [g]
        y, *xs = args
        asked = tuple([want and present for want, present in zip(wanted, self.split.present, strict=True)])
        call = self.executables.get(asked)
        if call is None:
            call = self.executables[asked] = self.compile(asked)
        residuals = y[len(self.graph.outputs) :] if isinstance(y, tuple) else ()
        return self._by_input(call(*self._arguments(gs, residuals, xs, np.full)), asked, gs)

    def residuals(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return the residuals of the forward program in the sizes of the call."""
        return values

    def compile(self, asked: Sequence[bool]) -> Callable[..., Any]:
        """Compile the part of the backward graph that computes the wanted gradients (the forward graph checks)."""
        backward, placing = asked_part(self.split, asked), self.placing
        if placing is not None:
            wanted = [want for want, present in zip(asked, self.split.present, strict=True) if present]
            placing = placing.some_outputs(wanted)
        if backward is not self.split.backward:
            pipeline = None if placing is None else ON_A_MESH
            backward, _ = run_passes(backward, pipeline=pipeline, differentiable=False)
        executable = compile_graph(backward, sizes=self.sizes, device=self.device, placing=placing)
        self.note("gradients", executable)
        return _timed_if_profiled(self, asked, backward, executable, placing)

    def _arguments(
        self, gs: Sequence[Any], residuals: Sequence[Any], xs: Sequence[Any], full: Callable[..., Any]
    ) -> list[Any]:
        """Return the arguments of the backward graph."""
        cotangents = zero_cotangents(self.split.given, gs, self.outputs, full)
        return [*[xs[i] for i in self.split.reads], *residuals, *cotangents]

    def _by_input(self, gradients: Iterable[Any], computed: Sequence[bool], gs: list[Any]) -> list[Any]:
        """Return the gradients in the order of the inputs, None where there is none."""
        gradients_ = iter(gradients)
        placed = [next(gradients_) if one else None for one in computed]
        if all(one is not None for one in gs):
            return placed
        # Outputs without a gradient were given zeros; inputs that reach only those outputs have no gradient either.
        reached = reached_inputs(self.graph, tuple([one is not None for one in gs]))
        return [one if reach else None for one, reach in zip(placed, reached, strict=True)]


def asked_part(split: SplitGradient, asked: Sequence[bool]) -> Graph:
    """Return the part of a backward graph that computes the gradients of some inputs."""
    backward, positions = split.backward, [i for i, present in enumerate(split.present) if present]
    outputs = [edge for edge, i in zip(backward.outputs, positions, strict=False) if asked[i]]
    if len(outputs) == len(backward.outputs):
        return backward
    return Graph(backward.name, backward.inputs, backward.nodes, tuple(outputs), backward.dims)


class _OnDemandRule:
    """The gradient rule of recorded calls that keep nothing for it: some gradients do not exist, or none is expected.

    Args:
        graph: the graph that is called.
        wanted: for each input, whether its gradient may be asked for.
        sizes: the size of each symbol.
        device: the jax device to run on.
        note, placing: as `gradient_op` takes it.
        asked: set when a gradient is asked for.
    """

    def __init__(
        self, graph: Graph, wanted: Mask, sizes: dict[str, int], device: Any, note: Note, placing: Placing | None,
        asked: Event,
    ) -> None:
        self.asked = asked
        self.graph = graph
        self.placing = placing
        self.wanted = wanted
        self.sizes = sizes
        self.device = device
        self.note = note
        self.ops: dict[tuple[Mask, Mask], Op] = {}

    def rule(self, F: Any, g: Any, y: Any, *xs: Any, **attrs: Any) -> list[Any]:
        """Return every input's gradient, by a call of the graph.

        Raises: GradientError: the gradient leads through an operation that has none.
        """
        del y, attrs
        return graph_pullback(F, self.graph, xs, list(g) if isinstance(g, tuple) else [g], self.wanted)

    def compiled(self, g: Any, args: Sequence[Any], wanted: Sequence[bool]) -> list[Any]:
        """Do the same as `Recorded.compiled`, but recompute the values that the backward graph reads.

        Raises: GradientError: a wanted gradient leads through an operation that has none.
        """
        self.asked.set()
        gs = list(g) if isinstance(g, tuple) else [g]
        xs = args[1:]
        given = tuple([one is not None for one in gs])
        asked = tuple([want and may for want, may in zip(wanted, self.wanted, strict=True)])
        op = self.ops.get((given, asked))
        if op is None:
            outputs = tuple([edge for edge, has in zip(self.graph.outputs, given, strict=True) if has])
            subgraph = Graph(self.graph.name, self.graph.inputs, self.graph.nodes, outputs, self.graph.dims)
            placing = self.placing
            if placing is not None:
                placing = placing.some_outputs(given)
            op = _split_op(silenced(subgraph), asked, self.device, self.sizes, self.note, placing)
            self.ops[given, asked] = op
        made = tuple(op.jitted["forward"](*xs))
        cotangents = tuple([one for one in gs if one is not None])
        return op.jitted["rule"](cotangents, (made, *xs), asked)

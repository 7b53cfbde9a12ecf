"""`pipeline`: a model's stages on different devices, which work on different micro-batches at the same time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import jax

from hybridflow.autodiff.graph_ops import inline
from hybridflow.autodiff.namespaces import PUBLIC
from hybridflow.core.context import current
from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.errors import ArgumentError, ArgumentTypeError, DTypeError, LayoutError, ShapeError, TraceError
from hybridflow.core.functions import as_traced
from hybridflow.core.mesh import Layout, Mesh
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import REGISTRY
from hybridflow.core.spec import make_spec
from hybridflow.core.tensor import Tensor, as_tensor, make_tensor
from hybridflow.core.variable import Variable
from hybridflow.ir.builder import ASSIGN, REREAD, Check, GraphBuilder, Traced, trace_with_variables
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.ir.variables import VariableState
from hybridflow.nested.bodies import add_checks, assign_around, bind_all, tracer_now, value_around
from hybridflow.nested.checkpoint_graphs import CHECKPOINT
from hybridflow.nested.pipelines import PIPELINE
from hybridflow.nested.scans import scan
from hybridflow.nested.schedules import SCHEDULES, pipeline_schedule
from hybridflow.ops.draws import random_advance

_CALLS = itertools.count()
"""Numbers that tell the pipelines of a program apart."""


def pipeline(
    stages: Sequence[Callable[[Any], Any]],
    x: Any,
    *targets: Any,
    loss: Callable[..., Any],
    axis: str = "stage",
    microbatches: int = 16,
    schedule: str = "1f1b",
) -> Tensor:
    """Return the mean loss of a model in stages, over the micro-batches of a batch.

    Compiled for a mesh with the axis, stage `s` runs on the devices at ``s % size`` along it, and devices work on
    different micro-batches at the same time, as `pipeline_schedule` says. Without a mesh, and in eager code, it is a
    plain loop over micro-batches and stages, with the same result. Gradients are taken as ever. On a mesh they are
    computed together with the loss; there are no second ones.

    Weights that `shard` splits over the axis (``fsdp="stage"``) stay in parts, with their optimizer's slots: a device
    gets those of its own stages for a step, and sends the parts of their gradients back.

    Stages may differ, and so may their values' shapes, at the price of buffers for all of them on every device. Other
    axes of the mesh split batches and weights as in any function. Variables that stages share get the sum of gradients.

    Args:
        stages: functions or modules, each of the value (a tensor or a structure of them) that the one before returns.
            They may draw random numbers, the same ones as in the loop. On a mesh, a Variable that a stage assigns is
            for this stage alone.
        x: the first stage's batch, a tensor or a structure of them. Micro-batch `i` has the rows
            ``i, i + microbatches, ...`` of axis 0.
        *targets: what `loss` takes besides the last stage's value, cut in the same way.
        loss: a function of the last stage's value and the targets that returns a floating-point scalar.
        axis: the mesh axis.
        microbatches: the number of micro-batches.
        schedule: ``"gpipe"``, ``"1f1b"``, or ``"interleaved"`` for several stages on each device.

    Returns:
        The mean of the micro-batches' losses, of shape ().

    Raises:
        ShapeError: the batch cannot be cut into equal micro-batches, or the loss is no scalar.
        DTypeError: the loss is not floating-point.
        ArgumentError: an unknown schedule, no stage, a number of micro-batches below 1, or a number of stages that
            does not suit the mesh and the schedule.
        LayoutError: the mesh of the compiled function has no such axis, or the call is inside `hf.shard_map`.
        TraceError: on a mesh, a stage assigns a Variable that another one uses, or draws from a generator in a branch
            or loop while others draw from it too.

    Example:
        >>> import hybridflow as hf
        >>> stages = [hf.nn.Linear(4, 8), hf.nn.Linear(8, 1)]
        >>> def loss(y, target):
        ...     return hf.mean((y - target) ** 2)
        >>> def step(x, y):
        ...     return hf.distribute.pipeline(stages, x, y, loss=loss, microbatches=4)
        >>> step(hf.ones((8, 4)), hf.ones((8, 1))).shape
        ()

    Reference:
        Huang et al., "GPipe", 2019; Narayanan et al., "PipeDream", 2019, and "Efficient large-scale language model
        training on GPU clusters using Megatron-LM", 2021.
    """
    stages = list(stages)
    if not stages or not all(map(callable, (*stages, loss))):
        raise ArgumentError("pipeline: stages are a list of functions, and loss is one", got=f"{stages!r}"[:80],
                            hint="Pass modules, or functions of one value.")
    if schedule not in SCHEDULES:
        raise ArgumentError(f"pipeline: schedule={schedule!r} is not one of {list(SCHEDULES)}")
    batch, tree = jax.tree_util.tree_flatten((x, targets))
    rows = _checked_rows([as_tensor(leaf) for leaf in batch], microbatches)
    mesh = _mesh(axis)
    if mesh is None:
        return _one_by_one(stages, rows, tree, loss, microbatches)
    pipeline_schedule(schedule, len(stages), microbatches, devices=mesh.shape[axis])
    return _on_mesh(stages, rows, tree, loss, {
        "mesh": mesh, "axis": axis, "microbatches": microbatches, "schedule": schedule,
        "rows": _row_axes(mesh, axis, rows[0].shape[0], microbatches),
    })


def _mesh(axis: str) -> Mesh | None:
    """Return the mesh of the compiled function that is being traced, if there is one."""
    tracer = cast("GraphBuilder | None", current().tracer)
    mesh = None if tracer is None else tracer.mesh
    if tracer is not None and tracer.manual is not None:
        raise LayoutError("pipeline: it cannot run inside hf.shard_map, whose parts have a device already",
                          hint="Call it in the compiled function itself.")
    if mesh is not None and axis not in mesh.shape:
        raise LayoutError(f"pipeline: the mesh has no axis {axis!r}", got=str(mesh),
                          hint=f"Pass axis=, one of {', '.join(mesh.axes)}, or make the mesh with it.")
    return mesh


def _row_axes(mesh: Mesh, axis: str, size: int, microbatches: int) -> tuple[str, ...]:
    """Return the other axes of the mesh over which the arguments of as many rows are split, if they divide the rows."""
    given = cast("GraphBuilder", current().tracer).row_axes.get(size, ())
    axes = tuple([name for name in given if name != axis and mesh.shape[name] > 1])
    return axes if size // microbatches % mesh.parts(axes) == 0 else ()


def _checked_rows(batch: list[Tensor], microbatches: Any) -> list[Tensor]:
    if type(microbatches) is not int:
        raise ArgumentTypeError(f"pipeline: microbatches is a {type(microbatches).__name__}",
                                got=repr(microbatches)[:80], hint="Give an integer.")
    if microbatches < 1:
        raise ArgumentError(f"pipeline: microbatches={microbatches}", hint="Give 1 or more.")
    for tensor in batch:
        if not tensor.shape or tensor.shape[0] != batch[0].shape[0]:
            raise ShapeError(
                "pipeline: leading sizes differ in the batch", got=", ".join([str(one.spec) for one in batch]),
                hint="Give x and all targets one row per example; other values can be read by loss directly."
            )
    size = batch[0].shape[0] if batch else 0
    if size % microbatches or not size:
        raise ShapeError(f"pipeline: a batch of {size} cannot be cut into {microbatches} equal micro-batches",
                         got=str(batch[0].spec) if batch else "no tensors",
                         hint="Choose a divisor of the batch's size for microbatches=, or pad the batch.")
    return batch


def _checked_loss(value: Any) -> Tensor:
    leaves = jax.tree_util.tree_leaves(value)
    tensor = as_tensor(leaves[0]) if len(leaves) == 1 else None
    if tensor is None or tensor.shape != ():
        got = ", ".join([str(as_tensor(leaf).spec) for leaf in leaves])
        raise ShapeError("pipeline: loss must return one scalar", got=got or "nothing", hint="Reduce it with hf.mean.")
    if not is_differentiable(tensor.dtype):
        raise DTypeError(f"pipeline: loss returned {tensor.dtype}", got=str(tensor.spec),
                         hint="Return a floating-point number.")
    return tensor


def _one_by_one(stages: list[Any], rows: list[Tensor], tree: Any, loss: Any, microbatches: int) -> Tensor:
    losses: list[Tensor] = []
    for number in range(microbatches):
        value, targets = jax.tree_util.tree_unflatten(tree, [one[number::microbatches] for one in rows])
        for stage in stages:
            value = as_traced(stage)(value)
        losses.append(_checked_loss(as_traced(loss)(value, *targets)))
    return PUBLIC.mean(PUBLIC.stack(losses))


def _on_mesh(stages: list[Any], rows: list[Tensor], tree: Any, loss: Any, attrs: dict[str, Any]) -> Tensor:
    """Trace the stages one after the other, and bind the operation that runs them."""
    traced, own_rows, arguments = _traced(stages, rows, tree, loss, attrs["microbatches"])
    made = with_states(traced, arguments, attrs["microbatches"])
    cut = [*rows, *[state for stage in made for state in stage.states]]
    shared = _Read(len(cut), attrs["mesh"], attrs["axis"])
    reads: list[tuple[int, ...]] = []
    assigns: list[tuple[int, ...]] = []
    first = len(rows)
    for stage, split in zip(made, own_rows, strict=True):
        positions, assigned = shared.add(stage)
        reads.append((*split, *range(first, first + len(stage.states)), *positions))
        assigns.append(tuple(assigned))
        first += len(stage.states)
    checks: list[Check] = [check for one in traced for check in one.checks]
    outputs = bind_all(PIPELINE, [*cut, *shared.tensors], {
        "stages": tuple([stage.graph for stage in made]), "reads": tuple(reads), "cut": len(cut),
        "draws": len(cut) - len(rows),
        "checks": tuple([len(one.checks) for one in traced]), "assigns": tuple(assigns),
        "layouts": (*[None] * len(cut), *shared.layouts), "call": next(_CALLS), **attrs,
    })
    last = 1 + len(checks)
    add_checks(checks, outputs[1:last])
    assign_around([state.variable for stage in made for state in stage.assigned], outputs[last:])
    return outputs[0]


def _traced(stages: list[Any], rows: list[Tensor], tree: Any, loss: Any, microbatches: int) -> Any:
    """Return each stage as it was traced, the rows that it reads, and the number of its activations and rows."""
    parts = [make_spec((one.shape[0] // microbatches, *one.shape[1:]), one.dtype) for one in rows]
    sizes = jax.tree_util.tree_unflatten(tree, parts)
    count = len(jax.tree_util.tree_leaves(sizes[0]))
    graphs: list[Traced] = []
    split: list[tuple[int, ...]] = []
    arguments: list[int] = []
    value_tree, specs = jax.tree_util.tree_structure(sizes[0]), parts[:count]
    for number, stage in enumerate(stages):
        is_first, is_last = number == 0, number == len(stages) - 1
        own = [*specs, *(parts[count:] if is_last else [])]
        split.append((*(range(count) if is_first else []), *(range(count, len(rows)) if is_last else [])))
        body = _Stage(stage, loss if is_last else None, value_tree, len(specs), tree)
        traced = trace_with_variables(body, own, f"stage_{number}")
        graphs.append(traced)
        arguments.append(len(own))
        value_tree = body.tree
        others = len(traced.checks) + len(traced.assigned)
        specs = list(traced.graph.output_specs[: len(traced.graph.output_specs) - others])
    return graphs, split, arguments


class _Stage:
    """A stage as a function of its value's tensors and, for the last one, of the targets' tensors."""

    def __init__(self, stage: Any, loss: Any, tree: Any, count: int, batch: Any) -> None:
        self.stage, self.loss, self.given, self.count, self.batch = stage, loss, tree, count, batch
        self.tree: Any = None

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        cast(GraphBuilder, current().tracer).mesh = None  # XLA divides a stage's work; nothing in it names the mesh
        value = as_traced(self.stage)(jax.tree_util.tree_unflatten(self.given, tensors[: self.count]))
        if self.loss is not None:
            targets = jax.tree_util.tree_unflatten(self.batch.children()[1], tensors[self.count :])
            value = _checked_loss(as_traced(self.loss)(value, *targets))
        leaves, self.tree = jax.tree_util.tree_flatten(value)
        return [as_tensor(leaf) for leaf in leaves]


class _Read:
    """The values outside of the stages that they read, each once; those that a stage assigns apart from all others.

    Args:
        first: the position of the first one among the operation's inputs.
        mesh: the mesh.
        axis: the axis along which the stages lie.
    """

    def __init__(self, first: int, mesh: Mesh, axis: str) -> None:
        self.first, self.mesh, self.axis = first, mesh, axis
        self.tensors: list[Tensor] = []
        self.layouts: list[Layout | None] = []
        self._positions: dict[Edge, int] = {}

    def add(self, stage: Stage) -> tuple[list[int], list[int]]:
        """Add what a stage reads, and return the positions, and those of the Variables that it assigns."""
        positions = [self._of(tensor, None) for tensor in stage.traced.captures]
        own: dict[Node, int] = {}
        for state in stage.variables:
            variable = state.variable
            value, layout = self._in_parts(variable, value_around(state))
            if state in stage.assigned:
                own[variable._leaf] = self._append(value, layout)
                positions.append(own[variable._leaf])
            else:
                positions.append(self._of(value, layout))
        return positions, [own[state.variable._leaf] for state in stage.assigned]

    def _in_parts(self, variable: Variable, value: Tensor) -> tuple[Tensor, Layout | None]:
        """Return a Variable's value and its layout; without gathering parts that lie along the pipeline's axis."""
        if variable.placement is None:
            return value, None
        layout = variable.placement.on(self.mesh, variable.shape, variable.name).layout
        node, _ = tracer_now().edge_of(value)
        if node.op is REGISTRY["gathered"] and self.axis in layout and self.axis not in node.attrs["layout"]:
            (edge,) = edges_of(node)
            value = make_tensor(None, edge)
        return value, layout

    def _of(self, tensor: Tensor, layout: Layout | None) -> int:
        edge = tracer_now().edge_of(tensor)
        if edge not in self._positions:
            self._positions[edge] = self._append(make_tensor(None, edge), layout)
        return self._positions[edge]

    def _append(self, tensor: Tensor, layout: Layout | None) -> int:
        self.tensors.append(tensor)
        self.layouts.append(layout)
        return self.first + len(self.tensors) - 1


# -- what stages of a pipeline change: the states of random generators, and Variables that one stage assigns ----------
# A plain loop runs all stages for a micro-batch before the next one. On a mesh they run at the same time. A
# generator's state after a number of draws is known beforehand, so that each stage gets the state that the loop would
# have there. A Variable that only one stage uses is as in the loop too, since a stage takes its micro-batches in
# order.


class Stage(NamedTuple):
    """A stage whose changes to Variables are outputs of its graph, in the order that a pipeline needs.

    Attributes:
        graph: a graph from ``(*activations, *rows, *states, *captures, *values of Variables)`` to
            ``(*results, *checks, *new values)``.
        traced: the stage as it was traced.
        variables: the Variables that are the last inputs.
        states: for each generator that it draws from, the state of each micro-batch, of shape (microbatches, words).
        assigned: the Variables of the new values.
    """

    graph: Graph
    traced: Traced
    variables: tuple[VariableState, ...]
    states: tuple[Tensor, ...]
    assigned: tuple[VariableState, ...]


def with_states(stages: Sequence[Traced], arguments: Sequence[int], microbatches: int) -> list[Stage]:
    """Return stages that take the states of generators, and move the generators on in the outer trace.

    Args:
        stages: the stages, as they were traced.
        arguments: per stage, the number of its activations and rows.
        microbatches: the number of micro-batches.

    Raises:
        TraceError: a Variable that a stage assigns is used by another one, and is no state of a generator that only
            draws move on.
    """
    draws = _draws(stages)
    _require_own(stages, set(draws))
    states = {leaf: _states(stages, leaf, counts, microbatches) for leaf, counts in draws.items()}
    return [
        _rearranged(traced, count, {leaf: found[number] for leaf, found in states.items()})
        for number, (traced, count) in enumerate(zip(stages, arguments, strict=True))
    ]


def _outputs_of(traced: Traced) -> dict[Node, int]:
    """Return the outputs that are new values, by the Variables' leaves."""
    first = len(traced.graph.outputs) - len(traced.checks) - len(traced.assigned)
    return {state.variable._leaf: first + index for index, state in enumerate(traced.assigned)}


def _draws(stages: Sequence[Traced]) -> dict[Node, list[int]]:
    """Return the generators' states that only draws move on, each with the number of draws of every stage."""
    found: dict[Node, list[int] | None] = {}
    for number, traced in enumerate(stages):
        outputs = _outputs_of(traced)
        first = len(traced.graph.inputs) - len(traced.variables)
        for index, state in enumerate(traced.variables):
            leaf = state.variable._leaf
            if leaf not in outputs:
                continue
            given: Edge = (traced.graph.inputs[first + index], 0)
            count = _advances(traced.graph, traced.graph.outputs[outputs[leaf]], given)
            counts = found.setdefault(leaf, [0] * len(stages))
            if count is None or counts is None:
                found[leaf] = None
            else:
                counts[number] = count
    return {leaf: counts for leaf, counts in found.items() if counts is not None}


def _advances(graph: Graph, edge: Edge, given: Edge) -> int | None:
    """Return how many draws lie between two states of a generator; None if it was changed in another way."""
    count = 0
    while edge != given:
        node, index = edge
        source = node.inputs[0] if node.inputs else None
        if node.op is CHECKPOINT:
            inner: Graph = node.attrs["graph"]
            for position, (own, outer) in enumerate(zip(inner.inputs, node.inputs, strict=True)):
                more = None if outer is None else _advances(inner, inner.outputs[index], (own, 0))
                if more is not None:
                    source, count = node.inputs[position], count + more
                    break
            else:
                return None
        elif node.op is random_advance.op:
            count += 1
        elif node.op not in (ASSIGN, REREAD):
            return None
        if source is None:
            return None
        edge = source
    return count


def _require_own(stages: Sequence[Traced], drawn: set[Node]) -> None:
    """Raise if a Variable that a stage assigns is used by another stage too."""
    for number, traced in enumerate(stages):
        for state in traced.assigned:
            leaf = state.variable._leaf
            others = [other for other, one in enumerate(stages) if other != number
                      and any([each.variable._leaf is leaf for each in one.variables])]
            if others and leaf not in drawn:
                raise TraceError(
                    f"pipeline: stage {number} assigns Variable {state.variable.name!r}, which stage "
                    f"{others[0]} uses too", got=f"{state.variable.spec} in stages that run at the same time",
                    hint="Let one stage alone use it, or assign it outside of the stages. Draws in branches "
                         "and loops need a hf.random.Generator for each stage."
                )


def _states(stages: Sequence[Traced], leaf: Node, counts: Sequence[int], microbatches: int) -> list[Tensor | None]:
    """Return the states that each stage draws from, a row per micro-batch, and assign the last state."""
    variable = next(each.variable for one in stages for each in one.variables if each.variable._leaf is leaf)

    def step(state: Tensor, row: Tensor) -> tuple[Tensor, list[Tensor]]:
        del row
        found: list[Tensor] = []
        for count in counts:
            found.append(state)
            for _ in range(count):
                state = random_advance(state)
        return state, found

    tracer = tracer_now()
    rows = PUBLIC.full((microbatches,), 0, dtype="int32")
    last, states = scan(step, tracer.value_of(variable), rows)
    tracer.assign_variable(variable, last)
    return [one if count else None for one, count in zip(states, counts, strict=True)]


def _rearranged(traced: Traced, arguments: int, states: dict[Node, Tensor | None]) -> Stage:
    graph, results = traced.graph, _outputs_of(traced)
    checks = len(traced.checks)
    taken = {leaf: state for leaf, state in states.items() if state is not None and leaf in results}
    if not results:
        return Stage(graph, traced, traced.variables, (), ())
    order = [state.variable._leaf for state in traced.variables]
    kept = tuple([state for state in traced.variables if state.variable._leaf not in taken])
    assigned = tuple([state for state in traced.assigned if state.variable._leaf not in taken])
    captures = len(traced.captures)
    specs = list(graph.input_specs)
    names = [str(node.attrs["name"]) for node in graph.inputs]
    first = arguments + captures
    own = {leaf: index for index, leaf in enumerate(order)}
    given = [*range(arguments), *[first + own[leaf] for leaf in taken], *range(arguments, first),
             *[first + own[state.variable._leaf] for state in kept]]
    rows = range(arguments, arguments + len(taken))

    def run(*tensors: Tensor) -> list[Tensor]:
        values: list[Any] = [None] * len(specs)
        for index, (position, tensor) in enumerate(zip(given, tensors, strict=True)):
            values[position] = PUBLIC.reshape(tensor, specs[position].shape) if index in rows else tensor
        made = inline(graph, values)
        end = len(made) - checks
        return [*made[: end - len(results)], *made[end:], *[made[results[one.variable._leaf]] for one in assigned]]

    wanted = [make_spec((1, *specs[position].shape), specs[position].dtype) if index in rows else specs[position]
              for index, position in enumerate(given)]
    made = trace_with_variables(run, wanted, graph.name, [names[position] for position in given])
    return Stage(made.graph, traced, kept, tuple(taken.values()), assigned)  # pyright: ignore[reportArgumentType]

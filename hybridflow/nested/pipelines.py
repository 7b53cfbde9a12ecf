"""The operations of `hf.distribute.pipeline`: stages on the devices along a mesh axis, micro-batch by micro-batch.

One operation computes the loss, another one the loss and the gradients, since a schedule that runs a backward pass
early must mix both. If a program asks for both, `passes.one_pipeline` leaves the second one only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec

from hybridflow.autodiff.transform import Mask, differentiate_anew, graph_from
from hybridflow.backend.collectives import LOWERED_FOR
from hybridflow.core.attrs import attr_key
from hybridflow.core.dispatch import bind, run_raw
from hybridflow.core.dtypes import LOW_PRECISION, is_differentiable
from hybridflow.core.node import Edge, Node
from hybridflow.core.op import Joint, No, Op, Saves, register
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.costs import Bodies, Body
from hybridflow.ir.effects import silenced
from hybridflow.ir.evaluate import evaluate, lower_graph
from hybridflow.ir.graph import Graph, edges_of
from hybridflow.nested.pipeline_buffers import Buffers, Plan, Slots, key_of
from hybridflow.nested.pipeline_sums import constrained, late_nodes, run_in_parts
from hybridflow.nested.schedules import Action, Schedule

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


# -- the program of a pipeline: one loop over the ticks of its schedule, in which every device runs its own stages ----
# Stages differ, and a program is the same for all devices. So values of the same shape share a buffer with a place
# per device, and what a device runs in a tick is a choice among branches, by the schedule's table.


class _State(NamedTuple):
    """What a device carries from tick to tick.

    Attributes:
        kept: residuals.
        assigned: the values that stages assign, by their buffers; None for other shared values.
        weights: sums of the gradients of shared values.
        rows: gradients of what is cut into micro-batches.
        loss: the sum of losses.
        checks: which checks hold, per stage on this device.
    """

    kept: tuple[Any, ...]
    assigned: tuple[Any, ...]
    weights: tuple[Any, ...]
    rows: tuple[Any, ...]
    loss: Any
    checks: Any


def run_program(
    plan: Plan, xs: Sequence[Any], backward: tuple[Graph, ...] = (), present: tuple[Mask, ...] = (), given: Mask = (),
    g: Any = None,
) -> list[Any]:
    """Return the mean loss, the checks, the assigned values and the given inputs' gradients, as jax computes them.

    Args:
        plan: the stages and their schedule; with residuals among their outputs if there are backward graphs.
        xs: the operation's inputs.
        backward: the backward graphs of the stages; none to compute the loss only.
        present: per stage, which of its inputs have a gradient there.
        given: which of the operation's inputs get a gradient.
        g: the cotangent of the mean loss.
    """
    if plan.mesh is None:
        return run_plainly(plan, xs, lambda graph, values: lower_graph(graph)(*values), backward, present, given, g)
    layout = Buffers(plan, bool(backward))
    cut = [_cut(x, plan.microbatches) for x in xs[: plan.cut]]
    run = _Run(layout, backward, present, given)

    def body(index: Any, *values: Any) -> Any:
        token = LOWERED_FOR.set(None)  # layouts of values inside mean nothing
        try:
            return run(index[0], values)
        finally:
            LOWERED_FOR.reset(token)

    whole, split = PartitionSpec(), PartitionSpec(plan.axis)
    others = [name for name, size in plan.mesh.shape.items() if size > 1 and name != plan.axis]
    values = [*cut, *xs[plan.cut :], *([] if g is None else [g])]
    first = 1 + sum(plan.checks) + sum(map(len, plan.assigns))
    wanted = [index for index, has in enumerate(given) if has] if backward else []
    specs = [plan.spec(index) for index in range(len(xs))]
    mapped = jax.shard_map(
        body, mesh=plan.mesh.of_jax, in_specs=(split, *specs, *[whole] * (g is not None)),
        out_specs=[*[whole] * first, *[specs[index] for index in wanted]], check_vma=False,
        axis_names={plan.axis} if others else set(plan.mesh.axes),
    )
    made = list(mapped(np.arange(plan.devices, dtype=np.int32), *values))
    return [*made[:first], *[jnp.reshape(one, xs[at].shape) for one, at in zip(made[first:], wanted, strict=True)]]


def run_plainly(
    plan: Plan, xs: Sequence[Any], run: Callable[[Graph, Sequence[Any]], Sequence[Any]],
    backward: tuple[Graph, ...] = (), present: tuple[Mask, ...] = (), given: Mask = (), g: Any = None,
) -> list[Any]:
    """Return what `run_program` does, by a loop over micro-batches and stages.

    Args:
        plan, xs, backward, present, given, g: as in `run_program`.
        run: a function that runs a graph on NumPy's or jax's arrays.
    """
    xs = list(xs)
    cut = [_cut(x, plan.microbatches) for x in xs[: plan.cut]]
    total: Any = 0.0
    holds: list[list[Any]] = []
    sums: dict[int | tuple[int, int], Any] = {}
    for number in range(plan.microbatches):
        values: list[Any] = []
        kept: list[Any] = []
        checks: list[Any] = []
        for stage, graph in enumerate(plan.stages):
            reads = [cut[at][:, number] if at < plan.cut else xs[at] for at in plan.reads[stage]]
            made = run(graph, (*values, *reads))
            first, last, end = plan.ends(stage)
            values, kept = list(made[:first]), [*kept, (*reads, *made[end:])]
            checks += made[first:last]
            for at, value in zip(plan.assigns[stage], made[last:end], strict=True):
                xs[at] = value
        total = total + values[0].astype(_wide(values[0].dtype))
        holds.append(checks)
        cotangents: Sequence[Any] = () if g is None else (g / plan.microbatches,)
        for stage in reversed(range(len(backward))):
            made = iter(run(backward[stage], (*kept[stage], *cotangents)))
            gradients = [next(made) if has else None for has in present[stage]]
            count = plan.activations(stage)
            cotangents = [
                np.zeros(spec.shape, spec.dtype) if one is None else one
                for one, spec in zip(gradients[:count], plan.stages[stage].input_specs[:count], strict=True)
                if is_differentiable(spec.dtype)
            ]
            for at, one in zip(plan.reads[stage], gradients[count:], strict=True):
                if one is not None:
                    key = at if at >= plan.cut else (at, number)
                    sums[key] = one if key not in sums else sums[key] + one
    loss = (total / plan.microbatches).astype(plan.stages[-1].output_specs[0].dtype)
    found = [functools.reduce(operator.and_, each) for each in zip(*holds, strict=True)]
    wanted = [index for index, has in enumerate(given) if has]
    found += [xs[at] for own in plan.assigns for at in own]
    return [loss, *found, *[_whole(sums, index, plan).reshape(xs[index].shape) for index in wanted]]


def _whole(sums: dict[Any, Any], index: int, plan: Plan) -> Any:
    """Return the gradient of an input, put together from those of micro-batches if it is cut."""
    if index >= plan.cut:
        return sums[index]
    parts = [sums[index, number] for number in range(plan.microbatches)]
    return (np if isinstance(parts[0], np.ndarray) else jnp).stack(parts, axis=1)


def _cut(x: Any, microbatches: int) -> Any:
    """Return a batch with micro-batches along axis 1: a batch whose rows lie on several devices stays there."""
    return x.reshape((x.shape[0] // microbatches, microbatches, *x.shape[1:]))


def _row(buffer: Any, index: Any, axis: int = 0) -> Any:
    return lax.dynamic_index_in_dim(buffer, jnp.maximum(index, 0), axis, keepdims=False)


def _with_row(buffer: Any, value: Any, index: Any, axis: int = 0) -> Any:
    return lax.dynamic_update_index_in_dim(buffer, value, jnp.maximum(index, 0), axis)


def _zeros(keys: Sequence[Any]) -> list[Any]:
    return [jnp.zeros(key[0], key[1]) for key in keys]


def _wide(dtype: Any) -> Any:
    return np.dtype(np.float32) if np.dtype(dtype).num in LOW_PRECISION else dtype


class _Run:
    """The program of one device."""

    def __init__(self, layout: Buffers, backward: tuple[Graph, ...], present: tuple[Mask, ...], given: Mask) -> None:
        self.layout, self.plan = layout, layout.plan
        self.backward, self.present, self.given = backward, present, given
        self.late, self.split = self._late()
        self.rows_given = [index for index in range(self.plan.cut) if given and given[index]]
        self.branches: list[Callable[..., Any]] = []
        self.numbers: dict[Any, int] = {}
        schedule = layout.schedule
        size = len(schedule.table), self.plan.devices
        self.branch, self.number = np.zeros(size, np.int32), np.zeros(size, np.int32)
        for tick, device, action in schedule.actions():
            key = self._same(action.stage, action.backward)
            self.branch[tick, device] = self.numbers.setdefault(key, len(self.numbers) + 1)
            self.number[tick, device] = action.microbatch
        self.first_of = {}
        for _, _, action in schedule.actions():
            number = self.numbers[self._same(action.stage, action.backward)]
            self.first_of.setdefault(number, action)

    def _late(self) -> tuple[list[set[Node]], list[bool]]:
        """Return which nodes of each backward graph run on parts, and which sums of gradients have parts.

        The stages that share a sum must agree about it.
        """
        plan, weights = self.plan, self.layout.weights
        split = [plan.parts > 1] * len(weights.keys)
        late: list[set[Node]] = [set() for _ in self.backward]
        while any(split):
            fails: set[int] = set()
            for stage, graph in enumerate(self.backward):
                slots = [(at, slot) for at, slot in self._gradient_slots(stage) if split[slot]]
                late[stage] = late_nodes(graph, [at for at, _ in slots], plan.parts)
                fails.update([slot for at, slot in slots if graph.outputs[at][0] not in late[stage]])
            if not fails:
                return late, split
            split = [one and slot not in fails for slot, one in enumerate(split)]
        return [set() for _ in self.backward], split

    def _gradient_slots(self, stage: int) -> list[tuple[int, int]]:
        """Return the outputs of a backward graph that are gradients of shared values, with the values' buffers."""
        plan = self.plan
        taken = iter(self.layout.weights.of[stage])
        slots = [-1] * plan.activations(stage) + [next(taken) if at >= plan.given else -1 for at in plan.reads[stage]]
        present = [slot for slot, has in zip(slots, self.present[stage], strict=True) if has]
        return [(at, slot) for at, slot in enumerate(present) if slot >= 0]

    def _same(self, stage: int, backward: bool) -> Any:
        """Return a key that stages share if one branch can run them."""
        layout, plan = self.layout, self.plan
        inner = self.backward[stage] if backward else plan.stages[stage]
        rows = tuple([at if at < plan.given else -1 for at in plan.reads[stage]])
        return (
            backward, _form(inner), rows, stage == len(plan.stages) - 1, stage // plan.devices, plan.checks[stage],
            layout.assigned[stage],
            layout.acts.of[stage], layout.acts.of[stage - 1] if stage else (), layout.cots.of[stage],
            layout.cots.of[stage - 1] if stage else (), layout.kept.of[stage], layout.weights.of[stage],
            self.present[stage] if backward else (),
        )

    def __call__(self, device: Any, values: Sequence[Any]) -> list[Any]:
        plan, layout = self.plan, self.layout
        self.values, self.seed = values, None
        if self.backward:
            self.seed = values[-1] / plan.microbatches
        self.own = self._own_weights(device)
        branches = [self._waiting, *[self._branch(action) for _, action in sorted(self.first_of.items())]]
        tables = [self.branch, self.number, layout.act_reads, layout.act_writes, layout.cot_reads, layout.cot_writes,
                  layout.kept_at]
        mine = [lax.dynamic_index_in_dim(jnp.asarray(one), device, 1, keepdims=False) for one in tables]
        arrived = tuple([
            tuple([jnp.zeros((count, *key[0]), key[1]) for key, count in zip(slots.keys, counts, strict=True)])
            for slots, counts in ((layout.acts, layout.act_counts), (layout.cots, layout.cot_counts))
        ])

        def tick(carry: Any, now: Any) -> Any:
            (acts, cots), state = carry
            branch, number, act_reads, act_writes, cot_reads, cot_writes, kept_at = now
            state, sent_acts, sent_cots = lax.switch(
                branch, branches, state, acts, cots, number, act_reads, cot_reads, kept_at
            )
            acts = self._arrive(layout.acts, acts, sent_acts, act_writes, False)
            cots = self._arrive(layout.cots, cots, sent_cots, cot_writes, True)
            return ((acts, cots), state), None

        (_, state), _ = lax.scan(tick, (arrived, self._start()), tuple(mine))
        return self._results(state)

    def _own_weights(self, device: Any) -> list[Any]:
        """Return the shared values of the stages on this device."""
        weights = self.layout.weights
        chosen: list[Any] = []
        for slot in range(len(weights.keys)):
            cases: list[Any] = [None] * self.plan.devices
            for stage in weights.stages(slot):
                at = self.layout.shared[stage][weights.of[stage].index(slot)]
                cases[stage % self.plan.devices] = self.values[self.plan.reads[stage][at]]
            split = self._split(slot)
            if split is not None:
                chosen.append(self._exchanged(cases, split))
                continue
            if len({id(one) for one in cases}) == 1:
                chosen.append(cases[0])
                continue
            like = next(one for one in cases if one is not None)
            filled = [jnp.zeros(like.shape, like.dtype) if one is None else one for one in cases]
            chosen.append(lax.select_n(device.astype(np.int32), *filled) if len(filled) != 2 else
                          lax.select(device == 0, *filled))
        return chosen

    def _split(self, slot: int) -> int | None:
        """Return the dimension along which the values of a buffer lie in parts on the devices; None if they do not."""
        stage = self.layout.weights.stages(slot)[0]
        at = self.layout.shared[stage][self.layout.weights.of[stage].index(slot)]
        return self.plan.split(self.plan.reads[stage][at])

    def _exchanged(self, cases: list[Any], split: int) -> Any:
        """Return the whole value of this device's stage: every device sends each other one its part of their value."""
        like = next(one for one in cases if one is not None)
        parts = jnp.stack([jnp.zeros(like.shape, like.dtype) if one is None else one for one in cases])
        return lax.all_to_all(parts, self.plan.axis, 0, split + 1, tiled=True)[0]

    def _start(self) -> _State:
        layout, plan = self.layout, self.plan
        kept = [
            jnp.zeros((count, *key[0]), key[1]) for key, count in zip(layout.kept.keys, layout.kept_counts, strict=True)
        ]
        weights = [
            () if not one
            else constrained(jnp.zeros((plan.parts, *key[1]), _wide(key[2])), plan.rows) if split
            else jnp.zeros(key[1], _wide(key[2]))
            for key, one, split in zip(layout.weights.keys, self._differentiated(), self.split, strict=True)
        ]
        rows = [jnp.zeros(self.values[index].shape, self.values[index].dtype) for index in self.rows_given]
        loss = plan.stages[-1].output_specs[0].dtype
        checks = jnp.ones((len(plan.stages) // plan.devices, max(plan.checks)), bool)
        assigns = {slot for slots in layout.assigned for slot in slots}
        assigned = [self.own[slot] if slot in assigns else () for slot in range(len(self.own))]
        return _State(tuple(kept), tuple(assigned), tuple(weights), tuple(rows), jnp.zeros((), _wide(loss)), checks)

    def _differentiated(self) -> list[bool]:
        """Return per buffer of shared values whether there are gradients."""
        weights = self.layout.weights
        found = [False] * len(weights.keys)
        for stage, present in enumerate(self.present):
            own = present[self.plan.activations(stage) :]
            for slot, at in zip(weights.of[stage], self.layout.shared[stage], strict=True):
                found[slot] |= own[at]
        return found

    # -- what a device does in a tick ---------------------------------------------------------------------------

    def _waiting(self, state: _State, *_: Any) -> Any:
        return state, _zeros(self.layout.acts.keys), _zeros(self.layout.cots.keys)

    def _branch(self, action: Action) -> Callable[..., Any]:
        return self._backward_of(action.stage) if action.backward else self._forward_of(action.stage)

    def _reads(self, stage: int, number: Any, state: _State) -> list[Any]:
        """Return what a stage reads besides activations, for a micro-batch."""
        plan, taken = self.plan, iter(self.layout.weights.of[stage])
        mine = [state.assigned[slot] if slot in self.layout.assigned[stage] else one
                for slot, one in enumerate(self.own)]
        found = [(at, self.values[at] if at < plan.given else mine[next(taken)]) for at in plan.reads[stage]]
        return [_row(one, number, 1) if at < plan.cut else one for at, one in found]

    def _forward_of(self, stage: int) -> Callable[..., Any]:
        plan, layout = self.plan, self.layout
        run = lower_graph(plan.stages[stage])
        first, last_check, end = plan.ends(stage)
        before = layout.acts.of[stage - 1] if stage else ()
        last = stage == len(plan.stages) - 1

        def forward(
            state: _State, acts: Any, cots: Any, number: Any, act_reads: Any, cot_reads: Any, kept_at: Any
        ) -> Any:
            del cots, cot_reads
            inputs = [_row(acts[slot], act_reads[slot]) for slot in before]
            made = run(*inputs, *self._reads(stage, number, state))
            sent, kept, assigned = _zeros(layout.acts.keys), list(state.kept), list(state.assigned)
            if last:
                state = state._replace(loss=state.loss + made[0].astype(state.loss.dtype))
            else:
                for slot, value in zip(layout.acts.of[stage], made, strict=False):
                    sent[slot] = value
            for slot, value in zip(layout.kept.of[stage], made[end:], strict=True):
                kept[slot] = _with_row(kept[slot], value, kept_at[slot])
            for slot, value in zip(layout.assigned[stage], made[last_check:end], strict=True):
                assigned[slot] = value
            checks = last_check - first
            if checks:
                chunk = stage // plan.devices
                ok = state.checks[chunk, :checks] & jnp.stack(made[first:last_check])
                state = state._replace(checks=state.checks.at[chunk, :checks].set(ok))
            return state._replace(kept=tuple(kept), assigned=tuple(assigned)), sent, _zeros(layout.cots.keys)

        return forward

    def _backward_of(self, stage: int) -> Callable[..., Any]:
        plan, layout = self.plan, self.layout
        graph, present = self.backward[stage], self.present[stage]
        late = self.late[stage]
        run = run_in_parts(graph, late, plan.parts) if late else lower_graph(graph)
        last = stage == len(plan.stages) - 1
        activations, reads = plan.activations(stage), plan.reads[stage]

        def backward(
            state: _State, acts: Any, cots: Any, number: Any, act_reads: Any, cot_reads: Any, kept_at: Any
        ) -> Any:
            del acts, act_reads
            kept = [_row(state.kept[slot], kept_at[slot]) for slot in layout.kept.of[stage]]
            given = [self.seed] if last else [_row(cots[slot], cot_reads[slot]) for slot in layout.cots.of[stage]]
            made = iter(run(*self._reads(stage, number, state), *kept, *given))
            gradients = [next(made) if has else None for has in present]
            sent = _zeros(layout.cots.keys)
            if stage:
                for slot, index in zip(layout.cots.of[stage - 1], layout.back[stage - 1], strict=True):
                    sent[slot] = sent[slot] if gradients[index] is None else gradients[index]
            weights, rows = list(state.weights), list(state.rows)
            taken = iter(layout.weights.of[stage])
            for at, gradient in zip(reads, gradients[activations:], strict=True):
                slot = next(taken) if at >= plan.given else -1
                if gradient is None:
                    continue
                if slot >= 0:
                    total = weights[slot] + gradient.astype(weights[slot].dtype)
                    weights[slot] = constrained(total, plan.rows) if self.split[slot] else total
                else:
                    place = self.rows_given.index(at)
                    sum_ = _row(rows[place], number, 1) + gradient
                    rows[place] = _with_row(rows[place], sum_, number, 1)
            return state._replace(weights=tuple(weights), rows=tuple(rows)), _zeros(layout.acts.keys), sent

        return backward

    def _arrive(self, slots: Slots, buffers: Any, sent: Any, writes: Any, back: bool) -> Any:
        """Send values to the next or the previous device, and put what arrives where the schedule says."""
        made: list[Any] = []
        for slot, (buffer, value) in enumerate(zip(buffers, sent, strict=True)):
            arrived = lax.ppermute(value, self.plan.axis, self.layout.pairs(slots, slot, back))
            arrived = jnp.where(writes[slot] >= 0, arrived, _row(buffer, writes[slot]))
            made.append(_with_row(buffer, arrived, writes[slot]))
        return tuple(made)

    # -- the results --------------------------------------------------------------------------------------------

    def _results(self, state: _State) -> list[Any]:
        plan = self.plan
        loss = lax.psum(state.loss, plan.axis) / plan.microbatches
        made = [loss.astype(plan.stages[-1].output_specs[0].dtype)]
        if any(plan.checks):
            every = lax.all_gather(state.checks, plan.axis)
            for stage, count in enumerate(plan.checks):
                made += [every[stage % plan.devices, stage // plan.devices, index] for index in range(count)]
        for stage, slots in enumerate(self.layout.assigned):
            made += [lax.all_gather(state.assigned[slot], plan.axis)[stage % plan.devices] for slot in slots]
        if self.backward:
            made += self._gradients(state)
        return made

    def _gradients(self, state: _State) -> list[Any]:
        """Return the gradients on all devices, each a sum over the stages that read the value."""
        plan, weights = self.plan, self.layout.weights
        gathered: dict[int, Any] = {}
        sums: dict[int, Any] = {}
        for stage, present in enumerate(self.present):
            taken = iter(weights.of[stage])
            for at, has in zip(plan.reads[stage], present[plan.activations(stage) :], strict=True):
                slot = next(taken) if at >= plan.given else -1
                if not has or slot < 0:
                    continue
                several = len(weights.stages(slot)) > 1 or self._split(slot) is not None
                if slot not in gathered:
                    own = state.weights[slot]
                    own = jnp.sum(own, axis=0) if self.split[slot] else own
                    split = self._split(slot)
                    if split is not None:  # each device gets its part of every stage's gradient
                        gathered[slot] = lax.all_to_all(own[None], plan.axis, split + 1, 0, tiled=True)
                    else:
                        gathered[slot] = lax.all_gather(own, plan.axis) if several else lax.psum(own, plan.axis)
                one = gathered[slot][stage % plan.devices] if several else gathered[slot]
                sums[at] = one if at not in sums else sums[at] + one
        sums.update({
            index: lax.psum(one, plan.axis) for index, one in zip(self.rows_given, state.rows, strict=True)
        })
        return [sums[index].astype(self.values[index].dtype) for index, has in enumerate(self.given) if has]


def _form(graph: Graph) -> Any:
    """Return a key of what a graph computes: graphs with the same key differ in names and places only."""
    known = graph.executables.get("form")
    if known is None:
        numbers = {node: number for number, node in enumerate((*graph.inputs, *graph.nodes))}
        nodes = [
            (node.op, tuple([(numbers[one], index) for one, index in edges_of(node)]),
             frozenset([(name, _attr_form(value)) for name, value in node.attrs.items()]))
            for node in graph.nodes
        ]
        outputs = tuple([(numbers[node], index) for node, index in graph.outputs])
        known = graph.executables["form"] = (tuple(map(key_of, graph.input_specs)), tuple(nodes), outputs)
    return known


def _attr_form(value: Any) -> Any:
    if isinstance(value, Graph):
        return _form(value)
    if isinstance(value, tuple):
        return tuple([_attr_form(one) for one in value])
    return attr_key(value)

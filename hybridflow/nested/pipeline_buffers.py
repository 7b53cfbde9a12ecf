"""What a pipeline runs, which buffers it has, and when each device reads and writes which place of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import PartitionSpec

from hybridflow.core.dtypes import is_differentiable
from hybridflow.core.mesh import Layout, Mesh, names_of
from hybridflow.core.node import Node
from hybridflow.core.spec import TensorSpec, make_spec
from hybridflow.ir.graph import Graph
from hybridflow.nested.schedules import Action, Schedule, pipeline_schedule, places

Mask = tuple[bool, ...]


class Plan(NamedTuple):
    """What a pipeline runs.

    Attributes:
        stages: per stage, a graph from ``(*activations, *what it reads)`` to ``(*results, *checks, *new values)``. The
            results are the next stage's activations, or the loss.
        reads: per stage, the positions of the operation's inputs that it reads.
        cut: the number of the operation's inputs that are cut into micro-batches, along axis 0: micro-batch `i` has
            the rows ``i, i + microbatches, ...``. They come first; all micro-batches share the others.
        draws: the number of the last ones among them that are states to draw from, each read by a single stage.
        checks: per stage, the number of its checks.
        assigns: per stage, the inputs that it gives new values to, for its next micro-batch; no other stage reads them.
        layouts: per input, how its Variable lies on the mesh.
        mesh: the mesh; None to run the stages one after the other.
        axis: the axis along which the stages lie.
        microbatches: the number of micro-batches.
        schedule: the schedule's name.
        rows: the other axes of the mesh over which the rows of a micro-batch are split.
    """

    stages: tuple[Graph, ...]
    reads: tuple[tuple[int, ...], ...]
    cut: int
    draws: int
    checks: tuple[int, ...]
    assigns: tuple[tuple[int, ...], ...]
    layouts: tuple[Layout | None, ...]
    mesh: Mesh | None
    axis: str
    microbatches: int
    schedule: str
    rows: tuple[str, ...]

    @property
    def parts(self) -> int:
        """The number of parts of a micro-batch that lie on different devices."""
        return 1 if self.mesh is None else self.mesh.parts(self.rows)

    @property
    def devices(self) -> int:
        """The number of devices along the axis."""
        return len(self.stages) if self.mesh is None else self.mesh.shape[self.axis]

    @property
    def given(self) -> int:
        """The number of inputs that are the same on all devices; of the others, each has those of its own stages."""
        return self.cut - self.draws

    def split(self, at: int) -> int | None:
        """Return the dimension of an input whose parts lie along the axis; None if devices have the whole."""
        layout = self.layouts[at] or ()
        return layout.index(self.axis) if self.axis in layout and self.devices > 1 else None

    def spec(self, at: int) -> PartitionSpec:
        """Return how an input comes to the devices along the axis."""
        split = self.split(at)
        return PartitionSpec() if split is None else PartitionSpec(*[None] * split, self.axis)

    def activations(self, stage: int) -> int:
        """Return the number of values that a stage takes from the one before."""
        return len(self.stages[stage].inputs) - len(self.reads[stage])

    def results(self, stage: int) -> int:
        """Return the number of values that a stage gives to the next one; the last one gives the loss."""
        return 1 if stage == len(self.stages) - 1 else self.activations(stage + 1)

    def ends(self, stage: int) -> tuple[int, int, int]:
        """Return where the results, the checks and the new values end among a stage's outputs; residuals follow."""
        results = self.results(stage)
        checks = results + self.checks[stage]
        return results, checks, checks + len(self.assigns[stage])

    def table(self, forward_only: bool = False) -> Schedule:
        """Return the schedule."""
        return pipeline_schedule(
            self.schedule, len(self.stages), self.microbatches, devices=self.devices, forward_only=forward_only
        )


class Slots:
    """Buffers that several stages share: per stage a list of values, each of which gets the number of a buffer.

    Args:
        lists: per stage, the keys of its values. Values of different stages with one key share a buffer.
    """

    def __init__(self, lists: Sequence[Sequence[Any]]) -> None:
        found: dict[Any, int] = {}
        self.of: list[tuple[int, ...]] = []
        for keys in lists:
            seen: Counter[Any] = Counter()
            row: list[int] = []
            for key in keys:
                row.append(found.setdefault((key, seen[key]), len(found)))
                seen[key] += 1
            self.of.append(tuple(row))
        self.keys = [key for key, _ in found]

    def stages(self, slot: int) -> list[int]:
        """Return the stages that have a value in a buffer."""
        return [stage for stage, row in enumerate(self.of) if slot in row]


def key_of(spec: TensorSpec) -> Any:
    """Return the key by which values may share a buffer."""
    return spec.shape, spec.dtype


class Buffers:
    """Which buffers a pipeline has, and when each device reads and writes which place of them."""

    def __init__(self, plan: Plan, backward: bool) -> None:
        self.plan, self.backward = plan, backward
        self.schedule = plan.table(forward_only=not backward)
        count, last = len(plan.stages), len(plan.stages) - 1
        outputs = [graph.output_specs for graph in plan.stages]
        self.acts = Slots(
            [[key_of(one) for one in outputs[s][: plan.results(s)]] if s < last else [] for s in range(count)]
        )
        self.back = [
            [i for i in range(plan.results(s)) if is_differentiable(outputs[s][i].dtype)] for s in range(count)
        ]
        self.cots = Slots(
            [[key_of(outputs[s][i]) for i in self.back[s]] if backward and s < last else [] for s in range(count)]
        )
        self.kept = Slots([[key_of(one) for one in outputs[s][plan.ends(s)[2] :]] for s in range(count)])
        specs = [graph.input_specs[plan.activations(s) :] for s, graph in enumerate(plan.stages)]
        self.shared = [[i for i, at in enumerate(plan.reads[s]) if at >= plan.given] for s in range(count)]
        per_chunk = [
            [
                (s // plan.devices, *key_of(specs[s][i]), plan.layouts[at], at in plan.assigns[s], at < plan.cut)
                for i in self.shared[s] for at in [plan.reads[s][i]]
            ]
            for s in range(count)
        ]
        self.weights = Slots(per_chunk)
        slots = [dict(zip([plan.reads[s][i] for i in self.shared[s]], self.weights.of[s], strict=True))
                 for s in range(count)]
        self.assigned = [tuple([slots[s][at] for at in plan.assigns[s]]) for s in range(count)]
        self.when = {action: tick for tick, _, action in self.schedule.actions()}
        self._place(backward)

    def _place(self, backward: bool) -> None:
        """Choose the places of all values, and fill the tables with them: per tick, device and buffer, or -1."""
        plan, when = self.plan, self.when
        size = len(self.schedule.table), plan.devices
        numbers = range(plan.microbatches)

        def table(slots: Slots) -> Any:
            return np.full((*size, len(slots.keys)), -1, np.int32)

        self.act_reads, self.act_writes, self.act_counts = table(self.acts), table(self.acts), [0] * len(self.acts.keys)
        self.cot_reads, self.cot_writes, self.cot_counts = table(self.cots), table(self.cots), [0] * len(self.cots.keys)
        self.kept_at, self.kept_counts = table(self.kept), [0] * len(self.kept.keys)

        def fill(
            slots: Slots, counts: list[int], sent: tuple[int, bool], used: tuple[int, bool], written: Any, read: Any
        ) -> None:
            for slot in range(len(slots.keys)):
                lives: list[tuple[Any, int, int, int]] = []
                for stage in slots.stages(slot):
                    for number in numbers:
                        first = when[Action(stage + sent[0], number, sent[1])]
                        last = when[Action(stage + used[0], number, used[1])]
                        lives.append(((first, last), (stage + used[0]) % plan.devices, first, last))
                rows = places([((device, first, last), device, first, last) for _, device, first, last in lives])
                counts[slot] = rows.needed
                for _, device, first, last in lives:
                    written[first, device, slot] = rows.of[device, first, last]
                    read[last, device, slot] = rows.of[device, first, last]

        fill(self.acts, self.act_counts, (0, False), (1, False), self.act_writes, self.act_reads)
        if backward:
            fill(self.cots, self.cot_counts, (1, True), (0, True), self.cot_writes, self.cot_reads)
            fill(self.kept, self.kept_counts, (0, False), (0, True), self.kept_at, self.kept_at)

    def pairs(self, slots: Slots, slot: int, back: bool) -> list[tuple[int, int]]:
        """Return which device sends to which, for a buffer of activations or cotangents."""
        devices = self.plan.devices
        ends = {(stage % devices, (stage + 1) % devices) for stage in slots.stages(slot)}
        return sorted([(b, a) if back else (a, b) for a, b in ends])

    def bytes(self, parts: Callable[[Node, tuple[int, ...]], int] | None) -> int:
        """Return the size of all buffers on a device.

        Args:
            parts: a function from a node, and the shape of a value that it computes, to the number of its parts on the
                other axes of the mesh; None if values are whole there.
        """
        plan = self.plan
        total = 0
        moving = (
            (self.acts, self.act_counts, lambda s: range(plan.results(s))),
            (self.cots, self.cot_counts, lambda s: self.back[s]),
            (self.kept, self.kept_counts, lambda s: range(plan.ends(s)[2], len(plan.stages[s].outputs))),
        )
        for slots, counts, outputs in moving:
            divided = [1] * len(slots.keys)
            for stage, row in enumerate(slots.of if parts else ()):
                for slot, at in zip(row, outputs(stage), strict=False):
                    node = plan.stages[stage].outputs[at][0]
                    divided[slot] = max(divided[slot], plan.parts, parts(node, slots.keys[slot][0]) if parts else 1)
            for (shape, dtype), count, by in zip(slots.keys, counts, divided, strict=True):
                total += count * make_spec(shape, dtype).nbytes // by
        for slot, (_, shape, dtype, layout, _, _) in enumerate(self.weights.keys):
            others = [name for axis in layout or () for name in names_of(axis) if name != plan.axis]
            by = 1 if plan.mesh is None else plan.mesh.parts(tuple(others))
            for stage in self.weights.stages(slot) if parts else ():
                at = self.shared[stage][self.weights.of[stage].index(slot)]
                node = plan.stages[stage].inputs[plan.activations(stage) + at]
                by = max(by, parts(node, shape) if parts else 1)
            size = make_spec(shape, dtype).nbytes // by
            chosen = plan.devices > 1 and (len(self.weights.stages(slot)) > 1 or plan.axis in (layout or ()))
            summed = self.backward and is_differentiable(dtype)
            total += size * (chosen + summed)
        return total

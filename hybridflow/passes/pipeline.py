"""The passes in the order in which they run, and running them."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridflow.backend.collector import collector_paused
from hybridflow.core.errors import ArgumentError
from hybridflow.ir.graph import Graph
from hybridflow.passes.algebra import algebra
from hybridflow.passes.compose_index import compose_index
from hybridflow.passes.constant_fold import constant_fold
from hybridflow.passes.cse import cse
from hybridflow.passes.dead_code import dead_code
from hybridflow.passes.dead_residuals import dead_residuals
from hybridflow.passes.early_selects import early_selects
from hybridflow.passes.expose_residuals import expose_residuals
from hybridflow.passes.fusion_breaks import fusion_breaks
from hybridflow.passes.gather_parts import gather_parts
from hybridflow.passes.inline_checkpoints import inline_checkpoints
from hybridflow.passes.join_parts import join_parts
from hybridflow.passes.lib.graph_pass import Pass, PassContext
from hybridflow.passes.lib.rewrite import count_nodes
from hybridflow.passes.loop_invariants import loop_invariants
from hybridflow.passes.loop_sums import loop_sums
from hybridflow.passes.one_pipeline import one_pipeline
from hybridflow.passes.outline import outline
from hybridflow.passes.roll import roll
from hybridflow.passes.select_updates import select_updates
from hybridflow.passes.store_transposes import store_transposes
from hybridflow.passes.turn_products import turn_products
from hybridflow.passes.unroll import unroll
from hybridflow.passes.unused_outputs import unused_outputs
from hybridflow.passes.updates_last import updates_last


class Phase(NamedTuple):
    """Passes that run in a row.

    Attributes:
        name: its name.
        rounds: the most rounds. There is another round while a pass other than a cleanup changes the graph.
        passes: the passes.
    """

    name: str
    rounds: int
    passes: tuple[Pass, ...]


class Pipeline(NamedTuple):
    """Phases that run one after the other.

    Example:
        >>> from hybridflow.passes import PIPELINE
        >>> [one.name for one in PIPELINE.only("dead_code", "cse").passes()]
        ['cse', 'dead_code']
    """

    phases: tuple[Phase, ...]

    def passes(self) -> Iterator[Pass]:
        """Yield the passes in order."""
        for phase in self.phases:
            yield from phase.passes

    def only(self, *names: str) -> Pipeline:
        """Return a pipeline of the named passes only, in the order they have here."""
        self._require(names)
        return self._chosen(lambda one: one if one.name in names else None)

    def without(self, *names: str) -> Pipeline:
        """Return the pipeline without the named passes."""
        self._require(names)
        return self._chosen(lambda one: None if one.name in names else one)

    def with_limits(self, name: str, **limits: Any) -> Pipeline:
        """Return the pipeline with different limits for one pass."""
        self._require((name,))
        return self._chosen(lambda one: one.with_limits(**limits) if one.name == name else one)

    def _chosen(self, choose: Callable[[Pass], Pass | None]) -> Pipeline:
        phases = [phase._replace(passes=tuple(filter(None, map(choose, phase.passes)))) for phase in self.phases]
        return Pipeline(tuple(phases))

    def _require(self, names: tuple[str, ...]) -> None:
        known = [one.name for one in self.passes()]
        for name in names:
            if name not in known:
                close = difflib.get_close_matches(name, known, 3)
                hint = f"Did you mean {' or '.join(close)}?" if close else f"Passes: {', '.join(known)}."
                raise ArgumentError(f"passes: {name!r} is not a pass", hint=hint)


SIMPLIFY = Phase(
    "simplify",
    4,
    (
        algebra,
        compose_index,
        inline_checkpoints,
        constant_fold,  # after algebra, which may leave operations on constants only
        cse,  # after constant_fold, so that equal folded constants merge
        dead_residuals,  # after cse: a merged node keeps the residuals that either reader wants
        dead_code,  # after the passes that leave unread nodes
        expose_residuals,  # after dead_residuals: only for residuals that a gradient still reads
        loop_sums,  # after dead_code, since what is unread is no reason to leave a sum in its loop
        unused_outputs,  # after the passes that remove readers
        loop_invariants,  # last: bodies are as simple as they get, and unused outputs are gone
    ),
)
"""Passes that make nodes fewer and simpler. Each can make work for the others, so they run in rounds."""

ARRANGE = Phase(
    "arrange",
    1,
    (
        unroll,
        one_pipeline,
        gather_parts,  # does something on a mesh only, where the passes after early_selects do not run
        early_selects,  # before outline, so that selects are part of the repeated updates
        join_parts,  # before outline: sums of parts would make every step of a loop different
        turn_products,  # before outline, so that repeated parts contain the turned products
        outline,
        roll,  # after outline: it turns calls into a loop
        select_updates,  # after outline, which finds repeated updates while a step and its selects are several nodes
        updates_last,  # after select_updates, which makes one operation of a step and its selects
        fusion_breaks,  # last, because a call or a loop also ends a chain
    ),
)
"""Passes that put the same operations into the shape that XLA compiles and runs best."""

PIPELINE = Pipeline((SIMPLIFY, ARRANGE))

_ON_A_MESH = PIPELINE.without("join_parts", "turn_products", "outline", "roll", "updates_last", "fusion_breaks")
ON_A_MESH = Pipeline((*_ON_A_MESH.phases, Phase("mesh", 1, (store_transposes,))))
"""The passes for programs on several devices: how values lie there would not get past the border of a function."""


@dataclass(frozen=True)
class PassRecord:
    """What one run of a pass did.

    Attributes:
        name: the pass.
        milliseconds: the time it took.
        nodes_before, nodes_after: the graph's node count, including nested graphs.
        note: a short description of its changes.
    """

    name: str
    milliseconds: float
    nodes_before: int
    nodes_after: int
    note: str = ""

    def __str__(self) -> str:
        note = f" ({self.note})" if self.note else ""
        return f"{self.name}: {self.nodes_before} -> {self.nodes_after} nodes, {self.milliseconds:.2f} ms{note}"


OnChange = Callable[[PassRecord, Graph, Graph], None]
"""A callback that takes a pass's record and the graph before and after the pass."""


def run_passes(
    graph: Graph,
    *,
    pipeline: Pipeline | None = None,
    differentiable: bool = True,
    on_change: OnChange | None = None,
) -> tuple[Graph, list[PassRecord]]:
    """Run the passes on a graph.

    Args:
        graph: the graph; it stays as it is.
        pipeline: the passes to run; `PIPELINE` if not given.
        differentiable: whether the result may still be differentiated. Pass False if it will only be executed:
            more passes apply.
        on_change: called after every pass run that changed the graph.

    Returns:
        The graph after the passes, with the same inputs and outputs, and one record per run of a pass.
    """
    records: list[PassRecord] = []
    with collector_paused():
        for phase in (pipeline or PIPELINE).phases:
            passes = [one for one in phase.passes if not (one.final and differentiable)]
            for _ in range(phase.rounds):
                graph, again = _round(passes, graph, differentiable, records, on_change)
                if not again:
                    break
    return graph, records


_ALGEBRA = Pipeline((Phase("algebra", 1, (algebra,)),))


def rewritten(graph: Graph) -> Graph:
    """Return a graph with the rewrites of `algebra` alone: some keep XLA from changing what the graph computes."""
    return run_passes(graph, pipeline=_ALGEBRA, differentiable=False)[0]


def _round(
    passes: list[Pass], graph: Graph, differentiable: bool, records: list[PassRecord], on_change: OnChange | None
) -> tuple[Graph, bool]:
    """Run each pass once; return the graph, and whether another round may find more to do."""
    again = False
    count = records[-1].nodes_after if records else count_nodes(graph)
    for one in passes:
        context = PassContext(differentiable)
        start = time.perf_counter()
        changed = one(graph, context)
        milliseconds = (time.perf_counter() - start) * 1e3
        before = count
        if changed is not graph:
            count = count_nodes(changed)
            again |= not one.cleanup
        records.append(PassRecord(one.name, milliseconds, before, count, _note(context.notes)))
        if on_change is not None and changed is not graph:
            on_change(records[-1], graph, changed)
        graph = changed
    return graph, again


def _note(notes: Counter[str]) -> str:
    parts: list[Any] = [text if times == 1 else f"{text} x{times}" for text, times in notes.items()]
    return ", ".join(parts)

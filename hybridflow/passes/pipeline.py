"""The passes in the order in which they run, and running them."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from hybridflow.backend.collector import collector_paused
from hybridflow.core.errors import ArgumentError, message
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
from hybridflow.passes.inline_checkpoints import inline_checkpoints
from hybridflow.passes.join_parts import join_parts
from hybridflow.passes.lib.graph_pass import Pass, PassContext
from hybridflow.passes.lib.rewrite import count_nodes
from hybridflow.passes.loop_invariants import loop_invariants
from hybridflow.passes.outline import outline
from hybridflow.passes.roll import roll
from hybridflow.passes.unroll import unroll
from hybridflow.passes.unused_outputs import unused_outputs


class Phase(NamedTuple):
    """Passes that run in a row.

    Attributes:
        name: its name.
        rounds: how often they run at most; they run again while one of them, other than a cleanup, changes the graph.
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
        """Return the pipeline of the named passes, in the order in which they are here."""
        self._require(names)
        return self._chosen(lambda one: one if one.name in names else None)

    def without(self, *names: str) -> Pipeline:
        """Return the pipeline of all other passes."""
        self._require(names)
        return self._chosen(lambda one: None if one.name in names else one)

    def with_limits(self, name: str, **limits: Any) -> Pipeline:
        """Return the pipeline with other limits of one pass."""
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
                raise ArgumentError(message(f"passes: {name!r} is not a pass", hint=hint))


SIMPLIFY = Phase(
    "simplify",
    4,
    (
        algebra,
        compose_index,
        inline_checkpoints,
        constant_fold,  # behind algebra: what that joins may be of constants only
        cse,  # behind constant_fold: equal constants are one
        dead_residuals,  # behind cse: two nodes that were one keep what either reader wants
        dead_code,  # behind those that leave something over
        expose_residuals,  # behind dead_residuals: only for what a gradient still reads
        unused_outputs,  # behind those that take readers away
        loop_invariants,  # last: what leaves a body is as simple as it gets, and no output that goes anyway
    ),
)
"""Fewer and simpler nodes: a pass makes work for others, so that they run in rounds."""

ARRANGE = Phase(
    "arrange",
    1,
    (
        unroll,
        early_selects,  # before outline: choices are a part of the updates that are repeated
        join_parts,  # before outline: sums of parts make no two steps of a loop alike
        outline,
        roll,  # behind outline: it makes calls a loop
        fusion_breaks,  # last: a call or a loop ends a chain, too
    ),
)
"""The same operations in the shape that XLA compiles and runs best."""

PIPELINE = Pipeline((SIMPLIFY, ARRANGE))


@dataclass(frozen=True)
class PassRecord:
    """What one run of a pass did.

    Attributes:
        name: the pass.
        milliseconds: how long it took.
        nodes_before, nodes_after: the graph's nodes, those of nested graphs included.
        note: what it did, in a few words.
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
"""Takes a pass's record, and the graph before and after it."""


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
        pipeline: which passes run; `PIPELINE` if not given.
        differentiable: whether the result may still be differentiated. Where it will only be executed, say False:
            more passes apply.
        on_change: told of every run of a pass that changed the graph.

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

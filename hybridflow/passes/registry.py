"""What a pass is, the order in which passes run, and running them."""

from __future__ import annotations

import difflib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any

from hybridflow.backend.collector import collector_paused
from hybridflow.core.errors import ArgumentError, message
from hybridflow.ir.graph import Graph
from hybridflow.passes.rewrite import count_nodes, map_nested

PHASES: dict[str, int] = {"simplify": 4, "arrange": 1}
"""The phases in order, and how many rounds each may take until nothing changes."""


@dataclass
class PassContext:
    """What a pass is told, and what it tells.

    Attributes:
        differentiable: whether somebody may still differentiate the graph. Then its gradients must stay as they
            are, not only its values: an op that blocks gradients stays, and so do values only a gradient reads.
        notes: what the pass did and how often, for its record.
    """

    differentiable: bool = True
    notes: Counter[str] = field(default_factory=Counter[str])


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


@dataclass(frozen=True)
class Pass:
    """A function from a graph to an equivalent graph; the same object comes back if nothing changed.

    Attributes:
        name: its name in records.
        function: ``(graph, context)`` to a graph; it never changes the graph it is given, nor its inputs' positions.
        phase: one of `PHASES`.
        after: passes of the same phase that run before it.
        final: whether it is right only for graphs that nobody differentiates any more.
        cleanup: whether it only removes what nothing reads, so that the other passes need not run again after it.
    """

    name: str
    function: Callable[[Graph, PassContext], Graph]
    phase: str
    after: tuple[str, ...] = ()
    final: bool = False
    cleanup: bool = False

    def __call__(self, graph: Graph, context: PassContext | None = None) -> Graph:
        """Return the graph after the pass, nested graphs included."""
        context = context or PassContext()
        done: dict[int, Graph] = {}

        def run(one: Graph) -> Graph:
            found = done.get(id(one))
            if found is None:
                found = done[id(one)] = self.function(map_nested(one, run), context)
            return found

        return run(graph)


PASSES: dict[str, Pass] = {}
"""Every pass by name; filled by `graph_pass`, never by hand."""


def graph_pass(
    *, phase: str, after: Iterable[str] = (), final: bool = False, cleanup: bool = False
) -> Callable[[Callable[[Graph, PassContext], Graph]], Pass]:
    """Make a function a pass.

    Its docstring shows an example in IR text, under ``Before:`` and ``After:``; that example is its test.

    Args:
        phase, after, final, cleanup: as `Pass` holds them.

    Raises:
        ArgumentError: an unknown phase, or a name that is taken.
    """
    if phase not in PHASES:
        raise ArgumentError(message(f"graph_pass: {phase!r} is not a phase", hint=f"Phases: {', '.join(PHASES)}."))

    def decorate(function: Callable[[Graph, PassContext], Graph]) -> Pass:
        name = function.__name__
        if name in PASSES:
            raise ArgumentError(message(f"graph_pass: the name {name!r} is taken", hint="Choose another name."))
        made = PASSES[name] = Pass(name, function, phase, tuple(after), final, cleanup)
        object.__setattr__(made, "__doc__", function.__doc__)
        return made

    return decorate


def ordered(only: Collection[str] | None = None) -> list[Pass]:
    """Return the passes in the order in which they run, all of them or only the named ones.

    Raises:
        ArgumentError: an unknown name, in `only` or in a pass's `after`, or an order that has a cycle.
    """
    for name in only or ():
        _known(name, "run_passes")
    result: list[Pass] = []
    for phase in PHASES:
        members = sorted(name for name, one in PASSES.items() if one.phase == phase)
        sorter: TopologicalSorter[str] = TopologicalSorter()
        for name in members:
            for earlier in PASSES[name].after:
                if _known(earlier, f"pass {name}, after").phase != phase:
                    raise ArgumentError(message(f"pass {name}: {earlier} is not a pass of the phase {phase!r}"))
            sorter.add(name, *PASSES[name].after)
        try:
            names = list(sorter.static_order())
        except CycleError as error:
            raise ArgumentError(message(f"passes: their order has a cycle: {' after '.join(error.args[1])}")) from error
        result += [PASSES[name] for name in names]
    return result if only is None else [one for one in result if one.name in only]


def _known(name: str, where: str) -> Pass:
    found = PASSES.get(name)
    if found is None:
        close = difflib.get_close_matches(name, PASSES, 3)
        hint = f"Did you mean {' or '.join(close)}?" if close else f"Passes: {', '.join(PASSES)}."
        raise ArgumentError(message(f"{where}: {name!r} is not a pass", hint=hint))
    return found


def run_passes(
    graph: Graph,
    *,
    only: Collection[str] | None = None,
    differentiable: bool = True,
    on_change: OnChange | None = None,
) -> tuple[Graph, list[PassRecord]]:
    """Run the passes on a graph.

    A phase is repeated while a pass other than a cleanup changes the graph, up to the rounds `PHASES` allows.

    Args:
        graph: the graph; it stays as it is.
        only: the names of the passes to run; all of them if not given.
        differentiable: whether the result may still be differentiated. Where it will only be executed, say False:
            more passes apply.
        on_change: told of every run of a pass that changed the graph.

    Returns:
        The graph after the passes, with the same inputs and outputs, and one record per run of a pass.

    Raises:
        ArgumentError: an unknown name in `only`.
    """
    passes = [one for one in ordered(only) if not (one.final and differentiable)]
    with collector_paused():
        return _run(passes, graph, differentiable, on_change)


def _run(
    passes: list[Pass], graph: Graph, differentiable: bool, on_change: OnChange | None
) -> tuple[Graph, list[PassRecord]]:
    records: list[PassRecord] = []
    count = count_nodes(graph)
    for phase, rounds in PHASES.items():
        members = [one for one in passes if one.phase == phase]
        for _ in range(rounds):
            progress = False
            for one in members:
                context = PassContext(differentiable)
                start = time.perf_counter()
                changed = one(graph, context)
                milliseconds = (time.perf_counter() - start) * 1e3
                before = count
                if changed is not graph:
                    count = count_nodes(changed)
                    progress |= not one.cleanup
                records.append(PassRecord(one.name, milliseconds, before, count, _note(context.notes)))
                if on_change is not None and changed is not graph:
                    on_change(records[-1], graph, changed)
                graph = changed
            if not progress:
                break
    return graph, records


def _note(notes: Counter[str]) -> str:
    parts: list[Any] = [text if times == 1 else f"{text} x{times}" for text, times in notes.items()]
    return ", ".join(parts)

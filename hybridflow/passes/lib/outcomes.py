"""Facts about a graph after its passes: called graphs, loops, and the second runs of checkpoints."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import NamedTuple

from hybridflow.core.node import Node, Where, is_gradient, short_where, where_file_line
from hybridflow.ir.costs import node_costs
from hybridflow.ir.fusion import OUTLINED, TIED
from hybridflow.ir.graph import Graph, graphs_of
from hybridflow.ir.rolled import ROLLED
from hybridflow.nested.pipelines import schedule_of
from hybridflow.nested.schedules import Schedule
from hybridflow.passes.lib.recompute import Recomputed


class Outlined(NamedTuple):
    """A graph that is compiled once and called.

    Attributes:
        where: the line of user code that its first node comes from.
        nodes: its number of nodes.
        calls: its number of calls.
    """

    where: Where | None
    nodes: int
    calls: int


def outlined_in(graph: Graph) -> tuple[Outlined, ...]:
    """Return the graphs that a graph calls."""
    calls = Counter(node.attrs["graph"] for one in graphs_of(graph) for node in one.nodes if node.op is OUTLINED)
    return tuple([Outlined(_first(inner), len(inner.nodes), count) for inner, count in calls.items()])


class Rolled(NamedTuple):
    """Repeats that are compiled once and run as a loop.

    Attributes:
        where: the line of user code that each repeat's first node comes from.
        nodes: the number of nodes of one repeat.
        runs: the number of the loop's steps.
    """

    where: Where | None
    nodes: int
    runs: int


def rolled_in(graph: Graph) -> tuple[Rolled, ...]:
    """Return a graph's loops of repeats, in order."""
    loops = [node.attrs for one in graphs_of(graph) for node in one.nodes if node.op is ROLLED]
    return tuple([Rolled(_first(attrs["graph"]), len(attrs["graph"].nodes), attrs["count"]) for attrs in loops])


def _first(graph: Graph) -> Where | None:
    return next((node.where for node in graph.nodes if node.inputs), None)


def recomputed_in(graph: Graph) -> tuple[Recomputed, ...]:
    """Return what a graph recomputes for its checkpoints, per line of user code."""
    again = {node for one in graphs_of(graph) for node in _second_runs(one)}
    recomputed: defaultdict[tuple[str, int] | None, list[tuple[Node, int]]] = defaultdict(list)
    if again:
        for one in node_costs(graph, graph.dims.hints):
            if one.node in again:
                recomputed[where_file_line(one.node.where)].append((one.node, one.cost.flops))
    return tuple([
        Recomputed(
            rows[0][0].where, dict(Counter(node.op.name for node, _ in rows)), sum(flops for _, flops in rows)
        )
        for rows in recomputed.values()
    ])


def _second_runs(graph: Graph) -> list[Node]:
    """Return the nodes that checkpoints run again: those computed from tied values, without gradients."""
    reached: dict[Node, None] = {}
    for node in graph.nodes:
        forward = not is_gradient(node.where) and any(edge is not None and edge[0] in reached for edge in node.inputs)
        if node.op is TIED or (reached and forward):
            reached[node] = None
    return [node for node in reached if node.op is not TIED]


class Piped(NamedTuple):
    """A pipeline, and how long its devices wait.

    Attributes:
        schedule: its table.
        where: its line.
    """

    schedule: Schedule
    where: Where | None

    def __str__(self) -> str:
        table = self.schedule
        waits = [table.waits(device) for device in range(table.devices)]
        each = f"each device waits {waits[0]}" if len(set(waits)) == 1 else f"devices wait {', '.join(map(str, waits))}"
        place = short_where(self.where)
        return (
            f"{table.name} of {table.stages} stages on {table.devices} devices, {table.microbatches} micro-batches"
            f"{place and f' at {place}'}: {each} of {len(table.table)} ticks, a bubble of {table.bubble:.1%}"
        )


def pipelines_in(graph: Graph) -> tuple[Piped, ...]:
    """Return the pipelines of a graph."""
    return tuple([Piped(schedule_of(node), node.where) for node in graph.walk() if node.op.has("stages")])

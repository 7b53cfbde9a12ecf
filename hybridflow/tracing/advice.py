"""What a user could change about a compiled function: advice, each with its line."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hybridflow.core.dims import evaluate
from hybridflow.core.dtypes import complex128, float32, float64
from hybridflow.core.node import Edge, Node, format_where
from hybridflow.ir.costs import bodies, moves_nothing, node_costs
from hybridflow.ir.graph import CONSTANT, INPUT, Graph
from hybridflow.tracing.explain import Change, TraceRecord
from hybridflow.tracing.trace import Trace

HUGE = 1 << 20
"""From so many bytes on a constant in a graph is worth a word."""
SMALL_BYTES, SMALL_FLOPS, FEW = 1 << 16, 100_000, 2
"""Up to so many bytes moved, operations of arithmetic and nodes, a call costs more than what it computes."""
RETRACES = 3
"""So many traces that differ in one Python number only are worth a word."""


@dataclass(frozen=True)
class Advice:
    """One thing that a user could change.

    Attributes:
        kind: ``float64``, ``retrace``, ``constant``, ``host`` or ``tiny``.
        text: what is so, and what it costs.
        hint: the next step.
        line: the user's line as ``file:line``; None if it is not known.
    """

    kind: str
    text: str
    hint: str
    line: str | None

    def __str__(self) -> str:
        return f"advice at {_short(self.line)}: {self.text}\n    {self.hint}"


def advice_on(records: Sequence[TraceRecord], traces: Iterable[Trace]) -> tuple[Advice, ...]:
    """Return advice on a compiled function.

    Args:
        records: of all its traces.
        traces: those that are still in its cache.
    """
    found = dict.fromkeys(_on_retraces(records))
    for trace in traces:
        for rule in _RULES:
            found.update(dict.fromkeys(rule(trace.raw_graph)))
    return tuple(found)


def _short(line: str | None) -> str:
    return "an unknown line" if line is None else os.path.basename(line)


# -- traces -------------------------------------------------------------------------------------------------------


def _on_retraces(records: Sequence[TraceRecord]) -> Iterator[Advice]:
    """Find Python integers that give a new trace at every value."""
    alone: Counter[str] = Counter()
    last: dict[str, tuple[Change, TraceRecord]] = {}
    for record in records:
        if len(record.changes) == 1:
            change = record.changes[0]
            if _is_int(change.before) and _is_int(change.after):
                alone[change.argument] += 1
                last[change.argument] = change, record
    for argument, count in alone.items():
        if count + 1 >= RETRACES:
            change, record = last[argument]
            read = _read_at(argument, record)
            spent = sum(one.trace_ms + one.passes_ms + one.lower_ms + one.xla_ms for one in records)
            yield Advice(
                "retrace",
                f"{argument} is a Python integer, and {count + 1} values of it made {count + 1} traces "
                f"(the last one {change.before} -> {change.after}); tracing and compiling took {spent / 1e3:.2g} s",
                f"Pass {argument} as a tensor, hf.asarray({argument}), where no shape depends on it."
                if read is None
                else f"Keep {argument} in a hf.Variable, or pass it as a tensor, where no shape depends on it.",
                read or record.call_site,
            )


def _is_int(text: str) -> bool:
    return re.fullmatch(r"(int )?-?\d+", text) is not None


def _read_at(name: str, record: TraceRecord) -> str | None:
    """Return where a trace read what is no argument."""
    for guard in record.guards:
        if guard.startswith(f"{name} is "):
            found = re.search(r"\(read at (.*)\)$", guard)
            return None if found is None else found[1]
    return None


# -- graphs -------------------------------------------------------------------------------------------------------


def _on_float64(graph: Graph) -> Iterator[Advice]:
    """Find where float64 from outside makes what was float32 float64 too."""
    wide = (float64, complex128)
    sources = [node for node in _sources(graph) if node.spec().dtype in wide and node.spec().shape]
    for source in sources:
        reached = _reached(graph, source)
        for node in graph.nodes:
            widened = [edge for edge in node.inputs if edge is not None and _is_widened(edge)]
            if widened and any(edge is not None and edge[0] in reached for edge in node.inputs):
                name = source.attrs.get("name") if source.op is INPUT else "an array"
                narrow = widened[0][0].inputs[0]
                assert narrow is not None
                yield Advice(
                    "float64",
                    f"{name} is {source.spec()} and meets {narrow[0].spec(narrow[1])}: {node.op.name} and what follows "
                    f"are computed in float64, with twice the memory and half the speed or less",
                    "Make it float32 if that is not meant: hf.asarray(..., dtype=hf.float32).",
                    node.location,
                )
                return


def _sources(graph: Graph) -> Iterator[Node]:
    yield from graph.inputs
    yield from [node for node in graph.nodes if node.op is CONSTANT]


def _is_widened(edge: Edge) -> bool:
    node = edge[0]
    before = node.inputs[0] if node.op.name == "astype" and node.inputs else None
    return before is not None and node.spec().dtype == float64 and before[0].spec(before[1]).dtype == float32


def _reached(graph: Graph, source: Node) -> set[Node]:
    reached = {source}
    for node in graph.nodes:
        if any(edge is not None and edge[0] in reached for edge in node.inputs):
            reached.add(node)
    return reached


def _on_constants(graph: Graph) -> Iterator[Advice]:
    """Find large arrays that became part of the program."""
    for node in graph.walk():
        if node.op is CONSTANT and node.spec().nbytes >= HUGE:
            yield Advice(
                "constant",
                f"an array {node.spec()} of {node.spec().nbytes:,} bytes is part of the program: passes hash it, every "
                "executable contains it, and one that is read from outside is compared at every call",
                "Make it a tensor outside, hf.asarray(array): then it is an input like others.",
                node.location,
            )


def _on_host_calls(graph: Graph) -> Iterator[Advice]:
    """Find calls of Python in the bodies of loops."""
    for node in graph.nodes:
        for body in bodies(node, graph.dims.hints) or ():
            if body.alternative:
                yield from _on_host_calls(body.graph)
            elif body.times is None or evaluate(body.times, graph.dims.hints) > 1:
                for inner in body.graph.walk():
                    if "effect" in inner.op.traits and "random" not in inner.op.traits:
                        often = "each step" if body.times is None else f"each of {body.times} steps"
                        yield Advice(
                            "host",
                            f"{inner.op.name} leaves the program for Python in {often} of the loop at "
                            f"{_short(format_where(node.where))}, and the loop waits for it",
                            "Collect the values in the loop and handle them after it.",
                            inner.location,
                        )


def _on_tiny(graph: Graph) -> Iterator[Advice]:
    """Find functions that compute too little for a compiled call to pay."""
    working = [node for node in graph.walk() if not moves_nothing(node)]
    if not working or len(working) > FEW or any(bodies(node) is not None for node in working):
        return
    if any("effect" in node.op.traits or "random" in node.op.traits for node in working):
        return
    costs = [one.cost for one in node_costs(graph, graph.dims.hints)]
    moved, flops = sum(cost.moved for cost in costs), sum(cost.flops for cost in costs)
    if moved <= SMALL_BYTES and flops <= SMALL_FLOPS:
        names = ", ".join(node.op.name for node in working)
        yield Advice(
            "tiny",
            f"{graph.name} computes only {names} on {moved:,} bytes: a compiled call costs some microseconds before "
            "it computes anything, an eager operation less",
            "Call it eagerly, or compile the function that calls it.",
            working[0].location,
        )


_RULES: tuple[Callable[[Graph], Iterable[Advice]], ...] = (_on_float64, _on_constants, _on_host_calls, _on_tiny)


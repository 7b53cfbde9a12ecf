"""Advice: what a user could change about a compiled function, with the line."""

from __future__ import annotations

import ast
import linecache
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, cast

from hybridflow.core.dims import evaluate
from hybridflow.core.dtypes import complex128, float32, float64
from hybridflow.core.node import Edge, Node, format_where, short_place, where_file_line
from hybridflow.core.sources import CONSTANT, INPUT
from hybridflow.ir.costs import bodies, moves_nothing, node_costs
from hybridflow.ir.graph import Graph, graphs_of
from hybridflow.tracing.records import Change, TraceRecord
from hybridflow.tracing.trace import Trace

HUGE = 1 << 20
"""Advice is given for constants of at least this many bytes."""
SMALL_BYTES, SMALL_FLOPS, FEW = 1 << 16, 100_000, 4
"""With at most this many bytes moved, FLOPs and nodes, the overhead of a call exceeds its computation."""
USELESS, PAID_OFF = 3, 20
"""So many traces that repeat the reason of an earlier one are too many, unless their calls took `PAID_OFF` as long."""
RETRACES, MODES = 3, 4
"""Advice is given for at least this many traces that differ in one Python integer, or in one other thing."""
ROUND_TRIPS = 3
"""Advice is given for at least this many calls of Python from one line, not counting loops."""
UNROLLED = 12
"""Advice is given for at least this many steps of a Python loop that a tensor may end."""


_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Advice:
    """One thing that a user could change.

    Attributes:
        kind: ``float64``, ``retrace``, ``constant``, ``host``, ``unrolled`` or ``tiny``.
        text: the problem, and its cost.
        hint: the next step.
        line: the user's line as ``file:line``; None if it is not known.
        said: of traces that are made again and again, what makes them, in one sentence with the code.
    """

    kind: str
    text: str
    hint: str
    line: str | None
    said: str = ""

    def __str__(self) -> str:
        return f"advice at {_short(self.line)}: {self.text}\n    {self.hint}"


def advice_on(
    records: Sequence[TraceRecord], traces: Iterable[Trace], reused: int = 0, needed: Mapping[str, str] = _NOTHING
) -> tuple[Advice, ...]:
    """Return advice on a compiled function.

    Args:
        records: the records of all its traces.
        traces: the traces that are still in its cache.
        reused: the number of calls that found one of several traces.
        needed: the lines where the values of numbers are needed, by where these are read.
    """
    advice: dict[tuple[str, str | None], Advice] = {}
    for trace in traces:
        for rule in _RULES:
            for one in rule(trace.raw_graph):
                advice.setdefault((one.kind, one.line), one)  # other traces say the same about a line
    return *_on_retraces(records, reused, needed), *advice.values()


def useless_traces(records: Sequence[TraceRecord], reused: int, needed: Mapping[str, str]) -> Advice | None:
    """Return what makes new traces of a function again and again; None if the last trace is not the third such one.

    A trace is useless if its reason repeats that of an earlier one: another value from the same source. It is none if
    as many calls have found a trace in the meantime, or took much longer than the traces did. Sizes, dtypes and
    structures are no such reasons.

    Args:
        records, reused, needed: see `advice_on`.
    """
    records = [one for one in records if not one.compared]
    last = records[-1]
    if not last.changes or any(_kind(change) not in _VALUES for change in last.changes):
        return None
    rarest: list[TraceRecord] = []
    name = None
    for change in last.changes:
        alike = [one for one in records if change.argument in [other.argument for other in one.changes]]
        if name is None or len(alike) < len(rarest):
            rarest, name = alike, change
    rarest = rarest[-USELESS - 1 :]
    seconds = sum(one.spent for one in rarest) / 1e3
    if len(rarest) <= USELESS or reused - rarest[0].hits >= len(rarest):
        return None
    if last.at - rarest[0].at > max(PAID_OFF * seconds, 1.0):  # a second, since short times are not told exactly
        return None
    return _on_change(cast(Change, name), last, records, len(rarest) + 1, needed)


def _short(line: str | None) -> str:
    return "an unknown line" if line is None else short_place(line)


# -- traces -------------------------------------------------------------------------------------------------------


def _on_retraces(records: Sequence[TraceRecord], reused: int, needed: Mapping[str, str]) -> Iterator[Advice]:
    """Find the arguments or values that cause a new trace at nearly every call."""
    counts: Counter[str] = Counter()
    last: dict[str, tuple[Change, TraceRecord]] = {}
    for record in records:
        kinds = {_kind(change) for change in record.changes}
        if len(kinds) > 1:
            continue  # there is no single reason
        for change in record.changes:
            name = "" if _kind(change) == "structure" else change.argument
            counts[name] += name not in last or last[name][1] is not record
            last[name] = change, record
    for name, count in counts.items():
        change, record = last[name]
        kind, traces, read = _kind(change), count + 1, _read_at(change.argument, record)
        # `reused` misses calls that use the short way, so values read from outside need more traces as evidence.
        counting = kind in ("integer", "holder")
        least = RETRACES if counting else MODES if read is None else 2 * MODES
        if kind == "type" or traces < least or (not counting and reused >= traces):
            continue
        yield _on_change(change, record, records, traces, needed)


def _on_change(
    change: Change, record: TraceRecord, records: Sequence[TraceRecord], traces: int, needed: Mapping[str, str]
) -> Advice:
    """Return the advice on what has changed from trace to trace.

    Args:
        change: the last change.
        record: the trace that it made.
        records: all traces.
        traces: how many it made.
        needed: see `advice_on`.
    """
    kind, read = _kind(change), _read_at(change.argument, record)
    said, hint = _WORDS[kind]
    if kind in ("integer", "holder") and read is not None:
        hint = "Keep it in a hf.Variable, or pass it as a tensor, where no shape depends on it."
    source, line = _source_of(change, record, needed) or (change.argument.removeprefix("the "), read)
    if source.startswith("length of x["):
        hint = "Use few lengths; or all of it with a mask: hf.where(hf.arange(len(x)) < n, x, 0)."
    code = _code_at(line)

    def said_at(place: str | None) -> str:
        if not code:
            return f"every new {source} makes a new trace"
        return f"`{code}` at {place} makes every new {source} a new trace"

    if code:
        hint = next((other for pattern, other in _INSTEAD if pattern.search(code)), hint)
    spent = sum(one.spent for one in records)
    return Advice(
        "retrace",
        f"{said.format(change.argument, traces)} made {traces} traces (the last one {change.before} -> "
        f"{change.after}); tracing and compiling took {spent / 1e3:.2g} s"
        + (f"; {said_at(_short(line))}" if code else ""),
        hint.format(source),
        line or record.call_site,
        said_at(line),
    )


def _source_of(change: Change, record: TraceRecord, needed: Mapping[str, str]) -> tuple[str, str] | None:
    """Return where a number that made a trace is read, and the line that needs it or changes it; None if unknown."""
    parts = [effect.rpartition(" at ") for effect in record.effects]
    changed = {path: line for path, _, line in parts}
    for lines in (needed, changed):
        for path, line in lines.items():
            if path == change.argument or path.startswith((f"{change.argument}[", f"{change.argument}.")):
                return path, line
    return None


def _code_at(line: str | None) -> str:
    """Return the user's code at a line, shortened; empty if it is not known."""
    file, _, number = (line or "").rpartition(":")
    code = linecache.getline(file, int(number)).strip() if number.isdigit() else ""
    return code if len(code) <= _WIDE else f"{code[: _WIDE - 3]}..."


_WIDE = 80
"""The number of characters of a line of code that texts show."""
_INSTEAD = [
    (re.compile(r"\bfor\b.*\bin\s+range\("),
     "Write hf.arange(n) for range(n): the loop is traced once, and i is a tensor."),
    (re.compile(r"\.(append|add|insert|extend|put|update)\("),
     "Do that outside of the function, or keep the number in a hf.Variable."),
    (re.compile(r"\bprint\(|\blog(ger|ging)?\.|\bf['\"]"),
     "Make texts of it outside of the function, or with hf.print."),
]
"""The hint for code that needs a number, by what is in the line."""
_VALUES = frozenset({"integer", "holder", "float", "value"})
"""The kinds of changes that are another value of the same."""
_WORDS = {
    "integer": (
        "{0} is a Python integer, and {1} values of it",
        "Pass {0} as a tensor, hf.asarray({0}), where no shape depends on it.",
    ),
    "holder": (
        "{0} holds a Python integer, and {1} values of it",
        "Keep it in a hf.Variable, or pass it as a tensor, where no shape depends on it.",
    ),
    "float": (
        "the code needs the number that {0} is, and {1} values of it",
        "Pass it as a tensor, hf.asarray({0}), and let conditions be on tensors.",
    ),
    "shape": (
        "{0} came in {1} shapes, which",
        "Let sizes be open: dynamic='auto' and code that does not need their numbers; or pad to a few sizes.",
    ),
    "structure": (
        "the structure of the arguments was another one {1} times, at {0} among others, which",
        "Stack what there are many of into one tensor, or pad to a few lengths.",
    ),
    "value": (
        "{0} was another Python value {1} times, which",
        "Make it once outside and pass the same object; what is made at every call is new to the cache.",
    ),
}
"""The text and the hint for each kind of change: ``{0}`` is what changed, ``{1}`` the number of traces it caused."""
_SPEC = re.compile(r"([a-z]+\d*)\[([^\]]*)\]")


def _kind(change: Change) -> str:
    """Return the kind of a change."""
    before, after = change.before, change.after
    if "absent" in (before, after) or change.argument == "structure":
        return "structure"
    if _is_int(before) and _is_int(after):
        return "integer"
    if change.argument == "sizes":
        return "shape"
    specs = _SPEC.match(before), _SPEC.match(after)
    if specs[0] is not None and specs[1] is not None:
        one, other = specs[0], specs[1]
        return "shape" if (one[1], one[2].count(",")) == (other[1], other[2].count(",")) else "type"
    if specs != (None, None) or before.startswith("Variable") or after.startswith("Variable"):
        return "type"
    if before.startswith("float ") and after.startswith("float "):
        return "float"
    if _holds_int(before, after):
        return "holder"
    kinds = _python_kind(before), _python_kind(after)
    return "value" if None in kinds or kinds[0] == kinds[1] else "type"


def _python_kind(text: str) -> str | None:
    """Return the type of a plain Python value, given its text, with or without that of its type."""
    named = re.match(r"(bool|int|float|complex|str|bytes|NoneType) ", text)
    if named is not None:
        return named[1]
    try:
        return type(ast.literal_eval(text)).__name__
    except (ValueError, SyntaxError):
        return None


def _is_int(text: str) -> bool:
    return re.fullmatch(r"(int )?-?\d+", text) is not None


def _holds_int(before: str, after: str) -> bool:
    """Whether two texts are containers that differ only in integers."""
    try:
        return _alike_but_ints(ast.literal_eval(before), ast.literal_eval(after))
    except (ValueError, SyntaxError):  # not plain values, or truncated
        return False


def _alike_but_ints(a: Any, b: Any) -> bool:
    """Whether two values are equal except for the ints in their lists, tuples and dicts."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_alike_but_ints(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_alike_but_ints, a, b))
    return type(a) is int or a == b


def _read_at(name: str, record: TraceRecord) -> str | None:
    """Return the line where a trace read a value that is no argument; None if it is not known."""
    for guard in record.guards:
        if guard.startswith(f"{name} is "):
            match = re.search(r"\((?:read|asked) at (.*)\)$", guard)
            return None if match is None else match[1]
    return None


# -- graphs -------------------------------------------------------------------------------------------------------


def _on_float64(graph: Graph) -> Iterator[Advice]:
    """Find where a float64 value unintentionally turns float32 values into float64."""
    for one in graphs_of(graph):
        culprit = next(_on_float64_in(one), None)
        if culprit is not None:
            yield culprit  # later ones are its consequences
            return


def _on_float64_in(graph: Graph) -> Iterator[Advice]:
    wide = (float64, complex128)
    for source in [node for node in _sources(graph) if node.spec().dtype in wide]:
        reached = _reached(graph, source)
        for node in graph.nodes:
            widened = [edge for edge in node.inputs if edge is not None and _is_widened(edge, node)]
            if widened and any(edge is not None and edge[0] in reached for edge in node.inputs):
                name = source.attrs.get("name") if source.op is INPUT else _constant_name(source)
                narrow = widened[0][0].inputs[0]
                assert narrow is not None
                yield Advice(
                    "float64",
                    f"{name} is {source.spec()} and meets {narrow[0].spec(narrow[1])}: {node.op.name} and what follows "
                    f"are computed in float64, with twice the memory and half the speed or less",
                    "Make it float32 if that is not meant: hf.asarray(..., dtype=hf.float32)."
                    if source.spec().shape
                    else "Make it a Python number, float(...), which takes the tensor's dtype, if that is not meant.",
                    node.location,
                )
                return


def _constant_name(source: Node) -> str:
    return "an array" if source.spec().shape else "a NumPy number"


def _sources(graph: Graph) -> Iterator[Node]:
    yield from graph.inputs
    yield from [node for node in graph.nodes if node.op is CONSTANT]


def _is_widened(edge: Edge, reader: Node) -> bool:
    """Whether an operation's input was float32 and was only converted to float64 for this operation."""
    node = edge[0]
    if node.where is None or reader.where is None or node.where[:2] != reader.where[:2]:
        return False  # the user wrote that cast
    before = node.inputs[0] if node.op.has("conversion") else None
    return before is not None and node.spec().dtype == float64 and before[0].spec(before[1]).dtype == float32


def _reached(graph: Graph, source: Node) -> set[Node]:
    reached = {source}
    for node in graph.nodes:
        if any(edge is not None and edge[0] in reached for edge in node.inputs):
            reached.add(node)
    return reached


def _on_constants(graph: Graph) -> Iterator[Advice]:
    """Find large arrays that are part of the program."""
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
    """Find calls of Python in the bodies of loops, and those that a Python loop repeats."""
    for node in graph.nodes:
        for body in bodies(node, graph.dims.hints) or ():
            if body.alternative:
                yield from _on_host_calls(body.graph)
            elif body.times is None or evaluate(body.times, graph.dims.hints) > 1:
                for inner in body.graph.walk():
                    if _calls_python(inner):
                        often = "each step" if body.times is None else f"each of {body.times} steps"
                        yield Advice(
                            "host",
                            f"{inner.op.name} leaves the program for Python in {often} of the loop at "
                            f"{_short(format_where(node.where))}, and the loop waits for it",
                            _COLLECT,
                            inner.location,
                        )
    repeated = Counter((node.op.name, node.location) for node in graph.nodes if _calls_python(node))
    for (name, line), times in repeated.items():
        if times >= ROUND_TRIPS:
            text = f"{name} leaves the program for Python {times} times in a call, and what follows waits for it"
            yield Advice("host", text, _COLLECT, line)


_COLLECT = "Collect the values in the loop and handle them after it."


def _calls_python(node: Node) -> bool:
    return "effect" in node.op.traits and "random" not in node.op.traits


def _on_unrolled(graph: Graph) -> Iterator[Advice]:
    """Find loops over Python's range that a tensor may end: each step is a branch at the line of `for`."""
    for one in graphs_of(graph):
        branches = Counter(where_file_line(node.where) for node in one.nodes if node.op.name == "cond")
        for place, steps in branches.items():
            if place is not None and steps >= UNROLLED and _OVER_RANGE.match(linecache.getline(*place)):
                yield Advice(
                    "unrolled",
                    f"Python's loop has {steps + 1} steps in the graph of {sum(1 for _ in one.walk()):,} nodes, since "
                    "its break, return or continue is on a tensor",
                    "Write hf.arange(n) for range(n): one loop of the graph, traced once, where i is a tensor.",
                    f"{place[0]}:{place[1]}",
                )


_OVER_RANGE = re.compile(r"\s*for\b.*\bin\s+range\(")


def _on_tiny(graph: Graph) -> Iterator[Advice]:
    """Find functions that compute too little for a compiled call to be worthwhile."""
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


_RULES: tuple[Callable[[Graph], Iterable[Advice]], ...] = (
    _on_float64, _on_constants, _on_host_calls, _on_unrolled, _on_tiny,
)


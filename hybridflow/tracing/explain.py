"""`fn.explain()`: one record per trace, printable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from hybridflow.core.html import table_html
from hybridflow.tracing.budget import MemoryRecord
from hybridflow.xla.executable import Executable

_SHOWN = 10
"""How many guards a printed record shows."""


@dataclass(frozen=True)
class Change:
    """An argument that differs from the nearest earlier trace."""

    argument: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.argument}: {self.before} -> {self.after}"


@dataclass
class TraceRecord:
    """What one trace was made for and what it cost.

    Attributes:
        number: 1 for the first.
        signature: argument names and what they were.
        call_site: where the call came from, as ``file:line``.
        changes: what differs from the nearest earlier trace; empty for the first.
        trace_ms, passes_ms, lower_ms, xla_ms, load_ms: what it cost, milliseconds; `load_ms` is for executables that
            were loaded from the store on disk.
        nodes: nodes of the graph after the passes.
        passes: one record per pass: name, milliseconds, node counts.
        compiles: how many executables (one per concrete shape) came of it; store: for each, what the store on disk did.
        captured: how many tensors from outside the function the trace reads.
        variables: the names of the Variables it reads; assigned: of those it assigns.
        guards: what it read from Python outside its arguments, and relies on.
        effects: what it changed outside; that happened once, when it was traced.
        autocast: the dtype of the `hf.autocast` that it was called under, or ``off``.
        memory: what a memory budget made of the last executable, None without one.
        dropped: whether an equal trace had been dropped from the cache.
    """

    number: int
    signature: dict[str, str]
    call_site: str | None
    changes: tuple[Change, ...] = ()
    trace_ms: float = 0.0
    passes_ms: float = 0.0
    lower_ms: float = 0.0
    xla_ms: float = 0.0
    load_ms: float = 0.0
    nodes: int = 0
    passes: tuple[Any, ...] = ()
    compiles: int = 0
    store: list[str] = field(default_factory=list[str])
    captured: int = 0
    variables: tuple[str, ...] = ()
    assigned: tuple[str, ...] = field(default=())
    guards: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    autocast: str = "off"
    dropped: bool = False
    memory: MemoryRecord | None = None

    @property
    def reason(self) -> str:
        """Why this trace was made."""
        if self.changes:
            return "; ".join(map(str, self.changes))
        if self.dropped:
            return "an equal trace was dropped from the cache"
        return "first call" if self.number == 1 else "no earlier trace was left in the cache"

    def add(self, made: Executable) -> None:
        """Count an executable."""
        self.compiles += 1
        self.store.append(made.store)
        self.lower_ms += made.lower_ms
        self.xla_ms += made.xla_ms
        self.load_ms += made.load_ms

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}: {value}" for name, value in self.signature.items())
        lines = [
            f"trace {self.number} at {self.call_site}: ({arguments})",
            f"  why: {self.reason}",
            f"  cost: trace {self.trace_ms:.1f} ms, passes {self.passes_ms:.1f} ms, "
            f"lower {self.lower_ms:.1f} ms, XLA {self.xla_ms:.1f} ms in {self.compiles} compile(s); {self.nodes} nodes",
        ]
        loaded = self.store.count("loaded")
        if loaded:
            lines.append(f"  loaded from the store on disk: {loaded} of {self.compiles}, in {self.load_ms:.1f} ms")
        if self.variables:
            writes = f", writes {', '.join(self.assigned)}" if self.assigned else ""
            lines.append(f"  Variables: reads {', '.join(self.variables)}{writes}")
        if self.autocast != "off":
            lines.append(f"  autocast: {self.autocast}")
        if self.memory is not None:
            lines.extend(self.memory.lines())
        if self.captured:
            lines.append(f"  captured tensors: {self.captured}")
        lines.extend(f"  relies on: {guard}" for guard in self.guards[:_SHOWN])
        if len(self.guards) > _SHOWN:
            lines.append(f"  relies on: {len(self.guards) - _SHOWN} more, in .guards")
        lines.extend(f"  changed when it was traced, and only then: {effect}" for effect in self.effects)
        telling = [one for one in self.passes if one.note or one.nodes_before != one.nodes_after]
        lines.extend(f"  pass {record}" for record in telling)
        quiet = len(self.passes) - len(telling)
        if quiet:
            spent = sum(one.milliseconds for one in self.passes if one not in telling)
            lines.append(f"  {quiet} other runs of passes changed nothing, {spent:.2f} ms")
        return "\n".join(lines)


class Explanation(Sequence[TraceRecord]):
    """The records of a compiled function's traces: a sequence, printable, and a table in notebooks.

    Attributes:
        name: the function's.
        advice: what could be changed: see `hybridflow.tracing.advice.Advice`.
    """

    def __init__(self, name: str, records: Sequence[TraceRecord], advice: Sequence[Any] = ()) -> None:
        self.name = name
        self.advice = tuple(advice)
        self._records = tuple(records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __str__(self) -> str:
        count = len(self._records)
        head = f"{self.name}: {count} trace{'' if count == 1 else 's'}"
        return "\n".join([head, *map(str, self._records), *map(str, self.advice)])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        columns = ("trace", "called at", "arguments", "why", "trace, passes, lower, XLA", "nodes")
        table = table_html(columns, [_cells(record) for record in self._records])
        advice = "".join(
            f"<li><b>{escape(str(one.line))}</b>: {escape(one.text)}. {escape(one.hint)}</li>" for one in self.advice
        )
        return f"<p><b>{escape(self.name)}</b></p>{table}<ul>{advice}</ul>"


def _cells(record: TraceRecord) -> tuple[str, ...]:
    milliseconds = record.trace_ms, record.passes_ms, record.lower_ms, record.xla_ms
    return (
        str(record.number), str(record.call_site),
        ", ".join(f"{name}: {value}" for name, value in record.signature.items()), record.reason,
        ", ".join(f"{one:.1f}" for one in milliseconds) + " ms", str(record.nodes),
    )  # fmt: skip

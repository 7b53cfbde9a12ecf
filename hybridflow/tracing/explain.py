"""`fn.explain()`: one record per trace, printable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
        if self.captured:
            lines.append(f"  captured tensors: {self.captured}")
        lines.extend(f"  relies on: {guard}" for guard in self.guards[:_SHOWN])
        if len(self.guards) > _SHOWN:
            lines.append(f"  relies on: {len(self.guards) - _SHOWN} more, in .guards")
        lines.extend(f"  changed when it was traced, and only then: {effect}" for effect in self.effects)
        lines.extend(f"  pass {record}" for record in self.passes)
        return "\n".join(lines)


class Explanation(Sequence[TraceRecord]):
    """The records of a compiled function's traces: a sequence, and printable."""

    def __init__(self, name: str, records: Sequence[TraceRecord]) -> None:
        self.name = name
        self._records = tuple(records)

    def __getitem__(self, index: Any) -> Any:
        return self._records[index]

    def __len__(self) -> int:
        return len(self._records)

    def __str__(self) -> str:
        count = len(self._records)
        head = f"{self.name}: {count} trace{'' if count == 1 else 's'}"
        return "\n".join([head, *map(str, self._records)])

    __repr__ = __str__

"""What was traced and compiled, and what it cost: one record per trace, from which `explain` tells."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hybridflow.core.attached import attached
from hybridflow.passes.lib.outcomes import Outlined, Rolled
from hybridflow.passes.lib.recompute import Recomputed
from hybridflow.tracing.budget import MemoryRecord
from hybridflow.tracing.executables import ExecutableRecord


@dataclass(frozen=True)
class Change:
    """An argument that differs from the nearest earlier trace."""

    argument: str
    before: str
    after: str

    @classmethod
    def between(cls, argument: str, before: str, after: str) -> Change:
        """Return a change, in words that differ where what changed is described alike."""
        return cls(argument, before, after if after != before else f"another {after}")

    def __str__(self) -> str:
        return f"{self.argument}: {self.before} -> {self.after}"


@dataclass
class TraceRecord:
    """What one trace was made for and what it cost.

    Attributes:
        number: 1 for the first.
        signature: argument names and what they were.
        call_site: where the call came from, as ``file:line``; None for one of the command line.
        changes: what differs from the nearest earlier trace; empty for the first.
        trace_ms, passes_ms, lower_ms, xla_ms, load_ms: what it cost, milliseconds; `load_ms` is for executables that
            were loaded from the store on disk.
        nodes: nodes of the graph after the passes.
        passes: one record per pass: name, milliseconds, node counts.
        compiles: how many executables (one per concrete shape) came of it; store: for each, what the store on disk did.
        captured: how many tensors from outside the function the trace reads.
        variables: the names of the Variables it reads; assigned: of those it assigns.
        guards: what it read from Python outside its arguments, and relies on.
        effects: what it changes outside, at every call.
        autocast: the dtype of the `hf.autocast` that it was called under, or ``off``.
        executables: one record per executable: XLA's options, what it takes over, what was fused.
        outlined: the repeated parts of the graph that are compiled once and called.
        rolled: those that are compiled once and run as a loop.
        recomputed: what checkpoints compute again, per line of the user's code.
        memory: what a memory budget made of the last executable, None without one.
        dropped: whether an equal trace had been dropped from the cache.
        others: how many traces the cache held then.
        once: whether it changed what it read, so that it served its own call alone.
        created: the Variables that it created, each with its line.
        again: what it read that cannot be watched, so that it served its own call alone.
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
    others: int = 0
    once: bool = False
    created: tuple[str, ...] = ()
    again: str | None = None
    memory: MemoryRecord | None = None
    executables: list[ExecutableRecord] = field(default_factory=list[ExecutableRecord])
    outlined: tuple[Outlined, ...] = ()
    rolled: tuple[Rolled, ...] = ()
    recomputed: tuple[Recomputed, ...] = ()

    @property
    def reason(self) -> str:
        """Why this trace was made."""
        if self.changes:
            return "; ".join(map(str, self.changes))
        if self.dropped:
            return "an equal trace was dropped from the cache"
        if self.number == 1:
            return "first call"
        return "no trace for these arguments" if self.others else "no earlier trace was left in the cache"

    def add(self, made: ExecutableRecord) -> None:
        """Count an executable."""
        self.compiles += 1
        self.executables.append(made)
        self.store.append(made.store)
        self.lower_ms += made.lower_ms
        self.xla_ms += made.xla_ms
        self.load_ms += made.load_ms

    def __str__(self) -> str:
        return attached("text_of")(self)
